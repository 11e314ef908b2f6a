// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
)

// pluginsVersion is the version of the reference plugins with which ours is compared.
const pluginsVersion = "v1.10.0"

// built builds reference plugins, which are newer than Debian's, and returns their folder.
func built(t testing.TB, names ...string) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"install"}
	for _, name := range names {
		args = append(args, "github.com/containernetworking/plugins/plugins/"+name+"@"+pluginsVersion)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "GOBIN="+dir, "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Skipf("the reference plugins cannot be built: %v: %s", err, out)
	}
	return dir
}

// differences are the differences between the reference plugin and ours, by their rows in
// docs/containers.md. The comparison below cannot see a row without a pattern: another test covers
// it.
var differences = []difference{
	{row: "`mtu` of interfaces in the answer", seen: regexp.MustCompile(`^answer eth\d interfaces \d mtu$`)},
	{row: "the host's interface", seen: regexp.MustCompile(`^host interface$`)},
	{row: "`preserveDefaultVlan` at the gateway", seen: regexp.MustCompile(`^gateway VLAN 1$`), of: "vlan, preserveDefaultVlan"},
	{row: "`accept_ra` at the gateway of `vlan`", seen: regexp.MustCompile(`^host ipv6/conf/cni0\.100/accept_ra$`), of: "vlan"},
	{row: "announcements of IPv6", seen: regexp.MustCompile(`^eth\d net/ipv6/conf/IF/ndisc_notify$`)},
	{row: "`mtu`, `advmss` of a route", seen: regexp.MustCompile(`^route 192\.0\.2\.128/25 `)},
	{row: "`vlan` in `vlanTrunk`", seen: regexp.MustCompile(`^refused eth0$`), of: "vlan in vlanTrunk"},
	{row: "a misspelt key", by: "TestBadInput"},
	{row: "`ipMasq`", by: "TestMasquerade"},
	{row: "a Linux bridge of the name", by: "TestLinuxBridge"},
	{row: "DEL without a namespace", by: "TestAgain"},
	{row: "GC", by: "TestGC"},
	// The reference looks for routes only in the main table.
	{row: "CHECK", seen: regexp.MustCompile(`^CHECK eth\d$`), by: "TestCheckAll"},
}

type difference struct {
	row  string
	seen *regexp.Regexp // pattern of the observation's name
	of   string         // prefix of the variants that show it, if not every kernel supports them
	by   string         // the test that covers it
}

// A side is a host with one of the plugins.
type side struct {
	*host
	plugin string // "" for ours
}

// A variant is a container's configuration: networks of eth0, eth1, ...
type variant struct {
	nets     []conf
	isolated bool // two containers cannot reach each other
}

