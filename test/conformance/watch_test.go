// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/sys/unix"

	"bascule/bridge"
	"bascule/test/netlab"
)

var watchCases = []conformance{
	{name: "capture_frames", hooks: both, run: captureFrames},
	{name: "capture_choice", hooks: tcx, run: captureChoice},
	{name: "capture_gso", hooks: tcx, run: captureGSO},
	{name: "capture_text", hooks: tcx, run: captureText},
	{name: "capture_slow_reader", hooks: tcx, run: captureSlowReader},
	{name: "capture_while_changed", hooks: both, run: captureWhileChanged},
	{name: "time_namespaces", hooks: tcx, run: timeNamespaces},
	{name: "capture_refused", hooks: tcx, run: captureRefused},
	{name: "capture_killed", hooks: both, run: captureKilled},
	{name: "capture_killed_anywhere", hooks: tcx, run: captureKilledAnywhere},
	{name: "capture_bridge_deleted", hooks: tcx, run: captureBridgeDeleted},
	{name: "static_events", hooks: tcx, run: staticEvents},
	{name: "stuck_reader", hooks: tcx, run: stuckReader},
	{name: "interrupted_wait", hooks: tcx, run: interruptedWait},
	{name: "full_disk", hooks: tcx, run: fullDisk},
	{name: "talkers", hooks: both, run: talkers},
	{name: "top_killed", hooks: tcx, run: topKilled},
}

// A capturing is a running `bascule capture`.
type capturing struct {
	t           *testing.T
	lab         *netlab.Lab
	cmd         *exec.Cmd
	stdout, err netlab.Output
}

// startCapture starts a capture of br0.
func startCapture(t *testing.T, l *netlab.Lab, args ...string) *capturing {
	t.Helper()
	c := &capturing{t: t, lab: l, cmd: l.Command(append([]string{"capture", "br0"}, args...)...)}
	c.cmd.Stdout, c.cmd.Stderr = &c.stdout, &c.err
	must(t, c.cmd.Start())
	t.Cleanup(func() { c.cmd.Process.Kill() }) // if the test failed
	return c
}

// captureTo starts a capture that writes pcapng to standard output, and returns when it has started.
func captureTo(t *testing.T, l *netlab.Lab, args ...string) *capturing {
	t.Helper()
	c := startCapture(t, l, append([]string{"-w", "-"}, args...)...)
	l.Wait("the capture to begin", func() bool { return c.stdout.String() != "" })
	return c
}

// wait waits until the capture ends, and returns how it ended.
func (c *capturing) wait() (status int, stderr string) {
	c.t.Helper()
	done := make(chan error, 1)
	go func() { done <- c.cmd.Wait() }()
	select {
	case err := <-done:
		if err != nil && !errors.As(err, new(*exec.ExitError)) {
			c.t.Fatal(err)
		}
	case <-time.After(patience):
		c.t.Fatal("the capture does not end")
	}
	return c.cmd.ProcessState.ExitCode(), c.err.String()
}

