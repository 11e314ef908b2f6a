// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// prune removes unreachable code from a program: code that decided tests jump over, and
// functions that are no longer called. So the program refers only to the maps that it
// uses. Constants, from the map configMap, are written into the instructions that read
// them. The kernel would remove that code, too. But at each removal it moves all
// instructions that follow. This takes a third of the time of a load.
func prune(p *ebpf.ProgramSpec, constants []byte) {
	c := newPruner(nil)
	c.constants = constants
	p.Instructions = c.prune(p.Instructions)
}

func (c *pruner) prune(code asm.Instructions) asm.Instructions {
	c.begin(code)
	c.walk()
	c.settle()
	c.keepUsed()
	return c.kept()
}

// A pruner finds the instructions of a program that are reached and used. Instructions
// are identified by their index in code.
type pruner struct {
	code      asm.Instructions
	constants []byte
	moved     []moved                 // fields among the constants that are none
	sources   map[int]asm.Instruction // for loads of these: the load of the field's address
	at        []int                   // place of each instruction, in raw instructions
	index     []int                   // index of the instruction at each such place
	symbols   map[string]int          // of functions and labels
	reached   []bool
	before    []knowledge // known registers before each reached instruction
	used      []bool
	branches  []branch // for jumps: the ways that are taken
}

// A branch is a set of the ways of an instruction that are taken.
type branch uint8

const (
	branchNext branch = 1 << iota
	branchAway
)

func newPruner(code asm.Instructions) *pruner {
	c := &pruner{symbols: map[string]int{}, sources: map[int]asm.Instruction{}}
	c.begin(code)
	return c
}

// begin prepares the pruner for other code. It reuses its memory.
func (c *pruner) begin(code asm.Instructions) {
	n := len(code)
	c.code, c.index, c.at = code, c.index[:0], emptied(c.at, n)
	c.reached, c.before = emptied(c.reached, n), emptied(c.before, n)
	c.used, c.branches = emptied(c.used, n), emptied(c.branches, n)
	clear(c.symbols)
	clear(c.sources)
	for i := range code {
		c.at[i] = len(c.index)
		for range code[i].Width() {
			c.index = append(c.index, i)
		}
		if name := code[i].Symbol(); name != "" {
			c.symbols[name] = i
		}
	}
}

// emptied returns a slice of n zero elements, in the same memory if that is large
// enough.
func emptied[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	s = s[:n]
	clear(s)
	return s
}

// Knowledge has the known contents of registers.
type knowledge struct {
	numbers   registers // these hold a number
	constants registers // these hold the address of a place in the constants
	addresses registers // these hold an address, which is not 0
	value     [11]int64 // the number, or the place
}

func (k *knowledge) number(r asm.Register) (value int64, known bool) {
	return k.value[r], k.numbers&bit(r) != 0
}

func (k *knowledge) forget(r asm.Register) {
	k.numbers, k.constants, k.addresses = k.numbers&^bit(r), k.constants&^bit(r), k.addresses&^bit(r)
	k.value[r] = 0
}

func (k *knowledge) set(r asm.Register, number int64) {
	k.forget(r)
	k.numbers, k.value[r] = k.numbers|bit(r), number
}

func (k *knowledge) point(r asm.Register, place int64) {
	k.forget(r)
	k.constants, k.value[r] = k.constants|bit(r), place
}

func (k *knowledge) copy(to, from asm.Register) {
	was := *k
	k.forget(to)
	for _, set := range []struct{ to, from *registers }{
		{&k.numbers, &was.numbers}, {&k.constants, &was.constants}, {&k.addresses, &was.addresses},
	} {
		if *set.from&bit(from) != 0 {
			*set.to |= bit(to)
		}
	}
	k.value[to] = was.value[from]
}

// and returns the knowledge that both have in common.
func (k *knowledge) and(other *knowledge) (both knowledge) {
	both.addresses = k.addresses & other.addresses
	for r := range k.value {
		of := bit(asm.Register(r))
		if k.value[r] == other.value[r] {
			both.numbers |= k.numbers & other.numbers & of
			both.constants |= k.constants & other.constants & of
		}
		if (both.numbers|both.constants)&of != 0 {
			both.value[r] = k.value[r]
		}
	}
	return both
}

// pass changes the knowledge before an instruction, which is not a jump, to the
// knowledge after it.
func (c *pruner) pass(k *knowledge, ins *asm.Instruction) {
	switch class := ins.OpCode.Class(); {
	case class.IsALU():
		k.calculate(ins)
	case ins.IsConstantLoad(asm.DWord):
		k.set(ins.Dst, ins.Constant)
	case ins.IsLoadFromMap() && ins.Src == asm.PseudoMapValue && ins.Reference() == configMap:
		k.point(ins.Dst, ins.Constant>>32)
	case ins.IsLoadFromMap():
		k.forget(ins.Dst)
		k.addresses |= bit(ins.Dst)
	case class == asm.LdXClass && k.constants&bit(ins.Src) != 0 && ins.OpCode.Mode() == asm.MemMode:
		place, size := k.value[ins.Src]+int64(ins.Offset), ins.OpCode.Size().Sizeof()
		value, there := c.constant(place, size)
		k.forget(ins.Dst)
		if there && c.movedFrom(place, size) == nil {
			k.set(ins.Dst, value)
		}
	case class == asm.StXClass && ins.OpCode.Mode() == asm.AtomicMode: // may fetch
		k.forget(ins.Src)
		k.forget(asm.R0)
	case class.IsStore():
	default:
		k.forget(ins.Dst)
	}
}

