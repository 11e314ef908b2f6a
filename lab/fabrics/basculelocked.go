// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"strconv"

	"bascule/bridge"
)

// BasculeLocked is Bascule with one lock around its addresses, which every frame takes. It shows
// the cost of a bridge that protects its table with a mutex.
var BasculeLocked = &Fabric{
	Name:     "bascule-locked",
	About:    "bascule with one lock round its addresses: what a mutex costs",
	Path:     path("end", "device veth", "program bascule (tcx), locked", "end"),
	HostPath: path("host", "device host port", "program bascule (tcx), locked", "end"),
	Arrival:  AsBuffers,
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &lockedKit{net: n, hook: bridge.HookTCX})
	},
}

// BasculeLockedXDP is BasculeXDP with the same lock.
var BasculeLockedXDP = &Fabric{
	Name:         "bascule-locked-xdp",
	About:        "bascule-xdp with one lock round its addresses",
	Path:         path("end", "device veth", "program bascule (XDP), locked", "device veth", "end"),
	Arrival:      AsXDP,
	FloodArrival: AsXDP,
	NeedsNAPI:    true,
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &lockedKit{net: n, hook: bridge.HookXDP})
	},
}

// lockedKit makes such a bridge without the command line, which does not support the lock. A change
// through the command line would turn it into a normal bridge.
type lockedKit struct {
	net  *Net
	hook string
	sw   *bridge.Switch
}

func (k *lockedKit) add(_ context.Context, name string) error {
	n := k.net
	sw, err := bridge.Open(n.Switch.Name, bridge.Locked)
	if err != nil {
		return err
	}
	k.sw = sw
	n.leave = append(n.leave, sw.Close)
	var settings []bridge.Change
	if n.Spec.Ageing != 0 {
		settings = append(settings, bridge.Change{Name: "ageing", Value: n.Spec.Ageing.String()})
	}
	if n.Spec.FDBMax != 0 {
		settings = append(settings, bridge.Change{Name: "fdb-max", Value: strconv.Itoa(n.Spec.FDBMax)})
	}
	if err := sw.AddBridge(name, settings); err != nil {
		return err
	}
	n.leave = append(n.leave, func() error { _, err := sw.DelBridge(name); return err })
	n.memory = n.basculeMemory
	return nil
}

func (k *lockedKit) plug(_ context.Context, name, device string) error {
	_, err := k.sw.AddPort(name, device, bridge.PortOptions{Hook: k.hook})
	return err
}

func (k *lockedKit) unplug(_ context.Context, name, device string) error {
	_, err := k.sw.DelPort(name, device)
	return err
}

func (k *lockedKit) host(_ context.Context, name, device string) (string, error) {
	_, err := k.sw.AddPort(name, device, bridge.PortOptions{Type: "host"})
	return device, err
}

func (k *lockedKit) flush(_ context.Context, name string) error {
	_, err := k.sw.Flush(name, bridge.Match{Dynamic: true})
	return err
}

func (k *lockedKit) known(_ context.Context, name string) (int, error) {
	info, err := k.sw.Bridge(name)
	return int(info.FDBCount), err
}
