// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

var pfCases = []conformance{
	{name: "pf_load", hooks: tcx, run: pfLoad},
	{name: "pf_states", hooks: both, run: pfStates},
	{name: "label_survives_reload", hooks: both, run: pfLabelReload},
	{name: "label_of_second_rule", hooks: both, run: pfLabelSecond},
	{name: "pf_clients", hooks: both, run: pfClients},
	{name: "pf_tables", hooks: both, run: pfTables},
	{name: "pf_large_tables", hooks: tcx, run: pfLargeTables},
	{name: "pf_anchors", hooks: tcx, run: pfAnchors},
	{name: "pf_ports", hooks: tcx, run: pfPorts},
	{name: "pf_judged", hooks: both, run: pfJudged},
	{name: "pf_off", hooks: both, run: pfOff},
	{name: "pf_log", hooks: both, run: pfLog},
	{name: "pf_log_is_verdict", hooks: both, run: pfLogIsVerdict},
	{name: "pf_dummy", hooks: tcx, run: pfDummy},
	{name: "pf_memory", hooks: tcx, run: pfMemory},
	{name: "pf_refused", hooks: tcx, run: pfRefused},
}

// pfctl runs `bascule pfctl` with a standard input, which must succeed, and returns all of its
// output.
func pfctl(t *testing.T, l *netlab.Lab, stdin string, args ...string) string {
	t.Helper()
	r := tryPfctl(t, l, stdin, args...)
	if r.Exit != 0 {
		t.Fatal(r)
	}
	return r.Stdout + r.Stderr
}

func tryPfctl(t *testing.T, l *netlab.Lab, stdin string, args ...string) netlab.Result {
	t.Helper()
	cmd := l.Command(append([]string{"pfctl"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	r, err := netlab.RunCommand(cmd)
	must(t, err)
	return r
}

// loadPF loads rules, without any note.
func loadPF(t *testing.T, l *netlab.Lab, rules string, flags ...string) {
	t.Helper()
	if out := pfctl(t, l, rules, append(flags, "-f", "-")...); out != "" {
		t.Fatalf("loading says %q", out)
	}
}

// wantPF compares pfctl's output.
func wantPF(t *testing.T, l *netlab.Lab, want string, args ...string) {
	t.Helper()
	if got := pfctl(t, l, "", args...); got != want {
		t.Errorf("pfctl %q prints\n%sshould be\n%s", args, got, want)
	}
}

// udps returns UDP packets from one station's address to another's.
func udps(n int, dst, src netlab.MAC, from, to string, ports [2]int) (frames []netlab.Frame) {
	for i := range n {
		frames = append(frames, udp4(dst, src, from, to, ports, 0, 0, 0, byte(i)))
	}
	return frames
}

const ip1, ip2, ip3 = "10.0.0.1", "10.0.0.2", "10.0.0.3"

// pfLoad: a file is loaded as a whole or not at all, and the printed rules can be loaded.
func pfLoad(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	name := filepath.Join(t.TempDir(), "pf.conf")
	write := func(text string) { must(t, os.WriteFile(name, []byte(text), 0o600)) }

	// As in an operating system's own file.
	write("set skip on lo0\npass\n")
	wantPF(t, l, "", "-nf", name)
	if out := pfctl(t, l, "", "-si"); !strings.HasPrefix(out, "Status: Disabled ") {
		t.Errorf("after -n: %s", out)
	}
	wantPF(t, l, "", "-f", name)
	wantPF(t, l, "pass all flags S/SA\n", "-sr")
	if out := pfctl(t, l, "", "-si"); !strings.HasPrefix(out, "Status: Enabled for ") {
		t.Errorf("after loading: %s", out)
	}
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1000, 2000}), b)

	const rules = `block drop all
pass in on p1 inet proto udp from 10.0.0.1 to any port = 2000 label "web"
pass out all flags S/SA
`
	loadPF(t, l, rules)
	wantPF(t, l, rules, "-sr")
	loadPF(t, l, pfctl(t, l, "", "-sr"))
	wantPF(t, l, rules, "-s", "rules")
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1001, 2000}), b)
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1000, 2001}))
	wantDrops(t, l, a, "pf", 20)

	// An invalid file changes nothing, and all of its errors are printed.
	write("pass\nblok in all\n\npass from 10.0.0.1 to 10.0.0.256\n")
	r := tryPfctl(t, l, "", "-f", name)
	lines := strings.Split(strings.TrimSuffix(r.Stderr, "\n"), "\n")
	if r.Exit != 1 || r.Stdout != "" || len(lines) != 7 || !strings.HasPrefix(lines[0], name+":2:1: ") || !strings.HasPrefix(lines[3], name+":4:") ||
		lines[6] != "pfctl: Syntax error in config file: pf rules not loaded" {
		t.Error(r)
	}
	wantPF(t, l, rules, "-sr")
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1000, 2001}))

	// Blocked packets are counted at their rule, and at the port of loginterface.
	if out := pfctl(t, l, "", "-vsr"); !strings.HasPrefix(out, "block drop all\n  [ Evaluations: 42        Packets: 40        Bytes: 1280 ") {
		t.Errorf("-vsr: %s", out)
	}
	loadPF(t, l, "set loginterface p1\n"+rules)
	pfctl(t, l, "", "-F", "states")
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1001, 2000}), b)
	l.Reach(a, udps(10, B, A, ip1, ip2, [2]int{1000, 2001}))
	var words [][]string
	for line := range strings.Lines(pfctl(t, l, "", "-si")) {
		words = append(words, strings.Fields(line))
	}
	for _, want := range []string{"Interface Stats for p1 IPv4 IPv6", "Passed 20 0", "Blocked 10 0"} {
		if !slices.ContainsFunc(words, func(w []string) bool { return strings.Join(w, " ") == want }) {
			t.Errorf("-si has no %q: %v", want, words)
		}
	}
	if i := slices.IndexFunc(words, func(w []string) bool { return len(w) > 1 && w[0] == "searches" }); i < 0 || words[i][1] == "0" {
		t.Errorf("-si: %v", words)
	}
	loadPF(t, l, rules)
	pfctl(t, l, "", "-F", "states")
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1001, 2000}), b)

	// One rule's counters, then again.
	if out := pfctl(t, l, "", "-sl"); !strings.HasPrefix(out, "web 1 20 ") {
		t.Errorf("labels: %s", out)
	}
	if out := pfctl(t, l, "", "-z"); out != "pf: rule counters cleared\n" {
		t.Errorf("-z says %q", out)
	}
	if out := pfctl(t, l, "", "-sl"); !strings.HasPrefix(out, "web 0 ") {
		t.Errorf("labels: %s", out)
	}

	// A table's file, macros of both kinds, and included files.
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "bad"), []byte("10.0.0.1 # comment\n"), 0o600))
	must(t, os.WriteFile(filepath.Join(dir, "more"), []byte("block in from $who\n"), 0o600))
	loadPF(t, l, fmt.Sprintf("service = 2000\nwho = 10.9.9.9\ntable <bad> file %q\nblock in proto udp from <bad> to port $service\ninclude %q\n", dir+"/bad", dir+"/more"), "-D", "who=10.0.0.2")
	wantPF(t, l, "block drop in proto udp from <bad> to any port = 2000\nblock drop in inet from 10.0.0.2 to any\n", "-sr")
	must(t, os.RemoveAll(dir)) // they are not read again
	l.Bascule("port", "set", "br0", "p1", "--learn=on")
	pfctl(t, l, "", "-F", "states")
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1000, 2000}))
	l.Reach(a, udps(20, B, A, ip1, ip2, [2]int{1000, 2001}), b)
	l.Reach(b, udps(20, A, B, ip2, ip1, [2]int{7, 7}))

	if out := pfctl(t, l, "", "-Fr"); out != "rules cleared\n" {
		t.Errorf("-Fr says %q", out)
	}
	wantPF(t, l, "", "-sr")
	l.Reach(b, udps(20, A, B, ip2, ip1, [2]int{7, 7}), a)
}

