// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"bascule/bridge"
	"bascule/plug"
	"bascule/test/netlab"
)

var plugCases = []conformance{
	{name: "plug_one_step", hooks: tcx, run: plugOneStep},
	{name: "plug_again", hooks: tcx, run: plugAgain},
	{name: "plug_other", hooks: tcx, run: plugOther},
	{name: "plug_apply", hooks: tcx, run: plugApply},
	{name: "plug_refused", hooks: tcx, run: plugRefused},
	{name: "plug_rules_renamed", hooks: tcx, run: plugRulesRenamed},
	{name: "plug_rules_uncalled", hooks: tcx, run: plugRulesUncalled},
	{name: "plug_rules_skipped", hooks: tcx, run: plugRulesSkipped},
	{name: "plug_moves", hooks: tcx, run: plugMoves},
	{name: "plug_remove_gone", hooks: tcx, run: plugRemoveGone},
	{name: "plug_rules_table", hooks: tcx, run: plugRulesTable},
	{name: "plug_rules_refused", hooks: tcx, run: plugRulesRefused},
	{name: "plug_rules_leave", hooks: tcx, run: plugRulesLeave},
	{name: "unplug_unknown", hooks: tcx, run: unplugUnknown},
}

// plugged returns the IDs of a bridge's plugged ports, by port.
func plugged(l *netlab.Lab, bridge string) map[string]string {
	ids := map[string]string{}
	for _, p := range l.Ports(bridge) {
		if p.Owner != nil {
			ids[p.Ifname] = p.Owner.ID
		}
	}
	return ids
}

func wantPlugged(t *testing.T, l *netlab.Lab, bridge string, want map[string]string) {
	t.Helper()
	got := plugged(l, bridge)
	if len(got) != len(want) {
		t.Fatalf("plugged on %s: %v, should be %v", bridge, got, want)
	}
	for port, id := range want {
		if got[port] != id {
			t.Fatalf("plugged on %s: %v, should be %v", bridge, got, want)
		}
	}
}

// A port is added with its VLAN, its bindings and its rules, and is removed with them.
func plugOneStep(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2, "--vlan-filtering")
	b, c := ends[0], ends[1]
	a := l.NewEnds(1)[0]
	rules := filepath.Join(t.TempDir(), "guest.conf")
	must(t, os.WriteFile(rules, []byte("block in proto udp to port 7\n"), 0o600))
	l.Bascule("vlan", "add", "br0", b.Port, "10", "--untagged", "--pvid")
	learn(l, b, B)
	learn(l, c, C)

	args := []string{"plug", "guest", "--bridge", "br0", "--device", a.Port, "--vlan", "10", "--pf", rules,
		"--source-guard", "--binding", A.String() + "=192.0.2.1"}
	l.Bascule(args...)
	wantPlugged(t, l, "br0", map[string]string{a.Port: "guest"})
	echo, other := [2]int{7, 7}, [2]int{8, 8}
	learn(l, b, B)
	check := func() {
		t.Helper()
		l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", other)}, b)
		l.Reach(a, []netlab.Frame{udp4(C, A, "192.0.2.1", "192.0.2.3", other)}, b) // C is unknown in this VLAN
		l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.9", "192.0.2.2", other)})    // spoofed
		l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", echo)})     // blocked by its rules
		// they do not apply to another port
		l.Reach(b, []netlab.Frame{udp4(C, B, "192.0.2.2", "192.0.2.3", echo)}, a)
	}
	check()
	l.Bascule(args...)
	check()

	l.Bascule("unplug", "guest")
	wantPlugged(t, l, "br0", nil)
	for _, words := range [][]string{{"binding", "show", "br0"}, {"pfctl", "-s", "Anchors"}} {
		if out := l.Bascule(words...); strings.Contains(out, "192.0.2.1") || strings.Contains(out, "plug/") {
			t.Errorf("%v after unplug: %s", words, out)
		}
	}
	// Without rules and bindings it is a plain port.
	l.Bascule("plug", "guest", "--bridge", "br0", "--device", a.Port, "--vlan", "10")
	learn(l, b, B)
	l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.9", "192.0.2.2", echo)}, b)
}

