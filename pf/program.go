// SPDX-License-Identifier: BSD-2-Clause

package pf

// A Program is a ruleset as the datapath looks it up. Its numbers and layouts are defined in
// bpf/pf/types.h. The datapath's tests compare the two.
//
// Cells, Ports, Sets, Pools and Limiters are one table of words, in that order. A place is the index of
// a word in it. A rule's number is its index in Rules. Each value of each field has a set of rules in
// Sets. For each group of 4096 rules, the set records which of the group's 64 words are in use, and
// where these words are. A packet matches the rules that are in the sets of all its fields.
type Program struct {
	Rules    []CompiledRule
	Groups   uint32       // number of groups of GroupRules rules
	Dims     uint32       // bit N: a rule has a condition on Dim N
	Sets     []uint64     // sets of rules
	Pools    []uint64     // translations with their pools (struct pf_translation), which stand behind the sets
	Cells    []uint32     // Cells: the place of a value's set; for a Dim that is not in Dims, of the first set
	Networks []Network    // prefixes, in ascending order, larger networks before the networks in them
	Ports    [][16]uint64 // sets of slots, for received-on and for ether's on; their names are index + 1
	Profiles []Profile
	Ether    []CompiledEther
	Asks     uint32 // Ask...
	Anchors  []string
	Whole    []string  // the anchors called for all packets, or for all packets of the port with their name
	Source   []RuleRef // source of each of Rules
	// Translations has the translations of each of Rules, in the order in which they are made:
	// RdrTo, then NatTo; or AfTo. Nil: no rule has one. A match rule's are made at once, so that
	// later rules see the new addresses. The last passing rule's are made at the end.
	Translations [][]Translation
	// Routes has the next hops of each of Rules, nil for a rule without. Nil: no rule has one.
	Routes []*Route
	// PoolTables has the numbers of the tables that Translations and Routes name, from Input.Table.
	PoolTables map[TableRef]int
	// Timeouts are the ruleset's timeouts; rules may override them.
	Timeouts [TimeoutCount]uint32
	Tables   bool     // a limiter has a table
	Limiters []uint64 // of states and of sources, behind the pools; see limiterIDs
	Limited  uint64   // largest number of limiters, and of their sources
}

// PortsAt returns the place of the set of ports with a number. No set has number 0.
func PortsAt(number int) int { return Cells + number*(MaxPorts/64) }

// SetsAt returns the place of the first of Sets.
func (p *Program) SetsAt() int { return PortsAt(len(p.Ports) + 1) }

// PoolsAt returns the place of the first of Pools.
func (p *Program) PoolsAt() int { return p.SetsAt() + len(p.Sets) }

// LimitersAt returns the place of the first of Limiters.
func (p *Program) LimitersAt() int { return p.PoolsAt() + len(p.Pools) }

// Words returns the number of words in the table.
func (p *Program) Words() int { return p.LimitersAt() + len(p.Limiters) }

// RuleRef is the origin of a rule of a Program. If an anchor is called several times, its rules are in
// the Program that many times.
type RuleRef struct {
	Anchor string // path of its ruleset, "" for the main one
	Index  int    // index in the ruleset's Rules: its number in pfctl -vvsr
	Rule   *Rule
}

// TableRef is a table's name in a rule.
type TableRef struct {
	Anchor string // path of the rule's ruleset, as in RuleRef
	Name   string
}

// Network has the sets of rules that take an address, for addresses whose longest network it is. IPv4 is
// in ::ffff:0:0/96 (RFC 4291, 2.5.5.2).
type Network struct {
	Address  [16]byte
	Bits     uint8
	Src, Dst uint32 // places of sets
}

// CompiledRule is struct pf_rule.
type CompiledRule struct {
	Action       uint32 // as Action
	Flags        uint32 // Rule...
	End          uint32
	Probability  uint32
	Tag          uint32
	Tagged       uint32
	Max          uint32
	MaxSrcNodes  uint32
	MaxSrcStates uint32
	MaxSrcConn   uint32
	MaxSrcRate   uint32
	MaxSrcSecs   uint32
	Nr           uint16
	Anchor       uint16 // in Program.Anchors
	Received     uint16
	SrcTable     uint8
	DstTable     uint8
	Overload     uint8
	Profile      uint8 // in Program.Profiles
	Priority     uint8
	Answer       uint8 // Answer...
	TTL          uint8
	LogTo        uint8
	ICMP4        [2]uint8
	ICMP6        [2]uint8
	Scrub        CompiledScrub
	Translation  uint32 // place of its first translation
	Translations uint32 // number of translations; each family counts
	Route        uint32 // place of the first pool of its next hops
	Routes       uint32 // number of pools, one for each family
	First        uint32 // first number of the rule, where its uses count: its anchor may be called several times
}

