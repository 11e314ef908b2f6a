// SPDX-License-Identifier: BSD-2-Clause

// Package rulesets tests with real connections what pf's files mean. The files resemble users' files. Each file comes
// with its interfaces.
package rulesets

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// patience is the time limit for events that have to happen.
const patience = time.Minute

func TestMain(m *testing.M) { os.Exit(netlab.Main(m)) }

// A segment is a part of the network with one station.
type segment struct {
	name     string // name of the interface or port
	host     bool   // a host port, with these addresses; else a port of the bridge
	own      []netip.Prefix
	gateway  string // for a port: the host port in whose VLAN it is, "" for none
	stations []netip.Prefix
	by       []netip.Addr // default routes of the station
	end      *netlab.End
	port     string // port of the station on the bridge
}

// A network is the network of a file.
type network struct {
	t        *testing.T
	lab      *netlab.Lab
	segments []*segment
	uplink   string // interface of the router's default route, "" for none
	pfPorts  string
}

// manner is the folder of the files. The tests of package pf describe their other parts.
const manner = "../../pf/testdata/manner"

// TestFiles loads each file on a switch. Its stations and its host communicate as the part "traffic" of the file says,
// whose lines are probes, or describe the network:
//
//	port NAME [at HOST]                a port of the bridge with a station, in the VLAN of a host port
//	station NAME ADDRESS [by ADDRESS]  an address, and a default route, of the station at a port
//	uplink NAME                        the interface of the default route; em0 without this line
//	pf-ports VALUE                     the setting of the bridge; host without this line, if it has host ports
//
// The part "interfaces" names the host ports, with a station behind each.
func TestFiles(t *testing.T) {
	names, err := filepath.Glob(manner + "/*.txtar")
	if err != nil || len(names) == 0 {
		t.Fatalf("no files: %v", err)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			archive, err := txtar.ParseFile(name)
			if err != nil {
				t.Fatal(err)
			}
			n := &network{t: t, lab: netlab.New(t), uplink: "em0"}
			parts := map[string]string{}
			for _, f := range archive.Files {
				parts[f.Name] = string(f.Data)
			}
			probes := n.read(parts["interfaces"], parts["traffic"])
			if len(probes) == 0 {
				t.Fatal("the file has no traffic")
			}
			n.build()
			n.load(archive)
			for _, line := range probes {
				n.probe(line)
			}
		})
	}
}

// lines returns the lines of a part without comments and empty lines.
func lines(text string) (list []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" && line[0] != '#' {
			list = append(list, line)
		}
	}
	return list
}

// read reads the network of a file, and returns the lines with probes.
func (n *network) read(interfaces, traffic string) (probes []string) {
	n.t.Helper()
	for _, line := range lines(interfaces) {
		f := strings.Fields(line)
		// the host's own addresses, and a group that the default route determines
		if f[0] == "lo0" || f[1] == "group" {
			continue
		}
		p := netip.MustParsePrefix(f[1])
		if p.IsSingleIP() { // a point-to-point link is a network here
			p = netip.PrefixFrom(p.Addr(), 24)
		}
		s := n.find(f[0])
		if s == nil {
			s = &segment{name: f[0], host: true}
			n.segments = append(n.segments, s)
		}
		other := p.Masked().Addr()
		if p.Bits() < p.Addr().BitLen()-1 { // RFC 3021
			other = other.Next()
		}
		if other == p.Addr() {
			other = other.Next()
		}
		s.own, s.stations, s.by = append(s.own, p), append(s.stations, netip.PrefixFrom(other, p.Bits())), append(s.by, p.Addr())
		n.pfPorts = "host"
	}
	for _, line := range lines(traffic) {
		f := strings.Fields(line)
		switch {
		case f[0] == "port" && len(f) == 2:
			n.segments = append(n.segments, &segment{name: f[1]})
		case f[0] == "port" && len(f) == 4:
			n.segments = append(n.segments, &segment{name: f[1], gateway: f[3]})
		case f[0] == "station":
			s := n.segment(f[1])
			s.stations = append(s.stations, netip.MustParsePrefix(f[2]))
			if len(f) == 5 {
				s.by = append(s.by, netip.MustParseAddr(f[4]))
			}
		case f[0] == "uplink":
			n.uplink = f[1]
		case f[0] == "pf-ports":
			n.pfPorts = f[1]
		default:
			probes = append(probes, line)
		}
	}
	return probes
}

