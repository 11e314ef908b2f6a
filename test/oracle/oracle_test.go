// SPDX-License-Identifier: BSD-2-Clause

// Package oracle observes what a real station accepts of the packets that the switch lets
// through. It sends packets that a filter must hold back, one filter at a time, behind anything
// that may stand in front of a packet. Whatever the station's stack accepts has passed the
// filter.
package oracle

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"bascule/test/netlab"
)

// frames is the number of packets that each filter in each place has to hold back.
var frames = flag.Int("oracle.frames", 256, "packets that are sent to each filter on each hook of each kind of bridge")

// batch is the approximate number of packets between two looks at the oracle.
const batch = 200

// TestMain makes the run short and repeatable; `make fuzz` makes it long.
func TestMain(m *testing.M) {
	flag.Parse()
	short := map[string]string{"rapid.checks": fmt.Sprint((*frames + batch - 1) / batch), "rapid.seed": "1", "rapid.nofailfile": "true"}
	flag.Visit(func(f *flag.Flag) { delete(short, f.Name) })
	for name, value := range short {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(netlab.Main(m))
}

// A filter is a way to hold packets back.
type filter struct {
	name  string
	kinds []string  // kinds of the packets that are sent
	froms []station // their senders
	on    func(s *site)
	off   func(s *site)
	// alarm returns whether the oracle must not see the sighting.
	alarm  func(s sighting) bool
	tables bool // the oracle's tables have to be read, too
	moves  bool // the other station's frames have to be checked, too
	// passes is the kind that the filter lets through, and from is its sender.
	passes string
	from   station
}

func any4(s sighting) bool { return s.by == handlerIP4 || s.by == handlerIP6 }

// atSockets returns whether a socket has received something.
func atSockets(s sighting) bool {
	return s.by == socketUDP || s.by == socketTCP || s.by == socketICMP4 || s.by == socketICMP6
}

func pfRules(rules string) func(*site) {
	return func(s *site) { s.pfctl(rules, "-f", "-") }
}

func pfOff(s *site) { s.pfctl("", "-d"); s.pfctl("", "-Fa") }

func macRule(port int, rule string) func(*site) {
	return func(s *site) {
		s.lab.Bascule(append([]string{"rule", "add", "br0", s.ports[port]}, strings.Fields(rule)...)...)
	}
}

// setting changes settings of the ports with these numbers.
func setting(words string, ports ...int) func(*site) {
	return func(s *site) {
		for _, port := range ports {
			s.lab.Bascule(append([]string{"port", "set", "br0", s.ports[port]}, strings.Fields(words)...)...)
		}
	}
}

func isNonIP(s sighting) bool {
	return s.by == handlerData || s.by == handlerLLC || s.by == handlerPPPoE || s.by == handlerMPLS
}

func macOff(s *site) { s.lab.Bascule("rule", "flush", "br0") }

var (
	plainIP = []string{"udp4", "udp6", "tcp4", "tcp6", "icmp4", "icmp6", "error4", "error6", "udp4 broadcast", "udp6 all", "dhcp4 server", "dhcp6 server", "ra", "ns", "na"}
	anyone  = []station{sender, nobody}
)

var filters = []filter{
	{
		name: "pf all", kinds: plainIP, froms: anyone,
		on: pfRules("block drop all\n"), off: pfOff, alarm: func(s sighting) bool { return any4(s) || atSockets(s) },
		passes: "data", from: sender,
	},
	{
		name: "pf port", kinds: []string{"udp4", "udp6", "udp4 broadcast", "udp6 all"}, froms: anyone,
		on: pfRules(fmt.Sprintf("pass\nblock drop in proto udp to port %d\n", portOpen)), off: pfOff,
		alarm:  func(s sighting) bool { return s.by == socketUDP && s.ports[1] == portOpen },
		passes: "udp4 also", from: sender,
	},
	{
		name: "pf address", kinds: plainIP, froms: []station{nobody},
		on: pfRules(fmt.Sprintf("pass no state\nblock drop in from { %v %v }\n", nobody.ip4, nobody.ip6)), off: pfOff,
		alarm:  func(s sighting) bool { return atSockets(s) && (s.from == nobody.ip4 || s.from == nobody.ip6) },
		passes: "udp6", from: sender,
	},
	{
		name: "ether type", kinds: append([]string{"arp request", "arp reply", "gratuitous arp"}, plainIP...), froms: anyone,
		on: pfRules("ether block in proto { 0x0800 0x86dd 0x0806 }\n"), off: pfOff,
		alarm:  func(s sighting) bool { return any4(s) || s.by == handlerARP || atSockets(s) },
		passes: "data", from: sender,
	},
	{
		name: "ether address", kinds: plainIP, froms: []station{nobody},
		on: pfRules(fmt.Sprintf("ether block in l3 from %v\nether block in l3 from %v\n", nobody.ip4, nobody.ip6)), off: pfOff,
		alarm:  func(s sighting) bool { return atSockets(s) && (s.from == nobody.ip4 || s.from == nobody.ip6) },
		passes: "udp4", from: sender,
	},
	{
		name: "rule arp", kinds: []string{"arp request", "arp reply", "gratuitous arp"}, froms: anyone,
		on: macRule(0, "block in arp"), off: macOff, alarm: func(s sighting) bool { return s.by == tableARP }, tables: true,
		passes: "udp4", from: sender,
	},
	{
		name: "rule arp fields", kinds: []string{"arp request", "arp reply", "gratuitous arp"}, froms: []station{nobody},
		on: macRule(0, "block in arp spa "+nobody.ip4.String()), off: macOff,
		alarm: func(s sighting) bool { return s.by == tableARP && s.from == nobody.ip4 }, tables: true,
		passes: "arp request", from: sender,
	},
	{
		name: "source guard", moves: true, tables: true,
		kinds: append([]string{"arp request", "arp reply", "gratuitous arp", "rarp", "dad", "rs", "mld", "data", "llc", "dhcp4 discover"}, plainIP...),
		froms: []station{other, nobody, {other.mac, sender.ip4, sender.ip6}, {nobody.mac, sender.ip4, sender.ip6}, {sender.mac, other.ip4, other.ip6}},
		on: func(s *site) {
			for port, of := range map[string]station{s.in(): sender, s.ports[2]: other} {
				for _, a := range []string{of.ip4.String(), of.ip6.String()} {
					s.lab.Bascule(append([]string{"binding", "add", "br0", port, of.mac.String(), a}, s.vlan()...)...)
				}
			}
			s.lab.Bascule("port", "set", "br0", s.in(), "--source-guard")
		},
		off: func(s *site) {
			s.lab.Bascule("port", "set", "br0", s.in(), "--source-guard=off")
			s.lab.Bascule("binding", "flush", "br0")
		},
		alarm: func(s sighting) bool {
			says := any4(s) || s.by == tableARP || s.by == tableND
			none := !s.from.IsValid() || s.from.IsUnspecified() // no address yet, or no IP packet
			own := s.mac == sender.mac && (s.from == sender.ip4 || s.from == sender.ip6)
			return says && !none && !own || s.by == moved
		},
		passes: "udp4", from: sender,
	},
	{
		name: "dhcp guard", kinds: []string{"dhcp4 server", "dhcp4 server, other port", "dhcp6 server"}, froms: anyone,
		on:  func(s *site) { s.lab.Bascule("bridge", "set", "br0", "--dhcp-guard") },
		off: func(s *site) { s.lab.Bascule("bridge", "set", "br0", "--dhcp-guard=off") },
		alarm: func(s sighting) bool {
			return s.by == socketUDP && (s.ports[1] == 68 && s.typ == dhcpReply || s.ports[1] == 546)
		},
		passes: "udp4", from: sender,
	},
	{
		name: "ra guard", kinds: []string{"ra", "redirect"}, froms: anyone, tables: true,
		on:  func(s *site) { s.lab.Bascule("bridge", "set", "br0", "--ra-guard") },
		off: func(s *site) { s.lab.Bascule("bridge", "set", "br0", "--ra-guard=off") },
		alarm: func(s sighting) bool {
			return s.by == socketICMP6 && (s.typ == 134 || s.typ == 137) || s.by == tableRoutes
		},
		passes: "udp6", from: sender,
	},
	{
		name: "non-IP", kinds: []string{"data", "llc"}, froms: anyone,
		on: setting("--block-non-ip", 0), off: setting("--block-non-ip=off", 0), alarm: isNonIP,
		passes: "udp4", from: sender,
	},
	{
		name: "protected", kinds: append([]string{"data", "llc", "arp request"}, plainIP...), froms: anyone,
		on: setting("--protected 1", 0, 1), off: setting("--protected none", 0, 1), alarm: func(s sighting) bool { return s.by == onWire || atSockets(s) },
	},
	{
		name: "locked", kinds: append([]string{"data", "llc", "arp request"}, plainIP...), froms: anyone,
		on: func(s *site) {
			setting("--locked --learn=off", 0)(s)
			s.lab.Bascule("fdb", "flush", "br0")
		},
		off: setting("--locked=off --learn=on", 0), alarm: func(s sighting) bool { return s.by == onWire || atSockets(s) },
	},
	// The same filters on the way out.
	{
		name: "pf out", kinds: plainIP, froms: anyone,
		on: func(s *site) { pfRules("pass\nblock drop " + s.outward() + "\n")(s) }, off: pfOff, alarm: func(s sighting) bool { return any4(s) || atSockets(s) },
		passes: "data", from: sender,
	},
	{
		name: "ether out", kinds: append([]string{"arp request", "arp reply", "gratuitous arp"}, plainIP...), froms: anyone,
		on: func(s *site) { pfRules("ether block " + s.outward() + " proto { 0x0800 0x86dd 0x0806 }\n")(s) }, off: pfOff,
		alarm:  func(s sighting) bool { return any4(s) || s.by == handlerARP || atSockets(s) },
		passes: "data", from: sender,
	},
	{
		name: "rule arp out", kinds: []string{"arp request", "arp reply", "gratuitous arp"}, froms: []station{nobody},
		on: macRule(1, "block out arp spa "+nobody.ip4.String()), off: macOff,
		alarm: func(s sighting) bool { return s.by == tableARP && s.from == nobody.ip4 }, tables: true,
		passes: "udp4", from: sender,
	},
	{
		name: "non-IP out", kinds: []string{"data", "llc"}, froms: anyone,
		on: setting("--block-non-ip", 1), off: setting("--block-non-ip=off", 1), alarm: isNonIP,
		passes: "udp4", from: sender,
	},
}

// moved is the sense of the other station: it reports a frame that the station misses.
const moved = "other station"

// A bridge is a kind of bridge.
type bridge struct {
	name  string
	flags []string
	vlans bool
	host  []string // the oracle is the host, behind a host port with these flags
}

var bridges = []bridge{
	{"plain", nil, false, nil},
	{"vlans", []string{"--vlan-filtering", "--qinq"}, true, nil},
	{"service vlans", []string{"--vlan-filtering", "--qinq", "--vlan-protocol", "802.1ad"}, true, nil},
	{"host", nil, false, []string{"--type", "host"}},
	{"host that routes", []string{"--vlan-filtering", "--qinq"}, true, []string{"--type", "host", "--route"}},
}

// A site is a switch with the sender, the oracle and the other station.
type site struct {
	t     testing.TB
	lab   *netlab.Lab
	kind  bridge
	from  sending
	ports [3]string // ports of the sender, the oracle and the other station
	to    station   // the destination of packets
	*oracle
	mark   int
	routed bool // the host routes; it does not route broadcasts and multicasts
}

// sending is the sender's way of sending: a ring at its end, or a tap.
type sending struct {
	send     func(packets []netlab.Packet, took func())
	received func() []netlab.Frame
	claims   bool // it attaches a header to a packet that says how to complete it
	tunnels  bool // packets in tunnels, too
}

func byRing(end *netlab.End) sending {
	return sending{send: end.NewRing().Send, received: end.Received}
}

func byTap(tap *netlab.Tap) sending {
	send := func(packets []netlab.Packet, took func()) { tap.Packets(packets, took) }
	return sending{send: send, received: tap.Received, claims: true, tunnels: tap.Tunnels()}
}

func (s *site) in() string { return s.ports[0] }

// outward is the part of a pf rule for packets to the oracle. At a host port they come in to the
// host.
func (s *site) outward() string {
	if s.kind.host != nil {
		return "in on " + s.ports[1]
	}
	return "out on " + s.ports[1]
}

// other returns the end of the other station.
func (s *site) other() *netlab.End { return s.lab.Ends[len(s.lab.Ends)-1] }

// vlan is the argument of a command for the VLAN of untagged frames.
func (s *site) vlan() []string {
	if s.kind.vlans {
		return []string{"--vlan", "1"}
	}
	return nil
}

func (s *site) pfctl(stdin string, args ...string) {
	s.t.Helper()
	cmd := s.lab.Command(append([]string{"pfctl"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	r, err := netlab.RunCommand(cmd)
	if err != nil || r.Exit != 0 {
		s.t.Fatal(r, err)
	}
}

// newSite makes a site whose sender is at a cable or, if tapped, at a tap.
func newSite(t *testing.T, hook string, kind bridge, tapped bool) *site {
	l := netlab.New(t)
	s := &site{t: t, lab: l, kind: kind, to: receiver}
	s.ports[0] = s.addSender(tapped)
	var at *netlab.End
	if kind.host == nil {
		at = l.NewEnd(l.NewNamespace())
		s.ports[1] = at.Port
	}
	s.ports[2] = l.NewEnd(l.NewNamespace()).Port
	s.addBridge(hook, kind.flags...)
	if kind.host != nil {
		s.ports[1] = "gw0"
		l.Bascule(append([]string{"port", "add", "br0", "gw0"}, kind.host...)...)
		at = hostEnd(t, l, "gw0")
		s.to.mac = at.MAC
	} else {
		at.FinishChecksums()
	}
	if kind.vlans {
		// a frame that comes with a tag of VLAN 10 leaves without it
		l.Bascule("vlan", "add", "br0", s.ports[0], "10")
		l.Bascule("vlan", "add", "br0", s.ports[1], "10", "--untagged")
	}
	s.oracle = newOracle(t, at, receiver)
	s.await(sender)
	return s
}

// addSender makes the sender's end, or a tap instead, and returns the name of its port.
func (s *site) addSender(tapped bool) string {
	end := s.lab.NewEnd(s.lab.NewNamespace())
	if tapped {
		s.from = byTap(s.lab.NewTap("tap0", true))
		return "tap0"
	}
	s.from = byRing(end)
	return end.Port
}

// addBridge makes the bridge, with ports for the sender and all other ends.
func (s *site) addBridge(hook string, flags ...string) {
	if !s.from.claims {
		s.lab.AddBridge("br0", hook, s.lab.Ends, flags...)
		return
	}
	s.lab.AddBridge("br0", hook, s.lab.Ends[1:], flags...)
	s.lab.Bascule("port", "add", "br0", s.in())
}

// hostEnd returns the host's end of a host port.
func hostEnd(t testing.TB, l *netlab.Lab, port string) *netlab.End {
	t.Helper()
	nl := l.Switch.Netlink()
	link, err := nl.LinkByName(port)
	if err == nil {
		err = nl.LinkSetUp(link)
	}
	if err != nil {
		t.Fatal(err)
	}
	mac := netlab.MAC(link.Attrs().HardwareAddr)
	return &netlab.End{
		Port: port, Namespace: l.Switch, Ifname: port, Ifindex: link.Attrs().Index, MAC: mac, Socket: l.Listen(l.Switch, port),
	}
}

// await waits until the oracle receives frames of a station: its stack is not ready for IPv6 at
// once.
func (s *site) await(from station) {
	s.t.Helper()
	s.lab.Wait("the oracle to hear", func() bool {
		return slices.ContainsFunc(s.send(&filter{}, s.intact("udp6", from, false, 0)), atSockets)
	})
}

// send sends the packets of the recipes, and returns what the oracle has seen.
func (s *site) send(f *filter, list ...recipe) (seen []sighting) {
	s.t.Helper()
	if f.moves {
		s.lab.Send(s.other(), s.lab.Frames(1, netlab.Broadcast, other.mac)...)
		s.hear()
	}
	var packets []netlab.Packet
	for _, r := range list {
		packets = append(packets, r.packets()...)
	}
	s.from.send(packets, func() {
		if s.kind.host != nil {
			s.lab.Flush() // a packet that the host forwards takes more steps
		}
		seen = append(seen, s.hear()...)
	})
	if f.tables {
		seen = append(seen, s.believes()...)
	}
	if f.moves {
		seen = append(seen, s.seek()...)
	}
	return seen
}

// seek sends a frame from the oracle's end to the other station, and returns a sighting if the
// station misses it. The switch has learned the station's address before.
func (s *site) seek() (list []sighting) {
	s.t.Helper()
	f := s.lab.Frames(1, other.mac, s.to.mac)
	got := s.lab.Deliver(s.end, f...)
	s.hear()
	if !slices.Contains(got[s.other()], f[0]) || slices.Contains(s.from.received(), f[0]) {
		list = append(list, sighting{by: moved, said: "misses a frame, or another has it "})
	}
	return list
}

// intact returns a recipe for a well-formed packet.
func (s *site) intact(kind string, from station, toAll bool, depth int) recipe {
	s.mark++
	return recipe{kind: kind, from: from, to: s.to, src: from.mac, toAll: toAll && !s.routed, wraps: slices.Repeat([]wrap{priority}, depth), hardware: 1, linear: 1500, mark: s.mark}
}

// alarms returns the sightings that must not occur.
func (f *filter) alarms(seen []sighting) (list []sighting) {
	for _, s := range seen {
		if f.alarm(s) {
			list = append(list, s)
		}
	}
	return list
}

func TestOracle(t *testing.T) {
	for _, hook := range []string{"tcx", "xdp"} {
		for _, kind := range bridges {
			t.Run(hook+"/"+kind.name, func(t *testing.T) {
				t.Parallel()
				newSite(t, hook, kind, false).holdsEach(t, filters)
			})
		}
	}
}

// A tap's program attaches a header to each packet that says how to complete it: which checksum
// is missing, and how to segment the packet. The kernel does so after all filters.
func TestTapOracle(t *testing.T) {
	for _, kind := range bridges {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, "tcx", kind, true)
			s.cuts(t, sender, kind.host != nil)
			s.holdsEach(t, filters)
		})
	}
	for _, by := range []string{"stack", "datapath"} {
		t.Run("routed by the "+by, func(t *testing.T) {
			t.Parallel()
			s := newRoutedSite(t, "tcx", by == "datapath", true)
			if by == "stack" { // the datapath passes packets to the station as they are
				s.cuts(t, farSender, true)
			}
			s.holdsEach(t, routedFilters)
		})
	}
}

// cuts verifies that the kernel segments the packets of a tap, and that the oracle sees the
// segments. A veth takes all packets whole, except datagrams that become fragments.
func (s *site) cuts(t *testing.T, from station, veth bool) {
	t.Helper()
	for _, c := range []struct {
		kind       string
		flags, gso byte
	}{
		{"tcp4", netlab.ClaimNeedsCsum, netlab.ClaimGSOTCPv4}, {"tcp6", netlab.ClaimNeedsCsum, netlab.ClaimGSOTCPv6},
		{"udp4", 0, netlab.ClaimGSOUDP}, {"udp6", 0, netlab.ClaimGSOUDP},
		{"udp4", netlab.ClaimNeedsCsum, netlab.ClaimGSOUDPL4}, {"udp6", netlab.ClaimNeedsCsum, netlab.ClaimGSOUDPL4},
	} {
		if veth && c.gso != netlab.ClaimGSOUDP {
			continue
		}
		r := s.intact(c.kind, from, true, 0)
		r.size = 1200
		r.claim = claim{on: true, right: true, put: netlab.Claim{Flags: c.flags, GSO: c.gso, Size: 504}}
		pieces := 0
		for _, s := range s.send(&filter{}, r) {
			if s.by == handlerIP4 || s.by == handlerIP6 {
				pieces++
			}
		}
		if pieces < 3 {
			t.Errorf("of %v the oracle sees %d pieces", r, pieces)
		}
	}
}

// holdsEach tests filters in a place, each alone. With -short it tests a tenth of them: loading a filter takes longer
// than its packets.
func (s *site) holdsEach(t *testing.T, filters []filter) {
	for _, f := range netlab.Some(filters) {
		t.Run(f.name, func(t *testing.T) {
			s.t, s.oracle.t = t, t
			s.holds(t, &f)
		})
	}
}

// holds tests a filter.
func (s *site) holds(t *testing.T, f *filter) {
	// Nested lists reach this number of packets, and rapid can shrink them at once.
	kinds, froms := f.kinds, f.froms
	if f.passes != "" { // Some of them pass: the switch must not apply its remembered decision to the others.
		kinds, froms = append(slices.Clone(kinds), f.passes), append(slices.Clone(froms), f.from)
	}
	draws := rapid.SliceOfN(rapid.SliceOfN(rapid.SliceOfN(recipes(kinds, froms, s.to, s.from), 1, 100), 1, 100), 1, 100)
	s.sees(t, f, draws)
	// A first fragment that another filter let through would get its remaining fragments
	// here.
	s.lab.Wait("the station to give up fragments", func() bool { return !s.pieces() })
	f.on(s)
	defer f.off(s)
	sent := 0
	defer func() { t.Logf("%d packets sent", sent) }()
	rapid.Check(t, func(t *rapid.T) {
		list := slices.Concat(slices.Concat(draws.Draw(t, "packets")...)...)
		sent += len(list)
		if alarms := f.alarms(s.send(f, list...)); len(alarms) > 0 {
			t.Fatalf("of %d packets the oracle has seen %v", len(list), report(list, alarms))
		}
		// A packet that may pass does.
		if f.passes != "" {
			r := s.intact(f.passes, f.from, false, len(list)%2)
			if !slices.ContainsFunc(s.send(f, r), func(s sighting) bool { return s.mark == r.mark || s.by == tableARP }) {
				t.Fatalf("%v has not arrived", r)
			}
		}
	})
}

// sees verifies that the oracle sees the packets that a filter must hold back while the filter
// is off: each kind, behind every number of tags, and a good part of the random ones.
func (s *site) sees(t *testing.T, f *filter, draws *rapid.Generator[[][][]recipe]) {
	t.Helper()
	for i := range max(13, len(f.kinds)) {
		r := s.intact(f.kinds[i%len(f.kinds)], f.froms[0], i%2 == 1, i%13)
		if seen := s.send(f, r); len(f.alarms(seen)) == 0 {
			t.Fatalf("the oracle is blind: it does not see %v, but %v", r, seen)
		}
	}
	sent, taken := 0, 0
	for example := range 2 {
		list := slices.Concat(slices.Concat(draws.Example(example)...)...)
		for i := range list {
			list[i].toAll = list[i].toAll && !s.routed
			// A fragment would get its remaining fragments while the filter is on.
			list[i].pieces, list[i].fragment = 0, fragment{}
		}
		sent += len(list)
		for _, s := range s.send(f, list...) {
			if strings.HasPrefix(s.by, handler) {
				taken++
			}
		}
	}
	t.Logf("of %d frames the oracle's stack takes %d", sent, taken)
	if taken < sent/3 {
		t.Fatalf("the oracle is blind: of %d frames its stack takes %d", sent, taken)
	}
}

func report(list []recipe, alarms []sighting) string {
	var b strings.Builder
	for _, a := range alarms[:min(len(alarms), 5)] {
		fmt.Fprintf(&b, "\n  %v", a)
		for _, r := range list {
			if r.mark == a.mark || len(list) == 1 {
				fmt.Fprintf(&b, "\n    of %v", r)
				for _, p := range r.packets() {
					fmt.Fprintf(&b, "\n      %x", p.Frame)
				}
			}
		}
	}
	return b.String()
}
