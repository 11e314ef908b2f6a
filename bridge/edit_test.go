// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"bascule/datapath"
	"bascule/lab/ends"
	"bascule/rule"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A bench is a switch in a network namespace of its own, with cables p1, p2, ... whose far ends are
// in another one.
type bench struct {
	*Switch
	t    testing.TB
	ns   *ends.Namespace
	far  *ends.Namespace
	root string // of its store
}

var benches atomic.Int64

// newBench makes a bench with that many cables. It skips the test if the process is not root.
func newBench(t testing.TB, cables int) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces, which takes root")
	}
	b := &bench{t: t}
	n := benches.Add(1)
	b.ns, b.far = b.namespace(fmt.Sprintf("edit%d", n)), b.namespace(fmt.Sprintf("edit%d-far", n))
	s, err := Open(b.ns.Name)
	b.must(err)
	b.Switch = s
	cookie, err := b.ns.Cookie()
	b.must(err)
	b.root = filepath.Join(datapath.Root, strconv.FormatUint(cookie, 10))
	t.Cleanup(func() {
		list, err := s.Bridges()
		for _, info := range list {
			_, wrong := s.DelBridge(info.Name)
			err = errors.Join(err, wrong)
		}
		if err = errors.Join(err, s.Close()); err != nil {
			t.Error(err)
		}
	})
	for i := range cables {
		b.cable(i + 1)
	}
	return b
}

func (b *bench) namespace(what string) *ends.Namespace {
	ns, err := ends.NewNamespace(ends.NameFor(what))
	b.must(err)
	b.t.Cleanup(func() { ns.Close() })
	return ns
}

func (b *bench) cable(n int) {
	b.t.Helper()
	_, err := ends.Cable(b.ns, fmt.Sprintf("p%d", n), b.far, fmt.Sprintf("far%d", n), n, ends.Wire{})
	b.must(err)
}

func (b *bench) must(err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

// at returns a function that runs another one in a network namespace without a name, like Do of one
// with a name.
func at(ns netns.NsHandle) func(f func() error) error {
	return func(f func() error) error { return inside(ns, f) }
}

// feature reports whether an offload of a device is on. do runs it in the device's network
// namespace.
func (b *bench) feature(do func(func() error) error, device, name string) (on bool) {
	b.t.Helper()
	b.must(do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		all, err := e.Features(device)
		on = all[name]
		return err
	}))
	return on
}

// withoutXDP makes devices whose driver does not support XDP.
func (b *bench) withoutXDP(names ...string) {
	b.t.Helper()
	b.must(b.ns.Pair("parent", "other", ends.Wire{}))
	for i, name := range names {
		_, err := ends.Macvlan(b.ns, "parent", b.ns, name, 100+i, ends.Wire{})
		b.must(err)
	}
}

// generation returns the name of br0's generation.
func (b *bench) generation() string {
	b.t.Helper()
	gen, err := os.Readlink(filepath.Join(b.root, "br0", "current"))
	b.must(err)
	return gen
}

// look returns br0's state without the parts that depend on when and where it was made.
func (b *bench) look() State {
	b.t.Helper()
	state, err := b.Read("br0")
	b.must(err)
	state.Bridge.Address, state.Bridge.Born = nil, 0
	for i := range state.Ports {
		state.Ports[i].Index, state.Ports[i].MAC = 0, nil
	}
	return state
}

// devices returns the names of the devices in the switch's namespace, and marks promiscuous ones.
func (b *bench) devices() (list []string) {
	b.t.Helper()
	links, err := b.ns.Netlink().LinkList()
	b.must(err)
	for _, l := range links {
		name := l.Attrs().Name
		if l.Attrs().RawFlags&unix.IFF_PROMISC != 0 {
			name += "!"
		}
		list = append(list, name)
	}
	slices.Sort(list)
	return list
}

// vids parses ranges of one VLAN each; "u" means untagged, "p" PVID.
func vids(words ...string) (list []VLANRange) {
	for _, w := range words {
		n, err := strconv.ParseUint(strings.TrimRight(w, "up"), 10, 16)
		if err != nil {
			panic(err) // a defect of a test
		}
		o := VLANOptions{Untagged: strings.Contains(w, "u"), PVID: strings.Contains(w, "p")}
		list = append(list, VLANRange{uint16(n), uint16(n), o})
	}
	return list
}

func on(names ...string) (list []Change) {
	for _, name := range names {
		list = append(list, Change{name, "on"})
	}
	return list
}

