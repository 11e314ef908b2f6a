// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"bascule/lab/ends"
)

// TestCardWires checks that each card of a machine has its own wire to its other side, and an
// address that identifies the two.
func TestCardWires(t *testing.T) {
	args := CardWires(RouterCards.Wires)
	for _, want := range []string{
		"hubport,id=wire1side0,hubid=1", "rtl8139,netdev=wire1side0,mac=02:b5:c1:00:01:00,romfile=",
		"hubport,id=wire1side1,hubid=1", "e1000e,netdev=wire1side1,mac=02:b5:c1:00:01:01,romfile=",
		"hubport,id=wire2side0,hubid=2", "e1000e,netdev=wire2side0,mac=02:b5:c1:00:02:00,romfile=",
	} {
		if !slices.Contains(args, want) {
			t.Errorf("there is no %s in\n%s", want, strings.Join(args, "\n"))
		}
	}
	if got := CardModules(RouterCards.Wires); !slices.Equal(got, []string{"8139cp", "e1000e", "e1000e", "e1000e"}) {
		t.Errorf("the drivers are %q", got)
	}
}

// TestCardsElsewhere checks that a fabric of network cards changes only a machine that was made for
// it.
func TestCardsElsewhere(t *testing.T) {
	for _, f := range append([]*Fabric{RouterCards}, TwoHosts...) {
		var missing *ends.Unavailable
		if _, err := f.Build(t.Context(), Site{}, Spec{Ends: 2}); !errors.As(err, &missing) || !strings.Contains(err.Error(), "--in-vm") {
			t.Errorf("%s: error %v", f.Name, err)
		}
	}
}

// TestModules checks that a fabric lists all kernel modules that its bridges need, for the machine
// that is made for it.
func TestModules(t *testing.T) {
	for name, want := range map[string][]string{
		"neutron-7-hybrid-internal": {"openvswitch", "br_netfilter", "bridge", "nft_ct"},
		"neutron-4-ovs":             {"openvswitch"},
		"ovs-2-hosts":               {"openvswitch"},
		"linux-bridge-2-hosts":      {"bridge"},
		"router+nft":                {"nft_ct"},
	} {
		f, ok := Find(name)
		if !ok {
			t.Fatalf("there is no fabric %s", name)
		}
		for _, module := range want {
			if !slices.Contains(f.Modules, module) {
				t.Errorf("%s does not ask for %s: %q", name, module, f.Modules)
			}
		}
	}
}
