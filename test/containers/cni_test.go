// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/datapath"
	"bascule/lab/ends"
	"bascule/test/netlab"
)

// patience is the time limit for events that have to happen.
const patience = 3 * time.Minute

var pairs = flag.Int("containers.pairs", 30, "pairs of ADD and DEL with kills")

// attach returns a request for the container's eth0.
func attach(command, container string, space *ends.Namespace, conf any) call {
	return call{command: command, container: container, ifname: "eth0", space: space, conf: conf}
}

// random matches names and addresses that differ from run to run.
var random = regexp.MustCompile(`veth[0-9a-f]+|([0-9a-f]{2}:){5}[0-9a-f]{2}|bsc-[0-9a-z-]+`)

// The result of ADD without random parts, and the container's state after it.
func told(t *testing.T, a answer, space *ends.Namespace) map[string]any {
	t.Helper()
	var result map[string]any
	if err := json.Unmarshal([]byte(random.ReplaceAllString(string(a.text), "X")), &result); err != nil {
		t.Fatalf("%v: %s", err, a.text)
	}
	for _, i := range result["interfaces"].([]any) {
		delete(i.(map[string]any), "mtu") // Debian's plugin is older than 1.1
	}
	link, err := space.Netlink().LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	addresses, err := space.Netlink().AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, addr := range addresses {
		if !addr.IP.IsLinkLocalUnicast() {
			list = append(list, addr.IPNet.String())
		}
	}
	routes, err := space.Netlink().RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range routes {
		if r.Dst == nil || !r.Dst.IP.IsLinkLocalUnicast() && !r.Dst.IP.IsMulticast() {
			list = append(list, fmt.Sprint(r.Dst, " via ", r.Gw))
		}
	}
	slices.Sort(list)
	result["in the container"] = list
	if dns, ok := result["dns"].(map[string]any); ok && len(dns) == 0 {
		delete(result, "dns")
	}
	result["mtu"] = link.Attrs().MTU
	return result
}

// Configurations for Debian's bridge plugin have the same meaning here.
func TestReference(t *testing.T) {
	needs(t, reference+"/bridge")
	for name, more := range map[string]conf{
		"plain":           {},
		"gateway":         {"isGateway": true},
		"default gateway": {"isDefaultGateway": true},
		"mtu":             {"mtu": 1400},
		"hairpin":         {"hairpinMode": true, "isDefaultGateway": true},
		"promiscuous":     {"promiscMode": true, "isDefaultGateway": true},
		"without ipam":    {"ipam": nil},
		"another bridge":  {"bridge": "br7", "isGateway": true},
		"dns":             {"dns": conf{"nameservers": []string{"192.0.2.53"}, "domain": "example.org"}},
		"mac":             {"args": conf{"cni": conf{"mac": "02:00:00:00:00:77"}}},
		"mac at runtime":  {"runtimeConfig": conf{"mac": "02:00:00:00:00:78"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var results []map[string]any
			for _, plugin := range []string{"bridge", ""} {
				h := newHost(t)
				a, b := h.space(), h.space()
				c := h.routed(more)
				if c["ipam"] == nil {
					delete(c, "ipam")
				}
				add := attach("ADD", "a", a, c)
				add.plugin = plugin
				first := h.do(add)
				results = append(results, told(t, first, a))
				add.container, add.space = "b", b
				results = append(results, told(t, h.do(add), b))
				if c["ipam"] != nil && !strings.HasPrefix(name, "mac") { // both have it then
					for _, to := range []string{"10.77.0.2", "fd77::2"} {
						h.must(ping(b, to))
					}
				}
				if c["isGateway"] == true || c["isDefaultGateway"] == true {
					h.must(ping(a, "10.77.0.1"))
				}
				add.container, add.space = "a", a
				if plugin == "" { // a Linux bridge has another MAC by now, and the plugin checks it
					var prev map[string]any
					h.must(json.Unmarshal(first.text, &prev))
					add.command, add.conf = "CHECK", c.with(conf{"prevResult": prev})
					h.do(add)
				}
				add.conf, add.command = c, "DEL"
				h.do(add)
				add.container, add.space = "b", b
				h.do(add)
				h.do(add)
				if left := devices(t, a); len(left) != 1 {
					t.Errorf("the container has %v after DEL", left)
				}
				// The gateway, and the reference plugin's bridge.
				for _, d := range devices(t, h.Switch) {
					if strings.HasPrefix(d, "veth") {
						t.Errorf("%s is left", d)
					}
					h.Keep(d)
				}
			}
			for i := range 2 {
				if d := cmp.Diff(results[i], results[i+2]); d != "" {
					t.Errorf("ADD %d: the reference plugin (-) and bascule (+):\n%s", i+1, d)
				}
			}
		})
	}
}

