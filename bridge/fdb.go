// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"

	"bascule/datapath"
)

// maxVLAN is the highest VLAN ID of an entry; 4095 is reserved (IEEE 802.1Q table 9-2).
const maxVLAN = 4094

// EntryRoom returns the number of places in the table of a bridge that learns max addresses, static
// entries included. The table may be full before, because an entry can be in eight buckets only.
func EntryRoom(max uint32) int { return datapath.FDBPlaces(max) }

// FDB returns the entries of a bridge that match, by VLAN and address.
func (s *Switch) FDB(bridge string, m Match) (list []Entry, err error) {
	list = []Entry{}
	err = s.each(showWhat("the FDB", bridge), bridge, func(name string, b *datapath.Bridge) error {
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		if err := v.find("show the FDB of "+bridge, m.Port); err != nil {
			return err
		}
		own, entries, err := v.ownEntries()
		if err != nil {
			return err
		}
		if m.VLAN != nil {
			vid, err := addressVLAN(b, *m.VLAN)
			if err != nil {
				return err
			}
			m.VLAN = &vid
		}
		list = v.entries(slices.DeleteFunc(entries, func(e datapath.Entry) bool {
			pinned := e.Static || e.Sticky
			return m.Port != "" && m.Port != v.names[e.Port] ||
				m.MAC != nil && !bytes.Equal(m.MAC, e.MAC[:]) ||
				m.VLAN != nil && *m.VLAN != e.VLAN ||
				m.Static && !m.Dynamic && !pinned ||
				m.Own && !own(e) ||
				m.Dynamic && !m.Static && pinned
		}))
		return nil
	})
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.VLAN, b.VLAN), bytes.Compare(a.MAC, b.MAC))
	})
	return list, err
}

// GetEntry returns the entry of an address in the VLAN *in, where 0 stands for no VLAN. If in is
// nil, it returns the address's only entry if the bridge filters VLANs, and the entry without a
// VLAN otherwise.
func (s *Switch) GetEntry(bridge string, mac net.HardwareAddr, in *uint16) (e Entry, err error) {
	what := fmt.Sprintf("get address %s of %s", mac, bridge)
	if in != nil {
		if err := checkEntryVLAN(*in); err != nil {
			return e, err
		}
	}
	err = s.each(what, bridge, func(name string, b *datapath.Bridge) error {
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		vlan, err := onlyVLAN(b, what, mac, in)
		if err != nil {
			return err
		}
		entries, err := b.FDB()
		if err != nil {
			return failed(what, err)
		}
		list := v.entries(slices.DeleteFunc(entries, func(e datapath.Entry) bool {
			return e.VLAN != vlan || !bytes.Equal(e.MAC[:], mac)
		}))
		if len(list) == 0 {
			return noEntry(what, bridge, vlan, in)
		}
		e = list[0]
		return nil
	})
	return e, err
}

// checkEntryVLAN refuses VLAN IDs that an entry cannot have.
func checkEntryVLAN(vlan uint16) error {
	if vlan > maxVLAN {
		return usagef(fmt.Sprintf("VLAN %d", vlan), "out of range; give 1 to %d", maxVLAN)
	}
	return nil
}

// noEntry is the error for an address that the FDB does not have in a VLAN. in is the VLAN of the
// request, or nil.
func noEntry(what, bridge string, vlan uint16, in *uint16) error {
	why := "the FDB does not have it"
	switch {
	case vlan != 0:
		why += fmt.Sprintf(" in VLAN %d", vlan)
	case in != nil:
		why += " without a VLAN"
	}
	return refused(what, why, "see 'bascule fdb show "+bridge+"'")
}

// entries returns the entries whose ports exist.
func (v *view) entries(list []datapath.Entry) []Entry {
	names := map[uint32]string{}
	for _, p := range v.ports {
		if v.there(p) {
			names[p.Id] = v.names[p.Id]
		}
	}
	shown := make([]Entry, 0, len(list))
	for _, e := range list {
		if port, ok := names[e.Port]; ok {
			shown = append(shown, Entry{
				MAC: net.HardwareAddr(e.MAC[:]), VLAN: e.VLAN, Port: port,
				Static: e.Static, Sticky: e.Sticky, Locked: e.Locked, Updated: e.Updated,
			})
		}
	}
	return shown
}

