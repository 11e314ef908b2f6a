// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/test/netlab"
)

// everythingCases enable all features at once. Kernels differ in the size of the programs that their
// verifiers accept, and in their verdict.
var everythingCases = []conformance{
	{name: "everything_together", hooks: both, run: everythingTogether},
}

// everythingFile has one of each thing. All features are enabled at once, by one load of programs, since a
// slow machine takes seconds for each load. pf's states outlive the test there.
const everythingFile = `bridges:
  br0:
    vlan-filtering: on
    vlan-stats: on
    move-max: 100
    dhcp-guard: on
    ra-guard: on
    neigh-suppress: on
    group-fwd-mask: 0x4000
    ports:
      p1: {hook: HOOK, source-guard: on, storm-bcast: 100000pps, rate-in: 100gbit, rate-out: 100gbit, hairpin: on, loop-guard: report, admit: untagged}
      p2:
        hook: HOOK
        storm-mcast: 100000pps
        storm-unknown: 100000pps
        fdb-max: 50
        fdb-full: drop
        discover: off
        backup: a
      p3: {hook: HOOK, pvid: 1, tagged: "30", block-non-ip: on, isolated: on, mcast-flood: off}
      p4: {hook: HOOK, pvid: 1, tagged: "30", isolated: on, learn: off, locked: on, trusted: on, bpdu-filter: on}
      a: {type: patch, peer: br1/b}
    rules:
      - block in on p2 src 02:00:00:00:00:66
      - block out on p1 src 02:00:00:00:00:67
    bindings:
      - {port: p1, mac: "02:57:00:00:00:01", address: 192.0.2.1, vlan: 1}
    fdb:
      - {mac: "02:57:00:00:00:04", port: p4, vlan: 1}
    mirrors: {p6: {ports: [p2], direction: in}}
    pf:
      rules: |
        set timeout { udp.first 3600 udp.single 3600 udp.multiple 3600 }
        table <bad> counters { 198.51.100.0/24 }
        block log
        block in quick from <bad>
        pass proto udp from any to any port 4000 keep state (max 1000)
  br1:
    ports:
      p5: {hook: HOOK}
      b: {type: patch, peer: br0/a}
`

