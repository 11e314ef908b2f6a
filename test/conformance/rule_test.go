// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"bascule/test/netlab"
)

var ruleCases = []conformance{
	{name: "rules", hooks: both, run: rules},
	{name: "rules_arp", hooks: both, run: rulesARP},
	{name: "rules_file", hooks: both, run: rulesFile},
	{name: "rules_counters", hooks: both, run: rulesCounters},
	{name: "rules_under_load", hooks: both, run: rulesUnderLoad},
	{name: "rules_of_a_port", hooks: tcx, run: rulesOfAPort},
}

// addRule appends a rule of br0 to a port's rules.
func addRule(l *netlab.Lab, e *netlab.End, text string) {
	l.Bascule(append([]string{"rule", "add", "br0", e.Port}, strings.Fields(text)...)...)
}

// load replaces the rules of br0.
func load(t *testing.T, l *netlab.Lab, text string, flags ...string) {
	t.Helper()
	if r := tryLoad(t, l, text, flags...); r.Exit != 0 || r.Stderr != "" || r.Stdout != "" {
		t.Fatal(r)
	}
}

func tryLoad(t *testing.T, l *netlab.Lab, text string, flags ...string) netlab.Result {
	t.Helper()
	cmd := l.Command(append([]string{"rule", "load", "br0", "-"}, flags...)...)
	cmd.Stdin = strings.NewReader(text)
	r, err := netlab.RunCommand(cmd)
	must(t, err)
	return r
}

// wantRules compares the rules of br0, or of a port.
func wantRules(t *testing.T, l *netlab.Lab, want string, port ...string) {
	t.Helper()
	if got := l.Bascule(append([]string{"rule", "show", "br0"}, port...)...); got != want {
		t.Errorf("the rules are\n%sshould be\n%s", got, want)
	}
}

// rules: the first match decides about a frame, on input and on output.
func rules(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A, D)
	learn(l, b, B)
	learn(l, c, C)

	// On input, by source and destination.
	addRule(l, a, "block in src "+A.String()+" dst "+B.String())
	l.Reach(a, l.Frames(20, B, A))
	wantDrops(t, l, a, "rule", 20)
	l.Reach(a, l.Frames(20, C, A), c)
	l.Reach(a, l.Frames(20, B, D), b)
	l.Reach(a, l.Frames(20, netlab.Broadcast, A), b, c)
	l.Reach(b, l.Frames(20, A, B), a)

	// The first match decides, also after the decision was remembered.
	addRule(l, a, "pass in dst "+C.String())
	addRule(l, a, "block in src "+A.String())
	l.Reach(a, l.Frames(20, C, A), c)
	l.Reach(a, l.Frames(20, netlab.Broadcast, A))
	l.Reach(a, l.Frames(20, netlab.Broadcast, D), b, c)
	wantDrops(t, l, a, "rule", 40)

	// On output: floods reach the other ports.
	addRule(l, c, "block out src "+B.String())
	l.Reach(b, l.Frames(20, C, B))
	l.Reach(b, l.Frames(20, netlab.Broadcast, B), a)
	l.Reach(b, l.Frames(20, netlab.Group(1), B), a)
	l.Reach(b, l.Frames(20, netlab.Station(100), B), a)
	wantDrops(t, l, b, "rule", 80)
	l.Reach(c, l.Frames(20, B, C), b) // the other direction is free
	l.Reach(a, l.Frames(20, C, D), c)

	// In both directions. Tags make no difference.
	addRule(l, b, "block dst "+netlab.Group(2).String())
	tagged := func(frames []netlab.Frame) []netlab.Frame {
		for i, f := range frames {
			frames[i] = f.Tagged(10, 3)
		}
		return frames
	}
	l.Reach(b, tagged(l.Frames(5, netlab.Group(2), B)))
	l.Reach(a, tagged(l.Frames(5, netlab.Group(2), D)), c)
	l.Reach(a, tagged(l.Frames(5, netlab.Group(3), D)), b, c)

	wantRules(t, l, fmt.Sprintf("block in on %[1]s src %[4]s dst %[5]s\npass in on %[1]s dst %[6]s\nblock in on %[1]s src %[4]s\nblock out on %[3]s src %[5]s\nblock on %[2]s dst %[7]s\n",
		a.Port, b.Port, c.Port, A, B, C, netlab.Group(2)))
	wantRules(t, l, fmt.Sprintf("block out on %s src %s\n", c.Port, B), c.Port)

	// One rule less, then none.
	l.Bascule("rule", "del", "br0", a.Port, "block", "in", "src", A.String())
	l.Reach(a, l.Frames(20, netlab.Broadcast, A), b, c)
	l.Reach(a, l.Frames(20, B, A))
	if out := l.Bascule("rule", "flush", "br0", a.Port); out != "2 rules removed\n" {
		t.Errorf("flush of a port's says %q", out)
	}
	l.Reach(a, l.Frames(20, B, A), b)
	l.Reach(b, l.Frames(20, C, B))
	if out := l.Bascule("rule", "flush", "br0"); out != "2 rules removed\n" {
		t.Errorf("flush says %q", out)
	}
	l.Reach(b, l.Frames(20, C, B), c)
	wantRules(t, l, "")
}

