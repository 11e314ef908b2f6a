// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/agent/rstp"
	"bascule/bridge"
	"bascule/clock"

	"golang.org/x/sys/unix"
)

// A fakeNet is bridges of one namespace with cables between them.
type fakeNet struct {
	bridges []*fakeBridge
	dir     string
	cables  map[int]int // from each device to the device at the other end
	sent    []handed    // to "BRIDGE/PORT", and not delivered yet
	done    int         // number of the agents' actions that are visible outside
	kill    int         // the number of the action before which an agent is killed, 0 for none
}

// killed is the panic that ends an agent.
type killed struct{}

// does is called before each action of an agent that is visible outside.
func (n *fakeNet) does() {
	if n.done++; n.done == n.kill {
		panic(killed{})
	}
}

// A fakeBridge is a bridge whose datapath is a list.
type fakeBridge struct {
	net     *fakeNet
	info    bridge.Info
	ports   []bridge.ControlPort
	flushed map[string]int
	refuse  map[string]error // by port: the error of setting its state

	tree *tree
	log  bytes.Buffer
	puts int // number of states that were set

	said map[int][]byte // the last BPDU of each device

	// ports that were opened, and BPDUs with news that were sent, before the snapshot had these
	unsaid []string

	doubted bool
	noDoubt error // the error of Doubt
}

func (b *fakeBridge) Doubted(bridge.Protocol) (bool, error) { return b.doubted, nil }

func (b *fakeBridge) Doubt(_ bridge.Protocol, on bool) error {
	if b.noDoubt == nil {
		b.doubted = on
	}
	return b.noDoubt
}

func (b *fakeBridge) Missed(bridge.Protocol) (uint64, error) { return 0, nil }

// refresh passes the bridge's ports to its agent.
func (b *fakeBridge) refresh() error { return b.tree.refresh(b.info, slices.Clone(b.ports)) }

func (b *fakeBridge) byID(id uint32) *bridge.ControlPort {
	for i := range b.ports {
		if b.ports[i].ID == id {
			return &b.ports[i]
		}
	}
	return nil
}

func (b *fakeBridge) SetState(id uint32, s bridge.STPState) error {
	p := b.byID(id)
	if p == nil {
		return os.ErrNotExist
	}
	if err := b.refuse[p.Name]; err != nil {
		return err
	}
	b.net.does()
	b.puts++
	if protoState(s) > protoState(p.State) && b.snapshotState(id) < protoState(s) {
		b.unsaid = append(b.unsaid, p.Name)
	}
	p.State = s
	return nil
}

// snapshotState returns the state of a port that an agent would read from the snapshot now.
func (b *fakeBridge) snapshotState(id uint32) rstp.State {
	kept, err := readSnapshot(b.path(), clock.Boot())
	if err != nil || kept == nil {
		return rstp.Discarding
	}
	var tree struct {
		Ports []struct {
			Number uint16
			PST    rstp.State
		}
	}
	if err := json.Unmarshal(kept.state, &tree); err != nil {
		return rstp.Discarding
	}
	for _, p := range tree.Ports {
		if p.Number == number(id) {
			return p.PST
		}
	}
	return rstp.Discarding
}

func (b *fakeBridge) path() string { return filepath.Join(b.net.dir, "7-"+b.info.Name+".stp") }

func (b *fakeBridge) Flush(id uint32) error {
	b.net.does()
	b.flushed[b.byID(id).Name]++
	return nil
}

// Send and Cable implement wire.
func (b *fakeBridge) Send(index int, frame []byte) error {
	b.net.does()
	if !bytes.Equal(b.said[index], frame) {
		if kept, err := readSnapshot(b.path(), clock.Boot()); err != nil || kept == nil || !bytes.Equal(kept.state, b.tree.proto.Snapshot()) {
			b.unsaid = append(b.unsaid, fmt.Sprintf("BPDU of %d", index))
		}
	}
	b.said[index] = frame
	far, ok := b.net.cables[index]
	if !ok {
		return nil // a station is at the other end
	}
	for _, other := range b.net.bridges {
		for _, p := range other.ports {
			if p.Index == far {
				b.net.sent = append(b.net.sent, handed{to: other.info.Name + "/" + p.Name, frame: frame})
			}
		}
	}
	return nil
}

func (b *fakeBridge) Cable(to string, frame []byte) {
	b.net.sent = append(b.net.sent, handed{to: to, frame: frame})
}

