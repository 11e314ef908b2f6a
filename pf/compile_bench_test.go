// SPDX-License-Identifier: BSD-2-Clause

package pf_test

import (
	"fmt"
	"net/netip"
	"testing"

	"bascule/pf"
	"bascule/pf/reference"
)

// manyRules returns rules that each have their own source and port. If wild,
// the odd ones have only a direction.
func manyRules(n int, wild bool) *pf.Ruleset {
	rs := &pf.Ruleset{}
	for i := range n {
		r := pf.Rule{Action: pf.Pass, Direction: pf.In}
		if !wild || i%2 == 0 {
			a := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
			r.Family = pf.Inet
			r.HasProto, r.Proto = true, reference.TCP
			r.Flags = pf.TCPFlags{Set: pf.SYN, Of: pf.SYN | pf.ACK}
			r.State = pf.KeepState
			r.From.Host = pf.Host{Kind: pf.Prefix, Addr: a, Bits: 32}
			r.To.Port = pf.Port{Op: pf.PortEqual, Lo: uint16(i * 13)}
		}
		rs.Rules = append(rs.Rules, r)
	}
	return rs
}

func BenchmarkCompile(b *testing.B) {
	ports, _ := compilePorts()
	for _, n := range []int{10000, pf.MaxRules} {
		for _, wild := range []bool{false, true} {
			b.Run(fmt.Sprintf("rules=%d/wild=%v", n, wild), func(b *testing.B) {
				b.ReportAllocs()
				in := pf.Input{Main: manyRules(n, wild), Ports: ports}
				for b.Loop() {
					prog, err := pf.Compile(in)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(float64(len(prog.Sets)*8+len(prog.Cells)*4), "table-bytes")
				}
			})
		}
	}
}
