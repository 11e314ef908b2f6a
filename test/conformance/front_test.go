// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"bascule/test/netlab"
)

var frontCases = []conformance{
	{name: "tags_deep", hooks: both, run: tagsDeep},
	{name: "snap", hooks: both, run: snap},
	{name: "pppoe", hooks: both, run: pppoe},
	{name: "mpls", hooks: both, run: mpls},
	{name: "bound_address_stays", hooks: both, run: boundAddressStays},
}

// behind puts something in front of what a frame carries.
func behind(f netlab.Frame, front ...[]byte) netlab.Frame {
	return f[:12] + netlab.Frame(slices.Concat(front...)) + f[12:]
}

// inSNAP puts what a frame carries behind LLC and SNAP, with an OUI (RFC 1042, 802.1H).
func inSNAP(f netlab.Frame, oui string) netlab.Frame {
	return behind(f, be16(len(f)-12+6), []byte("\xaa\xaa\x03"+oui))
}

// A front is a way to put something in front of a packet.
type front struct {
	name string
	put  func(netlab.Frame) netlab.Frame
}

// tagFronts are 0 to 12 tags of one kind each, and of several.
func tagFronts() (list []front) {
	for _, kind := range []struct {
		name string
		tags [][]byte
	}{
		{"8100", [][]byte{{0x81, 0, 0, 0}}},
		{"8100 with priority", [][]byte{{0x81, 0, 0xe0, 0}}},
		{"88a8", [][]byte{{0x88, 0xa8, 0, 0}}},
		{"9100", [][]byte{{0x91, 0, 0, 0}}},
		{"8100 VLAN 10", [][]byte{{0x81, 0, 0, 10}}},
		{"8100 and 88a8", [][]byte{{0x81, 0, 0, 0}, {0x88, 0xa8, 0, 0}}},
		{"8100 and 9100", [][]byte{{0x81, 0, 0, 0}, {0x91, 0, 0, 0}}},
	} {
		for depth := range 13 {
			list = append(list, front{fmt.Sprintf("%d tags of %s", depth, kind.name), func(f netlab.Frame) netlab.Frame {
				for i := range depth {
					f = behind(f, kind.tags[i%len(kind.tags)])
				}
				return f
			}})
		}
	}
	return list
}

// The packets that filters are to hold back, from A to B.
var (
	anIPv4    = udp4(B, A, "10.0.0.66", "10.0.0.2", [2]int{5000, 4000}, 1, 2, 3, 4)
	anIPv6    = packet6(B, A, "fe80::66", "fe80::2", protoUDP, be16(5000), be16(4000), be16(8), be16(0))
	anARP     = arpFrame(B, A, arpReply, A, "10.0.0.66", B, "10.0.0.2")
	anOffer   = udp4(B, A, "10.0.0.66", "10.0.0.2", [2]int{67, 68}, 2)
	anAdvert  = packet6(B, A, "fe80::66", "ff02::1", protoICMPv6, icmp6("fe80::66", "ff02::1", []byte{routerAdvertisement, 0, 0, 0}, make([]byte, 12)))
	noPacket  = etherFrame(B, A, 0x88b5)
	ipPackets = []netlab.Frame{anIPv4, anIPv6}
	packets   = []netlab.Frame{anIPv4, anIPv6, anARP}
)

// A holder is a filter, the frames that it holds back, and how to switch it on
// and off.
type holder struct {
	name    string
	holds   []netlab.Frame
	on, off func(t *testing.T, l *netlab.Lab)
}

func bascule(line string) func(*testing.T, *netlab.Lab) {
	return func(t *testing.T, l *netlab.Lab) { l.Bascule(strings.Fields(line)...) }
}

func pfWith(rules string) func(*testing.T, *netlab.Lab) {
	return func(t *testing.T, l *netlab.Lab) { loadPF(t, l, rules) }
}