// add adds a bridge. The list names ports by type and number.
func (n *fakeNet) add(ports ...string) *fakeBridge {
	b := &fakeBridge{net: n, flushed: map[string]int{}, refuse: map[string]error{}, said: map[int][]byte{}}
	number := byte(len(n.bridges) + 1)
	b.info = bridge.Info{Name: fmt.Sprintf("br%d", number), Address: net.HardwareAddr{2, 0, 0, 0, 0, number}}
	b.info.Config.STP, b.info.Config.STPPriority = bridge.STPRapid, 32768
	b.info.Config.STPHello, b.info.Config.STPMaxAge, b.info.Config.STPForwardDelay = 2*time.Second, 20*time.Second, 15*time.Second
	for _, name := range ports {
		b.plug(name)
	}
	n.bridges = append(n.bridges, b)
	return b
}

func (b *fakeBridge) plug(name string) *bridge.ControlPort {
	slot := uint32(len(b.ports) + 1)
	p := bridge.ControlPort{
		ID: 1<<10 | slot, Name: name, Type: bridge.TypeNetdev, Index: int(b.info.Address[5])*100 + int(slot),
		MAC: net.HardwareAddr{2, 1, 0, 0, b.info.Address[5], byte(slot)}, Up: true, SpeedMbit: 1000, FullDuplex: true,
		State: bridge.STPDiscarding,
	}
	p.Config.STPPriority, p.Config.STPEdge, p.Config.STPPointToPoint = 128, bridge.Auto, bridge.Auto
	if strings.HasPrefix(name, "host") {
		p.Type, p.State = bridge.TypeHost, bridge.STPForwarding
	}
	b.ports = append(b.ports, p)
	return &b.ports[slot-1]
}

func (b *fakeBridge) port(name string) *bridge.ControlPort {
	i := slices.IndexFunc(b.ports, func(p bridge.ControlPort) bool { return p.Name == name })
	return &b.ports[i]
}

func newNet(t *testing.T) *fakeNet { return &fakeNet{dir: t.TempDir()} }

// charge returns the bridge as an agent gets it.
func (b *fakeBridge) charge() charge {
	return charge{
		bridge: b, wire: b, info: b.info, ports: slices.Clone(b.ports), path: b.path(),
		log: NewLog(&b.log, LogOptions{Level: slog.LevelInfo, Journal: true}),
	}
}

// begin starts an agent, which finds the current snapshot.
func (b *fakeBridge) begin(t *testing.T) {
	t.Helper()
	var err error
	if b.tree, err = newTree(b.charge()); err != nil {
		t.Fatal(err)
	}
	b.tree.commit()
}

// run makes the bridge's agent do something. If the agent is killed by it, another one starts.
func (b *fakeBridge) run(t *testing.T, f func(*tree)) {
	t.Helper()
	defer func() {
		if what := recover(); what == (killed{}) {
			b.begin(t)
		} else if what != nil {
			panic(what)
		}
	}()
	if b.tree != nil {
		f(b.tree)
	}
}

// join connects two ports by a cable.
func (n *fakeNet) join(a *bridge.ControlPort, b *bridge.ControlPort) {
	if n.cables == nil {
		n.cables = map[int]int{}
	}
	n.cables[a.Index], n.cables[b.Index] = b.Index, a.Index
}

// settle delivers all messages.
func (n *fakeNet) settle(t *testing.T) {
	t.Helper()
	for range 10000 {
		for _, b := range n.bridges {
			b.run(t, func(tree *tree) { _, _ = tree.commit() })
		}
		if len(n.sent) == 0 {
			return
		}
		h := n.sent[0]
		n.sent = n.sent[1:]
		name, port, _ := strings.Cut(h.to, "/")
		for _, b := range n.bridges {
			if b.info.Name == name {
				b.run(t, func(tree *tree) { tree.receive(b.port(port).ID, h.frame) })
			}
		}
	}
	t.Fatal("the bridges go on talking")
}

// seconds lets time pass.
func (n *fakeNet) seconds(t *testing.T, count int) {
	t.Helper()
	for range count {
		for _, b := range n.bridges {
			b.run(t, func(tree *tree) { tree.tick(tree.second.Add(time.Second)) })
		}
		n.settle(t)
	}
}

