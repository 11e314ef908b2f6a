// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"os"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
)

// TestMapsOf compares mapsOf with the library's result.
func TestMapsOf(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("loads a program, which takes root")
	}
	var code asm.Instructions
	for range 3 {
		m, err := ebpf.NewMap(&ebpf.MapSpec{Type: ebpf.Array, KeySize: 4, ValueSize: 4, MaxEntries: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		code = append(code, asm.LoadMapPtr(asm.R1, m.FD()))
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
			Type: ebpf.SocketFilter, License: "GPL", Instructions: append(slices.Clone(code), asm.Mov.Imm(asm.R0, 0), asm.Return()),
		})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		info, err := p.Info()
		if err != nil {
			t.Fatal(err)
		}
		id, _ := info.ID()
		want, _ := info.MapIDs()
		got, err := mapsOf(id)
		if err != nil || !slices.Equal(got, want) || len(got) == 0 {
			t.Errorf("program %d uses maps %v (%v), should be %v", id, got, err, want)
		}
	}
}
