// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"net/netip"
	"time"

	"bascule/pf"
	"bascule/pflog"
)

// PFLoad is a request to load pf.
type PFLoad struct {
	Name   string // name of the file, for errors
	Text   []byte
	Source pf.Source // its Lookup resolves names that no interface has
	Anchor string    // path of the anchor for the rules; "" is the main ruleset
	Check  bool      // only check whether it could be loaded
	Enable *bool     // whether pf is enabled afterwards; nil: yes, unless it was disabled

	TablesOnly bool // leave rules and options unchanged
	Later      bool // ports, routes and addresses come later: NotesPF reports afterwards what rules miss

	// Ahead are the permanent addresses that interfaces of the host get after the load, by
	// name. In rules, the name of an interface stands for these, whether it exists or not.
	Ahead map[string][]netip.Prefix
}

// Is reports whether a name is the port's own, or a name of one of its groups.
func (p PFPort) Is(name string) bool { return pf.CompilePort{Name: p.Name, Groups: p.Groups}.Is(name) }

// PFInfo has the properties of a bridge's pf.
type PFInfo struct {
	Bridge   string
	Enabled  bool
	For      time.Duration // how long it has been enabled or disabled; negative if it was never loaded
	Debug    string        // name of a syslog(3) level
	HostID   uint32
	Checksum [16]byte // of the main ruleset's rules

	States   uint64 // number of states
	HalfOpen uint64 // TCP states without an answer
	Sources  uint64 // number of tracked sources

	// StateTable, Counters and LimitCounters have the order of pfctl(8).
	StateTable, Counters, LimitCounters []PFCounter

	Timeouts [pf.TimeoutCount]uint32 // in seconds; adaptive ones in states
	Limits   [pf.LimitCount]uint32
	Memory   []PFMemory // memory of the tables
	Log      *PFPort    // the port of set loginterface, nil if there is none
	Ports    []PFPort
}

// PFCounter is a counter of pf.
type PFCounter struct {
	Name  string // its name in pfctl(8)
	Count uint64
}

// PFPort is a port in pf.
type PFPort struct {
	Name   string
	Groups []string // its groups, except for the one with its name without the number
	Group  bool     // it is the name of several ports
	Skip   bool     // pf does not filter it
	// Packets and Bytes by family (IPv4, IPv6), direction (in, out) and result (passed,
	// blocked). They are counted for the port of set loginterface.
	Packets, Bytes [2][2][2]uint64
}

// PFRules are the rules of the main ruleset or of an anchor.
type PFRules struct {
	Path    string      // of the anchor, "" for the main ruleset
	Set     *pf.Ruleset // without its tables
	Anchors map[string]*pf.Ruleset
	Counts  map[*pf.Rule]PFCounts // of all rules, including those in anchors
}

// PFCounts are the counters of a rule's packets and states.
type PFCounts struct {
	Evaluations    uint64    // packets that matched it
	Packets, Bytes [2]uint64 // in, out
	Created        uint64    // states
	States         uint64    // present number of states
	Spent          bool      // a once rule that has had its packet
}

// PFAddress is an address and a port, which is 0 for protocols without ports.
type PFAddress struct {
	Addr netip.Addr
	Port uint16
}

// PFPeer is one end of a state.
type PFPeer struct {
	PFAddress
	State          string // ESTABLISHED, MULTIPLE; a number for ICMP
	Packets, Bytes uint64 // sent by it
	// for TCP: the highest sequence number that it has sent and may send, and the offset that
	// is added to its numbers; its window scale, -1 if unknown
	Low, High, Diff uint32
	Scale           int
}

// PFState is a state of pf: a connection.
type PFState struct {
	ID       uint64 // identifies the state as long as it exists
	Port     string // port of an if-bound state, "" for all
	Proto    uint8
	VLAN     uint16
	Src, Dst PFPeer // Src is the initiator
	// Translated are Src and Dst after translation, nil if nothing is translated.
	Translated *[2]PFAddress
	// Hop is the next hop of its packets, by the word Route of its rule; not valid if there is
	// none.
	Hop     netip.Addr
	Route   pf.RouteKind
	Divert  *pf.Divert // the socket of the host that gets its packets, nil for none
	Age     time.Duration
	Expires time.Duration // 0 if it has expired
	Rule    int           // the rule that made it, in its anchor, -1 if the rule is gone
	Anchor  string
	Label   string // of the rule
	In, Out string // ports
	Sloppy  bool
	Tracked bool // its source is tracked
}

// PFSource is a tracked source.
type PFSource struct {
	Addr        netip.Addr
	Given       netip.Addr // its address from the rule's pool by sticky-address; not valid if it is only tracked
	VLAN        uint16
	States      uint32
	Connections uint32
	Rate        float64       // connections in RateTime
	RateTime    time.Duration // of max-src-conn-rate
	Age         time.Duration
	Expires     time.Duration
	Rule        int // of a source-track rule, else -1
	Anchor      string
}

// A PFLimiter is a limiter of the main ruleset, with its counters.
type PFLimiter struct {
	ID      uint8
	Name    string
	Limit   uint32  // number of states; for a source limiter, of each source
	Rate    pf.Rate // zero for no limit
	Entries uint32  // of a source limiter: maximum number of sources
	PFLimiterCount
	Sources []PFLimited // of a source limiter, by address
}

// A PFLimited is a source of a source limiter.
type PFLimited struct {
	Addr netip.Prefix
	VLAN uint16
	PFLimiterCount
}

// PFLimiterCount has the counters of a limiter, or of one of its sources.
type PFLimiterCount struct {
	States              uint32 // present number of states
	Admitted            uint64 // states that were made
	HardLimited         uint64 // states refused because there were too many
	RateLimited         uint64 // states refused because they came too fast
	Addresses, AddrFull uint32 // of a source limiter: sources, and states refused for too many of them
}

// PFTable is a table of addresses.
type PFTable struct {
	Anchor    string
	Name      string
	Const     bool
	Persist   bool
	Counters  bool
	Addresses int
	Rules     int       // number of rules that refer to it
	InAnchors bool      // some of them are in other rulesets than the table
	Cleared   time.Time // when it was created or loaded, or its counters were cleared
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

// PFMemory is the present memory of the tables for a limit, or of the rules.
type PFMemory struct {
	Name  string // of the limit, or "rules"
	Bytes uint64
}

// PFTableChange is the result of an action on a table. Marks has a letter for each entry, as
// pfctl(8) prints them: A added, C changed, D deleted, M matches, X duplicate, Y conflicts; a space
// for no change.
type PFTableChange struct {
	Created                 bool // the table
	Added, Deleted, Changed int
	Matched                 int
	Entries                 []pf.TableEntry
	Marks                   []byte
}

// PFKill selects states or sources. Each field narrows the selection.
type PFKill struct {
	From, To []netip.Prefix // initiator and destination; nil is any
	Label    *string        // of the rule that made them
	ID       uint64         // 0 is any
	Key      *PFKey
	Port     string         // "" is any
	Gateway  []netip.Prefix // next hop chosen by a rule, 0.0.0.0 or :: for none; nil is any
	// Both also selects the other state of a connection: a routed one has one state for its way
	// to the host and one for its way from it.
	Both bool
}

// PFKey identifies a state in commands: protocol and both ends.
type PFKey struct {
	Proto    uint8
	Src, Dst PFAddress
}

// PFLogged is a packet in the log of pf.
type PFLogged struct {
	pflog.Record
	Number int // of pflogN
}
