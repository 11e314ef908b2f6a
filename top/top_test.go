// SPDX-License-Identifier: BSD-2-Clause

package top

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"bascule/bridge"

	tea "charm.land/bubbletea/v2"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

var update = flag.Bool("update", false, "write the golden views anew")

// fake is a source whose counters rise by the same amount each second. Nil functions are not
// called.
type fake struct {
	seconds  uint64
	ports    func(second uint64) []bridge.Port
	talkers  func(second uint64) []bridge.Talker
	portsErr error
	read     atomic.Int32
}

func (f *fake) Ports() ([]bridge.Port, error) {
	f.read.Add(1)
	if f.portsErr != nil {
		return nil, f.portsErr
	}
	return f.ports(f.seconds), nil
}

func (f *fake) Talkers() ([]bridge.Talker, error) {
	if f.talkers == nil {
		return nil, ErrNoTalkers
	}
	return f.talkers(f.seconds), nil
}

// next reads the fake a second later.
func (f *fake) next() Reading {
	r := Read(f)
	r.At = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC).Add(time.Duration(f.seconds) * time.Second)
	f.seconds++
	return r
}

// port returns a port of br0 that receives rx and sends tx frames of 100 bytes a second.
func port(name string, second, rx, tx uint64) bridge.Port {
	return bridge.Port{Bridge: "br0", Name: name, Stats: bridge.Stats{
		RxFrames: 500 + second*rx, RxBytes: 100 * (500 + second*rx), TxFrames: second * tx, TxBytes: 100 * second * tx,
	}}
}

func threePorts(second uint64) []bridge.Port {
	list := []bridge.Port{port("p1", second, 1000, 2), port("p2", second, 0, 12345678), port("p10", second, 12, 0)}
	list[0].Stats.Drops = map[string]uint64{"same-port": 7, "mtu": 3 + 5*second}
	list[2].Stats.Drops = map[string]uint64{"reserved": 20 * second}
	return list
}

func manyPorts(n int) func(uint64) []bridge.Port {
	return func(second uint64) (list []bridge.Port) {
		for i := range n {
			list = append(list, port(fmt.Sprint("p", i+1), second, uint64(10*i), 0))
		}
		return list
	}
}

func fourTalkers(second uint64) (list []bridge.Talker) {
	for i, vlan := range []uint16{0, 10, 0, 4094} {
		mac := net.HardwareAddr{2, 0, 0, 0, 0, byte(i + 1)}
		frames := 10 + second*uint64(10*i)
		list = append(list, bridge.Talker{MAC: mac, VLAN: vlan, Port: fmt.Sprint("p", 4-i), Frames: frames, Bytes: frames * 64})
	}
	return list
}

// key returns the message for a pressed key, by its name in bubbletea.
func key(name string) tea.KeyPressMsg {
	codes := map[string]rune{
		"tab": tea.KeyTab, "left": tea.KeyLeft, "right": tea.KeyRight, "up": tea.KeyUp, "down": tea.KeyDown,
		"pgup": tea.KeyPgUp, "pgdown": tea.KeyPgDown, "space": tea.KeySpace,
	}
	if rest, ok := strings.CutPrefix(name, "shift+"); ok {
		return tea.KeyPressMsg{Code: codes[rest], Mod: tea.ModShift}
	}
	if rest, ok := strings.CutPrefix(name, "ctrl+"); ok {
		return tea.KeyPressMsg{Code: rune(rest[0]), Mod: tea.ModCtrl}
	}
	if code, ok := codes[name]; ok {
		return tea.KeyPressMsg{Code: code}
	}
	return tea.KeyPressMsg{Code: rune(name[0]), Text: name}
}

