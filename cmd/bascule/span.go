// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"slices"
	"strings"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

func newSpan(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:        "span",
		SuggestFor: []string{"mirror", "mirrors"},
		Short:      "copy frames to devices that listen",
		Long: `A span port gets copies of frames, for a program that listens there, such as
tcpdump(8), or at the other end of its cable. It takes no part in switching:
frames that come in by it are dropped, no flood reaches it, and no address is
behind it.

An incoming frame is copied as it came, before anything is decided about it,
even if it is dropped later. An outgoing frame is copied as it leaves, with the
tag that it has then, once for each port that it leaves by. A bridge can have 16
span ports; while it has one, XDP takes no frames.`,
		Example: `  #! run: switch br0 veth0; bascule bridge set br0 --vlan-filtering; bascule vlan add br0 veth0 10,20; devices mon0 mon1 mon2
  # all that comes in by any port
  bascule span add br0 mon0
  # what one port sends and gets
  bascule span add br0 mon1 --port veth0 --direction both
  # two VLANs, of a bridge that filters them
  bascule span add br0 mon2 --vlan 10,20
  bascule span show br0
  bascule span del br0 mon0`,
	}
	cmd.AddCommand(newSpanAdd(p), newSpanShow(p), newSpanDel(p))
	return cmd
}

func newSpanAdd(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add BRIDGE DEVICE",
		Short: "make a device a span port of a bridge",
		Long: `Make the network device DEVICE a span port of a bridge: it gets a copy of every
frame that comes in by any port, or of those of some ports, of some VLANs, or
both. A frame that matches twice, by port and by VLAN, is copied once. Copies
that are larger than the device's MTU are not made; they count as drops of the
span port, with the reason mtu; see 'bascule port show BRIDGE --stats'.

To change the sources of a span port, delete it and add it again. A port that
--port names is no source any more when it leaves the bridge.`,
		Example: `  #! run: switch br0 veth0 veth1; bascule bridge set br0 --vlan-filtering; bascule vlan add br0 veth0 10,20-30; devices mon0 mon1 mon2
  bascule span add br0 mon0
  bascule span add br0 mon1 --port veth0 --port veth1 --direction both
  # of a bridge that filters VLANs
  bascule span add br0 mon2 --vlan 10,20-30 --direction out`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.interfaces),
	}
	var o bridge.SpanOptions
	p.addStackForce(cmd)
	cmd.Flags().Var(&words{name: "PORT", list: &o.Ports}, "port", "copy the frames of this port; may be given several times")
	completeFlag(cmd, "port", p.portNames)
	cmd.Flags().Var(&vlans{&o.VLANs}, "vlan", "copy the frames in these VLANs, such as 10,20-30; may be given several times")
	completeFlag(cmd, "vlan", p.vlanIDs)
	p.addLockout(cmd)
	direction := addChoice(cmd, "direction", bridge.DirectionIn, "copy frames that come in, that go out, or both",
		bridge.DirectionIn, bridge.DirectionOut, bridge.DirectionBoth)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		o.Direction = direction.text
		return p.change(func(s switcher) error {
			warnings, err := s.AddSpan(args[0], args[1], o)
			p.warn(warnings)
			return err
		})
	}
	return cmd
}

func newSpanShow(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "show [BRIDGE]",
		Short: "show span ports and their sources",
		Long: `Show the span ports of all bridges or of one. STATE is forwarding while the
device gets copies; disabled while it is down or has no carrier; gone when it
has vanished: then delete the span port, and add it again. PORTS and VLANS are
the sources whose frames the device gets; PORTS is all if it gets the frames of
every port.`,
		Example: `  #! run: switch br0 veth0; devices mon0; bascule span add br0 mon0
  bascule span show
  bascule -j span show br0`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
		RunE: func(_ *cobra.Command, args []string) error {
			args = append(args, "")
			return p.with(func(s switcher) error {
				list, err := s.Spans(args[0])
				if err != nil {
					return err
				}
				return p.printSpans(list)
			})
		},
	}
}

func newSpanDel(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "del BRIDGE DEVICE",
		Short: "remove a span port from its bridge",
		Long:  `Remove a span port from its bridge. The device stays.`,
		Example: `  #! run: switch br0 veth0; devices mon0; bascule span add br0 mon0
  bascule span del br0 mon0`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.spanNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.change(func(s switcher) error { return s.DelSpan(args[0], args[1]) })
		},
	}
	p.addChange(cmd)
	return cmd
}

// spanNames returns the span ports of the bridge in the first argument.
func (p *program) spanNames(_ *cobra.Command, args []string) (names []string) {
	_ = p.with(func(s switcher) error {
		list, err := s.Spans(args[0])
		for _, span := range list {
			names = append(names, span.Port)
		}
		return err
	})
	return names
}

func (p *program) printSpans(list []bridge.Span) error {
	return printList(p, list, answer.OfSpan, "BRIDGE DEVICE DIRECTION STATE PORTS VLANS", func(s bridge.Span) []string {
		ports := orDash(strings.Join(s.Ports, ","))
		if s.All {
			ports = "all"
		}
		return []string{s.Bridge, s.Port, s.Direction, s.State, ports, orDash(bridge.FormatVLANs(s.VLANs))}
	})
}

// words is a flag's value: one text for each use of the flag.
type words struct {
	name string
	list *[]string
}

func (w *words) Set(value string) error {
	one := word{name: w.name}
	if err := one.Set(value); err != nil {
		return err
	}
	*w.list = append(*w.list, value)
	return nil
}

func (w *words) Type() string   { return w.name }
func (w *words) String() string { return "" }

// vlans is a flag's value: a list of VLANs; several lists are joined.
type vlans struct{ list *[]uint16 }

func (v *vlans) Set(value string) error {
	list, err := bridge.ParseVLANs(value)
	if err != nil {
		return err
	}
	list = append(list, *v.list...)
	slices.Sort(list)
	*v.list = slices.Compact(list)
	return nil
}

func (v *vlans) Type() string   { return "LIST" }
func (v *vlans) String() string { return "" }
