// SPDX-License-Identifier: BSD-2-Clause

package sflow

// unknownL2 is the code of a reason for which sFlow has no code.
const unknownL2 = 284

// codes are sFlow's codes (enum drop_reason of "sFlow Dropped Packet Notification Structures")
// for the datapath's reasons: the nearest ones that collectors know. Codes below 256 are from
// RFC 792.
var codes = map[string]uint32{
	"malformed":     324, // pkt_too_small
	"reserved":      294, // dmac_is_reserved
	"bad-source":    263, // src_mac_is_multicast
	"same-port":     268, // port_loopback_filter
	"protected":     303, // split_horizon
	"mtu":           262, // pkt_too_big
	"no-member":     267, // port_list_is_empty
	"span":          unknownL2,
	"vlan":          265, // ingress_vlan_filter
	"untagged":      264, // vlan_tag_mismatch
	"admit":         264,
	"double-tag":    264,
	"other-tag":     264,
	"vlan-out":      301, // egress_vlan_filter
	"blocked":       268,
	"loop":          268,
	"stp":           266, // ingress_spanning_tree_filter
	"locked":        304, // locked_port
	"limit":         unknownL2,
	"spoofed":       258, // acl
	"dhcp-guard":    258,
	"ra-guard":      258,
	"non-ip":        270, // non_ip
	"storm-bcast":   261, // traffic_shaping
	"rate":          261,
	"storm-mcast":   261,
	"storm-unknown": 261,
	"rule":          258,
	"no-carrier":    unknownL2,
	"no-peer":       unknownL2,
	"patch-loop":    268,
	"ether":         258,
	"pf":            258,
	"pf-state":      258,
	"pf-limit":      259, // no_buffer_space
	"pf-short":      275, // ip_header_corrupted
	"pf-fragment":   275,
	"pf-options":    286, // unknown_l3_exception
	"pf-synproxy":   258,
	"too-deep":      309, // vlan_parsing
	"pf-normalize":  289, // unknown_l4
	"checksum":      289,
	"pf-translate":  285, // unknown_l3
	"pf-route":      1,   // host unreachable, of ICMP
	"pf-divert":     3,   // port unreachable
	"pf-timestamp":  289, // unknown_l4
	"gso":           275, // ip_header_corrupted
}

func reasonCode(reason string) uint32 {
	if code, ok := codes[reason]; ok {
		return code
	}
	return unknownL2
}