// pfStates: answers pass to a station that may open connections, until the state is killed.
func pfStates(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	loadPF(t, l, "block\npass in on p1 proto udp to port 53 label dns\npass out on p2\n")
	ask := func() []netlab.Frame { return udps(10, B, A, ip1, ip2, [2]int{4000, 53}) }
	answer := func() []netlab.Frame { return udps(10, A, B, ip2, ip1, [2]int{53, 4000}) }

	l.Reach(b, answer())
	l.Reach(a, ask(), b)
	l.Reach(b, answer(), a)
	l.Reach(a, ask(), b)
	wantPF(t, l, "all udp 10.0.0.1:4000 -> 10.0.0.2:53       MULTIPLE:MULTIPLE\n", "-ss")
	if out := pfctl(t, l, "", "-vss"); !strings.Contains(out, ", 20:10 pkts, ") || !strings.Contains(out, ", rule 1\n") {
		t.Errorf("-vss: %s", out)
	}
	var list []struct {
		ID, Protocol, Src, Dst, In, Out, Label string
		SrcPort                                int `json:"src_port"`
		Packets                                [2]int
	}
	l.JSON(&list, "pfctl", "-ss")
	if len(list) != 1 || list[0].Src != ip1 || list[0].SrcPort != 4000 || list[0].In != "p1" || list[0].Out != "p2" || list[0].Label != "dns" || list[0].Packets != [2]int{20, 10} {
		t.Fatalf("%+v", list)
	}

	for _, kill := range [][]string{
		{"-k", ip1}, {"-k", "0.0.0.0/0", "-k", ip2}, {"-k", "label", "-k", "dns"},
		{"-k", "key", "-k", "udp 10.0.0.1:4000 -> 10.0.0.2:53"}, {"-F", "states"}, {"-F", "states", "-i", "p"},
	} {
		l.Reach(a, ask(), b)
		l.Reach(b, answer(), a)
		if out := pfctl(t, l, "", kill...); !strings.Contains(out, " 1 states") && !strings.HasPrefix(out, "1 states") {
			t.Errorf("%q says %q", kill, out)
		}
		l.Reach(b, answer())
		wantPF(t, l, "", "-ss")
	}
	l.Reach(a, ask(), b)
	for _, kill := range [][]string{{"-k", ip2}, {"-k", ip1, "-k", ip3}, {"-k", "label", "-k", "web"}, {"-F", "states", "-i", "p9"}} {
		if out := pfctl(t, l, "", kill...); !strings.Contains(out, "0 states") {
			t.Errorf("%q says %q", kill, out)
		}
	}
	l.Reach(b, answer(), a)

	// A state survives its rules, and a change of ports.
	loadPF(t, l, "block\n")
	l.Bascule("port", "set", "br0", "p2", "--hairpin=off")
	l.Reach(b, answer(), a)
	l.Reach(a, ask(), b)
	l.Reach(a, udps(10, B, A, ip1, ip2, [2]int{4001, 53}))
}

