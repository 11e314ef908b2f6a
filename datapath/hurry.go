// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// To put a program on a device by tcx, or to take it off, the kernel waits for
// an RCU grace period each time, with the lock of all devices in its hand
// (tcx_entry_sync() in kernel/bpf/tcx.c): about three ticks of its clock, which
// for hundreds of ports is seconds. Where it waits under that lock elsewhere it
// has the processors told to hurry (synchronize_net()); a hurry does the same
// for as long as it lasts, by the switch that the kernel has for it. A kernel
// that was told never to hurry (rcu_normal) does not.
type hurry struct {
	dir   string // hurryDir
	file  string // hurrySwitch
	steps int
	lock  *os.File // nil while it has not begun
}

const (
	hurrySwitch = "/sys/kernel/rcu_expedited"
	hurryDir    = "%hurry" // beside the namespaces: there while any process hurries, which share a lock on it
	hurryAfter  = 4        // steps that take their time: they disturb nobody
)

func (s *Store) hurry() *hurry {
	return &hurry{dir: filepath.Join(filepath.Dir(s.dir), hurryDir), file: hurrySwitch}
}

// step says that the kernel is about to be made to wait once more.
func (h *hurry) step() {
	if h.steps++; h.steps == hurryAfter {
		h.begin()
	}
}

// begin has the kernel hurry, if that can be.
func (h *hurry) begin() {
	// who can't put it back, because its /sys is read-only, must not begin
	file, err := os.OpenFile(h.file, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer file.Close()
	var was [1]byte
	if _, err := file.ReadAt(was[:], 0); err != nil {
		return
	}
	// with a folder it is a hurry that it is on for, of somebody who may have been killed
	if _, err := os.Stat(h.dir); err != nil && (was[0] != '0' || os.Mkdir(h.dir, 0o700) != nil) {
		return
	}
	// not where the last one ends its hurry at this moment
	lock := h.open(unix.LOCK_SH)
	if lock == nil {
		return
	}
	if _, err := file.WriteAt([]byte("1"), 0); err != nil {
		lock.Close()
		return
	}
	h.lock = lock
}

// end lets the kernel take its time again, if nobody else hurries.
func (h *hurry) end() {
	if h.lock != nil {
		h.lock.Close()
		h.calm()
	}
}

// calm ends the hurry of processes that are done, or were killed. Whoever still
// is in a hurry will do it.
func (h *hurry) calm() {
	lock := h.open(unix.LOCK_EX)
	if lock == nil {
		return
	}
	defer lock.Close()
	if os.WriteFile(h.file, []byte("0"), 0) == nil {
		os.Remove(h.dir)
	}
}

// open returns the folder with a lock on it, nil if there is none or if others
// are in the way.
func (h *hurry) open(how int) *os.File {
	lock, err := os.Open(h.dir)
	if err != nil {
		return nil
	}
	// the folder may have been removed since, and another be there
	if unix.Flock(int(lock.Fd()), how|unix.LOCK_NB) != nil || !sameFile(lock, h.dir) {
		lock.Close()
		return nil
	}
	return lock
}
