// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"bascule/test/netlab"
)

var _ = openBSD.has("pf_fragment", pfFragment())

// fragmentRules pass packets with options, redirect to RDR_IN, and route to RTT_OUT.
func fragmentRules() string {
	rules := "block\npass inet6 proto icmp6 icmp6-type { neighbrsol neighbradv }\n"
	for _, six := range []bool{false, true} {
		net := func(place string) netip.Prefix { return nets(place)[b2i(six)] }
		for _, place := range []string{"PF_IN", "RT_IN", "ECO_IN", "RDR_IN"} {
			rules += fmt.Sprintf("pass to %v allow-opts\n", net(place))
		}
		rules += fmt.Sprintf("pass in to %v rdr-to %v allow-opts tag there\n", net("RDR_IN"), addressOf("ECO_IN", six)) +
			fmt.Sprintf("pass out %s nat-to %v allow-opts tagged there\n", []string{"inet", "inet6"}[b2i(six)], addressOf("PF_OUT", six)) +
			fmt.Sprintf("pass in to %v allow-opts tag way\n", net("RTT_OUT")) +
			fmt.Sprintf("pass out route-to %v allow-opts tagged way\n", addressOf("RT_IN", six))
	}
	return rules
}

// behindRt are the places of a case: eco, eco through a redirection, and through a rule's next hop.
var behindRt = []string{"ECO_IN", "RDR_IN", "RTT_OUT"}

func pfFragment() cases {
	standing["pf_fragment"] = fragmentRules()
	all := cases{}
	for _, six := range []bool{false, true} {
		add := func(name string, run func(c *chain)) {
			all[strings.Replace(name, "%", []string{"", "6"}[b2i(six)], 1)] = func(r *router) { run(chainOf(r, six)) }
		}
		each := func(name string, run func(c *chain, place string)) {
			add(name, func(c *chain) {
				for _, place := range behindRt {
					run(c, place)
				}
			})
		}
		add("run-ping%", func(c *chain) {
			for _, place := range append([]string{"SRC_OUT", "PF_IN", "PF_OUT", "RT_IN", "RT_OUT"}, behindRt...) {
				c.passes(ping(c.src, c.at(place)))
			}
		})
		add("run-fragping%", func(c *chain) {
			for _, place := range append([]string{"PF_IN", "PF_OUT", "RT_IN", "RT_OUT"}, behindRt...) {
				first := ping(c.src, c.at(place))
				if six && slices.Contains(behindRt, place) { // the sender has to learn the MTU
					first.size = 1400
					c.make(first, func(o outcome) bool { return o.answered || o.refused != nil }, false)
				}
				large := ping(c.src, c.at(place))
				large.size = 5000
				c.passes(large)
			}
		})
		each("run-ping%-mtu", func(c *chain, place string) { c.tooBig(place, 1500, farMTU) })
		each("run-ping%-cksum", func(c *chain, place string) { c.quotedSum(place, icmpOf(six)) })
		each("run-udp%-cksum", func(c *chain, place string) { c.quotedSum(place, layers.IPProtocolUDP) })
		each("run-frag%", func(c *chain, place string) {
			c.pieces(place, true, []cutting{{from: 0, to: 16, more: true}, {from: 16, to: 24}})
		})
		if !six { // the receiver decides whether overlapping fragments form a packet: see docs/pf.md
			continue
		}
		each("run-frag6-ext", func(c *chain, place string) {
			c.pieces(place, true, []cutting{{from: 0, to: 16, more: true, hop: true}, {from: 16, to: 24, hop: true}})
		})
		each("run-frag6-cutnew", func(c *chain, place string) {
			c.pieces(place, false, []cutting{{from: 0, to: 16, more: true}, {from: 8, to: 24, dummy: true}})
		})
		each("run-frag6-cutold", func(c *chain, place string) {
			c.pieces(place, false, []cutting{{from: 8, to: 24, dummy: true}, {from: 0, to: 16, more: true}})
		})
		each("run-frag6-dropold", func(c *chain, place string) {
			c.pieces(place, false, []cutting{{from: 0, to: 8, more: true}, {from: 16, to: 24, dummy: true, more: true}, {from: 8, to: 32}})
		})
	}
	return all
}

