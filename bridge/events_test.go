// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"testing"
	"time"

	"bascule/datapath"

	"github.com/google/go-cmp/cmp"
)

func TestDigest(t *testing.T) {
	w := &listener{name: "br0", names: map[uint32]string{1: "p1", 2: "p2"}}
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	got := w.digest([]datapath.Event{
		{Kind: datapath.EventLearned, MAC: mac, Port: 1},
		{Kind: datapath.EventLearned, MAC: mac, Port: 2},
		{Kind: datapath.EventMoved, MAC: mac, Port: 2, From: 1},
		{Kind: datapath.EventRefusedPinned, MAC: mac, Port: 2, Count: 5},
		{Kind: datapath.EventRefusedPinned, MAC: mac, Port: 2, Count: 2},
		{Kind: datapath.EventRefusedFull, Port: 2, Count: 9},
		{Kind: datapath.EventLoop, MAC: mac, Port: 1, From: 2},
		{Kind: datapath.EventBlocked, Port: 1, Count: 30},
		{Kind: datapath.EventAged, MAC: mac, Port: 2},
	}, 7)
	want := Digest{
		Counts: map[string]uint64{"learned": 2, "moved": 1, "aged": 1, "refused": 3, "loop": 1, "blocked": 1},
		Missed: 7,
		Notable: []Event{
			{Kind: "loop", Bridge: "br0", Port: "p1", From: "p2", MAC: mac[:], Count: 1},
			{Kind: "blocked", Bridge: "br0", Port: "p1", For: 30 * time.Second, Count: 1},
			{Kind: "refused", Bridge: "br0", Port: "p2", Reason: "full", Count: 9},
			{Kind: "refused", Bridge: "br0", Port: "p2", Reason: "static", MAC: mac[:], Count: 7},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("digest (-want +got):\n%s", diff)
	}
}

// Every kind of the datapath's events has a word.
func TestEventWords(t *testing.T) {
	seen := map[string]bool{}
	for kind := datapath.EventLearned; kind < datapath.EventEnd; kind++ {
		e := (&listener{}).event(datapath.Event{Kind: kind})
		if words := e.Kind + " " + e.Reason; e.Kind == "" || seen[words] {
			t.Errorf("kind %d is %q, which is nothing, or another's", kind, words)
		} else {
			seen[words] = true
		}
	}
}
