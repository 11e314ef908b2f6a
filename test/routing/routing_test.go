// SPDX-License-Identifier: BSD-2-Clause

// Package routing compares routed host ports with the host's network stack. The same packets go to a host that routes,
// once with the stack alone and once with the datapath's shortcut. The same frames, including errors, have to leave it,
// byte by byte.
package routing

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	"pgregory.net/rapid"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// packets is the number of packets through each bridge.
var packets = flag.Int("routing.packets", 2000, "packets that are sent through each bridge, on each hook, twice")

// patience is the time limit for a connection that has to end.
const patience = time.Minute

// batch is the approximate number of packets that are sent before the results are compared.
const batch = 200

// TestMain makes the run short and repeatable; `make fuzz` makes it long.
func TestMain(m *testing.M) {
	flag.Parse()
	*packets = netlab.Tenth(*packets)
	short := map[string]string{"rapid.checks": fmt.Sprint((*packets + batch - 1) / batch), "rapid.seed": "1", "rapid.nofailfile": "true"}
	flag.Visit(func(f *flag.Flag) { delete(short, f.Name) })
	for name, value := range short {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(netlab.Main(m))
}

// A side is one of the two networks between which the host routes: a VLAN of the switch with one station, and a host
// port that is the station's gateway.
type side struct {
	bridge   string
	gateway  string // name of the host port
	vlan     string
	ip4, ip6 netip.Prefix // the gateway's addresses
	station4 netip.Addr
	station6 netip.Addr
	mac      netlab.MAC // MAC of the gateway
	end      *netlab.End
}

// A site is a switch with both sides, and the host that routes.
type site struct {
	t     testing.TB
	lab   *netlab.Lab
	sides [2]*side
	made  uint16 // number of packets so far
	stack bool   // the host's stack handles all packets: see route

	// the kernel's look-up always takes the last of several next hops: see severalHops
	takesLast bool
	nexthops  int // ID of the last next hop from severalHops
}

func newSite(t *testing.T, hook string) *site { return newSiteIn(t, netlab.New(t), hook) }

// newSiteIn makes the site in a lab. The second side is in another bridge if one is given.
func newSiteIn(t *testing.T, l *netlab.Lab, hook string, other ...string) *site {
	s := &site{t: t, lab: l, nexthops: 100}
	stations := l.NewEnds(2)
	bridges := append([]string{"br0", "br0"}[:2-len(other)], other...)
	s.must(l.Switch.Do(func() error {
		return sysctl(map[string]string{
			"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1",
			// No rate limit for errors.
			"ipv4/icmp_ratemask": "0", "ipv6/icmp/ratelimit": "0", "ipv4/conf/all/send_redirects": "0",
			"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0", "ipv4/conf/default/send_redirects": "0",
			"ipv6/conf/default/accept_dad": "0", "ipv6/conf/default/disable_ipv6": "0",
			// A new interface reports its groups at once, instead of within a second or two.
			"ipv6/conf/default/mldv1_unsolicited_report_interval": "1", "ipv6/conf/default/mldv2_unsolicited_report_interval": "1",
		})
	}))
	ends, file := map[string][]*netlab.End{}, ""
	for i, e := range stations {
		n := i + 1
		s.must(e.Namespace.Do(func() error { return sysctl(map[string]string{"ipv6/conf/all/disable_ipv6": "1"}) }))
		s.sides[i] = &side{
			bridge: bridges[i], gateway: fmt.Sprintf("gw%d", n), vlan: fmt.Sprint(10 + n), end: e,
			ip4: netip.MustParsePrefix(fmt.Sprintf("10.0.%d.1/24", n)), ip6: netip.MustParsePrefix(fmt.Sprintf("fd0%d::1/64", n)),
			station4: netip.MustParseAddr(fmt.Sprintf("10.0.%d.2", n)), station6: netip.MustParseAddr(fmt.Sprintf("fd0%d::2", n)),
		}
		ends[bridges[i]] = append(ends[bridges[i]], e)
	}
	// One command for a whole bridge, since each command loads programs.
	for _, bridge := range slices.Compact(bridges) {
		ports, entries := "", ""
		for _, side := range s.sides {
			if side.bridge != bridge {
				continue
			}
			ports += fmt.Sprintf("      %s: {hook: %s, pvid: %s}\n      %s: {type: host, route: on, pvid: %s}\n",
				side.end.Port, hook, side.vlan, side.gateway, side.vlan)
			entries += entry(side.end.MAC, side)
			if side == s.sides[1] {
				entries += entry(otherHop, side)
			}
		}
		file += "  " + bridge + ":\n    vlan-filtering: on\n    ports:\n" + ports + "    fdb:\n" + entries
	}
	l.Apply(hook, ends, "bridges:\n"+file)
	for _, side := range s.sides {
		nl := l.Switch.Netlink()
		link, err := nl.LinkByName(side.gateway)
		s.must(err)
		s.must(nl.LinkSetUp(link))
		s.awaitUp(link)
		side.mac = netlab.MAC(link.Attrs().HardwareAddr)
		for _, p := range []netip.Prefix{side.ip4, side.ip6} {
			ip := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
			s.must(nl.AddrAdd(link, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}))
		}
		for _, a := range []netip.Addr{side.station4, side.station6} {
			s.must(nl.NeighSet(&netlink.Neigh{
				LinkIndex: link.Attrs().Index, IP: a.AsSlice(), HardwareAddr: side.end.MAC[:], State: netlink.NUD_PERMANENT,
			}))
		}
	}
	s.routes()
	return s
}

// awaitUp waits until both ends of a host port's veth are up. Until then the kernel drops packets from the switch's end
// (linkwatch_do_dev of net/core/link_watch.c).
func (s *site) awaitUp(link netlink.Link) {
	s.t.Helper()
	nl := s.lab.Switch.Netlink()
	for _, index := range []int{link.Attrs().Index, link.Attrs().ParentIndex} {
		s.lab.Wait("both ends of "+link.Attrs().Name+" to be up", func() bool {
			end, err := nl.LinkByIndex(index)
			return err == nil && end.Attrs().OperState == netlink.OperUp
		})
	}
}

// entry is a line of a file: a static address at the port of a side's station.
func entry(mac netlab.MAC, at *side) string {
	return fmt.Sprintf("      - {mac: %s, port: %s, vlan: %s}\n", mac, at.end.Port, at.vlan)
}

// otherHop is another next hop on the second side. It is the same station.
var otherHop = netlab.MAC{2, 0x57, 0, 0, 0, 0x0b}

// hop2 and hop3 are next hops on the second side: its station, and otherHop.
const hop2, hop3 = "via 10.0.2.2 dev gw2", "via 10.0.2.3 dev gw2"

// routes adds routes to other networks behind the sides.
func (s *site) routes() {
	s.hop("10.0.2.3", otherHop)
	s.hop("fd02::3", otherHop)
	s.ip(
		"route add 10.9.0.0/16 via 10.0.2.2", "route add fd09::/64 via fd02::2",
		// The host limits errors to one address. So every packet has an address of its own.
		"route add 10.1.0.0/16 via 10.0.1.2", "route add fd11::/64 via fd01::2",
		"route add blackhole 10.8.0.0/16", "route add blackhole fd08::/64",
		"route add unreachable 10.7.0.0/16", "route add unreachable fd07::/64",
		"route add prohibit 10.6.0.0/16", "route add prohibit fd06::/64",
		"route add 10.5.0.0/16 nexthop "+hop2+" nexthop "+hop3,
		"route add fd05::/64 nexthop via fd02::2 nexthop via fd02::3",
		"route add 10.3.0.0/16 via 10.0.2.2 mtu lock 1440", "route add fd03::/64 via fd02::2 mtu lock 1440",
		"route add 10.2.0.0/16 via inet6 fd02::3 dev gw2",
	)
	s.takesLast = s.lookUpTakesLast()
	s.ip(s.severalHops("10.5.0.0/16", "main", hop2, hop3)...)
}