func (n *network) find(name string) *segment {
	if i := slices.IndexFunc(n.segments, func(s *segment) bool { return s.name == name }); i >= 0 {
		return n.segments[i]
	}
	return nil
}

func (n *network) segment(name string) *segment {
	n.t.Helper()
	s := n.find(name)
	if s == nil {
		n.t.Fatalf("there is no %s", name)
	}
	return s
}

func (n *network) must(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

func sysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644)
}

// build makes the switch, its stations and all addresses.
func (n *network) build() {
	n.t.Helper()
	n.must(n.lab.Switch.Do(func() error {
		return errors.Join(sysctl("ipv4/ip_forward", "1"), sysctl("ipv6/conf/all/forwarding", "1"),
			sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/default/rp_filter", "0"),
			sysctl("ipv6/conf/default/accept_dad", "0"), sysctl("ipv6/conf/default/disable_ipv6", "0"))
	}))
	vlans := map[string]int{}
	file := "bridges:\n  br0:\n"
	if n.pfPorts != "" {
		file += "    vlan-filtering: on\n    pf-ports: " + n.pfPorts + "\n"
	}
	file += "    ports:\n"
	for i, s := range n.segments {
		vlan := ""
		if vlans[s.name] = 10 + i; s.gateway != "" {
			vlans[s.name] = vlans[s.gateway]
		}
		if n.pfPorts != "" {
			vlan = fmt.Sprintf("pvid: %d", vlans[s.name])
		}
		if s.host {
			var addresses []string
			for _, p := range s.own {
				addresses = append(addresses, strconv.Quote(p.String()))
			}
			file += fmt.Sprintf("      %s: {type: host, route: on, %s, addresses: [%s]}\n", s.name, vlan, strings.Join(addresses, ", "))
		}
		if s.host && slices.ContainsFunc(n.segments, func(o *segment) bool { return o.gateway == s.name }) {
			continue // its stations have ports of their own
		}
		s.end = n.lab.NewEnd(n.lab.NewNamespace())
		if s.port = s.end.Port; !s.host {
			n.rename(s)
		}
		file += fmt.Sprintf("      %s: {%s}\n", s.port, vlan)
	}
	path := filepath.Join(n.t.TempDir(), "switch.yaml")
	n.must(os.WriteFile(path, []byte(file), 0o644))
	n.lab.Bascule("apply", path)
	for _, s := range n.segments {
		if s.host {
			n.lab.Wait(s.name+" to be up", func() bool {
				l, err := n.lab.Switch.Netlink().LinkByName(s.name)
				return err == nil && l.Attrs().OperState == netlink.OperUp
			})
		}
		if s.end == nil {
			continue
		}
		n.must(s.end.Namespace.Do(func() error {
			dir := "ipv6/conf/" + s.end.Ifname + "/"
			return errors.Join(sysctl(dir+"accept_dad", "0"), sysctl(dir+"router_solicitations", "0"), sysctl(dir+"accept_ra", "0"),
				sysctl(dir+"disable_ipv6", "0"), sysctl("ipv6/conf/lo/disable_ipv6", "0"))
		}))
		lo, err := s.end.Namespace.Netlink().LinkByName("lo")
		n.must(err)
		n.must(s.end.Namespace.Netlink().LinkSetUp(lo))
		for _, p := range s.stations {
			n.address(s.end.Namespace, s.end.Ifname, p)
		}
		for _, a := range s.by {
			n.route(s.end.Namespace, a)
		}
	}
	if s := n.find(n.uplink); s != nil && s.host {
		for _, p := range s.stations {
			n.route(n.lab.Switch, p.Addr())
		}
	}
}

