// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"cmp"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf/btf"
)

// Config is the whole configuration of a bridge's programs. Specialise fills in
// the parts that follow from the rest.
type Config struct {
	kernelConfig
	kernelSettings
}

// Port is a port in a Config. A slot whose Id is 0 is free.
type Port = kernelPort

// PortFlags are the bits of Port.Flags: settings of a port that are on or off.
type PortFlags = kernelPortFlag

// The flags of a port. The decision on a frame tests each of them.
const (
	PortLearn      = kernelPortFlagPORT_LEARN
	PortDiscover   = kernelPortFlagPORT_DISCOVER
	PortMcastFlood = kernelPortFlagPORT_MCAST_FLOOD
	PortBcastFlood = kernelPortFlagPORT_BCAST_FLOOD
	PortHairpin    = kernelPortFlagPORT_HAIRPIN
	PortLocked     = kernelPortFlagPORT_LOCKED
	PortMAB        = kernelPortFlagPORT_MAB
	PortLimitDrop  = kernelPortFlagPORT_LIMIT_DROP
	PortBlockNonIP = kernelPortFlagPORT_BLOCK_NON_IP
	PortSrcGuard   = kernelPortFlagPORT_SOURCE_GUARD
	PortTrusted    = kernelPortFlagPORT_TRUSTED
	PortLoopGuard  = kernelPortFlagPORT_LOOP_GUARD
	PortRulesIn    = kernelPortFlagPORT_RULES_IN
	PortRulesOut   = kernelPortFlagPORT_RULES_OUT
	PortCapture    = kernelPortFlagPORT_CAPTURE
	PortRoute      = kernelPortFlagPORT_ROUTE
)

// PortFacts are the bits of Port.Facts: facts about a port that follow from its device.
type PortFacts = kernelPortFact

// The facts of a port. The decision on a frame tests each of them.
const (
	PortPatch    = kernelPortFactPORT_PATCH
	PortSpan     = kernelPortFactPORT_SPAN
	PortXDPTx    = kernelPortFactPORT_XDP_TX
	portXDPFlood = kernelPortFactPORT_XDP_FLOOD // specialise sets this and the next
	portToHost   = kernelPortFactPORT_TO_HOST
)

// PortNotes are the bits of Port.Notes: facts about a port for the code that loads programs
// and shows ports. The decision on a frame tests none of them.
type PortNotes = kernelPortNote

// The notes of a port.
const (
	PortXDP   = kernelPortNotePORT_XDP
	PortXDPRx = kernelPortNotePORT_XDP_RX
	PortHost  = kernelPortNotePORT_HOST
	PortBerth = kernelPortNotePORT_BERTH
	PortApart = kernelPortNotePORT_APART
)

// PortTaken are the bits of Port.Taken: settings that the port's device had before it became a
// port, to be restored when the port leaves. The decision on a frame tests none of them.
type PortTaken = kernelPortTaken

// The settings that a port's device had.
const (
	PortWasPromisc = kernelPortTakenPORT_WAS_PROMISC
	PortHadLRO     = kernelPortTakenPORT_HAD_LRO
	PortHadRxVLAN  = kernelPortTakenPORT_HAD_RXVLAN
	PortEndHadCsum = kernelPortTakenPORT_END_HAD_CSUM
	PortEndHadVLAN = kernelPortTakenPORT_END_HAD_VLAN
	PortEndNoGRO   = kernelPortTakenPORT_END_NO_GRO
	PortEndHadSCTP = kernelPortTakenPORT_END_HAD_SCTP
	PortEndHadSTag = kernelPortTakenPORT_END_HAD_STAG
)

// STPGuards are the bits of Port.StpGuards: settings of a port for the process that runs
// spanning tree. The decision on a frame tests none of them.
type STPGuards = kernelStpGuard

// The guards of a port.
const (
	STPBPDUGuard  = kernelStpGuardSTP_BPDU_GUARD
	STPBPDUFilter = kernelStpGuardSTP_BPDU_FILTER
	STPRootGuard  = kernelStpGuardSTP_ROOT_GUARD
)