// severalHops returns the commands for an IPv4 route with several next hops, from which the shortcut and the stack
// choose alike. Some kernels' look-up always takes the last one if the next hops belong to the route itself
// (docs/kernels.md). On these, the route uses a group of nexthop objects.
func (s *site) severalHops(net, table string, hops ...string) (commands []string) {
	route := "route replace " + net + " table " + table
	if !s.takesLast {
		return []string{route + " nexthop " + strings.Join(hops, " nexthop ")}
	}
	var group []string
	for _, hop := range hops {
		s.nexthops++
		commands = append(commands, fmt.Sprintf("nexthop add id %d %s", s.nexthops, hop))
		group = append(group, fmt.Sprint(s.nexthops))
	}
	s.nexthops++
	return append(commands, fmt.Sprintf("nexthop add id %d group %s", s.nexthops, strings.Join(group, "/")),
		fmt.Sprintf("%s nhid %d", route, s.nexthops))
}

// lookUpTakesLast asks the kernel for the next hops of addresses behind a route with several next hops of its own, with
// a source address that is not the route's. If the look-up has the bug, all results have the same next hop.
func (s *site) lookUpTakesLast() bool {
	s.t.Helper()
	first := ""
	for n := range 64 {
		dst := net.IPv4(10, 5, 0, byte(n))
		from := &netlink.RouteGetOptions{SrcAddr: s.sides[0].ip4.Addr().AsSlice()}
		routes, err := s.lab.Switch.Netlink().RouteGetWithOptions(dst, from)
		s.must(err)
		if len(routes) != 1 || routes[0].Gw == nil {
			s.t.Fatalf("the way to %v: %v", dst, routes)
		}
		switch now := routes[0].Gw.String(); {
		case first == "":
			first = now
		case now != first:
			return false
		}
	}
	return true
}

// ip runs commands of ip(8) in the host's network namespace, as one batch.
func (s *site) ip(commands ...string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "batch")
	s.must(os.WriteFile(file, []byte(strings.Join(commands, "\n")+"\n"), 0o600))
	s.run("ip", "-batch", file)
}

// run runs a program in the host's network namespace.
func (s *site) run(name string, args ...string) {
	s.t.Helper()
	_, err := s.lab.Switch.Output(context.Background(), ends.AnyCPU, name, args...)
	s.must(err)
}

// hop adds a neighbour on the second side to the host's table.
func (s *site) hop(address string, mac netlab.MAC) {
	s.t.Helper()
	s.ip(fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", address, mac, s.sides[1].gateway))
}

// hash sets the host's policy for the choice among several next hops.
func (s *site) hash(policy int) {
	s.t.Helper()
	s.sysctl("ipv4/fib_multipath_hash_policy", policy)
	s.sysctl("ipv6/fib_multipath_hash_policy", policy)
}

// sysctl sets a sysctl of the host.
func (s *site) sysctl(name string, value any) {
	s.t.Helper()
	s.must(s.lab.Switch.Do(func() error { return sysctl(map[string]string{name: fmt.Sprint(value)}) }))
}

func (s *site) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func sysctl(values map[string]string) error {
	for _, name := range slices.Sorted(func(yield func(string) bool) {
		for n := range values {
			if !yield(n) {
				return
			}
		}
	}) {
		if err := os.WriteFile(filepath.Join("/proc/sys/net", name), []byte(values[name]), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// route switches the shortcut on or off. This loads programs. A site begins with the shortcut on, and route does
// nothing if the state does not change.
func (s *site) route(on bool) {
	if s.stack == !on {
		return
	}
	s.stack = !on
	word := map[bool]string{true: "on", false: "off"}[on]
	if one := s.sides[0].bridge; one == s.sides[1].bridge {
		s.lab.Bascule("port", "set", one, s.sides[0].gateway, s.sides[1].gateway, "--route="+word)
		return
	}
	for _, side := range s.sides {
		s.lab.Bascule("port", "set", side.bridge, side.gateway, "--route="+word)
	}
}

// send sends frames from the first station, and returns the frames that both stations get, sorted by their bytes: two
// CPUs or two paths may change the order.
func (s *site) send(frames []netlab.Frame) (got [2][]string) {
	s.t.Helper()
	return s.normals(s.lab.Deliver(s.sides[0].end, frames...))
}

// normals returns the frames of both stations after normal, sorted by their bytes.
func (s *site) normals(arrived netlab.Delivery) (got [2][]string) {
	for i, side := range s.sides {
		for _, f := range arrived[side.end] {
			if text := s.normal([]byte(f)); text != "" {
				got[i] = append(got[i], text)
			}
		}
		slices.Sort(got[i])
	}
	return got
}

// normal returns a frame without the parts that differ from time to time: the numbers that the host assigns to its own
// packets. It returns "" for packets that the host sends by itself.
func (s *site) normal(b []byte) string {
	const header = 14
	switch binary.BigEndian.Uint16(b[12:]) {
	case unix.ETH_P_ARP:
		return ""
	case unix.ETH_P_IP:
		if len(b) < header+20 {
			break
		}
		for _, side := range s.sides {
			if netip.AddrFrom4([4]byte(b[header+12:])) == side.ip4.Addr() {
				clear(b[header+4 : header+6])   // identification
				clear(b[header+10 : header+12]) // checksum
			}
		}
		if b[header+9] == unix.IPPROTO_IGMP || s.limited(b[header:]) {
			return ""
		}
	case unix.ETH_P_IPV6:
		if len(b) < header+42 {
			break
		}
		own := netip.AddrFrom16([16]byte(b[header+8:]))
		ours := own.IsLinkLocalUnicast() || own.IsUnspecified() || own == s.sides[0].ip6.Addr() || own == s.sides[1].ip6.Addr()
		if ours && (b[header+6] == 0 || b[header+6] == unix.IPPROTO_ICMPV6 && b[header+40] >= 130) {
			return "" // MLD and neighbour discovery
		}
		if ours && b[header+6] == unix.IPPROTO_ICMPV6 && b[header+40] == 1 && b[header+41] == 3 {
			return "" // the host notices after seconds that no station has the address
		}
	}
	return hex.EncodeToString(b)
}

// limited reports whether an IPv4 packet is an error that the host does not send in a repeatable way. It limits some
// errors to a few a second for each address, and no setting of a network namespace changes that: errors about packets
// without a route, or with a route that refuses them. Only errors to an address that a single packet has are compared.
// The host also notices only after seconds that no station on the link has an address.
func (s *site) limited(ip []byte) bool {
	icmp := int(ip[0]&15) * 4
	quoted := icmp + 8
	if len(ip) < quoted+20 || ip[9] != unix.IPPROTO_ICMP || ip[icmp] != 3 {
		return false
	}
	code := ip[icmp+1]
	if code != 0 && code != 1 && code != 13 {
		return false
	}
	alone := netip.MustParsePrefix("10.1.0.0/16").Contains(netip.AddrFrom4([4]byte(ip[16:])))
	onLink := netip.MustParsePrefix("10.0.0.0/16").Contains(netip.AddrFrom4([4]byte(ip[quoted+16:])))
	return !alone || code == 1 && onLink
}

// bothWays calls f with the shortcut and without it. It begins with the present state, since a switch takes longer than
// a few hundred packets.
func (s *site) bothWays(f func(on bool)) {
	first := !s.stack
	for _, on := range []bool{first, !first} {
		s.route(on)
		f(on)
	}
}

// Whatever is sent to a host that routes, the packets that leave it are the same with and without the shortcut. The
// first packets are always the same. With any seed, the datapath has to route most of the ones that it can route.
func TestLikeStack(t *testing.T) {
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, hook)
			routed, seen := 0, 0
			// rapid can shrink a list of lists at once.
			lists := rapid.SliceOfN(rapid.SliceOfN(recipes(), 1, 40), 20, 40)
			compare := func(t rapid.TB, list []recipe, policy int) {
				var frames []netlab.Frame
				for i, r := range list {
					f := r.frame(s, uint16(i))
					// A station that gets errors for both packets gets only one of them.
					if (r.dst == s.sides[1].station4 || r.dst == s.sides[1].station6) && !r.src.IsValid() && r.to == 0 {
						frames = append(frames, r.before(s, f, uint16(i)))
					}
					frames = append(frames, f)
				}
				seen += len(frames)
				s.hash(policy)
				var got, want [2][]string
				s.bothWays(func(on bool) {
					if !on {
						want = s.send(frames)
						return
					}
					before := s.routed()
					got = s.send(frames)
					routed += s.routed() - before
				})
				for i := range got {
					if more, less := differences(got[i], want[i]); more != nil || less != nil {
						t.Fatalf("at station %d the shortcut has\n  %s\nand lacks\n  %s", i+1, strings.Join(more, "\n  "), strings.Join(less, "\n  "))
					}
				}
			}
			for example := range 2 {
				compare(t, slices.Concat(lists.Example(example)...), 0)
			}
			if routed*10 < seen {
				t.Errorf("the datapath has routed %d of %d packets: this compares the stack with itself", routed, seen)
			}
			rapid.Check(t, func(t *rapid.T) {
				compare(t, slices.Concat(lists.Draw(t, "packets")...), rapid.IntRange(0, 3).Draw(t, "hash policy"))
			})
			t.Logf("%d packets, %d of them routed by the datapath", seen, routed)
		})
	}
}

