// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// A tap receives the packets that leave a device without Ethernet headers.
type tap struct {
	t  testing.TB
	fd int
}

// newTap listens at a device of a namespace.
func newTap(t testing.TB, ns *ends.Namespace, ifname string) *tap {
	t.Helper()
	a := &tap{t, -1}
	err := ns.Do(func() (err error) {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		const all = unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8
		if a.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, all); err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(a.fd) })
		second := unix.Timeval{Sec: 1}
		if err := unix.SetsockoptTimeval(a.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &second); err != nil {
			return err
		}
		return unix.Bind(a.fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// next returns n packets to these addresses, as hexadecimal digits, sorted by their bytes.
func (a *tap) next(n int, to ...string) (got []string) {
	a.t.Helper()
	buf := make([]byte, 65536)
	for deadline := time.Now().Add(patience); len(got) < n; {
		length, from, err := unix.Recvfrom(a.fd, buf, 0)
		switch {
		case err == unix.EAGAIN || err == unix.EINTR:
			if time.Now().After(deadline) {
				a.t.Fatalf("%d packets of %d arrive", len(got), n)
			}
		case err != nil:
			a.t.Fatal(err)
		case from.(*unix.SockaddrLinklayer).Pkttype != unix.PACKET_OUTGOING:
			packet := hex.EncodeToString(buf[:length])
			if slices.ContainsFunc(to, func(address string) bool { return strings.Contains(packet, address) }) {
				got = append(got, packet)
			}
		}
	}
	slices.Sort(got)
	return got
}

// A route through WireGuard is used: the packets at the tunnel's other end, in another network
// namespace, are the same as from the host alone.
func TestWireGuard(t *testing.T) {
	onHooks(t, func(t *testing.T, s *site) {
		peer := s.lab.NewEnds(1)[0]
		in := func(ns *ends.Namespace, name string, args ...string) (string, error) {
			out, err := ns.Output(context.Background(), ends.AnyCPU, name, args...)
			return strings.TrimSpace(string(out)), err
		}
		if _, err := in(s.lab.Switch, "ip", "link", "add", "wg0", "type", "wireguard"); err != nil {
			if strings.Contains(err.Error(), "Unknown device type") {
				t.Skip("the kernel has no WireGuard: ", err)
			}
			t.Fatal(err)
		}
		s.lab.Keep("wg0")
		dir := t.TempDir()
		keys := [2]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
		var public [2]string
		for i, file := range keys {
			private, err := in(s.lab.Switch, "wg", "genkey")
			s.must(err)
			s.must(os.WriteFile(file, []byte(private+"\n"), 0o600))
			public[i], err = in(s.lab.Switch, "sh", "-c", "wg pubkey < "+file)
			s.must(err)
		}
		run := func(ns *ends.Namespace, lines ...string) {
			t.Helper()
			for _, line := range lines {
				words := strings.Fields(line)
				_, err := in(ns, words[0], words[1:]...)
				s.must(err)
			}
		}
		run(peer.Namespace, "ip address add 10.0.3.2/24 dev "+peer.Ifname, "ip link set "+peer.Ifname+" up", "ip link add wg0 type wireguard",
			fmt.Sprintf("wg set wg0 private-key %s listen-port 51820 peer %s allowed-ips 10.9.7.0/24", keys[1], public[0]),
			"ip link set wg0 up")
		run(s.lab.Switch, "ip address add 10.0.3.1/24 dev "+peer.Port, "ip link set "+peer.Port+" up",
			fmt.Sprintf("wg set wg0 private-key %s peer %s allowed-ips 10.20.0.0/16,fd20::/64 endpoint 10.0.3.2:51820", keys[0], public[1]),
			"ip link set wg0 up", "ip route add 10.20.0.0/16 dev wg0", "ip route add fd20::/64 dev wg0")
		run(peer.Namespace, fmt.Sprintf("wg set wg0 peer %s allowed-ips 10.1.0.0/16,fd11::/64", public[0]))
		tap := newTap(t, peer.Namespace, "wg0")
		frames := s.both("10.20.1.1", "fd20::1")
		look := func() []string {
			s.lab.Send(s.sides[0].end, frames...)
			return tap.next(len(frames), "0a140101", "fd200000000000000000000000000001")
		}
		s.route(false)
		want := look()
		if n := s.routed(); n != 0 {
			t.Errorf("the datapath has routed %d packets without --route", n)
		}
		s.route(true)
		before := s.routed()
		for range 3 { // the host gets one packet a second
			if more, less := differences(look(), want); more != nil || less != nil {
				t.Fatalf("the shortcut has\n  %s\nand lacks\n  %s", few(more), few(less))
			}
		}
		if s.routed() == before {
			t.Errorf("the datapath has routed nothing: %v", s.lab.Port("br0", s.sides[0].gateway).Routed)
		}
	})
}
