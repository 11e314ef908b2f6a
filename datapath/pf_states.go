// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"time"
	"unsafe"

	"bascule/pf"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A State is a connection that pf has an entry for.
type State struct {
	ID   uint64 // unique among the present states
	VLAN uint16 // VLAN of the addresses; 0 for none, and for addresses of the host's routing
	// Host is the direction of the first packet at the host; see StateHost.
	Host  StateHost
	Proto uint8
	// From is the side that opened the connection, and To the other. The ports are 0 if the
	// protocol has none. For an ICMP query they are the identifier and the kind of the query.
	From, To StatePeer
	// Translated has the addresses of the first packet after its translation, nil if there is none.
	// From and To have the addresses before it.
	Translated *[2]netip.AddrPort
	// Hop is the next hop that a rule sets for its packets, not valid if there is none, and HopKind
	// is the word of that rule.
	Hop     netip.Addr
	HopKind pf.RouteKind
	Divert  *pf.Divert // the host's socket that gets its packets by a rule, nil for none
	In      uint32     // id of the port that the first packet came in by
	Out     uint32     // id of the port that it left by, 0 while that is not known
	// Numbers of the rules that let it in and out, in Program.Source. -1 means no rule, or a rule
	// of a former ruleset.
	RuleIn, RuleOut int
	// Ruleset is the ruleset that made it, and Rules are the numbers there. -1 means no rule.
	Ruleset uint16
	Rules   [2]int
	Created uint32 // seconds since boot
	Age     time.Duration
	Expires time.Duration // time left, unless there is another packet
	Flags   StateFlags
	Profile uint8 // index in PFProfiles
}

// StatePeer is one side of a State.
type StatePeer struct {
	Addr    netip.AddrPort
	State   uint8  // for TCP as in RFC 9293, an index of TCPStates; for others an index of OtherStates
	Lo, Hi  uint32 // TCP: the highest sequence number that it has sent, and that it may send
	MaxWin  uint16
	Scale   int    // of TCP's window; -1 if unknown
	Diff    uint32 // added to the sequence numbers that it sends
	Packets uint64 // packets that it has sent
	Bytes   uint64
}

// TCPStates and OtherStates are the names of the values of StatePeer.State, as
// pfctl prints them.
var (
	TCPStates = []string{
		"CLOSED", "LISTEN", "SYN_SENT", "SYN_RCVD", "ESTABLISHED", "CLOSE_WAIT", "FIN_WAIT_1",
		"CLOSING", "LAST_ACK", "FIN_WAIT_2", "TIME_WAIT", "PROXY_SRC", "PROXY_DST",
	}
	OtherStates = []string{"NO_TRAFFIC", "SINGLE", "MULTIPLE"}
)

// StateFlags are the bits of State.Flags.
type StateFlags = kernelPfStateFlag

// The flags of a state that users see.
const (
	StateSloppy  = kernelPfStateFlagPF_STATE_SLOPPY
	StateIfBound = kernelPfStateFlagPF_STATE_IF_BOUND
	StateLog     = kernelPfStateFlagPF_STATE_LOG
	StateOptions = kernelPfStateFlagPF_STATE_OPTIONS
	StateOut     = kernelPfStateFlagPF_STATE_OUT // made by a rule on the way out
)

// StateHost is the direction of a state's first packet at the host, whose port it came in by or
// left by.
type StateHost uint8

// The directions of a first packet.
const (
	NotAtHost StateHost = iota // its addresses belong to a VLAN
	IntoHost
	OutOfHost
)

// The bits of a key's vlan that mark addresses of a routing domain: PF_ROUTED and PF_OUTWARD of
// bpf/pf/types.h.
const (
	keyRouted  = 0x8000
	keyOutward = 0x4000
)

// vlanOf returns the VLAN in a key, 0 if the key has a routing domain instead.
func vlanOf(key uint16) uint16 {
	if key&keyRouted != 0 {
		return 0
	}
	return key
}

// host does the same as pf_began of bpf/pf/life.h.
func (s *kernelPfState) host() StateHost {
	second := s.Flags&uint16(kernelPfStateFlagPF_STATE_SECOND) != 0
	switch {
	case s.Key.Vlan&keyRouted == 0:
		return NotAtHost
	case (s.Key.Vlan&keyOutward != 0) != second:
		return OutOfHost
	}
	return IntoHost
}

// stateWays is PF_WAYS.
const stateWays = 16

// A stateTable is the table of states, which the datapath reads and writes at the same time.
type stateTable struct {
	marks  []uint32 // by place
	states []kernelPfState
	stamps []kernelPfReassembly // none if no rule says reassemble tcp
	config *kernelPfConfig
	// profiles of the states, for callers that look for the limiters of states; nil if there are
	// none
	profiles []kernelPfProfile
	close    func()
}

