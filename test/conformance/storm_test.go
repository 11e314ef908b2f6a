// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

var stormCases = []conformance{
	{name: "storm_limit", hooks: both, run: stormLimit},
	{name: "storm_limit_two_cpus", hooks: tcx, run: stormLimitTwoCPUs},
	{name: "storm_limit_refused", hooks: tcx, run: stormLimitRefused},
	{name: "span", hooks: both, run: span},
	{name: "span_port", hooks: both, run: spanPort},
	{name: "span_vlan", hooks: both, run: spanVLAN},
	{name: "span_all_ports", hooks: both, run: spanAllPorts},
	{name: "span_sizes", hooks: tcx, run: spanSizes},
	{name: "span_life", hooks: both, run: spanLife},
	{name: "span_refused", hooks: tcx, run: spanRefused},
	{name: "span_port_refused", hooks: tcx, run: spanPortRefused},
}

// floods are the kinds of floods that can be limited.
var floods = []struct {
	setting string // and the drop reason
	dst     netlab.MAC
}{
	{"storm-bcast", netlab.Broadcast},
	{"storm-mcast", netlab.Group(1)},
	{"storm-unknown", netlab.Station(100)},
}

// A limit passes the frames in its bucket at once, and then a number a second. This holds on a
// machine of any speed: the test computes the bounds from the time that has passed.
func stormLimit(t *testing.T, hook string) {
	const sent = 400
	limits := []struct {
		limit  string
		size   int     // bytes
		bucket float64 // frames
		rate   float64 // frames a second
	}{
		{"20pps", 60, 8, 20},
		{"200pps", 1000, 20, 200},
		{"96kbit", 60, 8 * 1514 / 60., 96000 / 8 / 60.},
		{"960kbit", 1000, 8 * 1514 / 1000., 960000 / 8 / 1000.},
		{"1gbit", 60, sent, 0}, // more than this
		{"1000000pps", 60, sent, 0},
	}
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	for _, flood := range floods {
		var dropped uint64
		for _, tt := range limits {
			var frames []netlab.Frame
			for range sent {
				frames = append(frames, l.Frame(flood.dst, A, tt.size))
			}
			start := time.Now()
			l.Bascule("port", "set", "br0", a.Port, "--"+flood.setting, tt.limit)
			got := l.Deliver(a, frames...)
			n, most := len(got[b]), tt.bucket+1+tt.rate*time.Since(start).Seconds()
			if n < min(int(tt.bucket), sent) || float64(n) > most {
				t.Errorf("--%s %s: %d of %d frames arrived, should be %v to %.0f", flood.setting, tt.limit, n, sent, tt.bucket, most)
			}
			if len(got[c]) != n {
				t.Errorf("--%s %s: %d frames arrived at one end and %d at the other", flood.setting, tt.limit, n, len(got[c]))
			}
			dropped += uint64(sent - n)
			wantDrops(t, l, a, flood.setting, dropped)
		}
		if dropped == 0 {
			t.Errorf("--%s has dropped nothing", flood.setting)
		}

		// The other kinds, other ports and known unicast are not affected.
		l.Bascule("port", "set", "br0", a.Port, "--"+flood.setting, "1pps")
		l.Send(a, l.Frames(20, flood.dst, A)...) // more than the bucket has
		before := l.Port("br0", a.Port).Drops[flood.setting]
		for _, other := range floods {
			if other != flood {
				l.Reach(a, l.Frames(50, other.dst, A), b, c)
			}
		}
		l.Reach(b, l.Frames(50, flood.dst, B), a, c)
		l.Reach(a, l.Frames(50, B, A), b)
		wantDrops(t, l, a, flood.setting, before)

		l.Bascule("port", "set", "br0", a.Port, "--"+flood.setting, "none")
		l.Reach(a, l.Frames(50, flood.dst, A), b, c)
		wantDrops(t, l, a, flood.setting, before)
	}
}

