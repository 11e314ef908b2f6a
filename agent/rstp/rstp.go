// SPDX-License-Identifier: BSD-2-Clause

// Package rstp implements the Rapid Spanning Tree Protocol for one bridge: IEEE
// Std 802.1D-2004 clause 17 with the BPDUs of clause 9, and IEEE Std 802.1Q-2022
// clause 13 where that corrects it. It uses no sockets, devices or clocks: the
// caller passes events to a Bridge (a link, a BPDU, a second that has passed),
// and the Bridge calls an Output for each action before the call returns. The
// same events always have the same outcome.
//
// Variables, procedures and states have the names of the standard, with their
// clauses.
//
// Only one goroutine at a time may use a Bridge. An Output must not call the
// Bridge that calls it.
package rstp

import (
	"fmt"
	"math"
	"net"
	"time"
)

// Output carries out the actions of a Bridge. Its methods are called in the order
// in which the actions must happen: in particular, a port that must discard
// before another one may forward is set first. So an action must have taken
// effect when its method returns.
type Output interface {
	// Send sends a whole Ethernet frame, without the frame check sequence,
	// from the port. The Output may keep the frame.
	Send(port uint16, frame []byte)
	// SetState sets whether the port forwards and learns.
	SetState(port uint16, s State)
	// Flush forgets the addresses that were learned on the port.
	Flush(port uint16)
	// Report takes events for a log.
	Report(Event)
}

// A State is what a port does with frames (17.5, 7.4).
type State uint8

const (
	Discarding State = iota // neither receives nor sends frames
	Learning                // discards, but learns addresses
	Forwarding              // forwards frames, and learns addresses
)

func (s State) String() string { return name(s, "discarding", "learning", "forwarding") }

// A Role is a port's part in the tree (17.7).
type Role uint8

const (
	DisabledPort   Role = iota // has no link, or is shut by BPDU guard
	RootPort                   // the way to the root
	DesignatedPort             // the way to the root for bridges behind it
	AlternatePort              // another way to the root
	BackupPort                 // another way to a segment where the bridge already has a designated port
)

func (r Role) String() string {
	return name(r, "disabled", "root", "designated", "alternate", "backup")
}

// A Version is the protocol version that a bridge is restricted to: forceVersion
// (17.13.4).
type Version uint8

const (
	STP  Version = 0 // the spanning tree of 802.1D-1998
	RSTP Version = 2 // the rapid spanning tree
)

func (v Version) String() string { return name(v, "stp", "", "rstp") }

// An Edge sets whether a port is an edge, with only stations behind it.
type Edge uint8

const (
	EdgeAuto Edge = iota // automatic: an edge if no BPDU is received for three seconds (AutoEdge, 17.13.3)
	EdgeOn               // an edge at once (AdminEdge, 17.13.1); after a BPDU as with EdgeAuto
	EdgeOff              // never
)

func (e Edge) String() string { return name(e, "auto", "on", "off") }

func name[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("unknown(%d)", uint8(v))
}

// In JSON these are strings.

func (s State) MarshalText() ([]byte, error)   { return []byte(s.String()), nil }
func (r Role) MarshalText() ([]byte, error)    { return []byte(r.String()), nil }
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
func (e Edge) MarshalText() ([]byte, error)    { return []byte(e.String()), nil }

func (s *State) UnmarshalText(text []byte) error   { return unname(s, Forwarding, text) }
func (r *Role) UnmarshalText(text []byte) error    { return unname(r, BackupPort, text) }
func (v *Version) UnmarshalText(text []byte) error { return unname(v, RSTP, text) }
func (e *Edge) UnmarshalText(text []byte) error    { return unname(e, EdgeOff, text) }

// unname sets what to the value whose name is text, last at most.
func unname[T interface {
	~uint8
	fmt.Stringer
}](what *T, last T, text []byte) error {
	for v := T(0); v <= last; v++ {
		if v.String() == string(text) {
			*what = v
			return nil
		}
	}
	return fmt.Errorf("%q is no %T", text, *what)
}

// A Config is the settings of a bridge (17.13, 17.14). Times are whole seconds.
type Config struct {
	MAC      net.HardwareAddr // six bytes: the lower part of the bridge identifier
	Priority uint16           // 0 to 61440 in steps of 4096, the identifier's upper part; lower is better
	Version  Version

	Hello        time.Duration // 1 to 2 s, the time between two BPDUs
	MaxAge       time.Duration // 6 to 40 s, the greatest age of received information
	ForwardDelay time.Duration // 4 to 30 s

	TxHoldCount int // 1 to 10, the largest burst of BPDUs from a port; after it, one a second; 0 means 6

	// GuardTimeout is how long a port stays shut by BPDU guard. With 0 it
	// stays shut until it loses its link or ClearGuard is called.
	GuardTimeout time.Duration
}

// DefaultConfig returns the settings that the standard recommends (17.14), for a
// bridge with this address.
func DefaultConfig(mac net.HardwareAddr) Config {
	return Config{
		MAC: mac, Priority: 32768, Version: RSTP,
		Hello: 2 * time.Second, MaxAge: 20 * time.Second, ForwardDelay: 15 * time.Second,
		TxHoldCount: 6,
	}
}

