// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Input has the ruleset to compile and its surroundings.
type Input struct {
	Main *Ruleset
	// Anchors are the rulesets that were loaded into anchors, by path without a leading
	// slash: "spam", "ftp/a". A ruleset here replaces the one between the braces of a call.
	Anchors map[string]*Ruleset
	Ports   []CompilePort
	// Table returns the number of a table, below MaxTables. Its arguments are the path of the
	// anchor whose rule names the table, and the table's name.
	Table func(anchor, name string) (int, error)
	// Entries returns the contents of the table with a number, for pools that name the table.
	// Nil: all tables are empty.
	Entries func(number int) ([]TableEntry, error)
	// Addresses returns the addresses of an interface, with the modifiers of Host.Modes. A
	// network is returned with the interface's address in it. If an interface has no
	// addresses, or there is an error, a rule about it matches no packet; a negated one
	// matches all. Nil: no interface has any.
	Addresses func(name string, modes []string) ([]netip.Prefix, error)
	// Profiles are the profiles that states use. They are the first of Program.Profiles.
	Profiles []Profile
	// Check compiles a program that is not for the datapath. It accepts parts of the language
	// that the datapath does not carry out.
	Check bool
}

// CompilePort is a port of the bridge.
type CompilePort struct {
	Slot   uint16 // from 1, below MaxPorts
	Name   string
	Groups []string // in addition to the group that is the port's name without its number
	Host   bool     // a host port, where rules translate
	Routes bool     // a host port that routes, where next hops and sockets of rules have an effect
	Skip   bool     // no rules are tried at the port, as with `set skip`, and no ether rules
}

type compiler struct {
	in       Input
	out      Program
	entries  []entry
	anchors  map[string]callee   // by path
	children map[string][]callee // by path of the anchor above, in the order of their names
	calls    int
	numbers  map[string]uint16 // in Program.Anchors
	sets     sets
	profiles map[Profile]uint8
	ports    map[string]uint16 // in Program.Ports, + 1
	dynamic  map[string][]netip.Prefix
	first    map[*Rule]uint32  // place
	tags     map[uint32]string // by their numbers under TagMask
}

// Compile compiles a ruleset for the datapath. It fails for rulesets that the types allow but the
// datapath does not, such as rulesets that need too many rules, tables or too much memory. Words
// that the datapath does not carry out at all are in an [ErrorList].
func Compile(in Input) (*Program, error) {
	c := compiler{
		in:       in,
		anchors:  map[string]callee{},
		children: map[string][]callee{},
		numbers:  map[string]uint16{"": 0},
		sets:     sets{at: map[uint64]uint32{}},
		profiles: map[Profile]uint8{},
		ports:    map[string]uint16{},
		dynamic:  map[string][]netip.Prefix{},
		first:    map[*Rule]uint32{},
		tags:     map[uint32]string{},
	}
	c.in.Ports = slices.SortedFunc(slices.Values(in.Ports), func(a, b CompilePort) int { return int(a.Slot) - int(b.Slot) })
	c.out.Anchors = []string{""}
	c.out.Profiles = slices.Clone(in.Profiles)
	for i, p := range in.Profiles {
		c.profiles[p] = uint8(i)
	}
	c.out.Timeouts = in.Main.Options.timeouts()
	if !in.Check {
		if list := c.missing(); len(list) > 0 {
			return nil, list
		}
	}
	if err := c.placeLimiters(); err != nil {
		return nil, err
	}
	if err := c.collect(); err != nil {
		return nil, err
	}
	if err := c.flatten(&scope{Ruleset: in.Main, options: &in.Main.Options}); err != nil {
		return nil, err
	}
	if err := c.rules(); err != nil {
		return nil, err
	}
	if err := c.ether(); err != nil {
		return nil, err
	}
	c.sets.base = uint32(c.out.SetsAt())
	c.out.Cells = slices.Repeat([]uint32{c.sets.base}, Cells) // the empty set, below
	c.out.Groups = uint32((len(c.entries) + GroupRules - 1) / GroupRules)
	if len(c.entries) > 0 {
		// The set of a value that no packet has is the empty set.
		if _, err := newVector(&c.sets, c.out.Groups).index(); err != nil {
			return nil, err
		}
	}
	skipped := c.skipped()
	if len(skipped) > 0 {
		c.out.Dims |= 1 << DimPort
	}
	for i := range fields {
		if err := c.field(&fields[i]); err != nil {
			return nil, err
		}
	}
	if err := c.networks(); err != nil {
		return nil, err
	}
	for _, slot := range skipped {
		cell := CellPort + 2*int(slot)
		c.out.Cells[cell], c.out.Cells[cell+1] = Skip, Skip
	}
	c.out.Sets = c.sets.words
	c.placePools()
	return &c.out, nil
}

