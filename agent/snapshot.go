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
	Bridge string   `json:"bridge"` // its address
	Ports  []uint32 `json:"ports"`  // their ids
}

// stampDigits is enough for nanoseconds of 64 bits.
const stampDigits = 20

// bootTime is the time since the machine started, also while it was suspended:
// neighbours were not.
func bootTime() time.Duration { return clock(unix.CLOCK_BOOTTIME) }

// monotonic is the service manager's time (sd_notify(3)).
func monotonic() time.Duration { return clock(unix.CLOCK_MONOTONIC) }

func clock(id int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(id, &t); err != nil {
		return 0 // which it never does (clock_gettime(2))
	}
	return time.Duration(t.Nano())
}

func stamp(now time.Duration) []byte { return fmt.Appendf(nil, "%0*d\n", stampDigits, int64(now)) }

// write puts the snapshot in the place of the file's, in one step.
func (s snapshot) write(path string, now time.Duration) error {
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
type keeper struct {
	path  string
	saved time.Time // when it was last brought up to date
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
		err = stillRuns(k.path, bootTime())
		if !errors.Is(err, fs.ErrNotExist) {
			return true, false, err
		}
	}
	err = take().write(k.path, bootTime())
	return true, err != nil, err
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