// Settings that do not change stay untouched: no generation is made, and no counter is reset.
// Other settings are changed.
func plugAgain(t *testing.T, hook string) {
	l, _ := setup(t, hook, 1)
	a := l.NewEnds(1)[0]
	generation := func() string {
		cookie, err := l.Switch.Cookie()
		must(t, err)
		gen, err := os.Readlink(fmt.Sprintf("/run/bascule/%d/br0/current", cookie))
		must(t, err)
		return gen
	}
	args := []string{"plug", "guest", "--bridge", "br0", "--device", a.Port, "--isolated", "--binding", A.String() + "=192.0.2.1"}
	l.Bascule(args...)
	before := generation()
	for range 3 {
		l.Bascule(args...)
	}
	if now := generation(); now != before {
		t.Errorf("the generation was %s before the same plug, and is %s", before, now)
	}
	if !l.Port("br0", a.Port).Isolated {
		t.Error("the port is not isolated")
	}
	l.Bascule("port", "set", "br0", a.Port, "--fdb-max", "7") // another user
	l.Bascule("plug", "guest", "--bridge", "br0", "--device", a.Port)
	if p := l.Port("br0", a.Port); p.Isolated || p.FDBMax != 0 {
		t.Errorf("plugged without settings, the port has isolated=%v fdb-max=%d", p.Isolated, p.FDBMax)
	}
	if out := l.Bascule("binding", "show", "br0"); strings.Contains(out, "192.0.2.1") {
		t.Errorf("plugged without bindings, it has: %s", out)
	}
}

// An ID moves to another device, to another bridge, and to a new device that replaces a deleted
// one.
func plugOther(t *testing.T, hook string) {
	l, ends := setup(t, hook, 1)
	a, b := l.NewEnds(1)[0], l.NewEnds(1)[0]
	l.Bascule("bridge", "add", "br1")
	plug := func(bridge string, e *netlab.End) {
		l.Bascule("plug", "guest", "--bridge", bridge, "--device", e.Port)
	}
	plug("br0", a)
	plug("br0", b)
	wantPlugged(t, l, "br0", map[string]string{b.Port: "guest"})
	plug("br1", b)
	wantPlugged(t, l, "br0", nil)
	wantPlugged(t, l, "br1", map[string]string{b.Port: "guest"})
	plug("br0", a)
	wantPlugged(t, l, "br1", nil)
	l.Reach(a, l.Frames(3, netlab.Broadcast, A), ends[0])

	// A port without an ID is taken over, and a port with an ID is not.
	l.Bascule("port", "add", "br1", b.Port, "--isolated")
	l.Bascule("plug", "other", "--bridge", "br1", "--device", b.Port)
	wantPlugged(t, l, "br1", map[string]string{b.Port: "other"})
	l.Refused([]string{"it is the port of other, by plug", "bascule unplug other"}, "plug", "guest2", "--bridge", "br1", "--device", b.Port)
	wantPlugged(t, l, "br1", map[string]string{b.Port: "other"})

	// A device that was deleted, with another one of its name or of another.
	a.Unplug()
	c := l.NewEnds(1)[0]
	plug("br0", c)
	wantPlugged(t, l, "br0", map[string]string{c.Port: "guest"})
	l.Reach(c, l.Frames(3, netlab.Broadcast, C), ends[0])
	c.Unplug()
	l.Bascule("unplug", "guest")
	if n := len(l.Ports("br0")); n != 1 {
		t.Errorf("%d ports are left, should be 1", n)
	}
}