// The limit applies to the port, not to each CPU.
func stormLimitTwoCPUs(t *testing.T, hook string) {
	const senders, each, rate, bucket = 2, 3000, 100, 10
	l, ends := setup(t, hook, 2)
	a, b := ends[0], ends[1]
	before := l.Port("br0", b.Port).Stats64.TX.Packets
	start := time.Now()
	l.Bascule("port", "set", "br0", a.Port, "--storm-bcast", "100pps")
	frame := []byte(l.Frame(netlab.Broadcast, A, 60))
	var wg sync.WaitGroup
	errs := make([]error, senders)
	for cpu := range senders {
		wg.Add(1)
		go func() {
			defer wg.Done()
			errs[cpu] = blast(a, cpu, frame, each)
		}()
	}
	wg.Wait()
	for _, err := range errs {
		must(t, err)
	}
	// Frames that did not fit into a CPU's queue have not reached the switch.
	var in, out, dropped uint64
	l.Wait("the switch to be done", func() bool {
		was := in
		p := l.Port("br0", a.Port)
		in, dropped = p.Stats64.RX.Packets, p.Drops["storm-bcast"]
		out = l.Port("br0", b.Port).Stats64.TX.Packets - before
		return in > 0 && in == was
	})
	most := bucket + senders + rate*time.Since(start).Seconds()
	if out < bucket || float64(out) > most || in < 10*bucket {
		t.Errorf("%d of %d frames from %d CPUs went on, should be %d to %.0f", out, in, senders, bucket, most)
	}
	if out+dropped != in {
		t.Errorf("%d frames in, %d out, %d dropped", in, out, dropped)
	}
}

// blast sends a frame many times from one CPU, if the machine has that CPU.
func blast(e *netlab.End, cpu int, frame []byte, n int) error {
	return e.Namespace.Do(func() error {
		if err := ends.PinThread(cpu); err != nil && cpu == 0 {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for range n {
			if err := unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: e.Ifindex}); err != nil {
				return err
			}
		}
		return nil
	})
}

func stormLimitRefused(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2)
	p := ends[0].Port
	l.Bascule("port", "set", "br0", p, "--storm-bcast", "500", "--storm-mcast", "1000kbit", "--storm-unknown", "1gbit")
	for _, setting := range []string{"--storm-bcast", "--storm-mcast", "--storm-unknown"} {
		l.Refused([]string{setting, "a limit of 0 would let nothing through", "none"}, "port", "set", "br0", p, setting, "0")
		for _, bad := range []string{"-1pps", "much", "4294967296pps", "5000gbit", "1.5mbit", ""} {
			l.Refused([]string{setting, "not a rate"}, "port", "set", "br0", p, setting+"="+bad)
		}
	}
	got := l.Port("br0", p)
	if limits := strings.Join([]string{got.StormBcast, got.StormMcast, got.StormUnknown}, " "); limits != "500pps 1mbit 1gbit" {
		t.Errorf("the limits are %s after what was refused", limits)
	}
}

// setupSpan makes a bridge br0 with n ports and a span port. The flags select what is copied.
func setupSpan(t *testing.T, hook string, n int, flags ...string) (l *netlab.Lab, ends []*netlab.End, mon *netlab.End) {
	t.Helper()
	l = netlab.New(t)
	ends = l.NewEnds(n + 1)
	mon, ends = ends[n], ends[:n]
	l.AddBridge("br0", hook, ends)
	l.Bascule(append([]string{"span", "add", "br0", mon.Port}, flags...)...)
	return l, ends, mon
}

// twice returns a list of frames that arrive twice, in any order.
func twice(frames []netlab.Frame) []netlab.Frame { return slices.Concat(frames, frames) }

// wantSent sends frames and compares the frames at each end.
func wantSent(t *testing.T, l *netlab.Lab, from *netlab.End, frames []netlab.Frame, want map[*netlab.End][]netlab.Frame) {
	t.Helper()
	got := l.Deliver(from, frames...)
	for _, e := range l.Ends {
		a, b := slices.Sorted(slices.Values(got[e])), slices.Sorted(slices.Values(want[e]))
		if !slices.Equal(a, b) {
			t.Errorf("%d frames from %s: %d arrived at %s, should be %d", len(frames), from.Port, len(a), e.Port, len(b))
		}
	}
}

