// SPDX-License-Identifier: BSD-2-Clause

package answer

import (
	"fmt"
	"strings"

	"bascule/bridge"
	"bascule/pf"
)

// PFRule is a pf rule with its counters.
type PFRule struct {
	Bridge      string   `json:"master"`
	Anchor      string   `json:"anchor,omitempty"`
	Number      int      `json:"number"`
	Rule        string   `json:"rule"` // on one line; an anchor without its rules
	Label       string   `json:"label,omitempty"`
	Labels      []string `json:"labels,omitempty"` // the ones after Label
	Evaluations uint64   `json:"evaluations"`
	PacketsIn   uint64   `json:"packets_in"`
	PacketsOut  uint64   `json:"packets_out"`
	BytesIn     uint64   `json:"bytes_in"`
	BytesOut    uint64   `json:"bytes_out"`
	States      uint64   `json:"states"`
	Created     uint64   `json:"states_created"`
	Expired     bool     `json:"expired,omitempty"` // a once rule that has matched
}

// OfPFRule returns the answer for the rule with the given number in the ruleset at path of a
// bridge.
func OfPFRule(of, path string, number int, r *pf.Rule, n bridge.PFCounts) PFRule {
	head := r
	if r.Anchor != nil {
		call := *r
		call.Anchor = &pf.Anchor{Name: r.Anchor.Name, Only: r.Anchor.Only}
		head = &call
	}
	return PFRule{
		Bridge: of, Anchor: path, Number: number, Rule: head.String(), Label: r.Label, Labels: r.Labels, Evaluations: n.Evaluations,
		PacketsIn: n.Packets[0], PacketsOut: n.Packets[1], BytesIn: n.Bytes[0], BytesOut: n.Bytes[1],
		States: n.States, Created: n.Created, Expired: n.Spent,
	}
}

// OfPFRules returns the answers for the rules of a bridge's ruleset that take selects, including
// rules in unnamed anchors. With all, it includes the rules of all anchors below.
func OfPFRules(of string, rules bridge.PFRules, all bool, take func(*pf.Rule) bool) []PFRule {
	list := []PFRule{}
	var walk func(set *pf.Ruleset, path string)
	walk = func(set *pf.Ruleset, path string) {
		for i := range set.Rules {
			r := &set.Rules[i]
			if take(r) {
				list = append(list, OfPFRule(of, path, i, r, rules.Counts[r]))
			}
			if body, at := rules.Body(path, i, r); body != nil && (all || r.Anchor.Name == "") {
				walk(body, at)
			}
			if above, several := PFAnchorsBelow(path, i, r); several && all {
				for _, name := range rules.Below(above) {
					if body := rules.Anchors[pf.AnchorPath(above, name)]; body != nil {
						walk(body, pf.AnchorPath(above, name))
					}
				}
			}
		}
	}
	walk(rules.Set, rules.Path)
	return list
}

// PFAnchorsBelow returns the path below which a rule calls all direct anchors.
func PFAnchorsBelow(path string, index int, r *pf.Rule) (above string, several bool) {
	if r.Anchor == nil {
		return "", false
	}
	above, several = strings.CutSuffix(pf.BodyPath(path, index, r), "*")
	return strings.Trim(above, "/"), several
}

// PFState is a state: a connection of pf.
type PFState struct {
	Bridge   string    `json:"master"`
	ID       string    `json:"id"`
	Protocol string    `json:"protocol"`
	VLAN     uint16    `json:"vlan,omitempty"`
	Src      string    `json:"src"`
	SrcPort  uint16    `json:"src_port,omitempty"`
	Dst      string    `json:"dst"`
	DstPort  uint16    `json:"dst_port,omitempty"`
	SrcState string    `json:"src_state"`
	DstState string    `json:"dst_state"`
	In       string    `json:"in,omitempty"`
	Out      string    `json:"out,omitempty"`
	Bound    string    `json:"bound_to,omitempty"`
	Age      float64   `json:"age"`     // seconds
	Expires  float64   `json:"expires"` // seconds until it expires
	Packets  [2]uint64 `json:"packets"` // from src, from dst
	Bytes    [2]uint64 `json:"bytes"`
	Anchor   string    `json:"anchor,omitempty"`
	Rule     *int      `json:"rule,omitempty"`
	Label    string    `json:"label,omitempty"`
	// Translated has the addresses of the first packet after translation.
	Translated *PFTranslated `json:"translated,omitempty"`
	// Route is the rule's word for a next hop: route-to, reply-to or dup-to.
	Route   string `json:"route,omitempty"`
	NextHop string `json:"next_hop,omitempty"` // its address
	Divert  string `json:"divert,omitempty"`   // the rule's words about the divert socket
}

