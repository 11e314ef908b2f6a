// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"golang.org/x/sys/unix"

	"bascule/pf"
)

// A feature that is off costs nothing: its instructions are not in the program. These are the
// counts of a plain switch on Linux 6.18; the budget leaves room for another kernel's
// inlining. Raise them only with a reason. 73 of tcx run only for packets that the kernel
// reports as too large (jumbo_fits() in bpf/verdict.h), and 98 for frames to ports that have
// lost their carrier (lost_way() in bpf/pipeline.h).
const (
	plainTCX = 2073
	plainXDP = 651

	instructionSlack = 2 // percent

	// the most instructions that the verifier may process: more than with everything on, and
	// few enough that a feature that multiplies the paths exceeds them. Verifiers differ: for
	// control, Linux 6.18 processes 10706 instructions. Linux 7.3 processes 14241, because it
	// verifies each function twice that both requests and the timer call.
	verifiedTCX     = 60000
	verifiedXDP     = 30000
	verifiedControl = 16000 // mostly for making and removing pf's states
)

// size returns how many instructions the kernel keeps of a program, and how many its verifier
// has processed.
func size(t testing.TB, p *ebpf.Program) (kept int, verified uint32) {
	t.Helper()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	bytes, err := info.TranslatedSize()
	if err != nil {
		t.Fatal(err)
	}
	verified, ok := info.VerifiedInstructions()
	if !ok {
		t.Fatal("the kernel does not say how many instructions were verified")
	}
	return bytes / 8, verified
}

func TestInstructionBudget(t *testing.T) {
	s := newBench(t, 4, func(c *Config, p []*Port) {
		allXDP(c, p)
		p[3].Facts &^= PortXDPTx // or the bridge would flood by XDP
	})
	if s.cfg.Features != 0 {
		t.Fatalf("features %#x of a plain switch", s.cfg.Features)
	}
	for h, golden := range map[hook]int{hookTCX: plainTCX, hookXDP: plainXDP} {
		kept, _ := size(t, s.gen.program(h))
		budget := golden + golden*instructionSlack/100
		t.Logf("bascule_%s: %d instructions, %d recorded, budget %d", h, kept, golden, budget)
		if kept > budget {
			t.Errorf("bascule_%s has %d instructions, its budget is %d", h, kept, budget)
		}
	}
}

