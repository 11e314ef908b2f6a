// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"bascule/bridge"
)

// fakeFabric is a switch in memory. It does what it is told and forwards
// nothing; events are what Monitor reports.
type fakeFabric struct {
	bridges []bridge.Info
	ports   []bridge.Port
	entries map[string][]bridge.Entry
	events  []bridge.Event

	netns    string // of the last Open
	calls    []string
	watching func() // called by Monitor when all events are reported
}

func (f *fakeFabric) open(netns string) (fabric, error) {
	if netns == "nowhere" {
		return nil, fmt.Errorf("cannot open network namespace nowhere: no such file\nor directory; see 'ip netns'")
	}
	f.netns = netns
	return f, nil
}

func (f *fakeFabric) Close() error { return nil }

func (f *fakeFabric) call(format string, args ...any) {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
}

func (f *fakeFabric) find(name string) (*bridge.Info, error) {
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

func (f *fakeFabric) AddBridge(name string, changes []bridge.Change) error {
	f.call("AddBridge %s %v", name, changes)
	b := bridge.Info{Name: name, Address: net.HardwareAddr{2, 0, 0, 0, 0, byte(len(f.bridges))}}
	if err := configure(bridge.BridgeSettings, &b.Config, append(defaults(bridge.BridgeSettings), changes...)); err != nil {
		return err
	}
	f.bridges = append(f.bridges, b)
	slices.SortFunc(f.bridges, func(a, b bridge.Info) int { return cmp.Compare(a.Name, b.Name) })
	return nil
}

func (f *fakeFabric) SetBridge(name string, changes []bridge.Change) ([]string, error) {
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

func (f *fakeFabric) DelBridge(name string) error {
	f.call("DelBridge %s", name)
	if _, err := f.find(name); err != nil {
		return err
	}
	f.bridges = slices.DeleteFunc(f.bridges, func(b bridge.Info) bool { return b.Name == name })
	return nil
}

func (f *fakeFabric) Bridges() ([]bridge.Info, error) { return f.bridges, nil }

func (f *fakeFabric) Bridge(name string) (bridge.Info, error) {
	b, err := f.find(name)
	if err != nil {
		return bridge.Info{}, err
	}
	return *b, nil
}

func (f *fakeFabric) AddPort(name, port string, o bridge.PortOptions) ([]string, error) {
	if o.Type == bridge.TypePatch {
		f.call("AddPort %s %s type=%s peer=%s hook=%s %v", name, port, o.Type, o.Peer, o.Hook, o.Changes)
	} else {
		f.call("AddPort %s %s type=%s hook=%s %v", name, port, o.Type, o.Hook, o.Changes)
	}
	b, err := f.find(name)
	if err != nil {
		return nil, err
	}
	b.Ports = append(b.Ports, port)
	p := bridge.Port{
		Bridge: name, Name: port, Type: o.Type, Hook: "tcx", Index: len(f.ports) + 2,
		Flags: []string{"BROADCAST", "UP"}, MTU: 1500, State: "forwarding",
	}
	if err := configure(bridge.PortSettings, &p.Config, append(defaults(bridge.PortSettings), o.Changes...)); err != nil {
		return nil, err
	}
	if o.Type == bridge.TypePatch {
		p.Peer, p.Hook, p.Index, p.Flags, p.MTU = o.Peer, "", 0, nil, 0
	}
	f.ports = append(f.ports, p)
	if o.Hook == "xdp" {
		return []string{"port " + port + ": its other end has no GRO"}, nil
	}
	return nil, nil
}

func (f *fakeFabric) SetPort(name, port string, o bridge.PortOptions) ([]string, error) {
	f.call("SetPort %s %s hook=%s %v", name, port, o.Hook, o.Changes)
	for i, p := range f.ports {
		if p.Bridge == name && p.Name == port {
			return nil, configure(bridge.PortSettings, &f.ports[i].Config, o.Changes)
		}
	}
	return nil, fmt.Errorf("cannot set port %s: bridge %s has none; see 'bascule port show'", port, name)
}

func (f *fakeFabric) DelPort(name, port string) error {
	f.call("DelPort %s %s", name, port)
	return nil
}

func (f *fakeFabric) Ports(name string) ([]bridge.Port, error) {
	var list []bridge.Port
	for _, p := range f.ports {
		if name == "" || p.Bridge == name {
			list = append(list, p)
		}
	}
	return list, nil
}

// describe prints a match so that a test can read it.
func describe(m bridge.Match) string {
	s := []string{"match"}
	if m.Port != "" {
		s = append(s, "port="+m.Port)
	}
	if m.VLAN != nil {
		s = append(s, fmt.Sprint("vlan=", *m.VLAN))
	}
	return strings.Join(append(s, fmt.Sprintf("static=%t dynamic=%t", m.Static, m.Dynamic)), " ")
}

func (f *fakeFabric) FDB(name string, m bridge.Match) ([]bridge.Entry, error) {
	f.call("FDB %s %s", name, describe(m))
	return f.entries[name], nil
}

func (f *fakeFabric) AddEntry(name string, e bridge.Entry) error {
	f.call("AddEntry %s %s vlan=%d port=%s static=%t sticky=%t", name, e.MAC, e.VLAN, e.Port, e.Static, e.Sticky)
	if f.entries == nil {
		f.entries = map[string][]bridge.Entry{}
	}
	f.entries[name] = append(f.entries[name], e)
	return nil
}

func (f *fakeFabric) DelEntry(name string, mac net.HardwareAddr, vlan uint16) error {
	f.call("DelEntry %s %s vlan=%d", name, mac, vlan)
	kept := slices.DeleteFunc(f.entries[name], func(e bridge.Entry) bool { return bytes.Equal(e.MAC, mac) && e.VLAN == vlan })
	if len(kept) == len(f.entries[name]) {
		return fmt.Errorf("cannot remove address %s: bridge %s does not know it; see 'bascule fdb show %s'", mac, name, name)
	}
	f.entries[name] = kept
	return nil
}

func (f *fakeFabric) Flush(name string, m bridge.Match) (int, error) {
	f.call("Flush %s %s", name, describe(m))
	return len(f.entries[name]), nil
}

func (f *fakeFabric) Monitor(ctx context.Context, name string, report func(bridge.Event) error) error {
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

// someEvents are one of each shape.
func someEvents() []bridge.Event {
	at := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.Local)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	return []bridge.Event{
		{Time: at, Kind: "port-added", Bridge: "br0", Port: "p1"},
		{Time: at, Kind: "learned", Bridge: "br0", Port: "p1", MAC: mac, Count: 1},
		{Time: at, Kind: "moved", Bridge: "br0", Port: "p2", From: "p1", MAC: mac, VLAN: 10},
		{Time: at, Kind: "drops", Bridge: "br0", Port: "p1", Reason: "same-port", Count: 3},
	}
}
