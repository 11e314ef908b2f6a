// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"slices"
	"strings"

	"bascule/answer"
	"bascule/bridge"
	"bascule/files"
	"bascule/rule"

	"github.com/spf13/cobra"
)

func newRule(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rule",
		Short: "show and change the MAC rules of ports",
		Long: `MAC rules say which frames may cross a port. They are written as for ifconfig(8)
of OpenBSD:

  block|pass [in|out] on PORT [src MAC] [dst MAC] [tag NAME]
      [arp|rarp [request|reply] [sha MAC] [spa IP] [tha MAC] [tpa IP]]

A rule applies to frames that enter the switch by the port (in), leave it (out),
or both. The first rule of the port that matches a frame drops it (block) or
lets it pass; a frame that no rule matches passes.

src and dst are the frame's addresses. With arp or rarp the rule applies only to
such packets: sha and spa are the MAC and IPv4 address of their sender, tha and
tpa those of their target. tag marks the frame for pf rules with 'tagged NAME';
it is not a VLAN tag.`,
		Example: `  #! run: switch br0 veth0 veth1
  bascule rule add br0 veth0 pass in src 02:00:00:00:00:01
  bascule rule add br0 veth0 block in
  # no station behind veth1 may claim to be the router
  bascule rule add br0 veth1 block in arp spa 192.0.2.1
  bascule rule show br0 --stats`,
	}
	cmd.AddCommand(newRuleAdd(p), newRuleDel(p), newRuleShow(p), newRuleFlush(p), newRuleLoad(p))
	return cmd
}

func newRuleAdd(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:         "add BRIDGE PORT block|pass [WORD ...]",
		Annotations: ruleUses("add"),
		Short:       "append a rule to a port",
		Long: `Append a rule to the rules of a port. Name the port before the rule, or with 'on
PORT' in it. There, put a name that begins with # or " between double quotes.`,
		Example: `  #! run: switch br0 veth0
  bascule rule add br0 veth0 block in src 02:00:00:00:00:01
  bascule rule add br0 veth0 block out dst ff:ff:ff:ff:ff:ff arp request
  bascule rule add br0 pass in on veth0 arp reply sha 02:00:00:00:00:01`,
		ValidArgsFunction: completeRest(p.ruleWords, p.bridgeNames, p.portOrAction),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := ruleOf(args)
			if err != nil {
				return err
			}
			return p.change(func(s switcher) error {
				notes, err := s.AddRule(args[0], r)
				p.warn(notes)
				return err
			})
		},
	}
	p.addChange(cmd)
	return cmd
}

// ruleUses returns the usage lines for a rule after the name of a command.
func ruleUses(command string) map[string]string {
	return map[string]string{otherUse: command + " BRIDGE block|pass [in|out] on PORT [WORD ...]"}
}

// portInRule reports whether the words after a bridge are a rule that names its port itself. A port
// may have the name of a rule's first word: then the rule follows.
func portInRule(words []string) bool {
	begins := func(i int) bool { return i < len(words) && (words[i] == "block" || words[i] == "pass") }
	return begins(0) && !begins(1) || begins(1) && words[0] == "rule" && slices.Contains(words, "on")
}

// ruleOf parses the rule that follows a bridge and a port. Its words may also be one argument. Like
// in OpenBSD's ifconfig(8), the port may be omitted and be named only by the rule.
func ruleOf(args []string) (rule.Rule, error) {
	if words := strings.Fields(strings.Join(args[1:], " ")); portInRule(words) {
		return bridge.ParseRule(words, "")
	}
	return bridge.ParseRule(strings.Fields(strings.Join(args[2:], " ")), args[1])
}

func newRuleDel(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:         "del BRIDGE PORT block|pass [WORD ...]",
		Annotations: ruleUses("del"),
		Short:       "remove a rule of a port",
		Long: `Remove a rule, written as it was added. If several rules are the same, the first
one is removed.`,
		Example: `  #! run: switch br0 veth0; bascule rule add br0 veth0 block in src 02:00:00:00:00:01; bascule rule add br0 veth0 pass
  bascule rule del br0 veth0 block in src 02:00:00:00:00:01
  bascule rule del br0 veth0 pass`,
		ValidArgsFunction: completeRest(p.ruleWords, p.bridgeNames, p.portOrAction),
		RunE: func(_ *cobra.Command, args []string) error {
			r, err := ruleOf(args)
			if err != nil {
				return err
			}
			return p.change(func(s switcher) error { return s.DelRule(args[0], r) })
		},
	}
	p.addChange(cmd)
	return cmd
}

