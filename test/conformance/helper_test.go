// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"bascule/datapath"
	"bascule/test/netlab"

	"golang.org/x/sys/unix"
)

// The user ID of an unprivileged user.
const nobody = 65534

// newHelper installs the bridge helper as a setuid file of root, in a folder that no other user
// reaches. as runs a command as an unprivileged user who sees the given access list. Since the
// list has a fixed path, the command has a mount of its own there.
func newHelper(t *testing.T, l *netlab.Lab) (helper string, as func(list string, args ...string) *exec.Cmd) {
	t.Helper()
	dir, err := os.MkdirTemp("/var/tmp", "bsc-helper")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must(t, os.Chmod(dir, 0o755))
	helper = filepath.Join(dir, "helper")
	l.CopyBinary(helper, "4755")
	acl := filepath.Join(dir, "bridge.conf")
	return helper, func(list string, args ...string) *exec.Cmd {
		must(t, os.WriteFile(acl, []byte(list), 0o644))
		inside := fmt.Sprintf("mkdir -p /etc/bascule && mount -t tmpfs -o mode=755 none /etc/bascule && cp %s /etc/bascule/bridge.conf && exec setpriv --reuid %d --regid %d --clear-groups -- \"$@\"", acl, nobody, nobody)
		return exec.Command("nsenter", append([]string{"--net=/run/netns/" + l.Switch.Name, "unshare", "--mount", "--propagation", "private", "sh", "-c", inside, "sh"}, args...)...)
	}
}

// asUser runs f on a thread of an unprivileged user, in the switch's network namespace.
func asUser(l *netlab.Lab, uid int, f func() error) error {
	ended := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked
		err := l.Enter()
		if err == nil {
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
				err = errno
			}
		}
		if err == nil {
			err = f()
		}
		ended <- err
	}()
	return <-ended
}

// processes returns the processes that run a program.
func processes(program string) (list []int) {
	exes, _ := filepath.Glob("/proc/[0-9]*/exe")
	for _, exe := range exes {
		if is, err := os.Readlink(exe); err == nil && is == program {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(exe)))
			list = append(list, pid)
		}
	}
	return list
}

// newTerminal makes a terminal, and returns the keyboard's end and the program's end.
func newTerminal(t *testing.T) (keys, terminal *os.File) {
	t.Helper()
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { keys.Close() })
	must(t, unix.IoctlSetPointerInt(int(keys.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(keys.Fd()), unix.TIOCGPTN)
	must(t, err)
	terminal, err = os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	must(t, err)
	t.Cleanup(func() { terminal.Close() })
	return keys, terminal
}

// usersCgroup makes a cgroup that belongs to a user, or returns "" without cgroups of version 2.
func usersCgroup(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err != nil {
			continue
		}
		dir := filepath.Join(root, fmt.Sprintf("bsc-helper-%d", os.Getpid()))
		must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() { os.Remove(dir) })
		must(t, os.Chown(dir, nobody, nobody))
		for _, name := range []string{"cgroup.procs", "cgroup.freeze"} {
			must(t, os.Chown(filepath.Join(dir, name), nobody, nobody))
		}
		return dir
	}
	return ""
}

// rootsCgroup makes a cgroup that only root can change, or returns "" without cgroups. Its limits
// also apply to the processes of users.
func rootsCgroup(t *testing.T) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/cpu"} {
		var st unix.Statfs_t
		if err := unix.Statfs(filepath.Join(root, "cgroup.procs"), &st); err != nil || st.Type != unix.CGROUP_SUPER_MAGIC && st.Type != unix.CGROUP2_SUPER_MAGIC {
			continue // a plain file is no cgroup
		}
		dir := filepath.Join(root, fmt.Sprintf("bsc-helper-root-%d", os.Getpid()))
		must(t, os.Mkdir(dir, 0o755))
		t.Cleanup(func() { os.Remove(dir) })
		return dir
	}
	return ""
}

// socketFor gives a command a Unix socket as descriptor 3, and returns the other end.
func socketFor(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	theirs := os.NewFile(uintptr(pair[1]), "socket")
	cmd.ExtraFiles = []*os.File{theirs}
	t.Cleanup(func() { unix.Close(pair[0]); theirs.Close() })
	return pair[0]
}

// receiveTap receives the tap that the helper sends.
func receiveTap(t *testing.T, socket int) int {
	t.Helper()
	data, control := make([]byte, 1), make([]byte, 64)
	_, n, _, _, err := unix.Recvmsg(socket, data, control, unix.MSG_CMSG_CLOEXEC)
	must(t, err)
	messages, err := unix.ParseSocketControlMessage(control[:n])
	must(t, err)
	if len(messages) != 1 {
		t.Fatalf("the helper has sent %d descriptors", len(messages))
	}
	fds, err := unix.ParseUnixRights(&messages[0])
	must(t, err)
	return fds[0]
}

