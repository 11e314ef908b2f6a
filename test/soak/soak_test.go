// SPDX-License-Identifier: BSD-2-Clause

// Package soak runs the switch and its agent for a long time while everything around them
// changes at random, under traffic. No frame may be lost, and no trace of a removed thing may
// remain. It needs root and skips without it.
//
//	go test ./test/soak -v -timeout 0 -soak.time 30m -soak.seed 1
package soak

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

var (
	duration = flag.Duration("soak.time", 10*time.Second, "how long to change things")
	seed     = flag.Uint64("soak.seed", 1, "what the changes follow from, 0 for another each time")
)

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(netlab.Main(m))
}

// patience is the time limit for events that have to happen.
const patience = 60 * time.Second

// minTries is the least number of attempts to take stock, however long one takes.
const minTries = 30

// bridges are the bridges of the base state.
var bridges = []string{"br0", "br1", "r0", "r1"}

// A soak is a switch, its agent, the load, and the present state of all changes.
type soak struct {
	t   *testing.T
	ctx context.Context
	lab *netlab.Lab
	rng *rand.Rand

	far     *ends.Namespace // the namespace of the guests' stations
	guests  map[string]*guest
	put     map[string]string // the bridge of each guest that a command added
	br2     bool              // the bridge br2 should exist
	number  int               // number of guests so far
	tree    [2]*wire
	twice   map[netlab.Frame]int // frames through the spanning tree that have arrived
	load    *netlab.Load
	readers []*exec.Cmd

	agent  *exec.Cmd // nil if none runs
	ended  chan error
	logs   *os.File
	dir    string // the agent's folder
	files  string // the folder of files for the agent and apply
	begun  time.Time
	deadly bool // agents and commands are killed
	doing  string

	base      account
	calm      string // rcu_expedited while nothing hurries the kernel
	resident0 int
	history   []string
	counts    map[string]*count
	refusals  map[string]int
	killed    int // killed commands
	murdered  int // killed agents
	compared  int
	sent      int // frames in addition to the load
}

// A count has the results of an operation.
type count struct{ done, commands, refused int }

func (s *soak) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *soak) note(format string, args ...any) {
	s.history = append(s.history, fmt.Sprintf("%8.3fs %s: %s", time.Since(s.begun).Seconds(), s.doing, fmt.Sprintf(format, args...)))
	if len(s.history) > 60 {
		s.history = s.history[1:]
	}
}

func TestSoak(t *testing.T) {
	l := netlab.New(t)
	number := *seed
	if number == 0 {
		number = rand.Uint64N(1e6) + 1
	}
	t.Logf("seed %d", number)
	ctx, stop := signal.NotifyContext(t.Context(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	s := &soak{
		t: t, ctx: ctx, lab: l, rng: rand.New(rand.NewPCG(number, 0)), guests: map[string]*guest{}, put: map[string]string{}, twice: map[netlab.Frame]int{},
		dir: t.TempDir(), files: t.TempDir(), begun: time.Now(), counts: map[string]*count{}, refusals: map[string]int{}, doing: "begin",
	}
	t.Cleanup(func() { s.end(number) })
	s.calm = s.calmly()
	s.begin()
	s.run()
	if ctx.Err() != nil {
		t.Log("interrupted")
		return
	}
	s.doing, s.deadly = "end", false // the rest has to work
	s.goroutines()
}

// begin makes the base state, and runs every operation once, since some operations leave tables
// that stay.
func (s *soak) begin() {
	s.t.Setenv("BASCULE_AGENT_DIR", s.dir)
	l := s.lab
	e := l.NewEnds(7)
	e[1].ReadyForXDP()
	e[3].ReadyForXDP()
	s.far = l.NewNamespace()
	for _, name := range []string{"x", "y", "mon"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name + "0"
		s.must(l.Switch.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "1"}))
		for _, side := range []string{name + "1", name + "0"} {
			l.Keep(side)
			s.setLink(side, true)
		}
	}
	for i := range s.tree {
		w, err := listen(e[5+i].Namespace, e[5+i].Ifindex)
		s.must(err)
		s.t.Cleanup(w.close)
		s.tree[i] = w
	}
	var err error
	s.logs, err = os.Create(filepath.Join(s.files, "agent.log"))
	s.must(err)
	s.t.Cleanup(func() { s.logs.Close() })
	s.write("agent.yaml", s.state(false))
	s.startAgent()
	s.healed()
	s.startLoad()
	for _, o := range operations {
		s.do(o)
	}
	s.doing = "begin"
	for _, bridge := range []string{"br0", "br1"} {
		s.bascule("bridge", "set", bridge, "--vlan-stats", "--move-max", "3")
		for _, address := range []string{"192.0.2.200", "192.0.2.201"} {
			args := []string{"binding", "add", bridge, map[string]string{"br0": "p3", "br1": "p5"}[bridge], "02:00:00:00:00:01", address}
			if bridge == "br0" {
				args = append(args, "--vlan", "1")
			}
			s.bascule(args...)
		}
	}
	s.bascule("pfctl", "-q", "-b", "br0", "-f", s.write("pf.conf", rulesets[4]))
	s.bascule("pfctl", "-q", "-b", "br0", "-a", "aside", "-f", s.write("aside.conf", aside))
	for i := range watchers {
		s.read(i)
	}
	time.Sleep(time.Second) // the readers need a moment to begin
	s.toBase()
	s.base = s.settled(nil)
	s.resident0, err = s.resident()
	s.must(err)
	s.t.Logf("%v: the base state has %d things that are compared; the agent has %d MiB", s.elapsed(), len(s.base), s.resident0>>20)
	for _, c := range s.counts {
		*c = count{}
	}
}

