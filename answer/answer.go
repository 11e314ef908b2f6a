// SPDX-License-Identifier: BSD-2-Clause

// Package answer defines the data about a switch for other programs: the commands' output with -j,
// and the answers of the agent's API. Each object has one form. Fields have the names of ip(8) and
// bridge(8) with -j, if these show the object: "ifname" is its own name, and "master" the bridge that
// it belongs to.
package answer

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"bascule/bridge"
	"bascule/config"
	"bascule/frame"
	"bascule/history"
	"bascule/pflog"
	"bascule/rates"
	"bascule/rule"
)

// List makes a list of answers, which is empty for nil.
func List[T, A any](items []T, of func(T) A) []A {
	list := make([]A, len(items))
	for i, item := range items {
		list[i] = of(item)
	}
	return list
}

// Version is the version of the program, with its sources.
type Version struct {
	Version  string `json:"version"`
	Commit   string `json:"commit,omitempty"` // git hash; omitted if the build did not have it
	Date     string `json:"date,omitempty"`   // of the commit, RFC 3339
	Go       string `json:"go"`
	Platform string `json:"platform"` // such as linux/amd64
	Layout   int    `json:"layout"`   // of the bridges' data in the kernel
}

// Finding is a fact about the kernel, the machine or a device that matters to bridges.
type Finding struct {
	About  string `json:"about"` // kernel, machine, network, device, port or agent
	Name   string `json:"name"`
	State  string `json:"state"` // yes, no, note or unknown
	Needed bool   `json:"needed"`
	Text   string `json:"text"`
}

// FindingOf returns the answer for a finding.
func FindingOf(f bridge.Finding) Finding {
	return Finding{About: f.About, Name: f.Name, State: string(f.State), Needed: f.Needed, Text: f.Text}
}

// Reason is a word for the fate of a frame, with its meaning.
type Reason struct {
	Name string `json:"name"`
	Text string `json:"text"`
	See  string `json:"see,omitempty"` // the command that shows or changes the cause
}

// OfReason returns the answer for a reason.
func OfReason(r bridge.Reason) Reason {
	a := Reason{Name: r.Name, Text: r.Text}
	if r.See != "" {
		a.See = "bascule " + r.See
	}
	return a
}

// Removed is a deleted bridge.
type Removed struct {
	Name string `json:"ifname"`
}

// Flushed is the number of entries removed from a bridge.
type Flushed struct {
	Bridge  string `json:"master"`
	Removed int    `json:"removed"`
	Spared  int    `json:"spared,omitempty"` // matching static and sticky entries, which stay
}

// Bridge is a bridge with its settings.
type Bridge struct {
	Name      string              `json:"ifname"`
	Address   string              `json:"address"`
	Config    bridge.BridgeConfig `json:"-"`
	FDBCount  uint32              `json:"fdb_count" after:"fdb_max"`
	AgentRuns bool                `json:"agent_runs"`
	Ports     []string            `json:"ports"`
}

// OfBridge returns the answer for a bridge.
func OfBridge(b bridge.Info) Bridge {
	return Bridge{
		Name: b.Name, Address: b.Address.String(), Config: b.Config, FDBCount: b.FDBCount,
		AgentRuns: b.AgentRuns, Ports: append([]string{}, b.Ports...),
	}
}

// Port is a port with its settings, and with its counters on request.
type Port struct {
	Index       int               `json:"ifindex"`
	Name        string            `json:"ifname"`
	Flags       []string          `json:"flags"`
	MTU         int               `json:"mtu"`
	Address     string            `json:"address,omitempty"` // of the device, as in ip(8)
	Bridge      string            `json:"master"`
	Type        string            `json:"type"`
	Peer        string            `json:"peer,omitempty"`
	Link        string            `json:"link,omitempty"`        // the other end of a veth, if it is local
	Description string            `json:"description,omitempty"` // of the device: its alias in ip-link(8)
	Hook        string            `json:"hook"`
	State       string            `json:"state"`
	TakenBy     string            `json:"taken_by,omitempty"`   // "Linux bridge lxbr0"
	Findings    []PortFinding     `json:"findings,omitempty"`   // settings at the port's device without effect
	NoCarrier   string            `json:"no_carrier,omitempty"` // of a host port: "agent" or "agent-ended"
	Way         string            `json:"way,omitempty"`        // "straight", "xdp" or "device"
	Egress      []string          `json:"egress,omitempty"`     // "qdisc", "tcx", "netfilter", "end-xdp", "unknown"
	Owner       *bridge.Owner     `json:"owner,omitempty"`      // id and user of a plugged port
	Config      bridge.PortConfig `json:"-"`
	FDBCount    uint32            `json:"fdb_count" after:"fdb_max"`
	*PortStats                    // on request
}

