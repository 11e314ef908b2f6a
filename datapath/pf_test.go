// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/rule"

	"github.com/cilium/ebpf"
	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// The types of package pf's programs have the layout of the datapath's types.
func TestPFLayout(t *testing.T) {
	fields := func(v any) (list []string) {
		typ := reflect.TypeOf(v)
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Name != "_" {
				list = append(list, fmt.Sprintf("%s at %d, %d bytes", strings.ToLower(f.Name), f.Offset, f.Type.Size()))
			}
		}
		return append(list, fmt.Sprint(typ.Size()))
	}
	for name, pair := range map[string][2]any{
		"rule":    {pf.CompiledRule{}, kernelPfRule{}},
		"profile": {pf.Profile{}, kernelPfProfile{}},
	} {
		if diff := gocmp.Diff(fields(pair[0]), fields(pair[1])); diff != "" {
			t.Errorf("%s (-package pf, +datapath):\n%s", name, diff)
		}
	}
	for name, pair := range map[string][2]int{
		"cells":       {pf.Cells, int(kernelPfCellPF_CELLS)},
		"dims":        {pf.Dims, int(kernelPfDimPF_DIMS)},
		"ports":       {pf.MaxPorts, MaxPorts + 1},
		"profiles":    {pf.MaxProfiles, int(kernelSpec(t).Maps[kernelMapPfProfiles].MaxEntries)},
		"timeouts":    {int(pf.TimeoutCount), int(kernelPfTimeoutPF_TIMEOUTS)},
		"last cell":   {pf.CellDportUnknown, int(kernelPfCellPF_CELL_DPORT_UNKNOWN)},
		"last flag":   {pf.RuleSrcURPFFailed, int(kernelPfRuleFlagPF_SRC_URPF_FAILED)},
		"last change": {pf.ScrubReassemble, int(kernelPfScrubFlagPF_SCRUB_REASSEMBLE)},
		"last ask":    {pf.AskLoopback, int(kernelPfAskPF_ASK_LOOPBACK)},
		"batch":       {tableBatch, int(kernelSpec(t).Maps[kernelMapPfTableBatch].MaxEntries)},
		"states":      {len(TCPStates), int(kernelPfTcpStatePF_PROXY_DST) + 1},
		"ways":        {stateWays, len(kernelPfBucket{}.Mark)},
	} {
		if pair[0] != pair[1] {
			t.Errorf("%s: %d in Go, %d in the datapath", name, pair[0], pair[1])
		}
	}
}

func kernelSpec(t testing.TB) *ebpf.CollectionSpec {
	t.Helper()
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	return spec
}

// pfMapsOf returns the names of pf's maps that the bridge's programs refer to.
func pfMapsOf(t testing.TB, b *Bridge, pin string) (names []string) {
	t.Helper()
	p, err := ebpf.LoadPinnedProgram(b.pin(b.gen, pin), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, _ := info.MapIDs()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		mi, err := m.Info()
		m.Close()
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(mi.Name, pfPrefix) {
			names = append(names, mi.Name)
		}
	}
	return names
}

// compilePF compiles a pf.conf for the ports of a configuration.
func compilePF(t testing.TB, c *Config, conf string, profiles ...pf.Profile) *pf.Program {
	t.Helper()
	set, err := pf.Parse("pf.conf", []byte(conf), pf.Source{})
	if err != nil {
		t.Fatal(err)
	}
	in := pf.Input{Main: set, Profiles: profiles, Table: func(_, name string) (int, error) { return int(name[0] - 'a'), nil }}
	for _, p := range Ports(c) {
		in.Ports = append(in.Ports, pf.CompilePort{Slot: uint16(Slot(p.Id)), Name: PortName(p)})
	}
	prog, err := pf.Compile(in)
	if err != nil {
		t.Fatal(err)
	}
	return prog
}

// loadPF makes a pf.conf the bridge's rules.
func (s *shelf) loadPF(b *Bridge, conf string, change ...func(*Config, *PF)) {
	s.t.Helper()
	s.do(func() error {
		next := b.Config
		next.Flags |= uint32(BridgePF)
		profiles, err := b.PFProfiles()
		if err != nil {
			return err
		}
		p := &PF{
			Program: compilePF(s.t, &next, conf, profiles...), Text: []byte(conf),
			StatesMax: 1000, NodesMax: 100, TableEntries: 1000,
		}
		for _, f := range change {
			f(&next, p)
		}
		return b.Commit(&next, Tables{PF: p}, keepAll)
	})
}