func (s *soak) elapsed() time.Duration { return time.Since(s.begun).Round(time.Second) }

func (s *soak) startLoad() {
	e := s.lab.Ends
	s.load = s.lab.StartLoadAmong(func(f netlab.Frame) bool { return !ofLoad(f) }, e[:5],
		netlab.Flow{From: e[0], To: e[1:2], Frame: conversation(e[0], e[1])},
		netlab.Flow{From: e[1], To: e[0:1], Frame: conversation(e[1], e[0])},
		netlab.Flow{From: e[2], To: []*netlab.End{e[0], e[1], e[4]}, Dst: netlab.Broadcast, Src: e[2].MAC},
		netlab.Flow{From: e[0], To: e[3:4], Frame: trunked(e[3].MAC, e[0].MAC, 10)},
		netlab.Flow{From: e[0], To: e[4:5], Dst: e[4].MAC, Src: e[0].MAC},
		netlab.Flow{From: e[4], To: e[2:3], Dst: e[2].MAC, Src: e[4].MAC},
	)
}

// run makes changes until the time is over, and takes stock ten times, or twice in a short run.
// In every second part agents and commands are killed; in the other parts an agent must last.
func (s *soak) run() {
	parts := 10
	if *duration < time.Minute {
		parts = 2
	}
	for part := 1; part <= parts; part++ {
		s.deadly = part%2 == 0
		for begun := time.Now(); time.Since(begun) < *duration/time.Duration(parts) && s.ctx.Err() == nil; {
			s.do(s.pick())
		}
		if s.ctx.Err() != nil {
			return
		}
		s.toBase()
		s.settled(s.base)
		rss, err := s.resident()
		s.must(err)
		s.compared++
		s.t.Logf("%v: part %d of %d is as the beginning: %d operations, %d frames, %d agents and %d commands killed; the agent has %d MiB",
			s.elapsed(), part, parts, s.total(), s.load.Delivered(), s.murdered, s.killed, rss>>20)
		if limit := max(s.resident0, 40<<20) + 24<<20; rss > limit {
			s.t.Fatalf("the agent has grown from %d to %d bytes", s.resident0, rss)
		}
	}
}

func (s *soak) total() (n int) {
	for _, c := range s.counts {
		n += c.done
	}
	return n
}

// pick draws an operation.
func (s *soak) pick() operation {
	all := 0
	for _, o := range operations {
		all += o.weight
	}
	n := s.rng.IntN(all)
	for _, o := range operations {
		if n -= o.weight; n < 0 {
			return o
		}
	}
	panic("not reached")
}

// do runs one operation, and then checks the switch.
func (s *soak) do(o operation) {
	s.t.Helper()
	s.doing = o.name
	if s.counts[o.name] == nil {
		s.counts[o.name] = &count{}
	}
	s.counts[o.name].done++
	o.do(s)
	if s.load != nil && s.load.Failed() {
		err := s.load.Stop()
		s.load = nil
		s.t.Fatalf("the load: %v", err)
	}
	if s.agent != nil {
		select {
		case err := <-s.ended:
			s.agent = nil
			s.t.Fatalf("the agent has ended: %v", err)
		default:
		}
	}
	for name, g := range s.guests {
		if g.wire == nil {
			continue
		}
		if err := astray(g.wire.received()); err != nil {
			s.t.Fatalf("at %s: %v", name, err)
		}
	}
	s.onlyOnce()
}

