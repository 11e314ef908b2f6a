// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

func newVLAN(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "vlan",
		Short: "show and change the VLANs of ports",
		Long: `On a bridge with --vlan-filtering each port is in some VLANs (IEEE 802.1Q), and
a frame stays in its own: it comes in and leaves only by ports that are in its
VLAN. A frame without a tag, or with only a priority, is in the VLAN that is the
port's PVID. Frames leave with the tag of their VLAN, or without a tag if the
port is an untagged member.

A new port is an untagged member of the bridge's --default-pvid, which is its
PVID, too. Changes take effect in one step; no frame is lost.

A frame with a second tag is dropped (double-tag). So is a frame whose only tag
is of another kind than the bridge's (other-tag): a service tag, 0x88a8, on an
802.1Q bridge. With --qinq everything behind the outer tag is payload, and a
frame with a tag of another kind counts as untagged, as it always does on
Linux's bridge. An 802.1ad bridge always treats customers' tags as payload.
0x9100 and 0x9200 are not tags, here as on Linux: such a frame counts as
untagged.

With 'bascule port set --admit tagged' a port takes only frames with the tag of
a VLAN, with '--admit untagged' only those without a tag or with only a priority
(IEEE 802.1Q acceptable frame types). Other frames are dropped (admit).`,
		Example: `  #! run: devices veth0 eth1
  bascule bridge add br0 --vlan-filtering --default-pvid none
  bascule port add br0 veth0
  bascule port add br0 eth1
  # an access port, and a trunk
  bascule vlan add br0 veth0 10 --untagged --pvid
  bascule vlan add br0 eth1 10,20-30
  bascule vlan show br0`,
	}
	cmd.AddCommand(newVLANAdd(p), newVLANDel(p), newVLANPrivate(p), newVLANShow(p))
	return cmd
}

func newVLANAdd(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add BRIDGE PORT LIST",
		Short: "put a port into VLANs",
		Long: `Put a port into the VLANs of LIST, such as 10 or 10,20-30. If the port is in one
of them already, the new options replace the old ones. A port has one PVID: the
port stays in the VLAN of the former one, but frames without a tag are no longer
in it.`,
		Example: `  #! run: switch br0 veth0 eth1; bascule bridge set br0 --vlan-filtering
  bascule vlan add br0 eth1 10,20-30
  # an access port: 10 instead of the default VLAN
  bascule vlan add br0 veth0 10 --untagged --pvid
  bascule vlan del br0 veth0 1`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames, p.vlanIDs),
	}
	p.addLockout(cmd)
	var o bridge.VLANOptions
	cmd.Flags().BoolVar(&o.Untagged, "untagged", false, "send frames of the VLANs by the port without a tag")
	cmd.Flags().BoolVar(&o.PVID, "pvid", false, "make the VLAN the port's PVID: incoming frames without a tag are in it; give one VLAN")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		list, err := bridge.ParseVLANs(args[2])
		if err != nil {
			return err
		}
		return p.change(func(s switcher) error { return s.AddVLANs(args[0], args[1], list, o) })
	}
	return cmd
}

func newVLANDel(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "del BRIDGE PORT LIST",
		Short: "remove a port from VLANs",
		Long: `Remove a port from the VLANs of LIST, such as 10 or 10,20-30. VLANs that it is
not in are ignored, unless it is in none of them. The port's addresses in them
are forgotten, static ones, too.`,
		Example: `  #! run: switch br0 veth0 eth1; bascule bridge set br0 --vlan-filtering; bascule vlan add br0 eth1 20-30
  bascule vlan del br0 veth0 1
  bascule vlan del br0 eth1 20-30
  # out of all that it is in
  bascule vlan del br0 eth1 1-4094`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames, p.portRanges),
		RunE: func(_ *cobra.Command, args []string) error {
			list, err := bridge.ParseVLANs(args[2])
			if err != nil {
				return err
			}
			return p.change(func(s switcher) error { return s.DelVLANs(args[0], args[1], list) })
		},
	}
	p.addLockout(cmd)
	return cmd
}

