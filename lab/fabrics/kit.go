// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"fmt"
)

// kit makes switches of one kind in the namespace of a net. Fabrics with one or several switches,
// of one or two kinds, are built from kits.
type kit interface {
	// add makes a bridge.
	add(ctx context.Context, bridge string) error
	// plug makes a device of the namespace a port.
	plug(ctx context.Context, bridge, device string) error
	unplug(ctx context.Context, bridge, device string) error
	// host makes the host's own network device on the bridge in the namespace, and returns its
	// name: the requested one, or a fixed one for some kinds of bridges.
	host(ctx context.Context, bridge, device string) (string, error)
	// flush forgets every learned address of a bridge.
	flush(ctx context.Context, bridge string) error
	// known returns the number of addresses that a bridge has learned.
	known(ctx context.Context, bridge string) (int, error)
}

// joiner is a kit with its own way to make the host's device on one bridge a port of another.
type joiner interface {
	join(ctx context.Context, bridge, device string) error
}

// bridgeName is the bridge of fabrics with a single one.
const bridgeName = "br0"

// hostName is the host's own interface on a bridge, if the lab names it.
const hostName = "host0"

// single connects all ends to one bridge.
func (n *Net) single(ctx context.Context, k kit) error {
	if err := n.place(); err != nil {
		return err
	}
	if err := k.add(ctx, bridgeName); err != nil {
		return err
	}
	n.extend = func(ctx context.Context, device string) error { return k.plug(ctx, bridgeName, device) }
	n.shrink = func(ctx context.Context, device string) error { return k.unplug(ctx, bridgeName, device) }
	n.flush = func(ctx context.Context) error { return k.flush(ctx, bridgeName) }
	n.known = func(ctx context.Context) (int, error) { return k.known(ctx, bridgeName) }
	for range n.Spec.Ends {
		if err := n.endAt(ctx, k, bridgeName); err != nil {
			return err
		}
	}
	return nil
}

// endAt makes the next end and connects it to a bridge: the host, if it is the first end, or a
// cable.
func (n *Net) endAt(ctx context.Context, k kit, bridge string) error {
	i := len(n.Ends)
	if i == 0 && n.Spec.Host {
		ifname, err := k.host(ctx, bridge, hostName)
		if err != nil {
			return err
		}
		return n.hostEnd(ifname)
	}
	if err := n.cable(ctx, fmt.Sprintf("p%d", i+1)); err != nil {
		return err
	}
	return k.plug(ctx, bridge, n.Ports[i].Ifname)
}
