// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"container/heap"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"slices"
	"testing"
	"time"
)

// A network is bridges and their links, in virtual time. All changes are events; the
// network is checked after each.
type network struct {
	t     *testing.T
	rand  *rand.Rand
	now   time.Duration
	seq   int
	queue events

	bridges  []*node
	segments []*segment
	loss     float64 // of BPDUs

	opened   bool           // since the last check, a port or a segment has been opened
	looped   time.Duration  // since when there is a loop, -1 if there is none
	longest  time.Duration  // the longest time that a loop has lasted
	refusals map[Reason]int // of BPDUs
}

// A node is a bridge as its neighbours and its frames see it.
type node struct {
	n      *network
	id     int
	config Config
	bridge *Bridge       // nil while its process does not run
	ports  []*attachment // by number - 1
}

// An attachment is a port of a node on its segment.
type attachment struct {
	node    *node
	number  uint16
	config  PortConfig
	segment *segment
	state   State // in the datapath
	flushed int
}

// A segment is a link of two ports, or a hub with more.
type segment struct {
	up    bool
	epoch int // number of cuts: frames on their way at a cut are lost
	delay time.Duration
	ends  []*attachment
}

type event struct {
	at  time.Duration
	seq int
	do  func()
}

type events []event

func (q events) Len() int { return len(q) }
func (q events) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].seq < q[j].seq
}
func (q events) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *events) Push(x any)   { *q = append(*q, x.(event)) }
func (q *events) Pop() any {
	last := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return last
}

func (n *network) after(d time.Duration, do func()) {
	n.seq++
	heap.Push(&n.queue, event{n.now + d, n.seq, do})
}

func (n *network) addNode(c Config) *node {
	d := &node{n: n, id: len(n.bridges), config: c}
	d.config.MAC = net.HardwareAddr{2, 0, 0, 0, 0, byte(d.id)}
	n.bridges = append(n.bridges, d)
	d.start()
	var tick func()
	tick = func() {
		if d.bridge != nil {
			d.bridge.Tick()
		}
		n.after(time.Second, tick)
	}
	n.after(time.Duration(n.rand.Int64N(int64(time.Second))), tick)
	return d
}

// start starts a process for the node, without a snapshot.
func (d *node) start() {
	b, err := New(d.config, d)
	if err != nil {
		d.n.t.Fatal(err)
	}
	d.bridge = b
	for _, a := range d.ports {
		if err := b.AddPort(a.number, a.config); err != nil {
			d.n.t.Fatal(err)
		}
		b.SetLink(a.number, a.segment.up)
	}
}

// resume starts a process for the node from a snapshot.
func (d *node) resume(text []byte, paused time.Duration) {
	var ports []Port
	for _, a := range d.ports {
		ports = append(ports, Port{Number: a.number, Config: a.config, Up: a.segment.up, State: a.state})
	}
	b, err := Restore(text, paused, d.config, ports, d)
	if err != nil {
		d.n.t.Fatal(err)
	}
	d.bridge = b
}

func (n *network) connect(delay time.Duration, costs []uint32, nodes ...*node) *segment {
	s := &segment{up: true, delay: delay}
	n.segments = append(n.segments, s)
	for i, d := range nodes {
		a := &attachment{node: d, number: uint16(len(d.ports) + 1), segment: s}
		a.config = DefaultPort(1000)
		a.config.Cost = costs[i%len(costs)]
		a.config.PointToPoint = len(nodes) == 2
		d.ports = append(d.ports, a)
		s.ends = append(s.ends, a)
		if err := d.bridge.AddPort(a.number, a.config); err != nil {
			n.t.Fatal(err)
		}
	}
	for _, a := range s.ends {
		a.node.bridge.SetLink(a.number, true)
	}
	return s
}

// The Output of a node.