// numberedARP returns a packet of ARP (RFC 826) or RARP (RFC 903).
func numberedARP(l *netlab.Lab, dst, src netlab.MAC, kind, op uint16, sha netlab.MAC, spa string, tha netlab.MAC, tpa string) netlab.Frame {
	b := []byte(l.Frame(dst, src, 60))
	copy(b[42:46], b[14:18]) // its number
	binary.BigEndian.PutUint16(b[12:], kind)
	copy(b[14:], "\x00\x01\x08\x00\x06\x04")
	binary.BigEndian.PutUint16(b[20:], op)
	copy(b[22:], sha[:])
	copy(b[28:], netip.MustParseAddr(spa).AsSlice())
	copy(b[32:], tha[:])
	copy(b[38:], netip.MustParseAddr(tpa).AsSlice())
	return netlab.Frame(b)
}

// rulesARP: rules examine ARP and RARP, requests and replies, whatever the last decision on
// such a packet between the same two stations was.
func rulesARP(t *testing.T, hook string) {
	const arp, rarp = 0x0806, 0x8035
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	type packet struct {
		kind, op uint16
		sha      netlab.MAC
		spa      string
		tha      netlab.MAC
		tpa      string
	}
	request := packet{arp, 1, A, "192.0.2.1", netlab.MAC{}, "192.0.2.2"}
	reply := packet{arp, 2, A, "192.0.2.1", B, "192.0.2.2"}
	with := func(p packet, change func(*packet)) packet { change(&p); return p }
	for _, c := range []struct {
		rule         string
		blocks, lets []packet
	}{
		{"arp", []packet{request, reply}, []packet{{rarp, 3, A, "0.0.0.0", A, "0.0.0.0"}}},
		{"arp request", []packet{request}, []packet{reply}},
		{"arp reply", []packet{reply}, []packet{request}},
		{"rarp", []packet{{rarp, 3, A, "0.0.0.0", A, "0.0.0.0"}, {rarp, 4, B, "192.0.2.2", A, "192.0.2.1"}}, []packet{request}},
		{"rarp request", []packet{{rarp, 3, A, "0.0.0.0", A, "0.0.0.0"}}, []packet{{rarp, 4, B, "192.0.2.2", A, "192.0.2.1"}}},
		{"rarp reply", []packet{{rarp, 4, B, "192.0.2.2", A, "192.0.2.1"}}, []packet{{rarp, 3, A, "0.0.0.0", A, "0.0.0.0"}}},
		{"arp sha " + A.String(), []packet{request}, []packet{with(request, func(p *packet) { p.sha = C })}},
		{"arp spa 192.0.2.1", []packet{reply}, []packet{with(reply, func(p *packet) { p.spa = "192.0.2.3" })}},
		{"arp tha " + B.String(), []packet{reply}, []packet{request}},
		{"arp tpa 192.0.2.2", []packet{request}, []packet{with(request, func(p *packet) { p.tpa = "192.0.2.3" })}},
		{"arp reply sha " + A.String() + " spa 192.0.2.1 tha " + B.String() + " tpa 192.0.2.2", []packet{reply},
			[]packet{request, with(reply, func(p *packet) { p.tpa = "192.0.2.3" })}},
	} {
		for _, port := range []string{"in on " + a.Port, "out on " + b.Port} {
			load(t, l, "block "+port+" "+c.rule+"\n")
			frames := func(list []packet, dst netlab.MAC) (made []netlab.Frame) {
				for _, p := range list {
					f := numberedARP(l, dst, A, p.kind, p.op, p.sha, p.spa, p.tha, p.tpa)
					made = append(made, f, f.Tagged(10, 0))
				}
				return made
			}
			for range 2 {
				for _, dst := range []netlab.MAC{B, netlab.Broadcast} {
					l.Reach(a, frames(c.blocks, dst))
					l.Reach(a, frames(c.lets, dst), b)
				}
				l.Reach(a, l.Frames(5, B, A), b)
			}
		}
	}
}

