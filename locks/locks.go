// SPDX-License-Identifier: BSD-2-Clause

// Package locks locks files and folders against other processes (flock(2)).
//
// A lock belongs to the open file, not to the process. For a moment, a child process that is
// being started shares all open files of its parent, until it executes its program. So Close
// releases the lock: closing only the file would leave the lock to such a child.
package locks

import (
	"fmt"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// Wait locks an open file exclusively. It waits until there is no other lock.
func Wait(f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return nil
		}
		if err != unix.EINTR {
			return fmt.Errorf("lock %s: %w", f.Name(), err)
		}
	}
}

// Try locks an open file exclusively. The error is unix.EWOULDBLOCK if there is another lock.
func Try(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// TryShared takes a shared lock of an open file. The error is unix.EWOULDBLOCK if there is an
// exclusive lock.
func TryShared(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) }

// Close releases the lock and closes the file.
func Close(f *os.File) error {
	// A file system that cannot unlock cannot lock either.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	return f.Close()
}

// stops is global, as signals are for the whole process.
var stops struct {
	sync.Mutex
	watch   sync.Once
	held    int
	pending bool
}

// byTerminal are the signals by which a terminal stops a process: for Ctrl-Z, and for input or output in the
// background (tostop of stty(1)).
var byTerminal = []os.Signal{unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}

// HoldStop delays a stop of this process by the terminal until the caller calls goOn: other processes would wait for a
// lock as long as this one is stopped. Meanwhile a write in the background is repeated by the kernel.
func HoldStop() (goOn func()) {
	stops.Lock()
	stops.held++
	stops.Unlock()
	stops.watch.Do(func() {
		c := make(chan os.Signal, 1)
		for _, s := range byTerminal {
			if !signal.Ignored(s) {
				signal.Notify(c, s) // for good: Go's runtime would ignore it after signal.Stop
			}
		}
		go func() {
			for range c {
				stops.Lock()
				if stops.pending = stops.held > 0; !stops.pending {
					stop()
				}
				stops.Unlock()
			}
		}()
	})
	return func() {
		stops.Lock()
		defer stops.Unlock()
		if stops.held--; stops.held == 0 && stops.pending {
			stops.pending = false
			stop()
		}
	}
}

func stop() { _ = unix.Kill(os.Getpid(), unix.SIGSTOP) }