// halt stops the capture until it gets a SIGCONT. It waits until all threads are stopped: running ones do not stop with
// the signal.
func (c *capturing) halt() {
	c.t.Helper()
	must(c.t, c.cmd.Process.Signal(syscall.SIGSTOP))
	for {
		// Without WEXITED it does not reap the process, which c.wait does.
		err := unix.Waitid(unix.P_PID, c.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
		if !errors.Is(err, unix.EINTR) {
			must(c.t, err)
			return
		}
	}
}

// stop ends the capture with SIGINT, as Ctrl-C does, and returns the captured and missed frames in its summary.
func (c *capturing) stop() (captured, missed int) {
	c.t.Helper()
	must(c.t, c.cmd.Process.Signal(os.Interrupt))
	return c.counts()
}

// counts waits until the capture succeeds, and returns the numbers in its summary.
func (c *capturing) counts() (captured, missed int) {
	c.t.Helper()
	status, stderr := c.wait()
	if n, _ := fmt.Sscanf(stderr, "bascule: br0: %d frames captured, %d missed", &captured, &missed); n != 2 || status != 0 ||
		strings.Count(stderr, "\n") != 1 || missed == 0 && strings.Contains(stderr, ";") {
		c.t.Fatalf("the capture ended with status %d and said %q", status, stderr)
	}
	return captured, missed
}

// timeNamespaces reads, in a time namespace, data with the datapath's clock: frames, pf's log, and the time since pf
// was enabled.
func timeNamespaces(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	shifted := func(args ...string) *exec.Cmd {
		cmd := l.Command(args...)
		shift := exec.Command("unshare", append([]string{"--time", "--monotonic", "100000", "--kill-child"}, cmd.Args...)...)
		shift.Env = cmd.Env
		return shift
	}
	rules := filepath.Join(t.TempDir(), "pf.conf")
	must(t, os.WriteFile(rules, []byte("pass log no state\n"), 0o600))
	if out, err := shifted("pfctl", "-b", "br0", "-q", "-e", "-f", rules).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, args := range [][]string{{"capture", "br0", "--count", "1", "ip"}, {"pflog", "-b", "br0"}} {
		var out netlab.Output
		begin := time.Now()
		cmd := shifted(args...)
		cmd.Stdout, cmd.Stderr = &out, &out
		must(t, cmd.Start())
		line := ""
		l.Wait(args[0]+" to tell of a packet", func() bool {
			l.Send(ends[0], udp4(B, A, ip1, ip2, [2]int{1000, 53}, 1))
			for text := range strings.Lines(out.String()) {
				if strings.Contains(text, "10.0.0.1") {
					line = text
				}
			}
			return line != ""
		})
		must(t, cmd.Process.Kill())
		_ = cmd.Wait()
		word, _, _ := strings.Cut(line, " ")
		at, err := time.ParseInLocation("2006-01-02 15:04:05.000000", begin.Format("2006-01-02 ")+word, time.Local)
		if err != nil || at.Before(begin.Add(-time.Second)) && begin.Format("15") != "23" || at.After(time.Now().Add(time.Second)) {
			t.Errorf("%s tells of a packet at %s, since %s: %v", args[0], word, begin.Format("15:04:05"), err)
		}
	}
	l.Wait("pf to be on for a second", func() bool {
		return !strings.Contains(l.Bascule("pfctl", "-b", "br0", "-s", "info"), "for 0 days 00:00:00")
	})
}

// A shot is a captured frame: the place, what was done, and the frame.
type shot struct {
	where string // "p1 in", "p2 out", "p1 dropped: mtu"
	frame netlab.Frame
	size  int // original bytes
}

func (s shot) String() string { return fmt.Sprintf("%s %v of %d bytes", s.where, s.frame, s.size) }

// shots reads a pcapng file.
func shots(t *testing.T, file string) (list []shot) {
	t.Helper()
	r, err := pcapgo.NewNgReader(strings.NewReader(file), pcapgo.DefaultNgReaderOptions)
	must(t, err)
	var last time.Time
	for {
		data, info, options, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return list
		}
		must(t, err)
		port, err := r.Interface(info.InterfaceIndex)
		must(t, err)
		where := port.Name + " in"
		switch {
		case len(options.Comments) == 1 && options.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound:
			if options.Comments[0] != "out by "+port.Name {
				t.Errorf("comment %q on a frame out by %s", options.Comments[0], port.Name)
			}
			where = port.Name + " out"
		case len(options.Comments) == 1:
			where = port.Name + " " + options.Comments[0]
		}
		if since := time.Since(info.Timestamp); since < -time.Second || since > time.Minute {
			t.Errorf("a frame of %v ago", since)
		}
		if info.Timestamp.Before(last.Add(-time.Millisecond)) {
			t.Errorf("a frame of %v after one of %v", info.Timestamp, last)
		}
		last = info.Timestamp
		list = append(list, shot{where, netlab.Frame(data), info.Length})
	}
}

// seen returns the expected shots of frames at each of some places.
func seen(frames []netlab.Frame, where ...string) (list []shot) {
	for _, f := range frames {
		for _, w := range where {
			list = append(list, shot{w, f, len(f)})
		}
	}
	return list
}

// wantShots compares the captured frames with the expected ones, in any order.
func wantShots(t *testing.T, got, want []shot) {
	t.Helper()
	count := map[shot]int{}
	for _, s := range want {
		count[s]++
	}
	for _, s := range got {
		if count[s]--; count[s] < 0 {
			t.Errorf("captured, and should not: %v", s)
		}
	}
	for s, n := range count {
		if n > 0 {
			t.Errorf("not captured: %v", s)
		}
	}
}

// tcpdumpLines reads a capture with tcpdump, which must report no error.
func tcpdumpLines(t *testing.T, file string, args ...string) []string {
	t.Helper()
	cmd := exec.Command("tcpdump", append([]string{"-n", "-e", "-r", "-"}, args...)...)
	cmd.Stdin = strings.NewReader(file)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tcpdump: %v: %s", err, errs.String())
	}
	for _, line := range strings.Split(strings.TrimSpace(errs.String()), "\n") {
		if !strings.HasPrefix(line, "reading from file") && !strings.Contains(line, "dropped privs") {
			t.Errorf("tcpdump says %q", line)
		}
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	// Without the bytes of frames.
	return slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "\t") })
}

// A loaded is the tcx program of a port.
type loaded struct {
	id   ebpf.ProgramID
	size int // bytes
}

