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
	{name: "tags_deep", hooks: both, run: fronts(holders, carriage{name: "tags", fronts: tagFronts()})},
	{name: "snap", hooks: both, run: fronts(holders, carriage{name: "SNAP", fronts: snapFronts()})},
	{name: "pppoe", hooks: both, run: fronts(otherHolders, inPPPoE())},
	{name: "mpls", hooks: both, run: fronts(otherHolders, inMPLS())},
	{name: "bound_address_stays", hooks: both, run: boundAddressStays},
}

// behind inserts headers in front of a frame's payload.
func behind(f netlab.Frame, front ...[]byte) netlab.Frame {
	return f[:12] + netlab.Frame(slices.Concat(front...)) + f[12:]
}

// inSNAP puts a frame's payload behind LLC and SNAP, with an OUI (RFC 1042, 802.1H).
func inSNAP(f netlab.Frame, oui string) netlab.Frame {
	return behind(f, be16(len(f)-12+6), []byte("\xaa\xaa\x03"+oui))
}

// A front is a way to insert headers in front of a packet.
type front struct {
	name string
	put  func(netlab.Frame) netlab.Frame
}

// tagFronts are 0 to 12 tags of one kind each, and of several kinds.
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

// The packets from A to B that filters must hold back.
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

// A holder is a filter, the frames that it holds back, and functions that enable and disable it.
type holder struct {
	name    string
	holds   []netlab.Frame
	on, off func(t *testing.T, l *netlab.Lab)
	rules   bool // it uses pf's rules, which other rules replace
}

func bascule(line string) func(*testing.T, *netlab.Lab) {
	return func(t *testing.T, l *netlab.Lab) { l.Bascule(strings.Fields(line)...) }
}

// pfHolder returns a filter of pf rules.
func pfHolder(name string, holds []netlab.Frame, rules string) holder {
	return holder{name, holds, func(t *testing.T, l *netlab.Lab) {
		loadPF(t, l, rules)
		pfctl(t, l, "", "-Fstates") // states of former rules
	}, func(t *testing.T, l *netlab.Lab) {
		pfctl(t, l, "", "-d") // a bridge without former rules starts with pf enabled
		pfctl(t, l, "", "-Fa")
	}, true}
}

// eachHolder enables filters, one at a time, and calls look while one is enabled. It first calls look for the frames of
// all holders without a filter, and at the end for the first holder's without it.
func eachHolder(t *testing.T, l *netlab.Lab, list []holder, look func(h holder, on bool)) {
	for _, h := range list {
		look(h, false)
	}
	for i, h := range list {
		h.on(t, l)
		look(h, true)
		if !h.rules || i+1 == len(list) || !list[i+1].rules {
			h.off(t, l)
		}
	}
	look(list[0], false)
}

var holders = []holder{
	pfHolder("pf", ipPackets, "block drop all\n"),
	pfHolder("pf port", ipPackets, "block drop in proto udp to port 4000\n"),
	pfHolder("ether", packets, "ether block in proto { 0x0800 0x86dd 0x0806 }\n"),
	pfHolder("ether l3", ipPackets, "ether block in l3 from 10.0.0.66\nether block in l3 from fe80::66\n"),
	{name: "rule arp", holds: []netlab.Frame{anARP}, on: bascule("rule add br0 p1 block in arp"), off: bascule("rule flush br0")},
	{name: "rule arp spa", holds: []netlab.Frame{anARP}, on: bascule("rule add br0 p1 block in arp spa 10.0.0.66"), off: bascule("rule flush br0")},
	{name: "rule out", holds: []netlab.Frame{anARP}, on: bascule("rule add br0 p2 block out arp reply"), off: bascule("rule flush br0")},
	{name: "source guard", holds: packets, on: bascule("port set br0 p1 --source-guard"), off: bascule("port set br0 p1 --source-guard=off")},
	{name: "DHCP guard", holds: []netlab.Frame{anOffer}, on: bascule("bridge set br0 --dhcp-guard"), off: bascule("bridge set br0 --dhcp-guard=off")},
	{name: "RA guard", holds: []netlab.Frame{anAdvert}, on: bascule("bridge set br0 --ra-guard"), off: bascule("bridge set br0 --ra-guard=off")},
	{name: "non-IP", holds: []netlab.Frame{noPacket}, on: bascule("port set br0 p1 --block-non-ip"), off: bascule("port set br0 p1 --block-non-ip=off")},
}

