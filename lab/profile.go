// SPDX-License-Identifier: BSD-2-Clause

// Package lab measures bridges on this machine: it builds fabrics, sends
// workloads over them, all peers interleaved in every round, and reports.
package lab

import (
	"fmt"
	"slices"
	"strings"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/workloads"
)

// Case is one workload on one fabric.
type Case struct {
	Fabric   *fabrics.Fabric
	Workload *workloads.Workload
	Setup    Setup
}

// Setup has the differences from ends in namespaces with an MTU of 1500. It is
// the same for all workloads.
type Setup struct {
	Host   bool `yaml:"host"`   // the host itself is the first end
	MTU    int  `yaml:"mtu"`    // of the ends and all between them, 0 for 1500
	Guests bool `yaml:"guests"` // the ends are virtual machines
}

// String is "", or the differences, with spaces between: "host mtu=9000 vm".
func (s Setup) String() string {
	var out []string
	if s.Host {
		out = append(out, "host")
	}
	if s.MTU != 0 && s.MTU != ends.DefaultMTU {
		out = append(out, fmt.Sprintf("mtu=%d", s.MTU))
	}
	if s.Guests {
		out = append(out, "vm")
	}
	return strings.Join(out, " ")
}

// Label is how the case is called within its group.
func (c Case) Label() string {
	return strings.TrimSpace(c.Fabric.Name + " " + c.Workload.Name + " " + c.Setup.String())
}

// spec is the fabric that the case needs.
func (c Case) spec() fabrics.Spec {
	s := c.Workload.Spec
	s.Host, s.Guests = c.Setup.Host, c.Setup.Guests
	if c.Setup.MTU != 0 {
		s.Wire.MTU = c.Setup.MTU
	}
	return s
}

// Group is cases that are measured interleaved: one round of each, then the
// next round.
type Group struct {
	Name   string
	About  string
	Rounds int
	Cases  []Case
}

// Target is a figure that is wanted of a group: the median of a case's values,
// or of its ratios to another case in the same rounds.
type Target struct {
	Name    string
	Group   string
	Of      string // label of a case
	Against string // label of another case, "" for the value itself
	Value   string // the name of a value beside the main one, "" for the main one
	Invert  bool   // the ratio is of Against to Of: cost instead of speed
	Unit    string // "x" for a ratio
	Lower   bool   // less is better
	Must    float64
	Aim     float64
}

// Profile is a set of measurements that belong together.
type Profile struct {
	Name    string
	About   string
	Groups  []Group
	Targets []Target
	Claims  []Claim
	// Strict: a case that cannot be measured makes the run fail.
	Strict bool
}

// across makes a case of each workload on each fabric, workload by workload.
func across(fs []*fabrics.Fabric, ws ...*workloads.Workload) []Case {
	var out []Case
	for _, w := range ws {
		for _, f := range fs {
			out = append(out, Case{Fabric: f, Workload: w})
		}
	}
	return out
}

// group is cases; the first workload's name and text stand for all.
func group(rounds int, cases []Case) Group {
	w := cases[0].Workload
	return Group{Name: w.Name, About: w.About, Rounds: rounds, Cases: cases}
}

// Demo shows real TCP traffic over a cable, a Linux bridge and a bascule, in
// less than a minute.
func Demo() Profile {
	peers := []*fabrics.Fabric{fabrics.Direct, fabrics.LinuxBridge, fabrics.Bascule}
	return Profile{
		Name:  "demo",
		About: "TCP over a cable, a Linux bridge and a bascule",
		Groups: []Group{
			group(4, across(peers, workloads.Must("tcp-stream:duration=1s"))),
			group(4, across(peers, workloads.Must("tcp-stream:offloads:duration=1s"))),
		},
	}
}