// PortFinding is a setting at a port's device that has no effect there, or another one than without
// the switch.
type PortFinding struct {
	Kind string `json:"kind"` // "ingress-filter", "egress-rules", "device-above", "port-below", "address" or "mtu"
	What string `json:"what"` // the object, such as "macvlan mv0"
	Text string `json:"text"` // the consequence, and the remedy
}

// OfPortFinding returns the answer for a finding.
func OfPortFinding(f bridge.PortFinding) PortFinding { return PortFinding{f.Kind, f.What, f.Text} }

// PortStats are the counters of a port.
type PortStats struct {
	Stats   BothWays          `json:"stats64"`
	Learned uint64            `json:"learned"`
	Moves   uint64            `json:"moves"`
	Refused uint64            `json:"refused"`
	Drops   map[string]uint64 `json:"drops"`            // frames by reason
	Routed  map[string]uint64 `json:"routed,omitempty"` // frames for a routed host port, by router and reason
}

// BothWays are the counters of a port's two directions.
type BothWays struct {
	Rx Traffic `json:"rx"`
	Tx Traffic `json:"tx"`
}

// Traffic is a number of bytes and frames.
type Traffic struct {
	Bytes  uint64 `json:"bytes"`
	Frames uint64 `json:"packets"`
}

// OfStats returns the answer for the counters of a port.
func OfStats(s bridge.Stats) *PortStats {
	a := &PortStats{
		BothWays{Traffic{s.RxBytes, s.RxFrames}, Traffic{s.TxBytes, s.TxFrames}},
		s.Learned, s.Moves, s.Refused, map[string]uint64{}, s.Routed,
	}
	maps.Copy(a.Drops, s.Drops)
	return a
}

// OfPort returns the answer for a port, without its counters.
func OfPort(port bridge.Port) Port {
	return Port{
		Index: port.Index, Name: port.Name, Flags: append([]string{}, port.Flags...), MTU: port.MTU, Address: port.MAC.String(),
		Bridge: port.Bridge, Type: port.Type, Peer: port.Peer, Link: port.Link, Description: port.Description, Hook: port.Hook, State: port.State,
		TakenBy: port.TakenBy, Findings: findingsOf(port), NoCarrier: port.NoCarrier, Way: port.Way, Egress: port.Egress, Owner: port.Owner,
		Config: port.Config, FDBCount: port.FDBCount,
	}
}

// findingsOf returns nil if there are none, so that the answer omits them.
func findingsOf(port bridge.Port) []PortFinding {
	if len(port.Findings) == 0 {
		return nil
	}
	return List(port.Findings, OfPortFinding)
}

// OfCountedPort returns the answer for a port with its counters.
func OfCountedPort(port bridge.Port) Port {
	a := OfPort(port)
	a.PortStats = OfStats(port.Stats)
	return a
}

// Totals are only the counters of a port.
type Totals struct {
	Name   string `json:"ifname"`
	Bridge string `json:"master"`
	*PortStats
}

// OfTotals returns the answer for only a port's counters.
func OfTotals(port bridge.Port) Totals {
	return Totals{port.Name, port.Bridge, OfStats(port.Stats)}
}

// Rates are the rates of a port. Rates and Drops are null if there are none yet.
type Rates struct {
	Time    time.Time          `json:"time"`
	Elapsed float64            `json:"elapsed"` // seconds
	Name    string             `json:"ifname"`
	Bridge  string             `json:"master"`
	State   string             `json:"state"`
	Rates   *BothRates         `json:"rates"`
	Drops   map[string]float64 `json:"drops"` // frames per second, by reason
}

// BothRates are the rates of a port's two directions.
type BothRates struct {
	Rx Rate `json:"rx"`
	Tx Rate `json:"tx"`
}

// Rate is bits and frames per second.
type Rate struct {
	Bits   float64 `json:"bits"`
	Frames float64 `json:"packets"`
}

