// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"net"
	"time"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

func newFDB(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "fdb",
		Short: "show and change the addresses that a bridge knows",
		Long: `The FDB of a bridge, its forwarding database, says which port an address is
behind, separately for each VLAN. The VLAN of a frame is the VLAN of its outer
802.1Q tag; frames without a tag have none.

A dynamic entry was learned from a frame. It moves when the address is seen on
another port, and is removed when the address has not been seen for the bridge's
ageing time.

A static entry was made by hand: it never ages and never moves. When its address
is seen on another port, that is counted, and 'bascule monitor' reports it. A
sticky entry does the same; the name comes from the Linux bridge.

A locked entry has an address that was seen on a locked port with --mab, which
does not let the address in. It ages like a dynamic one, and no frame is
forwarded by it. 'bascule fdb add' lets the address in.`,
		Example: `  #! run: switch br0 veth0
  bascule fdb show br0 --dynamic
  bascule fdb add br0 02:00:00:00:00:01 veth0 --vlan 10
  bascule fdb get br0 02:00:00:00:00:01 --vlan 10
  bascule fdb del br0 02:00:00:00:00:01 --vlan 10
  bascule fdb flush br0 --port veth0`,
	}
	cmd.AddCommand(newFDBShow(p), newFDBGet(p), newFDBAdd(p), newFDBDel(p), newFDBFlush(p))
	return cmd
}

func newFDBShow(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [BRIDGE]",
		Short: "show entries",
		Long: `Show the entries of all bridges or of one, sorted by VLAN and address. AGE is
the time since the address was last seen.`,
		Example: `  #! run: switch br0 veth0
  bascule fdb show
  bascule fdb show br0
  bascule fdb show br0 --port veth0 --dynamic
  # in all VLANs
  bascule fdb show br0 --mac 02:00:00:00:00:01
  # whose frames carry no tag
  bascule fdb show br0 --vlan 0`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
	}
	match := p.addMatch(cmd)
	mac := &word{name: "MAC"}
	cmd.Flags().Var(mac, "mac", "only entries of this address")
	completeFlag(cmd, "mac", p.addresses)
	dynamic := cmd.Flags().Bool("dynamic", false, "only learned entries; with --static, all")
	static := cmd.Flags().Bool("static", false, "only static and sticky entries; with --dynamic, all")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		m := match()
		m.Dynamic, m.Static = *dynamic && !*static, *static && !*dynamic // both flags mean all entries
		if mac.text != "" {
			var err error
			if m.MAC, err = parseMAC("--mac", mac.text); err != nil {
				return err
			}
		}
		if len(args) == 0 && m.Port != "" {
			return usagef(cmd, "--port needs BRIDGE")
		}
		return p.with(func(s switcher) error {
			names := args
			if len(args) == 0 {
				infos, err := s.Bridges()
				if err != nil {
					return err
				}
				for _, b := range infos {
					names = append(names, b.Name)
				}
			}
			var all []bridgeEntry
			for _, name := range names {
				list, err := s.FDB(name, m)
				if err != nil {
					return err
				}
				all = append(all, entriesOf(name, list)...)
			}
			return p.printEntries(all, len(args) == 0)
		})
	}
	return cmd
}

func newFDBGet(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get BRIDGE MAC",
		Short: "show the entry of an address",
		Long: `Show the entry of one address, as 'fdb show' does. If there is none, the exit
status is 1.`,
		Example: `  #! run: switch br0 veth0; bascule fdb add br0 02:00:00:00:00:01 veth0; bascule fdb add br0 02:00:00:00:00:01 veth0 --vlan 10
  bascule fdb get br0 02:00:00:00:00:01
  bascule fdb get br0 02:00:00:00:00:01 --vlan 10`,
	}
	p.aboutEntry(cmd, p.with, func(s switcher, of string, mac net.HardwareAddr, vlan *uint16) error {
		e, err := s.GetEntry(of, mac, vlan)
		if err != nil {
			return err
		}
		return p.printEntries(entriesOf(of, []bridge.Entry{e}), false)
	})
	return cmd
}

// aboutEntry runs do for the single entry that the command's arguments and --vlan name.
func (p *program) aboutEntry(cmd *cobra.Command, with func(func(switcher) error) error, do func(s switcher, of string, mac net.HardwareAddr, vlan *uint16) error) {
	cmd.ValidArgsFunction = completeArguments(p.bridgeNames, p.addresses)
	id := vlan{}
	cmd.Flags().Var(&id, "vlan", oneEntryVLAN)
	completeFlag(cmd, "vlan", p.vlanIDs)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		mac, err := parseMAC("MAC", args[1])
		if err != nil {
			return err
		}
		return with(func(s switcher) error { return do(s, args[0], mac, id.id) })
	}
}

// oneEntryVLAN is the help text of --vlan for commands about one entry.
const oneEntryVLAN = "the entry in this VLAN, 1 to 4094, or 0 for the entry without a VLAN; without --vlan, the entry without a VLAN, or the only one on a bridge that filters VLANs"