// skipped returns the slots of the ports that pf skips.
func (c *compiler) skipped() []uint16 {
	var slots []uint16
	for _, p := range c.in.Ports {
		if p.Skip || slices.ContainsFunc(c.in.Main.Options.Skip, func(on Interface) bool { return p.Is(on.Name) != on.Not }) {
			slots = append(slots, p.Slot)
		}
	}
	return slots
}

// addresses returns the addresses that a rule takes, except addresses that are not looked up with
// the fields.
func (c *compiler) addresses(r *Rule) (src, dst marks) {
	src, dst = c.endpoint(r.From), c.endpoint(r.To)
	if r.To.Host.Kind == URPFFailed { // a destination has not come by any route
		dst = marksOf(nil, r.To.Not)
	}
	return src, dst
}

func (c *compiler) endpoint(e Endpoint) marks {
	h := e.Host
	var networks []subnet
	switch h.Kind {
	case InTable, NoRoute, URPFFailed:
		return nil
	case AnyHost:
		networks = []subnet{everything}
	case Prefix:
		networks = []subnet{subnetOf(h.Addr, h.Bits)}
	case Range:
		networks = rangeSubnets(h.Addr, h.Last)
	case Dynamic:
		for _, p := range c.resolve(h) {
			length := p.Bits()
			if h.Bits >= 0 {
				length = min(h.Bits, p.Addr().BitLen())
			}
			networks = append(networks, subnetOf(p.Addr(), length))
		}
	}
	return marksOf(networks, e.Not)
}

// resolve returns the addresses of a Dynamic host.
func (c *compiler) resolve(h Host) []netip.Prefix {
	if c.in.Addresses == nil {
		return nil
	}
	key := strings.Join(append([]string{h.Name}, h.Modes...), ":")
	list, ok := c.dynamic[key]
	if !ok {
		var err error
		if list, err = c.in.Addresses(h.Name, h.Modes); err != nil {
			list = nil
		}
		c.dynamic[key] = list
	}
	return list
}

// rules fills in the facts of each rule in the program.
func (c *compiler) rules() error {
	c.out.Rules = make([]CompiledRule, len(c.entries))
	c.out.Source = make([]RuleRef, len(c.entries))
	for i := range c.entries {
		e := &c.entries[i]
		if e.end == 0 {
			e.end = uint32(len(c.entries))
		}
		rule, err := c.rule(e)
		if err != nil {
			return fmt.Errorf("%v: %w", e.Pos, err)
		}
		c.out.Rules[i] = rule
		if _, ok := c.first[e.Rule]; !ok {
			c.first[e.Rule] = uint32(i)
		}
		c.out.Rules[i].First = c.first[e.Rule]
		if len(e.Translations) > 0 && e.action != CallAnchor {
			if err := c.translations(i, e); err != nil {
				return fmt.Errorf("%v: %w", e.Pos, err)
			}
		}
		if e.Route != nil && e.action != CallAnchor {
			if err := c.route(i, e); err != nil {
				return fmt.Errorf("%v: %w", e.Pos, err)
			}
		}
		if e.Divert != nil && e.action != CallAnchor {
			c.divert(i, e)
		}
		c.out.Source[i] = RuleRef{e.anchor.path, e.index, e.Rule}
	}
	return nil
}

