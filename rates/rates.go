// SPDX-License-Identifier: BSD-2-Clause

// Package rates makes rates of counters that were read twice. Time is the
// time that really passed, and where two readings cannot be compared there is
// no rate rather than a wrong one.
package rates

import (
	"maps"
	"slices"
	"time"

	"bascule/bridge"
)

// Port is how fast the counters of a port rose.
type Port struct {
	bridge.Port // as it was last read

	// Known says that there are rates: the port was there before, with
	// counters that have only risen since. Otherwise what follows is zero.
	Known              bool
	RxFrames, TxFrames float64            // a second
	RxBits, TxBits     float64            // a second, of the frames without preamble and checksum
	Drops              map[string]float64 // frames a second by reason; only those above zero
}

// Dropped is the rate of all drops together.
func (p Port) Dropped() float64 {
	var sum float64
	for _, reason := range slices.Sorted(maps.Keys(p.Drops)) { // in one order: the sum is the same each time
		sum += p.Drops[reason]
	}
	return sum
}

// Talker is how fast the counters of an address rose.
type Talker struct {
	bridge.Talker // as it was last read

	Known        bool    // as in Port
	Frames, Bits float64 // a second
}

// A Meter remembers the last reading. The zero Meter has none.
type Meter struct {
	at      time.Time
	ports   map[portKey]bridge.Port
	talkers map[talkerKey]bridge.Talker
}

type portKey struct{ bridge, name string }

// An address that is heard on another port is counted there anew.
type talkerKey struct {
	mac  string
	vlan uint16
	port string
}

// Read takes a reading of ports and talkers, and returns their rates since the
// last one, in the order given, and the time between the two readings, which
// is 0 for the first. What is not in this reading is forgotten.
func (m *Meter) Read(at time.Time, ports []bridge.Port, talkers []bridge.Talker) ([]Port, []Talker, time.Duration) {
	var elapsed time.Duration
	if !m.at.IsZero() {
		elapsed = at.Sub(m.at)
	}
	seconds := elapsed.Seconds()

	nowPorts := make(map[portKey]bridge.Port, len(ports))
	portRates := make([]Port, 0, len(ports))
	for _, p := range ports {
		key := portKey{p.Bridge, p.Name}
		before, ok := m.ports[key]
		r := Port{Port: p}
		if ok && elapsed > 0 && risen(before.Stats, p.Stats) {
			r.Known = true
			r.RxFrames = float64(p.Stats.RxFrames-before.Stats.RxFrames) / seconds
			r.TxFrames = float64(p.Stats.TxFrames-before.Stats.TxFrames) / seconds
			r.RxBits = 8 * float64(p.Stats.RxBytes-before.Stats.RxBytes) / seconds
			r.TxBits = 8 * float64(p.Stats.TxBytes-before.Stats.TxBytes) / seconds
			r.Drops = map[string]float64{}
			for reason, n := range p.Stats.Drops {
				if n > before.Stats.Drops[reason] {
					r.Drops[reason] = float64(n-before.Stats.Drops[reason]) / seconds
				}
			}
		}
		portRates = append(portRates, r)
		nowPorts[key] = p
	}

	nowTalkers := make(map[talkerKey]bridge.Talker, len(talkers))
	talkerRates := make([]Talker, 0, len(talkers))
	for _, t := range talkers {
		key := talkerKey{string(t.MAC), t.VLAN, t.Port}
		before, ok := m.talkers[key]
		r := Talker{Talker: t}
		if ok && elapsed > 0 && t.Frames >= before.Frames && t.Bytes >= before.Bytes {
			r.Known = true
			r.Frames = float64(t.Frames-before.Frames) / seconds
			r.Bits = 8 * float64(t.Bytes-before.Bytes) / seconds
		}
		talkerRates = append(talkerRates, r)
		nowTalkers[key] = t
	}
	m.at, m.ports, m.talkers = at, nowPorts, nowTalkers
	return portRates, talkerRates, elapsed
}

// risen reports whether no counter fell. One that did belongs to a port that
// was taken off and added again.
func risen(before, now bridge.Stats) bool {
	for reason, n := range before.Drops {
		if now.Drops[reason] < n {
			return false
		}
	}
	return now.RxFrames >= before.RxFrames && now.RxBytes >= before.RxBytes &&
		now.TxFrames >= before.TxFrames && now.TxBytes >= before.TxBytes &&
		now.Learned >= before.Learned && now.Moves >= before.Moves && now.Refused >= before.Refused
}
