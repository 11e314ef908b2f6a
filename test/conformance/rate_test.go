// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/test/netlab"
)

var rateCases = []conformance{
	{name: "rate_ways_in", hooks: both, run: rateWaysIn},
	{name: "rate_ways_out", hooks: both, run: rateWaysOut},
	{name: "rate_host_port", hooks: tcx, run: rateHostPort},
	{name: "rate_refused", hooks: tcx, run: rateRefused},
	{name: "rate_tcp", hooks: both, run: rateTCP},
}

// fewFrames is a limit that passes some frames at once, and then one a second.
const (
	fewFrames = "1pps:10"
	few       = 10
)

// wantFew checks how many of the frames have passed against the limit since a time.
func wantFew(t *testing.T, what string, got, sent int, since time.Time) {
	t.Helper()
	if most := few + 1 + int(time.Since(since)/time.Second); got < few || got > most || got >= sent {
		t.Errorf("%s: %d of %d frames passed, should be %d to %d", what, got, sent, few, most)
	}
}

// All frames that come in by a port count, and drops are counted at that port. Other ports are not
// affected.
func rateWaysIn(t *testing.T, hook string) {
	const sent = 60
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	learn(l, a, A)
	learn(l, b, B)
	for what, dst := range map[string]netlab.MAC{
		"known unicast": B, "to the other end's own address": b.MAC, "broadcast": netlab.Broadcast, "multicast": netlab.Group(1), "unknown unicast": netlab.Station(100),
	} {
		before, start := l.Port("br0", a.Port), time.Now()
		l.Bascule("port", "set", "br0", a.Port, "--rate-in", fewFrames)
		got := l.Deliver(a, l.Frames(sent, dst, A)...)
		wantFew(t, what, len(got[b]), sent, start)
		after := l.Port("br0", a.Port)
		if dropped := int(after.Drops["rate"] - before.Drops["rate"]); dropped != sent-len(got[b]) {
			t.Errorf("%s: %d counted as dropped, %d of %d arrived", what, dropped, len(got[b]), sent)
		}
		if rx := int(after.Stats64.RX.Packets - before.Stats64.RX.Packets); rx != sent {
			t.Errorf("%s: %d counted as received, %d were sent", what, rx, sent)
		}
		l.Reach(b, l.Frames(50, A, B), a)
		l.Reach(c, l.Frames(50, netlab.Broadcast, C), a, b)
		l.Bascule("port", "set", "br0", a.Port, "--rate-in", "none")
		l.Reach(a, l.Frames(50, B, A), b)
	}
}

// All frames that leave by a port count, on every path: to a veth's other end, through its device,
// as a copy, as the last of a flood, by XDP, or as an answer of the switch itself. Drops are
// counted at that port, and not as sent.
func rateWaysOut(t *testing.T, hook string) {
	const sent = 60
	l, ends := setup(t, hook, 4, "--neigh-suppress")
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	learn(l, a, A)
	for _, e := range []*netlab.End{b, c, d} {
		learn(l, e, e.MAC)
	}
	learn(l, b, B)
	bind(l, d, d.MAC, "192.0.2.4")
	question := arpFrame(netlab.Broadcast, A, arpRequest, A, "192.0.2.1", netlab.MAC{}, "192.0.2.4")
	var questions []netlab.Frame
	for range sent {
		questions = append(questions, question)
	}
	for _, tt := range []struct {
		what    string
		frames  []netlab.Frame
		limited *netlab.End
		others  []*netlab.End
	}{
		{"by the device", l.Frames(sent, B, A), b, nil},
		{"to the other end's own address", l.Frames(sent, b.MAC, A), b, nil},
		{"a copy of a flood", l.Frames(sent, netlab.Broadcast, A), b, []*netlab.End{c, d}},
		{"the last of a flood", l.Frames(sent, netlab.Broadcast, A), d, []*netlab.End{b, c}},
		{"unknown unicast", l.Frames(sent, netlab.Station(100), A), c, []*netlab.End{b, d}},
		{"answers", questions, a, nil},
	} {
		before, start := l.Port("br0", tt.limited.Port), time.Now()
		l.Bascule("port", "set", "br0", tt.limited.Port, "--rate-out", fewFrames)
		got := l.Deliver(a, tt.frames...)
		n := len(got[tt.limited])
		wantFew(t, tt.what, n, sent, start)
		for _, e := range tt.others {
			if len(got[e]) != sent {
				t.Errorf("%s: %d of %d frames arrived behind %s, which has no limit", tt.what, len(got[e]), sent, e.Port)
			}
		}
		after := l.Port("br0", tt.limited.Port)
		if dropped := int(after.Drops["rate"] - before.Drops["rate"]); dropped != sent-n {
			t.Errorf("%s: %d counted as dropped, %d of %d arrived", tt.what, dropped, n, sent)
		}
		if tx := after.Stats64.TX; int(tx.Packets-before.Stats64.TX.Packets) != n || int(tx.Bytes-before.Stats64.TX.Bytes) != n*len(tt.frames[0]) {
			t.Errorf("%s: counted as sent %+v, before %+v; %d frames of %d bytes arrived", tt.what, tx, before.Stats64.TX, n, len(tt.frames[0]))
		}
		l.Bascule("port", "set", "br0", tt.limited.Port, "--rate-out", "none")
	}
	l.Reach(a, l.Frames(50, B, A), b)
}

