// SPDX-License-Identifier: BSD-2-Clause

package history

import (
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"bascule/bridge"
	"bascule/files"

	"golang.org/x/sys/unix"
)

// StartWatch starts this program with these arguments, as a process that outlives the caller: the shell and the ssh
// session may end, and the service manager's unit, too. It returns once that process has in memory all that it needs to
// put the change back, so nothing changes before.
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
	cmd.ExtraFiles = []*os.File{tells} // it is readyFile there
	cmd.Env = append(os.Environ(), readyVariable+"=1")
	for _, name := range []string{stateVariable, runVariable} { // it is in another folder
		if path := os.Getenv(name); path != "" {
			if path, err = filepath.Abs(path); err != nil {
				return fmt.Errorf("cannot start a process that puts the change back: %w", err)
			}
			cmd.Env = append(cmd.Env, name+"="+path)
		}
	}
	// Descriptors from the parents of this process stay here: they may be locks, or pipes whose readers
	// wait for the end.
	if err = unix.CloseRange(readyFile, math.MaxInt32, unix.CLOSE_RANGE_CLOEXEC); err == nil {
		err = cmd.Start()
	}
	tells.Close()
	if err != nil {
		return fmt.Errorf("cannot start a process that puts the change back: %w", err)
	}
	// The service manager ends all processes in the control group of a session or unit, so it must leave that
	// group.
	if procs, err := os.OpenFile("/sys/fs/cgroup/cgroup.procs", os.O_WRONLY, 0); err == nil { // never make it
		_, _ = procs.Write(fmt.Append(nil, cmd.Process.Pid)) // the change is put back later if the process ends
		_ = procs.Close()
	}
	go cmd.Wait() // if this process is an agent, which lives on
	if err := ready.SetReadDeadline(time.Now().Add(readyTime)); err != nil {
		return fmt.Errorf("cannot wait for the process that puts the change back: %w", err)
	}
	n, err := ready.Read(make([]byte, 1))
	if n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) { // a slow process is no reason to refuse
		return errors.New("the process that puts the change back has ended")
	}
	return nil
}

// The process that puts a change back reports through a pipe that it is ready.
const (
	readyVariable = "BASCULE_WATCH_READY"
	readyFile     = 3
	readyTime     = 10 * time.Second
)

// readyPipe returns that pipe, nil if no process waits for it.
func readyPipe() *os.File {
	if os.Getenv(readyVariable) == "" {
		return nil
	}
	os.Unsetenv(readyVariable) // a program that replaces this one by exec does not have the file any more
	return os.NewFile(readyFile, "ready")
}

// How often the watcher checks whether the change is confirmed, and how often it retries after a failure.
const (
	lookTime  = time.Second
	retryTime = 5 * time.Second
)

// Watch waits until no change waits for its confirmation any more, and puts back a change whose time is over. Its
// second argument gets a line for each event.
func Watch(netns string, tell func(string)) error {
	k := &keeper{}
	ready := readyPipe()
	for {
		again, err := watchOnce(netns, k, tell)
		if ready != nil {
			if k.p != nil {
				_, _ = ready.Write([]byte{'\n'}) // the caller may have given up
			}
			ready.Close()
			ready = nil
		}
		if err != nil || again == 0 {
			return err
		}
		time.Sleep(again)
		if again == retryTime && !k.alone { // an upgrade may have installed a newer program, which can do it
			if program, err := os.Executable(); err == nil {
				_ = syscall.Exec(strings.TrimSuffix(program, " (deleted)"), os.Args, os.Environ())
			}
		}
	}
}

// watchOnce checks once. It returns the time until the next check, 0 for no further check.
func watchOnce(netns string, k *keeper, tell func(string)) (time.Duration, error) {
	s, err := bridge.Open(netns)
	if err != nil {
		return k.unopened(err)
	}
	defer s.Close()
	h, err := Open(s, netns)
	if err != nil {
		return k.unopened(err)
	}
	p, err := h.Pending()
	if k.lost(h, p) {
		if err := k.giveBack(h); err != nil {
			if text := err.Error(); text != k.told {
				tell(text)
				k.told = text
			}
			if k.p.Overdue() {
				return k.settle(h, tell), nil
			}
			return lookTime, nil
		}
		k.alone = false
		tell("files of the change that waits to be confirmed were removed or damaged; they are there again")
		return lookTime, nil
	}
	if err != nil {
		return k.unopened(err)
	}
	if p == nil {
		return 0, nil
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
		if errors.Is(err, errUnnoted) {
			return 0, nil // another put-back would undo what was changed since
		}
		return retryTime, nil
	}
	if p != nil {
		tell(p.PutBack())
		return 0, nil
	}
	return lookTime, nil // another process was faster, or the time began anew when the change was complete
}

