// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/bridge"
)

// fileOf reads a YAML file with the path NAME.yaml.
func fileOf(t *testing.T, name, text string) File {
	t.Helper()
	if text == "" {
		return File{}
	}
	files, bad := parse(name+".yaml", []byte(text))
	if bad != nil {
		t.Fatal(bad)
	}
	if len(files) != 1 {
		t.Fatalf("%d files in %s", len(files), text)
	}
	return files[0]
}

// devicesOf makes devices from words: NAME or NAME=DESCRIPTION, or NAME@BRIDGE for a port, with a
// trailing ! for the device of a host port, ? for one that can't be a port, % for hardware, and -
// for one that is down.
func devicesOf(words string) (list []bridge.Device) {
	for _, w := range strings.Fields(words) {
		d := bridge.Device{Ethernet: true}
		w, down := strings.CutSuffix(w, "-")
		d.Up = !down
		w, d.Own = strings.CutSuffix(w, "!")
		w, d.Physical = strings.CutSuffix(w, "%")
		w, bad := strings.CutSuffix(w, "?")
		if bad {
			d.Refusal = "it belongs to bond bond0; remove it first"
		}
		d.Name, d.Bridge, _ = strings.Cut(w, "@")
		d.Name, d.Description, _ = strings.Cut(d.Name, "=")
		if d.Own {
			d.Host, d.Bridge = d.Bridge, ""
			d.MTU, d.FirstMTU = 1500, 1500
			d.MAC, d.OwnMAC = net.HardwareAddr{2, 0, 0, 0, 0, 0x99}, net.HardwareAddr{2, 0, 0, 0, 0, 0x98}
		}
		list = append(list, d)
	}
	return list
}