// mapStates maps the tables of states of a configuration.
func mapStates(buckets, states, stamps *ebpf.Map, c *Config, prot int) (*stateTable, error) {
	t := &stateTable{config: (*kernelPfConfig)(&c.Pf)}
	marks, unmapMarks, err := mapTable(buckets, prot)
	if err != nil {
		return nil, err
	}
	mem, unmap, err := mapTable(states, prot)
	if err != nil {
		unmapMarks()
		return nil, err
	}
	kept, unmapStamps, err := mapTable(stamps, prot)
	if err != nil {
		unmapMarks()
		unmap()
		return nil, err
	}
	t.close = func() { unmapMarks(); unmap(); unmapStamps() }
	t.marks = unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(marks))), len(marks)/4)
	t.states = unsafe.Slice((*kernelPfState)(unsafe.Pointer(unsafe.SliceData(mem))), len(mem)/int(unsafe.Sizeof(kernelPfState{})))
	if stamps.MaxEntries() == states.MaxEntries() {
		t.stamps = unsafe.Slice((*kernelPfReassembly)(unsafe.Pointer(unsafe.SliceData(kept))), len(t.states))
	}
	return t, nil
}

// states maps the bridge's table of states.
func (b *Bridge) states(prot int) (*stateTable, error) {
	if !b.PFLoaded() {
		return nil, errNoPF
	}
	buckets, err := b.openTable(kernelMapPfBuckets)
	if err != nil {
		return nil, err
	}
	defer buckets.Close()
	states, err := b.openTable(kernelMapPfStates)
	if err != nil {
		return nil, err
	}
	defer states.Close()
	stamps, err := b.openTable(kernelMapPfStamps)
	if err != nil {
		return nil, err
	}
	defer stamps.Close()
	return mapStates(buckets, states, stamps, &b.Config, prot)
}

const (
	markState   = 0x80000000 // PF_MARK_STATE
	markGone    = 0x40000000 // PF_MARK_GONE
	markClaimed = 1          // PF_MARK_CLAIMED
)

// each calls f with the places and contents of the present states, until it returns false. f gets a
// copy of the state.
func (t *stateTable) each(f func(place uint32, s *kernelPfState) bool) {
	var s kernelPfState
	for i := range t.marks {
		m := atomic.LoadUint32(&t.marks[i])
		if m&markState == 0 {
			continue
		}
		s = t.states[i]
		if s.Flags&uint16(kernelPfStateFlagPF_STATE_KEY) != 0 {
			continue // it belongs to a state
		}
		if atomic.LoadUint32(&t.marks[i]) == m && !f(uint32(i), &s) {
			return
		}
	}
}

// stateTwo is PF_STATE_TWO: a state with one of these flags has a second place.
const stateTwo = uint16(kernelPfStateFlagPF_STATE_NAT | kernelPfStateFlagPF_STATE_HOP)

// stackKey returns the contents of the second place of a state, which is translated or has a next
// hop; false if the state has gone meanwhile.
func (t *stateTable) stackKey(place uint32, s *kernelPfState) (k kernelPfState, ok bool) {
	at := s.Diff[0] - 1 // PF_STATE_OTHER
	if s.Flags&stateTwo == 0 || int64(at) >= int64(len(t.states)) {
		return k, false
	}
	k = t.states[at]
	return k, k.Flags&uint16(kernelPfStateFlagPF_STATE_KEY) != 0 && k.Diff[0] == place+1
}

// before returns the key of a state's first packet before any translation, and the side
// that sent it.
func (t *stateTable) before(place uint32, s *kernelPfState) (key kernelPfState, side int) {
	key = *s
	if s.host() == OutOfHost {
		if k, ok := t.stackKey(place, s); ok {
			key = k
		}
	}
	return key, key.initiator()
}

// hopKind returns the word of the rule that set a next hop, from an enum pf_translation_kind.
func hopKind(kind uint32) pf.RouteKind {
	return pf.RouteKind(kind - uint32(kernelPfTranslationKindPF_ROUTE_TO))
}

// diverted returns the socket that gets packets, from an enum pf_translation_kind; nil for none.
func diverted(kind uint32, a kernelPfAddress, port uint16) *pf.Divert {
	if kind < uint32(kernelPfTranslationKindPF_DIVERT_TO) {
		return nil
	}
	return &pf.Divert{Kind: pf.DivertKind(kind - uint32(kernelPfTranslationKindPF_DIVERT_TO)), Addr: a.addr().Unmap(), Port: fromNetwork(port)}
}

// initiator does the same as pf_initiator.
func (s *kernelPfState) initiator() int {
	if s.Flags&uint16(kernelPfStateFlagPF_STATE_SECOND) != 0 {
		return 1
	}
	return 0
}