// An unprivileged user who stops the helper, in any way, blocks no change of bridges: the user
// cannot stop the process that holds the lock.
func helperStopped(t *testing.T, _ string) {
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0")
	helper, as := newHelper(t, l)
	cgroup, quota := usersCgroup(t), rootsCgroup(t)
	within := func(cgroup string) []string {
		if cgroup == "" {
			return nil
		}
		return []string{"sh", "-c", "echo 0 > " + cgroup + "/cgroup.procs; exec \"$@\"", "sh"}
	}
	keys, terminal := newTerminal(t)
	atTerminal := &syscall.SysProcAttr{Setsid: true, Setctty: true}
	kill := func(pids []int, sig unix.Signal) {
		for _, pid := range pids {
			unix.Kill(pid, sig)
		}
	}
	var pids []int // as seen by root
	for _, c := range []struct {
		what       string
		way        *syscall.SysProcAttr
		begin      []string // in front of the helper
		stop, goOn func() error
	}{
		{"a signal", &syscall.SysProcAttr{}, nil, func() error { kill(pids, unix.SIGSTOP); return nil }, nil},
		{"the terminal", atTerminal, nil, func() error {
			_, err := keys.Write([]byte{'Z' & 0x1f})
			return err
		}, nil},
		{"a frozen cgroup", nil, within(cgroup),
			func() error { return os.WriteFile(cgroup+"/cgroup.freeze", []byte("1"), 0) },
			func() error { return os.WriteFile(cgroup+"/cgroup.freeze", []byte("0"), 0) }},
		// where busy loops of others use up its time
		{"a cgroup of root's", nil, within(quota), func() error { return nil }, nil},
		{"limits", &syscall.SysProcAttr{}, []string{"nice", "-n", "19", "prlimit", "--fsize=0:", "--nofile=32:", "--memlock=0:", "--cpu=1000:", "--"},
			func() error { return nil }, nil},
	} {
		t.Run(c.what, func(t *testing.T) {
			if c.way == nil && c.begin == nil {
				t.Skip("there are no such cgroups")
			}
			var cmd *exec.Cmd
			// the shell that moves there is root's: otherwise the user could move
			// there, too
			if c.way == nil {
				inner := as("allow br0", helper, "--fd=3", "--br=br0")
				cmd = exec.Command(c.begin[0], append(slices.Clone(c.begin[1:]), inner.Args...)...)
			} else {
				cmd = as("allow br0", append(slices.Clone(c.begin), helper, "--fd=3", "--br=br0")...)
			}
			if cmd.Stdin, cmd.SysProcAttr = terminal, c.way; c.way == atTerminal {
				asJob(cmd)
				c.goOn = func() error { return goOn(keys) }
			}
			socket := socketFor(t, cmd)
			t.Cleanup(func() {
				if c.goOn != nil {
					c.goOn()
				}
				kill(processes(helper), unix.SIGCONT)
				kill(processes(helper), unix.SIGKILL)
			})
			ended := stopWithLock(t, l, cmd, func() error {
				unowned(t, datapath.LockHolder(l.State()))
				pids = processes(helper)
				return asUser(l, nobody, c.stop)
			})
			l.Wait("the lock", func() bool { return !l.Writer() })
			unix.Close(receiveTap(t, socket))
			if c.goOn != nil {
				must(t, c.goOn())
			}
			kill(processes(helper), unix.SIGCONT)
			if r := <-ended; r.error != nil || r.Exit != 0 {
				t.Errorf("the helper: %v, %v", r.Result, r.error)
			}
		})
	}
}

// A watchedResult is the result of a command whose system calls were watched.
type watchedResult struct {
	netlab.Result
	error
}

// stopWithLock runs a command, and stops it at its first bpf(2) call with the lock.
func stopWithLock(t *testing.T, l *netlab.Lab, cmd *exec.Cmd, stop func() error) (ended chan watchedResult) {
	t.Helper()
	stopped, ended := make(chan error, 1), make(chan watchedResult, 1)
	go func() {
		once := false
		r, err := netlab.RunWatched(cmd, []string{"bpf"}, func(string, int) netlab.Answer {
			if !once && l.Writer() {
				once = true
				stopped <- stop()
			}
			return netlab.Answer{}
		})
		ended <- watchedResult{r, err}
	}()
	select {
	case err := <-stopped:
		must(t, err)
	case r := <-ended:
		t.Fatalf("no bridge was changed: %v", r)
	}
	return ended
}

