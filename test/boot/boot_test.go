// SPDX-License-Identifier: BSD-2-Clause

// Package boot boots a Debian whose own uplink is a port of a bridge, with each of the programs that configure
// networks, from the files in docs/boot.md. `make test-boot` runs it.
package boot

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

var machines = flag.Bool("boot.machines", false, "boot virtual machines")

const page = "../../docs/boot.md"

// A manager is a section of the page.
type manager struct {
	name string
	unit string // the unit that configures networks
	// further are files in addition to the page's files. They would take over a device of the switch if they could.
	further map[string]string
	files   int    // number of its own files on the page
	instead string // script that changes the files as the page describes further down
}

var managers = []manager{
	{name: "systemd-networkd", unit: "systemd-networkd", files: 2, further: map[string]string{
		"/etc/systemd/network/80-all.network": "[Match]\nType=ether\n\n[Network]\nDHCP=yes\nLinkLocalAddressing=ipv6\n",
	}},
	{name: "ifupdown", unit: "networking", files: 1, instead: `
		sed -i '/^iface host0 /s/static/dhcp/; /^    address /d; /^    gateway /d' /etc/network/interfaces
		grep -x 'iface host0 inet dhcp' /etc/network/interfaces`},
	{name: "netplan", unit: "systemd-networkd", files: 2, further: map[string]string{
		"/etc/netplan/90-all.yaml": "network: {version: 2, ethernets: {others: {match: {name: \"e*\"}, dhcp4: true}}}\n",
	}},
	// It manages veths here, as in some distributions.
	{name: "NetworkManager", unit: "NetworkManager", files: 2, further: map[string]string{
		"/etc/udev/rules.d/90-veths.rules": `SUBSYSTEM=="net", ENV{ID_NET_DRIVER}=="veth", ENV{NM_UNMANAGED}="0"` + "\n",
	}},
}

// files reads a section of a page: its files, by their paths, and its commands.
func files(t *testing.T, page, section string) (files map[string]string, commands string) {
	t.Helper()
	_, text, found := strings.Cut(read(t, page), "\n## "+section+"\n")
	if !found {
		t.Fatalf("%s has no section %q", page, section)
	}
	text, _, _ = strings.Cut(text, "\n## ")
	files = map[string]string{}
	path, block := "", ""
	for line := range strings.Lines(text + "\nthe end\n") {
		switch code, ok := strings.CutPrefix(line, "    "); {
		case ok:
			block += code
		case strings.TrimSpace(line) == "" && block != "":
			block += "\n"
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "<!--"):
		default:
			if block != "" && path != "" {
				files[path] = strings.TrimSpace(block) + "\n"
			} else {
				commands += block
			}
			path, block = "", ""
			if rest, ok := strings.CutPrefix(line, "`/"); ok {
				name, _, _ := strings.Cut(rest, "`")
				path = "/" + name
			}
		}
	}
	return files, commands
}

// The page has the files that are booted.
func TestFiles(t *testing.T) {
	common, commands := files(t, page, "The switch")
	if len(common) != 2 || commands != "systemctl enable bascule\n\n" {
		t.Errorf("of the switch there are %v and %q", common, commands)
	}
	for _, m := range managers {
		if list, _ := files(t, page, m.name); len(list) != m.files {
			t.Errorf("of %s there are %v", m.name, list)
		}
	}
}

// A machine whose uplink and address are on a bridge boots without help, again and again. Its identity stays the same,
// and its rules hold from the first packet on.
func TestBoot(t *testing.T) {
	if !*machines {
		t.Skip("boots virtual machines: 'make test-boot'")
	}
	if os.Geteuid() != 0 {
		t.Skip("makes a Debian and network namespaces, which takes root")
	}
	im := newImage(t)
	t.Run("former", func(t *testing.T) { bootFormer(t, im) })
	for _, m := range managers {
		t.Run(m.name, func(t *testing.T) { bootWith(t, im, m) })
	}
}

// heard returns the counts of testdata/listen.py.
func (m *machine) heard() map[string]int {
	m.t.Helper()
	heard := map[string]int{}
	must(m.t, json.Unmarshal([]byte(m.run("cat /run/heard")), &heard))
	return heard
}

// An identity is how other machines identify the host.
type identity struct{ MAC, Address string }

