// SPDX-License-Identifier: BSD-2-Clause

package metrics

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"bascule/agent"
	"bascule/bridge"
	"bascule/pf"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
)

// a fake agent and its switch
type fake struct {
	ports []bridge.Port
	err   error
}

func (f *fake) Counted() ([]bridge.Counted, error) {
	return []bridge.Counted{{
		Info: bridge.Info{
			Name: "br0", Address: net.HardwareAddr{2, 0, 0, 0, 0, 1}, FDBCount: 7,
			Config: bridge.BridgeConfig{FDBMax: 100, STP: "rstp", VLANFiltering: true, VLANStats: true},
		},
		Ports: f.ports,
		VLANs: []bridge.VLAN{{Bridge: "br0", ID: 10, RxFrames: 1, RxBytes: 60}},
		PF: bridge.PFInfo{
			Enabled: true, States: 3, Counters: []bridge.PFCounter{{Name: "match", Count: 9}},
			Memory: []bridge.PFMemory{{Name: "states", Bytes: 4096}},
			Log:    &bridge.PFPort{Name: "p1"},
		},
		PFCounts: map[*pf.Rule]bridge.PFCounts{
			{Label: "web"}: {Evaluations: 1, Packets: [2]uint64{2, 3}, Bytes: [2]uint64{4, 5}, States: 6, Created: 7},
			// two rules with the same label are one series
			{Label: "web", Quick: true}: {Evaluations: 10, Packets: [2]uint64{20, 30}, Bytes: [2]uint64{40, 50}, States: 60, Created: 70},
			{}:                          {Evaluations: 1000},
		},
		PFTables: []bridge.PFTable{{Name: "bad", Addresses: 2}},
	}}, f.err
}

func gathered(t *testing.T, f *fake, o Options) map[string]float64 {
	t.Helper()
	scraped := scraped(f, o)
	if complaints, err := testutil.GatherAndLint(scraped); err != nil || len(complaints) > 0 {
		t.Errorf("the names are not as they should be: %v, %v", complaints, err)
	}
	families, err := scraped.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.Metric {
			name := family.GetName()
			for _, l := range m.Label {
				if l.GetName() != "netns" || l.GetValue() != "" {
					name += " " + l.GetName() + "=" + l.GetValue()
				}
			}
			series[name] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return series
}

// scraped gathers a fake switch. The library refuses repeated series, and series outside
// their families.
func scraped(f *fake, o Options) prometheus.Gatherers {
	return prometheus.Gatherers{prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return scrapeOf(f, o), nil })}
}

func scrapeOf(f *fake, o Options) []*dto.MetricFamily {
	now := newScrape(o)
	now.bridges(f)
	now.agent(agent.Status{
		Version: "1", Since: time.Unix(5, 0), Files: []string{"x"}, Error: "why",
		Namespaces: []agent.SiteStatus{{Bridges: []agent.BridgeStatus{{
			Name: "br0", Tree: &agent.TreeStatus{}, Events: agent.EventStatus{Counts: map[string]uint64{"moved": 4}, Missed: 5},
		}}}},
	})
	return now.filled()
}

