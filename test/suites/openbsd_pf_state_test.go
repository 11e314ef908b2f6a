// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// Connections between an address that no host has and a listener of the router. The client's packets
// are crafted. The packets to it are the listener's or pf's.
var _ = openBSD.has("pf_state", cases{
	// A SYN within a connection is answered by an acknowledgement with the connection's present
	// number.
	"run-challenge_ack.py": func(r *router) {
		c := begin(r, 1)
		c.send(layers.TCP{SYN: true, Seq: 1000000, Window: 0xffff}, "")
		if a := c.hears(); a.SYN || !a.ACK || a.RST || a.Seq != c.theirs {
			r.t.Errorf("a SYN within a connection is answered by %s, should be an acknowledgement with %d", said(a), c.theirs)
		}
	},
	// A reset with a number before a gap, while the other side has received more already.
	"run-beforegap_rst.py": func(r *router) {
		c := begin(r, 1)
		data := "abcdefgh01234567ABCDEFGH"
		c.send(layers.TCP{ACK: true, PSH: true, Seq: c.ours + 16, Ack: c.theirs, Window: 0xffff}, data[16:])
		if a := c.hears(); a.Ack != c.ours {
			r.t.Errorf("what comes behind a gap is answered by %s, should acknowledge %d", said(a), c.ours)
		}
		c.send(layers.TCP{ACK: true, PSH: true, Seq: c.ours, Ack: c.theirs, Window: 0xffff}, data[:8])
		if a := c.hears(); a.Ack != c.ours+8 {
			r.t.Errorf("what comes before a gap is answered by %s, should acknowledge %d", said(a), c.ours+8)
		}
		c.send(layers.TCP{ACK: true, RST: true, Seq: c.ours + 8, Ack: c.theirs, Window: 0xffff}, "")
		c.send(layers.TCP{SYN: true, Seq: 1<<24 + 1, Window: 0xffff}, "")
		if a := c.hears(); !a.SYN || !a.ACK || a.Ack != 1<<24+2 {
			r.t.Errorf("the port's next connection is answered by %s", said(a))
		}
	},
	// A reset that acknowledges 0, with a number in the window before the next one, is forged.
	"run-fakeack_rst.py": func(r *router) {
		c := begin(r, 100000)
		c.send(layers.TCP{ACK: true, RST: true, Seq: c.ours - 0x4000, Window: 0xffff}, "")
		c.send(layers.TCP{SYN: true, Seq: 1000000, Window: 0xffff}, "")
		if a := c.hears(); a.SYN || !a.ACK || a.RST || a.Seq != c.theirs {
			r.t.Errorf("behind a forged reset, a SYN is answered by %s, should be an acknowledgement with %d", said(a), c.theirs)
		}
	},
})

func said(p *layers.TCP) string {
	return fmt.Sprintf("SYN %t ACK %t RST %t, %d, acknowledges %d", p.SYN, p.ACK, p.RST, p.Seq, p.Ack)
}

// A crafted is a connection with a crafted client.
type crafted struct {
	*router
	from         *host
	client       netip.Addr
	port         uint16
	ours, theirs uint32 // the next sequence numbers
}

// begin opens a connection with both sides.
func begin(r *router, first uint32) *crafted {
	r.t.Helper()
	s := r.stations[0]
	c := &crafted{router: r, from: s, client: netip.MustParseAddr("10.9.0.9"), port: 40009, ours: first + 1}
	r.route(r.self, "10.9.0.0/24", s.v4)
	r.ip(s, "route add blackhole 10.9.0.0/24", "route del blackhole 10.9.0.0/24")
	r.load("block\npass inet6 proto icmp6\npass to 10.1.0.0/24")
	l, err := net.Listener(nil), error(nil)
	r.must(r.Switch.Do(func() error {
		l, err = net.Listen("tcp", "10.1.0.1:7")
		return err
	}))
	r.t.Cleanup(func() { l.Close() })
	c.send(layers.TCP{SYN: true, Seq: first, Window: 0xffff}, "")
	a := c.hears()
	if !a.SYN || !a.ACK || a.Ack != c.ours {
		r.t.Fatalf("a connection is answered by %s", said(a))
	}
	c.theirs = a.Seq + 1
	c.send(layers.TCP{ACK: true, Seq: c.ours, Ack: c.theirs, Window: 0xffff}, "")
	return c
}

// send sends a segment of the client.
func (c *crafted) send(t layers.TCP, data string) {
	c.t.Helper()
	t.SrcPort, t.DstPort = layers.TCPPort(c.port), 7
	c.gets(c.from)
	c.sends(c.from, c.frame(c.from, ip4(c.client, c.self.v4, layers.IPProtocolTCP), &t, gopacket.Payload(data)))
}

// hears returns the next segment that arrives at the client.
func (c *crafted) hears() (got *layers.TCP) {
	c.t.Helper()
	c.WaitUntil(time.Now().Add(patience), "a segment of the router's", func() bool {
		for _, p := range c.gets(c.from) {
			if t, ok := p.Layer(layers.LayerTypeTCP).(*layers.TCP); ok && got == nil {
				got = t
			}
		}
		return got != nil
	})
	return got
}
