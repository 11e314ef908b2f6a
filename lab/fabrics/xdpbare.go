// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"bascule/datapath/probe"
	"bascule/lab/ends"
)

// XDPBare redirects every frame in XDP to one fixed port and looks at nothing:
// the ceiling for any XDP switch.
var XDPBare = &Fabric{
	Name:       "xdp-bare",
	About:      "XDP redirect to a fixed port, no look-up: the ceiling of an XDP switch",
	Path:       path("end", "device veth", "program XDP redirect", "device veth", "end"),
	Arrival:    AsXDP,
	NeedsGRO:   true,
	Pairs:      true,
	FramesOnly: true,
	build:      buildXDPBare,
}

func buildXDPBare(ctx context.Context, _ Site, n *Net) error {
	if n.Spec.Ends%2 != 0 {
		return fmt.Errorf("it joins ends in pairs; %d were asked for", n.Spec.Ends)
	}
	if err := n.place(); err != nil {
		return err
	}
	for i := range n.Spec.Ends {
		if err := n.cable(ctx, fmt.Sprintf("p%d", i+1)); err != nil {
			return err
		}
	}
	return n.Switch.Do(func() error {
		for i := range n.Ports {
			r, err := probe.NewRedirect(n.Ports[i].Ifindex, n.Ports[i^1].Ifindex)
			if errors.Is(err, unix.ERANGE) {
				return &ends.Unavailable{Reason: fmt.Sprintf("XDP in one buffer takes no MTU of %d", n.Spec.Wire.MTU)}
			}
			if err != nil {
				return err
			}
			n.undo = append(n.undo, r.Close)
		}
		return nil
	})
}
