// SPDX-License-Identifier: BSD-2-Clause

// Package metrics exports the agent's bridges to Prometheus, in its text format or in
// OpenMetrics. It needs no counters of its own: a scrape reads the datapath's. A series ends
// with its port, VLAN, rule or bridge. There is no series for each address, since guests could
// make any number of these.
package metrics

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"bascule/agent"
	"bascule/bridge"
	"bascule/pf"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Options choose what is exported.
type Options struct {
	// Include and Exclude are patterns of ports' names, as in a shell. A port is exported if
	// it matches one of Include, or Include is empty, and it matches none of Exclude.
	Include, Exclude []string
}

// Check returns an error for an invalid pattern.
func (o Options) Check() error {
	for _, pattern := range slices.Concat(o.Include, o.Exclude) {
		if _, err := path.Match(pattern, ""); err != nil || pattern == "" {
			return fmt.Errorf("%q is not a pattern of names; give one such as 'tap*'", pattern)
		}
	}
	return nil
}

func (o Options) shows(port string) bool {
	matches := func(list []string) bool {
		return slices.ContainsFunc(list, func(pattern string) bool {
			ok, _ := path.Match(pattern, port)
			return ok
		})
	}
	return (len(o.Include) == 0 || matches(o.Include)) && !matches(o.Exclude)
}

// A source has the methods of the agent that metrics need; agent.View implements it.
type source interface {
	Status(context.Context) (agent.Status, error)
	Places(context.Context) ([]agent.Place, error)
}

// A reader has the methods of a switch that metrics need.
type reader interface {
	Counted() ([]bridge.Counted, error)
}

// scrapeTime is the longest time of a scrape, and mostScrapes the largest number of scrapes at a
// time: further ones are refused for now.
const (
	scrapeTime  = 10 * time.Second
	mostScrapes = 4
)

// Handler answers scrapes at /metrics.
func Handler(v *agent.View, o Options) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	own := newGatherer(v, o, v.Log())
	answer := promhttp.HandlerForTransactional(all{registry, own}, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: mostScrapes,
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: logger{v.Log()},
		// compression would take a sixth of a large switch's scrape, and saves 40 kB a
		// second
		DisableCompression: true,
	})
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", whole(answer))
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "bascule: the metrics are at /metrics")
	})
	return mux
}

// all has the metrics of the process and of the switch.
type all struct {
	process prometheus.Gatherer
	own     *gatherer
}

// Gather implements the interface of [promhttp].
func (a all) Gather() (list []*dto.MetricFamily, done func(), err error) {
	own, done, err := a.own.gather()
	if err != nil {
		return nil, done, err
	}
	list, err = a.process.Gather()
	list = append(list, own...)
	slices.SortFunc(list, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return list, done, err
}

// whole lets h write into memory, so that a client that reads slowly does not keep other clients
// of h waiting.
func whole(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text := texts.Get().(*bytes.Buffer)
		defer texts.Put(text)
		text.Reset()
		page := &page{ResponseWriter: w, text: text, status: http.StatusOK}
		h.ServeHTTP(page, r)
		w.Header().Set("Content-Length", strconv.Itoa(text.Len()))
		w.WriteHeader(page.status)
		_, _ = text.WriteTo(w) // the client may have gone
	})
}

// texts are buffers for answers.
var texts = sync.Pool{New: func() any { return &bytes.Buffer{} }}

// A page is an answer that was not sent yet.
type page struct {
	http.ResponseWriter
	text   *bytes.Buffer
	status int
}

func (p *page) WriteHeader(status int)         { p.status = status }
func (p *page) Write(text []byte) (int, error) { return p.text.Write(text) }

// A logger logs the library's errors.
type logger struct{ *slog.Logger }

func (l logger) Println(v ...any) { l.Warn("metrics", "error", fmt.Sprint(v...)) }

// A kind is a family of series. All have the label netns, "" for the agent's own network
// namespace.
type kind struct {
	name, help string
	value      dto.MetricType
	labels     []string
	order      []int // indexes of the labels, sorted by name
	number     int   // index in a scrape's families
}

// kinds are all kinds, by number.
var kinds []*kind