// withoutPF: a bridge that has had no rules begins with pf enabled.
func withoutPF(t *testing.T, l *netlab.Lab) {
	pfctl(t, l, "", "-d")
	pfctl(t, l, "", "-Fa")
}

var holders = []holder{
	{"pf", ipPackets, pfWith("block drop all\n"), withoutPF},
	{"pf port", ipPackets, pfWith("block drop in proto udp to port 4000\n"), withoutPF},
	{"ether", packets, pfWith("ether block in proto { 0x0800 0x86dd 0x0806 }\n"), withoutPF},
	{"ether l3", ipPackets, pfWith("ether block in l3 from 10.0.0.66\nether block in l3 from fe80::66\n"), withoutPF},
	{"rule arp", []netlab.Frame{anARP}, bascule("rule add br0 p1 block in arp"), bascule("rule flush br0")},
	{"rule arp spa", []netlab.Frame{anARP}, bascule("rule add br0 p1 block in arp spa 10.0.0.66"), bascule("rule flush br0")},
	{"rule out", []netlab.Frame{anARP}, bascule("rule add br0 p2 block out arp reply"), bascule("rule flush br0")},
	{"source guard", packets, bascule("port set br0 p1 --source-guard"), bascule("port set br0 p1 --source-guard=off")},
	{"DHCP guard", []netlab.Frame{anOffer}, bascule("bridge set br0 --dhcp-guard"), bascule("bridge set br0 --dhcp-guard=off")},
	{"RA guard", []netlab.Frame{anAdvert}, bascule("bridge set br0 --ra-guard"), bascule("bridge set br0 --ra-guard=off")},
	{"non-IP", []netlab.Frame{noPacket}, bascule("port set br0 p1 --block-non-ip"), bascule("port set br0 p1 --block-non-ip=off")},
}

// holdBack sends what each filter is to hold back, behind each front, with and
// without the filter. Not all that there is without one has to arrive, but some
// of each.
func holdBack(t *testing.T, hook string, fronts []front, holders []holder) {
	for _, flags := range [][]string{nil, {"--vlan-filtering", "--qinq"}} {
		t.Run(strings.Join(append([]string{"bridge"}, flags...), " "), func(t *testing.T) {
			l, ends := setup(t, hook, 2, flags...)
			a, b := ends[0], ends[1]
			learn(l, a, A)
			learn(l, b, B)
			for _, h := range holders {
				var frames []netlab.Frame
				for _, f := range fronts {
					for _, packet := range h.holds {
						frames = append(frames, f.put(packet))
					}
				}
				if got := l.Deliver(a, frames...)[b]; len(got) < len(frames)/2 {
					t.Errorf("%s: without it %d of %d frames arrive", h.name, len(got), len(frames))
				}
				h.on(t, l)
				if len(l.Deliver(a, frames...)[b]) > 0 {
					for i, f := range fronts { // one by one, to tell which
						frames := frames[i*len(h.holds) : (i+1)*len(h.holds)]
						if got := l.Deliver(a, frames...)[b]; len(got) > 0 {
							t.Errorf("%s: %d of %d frames pass behind %s, first %x", h.name, len(got), len(frames), f.name, []byte(got[0]))
						}
					}
				}
				h.off(t, l)
			}
		})
	}
}

// tagsDeep: stations look behind any number of tags, and so do filters, or let
// nothing through.
func tagsDeep(t *testing.T, hook string) { holdBack(t, hook, tagFronts(), holders) }

// snap: some stations take IP and ARP behind LLC and SNAP.
func snap(t *testing.T, hook string) {
	var fronts []front
	for _, oui := range []string{"\x00\x00\x00", "\x00\x00\xf8"} {
		for tags := range 4 {
			fronts = append(fronts,
				front{fmt.Sprintf("%d tags and SNAP with OUI %x", tags, oui), func(f netlab.Frame) netlab.Frame {
					f = inSNAP(f, oui)
					for range tags {
						f = f.Tagged(0, 0)
					}
					return f
				}},
				front{fmt.Sprintf("SNAP with OUI %x and %d tags", oui, tags), func(f netlab.Frame) netlab.Frame {
					for range tags {
						f = f.Tagged(0, 0)
					}
					return inSNAP(f, oui)
				}},
			)
		}
	}
	holdBack(t, hook, fronts, holders)
}