// toBase returns the switch to the base state.
func (s *soak) toBase() {
	s.t.Helper()
	deadly := s.deadly
	s.deadly, s.doing = false, "base"
	defer func() { s.deadly = deadly }()
	s.stopReaders()
	for name := range s.guests {
		s.unplug(name)
	}
	s.setLink("x0", true)
	s.setLink("y0", true)
	s.command("bridge", "del", "br2")
	s.br2 = false
	s.write("agent.yaml", s.state(false))
	if s.agent == nil {
		s.startAgent()
	}
	s.bascule("pfctl", "-q", "-b", "br0", "-F", "all")
	s.command("pfctl", "-q", "-b", "br0", "-a", "aside", "-F", "all") // if there is one
	s.bascule("agent", "reload")
	s.healed()
	s.newcomers()
	s.flush()
}

func (s *soak) flush() {
	s.t.Helper()
	for _, name := range bridges {
		s.bascule("fdb", "flush", name)
	}
}

// newcomers checks that devices are added as ports automatically.
func (s *soak) newcomers() {
	s.t.Helper()
	for _, name := range []string{"g0", "tap0", "k0"} {
		bridge := "br0"
		if name == "k0" {
			bridge = "br1"
		}
		has := func() bool { return slices.Contains(s.lab.Bridge(bridge).Ports, name) }
		s.plug(name)
		s.wait(name+" to become a port", has)
		s.unplug(name)
		s.wait("the port "+name+" to go", func() bool { return !has() })
	}
}

