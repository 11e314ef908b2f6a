// SPDX-License-Identifier: BSD-2-Clause

// Package upgrade has this version take over bridges that former versions made with another layout of
// tables. The former versions are built from the history of the repository.
package upgrade

import (
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"bascule/datapath"
	"bascule/test/netlab"
	"bascule/test/program"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

var layouts = flag.Int("upgrade.layouts", 1, "how many former layouts to take over, newest first")

var builds string // folder for programs of former versions

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "bascule-upgrade-")
	if err != nil {
		panic(err)
	}
	builds = dir
	status := netlab.Main(m)
	os.RemoveAll(dir)
	os.Exit(status)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A former is a program of a former version.
type former struct {
	layout int
	path   string
}

var building sync.Mutex

// formerly returns the program of the last version with a layout.
func formerly(t *testing.T, layout int) former {
	t.Helper()
	building.Lock()
	defer building.Unlock()
	f := former{layout, filepath.Join(builds, fmt.Sprint("bascule-", layout))}
	if _, err := os.Stat(f.path); err == nil {
		return f
	}
	source := program.Former(t, layout)
	source.Build(t, f.path)
	must(t, os.RemoveAll(source.Dir))
	return f
}

// each runs a test with the program of each former layout.
func each(t *testing.T, test func(t *testing.T, f former)) {
	for n := range *layouts {
		layout := int(datapath.Layout) - 1 - n
		t.Run(fmt.Sprint("layout ", layout), func(t *testing.T) { test(t, formerly(t, layout)) })
	}
}

var A, B = netlab.Station(1), netlab.Station(2)

// file has everything that a bridge may have, as long as the load that crosses it passes.
const file = `bridges:
  br0:
    vlan-filtering: on
    vlan-stats: on
    move-max: 100
    ageing: 200s
    group-fwd-mask: 0x4000
    fdb-max: 5000
    ports:
      p1: {hook: HOOK, storm-bcast: 1000000pps, hairpin: on, loop-guard: report}
      p2: {hook: HOOK, storm-mcast: 100000pps, fdb-max: 50, fdb-full: drop, backup: a}
      p3: {hook: HOOK, pvid: 1, tagged: "30", isolated: on, mcast-flood: off}
      p4: {hook: HOOK, pvid: 1, tagged: "30", source-guard: on}
      a: {type: patch, peer: br1/b}
      h0: {type: host}
    rules:
      - block in on p2 src 02:00:00:00:00:66
      - block out on p1 src 02:00:00:00:00:67
    bindings:
      - {port: p4, mac: "02:57:00:00:00:04", address: 192.0.2.4, vlan: 1}
    fdb:
      - {mac: "02:57:00:00:00:04", port: p4, vlan: 1}
    mirrors: {p6: {ports: [p3], direction: in}}
    pf:
      rules: |
        set timeout { udp.first 3600 udp.single 3600 udp.multiple 3600 }
        set limit states 2000
        table <bad> counters { 198.51.100.0/24 }
        block log
        block in quick from <bad>
        pass in on p1 proto udp from any to any port 4000 keep state (max 1000)
        pass out proto udp from any to any port 4000 keep state
  br1:
    ports:
      p5: {hook: HOOK}
      b: {type: patch, peer: br0/a}
`

// A switched is a switch with two bridges that a former version made.
type switched struct {
	*netlab.Lab
	t      *testing.T
	former former
	ends   []*netlab.End
	file   string
}

func newSwitched(t *testing.T, f former, hook string) *switched {
	l := netlab.New(t)
	s := &switched{l, t, f, l.NewEnds(6), filepath.Join(t.TempDir(), "file.yaml")}
	must(t, os.WriteFile(s.file, []byte(strings.ReplaceAll(file, "HOOK", hook)), 0o600))
	for _, e := range s.ends {
		if hook == "xdp" {
			e.ReadyForXDP()
		}
	}
	s.make(f)
	return s
}

