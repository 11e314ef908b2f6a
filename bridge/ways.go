// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"

	"bascule/datapath"
)

// wayOf returns how known unicast leaves by a port, and what prevents the short ways.
func wayOf(p *datapath.Port) (way string, egress []string) {
	for _, kind := range []struct {
		bit  datapath.PortWays
		word string
	}{
		{datapath.WayQueue, EgressQdisc}, {datapath.WayTC, EgressTC},
		{datapath.WayNetfilter, EgressNetfilter}, {datapath.WayEndXDP, EgressEndXDP},
	} {
		if p.Ways&kind.bit != 0 {
			egress = append(egress, kind.word)
		}
	}
	switch {
	case p.Straight != 0:
		return WayStraight, egress
	case p.Ways&datapath.WayXDP != 0:
		return WayXDP, egress
	case p.Ways&datapath.WaySeen == 0:
		egress = append(egress, EgressUnknown)
	}
	return WayDevice, egress
}

// waysNow reads the state of a bridge's ports' devices, because a change may be faster than the
// bridge's timer. The returned function has the result for a port.
func waysNow(b *datapath.Bridge) func(*datapath.Port) datapath.PortWays {
	var now map[uint32]datapath.PortWays
	if b.Sees() {
		now, _ = b.Look() // if it fails, the timer's last result will do
	}
	return func(p *datapath.Port) datapath.PortWays {
		if ways, ok := now[p.Id]; ok {
			return ways
		}
		return p.Ways
	}
}

// waysWarning warns of egress rules at a new port's device, which have no effect there.
func waysWarning(b *datapath.Bridge, p *datapath.Port) []string {
	if p.Facts&(datapath.PortPatch|datapath.PortSpan) != 0 {
		return nil
	}
	name := datapath.PortName(p)
	if !b.Sees() {
		if p.Facts&datapath.PortXDPTx == 0 {
			return nil
		}
		return []string{fmt.Sprintf("%s: this kernel does not report what its device has for outgoing frames, so XDP sends none there", name)}
	}
	if waysNow(b)(p)&datapath.WayNetfilter == 0 {
		return nil
	}
	return []string{egressWarning(name)}
}

// egressWarning is the text about netfilter's rules at the hook egress of a port's device.
func egressWarning(port string) string {
	return port + ": rules of netfilter at the hook egress of its device see no frame, since the kernel skips them for redirected frames; " +
		"filter with pf, MAC rules or tc"
}
