// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"bascule/agent"
	"bascule/bridge"
	"bascule/lab/spaces"
	"bascule/test/netlab"
)

// patience is the time limit for events that have to happen.
const patience = 3 * time.Minute

// A runner runs agents in a lab's namespace, one after another.
type runner struct {
	t      testing.TB
	lab    *netlab.Lab
	cookie uint64 // cookie of the lab's namespace
	dir    string // folder for sockets and snapshots
	cmd    *exec.Cmd
	logs   netlab.OutputFile // logs of the present agent, or the last one

	inside bool // agents run inside the namespace, where they can listen at its addresses

	socket *net.UnixConn // the service manager's socket
	mu     sync.Mutex
	heard  []string
}

func newRunner(t testing.TB, l *netlab.Lab) *runner {
	t.Helper()
	r := &runner{t: t, lab: l, dir: t.TempDir(), logs: netlab.NewOutputFile(t)}
	path := filepath.Join(r.dir, "notify")
	var err error
	r.cookie, err = l.Switch.Cookie()
	must(t, err)
	r.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	must(t, err)
	l.Setenv("BASCULE_AGENT_DIR", r.dir)
	l.Setenv("NOTIFY_SOCKET", path)
	l.Setenv("WATCHDOG_USEC", "600000")
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := r.socket.Read(b)
			if err != nil {
				return
			}
			r.mu.Lock()
			r.heard = append(r.heard, strings.Split(string(b[:n]), "\n")...)
			r.mu.Unlock()
		}
	}()
	t.Cleanup(func() {
		if r.cmd != nil {
			r.kill()
		}
		r.socket.Close()
	})
	return r
}

// count returns the number of messages to the service manager that begin with begin.
func (r *runner) count(begin string) (n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.heard {
		if strings.HasPrefix(s, begin) {
			n++
		}
	}
	return n
}

// start starts an agent and waits until it is ready.
func (r *runner) start(args ...string) {
	r.t.Helper()
	r.mu.Lock()
	r.heard = nil
	r.mu.Unlock()
	must(r.t, r.logs.Truncate(0))
	r.cmd = r.lab.Command(append([]string{"agent", "--log-level", "debug"}, args...)...)
	r.cmd.Stderr = r.logs.File
	if r.inside {
		must(r.t, r.lab.Switch.Do(r.cmd.Start))
	} else {
		must(r.t, r.cmd.Start())
	}
	r.lab.Wait("the agent to be ready", func() bool { return r.count("READY=1") > 0 })
}

// kill kills the agent, without a chance to prepare.
func (r *runner) kill() {
	r.t.Helper()
	r.cmd.Process.Kill()
	r.cmd.Wait()
	r.cmd = nil
}

// stop stops the agent as its service manager does.
func (r *runner) stop() {
	r.t.Helper()
	must(r.t, r.cmd.Process.Signal(syscall.SIGTERM))
	if err := r.cmd.Wait(); err != nil {
		r.t.Errorf("the agent, told to end: %v\n%s", err, r.logs.String())
	}
	r.cmd = nil
}

// says waits until n lines of the log contain the words.
func (r *runner) says(n int, words ...string) {
	r.t.Helper()
	r.lab.Wait(fmt.Sprintf("%d lines with %q\n%s", n, words, r.logs.String()), func() bool { return r.logs.Lines(words...) == n })
}

// status returns the agent's status. It runs no command, since tests call it often, and commands would take CPU time
// from the agents. It retries as long as the agent does not answer: the machine may stall.
func (r *runner) status() agent.Status {
	r.t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		s, err := agent.AskStatus(r.dir, r.cookie)
		if err == nil {
			return s
		}
		if time.Now().After(deadline) {
			r.t.Fatal(err)
		}
	}
}