// program returns the present tcx program of a port.
func program(t *testing.T, l *netlab.Lab, e *netlab.End) (found loaded) {
	t.Helper()
	must(t, l.Switch.Do(func() error {
		q, err := link.QueryPrograms(link.QueryOptions{Target: e.PortIndex, Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		if len(q.Programs) != 1 {
			return fmt.Errorf("%d programs at %s", len(q.Programs), e.Port)
		}
		p, err := ebpf.NewProgramFromID(q.Programs[0].ID)
		if err != nil {
			return err
		}
		defer p.Close()
		info, err := p.Info()
		if err != nil {
			return err
		}
		found.id = q.Programs[0].ID
		found.size, err = info.TranslatedSize()
		return err
	}))
	return found
}

// asBefore checks that the switch no longer examines frames for a capture: its programs are as short as before, and no
// objects are left in the kernel.
func asBefore(t *testing.T, l *netlab.Lab, e *netlab.End, was loaded, had netlab.Objects) {
	t.Helper()
	if now := program(t, l, e); now.size != was.size {
		t.Errorf("the program of %s has %d bytes, had %d before", e.Port, now.size, was.size)
	}
	// The kernel frees programs and maps a moment after their last use.
	var now netlab.Objects
	l.Wait("what was loaded to be gone", func() bool {
		var err error
		now, err = l.Objects()
		must(t, err)
		return len(now.Maps) <= len(had.Maps) && len(now.Programs) <= len(had.Programs) && len(now.Links) <= len(had.Links)
	})
	if len(now.Maps) < len(had.Maps) || len(now.Programs) < len(had.Programs) || len(now.Links) < len(had.Links) {
		t.Errorf("there are %v, were %v", now, had)
	}
}

func objects(t *testing.T, l *netlab.Lab) netlab.Objects {
	t.Helper()
	had, err := l.Objects()
	must(t, err)
	return had
}

// captureFrames: every frame is captured as it was sent, once where it came in, once at each port that it left by, or
// once for each counted drop.
func captureFrames(t *testing.T, hook string) {
	l, ends := setup(t, hook, 4)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	b.SetMTU(1400)
	for _, e := range ends[1:] {
		l.Bascule("port", "set", "br0", e.Port, "--mcast-flood=off")
	}
	l.Bascule("port", "set", "br0", c.Port, "--isolated")
	l.Bascule("port", "set", "br0", d.Port, "--isolated")
	learn(l, a, A)
	learn(l, b, B)
	learn(l, c, C)
	learn(l, d, D)
	l.Reach(a, l.Frames(5, B, A), b) // known and remembered from before
	was, had := program(t, l, a), objects(t, l)

	run := captureTo(t, l)
	var want []shot
	send := func(from *netlab.End, frames []netlab.Frame, to []*netlab.End, where ...string) {
		t.Helper()
		l.Reach(from, frames, to...)
		want = append(want, seen(frames, where...)...)
	}
	to := func(e ...*netlab.End) []*netlab.End { return e }
	double := l.Frame(netlab.Broadcast, A, 100).Tagged(20, 1).Tagged(10, 6)
	for range 2 { // decided, and remembered
		send(a, l.Frames(20, B, A), to(b), "p1 in", "p2 out")
		send(a, l.Frames(5, netlab.Broadcast, A), to(b, c, d), "p1 in", "p2 out", "p3 out", "p4 out")
		send(a, l.Frames(5, netlab.Station(100), A), to(b, c, d), "p1 in", "p2 out", "p3 out", "p4 out")
		send(c, l.Frames(5, netlab.Broadcast, C), to(a, b), "p3 in", "p1 out", "p2 out")
		send(a, l.Frames(5, A, A), nil, "p1 dropped: same-port")
		send(c, l.Frames(5, D, C), nil, "p3 dropped: protected")
		send(a, l.Frames(5, netlab.Group(1), A), nil, "p1 dropped: no-member")
		send(a, l.Frames(5, netlab.MAC{1, 0x80, 0xc2, 0, 0, 2}, A), nil, "p1 dropped: reserved")
		send(a, l.Frames(5, B, netlab.Group(2)), nil, "p1 dropped: bad-source")
		send(a, []netlab.Frame{l.Frame(B, A, 1500)}, nil, "p1 dropped: mtu")
		send(a, []netlab.Frame{l.Frame(netlab.Broadcast, A, 1500)}, to(c, d), "p1 in", "p1 dropped: mtu", "p3 out", "p4 out")
		// Tags are outside the packet when the switch sees it, except for a second one.
		send(a, []netlab.Frame{l.Frame(netlab.Broadcast, A, 100).Tagged(10, 5)}, to(b, c, d), "p1 in", "p2 out", "p3 out", "p4 out")
		send(a, []netlab.Frame{double}, to(b, c, d), "p1 in", "p2 out", "p3 out", "p4 out")
	}
	captured, missed := run.stop()
	if captured != len(want) || missed != 0 {
		t.Errorf("%d frames captured and %d missed, should be %d and none", captured, missed, len(want))
	}
	file := run.stdout.String()
	wantShots(t, shots(t, file), want)
	if n := len(tcpdumpLines(t, file)); n != len(want) {
		t.Errorf("tcpdump reads %d frames, there are %d", n, len(want))
	}
	if n := len(tcpdumpLines(t, file, "vlan 10 and vlan 20")); n != 8 {
		t.Errorf("tcpdump finds %d frames with two tags, there are 8", n)
	}
	asBefore(t, l, a, was, had)
	l.Reach(a, l.Frames(5, B, A), b)
}

// captureChoice: expressions, ports, drops, sizes and counts select frames.
func captureChoice(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	known, flood, refused := l.Frames(3, B, A), l.Frames(2, netlab.Broadcast, B), l.Frames(4, A, A)
	tagged := []netlab.Frame{l.Frame(netlab.Broadcast, A, 100).Tagged(10, 5)}
	large := []netlab.Frame{l.Frame(B, A, 1000)}
	all := slices.Concat(seen(known, "p1 in", "p2 out"), seen(flood, "p2 in", "p1 out", "p3 out"),
		seen(refused, "p1 dropped: same-port"), seen(tagged, "p1 in", "p2 out", "p3 out"), seen(large, "p1 in", "p2 out"))
	for _, c := range []struct {
		args string
		want func(shot) bool
	}{
		{"", func(shot) bool { return true }},
		{"--dropped", func(s shot) bool { return strings.Contains(s.where, "dropped") }},
		{"--port p2", func(s shot) bool { return strings.HasPrefix(s.where, "p2 ") }},
		{"--port p2 --port p3", func(s shot) bool { return !strings.HasPrefix(s.where, "p1 ") }},
		{"--port p1 --dropped", func(s shot) bool { return strings.Contains(s.where, "dropped") }},
		{"--port p3 --dropped", func(s shot) bool { return false }},
		{"ether src " + B.String(), func(s shot) bool { return s.frame.Src() == B }},
		{"not ether broadcast and not vlan", func(s shot) bool { return s.frame.Dst() != netlab.Broadcast }},
		{"vlan 10", func(s shot) bool { return s.size == 104 }},
		{"vlan 11", func(s shot) bool { return false }},
		{"greater 1000", func(s shot) bool { return s.size == 1000 }},
		{"--port p2 ether dst " + B.String(), func(s shot) bool { return s.where == "p2 out" && s.frame.Dst() == B }},
	} {
		run := captureTo(t, l, strings.Fields(c.args)...)
		l.Reach(a, known, b)
		l.Reach(b, flood, a, ends[2])
		l.Reach(a, refused)
		l.Reach(a, tagged, b, ends[2])
		l.Reach(a, large, b)
		var want []shot
		for _, s := range all {
			if c.want(s) {
				want = append(want, s)
			}
		}
		captured, missed := run.stop()
		if captured != len(want) || missed != 0 {
			t.Errorf("capture %s: %d frames captured and %d missed, should be %d and none", c.args, captured, missed, len(want))
		}
		wantShots(t, shots(t, run.stdout.String()), want)
		if t.Failed() {
			t.Fatalf("capture %s", c.args)
		}
	}

	// As much of a frame as requested, with its tag.
	for _, n := range []int{18, 60, 61, 99, 1000} {
		run := captureTo(t, l, "--snaplen", strconv.Itoa(n))
		l.Reach(a, tagged, b, ends[2])
		l.Reach(a, large, b)
		run.stop()
		want := slices.Concat(seen(tagged, "p1 in", "p2 out", "p3 out"), seen(large, "p1 in", "p2 out"))
		for i := range want {
			want[i].frame = want[i].frame[:min(n, len(want[i].frame))]
		}
		wantShots(t, shots(t, run.stdout.String()), want)
	}

	// A number of frames, to a file.
	file := filepath.Join(t.TempDir(), "frames.pcapng")
	run := startCapture(t, l, "-w", file, "--count", "5")
	l.Wait("the capture to begin", func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() > 0
	})
	l.Reach(a, known, b)
	if captured, missed := run.counts(); captured != 5 || missed != 0 {
		t.Errorf("--count 5: %d frames captured, %d missed", captured, missed)
	}
	written, err := os.ReadFile(file)
	must(t, err)
	if got := shots(t, string(written)); len(got) != 5 {
		t.Errorf("--count 5: there are %d frames in the file", len(got))
	}
	if run.stdout.String() != "" {
		t.Errorf("with -w %s also on standard output: %q", file, run.stdout.String())
	}
}

// captureGSO: a packet that devices keep in one piece is one frame. As much of it is kept as there is room for.
func captureGSO(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, b, B)
	const payload, headers = 40000, 14 + 20 + 8
	one := a.Host()
	for _, snaplen := range []int{16384, 1000} {
		run := captureTo(t, l, "--snaplen", strconv.Itoa(snaplen), "udp port 9")
		must(t, one.SendUDP(B, payload, 1000))
		// A host sends on any CPU, for which Flush does not wait.
		l.Wait("the packet to arrive", func() bool {
			return slices.ContainsFunc(b.Received(), func(f netlab.Frame) bool { return len(f) == payload+headers })
		})
		run.stop()
		got := shots(t, run.stdout.String())
		where := []string{}
		for _, s := range got {
			where = append(where, s.where)
			if s.size != payload+headers || len(s.frame) != snaplen {
				t.Errorf("%s: %d bytes of %d, should be %d of %d", s.where, len(s.frame), s.size, snaplen, payload+headers)
			}
		}
		slices.Sort(where)
		if !slices.Equal(where, []string{"p1 in", "p2 out"}) {
			t.Errorf("captured %q", where)
		}
	}
}