func bootWith(t *testing.T, im *image, of manager) {
	common, commands := files(t, page, "The switch")
	own, more := files(t, page, of.name)
	all := map[string]string{}
	for _, list := range []map[string]string{common, own, of.further} {
		for path, text := range list {
			all[path] = text
		}
	}
	// For the packets that the listener should receive.
	all["/etc/bascule/pf.conf"] += "pass in on enp1s0 inet proto udp to port 9\n"
	disk := im.disk(t, all, commands+more+"chmod -f 600 /etc/netplan/* /etc/NetworkManager/system-connections/* || true")
	at := newStation(t, of)
	m := im.start(t, at.Namespace, disk)
	at.plug()
	m.booted()
	at.ordered(m)
	first := at.judge(m)
	for range 2 {
		m.reboot()
		at.ordered(m)
		if now := at.judge(m); now != first {
			t.Errorf("after a reboot it is %v, and it was %v", now, first)
		}
	}
	m.reset()
	at.ordered(m)
	if now := at.judge(m); now != first {
		t.Errorf("after a reset it is %v, and it was %v", now, first)
	}
	at.upgrade(m, first)
	if of.instead != "" {
		m.run(of.instead)
		m.reboot()
		at.ordered(m)
		if now := at.judge(m); now.MAC != first.MAC || now.Address == first.Address {
			t.Errorf("with an address from DHCP it is %v, and it was %v", now, first)
		}
	}
	// The listener would receive the packets that the rules hold back.
	m.run("bascule pfctl -d")
	m.run(`for i in $(seq 600); do grep -q '"socket 7"' /run/heard && exit; sleep 0.1; done; cat /run/heard; exit 1`)
	purge(m, all)
}

// upgrade installs a newer package while the switch runs. No frame is lost, and the bridge has the new program after
// that.
func (at *station) upgrade(m *machine, was identity) {
	t := m.t
	t.Helper()
	before := m.run("systemctl show -P MainPID bascule; bascule version")
	lost := func() int {
		t.Helper()
		at.sends <- false
		sent := <-at.sent
		heard := 0
		for begun := time.Now(); time.Since(begun) < 10*time.Second; { // packets on their way arrive
			if now := m.heard()["host0 9"]; now > heard {
				heard, begun = now, time.Now()
			}
		}
		at.sends <- true
		return sent - heard
	}
	lostBefore := lost()
	t.Log(m.run("dpkg -i /newer.deb 2>&1"))
	m.run(`for i in $(seq 600); do bascule agent status >/dev/null 2>&1 && exit; sleep 0.1; done; exit 1`)
	if n := lost() - lostBefore; n != 0 {
		tap, err := at.Output(t.Context(), ends.AnyCPU, "ip", "-s", "link", "show", "dev", "tap0")
		t.Errorf("%d frames were lost while the package was upgraded\n%s%v\n%s", n, tap, err,
			m.run("ip -s link; bascule stats; cat /proc/net/packet /proc/net/udp"))
	}
	if after := m.run("systemctl show -P MainPID bascule; bascule version"); after == before {
		t.Errorf("after the upgrade it is as before: %s", after)
	}
	if out := m.run("journalctl -b -u bascule --no-pager"); !strings.Contains(out, "the bridge now has the programs of this version") {
		t.Errorf("the agent says after the upgrade\n%s", out)
	}
	if now := at.judge(m); now != was {
		t.Errorf("after the upgrade it is %v, and it was %v", now, was)
	}
}

// purge removes the bridge and the package. They leave nothing but the files that the user wrote.
func purge(m *machine, written map[string]string) {
	m.t.Helper()
	own := map[string]bool{}
	for path := range written {
		for ; path != "/"; path = filepath.Dir(path) {
			own[path] = true
		}
	}
	m.run("bascule bridge del br0")
	m.run("apt-get -qq purge -y bascule")
	// The listener's unit contains the name of the service.
	left := m.run(`find / /run -xdev -name '*bascule*'; systemctl list-unit-files --no-legend '*bascule*'
		systemctl list-units --all --no-legend '*bascule*' | grep -v not-found
		systemctl --failed --no-legend; ip -br link | grep bsc; true`)
	for line := range strings.Lines(left) {
		if line = strings.TrimSpace(line); !own[line] {
			m.t.Errorf("the package leaves %s", line)
		}
	}
}

// ordered checks that the switch was ready before the network was configured.
func (at *station) ordered(m *machine) {
	t := m.t
	t.Helper()
	when := func(unit, of string) int {
		t.Helper()
		n, err := strconv.Atoi(m.run("systemctl show -P " + of + "TimestampMonotonic " + unit))
		must(t, err)
		return n
	}
	ready, begins := when("bascule", "ActiveEnter"), when(at.configures, "InactiveExit")
	if ready == 0 || begins == 0 || ready > begins {
		t.Errorf("bascule is ready at %d us, and %s begins at %d us", ready, at.configures, begins)
	}
}