// quotedSum sends a packet that is too large for rt. The quote in the error has the packet's original
// checksum.
func (c *chain) quotedSum(place string, protocol layers.IPProtocol) {
	c.t.Helper()
	src, dst := c.way(place)
	load := bytes.Repeat([]byte{'a'}, 1452)
	c.made++
	var inner gopacket.SerializableLayer = c.echoLayer(c.made, load)
	if protocol == layers.IPProtocolUDP {
		inner = &together{&layers.UDP{SrcPort: layers.UDPPort(40000 + c.made), DstPort: 9}, load}
	}
	sent := c.frame(c.src, c.ip(src, dst, 64, protocol), inner)
	a := c.asks(sent)
	c.quotes(a, sent)
	at := 20
	if c.six {
		at = 40
	}
	sum := at + 2 // for ICMP
	if protocol == layers.IPProtocolUDP {
		sum = at + 6
	}
	if has, want := a.quote[sum:sum+2], sent[14+sum:14+sum+2]; string(has) != string(want) {
		c.t.Errorf("an error about a packet to %v quotes the checksum %x, should be %x", dst, has, want)
	}
}

// A cutting is a fragment of an echo request, with its range in units of one byte. In an overlapping
// one, the first eight bytes may differ.
type cutting struct {
	from, to    int
	more, dummy bool
	hop         bool // behind an empty hop-by-hop header
}

// pieces sends an echo request in fragments, in this order. It is answered with the same bytes, or
// not at all.
func (c *chain) pieces(place string, answered bool, list []cutting) {
	c.t.Helper()
	src, dst := c.way(place)
	end := 0
	for _, p := range list {
		end = max(end, p.to)
	}
	load := []byte("ABCDEFGHIJKLMNOPQRSTUVWX")[:end-8]
	c.made++
	id := c.made
	header := 20
	if c.six {
		header = 40
	}
	whole := []byte(c.frame(c.src, c.ip(src, dst, 64, icmpOf(c.six)), c.echoLayer(id, load)))[14+header:]
	var frames []netlab.Frame
	for _, p := range list {
		part := bytes.Clone(whole[p.from:p.to])
		if p.dummy {
			copy(part, "01234567")
		}
		frames = append(frames, c.fragment(src, dst, id, p, part))
	}
	c.gets(c.src)
	c.sends(c.src, frames...)
	// Their results have arrived before the result of this ping.
	c.passes(ping(c.src, dst))
	var got []answer
	look := func() bool {
		for _, p := range c.gets(c.src) {
			if a, ok := readAnswer(p); ok && a.echo && a.id == id {
				got = append(got, a)
			}
		}
		return len(got) > 0
	}
	if answered {
		c.WaitUntil(time.Now().Add(patience), "an answer", look)
	} else {
		look()
	}
	switch {
	case len(got) != b2i(answered):
		c.t.Errorf("%d answers come to fragments to %v, should be %d", len(got), dst, b2i(answered))
	case answered && !bytes.Equal(got[0].quote, load):
		c.t.Errorf("%q is answered to fragments to %v, should be %q", got[0].quote, dst, load)
	}
}

// fragment returns a fragment of ICMP with a part of it.
func (c *chain) fragment(src, dst netip.Addr, id uint16, p cutting, part []byte) netlab.Frame {
	c.t.Helper()
	if !c.six {
		h := ip4(src, dst, layers.IPProtocolICMPv4)
		h.Id, h.FragOffset = id, uint16(p.from/8)
		if p.more {
			h.Flags = layers.IPv4MoreFragments
		}
		return c.frame(c.src, h, gopacket.Payload(part))
	}
	next, between := layers.IPProtocolIPv6Fragment, []byte(nil)
	if p.hop {
		next = layers.IPProtocolIPv6HopByHop
		between = []byte{byte(layers.IPProtocolIPv6Fragment), 0, 1, 4, 0, 0, 0, 0} // PadN
	}
	place := uint16(p.from)
	if p.more {
		place |= 1
	}
	h := []byte{byte(layers.IPProtocolICMPv6), 0}
	h = binary.BigEndian.AppendUint16(h, place)
	h = binary.BigEndian.AppendUint32(h, uint32(id))
	return c.frame(c.src, ip6(src, dst, next), gopacket.Payload(append(append(between, h...), part...)))
}
