// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"math/bits"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/datapath"

	"golang.org/x/sys/unix"
	"pgregory.net/rapid"
)

func TestBridgeSettings(t *testing.T) {
	tests := []struct {
		name, value string
		want        string // as Format prints it; "" for an error
	}{
		{"ageing", "300s", "300s"},
		{"ageing", "300", "300s"},
		{"ageing", "5m", "300s"},
		{"ageing", "1h0m1s", "3601s"},
		{"ageing", "1", "1s"},
		{"ageing", "1s", "1s"},
		{"ageing", "1000ms", "1s"},
		{"ageing", "1000000s", "1000000s"},
		{"ageing", "1000000", "1000000s"},
		{"ageing", "1000001", ""},
		{"ageing", "4294967295", ""},
		{"ageing", "18446744073709551616", ""},
		{"ageing", "0", ""},
		{"ageing", "0s", ""},
		{"ageing", "999ms", ""},
		{"ageing", "1500ms", ""},
		{"ageing", "-300s", ""},
		{"ageing", "-1", ""},
		{"ageing", "forever", ""},
		{"ageing", "", ""},
		{"fdb-max", "1", "1"},
		{"fdb-max", "65536", "65536"},
		{"fdb-max", "4194304", "4194304"},
		{"fdb-max", "4194305", ""},
		{"fdb-max", "4294967297", ""}, // 1 in 32 bits
		{"fdb-max", "0", ""},
		{"fdb-max", "-1", ""},
		{"fdb-max", "1.5", ""},
		{"fdb-max", "0x10", ""},
		{"fdb-max", "many", ""},
		{"fdb-max", "", ""},
		{"pf-ports", "all", "all"},
		{"pf-ports", "host", "host"},
		{"pf-ports", "station", "station"},
		{"pf-ports", "none", ""},
		{"pf-ports", "", ""},
		{"stp", "off", "off"},
		{"stp", "stp", "stp"},
		{"stp", "rstp", "rstp"},
		{"stp", "mstp", ""},
		{"stp", "on", ""},
		{"stp", "", ""},
		{"stp-priority", "0", "0"},
		{"stp-priority", "4096", "4096"},
		{"stp-priority", "61440", "61440"},
		{"stp-priority", "65536", ""}, // 0 in 16 bits
		{"stp-priority", "61441", ""},
		{"stp-priority", "1", ""},
		{"stp-priority", "-4096", ""},
		{"stp-priority", "", ""},
		{"stp-hello", "1", "1s"},
		{"stp-hello", "2s", "2s"},
		{"stp-hello", "0s", ""},
		{"stp-hello", "3s", ""},
		{"stp-hello", "1500ms", ""},
		{"stp-max-age", "6s", "6s"},
		{"stp-max-age", "40", "40s"},
		{"stp-max-age", "5s", ""},
		{"stp-max-age", "41s", ""},
		{"stp-forward-delay", "4s", "4s"},
		{"stp-forward-delay", "30s", "30s"},
		{"stp-forward-delay", "3s", ""},
		{"stp-forward-delay", "31s", ""},
		{"stp-forward-delay", "never", ""},
		{"group-fwd-mask", "0", "0x0"},
		{"group-fwd-mask", "0x4000", "0x4000"},
		{"group-fwd-mask", "16384", "0x4000"},
		{"group-fwd-mask", "0xffff", "0xffff"},
		{"group-fwd-mask", "65535", "0xffff"},
		{"group-fwd-mask", "0x10000", ""},
		{"group-fwd-mask", "65536", ""},
		{"group-fwd-mask", "-1", ""},
		{"group-fwd-mask", "ffff", ""},
		{"group-fwd-mask", "", ""},
		{"default-pvid", "1", "1"},
		{"default-pvid", "4094", "4094"},
		{"default-pvid", "none", "none"},
		{"default-pvid", "0", ""},
		{"default-pvid", "4095", ""},
		{"default-pvid", "65537", ""}, // 1 in 16 bits
		{"default-pvid", "-1", ""},
		{"default-pvid", "", ""},
		{"vlan-protocol", "802.1Q", "802.1Q"},
		{"vlan-protocol", "802.1q", "802.1Q"},
		{"vlan-protocol", "802.1ad", "802.1ad"},
		{"vlan-protocol", "802.1AD", "802.1ad"},
		{"vlan-protocol", "0x88a8", ""},
		{"vlan-protocol", "", ""},
		{"mac", "auto", "auto"},
		{"mac", "02:00:00:00:00:01", "02:00:00:00:00:01"},
		{"mac", "02-AB-00-00-00-01", "02:ab:00:00:00:01"},
		{"mac", "00:00:00:00:00:00", ""},
		{"mac", "01:00:00:00:00:01", ""},
		{"mac", "ff:ff:ff:ff:ff:ff", ""},
		{"mac", "02:00:00:00:00", ""},
		{"mac", "none", ""},
		{"mac", "", ""},
		{"move-max", "0", "0"},
		{"move-max", "5", "5"},
		{"move-max", "1000000", "1000000"},
		{"move-max", "1000001", ""},
		{"move-max", "-1", ""},
		{"move-max", "none", ""},
	}
	tests = append(tests, testsOfSwitches("vlan-filtering", "qinq", "vlan-stats", "dhcp-guard", "ra-guard", "neigh-suppress")...)
	testSettings(t, BridgeSettings, tests)
}

