// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"context"
	"encoding/hex"
	"strings"
	"testing"
	"time"

	"bascule/bridge"
	"bascule/test/netlab"
)

var stpCases = []conformance{
	{name: "stp_states", hooks: both, run: stpStates},
	{name: "stp_new_ports", hooks: both, run: stpNewPorts},
	{name: "stp_bpdus", hooks: both, run: stpBPDUs},
	{name: "stp_holder", hooks: tcx, run: stpHolder},
	{name: "stp_switched_off", hooks: tcx, run: stpSwitchedOff},
	{name: "stp_patch", hooks: tcx, run: stpPatch},
	{name: "stp_pf", hooks: tcx, run: stpPF},
	{name: "stp_refused", hooks: tcx, run: stpRefused},
	{name: "stp_trace", hooks: tcx, run: stpTrace},
}

// A tree is the spanning tree of a bridge, which the test controls.
type tree struct {
	t *testing.T
	*bridge.Control
}

func openTree(t *testing.T, l *netlab.Lab, name string) tree {
	t.Helper()
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	t.Cleanup(func() { s.Close() })
	stp, err := s.OpenControl(name)
	must(t, err)
	t.Cleanup(func() { stp.Close() })
	return tree{t, stp}
}

// port returns a port by its name.
func (tr tree) port(name string) bridge.ControlPort {
	tr.t.Helper()
	ports, err := tr.Ports()
	must(tr.t, err)
	for _, p := range ports {
		if p.Name == name {
			return p
		}
	}
	tr.t.Fatalf("no port %s among %+v", name, ports)
	return bridge.ControlPort{}
}

func (tr tree) become(name string, s bridge.STPState) {
	tr.t.Helper()
	must(tr.t, tr.SetState(tr.port(name).ID, s))
}

// warned runs a command, which must succeed and warn that no agent runs.
func warned(t *testing.T, l *netlab.Lab, args ...string) {
	t.Helper()
	r, err := l.Run(args...)
	must(t, err)
	if r.Exit != 0 || !strings.HasPrefix(r.Stderr, "bascule: warning: no agent runs the spanning tree: ") || strings.Count(r.Stderr, "\n") != 1 {
		t.Fatalf("%v, should succeed with a warning about the agent", r)
	}
}

// setupTree makes a bridge of n ports that already forward.
func setupTree(t *testing.T, hook string, n int, settings ...string) (*netlab.Lab, []*netlab.End) {
	t.Helper()
	l, ends := setup(t, hook, n)
	warned(t, l, append([]string{"bridge", "set", "br0", "--stp", "rstp"}, settings...)...)
	return l, ends
}

// wantState compares the listed state of a port.
func wantState(t *testing.T, l *netlab.Lab, port, want string) {
	t.Helper()
	if got := l.Port("br0", port).State; got != want {
		t.Errorf("%s is %s, should be %s", port, got, want)
	}
}

// bpdu returns a configuration BPDU (IEEE 802.1D-2004 9.3.1) from an end's bridge.
func bpdu(e *netlab.End) netlab.Frame {
	dst := netlab.MAC{0x01, 0x80, 0xc2, 0, 0, 0}
	return etherFrame(dst, e.MAC, 38, []byte{0x42, 0x42, 3}, make([]byte, 35))
}

// stpStates: every frame obeys the states of its ports, and so does an existing conversation
// from its next frame on.
func stpStates(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	talk := func(n int) {
		t.Helper()
		l.Reach(a, l.Frames(n, B, A), b)
		l.Reach(b, l.Frames(n, A, B), a)
	}
	talk(10)
	warned(t, l, "bridge", "set", "br0", "--stp", "rstp")
	talk(10) // existing ports continue to forward
	wantState(t, l, a.Port, "forwarding")
	tree := openTree(t, l, "br0")
	for _, state := range []bridge.STPState{bridge.STPDiscarding, bridge.STPLearning} {
		talk(10)
		drops := l.Port("br0", a.Port).Drops["stp"]
		tree.become(a.Port, state)
		wantState(t, l, a.Port, state.String())
		l.Reach(a, l.Frames(10, B, A))
		l.Reach(a, l.Frames(10, netlab.Broadcast, D))
		l.Reach(a, l.Frames(10, netlab.Group(1), D))
		l.Reach(a, l.Frames(10, netlab.Station(99), D))
		l.Reach(b, l.Frames(10, A, B), c) // there may be another path
		l.Reach(b, l.Frames(10, netlab.Broadcast, B), c)
		l.Reach(b, l.Frames(10, netlab.Group(1), B), c)
		l.Reach(c, l.Frames(10, B, C), b)
		wantDrops(t, l, a, "stp", drops+40)
		if known := find(l.FDB("br0"), D, 0) != nil; known != (state == bridge.STPLearning) {
			t.Errorf("a port that is %s has learned: %v", state, known)
		}
		tree.become(a.Port, bridge.STPForwarding)
		wantState(t, l, a.Port, "forwarding")
	}
	talk(10)
	l.Reach(b, l.Frames(10, D, B), a) // addresses that were learned meanwhile are used
	must(t, tree.Flush(tree.port(a.Port).ID))
	l.Reach(b, l.Frames(10, D, B), a, c)
	if find(l.FDB("br0"), B, 0) == nil {
		t.Error("a flush of one port has taken an address of another")
	}
}