// states returns the states of the ports in their order, a letter each.
func (b *fakeBridge) states() string {
	var s strings.Builder
	for _, p := range b.ports {
		s.WriteString(strings.ToUpper(p.State.String()[:1]))
	}
	return s.String()
}

func expect(t *testing.T, b *fakeBridge, want string) {
	t.Helper()
	if got := b.states(); got != want {
		t.Errorf("%s: %s, want %s\n%s", b.info.Name, got, want, b.log.String())
	}
	if len(b.unsaid) > 0 {
		t.Errorf("%s: the next agent would not know of %v", b.info.Name, b.unsaid)
	}
}

// pair returns two bridges with two cables between them and a station each.
func pair(t *testing.T) (n *fakeNet, root, other *fakeBridge) {
	n = newNet(t)
	root, other = n.add("a", "b", "host"), n.add("a", "b", "host")
	n.join(root.port("a"), other.port("a"))
	n.join(root.port("b"), other.port("b"))
	root.begin(t)
	other.begin(t)
	n.settle(t)
	n.seconds(t, 4)
	return n, root, other
}

func TestTreeOfTwo(t *testing.T) {
	n, root, other := pair(t)
	expect(t, root, "FFF")
	expect(t, other, "FDF")

	// The cable in use is cut: the other takes over without a timer.
	for _, b := range []*fakeBridge{root, other} {
		b.port("a").Up = false
		b.tree.linkDown(b.port("a").ID)
	}
	n.settle(t)
	expect(t, other, "DFF")
	if other.port("b").State != bridge.STPForwarding {
		t.Fatal("not healed")
	}

	// It is mended.
	for _, b := range []*fakeBridge{root, other} {
		b.port("a").Up = true
		if err := b.refresh(); err != nil {
			t.Fatal(err)
		}
	}
	n.settle(t)
	n.seconds(t, 4)
	expect(t, root, "FFF")
	expect(t, other, "FDF")
}

func TestTreePatchCable(t *testing.T) {
	n := newNet(t)
	a, b := n.add("to", "dev"), n.add("to", "dev")
	for from, to := range map[*fakeBridge]*fakeBridge{a: b, b: a} {
		p := from.port("to")
		p.Type, p.Index, p.Peer = bridge.TypePatch, 0, to.info.Name+"/to"
	}
	n.join(a.port("dev"), b.port("dev"))
	a.begin(t)
	b.begin(t)
	n.settle(t)
	n.seconds(t, 4)
	expect(t, a, "FF")
	if got := b.states(); got != "FD" && got != "DF" {
		t.Errorf("two ways between two bridges, and the states are %s", got)
	}
}

// TestTreeTakesOver: after a restart the ports have the states of the snapshot.
func TestTreeTakesOver(t *testing.T) {
	for _, c := range []struct {
		name  string
		spoil func(*fakeBridge)
		want  string
	}{
		{"as it was", func(*fakeBridge) {}, "FDF"},
		{"the datapath had closed a port", func(b *fakeBridge) { b.port("a").State = bridge.STPDiscarding }, "FDF"},
		{"another port is in the place of one", func(b *fakeBridge) {
			b.port("a").ID += 1 << 10
			b.port("a").State = bridge.STPDiscarding
		}, "DFF"},
		{"the datapath had opened a port", func(b *fakeBridge) { b.port("b").State = bridge.STPForwarding }, "FDF"},
		{"a link is gone", func(b *fakeBridge) { b.port("a").Up = false }, "DFF"},
		{"the bridge was made anew, with its address", func(b *fakeBridge) { b.info.Born++ }, "DDF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, _, other := pair(t)
			if err := (snapshot{of: other.tree.identity(), state: other.tree.proto.Snapshot()}).write(other.path(), time.Hour); err != nil {
				t.Fatal(err)
			}
			if err := stillRuns(other.path(), 2*time.Hour); err != nil {
				t.Fatal(err)
			}
			read, err := readSnapshot(other.path(), 2*time.Hour+100*time.Millisecond)
			if err != nil || read.paused != 100*time.Millisecond {
				t.Fatalf("%+v, %v", read, err)
			}
			if err := stillRuns(other.path(), clock.Boot()); err != nil {
				t.Fatal(err)
			}
			c.spoil(other)
			other.begin(t)
			expect(t, other, c.want)
		})
	}
}

