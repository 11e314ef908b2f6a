// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"math"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"bascule/bridge"
	"bascule/rates"

	"github.com/google/go-cmp/cmp"
)

// changing returns a switch with a port whose counters rise by the same amount at each reading;
// change is called before each one with its number, from 0.
func changing(change func(f *fakeSwitch, reading int)) *fakeSwitch {
	f := &fakeSwitch{bridges: []bridge.Info{{Name: "br0"}}}
	f.ports = []bridge.Port{{Bridge: "br0", Name: "p1", Stats: bridge.Stats{Drops: map[string]uint64{}}}}
	reading := 0
	f.looking = func() {
		f.ports = slices.Clone(f.ports)
		if len(f.ports) > 0 {
			s := &f.ports[0].Stats
			s.RxFrames, s.RxBytes, s.TxFrames, s.TxBytes = s.RxFrames+1000, s.RxBytes+64000, s.TxFrames+10, s.TxBytes+600
			s.Drops = map[string]uint64{"mtu": s.Drops["mtu"] + 3, "reserved": 7}
		}
		if change != nil {
			change(f, reading)
		}
		reading++
	}
	return f
}

// TestRates checks that a rate multiplied by the elapsed time is the difference of the counters.
func TestRates(t *testing.T) {
	f := changing(func(f *fakeSwitch, reading int) {
		switch reading {
		case 2: // removed and added again, with a new port
			f.ports[0].Stats = bridge.Stats{RxFrames: 5, RxBytes: 300}
			f.ports = append(f.ports, bridge.Port{Bridge: "br0", Name: "p2"})
		case 4:
			f.ports = f.ports[1:]
		case 5:
			f.ports = nil
		}
	})
	var stdout, stderr strings.Builder
	if status := runWith(f, &stdout, &stderr, "-j", "stats", "br0", "--interval", "100ms", "--count", "5"); status != exitDone || stderr.Len() > 0 {
		t.Fatalf("exit status %d, %q", status, stderr.String())
	}
	type way struct{ Bits, Packets float64 }
	type line struct {
		Time           time.Time
		Elapsed        float64
		Ifname, Master string
		Rates          *struct{ Rx, Tx way }
		Drops          map[string]float64
	}
	var got []string
	for text := range strings.Lines(stdout.String()) {
		var list []line
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		words := []string{}
		for _, l := range list {
			words = append(words, l.Ifname)
			if l.Rates == nil || l.Drops == nil {
				if l.Rates != nil || l.Drops != nil {
					t.Errorf("half of the rates: %s", text)
				}
				words = append(words, "-")
				continue
			}
			if l.Elapsed <= 0 || l.Master != "br0" || l.Time.IsZero() {
				t.Errorf("%+v", l)
			}
			if l.Ifname != "p1" {
				continue
			}
			for _, c := range []struct{ rate, rise float64 }{
				{l.Rates.Rx.Packets, 1000}, {l.Rates.Rx.Bits, 8 * 64000},
				{l.Rates.Tx.Packets, 10}, {l.Rates.Tx.Bits, 8 * 600}, {l.Drops["mtu"], 3},
			} {
				if math.Abs(c.rate*l.Elapsed-c.rise) > 1e-6*c.rise {
					t.Errorf("%v a second over %v s, rose by %v", c.rate, l.Elapsed, c.rise)
				}
			}
		}
		got = append(got, strings.Join(words, " "))
	}
	if diff := cmp.Diff([]string{"p1", "p1 - p2 -", "p1 p2", "p2", ""}, got); diff != "" {
		t.Error(diff)
	}
}

// TestPrintRates checks a table of rates.
func TestPrintRates(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ports := []rates.Port{
		{
			Port: bridge.Port{Bridge: "br0", Name: "p1"}, Known: true, RxFrames: 1234567.6, RxBits: 1e9, TxFrames: 0.04, TxBits: 33.33,
			Drops: map[string]float64{"same-port": 2, "mtu": 0.5},
		},
		{Port: bridge.Port{Bridge: "br0", Name: "p2"}},
	}
	var out strings.Builder
	p := &program{out: bufio.NewWriter(&out)}
	for i, list := range [][]rates.Port{ports, nil} {
		if err := p.printRates(list, at, time.Second, time.TimeOnly, i > 0); err != nil {
			t.Fatal(err)
		}
	}
	p.out.Flush()
	const want = `TIME      BRIDGE  PORT  RX-FRAMES/S  RX-BIT/S    TX-FRAMES/S  TX-BIT/S  DROPS/S
03:04:05  br0     p1    1234568      1000000000  <0.1         33.3      2.5
                                                                        0.5 mtu
                                                                        2 same-port
03:04:05  br0     p2    -            -           -            -         -

TIME      BRIDGE  PORT  RX-FRAMES/S  RX-BIT/S  TX-FRAMES/S  TX-BIT/S  DROPS/S
03:04:05  -       -     -            -         -            -         -
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}

// TestRatesEnd checks that an interrupt or a closed pipe is a normal end, and that a deleted bridge
// is a failure.
func TestRatesEnd(t *testing.T) {
	interrupt := func(_ *fakeSwitch, reading int) {
		if reading == 2 {
			if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
				t.Error(err)
			}
		}
	}
	var stdout, stderr strings.Builder
	if status := runWith(changing(interrupt), &stdout, &stderr, "stats", "--interval=100ms"); status != exitDone || stderr.Len() > 0 {
		t.Errorf("interrupted: exit status %d, %q", status, stderr.String())
	}
	if !regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d\.\d{3}  br0 +p1 +\d+ `).MatchString(stdout.String()) {
		t.Errorf("printed %q", stdout.String())
	}
	stderr.Reset()
	if status := runWith(changing(nil), brokenWriter{syscall.EPIPE}, &stderr, "stats", "--interval=100ms"); status != exitDone || stderr.Len() > 0 {
		t.Errorf("without a reader: exit status %d, %q", status, stderr.String())
	}
	deleted := changing(func(f *fakeSwitch, reading int) {
		if reading == 1 {
			f.bridges = nil
		}
	})
	if status := runWith(deleted, &stdout, &stderr, "stats", "br0", "--interval=100ms"); status != exitRefused || !strings.Contains(stderr.String(), "br0") {
		t.Errorf("bridge deleted: exit status %d, %q", status, stderr.String())
	}
}

// TestRatesBrokenOutput checks that a full disk ends the output with an error.
func TestRatesBrokenOutput(t *testing.T) {
	var stderr strings.Builder
	status := runWith(changing(nil), brokenWriter{syscall.ENOSPC}, &stderr, "stats", "--interval=100ms")
	if status != exitRefused || !strings.Contains(stderr.String(), errors.Unwrap(&os.PathError{Err: syscall.ENOSPC}).Error()) {
		t.Errorf("exit status %d, %q", status, stderr.String())
	}
}

// TestClock checks that rounds within a second have different times.
func TestClock(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 600e6, time.UTC)
	for interval, want := range map[time.Duration]string{
		time.Second: "03:04:05", 5 * time.Second: "03:04:05", 500 * time.Millisecond: "03:04:05.600", 1500 * time.Millisecond: "03:04:05.600",
	} {
		if got := at.Format(clockOf(interval)); got != want {
			t.Errorf("every %v: %s, want %s", interval, got, want)
		}
	}
}
