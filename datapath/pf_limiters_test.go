// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"bascule/pf"

	"github.com/cilium/ebpf"
)

// A limiterBench is a bridge whose host 1 makes UDP states from given ports.
type limiterBench struct {
	*shelf
	b *Bridge
}

func newLimiterBench(t *testing.T, conf string) *limiterBench {
	s := &limiterBench{shelf: newShelf(t, 2)}
	s.b = s.create("br0", 2)
	s.loadPF(s.b, conf)
	return s
}

// send sends a packet of a host, and returns the number of states after it.
func (s *limiterBench) send(from string, sport int) uint32 {
	s.t.Helper()
	s.run(s.b, 0, udpFrame(2, 1, "192.0.2.100", from, 53, sport))
	info, err := s.b.PFInfo()
	if err != nil {
		s.t.Fatal(err)
	}
	return info.States
}

// want compares the counters of the state limiter or source limiter with id 1.
func (s *limiterBench) want(what string, sources bool, want LimiterCount) {
	s.t.Helper()
	all, err := s.b.Limiters()
	if err != nil {
		s.t.Fatal(err)
	}
	got := all.States[1]
	if sources {
		got = all.Sources[1]
	}
	if got != want {
		s.t.Errorf("%s: the limiter has counted %+v, want %+v", what, got, want)
	}
}

// A limiter bounds the number of states of its rules together, and lets others be made when these
// have gone for any reason. Each counts once, even if two rules name the limiter.
func TestStateLimiter(t *testing.T) {
	conf := "state limiter \"s\" id 1 limit %d\nblock\n" +
		"pass proto udp from 192.0.2.0/25 state limiter s\npass proto udp from 192.0.2.128/25 state limiter id 1\n"
	s := newLimiterBench(t, fmt.Sprintf(conf, 3))
	for i, from := range []string{"192.0.2.1", "192.0.2.129", "192.0.2.2", "192.0.2.3", "192.0.2.130"} {
		if n := s.send(from, 1000); n != uint32(min(i+1, 3)) {
			t.Errorf("%s: %d states", from, n)
		}
	}
	s.want("two too many", false, LimiterCount{States: 3, Admitted: 3, Hard: 2})
	s.send("192.0.2.1", 1000) // its state already exists
	s.want("a second packet", false, LimiterCount{States: 3, Admitted: 3, Hard: 2})
	if n, err := s.b.KillStates(func(st *State) bool { return st.From.Addr.Addr() == netip.MustParseAddr("192.0.2.1") }); n != 1 || err != nil {
		t.Fatalf("%d states are killed, %v", n, err)
	}
	s.want("killed", false, LimiterCount{States: 2, Admitted: 3, Hard: 2})
	s.send("192.0.2.4", 1000)
	s.want("one in its place", false, LimiterCount{States: 3, Admitted: 4, Hard: 2})

	s.loadPF(s.b, fmt.Sprintf(conf, 4)) // states of former rules count
	s.want("other rules", false, LimiterCount{States: 3, Admitted: 4, Hard: 2})
	s.send("192.0.2.5", 1000)
	s.send("192.0.2.6", 1000)
	s.want("a higher limit", false, LimiterCount{States: 4, Admitted: 5, Hard: 3})
	s.loadPF(s.b, fmt.Sprintf(conf, 4), func(_ *Config, p *PF) { p.StatesMax, p.NodesMax = 20000, 20000 })
	s.want("larger tables", false, LimiterCount{States: 4, Admitted: 5, Hard: 3})
	s.loadPF(s.b, "pass\n")
	s.want("no limiter", false, LimiterCount{States: 4, Admitted: 5, Hard: 3})
	if _, err := s.b.FlushStates(); err != nil {
		t.Fatal(err)
	}
	s.want("flushed", false, LimiterCount{Admitted: 5, Hard: 3})
}

// The actions of a rule with an exhausted limiter: the rule blocks, or other rules decide.
func TestLimiterActions(t *testing.T) {
	for action, states := range map[string]uint32{"": 1, " (block)": 1, " (no-match)": 2} {
		s := newLimiterBench(t, "state limiter s id 1 limit 1\npass\npass proto udp state limiter s"+action+"\n")
		s.send("192.0.2.1", 1)
		if n := s.send("192.0.2.1", 2); n != states {
			t.Errorf("limiter%s: %d states, want %d", action, n, states)
		}
	}
}

