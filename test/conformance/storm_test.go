// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
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
}

// floods are the kinds of floods that can be limited.
var floods = []struct {
	setting string // and the reason
	dst     netlab.MAC
}{
	{"storm-bcast", netlab.Broadcast},
	{"storm-mcast", netlab.Group(1)},
	{"storm-unknown", netlab.Station(100)},
}

// A limit lets in what is in its bucket at once, and then so many a second.
// That holds however slow the machine is: the bounds are those of the time that
// has passed.
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

		// the other kinds, other ports and known unicast are not concerned
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

// The limit is the port's, not each CPU's.
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
	// what a CPU's queue had no room for has not come to the switch
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

// blast sends a frame many times from one CPU, if the machine has it.
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
		l.Refused([]string{setting, "a limit of 0 would let nothing in", "none"}, "port", "set", "br0", p, setting, "0")
		for _, bad := range []string{"-1pps", "much", "4294967296pps", "5000gbit", "1.5mbit", ""} {
			l.Refused([]string{setting, "not a rate"}, "port", "set", "br0", p, setting+"="+bad)
		}
	}
	got := l.Port("br0", p)
	if limits := strings.Join([]string{got.StormBcast, got.StormMcast, got.StormUnknown}, " "); limits != "500pps 1mbit 1gbit" {
		t.Errorf("the limits are %s after what was refused", limits)
	}
}