func (d *node) Send(port uint16, frame []byte) {
	from := d.ports[port-1]
	s := from.segment
	if !s.up {
		d.n.t.Errorf("%v: bridge %d sends by port %d, which has no link", d.n.now, d.id, port)
	}
	epoch := s.epoch
	for _, to := range s.ends {
		if to == from || d.n.rand.Float64() < d.n.loss {
			continue
		}
		d.n.after(s.delay, func() {
			if s.epoch == epoch && to.node.bridge != nil {
				if err := to.node.bridge.Receive(to.number, slices.Clone(frame)); err != nil {
					d.n.refusals[err.(*Refusal).Reason]++
				}
			}
		})
	}
}

func (d *node) SetState(port uint16, s State) {
	d.ports[port-1].state = s
	if s == Forwarding {
		d.n.opened = true
	}
}

func (d *node) Flush(port uint16) { d.ports[port-1].flushed++ }

func (d *node) Report(e Event) {
	if e.Kind == Stuck {
		d.n.t.Errorf("%v: bridge %d: %v", d.n.now, d.id, e)
	}
}

func (n *network) cut(s *segment) {
	s.up = false
	s.epoch++
	n.link(s)
}

func (n *network) mend(s *segment) {
	s.up = true
	n.opened = true
	n.link(s)
}

func (n *network) link(s *segment) {
	for _, a := range s.ends {
		if a.node.bridge != nil {
			a.node.bridge.SetLink(a.number, s.up)
		}
	}
}

// run lets time pass, and checks for loops after each event.
func (n *network) run(d time.Duration) {
	for end := n.now + d; ; {
		if len(n.queue) == 0 || n.queue[0].at > end {
			n.now = end
			return
		}
		n.step()
	}
}

func (n *network) step() {
	e := heap.Pop(&n.queue).(event)
	n.now = e.at
	e.do()
	n.look()
}

// look records loops. A loop can begin only after something was opened.
func (n *network) look() {
	if n.looped < 0 && !n.opened {
		return
	}
	n.opened = false
	loop := n.forwarding().loop
	switch {
	case loop && n.looped < 0:
		n.looped = n.now
	case !loop && n.looped >= 0:
		n.longest = max(n.longest, n.now-n.looped)
		n.looped = -1
	}
}

// A forest is sets of bridges and segments that are connected.
type forest struct {
	parent []int
	loop   bool // two connected sets were connected again
}

func newForest(size int) *forest {
	f := &forest{parent: make([]int, size)}
	for i := range f.parent {
		f.parent[i] = i
	}
	return f
}

func (f *forest) find(i int) int {
	for f.parent[i] != i {
		f.parent[i] = f.parent[f.parent[i]]
		i = f.parent[i]
	}
	return i
}

func (f *forest) join(i, j int) {
	i, j = f.find(i), f.find(j)
	f.loop = f.loop || i == j
	f.parent[i] = j
}

// forwarding returns the forest of all connections that forward frames: bridges,
// then segments.
func (n *network) forwarding() *forest {
	f := newForest(len(n.bridges) + len(n.segments))
	for i, s := range n.segments {
		for _, a := range s.ends {
			if s.up && a.state == Forwarding {
				f.join(a.node.id, len(n.bridges)+i)
			}
		}
	}
	return f
}

// links returns the forest of all connections.
func (n *network) links() *forest {
	f := newForest(len(n.bridges) + len(n.segments))
	for i, s := range n.segments {
		for _, a := range s.ends {
			if s.up {
				f.join(a.node.id, len(n.bridges)+i)
			}
		}
	}
	return f
}

