// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// What filters have judged is what is delivered.
var sealedCases = []conformance{
	{name: "unfinished_checksum", hooks: both, run: unfinishedChecksum},
	{name: "unfinished_header", hooks: tcx, run: unfinishedHeader},
	{name: "unfinished_tunnel", hooks: tcx, run: unfinishedTunnel},
	{name: "shared_pages", hooks: both, run: sharedPages},
}

type sealHolder struct {
	holder
	innocent netlab.Frame // of the same length; without one all but the bytes that change is the same
}

// sealHolders are filters that hold back what changes at any place, and how a frame
// in its stead passes: with these bytes in the place of the frame's.
var sealHolders = []sealHolder{
	{pfHolder("pf port", ipPackets, "pass\nblock drop in proto udp to port 4000\n"), ""},
	{pfHolder("pf port and no other", ipPackets, "block drop\npass proto udp to port 80\n"),
		udp4(B, A, "10.0.0.66", "10.0.0.2", [2]int{5000, 80}, 1, 2, 3, 4)},
	{pfHolder("pf address", ipPackets, "pass\nblock drop in from { 10.0.0.66 fe80::66 }\n"), ""},
	{pfHolder("pf address out", ipPackets, "pass\nblock drop out from { 10.0.0.66 fe80::66 }\n"), ""},
	{pfHolder("ether", packetsIn(2), "ether block in proto { 0x0800 0x86dd 0x0806 }\n"), ""},
	{pfHolder("ether l3", ipPackets, "ether block in l3 from 10.0.0.66\nether block in l3 from fe80::66\n"), ""},
	{holder{name: "rule arp", holds: []netlab.Frame{anARP, anARP.Tagged(0, 0).Tagged(0, 0)}, on: bascule("rule add br0 p1 block in arp spa 10.0.0.66"), off: bascule("rule flush br0")}, ""},
	{holder{name: "rule arp out", holds: []netlab.Frame{anARP}, on: bascule("rule add br0 p2 block out arp reply"), off: bascule("rule flush br0")}, ""},
	{holder{name: "source guard", holds: packets, on: func(t *testing.T, l *netlab.Lab) {
		bind := []string{"binding", "add", "br0", "p1", A.String()}
		if l.Bridge("br0").VLANFiltering {
			bind = append(bind, "--vlan", "1")
		}
		l.Bascule(append(bind, "10.0.0.65")...)
		l.Bascule(append(bind, "fe80::65")...)
		l.Bascule("port", "set", "br0", "p1", "--source-guard")
	}, off: func(t *testing.T, l *netlab.Lab) {
		l.Bascule("port", "set", "br0", "p1", "--source-guard=off")
		l.Bascule("binding", "flush", "br0")
	}}, ""},
	{holder{name: "DHCP guard", holds: []netlab.Frame{anOffer}, on: bascule("bridge set br0 --dhcp-guard"), off: bascule("bridge set br0 --dhcp-guard=off")}, ""},
	{holder{name: "RA guard", holds: []netlab.Frame{anAdvert}, on: bascule("bridge set br0 --ra-guard"), off: bascule("bridge set br0 --ra-guard=off")}, ""},
	{holder{name: "non-IP", holds: []netlab.Frame{noPacket.Tagged(0, 0).Tagged(0, 0)}, on: bascule("port set br0 p1 --block-non-ip"), off: bascule("port set br0 p1 --block-non-ip=off")},
		etherFrame(B, A, typeIPv4).Tagged(0, 0).Tagged(0, 0)},
}

// packetsIn are the packets behind so many priority tags.
func packetsIn(tags int) (list []netlab.Frame) {
	for _, f := range packets {
		for range tags {
			f = f.Tagged(0, 0)
		}
		list = append(list, f)
	}
	return list
}

// disguises are the two bytes that a frame has at a place until its checksum is made.
func disguises(f, innocent netlab.Frame, at int) [][2]byte {
	list := [][2]byte{{^f[at], ^f[at+1]}, {f[at], f[at+1] ^ 3}}
	if len(innocent) == len(f) {
		list = append(list, [2]byte{innocent[at], innocent[at+1]})
	}
	return list
}

// untagged is the frame without its priority tags, of which a bridge with VLANs takes
// one away.
func untagged(f netlab.Frame) netlab.Frame {
	for strings.HasPrefix(string(f[12:]), "\x81\x00\x00\x00") {
		f = f[:12] + f[16:]
	}
	return f
}

// A trick is a packet whose checksum is to be made, and the frame that it becomes by
// that.
type trick struct {
	packet  netlab.Packet
	becomes netlab.Frame
	said    string
}

// tricksOf are the tricks that end in one of some frames.
func tricksOf(frames []netlab.Frame, innocent netlab.Frame) (list []trick) {
	for _, f := range frames {
		for at := 20; at+2 <= len(f); at += 2 {
			for _, start := range []int{20, at} {
				for _, other := range disguises(f, innocent, at) {
					p, becomes, ok := netlab.Unfinished([]byte(f), at, other, start)
					if ok {
						list = append(list, trick{p, untagged(netlab.Frame(becomes)), fmt.Sprintf("%x from %d at %d", other, start, at)})
					}
				}
			}
		}
	}
	return list
}