func newVLANPrivate(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "private BRIDGE PRIMARY",
		Short: "put private VLANs below a primary VLAN",
		Long: `Make VLANs private below the VLAN PRIMARY (RFC 5517). The ports in the primary
VLAN are promiscuous: they talk to all ports. A port whose PVID is an isolated
VLAN talks only to promiscuous ports; ports of a community VLAN also talk to
each other. All of them share their addresses, which the FDB has in the primary
VLAN. A trunk to a switch with the same private VLANs carries all of them with
their tags, the primary VLAN, too.

Each option lists all VLANs of its kind, or is none to remove them; without the
option they stay as they are. A VLAN without private VLANs below it is an
ordinary VLAN.`,
		Example: `  #! run: switch br0 veth0 uplink; bascule bridge set br0 --vlan-filtering
  bascule vlan private br0 100 --isolated 101 --community 102,103
  bascule vlan add br0 uplink 100 --untagged --pvid
  bascule vlan add br0 veth0 101 --untagged --pvid
  # ordinary VLANs again
  bascule vlan private br0 100 --isolated none --community none`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.vlanIDs),
	}
	p.addLockout(cmd)
	isolated, community := &vlanList{name: "VLAN"}, &vlanList{name: "LIST"}
	cmd.Flags().Var(isolated, "isolated", "make this the VLAN whose ports talk only to promiscuous ports, or none")
	cmd.Flags().Var(community, "community", "make these the VLANs whose ports also talk to each other, or none")
	completeFlag(cmd, "isolated", p.orNone)
	completeFlag(cmd, "community", p.orNone)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		primary, err := bridge.ParseVLANs(args[1])
		if err != nil {
			return err
		}
		if len(primary) > 1 {
			return usagef(cmd, "%s is not one VLAN", args[1])
		}
		if isolated.list == nil && community.list == nil {
			return usagef(cmd, "nothing to change: give --isolated or --community")
		}
		return p.change(func(s switcher) error {
			return s.SetPrivateVLANs(args[0], primary[0], bridge.PrivateVLANs{Isolated: isolated.list, Community: community.list})
		})
	}
	return cmd
}

// vlanList is a flag's value: a list of VLANs, or none; nil without the flag.
type vlanList struct {
	name string
	list []uint16
}

func (l *vlanList) Set(value string) (err error) {
	if value == "none" {
		l.list = []uint16{}
		return nil
	}
	l.list, err = bridge.ParseVLANs(value)
	return err
}

func (l *vlanList) Type() string   { return l.name }
func (l *vlanList) String() string { return "" }

func newVLANShow(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [BRIDGE [PORT]]",
		Short: "show the VLANs of ports, or counters of VLANs",
		Long: `Show the VLANs of the ports of all bridges that filter VLANs, of one, or of one
port, in ranges. PVID marks the VLAN of frames that come in without a tag,
Egress Untagged the VLANs whose frames leave without one. Private VLANs come
last, without a port.

With --stats, show counters since --vlan-stats was switched on. rx counts
incoming frames, in the VLAN in which they came; tx counts outgoing frames, once
for each port.`,
		Example: `  #! run: switch br0 veth0; bascule bridge set br0 --vlan-filtering --vlan-stats
  bascule vlan show
  bascule vlan show br0 veth0
  bascule -j vlan show br0 | jq -r '.[] | select(.vlans == []) | .ifname'
  bascule vlan show br0 --stats`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames),
	}
	stats := cmd.Flags().Bool("stats", false, "show counters of VLANs")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		args = append(args, "", "")
		if *stats && args[1] != "" {
			return usagef(cmd, "a VLAN counts for all of its ports: leave %s out", args[1])
		}
		return p.with(func(s switcher) error {
			table, err := s.VLANTable(args[0])
			if err != nil {
				return err
			}
			if *stats {
				if err := checkCounting(s, args[0], &table); err != nil {
					return err
				}
				if len(table) == 0 && args[0] == "" {
					p.warn([]string{"no bridge counts frames by VLAN; switch it on with 'bascule bridge set BRIDGE --vlan-stats'"})
				}
				return p.printVLANStats(table)
			}
			list, err := s.VLANs(args[0])
			if err != nil {
				return err
			}
			if name := args[1]; name != "" {
				list = slices.DeleteFunc(list, func(v bridge.PortVLANs) bool { return v.Port != name })
				if len(list) == 0 {
					return fmt.Errorf("cannot show the VLANs of port %s: bridge %s has no such port; see 'bascule port show %s'", name, args[0], args[0])
				}
				table = nil
			}
			return p.printVLANs(list, table)
		})
	}
	return cmd
}

