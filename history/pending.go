// SPDX-License-Identifier: BSD-2-Clause

package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/clock"
	"bascule/config"
	"bascule/files"

	"golang.org/x/sys/unix"
)

// A Pending is a change that waits for its confirmation. A later version of the program may write
// more into its file, and an earlier version less: a missing value is zero.
type Pending struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"` // when it began
	Until   time.Time `json:"until"`
	Who     string    `json:"who"`
	User    string    `json:"user"` // the name of the user alone
	What    string    `json:"what"`
	Bridges []string  `json:"bridges"` // that it changes
	Change  string    `json:"change,omitempty"`
	Before  string    `json:"before"` // name of the file of the state before it, in the same folder
	Files   string    `json:"files"`  // digest of the applied files
	Others  []string  `json:"others,omitempty"`

	// The state that files do not cover: of the host's interfaces, and the rules in anchors of
	// pf by bridge.
	Host  bridge.HostNet               `json:"host"`
	Aside map[string]map[string]string `json:"aside,omitempty"`

	Missing []string `json:"missing,omitempty"` // config.Absent when it began

	// The end, by the clock that does not jump, and the boot and network namespace for which
	// it is valid.
	Boot   string        `json:"boot"`
	End    time.Duration `json:"end"`
	Cookie uint64        `json:"cookie"`

	lacks  []string // parts that could not be put back
	hidden bool     // its files are gone, and it is known by their copy
}

// A moment is a time to compare with the end of a [Pending].
type moment struct {
	boot  string
	since time.Duration // clock.Boot
	clock time.Time
}

func now() moment {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return moment{strings.TrimSpace(string(boot)), clock.Boot(), time.Now()}
}

// Overdue reports whether the time to confirm the change is over. A restart ends it, too.
func (p *Pending) Overdue() bool { return p.left(now()) <= 0 }

// Left returns the time that is left to confirm the change.
func (p *Pending) Left() time.Duration { return p.left(now()) }

func (p *Pending) left(m moment) time.Duration {
	if p.Boot != m.boot {
		return 0
	}
	return p.End - m.since
}

const pendingName = "pending.json"

func (h *History) pendingPath() string { return filepath.Join(h.dir, pendingName) }

// settledPath returns the path of the list of the last settled changes, by ID. A restart removes
// it.
func (h *History) settledPath() string {
	return filepath.Join(RunDir(), "settled-"+filepath.Base(h.dir))
}

// confirmedPath returns the path that the file of a change gets when the change is confirmed.
func (h *History) confirmedPath() string { return filepath.Join(h.dir, "confirmed.json") }

// isSettled reports whether a change no longer waits. A change whose file was merely removed still
// waits: that may have been a cleanup.
func (h *History) isSettled(p *Pending) bool {
	if p.ID == "" {
		return false
	}
	if slices.Contains(h.settled(), p.ID) {
		return true
	}
	for _, path := range []string{h.confirmedPath(), h.deniedPath(p.Files)} {
		done := &Pending{}
		if text, err := readFile(path); err == nil && json.Unmarshal(text, done) == nil && done.ID == p.ID {
			return true
		}
	}
	return false
}

func (h *History) settled() []string {
	text, _ := readFile(h.settledPath())
	return strings.Fields(string(text))
}

// markSettled records that a change no longer waits, until a restart.
func (h *History) markSettled(p *Pending) error {
	if err := os.MkdirAll(RunDir(), 0o700); err != nil {
		return err
	}
	list := append(h.settled(), p.ID)
	return files.Replace(h.settledPath(), []byte(strings.Join(list[max(0, len(list)-Kept):], "\n")), 0o600)
}

