// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"bascule/answer"
	"bascule/bridge"
	"bascule/rates"

	"github.com/spf13/cobra"
)

func newStats(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "stats [BRIDGE [PORT]]",
		Short: "show the counters of ports, or their rates",
		Long: `Show the counters of the ports of all bridges, of one, or of one port, since the
port was added. RX counts frames from the device into the switch, TX frames from
the switch to the device, DROPS frames that came in by the port and went no
further. If there are drops, a line for each reason follows. A large packet
(GSO) counts as one frame with all of its bytes.

With --interval, print rates instead, again every interval until interrupted
(Ctrl-C) or --count times. A rate covers the time that has really passed since
the last reading; bits are counted without preamble and checksum. A port that
was added, or added again, since that reading has no rate yet and shows -.

With -j the totals are one JSON array. With --interval each reading is an array
on one line, whose objects have the seconds that passed as "elapsed", and null
for "rates" and "drops" if there is no rate.`,
		Example: `  #! run: switch br0 veth0
  #! not run bascule stats br0 --interval: it takes ten seconds
  #! ended bascule -j stats br0: test -s $out
  bascule stats
  bascule stats br0 veth0
  # every second, ten times
  bascule stats br0 --interval 1s --count 10
  bascule -j stats br0 --interval 1s | jq -c '.[] | [.ifname, .rates.rx.bits]'`,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames),
	}
	interval, count := &period{}, &number{name: "N", least: 1, most: 1<<31 - 1}
	cmd.Flags().Var(interval, "interval", "print rates at this interval, 100ms to 24h; a bare number is seconds")
	cmd.Flags().Var(count, "count", "stop after this many readings")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		rounds := 0 // no limit
		if count.n != nil {
			rounds = *count.n
		}
		if rounds > 0 && interval.d == 0 {
			return usagef(cmd, "--count needs --interval")
		}
		args = append(args, "", "")
		look := statsLook{bridge: args[0], port: args[1]}
		return p.with(func(s switcher) error {
			list, err := look.ports(s)
			if err != nil {
				return err
			}
			if look.port != "" && len(list) == 0 {
				return fmt.Errorf("cannot show port %s: bridge %s has no such port; see 'bascule port show %s'", look.port, look.bridge, look.bridge)
			}
			if interval.d == 0 {
				return p.printTotals(list)
			}
			ctx, stop := p.untilInterrupted(cmd.Context())
			defer stop()
			err = p.repeatRates(ctx, s, look, list, interval.d, rounds)
			if errors.Is(err, syscall.EPIPE) {
				return nil // the reader has closed the pipe
			}
			return err
		})
	}
	return cmd
}

// statsLook selects ports.
type statsLook struct{ bridge, port string } // "" is all

func (look statsLook) ports(s switcher) ([]bridge.Port, error) {
	list, err := s.Ports(look.bridge)
	if look.port != "" {
		list = slices.DeleteFunc(slices.Clone(list), func(port bridge.Port) bool { return port.Name != look.port })
	}
	return list, err
}

// repeatRates prints rates every interval until ctx ends, or count times if count is not 0; first
// has the counters that were just read.
func (p *program) repeatRates(ctx context.Context, s switcher, look statsLook, first []bridge.Port, interval time.Duration, count int) error {
	var meter rates.Meter
	meter.Read(time.Now(), first, nil)
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		list, err := look.ports(s)
		if err != nil {
			return err
		}
		now := time.Now()
		ports, _, elapsed := meter.Read(now, list, nil)
		if err := p.printRates(ports, now, elapsed, clockOf(interval), n > 1); err != nil {
			return err
		}
		if err := p.out.Flush(); err != nil { // the reader waits for it
			return err
		}
		if n == count {
			return nil
		}
	}
}

func (p *program) printTotals(list []bridge.Port) error {
	if p.json {
		return p.printJSON(answer.List(list, answer.OfTotals))
	}
	var lines []statsLine
	for _, port := range list {
		s := port.Stats
		var sum uint64
		drops := map[string]string{}
		for reason, n := range s.Drops {
			sum += n
			drops[reason] = fmt.Sprint(n)
		}
		lines = append(lines, statsLine{
			[]string{port.Bridge, port.Name, fmt.Sprint(s.RxFrames), fmt.Sprint(s.RxBytes), fmt.Sprint(s.TxFrames), fmt.Sprint(s.TxBytes), fmt.Sprint(sum)},
			drops,
		})
	}
	return p.printStats("BRIDGE PORT RX-FRAMES RX-BYTES TX-FRAMES TX-BYTES DROPS", lines)
}

// clockOf returns the time format of rounds: with fractions if an interval is shorter than a
// second.
func clockOf(interval time.Duration) string {
	if interval%time.Second != 0 {
		return "15:04:05.000"
	}
	return time.TimeOnly
}

// printRates prints one round with its time in the format clock; again is false for the first
// round.
func (p *program) printRates(list []rates.Port, at time.Time, elapsed time.Duration, clock string, again bool) error {
	if p.json {
		return p.printJSON(answer.List(list, func(port rates.Port) answer.Rates { return answer.OfRates(port, at, elapsed) }))
	}
	var lines []statsLine
	clock = at.Format(clock)
	for _, port := range list {
		line := statsLine{cells: []string{clock, port.Bridge, port.Name, "-", "-", "-", "-", "-"}}
		if port.Known {
			for i, rate := range []float64{port.RxFrames, port.RxBits, port.TxFrames, port.TxBits, port.Dropped()} {
				line.cells[3+i] = formatRate(rate)
			}
			line.drops = map[string]string{}
			for reason, rate := range port.Drops {
				line.drops[reason] = formatRate(rate)
			}
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		lines = []statsLine{{cells: []string{clock, "-", "-", "-", "-", "-", "-", "-"}}}
	}
	if again {
		fmt.Fprintln(p.out)
	}
	return p.printStats("TIME BRIDGE PORT RX-FRAMES/S RX-BIT/S TX-FRAMES/S TX-BIT/S DROPS/S", lines)
}

// formatRate formats a rate as a whole number, with one decimal if it is small.
func formatRate(rate float64) string {
	switch {
	case rate == 0 || rate >= 99.95 || rate >= 0.1 && rate == math.Trunc(rate):
		return fmt.Sprintf("%.0f", rate)
	case rate < 0.1:
		return "<0.1"
	}
	return fmt.Sprintf("%.1f", rate)
}

// statsLine is a port's row of a table, with the rows below it: its drops by reason.
type statsLine struct {
	cells []string
	drops map[string]string
}

// printStats prints a table with drops in the last column; without lines it prints no table.
func (p *program) printStats(heading string, lines []statsLine) error {
	if len(lines) == 0 {
		return nil
	}
	columns := strings.Fields(heading)
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(columns, "\t"))
	for _, line := range lines {
		fmt.Fprintln(table, strings.Join(line.cells, "\t"))
		for _, reason := range slices.Sorted(maps.Keys(line.drops)) {
			fmt.Fprintln(table, strings.Repeat("\t", len(columns)-1)+line.drops[reason]+" "+reason)
		}
	}
	return table.Flush()
}