// run puts a frame to the bridge's own program.
func (s *shelf) run(b *Bridge, port int, frame []byte) {
	s.t.Helper()
	p, err := ebpf.LoadPinnedProgram(b.pin(b.gen, tcxPin), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	defer p.Close()
	s.runBy(p, b, port, frame)
}

// runBy puts a frame to a program of the bridge.
func (s *shelf) runBy(p *ebpf.Program, b *Bridge, port int, frame []byte) {
	s.t.Helper()
	s.do(func() error {
		index := Ports(&b.Config)[port].Ifindex
		_, err := p.Run(&ebpf.RunOptions{
			Data: frame, DataOut: make([]byte, len(frame)+258), Context: skbContext{Ifindex: index, IngressIfindex: index},
		})
		return err
	})
}

// udpFrame is a frame with a packet of UDP from one station to another.
func udpFrame(dst, src int, to, from string, dport, sport int) []byte {
	d, m := station(dst), station(src)
	return join(d[:], m[:], be16(typeIP4), ip4(from, to, unix.IPPROTO_UDP, 0, udp(sport, dport, make([]byte, 30)...)))
}

func pinnedPF(t testing.TB, b *Bridge) (names []string) {
	for _, name := range tree(t, b) {
		if strings.Contains(name, "/"+pfPrefix) || strings.HasSuffix(name, "/"+tablePin) {
			names = append(names, name)
		}
	}
	return names
}

// A bridge without pf has nothing of it; a bridge with pf disabled has its tables, and programs
// that do not refer to them.
func TestPFIsThere(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2)
	expectNone := func(what string) {
		t.Helper()
		for _, pin := range []string{tcxPin, controlPin} {
			if names := pfMapsOf(t, b, pin); len(names) > 0 {
				t.Errorf("%s: %s holds %s", what, pin, names)
			}
		}
		if names := pinnedPF(t, b); len(names) > 0 {
			t.Errorf("%s: pinned are %s", what, names)
		}
	}
	expectNone("plain")

	const conf = "block in proto udp to port 53\n"
	s.loadPF(b, conf)
	if !b.PFEnabled() || len(pfMapsOf(t, b, tcxPin)) == 0 {
		t.Error("pf is loaded, and the program knows nothing of it")
	}
	if text, err := b.PFText(); err != nil || string(text) != conf {
		t.Errorf("the text is %q, %v", text, err)
	}
	was := b.Config.Pf
	if err := s.commit(b, func(c *Config, _ []*Port) { c.Flags &^= uint32(BridgePF) }); err != nil {
		t.Fatal(err)
	}
	if names := pfMapsOf(t, b, tcxPin); len(names) > 0 {
		t.Errorf("disabled: the program holds %s", names)
	}
	if names := pfMapsOf(t, b, controlPin); len(names) == 0 {
		t.Error("disabled: nobody ends states")
	}
	if text, err := b.PFText(); err != nil || string(text) != conf || !b.PFLoaded() || b.PFEnabled() {
		t.Errorf("disabled: the text is %q, %v; loaded %v, enabled %v", text, err, b.PFLoaded(), b.PFEnabled())
	}
	s.loadPF(b, conf)
	if b.Config.Pf.Secret != was.Secret || b.Config.Pf.Ruleset != was.Ruleset+1 {
		t.Errorf("reloaded: secret %x, ruleset %d; they were %x, %d", b.Config.Pf.Secret, b.Config.Pf.Ruleset, was.Secret, was.Ruleset)
	}
	s.do(func() error { return b.Commit(&b.Config, Tables{PF: &PF{}}, keepAll) })
	expectNone("removed")
	if b.PFLoaded() || b.PFEnabled() || b.Config.Features != 0 {
		t.Errorf("removed: loaded %v, enabled %v, features %#x", b.PFLoaded(), b.PFEnabled(), b.Config.Features)
	}
}

func TestPFFeatures(t *testing.T) {
	tests := []struct {
		conf string
		want kernelFeature
	}{
		{"", 0},
		{"pass\n", kernelFeatureFEATURE_PF_RULES},
		{"pass from <a>\n", kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_TABLES},
		{"block log\n", kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_LOG},
		{"pass keep state (source-track)\n", kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_SOURCES},
		{"pass proto tcp keep state (max-src-conn 1, overload <a>)\n",
			kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_SOURCES | kernelFeatureFEATURE_PF_TABLES},
		{"pass proto tcp modulate state\n", kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_REWRITE},
		{"pass scrub (no-df)\n", kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_SCRUB},
		{"pass scrub (reassemble tcp)\n", kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_SCRUB | kernelFeatureFEATURE_PF_REASSEMBLE},
		{"match set tos 0\n", kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_SCRUB},
		{"ether block\n", kernelFeatureFEATURE_ETHER},
	}
	for _, tt := range tests {
		if got := featuresOf(compilePF(t, &Config{}, tt.conf)); got != tt.want|kernelFeatureFEATURE_PF {
			t.Errorf("%q: features %#x, want %#x", tt.conf, got, tt.want|kernelFeatureFEATURE_PF)
		}
	}
}

// The same rules for other ports keep their number, states and counters; other rules do not.
func TestPFSame(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2)
	const conf = "block in quick on near2\npass in proto udp keep state\n"
	s.loadPF(b, conf)
	s.run(b, 0, udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000))
	stats := func() PFRuleStats {
		t.Helper()
		n, err := b.PFTraffic()
		if err != nil || len(n.Rules) != 2 {
			t.Fatalf("%d rules have counters, %v", len(n.Rules), err)
		}
		return n.Rules[1]
	}
	want := PFRuleStats{Evaluations: 1, Packets: [2]uint64{1, 0}, Bytes: [2]uint64{58, 0}, StatesCreated: 1, States: 1}
	if got := stats(); got != want {
		t.Errorf("counters %+v, want %+v", got, want)
	}
	ruleset := b.Config.Pf.Ruleset
	s.loadPF(b, conf, func(c *Config, p *PF) {
		port := NewPort(c, "near2")
		port.Ifindex = s.rack.near[2]
		port.Flags = PortLearn | floods
		p.Program, p.Same = compilePF(t, c, conf, p.Program.Profiles...), true
	})
	if got := stats(); got != want || b.Config.Pf.Ruleset != ruleset {
		t.Errorf("with another port: ruleset %d, counters %+v; want %d, %+v", b.Config.Pf.Ruleset, got, ruleset, want)
	}
	// near2 is a port now: its rule applies
	d, err := traceIn(s, b, 2, udpFrame(2, 1, "192.0.2.2", "192.0.2.3", 53, 1000))
	if err != nil || d.Reason != uint32(kernelDropReasonDROP_PF) {
		t.Errorf("at the new port: reason %d, %v; want it blocked", d.Reason, err)
	}
	s.loadPF(b, conf)
	if got := stats(); got != (PFRuleStats{}) {
		t.Errorf("of the next ruleset: counters %+v", got)
	}
	// the counts of a present state are subtracted, too, and its further counts are not
	frame := udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1001)
	s.run(b, 0, frame)
	s.run(b, 0, frame)
	if got := stats(); got.Packets[0] != 2 {
		t.Errorf("counters %+v", got)
	}
	if err := b.ZeroPFRuleStats(); err != nil {
		t.Error(err)
	}
	if got := stats(); got != (PFRuleStats{States: 1}) {
		t.Errorf("zeroed: counters %+v", got)
	}
	s.run(b, 0, frame)
	if got, want := stats(), (PFRuleStats{Packets: [2]uint64{1, 0}, Bytes: [2]uint64{58, 0}, States: 1}); got != want {
		t.Errorf("one more packet: counters %+v, want %+v", got, want)
	}
}

