// SPDX-License-Identifier: BSD-2-Clause

package web

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bascule/answer"
	"bascule/bridge"
)

// A fakeSwitch answers the requests of the page to the API, for an invented switch with
// any number of ports and addresses.
type fakeSwitch struct {
	mu       sync.Mutex
	bridges  []answer.Bridge
	ports    []answer.Port
	vlans    []answer.VLANs
	fdb      []answer.Entry
	states   []answer.PFState
	pf       []answer.PFInfo
	trees    map[string]any // by bridge
	writable bool
	asked    []string            // requests for changes and actions, with their bodies
	viewers  map[chan any]string // by the stream that each one follows
	period   time.Duration       // of samples
	ticks    int
	traffic  func(tick int, p answer.Port) (rx, tx answer.Rate, drops map[string]float64)
	refuse   int           // with this status, 0 for no refusal
	past     time.Duration // a viewer first gets samples of this time, as if it had watched for so long
	held     chan struct{} // answers wait until it is closed, nil for no wait
	waiting  atomic.Int32  // requests that are held
	token    string        // required token, "" for none
}

func newFake() *fakeSwitch {
	return &fakeSwitch{viewers: map[chan any]string{}, period: time.Second, trees: map[string]any{},
		bridges: []answer.Bridge{}, ports: []answer.Port{}, vlans: []answer.VLANs{}, fdb: []answer.Entry{}, states: []answer.PFState{}, pf: []answer.PFInfo{}}
}

func (f *fakeSwitch) bridge(name string, set func(*answer.Bridge)) {
	b := answer.Bridge{Name: name, Address: fmt.Sprintf("02:00:5e:00:00:%02x", len(f.bridges)+1), Config: bridge.Defaults(bridge.BridgeSettings), Ports: []string{}}
	b.Config.FDBMax = 131072
	if set != nil {
		set(&b)
	}
	f.bridges = append(f.bridges, b)
}

func (f *fakeSwitch) port(of, name string, set func(*answer.Port), vlans ...answer.VLAN) {
	p := answer.Port{
		Index: 10 + len(f.ports), Name: name, Flags: []string{"BROADCAST", "MULTICAST", "UP", "LOWER_UP"}, MTU: 1500, Bridge: of, Type: "netdev", Hook: "tcx",
		State: "forwarding", Config: bridge.PortDefaults(bridge.TypeNetdev),
		PortStats: &answer.PortStats{Drops: map[string]uint64{}},
	}
	if set != nil {
		set(&p)
	}
	f.ports = append(f.ports, p)
	f.vlans = append(f.vlans, answer.VLANs{Name: name, Bridge: of, VLANs: slices.Clip(vlans)})
}

// sample returns the rates of one period.
func (f *fakeSwitch) sample() []answer.Rates {
	f.ticks++
	list := []answer.Rates{}
	for i := range f.ports {
		p := &f.ports[i]
		r := answer.Rates{Time: time.Now(), Elapsed: f.period.Seconds(), Name: p.Name, Bridge: p.Bridge, State: p.State, Rates: &answer.BothRates{}, Drops: map[string]float64{}}
		if f.traffic != nil {
			r.Rates.Rx, r.Rates.Tx, r.Drops = f.traffic(f.ticks, *p)
		}
		s := *p.PortStats
		s.Drops = maps.Clone(s.Drops)
		for reason, n := range r.Drops {
			s.Drops[reason] += uint64(n)
		}
		s.Stats.Rx.Bytes += uint64(r.Rates.Rx.Bits / 8)
		s.Stats.Rx.Frames += uint64(r.Rates.Rx.Frames)
		s.Stats.Tx.Bytes += uint64(r.Rates.Tx.Bits / 8)
		s.Stats.Tx.Frames += uint64(r.Rates.Tx.Frames)
		p.PortStats = &s
		list = append(list, r)
	}
	return list
}

// Sends an event to all viewers of a stream.
func (f *fakeSwitch) tell(stream string, m any) {
	for v, of := range f.viewers {
		if of != stream {
			continue
		}
		select {
		case v <- m:
		default:
		}
	}
}

func (f *fakeSwitch) run(done <-chan struct{}) {
	tick := time.NewTicker(f.period)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
			f.mu.Lock()
			f.tell("rates", f.sample())
			f.mu.Unlock()
		}
	}
}

