// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// here returns the bridge's ports as a new process would find them.
func (b *Bridge) here() (ports []Port) {
	for _, p := range b.ports {
		ports = append(ports, Port{Number: p.Number, Config: p.Config, Up: p.Up, State: p.PST})
	}
	return ports
}

// tree returns a bridge at rest with a root port, a designated port and an edge.
func tree(t testing.TB) (*Bridge, *recorder) {
	b, r := newBridge(t, 3, nil, func(n uint16, c *PortConfig) { c.Edge = []Edge{EdgeAuto, EdgeOff, EdgeOn}[n-1] })
	hello := from(better, rstBPDU, roleDesignated|flagForwarding|flagLearning)
	for range 30 {
		b.Tick()
		if err := b.Receive(1, hello.encode(own)); err != nil {
			t.Fatal(err)
		}
	}
	r.take()
	return b, r
}

func TestRestore(t *testing.T) {
	was, r := tree(t)
	text := was.Snapshot()
	b, err := Restore(text, 0, was.Config, was.here(), r)
	if err != nil {
		t.Fatal(err)
	}
	if log := r.take(); len(log) != 0 {
		t.Errorf("it did %q", log)
	}
	if again := b.Snapshot(); !bytes.Equal(text, again) {
		t.Errorf("the snapshot became\n%s\ninstead of\n%s", again, text)
	}
	if a, b := was.Status(), b.Status(); !reflect.DeepEqual(a, b) {
		t.Errorf("%+v became %+v", a, b)
	}
}

// The timers and the information of a port must be saved, even if they have no
// effect yet.
func TestUnsaved(t *testing.T) {
	b, _ := newBridge(t, 2, nil, func(n uint16, c *PortConfig) { c.Edge = EdgeOff })
	unsaved := func(want bool, what string) {
		t.Helper()
		if b.Unsaved() != want {
			t.Errorf("%s: %v instead of %v", what, !want, want)
		}
		b.Snapshot()
	}
	unsaved(true, "at first")
	unsaved(false, "nothing since")
	for i := range 21 { // max age, then a hello time
		b.Tick()
		unsaved(true, fmt.Sprintf("after %d s of waiting", i))
	}
	ticks(b, 5) // no topology change is signalled any more
	b.Snapshot()
	b.Tick()
	unsaved(false, "at rest")
	for n := uint16(1); n <= 2; n++ {
		m := from(better, rstBPDU, roleDesignated|flagProposal)
		m.Priority.DesignatedPortID = NewPortID(128, n)
		receive(t, b, n, m)
	}
	wantState(t, b, 2, AlternatePort, Discarding)
	ticks(b, 1)
	b.Snapshot()
	m := from(better, rstBPDU, roleDesignated|flagProposal)
	m.Priority.DesignatedPortID = NewPortID(240, 2)
	receive(t, b, 2, m)
	wantState(t, b, 2, AlternatePort, Discarding)
	unsaved(true, "another port is behind the alternate one")
	receive(t, b, 2, m)
	m.Times.MessageAge = 3
	receive(t, b, 2, m)
	unsaved(false, "it says so again")
	m.Times.MessageAge = 3 * second
	receive(t, b, 2, m)
	unsaved(true, "it is farther from the root")
	receive(t, b, 1, from(better, rstBPDU, roleDesignated))
	b.Snapshot()
	ticks(b, 2)
	unsaved(false, "two seconds without a hello")
	b.Tick()
	unsaved(true, "a hello is missing")
}

func BenchmarkUnsaved(b *testing.B) {
	bridge, _ := newBridge(b, 256, nil, nil)
	ticks(bridge, 30)
	bridge.Snapshot()
	for b.Loop() {
		if bridge.Unsaved() {
			b.Fatal("not at rest")
		}
	}
}

// However long the pause, neighbours get a hello time to send, and nothing
// happens because of a silence that was not observed.
func TestRestorePaused(t *testing.T) {
	was, r := tree(t)
	b, err := Restore(was.Snapshot(), time.Hour, was.Config, was.here(), r)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.log) != 0 || len(r.sent) == 0 {
		t.Errorf("it did %q and sent %d messages", r.log, len(r.sent))
	}
	ticks(b, 2)
	wantState(t, b, 1, RootPort, Forwarding)
	ticks(b, 1)
	wantState(t, b, 1, DesignatedPort, Forwarding)
	if s := b.Status(); s.Root != s.Bridge {
		t.Errorf("%+v", s)
	}

	// A port that waits to forward goes on waiting.
	waiting, r := newBridge(t, 1, nil, func(_ uint16, c *PortConfig) { c.Edge = EdgeOff })
	left := waiting.port(1).FdWhile
	b, err = Restore(waiting.Snapshot(), time.Hour, waiting.Config, waiting.here(), r)
	if err != nil {
		t.Fatal(err)
	}
	wantState(t, b, 1, DesignatedPort, Discarding)
	if b.port(1).FdWhile != left {
		t.Errorf("fdWhile is %d instead of %d", b.port(1).FdWhile, left)
	}
}

