// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"

	"bascule/datapath"
	"bascule/rule"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// State is the configuration of a bridge, with its static entries. It excludes counters, which are
// zero in it, and learned addresses.
type State struct {
	Bridge   Info
	Ports    []Port                  // in the order in which they were added
	VLANs    []PortVLANs             // of the ports, in their order; empty if the bridge does not filter
	Private  map[uint16]PrivateVLANs // by primary VLAN
	Rules    []rule.Rule             // in the order of evaluation
	Bindings []Binding               // in no order
	Spans    []Span                  // in the order in which they were added
	Entries  []Entry                 // static and sticky ones, except host ports' own addresses; in no order
	PF       *PFText                 // nil if pf was never loaded
}

// Read returns the whole state of a bridge at once. It takes a fraction of the time of Bridge,
// Ports, VLANs and so on together.
func (s *Switch) Read(bridge string) (state State, err error) {
	err = s.each("read bridge "+bridge, bridge, func(name string, b *datapath.Bridge) error {
		v, err := viewOf(name, b)
		if err != nil {
			return err
		}
		all, err := contentsOf(b)
		if err != nil {
			return err
		}
		state, err = v.state(all)
		return err
	})
	return state, err
}

// contents are the tables of a bridge for its State.
type contents struct {
	vlans    *datapath.VLANs // nil if the bridge has never had any
	rules    []datapath.Rule
	bindings []datapath.Binding
	entries  []datapath.Entry
	pf       *PFText // nil if pf was never loaded
}

func contentsOf(b *datapath.Bridge) (all contents, err error) {
	for _, read := range []func() error{
		func() (err error) { all.vlans, err = b.VLANs(); return },
		func() (err error) { all.rules, err = b.Rules(); return },
		func() (err error) { all.bindings, err = b.Bindings(); return },
		func() (err error) { all.entries, err = b.FDB(); return },
		func() (err error) { all.pf, err = pfText(b); return },
	} {
		if err := read(); err != nil {
			return all, err
		}
	}
	return all, nil
}

// state returns the State of a bridge with these contents.
func (v *view) state(all contents) (s State, err error) {
	s = State{Bridge: v.info(), Private: map[uint16]PrivateVLANs{}, PF: all.pf}
	if err := v.withPorts(&s); err != nil {
		return s, err
	}
	if err := v.withVLANs(&s, all.vlans); err != nil {
		return s, err
	}
	for _, r := range all.rules {
		r.Rule.Port = v.names[r.Port]
		s.Rules = append(s.Rules, r.Rule)
	}
	s.Bindings = v.named(all.bindings)
	s.Entries = v.entries(slices.DeleteFunc(all.entries, func(e datapath.Entry) bool {
		p := datapath.PortAt(&v.b.Config, e.Port)
		own := e.Static && p.Host != 0 && datapath.WordMAC(p.Host) == e.MAC
		return own || !e.Static && !e.Sticky
	}))
	return s, nil
}

// A view is a bridge with the devices of its ports, as they were at one time.
type view struct {
	name  string
	b     *datapath.Bridge
	ports []*datapath.Port        // in the order in which they were added
	links map[uint32]netlink.Link // devices shown for ports, by id; without ports whose device is gone
	names map[uint32]string       // by id
	far   map[uint32]string       // by id, the other ends of veths in this namespace
	taken map[uint32]string       // by id, the masters of ports' devices
	mute  map[uint32]bool         // by id, host ports whose interface was left without a carrier: see catchup.go

	blocked map[uint32]bool     // by id, ports blocked by their loop guards
	states  []datapath.STPState // by slot
	owners  map[uint32]*Owner   // by id

	devices map[int]netlink.Link     // of the namespace, by index
	found   map[string][]PortFinding // by the ports' names, nil until needed
}

func viewOf(name string, b *datapath.Bridge) (*view, error) {
	devices, err := links()
	if err != nil {
		return nil, err
	}
	return viewAmong(devices, name, b)
}

