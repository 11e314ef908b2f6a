// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/agent"
	"bascule/agent/rstp"
	"bascule/bridge"
	"bascule/test/netlab"
)

// A shape is a network whose trees are tested.
type shape struct {
	name string
	make func(t testing.TB) *network
	cuts int           // number of cables that are cut, one after another
	heal time.Duration // time limit until frames arrive again
}

// healed is far more than a network of rapid spanning tree needs on an idle machine; BenchmarkHeal measures
// it.
const healed = 3 * time.Second

// healedOVS is the limit for Open vSwitch, which checks its ports' links and timers once a second.
const healedOVS = 5 * time.Second

// healedSTP is the limit for the old protocol with the times of quick: received information has to expire,
// and then a port waits twice for the forward delay. It has a little more for a busy machine.
const healedSTP = 6*time.Second + 2*4*time.Second + 4*time.Second

var shapes = []shape{
	{"two_cables", func(t testing.TB) *network {
		w := newNetwork(t, 2, "tcx")
		w.cable(0, 1)
		w.cable(0, 1)
		return w
	}, 2, healed},
	{"ring_of_3", func(t testing.TB) *network {
		w := newNetwork(t, 3, "tcx")
		w.ring()
		return w
	}, 3, healed},
	{"ring_of_3_xdp", func(t testing.TB) *network {
		w := newNetwork(t, 3, "xdp")
		w.ring()
		return w
	}, 3, healed},
	{"ring_of_5", func(t testing.TB) *network {
		w := newNetwork(t, 5, "tcx")
		w.ring()
		return w
	}, 3, healed},
	{"mesh_of_4", func(t testing.TB) *network {
		w := newNetwork(t, 4, "tcx")
		w.mesh()
		return w
	}, 4, healed},
	{"patch_and_cable", func(t testing.TB) *network { // in one namespace
		w := newNetwork(t, 1, "tcx")
		n := w.nodes[0]
		w.add(n.Lab, n.agent, "br1", "tcx")
		w.patch(0, 1)
		w.cable(0, 1)
		w.patch(0, 1)
		return w
	}, 3, healed},
	{"stp_ring_of_3", func(t testing.TB) *network {
		w := newNetwork(t, 3, "tcx", slices.Concat(quick, []string{"--stp", "stp"})...)
		w.ring()
		return w
	}, 1, healedSTP},
	{"linux", func(t testing.TB) *network {
		w := newNetwork(t, 2, "tcx", quick...)
		w.addLinux(61440)
		w.ring()
		return w
	}, 2, healedSTP},
	{"linux_root", func(t testing.TB) *network {
		w := newNetwork(t, 2, "tcx", quick...)
		w.addLinux(0)
		w.ring()
		return w
	}, 2, healedSTP},
	{"ovs", func(t testing.TB) *network {
		w := newNetwork(t, 2, "tcx")
		w.addOVS(61440)
		w.ring()
		return w
	}, 3, healedOVS},
	{"ovs_root", func(t testing.TB) *network {
		w := newNetwork(t, 2, "tcx")
		w.addOVS(0)
		w.ring()
		return w
	}, 3, healedOVS},
}

// TestTrees: each network forms one tree, so that each frame arrives once at each end, with all cables,
// with one cut, and after it is mended. No frame arrives twice at any time.
func TestTrees(t *testing.T) {
	t.Parallel()
	for _, s := range shapes {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			w := s.make(t)
			w.settle("at first")
			w.once("at first")
			for i := range s.cuts {
				for attempt := 1; !w.heals(s, i); attempt++ {
					switch {
					case t.Failed():
						return
					case attempt == attempts:
						t.Fatalf("%v: nothing came for more than %v each of %d times\n%s", w.cables[i], s.heal, attempts, w.logs())
					}
					// For the hold count, as in BenchmarkHeal.
					time.Sleep(6 * time.Second)
				}
			}
		})
	}
}

// attempts limits how often a cable is cut and mended until the network heals in time. A machine that
// stalls for seconds spoils one attempt, a defect spoils all.
const attempts = 3