// judge checks a machine that has booted.
func (at *station) judge(m *machine) identity {
	t := m.t
	t.Helper()
	if out, status := m.try("systemctl is-system-running --wait"); status != "0" {
		t.Errorf("systemd says: %s\n%s", out, m.run("systemctl --failed --no-pager; journalctl -b -p warning --no-pager | tail -n 50"))
	}
	if out := m.run("journalctl -b --no-pager | grep -i 'ordering cycle' || true"); out != "" {
		t.Errorf("systemd cannot order its units: %s", out)
	}
	for _, id := range strings.Fields(m.run("ls /sys/class/net")) {
		if out := m.run("ip -o addr show dev " + id + " scope global"); id != "host0" && id != "gw" && id != "lo" && out != "" {
			t.Errorf("%s has an address: %s", id, out)
		}
		if id != "enp1s0" && !strings.HasPrefix(id, "bsc") {
			continue
		}
		// A manager that does not run has no state.
		for _, ask := range []string{"networkctl --no-legend list ", "nmcli -g GENERAL.STATE device show "} {
			if out, _ := m.try(ask + id); out != "" && !strings.Contains(out, "unmanaged") && !strings.Contains(out, "not running") {
				t.Errorf("%s: %s", ask+id, out)
			}
		}
	}
	mac, address := m.run("cat /sys/class/net/host0/address"), m.run("ip -o -4 addr show dev host0 | awk '{print $4}'")
	prefix, err := netip.ParsePrefix(address)
	if err != nil {
		t.Fatalf("host0 has the address %q: %v\n%s", address, err, m.run("ip addr; bascule port show; journalctl -b -u bascule --no-pager"))
	}
	is := identity{mac, prefix.Addr().String()}
	if out, err := at.Output(t.Context(), ends.AnyCPU, "ping", "-c", "3", "-w", "60", is.Address); err != nil {
		t.Errorf("the host is not reached: %v\n%s\n%s", err, out, m.run("ip addr; bascule port show; bascule stats"))
	}
	heard := m.heard()
	if heard["host0 9"] == 0 || heard["socket 9"] == 0 {
		t.Errorf("nothing is heard of what passes: %v", heard)
	}
	for what, n := range heard {
		if what != "host0 9" && what != "socket 9" {
			t.Errorf("%d datagrams got to %s", n, what)
		}
	}
	t.Logf("%v; heard: %v", is, heard)
	return is
}

// A station is the machine's only neighbour. It has a DHCP server, and sends broadcasts.
type station struct {
	*ends.Namespace
	t          *testing.T
	configures string // the machine's unit that configures its network

	sends chan bool // whether to continue to send; after false, the numbers of packets to each port are returned
	sent  chan int
}

func newStation(t *testing.T, of manager) *station {
	t.Helper()
	at, err := ends.NewNamespace(ends.NameFor("boot"))
	must(t, err)
	t.Cleanup(func() {
		if err := at.Close(); err != nil {
			t.Error(err)
		}
	})
	return &station{at, t, of.unit, make(chan bool), make(chan int)}
}

// plug sets up the device of the machine's network card, which QEMU has just made.
func (at *station) plug() {
	t := at.t
	t.Helper()
	var tap netlink.Link
	for begun := time.Now(); tap == nil; time.Sleep(10 * time.Millisecond) {
		var err error
		if tap, err = at.Netlink().LinkByName("tap0"); err != nil && time.Since(begun) > patience {
			t.Fatal(err)
		}
	}
	_, err := at.Adopt("tap0", netip.MustParsePrefix("192.0.2.1/24"))
	must(t, err)
	dnsmasq := ends.Command(t.Context(), "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--bind-interfaces",
		"--interface=tap0", "--dhcp-range=192.0.2.100,192.0.2.199,1h", "--dhcp-authoritative", "--user=root", "--pid-file=",
		"--dhcp-leasefile="+filepath.Join(t.TempDir(), "leases"), "--log-facility=-")
	must(t, at.Start(dnsmasq, ends.AnyCPU))
	ctx, cancel := context.WithCancel(t.Context())
	conn, err := at.broadcast()
	must(t, err)
	ended := make(chan error, 1)
	go func() { ended <- at.send(ctx, conn) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		conn.Close()
		_ = dnsmasq.Process.Kill()
		_ = dnsmasq.Wait()
	})
}

// broadcast returns a socket that broadcasts on the device.
func (at *station) broadcast() (conn net.PacketConn, err error) {
	err = at.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "broadcast")
		defer f.Close()
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_BROADCAST, 1); err != nil {
			return err
		}
		if err := unix.BindToDevice(fd, "tap0"); err != nil {
			return err
		}
		conn, err = net.FilePacketConn(f)
		return err
	})
	return conn, err
}

// send sends to a port for which the rules let no packet in, and to one for which they do, until ctx ends.
func (at *station) send(ctx context.Context, conn net.PacketConn) error {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n, pace := 0, tick.C; ; {
		select {
		case <-ctx.Done():
			return nil
		case on := <-at.sends:
			if pace = tick.C; !on {
				pace = nil
				at.sent <- n
			}
		case <-pace:
			n++
			for _, port := range []int{7, 9} {
				if _, err := conn.WriteTo([]byte("hello"), &net.UDPAddr{IP: net.IPv4bcast, Port: port}); err != nil {
					return fmt.Errorf("send to port %d: %w", port, err)
				}
			}
		}
	}
}
