// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"bascule/agent"
	"bascule/answer"
	"bascule/bridge"
	"bascule/config"
	"bascule/frame"
	"bascule/history"

	"github.com/danielgtaylor/huma/v2"
	"github.com/goccy/go-yaml"
)

// OfBridge chooses the bridge to show.
type OfBridge struct {
	Where
	Bridge string `query:"bridge" maxLength:"64" doc:"only this bridge"`
}

// OfPort chooses the port to show.
type OfPort struct {
	OfBridge
	Port string `query:"port" maxLength:"64" doc:"only this port of the bridge"`
}

// Counted chooses a port, and how many entries to show.
type Counted struct {
	OfPort
	Stats bool `query:"stats" doc:"with counters"`
}

// OfEntries chooses the entries of an FDB to show.
type OfEntries struct {
	OfPort
	MAC     string           `query:"mac" maxLength:"32" doc:"only entries of this address"`
	VLAN    Optional[uint16] `query:"vlan" maximum:"4094" doc:"only entries of this VLAN, 0 for entries of untagged frames"`
	Dynamic bool             `query:"dynamic" doc:"only learned entries; with static, all"`
	Static  bool             `query:"static" doc:"only static and sticky entries; with dynamic, all"`
}

// OfEntry chooses the entry of an FDB to show.
type OfEntry struct {
	Where
	Bridge string           `query:"bridge" required:"true" maxLength:"64" doc:"the bridge"`
	MAC    string           `query:"mac" required:"true" maxLength:"32" doc:"the address"`
	VLAN   Optional[uint16] `query:"vlan" maximum:"4094" doc:"the VLAN of the entry; it may be left out where the address has one entry"`
}

// OfExport chooses the bridges to export.
type OfExport struct {
	Where
	Bridge []string `query:"bridge,explode" maxItems:"256" doc:"only this bridge; may be given several times"`
}

