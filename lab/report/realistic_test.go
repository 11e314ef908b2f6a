// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"time"
)

// manyFabrics are similar to the lab's fabrics, and more than there are colours.
var manyFabrics = []string{"direct", "linux-bridge", "bascule", "bascule-xdp", "xdp-bare", "linux-bridge-nft", "linux-bridge-nft-ct",
	"linux-bridge-vlan", "linux-bridge-netfilter", "ovs-userspace", "ovs-netdev-afxdp", "macvlan-bridge", "macvlan-private", "macvlan-vepa",
	"ipvlan-l2", "ipvlan-l3", "router", "router-nft-ct", "tap-vhost", "tap-tuntap", "veth-chain-4", "veth-chain-16", "vxlan-bridge",
	"geneve-bridge", "gre-tap-bridge", "bascule-vlan", "bascule-200-ports", "tc-mirred-redirect", "team-loadbalance", "bond-active-backup"}

// realistic builds a report with everything in it: a group for each kind of chart, with the given
// numbers of cases and rounds.
func realistic(fabrics, rounds, cores int) *Report {
	random := rand.New(rand.NewPCG(1, 2))
	r := &Report{
		Profile: "everything", Started: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), Seconds: 4211, Complete: true,
		Machine: Machine{
			Kernel: "6.18.44 x86_64", CPU: "Some EPYC 9004 16-Core Processor", Cores: cores, MemoryMiB: 24105, Hypervisor: "yes",
			Congestion: "cubic", Load: 0.29, Guests: "tcg", Counters: true,
			Mitigations: map[string]string{"spectre_v1": "Mitigation: usercopy/swapgs barriers and __user pointer sanitization", "spectre_v2": "Mitigation: Retpolines; STIBP: disabled; RSB filling"},
			Versions:    map[string]string{"bascule": "bascule 1b0f30e", "iperf3": "iperf 3.12 (cJSON 1.7.15)", "sockperf": "sockperf, version 3.7-no.git"},
		},
	}
	names := manyFabrics[:fabrics]
	for i, name := range names {
		f := Fabric{Name: name, About: "frames go from one end to the other by way of " + name, Path: []Hop{{"end 1", "end"}}}
		for h := range i % 7 {
			f.Path = append(f.Path, Hop{fmt.Sprintf("veth%d", h), "device"}, Hop{[]string{"br0", "tcx program", "nftables"}[h%3], []string{"bridge", "program", "filter"}[h%3]})
		}
		f.Path = append(f.Path, Hop{"end 2", "end"})
		if i%3 == 1 {
			f.HostPath = []Hop{{"host", "end"}, {"br0", "bridge"}, {"veth1", "device"}, {"end 1", "end"}}
		}
		r.Fabrics = append(r.Fabrics, f)
	}
	group := func(name, about, unit string, lower bool, scale float64, setup string, workloads ...string) {
		g := &Group{Name: name, About: about, Rounds: rounds, Seconds: 60}
		for w, workload := range workloads {
			for i, fabric := range names {
				c := &Case{Label: join(" ", fabric, workload, setup), Fabric: fabric, Workload: workload, Setup: setup, Unit: unit, Lower: lower, Samples: []Sample{}}
				g.Cases = append(g.Cases, c)
				switch {
				case i%11 == 9:
					c.Skipped = "this kernel has no openvswitch module, and no other that could stand for it"
					continue
				case i%11 == 10:
					c.Error = "ip link add: operation not supported\nby this kernel"
					c.Failed = rounds
					continue
				case i%11 == 3:
					c.Notes = []string{"GRO stays off on the veth without an XDP program"}
				}
				level := scale * (0.35 + random.Float64()) * (1 + 0.02*float64(w))
				for n := range rounds {
					c.Samples = append(c.Samples, sample(random, n+1, level, unit, cores))
				}
			}
		}
		r.Groups = append(r.Groups, g)
	}
	group("tcp-stream-1", "TCP, 1 stream, offloads off at the ends (tso, gso, gro: 1500-byte packets)", "Gbit/s", false, 9, "", "tcp-stream-1")
	group("tcp-stream-1-host", "TCP, 1 stream, from the host itself", "Gbit/s", false, 9, "host mtu=9000", "tcp-stream-1")
	group("latency-tcp", "TCP, 64-byte requests and responses, one at a time, ends pinned: half the round trip", "us", true, 30, "", "latency-tcp")
	group("sizes", "frames of many sizes, one core", "Mpps", false, 1.5, "",
		"pps", "pps:size=128", "pps:size=256", "pps:size=512", "pps:size=1024", "pps:size=1518", "pps:size=imix")
	got := SpreadOf([]float64{1.3, 1.4, 1.5, 1.6, 1.45, 1.39})
	r.Figures = []Figure{
		{Name: "TCP, 1 stream, offloads off", Of: "bascule tcp-stream-1", Against: "linux-bridge tcp-stream-1", Unit: "x", Must: 1.18, Aim: 1.3, Got: &got},
		{Name: "FDB memory per entry", Of: "bascule fdb-memory", Unit: "B", Lower: true, Must: 128, Aim: 96, Why: "left out"},
	}
	r.Claims = []Claim{
		{Source: "Some vendor's data sheet, 2021", Claim: "a bridge with a packet filter forwards at less than half of a cable's speed", Published: "417 of 919 Mbit/s",
			Ratio: 0.454, Test: "linux-bridge-nft against direct, TCP, 1 stream", Here: &got, Verdict: "does not hold"},
		{Source: "A talk of 2020", Claim: "a lock for each frame costs a factor of five", Published: "3.7 and 18.6 Mpps", Ratio: 5.03,
			Test: "nothing of the kind is here", Verdict: "cannot be tested", Why: "this machine has no if_bridge(4) & no second system"},
		{Source: "A mailing list", Claim: "<b>XDP</b> is 5 % faster", Published: "1.05 times", Ratio: 1.05, Test: "bascule-xdp against bascule", Here: &got, Verdict: "not shown", Why: "the difference is within the noise"},
		{Source: "Some vendor's data sheet, 2021", Claim: "a switch without one forwards as fast as a cable, whatever the number of its ports and of the addresses behind them",
			Published: "909 against 919 Mbit/s", Ratio: 0.989, Test: "bascule against direct, TCP, 1 stream", Here: &got, Verdict: "holds", Why: "at least 0.95"},
		{Source: "Another list", Claim: "it is so", Published: "2 Mpps", Verdict: "holds", Test: "nothing"},
	}
	return r
}

