// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// A ledger is what the FDB should be: a map, and counters.
type ledger struct {
	table                   map[address]spot
	learned, moves, refused []uint64 // by port
	max                     int
	portMax                 []int // 0 for no limit
	ageing                  uint32
}

func (l *ledger) count(port int) (n int) {
	for _, p := range l.table {
		if p.pin == 0 && (port < 0 || p.port == port) {
			n++
		}
	}
	return n
}

func (l *ledger) portFull(port int) bool {
	return l.portMax[port] != 0 && l.count(port) >= l.portMax[port]
}

// hear applies the effect of a frame.
func (l *ledger) hear(a address, port int, now uint32) {
	old, known := l.table[a]
	switch {
	case !known && (l.count(-1) >= l.max || l.portFull(port)):
		l.refused[port]++
	case !known:
		l.table[a] = spot{port: port, used: now}
		l.learned[port]++
	case old.pin != 0:
		if old.port != port {
			l.refused[port]++
		}
	case old.port == port:
		l.table[a] = spot{port: port, used: now}
	case l.portFull(port):
		l.refused[port]++
	case now-old.used < l.ageing:
		l.table[a] = spot{port: port, used: now}
		l.moves[port]++
	default:
		l.table[a] = spot{port: port, used: now}
		l.learned[port]++
	}
}

// flush removes the entries that match and returns their number.
func (l *ledger) flush(port int, vlan int32, dynamic, pinned bool) int {
	before := len(l.table)
	maps.DeleteFunc(l.table, func(a address, p spot) bool {
		return (port < 0 || p.port == port) && (vlan < 0 || int32(a.vlan) == vlan) &&
			(p.pin != 0 && pinned || p.pin == 0 && dynamic)
	})
	return before - len(l.table)
}

// Random frames and requests, compared with a map.
func TestFDBAgainstMap(t *testing.T) {
	const ports, stations, steps, rounds = 4, 40, 600, 6
	portMax := []int{0, 7, 0, 12}
	s := newBench(t, ports, func(c *Config, p []*Port) {
		c.FdbMax, c.Ageing = 25, 10
		for i := range p {
			p[i].FdbMax = uint32(portMax[i])
		}
	})
	seed := rand.Uint64()
	for round := range uint64(rounds) {
		if _, err := s.request(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1, Pinned: 1}); err != nil {
			t.Fatal(err)
		}
		r := rand.New(rand.NewPCG(seed, round))
		l := &ledger{
			table: map[address]spot{}, max: int(s.cfg.FdbMax), portMax: portMax, ageing: s.cfg.Ageing,
			learned: make([]uint64, ports), moves: make([]uint64, ports), refused: make([]uint64, ports),
		}
		before := s.allStats()
		var history []string
		now := uint32(benchNow)
		s.at(now)
		for range steps {
			a := address{station(r.IntN(stations)), uint16(r.IntN(2) * 10)}
			port := r.IntN(ports)
			var step string
			var got, want int
			var err error
			switch n := r.IntN(100); {
			case n < 70:
				step = fmt.Sprintf("%s heard on port %d", a, port)
				p := packet{dst: broadcast, src: a.mac}
				if a.vlan != 0 {
					p = p.tagged(a.vlan)
				}
				l.hear(a, port, now)
				s.run1(hookTCX, s.rack.near[port], p.bytes())
			case n < 80:
				pin := []uint32{fdbStatic, fdbSticky}[r.IntN(2)]
				step = fmt.Sprintf("%s pinned on port %d", a, port)
				l.table[a] = spot{port: port, pin: pin}
				s.store(a, l.table[a])
			case n < 88:
				step = fmt.Sprintf("%s deleted", a)
				_, known := l.table[a]
				delete(l.table, a)
				if err = s.remove(a); errors.Is(err, unix.ENOENT) != !known {
					t.Errorf("delete: %v, known %v", err, known)
				}
				err = nil
			case n < 92:
				request := kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1}
				if r.IntN(2) == 0 {
					request.Vlan = int32(r.IntN(2) * 10)
				}
				if r.IntN(2) == 0 {
					request.Port = s.ids[port]
				} else {
					port = -1
				}
				request.Dynamic, request.Pinned = uint32(r.IntN(2)), uint32(r.IntN(2))
				step = fmt.Sprintf("flush of port %d %+v", port, request)
				want = l.flush(port, request.Vlan, request.Dynamic != 0, request.Pinned != 0)
				got, err = s.request(request)
			default:
				now += uint32(r.IntN(6))
				step = fmt.Sprintf("clock at %d", now)
				s.at(now)
			}
			history = append(history, step)
			if err != nil || got != want {
				t.Errorf("%s: %d, %v; want %d", step, got, err, want)
			}
			if table := s.fdb(); !maps.Equal(table, l.table) || t.Failed() {
				t.Fatalf("seed %d round %d: FDB\n%v, want\n%v after\n%q", seed, round, table, l.table, history)
			}
		}
		for port, after := range s.allStats()[1:] {
			b := before[port+1]
			got := [...]uint64{after.Learned - b.Learned, after.Moves - b.Moves, after.Refused - b.Refused}
			want := [...]uint64{l.learned[port], l.moves[port], l.refused[port]}
			if got != want {
				t.Errorf("seed %d round %d port %d: learned, moves, refused %v, want %v", seed, round, port, got, want)
			}
		}
	}
}

