// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// reloads is the number of reloads in the case about translations that survive reloads.
var reloads = flag.Int("routing.reloads", 12, "how often a case of translation loads rules while packets pass")

// TestNATConformance has the named cases of translation, each on both hooks.
func TestNATConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T, s *site)
	}{
		{"af_to", afTo},
		{"sticky", sticky},
		{"endpoint_independent", endpointIndependent},
		{"hairpin", hairpin},
		{"rdr_to_self", rdrToSelf},
		{"port_reuse_200_in_a_row", portReuse},
		{"static_port", staticPort},
		{"never_untranslated", neverUntranslated},
		{"reload_keeps_translations", reloadKeepsTranslations},
		{"reassemble_tcp", reassembleTCP},
		{"challenge_ack", challengeAck},
		{"log_is_verdict", logIsVerdict},
	} {
		t.Run(c.name, func(t *testing.T) { onHooks(t, c.run) })
	}
}

// A datagram is UDP over IPv4 between two ports, on its way between two stations of a wire.
type datagram struct {
	dst, src netlab.MAC
	from, to netip.AddrPort
	ttl      byte
}

// frame returns a frame of the datagram with a number and checksums.
func (d datagram) frame(number uint32) netlab.Frame {
	const header, ip, udp, load = 14, 20, 8, 18
	b := make([]byte, header+ip+udp+load)
	copy(b, d.dst[:])
	copy(b[6:], d.src[:])
	binary.BigEndian.PutUint16(b[12:], unix.ETH_P_IP)
	p := b[header:]
	p[0], p[8], p[9] = 0x45, d.ttl, unix.IPPROTO_UDP
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	binary.BigEndian.PutUint16(p[6:], dontFragment)
	copy(p[12:], d.from.Addr().AsSlice())
	copy(p[16:], d.to.Addr().AsSlice())
	binary.BigEndian.PutUint16(p[10:], checksum(p[:ip]))
	u := p[ip:]
	binary.BigEndian.PutUint16(u, d.from.Port())
	binary.BigEndian.PutUint16(u[2:], d.to.Port())
	binary.BigEndian.PutUint16(u[4:], udp+load)
	binary.BigEndian.PutUint32(u[udp:], number)
	pseudo := slices.Concat(p[12:20], []byte{0, unix.IPPROTO_UDP, 0, udp + load}, u) // RFC 768
	if sum := checksum(pseudo); sum != 0 {
		binary.BigEndian.PutUint16(u[6:], sum)
	} else {
		binary.BigEndian.PutUint16(u[6:], 0xffff)
	}
	return netlab.Frame(b)
}

// leaves returns a datagram on its way from a side's station to the host.
func (s *site) leaves(side int, from, to netip.AddrPort) datagram {
	return datagram{dst: s.sides[side].mac, src: s.sides[side].end.MAC, from: from, to: to, ttl: 64}
}

// arrives returns a datagram that the host has routed to a side's station.
func (s *site) arrives(side int, from, to netip.AddrPort) datagram {
	return datagram{dst: s.sides[side].end.MAC, src: s.sides[side].mac, from: from, to: to, ttl: 63}
}

// isUDP reports whether a frame is UDP over IPv4, which the host itself does not send.
func isUDP(f netlab.Frame) bool {
	return len(f) >= 14+20+8 && f[12] == 8 && f[13] == 0 && f[14+9] == unix.IPPROTO_UDP
}

// untranslated returns the number of packets that the ports of the host and of the stations have
// dropped as pf-translate.
func (s *site) untranslated() (n int) {
	s.t.Helper()
	for _, p := range s.lab.Ports("br0") {
		n += int(p.Drops["pf-translate"])
	}
	return n
}

// become sends a datagram from a side's station, and returns its source and destination as it arrives
// at another side's station. Both are zero if it was dropped as pf-translate.
func (s *site) become(side, other int, from, to netip.AddrPort) (src, dst netip.AddrPort) {
	s.t.Helper()
	before := s.untranslated()
	s.made++
	sent := s.leaves(side, from, to).frame(uint32(s.made))
	got := slices.DeleteFunc(s.lab.Deliver(s.sides[side].end, sent)[s.sides[other].end], func(f netlab.Frame) bool { return !isUDP(f) })
	s.lab.Wait(fmt.Sprintf("a datagram from %v to %v to arrive, or to be counted", from, to), func() bool {
		if len(got) == 0 && s.untranslated() == before {
			got = slices.DeleteFunc(s.sides[other].end.Received(), func(f netlab.Frame) bool { return !isUDP(f) })
			return len(got) > 0
		}
		return true
	})
	if len(got) == 0 {
		return src, dst
	}
	p := []byte(got[0])[14:]
	src = netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[12:])), binary.BigEndian.Uint16(p[20:]))
	dst = netip.AddrPortFrom(netip.AddrFrom4([4]byte(p[16:])), binary.BigEndian.Uint16(p[22:]))
	if want := s.arrives(other, src, dst).frame(uint32(s.made)); len(got) != 1 || got[0] != want {
		s.t.Errorf("a datagram from %v to %v arrives as %q, want once %v", from, to, got, want)
	}
	return src, dst
}