// serves waits until the agent serves the given number of bridges in its own namespace, and runs the spanning trees of
// the named ones. The agent may report that it is ready before.
func (r *runner) serves(bridges int, trees ...string) {
	r.t.Helper()
	r.lab.Wait(fmt.Sprintf("the agent to serve %d bridges, and the spanning trees %v", bridges, trees), func() bool {
		list := r.status().Namespaces[0].Bridges
		return len(list) == bridges && !slices.ContainsFunc(trees, func(name string) bool {
			return !slices.ContainsFunc(list, func(b agent.BridgeStatus) bool { return b.Name == name && b.Tree != nil })
		})
	})
}

// file writes a file with a configuration.
func (r *runner) file(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	must(r.t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

func TestService(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(3)
	r := newRunner(t, l)
	state := func(ageing int) string {
		return fmt.Sprintf("bridges:\n  br0:\n    ageing: %ds\n    ports:\n      p1: {}\n      \"p*\": {}\n", ageing)
	}
	file := r.file("br0.yaml", state(100))
	r.start("-f", file)
	if got := l.Bridge("br0").AgeingTime; got != 100 {
		t.Errorf("ageing %v after the start, want 100", got)
	}
	l.Wait("the devices to be ports", func() bool { return len(l.Bridge("br0").Ports) == 3 })
	l.AwaitWriter()
	l.Reach(ends[0], l.Frames(10, netlab.Broadcast, ends[0].MAC), ends[1], ends[2])

	r.serves(1)
	status := func() (s agent.Status) {
		t.Helper()
		l.JSON(&s, "agent", "status")
		return s
	}
	s := status()
	if s.PID != r.cmd.Process.Pid || s.Applied == nil || s.Error != "" || len(s.Namespaces) != 1 || len(s.Namespaces[0].Bridges) != 1 {
		t.Errorf("status %+v", s)
	}
	l.Wait("the learned address to be counted", func() bool { return status().Namespaces[0].Bridges[0].Events.Counts["learned"] > 0 })
	before := r.count("WATCHDOG=1")
	l.Wait("the watchdog to be told", func() bool { return r.count("WATCHDOG=1") > before+2 })

	second, err := l.Run("agent")
	must(t, err)
	if err := second.CheckRefusal("another agent"); err != nil {
		t.Error(err)
	}

	r.file("br0.yaml", state(200))
	must(t, r.cmd.Process.Signal(syscall.SIGHUP))
	l.Wait("the changed file to be applied", func() bool { return l.Bridge("br0").AgeingTime == 200 })
	r.file("br0.yaml", state(300))
	l.Bascule("agent", "reload")
	if got := l.Bridge("br0").AgeingTime; got != 300 {
		t.Errorf("ageing %v after a reload, want 300", got)
	}
	r.file("br0.yaml", "bridges:\n  br0:\n    aging: 5s\n")
	l.Refused([]string{"br0.yaml:3", "ageing"}, "agent", "reload")
	if s := status(); !strings.Contains(s.Error, "br0.yaml:3") || l.Bridge("br0").AgeingTime != 300 || len(l.Bridge("br0").Ports) != 3 {
		t.Errorf("after a file that is wrong: %+v, %+v", s, l.Bridge("br0"))
	}
	r.file("br0.yaml", state(300))
	l.Bascule("agent", "reload")
	if s := status(); s.Error != "" {
		t.Errorf("after the file was put right: %s", s.Error)
	}

	r.stop()
	l.Wait("the service manager to be told of the end", func() bool { return r.count("STOPPING=1") > 0 })
	if n := r.count("STOPPING=1"); n != 1 {
		t.Errorf("the service manager is told of the end %d times", n)
	}
	l.Reach(ends[0], l.Frames(10, netlab.Broadcast, ends[0].MAC), ends[1], ends[2])
	l.Refused([]string{"none runs"}, "agent", "status")
	left, err := filepath.Glob(filepath.Join(r.dir, "*.stp"))
	if err != nil || len(left) > 0 {
		t.Errorf("files of a bridge without spanning tree: %v, %v", left, err)
	}
}

// TestKilled: no frame is lost when the agent is killed and restarted, even on a bridge with spanning tree.
func TestKilled(t *testing.T) {
	for _, stp := range []string{"off", "rstp"} {
		t.Run("stp "+stp, func(t *testing.T) {
			l := netlab.New(t)
			ends := l.NewEnds(3)
			r := newRunner(t, l)
			file := r.file("br0.yaml", "bridges:\n  br0:\n    stp: "+stp+"\n    ports:\n      \"p*\": {stp-edge: on, pvid: 1}\n    vlan-filtering: on\n")
			r.start("-f", file)
			l.Wait("all ports to forward", func() bool {
				n := 0
				for _, p := range l.Ports("br0") {
					if p.State == "forwarding" {
						n++
					}
				}
				return n == len(ends)
			})
			sw, err := bridge.Open(l.Switch.Name)
			must(t, err)
			defer sw.Close()
			// The agent prepares it when all is quiet, with a generation of its own.
			l.Wait("the berths", func() bool {
				berths, err := sw.Berths("br0")
				return err == nil && len(berths) == 1
			})
			// It changes nothing, but waits for the change that made them.
			_, err = sw.Edit("br0", func(*bridge.Edit) error { return nil })
			must(t, err)
			l.Send(ends[0], l.Frames(1, netlab.Broadcast, ends[0].MAC)...)
			l.Send(ends[1], l.Frames(1, netlab.Broadcast, ends[1].MAC)...)
			// Edge ports send a BPDU every two seconds.
			bpdus := func(f netlab.Frame) bool { return f.Dst() == netlab.MAC{0x01, 0x80, 0xc2} }
			if stp == "off" {
				bpdus = nil
			}
			load := l.StartLoadAmong(bpdus, ends[:2],
				netlab.Flow{From: ends[0], Dst: ends[1].MAC, Src: ends[0].MAC, To: ends[1:2]},
				netlab.Flow{From: ends[1], Dst: ends[0].MAC, Src: ends[1].MAC, To: ends[0:1]})
			before, err := l.Objects()
			must(t, err)
			for range 3 {
				l.Wait("traffic to flow", load.Flowing(2000))
				r.kill()
				l.Wait("traffic to flow without the agent", load.Flowing(2000))
				r.start("-f", file)
			}
			l.Wait("traffic to flow at the end", load.Flowing(2000))
			if err := load.Stop(); err != nil {
				t.Errorf("%v\n%s", err, r.logs.String())
			}
			after, err := l.Objects()
			must(t, err)
			for id := range before.Links {
				if !after.Links[id] {
					t.Errorf("link %d has gone", id)
				}
			}
			// Programs that this build has loaded are not loaded again.
			for id := range after.Programs {
				if !before.Programs[id] {
					t.Errorf("program %d was loaded anew\n%s", id, r.logs.String())
				}
			}
			r.stop()
		})
	}
}

// TestUpgrade: an agent of another build loads its own programs, without losing a frame.
func TestUpgrade(t *testing.T) {
	newer, err := netlab.Build("agent-upgrade", "-tags", "newer", "-ldflags", "-X main.version=upgrade-test")
	must(t, err)
	l := netlab.New(t)
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends)
	r := newRunner(t, l)
	r.start()
	l.Send(ends[0], l.Frames(1, netlab.Broadcast, ends[0].MAC)...)
	l.Send(ends[1], l.Frames(1, netlab.Broadcast, ends[1].MAC)...)
	load := l.StartLoad(ends, netlab.Flow{From: ends[0], Dst: ends[1].MAC, Src: ends[0].MAC, To: ends[1:]})
	before, err := l.Objects()
	must(t, err)
	l.Wait("traffic to flow", load.Flowing(2000))
	r.stop()
	l.SetBinary(newer)
	r.start()
	l.Renewed(before)
	l.Wait("traffic to flow on", load.Flowing(2000))
	if err := load.Stop(); err != nil {
		t.Errorf("%v\n%s", err, r.logs.String())
	}
	r.stop()
}

// TestEvents: all events of addresses are counted: as an event, as a lost one because they came too fast, or as one
// that was merged with another.
func TestEvents(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	l.AddBridge("br0", "tcx", ends)
	r := newRunner(t, l)
	r.start()
	r.serves(1)
	before := l.Ports("br0")
	for range 10 {
		for _, e := range ends {
			var frames []netlab.Frame
			for n := range 200 {
				frames = append(frames, l.Frames(1, ends[0].MAC, netlab.Station(n))...)
			}
			l.Send(e, frames...)
		}
	}
	var learned, moved uint64
	for i, p := range l.Ports("br0") {
		learned += p.Learned - before[i].Learned
		moved += p.Moves - before[i].Moves
	}
	if learned < 200 || moved < 19*200 {
		t.Fatalf("learned %d, moved %d", learned, moved)
	}
	l.Wait(fmt.Sprintf("%d learned and %d moved addresses to be counted", learned, moved), func() bool {
		e := r.status().Namespaces[0].Bridges[0].Events
		return e.Counts["learned"]+e.Counts["moved"]+e.Missed+e.Merged == learned+moved
	})
	r.stop()
	if left, err := filepath.Glob(filepath.Join(r.dir, "*.[ls]o*")); err != nil || len(left) > 0 {
		t.Errorf("left by the agent: %v, %v", left, err)
	}
}

// TestStopped: commands do not wait for a stopped agent, and do not treat it as one that runs the spanning tree. When
// it continues, they do.
func TestStopped(t *testing.T) {
	l := netlab.New(t)
	r := newRunner(t, l)
	r.start()
	l.Bascule("bridge", "add", "br0", "--stp", "rstp")
	r.serves(1, "br0")
	l.Bascule("agent", "reload")
	must(t, r.cmd.Process.Signal(syscall.SIGSTOP))
	defer r.cmd.Process.Signal(syscall.SIGCONT)
	l.Wait("its process is stopped", func() bool { return bridge.Stopped(r.cmd.Process.Pid) })
	for _, what := range []string{"reload", "status"} {
		l.Refused([]string{"does not answer", "is stopped", "kill -CONT"}, "agent", what)
	}
	if l.Bridge("br0").AgentRuns || !strings.Contains(l.Bascule("bridge", "show", "br0"), "no agent runs") {
		t.Error("the agent is stopped, and runs the spanning tree")
	}
	must(t, r.cmd.Process.Signal(syscall.SIGCONT))
	l.Bascule("agent", "reload")
	if !l.Bridge("br0").AgentRuns {
		t.Error("the agent goes on, and does not run the spanning tree")
	}
}

// TestTree: two cables join two bridges. One of the paths is closed, the other takes over when a cable is cut, and no
// frame arrives twice, even while the agent is away and after its return.
func TestTree(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	r := newRunner(t, l)
	r.start()
	nl := l.Switch.Netlink()
	for _, name := range []string{"x", "y"} {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name + "0"
		must(t, nl.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "1"}))
		l.Keep(name + "0")
		l.Keep(name + "1")
		for _, side := range []string{name + "1", name + "0"} {
			link, err := nl.LinkByName(side)
			must(t, err)
			must(t, nl.LinkSetUp(link))
		}
	}
	for i, e := range ends {
		bridge := fmt.Sprintf("br%d", i)
		l.Bascule("bridge", "add", bridge, "--stp", "rstp", "--stp-priority", fmt.Sprint(4096*(i+1)))
		r.serves(i+1, bridge)
		l.AddPort(bridge, "tcx", e, "--stp-edge", "on")
		for _, name := range []string{"x", "y"} {
			l.Bascule("port", "add", bridge, fmt.Sprint(name, i), "--stp-edge", "off")
		}
	}
	state := func(port string) string { return l.Port("br"+port[1:], port).State }
	wait := func(what string, states map[string]string) {
		t.Helper()
		l.Wait(what, func() bool {
			for port, want := range states {
				if state(port) != want {
					return false
				}
			}
			return true
		})
	}
	// Each frame must arrive once at the other end, and nowhere else.
	once := func(what string) {
		t.Helper()
		for i, e := range ends {
			got := l.Deliver(e, l.Frames(20, netlab.Broadcast, e.MAC)...)[ends[1-i]]
			if got = slices.DeleteFunc(got, func(f netlab.Frame) bool { return !isData(f) }); len(got) != 20 {
				t.Errorf("%s: %d of 20 frames from %s\n%s", what, len(got), e.Port, r.logs.String())
			}
		}
	}
	whole := map[string]string{"x0": "forwarding", "x1": "forwarding", "y0": "forwarding", "y1": "discarding"}
	wait("one way of two to be closed", whole)
	once("with two cables")

	x, err := nl.LinkByName("x0")
	must(t, err)
	must(t, nl.LinkSetDown(x))
	wait("the cut to heal", map[string]string{"y0": "forwarding", "y1": "forwarding"})
	once("with a cable cut")
	must(t, nl.LinkSetUp(x))
	wait("the mended cable to be used again", whole)
	once("with the cable mended")

	// The active cable is cut while no agent runs.
	r.kill()
	once("with no agent")
	must(t, nl.LinkSetDown(x))
	r.start()
	wait("what was cut meanwhile to heal", map[string]string{"y0": "forwarding", "y1": "forwarding"})
	once("after a restart with a cable cut")
	must(t, nl.LinkSetUp(x))
	wait("the mended cable to be used again", whole)

	r.kill()
	r.start()
	if got := state("y1"); got != "discarding" {
		t.Errorf("after a restart the closed way is %s", got)
	}
	r.serves(2, "br0", "br1")
	once("after a restart")
	if !strings.Contains(r.logs.String(), "the spanning tree is taken over") {
		t.Errorf("the spanning tree began anew:\n%s", r.logs.String())
	}

	// After spanning tree is switched off, none of its state is left.
	l.Bascule("bridge", "set", "br1", "--stp", "off")
	must(t, nl.LinkSetDown(x))
	l.Wait("its snapshot to be removed", func() bool {
		left, err := filepath.Glob(filepath.Join(r.dir, "*-br1.stp"))
		return err == nil && len(left) == 0
	})
	r.stop()
}

