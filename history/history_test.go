// SPDX-License-Identifier: BSD-2-Clause

package history

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"bascule/bridge"
)

// TestLeft: a change waits by the clock that cannot be set.
func TestLeft(t *testing.T) {
	p := &Pending{}
	p.end(time.Minute)
	m := now()
	if left := p.left(m); left <= 50*time.Second || left > time.Minute {
		t.Errorf("%v are left of a minute", left)
	}
	for _, jump := range []time.Duration{-1000 * time.Hour, 1000 * time.Hour} {
		jumped := m
		jumped.clock = m.clock.Add(jump)
		if p.left(jumped) != p.left(m) {
			t.Errorf("the time that is left is by a clock that jumps by %v", jump)
		}
	}
	later := m
	later.since += time.Minute + time.Second
	restarted := m
	restarted.boot, restarted.since = "another", 0
	for what, m := range map[string]moment{"after a minute": later, "after a restart": restarted} {
		if left := p.left(m); left > 0 {
			t.Errorf("%s %v are left", what, left)
		}
	}
}

func TestParseConfirm(t *testing.T) {
	for text, want := range map[string]time.Duration{"1s": time.Second, "60s": time.Minute, "1m30s": 90 * time.Second, "24h": 24 * time.Hour} {
		if got, err := ParseConfirm(text); err != nil || got != want {
			t.Errorf("%s is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "60", "0s", "-1s", "999ms", "24h1s", "1e9s", "never", "9999999999999h"} {
		if got, err := ParseConfirm(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

func TestParseSession(t *testing.T) {
	if s, ok := parseSession("192.0.2.7 50000 192.0.2.1 22"); !ok || fmt.Sprint(s) != "{192.0.2.7:50000 192.0.2.1:22}" {
		t.Error(s, ok)
	}
	if s, ok := parseSession("fe80::1%eth0 50000 2001:db8::1 22"); !ok || s.Server.Addr().String() != "2001:db8::1" {
		t.Error(s, ok)
	}
	for _, text := range []string{"", "UNKNOWN 65535 UNKNOWN 65535", "192.0.2.7 50000 192.0.2.1", "192.0.2.7 70000 192.0.2.1 22"} {
		if s, ok := parseSession(text); ok {
			t.Errorf("%q is %v", text, s)
		}
	}
}

// historyIn returns a history in a temporary folder.
func historyIn(t *testing.T) *History {
	t.Helper()
	t.Setenv("BASCULE_AGENT_DIR", t.TempDir())
	s, err := bridge.Open("")
	if err != nil {
		t.Fatal(err)
	}
	return &History{s: s, dir: filepath.Join(t.TempDir(), "init")}
}

// TestKeep: a state is kept once, even if it is applied repeatedly, and the last 20 are kept. The
// state that a change would be put back to is never removed.
func TestKeep(t *testing.T) {
	h := historyIn(t)
	keep := func(n int) State {
		t.Helper()
		st, err := h.keep(State{Time: time.Now(), Who: "me", What: fmt.Sprint(n)}, fmt.Appendf(nil, "bridges:\n  br0:\n    ageing: %ds\n", 100+n))
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	first := keep(0)
	if again := keep(0); again.number != first.number {
		t.Errorf("the same state is kept as %d and %d", first.number, again.number)
	}
	if err := h.await(&Pending{ID: "1", Before: first.name()}); err != nil {
		t.Fatal(err)
	}
	for n := range 30 {
		keep(n + 1)
	}
	list, err := h.States()
	if err != nil || len(list) != Kept+1 || list[0].What != "30" || list[Kept].What != "0" {
		t.Errorf("kept are %v, %v", list, err)
	}
	f, _, err := list[0].file()
	if err != nil || len(f.Bridges) != 1 || f.Bridges[0].Settings[0].Value != "130s" {
		t.Error(f, err)
	}
}

// TestPendingFile: a path in a foreign file leads to no other folder, and an unreadable file is an
// error.
func TestPendingFile(t *testing.T) {
	h := historyIn(t)
	if p, err := h.Pending(); p != nil || err != nil || h.Waits() {
		t.Fatal(p, err)
	}
	if err := os.MkdirAll(h.dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(h.pendingPath(), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, text := range []string{"", "{", "[]", "{}", `{"end": "soon"}`} {
		write(text)
		if p, err := h.Pending(); err == nil {
			t.Errorf("%q is %v", text, p)
		}
	}
	text, _ := json.Marshal(map[string]any{"before": "../../etc/000001.yaml", "end": 1, "later": []int{1}})
	write(string(text))
	if p, err := h.Pending(); err != nil || p.Before != "000001.yaml" || !p.Overdue() {
		t.Error(p, err)
	}
}
