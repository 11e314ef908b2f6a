// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"testing"
	"time"

	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// BenchmarkLoad measures the processor time of a load, as the minimum: other programs make
// each load take longer. It reports the tcx program's instructions as they are loaded, and
// the number of look-ups among them.
func BenchmarkLoad(b *testing.B) {
	pass := func(c *Config, _ []*Port) { // a pf.conf with pass
		c.Flags |= uint32(BridgePF)
		c.Pf.Features = uint64(kernelFeatureFEATURE_PF | kernelFeatureFEATURE_PF_RULES)
		c.Pf.Rules, c.Pf.Groups, c.Pf.Buckets = 2, 1, 4096
		c.Pf.Secret = [5]uint64{1<<63 + 1, 1<<62 + 1, 1<<61 + 1, 1<<60 + 1, 1<<59 + 1}
	}
	for _, bb := range []struct {
		name    string
		changes []func(*Config, []*Port)
	}{
		{"plain", nil},
		{"VLANs", []func(*Config, []*Port){func(c *Config, _ []*Port) { c.Flags |= uint32(BridgeVLANs) }}},
		{"pf", []func(*Config, []*Port){pass}},
		{"routed past pf", []func(*Config, []*Port){pass, routed}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			s := newShelf(b, 4)
			c := newConfig(s.rack, 4, bb.changes...)
			least := time.Hour
			for b.Loop() {
				before := processorTime(b)
				s.do(func() error {
					g, err := (&Bridge{store: s.store}).load(&c, Tables{})
					if err == nil {
						g.Close()
					}
					return err
				})
				least = min(least, processorTime(b)-before)
			}
			b.ReportMetric(float64(least.Microseconds())/1000, "ms-of-processor")
			instructions, lookups := linkedTCX(b, s, &c)
			b.ReportMetric(float64(instructions), "instructions")
			b.ReportMetric(float64(lookups), "look-ups")
		})
	}
}

// linkedTCX counts the instructions of the tcx program of a configuration, and its look-ups.
func linkedTCX(tb testing.TB, s *shelf, c *Config) (instructions, lookups int) {
	tb.Helper()
	o, err := s.store.programs(c)
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.setIn(o.spec); err != nil {
		tb.Fatal(err)
	}
	p := o.spec.Programs[kernelProgBasculeTcx]
	if err := o.linker(c).make(p, c.Features); err != nil {
		tb.Fatal(err)
	}
	for i := range p.Instructions {
		ins := &p.Instructions[i]
		instructions += int(ins.Width())
		if ins.IsBuiltinCall() && ins.Constant == int64(asm.FnMapLookupElem) {
			lookups++
		}
	}
	return instructions, lookups
}

// processorTime returns the processor time that this process has used.
func processorTime(tb testing.TB) time.Duration {
	tb.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		tb.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