func traceIn(s *shelf, b *Bridge, port int, frame []byte) (t *Traced, err error) {
	s.do(func() error {
		t, err = b.Trace(Ports(&b.Config)[port], frame)
		return nil
	})
	if t == nil {
		t = new(Traced)
	}
	return t, err
}

// A trial finds the present states, and makes none.
func TestPFTraceOfBridge(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 3)
	s.loadPF(b, "block\npass on near0 proto udp to port 53 keep state\npass out on near1\npass out on near2\n")
	there := udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 53, 1000)
	back := udpFrame(1, 2, "192.0.2.1", "192.0.2.2", 1000, 53)
	tests := []struct {
		name  string
		port  int
		frame []byte
		drop  bool
	}{
		{"first", 0, there, false},
		{"answer to none", 1, back, true},
		{"other port", 0, udpFrame(2, 1, "192.0.2.2", "192.0.2.1", 54, 1000), true},
	}
	for _, tt := range tests {
		d, err := traceIn(s, b, tt.port, tt.frame)
		if err != nil || d.Reason == uint32(kernelDropReasonDROP_PF) != tt.drop {
			t.Errorf("%s: action %d, reason %d, %v; dropped is %v", tt.name, d.Action, d.Reason, err, tt.drop)
		}
	}
	if info, err := b.PFInfo(); err != nil || info.States != 0 {
		t.Errorf("the trials have made %d states, %v", info.States, err)
	}
	s.run(b, 0, there)
	if d, err := traceIn(s, b, 1, back); err != nil || d.Reason == uint32(kernelDropReasonDROP_PF) {
		t.Errorf("answer: reason %d, %v", d.Reason, err)
	}
	list := statesOf(t, b)
	if len(list) != 1 || list[0].To.Packets != 0 {
		t.Errorf("after the trial of an answer: %+v", list)
	}
}

func statesOf(t testing.TB, b *Bridge) (list []State) {
	t.Helper()
	if err := b.EachState(func(st *State) bool {
		list = append(list, *st)
		return true
	}); err != nil {
		t.Fatal(err)
	}
	return list
}

func TestPFStates(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, "pass in on near0 keep state\npass out on near1 no state\n")
	s.run(b, 0, udpFrame(2, 1, "192.0.2.1", "192.0.2.9", 53, 1000))
	s.run(b, 1, udpFrame(1, 2, "192.0.2.9", "192.0.2.1", 1000, 53))
	list := statesOf(t, b)
	if len(list) != 1 {
		t.Fatalf("%d states, want 1", len(list))
	}
	got := list[0]
	port := Ports(&b.Config)[0].Id
	if got.Proto != unix.IPPROTO_UDP || got.In != port || got.RuleIn != 0 || got.RuleOut > 1 || got.Expires <= 0 ||
		got.From.Addr != netip.MustParseAddrPort("192.0.2.9:1000") || got.To.Addr != netip.MustParseAddrPort("192.0.2.1:53") ||
		got.From.Packets != 1 || got.To.Packets != 1 || got.To.Bytes != 58 {
		t.Errorf("the state is %+v", got)
	}
	info, err := b.PFInfo()
	if err != nil || info.States != 1 || info.StatesMax != 1000 || info.Rules != 2 || !info.Enabled {
		t.Errorf("info is %+v, %v", info, err)
	}
	if n, err := b.PFTraffic(); err != nil || n.Counters[PFInserts] != 1 {
		t.Errorf("counters are %v, %v", n.Counters, err)
	}
	if n, err := b.KillStates(func(st *State) bool { return st.VLAN == 7 }); n != 0 || err != nil {
		t.Errorf("%d states of another VLAN are killed, %v", n, err)
	}
	// they end when pf is disabled, too
	if err := s.commit(b, func(c *Config, _ []*Port) { c.Flags &^= uint32(BridgePF) }); err != nil {
		t.Fatal(err)
	}
	if n, err := b.KillStates(func(st *State) bool { return st.ID == got.ID }); n != 1 || err != nil {
		t.Errorf("%d states are killed, %v", n, err)
	}
	if info, err := b.PFInfo(); err != nil || info.States != 0 || info.Enabled || len(statesOf(t, b)) != 0 {
		t.Errorf("info is %+v, %v; states are %v", info, err, statesOf(t, b))
	}
	if n, err := b.PFTraffic(); err != nil || n.Counters[PFRemovals] != 1 || b.ZeroPFCounters() != nil {
		t.Errorf("counters are %v, %v", n.Counters, err)
	}
	if n, err := b.PFTraffic(); err != nil || n.Counters != (PFCounters{}) {
		t.Errorf("zeroed counters are %v, %v", n.Counters, err)
	}
}

