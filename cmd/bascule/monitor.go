// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"syscall"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

func newMonitor(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "monitor [BRIDGE]",
		Short: "print events as they happen",
		Long: `Print the events of all bridges, or of one, one per line, until interrupted
(Ctrl-C): addresses learned, moved, aged, added, deleted, refused or, on a
locked port, not let in (locked); loops and the ports that they block; ports
added, removed, gone, back, taken and released; what the host has at a port's
device without effect (port-finding), until it has it no more (port-cleared); an
MTU that was changed (port-mtu); frames dropped and why. With -j, each line is a
JSON object.

Static and sticky addresses are added by hand, or for a new host port. If one
replaces a learned address, the line ends with the port that had the learned
address, as from. An address is refused as full if a limit leaves no room for
it, as static if it is pinned to another port, and as damped if it has moved too
often this second.

A port is gone when its device is, and back when the device has come back from
another network namespace. A port is taken when its device has been made a
member of another, such as a Linux bridge or a bond. That device gets nothing
from the port, and its own frames leave by the port past the switch. The port is
released when its device is no member any more. Each of these events is
reported, however short. The line of a loop names the address whose frame has
come back through the port, and, as from, the port that the FDB has for the
address.`,
		Example: `  #! run: switch br0 veth0 veth1
  #! ended bascule monitor: bascule fdb flush br0; send veth0; test -s $out
  #! ended bascule -j monitor: ip link set far-veth1 address 02:00:00:00:00:07; ip link set far-veth0 address 02:00:00:00:00:07; send veth0; send veth1; test -s $out
  bascule monitor
  bascule -j monitor br0 | jq 'select(.event == "moved")'`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := p.untilInterrupted(cmd.Context())
			defer stop()
			name := append(args, "")[0]
			return p.with(func(s switcher) error {
				err := s.Monitor(ctx, name, func(e bridge.Event) error {
					if err := p.printEvent(e); err != nil {
						return err
					}
					return p.out.Flush() // the reader waits for it
				})
				if ctx.Err() != nil || errors.Is(err, syscall.EPIPE) {
					return nil // the normal end
				}
				return err
			})
		},
	}
}

func (p *program) printEvent(e bridge.Event) error {
	if p.json {
		return p.printJSON(answer.OfEvent(e))
	}
	line := fmt.Appendf(nil, "%s %s %s", e.Time.Format("15:04:05.000000"), e.Bridge, e.Kind)
	if e.MAC != nil {
		line = fmt.Appendf(line, " %s", e.MAC)
	}
	if e.VLAN != 0 {
		line = fmt.Appendf(line, " vlan %d", e.VLAN)
	}
	if e.Port != "" {
		line = fmt.Appendf(line, " port %s", e.Port)
	}
	if e.From != "" {
		line = fmt.Appendf(line, " from %s", e.From)
	}
	switch {
	case e.Kind == "port-taken":
		line = fmt.Appendf(line, " by %s", e.Reason)
	case e.Kind == "port-finding", e.Kind == "port-mtu", e.Kind == "port-cleared":
		line = fmt.Appendf(line, ": %s", e.Reason)
	case e.Reason != "":
		line = fmt.Appendf(line, " reason %s", e.Reason)
	}
	if e.For != 0 {
		line = fmt.Appendf(line, " for %v", e.For)
	}
	if e.Count > 1 || e.MAC == nil && e.Count == 1 { // a count of 1 is not printed for an address
		line = fmt.Appendf(line, " count %d", e.Count)
	}
	_, err := p.out.Write(append(line, '\n'))
	return err
}
