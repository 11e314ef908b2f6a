// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"encoding/json"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
)

// state returns the state of a host and a container: bridges, ports, interfaces, addresses, routes, and whether the
// host forwards.
func (h *host) state(space *ends.Namespace) (all []string) {
	h.t.Helper()
	all = strings.Split(h.Bascule("bridge", "show")+h.Bascule("port", "show")+h.Bascule("vlan", "show"), "\n")
	for _, name := range h.bridges() {
		all = append(all, h.Bascule("pfctl", "-b", name, "-a", "*", "-sr"))
	}
	for where, ns := range map[string]*ends.Namespace{"host": h.Switch, "container": space} {
		links, err := ns.Netlink().LinkList()
		h.must(err)
		for _, l := range links {
			a := l.Attrs()
			all = append(all, fmt.Sprint(where, " ", a.Name, " MTU ", a.MTU, " ", a.Flags, " promiscuous ", a.Promisc))
			addresses, err := ns.Netlink().AddrList(l, netlink.FAMILY_ALL)
			h.must(err)
			routes, err := ns.Netlink().RouteList(l, netlink.FAMILY_ALL)
			h.must(err)
			for _, a := range addresses {
				all = append(all, fmt.Sprint(where, " ", l.Attrs().Name, " has ", a.IPNet))
			}
			for _, r := range routes {
				all = append(all, fmt.Sprint(where, " ", l.Attrs().Name, " leads to ", r.Dst, r.Gw))
			}
		}
		h.must(ns.Do(func() error {
			out, err := exec.Command("sysctl", "net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding").Output()
			all = append(all, where+" "+string(out))
			return err
		}))
	}
	slices.Sort(all)
	return all
}

// unchanged makes a request that must be refused, and compares the state before and after it.
func (h *host) unchanged(name string, space *ends.Namespace, request func() error, word string) {
	h.t.Helper()
	before := h.state(space)
	if err := request(); err == nil || !strings.Contains(err.Error(), word) {
		h.t.Errorf("%s: %v, should be refused with %q", name, err, word)
	}
	if d := cmp.Diff(before, h.state(space)); d != "" {
		h.t.Errorf("%s is refused, and changes\n%s", name, d)
	}
}