// make has a former version make the bridges. After that, pf has a state for a conversation.
func (s *switched) make(f former) {
	s.t.Helper()
	current := s.Binary()
	s.SetBinary(f.path)
	s.do("apply", s.file)
	s.do("pfctl", "-b", "br0", "-t", "bad", "-T", "add", "203.0.113.9")
	s.SetBinary(current)
	ask := []netlab.Frame{udp(B, A, "192.0.2.1", "192.0.2.2", 3000, 4000)}
	s.Reach(s.ends[1], s.Frames(1, netlab.Broadcast, B), s.ends[0], s.ends[2], s.ends[3], s.ends[4])
	s.Reach(s.ends[0], ask, s.ends[1])
}

// do runs a command that may print a warning.
func (s *switched) do(args ...string) netlab.Result {
	s.t.Helper()
	r, err := s.Run(args...)
	if err != nil || r.Exit != 0 {
		s.t.Fatal(r, err)
	}
	return r
}

// load is known unicast in both directions between the first two ports, and broadcasts from the first to
// all, also through the patch cable.
func (s *switched) load() *netlab.Load {
	e := s.ends
	return s.StartLoad(e[:5],
		netlab.Flow{From: e[0], Dst: B, Src: A, To: []*netlab.End{e[1]}},
		netlab.Flow{From: e[1], Dst: A, Src: B, To: []*netlab.End{e[0]}},
		netlab.Flow{From: e[0], Dst: netlab.Broadcast, Src: A, To: e[0:5]},
		netlab.Flow{From: e[1], Dst: netlab.Station(4), Src: B, To: []*netlab.End{e[3]}})
}

// ownWords match the settings of a host port that versions write differently: an address other than the
// one that this version gives the port, and that its interface is down, which was once the default.
var ownWords = regexp.MustCompile(`(, up: off)?(, mac: "[^"]*")?}`)

// withoutTrust matches a host port in a file of layout 26.
var withoutTrust = regexp.MustCompile(`(type: host[^}]*)\}`)

// exported returns the configuration without ownWords, in this version's form. In layout 26 a new host
// port was not trusted, so a port without the word is not.
func (s *switched) exported() string {
	s.t.Helper()
	text := ownWords.ReplaceAllString(s.do("export").Stdout, "}")
	if s.former.layout <= 26 && s.Binary() == s.former.path {
		text = withoutTrust.ReplaceAllString(text, "$1, trusted: off}")
	}
	return text
}

// look returns the output of commands about the bridges that a change of programs must not change.
func (s *switched) look() map[string]string {
	s.t.Helper()
	host, err := s.Switch.Netlink().LinkByName("h0")
	must(s.t, err)
	shown := map[string]string{"export": s.exported(), "h0's interface": host.Attrs().Flags.String()}
	for _, args := range [][]string{
		{"vlan", "show", "br0"}, {"binding", "show", "br0"}, {"rule", "show", "br0"},
		{"pfctl", "-b", "br0", "-s", "rules"}, {"pfctl", "-b", "br0", "-s", "states"}, {"pfctl", "-b", "br0", "-t", "bad", "-T", "show"},
	} {
		shown[strings.Join(args, " ")] = s.do(args...).Stdout
	}
	var entries []string
	for _, e := range s.FDB("br0") {
		if e.Ifname == "h0" {
			continue // their addresses change each time
		}
		entries = append(entries, fmt.Sprint(e.MAC, " ", e.VLAN, " ", e.Ifname, " ", e.Flags, e.State))
	}
	slices.Sort(entries)
	shown["fdb"] = strings.Join(entries, "\n")
	return shown
}

// wantLook compares two results of look.
func wantLook(t *testing.T, got, want map[string]string) {
	t.Helper()
	for _, what := range slices.Sorted(maps.Keys(want)) {
		if got[what] != want[what] {
			t.Errorf("%s shows\n%s\nand before\n%s", what, got[what], want[what])
		}
	}
}