// Files do not cover plugged ports, and remove none.
func plugApply(t *testing.T, hook string) {
	l, ends := setup(t, hook, 1)
	a := l.NewEnds(1)[0]
	l.Bascule("plug", "guest", "--bridge", "br0", "--device", a.Port, "--binding", A.String()+"=192.0.2.1")
	l.Bascule("fdb", "add", "br0", C.String(), a.Port)
	file := filepath.Join(t.TempDir(), "switch.yaml")
	r, err := l.Run("export")
	must(t, err)
	if text := r.Stdout; strings.Contains(text, a.Port+":") || strings.Contains(text, "192.0.2.1") || !strings.Contains(r.Stderr, "plugged ports of br0 are left out: 1") {
		t.Errorf("the file has the port that was plugged:\n%s, and it says %q", text, r.Stderr)
	}
	must(t, os.WriteFile(file, []byte(r.Stdout), 0o600))
	l.Bascule("apply", file)
	must(t, os.WriteFile(file, []byte("bridges: {br0: {ports: {"+ends[0].Port+": {isolated: true}, \""+a.Port[:1]+"*\": {isolated: true}}}}\n"), 0o600))
	l.Bascule("apply", file)
	wantPlugged(t, l, "br0", map[string]string{a.Port: "guest"})
	if l.Port("br0", a.Port).Isolated || !l.Port("br0", ends[0].Port).Isolated {
		t.Error("the file is not applied, or it is to the port that was plugged")
	}
	for _, words := range [][]string{{"binding", "show", "br0"}, {"fdb", "show", "br0"}} {
		if out := l.Bascule(words...); !strings.Contains(out, a.Port) {
			t.Errorf("%v after apply: %s", words, out)
		}
	}
	must(t, os.WriteFile(file, []byte("bridges: {br0: {ports: {"+a.Port+": {}}}}\n"), 0o600))
	l.Refused([]string{"plugged with the id guest", "bascule unplug guest"}, "apply", file)
}

// A refused plug changes nothing.
func plugRefused(t *testing.T, hook string) {
	l, ends := setup(t, hook, 1)
	a := l.NewEnds(1)[0]
	l.Bascule("binding", "add", "br0", ends[0].Port, B.String(), "192.0.2.2")
	rules := filepath.Join(t.TempDir(), "rules")
	plug := func(words []string, flags ...string) {
		t.Helper()
		l.Refused(words, append([]string{"plug", "guest", "--bridge", "br0", "--device", a.Port}, flags...)...)
		if n := len(l.Ports("br0")); n != 1 {
			t.Fatalf("%d ports, should be 1", n)
		}
	}
	load := func(text string) { must(t, os.WriteFile(rules, []byte(text), 0o600)) }
	plug([]string{"does not filter VLANs"}, "--vlan", "10")
	plug([]string{"192.0.2.2 is bound to " + B.String()}, "--binding", A.String()+"=192.0.2.2")
	load("block in on " + ends[0].Port + "\n")
	plug([]string{"rules:1", "a rule of another port"}, "--pf", rules)
	load("anchor \"others\"\n")
	plug([]string{"calls an anchor"}, "--pf", rules)
	load("block\n")
	loadPF(t, l, "pass\n")
	plug([]string{"do not call them", `anchor "plug/*"`}, "--pf", rules)
	loadPF(t, l, "anchor \"plug/*\"\n")
	l.Bascule("plug", "guest", "--bridge", "br0", "--device", a.Port, "--pf", rules)
	l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", [2]int{7, 7})})
	l.Refused([]string{"cannot plug guest", "no bridge br9"}, "plug", "guest", "--bridge", "br9", "--device", a.Port)
	l.Refused([]string{"cannot plug guest2", "no bridge br9"}, "plug", "guest2", "--bridge", "br9", "--device", a.Port)
	// On another bridge, too, which the port would have left.
	l.Bascule("bridge", "add", "br1")
	l.Refused([]string{"no such"}, "plug", "guest", "--bridge", "br1", "--device", "nothing")
	l.Refused([]string{"does not filter VLANs"}, "plug", "guest", "--bridge", "br1", "--device", a.Port, "--vlan", "10")
	l.Refused([]string{"it is a port of bridge br0"}, "plug", "guest", "--bridge", "br1", "--device", ends[0].Port)
	l.Refused([]string{"no such"}, "plug", "guest2", "--bridge", "br0", "--device", "nothing")
	wantPlugged(t, l, "br0", map[string]string{a.Port: "guest"})
}

