// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// bare is an instruction without what is known about it.
func bare(i *asm.Instruction) asm.Instruction {
	return asm.Instruction{OpCode: i.OpCode, Dst: i.Dst, Src: i.Src, Offset: i.Offset, Constant: i.Constant}
}

// What is loaded from an object has no lines of source code, and all else as it is in
// the file.
func TestObjectLines(t *testing.T) {
	c := Config{}
	for name, o := range map[string]struct {
		whole func() (*ebpf.CollectionSpec, error)
		read  func() (*ebpf.CollectionSpec, error)
	}{
		"kernel": {loadKernel, func() (*ebpf.CollectionSpec, error) { return readObject(_KernelBytes) }},
		"plain":  {loadPlain, func() (*ebpf.CollectionSpec, error) { return (&Store{}).programs(&c) }},
		"trial":  {loadTrial, func() (*ebpf.CollectionSpec, error) { return readObject(_TrialBytes) }},
		"locked": {loadLocked, func() (*ebpf.CollectionSpec, error) { return (&Store{Locked: true}).programs(&c) }},
	} {
		whole, err := o.whole()
		if err != nil {
			t.Fatal(err)
		}
		got, err := o.read()
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Programs) != len(whole.Programs) || len(got.Maps) != len(whole.Maps) || len(got.Variables) != len(whole.Variables) {
			t.Errorf("%s: %v, in the file %v", name, got, whole)
		}
		for p, want := range whole.Programs {
			is := got.Programs[p]
			if is == nil || len(is.Instructions) != len(want.Instructions) {
				t.Errorf("%s: program %s is not as in the file", name, p)
				continue
			}
			lines := 0
			for i := range want.Instructions {
				a, b := &is.Instructions[i], &want.Instructions[i]
				if bare(a) != bare(b) || a.Symbol() != b.Symbol() || a.Reference() != b.Reference() ||
					(btf.FuncMetadata(a) == nil) != (btf.FuncMetadata(b) == nil) {
					t.Fatalf("%s: %s: instruction %d is %v, in the file %v", name, p, i, a, b)
				}
				if a.Source() != nil {
					lines++
				}
			}
			if lines > 0 {
				t.Errorf("%s: %d of %d instructions of %s have a line of source code", name, lines, len(is.Instructions), p)
			}
		}
	}
}