// TestTreeKilled: whenever an agent is killed, ports that forward go on under the next one.
func TestTreeKilled(t *testing.T) {
	n, root, other := pair(t)
	kill := func(when string) {
		t.Helper()
		for _, b := range n.bridges {
			before, states, flushed := b.puts, b.states(), maps.Clone(b.flushed)
			b.begin(t)
			if b.puts != before || !maps.Equal(b.flushed, flushed) {
				t.Errorf("%s: the next agent of %s makes of %s %s, and flushes %v", when, b.info.Name, states, b.states(), b.flushed)
			}
		}
	}
	puts := root.puts + other.puts
	n.seconds(t, 4)
	if root.puts+other.puts != puts {
		t.Error("states are set again and again")
	}
	kill("at rest")
	for _, up := range []bool{false, true} {
		for _, b := range n.bridges {
			b.port("a").Up = up
			if !up {
				b.tree.linkDown(b.port("a").ID)
			}
			if err := b.refresh(); err != nil {
				t.Fatal(err)
			}
		}
		n.settle(t)
		expect(t, root, map[bool]string{false: "DFF", true: "FFF"}[up])
		if up {
			kill("after a link came")
		}
	}
	n.seconds(t, 4)
	expect(t, other, "FDF")
	root.plug("host2")
	if err := root.refresh(); err != nil {
		t.Fatal(err)
	}
	n.settle(t)
	kill("after a port came")
	expect(t, root, "FFFF")
}

// TestTreeKilledOften: a tree's timers expire although no agent lives that long, and each agent has the
// knowledge of the former.
func TestTreeKilledOften(t *testing.T) {
	n := newNet(t)
	b := n.add("a")
	b.port("a").Config.STPEdge = "off"
	b.begin(t)
	for range 7 {
		expect(t, b, "D")
		n.seconds(t, 3)
		b.begin(t)
	}
	n.seconds(t, 1)
	b.begin(t)
	expect(t, b, "F") // max age, then a hello time

	n, root, other := pair(t)
	n.seconds(t, 4)
	root.port("b").Config.STPPriority = 240
	if err := root.refresh(); err != nil {
		t.Fatal(err)
	}
	n.settle(t)
	n.seconds(t, 1)
	want := other.tree.proto.Status().Ports[1]
	other.begin(t)
	if got := other.tree.proto.Status().Ports[1]; got.DesignatedPort != want.DesignatedPort || got.DesignatedPort != rstp.NewPortID(240, 2) {
		t.Errorf("the next agent knows of port %v behind the one that waits, should be %v", got.DesignatedPort, want.DesignatedPort)
	}

	// a tree at rest writes nothing
	n.seconds(t, 4)
	before, err := os.Stat(other.path())
	if err != nil {
		t.Fatal(err)
	}
	n.seconds(t, 20)
	if after, err := os.Stat(other.path()); err != nil || !os.SameFile(before, after) {
		t.Errorf("a tree at rest writes its snapshot again, %v", err)
	}
}

