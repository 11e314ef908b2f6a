// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

var pfReassembleCases = []conformance{
	{name: "pf_reassemble", hooks: both, run: pfReassemble},
	{name: "pf_reassemble_hosts", hooks: both, run: pfReassembleHosts},
	{name: "TCP through synproxy state, and scrub (reassemble tcp)", hooks: tcx, run: func(t *testing.T, hook string) {
		throughPF(t, hook, "pass in on p1 proto tcp synproxy state scrub (reassemble tcp)")
	}},
	{name: "pf_reassemble_patch", hooks: tcx, run: pfReassemblePatch},
	{name: "TCP through scrub (reassemble tcp)", hooks: both, run: func(t *testing.T, hook string) {
		throughPF(t, hook, "match scrub (reassemble tcp)")
	}},
	{name: "TCP through scrub with all, and modulate state", hooks: tcx, run: func(t *testing.T, hook string) {
		throughPF(t, hook, "match proto tcp scrub (reassemble tcp)\n"+scrubRules+"pass proto tcp modulate state\n", scrubSeen)
	}},
}

// A stamped is a segment of a connection, as a host has sent or received it.
type stamped struct {
	flow        string // addresses and ports, the sender's first
	out, syn    bool
	seq, acked  uint32
	value, echo uint32
}

// readStamped parses a frame from its IP header on. ok is false if it is not TCP with timestamps in
// Linux's form.
func readStamped(b []byte) (s stamped, ok bool) {
	if len(b) < 40 {
		return s, false
	}
	at, addresses := 40, b[8:40]
	switch {
	case b[0] == 0x45 && b[9] == unix.IPPROTO_TCP:
		at, addresses = 20, b[12:20]
	case b[0]>>4 != 6 || b[6] != unix.IPPROTO_TCP:
		return s, false
	}
	tcp := b[at:]
	if len(tcp) < 20 || len(tcp) < int(tcp[12]>>4)*4 {
		return s, false
	}
	s = stamped{
		flow: fmt.Sprintf("%x %x", addresses, tcp[:4]), syn: tcp[13]&syn != 0,
		seq: binary.BigEndian.Uint32(tcp[4:]), acked: binary.BigEndian.Uint32(tcp[8:]),
	}
	for o := tcp[20 : tcp[12]>>4*4]; len(o) > 1; {
		switch {
		case o[0] == 1:
			o = o[1:]
			continue
		case o[0] == 0 || o[1] < 2 || int(o[1]) > len(o):
			return s, false
		case o[0] == 8 && o[1] == 10:
			s.value, s.echo = binary.BigEndian.Uint32(o[2:]), binary.BigEndian.Uint32(o[6:])
			return s, true
		}
		o = o[o[1]:]
	}
	return s, false
}

// watchStamps records the timestamps of all segments that a host sends and receives. stop ends that
// and returns them.
func watchStamps(t *testing.T, h *netlab.Host) (stop func() []stamped) {
	t.Helper()
	link, err := h.Namespace.Netlink().LinkByName(h.Ifname)
	must(t, err)
	fd := -1
	must(t, h.Namespace.Do(func() (err error) {
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		return errors.Join(
			unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20),
			unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000}),
			// ETH_P_ALL
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: 0x0300, Ifindex: link.Attrs().Index}),
		)
	}))
	end := make(chan bool)
	var list []stamped
	var group sync.WaitGroup
	group.Go(func() {
		b := make([]byte, 120)
		for stopping := false; ; {
			n, from, err := unix.Recvfrom(fd, b, 0)
			if err != nil { // no more segments
				if stopping {
					return
				}
				select {
				case <-end:
					stopping = true
				default:
				}
				continue
			}
			if s, ok := readStamped(b[:n]); ok {
				s.out = from.(*unix.SockaddrLinklayer).Pkttype == unix.PACKET_OUTGOING
				list = append(list, s)
			}
		}
	})
	return func() []stamped {
		t.Helper()
		close(end)
		group.Wait()
		stats, err := unix.GetsockoptTpacketStats(fd, unix.SOL_PACKET, unix.PACKET_STATISTICS)
		must(t, errors.Join(err, unix.Close(fd)))
		if stats.Drops != 0 {
			t.Fatalf("the test's own socket overflowed by %d packets", stats.Drops)
		}
		return list
	}
}

