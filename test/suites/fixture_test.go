// SPDX-License-Identifier: BSD-2-Clause

// Package suites has the cases of FreeBSD's and OpenBSD's own test suites of pf, by their names: FreeBSD's
// tests/sys/netpfil/pf, OpenBSD's regress/sys/net and regress/sbin/pfctl. Each case is written anew from its subject.
// Its result here is the same as there, or docs/pf.md describes the difference.
package suites

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

func TestMain(m *testing.M) { os.Exit(netlab.Main(m)) }

// cases are the cases of one file or folder of a suite, by name.
type cases map[string]func(r *router)

// suite has the cases of a suite by file.
type suite map[string]cases

// freeBSD and openBSD are filled by the files with the cases, when the program starts.
var freeBSD, openBSD = suite{}, suite{}

// has adds a file's cases.
func (s suite) has(file string, c cases) bool {
	if s[file] != nil {
		panic("twice: " + file)
	}
	s[file] = c
	return true
}

func TestFreeBSD(t *testing.T) { freeBSD.run(t) }

func TestOpenBSD(t *testing.T) { openBSD.run(t) }

// run runs each case on both hooks in parallel: FILE/CASE/HOOK; with -short it runs a tenth of the cases, each on one
// hook. All cases share one router for each hook.
func (s suite) run(t *testing.T) {
	var making sync.Mutex
	routers := map[string]*router{}
	for _, file := range sorted(s) {
		t.Run(file, func(u *testing.T) {
			for _, name := range netlab.Some(sorted(s[file])) {
				u.Run(name, func(u *testing.T) {
					hooks := netlab.Hooks(file + "/" + name)
					if hookless[file] {
						hooks = []string{"tcx"}
					}
					for _, hook := range hooks {
						u.Run(hook, func(u *testing.T) {
							u.Parallel() // in parallel with the other hook
							making.Lock()
							if routers[hook] == nil {
								routers[hook] = newRouter(t, hook)
							}
							r := routers[hook]
							making.Unlock()
							r.begin(u, standing[file])
							s[file][name](r)
						})
					}
				})
			}
		})
	}
}

func sorted[V any](m map[string]V) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// A host is a station or the router itself, with its own network stack.
type host struct {
	*netlab.End // nil for the router
	ns          *ends.Namespace
	ifname      string // its interface; the router's is em0, the first one
	v4, v6      netip.Addr

	// for a station: the router's interface in front of it, and its addresses
	port     string
	gw4, gw6 netip.Addr
	gwMAC    netlab.MAC
}

// A router is a switch br0 that routes, with pf. Its interfaces em0, em1 and em2 are host ports, and pf evaluates rules
// only there. Behind each, in a VLAN of its own, is a station, whose default route uses the router:
//
//	em0  10.1.0.1/24  2001:db8:1::1/64   stations[0]  10.1.0.2  2001:db8:1::2
//	em1  10.1.1.1/24  2001:db8:2::1/64   stations[1]  10.1.1.2  2001:db8:2::2
//	em2  10.1.2.1/24  2001:db8:3::1/64   stations[2]  10.1.2.2  2001:db8:3::2
//
// All have neighbour entries for each other, so none of them sends requests.
type router struct {
	*netlab.Lab
	t        *testing.T
	hook     string
	self     *host
	stations []*host
	rules    string // loaded rules, if any
	stale    bool   // the former case's rules are still loaded: see fresh
	tables   bool   // a command has changed tables, which survive a load of rules

	datagrams uint16 // number of fragmented datagrams
}

