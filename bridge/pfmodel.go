// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"net/netip"
	"time"

	"bascule/pf"
	"bascule/pflog"
)

// PFLoad is a load of pf.
type PFLoad struct {
	Name   string // of the file, for errors
	Text   []byte
	Source pf.Source // its Lookup is used for names that no interface has
	Anchor string    // path of the anchor that the rules are for; "" is the main ruleset
	Check  bool      // only check whether it could be loaded
	Enable *bool     // whether pf is on afterwards; nil: it is, unless it was switched off

	TablesOnly bool // leave rules and options as they are
	Later      bool // ports, routes and addresses come yet: NotesPF tells afterwards what rules miss

	// Ahead are the permanent addresses that interfaces of the host get after the load, by name.
	// Rules that name an interface as an address have these, be it there or not.
	Ahead map[string][]netip.Prefix
}

// Is says whether a name is that of the port, or of a group that it is in.
func (p PFPort) Is(name string) bool { return pf.CompilePort{Name: p.Name, Groups: p.Groups}.Is(name) }

// PFInfo has the facts of a bridge's pf.
type PFInfo struct {
	Bridge   string
	Enabled  bool
	For      time.Duration // how long it has been so; negative if it was never told
	Debug    string        // name of a level of syslog(3)
	HostID   uint32
	Checksum [16]byte // of the main ruleset's rules

	States   uint64 // states that there are
	HalfOpen uint64 // of TCP, without an answer
	Sources  uint64 // sources that are tracked

	// StateTable, Counters and LimitCounters are in the order of pfctl(8).
	StateTable, Counters, LimitCounters []PFCounter

	Timeouts [pf.TimeoutCount]uint32 // seconds; of the adaptive ones, states
	Limits   [pf.LimitCount]uint32
	Memory   []PFMemory // what tables take
	Log      *PFPort    // the port of set loginterface, nil if there is none
	Ports    []PFPort
}

// PFCounter is something that pf counts.
type PFCounter struct {
	Name  string // as pfctl(8) calls it
	Count uint64
}

// PFPort is a port, as pf sees it.
type PFPort struct {
	Name   string
	Groups []string // that it is in, besides the group of its name without the number
	Group  bool     // it is the name of several ports
	Skip   bool     // pf is not asked there
	// Packets and Bytes by family (IPv4, IPv6), direction (in, out) and what
	// became of them (passed, blocked); counted for the port of set
	// loginterface.
	Packets, Bytes [2][2][2]uint64
}

// PFRules are the rules of the main ruleset or of an anchor.
type PFRules struct {
	Path    string      // of the anchor, "" of the main ruleset
	Set     *pf.Ruleset // without its tables
	Anchors map[string]*pf.Ruleset
	Counts  map[*pf.Rule]PFCounts // of all rules, also of anchors
}

// PFCounts are the counts of a rule's packets and states.
type PFCounts struct {
	Evaluations    uint64    // packets that it matched
	Packets, Bytes [2]uint64 // in, out
	Created        uint64    // states
	States         uint64    // states that there are
	Spent          bool      // it is a once rule, and has had its packet
}

// PFAddress is an address and a port, 0 where the protocol has none.
type PFAddress struct {
	Addr netip.Addr
	Port uint16
}

// PFPeer is one side of a state.
type PFPeer struct {
	PFAddress
	State          string // ESTABLISHED, MULTIPLE; of ICMP a number
	Packets, Bytes uint64 // that it has sent
	// of TCP: the highest sequence number that it sent, and may send, and what
	// is added to its numbers; its window scale, -1 if that is not known
	Low, High, Diff uint32
	Scale           int
}

