// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"bascule/test/netlab"
)

var _ = openBSD.has("pf_forward", pfForward())

// forwardRules returns the rules that define the places.
func forwardRules() string {
	line := func(format string, of ...string) string {
		var text strings.Builder
		for _, six := range []bool{false, true} {
			values := make([]any, len(of))
			for i, name := range of {
				if place, ok := strings.CutSuffix(name, "/"); ok {
					values[i] = nets(place)[b2i(six)]
				} else {
					values[i] = addressOf(name, six)
				}
			}
			fmt.Fprintf(&text, format+"\n", values...)
		}
		return text.String()
	}
	rules := "block\npass inet6 proto icmp6 icmp6-type { neighbrsol neighbradv }\n"
	for _, place := range []string{"PF_IN", "RT_IN", "ECO_IN", "ECO_OUT", "RDR_IN", "RDR_OUT"} {
		rules += line("pass to %v", place+"/")
	}
	return rules +
		line("pass in to { %v %v } rdr-to %v", "RDR_IN/", "RDR_OUT/", "ECO_IN") +
		line("pass out to { %v %v } nat-to %v", "ECO_OUT/", "RDR_OUT/", "PF_OUT") +
		fmt.Sprintf("pass in to %v af-to inet6 from %v to %v tag other\npass out inet6 tagged other\n",
			nets("AF_IN")[0], addressOf("PF_OUT", true), netip.PrefixFrom(addressOf("ECO_IN", true), 120).Masked()) +
		fmt.Sprintf("pass in to %v af-to inet from %v to %v tag other\npass out inet tagged other\n",
			netip.PrefixFrom(addressOf("AF_IN", true), 64).Masked(), addressOf("PF_OUT", false), nets("ECO_IN")[0]) +
		line("pass in to %v route-to %v tag way\n", "RTT_IN/", "RT_IN") + "pass out tagged way\n" +
		line("pass in to %v tag way-out\npass out route-to %v tagged way-out\n", "RTT_OUT/", "RT_IN") +
		line("pass in from %v reply-to %v tag back\n", "RPT_IN/", "SRC_OUT") + "pass out tagged back\n" +
		line("pass in from %v tag back-out\npass out reply-to %v tagged back-out\n", "RPT_OUT/", "SRC_OUT")
}

// pfForward returns the cases: pings to the places, and for those behind rt, echoes that are too
// large for the router and for rt, datagrams, streams and traceroutes.
func pfForward() cases {
	standing["pf_forward"] = forwardRules()
	all := cases{}
	for _, six := range []bool{false, true} {
		inet := []string{"inet", "inet6"}[b2i(six)]
		add := func(kind, place string, run func(c *chain, place string)) {
			all["run-"+kind+"-"+inet+"-"+place] = func(r *router) {
				run(chainOf(r, six), place)
			}
		}
		for _, place := range []string{"SRC_OUT", "PF_IN", "PF_OUT", "RT_IN", "RT_OUT", "ECO_IN", "ECO_OUT", "RDR_IN", "RDR_OUT", "AF_IN",
			"RTT_IN", "RTT_OUT", "RPT_IN", "RPT_OUT"} {
			add("ping", place, forwardPing)
		}
		for _, place := range []string{"ECO_IN", "ECO_OUT", "RDR_IN", "RDR_OUT", "AF_IN", "RTT_IN", "RTT_OUT", "RPT_IN", "RPT_OUT"} {
			add("ping-mtu-1300", place, forwardTooBigThere)
			add("udp", place, forwardUDP)
			add("tcp", place, forwardTCP)
			if place == "RPT_OUT" { // rules do not apply to the router's own errors: see docs/pf.md
				continue
			}
			add("ping-mtu-1400", place, forwardTooBigHere)
			add("traceroute-icmp", place, forwardTraceICMP)
			add("traceroute-udp", place, forwardTraceUDP)
		}
	}
	return all
}

// way returns the source and destination of a packet for a place.
func (c *chain) way(place string) (src, dst netip.Addr) {
	if strings.HasPrefix(place, "RPT") {
		return c.at(place), c.at("ECO_IN")
	}
	return c.at("SRC_OUT"), c.at(place)
}

// reached returns eco's address at which a packet for a place arrives.
func (c *chain) reached(place string) netip.Addr {
	switch place {
	case "AF_IN":
		return addressOf("ECO_IN", !c.six)
	case "RDR_IN", "RDR_OUT", "RPT_IN", "RPT_OUT":
		return c.at("ECO_IN")
	}
	return c.at(place)
}

// seenFrom returns the source that eco sees.
func (c *chain) seenFrom(place string) netip.Addr {
	switch place {
	case "AF_IN":
		return addressOf("PF_OUT", !c.six)
	case "ECO_OUT":
		return c.at("PF_OUT")
	}
	src, _ := c.way(place)
	return src
}

func forwardPing(c *chain, place string) {
	src, dst := c.way(place)
	c.passes(call{proto: "ping", from: c.src, src: netip.AddrPortFrom(src, 0), to: netip.AddrPortFrom(dst, 0)})
}

// tooBig sends an echo of size bytes, and expects an error with an MTU of `mtu`.
func (c *chain) tooBig(place string, size, mtu int) {
	c.t.Helper()
	src, dst := c.way(place)
	header := 28
	if c.six {
		header = 48
	}
	c.made++
	sent := c.echo(src, dst, 64, c.made, size-header)
	a := c.asks(sent)
	kind, code := uint8(layers.ICMPv4TypeDestinationUnreachable), uint8(layers.ICMPv4CodeFragmentationNeeded)
	if c.six {
		kind, code = layers.ICMPv6TypePacketTooBig, 0
	}
	if a.kind != kind || a.code != code || a.mtu != mtu {
		c.t.Fatalf("of %d bytes to %v there comes type %d code %d with an MTU of %d, should be %d", size, dst, a.kind, a.code, a.mtu, mtu)
	}
	c.quotes(a, sent)
}

