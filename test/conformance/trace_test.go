// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"bascule/test/netlab"
)

var traceCases = []conformance{
	{name: "trace", hooks: both, run: trace},
	{name: "trace_frames", hooks: tcx, run: traceFrames},
	{name: "trace_tags_and_spans", hooks: tcx, run: traceTagsAndSpans},
	{name: "trace_lost", hooks: tcx, run: traceLost},
	{name: "trace_rule", hooks: tcx, run: traceRule},
	{name: "trace_past", hooks: tcx, run: tracePast},
	{name: "trace_copies", hooks: tcx, run: traceCopies},
	{name: "trace_no_way", hooks: tcx, run: traceNoWay},
	{name: "trace_no_room", hooks: tcx, run: traceNoRoom},
	{name: "trace_size", hooks: tcx, run: traceSize},
	{name: "trace_no_dst", hooks: tcx, run: traceNoDst},
	{name: "trace_other_vlan", hooks: tcx, run: traceOtherVLAN},
}

// A traceResult is an element of the output of `bascule -j trace`.
type traceResult struct {
	Master  string
	Ifname  string
	Verdict string
	Out     []string
	Steps   []struct{ Name, Text string }
}

func (r traceResult) String() string {
	s := fmt.Sprintf("%s, out %v", r.Verdict, r.Out)
	for _, step := range r.Steps {
		s += fmt.Sprintf("\n  %s: %s", step.Name, step.Text)
	}
	return s
}

// says reports whether one of the steps has the text.
func (r traceResult) says(text string) bool {
	for _, s := range r.Steps {
		if strings.Contains(s.Text, text) {
			return true
		}
	}
	return false
}

// late reports whether an event is about counters. These are reported once a second, and are compared anyway.
func late(e netlab.Event) bool { return e.Event == "drops" }

// traced traces a frame. This must have no effect: no frame, no count, no event, no address.
func traced(t *testing.T, l *netlab.Lab, m *netlab.Monitor, in *netlab.End, f netlab.Frame) traceResult {
	t.Helper()
	state := func() string {
		var entries []string
		for _, e := range l.FDB("br0") {
			entries = append(entries, e.String())
		}
		slices.Sort(entries)
		events := slices.DeleteFunc(m.Events(), late)
		return fmt.Sprintf("%+v\n%q\n%+v\n%d events\n%v", l.Ports("br0"), entries, l.Bridge("br0"), len(events), program(t, l, in))
	}
	l.Deliver(in) // discards earlier frames
	before := state()
	var list []traceResult
	l.JSON(&list, "trace", "br0", "--in", in.Port, hex.EncodeToString([]byte(f)))
	if len(list) != 1 || list[0].Master != "br0" || list[0].Ifname != in.Port {
		t.Fatalf("traced: %+v", list)
	}
	l.Flush()
	if after := state(); after != before {
		t.Errorf("before the trace\n%s\nafter it\n%s", before, after)
	}
	for _, e := range l.Ends {
		if got := e.Received(); len(got) > 0 {
			t.Errorf("a trace has sent to %s: %v", e.Port, got)
		}
	}
	return list[0]
}

// look traces a frame on a busy switch.
func look(t *testing.T, l *netlab.Lab, in *netlab.End, f netlab.Frame) traceResult {
	t.Helper()
	var list []traceResult
	l.JSON(&list, "trace", "br0", "--in", in.Port, hex.EncodeToString([]byte(f)))
	if len(list) != 1 {
		t.Fatalf("traced: %+v", list)
	}
	return list[0]
}

