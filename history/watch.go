// SPDX-License-Identifier: BSD-2-Clause

package history

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"bascule/bridge"
)

// StartWatch starts this program by these arguments, as a process that outlives the one that
// calls: the shell and the ssh session may end, and the unit of the service manager, too.
func StartWatch(args ...string) error {
	program, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot find this program: %w", err)
	}
	cmd := exec.Command(program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start a process that puts the change back: %w", err)
	}
	// the service manager ends all that is in the group of a session or unit, which it is in
	_ = os.WriteFile("/sys/fs/cgroup/cgroup.procs", fmt.Append(nil, cmd.Process.Pid), 0)
	go cmd.Wait() // where this process is an agent, which lives on
	return nil
}

// How often the watcher looks whether the change is confirmed, and tries again what has failed.
const (
	lookTime  = time.Second
	retryTime = 5 * time.Second
)

// Watch waits until no change waits to be confirmed any more, and puts back one whose time is
// over. tell is told what happens.
func Watch(netns string, tell func(string)) error {
	for {
		again, err := watchOnce(netns, tell)
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
func watchOnce(netns string, tell func(string)) (time.Duration, error) {
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
	if err != nil || p == nil {
		return 0, err
	}
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
