// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"bascule/bridge"
	"bascule/lab"
	"bascule/lab/workloads"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The real switch implements switcher.
var _ switcher = liveSwitch{}

// everyCommand calls f for every visible command.
func everyCommand(cmd *cobra.Command, f func(*cobra.Command)) {
	f(cmd)
	for _, sub := range visible(cmd) {
		everyCommand(sub, f)
	}
}

// output runs a command without a switch and returns its output.
func output(t *testing.T, args ...string) string {
	t.Helper()
	var stdout, stderr strings.Builder
	if status := runWith(&fakeSwitch{}, &stdout, &stderr, args...); status != exitDone {
		t.Fatalf("bascule %s: exit status %d: %s", strings.Join(args, " "), status, stderr.String())
	}
	return stdout.String()
}

// TestSettings checks that every setting is in help, man page and completion of the commands that have it, and that its
// value arrives unchanged.
func TestSettings(t *testing.T) {
	pages := manPages(newRoot(&program{}))
	check := func(object, verb, name, value, def, help string) {
		t.Run(object+"/"+verb+"/"+name, func(t *testing.T) {
			args := []string{object, verb}
			flat := strings.Join(strings.Fields(output(t, append(args, "--help")...)), " ")
			if !strings.Contains(flat, "--"+name) || !strings.Contains(flat, help) {
				t.Errorf("--%s is not in the help", name)
			}
			if says := strings.Contains(flat, help+" (default "+def+")"); says != (verb == "add") {
				t.Errorf("help says the default: %t", says)
			}
			page := string(pages["bascule-"+object+".8"])
			if !strings.Contains(page, ".It Fl -"+name) {
				t.Errorf("--%s is not in the man page", name)
			}
			words := append([]string{cobra.ShellCompRequestCmd}, args...)
			if !strings.Contains(output(t, append(words, "--")...), "\n--"+name) &&
				!strings.HasPrefix(output(t, append(words, "--"+name)...), "--"+name) {
				t.Errorf("--%s is not completed", name)
			}
			var want []string
			for word := range strings.SplitSeq(value, "|") {
				if strings.ToUpper(word) != word { // not a placeholder, such as N
					want = append(want, word)
				}
			}
			if !slices.Contains(want, def) {
				want = append([]string{def}, want...)
			}
			got := strings.Split(output(t, append(words, "br0", "--"+name+"=")...), "\n")
			if diff := cmp.Diff(want, got[:len(want)]); diff != "" {
				t.Errorf("values completed: %s", diff)
			}
		})
	}
	for _, verb := range []string{"add", "set"} {
		for _, s := range bridge.BridgeSettings {
			check("bridge", verb, s.Name, s.Value, s.Default, s.Help)
		}
		for _, s := range bridge.PortSettings {
			check("port", verb, s.Name, s.Value, s.Default, s.Help)
		}
	}
}

