// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"
)

// A recorder is an Output that records its calls.
type recorder struct {
	states  map[uint16]State
	log     []string // calls other than Send, as "PORT what"
	sent    []message
	stopped bool // records nothing
}

type message struct {
	port uint16
	bpdu
}

func (r *recorder) Send(port uint16, frame []byte) {
	m, err := decode(frame)
	if err != nil && !r.stopped {
		panic(fmt.Sprintf("port %d sends what is no BPDU: %v", port, err))
	}
	r.sent = append(r.sent, message{port, m})
}

func (r *recorder) SetState(port uint16, s State) {
	r.states[port] = s
	r.note(port, s.String())
}

func (r *recorder) Flush(port uint16) { r.note(port, "flush") }
func (r *recorder) Report(e Event)    { r.note(e.Port, e.Kind.String()) }

func (r *recorder) note(port uint16, what string) {
	r.log = append(r.log, fmt.Sprintf("%d %s", port, what))
}

// take returns the records since the last call.
func (r *recorder) take() []string {
	log := r.log
	r.log, r.sent = nil, nil
	return log
}

// last returns the last message that the port has sent.
func (r *recorder) last(t *testing.T, port uint16) bpdu {
	t.Helper()
	for _, m := range slices.Backward(r.sent) {
		if m.port == port {
			return m.bpdu
		}
	}
	t.Fatalf("port %d has sent nothing", port)
	return bpdu{}
}

var own = net.HardwareAddr{2, 0, 0, 0, 0, 0x50}

// newBridge makes a bridge whose ports 1 to n are up.
func newBridge(t testing.TB, n uint16, config func(*Config), port func(uint16, *PortConfig)) (*Bridge, *recorder) {
	t.Helper()
	r := &recorder{states: make(map[uint16]State)}
	c := DefaultConfig(own)
	if config != nil {
		config(&c)
	}
	b, err := New(c, r)
	if err != nil {
		t.Fatal(err)
	}
	for i := uint16(1); i <= n; i++ {
		p := DefaultPort(1000)
		if port != nil {
			port(i, &p)
		}
		if err := b.AddPort(i, p); err != nil {
			t.Fatal(err)
		}
		if err := b.SetLink(i, true); err != nil {
			t.Fatal(err)
		}
	}
	return b, r
}

// better and worse are bridges with a better and a worse identifier than
// newBridge's.
const (
	better = BridgeID(0x1000_020000000001)
	worse  = BridgeID(0xf000_020000000099)
)

// from is a message from port 1 of a bridge that is the root.
func from(id BridgeID, kind bpduType, f flags) bpdu {
	return bpdu{kind, f, vector{id, 0, id, 0x8001}, times{0, 20 * second, 2 * second, 15 * second}}
}

func receive(t *testing.T, b *Bridge, port uint16, m bpdu) {
	t.Helper()
	if err := b.Receive(port, m.encode(m.Priority.DesignatedBridgeID.MAC())); err != nil {
		t.Fatal(err)
	}
}

func ticks(b *Bridge, n int) {
	for range n {
		b.Tick()
	}
}

func (b *Bridge) port(n uint16) *port {
	p, err := b.find(n)
	if err != nil {
		panic(err)
	}
	return p
}

func wantState(t *testing.T, b *Bridge, n uint16, role Role, state State) {
	t.Helper()
	if p := b.port(n); p.Role != role || p.PST != state {
		t.Errorf("port %d is %v and %v instead of %v and %v", n, p.Role, p.PST, role, state)
	}
}