// pfLabelReload: a state keeps its rules' labels after a load of other rules, as long as it exists.
func pfLabelReload(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	const rules = "block\npass in on p1 proto udp to port 53 label dns label 'query $dstport'\npass out on p2\n"
	ask := func() []netlab.Frame { return udps(10, B, A, ip1, ip2, [2]int{4000, 53}) }
	answer := func() []netlab.Frame { return udps(10, A, B, ip2, ip1, [2]int{53, 4000}) }
	killed := func(n int, label string) {
		t.Helper()
		if out := pfctl(t, l, "", "-k", "label", "-k", label); out != fmt.Sprintf("killed %d states\n", n) {
			t.Errorf("-k label -k %q says %q, want %d states", label, out, n)
		}
	}
	for _, next := range []string{rules, "block\n", "pass label other\n"} {
		for _, label := range []string{"dns", "query 53"} {
			loadPF(t, l, rules)
			l.Reach(a, ask(), b)
			loadPF(t, l, next)
			if next != rules { // intermediate rules have other numbers
				loadPF(t, l, "match label more\n"+next)
			}
			var list []struct{ Label string }
			if l.JSON(&list, "pfctl", "-ss"); len(list) != 1 || list[0].Label != "dns" {
				t.Errorf("%q: %+v", next, list)
			}
			killed(0, "other")
			killed(1, label)
			wantPF(t, l, "", "-ss")
		}
	}
	loadPF(t, l, rules)
	l.Reach(b, answer())
}

// pfLabelSecond: a state is found by the label of either rule that has passed its first packet.
func pfLabelSecond(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	loadPF(t, l, "block\npass in on p1 label one\npass out on p2 label two\n")
	for _, label := range []string{"one", "two"} {
		l.Reach(a, udps(10, B, A, ip1, ip2, [2]int{4000, 53}), b)
		if out := pfctl(t, l, "", "-k", "label", "-k", label); out != "killed 1 states\n" {
			t.Errorf("-k label -k %s says %q", label, out)
		}
	}
}

// pfClients: real connections.
func pfClients(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	for _, e := range ends {
		e.ReadyForXDP()
	}
	one, two := ends[0].Host(), ends[1].Host()
	loadPF(t, l, "block\npass in on p1 from "+one.IPv4.String()+"\npass out on p2\n")
	must(t, one.Ping(two.IPv4))
	must(t, netlab.Transfer(one, two, two.IPv4, 8<<20))
	if out := pfctl(t, l, "", "-ss"); !strings.Contains(out, "all tcp "+one.IPv4.String()) || !strings.Contains(out, "all icmp ") {
		t.Errorf("states: %s", out)
	}
	loadPF(t, l, "pass\n")
	must(t, two.Ping(one.IPv4))
	must(t, two.Ping(one.IPv6))
	must(t, netlab.Transfer(two, one, one.IPv4, 8<<20))
}

