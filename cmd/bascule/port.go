// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

func newPort(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "port",
		Short: "add, change, show and remove the ports of bridges",
		Long: `Frames enter and leave a bridge through its ports. A netdev port is an existing
network device: a veth, a tap, a network card, a macvlan or vxlan device. A host
port is the host's own interface on the switch: it is created with the port, has
the port's name, and can have addresses. Its MAC address stays the same across
restarts of the machine unless --mac sets another. A patch port is one end of a
cable to another bridge in the same network namespace: the two bridges forward
to each other without a device in between. 'bascule span add' makes a span port,
which gets copies of frames.

A port can limit the broadcast, multicast and unknown unicast that comes in,
each in frames (pps) or bits (kbit, mbit, gbit) a second. A tenth of a second's
worth, and always 8 frames, may come at once. Frames above the limit are
dropped. A GSO packet counts as the frames that it will be cut into.

A port with --locked takes frames only from addresses that the FDB has there.
With --mab (MAC authentication bypass) any other address gets a locked entry in
the FDB, and 'bascule monitor' reports it once. A program that authenticates
stations lets the address in with 'bascule fdb add'. A locked entry opens
nothing, takes no address from another port, and ages. If the address is heard
on a port that is not locked, it moves there. Unlike Linux's bridge, bascule
does not forward by a locked entry: it floods frames to the address, as if there
were no entry. Such a port needs --fdb-max; otherwise a station there could fill
the bridge's table.

With --backup, frames to stations behind the port leave by another port while
the port's device is down or has no carrier. The programs check the carrier for
each frame, so no agent is needed, and the port gets its frames back with its
carrier. Floods always go to both ports. The kernel must describe its own types
(CONFIG_DEBUG_INFO_BTF), as the kernels of distributions do.

On a bridge with spanning tree (--stp of 'bascule bridge') a port can also be
discarding or learning. A new port is discarding until 'bascule agent' has found
out where it leads; a host port forwards at once.

With --route on a host port the datapath routes packets for the host, IPv4 and
IPv6, by the host's own routes and neighbours. It leaves packets to the host's
network stack that the stack has to answer or would treat differently. Routed
packets bypass the host's nftables, its tc and its captures; a command that
switches --route on names the existing nftables chains and iptables tables. MAC
rules and pf see a routed packet as a frame to the host, and then as a frame
from the host. pf does NAT. Because of all this, --route is off by default.
'bascule port show --stats' counts the packets that were routed and, by reason,
those that were left to the stack; 'bascule trace' shows it for one packet.

A device that is a port belongs to the switch: it delivers no frames to the
host's IP stack. To connect the host, add a host port. The host's filters for
incoming frames at the device (tc, nftables' hook ingress) see nothing, and
'port add' warns about them. A device above a port's, such as a VLAN device or a
macvlan, gets nothing. So a device that has others above it is refused, and so
is one above a port's; --force takes it anyway.

While 'bascule agent' runs, the interface of a host port has a carrier as long
as another port in one of its VLANs has one and forwards. With spanning tree it
has none while the other ports still discard. An agent that is killed (SIGKILL)
cannot restore the carrier; the next agent does, or the next command that
changes something, such as 'bascule bridge set BRIDGE'.

The port's program is attached to one of two hooks. The hook tcx works with
every kind of device and keeps large packets (GSO) whole. The hook xdp is a
shortcut before it for known unicast; the driver must support XDP. With auto, a
physical network card gets xdp if its driver supports it, and any other device
gets tcx. With xdp on a veth, GRO is switched on at the veth's other end, and
transmit offload of checksums and VLAN tags off.

Frames from a tap always go through tcx: a guest may leave checksums to the
switch, which XDP would not see. Frames to the tap go through xdp. Frames from
and to a bond go through tcx.`,
		Example: `  #! run: switch br0 veth1 veth2; devices veth0; switch br1
  bascule port add br0 veth0
  bascule port add br0 host0 --type host
  ip address add 192.0.2.1/24 dev host0
  ip link set host0 up
  # a cable to another bridge
  bascule port add br0 to1 --type patch --peer br1/to0
  # two customers who must not see each other
  bascule port set br0 veth1 --isolated
  bascule port set br0 veth2 --isolated
  bascule port show br0 --stats`,
	}
	cmd.AddCommand(newPortAdd(p), newPortSet(p), newPortShow(p), newPortDel(p))
	return cmd
}

const hookHelp = "attach the program to this hook"