// A larger table of states keeps the states of the smaller one; a lower limit removes none.
func TestPFStatesGrow(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	const conf = "pass keep state\n"
	s.loadPF(b, conf)
	const n = 300
	for i := range n {
		s.run(b, 0, udpFrame(2, 1, "192.0.2.1", "192.0.2.9", 53, 1000+i))
	}
	before := statesOf(t, b)
	if len(before) != n {
		t.Fatalf("%d states, want %d", len(before), n)
	}
	ports := func(list []State) (ports []uint16) {
		for _, st := range list {
			ports = append(ports, st.From.Addr.Port())
		}
		slices.Sort(ports)
		return ports
	}
	small := b.Config.Pf.Buckets
	s.loadPF(b, conf, func(_ *Config, p *PF) { p.StatesMax, p.NodesMax, p.TableEntries = 100000, 5000, 50000 })
	if b.Config.Pf.Buckets <= small {
		t.Errorf("%d buckets, they were %d", b.Config.Pf.Buckets, small)
	}
	if diff := gocmp.Diff(ports(before), ports(statesOf(t, b))); diff != "" {
		t.Errorf("source ports (-before +after):\n%s", diff)
	}
	// the next command finishes the work of one that was killed there
	s.do(func() error { return b.Mend(keepAll) })
	if got := len(statesOf(t, b)); got != n {
		t.Errorf("%d states when it is mended, want %d", got, n)
	}
	// the datapath finds them in their places
	s.run(b, 1, udpFrame(1, 2, "192.0.2.9", "192.0.2.1", 1007, 53))
	for _, st := range statesOf(t, b) {
		if want := st.From.Addr.Port() == 1007; st.To.Packets == 1 != want {
			t.Errorf("source port %d: %d answers", st.From.Addr.Port(), st.To.Packets)
		}
	}
	large := b.Config.Pf.Buckets
	s.loadPF(b, conf, func(_ *Config, p *PF) { p.StatesMax = 10 })
	s.run(b, 0, udpFrame(2, 1, "192.0.2.1", "192.0.2.9", 53, 999))
	if info, err := b.PFInfo(); err != nil || info.States != n || info.StatesMax != 10 || b.Config.Pf.Buckets != large {
		t.Errorf("with a lower limit: %+v, %d buckets, %v", info, b.Config.Pf.Buckets, err)
	}
	if gone, err := b.FlushStates(); gone != n || err != nil {
		t.Errorf("%d states are flushed, %v", gone, err)
	}
}

// Tables become smaller with their limits, by the change after that: their contents stay, and
// all of them are found.
func TestPFShrinks(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	const conf = "pass from <a>\npass keep state (source-track global)\n"
	load := func(states, nodes, frags, entries uint32) {
		s.loadPF(b, conf, func(_ *Config, p *PF) {
			p.StatesMax, p.NodesMax, p.FragmentsMax, p.TableEntries = states, nodes, frags, entries
		})
	}
	load(200000, 20000, 5000, 50000)
	const n = 300
	for i := range n {
		s.run(b, 0, udpFrame(2, 1, "192.0.2.9", fmt.Sprintf("192.0.%d.%d", 3+i/200, 1+i%200), 53, 1000+i))
	}
	addresses := make([]pf.TableEntry, n)
	for i := range addresses {
		addresses[i].Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
	}
	if added, err := b.TableAdd(0, addresses); added != n || err != nil {
		t.Fatalf("%d addresses are added, %v", added, err)
	}
	rooms := func() (list []uint32) {
		for _, name := range []string{kernelMapPfStates, kernelMapPfSources, kernelMapPfFragments, kernelMapPfHosts} {
			m, err := b.openTable(name)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, m.MaxEntries())
			m.Close()
		}
		return list
	}
	takes := func() PFTakes {
		takes, err := b.PFTakes()
		if err != nil {
			t.Fatal(err)
		}
		return takes
	}
	before := takes()
	if over, err := b.Oversized(); over || err != nil {
		t.Errorf("oversized from the beginning: %t, %v", over, err)
	}
	for _, step := range []struct{ states, nodes, frags, entries uint32 }{
		{1000, 400, 10, 500},
		{10, 400, 10, 500}, // a limit below the number of states
	} {
		load(step.states, step.nodes, step.frags, step.entries)
		if over, err := b.Oversized(); !over || err != nil {
			t.Fatalf("%v: oversized %t, %v", step, over, err)
		}
		load(step.states, step.nodes, step.frags, step.entries)
		if over, err := b.Oversized(); over || err != nil {
			t.Errorf("%v: oversized still: %t, %v", step, over, err)
		}
		want := []uint32{stateBuckets(max(step.states, n*5/4+64)) * stateWays, step.nodes, step.frags, step.entries}
		if diff := gocmp.Diff(want, rooms()); diff != "" {
			t.Errorf("%v: room (-want +got):\n%s", step, diff)
		}
		if list := statesOf(t, b); len(list) != n {
			t.Errorf("%v: %d states", step, len(list))
		}
		if list, err := b.SourceNodes(); len(list) != n || err != nil {
			t.Errorf("%v: %d sources, %v", step, len(list), err)
		}
		if list, err := b.TableEntries(0); len(list) != n || err != nil {
			t.Errorf("%v: %d addresses, %v", step, len(list), err)
		}
	}
	s.run(b, 1, udpFrame(1, 2, "192.0.3.8", "192.0.2.9", 1007, 53)) // the answer to one of them
	found := false
	for _, st := range statesOf(t, b) {
		found = found || st.From.Addr.Port() == 1007 && st.To.Packets == 1
	}
	if !found {
		t.Error("the datapath does not find a state in the smaller table")
	}
	if after := takes(); after.States*10 > before.States || after.Fragments*10 > before.Fragments || after.Addresses >= before.Addresses {
		t.Errorf("they take %+v, before %+v", after, before)
	}
}