// snapFronts are LLC and SNAP, with 0 to 3 tags in front of it or in it.
func snapFronts() (list []front) {
	for _, oui := range []string{"\x00\x00\x00", "\x00\x00\xf8"} {
		for tags := range 4 {
			list = append(list,
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
	return list
}

// A carriage has the fronts of a packet, and an encapsulation of it, if any. Filters look through it, or let nothing
// through.
type carriage struct {
	name   string
	fronts []front
	holds  []netlab.Frame // frames of otherHolders
}

// inPPPoE carries IP but is not IP: a PPPoE session (RFC 2516) is a protocol of its own, which other filters than IP's
// hold back, behind any number of tags.
func inPPPoE() carriage {
	session := func(protocol int, packet netlab.Frame) netlab.Frame {
		return etherFrame(B, A, 0x8864, []byte{0x11, 0, 0, 1}, be16(len(packet)-14+2), be16(protocol), []byte(packet[14:]))
	}
	return carriage{"PPPoE", tagFronts(), []netlab.Frame{
		etherFrame(B, A, 0x8863, []byte{0x11, 9, 0, 0, 0, 4, 1, 1, 0, 0}), session(0x21, anIPv4), session(0x57, anIPv6)}}
}

// inMPLS is the same with labels (RFC 3032).
func inMPLS() carriage {
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
	return carriage{"MPLS", tagFronts(), []netlab.Frame{labelled(0x8847, 1, anIPv4), labelled(0x8847, 3, anIPv6), labelled(0x8848, 1, anIPv4)}}
}

// otherHolders are the filters of protocols that carry IP but are not IP.
var otherHolders = []holder{
	pfHolder("ether", nil, "ether block in proto { 0x8863 0x8864 0x8847 0x8848 }\n"),
	pfHolder("ether but IP", nil, "ether block in\nether pass in proto { 0x0800 0x86dd 0x0806 }\n"),
	{name: "non-IP", on: bascule("port set br0 p1 --block-non-ip"), off: bascule("port set br0 p1 --block-non-ip=off")},
	{name: "non-IP out", on: bascule("port set br0 p2 --block-non-ip"), off: bascule("port set br0 p2 --block-non-ip=off")},
	{name: "rule", on: bascule("rule add br0 p1 block in src " + A.String()), off: bascule("rule flush br0")},
}

// fronts sends the frames that each filter must hold back, behind each front, with and without the filter. Without it
// some of each have to arrive, but not all.
func fronts(holders []holder, c carriage) func(t *testing.T, hook string) {
	return func(t *testing.T, hook string) {
		for _, flags := range [][]string{nil, {"--vlan-filtering", "--qinq"}} {
			t.Run(strings.Join(append([]string{"bridge"}, flags...), " "), func(t *testing.T) {
				l, ends := setup(t, hook, 2, flags...)
				learn(l, ends[0], A)
				learn(l, ends[1], B)
				eachHolder(t, l, holders, func(h holder, on bool) { c.try(t, l, ends[0], ends[1], h, on) })
			})
		}
	}
}

// try sends the frames that a filter must hold back, in the carriage, with the filter enabled or disabled.
func (c carriage) try(t *testing.T, l *netlab.Lab, a, b *netlab.End, h holder, on bool) {
	t.Helper()
	holds := slices.Concat(h.holds, c.holds)
	var frames []netlab.Frame
	for _, f := range c.fronts {
		for _, packet := range holds {
			frames = append(frames, f.put(packet))
		}
	}
	got := l.Deliver(a, frames...)[b]
	if !on && len(got) < len(frames)/2 {
		t.Errorf("%s: without it %d of %d frames arrive (%s)", h.name, len(got), len(frames), c.name)
	}
	if !on || len(got) == 0 {
		return
	}
	for i, f := range c.fronts { // one by one, to find which
		frames := frames[i*len(holds) : (i+1)*len(holds)]
		if got := l.Deliver(a, frames...)[b]; len(got) > 0 {
			t.Errorf("%s: %d of %d frames pass behind %s (%s), first %x", h.name, len(got), len(frames), f.name, c.name, []byte(got[0]))
		}
	}
}

// boundAddressStays: no frame of a guarded port, whatever it carries, makes the switch learn an address there that is
// bound elsewhere.
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
			type tagged struct {
				name  string
				frame netlab.Frame
			}
			var all []tagged
			for _, f := range frames {
				for tags := range 4 {
					all = append(all, tagged{fmt.Sprintf("%s behind %d tags", f.name, tags), f.Frame})
					f.Frame = f.Frame.Tagged(0, 0)
				}
			}
			// wrong returns an error if the state is wrong after the port has sent some of them.
			wrong := func(some []tagged) error {
				l.Bascule("fdb", "flush", "br0")
				learn(l, b, B)
				var sent []netlab.Frame
				for _, f := range some {
					sent = append(sent, f.frame)
				}
				// The station has not sent yet.
				l.Send(a, sent...)
				if e := find(l.FDB("br0"), C, vlan); e != nil {
					return fmt.Errorf("is learned: %v", e)
				}
				// It has sent from its own port.
				learn(l, c, C)
				l.Send(a, sent...)
				if got := l.Deliver(b, l.Frames(1, C, B)...); len(got[a]) != 0 || len(got[c]) != 1 {
					return fmt.Errorf("draws away frames for the station: %d come to the guarded port, %d to its own", len(got[a]), len(got[c]))
				}
				return nil
			}
			err := wrong(all)
			if err == nil {
				return
			}
			t.Errorf("one of all %v", err)
			for _, f := range all { // one by one, to find which
				if err := wrong([]tagged{f}); err != nil {
					t.Errorf("%s %v", f.name, err)
				}
			}
		})
	}
}
