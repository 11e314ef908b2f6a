// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"

	"bascule/agent"
	"bascule/agent/doors"
	"bascule/agent/metrics"
	"bascule/docker"

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

// mostDockers is how many connections the socket of Docker has room for: a request is one at a
// time.
const mostDockers = 64

// agentDoors are the flags that say where the agent can be reached, beside its socket.
type agentDoors struct {
	metrics          listenAt
	include, exclude patterns
	docker           listenAt
	dockerState      word
}

func addDoors(cmd *cobra.Command) *agentDoors {
	d := &agentDoors{}
	f := cmd.Flags()
	f.Var(&d.metrics, "metrics", "answer Prometheus at unix:PATH[,group=NAME] or ADDRESS:PORT, such as 127.0.0.1:9810")
	f.Var(&d.include, "metrics-include", "show ports whose names match, such as 'tap*'; may be given several times")
	f.Var(&d.exclude, "metrics-exclude", "do not show ports whose names match; may be given several times")
	f.Var(&d.docker, "docker", "be a network driver of Docker at unix:PATH, such as unix:/run/docker/plugins/bascule.sock")
	d.dockerState = word{name: "FILE", text: "/var/lib/bascule/docker.json"}
	f.Var(&d.dockerState, "docker-state", "keep Docker's networks in this file")
	for _, name := range []string{"metrics", "metrics-include", "metrics-exclude", "docker"} {
		completeFlag(cmd, name, these(nil))
	}
	return d
}

// open opens what the flags ask for. The services close it when they end.
func (d *agentDoors) open(cmd *cobra.Command, log *slog.Logger) (services []agent.Service, err error) {
	switch {
	case d.metrics.text == "" && len(d.include)+len(d.exclude) > 0:
		return nil, usagef(cmd, "--metrics-include and --metrics-exclude: --metrics is missing")
	case d.docker.text == "" && cmd.Flags().Changed("docker-state"):
		return nil, usagef(cmd, "--docker-state: --docker is missing")
	case d.docker.text != "" && (d.docker.address.Path == "" || d.docker.address.Group != ""):
		return nil, usagef(cmd, "--docker: give unix:PATH; Docker is root's")
	case d.docker.text != "" && cmd.Flags().Changed("netns"):
		return nil, usagef(cmd, "--docker and -n exclude each other; start the agent where dockerd runs")
	}
	if d.metrics.text != "" {
		door, err := d.metrics.address.Listen()
		if err != nil {
			return nil, err
		}
		warnRemote(log, "metrics", d.metrics.address)
		o := metrics.Options{Include: d.include, Exclude: d.exclude}
		services = append(services, serve(door, mostScrapers, func(v *agent.View) http.Handler {
			return doors.NewGuard(door.Address, nil, "").Protect(metrics.Handler(v, o))
		}))
	}
	if d.docker.text != "" {
		driver, err := docker.New(d.dockerState.text, log)
		if err != nil {
			return nil, err
		}
		if err := os.MkdirAll(filepath.Dir(d.docker.address.Path), 0o700); err != nil {
			return nil, fmt.Errorf("cannot listen for Docker: %w", err)
		}
		door, err := d.docker.address.Listen()
		if err != nil {
			return nil, err
		}
		services = append(services, serve(door, mostDockers, func(*agent.View) http.Handler { return driver }))
	}
	return services, nil
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