// setupPlugRules plugs a port, whose ID contains all characters that names of anchors may not
// contain, with a rule against port 7.
func setupPlugRules(t *testing.T, hook string) (l *netlab.Lab, a, b *netlab.End, blocked func(), args []string) {
	t.Helper()
	l, ends := setup(t, hook, 1)
	a, b = l.NewEnds(1)[0], ends[0]
	rules := filepath.Join(t.TempDir(), "guest.conf")
	// With the device's name, too, and within braces.
	must(t, os.WriteFile(rules, []byte("block in on "+a.Port+" proto udp to port 7\nanchor { block in on "+a.Port+" proto udp to port 6 }\n"), 0o600))
	args = []string{"plug", plugID, "--bridge", "br0", "--device", a.Port, "--pf", rules}
	l.Bascule(args...)
	learn(l, b, B)
	blocked = func() {
		t.Helper()
		for _, port := range []int{6, 7} {
			l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", [2]int{7, port})})
		}
		l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", [2]int{7, 8})}, b)
	}
	blocked()
	return l, a, b, blocked, args
}

const (
	plugID     = `_libvirt/*/"x"%$`
	plugAnchor = "plug/%5Flibvirt%2F%2A%2F%22x%22%25%24"
)

// The rules of a plugged port apply whatever its device's name is.
func plugRulesRenamed(t *testing.T, hook string) {
	l, a, b, blocked, args := setupPlugRules(t, hook)
	name := a.Port + "x"
	l.Keep(name)
	ip := func(words ...string) {
		t.Helper()
		out, err := exec.Command("ip", append([]string{"-n", l.Switch.Name}, words...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("ip %v: %v: %s", words, err, out)
		}
	}
	ip("link", "set", a.Port, "down")
	ip("link", "set", a.Port, "name", name)
	ip("link", "set", name, "up")
	a.Port = name
	l.Wait("the link", func() bool { return l.Port("br0", name).State == "forwarding" })
	for _, change := range [][]string{nil, {"bridge", "set", "br0", "--ageing", "200s"}, {"port", "set", "br0", name, "--isolated=off"}, {"pfctl", "-b", "br0", "-e"}} {
		if change != nil {
			l.Run(change...)
		}
		learn(l, b, B)
		blocked()
	}
	loadPF(t, l, "pass\nanchor \"plug/*\"\n")
	learn(l, b, B)
	blocked()
	if out := l.Bascule("-j", "port", "show", "br0", name); !strings.Contains(out, plugAnchor) {
		t.Errorf("the port is without its anchor: %s", out)
	}
	out := l.Bascule("trace", "br0", "--in", name, "--src", A.String(), "--dst", B.String(), "--ip", "192.0.2.1", "--to", "192.0.2.2", "--udp", "7")
	if !strings.Contains(out, "dropped") || !strings.Contains(out, plugAnchor) {
		t.Errorf("trace: %s", out)
	}
	if out := l.Bascule("pfctl", "-a", plugAnchor, "-s", "rules"); !strings.Contains(out, `on "`+plugAnchor+`" `) {
		t.Errorf("rules: %s", out)
	}
	for i, word := range args {
		if word == strings.TrimSuffix(name, "x") {
			args[i] = name
		}
	}
	must(t, os.WriteFile(args[len(args)-1], []byte("block in on "+name+" proto udp to port {6 7}\n"), 0o600))
	l.Bascule(args...)
	blocked()
	l.Bascule("unplug", plugID)
	if out := l.Bascule("pfctl", "-s", "Anchors", "-v"); strings.Contains(out, "plug/") {
		t.Errorf("anchors after unplug: %s", out)
	}
}

// A load that would no longer call the rules of a plugged port is refused, or causes a note.
func plugRulesUncalled(t *testing.T, hook string) {
	l, a, b, blocked, args := setupPlugRules(t, hook)
	dir := t.TempDir()
	file, yaml := filepath.Join(dir, "pf.conf"), filepath.Join(dir, "switch.yaml")
	must(t, os.WriteFile(file, []byte("pass\n"), 0o600))
	must(t, os.WriteFile(yaml, []byte("bridges: {br0: {pf: {file: pf.conf}, ports: {"+b.Port+": {}}}}\n"), 0o600))
	for _, load := range [][]string{
		{"pfctl", "-f", file}, {"apply", yaml}, {"pfctl", "-F", "rules"}, {"pfctl", "-F", "all"}, {"pfctl", "-d"},
		{"pfctl", "-a", plugAnchor, "-F", "rules"}, {"pfctl", "-a", "*", "-F", "rules"},
	} {
		if r, err := l.Run(load...); err != nil || r.Exit != 1 || !strings.Contains(r.Stderr, plugAnchor) || strings.Count(r.Stderr, "\n") != 1 {
			t.Errorf("%v, %v", r, err)
		}
		blocked()
	}
	for _, call := range []string{"scrub-anchor \"plug/*\"", "nat-anchor \"plug/*\"", "anchor \"plug/*\" out", "anchor \"plug/*\" on nosuch", "anchor \"plug/*\" on ! " + a.Port,
		"anchor \"plug/*\" proto tcp", "anchor \"plug/*\" to 192.0.2.99", "anchor \"plug/*\" tagged x", "anchor outer inet6 {\n anchor \"/plug/*\"\n}"} {
		must(t, os.WriteFile(file, []byte(call+"\n"), 0o600))
		r, err := l.Run("pfctl", "-f", file)
		if err != nil || r.Exit != 1 || !strings.Contains(r.Stderr, plugAnchor) || !strings.Contains(r.Stderr, "only for some packets") {
			t.Errorf("%s: %v, %v", call, r, err)
		}
		blocked()
	}
	must(t, os.WriteFile(file, []byte("anchor \"plug/*\" on "+a.Port+"\n"), 0o600))
	l.Bascule("pfctl", "-f", file) // this port's rules
	blocked()
	other := filepath.Join(dir, "other.conf")
	must(t, os.WriteFile(other, []byte("pass\n"), 0o600))
	must(t, os.WriteFile(file, []byte("anchor \"plug/*\"\nload anchor \""+plugAnchor+"\" from \""+other+"\"\n"), 0o600))
	for _, load := range [][]string{{"pfctl", "-a", plugAnchor, "-f", "/dev/null"}, {"pfctl", "-a", plugAnchor, "-f", other}, {"pfctl", "-f", file}} {
		l.Refused([]string{plugAnchor, "came with a plugged port", "bascule plug --pf"}, load...)
		blocked()
	}
	must(t, os.WriteFile(file, []byte("anchor outer {\n anchor \"/plug/*\"\n}\n"), 0o600))
	l.Bascule("pfctl", "-f", file) // indirectly
	blocked()

	must(t, os.WriteFile(file, []byte("pass\n"), 0o600))
	for range 2 { // each load prints it
		r, err := l.Run("pfctl", "--force", "-f", file)
		must(t, err)
		if r.Exit != 0 || !strings.Contains(r.Stderr, plugAnchor) {
			t.Errorf("forced: %v", r)
		}
	}
	l.Bascule("bridge", "set", "br0", "--ageing", "200s") // another change is not blocked
	if r, err := l.Run("pfctl", "-t", "some", "-T", "add", "192.0.2.9"); err != nil || r.Exit != 0 {
		t.Errorf("%v, %v", r, err)
	}
	l.Refused([]string{"do not call them"}, args...)
	must(t, os.WriteFile(file, []byte("anchor \"plug/*\"\n"), 0o600))
	l.Bascule("pfctl", "-f", file)
	blocked()
	l.Bascule(args...)
	l.Bascule("unplug", plugID)
	if r, err := l.Run("pfctl", "-F", "all"); err != nil || r.Exit != 0 {
		t.Errorf("%v, %v", r, err)
	}
	l.Run("pfctl", "-d")
	l.Refused([]string{"pf is disabled"}, args...)
}

// A plug with rules needs pf at its port. No change disables pf there without a message.
func plugRulesSkipped(t *testing.T, hook string) {
	l, a, _, blocked, args := setupPlugRules(t, hook)
	file := filepath.Join(t.TempDir(), "pf.conf")
	must(t, os.WriteFile(file, []byte("set skip on "+a.Port+"\nanchor \"plug/*\"\n"), 0o600))
	want := []string{plugAnchor, "pf does not judge the plugged port", "--pf-ports all"}
	l.Refused(want, "pfctl", "-f", file)
	l.Refused(want, "bridge", "set", "br0", "--pf-ports", "host")
	blocked()
	l.Bascule("unplug", plugID)
	l.Bascule("bridge", "set", "br0", "--pf-ports", "host")
	l.Refused(want, args...)
	l.Bascule("bridge", "set", "br0", "--pf-ports", "station")
	l.Bascule(args...)
	r, err := l.Run("pfctl", "--force", "-f", file)
	must(t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, plugAnchor) {
		t.Errorf("forced: %v", r)
	}
}

// A port that moves to another bridge is not an interface of the host in between.
func plugMoves(t *testing.T, hook string) {
	l, _ := setup(t, hook, 1)
	l.Bascule("bridge", "add", "br1")
	e := l.NewEnds(1)[0]
	l.Bascule("port", "add", "br0", "gw0", "--type", "host")
	host := l.NewHost(l.Switch, "gw0", 1)
	var socket *net.UDPConn
	must(t, l.Switch.Do(func() (err error) {
		socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: host.IPv4.AsSlice(), Port: 5000})
		return err
	}))
	defer socket.Close()
	raw := []byte(udp4(netlab.Broadcast, A, host.IPv4.Next().String(), host.IPv4.String(), [2]int{4000, 5000}, 'x', 'x'))
	var sum uint32
	for b := raw[14:34]; len(b) > 0; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	binary.BigEndian.PutUint16(raw[24:], ^uint16(sum>>16+sum&0xffff))
	frame := netlab.Frame(raw)
	l.Send(e, frame)
	socket.SetReadDeadline(time.Now().Add(patience))
	if _, err := socket.Read(make([]byte, 64)); err != nil {
		t.Fatal("the host does not hear a device that is no port:", err)
	}
	for _, on := range []string{"br0", "br1"} {
		pfctl(t, l, "block\n", "-b", on, "-f", "-")
	}
	l.Bascule("plug", "guest", "--bridge", "br0", "--device", e.Port)
	for _, on := range []string{"br1", "br0"} { // a frame before each step of the kernel
		cmd := l.Command("plug", "guest", "--bridge", on, "--device", e.Port)
		r, err := netlab.RunWatched(cmd, []string{"bpf"}, func(string, int) netlab.Answer {
			l.Send(e, frame)
			return netlab.Answer{}
		})
		if err != nil || r.Exit != 0 {
			t.Fatal(r, err)
		}
	}
	if has(t, socket) != "" {
		t.Error("the host hears the device on its way between bridges")
	}
}

