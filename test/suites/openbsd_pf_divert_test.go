// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"bascule/test/netlab"
)

// A socket of the router receives packets for an address that no host has (to), or connects from
// such an address (reply).
var _ = openBSD.has("pf_divert", pfDivert())

// A diverted is one side of a family's cases: the addresses of the station, and an address that no host has.
type diverted struct {
	*router
	station     *host
	local, fake netip.Addr
	six         bool
}

// diverts has the routers that accept diverted packets as their own.
var diverts struct {
	sync.Mutex
	of map[*router]bool
}

func divertOf(r *router, six bool) *diverted {
	r.t.Helper()
	diverts.Lock()
	defer diverts.Unlock()
	if !diverts.of[r] {
		if diverts.of == nil {
			diverts.of = map[*router]bool{}
		}
		r.must(r.Switch.Do(func() error { return sysctl("ipv6/conf/lo/disable_ipv6", "0") }))
		for _, family := range []string{"-4", "-6"} {
			r.run(r.self, "ip", family, "rule", "add", "fwmark", "0xba5cd1", "lookup", "100")
			r.run(r.self, "ip", family, "route", "add", "local", "default", "dev", "lo", "table", "100")
		}
		diverts.of[r] = true
	}
	d := &diverted{router: r, station: r.stations[0], local: r.stations[0].v4, fake: netip.MustParseAddr("10.9.0.9"), six: six}
	if six {
		d.local, d.fake = d.station.v6, netip.MustParseAddr("2001:db8:9::9")
	}
	return d
}

func pfDivert() cases {
	standing["pf_divert"] = fmt.Sprintf(`block
pass inet6 proto icmp6 icmp6-type { neighbrsol neighbradv }
pass in on em0 inet proto { tcp udp } from 10.1.0.2 to 10.9.0.9 divert-to 127.0.0.1 port %[1]d
pass in on em0 inet6 proto { tcp udp } from 2001:db8:1::2 to 2001:db8:9::9 divert-to ::1 port %[1]d
pass out on em0 proto { tcp udp } from { 10.9.0.9 2001:db8:9::9 } to { 10.1.0.2 2001:db8:1::2 } divert-reply`, divertPort)
	all := cases{}
	for _, six := range []bool{false, true} {
		add := func(name string, run func(d *diverted)) {
			all["run-"+[]string{"inet", "inet6"}[b2i(six)]+"-"+name] = func(r *router) { run(divertOf(r, six)) }
		}
		for _, proto := range []string{"tcp", "udp"} {
			for _, first := range []string{"to", "reply", "reply-to"} {
				if proto == "tcp" && first == "reply-to" {
					continue
				}
				add("args-"+proto+"-"+first, func(d *diverted) { d.talk(proto, first, 0, 0) })
				for _, second := range []string{"to", "reply", "reply-to"} {
					if proto == "tcp" && second == "reply-to" || proto == "udp" && first != "to" && second == "to" {
						continue // see docs/pf.md
					}
					// The same ports again, in the other direction.
					add("reuse-"+proto+"-"+first+"-"+second, func(d *diverted) {
						from, to := d.talk(proto, first, 0, 0)
						d.talk(proto, second, to, from)
					})
				}
			}
		}
	}
	return all
}

// divertPort is the port of the router's listener.
const divertPort = 8021

// talk has both sides communicate through a rule of a kind, with these ports, or any if they are 0.
// It returns the ports.
func (d *diverted) talk(proto, kind string, from, to uint16) (uint16, uint16) {
	d.t.Helper()
	if to == 0 {
		to = 20077
	}
	dial := func(at *host, a netip.Addr, dst netip.Addr, transparent bool) net.Conn {
		d.t.Helper()
		dialer := net.Dialer{Timeout: patience, Control: netlab.Transparent}
		if !transparent {
			dialer.Control = nil
		}
		if dialer.LocalAddr = net.Addr(net.TCPAddrFromAddrPort(netip.AddrPortFrom(a, from))); proto == "udp" {
			dialer.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(a, from))
		}
		var conn net.Conn
		d.must(at.ns.Do(func() (err error) {
			conn, err = dialer.Dial(proto, netip.AddrPortFrom(dst, to).String())
			return err
		}))
		return conn
	}
	if kind == "to" {
		loopback := []string{"127.0.0.1", "::1"}[b2i(d.six)]
		return d.speak(proto, d.self, netip.AddrPortFrom(netip.MustParseAddr(loopback), divertPort), netip.AddrPortFrom(d.fake, to), true,
			func() net.Conn { return dial(d.station, d.local, d.fake, false) }), to
	}
	at := netip.AddrPortFrom(d.local, to)
	return d.speak(proto, d.station, at, at, kind != "reply" || proto == "tcp",
		func() net.Conn { return dial(d.self, d.fake, d.local, true) }), to
}

// speak sends data over a connection to a listener, which sees the original destination, and sends
// the data back if the connection is answered. It returns the connection's port. Both sockets are
// closed then, and do not hold the port.
func (d *diverted) speak(proto string, at *host, listen, asked netip.AddrPort, answered bool, dial func() net.Conn) (port uint16) {
	d.t.Helper()
	config := net.ListenConfig{Control: netlab.Transparent}
	late := time.Now().Add(patience)
	buf := make([]byte, 100)
	say := func(c net.Conn, text string) {
		d.t.Helper()
		_, err := c.Write([]byte(text))
		d.must(err)
	}
	hear := func(c net.Conn, text string) {
		d.t.Helper()
		d.must(c.SetDeadline(late))
		n, err := c.Read(buf)
		if err != nil || string(buf[:n]) != text {
			d.t.Fatalf("%q comes from %v: %v", buf[:n], c.RemoteAddr(), err)
		}
	}
	if proto == "tcp" {
		var l net.Listener
		d.must(at.ns.Do(func() (err error) {
			l, err = config.Listen(context.Background(), "tcp", listen.String())
			return err
		}))
		defer l.Close()
		conn := dial()
		in, err := l.Accept()
		d.must(err)
		if got := in.LocalAddr().(*net.TCPAddr).AddrPort(); got != asked {
			d.t.Errorf("the socket sees %v, should see %v", got, asked)
		}
		say(conn, "ask")
		hear(in, "ask")
		say(in, "answer")
		hear(conn, "answer")
		port = conn.LocalAddr().(*net.TCPAddr).AddrPort().Port()
		for _, c := range []net.Conn{conn, in} { // a reset ends both
			d.must(errors.Join(c.(*net.TCPConn).SetLinger(0), c.Close()))
		}
		d.settle()
		return port
	}
	var l *net.UDPConn
	d.must(at.ns.Do(func() error {
		c, err := config.ListenPacket(context.Background(), "udp", listen.String())
		if err == nil {
			l = c.(*net.UDPConn)
		}
		return err
	}))
	defer l.Close()
	conn := dial()
	defer conn.Close()
	say(conn, "ask")
	d.must(l.SetDeadline(late))
	more := make([]byte, 200)
	n, size, _, from, err := l.ReadMsgUDPAddrPort(buf, more)
	d.must(err)
	to, err := netlab.OriginalDst(more[:size])
	if d.must(err); string(buf[:n]) != "ask" || to != asked {
		d.t.Errorf("the socket sees %q to %v, should see it to %v", buf[:n], to, asked)
	}
	if answered && at == d.station {
		_, err = l.WriteToUDPAddrPort([]byte("answer"), from)
		d.must(err)
		hear(conn, "answer")
	}
	return from.Port()
}