// captureText: output for users and for programs, a reader that ends early, and the end.
func captureText(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, b, B)
	// probe sends frames until one is shown.
	probe := func(c *capturing) {
		t.Helper()
		l.Wait("the capture to show a frame", func() bool {
			l.Send(a, l.Frames(1, netlab.Broadcast, C)...)
			return c.stdout.String() != ""
		})
	}
	last := func(c *capturing, n int) []string {
		lines := strings.Split(strings.TrimSuffix(c.stdout.String(), "\n"), "\n")
		return lines[max(0, len(lines)-n):]
	}
	run := startCapture(t, l)
	probe(run)
	// The signal arrives when standard output has lost its reader. The capture then ends without the numbers of
	// frames.
	must(t, run.cmd.Process.Signal(syscall.SIGPIPE))
	l.Reach(a, []netlab.Frame{l.Frame(B, A, 100).Tagged(10, 0)}, b)
	l.Reach(a, l.Frames(1, C, A))
	run.stop()
	want := []string{
		fmt.Sprintf("p1 in vlan 10 %s > %s ethertype 0x88b5, length 104", A, B),
		fmt.Sprintf("p2 out vlan 10 %s > %s ethertype 0x88b5, length 104", A, B),
		fmt.Sprintf("p1 drop same-port %s > %s ethertype 0x88b5, length 60", A, C),
	}
	for i, line := range last(run, len(want)) {
		if _, rest, _ := strings.Cut(line, " "); rest != want[i] {
			t.Errorf("shown: %q, should be %q", rest, want[i])
		}
	}

	run = startCapture(t, l, "-j")
	probe(run)
	l.Reach(a, l.Frames(1, C, A))
	run.stop()
	var line struct{ Master, Ifname, Direction, Reason string }
	must(t, json.Unmarshal([]byte(last(run, 1)[0]), &line))
	if line.Master != "br0" || line.Ifname != "p1" || line.Direction != "drop" || line.Reason != "same-port" {
		t.Errorf("as JSON: %q", last(run, 1))
	}

	// | head -1
	for _, args := range []string{"", " -w -"} {
		cmd := exec.Command("bash", "-c", fmt.Sprintf("%s -n %s capture br0%s | head -c 1 >/dev/null; echo ${PIPESTATUS[0]}", l.Binary(), l.Switch.Name, args))
		var out, errs netlab.Output
		cmd.Stdout, cmd.Stderr = &out, &errs
		must(t, cmd.Start())
		done := make(chan error, 1)
		go func() { done <- cmd.Wait() }()
		l.Wait("the capture to notice that its reader has gone", func() bool {
			l.Send(a, l.Frames(1, netlab.Broadcast, C)...)
			select {
			case err := <-done:
				must(t, err)
				return true
			default:
				return false
			}
		})
		if out.String() != "0\n" || errs.String() != "" {
			t.Errorf("capture%s | head: status %q, stderr %q", args, out.String(), errs.String())
		}
	}
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGHUP} {
		run := captureTo(t, l)
		must(t, run.cmd.Process.Signal(sig))
		run.counts()
	}
}