// Each feature adds to the programs that it concerns, and to no other.
func TestFeatureCosts(t *testing.T) {
	base := func(c *Config, p []*Port) {
		allXDP(c, p)
		p[3].Facts &^= PortXDPTx
	}
	s := newShelf(t, 4)
	sizes := func(changes ...func(*Config, []*Port)) (tcx, xdp int) {
		c := newConfig(s.rack, 4, changes...)
		var g *generation
		s.do(func() (err error) {
			g, err = (&Bridge{store: s.store}).load(&c, Tables{})
			return err
		})
		defer g.Close()
		tcx, _ = size(t, g.program(hookTCX))
		xdp, _ = size(t, g.program(hookXDP))
		return tcx, xdp
	}
	plainTCX, plainXDP := sizes(base)
	tests := []struct {
		name     string
		change   func(c *Config, p []*Port)
		tcx, xdp bool
	}{
		{"group mask", func(c *Config, _ []*Port) { c.GroupFwdMask = 1 }, true, true},
		{"hairpin", func(_ *Config, p []*Port) { p[0].Flags |= PortHairpin }, true, true},
		{"learn off", func(_ *Config, p []*Port) { p[0].Flags &^= PortLearn }, true, true},
		{"discover off", func(_ *Config, p []*Port) { p[0].Flags &^= PortDiscover }, true, false},
		{"protected", func(_ *Config, p []*Port) { p[0].Domains, p[1].Domains = 2, 2 }, true, true},
		{"peer", func(_ *Config, p []*Port) { p[0].Peer = 2 }, true, false},
		{"VLANs", func(c *Config, _ []*Port) { c.Flags |= uint32(BridgeVLANs) }, true, true},
		{"flood by XDP", func(_ *Config, p []*Port) { p[3].Facts |= PortXDPTx }, false, true},
		{"locked", func(_ *Config, p []*Port) { p[0].Flags |= PortLocked }, true, true},
		{"locked, with entries", func(_ *Config, p []*Port) { p[0].Flags |= PortLocked | PortMAB }, true, true},
		{"backup", func(_ *Config, p []*Port) { p[0].Backup = p[1].Id }, true, true},
		{"admit without VLANs", func(_ *Config, p []*Port) { p[0].Admit = AdmitTagged }, false, false},
		{"limit drop", func(_ *Config, p []*Port) { p[0].Flags |= PortLimitDrop }, true, false},
		{"block non-IP", func(_ *Config, p []*Port) { p[0].Flags |= PortBlockNonIP }, true, true},
		{"move limit", func(c *Config, _ []*Port) { c.MoveMax = 5 }, true, false},
		{"loop guard", func(_ *Config, p []*Port) { p[0].Flags |= PortLoopGuard }, true, true},
		{"spanning tree", rapidTree, true, true},
		{"rules in", func(_ *Config, p []*Port) { p[0].Flags |= PortRulesIn }, true, true},
		{"rules out", func(_ *Config, p []*Port) { p[0].Flags |= PortRulesOut }, true, true},
		{"other limits", func(c *Config, p []*Port) { c.FdbMax, c.Ageing, p[0].FdbMax = 5, 7, 3 }, false, false},
		{"storm limit", func(_ *Config, p []*Port) { storm{1, false}.set(p[0], StormUnknown) }, true, true},
		{"rate in", func(_ *Config, p []*Port) { rate{storm{1, false}, 0}.set(p[0], LimitIn) }, true, true},
		{"rate out", func(_ *Config, p []*Port) { rate{storm{1, false}, 0}.set(p[0], LimitOut) }, true, true},
		{"source guard", sourceGuard, true, true},
		{"DHCP guard", dhcpGuard, true, true},
		{"RA guard", raGuard, true, true},
		{"suppression", suppress, true, true},
		{"berth", berth, true, true},
		{"routed", routed, true, true},
		{"one isolated", func(_ *Config, p []*Port) { p[0].Domains = 2 }, false, false},
	}
	for _, tt := range tests {
		tcx, xdp := sizes(base, tt.change)
		t.Logf("%s: tcx %+d, XDP %+d instructions", tt.name, tcx-plainTCX, xdp-plainXDP)
		if tcx > plainTCX != tt.tcx || xdp > plainXDP != tt.xdp || tcx < plainTCX || xdp < plainXDP {
			t.Errorf("%s: tcx %+d, XDP %+d instructions, want more of tcx: %v, of XDP: %v", tt.name, tcx-plainTCX, xdp-plainXDP, tt.tcx, tt.xdp)
		}
	}
}

// everything switches on all features that a bridge with XDP may have, but pf.
func everything(c *Config, p []*Port) {
	allXDP(c, p)
	c.GroupFwdMask, c.MoveMax = 0xffff, 5
	p[0].Flags |= PortHairpin
	p[0].Flags &^= PortDiscover
	p[0].Domains, p[1].Domains = 2, 2
	p[1].Flags &^= PortLearn
	p[2].Peer = 2
	storm{1000, true}.set(p[0], StormBroadcast)
	rates(c, p)
	p[2].Flags |= PortRulesIn | PortRulesOut
	p[3].Flags |= PortLimitDrop | PortBlockNonIP | PortLoopGuard | PortLocked | PortMAB
	p[0].Admit, p[1].Backup = AdmitUntagged, p[2].Id
	c.Flags |= uint32(BridgeVLANs | BridgeQinQ | BridgeVLANStats | BridgeTalkers | BridgeSTP)
	Plug(NewPort(c, "patch"), 1, 2)
	sourceGuard(c, p)
	dhcpGuard(c, p)
	raGuard(c, p)
	suppress(c, p)
	routed(c, p)
}