// stpNewPorts: a new port waits for a decision, except for the host's own. Switching spanning
// tree off opens all ports.
func stpNewPorts(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(3)
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("bridge", "add", "br0", "--stp", "stp")
	for _, e := range ends {
		if hook == "xdp" {
			e.ReadyForXDP()
		}
		warned(t, l, "port", "add", "br0", e.Port, "--hook", hook)
	}
	l.Bascule("port", "add", "br0", "host0", "--type", "host")
	wantState(t, l, a.Port, "discarding")
	host, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	l.SetUp(host)
	wantState(t, l, "host0", "forwarding")
	l.Reach(a, l.Frames(10, netlab.Broadcast, A))
	if n := len(l.FDB("br0", "--dynamic")); n != 0 {
		t.Errorf("%d addresses were learned", n)
	}
	tree := openTree(t, l, "br0")
	tree.become(a.Port, bridge.STPForwarding)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A))
	tree.become(b.Port, bridge.STPForwarding)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)
	l.Bascule("port", "set", "br0", a.Port, "--stp-cost", "5") // makes a new generation
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)
	wantState(t, l, c.Port, "discarding")

	// A port with the same name is another one.
	l.Bascule("port", "del", "br0", b.Port)
	l.AddPort("br0", hook, b)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A))
	tree.become(c.Port, bridge.STPLearning)
	l.Bascule("bridge", "set", "br0", "--stp", "off")
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, c)
	wantState(t, l, c.Port, "forwarding")
}

// stpBPDUs: a BPDU is handed over unchanged, and is not forwarded.
func stpBPDUs(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2, "--vlan-filtering", "--group-fwd-mask", "0x1")
	a, b := ends[0], ends[1]
	f := bpdu(a)
	l.Reach(a, []netlab.Frame{f}, b) // the mask permits it
	l.Bascule("bridge", "set", "br0", "--group-fwd-mask", "0")
	l.Reach(a, []netlab.Frame{f})
	wantDrops(t, l, a, "reserved", 1)
	learned := l.Port("br0", a.Port).Learned

	warned(t, l, "bridge", "set", "br0", "--stp", "rstp", "--group-fwd-mask", "0xffff")
	l.Bascule("port", "set", "br0", a.Port, "--block-non-ip", "--learn=off", "--locked")
	l.Reach(a, []netlab.Frame{f}) // without a reader
	tree := openTree(t, l, "br0")
	read := func(wait time.Duration) (uint32, netlab.Frame, error) {
		ctx, cancel := context.WithTimeout(context.Background(), wait)
		defer cancel()
		f, err := tree.Read(ctx)
		return f.Port, netlab.Frame(f.Bytes), err
	}
	if id, frame, err := read(50 * time.Millisecond); err != context.DeadlineExceeded {
		t.Errorf("what came before is read: %d, %v, %v", id, frame, err)
	}
	for _, state := range []bridge.STPState{bridge.STPForwarding, bridge.STPDiscarding, bridge.STPLearning} {
		tree.become(a.Port, state)
		before := l.Port("br0", a.Port)
		l.Reach(a, []netlab.Frame{f})
		id, frame, err := read(patience)
		if err != nil || id != tree.port(a.Port).ID || frame != f {
			t.Errorf("%s: read from port %d %v, %v; want %v from %d", state, id, frame, err, f, tree.port(a.Port).ID)
		}
		after := l.Port("br0", a.Port)
		if after.Stats64.RX.Packets != before.Stats64.RX.Packets+1 || len(after.Drops) != len(before.Drops) || after.Learned != learned {
			t.Errorf("%s: the port counts %+v, and %+v before", state, after, before)
		}
		l.Reach(a, []netlab.Frame{f.Tagged(1, 0)})
	}
	wantDrops(t, l, a, "reserved", 1)
	if n, err := tree.Missed(bridge.ProtocolSTP); err != nil || n != 0 {
		t.Errorf("%d BPDUs missed, %v", n, err)
	}
	l.Bascule("port", "set", "br0", a.Port, "--block-non-ip=off")
	l.Reach(b, l.Frames(10, netlab.Broadcast, B))
	tree.become(a.Port, bridge.STPForwarding)
	l.Reach(b, l.Frames(10, netlab.Broadcast, B), a)
}

