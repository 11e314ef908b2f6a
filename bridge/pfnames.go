// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bufio"
	"errors"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"

	"bascule/datapath"
	"bascule/pf"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// pfAddresses returns the addresses that the name of an interface stands for in a rule: the
// addresses of the device, or of all devices in the group, as changed by modes ("network",
// "broadcast", "peer", "0"; see pf.conf(5)). "self" is every device. A host port's name stands for
// the host's end, which has that name. ahead has permanent addresses that devices get later, by
// name, and may be nil. hosts resolves names that are no interfaces, and may be nil.
func pfAddresses(name string, modes []string, hosts func(string, []string) ([]netip.Prefix, error), ahead map[string][]netip.Prefix) ([]netip.Prefix, error) {
	devices, err := links()
	if err != nil {
		return nil, err
	}
	groups, err := groupsOf(name == egressGroup)
	if err != nil {
		return nil, err
	}
	if name == "lo0" && !slices.ContainsFunc(sortedKeys(devices), func(i int) bool { return devices[i].Attrs().Name == name }) {
		name = "lo" // the BSDs call it lo0
	}
	var list []netip.Prefix
	found := false
	here := map[string]bool{}
	for _, index := range sortedKeys(devices) {
		l := devices[index]
		here[l.Attrs().Name] = true
		if isSwitchEnd(l) || name != "self" && !groups.named(l).Is(name) {
			continue
		}
		found = true
		more, err := deviceAddresses(l, modes, ahead)
		if err != nil {
			return nil, err
		}
		list = append(list, more...)
	}
	for _, device := range slices.Sorted(maps.Keys(ahead)) {
		if made := (pf.CompilePort{Name: device}); !here[device] && (name == "self" || made.Is(name)) {
			found = true
			list = append(list, modified(linkAddresses(ahead[device]), modes, true)...)
		}
	}
	switch {
	case found:
		return list, nil
	case name == egressGroup:
		return nil, errors.New("no interface has a default route")
	case hosts == nil || len(modes) > 0 && !slices.Equal(modes, []string{"0"}):
		return nil, errors.New("there is no such interface")
	}
	if list, err = hosts(name, modes); err != nil || len(modes) == 0 {
		return list, err
	}
	first := map[bool]bool{} // by family
	return slices.DeleteFunc(list, func(p netip.Prefix) bool {
		is4 := p.Addr().Is4()
		defer func() { first[is4] = true }()
		return first[is4]
	}), nil
}

// PFHost returns the addresses that a name stands for in rules of the switch's network namespace:
// of an interface, a group of interfaces or, if hosts is not nil, a host.
func (s *Switch) PFHost(name string, hosts func(string, []string) ([]netip.Prefix, error)) (list []netip.Prefix, err error) {
	err = s.Inside(func() error {
		list, err = pfAddresses(name, nil, hosts, nil)
		return err
	})
	return list, err
}

