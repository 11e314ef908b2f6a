// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"testing"
)

func TestSamePort(t *testing.T) {
	s := newBench(t, 3, allXDP)
	s.learn(0, 1, 2)
	for range 2 {
		expect(t, "to a neighbour", s.tcx(0, unicast(2, 1)), dropped("same-port"))
		expect(t, "to a neighbour, by XDP", s.xdp(0, unicast(2, 1)), passed)
	}
	expect(t, "to itself", s.tcx(0, unicast(1, 1)), dropped("same-port"))
	expect(t, "unknown unicast", s.tcx(0, unicast(9, 1)), sent(1, 2))
}

func TestHairpin(t *testing.T) {
	s := newBench(t, 3, allXDP, func(_ *Config, p []*Port) { p[0].Flags |= PortHairpin })
	s.learn(0, 1, 2)
	s.learn(1, 3, 4)
	for range 2 {
		expect(t, "to a neighbour", s.tcx(0, unicast(2, 1)), sent(0))
		expect(t, "to a neighbour, by XDP", s.xdp(0, unicast(2, 1)), sent(0))
	}
	expect(t, "broadcast", s.tcx(0, from(1)), sent(0, 1, 2))
	expect(t, "broadcast, by XDP", s.xdp(0, from(1)), passed)
	expect(t, "unknown unicast", s.tcx(0, unicast(9, 1)), sent(0, 1, 2))
	expect(t, "broadcast from another port", s.tcx(1, from(3)), sent(0, 2))
	expect(t, "to a neighbour on another port", s.tcx(1, unicast(4, 3)), dropped("same-port"))
}

// A frame reaches another port unless the two share a domain.
func TestProtected(t *testing.T) {
	const d1, d2, d3, d31 = 1 << 1, 1 << 2, 1 << 3, 1 << 31
	tests := []struct {
		name    string
		domains []uint32 // by port
	}{
		{"none", []uint32{0, 0, 0}},
		{"two isolated", []uint32{d1, d1, 0}},
		{"all isolated", []uint32{d1, d1, d1, d1}},
		{"one alone", []uint32{d1, 0, 0}},
		{"different", []uint32{d1, d2, d3}},
		{"chain", []uint32{d1, d1 | d2, d2, d3}},
		{"last", []uint32{d31, d31, 0}},
		{"conformance", []uint32{d1, d2, d1 | d2, d3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ports := len(tt.domains)
			s := newBench(t, ports, allXDP, func(_ *Config, p []*Port) {
				for i, d := range tt.domains {
					p[i].Domains = d
				}
			})
			for in := range ports {
				s.tcx(in, from(in))
			}
			shares := false
			for in := range ports {
				for out := range ports {
					shares = shares || in != out && tt.domains[in]&tt.domains[out] != 0
				}
			}
			for in := range ports {
				var reach []int
				for out := range ports {
					if out == in {
						continue
					}
					what := fmt.Sprintf("from port %d to %d", in, out)
					want, wantXDP := sent(out), sent(out)
					if tt.domains[in]&tt.domains[out] != 0 {
						want, wantXDP = dropped("protected"), passed
					} else {
						reach = append(reach, out)
					}
					for range 2 {
						expect(t, what, s.tcx(in, unicast(out, in)), want)
						expect(t, what+" by XDP", s.xdp(in, unicast(out, in)), wantXDP)
					}
				}
				want := sent(reach...)
				if reach == nil {
					want = dropped("no-member")
				}
				for _, dst := range []mac{broadcast, group(1), station(99)} {
					what := fmt.Sprintf("flood from port %d to %x", in, dst)
					expect(t, what, s.tcx(in, packet{dst: dst, src: station(in)}.bytes()), want)
				}
				wantXDP := passed // XDP does not choose among ports
				if len(reach) == ports-1 {
					wantXDP = want
				}
				expect(t, fmt.Sprintf("flood by XDP from port %d", in), s.xdp(in, from(in)), wantXDP)
			}
			protects := s.cfg.Features&uint64(kernelFeatureFEATURE_PROTECTED) != 0
			if protects != shares {
				t.Errorf("feature is on: %v, ports share a domain: %v", protects, shares)
			}
		})
	}
}

// Isolation does not keep a frame from the port that it came from, if that port
// hairpins.
func TestProtectedHairpin(t *testing.T) {
	s := newBench(t, 3, func(_ *Config, p []*Port) {
		p[0].Domains, p[1].Domains = 2, 2
		p[0].Flags |= PortHairpin
	})
	s.learn(0, 1, 2)
	expect(t, "to a neighbour", s.tcx(0, unicast(2, 1)), sent(0))
	expect(t, "broadcast", s.tcx(0, from(1)), sent(0, 2))
}
