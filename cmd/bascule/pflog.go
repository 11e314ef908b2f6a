// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"bascule/answer"
	"bascule/bridge"
	"bascule/files"
	"bascule/frame"
	"bascule/pflog"

	"github.com/spf13/cobra"
)

func newPFLog(p *program) *cobra.Command {
	name, file := word{name: "BRIDGE"}, word{name: "FILE"}
	from := pflogName{}
	cmd := &cobra.Command{
		Use:   "pflog",
		Short: "show what pf logs",
		Long: `Show the packets that a bridge's pf logs because a rule says log, one per line,
until interrupted (Ctrl-C): the time, the rule that decided (in an anchor as
RULE.ANCHOR.RULE) and why, what it did, the port, and the packet. With -j, each
line is a JSON object. With -w, the packets are written as a file of pflog(4),
which tcpdump reads.

A bridge's log has one reader at a time. Packets are not kept without a reader.
The last line, on standard error, says how many packets were shown, and how many
were missed because they came faster than they were read. There is no such line
if the reader of standard output ends first, as head does.`,
		Example: `  #! run: switch br0 veth0 veth1; printf 'pass log all\nmatch log (to pflog1)\n' | bascule pfctl -q -f -
  #! ended bascule pflog: send veth0; test -s $out
  #! ended bascule pflog -w blocked.pcap: send veth0; test -s blocked.pcap
  bascule pflog
  bascule pflog -b br0 -i pflog1
  bascule pflog -w - | tcpdump -n -e -ttt -r -
  bascule pflog -w blocked.pcap`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if p.json && file.text != "" {
				return usagef(cmd, "--json and -w: give one of them")
			}
			if file.text == "-" && isTerminal(p.stdout) {
				return usagef(cmd, "-w -: standard output is a terminal, which cannot show a file of pflog(4)")
			}
			ctx, stop := p.untilInterrupted(cmd.Context())
			defer stop()
			return p.with(func(s switcher) error {
				bridgeName, err := onlyBridge(s, name.text)
				if err != nil {
					return err
				}
				write, done, err := p.logWriter(ctx, file.text)
				if err != nil {
					return err
				}
				logged, late := 0, uint64(0)
				var stuck error
				missed, err := s.PFLog(ctx, bridgeName, func(l bridge.PFLogged) error {
					if from.given && l.Number != from.number {
						return nil
					}
					if stuck == nil {
						err := write(l)
						if err == nil {
							logged++
						}
						if !errors.Is(err, errStuck) {
							return err
						}
						stuck = err
					}
					late++
					return nil
				})
				derr := done(err == nil && stuck == nil)
				if stuck == nil {
					err = errors.Join(err, derr)
				}
				if errors.Is(err, syscall.EPIPE) {
					return nil // the reader has closed the pipe
				}
				if err == nil {
					p.complain(fmt.Sprintf("%s: %s logged, %d missed", bridgeName, counted(logged, "packet", "packets"), missed+late))
					err = stuck
				}
				return err
			})
		},
	}
	f := cmd.Flags()
	f.VarP(&name, "b", "b", "choose the bridge, if there are several")
	f.VarP(&file, "w", "w", "write a file of pflog(4), - for standard output")
	f.VarP(&from, "i", "i", "show only packets logged to this interface, as by log (to pflog1)")
	completeFlag(cmd, "b", p.bridgeNames)
	completeFlag(cmd, "i", func(*cobra.Command, []string) []string { return p.pfLogs(name.text) })
	return cmd
}

// pfLogs returns the log interfaces that a bridge's rules name, and the default one for rules that
// say just log.
func (p *program) pfLogs(bridgeName string) []string {
	names := map[string]bool{"pflog0": true}
	_ = p.with(func(s switcher) error {
		name, err := onlyBridge(s, bridgeName)
		if err != nil {
			return err
		}
		rules, err := s.PFRules(name, "")
		if err != nil || rules.Set == nil {
			return err
		}
		for _, set := range append(slices.Collect(maps.Values(rules.Anchors)), rules.Set) {
			for _, r := range set.Rules {
				names[cmp.Or(r.LogTo, "pflog0")] = true
			}
		}
		return nil
	})
	return slices.Sorted(maps.Keys(names))
}

