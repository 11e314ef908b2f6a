// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"

	"bascule/agent"
	"bascule/bridge"
	"bascule/history"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"
)

// agents are the agent functions that the commands use; liveAgents implements them.
type agents interface {
	Run(ctx context.Context, o agent.Options, reload <-chan os.Signal) error
	Status(netns string) (agent.Status, error)
	Reload(netns string, how agent.Reload) error
	Forget(netns string, bridges ...string) error
}

// liveAgents talks to the agents of this machine.
type liveAgents struct{}

func (liveAgents) Run(ctx context.Context, o agent.Options, reload <-chan os.Signal) error {
	return agent.Run(ctx, o, reload)
}

func (liveAgents) Status(netns string) (agent.Status, error) {
	cookie, err := cookieOf(netns)
	if err != nil {
		return agent.Status{}, err
	}
	return agent.AskStatus(agent.Dir(), cookie)
}

func (liveAgents) Reload(netns string, how agent.Reload) error {
	cookie, err := cookieOf(netns)
	if err != nil {
		return err
	}
	return agent.AskReload(agent.Dir(), cookie, how)
}

func (liveAgents) Forget(netns string, bridges ...string) error {
	cookie, err := cookieOf(netns)
	for _, name := range bridges {
		if err == nil {
			err = agent.Forget(agent.Dir(), cookie, name)
		}
	}
	return err
}

func cookieOf(netns string) (uint64, error) {
	s, err := bridge.Open(netns)
	if err != nil {
		return 0, err
	}
	defer s.Close()
	return s.Cookie()
}

func newAgent(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "run spanning tree, apply files, attach devices as they come",
		Long: `Run the agent of the network namespace until it is stopped. It runs spanning
tree for all bridges that use it. With -f, it applies files that describe
bridges, and attaches devices as they appear. It logs events that need attention
to standard error: loops, blocked ports, refused addresses.

The agent forwards nothing. When it ends, even if it is killed, bridges go on
forwarding and ports keep their states. The next agent continues from there. A
network namespace has one agent, which also serves the namespaces that its files
name.

SIGHUP, or 'bascule agent reload', makes it apply its files again. If a file is
wrong, or has gone since the agent started, the error is logged and nothing is
changed. At the start a missing file is an error. SIGTERM ends the agent.

With --metrics it serves Prometheus: counters of ports, drops by reason, pf,
spanning tree, and the agent itself. ADDR is unix:PATH for the owner alone,
unix:PATH,group=NAME for that group, too, or a numeric address and a port.

With --docker it is a network driver for Docker (docs/containers.md). The driver
has the name of the socket without '.sock'. The agent has to run where dockerd
does.

With --web it serves a web page and the API, which show the switch and, with
--web-write, change it. At an address and port clients need a token: the one in
the file of --token-file, or a new one, which the agent logs with the page's
address. A browser has to use the address, localhost, or a name of --web-host.
docs/api.md, in /usr/local/share/doc/bascule, describes the API, which the
agent's own socket serves, too.

With --sflow it sends samples of the frames of all bridges to a collector (sFlow
version 5): one of rate=N incoming frames (1000), up to drops=N dropped frames
of each bridge a second with their reasons (100), and the counters of each port
every polling=SECONDS (30; 0 for never). The collector identifies the agent by
agent=ADDRESS, or else by the source address of the datagrams. sub-agent=N
distinguishes agents with the same address. Frames never wait for this. Sampling
ends with the agent, or, if the agent is killed, with the next agent or the next
command that changes something.

While the agent runs, the interface of a host port has a carrier as long as
another port of its VLANs has one and forwards; so it has none while spanning
tree begins. An agent that is killed (SIGKILL) leaves the carrier as it is:
'bascule port show' says so, and 'bascule bridge set BRIDGE', or any other
change, restores it.`,
		Example: `  #! run: switch br0; bascule bridge set br0 --stp rstp; ip netns add lab; mkdir -p /etc/bascule; echo 'bridges: {br0: {stp: rstp}}' >/etc/bascule/switch.yaml
  #! begun bascule agent -f: bascule -j agent status | jq -e .namespaces[].bridges[].spanning_tree
  #! ended bascule -n lab agent --log: bascule -n lab agent status
  #! ended bascule -n lab agent --metrics: bascule -n lab agent status
  #! not run bascule agent --docker: one agent of this namespace runs already
  bascule agent -f /etc/bascule
  # in another network namespace, with every detail
  bascule -n lab agent --log-level debug
  # with metrics for Prometheus
  bascule -n lab agent --metrics unix:/run/lab.sock
  # as a network driver of Docker: 'docker network create -d bascule web'
  bascule agent --docker unix:/run/docker/plugins/bascule.sock
  bascule agent status
  bascule -j agent status | jq '.namespaces[].bridges[].spanning_tree.root'`,
		Annotations: map[string]string{noJSON: "is for 'agent status': use --log-format json"},
	}
	var files []string
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "apply this `FILE` or folder; may be given several times")
	p.addForce(cmd)
	cmd.Flags().Lookup("force").Usage += "; " + forceStack
	level := addChoice(cmd, "log-level", "info", "log events of at least this level", "debug", "info", "warn", "error")
	format := addChoice(cmd, "log-format", "text", "log in this format", "text", "json")
	open := addDoors(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if slices.Contains(files, "") {
			return usagef(cmd, "--file: FILE is empty")
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		reload := make(chan os.Signal, 1)
		signal.Notify(reload, syscall.SIGHUP)
		defer signal.Stop(reload)

		watchdog, err := daemon.SdWatchdogEnabled(false)
		if err != nil {
			return fmt.Errorf("cannot start the agent: WATCHDOG_USEC is not a time: %w; unset it", err)
		}
		o := agent.LogOptions{JSON: format.text == "json"}
		if err := o.Level.UnmarshalText([]byte(level.text)); err != nil {
			return err
		}
		stderr, ok := p.stderr.(*os.File)
		o.Journal = ok && agent.InJournal(stderr)
		spool := agent.NewSpool(p.stderr) // the agent must not wait for a reader of its log
		defer spool.Close()
		log := agent.NewLog(spool, o)
		seen, err := open.open(cmd, log)
		if err != nil {
			return err
		}
		defer open.close()
		return p.agents.Run(ctx, agent.Options{
			Services: seen.Services, Doors: seen.Doors, SFlow: seen.SFlow, API: socketAPI,
			Netns: p.netns.text, Files: files, Force: p.force, PF: keptSource, Dir: agent.Dir(), Version: buildVersion(), Log: log,
			Watchdog: watchdog, Notify: notify(log), Watch: startWatch,
		}, reload)
	}
	cmd.AddCommand(newAgentStatus(p), newAgentReload(p))
	return cmd
}

