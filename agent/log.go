// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"syscall"
	"time"
)

// LogOptions set the form of a log.
type LogOptions struct {
	Level   slog.Level
	JSON    bool // lines are JSON objects
	Journal bool // for journald: see InJournal
}

// NewLog returns a log that writes to w. A [Spool] reports in the form of the log how many lines it has lost.
func NewLog(w io.Writer, o LogOptions) *slog.Logger {
	if s, ok := w.(*Spool); ok {
		s.mu.Lock()
		s.missed = func(n int) []byte {
			var line bytes.Buffer
			newLog(&line, o).Warn("lines of the log were lost", "lines", n)
			return line.Bytes()
		}
		s.mu.Unlock()
	}
	return newLog(w, o)
}

func newLog(w io.Writer, o LogOptions) *slog.Logger {
	l := &journal{w: w, on: o.Journal, kinds: map[string]*kind{}}
	options := &slog.HandlerOptions{Level: o.Level}
	if o.Journal {
		options.ReplaceAttr = func(groups []string, a slog.Attr) slog.Attr {
			if len(groups) == 0 && (a.Key == slog.TimeKey || a.Key == slog.LevelKey) {
				return slog.Attr{} // journald adds time and level itself
			}
			return a
		}
	}
	if o.JSON {
		return slog.New(&handler{slog.NewJSONHandler(&l.line, options), l, ""})
	}
	return slog.New(&handler{slog.NewTextHandler(&l.line, options), l, ""})
}

// InJournal reports whether f leads to journald, by JOURNAL_STREAM
// (systemd.exec(5)). journald needs a line's priority in front of it
// (sd-daemon(3)), and adds its own time.
func InJournal(f *os.File) bool {
	info, err := f.Stat()
	if err != nil {
		return false
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && os.Getenv("JOURNAL_STREAM") == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// A neighbour can make a bridge change its root a hundred thousand times in a
// second. So at most mostLines lines of a kind are written in a linePeriod. Of
// further lines only the last is written, at the end of the period, with their
// number as "held". Lines of level debug are all written: a user has chosen
// that level.
const (
	mostLines  = 20
	linePeriod = 20 * time.Second
)

// A journal adds priorities to lines, and limits the number of lines.
type journal struct {
	w  io.Writer
	on bool

	mu    sync.Mutex
	line  bytes.Buffer
	kinds map[string]*kind // of this period
}

// A kind is the lines of one message about one bridge, port or device.
type kind struct {
	lines int    // written
	held  int    // not written
	last  func() // writes the last line that was held
}

type handler struct {
	slog.Handler
	to *journal
	of string // the object that all of its lines are about
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &handler{h.Handler.WithAttrs(attrs), h.to, h.of + fmt.Sprint(attrs)}
}

func (h *handler) WithGroup(name string) slog.Handler {
	return &handler{h.Handler.WithGroup(name), h.to, h.of + name}
}

func (h *handler) Handle(ctx context.Context, r slog.Record) error {
	h.to.mu.Lock()
	defer h.to.mu.Unlock()
	if r.Level < slog.LevelInfo {
		return h.write(ctx, r)
	}
	key := h.of + r.Message
	r.Attrs(func(a slog.Attr) bool {
		switch a.Key {
		case "bridge", "port", "device":
			key += " " + a.Value.String()
		}
		return true
	})
	k := h.to.kinds[key]
	if k == nil {
		k = &kind{}
		h.to.kinds[key] = k
		time.AfterFunc(linePeriod, func() { h.to.end(key) })
	}
	if k.lines < mostLines {
		k.lines++
		return h.write(ctx, r)
	}
	k.held++
	k.last = func() {
		r := r.Clone()
		r.Add("held", k.held)
		_ = h.write(ctx, r) // an error of the log has no other place to go to
	}
	return nil
}

// end ends the period of a kind.
func (j *journal) end(key string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if k := j.kinds[key]; k.last != nil {
		k.last()
	}
	delete(j.kinds, key)
}

// write writes a line; the caller has the lock.
func (h *handler) write(ctx context.Context, r slog.Record) error {
	h.to.line.Reset()
	if h.to.on {
		fmt.Fprintf(&h.to.line, "<%d>", priority(r.Level))
	}
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.to.w.Write(h.to.line.Bytes())
	return err
}

// priority returns a level as a number of syslog(3).
func priority(l slog.Level) int {
	switch {
	case l >= slog.LevelError:
		return 3
	case l >= slog.LevelWarn:
		return 4
	case l >= slog.LevelInfo:
		return 6
	}
	return 7
}
