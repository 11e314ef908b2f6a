// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A PortFinding is something that the host has at a port's device, and that has no effect there or
// another effect than without the switch.
type PortFinding struct {
	Bridge, Port string
	Kind         string // one of the constants below
	What         string // the thing, such as "macvlan mv0"
	Text         string // the consequence, and what to do; it names port and thing
}

// The kinds of findings.
const (
	FindingIngress = "ingress-filter" // the host filters frames that enter by the port, and the filter sees none
	FindingEgress  = "egress-rules"   // netfilter has rules for frames that leave by the port, and they see none
	FindingAbove   = "device-above"   // another device is above the port's, and gets no frame from it
	FindingBelow   = "port-below"     // the port's device is above another port's, and gets no frame from it
	FindingAddress = "address"        // the device has an IP address, at which the host cannot be reached
	FindingMTU     = "mtu"            // larger frames, which other ports take, are dropped
)

// key returns the finding without its text, which may change while the finding stays the same.
func (f PortFinding) key() PortFinding {
	f.Text = ""
	return f
}

// around has all that findings are made from, except for the bridges themselves. A look at the
// ports reads each part once, when a port first needs it.
type around struct {
	devices map[int]netlink.Link
	one     bool // for few ports: their filters are read without a list of all qdiscs

	ingress   map[int]bool // devices that may have ingress filters of tc
	chains    []ingressChain
	read      bool // chains and ingress are read
	addresses map[int][]deviceAddress
	store     *datapath.Store
	owners    map[int]string // owners of devices by index: "a port of br0"
}

// lookAround begins a look at the namespace of a store, which has these devices.
func lookAround(store *datapath.Store, devices map[int]netlink.Link) *around {
	return &around{store: store, devices: devices}
}

// owner returns the owner of a device, as "a port of br0", or "" if it is no port.
func (a *around) owner(index int) string {
	if a.owners == nil {
		a.owners = map[int]string{}
		names, err := a.store.Names()
		if err != nil {
			return ""
		}
		_ = eachOpen(a.store, names, func(name string, b *datapath.Bridge) error { // without unreadable ones
			for _, p := range datapath.Ports(&b.Config) {
				if l := a.deviceOf(b, p); l != nil {
					a.owners[l.Attrs().Index] = portOf(p, name)
				}
			}
			return nil
		})
	}
	return a.owners[index]
}

// portOf describes a port's device.
func portOf(p *datapath.Port, bridge string) string {
	if p.Facts&datapath.PortSpan != 0 {
		return "a span port of " + bridge
	}
	return "a port of " + bridge
}

// findings returns the findings about the devices of a bridge's ports, in the order of ports.
func (a *around) findings(name string, b *datapath.Bridge) (list []PortFinding) {
	if a.addresses == nil {
		a.addresses = addresses()
	}
	all := inOrder(&b.Config)
	largest := 0
	for _, p := range all {
		if l := a.deviceOf(b, p); l != nil && p.Facts&datapath.PortSpan == 0 {
			largest = max(largest, mtuOf(p, l, a.devices))
		}
	}
	host := hostPortAmong(&b.Config, a.devices)
	ways := waysNow(b)
	for _, p := range all {
		l := a.deviceOf(b, p)
		if l == nil {
			continue
		}
		port := portName(b, p, a.devices)
		found := func(kind, what, text string) {
			list = append(list, PortFinding{name, port, kind, what, text})
		}
		for _, what := range a.filters(l) {
			found(FindingIngress, what, filterWarning(port, what))
		}
		for _, program := range b.Behind(p) {
			what := "tcx program " + program
			found(FindingIngress, what, filterWarning(port, what))
		}
		if p.Notes&datapath.PortHost != 0 && p.Flags&datapath.PortRoute != 0 && hostHere(l) {
			if end := a.devices[l.Attrs().ParentIndex]; end != nil {
				for _, what := range a.filters(end) {
					found(FindingIngress, what, pastWarning(port, what))
				}
			}
		}
		if ways(p)&datapath.WayNetfilter != 0 {
			found(FindingEgress, "rules of netfilter", egressWarning(port))
		}
		for _, other := range a.above(l) {
			found(FindingAbove, other.what, aboveWarning(l, other))
		}
		if lower, owner := a.below(l, a.owner); lower != nil {
			found(FindingBelow, lower.Attrs().Name, belowWarning(l, lower, owner))
		}
		if p.Notes&datapath.PortHost == 0 {
			for _, address := range a.addresses[l.Attrs().Index] {
				text := address.prefix.String()
				found(FindingAddress, text, AddressWarning(name, host, port, []string{text}))
			}
		}
		switch mtu := mtuOf(p, l, a.devices); {
		case mtu == 0 || mtu >= largest:
		case p.Facts&datapath.PortSpan == 0:
			found(FindingMTU, fmt.Sprint(mtu), smallerWarning(port, mtu, largest))
		default:
			found(FindingMTU, fmt.Sprint(mtu), copyWarning(port, mtu, largest))
		}
	}
	return list
}