// TestNamespaces: a file is in force in the namespace that has the name now: a namespace that is made late, and one
// that is made again.
func TestNamespaces(t *testing.T) {
	l := netlab.New(t)
	r := newRunner(t, l)
	name := l.Switch.Name + "-late"
	file := r.file("late.yaml", "netns: "+name+"\nbridges: {br0: {ageing: 77s}}\n")
	r.start("-f", file)
	served := func() (cookies []uint64) {
		for _, n := range r.status().Namespaces {
			if len(n.Bridges) == 1 {
				cookies = append(cookies, n.Cookie)
			}
		}
		return cookies
	}
	var before uint64
	for range 2 {
		made := make(chan error)
		go func() {
			runtime.LockOSThread() // the thread is in the new namespace, and ends with the goroutine
			handle, err := spaces.New(name)
			if err == nil {
				err = handle.Close()
			}
			made <- err
		}()
		must(t, <-made)
		t.Cleanup(func() { spaces.Remove(name) })
		l.Wait("the namespace of that name to be served, and no other", func() bool {
			now := served()
			return len(now) == 1 && now[0] != before
		})
		before = served()[0]
		must(t, spaces.Remove(name))
	}
	l.Wait("the namespace that has gone to be left", func() bool { return len(served()) == 0 })
	r.stop()
}

