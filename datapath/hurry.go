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

// A hurry makes the kernel's grace periods short. Each time a program is put on a
// device by tcx, or taken off, the kernel waits for an RCU grace period, and holds the
// lock of all devices meanwhile (tcx_entry_sync() in kernel/bpf/tcx.c). That takes
// about three ticks of its clock, so hundreds of ports take seconds. Where else the
// kernel waits under that lock, it tells the processors to hurry (synchronize_net()). A
// hurry does the same for as long as it lasts, by the switch that the kernel has for
// it. A kernel that was told never to hurry (rcu_normal) does not.
//
// The switch is an integer, and any but 0 is on (kernel/ksysfs.c, rcu_gp_is_expedited()).
// So its value says whose it is: a hurry that was killed is known wherever the switch is,
// also when no file is left of it.
type hurry struct {
	dir   string // hurryDir
	file  string // hurrySwitch
	begun bool
	lock  *os.File // nil if it has not begun, or could not
}

const (
	hurrySwitch = "/sys/kernel/rcu_expedited"
	hurryMark   = "47708"  // 0xba5c: what a hurry sets the switch to
	hurryDir    = "%hurry" // beside the namespaces: who hurries shares a lock on it
)

func (s *Store) hurry() *hurry {
	return &hurry{dir: filepath.Join(filepath.Dir(s.dir), hurryDir), file: hurrySwitch}
}

// begin has the kernel hurry, if that can be. It is for right before each call by which
// the kernel waits: what makes none of these calls disturbs no processor.
func (h *hurry) begin() {
	if h.begun {
		return
	}
	h.begun = true
	// A process that can't put the switch back, because its /sys is read-only, must
	// not begin.
	file, err := os.OpenFile(h.file, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer file.Close()
	if is := h.is(); is != "0" && is != hurryMark {
		return // somebody has it on always
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

// is returns the value of the switch, "" if nobody can tell.
func (h *hurry) is() string {
	text, err := os.ReadFile(h.file)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// end lets the kernel take its time again, if nobody else hurries.
func (h *hurry) end() {
	if h.lock != nil {
		locks.Close(h.lock)
		h.calm()
	}
}

// calm ends the hurry of processes that are done, or were killed. A process that still
// is in a hurry ends it later. One that hurries beside another file system goes on
// slowly: its folder cannot be seen.
func (h *hurry) calm() {
	// A command of an earlier version set the switch to 1, and the folder was its note.
	_, err := os.Stat(h.dir)
	former := err == nil && h.is() == "1"
	if is := h.is(); err != nil && is != hurryMark {
		return
	}
	if err != nil && os.Mkdir(h.dir, 0o700) != nil {
		return // another one has just begun
	}
	lock := h.open(locks.Try)
	if lock == nil {
		return
	}
	defer locks.Close(lock)
	if is := h.is(); is == hurryMark || former && is == "1" {
		_ = os.WriteFile(h.file, []byte("0"), 0) // or the next writer does it who may
	}
	os.Remove(h.dir)
}

// open returns the folder with a lock on it, nil if there is none or if others
// are in the way.
func (h *hurry) open(how func(*os.File) error) *os.File {
	lock, err := os.Open(h.dir)
	if err != nil {
		return nil
	}
	// the folder may have been removed since, and another be there
	if how(lock) != nil || !sameFile(lock, h.dir) {
		locks.Close(lock)
		return nil
	}
	return lock
}
