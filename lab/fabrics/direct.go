// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"fmt"

	"bascule/lab/ends"
)

// Direct is one veth cable from end to end: the minimum cost.
var Direct = &Fabric{
	Name:     "direct",
	About:    "one veth cable, nothing in between",
	Path:     path("end", "end"),
	HostPath: path("host", "end"),
	Arrival:  AsXDP,
	Pairs:    true,
	build:    buildDirect,
}

func buildDirect(_ context.Context, _ Site, n *Net) error {
	if n.Spec.Guests {
		return &ends.Unavailable{Reason: "a veth cable has no end in a virtual machine"}
	}
	if n.Spec.Ends%2 != 0 || n.Spec.Together {
		return &ends.Unavailable{Reason: "a cable joins two ends, each in a namespace of its own"}
	}
	if n.Spec.Host {
		if err := n.place(); err != nil {
			return err
		}
	}
	for i := 0; i < n.Spec.Ends; i += 2 {
		// If the first end is the host, the cable begins there.
		a := n.Switch
		if i > 0 || a == nil {
			var err error
			if a, err = n.endNamespace(i); err != nil {
				return err
			}
		}
		b, err := n.endNamespace(i + 1)
		if err != nil {
			return err
		}
		second, err := ends.Cable(a, fmt.Sprintf("e%d", i+1), b, fmt.Sprintf("e%d", i+2), i+2, n.Spec.Wire)
		if err != nil {
			return err
		}
		_, addr := ends.Number(i + 1)
		first, err := a.Adopt(fmt.Sprintf("e%d", i+1), addr)
		if err != nil {
			return err
		}
		n.Ends = append(n.Ends, first, second)
		n.Ports = append(n.Ports,
			Port{b, second.Ifname, second.Ifindex},
			Port{a, first.Ifname, first.Ifindex})
	}
	return nil
}