// An Edit has the same result as its changes one by one, with one generation.
func TestEdit(t *testing.T) {
	tests := map[string][]func(e *Edit) error{
		"ports": {
			func(e *Edit) error { return e.Set([]Change{{"ageing", "60s"}, {"fdb-max", "100000"}}) },
			func(e *Edit) error { return e.AddPort("p1", PortOptions{Changes: on("isolated")}) },
			func(e *Edit) error { return e.AddPort("h0", PortOptions{Type: TypeHost}) },
			func(e *Edit) error { return e.AddPort("p2", PortOptions{Hook: HookXDP}) },
			func(e *Edit) error { return e.AddPort("h1", PortOptions{Type: TypeHost, Hook: HookXDP}) },
			func(e *Edit) error { return e.SetPort("p1", PortOptions{Changes: []Change{{"fdb-max", "5"}}}) },
			func(e *Edit) error { return e.DelPort("p2") },
		},
		"VLANs": {
			func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
			func(e *Edit) error { return e.Set(on("vlan-filtering")) },
			func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
			func(e *Edit) error { return e.AddVLANs("p1", []uint16{10, 11, 12}, VLANOptions{}) },
			func(e *Edit) error { return e.DelVLANs("p2", []uint16{1}) },
			func(e *Edit) error { return e.SetVLANs("p2", vids("10up", "20")) },
			func(e *Edit) error { return e.Set([]Change{{"default-pvid", "30"}}) },
			func(e *Edit) error { return e.AddPort("p3", PortOptions{}) },
			func(e *Edit) error { return e.DelPort("p2") },
			func(e *Edit) error { return e.AddPort("h0", PortOptions{Type: TypeHost}) },
			func(e *Edit) error { return e.SetVLANs("h0", vids("10", "30u")) },
		},
		"private VLANs and spans": {
			func(e *Edit) error { return e.Set(on("vlan-filtering")) },
			func(e *Edit) error {
				return e.SetPrivateVLANs(100, PrivateVLANs{Isolated: []uint16{101}, Community: []uint16{102}})
			},
			func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
			func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
			func(e *Edit) error { return e.SetVLANs("p1", vids("100up")) },
			func(e *Edit) error { return e.SetVLANs("p2", vids("101up")) },
			func(e *Edit) error { return e.AddSpan("p3", SpanOptions{VLANs: []uint16{100}}) },
			func(e *Edit) error {
				return e.AddSpan("p4", SpanOptions{Ports: []string{"p1"}, Direction: DirectionBoth})
			},
			func(e *Edit) error { return e.DelSpan("p3") },
		},
		"rules": {
			func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
			func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
			func(e *Edit) error { return e.AddPort("p3", PortOptions{}) },
			func(e *Edit) error {
				return e.ReplaceRules("text", strings.NewReader("block in on p1 src 02:00:00:00:00:01\nblock out on p2\npass in on p3\n"))
			},
			func(e *Edit) error { return e.DelPort("p2") },
		},
	}
	for name, steps := range tests {
		t.Run(name, func(t *testing.T) {
			at, apart := newBench(t, 4), newBench(t, 4)
			at.must(at.AddBridge("br0", nil))
			apart.must(apart.AddBridge("br0", nil))
			was := at.generation()
			at.edit(steps...)
			for _, step := range steps {
				apart.edit(step)
			}
			got, want := at.look(), apart.look()
			if len(got.Ports) < 2 {
				t.Errorf("only %d ports", len(got.Ports))
			}
			if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b rule.Rule) bool { return a.String() == b.String() })); diff != "" {
				t.Errorf("(-one by one +at once):\n%s", diff)
			}
			if diff := cmp.Diff(apart.devices(), at.devices()); diff != "" {
				t.Errorf("devices (-one by one +at once):\n%s", diff)
			}
			if n := number(t, at.generation()) - number(t, was); n != 1 {
				t.Errorf("%d generations", n)
			}
		})
	}
}

// edit makes an Edit of steps that must succeed.
func (b *bench) edit(steps ...func(*Edit) error) {
	b.t.Helper()
	_, err := b.Edit("br0", func(e *Edit) error { return inTurnWith(e, steps) })
	b.must(err)
}

func inTurnWith(e *Edit, steps []func(*Edit) error) error {
	for _, step := range steps {
		if err := step(e); err != nil {
			return err
		}
	}
	return nil
}

