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
	"bascule/files"

	"golang.org/x/sys/unix"
)

// A Pending is a change that waits to be confirmed. A later version of the program may write
// more into its file, and an earlier one less: what is not there is zero.
type Pending struct {
	ID      string    `json:"id"`
	Time    time.Time `json:"time"` // when it began
	Until   time.Time `json:"until"`
	Who     string    `json:"who"`
	User    string    `json:"user"` // the user alone
	What    string    `json:"what"`
	Bridges []string  `json:"bridges"` // that it is about
	Change  string    `json:"change,omitempty"`
	Before  string    `json:"before"` // the file of the state of before, in the same folder
	Files   string    `json:"files"`  // digest of what is applied
	Others  []string  `json:"others,omitempty"`

	// What no file says: of the host's interfaces, and by bridge the rules in anchors of pf.
	Host  bridge.HostNet               `json:"host"`
	Aside map[string]map[string]string `json:"aside,omitempty"`

	Missing []string `json:"missing,omitempty"` // config.Absent, when it began

	// The end by the clock that does not jump, and the boot and network namespace that this is
	// of.
	Boot   string        `json:"boot"`
	End    time.Duration `json:"end"`
	Cookie uint64        `json:"cookie"`

	lacks []string // what is not put back
}

// A moment is a time that is compared with the end of a [Pending].
type moment struct {
	boot  string
	since time.Duration // clock.Boot
	clock time.Time
}

func now() moment {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return moment{strings.TrimSpace(string(boot)), clock.Boot(), time.Now()}
}

// Overdue reports whether the time to confirm the change is over. After a restart it is.
func (p *Pending) Overdue() bool { return p.left(now()) <= 0 }

// Left is the time that is left to confirm it.
func (p *Pending) Left() time.Duration { return p.left(now()) }

func (p *Pending) left(m moment) time.Duration {
	if p.Boot != m.boot {
		return 0
	}
	return p.End - m.since
}

const pendingName = "pending.json"

func (h *History) pendingPath() string { return filepath.Join(h.dir, pendingName) }

// settledPath is the file of the last changes that wait no more, by ID. It is where a restart forgets it.
func (h *History) settledPath() string {
	return filepath.Join(RunDir(), "settled-"+filepath.Base(h.dir))
}

// confirmedPath is what becomes of the file of a change that is confirmed.
func (h *History) confirmedPath() string { return filepath.Join(h.dir, "confirmed.json") }

// isSettled reports whether a change waits no more. It does if only its file was removed: that may
// have been somebody who tidies up.
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

// markSettled has a change wait no more until a restart.
func (h *History) markSettled(p *Pending) error {
	if err := os.MkdirAll(RunDir(), 0o700); err != nil {
		return err
	}
	list := append(h.settled(), p.ID)
	return files.Replace(h.settledPath(), []byte(strings.Join(list[max(0, len(list)-Kept):], "\n")), 0o600)
}

// Pending returns the change that waits to be confirmed, nil for none.
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
			" does not say which change waits to be confirmed; 'bascule apply confirm --yes' keeps what there is, and removes it"}
	}
	p.Before = filepath.Base(p.Before)
	if h.isSettled(p) {
		return nil, nil
	}
	// a namespace of the name that was made anew has nothing to be taken back
	if cookie, err := h.s.Cookie(); err == nil && p.Boot == now().boot && p.Cookie != 0 && p.Cookie != cookie {
		return nil, nil
	}
	return p, nil
}

// Waits reports whether a change may wait to be confirmed. It costs a look at one file.
func (h *History) Waits() bool {
	_, err := os.Lstat(h.pendingPath())
	return err == nil
}

// await has a change wait to be confirmed.
func (h *History) await(p *Pending) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return files.Replace(h.pendingPath(), append(text, '\n'), 0o600)
}

// errUnread is of a file that does not say which change waits.
var errUnread = errors.New("it is not known which change waits to be confirmed")

// settle has the change wait no more, also after a restart. If it is denied, its file stays
// under another name.
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
	_ = h.markSettled(p) // for who has missed that file
	dir, err := os.Open(h.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
