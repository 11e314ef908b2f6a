// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"cmp"
	"crypto/md5"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"bascule/datapath"
	"bascule/pf"

	"github.com/vishvananda/netlink"
)

// pfView is a bridge's pf for readers, with the rules by number.
type pfView struct {
	*pfConfig
	b     *datapath.Bridge
	ports map[uint32]pf.CompilePort // by id
	rules []pf.RuleRef              // by the datapath's number

	timeouts [pf.TimeoutCount]uint32
	checksum [md5.Size]byte // of the main rules
}

// viewPF runs f with pf of a bridge.
func (s *Switch) viewPF(bridge string, f func(*pfView) error) error {
	return s.each(showWhat("pf", bridge), bridge, func(_ string, b *datapath.Bridge) error {
		v, err := newPFView(b)
		if err != nil {
			return err
		}
		return f(v)
	})
}

func newPFView(b *datapath.Bridge) (*pfView, error) {
	devices, err := links()
	if err != nil {
		return nil, err
	}
	text, err := b.PFText()
	if err != nil {
		return nil, err
	}
	ports, err := pfPortsAmong(devices, b, true)
	if err != nil {
		return nil, err
	}
	return pfViewOf(b, text, ports)
}

// pfViewOf does the same as newPFView, with the stored text and the given ports.
func pfViewOf(b *datapath.Bridge, text []byte, ports pfPorts) (*pfView, error) {
	d, err := parsePF(b, text)
	if err != nil {
		return nil, err
	}
	v := &pfView{pfConfig: d, b: b, ports: ports.byID, timeouts: pf.DefaultTimeouts()}
	if d.loaded {
		program, err := d.compile(b, ports.list, nil)
		if err != nil {
			return nil, err
		}
		v.rules, v.timeouts = program.Source, program.Timeouts
	}
	rules := pf.Ruleset{Rules: d.main.Rules}
	v.checksum = md5.Sum([]byte(rules.String()))
	return v, nil
}

// A pfSeen is a pfView that remains valid until pf changes or a port gets another name. It saves
// parsing the rules, which takes long.
type pfSeen struct {
	text []byte
	said map[uint32]string
	view *pfView
}

// seenPF does the same as newPFView for repeated readers, with the given devices of the namespace.
func (s *Switch) seenPF(devices map[int]netlink.Link, name string, b *datapath.Bridge) (*pfView, error) {
	text, err := b.PFText()
	if err != nil {
		return nil, err
	}
	ports, err := pfPortsAmong(devices, b, bytes.Contains(text, []byte(egressGroup)))
	if err != nil {
		return nil, err
	}
	s.seenLock.Lock()
	defer s.seenLock.Unlock()
	seen := s.seen[name]
	if seen == nil || !bytes.Equal(seen.text, text) || !maps.Equal(seen.said, ports.said) {
		v, err := pfViewOf(b, text, ports)
		if err != nil {
			return nil, err
		}
		seen = &pfSeen{text, ports.said, v}
		if s.seen == nil {
			s.seen = map[string]*pfSeen{}
		}
		s.seen[name] = seen
	}
	v, config := *seen.view, *seen.view.pfConfig
	config.loaded, config.enabled = b.PFLoaded(), b.PFEnabled()
	v.b, v.ports, v.pfConfig = b, ports.byID, &config
	return &v, nil
}

// forgetPF removes the pfSeen of bridges that are not in a list.
func (s *Switch) forgetPF(list []Counted) {
	s.seenLock.Lock()
	defer s.seenLock.Unlock()
	maps.DeleteFunc(s.seen, func(name string, _ *pfSeen) bool {
		return !slices.ContainsFunc(list, func(c Counted) bool { return c.Name == name })
	})
}

// rule returns the rule with a number, or nil if there is none.
func (v *pfView) rule(n int) *pf.RuleRef {
	if n < 0 || n >= len(v.rules) {
		return nil
	}
	return &v.rules[n]
}

// PF returns the properties of a bridge's pf.
func (s *Switch) PF(bridge string) (info PFInfo, err error) {
	err = s.viewPF(bridge, func(v *pfView) error {
		traffic, err := v.b.PFTraffic()
		if err != nil {
			return err
		}
		info, err = v.info(bridge, &traffic)
		return err
	})
	return info, err
}