// number returns the number of a generation.
func number(t *testing.T, gen string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(gen, "gen-"))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Several ports are removed in one change, or none.
func TestDelPorts(t *testing.T) {
	b := newBench(t, 4)
	b.must(b.AddBridge("br0", nil))
	_, err := b.AddPorts("br0", []string{"p1", "p2", "p3", "p4"}, PortOptions{})
	b.must(err)
	_, err = b.SetPorts("br0", []string{"p1"}, PortOptions{Changes: []Change{{"backup", "p2"}}})
	b.must(err)
	_, err = b.SetPorts("br0", []string{"p3"}, PortOptions{Changes: []Change{{"backup", "p4"}}})
	b.must(err)
	was := b.generation()
	for want, ports := range map[string][]string{
		"cannot delete port nothing of br0: nothing is not a port": {"p1", "nothing"},
		"cannot delete port p1 of br0: it is named twice":          {"p1", "p2", "p1"},
	} {
		if _, err := b.DelPorts("br0", ports); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", ports, err, want)
		}
		if list, err := b.Ports("br0"); err != nil || len(list) != 4 || b.generation() != was {
			t.Fatalf("%q: %d ports are there, error %v", ports, len(list), err)
		}
	}
	notes, err := b.DelPorts("br0", []string{"p1", "p2", "p4"})
	b.must(err)
	if want := []string{"port p3 has no backup any more: that was p4"}; !slices.Equal(notes, want) {
		t.Errorf("it says %q, should say %q", notes, want)
	}
	if list, err := b.Ports("br0"); err != nil || len(list) != 1 || list[0].Name != "p3" || list[0].Config.Backup != "" && list[0].Config.Backup != "none" {
		t.Errorf("the ports are %+v, error %v", list, err)
	}
	if n := number(t, b.generation()) - number(t, was); n != 1 {
		t.Errorf("%d generations", n)
	}
}

// Several ports are set in one change, or none.
func TestSetPorts(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", nil))
	_, err := b.AddPorts("br0", []string{"p1", "p2"}, PortOptions{})
	b.must(err)
	hairpins := func() (n int) {
		t.Helper()
		list, err := b.Ports("br0")
		b.must(err)
		for _, p := range list {
			if p.Config.Hairpin {
				n++
			}
		}
		return n
	}
	was := b.generation()
	for want, ports := range map[string][]string{
		"cannot set port nothing of br0: nothing is not a port": {"p1", "nothing"},
		"cannot set port p1 of br0: it is named twice":          {"p1", "p2", "p1"},
	} {
		if _, err := b.SetPorts("br0", ports, PortOptions{Changes: on("hairpin")}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", ports, err, want)
		}
		if hairpins() != 0 || b.generation() != was {
			t.Fatalf("%q: %d ports are set", ports, hairpins())
		}
	}
	_, err = b.SetPorts("br0", []string{"p1", "p2"}, PortOptions{Changes: on("hairpin")})
	b.must(err)
	if n := number(t, b.generation()) - number(t, was); n != 1 || hairpins() != 2 {
		t.Errorf("%d generations, %d ports", n, hairpins())
	}
}

// Several ports are added in one change, or none.
func TestAddPorts(t *testing.T) {
	b := newBench(t, 3)
	b.must(b.AddBridge("br0", nil))
	names := func() (list []string) {
		t.Helper()
		ports, err := b.Ports("br0")
		b.must(err)
		for _, p := range ports {
			list = append(list, p.Name)
		}
		return list
	}
	was := b.generation()
	for _, tt := range []struct {
		ports []string
		o     PortOptions
		want  string
	}{
		{[]string{"p1", "nothing"}, PortOptions{}, "cannot add port nothing to br0"},
		{[]string{"p1", "p2", "p1"}, PortOptions{}, "cannot add port p1 to br0: it is named twice"},
		{[]string{"h1", "p1"}, PortOptions{Type: TypeHost}, "cannot add port p1 to br0"},
		{[]string{"p1", "p2"}, PortOptions{Type: TypePatch, Peer: "br1/x"}, "--type patch: a cable has only one end here"},
	} {
		if _, err := b.AddPorts("br0", tt.ports, tt.o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%q: %v, want %s", tt.ports, err, tt.want)
		}
		if got := names(); len(got) != 0 || b.generation() != was {
			t.Fatalf("%q: %q are there, in %s after %s", tt.ports, got, b.generation(), was)
		}
	}
	_, err := b.AddPorts("br0", []string{"p3", "p1", "p2"}, PortOptions{Changes: on("isolated")})
	b.must(err)
	if got := names(); !slices.Equal(got, []string{"p3", "p1", "p2"}) {
		t.Errorf("ports %q", got)
	}
	if n := number(t, b.generation()) - number(t, was); n != 1 {
		t.Errorf("%d generations", n)
	}
	if _, err := b.AddPorts("br0", []string{"h1", "h2"}, PortOptions{Type: TypeHost}); err != nil || len(names()) != 5 {
		t.Errorf("two host ports: %v, %q", err, names())
	}
}