// The stated memory of a limit is what the kernel uses for it.
func TestPFMemory(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	const limit = 50000
	for _, rules := range []string{
		"pass\n", "pass scrub (reassemble tcp)\n", "pass in inet proto tcp rdr-to 10.0.0.9\n",
		"pass in inet proto tcp scrub (reassemble tcp) rdr-to 10.0.0.9\n",
	} {
		var program *pf.Program
		s.loadPF(b, rules, func(_ *Config, p *PF) { p.StatesMax, p.FragmentsMax, program = limit, limit, p.Program })
		takes, err := b.PFTakes()
		if err != nil {
			t.Fatal(err)
		}
		if of := StatesMemoryOf(&b.Config); of != StatesMemory(limit, program) {
			t.Errorf("%s: %d bytes are said before the load, %d after it", rules, StatesMemory(limit, program), of)
		}
		for _, of := range []struct {
			name       string
			said, took uint64
		}{{"states", StatesMemory(limit, program), takes.States}, {"frags", FragmentsMemory(limit), takes.Fragments}} {
			if of.took < of.said*9/10 || of.took > of.said*13/10 {
				t.Errorf("%s: %s: %d bytes are said, %d taken", rules, of.name, of.said, of.took)
			}
		}
	}
	if n := StatesMemory(100000000, &pf.Program{}); n < 13<<30 || n > 16<<30 {
		t.Errorf("100000000 states are said to take %d bytes", n)
	}
	if n := AddressesMemory(1 << 31); n < 32<<30 {
		t.Errorf("2^31 addresses are said to take %d bytes", n)
	}
}

// The number of states is right after a flush, whatever it was before.
func TestPFFlushSettles(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, "pass keep state\n")
	for _, wrong := range []uint32{7, math.MaxUint32 - 1} {
		s.run(b, 0, udpFrame(2, 1, "192.0.2.1", "192.0.2.9", 53, 1))
		if err := b.shared(func(s *kernelShared) { s.Pf.States += wrong }); err != nil {
			t.Fatal(err)
		}
		if _, err := b.FlushStates(); err != nil {
			t.Fatal(err)
		}
		if pf, err := b.pfShared(); err != nil || pf.States != 0 {
			t.Errorf("%d too many: %d states after a flush, %v", int32(wrong), pf.States, err)
		}
	}
}

// States of the old table that change while it is copied are copied late.
func TestPFStatesLate(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, "pass keep state\n")
	for i := range 4 {
		s.run(b, 0, udpFrame(2, 1, "192.0.2.1", "192.0.2.9", 53, i))
	}
	next := b.Config
	next.Pf.Buckets *= 2
	g, err := b.load(&next, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	s.run(b, 0, udpFrame(2, 1, "192.0.2.1", "192.0.2.9", 53, 1)) // changes
	s.run(b, 0, udpFrame(2, 1, "192.0.2.1", "192.0.2.9", 53, 4)) // is new
	if n, err := b.KillStates(func(st *State) bool { return st.From.Addr.Port() == 2 }); n != 1 || err != nil {
		t.Fatalf("%d states are killed, %v", n, err)
	}
	if err := b.copyStates(g, &next, true); err != nil {
		t.Fatal(err)
	}
	table, err := mapStates(g.coll.Maps[kernelMapPfBuckets], g.coll.Maps[kernelMapPfStates], g.coll.Maps[kernelMapPfStamps], &next, unix.PROT_READ)
	if err != nil {
		t.Fatal(err)
	}
	defer table.close()
	got := map[uint16]uint64{}
	table.each(func(_ uint32, s *kernelPfState) bool {
		port := max(fromNetwork(s.Key.Port[0]), fromNetwork(s.Key.Port[1]))
		if low := min(fromNetwork(s.Key.Port[0]), fromNetwork(s.Key.Port[1])); port == 53 {
			port = low
		}
		got[port] = s.Packets[0] + s.Packets[1]
		return true
	})
	if diff := gocmp.Diff(map[uint16]uint64{0: 1, 1: 2, 3: 1, 4: 1}, got); diff != "" {
		t.Errorf("packets by source port (-want +got):\n%s", diff)
	}
}

func entry(text string) pf.TableEntry {
	not := strings.HasPrefix(text, "!")
	text = strings.TrimPrefix(text, "!")
	if !strings.Contains(text, "/") {
		a := netip.MustParseAddr(text)
		return pf.TableEntry{Not: not, Prefix: netip.PrefixFrom(a, a.BitLen())}
	}
	return pf.TableEntry{Not: not, Prefix: netip.MustParsePrefix(text)}
}

func entries(texts ...string) (list []pf.TableEntry) {
	for _, text := range texts {
		list = append(list, entry(text))
	}
	return list
}

// A tableModel is the model of a table: a list that is searched.
type tableModel map[netip.Prefix]bool // negated

func (m tableModel) test(a netip.Addr) (match bool, by *pf.TableEntry) {
	for p, not := range m {
		if p.Contains(a) && (by == nil || p.Bits() > by.Prefix.Bits()) {
			by = &pf.TableEntry{Not: not, Prefix: p}
		}
	}
	return by != nil && !by.Not, by
}

