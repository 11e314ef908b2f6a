// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"bascule/test/netlab"
)

// A screen is a terminal of tmux(1) with a shell in it, on a server of its own.
type screen struct {
	t      *testing.T
	lab    *netlab.Lab
	dir    string // folder of the server's socket
	socket string
}

// newScreen opens a terminal.
func newScreen(t *testing.T, l *netlab.Lab, width, height int) *screen {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		t.Skip("needs tmux")
	}
	s := &screen{t, l, t.TempDir(), l.Switch.Name}
	s.tmux("new-session", "-d", "-x", strconv.Itoa(width), "-y", strconv.Itoa(height), "env", "-i",
		"PATH="+os.Getenv("PATH"), "PS1=ready> ", "TERM=screen", "LC_ALL=C.UTF-8", "sh")
	t.Cleanup(func() { s.tmux("kill-server") })
	s.wait("a prompt", func(text string) bool { return strings.Contains(text, "ready>") })
	return s
}

func (s *screen) tmux(args ...string) string {
	s.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-L", s.socket, "-f", "/dev/null"}, args...)...)
	cmd.Env = append(os.Environ(), "TMUX_TMPDIR="+s.dir)
	out, err := cmd.CombinedOutput()
	if err != nil {
		s.t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
	return strings.TrimRight(string(out), "\n")
}

// text returns the text on the terminal.
func (s *screen) text() string {
	s.t.Helper()
	return s.tmux("capture-pane", "-p")
}

// wait waits until the terminal shows something.
func (s *screen) wait(what string, shows func(text string) bool) {
	s.t.Helper()
	defer func() {
		if s.t.Failed() {
			s.t.Logf("the terminal shows\n%s", s.text())
		}
	}()
	s.lab.Wait("the terminal to show "+what, func() bool { return shows(s.text()) })
}

// shows waits until the terminal shows a line that matches.
func (s *screen) shows(pattern string) {
	s.t.Helper()
	s.wait(pattern, regexp.MustCompile(`(?m)`+pattern).MatchString)
}

// keys presses keys, named as tmux names them.
func (s *screen) keys(keys ...string) {
	s.t.Helper()
	s.tmux(append([]string{"send-keys"}, keys...)...)
}

// run types a command line.
func (s *screen) run(line string) {
	s.t.Helper()
	s.tmux("send-keys", "-l", line)
	s.keys("Enter")
}

// state returns the properties of the terminal that a program could change.
func (s *screen) state() string {
	s.t.Helper()
	return s.tmux("display-message", "-p", "alternate #{alternate_on} cursor #{cursor_flag} mouse #{mouse_any_flag} "+
		"keypad #{keypad_flag} cursor keys #{keypad_cursor_flag} insert #{insert_flag} wrap #{wrap_flag} "+
		"scroll #{scroll_region_upper}-#{scroll_region_lower}")
}

// TestTop watches a live switch in a real terminal, and ends top in every possible way.
func TestTop(t *testing.T) {
	t.Parallel()
	l, ends := setup(t, "tcx", 12)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	s := newScreen(t, l, 80, 24)
	dir := t.TempDir()
	tty, status, pid := filepath.Join(dir, "tty"), filepath.Join(dir, "status"), filepath.Join(dir, "pid")
	read := func(path string) string {
		text, _ := os.ReadFile(path)
		return strings.TrimSpace(string(text))
	}
	top := fmt.Sprintf("%s -n %s top br0 --interval 100ms", l.Binary(), l.Switch.Name)
	rounds := 0
	start := func() (wantTTY, wantState string) {
		rounds++ // so that the last round's text does not count
		s.run(fmt.Sprintf("clear; echo before top; stty -g >%s.before; echo noted %d", tty, rounds))
		s.shows(fmt.Sprintf(`^noted %d\nready> ?$`, rounds))
		wantState = s.state()
		s.run(fmt.Sprintf("sh -c 'echo $$ >%s; exec %s'; echo $? >%s; stty -g >%s", pid, top, status, tty))
		s.shows(`^bascule top br0 .*over `)
		if text := s.text(); strings.Contains(text, "before top") {
			t.Errorf("on the same screen as the shell:\n%s", text)
		}
		return read(tty + ".before"), wantState
	}
	// ended checks that the terminal is as it was.
	ended := func(how, wantTTY, wantState string) {
		t.Helper()
		s.wait("the shell again", func(string) bool { return read(tty) != "" })
		s.shows(`^before top$`)
		s.shows(`^ready> $|^ready>$`)
		if got := read(status); got != "0" {
			t.Errorf("%s: exit status %s", how, got)
		}
		if got := read(tty); got != wantTTY {
			t.Errorf("%s: settings of the terminal %s were %s", how, got, wantTTY)
		}
		if got := s.state(); got != wantState {
			t.Errorf("%s: terminal %s was %s", how, got, wantState)
		}
		// Input is visible and works.
		s.run("echo $((6*7))")
		s.shows(`^42$`)
		for _, file := range []string{tty, status, pid} {
			if err := os.Remove(file); err != nil {
				t.Error(err)
			}
		}
	}

	wantTTY, wantState := start()
	const number = `(?:[0-9.]+[kMG]?)`
	busy := regexp.MustCompile(`(?m)^p1 +[1-9]` + number + `? +[1-9]` + number + `? +0 +0 +[1-9]`)
	var seen uint64
	s.wait("traffic and drops of p1", func(text string) bool {
		l.Send(a, l.Frames(50, B, A)...)
		l.Send(a, l.Frames(20, A, A)...)
		seen += 20
		return busy.MatchString(text)
	})
	s.shows(`^PORT +RX-FRAMES/S +>RX-BIT/S +TX-FRAMES/S +TX-BIT/S +DROPS/S$`)
	s.keys("1")
	s.shows(`^>PORT +RX-FRAMES/S`)
	s.shows(`^p1 .*(\n.*)?\np2 .*\np3 `)
	s.keys("r")
	s.shows(`^p12 .*\np11 .*\np10 `)
	s.keys("p")
	s.shows(`^bascule top br0 .*PAUSED`)
	s.keys("p", "Tab")
	s.shows(`^ports \[drops\] addresses`)
	s.shows(fmt.Sprintf(`^p1 +same-port +0 +%d$`, seen)) // all of them, and no more arrive
	s.keys("Tab")
	s.shows(`^` + A.String() + ` .*p1`)
	s.keys("?")
	s.shows(`^q +quit$`)
	s.keys("x", "BTab", "BTab")
	s.shows(`^\[ports\] drops addresses`)

	// A port is deleted and added.
	l.Bascule("port", "del", "br0", ends[11].Port)
	s.wait("p12 no more", func(text string) bool { return !strings.Contains(text, "\np12 ") })
	l.Bascule("port", "add", "br0", ends[11].Port)
	s.shows(`^p12 +0 +0 `)

	s.tmux("resize-window", "-x", "60", "-y", "10")
	s.shows(`^7 more below$`)
	s.tmux("resize-window", "-x", "40", "-y", "8")
	s.shows(`^9 more below, 3 more columns$`)
	s.tmux("resize-window", "-x", "30", "-y", "10")
	s.shows(`^too small: 30x10, needs 40x8$`)
	s.tmux("resize-window", "-x", "80", "-y", "24")
	s.shows(`^p1 `)
	s.shows(`^\? help  q quit`)
	s.keys("q")
	ended("q", wantTTY, wantState)

	wantTTY, wantState = start()
	s.keys("C-c")
	ended("Ctrl-C", wantTTY, wantState)
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		wantTTY, wantState = start()
		id, err := strconv.Atoi(read(pid))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(id, sig); err != nil {
			t.Fatal(err)
		}
		ended(sig.String(), wantTTY, wantState)
	}

	// A deleted bridge is reported, and shown again when it is back.
	wantTTY, wantState = start()
	l.Bascule("bridge", "del", "br0")
	s.shows(`^cannot show the ports of br0: there is no bridge br0`)
	l.Bascule("bridge", "add", "br0")
	s.shows(`^no ports$`)
	s.keys("q")
	ended("q after an error", wantTTY, wantState)

	// Not on a terminal.
	l.Refused([]string{"cannot show top", "not a terminal", "use 'bascule stats --interval 1s'"}, "top", "br0")
	s.run(fmt.Sprintf("clear; TERM=dumb %s; echo status $?", top))
	s.shows(`^status 1$`)
}