func newFDBAdd(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add BRIDGE MAC PORT",
		Short: "add a static or sticky entry",
		Long: `Enter an address that is behind a port. A learned entry of that address and VLAN
is replaced. The address must belong to one station: not zero, not broadcast,
not multicast.

On a bridge that filters VLANs the port must be in the VLAN. An entry in a
private VLAN is kept in its primary VLAN, as all addresses there are.`,
		Example: `  #! run: switch br0 veth0
  bascule fdb add br0 02:00:00:00:00:01 veth0
  bascule fdb add br0 02:00:00:00:00:01 veth0 --vlan 10 --sticky`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.addresses, p.portNames),
	}
	id := vlan{least: 1}
	cmd.Flags().Var(&id, "vlan", "the entry in this VLAN, 1 to 4094; without --vlan, the entry for frames without a tag, which a bridge that filters VLANs has in the port's PVID")
	completeFlag(cmd, "vlan", p.vlanIDs)
	p.addLockout(cmd)
	sticky := cmd.Flags().Bool("sticky", false, "make the entry sticky instead of static")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		mac, err := parseMAC("MAC", args[1])
		if err != nil {
			return err
		}
		e := bridge.Entry{MAC: mac, VLAN: id.orNone(), Port: args[2], Static: !*sticky, Sticky: *sticky}
		return p.change(func(s switcher) error { return s.AddEntry(args[0], e) })
	}
	return cmd
}

func newFDBDel(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "del BRIDGE MAC",
		Short: "remove an entry",
		Long: `Remove the entry of an address, whatever its kind. A host port's own address
stays, so that no other station can take it.`,
		Example: `  #! run: switch br0 veth0; bascule fdb add br0 02:00:00:00:00:01 veth0; bascule fdb add br0 02:00:00:00:00:01 veth0 --vlan 10
  bascule fdb del br0 02:00:00:00:00:01
  bascule fdb del br0 02:00:00:00:00:01 --vlan 10`,
	}
	p.aboutEntry(cmd, func(f func(switcher) error) error { return p.change(f) }, switcher.DelEntry)
	p.addChange(cmd)
	return cmd
}

func newFDBFlush(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flush BRIDGE",
		Short: "remove learned entries",
		Long: `Remove all dynamic entries, or those of one port or VLAN, and print their
number. Static and sticky entries stay unless --static is given; the number of
entries that stay is printed, too. A host port's own address always stays, so
that no other station can take it.`,
		Example: `  #! run: switch br0 veth0
  bascule fdb flush br0
  bascule fdb flush br0 --port veth0 --vlan 10
  # everything, including entries made by hand
  bascule fdb flush br0 --static`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
	}
	p.addChange(cmd)
	match := p.addMatch(cmd)
	static := cmd.Flags().Bool("static", false, "remove static and sticky entries, too, except for host ports' own addresses")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		m := match()
		n, spared := 0, 0
		return p.change(func(s switcher) (err error) {
			n, spared, err = bridge.FlushEntries(s, args[0], m, *static)
			return err
		}, func() error {
			if p.json {
				return p.printJSON([]answer.Flushed{{Bridge: args[0], Removed: n, Spared: spared}})
			}
			line := counted(n, "entry", "entries") + " removed"
			switch {
			case spared > 0 && *static:
				line += "; " + counted(spared, "own address of a host port stays", "own addresses of host ports stay")
			case spared > 0:
				line += "; " + counted(spared, "static or sticky one stays", "static or sticky ones stay") + ", which --static removes"
			}
			fmt.Fprintln(p.out, line)
			return nil
		})
	}
	return cmd
}

// addMatch gives cmd the flags that select entries.
func (p *program) addMatch(cmd *cobra.Command) func() bridge.Match {
	port, id := &word{name: "PORT"}, &vlan{}
	cmd.Flags().Var(port, "port", "only entries of this port")
	cmd.Flags().Var(id, "vlan", "only entries of this VLAN, 1 to 4094, or 0 for entries of untagged frames")
	completeFlag(cmd, "port", p.portNames)
	completeFlag(cmd, "vlan", p.vlanIDs)
	return func() bridge.Match { return bridge.Match{Port: port.text, VLAN: id.id} }
}

// bridgeEntry is an entry with its bridge.
type bridgeEntry struct {
	bridge.Entry
	of string
}

func entriesOf(name string, list []bridge.Entry) []bridgeEntry {
	entries := make([]bridgeEntry, len(list))
	for i, e := range list {
		entries[i] = bridgeEntry{e, name}
	}
	return entries
}

// printEntries prints entries, with their bridges if there are several.
func (p *program) printEntries(list []bridgeEntry, several bool) error {
	toJSON := func(e bridgeEntry) answer.Entry { return answer.OfEntry(e.of, e.Entry) }
	head := "VLAN MAC PORT TYPE AGE"
	if several {
		head = "BRIDGE " + head
	}
	return printList(p, list, toJSON, head, func(e bridgeEntry) []string {
		id, kind, age := "-", "dynamic", e.Updated.Truncate(time.Second).String()
		if e.VLAN != 0 {
			id = fmt.Sprint(e.VLAN)
		}
		switch {
		case e.Locked:
			kind = "locked"
		case e.Sticky:
			kind, age = "sticky", "-"
		case e.Static:
			kind, age = "static", "-"
		}
		row := []string{id, e.MAC.String(), e.Port, kind, age}
		if several {
			row = append([]string{e.of}, row...)
		}
		return row
	})
}
