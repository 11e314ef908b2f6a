// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/config"
	"bascule/frame"
	"bascule/history"
	"bascule/plug"
	"bascule/rule"
)

// fakeSwitch is a switch in memory. It records commands and forwards nothing; Monitor reports its
// events.
type fakeSwitch struct {
	bridges  []bridge.Info
	ports    []bridge.Port
	entries  map[string][]bridge.Entry
	spans    []bridge.Span
	bindings []bridge.Binding
	rules    []bridge.PortRule
	vlans    []bridge.PortVLANs
	table    []bridge.VLAN
	pf       fakePF
	events   []bridge.Event
	frames   [][]frame.Seen // for a capture, in batches
	missed   uint64         // before the first batch

	found []bridge.Finding
	file  config.File // the file that was last applied

	netns    string // from the last Open
	calls    []string
	watching func() // called by Monitor after the last event
	looking  func() // called at the beginning of Ports; may be nil
}

func (f *fakeSwitch) open(netns string) (switcher, error) {
	if netns == "nowhere" {
		return nil, fmt.Errorf("cannot open network namespace nowhere: no such file\nor directory; see 'ip netns'")
	}
	f.netns = netns
	return f, nil
}

func (f *fakeSwitch) Close() error { return nil }

func (f *fakeSwitch) Check() ([]bridge.Finding, error) { return f.found, nil }

// Apply plans for a namespace with the devices p1 and p2; the wanted state becomes the running one.
func (f *fakeSwitch) Apply(want config.File, o history.Options) ([]config.Action, []string, error) {
	f.call("Apply netns=%s bridges=%d dry=%v%s", want.Netns, len(want.Bridges), o.DryRun, changeWords(o))
	var devices []bridge.Device
	for _, name := range []string{"p1", "p2"} {
		d := bridge.Device{Name: name, Ethernet: true, Up: true}
		for _, b := range f.file.Bridges {
			if _, ok := b.Port(name); ok {
				d.Bridge = b.Name
			}
		}
		devices = append(devices, d)
	}
	actions, warnings, err := config.Plan(f.file, want, devices)
	if err != nil {
		return nil, nil, err
	}
	if o.Report != nil {
		o.Report(actions)
	}
	if !o.DryRun {
		f.file = want
	}
	return actions, warnings, nil
}

// changeWords describes the options of a change.
func changeWords(o history.Options) (words string) {
	if o.Confirm > 0 {
		words += fmt.Sprint(" confirm=", o.Confirm)
	}
	if o.Yes {
		words += " yes"
	}
	return words
}

func (f *fakeSwitch) Back(n int, o history.Options) ([]config.Action, []string, error) {
	f.call("Back %d dry=%v%s", n, o.DryRun, changeWords(o))
	return nil, nil, nil
}

func (f *fakeSwitch) Confirm(who history.Who, yes bool) (*history.Pending, []string, error) {
	f.call("Confirm yes=%v", yes)
	return &history.Pending{}, nil, nil
}

func (f *fakeSwitch) Pending() (*history.Pending, error) {
	return &history.Pending{Time: longAgo, Until: longAgo.Add(time.Minute), Who: "alice from 192.0.2.7", What: "new.yaml", Bridges: []string{"br0"}}, nil
}

func (f *fakeSwitch) States() ([]history.State, error) {
	return []history.State{{Time: longAgo, Who: "bob", What: "switch.yaml", Change: "~ bridge br0: ageing 60s -> 90s, and 2 more", Bridges: []string{"br0", "br1"}}, {Time: longAgo, Who: "-", What: "as it was found"}}, nil
}

func (f *fakeSwitch) Name() string { return f.netns }

// longAgo is the time of all events in the fake switch.
var longAgo = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// Preview returns nothing, since the fake cannot plan.
func (f *fakeSwitch) Preview(config.Session, func() error) ([]config.Action, error) { return nil, nil }

func (f *fakeSwitch) Export(bridges ...string) (config.File, []string, error) {
	f.call("Export %v", bridges)
	out := f.file
	if len(bridges) > 0 {
		out.Bridges = slices.DeleteFunc(slices.Clone(out.Bridges), func(b config.Bridge) bool { return !slices.Contains(bridges, b.Name) })
	}
	if len(out.Bridges) < len(bridges) {
		return config.File{}, nil, fmt.Errorf("cannot export: there is no such bridge; see 'bascule bridge show'")
	}
	return out, []string{"pf of br0: something is left out"}, nil
}