// notify returns a function that sends the agent's state to the service manager (sd_notify(3)), if
// there is one.
func notify(log *slog.Logger) func(state string) {
	return func(state string) {
		if _, err := daemon.SdNotify(false, state); err != nil {
			log.Warn("cannot notify the service manager", "error", err)
		}
	}
}

func newAgentStatus(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "show the state of the agent",
		Long: `Show the state of the network namespace's agent: since when it runs, whether its
files are in force, and what it serves. For each bridge TREE is the kind of
spanning tree, ROOT the identifier of the tree's root, and ROOT-PORT the port
that leads there, - where the bridge is the root. CHANGES counts changes of the
topology, EVENTS changes of addresses, MISSED those that came faster than the
agent reads.

A line for each port that takes part in a spanning tree follows. COST is the
port's part of the cost of the way to the root: a lower cost is preferred. FLAGS
are bpdu-guard: shut by that guard; disputed: a neighbour that is farther from
the root forwards there, as if it heard nothing; down: without a carrier; edge:
no bridge is behind it; root-guard: held back by that guard; shared: not
point-to-point; stp: the neighbour speaks the older protocol.

hot-plug counts devices since the start. attached devices became ports when they
appeared; for those by berths a port had been prepared (a berth, for each
pattern of the files). removed ports went with their devices. refused devices
match the files but cannot be ports. Devices that exist when the files are
applied become ports with the files and are not counted.`,
		Example: `  #! run: switch br0; bascule agent 2>/dev/null & until bascule agent status; do sleep 0.02; done
  bascule agent status
  bascule -j agent status | jq '.namespaces[].bridges[].events'`,
		RunE: func(*cobra.Command, []string) error {
			st, err := p.agents.Status(p.netns.text)
			if err != nil {
				return err
			}
			if p.json {
				return p.printJSON(st)
			}
			return p.printAgent(st)
		},
	}
}

func newAgentReload(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "make the agent apply its files again",
		Long: `Make the agent of the network namespace apply its files again, and wait until it
has. If something is wrong with the files, the command fails with that error.
--confirm and --yes work as in 'bascule apply'.`,
		Example: `  #! run: bascule agent 2>/dev/null & until bascule agent status; do sleep 0.02; done
  bascule agent reload
  # put it back after a minute unless 'bascule apply confirm' comes first
  bascule agent reload --confirm 60s`,
	}
	confirm := addConfirm(cmd)
	yes := addYes(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		how := agent.Reload{Confirm: confirm.time, Yes: *yes, Who: history.Caller()}
		if err := p.agents.Reload(p.netns.text, how); err != nil || how.Confirm == 0 {
			return err
		}
		p.complain(fmt.Sprintf("what has changed is put back in %s, unless 'bascule apply confirm' comes before", shortTime(how.Confirm)))
		return nil
	}
	return cmd
}

