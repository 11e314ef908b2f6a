// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"net"
	"time"
)

// Info has the facts of a bridge, except for its ports' own state.
type Info struct {
	Name     string
	Address  net.HardwareAddr // the bridge's own
	Config   BridgeConfig
	FDBCount uint32   // dynamic entries now; static ones do not count
	Ports    []string // names, in the order in which they were added; never nil

	// Born is random: a bridge that is made anew has another, also where it has the same
	// address.
	Born uint64

	// AgentRuns says that somebody runs the spanning tree. If nobody does, the
	// ports keep the states that they have.
	AgentRuns bool
}

// Identity tells the bridge from others, and from one of its name that was deleted before.
func (i Info) Identity() string { return fmt.Sprintf("%s-%x", i.Address, i.Born) }

// PortOptions are the arguments of AddPort and SetPort.
type PortOptions struct {
	Type    string   // AddPort: "netdev", the default, "host" or "patch"; SetPort: ""
	Peer    string   // AddPort, "patch": BRIDGE/PORT, the other end, which is made too
	Hook    string   // "auto", "tcx" or "xdp"; "" is auto for a new port, and unchanged for one that exists
	Changes []Change // of PortSettings
	Plugged bool     // AddPort: it gets an owner, and may take the place of a plugged port whose device is gone
	Force   bool     // AddPort: the device may have others above it, which get nothing then

	// MAC is that of a host port's interface; nil is the one that it gets by itself, or the one
	// that it has.
	MAC net.HardwareAddr
	// OwnMAC gives the interface of a host port the address that it gets by itself. MAC is nil.
	OwnMAC bool
	// MTU is that of a host port; 0 is the one that it has, or for a new one the smallest of the
	// ports of type netdev.
	MTU   int
	VLANs []VLANRange // AddPort: the port's VLANs; nil for those of a new port
	// Description becomes that of the device, or of a host port's interface; "" takes it away, nil is as it
	// is. See [CheckDescription].
	Description *string
	// Up says whether the device of a netdev port is to be up; nil is as it is. It is set up when it is
	// a port, and set down before. A host port's interface is set by [Switch.SetHostInterface].
	Up *bool
}

// Port is one port of a bridge. A netdev port is an interface that was there before. A
// host port is the host's own interface on the switch, made and removed with the port.
// A span port gets copies of frames, and no frame comes in by it. A patch port is one
// end of a cable to another bridge, and has no device.
type Port struct {
	Bridge string
	Name   string
	Type   string   // "netdev", "host", "span" or "patch"
	Peer   string   // of a patch port: BRIDGE/PORT, the cable's other end
	Hook   string   // "tcx" or "xdp", "" of a patch port
	Index  int      // of the device
	Flags  []string // of the device, named as `ip link` does: BROADCAST, UP, ...
	MTU    int      // of the device, in bytes
	MAC    net.HardwareAddr
	// Link is the name of a veth's other end, if that is in the same network namespace; ""
	// of other devices. It is ip(8)'s "link".
	Link        string
	Description string // of the device, its alias in ip-link(8): any bytes
	// State is "forwarding", "learning" or "discarding" by spanning tree, "blocked" by the port's loop guard,
	// "disabled" while its device is down, "gone" when the device vanished, "no-peer" where a patch cable ends.
	State string
	// TakenBy is the device that has made the port's device its member, such as
	// "Linux bridge lxbr0". TakenBy gets no frames from the port. The frames that
	// it sends by the port go past the switch.
	TakenBy string
	// Findings are what the host has at the port's device without the effect that it would have
	// without the switch; nil for nothing.
	Findings []PortFinding
	Config   PortConfig // a span port has no settings: all are off
	FDBCount uint32     // dynamic entries that point to the port
	Stats    Stats

	Owner *Owner // nil for nobody

	// Way is how known unicast leaves by the port: WayStraight, WayXDP, WayDevice, or "" of
	// ports without a device. On the first two nothing of the device sees the frames, not even
	// the device's own counters.
	Way string
	// Egress has what closes the two short ways, and would see the frames: EgressQdisc and so
	// on. EgressNetfilter sees none in any case.
	Egress []string

	// NoCarrier says who keeps the carrier from a host port's interface:
	// NoCarrierAgent, NoCarrierEnded, or "" for nobody.
	NoCarrier string
}

// The values of Port.Way.
const (
	WayStraight = "straight" // straight to a veth's other end
	WayXDP      = "xdp"      // by XDP from ports that have it, and by the device from others
	WayDevice   = "device"   // by the device
)

