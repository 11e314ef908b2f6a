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

// A network is bridges joined by cables, with a station at each.
type network struct {
	t      testing.TB
	nodes  []*node
	cables []*cable
	number uint32 // number of the last frame
}

// A node is a bridge, in a namespace of its own or together with others.
type node struct {
	*netlab.Lab
	bridge  string
	hook    string
	agent   *runner // agent of the namespace, nil for a foreign bridge
	end     *netlab.End
	station netlab.MAC
	foreign foreign // nil for a bridge of bascule
	ours    *bridge.Switch
}

// A foreign bridge runs spanning tree, too.
type foreign interface {
	view() view
	join(port string)
	flush() // returns when its received frames are sent, and its received information is in force
}

// A view is a bridge's own report of its spanning tree.
type view struct {
	root  string // identifier: 8000.020000000001
	isIt  bool   // it is the root
	ports map[string]place
}

// A place is a port's role and state in the tree.
type place struct{ role, state string }

// settled reports whether the port has reached its final state.
func (p place) settled() bool {
	switch p.role {
	case "root", "designated":
		return p.state == "forwarding"
	case "alternate":
		return p.state == "discarding"
	}
	return false
}

// A cable joins two ports.
type cable struct {
	nodes [2]*node
	ports [2]string
	patch bool
	cut   bool
}

func (c *cable) String() string {
	return fmt.Sprintf("%v/%s-%v/%s", c.nodes[0], c.ports[0], c.nodes[1], c.ports[1])
}

func (n *node) String() string { return n.Switch.Name + "/" + n.bridge }

// quick are the shortest times that the standard allows (17.14): a port without an answering
// neighbour forwards after 8 s, and received information expires after 6 s.
var quick = []string{"--stp-hello", "1s", "--stp-max-age", "6s", "--stp-forward-delay", "4s"}

// newNetwork makes n bridges of bascule, each in a namespace and with an agent of its own. The
// first one is the root.
func newNetwork(t testing.TB, n int, hook string, settings ...string) *network {
	t.Helper()
	w := &network{t: t}
	for range n {
		w.add(w.lab(), nil, "br0", hook, settings...)
	}
	return w
}

// lab returns a namespace for another bridge.
func (w *network) lab() *netlab.Lab {
	w.t.Helper()
	if len(w.nodes) == 0 {
		return netlab.New(w.t)
	}
	return w.nodes[0].Beside()
}

// add adds a bridge to the namespace of an agent, or, if r is nil, of an agent that is started
// later.
func (w *network) add(l *netlab.Lab, r *runner, bridge, hook string, settings ...string) *node {
	w.t.Helper()
	if r == nil {
		r = newRunner(w.t, l)
		r.start()
	}
	n := w.place(&node{Lab: l, bridge: bridge, hook: hook, agent: r})
	l.Bascule(slices.Concat([]string{"bridge", "add", bridge, "--stp", "rstp", "--stp-priority", fmt.Sprint(4096 * len(w.nodes))}, settings)...)
	l.Wait("the agent to serve "+bridge, func() bool { return n.tree() != nil })
	l.AddPort(bridge, hook, n.end, "--stp-edge", "on")
	return n
}

// place makes a node's end.
func (w *network) place(n *node) *node {
	w.t.Helper()
	w.nodes = append(w.nodes, n)
	n.station = netlab.Station(len(w.nodes))
	ends := n.NewEnds(1)
	n.end = ends[0]
	return n
}

// tree returns the agent's status of the bridge, nil for none.
func (n *node) tree() *agent.TreeStatus {
	for _, b := range n.agent.status().Namespaces[0].Bridges {
		if b.Name == n.bridge {
			return b.Tree
		}
	}
	return nil
}

// states returns the states of the ports in the datapath. A port that the spanning tree has
// opened forwards when its snapshot is written, a moment after the agent reports it.
func (n *node) states() map[string]string {
	n.agent.t.Helper()
	if n.ours == nil {
		s, err := bridge.Open(n.Switch.Name)
		must(n.agent.t, err)
		n.agent.t.Cleanup(func() { s.Close() })
		n.ours = s
	}
	list, _ := n.ours.Ports(n.bridge) // fails while it is being made
	states := map[string]string{}
	for _, p := range list {
		states[p.Name] = p.State
	}
	return states
}

func (n *node) view() view {
	if n.foreign != nil {
		return n.foreign.view()
	}
	v := view{ports: map[string]place{}}
	if tree := n.tree(); tree != nil {
		v.root, v.isIt = tree.Root.String(), tree.Root == tree.Bridge
		states := n.states()
		for _, p := range tree.Ports {
			role := p.Role.String()
			if p.Role == rstp.BackupPort {
				role = rstp.AlternatePort.String()
			}
			state := p.State.String()
			if states[p.Name] != state {
				state = "becoming " + state
			}
			v.ports[p.Name] = place{role, state}
		}
	}
	return v
}