// A flush with Keep stops when only that many learned entries are left.
func TestFlushKeep(t *testing.T) {
	s := newBench(t, 3)
	s.learn(0, numbered(0, 20)...)
	s.learn(1, numbered(100, 20)...)
	for i := range 5 {
		s.store(address{station(200 + i), 0}, spot{port: 0, pin: fdbStatic})
	}
	for _, tt := range []struct {
		port, keep, removed uint32
	}{
		{0, 50, 0}, {0, 40, 0}, {0, 37, 3}, {s.ids[1], 25, 0}, {s.ids[1], 2, 0}, {0, 12, 25}, {0, 0, 12}, {0, 0, 0},
	} {
		before := s.usage(int(Slot(tt.port)))
		n, err := s.request(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1, Port: tt.port, Keep: tt.keep})
		if err != nil {
			t.Fatal(err)
		}
		want := int(before) - int(min(before, tt.keep))
		if n != want {
			t.Errorf("flush of %#x keeping %d: %d removed, want %d", tt.port, tt.keep, n, want)
		}
		if got, want := s.usage(int(Slot(tt.port))), min(before, tt.keep); got != want {
			t.Errorf("%d left of %d, want %d", got, before, want)
		}
	}
	if n := len(s.fdb()); n != 5 {
		t.Errorf("%d entries left, want 5 static ones", n)
	}
}

func TestControlErrors(t *testing.T) {
	s := newBench(t, 2)
	if err := s.remove(address{station(1), 0}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("delete of an unknown address: %v, want ENOENT", err)
	}
	if _, err := s.request(kernelControl{Op: 99}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("unknown request: %v, want EINVAL", err)
	}
	if n, err := s.request(kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1, Pinned: 1}); n != 0 || err != nil {
		t.Errorf("flush of nothing: %d, %v", n, err)
	}
}

// made are kinds of addresses: functions that return the n-th of a kind, by its name.
func made(r *rand.Rand) map[string]func(n int) mac {
	return map[string]func(n int) mac{
		"sequential": station,
		"reversed": func(n int) (m mac) { // only the first bytes differ
			binary.LittleEndian.PutUint32(m[1:], uint32(n))
			m[0] = 2
			return m
		},
		"random": func(int) (m mac) {
			binary.LittleEndian.PutUint32(m[1:], r.Uint32())
			m[0], m[5] = byte(r.Uint32())&^1, byte(r.Uint32())
			return m
		},
	}
}

// places counts the entries of each bucket of an FDB.
type places struct {
	*Config
	used []uint8
}

func placesOf(c *Config) places { return places{c, make([]uint8, c.FdbBuckets+fdbWindow)} }

// fill adds an entry where fdb_fill() does; false if there is no place for it.
func (p places) fill(a address) bool {
	h := home(p.Config, a.key())
	window := p.used[h : h+fdbWindow]
	i := slices.IndexFunc(window, func(n uint8) bool { return n < fdbWays })
	if i >= 0 {
		window[i]++
	}
	return i >= 0
}

// home is fdb_home().
func home(c *Config, key uint64) uint64 {
	h := (key ^ c.HashSeed) * 0xff51afd7ed558ccd
	h = (h ^ h>>32) * 0xc4ceb9fe1a85ec53
	return h >> 32 * uint64(c.FdbBuckets) >> 32
}

// In a full FDB one address in ten million finds no place, at most. The seeds are
// fixed: a table with such an address is rare, and not a fault.
func TestFDBPlaces(t *testing.T) {
	const count, tables = 100_000, 100
	for name := range made(nil) {
		r := rand.New(rand.NewPCG(1, 0))
		address := made(r)[name]
		c := &Config{kernelConfig{FdbBuckets: buckets(count)}, kernelSettings{}}
		without := 0
		for range tables {
			c.HashSeed = r.Uint64()
			p := placesOf(c)
			for n := range count {
				if !p.fill(addressOf(address(n))) {
					without++
				}
			}
		}
		if most := count * tables / 10_000_000; without > most {
			t.Errorf("%s: %d addresses of %d find no place, at most %d should", name, without, count*tables, most)
		}
	}
}

