// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/report"
	"bascule/test/program"
)

// needRoot skips a test that needs root to make network namespaces.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
}

// site returns a site with the bascule program.
func site(t *testing.T) Site {
	t.Helper()
	return Site{Bascule: program.Path(t)}
}

// built builds a fabric and removes it at the end of the test. Nothing of the
// fabric may remain. The test is skipped if the fabric's programs are not installed.
func built(t *testing.T, f *Fabric, s Site, spec Spec) *Net {
	t.Helper()
	if err := ends.Installed(f.Needs...); err != nil {
		t.Skip(err)
	}
	n, err := f.Build(t.Context(), s, spec)
	if unavailable := new(ends.Unavailable); errors.As(err, &unavailable) && strings.Contains(unavailable.Reason, "the kernel has no") {
		t.Skip(unavailable.Reason)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		for _, pattern := range []string{"/run/netns/", "/run/"} {
			left, err := filepath.Glob(pattern + ends.NameFor(fmt.Sprint(n.serial)) + "-*")
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range left {
				t.Errorf("%s was left", l)
			}
		}
		// Daemons have their directory in their arguments.
		running, err := filepath.Glob("/proc/[0-9]*/cmdline")
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range running {
			line, err := os.ReadFile(r)
			if err == nil && strings.Contains(string(line), "/"+ends.NameFor(fmt.Sprint(n.serial))+"-") {
				t.Errorf("%s was left: %q", filepath.Dir(r), line)
			}
		}
	})
	return n
}

// ping sends packets from one end to another, as large as its MTU allows.
func ping(ctx context.Context, n *Net, from, to int) error {
	const headers = 28
	size := ends.DefaultMTU
	if n.Spec.Wire.MTU != 0 {
		size = n.Spec.Wire.MTU
	}
	// With -w, ping ends after both answers, and repeats packets that a busy machine has dropped.
	_, err := n.Ends[from].At.Output(ctx, ends.AnyCPU, "ping", "-c", "2", "-i", "0.1", "-w", "60",
		"-M", "do", "-s", strconv.Itoa(size-headers), n.Ends[to].Addr.Addr().String())
	return err
}