// TestHelp checks that the help of every command has a description and examples in lines that fit, and that every
// example line is valid.
func TestHelp(t *testing.T) {
	everyCommand(newRoot(&program{}), func(cmd *cobra.Command) {
		t.Run(pageName(cmd), func(t *testing.T) {
			path := strings.Fields(cmd.CommandPath())[1:]
			text := output(t, append(path, "--help")...)
			for line := range strings.Lines(text) {
				if len(line) > columns+1 {
					t.Errorf("too long: %s", line)
				}
			}
			if cmd.Short == "" || cmd.Name() != "help" && (cmd.Long == "" || cmd.Example == "") {
				t.Errorf("a description or an example is missing")
			}
			if !strings.Contains(text, "Exit status:\n  0  done\n") {
				t.Errorf("exit status is missing")
			}
			if got := output(t, append([]string{"help"}, path...)...); got != text {
				t.Errorf("help %s and --help differ", cmd.Name())
			}
			for line := range strings.Lines(cmd.Example) {
				line, _, _ = strings.Cut(strings.TrimSpace(line), " | ")
				line, _, _ = strings.Cut(line, " >")
				args := strings.Fields(line)
				if len(args) == 0 || args[0] != "bascule" {
					continue
				}
				args = args[1:]
				about, rest, err := newRoot(&program{}).Find(args)
				if err != nil {
					t.Errorf("%s: %v", line, err)
					continue
				}
				if err := about.ParseFlags(rest); err != nil {
					t.Errorf("%s: %v", line, err)
				}
				if err := about.Args(about, about.Flags().Args()); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
		})
	})
}

// TestReasons checks that help and the man page have all reasons for drops.
func TestReasons(t *testing.T) {
	text := strings.Join(strings.Fields(output(t, "help", "reasons")), " ")
	page := string(manPages(newRoot(&program{}))["bascule.8"])
	for _, r := range bridge.Reasons {
		if !strings.Contains(text, r.Name+" "+r.Text) {
			t.Errorf("help does not have %s: %s", r.Name, r.Text)
		}
		if !strings.Contains(page, "\n.It "+r.Name+"\n") {
			t.Errorf("the man page does not have %s", r.Name)
		}
		if r.See == "" {
			continue
		}
		root := newRoot(&program{})
		cmd, rest, err := root.Find(strings.Fields(r.See))
		if err != nil || cmd == root {
			t.Errorf("%s: there is no command %s", r.Name, r.See)
		}
		for _, word := range rest {
			if name, ok := strings.CutPrefix(word, "--"); ok && cmd.Flags().Lookup(name) == nil {
				t.Errorf("%s: %s has no flag %s", r.Name, cmd.CommandPath(), word)
			}
		}
	}
	if !strings.Contains(output(t, "--help"), "'bascule help reasons'") {
		t.Error("nobody is told of it")
	}
}

// TestInstalledPages checks that the targets of links in installed pages are installed.
func TestInstalledPages(t *testing.T) {
	if _, err := exec.LookPath("make"); err != nil {
		t.Skip("needs make")
	}
	dir := t.TempDir()
	if out, err := exec.Command("make", "-s", "-C", "../..", "install-doc", "PREFIX=", "DESTDIR="+dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var pages []string
	for _, pattern := range []string{"/share/doc/bascule/*.md", "/share/doc/bascule/design/*.md", "/share/doc/bascule/lab/*.md"} {
		some, err := filepath.Glob(dir + pattern)
		if err != nil || len(some) == 0 {
			t.Fatalf("no pages: %v", err)
		}
		pages = append(pages, some...)
	}
	link := regexp.MustCompile(`\]\(([^)#: ]+)(#[^)]*)?\)`)
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(string(text), -1) {
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(page), m[1], err)
			}
		}
	}
}

// TestHelpKnows checks that help has the information that is in no other place.
func TestHelpKnows(t *testing.T) {
	if text := output(t, "apply", "--help"); !strings.Contains(text, "netns:") {
		t.Error("apply does not know netns:")
	}
	if text := output(t, "agent", "--help"); strings.Contains(text, "--json") {
		t.Error("agent lists --json, which it refuses")
	}
	if text := output(t, "agent", "status", "--help"); !strings.Contains(text, "--json") {
		t.Error("agent status does not list --json")
	}
	for _, c := range []string{"top", "completion"} {
		if text := output(t, c, "--help"); strings.Contains(text, "--json") {
			t.Errorf("%s lists --json, which it refuses", c)
		}
	}
	for _, c := range []struct{ command, range_ string }{
		{"bridge add", "1s to 1000000s; a bare number is seconds"}, {"bridge add", "1s to 2s; a bare number is seconds"},
		{"bridge add", "1 to 1000000, or 0 for no limit"}, {"port add", "1 to 4194304, or 0 for no limit of its own"},
		{"port add", "1pps to 4294967295pps, 1kbit to 4294gbit"}, {"port add", "1s to 3600s"},
		{"capture", "18 to 16384"}, {"capture", "64K to 1G"}, {"trace", "14 to about 3700"}, {"stats", "a bare number is seconds"}, {"top", "a bare number is seconds"},
		{"pfctl", "emerg, alert, crit, err, warning, notice, info or debug"}, {"lab run", "68 to 65535"},
	} {
		text := strings.Join(strings.Fields(output(t, append(strings.Fields(c.command), "--help")...)), " ")
		if !strings.Contains(text, c.range_) {
			t.Errorf("the help of %s does not say %s", c.command, c.range_)
		}
	}
	groups, page := strings.Fields(strings.ReplaceAll(output(t, "lab", "list"), ",", " ")), string(manPages(newRoot(&program{}))["bascule-lab.8"])
	for _, name := range lab.Bench(false).GroupNames() {
		if !slices.Contains(groups, name) {
			t.Errorf("lab list does not have the group %s", name)
		}
	}
	if !strings.Contains(page, "lab list") {
		t.Error("the man page does not say where names are listed")
	}
}