// Pending returns the change that waits for its confirmation, nil for none.
func (h *History) Pending() (*Pending, error) {
	text, err := readFile(h.pendingPath())
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read which change waits to be confirmed: %w; remove that file", err)
	}
	p := &Pending{}
	if err := json.Unmarshal(text, p); err != nil || p.Before == "" {
		return nil, &refusal{cause: errUnread, line: h.pendingPath() +
			" does not name the change that waits to be confirmed; 'bascule apply confirm --yes' keeps the present state, and removes it"}
	}
	p.Before = filepath.Base(p.Before)
	if h.isSettled(p) {
		return nil, nil
	}
	// another namespace has taken over the name since, and has nothing to put back
	if cookie, err := h.s.Cookie(); err == nil && p.Boot == now().boot && p.Cookie != 0 && p.Cookie != cookie {
		return nil, nil
	}
	return p, nil
}

// marked reports whether there is the file of a change that may wait for its confirmation. It costs one stat.
func (h *History) marked() bool {
	_, err := os.Lstat(h.pendingPath())
	return err == nil
}

// Waiting is Pending, and also finds a change whose files are hidden or removed, or in the folder of another
// BASCULE_STATE_DIR. It does so until the change's time is over: then the process that has the change in memory puts it
// back. If that process was killed, the change stays.
func (h *History) Waiting() (*Pending, error) {
	if p, err := h.Pending(); p != nil || err != nil {
		return p, err
	}
	p := h.noted()
	if p == nil || p.Overdue() {
		return nil, nil
	}
	p.hidden = true
	return p, nil
}

// Waits reports whether a change waits for its confirmation, or may wait: its file cannot be read.
func (h *History) Waits() bool {
	p, err := h.Waiting()
	return p != nil || err != nil
}

// WaitsWith returns a digest of files if they are the change that waits for its confirmation, "" if they are not.
func (h *History) WaitsWith(f config.File) string {
	if p, err := h.Waiting(); err == nil && p != nil && p.Files == digest(f) {
		return p.Files
	}
	return ""
}

// await stores the change as the one that waits.
func (h *History) await(p *Pending) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if err := files.Replace(h.pendingPath(), text, 0o600); err != nil {
		return err
	}
	if err := os.MkdirAll(RunDir(), 0o700); err == nil {
		_ = files.Replace(h.notePath(), text, 0o600) // the change waits without it
	}
	return nil
}

// notePath returns the path of a copy of the waiting change's file, which is elsewhere: the folder of the states may be
// hidden or removed. Commands learn from the copy that a change waits. It has no state to put back.
func (h *History) notePath() string {
	return filepath.Join(RunDir(), "waits-"+filepath.Base(h.dir))
}

// noted returns the change that waits according to the copy, nil for none.
func (h *History) noted() *Pending {
	p := &Pending{}
	text, err := readFile(h.notePath())
	if err != nil || json.Unmarshal(text, p) != nil || p.Boot != now().boot || h.isSettled(p) {
		return nil
	}
	if cookie, err := h.s.Cookie(); err != nil || p.Cookie != cookie {
		return nil
	}
	return p
}

// kept returns the change that was confirmed last if nothing was applied or put back since, nil for none.
func (h *History) kept() *Pending {
	p := &Pending{}
	text, err := readFile(h.confirmedPath())
	if err != nil || json.Unmarshal(text, p) != nil || p.Files == "" {
		return nil
	}
	list, err := h.States()
	if err != nil || len(list) == 0 {
		return nil
	}
	// a change that could not begin has such a file, too, but no state
	if st := list[0]; st.Files != p.Files || len(st.Again) > 0 || st.Time.Before(p.Time) {
		return nil
	}
	return p
}

// errUnread means that the file does not say which change waits.
var errUnread = errors.New("it is not known which change waits to be confirmed")

// settle ends the wait of the change, also after a restart. If the change is denied, its file is
// kept under another name.
func (h *History) settle(p *Pending, denied bool) error {
	var err error
	if denied && p.Files != "" {
		err = os.Rename(h.pendingPath(), h.deniedPath(p.Files))
	} else {
		err = os.Rename(h.pendingPath(), h.confirmedPath())
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	_ = os.Remove(h.notePath())
	_ = h.markSettled(p) // for a process that has missed that file
	dir, err := os.Open(h.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
