// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// filterFunction is the function of the programs that a filter replaces:
//
//	int capture_wants(struct capture_bytes *frame, u32 kept, u32 len)
//
// It gets the first kept bytes of a frame of len bytes. A result other than 0 means that the frame
// is captured.
const filterFunction = "capture_wants"

// setFilter replaces filterFunction in p with a filter in classic BPF, such as libpcap makes. size
// is the size of the buffer, in bytes.
func setFilter(p *ebpf.ProgramSpec, code []unix.SockFilter, size int) error {
	first := -1
	for i, in := range p.Instructions {
		if in.Symbol() == filterFunction {
			first = i
			break
		}
	}
	if first < 0 {
		return fmt.Errorf("program %s has no function %s", p.Name, filterFunction)
	}
	next := first + 1
	for next < len(p.Instructions) && p.Instructions[next].Symbol() == "" {
		next++
	}
	filter, err := translate(code, size)
	if err != nil {
		return err
	}
	// The metadata of the function stays: its name, type and line.
	filter[0].Metadata = p.Instructions[first].Metadata
	all := append(asm.Instructions{}, p.Instructions[:first]...)
	p.Instructions = append(append(all, filter...), p.Instructions[next:]...)
	return nil
}

// The registers of a filter. The first three are the function's arguments;
// index is classic BPF's X.
const (
	filterSpare    = asm.R0
	filterBuffer   = asm.R1
	filterCaptured = asm.R2
	filterLength   = asm.R3
	filterAccu     = asm.R4
	filterIndex    = asm.R5
)

const filterReject = filterFunction + ".reject"

// A translator makes eBPF of classic BPF. The rules are the ones of libpcap's bpf_filter(): numbers
// have 32 bits and no sign. A filter that reads beyond the captured bytes, or divides by zero,
// rejects the frame.
type translator struct {
	size int64 // of the buffer
	out  asm.Instructions
}

func translate(code []unix.SockFilter, size int) (asm.Instructions, error) {
	if size < 1 || size > math.MaxInt16 {
		return nil, fmt.Errorf("filter for a buffer of %d bytes: must be 1 to %d", size, math.MaxInt16)
	}
	t := &translator{size: int64(size)}
	t.add(
		asm.Mov.Imm(filterAccu, 0), // not a jump: setFilter replaces its metadata
		asm.Mov.Imm(filterIndex, 0),
		asm.JEq.Imm(filterBuffer, 0, filterReject), // never the case, which the verifier cannot prove
		asm.Mov.Reg32(filterCaptured, filterCaptured),
		asm.JGT.Imm(filterCaptured, int32(size), filterReject),
	)
	for slot := range usedSlots(code) {
		t.add(asm.StoreImm(asm.RFP, slotOffset(slot), 0, asm.Word))
	}
	targets := map[int]bool{}
	for i, in := range code {
		begin := len(t.out)
		if err := t.instruction(i, in, len(code), targets); err != nil {
			return nil, fmt.Errorf("filter instruction %d (code %#x): %w", i, in.Code, err)
		}
		if targets[i] {
			t.out[begin] = t.out[begin].WithSymbol(filterLabel(i))
		}
	}
	t.add(
		asm.Mov.Imm(asm.R0, 0).WithSymbol(filterReject),
		asm.Return(),
	)
	return t.out, nil
}

func (t *translator) add(list ...asm.Instruction) { t.out = append(t.out, list...) }

// filterLabel is the name of the i-th instruction of a filter.
func filterLabel(i int) string { return fmt.Sprintf("%s.%d", filterFunction, i) }

// usedSlots returns the memory cells that the code uses.
func usedSlots(code []unix.SockFilter) map[uint32]bool {
	slots := map[uint32]bool{}
	for _, in := range code {
		switch in.Code {
		case unix.BPF_ST, unix.BPF_STX, unix.BPF_LD | unix.BPF_MEM, unix.BPF_LDX | unix.BPF_MEM:
			slots[in.K%unix.BPF_MEMWORDS] = true
		}
	}
	return slots
}

// slotOffset returns the offset of a memory cell on the stack.
func slotOffset(slot uint32) int16 { return -4 * int16(slot%unix.BPF_MEMWORDS+1) }