// TestNamespaceDeleted: an agent ends with its network namespace, which the agent would otherwise keep alive. The same
// holds for agents that were given its name or path, and for one that runs in it. A namespace with another name is not
// deleted. The agent also releases the namespace of a file, even while the file cannot be read.
func TestNamespaceDeleted(t *testing.T) {
	for _, tt := range []struct {
		how  string
		args func(name string) []string
	}{
		{"name", func(name string) []string { return []string{netlab.Program(), "-n", name} }},
		{"path", func(name string) []string { return []string{netlab.Program(), "-n", "/run/netns/" + name} }},
		{"inside", func(name string) []string { return []string{"ip", "netns", "exec", name, netlab.Program()} }},
	} {
		t.Run(tt.how, func(t *testing.T) {
			l := netlab.New(t)
			ip := func(args ...string) {
				t.Helper()
				if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
					t.Fatalf("ip %s: %v: %s", strings.Join(args, " "), err, out)
				}
			}
			own, other := l.Switch.Name+"-own", l.Switch.Name+"-other"
			device := func(name string) string { return name[strings.LastIndex(name, "-")+1:] }
			for _, name := range []string{own, other} {
				ip("netns", "add", name)
				t.Cleanup(func() { spaces.Remove(name) })
				// A cable disappears with either end.
				ip("-n", l.Switch.Name, "link", "add", device(name), "type", "veth", "peer", "name", "far", "netns", name)
			}
			gone := func(name string) bool {
				_, err := l.Switch.Netlink().LinkByName(device(name))
				return errors.As(err, &netlink.LinkNotFoundError{})
			}
			dir := t.TempDir()
			file := filepath.Join(dir, "br.yaml")
			must(t, os.WriteFile(file, []byte("bridges: {br0: {ports: {far: }}}\n---\nnetns: "+other+"\nbridges: {br0: {ports: {far: }}}\n"), 0o600))
			args := append(tt.args(own), "agent", "-f", file)
			cmd := exec.Command(args[0], args[1:]...)
			cmd.Env = append(os.Environ(), "BASCULE_AGENT_DIR="+dir)
			logs := netlab.NewOutputFile(t)
			cmd.Stderr = logs.File
			must(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			t.Cleanup(func() {
				cmd.Process.Kill()
				<-ended
			})
			attached := func(name string) bool {
				out, err := exec.Command(netlab.Program(), "-n", name, "port", "show", "br0").Output()
				return err == nil && strings.Contains(string(out), "far")
			}
			l.Wait("the ports\n"+logs.String(), func() bool { return attached(own) && attached(other) })

			must(t, os.WriteFile(file, []byte("bridges: {"), 0o600))
			ip("netns", "del", other)
			l.Wait("the namespace of the file to end", func() bool { return gone(other) })

			sleeper := exec.Command("ip", "netns", "exec", own, "sleep", "600")
			must(t, sleeper.Start())
			l.Wait("the sleeper to be inside", func() bool {
				return bridge.SameNetns(own, fmt.Sprintf("/proc/%d/ns/net", sleeper.Process.Pid))
			})
			ip("netns", "attach", own+"-too", strconv.Itoa(sleeper.Process.Pid))
			must(t, sleeper.Process.Kill())
			_ = sleeper.Wait() // it was killed
			t.Cleanup(func() { spaces.Remove(own + "-too") })
			ip("netns", "del", own)
			l.Wait("the agent to find the other name", func() bool { return logs.Lines("has a new name") == 1 })
			if gone(own) {
				t.Fatalf("the namespace has ended, and has a name\n%s", logs.String())
			}
			ip("netns", "del", own+"-too")
			select {
			case err := <-ended:
				ended <- err
				if err != nil {
					t.Errorf("the agent ends with %v\n%s", err, logs.String())
				}
			case <-time.After(patience):
				t.Fatalf("the agent lives on\n%s", logs.String())
			}
			l.Wait("the namespace to end", func() bool { return gone(own) })
			if logs.Lines("has been deleted") != 1 {
				t.Errorf("it says\n%s", logs.String())
			}
		})
	}
}