// TestFabricsCarry pings over the fabrics of bridges, between ends and from the
// host, and checks the counters of the fabric's own devices.
func TestFabricsCarry(t *testing.T) {
	needRoot(t)
	s := site(t)
	for _, f := range append([]*Fabric{LinuxBridge, LinuxBridgeFiltered, LinuxBridgeConntrack, OVS, OVSAFXDP, Bascule, BasculePF}, Neutron...) {
		for _, setup := range []struct {
			name string
			spec Spec
		}{
			{"ends", Spec{Ends: 3}},
			{"ends mtu=9000", Spec{Ends: 2, Wire: ends.Wire{MTU: 9000}}},
			{"host", Spec{Ends: 2, Host: true}},
			{"host mtu=9000", Spec{Ends: 2, Host: true, Wire: ends.Wire{MTU: 9000}}},
		} {
			t.Run(f.Name+" "+setup.name, func(t *testing.T) {
				t.Parallel()
				refused := f.Missing
				if f == OVSAFXDP && setup.spec.Wire.MTU != 0 {
					refused = "AF_XDP sockets take no frame of more than a page"
				}
				if refused != "" {
					if err := ends.Installed(f.Needs...); err != nil {
						t.Skip(err)
					}
					_, err := f.Build(t.Context(), s, setup.spec)
					if !errors.As(err, new(*ends.Unavailable)) || !strings.Contains(err.Error(), refused) {
						t.Errorf("built, or refused by other words than %q: %v", refused, err)
					}
					return
				}
				n := built(t, f, s, setup.spec)
				before, err := n.Crossed(0)
				if err != nil {
					t.Fatal(err)
				}
				for to := 1; to < setup.spec.Ends; to++ {
					if err := ping(t.Context(), n, 0, to); err != nil {
						t.Error(err)
					}
				}
				after, err := n.Crossed(0)
				if err != nil {
					t.Fatal(err)
				}
				if want := uint64(2 * max(setup.spec.Wire.MTU, ends.DefaultMTU)); after-before < want {
					t.Errorf("%d bytes crossed, of at least %d", after-before, want)
				}
				known, err := n.Known(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if known < setup.spec.Ends-1 {
					t.Errorf("it knows %d addresses of %d ends", known, setup.spec.Ends)
				}
				if err := n.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// TestTCPCrosses sends TCP through packet sockets, which easily lose checksums and large packets, with the ends'
// offloads off and on.
func TestTCPCrosses(t *testing.T) {
	needRoot(t)
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip("needs iperf3")
	}
	for _, f := range append([]*Fabric{OVS, OVSAFXDP}, Neutron[:7]...) {
		t.Run(f.Name, func(t *testing.T) {
			n := built(t, f, Site{}, Spec{Ends: 2})
			listen := ends.Listen{Proto: "tcp", Port: 5201}
			for _, on := range []bool{false, true} {
				for _, e := range n.Ends {
					if err := e.At.SetFeatures(e.Ifname, ends.Features{Segmentation: on}); err != nil {
						t.Fatal(err)
					}
				}
				// a new server for each test: one that is still busy with the last test refuses the
				// next
				server, err := n.Ends[1].At.Serve(t.Context(), ends.AnyCPU, listen, "iperf3", "-s")
				if err != nil {
					t.Fatal(err)
				}
				_, err = n.Ends[0].At.Output(t.Context(), ends.AnyCPU, "iperf3", "-n", "1M", "--connect-timeout", "60000", "-c", n.Ends[1].Addr.Addr().String())
				server.Close()
				if err != nil {
					t.Errorf("offloads %v: %v", on, err)
				}
			}
		})
	}
}

var counted = regexp.MustCompile(`counter packets ([0-9]+) .* accept`)

// TestFilterIsInTheWay sends packets that the filter passes, and packets that it blocks.
func TestFilterIsInTheWay(t *testing.T) {
	needRoot(t)
	for _, f := range Neutron {
		if f.Missing == "" && strings.Contains(report.Drawing(f.Path), "nftables") {
			t.Run(f.Name, func(t *testing.T) { testFilter(t, f) })
		}
	}
	t.Run(LinuxBridgeFiltered.Name, func(t *testing.T) { testFilter(t, LinuxBridgeFiltered) })
}

// The numbers of a chain's rules.
const (
	established = iota
	begun
)

// rulesCounted checks that packets have matched rules of a chain.
func rulesCounted(t *testing.T, n *Net, chain string, rules ...int) {
	t.Helper()
	text, err := n.Switch.Output(t.Context(), ends.AnyCPU, "nft", "list", "chain", "inet", "lab", chain)
	if err != nil {
		t.Fatal(err)
	}
	hits := counted.FindAllStringSubmatch(string(text), -1)
	if len(hits) != 2 || slices.ContainsFunc(rules, func(i int) bool { return hits[i][1] == "0" }) {
		t.Errorf("a ping passed, and the rules at %s counted %q", chain, hits)
	}
}

// TestFilterOfHostAndRouter checks that the packets of the host and of a router are filtered, too.
func TestFilterOfHostAndRouter(t *testing.T) {
	needRoot(t)
	for _, test := range []struct {
		fabric *Fabric
		host   bool
		hits   map[string][]int // by chain, the rules that packets must have matched
	}{
		{RouterNft, false, map[string][]int{"forward": {established, begun}}},
		{RouterNft, true, map[string][]int{"input": {established}, "output": {begun}}},
		{LinuxBridgeFiltered, true, map[string][]int{"input": {established}, "output": {begun}}},
	} {
		t.Run(fmt.Sprintf("%s host=%v", test.fabric.Name, test.host), func(t *testing.T) {
			n := built(t, test.fabric, Site{}, Spec{Ends: 2, Host: test.host})
			if err := ping(t.Context(), n, 0, 1); err != nil {
				t.Fatal(err)
			}
			for chain, rules := range test.hits {
				rulesCounted(t, n, chain, rules...)
			}
		})
	}
}

func testFilter(t *testing.T, f *Fabric) {
	n := built(t, f, Site{}, Spec{Ends: 2})
	ctx := t.Context()
	if err := ping(ctx, n, 0, 1); err != nil {
		t.Fatal(err)
	}
	rulesCounted(t, n, "forward", established, begun)
	strangersBlocked(t, n)
}

// TestPFIsInTheWay checks that bascule's filters pass and block the right packets.
func TestPFIsInTheWay(t *testing.T) {
	needRoot(t)
	s := site(t)
	for _, f := range All {
		if !strings.Contains(report.Drawing(f.Path), "bascule pf") {
			continue
		}
		t.Run(f.Name, func(t *testing.T) {
			if f.Missing != "" {
				t.Skip(f.Missing)
			}
			n := built(t, f, s, Spec{Ends: 2})
			if err := ping(t.Context(), n, 0, 1); err != nil {
				t.Error(err)
			}
			if f.Routed {
				strangersNotRouted(t, n)
			} else {
				strangersBlocked(t, n)
			}
			if err := n.FlushStates(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// strangersBlocked checks that addresses outside the lab's network cannot communicate, although they can resolve each
// other.
func strangersBlocked(t *testing.T, n *Net) {
	t.Helper()
	ctx := t.Context()
	for i, e := range n.Ends {
		if _, err := e.At.Output(ctx, ends.AnyCPU, "ip", "address", "add", fmt.Sprintf("192.0.2.%d/24", i+1), "dev", e.Ifname); err != nil {
			t.Fatal(err)
		}
	}
	for deadline := time.Now().Add(20 * time.Second); ; {
		out, err := n.Ends[0].At.Output(ctx, ends.AnyCPU, "ping", "-c", "1", "-W", "1", "192.0.2.2")
		if err == nil || !strings.Contains(string(out), "0 received") {
			t.Fatalf("ping from an address that is not allowed: %v: %s", err, out)
		}
		neighbours, err := n.Ends[0].At.Output(ctx, ends.AnyCPU, "ip", "neighbour", "show", "192.0.2.2")
		if err == nil && strings.Contains(string(neighbours), n.Ends[1].MAC.String()) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("the two have not found each other: %v: %s", err, neighbours)
		}
	}
}

// strangersNotRouted checks that a router with a route to addresses outside the lab's network does not forward to them:
// an answer comes only after the filter is removed.
func strangersNotRouted(t *testing.T, n *Net) {
	t.Helper()
	ctx := t.Context()
	second := n.Ends[1]
	_, gateway := subnet(1)
	for _, c := range []struct {
		at   ends.Place
		args []string
	}{
		{second.At, []string{"address", "add", "192.0.2.2/32", "dev", second.Ifname}},
		{n.Switch, []string{"route", "add", "192.0.2.2", "via", second.Addr.Addr().String()}},
		{n.Ends[0].At, []string{"route", "add", "192.0.2.2", "via", gateway.Addr().String()}},
	} {
		if out, err := c.at.Output(ctx, ends.AnyCPU, "ip", c.args...); err != nil {
			t.Fatalf("ip %v: %v: %s", c.args, err, out)
		}
	}
	ping := func(deadline string) (string, error) {
		out, err := n.Ends[0].At.Output(ctx, ends.AnyCPU, "ping", "-c", "1", "-w", deadline, "192.0.2.2")
		return string(out), err
	}
	if out, err := ping("1"); err == nil || !strings.Contains(out, "0 received") {
		t.Fatalf("ping to an address that is not allowed: %v: %s", err, out)
	}
	if _, err := n.site.run(ctx, n.Switch.Name, "pfctl", "-b", bridgeName, "-d"); err != nil {
		t.Fatal(err)
	}
	if out, err := ping("30"); err != nil {
		t.Fatalf("ping to the same address without the filter: %v: %s", err, out)
	}
}

// TestRoutersTranslate checks that with translating routers, all ends except the first see the router's address as the
// sender.
func TestRoutersTranslate(t *testing.T) {
	needRoot(t)
	s := site(t)
	for _, f := range []*Fabric{RouterNAT, BasculeRouterNAT, BasculeRouterXDPNAT} {
		t.Run(f.Name, func(t *testing.T) {
			if err := ends.Installed(f.Needs...); err != nil {
				t.Skip(err)
			}
			n := built(t, f, s, Spec{Ends: 3})
			for i := 1; i < 3; i++ {
				_, router := subnet(i + 1)
				if got, want := sender(t, n, 0, i), router.Addr(); got != want {
					t.Errorf("end %d sees %v, want %v", i+1, got, want)
				}
			}
			if got, want := sender(t, n, 1, 0), n.Ends[1].Addr.Addr(); got != want {
				t.Errorf("the first end sees %v, want %v", got, want)
			}
		})
	}
}

// sender returns the source address that end j sees in a datagram from end i.
func sender(t *testing.T, n *Net, i, j int) netip.Addr {
	t.Helper()
	from, to := n.Ends[i], n.Ends[j]
	var listens, sends net.PacketConn
	if err := to.Namespace.Do(func() (err error) {
		listens, err = net.ListenPacket("udp4", netip.AddrPortFrom(to.Addr.Addr(), 4000).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer listens.Close()
	if err := from.Namespace.Do(func() (err error) {
		sends, err = net.ListenPacket("udp4", netip.AddrPortFrom(from.Addr.Addr(), 0).String())
		return err
	}); err != nil {
		t.Fatal(err)
	}
	defer sends.Close()
	buffer := make([]byte, 100)
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); {
		if _, err := sends.WriteTo([]byte("who"), listens.LocalAddr()); err != nil {
			t.Fatal(err)
		}
		if err := listens.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, at, err := listens.ReadFrom(buffer); err == nil {
			return netip.MustParseAddrPort(at.String()).Addr()
		}
	}
	t.Fatalf("nothing from end %d came to end %d", i+1, j+1)
	return netip.Addr{}
}

// TestOVSDaemonDies checks that the death of a daemon is reported at once by the operations that need it.
func TestOVSDaemonDies(t *testing.T) {
	needRoot(t)
	for i, name := range []string{"ovsdb-server", "ovs-vswitchd"} {
		t.Run(name, func(t *testing.T) {
			var k *ovsKit
			f := *OVS
			f.build = func(ctx context.Context, _ Site, n *Net) error {
				k = &ovsKit{net: n}
				return n.single(ctx, k)
			}
			n := built(t, &f, Site{}, Spec{Ends: 2})
			if err := k.daemons[i].cmd.Process.Signal(syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			watched, cancel := n.Watch(t.Context())
			defer cancel()
			select {
			case <-watched.Done():
			case <-time.After(ovsPatience / 2):
				t.Error("who watches is not told")
			}
			_, known := n.Known(t.Context())
			deleted := n.DelPort(t.Context(), n.Ports[0].Ifname)
			want := name + " has ended: signal: killed"
			for what, err := range map[string]error{"known": known, "del-port": deleted, "watch": context.Cause(watched), "ended": n.Ended()} {
				if name == "ovsdb-server" && what == "known" {
					continue // it queries the other one
				}
				if err == nil || err.Error() != want {
					t.Errorf("%s: %v, want %s", what, err, want)
				}
			}
			if took := time.Since(begin); took > ovsPatience/2 {
				t.Errorf("they were told after %v", took)
			}
		})
	}
}

func TestOVSVersion(t *testing.T) {
	for text, want := range map[string]string{
		"ovs-vswitchd (Open vSwitch) 3.1.0\n":                "3.1.0",
		"ovs-vswitchd (Open vSwitch) 2.17.9\nDPDK 21.11.6\n": "2.17.9",
		"": "of unknown version",
	} {
		if got := ovsVersion(text); got != want {
			t.Errorf("ovsVersion(%q) = %q, want %q", text, got, want)
		}
	}
}

// TestNeutronPaths compares the number of devices with the known one.
func TestNeutronPaths(t *testing.T) {
	for name, want := range map[string]struct{ ends, host int }{
		"neutron-1-linux":              {3, 2},
		"neutron-2-ovs-linux-veth":     {9, 6},
		"neutron-3-ovs-linux-internal": {7, 5},
		"neutron-4-ovs":                {3, 3},
		"neutron-5-linux-ovs-internal": {7, 4},
		"neutron-6-hybrid-veth":        {9, 6},
		"neutron-7-hybrid-internal":    {7, 5},
		"bascule-neutron-2-veth":       {5, 3},
		"bascule-neutron-2-patch":      {1, 1},
		"bascule-neutron-3-host-port":  {5, 3},
		"bascule-neutron-5-host-port":  {5, 3},
	} {
		f, ok := Find(name)
		if !ok {
			t.Errorf("no %s", name)
			continue
		}
		if got := report.Devices(f.Path); got != want.ends {
			t.Errorf("%s: %d devices between ends, want %d: %s", name, got, want.ends, report.Drawing(f.Path))
		}
		if got := report.Devices(f.HostPath); got != want.host {
			t.Errorf("%s: %d devices from the host, want %d: %s", name, got, want.host, report.Drawing(f.HostPath))
		}
	}
}

// TestBasculeRoutes checks that bascule's routers route in the datapath, and not through the host's network stack.
func TestBasculeRoutes(t *testing.T) {
	needRoot(t)
	s := site(t)
	for _, f := range []*Fabric{BasculeRouter, BasculeRouterXDP, BasculeRouterNAT, BasculeRouterXDPNAT} {
		t.Run(f.Name, func(t *testing.T) {
			n := built(t, f, s, Spec{Ends: 2})
			// the first packet of each second to an end is left to the host
			for deadline := time.Now().Add(time.Minute); ; {
				if err := ping(t.Context(), n, 0, 1); err != nil {
					t.Fatal(err)
				}
				out, err := s.run(t.Context(), n.Switch.Name, "-j", "port", "show", bridgeName, "gw1", "--stats")
				if err != nil {
					t.Fatal(err)
				}
				var shown []struct{ Routed map[string]uint64 }
				if err := json.Unmarshal(out, &shown); err != nil || len(shown) != 1 {
					t.Fatalf("port show printed %q", out)
				}
				if shown[0].Routed["done"] > 0 {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("pings pass, and the datapath has routed none: %v", shown[0].Routed)
				}
			}
		})
	}
}