// testsOfSwitches returns the tests of settings that are on or off.
func testsOfSwitches(names ...string) (tests []struct{ name, value, want string }) {
	for _, name := range names {
		for _, tt := range []struct{ value, want string }{
			{"on", "on"}, {"off", "off"}, {"", ""}, {"ON", ""}, {"yes", ""}, {"1", ""}, {"true", ""},
		} {
			tests = append(tests, struct{ name, value, want string }{name, tt.value, tt.want})
		}
	}
	return tests
}

func TestPortSettings(t *testing.T) {
	tests := []struct{ name, value, want string }{
		{"protected", "none", "none"},
		{"protected", "1", "1"},
		{"protected", "31", "31"},
		{"protected", "1,2", "1,2"},
		{"protected", "2,1,31,2", "1,2,31"},
		{"protected", "0", ""},
		{"protected", "32", ""},
		{"protected", "-1", ""},
		{"protected", "1,", ""},
		{"protected", ",1", ""},
		{"protected", "1, 2", ""},
		{"protected", "1-3", ""},
		{"protected", "none,1", ""},
		{"protected", "", ""},
		{"fdb-max", "0", "0"},
		{"fdb-max", "4194304", "4194304"},
		{"fdb-max", "4194305", ""},
		{"fdb-max", "-1", ""},
		{"stp-cost", "auto", "auto"},
		{"stp-cost", "1", "1"},
		{"stp-cost", "200000000", "200000000"},
		{"stp-cost", "0", ""},
		{"stp-cost", "200000001", ""},
		{"stp-cost", "cheap", ""},
		{"stp-priority", "0", "0"},
		{"stp-priority", "16", "16"},
		{"stp-priority", "240", "240"},
		{"stp-priority", "256", ""}, // 0 in 8 bits
		{"stp-priority", "8", ""},
		{"stp-priority", "241", ""},
		{"stp-priority", "-16", ""},
		{"stp-edge", "auto", "auto"},
		{"stp-edge", "on", "on"},
		{"stp-edge", "off", "off"},
		{"stp-edge", "", ""},
		{"stp-p2p", "auto", "auto"},
		{"stp-p2p", "on", "on"},
		{"stp-p2p", "off", "off"},
		{"stp-p2p", "yes", ""},
		{"fdb-full", "flood", "flood"},
		{"fdb-full", "drop", "drop"},
		{"fdb-full", "DROP", ""},
		{"fdb-full", "", ""},
		{"admit", "all", "all"},
		{"admit", "tagged", "tagged"},
		{"admit", "untagged", "untagged"},
		{"admit", "none", ""},
		{"admit", "", ""},
		{"backup", "none", "none"},
		{"backup", "p1", "p1"},
		{"backup", "eth0.100", "eth0.100"},
		{"backup", "sixteen-letters-", ""},
		{"backup", "a/b", ""},
		{"backup", "", ""},
		{"loop-guard", "off", "off"},
		{"loop-guard", "report", "report"},
		{"loop-guard", "1s", "1s"},
		{"loop-guard", "30", "30s"},
		{"loop-guard", "1h", "3600s"},
		{"loop-guard", "1h1s", ""},
		{"loop-guard", "0", ""},
		{"loop-guard", "1500ms", ""},
		{"loop-guard", "-1s", ""},
		{"loop-guard", "on", ""},
		{"loop-guard", "", ""},
	}
	tests = append(tests, testsOfSwitches("learn", "discover", "mcast-flood", "bcast-flood", "hairpin", "isolated",
		"locked", "mab", "block-non-ip", "source-guard", "trusted", routeSetting,
		"bpdu-guard", "bpdu-filter", "root-guard")...)
	for _, name := range []string{"storm-bcast", "storm-mcast", "storm-unknown"} {
		for _, tt := range stormLimits {
			tests = append(tests, struct{ name, value, want string }{name, tt.value, tt.want})
		}
	}
	for _, name := range []string{RateIn, RateOut} {
		slow := map[string]string{"1pps": "1pps:60", "1kbit": "1kbit:7500"} // the amount of a minute
		for _, tt := range append(stormLimits, rateLimits...) {
			tt.want = cmp.Or(slow[tt.value], tt.want)
			if tt.value == "500" { // no unit: most limits of this kind are in bits
				tt.want = ""
			}
			tests = append(tests, struct{ name, value, want string }{name, tt.value, tt.want})
		}
	}
	testSettings(t, PortSettings, tests)
}