// rename gives a port its name in the file.
func (n *network) rename(s *segment) {
	n.t.Helper()
	nl := n.lab.Switch.Netlink()
	l, err := nl.LinkByName(s.end.Port)
	n.must(err)
	n.must(nl.LinkSetDown(l))
	s.port = s.name
	n.must(nl.LinkSetName(l, s.port))
	n.must(nl.LinkSetUp(l))
	n.lab.Keep(s.port)
}

// address adds an address to an interface, unless it exists.
func (n *network) address(ns *ends.Namespace, ifname string, p netip.Prefix) {
	n.t.Helper()
	l, err := ns.Netlink().LinkByName(ifname)
	n.must(err)
	n.must(ns.Netlink().LinkSetUp(l))
	ip := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	err = ns.Netlink().AddrAdd(l, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD})
	if !errors.Is(err, unix.EEXIST) {
		n.must(err)
	}
}

// route adds a default route through an address to a namespace.
func (n *network) route(ns *ends.Namespace, by netip.Addr) {
	n.t.Helper()
	bits := by.BitLen()
	all := &net.IPNet{IP: make(net.IP, bits/8), Mask: net.CIDRMask(0, bits)}
	err := ns.Netlink().RouteAdd(&netlink.Route{Dst: all, Gw: by.AsSlice()})
	if !errors.Is(err, unix.EEXIST) {
		n.must(err)
	}
}

// load loads the file, and the contents of its anchors and tables.
func (n *network) load(archive *txtar.Archive) {
	n.t.Helper()
	dir := n.t.TempDir()
	path := func(name string) string { return filepath.Join(dir, strings.ReplaceAll(name, "/", "_")) }
	var conf string
	var own []string // files that the file refers to
	for _, f := range archive.Files {
		n.must(os.WriteFile(path(f.Name), f.Data, 0o644))
		if f.Name == "pf.conf" {
			conf = string(f.Data)
		} else if strings.HasPrefix(f.Name, "/") {
			own = append(own, f.Name)
		}
	}
	for _, name := range own {
		conf = strings.ReplaceAll(conf, strconv.Quote(name), strconv.Quote(path(name)))
	}
	n.must(os.WriteFile(path("pf.conf"), []byte(conf), 0o644))
	pfctl := func(args ...string) {
		n.t.Helper()
		r, err := n.lab.Run(append([]string{"pfctl", "-q"}, args...)...)
		n.must(err)
		if r.Exit != 0 {
			n.t.Fatal(r)
		}
	}
	pfctl("-f", path("pf.conf"))
	for _, f := range archive.Files {
		if anchor, ok := strings.CutPrefix(f.Name, "anchor:"); ok {
			pfctl("-a", anchor, "-f", path(f.Name))
		} else if table, ok := strings.CutPrefix(f.Name, "table:"); ok {
			pfctl("-t", table, "-T", "add", "-f", path(f.Name))
		}
	}
}

// A receiver is the place where a probe should arrive.
type receiver struct {
	ns *ends.Namespace
	at netip.AddrPort
}

// place returns the namespace of an address: the host, a station, a station's network, or behind the default route.
func (n *network) place(a netip.Addr) *ends.Namespace {
	n.t.Helper()
	is := func(p netip.Prefix) bool { return p.Addr() == a }
	for _, s := range n.segments {
		if slices.ContainsFunc(s.own, is) {
			return n.lab.Switch
		}
	}
	for _, has := range []func(netip.Prefix) bool{is, func(p netip.Prefix) bool { return p.Contains(a) }} {
		for _, s := range n.segments {
			if s.end != nil && slices.ContainsFunc(s.stations, has) {
				return s.end.Namespace
			}
		}
	}
	if s := n.find(n.uplink); s != nil {
		return s.end.Namespace
	}
	n.t.Fatalf("%v is nowhere", a)
	return nil
}

