// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// A Notifier waits for changes of bridges. A bridge has changed when a file is renamed
// to its `current`. It appears with its folder, and disappears with its `current`.
type Notifier struct {
	store *Store
	file  *os.File
	root  int32 // number of the watch on the folder above all namespaces
}

// Notify returns a Notifier for the store's bridges, including those that do not exist
// yet.
func (s *Store) Notify() (*Notifier, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	n := &Notifier{store: s, file: os.NewFile(uintptr(fd), "inotify")}
	if err := n.arm(); err != nil {
		n.Close()
		return nil, err
	}
	return n, nil
}

// Close ends the waiting; Wait returns fs.ErrClosed.
func (n *Notifier) Close() error { return n.file.Close() }

// arm watches all folders that there are. The kernel adds no second watch to a folder
// that is already watched.
func (n *Notifier) arm() error {
	raw, err := n.file.SyscallConn()
	if err != nil {
		return err
	}
	watch := func(dir string, mask uint32) (number int, err error) {
		var werr error
		if err := raw.Control(func(fd uintptr) {
			number, werr = unix.InotifyAddWatch(int(fd), dir, mask|unix.IN_ONLYDIR)
		}); err != nil {
			return 0, err
		}
		if werr != nil && !errors.Is(werr, fs.ErrNotExist) {
			return 0, fmt.Errorf("watch %s: %w", dir, werr)
		}
		return number, nil
	}
	// From the top down: if a folder appears meanwhile, the one above it reports that.
	root, err := watch(filepath.Dir(n.store.dir), unix.IN_CREATE)
	if err != nil {
		return err
	}
	n.root = int32(root)
	if _, err := watch(n.store.dir, unix.IN_CREATE); err != nil {
		return err
	}
	entries, err := os.ReadDir(n.store.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		if _, err := watch(filepath.Join(n.store.dir, e.Name()), unix.IN_MOVED_TO|unix.IN_DELETE); err != nil {
			return err
		}
	}
	return nil
}

// Wait returns when a bridge may have appeared, disappeared or changed since the last
// call, or since Notify.
func (n *Notifier) Wait() error {
	buf := make([]byte, 16<<10)
	for {
		size, err := n.file.Read(buf)
		if err != nil {
			if errors.Is(err, os.ErrClosed) {
				return fs.ErrClosed
			}
			return err
		}
		if !n.concerns(buf[:size]) {
			continue
		}
		return n.arm()
	}
}

// concerns reports whether one of the events (inotify(7)) is about a bridge,
// and not about the work of commands in its folder.
func (n *Notifier) concerns(events []byte) bool {
	for len(events) >= unix.SizeofInotifyEvent {
		number, mask := int32(binary.NativeEndian.Uint32(events)), binary.NativeEndian.Uint32(events[4:])
		end := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(events[12:]))
		if end > len(events) {
			return true
		}
		name := strings.TrimRight(string(events[unix.SizeofInotifyEvent:end]), "\x00")
		events = events[end:]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0, name == "current":
			return true
		case mask&unix.IN_CREATE != 0 && (number != n.root || name == filepath.Base(n.store.dir)):
			return true // a bridge's folder, or this namespace's; other namespaces' folders do not matter
		}
	}
	return false
}