// wantOffsets compares the segments that two hosts have sent and received: the timestamps of each
// side of a connection have one constant offset where they arrive, and are echoed with their
// original values.
func wantOffsets(t *testing.T, one, two []stamped) {
	t.Helper()
	offsets := map[uint32]bool{}
	segments := 0
	for _, way := range [][2][]stamped{{one, two}, {two, one}} {
		type at struct {
			flow       string
			seq, acked uint32
		}
		sent, values, syns := map[at][]uint32{}, map[string]map[uint32]bool{}, map[string]uint32{}
		for _, s := range way[0] {
			if !s.out {
				continue
			}
			k := at{s.flow, s.seq, s.acked}
			sent[k] = append(sent[k], s.value)
			if values[s.flow] == nil {
				values[s.flow] = map[uint32]bool{}
			}
			values[s.flow][s.value] = true
			if s.syn {
				syns[s.flow] = s.value
			}
		}
		offset := map[string]uint32{}
		for _, s := range way[1] {
			if s.out {
				continue
			}
			if _, ok := offset[s.flow]; !ok {
				if !s.syn {
					t.Fatalf("%s begins with no SYN", s.flow)
				}
				offset[s.flow] = s.value - syns[s.flow]
				offsets[offset[s.flow]] = true
			}
			segments++
			was := s.value - offset[s.flow]
			if !values[s.flow][was] {
				t.Fatalf("%s: timestamp %d arrives, which nobody has sent with an offset of %d", s.flow, s.value, offset[s.flow])
			}
			if list := sent[at{s.flow, s.seq, s.acked}]; len(list) == 1 && list[0] != was {
				t.Fatalf("%s: timestamp %d of segment %d arrives as %d, and the offset was %d", s.flow, list[0], s.seq, s.value, offset[s.flow])
			}
		}
		// The echoes to the sender.
		for _, s := range way[0] {
			back := s.flow
			if f := strings.Fields(s.flow); !s.out {
				a, p := f[0], f[1]
				back = a[len(a)/2:] + a[:len(a)/2] + " " + p[4:] + p[:4]
			}
			if !s.out && s.echo != 0 && !values[back][s.echo] {
				t.Fatalf("%s: echo %d comes back, which was never sent", s.flow, s.echo)
			}
		}
	}
	if segments < 100 || len(offsets) < 4 || offsets[0] {
		t.Errorf("%d segments have the offsets %v", segments, offsets)
	}
}

// wantNoPAWS checks that a host's stack has refused no segment because of its timestamps or
// checksum.
func wantNoPAWS(t *testing.T, hosts ...*netlab.Host) {
	t.Helper()
	for _, h := range hosts {
		out := inNamespace(t, h.Namespace, "nstat", "-asz", "TcpInCsumErrors", "TcpExtPAWSActive", "TcpExtPAWSEstab", "TcpExtTSEcrRejected")
		for _, line := range strings.Split(out, "\n") {
			if f := strings.Fields(line); len(f) > 1 && strings.HasPrefix(f[0], "Tcp") && f[1] != "0" {
				t.Errorf("%s counts %s %s", h.Ifname, f[0], f[1])
			}
		}
	}
}

// pfReassembleHosts: the stacks of two hosts, with and without offloads, through a reload of rules.
func pfReassembleHosts(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	one, two := ends[0].Host(), ends[1].Host()
	for _, e := range ends {
		e.ReadyForXDP()
	}
	const rules = "match in all scrub (reassemble tcp)\npass all flags S/SA\n"
	loadPF(t, l, rules)
	wantPF(t, l, rules, "-sr")
	stop := []func() []stamped{watchStamps(t, one), watchStamps(t, two)}
	held := hold(t, one, two)
	held()
	for _, address := range []netip.Addr{two.IPv4, two.IPv6} {
		must(t, l.TransferInOrder(one, two, address, 8<<20))
	}
	loadPF(t, l, "pass\n") // a state keeps the options of its rules
	held()
	loadPF(t, l, "set limit states 200000\n"+rules)
	held()
	for _, e := range ends {
		e.SetOffloads(false, hook == "xdp")
	}
	must(t, l.TransferInOrder(one, two, two.IPv4, 4<<20))
	must(t, l.TransferInOrder(two, one, one.IPv6, 4<<20))
	if hook == "tcx" {
		for _, e := range ends {
			e.SetOffloads(true, true)
			leaveChecksums(t, e)
		}
		must(t, l.TransferInOrder(two, one, one.IPv4, 16<<20))
		must(t, l.TransferInOrder(one, two, two.IPv6, 16<<20))
	}
	held()
	wantOffsets(t, stop[0](), stop[1]())
	wantNoPAWS(t, one, two)
	wantDrops(t, l, ends[0], "pf-timestamp", 0)
	wantDrops(t, l, ends[1], "pf-timestamp", 0)
}

// withStamps returns a segment of a talk with a TTL and timestamps.
func (c tcpTalk) withStamps(ttl byte, flags byte, seq, acked, value, echo uint32, data ...byte) netlab.Frame {
	b := segment(c.ports, flags, seq, acked)
	b[12] = 0x80
	b = append(b, 1, 1, 8, 10)
	b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, value), echo)
	f := []byte(ip4(c.bMAC, c.aMAC, c.from, c.to, typeTCP, 0, 0, append(b, data...)))
	f[22] = ttl
	return netlab.Frame(f)
}