// The states that a limiter has admitted use up its rate.
func TestLimiterRate(t *testing.T) {
	s := newLimiterBench(t, "state limiter s id 1 limit 100 rate 2/1000\nblock\npass proto udp state limiter s\n")
	for i := range 5 {
		s.send("192.0.2.1", 1000+i)
	}
	s.want("three too fast", false, LimiterCount{States: 2, Admitted: 2, Rate: 3})
	// 500 seconds ago one token was added
	m, err := s.b.openTable(kernelMapPfSources)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	k, n := limiterKey(1, false), kernelPfLimited{}
	if err := m.Lookup(&k, &n); err != nil {
		t.Fatal(err)
	}
	n.Spent -= 600e9
	if err := m.Update(&k, &n, ebpf.UpdateExist); err != nil {
		t.Fatal(err)
	}
	s.send("192.0.2.1", 2000)
	s.send("192.0.2.1", 2001)
	s.want("one in time", false, LimiterCount{States: 3, Admitted: 3, Rate: 4})
}

// Each source, an address or a network, has its limit, and the number of sources is limited, too.
func TestSourceLimiter(t *testing.T) {
	s := newLimiterBench(t, "source limiter s id 1 entries 2 limit 2 inet mask 28\nblock\npass proto udp source limiter s\n")
	for i, from := range []string{"192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.17", "192.0.2.33"} {
		s.send(from, 1000+i)
	}
	s.want("five", true, LimiterCount{States: 3, Sources: 2, Admitted: 3, Hard: 1, Full: 1})
	all, err := s.b.Limiters()
	if err != nil || len(all.List) != 2 {
		t.Fatalf("the sources are %+v, %v", all.List, err)
	}
	for _, l := range all.List {
		want := LimitedSource{Limiter: 1, Addr: netip.MustParsePrefix("192.0.2.0/28"), LimiterCount: LimiterCount{States: 2, Admitted: 2, Hard: 1}}
		if l.Addr != want.Addr {
			want = LimitedSource{Limiter: 1, Addr: netip.MustParsePrefix("192.0.2.16/28"), LimiterCount: LimiterCount{States: 1, Admitted: 1}}
		}
		if l != want {
			t.Errorf("a source is %+v, want %+v", l, want)
		}
	}
	s.loadPF(s.b, "source limiter s id 1 entries 3 limit 2 inet mask 28\nblock\npass proto udp source limiter s\n",
		func(_ *Config, p *PF) { p.NodesMax = 20000 })
	s.want("larger tables", true, LimiterCount{States: 3, Sources: 2, Admitted: 3, Hard: 1, Full: 1})
	if _, err := s.b.FlushStates(); err != nil {
		t.Fatal(err)
	}
	s.want("flushed", true, LimiterCount{Sources: 2, Admitted: 3, Hard: 1, Full: 1})
	s.send("192.0.2.1", 1)
	s.want("again", true, LimiterCount{States: 1, Sources: 2, Admitted: 4, Hard: 1, Full: 1})
}

// A source with too many states is added to the table.
func TestSourceLimiterTable(t *testing.T) {
	s := newLimiterBench(t, "table <bad>\nsource limiter s id 1 entries 9 limit 9 table <bad> above 2\npass proto udp source limiter s\nblock from <bad>\n")
	for i := range 4 {
		s.send("192.0.2.1", 1000+i)
	}
	n := s.send("192.0.2.2", 1000)
	if n != 4 {
		t.Errorf("%d states, want 4", n)
	}
	list, err := s.b.TableEntries(1)
	if err != nil || len(list) != 1 || list[0].String() != "192.0.2.1" {
		t.Errorf("the table has %v, %v", list, err)
	}
}

