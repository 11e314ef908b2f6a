// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// fullPipe returns the end for writing of a pipe that is full, and that nobody reads.
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
	cmd.Stderr = stderr
	must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // its error is the status
	})
	return cmd
}

// confirmStderrFull has another user's command warn on a standard error that nobody reads. The command must not keep
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
