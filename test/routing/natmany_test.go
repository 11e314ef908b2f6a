// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"encoding/binary"
	"flag"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"bascule/test/netlab"
)

// connections is the number of simultaneous translated connections; `make soak` has a million.
var connections = flag.Int("routing.connections", 20_000, "connections that are translated at once")

// Many connections to one server have a translated address and port each. All answers come back, also
// after a reload of the rules.
func TestNATMany(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		const window = 2000
		total := *connections
		// In the end half of the pool's ports are in use: an address has 15 535.
		pool := 1
		for pool*15_535 < 2*total {
			pool *= 2
		}
		bits := 32
		for n := pool; n > 1; n /= 2 {
			bits--
		}
		outside := netip.PrefixFrom(netip.MustParseAddr("198.18.0.0"), bits)
		// A connection has a state for the way in, and one for the way out.
		rules := fmt.Sprintf("set limit states %d\nset timeout { udp.first 86400, udp.single 86400, udp.multiple 86400 }\n"+
			"pass\nmatch out on gw2 inet proto udp from 10.1.0.0/16 nat-to %v random\n", 2*total+1000, outside)
		s.load(rules)
		server := port("10.0.2.2", 53)
		client := func(n int) netip.AddrPort {
			return port(fmt.Sprintf("10.1.%d.%d", 16+n/50_000, 1+n/250%200), 10_000+n%250)
		}

		// crosses sends datagrams from a side, and returns the ones that arrive at the other,
		// by their numbers.
		crosses := func(side int, frames []netlab.Frame) map[uint32]netlab.Frame {
			t.Helper()
			got := map[uint32]netlab.Frame{}
			add := func(list []netlab.Frame) {
				for _, f := range list {
					if !isUDP(f) {
						continue
					}
					number := binary.BigEndian.Uint32([]byte(f[14+20+8:]))
					if _, twice := got[number]; twice {
						t.Fatalf("datagram %d arrives twice", number)
					}
					got[number] = f
				}
			}
			at := s.sides[1-side].end
			add(s.lab.Deliver(s.sides[side].end, frames...)[at])
			s.lab.Wait(fmt.Sprintf("%d datagrams to arrive at %s", len(frames), at.Port), func() bool {
				if len(got) < len(frames) {
					add(at.Received())
				}
				return len(got) >= len(frames)
			})
			return got
		}

		became := make([]netip.AddrPort, total)
		owner := make(map[netip.AddrPort]int, total)
		for first := 0; first < total; first += window {
			var frames []netlab.Frame
			for n := first; n < min(first+window, total); n++ {
				frames = append(frames, s.leaves(0, client(n), server).frame(uint32(n)))
			}
			for number, f := range crosses(0, frames) {
				p := []byte(f)[14:]
				src := netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[12:])), binary.BigEndian.Uint16(p[20:]))
				if other, taken := owner[src]; taken {
					t.Fatalf("%v is that of connections %d and %d", src, other, number)
				}
				if !outside.Contains(src.Addr()) || src.Port() < 50_001 {
					t.Fatalf("connection %d has %v, which is not of the pool", number, src)
				}
				if want := s.arrives(1, src, server).frame(number); f != want {
					t.Fatalf("datagram %d arrives as %q, want %q", number, f, want)
				}
				owner[src], became[number] = int(number), src
			}
		}
		if !strings.Contains(strings.Join(strings.Fields(s.pfctl("", "-s", "info")), " "), fmt.Sprintf("current entries %d ", 2*total)) {
			t.Errorf("there are other than %d states:\n%s", 2*total, s.pfctl("", "-s", "info"))
		}
		s.load(strings.Replace(rules, "pass\n", "pass\nmatch in on gw1\n", 1))
		for first := 0; first < total; first += window {
			var frames []netlab.Frame
			for n := first; n < min(first+window, total); n++ {
				frames = append(frames, s.leaves(1, server, became[n]).frame(uint32(n)))
			}
			for number, f := range crosses(1, frames) {
				if want := s.arrives(0, server, client(int(number))).frame(number); f != want {
					t.Fatalf("answer %d arrives as %q, want %q", number, f, want)
				}
			}
		}
		if n := s.untranslated(); n != 0 {
			t.Errorf("%d packets were not translated", n)
		}
	})
}
