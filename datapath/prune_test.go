// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

// TestPrune: decided jumps, unreachable code and unused results are removed, and
// nothing else.
func TestPrune(t *testing.T) {
	call := func(name string) asm.Instruction { return asm.Ja.Label(name) } // a jump by name
	for _, c := range []struct {
		name       string
		code, want asm.Instructions
	}{
		{
			"a question answered by no",
			asm.Instructions{
				asm.LoadImm(asm.R1, 0, asm.DWord),
				asm.JEq.Imm(asm.R1, 0, "off"),
				asm.Mov.Imm(asm.R0, 7),
				asm.Return(),
				asm.Mov.Imm(asm.R0, 8).WithSymbol("off"),
				asm.Return(),
			},
			asm.Instructions{asm.Mov.Imm(asm.R0, 8), asm.Return()},
		},
		{
			"an answer that is wanted twice, by a copy and inverted",
			asm.Instructions{
				asm.LoadImm(asm.R6, 1, asm.DWord),
				asm.Mov.Reg(asm.R7, asm.R6),
				asm.Xor.Imm(asm.R7, 1),
				asm.JNE.Imm(asm.R7, 0, "off"),
				asm.Mov.Reg(asm.R0, asm.R6),
				asm.Return(),
				asm.Mov.Imm(asm.R0, 8).WithSymbol("off"),
				asm.Return(),
			},
			asm.Instructions{asm.Mov.Imm(asm.R0, 1), asm.Return()},
		},
		{
			"an answer that may be another on another way",
			asm.Instructions{
				asm.LoadImm(asm.R2, 0, asm.DWord),
				asm.JEq.Imm(asm.R1, 5, "join"),
				asm.Mov.Imm(asm.R2, 1),
				asm.JEq.Imm(asm.R2, 0, "off").WithSymbol("join"),
				asm.Mov.Imm(asm.R0, 7),
				asm.Return(),
				asm.Mov.Imm(asm.R0, 8).WithSymbol("off"),
				asm.Return(),
			},
			nil, // all of it
		},
		{
			"a loop, and a jump over what goes",
			asm.Instructions{
				asm.Mov.Imm(asm.R0, 0),
				asm.Mov.Imm(asm.R2, 0),
				asm.Add.Imm(asm.R0, 1).WithSymbol("again"),
				asm.JEq.Imm(asm.R2, 0, "on"),
				asm.LoadImm(asm.R3, 1<<40, asm.DWord),
				asm.Add.Reg(asm.R0, asm.R3),
				asm.JLT.Imm(asm.R0, 5, "again").WithSymbol("on"),
				asm.Return(),
			},
			asm.Instructions{
				asm.Mov.Imm(asm.R0, 0),
				asm.Add.Imm(asm.R0, 1),
				{OpCode: asm.JLT.Op(asm.ImmSource), Dst: asm.R0, Constant: 5, Offset: -2},
				asm.Return(),
			},
		},
		{
			"constants, and what follows from them",
			asm.Instructions{
				constant(asm.R1, 1),
				asm.LoadMem(asm.R2, asm.R1, 1, asm.Half), // 0xff03
				asm.JEq.Imm(asm.R1, 0, "out"),
				asm.Add.Imm(asm.R1, 1),
				asm.LoadMem(asm.R3, asm.R1, 0, asm.Byte), // 3
				asm.LSh.Imm(asm.R3, 8),
				asm.JGT.Reg(asm.R3, asm.R2, "out"),
				asm.LoadMem(asm.R4, asm.R1, 1, asm.Word),
				asm.Mov.Reg(asm.R0, asm.R4),
				asm.LoadMem(asm.R5, asm.R1, 2, asm.DWord), // partly behind the constants
				asm.Add.Reg(asm.R0, asm.R5),
				asm.Return(),
				asm.Mov.Imm(asm.R0, 3).WithSymbol("out"),
				asm.Return(),
			},
			asm.Instructions{
				constant(asm.R1, 1),
				asm.Add.Imm(asm.R1, 1),
				asm.Mov.Imm32(asm.R0, -9985), // 0xffffd8ff
				asm.LoadMem(asm.R5, asm.R1, 2, asm.DWord),
				asm.Add.Reg(asm.R0, asm.R5),
				asm.Return(),
			},
		},
		{
			"a number of 32 bits, and one of 64",
			asm.Instructions{
				asm.LoadImm(asm.R1, 1<<40, asm.DWord),
				asm.JEq.Imm32(asm.R1, 0, "low"),
				asm.Mov.Imm(asm.R0, 1),
				asm.Return(),
				asm.JEq.Imm(asm.R1, 0, "out").WithSymbol("low"),
				asm.Mov.Imm(asm.R0, 2),
				asm.Return(),
				asm.Mov.Imm(asm.R0, 3).WithSymbol("out"),
				asm.Return(),
			},
			asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()},
		},
		{
			"functions that nothing calls any more",
			asm.Instructions{
				asm.LoadImm(asm.R2, 1, asm.DWord),
				asm.JNE.Imm(asm.R2, 0, "out"),
				asm.Call.Label("one"),
				call("out"),
				asm.Mov.Imm(asm.R0, 3).WithSymbol("out"),
				asm.Return(),
				asm.Call.Label("two").WithSymbol("one"),
				asm.Return(),
				asm.Mov.Imm(asm.R0, 4).WithSymbol("two"),
				asm.Return(),
			},
			asm.Instructions{asm.Mov.Imm(asm.R0, 3), asm.Return()},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := &ebpf.ProgramSpec{Instructions: slices.Clone(c.code)}
			prune(p, constants)
			if c.want == nil {
				c.want = c.code
			}
			if got, want := text(p.Instructions), text(c.want); got != want {
				t.Errorf("pruned:\n%s\nwant:\n%s", got, want)
			}
		})
	}
}