// TestTreeKilledAnywhere: while the tree changes, one of three agents is killed before any of its
// actions. The tree ends up the same, has a loop at no second, and flushes all ports that must be
// flushed. When a root is lost, its old information circulates, and a lost message alone can make loops
// then (docs/stp.md).
func TestTreeKilledAnywhere(t *testing.T) {
	for _, c := range []struct {
		name    string
		changes []func(*fakeNet)
	}{
		{"a root that comes", []func(*fakeNet){
			func(n *fakeNet) { n.bridges[2].info.Config.STPPriority = 4096 },
		}},
		{"a cable that is cut and mended", []func(*fakeNet){
			func(n *fakeNet) { n.bridges[0].ports[0].Up, n.bridges[1].ports[1].Up = false, false },
			func(n *fakeNet) { n.bridges[0].ports[0].Up, n.bridges[1].ports[1].Up = true, true },
		}},
		{"a dear cable", []func(*fakeNet){
			func(n *fakeNet) { n.bridges[1].ports[1].Config.STPCost = 1_000_000 },
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			// run returns the numbers of actions before and after the changes, the states
			// of the ports at the end, and the ports that were flushed after the changes.
			run := func(kill int) (before, after int, states string, flushed map[string]bool) {
				n := newNet(t)
				for range 3 {
					n.add("next", "last")
				}
				for i, b := range n.bridges {
					n.join(b.port("next"), n.bridges[(i+1)%3].port("last"))
					b.begin(t)
				}
				n.settle(t)
				n.seconds(t, 10) // no topology change is signalled any more
				before, n.kill = n.done, kill
				for _, b := range n.bridges {
					clear(b.flushed)
				}
				for _, change := range c.changes {
					change(n)
					for _, b := range n.bridges {
						b.run(t, func(tree *tree) {
							if err := tree.refresh(b.info, slices.Clone(b.ports)); err != nil {
								t.Error(err)
							}
						})
					}
					for second := range 8 {
						n.settle(t)
						if all := n.states(); !strings.Contains(all, "D") && !strings.Contains(all, "L") {
							t.Errorf("killed before %d: a loop %d s after a change", kill-before, second)
						}
						n.seconds(t, 1)
					}
				}
				flushed = map[string]bool{}
				for _, b := range n.bridges {
					for port := range b.flushed {
						flushed[b.info.Name+"/"+port] = true
					}
					if len(b.unsaid) > 0 {
						t.Errorf("%s: the next agent would not know of %v", b.info.Name, b.unsaid)
					}
				}
				return before, n.done, n.states(), flushed
			}
			before, after, want, flushes := run(0)
			if after-before < 20 {
				t.Fatalf("only %d things happen", after-before)
			}
			for kill := before + 1; kill <= after; kill++ {
				_, _, states, flushed := run(kill)
				if states != want {
					t.Errorf("killed before %d: %s, want %s", kill-before, states, want)
				}
				for port := range flushes {
					if !flushed[port] {
						t.Errorf("killed before %d: %s is not flushed", kill-before, port)
					}
				}
			}
		})
	}
}

// states returns the states of the ports of all bridges.
func (n *fakeNet) states() string {
	var list []string
	for _, b := range n.bridges {
		list = append(list, b.states())
	}
	return strings.Join(list, " ")
}

// TestTreeBegins: without a snapshot, ports that forward are closed, except for hosts.
func TestTreeBegins(t *testing.T) {
	for _, kept := range []*snapshot{
		nil,
		{of: identity{Bridge: "02:00:00:00:00:01"}, state: []byte("{}")},
		{of: identity{Bridge: "02:00:00:00:00:77"}, state: []byte("{}")},
	} {
		n := newNet(t)
		b := n.add("a", "host")
		b.port("a").State = bridge.STPForwarding
		if kept != nil {
			if err := kept.write(b.path(), clock.Boot()); err != nil {
				t.Fatal(err)
			}
		}
		b.begin(t)
		expect(t, b, "DF")
		n.seconds(t, 4) // there is no other bridge on that port
		expect(t, b, "FF")
	}
}

func TestTreePorts(t *testing.T) {
	n, root, other := pair(t)
	// one port leaves, another takes its place
	other.ports[1].ID += 1 << 10
	other.ports[1].Name, other.ports[1].State = "c", bridge.STPDiscarding
	other.plug("d")
	if err := other.refresh(); err != nil {
		t.Fatal(err)
	}
	n.settle(t)
	n.seconds(t, 4)
	expect(t, other, "FDFF")
	other.tree.receive(1<<10|2, []byte("of the port that left"))
	if strings.Contains(other.log.String(), "refused") {
		t.Error("a frame of a port that has left is looked at")
	}
	// a contradictory BPDU is logged once
	for range 3 {
		other.tree.receive(other.ports[0].ID, []byte("no BPDU at all"))
	}
	if got := strings.Count(other.log.String(), "a BPDU is refused"); got != 1 {
		t.Errorf("a bad BPDU is logged %d times:\n%s", got, other.log.String())
	}
	expect(t, root, "FFF")
}

// TestTreeBroken: if a port cannot be closed, none is opened, and the tree reports that it must begin
// anew.
func TestTreeBroken(t *testing.T) {
	n, _, other := pair(t)
	other.refuse["a"] = errors.New("no")
	other.port("a").Up = false
	sent := len(other.said)
	clear(other.said)
	other.tree.linkDown(other.port("a").ID)
	n.settle(t)
	if other.tree.broken == nil {
		t.Error("nothing is broken")
	}
	if sent == 0 || len(other.said) > 0 {
		t.Error("something is said of a way that could not be closed")
	}
	if other.port("b").State != bridge.STPDiscarding {
		t.Error("a way is opened while another could not be closed")
	}
}

