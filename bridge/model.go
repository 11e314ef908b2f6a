// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"net"
	"time"
)

// Info has the properties of a bridge, except for its ports' own state.
type Info struct {
	Name     string
	Address  net.HardwareAddr // the bridge's own
	Config   BridgeConfig
	FDBCount uint32   // present dynamic entries, without static ones
	Ports    []string // names, in the order in which they were added; never nil

	// Born is random: a deleted and added bridge has another value, even with the same address.
	Born uint64

	// AgentRuns reports whether a process runs spanning tree. If none does, the ports keep their states.
	AgentRuns bool
}

// Identity distinguishes the bridge from all others, and from a deleted one of the same name.
func (i Info) Identity() string { return fmt.Sprintf("%s-%x", i.Address, i.Born) }

// PortOptions are the arguments of AddPort and SetPort.
type PortOptions struct {
	Type    string   // AddPort: "netdev", the default, "host" or "patch"; SetPort: ""
	Peer    string   // AddPort, "patch": BRIDGE/PORT, the other end, which is added, too
	Hook    string   // "auto", "tcx" or "xdp"; "" is auto for a new port, and unchanged for an existing one
	Changes []Change // of PortSettings
	Plugged bool     // AddPort: it gets an owner, and may replace a plugged port whose device is gone
	Force   bool     // AddPort: the device may have others above it, which then receive nothing

	// MAC is the address of a host port's interface; nil is the default address for a new port, and the present
	// one for an existing port.
	MAC net.HardwareAddr
	// OwnMAC gives the interface of a host port its default address. MAC is nil then.
	OwnMAC bool
	// MTU is a host port's, in bytes; 0 is the smallest MTU of the ports of type netdev for a new port, and the
	// present one for an existing port.
	MTU   int
	VLANs []VLANRange // AddPort: the port's VLANs; nil for the VLANs of a new port
	// Description becomes the description of the device, or of a host port's interface; "" removes it, nil keeps
	// it. See [CheckDescription].
	Description *string
	// Up sets the device of a netdev port up or down; nil leaves it unchanged. The device is set up after it
	// becomes a port, and down before. For a host port's interface, see [Switch.SetHostInterface].
	Up *bool
}

// Port is a port of a bridge. A netdev port is an existing interface. A host port is the host's own interface on the
// switch, which is made and removed with the port. A span port gets copies of frames, and the switch drops frames
// that enter by it. A patch port is one end of a cable to another bridge, and has no device.
type Port struct {
	Bridge string
	Name   string
	Type   string   // "netdev", "host", "span" or "patch"
	Peer   string   // of a patch port: BRIDGE/PORT, the cable's other end
	Hook   string   // "tcx" or "xdp", "" for a patch port
	Index  int      // of the device
	Flags  []string // of the device, in the words of `ip link`: BROADCAST, UP, ...
	MTU    int      // of the device, in bytes
	MAC    net.HardwareAddr
	// Link is the name of a veth's other end if it is in the same network namespace, and "" otherwise. It is
	// ip(8)'s "link".
	Link        string
	Description string // alias of the device in ip-link(8): any bytes
	// State is "forwarding", "learning" or "discarding" by spanning tree, "blocked" by the port's loop guard,
	// "disabled" while its device is down, "gone" if the device is gone, or "no-peer" for a patch port without
	// another end.
	State string
	// TakenBy is the device that has made the port's device its member, such as "Linux bridge lxbr0". It gets no
	// frames from the port. The frames that it sends by the port bypass the switch.
	TakenBy string
	// Findings are the host's objects at the port's device that do not have the same effect as without the
	// switch; nil if there are none.
	Findings []PortFinding
	Config   PortConfig // a span port has no settings: all are off
	FDBCount uint32     // dynamic entries that point to the port
	Stats    Stats

	Owner *Owner // nil for none

	// Way is how known unicast leaves by the port: WayStraight, WayXDP, WayDevice, or "" for ports without a
	// device. On the first two ways no part of the device sees the frames, not even its counters.
	Way string
	// Egress lists what prevents the two short ways, and would see the frames: EgressQdisc and so on.
	// EgressNetfilter never sees any.
	Egress []string

	// NoCarrier is the reason why a host port's interface has no carrier: NoCarrierAgent, NoCarrierEnded, or ""
	// if it has one.
	NoCarrier string
}

