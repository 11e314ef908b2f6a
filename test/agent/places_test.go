// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/bridge"
	"bascule/test/netlab"
)

// at returns the path of one of the agent's files.
func (r *runner) at(suffix string) string {
	return filepath.Join(r.dir, strconv.FormatUint(r.cookie, 10)+suffix)
}

// pinned returns the path of an agent's pin beside the bridges.
func (r *runner) pinned(suffix string) string {
	return filepath.Join("/run/bascule", strconv.FormatUint(r.cookie, 10)+suffix)
}

// ends waits until the agent has ended with status 1 and these words.
func (r *runner) ends(words ...string) {
	r.t.Helper()
	done := make(chan error, 1)
	go func() { done <- r.cmd.Wait() }()
	select {
	case <-done:
	case <-time.After(patience):
		r.t.Fatalf("the agent goes on; it should end with %q\n%s", words, r.logs.String())
	}
	code := r.cmd.ProcessState.ExitCode()
	r.cmd = nil
	text := r.logs.String()
	last := text[strings.LastIndexByte(strings.TrimSpace(text), '\n')+1:]
	for _, word := range words {
		if !strings.Contains(last, word) {
			r.t.Errorf("the agent's last line is %q, should have %q", last, word)
		}
	}
	if code != 1 {
		r.t.Errorf("the agent ends with status %d, want 1\n%s", code, text)
	}
}

// alone starts a second agent, which must be refused.
func (r *runner) alone() {
	r.t.Helper()
	second, out := r.lab.Command("agent"), netlab.NewOutputFile(r.t)
	second.Stderr = out.File
	must(r.t, second.Start())
	done := make(chan error, 1)
	go func() { done <- second.Wait() }()
	var ended bool
	r.lab.Wait("a second agent to end", func() bool {
		select {
		case <-done:
			ended = true
		default:
		}
		return ended || out.Lines("the agent starts") > 0
	})
	if !ended {
		second.Process.Kill()
		<-done
		r.t.Fatalf("a second agent runs\n%s", out.String())
	}
	res := netlab.Result{Args: second.Args, Stderr: out.String(), Exit: second.ProcessState.ExitCode()}
	if err := res.CheckRefusal("another agent", fmt.Sprint(r.cmd.Process.Pid)); err != nil {
		r.t.Error(err)
	}
}