// trace: the result for a frame is what then happens to it.
func trace(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4, "--ageing", "1h")
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	m := l.NewMonitor("br0", a)
	b.SetMTU(1400)
	learn(l, a, A)
	learn(l, b, B)
	l.Bascule("fdb", "add", "br0", D.String(), d.Port)
	set := func(e *netlab.End, flags ...string) func() {
		return func() { l.Bascule(append([]string{"port", "set", "br0", e.Port}, flags...)...) }
	}
	bridge := func(flags ...string) func() {
		return func() { l.Bascule(append([]string{"bridge", "set", "br0"}, flags...)...) }
	}
	all := func(f ...func()) func() {
		return func() {
			for _, g := range f {
				g()
			}
		}
	}
	X, mark := netlab.Station(100), netlab.Station(101)
	marks := 0
	reserved := netlab.MAC{1, 0x80, 0xc2, 0, 0, 3}
	const full = 1514
	for _, c := range []struct {
		name    string
		before  func()
		in      *netlab.End
		frame   netlab.Frame
		verdict string
		says    string
	}{
		{"known", nil, a, l.Frame(B, A, 60), "forwarded", "is behind p2 (dynamic)"},
		{"static", nil, a, l.Frame(D, A, 60), "forwarded", "is behind p4 (static)"},
		{"unknown", nil, a, l.Frame(X, A, 60), "flooded", "is unknown"},
		{"broadcast", nil, a, l.Frame(netlab.Broadcast, A, 60), "flooded", "every station"},
		{"group", nil, a, l.Frame(netlab.Group(1), A, 60), "flooded", "a group"},
		{"new source", nil, a, l.Frame(B, netlab.Station(50), 60), "forwarded", "is new on p1"},
		{"source moves", nil, c, l.Frame(B, netlab.Station(50), 60), "forwarded", "moves to p3"},
		{"source is static elsewhere", nil, a, l.Frame(B, D, 60), "forwarded", "it is static on p4"},
		{"same port", nil, a, l.Frame(A, A, 60), "dropped: same-port", "hairpin is off"},
		{"hairpin", set(a, "--hairpin"), a, l.Frame(A, A, 60), "forwarded", ""},
		{"hairpin flood", nil, a, l.Frame(netlab.Broadcast, A, 60), "flooded", "to p1"},
		{"bad source", set(a, "--hairpin=off"), a, l.Frame(B, netlab.Group(2), 60), "dropped: bad-source", ""},
		{"no source", nil, a, l.Frame(B, netlab.MAC{}, 60), "dropped: bad-source", ""},
		{"reserved", nil, a, l.Frame(reserved, A, 60), "dropped: reserved", ""},
		{"reserved, open", bridge("--group-fwd-mask", "8"), a, l.Frame(reserved, A, 60), "flooded", ""},
		{"as large as fits", bridge("--group-fwd-mask", "0"), a, l.Frame(B, A, 1414), "forwarded", ""},
		{"too large", nil, a, l.Frame(B, A, 1415), "dropped: mtu", "larger than the MTU"},
		{"too large for some", nil, a, l.Frame(netlab.Broadcast, A, full), "flooded", "not to p2: it is larger than the MTU"},
		{"tagged, as large as fits", nil, a, l.Frame(netlab.Broadcast, A, 1414).Tagged(10, 3), "flooded", "tag of VLAN 10"},
		{"tagged, too large", nil, a, l.Frame(netlab.Broadcast, A, 1415).Tagged(10, 3), "flooded", "not to p2: it is larger than the MTU"},
		{"two tags, as large as fits", nil, a, l.Frame(netlab.Broadcast, A, 1410).Tagged(20, 0).Tagged(10, 3), "flooded", "to p2"},
		{"two tags, on top of the MTU", nil, a, l.Frame(netlab.Broadcast, A, 1414).Tagged(20, 0).Tagged(10, 3), "flooded", ""},
		{"two tags, too large", nil, a, l.Frame(netlab.Broadcast, A, 1415).Tagged(20, 0).Tagged(10, 3), "flooded", "not to p2"},
		{"priority tag", nil, a, l.Frame(B, A, 100).Tagged(0, 3), "forwarded", ""},
		{"known in another VLAN", nil, a, l.Frame(B, A, 100).Tagged(11, 3), "flooded", "is unknown"},
		{"protected", all(set(a, "--isolated"), set(b, "--isolated")), a, l.Frame(B, A, 60), "dropped: protected", "share a protected domain"},
		{"protected flood", nil, a, l.Frame(netlab.Broadcast, A, 60), "flooded", "not to p2: the two ports share"},
		{"learn off", all(set(a, "--isolated=off"), set(c, "--learn=off")), c, l.Frame(B, netlab.Station(60), 60), "forwarded", "does not learn"},
		{"discover off", set(c, "--discover=off", "--bcast-flood=off"), a, l.Frame(X, A, 60), "flooded", "not to p3: its discover is off"},
		{"broadcast off", nil, a, l.Frame(netlab.Broadcast, A, 60), "flooded", "not to p3: its bcast-flood is off"},
		{"nobody to take it", all(set(b, "--mcast-flood=off"), set(c, "--mcast-flood=off"), set(d, "--mcast-flood=off")), a,
			l.Frame(netlab.Group(1), A, 60), "dropped: no-member", ""},
		{"full", bridge("--fdb-max", "5"), a, l.Frame(D, netlab.Station(70), 60), "forwarded", "there is no room"},
	} {
		if c.before != nil {
			c.before()
		}
		// A mark after all events until now, which leaves no state.
		l.Bascule("fdb", "add", "br0", mark.String(), a.Port)
		l.Bascule("fdb", "del", "br0", mark.String())
		marks++
		l.Wait("events to be shown", func() bool {
			n := 0
			for _, e := range m.Events() {
				if e.Event == "deleted" && e.MAC == mark.String() {
					n++
				}
			}
			return n == marks
		})
		said := traced(t, l, m, c.in, c.frame)
		before := l.Port("br0", c.in.Port).Drops
		var out []string
		for e, frames := range l.Deliver(c.in, c.frame) {
			for _, f := range frames {
				out = append(out, e.Port)
				if f != c.frame {
					t.Errorf("%s: %v arrived at %s", c.name, f, e.Port)
				}
			}
		}
		slices.Sort(out)
		slices.Sort(said.Out)
		if !slices.Equal(said.Out, out) || said.Verdict != c.verdict || !said.says(c.says) {
			t.Errorf("%s: it left by %v, should be %s and say %q; traced: %v", c.name, out, c.verdict, c.says, said)
		}
		reason, dropped := strings.CutPrefix(said.Verdict, "dropped: ")
		after := l.Port("br0", c.in.Port).Drops
		if dropped && after[reason] != before[reason]+1 || !dropped && said.Verdict == "forwarded" && !maps.Equal(after, before) {
			t.Errorf("%s: traced as %s, and %s counted %v, before %v", c.name, said.Verdict, c.in.Port, after, before)
		}
		if t.Failed() {
			t.FailNow()
		}
	}
	m.Stop()
}