// port returns an address with a port.
func port(address string, n int) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(address), uint16(n))
}

// sticky: all connections of a source have the same address of the pool, and sources share the pool.
// Without the keyword each connection gets the next address.
func sticky(t *testing.T, s *site) {
	const sources, connections = 5, 4 // Too few for each source to get the same address in each round.
	pool := []string{"10.0.2.10", "10.0.2.11", "10.0.2.12"}
	for _, word := range []string{" sticky-address", ""} {
		s.loadAnew("pass\nmatch out on gw2 inet proto udp from 10.1.0.0/16 nat-to { " + strings.Join(pool, ", ") + " } round-robin" + word + "\n")
		s.pfctl("", "-F", "Sources")
		of := map[string]map[string]int{}   // number of connections by source and address
		has := map[string]map[string]bool{} // sources by address
		for n := range connections {
			for i := range sources {
				source := fmt.Sprintf("10.1.7.%d", 1+i)
				src, _ := s.become(0, 1, port(source, 1000+n), port([]string{"10.0.2.2", "10.9.1.1"}[n%2], 53+n))
				address := src.Addr().String()
				if of[source] == nil {
					of[source] = map[string]int{}
				}
				if has[address] == nil {
					has[address] = map[string]bool{}
				}
				of[source][address]++
				has[address][source] = true
			}
		}
		if got := slices.Sorted(maps.Keys(has)); !slices.Equal(got, pool) {
			t.Errorf("%q: connections are from %v, want %v", word, got, pool)
		}
		for source, list := range of {
			if (len(list) == 1) != (word != "") {
				t.Errorf("%q: %s has %v", word, source, list)
			}
		}
		if word == "" {
			continue
		}
		for address, list := range has {
			if n := len(list); n != sources/len(pool) && n != sources/len(pool)+1 {
				t.Errorf("%s is that of %v, want an equal share of %d", address, list, sources)
			}
		}
		if n := strings.Count(s.pfctl("", "-s", "Sources"), "10.1.7."); n != sources {
			t.Errorf("%d sources, want %d:\n%s", n, sources, s.pfctl("", "-s", "Sources"))
		}
	}
}

// endpointIndependent: one port of a source is mapped to one address and port for all destinations
// (RFC 4787, REQ-1), and answers of all destinations come back. Packets from other addresses do not
// pass.
func endpointIndependent(t *testing.T, s *site) {
	asked := []netip.AddrPort{port("10.0.2.2", 53), port("10.0.2.2", 54), port("10.9.1.1", 53), port("10.9.1.2", 53), port("10.9.1.3", 55)}
	for _, word := range []string{" endpoint-independent", ""} {
		s.loadAnew("pass\nmatch out on gw2 inet proto udp from 10.0.1.0/24 nat-to 10.0.2.1" + word + "\n")
		owner := map[netip.AddrPort]netip.AddrPort{}
		for _, source := range []netip.AddrPort{port("10.0.1.2", 1000), port("10.0.1.2", 1001), port("10.0.1.3", 1000)} {
			mappings := map[netip.AddrPort]bool{}
			for _, to := range asked {
				outside, dst := s.become(0, 1, source, to)
				if outside.Addr() != s.sides[1].ip4.Addr() || dst != to {
					t.Fatalf("%q: %v to %v goes on from %v to %v", word, source, to, outside, dst)
				}
				if again, _ := s.become(0, 1, source, to); again != outside {
					t.Errorf("%q: %v to %v goes on from %v, and then from %v", word, source, to, outside, again)
				}
				if other, taken := owner[outside]; taken && word != "" && other != source {
					t.Errorf("%v is that of %v and of %v", outside, other, source)
				}
				owner[outside], mappings[outside] = source, true
				s.ip(fmt.Sprintf("neigh replace %v lladdr %v dev gw1 nud permanent", source.Addr(), s.sides[0].end.MAC))
				if from, back := s.become(1, 0, to, outside); from != to || back != source {
					t.Errorf("%q: the answer of %v to %v comes from %v to %v, want %v", word, to, outside, from, back, source)
				}
			}
			// A port equals the port for another destination with a probability of 1 in
			// 15535.
			if (len(mappings) == 1) != (word != "") {
				t.Errorf("%q: %v has %v", word, source, mappings)
			}
		}
		for outside := range owner {
			d := s.leaves(1, port("10.9.7.7", 53), outside)
			for _, f := range s.lab.Deliver(s.sides[1].end, d.frame(7))[s.sides[0].end] {
				if isUDP(f) {
					t.Errorf("%q: a datagram of somebody who was not asked arrives: %v", word, f)
				}
			}
		}
	}
}