// addr returns the address and port of a side. For an ICMP query, the port of the querying side is
// the identifier, and the port of the other side is the kind.
func (s *kernelPfState) addr(side int) netip.AddrPort {
	addr := kernelPfAddress{Word: s.Key.Address[side]}
	port := s.Key.Port[side]
	if s.Key.Proto == unix.IPPROTO_ICMP || s.Key.Proto == unix.IPPROTO_ICMPV6 {
		if turned := s.Key.Port[1]&kindTurned != 0; turned == (side == 1) {
			port = s.Key.Port[0]
		} else {
			port = s.Key.Port[1] &^ kindTurned
		}
	}
	return netip.AddrPortFrom(addr.addr(), fromNetwork(port))
}

const kindTurned = 0x40 // PF_KIND_TURNED

// hash does the same as pf_hash of bpf/pf/state.h: it multiplies each word of the key, without the
// profile, by a secret number, and adds the products.
func (t *stateTable) hash(s *kernelPfState) (h uint64) {
	const profile = 0xff << 56 // PF_PROFILE_MASK leaves it out
	for i, w := range (*[5]uint64)(unsafe.Pointer(&s.Key)) {
		if i == 4 {
			w &^= profile
		}
		h += w * t.config.Secret[i]
	}
	return h
}

// homes returns the first places of the two buckets for a hash (pf_home).
func (t *stateTable) homes(hash uint64) [2]uint32 {
	n := uint64(t.config.Buckets)
	second := uint64(uint32((hash ^ hash>>31) * 0x9e3779b97f4a7c15 >> 32))
	return [2]uint32{uint32(hash>>32*n>>32) * stateWays, uint32(second*n>>32) * stateWays}
}

// mark does the same as pf_mark.
func mark(hash uint64) uint32 { return uint32(hash>>24) | markState }

// find returns the place of the state with the key of s.
func (t *stateTable) find(s *kernelPfState) (place uint32, ok bool) {
	h := t.hash(s)
	key := s.Key
	key.Profile = 0
	for _, home := range t.homes(h) {
		for place := home; place < home+stateWays; place++ {
			if atomic.LoadUint32(&t.marks[place]) != mark(h) {
				continue
			}
			has := t.states[place].Key
			has.Profile = 0
			if has == key {
				return place, true
			}
		}
	}
	return 0, false
}

// kept returns the reassemble tcp data of the state at a place, zero if there is none.
func (t *stateTable) kept(place uint32) (r kernelPfReassembly) {
	if t.stamps != nil {
		r = t.stamps[place]
	}
	return r
}

// PF_STAMPS_ON and PF_STAMPS_CHECKED of bpf/pf/types.h.
const (
	stampsOn      = 1 << 0
	stampsChecked = 1 << 1
)

// keptInCopy is the same for a copy of the state. Packets that come between the copy and the change
// of programs raise timestamps in only one of the tables. So the copy compares no timestamp before
// each side has sent a new one: an echo of a timestamp from that time would look like one of a
// timestamp that was not sent yet.
func (t *stateTable) keptInCopy(place uint32) kernelPfReassembly {
	r := t.kept(place)
	for i := range r.Side {
		r.Side[i].Flags &^= stampsChecked
	}
	return r
}

// keep stores the reassemble tcp data of the state at a place.
func (t *stateTable) keep(place uint32, r kernelPfReassembly) {
	if t.stamps != nil {
		t.stamps[place] = r
	}
}

// keepBegun stores the data of those sides that have begun to send timestamps, and have none at the
// place yet.
func (t *stateTable) keepBegun(place uint32, r kernelPfReassembly) {
	now := t.kept(place)
	for i, side := range r.Side {
		if side.Flags&stampsOn != 0 && (now.Side[i].Of != side.Of || now.Side[i].Flags&stampsOn == 0) {
			now.Side[i] = side
		}
	}
	t.keep(place, now)
}

// put adds a state that is not in the table, with its second key if it has one, and with its
// reassemble tcp data; false if there is no room for it.
func (t *stateTable) put(s *kernelPfState, key *kernelPfState, kept kernelPfReassembly) bool {
	if s.Flags&stateTwo == 0 {
		_, ok := t.place(s, kept, true)
		return ok
	}
	if key == nil {
		return false
	}
	at, ok := t.place(s, kept, false)
	if !ok {
		return false
	}
	k := *key
	k.Diff[0] = at + 1
	second, ok := t.place(&k, kernelPfReassembly{}, s.Flags&uint16(kernelPfStateFlagPF_STATE_NAT) != 0)
	if !ok {
		atomic.StoreUint32(&t.marks[at], 0)
		return false
	}
	t.states[at].Diff[0] = second + 1
	atomic.StoreUint32(&t.marks[at], mark(t.hash(s)))
	return true
}