func newKind(value dto.MetricType, name, help string, labels []string) *kind {
	k := &kind{name: "bascule_" + name, help: help, value: value, labels: append([]string{"netns"}, labels...), number: len(kinds)}
	for i := range k.labels {
		k.order = append(k.order, i)
	}
	slices.SortFunc(k.order, func(i, j int) int { return strings.Compare(k.labels[i], k.labels[j]) })
	kinds = append(kinds, k)
	return k
}

func gauge(name, help string, labels ...string) *kind {
	return newKind(dto.MetricType_GAUGE, name, help, labels)
}

func counter(name, help string, labels ...string) *kind {
	return newKind(dto.MetricType_COUNTER, name, help, labels)
}

// The families. Their names follow Prometheus: base units, _total for counters, _info for facts.
var (
	bridgeInfo = gauge("bridge_info", "A bridge: its address, spanning tree, and whether it filters VLANs.",
		"bridge", "address", "stp", "vlan_filtering")
	bridgePorts = gauge("bridge_ports", "Ports of a bridge.", "bridge")
	fdbEntries  = gauge("fdb_entries", "Addresses that a bridge has learned; static entries do not count.", "bridge")
	fdbMost     = gauge("fdb_entries_max", "Most addresses that a bridge learns.", "bridge")

	portInfo = gauge("port_info", "A port: its type, its hook, its state, the way by which frames leave, the other end of its cable, its device's description, the device that has taken it, and its owner.",
		"bridge", "port", "type", "hook", "state", "way", "peer", "link", "description", "taken_by", "owner", "owner_by", "container", "interface")
	portForwards = gauge("port_forwarding", "1 if a port forwards, 0 if spanning tree, a guard or its device prevents it.", "bridge", "port")
	portFlood    = gauge("port_flood", "1 if floods of a kind leave by a port, 0 if not.", "bridge", "port", "kind")
	portMTU      = gauge("port_mtu_bytes", "Largest packet of a port's device.", "bridge", "port")
	portRxBytes  = counter("port_receive_bytes_total", "Bytes received by a port.", "bridge", "port")
	portRxFrames = counter("port_receive_frames_total", "Frames received by a port.", "bridge", "port")
	portTxBytes  = counter("port_transmit_bytes_total", "Bytes sent by a port.", "bridge", "port")
	portTxFrames = counter("port_transmit_frames_total", "Frames sent by a port.", "bridge", "port")
	portDrops    = counter("port_drops_total", "Frames that were dropped at a port, by reason ('bascule help reasons').", "bridge", "port", "reason")
	portLearned  = counter("port_learned_total", "Addresses that became known at a port.", "bridge", "port")
	portMoves    = counter("port_moves_total", "Addresses that moved to a port from another.", "bridge", "port")
	portRefused  = counter("port_refused_total", "Addresses that a port did not learn.", "bridge", "port")
	portEntries  = gauge("port_fdb_entries", "Addresses that a port has learned.", "bridge", "port")
	portMost     = gauge("port_fdb_entries_max", "Most addresses that a port learns, if it has its own limit.", "bridge", "port")
	portBytes    = gauge("port_limit_bytes_per_second", "Most bytes a second that a port receives or sends, if it has such a limit.", "bridge", "port", "direction")
	portFrames   = gauge("port_limit_frames_per_second", "The same in frames.", "bridge", "port", "direction")
	portRouted   = counter("port_routed_total", "Packets for a routed host port, by who routes them and why ('bascule help routed').",
		"bridge", "port", "outcome")

	vlanRxBytes  = counter("vlan_receive_bytes_total", "Bytes received in a VLAN.", "bridge", "vlan")
	vlanRxFrames = counter("vlan_receive_frames_total", "Frames received in a VLAN.", "bridge", "vlan")
	vlanTxBytes  = counter("vlan_transmit_bytes_total", "Bytes sent in a VLAN.", "bridge", "vlan")
	vlanTxFrames = counter("vlan_transmit_frames_total", "Frames sent in a VLAN.", "bridge", "vlan")

	pfEnabled  = gauge("pf_enabled", "1 if pf of a bridge is on.", "bridge")
	pfStates   = gauge("pf_states", "Connections that pf tracks.", "bridge")
	pfHalfOpen = gauge("pf_half_open_states", "TCP connections without an answer.", "bridge")
	pfSources  = gauge("pf_sources", "Sources that pf tracks.", "bridge")
	pfLimit    = gauge("pf_limit", "Limits of pf ('set limit' of pf.conf).", "bridge", "limit")
	pfMemory   = gauge("pf_memory_bytes", "Memory that a table of pf takes.", "bridge", "table")
	pfTable    = counter("pf_state_table_total", "Searches, insertions and removals in the table of states.", "bridge", "operation")
	pfCounter  = counter("pf_outcomes_total", "Packets by pf's decision, in pfctl's words.", "bridge", "outcome")
	pfLimited  = counter("pf_limits_hit_total", "Times that a limit of a rule has refused something, in pfctl's words.", "bridge", "limit")
	pfLogged   = counter("pf_logged_total", "Packets of the port of 'set loginterface'.", "bridge", "port", "family", "direction", "action")
	ruleEvals  = counter("pf_label_evaluations_total", "Packets that rules with a label have matched.", "bridge", "label")
	rulePkts   = counter("pf_label_packets_total", "Packets of rules with a label, and of their states.", "bridge", "label", "direction")
	ruleBytes  = counter("pf_label_bytes_total", "Bytes of rules with a label, and of their states.", "bridge", "label", "direction")
	ruleStates = gauge("pf_label_states", "States of rules with a label.", "bridge", "label")
	ruleMade   = counter("pf_label_states_created_total", "States that rules with a label have made.", "bridge", "label")
	addresses  = gauge("pf_table_addresses", "Addresses and networks in a table.", "bridge", "anchor", "table")

	treeRoot    = gauge("stp_root", "1 if a bridge is the root of its spanning tree.", "bridge", "root")
	treeChanges = counter("stp_topology_changes_total", "Changes of the topology.", "bridge")
	treeMissed  = counter("stp_missed_bpdus_total", "BPDUs that the agent had no room for.", "bridge")
	treePort    = gauge("stp_port_info", "A port's part in the spanning tree.", "bridge", "port", "role", "state")
	treeCost    = gauge("stp_port_cost", "Cost of the way to the root by a port.", "bridge", "port")
	treeForward = counter("stp_port_transitions_total", "Times that a port began to forward.", "bridge", "port")

	agentInfo    = gauge("agent_info", "The agent.", "version")
	agentSince   = gauge("agent_start_time_seconds", "Start of the agent, in seconds since 1970.")
	agentInForce = gauge("agent_files_in_force", "1 if the agent's files are completely in force.")
	agentApplied = gauge("agent_files_applied_time_seconds", "When the files were last applied with success, in seconds since 1970.")
	agentServed  = gauge("agent_bridge_served", "1 if the agent serves a bridge, 0 if something prevents it.", "bridge")
	agentEvents  = counter("agent_events_total", "Events of a bridge that the agent has read, by kind.", "bridge", "kind")
	agentMissed  = counter("agent_missed_events_total", "Events that came too fast to be read.", "bridge")
	plugged      = counter("hotplug_attached_total", "Devices that became ports when they appeared.")
	pluggedFast  = counter("hotplug_berths_total", "Of these, devices for which a port had been prepared.")
	unplugged    = counter("hotplug_removed_total", "Ports that went with their devices.")
	plugRefused  = counter("hotplug_refused_total", "Devices that match the files and could not become ports.")

	scrapeFailed  = gauge("scrape_failed", "1 if a part of this scrape could not be read.", "part")
	scrapeSeconds = gauge("scrape_duration_seconds", "Duration of this scrape.")
)