// bridges returns the bridges, each once.
func (in *OfExport) bridges() (names []string) {
	for _, name := range in.Bridge {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// OfFrame describes the frame to trace, in the words of bascule-trace(8).
type OfFrame struct {
	Where
	Bridge    string           `query:"bridge" required:"true" maxLength:"64" doc:"the bridge"`
	In        string           `query:"in" required:"true" maxLength:"64" doc:"the port that the frame comes in by"`
	Frame     string           `query:"frame" maxLength:"32768" doc:"the frame's bytes in hexadecimal digits, instead of the fields below"`
	Src       string           `query:"src" maxLength:"32" doc:"source address"`
	Dst       string           `query:"dst" maxLength:"32" doc:"destination MAC address, or the gateway's for another network"`
	VLAN      Optional[uint16] `query:"vlan" maximum:"4094" doc:"802.1Q tag of this VLAN"`
	Priority  Optional[uint16] `query:"priority" maximum:"7" doc:"priority of the tags"`
	QinQ      Optional[uint16] `query:"qinq" maximum:"4094" doc:"802.1ad tag of this VLAN before the other"`
	IP        string           `query:"ip" maxLength:"64" doc:"IP packet from this address"`
	To        string           `query:"to" maxLength:"64" doc:"IP packet to this address"`
	TCP       Optional[uint16] `query:"tcp" doc:"TCP to this port"`
	UDP       Optional[uint16] `query:"udp" doc:"UDP to this port"`
	SrcPort   Optional[uint16] `query:"sport" doc:"TCP or UDP from this port"`
	ICMP      bool             `query:"icmp" doc:"ICMP or ICMPv6 echo request"`
	ARP       string           `query:"arp" enum:"request,reply" doc:"an ARP request or reply"`
	SPA       string           `query:"spa" maxLength:"64" doc:"ARP's sender, an IPv4 address"`
	TPA       string           `query:"tpa" maxLength:"64" doc:"ARP's target, an IPv4 address"`
	EtherType Optional[uint16] `query:"ethertype" doc:"EtherType, a decimal number"`
	Size      Optional[uint16] `query:"size" doc:"size of the frame in bytes; the kernel takes about 3700"`
}

func (a *API) shows() {
	show(a, "/version", "the version of the program", func(context.Context, *struct{}) (answer.Version, error) {
		return a.o.Program, nil
	})
	show(a, "/agent/status", "the state of the agent, with the spanning tree of each bridge", func(ctx context.Context, _ *struct{}) (agent.Status, error) {
		return a.agent.Status(ctx)
	})
	show(a, "/help/reasons", "the reasons for which frames are dropped", func(context.Context, *struct{}) ([]answer.Reason, error) {
		return answer.List(bridge.Reasons, answer.OfReason), nil
	})
	show(a, "/help/routed", "the words of packets for routed host ports", func(context.Context, *struct{}) ([]answer.Reason, error) {
		return answer.List(bridge.RouteReasons(), answer.OfReason), nil
	})
	look(a, "/apply/history", "the states that were applied, and a change that waits to be confirmed", func(s *bridge.Switch, in *Where) ([]answer.State, error) {
		h, err := history.Open(s, in.Netns)
		if err != nil {
			return nil, err
		}
		waits, err := h.Pending()
		if err != nil {
			return nil, err
		}
		states, err := h.States()
		return answer.OfStates(waits, states), err
	})
	look(a, "/bridge/show", "bridges with their settings", func(s *bridge.Switch, in *OfBridge) ([]answer.Bridge, error) {
		if in.Bridge == "" {
			list, err := s.Bridges()
			return answer.List(list, answer.OfBridge), err
		}
		b, err := s.Bridge(in.Bridge)
		if err != nil {
			return nil, err
		}
		return []answer.Bridge{answer.OfBridge(b)}, nil
	})
	look(a, "/port/show", "ports with their settings", func(s *bridge.Switch, in *Counted) ([]answer.Port, error) {
		list, err := portsOf(s, in.OfPort)
		if err != nil {
			return nil, err
		}
		if in.Stats {
			return answer.List(list, answer.OfCountedPort), nil
		}
		return answer.List(list, answer.OfPort), nil
	})
	look(a, "/stats", "the counters of ports", func(s *bridge.Switch, in *OfPort) ([]answer.Totals, error) {
		list, err := portsOf(s, *in)
		return answer.List(list, answer.OfTotals), err
	})
	look(a, "/fdb/show", "entries of the FDB", fdb)
	look(a, "/fdb/get", "the entry of an address", func(s *bridge.Switch, in *OfEntry) ([]answer.Entry, error) {
		mac, err := bridge.ParseMAC(in.MAC)
		if err != nil {
			return nil, err
		}
		e, err := s.GetEntry(in.Bridge, mac, in.VLAN.Pointer())
		if err != nil {
			return nil, err
		}
		return []answer.Entry{answer.OfEntry(in.Bridge, e)}, nil
	})
	look(a, "/vlan/show", "VLANs of ports, private VLANs, or with stats the counters of VLANs", vlans)
	look(a, "/rule/show", "MAC rules in the order in which they are tried", func(s *bridge.Switch, in *Counted) ([]answer.Rule, error) {
		if err := portNeedsBridge(in.OfPort); err != nil {
			return nil, err
		}
		list, err := s.Rules(in.Bridge, in.Port)
		if in.Stats {
			return answer.List(list, answer.OfCountedRule), err
		}
		return answer.List(list, answer.OfRule), err
	})
	look(a, "/span/show", "span ports", func(s *bridge.Switch, in *OfBridge) ([]answer.Span, error) {
		list, err := s.Spans(in.Bridge)
		return answer.List(list, answer.OfSpan), err
	})
	operation(a, huma.Operation{Method: http.MethodGet, Path: "/export", Summary: "the running bridges as a file for /apply"},
		onSwitch(a, func(s *bridge.Switch, in *OfExport) (file File, notes []string, err error) {
			f, notes, err := config.Export(s, in.bridges()...)
			if err != nil {
				return nil, nil, err
			}
			var text bytes.Buffer
			if err := f.Write(&text); err != nil {
				return nil, nil, err
			}
			return file, notes, yaml.Unmarshal(text.Bytes(), &file)
		}))
	look(a, "/trace", "every step of the decision on a frame", func(s *bridge.Switch, in *OfFrame) ([]answer.Trace, error) {
		data, err := in.build()
		if err != nil {
			return nil, huma.Error422UnprocessableEntity(err.Error())
		}
		t, err := s.Trace(in.Bridge, in.In, data)
		if err != nil {
			return nil, err
		}
		return []answer.Trace{answer.OfTrace(in.Bridge, in.In, t)}, nil
	})
}

func portNeedsBridge(in OfPort) error {
	if in.Port != "" && in.Bridge == "" {
		return huma.Error422UnprocessableEntity("port needs bridge")
	}
	return nil
}

// portsOf returns the ports of all bridges, of one, or one port.
func portsOf(s *bridge.Switch, in OfPort) ([]bridge.Port, error) {
	if err := portNeedsBridge(in); err != nil {
		return nil, err
	}
	list, err := s.Ports(in.Bridge)
	if err != nil || in.Port == "" {
		return list, err
	}
	list = slices.DeleteFunc(slices.Clone(list), func(p bridge.Port) bool { return p.Name != in.Port })
	if len(list) == 0 {
		return nil, noPort("show port "+in.Port, in.Bridge)
	}
	return list, nil
}

func noPort(what, of string) error {
	return huma.Error404NotFound(fmt.Sprintf("cannot %s: bridge %s has no such port; see /port/show?bridge=%[2]s", what, of))
}

func fdb(s *bridge.Switch, in *OfEntries) ([]answer.Entry, error) {
	if err := portNeedsBridge(in.OfPort); err != nil {
		return nil, err
	}
	m := bridge.Match{Port: in.Port, VLAN: in.VLAN.Pointer(), Dynamic: in.Dynamic && !in.Static, Static: in.Static && !in.Dynamic}
	if in.MAC != "" {
		var err error
		if m.MAC, err = bridge.ParseMAC(in.MAC); err != nil {
			return nil, err
		}
	}
	names := []string{in.Bridge}
	if in.Bridge == "" {
		list, err := s.Bridges()
		if err != nil {
			return nil, err
		}
		names = nil
		for _, b := range list {
			names = append(names, b.Name)
		}
	}
	all := []answer.Entry{}
	for _, name := range names {
		list, err := s.FDB(name, m)
		if bridge.Missing(err) && in.Bridge == "" {
			continue // the bridge has gone meanwhile
		}
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			all = append(all, answer.OfEntry(name, e))
		}
	}
	return all, nil
}

func vlans(s *bridge.Switch, in *Counted) ([]answer.VLANs, error) {
	if err := portNeedsBridge(in.OfPort); err != nil {
		return nil, err
	}
	table, err := s.VLANTable(in.Bridge)
	if err != nil {
		return nil, err
	}
	if in.Stats {
		if in.Port != "" {
			return nil, huma.Error422UnprocessableEntity("a VLAN counts for all of its ports: leave port out")
		}
		counts := map[string]bool{}
		list, err := s.Bridges()
		if err != nil {
			return nil, err
		}
		for _, b := range list {
			counts[b.Name] = b.Config.VLANStats
		}
		if in.Bridge != "" && !counts[in.Bridge] {
			return nil, huma.Error409Conflict("cannot show the counters of " + in.Bridge + "'s VLANs: it has none; switch them on by its setting vlan-stats")
		}
		table = slices.DeleteFunc(slices.Clone(table), func(v bridge.VLAN) bool { return !counts[v.Bridge] })
		return answer.OfVLANTable(table, true), nil
	}
	list, err := s.VLANs(in.Bridge)
	if err != nil {
		return nil, err
	}
	if in.Port != "" {
		list = slices.DeleteFunc(list, func(v bridge.PortVLANs) bool { return v.Port != in.Port })
		if len(list) == 0 {
			return nil, noPort("show the VLANs of port "+in.Port, in.Bridge)
		}
		table = nil
	}
	return answer.OfPortVLANTable(list, table), nil
}

// build returns the frame.
func (in *OfFrame) build() ([]byte, error) {
	f := frame.Fields{
		VLAN: in.VLAN.Pointer(), Priority: in.Priority.Pointer(), QinQ: in.QinQ.Pointer(),
		TCP: in.TCP.Pointer(), UDP: in.UDP.Pointer(), SrcPort: in.SrcPort.Pointer(), ICMP: in.ICMP, ARP: in.ARP,
		EtherType: in.EtherType.Pointer(), Size: in.Size.Pointer(),
	}
	given := f.VLAN != nil || f.Priority != nil || f.QinQ != nil || f.TCP != nil || f.UDP != nil || f.SrcPort != nil || f.ICMP ||
		f.ARP != "" || f.EtherType != nil || f.Size != nil
	for _, m := range []struct {
		name, text string
		to         *net.HardwareAddr
	}{{"src", in.Src, &f.Src}, {"dst", in.Dst, &f.Dst}} {
		if m.text == "" {
			continue
		}
		mac, err := net.ParseMAC(m.text)
		if err != nil || len(mac) != 6 {
			return nil, fmt.Errorf("%s %.40q: not a MAC address; give six bytes such as 02:00:00:00:00:01", m.name, m.text)
		}
		*m.to, given = mac, true
	}
	for _, ip := range []struct {
		name, text string
		to         *netip.Addr
	}{{"ip", in.IP, &f.IP}, {"to", in.To, &f.To}, {"spa", in.SPA, &f.SenderIP}, {"tpa", in.TPA, &f.Target}} {
		if ip.text == "" {
			continue
		}
		addr, err := netip.ParseAddr(ip.text)
		if err != nil || addr.Zone() != "" {
			return nil, fmt.Errorf("%s %.60q: not an IP address; give one such as 192.0.2.1 or 2001:db8::1", ip.name, ip.text)
		}
		*ip.to, given = addr, true
	}
	if f.Size != nil && (int(*f.Size) < frame.MinSize || int(*f.Size) > frame.MaxSize) {
		return nil, fmt.Errorf("size %d: out of range; give %d to %d", *f.Size, frame.MinSize, frame.MaxSize)
	}
	switch {
	case in.Frame != "" && given:
		return nil, fmt.Errorf("frame and fields: give one of them")
	case in.Frame != "":
		return frame.Parse(in.Frame)
	case !given:
		return nil, fmt.Errorf("the frame is missing; give frame, or fields such as dst")
	}
	return f.Build()
}