func span(t *testing.T, hook string) {
	l, ends, mon := setupSpan(t, hook, 4)
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	if p := l.Port("br0", mon.Port); p.Type != "span" || p.Hook != "tcx" {
		t.Errorf("the span port is shown as %s on %s", p.Type, p.Hook)
	}
	for i, e := range ends {
		l.Reach(e, l.Frames(1, netlab.Broadcast, netlab.Station(i+1)), append(others(ends, e), mon)...)
	}
	// A, B, C and D are behind a, b, c and d
	l.Reach(a, l.Frames(200, B, A), b, mon)
	l.Reach(b, l.Frames(200, A, B), a, mon)
	l.Reach(a, l.Frames(200, netlab.Broadcast, A), b, c, d, mon)
	l.Reach(a, l.Frames(200, netlab.Group(1), A), b, c, d, mon)
	l.Reach(a, l.Frames(200, netlab.Station(100), A), b, c, d, mon)
	l.Reach(a, []netlab.Frame{l.Frame(B, A, 1514)}, b, mon)
	tagged := []netlab.Frame{l.Frame(netlab.Broadcast, A, 60).Tagged(10, 5), l.Frame(netlab.Broadcast, A, 60).Tagged(0, 7)}
	l.Reach(a, tagged, b, c, d, mon)
	tx := l.Port("br0", mon.Port).Stats64.TX.Packets
	if want := uint64(4 + 5*200 + 1 + 2); tx != want {
		t.Errorf("the span port counts %d copies, should be %d", tx, want)
	}

	// Dropped frames, too.
	l.Reach(a, l.Frames(20, A, A), mon)
	l.Reach(a, l.Frames(20, netlab.Broadcast, netlab.Group(1)), mon)
	l.Reach(a, l.Frames(20, B, netlab.MAC{}), mon)
	l.Reach(a, l.Frames(20, netlab.MAC{0x01, 0x80, 0xc2, 0, 0, 0}, A), mon)
	wantDrops(t, l, a, "same-port", 20)
	wantDrops(t, l, a, "bad-source", 40)
	wantDrops(t, l, a, "reserved", 20)
	l.Bascule("port", "set", "br0", c.Port, "--isolated")
	l.Bascule("port", "set", "br0", d.Port, "--isolated")
	l.Reach(c, l.Frames(20, D, C), mon)
	wantDrops(t, l, c, "protected", 20)
	l.Bascule("port", "set", "br0", a.Port, "--locked", "--learn=off", "--storm-bcast", "1pps")
	l.Reach(a, l.Frames(20, B, netlab.Station(50)), mon)
	wantDrops(t, l, a, "locked", 20)
	storm := l.Frames(40, netlab.Broadcast, A) // A stays known for a while
	if got := l.Deliver(a, storm...)[mon]; len(got) != len(storm) || l.Port("br0", a.Port).Drops["storm-bcast"] == 0 {
		t.Errorf("%d copies of %d frames, most of them above a limit", len(got), len(storm))
	}
	l.Bascule("port", "set", "br0", a.Port, "--locked=off", "--learn", "--storm-bcast", "none")

	// No frame enters by the span port.
	known := l.FDB("br0")
	l.Reach(mon, l.Frames(50, netlab.Broadcast, netlab.Station(60)))
	l.Reach(mon, l.Frames(50, B, netlab.Station(60)))
	l.Reach(mon, l.Frames(50, B, A))
	wantDrops(t, l, mon, "span", 150)
	if now := l.FDB("br0"); len(now) != len(known) {
		t.Errorf("%v known, %v before frames came from the span port", now, known)
	}

	l.Bascule("span", "del", "br0", mon.Port)
	l.Reach(a, l.Frames(50, B, A), b)
	l.Reach(a, l.Frames(50, netlab.Broadcast, A), b, c, d)
}

