// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"testing"
	"time"

	"github.com/cilium/ebpf"
)

// BenchmarkFrame measures the cost in the tcx program of a frame whose decision is
// remembered, in nanoseconds: without features, and with some. Each figure is the best
// of many short runs, because other programs take time, too.
func BenchmarkFrame(b *testing.B) {
	vlans := []membership{access(10), access(10)}
	for _, bb := range []struct {
		name string
		make func() *bench
	}{
		{"plain", func() *bench { return newBench(b, 2, allXDP) }},
		{"isolated", func() *bench {
			return newBench(b, 3, allXDP, func(_ *Config, p []*Port) { p[1].Domains, p[2].Domains = 2, 2 })
		}},
		{"vlans", func() *bench { return newVLANBench(b, vlans, allXDP) }},
		{"vlans, non-IP, storm, limit", func() *bench {
			return newVLANBench(b, vlans, allXDP, func(_ *Config, p []*Port) {
				p[0].Flags |= PortBlockNonIP | PortLimitDrop
				p[0].FdbMax = 1000
				storm{1000, false}.set(p[0], StormBroadcast)
			})
		}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s := bb.make()
			for i := range 2 {
				s.tcx(i, from(i))
			}
			const frames = 5000
			opts := ebpf.RunOptions{Data: unicast(1, 0), Context: &skbContext{Ifindex: s.rack.near[0]}, Repeat: frames}
			best := time.Duration(1 << 62)
			for n := 0; n < b.N; n += frames {
				err := s.rack.do(func() error {
					start := time.Now()
					_, err := s.gen.program(hookTCX).Run(&opts)
					best = min(best, time.Since(start))
					return err
				})
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(best)/frames, "ns/frame")
			b.ReportMetric(0, "ns/op")
		})
	}
}
