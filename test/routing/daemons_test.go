// SPDX-License-Identifier: BSD-2-Clause

package routing

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// Addresses behind the other router.
var at4, at6 = netip.MustParseAddr("10.9.1.1"), netip.MustParseAddr("fd09::1")

// A daemon's files are where it expects them: in memory, and in a mount namespace of its own.
const apart = `for dir in /run /var/tmp; do mount -t tmpfs -o mode=777 tmpfs $dir || exit; done; exec "$@"`

// daemon starts a program in a namespace. It ends with the test, or when end is called. Its output is
// printed if the test fails.
func daemon(t testing.TB, ns *ends.Namespace, name string, args ...string) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := ends.Command(ctx, "unshare", append([]string{"-m", "--propagation", "private", "sh", "-c", apart, "sh", name}, args...)...)
	said := netlab.NewOutputFile(t)
	cmd.Stdout, cmd.Stderr = said.File, said.File
	// It ends its child processes, and waits for them.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = patience
	if err := ns.Start(cmd, ends.AnyCPU); err != nil {
		t.Fatal(err)
	}
	end = sync.OnceFunc(func() {
		cancel()
		cmd.Wait()
	})
	t.Cleanup(func() {
		end()
		if t.Failed() {
			t.Logf("%s has said:\n%s", filepath.Base(name), said)
		}
	})
	return end
}

// needs skips the test if a program is missing.
func needs(t *testing.T, program, packet string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		t.Skipf("Debian's %s: %v", packet, err)
	}
}

// folder makes a folder with these files, which belong to a user.
func folder(t *testing.T, owner string, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	u, err := user.Lookup(owner)
	if err != nil {
		t.Fatal(err)
	}
	uid, _ := strconv.Atoi(u.Uid)
	gid, _ := strconv.Atoi(u.Gid)
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, uid, gid); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A couple is the host and another router behind the second side, with two links between them: the second
// side's, and another one.
type couple struct {
	*site
	other *ends.Namespace
	links [2]*netlab.End
}

func newCouple(t *testing.T, hook string) *couple {
	s := newSite(t, hook)
	first := s.sides[1].end
	c := &couple{site: s, other: first.Namespace}
	second := s.lab.NewEnd(c.other)
	c.links = [2]*netlab.End{first, second}
	s.lab.AddPort("br0", hook, second)
	s.lab.Bascule("port", "add", "br0", "gw3", "--type", "host", "--route")
	for _, port := range []string{second.Port, "gw3"} {
		s.lab.Bascule("vlan", "add", "br0", port, "13", "--pvid", "--untagged")
		s.lab.Bascule("vlan", "del", "br0", port, "1")
	}
	// The daemons have to find the way.
	s.ip("link set gw3 up", "address add 10.0.3.1/24 dev gw3", "address add fd03::1/64 dev gw3 nodad", "route del 10.9.0.0/16", "route del fd09::/64",
		"route del 10.3.0.0/16", "route del fd03::/64 via fd02::2")
	for i, e := range c.links {
		c.sysctlAt(e.Ifname)
		c.at("link", "set", e.Ifname, "up")
		c.at("address", "add", fmt.Sprintf("10.0.%d.2/24", 2+i), "dev", e.Ifname)
		c.at("address", "add", fmt.Sprintf("fd0%d::2/64", 2+i), "dev", e.Ifname, "nodad")
	}
	c.at("address", "add", "10.9.1.1/32", "dev", "lo")
	c.at("address", "add", "fd09::1/128", "dev", "lo")
	return c
}

// at runs ip(8) at the other router.
func (c *couple) at(args ...string) {
	c.t.Helper()
	_, err := c.other.Output(context.Background(), ends.AnyCPU, "ip", args...)
	c.must(err)
}

