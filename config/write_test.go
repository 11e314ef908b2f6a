// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/bridge"

	"github.com/goccy/go-yaml"
	"pgregory.net/rapid"
)

// Names that YAML, patterns or files might interpret as something else.
var (
	bridgeNames = []string{"br0", "null", "10", "010", "~", "on", "a,b", "?-", "\"", "br'1", "#1", "é", "{}", "<<", "1e3", "x-1", "0x1f", "*b", "a\\*"}
	portNames   = []string{"p1", "tap*", "a?b", "[x]", `b\c`, `\*`, "null", "7", "off", "&a", "!b", "- ", "p,1", "eth0.100", "'q'", "é\u0301", "a;b", "|", ">"}
)

// candidates are values; each setting accepts some of them.
var candidates = []string{
	"on", "off", "auto", "none", "0", "1", "2", "10", "128", "4096", "60s", "2s", "15s", "20s", "report", "0xffff", "0x0", "802.1Q", "802.1ad", "drop", "flood",
	"tagged", "untagged", "1,2", "31", "500pps", "64kbit", "10gbit", "stp", "rstp",
}

// drawConfig draws values for some settings.
func drawConfig[T any](t *rapid.T, settings []bridge.Setting[T]) T {
	config := bridge.Defaults(settings)
	for _, s := range settings {
		if !rapid.Bool().Draw(t, s.Name) {
			continue
		}
		v := rapid.SampledFrom(candidates).Draw(t, "value")
		trial := config
		if s.Set(&trial, v) == nil {
			config = trial
		}
	}
	return config
}

func drawSome(t *rapid.T, from []string, label string, most int) []string {
	some := rapid.Permutation(from).Draw(t, label)
	return some[:rapid.IntRange(0, min(most, len(some))).Draw(t, label+" count")]
}

func drawMAC(t *rapid.T) net.HardwareAddr {
	return net.HardwareAddr{2, 0, 0, 0, 0, byte(rapid.IntRange(1, 255).Draw(t, "mac"))}
}