// newRouter makes a router for the duration of the test.
func newRouter(t *testing.T, hook string) *router {
	t.Helper()
	r := &router{Lab: netlab.New(t), t: t, hook: hook}
	r.self = &host{ns: r.Switch, ifname: "em0", v4: netip.MustParseAddr("10.1.0.1"), v6: netip.MustParseAddr("2001:db8:1::1")}
	for n, e := range r.NewEnds(3) {
		r.stations = append(r.stations, &host{
			End: e, ns: e.Namespace, ifname: e.Ifname, port: fmt.Sprintf("em%d", n),
			v4: netip.MustParseAddr(fmt.Sprintf("10.1.%d.2", n)), v6: netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::2", n+1)),
			gw4: netip.MustParseAddr(fmt.Sprintf("10.1.%d.1", n)), gw6: netip.MustParseAddr(fmt.Sprintf("2001:db8:%d::1", n+1)),
		})
	}
	r.must(r.Switch.Do(func() error {
		return errors.Join(sysctl("ipv4/ip_forward", "1"), sysctl("ipv6/conf/all/forwarding", "1"),
			// No rate limit for errors.
			sysctl("ipv4/icmp_ratemask", "0"), sysctl("ipv6/icmp/ratelimit", "0"),
			sysctl("ipv4/conf/all/rp_filter", "0"), sysctl("ipv4/conf/default/rp_filter", "0"),
			sysctl("ipv4/conf/all/send_redirects", "0"), sysctl("ipv4/conf/default/send_redirects", "0"),
			sysctl("ipv6/conf/default/accept_dad", "0"), sysctl("ipv6/conf/default/disable_ipv6", "0"), patient())
	}))
	file := "bridges:\n  br0:\n    vlan-filtering: on\n    pf-ports: host\n    ports:\n"
	var all []*netlab.End
	for n, s := range r.stations {
		all = append(all, s.End)
		file += fmt.Sprintf("      %s: {hook: %s, pvid: %d}\n", s.Port, hook, 10+n)
		file += fmt.Sprintf("      %s: {type: host, route: on, pvid: %d, addresses: [%s/24, \"%s/64\"]}\n", s.port, 10+n, s.gw4, s.gw6)
	}
	r.Apply(hook, map[string][]*netlab.End{"br0": all}, file)
	r.up(r.self, "lo")
	for _, s := range r.stations {
		port := r.link(r.self, s.port)
		r.Wait(s.port+" to be up", func() bool {
			port = r.link(r.self, s.port)
			return port.Attrs().OperState == netlink.OperUp
		})
		s.gwMAC = netlab.MAC(port.Attrs().HardwareAddr)
		r.must(s.ns.Do(func() error {
			dir := "ipv6/conf/" + s.ifname + "/"
			return errors.Join(sysctl(dir+"accept_dad", "0"), sysctl(dir+"router_solicitations", "0"), sysctl(dir+"accept_ra", "0"),
				sysctl(dir+"disable_ipv6", "0"), sysctl("ipv6/conf/lo/disable_ipv6", "0"), patient())
		}))
		r.up(s, "lo")
		for _, a := range []struct{ own, gw netip.Addr }{{s.v4, s.gw4}, {s.v6, s.gw6}} {
			r.addAddress(s, s.ifname, netip.PrefixFrom(a.own, netBits(a.own)))
			r.must(s.ns.Neighbour(s.ifname, a.gw, s.gwMAC[:]))
			r.must(r.Switch.Neighbour(s.port, a.own, s.MAC[:]))
			r.must(s.ns.Netlink().RouteAdd(&netlink.Route{Dst: ipNet(netip.PrefixFrom(a.gw, 0).Masked()), Gw: a.gw.AsSlice()}))
		}
	}
	return r
}

// patient has a stack wait for missing fragments for longer than all cases take. Otherwise it would send an error after
// half a minute, while another case may count packets.
func patient() error {
	return errors.Join(sysctl("ipv4/ipfrag_time", "86400"), sysctl("ipv6/ip6frag_time", "86400"))
}

// netBits is the prefix length of the router's networks.
func netBits(a netip.Addr) int {
	if a.Is4() {
		return 24
	}
	return 64
}

// hookless has the files whose cases are not about packets. These run once.
var hookless = map[string]bool{}

// standing has the rules of files whose cases all have the same rules. They are loaded once.
var standing = map[string]string{}

// begin prepares the router for a case: apart from the rules, it is as if it had just been made.
func (r *router) begin(t *testing.T, rules string) {
	t.Helper()
	r.For(t)
	was := r.t
	r.t = t
	t.Cleanup(func() { r.t = was })
	switch same := rules != "" && rules == r.rules; {
	case same:
		r.pfctl("-q", "-F", "states")
	case r.tables:
		r.pfctl("-q", "-F", "all")
		r.tables = false
	default:
		for _, what := range []string{"states", "Sources", "info"} {
			r.pfctl("-q", "-F", what)
		}
		r.stale = true
	}
	if rules != r.rules {
		if r.rules = ""; rules != "" {
			r.load(rules)
			r.rules = rules
		}
	}
	for _, s := range r.stations {
		s.Received()
	}
}