// TestNATPoolDry: if a pool is exhausted, a packet without a free port is dropped, and counted as
// pf-translate. monitor and trace show it. When states end, their ports are free again.
func TestNATPoolDry(t *testing.T) { onHooks(t, poolDry) }

func poolDry(t *testing.T, s *site) {
	const ports = 3
	rules := "set timeout { udp.first 600, udp.single 600 }\npass\nmatch out on gw2 inet proto udp nat-to 10.0.2.1 port 7000:7002\n"
	s.load(rules)
	monitor := s.lab.NewMonitor("br0", s.sides[0].end)
	to := port("10.0.2.2", 53)
	for _, on := range []bool{true, false} {
		s.route(on)
		s.pfctl("", "-F", "states")
		what := fmt.Sprintf("shortcut %v", on)
		before := s.lab.Port("br0", "gw2").Drops["pf-translate"]
		seen := map[netip.AddrPort]bool{}
		for n := range 2 * ports {
			if src, _ := s.become(0, 1, port("10.0.1.2", 2000+n), to); src.IsValid() {
				seen[src] = true
			}
		}
		drops := s.lab.Port("br0", "gw2").Drops["pf-translate"] - before
		if len(seen) != ports || drops != ports {
			t.Errorf("%s: %d connections of %d have a port of %d, and %d have none\n%s", what, len(seen), 2*ports, ports, drops, s.states())
		}
		// A source keeps its port, and another destination has as many ports.
		if src, _ := s.become(0, 1, port("10.0.1.2", 2000), to); !seen[src] {
			t.Errorf("%s: a known connection goes on from %v", what, src)
		}
		if src, _ := s.become(0, 1, port("10.0.1.2", 2005), port("10.0.2.2", 54)); !src.IsValid() {
			t.Errorf("%s: a connection to another port is refused, too", what)
		}
		steps, verdict := s.trace(s.leaves(0, port("10.0.1.2", 2009), to).frame(1))
		if on && verdict != "dropped: pf-translate" { // without the shortcut it ends at the host
			t.Errorf("%s: a trace says %q, and\n  %s", what, verdict, strings.Join(steps, "\n  "))
		}
		if now := s.lab.Port("br0", "gw2").Drops["pf-translate"] - before; now != drops {
			t.Errorf("%s: %d drops are counted behind a trace, %d before", what, now, drops)
		}
		if text := s.pfctl("", "-s", "info"); !strings.Contains(text, "translate") {
			t.Errorf("%s: the counters do not tell:\n%s", what, text)
		}
		s.pfctl("", "-k", "10.0.1.2", "-k", "10.0.2.2")
		if n := strings.Count(s.states(), "\n"); n != 0 {
			t.Errorf("%s: %d states are left:\n%s", what, n, s.states())
		}
		if src, _ := s.become(0, 1, port("10.0.1.2", 2005), to); !src.IsValid() {
			t.Errorf("%s: no port is free when the states have ended", what)
		}
	}
	// States expire, and each of more connections than there are ports gets one.
	s.load(strings.Replace(strings.ReplaceAll(rules, "600", "1"), "timeout {", "timeout { interval 1,", 1))
	for n := range 2 * ports {
		s.lab.Wait("a port to be free as states run out", func() bool {
			src, _ := s.become(0, 1, port("10.0.1.2", 2100+n), to)
			return src.IsValid()
		})
	}
	dropped := s.lab.Port("br0", "gw2").Drops["pf-translate"]
	s.lab.Wait("the monitor to count all drops", func() bool {
		n := uint64(0)
		for _, e := range monitor.Events() {
			if e.Event == "drops" && e.Reason == "pf-translate" && e.Ifname == "gw2" {
				n += e.Count
			}
		}
		return n == dropped
	})
	monitor.Stop()
}