// TestNames: files that name a namespace in two ways are applied as one. A part of a file without effect is reported
// once.
func TestNames(t *testing.T) {
	l := netlab.New(t)
	r := newRunner(t, l)
	yaml := r.file("both.yaml", fmt.Sprintf(`netns: %s
bridges: {br0: {ports: {a: {type: patch, peer: br1/b}}}}
---
netns: /run/netns/%[1]s
bridges: {br1: {ports: {b: {type: patch, peer: br0/a}}}}
`, l.Switch.Name))
	r.start("-f", yaml, "-f", r.file("hostname.veb0", "mtu 9000\nup\n"))
	r.serves(3)
	if s := r.status(); s.Error != "" || len(s.Namespaces) != 1 {
		t.Errorf("status %+v", s)
	}
	l.Bascule("agent", "reload")
	if n := r.logs.Lines("level=WARN", "hostname.veb0:1"); n != 1 {
		t.Errorf("that mtu changes nothing is told %d times\n%s", n, r.logs.String())
	}
	r.stop()
}

// TestArrival: device settings in a file are in force once the device exists.
func TestArrival(t *testing.T) {
	l := netlab.New(t)
	r := newRunner(t, l)
	r.start("-f", r.file("br0.yaml", `bridges:
  br0:
    ports:
      "tap*": {}
    mirrors: {mon0: {ports: [tap0]}}
    bindings: [{port: tap0, mac: "02:00:00:00:00:99", address: 192.0.2.1}]
    rules: ["block in on tap0 src 02:00:00:00:00:01"]
`))
	for _, name := range []string{"mon0", "tap0"} {
		l.NewTap(name, false)
	}
	l.Wait("the mirror, the binding and the rule", func() bool {
		return strings.Contains(l.Bascule("span", "show", "br0"), "mon0") &&
			strings.Contains(l.Bascule("binding", "show", "br0"), "192.0.2.1") &&
			strings.Contains(l.Bascule("rule", "show", "br0"), "tap0")
	})
	r.stop()
}