func (v *pfView) info(bridge string, traffic *datapath.PFTraffic) (PFInfo, error) {
	info := PFInfo{
		Bridge: bridge, For: -1, Debug: cmp.Or(v.Debug, v.main.Options.Debug, "err"), Limits: v.limits(), Timeouts: v.timeouts,
		StateTable: named(&traffic.Counters, pfStateCounters), Counters: named(&traffic.Counters, pfCounters),
		LimitCounters: named(&traffic.Counters, pfLimitCounters), HalfOpen: traffic.HalfOpen,
		Checksum: v.checksum,
	}
	if id, err := strconv.ParseUint(v.main.Options.HostID, 0, 32); err == nil {
		info.HostID = uint32(id)
	}
	groups := map[string]bool{}
	for _, p := range v.ports {
		info.Ports = append(info.Ports, PFPort{Name: p.Name, Groups: p.Groups, Skip: p.Skip || v.skips(p)})
		for _, name := range p.Groups {
			groups[name] = true
		}
	}
	for name := range groups {
		info.Ports = append(info.Ports, PFPort{Name: name, Group: true, Skip: v.skips(pf.CompilePort{Name: name})})
	}
	slices.SortFunc(info.Ports, func(a, b PFPort) int { return cmp.Compare(a.Name, b.Name) })
	if !v.loaded {
		return info, nil
	}
	now, err := v.b.PFInfo()
	if err != nil {
		return info, err
	}
	takes, err := v.b.PFTakes()
	if err != nil {
		return info, err
	}
	info.Memory = []PFMemory{
		{pf.LimitStates.String(), takes.States}, {pf.LimitSrcNodes.String(), takes.Sources}, {pf.LimitFrags.String(), takes.Fragments},
		{pf.LimitTableEntries.String(), takes.Addresses}, {"rules", takes.Rules},
	}
	info.Enabled, info.For = now.Enabled, now.Since
	info.States, info.Sources = uint64(now.States), uint64(now.Nodes)
	if p := v.ports[v.b.Config.Pf.LogInterface]; p.Name != "" {
		n, err := v.b.PFPortStats()
		if err != nil {
			return info, err
		}
		info.Log = &PFPort{Name: p.Name, Groups: p.Groups, Skip: v.skips(p), Packets: n.Packets, Bytes: n.Bytes}
	}
	return info, nil
}

const (
	protoTCP    = 6
	protoUDP    = 17
	protoICMP   = 1
	protoICMPv6 = 58
)

// pfCounterName is the name of a counter in pfctl(8).
type pfCounterName struct {
	counter datapath.PFCounter
	name    string
}

// noCounter is for reasons that never drop a packet here.
const noCounter = datapath.PFCounter(len(datapath.PFCounters{}))

var (
	pfStateCounters = []pfCounterName{
		{datapath.PFSearches, "searches"}, {datapath.PFInserts, "inserts"}, {datapath.PFRemovals, "removals"},
	}
	pfCounters = []pfCounterName{
		{datapath.PFMatched, "match"}, {noCounter, "bad-offset"}, {datapath.PFFragment, "fragment"},
		{datapath.PFShort, "short"}, {datapath.PFNormalize, "normalize"}, {datapath.PFMemory, "memory"},
		{datapath.PFTimestamp, "bad-timestamp"}, {datapath.PFIPOption, "ip-option"}, {noCounter, "proto-cksum"},
		{datapath.PFStateMismatch, "state-mismatch"}, {datapath.PFStateInsert, "state-insert"},
		{datapath.PFStateLimit, "state-limit"}, {datapath.PFSrcLimit, "src-limit"}, {datapath.PFSynproxy, "synproxy"},
		{datapath.PFTranslate, "translate"}, {datapath.PFNoRoute, "no-route"}, {datapath.PFDivert, "divert"},
	}
	pfLimitCounters = []pfCounterName{
		{datapath.PFMaxStates, "max states per rule"}, {datapath.PFMaxSrcStates, "max-src-states"},
		{datapath.PFMaxSrcNodes, "max-src-nodes"}, {datapath.PFMaxSrcConn, "max-src-conn"},
		{datapath.PFMaxSrcRate, "max-src-conn-rate"}, {datapath.PFOverload, "overload table insertion"},
		{datapath.PFOverloadFlush, "overload flush states"}, {datapath.PFSynfloods, "synfloods detected"},
	}
)

