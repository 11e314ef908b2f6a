// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bascule/test/netlab"
)

var pfTrafficCases = []conformance{
	{name: "pf_hosts", hooks: both, run: pfHosts},
	{name: "pf_reloads", hooks: both, run: pfReloads},
	{name: "pf_killed", hooks: tcx, run: pfKilled},
	{name: "pf_answers", hooks: both, run: pfAnswers},
	{name: "pf_strange_tcp", hooks: both, run: pfStrangeTCP},
	{name: "pf_normalize", hooks: both, run: pfNormalize},
	{name: "pf_scrub", hooks: both, run: pfScrub},
	{name: "pf_fragments", hooks: tcx, run: pfFragments},
	{name: "pf_icmp_errors", hooks: both, run: pfICMPErrors},
	{name: "pf_limits", hooks: tcx, run: pfLimits},
	{name: "pf_overload", hooks: both, run: pfOverload},
	{name: "pf_limited", hooks: both, run: pfLimited},
	{name: "pf_floods", hooks: tcx, run: pfFloods},
	{name: "pf_moves", hooks: both, run: pfMoves},
	{name: "pf_vlans", hooks: tcx, run: pfVLANs},
	{name: "pf_tcpdump", hooks: tcx, run: pfTcpdump},
	{name: "pf_with_all", hooks: both, run: pfWithAll},
}

const (
	fin, syn, rst, psh, ack, urg = 1, 2, 4, 8, 16, 32
	typeUDP, typeTCP, typeICMP   = 17, 6, 1
)

// ip4 returns an IPv4 packet, or a fragment of one if the field `frag` is not zero.
func ip4(dst, src netlab.MAC, from, to string, proto byte, id, frag int, body ...[]byte) netlab.Frame {
	b := slices.Concat(body...)
	return etherFrame(dst, src, typeIPv4, packet4(from, to, proto, id, frag, b))
}

func packet4(from, to string, proto byte, id, frag int, body []byte) []byte {
	return slices.Concat([]byte{0x45, 0}, be16(20+len(body)), be16(id), be16(frag), []byte{64, proto, 0, 0}, ip(from), ip(to), body)
}

// segment returns a TCP header with a window of 1000, and data.
func segment(ports [2]int, flags byte, seq, acked uint32, data ...byte) []byte {
	b := slices.Concat(be16(ports[0]), be16(ports[1]))
	b = binary.BigEndian.AppendUint32(b, seq)
	b = binary.BigEndian.AppendUint32(b, acked)
	return slices.Concat(b, []byte{0x50, flags}, be16(1000), make([]byte, 4), data)
}

// A tcpTalk is one direction of a TCP connection between two stations, whose packets are sent one
// by one. The other direction is a tcpTalk, too.
type tcpTalk struct {
	a, b       *netlab.End
	aMAC, bMAC netlab.MAC
	from, to   string
	ports      [2]int
	form       form
}

func (c tcpTalk) back() tcpTalk {
	c.a, c.b, c.aMAC, c.bMAC, c.from, c.to, c.ports = c.b, c.a, c.bMAC, c.aMAC, c.to, c.from, [2]int{c.ports[1], c.ports[0]}
	return c
}

func (c tcpTalk) frame(flags byte, seq, acked uint32, data ...byte) netlab.Frame {
	body := segment(c.ports, flags, seq, acked, data...)
	f := ip4(c.bMAC, c.aMAC, c.from, c.to, typeTCP, 0, 0, body)
	if strings.Contains(c.from, ":") {
		f = packet6(c.bMAC, c.aMAC, c.from, c.to, typeTCP, body)
	}
	if c.form != nil {
		f = c.form(f)
	}
	return f
}

// passes sends a segment, which must arrive; blocked sends one that must not.
func (c tcpTalk) passes(l *netlab.Lab, flags byte, seq, acked uint32, data ...byte) {
	l.Reach(c.a, []netlab.Frame{c.frame(flags, seq, acked, data...)}, c.b)
}

func (c tcpTalk) blocked(l *netlab.Lab, flags byte, seq, acked uint32, data ...byte) {
	l.Reach(c.a, []netlab.Frame{c.frame(flags, seq, acked, data...)})
}

// open establishes the connection, with the initial numbers x and y.
func (c tcpTalk) open(l *netlab.Lab, x, y uint32) {
	c.passes(l, syn, x, 0)
	c.back().passes(l, syn|ack, y, x+1)
	c.passes(l, ack, x+1, y+1)
}