// traceFrames: frames of all kinds, and invalid ones.
func traceFrames(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b := ends[0], ends[1]
	learn(l, b, B)
	f := l.Frame(B, A, 60)
	bytes := hex.EncodeToString([]byte(f))
	verdict := func(out string) string {
		t.Helper()
		var list []traceResult
		must(t, json.Unmarshal([]byte(out), &list))
		return fmt.Sprintf("%s %v", list[0].Verdict, list[0].Out)
	}
	in := func(stdin string, args ...string) {
		t.Helper()
		cmd := l.Command(append([]string{"-j", "trace", "br0", "--in", a.Port}, args...)...)
		cmd.Stdin = strings.NewReader(stdin)
		r, err := netlab.RunCommand(cmd)
		must(t, err)
		if r.Exit != 0 {
			t.Fatal(r)
		}
		if got := verdict(r.Stdout); got != "forwarded [p2]" {
			t.Errorf("%v: %s", args, got)
		}
	}
	in("", "--dst", B.String())
	in("", bytes)
	in(bytes, "-")

	// A captured frame can be traced.
	file := filepath.Join(t.TempDir(), "frames.pcapng")
	run := startCapture(t, l, "-w", file)
	l.Wait("the capture to begin", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	l.Reach(a, []netlab.Frame{f}, b)
	in("", "--dst", B.String()) // while it runs: the trial is not captured
	if captured, _ := run.stop(); captured != 2 {
		t.Errorf("%d frames captured, should be 2", captured)
	}
	in("", "--pcap", file)
	in("", "--pcap", file, "--packet", "2")
	written, err := os.ReadFile(file)
	must(t, err)
	in(string(written), "-")

	// The smallest and the largest possible frames.
	in("", bytes[:28])
	for _, c := range []struct {
		words []string
		args  string
	}{
		{[]string{"nope"}, "--in nope " + bytes},
		{[]string{"no bridge br7"}, ""},
		{[]string{"FRAME", "13 bytes"}, "--in p1 " + bytes[:26]},
		{[]string{"9014 bytes", "trial"}, "--in p1 --size 9014 --dst " + B.String()},
		{[]string{"--in is missing"}, bytes},
	} {
		bridge := "br0"
		if c.args == "" {
			bridge, c.args = "br7", "--in p1 "+bytes
		}
		l.Refused(c.words, append([]string{"trace", bridge}, strings.Fields(c.args)...)...)
	}
	// A frame that ends within its tag.
	if got := verdict(l.Bascule("-j", "trace", "br0", "--in", a.Port, bytes[:24]+"8100"+"00")); got != "dropped: malformed []" {
		t.Errorf("a frame that ends within its tag: %s", got)
	}
	l.Reach(a, []netlab.Frame{f[:12] + "\x81\x00\x00"})
	// A port whose device was deleted.
	ends[2].Unplug()
	l.Refused([]string{"p3", "the device of the port is gone"}, "trace", "br0", "--in", "p3", bytes)
	in("", "--dst", B.String())
}

// traceTagsAndSpans: a trial has its tag in the same place as a real frame, which matters for the MTU, and shows every
// copy.
func traceTagsAndSpans(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(3)
	a, b, mon := ends[0], ends[1], ends[2]
	l.AddBridge("br0", hook, ends[:2], "--vlan-filtering", "--vlan-protocol", "802.1ad")
	l.Bascule("span", "add", "br0", mon.Port, "--direction", "both")
	frames := []netlab.Frame{l.Frame(netlab.Broadcast, A, 1514).Tagged(5, 0)} // a customer's tag
	l.Deliver(a, frames...)
	if tx := l.Port("br0", b.Port).Stats64.TX.Packets; tx != 1 {
		t.Errorf("%d frames left", tx)
	}
	var traced []struct {
		Verdict string
		Out     []string
		Steps   []struct{ Name, Text string }
	}
	trace := func(args ...string) string {
		l.JSON(&traced, append([]string{"trace", "br0", "--in", a.Port}, args...)...)
		var text []string
		for _, s := range traced[0].Steps {
			text = append(text, s.Text)
		}
		return strings.Join(text, "; ")
	}
	trace("--dst", "ff:ff:ff:ff:ff:ff", "--vlan", "5", "--size", "1518")
	if traced[0].Verdict != "flooded" || !slices.Equal(traced[0].Out, []string{b.Port}) {
		t.Errorf("traced: %s by %v", traced[0].Verdict, traced[0].Out)
	}
	text := trace("--dst", "ff:ff:ff:ff:ff:ff")
	for _, want := range []string{"a copy of what comes in goes to " + mon.Port, "a copy of what leaves by " + b.Port + " goes to " + mon.Port} {
		if !strings.Contains(text, want) {
			t.Errorf("trace says %q, and not %q", text, want)
		}
	}
	if text := trace("--dst", "01:80:c2:00:00:00"); !strings.Contains(text, "a copy of what comes in") {
		t.Errorf("of a frame that is dropped early trace says %q", text)
	}
	l.Refused([]string{"without its header", "give it 34 bytes"}, "trace", "br0", "--in", a.Port, "ffffffffffff0200000000010800")
}

// traceLost: trace shows that the switch sends no frames to a device that is down, or has no carrier, and that frames
// which it still sends there are lost.
func traceLost(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b, c, mon := ends[0], ends[1], ends[2], ends[3]
	l.Bascule("port", "del", "br0", mon.Port)
	l.Bascule("span", "add", "br0", mon.Port, "--direction", "both")
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	learn(l, b, B)
	known, flood := l.Frame(B, A, 60), l.Frame(netlab.Broadcast, A, 60)
	lost := func(f netlab.Frame, verdict string, words ...string) {
		t.Helper()
		r := look(t, l, a, f)
		var got []string
		for _, s := range r.Steps {
			if strings.Contains(s.Text, " is lost there") {
				got = append(got, s.Name+": "+s.Text)
			}
		}
		if r.Verdict != verdict || !slices.Equal(got, words) {
			t.Errorf("should be %s and lost as %q; traced: %v", verdict, words, r)
		}
	}
	lost(known, "forwarded")
	host, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	l.SetUp(host)
	lost(flood, "flooded")
	// The switch notices it a moment later, and then sends nothing there.
	passes := func(f netlab.Frame, words string) {
		t.Helper()
		l.Wait("trace to say: "+words, func() bool {
			r := look(t, l, a, f)
			return r.Verdict == "flooded" && !slices.Contains(r.Out, b.Port) && r.says(words)
		})
	}
	l.Pull(b.Port)
	passes(known, "not to p2: p2 is down")
	passes(flood, "not to p2: p2 is down")
	l.Plug(b.Port)
	l.Wait("the switch to send there again", func() bool { return slices.Contains(look(t, l, a, flood).Out, b.Port) })
	far, err := b.Namespace.Netlink().LinkByName(b.Ifname)
	must(t, err)
	must(t, b.Namespace.Netlink().LinkSetDown(far))
	passes(flood, "not to p2: p2 has no carrier")
	must(t, b.Namespace.Netlink().LinkSetUp(far))
	l.Wait("the switch to send there again", func() bool { return slices.Contains(look(t, l, a, flood).Out, b.Port) })
	l.Bascule("fdb", "add", "br0", B.String(), b.Port)
	// If a backup stands in, the frame leaves by the backup.
	l.Bascule("port", "set", "br0", b.Port, "--backup", c.Port)
	lost(known, "forwarded")
	l.Pull(b.Port)
	if r := look(t, l, a, known); !r.says("p2 is down, and p3 stands in for it") {
		t.Errorf("traced: %v", r)
	}
	l.Pull(c.Port)
	l.Wait("nothing to be sent by either", func() bool {
		r := look(t, l, a, known)
		return r.Verdict == "dropped: no-carrier"
	})
	l.Pull(mon.Port)
	if r := look(t, l, a, known); !r.says("p4 is down: the copy is lost there") {
		t.Errorf("traced, with a span port that is down: %v", r)
	}
	l.Pull(a.Port)
	if r := look(t, l, a, known); !r.says("p1 is down: nothing comes in by it") {
		t.Errorf("traced, in by a port that is down: %v", r)
	}
}

// traceRule: the deciding MAC rule is shown as the user wrote it.
func traceRule(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, b, B)
	l.Bascule("rule", "add", "br0", "pass", "in", "on", a.Port, "src", A.String(), "tag", "known")
	l.Bascule("rule", "add", "br0", "block", "out", "on", b.Port, "dst", B.String())
	r := look(t, l, a, l.Frame(B, A, 60))
	for _, want := range []string{"pass in on p1 src " + A.String() + " tag known", "block out on p2 dst " + B.String()} {
		if !r.says(": " + want) {
			t.Errorf("trace does not say %q: %v", want, r)
		}
	}
}