// TestView compares views with testdata/view.txtar. The steps of a view are
// keys, "read" for a reading, and "WxH" for a size.
func TestView(t *testing.T) {
	const golden = "testdata/view.txtar"
	archive, err := txtar.ParseFile(golden)
	if err != nil && !*update {
		t.Fatal(err)
	}
	want := map[string]string{}
	if archive != nil {
		for _, f := range archive.Files {
			want[f.Name] = string(f.Data)
		}
	}
	made := &txtar.Archive{Comment: []byte("Views of bascule top; go test ./top -update writes them anew.\n")}
	for _, c := range []struct {
		name   string
		source *fake
		steps  string
	}{
		{"first", &fake{ports: threePorts}, "80x10"},
		{"rates", &fake{ports: threePorts}, "read 80x10"},
		{"wide", &fake{ports: threePorts}, "read 132x12"},
		{"narrow", &fake{ports: threePorts}, "read 40x10"},
		{"narrow-sorted-by-last", &fake{ports: threePorts}, "read 6 40x10"},
		{"too-narrow", &fake{ports: threePorts}, "read 39x10"},
		{"too-low", &fake{ports: threePorts}, "read 80x7"},
		{"tiny", &fake{ports: threePorts}, "read 6x1"},
		{"by-name", &fake{ports: threePorts}, "read 80x10 1"},
		{"by-name-reversed", &fake{ports: threePorts}, "read 80x10 1 r"},
		{"by-next", &fake{ports: threePorts}, "read 80x10 s"},
		{"by-arrows", &fake{ports: threePorts}, "read 80x10 right right left"},
		{"round-the-end", &fake{ports: threePorts}, "read 80x10 left left left"},
		{"no-such-column", &fake{ports: threePorts}, "read 80x10 7"},
		{"drops", &fake{ports: threePorts}, "read 80x10 tab"},
		{"drops-by-total", &fake{ports: threePorts}, "read 80x10 tab 4"},
		{"no-drops", &fake{ports: manyPorts(1)}, "read 80x8 tab"},
		{"no-talkers-source", &fake{ports: threePorts}, "read 80x8 tab tab"},
		{"talkers", &fake{ports: threePorts, talkers: fourTalkers}, "read 80x10 shift+tab"},
		{"no-talkers", &fake{ports: threePorts, talkers: func(uint64) []bridge.Talker { return nil }}, "read 80x8 tab tab"},
		{"talkers-by-vlan", &fake{ports: threePorts, talkers: fourTalkers}, "read 80x10 tab tab 2"},
		{"talkers-narrow", &fake{ports: threePorts, talkers: fourTalkers}, "read 40x8 tab tab"},
		{"many", &fake{ports: manyPorts(20)}, "read 80x10"},
		{"just-enough", &fake{ports: manyPorts(6)}, "read 80x10"},
		{"one-too-many", &fake{ports: manyPorts(7)}, "read 80x10"},
		{"scrolled", &fake{ports: manyPorts(20)}, "read 80x10 down down"},
		{"scrolled-to-the-end", &fake{ports: manyPorts(20)}, "read 80x10 pgdown pgdown pgdown pgdown pgdown pgdown"},
		{"scrolled-back", &fake{ports: manyPorts(20)}, "read 80x10 pgdown up pgup pgup"},
		{"scrolled-then-larger", &fake{ports: manyPorts(20)}, "read 80x10 pgdown pgdown pgdown pgdown 80x26"},
		{"none", &fake{ports: manyPorts(0)}, "read 80x8"},
		{"help", &fake{ports: threePorts}, "read 80x12 ?"},
		{"help-small", &fake{ports: threePorts}, "read 40x8 ?"},
		{"help-left", &fake{ports: threePorts}, "read 80x10 ? 1"},
		{"paused", &fake{ports: threePorts}, "read 80x10 p read read"},
		{"went-on", &fake{ports: threePorts}, "read 80x10 p read p read"},
		{"reset", &fake{ports: func(second uint64) []bridge.Port {
			if second == 3 {
				return threePorts(0)
			}
			return threePorts(second)
		}}, "read read read 80x10"},
		{"vanished", &fake{ports: func(second uint64) []bridge.Port {
			if second > 1 {
				return threePorts(second)[1:]
			}
			return threePorts(second)
		}}, "read read 80x10"},
		{"came-back", &fake{ports: func(second uint64) []bridge.Port {
			if second == 2 {
				return threePorts(second)[1:]
			}
			return threePorts(second)
		}}, "read read read 80x10"},
		{"fewer-than-scrolled", &fake{ports: func(second uint64) []bridge.Port {
			return manyPorts(20 - 18*int(second/2))(second)
		}}, "read 80x10 pgdown pgdown pgdown pgdown read"},
		{"bridges", &fake{ports: func(second uint64) []bridge.Port {
			list := threePorts(second)
			list[1].Bridge, list[1].Name = "br1", "p1"
			return list
		}}, "read 80x10"},
		{"long-names", &fake{ports: func(second uint64) []bridge.Port {
			list := threePorts(second)
			list[0].Bridge, list[0].Name, list[1].Name = "a-bridge-abcdef", "a-port-abcdefgh", "b\x1b[31m\t\x7f"
			return list
		}}, "read 40x10"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := New("br0", c.source.next())
			for step := range strings.FieldsSeq(c.steps) {
				var width, height int
				if n, _ := fmt.Sscanf(step, "%dx%d", &width, &height); n == 2 {
					m.Update(tea.WindowSizeMsg{Width: width, Height: height})
				} else if step == "read" {
					m.Update(c.source.next())
				} else if _, cmd := m.Update(key(step)); cmd != nil {
					t.Errorf("%s quits", step)
				}
			}
			view := m.View()
			if !view.AltScreen {
				t.Error("does not leave the screen as it was")
			}
			lines := strings.Split(view.Content, "\n")
			if len(lines) > m.height {
				t.Errorf("%d lines of %d", len(lines), m.height)
			}
			for _, line := range lines {
				if utf8.RuneCountInString(line) > m.width || clean(line) != line {
					t.Errorf("line of %d: %q", m.width, line)
				}
			}
			text := "steps: " + c.steps + "\n" + view.Content + "\n"
			made.Files = append(made.Files, txtar.File{Name: c.name, Data: []byte(text)})
			if diff := gocmp.Diff(want[c.name], text); diff != "" && !*update {
				t.Error(diff)
			}
		})
	}
	if *update {
		if err := os.WriteFile(golden, txtar.Format(made), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestError checks that a failed reading is shown in addition to the last successful one.
func TestError(t *testing.T) {
	f := &fake{ports: threePorts}
	m := New("br0", f.next())
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 10})
	m.Update(f.next())
	good := m.View().Content
	f.portsErr = errors.New("cannot show bridge br0:\nit is gone")
	m.Update(f.next())
	lines := strings.Split(m.View().Content, "\n")
	if lines[2] != "cannot show bridge br0: it is gone" || strings.Split(good, "\n")[2] != lines[3] {
		t.Errorf("shows\n%s", strings.Join(lines, "\n"))
	}
	f.portsErr = nil
	m.Update(f.next())
	// after two seconds: the same rates
	want := strings.Replace(strings.Replace(good, "03:04:06", "03:04:08", 1), "over 1s", "over 2s", 1)
	if diff := gocmp.Diff(want, m.View().Content); diff != "" {
		t.Error(diff)
	}
}

