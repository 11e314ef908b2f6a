// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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

// patterns is a flag's value: patterns of names, one for each use of the flag.
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

// collector is a flag's value: the destination of samples.
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

// mostScrapers limits the connections to the address of metrics.
const mostScrapers = 16

// mostDockers limits the connections to Docker's socket, which has one request at a time on each.
const mostDockers = 64

// agentDoors are the flags for the addresses where the agent can be reached, in addition to its
// socket.
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

	listening []*doors.Door
	made      []string // folders, the innermost first
}

func addDoors(cmd *cobra.Command) *agentDoors {
	d := &agentDoors{tokenFile: word{name: "FILE"}}
	f := cmd.Flags()
	f.Var(&d.metrics, "metrics", "serve Prometheus metrics at unix:PATH[,group=NAME] or ADDRESS:PORT, such as 127.0.0.1:9810")
	f.Var(&d.include, "metrics-include", "show ports whose names match, such as 'tap*'; may be given several times")
	f.Var(&d.exclude, "metrics-exclude", "do not show ports whose names match; may be given several times")
	f.Var(&d.docker, "docker", "serve a network driver for Docker at unix:PATH, such as unix:/run/docker/plugins/bascule.sock")
	d.dockerState = word{name: "FILE", text: "/var/lib/bascule/docker.json"}
	f.Var(&d.dockerState, "docker-state", "keep Docker's networks in this file")
	f.Var(&d.web, "web", "serve the page and the API at unix:PATH[,group=NAME] or ADDRESS:PORT, such as 127.0.0.1:9811")
	f.BoolVar(&d.write, "web-write", false, "allow changes through the page and the API")
	f.StringArrayVar(&d.hosts, "web-host", nil, "let browsers use this `NAME` for that address; may be given several times")
	f.Var(&d.tokenFile, "token-file", "require the token in this file instead of a new one")
	f.Var(&d.sflow, "sflow", "send samples of frames to ADDRESS:PORT[,OPTION=VALUE...], such as 192.0.2.9:6343,rate=1000")
	for _, name := range []string{"metrics", "metrics-include", "metrics-exclude", "web", "web-host", "docker", "sflow"} {
		completeFlag(cmd, name, these(nil))
	}
	return d
}

// mostVisitors limits the connections to the address of the page. A browser opens six.
const mostVisitors = 128

