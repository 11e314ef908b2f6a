// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"bascule/agent"
	"bascule/agent/api"
	"bascule/agent/doors"
	"bascule/agent/metrics"
	"bascule/agent/sflow"
	"bascule/agent/web"
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

// collector is a flag's value: where samples go.
type collector struct {
	text    string
	options sflow.Options
}

func (c *collector) Set(value string) (err error) {
	c.options, err = sflow.Parse(value)
	c.text = value
	return err
}

func (c *collector) Type() string   { return "COLLECTOR" }
func (c *collector) String() string { return c.text }

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

	web       listenAt
	write     bool
	hosts     []string
	tokenFile word

	sflow collector
}

func addDoors(cmd *cobra.Command) *agentDoors {
	d := &agentDoors{tokenFile: word{name: "FILE"}}
	f := cmd.Flags()
	f.Var(&d.metrics, "metrics", "answer Prometheus at unix:PATH[,group=NAME] or ADDRESS:PORT, such as 127.0.0.1:9810")
	f.Var(&d.include, "metrics-include", "show ports whose names match, such as 'tap*'; may be given several times")
	f.Var(&d.exclude, "metrics-exclude", "do not show ports whose names match; may be given several times")
	f.Var(&d.docker, "docker", "be a network driver of Docker at unix:PATH, such as unix:/run/docker/plugins/bascule.sock")
	d.dockerState = word{name: "FILE", text: "/var/lib/bascule/docker.json"}
	f.Var(&d.dockerState, "docker-state", "keep Docker's networks in this file")
	f.Var(&d.web, "web", "serve the page and the API at unix:PATH[,group=NAME] or ADDRESS:PORT, such as 127.0.0.1:9811")
	f.BoolVar(&d.write, "web-write", false, "let those who are let in there change something, too")
	f.StringArrayVar(&d.hosts, "web-host", nil, "a `NAME` by which browsers may call that address; may be given several times")
	f.Var(&d.tokenFile, "token-file", "let in there who knows the token in this file, in the place of a new one")
	f.Var(&d.sflow, "sflow", "send samples of frames to ADDRESS:PORT[,OPTION=VALUE...], such as 192.0.2.9:6343,rate=1000")
	for _, name := range []string{"metrics", "metrics-include", "metrics-exclude", "web", "web-host", "docker", "sflow"} {
		completeFlag(cmd, name, these(nil))
	}
	return d
}

// mostVisitors is how many connections the address of the page has room for. A browser
// opens six.
const mostVisitors = 128

// open opens what the flags ask for. The services close it when they end.
func (d *agentDoors) open(cmd *cobra.Command, log *slog.Logger) (services []agent.Service, open []agent.Door, err error) {
	switch {
	case d.metrics.text == "" && len(d.include)+len(d.exclude) > 0:
		return nil, nil, usagef(cmd, "--metrics-include and --metrics-exclude: --metrics is missing")
	case d.web.text == "" && (d.write || d.hosts != nil || d.tokenFile.text != ""):
		return nil, nil, usagef(cmd, "--web-write, --web-host and --token-file: --web is missing")
	case d.docker.text == "" && cmd.Flags().Changed("docker-state"):
		return nil, nil, usagef(cmd, "--docker-state: --docker is missing")
	case d.docker.text != "" && (d.docker.address.Path == "" || d.docker.address.Group != ""):
		return nil, nil, usagef(cmd, "--docker: give unix:PATH; Docker is root's")
	case d.docker.text != "" && filepath.Ext(d.docker.address.Path) != ".sock":
		return nil, nil, usagef(cmd, "--docker %s: Docker finds no driver there; give unix:/run/docker/plugins/NAME.sock", d.docker.text)
	case d.docker.text != "" && cmd.Flags().Changed("netns"):
		return nil, nil, usagef(cmd, "--docker and -n exclude each other; start the agent where dockerd runs")
	}
	token := ""
	switch {
	case d.tokenFile.text != "":
		token, err = doors.ReadToken(d.tokenFile.text)
	case d.web.text != "" && d.web.address.Path == "":
		token = doors.NewToken()
	}
	if err != nil {
		return nil, nil, err
	}
	var listening []*doors.Door
	defer func() {
		if err != nil { // nothing stays of those that were opened before
			for _, door := range listening {
				door.Close()
			}
		}
	}()
	add := func(what string, at doors.Address, most int, handler func(*agent.View) http.Handler) error {
		door, err := at.Listen()
		if err != nil {
			return err
		}
		warnRemote(log, what, at)
		listening = append(listening, door)
		services = append(services, serve(door, most, handler))
		open = append(open, agent.Door{What: what, Address: at.String(), Write: what == "web" && d.write})
		return nil
	}
	if d.metrics.text != "" {
		o := metrics.Options{Include: d.include, Exclude: d.exclude}
		err = add("metrics", d.metrics.address, mostScrapers, func(v *agent.View) http.Handler {
			return doors.NewGuard(d.metrics.address, nil, "").Protect(metrics.Handler(v, o), nil)
		})
		if err != nil {
			return nil, nil, err
		}
	}
	if d.web.text != "" {
		guard := doors.NewGuard(d.web.address, d.hosts, token)
		err = add("web", d.web.address, mostVisitors, func(v *agent.View) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/api/", laterAPI(v, d.write))
			mux.Handle("/", web.Handler())
			return guard.Protect(mux, func(r *http.Request) bool { return !strings.HasPrefix(r.URL.Path, "/api/") })
		})
		if err != nil {
			return nil, nil, err
		}
		d.tell(log, token)
	}
	if d.docker.text != "" {
		driver, err := docker.New(d.dockerState.text, log)
		if err != nil {
			return nil, nil, err
		}
		if err := os.MkdirAll(filepath.Dir(d.docker.address.Path), 0o700); err != nil {
			return nil, nil, fmt.Errorf("cannot listen for Docker: %w", err)
		}
		err = add("docker", d.docker.address, mostDockers, func(*agent.View) http.Handler { return driver })
		if err != nil {
			return nil, nil, err
		}
	}
	if d.sflow.text != "" {
		services = append(services, d.sflow.options.Service())
	}
	return services, open, nil
}

// tell logs where the page is. A token of a file is known to those who may know it.
func (d *agentDoors) tell(log *slog.Logger, token string) {
	at := d.web.address
	if at.Path != "" {
		log.Info("the page and the API are served", "address", at.String(), "write", d.write)
		return
	}
	page := "http://" + at.TCP.String() + "/"
	if d.tokenFile.text == "" {
		page += "#" + token
	}
	// whatever the level of the log: without the token nobody gets in
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "the page and the API are served", 0)
	r.Add("address", page, "write", d.write)
	_ = log.Handler().Handle(context.Background(), r)
}

// laterAPI is the agent's API, made when it is first asked for: an agent that nobody asks
// has no use for its memory.
func laterAPI(v *agent.View, write bool) http.Handler {
	made := sync.OnceValue(func() http.Handler { return api.New(v, api.Options{Program: buildInfo(), Write: write}) })
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { made().ServeHTTP(w, r) })
}

// socketAPI answers at the agent's own socket, which root can reach alone.
func socketAPI(v *agent.View) http.Handler {
	return doors.NewGuard(doors.Address{Path: "the agent's"}, nil, "").Protect(laterAPI(v, true), nil)
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
