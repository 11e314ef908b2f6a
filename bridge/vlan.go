// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"bascule/datapath"
)

// VLANOptions say how a port is to be in VLANs.
type VLANOptions struct {
	Untagged bool // the VLAN's frames leave by the port without a tag
	PVID     bool // frames that come without a tag are in the VLAN
}

// The kinds of private VLANs (RFC 5517), as they are shown.
const (
	KindPrimary   = "primary"
	KindIsolated  = "isolated"
	KindCommunity = "community"
)

var vlanKinds = map[uint32]string{
	uint32(datapath.VLANPrimary):   KindPrimary,
	uint32(datapath.VLANIsolated):  KindIsolated,
	uint32(datapath.VLANCommunity): KindCommunity,
}

// PortVLANs are the VLANs that a port is in.
type PortVLANs struct {
	Bridge string
	Port   string
	Ranges []VLANRange // rising, as few as can be; never nil
}

// VLANRange is a range of VLANs in which a port is in the same manner.
type VLANRange struct {
	First, Last uint16 // the same for one VLAN
	VLANOptions
}

// VLAN is a VLAN of a bridge by itself.
type VLAN struct {
	Bridge  string
	ID      uint16
	Kind    string // KindPrimary, KindIsolated, KindCommunity; "" of an ordinary VLAN
	Primary uint16 // of an isolated or community VLAN

	// since counting began; what comes in is counted in the VLAN that the port
	// is in, what goes out once for each port
	RxFrames, RxBytes, TxFrames, TxBytes uint64
}

// PrivateVLANs says what is below a primary VLAN; nil leaves it as it is, an
// empty list takes it away.
type PrivateVLANs struct {
	Isolated  []uint16 // one at most
	Community []uint16
}

// ParseVLANs reads a list of VLANs and ranges of them, such as 10,20-30. The
// error is a *[UsageError] where the list is empty, or has what is no VLAN, a
// range whose end comes first, or a VLAN twice.
func ParseVLANs(s string) ([]uint16, error) {
	var list []uint16
	seen := map[uint16]bool{}
	for f := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(f, "-")
		if from == "" { // of a negative number, too
			from, isRange = f, false
		}
		first, err := parseVID(from)
		last := first
		if err == nil && isRange {
			last, err = parseVID(to)
		}
		switch {
		case err != nil:
			return nil, usagef("VLANs "+strconv.Quote(s), "%w, or a list such as 10,20-30", err)
		case last < first:
			return nil, usagef("VLANs "+strconv.Quote(s), "%s begins after its end; give the lower VLAN first", f)
		}
		for vid := int(first); vid <= int(last); vid++ {
			if seen[uint16(vid)] {
				return nil, usagef("VLANs "+strconv.Quote(s), "VLAN %d is there twice; give each VLAN once", vid)
			}
			seen[uint16(vid)] = true
			list = append(list, uint16(vid))
		}
	}
	slices.Sort(list)
	return list, nil
}

// FormatVLANs prints VLANs as ParseVLANs takes them, in the shortest ranges;
// list is in rising order.
func FormatVLANs(list []uint16) string {
	var words []string
	for i := 0; i < len(list); {
		first := i
		for i++; i < len(list) && list[i] == list[i-1]+1; i++ {
		}
		word := strconv.Itoa(int(list[first]))
		if i-first > 1 {
			word += "-" + strconv.Itoa(int(list[i-1]))
		}
		words = append(words, word)
	}
	return strings.Join(words, ",")
}

// Sets of ports, by slot.

func inSet(set *datapath.PortSet, slot uint32) bool { return set[slot/64]>>(slot%64)&1 != 0 }

func setIn(set *datapath.PortSet, slot uint32, in bool) {
	set[slot/64] &^= 1 << (slot % 64)
	if in {
		set[slot/64] |= 1 << (slot % 64)
	}
}

// isSecondary reports whether a VLAN is isolated or a community.
func isSecondary(row *datapath.VLAN) bool {
	return row.Kind == datapath.VLANIsolated || row.Kind == datapath.VLANCommunity
}