// pflogName is a flag's value: pflog0 to pflog255.
type pflogName struct {
	given  bool
	number int
}

func (v *pflogName) Set(value string) error {
	digits, ok := strings.CutPrefix(value, "pflog")
	n, err := strconv.ParseUint(digits, 10, 8)
	if !ok || err != nil {
		return errors.New("not a log of pf; give pflog0 to pflog255")
	}
	v.given, v.number = true, int(n)
	return nil
}

func (v *pflogName) Type() string   { return "PFLOG" }
func (v *pflogName) String() string { return "" }

// logWriter returns a function that writes each packet to the file of -w at once. An existing file
// is unchanged until the first packet, or until the end if packets are read from a file, since
// another command may be writing it. done ends the file, complete or not.
func (p *program) logWriter(ctx context.Context, file string) (write func(bridge.PFLogged) error, done func(whole bool) error, err error) {
	var to io.Writer
	begin, end := func() error { return nil }, func() error { return nil }
	switch file {
	case "":
		return func(l bridge.PFLogged) error {
			if err := p.printLogged(l); err != nil {
				return err
			}
			return p.out.Flush() // the reader waits for it
		}, func(bool) error { return nil }, nil
	case "-":
		to = frames{p}
	default:
		f, err := files.Create(file, 0)
		if err != nil {
			return nil, nil, fileError(file, err)
		}
		to, end = untilStuck(ctx, file, f), f.Close
		if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
			begin = func() error { return f.Truncate(0) }
		}
	}
	fileError := func(name string, err error) error {
		if name == "-" {
			return err // the program reports it
		}
		return fileError(name, err)
	}
	var w *pflog.Writer
	open := func() (err error) {
		if w == nil {
			if err = begin(); err == nil {
				w, err = pflog.NewWriter(to)
			}
		}
		return err
	}
	write = func(l bridge.PFLogged) error {
		err := open()
		if err == nil {
			err = w.Write(l.Record)
		}
		return fileError(file, err)
	}
	done = func(whole bool) error {
		var err error
		if whole {
			err = open()
		}
		return fileError(file, errors.Join(err, end()))
	}
	return write, done, nil
}

// Names in the output format of tcpdump(8).
var (
	logActions = map[pflog.Action]string{pflog.Pass: "pass", pflog.Block: "block", pflog.Match: "match"}
	logReasons = map[pflog.Reason]string{
		pflog.ByRule: "match", pflog.Fragment: "fragment", pflog.Short: "short", pflog.Timestamp: "bad-timestamp", pflog.Options: "ip-option",
		pflog.StateMismatch: "state-mismatch", pflog.StateLimit: "state-limit", pflog.Synproxy: "synproxy", pflog.Translate: "translate",
	}
)

func (p *program) printLogged(l bridge.PFLogged) error {
	direction := "in"
	if l.Out {
		direction = "out"
	}
	if p.json {
		return p.printJSON(answer.OfLogged(l))
	}
	rule := "def"
	if l.Rule >= 0 {
		rule = strconv.Itoa(l.Rule)
	}
	if l.Subrule >= 0 {
		rule += fmt.Sprintf(".%s.%d", l.Ruleset, l.Subrule)
	}
	id := ""
	if l.Identifier != 0 {
		id = fmt.Sprintf(" [ridentifier %d]", l.Identifier)
	}
	_, err := fmt.Fprintf(p.out, "%s rule %s/(%s)%s %s %s on %s: %s, length %d\n", l.Time.Format("15:04:05.000000"), rule,
		logReasons[l.Reason], id, logActions[l.Action], direction, l.Interface, frame.Packet(l.Data), l.Length)
	return err
}