// PortFindings returns the findings about the devices of all bridges' ports, in the order of
// bridges and ports. It leaves out bridges of another version.
func (s *Switch) PortFindings() (list []PortFinding, err error) {
	err = s.read(func(store *datapath.Store) error {
		names, err := store.Names()
		if err != nil || len(names) == 0 {
			return err
		}
		devices, err := links()
		if err != nil {
			return err
		}
		around := lookAround(store, devices)
		return eachOpen(store, names, func(name string, b *datapath.Bridge) error {
			list = append(list, around.findings(name, b)...)
			return nil
		})
	})
	return list, failed("look at the devices of ports", err)
}

// NewFindings returns the findings of now that were not there before, and the former ones that have
// gone.
func NewFindings(before, now []PortFinding) (came, went []PortFinding) {
	without := func(list, of []PortFinding) []PortFinding {
		there := map[PortFinding]bool{}
		for _, f := range of {
			there[f.key()] = true
		}
		return slices.DeleteFunc(slices.Clone(list), func(f PortFinding) bool { return there[f.key()] })
	}
	return without(now, before), without(before, now)
}

// deviceOf returns the switch's own device of a port, or nil if there is none.
func (a *around) deviceOf(b *datapath.Bridge, p *datapath.Port) netlink.Link {
	if p.Facts&datapath.PortPatch != 0 || !b.HasDevice(p) {
		return nil
	}
	return a.devices[int(p.Ifindex)]
}

// hostPortAmong does the same as hostPortOf, with the given devices of the namespace.
func hostPortAmong(config *datapath.Config, devices map[int]netlink.Link) string {
	for _, p := range datapath.Ports(config) {
		if p.Notes&datapath.PortHost == 0 {
			continue
		}
		if l := devices[int(p.Ifindex)]; l != nil && hostHere(l) && devices[l.Attrs().ParentIndex] != nil {
			return devices[l.Attrs().ParentIndex].Attrs().Name
		}
		return datapath.PortName(p)
	}
	return ""
}

// filterWarning is the text about a filter that sees no frame because the switch comes first.
func filterWarning(port, what string) string {
	return fmt.Sprintf("%s: %s sees none of the frames that the switch takes from the port: the switch comes first; filter with pf or MAC rules",
		port, what)
}

// pastWarning is the text about a filter of a host port's interface that routed packets bypass.
func pastWarning(port, what string) string {
	return fmt.Sprintf("%s: %s sees none of the packets that the datapath routes; filter with pf or MAC rules, or leave --route off", port, what)
}

// aboveWarning is the text about a device above a port's device.
func aboveWarning(l netlink.Link, other upper) string {
	return fmt.Sprintf("%s is above %s and gets nothing from it: a port belongs to the switch; %s",
		other.what, l.Attrs().Name, insteadOf(other))
}

// belowWarning is the text about a port's device that is above another port's device.
func belowWarning(l, lower netlink.Link, owner string) string {
	return fmt.Sprintf("%s is above %s, %s, and gets nothing from it: a port belongs to the switch; %s",
		kindAndName(l), lower.Attrs().Name, owner, joinAbove)
}

// aboveWords lists the devices above one that should become a port's.
func aboveWords(above []upper) string {
	var names []string
	for _, other := range above {
		names = append(names, other.what)
	}
	if len(names) == 1 {
		return names[0] + " is above it, and would get nothing from it"
	}
	return strings.Join(names, ", ") + " are above it, and would get nothing from it"
}

// belowWords is the error for a device that should become a port's and is above another port's
// device.
func belowWords(lower netlink.Link, owner string) string {
	return fmt.Sprintf("it is above %s, %s, and would get nothing from it", lower.Attrs().Name, owner)
}