func named(counters *datapath.PFCounters, names []pfCounterName) (list []PFCounter) {
	for _, n := range names {
		c := PFCounter{Name: n.name}
		if n.counter != noCounter {
			c.Count = counters[n.counter]
		}
		list = append(list, c)
	}
	return list
}

// skips reports whether `set skip on` includes a port.
func (v *pfView) skips(port pf.CompilePort) bool {
	return slices.ContainsFunc(v.main.Options.Skip, func(on pf.Interface) bool { return port.Is(on.Name) != on.Not })
}

// PFRules returns the rules of an anchor, "" for the main ruleset.
func (s *Switch) PFRules(bridge, anchor string) (rules PFRules, err error) {
	path := strings.Trim(anchor, "/")
	err = s.viewPF(bridge, func(v *pfView) error {
		all := v.rulesets()
		set := all[path]
		if set == nil && v.hasBelow(path) {
			set = &pf.Ruleset{} // there are anchors below it, or tables in it
		}
		if set == nil {
			return refused("show pf of "+bridge, "there is no anchor "+path, "see 'bascule pfctl -s Anchors -v'")
		}
		rules = PFRules{Path: path, Set: set, Anchors: all, Counts: map[*pf.Rule]PFCounts{}}
		if !v.loaded {
			return nil
		}
		traffic, err := v.b.PFTraffic()
		rules.Counts = v.counts(&traffic)
		return err
	})
	return rules, err
}

// RulesOf returns the parsed rules of an anchor, "" for the main ruleset, without counters.
func RulesOf(anchor string, set *pf.Ruleset) PFRules {
	path := strings.Trim(anchor, "/")
	rules := PFRules{Path: path, Set: set, Anchors: map[string]*pf.Ruleset{path: set}}
	(&pfConfig{}).below(path, set, rules.Anchors)
	return rules
}

// counts returns the counters of all rules.
func (v *pfView) counts(traffic *datapath.PFTraffic) map[*pf.Rule]PFCounts {
	counts := map[*pf.Rule]PFCounts{}
	stats := traffic.Rules
	for i, ref := range v.rules[:min(len(v.rules), len(stats))] {
		n := counts[ref.Rule] // it may be called several times
		n.Evaluations += stats[i].Evaluations
		n.Created += stats[i].StatesCreated
		n.States += uint64(stats[i].States)
		n.Spent = n.Spent || stats[i].Spent
		for dir := range 2 {
			n.Packets[dir] += stats[i].Packets[dir]
			n.Bytes[dir] += stats[i].Bytes[dir]
		}
		counts[ref.Rule] = n
	}
	return counts
}

// hasBelow reports whether there are anchors below a path, or tables in or below it.
func (d *pfConfig) hasBelow(path string) bool {
	for other := range d.rulesets() {
		if strings.HasPrefix(other, path+"/") {
			return true
		}
	}
	return slices.ContainsFunc(d.Tables, func(t *pfStoredTable) bool { return strings.HasPrefix(t.Anchor+"/", path+"/") })
}

