// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/pf"
	"bascule/pflog"
)

// fakePF is pf of the bridges of a fakeSwitch: it has the rules that were loaded, with constant
// states and counters.
type fakePF struct {
	enabled bool
	debug   string
	set     *pf.Ruleset
	anchors map[string]*pf.Ruleset
	tables  map[string][]pf.TableEntry
}

func (f *fakeSwitch) LoadPF(bridge string, o bridge.PFLoad) (*pf.Ruleset, []string, error) {
	f.call("LoadPF %s %s anchor=%s check=%t tables=%t", bridge, o.Name, o.Anchor, o.Check, o.TablesOnly)
	set, err := pf.Parse(o.Name, o.Text, o.Source)
	if err != nil {
		return nil, nil, err
	}
	switch {
	case o.Check:
	case o.Anchor == "":
		f.pf.set, f.pf.enabled = set, true
	default:
		if f.pf.anchors == nil {
			f.pf.anchors = map[string]*pf.Ruleset{}
		}
		f.pf.anchors[o.Anchor] = set
	}
	return set, nil, nil
}

func (f *fakeSwitch) EnablePF(bridge string, on bool) error {
	f.call("EnablePF %s %t", bridge, on)
	if f.pf.enabled == on {
		return fmt.Errorf("cannot change pf of %s: it is so already; see -si", bridge)
	}
	f.pf.enabled = on
	return nil
}

func (f *fakeSwitch) SetPFDebug(bridge, level string) error {
	f.call("SetPFDebug %s %s", bridge, level)
	f.pf.debug = level
	return nil
}

func (f *fakeSwitch) FlushPF(bridge, anchor, which string) (int, error) {
	f.call("FlushPF %s %q %s", bridge, anchor, which)
	return 2, nil
}

func (f *fakeSwitch) ZeroPF(bridge string) error {
	f.call("ZeroPF %s", bridge)
	return nil
}

func (f *fakeSwitch) PF(name string) (bridge.PFInfo, error) {
	_, err := f.find(name)
	return bridge.PFInfo{
		Bridge: name, Enabled: f.pf.enabled, For: 62 * time.Second, Debug: "err", HostID: 0xfe, Checksum: [16]byte{1, 2, 3},
		States: 3, HalfOpen: 1, Sources: 1,
		StateTable:    []bridge.PFCounter{{Name: "searches", Count: 620}, {Name: "inserts", Count: 5}, {Name: "removals", Count: 2}},
		Counters:      []bridge.PFCounter{{Name: "match", Count: 31}},
		LimitCounters: []bridge.PFCounter{{Name: "max states per rule", Count: 4}},
		Timeouts:      pf.DefaultTimeouts(), Limits: pf.DefaultLimits(),
		Memory: []bridge.PFMemory{{Name: "states", Bytes: 16 << 20}, {Name: "rules", Bytes: 5000}},
		Ports:  []bridge.PFPort{{Name: "p1"}, {Name: "p2", Skip: true}},
	}, err
}

func (f *fakeSwitch) PFRules(name, anchor string) (bridge.PFRules, error) {
	rules := bridge.PFRules{Path: anchor, Set: f.pf.set, Anchors: map[string]*pf.Ruleset{}, Counts: map[*pf.Rule]bridge.PFCounts{}}
	if rules.Set == nil {
		rules.Set = &pf.Ruleset{}
	}
	for path, set := range f.pf.anchors {
		rules.Anchors[path] = set
	}
	var note func(path string, set *pf.Ruleset)
	note = func(path string, set *pf.Ruleset) {
		rules.Anchors[path] = set
		for i := range set.Rules {
			r := &set.Rules[i]
			rules.Counts[r] = bridge.PFCounts{
				Evaluations: 10, Packets: [2]uint64{3, 2}, Bytes: [2]uint64{300, 120}, Created: uint64(i + 1), States: 1,
			}
			if r.Anchor != nil && r.Anchor.Body != nil {
				note(pf.BodyPath(path, i, r), r.Anchor.Body)
			}
		}
	}
	note("", rules.Set)
	if anchor != "" {
		if rules.Set = rules.Anchors[anchor]; rules.Set == nil {
			return rules, fmt.Errorf("cannot show pf of %s: there is no anchor %s; see -s Anchors", name, anchor)
		}
	}
	return rules, nil
}