// 17.25: a port with no bridge behind it is an edge after MigrateTime, and at
// once with AdminEdge. A BPDU ends that.
func TestBridgeDetection(t *testing.T) {
	b, _ := newBridge(t, 3, nil, func(n uint16, c *PortConfig) { c.Edge = Edge(n - 1) }) // auto, on, off
	wantState(t, b, 1, DesignatedPort, Discarding)
	wantState(t, b, 2, DesignatedPort, Forwarding)
	wantState(t, b, 3, DesignatedPort, Discarding)
	ticks(b, 3)
	wantState(t, b, 1, DesignatedPort, Forwarding)
	if !b.port(1).OperEdge || !b.port(2).OperEdge || b.port(3).OperEdge {
		t.Error("wrong ports are edges")
	}
	ticks(b, 20+2-3)
	wantState(t, b, 3, DesignatedPort, Forwarding) // by its timers: max age, then a hello time
	receive(t, b, 2, from(worse, rstBPDU, roleDesignated))
	if b.port(2).OperEdge {
		t.Error("an edge that a BPDU has come to")
	}
	b.SetLink(2, false)
	b.SetLink(2, true)
	if !b.port(2).OperEdge {
		t.Error("AdminEdge does not make an edge after the link was gone")
	}
}

// AdminEdge makes a port an edge at any time, if no bridge was heard, and does
// not disturb the detection.
func TestEdgeSaidLater(t *testing.T) {
	say := func(b *Bridge, e Edge) {
		c := b.port(1).Config
		c.Edge = e
		b.SetPort(1, c)
	}
	for _, c := range []struct {
		name string
		was  Edge
		p2p  bool
		wait int
	}{
		{"at once", EdgeAuto, true, 0},
		{"after a second", EdgeAuto, true, 1},
		{"on a shared link", EdgeAuto, false, 4},
		{"after off", EdgeOff, true, 10},
	} {
		b, _ := newBridge(t, 1, nil, func(_ uint16, config *PortConfig) { config.Edge, config.PointToPoint = c.was, c.p2p })
		ticks(b, c.wait)
		wantState(t, b, 1, DesignatedPort, Discarding)
		say(b, EdgeOn)
		if wantState(t, b, 1, DesignatedPort, Forwarding); !b.port(1).OperEdge {
			t.Errorf("%s: no edge", c.name)
		}
	}

	// if there was a bridge, its loss is detected
	b, _ := newBridge(t, 1, nil, nil)
	b.Tick()
	receive(t, b, 1, from(worse, rstBPDU, roleDesignated))
	say(b, EdgeOn)
	ticks(b, 2)
	wantState(t, b, 1, DesignatedPort, Discarding)
	ticks(b, 1)
	if wantState(t, b, 1, DesignatedPort, Forwarding); !b.port(1).OperEdge {
		t.Error("a port where no BPDU comes any more is no edge")
	}
	b.SetLink(1, false)
	say(b, EdgeAuto)
	b.SetLink(1, true)
	say(b, EdgeOn)
	wantState(t, b, 1, DesignatedPort, Forwarding) // no bridge was heard since the link came up
}

// 17.29.3: a designated port forwards at once when its neighbour agrees.
func TestProposal(t *testing.T) {
	b, r := newBridge(t, 1, nil, nil)
	if m := r.last(t, 1); m.Flags != roleDesignated|flagProposal || m.Type != rstBPDU {
		t.Errorf("the first message is %+v", m)
	}
	agreement := bpdu{rstBPDU, roleRoot | flagAgreement, b.port(1).DesignatedPriority, b.port(1).DesignatedTimes.older()}
	agreement.Priority.DesignatedBridgeID = worse
	agreement.Priority.RootPathCost = 20_000

	for name, wrong := range map[string]func(*bpdu){
		"no agreement":          func(m *bpdu) { m.Flags &^= flagAgreement },
		"to another root":       func(m *bpdu) { m.Priority.RootBridgeID = worse },
		"to what is longer ago": func(m *bpdu) { m.Times.MessageAge += second },
	} {
		m := agreement
		wrong(&m)
		receive(t, b, 1, m)
		if b.port(1).Forward {
			t.Fatalf("%s: the port forwards", name)
		}
	}
	receive(t, b, 1, agreement)
	wantState(t, b, 1, DesignatedPort, Forwarding)
}

// An agreement is valid between two bridges, not on a shared segment (17.21.9).
func TestNoAgreementOnShared(t *testing.T) {
	b, _ := newBridge(t, 1, nil, func(_ uint16, c *PortConfig) { c.PointToPoint = false })
	m := bpdu{rstBPDU, roleRoot | flagAgreement, b.port(1).DesignatedPriority, b.port(1).DesignatedTimes.older()}
	m.Priority.DesignatedBridgeID = worse
	receive(t, b, 1, m)
	wantState(t, b, 1, DesignatedPort, Discarding)
}