func TestMetrics(t *testing.T) {
	f := &fake{ports: []bridge.Port{
		{
			Bridge: "br0", Name: "p1", Type: "netdev", Hook: "tcx", State: "forwarding", Way: bridge.WayStraight, MTU: 1500, Link: "q1", Description: "web", FDBCount: 5,
			Config: bridge.PortConfig{Discover: true, Rate: [2]bridge.RateLimit{
				{StormLimit: bridge.StormLimit{Rate: 8000, Kilobits: true}}, {StormLimit: bridge.StormLimit{Rate: 500}},
			}}, Owner: &bridge.Owner{ID: "x", By: "cni", Container: "c", Interface: "eth0"},
			Stats: bridge.Stats{RxFrames: 1, RxBytes: 2, TxFrames: 3, TxBytes: 4, Learned: 5, Moves: 6, Refused: 7, Drops: map[string]uint64{"mtu": 8}},
		},
		{Bridge: "br0", Name: "p\xff", State: "gone"},
		{Bridge: "br0", Name: "p\xfe", State: "gone"},
		{Bridge: "br0", Name: "gw", State: "forwarding", Stats: bridge.Stats{Routed: map[string]uint64{"done": 9}}},
	}}
	got := gathered(t, f, Options{})
	for name, want := range map[string]float64{
		"bascule_bridge_info address=02:00:00:00:00:01 bridge=br0 stp=rstp vlan_filtering=true": 1,
		"bascule_fdb_entries bridge=br0": 7, "bascule_fdb_entries_max bridge=br0": 100,
		"bascule_port_info bridge=br0 container=c description=web hook=tcx interface=eth0 link=q1 owner=x owner_by=cni peer= port=p1 state=forwarding taken_by= type=netdev way=straight": 1,
		"bascule_port_forwarding bridge=br0 port=p1":                            1,
		`bascule_port_forwarding bridge=br0 port=p\xff`:                         0,
		`bascule_port_forwarding bridge=br0 port=p\xfe`:                         0,
		"bascule_port_flood bridge=br0 kind=unknown port=p1":                    1,
		"bascule_port_receive_frames_total bridge=br0 port=p1":                  1,
		"bascule_port_receive_bytes_total bridge=br0 port=p1":                   2,
		"bascule_port_transmit_frames_total bridge=br0 port=p1":                 3,
		"bascule_port_transmit_bytes_total bridge=br0 port=p1":                  4,
		"bascule_port_learned_total bridge=br0 port=p1":                         5,
		"bascule_port_moves_total bridge=br0 port=p1":                           6,
		"bascule_port_refused_total bridge=br0 port=p1":                         7,
		"bascule_port_drops_total bridge=br0 port=p1 reason=mtu":                8,
		"bascule_port_limit_bytes_per_second bridge=br0 direction=in port=p1":   1000000,
		"bascule_port_limit_frames_per_second bridge=br0 direction=out port=p1": 500,
		"bascule_port_routed_total bridge=br0 outcome=done port=gw":             9,
		"bascule_vlan_receive_bytes_total bridge=br0 vlan=10":                   60,
		"bascule_pf_states bridge=br0":                                          3,
		"bascule_pf_outcomes_total bridge=br0 outcome=match":                    9,
		"bascule_pf_label_evaluations_total bridge=br0 label=web":               11,
		"bascule_pf_label_packets_total bridge=br0 direction=out label=web":     33,
		"bascule_pf_label_bytes_total bridge=br0 direction=in label=web":        44,
		"bascule_pf_label_states bridge=br0 label=web":                          66,
		"bascule_pf_label_states_created_total bridge=br0 label=web":            77,
		"bascule_pf_table_addresses anchor= bridge=br0 table=bad":               2,
		"bascule_agent_start_time_seconds":                                      5,
		"bascule_agent_files_in_force":                                          0,
		"bascule_agent_events_total bridge=br0 kind=moved":                      4,
		"bascule_agent_missed_events_total bridge=br0":                          5,
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, %v, want %v", name, value, ok, want)
		}
	}
}

// TestPatterns: ports are chosen by their names.
func TestPatterns(t *testing.T) {
	f := &fake{ports: []bridge.Port{{Bridge: "br0", Name: "tap0"}, {Bridge: "br0", Name: "tap1"}, {Bridge: "br0", Name: "eth0"}}}
	got := gathered(t, f, Options{Include: []string{"tap*"}, Exclude: []string{"*1"}})
	var shown []string
	for name := range got {
		if rest, ok := strings.CutPrefix(name, "bascule_port_moves_total "); ok {
			shown = append(shown, rest)
		}
	}
	if len(shown) != 1 || shown[0] != "bridge=br0 port=tap0" {
		t.Errorf("shown: %v", shown)
	}
	if err := (Options{Include: []string{"["}}).Check(); err == nil {
		t.Error("[ is taken for a pattern")
	}
}