// rateLimits are limits with a burst.
var rateLimits = []struct{ value, want string }{
	{"8mbit:65536", "8mbit:64kb"},
	{"8mbit:64kb", "8mbit:64kb"},
	{"8mbit:1514", "8mbit:1514"},
	{"8mbit:1513", ""},
	{"1000mbit:2mb", "1gbit:2mb"},
	{"100mbit:1536kb", "100mbit:1536kb"},
	{"8mbit:60000000", "8mbit:60000000"}, // the amount of a minute
	{"8mbit:60000001", ""},
	{"1kbit:7500", "1kbit:7500"},
	{"1kbit:7501", ""},
	{"4294gbit:4294967295", "4294gbit:4294967295"},
	{"4294gbit:4294967296", ""},
	{"4294gbit:4096mb", ""}, // 0 in 32 bits
	{"5000pps:100", "5000pps:100"},
	{"1pps:1", "1pps:1"},
	{"1pps:60", "1pps:60"},
	{"1pps:61", ""},
	{"5000pps:64kb", ""},
	{"8mbit:0", ""},
	{"5000pps:0", ""},
	{"8mbit:", ""},
	{"8mbit:kb", ""},
	{"8mbit:64k", ""},
	{"8mbit:64kbit", ""},
	{"8mbit:-1", ""},
	{"8mbit:+65536", ""},
	{"8mbit:64kb:64kb", ""},
	{":64kb", ""},
	{"none:64kb", ""},
}