// wrong returns what is wrong for a network at rest, "" for nothing. Each component
// must have a tree whose root is its best bridge, by the shortest ways.
func (n *network) wrong() string {
	is, should := n.forwarding(), n.links()
	if is.loop {
		return "a loop"
	}
	for i, s := range n.segments {
		if s.up && !slices.ContainsFunc(s.ends, func(a *attachment) bool { return a.state == Forwarding }) {
			return fmt.Sprintf("segment %d is cut off", i)
		}
	}
	for i := range n.bridges {
		for j := range i {
			if should.find(i) == should.find(j) && is.find(i) != is.find(j) {
				return fmt.Sprintf("bridges %d and %d are not connected", i, j)
			}
		}
	}
	cost := n.costs()
	for _, d := range n.bridges {
		best := d
		for _, e := range n.bridges {
			if should.find(e.id) == should.find(d.id) && NewBridgeID(e.config.Priority, e.config.MAC) < NewBridgeID(best.config.Priority, best.config.MAC) {
				best = e
			}
		}
		if d.bridge == nil {
			return fmt.Sprintf("bridge %d is not there", d.id)
		}
		s := d.bridge.Status()
		if want := NewBridgeID(best.config.Priority, best.config.MAC); s.Root != want {
			return fmt.Sprintf("bridge %d has root %v instead of %v", d.id, s.Root, want)
		}
		if want := cost(best, d); s.RootCost != want {
			return fmt.Sprintf("bridge %d has cost %d instead of %d", d.id, s.RootCost, want)
		}
	}
	return ""
}

// costs returns the least cost from a root to each bridge (Bellman and Ford).
func (n *network) costs() func(root, to *node) uint32 {
	known := make(map[*node][]uint32)
	return func(root, to *node) uint32 {
		if c, ok := known[root]; ok {
			return c[to.id]
		}
		c := make([]uint32, len(n.bridges))
		for i := range c {
			c[i] = math.MaxUint32 / 2
		}
		c[root.id] = 0
		for changed := true; changed; {
			changed = false
			for _, s := range n.segments {
				for _, from := range s.ends {
					for _, to := range s.ends {
						if d := c[from.node.id] + to.config.Cost; s.up && d < c[to.node.id] {
							c[to.node.id] = d
							changed = true
						}
					}
				}
			}
		}
		known[root] = c
		return c[to.id]
	}
}

// settle runs until nothing is wrong, and returns how long that took. The test fails
// if it takes longer than the bound.
func (n *network) settle(bound time.Duration) time.Duration {
	start := n.now
	for {
		wrong := n.wrong()
		if wrong == "" {
			return n.now - start
		}
		if n.now-start > bound {
			n.t.Fatalf("%v: %s, %v after the change", n.now, wrong, n.now-start)
		}
		n.step()
	}
}

// mesh returns a network of connected bridges: a random tree and further links.
func mesh(t *testing.T, seed uint64, bridges, links, hubs int, config func(int, *Config)) *network {
	n := &network{t: t, rand: rand.New(rand.NewPCG(seed, 0)), looped: -1, refusals: make(map[Reason]int)}
	for i := range bridges {
		c := DefaultConfig(nil)
		c.Priority = uint16(n.rand.IntN(16)) * 4096
		if config != nil {
			config(i, &c)
		}
		n.addNode(c)
	}
	connect := func(nodes ...*node) {
		costs := []uint32{CostOf(1000), CostOf([]uint32{100, 1000, 10_000}[n.rand.IntN(3)])}
		n.connect(time.Duration(1+n.rand.Int64N(int64(maxDelay))), costs, nodes...)
	}
	for i := 1; i < bridges; i++ {
		connect(n.bridges[i], n.bridges[n.rand.IntN(i)])
	}
	for len(n.segments) < links {
		i, j := n.rand.IntN(bridges), n.rand.IntN(bridges)
		if i != j { // the same pair again makes a double link
			connect(n.bridges[i], n.bridges[j])
		}
	}
	for range hubs {
		var nodes []*node
		for _, i := range n.rand.Perm(bridges)[:3+n.rand.IntN(2)] {
			nodes = append(nodes, n.bridges[i])
		}
		connect(nodes...)
	}
	return n
}

// pick chooses a segment to cut, or to mend if some are cut already.
func (n *network) pick(most int) *segment {
	var cut []*segment
	for _, s := range n.segments {
		if !s.up {
			cut = append(cut, s)
		}
	}
	if n.rand.IntN(most) < len(cut) {
		return cut[n.rand.IntN(len(cut))]
	}
	for {
		if s := n.segments[n.rand.IntN(len(n.segments))]; s.up {
			return s
		}
	}
}