// otherHolders are the filters of what carries IP and is none.
func otherHolders(types string, frames ...netlab.Frame) []holder {
	return []holder{
		{"ether", frames, pfWith("ether block in proto " + types + "\n"), withoutPF},
		{"ether but IP", frames, pfWith("ether block in\nether pass in proto { 0x0800 0x86dd 0x0806 }\n"), withoutPF},
		{"non-IP", frames, bascule("port set br0 p1 --block-non-ip"), bascule("port set br0 p1 --block-non-ip=off")},
		{"non-IP out", frames, bascule("port set br0 p2 --block-non-ip"), bascule("port set br0 p2 --block-non-ip=off")},
		{"rule", frames, bascule("rule add br0 p1 block in src " + A.String()), bascule("rule flush br0")},
	}
}

// pppoe: a session of PPPoE (RFC 2516) is one of its own, which other filters
// than those of IP keep out, behind whatever number of tags.
func pppoe(t *testing.T, hook string) {
	session := func(protocol int, packet netlab.Frame) netlab.Frame {
		return etherFrame(B, A, 0x8864, []byte{0x11, 0, 0, 1}, be16(len(packet)-14+2), be16(protocol), []byte(packet[14:]))
	}
	holdBack(t, hook, tagFronts(), otherHolders("{ 0x8863 0x8864 }",
		etherFrame(B, A, 0x8863, []byte{0x11, 9, 0, 0, 0, 4, 1, 1, 0, 0}), session(0x21, anIPv4), session(0x57, anIPv6)))
}

// mpls: the same for MPLS (RFC 3032).
func mpls(t *testing.T, hook string) {
	labelled := func(typ, labels int, packet netlab.Frame) netlab.Frame {
		var stack []byte
		for n := range labels {
			bottom := byte(0)
			if n == labels-1 {
				bottom = 1
			}
			stack = append(stack, 0, 1, bottom, 64)
		}
		return etherFrame(B, A, typ, stack, []byte(packet[14:]))
	}
	holdBack(t, hook, tagFronts(), otherHolders("{ 0x8847 0x8848 }",
		labelled(0x8847, 1, anIPv4), labelled(0x8847, 3, anIPv6), labelled(0x8848, 1, anIPv4)))
}