func (c *compiler) rule(e *entry) (CompiledRule, error) {
	out := CompiledRule{
		Action: uint32(e.action),
		End:    e.end,
		Nr:     uint16(e.index),
		Anchor: e.anchor.number,
	}
	var err error
	if e.tags() {
		c.out.Asks |= AskTag
		out.Tag, err = c.tagNumber(e.Tag)
		return out, err
	}
	flag := func(set bool, flags uint32) {
		if set {
			out.Flags |= flags
		}
	}
	asks := func(what bool, ask uint32) {
		if what {
			c.out.Asks |= ask
		}
	}
	if r := e.Rule; r.Probability > 0 && r.Probability < 1 {
		out.Probability = max(1, uint32(r.Probability*(1<<32)))
		c.out.Asks |= AskRandom
	}
	if out.Tagged, err = c.tagNumber(e.Tagged); err != nil {
		return out, err
	}
	flag(e.Tagged != "" && e.NotTagged, RuleNotTagged)
	asks(e.Tagged != "", AskTag)
	if e.ReceivedOn.Name != "" {
		if out.Received, err = c.portSet(e.ReceivedOn.Name); err != nil {
			return out, err
		}
		flag(e.ReceivedOn.Not, RuleNotReceived)
		c.out.Asks |= AskReceived
	}
	if e.HasPrio {
		out.Priority = e.Prio + 1
		c.out.Asks |= AskPriority
	}
	if out.SrcTable, err = c.table(e.anchor.path, e.From.Host); err != nil {
		return out, err
	}
	if out.DstTable, err = c.table(e.anchor.path, e.To.Host); err != nil {
		return out, err
	}
	flag(e.From.Host.Kind == NoRoute, RuleSrcNoRoute)
	flag(e.To.Host.Kind == NoRoute, RuleDstNoRoute)
	flag(e.From.Host.Kind == URPFFailed, RuleSrcURPFFailed)
	asks(out.Flags&(RuleSrcNoRoute|RuleDstNoRoute|RuleSrcURPFFailed) != 0, AskRoute)
	flag(e.From.Not && (out.SrcTable != 0 || out.Flags&(RuleSrcNoRoute|RuleSrcURPFFailed) != 0), RuleNotSrcTable)
	flag(e.To.Not && (out.DstTable != 0 || out.Flags&RuleDstNoRoute != 0), RuleNotDstTable)
	if e.action == CallAnchor {
		return out, nil
	}

	if out.Tag, err = c.tagNumber(e.Tag); err != nil {
		return out, err
	}
	asks(e.Tag != "", AskTag)
	flag(e.Log != 0, RuleLog)
	flag(e.Log&LogAll != 0, RuleLogAll)
	flag(e.Log&LogMatches != 0, RuleLogMatches)
	if e.LogTo != "" {
		n, err := strconv.ParseUint(strings.TrimPrefix(e.LogTo, "pflog"), 10, 8)
		if err != nil {
			return out, fmt.Errorf("log to %s: expected pflog0 to pflog255", e.LogTo)
		}
		out.LogTo = uint8(n)
	}
	flag(e.AllowOpts, RuleAllowOpts)
	flag(e.Once, RuleOnce)
	asks(e.Once, AskOnce)
	if e.action == Block {
		e.answer(&out)
	}
	if e.State != NoState {
		if err := c.state(e, &out); err != nil {
			return out, err
		}
	}
	asks(e.SetPrio != [2]uint8{}, AskPriority)
	out.Scrub = e.Scrub.compile()
	err = c.profile(e.Rule, &out)
	return out, err
}

func (s Scrub) compile() CompiledScrub {
	out := CompiledScrub{MaxMSS: s.MaxMSS, MinTTL: s.MinTTL, TOS: s.TOS}
	for _, f := range []struct {
		set  bool
		flag uint32
	}{{s.NoDF, ScrubNoDF}, {s.RandomID, ScrubRandomID}, {s.SetTOS, ScrubSetTOS}, {s.ReassembleTCP, ScrubReassemble}} {
		if f.set {
			out.Flags |= f.flag
		}
	}
	return out
}

// answer fills in the answer of a block rule.
func (e *entry) answer(out *CompiledRule) {
	how := e.Return
	if how == ReturnPolicy {
		how = e.options.BlockPolicy
	}
	out.Answer = map[Return]uint8{ReturnAll: AnswerBoth, ReturnRST: AnswerRST, ReturnICMP: AnswerICMP}[how]
	if out.Answer == AnswerNothing {
		return
	}
	out.TTL = e.ReturnTTL
	icmp4, icmp6 := e.ReturnICMP4, e.ReturnICMP6
	if icmp4 == (ICMPCode{}) {
		icmp4 = ICMPCode{3, 3} // port unreachable
	}
	if icmp6 == (ICMPCode{}) {
		icmp6 = ICMPCode{1, 4}
	}
	out.ICMP4 = [2]uint8{icmp4.Type, icmp4.Code}
	out.ICMP6 = [2]uint8{icmp6.Type, icmp6.Code}
}

