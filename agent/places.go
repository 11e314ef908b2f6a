// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"

	"bascule/bridge"
	"bascule/datapath"
	"bascule/locks"

	"golang.org/x/sys/unix"
)

// An agent's files can be removed by a cleanup, a service manager or a mistake. So
// the agent checks them each second, and makes missing ones again. If it cannot, it
// ends with an error: an agent that cannot be reached is worse than a restart.
//
// Two locks make sure that a namespace has one agent: a file in the agents' folder
// and a folder beside the bridges (bridge.Devices). So removing one of them does not
// let another agent in.

func lockPath(dir string, cookie uint64) string {
	return filepath.Join(dir, strconv.FormatUint(cookie, 10)+".lock")
}

func (s *site) lockPath() string { return lockPath(s.a.o.Dir, s.cookie) }

// where returns a description of the site's namespace.
func (s *site) where() string {
	if s.name == "" {
		return "this network namespace"
	}
	return "network namespace " + s.name
}

// other returns a description of the agent that has the namespace instead.
func (s *site) other() string {
	process, _ := bridge.DevicesHolder(s.cookie)
	if process == 0 {
		process = datapath.LockHolder(s.lockPath())
	}
	if process == 0 {
		return "another agent does"
	}
	return fmt.Sprintf("another agent does, process %d", process)
}

// takeLock locks a file until the file is closed or the process ends. The lock's
// holder is the one to remove the file. Anything at the path that is not a regular
// file is removed: no agent made it.
func takeLock(path string) (*os.File, error) {
	for {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0o600)
		if st, wrong := os.Lstat(path); wrong == nil && !st.Mode().IsRegular() {
			if err == nil {
				f.Close()
			}
			if err = os.Remove(path); err == nil || errors.Is(err, fs.ErrNotExist) {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("cannot lock the agent's namespace: %w; give another folder by BASCULE_AGENT_DIR", err)
		}
		if err := locks.Try(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		if isAt(f, path) {
			return f, nil
		}
		locks.Close(f) // another agent has removed it since it was opened, and ended
	}
}

// isAt reports whether an open file is still the one at the path.
func isAt(f *os.File, path string) bool {
	held, err1 := f.Stat()
	named, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(held, named)
}

// unlock releases the lock. It removes the file, unless another agent has made a new
// one at its path.
func (s *site) unlock() {
	if isAt(s.lock, s.lock.Name()) {
		if err := os.Remove(s.lock.Name()); err != nil {
			s.log.Warn("the lock's file stays", "error", err)
		}
	}
	locks.Close(s.lock)
}

// A doorway is the socket at which the agent answers requests.
type doorway struct {
	*net.UnixListener
	path string
	made os.FileInfo // the socket's file, to recognize it
}

// listen opens the status socket. The caller holds the namespace's locks, so a file
// at the path belongs to no running agent.
func listen(dir string, cookie uint64) (*doorway, error) {
	path := socketPath(dir, cookie)
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // by then the file may be another agent's
	made, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &doorway{l, path, made}, nil
}

// lost reports whether clients can no longer find the socket.
func (d *doorway) lost() bool {
	now, err := os.Lstat(d.path)
	return err != nil || !os.SameFile(d.made, now)
}

// Close closes the socket, and removes its file if it is still ours.
func (d *doorway) Close() error {
	if !d.lost() {
		os.Remove(d.path)
	}
	return d.UnixListener.Close()
}

// makeDir makes the agents' folder.
func (a *agent) makeDir() error {
	if err := os.MkdirAll(a.o.Dir, 0o700); err != nil {
		return fmt.Errorf("cannot make %s: %w; give another folder by BASCULE_AGENT_DIR", a.o.Dir, err)
	}
	return nil
}

// open starts to answer at the status socket.
func (a *agent) open() error {
	door, err := listen(a.o.Dir, a.home.cookie)
	if err != nil {
		return fmt.Errorf("cannot open the agent's socket: %w; give another folder by BASCULE_AGENT_DIR", err)
	}
	if a.door != nil {
		a.door.Close()
	}
	a.door = door
	go a.serve(door)
	return nil
}

// keepPlaces makes again what was removed of the agent's files. An error means that
// the agent cannot continue.
func (a *agent) keepPlaces() error {
	for _, s := range a.sites {
		if err := a.keepSite(s); err != nil {
			return err
		}
	}
	if !a.door.lost() {
		return nil
	}
	a.log.Warn("the agent's socket was removed; it is made again", "socket", a.door.path)
	if err := a.makeDir(); err != nil {
		return err
	}
	return a.open()
}

// keepSite keeps the locks of a namespace. If another agent was faster, this agent
// no longer serves the namespace, and ends if the namespace is its own.
func (a *agent) keepSite(s *site) error {
	err := s.keepLocks()
	if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, datapath.ErrWatched) {
		return err
	}
	err = fmt.Errorf("the locks of %s were removed, and another agent serves it: %s; stop one of the two", s.where(), s.other())
	if s == a.home {
		return err
	}
	s.log.Error("the network namespace is no longer served", "error", err)
	s.close()
	delete(a.sites, s.cookie)
	a.reload(Reload{}, nil) // the job tries again, and shows the error in the status
	return nil
}

func (s *site) keepLocks() error {
	if err := s.follower.Keep(); err != nil {
		return err
	}
	if isAt(s.lock, s.lockPath()) {
		return nil
	}
	s.log.Warn("the agent's lock was removed; it is made again", "lock", s.lockPath())
	if err := s.a.makeDir(); err != nil {
		return err
	}
	lock, err := takeLock(s.lockPath())
	if err != nil {
		return err
	}
	locks.Close(s.lock)
	s.lock = lock
	return nil
}

// passing reports whether an error is temporary, such as too many open files.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