// TestRulesOfFilter: the agent loads pf rules that include files and name hosts as apply does, and notices when these
// change.
func TestRulesOfFilter(t *testing.T) {
	l := netlab.New(t)
	l.NewEnds(1)
	r := newRunner(t, l)
	table := r.file("table", "192.0.2.1\n")
	rules := r.file("rules", "pass in on p1 from <t>\n")
	r.file("pf.conf", fmt.Sprintf("table <t> persist file %q\ninclude %q\nblock in on p1 from localhost\n", table, rules))
	file := r.file("br0.yaml", "bridges: {br0: {ports: {p1: {}}, pf: {file: pf.conf}}}\n")
	r.start("-f", file)
	loaded := func() string {
		return l.Bascule("pfctl", "-b", "br0", "-s", "rules") + l.Bascule("pfctl", "-b", "br0", "-t", "t", "-T", "show")
	}
	for _, want := range []string{"from <t>", "127.0.0.1", "192.0.2.1"} {
		if !strings.Contains(loaded(), want) {
			t.Errorf("%s is not loaded:\n%s\n%s", want, loaded(), r.logs.String())
		}
	}
	wantLines(t, apply(t, l, "-f", file))

	r.file("table", "192.0.2.2\n")
	r.file("rules", "block in on p1 from <t>\n")
	l.Bascule("agent", "reload")
	for _, want := range []string{"block drop in on p1 from <t>", "192.0.2.2"} {
		if !strings.Contains(loaded(), want) {
			t.Errorf("%s is not loaded after a reload:\n%s", want, loaded())
		}
	}
	r.stop()
}