// heals cuts a cable and mends it, and checks the tree each time. It reports whether frames arrived again
// in time.
func (w *network) heals(s shape, number int) bool {
	w.t.Helper()
	c, to := w.cables[number], w.nodes[1]
	var used []*cable
	cut := w.streams("cut", to, func() {
		c.pull(number % 2)
		used = w.settle("cut")
	}).Gap
	if slices.Contains(used, c) {
		w.t.Errorf("%v is cut, and used", c)
	}
	w.once("cut")
	mended := w.streams("mended", to, func() {
		c.plug()
		w.settle("mended")
	}).Gap
	w.once("mended")
	w.t.Logf("%v is cut: healed after %v; mended: nothing came for %v", c, cut.Round(time.Millisecond), mended.Round(time.Millisecond))
	return !w.t.Failed() && cut <= s.heal && mended <= s.heal
}

// BenchmarkHeal measures how long no frame arrives when a cable of a ring of three is cut, with a frame
// sent each millisecond, ten times. A frame that arrives twice fails it.
func BenchmarkHeal(b *testing.B) {
	for b.Loop() {
		w := newNetwork(b, 3, "tcx")
		w.ring()
		w.settle("at first")
		var healed []time.Duration
		for range 10 {
			// Cuts that follow each other within a few seconds wait for the hold count
			// (17.13.12).
			time.Sleep(6 * time.Second)
			c := w.cables[0]
			healed = append(healed, w.streams("cut", w.nodes[1], func() {
				c.pull(1)
				w.settle("cut")
			}).Gap)
			c.plug()
			w.settle("mended")
		}
		slices.Sort(healed)
		b.ReportMetric(float64(healed[len(healed)/2].Microseconds())/1000, "median-ms")
		b.ReportMetric(float64(healed[len(healed)-1].Microseconds())/1000, "slowest-ms")
		b.ReportMetric(0, "ns/op") // the duration of the benchmark itself is of no interest
	}
}

// TestFlush: when the tree changes, bridges whose own links do not change still delete the addresses that
// they have learned from cables.
func TestFlush(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 3, "tcx")
	w.ring()
	w.settle("at first")
	w.once("at first") // teaches the bridges all addresses
	far := w.nodes[2]
	learned := func(end bool) (n int) {
		for _, e := range far.FDB(far.bridge) {
			if (e.Ifname == far.end.Port) == end {
				n++
			}
		}
		return n
	}
	if n := learned(false); n != 2 {
		t.Fatalf("%d stations are known behind cables, should be 2", n)
	}
	w.cables[0].pull(0)
	w.settle("cut")
	if n := learned(false); n != 0 {
		t.Errorf("%d stations are known behind cables after a cut elsewhere, should be none", n)
	}
	if n := learned(true); n != 1 {
		t.Errorf("%d stations are known at the bridge's own end, should be 1", n)
	}
}

// TestAway: an agent is killed in a ring, and restarted. This alone has no effect: no port changes, no
// frame is lost, none arrives twice. The agent then reacts to changes that occurred meanwhile.
func TestAway(t *testing.T) {
	t.Parallel()
	w := newNetwork(t, 3, "tcx")
	w.ring()
	w.settle("at first")
	for _, n := range []*node{w.nodes[0], w.nodes[2]} {
		gone := w.silence(n)
		n.agent.kill()
		if n.Bridge(n.bridge).AgentRuns || !strings.Contains(n.Bascule("bridge", "show", n.bridge), "no agent runs") {
			t.Errorf("%v: the dead agent is not told of", n)
		}
		gone.end()
		w.settle("told of")
		for attempt := 1; !w.unnoticed(n) && !t.Failed(); attempt++ {
			if attempt == 5 {
				t.Fatalf("%v: its agent was away for too long each of %d times", n, attempt)
			}
		}
		w.once("back")
	}
	for _, c := range []struct {
		what  string
		cable *cable
		do    func(*cable)
	}{
		{"its way to the root cut meanwhile", w.cables[0], func(c *cable) { c.pull(0) }},
		{"its way to the root mended meanwhile", w.cables[0], (*cable).plug},
		{"a way elsewhere cut meanwhile", w.cables[2], func(c *cable) { c.pull(0) }},
		{"a way elsewhere mended meanwhile", w.cables[2], (*cable).plug},
		{"a way cut and mended meanwhile", w.cables[0], func(c *cable) { c.pull(0); c.plug() }},
	} {
		n := w.nodes[1]
		w.streams(c.what, n, func() {
			w.killAfterHello(n)
			c.do(c.cable)
			n.agent.start()
			w.settle(c.what)
		})
		w.once(c.what)
	}
}

