// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"bascule/rule"

	"github.com/cilium/ebpf"
	gocmp "github.com/google/go-cmp/cmp"
)

// programs are the programs that the bridge's ports have now.
func (s *shelf) programs(b *Bridge) (ids []ebpf.ProgramID) {
	s.t.Helper()
	for _, p := range Ports(&b.Config) {
		tcx, _ := s.attached(p.Ifindex)
		ids = append(ids, tcx...)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// A change that needs no new programs loads none: two sets of them take turns.
func TestSpare(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 3)
	must := func(change func(c *Config, p []*Port)) []ebpf.ProgramID {
		t.Helper()
		if err := s.commit(b, change); err != nil {
			t.Fatal(err)
		}
		s.expectAttached(b)
		return s.programs(b)
	}
	first := s.programs(b)
	second := must(func(c *Config, p []*Port) { p[0].FdbMax = 7 })
	if slices.Equal(first, second) {
		t.Fatalf("programs %v have settings that no frame may see half of", first)
	}
	turns := [][]ebpf.ProgramID{first, second}
	for i, change := range []func(c *Config, p []*Port){
		func(c *Config, p []*Port) { p[0].FdbMax = 8 },
		func(c *Config, p []*Port) { c.Ageing = 17 },
		func(c *Config, p []*Port) {
			q := NewPort(c, "new")
			q.Ifindex, q.Flags = s.rack.near[3], p[0].Flags
		},
		func(c *Config, p []*Port) { *p[1] = Port{} },
	} {
		if got := must(change); !slices.Equal(got, turns[i%2]) {
			t.Fatalf("change %d: programs %v are on the ports, not %v", i, got, turns[i%2])
		}
	}
	if got := len(Ports(&s.open("br0").Config)); got != 3 {
		t.Errorf("%d ports are there, not 3", got)
	}
	// a feature loads new programs, and the former ones are not kept
	third := must(func(c *Config, p []*Port) { p[0].Flags |= PortHairpin })
	if slices.Contains(turns[0], third[0]) || slices.Contains(turns[1], third[0]) {
		t.Errorf("programs %v have no hairpin", third)
	}
	if _, err := os.Stat(b.pin(sparePin)); err == nil {
		t.Error("a spare without hairpin is kept")
	}
}

// A bridge without ports has no programs for frames, with any features, and takes turns
// without them. They come with the first port, and go with the last.
func TestNoPortsNoPrograms(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 0)
	expect := func() {
		t.Helper()
		_, err := os.Stat(b.pin(b.gen, tcxPin))
		if has := err == nil; has != (len(Ports(&b.Config)) > 0) {
			t.Errorf("with %d ports: programs for frames are there: %v", len(Ports(&b.Config)), has)
		}
		b = s.open("br0")
		s.expectAttached(b)
	}
	must := func(change func(*Config)) {
		t.Helper()
		if err := s.commit(b, func(c *Config, _ []*Port) { change(c) }); err != nil {
			t.Fatal(err)
		}
		expect()
	}
	spare := func(want bool) {
		t.Helper()
		if _, err := os.Stat(b.pin(sparePin)); (err == nil) != want {
			t.Errorf("a spare is there: %v, want %v", err == nil, want)
		}
	}
	must(func(c *Config) { c.Ageing = 17 })
	spare(true)
	must(func(c *Config) { c.Ageing = 18 })
	spare(true)
	s.loadPF(b, "pass")
	expect()
	spare(false)
	must(func(c *Config) { c.Ageing = 19 })
	spare(true)
	must(func(c *Config) {
		p := NewPort(c, "new")
		p.Ifindex, p.Flags = s.rack.near[0], PortLearn|allFloods
	})
	spare(false)
	if names := pfMapsOf(t, b, tcxPin); len(names) == 0 {
		t.Error("the programs know nothing of pf")
	}
	must(func(c *Config) { *PortAt(c, Ports(c)[0].Id) = Port{} })
	spare(false)
	must(func(c *Config) { c.Ageing = 20 })
	spare(true)
}

