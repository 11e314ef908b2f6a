// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"hash/fnv"
	"regexp"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// A host port is a veth: one end is the host's interface, with the port's
// name; the other is the port's device, with a name and an interface group
// that are ours by convention.
const switchEndGroup = 0xb5c

var switchEndForm = regexp.MustCompile(`^bsc[0-9a-f]{8}$`)

func switchEndName(bridge, port string) string {
	h := fnv.New32a()
	h.Write([]byte(bridge + "/" + port))
	return fmt.Sprintf("bsc%08x", h.Sum32())
}

// isSwitchEnd reports whether a device was made by addHost.
func isSwitchEnd(l netlink.Link) bool {
	return l.Type() == "veth" && l.Attrs().Group == switchEndGroup && switchEndForm.MatchString(l.Attrs().Name)
}

// addHost makes the two ends of a host port and brings the switch's end up.
func addHost(bridge, port string) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = switchEndName(bridge, port)
	attrs.Group = switchEndGroup
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: port}
	if err := netlink.LinkAdd(veth); err != nil {
		return nil, fmt.Errorf("make its interface: %w", err)
	}
	l, err := netlink.LinkByName(attrs.Name)
	if err == nil {
		err = netlink.LinkSetUp(l)
	}
	if err != nil {
		netlink.LinkDel(veth)
		return nil, fmt.Errorf("make its interface: %w", err)
	}
	return l, nil
}

// setHost notes the host's end of a host port.
func setHost(p *datapath.Port, name string) error {
	host, err := netlink.LinkByName(name)
	if err != nil {
		return fmt.Errorf("its interface: %w", err)
	}
	setFlag(p, datapath.PortHost, true)
	p.HostIfindex = uint32(host.Attrs().Index)
	p.Host = datapath.MACWord([6]byte(host.Attrs().HardwareAddr))
	return nil
}

// isHostEnd reports whether a device of this namespace is the host's end of p,
// and not another that has got the same index.
func isHostEnd(l netlink.Link, p *datapath.Port) bool {
	a := l.Attrs()
	return p.Flags&datapath.PortHost != 0 && a.Index == int(p.HostIfindex) &&
		l.Type() == "veth" && a.ParentIndex == int(p.Ifindex) && a.NetNsID < 0
}

// hostEnd returns the host's end of p, nil if it is not in this namespace.
func hostEnd(p *datapath.Port) netlink.Link {
	l, err := netlink.LinkByIndex(int(p.HostIfindex))
	if err != nil || !isHostEnd(l, p) {
		return nil
	}
	return l
}

// hostAddress returns the address of p's host end, 0 if it has none here.
func hostAddress(p *datapath.Port) uint64 {
	if l := hostEnd(p); l != nil && len(l.Attrs().HardwareAddr) == 6 {
		return datapath.MACWord([6]byte(l.Attrs().HardwareAddr))
	}
	return 0
}