// A refused request changes nothing: neither the container's state, nor shared state.
func TestRefusedChangesNothing(t *testing.T) {
	needs(t, reference+"/host-local", reference+"/static", "sysctl", "unshare")
	t.Run("cni", func(t *testing.T) {
		t.Parallel()
		h := newHost(t)
		h.t = t
		space := h.space()
		static := func(more conf, addresses ...string) conf {
			var list []conf
			for _, a := range addresses {
				list = append(list, conf{"address": a})
			}
			return conf{"cniVersion": "1.0.0", "name": "other", "type": "bascule-cni", "bridge": "cni0",
				"ipam": conf{"type": "static", "addresses": list}}.with(more)
		}
		refused := func(name string, c conf, word string) {
			t.Helper()
			h.unchanged(name, space, func() error {
				a, err := h.try(attach("ADD", "x", space, c))
				h.must(err)
				if a.exit == 0 {
					return nil
				}
				return fmt.Errorf("code %d: %s", a.Code, a.Msg)
			}, word)
		}
		gateway := conf{"isDefaultGateway": true}
		for _, c := range []struct {
			name string
			conf
			word string
		}{
			{"a span port that is not there", static(conf{"mirror": "nope"}), "nope"},
			{"an ipam that is not there", static(conf{"ipam": conf{"type": "nothing"}}), "nothing"},
			{"an address that makes no sense", static(nil, "x"), "code "},
			{"no way out", static(gateway.with(conf{"ipMasq": true}), "10.79.0.2/24"), "no default route"},
			{"IPv6 with a small MTU", static(gateway.with(conf{"mtu": 1000}), "fd79::2/64"), "IPv6 needs at least 1280"},
			{"a VLAN", static(conf{"vlan": 10, "mirror": "nope"}), "nope"},
		} {
			refused("without a bridge: "+c.name, c.conf, c.word)
			if names := h.bridges(); names != nil {
				t.Fatalf("there are bridges %v", names)
			}
		}
		h.do(attach("ADD", "a", h.space(), h.routed(gateway)))
		h.do(attach("ADD", "b", h.space(), h.routed(gateway)))
		for _, c := range []struct {
			name string
			conf
			word string
		}{
			{"another network on the gateway", static(gateway.with(conf{"mtu": 1000}), "10.79.0.2/24"), "has the address"},
			{"a small MTU", static(gateway.with(conf{"mtu": 1000, "forceAddress": true}), "10.79.0.2/24"), "fd77::1 with MTU 1000"},
			{"no way out", static(gateway.with(conf{"mtu": 1400, "forceAddress": true, "ipMasq": true}), "10.79.0.2/24"), "no default route"},
			{"a span port that is not there", static(gateway.with(conf{"mtu": 1400, "mirror": "nope"}), "10.77.1.2/16"), "nope"},
			{"a route that cannot be", static(gateway.with(conf{"mtu": 1400, "forceAddress": true, "ipam": conf{"type": "static",
				"addresses": []conf{{"address": "10.79.0.2/24"}}, "routes": []conf{{"dst": "192.0.2.0/24", "gw": "203.0.113.1"}}}}), ""), "route to 192.0.2.0/24"},
		} {
			refused(c.name, c.conf, c.word)
		}
		// No check can foresee this: the host's sysctl files are read-only, as in some containers.
		h.must(h.Switch.Do(func() error { return ends.Sysctl("net.ipv4.ip_forward", "0") }))
		late := static(gateway.with(conf{"mtu": 1400, "forceAddress": true, "promiscMode": true}), "10.79.0.2/24")
		h.unchanged("settings that cannot be written", space, func() error {
			cmd := h.process(attach("ADD", "x", space, late))
			cmd.Path, cmd.Args = "/usr/bin/unshare", append([]string{"unshare", "-m", "sh", "-c",
				`mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec "$@"`, "sh"}, cmd.Args...)
			out, err := cmd.CombinedOutput()
			if err != nil {
				err = fmt.Errorf("%w: %s", err, out)
			}
			return err
		}, "ip_forward")
		for _, name := range []string{"a", "b"} {
			h.do(attach("DEL", name, nil, h.routed(gateway)))
		}
	})
	t.Run("podman", func(t *testing.T) {
		t.Parallel()
		h := newHost(t)
		h.t = t
		space, other := h.space(), h.space()
		refused := func(name, word string, changes map[string]any) {
			t.Helper()
			h.unchanged(name, space, func() error {
				_, err := h.asks(request(t, changes), "setup", path(space))
				return err
			}, word)
		}
		refused("a span port that is not there", "nope", map[string]any{"network.options": map[string]any{"mirror": "nope"}})
		refused("no way out", "no default route", map[string]any{"network.options": map[string]any{"masquerade": "on"}})
		route := map[string]any{"network.options": map[string]any{"mtu": "1400"},
			"network.routes": []any{map[string]any{"destination": "192.0.2.0/24", "gateway": "203.0.113.1"}}}
		refused("a route that cannot be", "route to 192.0.2.0/24", route)
		if names := h.bridges(); names != nil {
			t.Errorf("there are bridges %v", names)
		}
		first := map[string]any{"container_id": "c0", "network_options.static_ips": []string{"10.99.0.9"}}
		h.podman(request(t, first), "setup", path(other))
		refused("a route that cannot be, and a bridge", "route to 192.0.2.0/24", route)
		refused("another network on the gateway", "has the address", map[string]any{"network.options": map[string]any{"mtu": "1000"},
			"network.subnets": []any{map[string]any{"subnet": "10.98.0.0/24", "gateway": "10.98.0.1"}}, "network_options.static_ips": []string{"10.98.0.5"}})
		h.podman(request(t, first), "teardown", path(other))
	})
	t.Run("docker", func(t *testing.T) {
		d := newDockerHost(t)
		d.t = t
		type o = map[string]any
		ask := func(what string, body o) error {
			if answer := d.docker("NetworkDriver."+what, body); answer["Err"] != nil {
				return fmt.Errorf("%s: %v", what, answer["Err"])
			}
			return nil
		}
		network := func(id, subnet string, words o) {
			t.Helper()
			words = maps.Clone(words)
			words["bridge"] = "br7"
			d.must(ask("CreateNetwork", o{"NetworkID": id, "Options": o{"com.docker.network.generic": words},
				"IPv4Data": []o{{"Gateway": subnet + "1/24", "Pool": subnet + "0/24"}}}))
		}
		end := func(id, address string) error {
			return ask("CreateEndpoint", o{"NetworkID": id, "EndpointID": "e" + id, "Interface": o{"Address": address}})
		}
		network("n0", "10.96.0.", o{"mirror": "nope"})
		network("n1", "10.97.0.", o{})
		network("n2", "10.98.0.", o{"com.docker.network.driver.mtu": "1000"})
		space := d.space()
		d.unchanged("a span port that is not there", space, func() error { return end("n0", "10.96.0.5/24") }, "nope")
		d.must(end("n1", "10.97.0.5/24"))
		d.unchanged("another network on the gateway", space, func() error { return end("n2", "10.98.0.5/24") }, "has the address")
		d.must(ask("DeleteEndpoint", o{"NetworkID": "n1", "EndpointID": "en1"}))
	})
}

