// SPDX-License-Identifier: BSD-2-Clause

package main

import "bascule/test/machines"

// The test programs for the guests.
const (
	conformance = "bascule/test/conformance"
	agent       = "bascule/test/agent"
	datapath    = "bascule/datapath"
	routing     = "bascule/test/routing"
)

// refusal is the case of kernels without tcx. It runs on these only.
var refusal = machines.Case{About: "refusal without tcx", Package: conformance, Test: "TestWithoutTCX", Short: true}

// cases run in each guest. Each feature has a case that enables it alone, with frames that must arrive and frames that
// must not.
var cases = list([]row{
	{"all features at once", conformance, "TestConformance/everything_together", true},
	{"the verifier, each feature alone and all", datapath, "TestVerifierBudget", false},
	{"spare room with all features on", datapath, "TestHeadroom", false},
	{"the cost of each feature alone", datapath, "TestFeatureCosts", false},
	{"forwarding", conformance, "TestConformance/unicast_two_hosts", false},
	{"forwarding", conformance, "TestConformance/learn_then_unicast", false},
	{"forwarding", conformance, "TestConformance/unknown_unicast_flood", false},
	{"forwarding", conformance, "TestConformance/broadcast_flood", true},
	{"forwarding", conformance, "TestConformance/multicast_flood", false},
	{"forwarding", conformance, "TestConformance/move", false},
	{"forwarding", conformance, "TestConformance/backup_port", false},
	{"forwarding", conformance, "TestConformance/age_out", false},
	{"forwarding", conformance, "TestConformance/gso", false},
	{"forwarding", conformance, "TestConformance/host_port", false},
	{"forwarding", conformance, "TestConformance/tap", false},
	{"FDB", conformance, "TestConformance/fdb_max_port", false},
	{"FDB", conformance, "TestConformance/static_never_moves", false},
	{"port settings", conformance, "TestConformance/hairpin", false},
	{"port settings", conformance, "TestConformance/isolated", false},
	{"port settings", conformance, "TestConformance/learn_off", false},
	{"port settings", conformance, "TestConformance/discover_off", false},
	{"port settings", conformance, "TestConformance/flood_flags", false},
	{"port settings", conformance, "TestConformance/reserved_addresses", false},
	{"berths", conformance, "TestConformance/berth_port", false},
	{"VLANs", conformance, "TestConformance/access_to_trunk", false},
	{"VLANs", conformance, "TestConformance/admit", false},
	{"VLANs", conformance, "TestConformance/double_tag", false},
	{"VLANs", conformance, "TestConformance/private_vlans", false},
	{"VLANs", conformance, "TestConformance/vlan_stats", false},
	{"MAC rules", conformance, "TestConformance/rules", false},
	{"MAC rules", conformance, "TestConformance/rules_arp", false},
	{"guards", conformance, "TestConformance/locked", false},
	{"guards", conformance, "TestConformance/mab", false},
	{"guards", conformance, "TestConformance/block_non_ip", false},
	{"guards", conformance, "TestConformance/fdb_full_drop", false},
	{"guards", conformance, "TestConformance/move_max", false},
	{"guards", conformance, "TestConformance/loop_guard", false},
	{"guards", conformance, "TestConformance/source_guard", false},
	{"guards", conformance, "TestConformance/arp_suppression", false},
	{"guards", conformance, "TestConformance/nd_suppression", false},
	{"guards", conformance, "TestConformance/dhcp_guard", false},
	{"guards", conformance, "TestConformance/ra_guard", false},
	{"guards", conformance, "TestConformance/storm_limit", false},
	{"guards", conformance, "TestConformance/rate_ways_in", false},
	{"guards", conformance, "TestConformance/rate_ways_out", false},
	{"pf", conformance, "TestConformance/pf_states", false},
	{"pf", conformance, "TestConformance/pf_tables", false},
	{"pf", conformance, "TestConformance/pf_anchors", false},
	{"pf", conformance, "TestConformance/pf_log", false},
	{"pf", conformance, "TestConformance/pf_hosts", false},
	{"pf", conformance, "TestConformance/pf_answers", false},
	{"pf", conformance, "TestConformance/pf_fragments", false},
	{"pf", conformance, "TestConformance/pf_reassemble", false},
	{"pf", conformance, "TestConformance/pf_with_all", false},
	{"span", conformance, "TestConformance/span_port", false},
	{"span", conformance, "TestConformance/span_vlan", false},
	{"patch cables", conformance, "TestConformance/patch", false},
	{"patch cables", conformance, "TestConformance/patch_vlans", false},
	{"routed host ports", routing, "TestWaysOut", false},
	{"routed host ports", routing, "TestSeveralHops", false},
	{"routed host ports", routing, "TestSettings", false},
	{"routed host ports", routing, "TestVRF", false},
	{"routed host ports", routing, "TestRulesOfSource", false},
	{"routed host ports", routing, "TestRulesThatRefuse", false},
	{"routed host ports", routing, "TestPFStatesOfVRF", false},
	{"routed host ports", routing, "TestFamilyOfVRF", false},
	{"routed host ports", routing, "TestRouteToVRF", false},
	{"routed host ports", routing, "TestPFReversePath", false},
	{"routed host ports", routing, "TestPFNoRoute", false},
	{"routed host ports", routing, "TestWireGuard", false},
	{"translation", routing, "TestNATStations", false},
	{"translation", routing, "TestNATErrors", false},
	{"translation", routing, "TestNATPoolDry", false},
	{"capture", conformance, "TestConformance/capture_frames", true},
	{"capture", conformance, "TestConformance/capture_choice", false},
	{"capture", conformance, "TestConformance/capture_while_changed", false},
	{"trace", conformance, "TestConformance/trace", false},
	{"top", conformance, "TestConformance/talkers", false},
	{"stats, monitor", conformance, "TestStats", false},
	{"stats, monitor", conformance, "TestMonitor", false},
	{"spanning tree", conformance, "TestConformance/stp_states", false},
	{"spanning tree", conformance, "TestConformance/stp_bpdus", false},
	{"spanning tree", agent, "TestTree", false},
	{"apply", agent, "TestApply/apply_from_nothing", true},
	{"apply", agent, "TestApply/apply_forwards", false},
	{"apply", agent, "TestApply/export", false},
	{"agent", agent, "TestService", false},
	{"agent", agent, "TestDevices", false},
	{"upgrade", agent, "TestUpgrade", true},
	{"upgrade", conformance, "TestConformance/upgrade_under_load", false},
	{"settings of the host at ports", conformance, "TestConformance/ingress_of_others", false},
	{"settings of the host at ports", conformance, "TestConformance/stacks", false},
	{"settings of the host at ports", conformance, "TestConformance/device_above_elsewhere", false},
	{"complete deletion", conformance, "TestConformance/delete_bridge_with_ports", false},
	{"complete deletion", conformance, "TestDelAll", false},
})

// A row is a case without the names of its fields.
type row struct {
	about, program, test string
	short                bool
}

func list(rows []row) (cases []machines.Case) {
	for _, r := range rows {
		cases = append(cases, machines.Case{About: r.about, Package: r.program, Test: r.test, Short: r.short})
	}
	return cases
}