// unnoticed kills an agent and restarts it before its neighbours' information expires, and checks that
// nothing has changed. It returns false if the restart took too long for a verdict.
func (w *network) unnoticed(n *node) bool {
	w.t.Helper()
	changes := w.changes()
	var length time.Duration
	lost := w.streams("away", w.nodes[1], func() {
		gone := w.killAfterHello(n)
		time.Sleep(time.Until(gone.since.Add(3 * time.Second)))
		length = gone.end()
		time.Sleep(time.Second) // for changes at the first tick
	}).Lost
	now := w.changes()
	w.t.Logf("%v: its neighbours have heard nothing for %v", n, length.Round(time.Millisecond))
	// Information expires after three hello times, by the neighbours' own clocks.
	if length > 5*time.Second {
		w.settle("back")
		return false
	}
	if lost > 0 {
		w.t.Errorf("%v: %d frames were lost while the agent was away\n%s", n, lost, w.logs())
	}
	changes[n] = 0 // its log is new
	if !maps.Equal(now, changes) {
		w.t.Errorf("%v: ports have changed while the agent was away\n%s", n, w.logs())
	}
	if n.agent.logs.Lines("is taken over") != 1 {
		w.t.Errorf("%v: the spanning tree was not taken over\n%s", n, w.logs())
	}
	w.settle("back")
	return true
}

// changes returns the numbers of state changes by the running agents.
func (w *network) changes() map[*node]int {
	counts := map[*node]int{}
	for _, n := range w.nodes {
		counts[n] = n.agent.logs.Lines("a port changes")
	}
	return counts
}

// A listener is a neighbour's port that receives the root's information from a bridge.
type listener struct {
	*node
	port string
}

// heard returns the number of its received BPDUs.
func (l listener) heard() uint64 {
	for _, p := range l.tree().Ports {
		if p.Name == l.port {
			return p.Counters.RxRST
		}
	}
	return 0
}

// A silence is a time in which neighbours receive nothing from a bridge.
type silence struct {
	of        *node
	since     time.Time // or later for some of them
	listeners []listener
}

// silence finds the listeners of a bridge.
func (w *network) silence(n *node) *silence {
	w.t.Helper()
	s := &silence{of: n, since: time.Now()}
	for _, c := range w.cables {
		for side, other := range []*node{c.nodes[1], c.nodes[0]} {
			if c.cut || c.nodes[side] != n {
				continue
			}
			name := c.ports[1-side]
			if role := other.view().ports[name].role; role == "root" || role == "alternate" {
				s.listeners = append(s.listeners, listener{other, name})
			}
		}
	}
	return s
}

// end starts the agent and waits until all listeners have received a BPDU. It returns the longest time that
// one of them was without.
func (s *silence) end() time.Duration {
	before := map[listener]uint64{}
	for _, l := range s.listeners {
		before[l] = l.heard()
	}
	s.of.agent.start()
	s.of.Wait("the spanning tree to be taken up", func() bool { return s.of.tree() != nil })
	s.of.Wait("a hello to all who listen", func() bool {
		return !slices.ContainsFunc(s.listeners, func(l listener) bool { return l.heard() == before[l] })
	})
	return time.Since(s.since)
}