// about returns the texts of the steps with a name.
func (r traceResult) about(step string) (texts []string) {
	for _, s := range r.Steps {
		if s.Name == step {
			texts = append(texts, s.Text)
		}
	}
	return texts
}

// saysOf compares the texts of the steps with a name for a frame, and its verdict.
func saysOf(t *testing.T, l *netlab.Lab, in *netlab.End, f netlab.Frame, verdict, step string, texts ...string) {
	t.Helper()
	if r := look(t, l, in, f); r.Verdict != verdict || !slices.Equal(r.about(step), texts) {
		t.Errorf("should be %s and say %q of %s; traced: %v", verdict, texts, step, r)
	}
}

// tracePast: trace shows the reason for each port that a flood does not leave by.
func tracePast(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	flood := l.Frame(netlab.Broadcast, A, 60)
	l.Bascule("port", "set", "br0", c.Port, "--bcast-flood=off")
	l.Bascule("port", "set", "br0", b.Port, "--loop-guard", "3600s")
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--loop-guard", "report")
	host, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	l.SetUp(host)
	var own netlab.MAC
	copy(own[:], host.Attrs().HardwareAddr)
	l.Wait(b.Port+" to be blocked", func() bool {
		l.Send(b, l.Frames(1, A, own)...) // returns to its origin
		return l.Port("br0", b.Port).State == "blocked"
	})
	saysOf(t, l, a, flood, "flooded", "flood",
		"not to "+b.Port+": the port is blocked by its loop guard", "not to "+c.Port+": its bcast-flood is off", "to host0")
	l.Bascule("port", "del", "br0", "host0")
	saysOf(t, l, a, flood, "dropped: no-member", "flood", "not to "+b.Port+": the port is blocked by its loop guard",
		"not to "+c.Port+": its bcast-flood is off", "there is no port to flood it to")

	// A port's settings do not matter if it is not in the VLAN.
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	l.Bascule("vlan", "del", "br0", c.Port, "1")
	l.Bascule("port", "set", "br0", b.Port, "--loop-guard", "off")
	saysOf(t, l, a, flood, "flooded", "flood", "to "+b.Port+", without a tag")
}