// Each mistake has the error code of the specification, and changes nothing.
func TestBadInput(t *testing.T) {
	h := newHost(t)
	space := h.NewNamespace()
	good := h.bare(nil)
	h.do(attach("ADD", "first", space, good)) // makes the bridge
	h.do(attach("DEL", "first", space, good))
	before := h.Bascule("port", "show")
	long := strings.Repeat("x", 300)
	for name, c := range map[string]struct {
		call
		code  uint
		words []string
	}{
		"no JSON":              {attach("ADD", "a", space, "{"), 6, nil},
		"no object":            {attach("ADD", "a", space, "[]"), 6, nil},
		"wrong type":           {attach("ADD", "a", space, h.bare(conf{"vlan": "ten"})), 6, []string{"vlan is a string; give a whole number"}},
		"a number as a text":   {attach("ADD", "a", space, h.bare(conf{"sourceGuard": "true"})), 6, []string{"sourceGuard is a string; give true or false"}},
		"in a list":            {attach("ADD", "a", space, h.bare(conf{"vlanTrunk": []conf{{"id": "2"}}})), 6, []string{"vlanTrunk.id is a string; give a whole number"}},
		"a fraction":           {attach("ADD", "a", space, h.bare(conf{"mtu": 1.5})), 6, []string{"mtu is 1.5; give a whole number"}},
		"a version's type":     {attach("ADD", "a", space, h.bare(conf{"cniVersion": 1})), 6, []string{"cniVersion is a number; give a string"}},
		"a list at the top":    {attach("ADD", "a", space, "[1]"), 6, []string{"it is a list; give an object"}},
		"cut off":              {attach("ADD", "a", space, `{"name": "x", `), 6, []string{"not JSON"}},
		"much of it":           {attach("ADD", "a", space, `{"name": "x", "x": "`+strings.Repeat("x", 5<<20)+`"}`), 6, []string{"more than 4194304 bytes"}},
		"nested deep":          {attach("ADD", "a", space, `{"name": "x", "x": `+strings.Repeat("[", 1<<20)), 6, []string{"not JSON"}},
		"rules of numbers":     {attach("ADD", "a", space, h.bare(conf{"pf": []int{1}})), 6, []string{"pf is neither a string nor a list of lines"}},
		"fdbMax":               {attach("ADD", "a", space, h.bare(conf{"fdbMax": -1})), 7, []string{"fdbMax -1: ", "0 to 4194304"}},
		"an own key, misspelt": {attach("ADD", "a", space, h.bare(conf{"sourceGard": true})), 7, []string{"sourceGard", "the nearest is sourceGuard"}},
		"in another spelling":  {attach("ADD", "a", space, h.bare(conf{"mac-spoof-chk": true})), 7, []string{"the nearest is macspoofchk"}},
		"an empty trunk":       {attach("ADD", "a", space, h.bare(conf{"vlanTrunk": []conf{{"vid": 2}}})), 7, []string{"vlanTrunk", "neither id nor minID"}},
		"published ports":      {attach("ADD", "a", space, h.bare(conf{"runtimeConfig": conf{"portMappings": []conf{{"hostPort": 80}}}})), 2, []string{"portMappings", "portmap", "masqAll", "rdr-to"}},
		"no name":              {attach("ADD", "a", space, conf{"cniVersion": "1.0.0"}), 7, []string{"name"}},
		"name with a path":     {attach("ADD", "a", space, h.bare(conf{"name": "../x"})), 7, nil},
		"bridge with a path":   {attach("ADD", "a", space, h.bare(conf{"bridge": "../x"})), 7, []string{"bridge name"}},
		"long bridge":          {attach("ADD", "a", space, h.bare(conf{"bridge": long})), 7, nil},
		"vlan":                 {attach("ADD", "a", space, h.bare(conf{"vlan": 4095})), 7, []string{"4095"}},
		"negative vlan":        {attach("ADD", "a", space, h.bare(conf{"vlan": -1})), 7, nil},
		"vlan and trunk":       {attach("ADD", "a", space, h.bare(conf{"vlan": 2, "vlanTrunk": []conf{{"minID": 1, "maxID": 3}}})), 7, []string{"vlan 2 is also in vlanTrunk"}},
		"half a range":         {attach("ADD", "a", space, h.bare(conf{"vlanTrunk": []conf{{"minID": 2}}})), 7, []string{"maxID"}},
		"range backwards":      {attach("ADD", "a", space, h.bare(conf{"vlanTrunk": []conf{{"minID": 3, "maxID": 2}}})), 7, nil},
		"no filtering":         {attach("ADD", "a", space, h.bare(conf{"vlan": 10})), 7, []string{"does not filter VLANs"}},
		"hairpin, promiscuous": {attach("ADD", "a", space, h.bare(conf{"hairpinMode": true, "promiscMode": true})), 7, nil},
		"down with ipam":       {attach("ADD", "a", space, h.routed(conf{"disableContainerInterface": true})), 7, nil},
		"masquerade of none":   {attach("ADD", "a", space, h.bare(conf{"ipMasq": true})), 7, nil},
		"a burst alone":        {attach("ADD", "a", space, h.bare(conf{"runtimeConfig": conf{"bandwidth": conf{"ingressBurst": 1}}})), 7, []string{"ingressRate", "needs a rate"}},
		"too high a rate":      {attach("ADD", "a", space, h.bare(conf{"egressRate": uint64(1) << 63})), 7, []string{"egressRate", "above the highest limit"}},
		"a negative rate":      {attach("ADD", "a", space, h.bare(conf{"egressRate": -1})), 6, []string{"egressRate"}},
		"limits of subnets":    {attach("ADD", "a", space, h.bare(conf{"ingressRate": 1000, "shapedSubnets": []string{"10.0.0.0/8"}})), 2, []string{"shapedSubnets"}},
		"mac":                  {attach("ADD", "a", space, h.bare(conf{"runtimeConfig": conf{"mac": "01:00:5e:00:00:01"}})), 7, nil},
		"mtu":                  {attach("ADD", "a", space, h.bare(conf{"mtu": -1})), 7, nil},
		"rules":                {attach("ADD", "a", space, h.bare(conf{"pf": "block in on eth7"})), 7, []string{"another port"}},
		"no rules":             {attach("ADD", "a", space, h.bare(conf{"bridge": "new0", "pf": []string{"blok"}})), 7, []string{"pf:1"}},
		"rules of a file":      {attach("ADD", "a", space, h.bare(conf{"pf": `include "/etc/passwd"`})), 7, []string{"files cannot be read here"}},
		"a small mtu":          {attach("ADD", "a", space, h.bare(conf{"mtu": 67})), 7, []string{"68"}},
		"its own ipam":         {attach("ADD", "a", space, h.bare(conf{"ipam": conf{"type": "bascule-cni"}})), 7, []string{"ipam.type"}},
		"a gateway of all":     {attach("ADD", "a", space, h.bare(conf{"bridge": "all", "isGateway": true})), 7, []string{"reserves it"}},
		"a pattern":            {call{command: "ADD", container: "a", ifname: "a%d", space: space, conf: good}, 4, []string{"CNI_IFNAME", "a%d"}},
		"the kernel's name":    {call{command: "ADD", container: "a", ifname: "all", space: space, conf: good}, 4, []string{"CNI_IFNAME", "all"}},
		"escape codes":         {call{command: "ADD", container: "a", ifname: "e\x1b[1m", space: space, conf: good}, 4, []string{"CNI_IFNAME"}},
		"mirror":               {attach("ADD", "a", space, h.bare(conf{"mirror": "nothing"})), 999, []string{"nothing"}},
		"ipam with a path":     {attach("ADD", "a", space, h.bare(conf{"ipam": conf{"type": "../../bin/sh"}})), 7, nil},
		"no ipam":              {attach("ADD", "a", space, h.bare(conf{"ipam": conf{"type": "nothing"}})), 999, []string{"nothing"}},
		"version":              {attach("ADD", "a", space, h.bare(conf{"cniVersion": "7.0.0"})), 1, nil},
		"no container":         {attach("ADD", "", space, good), 4, []string{"CNI_CONTAINERID"}},
		"no namespace":         {attach("ADD", "a", nil, good), 4, []string{"CNI_NETNS"}},
		"no interface":         {call{command: "ADD", container: "a", space: space, conf: good}, 4, []string{"CNI_IFNAME"}},
		"container's name":     {attach("ADD", "a/../b", space, good), 4, nil},
		"long container":       {attach("ADD", long, space, good), 4, []string{"CNI_CONTAINERID"}},
		"interface's name":     {call{command: "ADD", container: "a", ifname: "a/b", space: space, conf: good}, 4, nil},
		"unknown command":      {attach("PUT", "a", space, good), 4, nil},
		"own namespace":        {attach("ADD", "a", h.Switch, good), 8, nil},
		"no such namespace":    {call{command: "ADD", container: "a", ifname: "eth0", conf: good, env: []string{"CNI_NETNS=/nowhere"}}, 4, []string{"/nowhere"}},
		"relative namespace":   {call{command: "ADD", container: "a", ifname: "eth0", conf: good, env: []string{"CNI_NETNS=" + space.Name}}, 4, []string{"absolute"}},
		"a file as namespace":  {call{command: "ADD", container: "a", ifname: "eth0", conf: good, env: []string{"CNI_NETNS=/etc/passwd"}}, 4, nil},
		"args":                 {call{command: "ADD", container: "a", ifname: "eth0", space: space, conf: good, env: []string{"CNI_ARGS=nonsense=1"}}, 4, nil},
		"check of none":        {attach("CHECK", "a", space, good.with(conf{"prevResult": conf{"cniVersion": "1.1.0", "interfaces": []conf{}}})), 999, []string{"is not on bridge"}},
		"check, no result":     {attach("CHECK", "a", space, good), 7, []string{"prevResult"}},
		"gc of an old version": {call{command: "GC", conf: h.bare(conf{"cniVersion": "1.0.0"})}, 1, nil},
	} {
		t.Run(name, func(t *testing.T) {
			one := &host{h.Lab, t, h.path, h.data, h.plugins}
			one.refused(c.call, c.code, c.words...)
			if after := h.Bascule("port", "show"); after != before {
				t.Errorf("the ports were\n%sand are\n%s", before, after)
			}
			if left := devices(t, space); len(left) != 1 {
				t.Errorf("the container has %v", left)
			}
			for _, d := range devices(t, h.Switch) {
				if strings.HasPrefix(d, "veth") {
					t.Errorf("%s is left", d)
				}
			}
			if ips := h.leased(); len(ips) > 0 {
				t.Errorf("addresses are left: %v", ips)
			}
		})
	}
	if names := h.bridges(); len(names) != 1 {
		t.Errorf("there are bridges %v", names)
	}
}

