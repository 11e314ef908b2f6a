// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"bascule/bridge"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	"golang.org/x/sys/unix"
)

var update = flag.Bool("update", false, "write testdata/load.txtar and docs/bascule.schema.json anew")

const golden = "testdata/load.txtar"

// cases returns the input files of testdata/load.txtar by name.
func cases(t testing.TB) (archive *txtar.Archive, files map[string]string) {
	t.Helper()
	archive, err := txtar.ParseFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	files = map[string]string{}
	for _, f := range archive.Files {
		if path.Ext(f.Name) != ".want" {
			files[f.Name] = string(f.Data)
		}
	}
	return archive, files
}

// TestLoad reads the files of testdata/load.txtar and compares each result with the file of the
// same name and .want: the bridges, or the errors.
func TestLoad(t *testing.T) {
	archive, files := cases(t)
	made := &txtar.Archive{Comment: archive.Comment}
	want := map[string]string{}
	for _, f := range archive.Files {
		want[f.Name] = string(f.Data)
	}
	for _, f := range archive.Files {
		text, ok := files[f.Name]
		if !ok {
			continue
		}
		var got strings.Builder
		list, err := parse(f.Name, []byte(text))
		for _, file := range list {
			dump(&got, file)
		}
		if err != nil {
			fmt.Fprintln(&got, err)
		}
		wantName := f.Name + ".want"
		if !*update && want[wantName] != got.String() {
			t.Errorf("%s is not read as it should be (-want +got):\n%s", f.Name, cmp.Diff(want[wantName], got.String()))
		}
		made.Files = append(made.Files, f, txtar.File{Name: wantName, Data: []byte(got.String())})
	}
	if *update {
		if err := os.WriteFile(golden, txtar.Format(made), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// dump prints a file in the format of the tests.
func dump(w *strings.Builder, f File) {
	fmt.Fprintf(w, "file %s", f.Path)
	if f.Netns != "" {
		fmt.Fprintf(w, " netns %s", f.Netns)
	}
	w.WriteString("\n")
	at := func(p Position) string { return fmt.Sprintf("%d:%d", p.Line, p.Column) }
	changes := func(list []bridge.Change) (s string) {
		for _, c := range list {
			s += " " + c.Name + "=" + c.Value
		}
		return s
	}
	for _, b := range f.Bridges {
		fmt.Fprintf(w, "%s bridge %s%s\n", at(b.At), b.Name, changes(b.Settings))
		for _, p := range b.Ports {
			o := p.Options
			fmt.Fprintf(w, "  %s port %s", at(p.At), p.Name)
			for _, word := range []string{o.Type, o.Hook, o.Peer} {
				if word != "" {
					w.WriteString(" " + word)
				}
			}
			w.WriteString(changes(o.Changes))
			if p.VLANs != nil {
				w.WriteString(" vlans")
			}
			for _, r := range p.VLANs {
				fmt.Fprintf(w, " %d", r.First)
				if r.Last != r.First {
					fmt.Fprintf(w, "-%d", r.Last)
				}
				if r.Untagged {
					w.WriteString("u")
				}
				if r.PVID {
					w.WriteString("p")
				}
			}
			dumpInterface(w, &p)
			w.WriteString("\n")
		}
		for _, p := range b.Private {
			fmt.Fprintf(w, "  %s private %d isolated %v community %v\n", at(p.At), p.Primary, p.Isolated, p.Community)
		}
		for _, r := range b.Rules {
			fmt.Fprintf(w, "  %s rule %s\n", at(r.At), r.Text)
		}
		for _, e := range b.Bindings {
			fmt.Fprintf(w, "  %s binding %s %s %s %s vlan %d\n", at(e.At), e.Bridge, e.Port, e.MAC, e.Address, e.VLAN)
		}
		for _, m := range b.Mirrors {
			fmt.Fprintf(w, "  %s mirror %s ports %v vlans %v %s\n", at(m.At), m.Device, m.Ports, m.VLANs, m.Direction)
		}
		for _, e := range b.Entries {
			fmt.Fprintf(w, "  %s entry %s %s vlan %d static %t sticky %t\n", at(e.At), e.MAC, e.Port, e.VLAN, e.Static, e.Sticky)
		}
		if b.PF != nil {
			fmt.Fprintf(w, "  %s pf %t file %q rules %q\n", at(b.PF.At), b.PF.Enabled, b.PF.File, b.PF.Rules)
		}
	}
	if f.host != nil {
		fmt.Fprintf(w, "%s interface %s", at(f.host.at), f.host.name)
		dumpInterface(w, &f.host.says)
		w.WriteString("\n")
	}
	for _, n := range f.Notes {
		fmt.Fprintln(w, "note", n)
	}
}

// dumpInterface prints the settings of a port's device.
func dumpInterface(w *strings.Builder, p *Port) {
	if p.MAC != nil || p.OwnMAC {
		fmt.Fprintf(w, " mac %v %t", p.MAC, p.OwnMAC)
	}
	if p.MTU != 0 {
		fmt.Fprintf(w, " mtu %d", p.MTU)
	}
	if p.Addresses != nil {
		fmt.Fprintf(w, " addresses %v", p.Addresses)
	}
	if p.Up != nil {
		fmt.Fprintf(w, " up %t", *p.Up)
	}
	if p.Description != nil {
		fmt.Fprintf(w, " description %q", *p.Description)
	}
}

// TestVports reads a folder of OpenBSD files: the files for the host's interfaces set the addresses
// of host ports, and files for other interfaces are named and skipped.
func TestVports(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"hostname.em0": "up", "hostname.veb0": "add em0 add vport0 add vport1\nup", "hostname.pppoe0": "inet 0.0.0.0 255.255.255.255 NONE\n",
		"hostname.vport0": "inet 192.0.2.1 255.255.255.0\ninet6 2001:db8::1 64\nup", "hostname.vport1": "dhcp\nlladdr 2:0:0:0:0:7 mtu 1400\ndescription 'to the office'\ndown",
		"hostname.vport2": "inet 198.51.100.1/24", "hostname.pppoe0.bak": "up",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	list, err := Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, f := range list {
		f.host = nil
		dump(&got, f)
	}
	const want = `file DIR/hostname.em0
note DIR/hostname.em0: not read: em0 is a port of veb0, which is set up without it
file DIR/hostname.pppoe0
note DIR/hostname.pppoe0: not read: it is neither a bridge nor a host port: these are called bridgeN, vebN, tpmrN, vportN and vetherN
file DIR/hostname.veb0
1:1 bridge veb0 vlan-filtering=on
  1:5 port em0
  1:13 port vport0 host addresses [192.0.2.1/24 2001:db8::1/64] up true
  1:24 port vport1 host mac 02:00:00:00:00:07 false mtu 1400 up false description "to the office"
file DIR/hostname.vport0
file DIR/hostname.vport1
note DIR/hostname.vport1:1:1: dhcp: bascule requests no addresses; run a DHCP client on the host
file DIR/hostname.vport2
note DIR/hostname.vport2:1:1: vport2: no file that is read adds it to a bridge, as 'add vport2' of hostname.veb0 does; it is left out
`
	if diff := cmp.Diff(want, strings.ReplaceAll(got.String(), dir, "DIR")); diff != "" {
		t.Errorf("the folder is read as something else (-want +got):\n%s", diff)
	}

	for key, value := range map[string]string{"addresses": "203.0.113.1/24", "mac": "auto", "mtu": "1400", "description": "x", "up": "on"} {
		both := filepath.Join(dir, "both.yaml")
		if err := os.WriteFile(both, []byte("bridges: {b: {ports: {vport2: {type: host, "+key+": "+value+"}}}}"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := Load(both, filepath.Join(dir, "hostname.vport2")); err == nil || !strings.Contains(err.Error(), "vport2 has "+key+" at") {
			t.Errorf("%s in two files: %v", key, err)
		}
	}
}

// TestLoadFolder checks the order in which files and folders are read.
func TestLoadFolder(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return name
	}
	write("d/b.yml", "bridges: {b: }")
	write("d/a.yaml", "bridges: {a: }\n---\nnetns: other\nbridges: {a: }")
	write("d/hostname.veb0", "up\n")
	write("d/hostname.veb1~", "nonsense")
	write("d/hostname.em1", "nonsense")
	write("d/hostname.veb1.bak", "nonsense")
	write("d/.hidden.yaml", "nonsense")
	write("d/sub/c.yaml", "nonsense")
	write("d/notes.txt", "nonsense")
	odd := write("one.conf", "bridges: {c: }")
	twice := write("twice.yaml", "bridges:\n  b:\n")
	bad := write("bad.yaml", "bridges:\n  b: {agein: 1, x: 2}\n")
	large := write("large.yaml", strings.Repeat("#", maxSize+1))
	if err := unix.Mkfifo(filepath.Join(dir, "d/pipe.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	none := filepath.Join(dir, "none")
	empty := filepath.Join(dir, "d/sub/empty")
	if err := os.Mkdir(empty, 0o755); err != nil {
		t.Fatal(err)
	}
	others := filepath.Dir(write("d/sub/others/hostname.lo1", "up"))
	write("d/sub/others/hostname.em0", "up")
	folder := filepath.Join(dir, "d")
	tests := []struct {
		paths []string
		want  []string // netns and bridges
		err   string   // without the folder's name
	}{
		{paths: []string{odd, folder}, want: []string{"/c", "/a", "other/a", "/b", "/veb0"}},
		{paths: []string{folder, twice}, err: "DIR/twice.yaml:2:3: bridge b is already defined at DIR/d/b.yml:1:11; put all of it there"},
		{paths: []string{bad, bad}, err: strings.Repeat("DIR/bad.yaml:2:7: bridge \"b\" has no \"agein\"; the nearest is ageing\n"+
			"DIR/bad.yaml:2:17: bridge \"b\" has no \"x\"; see config.md, which explains the files\n", 2)},
		{paths: []string{none}, err: "DIR/none: no such file or directory; give a file that can be read"},
		{paths: []string{large}, err: "DIR/large.yaml: the file has more than 8388608 bytes; give a smaller one, or several"},
		{paths: []string{empty}, err: "DIR/d/sub/empty: the folder has no *.yaml, *.yml or hostname.*; give another folder, or a file"},
		{paths: []string{others}, err: "DIR/d/sub/others: the folder has no file that can be applied: hostname.em0 (1 more) is neither a bridge nor " +
			"a host port: these are called bridgeN, vebN, tpmrN, vportN and vetherN; give another folder, or a file"},
	}
	for _, test := range tests {
		list, err := Load(test.paths...)
		var got []string
		for _, f := range list {
			for _, b := range f.Bridges {
				got = append(got, f.Netns+"/"+b.Name)
			}
		}
		msg := ""
		if err != nil {
			msg = strings.ReplaceAll(err.Error(), dir, "DIR")
		}
		if diff := cmp.Diff(test.want, got); diff != "" || msg != strings.TrimSuffix(test.err, "\n") {
			t.Errorf("%q are read as %q, %s\nwant %q, %s", test.paths, got, msg, test.want, test.err)
		}
	}
}

// TestSmallFiles reads short files that stand for so many values that making them all would take
// much memory.
func TestSmallFiles(t *testing.T) {
	bomb := func(what string) string {
		text := "x-0: &a0 " + what + "\n"
		for i := range 5 {
			text += fmt.Sprintf("x-%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 16), ","))
		}
		return text
	}
	var bridges strings.Builder // 64 bridges with 64 mirrors of all VLANs each
	for i := range 64 {
		fmt.Fprintf(&bridges, "  b%d: {vlan-filtering: on, mirrors: *m}\n", i)
	}
	mirrors := strings.TrimSuffix(strings.Repeat("%d: {vlans: 1-4094}, ", 64), ", ")
	var n []any
	for i := range 64 {
		n = append(n, i)
	}
	rules := strings.Repeat("  block in on p1\n", 1000)
	var ruled strings.Builder
	for i := range 1000 {
		fmt.Fprintf(&ruled, "  b%d: {rules: *r}\n", i)
	}
	for _, c := range []struct{ name, text, want string }{
		{"values", bomb("[x,x,x,x,x,x,x,x]") + "bridges: *a5\n", "aliases stand for"},
		{"fewer", bomb("[x]") + "bridges: *a4\n", "aliases stand for"},
		{"maps", bomb("{a: b, c: d}") + "bridges: {<<: *a5}\n", "aliases stand for"},
		{"never used", bomb("[x,x,x,x,x,x,x,x]") + "bridges: {br0: }\n", "aliases stand for"},
		{"cycle", "x-a: &a [*a, *a, *a, *a]\nbridges: *a\n", "nested too deeply"},
		{"rules", "x-r: &r |\n" + rules + "bridges:\n" + ruled.String(), "aliases stand for"},
		{"vlans", "x-m: &m {" + fmt.Sprintf(mirrors, n...) + "}\nbridges:\n" + bridges.String(), "more than 4194304 VLANs in the lists of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, bad := parse("a.yaml", []byte(c.text))
			runtime.ReadMemStats(&after)
			if took := (after.TotalAlloc - before.TotalAlloc) >> 20; took > 64 {
				t.Errorf("%d bytes took %d MiB", len(c.text), took)
			}
			if bad == nil || !strings.Contains(bad.Error(), c.want) {
				t.Errorf("%.200s, want %s", bad, c.want)
			}
		})
	}
}

// TestLimits reads files that are built to take time and memory.
func TestLimits(t *testing.T) {
	bomb := "x-0: &a0 {a: 1, b: 2, c: 3}\n"
	for i := range 12 {
		bomb += fmt.Sprintf("x-%d: &a%d [%s]\n", i+1, i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d,", i), 12), ","))
	}
	many := "bridges:\n"
	for i := range 1000 {
		many += fmt.Sprintf("  b%d: {ageing: 0}\n", i)
	}
	tests := []struct{ name, text, want string }{
		{"flow.yaml", "a: " + strings.Repeat("[", 1<<19), "flow.yaml:1:20: nested too deeply; no bridge needs more than 16 levels"},
		{"block.yaml", strings.Repeat("- ", 1<<19), "block.yaml:1:257: nested too deeply; no bridge needs more than 16 levels"},
		{"keys.yaml", strings.Repeat("? ", 1<<19), "keys.yaml:1:257: nested too deeply; no bridge needs more than 16 levels"},
		{"deep.yaml", strings.Repeat("- ", 100) + "a", "deep.yaml:1:35: nested too deeply; no bridge needs more than 16 levels"},
		{"wide.yaml", strings.Repeat("a: 1\n", 1<<19), "wide.yaml:4097:2: more than 4096 keys in one mapping; give fewer"},
		{"bomb.yaml", bomb, "bomb.yaml:7:11: nested too deeply; no bridge needs more than 16 levels"},
		{"tokens.yaml", strings.Repeat("a: b\n---\n", 1<<18+1), ": more than 1048576 names, values and signs; give fewer, or several files"},
		{"commas.yaml", "bridges: [" + strings.Repeat("a,", 1<<20) + "]", ":1:1572872: more than 786432 of the characters [ ] { } , & * ! ? '- ' and ': '; give fewer, or several files"},
		{"levels.yaml", "bridges: " + strings.Repeat("[", 1<<20), ":1:786441: more than 786432 of the characters [ ] { } , & * ! ? '- ' and ': '; give fewer, or several files"},
		{"self.yaml", "x-a: &a\n  b: *a\nbridges:\n", "self.yaml:2:3: nested too deeply; no bridge needs more than 16 levels"},
		{"latin1.yaml", "# ok\n# \xe4\n", "latin1.yaml:2:3: not UTF-8; give a text file"},
		{"many.yaml", many, "many.yaml: 980 more errors"},
		{"hostname.veb0", strings.Repeat("nonsense\n", 100000), "hostname.veb0: 99980 more errors"},
	}
	for _, test := range tests {
		files, err := parse(test.name, []byte(test.text))
		if files != nil || err == nil || !strings.HasSuffix(err.Error(), test.want) {
			t.Errorf("%s is read as %v, %v, want %s", test.name, files, err, test.want)
		}
		if n := strings.Count(err.Error(), "\n"); n > maxErrors {
			t.Errorf("%s has %d lines of errors, want %d and one more", test.name, n, maxErrors)
		}
	}
}

// TestManyPorts checks that the cost of a file grows linearly with its ports, and that a bridge
// with too many ports is refused before any other check.
func TestManyPorts(t *testing.T) {
	dir := t.TempDir()
	write := func(name string, lines func(w *strings.Builder)) string {
		var text strings.Builder
		lines(&text)
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	ports := func(w *strings.Builder, bridge, n int) {
		for i := range n {
			fmt.Fprintf(w, "      p%d:\n", bridge*n+i)
		}
	}
	many := func(bridges int) func(w *strings.Builder) {
		return func(w *strings.Builder) {
			fmt.Fprintln(w, "bridges:")
			for b := range bridges {
				fmt.Fprintf(w, "  b%d:\n    ports:\n", b)
				ports(w, b, 1000)
			}
		}
	}
	// in CPU time of this thread, so other processes do not count
	took := func(name string) time.Duration {
		var before, after unix.Rusage
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &before)
		list, err := Load(name)
		if err == nil {
			_, _, err = Plan(File{}, list[0], nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = unix.Getrusage(unix.RUSAGE_THREAD, &after)
		return time.Duration(after.Utime.Nano() - before.Utime.Nano())
	}
	small, large := took(write("small.yaml", many(20))), took(write("large.yaml", many(200)))
	if large > 30*small+time.Second {
		t.Errorf("10 times the ports take %v rather than %v", large, small)
	}
	for _, name := range []string{
		write("wide.yaml", func(w *strings.Builder) {
			fmt.Fprintln(w, "bridges:\n  b0:\n    ports:")
			ports(w, 0, 2000)
		}),
		write("hostname.veb0", func(w *strings.Builder) {
			for i := range 80000 {
				fmt.Fprintf(w, "add p%d\n", i)
			}
		}),
	} {
		list, err := Load(name)
		if err == nil {
			_, _, err = Plan(File{}, list[0], nil)
		}
		if err == nil || strings.Count(err.Error(), "\n") != 0 || !strings.Contains(err.Error(), "ports, and no bridge can have more than 1023; make another bridge") {
			t.Errorf("%s: %v", filepath.Base(name), err)
		}
	}
}

// TestSpanningTreeWords reads the words of ifconfig(8) for the spanning tree and checks the
// settings that they make.
func TestSpanningTreeWords(t *testing.T) {
	const text = `add em0 add em1 add em2
stp em0 edge em0 -autoptp em0 ifcost em0 2000 ifpriority em0 64
stp em1 -autoedge em1 ptp em1 ifcost em1 5 -ifcost em1
stp em2 -stp em2
spanpriority 4096 hellotime 1 fwddelay 10 maxage 12 proto stp
up`
	h := &hostFile{faults: &faults{path: "hostname.bridge0"}, kind: ifBridge, given: map[string]givenSetting{}, proto: "rstp"}
	h.bridge.Name = "bridge0"
	for i, line := range strings.Split(text, "\n") {
		h.line(Position{"hostname.bridge0", i + 1, 1}, line)
	}
	h.finish()
	values := func(given map[string]givenSetting) map[string]string {
		m := map[string]string{}
		for name, v := range given {
			m[name] = v.value
		}
		return m
	}
	got := map[string]map[string]string{"": values(h.given)}
	for _, p := range h.ports {
		got[p.Name] = values(p.given)
	}
	want := map[string]map[string]string{
		"":    {"stp": "stp", "stp-priority": "4096", "stp-hello": "1s", "stp-forward-delay": "10s", "stp-max-age": "12s"},
		"em0": {"stp-edge": "on", "stp-p2p": "off", "stp-cost": "2000", "stp-priority": "64"},
		"em1": {"stp-edge": "off", "stp-p2p": "on", "stp-cost": "auto"},
		"em2": {"bpdu-filter": "on", "stp-edge": "on"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the words ask for other settings (-want +got):\n%s", diff)
	}
}

// TestDocs reads the example files of docs/config.md, and checks that the page lists the words of
// ifconfig(8).
func TestDocs(t *testing.T) {
	text, err := os.ReadFile("../docs/config.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range hostWords {
		for _, name := range w.names {
			if !bytes.Contains(text, []byte("`"+name)) {
				t.Errorf("docs/config.md does not say what %s becomes", name)
			}
		}
	}
	examples := 0
	for block := range strings.SplitSeq(string(text), "\n\n") {
		var lines []string
		for line := range strings.SplitSeq(strings.Trim(block, "\n"), "\n") {
			code, ok := strings.CutPrefix(line, "    ")
			if !ok {
				lines = nil
				break
			}
			lines = append(lines, code)
		}
		code := strings.Join(lines, "\n")
		name := "example.yaml"
		if first, rest, ok := strings.Cut(code, "\n"); ok && strings.HasPrefix(first, "# cat /etc/hostname.") {
			name, code = strings.TrimPrefix(first, "# cat "), rest
		} else if !strings.Contains(code, "bridges:") {
			continue
		}
		examples++
		if _, err := parse(name, []byte(code)); err != nil {
			t.Errorf("docs/config.md has an example with an error: %v\n%s", err, code)
		}
	}
	if examples < 3 {
		t.Errorf("docs/config.md has %d examples, want 3 at least", examples)
	}
}

// valid fails the test if an error's position is outside the text.
func valid(t *testing.T, text string, err Errors) {
	t.Helper()
	lines := strings.Split(lineBreaks.Replace(text), "\n")
	for _, e := range err {
		if e.At.Line == 0 {
			continue // how many more
		}
		if e.At.Line < 1 || e.At.Line > len(lines) || e.At.Column < 1 || e.At.Column > len([]rune(lines[e.At.Line-1]))+2 {
			t.Errorf("%v: there is no such place", e)
		}
		if strings.ContainsFunc(e.Error(), func(c rune) bool { return !unicode.IsGraphic(c) }) {
			t.Errorf("%q is not one line that can be printed", e.Error())
		}
	}
}

func fuzz(f *testing.F, name string, is func(string) bool) {
	_, files := cases(f)
	for _, k := range slices.Sorted(maps.Keys(files)) {
		if is(k) {
			f.Add(files[k])
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		files, err := parse(name, []byte(text))
		if (files == nil) == (err == nil) {
			t.Errorf("%q is read as %v, %v", text, files, err)
		}
		valid(t, text, err)
		for _, file := range files {
			valid(t, text, file.Notes)
			again(t, file)
		}
	})
}

// again fails the test if a written file is not equal to the original when it is read again.
func again(t *testing.T, file File) {
	t.Helper()
	var first, second strings.Builder
	if err := file.Write(&first); err != nil {
		t.Fatal(err)
	}
	files, err := parse("again.yaml", []byte(first.String()))
	if err != nil || len(files) != 1 {
		t.Fatalf("%d files, %v, of\n%s", len(files), err, first.String())
	}
	if err := files[0].Write(&second); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first.String(), second.String()); diff != "" {
		t.Errorf("what was written is not read as it was (-first +second):\n%s", diff)
	}
}

func isHostname(name string) bool { return strings.HasPrefix(path.Base(name), hostnamePrefix) }

// FuzzYAML reads arbitrary YAML files.
func FuzzYAML(f *testing.F) {
	fuzz(f, "f.yaml", func(name string) bool { return !isHostname(name) })
}

// FuzzHostname reads files of hostname.if(5) with arbitrary text.
func FuzzHostname(f *testing.F) {
	fuzz(f, "hostname.veb0", isHostname)
}

// TestErrorsAre checks that errors.As finds the errors of files.
func TestErrorsAre(t *testing.T) {
	_, bad := parse("a.yaml", []byte("bridges: 1"))
	var err error = bad
	var list Errors
	if text := (Error{Position{"a\x1b.yaml", 1, 2}, "found \x00\n"}).Error(); text != "a\ufffd.yaml:1:2: found \ufffd\ufffd" {
		t.Errorf("a terminal gets %q", text)
	}
	if !errors.As(err, &list) || len(list) != 1 || list[0].At != (Position{"a.yaml", 1, 10}) {
		t.Errorf("the error is %#v", err)
	}
}

// TestCheck checks that a text is refused if apply would refuse it, also for its pf rules.
func TestCheck(t *testing.T) {
	rules := func(addresses int) string {
		list := make([]string, addresses)
		for i := range list {
			list[i] = fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255)
		}
		return fmt.Sprintf("bridges: {br0: {pf: {rules: \"table <t> persist { %s }\"}}}\n", strings.Join(list, " "))
	}
	for _, test := range []struct{ text, words string }{
		{"bridges: {br0: {ports: {p1: {}}}}\n", ""},
		{rules(200_000), ""},
		{rules(200_001), "200000"},
		{"bridges: {br0: {bindings: [" + strings.Repeat("{port: p1},", 200_000) + "]}}\n", "786432"},
		{"bridges: {br0: {oops: 1}}\n", "oops"},
		{strings.Repeat(" ", maxSize+1), "bytes"},
	} {
		err := Check("the file", []byte(test.text))
		if (err == nil) != (test.words == "") || err != nil && !strings.Contains(err.Error(), test.words) {
			t.Errorf("%.60s...: %v, want %q", test.text, err, test.words)
		}
	}
}

// A mount namespace may lack /dev/stdin and /dev/fd. Load can still read the descriptors that the
// process inherited.
func TestLoadWithoutDev(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("bridges: {br0: }\n"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	name := fmt.Sprintf("/dev/fd/0%d", r.Fd()) // the descriptor exists, but a file with that name never does
	if _, err := os.Stat(name); err == nil {
		t.Fatalf("there is %s", name)
	}
	list, err := Load(name)
	if err != nil || len(list) != 1 || len(list[0].Bridges) != 1 || list[0].Bridges[0].Name != "br0" {
		t.Errorf("it read %+v, error %v, want br0", list, err)
	}
}
