// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"

	"bascule/datapath"
)

// maxVLAN is the last VLAN that an entry can be in; 4095 is reserved (IEEE
// 802.1Q table 9-2).
const maxVLAN = 4094

// FDB returns the entries of a bridge that match, by VLAN and address.
func (s *Switch) FDB(bridge string, m Match) (list []Entry, err error) {
	list = []Entry{}
	err = s.each(bridge, func(name string, b *datapath.Bridge) error {
		devices, err := links()
		if err != nil {
			return err
		}
		names := map[uint32]string{} // of the ports that are there
		known := m.Port == ""
		for _, p := range datapath.Ports(&b.Config) {
			n := portName(b, p, devices)
			known = known || n == m.Port
			if b.There(p) {
				names[p.Id] = n
			}
		}
		if !known {
			return refused("show the FDB of "+bridge, m.Port+" is no port of this bridge", "see 'bascule port show "+bridge+"'")
		}
		entries, err := b.FDB()
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
		list = make([]Entry, 0, len(entries))
		for _, e := range entries {
			port, ok := names[e.Port]
			pinned := e.Static || e.Sticky
			switch {
			case !ok,
				m.Port != "" && m.Port != port,
				m.VLAN != nil && *m.VLAN != e.VLAN,
				m.Static && !m.Dynamic && !pinned,
				m.Dynamic && !m.Static && pinned:
				continue
			}
			list = append(list, Entry{
				MAC: net.HardwareAddr(e.MAC[:]), VLAN: e.VLAN, Port: port,
				Static: e.Static, Sticky: e.Sticky, Updated: e.Updated,
			})
		}
		return nil
	})
	slices.SortFunc(list, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.VLAN, b.VLAN), bytes.Compare(a.MAC, b.MAC))
	})
	return list, err
}

// AddEntry makes a static or sticky entry. It takes the place of one that was
// learned; a static entry on another port is not moved but refused. Where the
// bridge filters VLANs, VLAN 0 stands for the port's PVID.
func (s *Switch) AddEntry(bridge string, e Entry) error {
	what := fmt.Sprintf("add address %s to %s", e.MAC, bridge)
	if e.VLAN > maxVLAN {
		return usagef(fmt.Sprintf("VLAN %d", e.VLAN), "out of range; give 1 to %d", maxVLAN)
	}
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		next := b.Config
		p, l, err := findMember(&change{bridge: b, next: &next}, what, bridge, e.Port)
		if err != nil {
			return err
		}
		if l == nil && !b.There(p) {
			return refused(what, "the device of port "+e.Port+" is gone", "give a port that has one")
		}
		if e.VLAN, err = entryVLAN(b, p, what, bridge, e.Port, e.VLAN); err != nil {
			return err
		}
		entries, err := b.FDB()
		if err != nil {
			return failed(what, err)
		}
		for _, old := range entries {
			if bytes.Equal(old.MAC[:], e.MAC) && old.VLAN == e.VLAN && (old.Static || old.Sticky) && old.Port != p.Id {
				remedy := fmt.Sprintf("delete that entry first with 'bascule fdb del %s %s", bridge, e.MAC)
				if e.VLAN != 0 {
					remedy += fmt.Sprintf(" --vlan %d", e.VLAN)
				}
				return refused(what, "it is static on another port", remedy+"'")
			}
		}
		err = b.Put(datapath.Entry{MAC: [6]byte(e.MAC), VLAN: e.VLAN, Port: p.Id, Static: !e.Sticky, Sticky: e.Sticky})
		if errors.Is(err, datapath.ErrFull) {
			return refused(what, err.Error(), "raise --fdb-max of the bridge, or flush")
		}
		return failed(what, err)
	})
}

// DelEntry removes an entry of any kind. Where the bridge filters VLANs, VLAN 0
// stands for the only one that the address is in.
func (s *Switch) DelEntry(bridge string, mac net.HardwareAddr, vlan uint16) error {
	what := fmt.Sprintf("delete address %s of %s", mac, bridge)
	if vlan > maxVLAN {
		return usagef(fmt.Sprintf("VLAN %d", vlan), "out of range; give 1 to %d", maxVLAN)
	}
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		if vlan, err = onlyVLAN(b, what, mac, vlan); err != nil {
			return err
		}
		err = b.Delete([6]byte(mac), vlan)
		if errors.Is(err, os.ErrNotExist) {
			why := "the FDB does not have it"
			if vlan != 0 {
				why += fmt.Sprintf(" in VLAN %d", vlan)
			}
			return refused(what, why, "see 'bascule fdb show "+bridge+"'")
		}
		return failed(what, err)
	})
}

// onlyVLAN returns the VLAN in which the FDB has an address that is said to be
// in VLAN vid, or 0 for the only one.
func onlyVLAN(b *datapath.Bridge, what string, mac net.HardwareAddr, vid uint16) (uint16, error) {
	if !filters(&b.Config) {
		return vid, nil
	}
	if vid != 0 {
		vid, err := addressVLAN(b, vid)
		return vid, failed(what, err)
	}
	entries, err := b.FDB()
	if err != nil {
		return 0, failed(what, err)
	}
	var in []uint16
	for _, e := range entries {
		if bytes.Equal(e.MAC[:], mac) {
			in = append(in, e.VLAN)
		}
	}
	slices.Sort(in)
	switch len(in) {
	case 0:
		return 0, nil
	case 1:
		return in[0], nil
	}
	return 0, refused(what, "it is in VLANs "+FormatVLANs(in), "name one with --vlan")
}

// Flush removes the entries that match, and returns how many.
func (s *Switch) Flush(bridge string, m Match) (n int, err error) {
	what := "flush the FDB of " + bridge
	err = s.write(func(store *datapath.Store) error {
		b, err := open(store, what, bridge)
		if err != nil {
			return err
		}
		match := datapath.Match{VLAN: m.VLAN, Dynamic: m.Dynamic || !m.Static, Pinned: m.Static || !m.Dynamic}
		if m.VLAN != nil {
			vid, err := addressVLAN(b, *m.VLAN)
			if err != nil {
				return failed(what, err)
			}
			match.VLAN = &vid
		}
		if m.Port != "" {
			next := b.Config
			p, _, err := findPort(&change{bridge: b, next: &next}, what, bridge, m.Port)
			if err != nil {
				return err
			}
			match.Port = p.Id
		}
		n, err = b.Flush(match)
		return failed(what, err)
	})
	return n, err
}

// dropSurplus forgets learned addresses of a port, or of the bridge where p is
// nil, until there are no more than it may have. The notes say so of what has
// the name.
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
