// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/datapath"
	"bascule/test/netlab"
)

// fullPipe makes a pipe that one page fills, and a function that reports how many bytes are in it.
func fullPipe(t *testing.T) (read, write *os.File, unread func() int) {
	t.Helper()
	read, write, err := os.Pipe()
	must(t, err)
	t.Cleanup(func() { read.Close(); write.Close() })
	_, err = unix.FcntlInt(read.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
	must(t, err)
	return read, write, func() int {
		n, err := unix.IoctlGetInt(int(read.Fd()), unix.TIOCINQ)
		must(t, err)
		return n
	}
}

// ended waits until a command ends, and returns how.
func ended(t *testing.T, cmd *exec.Cmd) syscall.WaitStatus {
	t.Helper()
	timer := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer timer.Stop()
	_ = cmd.Wait() // its error is the status
	return cmd.ProcessState.Sys().(syscall.WaitStatus)
}

// stuckReader: one signal ends a command whose reader reads nothing, and each frame is in one of its counts.
func stuckReader(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	loadPF(t, l, "pass no state\nblock in log on p1 proto udp to port 53\n")
	const sent = 4000
	for _, c := range []struct {
		args   string
		signal syscall.Signal
		counts bool // its last line has them
		errors bool // standard error is not read either
	}{
		{"capture br0 udp", syscall.SIGTERM, true, false},
		{"-j capture br0 udp", syscall.SIGINT, true, false},
		{"capture br0 -w - udp", syscall.SIGHUP, true, false},
		{"capture br0 -w FIFO udp", syscall.SIGTERM, true, false},
		{"pflog", syscall.SIGTERM, true, false},
		{"pflog -w -", syscall.SIGINT, true, false},
		{"pflog -w FIFO", syscall.SIGHUP, true, false},
		{"stats --interval 100ms", syscall.SIGTERM, false, false},
		{"stats --interval 100ms", syscall.SIGINT, false, true},
	} {
		_, write, unread := fullPipe(t)
		args, says := c.args, "cannot print: write /dev/stdout: its reader reads nothing more; see where standard output goes"
		var stderr netlab.Output
		if before, to, ok := strings.Cut(args, "FIFO"); ok {
			fifo := filepath.Join(t.TempDir(), "fifo")
			must(t, unix.Mkfifo(fifo, 0o600))
			r, err := os.OpenFile(fifo, os.O_RDWR, 0)
			must(t, err)
			defer r.Close()
			_, err = unix.FcntlInt(r.Fd(), unix.F_SETPIPE_SZ, os.Getpagesize())
			must(t, err)
			unread = func() int {
				n, err := unix.IoctlGetInt(int(r.Fd()), unix.TIOCINQ)
				must(t, err)
				return n
			}
			args, says = before+fifo+to, "cannot write "+fifo+": its reader reads nothing more; see where -w goes"
		}
		cmd := l.Command(strings.Fields(args)...)
		cmd.Stdout, cmd.Stderr = write, &stderr
		if c.errors {
			cmd.Stderr = write
		}
		must(t, cmd.Start())
		defer cmd.Process.Kill()
		probes := 0
		frame := udp4(B, A, ip1, ip2, [2]int{1000, 53}, 1)
		l.Wait(args+" to write", func() bool {
			l.Reach(a, []netlab.Frame{frame})
			probes++
			return unread() > 0
		})
		l.Reach(a, slices.Repeat([]netlab.Frame{frame}, sent))
		if !c.counts { // the frames do not fill the pipe
			l.Wait(args+" to fill its pipe", func() bool {
				threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", cmd.Process.Pid))
				must(t, err)
				return slices.ContainsFunc(threads, func(path string) bool {
					at, _ := os.ReadFile(path) // the thread may have ended
					return strings.Contains(string(at), "pipe_write")
				})
			})
		}
		must(t, cmd.Process.Signal(c.signal))
		status := ended(t, cmd)
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		if status.ExitStatus() != 1 || !c.errors && !strings.HasSuffix(lines[len(lines)-1], says) {
			t.Errorf("%s: it ends with %#x, and says %q, should end with status 1 and %q", args, status, lines, says)
			continue
		}
		if !c.counts {
			continue
		}
		counted, missed := 0, 0
		_, err := fmt.Sscanf(lines[0], "bascule: br0: %d %s %s %d missed", &counted, new(string), new(string), &missed)
		if sum := counted + missed; err != nil || sum < sent || sum > sent+probes {
			t.Errorf("%s: %q: the sum should be %d to %d", args, lines[0], sent, sent+probes)
		}
	}
}

// interruptedWait: a signal ends a command that waits for another one before it has begun.
func interruptedWait(t *testing.T, _ string) {
	l, _ := setup(t, "tcx", 1)
	var unlock func()
	must(t, l.Switch.Do(func() error {
		s, err := datapath.OpenStore()
		if err == nil {
			unlock, err = s.Lock()
		}
		return err
	}))
	defer unlock()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		cmd := l.Command("capture", "br0")
		var stderr netlab.Output
		cmd.Stderr = &stderr
		must(t, cmd.Start())
		l.Wait("the capture to wait", func() bool { return strings.Contains(stderr.String(), "waiting for process") })
		must(t, cmd.Process.Signal(sig))
		if status := ended(t, cmd); !status.Signaled() || status.Signal() != sig {
			t.Errorf("%v: it ends with %#x, %q", sig, status, stderr.String())
		}
	}
}

// fullDisk: an error of writing is reported as such.
func fullDisk(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a := ends[0]
	loadPF(t, l, "block in log on p1 proto udp to port 53\n")
	for _, args := range []string{"pflog -w /dev/full", "capture br0 -w /dev/full"} {
		cmd := l.Command(strings.Fields(args)...)
		var stderr netlab.Output
		cmd.Stderr = &stderr
		must(t, cmd.Start())
		defer cmd.Process.Kill()
		done := make(chan struct{})
		go func() { defer close(done); _ = cmd.Wait() }()
		l.Wait(args+" to end", func() bool {
			l.Reach(a, []netlab.Frame{udp4(B, A, ip1, ip2, [2]int{1000, 53}, 1)})
			select {
			case <-done:
				return true
			default:
				return false
			}
		})
		const want = "bascule: cannot write /dev/full: no space left on device; see where -w goes\n"
		if cmd.ProcessState.ExitCode() != 1 || stderr.String() != want {
			t.Errorf("%s: it ends with %v, %q, should say %q", args, cmd.ProcessState, stderr.String(), want)
		}
	}
}
