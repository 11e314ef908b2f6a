// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"bufio"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"bascule/pattern"
)

// modulesDir contains a guest's kernel modules.
const modulesDir = "/modules"

// initPath is the init program of a guest, and ProgramPath the same program under its usual path.
const (
	initPath    = "/init"
	ProgramPath = "/bin/bascule"
)

// archive writes a file system in the format that the kernel unpacks at boot: cpio's "newc"
// (Documentation/driver-api/early-userspace/buffer-format.rst).
type archive struct {
	w    *bufio.Writer
	made map[string]bool
}

func newArchive(w io.Writer) *archive {
	return &archive{bufio.NewWriter(w), map[string]bool{"/": true}}
}

// entry writes one entry, after its parent folders.
func (a *archive) entry(name string, mode uint32, device uint64, data []byte) error {
	if a.made[name] {
		return nil
	}
	if dir := path.Dir(name); name != trailer {
		if err := a.entry(dir, unix.S_IFDIR|0o755, 0, nil); err != nil {
			return err
		}
	}
	a.made[name] = true
	if name != trailer {
		name = name[1:]
	}
	// ino, mode, uid, gid, nlink, mtime, filesize, device of the file system,
	// device number, length of the name, checksum.
	head := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		len(a.made), mode, 0, 0, 1, 0, len(data), 0, 0, unix.Major(device), unix.Minor(device), len(name)+1, 0, name)
	for _, part := range [][]byte{[]byte(head), data} {
		if _, err := a.w.Write(part); err != nil {
			return err
		}
		if _, err := a.w.Write(make([]byte, -len(part)&3)); err != nil {
			return err
		}
	}
	return nil
}

// trailer is the name of the entry that ends an archive.
const trailer = "TRAILER!!!"

func (a *archive) close() error {
	if err := a.entry(trailer, 0, 0, nil); err != nil {
		return err
	}
	return a.w.Flush()
}

// file copies a file of this machine.
func (a *archive) file(name, from string) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return a.entry(name, unix.S_IFREG|0o755, 0, data)
}

var library = pattern.New(`(?m)^\s+(?:\S+ => )?(/\S+) \(0x`)

// program copies a program and its shared libraries, which keep their paths.
func (a *archive) program(ctx context.Context, name, from string) error {
	if err := a.file(name, from); err != nil {
		return err
	}
	e, err := elf.Open(from)
	if err != nil {
		return fmt.Errorf("program %s: %w", from, err)
	}
	dynamic := e.Section(".interp") != nil
	if err := e.Close(); err != nil {
		return err
	}
	if !dynamic {
		return nil
	}
	text, err := output(ctx, "", "ldd", from)
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", from, err)
	}
	for _, m := range library().FindAllStringSubmatch(text, -1) {
		if err := a.file(m[1], m[1]); err != nil {
			return fmt.Errorf("libraries of %s: %w", from, err)
		}
	}
	return nil
}

// A tree is the file system of a guest.
type tree struct {
	init     string            // path on this machine of the init program
	programs []string          // copied to /usr/bin if they are installed here
	files    map[string]string // path there, path here; may be programs
	texts    map[string]string // path there, content of the file
	links    map[string]string // path there, target
	drivers  []module
}

// build writes a tree.
func build(ctx context.Context, w io.Writer, t tree) error {
	a := newArchive(w)
	// The kernel opens the console before the init program mounts a file system.
	if err := a.entry("/dev/console", unix.S_IFCHR|0o600, unix.Mkdev(5, 1), nil); err != nil {
		return err
	}
	for i, m := range t.drivers {
		if err := a.entry(fmt.Sprintf("%s/%02d-%s.ko", modulesDir, i, m.name), unix.S_IFREG|0o644, 0, m.data); err != nil {
			return err
		}
	}
	if err := a.program(ctx, initPath, t.init); err != nil {
		return err
	}
	for _, p := range t.programs {
		from, err := exec.LookPath(p)
		if errors.Is(err, exec.ErrNotFound) {
			continue
		}
		if err != nil {
			return err
		}
		if err := a.program(ctx, filepath.Join("/usr/bin", p), from); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.files)) {
		add := a.file
		if e, err := elf.Open(t.files[name]); err == nil {
			e.Close()
			add = func(name, from string) error { return a.program(ctx, name, from) }
		}
		if err := add(name, t.files[name]); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.texts)) {
		if err := a.entry(name, unix.S_IFREG|0o644, 0, []byte(t.texts[name])); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.links)) {
		if err := a.entry(name, unix.S_IFLNK|0o777, 0, []byte(t.links[name])); err != nil {
			return err
		}
	}
	// With it the loader finds libraries in this machine's places.
	if err := a.file("/etc/ld.so.cache", "/etc/ld.so.cache"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return a.close()
}