// Each key and each default of the reference plugin is given to it and to ours, in two versions of
// the specification. All results are the same, except for the rows of docs/containers.md.
func TestBesideReference(t *testing.T) {
	needs(t, "nft", "ping")
	dir := built(t, "main/bridge", "ipam/host-local", "ipam/static")
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "containers.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{} // rows of the docs, and whether they were seen
	_, table, _ := strings.Cut(string(text), "\n### Beside the reference plugin\n")
	table, _, _ = strings.Cut(table, "\n#")
	for line := range strings.Lines(table) {
		if cells := strings.Split(line, " | "); len(cells) == 3 && cells[0] != "| what" {
			rows[strings.TrimPrefix(cells[0], "| ")] = false
		}
	}
	for _, d := range differences {
		if _, is := rows[d.row]; !is {
			t.Errorf("docs/containers.md has no row %q", d.row)
		}
		rows[d.row] = d.by != ""
	}
	one := func(c conf) variant { return variant{nets: []conf{c}} }
	ranges := func(n int) conf {
		return conf{"type": "host-local", "ranges": [][]conf{{{"subnet": fmt.Sprintf("10.%d.0.0/16", n)}}, {{"subnet": fmt.Sprintf("fd%02d::/64", n)}}}}
	}
	variants := map[string]variant{
		"nothing":                              one(conf{}),
		"a bridge of another name":             one(conf{"bridge": "other0", "isGateway": true}),
		"isGateway":                            one(conf{"isGateway": true}),
		"isDefaultGateway":                     one(conf{"isDefaultGateway": true}),
		"forceAddress":                         one(conf{"isGateway": true, "forceAddress": true}),
		"mtu":                                  one(conf{"isGateway": true, "mtu": 1400}),
		"hairpinMode":                          one(conf{"isGateway": true, "hairpinMode": true}),
		"promiscMode":                          one(conf{"isGateway": true, "promiscMode": true}),
		"hairpinMode and promiscMode":          one(conf{"hairpinMode": true, "promiscMode": true}),
		"vlan":                                 one(conf{"vlan": 100, "isDefaultGateway": true}),
		"vlan of 0":                            one(conf{"vlan": 0, "isGateway": true}),
		"a wrong vlan":                         one(conf{"vlan": 4095}),
		"vlan, preserveDefaultVlan":            one(conf{"vlan": 100, "preserveDefaultVlan": true, "isGateway": true}),
		"vlanTrunk":                            one(conf{"vlanTrunk": []conf{{"id": 101}, {"minID": 200, "maxID": 203}}, "isDefaultGateway": true}),
		"vlanTrunk, preserveDefaultVlan":       one(conf{"vlanTrunk": []conf{{"id": 101}}, "preserveDefaultVlan": true}),
		"vlanTrunk with 1":                     one(conf{"vlanTrunk": []conf{{"id": 1}, {"id": 2}}}),
		"an empty vlanTrunk":                   one(conf{"vlanTrunk": []conf{}}),
		"half a range":                         one(conf{"vlanTrunk": []conf{{"minID": 5}}}),
		"vlan and vlanTrunk":                   one(conf{"vlan": 100, "vlanTrunk": []conf{{"id": 101}}, "isGateway": true}),
		"vlan, vlanTrunk, preserveDefaultVlan": one(conf{"vlan": 100, "vlanTrunk": []conf{{"id": 101}}, "preserveDefaultVlan": true}),
		"vlan in vlanTrunk":                    one(conf{"vlan": 100, "vlanTrunk": []conf{{"id": 100}}}),
		"macspoofchk":                          one(conf{"macspoofchk": true, "isGateway": true}),
		"enabledad":                            one(conf{"enabledad": true, "isGateway": true}),
		"disableContainerInterface":            one(conf{"ipam": nil, "disableContainerInterface": true}),
		"disableContainerInterface, ipam":      one(conf{"disableContainerInterface": true}),
		"portIsolation":                        {nets: []conf{{"portIsolation": true, "isGateway": true}}, isolated: true},
		"without ipam":                         one(conf{"ipam": nil, "isGateway": true}),
		"mac of args":                          one(conf{"args": conf{"cni": conf{"mac": "02:00:00:00:00:77"}}}),
		"mac of runtimeConfig":                 one(conf{"runtimeConfig": conf{"mac": "02:00:00:00:00:78"}, "args": conf{"cni": conf{"mac": "02:00:00:00:00:77"}}}),
		"a wrong mac":                          one(conf{"runtimeConfig": conf{"mac": "x"}}),
		"dns":                                  one(conf{"dns": conf{"nameservers": []string{"192.0.2.53"}, "domain": "example.org", "search": []string{"a", "b"}}}),
		"routes": one(conf{"isGateway": true, "ipam": conf{"type": "static",
			"addresses": []conf{{"address": "10.60.0.9/16", "gateway": "10.60.0.1"}, {"address": "fd60::9/64", "gateway": "fd60::1"}},
			"routes": []conf{{"dst": "192.0.2.0/25"}, {"dst": "192.0.2.128/25", "gw": "10.60.0.3", "mtu": 1300, "advmss": 1200, "priority": 7},
				{"dst": "198.51.100.0/24", "gw": "10.60.0.3", "table": 77}, {"dst": "2001:db8::/32"}, {"dst": "2001:db8:1::/48", "gw": "fd60::3", "priority": 9}},
			"dns": conf{"nameservers": []string{"192.0.2.54"}}}}),
		"a default route of ipam": one(conf{"isDefaultGateway": true, "ipam": conf{"type": "static", "addresses": []conf{{"address": "10.61.0.9/16", "gateway": "10.61.0.1"}},
			"routes": []conf{{"dst": "0.0.0.0/0", "gw": "10.61.0.7"}}}}),
		"two addresses":        one(conf{"ipam": conf{"type": "static", "addresses": []conf{{"address": "10.62.0.9/16"}, {"address": "10.63.0.9/16"}, {"address": "fd62::9/64"}, {"address": "fd63::9/64"}}}}),
		"no ipam by that name": one(conf{"ipam": conf{"type": "nothing"}}),
		"two networks":         {nets: []conf{{"bridge": "one0", "isGateway": true, "ipam": ranges(51)}, {"bridge": "two0", "ipam": ranges(52)}}},
		"two default gateways": {nets: []conf{{"bridge": "one0", "isDefaultGateway": true, "ipam": ranges(51)},
			{"bridge": "two0", "isDefaultGateway": true, "ipam": ranges(52)}}},
	}
	var mu sync.Mutex // protects rows
	t.Run("all", func(t *testing.T) {
		for _, version := range []string{"0.4.0", "1.1.0"} {
			for name, v := range variants {
				t.Run(version+"/"+name, func(t *testing.T) {
					t.Parallel()
					var seen []map[string]string
					for _, plugin := range []string{"bridge", ""} {
						s := side{newHost(t), plugin}
						s.plugins = dir
						seen = append(seen, s.observe(version, v))
						if why := seen[0]["why"]; strings.Contains(why, "not supported") {
							mu.Lock()
							defer mu.Unlock()
							for _, d := range differences {
								rows[d.row] = rows[d.row] || d.of != "" && strings.HasPrefix(name, d.of)
							}
							t.Skipf("this kernel's bridge lacks something: %s", why)
						}
					}
					mu.Lock()
					defer mu.Unlock()
					compare(t, name, seen[0], seen[1], rows)
				})
			}
		}
	})
	for row, seen := range rows {
		if !seen {
			t.Errorf("docs/containers.md has the row %q, and nothing differs so", row)
		}
	}
}