// state fills in how a rule keeps state.
func (c *compiler) state(e *entry, out *CompiledRule) error {
	o := &e.StateOpts
	flags := []struct {
		set  bool
		flag uint32
	}{
		{true, RuleKeep},
		{e.State == ModulateState, RuleModulate},
		{e.State == SynproxyState, RuleSynproxy},
		{o.Sloppy, RuleSloppy},
		{o.Policy == IfBound || o.Policy == DefaultPolicy && e.options.StatePolicy == IfBound, RuleIfBound},
		{o.SourceTrack == SourceTrackRule, RuleTrackRule},
		{o.SourceTrack == SourceTrackGlobal, RuleTrackGlobal},
		{o.OverloadFlush || o.OverloadGlobal, RuleFlush},
		{o.OverloadGlobal, RuleFlushGlobal},
	}
	for _, f := range flags {
		if f.set {
			out.Flags |= f.flag
		}
	}
	out.Max = o.Max
	out.MaxSrcNodes, out.MaxSrcStates = o.MaxSrcNodes, o.MaxSrcStates
	out.MaxSrcConn, out.MaxSrcRate, out.MaxSrcSecs = o.MaxSrcConn, o.MaxSrcConnRate, o.MaxSrcConnSecs
	var err error
	if o.Overload != "" {
		out.Overload, err = c.table(e.anchor.path, Host{Kind: InTable, Name: o.Overload})
	}
	return err
}

// profile fills in the index of a rule's profile, and its limiters.
func (c *compiler) profile(r *Rule, out *CompiledRule) error {
	p := Profile{Timeout: c.out.Timeouts, Priority: r.SetPrio}
	if r.State != NoState {
		r.StateOpts.Timeouts.override(&p.Timeout)
	}
	if err := c.limit(r, out, &p); err != nil {
		return err
	}
	n, ok := c.profiles[p]
	if !ok {
		if len(c.out.Profiles) == MaxProfiles {
			return fmt.Errorf("timeouts, set prio and limiters: one combination more than the %d that rules and states may have; wait for states that have others, or flush them", MaxProfiles)
		}
		n = uint8(len(c.out.Profiles))
		c.profiles[p] = n
		c.out.Profiles = append(c.out.Profiles, p)
	}
	out.Profile = n
	return nil
}

// override replaces timeouts by the given ones.
func (t *Timeouts) override(timeouts *[TimeoutCount]uint32) {
	for i, given := range t {
		if given.Given {
			timeouts[i] = given.Value
		}
	}
}

// timeouts returns the timeouts of a ruleset. The given ones include the timeouts of its
// optimization.
func (o *Options) timeouts() [TimeoutCount]uint32 {
	out := DefaultTimeouts()
	// As with pfctl, timeouts shrink from six tenths of the limit on.
	if states := o.Limits[LimitStates]; states.Given && !o.Timeouts[AdaptiveStart].Given && !o.Timeouts[AdaptiveEnd].Given {
		out[AdaptiveStart] = states.Value / 10 * 6
		out[AdaptiveEnd] = uint32(min(uint64(states.Value)/10*12, math.MaxUint32))
	}
	o.Timeouts.override(&out)
	return out
}

// table returns the number of a host's table plus 1, or 0 for no table.
func (c *compiler) table(anchor string, h Host) (uint8, error) {
	if h.Kind != InTable {
		return 0, nil
	}
	if c.in.Table == nil {
		return 0, fmt.Errorf("table <%s>: there is none", h.Name)
	}
	n, err := c.in.Table(anchor, h.Name)
	if err != nil {
		return 0, fmt.Errorf("table <%s>: %w", h.Name, err)
	}
	if n < 0 || n >= MaxTables {
		return 0, fmt.Errorf("table <%s>: has the number %d, and there may be %d tables", h.Name, n, MaxTables)
	}
	return uint8(n) + 1, nil
}

// portSet returns the number of the set of ports that have a name.
func (c *compiler) portSet(name string) (uint16, error) {
	return c.setOf(name, func(p CompilePort) bool { return p.Is(name) })
}

// setOf returns the number of a set of ports. name identifies the set.
func (c *compiler) setOf(name string, has func(CompilePort) bool) (uint16, error) {
	if n, ok := c.ports[name]; ok {
		return n, nil
	}
	if len(c.out.Ports) == math.MaxUint16 {
		return 0, fmt.Errorf("%s: one name of ports more than the %d that there may be", name, math.MaxUint16)
	}
	var set [MaxPorts / 64]uint64
	for _, p := range c.in.Ports {
		if has(p) {
			set[p.Slot/64] |= 1 << (p.Slot % 64)
		}
	}
	c.out.Ports = append(c.out.Ports, set)
	n := uint16(len(c.out.Ports))
	c.ports[name] = n
	return n, nil
}