// Decisions that programs have remembered with former settings do not count when it is their
// turn again.
func TestSpareForgets(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	epoch := func() uint32 {
		c, err := b.clock()
		if err != nil {
			t.Fatal(err)
		}
		return c.Epoch
	}
	for i := range 6 {
		before := epoch()
		if err := s.commit(b, func(c *Config, p []*Port) { p[0].FdbMax = uint32(i) + 1 }); err != nil {
			t.Fatal(err)
		}
		if i > 0 && epoch() == before {
			t.Fatalf("change %d: decisions of two changes ago would hold", i)
		}
	}
}

// A spare has VLANs and berths of its own, with the contents of the change.
func TestSpareTables(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2)
	commit := func(change func(c *Config), v *VLANs) {
		t.Helper()
		s.do(func() error {
			next := b.Config
			change(&next)
			return b.Commit(&next, Tables{VLANs: v}, keepAll)
		})
	}
	vlans := func(n int) *VLANs {
		v := new(VLANs)
		v[n].Fid = uint16(n)
		return v
	}
	none := func(*Config) {}
	commit(func(c *Config) { c.Flags |= uint32(BridgeVLANs) }, vlans(10))
	for i, tt := range []struct {
		change func(*Config)
		vlans  *VLANs
		want   int
	}{{none, vlans(11), 11}, {none, vlans(12), 12}, {none, nil, 12}, {none, nil, 12}, {none, vlans(13), 13}, {none, vlans(14), 14}, {none, nil, 14}} {
		commit(tt.change, tt.vlans)
		got, err := b.VLANs()
		if err != nil {
			t.Fatal(err)
		}
		if *got != *vlans(tt.want) {
			t.Fatalf("change %d: the VLANs are not those of %d", i, tt.want)
		}
	}
	commit(func(c *Config) { NewBerth(c, "tap*"); NewBerth(c, "tap*") }, nil)
	for i := range 4 {
		if i == 2 {
			s.do(func() error { return b.Occupy(b.Ready()[0], s.rack.near[2], "tap0", 0, 0, keepsAll, keepAll) })
			if again := s.open("br0"); len(again.devices) != 1 {
				t.Fatalf("%d devices are in berths", len(again.devices))
			}
		}
		b = s.open("br0")
		commit(func(c *Config) { c.Ageing = uint32(20 + i) }, nil)
		if again := s.open("br0"); len(again.devices) != 0 {
			t.Fatalf("change %d: %d devices are in berths that the change does not know", i, len(again.devices))
		}
	}
	s.expectAttached(b)
}