// traceCopies: trace shows the copies to span ports, and no others.
func traceCopies(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b, mon, small := ends[0], ends[1], ends[2], ends[3]
	for _, e := range []*netlab.End{mon, small} {
		l.Bascule("port", "del", "br0", e.Port)
		l.Bascule("span", "add", "br0", e.Port, "--direction", "both")
	}
	learn(l, b, B)
	l.Bascule("rule", "add", "br0", "pass", "in", "on", a.Port) // with rules the datapath looks behind tags
	small.SetMTU(1400)
	got := func(f netlab.Frame) (names []string) {
		for e, frames := range l.Deliver(a, f) {
			if e != b {
				for range frames {
					names = append(names, e.Port)
				}
			}
		}
		slices.Sort(names)
		return names
	}
	want := func(f netlab.Frame, copies []string, verdict string, texts ...string) {
		t.Helper()
		saysOf(t, l, a, f, verdict, "span", texts...)
		if names := got(f); !slices.Equal(names, copies) {
			t.Errorf("%v got copies, should be %v", names, copies)
		}
	}
	known, large := l.Frame(B, A, 60), l.Frame(B, A, 1500)
	cut := known[:12] + "\x81\x00\x00\x01\x81\x00\x00\x02" // it ends within its second tag
	both := []string{mon.Port, small.Port}
	want(known, slices.Sorted(slices.Values(slices.Concat(both, both))), "forwarded",
		"a copy of what comes in goes to p3, p4", "a copy of what leaves by p2 goes to p3, p4")
	want(large, []string{mon.Port, mon.Port}, "forwarded",
		"a copy of what comes in goes to p3", "p4 gets no copy: it is larger than the MTU of the way out", "a copy of what leaves by p2 goes to p3")
	want(cut, both, "dropped: malformed", "a copy of what comes in goes to p3, p4")
	mon.Unplug()
	want(known, []string{small.Port, small.Port}, "forwarded",
		"a copy of what comes in goes to p4", "a copy of what leaves by p2 goes to p4")
	l.Pull(a.Port)
	saysOf(t, l, a, cut, "dropped: malformed", "port", "it comes in by p1", "p1 is down: nothing comes in by it now")
}

