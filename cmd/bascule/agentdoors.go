// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"log/slog"
	"net/http"

	"bascule/agent"
	"bascule/agent/doors"
	"bascule/agent/metrics"

	"github.com/spf13/cobra"
)

// listenAt is a flag's value: an address to listen at.
type listenAt struct {
	text    string
	address doors.Address
}

func (l *listenAt) Set(value string) (err error) {
	l.address, err = doors.ParseAddress(value)
	l.text = value
	return err
}

func (l *listenAt) Type() string   { return "ADDR" }
func (l *listenAt) String() string { return l.text }

// patterns is a flag's value: patterns of names, one each time that it is given.
type patterns []string

func (l *patterns) Set(value string) error {
	if err := (metrics.Options{Include: []string{value}}).Check(); err != nil {
		return err
	}
	*l = append(*l, value)
	return nil
}

func (l *patterns) Type() string   { return "PATTERN" }
func (l *patterns) String() string { return "" }

// mostScrapers is how many connections the address of metrics has room for.
const mostScrapers = 16

// agentDoors are the flags that say where the agent can be reached, beside its socket.
type agentDoors struct {
	metrics          listenAt
	include, exclude patterns
}

func addDoors(cmd *cobra.Command) *agentDoors {
	d := &agentDoors{}
	f := cmd.Flags()
	f.Var(&d.metrics, "metrics", "answer Prometheus at unix:PATH[,group=NAME] or ADDRESS:PORT, such as 127.0.0.1:9810")
	f.Var(&d.include, "metrics-include", "show ports whose names match, such as 'tap*'; may be given several times")
	f.Var(&d.exclude, "metrics-exclude", "do not show ports whose names match; may be given several times")
	for _, name := range []string{"metrics", "metrics-include", "metrics-exclude"} {
		completeFlag(cmd, name, these(nil))
	}
	return d
}

// open opens what the flags ask for. The services close it when they end.
func (d *agentDoors) open(cmd *cobra.Command, log *slog.Logger) (services []agent.Service, err error) {
	if d.metrics.text == "" {
		if len(d.include)+len(d.exclude) > 0 {
			return nil, usagef(cmd, "--metrics-include and --metrics-exclude: --metrics is missing")
		}
		return nil, nil
	}
	door, err := d.metrics.address.Listen()
	if err != nil {
		return nil, err
	}
	warnRemote(log, "metrics", d.metrics.address)
	o := metrics.Options{Include: d.include, Exclude: d.exclude}
	return append(services, serve(door, mostScrapers, func(v *agent.View) http.Handler {
		return doors.NewGuard(door.Address, nil, "").Protect(metrics.Handler(v, o))
	})), nil
}

// serve is a service that answers at a door.
func serve(door *doors.Door, most int, handler func(*agent.View) http.Handler) agent.Service {
	return func(ctx context.Context, v *agent.View) error {
		return doors.NewServer(handler(v), v.Log(), most).Serve(ctx, door)
	}
}

// warnRemote tells that other machines can reach an address.
func warnRemote(log *slog.Logger, what string, a doors.Address) {
	if !a.Local() {
		log.Warn("other machines can reach this address, and nothing is encrypted", "what", what, "address", a.String())
	}
}
