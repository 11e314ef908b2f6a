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

// A snapshot is the state of a bridge's control protocol when its agent ended: its
// state at the last change, and until when the agent ran.
//
// The first line of the file has that time, in a fixed number of digits, so
// that it can be written over once a second without the rest. The second line
// says what the snapshot is of; then comes the state.
type snapshot struct {
	of     identity
	state  []byte        // as the protocol has it
	paused time.Duration // since the agent ended
}

// An identity tells a bridge and its ports from others of the name and number.
type identity struct {
	Bridge string   `json:"bridge"` // its Identity
	Ports  []uint32 `json:"ports"`  // their ids
}

// stampDigits is enough for nanoseconds of 64 bits.
const stampDigits = 20

func stamp(now time.Duration) []byte { return fmt.Appendf(nil, "%0*d\n", stampDigits, int64(now)) }

// write puts the snapshot in the place of the file's, in one step. With an error the
// file is as it was.
func (s snapshot) write(path string, now time.Duration) (err error) {
	of, err := json.Marshal(s.of)
	if err != nil {
		return err
	}
	next := path + ".next"
	if err := os.RemoveAll(next); err != nil { // whatever it is: a pipe would keep us for ever
		return err
	}
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(next) // which fails on a disk that cannot be written to
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

// errNoFile says that there is something else in the place of a snapshot.
var errNoFile = fmt.Errorf("it is no file: %w", fs.ErrNotExist)

// stillRuns says in the snapshot's file that the agent runs now. The error is
// fs.ErrNotExist where there is no such file.
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
// A snapshot that cannot be written leaves the one before, by which the next agent would
// open what is closed by now. So the file goes. Where it cannot go either, such as from
// a disk that can only be read, it is doubted beside the bridge: the next agent does not
// read it. Where that fails, too, the agent must do nothing that is not in the file.
type keeper struct {
	path    string
	doubt   func(on bool) error // says beside the bridge whether the file is out of date
	doubted bool                // it is said to be
	saved   time.Time           // when it was last brought up to date
	lacks   error               // why the next agent has no snapshot, nil if it has one
	stale   bool                // the next agent would read a snapshot that is out of date
}

// keep writes the snapshot if it has changed, or if it has been taken away, and says
// once a second that the agent runs. did is false if there was nothing to do; unsaved
// says that the file does not have the snapshot.
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

// disown sees to it that nobody reads the file, which is out of date because of an error.
// It returns that error, and what else went wrong.
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
	return fmt.Errorf("%w, nor the one before be removed: %w, nor be said to be out of date: %w", why, gone, err)
}

// maxSnapshot is the size of the largest file, in bytes. It has room for a
// bridge with all the ports that there can be.
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