// 17.29.2 and 17.29.3: on a proposal, all forwarding ports of the bridge but
// edges must stop before the root port forwards and agrees.
func TestSync(t *testing.T) {
	b, r := newBridge(t, 3, nil, func(n uint16, c *PortConfig) {
		if n == 3 {
			c.Edge = EdgeOn
		} else {
			c.Edge = EdgeOff
		}
	})
	m := from(better, rstBPDU, roleDesignated|flagProposal)
	for range 22 {
		receive(t, b, 1, m)
		b.Tick()
	}
	wantState(t, b, 2, DesignatedPort, Forwarding)
	m.Priority.RootPathCost = 100 // worse, so that the neighbour of port 2 has not agreed to it
	r.take()
	receive(t, b, 1, m)
	wantState(t, b, 1, RootPort, Forwarding)
	wantState(t, b, 2, DesignatedPort, Discarding)
	wantState(t, b, 3, DesignatedPort, Forwarding)
	if m := r.last(t, 1); m.Flags&(flagAgreement|flagRole) != flagAgreement|roleRoot {
		t.Errorf("%+v is no agreement", m)
	}
	if m := r.last(t, 2); m.Flags&flagProposal == 0 {
		t.Errorf("%+v is no proposal", m)
	}
	s := b.Status()
	if s.Root != better || s.RootPort != 1 || s.RootCost != 20_100 {
		t.Errorf("%+v", s)
	}
}

// A new root port forwards at once, after the old one has stopped (17.29.2:
// reRoot).
func TestReRoot(t *testing.T) {
	b, r := newBridge(t, 2, nil, nil)
	for n := uint16(1); n <= 2; n++ {
		m := from(better, rstBPDU, roleDesignated|flagProposal)
		m.Priority.DesignatedPortID = NewPortID(128, n)
		receive(t, b, n, m)
	}
	wantState(t, b, 1, RootPort, Forwarding)
	wantState(t, b, 2, AlternatePort, Discarding)
	for _, c := range []struct {
		name     string
		old, new uint16
		do       func()
	}{
		{"cheaper", 1, 2, func() {
			c := b.port(2).Config
			c.Cost = 1
			b.SetPort(2, c)
		}},
		{"dearer", 2, 1, func() {
			c := b.port(2).Config
			c.Cost = 200_000
			b.SetPort(2, c)
		}},
		{"cut", 1, 2, func() { b.SetLink(1, false) }},
	} {
		r.take()
		c.do()
		wantState(t, b, c.new, RootPort, Forwarding)
		stops := slices.Index(r.log, fmt.Sprintf("%d discarding", c.old))
		starts := slices.Index(r.log, fmt.Sprintf("%d forwarding", c.new))
		if stops < 0 || starts < stops {
			t.Errorf("%s: %q", c.name, r.log)
		}
	}
	// The new port waits for a port that was root recently and has not
	// stopped.
	b.port(1).RrWhile = 3
	if b.port(2).reRooted() {
		t.Error("reRooted does not see rrWhile of the other port")
	}
}

// Information that is not repeated expires after three hello times (17.21.23).
func TestAgeing(t *testing.T) {
	b, _ := newBridge(t, 2, nil, nil)
	receive(t, b, 1, from(better, rstBPDU, roleDesignated))
	ticks(b, 5)
	wantState(t, b, 1, RootPort, Forwarding)
	ticks(b, 1)
	if p := b.port(1); p.Role != DesignatedPort {
		t.Error(p.Role)
	}
	// A message that is too old is not used, and invalidates the information
	// from the same source.
	receive(t, b, 1, from(better, rstBPDU, roleDesignated))
	m := from(better, rstBPDU, roleDesignated)
	m.Times.MessageAge = m.Times.MaxAge
	if err := b.Receive(1, m.encode(own)); err == nil || b.port(1).Role != DesignatedPort {
		t.Errorf("%v, port 1 is %v", err, b.port(1).Role)
	}
}

