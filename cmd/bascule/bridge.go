// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

func newBridge(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bridge",
		Short: "add, change, show and remove bridges",
		Long: `A bridge is one Ethernet switch: its ports, its FDB and its program. It lives in
the kernel, in one network namespace, with no process behind it, until it is
removed or the machine restarts.

With --stp, 'bascule agent' runs spanning tree for a bridge: it finds loops of
cables and keeps ports from forwarding until there is none. Without the agent
the ports keep their states, and new ones do not forward.

A bridge has a MAC address of its own, which identifies it in spanning tree. It
stays the same across restarts of the machine unless --mac sets another.`,
		Example: `  bascule bridge add br0 --ageing 60s
  bascule bridge show br0
  bascule bridge set br0 --fdb-max 1000
  bascule bridge del br0`,
	}
	cmd.AddCommand(newBridgeAdd(p), newBridgeSet(p), newBridgeShow(p), newBridgeDel(p))
	return cmd
}

func newBridgeAdd(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "add NAME",
		Short: "add a bridge",
		Long:  `Add a bridge that has no ports yet.`,
		Example: `  bascule bridge add br0
  # forget an address after a minute, forward LLDP (01:80:C2:00:00:0E)
  bascule bridge add br1 --ageing 60s --group-fwd-mask 0x4000`,
	}
	changes := addSettings(cmd, bridge.BridgeSettings, true)
	p.addForce(cmd)
	p.addChange(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return p.change(func(s switcher) error { return s.AddBridge(args[0], *changes) })
	}
	return cmd
}

func newBridgeSet(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "set NAME",
		Short: "change settings of a bridge, or reload its programs",
		Long: `Change settings of a bridge while it forwards; no frame is lost.

Without options, load the programs of this version of bascule into the bridge,
also without losing a frame. This upgrades a running bridge.`,
		Example: `  #! run: switch br0
  bascule bridge set br0 --ageing 10m
  # after an upgrade of bascule
  bascule bridge set br0`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
	}
	changes := addSettings(cmd, bridge.BridgeSettings, false)
	p.addForce(cmd)
	p.addLockout(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return p.change(func(s switcher) error {
			notes, err := s.SetBridge(args[0], *changes)
			p.warn(notes)
			return err
		})
	}
	return cmd
}

func newBridgeShow(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "show [NAME]",
		Short: "show bridges and their settings",
		Long: `Show all bridges, one per line, or everything about one.

PORTS is the number of ports. ENTRIES is the number of addresses learned; static
entries do not count. SETTINGS are the settings that differ from a new bridge's,
written as options; - is none.`,
		Example: `  #! run: switch br0
  bascule bridge show
  bascule bridge show br0
  bascule -j bridge show | jq -r '.[].ifname'`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.with(func(s switcher) error {
				if len(args) == 0 {
					list, err := s.Bridges()
					if err != nil {
						return err
					}
					return p.printBridges(list)
				}
				b, err := s.Bridge(args[0])
				if err != nil {
					return err
				}
				if p.json {
					return p.printBridges([]bridge.Info{b})
				}
				printFacts(p.out, b.Name, bridgeFacts(b))
				return nil
			})
		},
	}
}

func newBridgeDel(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "del [NAME]",
		Short: "remove a bridge and its ports",
		Long: `Remove a bridge with its ports, addresses and settings. The devices that were
its ports stay; the interfaces of its host ports are removed.

With --all, remove every bridge of the network namespace, one after the other,
and print their names. If one cannot be removed, the others still are.`,
		Example: `  #! run: switch br0
  bascule bridge del br0
  # remove every bridge of the network namespace
  bascule bridge del --all`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
	}
	all := cmd.Flags().Bool("all", false, "remove every bridge of the network namespace")
	p.addLockout(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *all && len(args) > 0:
			return usagef(cmd, "--all and %s: give one of them", args[0])
		case !*all && len(args) == 0:
			return usagef(cmd, "NAME is missing: name a bridge, or give --all")
		case !*all:
			return p.change(func(s switcher) error {
				warnings, err := s.DelBridge(args[0])
				p.warn(warnings)
				return err
			}, func() error {
				p.forget(args[0])
				return nil
			})
		}
		var removed []string
		var failed error
		return p.change(func(s switcher) error {
			var warnings []string
			removed, warnings, failed = s.DelBridges()
			p.warn(warnings)
			return nil
		}, func() error {
			p.forget(removed...)
			if p.json {
				return errors.Join(failed, p.printJSON(answer.List(removed, func(name string) answer.Removed { return answer.Removed{Name: name} })))
			}
			for _, name := range removed {
				fmt.Fprintln(p.out, "removed bridge", name)
			}
			return failed
		})
	}
	return cmd
}

func (p *program) printBridges(list []bridge.Info) error {
	return printList(p, list, answer.OfBridge, "BRIDGE ADDRESS PORTS ENTRIES SETTINGS", func(b bridge.Info) []string {
		return []string{
			b.Name, b.Address.String(), strconv.Itoa(len(b.Ports)), fmt.Sprint(b.FDBCount),
			orDash(strings.Join(settingsIn(bridge.BridgeSettings, bridge.Defaults(bridge.BridgeSettings), b.Config), " ")),
		}
	})
}

func bridgeFacts(b bridge.Info) []fact {
	facts := []fact{
		{"address", b.Address.String()},
		{"ports", strings.Join(b.Ports, " ")},
		{"entries", fmt.Sprint(b.FDBCount)},
	}
	if b.Config.STP != bridge.STPOff {
		facts = append(facts, fact{"spanning-tree", treeOf(b)})
	}
	for _, s := range bridge.BridgeSettings {
		facts = append(facts, fact{s.Name, s.Format(b.Config)})
	}
	return facts
}

// treeOf names the program that runs a bridge's spanning tree.
func treeOf(b bridge.Info) string {
	if b.AgentRuns {
		return b.Config.STP + ", run by the agent"
	}
	return b.Config.STP + ", no agent runs: the last states hold"
}

// forget removes agents' records of deleted bridges.
func (p *program) forget(bridges ...string) {
	if err := p.agents.Forget(p.netns.text, bridges...); err != nil {
		p.warn([]string{"an agent's files of a deleted bridge stay:  " + err.Error()})
	}
}
