// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"
	"testing"

	types020 "github.com/containernetworking/cni/pkg/types/020"
	types040 "github.com/containernetworking/cni/pkg/types/040"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
)

// Requirements of the specification (https://github.com/containernetworking/cni/blob/v1.1.0/SPEC.md) for any plugin,
// beyond the other tests. The cases are those in the conformance suite of tiny-cni
// (https://github.com/corentin-dupaigne/tiny-cni, e2e/README.md), whose numbers are in brackets.
func TestSpecification(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// [1.1, 5.1, 5.2] VERSION needs nothing but itself.
	asked := h.do(call{command: "VERSION", conf: conf{"cniVersion": "1.0.0"}})
	var about struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}
	h.must(json.Unmarshal(asked.text, &about))
	if about.CNIVersion == "" || !slices.Contains(about.SupportedVersions, "1.1.0") || !slices.Contains(about.SupportedVersions, "0.1.0") {
		t.Errorf("VERSION answers %s", asked.text)
	}
	// [5.2] Each version is supported: the result of ADD has its form, and is true [2.1, 2.2].
	for _, version := range about.SupportedVersions {
		space := h.space()
		want, net := 2, h.routed(conf{"cniVersion": version, "isDefaultGateway": true})
		if version == "1.1.0" { // Debian's host-local does not support it
			h.refused(attach("ADD", "of-"+version, space, net), 1, "host-local")
			want, net = 0, h.bare(nil)
		}
		c := attach("ADD", "of-"+version, space, net)
		a := h.do(c)
		var said struct {
			CNIVersion string `json:"cniVersion"`
		}
		h.must(json.Unmarshal(a.text, &said))
		if said.CNIVersion != version {
			t.Errorf("version %s: ADD answers in version %q", version, said.CNIVersion)
		}
		var addresses []string
		switch version {
		case "0.1.0", "0.2.0":
			var r types020.Result
			h.must(json.Unmarshal(a.text, &r))
			if r.IP4 == nil || r.IP6 == nil {
				t.Errorf("version %s: no addresses in %s", version, a.text)
				break
			}
			addresses = []string{r.IP4.IP.String(), r.IP6.IP.String()}
		case "0.3.0", "0.3.1", "0.4.0":
			var r types040.Result
			h.must(json.Unmarshal(a.text, &r))
			for _, ip := range r.IPs {
				if ip.Version == "" || ip.Interface == nil || r.Interfaces[*ip.Interface].Sandbox != path(space) {
					t.Errorf("version %s: address %+v", version, ip)
				}
				addresses = append(addresses, ip.Address.String())
			}
		default:
			var r types100.Result
			h.must(json.Unmarshal(a.text, &r))
			for _, ip := range r.IPs {
				if ip.Interface == nil || r.Interfaces[*ip.Interface].Sandbox != path(space) {
					t.Errorf("version %s: address %+v", version, ip)
				}
				addresses = append(addresses, ip.Address.String())
			}
			for _, i := range r.Interfaces {
				if link := mustLinkOf(t, h, space, i); link.Attrs().HardwareAddr.String() != i.Mac || i.Mtu != 0 && i.Mtu != link.Attrs().MTU {
					t.Errorf("version %s: %+v is told, and the interface has %v and MTU %d", version, i, link.Attrs().HardwareAddr, link.Attrs().MTU)
				}
			}
		}
		link := mustLink(t, space, "eth0")
		there, err := space.Netlink().AddrList(link, netlink.FAMILY_ALL)
		h.must(err)
		if len(addresses) != want || link.Attrs().OperState != netlink.OperUp {
			t.Errorf("version %s: addresses %v are told, and eth0 is %v", version, addresses, link.Attrs().OperState)
		}
		for _, told := range addresses {
			if !slices.ContainsFunc(there, func(a netlink.Addr) bool { return a.IPNet.String() == told }) {
				t.Errorf("version %s: address %s is told, and eth0 has %v", version, told, there)
			}
		}
		c.command = "DEL"
		if out := h.do(c); len(out.text) > 0 { // [3.4]
			t.Errorf("version %s: DEL answers %s", version, out.text)
		}
	}
	// [2.1, 2.4] Interfaces have the requested names, also in one container, and each is removed alone.
	space := h.NewNamespace()
	names := []string{"net1", "cni-if_9", "abcdefghijklmno"}
	for _, name := range names {
		c := attach("ADD", "many", space, h.bare(nil))
		c.ifname = name
		h.do(c)
	}
	for i, name := range names {
		mustLink(t, space, name)
		c := attach("DEL", "many", space, h.bare(nil))
		c.ifname = name
		h.do(c)
		if left := devices(t, space); len(left) != len(names)-i { // including lo
			t.Errorf("after DEL of %s there are %v", name, left)
		}
	}
	// [1.2, 1.3, 3.5, 4.8] The error names a missing variable.
	for _, command := range []string{"ADD", "DEL", "CHECK"} {
		h.refused(call{command: command, conf: h.bare(nil)}, 4, "CNI_CONTAINERID", "CNI_IFNAME")
		h.refused(call{command: command, container: "a", space: space, conf: h.bare(nil)}, 4, "CNI_IFNAME")
		h.refused(call{command: command, ifname: "eth0", space: space, conf: h.bare(nil)}, 4, "CNI_CONTAINERID")
	}
	h.refused(call{command: "CHECK", container: "a", ifname: "eth0", conf: h.bare(nil)}, 4, "CNI_NETNS")
	// [6] A runtime may declare that the plugin can ignore unknown CNI_ARGS.
	c := attach("ADD", "args", space, h.bare(nil))
	c.env = []string{"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAME=web"}
	h.do(c)
	c.command = "DEL"
	h.do(c)
	// Without a version it is 0.1.0, as for the reference plugins. That version cannot express a result without an
	// address.
	old := h.bare(nil)
	delete(old, "cniVersion")
	h.refused(attach("ADD", "old", space, old), 7, "cniVersion", "0.3.0")
	old = h.routed(nil)
	delete(old, "cniVersion")
	h.do(attach("ADD", "old", space, old))
	h.do(attach("DEL", "old", space, old))
}