// leased returns the files of the addresses that host-local has assigned.
func (h *host) leased() (list []string) {
	for _, begin := range []string{"1", "fd"} {
		found, err := filepath.Glob(h.data + "/net/" + begin + "*")
		h.must(err)
		list = append(list, found...)
	}
	return list
}

// A second ADD of the same interface fails and changes nothing. DEL can be repeated, and needs no
// namespace.
func TestAgain(t *testing.T) {
	h := newHost(t)
	a, b := h.NewNamespace(), h.NewNamespace()
	c := h.bare(nil)
	h.do(attach("ADD", "a", a, c))
	h.refused(attach("ADD", "a", a, c), 4, "already has an interface eth0")
	h.refused(attach("ADD", "a", b, c), 4, "CNI_CONTAINERID", "its interface is up", "DEL")
	h.must(a.Netlink().LinkSetDown(mustLink(t, a, "eth0"))) // as after a request that was killed
	h.refused(attach("ADD", "a", b, c), 11, "already exists")
	h.must(a.Netlink().LinkSetUp(mustLink(t, a, "eth0")))
	if n := len(h.plugged("cni0")); n != 1 {
		t.Errorf("%d ports, should be 1", n)
	}
	h.do(attach("DEL", "a", nil, c))
	if left := devices(t, a); len(left) != 1 {
		t.Errorf("the container has %v after DEL without its namespace", left)
	}
	h.do(attach("DEL", "a", nil, c))
	h.do(attach("DEL", "a", a, c))
	h.do(attach("DEL", "never", b, c))
	h.do(attach("ADD", "a", a, c.with(conf{"somebodyElses": 1}))) // it is ignored, as the specification permits
	// A changed file does not prevent a DEL.
	for _, changed := range []conf{{"sourceGard": true}, {"vlan": 4095}, {"bridge": "../x"}, {"runtimeConfig": conf{"mac": "x"}}} {
		h.do(attach("DEL", "a", nil, c.with(changed)))
	}
	gone := attach("DEL", "a", nil, c)
	gone.env = []string{"CNI_NETNS=/run/netns/gone"}
	h.do(gone)
	h.do(attach("ADD", "a", a, c))
	h.must(a.Netlink().LinkDel(mustLink(t, a, "eth0"))) // as when its namespace is deleted
	h.do(attach("DEL", "a", nil, c))
	if n := len(h.plugged("cni0")); n != 0 {
		t.Errorf("%d ports are left", n)
	}
}

