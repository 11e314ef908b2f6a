// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

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
		find     func(*Config) error
	}{
		{kernelFeatureFEATURE_BACKUP, c.DeviceState != 0, "a backup port needs to know where this kernel has a device's carrier", carrierPlaces},
		{kernelFeatureFEATURES_JUDGE, c.Skb.Cast != 0, "a filter needs to know where this kernel has a frame's checksum", checksumPlaces},
	} {
		if kernelFeature(c.Features)&ask.features == 0 || ask.known {
			continue
		}
		switch err := ask.find(c); {
		case errors.As(err, new(*untyped)):
			return fmt.Errorf("%s, which it does not describe (CONFIG_DEBUG_INFO_BTF): %w", ask.what, err)
		case errors.As(err, new(*MissingError)):
			return err
		case err != nil:
			return fmt.Errorf("%s: %w", ask.what, err)
		}
	}
	// answers for stations do without, where it cannot be told
	if kernelFeature(c.Features)&kernelFeatureFEATURE_SUPPRESS != 0 && c.DeviceState == 0 && !readsRefused() {
		_ = carrierPlaces(c)
	}
	return nil
}

// untyped says that the kernel does not describe its types.
type untyped struct{ error }

func (e *untyped) Unwrap() error { return e.error }

// A carrier is what findCarrier finds.
type carrier struct {
	at    int32
	state uint32
}

// The kernel's types are read once by a process: that takes it milliseconds, and what
// is found stays as it is while the kernel runs.
var (
	kernelCarrier  = sync.OnceValues(func() (carrier, error) { return findIn(findCarrier) })
	kernelChecksum = sync.OnceValues(func() (kernelSkbPlaces, error) { return findIn(findChecksum) })
)

func findIn[P any](find func(*btf.Spec) (P, error)) (at P, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return at, &untyped{err}
	}
	return find(kernel)
}

func carrierPlaces(c *Config) error {
	at, err := kernelCarrier()
	if err == nil {
		c.DeviceAt, c.DeviceState = at.at, at.state
	}
	return err
}

func checksumPlaces(c *Config) error {
	at, err := kernelChecksum()
	if err == nil {
		c.Skb = at
	}
	return err
}

// readsRefused reports whether programs may not read the kernel's memory
// (kernel_lockdown(7)).
func readsRefused() bool {
	text, err := os.ReadFile("/sys/kernel/security/lockdown")
	return err == nil && strings.Contains(string(text), "[confidentiality]")
}

// findCarrier returns where the kernel has whether a device has a carrier.
func findCarrier(kernel *btf.Spec) (carrier, error) {
	var cell, device *btf.Struct
	if err := errors.Join(kernel.TypeByName("bpf_dtab_netdev", &cell), kernel.TypeByName("net_device", &device)); err != nil {
		return carrier{}, err
	}
	dev, err1 := offsetIn(cell, "dev")
	val, err2 := offsetIn(cell, "val")
	state, err3 := offsetIn(device, "state")
	return carrier{int32(dev) - int32(val), state}, errors.Join(err1, err2, err3)
}

// castFunction is the kernel's function by which a filter gets at the state of a
// frame's checksum. It is no helper: BTF alone knows it.
const castFunction = "bpf_cast_to_kern_ctx"

// findChecksum returns where the kernel has the state of a frame's checksum.
func findChecksum(kernel *btf.Spec) (at kernelSkbPlaces, err error) {
	var cast *btf.Func
	var skb *btf.Struct
	if err := kernel.TypeByName(castFunction, &cast); errors.Is(err, btf.ErrNotFound) {
		return at, missing(running().release, err, [2]string{castFunction + "()", "a filter"})
	} else if err != nil {
		return at, err
	}
	if err := kernel.TypeByName("sk_buff", &skb); err != nil {
		return at, err
	}
	summed, ok := member(skb.Members, "ip_summed")
	if !ok || summed.BitfieldSize != 2 || summed.Offset%8 == 7 {
		return at, errors.New("sk_buff has its ip_summed where no other kernel has it")
	}
	id, err := kernel.TypeID(cast)
	errs := []error{err}
	at = kernelSkbPlaces{Cast: uint32(id), Summed: summed.Offset.Bytes(), SummedShift: uint32(summed.Offset % 8)}
	for name, to := range map[string]*uint32{"head": &at.Head, "data": &at.Data, "csum_start": &at.CsumStart, "csum_offset": &at.CsumOffset} {
		*to, err = offsetIn(skb, name)
		errs = append(errs, err)
	}
	return at, errors.Join(errs...)
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