// CompiledScrub is struct pf_scrub.
type CompiledScrub struct {
	MaxMSS uint16
	MinTTL uint8
	TOS    uint8
	Flags  uint32 // Scrub...
}

// Profile is struct pf_profile.
type Profile struct {
	Timeout  [TimeoutCount]uint32
	Priority [2]uint8
	Limiter  [2]uint8     // IDs of the state and the source limiter for which a state counts, 0 for none
	Bits     [2]uint8     // prefix lengths of a limited source: for IPv4 addresses in their IPv6 form, and for IPv6
	Keeps    uint16       // seconds for which a source without states is kept
	Mask     [2][16]uint8 // of Bits
}

// CompiledEther is struct pf_ether. Program.Ether has the main ruleset's rules in their order.
type CompiledEther struct {
	Src, SrcMask uint64
	Dst, DstMask uint64
	Action       uint32
	Flags        uint32 // Ether...
	Tag          uint32
	Tagged       uint32
	Type         uint16 // as in a frame
	Ports        uint16
	Pad          uint32
	L3           [2]EtherPrefix
	Table        [2]uint8
	Pad2         [6]uint8
}

// EtherPrefix is struct pf_prefix.
type EtherPrefix struct {
	Bits    uint32
	Address [16]byte
}

// The limits of the datapath's look-up.
const (
	MaxRules    = 65534
	GroupRules  = 4096
	MaxTables   = 64
	MaxProfiles = 256
	MaxPorts    = 1024 // slots
)

const groupWords = GroupRules / 64

// The fields of a packet that are looked up (enum pf_dim).
const (
	DimPort = iota
	DimProto
	DimSrc
	DimDst
	DimSport
	DimDport
	DimFlags
	DimTOS
	Dims
)

// The cells of the values of fields (enum pf_cell).
const (
	CellPort         = 0
	CellProto        = CellPort + 2*MaxPorts
	CellFlags        = CellProto + 512
	CellFlagsOther   = CellFlags + 256
	CellFlagsUnknown = CellFlagsOther + 1
	CellTOS          = CellFlagsUnknown + 1
	CellSport        = CellTOS + 512
	CellSportOther   = CellSport + 65536
	CellSportUnknown = CellSportOther + 1
	CellDport        = CellSportUnknown + 1
	CellICMP4        = CellDport + 65536
	CellICMP6        = CellICMP4 + 65536
	CellDportOther   = CellICMP6 + 65536
	CellDportUnknown = CellDportOther + 1
	Cells            = CellDportUnknown + 1
)

// Skip is in the cells of ports that pf skips.
const Skip = ^uint32(0)

// Skips reports whether pf skips the port in a slot.
func (p *Program) Skips(slot uint16) bool { return p.Cells[CellPort+2*int(slot)] == Skip }

// The flags of a CompiledRule (enum pf_rule_flag). RuleNotSrcTable and RuleNotDstTable also negate
// no-route and urpf-failed, which take a table's place.
const (
	RuleLog = 1 << iota
	RuleLogAll
	RuleLogMatches
	RuleNotTagged
	RuleNotSrcTable
	RuleNotDstTable
	RuleNotReceived
	RuleAllowOpts
	RuleKeep
	RuleModulate
	RuleSynproxy
	RuleSloppy
	RuleIfBound
	RuleTrackRule
	RuleTrackGlobal
	RuleFlush
	RuleFlushGlobal
	RuleOnce
	RuleSrcNoRoute
	RuleDstNoRoute
	RuleSrcURPFFailed
	RuleTranslates
	RuleTranslatesOn
	RuleTranslatesFamily
	RuleRoutesOn
	RuleLimited
	RuleStateNoMatch
	RuleSourceNoMatch
)

// The flags of a CompiledScrub (enum pf_scrub_flag).
const (
	ScrubNoDF = 1 << iota
	ScrubRandomID
	ScrubSetTOS
	ScrubReassemble
)

// The answers of a block (enum pf_return).
const (
	AnswerNothing = iota
	AnswerRST
	AnswerICMP
	AnswerBoth
)

// The conditions that at least one rule has (enum pf_ask).
const (
	AskRoute = 1 << iota
	AskPriority
	AskTag
	AskRandom
	AskOnce
	AskReceived
	AskEtherL3
	AskPools
	AskLoopback
)

// The flags of a CompiledEther (enum pf_ether_flag).
const (
	EtherIn = 1 << iota
	EtherOut
	EtherQuick
	EtherNotSrc
	EtherNotDst
	EtherNotL3Src
	EtherNotL3Dst
	EtherNotTagged
)
