// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/workloads"
	"bascule/test/program"
)

// TestWorkloads runs every kind of workload, small and in several variants.
func TestWorkloads(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	// Instructions are not counted here: scaled nanoseconds replace them. The counter advances
	// slowly: frames count as lost after a thousand million, and a busy machine may stall for
	// some seconds.
	count := func() uint64 { return uint64(time.Now().UnixNano()) / 60 }
	site := fabrics.Site{Bascule: program.Path(t), Instructions: count}
	const short = ":duration=30ms"
	// The facts that a sample must have in addition to its value.
	const (
		bytes = 1 << iota
		frames
		intervals
		some // intervals, if they are in time and the amount is not fixed: at least one
		loss
	)
	counted := bytes | frames | intervals | loss
	jumbo := Setup{MTU: 9000}
	tests := []struct {
		fabric   *fabrics.Fabric
		workload string
		setup    Setup
		has      int
	}{
		{fabrics.LinuxBridge, "tcp-stream:reverse:mss=500:mebibytes=8", Setup{}, bytes | some},
		{fabrics.LinuxBridge, "tcp-stream:streams=2:pin=false:mebibytes=24", jumbo, bytes | some},
		{fabrics.BasculeXDP, "tcp-stream:mebibytes=24", jumbo, bytes | some},
		{fabrics.LinuxBridge, "netperf-stream:mebibytes=24", Setup{}, bytes | some},
		{fabrics.LinuxBridge, "iperf-3streams:offloads:mebibytes=24", Setup{}, bytes | some},
		{fabrics.LinuxBridge, "udp:rate=100M:size=1000:duration=1s", Setup{}, bytes | frames | loss},
		{fabrics.LinuxBridge, "latency:udp:size=200:duration=1s", Setup{}, 0},
		{fabrics.LinuxBridge, "latency:load=tcp:duration=1s", Setup{}, bytes},
		{fabrics.LinuxBridge, "latency:load=udp:duration=1s", Setup{}, bytes},
		{fabrics.LinuxBridge, "crr:duration=200ms", Setup{}, bytes | intervals},
		{fabrics.LinuxBridge, "crr:connections=4:pin=false:response=10000:duration=200ms", Setup{}, bytes | intervals},
		{fabrics.LinuxBridge, "uperf:request=4096:duration=200ms", Setup{}, bytes | intervals},
		{fabrics.Direct, "pps:generator=bpf" + short, Setup{}, counted},
		{fabrics.Direct, "pps:generator=ring" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "pps:size=1518" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "pps:size=imix" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "pps:size=imix:generator=ring" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "pps:cores=2:same-source:generator=ring" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "pps" + short, Setup{Host: true}, counted},
		{fabrics.Bascule, "pps" + short, Setup{Host: true}, counted},
		{fabrics.Direct, "many-flows:flows=1000" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "many-flows:flows=1000" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "many-flows:flows=1000:generator=ring" + short, Setup{}, counted},
		{fabrics.LinuxBridgeFiltered, "first-packets" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "first-packets:generator=ring" + short, Setup{}, counted},
		{fabrics.RouterNAT, "first-packets:same-source" + short, Setup{}, counted},
		{fabrics.BasculeRouterNAT, "first-packets:same-source" + short, Setup{}, counted},
		{fabrics.BasculeRouterXDPNAT, "first-packets:same-source:generator=ring" + short, Setup{}, counted},
		{fabrics.BasculeRouterXDPNAT, "pps" + short, Setup{}, counted},
		{fabrics.BasculeRouterNAT, "tcp-stream:mebibytes=24", Setup{}, bytes | some},
		{fabrics.LinuxBridge, "throughput-search:loss=50" + short, Setup{}, loss},
		{fabrics.LinuxBridge, "throughput-search:loss=50:generator=ring" + short, Setup{}, loss},
		{fabrics.LinuxBridge, "flood:ports=3:size=imix" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "flood:ports=3:generator=ring" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "learning:rate=1000:duration=200ms", Setup{}, intervals | loss},
		{fabrics.LinuxBridge, "learning:rate=0" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "addresses:count=1000:generator=ring" + short, Setup{}, counted},
		{fabrics.Router, "routes:count=1000" + short, Setup{}, counted},
		{fabrics.RouterNAT, "pps" + short, Setup{}, counted},
		{fabrics.BasculeRouterXDP, "routes:count=10:generator=ring" + short, Setup{}, counted},
		{fabrics.LinuxBridge, "learning-rate:addresses=2000", Setup{}, 0},
		{fabrics.LinuxBridge, "address-capacity:max=3000", Setup{}, 0},
		{fabrics.Bascule, "address-capacity:max=100000:generator=ring", Setup{}, 0},
		{fabrics.Bascule, "fdb-memory:count=2000", Setup{}, 0},
		{fabrics.LinuxBridge, "port-add:ports=2", Setup{}, 0},
		{fabrics.LinuxBridge, "pps:cores=2:connections=1000" + short, Setup{}, counted},
		{fabrics.BasculeXDPPF, "pps:cores=2:connections=1000" + short, Setup{}, counted},
		{fabrics.BasculePF, "pps:connections=1000:generator=ring" + short, Setup{}, counted},
		{fabrics.BasculePF, "pf-load:rules=100", Setup{}, 0},
		{fabrics.BasculePF, "pf-memory:count=2000", Setup{}, 0},
		{fabrics.Direct, "one-by-one:frames=100", Setup{}, 0},
		{fabrics.Bascule, "one-by-one:frames=100:size=1518", Setup{}, 0},
		{fabrics.Bascule, "one-by-one:frames=100:gso=64000", Setup{}, 0},
		{fabrics.BasculePF, "one-by-one:frames=100:fresh", Setup{}, 0},
		{fabrics.Bascule, "one-by-one:frames=100:behind", Setup{}, 0},
		{fabrics.LinuxBridgeFiltered, "one-by-one:frames=100:fresh:behind", Setup{}, 0},
		{fabrics.LinuxBridge, "one-by-one:frames=100:addresses=1", Setup{}, 0},
		{fabrics.Bascule, "one-by-one:frames=100:addresses=1000", Setup{}, 0},
		{fabrics.Direct, "one-by-one:frames=100:addresses=1000", Setup{}, 0},
		{fabrics.BasculeXDP, "in-batches:frames=100", Setup{}, 0},
		{fabrics.LinuxBridge, "copies:frames=100:ports=3", Setup{}, 0},
	}
	p := Profile{Name: "test"}
	for _, test := range tests {
		p.Groups = append(p.Groups, group(1, []Case{{test.fabric, workloads.Must(test.workload), test.setup}}))
	}
	for _, k := range workloads.Kinds {
		if !slices.ContainsFunc(p.Groups, func(g Group) bool { return strings.HasPrefix(g.Name+":", k.Name+":") }) {
			t.Errorf("workload %s is not tried", k.Name)
		}
	}
	got := runAll(t, site, p, func(i int) bool { return strings.Contains(tests[i].workload, "duration=") })
	for i, test := range tests {
		t.Run(p.Groups[i].Cases[0].Label(), func(t *testing.T) {
			if err := ends.Installed(p.Groups[i].Cases[0].Workload.Needs...); err != nil {
				t.Skip(err)
			}
			c := got[i]
			if c.Error != "" || c.Skipped != "" || len(c.Samples) != 1 {
				t.Fatalf("%d samples, error %q, left out: %q", len(c.Samples), c.Error, c.Skipped)
			}
			s := c.Samples[0]
			_, lost := s.More[report.Lost]
			for name, ok := range map[string]bool{
				"value":     s.Value > 0,
				"bytes":     s.Bytes > 0 || test.has&bytes == 0,
				"frames":    (s.Frames > 0) == (test.has&frames != 0),
				"intervals": len(s.Intervals) > 1 || test.has&intervals == 0 && (len(s.Intervals) > 0 || test.has&some == 0),
				"loss":      lost || test.has&loss == 0,
			} {
				if !ok {
					t.Errorf("%s is not as it should be: %+v", name, s)
				}
			}
			want := ""
			if strings.Contains(test.workload, "generator=ring") {
				want = "ring of a packet socket"
			}
			if !strings.Contains(c.Counter, want) {
				t.Errorf("frames were %s, want by the %s", c.Counter, want)
			}
		})
	}
}