// The values of Port.Egress.
const (
	EgressUnknown   = "unknown"   // the kernel does not tell programs
	EgressQdisc     = "qdisc"     // a queueing discipline, of tc-qdisc(8)
	EgressTC        = "tcx"       // programs of tcx, or clsact
	EgressNetfilter = "netfilter" // rules of netfilter at the hook egress, which meet no frame of the switch
	EgressEndXDP    = "end-xdp"   // a program of XDP at a veth's other end
)

// The values of Port.NoCarrier.
const (
	NoCarrierAgent = "agent"       // the agent: no other port leads anywhere
	NoCarrierEnded = "agent-ended" // a killed agent; the next command that changes something gives it back
)

// Stats are the counters of a port since it was added. A frame that the
// device keeps in one piece (GSO) counts once, with all of its bytes.
type Stats struct {
	RxFrames, RxBytes uint64 // from the device into the switch
	TxFrames, TxBytes uint64 // from the switch to the device
	Learned           uint64 // addresses that became known on the port
	Moves             uint64 // addresses that moved to the port from another
	// Refused counts addresses that were not learned or moved: the table was full, a static or sticky entry held
	// them elsewhere, or they moved too often.
	Refused uint64
	Drops   map[string]uint64 // frames by reason; only those above zero
	// Routed has the frames for a routed host port: "done" counts those that the datapath has
	// routed, and the other words say why it has left frames to the host's stack. Only those
	// above zero; nil where the port does not route.
	Routed map[string]uint64
}

// Entry is one line of a bridge's FDB: where the frames of an address go.
// An entry that is neither static nor sticky is dynamic: it was learned.
type Entry struct {
	MAC     net.HardwareAddr
	VLAN    uint16 // 1 to 4094; 0 stands for frames without a tag
	Port    string
	Static  bool          // never ages, never moves
	Sticky  bool          // never ages, never moves by learning
	Locked  bool          // dynamic: heard on a locked port, and does not open the port
	Updated time.Duration // since the address was last seen; dynamic entries only
}

// Match chooses entries of an FDB. Each field narrows the choice; the zero
// Match is every entry.
type Match struct {
	Port    string           // "" is any
	MAC     net.HardwareAddr // nil is any
	VLAN    *uint16          // nil is any; 0 is the entries of frames without a tag
	Static  bool             // static and sticky entries
	Dynamic bool             // learned entries; neither this nor Static is both
	Own     bool             // host ports' own addresses, which are static and stay; for FDB alone
}

// Event is something that happened on a bridge. Fields that have no meaning
// for a kind of event are zero.
type Event struct {
	Time time.Time
	// Kind is "learned", "moved", "aged", "added", "deleted", "refused", "locked", "loop", "blocked", "port-added",
	// "port-removed", "port-gone", "port-back", "port-taken", "port-released", "port-finding", "port-cleared",
	// "port-mtu", "drops", ...
	Kind   string
	Bridge string
	Port   string
	From   string           // moved, added: the port that the address was on before; loop: the port that it is on
	Reason string           // drops, refused: why; port-taken: by which device; port-finding, port-mtu: a sentence
	MAC    net.HardwareAddr // nil where the event has no address
	VLAN   uint16           // VLAN of MAC; 0 for frames without a tag
	Count  uint64           // how many times, for events that are counted together; 0 is once
	For    time.Duration    // blocked: how long
	Own    bool             // refused: MAC is the address of a host port's interface, From
}

// ParseMAC reads the address of an FDB entry, in any notation of [net.ParseMAC] with
// six bytes. The error is a *[UsageError] if s is malformed, zero, or a group address
// (IEEE 802, the first byte's lowest bit). No frame can come from zero or a group
// address, so no port can have it.
func ParseMAC(s string) (net.HardwareAddr, error) {
	mac, err := net.ParseMAC(s)
	if err != nil || len(mac) != 6 {
		return nil, usagef(s, "not a MAC address; give six bytes such as 02:00:00:00:00:01")
	}
	const remedy = "give the unicast address of one station"
	switch [6]byte(mac) {
	case [6]byte{}:
		return nil, usagef(s, "the zero address belongs to no station; %s", remedy)
	case [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}:
		return nil, usagef(s, "the broadcast address belongs to every station; %s", remedy)
	}
	if mac[0]&1 != 0 {
		return nil, usagef(s, "a multicast address belongs to a group; %s", remedy)
	}
	return mac, nil
}

// CheckName returns a *[UsageError] if no bridge or port can have the name. kind says
// which of the two it is for.
func CheckName(kind, name string) error { return checkName(kind, name) }
