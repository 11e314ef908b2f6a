// SPDX-License-Identifier: BSD-2-Clause

// Package files opens files that a user has named, and never waits for them: opening a named
// pipe without a writer would block forever.
package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"bascule/pattern"
)

// The reasons why a name is refused. Opening or reading such a thing may wait.
var (
	errPipe   = errors.New("it is a named pipe, which may never have a writer")
	errDevice = errors.New("it is a device")
	errSocket = errors.New("it is a socket")
	errReader = errors.New("it is a pipe without a reader")
	errKernel = errors.New("the kernel generates it while it is read")
)

// own matches the names of descriptors that a process already has.
var own = pattern.New(`^(?:/dev/stdin|(?:/dev|/proc/self)/fd/([0-9]{1,9}))$`)

// IsOwn reports whether name stands for a descriptor that the process already has. Such a
// name needs no file: a mount namespace may have no /dev/stdin.
func IsOwn(name string) bool { return own().MatchString(name) }

// Open opens a file, or a descriptor that the process already has: /dev/stdin, or
// /dev/fd/63, which shells make of <(COMMAND). Such a descriptor may be a pipe: then reading
// ends when its writer ends. The error is an [fs.PathError].
func Open(name string) (*os.File, error) {
	match := own().FindStringSubmatch(name)
	if match == nil {
		return OpenPlain(name)
	}
	n, _ := strconv.Atoi(match[1]) // 0 for /dev/stdin
	fd, err := unix.FcntlInt(uintptr(n), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

// OpenPlain opens a file whose whole contents can be read again later: no pipe, device or
// socket, and no file whose contents the kernel generates. /dev/null counts as an empty
// file.
func OpenPlain(name string) (*os.File, error) {
	fail := func(err error) error { return &fs.PathError{Op: "open", Path: name, Err: err} }
	fd, err := unix.Open(name, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if errors.Is(err, unix.ENXIO) {
		err = errSocket
	}
	if err != nil {
		return nil, fail(err)
	}
	var st unix.Stat_t
	if err = unix.Fstat(fd, &st); err == nil {
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFREG:
			err = kernels(fd)
		case unix.S_IFDIR:
			err = unix.EISDIR
		case unix.S_IFIFO:
			err = errPipe
		default:
			if st.Rdev != unix.Mkdev(1, 3) {
				err = errDevice
			}
		}
	}
	if err != nil {
		unix.Close(fd)
		return nil, fail(err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// kernels refuses files whose contents the kernel generates on reading: reading may wait, as
// for /proc/kmsg, and the contents may differ each time.
func kernels(fd int) error {
	var st unix.Statfs_t
	if err := unix.Fstatfs(fd, &st); err != nil {
		return err
	}
	switch st.Type {
	case unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC:
		return errKernel
	}
	return nil
}

// Create opens a file for writing, and makes it if it does not exist. A pipe must already
// have a reader. The flags are flags of open(2) in addition to these.
func Create(name string, flags int) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|unix.O_NONBLOCK|unix.O_NOCTTY|flags, 0o666)
	if errors.Is(err, unix.ENXIO) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: errReader}
	}
	return f, err
}

// ReadAll reads to the end of r. It fails if there are more than most bytes.
func ReadAll(r io.Reader, most int) ([]byte, error) {
	text, err := io.ReadAll(io.LimitReader(r, int64(most)+1))
	if err == nil && len(text) > most {
		return nil, fmt.Errorf("it has more than %d bytes", most)
	}
	return text, err
}

// Replace replaces the file of this name by one with this content, in one step that survives
// a power cut. With an error the file is as it was.
func Replace(name string, content []byte, mode fs.FileMode) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+".")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // fails on a disk that cannot be written to
		}
	}()
	_, err = f.Write(content)
	if err := errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// leftover matches the names of files that Replace has not finished.
var leftover = pattern.New(`^\..+\.[0-9]+$`)

// Sweep removes files from a folder that a Replace has left because it was killed. They are older than an hour.
func Sweep(dir string) {
	entries, _ := os.ReadDir(dir) // the next one tries again
	for _, e := range entries {
		info, err := e.Info()
		if err == nil && info.Mode().IsRegular() && leftover().MatchString(e.Name()) && time.Since(info.ModTime()) > time.Hour {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
}