// A port can be the backup of one that is added before it, in one step, until it leaves.
func TestEditBackup(t *testing.T) {
	b := newBench(t, 3)
	b.must(b.AddBridge("br0", nil))
	backup := func(name string) PortOptions { return PortOptions{Changes: []Change{{"backup", name}}} }
	want := func(names ...string) {
		t.Helper()
		ports, err := b.Ports("br0")
		b.must(err)
		var got []string
		for _, p := range ports {
			got = append(got, p.Config.Backup)
		}
		if !slices.Equal(got, names) {
			t.Errorf("backups %q, want %q", got, names)
		}
	}
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", backup("p2")) },
		func(e *Edit) error { return e.AddPort("p2", backup("p1")) },
		func(e *Edit) error { return e.AddPort("p3", backup("p2")) },
	)
	want("p2", "p1", "p2")
	b.edit(func(e *Edit) error { return e.SetPort("p3", PortOptions{Changes: on("hairpin")}) })
	want("p2", "p1", "p2")
	for name, f := range map[string]func(e *Edit) error{
		"its own backup": func(e *Edit) error { return e.SetPort("p1", backup("p1")) },
		"p9":             func(e *Edit) error { return e.SetPort("p1", backup("p9")) },
		"not a port":     func(e *Edit) error { return errors.Join(e.SetPort("p1", backup("p2")), e.DelPort("p2")) },
		"not the nam":    func(e *Edit) error { return e.SetPort("p1", backup("a/b")) },
	} {
		if _, err := b.Edit("br0", f); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	want("p2", "p1", "p2")
	b.edit(func(e *Edit) error { return e.SetPort("p3", backup("none")) }, func(e *Edit) error { return e.DelPort("p2") })
	want("", "")
}

// A refused Edit changes nothing, whichever part refuses it, and at whichever step.
func TestEditRefused(t *testing.T) {
	b := newBench(t, 3)
	b.withoutXDP("noxdp")
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	b.must(b.AddBridge("br1", nil))
	_, err := b.AddPort("br1", "p3", PortOptions{})
	b.must(err)
	b.edit(func(e *Edit) error { return e.AddPort("p1", PortOptions{}) })
	add := func(name string, o PortOptions) func(*Edit) error {
		return func(e *Edit) error { return e.AddPort(name, o) }
	}
	good := []func(*Edit) error{
		add("h0", PortOptions{Type: TypeHost}), add("p2", PortOptions{}),
		func(e *Edit) error { return e.AddVLANs("p2", []uint16{20}, VLANOptions{}) },
		func(e *Edit) error { return e.ReplaceRules("text", strings.NewReader("block in on p2\n")) },
	}
	mine := errors.New("mine")
	tests := map[string]struct {
		f     func(e *Edit) error
		words string
	}{
		"by the caller":         {func(*Edit) error { return mine }, "mine"},
		"and not told":          {func(e *Edit) error { _ = e.DelPort("p9"); return nil }, "p9 is not a port"},
		"twice":                 {add("p2", PortOptions{}), "port of bridge br0"},
		"a host port twice":     {add("h0", PortOptions{Type: TypeHost}), "a port of this name"},
		"another bridge's":      {add("p3", PortOptions{}), "port of bridge br1"},
		"a patch cable":         {add("c", PortOptions{Type: TypePatch, Peer: "br1/c"}), "separately"},
		"by the driver":         {add("noxdp", PortOptions{Hook: HookXDP}), "XDP on noxdp is refused"},
		"a port that leaves":    {func(e *Edit) error { return errors.Join(e.DelPort("p1"), e.AddPort("p1", PortOptions{})) }, "in the same step"},
		"a rule without a port": {func(e *Edit) error { return e.ReplaceRules("text", strings.NewReader("pass in on p7\n")) }, "p7: no port"},
		"VLANs twice":           {func(e *Edit) error { return e.SetVLANs("p2", vids("10", "10")) }, "occurs twice"},
		"two PVIDs":             {func(e *Edit) error { return e.SetVLANs("p2", vids("10p", "11p")) }, "one PVID"},
		"VLAN 4095":             {func(e *Edit) error { return e.SetVLANs("p2", vids("4095")) }, "not a range of VLANs"},
		"a trunk of half": {func(e *Edit) error {
			return errors.Join(e.SetPrivateVLANs(100, PrivateVLANs{Isolated: []uint16{101}}), e.SetVLANs("p2", vids("101")))
		}, "but not its primary"},
	}
	was, devices, gen := b.look(), b.devices(), b.generation()
	for name, tt := range tests {
		_, err := b.Edit("br0", func(e *Edit) error { return inTurnWith(e, append(slices.Clone(good), tt.f)) })
		if err == nil || !strings.Contains(err.Error(), tt.words) {
			t.Errorf("%s: %v, want %q", name, err, tt.words)
		}
		if diff := cmp.Diff(was, b.look()); diff != "" {
			t.Errorf("%s: (-before +after):\n%s", name, diff)
		}
		if diff := cmp.Diff(devices, b.devices()); diff != "" {
			t.Errorf("%s: devices (-before +after):\n%s", name, diff)
		}
		if b.generation() != gen || b.dirty() {
			t.Errorf("%s: generation %s, was %s; dirty: %t", name, b.generation(), gen, b.dirty())
		}
	}
	b.edit(good...)
	if got := len(b.look().Ports); got != 3 {
		t.Errorf("%d ports after the Edit that is not refused", got)
	}
}