func (r *router) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// fresh removes the former case's rules, unless the present case has loaded its own by now: a load takes most of a
// case's time.
func (r *router) fresh() {
	r.t.Helper()
	if r.stale {
		r.stale = false
		r.pfctl("-q", "-F", "all")
	}
}

// try runs `bascule pfctl` with a standard input.
func (r *router) try(stdin string, args ...string) netlab.Result {
	r.t.Helper()
	has := func(arg string) bool { return slices.Contains(args, arg) }
	loads := has("-f") && !has("-a") && !has("-T")
	if !loads {
		r.fresh()
	}
	r.tables = r.tables || has("-T")
	cmd := r.Command(append([]string{"pfctl"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	result, err := netlab.RunCommand(cmd)
	r.must(err)
	if loads && result.Exit == 0 {
		r.stale, r.rules = false, ""
	}
	return result
}

// pfctl runs `bascule pfctl`, which must succeed, and returns its output.
func (r *router) pfctl(args ...string) string {
	r.t.Helper()
	return r.with("", args...)
}

func (r *router) with(stdin string, args ...string) string {
	r.t.Helper()
	result := r.try(stdin, args...)
	if result.Exit != 0 {
		r.t.Fatal(result)
	}
	return result.Stdout
}

// load loads rules, and returns the notes about them.
func (r *router) load(rules string, flags ...string) (notes string) {
	r.t.Helper()
	result := r.try(rules+"\n", append(flags, "-f", "-")...)
	if result.Exit != 0 {
		r.t.Fatalf("%v, of\n%s", result, rules)
	}
	return result.Stderr
}

// anchor loads rules into an anchor, which is emptied after the case.
func (r *router) anchor(name, rules string) {
	r.t.Helper()
	r.load(rules, "-a", name)
	r.t.Cleanup(func() { r.pfctl("-q", "-a", name, "-F", "all") })
}

// refuses loads rules that must be refused with these words.
func (r *router) refuses(rules string, words ...string) {
	r.t.Helper()
	result := r.try(rules+"\n", "-f", "-")
	if result.Exit == 0 {
		r.t.Errorf("these are loaded, and should be refused:\n%s", rules)
	}
	for _, w := range words {
		if !strings.Contains(result.Stderr, w) {
			r.t.Errorf("%v: %q is not said, of\n%s", result, w, rules)
		}
	}
}

// prints compares the output of pfctl.
func (r *router) prints(want string, args ...string) {
	r.t.Helper()
	if got := r.pfctl(args...); got != want {
		r.t.Errorf("pfctl %q prints\n%sshould be\n%s", args, got, want)
	}
}

// shows looks for words in the output of pfctl, and returns the output.
func (r *router) shows(args []string, words ...string) string {
	r.t.Helper()
	got := r.pfctl(args...)
	for _, w := range words {
		if !strings.Contains(got, w) {
			r.t.Errorf("pfctl %q does not print %q:\n%s", args, w, got)
		}
	}
	return got
}

// counter returns a counter of `pfctl -s info`, such as "state-mismatch" or "current entries".
func (r *router) counter(name string) int {
	r.t.Helper()
	for line := range strings.Lines(r.pfctl("-v", "-s", "info")) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), name+" "); ok {
			n, err := strconv.Atoi(strings.Fields(rest)[0])
			r.must(err)
			return n
		}
	}
	r.t.Fatalf("there is no counter %q", name)
	return 0
}

// states returns the lines of `pfctl -s states` that contain these words.
func (r *router) states(words ...string) (list []string) {
	r.t.Helper()
	for line := range strings.Lines(r.pfctl("-s", "states")) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(line, w) }) {
			list = append(list, strings.TrimSpace(line))
		}
	}
	return list
}