// AddEntry adds a static or sticky entry, which replaces a learned one. It refuses to move a static
// entry from another port. If the bridge filters VLANs, VLAN 0 stands for the port's PVID.
func (s *Switch) AddEntry(bridge string, e Entry) error {
	return s.replaceEntries(addWhat(bridge, e), bridge, nil, []Entry{e})
}

// ReplaceEntries deletes entries, as FDB returns them, and adds others, as AddEntry does. It opens
// the bridge and looks up its ports only once. The entries to delete may be gone already. An
// address in both lists moves, and has an entry all the time.
func (s *Switch) ReplaceEntries(bridge string, del, add []Entry) error {
	return s.replaceEntries("change the FDB of "+bridge, bridge, del, add)
}

// addWhat describes the addition of an entry, for errors.
func addWhat(bridge string, e Entry) string {
	return fmt.Sprintf("add address %s to %s", e.MAC, bridge)
}

func (s *Switch) replaceEntries(what, bridge string, del, add []Entry) error {
	for _, e := range add {
		if err := checkEntryVLAN(e.VLAN); err != nil {
			return err
		}
	}
	type address struct {
		mac  [6]byte
		vlan uint16
	}
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		entries, err := b.FDB()
		if err != nil {
			return failed(what, err)
		}
		pinned := map[address]datapath.Entry{} // entries that do not move
		for _, e := range entries {
			if e.Static || e.Sticky {
				pinned[address{e.MAC, e.VLAN}] = e
			}
		}
		leave := map[address]bool{}
		for _, e := range del {
			a := address{[6]byte(e.MAC), e.VLAN}
			leave[a] = true
			delete(pinned, a)
		}
		// Check everything before changing anything.
		next := make([]datapath.Entry, len(add))
		find := placeFinder(b, bridge)
		for i, e := range add {
			at, err := find(addWhat(bridge, e), e.Port, e.VLAN)
			if err != nil {
				return err
			}
			if at.gone {
				return refused(addWhat(bridge, e), "the device of port "+e.Port+" is gone", "give a port that has one")
			}
			p, vlan := at.port, at.vlan
			a := address{[6]byte(e.MAC), vlan}
			if there, ok := pinned[a]; ok && there.Port != p.Id {
				remedy := fmt.Sprintf("delete that entry first with 'bascule fdb del %s %s", bridge, e.MAC)
				if vlan != 0 {
					remedy += fmt.Sprintf(" --vlan %d", vlan)
				}
				v, err := viewOf(bridge, b)
				if err != nil {
					return err
				}
				kind := "static"
				if there.Sticky {
					kind = "sticky"
				}
				return refused(addWhat(bridge, e), "it is "+kind+" on port "+cmp.Or(v.names[there.Port], "that is gone"), remedy+"'")
			}
			delete(leave, a)
			next[i] = datapath.Entry{MAC: a.mac, VLAN: vlan, Port: p.Id, Static: !e.Sticky, Sticky: e.Sticky}
			pinned[a] = next[i]
		}
		if s.rehearsal != nil {
			return s.rehearse(bridge, b, func(all *contents) {
				all.entries = slices.DeleteFunc(all.entries, func(e datapath.Entry) bool {
					_, is := pinned[address{e.MAC, e.VLAN}]
					return is || leave[address{e.MAC, e.VLAN}]
				})
				all.entries = append(all.entries, slices.Collect(maps.Values(pinned))...)
			})
		}
		for a := range leave {
			if err := b.Delete(a.mac, a.vlan); err != nil && !errors.Is(err, os.ErrNotExist) {
				return failed(what, err)
			}
		}
		for i, e := range next {
			err := b.Put(e)
			if errors.Is(err, datapath.ErrFull) {
				return refused(addWhat(bridge, add[i]), err.Error(), "raise --fdb-max of the bridge, or flush")
			}
			if err != nil {
				return failed(addWhat(bridge, add[i]), err)
			}
		}
		return nil
	})
}

// A place is the location of an address: a port, and the VLAN of its entry in the FDB.
type place struct {
	port *datapath.Port
	vlan uint16
	gone bool // the port's device is gone
}