// open opens the addresses that the flags name. The caller has to call close in the end.
func (d *agentDoors) open(cmd *cobra.Command, log *slog.Logger) (o agent.Options, err error) {
	switch {
	case d.metrics.text == "" && len(d.include)+len(d.exclude) > 0:
		return o, usagef(cmd, "--metrics-include and --metrics-exclude: --metrics is missing")
	case d.web.text == "" && (d.write || d.hosts != nil || d.tokenFile.text != ""):
		return o, usagef(cmd, "--web-write, --web-host and --token-file: --web is missing")
	case d.docker.text == "" && cmd.Flags().Changed("docker-state"):
		return o, usagef(cmd, "--docker-state: --docker is missing")
	case d.docker.text != "" && (d.docker.address.Path == "" || d.docker.address.Group != ""):
		return o, usagef(cmd, "--docker: give unix:PATH; Docker is root's")
	case d.docker.text != "" && filepath.Ext(d.docker.address.Path) != ".sock":
		return o, usagef(cmd, "--docker %s: Docker finds no driver there; give unix:/run/docker/plugins/NAME.sock", d.docker.text)
	case d.docker.text != "" && cmd.Flags().Changed("netns"):
		return o, usagef(cmd, "--docker and -n: give one of them; start the agent where dockerd runs")
	}
	token := ""
	switch {
	case d.tokenFile.text != "":
		token, err = doors.ReadToken(d.tokenFile.text)
	case d.web.text != "" && d.web.address.Path == "":
		token = doors.NewToken()
	}
	if err != nil {
		return o, err
	}
	defer func() {
		if err != nil { // close the ones that were opened before
			d.close()
		}
	}()
	add := func(what string, at doors.Address, most int, handler func(*agent.View) http.Handler) error {
		door, err := at.Listen()
		if err != nil {
			return err
		}
		warnRemote(log, what, at)
		if door.Absent {
			log.Warn("the host does not have this address yet; the agent answers there as soon as it has", "what", what, "address", at.String())
		}
		d.listening = append(d.listening, door)
		o.Services = append(o.Services, serve(door, most, handler))
		o.Doors = append(o.Doors, agent.Door{What: what, Address: at.String(), Write: what == "web" && d.write})
		return nil
	}
	if d.metrics.text != "" {
		shown := metrics.Options{Include: d.include, Exclude: d.exclude}
		err = add("metrics", d.metrics.address, mostScrapers, func(v *agent.View) http.Handler {
			return doors.NewGuard(d.metrics.address, nil, "").Protect(metrics.Handler(v, shown), nil)
		})
		if err != nil {
			return o, err
		}
		log.Info("metrics are served", "address", d.metrics.address.String())
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
			return o, err
		}
		d.tell(log, token)
	}
	if d.docker.text != "" {
		driver, err := docker.New(d.dockerState.text, log)
		if err != nil {
			return o, err
		}
		if err := d.makeFolders(filepath.Dir(d.docker.address.Path)); err != nil {
			return o, err
		}
		err = add("docker", d.docker.address, mostDockers, func(*agent.View) http.Handler { return driver })
		if err != nil {
			return o, err
		}
		log.Info("the network driver of Docker is served", "address", d.docker.address.String())
	}
	if d.sflow.text != "" {
		var run agent.Service
		run, o.SFlow = d.sflow.options.Service()
		o.Services = append(o.Services, run)
	}
	return o, nil
}

// makeFolders makes a folder and its parents. Docker looks for drivers in a folder that may not
// exist yet.
func (d *agentDoors) makeFolders(path string) error {
	for dir := path; ; dir = filepath.Dir(dir) {
		if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
			break
		}
		d.made = append(d.made, dir)
	}
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("cannot listen for Docker: %w; make that folder", err)
	}
	return nil
}

// close removes everything that open has made, except folders with files of other programs.
func (d *agentDoors) close() {
	for _, door := range d.listening {
		door.Close()
	}
	for _, dir := range d.made {
		if os.Remove(dir) != nil {
			return
		}
	}
}

// The page's address is logged with its token, unless the token comes from a file, whose
// permissions decide who may read it.
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
	// at any log level: without the token the page is not accessible
	r := slog.NewRecord(time.Now(), slog.LevelInfo, "the page and the API are served", 0)
	r.Add("address", page, "write", d.write)
	_ = log.Handler().Handle(context.Background(), r)
}

// laterAPI returns the agent's API, which is built at the first request: an unused API takes no
// memory.
func laterAPI(v *agent.View, write bool) http.Handler {
	made := sync.OnceValue(func() http.Handler {
		return api.New(v, api.Options{Program: buildInfo(), Write: write, Watch: v.Watch})
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { made().ServeHTTP(w, r) })
}

// socketAPI serves requests at the agent's own socket, which only root can reach.
func socketAPI(v *agent.View) http.Handler {
	return doors.NewGuard(doors.Address{Path: "the agent's"}, nil, "").Protect(laterAPI(v, true), nil)
}

// serve returns a service that handles requests at a door.
func serve(door *doors.Door, most int, handler func(*agent.View) http.Handler) agent.Service {
	return func(ctx context.Context, v *agent.View) error {
		return doors.NewServer(handler(v), v.Log(), most).Serve(ctx, door)
	}
}

// warnRemote logs a warning if other machines can reach an address.
func warnRemote(log *slog.Logger, what string, a doors.Address) {
	if !a.Local() {
		log.Warn("other machines can reach this address, and traffic is not encrypted", "what", what, "address", a.String())
	}
}
