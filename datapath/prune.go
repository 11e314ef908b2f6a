// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// prune takes all code out of a program that is never reached: code that answered
// questions jump over, and functions that nothing calls any more. So the program refers
// only to the maps that it uses. The kernel would take that code out, too. But each
// time it takes something out, it moves all that follows. This takes a third of the
// time of a load.
func prune(p *ebpf.ProgramSpec) {
	c := newPruner(p.Instructions)
	c.walk()
	c.keepUsed()
	p.Instructions = c.kept()
}

// A pruner finds out which instructions of a program are reached and used.
// Instructions have their index in code.
type pruner struct {
	code     asm.Instructions
	at       []int          // place of each instruction, in raw instructions
	index    []int          // index of the instruction at each such place
	symbols  map[string]int // of functions and labels
	reached  []bool
	before   []knowledge // what registers hold before each instruction that is reached
	used     []bool
	branches []branch // of jumps: the ways that are taken
}

// A branch says which ways of an instruction are taken.
type branch uint8

const (
	branchNext branch = 1 << iota
	branchAway
)

func newPruner(code asm.Instructions) *pruner {
	n := len(code)
	c := &pruner{
		code: code, at: make([]int, n), symbols: map[string]int{}, reached: make([]bool, n),
		before: make([]knowledge, n), used: make([]bool, n), branches: make([]branch, n),
	}
	for i := range code {
		c.at[i] = len(c.index)
		for range code[i].Width() {
			c.index = append(c.index, i)
		}
		if name := code[i].Symbol(); name != "" {
			c.symbols[name] = i
		}
	}
	return c
}

// knowledge has two bits for each register: that it holds 0, and that it holds 1. If
// neither is set, the register may hold anything. Answers to questions are spread by no
// more than that.
type knowledge uint32

func (k knowledge) of(r asm.Register) (value int64, known bool) {
	bits := k >> (2 * r) & 3
	return int64(bits >> 1), bits != 0
}

func (k knowledge) with(r asm.Register, value int64) knowledge {
	return k.without(r) | knowledge(1+value)<<(2*r)
}

func (k knowledge) without(r asm.Register) knowledge { return k &^ (3 << (2 * r)) }

// after returns what is known after an instruction that is no jump.
func (k knowledge) after(ins *asm.Instruction) knowledge {
	switch class := ins.OpCode.Class(); {
	case class.IsALU():
		return k.afterALU(ins)
	case ins.IsConstantLoad(asm.DWord) && (ins.Constant == 0 || ins.Constant == 1):
		return k.with(ins.Dst, ins.Constant)
	case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode: // may fetch
		return k.without(ins.Src).without(asm.R0)
	case class.IsStore():
		return k
	}
	return k.without(ins.Dst)
}

func (k knowledge) afterALU(ins *asm.Instruction) knowledge {
	value, known := ins.Constant, ins.Constant == 0 || ins.Constant == 1
	if ins.OpCode.Source() == asm.RegSource {
		value, known = k.of(ins.Src)
	}
	was, wasKnown := k.of(ins.Dst)
	switch op := ins.OpCode.ALUOp(); {
	case op == asm.Mov && known:
		return k.with(ins.Dst, value)
	case op == asm.And && (known && value == 0 || wasKnown && was == 0):
		return k.with(ins.Dst, 0)
	case !known || !wasKnown:
	case op == asm.And:
		return k.with(ins.Dst, was&value)
	case op == asm.Or:
		return k.with(ins.Dst, was|value)
	case op == asm.Xor:
		return k.with(ins.Dst, was^value)
	}
	return k.without(ins.Dst)
}

// decides returns which ways a conditional jump takes.
func (k knowledge) decides(ins *asm.Instruction) branch {
	a, known := k.of(ins.Dst)
	b := ins.Constant
	if ins.OpCode.Source() == asm.RegSource {
		var also bool
		b, also = k.of(ins.Src)
		known = known && also
	}
	taken := false
	switch ins.OpCode.JumpOp() {
	case asm.JEq:
		taken = a == b
	case asm.JNE:
		taken = a != b
	case asm.JSet:
		taken = a&b != 0
	default:
		known = false
	}
	switch {
	case !known:
		return branchNext | branchAway
	case taken:
		return branchAway
	}
	return branchNext
}

// isJump reports whether an instruction jumps within its function.
func isJump(ins *asm.Instruction) bool {
	op := ins.OpCode.JumpOp()
	return op != asm.InvalidJumpOp && op != asm.Call && op != asm.Exit
}

// isLong reports whether a jump has its distance in the place where others have a
// constant.
func isLong(ins *asm.Instruction) bool {
	return ins.OpCode.Class() == asm.Jump32Class && ins.OpCode.JumpOp() == asm.Ja
}

// target returns where a jump goes.
func (c *pruner) target(i int) int {
	ins := &c.code[i]
	distance := int64(ins.Offset)
	if isLong(ins) {
		distance = ins.Constant
	}
	if to, named := c.symbols[ins.Reference()]; named && distance == -1 {
		return to
	}
	return c.index[c.at[i]+1+int(distance)]
}

