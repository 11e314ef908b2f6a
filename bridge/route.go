// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"encoding/binary"
	"fmt"
	"net"
	"slices"

	"bascule/datapath"
	"bascule/pf"

	"golang.org/x/sys/unix"
)

// routeSetting is the setting that makes a host port a routed one.
const routeSetting = "route"

// onlyHosts refuses a routed port that is not a host port.
func onlyHosts(what string) error {
	return refused(what, "only a host port routes, because the host has an interface there", "leave --route out, or make a port with --type host")
}

// planRoute gives a host port that routes its number among the endpoints of the network namespace,
// and takes the number from one that does not route. host reports whether p is a host port.
func (c *draft) planRoute(what string, p *datapath.Port, host bool) error {
	if p.Flags&datapath.PortRoute == 0 {
		if p.Facts&datapath.PortPatch == 0 {
			p.Endpoint = 0
		}
		return nil
	}
	if !host {
		return onlyHosts(what)
	}
	id := p.Id
	c.before = append(c.before, func() error {
		p := datapath.PortAt(c.next, id)
		if p == nil || p.Endpoint != 0 {
			return nil
		}
		cables, err := c.bridge.Store().Cables()
		if err != nil {
			return failed(what, err)
		}
		cables.Reserve(c.next)
		endpoint, ok := cables.Take()
		if !ok {
			return refused(what, "the network namespace has no number left for a routed port", "delete a patch cable or a routed port that is not used")
		}
		p.Endpoint = endpoint
		c.warn(netfilterWarning(datapath.PortName(p))...)
		return nil
	})
	return nil
}

// routeWords are the reasons why a packet for a routed host port is left to the host's network
// stack. The keys are the words of [datapath.Routes], by which the packets are counted.
var routeWords = map[string]string{
	"other":     "the switch has found no interface of the host with this address there; 'bascule bridge set' makes it look again",
	"away":      "the host's interface has gone, or is not in the switch's network namespace",
	"tag":       "it has a tag on its way to the host",
	"protocol":  "it is not IPv4 or IPv6, or it is ICMP that the host may have to look into",
	"header":    "its header has options or an extension header, or is wrong",
	"address":   "it is from or to an address that no ordinary station has",
	"ttl":       "it must not go further than the host",
	"local":     "it is for the host, or the host has no route for it",
	"off":       "the host does not forward packets that come in there",
	"refused":   "a route refuses it: blackhole, unreachable or prohibit",
	"tunnel":    "the route needs more than a next hop",
	"neighbour": "the MAC of the next hop is not known",
	"size":      "it is too large for the way out",
	"source":    "an answer would not go back there",
	"same":      "it would leave as it came, or stay within the host",
	"fresh":     "one packet a second to each next hop goes this way, so that the host keeps its MAC",
	"trip":      "it is a copy of a flood that other patch cables wait for, or has come through as many bridges as a frame may",
	"ipsec":     "the host has policies of IPsec",
	"choice":    "the host chooses the way by a mark, by what is inside the packet, or by a rule before a VRF's routes",
	"taken":     "the host's interface is down, has no carrier, or belongs to another device: a bridge, a bond",
}

// RouteReasons returns the results of packets for a routed host port, by the words of
// [datapath.Routes]. The first is for packets that the datapath has routed.
func RouteReasons() (list []Reason) {
	for _, word := range datapath.Routes() {
		text, ok := routeWords[word]
		if !ok {
			text = "the datapath has routed it"
		}
		list = append(list, Reason{Name: word, Text: text})
	}
	return list
}

// routeHops is the maximum number of routed ports in a trace, the same as of bridges in the
// datapath.
const routeHops = 32

// route traces a frame that leaves by a routed host port. If the datapath routes it, the trace
// continues in the bridge that it enters. ok is false if the frame is left to the host.
func (e *explainer) route() (t Trace, ok bool, err error) {
	if e.t.Route == 0 {
		return t, false, nil
	}
	_, kind, hop := e.t.Hop()
	hop = hop && kind != pf.DupTo
	if why := datapath.Routes()[e.t.Route-1]; why != "done" && hop {
		by := e.device(e.t.RouteTo)
		e.say("route", "the datapath routes it by %s; the kernel looks for the next hop first", by)
		return Trace{e.steps, "forwarded", []string{by}}, true, nil
	} else if why != "done" {
		e.say("route", "left to the host: %s, %s", why, routeWords[why])
		return t, false, nil
	}
	if e.hops >= routeHops {
		e.say("route", "left to the host: trip, %s", routeWords["trip"])
		return t, false, nil
	}
	dst := datapath.WordMAC(e.t.RouteDst)
	by := e.device(e.t.RouteTo)
	e.say("route", "the datapath routes it by %s to %s", by, net.HardwareAddr(dst[:]))
	bridge, endpoint, err := e.b.Store().GatewayAt(e.t.RouteTo)
	if err != nil {
		return t, false, err
	}
	if hop && e.t.Out == 0 { // rules have evaluated it as it left the host
		e.say("send", "by %s, without rules about it", by)
		return Trace{e.steps, "forwarded", []string{by}}, true, nil
	}
	if bridge == "" {
		e.say("send", "by %s, a device of the host", by)
		return Trace{e.steps, "forwarded", []string{by}}, true, nil
	}
	e.hops++
	b, err := e.b.Store().Open(bridge)
	if err != nil {
		return t, false, err
	}
	ports := datapath.Ports(&b.Config)
	i := slices.IndexFunc(ports, func(p *datapath.Port) bool { return p.Endpoint == endpoint })
	if i < 0 { // it is being removed
		return Trace{e.steps, "dropped: no-peer", []string{}}, true, nil
	}
	p := ports[i]
	next := &explainer{b: b, in: p, frame: routedFrame(e.frame, e.t), devices: e.devices, steps: e.steps, hops: e.hops, bridge: bridge}
	next.port = portName(b, p, e.devices)
	if bridge != e.bridge {
		next.say("bridge", "%s goes on", bridge)
	}
	if t, err = next.trace(); err != nil {
		return t, false, err
	}
	if bridge != e.bridge {
		for i, port := range t.Out {
			t.Out[i] = bridge + "/" + port
		}
	}
	return t, true, nil
}

// device returns the name of a device of the host.
func (e *explainer) device(index uint32) string {
	if l := e.devices[int(index)]; l != nil {
		return l.Attrs().Name
	}
	return fmt.Sprintf("the interface with index %d", index)
}

// routedFrame returns a frame as the datapath sends it after routing: with other MAC addresses, a
// decremented TTL, and without tag and padding.
func routedFrame(frame []byte, t *datapath.Traced) []byte {
	const header, tag = 14, 4
	dst, src := datapath.WordMAC(t.RouteDst), datapath.WordMAC(t.RouteSrc)
	at := header - 2
	if typ := binary.BigEndian.Uint16(frame[at:]); typ == unix.ETH_P_8021Q || typ == unix.ETH_P_8021AD {
		at += tag
	}
	out := append(append(append([]byte{}, dst[:]...), src[:]...), frame[at:]...)
	ip := out[header:]
	var size int
	if binary.BigEndian.Uint16(out[header-2:]) == unix.ETH_P_IP {
		ip[8]--
		sum := uint32(binary.BigEndian.Uint16(ip[10:])) + 0x100 // RFC 1624
		binary.BigEndian.PutUint16(ip[10:], uint16(sum+sum>>16))
		size = int(binary.BigEndian.Uint16(ip[2:]))
	} else {
		ip[7]--
		size = 40 + int(binary.BigEndian.Uint16(ip[4:]))
	}
	return out[:header+min(size, len(ip))]
}
