// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"bascule/lab/ends"

	"github.com/vishvananda/netlink"
)

// pingWhole sends a packet of size bytes that must not be fragmented, and returns ping's output. It waits for an
// answer, or for an error with an MTU.
func pingWhole(ns *ends.Namespace, to string, size int) (says string, answered bool) {
	const headers = 20 + 8
	out, err := exec.Command("nsenter", "--net="+path(ns), "ping", "-n", "-c", "1", "-w", "10", "-M", "do", "-s", fmt.Sprint(size-headers), to).CombinedOutput()
	return string(out), err == nil
}

// outside makes a station that reaches a network through the host.
func (h *host) outside(network, gateway string) *ends.Namespace {
	h.t.Helper()
	end := h.NewEnd(h.NewNamespace())
	for _, side := range []struct {
		ns      *ends.Namespace
		name    string
		address string
	}{{h.Switch, end.Port, "10.55.0.1/24"}, {end.Namespace, end.Ifname, "10.55.0.2/24"}} {
		a, err := netlink.ParseAddr(side.address)
		h.must(err)
		h.must(side.ns.Netlink().AddrAdd(mustLink(h.t, side.ns, side.name), a))
	}
	_, dst, err := net.ParseCIDR(network)
	h.must(err)
	h.must(end.Namespace.Netlink().RouteAdd(&netlink.Route{Dst: dst, Gw: net.ParseIP("10.55.0.1")}))
	return end.Namespace
}

// The MTU of a network is also the gateway's. The host reports a smaller one to senders, and accepts packets of a
// larger one. If a network's MTU is changed, the next container changes it at the gateway. A user's setting at the
// gateway's port stays.
func TestGatewayMTU(t *testing.T) {
	needs(t, "ping", reference+"/host-local")
	type door struct {
		subnet, gateway, port string
		// plug returns the n-th container, its address, and a function that removes it.
		plug func(h *host, n, mtu int) (space *ends.Namespace, address string, leave func())
	}
	cni := door{"10.77.0.0/16", "10.77.0.1", "cni0", func(h *host, n, mtu int) (*ends.Namespace, string, func()) {
		space := h.space()
		c := h.routed(conf{"isDefaultGateway": true, "mtu": mtu})
		id := fmt.Sprint("c", n)
		var result struct {
			IPs []struct {
				Address string `json:"address"`
			} `json:"ips"`
		}
		h.must(json.Unmarshal(h.do(attach("ADD", id, space, c)).text, &result))
		address, _, _ := strings.Cut(result.IPs[0].Address, "/")
		return space, address, func() { h.do(attach("DEL", id, space, c)) }
	}}
	podman := door{"10.99.0.0/24", "10.99.0.1", "br0", func(h *host, n, mtu int) (*ends.Namespace, string, func()) {
		space := h.space()
		address := fmt.Sprint("10.99.0.", 5+n)
		stdin := request(t, map[string]any{"container_id": fmt.Sprint("c", n), "network.options": map[string]any{"mtu": fmt.Sprint(mtu)},
			"network_options.static_ips": []string{address}})
		h.podman(stdin, "setup", path(space))
		return space, address, func() { h.podman(stdin, "teardown", path(space)) }
	}}
	for name, d := range map[string]door{"cni": cni, "podman": podman} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHost(t)
			h.t = t
			checkGatewayMTU(h, d.subnet, d.gateway, d.port, func(n, mtu int) (*ends.Namespace, string, func()) {
				defer h.keeps(d.port, n == 0)
				return d.plug(h, n, mtu)
			})
		})
	}
	t.Run("docker", func(t *testing.T) {
		t.Parallel()
		d := newDockerHost(t)
		checkGatewayMTU(d.host, "10.97.0.0/24", "10.97.0.1", "br7", func(n, mtu int) (*ends.Namespace, string, func()) {
			type o = map[string]any
			network, end := fmt.Sprint("n", n), fmt.Sprint("e", n)
			ask := func(what string, body o) o {
				body["NetworkID"] = network
				answer := d.docker("NetworkDriver."+what, body)
				if answer["Err"] != nil {
					t.Fatalf("%s: %v", what, answer)
				}
				return answer
			}
			ask("CreateNetwork", o{"Options": o{"com.docker.network.generic": o{"bridge": "br7", "com.docker.network.driver.mtu": fmt.Sprint(mtu)}},
				"IPv4Data": []o{{"Gateway": "10.97.0.1/24", "Pool": "10.97.0.0/24"}}})
			address := fmt.Sprint("10.97.0.", 5+n)
			ask("CreateEndpoint", o{"EndpointID": end, "Interface": o{"Address": address + "/24"}})
			answer := ask("Join", o{"EndpointID": end, "SandboxKey": "/x"})
			d.keeps("br7", true)
			ask("CreateEndpoint", o{"EndpointID": "x", "Interface": o{"Address": "10.97.0.99/24"}})
			ask("Join", o{"EndpointID": "x", "SandboxKey": "/y"})
			d.keeps("br7", false)
			ask("Leave", o{"EndpointID": "x"})
			ask("DeleteEndpoint", o{"EndpointID": "x"})
			space := d.space()
			d.move(space, at(answer, "InterfaceName", "SrcName").(string), "eth0", address+"/24")
			h := d.host
			h.must(space.Netlink().RouteAdd(&netlink.Route{Gw: net.ParseIP("10.97.0.1")}))
			return space, address, func() {
				ask("Leave", o{"EndpointID": end})
				ask("DeleteEndpoint", o{"EndpointID": end})
				ask("DeleteNetwork", o{})
			}
		})
	})
}

