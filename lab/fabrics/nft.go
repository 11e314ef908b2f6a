// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
)

// LinuxBridgeFiltered is the kernel's bridge with a stateful packet filter for every frame:
// br_netfilter passes bridged packets to nftables.
var LinuxBridgeFiltered = &Fabric{
	Name:     "linux-bridge+nft",
	About:    "the kernel's bridge with a stateful nftables filter (by br_netfilter)",
	Path:     path("end", "device veth", "device Linux bridge", "filter nftables", "device veth", "end"),
	HostPath: path("host", "filter nftables", "device Linux bridge", "device veth", "end"),
	Arrival:  AsBuffers,
	Needs:    []ends.Program{nft},
	Files:    nftFiles,
	Modules:  append([]string{"bridge", "br_netfilter"}, nftModules...),
	build: func(ctx context.Context, _ Site, n *Net) error {
		if err := n.single(ctx, &linuxKit{net: n, filtered: true}); err != nil {
			return err
		}
		return n.filterHost(ctx)
	},
}

// LinuxBridgeConntrack is the same with the bridge's own connection tracking, without br_netfilter.
var LinuxBridgeConntrack = &Fabric{
	Name:     "linux-bridge+nft-bridge",
	About:    "the kernel's bridge with a stateful nftables filter of its own (by nf_conntrack_bridge)",
	Path:     LinuxBridgeFiltered.Path,
	HostPath: LinuxBridgeFiltered.HostPath,
	Arrival:  AsBuffers,
	Needs:    []ends.Program{nft},
	Files:    nftFiles,
	Modules:  append([]string{"bridge", "nf_conntrack_bridge", "nft_meta_bridge"}, nftModules...),
	build: func(ctx context.Context, _ Site, n *Net) error {
		if err := n.single(ctx, &linuxKit{net: n}); err != nil {
			return err
		}
		if err := n.filterBridged(ctx); err != nil {
			return err
		}
		return n.filterHost(ctx)
	},
}

var nft = ends.Program{Command: "nft", Package: "nftables"}

// nftFiles have the numbers of protocols for nft.
var nftFiles = []string{"/etc/protocols"}

// nftModules are the modules of nftables that the lab's rules need.
var nftModules = []string{"nf_tables", "nft_ct", "nf_conntrack", "nf_conntrack_netlink"}

// labNetwork has all the lab's addresses.
var labNetwork = netip.MustParsePrefix("198.18.0.0/15")

// rules pass connections to the lab's addresses with all packets of a connection, and IPv6 neighbor
// discovery. They drop everything else, which is the minimum for a filter. The most frequent
// packets come first. The rules have counters, like the rules of security groups. The counters show
// that packets match the rules.
var rules = fmt.Sprintf(`
		ct state established,related counter accept
		ip daddr %s meta l4proto { tcp, udp, icmp } ct state new counter accept
		meta l4proto ipv6-icmp accept`, labNetwork)

// filter loads the rules into the switch's namespace at hooks of nftables.
func (n *Net) filter(ctx context.Context, hooks ...string) error {
	var b strings.Builder
	b.WriteString("table inet lab {\n")
	for _, hook := range hooks {
		fmt.Fprintf(&b, "\tchain %s {\n\t\ttype filter hook %s priority filter; policy drop;%s\n\t}\n", hook, hook, rules)
	}
	b.WriteString("}")
	if _, err := n.Switch.Output(ctx, ends.AnyCPU, nft.Command, b.String()); err != nil {
		return err
	}
	return n.conntrack()
}

// masquerade translates the source of packets to any end except the first to the router's address.
func (n *Net) masquerade(ctx context.Context) error {
	table := fmt.Sprintf("table ip nat {\n\tchain postrouting {\n\t\ttype nat hook postrouting priority srcnat;\n"+
		"\t\tip saddr %s oifname != %q masquerade\n\t}\n}", labNetwork, n.Ports[0].Ifname)
	_, err := n.Switch.Output(ctx, ends.AnyCPU, nft.Command, table)
	return err
}

// filterFlows loads the rules for forwarded packets into the switch's namespace, and a flowtable at
// the ends' devices for established connections.
func (n *Net) filterFlows(ctx context.Context) error {
	var devices []string
	for _, p := range n.Ports {
		devices = append(devices, fmt.Sprintf("%q", p.Ifname))
	}
	table := fmt.Sprintf("table inet lab {\n\tflowtable flows {\n\t\thook ingress priority filter; devices = { %s };\n\t}\n"+
		"\tchain forward {\n\t\ttype filter hook forward priority filter; policy drop;\n\t\tmeta l4proto { tcp, udp } flow add @flows%s\n\t}\n}",
		strings.Join(devices, ", "), rules)
	_, err := n.Switch.Output(ctx, ends.AnyCPU, nft.Command, table)
	if err != nil && (strings.Contains(err.Error(), "Operation not supported") || strings.Contains(err.Error(), "No such file or directory")) {
		return &ends.Unavailable{Reason: "the kernel has no flowtables in its nftables (CONFIG_NF_FLOW_TABLE)"}
	}
	if err != nil {
		return err
	}
	return n.conntrack()
}

// conntrack reduces connection tracking in the switch's namespace to the minimum, and lets the net
// flush connections.
func (n *Net) conntrack() error {
	// Only the ends verify checksums.
	err := n.Switch.Do(func() error { return ends.Sysctl("net.netfilter.nf_conntrack_checksum", "0") })
	n.forget = func(context.Context) error {
		err := n.Switch.Do(func() error { return netlink.ConntrackTableFlush(netlink.ConntrackTable) })
		if err != nil {
			return fmt.Errorf("connections of %s: %w", n.Switch.Name, err)
		}
		return nil
	}
	return err
}

// filterBridged loads the rules for the bridges of the switch's namespace. They also see ARP, which
// br_netfilter does not pass to other hooks.
func (n *Net) filterBridged(ctx context.Context) error {
	table := fmt.Sprintf("table bridge lab {\n\tchain forward {\n\t\ttype filter hook forward priority filter; policy drop;%s\n\t\tether type arp accept\n\t}\n}", rules)
	_, err := n.Switch.Output(ctx, ends.AnyCPU, nft.Command, table)
	if err != nil && strings.Contains(err.Error(), "Protocol error") {
		return &ends.Unavailable{Reason: "the kernel has no connection tracking in its bridge (CONFIG_NF_CONNTRACK_BRIDGE)"}
	}
	if err != nil {
		return err
	}
	return n.conntrack()
}

// filterHost applies the rules to the host's own packets, which are not forwarded, if the host is
// an end.
func (n *Net) filterHost(ctx context.Context) error {
	if !n.Spec.Host {
		return nil
	}
	return n.filter(ctx, "input", "output")
}
