// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"io"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestSpool: a log whose reader reads nothing delays neither a line nor the end. A reader that goes on gets
// the first lines, and how many are missing after them.
func TestSpool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		read, write := io.Pipe()
		s := NewSpool(write)
		log := NewLog(s, LogOptions{JSON: true, Journal: true, Level: slog.LevelDebug})
		const sent = 3 * spoolSize / len("<7>{\"msg\":\"line\"}\n")
		for range sent {
			log.Debug("line")
		}
		synctest.Wait()
		b := make([]byte, 2*spoolSize)
		var text string
		for !strings.Contains(text, "lost") {
			n, err := read.Read(b)
			if err != nil {
				t.Fatal(err)
			}
			text += string(b[:n])
			synctest.Wait()
		}
		lines := strings.SplitAfter(text, "\n")
		last := lines[len(lines)-2]
		got := strings.Count(text, `"line"`)
		want := `<4>{"msg":"lines of the log were lost","lines":` + strconv.Itoa(sent-got) + "}\n"
		if last != want || got < spoolSize/32 {
			t.Errorf("%d of %d lines, and %q, want %q", got, sent, last, want)
		}
		log.Debug("stuck")
		synctest.Wait()
		began := time.Now()
		s.Close()
		if took := time.Since(began); took != spoolTime {
			t.Errorf("the end takes %v", took)
		}
		log.Debug("after the end")
		read.Close()
	})
	var out strings.Builder
	s := NewSpool(&out)
	NewLog(s, LogOptions{Journal: true}).Info("last")
	s.Close()
	if out.String() != "<6>msg=last\n" {
		t.Errorf("%q", out.String())
	}
}
