// SPDX-License-Identifier: BSD-2-Clause

package history

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bascule/bridge"
	"bascule/files"
)

// StartWatch starts this program by these arguments, as a process that outlives the one that
// calls: the shell and the ssh session may end, and the unit of the service manager, too. It returns when that
// process has in memory what it puts back, so that nothing changes before.
func StartWatch(args ...string) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ready, tells, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("cannot start a process that puts the change back: %w", err)
	}
	defer ready.Close()
	cmd.ExtraFiles = []*os.File{tells} // which is readyFile there
	cmd.Env = append(os.Environ(), readyVariable+"=1")
	err = cmd.Start()
	tells.Close()
	if err != nil {
		return fmt.Errorf("cannot start a process that puts the change back: %w", err)
	}
	// the service manager ends all that is in the group of a session or unit, which it is in
	_ = os.WriteFile("/sys/fs/cgroup/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0)
	go cmd.Wait() // where this process is an agent, which lives on
	if err := ready.SetReadDeadline(time.Now().Add(readyTime)); err != nil {
		return fmt.Errorf("cannot wait for the process that puts the change back: %w", err)
	}
	n, err := ready.Read(make([]byte, 1))
	if n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) { // a slow one is no reason to refuse
		return errors.New("the process that puts the change back has ended")
	}
	return nil
}

// The process that puts a change back says by a pipe that it is ready.
const (
	readyVariable = "BASCULE_WATCH_READY"
	readyFile     = 3
	readyTime     = 10 * time.Second
)

// readyPipe is that pipe, nil where nobody waits.
func readyPipe() *os.File {
	if os.Getenv(readyVariable) == "" {
		return nil
	}
	os.Unsetenv(readyVariable) // a program that takes this one's place has the file no more
	return os.NewFile(readyFile, "ready")
}

// How often the watcher looks whether the change is confirmed, and tries again what has failed.
const (
	lookTime  = time.Second
	retryTime = 5 * time.Second
)

// Watch waits until no change waits to be confirmed any more, and puts back one whose time is
// over. tell is told what happens.
func Watch(netns string, tell func(string)) error {
	k := &keeper{}
	ready := readyPipe()
	for {
		again, err := watchOnce(netns, k, tell)
		if ready != nil {
			if k.p != nil {
				_, _ = ready.Write([]byte{'\n'}) // who has started it may have given up
			}
			ready.Close()
			ready = nil
		}
		if err != nil || again == 0 {
			return err
		}
		time.Sleep(again)
		if again == retryTime { // an upgrade may have put a newer program here, which can do it
			if program, err := os.Executable(); err == nil {
				_ = syscall.Exec(strings.TrimSuffix(program, " (deleted)"), os.Args, os.Environ())
			}
		}
	}
}

// watchOnce looks once. It returns after which time to look again, 0 for never.
func watchOnce(netns string, k *keeper, tell func(string)) (time.Duration, error) {
	s, err := bridge.Open(netns)
	if err != nil {
		return 0, nil // the namespace has gone, and all in it
	}
	defer s.Close()
	h, err := Open(s, netns)
	if err != nil {
		return 0, err
	}
	p, err := h.Pending()
	if k.lost(h, p) {
		if err := k.giveBack(h); err != nil {
			if text := err.Error(); text != k.told {
				tell(text)
				k.told = text
			}
			return lookTime, nil
		}
		tell("files of the change that waits to be confirmed were removed; they are there again")
		return lookTime, nil
	}
	if err != nil || p == nil {
		return 0, err
	}
	k.remember(h, p)
	if left := p.Left(); left > 0 {
		return min(left, lookTime), nil
	}
	p, warnings, err := h.Settle()
	for _, w := range warnings {
		tell("warning: " + w)
	}
	if err != nil {
		tell(err.Error())
		return retryTime, nil
	}
	if p != nil {
		tell(p.PutBack())
		return 0, nil
	}
	return lookTime, nil // somebody was faster, or the time has begun anew when the change was made
}

// A keeper has in memory what puts a change back: somebody may remove the files, which confirms nothing.
type keeper struct {
	p      *Pending
	dir    string // that the files were in
	text   []byte // of its file
	before []byte // of the file of the state of before
	told   string
}

func (k *keeper) remember(h *History, p *Pending) {
	text, err := readFile(h.pendingPath())
	before, wrong := readFile(filepath.Join(h.dir, p.Before))
	if err == nil && wrong == nil {
		k.p, k.dir, k.text, k.before = p, h.dir, text, before
	}
}

// lost reports whether files of the change are gone, given the one that waits by them.
func (k *keeper) lost(h *History, p *Pending) bool {
	if k.p == nil || k.dir != h.dir { // a namespace whose name is deleted is let go
		return false
	}
	if cookie, err := h.s.Cookie(); err != nil || cookie != k.p.Cookie || h.isSettled(k.p) {
		return false
	}
	if p == nil {
		return true
	}
	_, err := os.Lstat(filepath.Join(h.dir, k.p.Before))
	return p.ID == k.p.ID && errors.Is(err, fs.ErrNotExist)
}

// giveBack writes the files anew.
func (k *keeper) giveBack(h *History) error {
	unlock, err := h.s.LockPlans()
	if err != nil {
		return err
	}
	defer unlock()
	if p, _ := h.Pending(); !k.lost(h, p) {
		return nil
	}
	err = os.MkdirAll(h.dir, 0o700)
	if err == nil {
		err = files.Replace(filepath.Join(h.dir, k.p.Before), k.before, 0o600)
	}
	if err == nil {
		err = files.Replace(h.pendingPath(), k.text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("files of the change that waits to be confirmed were removed, and cannot be written anew: %w", err)
	}
	return nil
}

// PutBack says that the change was put back.
func (p *Pending) PutBack() string {
	return fmt.Sprintf("the change of %s at %s (%s) was not confirmed, and is put back%s", p.Who, p.Time.Format(time.DateTime), p.What, p.butFor())
}

// butFor says what is not put back.
func (p *Pending) butFor() string {
	if len(p.lacks) == 0 {
		return ""
	}
	return ", but for " + strings.Join(p.lacks, " and ")
}

// Undoes says to another user that the change may be put back, and what they do now with it.
func (p *Pending) Undoes() string {
	return fmt.Sprintf("a change of %s (%s) waits to be confirmed until %s; if it is not, %s and the ports there become what they were before it, and this is undone",
		p.Who, p.What, p.Until.Format(time.TimeOnly), strings.Join(p.Bridges, ", "))
}