// hairpin: a station reaches its neighbour by the public address through the host, and gets the
// answers from that address. The host's stack routes packets out of the port that they came in by.
func hairpin(t *testing.T, s *site) {
	s.stations()
	neighbour := s.lab.NewEnds(1)[0]
	near := s.sides[0]
	s.lab.AddPort("br0", map[bool]string{true: "xdp", false: "tcx"}[strings.HasSuffix(t.Name(), "xdp")], neighbour)
	s.lab.Bascule("vlan", "add", "br0", neighbour.Port, near.vlan, "--pvid", "--untagged")
	s.lab.Bascule("vlan", "del", "br0", neighbour.Port, "1")
	s.lab.Bascule("fdb", "add", "br0", neighbour.MAC.String(), neighbour.Port, "--vlan", near.vlan)
	s.ip(fmt.Sprintf("neigh replace 10.0.1.5 lladdr %v dev gw1 nud permanent", neighbour.MAC))
	for _, args := range [][]string{
		{"link", "set", neighbour.Ifname, "up"}, {"addr", "add", "10.0.1.5/24", "dev", neighbour.Ifname},
		{"neigh", "replace", "10.0.1.1", "lladdr", near.mac.String(), "dev", neighbour.Ifname, "nud", "permanent"},
		{"route", "add", "default", "via", "10.0.1.1"},
	} {
		_, err := neighbour.Namespace.Output(context.Background(), ends.AnyCPU, "ip", args...)
		s.must(err)
	}
	var l net.Listener
	s.must(neighbour.Namespace.Do(func() (err error) {
		l, err = net.Listen("tcp", "10.0.1.5:7")
		return err
	}))
	t.Cleanup(func() { l.Close() })
	s.load("pass\nmatch in on gw1 inet proto { tcp, udp } to 10.0.2.1 port 80 rdr-to 10.0.1.5 port 7\n" +
		"match out on gw1 inet proto { tcp, udp } received-on gw1 nat-to 10.0.1.1\n")
	for _, on := range []bool{true, false} {
		s.route(on)
		conn, err := s.dial(0, "tcp", "", "10.0.2.1:80")
		s.must(err)
		peer := s.echoTCP(l, conn, 1<<16)
		if peer.Addr() != near.ip4.Addr() || peer.Port() < 50001 {
			t.Errorf("shortcut %v: the neighbour sees %v", on, peer)
		}
		// Other destinations, and the host itself, are not translated.
		conn, err = s.dial(1, "tcp", "", "10.0.1.5:7")
		s.must(err)
		if peer := s.echoTCP(l, conn, 1<<16); peer.String() != conn.LocalAddr().String() {
			t.Errorf("shortcut %v: the neighbour sees %v of %v", on, peer, conn.LocalAddr())
		}
		s.must(s.lab.Switch.Do(func() (err error) {
			conn, err = net.Dial("tcp", "10.0.1.5:7")
			return err
		}))
		defer conn.Close()
		if peer := s.echoTCP(l, conn, 1<<16); peer.String() != conn.LocalAddr().String() {
			t.Errorf("shortcut %v: the neighbour sees the host as %v, not %v", on, peer, conn.LocalAddr())
		}
	}
	s.route(true)
	// Each datagram arrives there, and each answer here, and none bypasses the host.
	inside, outside := port("10.0.1.2", 3000), port("10.0.2.1", 80)
	first := s.leaves(0, inside, outside).frame(1)
	var got []netlab.Frame
	s.lab.Send(near.end, first)
	s.lab.Wait("a datagram at the neighbour", func() bool {
		got = append(got, slices.DeleteFunc(neighbour.Received(), func(f netlab.Frame) bool { return !isUDP(f) })...)
		return len(got) > 0
	})
	mapped := port("10.0.1.1", int(binary.BigEndian.Uint16([]byte(got[0])[14+20:])))
	arrives := func(number uint32) netlab.Frame {
		return datagram{neighbour.MAC, near.mac, mapped, port("10.0.1.5", 7), 63}.frame(number)
	}
	if len(got) != 1 || got[0] != arrives(1) {
		t.Fatalf("the neighbour gets %q, want %v", got, arrives(1))
	}
	load := s.lab.StartLoadAmong(func(f netlab.Frame) bool { return !isUDP(f) }, []*netlab.End{near.end, neighbour},
		netlab.Flow{From: near.end, To: []*netlab.End{neighbour}, Frame: func(n uint32) (sent, at netlab.Frame) {
			return s.leaves(0, inside, outside).frame(n), arrives(n)
		}},
		netlab.Flow{From: neighbour, To: []*netlab.End{near.end}, Frame: func(n uint32) (sent, at netlab.Frame) {
			return datagram{near.mac, neighbour.MAC, port("10.0.1.5", 7), mapped, 64}.frame(n), s.arrives(0, outside, inside).frame(n)
		}})
	s.lab.Wait("datagrams of neighbours", load.Flowing(1000))
	s.must(load.Stop())
}