// Ctrl-Z stops a command when it has released the lock.
func commandStopped(t *testing.T, _ string) {
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0")
	keys, terminal := newTerminal(t)
	cmd := l.Command("bridge", "set", "br0", "--vlan-filtering")
	cmd.Stdin, cmd.SysProcAttr = terminal, &syscall.SysProcAttr{Setsid: true, Setctty: true}
	asJob(cmd)
	ended := stopWithLock(t, l, cmd, func() error {
		_, err := keys.Write([]byte{'Z' & 0x1f})
		return err
	})
	t.Cleanup(func() { cmd.Process.Kill() })
	l.Wait("the lock", func() bool { return !l.Writer() })
	if got := l.Bascule("bridge", "show", "br0"); !strings.Contains(got, "vlan-filtering") {
		t.Errorf("the change is not made: %s", got)
	}
	must(t, goOn(keys))
	if r := <-ended; r.error != nil || r.Exit != 0 {
		t.Errorf("the command: %v, %v", r.Result, r.error)
	}
}

// asJob has a shell run a command as its job, which the terminal stops and goOn continues.
func asJob(cmd *exec.Cmd) {
	shell := exec.Command("sh", append([]string{"-m", "-c", `"$@"; read go; fg`, "sh"}, cmd.Args...)...)
	cmd.Path, cmd.Args = shell.Path, shell.Args
}

// goOn has the shell continue the command after it was stopped. If it was not stopped, the shell
// reports an error.
func goOn(keys *os.File) error {
	_, err := keys.Write([]byte("\n"))
	return err
}

// unowned checks that a process has no attributes of the user who started it.
func unowned(t *testing.T, pid int) {
	t.Helper()
	read := func(name string) string {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
		if err != nil {
			t.Error(err)
		}
		return string(text)
	}
	if status := read("status"); !strings.Contains(status, "\nUid:\t0\t0\t0\t0\n") || !strings.Contains(status, "\nGid:\t0\t0\t0\t0\n") || !strings.Contains(status, "\nGroups:\t \n") {
		t.Errorf("who has the lock is somebody's: %s", status)
	}
	limits := read("limits")
	for _, what := range []string{"cpu time", "file size", "address space", "locked memory", "open files"} {
		_, line, _ := strings.Cut(limits, "Max "+what)
		if words := strings.Fields(line); len(words) < 2 || words[0] != words[1] {
			t.Errorf("who has the lock is limited: %s", limits)
			break
		}
	}
	stat := read("stat")
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:]) // from the third field on
	if len(fields) < 17 {
		return
	}
	if session, nice := fields[3], fields[16]; session != strconv.Itoa(pid) || nice != "0" {
		t.Errorf("who has the lock is in session %s with nice %s", session, nice)
	}
	for line := range strings.Lines(read("cgroup")) {
		if strings.Contains(line, "bsc-helper") {
			t.Errorf("who has the lock is in %s", line)
		}
	}
}

// A caller that does not read its socket does not block a root process: the helper ends, and
// removes its port.
func helperSocketFull(t *testing.T, _ string) {
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0")
	helper, as := newHelper(t, l)
	cmd := as("allow br0", helper, "--fd=3", "--br=br0")
	socketFor(t, cmd)
	theirs := int(cmd.ExtraFiles[0].Fd())
	var full error
	for full == nil {
		full = unix.Sendto(theirs, make([]byte, 4096), unix.MSG_DONTWAIT, nil)
	}
	if !errors.Is(full, unix.EAGAIN) {
		t.Fatal(full)
	}
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "cannot hand the tap over") {
		t.Errorf("the helper ends with %v: %s", err, out)
	}
	if got := owners(l); len(got) != 0 {
		t.Errorf("ports are left: %v", got)
	}
}

// A tap that its user makes persistent loses its owner, and is removed when the helper runs next.
func helperTapKept(t *testing.T, _ string) {
	l := netlab.New(t)
	l.Bascule("bridge", "add", "br0")
	helper, as := newHelper(t, l)
	run := func() int {
		t.Helper()
		cmd := as("allow br0", helper, "--fd=3", "--br=br0")
		socket := socketFor(t, cmd)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return receiveTap(t, socket)
	}
	tap := run()
	l.Keep("guest0")
	must(t, asUser(l, nobody, func() error { return unix.IoctlSetInt(tap, unix.TUNSETPERSIST, 1) }))
	other := run()
	if got := owners(l); got["qemu/guest0"] != "guest0" || got["qemu/guest1"] != "guest1" {
		t.Errorf("a tap that is open is taken away: %v", got)
	}
	unix.Close(other)
	unix.Close(tap)
	for _, uid := range []int{nobody - 1, nobody} {
		var fd int
		must(t, l.Switch.Do(func() (err error) {
			fd, err = unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
			return err
		}))
		err := asUser(l, uid, func() error {
			request, err := unix.NewIfreq("guest0")
			if err != nil {
				return err
			}
			request.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
			return unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
		})
		if !errors.Is(err, unix.EPERM) {
			t.Errorf("user %d takes the tap that was left: %v", uid, err)
		}
		unix.Close(fd)
	}
	last := run()
	defer unix.Close(last)
	if got := owners(l); len(got) != 1 {
		t.Errorf("ports are left: %v", got)
	}
	if out := l.Bascule("port", "show", "br0"); strings.Contains(out, "gone") {
		t.Errorf("ports are left: %s", out)
	}
}