func TestTreeTime(t *testing.T) {
	_, root, _ := pair(t)
	hellos := func() uint64 { return root.tree.proto.Status().Ports[0].Counters.TxRST }
	before, begin := hellos(), root.tree.second
	root.tree.tick(begin.Add(time.Hour))
	if got := hellos() - before; got > 1 {
		t.Errorf("an hour without the process is made up for by %d BPDUs", got)
	}
	if !root.tree.second.Equal(begin.Add(time.Hour)) {
		t.Error("the clock is not set")
	}
	root.tree.tick(begin.Add(time.Hour + 999*time.Millisecond))
	if !root.tree.second.Equal(begin.Add(time.Hour)) {
		t.Error("a second has passed that has not")
	}
}

// A process that stood still acts before it has read the messages that came meanwhile. That is no
// silence in which ports become edges and roots expire.
func TestTreeStoodStill(t *testing.T) {
	for _, stall := range []time.Duration{2 * time.Second, 3 * time.Second, 10 * time.Second} {
		n := newNet(t)
		root, other := n.add("a", "b"), n.add("a", "b")
		for _, b := range n.bridges {
			b.info.Config.STPHello = time.Second
		}
		n.join(root.port("a"), other.port("a"))
		n.join(root.port("b"), other.port("b"))
		root.port("b").Up, other.port("b").Up = false, false
		root.begin(t)
		other.begin(t)
		n.settle(t)
		n.seconds(t, 8)
		expect(t, other, "FD")
		for _, b := range []*fakeBridge{other, root} {
			b.port("b").Up = true
			if err := b.refresh(); err != nil {
				t.Fatal(err)
			}
			b.run(t, func(tree *tree) { _, _ = tree.commit() })
		}
		other.run(t, func(tree *tree) { tree.tick(tree.second.Add(stall)) })
		other.run(t, func(tree *tree) { _, _ = tree.commit() })
		expect(t, other, "FD")
		if s := other.tree.proto.Status(); s.RootPort == 0 {
			t.Errorf("after %v the root is lost", stall)
		}
		n.settle(t)
		n.seconds(t, 8)
		expect(t, root, "FF")
		expect(t, other, "FD")
	}
}

func TestReadSnapshot(t *testing.T) {
	path := filepath.Join(t.TempDir(), "7-br0.stp")
	if s, err := readSnapshot(path, 0); s != nil || err != nil {
		t.Errorf("none: %v, %v", s, err)
	}
	for text, why := range map[string]string{
		"":                         "empty",
		"12\n{}":                   "a stamp that is too short",
		"99999999999999999999\n{}": "too late",
		"00000000000000001000\n{}": "of the future",
		"-0000000000000000012\n{}": "before the beginning",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if s, err := readSnapshot(path, 999); err == nil {
			t.Errorf("%s: %+v", why, s)
		}
	}
	if err := os.Truncate(path, maxSnapshot+1); err != nil {
		t.Fatal(err)
	}
	if s, err := readSnapshot(path, 999); err == nil || !strings.HasSuffix(err.Error(), "it has more than 8388608 bytes") {
		t.Errorf("a file that is too large: %+v, %v", s, err)
	}
}

var _ rstp.Output = (*tree)(nil)
var _ holder = (*bridge.Control)(nil)