// TestNeverWithout: a device that rules name forwards nothing before they are loaded: if it is made again, becomes a
// port by a pattern, and while another file is wrong.
func TestNeverWithout(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	in, out := ends[0], ends[1]
	bad, good := netlab.Station(1), netlab.Station(2)
	for _, ports := range []string{"{p1: {}, p2: {}}", `{"p*": {}}`} {
		r := newRunner(t, l)
		file := r.file("br0.yaml", fmt.Sprintf("bridges: {br0: {ports: %s, rules: ['block in on p1 src %v']}}\n", ports, bad))
		other := r.file("br1.yaml", "bridges: {br1: {}}\n")
		r.start("-f", file, "-f", other)
		l.Wait("two ports", func() bool { return len(l.Bridge("br0").Ports) == 2 })

		// try sends from both stations until the permitted frame has passed.
		try := func(how string) {
			t.Helper()
			out.Received()
			passed := map[netlab.MAC]int{}
			l.Wait("the port to forward", func() bool {
				for range 20 {
					l.Send(in, append(l.Frames(1, netlab.Broadcast, bad), l.Frames(1, netlab.Broadcast, good)...)...)
				}
				for _, f := range out.Received() {
					passed[f.Src()]++
				}
				return passed[good] > 0
			})
			if passed[bad] > 0 {
				t.Errorf("%s, ports %s: %d frames that a rule blocks have passed", how, ports, passed[bad])
			}
		}
		try("at first")
		for range 3 {
			in.Unplug()
			in.PlugAgain(0)
			try("made anew")
		}
		r.file("br1.yaml", "oops: [")
		in.Unplug()
		in.PlugAgain(0)
		l.Wait("the wrong file to be told of", func() bool { return strings.Contains(r.status().Error, "br1.yaml") })
		if got := l.Deliver(in, l.Frames(5, netlab.Broadcast, bad)...); len(got[out]) > 0 {
			t.Errorf("ports %s: while a file is wrong, frames that a rule blocks pass: %v", ports, got)
		}
		r.file("br1.yaml", "bridges: {br1: {}}\n")
		l.Bascule("agent", "reload")
		try("put right")
		r.stop()
		l.Bascule("bridge", "del", "br0")
		l.Bascule("bridge", "del", "br1")
	}
}