// A change of MAC rules needs no new programs if there were rules before, and neither does
// any other change. The counters stay with the rules.
func TestSpareRules(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 3)
	s.commitRules(b, "pass in on p0")
	s.hit(b, 1, 7)
	first := s.programs(b)
	s.commitRules(b, "block in on p1\npass in on p0")
	second := s.programs(b)
	turns := [][]ebpf.ProgramID{first, second}
	many := strings.Repeat("block in on p2 src 02:00:00:00:00:01\n", 200)
	for i, tt := range []struct {
		rules string // "" for another change
		want  []string
	}{
		{"pass in on p0\nblock in on p1", []string{"pass in on near0: 7", "block in on near1: 0"}},
		{"pass in on p0", []string{"pass in on near0: 7"}},
		{"", []string{"pass in on near0: 7"}},
		{"", []string{"pass in on near0: 7"}},
		{"pass out on p2 tag x\npass in on p0\npass in on p0", []string{"pass out on near2 tag x: 0", "pass in on near0: 7", "pass in on near0: 0"}},
		{"", []string{"pass out on near2 tag x: 0", "pass in on near0: 7", "pass in on near0: 0"}},
		{many + "pass in on p0", append(slices.Repeat([]string{"block in on near2 src 02:00:00:00:00:01: 0"}, 200), "pass in on near0: 7")},
		{"", append(slices.Repeat([]string{"block in on near2 src 02:00:00:00:00:01: 0"}, 200), "pass in on near0: 7")},
		{"pass in on p0", []string{"pass in on near0: 7"}},
	} {
		if tt.rules != "" {
			s.commitRules(b, tt.rules)
		} else if err := s.commit(b, func(c *Config, p []*Port) { c.Ageing = uint32(100 + i) }); err != nil {
			t.Fatal(err)
		}
		if got := s.programs(b); !slices.Equal(got, turns[i%2]) {
			t.Fatalf("change %d: programs %v are on the ports, not %v", i, got, turns[i%2])
		}
		s.expectAttached(b)
		if diff := gocmp.Diff(tt.want, s.ruled(s.open("br0"))); diff != "" {
			t.Fatalf("change %d: %s", i, diff)
		}
	}
	// more rules than there is room for need new programs, which then take turns again
	more := strings.Repeat("block in on p2 src 02:00:00:00:00:01\n", 500) + "pass in on p0"
	var seen []ebpf.ProgramID
	for i := range 4 {
		s.commitRules(b, strings.Repeat("pass in on p0\n", i+1)+more)
		seen = append(seen, s.programs(b)...)
		if got := s.ruled(s.open("br0"))[0]; got != "pass in on near0: 7" {
			t.Fatalf("with many rules, change %d: %s", i, got)
		}
	}
	if slices.Contains(turns[0], seen[0]) || slices.Contains(turns[1], seen[0]) || seen[0] == seen[1] || seen[0] != seen[2] || seen[1] != seen[3] {
		t.Errorf("with many rules programs %v took turns, after %v", seen, turns)
	}
}

// All rules of a bridge can be exchanged for others, whose counters are zero.
func TestSpareRulesNumbers(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	for i := range 6 {
		s.commitRules(b, fmt.Sprintf("pass in on p0 tag t%d", i))
		if got, want := s.ruled(s.open("br0")), fmt.Sprintf("pass in on near0 tag t%d: 0", i); got[0] != want {
			t.Fatalf("change %d: %s, want %s", i, got[0], want)
		}
		_, numbers, err := b.numberedRules()
		if err != nil {
			t.Fatal(err)
		}
		s.hit(b, numbers[0], 5)
		if i > 0 && numbers[0] > 2 {
			t.Errorf("change %d: number %d while others are free", i, numbers[0])
		}
	}
	list := make([]Rule, MaxRules)
	had := make([]kernelRule, 1)
	for i := range list {
		list[i] = Rule{Ports(&b.Config)[0].Id, parseRules(t, fmt.Sprintf("pass in on p0 tag t%d", i))[0]}
		had = append(had, kernelRule{Port: 1, Turn: uint16(i + 1)})
	}
	c, err := compileRules(list, had)
	if err != nil {
		t.Fatal(err)
	}
	if got := len(c.rules); got != ruleNumbers+1 || ruleRoom(got) != ruleNumbers+1 {
		t.Errorf("%d numbers, of %d", got, ruleNumbers)
	}
}

// Every frame counts for its rule, once, during all changes of rules.
func TestSpareRulesCount(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 3)
	s.commitRules(b, "pass in on p0")
	stop := s.send(0, from(0))
	for i := range 60 {
		switch i % 4 {
		case 0:
			s.commitRules(b, "block in on p0 src 02:00:00:00:00:01\npass in on p0\npass out on p1")
		case 1:
			s.commitRules(b, "pass in on p0\nblock in on p1")
		case 2:
			if err := s.commit(b, func(c *Config, p []*Port) { c.Ageing = uint32(100 + i) }); err != nil {
				t.Fatal(err)
			}
		case 3:
			s.commitRules(b, strings.Repeat("block in on p2\n", i*8)+"pass in on p0")
		}
	}
	stop()
	b = s.open("br0")
	port, err := b.PortStats(Ports(&b.Config)[0])
	if err != nil {
		t.Fatal(err)
	}
	rules, err := b.Rules()
	if err != nil {
		t.Fatal(err)
	}
	stats, err := b.RuleStats()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(rules, func(r Rule) bool { return r.Port == Ports(&b.Config)[0].Id })
	if port.RxFrames == 0 || stats[at].Frames != port.RxFrames {
		t.Errorf("%d frames came in, %d counted for the rule", port.RxFrames, stats[at].Frames)
	}
}