// drawBridge draws a bridge as Read returns it, and its devices.
func drawBridge(t *rapid.T, name string, names []string) (b Bridge, devices []bridge.Device) {
	b.Name = name
	config := drawConfig(t, bridge.BridgeSettings)
	if config.Check("") != nil { // the timers are inconsistent
		config.STPHello, config.STPMaxAge, config.STPForwardDelay = 2*time.Second, 20*time.Second, 15*time.Second
	}
	b.Settings = differing(bridge.BridgeSettings, bridge.Defaults(bridge.BridgeSettings), config)
	if config.VLANFiltering {
		if isolated := rapid.IntRange(0, 1).Draw(t, "isolated"); isolated > 0 {
			b.Private = []PrivateVLAN{{Primary: 100, PrivateVLANs: bridge.PrivateVLANs{Isolated: []uint16{101}, Community: []uint16{102, 103}}}}
		}
	}
	var plain []string
	vlans := map[string][]bridge.VLANRange{}
	for _, n := range names {
		p := Port{Name: quoteName(n)}
		p.Options.Type = rapid.SampledFrom([]string{"", "", bridge.TypeHost}).Draw(t, "type")
		if rapid.Bool().Draw(t, "xdp") {
			p.Options.Hook = bridge.HookXDP
		}
		port := drawConfig(t, bridge.PortSettings)
		port.Route = port.Route && p.Options.Type == bridge.TypeHost
		if port.Backup = rapid.SampledFrom(names).Draw(t, "backup"); port.Backup == n {
			port.Backup = ""
		}
		if port.Check("", "") == nil {
			p.Options.Changes = differing(bridge.PortSettings, bridge.PortDefaults(p.Options.Type), port)
		}
		vlans[n] = defaultVLANs(config)
		if config.VLANFiltering && rapid.Bool().Draw(t, "vlans") {
			set := map[uint16]bridge.VLANOptions{}
			for _, id := range rapid.SliceOfDistinct(rapid.Uint16Range(1, 12), rapid.ID[uint16]).Draw(t, "ids") {
				set[id] = bridge.VLANOptions{Untagged: rapid.Bool().Draw(t, "untagged")}
			}
			if id := rapid.Uint16Range(0, 12).Draw(t, "pvid"); id > 0 {
				set[id] = bridge.VLANOptions{Untagged: rapid.Bool().Draw(t, "untagged"), PVID: true}
			}
			if b.Private != nil && rapid.Bool().Draw(t, "private") {
				set = map[uint16]bridge.VLANOptions{rapid.SampledFrom([]uint16{100, 101, 103}).Draw(t, "vlan"): {Untagged: true, PVID: true}}
			}
			if v := vlanRanges(set); !slices.Equal(v, vlans[n]) {
				p.VLANs, vlans[n] = v, v
			}
		}
		b.Ports = append(b.Ports, p)
		plain = append(plain, n)
		d := bridge.Device{Name: n, Bridge: name, Ethernet: true, Up: rapid.Bool().Draw(t, "up")}
		if p.Options.Type != bridge.TypePatch && (!d.Up || rapid.Bool().Draw(t, "says up")) {
			b.Ports[len(b.Ports)-1].Up = &d.Up
		}
		if p.Options.Type != bridge.TypePatch && rapid.Bool().Draw(t, "described") {
			d.Description = rapid.SampledFrom([]string{"", "x", "a: b # c", "'\"", "on", "{été"}).Draw(t, "description")
			b.Ports[len(b.Ports)-1].Description = &d.Description
		}
		if d.Own = p.Options.Type == bridge.TypeHost; d.Own {
			d.Host, d.Bridge = name, ""
			if rapid.Bool().Draw(t, "addresses") {
				d.Kept = []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}
				b.Ports[len(b.Ports)-1].Addresses = d.Kept
			}
			d.MAC, d.OwnMAC = net.HardwareAddr{2, 0, 0, 0, 1, 1}, net.HardwareAddr{2, 0, 0, 0, 1, 1}
			d.MTU, d.FirstMTU = 1500, 1500
			if rapid.Bool().Draw(t, "mtu") {
				d.MTU = 9000
				b.Ports[len(b.Ports)-1].MTU = d.MTU
			}
			switch rapid.IntRange(0, 2).Draw(t, "address") {
			case 0:
				d.MAC = net.HardwareAddr{2, 0, 0, 0, 1, 2}
				b.Ports[len(b.Ports)-1].MAC = d.MAC
			case 1:
				b.Ports[len(b.Ports)-1].OwnMAC = true
			}
		}
		devices = append(devices, d)
	}
	if len(plain) == 0 {
		return b, devices
	}
	for i := range rapid.IntRange(0, 3).Draw(t, "rules") {
		b.Rules = append(b.Rules, Rule{Text: fmt.Sprintf("block in on %s tag t%d", rapid.SampledFrom(plain).Draw(t, "port"), i)})
	}
	vlanOf := func(port string) (uint16, bool) {
		if !config.VLANFiltering {
			return uint16(rapid.IntRange(0, 3).Draw(t, "vlan")), true
		}
		if len(vlans[port]) == 0 {
			return 0, false
		}
		return rapid.SampledFrom(vlans[port]).Draw(t, "vlan").First, true
	}
	seen := map[string]bool{}
	for i := range rapid.IntRange(0, 3).Draw(t, "addresses") {
		port := rapid.SampledFrom(plain).Draw(t, "port")
		id, ok := vlanOf(port)
		if !ok {
			continue
		}
		b.Bindings = append(b.Bindings, Binding{Binding: bridge.Binding{Bridge: name, Port: port, MAC: drawMAC(t), Address: netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), VLAN: id}})
		mac := drawMAC(t)
		if seen[mac.String()] {
			continue
		}
		seen[mac.String()] = true
		sticky := rapid.Bool().Draw(t, "sticky")
		b.Entries = append(b.Entries, Entry{Entry: bridge.Entry{MAC: mac, Port: port, VLAN: id, Sticky: sticky, Static: !sticky}})
	}
	for i := range rapid.IntRange(0, 2).Draw(t, "mirrors") {
		m := Mirror{Device: fmt.Sprintf("m%d-%d", i, slices.Index(bridgeNames, name))}
		if port := rapid.SampledFrom(plain).Draw(t, "port"); !strings.Contains(port, ",") {
			m.Ports = []string{port}
		}
		m.Direction = rapid.SampledFrom([]string{"", bridge.DirectionOut, bridge.DirectionBoth}).Draw(t, "direction")
		b.Mirrors = append(b.Mirrors, m)
		devices = append(devices, bridge.Device{Name: m.Device, Bridge: name, Ethernet: true})
	}
	if rapid.Bool().Draw(t, "pf") {
		b.PF = &PF{Enabled: rapid.Bool().Draw(t, "on"), Rules: rapid.SampledFrom([]string{"", "pass all\n", "\n", " x\n", "a\n\n  b\n", "table <x> { 10.0.0.1 }\npass all label \"é\"\n", "x", "a\n\n"}).Draw(t, "text")}
	}
	return b, devices
}

// TestWrite writes random states and checks that the plan for the loaded file is empty.
func TestWrite(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var was File
		var devices []bridge.Device
		left := rapid.Permutation(slices.DeleteFunc(slices.Clone(portNames), func(n string) bool { return bridge.CheckName("port", n) != nil })).Draw(t, "ports")
		for _, name := range drawSome(t, bridgeNames, "bridges", 3) {
			n := rapid.IntRange(0, min(4, len(left))).Draw(t, "count")
			b, more := drawBridge(t, name, left[:n])
			left, devices, was.Bridges = left[n:], append(devices, more...), append(was.Bridges, b)
		}
		for i := range was.Bridges[:max(0, len(was.Bridges)-1)] {
			a, b := &was.Bridges[i], &was.Bridges[i+1]
			if strings.Contains(a.Name+b.Name, "/") {
				continue
			}
			near, far := fmt.Sprint("x", i), fmt.Sprint("y", i)
			a.Ports = append(a.Ports, Port{Name: near, Options: bridge.PortOptions{Type: bridge.TypePatch, Peer: b.Name + "/" + far}})
			b.Ports = append(b.Ports, Port{Name: far, Options: bridge.PortOptions{Type: bridge.TypePatch, Peer: a.Name + "/" + near}})
		}
		var text strings.Builder
		if err := was.Write(&text); err != nil {
			t.Fatal(err)
		}
		files, bad := parse("f.yaml", []byte(text.String()))
		if bad != nil || len(files) != 1 {
			t.Fatalf("%d files, %v, of\n%s", len(files), bad, text.String())
		}
		actions, warnings, err := Plan(was, files[0], devices)
		if err != nil || len(actions)+len(warnings) > 0 {
			t.Fatalf("plan %v, warnings %q, error %v, of\n%s", actions, warnings, err, text.String())
		}
	})
}

