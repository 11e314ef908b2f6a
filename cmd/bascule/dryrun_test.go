// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/bridge"
	"bascule/config"

	"github.com/spf13/cobra"
)

// changesNothing has the commands that change no bridge, and the ones with another flag for a dry run.
var changesNothing = []string{
	"bridge show", "port show", "fdb show", "fdb get", "span show", "rule show", "vlan show", "binding show", "export", "pflog", "monitor", "stats", "top",
	"capture", "trace", "check", "version", "man", "completion", "help",
	"apply confirm", // keeps a change that was made before
	"pfctl",         // has OpenBSD's -n
	"lab", "demo",   // have network namespaces of their own
	"agent", "agent status", "agent reload", // apply files, for which 'apply --dry-run' shows the changes
}

// dryRunCases are commands with the lines that --dry-run prints and that they then carry out. Each one
// runs on bridge br0 with the ports p1, p2 and host0 and the devices p3 and p4, after setup.
var dryRunCases = []struct {
	command string
	setup   []string
	lines   []string // of output
}{
	{"bridge add br1 --ageing 60s --vlan-filtering", nil, []string{"+ bridge br1: ageing 60s, vlan-filtering on"}},
	{"bridge set br0 --ageing 60s --mac 02:00:00:00:00:99", nil, []string{"~ bridge br0: ageing 300s -> 60s, mac auto -> 02:00:00:00:00:99"}},
	{"bridge set br0 --vlan-filtering --default-pvid 5", nil, []string{"~ bridge br0: vlan-filtering off -> on, default-pvid 1 -> 5",
		"~ port p1 of br0: pvid none -> 5", "~ port p2 of br0: pvid none -> 5", "~ port host0 of br0: pvid none -> 5"}},
	{"bridge set br0", nil, []string{"~ programs of br0: loaded afresh"}},
	{"bridge del br0", nil, []string{"- port p1 of br0", "- port p2 of br0", "- port host0 of br0: type host", "- bridge br0"}},
	{"bridge del --all", []string{"bridge add br1", "port add br0 to1 --type patch --peer br1/to0"}, []string{
		"- port p1 of br0", "- port p2 of br0", "- port host0 of br0: type host", "- port to1 of br0: type patch, peer br1/to0", "- bridge br0", "- port to0 of br1: type patch, peer br0/to1", "- bridge br1"}},
	{"port add br0 p3 p4 --isolated", nil, []string{"+ port p3 of br0: isolated on", "+ port p4 of br0: isolated on"}},
	{"port add br0 host1 --type host --mtu 1400 --mac 02:00:00:00:00:77", nil, []string{"+ port host1 of br0: type host, mac 02:00:00:00:00:77, mtu 1400, up off"}},
	{"port add br0 to1 --type patch --peer br1/to0 --isolated", []string{"bridge add br1"},
		[]string{"+ port to1 of br0: type patch, peer br1/to0, isolated on", "+ port to0 of br1: type patch, peer br0/to1"}},
	{"port set br0 p1 p2 --learn=off --rate-in 10mbit", nil, []string{
		"~ port p1 of br0: learn on -> off, rate-in none -> 10mbit", "~ port p2 of br0: learn on -> off, rate-in none -> 10mbit"}},
	{"port set br0 p1 --learn", nil, nil},
	{"port set br0 host0 --mac 02:00:00:00:00:78 --mtu 1300", nil, []string{"~ port host0 of br0: mac MAC -> 02:00:00:00:00:78, mtu 1500 -> 1300"}},
	{"port set br0 p1 --backup p2", nil, []string{"~ port p1 of br0: backup none -> p2"}},
	{"port add br0 p3 p4 --vlan 10 --tagged 20,30 --description desk", []string{"bridge set br0 --vlan-filtering"}, []string{
		`+ port p3 of br0: pvid 10, tagged 20,30, description "desk"`, `+ port p4 of br0: pvid 10, tagged 20,30, description "desk"`}},
	{"port add br0 to1 --type patch --peer br1/to0 --tagged 20", []string{"bridge set br0 --vlan-filtering", "bridge add br1"},
		[]string{"+ port to1 of br0: type patch, peer br1/to0, tagged 20", "+ port to0 of br1: type patch, peer br0/to1"}},
	{"port add br0 host1 --type host --description desk", nil, []string{`+ port host1 of br0: type host, description "desk", up off`}},
	{"port set br0 p1 host0 --description=", []string{"port set br0 p1 host0 --description old"}, []string{
		`~ port p1 of br0: description "old" -> ""`, `~ port host0 of br0: description "old" -> ""`}},
	{"port set br0 p1 --description old", []string{"port set br0 p1 --description old"}, nil},
	{"port del br0 p1 host0", []string{"fdb add br0 02:00:00:00:00:01 p1", "rule add br0 p1 block in", "binding add br0 p1 02:00:00:00:00:01 192.0.2.1"},
		[]string{"- port p1 of br0", "- port host0 of br0: type host", "- rule of br0: block in on p1",
			"- binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1", "- address 02:00:00:00:00:01 of br0: on p1"}},
	{"port del br0 to1", []string{"bridge add br1", "port add br0 to1 --type patch --peer br1/to0"}, []string{"- port to1 of br0: type patch, peer br1/to0", "- port to0 of br1: type patch, peer br0/to1"}},
	{"fdb add br0 02:00:00:00:00:01 p1", nil, []string{"+ address 02:00:00:00:00:01 of br0: on p1"}},
	{"fdb add br0 02:00:00:00:00:01 p1 --sticky", []string{"fdb add br0 02:00:00:00:00:01 p1"}, []string{"~ address 02:00:00:00:00:01 of br0: on p1 -> on p1, sticky"}},
	{"fdb add br0 02:00:00:00:00:01 p1", []string{"fdb add br0 02:00:00:00:00:01 p1"}, nil},
	{"fdb del br0 02:00:00:00:00:01", []string{"fdb add br0 02:00:00:00:00:01 p1"}, []string{"- address 02:00:00:00:00:01 of br0: on p1"}},
	{"fdb flush br0 --static", []string{"fdb add br0 02:00:00:00:00:01 p1", "fdb add br0 02:00:00:00:00:02 p2"},
		[]string{"- address 02:00:00:00:00:01 of br0: on p1", "- address 02:00:00:00:00:02 of br0: on p2"}},
	{"fdb flush br0", []string{"fdb add br0 02:00:00:00:00:01 p1"}, nil},
	{"span add br0 p3 --port p1 --direction both", nil, []string{"+ span port p3 of br0: ports p1, direction both"}},
	{"span del br0 p3", []string{"span add br0 p3"}, []string{"- span port p3 of br0: all ports, direction in"}},
	{"rule add br0 p1 block in arp", nil, []string{"+ rule of br0: block in on p1 arp"}},
	{"rule del br0 p1 block in arp", []string{"rule add br0 p1 block in arp"}, []string{"- rule of br0: block in on p1 arp"}},
	{"rule flush br0 p1", []string{"rule add br0 p1 block in arp", "rule add br0 p2 pass"}, []string{"- rule of br0: block in on p1 arp"}},
	{"rule load br0 -", []string{"rule add br0 p1 block in arp"}, []string{"- rule of br0: block in on p1 arp", "+ rule of br0: block in on p2 rarp"}},
	{"vlan add br0 p1 10,20", []string{"bridge set br0 --vlan-filtering"}, []string{"~ port p1 of br0: tagged none -> 10,20"}},
	{"vlan add br0 p1 10 --untagged --pvid", []string{"bridge set br0 --vlan-filtering"}, []string{"~ port p1 of br0: pvid 1 -> 10, untagged none -> 1"}},
	{"vlan del br0 p1 1", []string{"bridge set br0 --vlan-filtering", "fdb add br0 02:00:00:00:00:01 p1"},
		[]string{"~ port p1 of br0: pvid 1 -> none", "- address 02:00:00:00:00:01 of br0: on p1, vlan 1"}},
	{"vlan private br0 100 --isolated 101", []string{"bridge set br0 --vlan-filtering"}, []string{"+ private VLAN 100 of br0: isolated 101"}},
	{"binding add br0 p1 02:00:00:00:00:01 192.0.2.1", nil, []string{"+ binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1"}},
	{"binding del br0 192.0.2.1", []string{"binding add br0 p1 02:00:00:00:00:01 192.0.2.1"}, []string{"- binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1"}},
	{"binding flush br0 --port p1", []string{"binding add br0 p1 02:00:00:00:00:01 192.0.2.1", "binding add br0 p2 02:00:00:00:00:02 192.0.2.2"},
		[]string{"- binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p1"}},
	{"plug one --bridge br0 --device p3 --isolated --binding 02:00:00:00:00:01=192.0.2.1", nil,
		[]string{"+ port p3 of br0: isolated on", "+ binding 192.0.2.1 of br0: 02:00:00:00:00:01 on p3"}},
	{"plug one --bridge br1 --device p3", []string{"bridge add br1", "plug one --bridge br0 --device p3"}, []string{"- port p3 of br0", "+ port p3 of br1"}},
	{"plug one --bridge br0 --device p1", nil, []string{"~ port p1 of br0: plugged as one"}},
	{"unplug one", []string{"plug one --bridge br0 --device p3"}, []string{"- port p3 of br0"}},
	{"unplug none", nil, nil},
	{"apply file.yaml", nil, []string{"- port p2 of br0", "- port host0 of br0: type host"}},
}