// Remains of a killed command in the spare are not taken for the bridge's rules.
func TestSpareRulesHalf(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	for range 3 {
		s.commitRules(b, "pass in on p0\nblock in on p1")
	}
	half := func() {
		t.Helper()
		m, err := ebpf.LoadPinnedMap(b.pin(sparePin, kernelMapRuleNumbers), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		rules, err := ebpf.LoadPinnedMap(b.pin(sparePin, kernelMapRules), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer rules.Close()
		if err := errors.Join(rules.Put(uint32(0), kernelRule{}), clearMap[rule.Key, uint32](m)); err != nil {
			t.Fatal(err)
		}
	}
	half()
	if err := s.commit(b, func(c *Config, p []*Port) { c.Ageing = 100 }); err != nil {
		t.Fatal(err)
	}
	m, err := b.openTable(kernelMapRuleNumbers)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if n, err := countOf[rule.Key, uint32](m); n != 2 || err != nil {
		t.Errorf("frames find %d rules of 2 (%v)", n, err)
	}
}

// Other rules of pf need no new programs, neither do the same rules for other ports, nor other
// changes. Each ruleset has its own counters; states stay.
func TestSparePF(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 3)
	frame := udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000)
	judged := func(from int) string {
		t.Helper()
		d, err := traceIn(s, b, from, udpFrame(2, 1, "192.0.2.9", "192.0.2.1", 53, 1000))
		if err != nil {
			t.Fatal(err)
		}
		if d.Reason == uint32(kernelDropReasonDROP_PF) {
			return "block"
		}
		return "pass"
	}
	var turns [][]ebpf.ProgramID
	load := func(conf string, change ...func(*Config, *PF)) {
		t.Helper()
		was := b.Config.Pf.Ruleset
		s.loadPF(b, conf, change...)
		b = s.open("br0")
		s.expectAttached(b)
		turns = append(turns, s.programs(b))
		if text, err := b.PFText(); string(text) != conf || err != nil {
			t.Fatalf("change %d: the text is %q, %v", len(turns), text, err)
		}
		if got := b.Config.Pf.Ruleset; len(change) == 0 && got != was+1 {
			t.Fatalf("change %d: ruleset %d is followed by %d", len(turns), was, got)
		}
	}
	other := func() {
		t.Helper()
		if err := s.commit(b, func(c *Config, _ []*Port) { c.Ageing++ }); err != nil {
			t.Fatal(err)
		}
		b = s.open("br0")
		turns = append(turns, s.programs(b))
	}
	same := func(_ *Config, p *PF) { p.Same = true }
	// equal reports whether changes have the programs of each other, by their numbers from the last: 0
	equal := func(i, j int) bool {
		return slices.Equal(turns[len(turns)-1-i], turns[len(turns)-1-j])
	}
	expectTurns := func(what string) {
		t.Helper()
		if !equal(0, 2) || equal(0, 1) {
			t.Fatalf("%s: programs %v took turns", what, turns[len(turns)-3:])
		}
	}
	blocks := "block in on near0 proto udp from 192.0.2.1 to port 53\npass in on near1 proto udp to 192.0.2.9\n"
	passes := "pass in on near0 proto udp from 192.0.2.0/24 to port 53\nblock in on near1 proto udp from 192.0.2.1 to 192.0.2.9\npass proto udp to 198.51.100.0/24\n"
	for i := range 8 {
		conf, at, want := blocks, 1, []string{"block", "pass"}
		if i%2 == 1 {
			conf, at, want = passes, 0, []string{"pass", "block"}
		}
		load(conf)
		if i >= 2 {
			expectTurns("other rules")
		}
		if got := []string{judged(0), judged(1)}; !slices.Equal(got, want) {
			t.Fatalf("ruleset %d: %s, want %s", i, got, want)
		}
		for from := range 2 {
			for n := range 3 { // the programs remember which rules match
				s.run(b, from, udpFrame(2, 1, "192.0.2.9", "192.0.2.1", 53, 2000+100*i+10*from+n))
			}
		}
		sum, err := b.PFTraffic()
		if err != nil {
			t.Fatal(err)
		}
		for n, from := range []int{0, 1} {
			if got := sum.Rules[n]; got.Evaluations != 3 || (got.States == 3) != (want[from] == "pass") || (got.States == 0) != (want[from] == "block") {
				t.Fatalf("ruleset %d: rule %d counts %+v, and would %s", i, n, got, want[from])
			}
		}
		if n := sum.Rules[at].States; n != 3 || sum.Counters[PFInserts]-sum.Counters[PFRemovals] != uint64(3*(i+1)) {
			t.Fatalf("ruleset %d: rule %d has %d states, and there are %+v", i, at, n, sum.Counters)
		}
	}
	// the rules stay: so do their counters, and programs that count elsewhere do not fit
	before, err := b.PFTraffic()
	if err != nil {
		t.Fatal(err)
	}
	load(passes, same)
	for i := range 6 {
		if i%3 == 1 {
			load(passes, same)
		} else {
			other()
		}
		expectTurns("the same rules")
		after, err := b.PFTraffic()
		if diff := gocmp.Diff(before.Rules, after.Rules); diff != "" || err != nil {
			t.Fatalf("the same rules count %s (%v)", diff, err)
		}
		if got := []string{judged(0), judged(1)}; !slices.Equal(got, []string{"pass", "block"}) {
			t.Fatalf("the same rules: %s", got)
		}
		s.run(b, 0, frame)
		if before, err = b.PFTraffic(); err != nil {
			t.Fatal(err)
		}
		if text, err := b.PFText(); string(text) != passes || err != nil {
			t.Fatalf("the text is %q, %v", text, err)
		}
	}
	// some more rules have room, many have not
	load(passes)
	load(blocks)
	load(strings.Repeat(passes, 10))
	expectTurns("more rules")
	load(strings.Repeat(passes, 100))
	if equal(0, 2) {
		t.Error("many rules are in tables that have no room for them")
	}
	load(strings.Repeat(blocks, 100))
	load(strings.Repeat(passes, 101))
	expectTurns("many rules")
	load(blocks)
	expectTurns("few rules in tables for many")
	if got := []string{judged(0), judged(1)}; !slices.Equal(got, []string{"block", "pass"}) {
		t.Errorf("few rules in tables for many: %s", got)
	}
	// another feature
	load("block in log on near2\n" + passes)
	if equal(0, 2) {
		t.Error("rules log, and their programs do not")
	}
}