// pfLargeTables: a change of some entries needs as many system calls in a large table as in a small
// one, and a replacement reads the table once. So the time for changes in a list of a million
// depends on the changes only.
func pfLargeTables(t *testing.T, hook string) {
	l, _ := setup(t, hook, 2)
	loadPF(t, l, "set limit table-entries 100000\ntable <bad> persist\nblock in from <bad>\n")
	list := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "100.%d.%d.1\n100.%d.%d.64/26\n", i>>8, i&255, i>>8, i&255)
		}
		return b.String()
	}
	calls := func(stdin string, args ...string) int {
		t.Helper()
		cmd := l.Command(append([]string{"pfctl", "-t", "bad", "-T"}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		r, count, err := netlab.RunCounted(cmd, "bpf")
		must(t, err)
		if r.Exit != 0 {
			t.Fatal(r)
		}
		return count["bpf"]
	}
	changes := map[string]func() int{
		"add an address":    func() int { return calls("", "add", "192.0.2.1") },
		"add it again":      func() int { return calls("", "add", "192.0.2.1") },
		"delete an address": func() int { return calls("", "delete", "192.0.2.1") },
		"add a network":     func() int { return calls("", "add", "192.0.2.0/24") },
		"delete a network":  func() int { return calls("", "delete", "192.0.2.0/24") },
	}
	const few, many, batch = 10, 20000, 4096
	pfctl(t, l, list(few), "-t", "bad", "-T", "replace", "-f", "-")
	small := map[string]int{}
	names := slices.Sorted(maps.Keys(changes))
	for _, what := range names {
		small[what] = changes[what]()
	}
	again := calls(list(few), "replace", "-f", "-")
	pfctl(t, l, list(many), "-t", "bad", "-T", "replace", "-f", "-")
	for _, what := range names {
		if n := changes[what](); n != small[what] {
			t.Errorf("%s: %d calls in a table of %d, and %d in one of %d", what, n, 2*many, small[what], 2*few)
		}
	}
	// Addresses and networks are read in batches, and each read may end early.
	most := again + 2*(many/batch+1)
	if n := calls(list(many), "replace", "-f", "-"); n > most {
		t.Errorf("replace by the same: %d calls in a table of %d, want %d at most: %d in one of %d", n, 2*many, most, again, 2*few)
	}
}

// pfTables: a change of a table applies to the next packet without a state.
func pfTables(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	loadPF(t, l, "table <bad> persist { 10.0.0.9 }\nblock in from <bad>\npass from ! <bad> no state\n")
	send := func(to ...*netlab.End) {
		t.Helper()
		l.Reach(a, udps(10, B, A, ip1, ip2, [2]int{1, 2}), to...)
	}
	says := func(want string, args ...string) {
		t.Helper()
		if out := pfctl(t, l, "", args...); out != want {
			t.Errorf("%q says %q, should be %q", args, out, want)
		}
	}
	send(b)
	says("1/2 addresses added.\n", "-t", "bad", "-T", "add", ip1, "10.0.0.9")
	send()
	says("   10.0.0.1\n   10.0.0.9\n", "-t", "bad", "-T", "show")
	says("1/1 addresses match.\n", "-t", "bad", "-T", "test", ip1)
	if r := tryPfctl(t, l, "", "-t", "bad", "-T", "test", ip1, ip2); r.Exit != 2 || r.Stderr != "1/2 addresses match.\n" {
		t.Error(r)
	}
	says("1/1 addresses deleted.\n", "-t", "bad", "-T", "delete", ip1)
	send(b)
	says("2/2 addresses added.\n", "-t", "bad", "-T", "add", "10.0.0.0/8", "!10.0.0.0/24")
	send(b)
	says("2 addresses added.\n3 addresses deleted.\n", "-t", "bad", "-T", "replace", "10.0.0.0/30", "2001:db8::/32")
	send()
	says("no changes.\n", "-t", "bad", "-T", "replace", "10.0.0.0/30", "2001:db8::/32")
	if out := pfctl(t, l, "# two\n10.7.0.1\n10.7.0.2 10.7.0.1\n", "-t", "bad", "-vT", "add", "-f", "-"); out != "A  10.7.0.1\nA  10.7.0.2\nX  10.7.0.1\n2/3 addresses added.\n" {
		t.Errorf("adding a file says %q", out)
	}
	says("4 addresses deleted.\n", "-t", "bad", "-T", "flush")
	send(b)
	says("1 table created.\n1/1 addresses added.\n", "-t", "other", "-T", "add", ip1)
	says("bad\nother\n", "-sT")
	says("-pa-r--\tbad\n-pa----\tother\n", "-vsT")
	says("1 table deleted.\n", "-t", "other", "-T", "kill")
	says("bad\n", "-sT")

	// A table without contents in the file keeps its contents. Others are replaced or removed.
	says("1/1 addresses added.\n", "-t", "bad", "-T", "add", ip1)
	loadPF(t, l, "table <bad> persist\ntable <more> { 10.0.0.9 }\nblock in quick from { <bad> <more> }\npass no state\n")
	send()
	loadPF(t, l, "table <bad> persist { 10.0.0.9 }\nblock in quick from <bad>\npass no state\n")
	says("bad\n", "-sT")
	send(b)
	l.Refused([]string{"Table does not exist"}, "pfctl", "-t", "more", "-T", "show")
	// The last definition is used.
	if out := pfctl(t, l, "table <bad> { 10.0.0.0/24 }\ntable <bad> { 10.0.0.9 }\nblock in from <bad>\npass no state\n", "-f", "-"); !strings.HasSuffix(out, " stdin:2:1: table <bad> is defined again; its definition at stdin:1:1 has no effect\n") || strings.Count(out, "\n") != 1 {
		t.Errorf("a table defined twice: %q", out)
	}
	says("   10.0.0.9\n", "-t", "bad", "-T", "show")
	loadPF(t, l, "table <bad> const { 10.0.0.9 }\nblock in from <bad>\n")
	l.Refused([]string{"const"}, "pfctl", "-t", "bad", "-T", "add", ip1)
}

// pfAnchors: rules in anchors change while the others stay.
func pfAnchors(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	send := func(to ...*netlab.End) {
		t.Helper()
		l.Reach(a, udps(10, B, A, ip1, ip2, [2]int{1, 2}), to...)
	}
	loadPF(t, l, "pass no state\nanchor night\nanchor \"guests/*\"\n")
	send(b)
	loadPF(t, l, "block in on p1\n", "-a", "night")
	send()
	wantPF(t, l, "block drop in on p1 all\n", "-a", "night", "-sr")
	loadPF(t, l, "pass no state\nanchor night\nanchor \"guests/*\"\n")
	send()
	pfctl(t, l, "", "-a", "night", "-Fr")
	send(b)
	loadPF(t, l, "table <who> { 10.0.0.1 }\nblock in from <who>\n", "-a", "guests/one")
	send()
	wantPF(t, l, "   10.0.0.1\n", "-a", "guests/one", "-t", "who", "-T", "show")
	pfctl(t, l, "", "-a", "guests/one", "-t", "who", "-T", "delete", ip1)
	send(b)
	wantPF(t, l, `pass all no state
anchor "night" all {
}
anchor "guests/*" all {
  anchor "one" all {
    block drop in from <who> to any
  }
}
`, "-a", "*", "-sr")
	wantPF(t, l, "  guests\n  night\n", "-sA")
	wantPF(t, l, "  guests\n  guests/one\n  night\n", "-vsA")
	loadPF(t, l, "anchor day {\n block in from 10.0.0.1\n}\n")
	send()
	wantPF(t, l, "anchor \"day\" all\n", "-sr")
	var said []traceResult
	l.JSON(&said, "trace", "br0", "--in", a.Port, hex.EncodeToString([]byte(udps(1, B, A, ip1, ip2, [2]int{1, 2})[0])))
	if len(said) != 1 || !said[0].says("rule 0 of anchor day: block drop in inet from 10.0.0.1 to any") {
		t.Errorf("traced: %+v", said)
	}
	wantPF(t, l, "anchor \"day\" all {\n  block drop in inet from 10.0.0.1 to any\n}\n", "-a", "*", "-sr")
	l.Refused([]string{"there is no anchor nowhere"}, "pfctl", "-a", "nowhere", "-sr")
	l.Refused([]string{"stands for several"}, "pfctl", "-a", "x/*", "-f", "/dev/null")
}

// pfPorts: rules refer to ports by their present names, also to later ports.
func pfPorts(t *testing.T, hook string) {
	l, stations := setup(t, hook, 2)
	a, b := stations[0], stations[1]
	learn(l, a, A)
	learn(l, b, B)
	if out := pfctl(t, l, "pass no state\nblock in on p3\nblock out on late\n", "-f", "-"); strings.Count(out, "has this name now\n") != 2 {
		t.Errorf("loading says %q, of two ports that are to come", out)
	}
	send := func(from *netlab.End, to ...*netlab.End) {
		t.Helper()
		l.Reach(from, udps(10, netlab.Broadcast, C, ip3, "10.0.0.255", [2]int{1, 2}), to...)
	}
	send(a, b)
	c := l.NewEnd(l.NewNamespace())
	l.AddPort("br0", hook, c)
	send(c)
	send(a, b, c)
	wantPF(t, l, "p1\np2\np3\n", "-sI")

	// Another name, as soon as a command changes anything.
	nl, err := l.Switch.Netlink().LinkByName("p2")
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetName(nl, "late"))
	l.Bascule("port", "set", "br0", "late", "--hairpin=off")
	send(a, c)
	must(t, l.Switch.Netlink().LinkSetName(nl, "p2"))
	l.Bascule("port", "set", "br0", "p2", "--hairpin=off")
	send(a, b, c)

	// A rule about a former port does not apply to the next port in its slot.
	l.Bascule("port", "del", "br0", "p3")
	d := l.NewEnd(l.NewNamespace())
	l.AddPort("br0", hook, d)
	send(d, a, b)

	// Groups of names, and addresses of interfaces.
	loadPF(t, l, "block\npass on p no state\n")
	send(a, b, d)
	loadPF(t, l, "set skip on p4\nblock\n")
	send(d)
	wantPF(t, l, "p1\np2\np4 (skip)\n", "-vsI")
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	host, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	must(t, l.Switch.Netlink().AddrAdd(host, &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, 0, 0, 7), Mask: net.CIDRMask(24, 32)}}))
	loadPF(t, l, "pass no state\nblock in from (host0:network)\nblock out to host0\n")
	send(a)
	wantPF(t, l, "pass all no state\nblock drop in from (host0:network) to any\nblock drop out inet from any to 10.0.0.7\n", "-sr")

	// The link-local network belongs to every port. A mask of IPv6 is not valid for IPv4.
	must(t, l.Switch.Do(func() error { return ends.Sysctl("net.ipv6.conf.host0.disable_ipv6", "0") }))
	for _, address := range []string{"2001:db8::7/64", "fe80::7/64"} {
		add, err := netlink.ParseAddr(address)
		must(t, err)
		add.Flags = unix.IFA_F_NODAD
		must(t, l.Switch.Netlink().AddrAdd(host, add))
	}
	loadPF(t, l, "antispoof for host0\nantispoof for (host0)\npass in inet6 from host0/64 to host0:network\npass in inet from host0/64\n")
	rules := pfctl(t, l, "", "-sr")
	for _, want := range []string{
		"block drop in on ! host0 inet from 10.0.0.0/24 to any\nblock drop in on ! host0 inet6 from 2001:db8::/64 to any\nblock drop in inet from 10.0.0.7 to any\n",
		"block drop in on ! host0 from (host0:network) to any\n",
		"pass in inet6 from 2001:db8::/64 to 2001:db8::/64 flags S/SA\n",
		"pass in inet from 10.0.0.7 to any flags S/SA\n",
	} {
		if !strings.Contains(rules, want) || strings.Contains(rules, "on ! host0 inet6 from fe80") {
			t.Errorf("antispoof and masks are\n%swhich should have\n%s", rules, want)
		}
	}
	send6 := func(from string, to ...*netlab.End) {
		t.Helper()
		loadPF(t, l, "block in quick inet6 from (host0:network)\npass no state\n")
		solicitation := icmp6(from, "ff02::1:ff00:7", []byte{135, 0}, make([]byte, 22))
		l.Reach(a, []netlab.Frame{packet6(netlab.Broadcast, A, from, "ff02::1:ff00:7", 58, solicitation)}, to...)
	}
	send6("fe80::99", b, d)
	send6("2001:db8::99")

	// A mask applies to the address, and replaces the network's mask.
	loadPF(t, l, "block in quick from (host0:network)/30\npass no state\n")
	masked := func(from string, to ...*netlab.End) {
		t.Helper()
		l.Reach(a, udps(1, netlab.Broadcast, A, from, "10.0.0.255", [2]int{1, 2}), to...)
	}
	masked("10.0.0.6")
	masked("10.0.0.2", b, d)
}