// dirty reports whether br0 has to be mended.
func (b *bench) dirty() bool {
	_, err := os.Stat(filepath.Join(b.root, "br0", "dirty"))
	return err == nil
}

// A change without a difference makes no generation, except for SetBridge, which reloads the
// programs.
func TestEditNothing(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	steps := []func(e *Edit) error{
		func(e *Edit) error { return e.SetVLANs("p1", vids("1up", "10")) },
		func(e *Edit) error { return e.SetPort("p1", PortOptions{Hook: HookXDP, Changes: on("hairpin")}) },
		func(e *Edit) error { return e.SetPrivateVLANs(100, PrivateVLANs{Isolated: []uint16{101}}) },
		func(e *Edit) error { return e.Set([]Change{{"ageing", "60s"}}) },
		func(e *Edit) error {
			return e.ReplaceRules("text", strings.NewReader("block in on p1 dst 02:00:00:00:00:01\n"))
		},
	}
	b.edit(func(e *Edit) error { return e.AddPort("p1", PortOptions{Hook: HookXDP}) })
	b.edit(steps...)
	gen := b.generation()
	// again, without the step that is refused the second time
	b.edit(slices.Delete(slices.Clone(steps), 2, 3)...)
	b.edit()
	if got := b.generation(); got != gen {
		t.Errorf("generation %s, was %s", got, gen)
	}
	for i, f := range []func() error{
		func() error { _, err := b.SetBridge("br0", nil); return err },
		func() error {
			_, err := b.SetPorts("br0", []string{"p1"}, PortOptions{Changes: []Change{{"hairpin", "off"}}})
			return err
		},
	} {
		b.must(f())
		if n := number(t, b.generation()) - number(t, gen); n != i+1 {
			t.Errorf("change %d: %d generations", i, n)
		}
	}
}

// Several ports can lose XDP, each because of its own driver. A port that must have XDP makes the
// whole Edit fail.
func TestEditWithoutXDP(t *testing.T) {
	b := newBench(t, 1)
	b.withoutXDP("nic1", "nic2")
	b.must(b.AddBridge("br0", nil))
	for _, must := range []string{"nic2", ""} {
		warnings, err := b.Edit("br0", func(e *Edit) error {
			for _, name := range []string{"p1", "nic1", "nic2"} {
				if err := e.AddPort(name, PortOptions{Hook: HookXDP}); err != nil {
					return err
				}
				// as if auto had found a driver that may support XDP
				if p, _, err := findPort(e.draft, "test", "br0", name); err != nil {
					return err
				} else if name != must {
					e.draft.auto = append(e.draft.auto, p.Id)
				}
			}
			return e.AddPort("h0", PortOptions{Type: TypeHost})
		})
		if must != "" {
			if err == nil || !strings.Contains(err.Error(), "XDP on nic2 is refused") || len(b.look().Ports) != 0 {
				t.Errorf("%v", err)
			}
			continue
		}
		b.must(err)
		told := 0
		for _, w := range warnings {
			if strings.Contains(w, "it forwards by tcx alone") {
				told++
			}
		}
		var hooks []string
		for _, p := range b.look().Ports {
			hooks = append(hooks, p.Name+" "+p.Hook)
		}
		if want := []string{"p1 xdp", "nic1 tcx", "nic2 tcx", "h0 tcx"}; !slices.Equal(hooks, want) || told != 2 {
			t.Errorf("%q, want %q; %d warnings", hooks, want, told)
		}
	}
}