// settled takes stock when the delayed work of the kernel and the agent is done: when the
// account equals the former one, or, the first time, when it no longer changes.
func (s *soak) settled(before account) account {
	s.t.Helper()
	first := before == nil
	// Other programs on the machine may hurry the kernel, too, but they end that.
	s.wait("the kernel to be hurried no more", func() bool { return s.hurry() == s.calm })
	var lines []string
	same := 0
	deadline := time.Now().Add(patience)
	for tries := 1; ; tries++ {
		now, err := s.account()
		s.must(err)
		lines = before.differences(now)
		same++
		if len(lines) > 0 {
			same = 0
		}
		if first {
			before = now
			if same == 4 {
				return now
			}
		} else if same > 0 {
			return now
		}
		if tries > minTries && time.Now().After(deadline) {
			s.t.Fatalf("not as at the beginning:\n  %s", strings.Join(lines, "\n  "))
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func (s *soak) wait(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// command runs the program, which may refuse, and sometimes kills it.
func (s *soak) command(args ...string) (string, bool) {
	s.t.Helper()
	cmd := s.lab.Command(args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	s.must(cmd.Start())
	limit, deadly := 2*time.Minute, s.deadly && s.rng.IntN(4) == 0
	if deadly {
		limit = time.Duration(s.rng.IntN(60_000)) * time.Microsecond
	}
	timer := time.AfterFunc(limit, func() { cmd.Process.Kill() })
	err := cmd.Wait()
	timer.Stop()
	status := cmd.ProcessState.ExitCode()
	s.note("bascule %s: %d %s", strings.Join(args, " "), status, strings.TrimSpace(errs.String()))
	c := s.counts[s.doing]
	if c == nil {
		c = &count{}
	}
	c.commands++
	switch {
	case status == 0:
		return out.String(), true
	case status == -1 && deadly:
		s.killed++
	case status == 1 && strings.HasPrefix(errs.String(), "bascule: "):
		c.refused++
		s.refusals[s.doing+": "+anyNumber.ReplaceAllString(strings.TrimSpace(errs.String()), "N")]++
	default:
		s.t.Fatalf("bascule %s: %v, stdout %q, stderr %q", strings.Join(args, " "), err, out.String(), errs.String())
	}
	return out.String(), false
}

var anyNumber = regexp.MustCompile(`[0-9][0-9a-f:.]*`)

// bascule runs the program, which must succeed.
func (s *soak) bascule(args ...string) string {
	s.t.Helper()
	out, ok := s.command(args...)
	if !ok {
		s.t.Fatalf("bascule %s was refused: %s", strings.Join(args, " "), s.history[len(s.history)-1])
	}
	return out
}

// startAgent starts an agent and waits until it works.
func (s *soak) startAgent() {
	s.t.Helper()
	s.note("the agent starts")
	cmd := s.lab.Command("agent", "-f", filepath.Join(s.files, "agent.yaml"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Stderr = s.logs
	s.must(cmd.Start())
	s.agent, s.ended = cmd, make(chan error, 1)
	go func() { s.ended <- cmd.Wait() }()
	s.wait("the agent to be at work", func() bool {
		select {
		case err := <-s.ended:
			s.agent = nil
			s.t.Fatalf("the agent has ended: %v", err)
		default:
		}
		r, err := s.lab.Run("-j", "agent", "status")
		s.must(err)
		return r.Exit == 0 && strings.Contains(r.Stdout, `"applied":"`) && strings.Contains(r.Stdout, `"applying":false`)
	})
}

// stopAgent ends the agent with a signal, and returns how it ended.
func (s *soak) stopAgent(how syscall.Signal) error {
	s.note("the agent gets %v", how)
	s.must(s.agent.Process.Signal(how))
	s.agent = nil
	select {
	case err := <-s.ended:
		return err
	case <-time.After(patience):
		s.t.Fatalf("the agent does not end on %v", how)
		return nil
	}
}

// goroutines compares the agent's goroutines with a new agent's. On SIGQUIT, Go prints them.
func (s *soak) goroutines() {
	count := func() int {
		at, err := s.logs.Seek(0, 1)
		s.must(err)
		s.stopAgent(syscall.SIGQUIT)
		text, err := os.ReadFile(s.logs.Name())
		s.must(err)
		return strings.Count(string(text[min(int(at), len(text)):]), "\ngoroutine ")
	}
	old := count()
	s.startAgent()
	s.healed()
	s.flush()
	s.settled(s.base)
	young := count()
	s.t.Logf("the agent had %d goroutines at the end, a new one has %d", old, young)
	if young < 5 || old > young+2 {
		s.t.Errorf("%d goroutines at the end, %d at the beginning", old, young)
	}
}

func (s *soak) write(name, text string) string {
	path := filepath.Join(s.files, name)
	s.must(os.WriteFile(path, []byte(text), 0o600))
	return path
}

// end cleans up and prints a summary.
func (s *soak) end(number uint64) {
	s.stopReaders()
	if s.agent != nil {
		if err := s.stopAgent(syscall.SIGTERM); err != nil {
			s.t.Errorf("the agent, told to end: %v", err)
		}
	}
	if s.load != nil {
		if err := s.load.Stop(); err != nil {
			s.t.Errorf("the load: %v", err)
		}
	}
	for name := range s.guests {
		s.unplug(name)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %v, %d operations\n", number, s.elapsed(), s.total())
	for _, name := range slices.Sorted(maps.Keys(s.counts)) {
		c := s.counts[name]
		fmt.Fprintf(&b, "  %-24s %6d times, %6d commands, %5d refused\n", name, c.done, c.commands, c.refused)
		if c.commands >= 20 && c.refused == c.commands {
			s.t.Errorf("%s: every command was refused", name)
		}
	}
	if s.load != nil {
		fmt.Fprintf(&b, "frames of the load: %d came where they should, none was lost, none came twice or elsewhere\n", s.load.Delivered())
	}
	fmt.Fprintf(&b, "other frames sent: %d\n", s.sent)
	fmt.Fprintf(&b, "killed: %d agents, %d commands\n", s.murdered, s.killed)
	fmt.Fprintf(&b, "compared %d times with the beginning: %d things, %s\n", s.compared, len(s.base), strings.Join(kinds(s.base), ", "))
	b.WriteString("refused:\n")
	for _, r := range slices.SortedFunc(maps.Keys(s.refusals), func(a, b string) int { return s.refusals[b] - s.refusals[a] }) {
		fmt.Fprintf(&b, "  %5d %s\n", s.refusals[r], r)
	}
	s.t.Log(b.String())
	if s.t.Failed() {
		s.t.Logf("again by -soak.seed %d; the last that was done:\n  %s", number, strings.Join(s.history, "\n  "))
		if text, err := os.ReadFile(filepath.Join(s.files, "agent.log")); err == nil {
			s.t.Logf("the agent's last words:\n%s", text[max(0, len(text)-20_000):])
		}
	}
}

// kinds returns the kinds of entries of an account.
func kinds(a account) []string {
	first := map[string]bool{}
	for name := range a {
		kind, _, _ := strings.Cut(name, " ")
		first[kind] = true
	}
	return slices.Sorted(maps.Keys(first))
}