// rates adds limits of all frames that come in, and of all that leave.
func rates(_ *Config, p []*Port) {
	rate{storm{1000, true}, 0}.set(p[0], LimitIn)
	rate{storm{1000, false}, 10}.set(p[2], LimitOut)
}

// routed adds a host port that routes.
func routed(_ *Config, p []*Port) {
	p[1].Flags |= PortRoute
	p[1].Endpoint, p[1].HostIfindex, p[1].Host = 3, 1, 2
	p[1].Notes |= PortHost
}

// withSpan adds a span port, whose frames XDP leaves to tcx.
func withSpan(c *Config, p []*Port) {
	spanAt(c, p[3], 0)
	c.SpanIn, p[0].SpanOut = 1, 1
}

func captured(c *Config, p []*Port) {
	watched(uint32(MaxSnaplen), BridgeCapture)(c, p)
	c.CapturePoints |= 1 << CapturePorts
	p[0].Flags |= PortCapture
}

func sampled(c *Config, p []*Port) {
	allXDP(c, p)
	c.Flags |= uint32(BridgeSample)
	c.SampleRate, c.SampleDrops = 1000, 100
}

func pfEverything(c *Config, p []*Port) {
	allXDP(c, p)
	c.Flags |= uint32(BridgePF)
	c.Pf.Features = uint64(pfFeatures)
	c.Pf.Rules, c.Pf.Groups, c.Pf.Dims, c.Pf.Asks, c.Pf.Buckets = 10000, 3, 1<<8-1, 1<<7-1|pf.AskLoopback, 1
}

// pfRouted adds a host port that routes past pf, which XDP does without ether rules.
func pfRouted(c *Config, p []*Port) {
	pfEverything(c, p)
	rates(c, p)
	c.Pf.Features &^= uint64(kernelFeatureFEATURE_ETHER)
	c.Pf.EtherRules = 0
	c.Flags |= uint32(BridgeVLANs)
	routed(c, p)
}

// pfFirst adds a host port whose first packets XDP judges and routes, as it does with few
// rules.
func pfFirst(c *Config, p []*Port) {
	pfRouted(c, p)
	c.Pf.Features &^= uint64(kernelFeatureFEATURE_PF_FIB | kernelFeatureFEATURE_PF_LIMITERS)
	c.Pf.Asks &^= pf.AskRoute | pf.AskPriority | pf.AskRandom | pf.AskOnce
}