// compare fails for differences without a row, and marks the rows that it sees.
func compare(t *testing.T, name string, theirs, ours map[string]string, rows map[string]bool) {
	if is, was := ours["refused eth0"], theirs["refused eth0"]; is != was || is == "yes" {
		theirs, ours = map[string]string{"refused eth0": was}, map[string]string{"refused eth0": is}
	}
	all := maps.Clone(theirs)
	maps.Copy(all, ours)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		was, is := cmp.Or(theirs[key], "nothing"), cmp.Or(ours[key], "nothing")
		i := slices.IndexFunc(differences, func(d difference) bool {
			return d.seen != nil && d.seen.MatchString(key) && strings.HasPrefix(name, d.of)
		})
		switch {
		case strings.HasPrefix(key, "CHECK ") && is != "nothing":
			t.Errorf("%s: %s", key, is)
		case was == is:
		case i < 0:
			t.Errorf("%s: the reference plugin has %q, and bascule %q", key, was, is)
		default:
			rows[differences[i].row] = true
		}
	}
}

// observe runs a container and one more with a variant, and returns all results.
func (s side) observe(version string, v variant) map[string]string {
	t, seen := s.t, map[string]string{}
	t.Helper()
	a, b := s.space(), s.space()
	requests := func(command, container string, space *ends.Namespace) (list []call) {
		for i, more := range v.nets {
			c := conf{"cniVersion": version, "name": fmt.Sprint("net", i), "type": "bascule-cni", "ipam": conf{"type": "host-local",
				"ranges": [][]conf{{{"subnet": "10.50.0.0/16"}}, {{"subnet": "fd50::/64"}}}}}.with(more)
			ipam, _ := c["ipam"].(conf)
			if ipam != nil {
				c["ipam"] = ipam.with(conf{"dataDir": s.data})
			} else {
				delete(c, "ipam")
			}
			list = append(list, call{plugin: s.plugin, command: command, container: container, ifname: fmt.Sprint("eth", i), space: space, conf: c})
		}
		return list
	}
	for _, add := range requests("ADD", "a", a) {
		answer, err := s.try(add)
		s.must(err)
		if answer.exit != 0 {
			seen["refused "+add.ifname], seen["why"] = "yes", answer.Msg
			t.Logf("%s is refused: %s", cmp.Or(s.plugin, "bascule"), answer.Msg)
			break
		}
		seen["refused "+add.ifname] = "no"
		var result map[string]any
		s.must(json.Unmarshal(answer.text, &result))
		flatten(seen, "answer "+add.ifname, result)
		s.port(seen, add, result)
		s.inside(seen, a, add.ifname)
		s.gateway(seen, add.conf.(conf))
		check := add
		check.command, check.conf = "CHECK", add.conf.(conf).with(conf{"prevResult": result})
		answer, err = s.try(check)
		s.must(err)
		seen["CHECK "+add.ifname] = answer.Msg
	}
	if seen["refused eth0"] == "no" && v.nets[0]["ipam"] == nil && seen["answer eth0 ips 0 address"] != "" && seen["answer eth0 interfaces 2 mac"] == "X" {
		for _, add := range requests("ADD", "b", b) {
			s.do(add)
		}
		patience := "30"
		if v.isolated {
			patience = "1"
		}
		for key, to := range seen {
			if strings.HasPrefix(key, "answer eth0 ips ") && strings.HasSuffix(key, " address") {
				to, _, _ = strings.Cut(to, "/")
				seen["reached "+to] = fmt.Sprint(pingFor(b, to, patience) == nil)
			}
			if strings.HasPrefix(key, "answer eth0 ips ") && strings.HasSuffix(key, " gateway") && s.isGateway(v.nets[0]) {
				seen["reached "+to] = fmt.Sprint(pingFor(b, to, "30") == nil)
			}
		}
		for _, del := range requests("DEL", "b", b) {
			s.do(del)
		}
	}
	for _, del := range slices.Backward(requests("DEL", "a", a)) {
		if answer, err := s.try(del); err != nil || answer.exit != 0 && seen["refused eth0"] == "no" {
			t.Errorf("DEL: %v: %v", err, answer.Msg)
		}
	}
	if left := devices(t, a); len(left) != 1 {
		t.Errorf("the container has %v after DEL", left)
	}
	for _, d := range devices(t, s.Switch) { // The gateway, and the reference plugin's bridge.
		s.Keep(d)
	}
	return seen
}