// joinAbove is the remedy for a port whose device is above another port's device.
const joinAbove = "join the bridges with a patch cable in that VLAN ('--type patch --peer'), or have one bridge with VLANs"

// insteadOf is the remedy for a device above a port's device: another device for the same purpose.
func insteadOf(other upper) string {
	if other.vlan != 0 {
		return fmt.Sprintf("delete it and give its addresses to a host port in VLAN %d ('bascule port add --type host', 'bascule vlan add')", other.vlan)
	}
	return "delete it and give its addresses to a host port ('bascule port add --type host'), or make it above that"
}

func smallerWarning(port string, mtu, largest int) string {
	return fmt.Sprintf("%s has MTU %d, other ports up to %d: larger frames to %s will be dropped (reason mtu)", port, mtu, largest, port)
}

func copyWarning(port string, mtu, largest int) string {
	return fmt.Sprintf("%s has MTU %d, other ports up to %d: of larger frames it gets no copy (counted there, reason mtu)", port, mtu, largest)
}

// mtuOf returns the MTU of a port with device l. For a host port, that is the MTU of the host's
// end, or 0 if that end is in another network namespace.
func mtuOf(p *datapath.Port, l netlink.Link, devices map[int]netlink.Link) int {
	if p.Notes&datapath.PortHost == 0 {
		return l.Attrs().MTU
	}
	if end := devices[l.Attrs().ParentIndex]; hostHere(l) && end != nil {
		return end.Attrs().MTU
	}
	return 0
}

// mtuChange describes a changed MTU of a port's device, in the words of port add. port is the
// port's name. lossy reports whether frames are dropped because of it.
func mtuChange(b *datapath.Bridge, p *datapath.Port, port string, mtu int, devices map[int]netlink.Link) (text string, lossy bool) {
	around := lookAround(b.Store(), devices)
	isSpan := func(p *datapath.Port) bool { return p.Facts&datapath.PortSpan != 0 }
	var others []int
	for _, o := range datapath.Ports(&b.Config) {
		if l := around.deviceOf(b, o); l != nil && o.Id != p.Id && !(isSpan(p) && isSpan(o)) {
			if mtu := mtuOf(o, l, devices); mtu != 0 {
				others = append(others, mtu)
			}
		}
	}
	text = mtuWords(port, mtu, others)
	switch {
	case isSpan(p) && len(others) > 0 && slices.Max(others) > mtu:
		return copyWarning(port, mtu, slices.Max(others)), true
	case isSpan(p) || text == "":
		return fmt.Sprintf("%s has MTU %d, and no frame is lost by that", port, mtu), false
	}
	return text, true
}

// peers are the kinds of devices whose link is their other end, not a device below.
var peers = []string{"veth", "netkit", "vxcan"}

// LowerOf returns the index of the device of this namespace that is directly below another, or 0 if
// there is none.
func LowerOf(l netlink.Link) int {
	a := l.Attrs()
	if a.NetNsID >= 0 || a.ParentIndex == a.Index || slices.Contains(peers, l.Type()) {
		return 0
	}
	return a.ParentIndex
}

// An upper is a device directly above another one.
type upper struct {
	what string // "macvlan mv0", with its network namespace if that is another one
	vlan int    // VLAN ID of a VLAN device, 0 for others
}

// above returns the devices directly above one, in the order of their names, without the device's
// master. It also returns devices of other network namespaces, except above veths, taps and the
// like: guests and containers have many of those, and this look-up costs more than a list.
func (a *around) above(l netlink.Link) (list []upper) {
	index, seen := l.Attrs().Index, map[uint32]bool{}
	for _, other := range a.devices {
		if LowerOf(other) != index {
			continue
		}
		u := upper{what: kindAndName(other)}
		if v, ok := other.(*netlink.Vlan); ok {
			u.vlan = v.VlanId
		}
		list = append(list, u)
		seen[uint32(other.Attrs().Index)] = true
	}
	if !slices.Contains(peers, l.Type()) && l.Type() != "tuntap" {
		own := netnsNumber("/proc/thread-self/ns/net")
		uppers, _ := datapath.Uppers(uint32(index)) // on an error, the devices of this namespace are enough
		for _, u := range uppers {
			what := u.Kind + " " + u.Name
			switch {
			case u.Master || u.Netns == own && seen[u.Index]:
				continue
			case u.Netns != own:
				what += " of network namespace " + netnsName(u.Netns)
			}
			list = append(list, upper{what: what})
		}
	}
	slices.SortFunc(list, func(x, y upper) int { return strings.Compare(x.what, y.what) })
	return list
}