// works sends packets that pass only because of a state, and packets that do not pass.
func (s *switched) works() {
	s.t.Helper()
	e := s.ends
	s.Reach(e[1], []netlab.Frame{udp(A, B, "192.0.2.2", "192.0.2.1", 4000, 3000)}, e[0]) // passes by the state
	s.Reach(e[1], []netlab.Frame{udp(A, B, "192.0.2.2", "192.0.2.1", 4001, 3000)})
	s.Reach(e[0], []netlab.Frame{udp(B, A, "203.0.113.9", "192.0.2.2", 3000, 4000)}) // held back by the table
	s.Reach(e[1], s.Frames(1, A, netlab.MAC{2, 0, 0, 0, 0, 0x66}))                   // held back by a rule
	s.Reach(e[3], []netlab.Frame{udp(A, netlab.Station(4), "192.0.2.9", "192.0.2.1", 3000, 4000)})
	s.Reach(e[0], s.Frames(1, netlab.Broadcast, A), e[0:5]...)
}

// udp makes a datagram without a checksum.
func udp(dst, src netlab.MAC, from, to string, sport, dport uint16) netlab.Frame {
	f := slices.Concat(dst[:], src[:], []byte{8, 0, 0x45, 0, 0, 36, 0, 1, 0, 0, 64, 17, 0, 0})
	f = append(append(f, netip.MustParseAddr(from).AsSlice()...), netip.MustParseAddr(to).AsSlice()...)
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(f[i:]))
	}
	sum = sum&0xffff + sum>>16
	binary.BigEndian.PutUint16(f[24:], ^uint16(sum+sum>>16))
	f = binary.BigEndian.AppendUint16(f, sport)
	f = binary.BigEndian.AppendUint16(f, dport)
	return netlab.Frame(append(f, 0, 16, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8))
}

// TestTakeOver: a bridge that a former version made gets this version's programs under traffic. No frame
// is lost or misdirected. Its configuration and its learned state are kept.
func TestTakeOver(t *testing.T) {
	each(t, func(t *testing.T, f former) {
		for _, hook := range netlab.Hooks(t.Name()) {
			t.Run(hook, func(t *testing.T) { takeOver(t, f, hook) })
		}
	})
}

func takeOver(t *testing.T, f former, hook string) {
	s := newSwitched(t, f, hook)
	current := s.Binary()
	s.SetBinary(f.path)
	load := s.load()
	s.Wait("traffic to flow", load.Flowing(2000))
	before, ports := s.look(), s.Ports("br0")
	objects, err := s.Objects()
	must(t, err)

	s.SetBinary(current)
	s.Refused([]string{"another version", "'bascule bridge set br0' takes it over"}, "port", "show", "br0")
	r := s.do("bridge", "set", "br0")
	for _, name := range []string{"br0", "br1"} { // all bridges of the namespace, since cables join them
		if note := fmt.Sprintf("bridge %s: another version of bascule has made it", name); strings.Count(r.Stderr, note) != 1 {
			t.Errorf("it says %q, want one note that has %q", r.Stderr, note)
		}
	}
	s.Wait("traffic to flow on", load.Flowing(2000))
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	wantLook(t, s.look(), before)
	for i, p := range s.Ports("br0") {
		was := ports[i]
		if p.Ifname != was.Ifname || p.Hook != was.Hook || p.Stats64.RX.Packets < was.Stats64.RX.Packets || p.Learned < was.Learned {
			t.Errorf("port %+v, before %+v", p, was)
		}
	}
	s.Renewed(objects)
	s.works()
	if r := s.do("bridge", "set", "br0"); strings.Contains(r.Stderr, "another version") {
		t.Errorf("a second change takes it over again: %s", r.Stderr)
	}
	s.SetBinary(f.path) // The former version does not change it.
	s.Refused([]string{"another version"}, "port", "set", "br0", "p1", "--learn=off")
	s.SetBinary(current)
	s.works()
}

// TestTakeOverTCP: a TCP connection that is translated continues while the bridges of both its networks
// are taken over.
func TestTakeOverTCP(t *testing.T) {
	each(t, takeOverTCP)
}