func (f *fakeSwitch) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.held != nil {
		f.waiting.Add(1)
		select {
		case <-f.held:
		case <-r.Context().Done():
			return
		}
	}
	path := strings.TrimPrefix(r.URL.Path, "/api/v1/")
	f.mu.Lock()
	if f.refuse == 0 && f.token != "" && r.Header.Get("Authorization") != "Bearer "+f.token {
		defer f.mu.Unlock()
		http.Error(w, "the token is missing or wrong", http.StatusUnauthorized)
		return
	}
	if f.refuse != 0 {
		defer f.mu.Unlock()
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(f.refuse)
		fmt.Fprintf(w, `{"status":%d,"title":"no","detail":"the token is missing or wrong"}`, f.refuse)
		return
	}
	if path == "rates" || path == "monitor" {
		f.mu.Unlock()
		f.stream(path, w, r)
		return
	}
	if path == "capture" {
		f.asked = append(f.asked, r.URL.RawQuery)
		f.mu.Unlock()
		w.Header().Set("Content-Type", "application/x-pcapng")
		w.Write([]byte("\x0a\x0d\x0d\x0a fake capture"))
		return
	}
	defer f.mu.Unlock()
	of := r.URL.Query().Get("bridge")
	var a any
	switch path {
	case "agent/status":
		bridges := []any{}
		for _, b := range f.bridges {
			bridges = append(bridges, map[string]any{"ifname": b.Name, "spanning_tree": f.trees[b.Name], "events": map[string]any{"counts": map[string]int{}}})
		}
		a = map[string]any{"pid": 1, "version": "0.9", "since": time.Now().Add(-3 * time.Hour), "files": []string{}, "applying": false, "applied": nil,
			"doors": []any{map[string]any{"what": "web", "address": "127.0.0.1:9811", "write": f.writable}}, "namespaces": []any{map[string]any{"netns": "", "cookie": 1, "bridges": bridges, "hotplug": nil}}}
	case "bridge/show":
		a = f.bridges
	case "port/show":
		a = f.ports
	case "vlan/show":
		a = f.vlans
	case "fdb/show":
		a = f.fdb
	case "help/reasons":
		a = reasons()
	case "stats":
		list := []answer.Totals{}
		for _, p := range f.ports {
			if p.Bridge == of && p.Name == r.URL.Query().Get("port") {
				list = append(list, answer.Totals{Name: p.Name, Bridge: p.Bridge, PortStats: p.PortStats})
			}
		}
		a = list
	case "pf/states":
		list := []answer.PFState{}
		for _, s := range f.states {
			if s.Bridge == of {
				list = append(list, s)
			}
		}
		a = list
	case "pf/info":
		info := answer.PFInfo{Bridge: of}
		for _, i := range f.pf {
			if i.Bridge == of {
				info = i
			}
		}
		a = info
	case "trace":
		f.asked = append(f.asked, r.URL.RawQuery)
		if r.URL.Query().Get("dst") == "bad" {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(422)
			fmt.Fprint(w, `{"title":"Unprocessable Entity","status":422,"detail":"--dst bad: not a MAC address; give six bytes such as 02:00:00:00:00:01"}`)
			return
		}
		a = []answer.Trace{{Bridge: "br0", Port: "veth0", Verdict: "dropped: vlan", Out: []string{}, Steps: []answer.Step{
			{Name: "port", Text: "it comes in by veth0"}, {Name: "frame", Text: "from 00:00:5e:00:53:01 to 02:00:00:00:00:02"}, {Name: "check", Text: "the port is not in the frame's VLAN"}}}}
	case "pf/kill-states":
		body, _ := io.ReadAll(r.Body)
		f.asked = append(f.asked, string(body))
		var what struct{ Bridge, ID, From, To string }
		json.Unmarshal(body, &what)
		before := len(f.states)
		f.states = slices.DeleteFunc(f.states, func(s answer.PFState) bool {
			return s.Bridge == what.Bridge && (s.ID == what.ID || s.Src == what.From || s.Dst == what.To)
		})
		a = []answer.Flushed{{Bridge: what.Bridge, Removed: before - len(f.states)}}
	default:
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(a)
}