// checkCounting keeps in table only the bridges with counters for each VLAN. A named bridge must
// have them.
func checkCounting(s switcher, name string, table *[]bridge.VLAN) error {
	counts := map[string]bool{}
	list, err := s.Bridges()
	if err != nil {
		return err
	}
	for _, b := range list {
		counts[b.Name] = b.Config.VLANStats
	}
	if name != "" && !counts[name] {
		return errors.New("cannot show the counters of " + name + "'s VLANs: it has none; switch them on with 'bascule bridge set " + name + " --vlan-stats'")
	}
	*table = slices.DeleteFunc(slices.Clone(*table), func(v bridge.VLAN) bool { return !counts[v.Bridge] })
	return nil
}

func (p *program) printVLANs(ports []bridge.PortVLANs, table []bridge.VLAN) error {
	private := slices.DeleteFunc(slices.Clone(table), func(v bridge.VLAN) bool { return v.Kind == "" })
	if p.json {
		return p.printJSON(answer.OfPortVLANTable(ports, table))
	}
	var rows [][]string
	for _, port := range ports {
		if len(port.Ranges) == 0 {
			rows = append(rows, []string{port.Bridge, port.Port, "-", "-"})
		}
		for _, r := range port.Ranges {
			rows = append(rows, []string{port.Bridge, port.Port, rangeOf(r), orDash(strings.Join(answer.VLANFlags(r.VLANOptions), ", "))})
		}
	}
	for _, v := range private {
		rows = append(rows, []string{v.Bridge, "-", fmt.Sprint(v.ID), kindOf(v)})
	}
	return printList(p, rows, func(row []string) []string { return row }, "BRIDGE PORT VLAN FLAGS", func(row []string) []string { return row })
}

// rangeOf returns the VLANs of a range, such as 10-30.
func rangeOf(r bridge.VLANRange) string {
	if r.Last == r.First {
		return fmt.Sprint(r.First)
	}
	return fmt.Sprintf("%d-%d", r.First, r.Last)
}

// kindOf returns the kind of a VLAN.
func kindOf(v bridge.VLAN) string {
	if v.Primary != 0 {
		return fmt.Sprintf("%s, below %d", v.Kind, v.Primary)
	}
	return cmp.Or(v.Kind, "-")
}

func (p *program) printVLANStats(table []bridge.VLAN) error {
	if p.json {
		return p.printJSON(answer.OfVLANTable(table, true))
	}
	return printList(p, table, func(v bridge.VLAN) bridge.VLAN { return v }, "BRIDGE VLAN RX-FRAMES RX-BYTES TX-FRAMES TX-BYTES TYPE",
		func(v bridge.VLAN) []string {
			return []string{
				v.Bridge, fmt.Sprint(v.ID), fmt.Sprint(v.RxFrames), fmt.Sprint(v.RxBytes),
				fmt.Sprint(v.TxFrames), fmt.Sprint(v.TxBytes), kindOf(v),
			}
		})
}