// A port whose device was made again is not treated as one whose device has gone.
func plugRemoveGone(t *testing.T, hook string) {
	l, _ := setup(t, hook, 1)
	e := l.NewEnds(1)[0]
	l.Bascule("plug", "guest", "--bridge", "br0", "--device", e.Port)
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	remove := func(want bool) {
		t.Helper()
		if found, _, err := plug.RemoveGone(s, "guest"); err != nil || found != want {
			t.Errorf("removed: %v, %v", found, err)
		}
	}
	remove(false)
	wantPlugged(t, l, "br0", map[string]string{e.Port: "guest"})
	e.Unplug()
	l.Wait("the device to go", func() bool { return l.Port("br0", e.Port).State == "gone" })
	remove(true)
	wantPlugged(t, l, "br0", nil)
}

// A table that the rules of a plug refer to exists as long as the rules.
func plugRulesTable(t *testing.T, hook string) {
	l, a, b, _, _ := setupPlugRules(t, hook)
	dir := t.TempDir()
	guest, main := filepath.Join(dir, "guest.conf"), filepath.Join(dir, "pf.conf")
	must(t, os.WriteFile(guest, []byte("block in from <bad>\n"), 0o600))
	must(t, os.WriteFile(main, []byte("table <bad> persist { 192.0.2.1 }\nanchor \"plug/*\"\n"), 0o600))
	l.Bascule("pfctl", "-f", main)
	l.Bascule("plug", plugID, "--bridge", "br0", "--device", a.Port, "--pf", guest)
	learn(l, b, B)
	blocked := func() {
		t.Helper()
		l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", [2]int{9, 9})})
		l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.3", "192.0.2.2", [2]int{9, 9})}, b)
	}
	blocked()
	must(t, os.WriteFile(main, []byte("anchor \"plug/*\"\n"), 0o600))
	l.Bascule("pfctl", "-f", main)
	blocked()
	for _, change := range [][]string{{"-F", "Tables"}, {"-t", "bad", "-T", "kill"}} {
		l.Refused([]string{"table bad would go", "a plugged port", "--force"}, append([]string{"pfctl"}, change...)...)
		blocked()
	}
	l.Bascule("unplug", plugID)
	pfctl(t, l, "", "-F", "Tables")
}