// traceNoWay: an address is not unknown if its port takes no frames.
func traceNoWay(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, c := ends[0], ends[2]
	l.Bascule("fdb", "add", "br0", C.String(), c.Port)
	saysOf(t, l, a, l.Frame(C, A, 60), "forwarded", "look up", C.String()+" is behind p3 (static)")
	c.Unplug()
	saysOf(t, l, a, l.Frame(C, A, 60), "flooded", "look up", C.String()+" is behind p3 (static), by which nothing is sent now")
}

// traceNoRoom: an address is not learned because of a limit, and trace names the limit.
func traceNoRoom(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--ageing", "1h")
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	l.Bascule("port", "set", "br0", b.Port, "--fdb-max", "1")
	saysOf(t, l, b, l.Frame(B, A, 60), "dropped: same-port", "learn", A.String()+" is not learned: the port has no room for it")
	saysOf(t, l, b, l.Frame(A, C, 60), "forwarded", "learn", C.String()+" is not learned: there is no room")
}

// traceSize: the error has the number of bytes that the kernel accepts, and the kernel accepts them.
func traceSize(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	of := func(size string) []string {
		return []string{"trace", "br0", "--in", ends[0].Port, "--dst", B.String(), "--size", size}
	}
	said := l.Refused([]string{"of 65535 bytes", "give a smaller one, of "}, of("65535")...).Stderr
	_, most, _ := strings.Cut(said, "give a smaller one, of ")
	most, _, _ = strings.Cut(most, " bytes at most")
	n, err := strconv.Atoi(most)
	must(t, err)
	l.Bascule(of(most)...)
	l.Refused([]string{"of " + most + " bytes at most"}, of(strconv.Itoa(n+1))...)
}

