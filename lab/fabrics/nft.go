// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"fmt"
	"strings"

	"bascule/lab/ends"
)

// LinuxBridgeFiltered is the kernel's bridge with a stateful packet filter in
// the way of every frame: br_netfilter hands bridged packets to nftables.
var LinuxBridgeFiltered = &Fabric{
	Name:     "linux-bridge+nft",
	About:    "the kernel's bridge with a stateful nftables filter (by br_netfilter)",
	Path:     path("end", "device veth", "device Linux bridge", "filter nftables", "device veth", "end"),
	HostPath: path("host", "filter nftables", "device Linux bridge", "device veth", "end"),
	Arrival:  AsBuffers,
	Needs:    []ends.Program{nft},
	build: func(ctx context.Context, _ Site, n *Net) error {
		if err := n.single(ctx, &linuxKit{net: n, filtered: true}); err != nil {
			return err
		}
		return n.filterHost(ctx)
	},
}

var nft = ends.Program{Command: "nft", Package: "nftables"}

// rules let connections among the lab's addresses through and what belongs to
// them, and nothing else: the smallest filter that is a filter. They count, as
// those of security groups do, and so show that packets pass them.
const rules = `
		ct state established,related counter accept
		ip saddr 198.18.0.0/15 ip daddr 198.18.0.0/15 meta l4proto { tcp, udp, icmp } ct state new counter accept`

// filter gives the switch's namespace the rules at hooks of nftables.
func (n *Net) filter(ctx context.Context, hooks ...string) error {
	var b strings.Builder
	b.WriteString("table inet lab {\n")
	for _, hook := range hooks {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype filter hook %s priority filter; policy drop;%s\n\t}\n", hook, hook, rules)
	}
	b.WriteString("}")
	_, err := n.Switch.Output(ctx, ends.AnyCPU, nft.Command, b.String())
	return err
}

// filterHost puts the rules in the way of the host's own packets, which are not
// forwarded, where the host is an end.
func (n *Net) filterHost(ctx context.Context) error {
	if !n.Spec.Host {
		return nil
	}
	return n.filter(ctx, "input", "output")
}