func TestCompareNames(t *testing.T) {
	names := []string{"", "a", "eth", "eth0", "eth00", "eth1", "eth2", "eth10", "eth10.5", "eth10.20", "ethx", "p1q2", "p1q10", "p2", "x"}
	for i, a := range names {
		for j, b := range names {
			if got := compareNames(a, b); got != cmp.Compare(i, j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
}

func TestQuit(t *testing.T) {
	for _, name := range []string{"q", "ctrl+c"} {
		for _, before := range []string{"p", "?"} {
			m := New("", (&fake{ports: threePorts}).next())
			m.Update(key(before))
			if _, cmd := m.Update(key(name)); cmd == nil || cmd() != (tea.QuitMsg{}) {
				t.Errorf("%s after %s does not quit", name, before)
			}
		}
	}
}

func TestScale(t *testing.T) {
	for n, want := range map[float64]string{
		0: "0", 0.01: "<0.1", 0.1: "0.1", 1: "1", 1.25: "1.2", 9.96: "10", 12.3: "12", 999.4: "999", 999.6: "1.00k",
		1000: "1.00k", 9994: "9.99k", 9996: "10.0k", 99940: "99.9k", 99960: "100k", 999499: "999k", 999501: "1.00M",
		1.5e9: "1.50G", 4e11: "400G", 1e12: "1.00T", 2e18: "2.00E", 3e21: "3000E",
	} {
		if got := scale(n); got != want {
			t.Errorf("%v is written %s, want %s", n, got, want)
		}
	}
}

// TestRun runs the whole program without a terminal, and ends it through its context. Afterwards
// the source must not be read.
func TestRun(t *testing.T) {
	f := &fake{ports: threePorts}
	m := New("br0", f.next())
	ctx, cancel := context.WithCancel(context.Background())
	var out bytes.Buffer
	done := make(chan error)
	go func() { done <- Run(ctx, nil, &out, m, f, time.Millisecond) }()
	for f.read.Load() < 5 {
		time.Sleep(time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	// the race detector would report a later use
	f.ports = nil
	f.seconds = 0
}
