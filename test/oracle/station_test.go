// SPDX-License-Identifier: BSD-2-Clause

package oracle

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// A sighting is something that the oracle's stack has accepted.
type sighting struct {
	by    string     // the sense that reports it
	mac   netlab.MAC // of the sender, or in a table
	from  netip.Addr
	ports [2]int // source and destination
	typ   byte   // of ICMPv6, or DHCP's op
	mark  int    // number of the packet, 0 if unknown
	said  string
}

func (s sighting) String() string {
	return fmt.Sprintf("%s %s(mark %d)", s.by, s.said, s.mark)
}

// The senses: the kernel's protocol handlers, which receive the packets for the station that it
// finds behind all tags; sockets; and tables.
const (
	handler                                         = "handler of "
	handlerIP4, handlerIP6, handlerARP, handlerRARP = handler + "IPv4", handler + "IPv6", handler + "ARP", handler + "RARP"
	handlerData, handlerLLC                         = handler + "type 88b5", handler + "LLC"
	handlerPPPoE, handlerMPLS                       = handler + "PPPoE", handler + "MPLS"
	socketUDP, socketTCP, socketICMP4, socketICMP6  = "UDP socket", "raw TCP socket", "raw ICMP socket", "raw ICMPv6 socket"
	tableARP, tableND, tableRoutes                  = "ARP table", "ND table", "routes"
	onWire                                          = "interface"
)

// An oracle is the receiving station.
type oracle struct {
	t     testing.TB
	end   *netlab.End
	self  station
	link  netlink.Link
	files []sense
	buf   []byte
}

// A sense is a socket with the function that reads from it.
type sense struct {
	by   string
	fd   int
	read func(s *sighting, b []byte, from unix.Sockaddr) bool
}