// OfRates returns the answer for the rates of a port over the time elapsed until at.
func OfRates(port rates.Port, at time.Time, elapsed time.Duration) Rates {
	a := Rates{Time: at, Elapsed: elapsed.Seconds(), Name: port.Name, Bridge: port.Bridge, State: port.State, Drops: port.Drops}
	if port.Known {
		a.Rates = &BothRates{Rate{port.RxBits, port.RxFrames}, Rate{port.TxBits, port.TxFrames}}
	}
	return a
}

// Entry is an FDB entry.
type Entry struct {
	MAC     string   `json:"mac"`
	VLAN    uint16   `json:"vlan,omitempty"`
	Port    string   `json:"ifname"`
	Bridge  string   `json:"master"`
	Flags   []string `json:"flags"`             // "sticky" or "locked"
	State   string   `json:"state"`             // "static" or ""
	Updated *int     `json:"updated,omitempty"` // seconds since the last frame
}

// OfEntry returns the answer for an entry of a bridge.
func OfEntry(of string, e bridge.Entry) Entry {
	a := Entry{MAC: e.MAC.String(), VLAN: e.VLAN, Port: e.Port, Bridge: of, Flags: []string{}}
	if e.Sticky {
		a.Flags = []string{"sticky"}
	}
	if e.Locked {
		a.Flags = []string{"locked"}
	}
	if e.Static {
		a.State = "static"
	}
	if !e.Static && !e.Sticky {
		seconds := int(e.Updated / time.Second)
		a.Updated = &seconds
	}
	return a
}

// Rule is a rule of a port: as text, and in parts.
type Rule struct {
	Bridge    string `json:"master"`
	Port      string `json:"ifname"`
	Number    int    `json:"number"` // among the port's rules
	Rule      string `json:"rule"`
	Action    string `json:"action"`
	Direction string `json:"direction"` // "in", "out" or "in/out"
	Src       string `json:"src,omitempty"`
	Dst       string `json:"dst,omitempty"`
	Tag       string `json:"tag,omitempty"`
	ARP       string `json:"protocol,omitempty"` // "arp" or "rarp"
	Op        string `json:"op,omitempty"`       // "request" or "reply"
	SHA       string `json:"sha,omitempty"`
	SPA       string `json:"spa,omitempty"`
	THA       string `json:"tha,omitempty"`
	TPA       string `json:"tpa,omitempty"`
	*Traffic         // of matching frames, on request
}

// OfRule returns the answer for a rule, without its counters.
func OfRule(pr bridge.PortRule) Rule {
	mac := func(m *rule.MAC) string {
		if m == nil {
			return ""
		}
		return m.String()
	}
	ip := func(a netip.Addr) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	r := pr.Rule
	return Rule{
		Bridge: pr.Bridge, Port: r.Port, Number: pr.Number, Rule: r.String(),
		Action: r.Action.String(), Direction: r.Direction.String(),
		Src: mac(r.Src), Dst: mac(r.Dst), Tag: r.Tag,
		ARP: map[rule.ARP]string{rule.OnlyARP: "arp", rule.OnlyRARP: "rarp"}[r.ARP],
		Op:  map[rule.Op]string{rule.Request: "request", rule.Reply: "reply"}[r.Op],
		SHA: mac(r.SHA), SPA: ip(r.SPA), THA: mac(r.THA), TPA: ip(r.TPA),
	}
}

// OfCountedRule returns the answer for a rule with its counters.
func OfCountedRule(pr bridge.PortRule) Rule {
	a := OfRule(pr)
	a.Traffic = &Traffic{Bytes: pr.Bytes, Frames: pr.Frames}
	return a
}

// Span is a span port.
type Span struct {
	Name      string   `json:"ifname"`
	Bridge    string   `json:"master"`
	Direction string   `json:"direction"` // "in", "out" or "both"
	State     string   `json:"state"`     // like a port's: "gone" if the device disappeared
	All       bool     `json:"all"`       // every port's frames
	Ports     []string `json:"ports"`
	VLANs     []uint16 `json:"vlans"`
}

// OfSpan returns the answer for a span port.
func OfSpan(s bridge.Span) Span {
	return Span{s.Port, s.Bridge, s.Direction, s.State, s.All, append([]string{}, s.Ports...), append([]uint16{}, s.VLANs...)}
}