// DEL and GC of a file with a mistake remove everything, including ipam's addresses.
func TestLeavesWithMistakes(t *testing.T) {
	needs(t, reference+"/host-local")
	h := newHost(t)
	for key, value := range map[string]any{"mtu": "1500", "pf": 17, "vlan": 1.5, "runtimeConfig": conf{"mac": 1}, "mirror": conf{}} {
		space := h.space()
		c := h.routed(nil)
		h.do(attach("ADD", "a", space, c))
		h.do(attach("DEL", "a", nil, c.with(conf{key: value})))
		if ports, ips := h.plugged("cni0"), h.leased(); len(ports) > 0 || len(ips) > 0 {
			t.Errorf("after DEL with %s %v there are the ports %v, and addresses %v", key, value, ports, ips)
		}
		bare := h.bare(nil)
		h.do(attach("ADD", "a", space, bare))
		h.do(call{command: "GC", conf: bare.with(conf{key: value})})
		if ports := h.plugged("cni0"); len(ports) > 0 {
			t.Errorf("after GC with %s %v there are the ports %v", key, value, ports)
		}
		h.do(attach("DEL", "a", nil, bare))
	}
	// The valid attachments are unknown: nothing is removed.
	space := h.space()
	h.do(attach("ADD", "a", space, h.bare(nil)))
	h.refused(call{command: "GC", conf: h.bare(conf{"cni.dev/valid-attachments": 1})}, 6, "valid-attachments")
	if n := len(h.plugged("cni0")); n != 1 {
		t.Errorf("%d ports are left after a GC that is refused", n)
	}
	h.do(attach("DEL", "a", space, h.bare(nil)))
}

// CHECK notices an end of the cable that is down, and another MTU.
func TestCheckInterfaces(t *testing.T) {
	needs(t, reference+"/host-local")
	h := newHost(t)
	space := h.space()
	c := h.routed(conf{"isDefaultGateway": true, "mtu": 1400})
	var prev map[string]any
	h.must(json.Unmarshal(h.do(attach("ADD", "a", space, c)).text, &prev))
	check := attach("CHECK", "a", space, c.with(conf{"prevResult": prev}))
	port := h.plugged("cni0")["cni/net/a/eth0"].Ifname
	for _, of := range []struct {
		name, word string
		space      *ends.Namespace
	}{{port, "port " + port + " of bridge cni0", h.Switch}, {"eth0", "eth0 of the container", space}, {"cni0", "the gateway's interface cni0", h.Switch}} {
		kernel, link := of.space.Netlink(), mustLink(t, of.space, of.name)
		h.do(check)
		h.must(kernel.LinkSetMTU(link, 1300))
		h.refused(check, 999, of.word+" has MTU 1300, not 1400")
		h.must(kernel.LinkSetMTU(link, 1400))
		h.do(check)
		if of.name == "eth0" {
			continue // its routes disappear as well
		}
		h.must(kernel.LinkSetDown(link))
		h.refused(check, 999, of.word+" is down")
		h.must(kernel.LinkSetUp(link))
	}
	h.must(space.Netlink().LinkSetDown(mustLink(t, space, "eth0")))
	h.refused(check, 999, "eth0 of the container is down")
	h.do(attach("DEL", "a", space, c))
	// The result of CNI 1.1 includes the kernel's default MTU.
	bare := h.bare(nil)
	prev = nil
	h.must(json.Unmarshal(h.do(attach("ADD", "a", space, bare)).text, &prev))
	check.conf = bare.with(conf{"prevResult": prev})
	h.do(check)
	h.must(space.Netlink().LinkSetMTU(mustLink(t, space, "eth0"), 1400))
	h.refused(check, 999, "eth0 of the container has MTU 1400, not 1500")
	h.do(attach("DEL", "a", space, bare))
}

// An ipam plugin from before CNI 1.1 supports neither STATUS nor GC. The error says so, and does not show the plugin's
// own message. GC still removes the ports.
func TestOldIPAM(t *testing.T) {
	h := newHost(t)
	c := h.routed(conf{"cniVersion": "1.1.0"})
	h.refused(call{command: "STATUS", conf: c}, 1, "ipam host-local supports CNI ", "0.4.0, 1.0.0", ", not 1.1.0;")
	h.do(attach("ADD", "a", h.space(), h.bare(nil)))
	h.refused(call{command: "GC", conf: c}, 1, "ipam host-local supports CNI ", ", not 1.1.0;")
	if n := len(h.plugged("cni0")); n != 0 {
		t.Errorf("%d ports are left after GC", n)
	}
}
