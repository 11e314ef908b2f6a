// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"net"
	"net/netip"

	"bascule/object"
)

// BindingObject describes bindings.
var BindingObject = &Object{
	Word: "binding", Words: "bindings", Type: "Binding", About: "is a binding of an address to a station at a port.",
	Short: "bind IP addresses to stations and ports",
	Long: `A binding says which station, by its MAC address, has an IP address in a VLAN,
and which port the station is behind. A port with --source-guard drops frames
that contradict bindings. A bridge with --neigh-suppress answers ARP and IPv6
neighbour solicitations from its bindings. The VLAN is the one that the FDB has:
for private VLANs the primary VLAN.

A station may have many addresses; an address has one station. For IPv6, bind
the link-local address as well: stations use it to look for each other.

The bindings of a port are removed with the port.`,
	Example: `  #! run: switch br0 veth0
  bascule binding add br0 veth0 02:00:00:00:00:01 192.0.2.1
  bascule binding add br0 veth0 02:00:00:00:00:01 fe80::ff:fe00:1 --vlan 10
  bascule port set br0 veth0 --source-guard
  bascule binding show br0
  bascule binding del br0 192.0.2.1`,

	Fields:  bindingFields,
	Columns: bindingFields.Named("bridge", "vlan", "address", "mac", "port"),
	Answers: bindingFields.Named("address", "mac", "vlan", "port", "bridge"),
	List: func(t Tables, bridge, port string) ([]any, error) {
		return pointers(t.Bindings(bridge, port))
	},
	Show: object.Verb{
		Word: "show", Summary: "bindings of addresses to stations",
		Short: "show bindings",
		Long:  `Show the bindings of all bridges, of one, or of one port, by VLAN and address.`,
		Example: `  #! run: switch br0 veth0
  bascule binding show
  bascule binding show br0 veth0`,
	},
	Verbs: []Verb{
		{
			Verb: object.Verb{
				Word: "add", Summary: "bind an address to a station at a port", Request: "AddBinding", About: "is a new binding.",
				Short: "bind an address",
				Long: `Bind an IPv4 or IPv6 address to the station MAC behind a port, from the next
frame on. An address that is bound to another station or port is not moved:
delete that binding first. On a bridge that filters VLANs --vlan must be given.
A bridge has room for 65536 bindings.`,
				Example: `  #! run: switch br0 veth0
  bascule binding add br0 veth0 02:00:00:00:00:01 192.0.2.1
  bascule binding add br0 veth0 02:00:00:00:00:01 2001:db8::1 --vlan 10`,
				Args: 4, Fields: bindingFields, New: func() any { return new(Binding) },
			},
			Do: func(t Tables, given any) (int, error) { return done(t.AddBinding(*given.(*Binding))) },
		},
		{
			Verb: object.Verb{
				Word: "del", Summary: "remove the binding of an address", Request: "DelBinding", About: "names a binding.",
				Short: "remove a binding",
				Long:  `Remove the binding of an address, from the next frame on.`,
				Example: `  #! run: switch br0 veth0; bascule binding add br0 veth0 02:00:00:00:00:01 192.0.2.1; bascule binding add br0 veth0 02:00:00:00:00:01 2001:db8::1 --vlan 10
  bascule binding del br0 192.0.2.1
  bascule binding del br0 2001:db8::1 --vlan 10`,
				Args: 2, New: func() any { return new(Binding) },
				Fields: object.Fields{
					bindingFields[0],
					object.Of(object.Field{Name: "address", Help: "the IP address", Needed: true}, boundKind,
						func(b *Binding) *netip.Addr { return &b.Address }),
					object.Of(object.Field{
						Name: "vlan", Help: "its VLAN, 0 for frames without a tag",
						Flag: "the address in this VLAN, 1 to 4094, or 0, the default, for frames without a tag",
					}, untaggedKind, func(b *Binding) *uint16 { return &b.VLAN }),
				},
			},
			Do: func(t Tables, given any) (int, error) {
				b := given.(*Binding)
				return done(t.DelBinding(b.Bridge, b.Address, b.VLAN))
			},
		},
		{
			Verb: object.Verb{
				Word: "flush", Summary: "remove bindings", Request: "FlushBindings", About: "chooses the bindings to remove.",
				Short: "remove bindings",
				Long: `Remove all bindings of a bridge, of one port or of one VLAN, and print their
number.`,
				Example: `  #! run: switch br0 veth0
  bascule binding flush br0
  bascule binding flush br0 --port veth0 --vlan 10`,
				Args: 1, New: func() any { return new(flush) },
				Fields: object.Fields{
					object.Of(object.Field{Name: "bridge", Help: "the bridge", Needed: true}, bridgeKind, func(f *flush) *string { return &f.bridge }),
					object.Of(object.Field{
						Name: "port", Help: "only bindings of this port", Flag: "only bindings to this port",
					}, only(portKind), func(f *flush) *string { return &f.Port }),
					object.Of(object.Field{
						Name: "vlan", Help: "only bindings in this VLAN, 0 for bindings of untagged frames",
						Flag: "only bindings in this VLAN, 1 to 4094, or 0 for bindings of untagged frames",
					}, anyVLANKind, func(f *flush) **uint16 { return &f.VLAN }),
				},
			},
			Counts: true,
			Do: func(t Tables, given any) (int, error) {
				f := given.(*flush)
				return t.FlushBindings(f.bridge, f.Match)
			},
		},
	},
	Filing: typed(Filing{
		Section: "bindings", SectionHelp: "addresses bound to stations", Definition: "binding", One: "a binding",
		Filed: bindingFields.Named("port", "mac", "address", "vlan"), Key: bindingFields.Named("address")[0],
		Title: "binding", What: "binding of %s in %s", Only: "an address has only one station", Delete: "binding del",
		Most: MaxBindings, Fewer: "leave some out, or make another bridge", NamesVLAN: true,
		Settle: func(it any, bridge string) { it.(*Binding).Bridge = bridge },
		Place:  func(it any) (*string, *uint16) { return &it.(*Binding).Port, &it.(*Binding).VLAN },
		Compare: func(a, b any) int {
			e, f := a.(*Binding), b.(*Binding)
			return cmp.Or(cmp.Compare(e.VLAN, f.VLAN), e.Address.Compare(f.Address))
		},
	}, func(s *State) []Binding { return s.Bindings }, (*Switch).ReplaceBindings),
}

// flush says which bindings to remove.
type flush struct {
	bridge string
	Match
}

var bindingFields = object.Fields{
	object.Of(object.Field{Name: "bridge", Help: "the bridge", As: "master", Needed: true}, bridgeKind, func(b *Binding) *string { return &b.Bridge }),
	object.Of(object.Field{Name: "port", Help: "the port", As: "ifname", Needed: true}, portKind, func(b *Binding) *string { return &b.Port }),
	object.Of(object.Field{Name: "mac", Help: "the station", Needed: true}, macKind, func(b *Binding) *net.HardwareAddr { return &b.MAC }),
	object.Of(object.Field{Name: "address", Help: "its IP address", Needed: true, Filing: "an IPv4 or IPv6 address"}, addressKind,
		func(b *Binding) *netip.Addr { return &b.Address }),
	object.Of(object.Field{
		Name: "vlan", Help: "its VLAN; without it, the address is of frames without a tag",
		Flag: "the address in this VLAN, 1 to 4094; without it, the one of frames without a tag, only where the bridge does not filter VLANs",
	}, vlanKind, func(b *Binding) *uint16 { return &b.VLAN }),
}