// TagMask is the mask of the bits that distinguish tags in the datapath: a state has no room for
// more.
const TagMask = 1<<20 - 1

// TagNumber returns the number of a tag: FNV-1a, 0 for none. No other tag has the number 0 under
// TagMask.
func TagNumber(name string) uint32 {
	if name == "" {
		return 0
	}
	h := fnv.New32a()
	h.Write([]byte(name))
	if n := h.Sum32(); n&TagMask != 0 {
		return n
	}
	return h.Sum32() | 1
}

// tagNumber returns TagNumber of a tag of the rules. It fails if another tag of the rules is the
// same to the datapath.
func (c *compiler) tagNumber(name string) (uint32, error) {
	n := TagNumber(name)
	if n == 0 {
		return 0, nil
	}
	if other, ok := c.tags[n&TagMask]; ok && other != name {
		return 0, fmt.Errorf("the tags %q and %q are the same to the datapath, which has %d bits of a name; give one of them another name",
			other, name, bits.Len32(TagMask))
	}
	c.tags[n&TagMask] = name
	return n, nil
}

// ether fills in the rules for frames.
func (c *compiler) ether() error {
	for i := range c.in.Main.Ether {
		r := &c.in.Main.Ether[i]
		out, err := c.etherRule(r)
		if err != nil {
			return fmt.Errorf("%v: %w", r.Pos, err)
		}
		c.out.Ether = append(c.out.Ether, out)
	}
	return nil
}

func (c *compiler) etherRule(r *EtherRule) (CompiledEther, error) {
	out := CompiledEther{
		Src: macWord(r.From.MAC), SrcMask: macWord(r.From.Mask),
		Dst: macWord(r.To.MAC), DstMask: macWord(r.To.Mask),
		Action: uint32(r.Action),
	}
	var err error
	if out.Tag, err = c.tagNumber(r.Tag); err != nil {
		return out, err
	}
	if out.Tagged, err = c.tagNumber(r.Tagged); err != nil {
		return out, err
	}
	out.Src &= out.SrcMask
	out.Dst &= out.DstMask
	flags := []struct {
		set  bool
		flag uint32
	}{
		{r.Direction != Out, EtherIn},
		{r.Direction != In, EtherOut},
		{r.Quick, EtherQuick},
		{r.From.Not, EtherNotSrc},
		{r.To.Not, EtherNotDst},
		{r.L3FromNot, EtherNotL3Src},
		{r.L3ToNot, EtherNotL3Dst},
		{r.NotTagged, EtherNotTagged},
	}
	for _, f := range flags {
		if f.set {
			out.Flags |= f.flag
		}
	}
	if r.Tag != "" || r.Tagged != "" {
		c.out.Asks |= AskTag
	}
	if r.HasProto {
		out.Type = r.Proto<<8 | r.Proto>>8
	}
	for i, h := range []Host{r.L3From, r.L3To} {
		if out.Table[i], err = c.table("", h); err != nil {
			return out, err
		}
		if h.Kind == Prefix {
			p := subnetOf(h.Addr, h.Bits)
			out.L3[i] = EtherPrefix{Bits: uint32(p.bits), Address: p.bytes()}
		}
		if h.Kind != AnyHost {
			c.out.Asks |= AskEtherL3
		}
	}
	out.Ports, err = c.etherPorts(r.On)
	return out, err
}

// etherPorts returns the number of the set of ports that match `on`; 0 for all ports.
func (c *compiler) etherPorts(on Interface) (uint16, error) {
	if skip := slices.ContainsFunc(c.in.Ports, func(p CompilePort) bool { return p.Skip }); !skip && !on.Not {
		if on.Name == "" {
			return 0, nil
		}
		return c.portSet(on.Name)
	}
	// no name has spaces
	return c.setOf(fmt.Sprintf("ether %v %s", on.Not, on.Name), func(p CompilePort) bool {
		return !p.Skip && (on.Name == "" || p.Is(on.Name) != on.Not)
	})
}

// macWord returns a MAC with its first byte lowest, as a little-endian machine
// loads it from a frame.
func macWord(mac [6]byte) uint64 {
	var b [8]byte
	copy(b[:], mac[:])
	return binary.LittleEndian.Uint64(b[:])
}
