// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"debug/elf"
	"fmt"

	"github.com/cilium/ebpf"
)

// An object is an ELF file that programs are loaded from. Who reads it sees no lines of
// source code: to read them and to give them to the kernel takes a third of the time of
// a load, and nobody asks the kernel for them.
type object struct {
	*bytes.Reader
	lines int64 // place of the length of the lines' part of .BTF.ext
}

// lineInfoLen is where struct btf_ext_header (libbpf) has that length.
const lineInfoLen = 20

// noLines is the length of that part when it has no line: the size of a line's record is
// always there.
var noLines = []byte{4, 0, 0, 0}

func newObject(file []byte) (*object, error) {
	f, err := elf.NewFile(bytes.NewReader(file))
	if err != nil {
		return nil, fmt.Errorf("the switch program: %w", err)
	}
	ext := f.Section(".BTF.ext")
	if ext == nil || ext.FileSize < lineInfoLen+uint64(len(noLines)) {
		return nil, fmt.Errorf("the switch program has no section .BTF.ext")
	}
	return &object{bytes.NewReader(file), int64(ext.Offset) + lineInfoLen}, nil
}

// ReadAt is that of io.ReaderAt.
func (o *object) ReadAt(b []byte, at int64) (int, error) {
	n, err := o.Reader.ReadAt(b, at)
	for i, value := range noLines {
		if place := o.lines + int64(i) - at; place >= 0 && place < int64(n) {
			b[place] = value
		}
	}
	return n, err
}

// specOf is readObject. Tests have it read each object once.
var specOf = readObject

// readObject returns what can be loaded from an object.
func readObject(file []byte) (*ebpf.CollectionSpec, error) {
	o, err := newObject(file)
	if err != nil {
		return nil, err
	}
	spec, err := ebpf.LoadCollectionSpecFromReader(o)
	if err != nil {
		return nil, fmt.Errorf("the switch program: %w", err)
	}
	return spec, nil
}