func mustLink(t testing.TB, ns *ends.Namespace, name string) netlink.Link {
	t.Helper()
	l, err := ns.Netlink().LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// The switch's own settings, tested by the frames that pass.
func TestOwnKeys(t *testing.T) {
	needs(t, "ping")
	h := newHost(t)
	spaces := []*ends.Namespace{h.NewNamespace(), h.NewNamespace(), h.NewNamespace()}
	a, b, isolated := spaces[0], spaces[1], spaces[2]
	guarded := h.routed(conf{"sourceGuard": true, "macspoofchk": true, "fdbMax": 3, "pf": []string{"block in inet proto icmp to 10.77.0.1"}, "isGateway": true})
	h.do(attach("ADD", "a", a, guarded))
	h.do(attach("ADD", "b", b, h.routed(conf{"portIsolation": true, "isGateway": true})))
	h.do(attach("ADD", "c", isolated, h.routed(conf{"portIsolation": true, "isGateway": true})))
	ports := h.plugged("cni0")
	if p := ports["cni/net/a/eth0"]; p.FDBMax != 3 || p.Learning || p.Owner.Container != "a" || p.Owner.Network != "net" {
		t.Errorf("the port of a is %+v of %+v", p, p.Owner)
	}
	h.must(ping(a, "10.77.0.3"))
	h.must(ping(b, "10.77.0.2"))
	h.must(ping(b, "10.77.0.1"))
	if !unheard(a, "10.77.0.1") {
		t.Error("what pf blocks gets through")
	}
	if !unheard(isolated, "10.77.0.3") {
		t.Error("two isolated ports talk")
	}
	// Another IP address, and another MAC.
	link := mustLink(t, a, "eth0")
	foreign, err := netlink.ParseAddr("10.77.0.99/16")
	h.must(err)
	h.must(a.Netlink().AddrAdd(link, foreign))
	if _, err := exec.Command("nsenter", "--net="+path(a), "ping", "-n", "-c", "1", "-W", "1", "-I", "10.77.0.99", "10.77.0.3").Output(); err == nil {
		t.Error("a foreign address gets through")
	}
	h.must(a.Netlink().AddrDel(link, foreign))
	h.must(ping(a, "10.77.0.3"))
	h.must(a.Netlink().LinkSetHardwareAddr(link, []byte{2, 0, 0, 0, 0, 0x99}))
	if !unheard(a, "10.77.0.3") {
		t.Error("a foreign MAC gets through")
	}
	for i, name := range []string{"a", "b", "c"} {
		h.do(attach("DEL", name, spaces[i], guarded))
	}
	if out := h.Bascule("binding", "show") + h.Bascule("pfctl", "-b", "cni0", "-a", "*", "-sr"); strings.Contains(out, "veth") {
		t.Errorf("bindings or rules are left:\n%s", out)
	}
}

// VLANs are the same as with the reference plugin: an access port, a trunk, the default VLAN kept or
// not.
func TestVLANs(t *testing.T) {
	h := newHost(t)
	for i, c := range []struct {
		conf
		want string
	}{
		{conf{"vlan": 10}, "10 PVID, Egress Untagged"},
		{conf{"vlan": 10, "preserveDefaultVlan": true}, "1 Egress Untagged; 10 PVID, Egress Untagged"},
		{conf{"vlan": 1}, "1 PVID, Egress Untagged"},
		{conf{"vlanTrunk": []conf{{"id": 20}, {"minID": 30, "maxID": 32}}}, "1 PVID, Egress Untagged; 20; 30-32"},
		{conf{"vlan": 10, "vlanTrunk": []conf{{"id": 20}}}, "10 PVID, Egress Untagged; 20"},
		{conf{"vlan": 10, "vlanTrunk": []conf{{"id": 20}}, "preserveDefaultVlan": true}, "1 Egress Untagged; 10 PVID, Egress Untagged; 20"},
		{conf{}, "1 PVID, Egress Untagged"},
	} {
		space := h.NewNamespace()
		name := fmt.Sprint("c", i)
		h.do(attach("ADD", name, space, h.bare(c.conf)))
		port := h.plugged("cni0")["cni/net/"+name+"/eth0"].Ifname
		var list []string
		for _, line := range strings.Split(strings.TrimSpace(h.Bascule("vlan", "show", "cni0", port)), "\n")[1:] {
			fields := strings.Fields(line)
			list = append(list, strings.TrimSuffix(strings.Join(fields[2:], " "), " -"))
		}
		if got := strings.Join(list, "; "); got != c.want {
			t.Errorf("%v: VLANs %q, should be %q", c.conf, got, c.want)
		}
		h.do(attach("DEL", name, space, h.bare(c.conf)))
	}
	// The gateway of a VLAN.
	needs(t, reference+"/host-local")
	space := h.NewNamespace()
	gateway := h.routed(conf{"vlan": 10, "preserveDefaultVlan": false, "isDefaultGateway": true})
	a := h.do(attach("ADD", "v", space, gateway))
	if !strings.Contains(string(a.text), `"cni0.10"`) {
		t.Errorf("the answer does not name the gateway: %s", a.text)
	}
	h.must(ping(space, "10.77.0.1"))
	h.do(attach("DEL", "v", space, gateway))
}

// A machine with many containers starts.
func TestConcurrent(t *testing.T) {
	const many = 100
	h := newHost(t)
	spaces := make([]*ends.Namespace, many)
	for i := range spaces {
		spaces[i] = h.NewNamespace()
	}
	c := h.bare(conf{"portIsolation": true})
	all := func(command string) {
		var wg sync.WaitGroup
		wrong := make(chan string, many)
		for i, space := range spaces {
			wg.Go(func() {
				if a, err := h.try(attach(command, fmt.Sprint("c", i), space, c)); err != nil || a.exit != 0 {
					wrong <- fmt.Sprintf("%s %d: %v %d %s", command, i, err, a.Code, a.Msg)
				}
			})
		}
		wg.Wait()
		close(wrong)
		for w := range wrong {
			t.Error(w)
		}
	}
	all("ADD")
	ports := h.plugged("cni0")
	for i, space := range spaces {
		p := ports[fmt.Sprintf("cni/net/c%d/eth0", i)]
		if l := mustLink(t, space, "eth0"); p.Ifindex != l.Attrs().ParentIndex || p.State == "gone" || !p.Isolated {
			t.Errorf("container %d has the other end of device %d, and its port is %+v", i, l.Attrs().ParentIndex, p)
		}
	}
	all("DEL")
	if n := len(h.Ports("cni0")); n != 0 {
		t.Errorf("%d ports are left", n)
	}
}

// The limits of a container are the runtime's, or the network's: for its port, in both directions.
// The rate of its TCP agrees.
func TestBandwidth(t *testing.T) {
	needs(t, "iperf3")
	h := newHost(t)
	a, b := h.NewNamespace(), h.NewNamespace()
	// As kubelet sends them, which has no burst, and with a burst.
	limits := conf{"ingressRate": 8000000, "ingressBurst": 2147483647, "egressRate": 100000000, "egressBurst": 67108864}
	of := func(more conf) conf { return h.routed(conf{"capabilities": conf{"bandwidth": true}}.with(more)) }
	c := of(conf{"runtimeConfig": conf{"bandwidth": limits}, "egressRate": 5000000, "egressBurst": 1000})
	var result map[string]any
	h.must(json.Unmarshal(h.do(attach("ADD", "a", a, c)).text, &result))
	h.do(attach("ADD", "b", b, of(conf{"egressRate": 50000000})))
	ports := h.plugged("cni0")
	if p := ports["cni/net/a/eth0"]; p.RateOut != "8mbit" || p.RateIn != "100mbit:8mb" {
		t.Errorf("the port of a has the limits %s in and %s out", p.RateIn, p.RateOut)
	}
	if p := ports["cni/net/b/eth0"]; p.RateOut != "none" || p.RateIn != "50mbit" {
		t.Errorf("the port of b has the limits %s in and %s out", p.RateIn, p.RateOut)
	}
	check := attach("CHECK", "a", a, c.with(conf{"prevResult": result}))
	h.do(check)
	h.must(ping(b, "10.77.0.2"))
	server, err := a.Serve(context.Background(), ends.AnyCPU, ends.Listen{Proto: "tcp", Port: 5201}, "iperf3", "-s")
	h.must(err)
	defer server.Close()
	var told struct {
		End struct {
			Received struct {
				Bits float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	out, err := b.Output(context.Background(), ends.AnyCPU, "iperf3", "-c", "10.77.0.2", "-C", "cubic", "-t", "6", "-J")
	h.must(err)
	h.must(json.Unmarshal(out, &told))
	if got := told.End.Received.Bits / 8e6; got < 0.9 || got > 1.02 {
		t.Errorf("a gets %.3f of its limit", got)
	}
	h.Bascule("port", "set", "cni0", ports["cni/net/a/eth0"].Ifname, "--rate-out", "none")
	h.refused(check, 999, "rate-out none, not 8mbit")
	h.do(attach("DEL", "a", a, c))
	h.do(attach("DEL", "b", b, of(nil)))
}

// Requests that are killed at any point leave nothing that DEL does not find.
func TestKilled(t *testing.T) {
	h := newHost(t)
	space := h.NewNamespace()
	c := h.bare(conf{"portIsolation": true})
	h.do(attach("ADD", "first", space, c))
	h.do(attach("DEL", "first", space, c))
	took := time.Now()
	h.do(attach("ADD", "first", space, c))
	usual := time.Since(took)
	h.do(attach("DEL", "first", space, c))
	before, err := h.Objects()
	h.must(err)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	killed, done := 0, 0
	for i := range netlab.Third(*pairs) {
		name := fmt.Sprint("k", i)
		cmd := h.process(attach([]string{"ADD", "DEL"}[i%2], name, space, c))
		if i%2 == 1 {
			h.do(attach("ADD", name, space, c))
		}
		h.must(cmd.Start())
		// The time is random: the result must be right at each moment.
		time.Sleep(time.Duration(r.Int64N(int64(usual) * 5 / 4)))
		_ = cmd.Process.Kill()
		if cmd.Wait() != nil {
			killed++
		} else {
			done++
		}
		del := attach("DEL", name, space, c)
		if i%4 > 1 {
			del.space = nil
		}
		h.do(del)
		if n := len(h.Ports("cni0")); n != 0 {
			t.Fatalf("kill %d (%d were killed, seed %d): %d ports are left", i, killed, seed, n)
		}
		if left := slices.Concat(devices(t, space), devices(t, h.Switch)); len(left) != 2 {
			t.Fatalf("kill %d (%d were killed, seed %d): devices %v are left", i, killed, seed, left)
		}
	}
	t.Logf("%d of %d requests were killed", killed, killed+done)
	// The kernel frees objects a moment after their last use.
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		after, err := h.Objects()
		h.must(err)
		if len(after.Maps) == len(before.Maps) && len(after.Programs) == len(before.Programs) && len(after.Links) == len(before.Links) {
			return
		}
		if time.Now().After(deadline) {
			out, _ := exec.Command("find", "/run/bascule").Output()
			t.Fatalf("the switch has %v, and had %v\n%s", after, before, out)
		}
	}
}

// DEL completes a change that a killed command has begun, even if its own port has gone.
func TestDelMends(t *testing.T) {
	h := newHost(t)
	c := h.bare(nil)
	h.do(attach("ADD", "first", h.NewNamespace(), c))
	dirty := func() (dirty bool) {
		h.must(h.Switch.Do(func() error {
			store, err := datapath.OpenStore()
			if err != nil {
				return err
			}
			b, err := store.Open("cni0")
			if err == nil {
				dirty = b.Dirty()
			}
			return err
		}))
		return dirty
	}
	h.must(h.Switch.Do(func() error {
		store, err := datapath.OpenStore()
		if err != nil {
			return err
		}
		b, err := store.Open("cni0")
		if err != nil {
			return err
		}
		return b.Begin()
	}))
	if !dirty() {
		t.Fatal("the bridge is as if no command was killed")
	}
	h.do(attach("DEL", "other", nil, c))
	if dirty() {
		t.Error("what a killed command left is still there")
	}
	h.do(attach("DEL", "first", nil, c))
}

// GC removes the ports without a valid attachment, also the ports of a killed ADD, and none of another
// network.
func TestGC(t *testing.T) {
	h := newHost(t)
	spaces := map[string]*ends.Namespace{}
	c := h.bare(nil)
	for _, name := range []string{"stays", "goes", "away"} {
		spaces[name] = h.NewNamespace()
		h.do(attach("ADD", name, spaces[name], c))
	}
	other := h.NewNamespace()
	h.do(attach("ADD", "goes", other, h.bare(conf{"name": "net2"})))
	h.Bascule("unplug", "cni/net/away/eth0") // its device exists, as if it had never been plugged
	h.do(call{command: "GC", conf: c.with(conf{"cni.dev/valid-attachments": []conf{{"containerID": "stays", "ifname": "eth0"}}})})
	if got := slices.Sorted(keys(h.plugged("cni0"))); !slices.Equal(got, []string{"cni/net/stays/eth0", "cni/net2/goes/eth0"}) {
		t.Errorf("after GC there are %v", got)
	}
	for name, left := range map[string]int{"stays": 2, "goes": 1, "away": 1} {
		if list := devices(t, spaces[name]); len(list) != left {
			t.Errorf("%s has the devices %v", name, list)
		}
	}
	h.do(call{command: "GC", conf: c})
	h.do(call{command: "GC", conf: h.bare(conf{"name": "net2"})})
	if n := len(h.Ports("cni0")); n != 0 {
		t.Errorf("%d ports are left", n)
	}
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// STATUS reports whether ADD is possible.
func TestStatus(t *testing.T) {
	h := newHost(t)
	status := func(more conf) call { return call{command: "STATUS", conf: h.bare(more)} }
	h.do(status(nil)) // ADD makes the bridge
	h.Bascule("bridge", "add", "cni0")
	h.do(status(nil))
	h.refused(status(conf{"vlan": 10}), 50, "does not filter VLANs")
	if _, err := h.Run("bridge", "set", "cni0", "--stp", "rstp"); err != nil { // it warns
		t.Fatal(err)
	}
	h.refused(status(nil), 51, "no agent runs")
	h.Bascule("bridge", "del", "cni0")
	if h.bridges() != nil {
		t.Error("STATUS makes a bridge")
	}
}

// CHECK finds differences to the result of ADD.
func TestCheck(t *testing.T) {
	h := newHost(t)
	space := h.NewNamespace()
	c := h.routed(conf{"isDefaultGateway": true, "sourceGuard": true})
	a := h.do(attach("ADD", "a", space, c))
	var prev map[string]any
	h.must(json.Unmarshal(a.text, &prev))
	check := attach("CHECK", "a", space, c.with(conf{"prevResult": prev}))
	h.do(check)
	port := h.plugged("cni0")["cni/net/a/eth0"].Ifname
	h.Bascule("port", "set", "cni0", port, "--source-guard=off")
	h.refused(check, 999, "source-guard off")
	h.Bascule("port", "set", "cni0", port, "--source-guard")
	h.do(check)
	link := mustLink(t, space, "eth0")
	h.must(space.Netlink().RouteDel(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: []byte{10, 77, 0, 1}}))
	h.refused(check, 999, "no route")
	address, err := netlink.ParseAddr("10.77.0.2/16")
	h.must(err)
	h.must(space.Netlink().AddrDel(link, address))
	h.refused(check, 999, "10.77.0.2/16")
	h.Bascule("unplug", "cni/net/a/eth0")
	h.refused(check, 999, "is not on bridge cni0")
	h.do(attach("DEL", "a", space, c))
}

// CHECK notices if a thing that ADD has made for the container or its network has gone or was
// replaced.
func TestCheckAll(t *testing.T) {
	h := newHost(t)
	copies := h.NewEnds(1)[0].Port
	h.Bascule("bridge", "add", "cni0", "--vlan-filtering")
	h.Bascule("span", "add", "cni0", copies)
	space := h.space()
	c := h.routed(conf{"vlan": 10, "vlanTrunk": []conf{{"id": 20}}, "isDefaultGateway": true, "sourceGuard": true, "macspoofchk": true,
		"pf": "block in proto udp to port 67", "mirror": copies})
	var prev map[string]any
	h.must(json.Unmarshal(h.do(attach("ADD", "a", space, c)).text, &prev))
	check := attach("CHECK", "a", space, c.with(conf{"prevResult": prev}))
	port := h.plugged("cni0")["cni/net/a/eth0"].Ifname
	gateway := mustLink(t, h.Switch, "cni0.10")
	mac, address := mustLink(t, space, "eth0").Attrs().HardwareAddr.String(), gateway.Attrs().HardwareAddr
	first := parsed(t, "10.77.0.1/16")
	kernel := h.Switch.Netlink()
	bascule := func(args ...string) func() error {
		return func() error {
			h.Bascule(args...)
			return nil
		}
	}
	for _, c := range []struct {
		breaks, mends func() error
		word          string
	}{
		{bascule("vlan", "del", "cni0", port, "20"), bascule("vlan", "add", "cni0", port, "20"), "is not in VLAN 20"},
		{bascule("vlan", "add", "cni0", port, "1"), bascule("vlan", "del", "cni0", port, "1"), "is in VLAN 1"},
		{bascule("vlan", "add", "cni0", port, "20", "--untagged"), bascule("vlan", "add", "cni0", port, "20"),
			"is in VLAN 20 without a tag on outgoing frames only, not with a tag"},
		{bascule("vlan", "add", "cni0", "cni0.10", "30"), bascule("vlan", "del", "cni0", "cni0.10", "30"), "the gateway: port cni0.10 of bridge cni0 is in VLAN 30"},
		{bascule("binding", "del", "cni0", "10.77.0.2", "--vlan", "10"), bascule("binding", "add", "cni0", port, mac, "10.77.0.2", "--vlan", "10"),
			"does not have 10.77.0.2 bound to " + mac},
		{bascule("fdb", "del", "cni0", mac, "--vlan", "10"), bascule("fdb", "add", "cni0", mac, port, "--vlan", "10"), "has no static entry of " + mac},
		{bascule("span", "del", "cni0", copies), bascule("span", "add", "cni0", copies), "has no copies of its frames sent to " + copies},
		{bascule("port", "set", "cni0", port, "--isolated"), bascule("port", "set", "cni0", port, "--isolated=off"), "has isolated on, not off"},
		{func() error { return kernel.AddrDel(gateway, first) }, func() error { return kernel.AddrAdd(gateway, first) }, "cni0.10 does not have the address 10.77.0.1/16"},
		{func() error { return kernel.LinkSetHardwareAddr(gateway, []byte{2, 0, 0, 0, 0, 0x99}) },
			func() error { return kernel.LinkSetHardwareAddr(gateway, address) }, "cni0.10 has the MAC 02:00:00:00:00:99, not " + address.String()},
	} {
		h.do(check) // everything is restored
		h.must(c.breaks())
		h.refused(check, 999, c.word)
		h.must(c.mends())
	}
	forced := func(args ...string) { // it warns
		if _, err := h.Run(args...); err != nil {
			t.Fatal(err)
		}
	}
	h.Bascule("port", "set", "cni0", "cni0.10", "--isolated") // the network does not set it
	h.do(check)
	const rules = "plug/cni%2Fnet%2Fa%2Feth0"
	forced("pfctl", "-b", "cni0", "-d", "--force")
	h.refused(check, 999, "pf of bridge cni0 is disabled")
	forced("pfctl", "-b", "cni0", "-e")
	h.Bascule("vlan", "del", "cni0", "cni0.10", "10")
	h.refused(check, 999, "the gateway: port cni0.10 of bridge cni0 is not in VLAN 10")
	forced("pfctl", "-b", "cni0", "-a", rules, "-F", "rules", "--force")
	h.refused(check, 999, "rules "+rules)
	c = c.with(conf{"pf": ""})
	check.conf = c.with(conf{"prevResult": prev})
	forced("port", "del", "cni0", "cni0.10")
	h.refused(check, 999, "the gateway: cni-gateway/cni0.10 is not on bridge cni0")
	h.do(attach("DEL", "a", space, c))
	h.Bascule("bridge", "del", "cni0")
}

// A Linux bridge with the network's name, and its containers, are not replaced by an empty bridge of
// the switch, with any front door.
func TestLinuxBridge(t *testing.T) {
	needs(t, reference+"/bridge")
	h := newHost(t)
	a, b := h.space(), h.space()
	c := h.routed(nil)
	gateway := c.with(conf{"isDefaultGateway": true})
	add := attach("ADD", "a", a, gateway)
	add.plugin = "bridge"
	h.do(add)
	const word = "cni0 is a Linux bridge"
	h.refused(attach("ADD", "b", b, c), 7, word, "ip link del cni0")
	h.refused(call{command: "STATUS", conf: h.bare(nil)}, 50, word)
	if _, err := h.asks(`{"name":"w","id":"1","options":{"bridge":"cni0"}}`, "create"); err == nil || !strings.Contains(err.Error(), word) {
		t.Errorf("create of Podman: %v", err)
	}
	if _, err := h.asks(request(t, map[string]any{"network.network_interface": "cni0"}), "setup", path(b)); err == nil || !strings.Contains(err.Error(), word) {
		t.Errorf("setup of Podman: %v", err)
	}
	if got := h.bridges(); len(got) > 0 || len(devices(t, b)) != 1 {
		t.Errorf("there are the bridges %v, and the container has %v", got, devices(t, b))
	}
	// The steps of docs/containers.md.
	add.command, add.plugin = "DEL", ""
	h.do(add) // as the runtime does, whose file has the new type by now
	h.must(h.Switch.Netlink().LinkDel(mustLink(t, h.Switch, "cni0")))
	h.must(a.Netlink().LinkDel(mustLink(t, a, "eth0"))) // with the container's namespace
	h.do(attach("ADD", "b", b, gateway))
	h.must(ping(b, "10.77.0.1"))
	h.do(attach("DEL", "b", b, gateway))
	h.Keep("cni0")
}

// A container's addresses can be used after ADD. A neighbour that had another station for one of
// them learns the new one at once. Neither waits for a timer of the neighbour.
func TestAnnounced(t *testing.T) {
	h := newHost(t)
	other := h.space()
	h.do(attach("ADD", "other", other, h.routed(nil)))
	for name, more := range map[string]conf{"at once": nil, "after detection": {"enabledad": true}} {
		static := conf{"type": "static", "addresses": []conf{{"address": "10.77.9.9/16"}, {"address": "fd77::9:9/64"}}}
		c := h.routed(conf{"name": "static", "ipam": static}.with(more))
		for i := range 2 {
			space := h.space()
			container := fmt.Sprint(i)
			h.do(attach("ADD", container, space, c))
			mac := mustLink(t, space, "eth0").Attrs().HardwareAddr.String()
			usable, err := space.Netlink().AddrList(mustLink(t, space, "eth0"), netlink.FAMILY_V6)
			h.must(err)
			for _, a := range usable {
				if a.Flags&unix.IFA_F_TENTATIVE != 0 {
					t.Errorf("%s: ADD answers while %s is tentative", name, a.IP)
				}
			}
			if i == 0 { // this neighbour has the entry from now on
				h.must(ping(other, "10.77.9.9"))
				h.must(ping(other, "fd77::9:9"))
				h.do(attach("DEL", container, space, c))
				continue
			}
			// The neighbour sends no request itself: it has sent nothing since then.
			for ip, family := range map[string]int{"10.77.9.9": netlink.FAMILY_V4, "fd77::9:9": netlink.FAMILY_V6} {
				h.Wait(name+": the neighbour to know the new station of "+ip, func() bool {
					list, err := other.Netlink().NeighList(mustLink(t, other, "eth0").Attrs().Index, family)
					h.must(err)
					return slices.ContainsFunc(list, func(n netlink.Neigh) bool { return n.IP.Equal(net.ParseIP(ip)) && n.HardwareAddr.String() == mac })
				})
			}
			h.do(attach("DEL", container, space, c))
		}
	}
	// An address of another station cannot be used.
	taken := h.space()
	h.must(other.Netlink().AddrAdd(mustLink(t, other, "eth0"), parsed(t, "fd77::9:9/64")))
	h.Wait("the other station to have the address", func() bool { return ping(other, "fd77::9:9") == nil })
	h.refused(attach("ADD", "taken", taken, h.routed(conf{"name": "static", "enabledad": true,
		"ipam": conf{"type": "static", "addresses": []conf{{"address": "fd77::9:9/64"}}}})), 999, "another station has it")
	if left := devices(t, taken); len(left) != 1 {
		t.Errorf("the container has %v", left)
	}
	h.do(attach("DEL", "other", other, h.routed(nil)))
}

func parsed(t testing.TB, address string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(address)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// cnitool, from the authors of the specification, runs the plugin as runtimes do.
func TestCnitool(t *testing.T) {
	h := newHost(t)
	tool := filepath.Join(t.TempDir(), "cnitool")
	if out, err := exec.Command("go", "build", "-o", tool, "github.com/containernetworking/cni/cnitool").CombinedOutput(); err != nil {
		t.Fatalf("build cnitool: %v: %s", err, out)
	}
	dir := t.TempDir()
	list, err := json.Marshal(conf{"cniVersion": "1.1.0", "name": "listed", "plugins": []conf{{"type": "bascule-cni", "portIsolation": true}}})
	h.must(err)
	h.must(os.WriteFile(filepath.Join(dir, "10-listed.conflist"), list, 0o600))
	space := h.NewNamespace()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("nsenter", append([]string{"--net=" + path(h.Switch), tool}, args...)...)
		cmd.Env = append(os.Environ(), "NETCONFPATH="+dir, "CNI_PATH="+h.path)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("cnitool %v: %v: %s", args, err, out)
		}
		return string(out)
	}
	run("status", "listed", path(space))
	run("add", "listed", path(space))
	run("check", "listed", path(space))
	if n := len(h.plugged("cni0")); n != 1 {
		t.Errorf("%d ports, should be 1", n)
	}
	run("gc", "listed", path(space)) // without a list of valid attachments
	if n := len(h.plugged("cni0")); n != 0 {
		t.Errorf("%d ports after GC, should be none", n)
	}
	run("del", "listed", path(space))
	run("del", "listed", path(space))
	if n := len(h.Ports("cni0")); n != 0 {
		t.Errorf("%d ports are left", n)
	}
}

// The reference plugin `bandwidth`, chained after ours, limits the traffic to a container as it does
// with the reference bridge plugin: TCP at 8 Mbit/s.
func TestBandwidthPlugin(t *testing.T) {
	needs(t, reference+"/bridge", reference+"/bandwidth", reference+"/static")
	tool := filepath.Join(t.TempDir(), "cnitool")
	if out, err := exec.Command("go", "build", "-o", tool, "github.com/containernetworking/cni/cnitool").CombinedOutput(); err != nil {
		t.Fatalf("build cnitool: %v: %s", err, out)
	}
	for _, plugin := range []string{"bridge", "bascule-cni"} {
		t.Run(plugin, func(t *testing.T) {
			h := newHost(t)
			if plugin == "bridge" {
				h.Keep("cni0")
			}
			dir := t.TempDir()
			spaces := map[string]*ends.Namespace{"limited": h.NewNamespace(), "free": h.NewNamespace()}
			addresses := map[string]string{"limited": "10.9.0.2", "free": "10.9.0.3"}
			run := func(name, command string) {
				t.Helper()
				cmd := exec.Command("nsenter", "--net="+path(h.Switch), tool, command, name, path(spaces[name]))
				cmd.Env = append(os.Environ(), "NETCONFPATH="+dir, "CNI_PATH="+h.path+":"+reference)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("cnitool %s %s: %v: %s", command, name, err, out)
				}
			}
			for name, address := range addresses {
				plugins := []conf{{"type": plugin, "bridge": "cni0", "ipam": conf{"type": "static", "addresses": []conf{{"address": address + "/24"}}}}}
				if name == "limited" {
					plugins = append(plugins, conf{"type": "bandwidth", "ingressRate": 8000000, "ingressBurst": 8 * 64 << 10})
				}
				list, err := json.Marshal(conf{"cniVersion": "1.0.0", "name": name, "plugins": plugins})
				h.must(err)
				h.must(os.WriteFile(filepath.Join(dir, name+".conflist"), list, 0o600))
				run(name, "add")
				defer run(name, "del")
			}
			h.must(ping(spaces["free"], addresses["limited"]))
			if plugin != "bridge" {
				h.Wait("the switch to have seen the plugin's queue", func() bool {
					return slices.ContainsFunc(h.Ports("cni0"), func(p netlab.PortInfo) bool { return slices.Equal(p.Egress, []string{"qdisc"}) })
				})
			}
			server := exec.Command("nsenter", "--net="+path(spaces["limited"]), "iperf3", "-s", "-1", "--forceflush")
			stdout, err := server.StdoutPipe()
			h.must(err)
			h.must(server.Start())
			defer server.Wait()
			defer server.Process.Kill()
			if _, err := stdout.Read(make([]byte, 1<<10)); err != nil { // it prints a line when it listens
				t.Fatal(err)
			}
			out, err := exec.Command("nsenter", "--net="+path(spaces["free"]), "iperf3", "-C", "cubic", "-c", addresses["limited"], "-t", "3", "-J").Output()
			if err != nil {
				t.Fatalf("iperf3: %v: %s", err, out)
			}
			var report struct {
				End struct {
					Received struct {
						Rate float64 `json:"bits_per_second"`
					} `json:"sum_received"`
				}
			}
			h.must(json.Unmarshal(out, &report))
			t.Logf("%.2f Mbit/s of 8", report.End.Received.Rate/1e6)
			if rate := report.End.Received.Rate / 1e6; rate < 5 || rate > 8.6 {
				t.Errorf("%.2f Mbit/s of 8", rate)
			}
		})
	}
}