// A gatherer reads all values at each scrape. It builds the library's families itself: the
// library's registry takes series one at a time and compares them all, which takes longer for a
// large switch than everything else together.
type gatherer struct {
	of       source
	o        Options
	log      *slog.Logger
	one      chan struct{} // parallel scrapes would read the same values twice
	patience time.Duration
}

func newGatherer(of source, o Options, log *slog.Logger) *gatherer {
	return &gatherer{of: of, o: o, log: log, one: make(chan struct{}, 1), patience: scrapeTime}
}

// gather reads all values. The caller may use the families until it calls done.
func (g *gatherer) gather() (list []*dto.MetricFamily, done func(), err error) {
	ctx, cancel := context.WithTimeout(context.Background(), g.patience)
	defer cancel()
	slow := fmt.Errorf("the switch cannot be read within %v; see the agent's log", g.patience)
	select {
	case g.one <- struct{}{}:
	case <-ctx.Done():
		return nil, func() {}, slow
	}
	result := make(chan *scrape, 1)
	go func() {
		defer func() { <-g.one }()
		result <- g.read(ctx)
	}()
	select {
	case s := <-result:
		return s.filled(), func() { scrapes.Put(s) }, nil
	case <-ctx.Done():
		return nil, func() {}, slow
	}
}

func (g *gatherer) read(ctx context.Context) *scrape {
	start := time.Now()
	s := newScrape(g.o)
	failed := func(part string, err error) {
		s.flag(scrapeFailed, err != nil, part)
		if err != nil {
			g.log.Warn("a scrape of metrics is incomplete", "netns", s.netns, "part", part, "error", err)
		}
	}
	st, err := g.of.Status(ctx)
	failed("agent", err)
	if err == nil {
		s.agent(st)
	}
	places, err := g.of.Places(ctx)
	if err != nil {
		failed("bridges", err)
	}
	for _, p := range places {
		s.netns = p.Netns
		failed("bridges", s.bridges(p.Switch))
	}
	s.netns = ""
	s.put(scrapeSeconds, time.Since(start).Seconds())
	return s
}