// stormLimits are limits as given, and as printed.
var stormLimits = []struct{ value, want string }{
	{"none", "none"},
	{"1pps", "1pps"},
	{"500", "500pps"},
	{"4294967295pps", "4294967295pps"},
	{"4294967296pps", ""},
	{"1kbit", "1kbit"},
	{"64kbit", "64kbit"},
	{"1000kbit", "1mbit"},
	{"1500kbit", "1500kbit"},
	{"10mbit", "10mbit"},
	{"1000mbit", "1gbit"},
	{"4294gbit", "4294gbit"},
	{"4295gbit", ""},
	{"18446744073709551617pps", ""}, // 1 in 64 bits
	{"4294968gbit", ""},             // the same in 32, in kbit
	{"0", ""},
	{"0pps", ""},
	{"0mbit", ""},
	{"-1pps", ""},
	{"+1pps", ""},
	{"1.5mbit", ""},
	{"1 pps", ""},
	{"1MBIT", ""},
	{"pps", ""},
	{"many", ""},
	{"", ""},
}

// The error for a limit of 0 says what it would mean, and not that it is unreadable.
func TestStormLimitOfZero(t *testing.T) {
	for _, v := range []string{"0", "0pps", "0kbit", "0gbit"} {
		_, err := ParseStormLimit(v)
		if err == nil || !strings.Contains(err.Error(), "let nothing through") {
			t.Errorf("%s: %v", v, err)
		}
	}
}