// Bytes behind a packet in its frame do not belong to the packet: a packet that ends before its ports has none, and a
// route with several next hops must not use these bytes.
func TestPadding(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.hash(1)
		var frames []netlab.Frame
		for _, to := range []string{"10.5.1.1", "fd05::1"} {
			for _, proto := range []byte{unix.IPPROTO_UDP, unix.IPPROTO_TCP, unix.IPPROTO_SCTP} {
				for n := range 48 {
					dst := netip.MustParseAddr(to)
					r := recipe{six: dst.Is6(), dst: dst, ttl: 64, proto: proto, tag: -1, size: 8, length: n%4 - 8, pad: 10}
					frames = append(frames, r.frame(s, uint16(n)))
				}
			}
		}
		var got, want [2][]string
		routed := 0
		s.bothWays(func(on bool) {
			if on {
				got = s.send(frames)
				routed = s.routed()
			} else {
				want = s.send(frames)
			}
		})
		for i := range got {
			if more, less := differences(got[i], want[i]); more != nil || less != nil {
				t.Errorf("at station %d the shortcut has\n  %s\nand lacks\n  %s", i+1, few(more), few(less))
			}
		}
		if len(want[1]) != len(frames) {
			t.Errorf("of %d packets %d arrive", len(frames), len(want[1]))
		}
		if routed < len(frames)/2 {
			t.Errorf("of %d packets the datapath has routed %d", len(frames), routed)
		}
	})
}

// routed returns the number of packets that the datapath has routed.
func (s *site) routed() int { return s.counted("done") }

// taken returns routed and the packets that the datapath has routed after a check of their next hop. There is one such
// check a second, so this number depends on the duration of a test.
func (s *site) taken() int { return s.routed() + s.counted("fresh") }

// counted returns the number of packets with a result, in the counters of the routed ports.
func (s *site) counted(word string) (n int) {
	s.t.Helper()
	for _, side := range s.sides {
		n += int(s.lab.Port(side.bridge, side.gateway).Routed[word])
	}
	return n
}

// differences returns the elements that are only in one of two sorted lists.
func differences(a, b []string) (onlyA, onlyB []string) {
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0] < b[0]:
			onlyA, a = append(onlyA, a[0]), a[1:]
		case len(a) == 0 || b[0] < a[0]:
			onlyB, b = append(onlyB, b[0]), b[1:]
		default:
			a, b = a[1:], b[1:]
		}
	}
	return onlyA, onlyB
}

// plainLoad is the payload of a plain packet, in bytes. It identifies the packet.
const plainLoad = 40

// udp4 returns a plain packet from the first station to an address.
func (s *site) udp4(to netip.Addr, number uint16) netlab.Frame {
	return recipe{dst: to, ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}.frame(s, number)
}

// like returns the frames with the same payload as a packet. A host also sends group reports by itself.
func like(packet netlab.Frame, frames []netlab.Frame) (same []netlab.Frame) {
	load := func(f netlab.Frame) string { return string(f[max(0, len(f)-plainLoad/2):]) }
	for _, f := range frames {
		if len(f) == len(packet) && load(f) == load(packet) {
			same = append(same, f)
		}
	}
	return same
}

// deliver sends packets from the first station and returns the ones that arrive at an end, without packets that were
// sent before. If they should arrive, it waits for all of them: the lab's markers overtake packets in the host's stack,
// and packets in an XDP queue of another CPU.
func (s *site) deliver(at *netlab.End, arrive bool, packets ...netlab.Frame) (got []netlab.Frame) {
	s.t.Helper()
	load := func(f netlab.Frame) string { return string(f[max(0, len(f)-plainLoad):]) }
	add := func(list []netlab.Frame) {
		for _, f := range list {
			if slices.ContainsFunc(packets, func(p netlab.Frame) bool { return len(p) == len(f) && load(p) == load(f) }) {
				got = append(got, f)
			}
		}
	}
	add(s.lab.Deliver(s.sides[0].end, packets...)[at])
	if arrive {
		s.lab.Wait(fmt.Sprintf("%d packets to arrive at %s", len(packets), at.Port), func() bool {
			if len(got) < len(packets) {
				add(at.Received())
			}
			return len(got) >= len(packets)
		})
	}
	return got
}

// byDatapath sends packets from one until the datapath has routed one. It returns that packet and the frames at an end.
// The host may get one packet a second, but no other.
func (s *site) byDatapath(what string, at *netlab.End, one func() netlab.Frame) (sent, got netlab.Frame) {
	s.t.Helper()
	s.lab.Wait("the datapath to route a packet: "+what, func() bool {
		before, fresh := s.counted("done"), s.counted("fresh")
		sent = one()
		got = s.deliver(at, true, sent)[0]
		if s.counted("done") > before {
			return true
		}
		if s.counted("fresh") == fresh {
			s.t.Fatalf("%s: the datapath has not routed a packet: %v", what, s.lab.Port("br0", s.sides[0].gateway).Routed)
		}
		return false
	})
	return sent, got
}