// rulesFile: a file is loaded as a whole or not at all, and the output is such a file.
func rulesFile(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	text := fmt.Sprintf("pass in on %[1]s src %[4]s tag a\nblock in on %[1]s\nblock out on %[2]s arp reply spa 192.0.2.1\nblock on %[3]s\n", a.Port, b.Port, c.Port, A)
	load(t, l, "# who may\n\n\t"+strings.ReplaceAll(text, "\n", " # so\n"))
	wantRules(t, l, text)
	check := func() {
		t.Helper()
		l.Reach(a, l.Frames(10, B, A), b)
		l.Reach(a, l.Frames(10, B, D))
		l.Reach(b, l.Frames(10, netlab.Broadcast, B), a)
	}
	check()

	bad := text + "block in on " + a.Port + "\n\tblock in src 02:00 on " + a.Port + "\npass on nosuch\n"
	r := tryLoad(t, l, bad)
	lines := strings.SplitAfter(r.Stderr, "\n")
	if r.Exit != 1 || r.Stdout != "" || len(lines) != 5 || lines[0] != "bascule: cannot load rules of br0: 1 line is wrong; nothing was changed\n" || !strings.HasPrefix(lines[1], "stdin:6:11: ") || lines[2] != "    \tblock in src 02:00 on "+a.Port+"\n" || lines[3] != "    \t         ^\n" {
		t.Errorf("a file with a bad line: %v\n%s", r, r.Stderr)
	}
	r = tryLoad(t, l, text+"pass on nosuch\n\n  block on nosuch # twice\n")
	lines = strings.SplitAfter(r.Stderr, "\n")
	if r.Exit != 1 || r.Stdout != "" || len(lines) != 8 || !strings.HasPrefix(lines[1], "stdin:5:9: nosuch: ") || lines[3] != "            ^\n" ||
		!strings.HasPrefix(lines[4], "stdin:7:12: nosuch: ") {
		t.Errorf("a file with ports that are not there: %v\n%s", r, r.Stderr)
	}
	wantRules(t, l, text)
	check()

	// From a file, for one port.
	name := filepath.Join(t.TempDir(), "rules")
	must(t, os.WriteFile(name, []byte("block in src "+A.String()+"\n"), 0o644))
	l.Bascule("rule", "load", "br0", name, "--port", a.Port)
	l.Reach(a, l.Frames(10, B, A))
	l.Reach(a, l.Frames(10, B, D), b)
	saved := l.Bascule("rule", "show", "br0", "--stats")
	l.Bascule("rule", "flush", "br0")
	l.Reach(a, l.Frames(10, B, A), b)
	load(t, l, saved)
	l.Reach(a, l.Frames(10, B, A))

	for _, c := range []struct{ args, says string }{
		{"add br0 nosuch block", "br0 nosuch"},
		{"add nosuch p1 block", "nosuch"},
		{"add br0 p1 frobnicate", "frobnicate block pass"},
		{"add br0 p1 block in on p2", "p2 p1"},
		{"add br0 p1 block src 1:2:3", "1:2:3 src"},
		{"add br0 p1 block arp spa 2001:db8::1", "2001:db8::1 IPv4"},
		{"add br0 p1 block in tag " + strings.Repeat("t", 64), "64 63"},
		{"del br0 p1 block out", "br0 p1"},
		{"show br0 nosuch", "br0 nosuch"},
		{"show nosuch", "nosuch"},
		{"flush br0 nosuch", "br0 nosuch"},
		{"load br0 " + name + " --port nosuch", "br0 nosuch"},
		{"load nosuch " + name + " --port p1", "nosuch"},
		{"load br0 /nosuch", "br0 /nosuch"},
		{"load br0 /", "br0"},
	} {
		before := l.Bascule("rule", "show", "br0")
		l.Refused(strings.Fields(c.says), append([]string{"rule"}, strings.Fields(c.args)...)...)
		wantRules(t, l, before)
	}

	// As many as possible, and one more.
	var many strings.Builder
	for n := range 16384 {
		fmt.Fprintf(&many, "block in on %s src %s\n", a.Port, netlab.Station(1000+n))
	}
	load(t, l, many.String())
	l.Reach(a, l.Frames(10, B, A), b)
	l.Reach(a, l.Frames(10, B, netlab.Station(1000+16383)))
	l.Refused(strings.Fields("br0 16384"), "rule", "add", "br0", b.Port, "block")
	wantRules(t, l, many.String())
}