// sysctlAt enables IPv6 at an interface of the other router.
func (c *couple) sysctlAt(ifname string) {
	c.t.Helper()
	c.must(c.other.Do(func() error {
		return sysctl(map[string]string{
			"ipv6/conf/" + ifname + "/disable_ipv6": "0", "ipv6/conf/" + ifname + "/accept_dad": "0", "ipv6/conf/lo/disable_ipv6": "0",
			"ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
		})
	}))
}

// leaves waits until packets to addresses behind the other router leave by one of the links, and the
// datapath routes them.
func (c *couple) leaves(what string, by *netlab.End, packets []netlab.Frame) {
	c.t.Helper()
	c.lab.Wait(what, func() bool {
		before := c.routed()
		got := c.lab.Deliver(c.sides[0].end, packets...)
		n := 0
		for _, f := range got[by] {
			if s := string(f); strings.Contains(s, string(at4.AsSlice())) || strings.Contains(s, string(at6.AsSlice())) {
				n++
			}
		}
		return n >= len(packets) && c.routed() > before
	})
}

// fails has the first link fail, and come back. The traffic moves to the other link, and back.
func (c *couple) fails(packets []netlab.Frame) {
	c.t.Helper()
	c.leaves("packets to go by the first link", c.links[0], packets)
	c.links[0].Leave()
	c.lab.Pull(c.links[0].Port)
	c.leaves("packets to go by the second link", c.links[1], packets)
	c.lab.Plug(c.links[0].Port)
	c.links[0].Return()
	c.leaves("packets to go by the first link again", c.links[0], packets)
}

// The datapath follows routes that FRR finds with OSPF, without further steps.
func TestFRR(t *testing.T) {
	needs(t, "/usr/lib/frr/ospfd", "frr")
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			c := newCouple(t, hook)
			link := func(ifname string, cost int) string {
				return fmt.Sprintf("interface %s\n ip ospf cost %d\n ip ospf network point-to-point\n ip ospf dead-interval minimal hello-multiplier 4\n", ifname, cost)
			}
			for i, r := range []struct {
				ns    *ends.Namespace
				links [2]string
				nets  []string
			}{
				{c.lab.Switch, [2]string{"gw2", "gw3"}, []string{"10.0.1.0/24", "10.0.2.0/24", "10.0.3.0/24"}},
				{c.other, [2]string{c.links[0].Ifname, c.links[1].Ifname}, []string{"10.9.1.1/32", "10.0.2.0/24", "10.0.3.0/24"}},
			} {
				ospf := link(r.links[0], 10) + link(r.links[1], 20) + fmt.Sprintf("router ospf\n ospf router-id 192.0.2.%d\n", i+1)
				for _, n := range r.nets {
					ospf += " network " + n + " area 0\n"
				}
				dir := folder(t, "frr", map[string]string{"zebra.conf": "log stdout\n", "ospfd.conf": "log stdout\n" + ospf})
				for _, name := range []string{"zebra", "ospfd"} {
					daemon(t, r.ns, "/usr/lib/frr/"+name, "-f", filepath.Join(dir, name+".conf"), "-i", filepath.Join(dir, name+".pid"),
						"-z", filepath.Join(dir, "zserv"), "--vty_socket", dir, "-P", "0")
				}
			}
			var packets []netlab.Frame
			for n := range uint16(4) {
				packets = append(packets, c.udp4(at4, n))
			}
			c.fails(packets)
		})
	}
}