func (f *fakeSwitch) PFAnchors(_, anchor string, all bool) ([]string, error) {
	f.call("PFAnchors %q %t", anchor, all)
	if all {
		return []string{"ftp", "ftp/a"}, nil
	}
	return []string{"ftp"}, nil
}

func (f *fakeSwitch) PFStates(_ string, k bridge.PFKill) ([]bridge.PFState, error) {
	f.call("PFStates port=%s", k.Port)
	peer := func(addr string, port uint16, state string, packets, bytes uint64) bridge.PFPeer {
		return bridge.PFPeer{
			PFAddress: bridge.PFAddress{Addr: netip.MustParseAddr(addr), Port: port}, State: state,
			Packets: packets, Bytes: bytes, Low: 100, High: 1100, Scale: 7,
		}
	}
	return []bridge.PFState{
		{
			ID: 0x1a, Proto: 6, Src: peer("10.0.0.1", 51234, "ESTABLISHED", 10, 840), Dst: peer("10.0.0.2", 80, "ESTABLISHED", 8, 600),
			Age: 5 * time.Second, Expires: 24 * time.Hour, Rule: 1, In: "p1", Out: "p2",
		},
		{
			ID: 0x1b, Port: "p2", Proto: 17, VLAN: 10, Src: peer("2001:db8::1", 4000, "MULTIPLE", 1, 99), Dst: peer("2001:db8::2", 53, "SINGLE", 1, 120),
			Age: 3661 * time.Second, Expires: 30 * time.Second, Rule: -1, Sloppy: true, Tracked: true,
		},
		{ID: 0x1c, Proto: 1, Src: peer("10.0.0.1", 7, "0", 1, 98), Dst: peer("10.0.0.2", 7, "0", 1, 98), Anchor: "ftp", Rule: 0},
	}, nil
}

func (f *fakeSwitch) KillPFStates(name string, k bridge.PFKill) (int, error) {
	call := fmt.Sprintf("KillPFStates %s from=%v to=%v port=%s id=%x", name, k.From, k.To, k.Port, k.ID)
	if k.Label != nil {
		call += " label=" + *k.Label
	}
	if k.Key != nil {
		call += fmt.Sprintf(" key=%v", *k.Key)
	}
	if k.Gateway != nil {
		call += fmt.Sprintf(" gateway=%v", k.Gateway)
	}
	if k.Both {
		call += " both"
	}
	f.call("%s", call)
	return 2, nil
}

func (f *fakeSwitch) PFSources(string) ([]bridge.PFSource, error) {
	return []bridge.PFSource{{
		Addr: netip.MustParseAddr("10.0.0.1"), States: 1, Connections: 2, Rate: 0.5, RateTime: 10 * time.Second,
		Age: 4 * time.Second, Rule: 3,
	}}, nil
}

func (f *fakeSwitch) PFLimiters(_ string, sources bool) ([]bridge.PFLimiter, error) {
	l := bridge.PFLimiter{
		ID: 1, Name: "server", Limit: 1000, Rate: pf.Rate{Number: 1, Seconds: 5},
		PFLimiterCount: bridge.PFLimiterCount{States: 3, Admitted: 7, HardLimited: 0, RateLimited: 2},
	}
	if !sources {
		return []bridge.PFLimiter{l, {ID: 9, Name: "all", Limit: 5}}, nil
	}
	l.Entries, l.Addresses, l.AddrFull = 128, 1, 4
	l.Sources = []bridge.PFLimited{{Addr: netip.MustParsePrefix("192.0.2.2/32"), PFLimiterCount: l.PFLimiterCount}}
	return []bridge.PFLimiter{l}, nil
}

func (f *fakeSwitch) KillPFSources(name string, k bridge.PFKill) (int, error) {
	f.call("KillPFSources %s from=%v to=%v", name, k.From, k.To)
	return 1, nil
}