func newPortAdd(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add BRIDGE PORT ...",
		Short: "add devices, host interfaces or a patch cable to a bridge",
		Long: `Make the network device PORT a port of a bridge. With --type host, create the
host's own interface PORT on the switch. Several ports get the same settings and
are added in one change: all of them, or none. On a bridge that filters VLANs,
--vlan and --tagged choose their VLANs; without both they are in the bridge's
default VLAN.

With --type patch, make a cable to another bridge. One end is PORT. --peer names
the other end, which is created with it. The settings apply to PORT; the other
end gets the defaults.`,
		Example: `  #! run: switch br0; switch br1; bascule bridge add br2 --vlan-filtering; devices veth0 eth1 tap0 tap1 tap2; ethtool -K far-eth1 gro on
  bascule port add br0 veth0
  bascule port add br0 tap0 tap1 --isolated
  bascule port add br2 tap2 --vlan 10 --tagged 20,30 --description 'guest 7'
  bascule port add br0 eth1 --hook xdp --learn=off --protected 1,2
  bascule port add br0 host0 --type host
  bascule port add br0 gw10 --type host --route
  bascule port add br0 to1 --type patch --peer br1/to0`,
		ValidArgsFunction: completeRest(p.moreInterfaces, p.bridgeNames, p.interfaces),
	}
	kind := addChoice(cmd, "type", bridge.TypeNetdev, "add a device, a new interface of the host, or a patch cable", bridge.Types...)
	peer := cmd.Flags().String("peer", "", "the other end of a patch cable, `BRIDGE/PORT`")
	completePeer(cmd, p)
	p.addStackForce(cmd)
	p.addLockout(cmd)
	hook := addChoice(cmd, "hook", bridge.HookAuto, hookHelp, bridge.Hooks...)
	device := addDevice(cmd)
	in := addVLANs(cmd)
	changes := addSettings(cmd, bridge.PortSettings, true)
	completeFlag(cmd, "backup", p.otherPorts)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return p.change(func(s switcher) error {
			o := bridge.PortOptions{Type: kind.text, Peer: *peer, Hook: hook.text, Changes: *changes, VLANs: in.ranges()}
			device.store(&o)
			warnings, err := s.AddPorts(args[0], args[1:], o)
			p.warn(warnings)
			return err
		})
	}
	return cmd
}

// deviceFlags are the flags of a port's device, or of a host port's interface.
type deviceFlags struct {
	mac         ownMAC
	mtu         number
	description described
}

// described is a flag's value: a text that may be empty.
type described struct{ text *string }

func (d *described) Set(value string) error {
	d.text = &value
	return bridge.CheckDescription(value)
}

func (d *described) Type() string   { return "TEXT" }
func (d *described) String() string { return "" }

func addDevice(cmd *cobra.Command) *deviceFlags {
	f := &deviceFlags{mtu: number{name: "N", least: bridge.MinMTU, most: bridge.MaxMTU}}
	cmd.Flags().Var(&f.mac, "mac", "MAC address of a host port's interface, or auto, which stays the same across restarts")
	completeFlag(cmd, "mac", these([]string{bridge.Auto}))
	cmd.Flags().Var(&f.mtu, "mtu", "MTU of a host port, 68 to 65535 bytes; a new one has the smallest MTU of the ports")
	cmd.Flags().Var(&f.description, "description", `describe what the port leads to, in the alias of its device; "" removes it`)
	return f
}

func (f *deviceFlags) given() bool {
	return f.mac.mac != nil || f.mac.auto || f.mtu.n != nil || f.description.text != nil
}

func (f *deviceFlags) store(o *bridge.PortOptions) {
	o.MAC, o.OwnMAC, o.Description = f.mac.mac, f.mac.auto, f.description.text
	if f.mtu.n != nil {
		o.MTU = *f.mtu.n
	}
}

// completePeer completes the bridge of --peer, which the name of the new port follows.
func completePeer(cmd *cobra.Command, p *program) {
	err := cmd.RegisterFlagCompletionFunc("peer", func(cmd *cobra.Command, args []string, _ string) (ends []string, _ cobra.ShellCompDirective) {
		for _, name := range p.otherBridges(cmd, args) {
			ends = append(ends, name+"/")
		}
		return ends, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	})
	if err != nil {
		panic(err) // see completeFlag
	}
}