// full returns two bridges as pair does, whose folder is a small disk. At first they have one cable, of
// their ports b, and the snapshot has that. Then the disk fills up, or becomes read-only after an
// error, and a second cable makes a ring.
func full(t *testing.T, readOnly bool) (root, other *fakeBridge, n *fakeNet, mend func()) {
	n = newNet(t)
	if err := unix.Mount("tmpfs", n.dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("mounts a disk, which takes root: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(n.dir, 0); err != nil {
			t.Error(err)
		}
	})
	root, other = n.add("a", "b", "host"), n.add("a", "b", "host")
	n.join(root.port("a"), other.port("a"))
	n.join(root.port("b"), other.port("b"))
	cable := func(up bool) {
		for _, b := range []*fakeBridge{root, other} {
			b.port("a").Up = up
			if b.tree != nil {
				if err := b.refresh(); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	cable(false)
	root.begin(t)
	other.begin(t)
	n.settle(t)
	n.seconds(t, 8)
	expect(t, root, "DFF")
	expect(t, other, "DFF")
	fill := filepath.Join(n.dir, "fill")
	if readOnly {
		if err := unix.Mount("", n.dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
			t.Fatal(err)
		}
	} else if err := os.WriteFile(fill, make([]byte, 64<<10), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("the disk is not full: %v", err)
	}
	cable(true)
	n.settle(t)
	n.seconds(t, 4)
	return root, other, n, func() {
		if !readOnly {
			if err := os.Remove(fill); err != nil {
				t.Fatal(err)
			}
		} else if err := unix.Mount("", n.dir, "", unix.MS_REMOUNT, ""); err != nil {
			t.Fatal(err)
		}
	}
}

// TestTreeFullDisk: if a snapshot cannot be written, the next agent does not use the former one, which
// would open a port that the spanning tree has closed since.
func TestTreeFullDisk(t *testing.T) {
	_, other, n, mend := full(t, false)
	if got := other.states(); got != "FDF" {
		t.Fatalf("the ring is %s, want FDF", got)
	}
	for _, b := range n.bridges {
		if _, err := os.Lstat(b.path() + ".next"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a part of a snapshot is left on the full disk: %v", err)
		}
	}
	other.begin(t)
	// DDF without a snapshot; the former snapshot may have made room for a new one
	if got := other.states(); got != "DDF" && got != "FDF" {
		t.Errorf("the next agent has the ports %s at first, want DDF or FDF", got)
	}
	mend()
	n.settle(t)
	n.seconds(t, 4)
	if got := other.states(); got != "FDF" {
		t.Errorf("the next agent comes to %s, want FDF", got)
	}
	other.unsaid = nil // without a snapshot the next agent starts from nothing
	other.begin(t)
	expect(t, other, "FDF")
}

// TestTreeReadOnlyDisk: if the snapshot can be neither written nor removed, it is marked as doubtful at
// the bridge, and the next agent ignores it.
func TestTreeReadOnlyDisk(t *testing.T) {
	_, other, n, mend := full(t, true)
	if got := other.states(); got != "FDF" || !other.doubted {
		t.Fatalf("the ring is %s, want FDF, and the snapshot is doubted: %v", got, other.doubted)
	}
	var st BridgeStatus
	if other.tree.status(&st); !strings.Contains(st.Tree.Unsaved, "read-only") {
		t.Errorf("the status has no word of the snapshot: %q", st.Tree.Unsaved)
	}
	other.begin(t)
	if got := other.states(); got != "DDF" {
		t.Errorf("the next agent has the ports %s at first, want DDF", got)
	}
	mend()
	n.settle(t)
	n.seconds(t, 4)
	if got := other.states(); got != "FDF" || other.doubted {
		t.Errorf("the next agent comes to %s, want FDF, and the snapshot is doubted: %v", got, other.doubted)
	}
	if other.tree.status(&st); st.Tree.Unsaved != "" {
		t.Errorf("the status has %q after the snapshot was kept", st.Tree.Unsaved)
	}
	other.unsaid = nil // without a snapshot the next agent starts from nothing
	other.begin(t)
	expect(t, other, "FDF")
}

// TestTreeStaleSnapshot: as long as the next agent would read an outdated snapshot, no port is opened
// and no news is sent.
func TestTreeStaleSnapshot(t *testing.T) {
	root, other, n, mend := full(t, true)
	for _, b := range []*fakeBridge{root, other} {
		b.noDoubt = errors.New("no")
		b.doubted, b.tree.keeper.doubted, b.tree.changed = false, false, true
		b.unsaid = nil // until now the next agent would have started from nothing
		delete(b.tree.told, "save")
	}
	n.settle(t)
	clear(other.said)
	for _, b := range []*fakeBridge{root, other} {
		b.port("a").Up = false
		b.tree.linkDown(b.port("a").ID)
	}
	n.settle(t)
	n.seconds(t, 4)
	if got := other.states(); got != "DDF" || len(other.said) > 0 {
		t.Errorf("the ports are %s, want DDF, and it says %v", got, other.said)
	}
	if !strings.Contains(other.log.String(), "no port is opened") {
		t.Errorf("the log has no word of it:\n%s", other.log.String())
	}
	mend()
	n.settle(t)
	n.seconds(t, 4)
	if got := other.states(); got != "DFF" {
		t.Errorf("the ports are %s once the snapshot can be kept, want DFF", got)
	}
	expect(t, root, "DFF")
}