// A PortConfig is the settings of a port.
type PortConfig struct {
	MAC      net.HardwareAddr // source address of its BPDUs; nil for the bridge's
	Priority uint8            // 0 to 240 in steps of 16; lower is better
	Cost     uint32           // 1 to 200000000, of a way through this port; see CostOf
	Edge     Edge

	// PointToPoint means that there is at most one bridge behind the port, so
	// that a proposal can get its agreement (operPointToPointMAC, 6.4.3).
	PointToPoint bool

	BPDUGuard  bool // a BPDU shuts the port, even a refused one
	BPDUFilter bool // BPDUs are neither sent nor processed
	RootGuard  bool // the root is never behind this port (restrictedRole, 802.1Q clause 13)
}

// DefaultPort returns the settings that the standard recommends for a port with a
// link of this speed in Mbit/s.
func DefaultPort(mbit uint32) PortConfig {
	return PortConfig{Priority: 128, Cost: CostOf(mbit), PointToPoint: true}
}

// MaxCost is the highest cost of a port (17.13.11).
const MaxCost = 200_000_000

// CostOf returns the cost of a link of a speed in Mbit/s (table 17-3: 20 Tbit/s
// divided by the speed). For an unknown speed (0) it returns the cost of 10
// Gbit/s, which is the speed of a virtual link.
func CostOf(mbit uint32) uint32 {
	if mbit == 0 {
		mbit = 10_000
	}
	return uint32(min(max(20_000_000/uint64(mbit), 1), MaxCost))
}

// MaxPort is the highest number of a port; the lowest is 1.
const MaxPort = 1023

// A Port is a port in its current state, for Restore.
type Port struct {
	Number uint16
	Config PortConfig
	Up     bool  // has a link
	State  State // its current state in the datapath
	New    bool  // another port had the number when the snapshot was taken
}

// An EventKind is the subject of an Event.
type EventKind uint8

const (
	RootChanged    EventKind = iota // another bridge is the root, or another port leads there
	RoleChanged                     // of the port
	TopologyChange                  // the port forwards now, and all bridges are notified
	GuardTripped                    // a BPDU has come to a port with BPDU guard, which has shut the port
	GuardCleared                    // the port is open again
	RootGuardBegan                  // a better root is behind a port with root guard, which discards for that
	RootGuardEnded                  // the port no longer discards for that
	Migrated                        // the port speaks the version in Text now (17.24)
	Stuck                           // the machines did not come to rest, but the call has returned
)

func (k EventKind) String() string {
	return name(k, "root-changed", "role-changed", "topology-change", "guard-tripped", "guard-cleared",
		"root-guard-began", "root-guard-ended", "migrated", "stuck")
}

// An Event is something to log.
type Event struct {
	Kind EventKind
	Port uint16 // 0 for the bridge
	Text string // for example a role or an identifier; may be empty
}

func (e Event) String() string {
	s := e.Kind.String()
	if e.Port != 0 {
		s += fmt.Sprintf(" port %d", e.Port)
	}
	if e.Text != "" {
		s += ": " + e.Text
	}
	return s
}

// A ConfigError is an invalid setting.
type ConfigError struct {
	Port uint16 // 0 for the bridge
	Text string
}

func (e *ConfigError) Error() string {
	if e.Port == 0 {
		return "spanning tree: " + e.Text
	}
	return fmt.Sprintf("spanning tree: port %d: %s", e.Port, e.Text)
}

// check returns the error in the settings of a bridge (17.14). The ranges alone
// make max age at least 2 * (hello time + 1 s).
func (c Config) check() error {
	bad := func(format string, args ...any) error { return &ConfigError{Text: fmt.Sprintf(format, args...)} }
	whole := func(what string, d, least, most time.Duration) error {
		if d < least || d > most || d%time.Second != 0 {
			return bad("%s %v is not %v to %v in whole seconds", what, d, least, most)
		}
		return nil
	}
	for _, err := range []error{
		whole("hello time", c.Hello, time.Second, 2*time.Second),
		whole("max age", c.MaxAge, 6*time.Second, 40*time.Second),
		whole("forward delay", c.ForwardDelay, 4*time.Second, 30*time.Second),
		whole("guard timeout", c.GuardTimeout, 0, math.MaxInt32*time.Second),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case len(c.MAC) != 6:
		return bad("address %v is not of six bytes", c.MAC)
	case c.Priority%4096 != 0:
		return bad("priority %d is not a multiple of 4096", c.Priority)
	case c.Version != STP && c.Version != RSTP:
		return bad("version %d is neither 0 (STP) nor 2 (RSTP)", uint8(c.Version))
	case c.TxHoldCount < 0 || c.TxHoldCount > 10:
		return bad("hold count %d is not 1 to 10", c.TxHoldCount)
	case 2*(c.ForwardDelay-time.Second) < c.MaxAge:
		return bad("max age %v is above 2 * (forward delay %v - 1s)", c.MaxAge, c.ForwardDelay)
	}
	return nil
}

// check returns the error in the settings of port n.
func (c PortConfig) check(n uint16) error {
	bad := func(format string, args ...any) error {
		return &ConfigError{Port: n, Text: fmt.Sprintf(format, args...)}
	}
	switch {
	case n < 1 || n > MaxPort:
		return bad("number is not 1 to %d", MaxPort)
	case len(c.MAC) != 0 && len(c.MAC) != 6:
		return bad("address %v is not of six bytes", c.MAC)
	case c.Priority%16 != 0:
		return bad("priority %d is not a multiple of 16", c.Priority)
	case c.Cost < 1 || c.Cost > MaxCost:
		return bad("cost %d is not 1 to %d", c.Cost, MaxCost)
	case c.Edge > EdgeOff:
		return bad("edge %d is unknown", uint8(c.Edge))
	}
	return nil
}
