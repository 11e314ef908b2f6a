// SPDX-License-Identifier: BSD-2-Clause

// Package pf implements the language of pf.conf(5) for a bridge. It parses and prints rulesets,
// and compiles them to tables that the datapath looks up. It does not depend on maps, devices
// or bridges.
package pf

import (
	"net/netip"
	"time"
)

// Pos is a place in a file. Lines and columns count from 1; columns are bytes.
type Pos struct {
	File   string
	Line   int
	Column int
}

// Ruleset has the contents of a file with its macros, includes and lists expanded: options,
// tables, and the rules in the order in which they are tried.
type Ruleset struct {
	Options Options
	Tables  []Table // in the order of their definitions; anchors have their own
	// Limiters that rules name, including rules of anchors. Only the main ruleset has any.
	StateLimiters  []StateLimiter
	SourceLimiters []SourceLimiter
	Rules          []Rule
	Ether          []EtherRule
	Loads          []AnchorLoad
	Ignored        []Idle     // what was read and left out; it is not printed
	Names          []PortName // of the file, in their order; anchors have none of their own
}

// PortName is a name of a port, an interface or a group in a file.
type PortName struct {
	Pos  Pos
	Word string // the word in front of it, such as "on", "on !" and "set skip on"; or Addresses
	Name string
}

// Addresses is the Word of an interface that means its addresses: (wan0).
const Addresses = "the addresses of"

// AnchorLoad is a ruleset that `load anchor` puts into an anchor.
type AnchorLoad struct {
	Pos     Pos
	Name    string   // relative to the ruleset with the load
	File    string   // as written
	Ruleset *Ruleset // its Options applied to its own rules when they were read, and have no other meaning
}

// Action is the action of a rule.
type Action uint8

// The actions. An anchor is a rule whose Body is tried in its place.
const (
	Pass Action = iota
	Block
	Match
	CallAnchor
)

// Direction is the direction of a packet through a port, from the bridge's view.
type Direction uint8

// The directions.
const (
	Both Direction = iota
	In
	Out
)

// Family is an address family.
type Family uint8

// The families; 0 means any.
const (
	Inet  Family = 4
	Inet6 Family = 6
)

// Return is the answer of `block`.
type Return uint8

// The answers of a block rule. ReturnPolicy is the answer of `set
// block-policy`.
const (
	ReturnPolicy Return = iota
	ReturnDrop          // block drop
	ReturnAll           // block return: RST to TCP, unreachable to the rest
	ReturnRST           // block return-rst [(ttl N)]
	ReturnICMP          // block return-icmp, return-icmp6
)

// ICMPCode is a type and code of ICMP, with the names of `return-icmp(port-unr)`.
type ICMPCode struct {
	Type, Code uint8
}

// Log chooses which of a rule's packets are logged.
type Log uint8

// The options of log, as bits.
const (
	Logged     Log = 1 << iota // the packet that the rule applies to
	LogAll                     // every packet of the connection
	LogMatches                 // and every rule that matches it
	LogUser                    // accepted, but a bridge has no users
)

// Interface is the argument of `on` and `received-on`: a port, a group of ports, or "any". The
// zero value means no condition.
type Interface struct {
	Name string
	Not  bool
}

// Rule is a filter rule, or the call of an anchor.
type Rule struct {
	Pos    Pos
	Action Action
	Return Return
	// For ReturnRST: the TTL, 0 for the default. For ReturnAll and ReturnICMP: the
	// answer, zero for the default (port unreachable).
	ReturnTTL   uint8
	ReturnICMP4 ICMPCode
	ReturnICMP6 ICMPCode

	Direction  Direction
	Log        Log
	LogTo      string // "pflog1"; empty for pflog0
	Quick      bool
	On         Interface
	ReceivedOn Interface
	Family     Family
	HasProto   bool
	Proto      uint8 // IP protocol number
	From, To   Endpoint

	Flags     TCPFlags // given by the rule, or by default
	HasICMP   bool
	ICMPType  uint8
	HasCode   bool
	ICMPCode  uint8
	HasTOS    bool
	TOS       uint8
	Fragment  bool
	AllowOpts bool
	Once      bool
	HasPrio   bool // prio N: packets of this priority
	Prio      uint8
	SetPrio   [2]uint8 // set prio N or (N, M), each + 1; 0 for none
	Scrub     Scrub

	Translations []Translation // in the order in which they are made: RdrTo, then NatTo; or AfTo
	Route        *Route
	Divert       *Divert

	State     Keep
	StateOpts StateOptions
	// Limiters of the states that the rule makes.
	StateLimiter, SourceLimiter Limiter
	Tag                         string
	Tagged                      string
	NotTagged                   bool
	Label                       string
	Labels                      []string // further labels behind Label: at most four
	ID                          uint32   // ridentifier, 0 for none; only the log shows it
	User, Group                 *Owner   // nil means no condition
	Probability                 float64  // 0 < p <= 1; 0 means no condition

	Anchor *Anchor // of CallAnchor
}