// has adds an address to a namespace, unless the network has the address already.
func (n *network) has(ns *ends.Namespace, a netip.Addr) {
	n.t.Helper()
	if a.IsLoopback() {
		return
	}
	ifname, bits := "lo", a.BitLen()
	for _, s := range n.segments {
		if slices.ContainsFunc(slices.Concat(s.own, s.stations), func(p netip.Prefix) bool { return p.Addr() == a }) {
			return
		}
		for _, p := range s.stations {
			if s.end != nil && s.end.Namespace == ns && p.Contains(a) {
				ifname, bits = s.end.Ifname, p.Bits()
			}
		}
	}
	n.address(ns, ifname, netip.PrefixFrom(a, bits))
}

// A probe is one packet or connection, and its expected result:
//
//	FROM[(ADDRESS)] tcp|udp|ping ADDRESS[:PORT] pass [from ADDRESS] [at ADDRESS[:PORT]] [on NAME]
//	FROM[(ADDRESS)] tcp|udp|ping ADDRESS[:PORT] block [at ADDRESS[:PORT]]
//
// FROM is the station at an interface or port, or host. The address after "from" is the source that the receiver sees.
// "at" and "on" name the receiver, if it is not the destination, or not behind the default route.
type probe struct {
	from     *ends.Namespace
	source   netip.Addr // the zero value for any
	protocol string
	to       netip.AddrPort
	pass     bool
	seen     netip.Addr // the zero value for any
	receiver receiver
}

func (n *network) parseProbe(line string) (p probe) {
	n.t.Helper()
	f := strings.Fields(line)
	if len(f) < 4 {
		n.t.Fatalf("no probe: %s", line)
	}
	name, source, _ := strings.Cut(strings.TrimSuffix(f[0], ")"), "(")
	if p.from = n.lab.Switch; name != "host" {
		p.from = n.segment(name).end.Namespace
	}
	if source != "" {
		p.source = netip.MustParseAddr(source)
		n.has(p.from, p.source)
	}
	address := func(text string) netip.AddrPort {
		if a, err := netip.ParseAddr(text); err == nil {
			return netip.AddrPortFrom(a, 0)
		}
		a, err := netip.ParseAddrPort(text)
		n.must(err)
		return a
	}
	p.protocol, p.to, p.pass = f[1], address(f[2]), f[3] == "pass"
	p.receiver.at = p.to
	for f = f[4:]; len(f) > 1; {
		switch {
		case f[0] == "from":
			p.seen, f = netip.MustParseAddr(f[1]), f[2:]
		case f[0] == "at":
			p.receiver.at, f = address(f[1]), f[2:]
		case f[0] == "on":
			p.receiver.ns, f = n.segment(f[1]).end.Namespace, f[2:]
		default:
			n.t.Fatalf("no probe: %s", line)
		}
	}
	switch {
	case p.receiver.ns != nil:
	case p.receiver.at.Addr().IsLoopback():
		p.receiver.ns = n.lab.Switch
	default:
		p.receiver.ns = n.place(p.receiver.at.Addr())
	}
	n.has(p.receiver.ns, p.receiver.at.Addr())
	return p
}

// drops returns the number of packets that pf has dropped.
func (n *network) drops() (count uint64) {
	n.t.Helper()
	for _, p := range n.lab.Ports("br0") {
		for reason, k := range p.Drops {
			if reason == "ether" || reason == "pf" || strings.HasPrefix(reason, "pf-") {
				count += k
			}
		}
	}
	return count
}

// An outcome is the result of a probe.
type outcome struct {
	passed bool
	seen   netip.Addr
	err    error
}