// newOracle makes the end a station with an IP stack and these addresses, and opens its
// sockets.
func newOracle(t testing.TB, end *netlab.End, self station) *oracle {
	t.Helper()
	o := &oracle{t: t, end: end, self: self, buf: make([]byte, 1<<16)}
	link, err := end.Namespace.Netlink().LinkByName(end.Ifname)
	o.must(err)
	o.link = link
	o.must(end.Namespace.Do(func() error {
		for name, value := range map[string]string{
			// ARP packets update the table at once, from any sender
			"ipv4/neigh/NAME/locktime": "0", "ipv4/conf/NAME/arp_accept": "1", "ipv6/neigh/NAME/locktime": "0",
			"ipv4/conf/all/rp_filter": "0", "ipv4/conf/NAME/rp_filter": "0",
			// accept router advertisements, and send nothing else
			"ipv6/conf/NAME/disable_ipv6": "0", "ipv6/conf/NAME/accept_dad": "0", "ipv6/conf/NAME/autoconf": "0",
			"ipv6/conf/NAME/accept_ra": "2", "ipv6/conf/NAME/router_solicitations": "0", "ipv6/conf/NAME/addr_gen_mode": "1",
			// no delays, and short timeouts
			"ipv4/icmp_ratemask": "0", "ipv6/icmp/ratelimit": "0", "ipv4/ipfrag_time": "1", "ipv6/ip6frag_time": "1",
		} {
			path := filepath.Join("/proc/sys/net", string(bytes.ReplaceAll([]byte(name), []byte("NAME"), []byte(end.Ifname))))
			if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	}))
	for _, ip := range []net.IPNet{
		{IP: self.ip4.AsSlice(), Mask: net.CIDRMask(24, 32)}, {IP: self.ip6.AsSlice(), Mask: net.CIDRMask(64, 128)},
	} {
		o.must(end.Namespace.Netlink().AddrAdd(link, &netlink.Addr{IPNet: &ip, Flags: unix.IFA_F_NODAD}))
	}
	o.must(end.Namespace.Do(o.listen))
	t.Cleanup(func() {
		for _, s := range o.files {
			unix.Close(s.fd)
		}
	})
	return o
}

func (o *oracle) must(err error) {
	o.t.Helper()
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *oracle) listen() error {
	var errs []error
	open := func(by string, family, typ, protocol int, read func(*sighting, []byte, unix.Sockaddr) bool) int {
		fd, err := unix.Socket(family, typ|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, protocol)
		if err == nil {
			err = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", by, err))
			return fd
		}
		o.files = append(o.files, sense{by, fd, read})
		return fd
	}
	for _, h := range []struct {
		by  string
		typ uint16
	}{
		{handlerIP4, unix.ETH_P_IP}, {handlerIP6, unix.ETH_P_IPV6}, {handlerARP, unix.ETH_P_ARP}, {handlerRARP, unix.ETH_P_RARP},
		{handlerData, typeData}, {handlerLLC, unix.ETH_P_802_2}, {handlerPPPoE, typePPPoE}, {handlerMPLS, typeMPLS},
	} {
		protocol := int(h.typ>>8 | h.typ<<8)
		fd := open(h.by, unix.AF_PACKET, unix.SOCK_DGRAM, protocol, readHandler)
		errs = append(errs,
			unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			// The station's own packets over loopback do not count.
			unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: uint16(protocol), Ifindex: o.end.Ifindex}),
		)
	}
	for _, port := range []int{portOpen, portAlso, 67, 68, 546} {
		if port != 546 {
			fd := open(socketUDP, unix.AF_INET, unix.SOCK_DGRAM, 0, readUDP(port))
			errs = append(errs, unix.Bind(fd, &unix.SockaddrInet4{Port: port}))
		}
		if port != 67 && port != 68 {
			fd := open(socketUDP, unix.AF_INET6, unix.SOCK_DGRAM, 0, readUDP(port))
			errs = append(errs, unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1), unix.Bind(fd, &unix.SockaddrInet6{Port: port}))
		}
	}
	raw := func(by string, family, protocol int) {
		open(by, family, unix.SOCK_RAW, protocol, func(s *sighting, b []byte, from unix.Sockaddr) bool {
			s.from = addressOf(from)
			if protocol == unix.IPPROTO_ICMPV6 && len(b) > 0 {
				s.typ = b[0]
			}
			s.said = fmt.Sprintf("from %v, type %d", s.from, s.typ)
			return s.from != o.self.ip4 && s.from != o.self.ip6 // from itself
		})
	}
	raw(socketTCP, unix.AF_INET, unix.IPPROTO_TCP)
	raw(socketTCP, unix.AF_INET6, unix.IPPROTO_TCP)
	raw(socketICMP4, unix.AF_INET, unix.IPPROTO_ICMP)
	raw(socketICMP6, unix.AF_INET6, unix.IPPROTO_ICMPV6)
	return errors.Join(errs...)
}

// readHandler reads a frame from a protocol handler. Handlers receive frames of VLANs without
// an interface as well, marked as frames for others.
func readHandler(s *sighting, b []byte, from unix.Sockaddr) bool {
	ll, ok := from.(*unix.SockaddrLinklayer)
	if !ok || ll.Pkttype == unix.PACKET_OTHERHOST {
		return false
	}
	copy(s.mac[:], ll.Addr[:])
	switch {
	case s.by == handlerIP4 && len(b) >= 20:
		s.from = netip.AddrFrom4([4]byte(b[12:16]))
	case s.by == handlerIP6 && len(b) >= 40:
		s.from = netip.AddrFrom16([16]byte(b[8:24]))
	}
	s.said = fmt.Sprintf("from %v %.64x", s.mac, b)
	return true
}

func readUDP(port int) func(*sighting, []byte, unix.Sockaddr) bool {
	return func(s *sighting, b []byte, from unix.Sockaddr) bool {
		s.from, s.ports[1] = addressOf(from), port
		switch a := from.(type) {
		case *unix.SockaddrInet4:
			s.ports[0] = a.Port
		case *unix.SockaddrInet6:
			s.ports[0] = a.Port
		}
		if len(b) > 0 {
			s.typ = b[0]
		}
		s.said = fmt.Sprintf("%v port %d > %d, %d bytes", s.from, s.ports[0], port, len(b))
		return true
	}
}