// A scrape is one reading of all values.
type scrape struct {
	o        Options
	netns    string
	families []dto.MetricFamily // by the numbers of kinds
	room     slab[series]
	texts    slab[string]
	pairRoom slab[dto.LabelPair]
	lists    slab[*dto.LabelPair]

	// the labels of the last series, which the next one often shares
	names  []string
	values []string
	pairs  []*dto.LabelPair
}

// A series is a dto.Metric with the values that it points to.
type series struct {
	dto.Metric
	gauge   dto.Gauge
	counter dto.Counter
	value   float64
}

// A slab is memory for many values, which one scrape leaves to the next: the values of a large
// switch take megabytes.
type slab[T any] struct {
	pieces [][]T
	used   int // number of pieces in use, and of used values in the last piece
	taken  int
}

// take returns n values, which may have any contents.
func (s *slab[T]) take(n int) []T {
	if s.used == 0 || s.taken+n > len(s.pieces[s.used-1]) {
		if s.used == len(s.pieces) {
			s.pieces = append(s.pieces, make([]T, max(n, 512)))
		}
		s.used, s.taken = s.used+1, 0
		if n > len(s.pieces[s.used-1]) {
			s.pieces[s.used-1] = make([]T, n)
		}
	}
	list := s.pieces[s.used-1][s.taken:][:n:n]
	s.taken += n
	return list
}

// reset takes all values back.
func (s *slab[T]) reset() { s.used, s.taken = 0, 0 }

// scrapes are former scrapes, whose memory is used again.
var scrapes = sync.Pool{New: func() any { return &scrape{families: make([]dto.MetricFamily, len(kinds))} }}

func newScrape(o Options) *scrape {
	s := scrapes.Get().(*scrape)
	s.begin(o)
	return s
}

// begin empties a scrape for a new reading.
func (s *scrape) begin(o Options) {
	s.o, s.netns, s.names, s.values, s.pairs = o, "", nil, s.values[:0], nil
	for i := range s.families {
		f := &s.families[i]
		f.Name, f.Metric = nil, f.Metric[:0]
	}
	s.room.reset()
	s.texts.reset()
	s.pairRoom.reset()
	s.lists.reset()
}

// filled returns the families that have series.
func (s *scrape) filled() (list []*dto.MetricFamily) {
	for i := range s.families {
		if f := &s.families[i]; f.Name != nil {
			list = append(list, f)
		}
	}
	return list
}

func (s *scrape) put(k *kind, value float64, labels ...string) {
	f := &s.families[k.number]
	if f.Name == nil {
		f.Name, f.Help, f.Type = &k.name, &k.help, &k.value
	}
	m := &s.room.take(1)[0]
	m.value, m.Counter, m.Gauge = value, nil, nil
	if k.value == dto.MetricType_COUNTER {
		m.counter.Value, m.Counter = &m.value, &m.counter
	} else {
		m.gauge.Value, m.Gauge = &m.value, &m.gauge
	}
	m.Label = s.labelled(k, labels)
	f.Metric = append(f.Metric, &m.Metric)
}