// The values of Port.Way.
const (
	WayStraight = "straight" // directly to a veth's other end
	WayXDP      = "xdp"      // by XDP from ports with XDP, and by the device from others
	WayDevice   = "device"   // by the device
)

// The values of Port.Egress.
const (
	EgressUnknown   = "unknown"   // the kernel gives programs no information about it
	EgressQdisc     = "qdisc"     // a queueing discipline, of tc-qdisc(8)
	EgressTC        = "tcx"       // programs of tcx, or clsact
	EgressNetfilter = "netfilter" // rules of netfilter at the hook egress, which see no frame of the switch
	EgressEndXDP    = "end-xdp"   // a program of XDP at a veth's other end
)

// The values of Port.NoCarrier.
const (
	NoCarrierAgent = "agent"       // set by the agent: no other port leads anywhere
	NoCarrierEnded = "agent-ended" // left by a killed agent; the next change gives the carrier back
)

// Stats are the counters of a port since it was added. A frame that the device keeps in one piece (GSO) counts once,
// with all of its bytes.
type Stats struct {
	RxFrames, RxBytes uint64 // from the device into the switch
	TxFrames, TxBytes uint64 // from the switch to the device
	Learned           uint64 // addresses learned on the port
	Moves             uint64 // addresses that moved to the port from another
	// Refused counts addresses that were not learned or did not move: the table was full, a static or sticky
	// entry had them elsewhere, or they moved too often.
	Refused uint64
	Drops   map[string]uint64 // frames by reason; only those above zero
	// Routed has the numbers of frames for a routed host port: "done" counts frames that the datapath has routed;
	// the other words are reasons why it has passed frames to the host's stack. It has only numbers above zero,
	// and is nil if the port does not route.
	Routed map[string]uint64
}

// Entry is an entry of a bridge's FDB: where the frames of an address go. An entry that is neither static nor sticky
// is dynamic: it was learned.
type Entry struct {
	MAC     net.HardwareAddr
	VLAN    uint16 // 1 to 4094; 0 stands for frames without a tag
	Port    string
	Static  bool          // never ages, never moves
	Sticky  bool          // never ages, never moves by learning
	Locked  bool          // dynamic: learned on a locked port, and gives no access
	Updated time.Duration // since the address was last seen; dynamic entries only
}

// Match selects entries of an FDB. Each field narrows the selection; the zero Match selects all entries.
type Match struct {
	Port    string           // "" is any
	MAC     net.HardwareAddr // nil is any
	VLAN    *uint16          // nil is any; 0 selects entries of frames without a tag
	Static  bool             // static and sticky entries
	Dynamic bool             // learned entries; if both are false, all entries
	Own     bool             // host ports' own addresses, which are static and permanent; for FDB only
}

// Event is an event on a bridge. Fields without a meaning for a kind of event are zero.
type Event struct {
	Time time.Time
	// Kind is "learned", "moved", "aged", "added", "deleted", "refused", "locked", "loop", "blocked", "port-added",
	// "port-removed", "port-gone", "port-back", "port-taken", "port-released", "port-finding", "port-cleared",
	// "port-mtu", "drops", ...
	Kind   string
	Bridge string
	Port   string
	From   string           // moved, added: the former port of the address; loop: the port of its entry
	Reason string           // drops, refused: the reason; port-taken: the device; port-finding, port-mtu: text
	MAC    net.HardwareAddr // nil if the event has no address
	VLAN   uint16           // VLAN of MAC; 0 for frames without a tag
	Count  uint64           // number of events that are counted together; 0 means 1
	For    time.Duration    // blocked: the duration
	Own    bool             // refused: MAC is the address of a host port's interface, From
}

// ParseMAC parses the address of an FDB entry, in any notation of [net.ParseMAC] with six bytes. The error is a
// *[UsageError] if s is malformed, zero, or a group address (IEEE 802, the first byte's lowest bit). No frame has
// such a source address, so no port can have it.
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

// CheckName returns a *[UsageError] if no bridge or port can have the name. kind is "bridge" or "port".
func CheckName(kind, name string) error { return checkName(kind, name) }
