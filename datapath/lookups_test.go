// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// TestShareLookups: functions that few frames come to share look-ups, if they may still call
// another.
func TestShareLookups(t *testing.T) {
	o := &object{spec: &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{
		"array": {Type: ebpf.Array}, "few": {Type: ebpf.Array}, "devices": {Type: ebpf.DevMap},
	}}}
	function := func(name, tag string, calls string, code ...asm.Instruction) asm.Instructions {
		about := &btf.Func{Name: name}
		if tag != "" {
			about.Tags = []string{tag}
		}
		all := asm.Instructions{btf.WithFuncMetadata(asm.Mov.Reg(asm.R6, asm.R1).WithSymbol(name), about)}
		all = append(all, code...)
		for _, called := range strings.Fields(calls) {
			all = append(all, asm.Call.Label(called))
		}
		return append(all, asm.Return())
	}
	lookup := func(name string) asm.Instructions {
		return asm.Instructions{asm.LoadMapPtr(asm.R1, 0).WithReference(name), asm.FnMapLookupElem.Call()}
	}
	array := lookup("array")
	functions := func() []asm.Instructions {
		all := []asm.Instructions{
			function("main", "", "rare often twice f3", array...),
			// jumps over the look-up and back to it must keep their targets
			function("rare", "", "", append(asm.Instructions{
				{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R6, Offset: 3}, array[0], array[1],
			}, asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R0, Offset: -4})...),
			function("often", oftenTag, "", array...),
			// at the jump's target there is one map or another
			function("twice", "", "", lookup("few")[0], asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R6, Offset: 2},
				array[0], array[1], lookup("few")[0], lookup("few")[1], lookup("devices")[0], lookup("devices")[1]),
		}
		for i := 3; i <= callFrames; i++ { // a chain that begins on the second frame
			all = append(all, function(fmt.Sprint("f", i), "", map[bool]string{true: fmt.Sprint("f", i+1)}[i < callFrames], array...))
		}
		all = append(all, function("f9", "", "", array...))
		all[len(all)-2] = function("f8", "", "f9", array...)
		return all
	}
	calls := func(p *ebpf.ProgramSpec) map[string]string {
		got := map[string]string{}
		for _, code := range o.shareLookups(p, functions()) {
			for i := range code {
				switch ins := &code[i]; {
				case strings.HasPrefix(ins.Reference(), lookupPrefix):
					got[code[0].Symbol()] += " " + strings.TrimPrefix(ins.Reference(), lookupPrefix)
				case ins.IsLoadFromMap():
					got[code[0].Symbol()] += " own " + ins.Reference()
				}
			}
		}
		return got
	}
	want := map[string]string{
		"main": " own array", "rare": " array", "often": " own array", "twice": " own few own array own few own devices",
		"f3": " array", "f4": " array", "f5": " array", "f6": " array", "f7": " array", "f8": " array",
		"f9": " own array", "look_up_array": " own array", // f9 is on the last frame
	}
	if got := calls(&ebpf.ProgramSpec{Type: ebpf.SchedCLS}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("shared:\n%v\nwant:\n%v", got, want)
	}
	want["main"], want["often"] = " array", " array"
	if got := calls(&ebpf.ProgramSpec{Type: ebpf.Syscall}); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("shared by a program that no frame runs:\n%v\nwant:\n%v", got, want)
	}
	rare := functions()[1]
	shared := callLookups(rare, o.lookups(rare))
	if got, want := text(shared), text(asm.Instructions{
		rare[0], {OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R6, Offset: 1}, asm.Call.Label(lookupPrefix + "array"),
		{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R0, Offset: -2}, rare[len(rare)-1],
	}); got != want {
		t.Errorf("a function is\n%s\nwant:\n%s", got, want)
	}
}

// TestMakeRoom: without the unreachable instructions, the function is the original one, and its
// jumps over the room and back are as far.
func TestMakeRoom(t *testing.T) {
	o := &object{spec: &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{"array": {Type: ebpf.Array}}}}
	jump := func(offset int16) asm.Instruction {
		return asm.Instruction{OpCode: asm.JEq.Op(asm.ImmSource), Dst: asm.R6, Constant: 5, Offset: offset}
	}
	function := func(lookups int) asm.Instructions {
		about := btf.WithFuncMetadata(asm.Mov.Reg(asm.R6, asm.R1).WithSymbol("main"), &btf.Func{Name: "main"})
		code := asm.Instructions{about, jump(4), jump(2), jump(0), asm.Mov.Imm(asm.R7, 7), jump(-2), jump(-4), jump(1), jump(-7)}
		for range lookups {
			code = append(code, asm.LoadMapPtr(asm.R1, 0).WithReference("array"), asm.FnMapLookupElem.Call())
		}
		return append(code, asm.Mov.Reg(asm.R0, asm.R7), asm.Return())
	}
	for lookups, room := range map[int]int{fewLeft - 1: 0, fewLeft: 1 + fewLeft*roomEach} {
		was, with := function(lookups), []asm.Instructions{function(lookups)}
		o.makeRoom(with)
		if n := len(with[0]) - len(was); n != room {
			t.Errorf("with %d look-ups there are %d instructions more, want %d", lookups, n, room)
		}
		if got, want := fmt.Sprint(newPruner(nil).prune(with[0])), fmt.Sprint(newPruner(nil).prune(was)); got != want {
			t.Errorf("without the room there is\n%v\nwant\n%v", got, want)
		}
	}
}

// TestRoomCostsNothing: the kernel keeps no instruction of the room in any program.
func TestRoomCostsNothing(t *testing.T) {
	s := newShelf(t, 4)
	c := newConfig(s.rack, 4, pfRouted)
	sizes := func() map[string]int {
		var g *generation
		s.do(func() (err error) {
			g, err = (&Bridge{store: s.store}).load(&c, Tables{})
			return err
		})
		defer g.Close()
		kept := map[string]int{}
		for name, p := range g.coll.Programs {
			kept[name], _ = size(t, p)
		}
		return kept
	}
	with, each := sizes(), roomEach
	roomEach = 0
	defer func() { roomEach = each }()
	if without := sizes(); !maps.Equal(with, without) {
		t.Errorf("the kernel keeps %v instructions with room, %v without", with, without)
	}
}