func TestPlan(t *testing.T) {
	for _, c := range []struct {
		name      string
		was, want string
		devices   string
		plan      []string
		warnings  []string
	}{
		{
			name: "a bridge from nothing",
			want: "bridges: {br0: {ageing: 60s, ports: {p1: {isolated: on}, p2: {}, h: {type: host, hook: tcx}}}}", devices: "p1 p2",
			plan: []string{"+ bridge br0: ageing 60s", "+ port p1 of br0: isolated on", "+ port p2 of br0", "+ port h of br0: type host, hook tcx"},
		},
		{
			name: "nothing to do",
			was:  "bridges: {br0: {ageing: 60s, ports: {p1: {isolated: on}}, rules: [block on p1]}}",
			want: "bridges: {br0: {ageing: 60, ports: {p1: {protected: 1}}, rules: [block in/out on p1]}}", devices: "p1@br0",
		},
		{
			name: "settings that are not there have their defaults",
			was:  "bridges: {br0: {ageing: 60s, fdb-max: 10, ports: {p1: {isolated: on, learn: off}}}}",
			want: "bridges: {br0: {fdb-max: 20, ports: {p1: {learn: on}}}}", devices: "p1@br0",
			plan: []string{"~ bridge br0: ageing 60s -> 300s, fdb-max 10 -> 20", "~ port p1 of br0: learn off -> on, isolated on -> off"},
		},
		{
			name: "addresses of a host's interface and of a bridge",
			was:  "bridges: {br0: {mac: '02:00:00:00:00:01', ports: {h: {type: host}, i: {type: host}}}}",
			want: "bridges: {br0: {ports: {h: {type: host, mac: '02:00:00:00:00:02'}, i: {type: host}, j: {type: host, mac: '02:00:00:00:00:03'}}}}", devices: "h@br0! i@br0!",
			plan: []string{
				"~ bridge br0: mac 02:00:00:00:00:01 -> auto", "~ port h of br0: mac 02:00:00:00:00:99 -> 02:00:00:00:00:02",
				"+ port j of br0: type host, mac 02:00:00:00:00:03",
			},
		},
		{
			name: "the MTU of a host port",
			was:  "bridges: {br0: {ports: {h: {type: host}, i: {type: host}, j: {type: host}}}}",
			want: "bridges: {br0: {ports: {h: {type: host, mtu: 9000}, i: {type: host}, j: {type: host, mtu: 1500}, k: {type: host, mtu: 1400}}}}", devices: "h@br0! i@br0! j@br0!",
			plan: []string{"~ port h of br0: mtu 1500 -> 9000", "+ port k of br0: type host, mtu 1400"},
		},
		{
			name: "the address that an interface gets by itself",
			was:  "bridges: {br0: {ports: {h: {type: host}}}}",
			want: "bridges: {br0: {ports: {h: {type: host, mac: auto}, i: {type: host, mac: auto}}}}", devices: "h@br0!",
			plan: []string{"~ port h of br0: mac 02:00:00:00:00:99 -> auto", "+ port i of br0: type host"},
		},
		{
			name: "devices that are down",
			was:  "bridges: {br0: {ports: {p1: {}, p2: {}, p3: {}, p4: {up: off}, h: {type: host}, i: {type: host, up: off}}}}",
			want: `bridges: {br0: {ports: {p1: {}, p2: {up: off}, p3: {up: on}, p4: {up: off}, h: {type: host, up: off}, i: {type: host}, p5: {}, p6: {up: off},
				p7: {up: off}, p8: , "t*": {up: off}, j: {type: host, up: off}}}}`,
			devices: "p1@br0- p2@br0 p3@br0 p4@br0- h@br0! i@br0!- p5- p6 p7- p8 t1",
			plan: []string{
				"~ port p1 of br0: up off -> on", "~ port p2 of br0: up on -> off", "~ port h of br0: up on -> off", "~ port i of br0: up off -> on",
				"+ port p5 of br0: up on", "+ port p6 of br0: up off", "+ port p7 of br0", "+ port p8 of br0", "+ port j of br0: type host, up off", "+ port t1 of br0: up off",
			},
		},
		{
			name: "descriptions",
			was:  "bridges: {br0: {ports: {p1: {description: roof}, p2: , p3: , h: {type: host}}}}",
			want: "bridges: {br0: {ports: {p1: {description: roof}, p2: {description: ''}, p3: , h: {type: host, description: x}, p4: {description: 'a \"b\"'}," +
				" p5: {description: cellar}, i: {type: host, description: y}}}}",
			devices: "p1=roof@br0 p2=cellar@br0 p3=it@br0 h@br0! p4 p5=cellar",
			plan: []string{
				`~ port p2 of br0: description "cellar" -> ""`, `~ port h of br0: description "" -> "x"`,
				`+ port p4 of br0: description "a \"b\""`, "+ port p5 of br0", `+ port i of br0: type host, description "y"`,
			},
		},
		{
			name: "domain 1 among others",
			was:  "bridges: {br0: {ports: {p1: {protected: 1}, p2: {}}}}",
			want: "bridges: {br0: {ports: {p1: {protected: \"1,2\"}, p2: {protected: \"1,3\"}}}}", devices: "p1@br0 p2@br0",
			plan: []string{"~ port p1 of br0: protected 1 -> 1,2", "~ port p2 of br0: protected none -> 1,3"},
		},
		{
			name: "ports come and go, other bridges stay",
			was:  "bridges: {br0: {ports: {p1: {}, p2: {}}}, br9: {ports: {p9: {}}}}",
			want: "bridges: {br0: {ports: {p2: {}, p3: {}}}}", devices: "p1@br0 p2@br0 p3 p9@br9",
			plan: []string{"- port p1 of br0", "+ port p3 of br0"},
		},
		{
			name: "a port moves to another bridge",
			was:  "bridges: {br0: {ports: {p1: {}}}, br1: {ports: {p2: {}}}}",
			want: "bridges: {br0: {ports: {p2: {}}}, br1: {ports: {p1: {}}}}", devices: "p1@br0 p2@br1",
			plan: []string{"- port p1 of br0", "+ port p2 of br0", "- port p2 of br1", "+ port p1 of br1"},
		},
		{
			name: "patterns, and what a port's own name says",
			was:  "bridges: {br0: {ports: {tap0: {}, tap1: {}}}}",
			want: `bridges: {br0: {ports: {"tap*": {locked: on, learn: off}, "t*": {isolated: on}, tap2: {}}}}`, devices: "tap0@br0 tap2 tap3 tun0 veth0",
			plan: []string{
				"+ port tap2 of br0", "~ port tap0 of br0: learn on -> off, locked off -> on", "~ port tap1 of br0: learn on -> off, locked off -> on",
				"+ port tap3 of br0: learn off, locked on", "+ port tun0 of br0: isolated on",
			},
		},
		{
			name: "what another bridge has that the file does not name",
			was:  "bridges: {br9: {ports: {tap0: {}}}}",
			want: `bridges: {br0: {ports: {"tap*": {}}}}`, devices: "tap0@br9 tap1",
			plan:     []string{"+ bridge br0", "+ port tap1 of br0"},
			warnings: []string{"pattern tap* of br0 leaves tap0 out: it is a port of bridge br9, which the file does not name"},
		},
		{
			name: "a name with a star in it",
			want: `bridges: {br0: {ports: {"a\\*": {}}}}`, devices: "ab a*",
			plan: []string{"+ bridge br0", "+ port a* of br0"},
		},
		{
			name: "what a device is waited for with",
			want: `bridges: {br0: {vlan-filtering: on, ports: {p1: {}, p2: {pvid: 7}, "tap*": {}}, rules: [block on p2, block on tap7, block on p1],
				bindings: [{port: p2, mac: 02:00:00:00:00:01, address: 192.0.2.1, vlan: 7}], fdb: [{port: p2, mac: 02:00:00:00:00:01}],
				mirrors: {m0: {}, m1: {ports: [p2]}, m2: {vlans: 7}, m3: {ports: tap8}}}}`, devices: "p1 m1 m2 m3 tap0? tap1",
			plan: []string{"+ bridge br0: vlan-filtering on", "+ port p1 of br0", "+ port tap1 of br0", "+ rule of br0: block on p1"},
			warnings: []string{
				"port p2 of br0 waits for its device", "pattern tap* of br0 leaves tap0 out: it belongs to bond bond0; remove it first",
				"span port m0 of br0 waits for its device", "span port m1 of br0 waits for port p2", "span port m2 of br0 waits for a port in VLAN 7", "span port m3 of br0 waits for port tap8",
			},
		},
		{
			name: "a device of nearly the same name is named, and no other number",
			want: "bridges: {br0: {ports: {vteh1: {}, veth9: {}}}}", devices: "veth1 veth2@br1",
			plan:     []string{"+ bridge br0"},
			warnings: []string{"port vteh1 of br0 waits for its device; the nearest is veth1", "port veth9 of br0 waits for its device"},
		},
		{
			name: "a port whose device is gone stays, and is made anew for another device",
			was:  "bridges: {br0: {ports: {p1: {}, p2: {}}, rules: [block on p1, block on p2]}}",
			want: "bridges: {br0: {ports: {p1: {}, p2: {hairpin: on}}, rules: [block on p1, block on p2]}}", devices: "p1",
			plan:     []string{"- port p1 of br0", "+ port p1 of br0", "~ port p2 of br0: hairpin off -> on", "+ rule of br0: block on p1"},
			warnings: []string{"port p2 of br0 waits for its device"},
		},
		{
			name: "types and hooks",
			was:  "bridges: {br0: {ports: {p1: {hook: xdp}, p2: {}, p3: {hook: tcx}, p4: {}}}}",
			want: "bridges: {br0: {ports: {p1: {}, p2: {hook: xdp}, p3: {}, p4: {type: host}}}}", devices: "p1@br0 p2@br0 p3@br0%",
			plan: []string{"- port p4 of br0", "~ port p1 of br0: hook xdp -> tcx", "~ port p2 of br0: hook tcx -> xdp", "+ port p4 of br0: type host"},
		},
		{
			name: "VLANs",
			was:  "bridges: {br0: {vlan-filtering: on, ports: {p1: {}, p2: {pvid: 10, tagged: \"20,21\"}, p3: {}, p4: {pvid: 10, tagged: 10}}}}",
			want: `bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 1}, p2: {pvid: 10, tagged: [20, 22-24]}, p3: {pvid: none}, p4: {pvid: 10, untagged: 11}},
				private-vlans: {100: {isolated: 101}}}}`, devices: "p1@br0 p2@br0 p3@br0 p4@br0",
			plan: []string{
				"~ port p2 of br0: tagged 20-21 -> 20,22-24 (-21 +22-24)", "~ port p3 of br0: pvid 1 -> none", "~ port p4 of br0: untagged none -> 11, tagged 10 -> none",
				"+ private VLAN 100 of br0: isolated 101",
			},
		},
		{
			name: "filtering begins",
			was:  "bridges: {br0: {ports: {p1: {}}, fdb: [{mac: 02:00:00:00:00:01, port: p1}]}}",
			want: "bridges: {br0: {vlan-filtering: on, ports: {p1: {}}, fdb: [{mac: 02:00:00:00:00:01, port: p1}]}}", devices: "p1@br0",
			plan: []string{
				"~ bridge br0: vlan-filtering off -> on", "~ port p1 of br0: pvid none -> 1",
				"- address 02:00:00:00:00:01 of br0: on p1", "+ address 02:00:00:00:00:01 of br0: on p1, vlan 1",
			},
		},
		{
			name:    "private VLANs have the addresses of their primary",
			was:     "bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 101}}, private-vlans: {100: {isolated: 101}}, fdb: [{mac: 02:00:00:00:00:01, port: p1, vlan: 101}]}}",
			want:    "bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 101}}, private-vlans: {100: {isolated: 101, community: 102}}, fdb: [{mac: 02:00:00:00:00:01, port: p1}]}}",
			devices: "p1@br0",
			plan:    []string{"~ private VLAN 100 of br0: isolated 101 -> isolated 101, community 102"},
		},
		{
			name: "rules in another order",
			was:  "bridges: {br0: {ports: {p1: {}, p2: {}}, rules: [block on p1, pass on p1 tag x, block on p2]}}",
			want: "bridges: {br0: {ports: {p1: {}, p2: {}}, rules: [block on p2, pass on p1 tag x, block on p1]}}", devices: "p1@br0 p2@br0",
			plan: []string{"~ rules of port p1 of br0: another order"},
		},
		{
			name: "rules",
			was:  "bridges: {br0: {ports: {p1: {}}, rules: [block on p1, pass in on p1, pass in on p1]}}",
			want: "bridges: {br0: {ports: {p1: {}}, rules: [block out on p1, pass in on p1]}}", devices: "p1@br0",
			plan: []string{"- rule of br0: block on p1", "- rule of br0: pass in on p1", "+ rule of br0: block out on p1"},
		},
		{
			name: "bindings and entries",
			was: `bridges: {br0: {ports: {p1: {}, p2: {}}, bindings: [{port: p1, mac: 02:00:00:00:00:01, address: 192.0.2.1}, {port: p1, mac: 02:00:00:00:00:01, address: "fe80::1"}],
				fdb: [{mac: 02:00:00:00:00:01, port: p1}, {mac: 02:00:00:00:00:02, port: p1, sticky: on}]}}`,
			want: `bridges: {br0: {ports: {p1: {}, p2: {}}, bindings: [{port: p2, mac: 02:00:00:00:00:01, address: 192.0.2.1}, {port: p1, mac: 02:00:00:00:00:01, address: 192.0.2.2}],
				fdb: [{mac: 02:00:00:00:00:01, port: p1, sticky: on}, {mac: 02:00:00:00:00:03, port: p1}]}}`, devices: "p1@br0 p2@br0",
			plan: []string{
				"- binding fe80::1 of br0: 02:00:00:00:00:01 on p1", "~ binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1 -> 02:00:00:00:00:01 on p2", "+ binding 192.0.2.2 of br0: 02:00:00:00:00:01 on p1",
				"- address 02:00:00:00:00:02 of br0: on p1, sticky", "~ address 02:00:00:00:00:01 of br0: on p1 -> on p1, sticky", "+ address 02:00:00:00:00:03 of br0: on p1",
			},
		},
		{
			name: "what a port that leaves takes along",
			was: `bridges: {br0: {ports: {p1: {}, p2: {}}, rules: [block on p1], bindings: [{port: p1, mac: 02:00:00:00:00:01, address: 192.0.2.1}],
				fdb: [{mac: 02:00:00:00:00:01, port: p1}], mirrors: {m0: {ports: p2}}}}`,
			want: "bridges: {br0: {ports: {p2: {}}, mirrors: {m0: {ports: p2}}}}", devices: "p1@br0 p2@br0 m0@br0",
			plan: []string{"- port p1 of br0", "- rule of br0: block on p1", "- binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1", "- address 02:00:00:00:00:01 of br0: on p1"},
		},
		{
			name: "what a port that leaves was",
			was: `bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 10, tagged: 20, isolated: on}, h: {type: host, trusted: off}}},
				br1: {ports: {c: {type: patch, peer: br2/c, learn: off}}}, br2: {ports: {c: {type: patch, peer: br1/c}}}}`,
			want: "bridges: {br0: {vlan-filtering: on}, br1: {}, br2: {}}", devices: "p1@br0 h@br0!",
			plan: []string{"- port p1 of br0: isolated on, pvid 10, tagged 20", "- port h of br0: type host, trusted off",
				"- port c of br1: type patch, peer br2/c, learn off", "- port c of br2: type patch, peer br1/c"},
		},
		{
			name:    "mirrors",
			was:     "bridges: {br0: {ports: {p1: {}, p2: {}}, mirrors: {m0: {ports: [p1, p2]}, m1: {}, m2: {}}}}",
			want:    "bridges: {br0: {ports: {p1: {}, p2: {}, m2: {}}, mirrors: {m0: {ports: [p2, p1], direction: in}, m1: {direction: both}, m3: {ports: p1}}}}",
			devices: "p1@br0 p2@br0 m0@br0 m1@br0 m2@br0 m3",
			plan: []string{
				"+ port m2 of br0", "- span port m1 of br0: all ports, direction in", "- span port m2 of br0: all ports, direction in", "+ span port m1 of br0: all ports, direction both", "+ span port m3 of br0: ports p1, direction in",
			},
		},
		{
			name: "patch cables",
			was:  "bridges: {br0: {ports: {a: {type: patch, peer: br1/a}, b: {type: patch, peer: br1/b}}}, br1: {ports: {a: {type: patch, peer: br0/a}, b: {type: patch, peer: br0/b}}}, br2: {}}",
			want: `bridges: {br0: {ports: {a: {type: patch, peer: br1/a, hairpin: on}, b: {type: patch, peer: br2/b}, c: {type: patch, peer: br3/c}}}, br1: {ports: {a: {type: patch, peer: br0/a}}},
				br3: {ports: {c: {type: patch, peer: br0/c}}}}`,
			plan: []string{
				"- port b of br0: type patch, peer br1/b", "~ port a of br0: hairpin off -> on", "+ port b of br0: type patch, peer br2/b", "+ port c of br0: type patch, peer br3/c",
				"- port b of br1: type patch, peer br0/b", "+ bridge br3", "+ port c of br3: type patch, peer br0/c",
			},
		},
		{
			name: "a host port's interface moves",
			was:  "bridges: {br0: {ports: {h: {type: host}}}, br1: {}}",
			want: "bridges: {br0: {}, br1: {ports: {h: {type: host}}}}", devices: "h@br0!",
			plan: []string{"- port h of br0: type host", "+ port h of br1: type host"},
		},
		{
			name: "pf",
			was:  "bridges: {br0: {pf: {enabled: on, rules: \"pass all\\n\"}}, br1: {pf: {rules: \"pass all\\n\"}}, br2: {pf: on}}",
			want: "bridges: {br0: {}, br1: {pf: {enabled: off, rules: \"block all\\n\"}}, br2: {pf: on}, br3: {pf: {file: pf.conf, rules: \"\"}}}",
			plan: []string{"~ pf of br1: enabled on -> off, rules of want.yaml", "+ bridge br3", "~ pf of br3: enabled off -> on"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			actions, warnings, err := Plan(fileOf(t, "was", c.was), fileOf(t, "want", c.want), devicesOf(c.devices))
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, a := range actions {
				got = append(got, a.String())
			}
			if !slices.Equal(got, c.plan) {
				t.Errorf("the plan is\n  %s\nshould be\n  %s", strings.Join(got, "\n  "), strings.Join(c.plan, "\n  "))
			}
			if !slices.Equal(warnings, c.warnings) {
				t.Errorf("the warnings are\n  %s\nshould be\n  %s", strings.Join(warnings, "\n  "), strings.Join(c.warnings, "\n  "))
			}
		})
	}
}

