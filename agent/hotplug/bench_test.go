// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"fmt"
	"net"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// BenchmarkHotplug measures median times until the first frame from behind a new
// device leaves by another port: from the call that makes the device, which
// includes the kernel's work on it; and from the end of that call, when the
// device is up.
func BenchmarkHotplug(b *testing.B) {
	for _, device := range []struct {
		name string
		make func(testing.TB, *netlab.Lab, string) (send func([]byte) error, remove func())
	}{{"tap", makeTap}, {"veth", makeVeth}} {
		for _, way := range []struct {
			name   string
			berths int
		}{{"berth", berths}, {"edit", 0}} {
			b.Run(device.name+"/"+way.name, func(b *testing.B) { benchmarkHotplug(b, way.berths, device.make) })
		}
	}
}

func benchmarkHotplug(b *testing.B, berths int, plug func(testing.TB, *netlab.Lab, string) (func([]byte) error, func())) {
	l := netlab.New(b)
	station := l.NewEnds(1)[0]
	r := watch(b, l, file(bridgeOf("br0", station.Port, "new*")), func(w *Watcher) { w.berths = berths })
	r.ports("br0", station.Port)
	const ethertype = 0x88b5
	far := packetSocket(b, station.Namespace, ethertype)
	defer unix.Close(far)
	frame := []byte(l.Frame(netlab.Broadcast, netlab.Station(1), 60))
	buf := make([]byte, 2000)
	var all, after []time.Duration
	for i := range b.N {
		r.ports("br0", station.Port)
		r.vacant("br0", berths)
		name := fmt.Sprintf("new%d", i)
		start := time.Now()
		send, remove := plug(b, l, name)
		made := time.Now()
		for deadline := start.Add(10 * time.Second); ; {
			must(b, send(frame))
			again := unix.NsecToTimespec(int64(100 * time.Microsecond))
			n, err := unix.Ppoll([]unix.PollFd{{Fd: int32(far), Events: unix.POLLIN}}, &again, nil)
			if n > 0 && err == nil {
				break
			}
			if time.Now().After(deadline) {
				b.Fatal("no frame has arrived")
			}
		}
		all, after = append(all, time.Since(start)), append(after, time.Since(made))
		l.Keep(name)
		remove()
		for {
			if _, _, err := unix.Recvfrom(far, buf, unix.MSG_DONTWAIT); err != nil {
				break
			}
		}
	}
	for unit, list := range map[string][]time.Duration{"ms": all, "after-ms": after} {
		slices.Sort(list)
		b.ReportMetric(float64(list[len(list)/2].Nanoseconds())/1e6, unit)
	}
	b.ReportMetric(0, "ns/op")
}

// packetSocket receives frames of an EtherType in a namespace, and sends.
func packetSocket(t testing.TB, ns *ends.Namespace, ethertype uint16) (fd int) {
	t.Helper()
	must(t, ns.Do(func() (err error) {
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(ethertype>>8|ethertype<<8))
		return err
	}))
	return fd
}

// openTap makes a tap as QEMU does without a script: the tap is down.
func openTap(t testing.TB, l *netlab.Lab, name string) (fd int) {
	t.Helper()
	must(t, l.Switch.Do(func() (err error) {
		fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		r, err := unix.NewIfreq(name)
		if err != nil {
			return err
		}
		r.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
		return unix.IoctlIfreq(fd, unix.TUNSETIFF, r)
	}))
	return fd
}

// makeTap makes a tap that is up.
func makeTap(t testing.TB, l *netlab.Lab, name string) (send func([]byte) error, remove func()) {
	t.Helper()
	fd := openTap(t, l, name)
	nl := l.Switch.Netlink()
	link, err := nl.LinkByName(name)
	must(t, err)
	must(t, nl.LinkSetUp(link))
	return func(frame []byte) error {
		_, err := unix.Write(fd, frame)
		return err
	}, func() { unix.Close(fd) }
}

// makeVeth makes a veth as container engines do.
func makeVeth(t testing.TB, l *netlab.Lab, name string) (send func([]byte) error, remove func()) {
	t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Flags = name, net.FlagUp
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: "far"}
	there := l.Ends[0].Namespace // any namespace will do
	handle, err := netns.GetFromName(there.Name)
	must(t, err)
	defer handle.Close()
	veth.PeerNamespace = netlink.NsFd(int(handle))
	must(t, l.Switch.Netlink().LinkAdd(veth))
	far, err := there.Netlink().LinkByName("far")
	must(t, err)
	must(t, there.Netlink().LinkSetUp(far))
	fd := packetSocket(t, there, 0)
	return func(frame []byte) error {
			return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: far.Attrs().Index})
		}, func() {
			unix.Close(fd)
			must(t, l.Switch.Netlink().LinkDel(veth))
		}
}