// maxDelay is the longest time that a message takes on a link.
const maxDelay = 2 * time.Millisecond

// theBound is the longest time in which the standard's timers result in a tree, from
// any state: old information expires, and a port waits twice. It is valid for the
// settings of the meshes.
const theBound = (20 + 2*15) * time.Second

// quantiles returns how long changes took, as text.
func quantiles(took []time.Duration) string {
	slices.Sort(took)
	at := func(q float64) time.Duration { return took[int(q*float64(len(took)-1))].Round(time.Microsecond) }
	return fmt.Sprintf("until whole: half within %v, 90%% %v, 99%% %v, all %v", at(0.5), at(0.9), at(0.99), at(1))
}

// 1000 links are cut and mended in meshes of 50 bridges, with RSTP and only
// point-to-point links.
func TestMesh(t *testing.T) {
	var took []time.Duration
	var longest time.Duration
	// With most of these, agreements that cross with news make loops (see
	// agreesWithThis).
	for _, seed := range []uint64{0, 1, 14, 33, 36, 51, 82, 100, 104, 117} {
		n := mesh(t, seed, 50, 100, 0, nil)
		t.Logf("seed %d: a tree after %v", seed, n.settle(theBound))
		for range 200 { // about half of them mend a cut link
			n.run(time.Duration(n.rand.Int64N(int64(10 * time.Second))))
			if s := n.pick(20); s.up {
				n.cut(s)
			} else {
				n.mend(s)
			}
			n.look()
			took = append(took, n.settle(theBound))
		}
		n.run(time.Minute)
		if wrong := n.wrong(); wrong != "" {
			t.Errorf("seed %d: %s a minute later", seed, wrong)
		}
		longest = max(longest, n.longest)
	}
	t.Logf("%d changes; %s; longest loop %v", len(took), quantiles(took), longest)
	// The protocol allows some changes to take seconds: when the way to a root
	// is lost, the old information circulates until it is too old or too
	// expensive.
	if at := took[len(took)*9/10]; at > 100*time.Millisecond {
		t.Errorf("one of ten changes takes longer than %v", at)
	}
	// No loop lasts longer than the message that ends it is on its way.
	if longest > maxDelay {
		t.Errorf("a loop for %v", longest)
	}
}

// A cut link of a ring is healed in the time that messages take. Without a second
// way no old information can circulate. From 14 bridges on, some send more messages
// than TxHoldCount permits in one second.
func TestRing(t *testing.T) {
	for size := 3; size <= 20; size++ {
		n := mesh(t, uint64(size), 0, 0, 0, nil)
		for range size {
			n.addNode(DefaultConfig(nil))
		}
		for i, d := range n.bridges {
			n.connect(time.Millisecond, []uint32{20_000}, d, n.bridges[(i+1)%size])
		}
		n.settle(theBound)
		var most time.Duration
		for _, s := range n.segments {
			for _, change := range []func(*segment){n.cut, n.mend} {
				n.run(10 * time.Second)
				change(s)
				n.look()
				most = max(most, n.settle(theBound))
			}
		}
		bound := time.Duration(size) * time.Millisecond
		if size > 13 {
			bound = 2 * time.Second
		}
		if most > bound || n.longest > 0 {
			t.Errorf("%d bridges: %v until a ring is whole again, loops of %v", size, most, n.longest)
		}
	}
}