// probe sends the probe of a line and compares its result.
func (n *network) probe(line string) {
	n.t.Helper()
	p := n.parseProbe(line)
	before := n.drops()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	became := make(chan outcome, 1)
	ways := map[string]func(context.Context, probe) outcome{"tcp": n.tcp, "udp": n.udp, "ping": n.ping}
	go func() { became <- ways[p.protocol](ctx, p) }()
	var got outcome
	for done := false; !done; {
		select {
		case got = <-became:
			done = true
		case <-time.After(20 * time.Millisecond):
			if !p.pass && n.drops() > before { // no answer will come
				cancel()
			}
		}
	}
	switch {
	case got.passed != p.pass:
		n.t.Errorf("%s: passed is %t (%v)", line, got.passed, got.err)
	case p.pass && p.seen.IsValid() && got.seen != p.seen:
		n.t.Errorf("%s: the receiver sees %v", line, got.seen)
	}
}

// dial opens the probe's socket, from the probe's address if it has one. The socket stops waiting when ctx ends.
func (p probe) dial(ctx context.Context, source net.Addr) (conn net.Conn, err error) {
	err = p.from.Do(func() (err error) {
		d := net.Dialer{}
		if p.source.IsValid() {
			d.LocalAddr = source
		}
		conn, err = d.DialContext(ctx, p.protocol, p.to.String())
		return err
	})
	if err == nil {
		context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	}
	return conn, err
}

// tcp connects, and has the receiver send a byte.
func (n *network) tcp(ctx context.Context, p probe) (o outcome) {
	var l net.Listener
	if o.err = p.receiver.ns.Do(func() (err error) {
		c := net.ListenConfig{}
		l, err = c.Listen(ctx, "tcp", p.receiver.at.String())
		return err
	}); o.err != nil {
		return o
	}
	defer l.Close()
	accepted := make(chan netip.Addr, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			return
		}
		accepted <- c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
		_, _ = c.Write([]byte("x"))
		c.Close()
	}()
	conn, err := p.dial(ctx, net.TCPAddrFromAddrPort(netip.AddrPortFrom(p.source, 0)))
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close()
	if _, o.err = io.ReadFull(conn, make([]byte, 1)); o.err != nil {
		return o
	}
	return outcome{true, <-accepted, nil}
}

// udp sends a datagram and expects it back.
func (n *network) udp(ctx context.Context, p probe) (o outcome) {
	var l net.PacketConn
	if o.err = p.receiver.ns.Do(func() (err error) {
		c := net.ListenConfig{}
		l, err = c.ListenPacket(ctx, "udp", p.receiver.at.String())
		return err
	}); o.err != nil {
		return o
	}
	defer l.Close()
	from := make(chan netip.Addr, 1)
	go func() {
		b := make([]byte, 100)
		k, a, err := l.ReadFrom(b)
		if err != nil {
			return
		}
		from <- a.(*net.UDPAddr).AddrPort().Addr().Unmap()
		_, _ = l.WriteTo(b[:k], a)
	}()
	conn, err := p.dial(ctx, net.UDPAddrFromAddrPort(netip.AddrPortFrom(p.source, 0)))
	if err != nil {
		return outcome{err: err}
	}
	defer conn.Close()
	if _, o.err = conn.Write([]byte("probe")); o.err != nil {
		return o
	}
	if _, o.err = conn.Read(make([]byte, 100)); o.err != nil {
		return o
	}
	return outcome{true, <-from, nil}
}

// ping sends an echo request. The result does not include the source that the receiver saw.
func (n *network) ping(ctx context.Context, p probe) (o outcome) {
	args := []string{"netns", "exec", p.from.Name, "ping", "-n", "-c", "1", "-w", "60"}
	if p.source.IsValid() {
		args = append(args, "-I", p.source.String())
	}
	o.err = exec.CommandContext(ctx, "ip", append(args, p.to.Addr().String())...).Run()
	o.passed = o.err == nil
	return o
}