// place puts a state or a key into a free place. The datapath does not find it before it is shown.
func (t *stateTable) place(s *kernelPfState, kept kernelPfReassembly, show bool) (at uint32, ok bool) {
	h := t.hash(s)
	homes := t.homes(h)
	free := func(home uint32) (n int) {
		for place := home; place < home+stateWays; place++ {
			if atomic.LoadUint32(&t.marks[place]) == 0 {
				n++
			}
		}
		return n
	}
	if free(homes[1]) > free(homes[0]) {
		homes[0], homes[1] = homes[1], homes[0]
	}
	for _, home := range homes {
		for place := home; place < home+stateWays; place++ {
			if atomic.CompareAndSwapUint32(&t.marks[place], 0, markClaimed) {
				t.states[place] = *s
				t.keep(place, kept)
				if show {
					atomic.StoreUint32(&t.marks[place], mark(h))
				}
				return place, true
			}
		}
	}
	return 0, false
}

// A stateReader makes States of the entries of the table.
type stateReader struct {
	now      uint32
	states   uint32 // number of present states
	uses     []kernelPfRuleUse
	config   *kernelPfConfig
	profiles []pf.Profile
}

func (b *Bridge) stateReader() (*stateReader, error) {
	r := &stateReader{config: (*kernelPfConfig)(&b.Config.Pf)}
	var err error
	if r.profiles, err = b.PFProfiles(); err != nil {
		return nil, err
	}
	if r.now, err = b.now(); err != nil {
		return nil, err
	}
	if r.uses, err = b.ruleUses(); err != nil {
		return nil, err
	}
	shared, err := b.pfShared()
	r.states = shared.States
	return r, err
}

// ruleUses returns the counters of the rules that all CPUs share.
func (b *Bridge) ruleUses() ([]kernelPfRuleUse, error) {
	m, err := b.openTable(kernelMapPfRuleUse)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	uses, err := readArray[kernelPfRuleUse](m)
	if err != nil {
		return nil, fmt.Errorf("read the rules' use: %w", err)
	}
	return uses, nil
}

// lifetime returns how many seconds a state lasts without a packet
// (pf_lifetime of bpf/pf/life.h).
func (r *stateReader) lifetime(s *kernelPfState) uint32 {
	if int(s.Key.Profile) >= len(r.profiles) {
		return 0
	}
	p := &r.profiles[s.Key.Profile]
	seconds := p.Timeout[statePhase(s)]
	start, end, states := p.Timeout[pf.AdaptiveStart], p.Timeout[pf.AdaptiveEnd], r.states
	rule := s.RuleIn
	if StateFlags(s.Flags)&StateOut != 0 {
		rule = s.RuleOut
	}
	// a rule's own adaptive timeouts depend on the states of that rule
	own := start != r.config.AdaptiveStart || end != r.config.AdaptiveEnd
	if start != 0 && own && s.Ruleset == r.config.Ruleset && rule != 0 && int(rule) <= len(r.uses) {
		states = r.uses[rule-1].States
	} else {
		start, end = r.config.AdaptiveStart, r.config.AdaptiveEnd
	}
	switch {
	case end == 0 || states <= start || start >= end:
		return seconds
	case states >= end:
		return 0
	}
	return uint32(uint64(seconds) * uint64(end-states) / uint64(end-start))
}

// sentBits is PF_SENT_BITS of bpf/pf/types.h.
const sentBits = 46

// sent returns how many packets a side has sent (pf_sent).
func (s *kernelPfState) sent(side int) uint64 { return s.Packets[side] & (1<<sentBits - 1) }

// bytesBits is PF_BYTES_BITS of bpf/pf/types.h.
const bytesBits = 54

// sentBytes returns how many bytes of IP packets a side has sent (pf_sent_bytes).
func (s *kernelPfState) sentBytes(side int) uint64 { return s.Bytes[side] & (1<<bytesBits - 1) }

// statePhase returns the timeout that applies to a state (pf_phase).
func statePhase(s *kernelPfState) pf.TimeoutName {
	low, high := min(s.Peer[0].State, s.Peer[1].State), max(s.Peer[0].State, s.Peer[1].State)
	begins := s.sent(0)+s.sent(1) == 1
	choose := func(first, single, multiple pf.TimeoutName) pf.TimeoutName {
		switch {
		case low >= 2: // PF_MULTIPLE
			return multiple
		case begins:
			return first
		}
		return single
	}
	switch s.Key.Proto {
	case unix.IPPROTO_TCP:
		switch {
		case low >= uint8(kernelPfTcpStatePF_FIN_WAIT_2):
			return pf.TCPClosed
		case low >= uint8(kernelPfTcpStatePF_CLOSING):
			return pf.TCPFinwait
		case low < uint8(kernelPfTcpStatePF_ESTABLISHED):
			return choose(pf.TCPFirst, pf.TCPOpening, pf.TCPOpening)
		case high >= uint8(kernelPfTcpStatePF_CLOSING):
			return pf.TCPClosing
		}
		return pf.TCPEstablished
	case unix.IPPROTO_UDP:
		return choose(pf.UDPFirst, pf.UDPSingle, pf.UDPMultiple)
	case unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6:
		return choose(pf.ICMPFirst, pf.ICMPError, pf.ICMPError)
	}
	return choose(pf.OtherFirst, pf.OtherSingle, pf.OtherMultiple)
}