// pfJudged: the bridge's setting selects the ports where pf runs. Sockets of a station and of the
// host show which packets have passed. Ether rules are evaluated at the same ports.
func pfJudged(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	a, b, host := ends[0].Host(), ends[1].Host(), l.NewHost(l.Switch, "host0", 100)
	sockets := map[string]*net.UDPConn{}
	ports := []int{5000, 5001}
	for name, h := range map[string]*netlab.Host{"station": b, "host": host} {
		for _, port := range ports {
			must(t, h.Namespace.Do(func() error {
				c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: h.IPv4.AsSlice(), Port: port})
				sockets[fmt.Sprintf("%s:%d", name, port)] = c
				return err
			}))
		}
	}
	for _, c := range sockets {
		defer c.Close()
	}
	number := 0
	// reach sends packets to all sockets, and checks which of them receive one.
	reach := func(dropped string, want ...string) {
		t.Helper()
		number++
		text := strconv.Itoa(number)
		before := l.Port("br0", ends[0].Port).Drops[dropped]
		must(t, a.Namespace.Do(func() error {
			for _, c := range sockets {
				s, err := net.Dial("udp4", c.LocalAddr().String())
				if err != nil {
					return err
				}
				defer s.Close()
				if _, err := s.Write([]byte(text)); err != nil {
					return err
				}
			}
			return nil
		}))
		buf := make([]byte, 16)
		for _, name := range want {
			sockets[name].SetReadDeadline(time.Now().Add(patience))
			if n, err := sockets[name].Read(buf); err != nil || string(buf[:n]) != text {
				t.Errorf("%s has %q: %v", name, buf[:n], err)
			}
		}
		if dropped != "" {
			all := before + uint64(len(sockets)-len(want))
			l.Wait("drops", func() bool { return l.Port("br0", ends[0].Port).Drops[dropped] >= all })
			wantDrops(t, l, ends[0], dropped, all)
		}
		for name, c := range sockets {
			if text := has(t, c); text != "" {
				t.Errorf("%s has %q", name, text)
			}
		}
	}
	all := []string{"station:5000", "station:5001", "host:5000", "host:5001"}
	reach("", all...)

	// As on a router.
	const rules = "block\npass quick inet6\npass in on host0 inet proto udp to port 5000\npass in on p1 inet proto udp to port 5001\n"
	const note = "bascule: warning: stdin:1:1: block holds at the host's ports"
	judged := func(setting, note string) {
		t.Helper()
		r, err := l.Run("bridge", "set", "br0", "--pf-ports", setting)
		must(t, err)
		if want := strings.Replace(note, "stdin:1:1: ", "", 1) + "\n"; r.Exit != 0 || r.Stderr != "" && r.Stderr != want {
			t.Errorf("%v, want %q if it changes anything", r, want)
		}
		// A rule about a port without pf causes a note, too.
		if out := pfctl(t, l, rules, "-f", "-"); !strings.HasSuffix(out, "has no effect: pf does not judge it, as the bridge's pf-ports says\n"+note+"\n") {
			t.Errorf("pf-ports %s: loading says %q, want %q", setting, out, note)
		}
	}
	if out := pfctl(t, l, rules, "-f", "-"); out != note+", host0, and the stations' ports, p1, p2, which then cannot reach each other;"+
		" if the file is a router's: bascule bridge set br0 --pf-ports host\n" {
		t.Errorf("loading says %q", out)
	}
	reach("pf")
	judged("host", "bascule: warning: stdin:1:1: block holds only at the host's ports, host0, not between stations")
	reach("pf", "station:5000", "station:5001", "host:5000")
	wantPF(t, l, "host0\np1 (skip)\np2 (skip)\n", "-vsI")
	// At once, without a load.
	if r, err := l.Run("bridge", "set", "br0", "--pf-ports", "station"); err != nil || r.Exit != 0 ||
		r.Stderr != "bascule: warning: block holds only at the stations' ports, p1, p2, not at the host's\n" {
		t.Errorf("%v, %v", r, err)
	}
	wantPF(t, l, "host0 (skip)\np1\np2\n", "-vsI")
	pfctl(t, l, "", "-F", "states")
	reach("pf", "host:5001")
	judged("station", "bascule: warning: stdin:1:1: block holds only at the stations' ports, p1, p2, not at the host's")
	// A later port is treated like the others.
	judged("host", "bascule: warning: stdin:1:1: block holds only at the host's ports, host0, not between stations")
	l.AddPort("br0", hook, l.NewEnd(l.NewNamespace()))
	wantPF(t, l, "host0\np1 (skip)\np2 (skip)\np3 (skip)\n", "-vsI")
	l.Bascule("port", "del", "br0", "host0")
	if out := pfctl(t, l, rules, "-f", "-"); !strings.HasSuffix(out, "\nbascule: warning: stdin:1:1: block holds at no port of br0: its setting pf-ports leaves all of them out\n") {
		t.Errorf("without a host port, loading says %q", out)
	}
}