// TestFigures compares statements about the lab in the documentation with the lab.
func TestFigures(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile("../../" + path)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	if want := fmt.Sprintf("%d kinds of workload", len(workloads.Kinds)); !strings.Contains(read("CHANGELOG.md"), want) {
		t.Errorf("CHANGELOG.md should say %s", want)
	}
	took := regexp.MustCompile(fmt.Sprintf(`exact\s+takes\s+%.0f\s+minutes`, readSummary(t, "docs/lab/exact.md").took.Minutes()))
	if !took.MatchString(output(t, "lab", "run", "--help")) {
		t.Errorf("help should say %s", took)
	}
	want := fmt.Sprintf("%.0f minutes", readSummary(t, "docs/lab/report.md").took.Minutes())
	for where, text := range map[string]string{"docs/lab/published.md": read("docs/lab/published.md"), "help": output(t, "lab", "reproduce", "--help")} {
		if !strings.Contains(text, want) {
			t.Errorf("%s should say that all studies take %s", where, want)
		}
	}
}

// TestManPages checks that the committed pages match the definitions.
func TestManPages(t *testing.T) {
	const dir = "../../docs/man/"
	want := manPages(newRoot(&program{}))
	for name, text := range want {
		have, err := os.ReadFile(dir + name)
		if err != nil || !bytes.Equal(have, text) {
			t.Errorf("docs/man/%s is out of date; run go generate ./cmd/bascule (%v)", name, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "bascule") && want[e.Name()] == nil {
			t.Errorf("docs/man/%s is of a command that is no more; remove it", e.Name())
		}
	}
}

// TestManPagesRun checks that a page has each command that runs, with its flags, even if the command has subcommands.
func TestManPagesRun(t *testing.T) {
	pages := manPages(newRoot(&program{}))
	var check func(cmd *cobra.Command, page string)
	check = func(cmd *cobra.Command, page string) {
		if cmd.Hidden || cmd.Name() == "help" {
			return
		}
		if _, only := cmd.Annotations[onlyObject]; !only {
			if path := strings.TrimPrefix(cmd.CommandPath(), "bascule "); !strings.Contains(page, "\n.Cm "+path+"\n") {
				t.Errorf("%s is not in the synopsis", path)
			}
			local, _ := flagsOf(cmd)
			for _, f := range local {
				if !strings.Contains(page, "\n.It "+flagMacros(f)+"\n") {
					t.Errorf("%s of %s is not in the page", flagName(f), cmd.CommandPath())
				}
			}
		}
		for _, sub := range cmd.Commands() {
			check(sub, page)
		}
	}
	for _, object := range newRoot(&program{}).Commands() {
		check(object, string(pages[pageName(object)+".8"]))
	}
}

// TestManPagesFormat checks the pages with groff.
func TestManPagesFormat(t *testing.T) {
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("needs groff")
	}
	for name, text := range manPages(newRoot(&program{})) {
		cmd := exec.Command(groff, "-mdoc", "-ww", "-z")
		cmd.Stdin = bytes.NewReader(text)
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v: %s", name, err, out)
		}
	}
}

