// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"slices"
	"testing"
)

// frontLayers is FRONT_LAYERS of bpf/front.h.
const frontLayers = 8

// fronts returns the frame with n layers before its packet, in several ways: receivers
// look behind each of them, or behind some.
func fronts(frame []byte, n int) map[string][]byte {
	mixed := make([]tag, n)
	for i := range mixed {
		mixed[i].tpid = []uint16{typeVLAN, typeQinQ, 0x9100, 0x9200}[i%4]
	}
	snaps := frame
	for range n {
		snaps = snapped(snaps)
	}
	behind := frame
	for i := range n {
		if i%2 == 0 {
			behind = snapped(behind)
		} else {
			behind = retagged(behind, tag{tpid: typeVLAN})
		}
	}
	return map[string][]byte{
		"priority tags": retagged(frame, priorityTags(n)...),
		"mixed tags":    retagged(frame, mixed...),
		"service tags":  retagged(frame, slices.Repeat([]tag{{tpid: typeQinQ}}, n)...),
		"SNAP":          snaps,
		"SNAP and tags": behind,
	}
}

// With any number of layers before a packet, a filter judges the packet, or drops it if it
// cannot find it. Bridges without a filter forward it.
func TestFront(t *testing.T) {
	pf := func(action kernelPfAction) func(t *testing.T) *bench {
		return func(t *testing.T) *bench { return newPFBench(t, []kernelPfRule{{Action: action, End: 1}}).bench }
	}
	ether := func(change func(*kernelPfEther)) func(t *testing.T) *bench {
		return func(t *testing.T) *bench {
			s := newBench(t, 3, etherRules(1))
			r := kernelPfEther{Action: uint32(kernelPfActionPF_BLOCK), Flags: etherIn}
			change(&r)
			putAll(s, kernelMapPfEthers, r)
			return s
		}
	}
	rules := func(text string) func(t *testing.T) *bench {
		return func(t *testing.T) *bench { return newRuleBench(t, parseRules(t, text)) }
	}
	guard := func(change ...func(*Config, []*Port)) func(t *testing.T) *bench {
		return func(t *testing.T) *bench { return newBench(t, 3, append(change, allXDP)...) }
	}
	nonIP := func(_ *Config, p []*Port) { p[0].Flags |= PortBlockNonIP }
	src, dst := station(1), station(2)
	packet := func(proto byte, payload []byte) []byte {
		return join(dst[:], src[:], be16(typeIP4), ip4("192.0.2.1", "192.0.2.2", proto, 0, payload))
	}
	datagram := packet(protoUDP, udp(7, 7, 1, 2, 3))
	offer := packet(protoUDP, udp(67, 68, bootp(dst)...))
	request := join(dst[:], src[:], be16(typeARP), arp(arpRequest, src, "192.0.2.1", none, "192.0.2.2"))
	advert := join(dst[:], src[:], be16(typeIP6), ip6("fe80::1", "fe80::2", protoICMP6, icmp6(icmpRA, make([]byte, 12))))

	for _, tt := range []struct {
		name   string
		make   func(t *testing.T) *bench
		frame  []byte
		reason string // if the packet can be read
		deep   string // if it cannot
		odd    string // behind SNAP or a vendor's tag
	}{
		{"pf block", pf(kernelPfActionPF_BLOCK), datagram, "pf", "too-deep", "pf"},
		{"pf pass", pf(kernelPfActionPF_PASS), datagram, "", "too-deep", ""},
		{"ether of a type", ether(func(r *kernelPfEther) { r.Type = swap16(typeIP4) }), datagram, "ether", "too-deep", "ether"},
		{"ether of another type", ether(func(r *kernelPfEther) { r.Type = swap16(typeTest) }), datagram, "", "too-deep", ""},
		{"ether of an address", ether(func(r *kernelPfEther) { r.L3[0] = prefixOf("192.0.2.0/24") }), datagram, "ether", "too-deep", "ether"},
		{"ether of a MAC", ether(func(r *kernelPfEther) { r.Src, r.SrcMask = key(station(9), 0), allOnes }), datagram, "", "", ""},
		{"MAC rule of ARP", rules("block in on p0 arp spa 192.0.2.1\n"), request, "rule", "too-deep", "rule"},
		{"MAC rule of other ARP", rules("block in on p0 arp spa 192.0.2.7\n"), request, "", "too-deep", ""},
		{"MAC rule", rules("block in on p0 src 02:00:00:00:00:77\n"), request, "", "", ""},
		{"source guard", guard(sourceGuard), datagram, "spoofed", "too-deep", "spoofed"},
		{"DHCP guard", guard(dhcpGuard), offer, "dhcp-guard", "too-deep", "dhcp-guard"},
		{"RA guard", guard(raGuard), advert, "ra-guard", "too-deep", "ra-guard"},
		{"IP alone", guard(nonIP), datagram, "", "too-deep", "non-ip"},
		{"questions answered", guard(suppress), request, "", "", ""},
		{"nothing", guard(), datagram, "", "", ""},
	} {
		s := tt.make(t)
		for n := range frontLayers + 5 {
			for kind, frame := range fronts(tt.frame, n) {
				want := tt.reason
				switch {
				case n > frontLayers:
					want = tt.deep
				case n > 0 && (kind == "SNAP" || kind == "SNAP and tags" || kind == "mixed tags" && n > 2):
					want = tt.odd
				}
				s.at(benchNow)
				name := fmt.Sprintf("%s: %d, %s", tt.name, n, kind)
				got := s.tcx(0, frame)
				if want != "" {
					expect(t, name, got, dropped(want))
				} else if got.Verdict == drop {
					t.Errorf("%s: %s, want it forwarded", name, got)
				}
				if got := s.xdp(0, frame); got.Verdict == redirect && want != "" || len(got.Drops) > 0 {
					t.Errorf("%s by XDP: %s, want it left to tcx", name, got)
				}
			}
		}
	}
}

// A decision that was remembered for an IP packet does not apply to a frame of another
// type, with any number of layers before both.
func TestFrontRemembered(t *testing.T) {
	s := newBench(t, 3, func(_ *Config, p []*Port) { p[0].Flags |= PortBlockNonIP }, allXDP)
	src, dst := station(1), station(2)
	datagram := join(dst[:], src[:], be16(typeIP4), ip4("192.0.2.1", "192.0.2.2", protoUDP, 0, udp(7, 7, 1, 2, 3)))
	other := join(dst[:], src[:], be16(typeTest), make([]byte, 46))
	s.tcx(1, join(src[:], dst[:], datagram[12:])) // so that the destination is known
	for n := range frontLayers + 1 {
		for kind := range fronts(datagram, n) {
			good, bad := fronts(datagram, n)[kind], fronts(other, n)[kind]
			name := fmt.Sprintf("%d, %s", n, kind)
			for range 2 {
				s.tcx(0, good)
				expect(t, name, s.tcx(0, bad), dropped("non-ip"))
				if got := s.xdp(0, bad); got.Verdict == redirect {
					t.Errorf("%s by XDP: %s, want it left to tcx", name, got)
				}
			}
		}
	}
}