func sample(random *rand.Rand, round int, level float64, unit string, cores int) Sample {
	noise := func(part float64) float64 { return 1 + part*random.NormFloat64() }
	s := Sample{Round: round, Value: level * noise(0.05), Seconds: 2, Switches: 4000 * noise(0.1)}
	for range 8 {
		s.Intervals = append(s.Intervals, s.Value*noise(0.08))
	}
	for i := range cores {
		busy := random.Float64() / float64(1+i%5)
		c := CPU{User: 0.1 * busy, System: 0.5 * busy, Softirq: 0.4 * busy, Idle: 1 - busy}
		s.Cores = append(s.Cores, c)
		s.CPU.User += c.User
		s.CPU.System += c.System
		s.CPU.Softirq += c.Softirq
		s.CPU.Idle += c.Idle
	}
	switch {
	case strings.HasSuffix(unit, "bit/s"):
		s.Bytes = s.Value * 1e9 / 8 * s.Seconds
		s.Frames = s.Bytes / 1448
	case unit == "Mpps":
		s.Frames = s.Value * 1e6 * s.Seconds
		s.Drops = map[string]uint64{"softnet": 12, "veth1 rx": uint64(s.Frames / 300)}
	case unit == "us":
		s.Intervals, s.More = nil, map[string]float64{}
		for name, times := range map[string]float64{"p50_us": 0.98, "p90_us": 1.2, "p99_us": 1.9, "p99.9_us": 6, "p99.99_us": 31} {
			s.More[name] = s.Value * times * noise(0.1)
		}
	}
	if s.Frames > 0 {
		s.Cycles, s.Instructions = uint64(1900*s.Frames), uint64(3100*s.Frames)
	}
	return s
}