// below returns the device of a port that another device is above, with its owner, or nil if there
// is none.
func (a *around) below(l netlink.Link, owner func(index int) string) (netlink.Link, string) {
	for range maxStack {
		if l = a.devices[LowerOf(l)]; l == nil {
			return nil, ""
		}
		if owner := owner(l.Attrs().Index); owner != "" {
			return l, owner
		}
	}
	return nil, ""
}

// maxStack is how many devices may be above each other (MAX_NEST_DEV of include/linux/netdevice.h).
const maxStack = 8

// filters returns the host's filters for frames that enter by a device.
func (a *around) filters(l netlink.Link) (list []string) {
	index := l.Attrs().Index
	if !a.read {
		a.read = true
		a.chains = ingressChains()
		if !a.one {
			a.ingress = ingressQdiscs()
		}
	}
	if a.one || a.ingress[index] {
		for _, kind := range ingressFilters(index) {
			list = append(list, "tc ingress "+kind)
		}
	}
	for _, c := range a.chains {
		if c.at(l.Attrs().Name) {
			list = append(list, c.name)
		}
	}
	return list
}

// Where qdiscs and filters of tc hang (include/uapi/linux/pkt_sched.h).
const (
	atIngress       = 0xfffffff1 // TC_H_INGRESS, which is TC_H_CLSACT
	ingressOfQdisc  = 0xffff0000 // filters of the qdisc ingress
	ingressOfClsact = 0xfffffff2 // filters of clsact: TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS)
)

// tcDump lists the qdiscs of all devices, or the filters of one.
func tcDump(kind, answer uint16, index int, parent uint32) [][]byte {
	ask := nl.NewNetlinkRequest(int(kind), unix.NLM_F_DUMP)
	ask.AddData(&nl.TcMsg{Family: nl.FAMILY_ALL, Ifindex: int32(index), Parent: parent})
	list, err := ask.Execute(unix.NETLINK_ROUTE, answer)
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil
	}
	return slices.DeleteFunc(list, func(m []byte) bool { return len(m) < nl.SizeofTcMsg })
}

// ingressQdiscs returns the devices that can have filters of tc for frames that enter, or none if
// their qdiscs cannot be read.
func ingressQdiscs() map[int]bool {
	list := map[int]bool{}
	for _, m := range tcDump(unix.RTM_GETQDISC, unix.RTM_NEWQDISC, 0, 0) {
		if t := nl.DeserializeTcMsg(m); t.Parent == atIngress {
			list[int(t.Ifindex)] = true
		}
	}
	return list
}

// ingressFilters returns the kinds of a device's filters for frames that enter, in order.
func ingressFilters(index int) (kinds []string) {
	for _, parent := range []uint32{ingressOfQdisc, ingressOfClsact} {
		for _, m := range tcDump(unix.RTM_GETTFILTER, unix.RTM_NEWTFILTER, index, parent) {
			if kind := filterKind(m[nl.SizeofTcMsg:]); kind != "" && !slices.Contains(kinds, kind) {
				kinds = append(kinds, kind)
			}
		}
	}
	slices.Sort(kinds)
	return kinds
}

// filterFlags has the attribute of a filter's flags, by its kind. A flag marks filters that only
// the card has (include/uapi/linux/pkt_cls.h).
var filterFlags = map[string]uint16{"u32": 11, "flower": 22, "matchall": 3, "bpf": 9}

const (
	skipSoftware = 1 << 1 // TCA_CLS_FLAGS_SKIP_SW
	u32Selector  = 5      // TCA_U32_SEL
)

// filterKind returns the kind of a filter by its attributes. It returns "" for a filter that only
// the card has, which comes before the switch.
func filterKind(attributes []byte) string {
	at, err := nl.ParseRouteAttrAsMap(attributes)
	if err != nil {
		return ""
	}
	kind := wordOf(at[nl.TCA_KIND].Value)
	options, err := nl.ParseRouteAttrAsMap(at[nl.TCA_OPTIONS].Value)
	if err != nil || len(options) == 0 {
		return "" // the first message of a kind has no filter
	}
	if _, selects := options[u32Selector]; kind == "u32" && !selects {
		return "" // a hash table of filters
	}
	if flags := options[filterFlags[kind]].Value; len(flags) == 4 && binary.NativeEndian.Uint32(flags)&skipSoftware != 0 {
		return ""
	}
	return kind
}