// reloadKeepsTranslations: during many reloads of rules, including rules without the translation and
// rules that block, connections lose no packet, and all keep their initial addresses.
func reloadKeepsTranslations(t *testing.T, s *site) {
	const rules = "pass\nmatch out on gw2 inet proto udp from 10.0.1.0/24 nat-to 10.0.2.1\n" +
		"match in on gw1 inet proto udp to 10.9.1.1 port 80 rdr-to 10.0.2.2 port 8080\n"
	s.load(rules)
	var flows []netlab.Flow
	for n, to := range []netip.AddrPort{port("10.0.2.2", 7), port("10.9.1.1", 80)} {
		from := port("10.0.1.2", 1000+n)
		src, dst := s.become(0, 1, from, to)
		if src.Addr() != s.sides[1].ip4.Addr() || n == 1 && dst != port("10.0.2.2", 8080) {
			t.Fatalf("%v to %v goes on from %v to %v", from, to, src, dst)
		}
		for side, wire := range [2][2]datagram{
			{s.leaves(0, from, to), s.arrives(1, src, dst)}, {s.leaves(1, dst, src), s.arrives(0, to, from)},
		} {
			flows = append(flows, netlab.Flow{From: s.sides[side].end, To: []*netlab.End{s.sides[1-side].end}, Frame: func(n uint32) (sent, at netlab.Frame) {
				return wire[0].frame(n), wire[1].frame(n)
			}})
		}
	}
	redirected, routed := int(s.redirected()), s.routed()
	load := s.lab.StartLoadAmong(func(f netlab.Frame) bool { return !isUDP(f) }, []*netlab.End{s.sides[0].end, s.sides[1].end}, flows...)
	list := []string{rules, strings.ReplaceAll(rules, "10.0.2.1\n", "10.0.2.9\n"), "pass\n", "block\n"}
	for n := range *reloads {
		s.load(list[n%len(list)])
		s.lab.Wait("datagrams behind a reload", load.Flowing(1))
		if load.Failed() {
			break
		}
	}
	s.must(load.Stop())
	redirected, routed = int(s.redirected())-redirected, s.routed()-routed
	if n := int(load.Delivered()); routed < n/2 || (redirected > n/2) != strings.HasSuffix(t.Name(), "xdp") {
		t.Errorf("of %d datagrams the datapath has routed %d, and XDP sent %d", n, routed, redirected)
	}
	if n := s.untranslated(); n != 0 {
		t.Errorf("%d packets are counted as not translated", n)
	}
}

// neverUntranslated: while ports are scarce, rules are reloaded and states flushed, no packet with an
// inside address is seen outside. Each packet arrives, or is counted as dropped.
func neverUntranslated(t *testing.T, s *site) {
	rules := "pass\nmatch out on gw2 inet from 10.1.0.0/16 nat-to 10.0.2.1 port 7000:7019\n"
	s.load(rules)
	outside := s.lab.Listen(s.sides[1].end.Namespace, s.sides[1].end.Ifname)
	done := make(chan error, 1)
	go func() {
		for n := range 10 {
			next := []string{rules, strings.ReplaceAll(rules, "10.0.2.1 port", "10.0.2.9 port")}[n%2]
			for _, args := range [][]string{{"-f", "-"}, {"-F", "states"}} {
				cmd := s.lab.Command(append([]string{"pfctl", "-b", "br0"}, args...)...)
				cmd.Stdin = strings.NewReader(next)
				if r, err := netlab.RunCommand(cmd); err != nil || r.Exit != 0 {
					done <- fmt.Errorf("reload %d: %v, %v", n, r, err)
					return
				}
				if n%4 != 0 {
					break
				}
			}
		}
		done <- nil
	}()
	pool := netip.MustParsePrefix("10.0.2.0/24")
	sent, seen := 0, 0
	look := func() {
		for _, f := range outside.Received() {
			if len(f) < 14+20 || f[12] != 8 || f[13] != 0 || f[14+9] == unix.IPPROTO_IGMP {
				continue
			}
			seen++
			if src := netip.AddrFrom4([4]byte([]byte(f)[14+12:])); !pool.Contains(src) {
				t.Errorf("a packet is seen outside from %v: %v", src, f)
			}
		}
	}
	to := netip.MustParseAddr("10.9.1.1")
	for going := true; going && !t.Failed(); {
		select {
		case err := <-done:
			s.must(err)
			going = false
		default:
		}
		var frames []netlab.Frame
		for n := range uint16(20) { // each with a source of its own
			frames = append(frames, recipe{dst: to, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}.frame(s, n%4))
		}
		for range 5 { // and these of one connection, through XDP if possible
			frames = append(frames, recipe{src: netip.MustParseAddr("10.1.200.1"), dst: to, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}.frame(s, 9))
			frames = append(frames, recipe{src: netip.MustParseAddr("10.1.200.1"), dst: to, ttl: 64, proto: unix.IPPROTO_ICMP, icmp: 8, size: 40, tag: -1}.frame(s, 9))
		}
		s.lab.Send(s.sides[0].end, frames...)
		sent += len(frames)
		look()
	}
	limited := func() int { // Many packets came in, made a state, and were then dropped.
		return int(s.lab.Port("br0", s.sides[0].end.Port).Drops["pf-limit"])
	}
	s.lab.Wait("every packet to be seen or counted", func() bool {
		look()
		return t.Failed() || seen+s.untranslated()+limited() >= sent
	})
	n := s.untranslated()
	if seen+n+limited() != sent || seen == 0 || n == 0 {
		t.Errorf("of %d packets %d are seen outside and %d are counted as not translated", sent, seen, n)
	}
}