func (s side) isGateway(c conf) bool { return c["isGateway"] == true || c["isDefaultGateway"] == true }

// flatten records each value of JSON, by its path.
func flatten(seen map[string]string, place string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for k, v := range value {
			flatten(seen, place+" "+k, v)
		}
	case []any:
		for i, v := range value {
			flatten(seen, fmt.Sprint(place, " ", i), v)
		}
	default:
		text := fmt.Sprint(value)
		if !strings.HasPrefix(text, "02:00:00:00:00:") {
			text = random.ReplaceAllString(text, "X")
		}
		seen[place] = text
	}
}

// port records the state of the container's port.
func (s side) port(seen map[string]string, add call, result map[string]any) {
	interfaces := result["interfaces"].([]any)
	name := interfaces[1].(map[string]any)["name"].(string)
	bridge := interfaces[0].(map[string]any)["name"].(string)
	at := "port of " + add.ifname
	if s.plugin == "" {
		p := s.Port(bridge, name)
		seen[at+" hairpin"], seen[at+" isolated"] = fmt.Sprint(p.Hairpin), fmt.Sprint(p.Isolated)
	} else {
		info, err := s.Switch.Netlink().LinkGetProtinfo(mustLink(s.t, s.Switch, name))
		s.must(err)
		seen[at+" hairpin"], seen[at+" isolated"] = fmt.Sprint(info.Hairpin), fmt.Sprint(info.Isolated)
	}
	s.vlans(seen, at, bridge, name)
	if gateway := interfaces[len(interfaces)-1].(map[string]any)["name"].(string); strings.HasPrefix(gateway, bridge+".") {
		on := gateway
		if s.plugin != "" { // it has a veth instead of a host port
			l, err := s.Switch.Netlink().LinkByIndex(mustLink(s.t, s.Switch, gateway).Attrs().ParentIndex)
			s.must(err)
			on = l.Attrs().Name
		}
		s.vlans(seen, "gateway", bridge, on)
	}
}