// Below returns the names of the anchors directly below a path, in order.
func (r PFRules) Below(path string) []string {
	names := map[string]bool{}
	for other := range r.Anchors {
		rest := other
		if path != "" {
			var ok bool
			if rest, ok = strings.CutPrefix(other, path+"/"); !ok {
				continue
			}
		}
		if name, _, _ := strings.Cut(rest, "/"); name != "" && name[0] != '_' {
			names[name] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// Body returns the ruleset that a rule calls, and its path, or nil if it calls none, or several by
// a pattern. rule is rule number index of the anchor at path.
func (r PFRules) Body(path string, index int, rule *pf.Rule) (*pf.Ruleset, string) {
	if rule.Anchor == nil {
		return nil, ""
	}
	at := pf.BodyPath(path, index, rule)
	return r.Anchors[at], at
}

// ZeroPF resets the counters of rules.
func (s *Switch) ZeroPF(bridge string) error {
	if err := s.Mend(); err != nil { // updates the rules if names in them have another meaning now
		return err
	}
	return s.each("clear the counters of pf of "+bridge, bridge, func(_ string, b *datapath.Bridge) error {
		if !b.PFLoaded() {
			return nil
		}
		return b.ZeroPFRuleStats()
	})
}

// PFAnchors returns the paths of the anchors directly below one, or of all below it, in order of
// name, without anonymous anchors.
func (s *Switch) PFAnchors(bridge, anchor string, all bool) (list []string, err error) {
	above := strings.Trim(anchor, "/")
	err = s.viewPF(bridge, func(v *pfView) error {
		found := map[string]bool{}
		paths := slices.Collect(maps.Keys(v.rulesets()))
		for _, t := range v.Tables {
			paths = append(paths, t.Anchor)
		}
		for _, path := range paths {
			rest := path
			if above != "" {
				var ok bool
				if rest, ok = strings.CutPrefix(path, above+"/"); !ok {
					continue
				}
			}
			if rest == "" || strings.HasPrefix(rest, "_") || strings.Contains(rest, "/_") {
				continue
			}
			for names := strings.Split(rest, "/"); len(names) > 0; names = names[:len(names)-1] {
				if all || len(names) == 1 {
					found[strings.TrimPrefix(above+"/"+strings.Join(names, "/"), "/")] = true
				}
			}
		}
		list = slices.Sorted(maps.Keys(found))
		return nil
	})
	if list == nil {
		list = []string{}
	}
	return list, err
}

// PFStates returns the states that k selects, the latest last.
func (s *Switch) PFStates(bridge string, k PFKill) (list []PFState, err error) {
	err = s.viewPF(bridge, func(v *pfView) error {
		list = []PFState{}
		if !v.loaded {
			return nil
		}
		return v.b.EachState(func(st *datapath.State) bool {
			if v.chooses(&k, st) {
				list = append(list, v.state(st))
			}
			return true
		})
	})
	slices.SortStableFunc(list, func(a, b PFState) int {
		return cmp.Or(cmp.Compare(b.Age, a.Age), a.Src.Addr.Compare(b.Src.Addr), cmp.Compare(a.Src.Port, b.Src.Port), cmp.Compare(a.ID, b.ID))
	})
	return list, err
}

// maker returns the number of the rule that made a state.
func maker(st *datapath.State) int {
	if st.Flags&datapath.StateOut != 0 || st.RuleIn < 0 {
		return st.RuleOut
	}
	return st.RuleIn
}

func (v *pfView) state(st *datapath.State) PFState {
	out := PFState{
		ID: st.ID, Proto: st.Proto, VLAN: st.VLAN, Src: peer(st.Proto, &st.From), Dst: peer(st.Proto, &st.To),
		Age: st.Age, Expires: st.Expires, Rule: -1, In: v.ports[st.In].Name, Out: v.ports[st.Out].Name,
		Sloppy: st.Flags&datapath.StateSloppy != 0, Hop: st.Hop, Route: st.HopKind, Divert: st.Divert,
	}
	if t := st.Translated; t != nil {
		out.Translated = &[2]PFAddress{
			pfAddress(st.Proto, &datapath.StatePeer{Addr: t[0]}), pfAddress(st.Proto, &datapath.StatePeer{Addr: t[1]}),
		}
	}
	if st.Flags&datapath.StateIfBound != 0 {
		out.Port = out.In
		if st.Flags&datapath.StateOut != 0 {
			out.Port = out.Out
		}
	}
	if ref := v.rule(maker(st)); ref != nil {
		out.Rule, out.Anchor = ref.Index, ref.Anchor
		out.Tracked = ref.Rule.StateOpts.SourceTrack != pf.NoSourceTrack
	}
	if labels := v.labels(st); len(labels) > 0 {
		out.Label = labels[0]
	}
	return out
}

// labels returns the labels of both rules of a state, its maker's first. A state keeps its labels
// when other rules are loaded.
func (v *pfView) labels(st *datapath.State) (list []string) {
	rules, numbers := [2]int{st.RuleIn, st.RuleOut}, st.Rules
	if st.Flags&datapath.StateOut != 0 {
		rules[0], rules[1] = rules[1], rules[0]
		numbers[0], numbers[1] = numbers[1], numbers[0]
	}
	former := slices.IndexFunc(v.Labels, func(l pfLabels) bool { return slices.Contains(l.Rulesets, st.Ruleset) })
	for i := range rules {
		if ref := v.rule(rules[i]); ref != nil {
			list = append(list, ref.Rule.AllLabels()...)
		} else if former >= 0 {
			list = append(list, v.Labels[former].Rules[numbers[i]]...)
		}
	}
	return list
}

func peer(proto uint8, p *datapath.StatePeer) PFPeer {
	out := PFPeer{
		PFAddress: pfAddress(proto, p), State: strconv.Itoa(int(p.State)),
		Packets: p.Packets, Bytes: p.Bytes, Low: p.Lo, High: p.Hi, Diff: p.Diff, Scale: p.Scale,
	}
	names := datapath.OtherStates
	switch proto {
	case protoTCP:
		names = datapath.TCPStates
	case protoICMP, protoICMPv6:
		names = nil // as in pfctl(8)
	}
	if int(p.State) < len(names) {
		out.State = strings.Replace(names[p.State], "PROXY_", "PROXY:", 1)
	}
	return out
}

// pfAddress returns the address and port of one end of a state. As in pf, in an ICMP query the port
// of the requester is the identifier, and the port of the other end is the type.
func pfAddress(proto uint8, p *datapath.StatePeer) PFAddress {
	port := p.Addr.Port()
	if (proto == protoICMP || proto == protoICMPv6) && port&0xff == 0 {
		port >>= 8 // the datapath keeps the type in network byte order
	}
	return PFAddress{p.Addr.Addr().Unmap(), port}
}

// chooses reports whether k selects a state.
func (v *pfView) chooses(k *PFKill, st *datapath.State) bool {
	from, to := pfAddress(st.Proto, &st.From), pfAddress(st.Proto, &st.To)
	switch {
	case k.ID != 0 && k.ID != st.ID,
		!contains(k.From, from.Addr), !contains(k.To, to.Addr),
		k.Key != nil && *k.Key != (PFKey{st.Proto, from, to}):
		return false
	case k.Gateway != nil && !contains(k.Gateway, gateway(st)):
		return false
	case k.Port != "" && !v.ports[st.In].Is(k.Port) && !v.ports[st.Out].Is(k.Port):
		return false
	case k.Label != nil:
		return slices.Contains(v.labels(st), *k.Label)
	}
	return true
}

// gateway returns the next hop of a state, or the unspecified address of its family if it has none.
func gateway(st *datapath.State) netip.Addr {
	switch {
	case st.Hop.IsValid():
		return st.Hop.Unmap()
	case st.From.Addr.Addr().Unmap().Is4():
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// A way has the common properties of a state's packets, before or after translation.
type way struct {
	proto    uint8
	from, to netip.AddrPort
}

// waysOf returns the properties of a state's packets before and after translation.
func waysOf(st *datapath.State) (before, after way) {
	before = way{st.Proto, st.From.Addr, st.To.Addr}
	if after = before; st.Translated != nil {
		after.from, after.to = st.Translated[0], st.Translated[1]
	}
	return before, after
}

// contains reports whether an address is in one of the networks. A nil list contains all addresses.
func contains(list []netip.Prefix, a netip.Addr) bool {
	return list == nil || slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(a) })
}

// KillPFStates removes the states that k selects, and returns their number.
func (s *Switch) KillPFStates(bridge string, k PFKill) (n int, err error) {
	if err := s.Mend(); err != nil {
		return 0, err
	}
	err = s.viewPF(bridge, func(v *pfView) error {
		if !v.loaded {
			return nil
		}
		come, went := map[way]bool{}, map[way]bool{} // of selected states
		more, err := v.b.KillStates(func(st *datapath.State) bool {
			if !v.chooses(&k, st) {
				return false
			}
			before, after := waysOf(st)
			come[before], went[after] = true, true
			return true
		})
		n += more // also when the function runs again
		if err != nil || !k.Both {
			return err
		}
		more, err = v.b.KillStates(func(st *datapath.State) bool {
			before, after := waysOf(st)
			return come[after] || went[before]
		})
		n += more
		return err
	})
	return n, err
}

// PFSources returns the tracked sources, by address.
func (s *Switch) PFSources(bridge string) (list []PFSource, err error) {
	err = s.viewPF(bridge, func(v *pfView) error {
		list = []PFSource{}
		if !v.loaded {
			return nil
		}
		nodes, err := v.b.SourceNodes()
		if err != nil {
			return err
		}
		for _, n := range nodes {
			source := PFSource{
				Addr: n.Addr.Unmap(), VLAN: n.VLAN, States: n.States, Connections: n.Connections, Rate: n.Rate,
				Age: n.Age, Expires: n.Expires, Rule: -1, Given: n.Given.Unmap(),
			}
			if ref := v.rule(n.Rule); ref != nil {
				source.Rule, source.Anchor = ref.Index, ref.Anchor
				source.RateTime = time.Duration(ref.Rule.StateOpts.MaxSrcConnSecs) * time.Second
			}
			list = append(list, source)
		}
		return nil
	})
	return list, err
}

// PFLimiters returns the state limiters, or the source limiters, by ID.
func (s *Switch) PFLimiters(bridge string, sources bool) (list []PFLimiter, err error) {
	err = s.viewPF(bridge, func(v *pfView) error {
		list = []PFLimiter{}
		if !v.loaded {
			return nil
		}
		counts, err := v.b.Limiters()
		if err != nil {
			return err
		}
		if !sources {
			for _, l := range v.main.StateLimiters {
				list = append(list, PFLimiter{ID: l.ID, Name: l.Name, Limit: l.Limit, Rate: l.Rate, PFLimiterCount: limiterCount(counts.States[l.ID])})
			}
		} else {
			for _, l := range v.main.SourceLimiters {
				list = append(list, PFLimiter{
					ID: l.ID, Name: l.Name, Limit: l.Limit, Rate: l.Rate, Entries: l.Entries,
					PFLimiterCount: limiterCount(counts.Sources[l.ID]), Sources: limited(counts.List, l.ID),
				})
			}
		}
		slices.SortFunc(list, func(a, b PFLimiter) int { return int(a.ID) - int(b.ID) })
		return nil
	})
	return list, err
}

// limited returns the sources of the source limiter with an ID.
func limited(all []datapath.LimitedSource, id uint8) []PFLimited {
	list := []PFLimited{}
	for _, n := range all {
		if n.Limiter == id {
			list = append(list, PFLimited{Addr: n.Addr, VLAN: n.VLAN, PFLimiterCount: limiterCount(n.LimiterCount)})
		}
	}
	slices.SortFunc(list, func(a, b PFLimited) int {
		return cmp.Or(a.Addr.Addr().Compare(b.Addr.Addr()), a.Addr.Bits()-b.Addr.Bits(), int(a.VLAN)-int(b.VLAN))
	})
	return list
}

func limiterCount(n datapath.LimiterCount) PFLimiterCount {
	return PFLimiterCount{
		States: n.States, Admitted: n.Admitted, HardLimited: n.Hard, RateLimited: n.Rate, Addresses: n.Sources, AddrFull: n.Full,
	}
}

// KillPFSources removes the sources that k selects, and returns their number. With k.To, it selects
// sources that have a state with such a host.
func (s *Switch) KillPFSources(bridge string, k PFKill) (n int, err error) {
	if err := s.Mend(); err != nil {
		return 0, err
	}
	err = s.viewPF(bridge, func(v *pfView) error {
		if !v.loaded {
			return nil
		}
		talks := map[netip.Addr]bool{}
		if k.To != nil {
			err := v.b.EachState(func(st *datapath.State) bool {
				if contains(k.To, st.To.Addr.Addr().Unmap()) {
					talks[st.From.Addr.Addr().Unmap()] = true
				}
				return true
			})
			if err != nil {
				return err
			}
		}
		more, err := v.b.KillSources(func(node *datapath.SourceNode) bool {
			a := node.Addr.Unmap()
			return contains(k.From, a) && (k.To == nil || talks[a])
		})
		n += more
		return err
	})
	return n, err
}
