// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"bascule/bridge"
	"bascule/config"
	"bascule/test/netlab"
)

// everything has one of each thing that a file can contain. p1 to p8 are ports of the lab.
const everything = `bridges:
  br0:
    ageing: 60s
    vlan-filtering: on
    default-pvid: 5
    ports:
      p1: {pvid: 10, tagged: "20-30,40"}
      p2: {pvid: 101, loop-guard: 60s}
      up0: {type: host, pvid: 100, storm-bcast: 500pps}
      to1: {type: patch, peer: br1/to0, tagged: "20,30"}
      "p[45]": {locked: on, learn: off, isolated: on}
      late0: {hairpin: on}
    private-vlans: {100: {isolated: 101, community: "102,103"}}
    rules:
      - block in on p1 src 02:00:00:00:00:66
      - pass on to1 tag foo
      - block out on p1
    bindings:
      - {port: p1, mac: "02:00:00:00:00:05", address: 192.0.2.1, vlan: 10}
      - {port: p2, mac: "02:00:00:00:00:05", address: "2001:db8::1", vlan: 101}
    mirrors: {p6: {ports: [p1, to1], vlans: 10, direction: both}}
    fdb:
      - {mac: "02:00:00:00:00:aa", port: p1, vlan: 20, sticky: on}
      - {mac: "02:00:00:00:00:ab", port: p2}
    pf:
      rules: |
        set skip on p2
        table <own> persist { 10.0.0.1, !10.0.0.2, 10.1.0.0/16 }
        table <bad> counters
        ether pass on p1
        block in on p1 from <own>
        anchor "inner" {
          table <deep> { 192.0.2.0/24 }
          pass from <deep> to <bad>
        }
        pass
  br1:
    ports:
      to0: {type: patch, peer: br0/to1, storm-bcast: 500pps, protected: "2,3"}
      p3: {}
`

// applyCases are the cases of `bascule apply` and `bascule export`.
var applyCases = []struct {
	name string
	run  func(t *testing.T, l *netlab.Lab)
}{
	{"apply_from_nothing", applyFromNothing},
	{"apply_forwards", applyForwards},
	{"apply_changes", applyChanges},
	{"apply_dry_run", applyDryRun},
	{"apply_bad_files", applyBadFiles},
	{"apply_folder", applyFolder},
	{"apply_device_comes", applyDeviceComes},
	{"apply_emptied_mirror", applyEmptiedMirror},
	{"apply_pf", applyPF},
	{"apply_beside_others", applyBesideOthers},
	{"apply_renamed", applyRenamed},
	{"apply_killed_anywhere", applyKilledAnywhere},
	{"apply_killed_host", applyKilledHost},
	{"apply_at_once", applyAtOnce},
	{"export", export},
	{"addresses", applyAddresses},
	{"export-idle", exportIdle},
}

func TestApply(t *testing.T) {
	for _, c := range applyCases {
		t.Run(c.name, func(t *testing.T) {
			l := netlab.New(t)
			l.NewEnds(8)
			c.run(t, l)
		})
	}
}