// Each packet is judged by one of two rulesets that take turns a hundred times, on its way in and out, and counts for
// the rules of that one. A rule lets out only what its own ruleset has let in.
func TestSparePFExact(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	conf := func(tag string, more int) string { // more is not 0: these rules look at flags of TCP
		return strings.Repeat("pass in on near1 proto tcp\n", more) + "block\npass in on near0 proto udp tag " + tag +
			" no state\npass out on near1 proto udp tagged " + tag + " no state\n"
	}
	s.loadPF(b, conf("red", 1))
	s.loadPF(b, conf("blue", 5))
	counted := func() uint64 { // packets that the rule on the way in has counted
		t.Helper()
		sum, err := b.PFTraffic()
		if err != nil {
			t.Fatal(err)
		}
		return sum.Rules[len(sum.Rules)-2].Packets[0]
	}
	port := func(n int) Stats {
		t.Helper()
		b = s.open("br0")
		stats, err := b.PortStats(Ports(&b.Config)[n])
		if err != nil {
			t.Fatal(err)
		}
		return stats
	}
	was := s.programs(b)
	stop := s.send(0, udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000), udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1001))
	for i := range 50 {
		for _, next := range []string{conf("red", 1+i%7), conf("blue", 5)} {
			before := port(0).RxFrames
			for port(0).RxFrames < before+20 { // some packets meet each ruleset
				runtime.Gosched()
			}
			s.loadPF(b, next)
		}
	}
	begun := port(0).RxFrames
	for port(0).RxFrames < begun+20 {
		runtime.Gosched()
	}
	stop()
	in, out := port(0), port(1)
	dropped := in.Drops[kernelDropReasonDROP_PF] + out.Drops[kernelDropReasonDROP_PF]
	if in.RxFrames == 0 || out.TxFrames != in.RxFrames || dropped != 0 {
		t.Errorf("%d packets came in, %d left, %d were dropped by pf", in.RxFrames, out.TxFrames, dropped)
	}
	if n := counted(); n < in.RxFrames-begun || n >= in.RxFrames {
		t.Errorf("the last ruleset has counted %d packets of at least %d", n, in.RxFrames-begun)
	}
	if now := s.programs(b); !slices.Equal(now, was) {
		t.Errorf("programs %v are on the ports, which were %v", now, was)
	}
}