// An ingressChain is a chain of nftables that sees frames as they enter by devices.
type ingressChain struct {
	name    string   // "nftables netdev TABLE CHAIN"
	devices []string // by name
	begin   []string // prefixes of names
}

func (c ingressChain) at(device string) bool {
	return slices.Contains(c.devices, device) ||
		slices.ContainsFunc(c.begin, func(begin string) bool { return strings.HasPrefix(device, begin) })
}

// ingressChains returns the chains of nftables for frames that enter by devices, or none if they
// cannot be read.
func ingressChains() (list []ingressChain) {
	for _, family := range []uint8{unix.NFPROTO_NETDEV, unix.NFPROTO_INET} {
		const message = unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN
		ask := nl.NewNetlinkRequest(message, unix.NLM_F_DUMP)
		ask.AddData(&nl.Nfgenmsg{NfgenFamily: family, Version: nl.NFNETLINK_V0})
		chains, err := ask.Execute(unix.NETLINK_NETFILTER, 0)
		if err != nil {
			continue
		}
		for _, m := range chains {
			if c, ok := asIngressChain(m); ok {
				list = append(list, c)
			}
		}
	}
	return list
}

// The hooks of chains for frames that enter by a device, and attributes that package unix lacks
// (include/uapi/linux/netfilter.h and netfilter/nf_tables.h).
const (
	netdevIngress = 0 // NF_NETDEV_INGRESS
	inetIngress   = 5 // NF_INET_INGRESS
	policyAccept  = 1 // NF_ACCEPT
	hookDevices   = 4 // NFTA_HOOK_DEVS
	deviceName    = 1 // NFTA_DEVICE_NAME
	devicePrefix  = 2 // NFTA_DEVICE_PREFIX
)

// asIngressChain parses the kernel's description of a chain. ok is false for a chain of another
// hook, and for one that accepts everything.
func asIngressChain(message []byte) (c ingressChain, ok bool) {
	if len(message) < nl.SizeofNfgenmsg {
		return c, false
	}
	family, hooked := "netdev", uint32(netdevIngress)
	if message[0] == unix.NFPROTO_INET {
		family, hooked = "inet", inetIngress
	}
	chain, err := nl.ParseRouteAttrAsMap(message[nl.SizeofNfgenmsg:])
	if err != nil {
		return c, false
	}
	hook, err := nl.ParseRouteAttrAsMap(chain[unix.NFTA_CHAIN_HOOK].Value)
	number := hook[unix.NFTA_HOOK_HOOKNUM].Value
	if err != nil || len(number) != 4 || binary.BigEndian.Uint32(number) != hooked {
		return c, false
	}
	rules, policy := chain[unix.NFTA_CHAIN_USE].Value, chain[unix.NFTA_CHAIN_POLICY].Value
	if len(rules) == 4 && binary.BigEndian.Uint32(rules) == 0 && len(policy) == 4 && binary.BigEndian.Uint32(policy) == policyAccept {
		return c, false
	}
	c.name = fmt.Sprintf("nftables %s %s %s", family,
		wordOf(chain[unix.NFTA_CHAIN_TABLE].Value), wordOf(chain[unix.NFTA_CHAIN_NAME].Value))
	devices, err := nl.ParseRouteAttr(hook[hookDevices].Value)
	if err != nil {
		return c, false
	}
	for _, d := range devices {
		// a name without a final zero is a prefix
		name, _, ended := bytes.Cut(d.Value, []byte{0})
		switch {
		case d.Attr.Type == deviceName && ended:
			c.devices = append(c.devices, string(name))
		case d.Attr.Type == deviceName, d.Attr.Type == devicePrefix:
			c.begin = append(c.begin, string(name))
		}
	}
	return c, true
}

// wordOf returns a string of the kernel's, which ends with a zero.
func wordOf(b []byte) string {
	word, _, _ := bytes.Cut(b, []byte{0})
	return string(word)
}
