// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"bascule/lab/report"
)

func TestRuleset(t *testing.T) {
	for _, test := range []struct {
		size   filterSize
		states int
		want   string
	}{
		{filterSize{}, 0, `block
pass inet6 proto icmp6
pass inet proto icmp to 198.18.0.0/15
pass inet proto tcp to 198.18.0.0/15
pass inet proto udp to 198.18.0.0/15
`},
		{filterSize{rules: 10}, 0, `block
pass inet6 proto icmp6
pass inet proto tcp to 10.0.0.80 port 1024
pass inet proto udp from 10.0.1.0/24 to 198.18.0.0/15 port 1025
block inet from 10.0.2.66 to 198.18.0.0/15
pass inet proto tcp from 10.0.3.0/24 to 10.0.3.80 port 1027:1036
pass inet proto tcp to 10.0.4.80 port 1028
pass inet proto icmp to 198.18.0.0/15
pass inet proto tcp to 198.18.0.0/15
pass inet proto udp to 198.18.0.0/15
`},
		{filterSize{table: 3}, 7000, `set limit states 7000
set limit table-entries 3
table <bad> persist file "/some/file"
block
pass inet6 proto icmp6
pass inet proto icmp from ! <bad> to 198.18.0.0/15
pass inet proto tcp from ! <bad> to 198.18.0.0/15
pass inet proto udp from ! <bad> to 198.18.0.0/15
`},
		{filterSize{at: "gw", stateless: true}, 0, `set skip on p
pass no state
block on gw
pass on gw inet6 proto icmp6 no state
pass on gw inet proto icmp to 198.18.0.0/15 no state
pass on gw inet proto tcp to 198.18.0.0/15 no state
pass on gw inet proto udp to 198.18.0.0/15 no state
`},
		{filterSize{at: "gw", nat: true, ends: 3}, 0, `set skip on p
pass no state
block on gw
pass on gw inet6 proto icmp6
match out on gw2 inet from 198.18.0.0/15 nat-to 198.18.2.254 port 1024:65535
match out on gw3 inet from 198.18.0.0/15 nat-to 198.18.3.254 port 1024:65535
pass on gw inet proto icmp to 198.18.0.0/15
pass on gw inet proto tcp to 198.18.0.0/15
pass on gw inet proto udp to 198.18.0.0/15
`},
	} {
		if diff := cmp.Diff(test.want, test.size.ruleset(test.states, "/some/file")); diff != "" {
			t.Errorf("%+v (-want +got):\n%s", test.size, diff)
		}
	}
}

// TestManyRules checks that no rule occurs twice, and that their number is right.
func TestManyRules(t *testing.T) {
	const count = 10_000
	seen := map[string]bool{}
	for line := range strings.Lines(filterSize{rules: count}.ruleset(0, "")) {
		if seen[line] {
			t.Errorf("%q is there twice", line)
		}
		seen[line] = true
	}
	if len(seen) != count {
		t.Errorf("%d rules, want %d", len(seen), count)
	}
}

// TestWriteTable checks the number of addresses in a table, and that none belongs to the lab's
// stations.
func TestWriteTable(t *testing.T) {
	const count = 1_000_000
	file := filepath.Join(t.TempDir(), "bad")
	if err := writeTable(file, count); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	seen := map[netip.Addr]bool{}
	var halves [2]int
	for line := range strings.Lines(string(text)) {
		a, err := netip.ParseAddr(strings.TrimSuffix(line, "\n"))
		if err != nil {
			t.Fatal(err)
		}
		if !a.Is4() || a.IsMulticast() || a.IsLoopback() || a.IsUnspecified() || labNetwork.Contains(a) {
			t.Errorf("%v is in the table", a)
		}
		seen[a] = true
		halves[a.As4()[3]&1]++
	}
	if len(seen) != count {
		t.Errorf("%d different addresses, want %d", len(seen), count)
	}
	if halves[0] < count/3 || halves[1] < count/3 {
		t.Errorf("%d even and %d odd addresses", halves[0], halves[1])
	}
	if err := writeTable(file, 1); err == nil {
		t.Error("a file that is there was overwritten")
	}
}

// TestPFKit checks that the ruleset is passed to the program as a user would, and that the file of
// its table exists meanwhile.
func TestPFKit(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	program := filepath.Join(dir, "bascule")
	said := filepath.Join(dir, "said")
	script := fmt.Sprintf(`#!/bin/sh
echo "$*" >> %[1]s
case "$*" in *"-j bridge show") echo '[]';; *"-s info") echo '{"master":"br0","states":42}';; *"-f -") cat > %[1]s.rules; file=$(sed -n 's/.*file "\(.*\)"/\1/p' %[1]s.rules); test -z "$file" || cp "$file" %[1]s.table;; esac
`, said)
	if err := os.WriteFile(program, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	size := filterSize{table: 10}
	f := withPF(Bascule, "tcx", "-test", "", size)
	f.Missing = ""
	n := built(t, f, Site{Bascule: program}, Spec{Ends: 2, States: 9})
	if err := n.FlushStates(t.Context()); err != nil {
		t.Fatal(err)
	}
	if states, err := n.States(t.Context()); err != nil || states != 42 {
		t.Errorf("%d states, error %v, want 42", states, err)
	}
	read := func(suffix string) string {
		t.Helper()
		text, err := os.ReadFile(said + suffix)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	for _, line := range []string{"pfctl -b br0 -f -", "pfctl -b br0 -F states"} {
		if want := "-n " + n.Switch.Name + " " + line + "\n"; !strings.Contains(read(""), want) {
			t.Errorf("the program was not told %q, but\n%s", want, read(""))
		}
	}
	rules := read(".rules")
	file := strings.Split(rules, `"`)
	if len(file) != 3 || rules != size.ruleset(9, file[1]) {
		t.Errorf("it was told the rules\n%s", rules)
	} else if _, err := os.Stat(file[1]); !os.IsNotExist(err) {
		t.Errorf("%s was left: %v", file[1], err)
	}
	if count := strings.Count(read(".table"), "\n"); count != 10 {
		t.Errorf("a table of %d addresses, want 10", count)
	}
	if err := n.LoadRules(t.Context(), 100); err != nil {
		t.Fatal(err)
	}
	if got, want := read(".rules"), (filterSize{rules: 100}).ruleset(9, ""); got != want {
		t.Errorf("it was told the rules\n%s", got)
	}
}

func TestFilteredPath(t *testing.T) {
	for f, want := range map[*Fabric][2]string{
		BasculePF: {"end - veth - bascule (tcx) - bascule pf - end", "host - host port - bascule (tcx) - bascule pf - end"},
		BasculeXDPPF10k: {"end - veth - bascule (XDP) - bascule pf - veth - end",
			"host - host port - bascule (XDP) - bascule pf - veth - end"},
	} {
		if got := [2]string{report.Drawing(f.Path), report.Drawing(f.HostPath)}; got != want {
			t.Errorf("%s: %q, want %q", f.Name, got, want)
		}
	}
}