// run runs a program at a host, which must succeed.
func (r *router) run(at *host, args ...string) string {
	r.t.Helper()
	var out []byte
	err := at.ns.Do(func() (err error) {
		out, err = exec.Command(args[0], args[1:]...).CombinedOutput()
		return err
	})
	if err != nil {
		r.t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// ip runs ip(8) at a host, and undoes it after the case with a command of the same kind.
func (r *router) ip(at *host, do, undo string) {
	r.t.Helper()
	r.run(at, append([]string{"ip"}, strings.Fields(do)...)...)
	if undo != "" {
		r.t.Cleanup(func() { r.run(at, append([]string{"ip"}, strings.Fields(undo)...)...) })
	}
}

func sysctl(name, value string) error {
	return os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(value), 0o644)
}

// sysctl changes a setting of a host, such as ipv4/ip_forward, until the case ends.
func (r *router) sysctl(at *host, name, value string) {
	r.t.Helper()
	var was []byte
	r.must(at.ns.Do(func() (err error) {
		if was, err = os.ReadFile(filepath.Join("/proc/sys/net", name)); err != nil {
			return err
		}
		return sysctl(name, value)
	}))
	r.t.Cleanup(func() { r.must(at.ns.Do(func() error { return sysctl(name, strings.TrimSpace(string(was))) })) })
}

func (r *router) link(at *host, ifname string) netlink.Link {
	r.t.Helper()
	l, err := at.ns.Netlink().LinkByName(ifname)
	r.must(err)
	return l
}

func (r *router) up(at *host, ifname string) {
	r.t.Helper()
	r.must(at.ns.Netlink().LinkSetUp(r.link(at, ifname)))
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func (r *router) addAddress(at *host, ifname string, p netip.Prefix) {
	r.t.Helper()
	r.must(at.ns.Netlink().AddrAdd(r.link(at, ifname), &netlink.Addr{IPNet: ipNet(p), Flags: unix.IFA_F_NODAD}))
	// The kernel accepts packets to an IPv6 address a moment later (addrconf_dad_begin of net/ipv6/addrconf.c).
	r.Wait(p.Addr().String()+" to be an own address", func() bool {
		routes, err := at.ns.Netlink().RouteGet(p.Addr().AsSlice())
		return err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL
	})
}

// address adds an address to a host, until the case ends. The router gets a neighbour entry for a station's address in
// the network of its interface.
func (r *router) address(at *host, ifname, prefix string) netip.Addr {
	r.t.Helper()
	p := netip.MustParsePrefix(prefix)
	r.addAddress(at, ifname, p)
	r.t.Cleanup(func() { r.must(at.ns.Netlink().AddrDel(r.link(at, ifname), &netlink.Addr{IPNet: ipNet(p)})) })
	if at.End != nil && ifname == at.ifname {
		r.must(r.Switch.Neighbour(at.port, p.Addr(), at.MAC[:]))
		r.t.Cleanup(func() {
			_ = r.Switch.Netlink().NeighDel(&netlink.Neigh{LinkIndex: r.link(r.self, at.port).Attrs().Index, IP: p.Addr().AsSlice()})
		})
	}
	return p.Addr()
}

// route adds a route at a host through the address of a station or the router, until the case ends.
func (r *router) route(at *host, to string, by netip.Addr) {
	r.t.Helper()
	route := &netlink.Route{Dst: ipNet(netip.MustParsePrefix(to)), Gw: by.AsSlice()}
	r.must(at.ns.Netlink().RouteAdd(route))
	r.t.Cleanup(func() { r.must(at.ns.Netlink().RouteDel(route)) })
}

// frame returns a packet from a station to the router's interface: the IP header and the rest. It fills in lengths and
// checksums.
func (r *router) frame(from *host, packet ...gopacket.SerializableLayer) netlab.Frame {
	r.t.Helper()
	return r.ether(from.MAC, from.gwMAC, packet...)
}

// ether is like frame, between any Ethernet addresses.
func (r *router) ether(src, dst netlab.MAC, packet ...gopacket.SerializableLayer) netlab.Frame {
	r.t.Helper()
	e := &layers.Ethernet{SrcMAC: src[:], DstMAC: dst[:], EthernetType: layers.EthernetTypeIPv4}
	var outer gopacket.NetworkLayer
	for _, l := range packet {
		switch l := l.(type) {
		case *layers.ARP:
			e.EthernetType = layers.EthernetTypeARP
		case *layers.IPv4:
			if outer == nil {
				outer = l
			}
		case *layers.IPv6:
			if outer == nil {
				outer, e.EthernetType = l, layers.EthernetTypeIPv6
			}
		case interface {
			SetNetworkLayerForChecksum(gopacket.NetworkLayer) error
		}:
			r.must(l.SetNetworkLayerForChecksum(outer))
		}
	}
	b, o := gopacket.NewSerializeBuffer(), gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	r.must(gopacket.SerializeLayers(b, o, append([]gopacket.SerializableLayer{e}, packet...)...))
	return netlab.Frame(b.Bytes())
}

// ip4 and ip6 return headers. protocol is the protocol of the next header.
func ip4(src, dst netip.Addr, protocol layers.IPProtocol) *layers.IPv4 {
	return &layers.IPv4{Version: 4, IHL: 5, TTL: 64, Protocol: protocol, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

func ip6(src, dst netip.Addr, protocol layers.IPProtocol) *layers.IPv6 {
	return &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: protocol, SrcIP: src.AsSlice(), DstIP: dst.AsSlice()}
}

// echo returns an echo request from a station to the router's interface.
func (r *router) echo(from *host, src, dst netip.Addr, id uint16, data string) netlab.Frame {
	r.t.Helper()
	if src.Is4() {
		return r.frame(from, ip4(src, dst, layers.IPProtocolICMPv4), echo4(id), gopacket.Payload(data))
	}
	return r.frame(from, ip6(src, dst, layers.IPProtocolICMPv6),
		&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeEchoRequest, 0)},
		&layers.ICMPv6Echo{Identifier: id, SeqNumber: 1}, gopacket.Payload(data))
}

// echo4 returns the header of an echo request.
func echo4(id uint16) *layers.ICMPv4 {
	return &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: id, Seq: 1}
}