// The values of Port.Admit: the frames of a VLAN that the port takes.
const (
	AdmitAll      = uint16(kernelVlanAdmitADMIT_ALL)
	AdmitTagged   = uint16(kernelVlanAdmitADMIT_TAGGED)
	AdmitUntagged = uint16(kernelVlanAdmitADMIT_UNTAGGED)
)

// DivertMark is the mark of packets that pf gives to sockets of the host (enum pf_mark).
const DivertMark = uint32(kernelPfMarkPF_DIVERT_MARK)

// The ports that pf judges: Config.PfPorts (enum pf_ports).
const (
	PFPortsAll     = uint8(kernelPfPortsPF_PORTS_ALL)
	PFPortsHost    = uint8(kernelPfPortsPF_PORTS_HOST)
	PFPortsStation = uint8(kernelPfPortsPF_PORTS_STATION)
)

// BridgeFlags are the bits of Config.Flags.
type BridgeFlags = kernelBridgeFlag

// The flags of a bridge: its settings, and the watches, which are on while a command watches.
const (
	BridgeVLANs     = kernelBridgeFlagBRIDGE_VLANS
	BridgeQinQ      = kernelBridgeFlagBRIDGE_QINQ
	BridgeVLANStats = kernelBridgeFlagBRIDGE_VLAN_STATS
	BridgeDHCPGuard = kernelBridgeFlagBRIDGE_DHCP_GUARD
	BridgeRAGuard   = kernelBridgeFlagBRIDGE_RA_GUARD
	BridgeSuppress  = kernelBridgeFlagBRIDGE_SUPPRESS
	BridgeCapture   = kernelBridgeFlagBRIDGE_CAPTURE
	BridgeTalkers   = kernelBridgeFlagBRIDGE_TALKERS
	BridgePF        = kernelBridgeFlagBRIDGE_PF
	BridgeSTP       = kernelBridgeFlagBRIDGE_STP
	BridgeRSTP      = kernelBridgeFlagBRIDGE_RSTP
	BridgeSample    = kernelBridgeFlagBRIDGE_SAMPLE
	BridgeMAC       = kernelBridgeFlagBRIDGE_MAC
)

// The kinds of floods, which are the indexes of Port.Storm (enum storm_kind).
const (
	StormBroadcast = iota
	StormMulticast
	StormUnknown
)

// The directions of frames at a port, which are the indexes of Port.Limit (enum limit_way).
const (
	LimitIn = iota
	LimitOut
)

// MaxPorts is the number of ports that a bridge can have.
const MaxPorts = len(Config{}.Ports) - 1

// MaxSpans is how many span ports a bridge can have.
const MaxSpans = len(Config{}.Spans)

// PortNameSize is the size of a port's name, in bytes with the zero at its end.
const PortNameSize = len(Port{}.Name)

// Layout is the number of the layout of pinned objects: a bridge with another layout is not
// read.
const Layout = layout

const (
	layout     = 27 // of pinned objects: TestLayout fails if it has to change
	slotBits   = 10
	portProbes = 8 // PORT_PROBES
	portShift  = 19
	fdbWindow  = 8 // FDB_WINDOW
	fdbWays    = 4 // FDB_WAYS
	minBuckets = 256
)

// Slot returns the slot of a port id.
func Slot(id uint32) uint32 { return id & (1<<slotBits - 1) }

// Incarnation returns the part of a port id that increases with each port that is added.
func Incarnation(id uint32) uint32 { return id >> slotBits }

// PortAt returns the port with the id, nil if it is not there any more, or is a vacant berth.
func PortAt(c *Config, id uint32) *Port {
	if p := TenantAt(c, id); p != nil && !Vacant(p) {
		return p
	}
	return nil
}

// TenantAt returns the port or vacant berth with the id, nil if it is not there
// any more.
func TenantAt(c *Config, id uint32) *Port {
	p := (*Port)(unsafe.Pointer(&c.Ports[Slot(id)])) // the same type without a name
	if id == 0 || p.Id != id {
		return nil
	}
	return p
}

// Ports returns the ports of c by slot, without vacant berths; they can be
// changed through the pointers.
func Ports(c *Config) []*Port {
	return slices.DeleteFunc(tenants(c), Vacant)
}

// tenants returns the tenants of slots: the ports and the vacant berths.
func tenants(c *Config) []*Port {
	var ports []*Port
	for i := range c.Ports {
		if id := c.Ports[i].Id; id != 0 {
			ports = append(ports, TenantAt(c, id))
		}
	}
	return ports
}