// instruction translates one instruction, the i-th of n, and notes the targets of jumps.
func (t *translator) instruction(i int, in unix.SockFilter, n int, targets map[int]bool) error {
	class := in.Code & 0x07
	if i == n-1 && class != unix.BPF_RET {
		return fmt.Errorf("the last one does not return")
	}
	if in.Code > math.MaxUint8 {
		return fmt.Errorf("unknown")
	}
	switch class {
	case unix.BPF_LD, unix.BPF_LDX:
		return t.load(in)
	case unix.BPF_ST, unix.BPF_STX:
		from := filterAccu
		if class == unix.BPF_STX {
			from = filterIndex
		}
		if in.Code != class || in.K >= unix.BPF_MEMWORDS {
			break
		}
		t.add(asm.StoreMem(asm.RFP, slotOffset(in.K), from, asm.Word))
		return nil
	case unix.BPF_ALU:
		return t.calculate(in)
	case unix.BPF_JMP:
		return t.jump(i, in, n, targets)
	case unix.BPF_RET:
		switch in.Code {
		case unix.BPF_RET | unix.BPF_K:
			t.add(asm.Mov.Imm32(asm.R0, int32(in.K)), asm.Return())
			return nil
		case unix.BPF_RET | unix.BPF_A:
			t.add(asm.Mov.Reg32(asm.R0, filterAccu), asm.Return())
			return nil
		}
	case unix.BPF_MISC:
		switch in.Code {
		case unix.BPF_MISC | unix.BPF_TAX:
			t.add(asm.Mov.Reg32(filterIndex, filterAccu))
			return nil
		case unix.BPF_MISC | unix.BPF_TXA:
			t.add(asm.Mov.Reg32(filterAccu, filterIndex))
			return nil
		}
	}
	return fmt.Errorf("unknown")
}

// load translates the instructions that set the accumulator or the index.
func (t *translator) load(in unix.SockFilter) error {
	to := filterAccu
	if in.Code&0x07 == unix.BPF_LDX {
		to = filterIndex
	}
	size, ok := map[uint16]asm.Size{unix.BPF_W: asm.Word, unix.BPF_H: asm.Half, unix.BPF_B: asm.Byte}[in.Code&0x18]
	if !ok {
		return fmt.Errorf("unknown size")
	}
	switch mode := in.Code & 0xe0; {
	case mode == unix.BPF_IMM && size == asm.Word:
		t.add(asm.Mov.Imm32(to, int32(in.K)))
	case mode == unix.BPF_LEN && size == asm.Word:
		t.add(asm.Mov.Reg32(to, filterLength))
	case mode == unix.BPF_MEM && size == asm.Word && in.K < unix.BPF_MEMWORDS:
		t.add(asm.LoadMem(to, asm.RFP, slotOffset(in.K), asm.Word))
	case mode == unix.BPF_ABS && to == filterAccu:
		t.fixed(to, in.K, size)
	case mode == unix.BPF_IND && to == filterAccu:
		t.indexed(in.K, size)
	case mode == unix.BPF_MSH && to == filterIndex && size == asm.Byte:
		// the length of an IPv4 header
		t.fixed(to, in.K, size)
		t.add(asm.And.Imm32(to, 0x0f), asm.LSh.Imm32(to, 2))
	default:
		return fmt.Errorf("unknown mode")
	}
	return nil
}

// fixed reads size bytes of the frame at offset k.
func (t *translator) fixed(to asm.Register, k uint32, size asm.Size) {
	end := int64(k) + int64(size.Sizeof())
	if end > t.size {
		t.reject()
		return
	}
	t.add(
		asm.JLT.Imm(filterCaptured, int32(end), filterReject),
		asm.LoadMem(to, filterBuffer, int16(k), size),
	)
	t.order(to, size)
}

// indexed reads size bytes of the frame at offset k beyond the index.
func (t *translator) indexed(k uint32, size asm.Size) {
	end := int64(k) + int64(size.Sizeof())
	if end > t.size {
		t.reject()
		return
	}
	t.add(
		asm.Mov.Reg32(filterSpare, filterIndex),
		asm.Add.Imm(filterSpare, int32(end)), // 64 bits: does not wrap
		// Linux before 6.8 does not derive this bound from the next line.
		asm.JGT.Imm(filterSpare, int32(t.size), filterReject),
		asm.JGT.Reg(filterSpare, filterCaptured, filterReject),
		asm.Add.Reg(filterSpare, filterBuffer),
		asm.LoadMem(filterAccu, filterSpare, -int16(size.Sizeof()), size),
	)
	t.order(filterAccu, size)
}

