// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"bascule/bridge"

	"github.com/google/go-cmp/cmp"
)

// TestWatch: a repeated event is logged once a second, with a count, and the
// counts are complete.
func TestWatch(t *testing.T) {
	var out strings.Builder
	w := newReporter(nil, NewLog(&out, LogOptions{Journal: true, Level: slog.LevelInfo}))
	refused := func(n uint64) bridge.Digest {
		return bridge.Digest{
			Counts: map[string]uint64{"refused": 1, "learned": 1}, Merged: n - 1,
			Notable: []bridge.Event{{Kind: "refused", Bridge: "br0", Port: "p1", Reason: "full", Count: n}},
		}
	}
	begin := time.Unix(0, 0)
	for i, n := range []uint64{1, 10, 100} {
		if w.digest(refused(n), begin.Add(time.Duration(i)*100*time.Millisecond)) {
			t.Error("few events are called many")
		}
	}
	w.digest(refused(5), begin.Add(time.Second))
	if !w.digest(bridge.Digest{Missed: 900}, begin.Add(time.Second)) {
		t.Error("many events are not called so")
	}
	w.digest(bridge.Digest{Missed: 7}, begin.Add(2*time.Second))
	want := "<4>msg=\"an address is not learned or moved\" port=p1 reason=full count=1\n" +
		"<4>msg=\"an address is not learned or moved\" port=p1 reason=full count=115\n" +
		"<4>msg=\"events came faster than they were read; forwarding is not affected\" count=900\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	status := EventStatus{
		Counts: map[string]uint64{"refused": 4, "learned": 4},
		Missed: 907,
		Merged: 9 + 99 + 4,
	}
	if diff := cmp.Diff(status, w.status()); diff != "" {
		t.Errorf("status (-want +got):\n%s", diff)
	}
}

// TestWatchGrows: an event that goes on is logged less and less often, in the end
// once a minute. No count is lost. An event that has ceased is logged at once when
// it comes again.
func TestWatchGrows(t *testing.T) {
	var out strings.Builder
	w := newReporter(nil, NewLog(&out, LogOptions{Journal: true, Level: slog.LevelInfo}))
	begin := time.Unix(0, 0)
	var lines []string
	var at []int
	step := func(tick int, n uint64) {
		var d bridge.Digest
		if n > 0 {
			d.Notable = []bridge.Event{{Kind: "refused", Bridge: "br0", Port: "p1", From: "host0", Reason: "static", Own: true, Count: n}}
		}
		out.Reset()
		w.digest(d, begin.Add(time.Duration(tick)*reportPeriod))
		if text := out.String(); text != "" {
			lines, at = append(lines, text), append(at, int(time.Duration(tick)*reportPeriod/time.Second))
		}
	}
	const second = int(time.Second / reportPeriod)
	for tick := range 200 * second {
		step(tick, 1)
	}
	for tick := range 100 * second { // the held message is logged then
		step(200*second+tick, 0)
	}
	step(400*second, 1)
	if diff := cmp.Diff([]int{0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 400}, at); diff != "" {
		t.Errorf("seconds of lines (-want +got):\n%s", diff)
	}
	sum := 0
	for _, line := range lines {
		var n int
		_, count, _ := strings.Cut(line, "count=")
		if _, err := fmt.Sscan(count, &n); err != nil || !strings.HasPrefix(line, "<4>msg=\"frames of a host port's own address come in by another port: a loop?\" port=p1 host=host0") {
			t.Errorf("a line is %q", line)
		}
		sum += n
	}
	if want := 200*second + 1; sum != want {
		t.Errorf("%d times are told, should be %d", sum, want)
	}
}
