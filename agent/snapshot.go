// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"time"

	"bascule/clock"
	"bascule/files"

	"golang.org/x/sys/unix"
)

// A snapshot is the state of a bridge's control protocol at its last change before the
// agent ended, and the time until which the agent ran.
//
// The first line of the file is that time, with a fixed number of digits, so that it can
// be overwritten once a second without the rest. The second line identifies the bridge
// and its ports. The state follows.
type snapshot struct {
	of     identity
	state  []byte        // in the protocol's own format
	paused time.Duration // the time since the agent ended
}

// An identity distinguishes a bridge and its ports from others of the same name and
// numbers.
type identity struct {
	Bridge string   `json:"bridge"` // the bridge's Identity
	Ports  []uint32 `json:"ports"`  // the IDs of the ports
}

// stampDigits is enough for nanoseconds of 64 bits.
const stampDigits = 20

func stamp(now time.Duration) []byte { return fmt.Appendf(nil, "%0*d\n", stampDigits, int64(now)) }

// write replaces the file by the snapshot in one step. If it fails, the file is
// unchanged.
func (s snapshot) write(path string, now time.Duration) (err error) {
	of, err := json.Marshal(s.of)
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := os.RemoveAll(next); err != nil { // of any type: opening a pipe would block for ever
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(next) // it also fails on a read-only disk
		}
	}()
	_, err = f.Write(slices.Concat(stamp(now), of, []byte("\n"), s.state))
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	err = os.Rename(next, path)
	if st, wrong := os.Lstat(path); err != nil && wrong == nil && st.IsDir() {
		if err = os.RemoveAll(path); err == nil {
			err = os.Rename(next, path)
		}
	}
	return err
}

// errNoFile means that something else than a file is at the path of a snapshot.
var errNoFile = fmt.Errorf("it is no file: %w", fs.ErrNotExist)

// stillRuns updates the time in the snapshot's file: the agent runs now. The error is
// fs.ErrNotExist if there is no such file.
func stillRuns(path string, now time.Duration) error {
	if st, err := os.Lstat(path); err != nil {
		return err
	} else if !st.Mode().IsRegular() {
		return errNoFile
	}
	f, err := os.OpenFile(path, os.O_WRONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(stamp(now), 0)
	return errors.Join(err, f.Close())
}

// A keeper keeps the snapshot of a protocol in its file.
//
// If a snapshot cannot be written, the former one would remain, and the next agent would
// open ports that are closed by now. So the file is removed. If it cannot be removed
// either, as on a read-only disk, it is marked as doubtful at the bridge, and the next
// agent ignores it. If that fails as well, the agent must do nothing that the file does
// not have.
type keeper struct {
	path    string
	doubt   func(on bool) error // marks, at the bridge, that the file is out of date, or removes the mark
	doubted bool                // the mark is set
	saved   time.Time           // when it was last brought up to date
	lacks   error               // why the next agent has no snapshot, nil if it has one
	stale   bool                // the next agent would read a snapshot that is out of date
}

// keep writes the snapshot if it has changed or was removed, and updates its time once a
// second. did is false if there was nothing to do. unsaved reports whether the file lacks
// the snapshot.
func (k *keeper) keep(now time.Time, changed bool, take func() snapshot) (did, unsaved bool, err error) {
	if !changed && now.Sub(k.saved) < time.Second {
		return false, false, nil
	}
	k.saved = now
	if !changed {
		err = stillRuns(k.path, clock.Boot())
		if !errors.Is(err, fs.ErrNotExist) {
			return true, false, err
		}
	}
	if err = take().write(k.path, clock.Boot()); err != nil {
		err = k.disown(err)
	} else if k.stale = false; k.doubted {
		if err = k.doubt(false); err == nil {
			k.doubted = false
		}
	}
	k.lacks = err
	return true, err != nil, err
}

// disown makes sure that no agent reads the file, which is out of date because of the
// error why. It returns why, and all further errors.
func (k *keeper) disown(why error) error {
	gone := os.RemoveAll(k.path)
	if k.stale = gone != nil && !k.doubted; !k.stale {
		return why
	}
	err := k.doubt(true)
	if err == nil {
		k.doubted, k.stale = true, false
		return why
	}
	return fmt.Errorf("%w; the previous one cannot be removed: %w, nor marked as out of date: %w", why, gone, err)
}

// maxSnapshot is the size of the largest file, in bytes. It has room for a bridge with
// the largest number of ports.
const maxSnapshot = 8 << 20

// readSnapshot returns the contents of the file, nil if there is none.
func readSnapshot(path string, now time.Duration) (*snapshot, error) {
	f, err := files.OpenPlain(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := files.ReadAll(f, maxSnapshot)
	if err != nil {
		return nil, fmt.Errorf("%s cannot be read: %w", path, err)
	}
	first, rest, _ := bytes.Cut(text, []byte("\n"))
	then, err := strconv.ParseInt(string(first), 10, 64)
	if err != nil || len(first) != stampDigits || then < 0 || time.Duration(then) > now {
		return nil, fmt.Errorf("%s is no snapshot of this boot", path)
	}
	of, state, _ := bytes.Cut(rest, []byte("\n"))
	s := snapshot{state: state, paused: now - time.Duration(then)}
	if err := json.Unmarshal(of, &s.of); err != nil {
		return nil, fmt.Errorf("%s is no snapshot: %w", path, err)
	}
	return &s, nil
}