// compare sends packets from one, and checks whether they arrive at the second station and whether the datapath routes
// them.
func (s *site) compare(what string, one func() netlab.Frame, arrive, routed bool) {
	s.t.Helper()
	at := s.sides[1].end
	if arrive && routed {
		s.byDatapath(what, at, one)
		return
	}
	before := s.routed()
	got := s.deliver(at, arrive, one(), one(), one())
	if a, r := len(got) > 0, s.routed() > before; a != arrive || r != routed {
		s.t.Errorf("%s: arrives %v, want %v; routed by the datapath %v, want %v: %v", what, a, arrive, r, routed, s.lab.Port("br0", s.sides[0].gateway).Routed)
	}
}

func onHooks(t *testing.T, f func(t *testing.T, s *site)) {
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			f(t, newSite(t, hook))
		})
	}
}

func (s *site) expect(what string, to netip.Addr, arrives, routed bool) {
	s.t.Helper()
	s.compare(what, func() netlab.Frame { return s.udp4(to, s.made) }, arrives, routed)
}

// A change of the host's routes applies to the next packet, even within the clock tick in which the datapath has found
// the route of such a packet, and remembers it.
func TestNextPacket(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		nl, at, from := s.lab.Switch.Netlink(), s.sides[1].end, s.sides[0].end.Queue()
		s.expect("at first", s.sides[1].station4, true, true)
		s.six("at first", true, true)
		for _, one := range []netlab.Frame{s.udp4(s.sides[1].station4, s.made), s.udp6(s.made)} {
			to := net.IP(addressesOf(one))
			to = to[len(to)/2:]
			hole := &netlink.Route{Dst: &net.IPNet{IP: to, Mask: net.CIDRMask(8*len(to), 8*len(to))}, Type: unix.RTN_BLACKHOLE}
			last := plainLoad / 2 // the byte of the payload by which packets of a connection differ
			b := []byte(one)
			b[len(b)-last]++
			other := netlab.Frame(b)
			for range 40 {
				s.lab.Deliver(s.sides[0].end)
				from.Send(one, one)
				s.must(nl.RouteAdd(hole))
				from.Send(other, other)
				s.lab.Flush()
				for _, f := range at.Received() {
					if len(f) == len(other) && f[len(f)-last] == other[len(other)-last] {
						t.Fatalf("a packet arrives at %v behind a black hole", to)
					}
				}
				s.must(nl.RouteDel(hole))
			}
			s.deliver(at, true, one)
		}
	})
}

// A change of the host's routes and neighbours applies to the next packet. A change of a neighbour or a setting may
// take a clock tick; each command in between takes longer.
func TestFollowsHost(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		behind := netip.MustParseAddr("10.9.1.1")
		s.expect("at first", behind, true, true)
		_, to, _ := net.ParseCIDR("10.9.1.0/24")
		nl := s.lab.Switch.Netlink()
		hole := &netlink.Route{Dst: to, Type: unix.RTN_BLACKHOLE}
		s.must(nl.RouteAdd(hole))
		s.expect("behind a black hole", behind, false, false)
		s.must(nl.RouteDel(hole))
		s.expect("without it", behind, true, true)

		out, err := nl.LinkByName(s.sides[1].gateway)
		s.must(err)
		next := &netlink.Neigh{LinkIndex: out.Attrs().Index, IP: s.sides[1].station4.AsSlice(), State: netlink.NUD_PERMANENT}
		next.HardwareAddr = net.HardwareAddr{2, 0x57, 0, 0, 0, 9}
		s.must(nl.NeighSet(next))
		s.lab.Bascule("fdb", "add", "br0", next.HardwareAddr.String(), s.sides[1].end.Port, "--vlan", s.sides[1].vlan)
		got := s.deliver(s.sides[1].end, true, s.udp4(behind, s.made), s.udp4(behind, s.made))
		if len(got) != 2 || got[0].Dst() != netlab.MAC(next.HardwareAddr) || got[1].Dst() != netlab.MAC(next.HardwareAddr) {
			t.Errorf("after the neighbour's address has changed: %v", got)
		}

		s.must(s.lab.Switch.Do(func() error { return sysctl(map[string]string{"ipv4/conf/gw1/forwarding": "0"}) }))
		s.expect("where the host does not forward", behind, false, false)
		s.must(s.lab.Switch.Do(func() error { return sysctl(map[string]string{"ipv4/conf/gw1/forwarding": "1"}) }))
		s.must(nl.LinkSetDown(out))
		s.expect("with the way out down", behind, false, false)
	})
}

// IPsec policies apply to routed packets.
func TestIPsec(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.expect("at first", s.sides[1].station4, true, true)
		_, from, _ := net.ParseCIDR("10.0.0.0/8")
		policy := &netlink.XfrmPolicy{Src: from, Dst: from, Dir: netlink.XFRM_DIR_FWD, Action: netlink.XFRM_POLICY_BLOCK}
		s.must(s.lab.Switch.Do(func() error { return netlink.XfrmPolicyAdd(policy) }))
		s.expect("with a policy that blocks", s.sides[1].station4, false, false)
		s.must(s.lab.Switch.Do(func() error { return netlink.XfrmPolicyDel(policy) }))
		s.expect("without the policy", s.sides[1].station4, true, true)
	})
}

// The host does not route packets to another station behind the host's end.
func TestOtherStation(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		other := netlab.Station(7)
		s.lab.Bascule("fdb", "add", "br0", other.String(), s.sides[0].gateway, "--vlan", s.sides[0].vlan)
		f := []byte(s.udp4(s.sides[1].station4, 1))
		copy(f, other[:])
		before := s.routed()
		if got := s.deliver(s.sides[1].end, false, netlab.Frame(f), netlab.Frame(f)); len(got) > 0 || s.routed() > before {
			t.Errorf("a frame for another station is routed: %v", got)
		}
	})
}

// An interface that is moved to another network namespace routes there.
func TestHostEndMoves(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		away := s.lab.NewNamespace()
		s.expect("at first", s.sides[1].station4, true, true)
		nl := s.lab.Switch.Netlink()
		in, err := nl.LinkByName(s.sides[0].gateway)
		s.must(err)
		handle, err := netns.GetFromName(away.Name)
		s.must(err)
		defer handle.Close()
		s.must(nl.LinkSetNsFd(in, int(handle)))
		if got := s.deliver(s.sides[1].end, false, s.udp4(s.sides[1].station4, s.made), s.udp4(s.sides[1].station4, s.made)); len(got) > 0 {
			t.Errorf("a packet for an interface that has moved away is routed here: %v", got)
		}
	})
}

// trace returns the steps of a packet through the host, and the verdict, from a trace.
func (s *site) trace(f netlab.Frame) (steps []string, verdict string) {
	s.t.Helper()
	var traced []struct {
		Steps   []struct{ Name, Text string }
		Verdict string
	}
	s.lab.JSON(&traced, "trace", "br0", hex.EncodeToString([]byte(f)), "--in", s.sides[0].end.Port)
	for _, step := range traced[0].Steps {
		steps = append(steps, step.Name+": "+step.Text)
	}
	return steps, traced[0].Verdict
}

// address adds an address to an interface of the host.
func (s *site) address(link netlink.Link, text string) {
	s.t.Helper()
	p := netip.MustParsePrefix(text)
	ip := &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
	s.must(s.lab.Switch.Netlink().AddrAdd(link, &netlink.Addr{IPNet: ip, Flags: unix.IFA_F_NODAD}))
}

// vrrp is the address of a virtual router (RFC 9568 7.3).
var vrrp = netlab.MAC{0, 0, 0x5e, 0, 1, 7}