func newRuleShow(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [BRIDGE [PORT]]",
		Short: "show rules, in the order in which they are tried",
		Long: `Show the rules of all bridges, of one, or of one of its ports, one per line, so
that 'bascule rule load' can read them.

With --stats, show how many frames each rule has matched, and their bytes,
whatever became of them later. A large packet (GSO) counts as one frame.`,
		Example: `  #! run: switch br0 veth0; bascule rule add br0 veth0 block in arp
  bascule rule show br0 veth0 --stats
  # keep the rules, and put them back
  bascule rule show br0 > rules
  bascule rule load br0 rules
  bascule -j rule show br0 --stats | jq '.[].packets'`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames),
	}
	stats := cmd.Flags().Bool("stats", false, "show counters")
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		args = append(args, "", "")
		return p.with(func(s switcher) error {
			list, err := s.Rules(args[0], args[1])
			if err != nil {
				return err
			}
			if p.json {
				toJSON := answer.OfRule
				if *stats {
					toJSON = answer.OfCountedRule
				}
				return p.printJSON(answer.List(list, toJSON))
			}
			last := args[0]
			for _, r := range list {
				if r.Bridge != last {
					last = r.Bridge
					fmt.Fprintln(p.out, "# bridge", last)
				}
				fmt.Fprint(p.out, r.Rule)
				if *stats {
					fmt.Fprintf(p.out, " # %d frames, %d bytes", r.Frames, r.Bytes)
				}
				fmt.Fprintln(p.out)
			}
			return nil
		})
	}
	return cmd
}

func newRuleFlush(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "flush BRIDGE [PORT]",
		Short: "remove all rules of a bridge or a port",
		Long:  `Remove all rules, or those of one port, and print their number.`,
		Example: `  #! run: switch br0 veth0
  bascule rule flush br0 veth0
  bascule rule flush br0`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames),
		RunE: func(_ *cobra.Command, args []string) error {
			args = append(args, "")
			n := 0
			return p.change(func(s switcher) (err error) {
				n, err = s.FlushRules(args[0], args[1])
				return err
			}, func() error {
				if p.json {
					return p.printJSON([]answer.Flushed{{Bridge: args[0], Removed: n}})
				}
				fmt.Fprintln(p.out, counted(n, "rule", "rules"), "removed")
				return nil
			})
		},
	}
	p.addChange(cmd)
	return cmd
}

func newRuleLoad(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "load BRIDGE FILE",
		Short: "replace the rules with the rules of a file",
		Long: `Replace all rules of a bridge, or of one port, with those of FILE, one a line; -
is standard input. A # begins a comment.

The change is made whole or not at all: if something is wrong, every wrong line
is shown with its place, and nothing is changed. No frame meets a mixture of old
and new rules. A rule that is the same as before keeps its counters.`,
		Example: `  #! run: switch br0 veth0; echo 'block in on veth0 arp' >rules
  bascule rule load br0 rules
  # the rules of one port, which need no 'on PORT' then
  echo 'block in arp reply' | bascule rule load br0 - --port veth0`,
		ValidArgsFunction: func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return nil, cobra.ShellCompDirectiveDefault // files
			}
			return completeArguments(p.bridgeNames)(cmd, args, word)
		},
	}
	p.addChange(cmd)
	port := &word{name: "PORT"}
	cmd.Flags().Var(port, "port", "replace only the rules of this port")
	completeFlag(cmd, "port", p.portNames)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		name, file := args[1], p.stdin
		if name == "-" {
			name = "stdin"
		} else {
			f, err := files.Open(name)
			if err != nil {
				return fmt.Errorf("cannot load rules of %s: %w; give a file that can be read", args[0], fileCause(err))
			}
			defer f.Close()
			file = f
		}
		return p.change(func(s switcher) error {
			notes, err := s.LoadRules(args[0], port.text, name, file)
			p.warn(notes)
			return err
		})
	}
	return cmd
}
