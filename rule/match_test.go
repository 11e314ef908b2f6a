// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"net/netip"
	"testing"
)

func TestMatch(t *testing.T) {
	a, b, all := MAC{2, 0, 0, 0, 0, 1}, MAC{2, 0, 0, 0, 0, 2}, MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	plain := Frame{Port: "em0", Src: a, Dst: b, Type: typeIPv4}
	arp := func(change func(f *Frame)) Frame {
		f := Frame{Port: "em0", Src: a, Dst: all, Type: typeARP, ARP: &ARPFields{
			Hardware: 1, Protocol: 0x0800, HLen: 6, PLen: 4, Op: 1,
			SHA: a, SPA: netip.MustParseAddr("192.0.2.1"), THA: b, TPA: netip.MustParseAddr("192.0.2.2"),
		}}
		change(&f)
		return f
	}
	request := arp(func(*Frame) {})
	reply := arp(func(f *Frame) { f.ARP.Op = 2 })
	revRequest := arp(func(f *Frame) { f.Type, f.ARP.Op = typeRARP, 3 })
	revReply := arp(func(f *Frame) { f.Type, f.ARP.Op = typeRARP, 4 })
	tests := []struct {
		rule string
		dir  Direction
		f    Frame
		want bool
	}{
		{"block on em0", In, plain, true},
		{"block on em0", Out, plain, true},
		{"block in on em0", In, plain, true},
		{"block in on em0", Out, plain, false},
		{"block out on em0", Out, plain, true},
		{"block out on em0", In, plain, false},
		{"block on em1", In, plain, false},
		{"block on em0 src 02:00:00:00:00:01", In, plain, true},
		{"block on em0 src 02:00:00:00:00:02", In, plain, false},
		{"block on em0 dst 02:00:00:00:00:02", In, plain, true},
		{"block on em0 dst 02:00:00:00:00:01", In, plain, false},
		{"block on em0 src 02:00:00:00:00:01 dst 02:00:00:00:00:02", In, plain, true},
		{"block on em0 src 02:00:00:00:00:01 dst 02:00:00:00:00:01", In, plain, false},
		{"block on em0", In, request, true},
		{"block on em0 arp", In, plain, false},
		{"block on em0 arp", In, request, true},
		{"block on em0 arp", In, reply, true},
		{"block on em0 arp", In, revRequest, false},
		{"block on em0 arp", In, arp(func(f *Frame) { f.ARP = nil }), false},
		{"block on em0 arp", In, arp(func(f *Frame) { f.Type = typeRARP }), false},
		{"block on em0 arp", In, arp(func(f *Frame) { f.ARP.Op = 8 }), false}, // InARP, RFC 2390
		{"block on em0 arp", In, arp(func(f *Frame) { f.ARP.Op = 3 }), false},
		{"block on em0 arp", In, arp(func(f *Frame) { f.ARP.Hardware = 6 }), true},
		{"block on em0 arp", In, arp(func(f *Frame) { f.ARP.Protocol = 0x86dd }), false},
		{"block on em0 arp", In, arp(func(f *Frame) { f.ARP.HLen = 8 }), false},
		{"block on em0 arp", In, arp(func(f *Frame) { f.ARP.PLen = 16 }), false},
		{"block on em0 arp request", In, request, true},
		{"block on em0 arp request", In, reply, false},
		{"block on em0 arp reply", In, reply, true},
		{"block on em0 arp reply", In, request, false},
		{"block on em0 rarp", In, revRequest, true},
		{"block on em0 rarp", In, revReply, true},
		{"block on em0 rarp", In, request, false},
		{"block on em0 rarp", In, arp(func(f *Frame) { f.ARP.Op = 3 }), false},
		{"block on em0 rarp request", In, revRequest, true},
		{"block on em0 rarp request", In, revReply, false},
		{"block on em0 rarp reply", In, revReply, true},
		{"block on em0 rarp reply", In, revRequest, false},
		{"block on em0 arp sha 02:00:00:00:00:01", In, request, true},
		{"block on em0 arp sha 02:00:00:00:00:02", In, request, false},
		{"block on em0 arp tha 02:00:00:00:00:02", In, request, true},
		{"block on em0 arp tha 02:00:00:00:00:01", In, request, false},
		{"block on em0 arp spa 192.0.2.1", In, request, true},
		{"block on em0 arp spa 192.0.2.2", In, request, false},
		{"block on em0 arp tpa 192.0.2.2", In, request, true},
		{"block on em0 arp tpa 192.0.2.1", In, request, false},
		{"block on em0 rarp tpa 192.0.2.2", In, revReply, true},
		{"block on em0 src 02:00:00:00:00:02 arp", In, request, false},
	}
	for _, test := range tests {
		r := parsed(t, test.rule)
		if got := Match([]Rule{r}, test.dir, test.f) == 0; got != test.want {
			t.Errorf("%q matches %+v with %+v going %s: %v, want %v", r, test.f, test.f.ARP, test.dir, got, test.want)
		}
		if got := lookup(Compile([]Rule{r}), test.dir, test.f) == 0; got != test.want {
			t.Errorf("%q is found for %+v with %+v going %s: %v, want %v", r, test.f, test.f.ARP, test.dir, got, test.want)
		}
	}
}

func TestFirstMatch(t *testing.T) {
	rules := []Rule{
		parsed(t, "block in on em0 src 02:00:00:00:00:01"),
		parsed(t, "pass on em0 src 02:00:00:00:00:01"),
		parsed(t, "block on em0"),
	}
	f := Frame{Port: "em0", Src: MAC{2, 0, 0, 0, 0, 1}}
	other := Frame{Port: "em0", Src: MAC{2, 0, 0, 0, 0, 2}}
	for i, got := range []int{Match(rules, In, f), Match(rules, Out, f), Match(rules, In, other), Match(nil, In, f)} {
		if want := []int{0, 1, 2, -1}[i]; got != want {
			t.Errorf("the rule of frame %d is %d, want %d", i, got, want)
		}
	}
}