func spanPort(t *testing.T, hook string) {
	for _, direction := range []string{"in", "out", "both"} {
		l, ends, mon := setupSpan(t, hook, 3, "--port", "p2", "--direction", direction)
		a, b, c := ends[0], ends[1], ends[2]
		for i, e := range ends {
			l.Send(e, l.Frames(1, netlab.Broadcast, netlab.Station(i+1))...)
		}
		in, out := direction != "out", direction != "in"
		copies := func(frames []netlab.Frame, is bool) []netlab.Frame {
			if is {
				return frames
			}
			return nil
		}
		for _, n := range []int{1, 100} {
			frames := l.Frames(n, A, B)
			wantSent(t, l, b, frames, map[*netlab.End][]netlab.Frame{a: frames, mon: copies(frames, in)})
			frames = l.Frames(n, B, A)
			wantSent(t, l, a, frames, map[*netlab.End][]netlab.Frame{b: frames, mon: copies(frames, out)})
			frames = l.Frames(n, C, A)
			wantSent(t, l, a, frames, map[*netlab.End][]netlab.Frame{c: frames})
			frames = l.Frames(n, netlab.Broadcast, A)
			wantSent(t, l, a, frames, map[*netlab.End][]netlab.Frame{b: frames, c: frames, mon: copies(frames, out)})
			frames = l.Frames(n, netlab.Broadcast, B)
			wantSent(t, l, b, frames, map[*netlab.End][]netlab.Frame{a: frames, c: frames, mon: copies(frames, in)})
			// Unknown in that VLAN.
			tagged := []netlab.Frame{l.Frame(B, A, 60).Tagged(uint16(n), 3), l.Frame(netlab.Broadcast, B, 60).Tagged(uint16(n), 3)}
			wantSent(t, l, a, tagged[:1], map[*netlab.End][]netlab.Frame{b: tagged[:1], c: tagged[:1], mon: copies(tagged[:1], out)})
			wantSent(t, l, b, tagged[1:], map[*netlab.End][]netlab.Frame{a: tagged[1:], c: tagged[1:], mon: copies(tagged[1:], in)})
		}
	}
}

// A span of every port, each time that a frame comes in and goes out, and a second span port
// with its own selection.
func spanAllPorts(t *testing.T, hook string) {
	l, ends, mon := setupSpan(t, hook, 3, "--direction", "both")
	a, b, c := ends[0], ends[1], ends[2]
	other := l.NewEnd(l.NewNamespace())
	l.Bascule("span", "add", "br0", other.Port, "--port", c.Port, "--port", a.Port)
	for i, e := range ends {
		l.Send(e, l.Frames(1, netlab.Broadcast, netlab.Station(i+1))...)
	}
	frames := l.Frames(100, B, A)
	wantSent(t, l, a, frames, map[*netlab.End][]netlab.Frame{b: frames, mon: twice(frames), other: frames})
	frames = l.Frames(100, A, B)
	wantSent(t, l, b, frames, map[*netlab.End][]netlab.Frame{a: frames, mon: twice(frames)})
	frames = l.Frames(100, netlab.Broadcast, C)
	wantSent(t, l, c, frames, map[*netlab.End][]netlab.Frame{a: frames, b: frames, mon: append(twice(frames), frames...), other: frames})
	// A later port is included.
	d := l.NewEnd(l.NewNamespace())
	l.AddPort("br0", hook, d)
	learn(l, d, D)
	frames = l.Frames(100, B, D)
	wantSent(t, l, d, frames, map[*netlab.End][]netlab.Frame{b: frames, mon: twice(frames)})
}