// macvlan adds an interface above the host's end of the first side, as keepalived does, and updates the switch.
func (s *site) macvlan(mode netlink.MacvlanMode) netlink.Link {
	s.t.Helper()
	nl := s.lab.Switch.Netlink()
	below, err := nl.LinkByName(s.sides[0].gateway)
	s.must(err)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.ParentIndex, attrs.HardwareAddr = "vrrp7", below.Attrs().Index, vrrp[:]
	s.must(nl.LinkAdd(&netlink.Macvlan{LinkAttrs: attrs, Mode: mode}))
	link, err := nl.LinkByName("vrrp7")
	s.must(err)
	s.address(link, "10.0.1.254/32")
	s.must(nl.LinkSetUp(link))
	s.lab.Bascule("fdb", "add", "br0", vrrp.String(), s.sides[0].gateway, "--vlan", s.sides[0].vlan)
	// Without an agent, a command updates the addresses.
	s.lab.Bascule("port", "set", "br0", s.sides[0].end.Port, "--learn")
	return link
}

// to returns the frame with another destination MAC.
func to(mac netlab.MAC, f netlab.Frame) netlab.Frame {
	return netlab.Frame(slices.Concat(mac[:], []byte(f)[6:]))
}

// expectAt is like expect, for packets to another MAC of the host.
func (s *site) expectAt(what string, mac netlab.MAC, arrives, routed bool) {
	s.t.Helper()
	s.compare(what, func() netlab.Frame { return to(mac, s.udp4(s.sides[1].station4, s.made)) }, arrives, routed)
}

// Packets to a macvlan above the host's end are routed as by the macvlan: keepalived has the addresses of virtual
// routers there.
func TestMacvlan(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		nl := s.lab.Switch.Netlink()
		above := s.macvlan(netlink.MACVLAN_MODE_PRIVATE)
		s.expectAt("a virtual router's address", vrrp, true, true)
		s.expect("the host's end below it", s.sides[1].station4, true, true)
		filter := func(value string) {
			s.must(s.lab.Switch.Do(func() error { return sysctl(map[string]string{"ipv4/conf/vrrp7/rp_filter": value}) }))
		}
		filter("1") // the way back is through the host's end
		s.expectAt("with a strict check", vrrp, false, false)
		filter("2")
		s.expectAt("with a loose check", vrrp, true, true)
		s.must(nl.LinkSetDown(above))
		s.expectAt("while it is down", vrrp, false, false)
		s.must(nl.LinkSetUp(above))
		s.expectAt("while it is up again", vrrp, true, true)
		s.must(nl.LinkDel(above))
		s.expectAt("when it has gone", vrrp, false, false)
		s.macvlan(netlink.MACVLAN_MODE_PASSTHRU) // it also takes the packets of the host's end
		before := s.routed()
		s.lab.Deliver(s.sides[0].end, s.udp4(s.sides[1].station4, 1), s.udp4(s.sides[1].station4, 2))
		if s.routed() > before {
			t.Error("packets are routed past a macvlan that takes them")
		}
	})
}

// udp6 returns a plain IPv6 packet from the first station to the second.
func (s *site) udp6(number uint16) netlab.Frame {
	return recipe{six: true, dst: s.sides[1].station6, ttl: 64, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}.frame(s, number)
}

// six is like expect, for IPv6.
func (s *site) six(what string, arrives, routed bool) {
	s.t.Helper()
	s.compare(what, func() netlab.Frame { return s.udp6(s.made) }, arrives, routed)
}

// If another device takes the frames of the host's end, the host does not route them.
func TestTaken(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		nl := s.lab.Switch.Netlink()
		in, err := nl.LinkByName(s.sides[0].gateway)
		s.must(err)
		s.six("at first", true, true)
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "lxbr0"
		s.must(nl.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
		s.lab.Keep("lxbr0")
		taker, err := nl.LinkByName("lxbr0")
		s.must(err)
		s.must(nl.LinkSetUp(taker))
		s.must(nl.LinkSetMaster(in, taker))
		before := s.routed()
		s.lab.Deliver(s.sides[0].end, s.udp6(4), s.udp6(5))
		if s.routed() > before {
			t.Error("packets are routed that a bridge takes")
		}
		s.must(nl.LinkSetNoMaster(in))
		s.six("without the bridge", true, true)
	})
}

// A host port whose interface is down takes no packets.
func TestDown(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		nl := s.lab.Switch.Netlink()
		in, err := nl.LinkByName(s.sides[0].gateway)
		s.must(err)
		s.six("at first", true, true)
		s.must(nl.LinkSetDown(in))
		s.six("with the interface down", false, false)
	})
}

// A source is checked according to rp_filter, also if ip rules choose the route.
func TestReversePath(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		nl := s.lab.Switch.Netlink()
		_, away, _ := net.ParseCIDR("10.1.0.0/16")
		by := &netlink.Route{Dst: away, Gw: s.sides[1].station4.AsSlice()}
		s.must(nl.RouteReplace(by)) // the route for answers uses the other port
		s.expect("without a check", s.sides[1].station4, true, true)
		filter := func(value string) {
			s.must(s.lab.Switch.Do(func() error { return sysctl(map[string]string{"ipv4/conf/gw1/rp_filter": value}) }))
		}
		filter("1")
		s.expect("with a strict check", s.sides[1].station4, false, false)
		filter("2")
		s.expect("with a loose check", s.sides[1].station4, true, true)
		// An ip rule for packets that come in there: the check of the source does not evaluate it.
		rule := netlink.NewRule()
		rule.IifName, rule.Table, rule.Priority, rule.Family = s.sides[0].gateway, 77, 100, netlink.FAMILY_V4
		in, err := nl.LinkByName(s.sides[0].gateway)
		s.must(err)
		_, all, _ := net.ParseCIDR("10.0.2.0/24")
		out, err := nl.LinkByName(s.sides[1].gateway)
		s.must(err)
		s.must(nl.RouteAdd(&netlink.Route{Dst: all, LinkIndex: out.Attrs().Index, Table: 77, Scope: netlink.SCOPE_LINK}))
		s.must(nl.RouteAdd(&netlink.Route{Dst: away, Gw: s.sides[0].station4.AsSlice(), LinkIndex: in.Attrs().Index, Table: 77}))
		s.must(nl.RuleAdd(rule))
		filter("1")
		s.expect("with a rule that the check does not ask", s.sides[1].station4, false, false)
		filter("0")
		s.expect("with a rule and no check", s.sides[1].station4, true, true)
	})
}

