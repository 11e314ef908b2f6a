// SPDX-License-Identifier: BSD-2-Clause

package fabrics

// What bascule does not have yet is listed with the rest, so that it is known
// what will be measured of it. Each of these gets its build function, in place
// of Missing, with the part of bascule that it waits for.

const noFilter = "bascule's packet filter (pf) is not built yet"

// BasculePF is a bascule bridge with stateful rules.
var BasculePF = &Fabric{
	Name:     "bascule+pf",
	About:    "a bascule bridge at tcx with stateful rules of its packet filter",
	Path:     path("end", "device veth", "program bascule (tcx)", "filter pf", "end"),
	HostPath: path("host", "device host port", "program bascule (tcx)", "filter pf", "end"),
	Arrival:  AsBuffers,
	Missing:  noFilter,
}

// BasculeXDPPF is the same where known unicast is forwarded in XDP.
var BasculeXDPPF = &Fabric{
	Name:         "bascule-xdp+pf",
	About:        "a bascule bridge in XDP with stateful rules of its packet filter; GRO on at the ends",
	Path:         path("end", "device veth", "program bascule (XDP)", "filter pf", "device veth", "end"),
	HostPath:     path("host", "device host port", "program bascule (XDP)", "filter pf", "device veth", "end"),
	Arrival:      AsXDP,
	FloodArrival: AsXDP,
	NeedsGRO:     true,
	Missing:      noFilter,
}
