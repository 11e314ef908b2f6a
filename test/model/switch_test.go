// SPDX-License-Identifier: BSD-2-Clause

// Package model applies the same random commands and frames to a switch too simple to be wrong
// and to the real one, and compares the results.
package model

import (
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bascule/test/netlab"
)

// TestMain makes the run short and repeatable. A longer one:
//
//	go test ./test/model -rapid.checks=1000 -rapid.seed=0 -timeout=0
func TestMain(m *testing.M) {
	flag.Parse()
	short := map[string]string{"rapid.checks": fmt.Sprint(netlab.Tenth(12)), "rapid.steps": "40", "rapid.seed": "1", "rapid.nofailfile": "true"}
	flag.Visit(func(f *flag.Flag) { delete(short, f.Name) })
	for name, value := range short {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(netlab.Main(m))
}

// The addresses of frames and entries. They are few, so that collisions are frequent.
var (
	stations = []netlab.MAC{netlab.Station(1), netlab.Station(2), netlab.Station(3), netlab.Station(4), netlab.Station(5)}
	vlans    = []int{0, 0, 0, 10, 20, 30}
	groups   = []netlab.MAC{netlab.Broadcast, netlab.Group(1), {1, 0x80, 0xc2, 0, 0, 3}, {1, 0x80, 0xc2, 0, 0, 14}, {1, 0x80, 0xc2, 0, 0, 0x10}}
	domains  = []string{"none", "none", "1", "2", "1,2", "31"}
	masks    = []uint32{0, 0, 1 << 1, 1 << 2, 1<<1 | 1<<2, 1 << 31}
)

// TestModel applies random operations to both switches.
func TestModel(t *testing.T) {
	l := netlab.New(t)
	// Half of the ends take XDP frames, and two are in the switch's namespace.
	l.NewEnds(4)
	l.NewEnd(l.Switch)
	l.NewEnd(l.Switch)
	for i, e := range l.Ends {
		if i%2 == 0 {
			e.ReadyForXDP()
		}
	}
	rapid.Check(t, func(rt *rapid.T) {
		m := &machine{T: rt, lab: l, model: model{ports: map[int]settings{}, fdb: map[address]place{}, max: 65536, below: map[int]int{}}}
		m.do("bridge", "add", "br0")
		defer m.do("bridge", "del", "br0")
		for range 3 {
			m.addPort(rt)
		}
		rt.Repeat(map[string]func(*rapid.T){
			"frames":        m.frames,
			"frames again":  m.frames, // more frequent than other operations
			"frames anew":   m.frames,
			"add port":      m.addPort,
			"delete port":   m.delPort,
			"set port":      m.setPort,
			"set bridge":    m.setBridge,
			"filter VLANs":  m.setFiltering,
			"set VLANs":     m.setVLANs,
			"more VLANs":    m.setVLANs,
			"private VLANs": m.setPrivate,
			"add entry":     m.addEntry,
			"delete entry":  m.delEntry,
			"flush":         m.flush,
			"compare":       m.compare,
			"compare again": m.compare,
		})
		m.compare(rt)
	})
}

// A machine is both switches.
type machine struct {
	*rapid.T
	lab *netlab.Lab
	model
}

func draw[V any](t *rapid.T, what string, of []V) V { return rapid.SampledFrom(of).Draw(t, what) }

// drawPort draws the number of an end, which may not be a port.
func (m *machine) drawPort(t *rapid.T) int {
	return rapid.IntRange(1, len(m.lab.Ends)).Draw(t, "port")
}

func (m *machine) end(port int) *netlab.End { return m.lab.Ends[port-1] }

func (m *machine) run(args ...string) netlab.Result {
	m.Helper()
	r, err := m.lab.Run(args...)
	if err != nil {
		m.Fatal(err)
	}
	return r
}

// do runs a command that must succeed.
func (m *machine) do(args ...string) {
	m.Helper()
	if r := m.run(args...); r.Exit != 0 {
		m.Fatal(r)
	}
}

// try runs a command that must succeed if allowed, and be refused otherwise.
func (m *machine) try(allowed bool, args ...string) {
	m.Helper()
	if r := m.run(args...); (r.Exit == 0) != allowed {
		m.Fatalf("%v: should succeed: %v", r, allowed)
	}
}

func (m *machine) frames(t *rapid.T) {
	for range rapid.IntRange(1, 12).Draw(t, "frames") {
		in := m.drawPort(t)
		src := draw(t, "src", append([]netlab.MAC{netlab.Group(2), {}}, slices.Repeat(stations, 4)...))
		dst := draw(t, "dst", slices.Concat(groups, stations, stations, []netlab.MAC{{}}))
		vlan := draw(t, "vlan", vlans)
		tagged := vlan > 0 || rapid.IntRange(0, 9).Draw(t, "priority tag") == 0
		f := m.lab.Frames(1, dst, src)[0]
		if tagged {
			f = f.Tagged(uint16(vlan), 3)
		}
		want := map[int]netlab.Frame{}
		for _, l := range m.forward(in, dst, address{src, vlan}) {
			want[l.port] = f
			if l.vlan == -1 {
				continue
			}
			priority := uint8(0)
			if tagged {
				want[l.port], priority = f[:12]+f[16:], 3
			}
			if l.vlan > 0 {
				want[l.port] = want[l.port].Tagged(uint16(l.vlan), priority)
			}
		}
		if _, there := m.ports[in]; there && rapid.IntRange(0, 19).Draw(t, "traced") == 0 {
			if said := m.trace(t, in, f); !slices.Equal(said, slices.Sorted(maps.Keys(want))) {
				t.Fatalf("%v from port %d: traced out by %v, should leave as %v", f, in, said, want)
			}
		}
		got := map[int]netlab.Frame{}
		for e, frames := range m.lab.Deliver(m.end(in), f) {
			if len(frames) > 1 {
				t.Fatalf("%v arrived %d times at %v", f, len(frames), e)
			}
			for _, g := range frames {
				got[portOf(m.lab, e)] = g
			}
		}
		if !maps.Equal(got, want) {
			t.Fatalf("%v from port %d: left as %v, should leave as %v", f, in, got, want)
		}
	}
}

// setFiltering switches VLAN filtering, in most cases on.
func (m *machine) setFiltering(t *rapid.T) {
	on := rapid.IntRange(0, 2).Draw(t, "filtering") > 0
	m.do("bridge", "set", "br0", "--vlan-filtering="+map[bool]string{true: "on", false: "off"}[on])
	if on != m.filtering {
		for _, a := range m.dynamic(0) {
			delete(m.fdb, a)
		}
	}
	if on && !m.filtered {
		for n, p := range m.ports {
			p.join()
			m.ports[n] = p
		}
	}
	m.filtering, m.filtered = on, m.filtered || on
}

// setVLANs adds a port to VLANs, or removes it from some.
func (m *machine) setVLANs(t *rapid.T) {
	port := m.drawPort(t)
	p, there := m.ports[port]
	list := rapid.SliceOfNDistinct(rapid.SampledFrom([]int{1, 10, 20, 30}), 1, 3, rapid.ID).Draw(t, "VLANs")
	var words []string
	for _, vlan := range list {
		words = append(words, fmt.Sprint(vlan))
	}
	args := []string{"vlan", "add", "br0", m.end(port).Port, strings.Join(words, ",")}
	allowed := there && m.filtering
	if rapid.IntRange(0, 2).Draw(t, "delete") == 0 {
		args[1] = "del"
		for _, vlan := range list {
			_, member := p.in[vlan]
			allowed = allowed && member
		}
		m.try(allowed && m.changeVLANs(func() {
			p := m.ports[port]
			for _, vlan := range list {
				delete(p.in, vlan)
				if p.pvid == vlan {
					p.pvid = 0
				}
			}
			m.ports[port] = p
		}), args...)
		return
	}
	untagged, pvid := rapid.Bool().Draw(t, "untagged"), rapid.Bool().Draw(t, "pvid")
	if untagged {
		args = append(args, "--untagged")
	}
	if pvid {
		args = append(args, "--pvid")
		allowed = allowed && len(list) == 1
	}
	m.try(allowed && m.changeVLANs(func() {
		p := m.ports[port]
		for _, vlan := range list {
			p.in[vlan] = untagged
			if p.pvid == vlan {
				p.pvid = 0
			}
			if pvid {
				p.pvid = vlan
			}
		}
		m.ports[port] = p
	}), args...)
}

// setPrivate makes VLANs private below another, or ordinary again.
func (m *machine) setPrivate(t *rapid.T) {
	one, two := rapid.Bool().Draw(t, "isolated"), rapid.Bool().Draw(t, "community")
	word := func(on bool, vlan int) string {
		if on {
			return fmt.Sprint(vlan)
		}
		return "none"
	}
	m.try(m.filtering && m.changeVLANs(func() {
		clear(m.below)
		if one {
			m.below[isolated] = aPrimary
		}
		if two {
			m.below[30] = aPrimary
		}
	}), "vlan", "private", "br0", fmt.Sprint(aPrimary), "--isolated", word(one, isolated), "--community", word(two, 30))
}

// trace returns the output ports of a frame according to the real switch.
func (m *machine) trace(t *rapid.T, in int, f netlab.Frame) []int {
	r := m.run("-j", "trace", "br0", "--in", m.end(in).Port, hex.EncodeToString([]byte(f)))
	var list []struct{ Out []string }
	if err := json.Unmarshal([]byte(r.Stdout), &list); err != nil || len(list) != 1 {
		t.Fatalf("%v: %v", r, err)
	}
	var out []int
	for i, e := range m.lab.Ends {
		if slices.Contains(list[0].Out, e.Port) {
			out = append(out, i+1)
		}
	}
	return out
}

func portOf(l *netlab.Lab, e *netlab.End) int { return slices.Index(l.Ends, e) + 1 }

// drawFlags draws settings of a port. Some of them become flags, the others keep their values.
// It returns the flags and the new state.
func drawFlags(t *rapid.T, s settings) (args []string, _ settings) {
	for _, f := range []struct {
		name string
		on   *bool
		rare int // how rarely it is off
	}{{"learn", &s.learn, 4}, {"discover", &s.discover, 3}, {"mcast-flood", &s.mcast, 3}, {"bcast-flood", &s.bcast, 3}, {"hairpin", &s.hairpin, 2}} {
		if rapid.IntRange(0, 3).Draw(t, f.name+" given") > 0 {
			continue
		}
		*f.on = rapid.IntRange(1, f.rare).Draw(t, f.name) > 1
		args = append(args, fmt.Sprintf("--%s=%s", f.name, map[bool]string{true: "on", false: "off"}[*f.on]))
	}
	if rapid.IntRange(0, 3).Draw(t, "protected given") == 0 {
		i := rapid.IntRange(0, len(domains)-1).Draw(t, "protected")
		s.domains = masks[i]
		args = append(args, "--protected", domains[i])
	}
	if rapid.IntRange(0, 3).Draw(t, "fdb-max given") == 0 {
		s.max = draw(t, "fdb-max", []int{0, 0, 1, 2, 3})
		args = append(args, "--fdb-max", fmt.Sprint(s.max))
	}
	return args, s
}

// drawHook draws the hook of a port's program. It is XDP only where the end supports that.
func drawHook(t *rapid.T, port int) string {
	if port%2 == 0 {
		return "tcx"
	}
	return draw(t, "hook", []string{"tcx", "xdp"})
}

func (m *machine) addPort(t *rapid.T) {
	port := m.drawPort(t)
	_, there := m.ports[port]
	args, s := drawFlags(t, settings{learn: true, discover: true, mcast: true, bcast: true})
	m.try(!there, append([]string{"port", "add", "br0", m.end(port).Port, "--hook", drawHook(t, port)}, args...)...)
	if !there {
		if m.filtered {
			s.join()
		}
		m.ports[port] = s
	}
}

func (m *machine) delPort(t *rapid.T) {
	port := m.drawPort(t)
	_, there := m.ports[port]
	m.try(there, "port", "del", "br0", m.end(port).Port)
	delete(m.ports, port)
	for _, a := range m.match(port, -1, true, true) {
		delete(m.fdb, a)
	}
}

func (m *machine) setPort(t *rapid.T) {
	port := m.drawPort(t)
	s, there := m.ports[port]
	args, s := drawFlags(t, s)
	if rapid.IntRange(0, 3).Draw(t, "hook given") == 0 || len(args) == 0 {
		args = append(args, "--hook", drawHook(t, port))
	}
	m.try(there, append([]string{"port", "set", "br0", m.end(port).Port}, args...)...)
	if !there {
		return
	}
	m.ports[port] = s
	if s.max > 0 {
		m.shrink(t, port, s.max)
	}
}

func (m *machine) setBridge(t *rapid.T) {
	m.max = draw(t, "fdb-max", []int{65536, 100, 6, 4, 2})
	m.mask = draw(t, "group-fwd-mask", []int{0, 1 << 3, 1 << 14, 0xffff})
	m.do("bridge", "set", "br0", "--fdb-max", fmt.Sprint(m.max), "--group-fwd-mask", fmt.Sprint(m.mask))
	m.shrink(t, 0, m.max)
}

// shrink removes learned addresses of a port, 0 for all, until no more than max are left. The
// real switch chooses which.
func (m *machine) shrink(t *rapid.T, port, max int) {
	known := m.dynamic(port)
	if len(known) <= max {
		return
	}
	entries := m.entries(t)
	left := 0
	for _, a := range known {
		if _, ok := entries[a]; ok {
			left++
		} else {
			delete(m.fdb, a)
		}
	}
	if left != max {
		t.Fatalf("%d of %d learned addresses are left, should be %d", left, len(known), max)
	}
}

// entries returns the real switch's FDB.
func (m *machine) entries(t *rapid.T) map[address]place {
	got := map[address]place{}
	for _, e := range m.lab.FDB("br0") {
		var a address
		a.vlan = e.VLAN
		if n, err := fmt.Sscanf(e.MAC, "%02x:%02x:%02x:%02x:%02x:%02x", &a.mac[0], &a.mac[1], &a.mac[2], &a.mac[3], &a.mac[4], &a.mac[5]); n != 6 {
			t.Fatalf("entry %v: %v", e, err)
		}
		p := place{static: e.State == "static", sticky: slices.Contains(e.Flags, "sticky")}
		for i, end := range m.lab.Ends {
			if end.Port == e.Ifname {
				p.port = i + 1
			}
		}
		if _, twice := got[a]; twice {
			t.Fatalf("entry %v is there twice", e)
		}
		got[a] = p
	}
	return got
}

func (m *machine) addEntry(t *rapid.T) {
	port, a := m.drawPort(t), address{draw(t, "mac", stations), draw(t, "vlan", vlans)}
	sticky := rapid.Bool().Draw(t, "sticky")
	p, there := m.ports[port]
	vlan := a.vlan // as in the command
	member := true
	if m.filtering {
		if a.vlan == 0 {
			a.vlan = p.pvid
		}
		_, member = p.in[a.vlan]
		a.vlan = m.addresses(a.vlan)
	}
	old, known := m.fdb[a]
	allowed := there && member && !(known && (old.static || old.sticky) && old.port != port)
	args := []string{"fdb", "add", "br0", a.mac.String(), m.end(port).Port}
	if vlan > 0 {
		args = append(args, "--vlan", fmt.Sprint(vlan))
	}
	if sticky {
		args = append(args, "--sticky")
	}
	m.try(allowed, args...)
	if allowed {
		m.fdb[a] = place{port, !sticky, sticky}
	}
}

func (m *machine) delEntry(t *rapid.T) {
	a := address{draw(t, "mac", stations), draw(t, "vlan", vlans)}
	args := []string{"fdb", "del", "br0", a.mac.String()}
	if a.vlan > 0 {
		args = append(args, "--vlan", fmt.Sprint(a.vlan))
	}
	if m.filtering && a.vlan == 0 { // the only one
		var list []address
		for b := range m.fdb {
			if b.mac == a.mac {
				list = append(list, b)
			}
		}
		if len(list) != 1 {
			m.try(false, args...)
			return
		}
		a = list[0]
	} else {
		a.vlan = m.addresses(a.vlan)
	}
	_, known := m.fdb[a]
	m.try(known, args...)
	delete(m.fdb, a)
}

func (m *machine) flush(t *rapid.T) {
	port, vlan, pinned := 0, -1, rapid.Bool().Draw(t, "static")
	args := []string{"fdb", "flush", "br0"}
	allowed := true
	if rapid.Bool().Draw(t, "of a port") {
		port = m.drawPort(t)
		_, allowed = m.ports[port]
		args = append(args, "--port", m.end(port).Port)
	}
	if rapid.Bool().Draw(t, "of a VLAN") {
		vlan = draw(t, "vlan", vlans)
		args = append(args, "--vlan", fmt.Sprint(vlan))
		vlan = m.addresses(vlan)
	}
	if pinned {
		args = append(args, "--static")
	}
	m.try(allowed, args...)
	if allowed {
		for _, a := range m.match(port, vlan, true, pinned) {
			delete(m.fdb, a)
		}
	}
}

// compare compares the complete state of both switches.
func (m *machine) compare(t *rapid.T) {
	got := m.entries(t)
	var wrong []string
	for a, e := range m.fdb {
		if got[a] != e {
			wrong = append(wrong, fmt.Sprintf("%v: %+v, should be %+v", a, got[a], e))
		}
	}
	for a, e := range got {
		if _, ok := m.fdb[a]; !ok {
			wrong = append(wrong, fmt.Sprintf("%v: %+v, should be unknown", a, e))
		}
	}
	if wrong != nil {
		t.Fatalf("the FDB is wrong:\n%s", strings.Join(wrong, "\n"))
	}
	if n := m.lab.Bridge("br0").FDBCount; n != len(m.dynamic(0)) {
		t.Fatalf("%d learned addresses are counted, should be %d", n, len(m.dynamic(0)))
	}
	for _, p := range m.lab.Ports("br0") {
		for i, e := range m.lab.Ends {
			if n := len(m.dynamic(i + 1)); e.Port == p.Ifname && n != p.FDBCount {
				t.Fatalf("%d learned addresses of %s are counted, should be %d", p.FDBCount, e.Port, n)
			}
		}
	}
}