func takeOverTCP(t *testing.T, f former) {
	l := netlab.New(t)
	current := l.Binary()
	l.SetBinary(f.path)
	var hosts [2]*netlab.End
	ip := func(e *netlab.End, args ...string) {
		t.Helper()
		ns := l.Switch
		if e != nil {
			ns = e.Namespace
		}
		if out, err := ns.Output(t.Context(), 0, "ip", args...); err != nil {
			t.Fatalf("ip %v: %v %s", args, err, out)
		}
	}
	for i := range hosts {
		e := l.NewEnd(l.NewNamespace())
		hosts[i] = e
		name, gw, net := fmt.Sprint("br", i), fmt.Sprint("gw", i), fmt.Sprintf("10.0.%d.", i+1)
		l.AddBridge(name, "tcx", []*netlab.End{e})
		l.Bascule("port", "add", name, gw, "--type", "host", "--route")
		ip(nil, "addr", "add", net+"254/24", "dev", gw)
		ip(nil, "link", "set", gw, "up")
		ip(e, "addr", "add", net+"1/24", "dev", e.Ifname)
		ip(e, "route", "add", "default", "via", net+"254")
	}
	must(t, l.Switch.Do(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) }))
	rules := filepath.Join(t.TempDir(), "pf.conf")
	ip(nil, "addr", "add", "10.0.2.77/24", "dev", "gw1")
	must(t, os.WriteFile(rules, []byte("block\npass out on gw1 inet proto tcp from 10.0.1.0/24 to any nat-to 10.0.2.77\npass on "+hosts[1].Port+"\n"), 0o600))
	if r, err := l.Run("pfctl", "-b", "br1", "-f", rules); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}

	var listener net.Listener
	must(t, hosts[1].Namespace.Do(func() (err error) {
		listener, err = net.Listen("tcp4", "10.0.2.1:7")
		return err
	}))
	defer listener.Close()
	from := make(chan string, 1)
	go func() {
		c, err := listener.Accept()
		if err != nil {
			from <- err.Error()
			return
		}
		from <- c.RemoteAddr().String()
		io.Copy(c, c)
		c.Close()
	}()
	var c net.Conn
	must(t, hosts[0].Namespace.Do(func() (err error) {
		c, err = net.DialTimeout("tcp4", "10.0.2.1:7", 10*time.Second)
		return err
	}))
	defer c.Close()
	if who := <-from; !strings.HasPrefix(who, "10.0.2.77:") {
		t.Fatalf("the server sees %s, which is not translated", who)
	}
	var lock sync.Mutex
	rounds, longest, stop := 0, time.Duration(0), make(chan struct{})
	done := make(chan error, 1)
	go func() {
		last := time.Now()
		for n := uint64(0); ; n++ {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			var b [8]byte
			binary.BigEndian.PutUint64(b[:], n)
			c.SetDeadline(time.Now().Add(20 * time.Second))
			_, err := c.Write(b[:])
			if err == nil {
				_, err = io.ReadFull(c, b[:])
			}
			if err == nil && binary.BigEndian.Uint64(b[:]) != n {
				err = errors.New("what comes back is not what was sent")
			}
			if err != nil {
				done <- fmt.Errorf("round %d: %w", n, err)
				return
			}
			lock.Lock()
			rounds, longest, last = rounds+1, max(longest, time.Since(last)), time.Now()
			lock.Unlock()
		}
	}()
	more := func(n int) func() bool {
		lock.Lock()
		want := rounds + n
		lock.Unlock()
		return func() bool {
			lock.Lock()
			defer lock.Unlock()
			return rounds >= want || len(done) > 0
		}
	}
	l.Wait("the connection to go", more(200))
	states := l.Bascule("pfctl", "-b", "br1", "-s", "states")
	if !strings.Contains(states, "10.0.2.77") {
		t.Fatalf("no state translates:\n%s", states)
	}
	l.SetBinary(current)
	lock.Lock()
	longest = 0
	lock.Unlock()
	if r, err := l.Run("bridge", "set", "br0"); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	l.Wait("the connection to go on", more(200))
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Logf("%d rounds, the longest while bridges were taken over took %v", rounds, longest)
	if now := l.Bascule("pfctl", "-b", "br1", "-s", "states"); now != states {
		t.Errorf("the states are\n%sand before\n%s", now, states)
	}
}