// derive fills in what follows from who is a member of what, and how: where
// frames go, and how they leave the ports that are not members. A member of a
// VLAN whose untagged bit is set was told so; another's bit is made here.
func derive(v *datapath.VLANs) {
	for vid := 1; vid <= maxVLAN; vid++ {
		row := &v[vid]
		row.Reach = row.Member
		for w := range row.Untagged {
			row.Untagged[w] &= row.Member[w]
		}
		if !isSecondary(row) {
			row.Fid = uint16(vid)
		}
	}
	for vid := 1; vid <= maxVLAN; vid++ {
		row := &v[vid]
		if !isSecondary(row) {
			continue
		}
		primary := &v[row.Fid]
		for w := range row.Member {
			here, there := row.Member[w], primary.Member[w]
			hereUntagged, thereUntagged := row.Untagged[w]&here, primary.Untagged[w]&there
			// up: from those below to the promiscuous ports, and to trunks
			row.Reach[w] = there
			if row.Kind == datapath.VLANCommunity {
				row.Reach[w] |= here
			}
			row.Untagged[w] |= thereUntagged &^ here
			// down: to all below
			primary.Reach[w] |= here
			primary.Untagged[w] |= hereUntagged &^ there
		}
	}
}

// addressSpaces returns, for each port by id, the VLANs whose addresses in the
// FDB it has a part in: 0 alone where the bridge does not filter.
func addressSpaces(c *datapath.Config, v *datapath.VLANs) map[uint32][]uint16 {
	spaces := map[uint32][]uint16{}
	for _, p := range datapath.Ports(c) {
		if !filters(c) || v == nil {
			spaces[p.Id] = []uint16{0}
			continue
		}
		for vid := 1; vid <= maxVLAN; vid++ {
			row := &v[vid]
			if inSet(&row.Member, datapath.Slot(p.Id)) && !slices.Contains(spaces[p.Id], row.Fid) {
				spaces[p.Id] = append(spaces[p.Id], row.Fid)
			}
		}
	}
	return spaces
}

func filters(c *datapath.Config) bool {
	return datapath.BridgeFlags(c.Flags)&datapath.BridgeVLANs != 0
}

// vlans returns the bridge's VLANs as the change has them so far, nil if it has
// never had any.
func (c *change) vlans() (*datapath.VLANs, error) {
	if c.tables.VLANs != nil {
		return c.tables.VLANs, nil
	}
	return c.bridge.VLANs()
}

// planVLANs completes a change, whatever it is about, by what that does to
// VLANs: a port that is new gets the default VLAN, one that leaves is in none,
// and ports that still have an old default follow a new one. A bridge that has
// never filtered has no VLANs; when it begins to, all of its ports are new.
func (c *change) planVLANs(what string) error {
	was := &c.bridge.Config
	v, err := c.vlans()
	if err != nil {
		return failed(what, err)
	}
	fresh := v == nil
	if fresh {
		if !filters(c.next) {
			return nil
		}
		v = new(datapath.VLANs)
	}
	changed := fresh || c.tables.VLANs != nil
	for slot := range uint32(len(c.next.Ports)) {
		id := c.next.Ports[slot].Id
		p := datapath.PortAt(c.next, id)
		switch {
		case was.Ports[slot].Id != id || fresh && p != nil:
			leaveVLANs(v, slot)
			if p != nil {
				joinDefault(c.next, v, p)
			}
			changed = true
		case p != nil && was.DefaultPvid != c.next.DefaultPvid:
			followDefault(c.next, v, p, was.DefaultPvid)
			changed = true
		}
	}
	if !changed {
		return nil
	}
	c.tables.VLANs = v
	derive(v)
	return checkPrivate(c, what)
}

// leaveVLANs takes a port out of all VLANs.
func leaveVLANs(v *datapath.VLANs, slot uint32) {
	for vid := range v {
		setIn(&v[vid].Member, slot, false)
		setIn(&v[vid].Untagged, slot, false)
	}
}

// joinDefault puts a port that is in no VLAN into the bridge's default one.
// Span ports are in none.
func joinDefault(c *datapath.Config, v *datapath.VLANs, p *datapath.Port) {
	if p.Flags&datapath.PortSpan != 0 {
		return
	}
	p.Pvid = c.DefaultPvid
	if p.Pvid != 0 {
		setIn(&v[p.Pvid].Member, datapath.Slot(p.Id), true)
		setIn(&v[p.Pvid].Untagged, datapath.Slot(p.Id), true)
	}
}

// followDefault moves a port that still is as the old default made it to the
// new one, as Linux's bridge does (br_vlan_set_default_pvid()); one that is in
// that VLAN already was told to, and stays as it is.
func followDefault(c *datapath.Config, v *datapath.VLANs, p *datapath.Port, old uint16) {
	slot := datapath.Slot(p.Id)
	if p.Pvid != old || old != 0 && !inSet(&v[old].Untagged, slot) {
		return
	}
	if c.DefaultPvid != 0 && inSet(&v[c.DefaultPvid].Member, slot) {
		return
	}
	if old == 0 {
		for vid := range v {
			if inSet(&v[vid].Member, slot) {
				return // a trunk, by somebody's wish
			}
		}
	}
	setIn(&v[old].Member, slot, false)
	setIn(&v[old].Untagged, slot, false)
	joinDefault(c, v, p)
}