// left returns how many seconds a state lasts without another packet, and whether it is
// over (pf_state_over).
func (r *stateReader) left(s *kernelPfState) (seconds int64, over bool) {
	idle := max(int32(r.now-s.Used), 0)
	seconds = int64(r.lifetime(s)) - int64(idle)
	return seconds, idle > 1 && seconds <= 0
}

// state returns a state in the form for users; nil if it is over.
func (r *stateReader) state(t *stateTable, place uint32, s *kernelPfState) *State {
	left, over := r.left(s)
	if over {
		return nil
	}
	st := &State{
		ID:   uint64(s.Created)<<32 | uint64(place),
		VLAN: vlanOf(s.Key.Vlan), Proto: s.Key.Proto, In: s.In, Out: s.Out,
		RuleIn: -1, RuleOut: -1, Created: s.Created, Ruleset: s.Ruleset, Rules: [2]int{int(s.RuleIn) - 1, int(s.RuleOut) - 1},
		Age:     time.Duration(max(int32(r.now-s.Created), 0)) * time.Second,
		Expires: time.Duration(max(left, 0)) * time.Second,
		Flags:   StateFlags(s.Flags), Profile: s.Key.Profile,
	}
	st.Host = s.host()
	if s.Ruleset == r.config.Ruleset {
		st.RuleIn, st.RuleOut = int(s.RuleIn)-1, int(s.RuleOut)-1
	}
	first := s.initiator()
	before, side := t.before(place, s)
	after, ok := t.stackKey(place, s)
	if ok && st.Flags&kernelPfStateFlagPF_STATE_HOP != 0 {
		second := (*kernelPfSecond)(unsafe.Pointer(&after))
		hop := kernelPfAddress{Word: second.Hop}
		if st.Divert = diverted(uint32(second.Kind), hop, second.HopPort); st.Divert == nil {
			st.Hop, st.HopKind = hop.addr().Unmap(), hopKind(uint32(second.Kind))
		}
	}
	if ok && st.Flags&kernelPfStateFlagPF_STATE_NAT != 0 {
		if st.Host == OutOfHost {
			after = *s
		}
		n := after.initiator()
		st.Translated = &[2]netip.AddrPort{after.addr(n), after.addr(1 - n)}
	}
	for i, to := range []*StatePeer{&st.From, &st.To} {
		addr := before.addr(side ^ i)
		side := first ^ i
		p := &s.Peer[side]
		*to = StatePeer{
			Addr:  addr,
			State: p.State, Lo: p.Lo, Hi: p.Hi, MaxWin: p.MaxWin, Scale: -1,
			Packets: s.sent(side), Bytes: s.sentBytes(side),
		}
		if p.Scale&0x80 != 0 { // PF_SCALE_KNOWN
			to.Scale = int(p.Scale & 0x0f)
		}
		if st.Flags&kernelPfStateFlagPF_STATE_REWRITE != 0 {
			to.Diff = s.Diff[side]
		}
	}
	return st
}

// fromNetwork converts a number from network byte order.
func fromNetwork(n uint16) uint16 {
	return binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, n))
}

// EachState calls f with the bridge's states that are not over, in no particular order, until f
// returns false. A state may change meanwhile: f may get its former or its present contents, or not
// get it at all. A bridge without pf has no states.
func (b *Bridge) EachState(f func(*State) bool) error {
	return b.eachState(func(st *State, _ uint32, _ *kernelPfState) bool { return f(st) })
}

func (b *Bridge) eachState(f func(st *State, place uint32, s *kernelPfState) bool) error {
	if !b.PFLoaded() {
		return nil
	}
	r, err := b.stateReader()
	if err != nil {
		return err
	}
	t, err := b.states(unix.PROT_READ)
	if err != nil {
		return err
	}
	defer t.close()
	t.each(func(place uint32, s *kernelPfState) bool {
		st := r.state(t, place, s)
		return st == nil || f(st, place, s)
	})
	return nil
}

// StateRulesets returns the rulesets that have made the present states, and the present ruleset.
func (b *Bridge) StateRulesets() (map[uint16]bool, error) {
	used := map[uint16]bool{b.Config.Pf.Ruleset: true}
	if !b.PFLoaded() {
		return used, nil
	}
	t, err := b.states(unix.PROT_READ)
	if err != nil {
		return nil, err
	}
	defer t.close()
	t.each(func(_ uint32, s *kernelPfState) bool {
		used[s.Ruleset] = true
		return true
	})
	return used, nil
}