// vlans records the VLANs of a port, if the bridge filters.
func (s side) vlans(seen map[string]string, at, bridge, port string) {
	var list []struct {
		Ifname string
		VLANs  []struct {
			VLAN, VLANEnd int
			Flags         []string
		}
	}
	if s.plugin == "" {
		if s.Bridge(bridge).VLANFiltering {
			s.JSON(&list, "vlan", "show", bridge, port)
		}
	} else {
		l := mustLink(s.t, s.Switch, bridge)
		if f := l.(*netlink.Bridge).VlanFiltering; f == nil || !*f {
			return
		}
		out, err := exec.Command("nsenter", "--net="+path(s.Switch), "bridge", "-j", "vlan", "show", "dev", port).Output()
		s.must(err)
		s.must(json.Unmarshal(out, &list))
	}
	for _, p := range list {
		for _, r := range p.VLANs {
			for id := r.VLAN; id <= max(r.VLAN, r.VLANEnd); id++ {
				slices.Sort(r.Flags)
				seen[fmt.Sprintf("%s VLAN %d", at, id)] = fmt.Sprint(r.Flags)
			}
		}
	}
}

// inside records the state of the container.
func (s side) inside(seen map[string]string, space *ends.Namespace, ifname string) {
	link := mustLink(s.t, space, ifname)
	seen[ifname+" mtu"], seen[ifname+" flags"] = fmt.Sprint(link.Attrs().MTU), link.Attrs().Flags.String()
	mac := link.Attrs().HardwareAddr.String()
	if !strings.HasPrefix(mac, "02:00:00:00:00:") {
		mac = "random"
	}
	seen[ifname+" mac"] = mac
	addresses, err := space.Netlink().AddrList(link, netlink.FAMILY_ALL)
	s.must(err)
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() {
			seen[ifname+" address "+a.IPNet.String()] = fmt.Sprintf("scope %d flags %x broadcast %v", a.Scope, a.Flags, a.Broadcast)
		}
	}
	out, err := exec.Command("nsenter", "--net="+path(space), "sh", "-c", "ip -4 -d route show table all; ip -6 -d route show table all").Output()
	s.must(err)
	for line := range strings.Lines(string(out)) {
		if !strings.Contains(line, "fe80::") {
			seen["route "+strings.TrimPrefix(strings.Join(strings.Fields(line), " "), "unicast ")] = "yes"
		}
	}
	s.must(space.Do(func() error {
		var errs []error
		for _, family := range []string{"ipv4", "ipv6"} {
			dir := "/proc/sys/net/" + family + "/conf/"
			files, err := os.ReadDir(dir + ifname)
			errs = append(errs, err)
			for _, f := range files {
				if f.Name() == "stable_secret" {
					continue
				}
				text, err := os.ReadFile(filepath.Join(dir, ifname, f.Name()))
				errs = append(errs, err)
				seen[ifname+" net/"+family+"/conf/IF/"+f.Name()] = strings.TrimSpace(string(text))
			}
		}
		text, err := os.ReadFile("/proc/sys/net/ipv6/conf/lo/disable_ipv6")
		seen["lo disable_ipv6"] = string(text)
		return errors.Join(append(errs, err)...)
	}))
}

// gateway records the host's interface in a network.
func (s side) gateway(seen map[string]string, c conf) {
	name, is := c["bridge"].(string)
	if !is {
		name = "cni0"
	}
	if id, is := c["vlan"].(int); is && id != 0 && s.isGateway(c) {
		name = fmt.Sprintf("%s.%d", name, id)
	}
	of := []string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"}
	host := s.isGateway(c) && c["ipam"] != nil
	if host {
		of = append(of, "ipv6/conf/"+name+"/accept_ra")
	}
	s.must(s.Switch.Do(func() error {
		for _, f := range of {
			text, err := os.ReadFile("/proc/sys/net/" + f)
			if err != nil {
				return err
			}
			seen["host "+f] = strings.TrimSpace(string(text))
		}
		return nil
	}))
	link, err := s.Switch.Netlink().LinkByName(name)
	if !host {
		seen["host interface"] = fmt.Sprint(err == nil)
		return
	}
	s.must(err)
	addresses, err := s.Switch.Netlink().AddrList(link, netlink.FAMILY_ALL)
	s.must(err)
	for _, a := range addresses {
		if !a.IP.IsLinkLocalUnicast() {
			seen["host "+name+" address "+a.IPNet.String()] = fmt.Sprintf("scope %d broadcast %v", a.Scope, a.Broadcast)
		}
	}
	seen["host "+name+" mtu"] = fmt.Sprint(link.Attrs().MTU)
	seen["host "+name+" promiscuous"] = fmt.Sprint(link.Attrs().Promisc > 0)
	seen["host "+name+" up"] = fmt.Sprint(strings.Contains(link.Attrs().Flags.String(), "up"))
}