// pfHosts: common traffic of hosts, in both families, through rules that block everything else.
func pfHosts(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	one, two := ends[0].Host(), ends[1].Host()
	for _, e := range ends {
		e.ReadyForXDP()
	}
	loadPF(t, l, "block\npass proto { tcp udp icmp icmp6 }\n")
	for _, address := range []netip.Addr{two.IPv4, two.IPv6} {
		for _, size := range []string{"56", "4000"} {
			inNamespace(t, one.Namespace, "ping", "-c2", "-i0.1", "-w60", "-s", size, address.String())
		}
		must(t, netlab.Transfer(one, two, address, 1<<20))
		echoUDP(t, one, two, address, 8000)
		if err := dial(one, netip.AddrPortFrom(address, 9)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a connection to a port of %v that nobody listens at: %v", address, err)
		}
	}
	wantDrops(t, l, ends[0], "pf-state", 0)
	wantDrops(t, l, ends[0], "pf-fragment", 0)
	wantDrops(t, l, ends[1], "pf-state", 0)
}

// dial opens a connection, and closes it.
func dial(from *netlab.Host, to netip.AddrPort) error {
	return from.Namespace.Do(func() error {
		c, err := net.DialTimeout("tcp", to.String(), patience)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// echoUDP sends packets of a size from one host to another, which returns them.
func echoUDP(t *testing.T, one, two *netlab.Host, address netip.Addr, size int) {
	t.Helper()
	var server net.PacketConn
	must(t, two.Namespace.Do(func() (err error) {
		server, err = net.ListenPacket("udp", netip.AddrPortFrom(address, 7).String())
		return err
	}))
	defer server.Close()
	must(t, one.Namespace.Do(func() error {
		c, err := net.Dial("udp", server.LocalAddr().String())
		if err != nil {
			return err
		}
		defer c.Close()
		deadline := time.Now().Add(patience)
		buf := make([]byte, size)
		for range 3 {
			if _, err := c.Write(buf); err != nil {
				return err
			}
			server.SetDeadline(deadline)
			n, from, err := server.ReadFrom(buf)
			if err != nil || n != size {
				return fmt.Errorf("the server reads %d bytes: %w", n, err)
			}
			if _, err := server.WriteTo(buf, from); err != nil {
				return err
			}
			c.SetDeadline(deadline)
			if n, err = c.Read(buf); err != nil || n != size {
				return fmt.Errorf("the client reads %d bytes: %w", n, err)
			}
		}
		return nil
	}))
}

// pfReloads: a connection is not affected by loads of rules, or by ports that are added and
// deleted.
func pfReloads(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	one, two := ends[0].Host(), ends[1].Host()
	for _, e := range ends {
		e.ReadyForXDP()
	}
	loadPF(t, l, "block\npass proto { tcp icmp6 }\n")
	spare := l.NewEnd(l.NewNamespace())
	done, stop := make(chan error, 1), make(chan bool)
	go func() {
		for {
			err := netlab.Transfer(one, two, two.IPv4, 4<<20)
			select {
			case <-stop:
				done <- err
				return
			default:
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	held := hold(t, one, two)
	for n := range 2 {
		loadPF(t, l, fmt.Sprintf("block\npass proto { tcp icmp6 } label again%d\n", n))
		held()
		l.AddPort("br0", hook, spare)
		held()
		l.Bascule("port", "del", "br0", spare.Port)
		held()
	}
	close(stop)
	must(t, <-done)
	wantDrops(t, l, ends[0], "pf", 0)
	wantDrops(t, l, ends[1], "pf", 0)
}

// pfKilled kills a change of rules while two sets of programs alternate. The rules of one of the two rulesets are there
// then, whole: their two halves know each other by a tag. The programs stay those that were there before.
func pfKilled(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	one, two := ends[0].Host(), ends[1].Host()
	rules, files := map[string]string{}, map[string]string{}
	for _, tag := range []string{"red", "blue"} {
		text := fmt.Sprintf("block\npass proto icmp6\npass in proto udp tag %s no state\npass out proto udp tagged %[1]s no state\n", tag)
		files[tag] = filepath.Join(t.TempDir(), "pf.conf")
		must(t, os.WriteFile(files[tag], []byte(text), 0o600))
		l.Bascule("pfctl", "-b", "br0", "-f", files[tag])
		rules[tag] = pfctl(t, l, "", "-sr")
	}
	load := func(tag string) []string { return []string{"pfctl", "-b", "br0", "-f", files[tag]} }
	is := "blue"
	next := func() string {
		if is == "blue" {
			return "red"
		}
		return "blue"
	}
	before, err := l.Objects()
	must(t, err)
	l.Bascule(load("red")...)
	l.Bascule(load("blue")...)
	after, err := l.Objects()
	must(t, err)
	if !maps.Equal(before.Programs, after.Programs) {
		t.Errorf("the bridge's programs are %v; they were %v two rulesets ago", after.Programs, before.Programs)
	}
	points := slices.DeleteFunc(killPoints(t, l, func() []string { is = next(); return load(is) }, func() {}), func(p killPoint) bool {
		return !slices.Contains([]string{"bpf", "renameat", "unlinkat", "mkdirat"}, p.call)
	})
	for _, p := range somePoints(points, 24) {
		killed := kill(t, l, p, load(next()))
		echoUDP(t, one, two, two.IPv4, 100)
		l.Bascule("fdb", "flush", "br0", "--vlan", "4000") // completes or undoes the killed change
		echoUDP(t, one, two, two.IPv4, 100)
		if got := pfctl(t, l, "", "-sr"); got == rules[next()] {
			is = next()
		} else if got != rules[is] || !killed {
			t.Errorf("the rules are\n%s", got)
		}
		l.Bascule("port", "set", "br0", ends[1].Port, "--fdb-max", "1000") // with the other set
		echoUDP(t, one, two, two.IPv4, 100)
		if got := pfctl(t, l, "", "-sr"); got != rules[is] {
			t.Errorf("after another change the rules are\n%s", got)
		}
		for range 2 { // the sets alternate again
			is = next()
			l.Bascule(load(is)...)
			echoUDP(t, one, two, two.IPv4, 100)
		}
		if t.Failed() {
			t.Fatalf("killed: %v, in %s number %d", killed, p.call, p.n)
		}
	}
	wantDrops(t, l, ends[0], "pf", 0)
	wantDrops(t, l, ends[1], "pf", 0)
}

// hold opens a connection. The returned function sends a request over it, and waits for the answer.
func hold(t *testing.T, one, two *netlab.Host) func() {
	t.Helper()
	var server net.Listener
	must(t, two.Namespace.Do(func() (err error) {
		server, err = net.Listen("tcp", netip.AddrPortFrom(two.IPv4, 0).String())
		return err
	}))
	t.Cleanup(func() { server.Close() })
	var c net.Conn
	must(t, one.Namespace.Do(func() (err error) {
		c, err = net.DialTimeout("tcp", server.Addr().String(), patience)
		return err
	}))
	t.Cleanup(func() { c.Close() })
	s, err := server.Accept()
	must(t, err)
	t.Cleanup(func() { s.Close() })
	return func() {
		t.Helper()
		b := make([]byte, 100)
		for _, pair := range [][2]net.Conn{{c, s}, {s, c}} {
			_, err := pair[0].Write(b)
			must(t, err)
			pair[1].SetReadDeadline(time.Now().Add(patience))
			_, err = io.ReadFull(pair[1], b)
			must(t, err)
		}
	}
}

// pfAnswers: a station that is blocked with `return` gets the error at once, in VLANs as well.
func pfAnswers(t *testing.T, hook string) {
	l, stations := setupVLANs(t, hook, []string{"10", "10", "T10"})
	one := stations[0].Host()
	for _, e := range stations {
		e.ReadyForXDP()
	}
	two := stations[1].Host()
	loadPF(t, l, "pass\nblock return proto { tcp udp } to port 81\nblock drop proto tcp to port 82\n")
	for _, hosts := range [][2]*netlab.Host{{one, two}, {two, one}} {
		for _, address := range []netip.Addr{hosts[1].IPv4, hosts[1].IPv6} {
			if err := dial(hosts[0], netip.AddrPortFrom(address, 81)); !errors.Is(err, syscall.ECONNREFUSED) {
				t.Errorf("to %v, TCP: %v", address, err)
			}
			must(t, hosts[0].Namespace.Do(func() error {
				c, err := net.Dial("udp", netip.AddrPortFrom(address, 81).String())
				if err != nil {
					return err
				}
				defer c.Close()
				if _, err := c.Write(make([]byte, 100)); err != nil {
					return err
				}
				c.SetReadDeadline(time.Now().Add(patience))
				if _, err = c.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("to %v, UDP: %v", address, err)
				}
				return nil
			}))
		}
	}
	// Through a trunk.
	learn(l, stations[1], B)
	c := tcpTalk{a: stations[2], aMAC: A, bMAC: B, from: ip1, to: ip2, ports: [2]int{1000, 81}, form: tag(10)}
	got := l.Deliver(c.a, c.frame(syn, 100, 0))[c.a]
	// Hosts flood frames of their own for some seconds.
	got = slices.DeleteFunc(got, func(f netlab.Frame) bool { return f.Dst() != A })
	if len(got) != 1 || got[0][:16] != c.back().frame(0, 0, 0)[:16] || got[0][18+20+13] != rst|ack {
		t.Errorf("a trunk gets %v", got)
	}
	start := time.Now()
	must(t, one.Namespace.Do(func() error {
		c, err := net.DialTimeout("tcp", netip.AddrPortFrom(two.IPv4, 82).String(), 200*time.Millisecond)
		if err == nil || errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("block drop: %v after %v", err, time.Since(start))
		}
		if c != nil {
			c.Close()
		}
		return nil
	}))
}

// pfStrangeTCP: packets that do not belong to a connection do not pass, and do not affect it.
func pfStrangeTCP(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	loadPF(t, l, "block\npass in on p1 proto tcp\npass out on p2 proto tcp\n")
	for n, addresses := range [][2]string{{ip1, ip2}, {"2001:db8::1", "2001:db8::2"}} {
		c := tcpTalk{a: ends[0], b: ends[1], aMAC: A, bMAC: B, from: addresses[0], to: addresses[1], ports: [2]int{1000 + n, 80}}
		for _, flags := range []byte{0, fin, fin | psh | urg, syn | fin | ack, ack, syn | ack, rst, rst | ack} {
			c.blocked(l, flags, 1, 1)
		}
		// Around the wrap of the sequence numbers.
		x, y := uint32(0xffffff00), uint32(0xffffffff)
		c.open(l, x, y)
		c.passes(l, ack|psh, x+1, y+1, make([]byte, 500)...)
		c.back().passes(l, ack, y+1, x+501)
		for _, b := range []tcpTalk{c, c.back()} {
			seq, acked := x+501, y+1
			if b.a != c.a {
				seq, acked = acked, seq
			}
			b.blocked(l, rst, seq+500, 0)
			b.blocked(l, rst, seq-500, 0)
			b.blocked(l, rst|ack, seq+1<<20, acked)
			b.blocked(l, ack|psh, seq+100_000, acked, 1, 2, 3)
			b.blocked(l, ack|psh, seq-100_000, acked, 1, 2, 3)
			b.blocked(l, ack, seq, acked+200_000)
			b.blocked(l, ack|fin, seq+100_000, acked)
		}
		c.passes(l, ack|psh, x+501, y+1, 1)
		c.back().passes(l, ack|psh, y+1, x+502, 1)
		c.back().passes(l, rst|ack, y+2, x+502)
		// And it starts again.
		c.open(l, x+1<<24, y+1<<24)
		c.passes(l, fin|ack, x+1<<24+1, y+1<<24+1)
		c.back().passes(l, fin|ack, y+1<<24+1, x+1<<24+2)
		c.passes(l, ack, x+1<<24+2, y+1<<24+2)
		c.passes(l, syn, 1, 0)
	}
}

// pfNormalize: flags that no connection uses are dropped even if a rule passes everything, and
// create no state. FIN is removed from a SYN.
func pfNormalize(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	loadPF(t, l, "pass flags any\n")
	dropped := uint64(0)
	for n, addresses := range [][2]string{{ip1, ip2}, {"2001:db8::1", "2001:db8::2"}} {
		c := tcpTalk{a: ends[0], b: ends[1], aMAC: A, bMAC: B, from: addresses[0], to: addresses[1], ports: [2]int{1000 + n, 80}}
		strange := []byte{0, fin, psh, urg, fin | psh | urg, syn | rst, syn | rst | ack, syn | psh}
		for _, flags := range strange {
			c.blocked(l, flags, 1, 1)
			dropped++
		}
		if out := pfctl(t, l, "", "-ss"); strings.Contains(out, fmt.Sprint(1000+n)) {
			t.Errorf("states were made:\n%s", out)
		}
		want := c.frame(syn, 1, 0)
		if got := l.Deliver(ends[0], c.frame(syn|fin, 1, 0))[ends[1]]; len(got) != 1 || !sameButChecksum(got[0], want) {
			t.Errorf("a SYN with FIN arrives as %v, should be %v", got, want)
		}
		c.open(l, 1, 1<<20)
		for _, flags := range strange {
			c.blocked(l, flags, 2, 1<<20+1)
			dropped++
		}
		c.passes(l, ack|psh|urg, 2, 1<<20+1, 1, 2, 3)
	}
	wantDrops(t, l, ends[0], "pf-normalize", dropped)
	out := strings.Join(strings.Fields(pfctl(t, l, "", "-si")), " ")
	if !strings.Contains(out, fmt.Sprintf(" normalize %d ", dropped)) {
		t.Errorf("pfctl -si counts others than %d: %s", dropped, out)
	}
}

// sameButChecksum compares frames without TCP's checksum, which is zero in a test's own frames.
func sameButChecksum(got, want netlab.Frame) bool {
	at := 14 + 20 + 16
	if want[12] == 0x86 {
		at += 20
	}
	return len(got) == len(want) && got[:at] == want[:at] && got[at+2:] == want[at+2:]
}

// pfScrub: packets arrive with the changes of scrub and set tos that pfctl prints, also in XDP's
// conversations. Packets of other rules are not changed.
func pfScrub(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	const rules = "match proto udp all scrub (no-df)\n" +
		"match in proto udp all set (tos 0x28)\n" +
		"pass all flags S/SA\n" +
		"pass proto udp from any to any port = 7 scrub (min-ttl 65)\n"
	loadPF(t, l, rules)
	wantPF(t, l, rules, "-sr")
	send := func(from, to *netlab.End, frame, want netlab.Frame) {
		t.Helper()
		if got := l.Deliver(from, frame)[to]; len(got) != 1 || got[0] != want {
			t.Errorf("%v arrives as %v, should be %v", frame, got, want)
		}
	}
	header := func(tos, ttl byte, df int, sum int, from, to string, ports [2]int) []byte {
		body := slices.Concat(be16(ports[0]), be16(ports[1]), be16(12), be16(0), []byte("data"))
		return slices.Concat([]byte{0x45, tos}, be16(20+len(body)), be16(0), be16(df), []byte{ttl, typeUDP}, be16(sum), ip(from), ip(to), body)
	}
	// The checksum of 10.0.0.1 to 10.0.0.2 with DF, TTL 64 and TOS 0, and after the changes.
	for range 3 {
		send(ends[0], ends[1],
			etherFrame(B, A, typeIPv4, header(0, 64, 0x4000, 0x26cb, ip1, ip2, [2]int{1000, 7})),
			etherFrame(B, A, typeIPv4, header(0x28, 65, 0, 0x65a3, ip1, ip2, [2]int{1000, 7})))
		send(ends[1], ends[0],
			etherFrame(A, B, typeIPv4, header(2, 64, 0x4000, 0x26c9, ip2, ip1, [2]int{7, 1000})),
			etherFrame(A, B, typeIPv4, header(0x2a, 65, 0, 0x65a1, ip2, ip1, [2]int{7, 1000})))
	}
	plain := tcpTalk{a: ends[0], b: ends[1], aMAC: A, bMAC: B, from: ip1, to: ip2, ports: [2]int{1000, 80}}
	plain.open(l, 1, 1<<20)
	plain.passes(l, ack|psh, 2, 1<<20+1, 1, 2, 3)
	// A state keeps the options of its rules.
	loadPF(t, l, "pass\n")
	send(ends[0], ends[1],
		etherFrame(B, A, typeIPv4, header(0, 64, 0x4000, 0x26cb, ip1, ip2, [2]int{1000, 7})),
		etherFrame(B, A, typeIPv4, header(0x28, 65, 0, 0x65a3, ip1, ip2, [2]int{1000, 7})))
}

// pfFragments: rules and states apply to all fragments of a packet.
func pfFragments(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	loadPF(t, l, "block\npass in on p1 proto { tcp udp } to port 2000\npass out on p2\n")
	id := 0
	packet := func(port int) []netlab.Frame {
		id++
		body := slices.Concat(be16(1000), be16(port), be16(24), be16(0), make([]byte, 16))
		return []netlab.Frame{
			ip4(B, A, ip1, ip2, typeUDP, id, 0x2000, body[:8]), ip4(B, A, ip1, ip2, typeUDP, id, 0x2001, body[8:16]), ip4(B, A, ip1, ip2, typeUDP, id, 2, body[16:]),
		}
	}
	l.Reach(a, packet(2000), b)
	l.Reach(a, packet(2001))
	late := packet(2000)
	slices.Reverse(late)
	l.Reach(a, late[:2])
	l.Reach(a, late[2:], b)
	late = packet(2001)
	slices.Reverse(late)
	l.Reach(a, late)

	// A connection with fragmented packets. The contents of later fragments are no header.
	c := tcpTalk{a: a, b: b, aMAC: A, bMAC: B, from: ip1, to: ip2, ports: [2]int{1000, 2000}}
	c.open(l, 1000, 5000)
	for n := range uint32(4) {
		id++
		body := segment(c.ports, ack, 1001+16*n, 5001, make([]byte, 16)...)
		l.Reach(a, []netlab.Frame{
			ip4(B, A, ip1, ip2, typeTCP, id, 0x2000, body[:24]),
			c.back().frame(ack, 5001, 1001),
			ip4(B, A, ip1, ip2, typeTCP, id, 3, body[24:]),
		}[:1], b)
		// Another packet is evaluated in between.
		l.Reach(a, udps(1, B, A, "10.9.9.9", "10.9.9.8", [2]int{1, 2000}), b)
		l.Reach(a, []netlab.Frame{ip4(B, A, ip1, ip2, typeTCP, id, 3, body[24:])}, b)
	}
	c.passes(l, ack, 1065, 5001)

	// Tiny fragments, and fragments that overlap the header.
	id++
	l.Reach(a, []netlab.Frame{ip4(B, A, ip1, ip2, typeTCP, id, 0x2000, segment(c.ports, ack, 1065, 5001)[:8]), ip4(B, A, ip1, ip2, typeTCP, id, 1, make([]byte, 12))})
	id++
	first := slices.Concat(segment(c.ports, ack, 1065, 5001), make([]byte, 4))
	l.Reach(a, []netlab.Frame{ip4(B, A, ip1, ip2, typeTCP, id, 0x2000, first)}, b)
	l.Reach(a, []netlab.Frame{ip4(B, A, ip1, ip2, typeTCP, id, 1, make([]byte, 20))})
}

// pfICMPErrors: an error about a packet of a connection passes, from any address. An error about a
// packet that was never sent does not.
func pfICMPErrors(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	for _, policy := range []string{"floating", "if-bound"} {
		loadPF(t, l, "block\npass in on p1 keep state ("+policy+")\npass out on p2 keep state ("+policy+")\n")
		pfctl(t, l, "", "-Fs")
		c := tcpTalk{a: ends[0], b: ends[1], aMAC: A, bMAC: B, from: "10.0.0.5", to: "192.0.2.5", ports: [2]int{1000, 80}}
		c.open(l, 1000, 5000)
		l.Reach(ends[0], udps(1, B, A, "10.0.0.5", "192.0.2.5", [2]int{7, 33434}), ends[1])
		report := func(router string, kind, code byte, to string, quoted []byte) []netlab.Frame {
			return []netlab.Frame{ip4(A, B, router, to, typeICMP, 0, 0, []byte{kind, code, 0, 0, 0, 0, 5, 0xdc}, quoted)}
		}
		sent := func(ports [2]int, seq uint32) []byte {
			return packet4("10.0.0.5", "192.0.2.5", typeTCP, 1, 0, segment(ports, ack, seq, 5001)[:8])
		}
		probe := func(ports [2]int) []byte {
			return packet4("10.0.0.5", "192.0.2.5", typeUDP, 1, 0, slices.Concat(be16(ports[0]), be16(ports[1]), be16(16), be16(0)))
		}
		// From addresses below and above the connection's.
		for _, router := range []string{"10.0.0.1", "192.0.2.5", "203.0.113.1"} {
			l.Reach(ends[1], report(router, 3, 4, "10.0.0.5", sent(c.ports, 1001)), ends[0])
			l.Reach(ends[1], report(router, 11, 0, "10.0.0.5", probe([2]int{7, 33434})), ends[0])
			for _, forged := range [][]byte{
				sent([2]int{1001, 80}, 1001), sent([2]int{1000, 81}, 1001), sent(c.ports, 1<<20), sent(c.ports, 0xff000000),
				probe([2]int{7, 33435}), probe([2]int{33434, 7}), {}, sent(c.ports, 1001)[:20],
			} {
				l.Reach(ends[1], report(router, 3, 1, "10.0.0.5", forged))
			}
			l.Reach(ends[1], report(router, 3, 1, "10.0.0.6", sent(c.ports, 1001)))
		}
		c.passes(l, ack, 1001, 5001)
	}
}

// pfLimits: the number of states does not exceed its limit, whether frames are flooded or not.
func pfLimits(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	flood := func(rules string, dst netlab.MAC, want int, to ...*netlab.End) {
		t.Helper()
		loadPF(t, l, rules)
		pfctl(t, l, "", "-Fs")
		var frames []netlab.Frame
		for n := range 50 {
			frames = append(frames, ip4(dst, A, ip1, ip2, typeTCP, 0, 0, segment([2]int{1000 + n, 80}, syn, uint32(n), 0)))
		}
		got := l.Deliver(a, frames...)
		for _, e := range ends[1:] {
			expected := 0
			if slices.Contains(to, e) {
				expected = want
			}
			if len(got[e]) != expected {
				t.Errorf("%q: %d frames arrive at %s, should be %d", rules, len(got[e]), e.Port, expected)
			}
		}
		if out := pfctl(t, l, "", "-ss"); strings.Count(out, "\n") != want {
			t.Errorf("%q: the states are\n%s", rules, out)
		}
	}
	for _, rules := range []struct {
		text string
		want int
	}{
		{"block\npass proto tcp keep state (max 5)\n", 5},
		{"pass in on p1 proto tcp keep state (source-track rule, max-src-states 4)\n", 4},
		{"set limit states 7\npass in on p1 proto tcp\n", 7},
	} {
		flood(rules.text, B, rules.want, ends[1:]...) // unknown
		flood(rules.text, netlab.Broadcast, rules.want, ends[1:]...)
		learn(l, b, B)
		flood(rules.text, B, rules.want, b)
		l.Bascule("fdb", "flush", "br0")
		learn(l, a, A)
	}
}

// pfOverload: a station with too many connections is added to the table, and its states are
// removed.
func pfOverload(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	learn(l, ends[2], C)
	loadPF(t, l, "table <bad> persist\nblock\nblock in quick from <bad>\npass in proto tcp to port 80 keep state (max-src-conn-rate 3/100, overload <bad> flush global)\npass in proto tcp to port 22\npass out on { p2 p3 }\n")
	c := func(from netlab.MAC, e *netlab.End, address string, sport, port int) tcpTalk {
		return tcpTalk{a: e, b: ends[1], aMAC: from, bMAC: B, from: address, to: ip2, ports: [2]int{sport, port}}
	}
	other := c(C, ends[2], ip3, 9, 22)
	other.open(l, 1, 1)
	old := c(A, ends[0], ip1, 1, 22)
	old.open(l, 1, 1)
	for n := range 3 {
		c(A, ends[0], ip1, 100+n, 80).open(l, 1, 1)
	}
	wantPF(t, l, "", "-t", "bad", "-T", "show")
	last := c(A, ends[0], ip1, 200, 80)
	last.passes(l, syn, 1, 0)
	last.back().passes(l, syn|ack, 1, 2)
	last.blocked(l, ack, 2, 2)
	wantPF(t, l, "   10.0.0.1\n", "-t", "bad", "-T", "show")
	l.Wait("the states to be flushed", func() bool { return strings.Count(pfctl(t, l, "", "-ss"), "\n") == 1 })
	old.blocked(l, ack, 2, 2)
	old.back().blocked(l, ack, 2, 2)
	c(A, ends[0], ip1, 300, 22).blocked(l, syn, 1, 0)
	other.passes(l, ack, 2, 2)
}

// pfLimited: a source is in its limiter's table from the high mark of its states to the low mark,
// however they end.
func pfLimited(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	rules := "table <bad> persist\nsource limiter s id 1 entries 9 limit 9 table <bad> above 2 below 2\n" +
		"pass proto udp source limiter s\nblock in quick proto udp from <bad> to port 99\npass in quick proto udp to port 99 no state\n" +
		"pass out quick proto udp to port 99 no state\n"
	loadPF(t, l, rules)
	sport := 1000
	fill := func() {
		for range 3 {
			sport++
			l.Reach(ends[0], udps(2, B, A, ip1, ip2, [2]int{sport, 53}), ends[1])
		}
		wantPF(t, l, "   10.0.0.1\n", "-t", "bad", "-T", "show")
		l.Reach(ends[0], udps(2, B, A, ip1, ip2, [2]int{sport, 99}))
	}
	free := func() {
		wantPF(t, l, "", "-t", "bad", "-T", "show")
		l.Reach(ends[0], udps(2, B, A, ip1, ip2, [2]int{sport, 99}), ends[1])
	}
	fill()
	pfctl(t, l, "", "-k", ip1)
	free()
	fill()
	pfctl(t, l, "", "-F", "states")
	free()
	loadPF(t, l, "set timeout { udp.first 1, udp.single 1, udp.multiple 1, interval 1 }\n"+rules)
	fill()
	l.Wait("the states to end", func() bool { return pfctl(t, l, "", "-t", "bad", "-T", "show") == "" })
	free()
}

// pfFloods: rules are evaluated for each output port of a flood. A connection whose first packet
// was flooded continues.
func pfFloods(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	loadPF(t, l, "block\npass in on p1 tag fromp1\npass out on p2 tagged fromp1\npass out on p3 proto udp to port 68\nset skip on p4\n")
	l.Reach(a, udps(2, B, A, ip1, ip2, [2]int{1, 2}), b, ends[3])
	l.Reach(a, udps(2, netlab.Broadcast, A, ip1, "255.255.255.255", [2]int{67, 68}), ends[1:]...)
	l.Reach(a, udps(2, netlab.Group(1), A, ip1, "239.1.1.1", [2]int{5, 5}), b, ends[3])
	learn(l, b, B)
	l.Reach(a, udps(2, B, A, ip1, ip2, [2]int{1, 2}), b)
	l.Reach(b, udps(2, A, B, ip2, ip1, [2]int{2, 1}), a)
	// It moves to a port that blocks it.
	learn(l, ends[2], B)
	l.Reach(a, udps(2, B, A, ip1, ip2, [2]int{9, 9}))
}

// pfMoves: a connection follows a station to another port, unless the state is bound.
func pfMoves(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	for _, policy := range []string{"floating", "if-bound"} {
		learn(l, ends[0], A)
		learn(l, ends[1], B)
		loadPF(t, l, "set state-policy "+policy+"\nblock\npass in on p1\npass out on p2\n")
		pfctl(t, l, "", "-Fs")
		c := tcpTalk{a: ends[0], b: ends[1], aMAC: A, bMAC: B, from: ip1, to: ip2, ports: [2]int{1000, 80}}
		c.open(l, 1, 1)
		learn(l, ends[2], B)
		c.b = ends[2]
		if policy == "floating" {
			c.passes(l, ack, 2, 2)
			c.back().passes(l, ack, 2, 2)
			continue
		}
		c.blocked(l, ack, 2, 2)
		c.back().blocked(l, ack, 2, 2)
	}
}

// pfVLANs: the same addresses in two VLANs are two connections. Private VLANs are one network.
func pfVLANs(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "10", "20", "20"})
	for i, mac := range []netlab.MAC{A, B, A, B} {
		learn(l, ends[i], mac)
	}
	loadPF(t, l, "block\npass in on p1\npass out on p2\n")
	l.Reach(ends[0], udps(2, B, A, ip1, ip2, [2]int{1, 2}), ends[1])
	l.Reach(ends[1], udps(2, A, B, ip2, ip1, [2]int{2, 1}), ends[0])
	l.Reach(ends[3], udps(2, A, B, ip2, ip1, [2]int{2, 1}))
	l.Reach(ends[2], udps(2, B, A, ip1, ip2, [2]int{1, 2}))
	loadPF(t, l, "block\npass in on { p1 p3 }\npass out on { p2 p4 }\n")
	l.Reach(ends[2], udps(2, B, A, ip1, ip2, [2]int{1, 2}), ends[3])
	if out := pfctl(t, l, "", "-ss"); strings.Count(out, "all udp 10.0.0.1:1 -> 10.0.0.2:2 ") != 2 {
		t.Errorf("the states are\n%s", out)
	}
}

// pfTcpdump: tcpdump reads the output of pflog.
func pfTcpdump(t *testing.T, hook string) {
	if _, err := exec.LookPath("tcpdump"); err != nil {
		t.Skip("tcpdump is not here")
	}
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	loadPF(t, l, "pass no state\nanchor x {\n pass no state\n block in log (all) proto udp to port 55\n}\nblock in log on p1 proto udp to port 53\npass out log on p2 proto udp to port 54 no state\npass log proto tcp to port 80\n")
	file := filepath.Join(t.TempDir(), "log")
	reader := l.Command("pflog", "-w", file)
	must(t, reader.Start())
	defer reader.Process.Kill()
	read := func() string {
		out, _ := exec.Command("tcpdump", "-n", "-e", "-t", "-r", file).Output()
		return string(out)
	}
	l.Wait("the log to be read", func() bool {
		l.Send(a, udp4(B, A, ip1, ip2, [2]int{1000, 53}, 1))
		return strings.Contains(read(), "rule 2/0(match): block in on p1: 10.0.0.1.1000 > 10.0.0.2.53: ")
	})
	l.Send(a, udp4(B, A, ip1, ip2, [2]int{1000, 54}, 1))
	l.Send(a, udp4(B, A, ip1, ip2, [2]int{1000, 55}, 1))
	l.Send(a, ip4(B, A, ip1, ip2, typeTCP, 0, 0, segment([2]int{1000, 80}, syn, 1, 0)))
	want := []string{
		"rule 3/0(match): pass out on p2: 10.0.0.1.1000 > 10.0.0.2.54: ",
		"rule 1.x.1/0(match): block in on p1: 10.0.0.1.1000 > 10.0.0.2.55: ",
		"rule 4/0(match): pass in on p1: 10.0.0.1.1000 > 10.0.0.2.80: ",
		"rule 4/0(match): pass out on p2: 10.0.0.1.1000 > 10.0.0.2.80: ",
	}
	l.Wait("the log", func() bool { return strings.Contains(read(), "pass out on p2: 10.0.0.1.1000 > 10.0.0.2.80: ") })
	must(t, reader.Process.Signal(syscall.SIGTERM))
	must(t, reader.Wait())
	out := read()
	for _, line := range want {
		if !strings.Contains(out, line) {
			t.Errorf("tcpdump does not print %q but\n%s", line, out)
		}
	}
}

// pfWithAll: pf together with all other features of a switch.
func pfWithAll(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(5)
	for n := range 2 {
		l.AddBridge(fmt.Sprintf("br%d", n), hook, ends[2*n:2*n+2], "--vlan-filtering")
	}
	l.Bascule(cable("br0/a br1/b")...)
	loadPF(t, l, "set skip on lo0\nblock\npass proto { tcp udp icmp icmp6 } keep state (max 1000) set prio 5\n", "-b", "br0")
	loadPF(t, l, "table <all> { 198.18/16 fdba::/16 fe80::/10 ff02::/16 ::/128 }\nblock log\npass proto { tcp udp icmp icmp6 } from <all> modulate state\n", "-b", "br1")
	l.Bascule("span", "add", "br0", ends[4].Port)
	l.Bascule("port", "set", "br0", ends[0].Port, "--source-guard=on")
	one, two := ends[0].Host(), ends[2].Host()
	for _, a := range []netip.Addr{one.IPv4, one.IPv6} {
		l.Bascule("binding", "add", "br0", ends[0].Port, ends[0].MAC.String(), a.String(), "--vlan", "1")
	}
	for _, e := range ends {
		e.ReadyForXDP()
	}
	for _, address := range []netip.Addr{two.IPv4, two.IPv6} {
		inNamespace(t, one.Namespace, "ping", "-c2", "-i0.1", "-w60", "-s", "4000", address.String())
		must(t, netlab.Transfer(one, two, address, 1<<20))
		echoUDP(t, one, two, address, 8000)
	}
	must(t, netlab.Transfer(two, one, one.IPv4, 1<<20))
	for _, bridge := range []string{"br0", "br1"} {
		if out := pfctl(t, l, "", "-b", bridge, "-ss"); strings.Count(out, "\n") < 7 {
			t.Errorf("%s has the states\n%s", bridge, out)
		}
	}
}