// TestRenamed: a port that gets another name of its pattern has the file's rules for that name, of MAC addresses and of
// pf, and no others.
func TestRenamed(t *testing.T) {
	l := netlab.New(t)
	ends := l.NewEnds(2)
	in, out := ends[0], ends[1]
	nl := l.Switch.Netlink()
	link, err := nl.LinkByName("p1")
	must(t, err)
	mac := netlab.Station(1)
	for _, says := range []string{
		fmt.Sprintf("rules: ['block in on p7 src %v']", mac),
		"pf: {rules: 'ether block in on p7'}",
	} {
		r := newRunner(t, l)
		r.start("-f", r.file("br0.yaml", fmt.Sprintf("bridges: {br0: {ports: {'p*': {}}, %s}}\n", says)))
		l.Wait("two ports", func() bool { return len(l.Bridge("br0").Ports) == 2 })
		passes := func(want bool) func() bool {
			return func() bool {
				out.Received()
				l.Send(in, l.Frames(5, netlab.Broadcast, mac)...)
				l.AwaitWriter()
				return (len(l.Deliver(in, l.Frames(5, netlab.Broadcast, mac)...)[out]) > 0) == want
			}
		}
		l.Wait("frames to pass", passes(true))
		for _, name := range []string{"p7", "p1", "p7", "p3"} {
			must(t, nl.LinkSetName(link, name))
			l.Wait(fmt.Sprintf("frames to pass as %s: %v, with %s", name, name != "p7", says), passes(name != "p7"))
		}
		must(t, nl.LinkSetName(link, "p1"))
		r.stop()
		l.Bascule("bridge", "del", "br0")
	}
}

// TestNoFile: a missing path at the agent's start is an error, and ends the agent. If the path disappears later, the
// configuration stays in force.
func TestNoFile(t *testing.T) {
	l := netlab.New(t)
	r := newRunner(t, l)
	gone := filepath.Join(r.dir, "none")
	there := r.file("br0.yaml", "bridges: {br0: {}}\n")
	for _, path := range []string{gone, filepath.Join(there, "below")} {
		l.Refused([]string{"cannot start the agent: " + path + ": "}, "agent", "-f", there, "-f", path)
	}
	if r, err := l.Run("bridge", "show", "br0"); err != nil || r.Exit == 0 {
		t.Errorf("an agent that did not start has made a bridge: %v, %v", r, err)
	}
	folder := filepath.Join(r.dir, "folder")
	must(t, os.Mkdir(folder, 0o700)) // an agent without files may get some
	r.start("-f", there, "-f", folder)
	l.Wait("the empty folder to be told of", func() bool { return strings.Contains(r.status().Error, "the folder has no") })
	r.file("folder/br1.yaml", "bridges: {br1: {}}\n")
	l.Bascule("agent", "reload")
	must(t, os.RemoveAll(folder))
	must(t, os.Remove(there))
	l.Refused([]string{there + ": no such file or directory"}, "agent", "reload")
	if len(r.status().Namespaces[0].Bridges) != 2 {
		t.Errorf("without its files the agent serves %+v", r.status())
	}
	r.stop()
}