func (f *fakeSwitch) stream(of string, w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	me := make(chan any, 64)
	f.mu.Lock()
	f.viewers[me] = of
	if of == "rates" {
		for back := f.past; back > 0; back -= 2 * time.Second {
			list := f.sample()
			for i := range list {
				list[i].Time = list[i].Time.Add(-back)
			}
			me <- list
		}
		me <- f.sample()
	}
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		delete(f.viewers, me)
		f.mu.Unlock()
	}()
	fmt.Fprint(w, ":\n\n")
	for {
		http.NewResponseController(w).Flush()
		select {
		case <-r.Context().Done():
			return
		case m := <-me:
			data, _ := json.Marshal(m)
			fmt.Fprintf(w, "data: %s\n\n", data)
		}
	}
}

// untagged returns a VLAN of an access port.
func untagged(id uint16) answer.VLAN {
	return answer.VLAN{VLAN: id, Flags: []string{"PVID", "Egress Untagged"}}
}

// treePort returns the state of a port in the spanning tree.
func treePort(number int, name, role, state string) map[string]any {
	return map[string]any{"ifname": name, "port": number, "role": role, "state": state, "cost": 2000, "up": true}
}

// office returns a switch with a few ports and some of every feature.
func office() *fakeSwitch {
	f := newFake()
	f.bridge("br0", func(b *answer.Bridge) {
		b.Config.VLANFiltering, b.Config.STP, b.FDBCount, b.AgentRuns = true, "rstp", 9, true
	})
	f.bridge("br1", func(b *answer.Bridge) { b.FDBCount = 3 })
	f.bridge("lab", nil)
	f.port("br0", "host0", func(p *answer.Port) { p.Type = "host" }, untagged(1))
	f.port("br0", "eth1", nil, untagged(1), answer.VLAN{VLAN: 10}, answer.VLAN{VLAN: 20, End: 30})
	f.port("br0", "eth2", func(p *answer.Port) { p.State = "discarding" }, untagged(1), answer.VLAN{VLAN: 10}, answer.VLAN{VLAN: 20, End: 30})
	f.port("br0", "veth0", func(p *answer.Port) { p.FDBCount = 2 }, untagged(10))
	f.port("br0", "veth1", nil, untagged(10))
	f.port("br0", "veth2", nil, untagged(20))
	f.port("br0", "tap0", func(p *answer.Port) { p.Config.Protected, p.Config.FDBMax, p.FDBCount = bridge.IsolatedDomain, 8, 1 }, untagged(20))
	f.port("br0", "tap1", func(p *answer.Port) { p.State, p.Flags = "disabled", []string{"BROADCAST"} }, untagged(20))
	f.port("br0", "tap2", func(p *answer.Port) { p.State = "gone" }, untagged(30))
	f.port("br0", "mon0", func(p *answer.Port) { p.Type = "span" })
	f.port("br0", "up", func(p *answer.Port) { p.Type, p.Peer, p.Hook, p.Index = "patch", "br1/down", "", 0 }, untagged(10))
	f.port("br1", "down", func(p *answer.Port) { p.Type, p.Peer, p.Hook, p.Index = "patch", "br0/up", "", 0 })
	f.port("br1", "vnet-web", func(p *answer.Port) { p.FDBCount = 1 })
	f.port("br1", "vnet-db", func(p *answer.Port) { p.State = "blocked"; p.FDBCount = 1 })
	f.trees["br0"] = map[string]any{"version": "rstp", "bridge": "32768.02:00:5e:00:00:01", "root": "4096.02:00:5e:00:99:01", "root_port": 2, "root_cost": 2000,
		"topology_changes": 4, "since_change": 812, "ports": []any{treePort(1, "host0", "designated", "forwarding"), treePort(2, "eth1", "root", "forwarding"), treePort(3, "eth2", "alternate", "discarding"), treePort(4, "veth0", "designated", "forwarding"), treePort(5, "veth1", "designated", "forwarding")}}
	seen := 3
	for i := range 9 {
		e := answer.Entry{MAC: fmt.Sprintf("02:00:00:00:00:%02x", i+1), VLAN: 10, Port: []string{"veth0", "veth1", "eth1"}[i%3], Bridge: "br0", Flags: []string{}, Updated: &seen}
		if i == 8 {
			e.State, e.Updated = "static", nil
		}
		f.fdb = append(f.fdb, e)
	}
	rule := 0
	for i := range 6 {
		f.states = append(f.states, answer.PFState{Bridge: "br0", ID: fmt.Sprintf("%016x", i+1), Protocol: "tcp", Src: fmt.Sprintf("192.0.2.%d", 1+i%3), SrcPort: uint16(40000 + i), Dst: "198.51.100.7", DstPort: 443,
			SrcState: "ESTABLISHED", DstState: "ESTABLISHED", In: "veth0", Out: "eth1", Age: 61, Expires: 86321, Packets: [2]uint64{12, 9}, Bytes: [2]uint64{1234, 98765}, Rule: &rule})
	}
	f.states = append(f.states, answer.PFState{Bridge: "br0", ID: "00000000000000ff", Protocol: "udp", Src: "2001:db8::1", SrcPort: 5353, Dst: "2001:db8::53", DstPort: 53, SrcState: "MULTIPLE", DstState: "SINGLE", In: "veth1", Out: "eth1", Age: 3, Expires: 27, Bytes: [2]uint64{80, 140}, Rule: &rule})
	f.pf = []answer.PFInfo{{Bridge: "br0", Enabled: true, States: 7}}
	f.traffic = func(tick int, p answer.Port) (rx, tx answer.Rate, drops map[string]float64) {
		wave := float64(tick%20+5) / 25
		switch p.Name {
		case "eth1":
			return answer.Rate{Bits: 412e6 * wave, Frames: 41000 * wave}, answer.Rate{Bits: 31e6 * wave, Frames: 20000 * wave}, nil
		case "veth0", "vnet-web":
			return answer.Rate{Bits: 31e6 * wave, Frames: 20000 * wave}, answer.Rate{Bits: 412e6 * wave, Frames: 41000 * wave}, nil
		case "up", "down":
			return answer.Rate{Bits: 2.2e6 * wave, Frames: 310}, answer.Rate{Bits: 1.4e6 * wave, Frames: 200}, nil
		case "tap0":
			return answer.Rate{Bits: 84e3, Frames: 90}, answer.Rate{Bits: 12e3, Frames: 11}, map[string]float64{"pf": 12 * wave, "protected": 3}
		case "eth2":
			return answer.Rate{Bits: 6e3, Frames: 4}, answer.Rate{}, map[string]float64{"stp": 4}
		}
		return
	}
	return f
}

