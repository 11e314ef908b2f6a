// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

func TestLog(t *testing.T) {
	say := func(log *slog.Logger) {
		log.Debug("quiet")
		log.With("bridge", "br0").Warn("a port\nis blocked", "port", "p1")
		log.Error("bad")
		log.Info("good")
	}
	for _, c := range []struct {
		name string
		o    LogOptions
		want string
	}{
		{"journal", LogOptions{Journal: true, Level: slog.LevelInfo},
			"<4>msg=\"a port\\nis blocked\" bridge=br0 port=p1\n<3>msg=bad\n<6>msg=good\n"},
		{"debug", LogOptions{Journal: true, Level: slog.LevelDebug},
			"<7>msg=quiet\n<4>msg=\"a port\\nis blocked\" bridge=br0 port=p1\n<3>msg=bad\n<6>msg=good\n"},
		{"json", LogOptions{Journal: true, JSON: true, Level: slog.LevelError}, "<3>{\"msg\":\"bad\"}\n"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out strings.Builder
			say(NewLog(&out, c.o))
			if out.String() != c.want {
				t.Errorf("%q, want %q", out.String(), c.want)
			}
		})
	}
	t.Run("terminal", func(t *testing.T) {
		var out strings.Builder
		say(NewLog(&out, LogOptions{Level: slog.LevelError}))
		if !strings.HasPrefix(out.String(), "time=") || !strings.HasSuffix(out.String(), " level=ERROR msg=bad\n") {
			t.Errorf("%q", out.String())
		}
	})
}

// TestLogLimit: repeated lines do not fill a disk, and the last one is logged.
func TestLogLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		log := NewLog(&out, LogOptions{Journal: true, Level: slog.LevelDebug})
		for n := range 1000 {
			log.With("bridge", "br0").Info("flaps", "port", "p1", "n", n)
		}
		log.With("bridge", "br0").Info("flaps", "port", "p2")
		log.With("bridge", "br1").Info("flaps", "port", "p1")
		for n := range 100 {
			log.Debug("fine", "n", n)
		}
		if got, want := strings.Count(out.String(), "\n"), mostLines+2+100; got != want {
			t.Errorf("%d lines at once, want %d", got, want)
		}
		log.Debug("what was read has been before the rest")
		time.Sleep(linePeriod)
		synctest.Wait()
		if want := fmt.Sprintf("\n<6>msg=flaps bridge=br0 port=p1 n=999 held=%d\n", 1000-mostLines); !strings.HasSuffix(out.String(), want) {
			t.Errorf("after the period %q, want %q", out.String(), want)
		}
		log.With("bridge", "br0").Info("flaps", "port", "p1", "n", "new")
		if want := "n=new\n"; !strings.HasSuffix(out.String(), want) {
			t.Errorf("in the next period %q, want %q", out.String(), want)
		}
		time.Sleep(2 * linePeriod)
	})
}

func TestInJournal(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	for stream, want := range map[string]bool{"": false, "1:1": false, fmt.Sprintf("%d:%d", st.Dev, st.Ino): true} {
		t.Setenv("JOURNAL_STREAM", stream)
		if got := InJournal(f); got != want {
			t.Errorf("JOURNAL_STREAM=%q: %v", stream, got)
		}
	}
}