// A new device with the name of one that is gone replaces it.
func TestEditDeviceAnew(t *testing.T) {
	b := newBench(t, 3)
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
		func(e *Edit) error { return e.SetVLANs("p1", vids("10up")) },
		func(e *Edit) error {
			return e.ReplaceRules("text", strings.NewReader("block in on p1\nblock in on p2\n"))
		},
	)
	l, err := b.ns.Netlink().LinkByName("p1")
	b.must(err)
	b.must(b.ns.Netlink().LinkDel(l))
	b.cable(1)
	if p := b.look().Ports[0]; p.State != "gone" {
		t.Fatalf("the port is %s", p.State)
	}
	gen := b.generation()
	b.edit(
		func(e *Edit) error { return e.AddPort("p3", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
	)
	if n := number(t, b.generation()) - number(t, gen); n != 1 {
		t.Errorf("%d generations", n)
	}
	state := b.look()
	var got []string
	for i, p := range state.Ports {
		got = append(got, fmt.Sprint(p.Name, " ", p.State, " ", state.VLANs[i].Ranges))
	}
	const all = " forwarding [{1 1 {true true}}]" // nothing of the former device
	if want := []string{"p2" + all, "p3" + all, "p1" + all}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if len(state.Rules) != 1 || state.Rules[0].Port != "p2" {
		t.Errorf("rules %v, want that of p2", state.Rules)
	}
}

// Slots that a former configuration uses stay unused as long as there are others.
func TestEditSlots(t *testing.T) {
	b := newBench(t, 3)
	b.must(b.AddBridge("br0", nil))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
	)
	b.edit(
		func(e *Edit) error { return e.DelPort("p1") },
		func(e *Edit) error { return e.AddPort("p3", PortOptions{}) },
	)
	b.must(b.each("", "br0", func(_ string, b *datapath.Bridge) error {
		for _, p := range datapath.Ports(&b.Config) {
			if slot := datapath.Slot(p.Id); datapath.PortName(p) == "p3" && slot != 3 {
				t.Errorf("p3 is in slot %d", slot)
			}
		}
		return nil
	}))
}

// Wherever an Edit was killed, the next writer completes or reverts it.
func TestEditKilled(t *testing.T) {
	killed := errors.New("killed")
	for name, kill := range map[string]func(*draft){
		"before it is made": func(c *draft) {
			c.before = append(c.before, func() error {
				// a killed process cannot undo anything
				c.undo = []func() error{func() error { return killed }}
				return killed
			})
		},
		"after it is made": func(c *draft) {
			c.after = slices.Insert(c.after, 0, func() error { return killed })
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 3)
			b.must(b.AddBridge("br0", nil))
			b.edit(func(e *Edit) error { return e.AddPort("p1", PortOptions{}) })
			was, devices := b.look(), b.devices()
			steps := []func(*Edit) error{
				func(e *Edit) error { return e.AddPort("h0", PortOptions{Type: TypeHost}) },
				func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
				func(e *Edit) error { return e.DelPort("p1") },
				func(e *Edit) error { return e.AddPort("h1", PortOptions{Type: TypeHost}) },
			}
			_, err := b.Edit("br0", func(e *Edit) error {
				defer kill(e.draft)
				return inTurnWith(e, steps)
			})
			if err == nil || !strings.Contains(err.Error(), "killed") || !b.dirty() {
				t.Fatalf("%v, dirty: %t", err, b.dirty())
			}
			b.edit() // the next writer
			if b.dirty() {
				t.Error("still to be mended")
			}
			if strings.HasPrefix(name, "before") {
				if diff := cmp.Diff(was, b.look()); diff != "" {
					t.Errorf("(-before +after):\n%s", diff)
				}
				if diff := cmp.Diff(devices, b.devices()); diff != "" {
					t.Errorf("devices (-before +after):\n%s", diff)
				}
				b.edit(steps...) // now it can be made
			}
			apart := newBench(t, 3)
			apart.must(apart.AddBridge("br0", nil))
			apart.edit(steps[0], steps[1], steps[3])
			if diff := cmp.Diff(apart.look(), b.look()); diff != "" {
				t.Errorf("(-not killed +killed):\n%s", diff)
			}
			if diff := cmp.Diff(apart.devices(), b.devices()); diff != "" {
				t.Errorf("devices (-not killed +killed):\n%s", diff)
			}
		})
	}
}