// TestPlaces: an agent whose files are removed makes them again, and remains the only one of
// its namespace, even if other files replace them.
func TestPlaces(t *testing.T) {
	lock, socket, snapshot := ".lock", ".sock", "-br0.stp"
	remove := func(path string) error { return os.RemoveAll(path) }
	instead := func(place func(path string) error) func(string) error {
		return func(path string) error {
			if err := remove(path); err != nil {
				return err
			}
			return place(path)
		}
	}
	file := func(path string) error { return os.WriteFile(path, []byte("a file\n"), 0o600) }
	pipe := func(path string) error { return unix.Mkfifo(path, 0o600) }
	folder := func(path string) error { return os.Mkdir(path, 0o700) }
	link := func(path string) error { return os.Symlink("/nowhere/at/all", path) }
	of := func(suffix string) func(*runner) string { return func(r *runner) string { return r.at(suffix) } }
	pin := func(suffix string) func(*runner) string { return func(r *runner) string { return r.pinned(suffix) } }
	for _, c := range []struct {
		name string
		path func(*runner) string
		do   func(path string) error
	}{
		{"folder removed", func(r *runner) string { return r.dir }, remove},
		{"folder made anew", func(r *runner) string { return r.dir }, instead(folder)},
		{"folder another by a link", func(r *runner) string { return r.dir }, instead(func(path string) error {
			if err := os.Mkdir(path+"-other", 0o700); err != nil {
				return err
			}
			return os.Symlink(path+"-other", path)
		})},
		{"lock removed", of(lock), remove},
		{"lock a file", of(lock), instead(file)},
		{"lock a pipe", of(lock), instead(pipe)},
		{"lock a link", of(lock), instead(link)},
		{"socket removed", of(socket), remove},
		{"socket a file", of(socket), instead(file)},
		{"socket a pipe", of(socket), instead(pipe)},
		{"snapshot removed", of(snapshot), remove},
		{"snapshot a pipe", of(snapshot), instead(pipe)},
		{"snapshot a link", of(snapshot), instead(link)},
		{"snapshot a folder", of(snapshot), instead(folder)},
		{"next snapshot a pipe", of(snapshot + ".next"), instead(pipe)},
		{"hold removed", pin("%devices"), remove},
		{"hold made anew", pin("%devices"), instead(folder)},
		{"tree's hold removed", pin("/br0/stp"), remove},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := netlab.New(t)
			r := newRunner(t, l)
			r.dir = filepath.Join(r.dir, "agent") // in addition to the service manager's folder
			l.Setenv("BASCULE_AGENT_DIR", r.dir)
			l.Bascule("bridge", "add", "br0", "--stp", "rstp")
			r.start()
			r.serves(1, "br0")
			pid := r.cmd.Process.Pid
			// The agent has no time to notice anything: the result must not depend
			// on which of the two is faster.
			must(t, r.cmd.Process.Signal(syscall.SIGSTOP))
			l.Wait("its process is stopped", func() bool { return bridge.Stopped(pid) })
			must(t, c.do(c.path(r)))
			r.alone()
			must(t, r.cmd.Process.Signal(syscall.SIGCONT))

			var s struct{ PID int }
			l.JSON(&s, "agent", "status")
			if s.PID != pid {
				t.Errorf("process %d answers, want %d", s.PID, pid)
			}
			l.Bascule("agent", "reload")
			for _, suffix := range []string{lock, socket, snapshot} {
				l.Wait("the agent's "+suffix+" to be there\n"+r.logs.String(), func() bool {
					st, err := os.Lstat(r.at(suffix))
					return err == nil && (st.Mode().IsRegular() || suffix == socket && st.Mode().Type() == os.ModeSocket)
				})
			}
			l.Wait("its hold to be there", func() bool { _, err := os.Lstat(r.pinned("%devices")); return err == nil })
			l.Wait("the agent to be known to run the spanning tree", func() bool { return l.Bridge("br0").AgentRuns })
			r.alone()
			if n := r.logs.Lines("level=ERROR"); n > 0 && c.path(r) != r.dir {
				t.Errorf("%d errors in its log\n%s", n, r.logs.String())
			}
			// The snapshot is still written, and the next agent continues from it.
			r.kill()
			r.start()
			r.says(1, "the spanning tree is taken over")
			r.stop()
			if left, err := filepath.Glob(filepath.Join(r.dir, "*.[ls]o*")); err != nil || len(left) > 0 {
				t.Errorf("left by the agent: %v, %v", left, err)
			}
			if _, err := os.Lstat(r.pinned("%devices")); err == nil {
				t.Error("its hold is left")
			}
			l.Bascule("bridge", "del", "br0")
		})
	}
}