// captureSlowReader: frames without room are counted exactly.
func captureSlowReader(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	run := captureTo(t, l, "--buffer", "64K")
	run.halt()
	const n = 2000
	l.Reach(a, l.Frames(n, B, A), b)
	must(t, run.cmd.Process.Signal(syscall.SIGCONT))
	l.Wait("what was kept to be read", func() bool { return len(run.stdout.String()) > 60<<10/112*60 })
	l.Reach(a, l.Frames(10, B, A), b)
	captured, missed := run.stop()
	if captured+missed != 2*n+20 || missed < n {
		t.Errorf("%d frames captured and %d missed, should be %d together", captured, missed, 2*n+20)
	}
	if !strings.Contains(run.err.String(), "; give an expression, or more --buffer") {
		t.Errorf("no advice: %q", run.err.String())
	}
	if got := len(shots(t, run.stdout.String())); got != captured {
		t.Errorf("%d frames written, %d counted", got, captured)
	}
}

// captureWhileChanged: other commands work, and the capture continues.
func captureWhileChanged(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	run := captureTo(t, l, "ether", "src", A.String())
	var want []shot
	send := func(frames []netlab.Frame, to []*netlab.End, where ...string) {
		t.Helper()
		l.Reach(a, frames, to...)
		want = append(want, seen(frames, where...)...)
		l.Reach(b, l.Frames(3, A, B), a) // it is not selected
	}
	check := func() {
		t.Helper()
		send(l.Frames(3, B, A), []*netlab.End{b}, "p1 in", "p2 out")
	}
	check()
	l.Bascule("bridge", "set", "br0", "--ageing", "200s")
	check()
	l.Bascule("bridge", "set", "br0", "--fdb-max", "100000") // moves the FDB
	check()
	l.Bascule("port", "set", "br0", a.Port, "--hairpin")
	check()
	l.Bascule("port", "del", "br0", c.Port)
	check()
	d := l.NewEnds(1)[0]
	l.AddPort("br0", hook, d)
	check()
	send(l.Frames(3, netlab.Broadcast, A), []*netlab.End{a, b, d}, "p1 in", "p1 out", "p2 out", "p4 out")
	l.Bascule("port", "set", "br0", a.Port, "--hairpin=off")
	// A port that is added and deleted still has its name.
	l.AddPort("br0", hook, c)
	send(l.Frames(3, netlab.Broadcast, A), []*netlab.End{b, c, d}, "p1 in", "p2 out", "p3 out", "p4 out")
	// A frame that is read after its port has left has at most the port's number.
	l.Wait("frames of "+c.Port+" to be read", func() bool {
		return strings.Count(run.stdout.String(), "out by "+c.Port) == 3
	})
	l.Bascule("port", "del", "br0", c.Port)
	check()
	run.halt()
	l.AddPort("br0", hook, c)
	frames := l.Frames(3, netlab.Broadcast, A)
	l.Reach(a, frames, b, c, d)
	l.Bascule("port", "del", "br0", c.Port)
	must(t, run.cmd.Process.Signal(syscall.SIGCONT))
	numbered := regexp.MustCompile(`out by (port \d+)`)
	l.Wait("frames of a port that has left", func() bool {
		return len(numbered.FindAllString(run.stdout.String(), -1)) == 3
	})
	number := numbered.FindStringSubmatch(run.stdout.String())[1]
	want = append(want, seen(frames, "p1 in", "p2 out", number+" out", "p4 out")...)
	check()
	captured, missed := run.stop()
	if captured != len(want) || missed != 0 {
		t.Errorf("%d frames captured and %d missed, should be %d and none", captured, missed, len(want))
	}
	wantShots(t, shots(t, run.stdout.String()), want)
}