// The datapath follows routes that BIRD gets from BGP, also IPv4 routes with an IPv6 next hop (RFC 8950).
func TestBIRD(t *testing.T) {
	needs(t, "bird", "bird2")
	for _, hook := range netlab.Hooks(t.Name()) {
		t.Run(hook, func(t *testing.T) {
			t.Parallel()
			c := newCouple(t, hook)
			for i, r := range []struct {
				ns  *ends.Namespace
				own string
			}{{c.lab.Switch, "gw1"}, {c.other, "lo"}} {
				conf := fmt.Sprintf("router id 192.0.2.%d;\nprotocol device { scan time 1; }\nprotocol direct { ipv4; ipv6; interface %q; }\n", i+1, r.own)
				conf += "protocol kernel { ipv4 { export all; }; }\nprotocol kernel { ipv6 { export all; }; }\n"
				for n, preference := range []int{200, 100} {
					channel := fmt.Sprintf("import filter { bgp_local_pref = %d; accept; }; export all;", preference)
					conf += fmt.Sprintf("protocol bgp link%d { local fd0%d::%d as 65001; neighbor fd0%d::%d as 65001; direct;\n"+
						"hold time 3; keepalive time 1; connect retry time 1; connect delay time 1; error wait time 1, 1;\n"+
						"ipv4 { next hop self; extended next hop; %s }; ipv6 { next hop self; %s }; }\n", n, 2+n, i+1, 2+n, 2-i, channel, channel)
				}
				dir := folder(t, "root", map[string]string{"bird.conf": conf})
				daemon(t, r.ns, "bird", "-f", "-c", filepath.Join(dir, "bird.conf"), "-s", filepath.Join(dir, "bird.ctl"), "-P", filepath.Join(dir, "bird.pid"))
			}
			var packets []netlab.Frame
			for n := range uint16(4) {
				packets = append(packets, c.udp4(at4, n),
					recipe{six: true, dst: at6, ttl: 64, proto: unix.IPPROTO_UDP, size: 40, tag: -1}.frame(c.site, n))
			}
			c.fails(packets)
		})
	}
}

// The datapath routes packets to a virtual router's address, which keepalived has at a macvlan above a
// gateway.
func TestKeepalived(t *testing.T) {
	needs(t, "keepalived", "keepalived")
	onHooks(t, func(t *testing.T, s *site) {
		dir := folder(t, "root", map[string]string{"keepalived.conf": `
vrrp_instance gateway {
	interface gw1
	use_vmac vrrp7
	virtual_router_id 7
	state MASTER
	priority 200
	advert_int 0.1
	virtual_ipaddress { 10.0.1.254/32 }
}
`})
		daemon(t, s.lab.Switch, "keepalived", "-n", "-l", "-G", "-P", "-f", filepath.Join(dir, "keepalived.conf"),
			"-p", filepath.Join(dir, "pid"), "-r", filepath.Join(dir, "vrrp.pid"))
		s.lab.Keep("vrrp7")
		s.lab.Wait("the virtual router's address", func() bool {
			link, err := s.lab.Switch.Netlink().LinkByName("vrrp7")
			if err != nil {
				return false
			}
			list, err := s.lab.Switch.Netlink().AddrList(link, netlink.FAMILY_V4)
			return err == nil && len(list) > 0
		})
		// Without an agent, a command updates the addresses.
		s.lab.Bascule("port", "set", "br0", s.sides[0].end.Port, "--learn")
		s.expectAt("a virtual router's address", vrrp, true, true)
		s.expect("the gateway below it", s.sides[1].station4, true, true)
	})
}