// TestPlacesLost: an agent that can no longer have its folder ends, and reports that. Bridges
// stay as they are.
func TestPlacesLost(t *testing.T) {
	for _, c := range []struct {
		name string
		put  func(path string) error
	}{
		{"a file", func(path string) error { return os.WriteFile(path, nil, 0o600) }},
		{"a pipe", func(path string) error { return unix.Mkfifo(path, 0o600) }},
		{"a link to nothing", func(path string) error { return os.Symlink("/nowhere/at/all", path) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := netlab.New(t)
			r := newRunner(t, l)
			r.dir = filepath.Join(r.dir, "agent")
			l.Setenv("BASCULE_AGENT_DIR", r.dir)
			l.Bascule("bridge", "add", "br0", "--stp", "rstp")
			r.start()
			r.serves(1, "br0")
			must(t, r.cmd.Process.Signal(syscall.SIGSTOP))
			l.Wait("its process is stopped", func() bool { return bridge.Stopped(r.cmd.Process.Pid) })
			must(t, os.RemoveAll(r.dir))
			must(t, c.put(r.dir))
			l.Refused([]string{"the agent", fmt.Sprint(r.cmd.Process.Pid)}, "agent", "status")
			must(t, r.cmd.Process.Signal(syscall.SIGCONT))
			r.ends("cannot go on", r.dir, "restart it")
			l.Refused([]string{"none runs"}, "agent", "status")
			if l.Bridge("br0").AgentRuns {
				t.Error("the agent has ended, and runs the spanning tree")
			}
			l.Refused([]string{r.dir, "BASCULE_AGENT_DIR"}, "agent")
			must(t, os.Remove(r.dir))
			r.start()
			r.serves(1, "br0")
			r.stop()
			l.Bascule("bridge", "del", "br0")
		})
	}
}

// TestPlacesTaken: if both locks are removed and another agent takes them first, the first
// agent ends, and does not touch the other's files.
func TestPlacesTaken(t *testing.T) {
	l := netlab.New(t)
	r := newRunner(t, l)
	r.dir = filepath.Join(r.dir, "agent")
	l.Setenv("BASCULE_AGENT_DIR", r.dir)
	r.start()
	first, logs := r.cmd, r.logs
	must(t, first.Process.Signal(syscall.SIGSTOP))
	l.Wait("its process is stopped", func() bool { return bridge.Stopped(first.Process.Pid) })
	must(t, os.RemoveAll(r.dir))
	must(t, os.RemoveAll(r.pinned("%devices")))
	r.logs = netlab.NewOutputFile(t)
	r.start()
	second := r.cmd
	must(t, first.Process.Signal(syscall.SIGCONT))
	r.cmd, r.logs = first, logs
	r.ends("cannot go on", "another agent", fmt.Sprint(second.Process.Pid))
	r.cmd = second
	if s := r.status(); s.PID != second.Process.Pid {
		t.Errorf("process %d answers, want %d", s.PID, second.Process.Pid)
	}
	for _, path := range []string{r.at(".lock"), r.at(".sock"), r.pinned("%devices")} {
		if _, err := os.Lstat(path); err != nil {
			t.Errorf("the first agent has removed what is the second's: %v", err)
		}
	}
	r.stop()
}

// TestPlacesUnmounted: without the file system of pins there are no bridges. The agent ends, so
// that the next one begins with the present state.
func TestPlacesUnmounted(t *testing.T) {
	l := netlab.New(t)
	r := newRunner(t, l)
	// In a mount namespace where no other process has the file system.
	agent := l.Command("agent", "--log-level", "debug")
	r.cmd = exec.Command("unshare", append([]string{"-m", "--propagation", "private", "sh", "-c",
		`mount -t bpf -o mode=0700 bascule /run/bascule && exec "$@"`, "sh"}, agent.Args...)...)
	r.cmd.Env, r.cmd.Stderr = agent.Env, r.logs.File
	must(t, r.cmd.Start())
	l.Wait("the agent to be ready", func() bool { return r.count("READY=1") > 0 })
	inside := func(args ...string) *exec.Cmd {
		cmd := exec.Command("nsenter", append([]string{"-t", strconv.Itoa(r.cmd.Process.Pid), "-m"}, args...)...)
		cmd.Env = agent.Env
		return cmd
	}
	out, err := inside(append(agent.Args[:3:3], "bridge", "add", "br0", "--stp", "rstp")...).CombinedOutput()
	if err != nil {
		t.Fatalf("bridge add: %v: %s", err, out)
	}
	r.serves(1, "br0")
	must(t, inside("umount", "-l", "/run/bascule").Run())
	r.ends("cannot go on", "/run/bascule", "restart it")
}