// logIsVerdict: the log shows that a packet is dropped although its rule passes it, because that
// rule's pool is empty. It also shows that the packet was passed on its way in.
func logIsVerdict(t *testing.T, s *site) {
	s.stations()
	s.load(`
table <none> persist
pass
pass in log on gw1 inet proto udp to port 53
pass out log on gw2 inet proto udp to port 53 nat-to <none>
`)
	var out netlab.Output
	reader := s.lab.Command("pflog")
	reader.Stdout = &out
	s.must(reader.Start())
	defer reader.Process.Kill()
	to := netip.AddrPortFrom(s.sides[1].station4, 53)
	s.lab.Wait("the log to be read", func() bool {
		s.made++
		s.lab.Send(s.sides[0].end, s.leaves(0, netip.AddrPortFrom(s.sides[0].station4, uint16(1000+s.made%1000)), to).frame(uint32(s.made)))
		return strings.Contains(out.String(), " out on gw2: ")
	})
	text := out.String()
	if !strings.Contains(text, "(match) pass in on gw1: ") || !strings.Contains(text, "(translate) block out on gw2: ") || strings.Contains(text, "pass out on gw2: ") {
		t.Errorf("the log is\n%s", text)
	}
}

// challengeAck: a station that has lost a connection silently, as after a power cut, soon connects
// again from the same port. The switch sends it a challenge ACK in the server's name. The station's
// reset ends the connection everywhere, also at the server, and its next SYN passes.
func challengeAck(t *testing.T, s *site) {
	s.stations()
	s.load(`
match out on gw2 inet from gw1:network nat-to 10.0.2.1
match out on gw2 inet6 from gw1:network nat-to fd02::1
match in on gw1 inet proto tcp to 10.0.1.1 port 80 rdr-to 10.0.2.2 port 8080
pass
pass in on gw1 proto tcp to port 8083 modulate state
pass in on gw1 proto tcp to port 8084 keep state (sloppy)
pass in on gw1 proto tcp to port 8085 scrub (reassemble tcp)
pass in on gw1 inet proto tcp to 10.0.2.2 port 8081 route-to 10.0.2.2
pass in on gw1 inet6 proto tcp to fd64::/96 af-to inet from 10.0.2.1
`)
	for i, c := range []struct{ listen, to string }{
		{"10.0.2.2:8080", "10.0.2.2:8080"},
		{"10.0.2.2:8080", "10.0.1.1:80"},
		{"10.0.2.2:8081", "10.0.2.2:8081"},
		{"10.0.2.2:8082", "[fd64::a00:202]:8082"},
		{"[fd02::2]:8080", "[fd02::2]:8080"},
		{"[fd02::2]:8083", "[fd02::2]:8083"},
		{"10.0.2.2:8083", "10.0.2.2:8083"},
		{"10.0.2.2:8084", "10.0.2.2:8084"},
		{"10.0.2.2:8085", "10.0.2.2:8085"},
	} {
		l := s.listen(1, "tcp", c.listen).(net.Listener)
		from := netip.AddrPortFrom(s.sides[0].station4, uint16(4000+i))
		if netip.MustParseAddrPort(c.to).Addr().Is6() {
			from = netip.AddrPortFrom(s.sides[0].station6, uint16(4000+i))
		}
		conn, err := s.dial(0, "tcp", from.String(), c.to)
		s.must(err)
		in, err := l.Accept()
		s.must(err)
		buf := make([]byte, 100)
		for _, way := range [][2]net.Conn{{conn, in}, {in, conn}, {conn, in}} {
			_, err = way[0].Write([]byte("data"))
			s.must(errors.Join(err, way[1].SetReadDeadline(time.Now().Add(patience))))
			if _, err := way[1].Read(buf); err != nil {
				t.Fatalf("%s: %v", c.to, err)
			}
		}
		raw, err := conn.(*net.TCPConn).SyscallConn()
		s.must(err)
		s.must(raw.Control(func(fd uintptr) {
			// A connection that is closed like this ends without a packet.
			s.must(unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_REPAIR, 1))
		}))
		s.must(conn.Close())
		var again net.Conn
		s.lab.Wait("the port to be free", func() bool {
			again, err = s.dial(0, "tcp", from.String(), c.to)
			return !errors.Is(err, unix.EADDRINUSE)
		})
		if err != nil {
			t.Fatalf("%s: the station does not come back: %v", c.to, err)
		}
		if _, err := in.Read(buf); !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%s: the server's end of the lost connection reads: %v, want that it is reset", c.to, err)
		}
		in.Close()
		s.echoTCP(l, again, 1<<10)
		l.Close()
	}
}

