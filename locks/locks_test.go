// SPDX-License-Identifier: BSD-2-Clause

package locks

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A process with a copy of the open file, such as a child before it executes its
// program, does not keep the lock.
func TestClose(t *testing.T) {
	dir := t.TempDir()
	open := func() *os.File {
		t.Helper()
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for how, lock := range map[string]func(*os.File) error{"Wait": Wait, "Try": Try, "TryShared": TryShared} {
		one, other := open(), open()
		child, err := unix.Dup(int(one.Fd()))
		if err != nil {
			t.Fatal(err)
		}
		if err := lock(one); err != nil {
			t.Fatal(err)
		}
		if err := Try(other); !errors.Is(err, unix.EWOULDBLOCK) {
			t.Errorf("%s: another has the lock, too: %v", how, err)
		}
		if err := Close(one); err != nil {
			t.Error(err)
		}
		if err := Try(other); err != nil {
			t.Errorf("%s: the lock is still there: %v", how, err)
		}
		unix.Close(child)
		Close(other)
	}
}

// TestMain runs the child of TestHoldStop: it answers the first line while it holds stops, and the second afterwards.
func TestMain(m *testing.M) {
	if os.Getenv("LOCKS_CHILD") == "" {
		os.Exit(m.Run())
	}
	goOn := HoldStop()
	fmt.Println("held")
	lines := bufio.NewScanner(os.Stdin)
	lines.Scan()
	fmt.Println("runs")
	lines.Scan()
	goOn()
	lines.Scan()
}

// A signal of the terminal stops a process only when it has no lock any more.
func TestHoldStop(t *testing.T) {
	for _, s := range []syscall.Signal{unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU} {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), "LOCKS_CHILD=1")
		in, err := child.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		lines.Scan()
		if err := child.Process.Signal(s); err != nil {
			t.Fatal(err)
		}
		fmt.Fprintln(in)
		got := make(chan string)
		go func() { lines.Scan(); got <- lines.Text(); close(got) }()
		stopped := make(chan syscall.WaitStatus)
		go func() {
			var st syscall.WaitStatus
			_, err := syscall.Wait4(child.Process.Pid, &st, syscall.WUNTRACED, nil)
			for errors.Is(err, unix.EINTR) {
				_, err = syscall.Wait4(child.Process.Pid, &st, syscall.WUNTRACED, nil)
			}
			stopped <- st
		}()
		select {
		case text := <-got:
			if text != "runs" {
				t.Errorf("%v: %q", s, text)
			}
			fmt.Fprintln(in)
			if st := <-stopped; !st.Stopped() {
				t.Errorf("%v: the process does not stop afterwards: %v", s, st)
			}
		case st := <-stopped:
			t.Errorf("%v ends or stops a process that has a lock: %v", s, st)
		}
		_ = child.Process.Kill()
		_ = child.Wait() // it was killed
	}
}
