// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// BasculeChainVeth is three bascule bridges in a row, connected by veth pairs, like independent
// switches.
var BasculeChainVeth = &Fabric{
	Name:  "bascule-chain-veth",
	About: "three bascule bridges in a row, joined by veth pairs, at tcx",
	Path: path("end", "device veth", "program bascule (tcx)",
		"device veth", "device veth", "program bascule (tcx)",
		"device veth", "device veth", "program bascule (tcx)", "end"),
	HostPath: path("host", "device host port", "program bascule (tcx)",
		"device veth", "device veth", "program bascule (tcx)",
		"device veth", "device veth", "program bascule (tcx)", "end"),
	Arrival: AsBuffers,
	build: func(ctx context.Context, _ Site, n *Net) error {
		k := &basculeKit{n, "tcx"}
		return n.chain(ctx, k, row(3), n.byVeth(ctx, k))
	},
}

// BasculeChainPatch is three bascule bridges in a row, connected without devices.
var BasculeChainPatch = basculePatched("bascule-chain-patch", "three bascule bridges in a row, joined by patch cables", 3)

// BasculeChain2 has one bridge more than Bascule.
var BasculeChain2 = basculePatched("bascule-chain-2", "two bascule bridges in a row, joined by a patch cable", 2)

// BasculeChain7 and LinuxChain7 are seven bascule bridges and seven Linux
// bridges in a row, more than in practice.
var (
	BasculeChain7 = basculePatched("bascule-chain-7", "seven bascule bridges in a row, joined by patch cables", 7)

	LinuxChain7 = &Fabric{
		Name:  "linux-chain-7",
		About: "seven Linux bridges in a row, joined by veth pairs",
		Path: slices.Concat(path("end", "device veth", "device Linux bridge"),
			slices.Repeat(path("device veth", "device veth", "device Linux bridge"), 6), path("device veth", "end")),
		HostPath: slices.Concat(path("host", "device Linux bridge"),
			slices.Repeat(path("device veth", "device veth", "device Linux bridge"), 6), path("device veth", "end")),
		Arrival: AsBuffers,
		Modules: []string{"bridge"},
		build: func(ctx context.Context, _ Site, n *Net) error {
			k := &linuxKit{net: n}
			return n.chain(ctx, k, row(7), n.byVeth(ctx, k))
		},
	}
)

// basculePatched returns a row of bascule bridges, connected without devices.
func basculePatched(name, about string, bridges int) *Fabric {
	programs := slices.Repeat(path("program bascule (tcx)"), bridges)
	return &Fabric{
		Name:     name,
		About:    about,
		Path:     slices.Concat(path("end", "device veth"), programs, path("end")),
		HostPath: slices.Concat(path("host", "device host port"), programs, path("end")),
		Arrival:  AsBuffers,
		build: func(ctx context.Context, _ Site, n *Net) error {
			k := &basculeKit{n, "tcx"}
			return n.chain(ctx, k, row(bridges), func(_ int, left, right string) error {
				return k.patch(ctx, left, "right", right, "left")
			})
		},
	}
}

// row returns the names of bridges.
func row(bridges int) (names []string) {
	for i := range bridges {
		names = append(names, fmt.Sprintf("br%d", i))
	}
	return names
}

// byVeth connects two bridges of a chain with a veth pair.
func (n *Net) byVeth(ctx context.Context, k kit) func(i int, left, right string) error {
	return func(i int, left, right string) error {
		a, b := fmt.Sprintf("r%d", i), fmt.Sprintf("l%d", i+1)
		if err := n.Switch.Pair(a, b, n.Spec.Wire); err != nil {
			return err
		}
		return errors.Join(k.plug(ctx, left, a), k.plug(ctx, right, b))
	}
}

// chain connects the ends through bridges in a row. The function join connects bridge i to bridge
// i+1. The ends are alternately at the first bridge and at the last. A chain has no count of known
// addresses, because not every bridge learns every address.
func (n *Net) chain(ctx context.Context, k kit, bridges []string, join func(i int, left, right string) error) error {
	if err := n.place(); err != nil {
		return err
	}
	for i, b := range bridges {
		if err := k.add(ctx, b); err != nil {
			return err
		}
		if i == 0 {
			continue
		}
		if err := join(i-1, bridges[i-1], b); err != nil {
			return fmt.Errorf("%s to %s: %w", bridges[i-1], b, err)
		}
	}
	n.flush = func(ctx context.Context) error {
		var errs []error
		for _, b := range bridges {
			errs = append(errs, k.flush(ctx, b))
		}
		return errors.Join(errs...)
	}
	at := map[string]string{} // the bridge of an end's port
	n.extend = func(ctx context.Context, device string) error { return k.plug(ctx, at[device], device) }
	n.shrink = func(ctx context.Context, device string) error { return k.unplug(ctx, at[device], device) }
	for i := range n.Spec.Ends {
		bridge := bridges[0]
		if i%2 == 1 {
			bridge = bridges[len(bridges)-1]
		}
		if err := n.endAt(ctx, k, bridge); err != nil {
			return err
		}
		at[n.Ports[i].Ifname] = bridge
	}
	return nil
}