// labelled returns the labels of a series, by name.
func (s *scrape) labelled(k *kind, labels []string) []*dto.LabelPair {
	if len(s.values) > 0 && s.values[0] == s.netns && slices.Equal(s.values[1:], labels) && slices.Equal(s.names, k.labels) {
		return s.pairs
	}
	s.names, s.values = k.labels, append(append(s.values[:0], s.netns), labels...)
	n := len(s.values)
	texts, room := s.texts.take(n), s.pairRoom.take(n)
	s.pairs = s.lists.take(n)
	for i, v := range s.values {
		texts[i] = plain(v)
		room[i].Name, room[i].Value = &k.labels[i], &texts[i]
		s.pairs[i] = &room[k.order[i]]
	}
	return s.pairs
}

// plain returns a label's value. Names of devices come from outside, and may be invalid UTF-8:
// each such byte becomes \xNN, so that different names stay different.
func plain(text string) string {
	if utf8.ValidString(text) {
		return text
	}
	var b strings.Builder
	for i, r := range text {
		if r == utf8.RuneError && !strings.HasPrefix(text[i:], string(utf8.RuneError)) {
			fmt.Fprintf(&b, "\\x%02x", text[i])
			continue
		}
		b.WriteRune(r)
	}
	return b.String()
}

func (s *scrape) count(k *kind, value uint64, labels ...string) { s.put(k, float64(value), labels...) }

func (s *scrape) flag(k *kind, on bool, labels ...string) {
	value := 0.0
	if on {
		value = 1
	}
	s.put(k, value, labels...)
}

// agent adds the values of the agent's status.
func (s *scrape) agent(st agent.Status) {
	s.put(agentInfo, 1, st.Version)
	s.put(agentSince, seconds(st.Since))
	if len(st.Files) > 0 {
		s.flag(agentInForce, st.Error == "" && st.Applied != nil)
	}
	if st.Applied != nil {
		s.put(agentApplied, seconds(*st.Applied))
	}
	for _, n := range st.Namespaces {
		s.netns = n.Netns
		if h := n.Hotplug; h != nil {
			s.count(plugged, h.Attached)
			s.count(pluggedFast, h.Berths)
			s.count(unplugged, h.Removed)
			s.count(plugRefused, h.Refused)
		}
		for _, b := range n.Bridges {
			s.flag(agentServed, b.Error == "", b.Name)
			for what, n := range b.Events.Counts {
				s.count(agentEvents, n, b.Name, what)
			}
			s.count(agentMissed, b.Events.Missed, b.Name)
			if b.Tree != nil {
				s.tree(b.Name, *b.Tree)
			}
		}
	}
	s.netns = ""
}

func (s *scrape) tree(name string, t agent.TreeStatus) {
	s.flag(treeRoot, t.RootPort == 0, name, t.Root.String())
	s.count(treeChanges, t.Changes, name)
	s.count(treeMissed, t.Missed, name)
	for _, p := range t.Ports {
		if s.o.shows(p.Name) {
			s.put(treePort, 1, name, p.Name, p.Role.String(), p.State.String())
			s.put(treeCost, float64(p.Cost), name, p.Name)
			s.count(treeForward, p.Counters.Transitions, name, p.Name)
		}
	}
}

// bridges adds the counters of a network namespace's switch. It leaves out a bridge that goes
// meanwhile.
func (s *scrape) bridges(sw reader) error {
	list, err := sw.Counted()
	for _, b := range list {
		s.put(bridgeInfo, 1, b.Name, b.Address.String(), b.Config.STP, fmt.Sprint(b.Config.VLANFiltering))
		s.put(bridgePorts, float64(len(b.Ports)), b.Name)
		s.put(fdbEntries, float64(b.FDBCount), b.Name)
		s.put(fdbMost, float64(b.Config.FDBMax), b.Name)
		for _, p := range b.Ports {
			if s.o.shows(p.Name) {
				s.port(p)
			}
		}
		for _, v := range b.VLANs {
			s.vlan(v)
		}
		s.pf(&b)
	}
	return err
}