// After any operations on tables, one after another and at once, their contents are the
// contents of lists after the same operations.
func TestTables(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	s.loadPF(b, "pass from <a>\n")
	const n = 3
	var models [n]tableModel
	for i := range models {
		models[i] = tableModel{}
	}
	r := rand.New(rand.NewPCG(1, 2))
	// a few addresses and networks that contain each other
	randomAddr := func() netip.Addr {
		if r.IntN(3) == 0 {
			return netip.AddrFrom16([16]byte{0x20, 0x01, byte(r.IntN(2)) << 7, 15: byte(r.IntN(4))})
		}
		return netip.AddrFrom4([4]byte{10, byte(r.IntN(2)), byte(r.IntN(2)) << 7, byte(r.IntN(4))})
	}
	randomEntry := func() pf.TableEntry {
		a := randomAddr()
		bits := []int{a.BitLen(), a.BitLen(), a.BitLen() - 1, a.BitLen() - 2, 17, 16, 8, 1, 0}[r.IntN(9)]
		p, _ := a.Prefix(bits)
		return pf.TableEntry{Not: r.IntN(3) == 0, Prefix: p}
	}
	for step := range 400 {
		i := r.IntN(n)
		m := models[i]
		list := make([]pf.TableEntry, 1+r.IntN(4))
		if r.IntN(8) == 0 {
			list = make([]pf.TableEntry, few*3)
		}
		for j := range list {
			list[j] = randomEntry()
		}
		var did, want int
		var err error
		what := ""
		switch r.IntN(10) {
		case 0, 1, 2, 3, 4:
			what = "add"
			did, err = b.TableAdd(i, list)
			for _, e := range list {
				if _, ok := m[e.Prefix]; !ok {
					m[e.Prefix] = e.Not
					want++
				}
			}
		case 5, 6, 7:
			what = "delete"
			did, err = b.TableDelete(i, list)
			for _, e := range list {
				if not, ok := m[e.Prefix]; ok && not == e.Not {
					delete(m, e.Prefix)
					want++
				}
			}
		case 8:
			what = "flush"
			did, err = b.TableFlush(i)
			want = len(m)
			clear(m)
		case 9:
			what = "replace"
			var out, in, turned []pf.TableEntry
			was := models[i]
			m = tableModel{}
			for _, e := range list {
				if _, ok := m[e.Prefix]; !ok {
					m[e.Prefix] = e.Not
				}
			}
			for p, not := range was {
				if _, ok := m[p]; !ok {
					out = append(out, pf.TableEntry{Not: not, Prefix: p})
				}
			}
			for p, not := range m {
				switch had, ok := was[p]; {
				case !ok:
					in = append(in, pf.TableEntry{Not: not, Prefix: p})
				case had != not:
					turned = append(turned, pf.TableEntry{Not: not, Prefix: p})
				}
			}
			var deleted, added int
			deleted, added, err = b.TableReplace(i, out, in, turned)
			did, want = added-deleted, len(m)-len(was)
			if deleted != len(out) || added != len(in) {
				t.Errorf("step %d: %d deleted and %d added, want %d and %d", step, deleted, added, len(out), len(in))
			}
			models[i] = m
		}
		if err != nil || did != want {
			t.Fatalf("step %d, %s of %v: %d, %v; want %d", step, what, list, did, err, want)
		}
		all := 0
		for _, m := range models {
			all += len(m)
		}
		if sum, known := b.tableSum(t); sum != all || !known {
			t.Fatalf("step %d, %s of %v: tables have %d entries, known: %v; want %d", step, what, list, sum, known, all)
		}
		for i, m := range models {
			got, err := b.TableEntries(i)
			if err != nil {
				t.Fatal(err)
			}
			has := tableModel{}
			for _, e := range got {
				has[e.Prefix] = e.Not
			}
			if diff := gocmp.Diff(m, has, gocmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Fatalf("step %d, %s of %v: table %d (-want +got):\n%s", step, what, list, i, diff)
			}
			listings, err := b.TableListings(i, list)
			if err != nil {
				t.Fatal(err)
			}
			for j, e := range list {
				want := NotListed
				if not, ok := m[e.Prefix]; ok && not {
					want = ListedNot
				} else if ok {
					want = Listed
				}
				if listings[j] != want {
					t.Fatalf("step %d, %s of %v: table %d lists %v as %d, want %d", step, what, list, i, e, listings[j], want)
				}
			}
			for range 10 {
				a := randomAddr()
				match, by, err := b.TableTest(i, a)
				wantMatch, wantBy := m.test(a)
				if err != nil || match != wantMatch || !reflect.DeepEqual(by, wantBy) {
					t.Fatalf("step %d, %s of %v: table %d, %s: %v by %v, %v; want %v by %v; it has %v", step, what, list, i, a, match, by, err, wantMatch, wantBy, m)
				}
			}
		}
	}
	counts, err := b.TableCounts()
	for i, m := range models {
		if counts[i] != len(m) || err != nil {
			t.Errorf("table %d: %d entries, %v; want %d", i, counts[i], err, len(m))
		}
	}
}

