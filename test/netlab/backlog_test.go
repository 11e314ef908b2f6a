// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"strings"
	"testing"
	"time"
)

// pause is an address for a bridge itself: no bridge forwards it (IEEE 802.1Q, table 8-1).
var pause = MAC{0x01, 0x80, 0xc2, 0, 0, 1}

// TestLoadHostLoses: a load continues if a frame is missing that the host has lost, and fails
// if the host has lost none.
func TestLoadHostLoses(t *testing.T) {
	l := New(t)
	ends := l.NewEnds(3)
	linuxBridge(t, l)
	start := func(patience time.Duration, lost func() (int, error)) *Load {
		t.Helper()
		sent := 0
		flow := Flow{From: ends[0], To: ends[1:]}
		flow.Frame = func(number uint32) (sends, arrives Frame) {
			arrives = NewFrame(Broadcast, ends[0].MAC, number, minLen)
			if sent++; sent == 40 { // in the third round
				return NewFrame(pause, ends[0].MAC, number, minLen), arrives
			}
			return arrives, arrives
		}
		for _, e := range ends {
			l.must(e.discard())
		}
		return startLoad(&Load{lost: lost, patience: patience}, ends, []Flow{flow})
	}

	asked := 0
	load := start(patience, func() (int, error) { asked++; return 1, nil })
	l.Wait("frames after those that were lost", load.Flowing(5*2*loadWindow))
	if err := load.Stop(); err != nil {
		t.Error(err)
	}
	if asked == 0 {
		t.Error("nobody asked what the host has lost")
	}

	load = start(time.Second/5, func() (int, error) { return 0, nil })
	l.Wait("the load to fail", load.Failed)
	if err := load.Stop(); err == nil || !strings.Contains(err.Error(), "1 of 16 frames missing") {
		t.Errorf("a frame was lost, and not by the host: %v", err)
	}
}

// TestTalkHostLoses: datagrams of a talk that the host has lost are sent again, and arrive.
func TestTalkHostLoses(t *testing.T) {
	l := New(t)
	l.NewEnds(2)
	linuxBridge(t, l)
	talk := l.NewTalk(l.Ends[0], l.Ends[1])
	l.must(talk.Exchange(3))

	part := func(on bool) {
		for _, e := range l.Ends {
			port, err := l.Switch.Netlink().LinkByName(e.Port)
			l.must(err)
			l.must(l.Switch.Netlink().LinkSetIsolated(port, on))
		}
	}
	part(true)
	asked := [2]int{}
	for i, side := range talk.sides {
		side.lost = func() (int, error) {
			if asked[i]++; asked[i] == 1 { // before anything is sent
				return 7, nil
			}
			part(false)
			return 3, nil
		}
	}
	if err := talk.Exchange(3); err != nil {
		t.Error(err)
	}
	for i, n := range asked {
		if n < 2 {
			t.Errorf("side %d did not ask what the host has lost", i)
		}
	}
}

// TestBacklog compares the counters with the kernel's files.
func TestBacklog(t *testing.T) {
	l := New(t)
	l.NewEnds(1)
	b, err := newBacklog(l.Ends[0].near(), l.Ends[0].far())
	l.must(err)
	if n, err := b.lost(); err != nil || n != 0 {
		t.Errorf("%d lost, %v", n, err)
	}
	for _, c := range []struct {
		at   backlogCounters
		want int
	}{
		{backlogCounters{-2, -3}, 2}, // or 3, if a CPU has dropped a frame meanwhile
		{backlogCounters{-3, -2}, 2},
		{backlogCounters{-3, 1}, 0}, // a device was deleted
	} {
		now, err := b.read()
		l.must(err)
		b.at = backlogCounters{now.cpus + c.at.cpus, now.devices + c.at.devices}
		if n, err := b.lost(); err != nil || n < c.want || n > max(0, -c.at.devices) {
			t.Errorf("%+v: %d lost, should be %d; %v", c.at, n, c.want, err)
		}
	}
}