// Remains of a killed command in the spare are not taken for the ruleset.
func TestSparePFHalf(t *testing.T) {
	for _, half := range []func(t *testing.T, b *Bridge){
		func(t *testing.T, b *Bridge) { // the configuration is not pinned again
			if err := os.Remove(b.pin(sparePin, configPin)); err != nil {
				t.Fatal(err)
			}
		},
		func(t *testing.T, b *Bridge) {
			for _, name := range []string{kernelMapPfWords, kernelMapPfRules, kernelMapPfNetworks, kernelMapPfRuleUse} {
				m, err := ebpf.LoadPinnedMap(b.pin(sparePin, name), nil)
				if err != nil {
					t.Fatal(err)
				}
				defer m.Close()
				rubbish := bytes.Repeat([]byte{0xff}, int(m.ValueSize()))
				key := make([]byte, m.KeySize())
				if err := m.Put(key, rubbish); err != nil {
					t.Fatal(err)
				}
			}
		},
	} {
		s := newShelf(t, 2)
		b := s.create("br0", 2)
		conf := "block in on near0 proto udp from 192.0.2.1 to port 53\n"
		for i := range 5 {
			if i >= 2 {
				half(t, b)
			}
			s.loadPF(b, conf)
			b = s.open("br0")
			s.expectAttached(b)
			d, err := traceIn(s, b, 0, udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000))
			if err != nil || d.Reason != uint32(kernelDropReasonDROP_PF) {
				t.Errorf("load %d: the packet is not blocked: %d, %v", i, d.Reason, err)
			}
			sum, err := b.PFTraffic()
			if err != nil || len(sum.Rules) != 1 || sum.Rules[0] != (PFRuleStats{}) {
				t.Errorf("load %d: counters %+v, %v", i, sum.Rules, err)
			}
			networks, err := b.openTable(kernelMapPfNetworks)
			if err != nil {
				t.Fatal(err)
			}
			if n, err := countOf[kernelPfPrefix, kernelPfNetwork](networks); n != len(compilePF(t, &b.Config, conf).Networks) || err != nil {
				t.Errorf("load %d: %d networks (%v)", i, n, err)
			}
			networks.Close()
		}
	}
}