// TestTakeOverLate: data that the former programs write just before the new ones are attached is kept:
// an address that an overload rule puts into a table of pf, and a learned one. If the command is killed
// after that, the next command copies them.
func TestTakeOverLate(t *testing.T) {
	each(t, func(t *testing.T, f former) {
		for _, kill := range []bool{false, true} {
			t.Run(fmt.Sprint("killed ", kill), func(t *testing.T) { takeOverLate(t, f, kill) })
		}
	})
}

func takeOverLate(t *testing.T, f former, kill bool) {
	l := netlab.New(t)
	current := l.Binary()
	l.SetBinary(f.path)
	ends := []*netlab.End{l.NewEnd(l.NewNamespace()), l.NewEnd(l.NewNamespace())}
	l.AddBridge("br0", "tcx", ends)
	for i, e := range ends {
		if out, err := e.Namespace.Output(t.Context(), 0, "ip", "addr", "add", fmt.Sprintf("10.0.1.%d/24", i+1), "dev", e.Ifname); err != nil {
			t.Fatalf("%v %s", err, out)
		}
	}
	rules := filepath.Join(t.TempDir(), "pf.conf")
	must(t, os.WriteFile(rules, []byte("table <many> persist { 192.0.2.1, 10.0.1.0/29 }\ntable <few> { 10.0.1.0/28 }\n"+
		"pass\nblock in quick proto udp from <few> to any port 9\npass in proto tcp from any to any port 7 keep state (max-src-conn-rate 3/1000, overload <few>)\n"), 0o600))
	if r, err := l.Run("pfctl", "-b", "br0", "-f", rules); err != nil || r.Exit != 0 {
		t.Fatal(r, err)
	}
	var listener net.Listener
	must(t, ends[1].Namespace.Do(func() (err error) {
		listener, err = net.Listen("tcp4", "10.0.1.2:7")
		return err
	}))
	defer listener.Close()
	shown := func(table string) string {
		return strings.Join(strings.Fields(l.Bascule("pfctl", "-b", "br0", "-t", table, "-T", "show")), " ")
	}
	if got := shown("few"); got != "10.0.1.0/28" {
		t.Fatalf("the table has %q", got)
	}
	l.SetBinary(current)
	connect := func() {
		for range 5 {
			must(t, ends[0].Namespace.Do(func() error {
				c, err := net.DialTimeout("tcp4", "10.0.1.2:7", 10*time.Second)
				if err == nil {
					c.Close()
				}
				return err
			}))
		}
		l.Send(ends[0], l.Frames(1, netlab.Broadcast, A)...)
	}
	// The first rename makes the next generation current.
	n := 0
	r, err := netlab.RunWatched(l.Command("bridge", "set", "br0"), []string{"renameat", "bpf"}, func(call string, _ int) netlab.Answer {
		switch {
		case call == "renameat" && n == 0:
			n++
			connect()
		case n > 0 && call == "bpf":
			n++
			return netlab.Answer{Kill: kill && n == 5}
		}
		return netlab.Answer{}
	})
	must(t, err)
	if n == 0 || (r.Exit == -1) != kill {
		t.Fatal(r)
	}
	l.Bascule("bridge", "set", "br0")
	if got := shown("few"); got != "10.0.1.0/28 10.0.1.1" {
		t.Errorf("the table has %q, and not the address with many connections", got)
	}
	if got := shown("many"); got != "10.0.1.0/29 192.0.2.1" {
		t.Errorf("the other table has %q", got)
	}
	if !slices.ContainsFunc(l.FDB("br0"), func(e netlab.FDBEntry) bool { return e.MAC == A.String() }) {
		t.Errorf("the address that was learned is not there")
	}
}