// constants are the constants of the tests' programs.
var constants = []byte{0, 1, 3, 0xff, 0xd8, 0xff, 0xff, 0x80}

// constant loads the address of a place in them.
func constant(r asm.Register, place uint32) asm.Instruction {
	return asm.LoadMapValue(r, 0, place).WithReference(configMap)
}

// text writes a program without its names; jumps have their distances, also those to
// names.
func text(code asm.Instructions) (s string) {
	p := newPruner(code)
	for i, ins := range code {
		if isJump(&ins) && ins.Reference() != "" {
			ins.Offset = int16(p.at[p.target(i)] - p.at[i] - 1)
		}
		ins.Metadata = asm.Metadata{}
		s += fmt.Sprintf("%v\n", ins)
	}
	return s
}

// TestPruneChangesNothing: in the kernel, random programs return the same before and
// after, and a second run removes nothing.
func TestPruneChangesNothing(t *testing.T) {
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(constants)), MaxEntries: 1, Flags: unix.BPF_F_RDONLY_PROG,
		Contents: []ebpf.MapKV{{Key: uint32(0), Value: constants}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := m.Freeze(); err != nil {
		t.Fatal(err)
	}
	returned := func(t *rapid.T, code asm.Instructions) uint32 { return returned(t, code, m) }
	rapid.Check(t, func(t *rapid.T) {
		code := randomProgram(t)
		p := &ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "BSD", Instructions: slices.Clone(code)}
		prune(p, constants)
		once := text(p.Instructions)
		if got, want := returned(t, p.Instructions), returned(t, code); got != want {
			t.Fatalf("returns %d, without pruning %d:\n%s\nunpruned:\n%s", got, want, once, text(code))
		}
		prune(p, constants)
		if again := text(p.Instructions); again != once {
			t.Fatalf("pruned once:\n%s\ntwice:\n%s", once, again)
		}
	})
}

func returned(t *rapid.T, code asm.Instructions, constants *ebpf.Map) uint32 {
	code = slices.Clone(code)
	for i := range code {
		if code[i].Reference() == configMap {
			if err := code[i].AssociateMap(constants); err != nil {
				t.Fatal(err)
			}
		}
	}
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.SchedCLS, License: "BSD", Instructions: slices.Clone(code)})
	if err != nil {
		t.Fatalf("%v:\n%s", err, text(code))
	}
	defer p.Close()
	ret, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64)})
	if err != nil {
		t.Fatal(err)
	}
	return ret
}