// traceNoDst: a packet without a destination MAC is refused with the known addresses for it, which trace then accepts.
func traceNoDst(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--mac", "02:00:00:00:00:aa")
	mustInside(t, l.Switch, "ip", "address", "add", "198.51.100.1/24", "dev", "host0")
	mustInside(t, l.Switch, "ip", "link", "set", "host0", "up")
	mustInside(t, l.Switch, "ip", "neighbour", "replace", "198.51.100.7", "lladdr", "02:00:00:00:00:77", "dev", "host0")
	l.Bascule("binding", "add", "br0", ends[1].Port, "02:00:00:00:00:22", "192.0.2.2")
	for to, known := range map[string]string{
		"192.0.2.2":    "02:00:00:00:00:22 (192.0.2.2, bound to p2)",
		"198.51.100.7": "02:00:00:00:00:77 (198.51.100.7, neighbour at host0)",
		"198.51.100.1": "02:00:00:00:00:aa (198.51.100.1, host port host0)",
		"203.0.113.9":  "02:00:00:00:00:aa (as a gateway, host port host0)",
		"198.51.100.9": "",
	} {
		args := []string{"trace", "br0", "--in", ends[0].Port, "--ip", "192.0.2.1", "--to", to, "--icmp"}
		if known == "" {
			l.Refused([]string{"give the MAC address of " + to + ", or of its sender's gateway", "'bascule fdb show br0'"}, args...)
			continue
		}
		l.Refused([]string{"--dst is missing; give --dst " + known + "; see"}, args...)
		mac, _, _ := strings.Cut(known, " ")
		l.Bascule(append(args, "--dst", mac)...)
	}
}

// traceOtherVLAN: if a destination is unknown in the frame's VLAN, trace names another VLAN in which it is known.
func traceOtherVLAN(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3, "--ageing", "1h")
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, b, B)
	learn(l, c, C)
	saysOf(t, l, a, l.Frame(B, A, 60).Tagged(10, 0), "flooded", "look up", B.String()+" is unknown here, and known without a VLAN on p2")
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	l.Bascule("vlan", "add", "br0", b.Port, "10", "--pvid", "--untagged")
	l.Bascule("vlan", "add", "br0", c.Port, "20-25")
	learn(l, b, B)
	saysOf(t, l, a, l.Frame(B, A, 60), "flooded", "look up", B.String()+" is unknown here, and known in VLAN 10 on p2")
	for vlan := 20; vlan < 26; vlan++ {
		l.Bascule("fdb", "add", "br0", C.String(), c.Port, "--vlan", strconv.Itoa(vlan))
	}
	saysOf(t, l, a, l.Frame(C, A, 60), "flooded", "look up",
		C.String()+" is unknown here, and known in VLAN 20 on p3, in VLAN 21 on p3, in VLAN 22 on p3, in VLAN 23 on p3, and in 2 more")
	saysOf(t, l, a, l.Frame(D, A, 60), "flooded", "look up", D.String()+" is unknown")
}
