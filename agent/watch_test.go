// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"bascule/bridge"

	"github.com/google/go-cmp/cmp"
)

// TestWatch: what repeats is logged once a second, with a count, and nothing is
// left out of the counts.
func TestWatch(t *testing.T) {
	var out strings.Builder
	w := newWatch(nil, NewLog(&out, LogOptions{Journal: true, Level: slog.LevelInfo}))
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
		"<4>msg=\"events came faster than they are read; forwarding is not concerned\" count=900\n"
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