// PFState is a connection that pf knows.
type PFState struct {
	ID       uint64 // names the state while it is there
	Port     string // that it holds at, "" for all
	Proto    uint8
	VLAN     uint16
	Src, Dst PFPeer // Src is who began
	// Translated is what Src and Dst have become, nil where nothing is translated.
	Translated *[2]PFAddress
	// Hop is the next hop of its packets, by the word Route of its rule; not valid if there is none.
	Hop     netip.Addr
	Route   pf.RouteKind
	Divert  *pf.Divert // the socket of the host that gets packets of it, nil for none
	Age     time.Duration
	Expires time.Duration // 0 if it is over
	Rule    int           // that made it, of its anchor, -1 if that is no more
	Anchor  string
	Label   string // of the rule
	In, Out string // ports
	Sloppy  bool
	Tracked bool // its source is tracked
}

// PFSource is a source that is tracked.
type PFSource struct {
	Addr        netip.Addr
	Given       netip.Addr // that it has of the rule's pool by sticky-address; not valid if it is tracked
	VLAN        uint16
	States      uint32
	Connections uint32
	Rate        float64       // connections in RateTime
	RateTime    time.Duration // of max-src-conn-rate
	Age         time.Duration
	Expires     time.Duration
	Rule        int // of source-track rule, else -1
	Anchor      string
}

// A PFLimiter is a limiter of the main ruleset, with what it has counted.
type PFLimiter struct {
	ID      uint8
	Name    string
	Limit   uint32  // states; of a source limiter those of each source
	Rate    pf.Rate // zero for any
	Entries uint32  // of a source limiter: sources at a time
	PFLimiterCount
	Sources []PFLimited // of a source limiter, by address
}

// A PFLimited is a source of a source limiter.
type PFLimited struct {
	Addr netip.Prefix
	VLAN uint16
	PFLimiterCount
}

// PFLimiterCount is what a limiter has counted, or one of its sources.
type PFLimiterCount struct {
	States              uint32 // that there are
	Admitted            uint64 // states that were made
	HardLimited         uint64 // states that were not made, since there were too many
	RateLimited         uint64 // or since they came too fast
	Addresses, AddrFull uint32 // of a source limiter: sources, and states not made since there were too many
}

// PFTable is a table of addresses.
type PFTable struct {
	Anchor    string
	Name      string
	Const     bool
	Persist   bool
	Counters  bool
	Addresses int
	Rules     int       // that refer to it
	InAnchors bool      // some of them are in other rulesets than the table
	Cleared   time.Time // since when it is as it is, or since when its counters count
}

// PFTableEntry is an address or network of a table.
type PFTableEntry struct {
	pf.TableEntry
	Cleared time.Time
}

// PFTableAction is an action on a table.
type PFTableAction int

// The actions of ChangePFTable.
const (
	AddPFEntries PFTableAction = iota
	DeletePFEntries
	ReplacePFEntries
	TestPFEntries
)

// PFMemory is how much the tables for a limit, or the rules, take at the
// moment.
type PFMemory struct {
	Name  string // of the limit, or "rules"
	Bytes uint64
}

// PFTableChange is the outcome of an action on a table. Marks has a letter for
// each entry, as pfctl(8) prints them: A added, C changed, D deleted, M
// matches, X duplicate, Y conflicts; a blank if nothing was done.
type PFTableChange struct {
	Created                 bool // the table
	Added, Deleted, Changed int
	Matched                 int
	Entries                 []pf.TableEntry
	Marks                   []byte
}

// PFKill chooses states or sources. Each field narrows the choice.
type PFKill struct {
	From, To []netip.Prefix // who began, and whom they asked; nil is any
	Label    *string        // of the rule that made them
	ID       uint64         // 0 is any
	Key      *PFKey
	Port     string         // "" is any
	Gateway  []netip.Prefix // of the next hop that a rule has chosen, which is 0.0.0.0 or :: for none; nil is any
	// Both chooses the other state of a connection, too: one that is routed has one for its
	// way to the host and one for its way from it.
	Both bool
}

// PFKey is a state as one may name it: protocol, and who talks to whom.
type PFKey struct {
	Proto    uint8
	Src, Dst PFAddress
}

// PFLogged is a packet in the log of pf.
type PFLogged struct {
	pflog.Record
	Number int // of pflogN
}
