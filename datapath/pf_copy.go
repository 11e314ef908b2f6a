// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// copyStates copies the bridge's states to the tables of g, whose configuration is c.
// With late, it copies the states that have changed since they were copied, unless the
// new table has seen their packets since. No program changes the old table by then.
func (b *Bridge) copyStates(g *generation, c *Config, late bool) error {
	from, err := b.states(unix.PROT_READ)
	if err != nil {
		return err
	}
	defer from.close()
	if from.profiles, err = g.profilesOf(c); err != nil {
		return err
	}
	to, err := g.states(c)
	if err != nil {
		return err
	}
	defer to.close()
	g.owed.statesCopied = true
	from.each(func(at uint32, s *kernelPfState) bool {
		place, ok := uint32(0), false
		if late {
			g.owed.state(from, at, s, -1, !g.owed.sourcesCopied)
			if to.gone(s) {
				return true // the new programs have ended it
			}
			place, ok = to.find(s)
		}
		if !ok {
			key, _ := from.stackKey(at, s)
			if to.put(s, &key, from.keptInCopy(at)) {
				g.owed.state(from, at, s, 1, true)
			} // if there is no room, the connection begins anew
			return true
		}
		// Counters only rise: the table with the lower count has missed packets.
		has := &to.states[place]
		if s.sent(0) >= has.sent(0) && s.sent(1) >= has.sent(1) && s.Packets != has.Packets {
			g.owed.state(to, place, has, -1, true)
			other := has.Diff[0]
			*has = *s
			to.keep(place, from.keptInCopy(at))
			if s.Flags&stateTwo != 0 {
				has.Diff[0] = other
			}
			g.owed.state(to, place, has, 1, true)
			return true
		}
		// The new table has seen packets, but not a SYN that came before them.
		if s.Created == has.Created {
			to.keepBegun(place, from.keptInCopy(at))
		}
		return true
	})
	if !late {
		return nil
	}
	to.each(func(place uint32, s *kernelPfState) bool {
		if !from.gone(s) {
			return true
		}
		m := mark(to.hash(s))
		if !atomic.CompareAndSwapUint32(&to.marks[place], m, markClaimed) {
			return true // the new programs have ended it, too
		}
		g.owed.state(to, place, s, -1, true)
		if _, ok := to.stackKey(place, s); ok {
			atomic.StoreUint32(&to.marks[s.Diff[0]-1], 0)
		}
		atomic.StoreUint32(&to.marks[place], 0)
		return true
	})
	return nil
}

// states maps the generation's table of states.
func (g *generation) states(c *Config) (*stateTable, error) {
	m := g.coll.Maps
	t, err := mapStates(m[kernelMapPfBuckets], m[kernelMapPfStates], m[kernelMapPfStamps], c,
		unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return nil, err
	}
	if t.profiles, err = g.profilesOf(c); err != nil {
		t.close()
		return nil, err
	}
	return t, nil
}

// profilesOf returns the profiles of states, nil if no limiter counts any state. A change of rules
// keeps the profiles of present states.
func (g *generation) profilesOf(c *Config) ([]kernelPfProfile, error) {
	if kernelFeature(c.Pf.Features)&kernelFeatureFEATURE_PF_LIMITERS == 0 {
		return nil, nil
	}
	return readArray[kernelPfProfile](g.coll.Maps[kernelMapPfProfiles])
}

// copySources copies the entries of pf_sources to the table of g. With late, it copies the entries
// that have been added since. No program changes the old table by then.
func (g *generation) copySources(from, to *ebpf.Map, late bool) error {
	g.owed.sourcesCopied = true
	return eachOf(from, func(keys []kernelPfSourceKey, values []kernelPfSource) error {
		n := 0
		for i, k := range keys {
			if values[i].States&sourceGoing != 0 {
				continue
			}
			if late {
				g.owed.node(k, -1)
				if !g.owed.statesCopied {
					g.owed.source(k, 1, &values[i])
				}
				err := whileShort(func() error { return to.Update(&k, &values[i], ebpf.UpdateNoExist) })
				if errors.Is(err, ebpf.ErrKeyExist) {
					continue
				}
				if err != nil {
					return err
				}
			}
			g.owed.node(k, 1)
			g.owed.source(k, -1, &values[i])
			keys[n], values[n] = k, values[i]
			n++
		}
		if late || n == 0 {
			return nil
		}
		return putMany(to, keys[:n], values[:n])
	})
}