// Large packets are copied whole. Copies that are larger than the span port's MTU are not made.
func spanSizes(t *testing.T, hook string) {
	l, ends, mon := setupSpan(t, hook, 2)
	learn(l, ends[0], A)
	learn(l, ends[1], B)
	mon.SetMTU(1000)
	frame := []netlab.Frame{l.Frame(B, A, 1014)}
	l.Reach(ends[0], frame, ends[1], mon)
	frame = []netlab.Frame{l.Frame(B, A, 1015)}
	l.Reach(ends[0], frame, ends[1])
	wantDrops(t, l, mon, "mtu", 1)
	wantDrops(t, l, ends[0], "mtu", 0)
	mon.SetMTU(1500)

	// Hosts flood frames of their own for some seconds: from here on no exact counts.
	drops := func() string {
		var text string
		for _, p := range l.Ports("br0") {
			text += fmt.Sprintf("%s: %v\n", p.Ifname, p.Drops)
		}
		return text
	}
	before := drops()
	one, two := ends[0].Host(), ends[1].Host()
	must(t, one.Ping(two.IPv4))
	largest := mon.Largest()
	must(t, netlab.Transfer(one, two, two.IPv4, 8<<20))
	if n := largest(); n <= 1514 {
		t.Errorf("the largest copy has %d bytes: the stream was cut up", n)
	}
	if after := drops(); after != before {
		t.Errorf("drops before the stream\n%sand after it\n%s", before, after)
	}
}

type spanInfo struct {
	Ifname    string   `json:"ifname"`
	Master    string   `json:"master"`
	Direction string   `json:"direction"`
	All       bool     `json:"all"`
	Ports     []string `json:"ports"`
	VLANs     []int    `json:"vlans"`
}

// wantSpans compares the listed span ports, as "DEVICE DIRECTION PORTS".
func wantSpans(t *testing.T, l *netlab.Lab, want ...string) {
	t.Helper()
	var list []spanInfo
	l.JSON(&list, "span", "show", "br0")
	var got []string
	for _, s := range list {
		ports := strings.Join(s.Ports, ",")
		if s.All {
			ports = "all"
		}
		got = append(got, s.Ifname+" "+s.Direction+" "+ports)
	}
	if !slices.Equal(got, want) {
		t.Errorf("span ports %q, should be %q", got, want)
	}
}

// A port that leaves the bridge leaves no state behind: neither in a span, nor as a span port,
// for the next port with its slot and number.
func spanLife(t *testing.T, hook string) {
	l, ends, mon := setupSpan(t, hook, 3, "--port", "p1", "--port", "p2", "--direction", "both")
	a, b, c := ends[0], ends[1], ends[2]
	wantSpans(t, l, mon.Port+" both p1,p2")

	// Another port in the slot of a copied one.
	l.Bascule("port", "del", "br0", a.Port)
	wantSpans(t, l, mon.Port+" both p2")
	l.AddPort("br0", hook, a)
	wantSpans(t, l, mon.Port+" both p2")
	learn(l, a, A)
	learn(l, c, C)
	l.Reach(a, l.Frames(20, C, A), c)
	l.Reach(c, l.Frames(20, A, C), a)
	// A span whose ports have all left does not become a span of all ports.
	l.Bascule("port", "del", "br0", b.Port)
	wantSpans(t, l, mon.Port+" both ")
	l.Reach(a, l.Frames(20, netlab.Broadcast, A), c)
	l.AddPort("br0", hook, b)

	// Another span port with the number of one that has left, and an ordinary port in its
	// slot.
	l.Bascule("span", "del", "br0", mon.Port)
	wantSpans(t, l)
	l.Bascule("span", "add", "br0", mon.Port, "--port", a.Port)
	l.Bascule("port", "del", "br0", mon.Port) // this command works as well
	wantSpans(t, l)
	l.AddPort("br0", hook, mon)
	learn(l, mon, D)
	l.Reach(a, l.Frames(20, D, A), mon)
	l.Reach(a, l.Frames(20, netlab.Broadcast, A), b, c, mon)
	l.Reach(mon, l.Frames(20, C, D), c)
	other := l.NewEnd(l.NewNamespace())
	l.Bascule("span", "add", "br0", other.Port, "--port", c.Port)
	l.Reach(a, l.Frames(20, D, A), mon)
	l.Reach(c, l.Frames(20, D, C), mon, other)

	// Its device is deleted, and made again with the same name.
	other.Unplug()
	wantSpans(t, l, other.Port+" in "+c.Port)
	l.Reach(c, l.Frames(20, D, C), mon)
	other.PlugAgain(0)
	l.Reach(c, l.Frames(20, D, C), mon)
	l.Bascule("span", "add", "br0", other.Port)
	wantSpans(t, l, other.Port+" in all")
	l.Reach(c, l.Frames(20, D, C), mon, other)

	// Settings of the bridge do not affect its spans.
	l.Bascule("bridge", "set", "br0", "--ageing", "100s")
	l.Reach(c, l.Frames(20, D, C), mon, other)
}

