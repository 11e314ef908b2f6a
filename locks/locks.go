// SPDX-License-Identifier: BSD-2-Clause

// Package locks locks files and folders among processes (flock(2)).
//
// A lock belongs to the open file, not to the process. A process that is being started
// has all open files of its parent for a moment, until it executes its program. So a lock
// is given up by Close here: closing the file alone leaves it to such a child.
package locks

import (
	"fmt"
	"os"
	"os/signal"
	"sync"

	"golang.org/x/sys/unix"
)

// Wait locks an open file for the caller alone, as soon as nobody else has it.
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

// Try locks an open file for the caller alone. The error is unix.EWOULDBLOCK where
// somebody else has it.
func Try(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }

// TryShared locks an open file for the caller and for all others that want it shared. The
// error is unix.EWOULDBLOCK where somebody has it alone.
func TryShared(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB) }

// Close gives up the lock and closes the file.
func Close(f *os.File) error {
	// A file system that cannot unlock cannot lock either.
	_ = unix.Flock(int(f.Fd()), unix.LOCK_UN)
	return f.Close()
}

// stops is about the process, as signals are.
var stops struct {
	sync.Mutex
	watch   sync.Once
	held    int
	pending bool
}

// HoldStop puts off that a terminal stops this process (SIGTSTP, by Ctrl-Z) until the caller goes
// on: others would wait for a lock for as long as it is stopped.
func HoldStop() (goOn func()) {
	stops.Lock()
	stops.held++
	stops.Unlock()
	stops.watch.Do(func() {
		if signal.Ignored(unix.SIGTSTP) {
			return
		}
		c := make(chan os.Signal, 1)
		signal.Notify(c, unix.SIGTSTP) // for good: Go's runtime would ignore it after signal.Stop
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