func newPortSet(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set BRIDGE PORT ...",
		Short: "change settings of ports",
		Long: `Change settings of a port while it forwards; no frame is lost. Other settings
stay as they are. Several ports get the same settings in one change: all of
them, or none.`,
		Example: `  #! run: switch br0 veth0 veth1
  bascule port set br0 veth0 --learn=off --discover=off
  bascule port set br0 veth0 veth1 --isolated
  bascule port set br0 veth0 --protected none --fdb-max 100
  bascule port set br0 veth1 --description 'desk 7, by the window'`,
		ValidArgsFunction: completeRest(p.morePorts, p.bridgeNames, p.portNames),
	}
	p.addLockout(cmd)
	hook := addChoice(cmd, "hook", "", hookHelp, bridge.Hooks...)
	device := addDevice(cmd)
	changes := addSettings(cmd, bridge.PortSettings, false)
	completeFlag(cmd, "backup", p.otherPorts)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if hook.text == "" && len(*changes) == 0 && !device.given() {
			return usagef(cmd, "nothing to change: give at least one setting")
		}
		return p.change(func(s switcher) error {
			o := bridge.PortOptions{Hook: hook.text, Changes: *changes}
			device.store(&o)
			warnings, err := s.SetPorts(args[0], args[1:], o)
			p.warn(warnings)
			return err
		})
	}
	return cmd
}

func newPortShow(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [BRIDGE [PORT]]",
		Short: "show ports, their settings and counters",
		Long: `Show the ports of all bridges or of one, one per line, or everything about one
port.

STATE is forwarding, learning or discarding by spanning tree; blocked while the
port's loop guard keeps it from forwarding; disabled while the device is down or
has no carrier; gone when the device has vanished; no-peer when a patch cable
has no other end, which happens only after a command was killed. A span port,
which only gets copies, is forwarding while its device has a carrier. ENTRIES is
the number of addresses learned on the port.

SETTINGS are the settings that differ from a new port's, written as options; -
is none. Before them come the other end of a patch cable (peer=), the device
that the port's device has become a member of (taken-by=), and why a host port
has no carrier: no-carrier=agent while no other port leads anywhere,
no-carrier=agent-ended if the agent that removed it was killed, until 'bascule
bridge set BRIDGE' restores it. plug= is the id with which 'bascule plug', or a
program for containers, has added the port. description= is the alias of the
port's device ('ip link set PORT alias TEXT'). egress= lists what the host has
at the device for outgoing frames: qdisc, tcx (clsact, too), netfilter (which
sees no frame of the switch), and end-xdp at a veth's other end. While there is
any, frames take no shortcut past the device. 'port show BRIDGE PORT' has the
way that frames take: known unicast may leave by XDP, or straight to a veth's
other end. The device's own counters lack the frames that leave straight;
--stats counts them.

The same column has what the host has at the port's device without effect:
ingress-filter= a filter that sees no frame, device-above= a device that gets
nothing, port-below= the port's device below this one, address= an IP address.
'port show BRIDGE PORT' says what to do, and reports an MTU that is smaller than
those of other ports.

A port whose device has become a member of a Linux bridge or a bond stays a
port. The other device gets no frame from it, and its own frames bypass the
switch, the rules and the counters. 'ip link set PORT nomaster' ends that.

With --stats, show counters since the port was added. rx counts frames from the
device into the switch, tx frames from the switch to the device. A large packet
(GSO) counts as one frame with all of its bytes. learned counts addresses that
became known on the port, moves those that came from another port. refused
counts those that were not learned: a table was full, a static or sticky entry
has the address elsewhere, or it has moved too often. Frames that went no
further count as drops, by reason: 'bascule help reasons'.

For a host port with --route, routed counts packets to the host's address there:
done counts those that the datapath has routed. The other words count packets
that were left to the host's network stack, which are not lost: see 'bascule
help routed'. Packets that the datapath has routed to such a port count as rx
there, as if they came from the host.`,
		Example: `  #! run: switch br0 veth0
  bascule port show
  bascule port show br0 veth0
  bascule port show br0 --stats
  bascule -j port show br0 --stats | jq '.[].drops'`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames),
	}
	stats := cmd.Flags().Bool("stats", false, "show counters")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		args = append(args, "", "")
		return p.with(func(s switcher) error {
			list, err := s.Ports(args[0])
			if err != nil {
				return err
			}
			if name := args[1]; name != "" {
				list = slices.DeleteFunc(list, func(port bridge.Port) bool { return port.Name != name })
				if len(list) == 0 {
					return fmt.Errorf("cannot show port %s: bridge %s has no such port; see 'bascule port show %s'", name, args[0], args[0])
				}
			}
			if p.json || args[1] == "" && !*stats {
				return p.printPorts(list, *stats)
			}
			for _, port := range list {
				var facts []fact
				if args[1] != "" {
					vlans, err := vlansAt(s, port.Bridge)
					if err != nil {
						return err
					}
					facts = portFacts(port, vlans)
				}
				if *stats {
					facts = append(facts, statsFacts(port.Stats)...)
				}
				printFacts(p.out, port.Bridge+" "+port.Name, facts)
			}
			return nil
		})
	}
	return cmd
}