// boundAddressStays: no frame of a guarded port has the switch learn there an
// address that is bound elsewhere, whatever it carries.
func boundAddressStays(t *testing.T, hook string) {
	nobody := netlab.MAC{}
	everyone, group6 := netlab.Broadcast, netlab.MAC{0x33, 0x33, 0, 0, 0, 1}
	solicitation := icmp6("::", "ff02::1:ff00:3", []byte{solicit, 0, 0, 0, 0, 0, 0, 0}, ip("fe80::3"))
	report := icmp6("::", "ff02::16", []byte{143, 0, 0, 0, 0, 0, 0, 1, 4, 0, 0, 0}, ip("ff02::1:ff00:3"))
	llc := netlab.Frame(slices.Concat(everyone[:], C[:], be16(46), []byte{0x42, 0x42, 3}, make([]byte, 43)))
	frames := []struct {
		name string
		netlab.Frame
	}{
		{"DHCP", udp4(everyone, C, "0.0.0.0", "255.255.255.255", [2]int{68, 67}, 1, 1, 6, 0)},
		{"ARP probe", arpFrame(everyone, C, arpRequest, C, "0.0.0.0", nobody, "192.0.2.3")},
		{"ARP probe for another", arpFrame(everyone, C, arpRequest, C, "0.0.0.0", nobody, "192.0.2.9")},
		{"ARP with its address", arpFrame(everyone, C, arpReply, C, "192.0.2.3", nobody, "192.0.2.3")},
		{"ARP with the port's address", arpFrame(everyone, C, arpReply, C, "192.0.2.1", nobody, "192.0.2.1")},
		{"RARP request", etherFrame(everyone, C, 0x8035, be16(1), be16(typeIPv4), []byte{6, 4}, be16(3), C[:], ip("0.0.0.0"), C[:], ip("0.0.0.0"))},
		{"RARP with the port's address", etherFrame(everyone, C, 0x8035, be16(1), be16(typeIPv4), []byte{6, 4}, be16(4), C[:], ip("192.0.2.1"), C[:], ip("192.0.2.1"))},
		{"RS", packet6(group6, C, "::", "ff02::2", protoICMPv6, icmp6("::", "ff02::2", []byte{133, 0, 0, 0, 0, 0, 0, 0}))},
		{"MLD", packet6(group6, C, "::", "ff02::16", protoICMPv6, report)},
		{"NS", packet6(group6, C, "::", "ff02::1:ff00:3", protoICMPv6, solicitation)},
		{"NS with its address", nd(group6, C, "fe80::3", "ff02::1:ff00:2", solicit, 0, "fe80::2", 1, C)},
		{"NA", nd(group6, C, "fe80::3", "ff02::1", advertise, 0x20, "fe80::3", 2, C)},
		{"UDP with the port's address", udp4(everyone, C, "192.0.2.1", "192.0.2.255", [2]int{7, 7})},
		{"LLC", llc},
		{"another type", etherFrame(everyone, C, 0x88b5)},
		{"PPPoE", etherFrame(everyone, C, 0x8863, []byte{0x11, 9, 0, 0, 0, 4, 1, 1, 0, 0})},
		{"DHCP in SNAP", inSNAP(udp4(everyone, C, "0.0.0.0", "255.255.255.255", [2]int{68, 67}, 1), "\x00\x00\x00")},
	}
	for _, flags := range [][]string{nil, {"--vlan-filtering", "--qinq"}} {
		t.Run(strings.Join(append([]string{"bridge"}, flags...), " "), func(t *testing.T) {
			l, ends := setup(t, hook, 3, flags...)
			a, b, c := ends[0], ends[1], ends[2]
			vlan, of := 0, []string{}
			if flags != nil {
				vlan, of = 1, []string{"--vlan", "1"}
			}
			for end, station := range map[*netlab.End]struct {
				mac  netlab.MAC
				four string
				six  string
			}{a: {A, "192.0.2.1", "fe80::1"}, c: {C, "192.0.2.3", "fe80::3"}} {
				for _, address := range []string{station.four, station.six} {
					l.Bascule(append([]string{"binding", "add", "br0", end.Port, station.mac.String(), address}, of...)...)
				}
			}
			l.Bascule("port", "set", "br0", a.Port, "--source-guard")
			learn(l, b, B)
			for _, f := range frames {
				for tags := range 4 {
					frame := f.Frame
					for range tags {
						frame = frame.Tagged(0, 0)
					}
					name := fmt.Sprintf("%s behind %d tags", f.name, tags)
					// nobody has heard the station yet
					l.Send(a, frame)
					if e := find(l.FDB("br0"), C, vlan); e != nil {
						t.Errorf("%s is learned: %v", name, e)
					}
					// it has been heard at its own port
					learn(l, c, C)
					l.Send(a, frame)
					if got := l.Deliver(b, l.Frames(1, C, B)...); len(got[a]) != 0 || len(got[c]) != 1 {
						t.Errorf("%s draws away frames for the station: %d come to the guarded port, %d to its own", name, len(got[a]), len(got[c]))
					}
					l.Bascule("fdb", "flush", "br0")
					learn(l, b, B)
				}
			}
		})
	}
}
