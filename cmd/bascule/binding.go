// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

func newBinding(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "binding",
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
	}
	cmd.AddCommand(newBindingShow(p), newBindingAdd(p), newBindingDel(p), newBindingFlush(p))
	return cmd
}

func newBindingShow(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "show [BRIDGE [PORT]]",
		Short: "show bindings",
		Long:  `Show the bindings of all bridges, of one, or of one port, by VLAN and address.`,
		Example: `  #! run: switch br0 veth0
  bascule binding show
  bascule binding show br0 veth0`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames),
		RunE: func(_ *cobra.Command, args []string) error {
			args = append(args, "", "")
			return p.with(func(s switcher) error {
				list, err := s.Bindings(args[0], args[1])
				if err != nil {
					return err
				}
				return p.printBindings(list)
			})
		},
	}
}

const bindingVLANHelp = "the address in this VLAN, 1 to 4094; without it, the one of frames without a tag, only where the bridge does not filter VLANs"

func newBindingAdd(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add BRIDGE PORT MAC ADDRESS",
		Short: "bind an address",
		Long: `Bind an IPv4 or IPv6 address to the station MAC behind a port, from the next
frame on. An address that is bound to another station or port is not moved:
delete that binding first. On a bridge that filters VLANs --vlan must be given.
A bridge has room for 65536 bindings.`,
		Example: `  #! run: switch br0 veth0
  bascule binding add br0 veth0 02:00:00:00:00:01 192.0.2.1
  bascule binding add br0 veth0 02:00:00:00:00:01 2001:db8::1 --vlan 10`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames, p.addresses),
	}
	id := vlan{least: 1}
	p.addChange(cmd)
	cmd.Flags().Var(&id, "vlan", bindingVLANHelp)
	completeFlag(cmd, "vlan", p.vlanIDs)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		mac, err := parseMAC("MAC", args[2])
		if err != nil {
			return err
		}
		address, err := bridge.ParseAddress(args[3])
		if err != nil {
			return err
		}
		e := bridge.Binding{Bridge: args[0], Port: args[1], MAC: mac, Address: address, VLAN: id.orNone()}
		return p.change(func(s switcher) error { return s.AddBinding(e) })
	}
	return cmd
}

func newBindingDel(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "del BRIDGE ADDRESS",
		Short: "remove a binding",
		Long:  `Remove the binding of an address, from the next frame on.`,
		Example: `  #! run: switch br0 veth0; bascule binding add br0 veth0 02:00:00:00:00:01 192.0.2.1; bascule binding add br0 veth0 02:00:00:00:00:01 2001:db8::1 --vlan 10
  bascule binding del br0 192.0.2.1
  bascule binding del br0 2001:db8::1 --vlan 10`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.boundAddresses),
	}
	id := vlan{}
	p.addChange(cmd)
	cmd.Flags().Var(&id, "vlan", "the address in this VLAN, 1 to 4094, or 0, the default, for frames without a tag")
	completeFlag(cmd, "vlan", p.vlanIDs)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		address, err := bridge.ParseAddress(args[1])
		if err != nil {
			return err
		}
		return p.change(func(s switcher) error { return s.DelBinding(args[0], address, id.orNone()) })
	}
	return cmd
}

func newBindingFlush(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flush BRIDGE",
		Short: "remove bindings",
		Long: `Remove all bindings of a bridge, of one port or of one VLAN, and print their
number.`,
		Example: `  #! run: switch br0 veth0
  bascule binding flush br0
  bascule binding flush br0 --port veth0 --vlan 10`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
	}
	p.addChange(cmd)
	port, id := &word{name: "PORT"}, &vlan{}
	cmd.Flags().Var(port, "port", "only bindings to this port")
	cmd.Flags().Var(id, "vlan", "only bindings in this VLAN, 1 to 4094, or 0 for bindings of untagged frames")
	completeFlag(cmd, "port", p.portNames)
	completeFlag(cmd, "vlan", p.vlanIDs)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		n := 0
		return p.change(func(s switcher) (err error) {
			n, err = s.FlushBindings(args[0], bridge.Match{Port: port.text, VLAN: id.id})
			return err
		}, func() error {
			if p.json {
				return p.printJSON([]answer.Flushed{{Bridge: args[0], Removed: n}})
			}
			fmt.Fprintln(p.out, counted(n, "binding", "bindings"), "removed")
			return nil
		})
	}
	return cmd
}

// boundAddresses returns the addresses bound in the bridge of the first argument, each with its
// port.
func (p *program) boundAddresses(_ *cobra.Command, args []string) (addresses []string) {
	_ = p.with(func(s switcher) error {
		list, err := s.Bindings(args[0], "")
		for _, e := range list {
			addresses = append(addresses, e.Address.String()+"\t"+e.Port)
		}
		return err
	})
	return addresses
}

func (p *program) printBindings(list []bridge.Binding) error {
	return printList(p, list, answer.OfBinding, "BRIDGE VLAN ADDRESS MAC PORT", func(e bridge.Binding) []string {
		id := "-"
		if e.VLAN != 0 {
			id = fmt.Sprint(e.VLAN)
		}
		return []string{e.Bridge, id, e.Address.String(), e.MAC.String(), e.Port}
	})
}