// A gateway that containers with different MTUs share has the smallest MTU of them. The host sends none of them a
// packet that is too large.
func TestGatewayShared(t *testing.T) {
	needs(t, "ping", reference+"/host-local")
	h := newHost(t)
	out := h.outside("10.77.0.0/16", "10.77.0.1")
	add := func(id string, mtu int) (address string, check, leave func()) {
		c, space := h.routed(conf{"isDefaultGateway": true, "mtu": mtu}), h.space()
		var result map[string]any
		h.must(json.Unmarshal(h.do(attach("ADD", id, space, c)).text, &result))
		address, _, _ = strings.Cut(result["ips"].([]any)[0].(map[string]any)["address"].(string), "/")
		return address, func() { h.do(attach("CHECK", id, space, c.with(conf{"prevResult": result}))) }, func() { h.do(attach("DEL", id, space, c)) }
	}
	gateway := func(want int) {
		t.Helper()
		if got := mustLink(t, h.Switch, "cni0").Attrs().MTU; got != want {
			t.Errorf("the gateway has MTU %d, and not %d", got, want)
		}
	}
	small, checkSmall, leaveSmall := add("small", 1400)
	_, checkLarge, leaveLarge := add("large", 9000)
	gateway(1400)
	checkSmall()
	checkLarge()
	if says, ok := pingWhole(out, small, 1500); ok || !strings.Contains(says, "1400") {
		t.Errorf("the sender of 1500 bytes into a network of 1400 hears: %s", says)
	}
	leaveSmall()
	_, checkNext, leaveNext := add("next", 9000)
	gateway(9000)
	checkLarge()
	checkNext()
	leaveLarge()
	leaveNext()
	for _, d := range devices(t, h.Switch) {
		h.Keep(d)
	}
}

// keeps checks that a user's setting at the gateway's port stays.
func (h *host) keeps(port string, first bool) {
	h.t.Helper()
	if first {
		h.Bascule("port", "set", port, port, "--isolated", "--trusted=off", "--fdb-max", "77", "--description", "the way out")
		h.Bascule("binding", "add", port, port, "02:00:00:00:00:99", "10.255.0.9")
	}
	if out := h.Bascule("port", "show", port, port); !strings.Contains(out, "description") {
		h.t.Errorf("the gateway's port is\n%s", out)
	} else if is := h.Port(port, port); is.Trusted || is.FDBMax != 77 || !strings.Contains(out, "the way out") || !slices.Equal(is.Protected, []int{1}) {
		h.t.Errorf("the gateway's port is %+v", is)
	}
	if out := h.Bascule("binding", "show", port, port); !strings.Contains(out, "10.255.0.9") {
		h.t.Errorf("the gateway's port has the bindings\n%s", out)
	}
}

func checkGatewayMTU(h *host, subnet, gateway, port string, plug func(n, mtu int) (*ends.Namespace, string, func())) {
	h.t.Helper()
	out := h.outside(subnet, gateway)
	for n, mtu := range []int{1400, 9000, 1300} {
		space, address, leave := plug(n, mtu)
		if got := mustLink(h.t, h.Switch, port).Attrs().MTU; got != mtu {
			h.t.Errorf("the gateway has MTU %d in a network of %d", got, mtu)
		}
		if says, ok := pingWhole(space, gateway, mtu); !ok {
			h.t.Errorf("the gateway does not answer a packet of %d bytes: %s", mtu, says)
		}
		says, ok := pingWhole(out, address, 1500)
		if mtu >= 1500 && !ok {
			h.t.Errorf("a packet of 1500 bytes is lost on its way into a network of %d: %s", mtu, says)
		}
		if want := fmt.Sprint(mtu); mtu < 1500 && (ok || !strings.Contains(says, want)) {
			h.t.Errorf("the sender of 1500 bytes into a network of %d hears: %s", mtu, says)
		}
		leave()
	}
	for _, d := range devices(h.t, h.Switch) {
		h.Keep(d)
	}
}

// A container that has talked to the gateway's addresses receives an announcement when the host gets them, as when a
// bridge replaces another one. The container sends nothing.
func TestGatewayTold(t *testing.T) {
	needs(t, reference+"/host-local")
	h := newHost(t)
	a, b := h.space(), h.space()
	h.do(attach("ADD", "a", a, h.routed(nil)))
	index := mustLink(t, a, "eth0").Attrs().Index
	former := net.HardwareAddr{2, 0, 0, 0, 0xf0, 1}
	addresses := []string{"10.77.0.1", "fd77::1"}
	for _, ip := range addresses {
		h.must(a.Netlink().NeighSet(&netlink.Neigh{LinkIndex: index, State: netlink.NUD_STALE, IP: net.ParseIP(ip), HardwareAddr: former}))
	}
	h.do(attach("ADD", "b", b, h.routed(conf{"isGateway": true})))
	gateway := mustLink(t, h.Switch, "cni0").Attrs().HardwareAddr
	for _, ip := range addresses {
		h.Wait("the container to hear of "+ip, func() bool {
			list, err := a.Netlink().NeighList(index, netlink.FAMILY_ALL)
			h.must(err)
			return slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.IP.Equal(net.ParseIP(ip)) && bytes.Equal(n.HardwareAddr, gateway) })
		})
	}
	h.do(attach("DEL", "a", a, h.routed(nil)))
	h.do(attach("DEL", "b", b, h.routed(nil)))
}