// TestTakeOverAgent: an agent of this version succeeds an agent of the former version, and takes the
// bridges over under traffic.
func TestTakeOverAgent(t *testing.T) {
	each(t, func(t *testing.T, f former) {
		s := newSwitched(t, f, "tcx")
		current := s.Binary()
		s.Setenv("BASCULE_AGENT_DIR", t.TempDir())
		var logs netlab.OutputFile
		start := func() *exec.Cmd {
			logs = netlab.NewOutputFile(t)
			agent := s.Command("agent")
			agent.Stderr = logs.File
			must(t, agent.Start())
			return agent
		}
		end := func(agent *exec.Cmd) {
			must(t, agent.Process.Signal(syscall.SIGTERM))
			if err := agent.Wait(); err != nil {
				t.Errorf("the agent: %v\n%s", err, logs.String())
			}
		}
		serves := func() bool {
			r, err := s.Run("-j", "agent", "status")
			return err == nil && r.Exit == 0 && strings.Contains(r.Stdout, `"br1"`) && !strings.Contains(r.Stdout, "another version")
		}
		s.SetBinary(f.path)
		agent := start()
		s.Wait("the former agent to serve the bridges", serves)
		load := s.load()
		s.Wait("traffic to flow", load.Flowing(1000))
		before := s.look()
		end(agent)
		s.SetBinary(current)
		agent = start()
		s.Wait("the agent to serve the bridges", serves)
		for _, name := range []string{"br0", "br1"} {
			s.Wait("the agent to say once that it has taken over "+name, func() bool {
				return logs.Lines("another version of bascule has made it", "bridge="+name) == 1
			})
		}
		s.Wait("traffic to flow on", load.Flowing(1000))
		if err := load.Stop(); err != nil {
			t.Error(err)
		}
		wantLook(t, s.look(), before)
		s.works()
		end(agent)
		if logs.Lines("level=ERROR") > 0 {
			t.Errorf("the agent tells of an error:\n%s", logs.String())
		}
	})
}

// A point is a system call of a command: the n-th call with that name.
type point struct {
	call string
	n    int
}

// pointsOf runs a command and returns, for each name, a few of the system calls that change pins or
// ports, and all calls that rename a file.
func (s *switched) pointsOf(few int, args ...string) (list []point) {
	s.t.Helper()
	calls := []string{"bpf", "mkdirat", "unlinkat", "symlinkat", "renameat", "renameat2", "rename"}
	r, count, err := netlab.RunCounted(s.Command(args...), calls...)
	if err != nil || r.Exit != 0 {
		s.t.Fatal(r, err)
	}
	for call, n := range count {
		step := 1
		if !strings.HasPrefix(call, "rename") {
			step = n/few + 1
		}
		for i := 1 + rand.IntN(step); i <= n; i += step {
			list = append(list, point{call, i})
		}
	}
	return list
}

// TestTakeOverKilled: the command that takes a bridge over is killed at any point. The bridge forwards
// as before, and the next command completes it.
func TestTakeOverKilled(t *testing.T) {
	netlab.Minutes(t)
	each(t, func(t *testing.T, f former) {
		s := newSwitched(t, f, "tcx")
		current := s.Binary()
		s.works()
		s.SetBinary(f.path)
		before := s.look()
		s.SetBinary(current)
		points := s.pointsOf(6, "bridge", "set", "br0")
		kills := 0
		for _, p := range points {
			s.do("bridge", "del", "--all")
			s.make(f)
			r, err := netlab.RunKilled(s.Command("bridge", "set", "br0"), p.call, p.n)
			must(t, err)
			if r.Exit == -1 {
				kills++
			} else if r.Exit != 0 {
				t.Error(r)
			}
			s.works()
			s.do("bridge", "set", "br0")
			wantLook(t, s.look(), before)
			s.works()
			if t.Failed() {
				t.Fatalf("it was killed in %s number %d", p.call, p.n)
			}
		}
		t.Logf("killed at %d points of %d", kills, len(points))
		if kills < len(points)/2 {
			t.Errorf("it got away from most kills")
		}
	})
}

