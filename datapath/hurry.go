// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bascule/locks"
)

// A hurry makes the kernel's grace periods short. Each time a program is attached to a
// device by tcx, or detached, the kernel waits for an RCU grace period, and holds the
// lock of all devices meanwhile (tcx_entry_sync() in kernel/bpf/tcx.c). That takes about
// three ticks of its clock, so hundreds of ports take seconds. At other places where the
// kernel waits under that lock, it uses expedited grace periods (synchronize_net()). A
// hurry switches these on for all waits as long as it lasts. It has no effect if the
// kernel may not use them (rcu_normal).
//
// The switch is an integer, and any value but 0 is on (kernel/ksysfs.c,
// rcu_gp_is_expedited()). The value marks a hurry: a hurry that was killed can be
// recognized wherever the switch is visible, even if no file is left of it.
type hurry struct {
	dir   string // hurryDir
	file  string // hurrySwitch
	begun bool
	lock  *os.File // nil if it has not begun, or could not
}

const (
	hurrySwitch = "/sys/kernel/rcu_expedited"
	hurryMark   = "47708"  // 0xba5c: the switch's value during a hurry
	hurryDir    = "%hurry" // next to the namespaces' folders: each hurry holds a shared lock on it
)

func (s *Store) hurry() *hurry {
	return &hurry{dir: filepath.Join(filepath.Dir(s.dir), hurryDir), file: hurrySwitch}
}

// begin expedites grace periods, if possible. It is called right before each call that
// makes the kernel wait: other changes disturb no processor.
func (h *hurry) begin() {
	if h.begun {
		return
	}
	h.begun = true
	// A process that can't restore the switch, because its /sys is read-only, must not
	// begin.
	file, err := os.OpenFile(h.file, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer file.Close()
	if is := h.is(); is != "0" && is != hurryMark {
		return // it is always on here
	}
	if err := os.Mkdir(h.dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return
	}
	// There is no lock if the last process ends its hurry at this moment.
	lock := h.open(locks.TryShared)
	if lock == nil {
		return
	}
	if _, err := file.WriteAt([]byte(hurryMark), 0); err != nil {
		locks.Close(lock)
		return
	}
	h.lock = lock
}

// is returns the value of the switch, "" if it cannot be read.
func (h *hurry) is() string {
	text, err := os.ReadFile(h.file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// end switches expediting off, unless another hurry goes on.
func (h *hurry) end() {
	if h.lock != nil {
		locks.Close(h.lock)
		h.calm()
	}
}

// calm ends the hurry of processes that are done, or were killed. A process that is still
// in a hurry ends it later. A hurry of a process with another file system, whose folder
// cannot be seen, ends, too: that process continues slowly.
func (h *hurry) calm() {
	// A command of an earlier version set the switch to 1, and marked that by the folder.
	_, err := os.Stat(h.dir)
	former := err == nil && h.is() == "1"
	if is := h.is(); err != nil && is != hurryMark {
		return
	}
	if err != nil && os.Mkdir(h.dir, 0o700) != nil {
		return // another hurry has just begun
	}
	lock := h.open(locks.Try)
	if lock == nil {
		return
	}
	defer locks.Close(lock)
	if is := h.is(); is == hurryMark || former && is == "1" {
		_ = os.WriteFile(h.file, []byte("0"), 0) // if this fails, the next writer with the permission does it
	}
	os.Remove(h.dir)
}

// open returns the folder with a lock on it, nil if there is none or if other processes
// hold the lock.
func (h *hurry) open(how func(*os.File) error) *os.File {
	lock, err := os.Open(h.dir)
	if err != nil {
		return nil
	}
	// the folder may have been replaced by another one since
	if how(lock) != nil || !sameFile(lock, h.dir) {
		locks.Close(lock)
		return nil
	}
	return lock
}