// TestDryRunOfAll requires a flag --dry-run, and a case, for each command that changes something.
func TestDryRunOfAll(t *testing.T) {
	cases := map[string]bool{}
	for _, c := range dryRunCases {
		cmd, _, err := newRoot(&program{}).Find(strings.Fields(c.command))
		if err != nil {
			t.Fatal(err)
		}
		cases[cmd.CommandPath()] = true
	}
	known := map[string]bool{}
	var walk func(*cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		path, ok := strings.CutPrefix(cmd.CommandPath(), "bascule ")
		if !ok || cmd.HasSubCommands() && !cmd.Flags().HasAvailableFlags() {
			return
		}
		top, _, _ := strings.Cut(path, " ")
		quiet := slices.Contains(changesNothing, path) || slices.Contains([]string{"lab", "completion", "help", "demo", "agent"}, top)
		known[path] = true
		has := cmd.Flags().Lookup("dry-run") != nil
		switch {
		case quiet && has:
			t.Errorf("'%s' has --dry-run, and is among the commands that change nothing", path)
		case !quiet && cmd.RunE != nil && cmd.Annotations[onlyObject] == "" && !has && !onlyCommands(cmd):
			t.Errorf("'%s' has no --dry-run: add it by addChange, or the command to changesNothing", path)
		case has && !cases["bascule "+path]:
			t.Errorf("'%s' has --dry-run, and no case in dryRunCases", path)
		}
	}
	walk(newRoot(&program{}))
	for _, path := range changesNothing {
		if !known[path] && path != "help" && path != "completion" && path != "lab" && path != "agent" {
			t.Errorf("there is no command '%s'", path)
		}
	}
}