// join adds a device as a port.
func (n *node) join(port string) {
	if n.foreign != nil {
		n.foreign.join(port)
		return
	}
	r, err := n.Run("port", "add", n.bridge, port, "--hook", n.hook) // it warns of features that XDP loses
	must(n.agent.t, err)
	if r.Exit != 0 {
		n.agent.t.Fatal(r)
	}
}

// cable joins two bridges by a veth.
func (w *network) cable(a, b int) *cable {
	w.t.Helper()
	c := &cable{nodes: [2]*node{w.nodes[a], w.nodes[b]}}
	k := len(w.cables)
	c.ports = [2]string{fmt.Sprintf("c%da", k), fmt.Sprintf("c%db", k)}
	w.cables = append(w.cables, c)
	c.nodes[0].Cable(c.ports[0], c.nodes[1].Lab, c.ports[1])
	for i, n := range c.nodes {
		n.join(c.ports[i])
	}
	return c
}

// patch joins two bridges of a namespace by a patch cable.
func (w *network) patch(a, b int) *cable {
	w.t.Helper()
	c := &cable{nodes: [2]*node{w.nodes[a], w.nodes[b]}, patch: true}
	k := len(w.cables)
	c.ports = [2]string{fmt.Sprintf("c%da", k), fmt.Sprintf("c%db", k)}
	w.cables = append(w.cables, c)
	c.plug()
	return c
}

// pull cuts the cable at one side.
func (c *cable) pull(side int) {
	c.cut = true
	if c.patch {
		c.nodes[side].Bascule("port", "del", c.nodes[side].bridge, c.ports[side])
		return
	}
	c.nodes[side].Pull(c.ports[side])
}

// plug mends the cable.
func (c *cable) plug() {
	c.cut = false
	if c.patch {
		c.nodes[0].Bascule("port", "add", c.nodes[0].bridge, c.ports[0], "--type", "patch", "--peer", c.nodes[1].bridge+"/"+c.ports[1])
		return
	}
	for i, n := range c.nodes {
		n.Plug(c.ports[i])
	}
}

// ring joins all bridges into a ring.
func (w *network) ring() {
	w.t.Helper()
	for i := range w.nodes {
		w.cable(i, (i+1)%len(w.nodes))
	}
}

// mesh joins each bridge with each other.
func (w *network) mesh() {
	w.t.Helper()
	for i := range w.nodes {
		for j := range i {
			w.cable(j, i)
		}
	}
}

// unsettled returns why the bridges do not form one tree, or "" if they do. used are the cables
// of the tree.
func (w *network) unsettled() (why string, used []*cable) {
	views := map[*node]view{}
	root, roots := "", 0
	for _, n := range w.nodes {
		v := n.view()
		views[n] = v
		if v.isIt {
			roots++
		}
		if root == "" {
			root = v.root
		}
		if v.root != root {
			return fmt.Sprintf("%s is the root, and %s is", root, v.root), nil
		}
		if p := v.ports[n.end.Port]; p.state != "forwarding" {
			return fmt.Sprintf("the end's port of %v is %v", n, p), nil
		}
	}
	if roots != 1 {
		return fmt.Sprintf("%d bridges say that they are the root", roots), nil
	}
	for _, c := range w.cables {
		if c.cut {
			continue
		}
		a, b := views[c.nodes[0]].ports[c.ports[0]], views[c.nodes[1]].ports[c.ports[1]]
		switch {
		case !a.settled() || !b.settled():
			return fmt.Sprintf("%v is %v-%v", c, a, b), nil
		case a.state == "forwarding" && b.state == "forwarding":
			if a.role == b.role {
				return fmt.Sprintf("%v is %v-%v", c, a, b), nil
			}
			used = append(used, c)
		case a.role != "designated" && b.role != "designated":
			return fmt.Sprintf("%v is %v-%v", c, a, b), nil
		}
	}
	if len(used) != len(w.nodes)-1 {
		return fmt.Sprintf("%d cables are used by %d bridges", len(used), len(w.nodes)), nil
	}
	return "", used
}

// settle waits until all bridges form one tree, and returns the tree's cables. This may take
// long on a busy machine.
func (w *network) settle(what string) []*cable {
	w.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		why, used := w.unsettled()
		if why == "" {
			return used
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: there is not one tree: %s\n%s", what, why, w.logs())
		}
	}
}