// Bench is every figure that the project is held to. Quick takes fewer and
// shorter rounds: good for a look, not for a claim.
func Bench(quick bool) Profile {
	var (
		direct  = fabrics.Direct
		linux   = fabrics.LinuxBridge
		tcx     = fabrics.Bascule
		xdp     = fabrics.BasculeXDP
		bare    = fabrics.XDPBare
		bridges = []*fabrics.Fabric{linux, tcx, xdp}

		rounds, many = 7, 20
		stream       = ":duration=2s"
		window       = ":duration=700ms"
	)
	if quick {
		rounds, many = 3, 3
		stream, window = ":duration=1s", ":duration=300ms"
	}

	p := Profile{
		Name:   "bench",
		About:  "every figure that bascule is held to",
		Strict: true,
	}
	add := func(g Group) string {
		p.Groups = append(p.Groups, g)
		return g.Name
	}
	label := func(f *fabrics.Fabric, w *workloads.Workload) string { return Case{Fabric: f, Workload: w}.Label() }
	ratio := func(name, group string, f *fabrics.Fabric, w *workloads.Workload, against *fabrics.Fabric, must, aim float64) {
		p.Targets = append(p.Targets, Target{Name: name, Group: group, Of: label(f, w), Against: label(against, w), Unit: "x", Must: must, Aim: aim})
	}

	cost := func(name, group string, w *workloads.Workload, many, few *fabrics.Fabric, must, aim float64) {
		p.Targets = append(p.Targets, Target{Name: name, Group: group, Of: label(many, w), Against: label(few, w), Invert: true,
			Unit: "x", Lower: true, Must: must, Aim: aim})
	}

	off := workloads.Must("tcp-stream" + stream)
	g := add(group(rounds, across([]*fabrics.Fabric{direct, linux, tcx}, off)))
	ratio("TCP, 1 stream, offloads off", g, tcx, off, linux, 1.18, 1.30)
	ratio("TCP, 1 stream, offloads off", g, tcx, off, direct, 0.85, 0.92)

	for _, streams := range []int{1, 4} {
		on := workloads.Must(fmt.Sprintf("tcp-stream:streams=%d:offloads", streams) + stream)
		name := fmt.Sprintf("TCP, %d stream, offloads on", streams)
		if streams > 1 {
			name = fmt.Sprintf("TCP, %d streams, offloads on", streams)
		}
		g := add(group(many, across([]*fabrics.Fabric{direct, linux, tcx}, on)))
		ratio(name, g, tcx, on, linux, 1.00, 1.05)
		ratio(name, g, tcx, on, direct, 0.96, 1.00)
	}

	udp := workloads.Must("udp" + stream)
	g = add(group(rounds, across([]*fabrics.Fabric{direct, linux, tcx}, udp)))
	ratio("UDP, 64-byte datagrams", g, tcx, udp, linux, 1.08, 1.20)
	ratio("UDP, 64-byte datagrams", g, tcx, udp, direct, 0.87, 0.95)

	one := workloads.Must("pps" + window)
	g = add(group(rounds, across([]*fabrics.Fabric{direct, linux, tcx, xdp, bare}, one)))
	ratio("64-byte frames, one core, XDP", g, xdp, one, linux, 2.9, 3.7)
	ratio("64-byte frames, one core, XDP", g, xdp, one, bare, 0.76, 0.92)
	ratio("64-byte frames, one core, tcx", g, tcx, one, linux, 1.10, 1.4)

	chains := []*fabrics.Fabric{tcx, fabrics.BasculeChain7, fabrics.LinuxChain7}
	g = add(Group{
		Name:   "chain",
		About:  "TCP and 64-byte frames through seven bridges in a row, against one",
		Rounds: rounds,
		Cases:  across(chains, off, one),
	})
	ratio("TCP, seven bridges in a row against one, offloads off", g, fabrics.BasculeChain7, off, tcx, 0.80, 0.90)
	ratio("64-byte frames, seven bridges in a row", g, fabrics.BasculeChain7, one, fabrics.LinuxChain7, 2.5, 4.0)
	large := workloads.Must("tcp-stream:offloads" + stream)
	g = add(Group{
		Name:   "chain-offloads",
		About:  "TCP in large packets through seven bridges in a row, against one",
		Rounds: many,
		Cases:  across([]*fabrics.Fabric{tcx, fabrics.BasculeChain7}, large),
	})
	ratio("TCP, seven bridges in a row against one, offloads on", g, fabrics.BasculeChain7, large, tcx, 0.97, 1.00)

	g = add(Group{
		Name:   "features",
		About:  "TCP and 64-byte frames with features of a switch on, against without",
		Rounds: rounds,
		Cases: slices.Concat(
			across([]*fabrics.Fabric{linux, fabrics.LinuxBridgeVLAN, fabrics.OVSVLAN, tcx, fabrics.BasculeVLAN, fabrics.BasculeFive}, off),
			across([]*fabrics.Fabric{linux, fabrics.LinuxBridgeVLAN, fabrics.LinuxBridgeIsolated, fabrics.OVSVLAN, tcx, fabrics.BasculeVLAN,
				xdp, fabrics.BasculeXDPVLAN, fabrics.BasculeXDPIsolated, fabrics.BasculeXDPFive}, one)),
	})
	ratio("64-byte frames, VLAN filtering against none, XDP", g, fabrics.BasculeXDPVLAN, one, xdp, 0.90, 0.97)
	ratio("TCP, VLAN filtering against none, offloads off", g, fabrics.BasculeVLAN, off, tcx, 0.95, 1.00)
	ratio("64-byte frames, five features against none, XDP", g, fabrics.BasculeXDPFive, one, xdp, 0.75, 0.90)
	ratio("TCP, five features against none, offloads off", g, fabrics.BasculeFive, off, tcx, 0.90, 0.97)
	ratio("64-byte frames, VLAN filtering, against Open vSwitch", g, fabrics.BasculeVLAN, one, fabrics.OVSVLAN, 0, 0)

	// More destinations than a CPU remembers decisions, so that rules are met.
	strangers := workloads.Must("addresses:count=20000" + window)
	g = add(Group{
		Name:   "rules",
		About:  "64-byte frames, one core, to 20 000 addresses, past MAC rules of which the last lets them in",
		Rounds: rounds,
		Cases:  across([]*fabrics.Fabric{fabrics.BasculeRules10, fabrics.BasculeRules1000, fabrics.BasculeXDPRules10, fabrics.BasculeXDPRules1000}, strangers),
	})
	for _, f := range [][2]*fabrics.Fabric{{fabrics.BasculeRules1000, fabrics.BasculeRules10}, {fabrics.BasculeXDPRules1000, fabrics.BasculeXDPRules10}} {
		cost("cost per frame, 1000 MAC rules against 10", g, strangers, f[0], f[1], 2.0, 1.1)
	}

	filtered := fabrics.LinuxBridgeFiltered
	connections := workloads.Must("crr:connections=16" + stream)
	g = add(Group{
		Name:   "pf",
		About:  "a stateful packet filter, against none and against nftables on the kernel's bridge",
		Rounds: rounds,
		Cases: slices.Concat(
			across([]*fabrics.Fabric{linux, filtered, tcx, fabrics.BasculePF}, off),
			across([]*fabrics.Fabric{linux, filtered, tcx, fabrics.BasculePF, xdp, fabrics.BasculeXDPPF}, one),
			across([]*fabrics.Fabric{linux, filtered, tcx, fabrics.BasculePF}, connections)),
	})
	ratio("TCP, stateful rules against none, offloads off", g, fabrics.BasculePF, off, tcx, 0.93, 0.97)
	ratio("64-byte frames, established, stateful rules against none, XDP", g, fabrics.BasculeXDPPF, one, xdp, 0.65, 0.80)
	ratio("64-byte frames, established, stateful rules, against nftables", g, fabrics.BasculeXDPPF, one, filtered, 4.0, 5.0)
	ratio("connections a second, stateful rules, against nftables", g, fabrics.BasculePF, connections, filtered, 1.3, 1.5)
	// By the same measures, what the filters cost otherwise.
	ratio("64-byte frames, established, stateful rules against none, tcx", g, fabrics.BasculePF, one, tcx, 0, 0)
	ratio("connections a second, stateful rules against none", g, fabrics.BasculePF, connections, tcx, 0, 0)
	ratio("64-byte frames, established, nftables against none", g, filtered, one, linux, 0, 0)
	ratio("connections a second, nftables against none", g, filtered, connections, linux, 0, 0)

	first := workloads.Must("first-packets")
	g = add(Group{
		Name:   "pf-rules",
		About:  "64-byte frames, one core, past stateful rules of which the last lets them in: of one flow, and each of its own",
		Rounds: rounds,
		Cases: across([]*fabrics.Fabric{fabrics.BasculePF10, fabrics.BasculePF10k, fabrics.BasculeXDPPF10, fabrics.BasculeXDPPF10k},
			one, first),
	})
	cost("cost per established frame, 10 000 stateful rules against 10", g, one, fabrics.BasculePF10k, fabrics.BasculePF10, 1.0, 0)
	cost("cost per established frame, 10 000 stateful rules against 10", g, one, fabrics.BasculeXDPPF10k, fabrics.BasculeXDPPF10, 1.0, 0)
	cost("cost per first packet, 10 000 stateful rules against 10", g, first, fabrics.BasculePF10k, fabrics.BasculePF10, 2.0, 1.2)
	cost("cost per first packet, 10 000 stateful rules against 10", g, first, fabrics.BasculeXDPPF10k, fabrics.BasculeXDPPF10, 2.0, 1.2)
	g = add(Group{
		Name:   "pf-tables",
		About:  "64-byte frames, one core, each of a flow of its own, from random addresses that a table does not have",
		Rounds: rounds,
		Cases: across([]*fabrics.Fabric{fabrics.BasculePFTable10, fabrics.BasculePFTable1m, fabrics.BasculeXDPPFTable10, fabrics.BasculeXDPPFTable1m},
			first),
	})
	cost("cost per first packet, a table of 1 000 000 addresses against 10", g, first, fabrics.BasculePFTable1m, fabrics.BasculePFTable10, 1.5, 1.2)
	cost("cost per first packet, a table of 1 000 000 addresses against 10", g, first, fabrics.BasculeXDPPFTable1m, fabrics.BasculeXDPPFTable10, 1.5, 1.2)

	load := workloads.Must("pf-load")
	g = add(group(rounds, across([]*fabrics.Fabric{fabrics.BasculePF}, load)))
	p.Targets = append(p.Targets, Target{Name: "loading 10 000 stateful rules", Group: g, Of: label(fabrics.BasculePF, load),
		Unit: load.Unit, Lower: true, Must: 2, Aim: 0.3})
	state := workloads.Must("pf-memory")
	g = add(group(1, across([]*fabrics.Fabric{fabrics.BasculePF}, state)))
	p.Targets = append(p.Targets, Target{Name: "memory per state, 1 000 000 states", Group: g, Of: label(fabrics.BasculePF, state),
		Unit: state.Unit, Lower: true, Must: 256, Aim: 160})
	oneCore := workloads.Must("pps:connections=1000000" + window)
	twoCores := workloads.Must("pps:cores=2:connections=1000000" + window)
	g = add(Group{
		Name:   "pf-cores",
		About:  "64-byte frames of 1 000 000 established connections past stateful rules, two cores against one",
		Rounds: rounds,
		Cases:  across([]*fabrics.Fabric{fabrics.BasculeXDPPF}, oneCore, twoCores),
	})
	p.Targets = append(p.Targets, Target{Name: "64-byte frames of 1 000 000 established connections, two cores against one, XDP", Group: g,
		Of: label(fabrics.BasculeXDPPF, twoCores), Against: label(fabrics.BasculeXDPPF, oneCore), Unit: "x", Must: 1.85, Aim: 1.95})

	alone := workloads.Must("flood:ports=3" + window)
	among := workloads.Must("flood:ports=3:apart=252" + window)
	g = add(Group{
		Name:   "members",
		About:  "broadcasts in a VLAN of 4 ports, on a bridge of 4 and on one of 256",
		Rounds: rounds,
		Cases:  across([]*fabrics.Fabric{fabrics.BasculeVLAN}, alone, among),
	})
	p.Targets = append(p.Targets, Target{Name: "flood in a VLAN of 4 ports, among 256 against alone", Group: g,
		Of: label(fabrics.BasculeVLAN, among), Against: label(fabrics.BasculeVLAN, alone), Unit: "x", Must: 0.90, Aim: 1.0})

	different := workloads.Must("pps:cores=2" + window)
	same := workloads.Must("pps:cores=2:same-source" + window)
	two := Group{
		Name:   "two-cores",
		About:  "64-byte frames, two cores against one",
		Rounds: rounds,
		Cases:  across(bridges, one, different, same),
	}
	g = add(two)
	for _, f := range []*fabrics.Fabric{xdp, tcx, linux} {
		must, aim := 1.9, 2.0
		if f == linux {
			must, aim = 0, 0
		}
		for _, w := range []*workloads.Workload{different, same} {
			name := "two cores against one, different sources"
			if w == same {
				name = "two cores against one, same source"
			}
			p.Targets = append(p.Targets, Target{Name: name, Group: g, Of: label(f, w), Against: label(f, one), Unit: "x", Must: must, Aim: aim})
		}
	}

	quiet := workloads.Must("learning:rate=0" + window)
	busy := workloads.Must("learning" + window)
	g = add(Group{
		Name:   "learning",
		About:  "64-byte frames on one core, while another learns 100 000 new addresses a second",
		Rounds: rounds,
		Cases:  across(bridges, quiet, busy),
	})
	for _, f := range []*fabrics.Fabric{xdp, tcx, linux} {
		must, aim := 0.90, 0.98
		if f == linux {
			must, aim = 0, 0
		}
		p.Targets = append(p.Targets, Target{Name: "forwarding while learning, against quiet", Group: g,
			Of: label(f, busy), Against: label(f, quiet), Unit: "x", Must: must, Aim: aim})
	}

	few := workloads.Must("addresses:count=1000" + window)
	million := workloads.Must("addresses" + window)
	g = add(Group{
		Name:   "addresses",
		About:  "64-byte frames, one core, to random addresses: 1 000 000 in the table against 1 000",
		Rounds: rounds,
		Cases:  across(bridges, few, million),
	})
	for _, f := range []*fabrics.Fabric{xdp, tcx, linux} {
		must, aim := 2.0, 1.3
		if f == linux {
			must, aim = 0, 0
		}
		p.Targets = append(p.Targets, Target{Name: "cost per frame, 1 000 000 entries against 1 000", Group: g,
			Of: label(f, million), Against: label(f, few), Invert: true, Unit: "x", Lower: true, Must: must, Aim: aim})
	}

	memory := workloads.Must("fdb-memory")
	g = add(group(1, across([]*fabrics.Fabric{tcx}, memory)))
	p.Targets = append(p.Targets, Target{Name: "FDB memory per entry", Group: g, Of: label(tcx, memory),
		Unit: memory.Unit, Lower: true, Must: 128, Aim: 96})

	flood := workloads.Must("flood" + window)
	g = add(group(rounds, across(bridges, flood)))
	ratio("flood to 64 ports, tcx", g, tcx, flood, linux, 0.75, 1.0)
	ratio("flood to 64 ports, XDP-capable", g, xdp, flood, linux, 1.0, 2.0)

	latency := workloads.Must("latency" + stream)
	g = add(group(rounds, across([]*fabrics.Fabric{direct, linux, tcx}, latency)))
	for _, v := range []struct{ name, value string }{{"mean", ""}, {"p99", "p99_us"}} {
		p.Targets = append(p.Targets, Target{Name: "TCP request/response latency, " + v.name, Group: g,
			Of: label(tcx, latency), Against: label(linux, latency), Value: v.value, Unit: "x", Lower: true, Must: 1.02, Aim: 0.9})
	}

	portAdd := workloads.Must("port-add")
	g = add(group(max(rounds, 5), across([]*fabrics.Fabric{linux, tcx}, portAdd)))
	p.Targets = append(p.Targets, Target{Name: "port add on a bridge with 200 ports", Group: g, Of: label(tcx, portAdd),
		Unit: portAdd.Unit, Lower: true, Must: 50, Aim: 10})
	return p
}