func testSettings[T comparable](t *testing.T, settings []Setting[T], tests []struct{ name, value, want string }) {
	t.Helper()
	tested := map[string]bool{}
	for _, tt := range tests {
		tested[tt.name] = true
		i := slices.IndexFunc(settings, func(s Setting[T]) bool { return s.Name == tt.name })
		if i < 0 {
			t.Fatalf("no setting %s", tt.name)
		}
		config, err := configure(settings, Defaults(settings), []Change{{tt.name, tt.value}})
		if tt.want == "" {
			var usage *UsageError
			if !errors.As(err, &usage) {
				t.Errorf("%s %q: %v, want a usage error", tt.name, tt.value, err)
			} else if want := "--" + tt.name + " " + tt.value; usage.Object != want {
				t.Errorf("%s %q: the error is about %q, want %q", tt.name, tt.value, usage.Object, want)
			} else if strings.Contains(err.Error(), "\n") {
				t.Errorf("%s %q: the error has several lines: %q", tt.name, tt.value, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s %q: %v", tt.name, tt.value, err)
			continue
		}
		got := settings[i].Format(config)
		if got != tt.want {
			t.Errorf("%s %q prints %q, want %q", tt.name, tt.value, got, tt.want)
		}
		// printed values can be parsed again
		again := Defaults(settings)
		if err := settings[i].Set(&again, got); err != nil || again != config {
			t.Errorf("%s %q printed and read: %+v, %v; want %+v", tt.name, tt.value, again, err, config)
		}
	}
	for _, s := range settings {
		if !tested[s.Name] {
			t.Errorf("no test of %s", s.Name)
		}
		// defaults have the value that Default has
		if got := s.Format(Defaults(settings)); got != s.Default && s.Name != "group-fwd-mask" {
			t.Errorf("%s: the default prints %q, want %q", s.Name, got, s.Default)
		}
		if strings.Contains(s.Help, "\n") || s.Help == "" || s.Value == "" {
			t.Errorf("%s: help %q, value %q", s.Name, s.Help, s.Value)
		}
	}
}

func TestDefaults(t *testing.T) {
	bridge := BridgeConfig{Ageing: 300 * time.Second, FDBMax: 65536, DefaultPVID: 1, VLANProtocol: unix.ETH_P_8021Q, PFPorts: PFAll,
		STP: STPOff, STPPriority: 32768, STPHello: 2 * time.Second, STPMaxAge: 20 * time.Second, STPForwardDelay: 15 * time.Second}
	if got := Defaults(BridgeSettings); got != bridge {
		t.Errorf("bridge %+v, want %+v", got, bridge)
	}
	want := PortConfig{Learn: true, Discover: true, MulticastFlood: true, BroadcastFlood: true, FDBFull: FullFlood, Admit: AdmitAll,
		STPPriority: 128, STPEdge: Auto, STPPointToPoint: Auto}
	if got := Defaults(PortSettings); got != want {
		t.Errorf("port %+v, want %+v", got, want)
	}
}

// The times of spanning tree must be compatible, whichever of them are given.
func TestSTPTimes(t *testing.T) {
	tests := []struct {
		hello, age, delay int
		says              string // the error, "" if they are compatible
	}{
		{2, 20, 15, ""},
		{1, 6, 4, ""},
		{2, 6, 4, ""},
		{2, 40, 21, ""},
		{2, 40, 20, "stp-max-age 40s is more than 2*(stp-forward-delay-1s), 38s"},
		{1, 7, 4, "stp-max-age 7s is more than 2*(stp-forward-delay-1s), 6s"},
		{3, 6, 4, "stp-max-age 6s is less than 2*(stp-hello+1s), 8s"},
	}
	for _, tt := range tests {
		c := Defaults(BridgeSettings)
		c.STPHello, c.STPMaxAge, c.STPForwardDelay = time.Duration(tt.hello)*time.Second, time.Duration(tt.age)*time.Second, time.Duration(tt.delay)*time.Second
		err := c.check("set bridge br0")
		if (err == nil) != (tt.says == "") || err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("hello %ds, max-age %ds, forward-delay %ds: %v, want %q", tt.hello, tt.age, tt.delay, err, tt.says)
		}
	}
}

// Changes are made in their order; isolated is domain 1, and leaves the other domains unchanged.
func TestConfigure(t *testing.T) {
	tests := []struct {
		changes []Change
		want    Domains
	}{
		{[]Change{{"isolated", "on"}}, 1 << 1},
		{[]Change{{"protected", "2,3"}, {"isolated", "on"}}, 1<<1 | 1<<2 | 1<<3},
		{[]Change{{"protected", "1,2"}, {"isolated", "off"}}, 1 << 2},
		{[]Change{{"isolated", "on"}, {"protected", "2"}}, 1 << 2},
		{[]Change{{"protected", "5"}, {"protected", "none"}}, 0},
	}
	for _, tt := range tests {
		got, err := configure(PortSettings, Defaults(PortSettings), tt.changes)
		if err != nil || got.Protected != tt.want {
			t.Errorf("%v: domains %v, %v; want %v", tt.changes, got.Protected, err, tt.want)
		}
		if got.Isolated() != (tt.want&2 != 0) {
			t.Errorf("%v: isolated %v", tt.changes, got.Isolated())
		}
	}
	_, err := configure(PortSettings, Defaults(PortSettings), []Change{{"colour", "red"}})
	if usage := new(UsageError); !errors.As(err, &usage) || usage.Object != "--colour" {
		t.Errorf("unknown setting: %v", err)
	}
}

func TestDomains(t *testing.T) {
	if list := Domains(0).List(); list == nil || len(list) != 0 {
		t.Errorf("list %v, want an empty one, which JSON prints as []", list)
	}
	if got := Domains(1<<1 | 1<<31).List(); !slices.Equal(got, []int{1, 31}) {
		t.Errorf("list %v, want [1 31]", got)
	}
	rapid.Check(t, func(t *rapid.T) {
		d := Domains(rapid.Uint32().Draw(t, "domains") &^ 1)
		got, err := ParseDomains(d.String())
		if err != nil || got != d {
			t.Fatalf("%#x prints %q and is read as %#x, %v", d, d, got, err)
		}
	})
}

// The settings of a port and a bridge survive a round trip through the datapath's form, and other
// parts of that form stay unchanged.
func TestConfigRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		on, choice := rapid.Bool(), rapid.SampledFrom([]string{Auto, On, Off})
		seconds := func(what string) time.Duration {
			return time.Duration(rapid.Uint32Range(1, 40).Draw(t, what)) * time.Second
		}
		want := PortConfig{
			Learn: on.Draw(t, "learn"), Discover: on.Draw(t, "discover"), MulticastFlood: on.Draw(t, "mcast"),
			BroadcastFlood: on.Draw(t, "bcast"), Hairpin: on.Draw(t, "hairpin"),
			Protected: Domains(rapid.Uint32().Draw(t, "domains") &^ 1),
			FDBMax:    rapid.Uint32Range(0, MaxFDB).Draw(t, "max"),
			FDBFull:   rapid.SampledFrom([]string{FullFlood, FullDrop}).Draw(t, "full"),
			Locked:    on.Draw(t, "locked"), BlockNonIP: on.Draw(t, "non-ip"), SourceGuard: on.Draw(t, "guard"), Trusted: on.Draw(t, "trusted"), Route: on.Draw(t, "route"),
			MAB: on.Draw(t, "mab"), Admit: rapid.SampledFrom([]string{AdmitAll, AdmitTagged, AdmitUntagged}).Draw(t, "admit"),
			LoopGuard: LoopGuard{on.Draw(t, "loop"), time.Duration(rapid.Uint32Range(0, 3600).Draw(t, "block")) * time.Second},
			STPCost:   rapid.Uint32Range(0, 200000000).Draw(t, "cost"), STPPriority: 16 * rapid.Uint8Range(0, 15).Draw(t, "priority"),
			STPEdge: choice.Draw(t, "edge"), STPPointToPoint: choice.Draw(t, "p2p"),
			BPDUGuard: on.Draw(t, "bpdu guard"), BPDUFilter: on.Draw(t, "bpdu filter"), RootGuard: on.Draw(t, "root guard"),
		}
		for i := range want.Storm {
			if rate := rapid.Uint32().Draw(t, "rate"); rate != 0 {
				want.Storm[i] = StormLimit{rate, on.Draw(t, "bits")}
			}
		}
		for i := range want.Rate {
			if rate := rapid.Uint32().Draw(t, "rate"); rate != 0 {
				want.Rate[i] = RateLimit{StormLimit{rate, on.Draw(t, "bits")}, rapid.Uint32().Draw(t, "burst")}
			}
		}
		const others = datapath.PortRulesIn | datapath.PortRulesOut | datapath.PortCapture
		p := datapath.Port{
			Id: 7, Ifindex: 9, Flags: datapath.PortFlags(rapid.Uint32().Draw(t, "flags")),
			Facts: datapath.PortFacts(rapid.Uint32().Draw(t, "facts")),
			Notes: datapath.PortNotes(rapid.Uint32().Draw(t, "notes")),
			Taken: datapath.PortTaken(rapid.Uint32().Draw(t, "taken")),
		}
		was := p
		want.store(&p)
		if got := loadPortConfig(&p); got != want {
			t.Fatalf("port %+v, want %+v", got, want)
		}
		if p.Id != 7 || p.Ifindex != 9 || p.Flags&others != was.Flags&others ||
			p.Facts != was.Facts || p.Notes != was.Notes || p.Taken != was.Taken {
			t.Fatalf("port %+v lost what it was not told", p)
		}
		bridge := BridgeConfig{
			Ageing:       time.Duration(rapid.Uint32Range(1, 1e6).Draw(t, "ageing")) * time.Second,
			FDBMax:       rapid.Uint32Range(1, MaxFDB).Draw(t, "most"),
			GroupFwdMask: rapid.Uint16().Draw(t, "mask"),

			VLANFiltering: on.Draw(t, "filtering"), QinQ: on.Draw(t, "qinq"), VLANStats: on.Draw(t, "stats"),
			DefaultPVID:  rapid.Uint16Range(0, maxVLAN).Draw(t, "pvid"),
			VLANProtocol: rapid.SampledFrom([]uint16{unix.ETH_P_8021Q, unix.ETH_P_8021AD}).Draw(t, "protocol"),
			MoveMax:      rapid.Uint32().Draw(t, "moves"),
			MAC:          [6]byte{2 * rapid.Byte().Draw(t, "given") & 2},
			DHCPGuard:    on.Draw(t, "dhcp"), RAGuard: on.Draw(t, "ra"), NeighSuppress: on.Draw(t, "suppress"),
			PFPorts:     rapid.SampledFrom([]string{PFAll, PFHost, PFStation}).Draw(t, "judged"),
			STP:         rapid.SampledFrom([]string{STPOff, STPClassic, STPRapid}).Draw(t, "stp"),
			STPPriority: 4096 * rapid.Uint16Range(0, 15).Draw(t, "bridge priority"),
			STPHello:    seconds("hello"), STPMaxAge: seconds("age"), STPForwardDelay: seconds("delay"),
		}
		var c datapath.Config
		bridge.store(&c)
		if got := loadBridgeConfig(&c); got != bridge {
			t.Fatalf("bridge %+v, want %+v", got, bridge)
		}
	})
}