// Of two ports to the same segment one is a backup (17.21.25).
func TestBackup(t *testing.T) {
	b, r := newBridge(t, 2, nil, func(_ uint16, c *PortConfig) { c.PointToPoint = false })
	m := r.last(t, 1)
	receive(t, b, 2, m)
	wantState(t, b, 2, BackupPort, Discarding)
	if b.port(2).RbWhile == 0 {
		t.Error("rbWhile does not run")
	}

	// It still has the information that the bridge sent with its former,
	// better priority.
	c := b.Config
	c.Priority += 4096
	if err := b.SetConfig(c); err != nil {
		t.Fatal(err)
	}
	wantState(t, b, 2, BackupPort, Discarding)
	if s := b.Status(); s.RootPort != 0 || s.Root != NewBridgeID(c.Priority, own) {
		t.Errorf("the root is %v by port %d: the bridge takes its former self for one", s.Root, s.RootPort)
	}
	// A late copy of that message does not count as a neighbour's either.
	m.Priority.DesignatedPortID = b.port(1).PortID
	if err := b.Receive(1, m.encode(own)); err == nil {
		t.Error("port 1 takes its own BPDU of before for a neighbour's")
	}
}

// A neighbour that forwards though it should not is disputed (17.21.10).
func TestDispute(t *testing.T) {
	b, _ := newBridge(t, 1, nil, func(_ uint16, c *PortConfig) { c.Edge = EdgeOff })
	ticks(b, 22)
	wantState(t, b, 1, DesignatedPort, Forwarding)
	receive(t, b, 1, from(worse, rstBPDU, roleDesignated|flagLearning|flagForwarding))
	wantState(t, b, 1, DesignatedPort, Discarding)
}

// Frames that circulate behind a port stay there: a designated port that gets
// its own BPDUs back discards until no more come, edge or not, with or without
// an agreement.
func TestOwnBPDU(t *testing.T) {
	for _, c := range []struct {
		name    string
		edge    Edge
		version Version
		agreed  bool
		ends    int // seconds from the last BPDU until the port may forward again
	}{
		{"edge", EdgeOn, RSTP, false, 6},
		{"finds out", EdgeAuto, RSTP, false, 6},
		{"no edge", EdgeOff, RSTP, false, 6 + 2},
		{"agreed", EdgeOff, RSTP, true, 6},
		{"STP", EdgeOn, STP, false, 6 + 15},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, r := newBridge(t, 2, func(config *Config) { config.Version = c.version }, func(_ uint16, config *PortConfig) { config.Edge = c.edge })
			agreement := bpdu{rstBPDU, roleRoot | flagAgreement, b.port(1).DesignatedPriority, b.port(1).DesignatedTimes.older()}
			agreement.Priority.DesignatedBridgeID = worse
			ticks(b, 50)
			wantState(t, b, 1, DesignatedPort, Forwarding)
			r.take()
			for second := range 60 {
				b.Tick()
				for len(r.sent) > 0 {
					m := r.sent[0]
					if r.sent = r.sent[1:]; m.port == 1 {
						if err := b.Receive(1, m.encode(own)); err == nil {
							t.Fatal("the port takes its own BPDU")
						}
					}
				}
				if c.agreed {
					receive(t, b, 1, agreement)
				}
				if second > 1 {
					wantState(t, b, 1, DesignatedPort, Discarding)
				}
			}
			wantState(t, b, 2, DesignatedPort, Forwarding)
			for second := range c.ends + 2 {
				if c.agreed {
					receive(t, b, 1, agreement)
				}
				if forwards := b.port(1).PST == Forwarding; forwards != (second >= c.ends) && second != c.ends-1 {
					t.Errorf("%d s after the last it is %v", second, b.port(1).PST)
				}
				b.Tick()
			}
		})
	}

	// The link goes, and the loop behind it with it.
	b, r := newBridge(t, 1, nil, func(_ uint16, c *PortConfig) { c.Edge = EdgeOn })
	b.Receive(1, r.last(t, 1).encode(own))
	wantState(t, b, 1, DesignatedPort, Discarding)
	b.SetLink(1, false)
	b.SetLink(1, true)
	wantState(t, b, 1, DesignatedPort, Forwarding)
}