// file writes a file and returns its path.
func file(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	must(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// apply applies a file, which must succeed, and returns the printed lines. It permits warnings
// about ports that wait, and about features that XDP loses.
func apply(t testing.TB, l *netlab.Lab, args ...string) []string {
	t.Helper()
	r, err := l.Run(append([]string{"apply"}, args...)...)
	must(t, err)
	if r.Exit != 0 {
		t.Fatal(r)
	}
	return linesOf(r.Stdout)
}

func linesOf(text string) (lines []string) {
	for line := range strings.Lines(text) {
		lines = append(lines, strings.TrimSuffix(line, "\n"))
	}
	return lines
}

// wantLines compares the lines of a plan.
func wantLines(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.Equal(got, want) {
		t.Errorf("the plan is\n  %s\nshould be\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

func applyFromNothing(t *testing.T, l *netlab.Lab) {
	path := file(t, "all.yaml", everything)
	if lines := apply(t, l, path); len(lines) != 30 {
		t.Errorf("%d lines:\n%s", len(lines), strings.Join(lines, "\n"))
	}
	generation := l.Bascule("-j", "rule", "show") + l.Bascule("-j", "fdb", "show", "br0", "--static")
	wantLines(t, apply(t, l, path))
	if now := l.Bascule("-j", "rule", "show") + l.Bascule("-j", "fdb", "show", "br0", "--static"); now != generation {
		t.Errorf("the second time has changed\n%s to\n%s", generation, now)
	}
	// The file does not affect other bridges.
	l.Bascule("bridge", "add", "other")
	wantLines(t, apply(t, l, path))
	l.Bascule("bridge", "show", "other")
}

func applyForwards(t *testing.T, l *netlab.Lab) {
	e := l.Ends
	apply(t, l, file(t, "f.yaml", "bridges: {br0: {ports: {p1: {}, p2: {}, p3: {isolated: on}, p4: {isolated: on}}, rules: [\"block in on p2 src 02:00:00:00:00:66\"]}}"))
	bad := netlab.MAC{2, 0, 0, 0, 0, 0x66}
	l.Reach(e[0], l.Frames(3, netlab.Broadcast, e[0].MAC), e[1], e[2], e[3])
	l.Reach(e[2], l.Frames(3, netlab.Broadcast, e[2].MAC), e[0], e[1])
	l.Reach(e[1], l.Frames(3, netlab.Broadcast, bad))
	l.Reach(e[1], l.Frames(3, e[0].MAC, e[1].MAC), e[0])
}

// applyChanges makes one change after the other. Each has to be printed and made.
func applyChanges(t *testing.T, l *netlab.Lab) {
	text := everything
	apply(t, l, file(t, "all.yaml", text))
	for _, c := range []struct {
		old, new string
		plan     []string
	}{
		{"ageing: 60s", "ageing: 90s", []string{"~ bridge br0: ageing 60s -> 90s"}},
		{"p2: {pvid: 101, loop-guard: 60s}", "p2: {pvid: 101, hook: xdp}", []string{"~ port p2 of br0: hook tcx -> xdp, loop-guard 60s -> off"}},
		{"p3: {}", "p3: {}\n      p7: {learn: off}", []string{"+ port p7 of br1: learn off"}},
		{"      p7: {learn: off}\n", "", []string{"- port p7 of br1: learn off"}},
		{`tagged: "20-30,40"`, "tagged: 20-30", []string{"~ port p1 of br0: tagged 20-30,40 -> 20-30 (-40)"}},
		{"default-pvid: 5", "default-pvid: 6", []string{
			"~ bridge br0: default-pvid 5 -> 6", "~ port p4 of br0: pvid 5 -> 6", "~ port p5 of br0: pvid 5 -> 6",
		}},
		{`"102,103"`, "103", []string{"~ private VLAN 100 of br0: isolated 101, community 102-103 -> isolated 101, community 103"}},
		{"      - block out on p1\n", "      - block out on up0\n", []string{"- rule of br0: block out on p1", "+ rule of br0: block out on up0"}},
		{"address: 192.0.2.1,", "address: 192.0.2.2,", []string{
			"- binding 192.0.2.1 of br0: 02:00:00:00:00:05 on p1, vlan 10", "+ binding 192.0.2.2 of br0: 02:00:00:00:00:05 on p1, vlan 10",
		}},
		{`port: p2, mac: "02:00:00:00:00:05"`, `port: p2, mac: "02:00:00:00:00:06"`, []string{
			"~ binding 2001:db8::1 of br0: 02:00:00:00:00:05 on p2, vlan 100 -> 02:00:00:00:00:06 on p2, vlan 100",
		}},
		{"ports: [p1, to1]", "ports: [p1]", []string{"- span port p6 of br0: ports p1,to1, vlans 10, direction both", "+ span port p6 of br0: ports p1, vlans 10, direction both"}},
		{"vlan: 20, sticky: on", "vlan: 20", []string{"~ address 02:00:00:00:00:aa of br0: on p1, vlan 20, sticky -> on p1, vlan 20"}},
		{`{mac: "02:00:00:00:00:ab", port: p2}`, `{mac: "02:00:00:00:00:ab", port: up0}`, []string{
			"~ address 02:00:00:00:00:ab of br0: on p2, vlan 100 -> on up0, vlan 100",
		}},
		{"protected: \"2,3\"", "isolated: on", []string{"~ port to0 of br1: protected 2,3 -> 1"}},
		// A cable whose other end has another name is another cable.
		{"      to0: {type: patch", "      to00: {type: patch", nil},
		{"peer: br1/to0,", "peer: br1/to00,", []string{
			"- port to1 of br0: type patch, peer br1/to0, tagged 20,30", "+ port to1 of br0: type patch, peer br1/to00, tagged 20,30", "+ rule of br0: pass on to1 tag foo",
			"- port to0 of br1: type patch, peer br0/to1, isolated on, storm-bcast 500pps", "+ port to00 of br1: type patch, peer br0/to1, isolated on, storm-bcast 500pps",
		}},
		// Devices swap their places, and a mirror becomes a port.
		{"      p3: {}\n", "      p1: {}\n", nil},
		{"      p1: {pvid: 10, tagged: 20-30}\n", "      p3: {pvid: 10, tagged: 20-30}\n", nil},
		{"on p1 src", "on p3 src", nil},
		{"port: p1, mac", "port: p3, mac", nil},
		{"port: p1, vlan: 20", "port: p3, vlan: 20", nil},
		{"ether pass on p1", "ether pass on p3", nil},
		{"block in on p1 from", "block in on p3 from", nil},
		{"mirrors: {p6: {ports: [p1]", "mirrors: {p8: {ports: [p3]", nil},
		{`      "p[45]"`, "      p6: {}\n" + `      "p[45]"`, []string{
			"- port p1 of br0: pvid 10, tagged 20-30", "+ port p3 of br0: pvid 10, tagged 20-30", "+ port p6 of br0",
			"- rule of br0: block in on p1 src 02:00:00:00:00:66", "+ rule of br0: block in on p3 src 02:00:00:00:00:66",
			"- binding 192.0.2.2 of br0: 02:00:00:00:00:05 on p1, vlan 10", "+ binding 192.0.2.2 of br0: 02:00:00:00:00:05 on p3, vlan 10",
			"- span port p6 of br0: ports p1, vlans 10, direction both", "+ span port p8 of br0: ports p3, vlans 10, direction both",
			"- address 02:00:00:00:00:aa of br0: on p1, vlan 20", "+ address 02:00:00:00:00:aa of br0: on p3, vlan 20",
			"~ pf of br0: rules of FILE", "- pf rule of br0: ether pass on p1", "- pf rule of br0: block drop in on p1 from <own> to any",
			"+ pf rule of br0: ether pass on p3", "+ pf rule of br0: block drop in on p3 from <own> to any",
			"- port p3 of br1", "+ port p1 of br1",
		}},
		{"vlan-filtering: on", "qinq: on", nil},
		{"    default-pvid: 6\n", "", nil},
		{"pvid: 10, tagged: 20-30", "learn: on", nil},
		{"pvid: 101, ", "", nil},
		{"pvid: 100, ", "", nil},
		{`, tagged: "20,30"`, "", nil},
		{`    private-vlans: {100: {isolated: 101, community: 103}}` + "\n", "", nil},
		{", vlans: 10", "", nil},
		{", vlan: 20}", "}", nil},
		{", vlan: 10}", "}", nil},
		{", vlan: 101}", "}", []string{
			"~ bridge br0: vlan-filtering on -> off, default-pvid 6 -> 1, qinq off -> on", "- private VLAN 100 of br0: isolated 101, community 103",
			"- binding 192.0.2.2 of br0: 02:00:00:00:00:05 on p3, vlan 10", "- binding 2001:db8::1 of br0: 02:00:00:00:00:06 on p2, vlan 100",
			"+ binding 192.0.2.2 of br0: 02:00:00:00:00:05 on p3", "+ binding 2001:db8::1 of br0: 02:00:00:00:00:06 on p2",
			"- span port p8 of br0: ports p3, vlans 10, direction both", "+ span port p8 of br0: ports p3, direction both",
			"- address 02:00:00:00:00:aa of br0: on p3, vlan 20", "- address 02:00:00:00:00:ab of br0: on up0, vlan 100",
			"+ address 02:00:00:00:00:aa of br0: on p3", "+ address 02:00:00:00:00:ab of br0: on up0",
		}},
		{"qinq: on", "vlan-filtering: on", nil},
		{`address: 192.0.2.2}`, `address: 192.0.2.2, vlan: 1}`, nil},
		{`address: "2001:db8::1"}`, `address: "2001:db8::1", vlan: 1}`, []string{
			"~ bridge br0: vlan-filtering off -> on, qinq on -> off", "~ port p3 of br0: pvid none -> 1", "~ port p2 of br0: pvid none -> 1",
			"~ port up0 of br0: pvid none -> 1", "~ port to1 of br0: pvid none -> 1", "~ port p6 of br0: pvid none -> 1",
			"~ port p4 of br0: pvid none -> 1", "~ port p5 of br0: pvid none -> 1",
			"- binding 192.0.2.2 of br0: 02:00:00:00:00:05 on p3", "- binding 2001:db8::1 of br0: 02:00:00:00:00:06 on p2",
			"+ binding 192.0.2.2 of br0: 02:00:00:00:00:05 on p3, vlan 1", "+ binding 2001:db8::1 of br0: 02:00:00:00:00:06 on p2, vlan 1",
			"- address 02:00:00:00:00:aa of br0: on p3", "- address 02:00:00:00:00:ab of br0: on up0",
			"+ address 02:00:00:00:00:aa of br0: on p3, vlan 1", "+ address 02:00:00:00:00:ab of br0: on up0, vlan 1",
		}},
	} {
		if !strings.Contains(text, c.old) {
			t.Fatalf("%q is not in\n%s", c.old, text)
		}
		text = strings.Replace(text, c.old, c.new, 1)
		if c.plan == nil {
			continue // together with the next one
		}
		path := file(t, "all.yaml", text)
		got := apply(t, l, path)
		for i := range got {
			got[i] = strings.ReplaceAll(got[i], path, "FILE")
		}
		wantLines(t, got, c.plan...)
		wantLines(t, apply(t, l, path))
		if t.Failed() {
			t.Fatalf("%q became %q", c.old, c.new)
		}
	}
}

func applyDryRun(t *testing.T, l *netlab.Lab) {
	path := file(t, "f.yaml", "bridges: {br0: {ports: {p1: {}}}}")
	dry := func(want int, lines ...string) {
		t.Helper()
		r, err := l.Run("apply", "--dry-run", path)
		must(t, err)
		if r.Exit != want || r.Stderr != "" {
			t.Errorf("%v: the status should be %d", r, want)
		}
		wantLines(t, linesOf(r.Stdout), lines...)
	}
	dry(3, "+ bridge br0", "+ port p1 of br0")
	if r := l.Bascule("bridge", "show"); r != "" {
		t.Errorf("a dry run made %s", r)
	}
	apply(t, l, path)
	dry(0)
	l.Bascule("port", "set", "br0", "p1", "--hairpin")
	dry(3, "~ port p1 of br0: hairpin on -> off")
}

func applyBadFiles(t *testing.T, l *netlab.Lab) {
	good := file(t, "good.yaml", "bridges: {br0: {ports: {p1: {}}}}")
	apply(t, l, good)
	before := l.Bascule("export")
	for _, c := range []struct{ text, words string }{
		{"bridges: {br0: {ports: {p2: {}, p3: {locked: on}}}}", "bad.yaml:1:33: cannot set port p3 of br0"},
		{"bridges: {br0: {ports: {p2: {}}, rules: [block on p1]}}", "bad.yaml:1:42: rule of br0: p1 is not a port"},
		{"bridges: {br0: {agein: 1s}}", `bad.yaml:1:17: bridge "br0" has no "agein"; the nearest is ageing`},
		{"bridges: {br0: {ports: {p2: {}}}, br1: {ports: {p2: {}}}}", "port p2 of br1 is already port p2 of br0"},
		{"bridges: {br0: {ports: {p2: {}}, pf: {rules: pass frm any}}}", "pf of br0: "},
		{"bridges: {br0: {ports: {p2: {}}, pf: {file: none.conf}}}", "none.conf: no such file or directory; give"},
		{"bridges: {br0: {ports: {lo: {}}}}", "it is the loopback interface"},
		{`bridges: {br0: {ports: {host0: {type: host}, "*": {}}}}`, "pattern * of br0 matches host0, the interface of a host port of br0"},
	} {
		l.Refused([]string{c.words}, "apply", file(t, "bad.yaml", c.text))
		if after := l.Bascule("export"); after != before {
			t.Errorf("%s has changed\n%s to\n%s", c.text, before, after)
		}
	}
	// All mistakes are listed, a line each.
	r, err := l.Run("apply", file(t, "bad.yaml", "bridges:\n  br0: {ports: {p2: {locked: on}}}\n  br1: {ports: {p2: {}}, pf: {rules: pass frm any}}\n"))
	must(t, err)
	if r.Exit != 1 || strings.Count(r.Stderr, "\n") != 3 || strings.Count(r.Stderr, "bascule: ") != 3 {
		t.Errorf("%v: should be three lines", r)
	}
}

func applyFolder(t *testing.T, l *netlab.Lab) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"10-a.yaml": "bridges: {br0: {ports: {to1: {type: patch, peer: br1/to0}}}}", "20-b.yml": "bridges: {br1: {ports: {to0: {type: patch, peer: br0/to1}}}}",
		"hostname.veb0": "add p1\nadd p2\nup\n", "notes": "not read",
	} {
		must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	apply(t, l, "-f", dir)
	wantLines(t, apply(t, l, dir))
	for _, name := range []string{"br0", "br1", "veb0"} {
		if n := len(l.Bridge(name).Ports); n == 0 {
			t.Errorf("%s has no ports", name)
		}
	}
}

func applyDeviceComes(t *testing.T, l *netlab.Lab) {
	e := l.Ends[0]
	path := file(t, "f.yaml", `bridges: {br0: {ports: {p1: {hairpin: on}, "p[23]": {}, new0: {}}, rules: [block out on p1], fdb: [{mac: 02:00:00:00:00:01, port: p1}]}}`)
	r, err := l.Run("apply", path)
	must(t, err)
	if r.Exit != 0 || r.Stderr != "bascule: warning: port new0 of br0 waits for its device\n" {
		t.Error(r)
	}
	// A port whose device was deleted stays.
	e.Unplug()
	wantLines(t, apply(t, l, path))
	// It takes a new device of that name.
	e.PlugAgain(0)
	l.Bascule("port", "show", "br0")
	wantLines(t, apply(t, l, path),
		"- port p1 of br0: hairpin on", "+ port p1 of br0: hairpin on", "+ rule of br0: block out on p1", "+ address 02:00:00:00:00:01 of br0: on p1")
	wantLines(t, apply(t, l, path))
}

// applyEmptiedMirror deletes the only port of a mirror with a command. The mirror stays and copies
// nothing. It differs from the file, and is not a mirror of all ports.
func applyEmptiedMirror(t *testing.T, l *netlab.Lab) {
	const ports = "ports: {p1: {}, p2: {}}, rules: [block in on p1 arp]"
	path := file(t, "f.yaml", "bridges: {br0: {"+ports+", mirrors: {p3: {ports: [p1]}}}}")
	empty := func() {
		t.Helper()
		apply(t, l, path)
		l.Bascule("port", "del", "br0", "p1")
	}
	again := []string{"+ port p1 of br0", "+ rule of br0: block in on p1 arp"}
	empty()
	r, err := l.Run("export")
	must(t, err)
	if r.Exit != 0 || strings.Contains(r.Stdout, "p3") || !strings.Contains(r.Stderr, "span port p3 of br0 is left out: it copies nothing") {
		t.Error(r)
	}
	exported := file(t, "export.yaml", r.Stdout)
	plan := append(again, "- span port p3 of br0", "+ span port p3 of br0: ports p1, direction in")
	r, err = l.Run("apply", "--dry-run", path)
	must(t, err)
	wantLines(t, linesOf(r.Stdout), plan...)
	wantLines(t, apply(t, l, path), plan...)
	wantLines(t, apply(t, l, path))
	if list := l.Bascule("span", "show", "br0"); !strings.Contains(list, "in         forwarding  p1") {
		t.Errorf("the mirror is\n%s", list)
	}
	empty()
	wantLines(t, apply(t, l, exported), "- span port p3 of br0")
	wantLines(t, apply(t, l, exported))
	empty()
	wantLines(t, apply(t, l, file(t, "all.yaml", "bridges: {br0: {"+ports+", mirrors: {p3: {}}}}")),
		append(again, "- span port p3 of br0", "+ span port p3 of br0: all ports, direction in")...)
	// The device becomes a port again, and a port of another bridge.
	empty()
	wantLines(t, apply(t, l, file(t, "port.yaml", "bridges: {br0: {ports: {p2: {}, p3: {}}}}")), "+ port p3 of br0", "- span port p3 of br0")
	empty()
	wantLines(t, apply(t, l, file(t, "other.yaml", "bridges: {br1: {ports: {p3: {}}}, br0: {ports: {p2: {}}}}")),
		"+ bridge br1", "+ port p3 of br1", "- span port p3 of br0")
	// Without the device the mirror can't be made again.
	l.Bascule("bridge", "del", "br1")
	empty()
	l.Ends[2].Unplug()
	r, err = l.Run("apply", path)
	must(t, err)
	if r.Exit != 0 || r.Stderr != "bascule: warning: span port p3 of br0 waits for its device\n" {
		t.Error(r)
	}
	wantLines(t, linesOf(r.Stdout), append(again, "- span port p3 of br0")...)
	l.Ends[2].PlugAgain(0)
	wantLines(t, apply(t, l, path), "+ span port p3 of br0: ports p1, direction in")
}

// applyBesideOthers has other commands change the switch after the plan was made.
func applyBesideOthers(t *testing.T, l *netlab.Lab) {
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer func() {
		s.Close()
		runtime.GC() // which unmaps the tables of the programs that this process has loaded
	}()
	read := func(text string) config.File {
		files, err := config.Load(file(t, "f.yaml", text))
		must(t, err)
		return files[0]
	}
	f := read("bridges: {br0: {ageing: 60s, ports: {\"p[12]\": {hairpin: on}, p3: {}}}, br1: {ageing: 70s, ports: {p4: {}}}}")
	_, _, err = config.Apply(s, read("bridges: {br0: {ports: {p5: {}}}, br1: {}}"), config.Options{})
	must(t, err)
	for _, c := range []struct {
		name string
		do   func()
	}{
		{"a port was added", func() { l.Bascule("port", "add", "br0", "p1") }},
		{"a port was added to another bridge", func() { l.Bascule("port", "add", "br1", "p2") }},
		{"a port was removed", func() { l.Bascule("port", "del", "br0", "p5") }},
		{"a bridge was removed", func() { l.Bascule("bridge", "del", "br1") }},
		{"a device went", func() { l.Ends[3].Unplug() }},
	} {
		plans := 0
		_, _, err := config.Apply(s, f, config.Options{Report: func([]config.Action) {
			if plans++; plans == 1 {
				c.do()
			}
		}})
		if err != nil || plans != 2 {
			t.Errorf("%s: %v, after %d plans", c.name, err, plans)
		}
		b := l.Bridge("br0")
		slices.Sort(b.Ports)
		if b.AgeingTime != 60 || !slices.Equal(b.Ports, []string{"p1", "p2", "p3"}) {
			t.Errorf("%s: %+v", c.name, b)
		}
		if b := l.Bridge("br1"); b.AgeingTime != 70 {
			t.Errorf("%s: %+v", c.name, b)
		}
		_, _, err = config.Apply(s, read("bridges: {br0: {ports: {p5: {}}}, br1: {}}"), config.Options{})
		must(t, err)
	}
}

// applyPF changes pf with commands. apply loads the parts that differ from the file, and does not
// touch the others, or their states.
func applyPF(t *testing.T, l *netlab.Lab) {
	dir := t.TempDir()
	conf := filepath.Join(dir, "pf.conf")
	must(t, os.WriteFile(conf, []byte("table <t> persist { 10.0.0.1 }\ntable <seen> persist\npass in on p1 # a comment\n"), 0o644))
	path := filepath.Join(dir, "f.yaml")
	must(t, os.WriteFile(path, []byte("bridges: {br0: {ports: {p1: {}}, pf: {file: pf.conf}}}"), 0o644))
	apply(t, l, path)
	wantLines(t, apply(t, l, path))
	changed := "~ pf of br0: rules of " + conf
	must(t, os.WriteFile(conf, []byte("table <t> persist { 10.0.0.1 }\ntable <seen> persist\npass in  on p1\n"), 0o644))
	wantLines(t, apply(t, l, path))
	l.Bascule("pfctl", "-b", "br0", "-q", "-t", "seen", "-T", "add", "192.0.2.1")
	wantLines(t, apply(t, l, path)) // their contents are not in the file
	l.Bascule("pfctl", "-b", "br0", "-q", "-t", "t", "-T", "add", "192.0.2.1")
	wantLines(t, apply(t, l, path), changed, "- pf rule of br0: table <t> persist { 10.0.0.1 192.0.2.1 }", "+ pf rule of br0: table <t> persist { 10.0.0.1 }")
	must(t, os.WriteFile(conf, []byte("table <t> persist { 10.0.0.1 }\ntable <seen> persist\nblock in on p1\n"), 0o644))
	wantLines(t, apply(t, l, path), changed, "- pf rule of br0: pass in on p1 all flags S/SA", "+ pf rule of br0: block drop in on p1 all")
	l.Bascule("pfctl", "-b", "br0", "-q", "-d")
	wantLines(t, apply(t, l, path), "~ pf of br0: enabled off -> on")
	must(t, os.WriteFile(path, []byte("bridges: {br0: {ports: {p1: {}}, pf: off}}"), 0o644))
	wantLines(t, apply(t, l, path), "~ pf of br0: enabled on -> off")
	must(t, os.WriteFile(path, []byte("bridges: {br0: {ports: {p1: {}}}}"), 0o644))
	wantLines(t, apply(t, l, path))
	if rules := l.Bascule("pfctl", "-b", "br0", "-s", "rules"); !strings.HasPrefix(rules, "block drop in on p1") {
		t.Errorf("the rules are %q", rules)
	}
}

// applyKilledAnywhere kills apply as it enters a system call. The next one does the rest, and the
// one after it has nothing to do.
func applyKilledAnywhere(t *testing.T, l *netlab.Lab) {
	// Two states: ports swap their places, cables and all other things appear and disappear.
	swapped := strings.NewReplacer("p1", "p3", "p3", "p1", "p6", "p8", "ageing: 60s", "ageing: 70s", "to1", "to2", "192.0.2.1", "192.0.2.9", "\"102,103\"", "104").Replace(everything)
	paths := []string{file(t, "a.yaml", everything), file(t, "b.yaml", swapped)}
	calls := []string{"bpf", "mkdirat", "renameat", "unlinkat", "symlinkat", "sendto", "flock"}
	apply(t, l, paths[0])
	r, count, err := netlab.RunCounted(l.Command("apply", paths[1]), calls...)
	must(t, err)
	if r.Exit != 0 {
		t.Fatal(r)
	}
	if count["bpf"] < 100 || count["renameat"] < 3 {
		t.Fatalf("apply makes only these calls: %v", count)
	}
	calls = slices.DeleteFunc(calls, func(call string) bool { return count[call] == 0 })
	killed, tries, at := 0, 0, 1
	for kills := netlab.Third(12); killed < kills; tries++ {
		if tries == 100 {
			t.Fatalf("it got away from all but %d of %d kills", killed, tries)
		}
		call := calls[rand.IntN(len(calls))]
		n := 1 + rand.IntN(count[call])
		r, err := netlab.RunKilled(l.Command("apply", paths[1-at]), call, n)
		must(t, err)
		if r.Exit == -1 {
			killed++
		} else if r.Exit != 0 {
			t.Fatal(r)
		}
		at = 1 - at
		apply(t, l, paths[at])
		if lines := apply(t, l, paths[at]); lines != nil {
			t.Fatalf("after a kill in %s number %d the second apply did\n  %s", call, n, strings.Join(lines, "\n  "))
		}
	}
	t.Logf("killed %d times of %d", killed, tries)
}

// applyKilledHost kills applies that make a host port. Its interface exists when the next one
// plans, and no port has it yet.
func applyKilledHost(t *testing.T, l *netlab.Lab) {
	path := file(t, "host.yaml", "bridges:\n  brg:\n    ports:\n      p1: {}\n      h0: {type: host}\n")
	for n := 1; ; n++ {
		if !netlab.Place() {
			continue
		}
		r, err := netlab.RunKilled(l.Command("apply", path), "sendto", n)
		must(t, err)
		apply(t, l, path)
		l.Bascule("bridge", "del", "brg")
		if r.Exit == 0 {
			break // the next system call does not exist
		}
	}
}

// applyRenamed renames devices of ports. They become ports with the new names. Other devices get
// the names in the file.
func applyRenamed(t *testing.T, l *netlab.Lab) {
	nl := l.Switch.Netlink()
	rename := func(from, to string) {
		t.Helper()
		link, err := nl.LinkByName(from)
		must(t, err)
		must(t, nl.LinkSetName(link, to))
	}
	path := file(t, "a.yaml", `bridges:
  br0: {ports: {host0: {type: host}, p1: {}, to1: {type: patch, peer: br1/to0}}}
  br1: {ports: {to0: {type: patch, peer: br0/to1}}}
`)
	apply(t, l, path)
	rename("host0", "other")
	wantLines(t, apply(t, l, path), "- port other of br0: type host", "+ port host0 of br0: type host")
	wantLines(t, apply(t, l, path))

	// A file that has the new name, too, keeps it.
	rename("host0", "other")
	both := file(t, "both.yaml", "bridges: {br0: {ports: {host0: {type: host}, other: {type: host}, p1: {}}}}\n")
	apply(t, l, both)
	wantLines(t, apply(t, l, both))
	wantLines(t, apply(t, l, file(t, "none.yaml", "bridges: {br0: {ports: {p1: {}}}}\n")), "- port other of br0: type host", "- port host0 of br0: type host")
	apply(t, l, path)

	// The port of a device waits until the name exists again.
	rename("p1", "uplink")
	wantLines(t, apply(t, l, path), "- port uplink of br0")
	rename("uplink", "p1")
	wantLines(t, apply(t, l, path), "+ port p1 of br0")

	// A device that gets the name of a cable stays a port until it gets another one.
	rename("p1", "to1")
	l.Refused([]string{"port to1 of br0: a device that is a port of the bridge now has the same name; rename it with 'ip link set to1 name NAME'"}, "apply", path)
	rename("to1", "uplink")
	wantLines(t, apply(t, l, path), "- port uplink of br0")
	rename("uplink", "p1")
	wantLines(t, apply(t, l, path), "+ port p1 of br0")
	wantLines(t, apply(t, l, path))

	// Rules of pf name ports: with another name they have another meaning. The rules follow the
	// name before apply makes its plan, as with every command that writes.
	rules := file(t, "rules.yaml", "bridges: {br0: {ports: {'p*': {}}, pf: {rules: 'block in on p9'}}}\n")
	apply(t, l, rules)
	wantLines(t, apply(t, l, rules))
	for _, names := range [][2]string{{"p1", "p9"}, {"p9", "p1"}} {
		rename(names[0], names[1])
		wantLines(t, apply(t, l, rules))
		frame := []string{"trace", "br0", "--in", names[1], "--dst", "02:00:00:00:00:02", "--ip", "192.0.2.1", "--to", "192.0.2.2", "--udp", "53"}
		if out := l.Bascule(frame...); strings.Contains(out, "dropped") != (names[1] == "p9") {
			t.Errorf("after the name %s the rule on p9 makes of a packet:\n%s", names[1], out)
		}
	}

	// A port whose name is not valid for a port is omitted, and has no other effect.
	l.Bascule("port", "del", "br0", "p1")
	rename("p1", "p\x1b[31m")
	r, err := l.Run("apply", rules)
	must(t, err)
	if r.Exit != 0 || r.Stdout != "" || !strings.Contains(r.Stderr, "pattern p* of br0 leaves p\ufffd[31m out: bascule takes no such name") {
		t.Errorf("with a name that cannot be printed: %v, it prints %q", r, r.Stdout)
	}
	rename("p\x1b[31m", "p1")
	wantLines(t, apply(t, l, rules), "+ port p1 of br0")
}

// applyAtOnce applies a file twice at the same time. One run does it, and the other finds nothing
// to do.
func applyAtOnce(t *testing.T, l *netlab.Lab) {
	swapped := strings.NewReplacer("p1", "p3", "p3", "p1", "to1", "to2", "192.0.2.1", "192.0.2.9", "vlan: 20", "vlan: 30").Replace(everything)
	paths := []string{file(t, "a.yaml", everything), file(t, "b.yaml", swapped)}
	for i := range 6 {
		path := paths[i%2]
		results := make(chan string, 2)
		for range cap(results) {
			cmd := l.Command("apply", path)
			go func() {
				r, err := netlab.RunCommand(cmd)
				if err != nil || r.Exit != 0 {
					r.Stdout = fmt.Sprint("failed: ", err, r)
				}
				results <- r.Stdout
			}()
		}
		first, second := <-results, <-results
		if strings.HasPrefix(first+second, "failed") || (first == "") == (second == "") {
			t.Fatalf("one should have all to do and the other nothing, not\n%s\nand\n%s", first, second)
		}
	}
}

// exportIdle has bindings and addresses in VLANs that their port is not in: from before the bridge
// filtered, and of a VLAN that the port has left. Files cannot contain them. export warns, and the
// exported file removes them.
func exportIdle(t *testing.T, l *netlab.Lab) {
	l.NewEnds(2)
	l.Bascule("bridge", "add", "br0")
	for _, p := range []string{"p1", "p2"} {
		l.Bascule("port", "add", "br0", p)
	}
	l.Bascule("fdb", "add", "br0", "02:00:00:00:00:01", "p1")
	l.Bascule("binding", "add", "br0", "p1", "02:00:00:00:00:01", "192.0.2.1")
	r, err := l.Run("bridge", "set", "br0", "--vlan-filtering")
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "match no frame now: 1") {
		t.Errorf("%v, should say that the entry and the binding match nothing", r)
	}
	l.Bascule("vlan", "add", "br0", "p2", "7")
	l.Bascule("binding", "add", "br0", "p2", "02:00:00:00:00:02", "192.0.2.2", "--vlan", "7")
	l.Bascule("vlan", "del", "br0", "p2", "7")
	r, err = l.Run("export")
	must(t, err)
	for _, want := range []string{
		"warning: binding 192.0.2.1 of br0 is left out: ", "warning: binding 192.0.2.2 of br0 is left out: ", "warning: address 02:00:00:00:00:01 of br0 is left out: ",
	} {
		if strings.Count(r.Stderr, want) != 1 {
			t.Errorf("%q is not told: %v", want, r)
		}
	}
	if strings.Contains(r.Stdout, "02:00:00") {
		t.Errorf("exported\n%s", r.Stdout)
	}
	path := file(t, "export.yaml", r.Stdout)
	plan := []string{
		"- binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1", "- binding 192.0.2.2 of br0: 02:00:00:00:00:02 on p2, vlan 7",
		"- address 02:00:00:00:00:01 of br0: on p1",
	}
	r, err = l.Run("apply", "--dry-run", path)
	must(t, err)
	wantLines(t, linesOf(r.Stdout), plan...)
	wantLines(t, apply(t, l, path), plan...)
	wantLines(t, apply(t, l, path))
	r, err = l.Run("export")
	must(t, err)
	if r.Stderr != "" {
		t.Error(r)
	}
}

// export exports the running configuration. The file changes nothing where it came from, nor after
// it was applied to an empty switch.
func export(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "all.yaml", everything))
	text := l.Bascule("export")
	path := file(t, "export.yaml", text)
	wantLines(t, apply(t, l, path))
	// JSON is YAML
	wantLines(t, apply(t, l, file(t, "export-json.yaml", l.Bascule("-j", "export"))))
	if one := l.Bascule("export", "br1"); strings.Contains(one, "br0:") || !strings.Contains(one, "  br1:\n") {
		t.Errorf("br1 is exported as\n%s", one)
	}
	l.Refused([]string{"there is no bridge br7"}, "export", "br7")
	l.Bascule("bridge", "del", "br0")
	l.Bascule("bridge", "del", "br1")
	apply(t, l, path)
	if again := l.Bascule("export"); again != text {
		t.Errorf("exported\n%s and after it was applied\n%s", text, again)
	}
	// Rules that were loaded with a command can't be in the file.
	cmd := l.Command("pfctl", "-b", "br0", "-q", "-a", "aside", "-f", "-")
	cmd.Stdin = strings.NewReader("pass\n")
	must(t, cmd.Run())
	r, err := l.Run("export", "br0")
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, "rules that were loaded directly into anchors are left out: aside") {
		t.Error(r)
	}
}
