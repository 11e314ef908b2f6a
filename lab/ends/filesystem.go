// SPDX-License-Identifier: BSD-2-Clause

package ends

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// FileSystem returns the root of a new file system without a mount point, which disappears when it
// is closed (fsopen(2), fsmount(2)). A sysfs shows the devices of the calling thread's network
// namespace.
func FileSystem(kind string) (*os.File, error) {
	config, err := unix.Fsopen(kind, unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	defer unix.Close(config)
	if err := unix.FsconfigCreate(config); err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	root, err := unix.Fsmount(config, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", kind, err)
	}
	return os.NewFile(uintptr(root), kind), nil
}

// openAt opens a path below a folder.
func openAt(dir *os.File, path string, flags int) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), path, flags|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return os.NewFile(uintptr(fd), path), nil
}

// ReadAt reads a small file below a folder.
func ReadAt(dir *os.File, path string) (string, error) {
	f, err := openAt(dir, path, unix.O_RDONLY)
	if err != nil {
		return "", err
	}
	defer f.Close()
	text := make([]byte, 64)
	n, err := f.Read(text)
	return string(text[:n]), err
}

// writeAt writes an existing file below a folder.
func writeAt(dir *os.File, path, text string) error {
	f, err := openAt(dir, path, unix.O_WRONLY)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}