// PFTranslated are addresses and ports after a translation.
type PFTranslated struct {
	Src     string `json:"src"`
	SrcPort uint16 `json:"src_port,omitempty"`
	Dst     string `json:"dst"`
	DstPort uint16 `json:"dst_port,omitempty"`
}

// OfPFState returns the answer for a state of a bridge.
func OfPFState(of string, st bridge.PFState) PFState {
	a := PFState{
		Bridge: of, ID: fmt.Sprintf("%016x", st.ID), Protocol: pf.ProtocolName(st.Proto), VLAN: st.VLAN,
		Src: st.Src.Addr.String(), SrcPort: st.Src.Port, Dst: st.Dst.Addr.String(), DstPort: st.Dst.Port,
		SrcState: st.Src.State, DstState: st.Dst.State, In: st.In, Out: st.Out, Bound: st.Port,
		Age: st.Age.Seconds(), Expires: st.Expires.Seconds(),
		Packets: [2]uint64{st.Src.Packets, st.Dst.Packets}, Bytes: [2]uint64{st.Src.Bytes, st.Dst.Bytes},
		Anchor: st.Anchor, Label: st.Label,
	}
	if st.Rule >= 0 {
		a.Rule = &st.Rule
	}
	if t := st.Translated; t != nil {
		a.Translated = &PFTranslated{t[0].Addr.String(), t[0].Port, t[1].Addr.String(), t[1].Port}
	}
	if st.Hop.IsValid() {
		a.Route, a.NextHop = st.Route.String(), st.Hop.String()
	}
	if st.Divert != nil {
		a.Divert = st.Divert.String()
	}
	return a
}

// PFSource is a tracked source.
type PFSource struct {
	Bridge      string  `json:"master"`
	Address     string  `json:"address"`
	Given       string  `json:"given,omitempty"` // its address from a pool
	VLAN        uint16  `json:"vlan,omitempty"`
	States      uint32  `json:"states"`
	Connections uint32  `json:"connections"`
	Rate        float64 `json:"rate"` // connections within RateTime
	RateTime    float64 `json:"rate_seconds"`
	Age         float64 `json:"age"`     // seconds
	Expires     float64 `json:"expires"` // seconds until then
	Rule        *int    `json:"rule,omitempty"`
}

// OfPFSource returns the answer for a tracked source of a bridge.
func OfPFSource(of string, n bridge.PFSource) PFSource {
	a := PFSource{
		Bridge: of, Address: n.Addr.String(), VLAN: n.VLAN, States: n.States, Connections: n.Connections,
		Rate: n.Rate, RateTime: n.RateTime.Seconds(), Age: n.Age.Seconds(), Expires: n.Expires.Seconds(),
	}
	if n.Rule >= 0 {
		a.Rule = &n.Rule
	}
	if n.Given.IsValid() {
		a.Given = n.Given.String()
	}
	return a
}

// PFInfo is the status of a bridge's pf.
type PFInfo struct {
	Bridge     string            `json:"master"`
	Enabled    bool              `json:"enabled"`
	For        float64           `json:"seconds"` // since the last change of enabled
	Debug      string            `json:"debug"`
	States     uint64            `json:"states"`
	HalfOpen   uint64            `json:"half_open_tcp"`
	Sources    uint64            `json:"source_nodes"`
	StateTable map[string]uint64 `json:"state_table"`
	Counters   map[string]uint64 `json:"counters"`
	Limits     map[string]uint64 `json:"limit_counters"`
}

// OfPFInfo returns the answer for pf of a bridge.
func OfPFInfo(of string, info bridge.PFInfo) PFInfo {
	byName := func(list []bridge.PFCounter) map[string]uint64 {
		m := map[string]uint64{}
		for _, n := range list {
			m[n.Name] = n.Count
		}
		return m
	}
	return PFInfo{
		Bridge: of, Enabled: info.Enabled, For: max(0, info.For.Seconds()), Debug: info.Debug,
		States: info.States, HalfOpen: info.HalfOpen, Sources: info.Sources,
		StateTable: byName(info.StateTable), Counters: byName(info.Counters), Limits: byName(info.LimitCounters),
	}
}

// PFTable is a table of addresses.
type PFTable struct {
	Bridge    string   `json:"master"`
	Anchor    string   `json:"anchor,omitempty"`
	Name      string   `json:"name"`
	Flags     []string `json:"flags"` // "const", "persist", "counters"
	Addresses int      `json:"addresses"`
	Rules     int      `json:"references"` // rules that name it
}

