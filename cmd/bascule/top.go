// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"bascule/bridge"
	"bascule/top"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

func newTop(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "top [BRIDGE]",
		Short: "watch the traffic of the switch",
		Long: `Show the traffic of all bridges, or of one, in a terminal, and keep it up to
date: the ports, the drops with their reasons, and the addresses that send most,
each in its own pane, busiest first. Rates cover the time that has really
passed; a port that was added, or added again, since the last reading shows -.
Frames are counted by address only while top runs, which costs each of them a
little.

Keys: tab goes to the next pane; 1 to 6 choose the column to sort by, s, < and >
(or the left and right arrows) another one; r reverses the order; up, down, pgup
and pgdn scroll; p pauses and goes on; ? explains; q quits. A rate of - is not
known yet; k, M and G stand for a thousand, a million and a thousand million.

The terminal must have 40 columns and 8 lines. There is no colour. At the end
the screen is as it was before.`,
		Example: `  #! run: switch br0 veth0; ip netns add lab; bascule -n lab bridge add br0
  #! typed q: bascule
  bascule top
  bascule top br0 --interval 5s
  bascule -n lab top br0`,
		ValidArgsFunction: completeArguments(p.bridgeNames),
		Annotations:       map[string]string{noJSON: "is not for a terminal: use 'bascule -j stats --interval 1s'"},
	}
	interval := &period{time.Second}
	cmd.Flags().Var(interval, "interval", "update at this interval, 100ms to 24h; a bare number is seconds")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		const instead = "use 'bascule stats --interval 1s'"
		if !isTerminal(p.stdout) {
			return errors.New("cannot show top: standard output is not a terminal; " + instead)
		}
		if !isTerminal(p.stdin) {
			return errors.New("cannot show top: standard input, where keys come from, is not a terminal; " + instead)
		}
		if name := os.Getenv("TERM"); name == "" || name == "dumb" {
			return fmt.Errorf("cannot show top: a terminal of type %q has no place to write at; set TERM, or %s", name, instead)
		}
		ctx, stop := p.untilInterrupted(cmd.Context())
		defer stop()
		name := append(args, "")[0]
		return p.with(func(s switcher) (err error) {
			var stop func() error
			err = begin(ctx, func() (err error) {
				stop, err = s.CountTalkers(name)
				return err
			})
			if err != nil {
				return err
			}
			defer func() { err = errors.Join(err, stop()) }()
			source := topSource{s, name}
			first := top.Read(source)
			if first.Err != nil {
				return first.Err
			}
			title := name
			if title == "" {
				title = "all bridges"
			}
			err = top.Run(ctx, p.stdin, p.stdout, top.New(title, first), source, interval.d)
			if err != nil {
				return fmt.Errorf("cannot show top: %w; %s", err, instead)
			}
			return nil
		})
	}
	return cmd
}

func isTerminal(file any) bool {
	f, ok := file.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}

// topSource reads one bridge, or all if name is "". It returns printable device names.
type topSource struct {
	switcher
	name string
}

func (s topSource) Ports() ([]bridge.Port, error) {
	list, err := s.switcher.Ports(s.name)
	list = slices.Clone(list)
	for i := range list {
		list[i].Name = printable(list[i].Name)
	}
	return list, err
}

func (s topSource) Talkers() ([]bridge.Talker, error) {
	list, err := s.switcher.Talkers(s.name)
	list = slices.Clone(list)
	for i := range list {
		list[i].Port = printable(list[i].Port)
	}
	return list, err
}
