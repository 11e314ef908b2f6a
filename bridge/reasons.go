// SPDX-License-Identifier: BSD-2-Clause

package bridge

// A Reason is a reason to drop a frame. The port by which the frame entered counts it under its
// name.
type Reason struct {
	Name string
	Text string // with the frame as "it": "it ends before its headers do"
	See  string // the command that shows or changes the cause, "" for none
}

// Reasons are all reasons, in the order of enum drop_reason (bpf/types.h). Trace, help and man
// pages use these texts.
var Reasons = []Reason{
	{"malformed", "it ends before its headers do", ""},
	{"reserved", "it is to a reserved address, which bridges do not forward, and group-fwd-mask does not allow it", "bridge set --group-fwd-mask"},
	{"bad-source", "its source address is a group address or zero, which no station has", ""},
	{"same-port", "its destination is behind the port that it came in by, and hairpin is off", "port set --hairpin"},
	{"protected", "the two ports share a protected domain", "port set --protected"},
	{"mtu", "it is larger than the MTU of the way out", "port show"},
	{"no-member", "there is no port to flood it to", "vlan show"},
	{"span", "the port is a span port, which only listens", "span show"},
	{"vlan", "the port is not in the frame's VLAN", "vlan show"},
	{"untagged", "it has no tag, and the port has no PVID", "vlan add --pvid"},
	{"admit", "it is tagged, or untagged, and the port admits no such frames", "port set --admit"},
	{"double-tag", "it has a second tag, and qinq is off", "bridge set --qinq"},
	{"other-tag", "it has a tag of another kind than the bridge's, and qinq is off", "bridge set --qinq"},
	{"vlan-out", "its destination's port is not in its VLAN", "vlan show"},
	{"blocked", "the port is blocked by its loop guard", "port set --loop-guard"},
	{"loop", "it is a frame of the switch that has come back", "port set --loop-guard"},
	{"stp", "spanning tree keeps the port from forwarding", "agent status"},
	{"locked", "the port is locked, and the FDB does not have its source there", "fdb show"},
	{"limit", "the FDB has no room for its source, and the port has fdb-full drop", "port set --fdb-max"},
	{"spoofed", "it uses a false address: no binding allows it, or its source is bound elsewhere", "binding show"},
	{"dhcp-guard", "it is a DHCP server's message, and the port is not trusted", "port set --trusted"},
	{"ra-guard", "it is a router's advertisement, and the port is not trusted", "port set --trusted"},
	{"non-ip", "it is not IPv4, IPv6, ARP or RARP, and a port accepts nothing else", "port set --block-non-ip"},
	{"storm-bcast", "it exceeds the port's limit of broadcast", "port set --storm-bcast"},
	{"storm-mcast", "it exceeds the port's limit of multicast", "port set --storm-mcast"},
	{"storm-unknown", "it exceeds the port's limit of unknown unicast", "port set --storm-unknown"},
	{"rule", "a MAC rule drops it", "rule show --stats"},
	{"no-peer", "the patch cable's other end does not exist", "port show"},
	{"patch-loop", "it has been in this bridge already, by patch cables", "port show"},
	{"ether", "an ether rule of pf drops it", "pfctl -s ether"},
	{"pf", "a rule of pf drops it", "pfctl -vs rules"},
	{"pf-state", "it does not fit the state of its connection in pf", "pfctl -s states"},
	{"pf-limit", "it needs one state or source more than pf may have", "pfctl -s memory"},
	{"pf-short", "it is shorter than its IP, TCP, UDP or ICMP headers require", ""},
	{"pf-fragment", "it is a fragment that belongs to no packet", ""},
	{"pf-options", "it has IP options, and the rule of pf that passes it has no allow-opts", "pfctl -s rules"},
	{"pf-synproxy", "it is part of a handshake that pf makes on behalf of a host", ""},
	{"too-deep", "a filter cannot get to the end of its tags", ""},
	{"pf-normalize", "its TCP flags, ICMP or addresses are not valid in any packet", ""},
	{"checksum", "a filter has read a field where a checksum has yet to be written", ""},
	{"pf-translate", "a rule of pf translates it, and that is impossible: no address or port is free, or it can have no state", "pfctl -s states"},
	{"pf-route", "a rule of pf gives its next hop, and it cannot go there: there is no way, or it can have no state", "pfctl -s rules"},
	{"pf-divert", "a rule of pf diverts it to a socket of the host, and there is none, or it can have no state", "pfctl -s states"},
	{"pf-timestamp", "its sender cannot have sent its TCP timestamps now, and a rule of pf has reassemble tcp", "pfctl -s rules"},
	{"gso", "the kernel has yet to cut it into packets, which no filter would see: it is a fragment, or has a wrong length", ""},
	{"rate", "it exceeds the port's rate limit, in or out", "port set --rate-in"},
	{"no-carrier", "its address is static on a port that is down or has no carrier", ""},
}

// words has the texts of reasons by their names.
var words = func() map[string]string {
	texts := map[string]string{}
	for _, r := range Reasons {
		texts[r.Name] = r.Text
	}
	return texts
}()