// captureRefused: an impossible capture is refused in one line, and nothing changes.
func captureRefused(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a := ends[0]
	was := program(t, l, a)
	for _, c := range []struct {
		status int
		words  []string
		args   string
	}{
		{2, []string{"tcp prot 80", "syntax error"}, "capture br0 tcp prot 80"},
		{2, []string{"inbound"}, "capture br0 inbound"},
		{2, []string{"--snaplen 17", "18 to 16384"}, "capture br0 --snaplen 17"},
		{1, []string{"capture at bridge br0", "nope"}, "capture br0 --port nope"},
		{1, []string{"capture at bridge br7", "no bridge br7"}, "capture br7"},
	} {
		r := l.Refused(c.words, strings.Fields(c.args)...)
		if r.Exit != c.status {
			t.Errorf("%v: should end with status %d", r, c.status)
		}
		if now := program(t, l, a); now != was {
			t.Errorf("%s has changed the bridge's program", c.args)
		}
	}
	r := l.Refused([]string{"cannot write", "no such file"}, "capture", "br0", "-w", "/nonexistent/file")
	if now := program(t, l, a); now.size != was.size {
		t.Errorf("%v: the program of %s has %d bytes, had %d before", r, a.Port, now.size, was.size)
	}
	// One at a time.
	run := captureTo(t, l)
	with := program(t, l, a)
	if with.size <= was.size {
		t.Errorf("the program that captures has %d bytes, the one that does not %d", with.size, was.size)
	}
	l.Refused([]string{"cannot capture at bridge br0", "another program does already", "end it first"}, "capture", "br0")
	if now := program(t, l, a); now != with {
		t.Error("a second capture, refused, has changed the bridge's program")
	}
	l.Bascule("bridge", "add", "br1") // another bridge has its own
	other := l.Command("capture", "br1", "-w", "-")
	out, err := other.StdoutPipe()
	must(t, err)
	must(t, other.Start())
	if _, err := io.ReadAtLeast(out, make([]byte, 64), 12); err != nil {
		t.Errorf("a capture at another bridge: %v", err)
	}
	must(t, other.Process.Signal(os.Interrupt))
	io.Copy(io.Discard, out)
	must(t, other.Wait())
	run.stop()
	captureTo(t, l).stop() // and one after the other
}