// reassembleTCP: with scrub (reassemble tcp), connections of real stacks pass translations, a next hop
// and the other family, and no stack receives an invalid timestamp.
func reassembleTCP(t *testing.T, s *site) {
	s.stations()
	s.load(`
match scrub (reassemble tcp)
match out on gw2 inet from gw1:network nat-to 10.0.2.1
match out on gw2 inet6 from gw1:network nat-to fd02::1
match in on gw1 inet proto tcp to 10.0.1.1 port 80 rdr-to 10.0.2.2 port 8080
pass
pass in on gw1 inet proto tcp to 10.0.2.2 port 8081 route-to 10.0.2.2
pass in on gw1 inet6 proto tcp to 2001:db8:64::/96 af-to inet from 10.0.2.1
`)
	before := s.routed()
	for _, c := range []struct{ listen, to, peer string }{
		{"10.0.2.2:8080", "10.0.2.2:8080", "10.0.2.1"},
		{"10.0.2.2:8080", "10.0.1.1:80", "10.0.2.1"},
		{"10.0.2.2:8081", "10.0.2.2:8081", "10.0.2.1"},
		{"10.0.2.2:8082", "[2001:db8:64::a00:202]:8082", "10.0.2.1"},
		{"[fd02::2]:8080", "[fd02::2]:8080", "fd02::1"},
	} {
		l := s.listen(1, "tcp", c.listen).(net.Listener)
		for range 2 {
			conn, err := s.dial(0, "tcp", "", c.to)
			s.must(err)
			if peer := s.echoTCP(l, conn, 2<<20); peer.Addr().String() != c.peer {
				t.Errorf("%s: the server sees %v, want %s", c.to, peer, c.peer)
			}
		}
		l.Close()
	}
	if s.routed() == before {
		t.Error("the datapath has routed nothing")
	}
	for _, side := range s.sides {
		out, err := side.end.Namespace.Output(context.Background(), ends.AnyCPU, "nstat", "-asz", "TcpInCsumErrors", "TcpExtPAWSActive", "TcpExtPAWSEstab")
		s.must(err)
		for line := range strings.Lines(string(out)) {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "Tcp") && f[1] != "0" {
				t.Errorf("the station at %s counts %s %s", side.end, f[0], f[1])
			}
		}
	}
	for _, p := range s.lab.Ports("br0") {
		if n := p.Drops["pf-timestamp"]; n != 0 {
			t.Errorf("%s drops %d packets as pf-timestamp", p.Ifname, n)
		}
	}
}

// rdrToSelf: a station that connects to itself by the public address gets its own answer, as with
// nftables' DNAT and masquerade, which run before pf.
func rdrToSelf(t *testing.T, s *site) {
	needs(t, "nft", "nftables")
	s.stations()
	l := s.listen(0, "tcp", "10.0.1.2:7").(net.Listener)
	u := s.listen(0, "udp", "10.0.1.2:7").(net.PacketConn)
	asks := func(what string) {
		t.Helper()
		for range 3 {
			conn, err := s.dial(0, "tcp", "", "10.0.2.1:80")
			if err != nil {
				t.Fatalf("%s: %v; drops %v\n%s", what, err, s.lab.Port("br0", s.sides[0].end.Port).Drops, s.states())
			}
			if peer := s.echoTCP(l, conn, 1<<16); peer.Addr() != s.sides[0].ip4.Addr() {
				t.Errorf("%s: the station sees %v", what, peer)
			}
			// Either of the two ports may be the higher one.
			for _, from := range []string{"10.0.1.2:5", "10.0.1.2:3000"} {
				conn, err = s.dial(0, "udp", from, "10.0.2.1:80")
				s.must(err)
				if peer := s.echoUDP(u, conn, 100); peer.Addr() != s.sides[0].ip4.Addr() {
					t.Errorf("%s: the station sees %v", what, peer)
				}
				conn.Close()
			}
		}
	}
	s.load("pass no state\n")
	s.nft(`table ip self {
	chain pre { type nat hook prerouting priority dstnat; ip daddr 10.0.2.1 meta l4proto { tcp, udp } th dport 80 dnat to 10.0.1.2:7; }
	chain post { type nat hook postrouting priority srcnat; ip daddr 10.0.1.2 masquerade; }
}`)
	s.route(false)
	asks("nftables")
	s.nft("delete table ip self")
	s.load("pass\nmatch in on gw1 inet proto { tcp, udp } to 10.0.2.1 port 80 rdr-to 10.0.1.2 port 7\n" +
		"match out on gw1 inet proto { tcp, udp } from 10.0.1.0/24 to 10.0.1.2 nat-to 10.0.1.1\n")
	for _, on := range []bool{true, false} {
		s.route(on)
		asks(fmt.Sprintf("shortcut %v", on))
	}
	// If both ports are the same, a packet cannot be distinguished from its answer.
	before := s.untranslated()
	s.lab.Send(s.sides[0].end, s.leaves(0, port("10.0.1.2", 7), port("10.0.2.1", 80)).frame(1))
	s.lab.Wait("a packet from a port to itself to be dropped", func() bool { return s.untranslated() == before+1 })
}