// Scrub has the changes of a rule to the packets of its connections: scrub, and set tos. Values
// that are not given are zero.
type Scrub struct {
	NoDF     bool
	RandomID bool
	MinTTL   uint8
	MaxMSS   uint16 // bytes
	SetTOS   bool
	TOS      uint8 // of SetTOS
	// ReassembleTCP checks the packets of TCP connections by a state: reassemble tcp.
	ReassembleTCP bool
}

// Anchor is a place where the rules of another ruleset are tried.
type Anchor struct {
	Name string   // as written, with "/*" at its end if all anchors below it are tried; empty if it has none
	Body *Ruleset // between braces; nil if it has none. Options are zero
	Only Part     // for FreeBSD's nat-anchor and its kin; 0 means all parts that these do not try
}

// Part is a part of a ruleset, by the kind of its rules.
type Part uint8

// The parts, as bits. Each rule is in one. A rule with rdr-to and nat-to is in two.
const (
	NATPart Part = 1 << iota
	RDRPart
	ScrubPart
	FilterPart
	allParts = NATPart | RDRPart | ScrubPart | FilterPart
)

// Owner is the argument of user and group: the owner of the socket of a packet. The names are
// as written.
type Owner struct {
	Op     PortOp
	Lo, Hi string
}

// never reports whether no packet matches the condition. A switch does not know the owner of
// any packet, as a router does not know the owner of a forwarded packet (pf_match_uid() of
// OpenBSD's pf).
func (o *Owner) never() bool {
	switch {
	case o == nil:
		return false
	case o.Op == PortEqual:
		return o.Lo != unknownOwner
	case o.Op == PortNotEqual:
		return o.Lo == unknownOwner
	}
	return true
}

const unknownOwner = "unknown"

// AllLabels returns the labels of the rule.
func (r *Rule) AllLabels() []string {
	if r.Label == "" {
		return nil
	}
	return append([]string{r.Label}, r.Labels...)
}

// Never reports whether no packet of a bridge matches the rule.
func (r *Rule) Never() bool { return r.User.never() || r.Group.never() }

// Endpoint is one side of from and to: a host and, for TCP and UDP, its ports.
type Endpoint struct {
	Not  bool
	Host Host
	Port Port
}

// HostKind is the kind of a Host.
type HostKind uint8

// The kinds of hosts.
const (
	AnyHost    HostKind = iota
	Prefix              // Addr/Bits
	Wildcard            // Addr with any netmask: Mask
	Range               // Addr - Last
	InTable             // <Name>
	Dynamic             // (Name:modifiers)
	NoRoute             // no-route
	URPFFailed          // urpf-failed
)

// Host is an address or a set of them.
type Host struct {
	Kind  HostKind
	Addr  netip.Addr // Prefix: masked
	Bits  int        // Prefix, and of Dynamic if it has a mask; -1 otherwise
	Last  netip.Addr // Range
	Name  string     // InTable, Dynamic
	Modes []string   // Dynamic: "network", "broadcast", "peer", "0", in this order
}

// PortOp is a comparison of ports.
type PortOp uint8

// The operators, as pf.conf(5) writes them.
const (
	AnyPort      PortOp = iota
	PortEqual           // =
	PortNotEqual        // !=
	PortLess            // <
	PortAtMost          // <=
	PortGreater         // >
	PortAtLeast         // >=
	PortInside          // lo >< hi, without the two
	PortOutside         // lo <> hi, without the two
	PortRange           // lo:hi, with the two
)

// Port is a condition on a port.
type Port struct {
	Op     PortOp
	Lo, Hi uint16
}

// TCPFlags is a condition on the flags of TCP: of the flags in Of, exactly the flags in Set are
// set. Of == 0 means any.
type TCPFlags struct {
	Set, Of uint8
}

// The flags, as in a packet.
const (
	FIN uint8 = 1 << iota
	SYN
	RST
	PSH
	ACK
	URG
	ECE
	CWR
)

// Keep is whether a rule keeps state, and how.
type Keep uint8

// How state is kept. Rules that pass have KeepState by default; others have NoState.
const (
	NoState Keep = iota
	KeepState
	ModulateState
	SynproxyState
)

// StateOptions are the options in parentheses behind keep state. Values that are not given are
// zero.
type StateOptions struct {
	Max            uint32
	NoSync         bool
	SourceTrack    SourceTrack
	MaxSrcNodes    uint32
	MaxSrcStates   uint32
	MaxSrcConn     uint32
	MaxSrcConnRate uint32 // connections
	MaxSrcConnSecs uint32 // in this many seconds
	Overload       string // table
	OverloadFlush  bool   // flush: states that the rule made
	OverloadGlobal bool   // flush global: all of the source
	Policy         StatePolicy
	Sloppy, Pflow  bool
	Timeouts       Timeouts
}

// SourceTrack chooses which states of a source are counted together.
type SourceTrack uint8

// The kinds of source tracking.
const (
	NoSourceTrack SourceTrack = iota
	SourceTrackGlobal
	SourceTrackRule
)