// checkPrivate refuses what would let frames in and no answer out: a port that
// has a private VLAN's tag passes private VLANs on to another switch, and the
// way down is in the primary.
func checkPrivate(c *change, what string) error {
	v := c.tables.VLANs
	for vid := 1; vid <= maxVLAN; vid++ {
		row := &v[vid]
		if !isSecondary(row) {
			continue
		}
		primary := &v[row.Fid]
		for _, p := range datapath.Ports(c.next) {
			slot := datapath.Slot(p.Id)
			if inSet(&row.Member, slot) && !inSet(&row.Untagged, slot) && !inSet(&primary.Member, slot) {
				return refused(what,
					fmt.Sprintf("port %s would have VLAN %d with a tag, but not its primary VLAN %d", datapath.PortName(p), vid, row.Fid),
					"give a trunk both, or the one --untagged --pvid")
			}
		}
	}
	return nil
}

// followVLANs forgets what addresses a change left where they do not belong any
// more, and makes the addresses of host ports known where they are new: was is
// the bridge before the change. It can be done again.
func followVLANs(b, was *datapath.Bridge) error {
	before, err := currentSpaces(was)
	if err != nil {
		return err
	}
	after, err := currentSpaces(b)
	if err != nil {
		return err
	}
	filtered, filtering := filters(&was.Config), filters(&b.Config)
	for _, p := range datapath.Ports(&was.Config) {
		now := datapath.PortAt(&b.Config, p.Id)
		if now == nil {
			continue // and its addresses have left with it
		}
		for _, vid := range before[p.Id] {
			stays := slices.Contains(after[p.Id], vid)
			if p.Host != 0 && (!stays || now.Host != p.Host) {
				err := b.Delete(datapath.WordMAC(p.Host), vid)
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
			if !stays && filtered && filtering {
				if _, err := b.Flush(datapath.Match{Port: p.Id, VLAN: &vid, Dynamic: true, Pinned: true}); err != nil {
					return err
				}
			}
		}
		if !slices.Equal(before[p.Id], after[p.Id]) {
			if err := announceHost(b, now, after[p.Id]); err != nil {
				return err
			}
		}
	}
	if filtered != filtering || filtered && was.Config.VlanProto != b.Config.VlanProto {
		// addresses were learned in other VLANs than frames are in now
		_, err := b.Flush(datapath.Match{Dynamic: true})
		return err
	}
	return nil
}

// currentSpaces returns the address spaces of the bridge's ports.
func currentSpaces(b *datapath.Bridge) (map[uint32][]uint16, error) {
	if !filters(&b.Config) {
		return addressSpaces(&b.Config, nil), nil
	}
	v, err := b.VLANs()
	if err != nil {
		return nil, err
	}
	return addressSpaces(&b.Config, v), nil
}

// announceHost makes a host port's own address known in the given VLANs.
func announceHost(b *datapath.Bridge, p *datapath.Port, spaces []uint16) error {
	if p.Host == 0 || !b.HasDevice(p) {
		return nil
	}
	for _, vid := range spaces {
		if err := b.Put(datapath.Entry{MAC: datapath.WordMAC(p.Host), VLAN: vid, Port: p.Id, Static: true}); err != nil {
			return err
		}
	}
	return nil
}

// changeVLANs makes a change to the VLANs of a bridge that filters.
func (s *Switch) changeVLANs(what, bridge string, plan func(*change, *datapath.VLANs) error) error {
	return s.change(what, bridge, func(c *change) error {
		if !filters(c.next) {
			return noFiltering(what, bridge)
		}
		v, err := c.vlans()
		if err != nil {
			return failed(what, err)
		}
		if v == nil {
			v = new(datapath.VLANs) // no port has been added yet
		}
		c.tables.VLANs = v
		return plan(c, v)
	})
}

func noFiltering(what, bridge string) error {
	return refused(what, "bridge "+bridge+" does not filter VLANs", "switch that on with 'bascule bridge set "+bridge+" --vlan-filtering'")
}

// AddVLANs puts a port into VLANs, in the way that o says, also where it is in
// one of them already in another way.
func (s *Switch) AddVLANs(bridge, port string, list []uint16, o VLANOptions) error {
	what := fmt.Sprintf("add VLAN %s to port %s of %s", FormatVLANs(list), port, bridge)
	if o.PVID && len(list) > 1 {
		return usagef("--pvid", "a port has one VLAN for frames without a tag, not %s; give one VLAN", FormatVLANs(list))
	}
	return s.changeVLANs(what, bridge, func(c *change, v *datapath.VLANs) error {
		p, _, err := findMember(c, what, bridge, port)
		if err != nil {
			return err
		}
		for _, vid := range list {
			setIn(&v[vid].Member, datapath.Slot(p.Id), true)
			setIn(&v[vid].Untagged, datapath.Slot(p.Id), o.Untagged)
			switch {
			case o.PVID:
				p.Pvid = vid
			case p.Pvid == vid:
				p.Pvid = 0
			}
		}
		return nil
	})
}

// DelVLANs takes a port out of VLANs, each of which it must be in, and the
// port's addresses in them out of the FDB.
func (s *Switch) DelVLANs(bridge, port string, list []uint16) error {
	what := fmt.Sprintf("delete VLAN %s of port %s of %s", FormatVLANs(list), port, bridge)
	return s.changeVLANs(what, bridge, func(c *change, v *datapath.VLANs) error {
		p, _, err := findPort(c, what, bridge, port)
		if err != nil {
			return err
		}
		slot := datapath.Slot(p.Id)
		not := slices.DeleteFunc(slices.Clone(list), func(vid uint16) bool { return inSet(&v[vid].Member, slot) })
		if len(not) > 0 {
			return refused(what, "it is not in VLAN "+FormatVLANs(not), fmt.Sprintf("see 'bascule vlan show %s %s'", bridge, port))
		}
		for _, vid := range list {
			setIn(&v[vid].Member, slot, false)
			setIn(&v[vid].Untagged, slot, false)
			if p.Pvid == vid {
				p.Pvid = 0
			}
		}
		return nil
	})
}

// SetPrivateVLANs says which VLANs are private below a primary VLAN (RFC 5517).
// Without any it is an ordinary VLAN again, as those are that it gives up.
func (s *Switch) SetPrivateVLANs(bridge string, primary uint16, below PrivateVLANs) error {
	what := fmt.Sprintf("make VLAN %d of %s private", primary, bridge)
	if len(below.Isolated) > 1 {
		return usagef("--isolated "+FormatVLANs(below.Isolated), "a primary VLAN has one isolated VLAN; give one")
	}
	named := slices.Concat(below.Isolated, below.Community)
	for i, vid := range named {
		if vid == primary || slices.Contains(named[:i], vid) {
			return usagef(fmt.Sprintf("VLAN %d", vid), "it can't be two of primary, isolated and community; give each a VLAN of its own")
		}
	}
	return s.changeVLANs(what, bridge, func(c *change, v *datapath.VLANs) error {
		if isSecondary(&v[primary]) {
			return refused(what, fmt.Sprintf("it is private below VLAN %d", v[primary].Fid), "give a VLAN that is not")
		}
		some := false
		for vid := 1; vid <= maxVLAN; vid++ {
			row := &v[vid]
			if !isSecondary(row) || row.Fid != primary {
				continue
			}
			if row.Kind == datapath.VLANIsolated && below.Isolated != nil || row.Kind == datapath.VLANCommunity && below.Community != nil {
				row.Kind, row.Fid = datapath.VLANOrdinary, uint16(vid)
				continue
			}
			some = true
		}
		for i, vid := range named {
			row := &v[vid]
			switch {
			case row.Kind == datapath.VLANPrimary:
				return refused(what, fmt.Sprintf("VLAN %d is a primary VLAN itself", vid), fmt.Sprintf("see 'bascule vlan show %s'", bridge))
			case isSecondary(row):
				return refused(what, fmt.Sprintf("VLAN %d is private below VLAN %d already", vid, row.Fid), fmt.Sprintf("see 'bascule vlan show %s'", bridge))
			}
			row.Kind, row.Fid = datapath.VLANCommunity, primary
			if i < len(below.Isolated) {
				row.Kind = datapath.VLANIsolated
			}
			some = true
		}
		v[primary].Kind = datapath.VLANOrdinary
		if some {
			v[primary].Kind = datapath.VLANPrimary
		}
		return nil
	})
}

// VLANs returns the VLANs of a bridge's ports in the order in which they were
// added, or those of all bridges that filter where the name is "".
func (s *Switch) VLANs(bridge string) (list []PortVLANs, err error) {
	list = []PortVLANs{}
	err = s.eachFiltering(bridge, func(name string, b *datapath.Bridge, v *datapath.VLANs) error {
		devices, err := links()
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p PortVLANs) bool { return p.Bridge == name })
		for _, p := range inOrder(&b.Config) {
			list = append(list, PortVLANs{Bridge: name, Port: portName(b, p, devices), Ranges: ranges(v, p)})
		}
		return nil
	})
	return list, err
}

