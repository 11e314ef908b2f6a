// SPDX-License-Identifier: BSD-2-Clause

// Package conformance holds the switch to what a switch must do: through the
// real program, in network namespaces, with real frames counted exactly. The
// tests need root and skip without it.
package conformance

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"bascule/test/netlab"
)

// patience is how long the tests wait for what is sure to happen. It only ends those that
// hang: an emulated machine on a busy one takes half a minute to load programs.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) == 7 && os.Args[3] == occupyWord {
		os.Exit(occupy(os.Args[1:]))
	}
	os.Exit(netlab.Main(m))
}

// conformance is a thing that a switch must do.
type conformance struct {
	name  string
	hooks []string // what the ports are attached by, one run each
	run   func(t *testing.T, hook string)
}

var (
	tcx  = []string{"tcx"}
	both = []string{"tcx", "xdp"}
)

// TestConformance runs all cases, as many side by side as there are processors:
// each has a laboratory of its own. Those that run on both hooks have a subtest
// for each; with -short for one of the two.
func TestConformance(t *testing.T) {
	for _, c := range slices.Concat(
		forwardingCases, fdbCases, portCases, berthCases, deviceCases, identityCases, aroundCases, xdpCases, lifeCases,
		vlanCases, securityCases, guardCases, frontCases, sealedCases, neighbourCases, ruleCases, stormCases, rateCases, patchCases, watchCases, traceCases, stpCases,
		pfCases, pfRewriteCases, pfReassembleCases, pfTrafficCases, plugCases, doorCases, everythingCases, egressCases,
	) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if len(c.hooks) == 1 {
				c.run(t, c.hooks[0])
				return
			}
			for _, hook := range netlab.Hooks(c.name) {
				t.Run(hook, func(t *testing.T) { c.run(t, hook) })
			}
		})
	}
}

// setup makes a bridge br0 with n ports, and an end behind each.
func setup(t *testing.T, hook string, n int, flags ...string) (*netlab.Lab, []*netlab.End) {
	t.Helper()
	l := netlab.New(t)
	ends := l.NewEnds(n)
	l.AddBridge("br0", hook, ends, flags...)
	return l, ends
}

// learn lets the switch see an address at an end.
func learn(l *netlab.Lab, e *netlab.End, macs ...netlab.MAC) {
	for _, mac := range macs {
		l.Send(e, l.Frames(1, netlab.Broadcast, mac)...)
	}
}

// others returns the ends that are none of those.
func others(ends []*netlab.End, not ...*netlab.End) []*netlab.End {
	return slices.DeleteFunc(slices.Clone(ends), func(e *netlab.End) bool { return slices.Contains(not, e) })
}

// find returns the entry of an address, nil if there is none.
func find(entries []netlab.FDBEntry, mac netlab.MAC, vlan int) *netlab.FDBEntry {
	for i, e := range entries {
		if e.MAC == mac.String() && e.VLAN == vlan {
			return &entries[i]
		}
	}
	return nil
}

// wantFDB compares a bridge's FDB with a list of "MAC vlan V PORT STATE FLAGS".
func wantFDB(t *testing.T, l *netlab.Lab, bridge string, want ...string) {
	t.Helper()
	got := []string{}
	for _, e := range l.FDB(bridge) {
		got = append(got, e.String())
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Fatalf("the FDB of %s is\n  %q\nshould be\n  %q", bridge, got, want)
	}
}

// dynamic, static and sticky write an entry as wantFDB takes it.
func dynamic(mac netlab.MAC, vlan int, e *netlab.End) string {
	return fmt.Sprintf("%s vlan %d %s", mac, vlan, e.Port)
}

func static(mac netlab.MAC, vlan int, e *netlab.End) string { return dynamic(mac, vlan, e) + " static" }

func sticky(mac netlab.MAC, vlan int, e *netlab.End) string {
	return dynamic(mac, vlan, e) + " sticky"
}

// wantDrops compares how often a port refused a frame for a reason.
func wantDrops(t *testing.T, l *netlab.Lab, e *netlab.End, reason string, want uint64) {
	t.Helper()
	p := l.Port("br0", e.Port)
	if p.Drops[reason] != want {
		t.Errorf("%s counts %d drops by %s, should be %d (all: %v)", e.Port, p.Drops[reason], reason, want, p.Drops)
	}
}