// 17.24: a neighbour that speaks STP gets STP, until it speaks RSTP or is
// checked again.
func TestMigration(t *testing.T) {
	b, r := newBridge(t, 1, nil, nil)
	ticks(b, 3)
	r.take()
	receive(t, b, 1, from(worse, configBPDU, 0))
	ticks(b, 2)
	if m := r.last(t, 1); m.Type != configBPDU {
		t.Errorf("%+v", m)
	}
	if !slices.Contains(r.log, "1 migrated") {
		t.Error("not reported")
	}
	ticks(b, 3)
	receive(t, b, 1, from(worse, rstBPDU, roleDesignated))
	ticks(b, 2)
	if m := r.last(t, 1); m.Type != rstBPDU {
		t.Errorf("%+v after the neighbour has spoken RSTP", m)
	}
	ticks(b, 3)
	receive(t, b, 1, from(worse, configBPDU, 0))
	b.Migrate(1)
	ticks(b, 2)
	if m := r.last(t, 1); m.Type != rstBPDU {
		t.Errorf("%+v after mcheck", m)
	}
}

// A bridge that is restricted to STP sends nothing else, waits for max age and
// the forward delay, and signals changes by TCN BPDUs until they are
// acknowledged.
func TestSTP(t *testing.T) {
	b, r := newBridge(t, 2, func(c *Config) { c.Version = STP }, nil)
	receive(t, b, 1, from(better, configBPDU, 0))
	for i := 1; i <= 40; i++ {
		b.Tick()
		receive(t, b, 1, from(better, configBPDU, 0))
		want := Forwarding
		switch {
		case i < 20:
			want = Discarding
		case i < 20+15:
			want = Learning
		}
		if b.port(2).PST != want {
			t.Errorf("after %d s port 2 is %v instead of %v", i, b.port(2).PST, want)
		}
	}
	if slices.ContainsFunc(r.sent, func(m message) bool { return m.Type == rstBPDU }) {
		t.Error("an RST BPDU")
	}
	tcns := func() (n int) {
		for _, m := range r.sent {
			if m.Type == tcnBPDU && m.port == 1 {
				n++
			}
		}
		return n
	}
	if tcns() == 0 {
		t.Fatal("no TCN BPDU")
	}
	receive(t, b, 1, from(better, configBPDU, flagTCAck))
	r.take()
	ticks(b, 4)
	if tcns() != 0 {
		t.Error("a TCN BPDU after it was acknowledged")
	}
	receive(t, b, 2, bpdu{Type: tcnBPDU})
	ticks(b, 2)
	if !slices.ContainsFunc(r.sent, func(m message) bool { return m.port == 2 && m.Flags&flagTCAck != 0 }) {
		t.Errorf("no acknowledgement in %+v", r.sent)
	}
}

// 17.31: a received change is signalled by all other ports but edges, and
// flushes them.
func TestTopologyChange(t *testing.T) {
	b, r := newBridge(t, 4, nil, func(n uint16, c *PortConfig) {
		c.Edge = EdgeOff
		if n == 4 {
			c.Edge = EdgeOn
		}
	})
	ticks(b, 40)
	if s := b.Status(); s.Changes == 0 || s.SinceChange < 5 {
		t.Errorf("%d changes, the last %d s ago", s.Changes, s.SinceChange)
	}
	r.take()
	changes := b.Status().Changes
	m := bpdu{rstBPDU, roleRoot | flagAgreement | flagTC, b.port(1).DesignatedPriority, b.port(1).DesignatedTimes.older()}
	m.Priority.DesignatedBridgeID = worse
	receive(t, b, 1, m)
	if got, want := r.log, []string{"2 flush", "3 flush"}; !slices.Equal(got, want) {
		t.Errorf("%q instead of %q", got, want)
	}
	if m := r.last(t, 2); m.Flags&flagTC == 0 {
		t.Errorf("%+v does not tell", m)
	}
	if s := b.Status(); s.Changes != changes+1 || s.SinceChange != 0 {
		t.Errorf("%d changes, the last %d s ago", s.Changes, s.SinceChange)
	}
	// An edge that comes or goes is no change of topology.
	r.take()
	ticks(b, 10)
	r.take()
	b.SetLink(4, false)
	b.SetLink(4, true)
	if log := r.take(); slices.Contains(log, "1 flush") || slices.Contains(log, "4 topology-change") {
		t.Error(log)
	}
}