// placeFinder returns a function that finds the place for an address by port and VLAN. It looks up
// each place once. what is for errors.
func placeFinder(b *datapath.Bridge, bridge string) func(what, port string, vlan uint16) (place, error) {
	type said struct {
		port string
		vlan uint16
	}
	ports, places := map[string]place{}, map[said]place{}
	return func(what, port string, vlan uint16) (place, error) {
		at, ok := places[said{port, vlan}]
		if ok {
			return at, nil
		}
		if at, ok = ports[port]; !ok {
			p, l, err := findRunning(b, what, bridge, port)
			if err = memberOrError(p, what, bridge, port, err); err != nil {
				return place{}, err
			}
			at = place{port: p, gone: l == nil && !b.There(p)}
			ports[port] = at
		}
		var err error
		if at.vlan, err = entryVLAN(b, at.port, what, bridge, port, vlan); err != nil {
			return place{}, err
		}
		places[said{port, vlan}] = at
		return at, nil
	}
}

// DelEntry removes an entry of any kind, except for a host port's own address. in is the same as
// for GetEntry.
func (s *Switch) DelEntry(bridge string, mac net.HardwareAddr, in *uint16) error {
	what := fmt.Sprintf("delete address %s of %s", mac, bridge)
	if in != nil {
		if err := checkEntryVLAN(*in); err != nil {
			return err
		}
	}
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		vlan, err := onlyVLAN(b, what, mac, in)
		if err != nil {
			return err
		}
		v, err := viewOf(bridge, b)
		if err != nil {
			return failed(what, err)
		}
		own, entries, err := v.ownEntries()
		if err != nil {
			return failed(what, err)
		}
		for _, e := range entries {
			if e.VLAN == vlan && bytes.Equal(e.MAC[:], mac) && own(e) {
				port := v.names[e.Port]
				return refused(what, "it is the address of host port "+port+" itself, which another station could take then",
					"delete the port with 'bascule port del "+bridge+" "+port+"', or leave the address")
			}
		}
		if s.rehearsal != nil {
			is := func(e datapath.Entry) bool { return e.VLAN == vlan && bytes.Equal(e.MAC[:], mac) }
			i := slices.IndexFunc(entries, is)
			if i < 0 {
				return noEntry(what, bridge, vlan, in)
			}
			s.rehearsal.learned(bridge, entries[i:i+1])
			return s.rehearse(bridge, b, func(all *contents) { all.entries = slices.DeleteFunc(all.entries, is) })
		}
		err = b.Delete([6]byte(mac), vlan)
		if errors.Is(err, os.ErrNotExist) {
			return noEntry(what, bridge, vlan, in)
		}
		return failed(what, err)
	})
}

// ownEntries returns the entries of the FDB, and a function that reports whether an entry is a host
// port's own address. Such an entry stays as long as the port is in the VLAN, so that no other
// station takes the address.
func (v *view) ownEntries() (own func(datapath.Entry) bool, entries []datapath.Entry, err error) {
	spaces, err := currentSpaces(v.b)
	if err != nil {
		return nil, nil, err
	}
	own = func(e datapath.Entry) bool {
		p := datapath.PortAt(&v.b.Config, e.Port)
		return e.Static && p != nil && p.Host != 0 && datapath.WordMAC(p.Host) == e.MAC && slices.Contains(spaces[e.Port], e.VLAN)
	}
	entries, err = v.b.FDB()
	return own, entries, err
}

// onlyVLAN returns the VLAN of an address's entry for a request with the VLAN *in. If in is nil, it
// is the only VLAN that has an entry of the address.
func onlyVLAN(b *datapath.Bridge, what string, mac net.HardwareAddr, in *uint16) (uint16, error) {
	if in != nil {
		vid, err := addressVLAN(b, *in)
		return vid, failed(what, err)
	}
	if !filters(&b.Config) {
		return 0, nil
	}
	entries, err := b.FDB()
	if err != nil {
		return 0, failed(what, err)
	}
	var vlans []uint16
	for _, e := range entries {
		if bytes.Equal(e.MAC[:], mac) {
			vlans = append(vlans, e.VLAN)
		}
	}
	slices.Sort(vlans)
	switch {
	case len(vlans) == 0:
		return 0, nil
	case len(vlans) == 1:
		return vlans[0], nil
	case vlans[0] != 0:
		return 0, refused(what, "it is in VLANs "+FormatVLANs(vlans), "name one with --vlan")
	}
	word := "VLAN "
	if len(vlans) > 2 {
		word = "VLANs "
	}
	return 0, refused(what, "it is there without a VLAN, and in "+word+FormatVLANs(vlans[1:]), "name one with --vlan, 0 for none")
}