// disturb makes one of many changes to a network, and returns a description.
func (n *network) disturb() string {
	switch d := n.bridges[n.rand.IntN(len(n.bridges))]; n.rand.IntN(6) {
	case 0:
		d.config.Priority = uint16(n.rand.IntN(16)) * 4096
		if d.bridge != nil {
			d.bridge.SetConfig(d.config)
		}
		return "priority"
	case 1:
		a := d.ports[n.rand.IntN(len(d.ports))]
		a.config.Cost = uint32(1 + n.rand.IntN(200_000))
		if d.bridge != nil {
			d.bridge.SetPort(a.number, a.config)
		}
		return "cost"
	case 2:
		if d.bridge != nil {
			text := d.bridge.Snapshot()
			paused := time.Duration(n.rand.Int64N(int64(5 * time.Second)))
			d.bridge = nil
			n.after(paused, func() { d.resume(text, paused) })
		}
		return "pause"
	case 3:
		if d.bridge != nil {
			d.bridge = nil
			n.after(time.Duration(n.rand.Int64N(int64(5*time.Second))), d.start)
		}
		return "restart"
	default:
		if s := n.pick(20); s.up {
			n.cut(s)
		} else {
			n.mend(s)
		}
		return "link"
	}
}

// Meshes with all kinds of changes, several at once.
func TestDisturbed(t *testing.T) {
	for _, c := range []struct {
		name   string
		hubs   int
		loss   float64
		config func(int, *Config)
	}{
		{"hubs", 10, 0, nil},
		{"loss", 5, 0.02, nil},
		{"half of the bridges speak STP", 5, 0, func(i int, c *Config) {
			if i%2 == 0 {
				c.Version = STP
			}
		}},
		{"all bridges speak STP", 5, 0, func(i int, c *Config) { c.Version = STP }},
	} {
		t.Run(c.name, func(t *testing.T) {
			var took []time.Duration
			var longest time.Duration
			for seed := range uint64(3) {
				n := mesh(t, seed, 50, 80, c.hubs, c.config)
				n.settle(theBound)
				for range 30 {
					for range 1 + n.rand.IntN(3) {
						n.disturb()
						n.look()
						n.run(time.Duration(n.rand.Int64N(int64(time.Second))))
					}
					n.loss = c.loss
					n.run(time.Duration(n.rand.Int64N(int64(10 * time.Second))))
					n.loss = 0
					took = append(took, n.settle(theBound+5*time.Second)) // a pause is over then
				}
				n.run(2 * theBound)
				if wrong := n.wrong(); wrong != "" {
					t.Errorf("seed %d: %s, long after", seed, wrong)
				}
				longest = max(longest, n.longest)
			}
			t.Logf("%s; longest loop %v", quantiles(took), longest)
			if longest > maxDelay {
				t.Errorf("a loop for %v", longest)
			}
		})
	}
}

// A tree at rest has nothing to save, whatever hellos come.
func TestSavedAtRest(t *testing.T) {
	for name, config := range map[string]func(int, *Config){
		"RSTP": nil,
		"STP":  func(_ int, c *Config) { c.Version = STP },
		"half": func(i int, c *Config) { c.Version = Version(i % 2 * 2) },
	} {
		n := mesh(t, 1, 20, 40, 3, config)
		n.settle(theBound)
		n.run(2 * theBound)
		for _, d := range n.bridges {
			d.bridge.Snapshot()
		}
		for range 50 {
			n.run(time.Second)
			for _, d := range n.bridges {
				if d.bridge.Unsaved() {
					t.Fatalf("%s: %v: bridge %d has %+v", name, n.now, d.id, d.bridge.Status())
				}
			}
		}
	}
}

// Bridges whose processes stop and start again disturb nothing in a network at rest.
func TestPauseIsNotSeen(t *testing.T) {
	n := mesh(t, 1, 50, 100, 5, nil)
	n.settle(theBound)
	n.run(2 * theBound)
	type seen struct {
		state   State
		flushed int
	}
	look := func() (all []seen) {
		for _, d := range n.bridges {
			for _, a := range d.ports {
				all = append(all, seen{a.state, a.flushed})
			}
		}
		return all
	}
	before := look()
	for _, d := range n.bridges {
		text := d.bridge.Snapshot()
		paused := time.Duration(n.rand.Int64N(int64(3 * time.Second)))
		d.bridge = nil
		n.run(paused)
		d.resume(text, paused)
		n.run(10 * time.Second)
	}
	if after := look(); !slices.Equal(before, after) {
		t.Errorf("ports changed:\n%v\n%v", before, after)
	}
}