// unfinishedChecksum: whoever leaves a checksum to be made says where, and the kernel
// writes it there after all filters. What a filter would have held back does not come
// out of that.
func unfinishedChecksum(t *testing.T, hook string) {
	bridges := [][]string{nil, {"--vlan-filtering", "--qinq"}}
	if hook == "xdp" { // where the sender's device makes the checksum
		bridges = bridges[:1]
	}
	for _, flags := range bridges {
		t.Run(strings.Join(append([]string{"bridge"}, flags...), " "), func(t *testing.T) {
			l, ends := setup(t, hook, 2, flags...)
			a, b := ends[0], ends[1]
			b.FinishChecksums()
			learn(l, a, A)
			learn(l, b, B)
			l.Flush()
			ring := a.NewRing()
			var list []holder
			for _, h := range sealHolders {
				list = append(list, h.holder)
			}
			eachHolder(t, l, list, func(h holder, on bool) {
				i := slices.IndexFunc(sealHolders, func(s sealHolder) bool { return s.name == h.name })
				tricks := tricksOf(h.holds, sealHolders[i].innocent)
				var all []netlab.Packet
				for _, trick := range tricks {
					all = append(all, trick.packet)
				}
				got := map[netlab.Frame]bool{}
				ring.Send(all, func() {
					for _, f := range b.Received() {
						got[untagged(f)] = true
					}
				})
				// those that have become what they were to become
				passed := slices.DeleteFunc(slices.Clone(tricks), func(trick trick) bool { return !got[trick.becomes] })
				if !on && len(passed) < len(tricks)/2 {
					t.Errorf("%s: without it %d of %d frames become what they are to", h.name, len(passed), len(tricks))
				}
				if on && len(passed) > 0 {
					t.Errorf("%s: %d of %d frames pass, such as %x (%s)", h.name, len(passed), len(tricks), passed[0].packet.Frame, passed[0].said)
				}
			})
		})
	}
}

// sharedPages: a sender who splices leaves a frame in its own memory, and can change it
// on its way. What a filter has looked at stays as it was then.
func sharedPages(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	from, to := a.Host(), b.Host()
	must(t, from.Ping(to.IPv4))
	queue := b.Queue()
	// arrives is the kind of DHCP message that arrives where a request becomes an answer on its way
	arrives := func() byte {
		queue.Received()
		page, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_SHARED)
		must(t, err)
		defer unix.Munmap(page)
		message := page[:300]
		message[0], message[1], message[2] = 1, 1, 6 // a request, by Ethernet
		copy(message[28:], a.MAC[:])
		must(t, a.Namespace.Do(func() error { return splice(message, from.IPv4, to.IPv4) }))
		l.Flush()
		message[0] = 2
		for _, f := range queue.Received() {
			if len(f) > 42 && f[23] == protoUDP && f[36:38] == "\x00\x44" {
				return f[42]
			}
		}
		return 0
	}
	if got := arrives(); hook == "tcx" && got != 2 {
		t.Errorf("without a filter: message %d arrives, not what it has become", got)
	}
	l.Bascule("bridge", "set", "br0", "--dhcp-guard")
	if got := arrives(); got != 1 {
		t.Errorf("message %d arrives: the guard has seen a request", got)
	}
}

// splice sends bytes to the port of DHCP clients, from where they are.
func splice(b []byte, from, to netip.Addr) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var pipe [2]int
	if err := unix.Pipe(pipe[:]); err != nil {
		return err
	}
	defer unix.Close(pipe[0])
	defer unix.Close(pipe[1])
	if err := errors.Join(
		unix.Bind(fd, &unix.SockaddrInet4{Port: 1067, Addr: from.As4()}),
		unix.Connect(fd, &unix.SockaddrInet4{Port: 68, Addr: to.As4()}),
	); err != nil {
		return err
	}
	v := unix.Iovec{Base: &b[0]}
	v.SetLen(len(b))
	if _, err := unix.Vmsplice(pipe[1], []unix.Iovec{v}, 0); err != nil {
		return fmt.Errorf("vmsplice: %w", err)
	}
	if _, err := unix.Splice(pipe[0], nil, fd, nil, len(b), 0); err != nil {
		return fmt.Errorf("splice: %w", err)
	}
	return nil
}

// unfinishedTunnel: the checksums of what a tunnel carries are yet to be made, too, at
// places where no filter looks. With all filters on it goes through whole.
func unfinishedTunnel(t *testing.T, hook string) {
	for _, outer := range []string{"198.19.0.", "fd19::"} {
		t.Run("over "+outer, func(t *testing.T) {
			l, ends := setup(t, hook, 2)
			hosts := make([]*netlab.Host, 2)
			for i, e := range ends {
				here, there := netip.MustParseAddr(fmt.Sprint(outer, i+1)), netip.MustParseAddr(fmt.Sprint(outer, 2-i))
				hosts[i] = l.NewTunnel(e, "vx0", here, there)
				l.Bascule("binding", "add", "br0", e.Port, e.MAC.String(), here.String())
				l.Bascule("port", "set", "br0", e.Port, "--source-guard", "--block-non-ip")
				l.Bascule("rule", "add", "br0", e.Port, "block", "in", "arp", "spa", "192.0.2.1")
			}
			l.Bascule("bridge", "set", "br0", "--dhcp-guard", "--ra-guard")
			loadPF(t, l, "block drop\npass proto udp to port 4789 no state\nether block in proto 0x88b5\n")
			must(t, netlab.Transfer(hosts[0], hosts[1], hosts[1].IPv4, 4<<20))
			must(t, netlab.Transfer(hosts[1], hosts[0], hosts[0].IPv6, 4<<20))
			for _, p := range l.Ports("br0") {
				if n := p.Drops["checksum"]; n > 0 {
					t.Errorf("%s: %d frames dropped as checksum", p.Ifname, n)
				}
			}
		})
	}
}