func (f *fakeSwitch) call(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeSwitch) find(name string) (*bridge.Info, error) {
	for i := range f.bridges {
		if f.bridges[i].Name == name {
			return &f.bridges[i], nil
		}
	}
	return nil, fmt.Errorf("cannot use bridge %s: there is none; see 'bascule bridge show'", name)
}

func configure[T any](settings []bridge.Setting[T], config *T, changes []bridge.Change) error {
	for _, ch := range changes {
		i := slices.IndexFunc(settings, func(s bridge.Setting[T]) bool { return s.Name == ch.Name })
		if err := settings[i].Set(config, ch.Value); err != nil {
			return err
		}
	}
	return nil
}

func defaults[T any](settings []bridge.Setting[T]) (changes []bridge.Change) {
	for _, s := range settings {
		changes = append(changes, bridge.Change{Name: s.Name, Value: s.Default})
	}
	return changes
}

func (f *fakeSwitch) AddBridge(name string, changes []bridge.Change) error {
	f.call("AddBridge %s %v", name, changes)
	b := bridge.Info{Name: name, Address: net.HardwareAddr{2, 0, 0, 0, 0, byte(len(f.bridges))}}
	if err := configure(bridge.BridgeSettings, &b.Config, append(defaults(bridge.BridgeSettings), changes...)); err != nil {
		return err
	}
	f.bridges = append(f.bridges, b)
	slices.SortFunc(f.bridges, func(a, b bridge.Info) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func (f *fakeSwitch) SetBridge(name string, changes []bridge.Change) ([]string, error) {
	f.call("SetBridge %s %v", name, changes)
	b, err := f.find(name)
	if err != nil {
		return nil, err
	}
	if err := configure(bridge.BridgeSettings, &b.Config, changes); err != nil {
		return nil, err
	}
	if b.FDBCount > b.Config.FDBMax {
		return []string{name + ": addresses dropped"}, nil
	}
	return nil, nil
}

func (f *fakeSwitch) DelBridges() (removed, warnings []string, err error) {
	f.call("DelBridges")
	for _, b := range slices.Clone(f.bridges) {
		if _, err := f.DelBridge(b.Name); err != nil {
			return removed, nil, err
		}
		removed = append(removed, b.Name)
	}
	return removed, nil, nil
}

func (f *fakeSwitch) DelBridge(name string) (warnings []string, err error) {
	f.call("DelBridge %s", name)
	if _, err := f.find(name); err != nil {
		return nil, err
	}
	f.bridges = slices.DeleteFunc(f.bridges, func(b bridge.Info) bool { return b.Name == name })
	return nil, nil
}

func (f *fakeSwitch) Bridges() ([]bridge.Info, error) { return f.bridges, nil }

func (f *fakeSwitch) Bridge(name string) (bridge.Info, error) {
	b, err := f.find(name)
	if err != nil {
		return bridge.Info{}, err
	}
	return *b, nil
}

// hostWords describes the given settings of a host port's interface.
func hostWords(o bridge.PortOptions) (words string) {
	switch {
	case o.OwnMAC:
		words = " mac=auto"
	case o.MAC != nil:
		words = " mac=" + o.MAC.String()
	}
	if o.MTU != 0 {
		words += fmt.Sprint(" mtu=", o.MTU)
	}
	if o.Description != nil {
		words += fmt.Sprintf(" description=%q", *o.Description)
	}
	if o.VLANs != nil {
		words += fmt.Sprint(" vlans=", o.VLANs)
	}
	return words
}

func (f *fakeSwitch) AddPorts(name string, ports []string, o bridge.PortOptions) (warnings []string, err error) {
	if o.Type == bridge.TypePatch {
		f.call("AddPort %s %s type=%s peer=%s hook=%s %v", name, strings.Join(ports, " "), o.Type, o.Peer, o.Hook, o.Changes)
	} else {
		f.call("AddPort %s %s type=%s hook=%s%s %v", name, strings.Join(ports, " "), o.Type, o.Hook, hostWords(o), o.Changes)
	}
	for _, port := range ports {
		more, err := f.addPort(name, port, o)
		if err != nil {
			return nil, err
		}
		warnings = append(warnings, more...)
	}
	return warnings, nil
}

func (f *fakeSwitch) addPort(name, port string, o bridge.PortOptions) ([]string, error) {
	b, err := f.find(name)
	if err != nil {
		return nil, err
	}
	b.Ports = append(b.Ports, port)
	p := bridge.Port{
		Bridge: name, Name: port, Type: o.Type, Hook: "tcx", Index: len(f.ports) + 2,
		Flags: []string{"BROADCAST", "UP"}, MTU: 1500, State: "forwarding",
		Config: bridge.PortDefaults(o.Type),
	}
	if err := configure(bridge.PortSettings, &p.Config, o.Changes); err != nil {
		return nil, err
	}
	if o.Type == bridge.TypePatch {
		p.Peer, p.Hook, p.Index, p.Flags, p.MTU = o.Peer, "", 0, nil, 0
	}
	if o.Description != nil {
		p.Description = *o.Description
	}
	f.ports = append(f.ports, p)
	if o.Hook == "xdp" {
		return []string{"port " + port + ": its other end has no GRO"}, nil
	}
	return nil, nil
}

func (f *fakeSwitch) SetPorts(name string, ports []string, o bridge.PortOptions) ([]string, error) {
	f.call("SetPorts %s %s hook=%s%s %v", name, strings.Join(ports, " "), o.Hook, hostWords(o), o.Changes)
	for _, port := range ports {
		i := slices.IndexFunc(f.ports, func(p bridge.Port) bool { return p.Bridge == name && p.Name == port })
		if i < 0 {
			return nil, fmt.Errorf("cannot set port %s: bridge %s has none; see 'bascule port show'", port, name)
		}
		if err := configure(bridge.PortSettings, &f.ports[i].Config, o.Changes); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

func (f *fakeSwitch) DelPorts(name string, ports []string) ([]string, error) {
	f.call("DelPorts %s %s", name, strings.Join(ports, " "))
	for _, p := range f.ports {
		if p.Bridge == name && slices.Contains(ports, p.Config.Backup) {
			return []string{"port " + p.Name + " has no backup any more"}, nil
		}
	}
	return nil, nil
}

func (f *fakeSwitch) Plug(o plug.Plug) ([]string, error) {
	var bindings []string
	for _, b := range o.Bindings {
		bindings = append(bindings, fmt.Sprintf("%s=%s/%d", b.MAC, b.Address, b.VLAN))
	}
	rules := ""
	if o.PF != nil {
		rules = string(o.PF.Text)
	}
	f.call("Plug %s by %s bridge=%s device=%s hook=%s vlans=%v bindings=%v pf=%q %v",
		o.Owner.ID, o.Owner.By, o.Bridge, o.Device, o.Hook, o.VLANs, bindings, rules, o.Settings)
	if _, err := f.find(o.Bridge); err != nil {
		return nil, err
	}
	port := bridge.Port{Bridge: o.Bridge, Name: o.Device, Type: bridge.TypeNetdev, State: "forwarding", Hook: "tcx", Owner: &o.Owner}
	port.Config = bridge.PortDefaults(port.Type)
	f.ports = append(f.ports, port)
	return []string{"of a port"}, nil
}

func (f *fakeSwitch) Unplug(id string) ([]string, error) {
	f.call("Unplug %s", id)
	f.ports = slices.DeleteFunc(f.ports, func(p bridge.Port) bool { return p.Owner != nil && p.Owner.ID == id })
	return nil, nil
}

func (f *fakeSwitch) Ports(name string) ([]bridge.Port, error) {
	if f.looking != nil {
		f.looking()
	}
	if name != "" {
		if _, err := f.find(name); err != nil {
			return nil, err
		}
	}
	var list []bridge.Port
	for _, p := range f.ports {
		if name == "" || p.Bridge == name {
			list = append(list, p)
		}
	}
	return list, nil
}

// describe formats a match for tests.
func describe(m bridge.Match) string {
	s := []string{"match"}
	if m.Port != "" {
		s = append(s, "port="+m.Port)
	}
	if m.MAC != nil {
		s = append(s, "mac="+m.MAC.String())
	}
	if m.VLAN != nil {
		s = append(s, fmt.Sprint("vlan=", *m.VLAN))
	}
	if m.Own {
		s = append(s, "own")
	}
	return strings.Join(append(s, fmt.Sprintf("static=%t dynamic=%t", m.Static, m.Dynamic)), " ")
}

func (f *fakeSwitch) FDB(name string, m bridge.Match) ([]bridge.Entry, error) {
	f.call("FDB %s %s", name, describe(m))
	return slices.DeleteFunc(slices.Clone(f.entries[name]), func(e bridge.Entry) bool {
		own := e.Static && e.Port == "host0"
		return m.Static && !e.Static && !e.Sticky || m.Own && !own
	}), nil
}

// vlanOf returns the VLAN of a pointer, and its text for tests.
func vlanOf(in *uint16) (uint16, string) {
	if in == nil {
		return 0, "only"
	}
	return *in, fmt.Sprint(*in)
}

func (f *fakeSwitch) GetEntry(name string, mac net.HardwareAddr, in *uint16) (bridge.Entry, error) {
	vlan, text := vlanOf(in)
	f.call("GetEntry %s %s vlan=%s", name, mac, text)
	for _, e := range f.entries[name] {
		if bytes.Equal(e.MAC, mac) && e.VLAN == vlan {
			return e, nil
		}
	}
	return bridge.Entry{}, fmt.Errorf("cannot get address %s of %s: the FDB does not have it; see 'bascule fdb show %s'", mac, name, name)
}

func (f *fakeSwitch) AddEntry(name string, e bridge.Entry) error {
	f.call("AddEntry %s %s vlan=%d port=%s static=%t sticky=%t", name, e.MAC, e.VLAN, e.Port, e.Static, e.Sticky)
	if f.entries == nil {
		f.entries = map[string][]bridge.Entry{}
	}
	f.entries[name] = append(f.entries[name], e)
	return nil
}

func (f *fakeSwitch) DelEntry(name string, mac net.HardwareAddr, in *uint16) error {
	vlan, text := vlanOf(in)
	f.call("DelEntry %s %s vlan=%s", name, mac, text)
	kept := slices.DeleteFunc(f.entries[name], func(e bridge.Entry) bool { return bytes.Equal(e.MAC, mac) && e.VLAN == vlan })
	if len(kept) == len(f.entries[name]) {
		return fmt.Errorf("cannot remove address %s: bridge %s does not know it; see 'bascule fdb show %s'", mac, name, name)
	}
	f.entries[name] = kept
	return nil
}

func (f *fakeSwitch) Flush(name string, m bridge.Match) (int, error) {
	f.call("Flush %s %s", name, describe(m))
	return len(f.entries[name]), nil
}

func (f *fakeSwitch) AddSpan(name, device string, o bridge.SpanOptions) ([]string, error) {
	f.call("AddSpan %s %s ports=%v vlans=%v direction=%s", name, device, o.Ports, o.VLANs, o.Direction)
	if _, err := f.find(name); err != nil {
		return nil, err
	}
	f.ports = append(f.ports, bridge.Port{Bridge: name, Name: device, Type: "span", Hook: "tcx", Index: len(f.ports) + 2, State: "forwarding", MTU: 1000})
	f.spans = append(f.spans, bridge.Span{
		Bridge: name, Port: device, Direction: o.Direction, State: "forwarding", All: o.Ports == nil && o.VLANs == nil, Ports: o.Ports, VLANs: o.VLANs,
	})
	if o.Direction == bridge.DirectionBoth {
		return []string{device + " has MTU 1000"}, nil
	}
	return nil, nil
}

func (f *fakeSwitch) DelSpan(name, device string) error {
	f.call("DelSpan %s %s", name, device)
	return nil
}

func (f *fakeSwitch) Spans(name string) ([]bridge.Span, error) {
	var list []bridge.Span
	for _, s := range f.spans {
		if name == "" || s.Bridge == name {
			list = append(list, s)
		}
	}
	return list, nil
}

func (f *fakeSwitch) Rules(name, port string) ([]bridge.PortRule, error) {
	f.call("Rules bridge=%s port=%s", name, port)
	var list []bridge.PortRule
	for _, r := range f.rules {
		if (name == "" || r.Bridge == name) && (port == "" || r.Rule.Port == port) {
			list = append(list, r)
		}
	}
	return list, nil
}

func (f *fakeSwitch) AddRule(name string, r rule.Rule) ([]string, error) {
	f.call("AddRule %s %s", name, r)
	if _, err := f.find(name); err != nil {
		return nil, err
	}
	f.rules = append(f.rules, bridge.PortRule{Bridge: name, Number: len(f.rules) + 1, Rule: r, Frames: 3, Bytes: 180})
	if why := r.Never(); why != "" {
		return []string{why}, nil
	}
	return nil, nil
}

func (f *fakeSwitch) DelRule(name string, r rule.Rule) error {
	f.call("DelRule %s %s", name, r)
	return nil
}

func (f *fakeSwitch) FlushRules(name, port string) (int, error) {
	f.call("FlushRules %s port=%s", name, port)
	return len(f.rules), nil
}

func (f *fakeSwitch) LoadRules(name, port, file string, r io.Reader) ([]string, error) {
	f.call("LoadRules %s port=%s file=%s", name, port, file)
	list, err := rule.ParseFile(file, r, port)
	if err != nil {
		return nil, fmt.Errorf("cannot load rules of %s: %w; nothing was changed", name, err)
	}
	f.rules = nil
	for i, r := range list {
		f.rules = append(f.rules, bridge.PortRule{Bridge: name, Number: i + 1, Rule: r})
	}
	return nil, nil
}

func (f *fakeSwitch) VLANs(name string) ([]bridge.PortVLANs, error) {
	f.call("VLANs %s", name)
	return slices.Clone(f.vlans), nil
}

func (f *fakeSwitch) VLANTable(name string) ([]bridge.VLAN, error) { return f.table, nil }

func (f *fakeSwitch) AddVLANs(name, port string, list []uint16, o bridge.VLANOptions) error {
	f.call("AddVLANs %s %s %v untagged=%t pvid=%t", name, port, list, o.Untagged, o.PVID)
	return nil
}

func (f *fakeSwitch) DelVLANs(name, port string, list []uint16) error {
	f.call("DelVLANs %s %s %v", name, port, list)
	return nil
}

func (f *fakeSwitch) SetPrivateVLANs(name string, primary uint16, below bridge.PrivateVLANs) error {
	f.call("SetPrivateVLANs %s %d isolated=%v community=%v", name, primary, below.Isolated, below.Community)
	return nil
}

func (f *fakeSwitch) Bindings(name, port string) ([]bridge.Binding, error) {
	f.call("Bindings %s %s", name, port)
	var list []bridge.Binding
	for _, b := range f.bindings {
		if (name == "" || b.Bridge == name) && (port == "" || b.Port == port) {
			list = append(list, b)
		}
	}
	return list, nil
}

func (f *fakeSwitch) AddBinding(b bridge.Binding) error {
	f.call("AddBinding %s %s %s %s vlan=%d", b.Bridge, b.Port, b.MAC, b.Address, b.VLAN)
	f.bindings = append(f.bindings, b)
	return nil
}

func (f *fakeSwitch) DelBinding(name string, a netip.Addr, vlan uint16) error {
	f.call("DelBinding %s %s vlan=%d", name, a, vlan)
	n := len(f.bindings)
	f.bindings = slices.DeleteFunc(f.bindings, func(b bridge.Binding) bool {
		return b.Bridge == name && b.Address == a && b.VLAN == vlan
	})
	if len(f.bindings) == n {
		return fmt.Errorf("cannot delete the binding of %s in %s: there is none; see 'bascule binding show %s'", a, name, name)
	}
	return nil
}

func (f *fakeSwitch) FlushBindings(name string, m bridge.Match) (int, error) {
	f.call("FlushBindings %s %s", name, describe(m))
	return len(f.bindings), nil
}

func (f *fakeSwitch) Monitor(ctx context.Context, name string, report func(bridge.Event) error) error {
	f.call("Monitor %s", name)
	for _, e := range f.events {
		if err := report(e); err != nil {
			return err
		}
	}
	f.watching()
	<-ctx.Done()
	return ctx.Err()
}

func (f *fakeSwitch) Capture(_ context.Context, name string, o bridge.CaptureOptions) (frame.Source, error) {
	f.call("Capture %s ports=%v dropped=%t filter=%d snaplen=%d buffer=%d", name, o.Ports, o.Dropped, len(o.Filter), o.Snaplen, o.Buffer)
	if _, err := f.find(name); err != nil {
		return nil, err
	}
	return &fakeSource{f, f.frames, f.missed}, nil
}

// fakeSource returns the frames of a fake switch, and then waits.
type fakeSource struct {
	of     *fakeSwitch
	frames [][]frame.Seen
	missed uint64
}

func (s *fakeSource) Next(ctx context.Context) ([]frame.Seen, uint64, error) {
	if len(s.frames) == 0 {
		s.of.watching()
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	frames, missed := s.frames[0], s.missed
	s.frames, s.missed = s.frames[1:], 0
	return frames, missed, nil
}

func (s *fakeSource) Close() error {
	s.of.call("Close capture")
	return nil
}

func (f *fakeSwitch) CountTalkers(name string) (func() error, error) {
	f.call("CountTalkers %s", name)
	return func() error { return nil }, nil
}

func (f *fakeSwitch) Talkers(string) ([]bridge.Talker, error) { return nil, nil }

func (f *fakeSwitch) Known(name string, a netip.Addr) ([]bridge.KnownMAC, error) {
	if _, err := f.find(name); err != nil || a != netip.MustParseAddr("192.0.2.2") {
		return nil, err
	}
	return []bridge.KnownMAC{
		{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, Of: "192.0.2.2, bound to p2"}, {MAC: net.HardwareAddr{2, 0, 0, 0, 0, 3}, Of: "192.0.2.2, neighbour at host0"},
	}, nil
}

func (f *fakeSwitch) Trace(string, string, []byte) (bridge.Trace, error) { return bridge.Trace{}, nil }

// someFrames returns two batches.
func someFrames() [][]frame.Seen {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.Local)
	data := append([]byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 0x88, 0xb5}, make([]byte, 46)...)
	return [][]frame.Seen{{
		{Time: at, Port: "p1", Direction: frame.In, VLAN: 10, Data: data, Length: 60},
		{Time: at, Port: "p2", Direction: frame.Out, VLAN: 10, Data: data, Length: 60},
	}, {
		{Time: at, Port: "p1", Direction: frame.Dropped, Reason: "protected", Data: data, Length: 1500},
	}}
}

// someEvents returns one event of each shape.
func someEvents() []bridge.Event {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.Local)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	return []bridge.Event{
		{Time: at, Kind: "port-added", Bridge: "br0", Port: "p1"},
		{Time: at, Kind: "learned", Bridge: "br0", Port: "p1", MAC: mac, Count: 1},
		{Time: at, Kind: "moved", Bridge: "br0", Port: "p2", From: "p1", MAC: mac, VLAN: 10},
		{Time: at, Kind: "refused", Bridge: "br0", Port: "p1", From: "p2", Reason: "damped", MAC: mac, Count: 7},
		{Time: at, Kind: "loop", Bridge: "br0", Port: "p2", From: "p1", MAC: mac, Count: 5},
		{Time: at, Kind: "blocked", Bridge: "br0", Port: "p2", For: 30 * time.Second},
		{Time: at, Kind: "drops", Bridge: "br0", Port: "p1", Reason: "same-port", Count: 3},
		{Time: at, Kind: "port-taken", Bridge: "br0", Port: "p1", Reason: "Linux bridge lxbr0"},
		{Time: at, Kind: "port-finding", Bridge: "br0", Port: "p1", Reason: "macvlan mv0 is above p1"},
		{Time: at, Kind: "port-cleared", Bridge: "br0", Port: "p1", Reason: "macvlan mv0"},
		{Time: at, Kind: "port-mtu", Bridge: "br0", Port: "p1", Reason: "p1 has MTU 1400"},
	}
}