// KillStates removes the states that match, and returns their number. Their counts are added to the
// counters of their rules, as if the states had expired.
func (b *Bridge) KillStates(match func(*State) bool) (n int, err error) {
	if !b.PFLoaded() {
		return 0, nil
	}
	p, err := openProgram(b.pin(b.gen, controlPin))
	if err != nil {
		return 0, err
	}
	defer p.Close()
	var failed error
	err = b.eachState(func(st *State, place uint32, s *kernelPfState) bool {
		if !match(st) {
			return true
		}
		r := kernelControl{Op: kernelControlOpCONTROL_PF_KILL, Place: place}
		*(*kernelPfState)(unsafe.Pointer(&r.State)) = *s // the same type without a name
		did, err := runControl(p, r)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			failed = fmt.Errorf("remove a state: %w", err)
			return false
		}
		n += did
		return true
	})
	return n, errors.Join(err, failed)
}

// FlushStates removes all states, and returns their number.
func (b *Bridge) FlushStates() (int, error) {
	if !b.PFLoaded() {
		return 0, nil
	}
	n, err := b.control(kernelControl{Op: kernelControlOpCONTROL_PF_FLUSH})
	if err != nil {
		return n, err
	}
	t, err := b.states(unix.PROT_READ)
	if err != nil {
		return n, err
	}
	defer t.close()
	return n, b.shared(func(s *kernelShared) { t.settle(&s.Pf.States) })
}

// PFRuleStats are the counters of a rule, summed over the CPUs, including the counts of its present
// states.
type PFRuleStats struct {
	Evaluations   uint64    // packets that it was found to match
	Packets       [2]uint64 // in, out
	Bytes         [2]uint64
	StatesCreated uint64
	States        uint32 // present states
	Spent         bool   // it is a once rule that has matched
}

// PFTraffic are the counters of pf, including the counts of the present states.
type PFTraffic struct {
	Counters PFCounters
	Rules    []PFRuleStats // by the rules' numbers in Program.Source
	HalfOpen uint64        // unanswered TCP states
}

// PFTraffic returns the counters of pf, with a single pass over its states. Packets that states
// have counted also count as searches.
func (b *Bridge) PFTraffic() (sum PFTraffic, err error) {
	if !b.PFLoaded() {
		return sum, nil
	}
	if err := b.pfCounters(&sum.Counters); err != nil {
		return sum, err
	}
	r, err := b.stateReader()
	if err != nil {
		return sum, err
	}
	if sum.Rules, err = b.pfRuleStats(r.uses); err != nil {
		return sum, err
	}
	t, err := b.states(unix.PROT_READ)
	if err != nil {
		return sum, err
	}
	defer t.close()
	t.each(func(_ uint32, s *kernelPfState) bool {
		sum.Counters[PFSearches] += s.sent(0) + s.sent(1)
		if _, over := r.left(s); over {
			return true
		}
		if s.Key.Proto == unix.IPPROTO_TCP && min(s.Peer[0].State, s.Peer[1].State) < uint8(kernelPfTcpStatePF_ESTABLISHED) {
			sum.HalfOpen++
		}
		if s.Ruleset == r.config.Ruleset {
			s.count(sum.Rules)
		}
		return true
	})
	for i := range sum.Rules {
		r := &sum.Rules[i]
		for _, n := range []*uint64{&r.Packets[0], &r.Packets[1], &r.Bytes[0], &r.Bytes[1]} {
			if int64(*n) < 0 { // ZeroPFRuleStats has subtracted what an expired state will still add
				*n = 0
			}
		}
	}
	return sum, nil
}

// pfRuleStats returns the counters of the rules, without the counts of the present states.
func (b *Bridge) pfRuleStats(uses []kernelPfRuleUse) ([]PFRuleStats, error) {
	list := make([]PFRuleStats, b.Config.Pf.Rules)
	if len(list) == 0 {
		return list, nil
	}
	counters, err := b.openTable(kernelMapPfRuleStats)
	if err != nil {
		return nil, err
	}
	defer counters.Close()
	perCPU, err := perCPUs[kernelPfRuleStats](counters, len(list))
	if err != nil {
		return nil, fmt.Errorf("read the rules' counters: %w", err)
	}
	cpus := len(perCPU) / len(list)
	for i, s := range perCPU {
		r := &list[i/cpus]
		r.Evaluations += s.Evaluations
		r.StatesCreated += s.States
		for out := range r.Packets {
			r.Packets[out] += s.Packets[out]
			r.Bytes[out] += s.Bytes[out]
		}
	}
	for i := range list { // if a rule was expanded to several, the first one has these
		list[i].States, list[i].Spent = uses[i].States, uses[i].Spent != 0
	}
	return list, nil
}

// perCPUs returns the first n entries of an array, each with a value for every CPU.
func perCPUs[V any](m *ebpf.Map, n int) ([]V, error) {
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return nil, err
	}
	values := make([]V, n*cpus)
	if _, err := m.BatchLookup(new(ebpf.MapBatchCursor), make([]uint32, n), values, nil); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, err
	}
	return values, nil
}

