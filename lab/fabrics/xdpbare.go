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

// XDPBare redirects every frame in XDP to one fixed port without a lookup: the upper bound for any
// XDP switch.
var XDPBare = &Fabric{
	Name:       "xdp-bare",
	About:      "XDP redirect to a fixed port, no look-up: the ceiling of an XDP switch",
	Path:       path("end", "device veth", "program XDP redirect", "device veth", "end"),
	Arrival:    AsXDP,
	NeedsNAPI:  true,
	Pairs:      true,
	FramesOnly: true,
	build:      buildXDPBare,
}

func buildXDPBare(ctx context.Context, _ Site, n *Net) error {
	return n.pairs(ctx, func(in, out int) error {
		r, err := probe.NewRedirect(in, out)
		if errors.Is(err, unix.ERANGE) {
			return &ends.Unavailable{Reason: fmt.Sprintf("XDP in one buffer takes no MTU of %d", n.Spec.Wire.MTU)}
		}
		if err != nil {
			return err
		}
		n.undo = append(n.undo, r.Close)
		return nil
	})
}