// Every specialised program is verified in a moment: the number of instructions that the
// verifier processes is bounded, and does not grow with the ports.
func TestVerifierBudget(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *Config, p []*Port)
	}{
		{"plain", allXDP},
		{"pf", pfEverything},
		{"port security", func(c *Config, p []*Port) {
			allXDP(c, p)
			c.MoveMax = 5
			p[3].Flags |= PortLimitDrop | PortBlockNonIP | PortLoopGuard | PortLocked
		}},
		{"group mask", func(c *Config, p []*Port) { allXDP(c, p); c.GroupFwdMask = 1 }},
		{"hairpin", func(c *Config, p []*Port) { allXDP(c, p); p[0].Flags |= PortHairpin }},
		{"learn off", func(c *Config, p []*Port) { allXDP(c, p); p[0].Flags &^= PortLearn }},
		{"discover off", func(c *Config, p []*Port) { allXDP(c, p); p[0].Flags &^= PortDiscover }},
		{"protected", func(c *Config, p []*Port) { allXDP(c, p); p[0].Domains, p[1].Domains = 2, 2 }},
		{"peer", func(c *Config, p []*Port) { allXDP(c, p); p[0].Peer = 2 }},
		{"storm limit", func(c *Config, p []*Port) { allXDP(c, p); storm{1, false}.set(p[0], StormUnknown) }},
		{"rates", func(c *Config, p []*Port) { allXDP(c, p); rates(c, p) }},
		{"span", func(c *Config, p []*Port) { allXDP(c, p); withSpan(c, p) }},
		{"capture", captured},
		{"top", watched(0, BridgeTalkers)},
		{"samples", sampled},
		{"patch", func(c *Config, p []*Port) { allXDP(c, p); Plug(NewPort(c, "patch"), 1, 2) }},
		{"rules", func(c *Config, p []*Port) { allXDP(c, p); p[0].Flags |= PortRulesIn | PortRulesOut }},
		{"VLANs", func(c *Config, p []*Port) {
			allXDP(c, p)
			c.Flags |= uint32(BridgeVLANs | BridgeQinQ | BridgeVLANStats)
		}},
		{"source guard", func(c *Config, p []*Port) { allXDP(c, p); sourceGuard(c, p) }},
		{"DHCP guard", func(c *Config, p []*Port) { allXDP(c, p); dhcpGuard(c, p) }},
		{"RA guard", func(c *Config, p []*Port) { allXDP(c, p); raGuard(c, p) }},
		{"suppression", func(c *Config, p []*Port) { allXDP(c, p); suppress(c, p) }},
		{"berth", func(c *Config, p []*Port) { allXDP(c, p); berth(c, p) }},
		{"routed", func(c *Config, p []*Port) { allXDP(c, p); routed(c, p) }},
		{"routed past pf", pfRouted},
		{"first packets past pf", pfFirst},
		{"everything", everything},
		{"everything and a berth", func(c *Config, p []*Port) { everything(c, p); berth(c, p) }},
		{"everything and pf", func(c *Config, p []*Port) { everything(c, p); pfEverything(c, p) }},
		{"everything and a span", func(c *Config, p []*Port) { everything(c, p); withSpan(c, p) }},
		{"everything, a span and a capture", func(c *Config, p []*Port) { everything(c, p); withSpan(c, p); captured(c, p) }},
		{"everything on the largest bridge", func(c *Config, p []*Port) {
			everything(c, p)
			c.FdbMax = 1 << 20
			for len(Ports(c)) < MaxPorts {
				filler := NewPort(c, "filler")
				filler.Ifindex, filler.Flags = uint32(1000+len(Ports(c))), PortLearn|floods
			}
		}},
	}
	budgets := map[string]uint32{
		kernelProgBasculeTcx: verifiedTCX, kernelProgBasculePatch: verifiedTCX,
		kernelProgBasculeXdp: verifiedXDP, kernelProgBasculeControl: verifiedControl, kernelProgBasculeFamily: verifiedTCX,
		kernelProgBasculeFib: verifiedTCX, kernelProgBasculeFibPatch: verifiedTCX,
		kernelProgBasculeOut: verifiedXDP, kernelProgBasculeHop: verifiedTCX, kernelProgBasculeDue: verifiedTCX, kernelProgBasculeFirst: verifiedTCX,
	}
	s := newShelf(t, 4)
	b := &Bridge{store: s.store}
	met := kernelFeature(0)
	for _, tt := range tests {
		c := newConfig(s.rack, 4, tt.change)
		met |= kernelFeature(c.Features)
		var tables Tables
		if BridgeFlags(c.Flags)&BridgeCapture != 0 {
			tables.Filter = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}
		}
		var g *generation
		s.do(func() (err error) {
			g, err = b.load(&c, tables)
			return err
		})
		for name, budget := range budgets {
			p := g.coll.Programs[name]
			// without patch ports, or without pf
			if p == nil && name != kernelProgBasculeTcx && name != kernelProgBasculeControl {
				continue
			}
			kept, verified := size(t, p)
			t.Logf("%s, %s: processed %d insns, budget %d; %d kept", tt.name, name, verified, budget, kept)
			if verified > budget {
				t.Errorf("%s, %s: the verifier processed %d insns, the budget is %d", tt.name, name, verified, budget)
			}
		}
		g.Close() // a small machine has no memory for all of them
	}
	if all := (kernelFeatureFEATURE_END - 1) &^ (kernelFeatureFEATURE_TRACE | kernelFeatureFEATURE_PF_STAMPS | kernelFeatureFEATURE_PF_SLEEPS); met != all {
		t.Errorf("features %#x are in no configuration", all&^met)
	}
}

