// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"net/netip"
	"time"

	"bascule/pf"
)

// A State is a connection that pf knows.
type State struct {
	ID    uint64 // of the bridge's states that are there at a time
	VLAN  uint16 // whose addresses these are
	Proto uint8
	// From made the connection, to To. Where the protocol has no ports these are
	// 0; of ICMP queries both are the identifier.
	From, To StatePeer
	In       uint32 // id of the port that the first packet came in by
	Out      uint32 // and of the one it left by, 0 while that is not known
	// Numbers of the rules that let it in and out, among Program.Source: -1 for
	// none, or one of a ruleset that is no more
	RuleIn, RuleOut int
	Created         uint32 // seconds since boot
	Age             time.Duration
	Expires         time.Duration // from now, unless there is another packet
	Flags           StateFlags
	Profile         uint8 // in PFProfiles
}

// StatePeer is one side of a State.
type StatePeer struct {
	Addr    netip.AddrPort
	State   uint8  // of TCP as in RFC 9293: an index of TCPStates; of others of OtherStates
	Lo, Hi  uint32 // TCP: the highest sequence number sent, and the highest it may send
	MaxWin  uint16
	Scale   int    // of TCP's window; -1 if not known
	Diff    uint32 // what is added to the sequence numbers that it sends
	Packets uint64 // sent by it
	Bytes   uint64
}

// TCPStates and OtherStates are the names of what StatePeer.State can be, as
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

// The flags of a state that users ask about.
const (
	StateSloppy  = kernelPfStateFlagPF_STATE_SLOPPY
	StateIfBound = kernelPfStateFlagPF_STATE_IF_BOUND
	StateLog     = kernelPfStateFlagPF_STATE_LOG
	StateOptions = kernelPfStateFlagPF_STATE_OPTIONS
	StateOut     = kernelPfStateFlagPF_STATE_OUT // made by a rule on the way out
)

// EachState calls f with the states of the bridge that are not over, in no
// order, until f returns false. What changes meanwhile may be seen as it was,
// as it is, or not at all.
func (b *Bridge) EachState(f func(*State) bool) error { return errNoPF }

// KillStates removes the states that match, and returns how many.
func (b *Bridge) KillStates(match func(*State) bool) (int, error) { return 0, errNoPF }

// FlushStates removes all states, and returns how many there were.
func (b *Bridge) FlushStates() (int, error) {
	return b.KillStates(func(*State) bool { return true })
}

// PFRuleStats are the counters of a rule, summed over the CPUs, with those of
// the states that it has.
type PFRuleStats struct {
	Evaluations   uint64    // packets that it was found to match
	Packets       [2]uint64 // in, out
	Bytes         [2]uint64
	StatesCreated uint64
	States        uint32 // that there are
	Spent         bool   // it is a once rule, and has had its packet
}

// PFRuleStats returns the counters of the rules, by their numbers in
// Program.Source.
func (b *Bridge) PFRuleStats() ([]PFRuleStats, error) { return nil, errNoPF }

// ZeroPFRuleStats sets the counters of rules to zero.
func (b *Bridge) ZeroPFRuleStats() error { return errNoPF }

// PFCounter indexes what PFCounters returns (enum pf_counter).
type PFCounter = kernelPfCounter

// The counters of pfctl -s info.
const (
	PFSearches      = kernelPfCounterPF_COUNT_SEARCHES
	PFInserts       = kernelPfCounterPF_COUNT_INSERTS
	PFRemovals      = kernelPfCounterPF_COUNT_REMOVALS
	PFMatch         = kernelPfCounterPF_COUNT_MATCH
	PFBadOffset     = kernelPfCounterPF_COUNT_BAD_OFFSET
	PFFragment      = kernelPfCounterPF_COUNT_FRAGMENT
	PFShort         = kernelPfCounterPF_COUNT_SHORT
	PFNormalize     = kernelPfCounterPF_COUNT_NORMALIZE
	PFMemory        = kernelPfCounterPF_COUNT_MEMORY
	PFIPOption      = kernelPfCounterPF_COUNT_IP_OPTION
	PFProtoCksum    = kernelPfCounterPF_COUNT_PROTO_CKSUM
	PFStateMismatch = kernelPfCounterPF_COUNT_STATE_MISMATCH
	PFStateInsert   = kernelPfCounterPF_COUNT_STATE_INSERT
	PFStateLimit    = kernelPfCounterPF_COUNT_STATE_LIMIT
	PFSrcLimit      = kernelPfCounterPF_COUNT_SRC_LIMIT
	PFSynproxy      = kernelPfCounterPF_COUNT_SYNPROXY
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

// PFCounters returns the counters of pf, summed over the CPUs.
func (b *Bridge) PFCounters() (sum PFCounters, err error) { return sum, errNoPF }

// ZeroPFCounters sets the counters of pf to zero.
func (b *Bridge) ZeroPFCounters() error { return errNoPF }

// PFInfo is what pf is at the moment.
type PFInfo struct {
	Enabled   bool
	Since     time.Duration // since pf was enabled or disabled
	States    uint32
	StatesMax uint32
	Nodes     uint32 // sources
	NodesMax  uint32
	Rules     int
	Timeouts  [pf.TimeoutCount]uint32 // those of the ruleset
}

// PFInfo returns what pf is at the moment.
func (b *Bridge) PFInfo() (info PFInfo, err error) { return info, errNoPF }

// A SourceNode is a source whose states are counted.
type SourceNode struct {
	Addr        netip.Addr
	VLAN        uint16
	Rule        int // number of the rule that counts it; -1: all rules together
	States      uint32
	Connections uint32
	Rate        float64 // connections in the time of the rule's max-src-conn-rate
	Age         time.Duration
	Expires     time.Duration // 0 while it has states
}

// SourceNodes returns the sources that are counted, by address; none of rulesets
// that are no more.
func (b *Bridge) SourceNodes() ([]SourceNode, error) { return nil, errNoPF }

// KillSources removes the sources that match, and returns how many. Their states
// stay, and are counted no more.
func (b *Bridge) KillSources(match func(*SourceNode) bool) (int, error) { return 0, errNoPF }