// FlushEntries removes entries that match: learned ones, and with static all of them. It returns
// the number of removed entries, and the number of static or sticky ones that match and stay.
func FlushEntries(s interface {
	Flush(bridge string, m Match) (n int, err error)
	FDB(bridge string, m Match) ([]Entry, error)
}, bridge string, m Match, static bool) (removed, spared int, err error) {
	m.Dynamic, m.Static = !static, false
	if removed, err = s.Flush(bridge, m); err != nil {
		return 0, 0, err
	}
	m.Dynamic, m.Static, m.Own = false, true, true
	own, err := s.FDB(bridge, m)
	if err != nil || static {
		return removed, len(own), err
	}
	m.Own = false
	all, err := s.FDB(bridge, m)
	return removed, max(0, len(all)-len(own)), err
}

// Flush removes the entries that match, except for host ports' own addresses, and returns their
// number.
func (s *Switch) Flush(bridge string, m Match) (n int, err error) {
	what := "flush the FDB of " + bridge
	err = s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		match := datapath.Match{VLAN: m.VLAN, Dynamic: true}
		if m.VLAN != nil {
			vid, err := addressVLAN(b, *m.VLAN)
			if err != nil {
				return failed(what, err)
			}
			match.VLAN = &vid
		}
		if m.Port != "" {
			p, _, err := findRunning(b, what, bridge, m.Port)
			if err != nil {
				return err
			}
			match.Port = p.Id
		}
		if s.rehearsal != nil {
			return failed(what, s.rehearseFlush(bridge, b, match, m))
		}
		if m.Dynamic || !m.Static {
			if n, err = b.Flush(match); err != nil {
				return failed(what, err)
			}
		}
		if m.Static || !m.Dynamic {
			pinned, err := flushPinned(bridge, b, match)
			n += pinned
			return failed(what, err)
		}
		return nil
	})
	return n, err
}

// flushPinned removes the static and sticky entries that match, except for host ports' own
// addresses. It removes them one by one, because an own address must not be missing even for a
// moment.
func flushPinned(name string, b *datapath.Bridge, m datapath.Match) (n int, err error) {
	v, err := viewOf(name, b)
	if err != nil {
		return 0, err
	}
	own, entries, err := v.ownEntries()
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		if !e.Static && !e.Sticky || m.Port != 0 && m.Port != e.Port || m.VLAN != nil && *m.VLAN != e.VLAN || own(e) {
			continue
		}
		switch err := b.Delete(e.MAC, e.VLAN); {
		case err == nil:
			n++
		case !errors.Is(err, os.ErrNotExist):
			return n, err
		}
	}
	return n, nil
}

// dropLocked deletes the locked entries of a port.
func dropLocked(b *datapath.Bridge, p *datapath.Port) error {
	entries, err := b.FDB()
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !e.Locked || e.Port != p.Id {
			continue
		}
		if err := b.Delete(e.MAC, e.VLAN); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// dropSurplus deletes learned addresses of a port, or of the bridge if p is nil, until their number
// is within the limit. The notes report the deletion of addresses of the object name.
func dropSurplus(b *datapath.Bridge, p *datapath.Port, name string) (notes []string, err error) {
	m := datapath.Match{Dynamic: true, Keep: b.Config.FdbMax}
	if p != nil {
		m.Port, m.Keep = p.Id, p.FdbMax
	}
	if m.Keep == 0 { // no limit
		return nil, nil
	}
	n, err := b.Flush(m)
	if n > 0 {
		notes = append(notes, fmt.Sprintf("%s: %d learned addresses dropped to make room for %d at most; static ones stay", name, n, m.Keep))
	}
	return notes, err
}