// TestPlanEntriesAtOnce requires all addresses of a bridge to change in one step, since each step
// makes a new generation of the bridge.
func TestPlanEntriesAtOnce(t *testing.T) {
	list := func(port string, from int) string {
		text := "bridges: {br0: {ports: {p1: {}, p2: {}}, fdb: ["
		for i := range 100 {
			text += fmt.Sprintf("{mac: 02:00:00:00:00:%02x, port: %s}, ", from+i, port)
		}
		return text + "]}}"
	}
	p := newPlan(fileOf(t, "was", list("p1", 1)), fileOf(t, "want", list("p2", 51)), devicesOf("p1@br0 p2@br0"))
	if len(p.actions) != 150 || len(p.stages[forget]) != 1 || len(p.stages[remember]) != 1 {
		t.Errorf("%d changes, in %d steps that delete and %d that add", len(p.actions), len(p.stages[forget]), len(p.stages[remember]))
	}
}

// TestPlanGone checks that the plan that removes a bridge lists the same objects as the plan that
// made it.
func TestPlanGone(t *testing.T) {
	was := fileOf(t, "was", `bridges: {br0: {ageing: 60s, vlan-filtering: on, private-vlans: {100: {isolated: 101}}, ports: {p1: {pvid: 100, isolated: on}},
		rules: [block on p1], pf: {enabled: on, rules: "block drop in all\npass out all\n"}}}`)
	actions, _, err := Plan(was, File{Bridges: []Bridge{{Name: "br0", Gone: true}}}, devicesOf("p1@br0"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range actions {
		got = append(got, a.String())
	}
	want := []string{"- port p1 of br0: isolated on, pvid 100", "- rule of br0: block on p1", "- private VLAN 100 of br0: isolated 101",
		"- pf of br0: enabled on", "- pf rule of br0: block drop in all", "- pf rule of br0: pass out all", "- bridge br0: ageing 60s, vlan-filtering on"}
	if !slices.Equal(got, want) {
		t.Errorf("the plan is\n  %s\nshould be\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func TestSummary(t *testing.T) {
	long := Action{Add, "br0", "port p1 of br0", strings.Repeat("x", 100)}
	for _, c := range []struct {
		actions []Action
		want    string
	}{
		{nil, ""},
		{[]Action{{Change, "br0", "bridge br0", "ageing 300s -> 60s"}}, "~ bridge br0: ageing 300s -> 60s"},
		{[]Action{long, long, long}, "+ port p1 of br0: " + strings.Repeat("x", 39) + "..., and 2 more"},
	} {
		if got := Summary(c.actions); got != c.want {
			t.Errorf("the summary is %q, should be %q", got, c.want)
		}
	}
}

// TestPlanEmptiedMirror plans for a mirror that copies nothing any more, a state that a file cannot
// express.
func TestPlanEmptiedMirror(t *testing.T) {
	was := fileOf(t, "was", "bridges: {br0: {ports: {p1: {}}, mirrors: {m0: {}}}}")
	was.Bridges[0].Mirrors[0].Emptied = true
	for _, c := range []struct {
		mirrors, devices string
		plan, warnings   []string
	}{
		{"{}", "p1@br0 m0@br0", []string{"- span port m0 of br0"}, nil},
		{"{m0: {}}", "p1@br0 m0@br0", []string{"- span port m0 of br0", "+ span port m0 of br0: all ports, direction in"}, nil},
		{"{m0: {ports: p1}}", "p1@br0 m0@br0", []string{"- span port m0 of br0", "+ span port m0 of br0: ports p1, direction in"}, nil},
		{"{m0: {ports: p1}}", "p1@br0", []string{"- span port m0 of br0"}, []string{"span port m0 of br0 waits for its device"}},
	} {
		want := fileOf(t, "want", "bridges: {br0: {ports: {p1: {}}, mirrors: "+c.mirrors+"}}")
		actions, warnings, err := Plan(was, want, devicesOf(c.devices))
		var got []string
		for _, a := range actions {
			got = append(got, a.String())
		}
		if err != nil || !slices.Equal(got, c.plan) || !slices.Equal(warnings, c.warnings) {
			t.Errorf("%s: %v, %q and warnings %q, should be %q and %q", c.mirrors, err, got, warnings, c.plan, c.warnings)
		}
	}
	var text strings.Builder
	if err := was.Write(&text); err != nil || text.String() != "bridges:\n  br0:\n    ports:\n      p1: {}\n" {
		t.Errorf("%v, and it is written as\n%s", err, text.String())
	}
}

// TestBackupWaits checks that a backup port takes effect when its device exists.
func TestBackupWaits(t *testing.T) {
	want := fileOf(t, "want", "bridges: {br0: {ports: {p1: {backup: p2}, p2: {}}}}")
	for _, c := range []struct {
		was, devices string
		actions      []string
		warnings     []string
	}{
		{"", "p1", []string{"+ bridge br0", "+ port p1 of br0"}, []string{"port p2 of br0 waits for its device", "backup p2 of port p1 of br0 waits for its device"}},
		{"bridges: {br0: {ports: {p1: {}}}}", "p1@br0 p2", []string{"+ port p2 of br0", "~ port p1 of br0: backup none -> p2"}, nil},
		{"bridges: {br0: {ports: {p1: {backup: p2}, p2: {}}}}", "p1@br0 p2@br0", nil, nil},
	} {
		actions, warnings, err := Plan(fileOf(t, "was", c.was), want, devicesOf(c.devices))
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, a := range actions {
			got = append(got, a.String())
		}
		slices.Sort(got)
		slices.Sort(c.actions)
		if !slices.Equal(got, c.actions) || !slices.Equal(warnings, c.warnings) {
			t.Errorf("from %q with %s: actions %q, warnings %q; want %q, %q", c.was, c.devices, got, warnings, c.actions, c.warnings)
		}
	}
}

// TestPlanIdle plans for a binding and an address from the time before the bridge filtered VLANs, a
// state that a file cannot express.
func TestPlanIdle(t *testing.T) {
	const ports = "bridges: {br0: {vlan-filtering: on, ports: {p1: {pvid: 1}}}}"
	was := fileOf(t, "was", strings.TrimSuffix(ports, "}}")+`, bindings: [{port: p1, mac: 02:00:00:00:00:01, address: 192.0.2.1, vlan: 1}],
		fdb: [{port: p1, mac: 02:00:00:00:00:01, vlan: 1}]}}`)
	binding, entry := &was.Bridges[0].Bindings[0], &was.Bridges[0].Entries[0]
	binding.VLAN, binding.Idle, entry.VLAN, entry.Idle = 0, true, 0, true
	actions, _, err := Plan(was, fileOf(t, "want", ports), devicesOf("p1@br0"))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, a := range actions {
		got = append(got, a.String())
	}
	want := []string{"- binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1", "- address 02:00:00:00:00:01 of br0: on p1"}
	if !slices.Equal(got, want) {
		t.Errorf("the plan is %q, should be %q", got, want)
	}
	var text strings.Builder
	if err := was.Write(&text); err != nil || text.String() != "bridges:\n  br0:\n    vlan-filtering: on\n    ports:\n      p1: {pvid: 1}\n" {
		t.Errorf("%v, and it is written as\n%s", err, text.String())
	}
}

// TestPlanRefuses checks that each mistake is reported at its position.
func TestPlanRefuses(t *testing.T) {
	const mac = "02:00:00:00:00:01"
	for _, c := range []struct{ name, was, want, devices, err string }{
		{"a port in two bridges", "", "bridges:\n  br0: {ports: {p1: {}}}\n  br1: {ports: {p1: {}}}", "p1",
			"want.yaml:3:17: port p1 of br1 is already port p1 of br0, at want.yaml:2:17; a device is a port of only one bridge: remove one"},
		{"a port that is a mirror", "", "bridges:\n  br0: {ports: {p1: {}}, mirrors: {p1: {}}}", "p1", "want.yaml:2:36: span port p1 of br0 is already port p1 of br0"},
		{"a mirror that is a port elsewhere", "", "bridges:\n  br0: {ports: {p1: {}}}\n  br1: {mirrors: {p1: {}}}", "p1", "want.yaml:3:19: span port p1 of br1 is already port p1 of br0"},
		{"locked and learning", "", "bridges: {br0: {ports: {p1: {locked: on}}}}", "p1", "want.yaml:1:25: cannot set port p1 of br0: a locked port"},
		{"settings are named as in files", "", "bridges: {br0: {ports: {p1: {locked: on}}}}", "p1", "with learn: off, or unlock it with locked: off"},
		{"timers that do not go together", "", "bridges: {br0: {stp-max-age: 40s, stp-forward-delay: 4s}}", "", "give a longer stp-forward-delay, or a shorter stp-max-age"},
		{"VLANs without filtering", "", "bridges: {br0: {ports: {p1: {pvid: 1}}}}", "p1", "port p1 of br0: bridge br0 does not filter VLANs; give it vlan-filtering: on"},
		{"private VLANs without filtering", "", "bridges: {br0: {private-vlans: {100: {isolated: 101}}}}", "", "private VLAN 100 of br0: the bridge does not filter VLANs"},
		{"a route at a port without an interface of the host", "", "bridges: {br0: {ports: {p1: {route: on}}}}", "p1", "port p1 of br0: only a host port routes"},
		{"a route at a patch port", "", "bridges: {br0: {ports: {a: {type: patch, peer: br1/b, route: on}}}, br1: {ports: {b: {type: patch, peer: br0/a}}}}", "", "port a of br0: only a host port routes"},
		{"a route at ports to come", "", `bridges: {br0: {ports: {"p*": {route: on}}}}`, "p1", "only a host port routes"},
		{"a VLAN that is private twice", "", "bridges: {br0: {vlan-filtering: on, private-vlans: {100: {isolated: 101}, 200: {community: 101}}}}", "", "VLAN 101 is already isolated below 100"},
		{"a trunk without its primary", "", "bridges: {br0: {vlan-filtering: on, ports: {p1: {tagged: 101}}, private-vlans: {100: {isolated: 101}}}}", "p1", "but not its primary VLAN 100"},
		{"a rule of no port", "", "bridges: {br0: {ports: {p1: {}}, rules: [block on p2]}}", "p1", "want.yaml:1:42: rule of br0: p2 is not a port of the bridge; name one that is"},
		{"a binding of no port", "", "bridges: {br0: {bindings: [{port: p2, mac: " + mac + ", address: 192.0.2.1}]}}", "p2", "binding of 192.0.2.1 in br0: p2 is not a port"},
		{"a binding without its VLAN", "", "bridges: {br0: {vlan-filtering: on, ports: {p1: {}}, bindings: [{port: p1, mac: " + mac + ", address: 192.0.2.1}]}}", "p1", "every frame is in one; give vlan"},
		{"an address bound twice", "", "bridges: {br0: {ports: {p1: {}}, bindings: [{port: p1, mac: " + mac + ", address: 192.0.2.1}, {port: p1, mac: 02:00:00:00:00:02, address: 192.0.2.1}]}}", "p1", "an address has only one station"},
		{"an entry of no port", "", "bridges: {br0: {fdb: [{port: p2, mac: " + mac + "}]}}", "", "address " + mac + " of br0: p2 is not a port"},
		{"an entry in a VLAN of others", "", "bridges: {br0: {vlan-filtering: on, ports: {p1: {}}, fdb: [{port: p1, vlan: 7, mac: " + mac + "}]}}", "p1", "port p1 is not in VLAN 7"},
		{"an entry twice", "", "bridges: {br0: {ports: {p1: {}}, fdb: [{port: p1, mac: " + mac + "}, {port: p1, mac: " + mac + "}]}}", "p1", "an address is behind only one port"},
		{"a mirror of no port", "", "bridges: {br0: {mirrors: {m0: {ports: p1}}}}", "m0 p1", "span port m0 of br0: p1 is not a port of the bridge"},
		{"a backup of no port", "", "bridges: {br0: {ports: {p1: {backup: p2}}}}", "p1", "want.yaml:1:25: backup p2 of port p1 of br0: p2 is not a port of the bridge; name one that is"},
		{"a backup of itself", "", "bridges: {br0: {ports: {p1: {backup: p1}}}}", "p1", "a port cannot be its own backup"},
		{"a backup of a patch port", "", "bridges: {br0: {ports: {a: {type: patch, peer: br1/b, backup: p1}, p1: {}}}, br1: {ports: {b: {type: patch, peer: br0/a}}}}", "p1", "a patch port has no carrier to lose"},
		{"mab of a port that is not locked", "", "bridges: {br0: {ports: {p1: {mab: on}}}}", "p1", "lock it with locked: on, or switch mab off with mab: off"},
		{"mab without a limit", "", "bridges: {br0: {ports: {p1: {locked: on, learn: off, mab: on}}}}", "p1", "give the port one, such as fdb-max: 64, or switch mab off with mab: off"},
		{"a mirror of a mirror", "", "bridges: {br0: {mirrors: {m0: {ports: m1}, m1: {}}}}", "m0 m1", "m1 is a span port itself"},
		{"a mirror of a VLAN without ports", "", "bridges: {br0: {vlan-filtering: on, ports: {p1: {}}, mirrors: {m0: {vlans: 7}}}}", "m0 p1", "no port is in VLAN 7"},
		{"a patch to nowhere", "", "bridges: {br0: {ports: {a: {type: patch, peer: br1/b}}}}", "", "there is no bridge br1 for its peer"},
		{"a patch with one end", "", "bridges: {br0: {ports: {a: {type: patch, peer: br1/b}}}, br1: {}}", "", "bridge br1 has no patch port b; give it there with peer: br0/a"},
		{"a patch whose ends disagree", "", "bridges: {br0: {ports: {a: {type: patch, peer: br1/b}}}, br1: {ports: {b: {type: patch, peer: br2/c}}}, br2: {ports: {c: {type: patch, peer: br1/b}}}}", "", "its peer br1/b has peer br2/c"},
		{"a patch to itself", "", "bridges: {br0: {ports: {a: {type: patch, peer: br0/b}}}}", "", "would be a loop"},
		{"a patch to a port of an unnamed bridge", "bridges: {br9: {ports: {p9: {}}}}", "bridges: {br0: {ports: {a: {type: patch, peer: br9/p9}}}}", "p9@br9", "p9 is another port of bridge br9"},
		{"a pattern for the switch's end", "", `bridges: {br0: {ports: {h: {type: host}, "bsc*": {}}}}`, "", "pattern bsc* of br0 matches bsc"},
		{"a pattern for a host port", "", `bridges: {br0: {ports: {"h*": {}}}, br1: {ports: {h1: {type: host}}}}`, "", "pattern h* of br0 matches h1, the interface of a host port of br1"},
		{"a pattern for a host port that runs", "bridges: {br9: {ports: {h1: {type: host}}}}", `bridges: {br0: {ports: {"h*": {}}}}`, "h1@br9!", "pattern h* of br0 matches h1"},
		{"a pattern for another's port", "", `bridges: {br0: {ports: {"p*": {}}}, br1: {ports: {p1: {}}}}`, "", "want.yaml:1:25: pattern p* of br0 matches port p1 of br1"},
		{"a pattern for another's mirror", "", `bridges: {br0: {ports: {"p*": {}}}, br1: {mirrors: {p1: {}}}}`, "", "pattern p* of br0 matches span port p1 of br1"},
		{"a pattern for a port of a bridge whose name ends like a note", "", `bridges: {"br)": {ports: {p1: {}}}, br1: {ports: {"p*": {}}}}`, "p1", "pattern p* of br1 matches port p1 of br)"},
		{"a mirror of a port twice", "", `bridges: {br0: {ports: {p1: {}}, mirrors: {p2: {ports: [p1, p1]}}}}`, "p1 p2", "span port p2 of br0: a port occurs twice in p1,p1; remove one"},
		{"two patterns", "", `bridges: {br0: {ports: {"p*": {}}}, br1: {ports: {"*1": {}}}}`, "p1", "port p1 of br1 (by *1) is already port p1 of br0 (by p*)"},
		{"an unnamed bridge's port", "bridges: {br9: {ports: {p1: {}}}}", `bridges: {br0: {ports: {p1: {}}}}`, "p1@br9", "the device is a port of bridge br9, which the file does not name"},
		{"a device that can't be a port", "", `bridges: {br0: {ports: {p1: {}}}}`, "p1?", "port p1 of br0: it belongs to bond bond0"},
		{"a host port for an interface", "", `bridges: {br0: {ports: {p1: {type: host}}}}`, "p1", "an interface of this name exists"},
		{"a host port's interface", "bridges: {br0: {ports: {h: {type: host}}}, br1: {}}", "bridges: {br0: {ports: {h: {type: host}}}, br1: {ports: {h: {}}}}", "h@br0!",
			"port h of br1 is the host's interface of port h of br0, at want.yaml:1:25; join bridges with a patch cable"},
		{"a host port's interface that is yet to be made", "bridges: {br0: {ports: {h: {type: host}}}, br1: {}, br2: {}}", "bridges: {br0: {}, br1: {ports: {h: {type: host}}}, br2: {ports: {h: {}}}}", "h@br0!",
			"port h of br2 is the host's interface of port h of br1"},
		{"a mirror that is a host port's interface", "", "bridges: {br0: {ports: {h: {type: host}}}, br1: {mirrors: {h: {}}}}", "", "span port h of br1 is the host's interface of port h of br0"},
		{"an unnamed bridge's host port", "bridges: {br9: {ports: {h: {type: host}}}}", "bridges: {br1: {ports: {h: {}}}}", "h@br9!", "port h of br1 is the host's interface of a host port of br9"},
		{"a device renamed to a cable's name", "bridges: {br0: {ports: {c: {type: patch, peer: br1/d}}}, br1: {ports: {d: {type: patch, peer: br0/c}}}}",
			"bridges: {br0: {ports: {c: {type: patch, peer: br1/d}}}, br1: {ports: {d: {type: patch, peer: br0/c}}}}", "c@br0",
			"port c of br0: a device that is a port of the bridge now has the same name; rename it with 'ip link set c name NAME'"},
		{"two host ports", "", `bridges: {br0: {ports: {h: {type: host}}}, br1: {ports: {h: {type: host}}}}`, "", "port h of br1 is already port h of br0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			actions, _, err := Plan(fileOf(t, "was", c.was), fileOf(t, "want", c.want), devicesOf(c.devices))
			bad, ok := err.(Errors)
			if !ok || actions != nil {
				t.Fatalf("actions %v, error %v", actions, err)
			}
			if len(bad) != 1 || !strings.Contains(bad[0].Error(), c.err) || strings.Contains(bad[0].Error(), "\n") || !strings.Contains(bad[0].Error(), "; ") {
				t.Errorf("the error is\n  %v\nshould be one with\n  %s", err, c.err)
			}
		})
	}
}

// TestPlanRefusesMany expects the first mistakes of a file with the number of the others, and all
// mistakes of another file.
func TestPlanRefusesMany(t *testing.T) {
	want := fileOf(t, "want", "bridges:\n  br0:\n    rules:\n"+strings.Repeat("    - block on p1\n", 1000))
	want.Bridges = append(want.Bridges, fileOf(t, "zwei", "bridges: {br1: {rules: [block on p1, block on p2]}}").Bridges...)
	_, _, err := Plan(File{}, want, nil)
	bad := err.(Errors)
	if n := maxErrors + 1 + 2; len(bad) != n {
		t.Fatalf("%d errors, should be %d: %v", len(bad), n, err)
	}
	if last := bad[maxErrors-1]; last.At.Line != maxErrors+3 {
		t.Errorf("the last of the first is %v", last)
	}
	if more := bad[maxErrors].Error(); more != "want.yaml: 980 more errors" {
		t.Errorf("what follows is %q", more)
	}
}

// TestPlanRefusesAll expects all mistakes of a file at once, in their order.
func TestPlanRefusesAll(t *testing.T) {
	_, _, err := Plan(File{}, fileOf(t, "want", `bridges:
  br0:
    ports:
      p1: {locked: on}
      p2: {pvid: 3}
    rules:
      - block on p7
  br1:
    ports:
      p1: {}
`), devicesOf("p1 p2"))
	var lines []int
	for _, e := range err.(Errors) {
		lines = append(lines, e.At.Line)
	}
	if want := []int{4, 5, 7, 10}; !slices.Equal(lines, want) {
		t.Errorf("errors at lines %v, should be at %v: %v", lines, want, err)
	}
}

// TestPlanOneChange requires any number of bindings, or of FDB entries, to be one change: each
// single change would read the whole table.
func TestPlanOneChange(t *testing.T) {
	of := func(port string) string {
		text := "bridges:\n  br0:\n    ports: {p1: {}, p2: {}}\n"
		for what, address := range map[string]string{"bindings": ", address: 192.0.2.%d", "fdb": ""} {
			text += "    " + what + ":\n"
			for i := range 100 {
				text += fmt.Sprintf("    - {port: %s, mac: \"02:00:00:00:00:%02x\""+address+"}\n", append([]any{port, i + 1}, []any{i + 1}[:strings.Count(address, "%")]...)...)
			}
		}
		return text
	}
	none := "bridges: {br0: {ports: {p1: {}, p2: {}}}}"
	for _, c := range []struct {
		name, was, want string
		stage           int
	}{
		{"come", none, of("p1"), remember},
		{"move", of("p1"), of("p2"), remember},
		{"go", of("p1"), none, forget},
	} {
		p := newPlan(fileOf(t, "was", c.was), fileOf(t, "want", c.want), devicesOf("p1@br0 p2@br0"))
		if err := p.want.bad.errors(); err != nil {
			t.Fatal(err)
		}
		if len(p.actions) != 200 {
			t.Errorf("%s: %d actions, want 200", c.name, len(p.actions))
		}
		for stage, steps := range p.stages {
			want := 0
			if stage == c.stage {
				want = 2
			}
			if len(steps) != want {
				t.Errorf("%s: %d steps of stage %d, want %d", c.name, len(steps), stage, want)
			}
		}
	}
}

// TestPlanRefusesTooMany expects a bridge with too many objects to be refused before any change. The
// error has both numbers and the position of the first object above the limit.
func TestPlanRefusesTooMany(t *testing.T) {
	for _, c := range []struct {
		what  string
		line  func(int) string
		most  int // one line each from line 4 on
		words string
	}{
		{"bindings", func(i int) string {
			return fmt.Sprintf("- {port: p1, mac: \"02:00:00:00:00:01\", address: 10.%d.%d.%d}", i>>16, i>>8&255, i&255)
		}, 65536, "bridge br0 has 65539 bindings, and no bridge can have more than 65536; "},
		{"rules", func(i int) string { return fmt.Sprintf("- block in on p1 src 02:00:00:00:%02x:%02x", i>>8, i&255) }, 16384,
			"bridge br0 has 16387 rules, and no bridge can have more than 16384; "},
		{"mirrors", func(i int) string { return fmt.Sprintf("m%d: {}", i) }, 16, "bridge br0 has 19 mirrors, and no bridge can have more than 16; "},
		{"fdb-max: 10\n    fdb", func(i int) string { return fmt.Sprintf("- {port: p1, mac: \"02:00:00:00:%02x:%02x\"}", i>>8, i&255) },
			bridge.EntryRoom(10), "bridge br0 has 1087 static and sticky addresses, and with fdb-max 10 there is room for 1084; "},
	} {
		text := func(n int) string {
			var b strings.Builder
			fmt.Fprintf(&b, "bridges:\n  br0:\n    %s:\n", c.what)
			for i := range n {
				fmt.Fprintf(&b, "      %s\n", c.line(i+1))
			}
			return b.String() + "    ports: {p1: {}}\n"
		}
		if _, _, err := Plan(File{}, fileOf(t, "want", text(c.most)), devicesOf("p1")); err != nil {
			t.Errorf("%s: as many as there can be: %v", c.what, err)
		}
		_, _, err := Plan(File{}, fileOf(t, "want", text(c.most+3)), devicesOf("p1"))
		first := 4 + c.most + strings.Count(c.what, "\n")
		if bad, _ := err.(Errors); len(bad) != 1 || !strings.Contains(bad[0].Msg, c.words) || bad[0].At.Line != first {
			t.Errorf("%s: %v, want one at line %d with\n%s", c.what, err, first, c.words)
		}
	}
}

// TestPFStays checks that pf stays on if a hostname.if(5) file loses its word for pf, as with YAML.
// A note has to say so, since OpenBSD would switch pf off.
func TestPFStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hostname.veb0")
	const stays = "pf of veb0 stays on, since the file has no link1; -link1 disables it"
	tests := []struct {
		text              string
		runs              bool
		actions, warnings []string
	}{
		{"up\n", true, nil, []string{path + ": " + stays}},
		{"up\n", false, nil, nil},
		{"link1 up\n", true, nil, nil},
		{"-link1 up\n", true, []string{"~ pf of veb0: enabled on -> off"}, nil},
	}
	for _, test := range tests {
		if err := os.WriteFile(path, []byte(test.text), 0o644); err != nil {
			t.Fatal(err)
		}
		list, err := Load(path)
		if err != nil {
			t.Fatal(err)
		}
		was := fileOf(t, "was", "bridges: {veb0: {vlan-filtering: on}}")
		was.Bridges[0].PF = &PF{Enabled: test.runs}
		plan, warnings, err := Plan(was, list[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		var actions []string
		for _, a := range plan {
			actions = append(actions, a.String())
		}
		if !slices.Equal(actions, test.actions) || !slices.Equal(warnings, test.warnings) {
			t.Errorf("%q where pf is on is %t: %q, %q; should be %q, %q", test.text, test.runs, actions, warnings, test.actions, test.warnings)
		}
	}
}