// 17.26: a burst of TxHoldCount messages at most, and then one a second.
func TestTxHoldCount(t *testing.T) {
	b, r := newBridge(t, 1, func(c *Config) { c.TxHoldCount = 3 }, nil)
	for i := range 20 {
		m := from(better+20-BridgeID(i), rstBPDU, roleDesignated|flagProposal)
		receive(t, b, 1, m)
	}
	if len(r.sent) != 3 {
		t.Errorf("%d messages at once", len(r.sent))
	}
	r.take()
	b.Tick()
	if len(r.sent) != 1 {
		t.Errorf("%d messages after a second", len(r.sent))
	}
}

func TestBPDUGuard(t *testing.T) {
	b, r := newBridge(t, 2, func(c *Config) { c.GuardTimeout = 5 * time.Second }, func(n uint16, c *PortConfig) {
		c.Edge = EdgeOn
		c.BPDUGuard = true
	})
	wantState(t, b, 1, DesignatedPort, Forwarding)
	trip := func() {
		t.Helper()
		r.take()
		receive(t, b, 1, from(worse, rstBPDU, roleDesignated))
		wantState(t, b, 1, DisabledPort, Discarding)
		wantState(t, b, 2, DesignatedPort, Forwarding)
		if !slices.Contains(r.log, "1 guard-tripped") || !b.Status().Ports[0].Guarded {
			t.Error("not told")
		}
	}
	trip()
	b.SetLink(1, true)
	ticks(b, 4)
	wantState(t, b, 1, DisabledPort, Discarding)
	b.Tick()
	wantState(t, b, 1, DesignatedPort, Forwarding)
	trip()
	b.ClearGuard(1)
	wantState(t, b, 1, DesignatedPort, Forwarding)
	trip()
	b.SetLink(1, false)
	b.SetLink(1, true)
	wantState(t, b, 1, DesignatedPort, Forwarding)

	c := b.Config
	c.GuardTimeout = 0
	b.SetConfig(c)
	trip()
	ticks(b, 1000)
	wantState(t, b, 1, DisabledPort, Discarding)
}

// The bridge behind the port may be one whose BPDUs are not understood, or this
// bridge itself: through a loop behind the port its own BPDU comes back.
func TestBPDUGuardRefused(t *testing.T) {
	at := func(i int, v byte) func(*bpdu, []byte) { return func(_ *bpdu, frame []byte) { frame[i] = v } }
	for _, c := range []struct {
		why   Reason
		trips bool
		wrong func(m *bpdu, frame []byte) // called twice, before and after m is encoded
	}{
		{OwnBPDU, true, func(m *bpdu, _ []byte) { m.Priority.DesignatedBridgeID = NewBridgeID(32768, own) }},
		{TooOld, true, func(m *bpdu, _ []byte) { m.Times.MessageAge = m.Times.MaxAge }},
		{BadTimer, true, func(m *bpdu, _ []byte) { m.Times.HelloTime = 0 }},
		{BadProtocol, true, at(17, 9)},
		{BadType, true, at(20, 9)},
		{TooShort, true, at(13, 30)},
		{BadLLC, false, at(14, 0xaa)},
		{BadAddress, false, at(5, 2)},
		{BadLength, false, at(12, 8)},
	} {
		b, r := newBridge(t, 1, nil, func(_ uint16, config *PortConfig) { config.Edge, config.BPDUGuard = EdgeOn, true })
		m := from(better, rstBPDU, roleDesignated|flagForwarding)
		c.wrong(&m, make([]byte, minFrame))
		frame := m.encode(own)
		c.wrong(&m, frame)
		err := b.Receive(1, frame)
		var refusal *Refusal
		if !errors.As(err, &refusal) || refusal.Reason != c.why {
			t.Errorf("%s: %v", c.why, err)
		}
		if s := b.Status().Ports[0]; s.Guarded != c.trips || (s.State == Discarding) != c.trips || s.Counters.Refused[c.why] != 1 ||
			slices.Contains(r.log, "1 guard-tripped") != c.trips {
			t.Errorf("%s: %+v, %q", c.why, s, r.log)
		}
	}
}