// Read returns the same as the methods for each part.
func TestRead(t *testing.T) {
	b := newBench(t, 3)
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	b.must(b.AddBridge("br1", nil))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{Changes: on("isolated")}) },
		func(e *Edit) error { return e.AddPort("h0", PortOptions{Type: TypeHost}) },
		func(e *Edit) error { return e.AddSpan("p3", SpanOptions{Ports: []string{"p1"}}) },
		func(e *Edit) error { return e.SetVLANs("p1", vids("1up", "10", "11")) },
		func(e *Edit) error {
			return e.SetPrivateVLANs(100, PrivateVLANs{Isolated: []uint16{101}, Community: []uint16{103, 102}})
		},
		func(e *Edit) error {
			return e.ReplaceRules("text", strings.NewReader("block in on p1\npass out on h0\n"))
		},
	)
	_, err := b.AddPort("br0", "c0", PortOptions{Type: TypePatch, Peer: "br1/c1"})
	b.must(err)
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	b.must(b.AddBinding(Binding{Bridge: "br0", Port: "p1", MAC: mac, Address: netip.MustParseAddr("192.0.2.1"), VLAN: 10}))
	b.must(b.AddEntry("br0", Entry{MAC: mac, VLAN: 10, Port: "p1", Static: true}))
	_, _, err = b.LoadPF("br0", PFLoad{Name: "text", Text: []byte("pass in on p1\n")})
	b.must(err)

	state, err := b.Read("br0")
	b.must(err)
	want := State{
		Private: map[uint16]PrivateVLANs{100: {Isolated: []uint16{101}, Community: []uint16{102, 103}}},
		PF:      &PFText{Enabled: true, Text: state.PF.Text},
		Entries: []Entry{{MAC: mac, VLAN: 10, Port: "p1", Static: true}},
	}
	if !strings.Contains(state.PF.Text, "pass in on p1") {
		t.Errorf("pf: %q", state.PF.Text)
	}
	want.Bridge, err = b.Bridge("br0")
	b.must(err)
	want.Ports, err = b.Ports("br0")
	b.must(err)
	for i := range want.Ports {
		want.Ports[i].Stats = Stats{}
	}
	want.VLANs, err = b.VLANs("br0")
	b.must(err)
	want.Spans, err = b.Spans("br0")
	b.must(err)
	want.Bindings, err = b.Bindings("br0", "")
	b.must(err)
	rules, err := b.Rules("br0", "")
	b.must(err)
	for _, r := range rules {
		want.Rules = append(want.Rules, r.Rule)
	}
	if len(want.Ports) != 4 || len(want.Rules) != 2 || len(want.Spans) != 1 || len(want.Bindings) != 1 {
		t.Fatalf("not all is there: %+v", want)
	}
	if diff := cmp.Diff(want, state, cmp.Comparer(func(a, b rule.Rule) bool { return a.String() == b.String() }), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("(-one by one +at once):\n%s", diff)
	}
	if _, err := b.Read("br9"); err == nil {
		t.Error("a bridge that is not there is read")
	}
}

// manyPorts and manyVLANs are the size of a hosting company's bridge.
const manyPorts, manyVLANs = 256, 64