// TestManPagesExamples checks that every command's examples are in its page, once, and fit into a terminal.
func TestManPagesExamples(t *testing.T) {
	pages := manPages(newRoot(&program{}))
	plain := strings.NewReplacer(`\-`, "-", `\(aq`, "'", `\(ga`, "`", `\(ha`, "^", `\(ti`, "~", `\&`, "", `\e`, `\`)
	for _, object := range newRoot(&program{}).Commands() {
		if object.Hidden || object.Name() == "help" {
			continue
		}
		_, text, _ := strings.Cut(string(pages[pageName(object)+".8"]), ".Sh EXAMPLES\n")
		text, _, _ = strings.Cut(text, ".Sh ")
		text = plain.Replace(text)
		for line := range strings.Lines(text) {
			if len(strings.TrimSuffix(line, "\n")) > exampleWidth {
				t.Errorf("%s: too long: %s", pageName(object), line)
			}
		}
		joined := strings.ReplaceAll(text, " \\\n    ", " ")
		everyCommand(object, func(cmd *cobra.Command) {
			if cmd.Hidden {
				return
			}
			for _, line := range examples(cmd) {
				line = strings.TrimSuffix(strings.TrimPrefix(line, "  "), ` \`)
				if strings.HasPrefix(line, "#") {
					continue // the example is listed with the first of its kind
				}
				if n := strings.Count("\n"+joined, "\n"+line); n == 0 || n > 1 && strings.Count("\n"+joined, "\n"+line+"\n") > 1 {
					t.Errorf("%s has the example %d times: %s", pageName(object), n, line)
				}
			}
		})
	}
}

// TestCompletion checks the completion of existing names.
func TestCompletion(t *testing.T) {
	f := &fakeSwitch{}
	var nothing strings.Builder
	for _, args := range []string{
		"bridge add br0", "bridge add br1", "port add br0 p1", "port add br0 p2", "port add br1 q1",
		"fdb add br0 02:00:00:00:00:01 p1 --vlan 20", "binding add br0 p1 02:00:00:00:00:01 192.0.2.1",
	} {
		runWith(f, &nothing, &nothing, strings.Fields(args)...)
	}
	f.vlans = []bridge.PortVLANs{{Bridge: "br0", Port: "p1", Ranges: []bridge.VLANRange{{First: 1, Last: 1}, {First: 10, Last: 12}}}}
	for _, c := range []struct{ line, want string }{
		{"", "bridge\tadd, change, show and remove bridges"},
		{"bridge show ", "br0 br1 :4"},
		{"port set ", "br0 br1 :4"},
		{"port del br0 ", "p1 p2 :4"},
		{"port show br0 p1 ", ":4"},
		{"fdb add br0 02:00:00:00:00:01 ", "p1 p2 :4"},
		{"fdb del br0 ", "02:00:00:00:00:01\tp1"},
		{"binding add br0 ", "p1 p2 :4"},
		{"binding del br0 ", "192.0.2.1\tp1"},
		{"fdb show br0 --port ", "p1 p2 :4"},
		{"fdb flush br1 --port=", "q1 :4"},
		{"port add br0 p3 --hook ", "auto tcx xdp :4"},
		{"port add br0 p3 --type=", "netdev host patch :4"},
		{"monitor ", "br0 br1 :4"},
		{"capture ", "br0 br1 :4"},
		{"capture br0 --port ", "p1 p2 :4"},
		{"completion ", "bash zsh fish :4"},
		{"bridge set br0 --stp ", "off stp rstp :4"},
		{"bridge set br0 --stp=", "off stp rstp :4"},
		{"bridge add br2 --vlan-protocol ", "802.1Q 802.1ad :4"},
		{"bridge add br2 --default-pvid ", "1 none :4"},
		{"port set br0 p1 --loop-guard ", "off report :4"},
		{"port set br0 p1 --storm-bcast ", "none :4"},
		{"port set br0 p1 --rate-in ", "none :4"},
		{"port set br0 p1 --stp-cost ", "auto :4"},
		{"port add br0 p3 --peer ", "br1/ :6"}, // no space: the port's name follows
		{"rule add br0 p1 ", "block pass :4"},
		{"rule add br0 p1 block ", "in out on src dst tag arp rarp :4"},
		{"rule add br0 p1 block in on ", "p1 :4"},
		{"rule add br0 p1 block in on p1 src ", "02:00:00:00:00:01\tp1 :4"},
		{"rule add br0 p1 block in on p1 src 02:00:00:00:00:01 ", "dst tag arp rarp :4"},
		{"rule add br0 p1 block in arp ", "src dst tag request reply sha spa tha tpa :4"},
		{"rule add br0 p1 block in arp spa ", "192.0.2.1\tp1 :4"},
		{"rule add br0 p1 block in src nonsense ", ":4"},
		{"fdb add br0 ", "02:00:00:00:00:01\tp1 :4"},
		{"fdb add br0 02:00:00:00:00:01 p1 --vlan ", "1 10 11 12 20 :4"},
		{"fdb show br0 --vlan ", "1 10 11 12 20 :4"},
		{"binding add br0 p1 02:00:00:00:00:01 192.0.2.2 --vlan ", "1 10 11 12 20 :4"},
		{"vlan add br0 p1 ", "1 10 11 12 20 :6"}, // no space: more may follow
		{"vlan add br0 p1 10,1", "10,1 10,11 10,12 :6"},
		{"vlan del br0 p1 ", "1 10-12 :6"},
		{"vlan private br0 ", "1 10 11 12 20 :4"},
		{"vlan private br0 10 --isolated ", "1 10 11 12 20 none :4"},
		{"vlan private br0 10 --community 11,2", "11,20 :6"},
		{"span add br0 m --vlan 1,2", "1,20 :6"},
		{"trace br0 --in p1 --dst ", "02:00:00:00:00:01\tp1 :4"},
		{"trace br0 --in p1 --vlan ", "1 10 11 12 20 :4"},
		{"export br0 ", "br1 :4"},
		{"lab run --fabric linux-bridge,macvl", "linux-bridge,macvlan :6"},
		{"lab run --workload pps,udp,cr", "pps,udp,crr :6"},
		{"pfctl -b br0 -i ", "p1 p2 :4"},
		{"pfctl -o ", "none basic profile :4"},
		{"pfctl -x ", "emerg alert crit err warning notice info debug :4"},
		{"port del br0 p1 ", "p2 :4"},
		{"pflog -i ", "pflog0 :4"},
		{"help fdb ", "show\tshow entries"},
	} {
		t.Run(c.line, func(t *testing.T) {
			words := append([]string{cobra.ShellCompRequestCmd}, strings.Split(c.line, " ")...)
			var stdout, stderr strings.Builder
			if status := runWith(f, &stdout, &stderr, words...); status != exitDone {
				t.Fatalf("exit status %d", status)
			}
			got := strings.ReplaceAll(strings.TrimSpace(stdout.String()), "\n", " ")
			if !strings.HasPrefix(got, c.want) {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
	if status := runWith(f, io.Discard, io.Discard, cobra.ShellCompRequestCmd, "-n", "lab", "port", "show", ""); status != exitDone || f.netns != "lab" {
		t.Errorf("exit status %d, looked in namespace %q", status, f.netns)
	}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if text := output(t, "completion", shell); !strings.Contains(text, "__complete") {
			t.Errorf("no script for %s", shell)
		}
	}
}

// TestCompletionFiles checks that file names are completed only for flags with a file as their value.
func TestCompletionFiles(t *testing.T) {
	everyCommand(newRoot(&program{}), func(cmd *cobra.Command) {
		local, global := flagsOf(cmd)
		for _, f := range append(local, global...) {
			switch {
			case f.Value.Type() == "bool" || f.Value.Type() == "count" || f.Name == "version":
				continue
			}
			words := append([]string{cobra.ShellCompRequestCmd}, strings.Fields(cmd.CommandPath())[1:]...)
			text := output(t, append(words, flagName(f), "")...)
			files := strings.Contains(text, "\n:0\n") || strings.HasPrefix(text, ":0\n")
			if want := valueName(f) == "FILE"; files != want {
				t.Errorf("%s %s %s completes files: %t", cmd.CommandPath(), flagName(f), valueName(f), files)
			}
		}
	})
}

// TestMonitor checks that events are printed as they arrive, until an interrupt.
func TestMonitor(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"monitor", "br0"}, `03:04:05.678901 br0 port-added port p1
03:04:05.678901 br0 learned 02:00:00:00:00:01 port p1
03:04:05.678901 br0 moved 02:00:00:00:00:01 vlan 10 port p2 from p1
03:04:05.678901 br0 refused 02:00:00:00:00:01 port p1 from p2 reason damped count 7
03:04:05.678901 br0 loop 02:00:00:00:00:01 port p2 from p1 count 5
03:04:05.678901 br0 blocked port p2 for 30s
03:04:05.678901 br0 drops port p1 reason same-port count 3
03:04:05.678901 br0 port-taken port p1 by Linux bridge lxbr0
03:04:05.678901 br0 port-finding port p1: macvlan mv0 is above p1
03:04:05.678901 br0 port-cleared port p1: macvlan mv0
03:04:05.678901 br0 port-mtu port p1: p1 has MTU 1400
`},
		{[]string{"-j", "monitor"}, `{"time":"T","event":"port-added","master":"br0","ifname":"p1"}
{"time":"T","event":"learned","master":"br0","ifname":"p1","mac":"02:00:00:00:00:01","count":1}
{"time":"T","event":"moved","master":"br0","ifname":"p2","mac":"02:00:00:00:00:01","vlan":10,"from":"p1"}
{"time":"T","event":"refused","master":"br0","ifname":"p1","mac":"02:00:00:00:00:01","from":"p2","reason":"damped","count":7}
{"time":"T","event":"loop","master":"br0","ifname":"p2","mac":"02:00:00:00:00:01","from":"p1","count":5}
{"time":"T","event":"blocked","master":"br0","ifname":"p2","seconds":30}
{"time":"T","event":"drops","master":"br0","ifname":"p1","reason":"same-port","count":3}
{"time":"T","event":"port-taken","master":"br0","ifname":"p1","reason":"Linux bridge lxbr0"}
{"time":"T","event":"port-finding","master":"br0","ifname":"p1","reason":"macvlan mv0 is above p1"}
{"time":"T","event":"port-cleared","master":"br0","ifname":"p1","reason":"macvlan mv0"}
{"time":"T","event":"port-mtu","master":"br0","ifname":"p1","reason":"p1 has MTU 1400"}
`},
	} {
		f := &fakeSwitch{events: someEvents()}
		var stdout, stderr strings.Builder
		var early string
		f.watching = func() {
			early = stdout.String()
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
		if status := runWith(f, &stdout, &stderr, c.args...); status != exitDone || stderr.Len() > 0 {
			t.Errorf("exit status %d, %q", status, stderr.String())
		}
		got := strings.ReplaceAll(stdout.String(), f.events[0].Time.Format("2006-01-02T15:04:05.999999999Z07:00"), "T")
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Error(diff)
		}
		if early != stdout.String() {
			t.Errorf("events came late")
		}
	}
}

// brokenWriter fails like a file.
type brokenWriter struct{ err error }

func (w brokenWriter) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: w.err}
}

// TestBrokenOutput checks that a closed pipe is not a failure, and that a full disk is.
func TestBrokenOutput(t *testing.T) {
	busy := func() *fakeSwitch {
		f := &fakeSwitch{events: someEvents(), frames: someFrames(), watching: func() { t.Error("it went on") }}
		for i := range 1000 { // more than the buffer's size
			f.bridges = append(f.bridges, bridge.Info{Name: fmt.Sprint("br", i)})
		}
		return f
	}
	for _, args := range [][]string{{"bridge", "show"}, {"-j", "bridge", "show"}, {"--help"}, {"monitor"}, {"-j", "monitor"},
		{"capture", "br0"}, {"-j", "capture", "br0"}, {"capture", "br0", "-w", "-"}} {
		var stderr strings.Builder
		if status := runWith(busy(), brokenWriter{syscall.EPIPE}, &stderr, args...); status != exitDone || stderr.Len() > 0 {
			t.Errorf("%v: exit status %d, %q", args, status, stderr.String())
		}
		stderr.Reset()
		const want = "bascule: cannot print: write /dev/stdout: no space left on device; see where standard output goes\n"
		if status := runWith(busy(), brokenWriter{syscall.ENOSPC}, &stderr, args...); status != exitRefused || stderr.String() != want {
			t.Errorf("%v: exit status %d, %q", args, status, stderr.String())
		}
	}
}

// TestBrokenPlan checks the exit status of a dry run: it reports the changes, but an error if the output could not be
// written.
func TestBrokenPlan(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(path, []byte("bridges: {br0: }"), 0o600); err != nil {
		t.Fatal(err)
	}
	for errno, want := range map[syscall.Errno]int{syscall.EPIPE: exitChanges, syscall.ENOSPC: exitRefused} {
		var stderr strings.Builder
		status := runWith(&fakeSwitch{}, brokenWriter{errno}, &stderr, "apply", "--dry-run", path)
		if status != want || (status == exitRefused) != strings.Contains(stderr.String(), "cannot print") {
			t.Errorf("%v: exit status %d, want %d; %q", errno, status, want, stderr.String())
		}
	}
}

func TestGuess(t *testing.T) {
	names := []string{"add", "set", "show", "del"}
	for word, want := range map[string]string{
		"ad": "add", "shwo": "show", "delete": "del", "remove": "del", "list": "show", "frobnicate": "", "st": "set", "sohw": "show", "": "", "a": "",
	} {
		got := guess(word, "", names)
		if want != "" {
			want = " (did you mean " + want + "?)"
		}
		if got != want {
			t.Errorf("%q: %q, want %q", word, got, want)
		}
	}
}

// TestValueErrors checks that the error for an invalid value names the valid ones, and the help with more information.
func TestValueErrors(t *testing.T) {
	n := 0
	everyCommand(newRoot(&program{}), func(cmd *cobra.Command) {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			const bad = "!"
			if f.Value.Type() == "bool" || f.Value.Set(bad) == nil {
				return
			}
			var stderr strings.Builder
			args := append(strings.Fields(cmd.CommandPath())[1:], flagName(f)+"="+bad)
			status := runWith(&fakeSwitch{}, io.Discard, &stderr, args...)
			if text := stderr.String(); status != exitUsage || !strings.Contains(text, "give ") || !strings.Contains(text, "; see '"+cmd.CommandPath()+" --help'\n") {
				t.Errorf("%s: exit status %d: %s", strings.Join(args, " "), status, text)
			}
			n++
		})
	})
	if n < 100 {
		t.Errorf("%d flags check their values", n)
	}
}