// A room is a program's share of the kernel's limits.
type room struct {
	maps     int // of 64
	stack    int // bytes, of 512, in the deepest chain of its functions
	verified int // instructions, of 1 000 000
}

// The most that programs may take with everything on, so that there is room for the next
// feature.
var rooms = map[string]room{
	kernelProgBasculeTcx:   {41, 320, 60000},
	kernelProgBasculePatch: {41, 320, 60000},
	// the program that others tail-call
	kernelProgBasculeFamily:   {40, 320, 60000},
	kernelProgBasculeFib:      {40, 320, 60000},
	kernelProgBasculeFibPatch: {40, 320, 60000},
	kernelProgBasculeHop:      {40, 320, 60000},
	kernelProgBasculeDue:      {40, 320, 60000},
	kernelProgBasculeXdp:      {40, 272, 60000},
	kernelProgBasculeFirst:    {40, 320, 60000},
}

// The same for a trial, which records many steps.
var trialRoom = room{40, 320, 60000}

// With everything on, each program leaves room for more.
func TestHeadroom(t *testing.T) {
	s := newShelf(t, 4)
	s.store.log = ebpf.LogLevelStats
	b := &Bridge{store: s.store}
	for name, change := range map[string]func(*Config, []*Port){
		"without a span":        func(c *Config, p []*Port) { everything(c, p); pfEverything(c, p); berth(c, p); sampled(c, p) },
		"routed past pf":        pfRouted,
		"first packets past pf": pfFirst,
		"with a span and a capture": func(c *Config, p []*Port) { // which XDP leaves to tcx
			everything(c, p)
			pfEverything(c, p)
			berth(c, p)
			withSpan(c, p)
			captured(c, p)
			sampled(c, p)
		},
		"with nothing due": func(c *Config, p []*Port) { // so that answers are sent at once
			everything(c, p)
			pfEverything(c, p)
			c.Pf.Features &^= uint64(kernelFeatureFEATURES_DUE)
			berth(c, p)
			withSpan(c, p)
			captured(c, p)
			sampled(c, p)
		},
	} {
		c := newConfig(s.rack, 4, change)
		var tables Tables
		if BridgeFlags(c.Flags)&BridgeCapture != 0 {
			tables.Filter = []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 1}}
		}
		var g *generation
		s.do(func() (err error) {
			g, err = b.load(&c, tables)
			return err
		})
		for program, most := range rooms {
			// finding a packet's route takes the deepest stack of all that XDP does
			if strings.HasSuffix(name, "past pf") && program == kernelProgBasculeXdp {
				most.stack = 400
			}
			if program == kernelProgBasculeDue && kernelFeature(c.Features)&kernelFeatureFEATURES_DUE == 0 {
				continue
			}
			apart := program == kernelProgBasculeFirst || program == kernelProgBasculeFib || program == kernelProgBasculeFibPatch
			if g.coll.Programs[program] == nil && apart { // not every configuration has these
				continue
			}
			fits(t, name+", "+program, g.coll.Programs[program], most)
		}
		g.Close()
	}
}

// fits checks that a program takes no more than its room.
func fits(t *testing.T, what string, p *ebpf.Program, most room) {
	t.Helper()
	kept, verified := size(t, p)
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, ok := info.MapIDs()
	if !ok {
		t.Fatal("the kernel does not say which maps a program has")
	}
	stack, chain := deepest(t, info, p.VerifierLog)
	t.Logf("%s: %d instructions, %d maps, %d bytes of stack, processed %d insns; deepest is %s",
		what, kept, len(ids), stack, verified, strings.Join(chain, " > "))
	if len(ids) > most.maps || stack > most.stack || int(verified) > most.verified {
		t.Errorf("%s: %d maps, %d bytes of stack, processed %d insns, want at most %+v", what, len(ids), stack, verified, most)
	}
}

// The verifier reports the stack of each function in one line for all. Linux 7.3's verifier
// writes a line for each.
var (
	stackDepth    = regexp.MustCompile(`stack depth ([0-9+]+)`)
	subprogStacks = regexp.MustCompile(`(?m)^subprog [0-9]+ .* stack ([0-9]+)$`)
)