// VLANTable returns the VLANs of a bridge, or of all that filter where the name
// is "": those that have members, or are private.
func (s *Switch) VLANTable(bridge string) (list []VLAN, err error) {
	list = []VLAN{}
	err = s.eachFiltering(bridge, func(name string, b *datapath.Bridge, v *datapath.VLANs) error {
		list = slices.DeleteFunc(list, func(l VLAN) bool { return l.Bridge == name })
		var ids []uint16
		for vid := uint16(1); vid <= maxVLAN; vid++ {
			if v[vid].Member != (datapath.PortSet{}) || v[vid].Kind != datapath.VLANOrdinary {
				ids = append(ids, vid)
			}
		}
		stats, err := b.VLANStats(ids)
		if err != nil {
			return err
		}
		for i, vid := range ids {
			l := VLAN{
				Bridge: name, ID: vid, Kind: vlanKinds[uint32(v[vid].Kind)],
				RxFrames: stats[i].RxFrames, RxBytes: stats[i].RxBytes, TxFrames: stats[i].TxFrames, TxBytes: stats[i].TxBytes,
			}
			if isSecondary(&v[vid]) {
				l.Primary = v[vid].Fid
			}
			list = append(list, l)
		}
		return nil
	})
	return list, err
}

// eachFiltering runs f with the bridge of the name, which must filter VLANs, or
// with all that do where it is "", as each does.
func (s *Switch) eachFiltering(bridge string, f func(string, *datapath.Bridge, *datapath.VLANs) error) error {
	return s.each(bridge, func(name string, b *datapath.Bridge) error {
		if !filters(&b.Config) {
			if bridge != "" {
				return noFiltering("show the VLANs of "+name, name)
			}
			return nil
		}
		v, err := b.VLANs()
		if err != nil {
			return err
		}
		if v == nil {
			v = new(datapath.VLANs)
		}
		return f(name, b, v)
	})
}