// VLANs are the VLANs of a port, or of a bridge: its private ones, or the ones with counters.
type VLANs struct {
	Name   string `json:"ifname"`
	Bridge string `json:"master,omitempty"` // of a port
	VLANs  []VLAN `json:"vlans"`
}

// VLAN is a VLAN, or a range of VLANs with the same settings.
type VLAN struct {
	VLAN       uint16   `json:"vlan"`
	End        uint16   `json:"vlanEnd,omitempty"` // the last of a range
	Flags      []string `json:"flags,omitempty"`
	Kind       string   `json:"type,omitempty"`    // of a private VLAN
	Primary    uint16   `json:"primary,omitempty"` // of a secondary VLAN
	*VLANStats          // of a bridge with counters
}

// VLANStats are the counters of a VLAN.
type VLANStats struct {
	RxBytes  uint64 `json:"rx_bytes"`
	RxFrames uint64 `json:"rx_packets"`
	TxBytes  uint64 `json:"tx_bytes"`
	TxFrames uint64 `json:"tx_packets"`
}

// VLANFlags returns the flags of a port's VLAN in the words of bridge(8).
func VLANFlags(o bridge.VLANOptions) (flags []string) {
	if o.PVID {
		flags = append(flags, "PVID")
	}
	if o.Untagged {
		flags = append(flags, "Egress Untagged")
	}
	return flags
}

// OfPortVLANs returns the answer for the VLANs of a port.
func OfPortVLANs(port bridge.PortVLANs) VLANs {
	a := VLANs{Name: port.Port, Bridge: port.Bridge, VLANs: []VLAN{}}
	for _, r := range port.Ranges {
		v := VLAN{VLAN: r.First, Flags: VLANFlags(r.VLANOptions)}
		if r.Last != r.First {
			v.End = r.Last
		}
		a.VLANs = append(a.VLANs, v)
	}
	return a
}

// OfVLANTable returns one answer for each bridge; table is grouped by bridge.
func OfVLANTable(table []bridge.VLAN, stats bool) []VLANs {
	list := []VLANs{}
	for _, v := range table {
		if len(list) == 0 || list[len(list)-1].Name != v.Bridge {
			list = append(list, VLANs{Name: v.Bridge})
		}
		a := VLAN{VLAN: v.ID, Kind: v.Kind, Primary: v.Primary}
		if stats {
			a.VLANStats = &VLANStats{v.RxBytes, v.RxFrames, v.TxBytes, v.TxFrames}
		}
		list[len(list)-1].VLANs = append(list[len(list)-1].VLANs, a)
	}
	return list
}

// OfPortVLANTable returns the answers for the VLANs of ports, and for the private VLANs of bridges.
func OfPortVLANTable(ports []bridge.PortVLANs, table []bridge.VLAN) []VLANs {
	private := slices.DeleteFunc(slices.Clone(table), func(v bridge.VLAN) bool { return v.Kind == "" })
	return append(List(ports, OfPortVLANs), OfVLANTable(private, false)...)
}

// Event is something that happened on a bridge.
type Event struct {
	Time   time.Time `json:"time"`
	Kind   string    `json:"event"`
	Bridge string    `json:"master"`
	Port   string    `json:"ifname,omitempty"`
	MAC    string    `json:"mac,omitempty"`
	VLAN   uint16    `json:"vlan,omitempty"`
	From   string    `json:"from,omitempty"`
	Reason string    `json:"reason,omitempty"`
	Count  uint64    `json:"count,omitempty"`
	For    float64   `json:"seconds,omitempty"`
}

// OfEvent returns the answer for an event.
func OfEvent(e bridge.Event) Event {
	return Event{e.Time, e.Kind, e.Bridge, e.Port, e.MAC.String(), e.VLAN, e.From, e.Reason, e.Count, e.For.Seconds()}
}

// Frame is a captured frame.
type Frame struct {
	Time      time.Time `json:"time"`
	Bridge    string    `json:"master"`
	Port      string    `json:"ifname,omitempty"`
	Direction string    `json:"direction"`
	Reason    string    `json:"reason,omitempty"` // of a drop
	VLAN      uint16    `json:"vlan,omitempty"`
	Length    int       `json:"length"` // bytes
	Summary   string    `json:"summary"`
}

// OfFrame returns the answer for a captured frame of a bridge.
func OfFrame(of string, f frame.Seen) Frame {
	return Frame{f.Time, of, f.Port, f.Direction.String(), f.Reason, f.VLAN, f.Length, f.Summary()}
}