// stpHolder: there is one holder at a time, it is shown, and its decisions stay in force when
// it has ended.
func stpHolder(t *testing.T, hook string) {
	l, ends := setupTree(t, hook, 2)
	a, b := ends[0], ends[1]
	shown := func(runs bool, text string) {
		t.Helper()
		if got := l.Bridge("br0"); got.AgentRuns != runs || got.STP != "rstp" {
			t.Errorf("shown: %+v", got)
		}
		if out := l.Bascule("bridge", "show", "br0"); !strings.Contains(out, text) {
			t.Errorf("bridge show says\n%s, not %q", out, text)
		}
	}
	shown(false, "rstp, no agent runs: the last states hold")
	tree := openTree(t, l, "br0")
	shown(true, "rstp, run by the agent")
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	if _, err := s.OpenControl("br0"); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second holder: %v", err)
	}
	tree.become(a.Port, bridge.STPForwarding)
	tree.become(b.Port, bridge.STPForwarding)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)
	doubted := func(want bool) {
		t.Helper()
		if got, err := tree.Doubted(bridge.ProtocolSTP); err != nil || got != want {
			t.Errorf("what is kept is doubted: %v, %v", got, err)
		}
	}
	doubted(false)
	must(t, tree.Doubt(bridge.ProtocolSTP, true))
	must(t, tree.Doubt(bridge.ProtocolSTP, true))
	must(t, tree.Close())
	shown(false, "no agent runs")
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)
	l.Bascule("bridge", "set", "br0")
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)

	tree = openTree(t, l, "br0")
	doubted(true)
	must(t, tree.Doubt(bridge.ProtocolSTP, false))
	must(t, tree.Doubt(bridge.ProtocolSTP, false))
	doubted(false)
	p := tree.port(a.Port)
	if p.State != bridge.STPForwarding || p.Index != a.PortIndex || !p.Up || p.Type != "netdev" || len(p.MAC) != 6 || p.Config.STPPriority != 128 {
		t.Errorf("the port is %+v", p)
	}
	if p.SpeedMbit == 0 || !p.FullDuplex { // a veth reports 10 Gbit/s
		t.Errorf("the port's device is %d Mbit/s, full duplex %v", p.SpeedMbit, p.FullDuplex)
	}
	old := p.ID
	l.Bascule("port", "del", "br0", a.Port)
	l.AddPort("br0", hook, a)
	for what, err := range map[string]error{"state": tree.SetState(old, bridge.STPForwarding), "flush": tree.Flush(old)} {
		if err == nil || !strings.Contains(err.Error(), "has left") {
			t.Errorf("%s of a port that has left: %v", what, err)
		}
	}
	wantState(t, l, a.Port, "discarding")
}

// stpSwitchedOff: the reader is notified. If spanning tree is switched on again soon, nothing
// changes.
func stpSwitchedOff(t *testing.T, hook string) {
	l, ends := setupTree(t, hook, 1)
	tree := openTree(t, l, "br0")
	l.Bascule("bridge", "set", "br0", "--stp", "off")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if _, err := tree.Read(ctx); err == nil || !strings.Contains(err.Error(), "switched off") {
		t.Errorf("read: %v", err)
	}
	l.Bascule("bridge", "set", "br0", "--stp", "stp")
	done := make(chan error)
	go func() {
		_, err := tree.Read(ctx)
		done <- err
	}()
	if _, err := tree.Ports(); err != nil { // it notices; a poll would lose this BPDU
		t.Error(err)
	}
	l.Send(ends[0], bpdu(ends[0]))
	must(t, <-done)
	l.Bascule("bridge", "del", "br0")
	if _, err := tree.Read(ctx); err == nil || !strings.Contains(err.Error(), "no bridge br0") {
		t.Errorf("read from a bridge that is gone: %v", err)
	}
}