// TestDryRun checks that --dry-run changes nothing, and that its output matches the changes of the
// command without it.
func TestDryRun(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("makes network namespaces, which takes root")
	}
	dir := t.TempDir()
	self, err := os.Executable()
	if err == nil {
		err = os.Symlink(self, dir+"/bascule")
	}
	if err == nil {
		err = os.WriteFile(dir+"/file.yaml", []byte("bridges: {br0: {ports: {p1: {}}}}"), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, c := range dryRunCases {
		t.Run(c.command, func(t *testing.T) {
			ns := fmt.Sprintf("bsc-d%d-%d", os.Getpid(), i)
			host := func(args ...string) {
				t.Helper()
				if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
					t.Fatalf("ip %v: %v: %s", args, err, out)
				}
			}
			bascule := func(status int, args ...string) string {
				t.Helper()
				cmd := exec.Command(filepath.Join(dir, "bascule"), append([]string{"-n", ns}, args...)...)
				cmd.Env = append(os.Environ(), "BASCULE_STATE_DIR="+t.TempDir(), "BASCULE_AGENT_DIR="+dir, "SSH_CONNECTION=")
				cmd.Dir = dir
				cmd.Stdin = strings.NewReader("block in on p2 rarp\n")
				var out, bad bytes.Buffer
				cmd.Stdout, cmd.Stderr = &out, &bad
				err := cmd.Run()
				if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
					t.Fatal(err)
				}
				if cmd.ProcessState.ExitCode() != status {
					t.Errorf("bascule %s: status %d and not %d: %s%s", strings.Join(args, " "), cmd.ProcessState.ExitCode(), status, out.String(), bad.String())
				}
				return out.String()
			}
			host("netns", "add", ns)
			defer func() {
				bascule(0, "bridge", "del", "--all")
				host("netns", "del", ns)
			}()
			for _, port := range []string{"p1", "p2", "p3", "p4"} {
				host("-n", ns, "link", "add", port, "up", "type", "veth", "peer", "name", "far-"+port)
			}
			bascule(0, "bridge", "add", "br0")
			bascule(0, "port", "add", "br0", "p1", "p2")
			bascule(0, "port", "add", "br0", "host0", "--type", "host")
			for _, s := range c.setup {
				bascule(0, strings.Fields(s)...)
			}
			look := func() string {
				return bascule(0, "export") + bascule(0, "port", "show") + bascule(0, "fdb", "show", "--static") + bascule(0, "-j", "port", "show")
			}
			var devices []bridge.Device
			state := func() config.File {
				s, err := bridge.Open(ns)
				if err != nil {
					t.Fatal(err)
				}
				defer s.Close()
				f, _, err := config.Export(s)
				if err == nil {
					devices, err = s.Devices()
				}
				if err != nil {
					t.Fatal(err)
				}
				return f
			}
			mac := ""
			for _, p := range portsOf(t, ns) {
				if p.Name == "host0" {
					mac = p.MAC.String()
				}
			}
			before, was := look(), state()
			had := devices
			args := strings.Fields(c.command)
			status := 0
			if len(c.lines) > 0 {
				status = exitChanges
			}
			got := bascule(status, append(args, "--dry-run")...)
			want := ""
			for _, l := range c.lines {
				want += strings.ReplaceAll(l, "MAC", mac) + "\n"
			}
			if got != want {
				t.Errorf("--dry-run prints\n%s and not\n%s", got, want)
			}
			if after := look(); after != before {
				t.Errorf("--dry-run has changed\n%sto\n%s", before, after)
			}
			bascule(status, append(append([]string{"-j"}, args...), "--dry-run")...)
			bascule(0, args...)
			if args[0] == "plug" || args[0] == "unplug" || len(args) == 3 && args[1] == "set" {
				return // no file contains the objects that these change
			}
			now := state()
			for _, b := range was.Bridges {
				if !slices.ContainsFunc(now.Bridges, func(o config.Bridge) bool { return o.Name == b.Name }) {
					now.Bridges = append(now.Bridges, config.Bridge{Name: b.Name, Gone: true})
				}
			}
			slices.SortFunc(now.Bridges, func(a, b config.Bridge) int { return strings.Compare(a.Name, b.Name) })
			done, _, err := config.Plan(was, now, had)
			if err != nil {
				t.Fatal(err)
			}
			var lines []string
			for _, a := range done {
				lines = append(lines, a.String())
			}
			// no export contains these
			taken := strings.Contains(c.command, "host0 --mac") || strings.Contains(c.command, "--description=")
			if did := strings.Join(append(lines, ""), "\n"); did != got && !taken {
				t.Errorf("--dry-run printed\n%s and what was done is\n%s", got, did)
			}
		})
	}
}

func portsOf(t *testing.T, ns string) []bridge.Port {
	t.Helper()
	s, err := bridge.Open(ns)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	list, err := s.Ports("br0")
	if err != nil {
		t.Fatal(err)
	}
	return list
}
