// SPDX-License-Identifier: BSD-2-Clause

package probe

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// datagram is a frame with a UDP datagram, whose IPv4 checksum is right.
func datagram(size int) []byte {
	f := make([]byte, size)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0})
	copy(f[ipAt:], []byte{0x45, 0, 0, 0, 0, 0, 0, 0, 64, unix.IPPROTO_UDP, 0, 0, 198, 18, 0, 1, 198, 18, 0, 2})
	binary.BigEndian.PutUint16(f[ipAt+2:], uint16(size-ipAt))
	binary.BigEndian.PutUint16(f[udpAt:], 9)
	binary.BigEndian.PutUint16(f[udpAt+2:], 9)
	binary.BigEndian.PutUint16(f[udpAt+4:], uint16(size-udpAt))
	binary.BigEndian.PutUint16(f[ipAt+10:], ^sum(f[ipAt:udpAt]))
	return f
}

// sum is the sum of a header (RFC 1071): 0xffff if its checksum is right.
func sum(head []byte) uint16 {
	var s uint32
	for b := range slices.Chunk(head, 2) {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

func TestStreamRefuses(t *testing.T) {
	arp := datagram(60)
	arp[13] = 6
	for name, s := range map[string]Stream{
		"no UDP datagram":         {Frame: arp, Sizes: []int{60}},
		"no UDP datagram in IPv4": {Frame: arp, Ports: 2},
		"a frame of 61 bytes":     {Frame: datagram(60), Sizes: []int{60, 61}},
		"a frame of 41 bytes":     {Frame: datagram(60), Sizes: []int{41}},
		"pairs of ports":          {Frame: datagram(60), Ports: maxPairs + 1},
		"give one of IPv4":        {Frame: datagram(60), Hosts: 1},
		"not so many":             {Frame: datagram(60), Hosts: 6, Host: netip.MustParseAddr("255.255.255.251")},
	} {
		if _, err := s.shapes(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: error %v", name, err)
		}
	}
}

// Both ways to send put the same frames on the wire: with sizes, addresses and ports in
// turn, and matching headers.
func TestFrames(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make a network namespace")
	}
	stream := Stream{
		Frame: datagram(600),
		Sizes: []int{60, 600, 100},
		Ports: 2,
		Host:  netip.MustParseAddr("192.0.2.10"),
		Hosts: 100,
		Src:   Vary{Base: net.HardwareAddr{2, 0, 0, 0, 1, 0}, Count: 4},
		Dst:   Vary{Base: net.HardwareAddr{2, 0, 0, 0, 2, 0}, Count: 3},
	}
	// More than the slots of a ring, and twice what a batch holds.
	const count = 2*slotCount + 10
	type frame struct {
		Size     int
		Dst, Src byte
		From, To uint16
	}
	type generator interface {
		Send(uint32) error
		Sent() (uint64, error)
		Close() error
	}
	bpf := func(s Stream) (generator, error) { return NewGenerator(s) }
	ring := func(s Stream) (generator, error) { return NewRing(s) }
	for name, test := range map[string]struct {
		open    func(Stream) (generator, error)
		answers bool
		to      bool // the random addresses are destinations
	}{
		"bpf":               {bpf, false, false},
		"bpf answers":       {bpf, true, false},
		"bpf destinations":  {bpf, false, true},
		"ring":              {ring, false, false},
		"ring answers":      {ring, true, false},
		"ring destinations": {ring, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			var want []frame
			for i := range count {
				f := frame{stream.Sizes[i%3], byte(i % 3), byte(i % 4), firstPort + uint16(i%2), firstPort}
				if test.answers {
					f.From, f.To = f.To, f.From
				}
				want = append(want, f)
			}
			inOwnNamespace(t)
			from, to := cable(t)
			fd := capture(t, to)
			s := stream
			s.Ifindex, s.Answers, s.HostsTo = from, test.answers, test.to
			g, err := test.open(s)
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			if err := g.Send(count); err != nil {
				t.Fatal(err)
			}
			if n, err := g.Sent(); err != nil || n != count {
				t.Errorf("sent %d frames, error %v, want %d", n, err, count)
			}
			var got []frame
			varied, fixed := sourceAt, destinationAt
			if test.to {
				varied, fixed = fixed, varied
			}
			hosts := map[netip.Addr]int{}
			buf := make([]byte, 2048)
			for len(got) < count {
				n, err := unix.Read(fd, buf)
				if err != nil {
					t.Errorf("after %d frames: %v", len(got), err)
					break
				}
				f := buf[:n]
				if n < datagramAt || f[12] != 8 {
					continue
				}
				if s := sum(f[ipAt:udpAt]); s != 0xffff {
					t.Errorf("frame %d: the IPv4 header sums up to %#x", len(got), s)
				}
				ip, udp := int(binary.BigEndian.Uint16(f[ipAt+2:])), int(binary.BigEndian.Uint16(f[udpAt+4:]))
				if ip != n-ipAt || udp != n-udpAt {
					t.Errorf("frame %d of %d bytes: IPv4 says %d, UDP %d", len(got), n, ip, udp)
				}
				got = append(got, frame{n, f[5], f[11], binary.BigEndian.Uint16(f[udpAt:]), binary.BigEndian.Uint16(f[udpAt+2:])})
				hosts[netip.AddrFrom4([4]byte(f[varied:]))]++
				if !bytes.Equal(f[fixed:fixed+4], stream.Frame[fixed:fixed+4]) {
					t.Errorf("frame %d: the other address is %v", len(got), f[fixed:fixed+4])
				}
			}
			last := netip.MustParseAddr("192.0.2.109")
			for host := range hosts {
				if host.Less(stream.Host) || last.Less(host) {
					t.Errorf("a frame has %v", host)
				}
			}
			// Fewer than half of them is practically impossible.
			if len(hosts) < 50 {
				t.Errorf("%d addresses of 100", len(hosts))
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("frames (-want +got):\n%s", diff)
			}
		})
	}
}

// inOwnNamespace puts the test into a network namespace that ends with its
// thread.
func inOwnNamespace(t *testing.T) {
	t.Helper()
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
}

// cable makes a veth pair that accepts frames of both forms.
func cable(t *testing.T) (from, to int) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "a"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "b"}); err != nil {
		t.Fatal(err)
	}
	index := map[string]int{}
	for _, name := range []string{"a", "b"} {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		index[name] = l.Attrs().Index
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	// Without it a veth accepts no frames in XDP form.
	if err := e.Change("b", map[string]bool{"rx-gro": true}); err != nil {
		t.Fatal(err)
	}
	return index["a"], index["b"]
}

// capture opens a socket that receives the frames that arrive at a device.
func capture(t *testing.T, ifindex int) int {
	t.Helper()
	all := networkOrder(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: ifindex})
	}
	if err != nil {
		t.Fatal(err)
	}
	return fd
}