func newPortDel(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "del BRIDGE PORT ...",
		Short: "remove ports from their bridge",
		Long: `Remove ports from their bridge, and their addresses from the FDB. The devices
stay. The interface of a host port is removed, and so is the other end of a
patch cable. A port whose device is gone can be removed, too. Several ports are
removed in one change: all of them, or none.`,
		Example: `  #! run: switch br0 veth0 tap0 tap1
  bascule port del br0 veth0
  bascule port del br0 tap0 tap1`,
		ValidArgsFunction: completeRest(p.morePorts, p.bridgeNames, p.portNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.change(func(s switcher) error {
				notes, err := s.DelPorts(args[0], args[1:])
				p.warn(notes)
				return err
			})
		},
	}
	p.addLockout(cmd)
	return cmd
}

// warn prints notes: the work was done, but the result may differ from the user's intention.
func (p *program) warn(warnings []string) {
	if p.quiet {
		return
	}
	for _, w := range warnings {
		p.complain("warning: " + w)
	}
}

func (p *program) printPorts(list []bridge.Port, stats bool) error {
	toJSON := answer.OfPort
	if stats {
		toJSON = answer.OfCountedPort
	}
	return printList(p, list, toJSON, "BRIDGE PORT TYPE HOOK STATE MTU ENTRIES SETTINGS", func(port bridge.Port) []string {
		settings := settingsIn(bridge.PortSettings, bridge.PortDefaults(port.Type), port.Config)
		if port.Type == bridge.TypeSpan {
			settings = nil
		}
		return []string{
			port.Bridge, port.Name, port.Type, orDash(port.Hook), port.State, ofDevice(port, port.MTU), fmt.Sprint(port.FDBCount),
			orDash(strings.Join(append(marksOf(port), settings...), " ")),
		}
	})
}

// marksOf returns the marks after a port's settings: the other end of a patch cable, the device
// that replaced the port's, and the cause of a missing carrier.
func marksOf(port bridge.Port) (marks []string) {
	if port.Peer != "" {
		marks = append(marks, "peer="+port.Peer)
	}
	if words := strings.Fields(port.TakenBy); len(words) > 0 {
		marks = append(marks, "taken-by="+words[len(words)-1])
	}
	for _, f := range port.Findings {
		if f.Kind != bridge.FindingMTU { // it has its own column
			marks = append(marks, f.Kind+"="+strings.ReplaceAll(f.What, " ", ":"))
		}
	}
	if port.NoCarrier != "" {
		marks = append(marks, "no-carrier="+port.NoCarrier)
	}
	if seen := slices.DeleteFunc(slices.Clone(port.Egress), func(s string) bool { return s == bridge.EgressUnknown }); len(seen) > 0 {
		marks = append(marks, "egress="+strings.Join(seen, ","))
	}
	if port.Owner != nil {
		marks = append(marks, "plug="+port.Owner.ID)
	}
	if port.Description != "" {
		marks = append(marks, "description="+strconv.Quote(port.Description))
	}
	return marks
}

// ofDevice formats a number that belongs to the port's device. The device may be gone, and patch
// ports have none.
func ofDevice(port bridge.Port, n int) string {
	if port.State == "gone" || port.Type == bridge.TypePatch {
		return "-"
	}
	return strconv.Itoa(n)
}

