// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"slices"
	"strconv"
	"strings"

	"bascule/datapath"
)

// VLANOptions are the options of a port's VLANs.
type VLANOptions struct {
	Untagged bool // frames of the VLAN leave by the port without a tag
	PVID     bool // received frames without a tag are in the VLAN
}

// The kinds of private VLANs (RFC 5517), in the words of the output.
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

// PortVLANs are the VLANs of a port.
type PortVLANs struct {
	Bridge string
	Port   string
	Ranges []VLANRange // in ascending order, as few as possible; never nil
}

// VLANRange is a range of VLANs with the same options for a port.
type VLANRange struct {
	First, Last uint16 // the same for one VLAN
	VLANOptions
}

// VLAN is a VLAN of a bridge.
type VLAN struct {
	Bridge  string
	ID      uint16
	Kind    string // KindPrimary, KindIsolated, KindCommunity; "" for an ordinary VLAN
	Primary uint16 // of an isolated or community VLAN

	// since counting began; received frames count in the VLAN that the port is in, and sent
	// ones once for each port
	RxFrames, RxBytes, TxFrames, TxBytes uint64
}

// PrivateVLANs are the VLANs below a primary VLAN. nil leaves them unchanged, and an empty list
// removes them.
type PrivateVLANs struct {
	Isolated  []uint16 // at most one
	Community []uint16
}

// ParseVLANs parses a list of VLANs and ranges, such as 10,20-30. The error is a *[UsageError] if
// the list is empty, or contains something that is no VLAN, a range whose end comes first, or a
// VLAN twice.
func ParseVLANs(s string) ([]uint16, error) {
	var list []uint16
	var seen [maxVLAN + 1]bool
	for f := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(f, "-")
		if from == "" { // also for a negative number
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
		list = slices.Grow(list, int(last)-int(first)+1)
		for vid := int(first); vid <= int(last); vid++ {
			if seen[vid] {
				return nil, usagef("VLANs "+strconv.Quote(s), "VLAN %d occurs twice; give each VLAN once", vid)
			}
			seen[vid] = true
			list = append(list, uint16(vid))
		}
	}
	slices.Sort(list)
	return list, nil
}

// FormatVLANs formats VLANs as ParseVLANs accepts them, in the shortest ranges; list is in
// ascending order.
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

// slots returns the slots of a set in ascending order.
func slots(set *datapath.PortSet) (list []uint32) {
	for w, word := range set {
		for ; word != 0; word &= word - 1 {
			list = append(list, uint32(w*64+bits.TrailingZeros64(word)))
		}
	}
	return list
}

// isSecondary reports whether a VLAN is isolated or a community.
func isSecondary(row *datapath.VLAN) bool {
	return row.Kind == datapath.VLANIsolated || row.Kind == datapath.VLANCommunity
}

// derive fills in the parts that depend on the members of VLANs: where frames go, and how they
// leave ports that are not members. The untagged bits of members are settings; derive sets the bits
// of other ports.
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
			// up: from secondary VLANs to the promiscuous ports, and to trunks
			row.Reach[w] = there
			if row.Kind == datapath.VLANCommunity {
				row.Reach[w] |= here
			}
			row.Untagged[w] |= thereUntagged &^ here
			// down: to all secondary VLANs
			primary.Reach[w] |= here
			primary.Untagged[w] |= hereUntagged &^ there
		}
	}
}

// addressSpaces returns, for each port by id, the VLANs under which the FDB has addresses for it.
// If the bridge does not filter, this is only 0.
func addressSpaces(c *datapath.Config, v *datapath.VLANs) map[uint32][]uint16 {
	spaces := map[uint32][]uint16{}
	if !filters(c) || v == nil {
		for _, p := range datapath.Ports(c) {
			spaces[p.Id] = []uint16{0}
		}
		return spaces
	}
	for vid := 1; vid <= maxVLAN; vid++ {
		row := &v[vid]
		if row.Member == (datapath.PortSet{}) {
			continue
		}
		for _, slot := range slots(&row.Member) {
			id := c.Ports[slot].Id
			// an ordinary VLAN does not share its addresses
			if row.Kind != datapath.VLANOrdinary && slices.Contains(spaces[id], row.Fid) {
				continue
			}
			spaces[id] = append(spaces[id], row.Fid)
		}
	}
	return spaces
}

