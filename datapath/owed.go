// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

// A port that leaves may have taken settings, while its device is out of reach: the
// device, or the other end of a veth, is in a network namespace without a name and
// without a process. A note then keeps the settings. It is separate from the port's
// bridge, which may be deleted. A second pin of the port's link, with the idle program,
// leads to the device. The next writer tries again. The note is removed when all
// settings are given back, or with the device.
const (
	owedName = "%owed"
	owedLink = "link"
	owedPort = "port"
)

// owedRecord is the value of a note's map.
type owedRecord struct {
	Layout uint32
	_      uint32
	Port   Port
}

func (s *Store) owedDir() string { return filepath.Join(s.dir, owedName) }

// linkID returns the number of a link, which is unique until the next boot.
func linkID(l link.Link) (string, error) {
	info, err := l.Info()
	if err != nil {
		return "", err
	}
	return strconv.FormatUint(uint64(info.ID), 10), nil
}

// isOwed reports whether a link's device still has settings to get back.
func isOwed(dir string, l link.Link) bool {
	if _, err := os.Lstat(dir); err != nil {
		return false
	}
	id, err := linkID(l)
	if err != nil {
		return false
	}
	_, err = os.Lstat(filepath.Join(dir, id, owedLink))
	return err == nil
}

// owe notes the settings that p has taken of the device that tie leads to. The note
// replaces the former note about that device.
func (s *Store) owe(tie Tie, p *Port) error {
	was := tie.open
	if was == nil {
		var err error
		if was, err = link.LoadPinnedLink(tie.path, nil); err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			return err
		}
		defer was.Close()
	}
	info, err := was.Info()
	if err != nil {
		return err
	}
	dir := filepath.Join(s.owedDir(), strconv.FormatUint(uint64(info.ID), 10))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := os.Remove(filepath.Join(dir, owedPort)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	record := owedRecord{Layout: layout, Port: *p}
	if err := pinNew(filepath.Join(dir, owedPort), ebpf.Array, unsafe.Sizeof(record), map[uint32]*owedRecord{0: &record}); err != nil {
		return err
	}
	if _, err := os.Lstat(filepath.Join(dir, owedLink)); err == nil {
		return nil
	}
	again, err := link.NewFromID(info.ID) // pinning the link that is open by its pin would move that pin
	if err != nil {
		return err
	}
	defer again.Close()
	if err := again.Pin(filepath.Join(dir, owedLink)); err != nil || tie.open == nil {
		return err
	}
	return pinnedLink{path: filepath.Join(dir, owedLink), hook: hookTCX}.rest()
}

// GiveBack has f give back settings that commands could not give back. The caller holds
// the lock and is in the bridges' network namespace.
func (s *Store) GiveBack(f Follower) error {
	entries, err := os.ReadDir(s.owedDir())
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	left := len(entries)
	for _, e := range entries {
		dir := filepath.Join(s.owedDir(), e.Name())
		tie := Tie{path: filepath.Join(dir, owedLink)}
		var owed *Port
		if record, err := readOwed(dir); err == nil && tie.Exists() {
			if owed, err = f.Leave(&record.Port, nil, tie); err != nil {
				continue // the next writer tries again; this must not prevent other work
			}
			if owed != nil {
				if err := s.owe(tie, owed); err != nil {
					return err
				}
				continue
			}
		}
		// Removing the last pin of a link detaches its program. If the program is still
		// a port's, the link has another pin.
		if err := os.RemoveAll(dir); err != nil {
			return err
		}
		left--
	}
	if left == 0 {
		return os.Remove(s.owedDir())
	}
	return nil
}

func readOwed(dir string) (record owedRecord, err error) {
	m, err := readMap(filepath.Join(dir, owedPort))
	if err != nil {
		return record, err
	}
	defer m.Close()
	raw, err := m.LookupBytes(uint32(0))
	if err != nil {
		return record, err
	}
	if len(raw) < int(unsafe.Offsetof(record.Port)) {
		return record, ErrLayout
	}
	copy(bytesOf(&record.Layout), raw)
	was, is := recordOf(record.Layout), recordOf(layout)
	port := raw[unsafe.Offsetof(record.Port):]
	if was == nil || len(port) < sizeOf(was.port()) {
		return record, fmt.Errorf("%s: %w", dir, ErrLayout)
	}
	r := &rereading{from: was, to: is, lost: map[string]bool{}}
	if err := r.value(bytesOf(&record.Port), is.port(), port[:sizeOf(was.port())], was.port()); err != nil {
		return record, fmt.Errorf("%s: %w: %w", dir, ErrLayout, err)
	}
	return record, nil
}

// port returns the type of a port.
func (r record) port() string {
	_, of, _ := strings.Cut(r.members("struct settings")["ports"].what, " times ")
	return of
}