// moved is a field that the code reads among the constants, and that is in another map.
type moved struct {
	from, size int64  // its place among the constants
	in         string // the map
	to         int64  // its place there
}

// movedFrom returns the moved field that has the bytes at an offset in the constants, nil if none
// has them.
func (c *pruner) movedFrom(place int64, size int) *moved {
	for i := range c.moved {
		if f := &c.moved[i]; place >= f.from && place+int64(size) <= f.from+f.size {
			return f
		}
	}
	return nil
}

// constant returns the number at an offset in the constants.
func (c *pruner) constant(place int64, size int) (value int64, there bool) {
	if place < 0 || place+int64(size) > int64(len(c.constants)) {
		return 0, false
	}
	for i, b := range c.constants[place : place+int64(size)] {
		value |= int64(b) << (8 * i)
	}
	return value, true
}

// calculate applies an arithmetic instruction.
func (k *knowledge) calculate(ins *asm.Instruction) {
	op, narrow := ins.OpCode.ALUOp(), ins.OpCode.Class() == asm.ALUClass
	a, aKnown := k.number(ins.Dst)
	b, bKnown := ins.Constant, true
	if ins.OpCode.Source() == asm.RegSource {
		b, bKnown = k.number(ins.Src)
		if op == asm.Mov && !narrow {
			k.copy(ins.Dst, ins.Src)
			return
		}
	}
	if op == asm.Add && !narrow && bKnown && k.constants&bit(ins.Dst) != 0 {
		k.point(ins.Dst, k.value[ins.Dst]+b)
		return
	}
	if narrow {
		a, b = int64(uint32(a)), int64(uint32(b))
	}
	bits := uint64(63)
	if narrow {
		bits = 31
	}
	known := aKnown && bKnown
	switch op {
	case asm.Mov:
		a, known = b, bKnown
	case asm.And:
		known = known || aKnown && a == 0 || bKnown && b == 0
		a &= b
	case asm.Or:
		a |= b
	case asm.Xor:
		a ^= b
	case asm.Add:
		a += b
	case asm.Sub:
		a -= b
	case asm.Mul:
		a *= b
	case asm.LSh:
		a <<= uint64(b) & bits
	case asm.RSh:
		a = int64(uint64(a) >> (uint64(b) & bits))
	default:
		known = false
	}
	if narrow {
		a = int64(uint32(a))
	}
	k.forget(ins.Dst)
	if known {
		k.set(ins.Dst, a)
	}
}

// decides returns the ways that a conditional jump takes.
func (k *knowledge) decides(ins *asm.Instruction) branch {
	a, aKnown := k.number(ins.Dst)
	b, bKnown := ins.Constant, true
	if ins.OpCode.Source() == asm.RegSource {
		b, bKnown = k.number(ins.Src)
	}
	op := ins.OpCode.JumpOp()
	if (k.constants|k.addresses)&bit(ins.Dst) != 0 && bKnown && b == 0 && ins.OpCode.Class() == asm.JumpClass {
		a, aKnown = 1, op == asm.JEq || op == asm.JNE // an address
	}
	if !aKnown || !bKnown {
		return branchNext | branchAway
	}
	less := a < b
	if ins.OpCode.Class() == asm.Jump32Class {
		less = int32(a) < int32(b)
		a, b = int64(uint32(a)), int64(uint32(b))
	}
	taken := false
	switch op {
	case asm.JEq:
		taken = a == b
	case asm.JNE:
		taken = a != b
	case asm.JSet:
		taken = a&b != 0
	case asm.JGT:
		taken = uint64(a) > uint64(b)
	case asm.JGE:
		taken = uint64(a) >= uint64(b)
	case asm.JLT:
		taken = uint64(a) < uint64(b)
	case asm.JLE:
		taken = uint64(a) <= uint64(b)
	case asm.JSLT:
		taken = less
	case asm.JSGE:
		taken = !less
	case asm.JSLE:
		taken = less || a == b
	case asm.JSGT:
		taken = !less && a != b
	default:
		return branchNext | branchAway
	}
	if taken {
		return branchAway
	}
	return branchNext
}

// isJump reports whether an instruction jumps within its function.
func isJump(ins *asm.Instruction) bool {
	op := ins.OpCode.JumpOp()
	return op != asm.InvalidJumpOp && op != asm.Call && op != asm.Exit
}

// isLong reports whether a jump has its distance in the constant's field.
func isLong(ins *asm.Instruction) bool {
	return ins.OpCode.Class() == asm.Jump32Class && ins.OpCode.JumpOp() == asm.Ja
}