func filters(c *datapath.Config) bool {
	return datapath.BridgeFlags(c.Flags)&datapath.BridgeVLANs != 0
}

// A vlanPlan is the effect of a change on VLANs.
type vlanPlan struct {
	read     bool
	was, now *datapath.VLANs // the present and the next VLANs; nil if the bridge has never had any
	// the ports by slot, and the default VLAN, on which `now` is based
	ids  [len(datapath.Config{}.Ports)]uint32
	pvid uint16
}

// soFar returns the bridge's VLANs as planned so far, or nil if the bridge has never had any.
func (c *draft) soFar() (*datapath.VLANs, error) {
	plan := &c.vlans
	if plan.read {
		return plan.now, nil
	}
	v, err := c.bridge.VLANs()
	if err != nil {
		return nil, err
	}
	plan.read = true
	if v != nil {
		now := *v
		plan.was, plan.now = v, &now
	}
	plan.take(&c.bridge.Config)
	return plan.now, nil
}

// take records that the VLANs match a configuration.
func (plan *vlanPlan) take(c *datapath.Config) {
	for slot := range c.Ports {
		plan.ids[slot] = c.Ports[slot].Id
	}
	plan.pvid = c.DefaultPvid
}

// planVLANs adds the effects on VLANs to any change. A new port gets the default VLAN. A leaving
// port leaves all VLANs. Ports that still have the old default follow the new one. A bridge that
// has never filtered has no VLANs. When it begins to filter, all of its ports count as new.
func (c *draft) planVLANs(what string) error {
	v, err := c.planJoins()
	if err != nil {
		return failed(what, err)
	}
	if v == nil {
		return nil
	}
	derive(v)
	if c.vlans.was != nil && *v == *c.vlans.was {
		return nil
	}
	c.tables.VLANs = v
	return checkPrivate(c, what)
}

// planJoins does this for the ports that were added and removed so far. It returns the VLANs, or
// nil if there are none yet.
func (c *draft) planJoins() (*datapath.VLANs, error) {
	v, err := c.soFar()
	if err != nil {
		return nil, err
	}
	plan := &c.vlans
	fresh := v == nil
	if fresh {
		if !filters(c.next) {
			return nil, nil
		}
		v = new(datapath.VLANs)
		plan.now = v
	}
	for slot := range uint32(len(c.next.Ports)) {
		id := c.next.Ports[slot].Id
		p := datapath.TenantAt(c.next, id)
		switch {
		case plan.ids[slot] != id || fresh && p != nil:
			if plan.ids[slot] != 0 && !fresh {
				leaveVLANs(v, slot)
			}
			if p != nil {
				joinDefault(c.next, v, p)
				c.joinBerth(v, p)
			}
		case p != nil && plan.pvid != c.next.DefaultPvid:
			takeDefault(c.next, v, p, plan.pvid)
		}
	}
	plan.take(c.next)
	return v, nil
}

// leaveVLANs removes a port from all VLANs.
func leaveVLANs(v *datapath.VLANs, slot uint32) {
	for vid := range v {
		setIn(&v[vid].Member, slot, false)
		setIn(&v[vid].Untagged, slot, false)
	}
}

// joinDefault puts a port that is in no VLAN into the bridge's default one. Span ports stay
// outside.
func joinDefault(c *datapath.Config, v *datapath.VLANs, p *datapath.Port) {
	if p.Facts&datapath.PortSpan != 0 {
		return
	}
	p.Pvid = c.DefaultPvid
	if p.Pvid != 0 {
		setIn(&v[p.Pvid].Member, datapath.Slot(p.Id), true)
		setIn(&v[p.Pvid].Untagged, datapath.Slot(p.Id), true)
	}
}

// takeDefault moves a port from the old default VLAN to the new one, if the port is still as the
// old default made it, as Linux's bridge does (br_vlan_set_default_pvid()). A port that is already
// in the new VLAN was put there by a command, and stays unchanged.
func takeDefault(c *datapath.Config, v *datapath.VLANs, p *datapath.Port, old uint16) {
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
				return // a trunk by configuration
			}
		}
	}
	setIn(&v[old].Member, slot, false)
	setIn(&v[old].Untagged, slot, false)
	joinDefault(c, v, p)
}