// killAfterHello kills an agent that has just sent BPDUs, so that its neighbours keep their information for
// as long as possible.
func (w *network) killAfterHello(n *node) *silence {
	w.t.Helper()
	s := w.silence(n)
	counts, since := map[listener]uint64{}, map[listener]time.Time{}
	for _, l := range s.listeners {
		counts[l] = l.heard()
	}
	asked := s.since
	n.Wait("a hello to all who listen", func() bool {
		last, news := asked, false
		asked = time.Now()
		for _, l := range s.listeners {
			if now := l.heard(); now > counts[l] {
				counts[l], since[l], news = now, last, true // not received yet at the last check
			}
		}
		return len(since) == len(s.listeners) && (news || len(since) == 0)
	})
	n.agent.kill()
	s.since = asked
	for _, at := range since {
		if at.Before(s.since) {
			s.since = at
		}
	}
	return s
}

// A rapid BPDU on the wire (IEEE 802.1D-2004 9.3.3), by the offsets of its fields in the frame.
const (
	atLength  = 12
	atLLC     = 14
	atVersion = 19
	atType    = 20
	atFlags   = 21
	atRoot    = 22
	atBridge  = 34
	atPort    = 42
	atAge     = 44
	atMaxAge  = 46
	atHello   = 48
	atForward = 50
	bpduEnd   = 53
)

// bpdu returns the BPDU of a bridge that is the root, on a designated port that forwards. change may modify
// it.
func bpdu(from netlab.MAC, id rstp.BridgeID, change func(b []byte)) netlab.Frame {
	b := make([]byte, 60)
	copy(b, []byte{0x01, 0x80, 0xc2, 0, 0, 0})
	copy(b[6:], from[:])
	binary.BigEndian.PutUint16(b[atLength:], bpduEnd-atLLC)
	copy(b[atLLC:], []byte{0x42, 0x42, 0x03})
	b[atVersion], b[atType], b[atFlags] = 2, 2, 0x3c
	binary.BigEndian.PutUint64(b[atRoot:], uint64(id))
	binary.BigEndian.PutUint64(b[atBridge:], uint64(id))
	binary.BigEndian.PutUint16(b[atPort:], 0x8001)
	for at, seconds := range map[int]byte{atMaxAge: 20, atHello: 2, atForward: 15} {
		b[at] = seconds
	}
	if change != nil {
		change(b)
	}
	return netlab.Frame(b)
}