// many adds manyPorts ports.
func many(e *Edit) error {
	if err := e.Set([]Change{{"vlan-filtering", "on"}}); err != nil {
		return err
	}
	for i := range manyPorts {
		port, vid := fmt.Sprintf("p%d", i+1), uint16(10+i%manyVLANs)
		o := PortOptions{Changes: []Change{{"mcast-flood", "off"}}}
		if err := e.AddPort(port, o); err != nil {
			return err
		}
		if err := e.SetVLANs(port, []VLANRange{{vid, vid, VLANOptions{Untagged: true, PVID: true}}}); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkEdit measures a new bridge with many ports.
func BenchmarkEdit(b *testing.B) {
	s := newBench(b, manyPorts)
	for b.Loop() {
		s.must(s.AddBridge("br0", nil))
		_, err := s.Edit("br0", many)
		s.must(err)
		b.StopTimer()
		_, err = s.DelBridge("br0")
		s.must(err)
		b.StartTimer()
	}
}

// BenchmarkRead measures reading the whole state.
func BenchmarkRead(b *testing.B) {
	s := newBench(b, manyPorts)
	s.must(s.AddBridge("br0", nil))
	_, err := s.Edit("br0", many)
	s.must(err)
	for b.Loop() {
		_, err := s.Read("br0")
		s.must(err)
	}
}

// TestHostPortRenamed adds a host port whose name another host port's interface had before it was
// renamed. The renamed interface's port is known by its new name only.
func TestHostPortRenamed(t *testing.T) {
	b := newBench(t, 1)
	nl := b.ns.Netlink()
	rename := func(from, to string) {
		t.Helper()
		l, err := nl.LinkByName(from)
		b.must(err)
		b.must(nl.LinkSetName(l, to))
	}
	ends := func() (names []string) {
		t.Helper()
		list, err := nl.LinkList()
		b.must(err)
		for _, l := range list {
			if isSwitchEnd(l) {
				names = append(names, l.Attrs().Name)
			}
		}
		return names
	}
	want := func(names ...string) {
		t.Helper()
		list, err := b.Ports("br0")
		b.must(err)
		var got []string
		for _, p := range list {
			got = append(got, p.Name)
		}
		if !slices.Equal(got, names) {
			t.Errorf("ports %q, want %q", got, names)
		}
	}
	host := PortOptions{Type: TypeHost}
	b.must(b.AddBridge("br0", nil))
	add := func(port string, o PortOptions) {
		t.Helper()
		_, err := b.AddPort("br0", port, o)
		b.must(err)
	}
	add("host0", host)
	rename("host0", "other")
	want("other")

	// delete the one and add the other in one step
	b.edit(
		func(e *Edit) error { return e.DelPort("other") },
		func(e *Edit) error { return e.AddPort("host0", host) },
	)
	want("host0")
	if names := ends(); len(names) != 1 {
		t.Errorf("%q are left, want one switch's end", names)
	}

	// both stay
	rename("host0", "other")
	add("host0", host)
	want("other", "host0")
	if _, err := b.AddPort("br0", "host0", host); err == nil || !strings.Contains(err.Error(), "is a port of br0 already") {
		t.Errorf("the same once more: %v", err)
	}
	names := ends()
	if len(names) != 2 {
		t.Fatalf("%q are the switch's ends, want two", names)
	}

	// mend deletes the end without a port that a killed command has left, and keeps each port's
	// own end
	left := netlink.NewLinkAttrs()
	left.Name, left.Group = "bsc01234567", switchEndGroup
	b.must(nl.LinkAdd(&netlink.Veth{LinkAttrs: left, PeerName: "left"}))
	b.must(b.write(func(store *datapath.Store) error {
		bridge, err := store.Open("br0")
		if err != nil {
			return err
		}
		return bridge.Begin()
	}))
	b.must(b.write(func(*datapath.Store) error { return nil }))
	if after := ends(); !slices.Equal(after, names) {
		t.Errorf("%q are the switch's ends after a kill, want %q", after, names)
	}

	// a port whose interface is in another namespace keeps its last name
	l, err := nl.LinkByName("other")
	b.must(err)
	far, err := netns.GetFromName(b.far.Name)
	b.must(err)
	defer far.Close()
	b.must(nl.LinkSetNsFd(l, int(far)))
	want("other", "host0")
	if _, err := b.AddPort("br0", "other", host); err == nil || !strings.Contains(err.Error(), "a port of this name is in the bridge") {
		t.Errorf("a port of the name of one that is elsewhere: %v", err)
	}
	_, err = b.DelPort("br0", "other")
	b.must(err)
	want("host0")
	if after := ends(); len(after) != 1 {
		t.Errorf("%q are left, want one switch's end", after)
	}

	// the same holds for devices and cables
	add("p1", PortOptions{})
	rename("p1", "uplink")
	b.must(b.AddBridge("br1", nil))
	add("p1", PortOptions{Type: TypePatch, Peer: "br1/p1"})
	want("host0", "uplink", "p1")
	l, err = nl.LinkByName("uplink")
	b.must(err)
	b.must(nl.LinkDel(l))
	want("host0", "uplink", "p1")
}