// everythingTogether: with all features enabled, permitted frames arrive at their destination and nowhere
// else, and each feature drops the right frames. A build of another time takes over, a capture runs, and in
// the end nothing is left.
func everythingTogether(t *testing.T, hook string) {
	newer, err := netlab.Build("upgrade", "-tags", "newer", "-ldflags", "-X main.version=upgrade-test")
	must(t, err)
	l := netlab.New(t)
	all := l.NewEnds(6)
	a, b, c, d, far, mon := all[0], all[1], all[2], all[3], all[4], all[5]
	l.AddBridge("br0", hook, all[:4])
	l.AddBridge("br1", hook, []*netlab.End{far})
	file := filepath.Join(t.TempDir(), "everything.yaml")
	must(t, os.WriteFile(file, []byte(strings.ReplaceAll(everythingFile, "HOOK", hook)), 0o600))
	if r, err := l.Run("apply", file); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	if again := l.Bascule("apply", file); again != "" {
		t.Errorf("applied again, it changes %s", again)
	}
	warned(t, l, "bridge", "set", "br0", "--stp", "rstp") // for ports that exist continue to forward

	udp := func(dst, src netlab.MAC, from, to string, ports [2]int) []netlab.Frame {
		return []netlab.Frame{udp4(dst, src, from, to, ports, 1, 2, 3)}
	}
	type arrivals = map[*netlab.End][]netlab.Frame
	arp := func(e *netlab.End, mac netlab.MAC, address string, at ...*netlab.End) {
		t.Helper()
		request := []netlab.Frame{arpFrame(netlab.Broadcast, mac, 1, mac, address, netlab.MAC{}, "192.0.2.99")}
		want := arrivals{}
		for _, to := range at {
			want[to] = request
		}
		wantSent(t, l, e, request, want)
	}
	drops := map[string]uint64{}
	everything := func() {
		t.Helper()
		arp(a, A, "192.0.2.1", a, b, c, d, far) // hairpin is on at a
		arp(b, B, "192.0.2.2", a, c, d, far, mon)
		arp(c, C, "192.0.2.3", a, b, far) // d is isolated from it
		// A conversation has a state. The copies are the frames that came in by b.
		ask, answer := udp(B, A, "192.0.2.1", "192.0.2.2", [2]int{3000, 4000}), udp(A, B, "192.0.2.2", "192.0.2.1", [2]int{4000, 3000})
		wantSent(t, l, a, ask, arrivals{b: ask})
		wantSent(t, l, b, answer, arrivals{a: answer, mon: answer})
		// Over the patch cable, to a station that is unknown in its bridge.
		out := udp(netlab.Station(50), A, "192.0.2.1", "192.0.2.50", [2]int{3000, 4000})
		wantSent(t, l, a, out, arrivals{far: out, a: out, c: out, d: out}) // b receives no floods
		// These must not arrive, because of: pf, a table of pf, a rule in and out, the source guard,
		// the DHCP guard, a port for IP only, a locked port, VLANs, isolation, a reserved address.
		for _, stopped := range []struct {
			by     string
			from   *netlab.End
			frames []netlab.Frame
		}{
			{"pf", b, udp(A, B, "192.0.2.2", "192.0.2.1", [2]int{4000, 5000})},
			{"pf", b, udp(A, B, "198.51.100.7", "192.0.2.1", [2]int{9, 4000})},
			{"rule", b, udp(A, netlab.MAC{2, 0, 0, 0, 0, 0x66}, "192.0.2.66", "192.0.2.1", [2]int{9, 4000})},
			{"rule", c, udp(A, netlab.MAC{2, 0, 0, 0, 0, 0x67}, "192.0.2.67", "192.0.2.1", [2]int{9, 4000})},
			{"spoofed", a, udp(B, A, "192.0.2.9", "192.0.2.2", [2]int{9, 4000})},
			{"dhcp-guard", b, []netlab.Frame{udp4(A, B, "192.0.2.2", "192.0.2.1", [2]int{67, 68}, 2)}},
			{"non-ip", c, l.Frames(1, A, C)},
			{"locked", d, udp(A, netlab.Station(77), "192.0.2.77", "192.0.2.1", [2]int{9, 4000})},
			{"admit", a, []netlab.Frame{l.Frame(B, A, 60).Tagged(30, 0)}},
			{"protected", c, udp(D, C, "192.0.2.3", "192.0.2.4", [2]int{9, 4000})},
			{"reserved", b, l.Frames(1, netlab.MAC{0x01, 0x80, 0xc2, 0, 0, 3}, B)},
		} {
			want := arrivals{}
			if stopped.from == b {
				want[mon] = stopped.frames // copied as it came in
			}
			wantSent(t, l, stopped.from, stopped.frames, want)
			drops[stopped.from.Port+" "+stopped.by]++
		}
		// Each was dropped by the right feature.
		got := map[string]uint64{}
		for _, p := range l.Ports("br0") {
			for reason, n := range p.Drops {
				got[p.Ifname+" "+reason] = n
			}
		}
		if !maps.Equal(got, drops) {
			t.Errorf("counted drops are %v, should be %v", got, drops)
		}
	}
	everything()

	// A capture of drops sees only the drops.
	capture := captureTo(t, l, "--dropped")
	everything()
	if captured, missed := capture.stop(); captured < 11 || captured > 15 || missed != 0 {
		t.Errorf("the capture has %d frames and missed %d", captured, missed)
	}

	said := l.Bascule("trace", "br0", "--in", a.Port, "--src", A.String(), "--dst", B.String(),
		"--ip", "192.0.2.9", "--to", "192.0.2.2", "--udp", "4000")
	if !strings.Contains(said, "dropped: spoofed") {
		t.Errorf("trace says %s", said)
	}
	if states := pfctl(t, l, "", "-b", "br0", "-ss"); !strings.Contains(states, "192.0.2.2:4000") {
		t.Errorf("pf has the states %s", states)
	}
	l.SetBinary(newer)
	l.Bascule("bridge", "set", "br0", "--ageing", "200s")
	everything()
	for _, p := range l.Ports("br0") {
		if slices.Contains([]string{a.Port, b.Port}, p.Ifname) && p.Stats64.RX.Packets == 0 {
			t.Errorf("%s has counted nothing", p.Ifname)
		}
	}
}