// stpPatch: a cable between bridges has states at both ends, and no BPDU passes it.
func stpPatch(t *testing.T, hook string) {
	l, ends := patched(t, hook, 2)
	warned(t, l, "bridge", "set", "br0", "--stp", "rstp")
	warned(t, l, cable("br0/right br1/left")...)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	wantState(t, l, "right", "discarding")
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b)
	l.Reach(c, l.Frames(10, netlab.Broadcast, C), d)
	tree := openTree(t, l, "br0")
	p := tree.port("right")
	if !p.Up || p.Peer != "br1/left" || p.Type != "patch" || p.Index != 0 || !p.FullDuplex || len(p.MAC) != 6 {
		t.Errorf("the port is %+v", p)
	}
	tree.become("right", bridge.STPForwarding)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, c, d)
	l.Reach(c, l.Frames(10, netlab.Broadcast, C), a, b, d)
	l.Reach(a, []netlab.Frame{bpdu(a)})
	if n := l.Port("br1", "left").Stats64.RX.Packets; n != 10 {
		t.Errorf("%d frames came by the cable, should be 10", n)
	}

	// Another cable carries the frames that a shut one does not.
	l.Bascule(cable("br0/again br1/back")...)
	wantState(t, l, "again", "discarding")
	l.Reach(c, l.Frames(10, netlab.Broadcast, C), a, b, d)
	l.Reach(a, l.Frames(10, netlab.Broadcast, A), b, c, d)
}

// stpPF: pf is not evaluated for a port that only learns. It sends no answer there, and creates
// no state.
func stpPF(t *testing.T, hook string) {
	l, ends := setupTree(t, hook, 2)
	a := ends[0]
	learn(l, ends[1], B)
	loadPF(t, l, "pass\nblock return proto udp to port 81\n")
	tree := openTree(t, l, "br0")
	blocked := func() []netlab.Frame { return udps(1, B, A, ip1, ip2, [2]int{7, 81}) }
	if got := l.Deliver(a, blocked()...)[a]; len(got) != 1 {
		t.Fatalf("a port that forwards gets %d answers, should be 1", len(got))
	}
	drops := l.Port("br0", a.Port).Drops["pf"]
	tree.become(a.Port, bridge.STPLearning)
	l.Reach(a, blocked())
	l.Reach(a, udps(10, B, A, ip1, ip2, [2]int{7, 7}))
	wantDrops(t, l, a, "pf", drops)
	wantDrops(t, l, a, "stp", 11)
	wantPF(t, l, "", "-ss")
}

func stpRefused(t *testing.T, hook string) {
	l, _ := setupTree(t, hook, 1, "--stp-forward-delay", "21s", "--stp-max-age", "40s")
	l.Refused([]string{"stp-max-age 40s", "38s", "--stp-forward-delay"}, "bridge", "set", "br0", "--stp-forward-delay", "20s")
	l.Refused([]string{"br1", "stp-max-age 29s", "28s"}, "bridge", "add", "br1", "--stp-max-age", "29s")
	if got := l.Bridge("br0"); got.MaxAge != 40 || got.ForwardDelay != 21 {
		t.Errorf("a change that was refused has left %+v", got)
	}
	warned(t, l, "bridge", "set", "br0", "--stp-forward-delay", "20s", "--stp-max-age", "38s", "--stp", "stp")
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	l.Bascule("bridge", "set", "br0", "--stp", "off")
	if _, err := s.OpenControl("br0"); err == nil || !strings.Contains(err.Error(), "--stp rstp") {
		t.Errorf("held while it is off: %v", err)
	}
}

// stpTrace: a trace includes states, and hands no BPDU over.
func stpTrace(t *testing.T, hook string) {
	l, ends := setupTree(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	tree := openTree(t, l, "br0")
	tree.become(c.Port, bridge.STPLearning)
	want := func(e *netlab.End, f netlab.Frame, verdict, says string) {
		t.Helper()
		var list []traceResult
		l.JSON(&list, "trace", "br0", "--in", e.Port, hex.EncodeToString([]byte(f)))
		if len(list) != 1 || list[0].Verdict != verdict || !list[0].says(says) {
			t.Errorf("traced %v, should be %s, with %q", list, verdict, says)
		}
	}
	want(a, l.Frame(netlab.Broadcast, A, 60), "flooded", "not to "+c.Port+": spanning tree has it learning")
	want(c, l.Frame(netlab.Broadcast, C, 60), "dropped: stp", "keeps the port from forwarding")
	want(c, l.Frame(netlab.Broadcast, C, 60), "dropped: stp", C.String()+" is new on "+c.Port)
	l.Reach(c, l.Frames(1, netlab.Broadcast, C)) // learned, and not forwarded
	want(c, l.Frame(netlab.Broadcast, C, 60), "dropped: stp", C.String()+" is known on "+c.Port)
	want(a, l.Frame(C, A, 60), "flooded", C.String()+" is behind "+c.Port+" (dynamic), by which nothing is sent now")
	want(a, bpdu(a), "taken in", "BPDU")
	tree.become(b.Port, bridge.STPDiscarding)
	want(b, l.Frame(netlab.Broadcast, B, 60), "dropped: stp", "keeps the port from forwarding")
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if frame, err := tree.Read(ctx); err != context.DeadlineExceeded {
		t.Errorf("a trace has handed over %x, %v", frame.Bytes, err)
	}
}
