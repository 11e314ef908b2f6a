// SPDX-License-Identifier: BSD-2-Clause

// Package conformance tests the requirements for a switch, with the real program, in network
// namespaces, with real frames that are counted exactly. The tests need root and skip without
// it.
package conformance

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"bascule/test/netlab"
)

// patience is the time limit for events that have to happen. It only ends tests that hang: an
// emulated machine on a busy host takes half a minute to load programs.
const patience = 3 * time.Minute

func TestMain(m *testing.M) {
	if len(os.Args) == 7 && os.Args[3] == occupyWord {
		os.Exit(occupy(os.Args[1:]))
	}
	os.Exit(netlab.Main(m))
}

// conformance is a requirement for a switch.
type conformance struct {
	name  string
	hooks []string // hooks of the ports, one run each
	run   func(t *testing.T, hook string)
}

var (
	tcx  = []string{"tcx"}
	both = []string{"tcx", "xdp"}
)

// TestConformance runs all cases, as many in parallel as there are processors. Each case has a
// lab of its own. A case for both hooks has a subtest for each, or with -short for one of them.
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

// setup makes a bridge br0 with n ports, with an end behind each.
func setup(t *testing.T, hook string, n int, flags ...string) (*netlab.Lab, []*netlab.End) {
	t.Helper()
	l := netlab.New(t)
	ends := l.NewEnds(n)
	l.AddBridge("br0", hook, ends, flags...)
	return l, ends
}

// learn has the switch learn addresses at an end.
func learn(l *netlab.Lab, e *netlab.End, macs ...netlab.MAC) {
	for _, mac := range macs {
		l.Send(e, l.Frames(1, netlab.Broadcast, mac)...)
	}
}

// others returns the other ends.
func others(ends []*netlab.End, not ...*netlab.End) []*netlab.End {
	return slices.DeleteFunc(slices.Clone(ends), func(e *netlab.End) bool { return slices.Contains(not, e) })
}

// find returns the entry of an address, or nil.
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

// dynamic, static and sticky return an entry in the form of wantFDB.
func dynamic(mac netlab.MAC, vlan int, e *netlab.End) string {
	return fmt.Sprintf("%s vlan %d %s", mac, vlan, e.Port)
}

func static(mac netlab.MAC, vlan int, e *netlab.End) string { return dynamic(mac, vlan, e) + " static" }

func sticky(mac netlab.MAC, vlan int, e *netlab.End) string {
	return dynamic(mac, vlan, e) + " sticky"
}

// wantDrops checks a port's counter of drops for a reason.
func wantDrops(t *testing.T, l *netlab.Lab, e *netlab.End, reason string, want uint64) {
	t.Helper()
	p := l.Port("br0", e.Port)
	if p.Drops[reason] != want {
		t.Errorf("%s counts %d drops by %s, should be %d (all: %v)", e.Port, p.Drops[reason], reason, want, p.Drops)
	}
}