// rack returns a switch with many ports and addresses.
func rack(ports, addresses int) *fakeSwitch {
	f := newFake()
	f.bridge("br0", func(b *answer.Bridge) { b.Config.VLANFiltering, b.FDBCount = true, uint32(addresses) })
	for i := range ports {
		f.port("br0", fmt.Sprintf("veth%d", i), func(p *answer.Port) {
			if i%41 == 7 {
				p.State, p.Flags = "disabled", []string{"BROADCAST"}
			}
			if i%97 == 33 {
				p.State = "blocked"
			}
			p.FDBCount = uint32(addresses / ports)
		}, untagged(uint16(10*(1+i%12))))
	}
	for i := range addresses {
		seen := i % 300
		f.fdb = append(f.fdb, answer.Entry{MAC: fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", i%7, i>>16, i>>8&255, i&255), VLAN: uint16(10 * (1 + i%12)), Port: fmt.Sprintf("veth%d", i%ports), Bridge: "br0", Flags: []string{}, Updated: &seen})
	}
	f.traffic = func(tick int, p answer.Port) (rx, tx answer.Rate, drops map[string]float64) {
		n := float64((p.Index*7919+tick*31)%1000) + 1
		if p.Index%23 == 0 {
			drops = map[string]float64{"storm-bcast": n}
		}
		return answer.Rate{Bits: n * n * 900, Frames: n * 40}, answer.Rate{Bits: n * 40000, Frames: n * 22}, drops
	}
	return f
}

func reasons() (list []map[string]string) {
	for _, r := range bridge.Reasons {
		list = append(list, map[string]string{"name": r.Name, "text": r.Text, "see": r.See})
	}
	return list
}