// TestStats counts frames by totals and by rates: a rate times its interval is the number of
// frames in the interval, whatever its length was.
func TestStats(t *testing.T) {
	t.Parallel()
	l, ends := setup(t, "tcx", 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	type line struct {
		Elapsed float64
		Ifname  string
		Stats64 struct{ Rx, Tx netlab.Counter }
		Rates   *struct {
			Rx, Tx struct{ Bits, Packets float64 }
		}
		Drops map[string]float64
	}
	total := func() (rx, tx, dropped float64) {
		t.Helper()
		var list []line
		l.JSON(&list, "stats", "br0")
		if len(list) != 2 || list[0].Ifname != a.Port || list[1].Ifname != b.Port {
			t.Fatalf("shown: %+v", list)
		}
		return float64(list[0].Stats64.Rx.Packets), float64(list[1].Stats64.Tx.Packets), list[0].Drops["same-port"]
	}
	rx, tx, dropped := total()

	cmd := l.Command("-j", "stats", "br0", "--interval", "100ms")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errs bytes.Buffer
	cmd.Stderr = &errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// From all output: rounds, and the numbers of frames.
	var rounds, gotRx, gotTx, gotDropped, gotBits atomic.Int64
	done := make(chan error)
	go func() {
		var err error
		for lines := bufio.NewScanner(out); lines.Scan() && err == nil; {
			var list []line
			if err = json.Unmarshal(lines.Bytes(), &list); err != nil {
				break
			}
			for _, p := range list {
				if p.Rates == nil {
					err = fmt.Errorf("no rates: %s", lines.Text())
					break
				}
				whole := func(rate float64) int64 { return int64(math.Round(rate * p.Elapsed)) }
				if p.Ifname == a.Port {
					gotRx.Add(whole(p.Rates.Rx.Packets))
					gotBits.Add(whole(p.Rates.Rx.Bits))
					gotDropped.Add(whole(p.Drops["same-port"]))
				} else {
					gotTx.Add(whole(p.Rates.Tx.Packets))
				}
			}
			rounds.Add(1)
		}
		done <- err
	}()
	t.Cleanup(func() { cmd.Process.Kill() }) // if the test failed
	l.Wait("rates", func() bool { return rounds.Load() > 0 })
	for range 5 {
		l.Reach(a, l.Frames(200, B, A), b)
		l.Reach(a, l.Frames(20, A, A))
	}
	nowRx, nowTx, nowDropped := total()
	if nowRx-rx != 1100 || nowTx-tx != 1000 || nowDropped-dropped != 100 {
		t.Errorf("totals rose by %v, %v and %v drops; want 1100, 1000 and 100", nowRx-rx, nowTx-tx, nowDropped-dropped)
	}
	l.Wait("rates of all that was sent", func() bool { return gotRx.Load() >= 1100 && gotTx.Load() >= 1000 })
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Error(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if err := cmd.Wait(); err != nil || errs.Len() > 0 {
		t.Errorf("interrupted: %v, %q", err, errs.String())
	}
	if gotRx.Load() != 1100 || gotTx.Load() != 1000 || gotDropped.Load() != 100 || gotBits.Load() != 1100*60*8 {
		t.Errorf("by rates %d were received, of %d bits, %d sent and %d dropped; want 1100, 528000, 1000 and 100",
			gotRx.Load(), gotBits.Load(), gotTx.Load(), gotDropped.Load())
	}
}
