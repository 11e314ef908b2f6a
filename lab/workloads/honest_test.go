// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/test/program"
)

// built returns a Linux bridge for a workload, and removes it at the end of the test.
func built(t *testing.T, site fabrics.Site, w *Workload) *fabrics.Net {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	if err := ends.Installed(w.Needs...); err != nil {
		t.Skip(err)
	}
	n, err := fabrics.LinuxBridge.Build(t.Context(), site, w.Spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// bypass connects the first two ends with a cable that bypasses the fabric; the senders use it.
func bypass(t *testing.T, n *fabrics.Net, senders []int) {
	t.Helper()
	ip := func(end int, args string) {
		t.Helper()
		if _, err := n.Ends[end].Namespace.Output(t.Context(), ends.AnyCPU, "ip", strings.Fields(args)...); err != nil {
			t.Fatal(err)
		}
	}
	ip(0, "link add past type veth peer name past netns "+n.Ends[1].Namespace.Name)
	for i := range 2 {
		ip(i, "link set past up")
	}
	for _, from := range senders {
		ip(from, fmt.Sprintf("route add %s/32 dev past src %s", n.Ends[1-from].Addr.Addr(), n.Ends[from].Addr.Addr()))
	}
}

// unmetered measures nothing.
type unmetered struct{}

func (unmetered) Begin() {}
func (unmetered) End()   {}

// timed records the latest begin and end.
type timed struct{ begin, end time.Time }

func (m *timed) Begin() { m.begin = time.Now() }
func (m *timed) End()   { m.end = time.Now() }

// TestPastTheFabric checks that traffic that bypasses the fabric is not measured. Each workload
// with frames from the ends' own stacks has to check the fabric's counters.
func TestPastTheFabric(t *testing.T) {
	bascule := program.Path(t)
	both, first, second := []int{0, 1}, []int{0}, []int{1}
	for _, test := range []struct {
		workload string
		past     []int // the ends that send around the fabric
	}{
		{"tcp-stream:duration=1s", both},
		{"tcp-stream:duration=1s", first}, // the acknowledgements cross
		{"tcp-stream:reverse:duration=1s", both},
		{"tcp-stream:reverse:duration=1s", second},
		{"netperf-stream:duration=1s", both},
		{"iperf-3streams:duration=1s", both},
		{"udp:rate=10M:size=1000:duration=1s", both},
		{"latency:duration=1s", both},
		{"latency:udp:duration=1s", both},
		{"crr:duration=1s", both},
		{"crr:duration=1s", first}, // the responses cross
		{"uperf:duration=1s", both},
		{"uperf:duration=1s", first},
	} {
		t.Run(fmt.Sprint(test.workload, test.past), func(t *testing.T) {
			w := Must(test.workload)
			n := built(t, fabrics.Site{Bascule: bascule}, w)
			bypass(t, n, test.past)
			s, err := w.Start(t.Context(), n)
			if err == nil {
				defer s.Close()
				var sample report.Sample
				if sample, err = s.Run(t.Context(), unmetered{}); err == nil {
					t.Errorf("it measured %v %s", sample.Value, w.Unit)
				}
			}
			if err != nil && !strings.Contains(err.Error(), "fabric "+n.Fabric.Name) {
				t.Errorf("the error does not name the fabric: %v", err)
			}
			// The traffic existed, but on the wrong path.
			past, err := n.Ends[test.past[0]].Namespace.Traffic("past")
			if err != nil || past.TxPackets < 100 {
				t.Errorf("%d packets were sent past the fabric, error %v", past.TxPackets, err)
			}
		})
	}
}

// TestFramesThatArrive checks that frames are counted at their destination. One of two flows ends
// at a port that the bridge isolates.
func TestFramesThatArrive(t *testing.T) {
	const length = time.Second
	for _, generator := range []string{"bpf", "ring"} {
		t.Run(generator, func(t *testing.T) {
			w := Must(fmt.Sprintf("pps:cores=2:generator=%s:duration=%v", generator, length))
			n := built(t, fabrics.Site{}, w)
			// Isolated ports receive nothing from each other.
			for _, p := range n.Ports[2:4] {
				link := p.Namespace.Netlink()
				l, err := link.LinkByName(p.Ifname)
				if err == nil {
					err = link.LinkSetIsolated(l, true)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			s, err := w.Start(t.Context(), n)
			var unavailable *ends.Unavailable
			if errors.As(err, &unavailable) {
				t.Skip(err)
			} else if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			received := func(end int) float64 {
				t.Helper()
				c, err := n.Ends[end].Namespace.Traffic(n.Ends[end].Ifname)
				if err != nil {
					t.Fatal(err)
				}
				return float64(c.RxPackets)
			}
			one, other := received(1), received(3)
			var m timed
			sample, err := s.Run(t.Context(), &m)
			if err != nil {
				t.Fatal(err)
			}
			one, other = received(1)-one, received(3)-other
			rate, made := sample.Value*1e6, sample.More["sent_mpps"]*1e6
			// Except for the few frames from which the bridge learns addresses, and
			// frames that were still queued.
			if other > 100 || sample.Frames > one {
				t.Errorf("%.0f frames are told; the device of one receiver has %.0f, that of the other %.0f", sample.Frames, one, other)
			}
			// A busy machine can only lengthen the window.
			if window, most := sample.Frames/rate, m.end.Sub(m.begin).Seconds(); window < 0.999*length.Seconds() || window > 1.001*most {
				t.Errorf("%.0f frames at %.0f a second are a window of %.3f s, should be %v to %.3f s", sample.Frames, rate, window, length, most)
			}
			if rate > 0.95*made {
				t.Errorf("%.0f frames a second of %.0f that were made, half of which go nowhere", rate, made)
			}
			if lost := 100 * (1 - rate/made); math.Abs(sample.More[report.Lost]-lost) > 0.01 {
				t.Errorf("%v %% lost, want %v", sample.More[report.Lost], lost)
			}
			if least, most := slices.Min(sample.Intervals), slices.Max(sample.Intervals); sample.Value < least || sample.Value > most {
				t.Errorf("the parts of the window have %v to %v, the window %v", least, most, sample.Value)
			}
		})
	}
}

// TestReadingSince checks that each rate uses the time between its own two readings.
func TestReadingSince(t *testing.T) {
	at := time.Unix(1000, 0)
	from := reading{at: at, arrived: 100, sent: 1000}
	to := reading{at: at.Add(2 * time.Second), arrived: 300, sent: 7000}
	if arrived, made := to.since(from); arrived != 100 || made != 3000 {
		t.Errorf("%v arrived and %v were made a second, want 100 and 3000", arrived, made)
	}
}