// ranges returns the VLANs that a port is in. The one of frames without a tag
// stands by itself.
func ranges(v *datapath.VLANs, p *datapath.Port) []VLANRange {
	list := []VLANRange{}
	slot := datapath.Slot(p.Id)
	for vid := uint16(1); vid <= maxVLAN; vid++ {
		if !inSet(&v[vid].Member, slot) {
			continue
		}
		r := VLANRange{vid, vid, VLANOptions{Untagged: inSet(&v[vid].Untagged, slot), PVID: p.Pvid == vid}}
		if last := len(list) - 1; last >= 0 && !r.PVID && list[last].Last == vid-1 && list[last].VLANOptions == r.VLANOptions {
			list[last].Last = vid
			continue
		}
		list = append(list, r)
	}
	return list
}

// entryVLAN returns the VLAN in which the FDB has an entry of a port, where
// somebody says VLAN vid, or 0 for that of frames without a tag.
func entryVLAN(b *datapath.Bridge, p *datapath.Port, what, bridge, port string, vid uint16) (uint16, error) {
	if !filters(&b.Config) {
		return vid, nil
	}
	if vid == 0 {
		vid = p.Pvid
	}
	if vid == 0 {
		return 0, refused(what, "port "+port+" has no VLAN for frames without a tag", "name one with --vlan")
	}
	v, err := b.VLANs()
	if err != nil {
		return 0, failed(what, err)
	}
	if v == nil || !inSet(&v[vid].Member, datapath.Slot(p.Id)) {
		return 0, refused(what, fmt.Sprintf("unknown VLAN %d: port %s is not in it", vid, port),
			fmt.Sprintf("add it with 'bascule vlan add %s %s %d', or see 'bascule vlan show %s %s'", bridge, port, vid, bridge, port))
	}
	return v[vid].Fid, nil
}

// addressVLAN returns the VLAN in which the FDB has the addresses of VLAN vid:
// of a private VLAN its primary.
func addressVLAN(b *datapath.Bridge, vid uint16) (uint16, error) {
	if !filters(&b.Config) || vid == 0 {
		return vid, nil
	}
	v, err := b.VLANs()
	if err != nil || v == nil || v[vid].Fid == 0 {
		return vid, err
	}
	return v[vid].Fid, nil
}