// unopened returns the time until the next check after a failure to open the namespace or the history. The failure may
// be brief: too many open files, or a mount over the names. It is the end if the namespace is gone.
func (k *keeper) unopened(err error) (time.Duration, error) {
	if k.p == nil {
		return 0, err
	}
	if ended, err := bridge.Ended([]uint64{k.p.Cookie}); err == nil && len(ended) > 0 {
		return 0, nil // with all its contents
	}
	return lookTime, nil
}

// A keeper has in memory all that is needed to put a change back: removed files do not confirm the change.
type keeper struct {
	p      *Pending
	dir    string // of the files
	text   []byte // of the change's file
	before []byte // of the file of the state before it
	told   string
	alone  bool // the change is nowhere else: a newer program could not read it
}

func (k *keeper) remember(h *History, p *Pending) {
	text, err := readFile(h.pendingPath())
	_, before, wrong := readState(filepath.Join(h.dir, p.Before))
	if err == nil && wrong == nil {
		k.p, k.dir, k.text, k.before = p, h.dir, text, before
	}
}

// lost reports whether files of the change are gone, or damaged. It takes the change that the files say is waiting.
func (k *keeper) lost(h *History, p *Pending) bool {
	if k.p == nil || k.dir != h.dir { // a namespace whose name was deleted is given up
		return false
	}
	if cookie, err := h.s.Cookie(); err != nil || cookie != k.p.Cookie || h.isSettled(k.p) {
		return false
	}
	if p == nil {
		return true
	}
	_, _, err := readState(filepath.Join(h.dir, k.p.Before))
	return p.ID == k.p.ID && err != nil
}

// giveBack writes the files again.
func (k *keeper) giveBack(h *History) error {
	unlock, err := h.s.LockPlans()
	if err != nil {
		return err
	}
	defer unlock()
	p, _ := h.Pending()
	if !k.lost(h, p) {
		return nil
	}
	err = os.MkdirAll(h.dir, 0o700)
	if err == nil {
		err = files.Replace(filepath.Join(h.dir, k.p.Before), k.before, 0o600)
	}
	if err == nil && p == nil {
		err = files.Replace(h.pendingPath(), k.text, 0o600)
	}
	if err != nil {
		return fmt.Errorf("files of the change that waits to be confirmed are gone or damaged, and cannot be written anew: %w; the change is put back without them", err)
	}
	return nil
}

// settle puts the change back from memory: its time is over, and its files can be neither read nor written anew. It
// returns the time until the next check, as watchOnce does.
func (k *keeper) settle(h *History, tell func(string)) time.Duration {
	k.alone = true
	done, warnings, err := k.putBack(h)
	for _, w := range warnings {
		tell("warning: " + w)
	}
	switch {
	case errors.Is(err, errUnnoted):
		tell(err.Error())
		return 0
	case err != nil:
		tell(err.Error())
		return retryTime
	case done:
		tell(k.p.PutBack())
		return 0
	}
	return lookTime
}

func (k *keeper) putBack(h *History) (done bool, warnings []string, err error) {
	unlock, err := h.s.LockPlans()
	if err != nil {
		return false, nil, err
	}
	defer unlock()
	if p, _ := h.Pending(); !k.lost(h, p) { // it may have been confirmed, or its files are there again
		return false, nil, nil
	}
	before, err := asFile(k.p.Before, k.before)
	if err == nil {
		warnings, err = h.restore(k.p, before)
	}
	return err == nil, warnings, err
}

// PutBack returns a line that reports that the change was put back.
func (p *Pending) PutBack() string {
	return fmt.Sprintf("the change of %s at %s (%s) was not confirmed, and is put back%s", p.Who, p.Time.Format(time.DateTime), p.What, p.butFor())
}

// butFor returns the words for the parts that are not put back.
func (p *Pending) butFor() string {
	if len(p.lacks) == 0 {
		return ""
	}
	return ", but for " + strings.Join(p.lacks, " and ")
}

// Undoes returns a warning for other users: the change may be put back, and their own changes with it.
func (p *Pending) Undoes() string {
	return fmt.Sprintf("a change of %s (%s) waits to be confirmed until %s; if it is not, %s and the ports there become what they were before it, and this is undone",
		p.Who, p.What, p.Until.Format(time.TimeOnly), strings.Join(p.Bridges, ", "))
}