func (p *program) printAgent(st agent.Status) error {
	const clock = "2006-01-02 15:04:05 MST"
	files := "none"
	if len(st.Files) > 0 {
		files = strings.Join(st.Files, " ")
		switch {
		case st.Applying:
			files += ", being applied"
		case st.Error != "" && st.Applied != nil:
			files += ", the last good ones since " + st.Applied.Format(clock)
		case st.Error != "":
			files += ", not in force"
		case st.Applied != nil:
			files += ", in force since " + st.Applied.Format(clock)
		}
	}
	facts := []fact{
		{"process", strconv.Itoa(st.PID) + " since " + st.Since.Format(clock)},
		{"version", st.Version},
		{"files", files},
	}
	for _, d := range st.Doors {
		facts = append(facts, fact{d.What, d.Address})
	}
	if f := st.SFlow; f != nil {
		facts = append(facts, fact{"sflow", fmt.Sprintf("to %s, one frame of %d: %d flows, %d drops and %d counters sent, %d missed",
			f.Collector, f.Rate, f.Flows, f.Discards, f.Counters, f.Missed)})
	}
	if st.Error != "" {
		why := st.Error
		if st.Applied != nil {
			why = "the present files are not completely in force: " + why
		}
		facts = append(facts, fact{"error", why})
	}
	for _, n := range st.Namespaces {
		if n.Former {
			facts = append(facts, fact{"meanwhile" + in(n.Netns), "devices become ports by the former files"})
		}
		if h := n.Hotplug; h != nil {
			facts = append(facts, fact{"hot-plug" + in(n.Netns), fmt.Sprintf("%d attached (%d by berths), %d removed, %d refused",
				h.Attached, h.Berths, h.Removed, h.Refused)})
		}
		for _, b := range n.Bridges {
			if b.Error != "" {
				facts = append(facts, fact{b.Name + in(n.Netns), b.Error})
			}
			if t := b.Tree; t != nil && t.Unsaved != "" {
				facts = append(facts, fact{b.Name + in(n.Netns), "the snapshot of the spanning tree cannot be saved: " + t.Unsaved})
			}
		}
	}
	printFacts(p.out, "agent", facts)

	bridges, ports := [][]string{}, [][]string{}
	for _, n := range st.Namespaces {
		for _, b := range n.Bridges {
			tree, root, way, changes := "-", "-", "-", "-"
			if t := b.Tree; t != nil {
				tree, root, changes = t.Version.String(), t.Root.String(), strconv.FormatUint(t.Changes, 10)
				for _, port := range t.Ports {
					if port.Number == t.RootPort {
						way = port.Name
					}
					ports = append(ports, []string{b.Name + in(n.Netns), port.Name, port.Role.String(), port.State.String(), strconv.Itoa(int(port.Cost)), portMarks(port)})
				}
			}
			var events uint64
			for _, count := range b.Events.Counts {
				events += count
			}
			bridges = append(bridges, []string{b.Name + in(n.Netns), tree, root, way, changes,
				strconv.FormatUint(events, 10), strconv.FormatUint(b.Events.Missed, 10)})
		}
	}
	if err := p.printRows("BRIDGE TREE ROOT ROOT-PORT CHANGES EVENTS MISSED", bridges); err != nil {
		return err
	}
	return p.printRows("BRIDGE PORT ROLE STATE COST FLAGS", ports)
}

// in returns words for the namespace of an object.
func in(netns string) string {
	if netns == "" {
		return ""
	}
	return "@" + netns
}

// portMarks names the special states of a port.
func portMarks(p agent.TreePort) string {
	flags := map[string]bool{
		"down": !p.Up, "edge": p.Edge, "shared": !p.PointToPoint, "bpdu-guard": p.Guarded,
		"root-guard": p.RootInconsistent, "disputed": p.Disputed, "stp": p.Version.String() == "stp",
	}
	maps.DeleteFunc(flags, func(_ string, on bool) bool { return !on })
	return orDash(strings.Join(slices.Sorted(maps.Keys(flags)), ","))
}

// printRows prints a table after an empty line; without rows it prints nothing.
func (p *program) printRows(heading string, rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	fmt.Fprintln(p.out)
	table := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, strings.Join(strings.Fields(heading), "\t"))
	for _, cells := range rows {
		fmt.Fprintln(table, row(cells))
	}
	return table.Flush()
}