func spanRefused(t *testing.T, hook string) {
	l, ends, mon := setupSpan(t, hook, 2)
	a := ends[0]
	more := l.NewEnds(16)
	free := more[15].Port
	l.Refused([]string{free, "there is no bridge br9"}, "span", "add", "br9", free)
	l.Refused([]string{"no such interface"}, "span", "add", "br0", "nosuch")
	l.Refused([]string{a.Port, "it is a port of bridge br0"}, "span", "add", "br0", a.Port)
	l.Refused([]string{mon.Port, "it is a span port of bridge br0", "span del"}, "span", "add", "br0", mon.Port)
	l.Refused([]string{mon.Port, "it is a span port of bridge br0", "span del"}, "port", "add", "br0", mon.Port)
	l.Refused([]string{mon.Port, "span port"}, "span", "add", "br0", free, "--port", mon.Port)
	l.Refused([]string{"nosuch is not a port"}, "span", "add", "br0", free, "--port", a.Port, "--port", "nosuch")
	l.Refused([]string{free + " is not a port"}, "span", "add", "br0", free, "--port", free)
	l.Refused([]string{"does not filter VLANs"}, "span", "add", "br0", free, "--vlan", "10")
	l.Refused([]string{"--direction"}, "span", "add", "br0", free, "--direction", "up")
	l.Refused([]string{"4095"}, "span", "add", "br0", free, "--vlan", "4095")
	l.Refused([]string{a.Port, "not a span port"}, "span", "del", "br0", a.Port)
	l.Refused([]string{free + " is not a port"}, "span", "del", "br0", free)
	l.Refused([]string{mon.Port, "span port"}, "port", "set", "br0", mon.Port, "--learn=off")
	l.Refused([]string{mon.Port, "span port"}, "port", "set", "br0", mon.Port, "--hook", "xdp")
	l.Refused([]string{mon.Port, "span port"}, "fdb", "add", "br0", A.String(), mon.Port)
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	l.Refused([]string{"no port is in VLAN 10"}, "span", "add", "br0", free, "--vlan", "10")
	l.Bascule("bridge", "set", "br0", "--vlan-filtering=off")
	want := []string{mon.Port + " in all"}
	wantSpans(t, l, want...)
	for _, e := range more[:15] {
		l.Bascule("span", "add", "br0", e.Port, "--port", a.Port)
		want = append(want, e.Port+" in "+a.Port)
	}
	l.Refused([]string{free, "16 span ports"}, "span", "add", "br0", free)
	wantSpans(t, l, want...)
	// All of them receive it.
	l.Reach(a, l.Frames(3, netlab.Broadcast, A), append(more[:15:15], ends[1], mon)...)
	l.Bascule("span", "del", "br0", more[3].Port)
	l.Bascule("span", "add", "br0", free, "--port", ends[1].Port)
	l.Reach(ends[1], l.Frames(3, netlab.Broadcast, B), a, mon, more[15])
}