func (s *scrape) port(p bridge.Port) {
	name := []string{p.Bridge, p.Name}
	with := func(more ...string) []string { return append(name[:2:2], more...) }
	var owner bridge.Owner
	if p.Owner != nil {
		owner = *p.Owner
	}
	s.put(portInfo, 1, with(p.Type, p.Hook, p.State, p.Way, p.Peer, p.Link, p.Description, p.TakenBy, owner.ID, owner.By, owner.Container, owner.Interface)...)
	s.flag(portForwards, p.State == "forwarding", name...)
	if p.MTU > 0 {
		s.put(portMTU, float64(p.MTU), name...)
	}
	n := p.Stats
	s.count(portRxBytes, n.RxBytes, name...)
	s.count(portRxFrames, n.RxFrames, name...)
	s.count(portTxBytes, n.TxBytes, name...)
	s.count(portTxFrames, n.TxFrames, name...)
	s.count(portLearned, n.Learned, name...)
	s.count(portMoves, n.Moves, name...)
	s.count(portRefused, n.Refused, name...)
	s.put(portEntries, float64(p.FDBCount), name...)
	if p.Config.FDBMax > 0 {
		s.put(portMost, float64(p.Config.FDBMax), name...)
	}
	for i, l := range p.Config.Rate {
		direction := with([]string{"in", "out"}[i])
		switch {
		case l.Rate != 0 && l.Kilobits:
			s.put(portBytes, float64(l.Rate)*1000/8, direction...)
		case l.Rate != 0:
			s.put(portFrames, float64(l.Rate), direction...)
		}
	}
	if p.Type != bridge.TypeSpan {
		s.flag(portFlood, p.Config.Discover, with("unknown")...)
		s.flag(portFlood, p.Config.MulticastFlood, with("multicast")...)
		s.flag(portFlood, p.Config.BroadcastFlood, with("broadcast")...)
	}
	for reason, n := range n.Drops {
		s.count(portDrops, n, with(reason)...)
	}
	for outcome, n := range n.Routed {
		s.count(portRouted, n, with(outcome)...)
	}
}

func (s *scrape) vlan(v bridge.VLAN) {
	id := strconv.Itoa(int(v.ID))
	s.count(vlanRxBytes, v.RxBytes, v.Bridge, id)
	s.count(vlanRxFrames, v.RxFrames, v.Bridge, id)
	s.count(vlanTxBytes, v.TxBytes, v.Bridge, id)
	s.count(vlanTxFrames, v.TxFrames, v.Bridge, id)
}

func (s *scrape) pf(b *bridge.Counted) {
	name, info := b.Name, &b.PF
	s.flag(pfEnabled, info.Enabled, name)
	if !info.Enabled && info.States == 0 {
		return // most bridges have none
	}
	s.count(pfStates, info.States, name)
	s.count(pfHalfOpen, info.HalfOpen, name)
	s.count(pfSources, info.Sources, name)
	for i, most := range info.Limits {
		s.put(pfLimit, float64(most), name, pf.LimitName(i).String())
	}
	for _, m := range info.Memory {
		s.count(pfMemory, m.Bytes, name, m.Name)
	}
	for k, list := range map[*kind][]bridge.PFCounter{pfTable: info.StateTable, pfCounter: info.Counters, pfLimited: info.LimitCounters} {
		for _, n := range list {
			s.count(k, n.Count, name, n.Name)
		}
	}
	if p := info.Log; p != nil {
		for family, word := range []string{"IPv4", "IPv6"} {
			for out, direction := range []string{"in", "out"} {
				for what, action := range []string{"pass", "block"} {
					s.count(pfLogged, p.Packets[family][out][what], name, p.Name, word, direction, action)
				}
			}
		}
	}
	s.labels(name, b.PFCounts)
	for _, t := range b.PFTables {
		s.put(addresses, float64(t.Addresses), name, t.Anchor, t.Name)
	}
}

// labels adds the counters of rules by their labels: several rules may share a label.
func (s *scrape) labels(name string, counts map[*pf.Rule]bridge.PFCounts) {
	sums := map[string]bridge.PFCounts{}
	for r, n := range counts {
		for _, label := range r.AllLabels() {
			sum := sums[label]
			sum.Evaluations += n.Evaluations
			sum.Created += n.Created
			sum.States += n.States
			for i := range n.Packets {
				sum.Packets[i] += n.Packets[i]
				sum.Bytes[i] += n.Bytes[i]
			}
			sums[label] = sum
		}
	}
	for label, n := range sums {
		s.count(ruleEvals, n.Evaluations, name, label)
		s.count(ruleMade, n.Created, name, label)
		s.count(ruleStates, n.States, name, label)
		for i, direction := range []string{"in", "out"} {
			s.count(rulePkts, n.Packets[i], name, label, direction)
			s.count(ruleBytes, n.Bytes[i], name, label, direction)
		}
	}
}

// seconds returns a time as Prometheus expects it.
func seconds(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