const sourceGoing = 0x80000000 // PF_SOURCE_GOING

// An amount is the count of a rule (states and sources), or of a source (states and connections).
type amount struct{ states, more int32 }

func (a amount) plus(b amount) amount { return amount{a.states + b.states, a.more + b.more} }

func (a amount) word() uint64 { return uint64(uint32(a.states)) | uint64(uint32(a.more))<<32 }

// A tally has the corrections that all counters of states need after a change of tables. While
// programs are exchanged, the old and the new ones run at the same time. Each of them counts the
// changes in its own table of states, and all use the same counters; copied states are not
// counted. So in the end the counters include both tables, without the copies. They should be the
// counts of the new table: the copies have to be added, and the old table's states subtracted.
//
// If sources are copied, too, each program uses the counters in its own table of sources. The new
// table begins with the copied counts, which need no correction.
type tally struct {
	all     amount            // states, sources
	rules   map[uint16]amount // of the ruleset's rules, by number + 1
	sources map[kernelPfSourceKey]amount

	ruleset                     uint16
	counts                      bool // states count for sources
	statesCopied, sourcesCopied bool // to the new programs' tables
	quiet                       bool // no frame is in the old programs any more
}

func newTally(c *Config) *tally {
	return &tally{
		rules: map[uint16]amount{}, sources: map[kernelPfSourceKey]amount{}, ruleset: c.Pf.Ruleset,
		counts: kernelFeature(c.Features)&kernelFeatureFEATURE_PF_SOURCES != 0,
	}
}

// owe adds to the amount of a key, and removes the key if the sum is zero.
func owe[K comparable](of map[K]amount, k K, more amount) {
	if sum := of[k].plus(more); sum == (amount{}) {
		delete(of, k)
	} else {
		of[k] = sum
	}
}

// state adds a state of a table (n is 1), or subtracts it (-1). With sources, it also does so for
// the sources that count the state.
func (y *tally) state(t *stateTable, place uint32, s *kernelPfState, n int32, sources bool) {
	y.all.states += n
	if s.Ruleset == y.ruleset {
		if s.RuleIn != 0 {
			owe(y.rules, s.RuleIn, amount{states: n})
		}
		if s.RuleOut != 0 && s.RuleOut != s.RuleIn {
			owe(y.rules, s.RuleOut, amount{states: n})
		}
	}
	if !sources || !y.counts {
		return
	}
	t.limiters(place, s, func(k kernelPfSourceKey) { owe(y.sources, k, amount{states: n}) })
	t.counters(place, s, func(by uint32, k kernelPfSourceKey) {
		a := amount{states: n}
		if by == 0 && StateFlags(s.Flags)&kernelPfStateFlagPF_STATE_CONNECTED != 0 {
			a.more = n
		}
		owe(y.sources, k, a)
	})
}

// node adds a source to the number of sources, or subtracts it.
func (y *tally) node(k kernelPfSourceKey, n int32) {
	if k.Kind == uint16(kernelPfSourceKindPF_SOURCE_LIMITED) {
		owe(y.sources, limiterKey(k.Rule, true), amount{more: n})
	}
	if k.Kind >= uint16(kernelPfSourceKindPF_SOURCE_LEAST) {
		return
	}
	y.all.more += n
	if k.Rule != 0 && k.Ruleset == y.ruleset {
		owe(y.rules, k.Rule, amount{more: n})
	}
}

// source adds the counts of a source, or subtracts them.
func (y *tally) source(k kernelPfSourceKey, n int32, s *kernelPfSource) {
	more := n * int32(s.Connections)
	if k.Kind == uint16(kernelPfSourceKindPF_SOURCE_LIMITED) {
		more = 0 // this field is the number of the table that the source is in
	}
	owe(y.sources, k, amount{n * int32(s.States), more})
}