// Each on/off setting of a port has its own bit.
func TestFlagFields(t *testing.T) {
	var c PortConfig
	flags, guards := flagFields(&c), guardFields(&c)
	switches := 1 // the loop guard also has a time
	for _, s := range PortSettings {
		if s.Value == OnOff && s.Name != "isolated" {
			switches++
		}
	}
	if len(flags)+len(guards) != switches {
		t.Errorf("%d flags and %d guards, want one for each of %d settings", len(flags), len(guards), switches)
	}
	for flag, field := range flags {
		if bits.OnesCount32(uint32(flag)) != 1 {
			t.Errorf("flag %#x is not one bit", flag)
		}
		*field = true
	}
	for guard, field := range guards {
		if bits.OnesCount32(uint32(guard)) != 1 {
			t.Errorf("guard %#x is not one bit", guard)
		}
		*field = true
	}
	want := PortConfig{
		Learn: true, Discover: true, MulticastFlood: true, BroadcastFlood: true, Hairpin: true,
		Locked: true, MAB: true, BlockNonIP: true, SourceGuard: true, Trusted: true, Route: true, LoopGuard: LoopGuard{On: true},
		BPDUGuard: true, BPDUFilter: true, RootGuard: true,
	}
	if c != want {
		t.Errorf("all flags make %+v, want %+v", c, want)
	}
}