// A trace follows a packet to its output, or shows why it is left to the host.
func TestTrace(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		before := s.routed()
		for _, c := range []struct {
			name  string
			frame netlab.Frame
			want  []string // substrings of the steps, in this order
			end   string
		}{
			{"routed", s.udp4(s.sides[1].station4, 1),
				[]string{"send: by gw1", "route: the datapath routes it by gw2 to " + s.sides[1].end.MAC.String(), "port: it comes in by gw2", "send: by " + s.sides[1].end.Port}, "forwarded"},
			{"IPv6", s.udp6(1),
				[]string{"route: the datapath routes it by gw2 to " + s.sides[1].end.MAC.String(), "send: by " + s.sides[1].end.Port}, "forwarded"},
			{"the end of its time to live", recipe{dst: s.sides[1].station4, ttl: 1, proto: unix.IPPROTO_UDP, size: plainLoad, tag: -1}.frame(s, 1),
				[]string{"send: by gw1", "route: left to the host: ttl, it must not go further"}, "forwarded"},
			{"a black hole", s.udp4(netip.MustParseAddr("10.8.0.1"), 1), []string{"route: left to the host: refused,"}, "forwarded"},
			{"the host itself", s.udp4(s.sides[0].ip4.Addr(), 1), []string{"route: left to the host: local,"}, "forwarded"},
			{"no neighbour", s.udp4(netip.MustParseAddr("10.0.2.99"), 1), []string{"route: left to the host: neighbour,"}, "forwarded"},
			{"tagged on its way in", s.udp4(s.sides[1].station4, 1).Tagged(11, 3), []string{"route: the datapath routes it by gw2", "send: by " + s.sides[1].end.Port}, "forwarded"},
		} {
			steps, verdict := s.trace(c.frame)
			at := 0
			for _, text := range steps {
				if at < len(c.want) && strings.Contains(text, c.want[at]) {
					at++
				}
			}
			if at < len(c.want) || verdict != c.end {
				t.Errorf("%s: lacks %q; verdict %q, want %q; the steps are\n  %s", c.name, c.want[min(at, len(c.want)-1)], verdict, c.end, strings.Join(steps, "\n  "))
			}
		}
		if s.routed() != before {
			t.Error("a trace is counted")
		}
	})
}

// The output may be a port of another bridge of the host.
func TestOtherBridge(t *testing.T) {
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			s := newSiteIn(t, netlab.New(t), hook, "br1")
			s.expect("another bridge", s.sides[1].station4, true, true)
			s.six("another bridge", true, true)
			steps, verdict := s.trace(s.udp4(s.sides[1].station4, 1))
			if text := strings.Join(steps, "\n  "); !strings.Contains(text, "bridge: br1 goes on") || verdict != "forwarded" {
				t.Errorf("a trace says %q, and\n  %s", verdict, text)
			}
		})
	}
}

// The output may be any other device of the host.
func TestOtherDevice(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		e := s.lab.NewEnds(1)[0]
		nl := s.lab.Switch.Netlink()
		out, err := nl.LinkByName(e.Port)
		s.must(err)
		s.address(out, "10.0.3.1/24")
		s.must(nl.LinkSetUp(out))
		hop := netip.MustParseAddr("10.0.3.2")
		s.must(nl.NeighSet(&netlink.Neigh{LinkIndex: out.Attrs().Index, IP: hop.AsSlice(), HardwareAddr: e.MAC[:], State: netlink.NUD_PERMANENT}))
		sent, got := s.byDatapath("another device", e, func() netlab.Frame { return s.udp4(hop, s.made) })
		want := slices.Clone([]byte(sent))
		copy(want, e.MAC[:])
		copy(want[6:], out.Attrs().HardwareAddr)
		want[14+8]--
		copy(want[14+10:], []byte{0, 0})
		binary.BigEndian.PutUint16(want[14+10:], checksum(want[14:34]))
		if text := hex.EncodeToString([]byte(got)); text != hex.EncodeToString(want) {
			t.Errorf("what arrives is\n  %s, want\n  %x", text, want)
		}
		steps, _ := s.trace(sent)
		if text := strings.Join(steps, "\n  "); !strings.Contains(text, "send: by "+e.Port+", a device of the host") {
			t.Errorf("a trace says\n  %s", text)
		}
	})
}

// A device with the index and the MAC of a deleted host port's interface is not that interface: packets that the host
// sends through it do not enter the bridge.
func TestWayOutOfSameIndex(t *testing.T) {
	gone := map[string]func(s *site, l netlink.Link){
		"deleted": func(s *site, l netlink.Link) { s.must(s.lab.Switch.Netlink().LinkDel(l)) },
		"moved": func(s *site, l netlink.Link) {
			away, err := netns.GetFromName(s.lab.NewNamespace().Name)
			s.must(err)
			defer away.Close()
			s.must(s.lab.Switch.Netlink().LinkSetNsFd(l, int(away)))
		},
	}
	for name, goes := range gone {
		t.Run(name, func(t *testing.T) {
			onHooks(t, func(t *testing.T, s *site) {
				s.expect("at first", s.sides[1].station4, true, true)
				nl := s.lab.Switch.Netlink()
				was, err := nl.LinkByName(s.sides[1].gateway)
				s.must(err)
				goes(s, was)
				attrs := netlink.NewLinkAttrs()
				attrs.Name, attrs.Index, attrs.HardwareAddr = "other", was.Attrs().Index, s.sides[1].mac[:]
				s.must(nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "behind"}))
				behind, err := nl.LinkByName("behind")
				s.must(err)
				s.must(nl.LinkSetUp(behind))
				other, err := nl.LinkByName("other")
				s.must(err)
				s.must(nl.LinkSetUp(other))
				s.address(other, s.sides[1].ip4.String())
				s.must(nl.NeighSet(&netlink.Neigh{LinkIndex: attrs.Index, IP: s.sides[1].station4.AsSlice(),
					HardwareAddr: s.sides[1].end.MAC[:], State: netlink.NUD_PERMANENT}))
				s.expect("by another device", s.sides[1].station4, false, false)
				s.must(nl.LinkDel(other))
			})
		})
	}
}

// A device without a carrier takes no packets, as in the stack.
func TestWayOutWithoutCarrier(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		nl := s.lab.Switch.Netlink()
		end, err := nl.LinkByName(s.sides[1].gateway)
		s.must(err)
		other, err := nl.LinkByIndex(end.Attrs().ParentIndex) // The switch's end of the pair.
		s.must(err)
		s.expect("at first", s.sides[1].station4, true, true)
		s.must(nl.LinkSetDown(other))
		s.lab.Wait("the carrier to go", func() bool {
			l, err := nl.LinkByName(s.sides[1].gateway)
			s.must(err)
			return l.Attrs().OperState == netlink.OperLowerLayerDown
		})
		s.expect("without a carrier", s.sides[1].station4, false, false)
		s.must(nl.LinkSetUp(other))
		s.expect("with it again", s.sides[1].station4, true, true)
	})
}

// A trace shows that the switch has not learned the MAC of the output interface yet.
func TestTraceOfNewAddress(t *testing.T) {
	s := newSite(t, "tcx")
	nl := s.lab.Switch.Netlink()
	out, err := nl.LinkByName(s.sides[1].gateway)
	s.must(err)
	s.must(nl.LinkSetHardwareAddr(out, net.HardwareAddr{2, 0x57, 0, 0, 0, 0x77}))
	// The interface has lost its neighbours with its address.
	s.must(nl.NeighSet(&netlink.Neigh{LinkIndex: out.Attrs().Index, IP: s.sides[1].station4.AsSlice(),
		HardwareAddr: s.sides[1].end.MAC[:], State: netlink.NUD_PERMANENT}))
	steps, _ := s.trace(s.udp4(s.sides[1].station4, 1))
	if text := strings.Join(steps, "\n  "); !strings.Contains(text, "left to the host: other") {
		t.Errorf("a trace says\n  %s", text)
	}
	s.lab.Bascule("bridge", "set", "br0")
	s.expect("when the switch knows it", s.sides[1].station4, true, true)
}

