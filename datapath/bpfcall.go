// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"
)

// These are calls of bpf(2) that each change makes, even if it loads no programs. The
// library makes more requests each time: for the kind of a link, for names of objects,
// and for a token for unprivileged processes, for which it searches the mounted file
// systems. The search takes longer the more mounts there are.

// bpfCall makes a call with one of the parts of union bpf_attr (linux/bpf.h).
func bpfCall[T any](command uintptr, attr *T) (int, error) {
	fd, _, errno := unix.Syscall(unix.SYS_BPF, command, uintptr(unsafe.Pointer(attr)), unsafe.Sizeof(*attr))
	runtime.KeepAlive(attr)
	if errno != 0 {
		return 0, errno
	}
	return int(fd), nil
}

// openPin opens the object that is pinned at a path. The flags are flags of a map's use,
// such as BPF_F_RDONLY.
func openPin(path string, flags uint32) (int, error) {
	name, err := unix.BytePtrFromString(path)
	if err != nil {
		return 0, err
	}
	get := struct { // BPF_OBJ_GET
		path      uint64
		fd, flags uint32
	}{path: uint64(uintptr(unsafe.Pointer(name))), flags: flags}
	fd, err := bpfCall(unix.BPF_OBJ_GET, &get)
	runtime.KeepAlive(name)
	if err != nil {
		return 0, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// openMap opens the map that is pinned at a path, readMap opens it read-only.
func openMap(path string) (*ebpf.Map, error) { return mapAt(path, 0) }
func readMap(path string) (*ebpf.Map, error) { return mapAt(path, unix.BPF_F_RDONLY) }

func mapAt(path string, flags uint32) (*ebpf.Map, error) {
	fd, err := openPin(path, flags)
	if err != nil {
		return nil, err
	}
	return ebpf.NewMapFromFD(fd)
}

// openProgram opens the program that is pinned at a path.
func openProgram(path string) (*ebpf.Program, error) {
	fd, err := openPin(path, 0)
	if err != nil {
		return nil, err
	}
	return ebpf.NewProgramFromFD(fd)
}

// updateLink swaps the program under a pinned link in one step. The error is ENOLINK if
// the link's device is gone.
func updateLink(path string, p *ebpf.Program) error {
	fd, err := openPin(path, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	change := struct { // BPF_LINK_UPDATE
		link, program, flags, old uint32
	}{link: uint32(fd), program: uint32(p.FD())}
	_, err = bpfCall(unix.BPF_LINK_UPDATE, &change)
	runtime.KeepAlive(p)
	if err != nil {
		return fmt.Errorf("link update: %w", err)
	}
	return nil
}

// programsAt returns how many programs a device of the network namespace has at tcx's
// ingress.
func programsAt(ifindex uint32) (int, error) {
	query := struct { // BPF_PROG_QUERY
		ifindex, attachType, flags, attachFlags uint32
		programs                                uint64
		count, _                                uint32
	}{ifindex: ifindex, attachType: uint32(ebpf.AttachTCXIngress)}
	_, err := bpfCall(unix.BPF_PROG_QUERY, &query)
	return int(query.count), err
}

// objectName returns the name of an object in the kernel's form.
func objectName(name string) (field [unix.BPF_OBJ_NAME_LEN]byte) {
	copy(field[:len(field)-1], name)
	return field
}

// createMap makes a map of numbered values.
func createMap(name string, kind ebpf.MapType, valueSize uintptr, entries uint32) (*ebpf.Map, error) {
	attr := struct { // BPF_MAP_CREATE
		kind, keySize, valueSize, entries, flags, inner, node uint32
		name                                                  [unix.BPF_OBJ_NAME_LEN]byte
	}{kind: uint32(kind), keySize: 4, valueSize: uint32(valueSize), entries: entries, name: objectName(name)}
	fd, err := bpfCall(unix.BPF_MAP_CREATE, &attr)
	if err != nil {
		return nil, fmt.Errorf("create map %s: %w", name, err)
	}
	return ebpf.NewMapFromFD(fd)
}

// putBytes sets an entry of a map in the kernel's form: for a per-CPU map with the
// values of all CPUs, each padded to a multiple of 8 bytes.
func putBytes(m *ebpf.Map, key, value []byte) error {
	var pins runtime.Pinner
	defer pins.Unpin()
	pins.Pin(&key[0])
	pins.Pin(&value[0])
	entry := struct { // BPF_MAP_UPDATE_ELEM
		fd, _             uint32
		key, value, flags uint64
	}{fd: uint32(m.FD()), key: uint64(uintptr(unsafe.Pointer(&key[0]))), value: uint64(uintptr(unsafe.Pointer(&value[0])))}
	_, err := bpfCall(unix.BPF_MAP_UPDATE_ELEM, &entry)
	runtime.KeepAlive(m)
	return err
}

// loadShort loads a program of few instructions that uses no objects.
func loadShort(name string, kind ebpf.ProgramType, attach ebpf.AttachType, code asm.Instructions) (*ebpf.Program, error) {
	var buf bytes.Buffer
	if err := code.Marshal(&buf, binary.LittleEndian); err != nil {
		return nil, err
	}
	text := buf.Bytes()
	license := append([]byte("Dual BSD/GPL"), 0)
	attr := struct { // BPF_PROG_LOAD
		kind, instructions uint32
		code, license      uint64
		level, size        uint32 // of the verifier's log
		log                uint64
		kernel, flags      uint32
		name               [unix.BPF_OBJ_NAME_LEN]byte
		ifindex, attach    uint32
	}{
		kind: uint32(kind), instructions: uint32(len(text) / asm.InstructionSize), attach: uint32(attach), name: objectName(name),
		code: uint64(uintptr(unsafe.Pointer(&text[0]))), license: uint64(uintptr(unsafe.Pointer(&license[0]))),
	}
	for {
		fd, err := bpfCall(unix.BPF_PROG_LOAD, &attr)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue // a signal, such as Go's own, has stopped the verifier
		}
		runtime.KeepAlive(text)
		runtime.KeepAlive(license)
		if err != nil {
			return nil, fmt.Errorf("load program %s: %w", name, err)
		}
		return ebpf.NewProgramFromFD(fd)
	}
}
