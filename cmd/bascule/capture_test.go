// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"bascule/frame"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/pcapgo"
)

// capturing returns a bridge with frames. A capture is interrupted after the last one.
func capturing(t *testing.T) *fakeSwitch {
	t.Helper()
	f := &fakeSwitch{frames: someFrames(), missed: 2}
	f.watching = func() {
		if err := syscall.Kill(os.Getpid(), syscall.SIGINT); err != nil {
			t.Error(err)
		}
	}
	if err := f.AddBridge("br0", nil); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestCapture(t *testing.T) {
	const all = `03:04:05.678901 p1 in vlan 10 02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype 0x88b5, length 60
03:04:05.678901 p2 out vlan 10 02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype 0x88b5, length 60
03:04:05.678901 p1 drop protected 02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype 0x88b5, length 1500
`
	const missed = " captured, 2 missed; give an expression, or more --buffer\n"
	first, _, _ := strings.Cut(all, "\n")
	for _, c := range []struct{ args, stdout, stderr, called string }{
		{"capture br0", all, "bascule: br0: 3 frames" + missed, "Capture br0 ports=[] dropped=false filter=1 snaplen=16384 buffer=4194304"},
		{"capture br0 --count 1", first + "\n", "bascule: br0: 1 frame" + missed, "Capture br0 ports=[] dropped=false filter=1 snaplen=16384 buffer=4194304"},
		{"capture br0 --dropped --port p1 --port=p2 --snaplen 60 --buffer 128K", all, "bascule: br0: 3 frames" + missed,
			"Capture br0 ports=[p1 p2] dropped=true filter=1 snaplen=60 buffer=131072"},
		{"-j capture br0 --count 3", `{"time":"T","master":"br0","ifname":"p1","direction":"in","vlan":10,"length":60,"summary":"02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype 0x88b5, length 60"}
{"time":"T","master":"br0","ifname":"p2","direction":"out","vlan":10,"length":60,"summary":"02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype 0x88b5, length 60"}
{"time":"T","master":"br0","ifname":"p1","direction":"drop","reason":"protected","length":1500,"summary":"02:00:00:00:00:01 > 02:00:00:00:00:02 ethertype 0x88b5, length 1500"}
`, "bascule: br0: 3 frames" + missed, "Capture br0 ports=[] dropped=false filter=1 snaplen=16384 buffer=4194304"},
	} {
		f := capturing(t)
		var stdout, stderr strings.Builder
		if status := runWith(f, &stdout, &stderr, strings.Fields(c.args)...); status != exitDone {
			t.Errorf("%s: exit status %d", c.args, status)
		}
		got := strings.ReplaceAll(stdout.String(), f.frames[0][0].Time.Format("2006-01-02T15:04:05.999999999Z07:00"), "T")
		if diff := cmp.Diff([]string{c.stdout, c.stderr}, []string{got, stderr.String()}); diff != "" {
			t.Errorf("%s: %s", c.args, diff)
		}
		if diff := cmp.Diff([]string{c.called, "Close capture"}, f.calls[len(f.calls)-2:]); diff != "" {
			t.Errorf("%s: %s", c.args, diff)
		}
	}
}

// TestCaptureWrite checks that -w writes a pcapng file, to standard output or to a path.
func TestCaptureWrite(t *testing.T) {
	file := filepath.Join(t.TempDir(), "frames.pcapng")
	for _, where := range []string{file, "-"} {
		var stdout, stderr strings.Builder
		if status := runWith(capturing(t), &stdout, &stderr, "capture", "br0", "-w", where); status != exitDone {
			t.Fatalf("exit status %d: %s", status, stderr.String())
		}
		text := stdout.String()
		if where == file {
			if text != "" {
				t.Errorf("also on standard output: %q", text)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text = string(b)
		}
		r, err := pcapgo.NewNgReader(strings.NewReader(text), pcapgo.DefaultNgReaderOptions)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for ; ; n++ {
			if _, _, err := r.ReadPacketData(); err != nil {
				break
			}
		}
		if n != 3 {
			t.Errorf("%s: %d frames, want 3", where, n)
		}
	}
	var stdout, stderr strings.Builder
	status := runWith(capturing(t), &stdout, &stderr, "capture", "br0", "-w", filepath.Dir(file))
	if want := "bascule: cannot write " + filepath.Dir(file) + ": is a directory; see where -w goes\n"; status != exitRefused || stderr.String() != want {
		t.Errorf("into a folder: exit status %d, %q; want %q", status, stderr.String(), want)
	}
}

// TestCaptureReaderEnds checks that the count of frames is printed if the same Ctrl-C also ends the
// reader.
func TestCaptureReaderEnds(t *testing.T) {
	interrupted, stop := context.WithCancel(t.Context())
	stop()
	for _, c := range []struct {
		ctx  context.Context
		want string
	}{{interrupted, "bascule: br0: 2 frames captured, 2 missed; give an expression, or more --buffer\n"}, {t.Context(), ""}} {
		f := capturing(t)
		var stderr strings.Builder
		p := &program{out: bufio.NewWriter(brokenWriter{syscall.EPIPE}), stderr: &stderr}
		err := p.capture(c.ctx, &fakeSource{f, f.frames, f.missed}, lines{p, "br0"}, "br0", 0)
		if err != nil || stderr.String() != c.want {
			t.Errorf("%v, %q, want %q", err, stderr.String(), c.want)
		}
	}
}

// TestCaptureExpression joins the remaining words to an expression. Errors in it have libpcap's
// words.
func TestCaptureExpression(t *testing.T) {
	if _, err := frame.Compile("arp", 60); err != nil && !errors.As(err, new(*frame.SyntaxError)) {
		t.Skipf("takes libpcap: %v", err)
	}
	f := capturing(t)
	var stdout, stderr strings.Builder
	if status := runWith(f, &stdout, &stderr, "capture", "br0", "ether", "proto", "--count=1", "0x88b5"); status != exitDone {
		t.Errorf("exit status %d: %s", status, stderr.String())
	}
	if want := "Capture br0 ports=[] dropped=false filter=4 snaplen=16384 buffer=4194304"; f.calls[len(f.calls)-2] != want {
		t.Errorf("called %s, want %s", f.calls, want)
	}
	stdout.Reset()
	stderr.Reset()
	f.calls = nil
	status := runWith(f, &stdout, &stderr, "capture", "br0", "tcp", "prot 80")
	const want = "bascule: expression \"tcp prot 80\": can't parse filter expression: syntax error; see 'bascule capture --help'\n"
	if status != exitUsage || stderr.String() != want || len(f.calls) > 0 {
		t.Errorf("exit status %d, %q, called %v; want %q", status, stderr.String(), f.calls, want)
	}
}