// settle applies the corrections to the counters in g.
func (y *tally) settle(g *generation, c *Config) error {
	_, err := g.control(kernelControl{Op: kernelControlOpCONTROL_PF_RECOUNT, Key: 1, Word: y.all.word()})
	if err != nil {
		return fmt.Errorf("count the states: %w", err)
	}
	for rule, n := range y.rules {
		r := kernelControl{Op: kernelControlOpCONTROL_PF_RECOUNT, Port: uint32(rule), Word: n.word()}
		if _, err := g.control(r); err != nil {
			return fmt.Errorf("count the states of rule %d: %w", rule-1, err)
		}
	}
	lost := map[kernelPfSourceKey]bool{}
	for k, n := range y.sources {
		_, err := g.control(kernelControl{Op: kernelControlOpCONTROL_PF_RECOUNT, Source: k, Word: n.word()})
		switch {
		case errors.Is(err, unix.ENOENT) && k.ofLimiter():
			// the table had no room for it, or its last state has gone: it begins anew
			fresh := kernelPfLimited{States: uint32(max(n.states, 0)), Sources: uint32(max(n.more, 0))}
			if err := g.coll.Maps[kernelMapPfSources].Update(&k, &fresh, ebpf.UpdateNoExist); err != nil &&
				!errors.Is(err, ebpf.ErrKeyExist) {
				return fmt.Errorf("count the states of a limiter: %w", err)
			}
		case errors.Is(err, unix.ENOENT):
			lost[k] = true // its count was too low and reached zero, which removed it
		case err != nil:
			return fmt.Errorf("count the states of a source: %w", err)
		}
	}
	if len(lost) == 0 {
		return nil
	}
	to, err := g.states(c)
	if err != nil {
		return err
	}
	defer to.close()
	return to.untrack(g.control, lost)
}

// missing returns the corrections that g needs, as the difference between its states and its
// counters. They are exact if nothing changes meanwhile, and nearly exact otherwise. It is for a
// change whose command was killed.
func (g *generation) missing(c *Config) (*tally, error) {
	y := newTally(c)
	uses := make([]amount, c.Pf.Rules)
	for i := range uses {
		var u kernelPfRuleUse
		if err := g.coll.Maps[kernelMapPfRuleUse].Lookup(uint32(i), &u); err != nil {
			return nil, fmt.Errorf("what a rule counts: %w", err)
		}
		uses[i] = amount{int32(u.States), int32(u.Nodes)}
	}
	if y.counts {
		sources := g.coll.Maps[kernelMapPfSources]
		err := eachOf(sources, func(keys []kernelPfSourceKey, values []kernelPfSource) error {
			for i, k := range keys {
				y.node(k, 1)
				y.source(k, -1, &values[i])
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	err := g.shared(func(s *kernelShared) {
		y.all = y.all.plus(amount{-int32(s.Pf.States), -int32(s.Pf.Nodes)})
	})
	if err != nil {
		return nil, err
	}
	to, err := g.states(c)
	if err != nil {
		return nil, err
	}
	defer to.close()
	to.each(func(place uint32, s *kernelPfState) bool {
		y.state(to, place, s, 1, true)
		return true
	})
	// rules that were expanded from one line have one count
	rules := map[uint16]amount{}
	for rule, n := range y.rules {
		var r kernelPfRule
		if err := g.coll.Maps[kernelMapPfRules].Lookup(uint32(rule-1), &r); err != nil {
			return nil, fmt.Errorf("a rule: %w", err)
		}
		if r.Flags&keeps == 0 {
			n.states = 0
		}
		owe(rules, uint16(r.First)+1, n)
	}
	for i, u := range uses {
		owe(rules, uint16(i)+1, amount{-u.states, -u.more})
	}
	y.rules = rules
	return y, nil
}

const keeps = kernelPfRuleFlagPF_KEEP | kernelPfRuleFlagPF_MODULATE | kernelPfRuleFlagPF_SYNPROXY // PF_KEEPS

// settle sets the number of states to the number in the table, if neither changes meanwhile.
// Frames that are in a program now have changed both when quiesce returns.
func (t *stateTable) settle(number *uint32) {
	for range 4 {
		was := atomic.LoadUint32(number)
		if quiesce() != nil {
			return // the number stays as it is
		}
		there := uint32(0)
		t.each(func(uint32, *kernelPfState) bool { there++; return true })
		if quiesce() != nil || atomic.CompareAndSwapUint32(number, was, there) {
			return
		}
	}
}

// gone reports whether the table had the state s and has removed it.
func (t *stateTable) gone(s *kernelPfState) bool {
	if _, ok := t.find(s); ok {
		return false
	}
	for _, home := range t.homes(t.hash(s)) {
		for place := home; place < home+stateWays; place++ {
			m := atomic.LoadUint32(&t.marks[place])
			has := &t.states[place]
			if m&(markState|markGone) == markGone && has.Flags&uint16(kernelPfStateFlagPF_STATE_KEY) == 0 &&
				has.Key == s.Key && has.Created == s.Created {
				return true
			}
		}
	}
	return false
}