// has returns the text that a socket has received by now, "" for none.
func has(t *testing.T, c *net.UDPConn) (text string) {
	t.Helper()
	must(t, c.SetReadDeadline(time.Time{}))
	raw, err := c.SyscallConn()
	must(t, err)
	must(t, raw.Read(func(fd uintptr) bool {
		buf := make([]byte, 64)
		if n, _, err := unix.Recvfrom(int(fd), buf, unix.MSG_DONTWAIT); err == nil {
			text = string(buf[:n])
		}
		return true
	}))
	return text
}

// pfOff: while pf is disabled, nothing is filtered and no state is lost.
func pfOff(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	send := func(to ...*netlab.End) {
		t.Helper()
		l.Reach(a, udps(10, B, A, ip1, ip2, [2]int{1, 2}), to...)
	}
	loadPF(t, l, "block\n")
	send()
	if out := pfctl(t, l, "", "-d"); out != "pf disabled\n" {
		t.Errorf("-d says %q", out)
	}
	send(b)
	wantPF(t, l, "block drop all\n", "-sr")
	l.Refused([]string{"pf not enabled"}, "pfctl", "-d")
	loadPF(t, l, "block in\n") // it stays off
	send(b)
	if out := pfctl(t, l, "", "-e"); out != "pf enabled\n" {
		t.Errorf("-e says %q", out)
	}
	send()
	l.Refused([]string{"pf already enabled"}, "pfctl", "-e")
	pfctl(t, l, "block in\n", "-ef", "-") // with -f, -e is no error
	l.Bascule("bridge", "set", "br0")     // loads this build's programs
	send()
	wantPF(t, l, "block drop in all\n", "-sr")
	counted := pfctl(t, l, "", "-vsr")
	for _, none := range []string{"ether", "Tables", "Reset"} {
		pfctl(t, l, "", "-F", none)
		wantPF(t, l, counted, "-vsr") // a load of other rules would start at 0
	}
	pfctl(t, l, "", "-Fa")
	send(b)
	wantPF(t, l, "", "-sr")
	pfctl(t, l, "", "-d")
	pfctl(t, l, "", "-Fa")
	loadPF(t, l, "block\n") // enables pf again, as at first
	send()
}

