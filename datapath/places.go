// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// findPlaces fills in where the kernel keeps values that no helper of programs
// tells, as far as the features of c ask for it. The kernel's own description
// of its types says where; the places differ between kernels. A bridge keeps
// them, as reading that takes time.
func findPlaces(c *Config) error {
	for _, ask := range []struct {
		features kernelFeature
		known    bool
		what     string
		find     func(*Config, *btf.Spec) error
	}{
		{kernelFeatureFEATURE_BACKUP, c.DeviceState != 0, "a backup port needs to know where this kernel has a device's carrier", findCarrier},
		{kernelFeatureFEATURES_JUDGE, c.Skb.Cast != 0, "a filter needs to know where this kernel has a frame's checksum", findChecksum},
	} {
		if kernelFeature(c.Features)&ask.features == 0 || ask.known {
			continue
		}
		kernel, err := btf.LoadKernelSpec()
		if err != nil {
			return fmt.Errorf("%s, which it does not describe (CONFIG_DEBUG_INFO_BTF): %w", ask.what, err)
		}
		if err := ask.find(c, kernel); errors.As(err, new(*MissingError)) {
			return err
		} else if err != nil {
			return fmt.Errorf("%s: %w", ask.what, err)
		}
	}
	// answers for stations do without, where it cannot be told
	if kernelFeature(c.Features)&kernelFeatureFEATURE_SUPPRESS != 0 && c.DeviceState == 0 && !readsRefused() {
		if kernel, err := btf.LoadKernelSpec(); err != nil || findCarrier(c, kernel) != nil {
			c.DeviceAt, c.DeviceState = 0, 0
		}
	}
	return nil
}

// readsRefused reports whether programs may not read the kernel's memory
// (kernel_lockdown(7)).
func readsRefused() bool {
	text, err := os.ReadFile("/sys/kernel/security/lockdown")
	return err == nil && strings.Contains(string(text), "[confidentiality]")
}

// findCarrier fills in where the kernel has whether a device has a carrier.
func findCarrier(c *Config, kernel *btf.Spec) error {
	var cell, device *btf.Struct
	if err := errors.Join(kernel.TypeByName("bpf_dtab_netdev", &cell), kernel.TypeByName("net_device", &device)); err != nil {
		return err
	}
	dev, err1 := offsetIn(cell, "dev")
	val, err2 := offsetIn(cell, "val")
	state, err3 := offsetIn(device, "state")
	c.DeviceAt, c.DeviceState = int32(dev)-int32(val), state
	return errors.Join(err1, err2, err3)
}

// castFunction is the kernel's function by which a filter gets at the state of a
// frame's checksum. It is no helper: BTF alone knows it.
const castFunction = "bpf_cast_to_kern_ctx"

// findChecksum fills in where the kernel has the state of a frame's checksum.
func findChecksum(c *Config, kernel *btf.Spec) error {
	var cast *btf.Func
	var skb *btf.Struct
	if err := kernel.TypeByName(castFunction, &cast); errors.Is(err, btf.ErrNotFound) {
		return missing(running().release, err, [2]string{castFunction + "()", "a filter"})
	} else if err != nil {
		return err
	}
	if err := kernel.TypeByName("sk_buff", &skb); err != nil {
		return err
	}
	summed, ok := member(skb.Members, "ip_summed")
	if !ok || summed.BitfieldSize != 2 || summed.Offset%8 == 7 {
		return errors.New("sk_buff has its ip_summed where no other kernel has it")
	}
	id, err := kernel.TypeID(cast)
	errs := []error{err}
	at := kernelSkbPlaces{Cast: uint32(id), Summed: summed.Offset.Bytes(), SummedShift: uint32(summed.Offset % 8)}
	for name, to := range map[string]*uint32{"head": &at.Head, "data": &at.Data, "csum_start": &at.CsumStart, "csum_offset": &at.CsumOffset} {
		*to, err = offsetIn(skb, name)
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	c.Skb = at
	return nil
}

// offsetIn returns how many bytes after the beginning of a structure a member is.
func offsetIn(s *btf.Struct, name string) (uint32, error) {
	m, ok := member(s.Members, name)
	if !ok {
		return 0, fmt.Errorf("%s has no %s", s.Name, name)
	}
	return m.Offset.Bytes(), nil
}

// member returns a member with its place in the outermost structure, also one of
// a structure or union without a name within.
func member(members []btf.Member, name string) (btf.Member, bool) {
	for _, m := range members {
		if m.Name == name {
			return m, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if found, ok := member(inner, name); ok {
			found.Offset += m.Offset
			return found, true
		}
	}
	return btf.Member{}, false
}

// kernelSkbCall is KERNEL_SKB_CALL of bpf/types.h.
const kernelSkbCall = 0xba5c01e05eabb0ff

// castCall takes the place of kernelSkbCall: the call of the kernel's function
// with that number, or, if nobody has asked for it, of nothing.
func castCall(ins asm.Instruction, cast uint32) asm.Instruction {
	if cast == 0 {
		return asm.Mov.Imm(asm.R0, 0).WithMetadata(ins.Metadata)
	}
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: int64(cast)}
	return call.WithMetadata(ins.Metadata)
}
