// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"net"
	"net/netip"
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Device has the properties by which a caller decides whether a network device should be a port.
type Device struct {
	Name     string
	MAC      net.HardwareAddr
	Owner    string // ID of the plug that made it a port, "" for none
	Bridge   string // bridge that has it as a port or a span port, "" for none
	Host     string // bridge whose host port has it as the host's end; it may be a port of another bridge
	Own      bool   // made by the switch: one of the two ends of a host port
	Physical bool   // it has a driver of its own: --hook auto means XDP
	Ethernet bool   // Ethernet, as each port has to be
	Refusal  string // why it can't be a port now, and what to do; "" if it can
	Cut      string // why it can't become a port unless forced, and what to do; "" if it can

	// Addresses are its IP addresses with their prefix lengths, except for link-local IPv6
	// addresses.
	Addresses []string

	// OwnMAC is the MAC address that a host's end gets by default, nil if unknown.
	OwnMAC net.HardwareAddr

	// MTU is the device's, FirstMTU the initial one of a host port of this device's bridge,
	// both in bytes.
	MTU, FirstMTU int

	// Kept are its permanent addresses, without leases. Of a host's end, Beyond are the ones among
	// them that have more than a file has: a peer, a scope, a label, a metric, or no route to their
	// network.
	Kept, Beyond []netip.Prefix

	// Above are the devices above a host's end, which the kernel removes with it. Master is the
	// end's own master, such as a Linux bridge.
	Above  []string
	Master string

	Description string // as in a Port

	Up   bool // it is up (ip-link(8)), with or without a carrier
	Link bool // it is up and has a carrier
	Away bool // a host's end in another namespace, where its addresses are unknown
}

// Devices returns the devices of the namespace by name. A host port's end is listed under the
// port's name even if it was moved to another namespace.
func (s *Switch) Devices() (list []Device, err error) {
	err = s.read(func(store *datapath.Store) error {
		devices, err := links()
		if err != nil {
			return err
		}
		ip := addresses()
		all := world{mtus: map[uint32]int{}}
		for index, l := range devices {
			all.mtus[uint32(index)] = l.Attrs().MTU
		}
		var me *identity // of the namespace, nil until needed
		byName := map[string]*Device{}
		byIndex := map[int]*Device{}
		indexOf, uppers := map[string]int{}, map[int][]int{} // uppers has the devices above a device
		messages, _ := addressMessages()                     // without them, none has more than a file
		for index, l := range devices {
			a := l.Attrs()
			d := &Device{
				Name: a.Name, MAC: a.HardwareAddr, MTU: a.MTU, Description: a.Alias, Own: isSwitchEnd(l), Physical: l.Type() == physical,
				Ethernet: a.RawFlags&unix.IFF_LOOPBACK == 0 && a.EncapType == "ether",
				Up:       a.RawFlags&unix.IFF_UP != 0,
				Link:     a.RawFlags&(unix.IFF_UP|unix.IFF_RUNNING) == unix.IFF_UP|unix.IFF_RUNNING,
			}
			for _, a := range ip[index] {
				d.Addresses = append(d.Addresses, a.prefix.String())
				if a.kept {
					d.Kept = append(d.Kept, a.prefix)
				}
			}
			if why, remedy := usable(l); why != "" {
				d.Refusal = why + "; " + remedy
			} else if misused := new(UsageError); errors.As(checkName("port", a.Name), &misused) {
				d.Refusal = misused.Err.Error()
			}
			byName[a.Name], byIndex[index], indexOf[a.Name] = d, d, index
			if lower := LowerOf(l); lower != 0 {
				uppers[lower] = append(uppers[lower], index)
			}
		}
		names, err := store.Names()
		if err != nil {
			return err
		}
		err = eachOpen(store, names, func(name string, b *datapath.Bridge) error {
			owned, err := owners(b)
			if err != nil {
				return err
			}
			for _, p := range datapath.Ports(&b.Config) {
				if !b.HasDevice(p) || devices[int(p.Ifindex)] == nil {
					continue
				}
				id := ""
				if o := owned[p.Id]; o != nil {
					id = o.ID
				}
				if p.Notes&datapath.PortHost == 0 {
					byIndex[int(p.Ifindex)].Bridge, byIndex[int(p.Ifindex)].Owner = name, id
					continue
				}
				port := portName(b, p, devices)
				d := byName[port]
				if d == nil {
					mac := datapath.WordMAC(p.Host)
					d = &Device{Name: port, MAC: mac[:], Ethernet: true, Away: true}
					byName[port] = d
				}
				d.Own, d.Host, d.Owner = true, name, id
				if index := indexOf[port]; index != 0 {
					d.Beyond = beyondFiles(messages, index, port)
					d.Above = aboveHost(devices, uppers, index)
					if master := devices[devices[index].Attrs().MasterIndex]; master != nil {
						d.Master = master.Attrs().Name
					}
				}
				if me == nil {
					i, err := ownIdentity()
					if err != nil {
						return err
					}
					me = &i
				}
				d.FirstMTU = all.smallestMTU(&b.Config)
				d.OwnMAC = me.nearest(d.MAC, ofHost, name, port)
			}
			return nil
		})
		if err != nil {
			return err
		}
		around := lookAround(store, devices)
		for index, d := range byIndex {
			if s.force {
				break
			}
			l := devices[index]
			if above := around.above(l); len(above) > 0 {
				d.Cut = aboveWords(above) + "; " + insteadOf(above[0])
			} else if lower, owner := around.below(l, around.owner); lower != nil {
				d.Cut = belowWords(lower, owner) + "; " + joinAbove
			}
		}
		for _, d := range byName {
			list = append(list, *d)
		}
		return nil
	})
	slices.SortFunc(list, func(a, b Device) int { return cmp.Compare(a.Name, b.Name) })
	return list, err
}

// aboveHost returns the names of the devices above a host's end. uppers has the devices directly above a device, by
// their indexes.
func aboveHost(devices map[int]netlink.Link, uppers map[int][]int, index int) (names []string) {
	for _, upper := range uppers[index] {
		names = append(names, devices[upper].Attrs().Name)
		names = append(names, aboveHost(devices, uppers, upper)...)
	}
	slices.Sort(names)
	return names
}

// SwitchEnd returns the name of a host port's device. The other end of that device has the port's
// name.
func SwitchEnd(bridge, port string) string { return switchEndName(bridge, port) }

// Check checks whether the settings of a port are compatible with each other.
func (c PortConfig) Check(bridge, port string) error {
	return c.check("set port " + port + " of " + bridge)
}

// Check checks whether the settings of a bridge are compatible with each other. The error is the
// same as a refused request's.
func (c BridgeConfig) Check(bridge string) error { return c.check("set bridge " + bridge) }