func addressOf(sa unix.Sockaddr) netip.Addr {
	switch a := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrFrom4(a.Addr)
	case *unix.SockaddrInet6:
		return netip.AddrFrom16(a.Addr)
	}
	return netip.Addr{}
}

// markOf returns the number of the packet that the bytes belong to, 0 if they contain none.
func markOf(b []byte) int {
	_, rest, found := bytes.Cut(b, []byte(magic))
	if !found || len(rest) < 4 {
		return 0
	}
	return int(binary.BigEndian.Uint32(rest))
}

// hear reads all sockets.
func (o *oracle) hear() (list []sighting) {
	o.t.Helper()
	for _, f := range o.files {
		for {
			n, from, err := unix.Recvfrom(f.fd, o.buf, unix.MSG_DONTWAIT)
			if errors.Is(err, unix.EAGAIN) {
				break
			}
			if errors.Is(err, unix.EINTR) || errors.Is(err, unix.ECONNREFUSED) || errors.Is(err, unix.EHOSTUNREACH) {
				continue
			}
			o.must(err)
			s := sighting{by: f.by, mark: markOf(o.buf[:n])}
			if f.read(&s, o.buf[:n], from) {
				list = append(list, s)
			}
		}
	}
	for _, f := range o.end.Received() {
		list = append(list, sighting{by: onWire, mark: markOf([]byte(f)), said: fmt.Sprintf("%.64x", f)})
	}
	return list
}

// pieces reports whether the station still holds fragments of incomplete packets.
func (o *oracle) pieces() (some bool) {
	o.t.Helper()
	o.must(o.end.Namespace.Do(func() error {
		for _, file := range []string{"sockstat", "sockstat6"} {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return err
			}
			_, frag, found := strings.Cut(string(text), "FRAG")
			fields := strings.Fields(frag) // "6: inuse 0 memory 0"
			if !found || len(fields) < 3 {
				return fmt.Errorf("%s says nothing of fragments: %q", file, text)
			}
			some = some || fields[2] != "0"
		}
		return nil
	}))
	return some
}

// believes returns the contents of the station's neighbour and route tables, and clears them.
func (o *oracle) believes() (list []sighting) {
	o.t.Helper()
	nl := o.end.Namespace.Netlink()
	for _, table := range []struct {
		by     string
		family int
	}{{tableARP, unix.AF_INET}, {tableND, unix.AF_INET6}} {
		neighbours, err := nl.NeighList(o.link.Attrs().Index, table.family)
		o.must(err)
		for _, n := range neighbours {
			if len(n.HardwareAddr) != 6 || n.State&(netlink.NUD_NOARP|netlink.NUD_FAILED|netlink.NUD_INCOMPLETE) != 0 {
				continue
			}
			from, _ := netip.AddrFromSlice(n.IP)
			list = append(list, sighting{by: table.by, mac: netlab.MAC(n.HardwareAddr), from: from.Unmap(), said: fmt.Sprintf("%v at %v", n.IP, n.HardwareAddr)})
			if err := nl.NeighDel(&n); !errors.Is(err, unix.ENOENT) {
				o.must(err)
			}
		}
	}
	routes, err := nl.RouteListFiltered(unix.AF_INET6, &netlink.Route{LinkIndex: o.link.Attrs().Index, Protocol: unix.RTPROT_RA},
		netlink.RT_FILTER_OIF|netlink.RT_FILTER_PROTOCOL)
	o.must(err)
	for _, r := range routes {
		list = append(list, sighting{by: tableRoutes, said: r.String()})
		if err := nl.RouteDel(&r); !errors.Is(err, unix.ESRCH) {
			o.must(err)
		}
	}
	return list
}
