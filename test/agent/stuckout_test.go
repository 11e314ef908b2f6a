// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// fullPipe returns the end for writing of a pipe that is full and has no reader at work.
func fullPipe(t *testing.T) *os.File {
	t.Helper()
	read, write, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { read.Close(); write.Close() })
	fd := int(write.Fd()) // each call of Fd makes it blocking
	must(t, unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 4096))
	}
	must(t, unix.SetNonblock(fd, false))
	return write
}

// start starts a command whose standard error is this file, and has it killed at the end of the test.
func start(t *testing.T, l *netlab.Lab, stderr *os.File, args ...string) *exec.Cmd {
	t.Helper()
	cmd := l.Command(args...)
	if stderr != nil {
		cmd.Stderr = stderr
	}
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error is the status
	})
	return cmd
}

// confirmStderrFull has another user's command warn on a standard error that is not read. The command must not keep
// others waiting: the change is put back.
func confirmStderrFull(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	l.Setenv("SUDO_USER", "alice")
	tried(t, l, "1h", bad)
	l.Setenv("SUDO_USER", "bob")
	start(t, l, fullPipe(t), "bridge", "set", "br0", "--ageing", "99s")
	aged := func() bool {
		r, err := l.Run("-j", "bridge", "show", "br0")
		return err == nil && strings.Contains(r.Stdout, `"ageing_time":99,`)
	}
	l.Wait("the command to change the bridge", aged)
	overdue(t, l)
	isBack(t, l)
}

// TestAgentStderrFull: an agent whose log is not read works, and ends when it should.
func TestAgentStderrFull(t *testing.T) {
	l := netlab.New(t)
	l.NewEnds(2)
	setFolders(t, l)
	agent := start(t, l, fullPipe(t), "agent", "-f", file(t, "good.yaml", good))
	l.Wait("the agent to apply its files", func() bool {
		r, err := l.Run("agent", "status")
		return err == nil && strings.Contains(r.Stdout, "in force since")
	})
	l.Bascule("agent", "reload")
	works(l)
	must(t, agent.Process.Signal(unix.SIGTERM))
	ended := make(chan error)
	go func() { ended <- agent.Wait() }()
	var err error
	over := false
	l.Wait("the agent to end", func() bool {
		select {
		case err = <-ended:
			over = true
		default:
		}
		return over
	})
	if err != nil {
		t.Error(err)
	}
}

// confirmAgentStopped: a stopped agent has taken the carrier of the host's interface. The host has its carrier again
// when the change is put back.
func confirmAgentStopped(t *testing.T, l *netlab.Lab) {
	const host = "bridges: {br0: {ports: {p1: {%s}, h0: {type: host, addresses: 192.0.2.9/24}}}}"
	agent := start(t, l, nil, "agent", "-f", file(t, "good.yaml", fmt.Sprintf(host, "")))
	carrier := func(up bool) func() bool {
		return func() bool {
			out, err := exec.Command("ip", "-n", l.Switch.Name, "link", "show", "h0").Output()
			return err == nil && strings.Contains(string(out), "NO-CARRIER") != up
		}
	}
	l.Wait("the host's interface to have a carrier", carrier(true))
	tried(t, l, "1h", fmt.Sprintf(host, "up: off"))
	l.Wait("the agent to take the carrier", carrier(false))
	must(t, agent.Process.Signal(unix.SIGSTOP))
	overdue(t, l)
	l.Wait("the change to be put back", func() bool { return !waiting(l) })
	l.Wait("the host's interface to have a carrier again", carrier(true))
}

