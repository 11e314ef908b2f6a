// SPDX-License-Identifier: BSD-2-Clause

package files

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"golang.org/x/sys/unix"
)

// TestOpen opens other things than files, and waits for none of them.
func TestOpen(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	if err := os.WriteFile(at("file"), []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("pipe", at("link")); err != nil {
		t.Fatal(err)
	}
	socket, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	fmt.Fprint(w, "piped")
	w.Close()
	ours := fmt.Sprintf("/dev/fd/%d", r.Fd())
	for _, test := range []struct {
		name, text  string
		open, plain error
	}{
		{at("file"), "text", nil, nil},
		{at("pipe"), "", errPipe, errPipe},
		{at("link"), "", errPipe, errPipe},
		{at("socket"), "", errSocket, errSocket},
		{at("none"), "", fs.ErrNotExist, fs.ErrNotExist},
		{dir, "", unix.EISDIR, unix.EISDIR},
		{"/dev/null", "", nil, nil},
		{"/dev/zero", "", errDevice, errDevice},
		{"/proc/self/status", "", errKernel, errKernel},
		{"/dev/fd/999999", "", unix.EBADF, fs.ErrNotExist},
		{ours, "piped", nil, errPipe},
	} {
		if f, err := OpenPlain(test.name); !errors.Is(err, test.plain) {
			t.Errorf("%s, plain: %v, want %v", test.name, err, test.plain)
		} else if err == nil {
			f.Close()
		}
		f, err := Open(test.name)
		if !errors.Is(err, test.open) {
			t.Errorf("%s: %v, want %v", test.name, err, test.open)
		}
		if err != nil {
			continue
		}
		if text, err := io.ReadAll(f); err != nil || string(text) != test.text {
			t.Errorf("%s: read %q, %v", test.name, text, err)
		}
		f.Close()
	}
}

// TestCreate writes into a pipe that has a reader, and not into one without a reader.
func TestCreate(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Create(pipe, os.O_TRUNC); !errors.Is(err, errReader) {
		t.Errorf("without a reader: %v", err)
	}
	r, err := os.OpenFile(pipe, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w, err := Create(pipe, os.O_TRUNC)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(w, "text")
	w.Close()
	if text, err := io.ReadAll(r); err != nil || string(text) != "text" {
		t.Errorf("read %q, %v", text, err)
	}
}

// TestReadAll reads no more than allowed.
func TestReadAll(t *testing.T) {
	if text, err := ReadAll(strings.NewReader("text"), 4); err != nil || string(text) != "text" {
		t.Errorf("read %q, %v", text, err)
	}
	if text, err := ReadAll(strings.NewReader("texts"), 4); err == nil || err.Error() != "it has more than 4 bytes" {
		t.Errorf("read %q, %v", text, err)
	}
	if _, err := ReadAll(iotest.ErrReader(io.ErrUnexpectedEOF), 4); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("what cannot be read: %v", err)
	}
}

func TestReplace(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "file")
	for _, text := range []string{"first", "second, which is longer", ""} {
		if err := Replace(name, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		st, err := os.Stat(name)
		if got, _ := os.ReadFile(name); err != nil || string(got) != text || st.Mode().Perm() != 0o640 {
			t.Errorf("%q, %v, %v, should have %q", got, st.Mode(), err, text)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "folder"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := Replace(filepath.Join(dir, "folder"), nil, 0o600); err == nil {
		t.Error("a folder is replaced")
	}
	if err := Replace(filepath.Join(dir, "nowhere", "file"), nil, 0o600); err == nil {
		t.Error("a file in no folder is written")
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("files are left: %v", list)
	}
}

// TestSweep: files that a killed Replace has left are removed, and no others.
func TestSweep(t *testing.T) {
	dir := t.TempDir()
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{".000001.yaml.123", ".waits-init.9", "000001.yaml", ".hidden", ".000001.yaml.new", ".young.5"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if name == ".young.5" {
			continue
		}
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
	}
	Sweep(dir)
	var left []string
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		left = append(left, e.Name())
	}
	if want := []string{".000001.yaml.new", ".hidden", ".young.5", "000001.yaml"}; !slices.Equal(left, want) {
		t.Errorf("%q are left, want %q", left, want)
	}
}
