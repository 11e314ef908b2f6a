// SPDX-License-Identifier: BSD-2-Clause

// Package rstp is the Rapid Spanning Tree Protocol of one bridge: IEEE Std
// 802.1D-2004 clause 17 with the BPDUs of clause 9, and IEEE Std 802.1Q-2022
// clause 13 where that corrects it. It knows nothing of sockets, devices or the
// clock: what happens is told to a Bridge (a link, a BPDU, that a second has
// passed), and what is to be done about it comes out by an Output before the
// call returns. The same events always have the same outcome.
//
// Variables, procedures and states have the names of the standard, and their
// clause with them.
//
// A Bridge may be used by one goroutine at a time. An Output must not call the
// Bridge that calls it.
package rstp

import (
	"fmt"
	"math"
	"net"
	"time"
)

// Output takes the actions of a Bridge. Its methods are called in the order in
// which things are to happen: in particular, a port that has to discard before
// another one may forward is set first. So a method must have taken effect when
// it returns.
type Output interface {
	// Send sends a whole Ethernet frame, without the frame check sequence, by
	// the port. The frame is the Output's to keep.
	Send(port uint16, frame []byte)
	// SetState sets whether the port forwards and learns.
	SetState(port uint16, s State)
	// Flush forgets the addresses that were learned on the port.
	Flush(port uint16)
	// Report tells what somebody may want to log.
	Report(Event)
}

// A State is what a port does with frames (17.5, 7.4).
type State uint8

const (
	Discarding State = iota // neither takes frames in nor sends them
	Learning                // discards, but learns addresses
	Forwarding
)

func (s State) String() string { return name(s, "discarding", "learning", "forwarding") }

// A Role is a port's part in the tree (17.7).
type Role uint8

const (
	DisabledPort   Role = iota // no link, or shut by BPDU guard
	RootPort                   // the way to the root
	DesignatedPort             // the way to the root for those behind it
	AlternatePort              // another way to the root
	BackupPort                 // another way to where one of the bridge's own ports is designated
)

func (r Role) String() string {
	return name(r, "disabled", "root", "designated", "alternate", "backup")
}

// A Version is the version of the protocol that a bridge is held to:
// forceVersion (17.13.4).
type Version uint8

const (
	STP  Version = 0
	RSTP Version = 2
)

func (v Version) String() string { return name(v, "stp", "", "rstp") }

// An Edge says whether only stations are behind a port.
type Edge uint8

const (
	EdgeAuto Edge = iota // found out: no BPDU is heard for three seconds (AutoEdge, 17.13.3)
	EdgeOn               // at once (AdminEdge, 17.13.1); after a BPDU as with EdgeAuto
	EdgeOff              // never
)

func (e Edge) String() string { return name(e, "auto", "on", "off") }

func name[T ~uint8](v T, names ...string) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("unknown(%d)", uint8(v))
}

// These are strings in JSON.

func (s State) MarshalText() ([]byte, error)   { return []byte(s.String()), nil }
func (r Role) MarshalText() ([]byte, error)    { return []byte(r.String()), nil }
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
func (e Edge) MarshalText() ([]byte, error)    { return []byte(e.String()), nil }

func (s *State) UnmarshalText(text []byte) error   { return unname(s, Forwarding, text) }
func (r *Role) UnmarshalText(text []byte) error    { return unname(r, BackupPort, text) }
func (v *Version) UnmarshalText(text []byte) error { return unname(v, RSTP, text) }
func (e *Edge) UnmarshalText(text []byte) error    { return unname(e, EdgeOff, text) }

// unname sets what to the value that text is the name of, last at most.
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
	Priority uint16           // 0 to 61440 in steps of 4096, the upper part; lower is better
	Version  Version

	Hello        time.Duration // 1 to 2 s, how often BPDUs are sent
	MaxAge       time.Duration // 6 to 40 s, the age that received information may have
	ForwardDelay time.Duration // 4 to 30 s

	TxHoldCount int // 1 to 10, BPDUs that a port sends at most in a burst, and one a second from then on; 0 is 6

	// GuardTimeout is how long a port stays shut by BPDU guard, 0 for until
	// its link goes or ClearGuard.
	GuardTimeout time.Duration
}

// DefaultConfig is the settings that the standard recommends (17.14), for a
// bridge with the address.
func DefaultConfig(mac net.HardwareAddr) Config {
	return Config{
		MAC: mac, Priority: 32768, Version: RSTP,
		Hello: 2 * time.Second, MaxAge: 20 * time.Second, ForwardDelay: 15 * time.Second,
		TxHoldCount: 6,
	}
}

// A PortConfig is the settings of a port.
type PortConfig struct {
	MAC      net.HardwareAddr // source of the BPDUs that are sent by it; the bridge's if there is none
	Priority uint8            // 0 to 240 in steps of 16; lower is better
	Cost     uint32           // 1 to 200000000, of the way by this port; see CostOf
	Edge     Edge

	// PointToPoint says that there is at most one bridge behind the port, so
	// that it can be asked for agreement (operPointToPointMAC, 6.4.3).
	PointToPoint bool

	BPDUGuard  bool // a BPDU shuts the port, also one that is refused
	BPDUFilter bool // BPDUs are neither sent nor taken notice of
	RootGuard  bool // the root is never behind this port (restrictedRole, 802.1Q clause 13)
}

// DefaultPort is the settings of a port with a link of the speed in Mbit/s that
// the standard recommends.
func DefaultPort(mbit uint32) PortConfig {
	return PortConfig{Priority: 128, Cost: CostOf(mbit), PointToPoint: true}
}

// MaxCost is the highest cost of a port (17.13.11).
const MaxCost = 200_000_000

// CostOf is the cost of a link of a speed in Mbit/s (table 17-3: 20 Tbit/s
// divided by the speed). For an unknown speed (0) it is that of 10 Gbit/s, the
// speed that a virtual link gives.
func CostOf(mbit uint32) uint32 {
	if mbit == 0 {
		mbit = 10_000
	}
	return uint32(min(max(20_000_000/uint64(mbit), 1), MaxCost))
}

// MaxPort is the highest number of a port; the lowest is 1.
const MaxPort = 1023

// A Port is a port as Restore finds it.
type Port struct {
	Number uint16
	Config PortConfig
	Up     bool  // has a link
	State  State // what it does with frames now
	New    bool  // it is not the port that had the number when the snapshot was taken
}

// An EventKind is the subject of an Event.
type EventKind uint8

const (
	RootChanged    EventKind = iota // another bridge is the root, or another port leads there
	RoleChanged                     // of the port
	TopologyChange                  // the port forwards now, and all bridges are told
	GuardTripped                    // a BPDU has come to a port with BPDU guard, which is shut now
	GuardCleared                    // the port is open again
	RootGuardBegan                  // a better root is behind a port with root guard, which discards now
	RootGuardEnded                  // no longer
	Migrated                        // the port speaks the version in Text now (17.24)
	Stuck                           // the machines did not come to rest; the call has returned nevertheless
)

func (k EventKind) String() string {
	return name(k, "root-changed", "role-changed", "topology-change", "guard-tripped", "guard-cleared",
		"root-guard-began", "root-guard-ended", "migrated", "stuck")
}

// An Event is something that somebody may want to log.
type Event struct {
	Kind EventKind
	Port uint16 // 0 for the bridge
	Text string // e.g. a role or an identifier; may be empty
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

// A ConfigError is a setting that cannot be.
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

// check returns the mistake in the settings of a bridge (17.14). Their ranges
// already make max age at least 2 * (hello time + 1 s).
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

// check returns the mistake in the settings of port n.
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
