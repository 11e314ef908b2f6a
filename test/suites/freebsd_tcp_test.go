// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"net/netip"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

var _ = freeBSD.has("tcp", cases{
	"rst": func(r *router) {
		client, server := r.stations[0], r.stations[1]
		r.load("pass keep state")
		w, o := r.call(tcp(client, server.v4, 1234, server).bound(client.v4, 4321)), outcome{}
		defer w.close()
		r.Wait("the connection", func() bool {
			w.look(&o)
			return o.answered
		})
		established := func() {
			r.t.Helper()
			if got := r.states("10.1.0.2:4321 -> 10.1.1.2:1234", "ESTABLISHED:ESTABLISHED"); len(got) != 2 {
				r.t.Errorf("the states are %q", r.states())
			}
		}
		established()
		// An attacker who does not see the connection's sequence numbers.
		r.sends(server, r.frame(server, ip4(server.v4, client.v4, layers.IPProtocolTCP), &layers.TCP{SrcPort: 1234, DstPort: 4321, RST: true, Seq: 1}))
		established()
	},
})

var _ = freeBSD.has("tcp.py", cases{
	"TestTcp.test_challenge_ack": func(r *router) {
		client := r.stations[0]
		src := netip.MustParseAddr("10.1.0.3") // an address of no stack
		r.load("pass")
		r.must(r.Switch.Neighbour("em0", src, client.MAC[:]))
		var seq, ack uint32 = 1000, 0
		send := func(t layers.TCP, data string) []gopacket.Packet {
			r.t.Helper()
			t.SrcPort, t.DstPort, t.Window, t.Seq, t.Ack = 1234, 1234, 1000, seq, ack
			r.gets(client)
			r.sends(client, r.frame(client, ip4(src, client.gw4, layers.IPProtocolTCP), &t, gopacket.Payload(data)))
			return r.gets(client)
		}
		server := r.call(tcp(client, client.gw4, 1234, r.self)) // to get its listener
		defer server.close()
		r.Wait("the listener", func() bool {
			var o outcome
			server.look(&o)
			return o.arrived || o.answered
		})
		answer := layer[*layers.TCP](r, r.one(send(layers.TCP{SYN: true}, "")))
		if !answer.SYN || !answer.ACK {
			r.t.Fatalf("%+v", answer)
		}
		seq, ack = seq+1, answer.Seq+1
		send(layers.TCP{ACK: true}, "")
		send(layers.TCP{ACK: true, PSH: true}, "any")
		next := seq + 3
		seq, ack = 77777, 0 // the client has lost the connection
		challenge := layer[*layers.TCP](r, r.one(send(layers.TCP{SYN: true}, "")))
		if challenge.SYN || challenge.RST || !challenge.ACK || challenge.Ack != next || challenge.SrcPort != 1234 || challenge.DstPort != 1234 {
			r.t.Errorf("%+v", challenge)
		}
	},
})

var _ = freeBSD.has("names", cases{
	"names": func(r *router) {
		a := r.stations[2]
		rename := func(at *host, from, to string) {
			r.t.Helper()
			r.ip(at, "link set "+from+" down", "")
			r.ip(at, "link set "+from+" name "+to, "")
			r.ip(at, "link set "+to+" up", "")
		}
		// A veth of its own, whose ends get the same name.
		r.ip(r.self, "link add one type veth peer name other netns "+a.ns.Name, "")
		defer func() {
			for _, name := range []string{"one", "same"} { // whatever its present name is
				if l, err := r.Switch.Netlink().LinkByName(name); err == nil {
					r.must(r.Switch.Netlink().LinkDel(l))
				}
			}
		}()
		r.Bascule("port", "add", "br0", "one")
		rename(r.self, "one", "same")
		rename(a, "other", "same")
		r.load("set skip on same\nblock in on same")
		r.shows([]string{"-vsI"}, "same (skip)")
		r.must(r.Switch.Netlink().LinkDel(r.link(r.self, "same")))
		r.load("pass")
		r.passes(ping(r.stations[0], r.self.v4))
	},
})