func portFacts(port bridge.Port, vlans []bridge.PortVLANs) []fact {
	facts := []fact{
		{"type", port.Type},
		{"hook", orDash(port.Hook)},
		{"state", port.State},
		{"index", ofDevice(port, port.Index)},
		{"flags", strings.Join(port.Flags, " ")},
		{"mtu", ofDevice(port, port.MTU)},
		{"entries", fmt.Sprint(port.FDBCount)},
	}
	for _, v := range vlans {
		if v.Bridge == port.Bridge && v.Port == port.Name {
			facts = append(facts, fact{"vlans", orDash(vlansOf(v))})
		}
	}
	if port.Type == bridge.TypePatch {
		facts = slices.Insert(facts, 1, fact{"peer", port.Peer})
	}
	if port.Way != "" {
		facts = append(facts, fact{"frames leave", leavesBy(port)})
	}
	if port.Owner != nil {
		facts = append(facts, ownerFacts(*port.Owner)...)
	}
	if port.TakenBy != "" {
		facts = slices.Insert(facts, 3, fact{"taken by", port.TakenBy + ", which gets nothing from the port; end it with 'ip link set " + port.Name + " nomaster'"})
	}
	if port.Description != "" {
		facts = slices.Insert(facts, 0, fact{"description", port.Description})
	}
	for _, f := range port.Findings {
		facts = append(facts, fact{f.Kind, f.Text})
	}
	switch port.NoCarrier {
	case bridge.NoCarrierAgent:
		facts = slices.Insert(facts, 3, fact{"no carrier", "the agent has taken its carrier, as no other port leads anywhere; its log says why"})
	case bridge.NoCarrierEnded:
		facts = slices.Insert(facts, 3, fact{"no carrier", "the agent that took its carrier has ended; 'bascule bridge set " + port.Bridge + "' gives it back"})
	}
	if port.Type == bridge.TypeSpan {
		return facts
	}
	for _, s := range bridge.PortSettings {
		facts = append(facts, fact{s.Name, s.Format(port.Config)})
	}
	return facts
}

// vlansAt returns the VLANs of a bridge's ports, none if the bridge does not filter.
func vlansAt(s switcher, name string) ([]bridge.PortVLANs, error) {
	b, err := s.Bridge(name)
	if err != nil || !b.Config.VLANFiltering {
		return nil, err
	}
	return s.VLANs(name)
}

// vlansOf returns the VLANs of a port in a line, each with its flags.
func vlansOf(port bridge.PortVLANs) string {
	var list []string
	for _, r := range port.Ranges {
		text := rangeOf(r)
		if flags := answer.VLANFlags(r.VLANOptions); len(flags) > 0 {
			text += " (" + strings.Join(flags, ", ") + ")"
		}
		list = append(list, text)
	}
	return strings.Join(list, ", ")
}

// leavesBy describes the path of frames that leave by a port, and the programs that see them there.
func leavesBy(port bridge.Port) string {
	switch port.Way {
	case bridge.WayStraight:
		const unseen = ", where the device's own counters, tcpdump and 'ip -s link' do not see them; 'bascule port show --stats' does"
		text := "straight to the other end, if they are for its address"
		if port.Hook == "xdp" {
			text += " and came in by tcx"
		}
		return text + unseen
	case bridge.WayXDP:
		return "by XDP, if they came in by XDP, where tcpdump does not see them; 'bascule capture' does"
	}
	why := map[string]string{
		bridge.EgressQdisc: "a queueing discipline", bridge.EgressTC: "clsact or programs of tcx", bridge.EgressNetfilter: "rules of netfilter",
		bridge.EgressEndXDP: "a program of XDP at the other end", bridge.EgressUnknown: "a kernel that does not tell what it has",
	}
	var list []string
	for _, e := range port.Egress {
		list = append(list, why[e])
	}
	if list == nil {
		return "by the device"
	}
	return "by the device, which has " + strings.Join(list, ", ")
}

// ownerFacts returns facts about a port's owner.
func ownerFacts(o bridge.Owner) (facts []fact) {
	for _, f := range []fact{
		{"plug", o.ID + ", by " + o.By}, {"network", o.Network}, {"container", o.Container}, {"interface", o.Interface}, {"anchor of pf", o.Anchor},
	} {
		if f.value != "" {
			facts = append(facts, f)
		}
	}
	return facts
}

func statsFacts(s bridge.Stats) []fact {
	facts := []fact{
		{"rx", fmt.Sprintf("%d frames, %d bytes", s.RxFrames, s.RxBytes)},
		{"tx", fmt.Sprintf("%d frames, %d bytes", s.TxFrames, s.TxBytes)},
		{"learned", fmt.Sprint(s.Learned)},
		{"moves", fmt.Sprint(s.Moves)},
		{"refused", fmt.Sprint(s.Refused)},
		{"drops", wordCounts(s.Drops)},
	}
	if s.Routed != nil {
		facts = append(facts, fact{"routed", wordCounts(s.Routed)})
	}
	return facts
}

// wordCounts formats numbers with their words.
func wordCounts(numbers map[string]uint64) string {
	var list []string
	for _, word := range slices.Sorted(maps.Keys(numbers)) {
		list = append(list, fmt.Sprintf("%s %d", word, numbers[word]))
	}
	return strings.Join(list, ", ")
}