// NewPort gives a free slot of c to a port and returns it, nil if there is
// none. Its id has never been given before. A vacant berth gives way to a port.
func NewPort(c *Config, name string) *Port { return NewPortBeside(c, c, name) }

// NewPortBeside is NewPort for a configuration c that replaces was. A slot that was uses is
// taken only if there is no other: until c has replaced was, frames for the slot's former
// tenant may reach the new one.
func NewPortBeside(c, was *Config, name string) *Port {
	for _, former := range []*Config{was, c} {
		if p := newTenant(c, former, name); p != nil {
			return p
		}
	}
	berths := Berths(c)
	if len(berths) == 0 {
		return nil
	}
	*berths[0] = Port{}
	return newTenant(c, c, name)
}

func newTenant(c, former *Config, name string) *Port {
	for slot := 1; slot < len(c.Ports); slot++ {
		if c.Ports[slot].Id != 0 || former.Ports[slot].Id != 0 {
			continue
		}
		c.Ports[slot].Id = newID(c, uint32(slot))
		p := TenantAt(c, c.Ports[slot].Id)
		p.Name = nameField(name)
		return p
	}
	return nil
}

// newID returns a new id for a slot, which has never been given before.
func newID(c *Config, slot uint32) uint32 {
	c.NextIncarnation++
	// 20 bits; 0 would make the first slot's id 0
	incarnation := c.NextIncarnation&(1<<20-1) | 1<<19
	return incarnation<<slotBits | slot
}

// nameField returns a name in the form of Port.Name.
func nameField(name string) (field [PortNameSize]int8) {
	for i := range min(len(name), len(field)-1) {
		field[i] = int8(name[i])
	}
	return field
}

// MACWord returns a MAC in the form of Port.Host and Port.Peer.
func MACWord(mac [6]byte) uint64 { return key(mac, 0) }

// WordMAC returns the MAC of such a word.
func WordMAC(word uint64) [6]byte { return macOf(word) }

// Rename gives a port a new name.
func Rename(p *Port, name string) { p.Name = nameField(name) }

// PortName returns the name with which the port was added, or that Rename gave it.
func PortName(p *Port) string {
	b := unsafe.Slice((*byte)(unsafe.Pointer(&p.Name)), len(p.Name))
	name, _, _ := bytes.Cut(b, []byte{0})
	return string(name)
}

// buckets returns the number of home buckets of an FDB with a limit of max dynamic entries:
// three times the room, so that no neighbourhood fills up.
func buckets(max uint32) uint32 {
	return uint32(minBuckets + uint64(max)*3/fdbWays)
}

// FDBPlaces returns how many entries an FDB with a limit of max dynamic entries has places
// for.
func FDBPlaces(max uint32) int { return int(buckets(max)+fdbWindow) * fdbWays }

// specialise fills in the parts that follow from the rest: the table that finds the ports, and
// the features that the ports or the bridge require.
func specialise(c *Config) {
	c.Layout = layout
	c.Reasons = uint32(kernelDropReasonDROP_REASONS)
	c.FdbBuckets = max(c.FdbBuckets, buckets(c.FdbMax))

	for _, p := range Ports(c) {
		p.Notes &^= PortBerth // its device has come
		p.Facts &^= portToHost
		p.FitsIfindex = p.Ifindex
		if p.Notes&PortHost != 0 {
			p.Facts |= portToHost
			p.FitsIfindex = cmp.Or(p.HostIfindex, p.Ifindex) // 0 while it is in another namespace
		}
	}
	settleDomains(Ports(c))
	ports := tenants(c)
	c.Slots = 1
	for _, p := range ports {
		c.Slots = max(c.Slots, Slot(p.Id)+1)
	}
	f := askedFor(c, ports)
	all, shared := floodsByXDP(f, ports), sharedDomains(ports)
	for _, p := range ports {
		p.Facts &^= portXDPFlood
		if all && p.Domains&shared == 0 {
			p.Facts |= portXDPFlood
			f |= kernelFeatureFEATURE_XDP_FLOOD
		}
	}
	if judgesByXDP(f, c) {
		f |= kernelFeatureFEATURE_PF_FIRST
	}
	clear(c.Cables[:])
	n := 0
	for _, p := range ports {
		if p.Facts&PortPatch != 0 && n < len(c.Cables) {
			c.Cables[n] = uint16(p.PeerEndpoint)
			n++
		}
	}
	c.Features = uint64(f)
	index(c, Ports(c))
}