// Circular routes through bridges end as in the stack: with an error from the host, not with a frame that a bridge has
// dropped.
func TestRoutesInCircle(t *testing.T) {
	s := newSite(t, "tcx")
	// Both gateways are in one VLAN, and a next hop has the MAC of the first one.
	for _, change := range [][]string{{"add", "11", "--pvid", "--untagged"}, {"del", "12"}} {
		s.lab.Bascule(append([]string{"vlan", change[0], "br0", s.sides[1].gateway}, change[1:]...)...)
	}
	hop, behind := netip.MustParseAddr("10.0.2.77"), netip.MustParseAddr("10.77.1.1")
	s.hop(hop.String(), s.sides[0].mac)
	s.ip("route add 10.77.0.0/16 via 10.0.2.77")
	s.lab.Bascule("bridge", "set", "br0")
	steps, verdict := s.trace(s.udp4(behind, 1))
	if text := strings.Join(steps, "\n  "); verdict != "forwarded" || !strings.Contains(text, "left to the host: trip") {
		t.Errorf("a trace says %q, and\n  %s", verdict, text)
	}
	// The packet reaches the stack with half of its hops left, and then the bridge again.
	before := s.counted("trip")
	for range 3 { // the host may get one of them for its next hop
		s.deliver(s.sides[1].end, false, s.udp4(behind, s.made))
	}
	if s.counted("trip") == before {
		t.Errorf("no packet has been left to the host after its last hop: %v", s.lab.Port("br0", s.sides[0].gateway).Routed)
	}
	for _, port := range []string{s.sides[0].gateway, s.sides[1].gateway, s.sides[0].end.Port} {
		if n := s.lab.Port("br0", port).Drops["patch-loop"]; n > 0 {
			t.Errorf("%s has dropped %d as patch-loop", port, n)
		}
	}
}

// No packet is lost when a port starts to route and stops, although CPUs remember routes through it.
func TestRouteOnAndOff(t *testing.T) {
	s := newSite(t, "tcx")
	drops := func() uint64 {
		return s.lab.Port("br0", s.sides[0].end.Port).Drops["no-peer"] + s.lab.Port("br0", s.sides[0].gateway).Drops["no-peer"]
	}
	var out int
	s.must(s.sides[0].end.Namespace.Do(func() (err error) {
		if out, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		device, err := net.InterfaceByName(s.sides[0].end.Ifname)
		if err != nil {
			return err
		}
		return unix.Bind(out, &unix.SockaddrLinklayer{Ifindex: device.Index})
	}))
	defer unix.Close(out)
	var stop atomic.Bool
	var sent sync.WaitGroup
	packet := s.udp4(s.sides[1].station4, 1)
	failed := make(chan error, 1)
	sent.Add(1)
	go func() {
		defer sent.Done()
		for !stop.Load() {
			if err := unix.Send(out, []byte(packet), 0); err != nil && !errors.Is(err, unix.ENOBUFS) {
				failed <- err
				return
			}
		}
	}()
	for range 20 {
		before := s.routed()
		s.lab.Wait("packets to be routed", func() bool { return s.routed() > before })
		s.lab.Bascule("port", "set", "br0", s.sides[1].gateway, "--route=off")
		s.lab.Bascule("port", "set", "br0", s.sides[1].gateway, "--route")
	}
	stop.Store(true)
	sent.Wait()
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	if n := drops(); n > 0 {
		t.Errorf("%d packets were lost on their way to a port that no longer routes", n)
	}
}

// stations sets up the network stacks of the stations.
func (s *site) stations() {
	s.t.Helper()
	for _, side := range s.sides {
		e := side.end
		nl := e.Namespace.Netlink()
		s.must(e.Namespace.Do(func() error {
			return sysctl(map[string]string{"ipv6/conf/" + e.Ifname + "/disable_ipv6": "0", "ipv6/conf/" + e.Ifname + "/accept_dad": "0"})
		}))
		link, err := nl.LinkByName(e.Ifname)
		s.must(err)
		s.must(nl.LinkSetUp(link))
		for _, at := range []struct {
			own netip.Addr
			net netip.Prefix
		}{{side.station4, side.ip4}, {side.station6, side.ip6}} {
			gateway := at.net.Addr()
			s.must(nl.AddrAdd(link, &netlink.Addr{
				IPNet: &net.IPNet{IP: at.own.AsSlice(), Mask: net.CIDRMask(at.net.Bits(), at.own.BitLen())}, Flags: unix.IFA_F_NODAD,
			}))
			s.must(nl.NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, IP: gateway.AsSlice(), HardwareAddr: side.mac[:], State: netlink.NUD_PERMANENT}))
			s.must(nl.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: gateway.AsSlice()}))
		}
	}
}

// A connection between real stations uses large packets, with checksums that the stations leave to their devices.
func TestConnection(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		s.stations()
		const size = 4 << 20
		for _, to := range []netip.Addr{s.sides[1].station4, s.sides[1].station6} {
			before := s.routed()
			s.transfer(to, size)
			routed := s.routed() - before
			t.Logf("%d bytes to %s: the datapath has routed %d packets", size, to, routed)
			if routed*10 < size/65536 {
				t.Errorf("of %d bytes to %s the datapath has routed %d packets", size, to, routed)
			}
			if strings.HasSuffix(t.Name(), "/tcx") && routed > size/1500/2 {
				t.Errorf("%d bytes to %s are %d packets: they are not kept whole", size, to, routed)
			}
		}
	})
}

// transfer sends bytes over TCP from the first station to the second, and compares them. It returns the first station's
// path MTU.
func (s *site) transfer(to netip.Addr, size int) (mtu int) {
	s.t.Helper()
	return s.transferAs(to, to, size)
}

// transferAs does the same if the first station uses another address than the second one has.
func (s *site) transferAs(ask, to netip.Addr, size int) (mtu int) {
	s.t.Helper()
	sent := make([]byte, size)
	for i := range sent {
		sent[i] = byte(i ^ i>>8 ^ i>>16)
	}
	var listener net.Listener
	s.must(s.sides[1].end.Namespace.Do(func() (err error) {
		listener, err = net.Listen("tcp", net.JoinHostPort(to.String(), "7"))
		return err
	}))
	defer listener.Close()
	var conn net.Conn
	s.must(s.sides[0].end.Namespace.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", net.JoinHostPort(ask.String(), "7"), patience)
		return err
	}))
	defer conn.Close()
	wrote := make(chan error, 1)
	go func() {
		_, err := conn.Write(sent)
		wrote <- errors.Join(err, conn.(*net.TCPConn).CloseWrite())
	}()
	in, err := listener.Accept()
	s.must(err)
	defer in.Close()
	s.must(in.SetReadDeadline(time.Now().Add(patience)))
	got, err := io.ReadAll(in)
	s.must(err)
	s.must(<-wrote)
	if !bytes.Equal(got, sent) {
		s.t.Errorf("%d bytes arrive of %d, or others", len(got), len(sent))
	}
	raw, err := conn.(*net.TCPConn).SyscallConn()
	s.must(err)
	s.must(raw.Control(func(fd uintptr) {
		var info *unix.TCPInfo
		if info, err = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			mtu = int(info.Pmtu)
		}
	}))
	s.must(err)
	return mtu
}

// Filters of the ports apply to routed packets: at the port of entry, at the host ports on both sides of the host, as
// the host sees the packet, and at the output port.
func TestFilters(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		in, out := s.sides[0], s.sides[1]
		for _, rule := range []string{
			"block in on " + in.end.Port, "block in on " + in.gateway, "block out on " + out.gateway, "block out on " + out.end.Port,
		} {
			load := func(rules string) {
				file := filepath.Join(t.TempDir(), "pf.conf")
				s.must(os.WriteFile(file, []byte("pass no state\n"+rules), 0o644))
				s.lab.Bascule("pfctl", "-b", "br0", "-f", file)
			}
			load(rule + " inet proto udp from any to any\n")
			if got := s.deliver(out.end, false, s.udp4(out.station4, s.made), s.udp4(out.station4, s.made)); len(got) > 0 {
				t.Errorf("a packet arrives in spite of %q", rule)
			}
			load("")
			s.expect("without "+rule, out.station4, true, true)
		}
	})
}