// tableSum returns the number of entries of all tables, by their counters.
func (b *Bridge) tableSum(t *testing.T) (n int, known bool) {
	t.Helper()
	err := b.withAddresses(func(a *addresses) (err error) {
		n, known, err = a.sum()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n, known
}

// The number of entries of all tables is known. If it is not, or if there could be too many,
// the entries are counted.
func TestTablesHold(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	limit := func(n uint32) func(*Config, *PF) { return func(_ *Config, p *PF) { p.TableEntries = n } }
	s.loadPF(b, "pass\n", limit(8))
	sum := func(what string, want int) {
		t.Helper()
		if n, known := b.tableSum(t); n != want || !known {
			t.Errorf("%s: tables have %d entries, known: %v; want %d", what, n, known, want)
		}
	}
	hold := func(what string, more int, want bool) {
		t.Helper()
		if got, err := b.TablesHold(more); err != nil || got != want {
			t.Errorf("%s: tables hold %d more: %v, %v; want %v", what, more, got, err, want)
		}
	}
	sum("new", 0)
	if _, err := b.TableAdd(0, entries("192.0.2.1", "10.0.0.0/8", "2001:db8::/32")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.TableAdd(1, entries("192.0.2.1", "10.0.0.0/8")); err != nil {
		t.Fatal(err)
	}
	sum("two tables", 5)
	hold("two tables", 3, true)
	hold("two tables", 4, false)
	// the counter after a killed command, or of a bridge of an older version
	for what, n := range map[string]uint64{"more were to come": entriesKnown + 5, "nobody has counted": 0} {
		if err := b.withAddresses(func(a *addresses) error { return a.putMore(n) }); err != nil {
			t.Fatal(err)
		}
		hold(what, 4, false)
		sum(what, 5)
		hold(what, 3, true)
	}
	s.loadPF(b, "pass\n", limit(100))
	sum("a larger limit", 5)
	if _, err := b.TableFlush(0); err != nil {
		t.Fatal(err)
	}
	sum("one flushed", 2)
	s.loadPF(b, "pass from <a>\n", limit(100), func(_ *Config, p *PF) {
		p.Fill = []TableFill{{0, entries("192.0.2.0/24", "192.0.2.9")}}
		p.Free = 1 << 1
	})
	sum("another filled and the other freed", 2)
}

func TestTableLimits(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	if _, err := b.TableAdd(0, entries("192.0.2.1")); err == nil {
		t.Error("a bridge without pf has tables")
	}
	limit := func(n uint32) func(*Config, *PF) { return func(_ *Config, p *PF) { p.TableEntries = n } }
	s.loadPF(b, "pass\n", limit(4))
	hosts := entries("192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.5")
	if n, err := b.TableAdd(0, hosts); !errors.Is(err, ErrTableFull) {
		t.Errorf("%d addresses are added, %v; want ErrTableFull", n, err)
	}
	nets := entries("10.1.0.0/16", "10.2.0.0/16", "10.3.0.0/16", "10.4.0.0/16", "10.5.0.0/16", "10.6.0.0/16", "10.7.0.0/16")
	if n, err := b.TableAdd(0, nets); err == nil {
		t.Errorf("%d networks are added", n)
	}
	s.loadPF(b, "pass\n", limit(100))
	if _, err := b.TableAdd(0, hosts); err != nil {
		t.Error(err)
	}
	if _, err := b.TableAdd(0, nets); err != nil {
		t.Error(err)
	}
	want := slices.Concat(nets, hosts)
	if got, err := b.TableEntries(0); err != nil || !slices.Equal(got, want) {
		t.Errorf("the table has %v, %v; want %v", got, err, want)
	}
}

// A table that is defined anew has its contents as soon as its rules apply, and the old table
// is emptied.
func TestTableFill(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	fill := func(p *PF, n int, texts ...string) {
		p.Fill = append(p.Fill, TableFill{n, entries(texts...)})
	}
	s.loadPF(b, "block from <a>\n", func(_ *Config, p *PF) { fill(p, 0, "192.0.2.0/24", "!192.0.2.7") })
	blocked := func(from string) bool {
		d, err := traceIn(s, b, 0, udpFrame(2, 1, "198.51.100.1", from, 53, 1000))
		if err != nil {
			t.Fatal(err)
		}
		return d.Reason == uint32(kernelDropReasonDROP_PF)
	}
	if !blocked("192.0.2.1") || blocked("192.0.2.7") || blocked("203.0.113.1") {
		t.Errorf("blocked: %v, %v, %v; want the first alone", blocked("192.0.2.1"), blocked("192.0.2.7"), blocked("203.0.113.1"))
	}
	s.loadPF(b, "block from <b>\n", func(_ *Config, p *PF) {
		fill(p, 1, "203.0.113.1")
		p.Free = 1 << 0
	})
	if blocked("192.0.2.1") || !blocked("203.0.113.1") {
		t.Errorf("blocked: %v, %v; want the second alone", blocked("192.0.2.1"), blocked("203.0.113.1"))
	}
	if got, err := b.TableEntries(0); err != nil || len(got) != 0 {
		t.Errorf("the table that is free has %v, %v", got, err)
	}
}

// The tag of a MAC rule is the packet's tag when pf begins.
func TestPFRuleTag(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, "block\npass in tagged trusted\npass out\n", func(*Config, *PF) {})
	s.do(func() error {
		d := station(1)
		r, err := rule.ParseRule(strings.Fields(fmt.Sprintf("pass in on near0 src %02x:%02x:%02x:%02x:%02x:%02x tag trusted", d[0], d[1], d[2], d[3], d[4], d[5])), "")
		if err != nil {
			return err
		}
		return b.Commit(&b.Config, Tables{Rules: []Rule{{Ports(&b.Config)[0].Id, r}}}, keepAll)
	})
	for src, drop := range map[int]bool{1: false, 3: true} {
		d, err := traceIn(s, b, 0, udpFrame(2, src, "192.0.2.2", "192.0.2.1", 53, 1000))
		if err != nil || d.Reason == uint32(kernelDropReasonDROP_PF) != drop {
			t.Errorf("from station %d: reason %d, %v; dropped is %v", src, d.Reason, err, drop)
		}
	}
}

// Tables of addresses change while pf is disabled, even if it has never been enabled.
func TestPFTablesDisabled(t *testing.T) {
	for _, first := range []bool{false, true} {
		s := newShelf(t, 2)
		b := s.create("br0", 2)
		if !first {
			s.loadPF(b, "pass\n")
		}
		s.loadPF(b, "table <a> persist\nblock quick from <a>\npass\n", func(c *Config, _ *PF) {
			c.Flags &^= uint32(BridgePF)
		})
		hosts := make([]pf.TableEntry, 600)
		for i := range hosts {
			hosts[i].Prefix = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 32)
		}
		hosts = append(hosts, entries("2001:db8::1", "192.0.2.0/24")...)
		if n, err := b.TableAdd(0, hosts); n != len(hosts) || err != nil {
			t.Fatalf("%d of %d are added, %v", n, len(hosts), err)
		}
		if n, err := b.TableDelete(0, hosts[:10]); n != 10 || err != nil {
			t.Errorf("%d are deleted, %v", n, err)
		}
		if err := s.commit(b, func(c *Config, _ []*Port) { c.Flags |= uint32(BridgePF) }); err != nil {
			t.Fatal(err)
		}
		for from, drop := range map[string]bool{"10.0.0.9": false, "10.0.0.10": true, "192.0.2.7": true} {
			d, err := traceIn(s, b, 0, udpFrame(2, 1, "203.0.113.1", from, 53, 1000))
			if err != nil || d.Reason == uint32(kernelDropReasonDROP_PF) != drop {
				t.Errorf("from %s: reason %d, %v; dropped is %v", from, d.Reason, err, drop)
			}
		}
	}
}

// Sources can be forgotten while their states go on.
func TestPFSources(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	s.loadPF(b, "pass in keep state (source-track rule, max-src-states 2)\n")
	send := func(from string, sport int) { s.run(b, 0, udpFrame(2, 1, "192.0.2.100", from, 53, sport)) }
	send("192.0.2.1", 1)
	send("192.0.2.1", 2)
	send("192.0.2.1", 3) // exceeds the limit
	send("192.0.2.2", 1)
	list, err := b.SourceNodes()
	if err != nil || len(list) != 2 || list[0].Addr.String() != "192.0.2.1" || list[0].States != 2 || list[0].Rule != 0 || list[1].States != 1 {
		t.Fatalf("the sources are %+v, %v", list, err)
	}
	if n, err := b.KillSources(func(n *SourceNode) bool { return n.States == 2 }); n != 1 || err != nil {
		t.Errorf("%d sources are removed, %v", n, err)
	}
	if info, err := b.PFInfo(); err != nil || info.Nodes != 1 || info.States != 3 {
		t.Errorf("info is %+v, %v", info, err)
	}
	send("192.0.2.1", 4) // the count begins anew
	if n, err := b.KillStates(func(st *State) bool { return st.From.Addr.Port() < 3 }); n != 3 || err != nil {
		t.Errorf("%d states are killed, %v", n, err)
	}
	list, err = b.SourceNodes()
	if err != nil || len(list) != 1 || list[0].States != 1 {
		t.Errorf("the sources are %+v, %v", list, err)
	}
}

// Addresses that the datapath adds while the table is copied are in the larger table.
func TestTableGrowsLate(t *testing.T) {
	s := newShelf(t, 1)
	b := s.create("br0", 1)
	s.loadPF(b, "pass\n")
	if _, err := b.TableAdd(2, entries("192.0.2.1", "192.0.2.0/24")); err != nil {
		t.Fatal(err)
	}
	next := b.Config
	next.Pf.TableEntries *= 2
	g, err := b.load(&next, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if _, err := b.TableAdd(3, entries("192.0.2.1", "192.0.2.9")); err != nil {
		t.Fatal(err)
	}
	if err := b.growPF(g, &next, true); err != nil {
		t.Fatal(err)
	}
	a, err := g.addresses(&next)
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int][]pf.TableEntry{2: entries("192.0.2.0/24", "192.0.2.1"), 3: entries("192.0.2.1", "192.0.2.9")} {
		var got []pf.TableEntry
		err := a.walk(n, func(e pf.TableEntry) { got = append(got, e) })
		SortEntries(got)
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("table %d has %v, %v; want %v", n, got, err, want)
		}
	}
}

