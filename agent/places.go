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

// What an agent has in the file system can be taken away from it: by somebody who
// tidies up, by a service manager, by a mistake. It looks each second, and makes
// anew what is not there. Where it cannot, it ends and says so: an agent that nobody
// reaches is worse than one that is started again.
//
// That there is one agent for a namespace is said by two locks, a file in the
// agents' folder and a folder beside the bridges (bridge.Devices). So who takes one
// of them away lets no other agent in.

func lockPath(dir string, cookie uint64) string {
	return filepath.Join(dir, strconv.FormatUint(cookie, 10)+".lock")
}

func (s *site) lockPath() string { return lockPath(s.a.o.Dir, s.cookie) }

// where says which namespace a site is.
func (s *site) where() string {
	if s.name == "" {
		return "this network namespace"
	}
	return "network namespace " + s.name
}

// other says that another agent has the namespace, and which.
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

// takeLock locks a file until it is closed or the process ends. Who removes it
// holds it. What is there and is no file is of nobody, and goes.
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
		locks.Close(f) // another agent has ended since it was opened
	}
}

// isAt reports whether an open file is still the one of that path.
func isAt(f *os.File, path string) bool {
	held, err1 := f.Stat()
	named, err2 := os.Lstat(path)
	return err1 == nil && err2 == nil && os.SameFile(held, named)
}

// unlock gives up the file's lock, and leaves a file alone that is another's by now.
func (s *site) unlock() {
	if isAt(s.lock, s.lock.Name()) {
		if err := os.Remove(s.lock.Name()); err != nil {
			s.log.Warn("the lock's file stays", "error", err)
		}
	}
	locks.Close(s.lock)
}

// A doorway is the socket at which the agent is asked.
type doorway struct {
	*net.UnixListener
	path string
	made os.FileInfo // what is at the path if it is this one
}

// listen opens the status socket. The caller holds the namespace's locks, so
// what is there is of an agent that has ended, or of nobody.
func listen(dir string, cookie uint64) (*doorway, error) {
	path := socketPath(dir, cookie)
	if err := os.RemoveAll(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	l.SetUnlinkOnClose(false) // what is there then may be another's
	made, err := os.Lstat(path)
	if err != nil {
		l.Close()
		return nil, err
	}
	return &doorway{l, path, made}, nil
}

// lost reports whether nobody finds the socket any more.
func (d *doorway) lost() bool {
	now, err := os.Lstat(d.path)
	return err != nil || !os.SameFile(d.made, now)
}

// Close ends the listening, and removes the socket if it is still ours.
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

// open begins to answer at the status socket.
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

// keepPlaces makes anew what has been taken away from the agent. An error says that
// it cannot go on.
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

// keepSite keeps the locks of a namespace. Where another agent was faster this one
// does not serve it any more, and ends if the namespace is its own.
func (a *agent) keepSite(s *site) error {
	err := s.keepLocks()
	if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, datapath.ErrWatched) {
		return err
	}
	err = fmt.Errorf("the locks of %s were removed, and another serves it: %s; end one of the two", s.where(), s.other())
	if s == a.home {
		return err
	}
	s.log.Error("the network namespace is no longer served", "error", err)
	s.close()
	delete(a.sites, s.cookie)
	a.reload(Reload{}, nil) // which tries again, and says so in the status
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

// passing reports whether something is wrong that may be over the next time: too
// many open files, say.
func passing(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOSPC, syscall.EDQUOT, syscall.EINTR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}