// stackDepths returns the bytes of stack of the functions, in the functions' order.
func stackDepths(log string) (depths []string) {
	if m := stackDepth.FindStringSubmatch(log); m != nil {
		return strings.Split(m[1], "+")
	}
	for _, m := range subprogStacks.FindAllStringSubmatch(log, -1) {
		depths = append(depths, m[1])
	}
	return depths
}

// deepest returns the bytes of stack of the deepest chain of calls in a program, and the
// functions of the chain. The verifier's log has each function's bytes, in the functions'
// order.
func deepest(t *testing.T, info *ebpf.ProgramInfo, log string) (int, []string) {
	t.Helper()
	depths := stackDepths(log)
	if depths == nil {
		t.Fatalf("the verifier says nothing of the stack:\n%s", log)
	}
	insns, err := info.Instructions()
	if err != nil {
		t.Fatal(err)
	}
	type function struct {
		name  string
		bytes int
		calls []int // numbers of the first instructions
	}
	infos, err := info.FuncInfos()
	if err != nil {
		t.Fatal(err)
	}
	functions := map[int]*function{}
	var order []*function
	for _, f := range infos {
		functions[int(f.Offset)] = &function{name: f.Func.Name}
		order = append(order, functions[int(f.Offset)])
	}
	at, f := 0, order[0]
	for _, ins := range insns {
		if next := functions[at]; next != nil {
			f = next
		}
		switch {
		case ins.IsFunctionCall():
			f.calls = append(f.calls, at+int(ins.Offset)+1)
		case ins.IsConstantLoad(asm.DWord) && ins.Src == asm.PseudoFunc:
			f.calls = append(f.calls, at+int(int32(ins.Constant))+1)
		}
		at += int(ins.Size() / asm.InstructionSize)
	}
	if len(depths) != len(order) {
		t.Fatalf("the verifier tells the stacks of %d functions, the kernel has %d", len(depths), len(order))
	}
	for i, text := range depths {
		n, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		order[i].bytes = (max(n, 1) + 15) / 16 * 16 // as the kernel rounds
	}
	var below func(f *function) (int, []string)
	below = func(f *function) (most int, chain []string) {
		for _, call := range f.calls {
			callee := functions[call]
			if callee == nil {
				t.Fatalf("%s calls instruction %d, where no function begins", f.name, call)
			}
			if n, c := below(callee); n > most {
				most, chain = n, c
			}
		}
		return most + f.bytes, append([]string{fmt.Sprintf("%s (%d)", f.name, f.bytes)}, chain...)
	}
	return below(order[0])
}

// Features that are off take next to no memory.
func TestMemoryBudget(t *testing.T) {
	r := sharedRack(t)
	c := newConfig(r, 4)
	g, err := (&Bridge{store: &Store{}}).load(&c, Tables{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	var always []string
	for i := range inventory {
		table := &inventory[i]
		m := g.coll.Maps[table.name]
		switch {
		case m == nil || table.on(&c):
		case m.Type() == ebpf.RingBuf:
			if int(m.MaxEntries()) > os.Getpagesize() {
				t.Errorf("%s has %d bytes on a plain bridge", table.name, m.MaxEntries())
			}
		case table.entries == nil && m.MaxEntries() > 1: // its number of entries is bpf/'s
			always = append(always, table.name)
		case m.MaxEntries() > bindingEntries:
			t.Errorf("%s has %d entries of %d bytes on a plain bridge", table.name, m.MaxEntries(), m.ValueSize())
		}
	}
	if n := g.coll.Maps[kernelMapMemory].MaxEntries(); n != 1 {
		t.Errorf("%d parts of memory of a plain bridge, want 1", n)
	}
	slices.Sort(always)
	// docs/design.md has the memory of these
	if want := []string{kernelMapCounters}; !slices.Equal(always, want) {
		t.Errorf("as large as ever are %q, want %q", always, want)
	}
}