// StatePolicy chooses where a state is valid.
type StatePolicy uint8

// The policies. The zero value means the policy of `set state-policy`, or floating.
const (
	DefaultPolicy StatePolicy = iota
	Floating
	IfBound
)

// TimeoutName indexes Timeouts.
type TimeoutName int

// The timeouts of pf.conf(5), in the order in which pfctl prints them.
const (
	TCPFirst TimeoutName = iota
	TCPOpening
	TCPEstablished
	TCPClosing
	TCPFinwait
	TCPClosed
	TCPTsdiff
	UDPFirst
	UDPSingle
	UDPMultiple
	ICMPFirst
	ICMPError
	OtherFirst
	OtherSingle
	OtherMultiple
	Frag
	Interval
	AdaptiveStart // states
	AdaptiveEnd   // states
	SrcTrack
	TimeoutCount
)

// Timeout is a value and whether it is given at all.
type Timeout struct {
	Given bool
	Value uint32 // seconds; of the adaptive ones, states
}

// Timeouts are the timeouts that a file or a rule gives.
type Timeouts [TimeoutCount]Timeout

// LimitName indexes Limits.
type LimitName int

// The limits of pf.conf(5), in the order in which pfctl prints them.
const (
	LimitStates LimitName = iota
	LimitSrcNodes
	LimitFrags
	LimitTables
	LimitTableEntries
	LimitAnchors
	LimitCount
)

// Limit is a limit and whether it is given at all.
type Limit struct {
	Given bool
	Value uint32
}

// Options are the values of `set`. Values that are not given are zero.
type Options struct {
	Skip          []Interface // set skip on
	BlockPolicy   Return      // ReturnDrop or ReturnAll
	StatePolicy   StatePolicy
	StateDefaults *StateOptions
	Timeouts      Timeouts
	Limits        [LimitCount]Limit
	Optimization  string // default, normal, high-latency, satellite, aggressive, conservative
	RulesetOpt    string // none, basic, profile
	LogInterface  string
	Debug         string
	Reassemble    string // "yes", "no", "yes no-df"; the manual has the meaning on a bridge
	HostID        string
	FailPolicy    string // "drop", "return"
	KeepCounters  bool
	Syncookies    string // "never"
	IgnoreQueue   bool   // set ignore queue: queues and their assignments are left out
	Fingerprints  string
	Order         []string // names of what was set, in the order of the file, for printing
}

// Table is a table's definition.
type Table struct {
	Pos      Pos
	Name     string
	Persist  bool
	Const    bool
	Counters bool
	Given    bool         // it has a list or a file: a load sets its contents
	Files    []string     // as written
	Entries  []TableEntry // from the list and the files
}

// TableEntry is an address or network of a table.
type TableEntry struct {
	Not      bool
	Prefix   netip.Prefix // masked
	FromFile bool         // from one of the table's files; the file is printed instead
}

// EtherRule is a rule for frames with any contents (FreeBSD's pf.conf(5), ETHERNET FILTERING).
type EtherRule struct {
	Pos       Pos
	Action    Action // Pass or Block
	Direction Direction
	Quick     bool
	On        Interface
	HasProto  bool
	Proto     uint16 // EtherType
	From, To  EtherHost
	L3From    Host // AnyHost, Prefix or InTable
	L3FromNot bool
	L3To      Host
	L3ToNot   bool
	Tag       string
	Tagged    string
	NotTagged bool
	Labels    []string // at most five
	ID        uint32   // ridentifier, 0 for none; only the log shows it
}

// EtherHost is a MAC address under a mask. A mask of 0 means any.
type EtherHost struct {
	Not       bool
	MAC, Mask [6]byte
}

// DefaultTimeouts returns the timeouts of pf.conf(5).
func DefaultTimeouts() [TimeoutCount]uint32 {
	seconds := func(d time.Duration) uint32 { return uint32(d / time.Second) }
	return [TimeoutCount]uint32{
		TCPFirst:       120,
		TCPOpening:     30,
		TCPEstablished: seconds(24 * time.Hour),
		TCPClosing:     seconds(15 * time.Minute),
		TCPFinwait:     45,
		TCPClosed:      90,
		TCPTsdiff:      30,
		UDPFirst:       60,
		UDPSingle:      30,
		UDPMultiple:    60,
		ICMPFirst:      20,
		ICMPError:      10,
		OtherFirst:     60,
		OtherSingle:    30,
		OtherMultiple:  60,
		Frag:           60,
		Interval:       10,
		AdaptiveStart:  60000,
		AdaptiveEnd:    120000,
		SrcTrack:       0,
	}
}

// DefaultLimits returns the limits of pf.conf(5), except for tables: a bridge has 64 at most.
func DefaultLimits() [LimitCount]uint32 {
	return [LimitCount]uint32{
		LimitStates:       100000,
		LimitSrcNodes:     10000,
		LimitFrags:        65536 / 4,
		LimitTables:       64,
		LimitTableEntries: 200000,
		LimitAnchors:      512,
	}
}