// OfPFTable returns the answer for a table of a bridge.
func OfPFTable(of string, t bridge.PFTable) PFTable {
	a := PFTable{Bridge: of, Anchor: t.Anchor, Name: t.Name, Flags: []string{}, Addresses: t.Addresses, Rules: t.Rules}
	for _, f := range []struct {
		set  bool
		name string
	}{{t.Const, "const"}, {t.Persist, "persist"}, {t.Counters, "counters"}} {
		if f.set {
			a.Flags = append(a.Flags, f.name)
		}
	}
	return a
}

// PFPort is a port or port group in pf.
type PFPort struct {
	Bridge string `json:"master"`
	Name   string `json:"ifname"`
	Group  bool   `json:"group"` // a group of ports
	Skip   bool   `json:"skip"`  // from 'set skip'
}

// OfPFPorts returns the answers for the ports of a bridge in pf.
func OfPFPorts(of string, info bridge.PFInfo) []PFPort {
	return List(info.Ports, func(p bridge.PFPort) PFPort { return PFPort{Bridge: of, Name: p.Name, Group: p.Group, Skip: p.Skip} })
}

// OfPFTimeouts returns timeouts by name, in seconds; the adaptive ones are numbers of states.
func OfPFTimeouts(info bridge.PFInfo) map[string]uint32 {
	values := map[string]uint32{}
	for i, v := range info.Timeouts {
		values[pf.TimeoutName(i).String()] = v
	}
	return values
}

// PFLimits are limits, and the memory of tables now in bytes, by purpose.
type PFLimits struct {
	States       uint32            `json:"states"`
	Sources      uint32            `json:"src-nodes"`
	Fragments    uint32            `json:"frags"`
	Tables       uint32            `json:"tables"`
	TableEntries uint32            `json:"table-entries"`
	Anchors      uint32            `json:"anchors"`
	Memory       map[string]uint64 `json:"memory"`
}

// OfPFLimits returns the answer for limits.
func OfPFLimits(info bridge.PFInfo) PFLimits {
	l := info.Limits
	a := PFLimits{
		States: l[pf.LimitStates], Sources: l[pf.LimitSrcNodes], Fragments: l[pf.LimitFrags], Tables: l[pf.LimitTables],
		TableEntries: l[pf.LimitTableEntries], Anchors: l[pf.LimitAnchors], Memory: map[string]uint64{},
	}
	for _, m := range info.Memory {
		a.Memory[m.Name] = m.Bytes
	}
	return a
}

// PFTableChange is the result of a table change.
type PFTableChange struct {
	Created bool `json:"created"` // the table
	Added   int  `json:"added"`   // addresses, like the next two
	Deleted int  `json:"deleted"`
	Changed int  `json:"changed"`
}

// OfPFTableChange returns the answer for the change of a table.
func OfPFTableChange(c bridge.PFTableChange) PFTableChange {
	return PFTableChange{c.Created, c.Added, c.Deleted, c.Changed}
}

// PFLimiter is a limiter of pf, in the format of `pfctl -s LimiterStates -j`.
type PFLimiter struct {
	Bridge      string      `json:"master"`
	ID          uint8       `json:"id"`
	Name        string      `json:"name"`
	Limit       uint32      `json:"limit"`
	RateStates  uint32      `json:"rate_states,omitempty"`
	RateSeconds uint32      `json:"rate_seconds,omitempty"`
	Entries     uint32      `json:"entries,omitempty"`
	Addresses   uint32      `json:"addresses,omitempty"`
	States      uint32      `json:"states"`
	Admitted    uint64      `json:"admitted"`
	AddrLimited uint32      `json:"addr_limited,omitempty"`
	HardLimited uint64      `json:"hard_limited"`
	RateLimited uint64      `json:"rate_limited"`
	Sources     []PFLimited `json:"sources,omitempty"`
}

// PFLimited is a source in a source limiter.
type PFLimited struct {
	Address     string `json:"address"`
	VLAN        uint16 `json:"vlan,omitempty"`
	States      uint32 `json:"states"`
	Admitted    uint64 `json:"admitted"`
	HardLimited uint64 `json:"hard_limited"`
	RateLimited uint64 `json:"rate_limited"`
}

// OfPFLimiter returns the answer for a limiter.
func OfPFLimiter(bridgeName string, l bridge.PFLimiter) PFLimiter {
	out := PFLimiter{
		Bridge: bridgeName, ID: l.ID, Name: l.Name, Limit: l.Limit, RateStates: l.Rate.Number, RateSeconds: l.Rate.Seconds,
		Entries: l.Entries, Addresses: l.Addresses, States: l.States, Admitted: l.Admitted, AddrLimited: l.AddrFull,
		HardLimited: l.HardLimited, RateLimited: l.RateLimited,
	}
	for _, n := range l.Sources {
		out.Sources = append(out.Sources, PFLimited{n.Addr.String(), n.VLAN, n.States, n.Admitted, n.HardLimited, n.RateLimited})
	}
	return out
}
