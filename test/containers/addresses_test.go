// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
)

// Containers get addresses by DHCP from a server on the bridge, through the daemon of the reference
// plugin. It sends requests from the container's interface, even with a source guard that has no
// address yet.
func TestDHCP(t *testing.T) {
	needs(t, reference+"/dhcp", "dnsmasq")
	h := newHost(t)
	server := h.NewEnds(1)[0]
	h.Bascule("bridge", "add", "cni0")
	h.Bascule("port", "add", "cni0", server.Port)
	nl := server.Namespace.Netlink()
	h.must(nl.AddrAdd(mustLink(t, server.Namespace, server.Ifname), parsed(t, "10.88.0.1/16")))
	dir := t.TempDir()
	start := func(in *ends.Namespace, name string, args ...string) {
		t.Helper()
		cmd := exec.Command("nsenter", append([]string{"--net=" + path(in), name}, args...)...)
		h.must(cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
	start(server.Namespace, "dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--interface="+server.Ifname, "--bind-interfaces",
		"--no-ping", "--dhcp-authoritative", "--dhcp-range=10.88.0.10,10.88.0.99,255.255.0.0,1h", "--dhcp-leasefile="+filepath.Join(dir, "leases"), "--pid-file=")
	socket := filepath.Join(dir, "dhcp.sock")
	start(h.Switch, reference+"/dhcp", "daemon", "-socketpath", socket)
	h.Wait("the daemon of DHCP to listen", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	for i, more := range []conf{nil, {"sourceGuard": true, "macspoofchk": true}} {
		space, name := h.space(), fmt.Sprint("d", i)
		c := conf{"cniVersion": "1.0.0", "name": "net", "type": "bascule-cni", "ipam": conf{"type": "dhcp", "daemonSocketPath": socket}}.with(more)
		var result struct {
			IPs []struct{ Address, Gateway string }
		}
		a := h.do(attach("ADD", name, space, c))
		h.must(json.Unmarshal(a.text, &result))
		if len(result.IPs) != 1 || !strings.HasPrefix(result.IPs[0].Address, "10.88.0.") || result.IPs[0].Gateway != "10.88.0.1" {
			t.Errorf("the answer is %s", a.text)
		}
		h.must(ping(space, "10.88.0.1"))
		var prev map[string]any
		h.must(json.Unmarshal(a.text, &prev))
		h.do(attach("CHECK", name, space, c.with(conf{"prevResult": prev})))
		if more != nil { // it has only that address
			foreign := parsed(t, "10.88.0.200/16")
			h.must(space.Netlink().AddrAdd(mustLink(t, space, "eth0"), foreign))
			if _, err := space.Output(context.Background(), ends.AnyCPU, "ping", "-n", "-c", "1", "-W", "1", "-I", "10.88.0.200", "10.88.0.1"); err == nil {
				t.Error("a foreign address gets through")
			}
		}
		h.do(attach("DEL", name, space, c))
	}
	// A server that is not reachable leaves nothing behind.
	h.Bascule("port", "del", "cni0", server.Port)
	space := h.space()
	h.refused(attach("ADD", "late", space, conf{"cniVersion": "1.0.0", "name": "net", "type": "bascule-cni",
		"ipam": conf{"type": "dhcp", "daemonSocketPath": filepath.Join(dir, "nothing")}}), 999, "dhcp")
	if left := slices.Concat(devices(t, space), devices(t, h.Switch)); slices.ContainsFunc(left, func(d string) bool { return strings.HasPrefix(d, "veth") || d == "eth0" }) {
		t.Errorf("%v are left", left)
	}
}

// defaults returns the default routes of one family in a namespace: the gateway and the metric.
func defaults(t testing.TB, ns *ends.Namespace, family int) (list []string) {
	t.Helper()
	routes, err := ns.Netlink().RouteList(nil, family)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if ones, _ := r.Dst.Mask.Size(); ones > 0 || r.Dst.IP.IsMulticast() {
			continue
		}
		for _, way := range append(r.MultiPath, &netlink.NexthopInfo{Gw: r.Gw}) {
			if way.Gw != nil {
				list = append(list, fmt.Sprint(way.Gw, " ", r.Priority))
			}
		}
	}
	slices.Sort(list)
	return list
}

// A container in two networks with a gateway has both default routes, and the preferred one is the
// documented one: the last with CNI, by metric with Podman, and only one with Docker.
func TestTwoGateways(t *testing.T) {
	t.Run("CNI", func(t *testing.T) {
		h := newHost(t)
		space := h.space()
		var nets []conf
		for i := range 2 {
			ranges := [][]conf{{{"subnet": fmt.Sprintf("10.7%d.0.0/16", i)}}, {{"subnet": fmt.Sprintf("fd7%d::/64", i)}}}
			nets = append(nets, h.routed(conf{"name": fmt.Sprint("net", i), "bridge": fmt.Sprint("br", i), "isDefaultGateway": true,
				"ipam": conf{"type": "host-local", "dataDir": h.data, "ranges": ranges}}))
			add := call{command: "ADD", container: "a", ifname: fmt.Sprint("eth", i), space: space, conf: nets[i]}
			var prev map[string]any
			h.must(json.Unmarshal(h.do(add).text, &prev))
			add.command, add.conf = "CHECK", nets[i].with(conf{"prevResult": prev})
			h.do(add)
		}
		if got := defaults(t, space, netlink.FAMILY_V4); !slices.Equal(got, []string{"10.70.0.1 0", "10.71.0.1 0"}) {
			t.Errorf("the container has the default routes %v", got)
		}
		if got := defaults(t, space, netlink.FAMILY_V6); !slices.Equal(got, []string{"fd70::1 1024", "fd71::1 1024"}) {
			t.Errorf("the container has the default routes %v", got)
		}
		for i := range 2 {
			h.do(call{command: "DEL", container: "a", ifname: fmt.Sprint("eth", i), space: space, conf: nets[i]})
		}
	})
	t.Run("Podman", func(t *testing.T) {
		h := newHost(t)
		space := h.space()
		setup := func(i int, options map[string]any, more map[string]any) {
			t.Helper()
			changes := map[string]any{
				"network.name": fmt.Sprint("net", i), "network.network_interface": fmt.Sprint("br", i), "network.options": options,
				"network.subnets": []any{
					map[string]any{"subnet": fmt.Sprintf("10.9%d.0.0/24", i), "gateway": fmt.Sprintf("10.9%d.0.1", i)},
					map[string]any{"subnet": fmt.Sprintf("fd9%d::/64", i), "gateway": fmt.Sprintf("fd9%d::1", i)},
				},
				"network_options.interface_name": fmt.Sprint("eth", i), "network_options.static_ips": []string{fmt.Sprintf("10.9%d.0.5", i), fmt.Sprintf("fd9%d::5", i)},
			}
			for k, v := range more {
				changes[k] = v
			}
			text := request(t, changes)
			h.podman(text, "setup", path(space))
			t.Cleanup(func() { h.podman(text, "teardown", path(space)) })
		}
		setup(0, nil, nil) // as netavark's own, whose metric is 100
		setup(1, map[string]any{"metric": "50"}, map[string]any{"network.routes": []any{map[string]any{"destination": "192.0.2.0/24", "gateway": "10.91.0.9"}}})
		setup(2, map[string]any{"no_default_route": "1"}, nil)
		setup(3, map[string]any{"metric": "50"}, nil)
		setup(4, map[string]any{"metric": "0", "no_default_route": "false"}, nil)
		if got := defaults(t, space, netlink.FAMILY_V4); !slices.Equal(got, []string{"10.90.0.1 100", "10.91.0.1 50", "10.93.0.1 50", "10.94.0.1 0"}) {
			t.Errorf("the container has the default routes %v", got)
		}
		if got := defaults(t, space, netlink.FAMILY_V6); !slices.Equal(got, []string{"fd90::1 100", "fd91::1 50", "fd93::1 50", "fd94::1 1024"}) {
			t.Errorf("the container has the default routes %v", got)
		}
		out, err := space.Output(context.Background(), ends.AnyCPU, "ip", "route", "show", "192.0.2.0/24")
		if h.must(err); !strings.Contains(string(out), "metric 100") {
			t.Errorf("the network's route is %s", out)
		}
		for _, wrong := range []map[string]any{{"metric": "-1"}, {"metric": "x"}, {"metric": "4294967296"}, {"no_default_route": "perhaps"}, {"no-default-route": "1"}} {
			if _, err := h.asks(request(t, map[string]any{"network.options": wrong}), "setup", path(space)); err == nil {
				t.Errorf("%v is taken", wrong)
			}
		}
	})
	t.Run("Docker", func(t *testing.T) {
		d := newDockerHost(t)
		network := func(id, gateway string, options map[string]any) map[string]any {
			return map[string]any{"NetworkID": id, "Options": map[string]any{"com.docker.network.generic": options},
				"IPv4Data": []any{map[string]any{"Pool": gateway + "/24", "Gateway": gateway + "/24"}}}
		}
		if says, _ := d.docker("NetworkDriver.CreateNetwork", network("n0", "10.96.0.1", map[string]any{"metric": "5"}))["Err"].(string); !strings.Contains(says, "without a metric") || !strings.Contains(says, "no_default_route=1") {
			t.Errorf("a metric: %q", says)
		}
		for id, c := range map[string]struct {
			options map[string]any
			gateway any
		}{"n1": {nil, "10.97.0.1"}, "n2": {map[string]any{"no_default_route": "1"}, nil}} {
			if answer := d.docker("NetworkDriver.CreateNetwork", network(id, "10.97.0.1", c.options)); answer["Err"] != nil {
				t.Fatal(answer)
			}
			endpoint := map[string]any{"NetworkID": id, "EndpointID": "e", "Interface": map[string]any{"Address": "10.97.0.5/24"}}
			if answer := d.docker("NetworkDriver.CreateEndpoint", endpoint); answer["Err"] != nil {
				t.Fatal(answer)
			}
			answer := d.docker("NetworkDriver.Join", endpoint)
			if answer["Gateway"] != c.gateway || (answer["DisableGatewayService"] == true) != (c.gateway == nil) {
				t.Errorf("%v: Join answers %v", c.options, answer)
			}
			d.docker("NetworkDriver.DeleteEndpoint", endpoint)
			d.docker("NetworkDriver.DeleteNetwork", map[string]any{"NetworkID": id})
		}
	})
}

// fetches reports whether a client in one namespace gets an answer over TCP from an address.
func fetches(client *ends.Namespace, address string) (got bool, err error) {
	err = client.Do(func() error {
		c, err := net.DialTimeout("tcp", address, 2*time.Second)
		if err != nil {
			return nil // reset, or no answer
		}
		defer c.Close()
		text, _ := io.ReadAll(c)
		got = string(text) == "here"
		return nil
	})
	return got, err
}

// An address that the host translates to a container serves clients behind the bridge. It serves
// clients on the bridge if the host masquerades, as docs/containers.md says: otherwise the answer
// of an endpoint on the same bridge bypasses the host.
func TestServiceAddress(t *testing.T) {
	needs(t, "nft", "iptables")
	h := newHost(t)
	a, b := h.space(), h.space()
	c := h.routed(conf{"isDefaultGateway": true})
	var prev map[string]any
	h.must(json.Unmarshal(h.do(attach("ADD", "a", a, c)).text, &prev))
	h.do(attach("ADD", "b", b, c))
	var server net.Listener
	h.must(a.Do(func() (err error) {
		server, err = net.Listen("tcp", "10.77.0.2:80")
		return err
	}))
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = c.Write([]byte("here"))
			c.Close()
		}
	}()
	beyond := h.NewNamespace() // Another network of the host.
	outer := h.routed(conf{"name": "outer", "bridge": "out0", "isDefaultGateway": true, "ipam": conf{"type": "static", "addresses": []conf{{"address": "10.79.0.9/16"}}}})
	h.do(attach("ADD", "c", beyond, outer))
	want := func(what, address string, same, other bool) {
		t.Helper()
		for client, want := range map[*ends.Namespace]bool{b: same, beyond: other} {
			got, err := fetches(client, address)
			h.must(err)
			if got != want {
				t.Errorf("%s: a client on the same bridge (%v) gets an answer: %v, should be %v", what, client == b, got, want)
			}
		}
	}
	nft := func(rules string) {
		t.Helper()
		cmd := exec.Command("nsenter", "--net="+path(h.Switch), "nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
	}
	want("the endpoint itself", "10.77.0.2:80", true, true)
	// Rules like kube-proxy's.
	nft(`table ip services { chain to { type nat hook prerouting priority dstnat; ip daddr 10.96.0.10 tcp dport 80 dnat to 10.77.0.2:80; }; }`)
	want("a service", "10.96.0.10:80", false, true)
	// Rules as in docs/containers.md, and like kube-proxy's with masqueradeAll.
	nft(`table ip services { chain from { type nat hook postrouting priority srcnat; ct status dnat masquerade; }; }`)
	want("a masqueraded service", "10.96.0.10:80", true, true)
	nft(`delete table ip services`)
	dir := built(t, "meta/portmap")
	for what, c := range map[string]struct {
		more        conf
		same, other bool
	}{
		"portmap":              {nil, true, true}, // it masquerades clients in the container's subnet
		"portmap without snat": {conf{"snat": false}, false, true},
		"portmap with masqAll": {conf{"masqAll": true}, true, true},
	} {
		chained := *h
		chained.plugins = dir
		portmap := attach("ADD", "a", a, conf{"cniVersion": "1.0.0", "name": "net", "type": "portmap", "prevResult": prev,
			"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}}}}.with(c.more))
		portmap.plugin = "portmap"
		chained.do(portmap)
		want(what, "10.77.0.1:8080", c.same, c.other)
		portmap.command = "DEL"
		chained.do(portmap)
	}
	h.do(attach("DEL", "a", a, c))
	h.do(attach("DEL", "b", b, c))
	h.do(attach("DEL", "c", beyond, outer))
}

// Packets of containers in a network with ipMasq leave the host with its address, if they leave by
// a host port. CHECK looks for the rule. Otherwise ADD is refused.
func TestMasquerade(t *testing.T) {
	h := newHost(t)
	space := h.space()
	c := h.routed(conf{"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": "nftables",
		"ipam": conf{"type": "host-local", "dataDir": h.data, "ranges": [][]conf{{{"subnet": "10.77.0.0/16"}}}}})
	h.refused(attach("ADD", "a", space, c), 7, "ipMasq", "no default route")
	station := h.NewEnds(1)[0] // a station without a route to containers
	h.Bascule("bridge", "add", "wan")
	h.Bascule("port", "add", "wan", station.Port)
	h.Bascule("port", "add", "wan", "wan0", "--type", "host")
	h.must(station.Namespace.Netlink().AddrAdd(mustLink(t, station.Namespace, station.Ifname), parsed(t, "192.0.2.9/24")))
	out := mustLink(t, h.Switch, "wan0")
	h.must(h.Switch.Netlink().LinkSetUp(out))
	h.must(h.Switch.Netlink().AddrAdd(out, parsed(t, "192.0.2.1/24")))
	h.must(h.Switch.Netlink().RouteAdd(&netlink.Route{LinkIndex: out.Attrs().Index, Gw: net.IPv4(192, 0, 2, 9)}))
	for i := range 3 { // the second finds the first one's rules, and the third finds another program's
		a := h.do(attach("ADD", "a", space, c))
		if !strings.Contains(a.says, "ipMasqBackend nftables has no effect") {
			t.Errorf("ADD says %q", a.says)
		}
		h.must(pingFor(space, "192.0.2.9", "10"))
		if i == 1 {
			rules := filepath.Join(t.TempDir(), "pf.conf")
			h.must(os.WriteFile(rules, []byte("anchor \"plug/*\"\npass\n"), 0o600))
			h.Bascule("pfctl", "-b", "wan", "-f", rules)
		}
		var prev map[string]any
		h.must(json.Unmarshal(a.text, &prev))
		h.do(attach("CHECK", "a", space, c.with(conf{"prevResult": prev})))
		h.do(attach("DEL", "a", space, c))
	}
	for _, name := range []string{"cni0", "wan"} {
		h.Bascule("bridge", "del", name)
	}
}