// sends sends frames from a station, and returns when all resulting packets have arrived.
func (r *router) sends(from *host, frames ...netlab.Frame) {
	r.t.Helper()
	r.fresh()
	r.Send(from.End, frames...)
	r.settle()
}

// settle returns when all packets that were sent on the lab's CPU have arrived, also if the router has forwarded them
// and a station's stack has answered.
func (r *router) settle() {
	r.t.Helper()
	r.Flush()
	r.Flush()
}

// gets returns the packets that have arrived at a station, without the packets that stacks send by themselves: ARP,
// neighbour discovery and group reports.
func (r *router) gets(at *host) (list []gopacket.Packet) {
	r.t.Helper()
	for _, p := range r.getsAll(at) {
		if p.NetworkLayer() == nil {
			continue
		}
		if l, ok := p.Layer(layers.LayerTypeICMPv6).(*layers.ICMPv6); ok {
			switch t := l.TypeCode.Type(); {
			case t >= layers.ICMPv6TypeRouterSolicitation && t <= layers.ICMPv6TypeNeighborAdvertisement,
				t >= 130 && t <= 132, t == layers.ICMPv6TypeMLDv2MulticastListenerReportMessageV2:
				continue
			}
		}
		if p.Layer(layers.LayerTypeIGMP) == nil {
			list = append(list, p)
		}
	}
	return list
}

// getsAll returns all packets that have arrived at a station.
func (r *router) getsAll(at *host) (list []gopacket.Packet) {
	r.t.Helper()
	for _, f := range at.Received() {
		list = append(list, gopacket.NewPacket([]byte(f), layers.LayerTypeEthernet, gopacket.Default))
	}
	return list
}

// one returns the only packet of a list.
func (r *router) one(list []gopacket.Packet) gopacket.Packet {
	r.t.Helper()
	if len(list) != 1 {
		r.t.Fatalf("%d packets have come, should be one: %v", len(list), list)
	}
	return list[0]
}

// layer returns a layer of a packet, which must exist.
func layer[L gopacket.Layer](r *router, p gopacket.Packet) (l L) {
	r.t.Helper()
	for _, has := range p.Layers() {
		if l, ok := has.(L); ok {
			return l
		}
	}
	r.t.Fatalf("%v has no %T", p, l)
	return l
}