func BenchmarkPFLoad(b *testing.B) {
	s := newShelf(b, 2)
	br := s.create("br0", 2)
	var conf strings.Builder
	for i := range 10000 {
		fmt.Fprintf(&conf, "pass in proto tcp from 10.%d.%d.0/24 to port %d\n", i/250, i%250, 1+i)
	}
	prog := compilePF(b, &br.Config, conf.String())
	for b.Loop() {
		s.do(func() error {
			next := br.Config
			next.Flags |= uint32(BridgePF)
			return br.Commit(&next, Tables{PF: &PF{Program: prog, Text: []byte(conf.String()), StatesMax: 100000, NodesMax: 10000, TableEntries: 200000}}, keepAll)
		})
	}
}

func BenchmarkTable(b *testing.B) {
	const n = 1000000
	s := newShelf(b, 1)
	br := s.create("br0", 1)
	s.loadPF(br, "pass\n", func(_ *Config, p *PF) { p.TableEntries = n + 1000 })
	hosts, nets := make([]pf.TableEntry, n), make([]pf.TableEntry, n)
	for i := range hosts {
		a := netip.AddrFrom4([4]byte{10 + byte(i>>24), byte(i >> 16), byte(i >> 8), byte(i)})
		hosts[i].Prefix = netip.PrefixFrom(a, 32)
		a = netip.AddrFrom4([4]byte{byte(i >> 14), byte(i >> 6), byte(i << 2)})
		nets[i].Prefix = netip.PrefixFrom(a, 22)
	}
	for name, list := range map[string][]pf.TableEntry{"addresses": hosts, "networks": nets} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if did, err := br.TableAdd(0, list); did != n || err != nil {
					b.Fatal(did, err)
				}
				b.StopTimer()
				if _, err := br.TableFlush(0); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
	if _, err := br.TableAdd(0, slices.Concat(hosts, nets)); err != nil {
		b.Fatal(err)
	}
	for _, text := range []string{"192.0.2.1", "192.0.2.128/25", "192.0.0.0/8"} {
		b.Run("one more "+strings.ReplaceAll(text, "/", "-"), func(b *testing.B) {
			e := entries(text)
			for b.Loop() {
				if _, err := br.TableAdd(1, e); err != nil {
					b.Fatal(err)
				}
				if _, err := br.TableDelete(1, e); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