// TestGuards: ports that do not trust their neighbours, and invalid BPDUs.
func TestGuards(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	ends := l.NewEnds(5)
	r := newRunner(t, l)
	r.start()
	n := &node{Lab: l, bridge: "br0", agent: r}
	l.Bascule(slices.Concat([]string{"bridge", "add", "br0", "--stp", "rstp"}, quick)...)
	l.Wait("the agent to serve the bridge", func() bool { return n.tree() != nil })
	guarded, rooted, filtered, lied, plain := ends[0], ends[1], ends[2], ends[3], ends[4]
	port := func(e *netlab.End) (p agent.TreePort) {
		t.Helper()
		for _, p := range n.tree().Ports {
			if p.Name == e.Port {
				return p
			}
		}
		t.Fatalf("the tree has no port %s", e.Port)
		return p
	}
	forwards := func(e *netlab.End) func() bool {
		return func() bool { return port(e).State == rstp.Forwarding && n.states()[e.Port] == "forwarding" }
	}

	// Edge ports forward at once, after a while, and after the standard's times.
	l.AddPort("br0", "tcx", plain, "--stp-edge", "off")
	l.AddPort("br0", "tcx", filtered, "--bpdu-filter")
	l.AddPort("br0", "tcx", guarded, "--stp-edge", "on", "--bpdu-guard")
	l.AddPort("br0", "tcx", rooted, "--stp-edge", "on", "--root-guard")
	l.AddPort("br0", "tcx", lied, "--stp-edge", "on")
	for _, e := range []*netlab.End{guarded, rooted, lied} {
		l.Wait(e.Port+" to forward", forwards(e))
		if p := port(e); !p.Edge || p.Counters.Transitions != 1 {
			t.Errorf("%s is no edge: %+v", e.Port, p)
		}
	}
	l.Wait("the port that finds out", forwards(filtered))
	if !port(filtered).Edge {
		t.Error("a port that nothing was heard of is no edge")
	}
	l.Wait("the port that waits", forwards(plain))
	if port(plain).Edge {
		t.Error("a port that is to be no edge is one")
	}
	// Each frame arrives once at each end whose port forwards.
	once := func(what string, not ...*netlab.End) {
		t.Helper()
		const frames = 10
		got := l.Deliver(plain, l.Frames(frames, netlab.Broadcast, plain.MAC)...)
		for _, e := range ends {
			want := frames
			if e == plain || slices.Contains(not, e) {
				want = 0
			}
			data := slices.DeleteFunc(got[e], func(f netlab.Frame) bool { return !isData(f) })
			if len(data) != want {
				t.Errorf("%s: %d frames at %s, should be %d\n%s", what, len(data), e.Port, want, r.logs.String())
			}
		}
	}
	once("at first")
	better := rstp.NewBridgeID(0, []byte{2, 0, 0, 0, 0, 1})
	isRoot := func(what string) {
		t.Helper()
		if tree := n.tree(); tree.Root != tree.Bridge {
			t.Errorf("%s: %s is the root\n%s", what, tree.Root, r.logs.String())
		}
	}

	// BPDU guard: the port is shut, reported once, and open after its link was down.
	l.Send(guarded, slices.Repeat([]netlab.Frame{bpdu(guarded.MAC, better, nil)}, 3)...)
	l.Wait("the guard", func() bool { return port(guarded).Guarded })
	if p := l.Port("br0", guarded.Port); p.State != "discarding" {
		t.Errorf("a port that its guard has shut is %s", p.State)
	}
	once("guarded", guarded)
	isRoot("guarded")
	if lines := r.logs.Lines("guard-tripped", guarded.Port, "level=WARN"); lines != 1 {
		t.Errorf("%d lines of the guard\n%s", lines, r.logs.String())
	}
	l.Pull(guarded.Port)
	l.Wait("the guard to end", func() bool { return !port(guarded).Guarded })
	l.Plug(guarded.Port)
	l.Wait("the port to be open", forwards(guarded))

	// Root guard: the port is shut as long as it receives a better root.
	l.Send(rooted, bpdu(rooted.MAC, better, nil))
	l.Wait("the root guard", func() bool { p := port(rooted); return p.RootInconsistent && p.State == rstp.Discarding })
	// Sent again, since the information expires after six seconds.
	heard := port(rooted).Counters.RxRST
	l.Send(rooted, bpdu(rooted.MAC, better, nil))
	l.Wait("the better root to be told of again", func() bool { return port(rooted).Counters.RxRST > heard })
	once("root guard", rooted)
	isRoot("root guard")
	if lines := r.logs.Lines("root-guard-began", rooted.Port, "level=WARN"); lines != 1 {
		t.Errorf("%d lines of the root guard\n%s", lines, r.logs.String())
	}

	// BPDU filter: BPDUs are neither received nor sent.
	l.Send(filtered, slices.Repeat([]netlab.Frame{bpdu(filtered.MAC, better, nil)}, 3)...)
	l.Wait("the filter", func() bool { return port(filtered).Counters.Filtered == 3 })
	isRoot("filter")

	// Invalid BPDUs are counted, and reported once for each port and reason. They have no effect.
	put := func(at int, v ...byte) func([]byte) { return func(b []byte) { copy(b[at:], v) } }
	const each = 3
	lies := map[rstp.Reason][]func([]byte){
		rstp.BadLength:   {put(atLength, 0x05, 0xdc), put(atLength, 0, 47)},
		rstp.BadLLC:      {put(atLLC, 0xaa, 0xaa)},
		rstp.TooShort:    {put(atLength, 0, 38), put(atLength, 0, 5), put(atLength, 0, 6)},
		rstp.BadProtocol: {put(17, 1)},
		rstp.BadVersion:  {put(atVersion, 1)},
		rstp.BadType:     {put(atType, 0x7f)},
		rstp.BadTimer: {
			put(atMaxAge, 5), put(atMaxAge, 41), put(atHello, 0), put(atHello, 0xff, 0xff), put(atForward, 3), put(atForward, 31), put(atMaxAge, 0, 0),
		},
		rstp.TooOld: {put(atAge, 20), put(atAge, 0xff, 0xff)},
	}
	want := map[rstp.Reason]uint64{}
	before := port(lied)
	for reason, changes := range lies {
		for _, change := range changes {
			want[reason] += each
			l.Send(lied, slices.Repeat([]netlab.Frame{bpdu(lied.MAC, better, change)}, each)...)
		}
	}
	l.Wait(fmt.Sprintf("the lies to be counted: %v", want), func() bool { return maps.Equal(port(lied).Counters.Refused, want) })
	for reason := range lies {
		if lines := r.logs.Lines("a BPDU is refused", "port="+lied.Port, "reason="+string(reason), "level=WARN"); lines != 1 {
			t.Errorf("%d lines of BPDUs refused by %s\n%s", lines, reason, r.logs.String())
		}
	}
	p := port(lied)
	if p.State != rstp.Forwarding || p.Role != rstp.DesignatedPort || p.Counters.RxRST != before.Counters.RxRST || p.Counters.Transitions != 1 {
		t.Errorf("after the lies: %+v", p)
	}
	isRoot("lies")

	l.Wait("the better root to be forgotten", func() bool { return !port(rooted).RootInconsistent && forwards(rooted)() })
	once("at last")
	for _, e := range []*netlab.End{lied, filtered} {
		hellos := 0
		for _, f := range e.Received() {
			if f.Dst() == (netlab.MAC{0x01, 0x80, 0xc2}) {
				hellos++
			}
		}
		if heard := port(e).Counters; e == filtered && (hellos > 0 || heard.TxRST > 0) {
			t.Errorf("%s, which is filtered, has got %d BPDUs", e.Port, hellos)
		}
	}
}