func TestBPDUFilter(t *testing.T) {
	b, r := newBridge(t, 1, nil, func(_ uint16, c *PortConfig) { c.BPDUFilter = true })
	receive(t, b, 1, from(better, rstBPDU, roleDesignated))
	ticks(b, 10)
	wantState(t, b, 1, DesignatedPort, Forwarding)
	if len(r.sent) != 0 || b.Status().Ports[0].Counters.Filtered != 1 {
		t.Errorf("%d sent, %+v", len(r.sent), b.Status().Ports[0].Counters)
	}
}

func TestRootGuard(t *testing.T) {
	b, r := newBridge(t, 2, nil, func(n uint16, c *PortConfig) {
		c.Edge = EdgeOff
		c.RootGuard = n == 1
	})
	ticks(b, 22)
	r.take()
	receive(t, b, 1, from(better, rstBPDU, roleDesignated|flagProposal))
	wantState(t, b, 1, AlternatePort, Discarding)
	wantState(t, b, 2, DesignatedPort, Forwarding)
	if s := b.Status(); !s.Ports[0].RootInconsistent || s.Root != s.Bridge || !slices.Contains(r.log, "1 root-guard-began") {
		t.Errorf("%+v", s)
	}
	ticks(b, 11)
	wantState(t, b, 1, DesignatedPort, Forwarding)
	if s := b.Status(); s.Ports[0].RootInconsistent || !slices.Contains(r.log, "1 root-guard-ended") {
		t.Errorf("%+v", s)
	}
}

// Refused frames are counted by reason, and have no effect.
func TestRefusedIsCounted(t *testing.T) {
	b, r := newBridge(t, 1, nil, func(_ uint16, c *PortConfig) { c.Edge = EdgeOff })
	ticks(b, 10)
	before := r.last(t, 1)
	r.take()
	m := from(better, rstBPDU, roleDesignated)
	m.Times.HelloTime = 0
	for range 3 {
		if err := b.Receive(1, m.encode(own)); err == nil {
			t.Error("a hello time of 0 is taken")
		}
	}
	if err := b.Receive(1, before.encode(own)); err == nil {
		t.Error("the port takes its own message")
	}
	c := b.Status().Ports[0].Counters
	if c.Refused[BadTimer] != 3 || c.Refused[OwnBPDU] != 1 || c.RxRST != 0 {
		t.Errorf("%+v", c)
	}
	if len(r.log) != 0 {
		t.Error(r.log)
	}
	if err := b.Receive(9, nil); err == nil || errors.As(err, new(*Refusal)) {
		t.Errorf("a port that is not there: %v", err)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		want   string
		change func(*Config)
	}{
		{"", func(*Config) {}},
		{"address", func(c *Config) { c.MAC = nil }},
		{"priority", func(c *Config) { c.Priority = 1 }},
		{"version", func(c *Config) { c.Version = 1 }},
		{"hello time", func(c *Config) { c.Hello = 1500 * time.Millisecond }},
		{"hello time", func(c *Config) { c.Hello = 3 * time.Second }},
		{"max age", func(c *Config) { c.MaxAge = 5 * time.Second }},
		{"forward delay", func(c *Config) { c.ForwardDelay = 31 * time.Second }},
		{"above 2 *", func(c *Config) { c.MaxAge = 40 * time.Second }},
		{"", func(c *Config) { c.MaxAge, c.ForwardDelay = 40*time.Second, 21*time.Second }},
		{"", func(c *Config) { c.MaxAge = 6 * time.Second }},
		{"hold count", func(c *Config) { c.TxHoldCount = 11 }},
		{"guard timeout", func(c *Config) { c.GuardTimeout = -time.Second }},
	} {
		config := DefaultConfig(own)
		c.change(&config)
		_, err := New(config, nil)
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v instead of %q", config, err, c.want)
		}
	}
	b, _ := newBridge(t, 1, nil, nil)
	for want, change := range map[string]func(*PortConfig) uint16{
		"port 1024: number": func(c *PortConfig) uint16 { return MaxPort + 1 },
		"tree: number":      func(c *PortConfig) uint16 { return 0 },
		"priority":          func(c *PortConfig) uint16 { c.Priority = 8; return 2 },
		"cost 0":            func(c *PortConfig) uint16 { c.Cost = 0; return 2 },
		"edge":              func(c *PortConfig) uint16 { c.Edge = 3; return 2 },
		"address":           func(c *PortConfig) uint16 { c.MAC = own[:3]; return 2 },
		"is there":          func(c *PortConfig) uint16 { return 1 },
		"200000000 ":        func(c *PortConfig) uint16 { c.Cost = MaxCost + 1; return 2 },
	} {
		c := DefaultPort(1000)
		n := change(&c)
		if err := b.AddPort(n, c); err == nil || !strings.Contains(err.Error()+" ", want) {
			t.Errorf("%v instead of %q", err, want)
		}
	}
}