// mustLinkOf returns an interface from the result of ADD.
func mustLinkOf(t *testing.T, h *host, space interface {
	Netlink() *netlink.Handle
}, i *types100.Interface) netlink.Link {
	t.Helper()
	at := h.Switch.Netlink()
	if i.Sandbox != "" {
		at = space.Netlink()
	}
	l, err := at.LinkByName(i.Name)
	if err != nil {
		t.Fatalf("interface %+v is told: %v", i, err)
	}
	return l
}

// [7.1] Containers start and stop at the same time. No address belongs to two containers, and each DEL removes its own.
func TestMixed(t *testing.T) {
	t.Parallel()
	const many = 12
	h := newHost(t)
	c := h.routed(nil)
	var lock sync.Mutex
	whose := map[string]string{}
	var wg sync.WaitGroup
	wrong := make(chan string, 4*many)
	for i := range many {
		space, name := h.space(), fmt.Sprint("c", i)
		wg.Go(func() {
			for _, command := range []string{"ADD", "DEL", "ADD"} {
				a, err := h.try(attach(command, name, space, c))
				if err != nil || a.exit != 0 {
					wrong <- fmt.Sprintf("%s of %s: %v %d %s", command, name, err, a.Code, a.Msg)
					return
				}
				if command == "DEL" {
					continue
				}
				var r types100.Result
				if err := json.Unmarshal(a.text, &r); err != nil || len(r.IPs) != 2 {
					wrong <- fmt.Sprintf("ADD of %s: %v: %s", name, err, a.text)
					return
				}
				lock.Lock()
				for _, ip := range r.IPs {
					address := ip.Address.IP.String()
					if other := whose[address]; other != "" && other != name {
						wrong <- fmt.Sprintf("%s and %s have %s", name, other, address)
					}
					// host-local does not reuse an address before it has assigned all others
					whose[address] = name
				}
				lock.Unlock()
			}
		})
	}
	wg.Wait()
	close(wrong)
	for w := range wrong {
		t.Error(w)
	}
	if n := len(h.plugged("cni0")); n != many {
		t.Errorf("%d ports, should be %d", n, many)
	}
	for i := range many {
		h.do(attach("DEL", fmt.Sprint("c", i), nil, c))
	}
	if n := len(h.Ports("cni0")); n != 0 {
		t.Errorf("%d ports are left", n)
	}
}