// count adds the counts of a state to its rules. Packets of the side that made it come in at the
// rule in, and go out at the rule out. Answers go in the opposite direction at both. At the host,
// both rules apply to the host's interface, in one direction.
func (s *kernelPfState) count(list []PFRuleStats) {
	from := s.initiator()
	add := func(rule uint32, out int) {
		if rule == 0 || int64(rule) > int64(len(list)) {
			return
		}
		r := &list[rule-1]
		r.Packets[out] += s.sent(from)
		r.Bytes[out] += s.sentBytes(from)
		r.Packets[1-out] += s.sent(1 - from)
		r.Bytes[1-out] += s.sentBytes(1 - from)
	}
	in, out := 0, 1
	switch s.host() {
	case IntoHost:
		out = 0
	case OutOfHost:
		in = 1
	}
	add(uint32(s.RuleIn), in)
	add(uint32(s.RuleOut), out)
}

// ZeroPFRuleStats sets the counters of rules to zero. The present states keep their counts, so
// their present counts are subtracted.
func (b *Bridge) ZeroPFRuleStats() error {
	if !b.PFLoaded() || b.Config.Pf.Rules == 0 {
		return nil
	}
	m, err := b.openTable(kernelMapPfRuleStats)
	if err != nil {
		return err
	}
	defer m.Close()
	t, err := b.states(unix.PROT_READ)
	if err != nil {
		return err
	}
	defer t.close()
	had := make([]PFRuleStats, b.Config.Pf.Rules)
	t.each(func(_ uint32, s *kernelPfState) bool {
		if s.Ruleset == b.Config.Pf.Ruleset {
			s.count(had)
		}
		return true
	})
	for i := range had {
		n := &had[i]
		for way := range n.Packets {
			n.Packets[way], n.Bytes[way] = -n.Packets[way], -n.Bytes[way]
		}
	}
	return beginCounts(m, had)
}

// beginCounts sets the counters of rules to these, by the rules' numbers, and others to zero.
func beginCounts(m *ebpf.Map, from []PFRuleStats) error {
	cpus := ebpf.MustPossibleCPU()
	indices := make([]uint32, m.MaxEntries())
	values := make([]kernelPfRuleStats, len(indices)*cpus)
	for i := range indices {
		indices[i] = uint32(i)
	}
	for i, n := range from {
		values[i*cpus] = kernelPfRuleStats{Evaluations: n.Evaluations, Packets: n.Packets, Bytes: n.Bytes, States: n.StatesCreated}
	}
	if _, err := m.BatchUpdate(indices, values, nil); err != nil {
		return fmt.Errorf("write %s: %w", kernelMapPfRuleStats, err)
	}
	return nil
}

// PFCounter indexes the result of PFCounters (enum pf_counter).
type PFCounter = kernelPfCounter

// The counters of pfctl -s info.
const (
	PFSearches      = kernelPfCounterPF_COUNT_SEARCHES
	PFInserts       = kernelPfCounterPF_COUNT_INSERTS
	PFRemovals      = kernelPfCounterPF_COUNT_REMOVALS
	PFMatched       = kernelPfCounterPF_COUNT_MATCH
	PFNoRoute       = kernelPfCounterPF_COUNT_NO_ROUTE
	PFFragment      = kernelPfCounterPF_COUNT_FRAGMENT
	PFShort         = kernelPfCounterPF_COUNT_SHORT
	PFNormalize     = kernelPfCounterPF_COUNT_NORMALIZE
	PFMemory        = kernelPfCounterPF_COUNT_MEMORY
	PFTimestamp     = kernelPfCounterPF_COUNT_TIMESTAMP
	PFIPOption      = kernelPfCounterPF_COUNT_IP_OPTION
	PFDivert        = kernelPfCounterPF_COUNT_DIVERT
	PFStateMismatch = kernelPfCounterPF_COUNT_STATE_MISMATCH
	PFStateInsert   = kernelPfCounterPF_COUNT_STATE_INSERT
	PFStateLimit    = kernelPfCounterPF_COUNT_STATE_LIMIT
	PFSrcLimit      = kernelPfCounterPF_COUNT_SRC_LIMIT
	PFSynproxy      = kernelPfCounterPF_COUNT_SYNPROXY
	PFTranslate     = kernelPfCounterPF_COUNT_TRANSLATE
	PFMaxStates     = kernelPfCounterPF_COUNT_MAX_STATES
	PFMaxSrcStates  = kernelPfCounterPF_COUNT_MAX_SRC_STATES
	PFMaxSrcNodes   = kernelPfCounterPF_COUNT_MAX_SRC_NODES
	PFMaxSrcConn    = kernelPfCounterPF_COUNT_MAX_SRC_CONN
	PFMaxSrcRate    = kernelPfCounterPF_COUNT_MAX_SRC_RATE
	PFOverload      = kernelPfCounterPF_COUNT_OVERLOAD
	PFOverloadFlush = kernelPfCounterPF_COUNT_OVERLOAD_FLUSH
	PFSynfloods     = kernelPfCounterPF_COUNT_SYNFLOODS
	pfCounters      = kernelPfCounterPF_COUNTERS
)