// patient limits the repetition of steps for which a busy machine had no time. A failure for that
// long is a defect.
const patient = 5 * time.Minute

// runAll runs groups with one case and one round each. timed reports whether a group's round has a
// duration. Such a round has no result if the machine stalls for that long: the case is then
// repeated.
func runAll(t *testing.T, site fabrics.Site, p Profile, timed func(i int) bool) []*report.Case {
	t.Helper()
	got := make([]*report.Case, len(p.Groups))
	var places []int // of the groups to run
	for i := range p.Groups {
		places = append(places, i)
	}
	for begin := time.Now(); len(places) > 0; {
		now := Profile{Name: p.Name}
		for _, i := range places {
			now.Groups = append(now.Groups, p.Groups[i])
		}
		r, err := Run(t.Context(), site, now, NewProgress(nil))
		if err != nil {
			t.Fatal(err)
		}
		var again []int
		for k, i := range places {
			got[i] = r.Groups[k].Cases[0]
			if why := got[i].Error; why != "" && timed(i) && time.Since(begin) < patient {
				t.Logf("once more, %s: %s", got[i].Label, why)
				again = append(again, i)
			}
		}
		places = again
	}
	return got
}

// TestMebibytes checks that a round with an amount sends that amount, however long it takes.
func TestMebibytes(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	const mebibytes = 24
	w := workloads.Must(fmt.Sprintf("netperf-stream:streams=2:mebibytes=%d", mebibytes))
	p := Profile{Groups: []Group{group(1, across([]*fabrics.Fabric{fabrics.Direct}, w))}}
	r, err := Run(t.Context(), fabrics.Site{}, p, NewProgress(nil))
	if err != nil {
		t.Fatal(err)
	}
	c := r.Groups[0].Cases[0]
	if c.Error != "" || len(c.Samples) != 1 {
		t.Fatalf("%d samples, error %q", len(c.Samples), c.Error)
	}
	// iperf3 does not count data that is in flight when the amount has been sent, some MiB for
	// each connection, and on a busy machine it sends some more before it stops. A round with a
	// duration sends for a minute, which is many times as much on any machine.
	if sent := c.Samples[0].Bytes / (1 << 20); sent < mebibytes/8 || sent > 4*mebibytes {
		t.Errorf("%.1f MiB arrived, want most of %d", sent, mebibytes)
	}
}
