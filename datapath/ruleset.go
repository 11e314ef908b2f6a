// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
)

// rulesetMap is a map with the facts about pf's ruleset that differ from one ruleset to the next.
// Programs read them while they run, so other rules need no other programs. In bpf/ they are
// constants like the others; the loader makes programs read them here (see pruner). The map has the
// form of struct pf_config. Each set of programs has its own, which no pin refers to.
const rulesetMap = ".data.ruleset"

// rulesetFields are these facts: their places in struct pf_config, and their sizes.
var rulesetFields = func() (list [][2]uintptr) {
	var c kernelPfConfig
	return append(list,
		[2]uintptr{unsafe.Offsetof(c.Ruleset), unsafe.Sizeof(c.Ruleset)},
		[2]uintptr{unsafe.Offsetof(c.Rules), unsafe.Sizeof(c.Rules)},
		[2]uintptr{unsafe.Offsetof(c.Groups), unsafe.Sizeof(c.Groups)},
		[2]uintptr{unsafe.Offsetof(c.EtherRules), unsafe.Sizeof(c.EtherRules)},
		[2]uintptr{unsafe.Offsetof(c.Limiters), unsafe.Sizeof(c.Limiters)})
}()

// compiledIn returns the part of a configuration that is compiled into programs.
func compiledIn(c *kernelConfig) kernelConfig {
	part := *c
	bytes := bytesOf(&part.Pf)
	for _, f := range rulesetFields {
		clear(bytes[f[0]:][:f[1]])
	}
	return part
}

// rulesetSpec is the specification of rulesetMap for a configuration.
func rulesetSpec(c *Config) *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: rulesetMap, Type: ebpf.Array, KeySize: 4, ValueSize: uint32(unsafe.Sizeof(c.Pf)), MaxEntries: 1,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: slices.Clone(bytesOf(&c.Pf))}},
	}
}

// moved returns the facts about the ruleset as fields that are not among the constants.
func (o *object) moved() (list []moved) {
	pf := int64(o.spec.Variables[kernelVarCfg].Offset) + int64(unsafe.Offsetof(kernelConfig{}.Pf))
	for _, f := range rulesetFields {
		list = append(list, moved{from: pf + int64(f[0]), size: int64(f[1]), in: rulesetMap, to: int64(f[0])})
	}
	return list
}