// TestWriteRefuses has names that are invalid at their place in a file.
func TestWriteRefuses(t *testing.T) {
	for _, c := range []struct {
		b   Bridge
		err string
	}{
		{Bridge{Name: "br0", Ports: []Port{{Name: "a,b"}}, Mirrors: []Mirror{{Device: "m0", SpanOptions: bridge.SpanOptions{Ports: []string{"a,b"}}}}}, "port a,b would be read as two"},
		{Bridge{Name: "br0", Rules: []Rule{{Text: "block on # 1"}}}, "cannot write a rule of br0"},
	} {
		var text strings.Builder
		err := File{Bridges: []Bridge{c.b}}.Write(&text)
		if err == nil || !strings.Contains(err.Error(), c.err) || text.Len() > 0 {
			t.Errorf("error %v, should have %q; wrote %q", err, c.err, text.String())
		}
	}
}

// TestWriteNames has names that YAML readers take for numbers or other values. They must be the
// same text in JSON made from the YAML.
func TestWriteNames(t *testing.T) {
	want := File{Bridges: []Bridge{{Name: "0x10", Settings: []bridge.Change{{Name: "group-fwd-mask", Value: "0x4000"}, {Name: "fdb-max", Value: "10"}}}}}
	names := []string{"10", "010", "0b1", "0o17", "1e3", ".5", "1.50", "1_0", "true", "No", "null"}
	for _, n := range names {
		want.Bridges[0].Ports = append(want.Bridges[0].Ports, Port{Name: n})
	}
	var text strings.Builder
	if err := want.Write(&text); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(text.String(), "fdb-max: 10\n") {
		t.Errorf("a decimal number needs no quotes:\n%s", text.String())
	}
	out, err := yaml.YAMLToJSON([]byte(text.String()))
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		Bridges map[string]struct {
			Mask  any            `json:"group-fwd-mask"`
			Ports map[string]any `json:"ports"`
		} `json:"bridges"`
	}
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatal(err)
	}
	slices.Sort(names)
	if b := got.Bridges["0x10"]; b.Mask != "0x4000" || !slices.Equal(sortedNames(b.Ports), names) {
		t.Errorf("the JSON is %s", out)
	}
}

// TestReadRenamed has a port without a device, and another one whose device now has the first one's
// name: a file can have only one port with a name.
func TestReadRenamed(t *testing.T) {
	r := reader{file: Bridge{Name: "br0"}, out: map[string]bool{}, State: bridge.State{
		Ports: []bridge.Port{
			{Name: "p1", State: "forwarding"}, {Name: "p1", State: "gone"}, {Name: "p2", State: "gone"}, {Name: "p3", State: "gone"},
		},
		Entries: []bridge.Entry{{Port: "p2", Static: true}, {Port: "p3", Static: true}},
	}}
	r.ports(nil, map[string]bool{"p1": true, "p3": true}) // p3 belongs to another bridge
	r.rest()
	var names []string
	for _, p := range r.file.Ports {
		names = append(names, p.Name)
	}
	if !slices.Equal(names, []string{"p1", "p2"}) || len(r.notes) != 2 {
		t.Errorf("the file has ports %q, and notes %q", names, r.notes)
	}
	if e := r.file.Entries; len(e) != 1 || e[0].Port != "p2" {
		t.Errorf("the file has entries %v", e)
	}
}

// TestPlainName has patterns, and names that look like patterns.
func TestPlainName(t *testing.T) {
	for _, c := range []struct {
		name, plain string
		ok          bool
	}{
		{"p1", "p1", true}, {"tap*", "tap*", false}, {`tap\*`, "tap*", true}, {`a\b`, `a\b`, true}, {`a\\\[b\]`, `a\[b]`, true}, {`a\?*`, `a\?*`, false}, {`[ab]`, `[ab]`, false}, {`a?\`, `a?\`, false},
	} {
		plain, ok := plainName(c.name)
		if plain != c.plain || ok != c.ok {
			t.Errorf("%s: %q, %v; should be %q, %v", c.name, plain, ok, c.plain, c.ok)
		}
		if ok && strings.ContainsAny(plain, "*?[") {
			if again, ok := plainName(quoteName(plain)); !ok || again != plain {
				t.Errorf("%s as a name of a file is %s, which is %q", plain, quoteName(plain), again)
			}
		}
	}
}
