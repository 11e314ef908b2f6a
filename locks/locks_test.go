// SPDX-License-Identifier: BSD-2-Clause

package locks

import (
	"errors"
	"os"
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