// pfLog: logged packets are printed, with the rule at that time, until the reader is interrupted.
func pfLog(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	l.Refused([]string{"no rules are loaded"}, "pflog")
	loadPF(t, l, "pass no state\nblock in log on p1 proto udp to port 53\npass in log (to pflog1) on p1 proto udp to port 54 no state\nanchor x {\n block out log proto udp to port 55\n}\n")
	var out, errs netlab.Output
	file := filepath.Join(t.TempDir(), "log")
	reader := l.Command("pflog")
	reader.Stdout, reader.Stderr = &out, &errs
	must(t, reader.Start())
	defer reader.Process.Kill()
	send := func(port int) netlab.Frame { return udp4(B, A, ip1, ip2, [2]int{1000, port}, 1) }
	l.Wait("the log to be read", func() bool {
		l.Send(a, send(53))
		return out.String() != ""
	})
	l.Refused([]string{"another program reads it"}, "pflog")

	l.Reach(a, []netlab.Frame{send(54)}, b)
	l.Reach(a, []netlab.Frame{send(55)})
	l.Reach(a, []netlab.Frame{send(56)}, b)
	// A rule is looked up when the entry is read.
	l.Wait("both to be read", func() bool { return strings.Contains(out.String(), "rule 3.x.0/") })
	loadPF(t, l, "pass no state\npass no state\nblock in log proto udp to port 56\n")
	l.Reach(a, []netlab.Frame{send(56)})
	const first = "rule 1/(match) block in on p1: IPv4 10.0.0.1:1000 > 10.0.0.2:53 UDP, length 29"
	want := []string{
		"rule 2/(match) pass in on p1: IPv4 10.0.0.1:1000 > 10.0.0.2:54 UDP, length 29",
		"rule 3.x.0/(match) block out on p2: IPv4 10.0.0.1:1000 > 10.0.0.2:55 UDP, length 29",
		"rule 2/(match) block in on p1: IPv4 10.0.0.1:1000 > 10.0.0.2:56 UDP, length 29",
	}
	var got []string
	l.Wait("the log", func() bool {
		got = nil
		for line := range strings.Lines(out.String()) {
			if _, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); text != first {
				got = append(got, text)
			}
		}
		return len(got) >= len(want)
	})
	must(t, reader.Process.Signal(os.Interrupt))
	if err := reader.Wait(); err != nil || !strings.HasSuffix(errs.String(), " packets logged, 0 missed\n") {
		t.Errorf("the reader ended with %v, %q", err, errs.String())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the log is\n  %q\nshould be\n  %q", got, want)
	}

	reader = l.Command("pflog", "-w", file)
	must(t, reader.Start())
	defer reader.Process.Kill()
	const header, record = 24, 16 + 100 + 29 // headers of pcap; and of pflog, with the packet
	l.Wait("the file", func() bool {
		l.Send(a, send(56))
		info, err := os.Stat(file)
		return err == nil && info.Size() > header && (info.Size()-header)%record == 0
	})
	must(t, reader.Process.Signal(syscall.SIGTERM))
	must(t, reader.Wait())
}