// Two hosts form one virtual router for both stations: this one, and another behind ports of the bridge.
// A connection continues through the other when this one's keepalived ends, and through this one when it
// is back.
func TestKeepalivedMoves(t *testing.T) {
	needs(t, "keepalived", "keepalived")
	onHooks(t, func(t *testing.T, s *site) {
		hook := filepath.Base(t.Name())
		s.stations()
		legs := s.lab.NewEnds(1)
		other := legs[0].Namespace
		legs = append(legs, s.lab.NewEnd(other))
		s.must(other.Do(func() error {
			return sysctl(map[string]string{"ipv4/ip_forward": "1", "ipv4/conf/all/rp_filter": "0", "ipv4/conf/default/rp_filter": "0",
				"ipv4/conf/all/send_redirects": "0", "ipv4/conf/default/send_redirects": "0"})
		}))
		at := func(ns *ends.Namespace, args ...string) {
			t.Helper()
			_, err := ns.Output(context.Background(), ends.AnyCPU, "ip", args...)
			s.must(err)
		}
		for i, leg := range legs {
			s.lab.AddPort("br0", hook, leg)
			s.lab.Bascule("vlan", "add", "br0", leg.Port, s.sides[i].vlan, "--pvid", "--untagged")
			s.lab.Bascule("vlan", "del", "br0", leg.Port, "1")
			at(other, "link", "set", leg.Ifname, "up")
			at(other, "address", "add", fmt.Sprintf("10.0.%d.9/24", i+1), "dev", leg.Ifname)
			at(s.sides[i].end.Namespace, "-4", "route", "replace", "default", "via", fmt.Sprintf("10.0.%d.254", i+1))
		}
		start := func(ns *ends.Namespace, priority int, ifnames ...string) (end func()) {
			conf := "global_defs {\n vrrp_version 3\n}\nvrrp_sync_group both {\n group { net1\n net2 }\n}\n"
			for i, ifname := range ifnames {
				conf += fmt.Sprintf("vrrp_instance net%d {\n interface %s\n use_vmac vrrp%d\n virtual_router_id %d\n state BACKUP\n priority %d\n"+
					" advert_int 0.1\n virtual_ipaddress { 10.0.%d.254/32 }\n}\n", i+1, ifname, i+7, i+7, priority, i+1)
			}
			dir := folder(t, "root", map[string]string{"keepalived.conf": conf})
			return daemon(t, ns, "keepalived", "-n", "-l", "-G", "-P", "-f", filepath.Join(dir, "keepalived.conf"),
				"-p", filepath.Join(dir, "pid"), "-r", filepath.Join(dir, "vrrp.pid"))
		}
		s.lab.Keep("vrrp7")
		s.lab.Keep("vrrp8")
		// carried returns the number of packets that the other host has forwarded.
		carried := func() int {
			var n int
			s.must(other.Do(func() error {
				text, err := os.ReadFile("/proc/thread-self/net/snmp")
				for line := range strings.Lines(string(text)) {
					if f := strings.Fields(line); f[0] == "Ip:" && len(f) > 6 {
						n, _ = strconv.Atoi(f[6]) // ForwDatagrams
					}
				}
				return err
			}))
			return n
		}
		l := s.listen(1, "tcp", "10.0.2.2:7").(net.Listener)
		var conn, in net.Conn
		// goes waits until the connection's packets use one of the hosts only.
		goes := func(what string, own bool) {
			t.Helper()
			s.lab.Wait(what, func() bool {
				if own { // without an agent, a command updates the addresses
					s.lab.Bascule("port", "set", "br0", s.sides[0].end.Port, "--learn")
				}
				by, routed := carried(), s.routed()
				for range 3 {
					for _, c := range [][2]net.Conn{{conn, in}, {in, conn}} {
						buf := make([]byte, 5)
						_, err := c[0].Write([]byte("hello"))
						s.must(err)
						s.must(c[1].SetReadDeadline(time.Now().Add(patience)))
						if _, err := io.ReadFull(c[1], buf); err != nil {
							t.Fatalf("%s: %v", what, err)
						}
					}
				}
				by, routed = carried()-by, s.routed()-routed
				return own == (by == 0) && own == (routed >= 6)
			})
		}
		end := start(s.lab.Switch, 200, "gw1", "gw2")
		start(other, 100, legs[0].Ifname, legs[1].Ifname)
		s.lab.Wait("an answer by way of the virtual router", func() bool { return s.ping(0, "10.0.2.2") })
		var err error
		conn, err = s.dial(0, "tcp", "", "10.0.2.2:7")
		s.must(err)
		in, err = l.Accept()
		s.must(err)
		t.Cleanup(func() { in.Close() })
		goes("the connection to go by this host", true)
		end()
		goes("the connection to go by the other host", false)
		start(s.lab.Switch, 200, "gw1", "gw2")
		goes("the connection to come back", true)
	})
}