// A cable that existed before does not matter to a port that routes.
func TestBesideCable(t *testing.T) {
	l := netlab.New(t)
	for _, bridge := range []string{"brA", "brB"} {
		l.Bascule("bridge", "add", bridge)
	}
	l.Bascule("port", "add", "brA", "a", "--type", "patch", "--peer", "brB/b")
	s := newSiteIn(t, l, "tcx")
	s.expect("with a cable", s.sides[1].station4, true, true)
	l.Bascule("bridge", "del", "brA")
	l.Bascule("bridge", "del", "brB")
	s.expect("without the cable", s.sides[1].station4, true, true)
}

// A configuration that cannot route is refused in one line, and nothing is changed.
func TestRefusals(t *testing.T) {
	l := netlab.New(t)
	station := l.NewEnds(1)[0]
	l.AddBridge("br0", "tcx", nil)
	l.AddBridge("br1", "tcx", nil)
	l.Bascule("port", "add", "br0", "gw1", "--type", "host", "--route")
	before := l.Bascule("export")
	for _, c := range []struct{ words, args []string }{
		{[]string{"only a host port routes"}, []string{"port", "add", "br0", station.Port, "--route"}},
		{[]string{"only a host port routes"}, []string{"port", "add", "br0", "a", "--type", "patch", "--peer", "br1/b", "--route"}},
		{[]string{"gw1", "host port gw1 of bridge br0"}, []string{"port", "add", "br1", "gw1", "--type", "host", "--route"}},
	} {
		if r := l.Refused(c.words, c.args...); strings.Count(strings.TrimSpace(r.Stderr), "\n") > 0 {
			t.Errorf("%v: more than a line: %s", c.args, r.Stderr)
		}
	}
	if after := l.Bascule("export"); after != before {
		t.Errorf("before\n%s\nafter\n%s", before, after)
	}
}

// A port that cannot route is refused. A port that routes is shown, exported and made again.
func TestCommands(t *testing.T) {
	s := newSite(t, "tcx")
	s.lab.Refused([]string{"only a host port routes"}, "port", "set", "br0", s.sides[0].end.Port, "--route")
	file := s.lab.Bascule("export")
	if !strings.Contains(file, "route: on") && !strings.Contains(file, "route: true") {
		t.Errorf("the export does not say that ports route:\n%s", file)
	}
	s.route(false)
	s.expect("switched off", s.sides[1].station4, true, false)
	s.route(true)
	s.expect("switched on again", s.sides[1].station4, true, true)
	s.lab.Bascule("port", "del", "br0", s.sides[1].gateway)
	s.sides = [2]*side{s.sides[0], {end: s.sides[1].end, bridge: "br0", gateway: s.sides[0].gateway, station4: s.sides[1].station4}}
	s.expect("without the way out", s.sides[1].station4, false, false)
}

// TestNetfilterWarning: a command that makes a port route warns of the host's netfilter rules that are bypassed.
func TestNetfilterWarning(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(1)
	l.AddBridge("br0", "tcx", ends)
	nft := func(rules string) {
		t.Helper()
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if err := l.Switch.Do(func() error {
			out, err := cmd.CombinedOutput()
			return errors.Join(err, errors.New(string(out)))
		}); err.Error() != "" {
			t.Fatal(err)
		}
	}
	add := func(args ...string) string {
		t.Helper()
		r, err := l.Run(append([]string{"port"}, args...)...)
		if err != nil || r.Exit != 0 {
			t.Fatalf("%v %+v", err, r)
		}
		return r.Stderr
	}
	const past = "bypass rules of the host: "
	nft("table inet mine { chain base { type filter hook input priority 0; }; chain other { }; }; table bridge b { chain f { type filter hook forward priority 0; }; }")
	if said := add("add", "br0", "gw1", "--type", "host", "--route"); strings.Contains(said, past) {
		t.Errorf("no rule meets what is routed, and it says %s", said)
	}
	nft("table ip nat { chain post { type nat hook postrouting priority srcnat; }; }; table inet mine { chain walls { type filter hook forward priority 0; }; }")
	want := "gw2: packets that the datapath routes " + past + "nftables inet mine walls, nftables ip nat post; "
	if said := add("add", "br0", "gw2", "--type", "host", "--route"); !strings.Contains(said, want) {
		t.Errorf("it says %q, want %q", said, want)
	}
	if said := add("add", "br0", "gw3", "--type", "host"); strings.Contains(said, past) {
		t.Errorf("a port that does not route says %q", said)
	}
	if said := add("set", "br0", "gw3", "--route"); !strings.Contains(said, "gw3: packets that the datapath routes "+past) {
		t.Errorf("set: it says %q", said)
	}
	if said := add("set", "br0", "gw3", "--isolated"); strings.Contains(said, past) {
		t.Errorf("of what was said before it says %q", said)
	}
}

// TestShort: if the kernel has no memory for an entry in the table of routed ports at the moment, the entry is made a
// moment later.
func TestShort(t *testing.T) {
	l := netlab.New(t)
	l.AddBridge("br0", "tcx", nil)
	l.Bascule("port", "add", "br0", "gw1", "--type", "host")
	for n, last := 1, 1; n <= last; n++ {
		if n > 1 && !netlab.Place() {
			continue
		}
		l.Bascule("port", "set", "br0", "gw1", "--route=off")
		cmd := func() *exec.Cmd {
			return exec.Command(l.Binary(), "-n", l.Switch.Name, "port", "set", "br0", "gw1", "--route=on")
		}
		if n == 1 {
			_, count, err := netlab.RunCounted(cmd(), "bpf")
			if last = count["bpf"]; err != nil || last < 50 {
				t.Fatalf("%d calls, %v", last, err)
			}
			continue
		}
		r, err := netlab.RunFailing(cmd(), "bpf", n, unix.ENOMEM)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(r.Stderr, "routed port gw1: update") {
			t.Errorf("call %d of %d: %s", n, last, r.Stderr)
		}
	}
}

// A gateway belongs to one bridge. Another one that claims it is refused, by a command and in a file, and nothing
// changes.
func TestOneGateway(t *testing.T) {
	t.Parallel()
	s := newSite(t, "tcx")
	s.lab.Bascule("bridge", "add", "br1")
	before := s.lab.Bascule("-j", "port", "show", "br0")
	s.lab.Refused([]string{"gw1", "br0"}, "port", "add", "br1", "gw1", "--type", "host", "--route")
	file := filepath.Join(t.TempDir(), "bascule.yaml")
	s.must(os.WriteFile(file, []byte("bridges:\n  br1:\n    ports:\n      gw1: {type: host, route: true}\n"), 0o600))
	s.lab.Refused([]string{"gw1", "br1"}, "apply", file)
	if n := len(s.lab.Ports("br1")); n != 0 {
		t.Errorf("the other bridge has %d ports", n)
	}
	if after := s.lab.Bascule("-j", "port", "show", "br0"); len(after) != len(before) {
		t.Errorf("the bridge is\n%s\nwant\n%s", after, before)
	}
	s.route(true)
	s.expect("the gateway of its bridge", s.sides[1].station4, true, true)
}
