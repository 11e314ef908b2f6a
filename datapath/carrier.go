// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf/btf"
)

// findCarrier fills in where the kernel has whether a device has a carrier, if a
// port of c has a backup. The kernel's own description of its types says it: no
// helper of programs does, and the places differ between kernels.
func findCarrier(c *Config) error {
	if kernelFeature(c.Features)&kernelFeatureFEATURE_BACKUP == 0 || c.DeviceState != 0 {
		return nil
	}
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return fmt.Errorf("a backup port needs a kernel that describes its types (CONFIG_DEBUG_INFO_BTF): %w", err)
	}
	var cell, device *btf.Struct
	if err := errors.Join(kernel.TypeByName("bpf_dtab_netdev", &cell), kernel.TypeByName("net_device", &device)); err != nil {
		return fmt.Errorf("a backup port needs to know where this kernel has a device's carrier: %w", err)
	}
	dev, ok1 := member(cell.Members, "dev")
	val, ok2 := member(cell.Members, "val")
	state, ok3 := member(device.Members, "state")
	if !ok1 || !ok2 || !ok3 {
		return errors.New("a backup port needs to know where this kernel has a device's carrier: it is not where others have it")
	}
	c.DeviceAt, c.DeviceState = int32(dev)-int32(val), state
	return nil
}

// member returns how many bytes after the beginning of a structure a member is,
// also one of a structure or union without a name within.
func member(members []btf.Member, name string) (uint32, bool) {
	for _, m := range members {
		if m.Name == name {
			return m.Offset.Bytes(), true
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
		if at, ok := member(inner, name); ok {
			return m.Offset.Bytes() + at, true
		}
	}
	return 0, false
}
