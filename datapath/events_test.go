// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"slices"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
)

// log opens the events of a bench, from now on.
func (s *bench) log() *Log {
	s.t.Helper()
	l, err := openLog(s.gen.coll.Maps[kernelMapShared])
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(l.Close)
	return l
}

// expectEvents fails the test unless exactly these have happened. It waits for the last
// ones: the timer reports its work after doing it.
func (s *bench) expectEvents(l *Log, want ...Event) {
	s.t.Helper()
	var got []Event
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		more, missed, err := l.Read()
		if err != nil || missed != 0 {
			s.t.Errorf("%d events missed, %v", missed, err)
		}
		got = append(got, more...)
		if len(got) >= len(want) || time.Now().After(end) {
			break
		}
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		s.t.Errorf("events (-want +got):\n%s", diff)
	}
}

func TestEvents(t *testing.T) {
	s := newBench(t, 3, func(c *Config, _ []*Port) { c.FdbMax = 3 })
	l, other := s.log(), s.log()
	s.expectEvents(l)

	s.learn(0, 1, 2)
	s.tcx(1, packet{dst: broadcast, src: station(3)}.tagged(10).bytes())
	learned := []Event{
		{Kind: EventLearned, MAC: station(1), Port: s.ids[0], Count: 1},
		{Kind: EventLearned, MAC: station(2), Port: s.ids[0], Count: 1},
		{Kind: EventLearned, MAC: station(3), VLAN: 10, Port: s.ids[1], Count: 1},
	}
	s.expectEvents(l, learned...)
	s.expectEvents(l)

	s.learn(0, 1) // no event: nothing is new
	s.learn(2, 1)
	moved := Event{Kind: EventMoved, MAC: station(1), Port: s.ids[2], From: s.ids[0], Count: 1}
	s.expectEvents(l, moved)

	s.learn(1, 50)
	refused := Event{Kind: EventRefusedFull, Port: s.ids[1], Count: 1}
	s.expectEvents(l, refused)

	s.store(address{station(2), 0}, spot{port: 0, pin: fdbStatic})
	s.expectEvents(l)
	s.learn(2, 2)
	pinned := Event{Kind: EventRefusedPinned, MAC: station(2), Port: s.ids[2], From: s.ids[0], Count: 1}
	s.expectEvents(l, pinned)

	if err := s.remove(address{station(2), 0}); err != nil {
		t.Fatal(err)
	}
	deleted := Event{Kind: EventDeleted, MAC: station(2), Port: s.ids[0], Count: 1}
	s.expectEvents(l, deleted)

	// a reader takes no events from another
	s.expectEvents(other, append(learned, moved, refused, pinned, deleted)...)
}

// Repeated claims on an address are reported once a second, with their number.
func TestEventsOnceASecond(t *testing.T) {
	s := newBench(t, 3)
	s.learn(0, 1)
	s.store(address{station(2), 0}, spot{port: 0, pin: fdbStatic})
	l := s.log()
	move := func(times int) {
		for range times {
			s.learn(1, 1)
			s.learn(0, 1)
		}
	}
	move(10)
	s.expectEvents(l, Event{Kind: EventMoved, MAC: station(1), Port: s.ids[1], From: s.ids[0], Count: 1})
	s.at(benchNow + 1)
	move(5)
	s.expectEvents(l, Event{Kind: EventMoved, MAC: station(1), Port: s.ids[1], From: s.ids[0], Count: 20})
	s.at(benchNow + 2)
	for range 7 {
		s.learn(1, 2)
	}
	s.expectEvents(l, Event{Kind: EventRefusedPinned, MAC: station(2), Port: s.ids[1], From: s.ids[0], Count: 1})
	s.at(benchNow + 3)
	s.learn(1, 2)
	s.expectEvents(l, Event{Kind: EventRefusedPinned, MAC: station(2), Port: s.ids[1], From: s.ids[0], Count: 7})
}

// A reader that comes too late gets the number of missed events, and reads on from
// there.
func TestEventsMissed(t *testing.T) {
	const size, more = 4096, 100 // EVENT_LOG
	s := newBench(t, 2, func(c *Config, _ []*Port) { c.FdbMax = 10000 })
	l := s.log()
	s.learn(0, numbered(0, size+more)...)
	got, missed, err := l.Read()
	if err != nil {
		t.Fatal(err)
	}
	if missed != more || len(got) != size {
		t.Fatalf("%d events and %d missed, want %d and %d", len(got), missed, size, more)
	}
	for i, e := range got {
		if e.Kind != EventLearned || e.MAC != station(more+i) {
			t.Fatalf("event %d is %+v, want station %d", i, e, more+i)
		}
	}
	s.learn(1, 9000)
	s.expectEvents(l, Event{Kind: EventLearned, MAC: station(9000), Port: s.ids[1], Count: 1})
}

// No event is lost or reported twice when several CPUs report events at once.
func TestEventsTogether(t *testing.T) {
	const threads, each = 4, 500
	s := newBench(t, threads, func(c *Config, _ []*Port) { c.FdbMax = threads * each })
	l := s.log()
	err := s.rack.together(threads, func(thread int) error {
		for n := range each {
			if _, err := s.run(hookTCX, s.rack.near[thread], from(thread*each+n)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	got, missed, err := l.Read()
	if err != nil || missed != 0 {
		t.Errorf("%d missed, %v", missed, err)
	}
	seen := map[mac]bool{}
	for _, e := range got {
		if e.Kind != EventLearned || seen[e.MAC] || !slices.Contains(s.ids, e.Port) {
			t.Fatalf("event %+v, seen before: %v", e, seen[e.MAC])
		}
		seen[e.MAC] = true
	}
	if len(seen) != threads*each {
		t.Errorf("%d events, want %d", len(seen), threads*each)
	}
}

// A log goes on through changes of the bridge, and reports addresses that age.
func TestLogOfBridge(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2, func(c *Config, _ []*Port) { c.Ageing = 1 })
	l, err := b.OpenLog()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := s.commit(b, func(c *Config, p []*Port) { c.FdbMax, p[0].Flags = 5000, p[0].Flags|PortHairpin }); err != nil {
		t.Fatal(err)
	}
	port := Ports(&b.Config)[0].Id
	now, err := b.now()
	if err != nil {
		t.Fatal(err)
	}
	word := uint64(now-5)<<32 | uint64(port)
	if _, err := b.control(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: key(station(1), 7), Word: word}); err != nil {
		t.Fatal(err)
	}
	var got []Event
	until(t, "the address ages", func() bool {
		list, _, err := l.Read()
		got = append(got, list...)
		return err != nil || len(got) > 0
	})
	want := []Event{{Kind: EventAged, MAC: station(1), VLAN: 7, Port: port, Count: 1}}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("events (-want +got):\n%s", diff)
	}
}