// order turns bytes in network byte order into a number.
func (t *translator) order(r asm.Register, size asm.Size) {
	if size != asm.Byte {
		t.add(asm.HostTo(asm.BE, r, size))
	}
}

// reject ends the filter, by a condition that always holds. A plain jump would not do: more code
// may follow, and the verifier refuses code that no jump can reach.
func (t *translator) reject() {
	t.add(asm.JLE.Imm(filterCaptured, int32(t.size), filterReject))
}

// calculate translates arithmetic.
func (t *translator) calculate(in unix.SockFilter) error {
	if in.Code == unix.BPF_ALU|unix.BPF_NEG {
		t.add(asm.Neg.Imm32(filterAccu, 0))
		return nil
	}
	byIndex := in.Code&unix.BPF_X != 0
	op, ok := map[uint16]asm.ALUOp{
		unix.BPF_ADD: asm.Add, unix.BPF_SUB: asm.Sub, unix.BPF_MUL: asm.Mul, unix.BPF_DIV: asm.Div, unix.BPF_MOD: asm.Mod,
		unix.BPF_AND: asm.And, unix.BPF_OR: asm.Or, unix.BPF_XOR: asm.Xor, unix.BPF_LSH: asm.LSh, unix.BPF_RSH: asm.RSh,
	}[in.Code&0xf0]
	if !ok {
		return fmt.Errorf("unknown operation")
	}
	divides, shifts := op == asm.Div || op == asm.Mod, op == asm.LSh || op == asm.RSh
	switch {
	case divides && !byIndex && in.K == 0:
		t.reject()
	case shifts && !byIndex && in.K > 31:
		t.add(asm.Mov.Imm(filterAccu, 0))
	case !byIndex:
		t.add(op.Imm32(filterAccu, int32(in.K)))
	case divides:
		t.add(asm.JEq.Imm(filterIndex, 0, filterReject), op.Reg32(filterAccu, filterIndex))
	case shifts:
		// eBPF uses only the lowest bits of the index
		over := filterLabel(len(t.out)) + ".shift"
		t.add(
			asm.Mov.Reg32(filterSpare, filterAccu),
			asm.Mov.Imm(filterAccu, 0),
			asm.JGT.Imm(filterIndex, 31, over),
			op.Reg32(filterSpare, filterIndex),
			asm.Mov.Reg32(filterAccu, filterSpare),
			asm.Mov.Imm(filterSpare, 0).WithSymbol(over),
		)
	default:
		t.add(op.Reg32(filterAccu, filterIndex))
	}
	return nil
}

// jump translates jumps, which only go forward.
func (t *translator) jump(i int, in unix.SockFilter, n int, targets map[int]bool) error {
	to := func(distance uint32) (string, error) {
		target := int64(i) + 1 + int64(distance)
		if target >= int64(n) {
			return "", fmt.Errorf("jumps out of the filter")
		}
		targets[int(target)] = true
		return filterLabel(int(target)), nil
	}
	if in.Code == unix.BPF_JMP|unix.BPF_JA {
		label, err := to(in.K)
		t.add(asm.Ja.Label(label))
		return err
	}
	op, ok := map[uint16]asm.JumpOp{
		unix.BPF_JEQ: asm.JEq, unix.BPF_JGT: asm.JGT, unix.BPF_JGE: asm.JGE, unix.BPF_JSET: asm.JSet,
	}[in.Code&0xf0]
	if !ok {
		return fmt.Errorf("unknown condition")
	}
	yes, err := to(uint32(in.Jt))
	if err != nil {
		return err
	}
	if in.Code&unix.BPF_X != 0 {
		t.add(op.Reg32(filterAccu, filterIndex, yes))
	} else {
		t.add(op.Imm32(filterAccu, int32(in.K), yes))
	}
	if in.Jf > 0 {
		no, err := to(uint32(in.Jf))
		t.add(asm.Ja.Label(no))
		return err
	}
	return nil
}
