// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// bare returns an instruction without its metadata.
func bare(i *asm.Instruction) asm.Instruction {
	return asm.Instruction{OpCode: i.OpCode, Dst: i.Dst, Src: i.Src, Offset: i.Offset, Constant: i.Constant}
}

// Programs that are loaded from an object have no lines of source code, and otherwise are as the
// library reads them.
func TestObject(t *testing.T) {
	c := Config{}
	for name, o := range map[string]struct {
		whole func() (*ebpf.CollectionSpec, error)
		read  func() (*object, error)
	}{
		"kernel": {loadKernel, func() (*object, error) { return readObject(_KernelBytes) }},
		"plain":  {loadPlain, func() (*object, error) { return (&Store{}).programs(&c) }},
		"trial":  {loadTrial, func() (*object, error) { return readObject(_TrialBytes) }},
		"locked": {loadLocked, func() (*object, error) { return (&Store{Locked: true}).programs(&c) }},
	} {
		whole, err := o.whole()
		if err != nil {
			t.Fatal(err)
		}
		object, err := o.read()
		if err != nil {
			t.Fatal(err)
		}
		got := object.spec
		if len(got.Programs) != len(whole.Programs) || len(got.Maps) != len(whole.Maps) || len(got.Variables) != len(whole.Variables) {
			t.Errorf("%s: %v, in the file %v", name, got, whole)
		}
		for m, want := range whole.Maps {
			is := got.Maps[m]
			if is == nil || fmt.Sprint(is) != fmt.Sprint(want) || is.Flags != want.Flags || !reflect.DeepEqual(is.Contents, want.Contents) ||
				fmt.Sprint(is.Key) != fmt.Sprint(want.Key) || fmt.Sprint(is.Value) != fmt.Sprint(want.Value) {
				t.Errorf("%s: map %s is %v, in the file %v", name, m, is, want)
			}
		}
		for v, want := range whole.Variables {
			if is := got.Variables[v]; is == nil || is.Offset != want.Offset || is.SectionName != want.SectionName || !bytes.Equal(is.Value, want.Value) {
				t.Errorf("%s: variable %s is %v, in the file %v", name, v, is, want)
			}
		}
		for p, want := range whole.Programs {
			is := got.Programs[p]
			if is == nil {
				t.Errorf("%s: there is no program %s", name, p)
				continue
			}
			parts, err := linkFrom(p, object.function)
			if err != nil {
				t.Fatal(err)
			}
			is.Instructions = slices.Concat(parts...)
			if len(is.Instructions) != len(want.Instructions) {
				t.Errorf("%s: program %s has %d instructions, in the file %d", name, p, len(is.Instructions), len(want.Instructions))
				continue
			}
			lines := 0
			for i := range want.Instructions {
				a, b := &is.Instructions[i], &want.Instructions[i]
				if bare(a) != bare(b) || a.Symbol() != b.Symbol() || a.Reference() != b.Reference() ||
					fmt.Sprint(btf.FuncMetadata(a)) != fmt.Sprint(btf.FuncMetadata(b)) {
					t.Fatalf("%s: %s: instruction %d is %v, in the file %v", name, p, i, a, b)
				}
				if a.Source() != nil {
					lines++
				}
			}
			if lines > 0 {
				t.Errorf("%s: %d of %d instructions of %s have a line of source code", name, lines, len(is.Instructions), p)
			}
			is.Instructions, want.Instructions = nil, nil
			if !reflect.DeepEqual(is, want) {
				t.Errorf("%s: program %s is %+v, in the file %+v", name, p, is, want)
			}
		}
	}
}

// TestLinkerShares: programs of a linker are the same as if each was made by itself, even if their
// common functions were made for another program before.
func TestLinkerShares(t *testing.T) {
	c := newConfig(sharedRack(t), 4, pfRouted)
	made := func(one bool) map[string]asm.Instructions {
		o, err := readObject(_KernelBytes)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.setIn(o.spec); err != nil {
			t.Fatal(err)
		}
		all, l := map[string]asm.Instructions{}, o.linker(&c)
		for _, name := range slices.Sorted(maps.Keys(o.spec.Programs)) {
			if !one {
				l = o.linker(&c)
			}
			if err := l.make(o.spec.Programs[name], programFeatures(name, &c)); err != nil {
				t.Fatal(err)
			}
			all[name] = o.spec.Programs[name].Instructions
		}
		return all
	}
	shared := made(true)
	for name, want := range made(false) {
		alike := func(a, b asm.Instruction) bool {
			return bare(&a) == bare(&b) && a.Symbol() == b.Symbol() && a.Reference() == b.Reference()
		}
		if !slices.EqualFunc(shared[name], want, alike) {
			t.Errorf("%s has %d instructions that are others, by itself %d", name, len(shared[name]), len(want))
		}
	}
}
