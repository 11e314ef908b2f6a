// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"slices"
	"testing"

	"github.com/cilium/ebpf/asm"
)

// The facts about a ruleset are in no instruction, and no instruction reads them among the constants.
func TestRulesetFields(t *testing.T) {
	made := func(c *Config) (all map[string]asm.Instructions, reads int) {
		o, err := readObject(_KernelBytes)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.setIn(o.spec); err != nil {
			t.Fatal(err)
		}
		l := o.linker(c)
		all = map[string]asm.Instructions{}
		for name := range o.spec.Programs {
			code, err := l.functions(name, uint64(kernelFeatureFEATURE_END-1))
			if err != nil {
				t.Fatal(err)
			}
			all[name] = slices.Concat(code...)
			for i := range all[name] {
				if all[name][i].Reference() == rulesetMap {
					reads++
				}
			}
		}
		return all, reads
	}
	some := newConfig(sharedRack(t), 2, func(c *Config, _ []*Port) {
		c.Pf.Buckets, c.Pf.Dims, c.Pf.Asks = 7, 1<<8-1, 1<<9-1
		c.Pf.Rules, c.Pf.Groups, c.Pf.Ruleset, c.Pf.EtherRules = 1, 1, 1, 1
	})
	others := some
	others.Pf.Rules, others.Pf.Groups, others.Pf.Ruleset, others.Pf.EtherRules = 12345, 3, 0x7654, 0
	if compiledIn(&some.kernelConfig) != compiledIn(&others.kernelConfig) {
		t.Error("the facts are a part of what is compiled in")
	}
	is, reads := made(&some)
	if reads == 0 {
		t.Fatal("no program reads the ruleset's map")
	}
	have, _ := made(&others)
	for name, code := range is {
		alike := func(a, b asm.Instruction) bool { return bare(&a) == bare(&b) && a.Reference() == b.Reference() }
		if !slices.EqualFunc(code, have[name], alike) {
			t.Errorf("program %s is another one for another ruleset", name)
		}
	}
	fields := map[int16]bool{}
	o, err := readObject(_KernelBytes)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range o.moved() {
		fields[int16(f.from)] = true
	}
	for name, code := range is {
		from := map[asm.Register]bool{} // the registers that had the address of the constants last
		for i := range code {
			ins := &code[i]
			switch class := ins.OpCode.Class(); {
			case ins.IsLoadFromMap():
				from[ins.Dst] = ins.Reference() == configMap
			case class == asm.LdXClass && from[ins.Src] && fields[ins.Offset]:
				t.Errorf("%s: instruction %d reads the ruleset among the constants: %v", name, i, ins)
			case class == asm.StXClass && ins.OpCode.Size() == asm.DWord && from[ins.Src] && ins.OpCode.Mode() == asm.MemMode:
				t.Errorf("%s: instruction %d puts the address of the constants elsewhere: %v", name, i, ins)
			case class == asm.LdXClass || class.IsALU():
				if ins.OpCode.ALUOp() == asm.Mov && class == asm.ALU64Class && ins.OpCode.Source() == asm.RegSource {
					from[ins.Dst] = from[ins.Src]
				} else {
					delete(from, ins.Dst)
				}
			case ins.OpCode.JumpOp() == asm.Call:
				for r := asm.R0; r <= asm.R5; r++ {
					delete(from, r)
				}
			}
		}
	}
}