// pfReassemble: the TTL of a side is restored, old timestamps are dropped, and all counters and
// reports of drops have a name for it.
func pfReassemble(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	loadPF(t, l, "pass scrub (reassemble tcp)\n")
	there := tcpTalk{a: ends[0], b: ends[1], aMAC: A, bMAC: B, from: ip1, to: ip2, ports: [2]int{1000, 80}}
	back := there.back()
	// passes returns the TTL and timestamps of the segment that arrives.
	passes := func(c tcpTalk, f netlab.Frame) (ttl byte, value, echo uint32) {
		t.Helper()
		got := l.Deliver(c.a, f)[c.b]
		if len(got) != 1 {
			t.Fatalf("%v arrives as %v", f, got)
		}
		s, ok := readStamped([]byte(got[0])[14:])
		if !ok {
			t.Fatalf("%v arrives as %v", f, got)
		}
		return got[0][22], s.value, s.echo
	}
	_, value, _ := passes(there, there.withStamps(64, syn, 9, 0, 1000, 0))
	offset := value - 1000
	ttl, other, echo := passes(back, back.withStamps(60, syn|ack, 19, 10, 5000, value))
	if ttl != 60 || echo != 1000 {
		t.Errorf("the SYN+ACK arrives with TTL %d and an echo of %d", ttl, echo)
	}
	for n := range uint32(3) {
		ttl, value, echo := passes(there, there.withStamps(byte(1+n), ack, 10+n, 20, 1001+n, other, 1))
		if ttl != 64 || value != 1001+n+offset || echo != 5000 {
			t.Errorf("TTL %d, timestamps %d and %d; want 64, %d, 5000", ttl, value, echo, 1001+n+offset)
		}
	}
	passes(back, back.withStamps(60, ack, 20, 13, 5001, 1003+offset))
	wantDrops(t, l, ends[0], "pf-timestamp", 0)
	old := there.withStamps(64, ack, 13, 20, 900, other, 1)
	l.Reach(ends[0], []netlab.Frame{old})
	wantDrops(t, l, ends[0], "pf-timestamp", 1)
	if text := l.Bascule("pfctl", "-b", "br0", "-s", "info"); !slices.ContainsFunc(strings.Split(text, "\n"), func(line string) bool {
		f := strings.Fields(line)
		return len(f) > 1 && f[0] == "bad-timestamp" && f[1] == "1"
	}) {
		t.Errorf("pfctl -s info does not count it:\n%s", text)
	}
	if text := l.Bascule("trace", "br0", "--in", ends[0].Port, fmt.Sprintf("%x", string(old))); !strings.Contains(text, "pf-timestamp") {
		t.Errorf("trace says\n%s", text)
	}
	_, value, _ = passes(there, there.withStamps(64, ack, 13, 20, 1004, other, 1))
	if value != 1004+offset {
		t.Errorf("the next timestamp arrives as %d, want %d", value, 1004+offset)
	}
}

// pfReassemblePatch: each of three bridges in a row tracks a connection, also while frames are
// flooded over several cables because addresses have been deleted.
func pfReassemblePatch(t *testing.T, hook string) {
	l, ends := patched(t, hook, 3, "br1/left br0/right", "br1/right br2/left")
	one, two := ends[0].Host(), ends[4].Host()
	bridges := []string{"br0", "br1", "br2"}
	for _, bridge := range bridges {
		if r := tryPfctl(t, l, "match scrub (reassemble tcp)\npass\n", "-b", bridge, "-f", "-"); r.Exit != 0 {
			t.Fatal(r)
		}
	}
	stop := []func() []stamped{watchStamps(t, one), watchStamps(t, two)}
	held := hold(t, one, two)
	done := make(chan error, 1)
	go func() {
		done <- errors.Join(
			l.TransferInOrder(one, two, two.IPv4, 16<<20), l.TransferInOrder(two, one, one.IPv6, 16<<20))
	}()
	for range 4 {
		for _, bridge := range bridges {
			l.Bascule("fdb", "flush", bridge)
			held()
		}
	}
	must(t, <-done)
	wantOffsets(t, stop[0](), stop[1]())
	wantNoPAWS(t, one, two)
	for _, bridge := range bridges {
		for _, p := range l.Ports(bridge) {
			if p.Drops["pf-timestamp"]+p.Drops["patch-loop"]+p.Drops["pf-state"] != 0 {
				t.Errorf("%s of %s drops %v", p.Ifname, bridge, p.Drops)
			}
		}
	}
}