// checkPrivate refuses VLANs that would let frames in and no answer out. A port that sends frames
// of a private VLAN with a tag connects private VLANs to another switch, and needs the primary VLAN
// for the way down.
func checkPrivate(c *draft, what string) error {
	v := c.tables.VLANs
	for vid := 1; vid <= maxVLAN; vid++ {
		row := &v[vid]
		if !isSecondary(row) {
			continue
		}
		primary := &v[row.Fid]
		for _, p := range append(datapath.Ports(c.next), datapath.Berths(c.next)...) {
			slot := datapath.Slot(p.Id)
			if inSet(&row.Member, slot) && !inSet(&row.Untagged, slot) && !inSet(&primary.Member, slot) {
				devices, err := links()
				if err != nil {
					return failed(what, err)
				}
				return refused(what,
					fmt.Sprintf("port %s would have VLAN %d with a tag, but not its primary VLAN %d", portName(c.bridge, p, devices), vid, row.Fid),
					"give a trunk both, or an access port only the private one, with --untagged --pvid")
			}
		}
	}
	return nil
}

// followVLANs removes addresses that do not belong in a VLAN after a change, and adds the addresses
// of host ports where they are new. was is the bridge before the change. followVLANs can be
// repeated.
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
	var announced []*datapath.Port
	for _, p := range datapath.Ports(&was.Config) {
		now := datapath.PortAt(&b.Config, p.Id)
		if now == nil {
			continue // its addresses have been removed with it
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
		if now.Host != p.Host || !slices.Equal(before[p.Id], after[p.Id]) {
			announced = append(announced, now)
		}
	}
	for _, p := range announced { // a port may have another port's former address
		if err := announceHost(b, p, after[p.Id]); err != nil {
			return err
		}
	}
	if filtered != filtering || filtered && was.Config.VlanProto != b.Config.VlanProto {
		// Frames are in other VLANs now than the learned addresses.
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

// announceHost adds a host port's own address to the FDB in the given VLANs.
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

// changeVLANs changes the VLANs of a bridge that filters.
func changeVLANs(what, bridge string, plan func(*draft, *datapath.VLANs) error) step {
	return step{what, bridge, func(c *draft) error {
		if !filters(c.next) {
			return noFiltering(what, bridge)
		}
		v, err := c.planJoins()
		if err != nil {
			return failed(what, err)
		}
		return plan(c, v)
	}}
}

func noFiltering(what, bridge string) error {
	return refused(what, "bridge "+bridge+" does not filter VLANs", "switch that on with 'bascule bridge set "+bridge+" --vlan-filtering'")
}

// AddVLANs puts a port into VLANs with the options o, even if the port is already in one of them
// with other options.
func (s *Switch) AddVLANs(bridge, port string, list []uint16, o VLANOptions) error {
	_, err := s.one(addVLANs(bridge, port, list, o))
	return err
}

func addVLANs(bridge, port string, list []uint16, o VLANOptions) (step, error) {
	what := fmt.Sprintf("add VLAN %s to port %s of %s", FormatVLANs(list), port, bridge)
	if o.PVID && len(list) > 1 {
		return step{}, usagef("--pvid", "a port has one PVID, not %s; give one VLAN", FormatVLANs(list))
	}
	return changeVLANs(what, bridge, func(c *draft, v *datapath.VLANs) error {
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
	}), nil
}

// DelVLANs removes a port from VLANs, and the port's addresses in them from the FDB. The port must
// be in at least one of them.
func (s *Switch) DelVLANs(bridge, port string, list []uint16) error {
	_, err := s.one(delVLANs(bridge, port, list), nil)
	return err
}

func delVLANs(bridge, port string, list []uint16) step {
	what := fmt.Sprintf("delete VLAN %s of port %s of %s", FormatVLANs(list), port, bridge)
	return changeVLANs(what, bridge, func(c *draft, v *datapath.VLANs) error {
		p, _, err := findPort(c, what, bridge, port)
		if err != nil {
			return err
		}
		slot := datapath.Slot(p.Id)
		if !slices.ContainsFunc(list, func(vid uint16) bool { return inSet(&v[vid].Member, slot) }) {
			return refused(what, "it is in none of them", fmt.Sprintf("see 'bascule vlan show %s %s'", bridge, port))
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

// SetPrivateVLANs sets the private VLANs below a primary VLAN (RFC 5517). Without any, the primary
// becomes an ordinary VLAN again, and so does each VLAN that is no longer below it.
func (s *Switch) SetPrivateVLANs(bridge string, primary uint16, below PrivateVLANs) error {
	_, err := s.one(setPrivateVLANs(bridge, primary, below))
	return err
}

func setPrivateVLANs(bridge string, primary uint16, below PrivateVLANs) (step, error) {
	what := fmt.Sprintf("make VLAN %d of %s private", primary, bridge)
	if len(below.Isolated) > 1 {
		return step{}, usagef("--isolated "+FormatVLANs(below.Isolated), "a primary VLAN has one isolated VLAN; give one")
	}
	named := slices.Concat(below.Isolated, below.Community)
	for i, vid := range named {
		if vid == primary || slices.Contains(named[:i], vid) {
			return step{}, usagef(fmt.Sprintf("VLAN %d", vid), "it cannot be two of primary, isolated and community; give each a VLAN of its own")
		}
	}
	return changeVLANs(what, bridge, func(c *draft, v *datapath.VLANs) error {
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
	}), nil
}

// VLANs returns the VLANs of a bridge's ports in the order in which the ports were added. If bridge
// is "", it returns the VLANs of all bridges that filter.
func (s *Switch) VLANs(bridge string) (list []PortVLANs, err error) {
	list = []PortVLANs{}
	err = s.eachFiltering("the VLANs", bridge, func(name string, b *datapath.Bridge, vlans *datapath.VLANs) error {
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(p PortVLANs) bool { return p.Bridge == name })
		list = append(list, v.vlans(vlans)...)
		return nil
	})
	return list, err
}

// vlans returns the VLANs of all ports.
func (v *view) vlans(vlans *datapath.VLANs) (list []PortVLANs) {
	for _, p := range v.ports {
		list = append(list, PortVLANs{Bridge: v.name, Port: v.names[p.Id], Ranges: ranges(vlans, p)})
	}
	return list
}

// VLANTable returns those VLANs of a bridge that have members, or are private. If bridge is "", it
// returns the VLANs of all bridges that filter.
func (s *Switch) VLANTable(bridge string) (list []VLAN, err error) {
	list = []VLAN{}
	err = s.eachFiltering("the table of VLANs", bridge, func(name string, b *datapath.Bridge, _ *datapath.VLANs) error {
		list = slices.DeleteFunc(list, func(l VLAN) bool { return l.Bridge == name })
		table, err := vlanTable(name, b)
		list = append(list, table...)
		return err
	})
	return list, err
}

// vlanTable returns the VLANs of a bridge for VLANTable.
func vlanTable(name string, b *datapath.Bridge) (list []VLAN, err error) {
	var ids []uint16
	err = b.EachVLAN(func(vid uint16, v *datapath.VLAN) {
		if v.Member == (datapath.PortSet{}) && v.Kind == datapath.VLANOrdinary {
			return
		}
		l := VLAN{Bridge: name, ID: vid, Kind: vlanKinds[uint32(v.Kind)]}
		if isSecondary(v) {
			l.Primary = v.Fid
		}
		list, ids = append(list, l), append(ids, vid)
	})
	if err != nil {
		return nil, err
	}
	stats, err := b.VLANStats(ids)
	if err != nil {
		return nil, err
	}
	for i, n := range stats {
		l := &list[i]
		l.RxFrames, l.RxBytes, l.TxFrames, l.TxBytes = n.RxFrames, n.RxBytes, n.TxFrames, n.TxBytes
	}
	return list, nil
}

// eachFiltering calls f with the bridge of the name, which must filter VLANs, or with all bridges
// that filter if the name is "", as each does. shown describes what is shown, for errors.
func (s *Switch) eachFiltering(shown, bridge string, f func(string, *datapath.Bridge, *datapath.VLANs) error) error {
	return s.each(showWhat(shown, bridge), bridge, func(name string, b *datapath.Bridge) error {
		if !filters(&b.Config) {
			if bridge != "" {
				return noFiltering(showWhat(shown, name), name)
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

// ranges returns the VLANs of a port. The VLAN of frames without a tag is a range of its own.
func ranges(v *datapath.VLANs, p *datapath.Port) []VLANRange {
	list := []VLANRange{}
	slot := datapath.Slot(p.Id)
	for vid := uint16(1); vid <= maxVLAN; vid++ {
		if !inSet(&v[vid].Member, slot) {
			continue
		}
		list = addToRanges(list, vid, VLANOptions{Untagged: inSet(&v[vid].Untagged, slot), PVID: p.Pvid == vid})
	}
	return list
}

// addToRanges appends a VLAN to a list of lower ones.
func addToRanges(list []VLANRange, vid uint16, o VLANOptions) []VLANRange {
	if last := len(list) - 1; last >= 0 && !o.PVID && list[last].Last == vid-1 && list[last].VLANOptions == o {
		list[last].Last = vid
		return list
	}
	return append(list, VLANRange{vid, vid, o})
}

// sortRanges returns ranges in the form of a port's VLANs, nil for nil.
func sortRanges(object string, list []VLANRange) ([]VLANRange, error) {
	if list == nil {
		return nil, nil
	}
	options := map[uint16]VLANOptions{}
	var pvid uint16
	for _, r := range list {
		switch {
		case r.First < 1 || r.Last > maxVLAN || r.Last < r.First:
			return nil, usagef(object, "%d-%d is not a range of VLANs; give numbers 1 to %d, the lower first", r.First, r.Last, maxVLAN)
		case r.PVID && (pvid != 0 || r.First != r.Last):
			return nil, usagef(object, "a port has one PVID; give one VLAN")
		case r.PVID:
			pvid = r.First
		}
		for vid := r.First; vid <= r.Last; vid++ {
			if _, twice := options[vid]; twice {
				return nil, usagef(object, "VLAN %d occurs twice; give each VLAN once", vid)
			}
			options[vid] = r.VLANOptions
		}
	}
	sorted := []VLANRange{}
	for _, vid := range slices.Sorted(maps.Keys(options)) {
		sorted = addToRanges(sorted, vid, options[vid])
	}
	return sorted, nil
}

// joinRanges puts a port into exactly these VLANs.
func joinRanges(v *datapath.VLANs, p *datapath.Port, list []VLANRange) {
	slot := datapath.Slot(p.Id)
	leaveVLANs(v, slot)
	p.Pvid = 0
	for _, r := range list {
		for vid := r.First; vid <= r.Last; vid++ {
			setIn(&v[vid].Member, slot, true)
			setIn(&v[vid].Untagged, slot, r.Untagged)
		}
		if r.PVID {
			p.Pvid = r.First
		}
	}
}

// entryVLAN returns the VLAN in which the FDB has an entry of a port in VLAN vid. If vid is 0, it
// is the VLAN of frames without a tag.
func entryVLAN(b *datapath.Bridge, p *datapath.Port, what, bridge, port string, vid uint16) (uint16, error) {
	if !filters(&b.Config) {
		return vid, nil
	}
	if vid == 0 {
		vid = p.Pvid
	}
	if vid == 0 {
		return 0, refused(what, "port "+port+" has no PVID", "name one with --vlan")
	}
	v, err := b.VLANs()
	if err != nil {
		return 0, failed(what, err)
	}
	if v == nil || !inSet(&v[vid].Member, datapath.Slot(p.Id)) {
		return 0, refused(what, fmt.Sprintf("port %s is not in VLAN %d", port, vid),
			fmt.Sprintf("add it with 'bascule vlan add %s %s %d', or see 'bascule vlan show %s %s'", bridge, port, vid, bridge, port))
	}
	return v[vid].Fid, nil
}

// addressVLAN returns the VLAN in which the FDB has the addresses of VLAN vid: its primary for a
// private VLAN.
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