// TestTakeOverFails: if the kernel refuses a step, the bridge stays as it was, or the next command
// completes the rest. A command about the bridge reports the refusal.
func TestTakeOverFails(t *testing.T) {
	netlab.Minutes(t)
	each(t, func(t *testing.T, f former) {
		s := newSwitched(t, f, "tcx")
		current := s.Binary()
		s.works()
		s.SetBinary(f.path)
		before := s.look()
		s.SetBinary(current)
		failed := 0
		for _, p := range s.pointsOf(12, "bridge", "set", "br0") {
			if p.call != "bpf" && !strings.HasPrefix(p.call, "rename") {
				continue
			}
			s.do("bridge", "del", "--all")
			s.make(f)
			r, err := netlab.RunFailing(s.Command("bridge", "set", "br0"), p.call, p.n, unix.EPERM)
			must(t, err)
			if r.Exit != 0 {
				failed++
				if !strings.Contains(r.Stderr, "operation not permitted") {
					t.Errorf("%v: it does not say what was refused", r)
				}
			}
			s.works()
			s.do("bridge", "set", "br0")
			wantLook(t, s.look(), before)
			s.works()
			if t.Failed() {
				t.Fatalf("the kernel refused %s number %d: %v", p.call, p.n, r)
			}
		}
		if failed < 5 {
			t.Errorf("only %d commands failed", failed)
		}
	})
}

// TestTakeOverRefused: a bridge whose rules this version cannot read continues with its present
// programs. The other bridge of the namespace is still taken over.
func TestTakeOverRefused(t *testing.T) {
	each(t, func(t *testing.T, f former) {
		s := newSwitched(t, f, "tcx")
		text, err := ebpf.LoadPinnedMap(filepath.Join(s.State(), "br0/current/pf_text"), nil)
		must(t, err)
		page := make([]byte, text.ValueSize())
		must(t, text.Lookup(uint32(0), &page))
		was := slices.Clone(page)
		copy(page[bytes.Index(page, []byte("block")):], "clock")
		must(t, text.Put(uint32(0), page))
		for _, args := range [][]string{{"bridge", "set", "br0"}, {"port", "set", "br0", "p1", "--learn=off"}} {
			r, err := s.Run(args...)
			must(t, err)
			for _, words := range []string{"cannot take over bridge br0: ", "found `clock`", "use that version, or delete it"} {
				if r.Exit != 1 || !strings.Contains(r.Stderr, words) {
					t.Errorf("%v, want an error with %q", r, words)
				}
			}
			s.works()
		}
		if got := s.Bridge("br1").Ports; !slices.Contains(got, "p5") {
			t.Errorf("br1 has ports %v", got)
		}
		must(t, text.Put(uint32(0), was))
		text.Close()
		s.do("bridge", "set", "br0")
		s.works()
	})
}

// TestFormerKilled: a command of the former version was killed at any point. This version completes the
// command's work, and takes the bridge over.
func TestFormerKilled(t *testing.T) {
	netlab.Minutes(t)
	each(t, func(t *testing.T, f former) {
		s := newSwitched(t, f, "tcx")
		current := s.Binary()
		spare := s.NewEnd(s.ends[0].Namespace)
		for _, args := range [][]string{
			{"port", "add", "br0", spare.Port}, {"port", "del", "br0", "h0"}, {"bridge", "set", "br0", "--fdb-max", "9000"},
			{"port", "add", "br0", "h9", "--type", "host"},
		} {
			s.do("bridge", "del", "--all")
			s.make(f)
			s.SetBinary(f.path)
			before := s.exported()
			points := s.pointsOf(1, args...)
			s.SetBinary(current)
			s.do("bridge", "set", "br0")
			whole := s.exported()
			for _, p := range points {
				s.do("bridge", "del", "--all")
				if err := spare.Unchanged(); err != nil {
					t.Error(err)
				}
				s.make(f)
				s.SetBinary(f.path)
				_, err := netlab.RunKilled(s.Command(args...), p.call, p.n)
				must(t, err)
				s.SetBinary(current)
				s.do("bridge", "set", "br0")
				if now := s.exported(); now != before && now != whole {
					t.Errorf("the bridges are\n%s\nand before\n%s", now, before)
				} else if strings.Contains(now, spare.Port+":") {
					s.do("port", "del", "br0", spare.Port)
				}
				s.works()
				if t.Failed() {
					t.Fatalf("the command was %v, and killed in %s number %d", args, p.call, p.n)
				}
			}
		}
	})
}