// logs returns the logs of the agents.
func (w *network) logs() string {
	var text strings.Builder
	seen := map[*runner]bool{}
	for _, n := range w.nodes {
		if n.agent != nil && !seen[n.agent] {
			seen[n.agent] = true
			fmt.Fprintf(&text, "%v:\n%s", n, n.agent.logs.String())
		}
	}
	return text.String()
}

// flush returns when every frame that was sent has arrived at its destination.
func (w *network) flush() {
	w.t.Helper()
	for _, n := range w.nodes {
		if n.foreign != nil {
			n.foreign.flush()
		}
	}
	seen := map[*netlab.Lab]bool{}
	for _, n := range w.nodes {
		if !seen[n.Lab] {
			seen[n.Lab] = true
			n.Flush()
		}
	}
}

// take returns how often each frame has arrived at each node.
func (w *network) take() map[*node]map[netlab.Frame]int {
	w.t.Helper()
	got := map[*node]map[netlab.Frame]int{}
	for _, n := range w.nodes {
		got[n] = map[netlab.Frame]int{}
		for _, f := range n.end.Received() {
			if isData(f) {
				got[n][f]++
			}
		}
	}
	return got
}

// isData reports whether a frame belongs to the test, and is no BPDU.
func isData(f netlab.Frame) bool {
	const experimental = 0x88b5
	return len(f) > 14 && binary.BigEndian.Uint16([]byte(f[12:])) == experimental
}

// send sends n frames from a node's end.
func (w *network) send(from *node, dst netlab.MAC, n int) (frames []netlab.Frame) {
	w.t.Helper()
	for range n {
		w.number++
		frames = append(frames, netlab.NewFrame(dst, from.station, w.number, 60))
	}
	from.Send(from.end, frames...)
	return frames
}

// once sends broadcasts and unicasts from each end. Each frame must arrive once at each of its
// destinations, and not at its source. Unicasts may also arrive once at others, since addresses
// are deleted whenever the tree changes.
func (w *network) once(what string) {
	w.t.Helper()
	const frames = 20
	check := func(from *node, sent []netlab.Frame, to func(*node) bool) {
		w.t.Helper()
		w.flush()
		got := w.take()
		for _, n := range w.nodes {
			lost, twice := 0, 0
			for _, f := range sent {
				switch times := got[n][f]; {
				case times == 0 && to(n):
					lost++
				case times > 1 || times > 0 && n == from:
					twice++
				}
			}
			if lost+twice > 0 {
				w.t.Errorf("%s: of %d frames from %v, at %v %d are missing and %d too many\n%s", what, len(sent), from, n, lost, twice, w.logs())
			}
		}
	}
	w.flush()
	w.take()
	for _, from := range w.nodes {
		check(from, w.send(from, netlab.Broadcast, frames), func(n *node) bool { return n != from })
	}
	for _, from := range w.nodes {
		for _, to := range w.nodes {
			if from != to {
				check(from, w.send(from, to.station, frames/4), func(n *node) bool { return n == to })
			}
		}
	}
}

// streams sends a frame each millisecond from the last node as a broadcast, and from the first
// as a unicast to node to, which does not answer, while f runs. None may arrive twice. It
// returns the sum of lost frames at all ends, and the longest time without an arrival.
func (w *network) streams(what string, to *node, f func()) (sum netlab.Arrival) {
	w.t.Helper()
	first, last := w.nodes[0], w.nodes[len(w.nodes)-1]
	w.send(to, netlab.Broadcast, 1) // its address is learned
	w.flush()
	var all []*netlab.End
	for _, n := range w.nodes {
		if n != last && n != to {
			all = append(all, n.end)
		}
	}
	many := netlab.StartStream(last.end, netlab.Broadcast, netlab.Station(1000), time.Millisecond, all...)
	one := netlab.StartStream(first.end, to.station, netlab.Station(1001), time.Millisecond, to.end)
	time.Sleep(100 * time.Millisecond) // until the first frames have arrived
	f()
	time.Sleep(100 * time.Millisecond)
	must(w.t, many.Stop())
	must(w.t, one.Stop())
	w.flush()
	arrivals, err := many.Arrivals()
	must(w.t, err)
	arrived, err := one.Arrivals()
	must(w.t, err)
	maps.Copy(arrivals, arrived)
	for _, n := range w.nodes {
		a, ok := arrivals[n.end]
		if !ok {
			continue
		}
		if a.Twice > 0 {
			w.t.Errorf("%s: at %v %d of %d frames came more than once\n%s", what, n, a.Twice, a.Sent, w.logs())
		}
		sum.Lost += a.Lost
		sum.Gap = max(sum.Gap, a.Gap)
	}
	return sum
}