// Trace is every step of the decision on a frame.
type Trace struct {
	Bridge  string   `json:"master"`
	Port    string   `json:"ifname"` // the ingress port
	Steps   []Step   `json:"steps"`
	Verdict string   `json:"verdict"`
	Out     []string `json:"out"` // the egress ports
}

// Step is a step of a trace.
type Step struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// OfTrace returns the answer for the trace of a frame that enters a bridge by a port.
func OfTrace(of, port string, t bridge.Trace) Trace {
	a := Trace{of, port, []Step{}, t.Verdict, append([]string{}, t.Out...)}
	for _, s := range t.Steps {
		a.Steps = append(a.Steps, Step(s))
	}
	return a
}

// Action is a line of a plan.
type Action struct {
	Netns  string `json:"netns,omitempty"`
	Op     string `json:"op"` // "+", "-" or "~"
	Bridge string `json:"master"`
	Object string `json:"object"`
	Detail string `json:"detail,omitempty"`
}

// OfAction returns the answer for a line of a plan for a network namespace.
func OfAction(netns string, a config.Action) Action {
	return Action{netns, string(a.Op), a.Bridge, a.Object, a.Detail}
}

// State is a former state of bridges, a change that waits for confirmation, or the return to the next
// state in the list, without a number.
type State struct {
	Back    *int       `json:"back,omitempty"` // number of states back, for 'apply --back'
	Time    time.Time  `json:"time"`
	Who     string     `json:"who"`
	Bridges []string   `json:"bridges"`
	What    string     `json:"what"`
	Change  string     `json:"change,omitempty"` // the first action, and the number of others
	Until   *time.Time `json:"until,omitempty"`  // when it is reverted without a confirmation
}

// OfStates returns the answers for a waiting change, which may be nil, and for the stored states.
func OfStates(waits *history.Pending, states []history.State) []State {
	list := []State{}
	if waits != nil {
		list = append(list, State{Time: waits.Time, Who: waits.Who, Bridges: waits.Bridges, What: waits.What, Change: waits.Change, Until: &waits.Until})
	}
	row := func(back *int, st history.State) {
		list = append(list, State{Back: back, Time: st.Time, Who: st.Who, Bridges: List(st.Bridges, func(name string) string { return name }), What: st.What, Change: st.Change})
	}
	for i, st := range states {
		for _, again := range st.Again {
			row(nil, again)
		}
		row(&i, st)
	}
	return list
}

// Logged is a packet that a pf rule has logged.
type Logged struct {
	Time      time.Time `json:"time"`
	Port      string    `json:"ifname"`
	Log       string    `json:"log"` // "pflog0"
	Direction string    `json:"direction"`
	Action    string    `json:"action"`
	Reason    string    `json:"reason"`
	Rule      *int      `json:"rule,omitempty"`
	Anchor    string    `json:"anchor,omitempty"`
	Subrule   *int      `json:"subrule,omitempty"`
	ID        uint32    `json:"ridentifier,omitempty"`
	Length    int       `json:"length"` // bytes
	Summary   string    `json:"summary"`
}

// Names in the output format of tcpdump(8).
var (
	logActions = map[pflog.Action]string{pflog.Pass: "pass", pflog.Block: "block", pflog.Match: "match"}
	logReasons = map[pflog.Reason]string{
		pflog.ByRule: "match", pflog.Fragment: "fragment", pflog.Short: "short", pflog.Timestamp: "bad-timestamp", pflog.Options: "ip-option",
		pflog.StateMismatch: "state-mismatch", pflog.StateLimit: "state-limit", pflog.Synproxy: "synproxy", pflog.Translate: "translate",
	}
)

// OfLogged returns the answer for a logged packet.
func OfLogged(l bridge.PFLogged) Logged {
	a := Logged{
		Time: l.Time, Port: l.Interface, Log: fmt.Sprintf("pflog%d", l.Number), Direction: "in",
		Action: logActions[l.Action], Reason: logReasons[l.Reason], Anchor: l.Ruleset, ID: l.Identifier, Length: l.Length, Summary: frame.Packet(l.Data),
	}
	if l.Out {
		a.Direction = "out"
	}
	if l.Rule >= 0 {
		a.Rule = &l.Rule
	}
	if l.Subrule >= 0 {
		a.Subrule = &l.Subrule
	}
	return a
}