// Changes in the meantime take effect.
func TestRestoreChanged(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config, []Port) []Port
		want   []string // these actions, in any order, and no other state
	}{
		{"a port is gone", func(_ *Config, p []Port) []Port { return p[:2] }, nil},
		{"the root port is gone", func(_ *Config, p []Port) []Port { return p[1:] }, []string{"0 root-changed"}},
		{"a port is new", func(_ *Config, p []Port) []Port {
			return append(p, Port{Number: 9, Config: DefaultPort(1000), State: Forwarding})
		}, []string{"9 discarding"}},
		{"a link is gone", func(_ *Config, p []Port) []Port { p[2].Up = false; return p }, []string{"3 discarding"}},
		{"a port does less", func(_ *Config, p []Port) []Port { p[1].State = Discarding; return p }, []string{"2 forwarding"}},
		{"another port in its place", func(_ *Config, p []Port) []Port {
			p[1].New, p[1].State = true, Discarding
			return p
		}, []string{"2 discarding"}},
		{"another priority", func(c *Config, p []Port) []Port { c.Priority = 0; return p }, []string{"0 root-changed"}},
		{"another version", func(c *Config, p []Port) []Port { c.Version = STP; return p }, []string{"1 discarding", "2 discarding"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			was, r := tree(t)
			config := was.Config
			ports := c.change(&config, was.here())
			b, err := Restore(was.Snapshot(), time.Second, config, ports, r)
			if err != nil {
				t.Fatal(err)
			}
			if len(b.ports) != len(ports) {
				t.Errorf("%d ports", len(b.ports))
			}
			for _, want := range c.want {
				if !slices.Contains(r.log, want) {
					t.Errorf("%q is not in %q", want, r.log)
				}
			}
			if c.want == nil && len(r.log) != 0 {
				t.Errorf("it did %q", r.log)
			}
			for _, p := range was.ports {
				if i := slices.IndexFunc(ports, func(now Port) bool { return now.Number == p.Number }); i >= 0 && b.port(p.Number).PST > p.PST {
					t.Errorf("port %d is %v at once, though it was %v", p.Number, b.port(p.Number).PST, p.PST)
				}
			}
		})
	}
	// A port that forwards but should not is stopped.
	was, r := tree(t)
	was.SetLink(3, false)
	r.take()
	ports := was.here()
	ports[2].State = Forwarding
	if _, err := Restore(was.Snapshot(), 0, was.Config, ports, r); err != nil {
		t.Fatal(err)
	}
	if want := []string{"3 discarding", "3 flush"}; !slices.Equal(r.log, want) {
		t.Errorf("%q instead of %q", r.log, want)
	}
}

func TestRestoreRefuses(t *testing.T) {
	was, r := tree(t)
	text := string(was.Snapshot())
	for name, bad := range map[string]string{
		"nothing":         "",
		"half":            text[:len(text)/2],
		"another format":  strings.Replace(text, `"Format":1`, `"Format":9`, 1),
		"no such state":   strings.Replace(text, `"PIM":2`, `"PIM":7`, 1),
		"no such role":    strings.Replace(text, `"Role":"root"`, `"Role":"king"`, 1),
		"a timer below 0": strings.Replace(text, `"FdWhile":0`, `"FdWhile":-1`, 1),
		"ports twice":     strings.Replace(text, `"Number":2`, `"Number":1`, 1),
		"a null":          `{"Format":1,"Bridge":` + text[strings.Index(text, `"Bridge":`)+9:strings.Index(text, `,"Ports"`)] + `,"Ports":[null]}`,
	} {
		if bad == text {
			t.Fatalf("%s: the snapshot is as it was", name)
		}
		if _, err := Restore([]byte(bad), 0, was.Config, was.here(), r); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if len(r.log) != 0 {
		t.Errorf("it did %q", r.log)
	}
}

// A Status in JSON is read back unchanged.
func TestStatusJSON(t *testing.T) {
	b, _ := tree(t)
	b.Receive(1, nil)
	want := b.Status()
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	var got Status
	if err := json.Unmarshal(text, &got); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v instead of %+v, %v", got, want, err)
	}
	for _, part := range []string{`"role":"root"`, `"state":"forwarding"`, `"version":"rstp"`, `"root":"1000.020000000001"`, `"designated_port":"8001"`, `"length":1`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}

func FuzzRestore(f *testing.F) {
	b, _ := tree(f)
	f.Add(b.Snapshot())
	f.Fuzz(func(t *testing.T, text []byte) {
		r := &recorder{states: make(map[uint16]State), stopped: true}
		again, err := Restore(text, time.Second, b.Config, b.here(), r)
		if err != nil {
			return
		}
		ticks(again, 3)
		again.Status()
		again.Snapshot()
	})
}