// A host port's limits apply to frames that the host sends into the switch, and to frames that it
// receives.
func rateHostPort(t *testing.T, hook string) {
	const sent = 60
	l, ends := setup(t, hook, 1)
	a := ends[0]
	l.Bascule("port", "add", "br0", "host0", "--type", "host", "--rate-in", fewFrames)
	start := time.Now()
	device, err := l.Switch.Netlink().LinkByName("host0")
	must(t, err)
	l.SetUp(device)
	host := l.Listen(l.Switch, "host0")
	host.Send(l.Frames(sent, netlab.Broadcast, B)...)
	l.Wait("the host's frames to be counted", func() bool {
		return l.Port("br0", "host0").Drops["rate"] > 0 && l.Port("br0", "host0").Stats64.RX.Packets >= sent
	})
	wantFew(t, "from the host", sent-int(l.Port("br0", "host0").Drops["rate"]), sent, start)
	l.Bascule("port", "set", "br0", "host0", "--rate-in", "none", "--rate-out", fewFrames)
	before, start := l.Port("br0", "host0"), time.Now()
	l.Send(a, l.Frames(sent, netlab.Broadcast, A)...)
	after := l.Port("br0", "host0")
	wantFew(t, "to the host", sent-int(after.Drops["rate"]-before.Drops["rate"]), sent, start)
	if after.Drops["rate"]-before.Drops["rate"]+after.Stats64.TX.Packets-before.Stats64.TX.Packets != sent {
		t.Errorf("counted %+v, before %+v", after, before)
	}
	// Routed packets would bypass the limit.
	l.Refused([]string{"--route=off", "rate-in"}, "port", "set", "br0", "host0", "--route")
}

func rateRefused(t *testing.T, hook string) {
	l, ends := setup(t, hook, 1)
	l.Bascule("bridge", "add", "br1")
	l.Refused([]string{"patch port has no device", "limit the ports"}, "port", "add", "br0", "to1", "--type", "patch", "--peer", "br1/to0", "--rate-in", "1mbit")
	l.Bascule("port", "add", "br0", "to1", "--type", "patch", "--peer", "br1/to0")
	l.Refused([]string{"patch port has no device"}, "port", "set", "br0", "to1", "--rate-out", "1mbit")
	l.Refused([]string{"unit", "100mbit", "100pps"}, "port", "set", "br0", "to1", "--rate-in", "100")
	l.Refused([]string{"unit", "100mbit", "100pps"}, "port", "set", "br0", "to1", "--rate-in", "100:4mb")
	l.Refused([]string{"'bascule vlan add'"}, "port", "set", "br0", "to1", "--vlan", "10")
	l.Refused([]string{"already", "'bascule port set br0 "}, "port", "add", "br0", ends[0].Port)
	for _, v := range []string{"", "0", "8mbps", "8mbit:", "8mbit:100", "8mbit:64kbit", "5pps:64kb", "none:64kb", "8mbit:4096mb"} {
		l.Refused([]string{"--rate-in"}, "port", "set", "br0", ends[0].Port, "--rate-in", v)
	}
	if p := l.Port("br0", ends[0].Port); p.RateIn != "none" || p.RateOut != "none" {
		t.Errorf("limits %s and %s after what was refused", p.RateIn, p.RateOut)
	}
}

// TCP reaches the limit's rate, with one connection as well as with ten: a payload of at least 0.9
// and at most 1.02 of it. A single sender without delay and without a queue in between is the
// hardest case, since all its packets on their way arrive at once.
func rateTCP(t *testing.T, hook string) {
	netlab.Minutes(t)
	if _, err := exec.LookPath("iperf3"); err != nil {
		t.Skip(err)
	}
	l, sides := setup(t, hook, 2)
	a, b := sides[0], sides[1]
	for i, e := range sides {
		must(t, e.Namespace.Subnet(e.Ifname, netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}), 24)))
	}
	server, err := b.Namespace.Serve(context.Background(), ends.AnyCPU, ends.Listen{Proto: "tcp", Port: 5201}, "iperf3", "-s")
	must(t, err)
	defer server.Close()
	run := func(streams int, args ...string) (mbit float64) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		text, err := a.Namespace.Output(ctx, ends.AnyCPU, "iperf3", append([]string{"-c", "192.0.2.2", "-C", "cubic", "-J", "-P", fmt.Sprint(streams)}, args...)...)
		if err != nil {
			t.Fatalf("iperf3: %v\n%s", err, text)
		}
		var result struct {
			End struct {
				Received struct {
					Bits float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
		}
		must(t, json.Unmarshal(text, &result))
		return result.End.Received.Bits / 1e6
	}
	free := run(1, "-t", "1")
	for _, rate := range []float64{8, 100, 1000} {
		for _, way := range []struct {
			setting string
			port    *netlab.End
		}{{"--rate-in", a}, {"--rate-out", b}} {
			l.Bascule("port", "set", "br0", way.port.Port, way.setting, fmt.Sprintf("%gmbit", rate))
			for _, streams := range []int{1, 10} {
				if free < 3*rate && rate > 8 {
					t.Logf("%s %g: the machine moves %.0f Mbit/s without a limit", way.setting, rate, free)
					continue
				}
				var got float64
				for range 3 { // the machine may be busy meanwhile
					if got = run(streams, "-t", "6"); got >= 0.9*rate {
						break
					}
				}
				if got < 0.9*rate || got > 1.02*rate {
					t.Errorf("%s %gmbit, %d streams: %.2f Mbit/s, should be %.2f to %.2f", way.setting, rate, streams, got, 0.9*rate, 1.02*rate)
				} else {
					t.Logf("%s %gmbit, %d streams: %.3f of it", way.setting, rate, streams, got/rate)
				}
			}
			l.Bascule("port", "set", "br0", way.port.Port, way.setting, "none")
		}
	}
	if got := run(1, "-t", "1"); got < free/10 {
		t.Errorf("%.0f Mbit/s after the limits, before them %.0f", got, free)
	}
}