// target returns the target of a jump.
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
// function's start, together with the knowledge of registers.
func (c *pruner) walk() {
	var todo []int
	reach := func(i int, k *knowledge) {
		if c.reached[i] {
			if c.before[i] == *k {
				return
			}
			both := c.before[i].and(k)
			if both == c.before[i] {
				return
			}
			c.before[i] = both
		} else {
			c.reached[i], c.before[i] = true, *k
		}
		todo = append(todo, i)
	}
	reach(0, &knowledge{})
	for len(todo) > 0 {
		i := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		ins, k := &c.code[i], c.before[i]
		if ins.IsFunctionReference() {
			reach(c.symbols[ins.Reference()], &knowledge{})
		}
		switch {
		case isJump(ins):
			c.branches[i] = branchAway
			if ins.OpCode.JumpOp() != asm.Ja {
				c.branches[i] = k.decides(ins)
			}
			if c.branches[i]&branchAway != 0 {
				reach(c.target(i), &k)
			}
			if c.branches[i]&branchNext != 0 {
				reach(i+1, &k)
			}
		case ins.OpCode.JumpOp() == asm.Exit:
		case ins.OpCode.JumpOp() == asm.Call:
			for r := asm.R0; r <= asm.R5; r++ {
				k.forget(r)
			}
			reach(i+1, &k)
		default:
			c.pass(&k, ins)
			reach(i+1, &k)
		}
	}
}

// settle replaces an instruction that can have no other result by a load of the number,
// if there is room for the number. It makes loads of moved fields read them where they are.
func (c *pruner) settle() {
	for i := range c.code {
		ins := &c.code[i]
		class := ins.OpCode.Class()
		if !c.reached[i] || !class.IsALU() && class != asm.LdXClass {
			continue
		}
		k := c.before[i]
		if class == asm.LdXClass && k.constants&bit(ins.Src) != 0 {
			place := k.value[ins.Src] + int64(ins.Offset)
			if f := c.movedFrom(place, ins.OpCode.Size().Sizeof()); f != nil {
				c.sources[i] = asm.LoadMapValue(ins.Dst, 0, uint32(f.to+place-f.from)).WithReference(f.in)
				ins.Src, ins.Offset = ins.Dst, 0
				continue
			}
		}
		c.pass(&k, ins)
		value, known := k.number(ins.Dst)
		switch {
		case !known:
		case int64(int32(value)) == value:
			*ins = asm.Mov.Imm(ins.Dst, int32(value)).WithMetadata(ins.Metadata)
		case int64(uint32(value)) == value:
			*ins = asm.Mov.Imm32(ins.Dst, int32(value)).WithMetadata(ins.Metadata)
		}
	}
}

// A registers is a set of registers, with a bit for each.
type registers uint16

func bit(r asm.Register) registers { return 1 << r }

const (
	callClobbers registers = 1<<asm.R0 | 1<<asm.R1 | 1<<asm.R2 | 1<<asm.R3 | 1<<asm.R4 | 1<<asm.R5
	callTakes              = callClobbers &^ (1 << asm.R0)
)

// keepUsed finds which of the reached instructions are used. The result of a test is
// unused once the jumps that depend on it are decided.
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

// wants returns the registers whose values are needed before an instruction, if those
// in after are needed behind it, and whether the instruction is used.
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
	case class == asm.LdXClass && c.sources[i].OpCode != 0:
		return after &^ bit(ins.Dst), true
	case class == asm.LdXClass:
		return after&^bit(ins.Dst) | bit(ins.Src), true
	case class == asm.StClass:
		return after | bit(ins.Dst), true
	case class == asm.StXClass && ins.OpCode.Mode() != asm.AtomicMode:
		return after | bit(ins.Dst) | bit(ins.Src), true
	}
	// an atomic operation, which may use R0, or an unknown instruction
	return after | bit(ins.Dst) | bit(ins.Src) | bit(asm.R0), true
}

// kept returns a program of the instructions that are reached and used.
func (c *pruner) kept() asm.Instructions {
	keep := make([]bool, len(c.code))
	next := make([]int, len(c.code)+1) // next kept instruction, from each on
	next[len(c.code)] = len(c.code)
	for i := len(c.code) - 1; i >= 0; i-- {
		keep[i] = c.reached[i] && c.used[i]
		if keep[i] && c.branches[i] == branchAway && c.target(i) > i && next[c.target(i)] == next[i+1] {
			keep[i] = false // it jumps to the next kept instruction
		}
		// the kernel requires the information about the start of a function
		keep[i] = keep[i] || c.reached[i] && btf.FuncMetadata(&c.code[i]) != nil
		next[i] = next[i+1]
		if keep[i] {
			next[i] = i
		}
	}
	all := make(asm.Instructions, 0, len(c.code))
	at := make([]int, len(c.code)+1) // new place of each instruction, or of the next kept one
	from := make([]int, 0, len(c.code))
	for i := range c.code {
		at[i+1] = at[i]
		if source := c.sources[i]; keep[i] && source.OpCode != 0 {
			all, from = append(all, source), append(from, i)
			at[i+1] += int(source.Width())
		}
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
		distance := 0 // the start of a function that has no other use
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