// The rules of a plug are about its port: settings of pf, and rules that only host ports
// support, are refused.
func plugRulesRefused(t *testing.T, hook string) {
	l, a, _, _, _ := setupPlugRules(t, hook)
	file := filepath.Join(t.TempDir(), "guest.conf")
	for rules, words := range map[string][]string{
		"set skip on lo\nblock\n":                           {"set skip on { lo }", "settings are the bridge's"},
		"set limit states 5\n":                              {"set limit states 5", "settings are the bridge's"},
		"match out inet from any to any nat-to 192.0.2.7\n": {":1:", "nat-to never holds"},
		"pass in inet route-to 192.0.2.9\n":                 {":1:", "route-to never holds"},
	} {
		must(t, os.WriteFile(file, []byte(rules), 0o600))
		l.Refused(words, "plug", "other", "--bridge", "br0", "--device", a.Port, "--pf", file)
	}
}

// The rules of a plugged port are removed with it, and do not apply to the next device with its
// name.
func plugRulesLeave(t *testing.T, hook string) {
	l, a, b, _, args := setupPlugRules(t, hook)
	// Neither do its states.
	flow := []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", [2]int{4000, 9})}
	must(t, os.WriteFile(args[len(args)-1], []byte("pass\n"), 0o600))
	l.Bascule(args...)
	learn(l, b, B)
	l.Reach(a, flow, b)
	must(t, os.WriteFile(args[len(args)-1], []byte("block\n"), 0o600))
	l.Bascule("unplug", plugID)
	l.Bascule("plug", "other", "--bridge", "br0", "--device", a.Port, "--pf", args[len(args)-1])
	learn(l, b, B)
	l.Reach(a, flow)
	l.Bascule("unplug", "other")
	must(t, os.WriteFile(args[len(args)-1], []byte("block in proto udp to port 7\n"), 0o600))
	l.Bascule(args...)
	l.Bascule("port", "del", "br0", a.Port)
	if out := l.Bascule("pfctl", "-s", "Anchors", "-v"); strings.Contains(out, "plug/") {
		t.Errorf("anchors after port del: %s", out)
	}
	l.Bascule("port", "add", "br0", a.Port)
	learn(l, b, B)
	l.Reach(a, []netlab.Frame{udp4(B, A, "192.0.2.1", "192.0.2.2", [2]int{7, 7})}, b)
	// Nor are they left by a device that was deleted, or in a bridge that the ID leaves.
	l.Bascule(args...)
	l.Bascule("bridge", "add", "br1")
	l.Bascule("plug", plugID, "--bridge", "br1", "--device", a.Port)
	if out := l.Bascule("pfctl", "-b", "br0", "-s", "Anchors", "-v"); strings.Contains(out, "plug/") {
		t.Errorf("anchors of the bridge that it left: %s", out)
	}
	l.Bascule(args...)
	a.Unplug()
	l.Wait("the device to go", func() bool { return l.Port("br0", a.Port).State == "gone" })
	l.Bascule("port", "del", "br0", a.Port)
	if out := l.Bascule("pfctl", "-b", "br0", "-s", "Anchors", "-v"); strings.Contains(out, "plug/") {
		t.Errorf("anchors of a device that is gone: %s", out)
	}
}

func unplugUnknown(t *testing.T, hook string) {
	l, _ := setup(t, hook, 1)
	l.Bascule("unplug", "nobody")
	l.Bascule("bridge", "del", "br0")
	l.Bascule("unplug", "nobody")
	if out := l.Bascule("bridge", "show"); strings.TrimSpace(out) != "" {
		t.Errorf("bridges: %s", out)
	}
}