// A source leaves the table when it has few states, whatever the reason, if the limiter has added
// it. Then networks and other tables match as before.
func TestSourceLimiterBelow(t *testing.T) {
	const bad, other = 1, 2
	s := newLimiterBench(t, "set timeout { udp.first 60, udp.single 60, interval 1 }\n"+
		"table <bad> persist\ntable <other> persist\npass\nblock to <other>\n"+
		"source limiter s id 1 entries 9 limit 9 table <bad> above 2 below 2\npass proto udp source limiter s\n")
	add := func(table int, entries ...string) {
		t.Helper()
		var list []pf.TableEntry
		for _, e := range entries {
			list = append(list, pf.TableEntry{Prefix: netip.MustParsePrefix(e)})
		}
		if n, err := s.b.TableAdd(table, list); err != nil || n != len(entries) {
			t.Fatal(n, err)
		}
	}
	add(bad, "192.0.2.2/32")
	add(other, "192.0.2.1/32")
	table := func(what string, want ...string) {
		t.Helper()
		list, err := s.b.TableEntries(bad)
		if err != nil {
			t.Fatal(err)
		}
		got := []string{}
		for _, e := range list {
			got = append(got, e.String())
		}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%s: the table has %v, want %v", what, got, want)
		}
	}
	matches := func(what string, n int, want bool) {
		t.Helper()
		if got, _, err := s.b.TableTest(n, netip.MustParseAddr("192.0.2.1")); err != nil || got != want {
			t.Errorf("%s: table %d matches the source: %v, want %v; %v", what, n, got, want, err)
		}
	}
	kill := func(from string, n int) {
		t.Helper()
		killed, err := s.b.KillStates(func(st *State) bool {
			if st.From.Addr.Addr().Unmap().String() != from {
				return false
			}
			n--
			return n >= 0
		})
		if err != nil || killed == 0 {
			t.Fatal(killed, err)
		}
	}
	send := func(from string, sport, n int) {
		for i := range n {
			s.send(from, sport+i)
		}
	}
	flush := func() {
		if _, err := s.b.FlushStates(); err != nil {
			t.Fatal(err)
		}
	}
	send("192.0.2.1", 1000, 4)
	table("four states", "192.0.2.1", "192.0.2.2")
	kill("192.0.2.1", 2)
	table("two", "192.0.2.1", "192.0.2.2")
	matches("two", bad, true)
	kill("192.0.2.1", 1)
	table("one", "192.0.2.2")
	matches("one", bad, false)
	matches("one", other, true)
	send("192.0.2.1", 2000, 2)
	table("three again", "192.0.2.1", "192.0.2.2")
	flush()
	table("all flushed", "192.0.2.2")
	send("192.0.2.2", 1000, 4)
	kill("192.0.2.2", 99)
	table("a source that a command has listed", "192.0.2.2")

	// networks come and go while the source is listed
	send("192.0.2.1", 3000, 3)
	add(bad, "192.0.2.0/28")
	flush()
	table("in a network that came", "192.0.2.0/28", "192.0.2.2")
	matches("in a network that came", bad, true)
	send("192.0.2.1", 4000, 3)
	if _, err := s.b.TableDelete(bad, []pf.TableEntry{{Prefix: netip.MustParsePrefix("192.0.2.0/28")}}); err != nil {
		t.Fatal(err)
	}
	flush()
	table("in a network that went", "192.0.2.2")
	matches("in a network that went", bad, false)
	matches("in a network that went", other, true)

	// the sweep alone, without a command or a packet
	s.loadPF(s.b, "set timeout { udp.first 1, udp.single 1, interval 1 }\n"+
		"table <bad> persist\ntable <other> persist\npass\nblock to <other>\n"+
		"source limiter s id 1 entries 9 limit 9 table <bad> above 2 below 2\npass proto udp source limiter s\n")
	send("192.0.2.3", 1000, 3)
	table("three states of a moment", "192.0.2.2", "192.0.2.3")
	until(t, "the sweep takes the source out", func() bool {
		list, err := s.b.TableEntries(bad)
		if err != nil {
			t.Fatal(err)
		}
		return len(list) == 1
	})
}

// A state counts for the limiters of one rule. It has no room for the limiters of two rules.
func TestLimitersOfBothRules(t *testing.T) {
	for rules, want := range map[string]uint32{
		"pass in state limiter a\npass out\n":                 1,
		"pass in\npass out state limiter a\n":                 1,
		"pass in state limiter a\npass out state limiter a\n": 1,
		"pass in state limiter a\npass out state limiter b\n": 0,
	} {
		s := newLimiterBench(t, "state limiter a id 1 limit 1\nstate limiter b id 2 limit 9\nblock\n"+rules)
		s.send("192.0.2.1", 1)
		if n := s.send("192.0.2.1", 2); n != want {
			t.Errorf("%s%d states, want %d", rules, n, want)
		}
	}
}