func sortedKeys[V any](m map[int]V) []int {
	keys := make([]int, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}

// deviceAddresses returns the addresses of a device for modes. If ahead has the device, its
// addresses replace the permanent ones, and come first.
func deviceAddresses(l netlink.Link, modes []string, ahead map[string][]netip.Prefix) ([]netip.Prefix, error) {
	addrs, err := netlink.AddrList(l, netlink.FAMILY_ALL)
	if want, ok := ahead[l.Attrs().Name]; ok {
		addrs = slices.DeleteFunc(addrs, func(a netlink.Addr) bool {
			d, ok := asDeviceAddress(a)
			return ok && d.kept
		})
		addrs = append(linkAddresses(want), addrs...)
	}
	return modified(addrs, modes, l.Attrs().RawFlags&unix.IFF_BROADCAST != 0), err
}

// modified returns the addresses of a device as changed by modes. A network keeps its host bits,
// because a rule may apply another mask to the address. If the device broadcasts, the kernel treats
// the last address of an IPv4 network as a broadcast address, even if the device's address does not
// have it (RFC 919). A /31 network has no broadcast address (RFC 3021).
func modified(addrs []netlink.Addr, modes []string, broadcasts bool) []netip.Prefix {
	has := func(mode string) bool { return slices.Contains(modes, mode) }
	first := map[bool]bool{} // by family
	var list []netip.Prefix
	add := func(ip net.IP, bits int) {
		if a, ok := netip.AddrFromSlice(ip); ok {
			a = a.Unmap()
			if bits < 0 {
				bits = a.BitLen()
			}
			list = append(list, netip.PrefixFrom(a, bits))
		}
	}
	for _, a := range addrs {
		is4 := a.IP.To4() != nil
		linkLocal := !is4 && a.Scope == unix.RT_SCOPE_LINK
		switch {
		case has("0") && (first[is4] || linkLocal):
			continue
		case has("network") && linkLocal: // as in pf: every interface has this network
			continue
		}
		first[is4] = true
		switch {
		case has("network"):
			bits, _ := a.Mask.Size()
			add(a.IP, bits)
		case has("broadcast"):
			last := lastOf(a.IPNet)
			if a.Broadcast != nil {
				add(a.Broadcast, -1)
			}
			if broadcasts && last != nil && !last.Equal(a.Broadcast) {
				add(last, -1)
			}
		case has("peer"):
			if a.Peer != nil && a.Peer.IP != nil && !a.Peer.IP.Equal(a.IP) {
				add(a.Peer.IP, -1)
			}
		default:
			add(a.IP, -1)
		}
	}
	return list
}

// lastOf returns the last address of an IPv4 network, or nil for one of at most two addresses.
func lastOf(n *net.IPNet) net.IP {
	ip := n.IP.To4()
	ones, bits := n.Mask.Size()
	if ip == nil || bits != 32 || ones > 30 {
		return nil
	}
	last := make(net.IP, len(ip))
	for i := range last {
		last[i] = ip[i] | ^n.Mask[i]
	}
	return last
}

// A grouping has the groups of devices, except for groups that follow from their names.
type grouping struct {
	links  map[uint32]string // the names of link groups
	egress map[int]bool      // devices by index; nil if not read
}

// groupsOf returns the groups of the namespace. It reads the routes only if out is set, because
// there may be many.
func groupsOf(out bool) (g grouping, err error) {
	g.links = linkGroups()
	if out {
		g.egress, err = egress()
	}
	return g, err
}

// named returns the names of a device in rules.
func (g *grouping) named(l netlink.Link) pf.CompilePort {
	a := l.Attrs()
	p := pf.CompilePort{Name: a.Name}
	if name := g.links[a.Group]; name != "" {
		p.Groups = append(p.Groups, name)
	}
	if g.egress[a.Index] && !slices.Contains(p.Groups, egressGroup) {
		p.Groups = append(p.Groups, egressGroup)
	}
	return p
}

// linkGroups returns the names of interface groups by number, from the files of ip-link(8).
func linkGroups() map[uint32]string {
	groups := map[uint32]string{}
	for _, path := range []string{"/usr/share/iproute2/group", "/etc/iproute2/group"} {
		f, err := os.Open(path)
		if err != nil {
			continue // the file does not exist
		}
		lines := bufio.NewScanner(f)
		for lines.Scan() {
			line, _, _ := strings.Cut(lines.Text(), "#")
			words := strings.Fields(line)
			if len(words) < 2 {
				continue
			}
			if n, err := strconv.ParseUint(words[0], 0, 32); err == nil && n != 0 { // 0 is the group of all
				groups[uint32(n)] = words[1]
			}
		}
		f.Close()
	}
	return groups
}

// pfPorts are the ports of a bridge with their names in rules.
type pfPorts struct {
	byID map[uint32]pf.CompilePort
	said map[uint32]string // by id: the names that rules are compiled for, as in pfStored.Ports
	list []pf.CompilePort
}

// pfPortsOf returns the ports of a bridge. It finds the ports of the group egress only if out is
// set.
func pfPortsOf(b *datapath.Bridge, out bool) (ports pfPorts, err error) {
	devices, err := links()
	if err != nil {
		return ports, err
	}
	return pfPortsAmong(devices, b, out)
}

// pfPortsAmong does the same as pfPortsOf, with the given devices of the namespace.
func pfPortsAmong(devices map[int]netlink.Link, b *datapath.Bridge, out bool) (ports pfPorts, err error) {
	owned, err := owners(b)
	if err != nil {
		return ports, err
	}
	return pfPortsFor(devices, b, &b.Config, owned, out)
}

// pfPortsFor does the same as pfPortsAmong for the bridge's next configuration, with the owners of
// its ports. A host port is in the groups of the host's interface, and only a host port is in
// egress, because the host sends nothing by the devices of other ports. A plugged port also has the
// name that belongs to its ID.
func pfPortsFor(devices map[int]netlink.Link, b *datapath.Bridge, c *datapath.Config, owned map[uint32]*Owner, out bool) (ports pfPorts, err error) {
	isHost := func(p *datapath.Port) bool { return p.Notes&datapath.PortHost != 0 }
	groups, err := groupsOf(out && slices.ContainsFunc(datapath.Ports(c), isHost))
	if err != nil {
		return ports, err
	}
	ports.byID, ports.said = map[uint32]pf.CompilePort{}, map[uint32]string{}
	for _, p := range datapath.Ports(c) {
		if p.Facts&datapath.PortSpan != 0 {
			continue // no packet passes it
		}
		port := pf.CompilePort{Slot: uint16(datapath.Slot(p.Id)), Name: portName(b, p, devices), Host: isHost(p)}
		port.Routes = port.Host && p.Flags&datapath.PortRoute != 0
		its := groups
		if !port.Host {
			its.egress = nil
		}
		if l := shownDevice(b, p, devices); l != nil && !isSwitchEnd(l) {
			port.Groups = its.named(l).Groups
		}
		if o := owned[p.Id]; o != nil {
			port.Groups = append(slices.Clip(port.Groups), PlugName(o.ID))
		}
		port.Skip = c.PfPorts == datapath.PFPortsHost && !port.Host || c.PfPorts == datapath.PFPortsStation && port.Host
		ports.byID[p.Id] = port
		words := append([]string{port.Name}, port.Groups...)
		if port.Skip {
			words = append(words, "") // names are not empty
		}
		ports.said[p.Id] = strings.Join(words, " ")
		ports.list = append(ports.list, port)
	}
	return ports, nil
}

// saysEgress reports whether the rules use the group egress.
func (d *pfStored) saysEgress() bool {
	for _, text := range d.Anchors {
		if strings.Contains(text, egressGroup) {
			return true
		}
	}
	return strings.Contains(d.Main, egressGroup)
}

// logged returns the ID of the port that `set loginterface` names, by its name or by a group with
// this port alone, or 0 for none.
func (p *pfPorts) logged(name string) uint32 {
	var group []uint32
	for id, port := range p.byID {
		if port.Name == name {
			return id
		}
		if port.Is(name) {
			group = append(group, id)
		}
	}
	if len(group) != 1 || name == "any" {
		return 0
	}
	return group[0]
}

// pfStale calls stale for the rules of a bridge.
func pfStale(b *datapath.Bridge) (bool, error) {
	if !b.PFLoaded() {
		return false, nil
	}
	d, err := readStored(b)
	if err != nil {
		return false, err
	}
	return d.stale(b)
}

// stale reports whether the rules would have to be compiled again, because a port has another name
// or group, or a device has other addresses.
func (d *pfStored) stale(b *datapath.Bridge) (bool, error) {
	ports, err := pfPortsOf(b, d.saysEgress())
	if err != nil {
		return false, err
	}
	if !maps.Equal(ports.said, d.Ports) {
		return true, nil
	}
	return d.moved(), nil
}

// moved reports whether a device in the rules has other addresses.
func (d *pfStored) moved() bool {
	for key, was := range d.Dynamic {
		words := strings.Split(key, ":")
		// As in the compiler, a device that does not exist has no addresses.
		list, _ := pfAddresses(words[0], words[1:], nil, nil)
		if !slices.Equal(list, was) {
			return true
		}
	}
	return false
}