// portReuse: connections one after the other from one source port, as fast as possible, all pass, as
// with nftables' masquerade.
func portReuse(t *testing.T, s *site) {
	needs(t, "nft", "nftables")
	const connections = 200
	s.stations()
	l := s.listen(1, "tcp", "10.0.2.2:7").(net.Listener)
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			in.Close() // so the client's port is free at once
		}
	}()
	drops := func() (n uint64) {
		for _, p := range s.lab.Ports("br0") {
			for _, count := range p.Drops {
				n += count
			}
		}
		return n
	}
	dialer := net.Dialer{Timeout: patience, LocalAddr: net.TCPAddrFromAddrPort(port("10.0.1.2", 4000)), Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1) }), err)
	}}
	asks := func(what string) {
		t.Helper()
		before := drops()
		for n := range connections {
			var conn net.Conn
			s.lab.Wait(fmt.Sprintf("%s: connection %d", what, n), func() bool {
				err := s.sides[0].end.Namespace.Do(func() (err error) {
					conn, err = dialer.Dial("tcp", "10.0.2.2:7")
					return err
				})
				// The last connection is not over yet.
				if errors.Is(err, unix.EADDRNOTAVAIL) || errors.Is(err, unix.EADDRINUSE) {
					return false
				}
				if err != nil {
					t.Fatalf("%s: connection %d: %v; %d packets dropped\n%s", what, n, err, drops()-before, s.states())
				}
				return true
			})
			if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Fatalf("%s: connection %d reads %v", what, n, err)
			}
			conn.Close()
		}
		if n := drops() - before; n != 0 {
			t.Errorf("%s: %d packets are dropped\n%s", what, n, s.pfctl("", "-s", "info"))
		}
	}
	s.load("pass no state\n")
	s.route(false)
	s.nft("table ip many { chain post { type nat hook postrouting priority srcnat; oifname gw2 masquerade; }; }")
	asks("nftables")
	s.nft("delete table ip many")
	s.route(true)
	for _, rules := range []string{"", "match out on gw2 inet nat-to 10.0.2.1\n", "match out on gw2 inet nat-to 10.0.2.1 static-port\n"} {
		s.loadAnew("pass\n" + rules)
		asks(fmt.Sprintf("%q", rules))
	}
}

// nft loads nftables rules at the switch's host.
func (s *site) nft(rules string) {
	s.t.Helper()
	cmd := exec.Command("nft", "-f", "-")
	cmd.Stdin = strings.NewReader(rules)
	var text []byte
	err := s.lab.Switch.Do(func() (err error) {
		text, err = cmd.CombinedOutput()
		return err
	})
	if err != nil {
		s.t.Fatalf("nft: %v\n%s", err, text)
	}
}

// staticPort: if two clients use the same port behind one address, the second one's packets to the
// first one's destination are dropped, as on OpenBSD, and are never sent from another port. Others
// pass.
func staticPort(t *testing.T, s *site) {
	for _, word := range []string{"static-port", "port 500"} {
		s.loadAnew("pass\nmatch out on gw2 inet proto udp nat-to 10.0.2.1 " + word + "\n")
		to, other := port("10.0.2.2", 500), port("10.0.2.2", 4500)
		for _, c := range []struct {
			client string
			to     netip.AddrPort
			passes bool
		}{{"10.0.1.2", to, true}, {"10.0.1.3", to, false}, {"10.0.1.3", other, true}, {"10.0.1.2", to, true}, {"10.0.1.3", to, false}} {
			src, _ := s.become(0, 1, port(c.client, 500), c.to)
			if c.passes && src != port("10.0.2.1", 500) || !c.passes && src.IsValid() {
				t.Errorf("%s: a datagram of %s to %v goes on from %v", word, c.client, c.to, src)
			}
		}
	}
}
