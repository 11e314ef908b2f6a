// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/datapath/probe"
	"bascule/lab/ends"
)

// TCXBare redirects every frame at tcx to one fixed port without a lookup: the upper bound for a
// tcx switch. TCXBarePeer passes it directly to the end behind the port, with the helper that
// bascule uses for frames to that end's own address.
var (
	TCXBare     = bareTCX("tcx-bare", "tcx redirect to a fixed port, no look-up: the ceiling of a tcx switch", false)
	TCXBarePeer = bareTCX("tcx-bare-peer", "tcx redirect to the end behind a fixed port, no look-up", true)
)

func bareTCX(name, about string, toPeer bool) *Fabric {
	f := &Fabric{
		Name:    name,
		About:   about,
		Path:    path("end", "device veth", "program tcx redirect", "device veth", "end"),
		Arrival: AsBuffers,
		Pairs:   true,
		build: func(ctx context.Context, _ Site, n *Net) error {
			return n.pairs(ctx, func(in, out int) error {
				r, err := probe.NewRedirectTCX(in, out, toPeer)
				if err == nil {
					n.undo = append(n.undo, r.Close)
				}
				return err
			})
		},
	}
	if toPeer {
		f.Path = path("end", "device veth", "program tcx redirect", "end")
	}
	return f
}

// Mirred is the kernel's own redirection of all frames to a fixed port.
var Mirred = &Fabric{
	Name:    "tc-mirred",
	About:   "tc's matchall and mirred to a fixed port, no look-up",
	Path:    path("end", "device veth", "filter tc mirred", "device veth", "end"),
	Arrival: AsBuffers,
	Pairs:   true,
	Modules: []string{"sch_ingress", "cls_matchall", "act_mirred"},
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.pairs(ctx, n.mirred)
	},
}

// pairs connects ends in pairs; join connects one direction in the switch's namespace.
func (n *Net) pairs(ctx context.Context, join func(in, out int) error) error {
	if n.Spec.Guests {
		return &ends.Unavailable{Reason: "it passes frames to network namespaces only"}
	}
	if n.Spec.Ends%2 != 0 {
		return &ends.Unavailable{Reason: fmt.Sprintf("it joins ends in pairs; %d were requested", n.Spec.Ends)}
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
			if err := join(n.Ports[i].Ifindex, n.Ports[i^1].Ifindex); err != nil {
				return err
			}
		}
		return nil
	})
}

func (n *Net) mirred(in, out int) error {
	qdisc := &netlink.Clsact{QdiscAttrs: netlink.QdiscAttrs{
		LinkIndex: in, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_CLSACT,
	}}
	filter := &netlink.MatchAll{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: in, Parent: netlink.HANDLE_MIN_INGRESS, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Actions: []netlink.Action{netlink.NewMirredAction(out)},
	}
	err := n.Switch.Netlink().QdiscAdd(qdisc)
	if err == nil {
		err = n.Switch.Netlink().FilterAdd(filter)
	}
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) {
		return &ends.Unavailable{Reason: "the kernel has no clsact, matchall or mirred of tc (modprobe sch_ingress cls_matchall act_mirred)"}
	}
	return err
}
