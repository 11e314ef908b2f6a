// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"bascule/lab/traffic"
)

// newLabTraffic is the command for the ends of a fabric.
func newLabTraffic(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:    "traffic",
		Short:  "requests and responses between the ends of a fabric",
		Hidden: true,
	}
	cmd.AddCommand(newLabTrafficServe(), newLabTrafficRun(p))
	return cmd
}

func newLabTrafficServe() *cobra.Command {
	return &cobra.Command{
		Use:    "serve ADDRESS:PORT",
		Short:  "answer clients",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			at, err := netip.ParseAddrPort(args[0])
			if err != nil {
				return usagef(cmd, "%s", err)
			}
			l, err := traffic.Listen(at)
			if err != nil {
				return fmt.Errorf("cannot serve: %w", err)
			}
			return traffic.Serve(ctx, l)
		},
	}
}

func newLabTrafficRun(p *program) *cobra.Command {
	var l traffic.Load
	cmd := &cobra.Command{
		Use:    "run ADDRESS:PORT",
		Short:  "send requests and print how it went",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if l.Server, err = netip.ParseAddrPort(args[0]); err != nil {
				return usagef(cmd, "%s", err)
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			r, err := l.Run(ctx)
			if err != nil {
				return fmt.Errorf("cannot send: %w", err)
			}
			return json.NewEncoder(p.out).Encode(r)
		},
	}
	f := cmd.Flags()
	f.IntVar(&l.Request, "request", 1, "bytes of a request, `N`")
	f.IntVar(&l.Response, "response", 1, "bytes of a response, `N`")
	f.IntVar(&l.Connections, "connections", 1, "`N` connections at once")
	f.BoolVar(&l.New, "new", false, "a connection for each transaction")
	f.DurationVar(&l.Duration, "duration", 0, "for a `TIME`")
	f.DurationVar(&l.Interval, "interval", 0, "also tell the rate of every `TIME`")
	return cmd
}
