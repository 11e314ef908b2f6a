// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"maps"
	"math"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// The kernel replaces most look-ups in maps by instructions of its own. Each time it moves
// all instructions that follow, and searches the whole program for jumps over that place. A
// program with pf has hundreds of look-ups: this took half of the kernel's time for a load.
// So functions that few frames come to share one look-up for each map, which is a function
// by itself. Functions of bpf/ that have the tag often keep their look-ups.
const (
	oftenTag     = "often" // OFTEN of bpf/maps.h
	lookupPrefix = "look_up_"
	fewLookups   = 3 // this many look-ups in a map, or more, share one
	callFrames   = 8 // MAX_CALL_FRAMES of linux/bpf_verifier.h
)

// inlined are the types of maps whose look-ups the kernel replaces (map_gen_lookup of struct
// bpf_map_ops).
var inlined = map[ebpf.MapType]bool{
	ebpf.Array: true, ebpf.PerCPUArray: true, ebpf.Hash: true, ebpf.PerCPUHash: true, ebpf.LRUHash: true,
}

// shareLookups makes the functions of a program share look-ups. The first function is the
// program's.
func (o *object) shareLookups(p *ebpf.ProgramSpec, functions []asm.Instructions) []asm.Instructions {
	frames := framesOf(functions)
	may := func(code asm.Instructions) bool {
		if frames[code[0].Symbol()] == callFrames {
			return false
		}
		about := btf.FuncMetadata(&code[0])
		// no frame runs these
		never := p.Type == ebpf.Syscall || p.Type == ebpf.RawTracepoint
		return never || frames[code[0].Symbol()] > 1 && !slices.Contains(about.Tags, oftenTag)
	}
	sites := map[string]int{}
	for _, code := range functions {
		for _, i := range o.lookups(code) {
			if may(code) {
				sites[code[i].Reference()]++
			}
		}
	}
	maps.DeleteFunc(sites, func(_ string, n int) bool { return n < fewLookups })
	for n, code := range functions {
		list := slices.DeleteFunc(o.lookups(code), func(i int) bool { return sites[code[i].Reference()] == 0 })
		if may(code) && len(list) > 0 {
			functions[n] = callLookups(code, list)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(sites)) {
		functions = append(functions, lookupOf(name))
	}
	return functions
}

// framesOf returns the deepest frame of the stack on which each function is called.
func framesOf(functions []asm.Instructions) map[string]int {
	calls := map[string][]string{}
	for _, code := range functions {
		calls[code[0].Symbol()] = code.FunctionReferences()
	}
	frames := map[string]int{}
	var follow func(name string, n int)
	follow = func(name string, n int) {
		if n <= frames[name] || n > callFrames {
			return
		}
		frames[name] = n
		for _, called := range calls[name] {
			follow(called, n+1)
		}
	}
	follow(functions[0][0].Symbol(), 1)
	return frames
}

// lookups returns the places in a function at which the kernel would replace a look-up. Each
// is two instructions, which load the map and call the kernel.
func (o *object) lookups(code asm.Instructions) (at []int) {
	for i := range code[:len(code)-1] {
		load, call := &code[i], &code[i+1]
		if !load.IsLoadFromMap() || load.Src != asm.PseudoMapFD || load.Dst != asm.R1 || i == 0 ||
			!call.IsBuiltinCall() || call.Constant != int64(asm.FnMapLookupElem) {
			continue
		}
		if m := o.spec.Maps[load.Reference()]; m != nil && inlined[m.Type] {
			at = append(at, i)
		}
	}
	return at
}

// callLookups replaces each of the look-ups of a function by a call.
func callLookups(code asm.Instructions, list []int) asm.Instructions {
	p := newPruner(slices.Clone(code)) // other programs may use the code, too
	code = p.code
	targets := make([]bool, len(code))
	for i := range code {
		p.reached[i], p.used[i], p.branches[i] = true, true, branchNext|branchAway
		if isJump(&code[i]) {
			targets[p.target(i)] = true
		}
	}
	for _, i := range list {
		if targets[i+1] {
			continue // other jumps may bring another map
		}
		call := asm.Call.Label(lookupPrefix + code[i].Reference())
		p.used[i] = false
		code[i+1] = call
	}
	return p.kept()
}

// lookupOf makes the function that looks up in a map. It takes the key in the same register
// as the kernel's helper.
func lookupOf(name string) asm.Instructions {
	address := &btf.Pointer{Target: (*btf.Void)(nil)}
	about := &btf.Func{Name: lookupPrefix + name, Linkage: btf.StaticFunc, Type: &btf.FuncProto{
		Return: address, Params: []btf.FuncParam{{Name: "unused", Type: address}, {Name: "key", Type: address}},
	}}
	load := asm.LoadMapPtr(asm.R1, 0).WithReference(name).WithSymbol(about.Name)
	return asm.Instructions{btf.WithFuncMetadata(load, about), asm.FnMapLookupElem.Call(), asm.Return()}
}

// Linux 6.18 keeps some hundred bytes about each instruction. It copies all of them to other
// memory when it writes more instructions than there were, page by page (vrealloc in
// bpf_patch_insn_data). Instructions that it has removed leave memory for others. So large
// programs have unreachable instructions, which the kernel removes first. Without them,
// copies took a tenth of its time for a load with pf.
const fewLeft = 32 // look-ups: a program with fewer gets no room

var roomEach = 8 // instructions for each look-up: about as many as the kernel writes

// makeRoom makes one of a program's functions jump over unreachable instructions. The jump
// costs no frame anything: its condition is constant, and the kernel removes it, too.
func (o *object) makeRoom(functions []asm.Instructions) {
	n := 0
	for _, code := range functions {
		n += len(o.lookups(code))
	}
	if n < fewLeft || roomEach == 0 {
		return
	}
	n *= roomEach
	for f, code := range functions {
		// behind this instruction the verifier can prove a register's value
		known := slices.IndexFunc(code, func(ins asm.Instruction) bool { return ins.OpCode == asm.Mov.Op(asm.ImmSource) })
		if known < 0 || len(code)+n > math.MaxInt16/2 { // a jump's reach
			continue
		}
		is := code[known]
		room := slices.Repeat(asm.Instructions{asm.Mov.Imm(is.Dst, 0)}, n+1)
		room[0] = asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Dst: is.Dst, Constant: is.Constant, Offset: int16(n)}
		p := newPruner(slices.Clone(code))
		code = p.code
		for i := range code {
			if !isJump(&code[i]) {
				continue
			}
			further := 0
			switch to := p.target(i); {
			case i <= known && to > known:
				further = len(room)
			case i > known && to <= known:
				further = -len(room)
			}
			if isLong(&code[i]) {
				code[i].Constant += int64(further)
			} else {
				code[i].Offset += int16(further)
			}
		}
		functions[f] = slices.Insert(code, known+1, room...)
		return
	}
}
