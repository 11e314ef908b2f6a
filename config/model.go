// SPDX-License-Identifier: BSD-2-Clause

// Package config handles the desired state of switches: the files that describe bridges, the plan from the running
// state to the desired one, and its execution through package bridge.
package config

import (
	"fmt"
	"net"
	"net/netip"

	"bascule/bridge"
)

// A File is the desired state of bridges in one network namespace. Bridges without an entry in it stay as they are. A
// bridge with an entry gets exactly that state: settings that are missing have their defaults, and missing ports,
// entries, rules, bindings and mirrors are removed.
type File struct {
	Path    string   // of its source, "" for none
	Netns   string   // name or path of the namespace, "" for the caller's
	Bridges []Bridge // in the order of the file

	// Notes list words of a hostname.if(5) file that have no effect, or the reason why such a file is not read.
	Notes []Error

	host  *hostInterface // from a hostname.if(5) file for the host's end of a port
	other bool           // a hostname.if(5) file for another interface, which is not read
}

// A Position is a place in a file, for messages.
type Position struct {
	Path         string
	Line, Column int // from 1; 0 if unknown
}

// String returns the position in the format of compilers: PATH:LINE:COLUMN.
func (p Position) String() string {
	switch {
	case p.Line == 0:
		return p.Path
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.Path, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.Path, p.Line, p.Column)
}

// A Bridge is the desired state of a bridge.
type Bridge struct {
	Name     string
	At       Position
	Settings []bridge.Change // of bridge.BridgeSettings, in their order; the rest have their defaults
	Ports    []Port          // in the order of the file
	Private  []PrivateVLAN   // by primary VLAN
	Rules    []Rule          // in the order in which they are tried
	Bindings []Binding
	Mirrors  []Mirror
	Entries  []Entry // static and sticky FDB entries
	PF       *PF     // nil leaves pf unchanged, since it has its own file and command

	// Gone means that the bridge should not exist. All other fields are empty then. A file's text cannot express
	// this.
	Gone bool
}

// A Port is the desired state of a port, or of every device whose name matches
// a pattern.
type Port struct {
	// Name is a device, or a path.Match pattern that contains one of *?[. If several ports match a device, an exact
	// name takes precedence, then the first pattern.
	Name string
	At   Position

	Options bridge.PortOptions // Changes in the order of bridge.PortSettings; missing ones have their defaults

	// VLANs are the port's VLANs; nil means the bridge's default.
	VLANs []bridge.VLANRange

	// Addresses belong to the interface of a host port; nil leaves them unchanged.
	Addresses []netip.Prefix

	// MAC is the address of a host port's interface. Without it and without OwnMAC the address is unchanged; a new
	// interface gets its automatic address, as with OwnMAC.
	MAC    net.HardwareAddr
	OwnMAC bool

	MTU int // of a host port; 0 leaves it unchanged, and a new one begins with the smallest MTU of the ports

	// Description belongs to the port's device, or to a host port's interface; nil leaves it unchanged, and ""
	// removes it.
	Description *string

	// Up means that the port's device, or the interface of a host port, is up. Nil means up; for an interface in
	// another network namespace nil means unchanged.
	Up *bool

	left string // why it cannot be made now, "" if it can; see Restore
}

// A PrivateVLAN is a primary VLAN with its secondary VLANs (RFC 5517).
type PrivateVLAN struct {
	At      Position
	Primary uint16
	bridge.PrivateVLANs
}

// A Rule is a MAC rule of a port in the format of `bascule rule load`: with "on PORT" in it.
type Rule struct {
	At   Position
	Text string
}

// A Binding ties an address to a station. Bridge is the bridge that has the binding.
type Binding struct {
	At Position
	bridge.Binding

	// Idle means that a running binding is in a VLAN that never carries its port's frames: the bridge filters since
	// then, or the port has left the VLAN. A file cannot express this.
	Idle bool
}

// A Mirror is a span port.
type Mirror struct {
	At     Position
	Device string
	bridge.SpanOptions

	// Emptied means that the running mirror copies nothing because its source ports have left. A file cannot
	// express this: without ports a mirror copies all of them.
	Emptied bool

	left string // as in Port
}

// An Entry is a static or sticky FDB entry.
type Entry struct {
	At Position
	bridge.Entry
	Idle bool // as in Binding
}

// PF is the desired state of a bridge's pf.
type PF struct {
	At      Position
	Enabled bool
	File    string // path of a pf.conf, relative to the file that names it
	Rules   string // or the text of the rules; with neither, the rules stay as they are

	lines   []Position // positions of the text's lines in the file; nil if unknown
	printed string     // the rules in the switch's output format
}