// The table learns as many addresses as are allowed. Each one that there is a place for
// is found, whether the addresses are consecutive or not.
func TestFDBFull(t *testing.T) {
	const count, ports = 100000, 4
	seed := rand.Uint64()
	for name := range made(nil) {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			address := made(r)[name]
			s := newBench(t, ports+1, func(c *Config, _ []*Port) {
				c.FdbMax, c.HashSeed = count, r.Uint64()
			})
			places := placesOf(&s.cfg)
			prober := packet{src: mac{2, 0xff}, dst: mac{2, 0xfe}}
			for _, m := range []mac{prober.src, prober.dst} {
				s.store(addressOf(m), spot{port: ports, pin: fdbStatic})
				places.fill(addressOf(m))
			}
			macs := make([]mac, 0, count)
			seen := map[mac]bool{prober.src: true, prober.dst: true}
			for n := 0; len(macs) < count; n++ {
				if m := address(n); !seen[m] {
					seen[m] = true
					macs = append(macs, m)
				}
			}
			err := s.rack.do(func() error {
				for n, m := range macs {
					p := packet{dst: prober.src, src: m}
					if _, err := s.run(hookTCX, s.rack.near[n%ports], p.bytes()); err != nil {
						return err
					}
				}
				for _, m := range macs {
					prober.dst = m
					if _, err := s.run(hookTCX, s.rack.near[ports], prober.bytes()); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			table := s.fdb()
			var without int        // addresses that there is no place for
			var refused [ports]int // of these, by their port
			for n, m := range macs {
				p, ok := table[addressOf(m)]
				if !places.fill(addressOf(m)) {
					without++
					refused[n%ports]++
					if ok {
						t.Fatalf("seed %d: there is no place for address %d, and it is at %v", seed, n, p)
					}
				} else if !ok || p.port != n%ports {
					t.Fatalf("seed %d: address %d is at %v, want port %d", seed, n, p, n%ports)
				}
			}
			if len(table) != count+2-without {
				t.Errorf("seed %d: %d addresses, want %d", seed, len(table), count+2-without)
			}
			for port := range ports {
				got := s.stats(port)
				// a frame to an unknown address goes to all ports
				if want := uint64(count/ports - refused[port] + without); got.TxFrames != want {
					t.Errorf("seed %d: %d frames sent to port %d, want %d", seed, got.TxFrames, port, want)
				}
			}
		})
	}
}

func addressOf(m mac) address { return address{m, 0} }

// Several CPUs learn the same addresses at the same time, on one port and on
// several: each is learned once, and counted once.
func TestLearnTogether(t *testing.T) {
	const threads, count, rounds = 4, 1500, 4
	for name, port := range map[string]func(thread int) int{
		"one port":      func(int) int { return 0 },
		"two ports":     func(thread int) int { return thread % 2 },
		"several ports": func(thread int) int { return thread },
	} {
		t.Run(name, func(t *testing.T) {
			for round := range rounds {
				s := newBench(t, threads+1)
				s.store(addressOf(mac{2, 0xff}), spot{port: threads, pin: fdbStatic})
				err := s.rack.together(threads, func(thread int) error {
					for n := range count {
						p := packet{dst: mac{2, 0xff}, src: station(n + round*count)}
						if _, err := s.run(hookTCX, s.rack.near[port(thread)], p.bytes()); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				if n := len(s.fdb()); n != 1000+1 {
					t.Errorf("%d addresses, want 1000, the most allowed, and a static one", n)
				}
			}
		})
	}
}

// Frames, requests and the sweeper together leave a sound table: no address
// twice, no pinned address lost, every count right.
func TestEverythingTogether(t *testing.T) {
	const threads, stations, steps = 3, 60, 4000
	s := newBench(t, threads+1, func(c *Config, p []*Port) {
		c.Ageing = 1
		p[1].FdbMax = 20
	})
	sink := mac{2, 0xff}
	s.store(addressOf(sink), spot{port: threads, pin: fdbStatic})
	if err := s.gen.start(); err != nil {
		t.Fatal(err)
	}
	pinned := map[address]spot{addressOf(sink): {port: threads, pin: fdbStatic}}
	seed := rand.Uint64()
	err := s.rack.together(threads+1, func(thread int) error {
		r := rand.New(rand.NewPCG(seed, uint64(thread)))
		for range steps {
			n := r.IntN(stations)
			if thread < threads {
				p := packet{dst: sink, src: station(n)}
				if _, err := s.run(hookTCX, s.rack.near[thread], p.bytes()); err != nil {
					return err
				}
				continue
			}
			// a single writer, which the lock guarantees
			a := addressOf(station(n))
			switch k := r.IntN(40); {
			case k == 0:
				r := kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1}
				if _, err := s.request(r); err != nil {
					return err
				}
			case k < 30:
				err := s.remove(a)
				if _, was := pinned[a]; was && err != nil {
					return fmt.Errorf("%s was pinned and is not there to be deleted: %w", a, err)
				}
				delete(pinned, a)
			default:
				p := spot{port: r.IntN(threads), pin: fdbStatic}
				_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: a.key(), Word: s.word(p)})
				if err != nil {
					return err
				}
				pinned[a] = p
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("seed %d: %v", seed, err)
	}
	until(t, "all that was learned is freed", func() bool {
		learned := 0
		err := scan(s.gen.coll.Maps[kernelMapFdb], func(_, w uint64) {
			if w&fdbPinned == 0 {
				learned++
			}
		})
		return err != nil || learned == 0
	})
	if table := s.fdb(); !maps.Equal(table, pinned) {
		t.Errorf("seed %d: pinned addresses %v, want %v", seed, table, pinned)
	}
}

// neighbours returns addresses that have the same home bucket.
func (s *bench) neighbours(count int) (list []address) {
	for n := 0; len(list) < count; n++ {
		if a := addressOf(station(n)); home(&s.cfg, a.key()) == 0 {
			list = append(list, a)
		}
	}
	return list
}

// The same few entries are learned, moved, pinned, deleted and flushed at once,
// over and over: no count may drift.
func TestCountsTogether(t *testing.T) {
	const threads, steps = 2, 30000
	tests := []struct {
		name      string
		addresses int
		request   func(a address, n int, s *bench) kernelControl
	}{
		{"move and delete", 1, func(a address, _ int, s *bench) kernelControl {
			return kernelControl{Op: kernelControlOpCONTROL_DELETE, Key: a.key()}
		}},
		{"move and flush", 2, func(_ address, _ int, s *bench) kernelControl {
			return kernelControl{Op: kernelControlOpCONTROL_FLUSH, Vlan: -1, Dynamic: 1}
		}},
		{"neighbours move and are deleted", 4, func(a address, _ int, s *bench) kernelControl {
			return kernelControl{Op: kernelControlOpCONTROL_DELETE, Key: a.key()}
		}},
		{"move, pin and delete", 3, func(a address, n int, s *bench) kernelControl {
			if n%2 == 0 {
				return kernelControl{Op: kernelControlOpCONTROL_STORE, Key: a.key(), Word: s.word(spot{pin: fdbStatic})}
			}
			return kernelControl{Op: kernelControlOpCONTROL_DELETE, Key: a.key()}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newBench(t, threads+1, func(c *Config, _ []*Port) { c.FdbMax = 20 })
			sink := mac{2, 0xff}
			s.store(addressOf(sink), spot{port: threads, pin: fdbStatic})
			list := s.neighbours(tt.addresses)
			err := s.rack.together(threads+1, func(thread int) error {
				if thread == threads {
					for n := range steps {
						a := list[n/2%len(list)]
						_, err := s.request(tt.request(a, n, s))
						if err != nil && !errors.Is(err, unix.ENOENT) {
							return err
						}
					}
					return nil
				}
				for n := range steps {
					// every frame moves the address
					p := packet{dst: sink, src: list[n/2%len(list)].mac}
					if _, err := s.run(hookTCX, s.rack.near[(n+thread)%2], p.bytes()); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			s.fdb()
		})
	}
}

// An address that is pinned stays, even if its first frame comes at the same moment.
func TestPinWhileLearning(t *testing.T) {
	const threads, steps = 2, 10000
	s := newBench(t, threads+1, func(c *Config, _ []*Port) { c.FdbMax = 50 })
	a := addressOf(station(1))
	frame := packet{dst: mac{2, 0xff}, src: a.mac}.bytes()
	s.store(addressOf(mac{2, 0xff}), spot{port: threads, pin: fdbStatic})
	lost := 0
	err := s.rack.together(threads+1, func(thread int) error {
		for range steps {
			if thread < threads {
				if _, err := s.run(hookTCX, s.rack.near[thread], frame); err != nil {
					return err
				}
				continue
			}
			_, err := s.request(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: a.key(), Word: s.word(spot{pin: fdbStatic})})
			if err != nil {
				return err
			}
			word := uint64(0)
			if err := scan(s.gen.coll.Maps[kernelMapFdb], func(k, w uint64) {
				if k == a.key() {
					word |= w
				}
			}); err != nil {
				return err
			}
			if word&fdbStatic == 0 {
				lost++
			}
			if err := s.remove(a); err != nil && word&fdbStatic != 0 {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if lost > 0 {
		t.Errorf("an address was pinned %d times and lost it %d times", steps, lost)
	}
	s.fdb()
}