// captureKilled: the next command that writes ends the capture of a killed command.
func captureKilled(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	was, had := program(t, l, a), objects(t, l)
	kill := func(args ...string) {
		t.Helper()
		run := captureTo(t, l, args...)
		l.Reach(a, l.Frames(5, B, A), b)
		must(t, run.cmd.Process.Kill())
		run.wait()
		l.Reach(a, l.Frames(2000, B, A), b) // without a reader
	}
	kill("--port", a.Port, "--buffer", "64K", "ether", "proto", "0x88b5")
	if now := program(t, l, a); now.size <= was.size {
		t.Fatal("the capture has ended by itself")
	}
	l.Bascule("fdb", "add", "br0", C.String(), b.Port)
	asBefore(t, l, a, was, had)
	l.Reach(a, l.Frames(5, B, A), b)

	// The next one can be a capture, which has no frames of the former one.
	kill("--port", b.Port, "--dropped", "--buffer", "64K")
	run := captureTo(t, l, "--buffer", "64K")
	frames := l.Frames(5, B, A)
	l.Reach(a, frames, b)
	if captured, missed := run.stop(); captured != 10 || missed != 0 {
		t.Errorf("%d frames captured and %d missed, should be 10 and none", captured, missed)
	}
	wantShots(t, shots(t, run.stdout.String()), seen(frames, "p1 in", "p2 out"))
	asBefore(t, l, a, was, had)
	l.Bascule("fdb", "del", "br0", C.String())
	wantFDB(t, l, "br0", dynamic(A, 0, a), dynamic(B, 0, b))
}

// captureKilledAnywhere kills a capture as it enters system calls, while it begins, runs and ends. The next command
// that writes completes or undoes the change, and no frame is lost.
func captureKilledAnywhere(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	was, had := program(t, l, a), objects(t, l)
	load := startLoad(l, ends, a, b)
	args := []string{"capture", "br0", "-w", "/dev/null", "--count", "1", "ether", "proto", "0x88b5"}
	points := somePoints(killPoints(t, l, fixed(args), func() {}), 16)
	kills := 0
	for _, p := range points {
		if kill(t, l, p, args) {
			kills++
		}
		l.Bascule("bridge", "set", "br0")
		if now := program(t, l, a); now.size != was.size {
			t.Fatalf("killed in %s number %d: the program has %d bytes after the next command, had %d before", p.call, p.n, now.size, was.size)
		}
	}
	t.Logf("killed at %d points of %d", kills, len(points))
	if kills < len(points)/2 {
		t.Error("the capture got away from most of its kills")
	}

	// The command that ends a killed command's capture is killed, too.
	stale := func() {
		t.Helper()
		run := captureTo(t, l, "--buffer", "64K")
		must(t, run.cmd.Process.Kill())
		run.wait()
	}
	stale()
	writer := []string{"fdb", "add", "br0", C.String(), a.Port}
	for _, p := range somePoints(killPoints(t, l, fixed(writer), stale), 16) {
		stale()
		kill(t, l, p, writer)
		l.Bascule(writer...)
		if now := program(t, l, a); now.size != was.size {
			t.Fatalf("killed in %s number %d: the program has %d bytes after the next command, had %d before", p.call, p.n, now.size, was.size)
		}
	}
	must(t, load.Stop())
	asBefore(t, l, a, was, had)
}

// captureBridgeDeleted: a capture ends with its bridge, and reports that.
func captureBridgeDeleted(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, b, B)
	for _, again := range []bool{false, true} {
		run := captureTo(t, l)
		frames := l.Frames(5, B, A)
		l.Reach(a, frames, b)
		if again { // before the capture checks it
			run.halt()
		}
		l.Bascule("bridge", "del", "br0")
		if again {
			l.Bascule("bridge", "add", "br0")
			must(t, run.cmd.Process.Signal(syscall.SIGCONT))
		}
		status, stderr := run.wait()
		words := "there is no bridge br0"
		if again {
			words = "it was deleted and added again"
		}
		if status != 1 || strings.Count(stderr, "\n") != 1 || !strings.Contains(stderr, words) || !strings.Contains(stderr, "; ") {
			t.Errorf("the bridge was deleted: status %d, %q", status, stderr)
		}
		wantShots(t, shots(t, run.stdout.String()), seen(frames, "p1 in", "p2 out"))
		if !again {
			l.AddBridge("br0", hook, ends)
			learn(l, b, B)
		}
	}
}