func (f *fakeSwitch) PFTables(string, string) (list []bridge.PFTable, err error) {
	for name, entries := range f.pf.tables {
		list = append(list, bridge.PFTable{Name: name, Persist: true, Addresses: len(entries), Rules: 2, Cleared: time.Unix(0, 0).UTC()})
	}
	slices.SortFunc(list, func(a, b bridge.PFTable) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

func (f *fakeSwitch) noTable(name string) error {
	if _, ok := f.pf.tables[name]; !ok {
		return fmt.Errorf("cannot use table %s: Table does not exist; see -s Tables", name)
	}
	return nil
}

func (f *fakeSwitch) PFTable(_, _, name string) (list []bridge.PFTableEntry, err error) {
	for _, e := range f.pf.tables[name] {
		list = append(list, bridge.PFTableEntry{TableEntry: e, Cleared: time.Unix(0, 0).UTC()})
	}
	return list, f.noTable(name)
}

func (f *fakeSwitch) ChangePFTable(_, anchor, name string, action bridge.PFTableAction, entries []pf.TableEntry, check bool) (done bridge.PFTableChange, err error) {
	f.call("ChangePFTable %q %s %d %v%s", anchor, name, action, entries, dummy(check))
	if f.pf.tables == nil {
		f.pf.tables = map[string][]pf.TableEntry{}
	}
	had, ok := f.pf.tables[name]
	had = slices.Clone(had)
	done.Entries = entries
	for _, e := range entries {
		mark := byte(' ')
		there := slices.Contains(had, e)
		switch {
		case action == bridge.AddPFEntries && !there:
			had, mark = append(had, e), 'A'
			done.Added++
		case action == bridge.TestPFEntries && there:
			mark = 'M'
			done.Matched++
		case action == bridge.DeletePFEntries && there:
			had, mark = slices.DeleteFunc(had, func(o pf.TableEntry) bool { return o == e }), 'D'
			done.Deleted++
		}
		done.Marks = append(done.Marks, mark)
	}
	if action == bridge.AddPFEntries {
		done.Created = !ok
	} else if !ok {
		return done, f.noTable(name)
	}
	if !check {
		f.pf.tables[name] = had
	}
	return done, nil
}

func (f *fakeSwitch) FlushPFTable(_, _, name string, check bool) (int, error) {
	f.call("FlushPFTable %s%s", name, dummy(check))
	n := len(f.pf.tables[name])
	if !check {
		f.pf.tables[name] = nil
	}
	return n, nil
}

func (f *fakeSwitch) KillPFTable(_, _, name string, check bool) (int, error) {
	f.call("KillPFTable %s%s", name, dummy(check))
	err := f.noTable(name)
	if !check {
		delete(f.pf.tables, name)
	}
	return 1, err
}

func (f *fakeSwitch) ZeroPFTable(_, _, name string, check bool) error {
	f.call("ZeroPFTable %s%s", name, dummy(check))
	return f.noTable(name)
}

// PFHost resolves only the interface p1.
func (f *fakeSwitch) PFHost(name string, hosts func(string, []string) ([]netip.Prefix, error)) ([]netip.Prefix, error) {
	f.call("PFHost %s hosts=%t", name, hosts != nil)
	if name == "p1" {
		return []netip.Prefix{netip.MustParsePrefix("10.9.0.1/32")}, nil
	}
	return nil, fmt.Errorf("there is no %s", name)
}

func (f *fakeSwitch) Force() { f.call("Force") }

// dummy marks a call that should change nothing.
func dummy(check bool) string {
	if check {
		return " check"
	}
	return ""
}

func (f *fakeSwitch) PFLog(_ context.Context, name string, report func(bridge.PFLogged) error) (uint64, error) {
	f.call("PFLog %s", name)
	if _, err := f.find(name); err != nil {
		return 0, err
	}
	packet := []byte{0x45, 0, 0, 28, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2, 0x03, 0xe8, 0, 53, 0, 8, 0, 0}
	for i, r := range []pflog.Record{
		{Interface: "p1", Rule: 3, Subrule: pflog.NoSubrule, Action: pflog.Block},
		{Interface: "p2", Ruleset: "ftp/a", Rule: 4, Subrule: 1, Action: pflog.Pass, Out: true},
		{Interface: "p1", Rule: -1, Subrule: pflog.NoSubrule, Action: pflog.Block, Reason: pflog.Fragment},
	} {
		r.Time, r.Family, r.Length, r.Data = time.Unix(1, 5000).UTC(), 4, len(packet), packet
		if err := report(bridge.PFLogged{Record: r, Number: i % 2}); err != nil {
			return 0, err
		}
	}
	return 2, nil
}