// viewAmong does the same as viewOf, with the given devices of the namespace.
func viewAmong(devices map[int]netlink.Link, name string, b *datapath.Bridge) (*view, error) {
	blocked, err := b.Blocked()
	if err != nil {
		return nil, err
	}
	states, err := b.STPStates()
	if err != nil {
		return nil, err
	}
	owned, err := owners(b)
	if err != nil {
		return nil, err
	}
	v := &view{
		name, b, inOrder(&b.Config), map[uint32]netlink.Link{}, map[uint32]string{}, map[uint32]string{}, map[uint32]string{},
		map[uint32]bool{}, blocked, states, owned, devices, nil,
	}
	for _, p := range v.ports {
		l := shownDevice(b, p, devices)
		if l != nil {
			v.links[p.Id] = l
			own := devices[int(p.Ifindex)]
			v.taken[p.Id] = masterOf(own, devices)
			if p.Notes&datapath.PortHost == 0 {
				v.far[p.Id] = farEnd(l, devices)
			}
			v.mute[p.Id] = p.Notes&datapath.PortHost != 0 && hostHere(own) && own.Attrs().RawFlags&unix.IFF_UP == 0
		}
		v.names[p.Id] = nameBy(l, p)
	}
	return v, nil
}

// findings returns the findings about the device of the port with a name.
func (v *view) findings(port string) []PortFinding {
	if v.found == nil {
		v.found = map[string][]PortFinding{}
		for _, f := range lookAround(v.b.Store(), v.devices).findings(v.name, v.b) {
			v.found[f.Port] = append(v.found[f.Port], f)
		}
	}
	return v.found[port]
}

// farEnd returns the name of a veth's other end among the devices of the namespace. It returns ""
// if the end is in another namespace, and for other devices.
func farEnd(l netlink.Link, devices map[int]netlink.Link) string {
	a := l.Attrs()
	if far := devices[a.ParentIndex]; l.Type() == "veth" && a.NetNsID < 0 && far != nil && joined(l, far) {
		return far.Attrs().Name
	}
	return ""
}

// find checks that the bridge has a port with the name. what is for the error. An empty name stands
// for no port, and is always found.
func (v *view) find(what, port string) error {
	if port == "" {
		return nil
	}
	for _, name := range v.names {
		if name == port {
			return nil
		}
	}
	return refused(what, port+" is not a port of this bridge", portRemedy(what, v.name, port))
}

// there reports whether a port can send frames.
func (v *view) there(p *datapath.Port) bool {
	return p.Facts&datapath.PortPatch != 0 || v.links[p.Id] != nil
}

// cables returns the patch cables of the namespace, or nil if the bridge has none.
func (v *view) cables() (*datapath.Cables, error) {
	if !slices.ContainsFunc(v.ports, func(p *datapath.Port) bool { return p.Facts&datapath.PortPatch != 0 }) {
		return nil, nil
	}
	return v.b.Store().Cables()
}

func (v *view) withPorts(s *State) error {
	s.Ports = make([]Port, 0, len(v.ports))
	cables, err := v.cables()
	if err != nil {
		return err
	}
	for _, p := range v.ports {
		s.Ports = append(s.Ports, v.port(p, cables))
	}
	return nil
}

func (v *view) withVLANs(s *State, vlans *datapath.VLANs) (err error) {
	s.VLANs = []PortVLANs{}
	if s.Spans, err = v.spans(vlans); err != nil {
		return err
	}
	if !filters(&v.b.Config) || vlans == nil {
		return nil
	}
	s.VLANs = v.vlans(vlans)
	for vid := uint16(1); vid <= maxVLAN; vid++ {
		row := &vlans[vid]
		if !isSecondary(row) {
			continue
		}
		below := s.Private[row.Fid]
		if row.Kind == datapath.VLANIsolated {
			below.Isolated = append(below.Isolated, vid)
		} else {
			below.Community = append(below.Community, vid)
		}
		s.Private[row.Fid] = below
	}
	return nil
}