// pfLogIsVerdict: if a rule passes a packet but there is no room for its state, the log shows the
// drop, whether the packet goes to one port or is flooded. If only the other port's rule blocks a
// packet, the log shows that the first port's rule has passed it.
func pfLogIsVerdict(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a := ends[0]
	learn(l, a, A)
	learn(l, ends[1], B)
	loadPF(t, l, `pass no state
pass in log on p1 proto udp to port 53 keep state (max 1)
pass in log on p1 proto udp to port 54 keep state (max-src-states 1)
pass in log on p1 proto udp to port 55 no state
pass in log on p1 proto udp to port 56
block out log on p2 proto udp to port 56
pass in log on p1 proto udp to port 57 keep state (max 1)
pass in log on p1 proto udp to port 58
block out on p2 proto udp to port 58
block out on p3 proto udp to port 58
`)
	var out netlab.Output
	reader := l.Command("pflog")
	reader.Stdout = &out
	must(t, reader.Start())
	defer reader.Process.Kill()
	send := func(dst netlab.MAC, from, to int) { l.Send(a, udp4(dst, A, ip1, ip2, [2]int{from, to}, 1)) }
	l.Wait("the log to be read", func() bool {
		send(B, 1, 55)
		return out.String() != ""
	})
	for from := range 2 {
		send(B, from, 53)
		send(B, from, 54)
	}
	send(B, 1, 56)
	for from := range 2 {
		send(C, from, 57) // to both
	}
	send(C, 1, 58) // to no port
	send(C, 9, 55) // the last one
	line := func(rule int, reason, action, way, port string, from, to int) string {
		return fmt.Sprintf("rule %d/(%s) %s %s on %s: IPv4 10.0.0.1:%d > 10.0.0.2:%d UDP, length 29", rule, reason, action, way, port, from, to)
	}
	want := []string{
		line(1, "match", "pass", "in", "p1", 0, 53),
		line(2, "match", "pass", "in", "p1", 0, 54),
		line(1, "state-limit", "block", "in", "p1", 1, 53),
		line(2, "state-limit", "block", "in", "p1", 1, 54),
		line(5, "match", "block", "out", "p2", 1, 56),
		line(4, "match", "pass", "in", "p1", 1, 56),
		line(6, "match", "pass", "in", "p1", 0, 57),
		line(6, "state-limit", "block", "in", "p1", 1, 57),
		line(7, "match", "pass", "in", "p1", 1, 58),
		line(3, "match", "pass", "in", "p1", 9, 55),
	}
	var got []string
	l.Wait("the log", func() bool {
		got = nil
		for line := range strings.Lines(out.String()) {
			if _, text, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " "); !strings.Contains(text, "10.0.0.1:1 > 10.0.0.2:55") {
				got = append(got, text)
			}
		}
		return len(got) > 0 && got[len(got)-1] == want[len(want)-1]
	})
	if !slices.Equal(got, want) {
		t.Errorf("the log is\n  %s\nshould be\n  %s", strings.Join(got, "\n  "), strings.Join(want, "\n  "))
	}
}

// pfRefused: each error is reported in one line.
func pfRefused(t *testing.T, hook string) {
	l, _ := setup(t, hook, 1)
	l.Bascule("bridge", "add", "br1")
	for _, test := range []struct {
		words []string
		args  string
	}{
		{[]string{"several bridges", "-b br0 or br1"}, "-sr"},
		{[]string{"there is no bridge br9"}, "-b br9 -sr"},
		{[]string{"-s nonsense", "give rules"}, "-b br0 -s nonsense"},
		{[]string{"/nowhere/pf.conf", "no such file"}, "-b br0 -f /nowhere/pf.conf"},
		{[]string{"-T test 10.0.0.0/8"}, "-b br0 -t bad -T test 10.0.0.0/8"},
		{[]string{"Table does not exist"}, "-b br0 -t bad -T flush"},
		{[]string{"not the name of a table"}, "-b br0 -t abcdefghijklmnopqrstuvwxyzabcdef -T add 10.0.0.1"},
		{[]string{"unknown flag -y"}, "-y"},
		{[]string{"nothing to do"}, "-b br0"},
	} {
		l.Refused(test.words, append([]string{"pfctl"}, strings.Fields(test.args)...)...)
	}
	// Rules that are parsed but not supported can be checked, and are printed with a note.
	if r := tryPfctl(t, l, "pass in on p1 divert-packet port 9\n", "-nvf", "-"); r.Exit != 0 ||
		!strings.HasSuffix(r.Stdout, " divert-packet port 9\n") || !strings.Contains(r.Stderr, ":1:15: divert-packet: ") {
		t.Error(r)
	}
	for text, want := range map[string]string{
		"pass out on p1 divert-reply\n":                          "divert-reply: p1 is no host port,",
		"pass in on p1 route-to 10.99.0.1\n":                     "route-to: no interface of the host reaches 10.99.0.1;",
		"anchor a {\npass out on p1 dup-to 10.99.0.1\n}\npass\n": "dup-to: no interface of the host reaches 10.99.0.1;",
	} {
		r := tryPfctl(t, l, text, "-b", "br0", "-f", "-")
		syntax := strings.Contains(r.Stderr, "Syntax error") // translation is none
		if r.Exit != 1 || !strings.Contains(r.Stderr, want) || !strings.Contains(r.Stderr, "^") || syntax != (want == "scrub:") {
			t.Error(r)
		}
	}
	// The same applies to rules that translate at a port without translation. A check reports
	// it, too.
	for _, args := range [][]string{{"-b", "br0", "-f", "-"}, {"-b", "br0", "-n", "-f", "-"}} {
		if r := tryPfctl(t, l, "match out on p1 inet nat-to 10.0.0.1\npass\n", args...); r.Exit != 0 ||
			!strings.Contains(r.Stderr, ":1:22: nat-to never holds: p1 is no host port, ") {
			t.Error(r)
		}
	}
	if r := tryPfctl(t, l, "match out inet nat-to 10.0.0.1\npass\n", "-b", "br0", "-f", "-"); r.Exit != 0 || strings.Contains(r.Stderr, "never holds") {
		t.Error(r)
	}
	// Options without effect are loaded, with a note.
	for text, want := range map[string]string{
		"match set prio 5\npass\n":                           ":1:1: set prio has no effect: ",
		"pass scrub (reassemble tcp) no state\n":             ":1:1: reassemble tcp has no effect: it watches connections that have a state; ",
		"pass scrub (reassemble tcp) keep state (sloppy)\n":  ":1:1: reassemble tcp has no effect: a sloppy state ",
		"match scrub (reassemble tcp)\npass scrub (no-df)\n": "",
	} {
		if r := tryPfctl(t, l, text, "-b", "br0", "-f", "-"); r.Exit != 0 || !strings.Contains(r.Stderr, want) || (r.Stderr == "") != (want == "") {
			t.Error(r)
		}
	}
}
