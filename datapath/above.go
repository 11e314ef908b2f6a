// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"
)

// An Upper is a device right above another one, such as a macvlan, in any network namespace.
type Upper struct {
	Name, Kind string
	Index      uint32
	Netns      uint32 // number of its network namespace: the inode of the namespace's file
	Master     bool   // the other device is its member
}

// Uppers returns the devices right above a device of the calling thread's network namespace, at
// most eight. The kernel's lists of devices omit those in other namespaces, so this function reads
// the devices from the kernel's memory. That takes some 20 ms the first time. It fails if the
// kernel does not describe its types, or lets no program read its memory.
func Uppers(ifindex uint32) ([]Upper, error) {
	p, err := uppersProgram()
	if err != nil {
		return nil, err
	}
	context := make([]byte, skbSize)
	binary.NativeEndian.PutUint32(context[skbIfindex:], ifindex)
	out := make([]byte, uppersSize+spareOut)
	_, err = p.Run(&ebpf.RunOptions{Data: make([]byte, uppersSize), DataOut: out, Context: context})
	if err != nil {
		return nil, fmt.Errorf("devices above device %d: %w", ifindex, err)
	}
	var list []Upper
	for i := range mostUppers {
		b := out[uppersFrom+i*upperSize:][:upperSize]
		u := Upper{
			Name: cString(b[upperName:upperKind]), Kind: cString(b[upperKind:]), Master: b[upperMaster] != 0,
			Index: binary.NativeEndian.Uint32(b[upperIndex:]), Netns: binary.NativeEndian.Uint32(b[upperNetns:]),
		}
		if u.Index != 0 {
			list = append(list, u)
		}
	}
	return list, nil
}

func cString(b []byte) string {
	text, _, _ := bytes.Cut(b, []byte{0})
	return string(text)
}

// Size and offset of struct __sk_buff (include/uapi/linux/bpf.h).
const (
	skbSize    = 192
	skbIfindex = 40
)

// The layout of the program's output, in the packet: for each device its index, the number of its
// namespace, whether it is a master, its name and kind.
const (
	mostUppers  = 8
	upperIndex  = 0
	upperNetns  = 4
	upperMaster = 8
	upperName   = 16
	upperKind   = upperName + unix.IFNAMSIZ
	upperSize   = upperKind + 16
	uppersFrom  = 16 // behind the Ethernet header
	uppersSize  = uppersFrom + mostUppers*upperSize
	spareOut    = 258 // extra room that the kernel requires
)

// upperPlaces are the offsets of the fields that the program reads.
type upperPlaces struct {
	cast                         uint32
	dev                          uint32 // of sk_buff
	above, index, name, net, ops uint32 // of net_device
	entry, upper, master         uint32 // of netdev_adjacent
	kind                         uint32 // of rtnl_link_ops
	number                       uint32 // of net
}

func findUppers(kernel *btf.Spec) (at upperPlaces, err error) {
	var cast *btf.Func
	var skb, device, adjacent, ops, space *btf.Struct
	for name, to := range map[string]any{
		castFunction: &cast, "sk_buff": &skb, "net_device": &device, "netdev_adjacent": &adjacent, "rtnl_link_ops": &ops, "net": &space,
	} {
		if err := kernel.TypeByName(name, to); err != nil {
			return at, fmt.Errorf("%s: %w", name, err)
		}
	}
	at.cast, err = numberOf(kernel, cast)
	errs := []error{err}
	for _, ask := range []struct {
		to   *uint32
		of   *btf.Struct
		path []string
	}{
		{&at.dev, skb, []string{"dev"}},
		{&at.above, device, []string{"adj_list", "upper"}}, {&at.index, device, []string{"ifindex"}},
		{&at.name, device, []string{"name"}}, {&at.net, device, []string{"nd_net"}}, {&at.ops, device, []string{"rtnl_link_ops"}},
		{&at.entry, adjacent, []string{"list"}}, {&at.upper, adjacent, []string{"dev"}}, {&at.master, adjacent, []string{"master"}},
		{&at.kind, ops, []string{"kind"}}, {&at.number, space, []string{"ns", "inum"}},
	} {
		*ask.to, err = within(ask.of, ask.path)
		errs = append(errs, err)
	}
	return at, errors.Join(errs...)
}

