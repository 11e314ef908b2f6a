// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"

	"bascule/lab/ends"
)

// LinuxBridgeFiltered is the kernel's bridge with a stateful packet filter in
// the way of every frame: br_netfilter hands bridged packets to nftables.
var LinuxBridgeFiltered = &Fabric{
	Name:     "linux-bridge+nft",
	About:    "the kernel's bridge with a stateful nftables filter (by br_netfilter)",
	Path:     path("end", "device veth", "device Linux bridge", "filter nftables", "device veth", "end"),
	HostPath: path("host", "device Linux bridge", "device veth", "end"),
	Arrival:  AsBuffers,
	Needs:    []ends.Program{nft},
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &linuxKit{net: n, filtered: true})
	},
}

var nft = ends.Program{Command: "nft", Package: "nftables"}

// ruleset lets connections among the lab's addresses through and what belongs
// to them, and nothing else: the smallest filter that is a filter. It counts,
// as those of security groups do, and so it shows that packets pass it.
const ruleset = `table inet lab {
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related counter accept
		ip saddr 198.18.0.0/15 ip daddr 198.18.0.0/15 meta l4proto { tcp, udp, icmp } ct state new counter accept
	}
}`

// filter loads the ruleset into the switch's namespace.
func (k *linuxKit) filter(ctx context.Context) error {
	_, err := k.net.Switch.Output(ctx, ends.AnyCPU, nft.Command, ruleset)
	return err
}