// A span of a VLAN: frames that come in by its ports in it, and frames that go out in it.
func spanVLAN(t *testing.T, hook string) {
	l := netlab.New(t)
	ends := l.NewEnds(5)
	a, b, c, d, mon := ends[0], ends[1], ends[2], ends[3], ends[4]
	l.AddBridge("br0", hook, ends[:4], "--vlan-filtering", "--default-pvid", "none")
	l.Bascule("vlan", "add", "br0", a.Port, "10", "--untagged", "--pvid")
	l.Bascule("vlan", "add", "br0", b.Port, "10,20")
	l.Bascule("vlan", "add", "br0", c.Port, "20", "--untagged", "--pvid")
	l.Bascule("vlan", "add", "br0", d.Port, "20", "--untagged", "--pvid")
	tag := func(frames []netlab.Frame, vlan uint16) (list []netlab.Frame) {
		for _, f := range frames {
			list = append(list, f.Tagged(vlan, 0))
		}
		return list
	}
	for _, direction := range []string{"in", "out", "both"} {
		l.Bascule("span", "add", "br0", mon.Port, "--vlan", "10", "--direction", direction)
		var list []spanInfo
		l.JSON(&list, "span", "show", "br0")
		if len(list) != 1 || list[0].All || len(list[0].Ports) != 0 || !slices.Equal(list[0].VLANs, []int{10}) {
			t.Errorf("shown as %+v", list)
		}
		copies := func(in, out []netlab.Frame) []netlab.Frame {
			switch direction {
			case "in":
				return in
			case "out":
				return out
			}
			return slices.Concat(in, out)
		}
		for range 2 { // the second time they know each other
			frames := l.Frames(50, B, A)
			tagged := tag(frames, 10)
			wantSent(t, l, a, frames, map[*netlab.End][]netlab.Frame{b: tagged, mon: copies(frames, tagged)})
			frames = l.Frames(50, A, B)
			tagged = tag(frames, 10)
			wantSent(t, l, b, tagged, map[*netlab.End][]netlab.Frame{a: frames, mon: copies(tagged, frames)})
		}
		// Another VLAN, on the same port; and frames in none of the port's VLANs.
		frames := l.Frames(50, netlab.Broadcast, B)
		wantSent(t, l, b, tag(frames, 20), map[*netlab.End][]netlab.Frame{c: frames, d: frames})
		wantSent(t, l, c, tag(frames, 10), nil)
		l.Bascule("span", "del", "br0", mon.Port)
	}
	// A VLAN and a port in it: one copy.
	l.Bascule("span", "add", "br0", mon.Port, "--vlan", "10,20", "--port", a.Port)
	frames := l.Frames(50, netlab.Broadcast, A)
	wantSent(t, l, a, frames, map[*netlab.End][]netlab.Frame{b: tag(frames, 10), mon: frames})
	frames = l.Frames(50, netlab.Broadcast, C)
	wantSent(t, l, c, frames, map[*netlab.End][]netlab.Frame{b: tag(frames, 20), d: frames, mon: frames})
	// The VLANs' ports change, and the span stays.
	l.Bascule("vlan", "del", "br0", d.Port, "20")
	l.Bascule("vlan", "add", "br0", d.Port, "10", "--untagged", "--pvid")
	frames = l.Frames(50, netlab.Broadcast, D)
	wantSent(t, l, d, frames, map[*netlab.End][]netlab.Frame{a: frames, b: tag(frames, 10), mon: frames})
}

// spanPortRefused: a span port takes no part in forwarding.
func spanPortRefused(t *testing.T, hook string) {
	l, _ := setup(t, hook, 1, "--vlan-filtering")
	mon := l.NewEnd(l.NewNamespace())
	l.Bascule("span", "add", "br0", mon.Port)
	for _, args := range []string{
		"vlan add br0 " + mon.Port + " 20",
		"rule add br0 " + mon.Port + " block",
		"binding add br0 " + mon.Port + " 02:00:00:00:00:88 192.0.2.88 --vlan 1",
		"fdb add br0 02:00:00:00:00:88 " + mon.Port,
	} {
		l.Refused([]string{mon.Port + " is a span port"}, strings.Fields(args)...)
	}
}