func TestLoadStats(t *testing.T) {
	var s datapath.Stats
	s.RxFrames, s.RxBytes, s.TxFrames, s.TxBytes = 1, 2, 3, 4
	s.Learned, s.Moves, s.Refused = 5, 6, 7
	mtu := slices.Index(datapath.Reasons(), "mtu")
	s.Drops[mtu] = 8
	got := loadStats(&s, nil)
	if got.RxFrames != 1 || got.RxBytes != 2 || got.TxFrames != 3 || got.TxBytes != 4 || got.Learned != 5 || got.Moves != 6 || got.Refused != 7 {
		t.Errorf("stats %+v", got)
	}
	if len(got.Drops) != 1 || got.Drops["mtu"] != 8 {
		t.Errorf("drops %v, want 8 of mtu alone", got.Drops)
	}
	if empty := loadStats(&datapath.Stats{}, nil).Drops; empty == nil || len(empty) != 0 {
		t.Errorf("drops %v, want an empty map, which JSON prints as {}", empty)
	}
}

// Settings can be flags: their names are valid long options.
func TestSettingNames(t *testing.T) {
	form := regexp.MustCompile(`^[a-z]+(-[a-z0-9]+)*$`)
	var names []string
	for _, s := range BridgeSettings {
		names = append(names, s.Name)
	}
	for _, s := range PortSettings {
		names = append(names, s.Name)
	}
	for _, name := range names {
		if !form.MatchString(name) {
			t.Errorf("setting %q", name)
		}
	}
}