// walk follows the program from its start, and each function that it refers to from the
// function's start. It follows what is known of the registers, too.
func (c *pruner) walk() {
	var todo []int
	reach := func(i int, k knowledge) {
		if c.reached[i] {
			if k &= c.before[i]; k == c.before[i] {
				return
			}
		}
		c.reached[i], c.before[i] = true, k
		todo = append(todo, i)
	}
	reach(0, 0)
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		ins, k := &c.code[i], c.before[i]
		if ins.IsFunctionReference() {
			reach(c.symbols[ins.Reference()], 0)
		}
		switch {
		case isJump(ins):
			c.branches[i] = branchAway
			if ins.OpCode.JumpOp() != asm.Ja {
				c.branches[i] = k.decides(ins)
			}
			if c.branches[i]&branchAway != 0 {
				reach(c.target(i), k)
			}
			if c.branches[i]&branchNext != 0 {
				reach(i+1, k)
			}
		case ins.OpCode.JumpOp() == asm.Exit:
		case ins.OpCode.JumpOp() == asm.Call:
			for r := asm.R0; r <= asm.R5; r++ {
				k = k.without(r)
			}
			reach(i+1, k)
		default:
			reach(i+1, k.after(ins))
		}
	}
}

// A set of registers has a bit for each.
type registers uint16

func bit(r asm.Register) registers { return 1 << r }

const (
	callClobbers registers = 1<<asm.R0 | 1<<asm.R1 | 1<<asm.R2 | 1<<asm.R3 | 1<<asm.R4 | 1<<asm.R5
	callTakes              = callClobbers &^ (1 << asm.R0)
)

// keepUsed finds which of the reached instructions are of use. An answer is of no use
// once the jumps that ask for it are decided.
func (c *pruner) keepUsed() {
	wanted := make([]registers, len(c.code)+1) // before each instruction
	for changed := true; changed; {
		changed = false
		for i := len(c.code) - 1; i >= 0; i-- {
			if !c.reached[i] {
				continue
			}
			var after registers
			ins := &c.code[i]
			switch {
			case isJump(ins):
				if c.branches[i]&branchAway != 0 {
					after |= wanted[c.target(i)]
				}
				if c.branches[i]&branchNext != 0 {
					after |= wanted[i+1]
				}
			case ins.OpCode.JumpOp() != asm.Exit:
				after = wanted[i+1]
			}
			before, used := c.wants(i, after)
			if before != wanted[i] || used != c.used[i] {
				wanted[i], c.used[i], changed = before, used, true
			}
		}
	}
}

// wants returns which registers are wanted before an instruction, if those of after are
// wanted behind it, and whether the instruction is of use.
func (c *pruner) wants(i int, after registers) (before registers, used bool) {
	ins := &c.code[i]
	source := registers(0)
	if ins.OpCode.Source() == asm.RegSource {
		source = bit(ins.Src)
	}
	switch class := ins.OpCode.Class(); {
	case isJump(ins) && c.branches[i] == branchNext:
		return after, false
	case isJump(ins) && c.branches[i] == branchAway:
		return after, true
	case isJump(ins):
		return after | bit(ins.Dst) | source, true
	case ins.OpCode.JumpOp() == asm.Exit:
		return bit(asm.R0), true
	case ins.OpCode.JumpOp() == asm.Call:
		return after&^callClobbers | callTakes, true
	case class.IsALU():
		if after&bit(ins.Dst) == 0 {
			return after, false
		}
		if ins.OpCode.ALUOp() == asm.Mov {
			return after&^bit(ins.Dst) | source, true
		}
		return after | bit(ins.Dst) | source, true
	case class == asm.LdClass && ins.OpCode.IsDWordLoad():
		return after &^ bit(ins.Dst), after&bit(ins.Dst) != 0
	case class == asm.LdXClass:
		return after&^bit(ins.Dst) | bit(ins.Src), true
	case class == asm.StClass:
		return after | bit(ins.Dst), true
	case class == asm.StXClass && ins.OpCode.Mode() != asm.AtomicMode:
		return after | bit(ins.Dst) | bit(ins.Src), true
	}
	// an atomic operation, which may use R0, or an instruction that is not known
	return after | bit(ins.Dst) | bit(ins.Src) | bit(asm.R0), true
}

// kept returns the program of the instructions that are reached and used.
func (c *pruner) kept() asm.Instructions {
	keep := make([]bool, len(c.code))
	next := make([]int, len(c.code)+1) // next instruction that is kept, from each on
	next[len(c.code)] = len(c.code)
	for i := len(c.code) - 1; i >= 0; i-- {
		keep[i] = c.reached[i] && c.used[i]
		if keep[i] && c.branches[i] == branchAway && c.target(i) > i && next[c.target(i)] == next[i+1] {
			keep[i] = false // it jumps to the place where it would get to anyway
		}
		// the kernel wants to know where a function begins
		keep[i] = keep[i] || c.reached[i] && btf.FuncMetadata(&c.code[i]) != nil
		next[i] = next[i+1]
		if keep[i] {
			next[i] = i
		}
	}
	all := make(asm.Instructions, 0, len(c.code))
	at := make([]int, len(c.code)+1) // where each instruction is now, or the one behind it
	from := make([]int, 0, len(c.code))
	for i := range c.code {
		at[i+1] = at[i]
		if keep[i] {
			all, from = append(all, c.code[i]), append(from, i)
			at[i+1] += int(c.code[i].Width())
		}
	}
	for j, i := range from {
		ins := &all[j]
		if !isJump(ins) {
			continue
		}
		if c.branches[i] != branchNext|branchAway && !isLong(ins) {
			*ins = asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Ja)}.WithMetadata(ins.Metadata)
		}
		distance := 0 // the start of a function that is of no other use
		if c.branches[i]&branchAway != 0 {
			distance = at[c.target(i)] - at[i] - 1
		}
		if isLong(ins) {
			ins.Constant = int64(distance)
		} else {
			ins.Offset = int16(distance)
		}
	}
	return all
}