// confirmDescriptors: the process that waits does not keep what the command's parent has opened, such as a lock.
func confirmDescriptors(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	path := file(t, "lock", "")
	lock, err := os.Open(path)
	must(t, err)
	defer lock.Close()
	must(t, unix.Flock(int(lock.Fd()), unix.LOCK_EX))
	cmd := l.Command("apply", "--confirm", "1h", file(t, "bad.yaml", bad))
	cmd.ExtraFiles = []*os.File{lock}
	if r, err := netlab.RunCommand(cmd); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	if len(watchers(l)) == 0 {
		t.Fatal("no process waits to put the change back")
	}
	must(t, lock.Close())
	again, err := os.Open(path)
	must(t, err)
	defer again.Close()
	if err := unix.Flock(int(again.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("the process has the lock: %v", err)
	}
	overdue(t, l)
	isBack(t, l)
}

// confirmUnopened: the name of the namespace is away for a while. The process that waits goes on waiting.
func confirmUnopened(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	name := file(t, "ns", "")
	mount := func() { must(t, unix.Mount("/run/netns/"+l.Switch.Name, name, "", unix.MS_BIND, "")) }
	mount()
	defer func() { must(t, unix.Unmount(name, unix.MNT_DETACH)) }()
	cmd := exec.Command(l.Binary(), "-n", name, "apply", "--confirm", "1h", file(t, "bad.yaml", bad))
	cmd.Env = l.Command().Env
	if r, err := netlab.RunCommand(cmd); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	defer func() { _, _ = l.Run("apply", "confirm", "--yes") }() // or the process waits for an hour
	must(t, unix.Unmount(name, unix.MNT_DETACH))
	opened, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	must(t, err)
	defer unix.Close(opened)
	_, err = unix.InotifyAddWatch(opened, name, unix.IN_OPEN)
	must(t, err)
	l.Wait("the process to look for the namespace", func() bool {
		_, err := unix.Read(opened, make([]byte, 4096))
		return err == nil
	})
	mount()
	overdue(t, l)
	isBack(t, l)
}

// confirmRelativeDirs: the folders of states and of the agent are relative to the command's folder.
func confirmRelativeDirs(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	cmd := l.Command("apply", "--confirm", "1h", file(t, "bad.yaml", bad))
	cmd.Dir = filepath.Dir(filepath.Dir(ofLab(l)))
	cmd.Env = append(cmd.Env, "BASCULE_STATE_DIR="+filepath.Base(filepath.Dir(ofLab(l))))
	if r, err := netlab.RunCommand(cmd); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	overdue(t, l)
	isBack(t, l)
}

// confirmNamespaceGone: of two namespaces of a change one is deleted. The change of the other one is confirmed.
func confirmNamespaceGone(t *testing.T, l *netlab.Lab) {
	const name = "bsc-gone"
	must(t, exec.Command("ip", "netns", "add", name).Run())
	defer func() { _ = exec.Command("ip", "netns", "del", name).Run() }() // it is gone if all goes well
	path := file(t, "two.yaml", "netns: "+l.Switch.Name+"\n"+good+"\n---\nnetns: "+name+"\nbridges: {br0: {}}\n")
	cmd := exec.Command(l.Binary(), "apply", "--confirm", "1h", path)
	cmd.Env = l.Command().Env
	if r, err := netlab.RunCommand(cmd); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	must(t, exec.Command("ip", "netns", "del", name).Run())
	r, err := l.Run("apply", "confirm")
	if err != nil || r.Exit != 0 || !strings.Contains(r.Stderr, "network namespace "+name+" is gone, and its part of the change with it") {
		t.Error(r, err)
	}
	if waiting(l) {
		t.Error("the change still waits")
	}
}

// confirmPIDNamespace: in a PID namespace of its own the command cannot leave a process behind, and refuses.
func confirmPIDNamespace(t *testing.T, l *netlab.Lab) {
	apply(t, l, file(t, "good.yaml", good))
	cmd := l.Command("apply", "--confirm", "1h", file(t, "bad.yaml", bad))
	cmd.Args = append([]string{"unshare", "-pf", "--mount-proc", l.Binary()}, cmd.Args[1:]...)
	path, err := exec.LookPath("unshare")
	must(t, err)
	cmd.Path = path
	r, err := netlab.RunCommand(cmd)
	if err != nil || r.Exit != 1 || !strings.Contains(r.Stderr, "this command is the first process of its PID namespace") {
		t.Error(r, err)
	}
	if waiting(l) {
		t.Error("the change waits")
	}
	stateIs(t, l)
}