// PFCounters are counters of pf, by PFCounter.
type PFCounters [pfCounters]uint64

// pfCounters reads the counters of pf, summed over the CPUs, without the counts of the present
// states.
func (b *Bridge) pfCounters(sum *PFCounters) error {
	m, err := b.openTable(kernelMapCounters)
	if err != nil {
		return err
	}
	defer m.Close()
	for i := range sum {
		if sum[i], err = counterOf(m, kernelCounterCOUNTER_PF+kernelCounter(i)); err != nil {
			return err
		}
	}
	return nil
}

// statePackets returns how many packets the present states have counted.
func (b *Bridge) statePackets() (n uint64, err error) {
	t, err := b.states(unix.PROT_READ)
	if err != nil {
		return 0, err
	}
	defer t.close()
	t.each(func(_ uint32, s *kernelPfState) bool {
		n += s.sent(0) + s.sent(1)
		return true
	})
	return n, nil
}

// ZeroPFCounters sets the counters of pf and the counters of `set loginterface`'s port to zero.
func (b *Bridge) ZeroPFCounters() error {
	if !b.PFLoaded() {
		return nil
	}
	m, err := b.openTable(kernelMapCounters)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := errors.Join(zeroPFCounters(m), zeroPortCounters(m)); err != nil {
		return err
	}
	// States keep their counts.
	n, err := b.statePackets()
	if err != nil {
		return err
	}
	perCPU := make([]uint64, ebpf.MustPossibleCPU())
	perCPU[0] = -n
	return m.Put(uint32(kernelCounterCOUNTER_PF)+uint32(PFSearches), perCPU)
}

// zeroPFCounters sets pf's counters, which are in the bridge's table of counters, to zero.
func zeroPFCounters(m *ebpf.Map) error {
	for i := range kernelCounter(pfCounters) {
		if err := zeroCounters(m, kernelCounterCOUNTER_PF+i); err != nil {
			return err
		}
	}
	return nil
}

// zeroPortCounters sets the counters of `set loginterface`'s port to zero.
func zeroPortCounters(m *ebpf.Map) error {
	for i := range portCounters {
		if err := zeroCounters(m, kernelCounterCOUNTER_PF_PORT+i); err != nil {
			return err
		}
	}
	return nil
}

// portCounters is the number of words of struct pf_port_stats (bpf/pf/types.h): the packets, and
// then the bytes.
const portCounters = kernelCounter(unsafe.Sizeof(kernelPfPortStats{}) / 8)

// PFPortStats are the numbers of a port's packets that pf has passed or blocked, and their bytes,
// including IP headers. They are counted by family (IPv4, IPv6), direction (in, out) and decision
// (passed, blocked).
type PFPortStats struct {
	Packets, Bytes [2][2][2]uint64
}

// PFPortStats returns the counters of the port of PF.LogInterface.
func (b *Bridge) PFPortStats() (sum PFPortStats, err error) {
	if !b.PFLoaded() {
		return sum, nil
	}
	m, err := b.openTable(kernelMapCounters)
	if err != nil {
		return sum, err
	}
	defer m.Close()
	for cell := range portCounters {
		n, err := counterOf(m, kernelCounterCOUNTER_PF_PORT+cell)
		if err != nil {
			return sum, fmt.Errorf("read the port's counters: %w", err)
		}
		of := &sum.Packets
		if cell >= portCounters/2 {
			of = &sum.Bytes
		}
		of[cell>>2&1][cell>>1&1][cell&1] = n
	}
	return sum, nil
}

// PFInfo is the present status of pf.
type PFInfo struct {
	Enabled   bool
	Since     time.Duration // since pf was enabled or disabled
	States    uint32
	StatesMax uint32
	Nodes     uint32 // sources
	NodesMax  uint32
	Rules     int
}

// PFInfo returns the present status of pf.
func (b *Bridge) PFInfo() (info PFInfo, err error) {
	if !b.PFLoaded() {
		return info, nil
	}
	c := &b.Config.Pf
	shared, err := b.pfShared()
	if err != nil {
		return info, err
	}
	now, err := b.now()
	return PFInfo{
		Enabled: b.PFEnabled(), Since: time.Duration(max(int32(now-c.Since), 0)) * time.Second,
		States: shared.States, StatesMax: c.StatesMax,
		Nodes: shared.Nodes, NodesMax: c.NodesMax, Rules: int(c.Rules),
	}, err
}