// TestBerth: a tap that matches a pattern forwards as soon as it exists.
func TestBerth(t *testing.T) {
	t.Parallel()
	l := netlab.New(t)
	end := l.NewEnds(1)[0]
	r := newRunner(t, l)
	r.start("-f", r.file("br0.yaml", "bridges: {br0: {stp: rstp, ports: {p1: {stp-edge: on}, \"tap*\": {stp-edge: on}}}}"))
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	state := func(name string) string {
		list, _ := s.Ports("br0") // fails while the agent makes the bridge
		for _, p := range list {
			if p.Name == name {
				return p.State
			}
		}
		return ""
	}
	l.Wait("the end's port", func() bool { return state(end.Port) == "forwarding" })
	const round = 8 // taps
	var waited []time.Duration
	taps := 0
	one := func() {
		t.Helper()
		l.Wait("a vacant berth", func() bool {
			list, err := s.Berths("br0")
			must(t, err)
			return len(list) == 1
		})
		name := fmt.Sprintf("tap%d", taps)
		since := time.Now()
		tap := l.NewTap(name, false)
		l.Wait(name+" to forward", func() bool { return state(name) == "forwarding" })
		waited = append(waited, time.Since(since))
		got := l.Deliver(tap, l.Frames(1, netlab.Broadcast, netlab.Station(taps))...)[end]
		got = slices.DeleteFunc(got, func(f netlab.Frame) bool { return !isData(f) })
		if len(got) != 1 {
			t.Errorf("from %s came %d frames\n%s\n%s", name, len(got), r.logs.String(), l.Bascule("port", "show", "--stats"))
		}
		taps++
	}
	// An agent that looked for ports once a second would need most of a second for each. On a busy
	// machine this one may, too.
	for begin := time.Now(); ; {
		waited = waited[:0]
		for range round {
			one()
		}
		m := median(slices.Clone(waited))
		if m < 500 {
			break
		}
		if time.Since(begin) > patience {
			t.Errorf("taps waited for %.0f ms in the middle: %v", m, waited)
			break
		}
	}
	if h := r.status().Namespaces[0].Hotplug; h == nil || h.Berths != uint64(taps) {
		t.Errorf("%+v, should be %d by berths", h, taps)
	}
	t.Logf("taps waited for %v", waited)
}