// firstDomain is the lowest number of a VRF's routing domain: lower numbers are slots.
const firstDomain = uint16(MaxPorts) + 1

// SetHostTable puts a host port into the VRF with the given routing table, or into none for 0.
func SetHostTable(p *Port, table uint32) {
	if p.HostTable != table {
		p.HostTable, p.Domain = table, 0 // specialise sets it
	}
}

// settleDomains gives host ports the number of their routing domain: ports of one VRF have the
// same number, and keep it as long as one of them is there.
func settleDomains(ports []*Port) {
	tables := map[uint16]uint32{} // of VRFs, by their numbers
	numbers := map[uint32]uint16{}
	for _, p := range ports {
		if _, known := numbers[p.HostTable]; p.HostTable == 0 || p.Domain < firstDomain || known || tables[p.Domain] != 0 {
			continue
		}
		tables[p.Domain], numbers[p.HostTable] = p.HostTable, p.Domain
	}
	for _, p := range ports {
		switch {
		case p.HostTable != 0:
			n, known := numbers[p.HostTable]
			if !known {
				for n = firstDomain; tables[n] != 0; n++ {
				}
				tables[n], numbers[p.HostTable] = p.HostTable, n
			}
			p.Domain = n
		case p.Notes&PortApart != 0:
			p.Domain = uint16(Slot(p.Id))
		default:
			p.Domain = 0
		}
	}
}

// index makes the table that finds a port by its ifindex in at most portProbes steps. It tries
// multipliers until one spreads the ports well enough. With one cell in eight taken, nearly
// any multiplier does. If ports have the same ifindex, the newest counts: the others have lost
// their device.
func index(c *Config, ports []*Port) {
	slices.SortFunc(ports, func(a, b *Port) int { return cmp.Compare(Incarnation(b.Id), Incarnation(a.Id)) })
	seen := map[uint32]bool{}
	ports = slices.DeleteFunc(ports, func(p *Port) bool {
		older := seen[p.Ifindex]
		seen[p.Ifindex] = true
		return older
	})
	for factor := uint32(1 << portShift); ; factor = rand.Uint32() | 1 {
		if place(c, ports, factor) {
			c.PortFactor = factor
			return
		}
	}
}

func place(c *Config, ports []*Port, factor uint32) bool {
	clear(c.PortCells[:])
next:
	for _, p := range ports {
		cell := p.Ifindex * factor >> portShift
		for i := range uint32(portProbes) {
			at := &c.PortCells[(cell+i)%uint32(len(c.PortCells))]
			if *at == 0 {
				*at = uint16(Slot(p.Id))
				continue next
			}
		}
		return false
	}
	return true
}

// Reasons are the names of the reasons for which frames are dropped, by number; number 0 is
// none. They are read from the datapath's own types, which define them.
var Reasons = sync.OnceValue(func() []string {
	list := names("drop_reason", "DROP_", int(kernelDropReasonDROP_REASONS))
	list[0] = "" // no reason
	return list
})

// Routes are the words for the ways of frames to a routed host port, in the order of enum
// route of bpf/types.h: which side routes them, and why.
var Routes = sync.OnceValue(func() []string { return names("route", "ROUTE_", int(kernelRouteROUTES)) })

// names returns the words of the first n constants of an enum.
func names(of, prefix string, n int) []string {
	types, err := btf.LoadSpecFromReader(bytes.NewReader(_KernelBytes))
	if err != nil {
		panic(err) // the object is part of this binary
	}
	var enum *btf.Enum
	if err := types.TypeByName(of, &enum); err != nil {
		panic(err)
	}
	names := make([]string, n)
	for _, v := range enum.Values {
		if v.Value < uint64(len(names)) {
			name := strings.TrimPrefix(v.Name, prefix)
			names[v.Value] = strings.ReplaceAll(strings.ToLower(name), "_", "-")
		}
	}
	return names
}
