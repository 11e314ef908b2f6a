// SPDX-License-Identifier: BSD-2-Clause

// Package config is the desired state of switches: files that say what bridges
// there are to be, the plan that leads there from what there is, and its
// execution by package bridge.
package config

import (
	"fmt"
	"net"
	"net/netip"

	"bascule/bridge"
)

// A File is the desired state of bridges of one network namespace. It leaves
// alone bridges that it does not name. A bridge that it names becomes what the
// file says: settings that are not in the file have their defaults, and ports,
// entries, rules, bindings and mirrors that are not in it are removed.
type File struct {
	Path    string   // that it was read from, "" for none
	Netns   string   // name or path of the namespace, "" for the caller's
	Bridges []Bridge // in the order of the file

	// Notes are about words of a file of hostname.if(5) that change nothing, or about
	// such a file that is not read.
	Notes []Error

	host  *hostInterface // of a file of hostname.if(5) that is about the host's end of a port
	other bool           // such a file about another interface, which is not read
}

// A Position is a place in a file, for messages.
type Position struct {
	Path         string
	Line, Column int // from 1, 0 where not known
}

// String returns the position as compilers print it: PATH:LINE:COLUMN.
func (p Position) String() string {
	switch {
	case p.Line == 0:
		return p.Path
	case p.Column == 0:
		return fmt.Sprintf("%s:%d", p.Path, p.Line)
	}
	return fmt.Sprintf("%s:%d:%d", p.Path, p.Line, p.Column)
}

// A Bridge is a bridge as it is to be.
type Bridge struct {
	Name     string
	At       Position
	Settings []bridge.Change // of bridge.BridgeSettings, in their order; the rest have their defaults
	Ports    []Port          // in the order of the file
	Private  []PrivateVLAN   // by primary VLAN
	Rules    []Rule          // in the order in which they are tried
	Bindings []Binding
	Mirrors  []Mirror
	Entries  []Entry // static and sticky entries of the FDB
	PF       *PF     // nil leaves pf as it is, since it has a file and a command of its own

	// Gone says that there is to be no such bridge. Nothing else is in it then, and no text of a
	// file says so.
	Gone bool
}

// A Port is the desired state of a port, or of every device whose name matches
// a pattern.
type Port struct {
	// Name is a device's, or a pattern of path.Match with one of *?[ in it. Of
	// names that several ports match a port without a pattern counts, then the
	// first.
	Name string
	At   Position

	Options bridge.PortOptions // Changes in the order of bridge.PortSettings; those not there have their defaults

	// VLANs are the port's VLANs, nil for the bridge's default.
	VLANs []bridge.VLANRange

	// Addresses are those of a host port's interface; nil leaves them as they are.
	Addresses []netip.Prefix

	// MAC is the address of a host port's interface. Without it, and without OwnMAC, the address
	// is left as it is; a new interface has the one that it gets by itself, as with OwnMAC.
	MAC    net.HardwareAddr
	OwnMAC bool

	MTU int // of a host port; 0 leaves it as it is, and a new one begins with the smallest of the ports

	// Description is that of the port's device, or of a host port's interface; nil leaves it as it is, and ""
	// takes it away.
	Description *string

	// Up says whether the port's device is up, or the interface of a host port. Nil is up, and for an
	// interface that is in another network namespace as it is.
	Up *bool

	left string // why it cannot come now, "" for a port that can; see Restore
}

// A PrivateVLAN is a primary VLAN with those below it (RFC 5517).
type PrivateVLAN struct {
	At      Position
	Primary uint16
	bridge.PrivateVLANs
}

// A Rule is a MAC rule of a port, as `bascule rule load` has it in a file:
// with "on PORT" in it.
type Rule struct {
	At   Position
	Text string
}

// A Binding ties an address to a station; its Bridge is the one that has it.
type Binding struct {
	At Position
	bridge.Binding

	// Idle says that it runs in a VLAN that its port's frames are never in: the
	// bridge filters since, or the port has left the VLAN. No file says so.
	Idle bool
}

// A Mirror is a span port.
type Mirror struct {
	At     Position
	Device string
	bridge.SpanOptions

	// Emptied says that it runs and copies nothing, since the ports that it had
	// copies of have left. No file says so: without ports it would be all of them.
	Emptied bool

	left string // as of a Port
}

// An Entry is a static or sticky entry of the FDB.
type Entry struct {
	At Position
	bridge.Entry
	Idle bool // as of a Binding
}

// PF is the desired state of a bridge's pf.
type PF struct {
	At      Position
	Enabled bool
	File    string // path of a pf.conf; relative to the file that names it
	Rules   string // or its text; with neither the rules are left as they are

	lines   []Position // of the text, where its lines stand in the file; nil where they are not known
	printed string     // the rules as the switch prints them
}