// uppersProgram makes the program once per process: it is the same while the kernel runs.
var uppersProgram = sync.OnceValues(func() (*ebpf.Program, error) {
	if readsRefused() {
		return nil, errors.New("programs may not read the kernel's memory (kernel_lockdown(7))")
	}
	at, err := findIn(findUppers)
	if err != nil {
		return nil, err
	}
	return loadShort("uppers", ebpf.SchedCLS, ebpf.AttachTCXIngress, at.program())
})

// program returns code that walks the list of devices above the packet's.
func (at upperPlaces) program() (code asm.Instructions) {
	const (
		head   = -8  // address of the list
		node   = -16 // address of a place in it
		device = -24 // address of the device there
		found  = device - upperSize
	)
	emit := func(ins ...asm.Instruction) { code = append(code, ins...) }
	// read copies size bytes to the stack, from an address on the stack and an offset.
	read := func(to int32, size int32, address int16, offset int32, how asm.BuiltinFunc) {
		emit(asm.Mov.Reg(asm.R1, asm.RFP), asm.Add.Imm(asm.R1, to), asm.Mov.Imm(asm.R2, size),
			asm.LoadMem(asm.R3, asm.RFP, address, asm.DWord), asm.Add.Imm(asm.R3, offset), how.Call())
	}
	emit(asm.Mov.Reg(asm.R6, asm.R1), castCall(asm.Instruction{}, at.cast),
		asm.StoreMem(asm.RFP, node, asm.R0, asm.DWord))
	read(device, 8, node, int32(at.dev), asm.FnProbeReadKernel)
	emit(asm.LoadMem(asm.R7, asm.RFP, device, asm.DWord), asm.Add.Imm(asm.R7, int32(at.above)),
		asm.StoreMem(asm.RFP, head, asm.R7, asm.DWord), asm.StoreMem(asm.RFP, node, asm.R7, asm.DWord))
	for i := range mostUppers {
		read(node, 8, node, 0, asm.FnProbeReadKernel) // its first member leads to the next one
		emit(asm.LoadMem(asm.R1, asm.RFP, node, asm.DWord), asm.LoadMem(asm.R2, asm.RFP, head, asm.DWord),
			asm.JEq.Reg(asm.R1, asm.R2, "end"), asm.JEq.Imm(asm.R1, 0, "end"))
		emit(asm.Mov.Imm(asm.R1, 0))
		for at := int16(0); at < upperSize; at += 8 {
			emit(asm.StoreMem(asm.RFP, found+at, asm.R1, asm.DWord))
		}
		back := -int32(at.entry)
		read(device, 8, node, back+int32(at.upper), asm.FnProbeReadKernel)
		read(found+upperMaster, 1, node, back+int32(at.master), asm.FnProbeReadKernel)
		read(found+upperIndex, 4, device, int32(at.index), asm.FnProbeReadKernel)
		read(found+upperName, unix.IFNAMSIZ, device, int32(at.name), asm.FnProbeReadKernel)
		read(found+upperKind, 8, device, int32(at.ops), asm.FnProbeReadKernel)
		read(found+upperKind, 8, found+upperKind, int32(at.kind), asm.FnProbeReadKernel)
		read(found+upperKind, upperSize-upperKind, found+upperKind, 0, asm.FnProbeReadKernelStr)
		read(device, 8, device, int32(at.net), asm.FnProbeReadKernel)
		read(found+upperNetns, 4, device, int32(at.number), asm.FnProbeReadKernel)
		emit(asm.Mov.Reg(asm.R1, asm.R6), asm.Mov.Imm(asm.R2, int32(uppersFrom+i*upperSize)),
			asm.Mov.Reg(asm.R3, asm.RFP), asm.Add.Imm(asm.R3, found), asm.Mov.Imm(asm.R4, upperSize),
			asm.Mov.Imm(asm.R5, 0), asm.FnSkbStoreBytes.Call())
	}
	emit(asm.Mov.Imm(asm.R0, 0).WithSymbol("end"), asm.Return())
	return code
}