// between converts an MTU behind a translation of the family to the MTU in front of it.
func (c *chain) between(place string, mtu int) int {
	switch {
	case place != "AF_IN":
		return mtu
	case c.six:
		return mtu + 20
	}
	return mtu - 20
}

func forwardTooBigHere(c *chain, place string) {
	const mtu = 1400
	c.router.ip(c.self, fmt.Sprintf("link set em1 mtu %d", mtu), "link set em1 mtu 1500")
	c.tooBig(place, 1500, c.between(place, mtu))
}

func forwardTooBigThere(c *chain, place string) {
	c.tooBig(place, c.between(place, 1400), c.between(place, farMTU))
}

func forwardUDP(c *chain, place string) {
	src, dst := c.way(place)
	var server, client *net.UDPConn
	c.must(c.eco.ns.Do(func() (err error) {
		server, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(c.reached(place), 7)))
		return err
	}))
	defer server.Close()
	c.must(c.src.ns.Do(func() (err error) {
		client, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(src, 0)), net.UDPAddrFromAddrPort(netip.AddrPortFrom(dst, 7)))
		return err
	}))
	defer client.Close()
	c.must(errors.Join(server.SetDeadline(time.Now().Add(patience)), client.SetDeadline(time.Now().Add(patience))))
	_, err := client.Write([]byte("forward"))
	c.must(err)
	buf := make([]byte, 100)
	n, from, err := server.ReadFromUDPAddrPort(buf)
	c.must(err)
	if want := c.seenFrom(place); from.Addr().Unmap() != want {
		c.t.Errorf("eco sees %v, should be %v", from, want)
	}
	_, err = server.WriteToUDPAddrPort(buf[:n], from)
	c.must(err)
	if n, err = client.Read(buf); err != nil || string(buf[:n]) != "forward" {
		c.t.Errorf("%q comes back: %v", buf[:n], err)
	}
}

// forwardTCP sends 200000 bytes and gets them back. At first, eco's packets are larger than the
// link to rt permits.
func forwardTCP(c *chain, place string) {
	src, dst := c.way(place)
	c.stream(src, netip.AddrPortFrom(dst, 7), netip.AddrPortFrom(c.reached(place), 7), 200000)
}

// stream sends size bytes over TCP to eco and back.
func (c *chain) stream(src netip.Addr, to, at netip.AddrPort, size int) {
	c.t.Helper()
	var l net.Listener
	c.must(c.eco.ns.Do(func() (err error) {
		l, err = net.ListenTCP("tcp", net.TCPAddrFromAddrPort(at))
		return err
	}))
	defer l.Close()
	echoed := make(chan error, 1)
	go func() {
		conn, err := l.Accept()
		if err == nil {
			_ = conn.SetDeadline(time.Now().Add(patience))
			_, err = io.Copy(conn, conn)
			err = errors.Join(err, conn.Close())
		}
		echoed <- err
	}()
	sent := bytes.Repeat([]byte("forward "), size/8)
	var conn net.Conn
	c.must(c.src.ns.Do(func() (err error) {
		d := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(netip.AddrPortFrom(src, 0))}
		conn, err = d.Dial("tcp", to.String())
		return err
	}))
	defer conn.Close()
	c.must(conn.SetDeadline(time.Now().Add(patience)))
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	got, err := io.ReadAll(conn)
	c.must(errors.Join(err, <-wrote, <-echoed))
	if !bytes.Equal(got, sent) {
		c.t.Errorf("%d bytes come back of %d, or others", len(got), len(sent))
	}
}

func forwardTraceICMP(c *chain, place string) {
	src, dst := c.way(place)
	c.trace(place, func(hops uint8, n int) []byte { return []byte(c.echo(src, dst, hops, uint16(1000+n), 12)) })
}

func forwardTraceUDP(c *chain, place string) {
	src, dst := c.way(place)
	c.trace(place, func(hops uint8, n int) []byte {
		return []byte(c.frame(c.src, c.ip(src, dst, hops, layers.IPProtocolUDP),
			&layers.UDP{SrcPort: 40000, DstPort: layers.UDPPort(33434 + n)}, gopacket.Payload("trace to a place")))
	})
}

// trace sends three probes for each of three hops. Each is answered: by the router, by rt, and by
// the place itself. Errors quote the original probe.
func (c *chain) trace(place string, probe func(hops uint8, n int) []byte) {
	c.t.Helper()
	_, dst := c.way(place)
	exceeded := uint8(layers.ICMPv4TypeTimeExceeded)
	if c.six {
		exceeded = layers.ICMPv6TypeTimeExceeded
	}
	n := 0
	for hop := uint8(1); hop <= 3; hop++ {
		for range 3 {
			sent := netlab.Frame(probe(hop, n))
			n++
			a := c.asks(sent)
			switch {
			case hop < 3 && a.kind != exceeded:
				c.t.Errorf("hop %d answers with type %d", hop, a.kind)
			case hop == 3 && (a.kind == exceeded || a.from != dst):
				c.t.Errorf("the last hop is %v with type %d, should be %v", a.from, a.kind, dst)
			}
			if !a.echo {
				c.quotes(a, sent)
			}
		}
	}
}