// talkers counts frames by their sources, exactly, and only while a command needs it.
func talkers(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	was, had := program(t, l, a), objects(t, l)
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	defer s.Close()
	// The library keeps the memory of a configuration mapped until it is collected. A command's memory is freed
	// with its process.
	t.Cleanup(runtime.GC)
	count := func() func() error {
		t.Helper()
		stop, err := s.CountTalkers("br0")
		must(t, err)
		return stop
	}
	want := func(want ...string) {
		t.Helper()
		list, err := s.Talkers("br0")
		must(t, err)
		var got []string
		for _, k := range list {
			got = append(got, fmt.Sprintf("%s vlan %d %s: %d frames, %d bytes", k.MAC, k.VLAN, k.Port, k.Frames, k.Bytes))
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("counted\n  %q\nshould be\n  %q", got, want)
		}
	}
	one := count()
	want()
	l.Reach(a, l.Frames(100, B, A), b)
	l.Reach(b, l.Frames(50, A, B), a)
	l.Reach(b, l.Frames(10, netlab.Broadcast, B), a, c)
	l.Reach(a, l.Frames(7, A, A)) // dropped, and counted
	l.Reach(c, []netlab.Frame{l.Frame(netlab.Broadcast, C, 96).Tagged(10, 3)}, a, b)
	line := func(mac netlab.MAC, vlan int, e *netlab.End, frames, bytes int) string {
		return fmt.Sprintf("%s vlan %d %s: %d frames, %d bytes", mac, vlan, e.Port, frames, bytes)
	}
	tagged := line(C, 10, c, 1, 96) // The tag is outside the packet, and not counted.
	want(line(A, 0, a, 107, 107*60), line(B, 0, b, 60, 60*60), tagged)

	// A second reader sees the same counters.
	two := count()
	l.Reach(a, l.Frames(100, B, A), b)
	must(t, one())
	l.Reach(a, l.Frames(100, B, A), b)
	want(line(A, 0, a, 307, 307*60), line(B, 0, b, 60, 60*60), tagged)
	// An address that moves is shown at the last port.
	l.Reach(c, l.Frames(3, B, A), b)
	want(line(A, 0, c, 310, 310*60), line(B, 0, b, 60, 60*60), tagged)
	// Also while commands change the bridge.
	l.Bascule("bridge", "set", "br0", "--ageing", "200s")
	l.Reach(c, l.Frames(3, B, A), b)
	want(line(A, 0, c, 313, 313*60), line(B, 0, b, 60, 60*60), tagged)
	if now := program(t, l, a); now.size <= was.size {
		t.Error("the program that counts is not longer than the one that does not")
	}
	must(t, two())
	asBefore(t, l, a, was, had)

	// All counters start at 0.
	l.Reach(a, l.Frames(100, B, A), b)
	three := count()
	want()
	l.Reach(a, l.Frames(5, B, A), b)
	want(line(A, 0, a, 5, 5*60))
	must(t, three())
	asBefore(t, l, a, was, had)
}

// topKilled: there are two readers. One is killed, and then the other.
func topKilled(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	learn(l, a, A)
	learn(l, b, B)
	was, had := program(t, l, a), objects(t, l)
	dir := t.TempDir()
	start := func(name string) (pid int) {
		t.Helper()
		s := newScreen(t, l, 80, 24)
		file := filepath.Join(dir, name)
		s.run(fmt.Sprintf("sh -c 'echo $$ >%s; exec %s -n %s top br0 --interval 100ms'", file, l.Binary(), l.Switch.Name))
		s.shows(`^bascule top br0 .*over `)
		text, err := os.ReadFile(file)
		must(t, err)
		pid, err = strconv.Atoi(strings.TrimSpace(string(text)))
		must(t, err)
		return pid
	}
	counts := func(want bool, when string) {
		t.Helper()
		l.Bascule("bridge", "set", "br0") // the next writer
		if now := program(t, l, a); now.size > was.size != want {
			t.Errorf("%s: the program has %d bytes, %d when nobody looks", when, now.size, was.size)
		}
	}
	end := func(pid int) {
		t.Helper()
		must(t, syscall.Kill(pid, syscall.SIGKILL))
		l.Wait("the process to end", func() bool { return syscall.Kill(pid, 0) != nil })
	}
	one, two := start("one"), start("two")
	counts(true, "two look")
	end(one)
	counts(true, "one looks")
	end(two)
	l.Reach(a, l.Frames(100, B, A), b)
	counts(false, "nobody looks")
	asBefore(t, l, a, was, had)
}