// rulesCounters: each rule counts its matches, until it is changed.
func rulesCounters(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A, D)
	learn(l, b, B)
	learn(l, c, C)
	addRule(l, a, "pass in src "+A.String())
	addRule(l, a, "block in")
	addRule(l, b, "pass out src "+A.String())
	addRule(l, c, "block out dst "+netlab.Broadcast.String())
	want := func(counts ...uint64) {
		t.Helper()
		var list []struct {
			Rule           string
			Packets, Bytes uint64
		}
		l.JSON(&list, "rule", "show", "br0", "--stats")
		for i, r := range list {
			if i >= len(counts) || r.Packets != counts[i] || r.Bytes != counts[i]*60 {
				t.Errorf("rule %d, %s, counts %d frames of %d bytes, should count %v", i, r.Rule, r.Packets, r.Bytes, counts)
			}
		}
	}
	want(0, 0, 0, 0)
	l.Reach(a, l.Frames(50, B, A), b)
	want(50, 0, 50, 0)
	l.Reach(a, l.Frames(20, B, D))
	want(50, 20, 50, 0)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)
	want(60, 20, 60, 10)
	l.Reach(b, l.Frames(10, A, B), a)
	want(60, 20, 60, 10)
	// After any other change.
	l.Bascule("port", "set", "br0", b.Port, "--hairpin")
	addRule(l, b, "pass in")
	want(60, 20, 60, 10, 0)
	l.Bascule("rule", "del", "br0", a.Port, "block", "in")
	want(60, 60, 10, 0)
	l.Reach(a, l.Frames(5, B, A), b)
	want(65, 65, 10, 0)
	addRule(l, a, "block in")
	want(65, 65, 10, 0, 0)
}

// rulesUnderLoad: two lists alternate that have the same result for the frames on their way. No
// half of them does.
func rulesUnderLoad(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A, C)
	learn(l, b, B)
	lists := []string{
		fmt.Sprintf("pass in on %s src %s\nblock in on %[1]s\n", a.Port, A),
		fmt.Sprintf("block out on %s src %s\npass on %[1]s\n", b.Port, C),
	}
	load(t, l, lists[0])
	traffic := l.StartLoad(ends,
		netlab.Flow{From: a, Dst: B, Src: A, To: ends[1:]},
		netlab.Flow{From: a, Dst: B, Src: C},
		netlab.Flow{From: a, Dst: netlab.Broadcast, Src: C},
		netlab.Flow{From: b, Dst: A, Src: B, To: ends[:1]})
	l.Wait("traffic to flow", traffic.Flowing(1000))
	for n := range 30 {
		if traffic.Failed() {
			break
		}
		load(t, l, lists[(n+1)%2])
	}
	l.Wait("traffic to flow", traffic.Flowing(1000))
	must(t, traffic.Stop())
}

// rulesOfAPort: rules follow their port when it is renamed. The next port in its place has
// none.
func rulesOfAPort(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, b, B)
	addRule(l, a, "block in")
	addRule(l, b, "pass")
	l.Reach(a, l.Frames(10, B, A))
	l.Bascule("port", "del", "br0", a.Port)
	wantRules(t, l, "pass on "+b.Port+"\n")
	l.Bascule("port", "add", "br0", a.Port)
	wantRules(t, l, "pass on "+b.Port+"\n")
	l.Reach(a, l.Frames(10, B, A), b)

	addRule(l, a, "block in src "+A.String())
	l.Bascule("bridge", "set", "br0", "--ageing", "60s")
	l.Reach(a, l.Frames(10, B, A))
	near, err := l.Switch.Netlink().LinkByName(a.Port)
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetName(near, "renamed"))
	wantRules(t, l, "pass on "+b.Port+"\nblock in on renamed src "+A.String()+"\n")
	l.Bascule("rule", "del", "br0", "renamed", "block", "in", "src", A.String())
	l.Reach(a, l.Frames(10, B, A), b)
	must(t, l.Switch.Netlink().LinkSetName(near, a.Port))
}

// TestRuleHash: a rule of a port whose name would begin a comment is printed such that it can
// be read again, by rule load and by files.
func TestRuleHash(t *testing.T) {
	l, _ := setup(t, "tcx", 1)
	device := netlink.NewLinkAttrs()
	device.Name = "#c"
	veth := &netlink.Veth{LinkAttrs: device, PeerName: "far"}
	must(t, l.Switch.Netlink().LinkAdd(veth))
	l.Bascule("port", "add", "br0", "#c")
	l.Bascule("rule", "add", "br0", "#c", "block", "in", "src", "02:00:00:00:00:66")
	shown := l.Bascule("rule", "show", "br0")
	file := filepath.Join(t.TempDir(), "rules")
	must(t, os.WriteFile(file, []byte(shown), 0o600))
	l.Bascule("rule", "load", "br0", file)
	if again := l.Bascule("rule", "show", "br0"); again != shown {
		t.Errorf("rules\n%s become\n%s", shown, again)
	}
	all := filepath.Join(t.TempDir(), "all.yaml")
	must(t, os.WriteFile(all, []byte(l.Bascule("export")), 0o600))
	if out := l.Bascule("apply", all); out != "" {
		t.Errorf("the export differs from what runs: %s", out)
	}
	l.Bascule("port", "del", "br0", "#c")
	must(t, l.Switch.Netlink().LinkDel(veth))
}