// A silent agent has ended.
type silent struct{}

func (silent) Status(context.Context) (agent.Status, error)  { return agent.Status{}, errors.New("no") }
func (silent) Places(context.Context) ([]agent.Place, error) { return nil, errors.New("no") }

// TestScrapeFailed: a scrape reports that a value cannot be read, and has the other values.
func TestScrapeFailed(t *testing.T) {
	silent := newGatherer(silent{}, Options{}, slog.New(slog.DiscardHandler))
	registry := prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		list, _, err := silent.gather()
		return list, err
	})
	if n, err := testutil.GatherAndCount(registry, "bascule_scrape_failed"); err != nil || n != 2 {
		t.Errorf("%d parts are said to have failed, %v", n, err)
	}
}

// A stuck agent answers only when the test lets it.
type stuck struct{ goOn chan struct{} }

func (s stuck) Status(context.Context) (agent.Status, error) {
	<-s.goOn
	return agent.Status{Version: "1"}, nil
}
func (s stuck) Places(context.Context) ([]agent.Place, error) { return nil, nil }

// TestStuck: a scrape that cannot be answered ends, and so do the scrapes that wait for it.
// Later scrapes are answered.
func TestStuck(t *testing.T) {
	of := stuck{make(chan struct{})}
	g := newGatherer(of, Options{}, slog.New(slog.DiscardHandler))
	g.patience = time.Millisecond
	for range 3 {
		if list, _, err := g.gather(); err == nil || len(list) > 0 {
			t.Errorf("%v, %v", list, err)
		}
	}
	close(of.goOn)
	g.patience = time.Minute
	if list, done, err := g.gather(); err != nil || len(list) == 0 {
		t.Errorf("%v, %v", list, err)
	} else {
		done()
	}
}

// TestSameMemory: a scrape has no values of the former one, whose memory it uses.
func TestSameMemory(t *testing.T) {
	text := func(list []*dto.MetricFamily) string {
		var b strings.Builder
		for _, f := range list {
			if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
				t.Fatal(err)
			}
		}
		return b.String()
	}
	many := &fake{}
	for i := range 600 {
		many.ports = append(many.ports, bridge.Port{Bridge: "br0", Name: fmt.Sprint("many", i), State: "gone", MTU: 9000, Stats: bridge.Stats{RxBytes: 9}})
	}
	few := &fake{ports: []bridge.Port{{Bridge: "br0", Name: "few", State: "forwarding"}}}
	s := &scrape{families: make([]dto.MetricFamily, len(kinds))}
	var want, again string
	for _, f := range []*fake{few, many, few, many} {
		s.begin(Options{})
		s.bridges(f)
		switch got := text(s.filled()); {
		case f == few && want == "":
			want = got
		case f == few && got != want:
			t.Errorf("%s\nwant\n%s", got, want)
		case f == many && again == "":
			again = got
		case f == many && got != again:
			t.Errorf("%s\nwant\n%s", got, again)
		}
	}
	if strings.Count(again, "many599\"") < 10 || strings.Contains(want, "many") {
		t.Error("the test is blind")
	}
}

// TestWhole: an answer is complete before any of it is sent, with its status and length.
func TestWhole(t *testing.T) {
	for range 2 { // the second answer uses the memory of the first
		w := httptest.NewRecorder()
		whole(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "text/x")
			w.WriteHeader(http.StatusServiceUnavailable)
			fmt.Fprint(w, "some", "thing")
		})).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if w.Code != 503 || w.Body.String() != "something" || w.Header().Get("Content-Length") != "9" || w.Header().Get("Content-Type") != "text/x" {
			t.Errorf("%d %q %v", w.Code, w.Body, w.Header())
		}
	}
}
