// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"bytes"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

// recorded returns the lines of a file in testdata: a request and its JSON each.
func recorded(t *testing.T, name string) (list [][2]string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if what, body, _ := strings.Cut(strings.TrimSpace(line), " "); what != "#" {
			list = append(list, [2]string{what, body})
		}
	}
	return list
}

// plugin prepares a run of the Podman plugin.
func (h *host) plugin(stdin string, args ...string) *exec.Cmd {
	cmd := exec.Command("nsenter", append([]string{"--net=" + path(h.Switch), filepath.Join(h.path, "bascule-netavark")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return cmd
}

// asks runs the Podman plugin. The error is the one in its output.
func (h *host) asks(stdin string, args ...string) (answer map[string]any, err error) {
	h.t.Helper()
	out, err := h.plugin(stdin, args...).Output()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		h.t.Fatal(err)
	}
	if len(out) > 0 {
		if bad := json.Unmarshal(out, &answer); bad != nil {
			h.t.Fatalf("%v: %v: %s", args, bad, out)
		}
	}
	if err == nil {
		return answer, nil
	}
	says, is := answer["error"].(string)
	if !is || len(answer) != 1 || bytes.Count(bytes.TrimSpace(out), []byte("\n")) > 0 {
		h.t.Fatalf("%v fails, and does not say why: %q", args, out)
	}
	return answer, errors.New(says)
}

func (h *host) podman(stdin string, args ...string) map[string]any {
	h.t.Helper()
	answer, err := h.asks(stdin, args...)
	if err != nil {
		h.t.Fatalf("%v: %v", args, err)
	}
	return answer
}

// at returns a value in nested objects.
func at(o any, keys ...string) any {
	for _, k := range keys {
		m, _ := o.(map[string]any)
		o = m[k]
	}
	return o
}

// Recorded requests of Podman are repeated. Stations reach each other and the host, and the
// responses are like those from Podman's own driver.
func TestPodmanRecorded(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	spaces := map[string]*ends.Namespace{}
	of := func(body string) (name string, space *ends.Namespace, all map[string]any) {
		h.must(json.Unmarshal([]byte(body), &all))
		name, _ = all["container_name"].(string)
		if name != "" && spaces[name] == nil {
			spaces[name] = h.space()
		}
		return name, spaces[name], all
	}
	plain := func(want ...string) {
		t.Helper()
		var got []string
		for _, b := range h.bridges() {
			for id, p := range h.plugged(b) {
				if p.Owner.By == "podman" && !strings.HasPrefix(id, "podman-gateway/") {
					got = append(got, p.Owner.Network+" "+p.Owner.Container[:4])
				}
			}
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("the switch has %v, should have %v", got, want)
		}
	}
	for _, r := range recorded(t, "podman.txt") {
		name, space, all := of(r[1])
		switch r[0] {
		case "create":
			made := h.podman(r[1], "create")
			if made["name"] != all["name"] || made["id"] != all["id"] || made["dns_enabled"] != false || made["network_interface"] == "" ||
				at(made, "ipam_options", "driver") == nil {
				t.Errorf("create answers %v", made)
			}
		case "setup":
			ifname := at(all, "network_options", "interface_name").(string)
			made := at(h.podman(r[1], "setup", path(space)), "interfaces", ifname)
			if mac := at(made, "mac_address"); mac != mustLink(t, space, ifname).Attrs().HardwareAddr.String() {
				t.Errorf("%s: setup answers %v", name, made)
			}
			if want := at(all, "network_options", "static_mac"); want != nil && want != at(made, "mac_address") {
				t.Errorf("%s has the MAC %v, should have %v", name, at(made, "mac_address"), want)
			}
			if _, err := h.asks(r[1], "setup", path(space)); err == nil || !strings.Contains(err.Error(), "already exists") {
				t.Errorf("setup again: %v", err)
			}
			if name == "b" {
				for _, to := range []string{"10.99.0.1", "10.99.0.2", "fd99::2", "fd99::1"} {
					h.must(ping(space, to))
				}
				plain("web 771b", "web bfed")
			}
			if name == "c" && ifname == "eth2" {
				h.must(ping(space, "10.99.0.1"))
				plain("in7 13c0", "l2 13c0", "web 13c0", "web bfed")
				if rules := h.Bascule("pfctl", "-b", "br7", "-a", "*", "-sr"); !strings.Contains(rules, "port = 67") {
					t.Errorf("the rules are %q", rules)
				}
				if mtu := mustLink(t, space, "eth0").Attrs().MTU; mtu != 1400 {
					t.Errorf("the MTU is %d, should be 1400", mtu)
				}
				if list := h.Bascule("vlan", "show", "br7"); !strings.Contains(list, "30-32") || !strings.Contains(list, "10 ") {
					t.Errorf("the VLANs are\n%s", list)
				}
			}
		case "teardown":
			for _, where := range []string{path(space), "/nowhere", path(space)} {
				if answer := h.podman(r[1], "teardown", where); answer != nil {
					t.Errorf("teardown answers %v", answer)
				}
			}
		}
	}
	plain()
	for name, space := range spaces {
		if left := devices(t, space); len(left) != 1 {
			t.Errorf("%s has the devices %v", name, left)
		}
	}
	for _, d := range devices(t, h.Switch) {
		h.Keep(d) // the host's interface in network web
		if strings.HasPrefix(d, "veth") {
			t.Errorf("%s is left", d)
		}
	}
	if info := h.podman("", "info"); info["api_version"] != "1.0.0" || info["version"] == "" {
		t.Errorf("info answers %v", info)
	}
}

// request returns a setup with changes at paths such as "network.options.vlan". The value nil
// deletes the key.
func request(t *testing.T, changes map[string]any) string {
	t.Helper()
	o := map[string]any{
		"container_id": "c1", "container_name": "c1", "port_mappings": nil,
		"network": map[string]any{"name": "web", "id": "0123456789abcdef", "driver": "bascule-netavark", "internal": false, "dns_enabled": false,
			"network_interface": "br0", "options": map[string]any{"source-guard": "on"},
			"subnets": []any{map[string]any{"subnet": "10.99.0.0/24", "gateway": "10.99.0.1"}}},
		"network_options": map[string]any{"interface_name": "eth0", "static_ips": []string{"10.99.0.5"}},
	}
	for place, value := range changes {
		keys := strings.Split(place, ".")
		in := o
		for _, k := range keys[:len(keys)-1] {
			in = in[k].(map[string]any)
		}
		in[keys[len(keys)-1]] = value
	}
	text, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// nasty are names that shells, paths and tables could misinterpret.
var nasty = []string{"../../etc/passwd", "$(touch x)", "; reboot #", "a b", "a\nb", "-rf", "..", ".", "%s%n", "a/b", "\x00", "é", strings.Repeat("x", 129), ""}

// Each mistake has one line that describes it, and nothing is changed.
func TestPodmanBadInput(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	space := h.NewNamespace()
	h.Bascule("bridge", "add", "br0")
	type wrong struct {
		stdin string
		args  []string
		word  string
	}
	setup := func(word string, changes map[string]any) wrong {
		return wrong{request(t, changes), []string{"setup", path(space)}, word}
	}
	list := []wrong{
		{"{", []string{"create"}, "unexpected end"},
		{"[]", []string{"create"}, "it is a list; give an object"},
		{`{"name":5}`, []string{"create"}, "name is a number; give a string"},
		{`{"name":"w","id":"1","options":{"source-gard":"on"}}`, []string{"create"}, "option \"source-gard\" is unknown; the nearest is source-guard"},
		{"{}", []string{"create"}, "name is missing"},
		{`{"name":"w","id":"1","options":{"vlan":"4095"}}`, []string{"create"}, "vlan"},
		{`{"name":"w","id":"1","options":{"nonsense":"1"}}`, []string{"create"}, "not a setting of a port"},
		{`{"name":"w","id":"1","options":{"pf":"blok"}}`, []string{"create"}, "pf:1"},
		{`{"name":"w","id":"1","options":{"pf":"block in on eth7"}}`, []string{"create"}, "another port"},
		{`{"name":"w","id":"1","options":{"bridge":"br0","vlan":"10"}}`, []string{"create"}, "does not filter VLANs"},
		{`{"name":"w","id":"1","options":{"bridge":"br0"},"network_interface":"br1"}`, []string{"create"}, "give one"},
		{`{"name":"w","id":"1","ipam_options":{"driver":"dhcp"}}`, []string{"create"}, "dhcp"},
		{`{"name":"w","id":"1","internal":true,"options":{"masquerade":"on"}}`, []string{"create"}, "internal"},
		{`{"name":"w","id":"1","subnets":[{"subnet":"10.0.0.0/33"}]}`, []string{"create"}, "10.0.0.0/33"},
		{`{"name":"w","id":"1","subnets":[{"subnet":"10.0.0.0/24","gateway":"10.1.0.1"}]}`, []string{"create"}, "outside it"},
		{"{}", []string{"frobnicate"}, "unknown command"},
		{"{}", []string{"setup"}, "path"},
		{"{", []string{"setup", path(space)}, "unexpected end"},
		{"{", []string{"teardown", path(space)}, "unexpected end"},
		{request(t, nil), []string{"setup", "/nowhere"}, "/nowhere"},
		{request(t, nil), []string{"setup", "/etc/passwd"}, "/etc/passwd"},
		{request(t, nil), []string{"setup", space.Name}, "absolute"},
		{request(t, nil), []string{"setup", path(h.Switch)}, "the switch's own"},
		setup("publishes no ports", map[string]any{"port_mappings": []any{map[string]any{"container_port": 80}}}),
		setup("not an option of a container", map[string]any{"network_options.options": map[string]any{"x": "y"}}),
		setup("in no subnet", map[string]any{"network_options.static_ips": []string{"192.0.2.1"}}),
		setup("10.99.0.1 is the gateway's", map[string]any{"network_options.static_ips": []string{"10.99.0.1"}}),
		setup("reserves it", map[string]any{"network.network_interface": "default"}),
		setup("reserves it", map[string]any{"network_options.interface_name": "all"}),
		setup("static_ips", map[string]any{"network_options.static_ips": []string{"x"}}),
		setup("static_mac", map[string]any{"network_options.static_mac": "01:00:5e:00:00:01"}),
		setup("mirror", map[string]any{"network.options": map[string]any{"mirror": "../x"}}),
		setup("nothing", map[string]any{"network.options": map[string]any{"mirror": "nothing"}}),
		setup("mtu", map[string]any{"network.options": map[string]any{"mtu": "9"}}),
		setup("masquerade", map[string]any{"network.options": map[string]any{"masquerade": "on"}}),
		// A failure after the plug, when everything else exists.
		setup("the container's route", map[string]any{"network.routes": []any{map[string]any{"destination": "192.0.2.0/24", "gateway": "203.0.113.1"}}}),
		setup("route", map[string]any{"network.routes": []any{map[string]any{"destination": "x", "gateway": "y"}}}),
	}
	for _, name := range nasty {
		list = append(list, setup("container_id", map[string]any{"container_id": name}), setup("network's name", map[string]any{"network.name": name}),
			wrong{request(t, map[string]any{"container_id": name}), []string{"teardown", path(space)}, "container_id"})
		if name != "" { // without a name, the network's ID names the bridge
			list = append(list, wrong{request(t, map[string]any{"network.network_interface": name}), []string{"setup", path(space)}, ""})
		}
		if strings.ContainsAny(name, "/ \n\x00%") || len(name) < 1 || len(name) > 15 || strings.Trim(name, ".") == "" {
			list = append(list, setup("interface_name", map[string]any{"network_options.interface_name": name}))
		}
	}
	before := h.Bascule("port", "show") + h.Bascule("bridge", "show")
	for _, w := range list {
		if strings.Contains(w.stdin, `"network_interface":"-rf"`) || strings.Contains(w.stdin, `"network_interface":"é"`) {
			continue // a valid name for a bridge
		}
		_, err := h.asks(w.stdin, w.args...)
		if err == nil || !strings.Contains(err.Error(), w.word) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v %.300s: %v, should say %q", w.args, w.stdin, err, w.word)
		}
		if left := devices(t, space); len(left) != 1 {
			t.Fatalf("%v %.300s: the container has %v", w.args, w.stdin, left)
		}
	}
	// The host's address in a network stays after a setup that failed later.
	h.Bascule("unplug", "podman-gateway/br0")
	if after := h.Bascule("port", "show") + h.Bascule("bridge", "show"); after != before {
		t.Errorf("the switch was\n%sand is\n%s", before, after)
	}
}

// A setup or teardown that is killed at any point leaves nothing that teardown does not find.
func TestPodmanKilled(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	space := h.NewNamespace()
	plain := request(t, map[string]any{"network.subnets": nil, "network_options.static_ips": nil})
	h.podman(plain, "setup", path(space))
	h.podman(plain, "teardown", path(space))
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	calls := []string{"sendto", "bpf", "mkdirat", "unlinkat", "renameat"}
	for i := range netlab.Third(*pairs) {
		command := []string{"setup", "teardown"}[i%2]
		if command == "teardown" {
			h.podman(plain, "setup", path(space))
		}
		call := calls[r.IntN(len(calls))]
		if _, err := netlab.RunKilled(h.plugin(plain, command, path(space)), call, 1+r.IntN(12)); err != nil {
			t.Fatal(err)
		}
		h.podman(plain, "teardown", "/nowhere")
		if left := slices.Concat(devices(t, space), devices(t, h.Switch)); len(left) != 2 || len(h.Ports("br0")) != 0 {
			t.Fatalf("kill %d (of %s, at a call of %s, seed %d): devices %v and ports %v are left", i, command, call, seed, left, h.Ports("br0"))
		}
	}
	h.podman(plain, "setup", path(space))
	h.podman(plain, "teardown", path(space))
}