// A change of settings takes effect at once, and disturbs no more than
// necessary.
func TestSetConfig(t *testing.T) {
	b, r := newBridge(t, 2, nil, nil)
	receive(t, b, 1, from(better, rstBPDU, roleDesignated|flagProposal))
	second := from(better, rstBPDU, roleDesignated|flagProposal)
	second.Priority.DesignatedPortID = 0x8002
	receive(t, b, 2, second)
	wantState(t, b, 2, AlternatePort, Discarding)
	r.take()
	b.SetConfig(b.Config)
	if log := r.take(); len(log) != 0 {
		t.Error(log)
	}
	c := b.port(2).Config
	c.Cost = 1
	b.SetPort(2, c)
	wantState(t, b, 2, RootPort, Forwarding)
	wantState(t, b, 1, AlternatePort, Discarding)
	config := b.Config
	config.Priority = 0
	b.SetConfig(config)
	if s := b.Status(); s.Root != s.Bridge || s.RootPort != 0 {
		t.Errorf("%+v", s)
	}
	config.Version = STP
	b.SetConfig(config)
	for n := uint16(1); n <= 2; n++ {
		wantState(t, b, n, DesignatedPort, Discarding)
	}
	b.RemovePort(1)
	b.RemovePort(2)
	if s := b.Status(); len(s.Ports) != 0 || s.Root != s.Bridge {
		t.Errorf("%+v", s)
	}
}

// With any input in any order, the machines come to rest and send only valid
// BPDUs.
func FuzzReceive(f *testing.F) {
	f.Add([]byte{1, 0, 0, 2, 5, 6, 7, 8, 255}, unhex(f, ovsProposal))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}, unhex(f, linuxConfig))
	f.Add([]byte{17, 34, 51, 68}, unhex(f, tcn))
	f.Fuzz(func(t *testing.T, script, frame []byte) {
		b, r := newBridge(t, 3, nil, func(n uint16, c *PortConfig) { c.PointToPoint = n != 3 })
		for i, do := range script[:min(len(script), 64)] {
			n := uint16(1 + do>>4%3)
			switch do & 15 {
			case 0:
				b.Tick()
			case 1:
				b.SetLink(n, i%2 == 0)
			case 2:
				c := b.port(n).Config
				c.Edge = Edge(i % 3)
				c.RootGuard = !c.RootGuard
				b.SetPort(n, c)
			case 3:
				b.Migrate(n)
			case 4:
				if len(r.sent) > 0 {
					m := r.sent[i%len(r.sent)]
					b.Receive(n, m.encode(own))
				}
			case 5:
				again, err := Restore(b.Snapshot(), 0, b.Config, b.here(), r)
				if err != nil {
					t.Fatal(err)
				}
				b = again
			default:
				if mutated := slices.Clone(frame); len(mutated) > 0 {
					mutated[int(do)*i%len(mutated)] ^= byte(i)
					b.Receive(n, mutated)
				}
			}
		}
		for _, line := range r.log {
			if strings.Contains(line, Stuck.String()) {
				t.Fatal(r.log)
			}
		}
	})
}