// randomProgram returns a program with decided tests, whose results are copied, kept on
// the stack, compared and added up, in nested branches and in functions.
func randomProgram(t *rapid.T) asm.Instructions {
	var all asm.Instructions
	functions := rapid.IntRange(1, 3).Draw(t, "functions")
	labels := 0
	register := func() asm.Register { return asm.Register(rapid.IntRange(6, 9).Draw(t, "register")) }
	for f := range functions {
		first := len(all)
		for r := asm.R6; r <= asm.R9; r++ {
			all = append(all, asm.Mov.Imm(r, int32(r)))
		}
		all[first] = all[first].WithSymbol(fmt.Sprintf("f%d", f))
		all = append(all, asm.StoreMem(asm.RFP, -8, asm.R6, asm.DWord))
		pending := ""
		add := func(ins ...asm.Instruction) {
			if pending != "" {
				ins[0] = ins[0].WithSymbol(pending)
				pending = ""
			}
			all = append(all, ins...)
		}
		var some func(depth int)
		some = func(depth int) {
			for range rapid.IntRange(1, 5).Draw(t, "steps") {
				a, b := register(), register()
				bit := int64(rapid.IntRange(0, 1).Draw(t, "bit"))
				switch rapid.IntRange(0, 11).Draw(t, "kind") {
				case 0, 1:
					add(asm.LoadImm(a, bit, asm.DWord), asm.LoadImm(a, bit, asm.DWord))
				case 2:
					add(asm.Mov.Reg(a, b))
				case 3:
					op := rapid.SampledFrom([]asm.ALUOp{asm.And, asm.Or, asm.Xor, asm.Add, asm.Sub, asm.Mul}).Draw(t, "op")
					if rapid.Bool().Draw(t, "narrow") {
						add(op.Reg32(a, b))
					} else {
						add(op.Reg(a, b))
					}
				case 4:
					op := rapid.SampledFrom([]asm.ALUOp{
						asm.And, asm.Or, asm.Xor, asm.Mov, asm.Add, asm.Sub, asm.Mul, asm.LSh, asm.RSh, asm.ArSh, asm.Div,
					}).Draw(t, "op")
					n := int32(rapid.IntRange(-3, 31).Draw(t, "number"))
					if op == asm.LSh || op == asm.RSh || op == asm.ArSh || op == asm.Div {
						n = max(n, 1)
					}
					if rapid.Bool().Draw(t, "narrow") {
						add(op.Imm32(a, n))
					} else {
						add(op.Imm(a, n))
					}
				case 8:
					size := rapid.SampledFrom([]asm.Size{asm.Byte, asm.Half, asm.Word, asm.DWord}).Draw(t, "size")
					at := rapid.IntRange(0, len(constants)/size.Sizeof()-1).Draw(t, "place") * size.Sizeof()
					begin := rapid.IntRange(0, at).Draw(t, "begin")
					add(constant(a, uint32(begin)), asm.LoadMem(a, a, int16(at-begin), size))
				case 5:
					add(asm.StoreMem(asm.RFP, -8, a, asm.DWord))
				case 6:
					add(asm.LoadMem(a, asm.RFP, -8, asm.DWord))
				case 7:
					if f+1 < functions {
						add(asm.Call.Label(fmt.Sprintf("f%d", f+1)), asm.Mov.Reg(a, asm.R0))
					}
				default:
					if depth == 0 {
						continue
					}
					labels++
					otherwise, end := fmt.Sprintf("else%d", labels), fmt.Sprintf("end%d", labels)
					op := rapid.SampledFrom([]asm.JumpOp{
						asm.JEq, asm.JNE, asm.JSet, asm.JGT, asm.JGE, asm.JLT, asm.JLE, asm.JSGT, asm.JSGE, asm.JSLT, asm.JSLE,
					}).Draw(t, "jump")
					switch narrow := rapid.Bool().Draw(t, "narrow"); {
					case rapid.Bool().Draw(t, "by register") && narrow:
						add(op.Reg32(a, b, otherwise))
					case narrow:
						add(op.Imm32(a, int32(bit), otherwise))
					case rapid.Bool().Draw(t, "by register again"):
						add(op.Reg(a, b, otherwise))
					default:
						add(op.Imm(a, int32(bit), otherwise))
					}
					some(depth - 1)
					add(asm.Ja.Label(end))
					pending = otherwise
					some(depth - 1)
					add(asm.Mov.Reg(asm.R0, asm.R6)) // for the label, if nothing was drawn
					pending = end
					add(asm.Mov.Reg(asm.R0, asm.R7))
				}
			}
		}
		some(3)
		if f+1 < functions { // the kernel refuses functions that are not called
			add(asm.Call.Label(fmt.Sprintf("f%d", f+1)), asm.Xor.Reg(asm.R9, asm.R0))
		}
		add(asm.Mov.Reg(asm.R0, asm.R6), asm.LSh.Imm(asm.R0, 3), asm.Add.Reg(asm.R0, asm.R7), asm.LSh.Imm(asm.R0, 3),
			asm.Add.Reg(asm.R0, asm.R8), asm.LSh.Imm(asm.R0, 3), asm.Add.Reg(asm.R0, asm.R9), asm.Return())
	}
	return all
}
