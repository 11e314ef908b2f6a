// SPDX-License-Identifier: BSD-2-Clause

package reference

import (
	"net/netip"

	"bascule/pf"
)

// hop chooses the next hop of a new state, by its rule. It reports false if the rule has none
// (pf_set_rt_ifp() of sys/net/pf.c).
func (rt *Router) hop(w *walk, s *State, r *pf.Rule) bool {
	if r.Route == nil {
		return true
	}
	pool := rt.open(w, &r.Route.Pool, s.Before.Family, w.at)
	var ok bool
	s.Hop, ok = rt.pick(pool, s, use{r, -1}, s.Before.Src, s.Before.Src)
	return ok
}

// route sets the way of a packet of the judgment's state. forward means that it goes the way of
// the state's first packet. Packets of both directions are copied.
func (j *Judgment) route(forward bool) {
	if d := j.State.Rule.Divert; d != nil && (d.Kind == pf.DivertTo) == forward {
		j.Divert = d
	}
	r := j.State.Rule.Route
	switch {
	case r == nil:
	case r.Kind == pf.DupTo:
		j.Copy = j.State.Hop
	case (r.Kind == pf.RouteTo) == forward:
		j.Hop = j.State.Hop
	}
}

// Leaving is a packet that a host sends, or that one of its sockets gets.
type Leaving struct {
	Packet Packet
	Port   Port       // where it leaves, the zero Port for a socket
	To     netip.Addr // where it is sent there: to its destination, or a next hop
	Socket *pf.Divert // the receiving socket, nil for none
	Copy   bool       // it is a copy (dup-to)
}

// Forward judges a packet that arrives at a host through its port and is sent on, and returns the
// packets that leave. via stands for the host's routes: it returns the port to an address, the
// zero Port if there is no route.
//
// On arrival, a rule's next hop replaces the destination for the host's routes; the rules are
// then tried where the packet leaves. On departure, a next hop does not lead to rules at another
// port (pf_route() of sys/net/pf.c tries them only for packets that come in). A copy precedes the
// packet itself, whose connection it may begin.
func (rt *Router) Forward(p Packet, via func(netip.Addr) Port) (out []Leaving) {
	p.Direction = pf.In
	j := rt.Judge(p)
	if j.Action != pf.Pass {
		return nil
	}
	if j.Divert != nil {
		return []Leaving{{Packet: j.Packet, Socket: j.Divert}}
	}
	if j.Copy.IsValid() {
		out = rt.leave(j.Packet, j.Copy, via)
		for i := range out {
			out[i].Copy = true
		}
	}
	to := j.Packet.Dst
	if j.Hop.IsValid() {
		to = j.Hop
	}
	return append(out, rt.leave(j.Packet, to, via)...)
}

// leave sends a packet out of the host, on its way to an address.
func (rt *Router) leave(p Packet, to netip.Addr, via func(netip.Addr) Port) (out []Leaving) {
	port := via(to)
	if port.Name == "" {
		return nil
	}
	p.Direction, p.Port, p.ReceivedOn, p.Tag = pf.Out, port, port, ""
	j := rt.Judge(p)
	if j.Action != pf.Pass {
		return nil
	}
	if j.Copy.IsValid() {
		if other := via(j.Copy); other.Name != "" {
			out = append(out, Leaving{Packet: j.Packet, Port: other, To: j.Copy, Copy: true})
		}
	}
	if j.Hop.IsValid() {
		to, port = j.Hop, via(j.Hop)
	}
	if port.Name == "" {
		return out
	}
	return append(out, Leaving{Packet: j.Packet, Port: port, To: to})
}
