// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"bascule/bridge"
)

// A hostFile reads a file in the format of hostname.if(5). Its lines have words of ifconfig(8) for
// bridge(4) or veb(4), depending on the name of the file.
type hostFile struct {
	*faults
	notes  []Error
	noted  int // including the ones left out
	kind   ifKind
	bridge Bridge
	given  map[string]givenSetting
	ports  []*hostPort
	byName map[string]*hostPort
	link   [3]word // link0 to link2; an unset one has no text
	vlan   word    // the first word about VLANs
	proto  string  // of the spanning tree
	state  word    // the last up or down

	own Port // settings of the host port's own interface
}

// ifKind is a set of interface kinds.
type ifKind uint8

const (
	ifBridge ifKind = 1 << iota
	ifVEB
	ifTPMR
	ifHost // vport(4) and vether(4): the host's interface on a bridge

	hasRules  = ifBridge | ifVEB
	anyBridge = ifBridge | ifVEB | ifTPMR
	anyKind   = anyBridge | ifHost
)

// kinds lists OpenBSD's interfaces that are supported here, by the beginnings of their names.
var kinds = []struct {
	prefix string
	kind   ifKind
}{{"bridge", ifBridge}, {"veb", ifVEB}, {"tpmr", ifTPMR}, {"vport", ifHost}, {"vether", ifHost}}

// kindOf returns the kind of interface that a hostname.if(5) file configures, 0 if it is neither a
// bridge nor a host port.
func kindOf(path string) (name string, kind ifKind) {
	name = strings.TrimPrefix(filepath.Base(path), hostnamePrefix)
	for _, k := range kinds {
		if unit, ok := strings.CutPrefix(name, k.prefix); ok && unit != "" && strings.Trim(unit, "0123456789") == "" {
			return name, k.kind
		}
	}
	return name, 0
}

// saysPF reports whether a file belongs to a kind of interface whose words switch pf on; without
// these words OpenBSD does not run pf on it.
func saysPF(path string) bool {
	_, kind := kindOf(path)
	return kind == ifVEB && strings.HasPrefix(filepath.Base(path), hostnamePrefix)
}

// String returns the name of a kind's manual page.
func (k ifKind) String() string {
	return map[ifKind]string{ifBridge: "bridge(4)", ifVEB: "veb(4)", ifTPMR: "tpmr(4)", ifHost: "vport(4)"}[k]
}

// otherInterface is the reason why a hostname.if(5) file is not read.
const otherInterface = "is neither a bridge nor a host port: these are called bridgeN, vebN, tpmrN, vportN and vetherN"

// A hostPort is a port in a hostFile.
type hostPort struct {
	Port
	given map[string]givenSetting
	vlans portVLANs // set if words gave any; otherwise pvid is the bridge's default
	stp   bool
	edge  automatic
	ptp   automatic
}

// automatic is a setting for which ifconfig has two words, such as edge and autoedge.
type automatic struct {
	on, auto bool
	at       Position // of a word that changed the setting
}

func (a automatic) value() string {
	switch {
	case a.on:
		return "on"
	case a.auto:
		return "auto"
	}
	return "off"
}

// A word is one word of a line, and its place.
type word struct {
	at   Position
	text string
}

// A hostWord describes how an ifconfig(8) word applies to a bridge.
type hostWord struct {
	names []string
	kind  ifKind
	args  int // the number of words that belong to it, or rest
	do    func(h *hostFile, w word, args []word)
}

// rest stands for all remaining words of a line.
const rest = -1

// parseHostname reads the text of a file whose name contains the bridge's name.
func parseHostname(bad *faults, text string) File {
	name, kind := kindOf(bad.path)
	h := &hostFile{faults: bad, kind: kind, given: map[string]givenSetting{}, proto: "rstp"}
	h.bridge = Bridge{Name: name, At: Position{bad.path, 1, 1}}
	if kind == 0 {
		bad.add(h.bridge.At, "%s %s; its host sets it up", name, otherInterface)
		return File{}
	}
	if err := bridge.CheckName("bridge", name); err != nil {
		bad.add(h.bridge.At, "the file's name contains a wrong interface name: %s", err)
	}
	for i, line := range strings.Split(text, "\n") {
		h.line(Position{bad.path, i + 1, 1}, line)
	}
	file := File{Path: bad.path}
	if kind == ifHost {
		file.host = h.hostInterface(name)
	} else {
		h.finish()
		file.Bridges = []Bridge{h.bridge}
	}
	if more := h.noted - len(h.notes); more > 0 {
		h.notes = append(h.notes, Error{Position{Path: bad.path}, fmt.Sprintf("%d more words that change nothing", more)})
	}
	file.Notes = h.notes
	return file
}

// note records that a word was read but has no effect.
func (h *hostFile) note(w word, format string, args ...any) {
	if h.noted++; h.noted <= maxKeptErrors {
		h.notes = append(h.notes, Error{w.at, w.text + ": " + fmt.Sprintf(format, args...)})
	}
}

// refuse records that a word is not supported.
func (h *hostFile) refuse(w word, format string, args ...any) {
	h.add(w.at, "%s: %s", w.text, fmt.Sprintf(format, args...))
}

// hostNames returns the words allowed for a kind of bridge.
func hostNames(kind ifKind) (names []string) {
	for _, k := range hostWords {
		if k.kind&kind != 0 {
			names = append(names, k.names...)
		}
	}
	switch {
	case kind == ifHost:
		names = append(names, "inet", "inet6")
	case kind&hasRules != 0:
		names = append(names, "rule")
	}
	return names
}

// line reads one line.
func (h *hostFile) line(at Position, text string) {
	if trimmed := strings.TrimLeft(text, " \t"); strings.HasPrefix(trimmed, "!") {
		at.Column += len(text) - len(trimmed)
		h.note(word{at, "!"}, "commands of the file are not run; run it yourself if it is needed")
		return
	}
	words := h.split(at, text)
	for len(words) > 0 {
		w := words[0]
		words = words[1:]
		switch {
		case w.text == "rule" && h.kind&hasRules == 0:
			h.refuse(w, "%s has no such word; leave it out", h.kind)
			return
		case w.text == "rule":
			h.rule(at, text, w)
			return
		case (w.text == "inet" || w.text == "inet6") && h.kind == ifHost:
			if words = h.inet(w, words); words == nil {
				return
			}
			continue
		}
		i := slices.IndexFunc(hostWords, func(k hostWord) bool { return slices.Contains(k.names, w.text) && k.kind&h.kind != 0 })
		if i < 0 { // the word may exist for another kind
			i = slices.IndexFunc(hostWords, func(k hostWord) bool { return slices.Contains(k.names, w.text) })
		}
		if i < 0 {
			h.refuse(word{w.at, strconv.Quote(w.text)}, "no word for %s; %s", map[bool]string{true: "a host port", false: "a bridge"}[h.kind == ifHost], h.offer(w.text, func() []string { return hostNames(h.kind) }))
			return // the following words may be its arguments
		}
		known := hostWords[i]
		switch {
		case known.kind&h.kind == 0:
			h.refuse(w, "%s has no such word; leave it out", h.kind)
			return
		case len(words) < known.args:
			h.refuse(w, "too few words follow, it takes %d; see ifconfig(8)", known.args)
			return
		case known.args == rest:
			known.do(h, w, nil)
			return
		}
		known.do(h, w, words[:known.args])
		words = words[known.args:]
	}
}

// split returns the words of a line up to its comment. The line is written for the shell; split
// understands only the shell's quotes.
func (h *hostFile) split(at Position, line string) (words []word) {
	var text strings.Builder
	start, quote := 0, rune(0)
	end := func() {
		if start > 0 {
			words = append(words, word{Position{at.Path, at.Line, start}, text.String()})
		}
		text.Reset()
		start = 0
	}
	column := 0
	for _, c := range line {
		column++
		switch {
		case quote != 0 && c == quote:
			quote = 0
			continue
		case quote != 0:
		case c == ' ' || c == '\t':
			end()
			continue
		case c == '#' && start == 0:
			return words
		case c == '\'' || c == '"':
			quote = c
			start = cmp.Or(start, column)
			continue
		}
		if quote != '\'' && strings.ContainsRune("$`\\", c) || quote == 0 && strings.ContainsRune(";|&<>()", c) {
			h.add(Position{at.Path, at.Line, column}, "%c has a meaning only to a shell, which does not read this file; write the text out", c)
			return nil
		}
		start = cmp.Or(start, column)
		text.WriteRune(c)
	}
	if quote != 0 {
		h.add(Position{at.Path, at.Line, max(start, 1)}, "a quote is not closed; close it")
		return nil
	}
	end()
	return words
}

// rule reads a rule: the rest of a line.
func (h *hostFile) rule(at Position, line string, w word) {
	runes := []rune(line)
	at.Column = w.at.Column
	r, ok := parseRule(h.faults, at, string(runes[at.Column-1:]), true)
	if !ok {
		return
	}
	r.At = at
	h.bridge.Rules = collect(h.faults, h.bridge.Rules, r)
}

// port returns the port of the name. If there is none, it adds an error and returns nil.
func (h *hostFile) port(w, name word) *hostPort {
	p := h.byName[name.text]
	if p == nil {
		h.refuse(w, "%q is not a port; write add %s before", name.text, name.text)
	}
	return p
}

// addPort adds a port, or a host port if OpenBSD would make the interface for the host.
func (h *hostFile) addPort(_ word, args []word) {
	name := args[0]
	if h.byName[name.text] != nil {
		return // like ifconfig
	}
	portName(h.faults, name.at, name.text)
	p := &hostPort{Port: Port{Name: name.text, At: name.at}, given: map[string]givenSetting{},
		edge: automatic{auto: true}, ptp: automatic{auto: true}}
	if strings.HasPrefix(name.text, "vport") || strings.HasPrefix(name.text, "vether") {
		p.Options.Type = bridge.TypeHost
	}
	h.ports = append(h.ports, p)
	if h.byName == nil {
		h.byName = map[string]*hostPort{}
	}
	h.byName[name.text] = p
}

// portVLANs returns the named port for the word w about its VLANs.
func (h *hostFile) portVLANs(w, name word) *hostPort {
	if h.vlan.text == "" {
		h.vlan = w
	}
	p := h.port(w, name)
	if p != nil && !p.vlans.given {
		p.vlans = portVLANs{given: true, pvid: defaultVLAN}
	}
	return p
}

// defaultVLAN stands for the bridge's default until the whole file has been read.
const defaultVLAN = 0xffff

// finish builds the bridge from the words that were read.
func (h *hostFile) finish() {
	h.links()
	switch h.state.text {
	case "":
		h.note(word{h.bridge.At, h.bridge.Name}, "the file does not set it up, but a bridge here always forwards")
	case "down":
		h.refuse(h.state, "a bridge here forwards as long as it exists; leave the word out, or the file")
	}
	stp := slices.ContainsFunc(h.ports, func(p *hostPort) bool { return p.stp })
	if stp {
		h.given["stp"] = givenSetting{at: h.bridge.At, value: h.proto}
	}
	h.bridge.Settings = changes(h.faults, bridge.BridgeSettings, h.given)
	pvid := uint16(1)
	if v, ok := h.given["default-pvid"]; ok {
		pvid, _ = parsePVID(v.value)
	}
	for _, p := range h.ports {
		if p.edge.at.Line > 0 {
			p.given["stp-edge"] = givenSetting{at: p.edge.at, value: p.edge.value()}
		}
		if p.ptp.at.Line > 0 {
			p.given["stp-p2p"] = givenSetting{at: p.ptp.at, value: p.ptp.value()}
		}
		if stp && !p.stp { // the port takes no part in the protocol, and always forwards
			p.given["bpdu-filter"] = givenSetting{at: p.At, value: "on"}
			p.given["stp-edge"] = givenSetting{at: p.At, value: "on"}
		}
		if p.vlans.pvid == defaultVLAN {
			p.vlans.pvid = pvid
		}
		// its frames leave without a tag, even if it is also listed as tagged
		p.vlans.tagged = slices.DeleteFunc(p.vlans.tagged, func(v uint16) bool { return v == p.vlans.pvid })
		p.Options.Changes = changes(h.faults, bridge.PortSettings, p.given)
		p.VLANs = p.vlans.ranges()
		h.bridge.Ports = append(h.bridge.Ports, p.Port)
	}
	slices.SortStableFunc(h.bridge.Private, func(a, b PrivateVLAN) int { return cmp.Compare(a.Primary, b.Primary) })
}

// links applies link0 to link2, whose meaning depends on the kind of bridge.
func (h *hostFile) links() {
	if h.kind == ifTPMR {
		h.relay()
		return
	}
	if h.kind == ifVEB {
		filtering := "on" // the default of veb(4)
		if h.link[0].text != "" {
			filtering = "off"
			if h.vlan.text != "" {
				h.refuse(h.vlan, "link0 lets all VLANs through; leave one of the two out")
			}
		}
		h.given["vlan-filtering"] = givenSetting{at: h.bridge.At, value: filtering}
		if h.link[2].text != "" {
			h.refuse(h.link[2], "it means nothing to veb(4); leave it out")
		}
		return
	}
	switch ip, other := h.link[0], h.link[1]; {
	case ip.text != "":
		for _, p := range h.ports {
			p.given["mcast-flood"] = givenSetting{at: ip.at, value: "off"}
		}
		if other.text == "" {
			h.note(ip, "multicast that is not IP is not flooded either, as with link1")
		}
	case other.text != "":
		h.refuse(other, "on bridge(4) it stops multicast that is not IP, for which there is no setting here; for pf use link1 of veb(4), in hostname.veb0")
	}
	if h.link[2].text != "" {
		h.refuse(h.link[2], "there is no IPsec on a bridge here; leave it out")
	}
}

// The reserved addresses 01:80:C2:00:00:0X that a two-port relay does not forward (IEEE
// 802.1Q-2022 table 8-3), by their last digit.
const relayReserved = 1<<0x1 | 1<<0x2 | 1<<0x4 | 1<<0xe

// relay applies the settings of tpmr(4): the two ports do not learn, and each one forwards everything to the other,
// including control frames.
func (h *hostFile) relay() {
	if len(h.ports) > 2 {
		h.add(h.ports[2].At, "a two-port relay has two ports, and %s is one more; leave it out, or call the file hostname.veb0", h.ports[2].Name)
	}
	for _, p := range h.ports {
		p.given["learn"] = givenSetting{at: p.At, value: "off"}
	}
	forward, filtering := 0xffff&^relayReserved, "on"
	if h.link[0].text != "" {
		forward = 0xffff
	}
	if h.link[2].text != "" { // otherwise it accepts no tagged frames
		filtering = "off"
	}
	h.given["group-fwd-mask"] = givenSetting{at: h.bridge.At, value: fmt.Sprintf("%#x", forward)}
	h.given["vlan-filtering"] = givenSetting{at: h.bridge.At, value: filtering}
}

// hostWords are the words of ifconfig(8), except rule, inet and inet6. The first entry for a file's kind applies.
var hostWords = []hostWord{
	{[]string{"add", "addlocal"}, ifBridge | ifVEB, 1, (*hostFile).addPort},
	{[]string{"add", "trunkport"}, ifTPMR, 1, (*hostFile).addPort}, // trunkport until OpenBSD 6.9
	{[]string{"addspan", "span"}, ifBridge | ifVEB, 1, func(h *hostFile, _ word, args []word) {
		if err := bridge.CheckName("port", args[0].text); err != nil {
			h.add(args[0].at, "%s", err)
		}
		m := Mirror{At: args[0].at, Device: args[0].text}
		m.Direction = bridge.DirectionIn
		h.bridge.Mirrors = append(h.bridge.Mirrors, m)
	}},
	portSwitch("learn", "learn", ifBridge|ifVEB),
	portSwitch("discover", "discover", ifBridge|ifVEB),
	portSwitch("blocknonip", "block-non-ip", ifBridge),
	portSwitch("locked", "locked", ifVEB),
	portValue("protected", "protected", ifBridge|ifVEB, ""),
	portDefault("-protected", "protected", ifBridge|ifVEB, "none"),
	bridgeValue("maxaddr", "fdb-max", ifBridge|ifVEB, ""),
	{[]string{"timeout"}, ifBridge | ifVEB, 1, func(h *hostFile, w word, args []word) {
		value := args[0].text
		if value == "0" {
			value = strconv.Itoa(int(bridge.MaxAgeing/time.Second)) + "s"
			h.note(w, "addresses do age here, after %s", value)
		}
		h.given["ageing"] = givenSetting{args[0].at, value, w.text, args[0].text}
	}},
	{[]string{"static"}, ifBridge | ifVEB, 2, (*hostFile).static},
	{[]string{"link0", "-link0", "link1", "-link1", "link2", "-link2"}, anyBridge, 0, func(h *hostFile, w word, _ []word) {
		name, off := strings.CutPrefix(w.text, "-")
		n := name[len(name)-1] - '0'
		h.link[n] = w
		if off {
			h.link[n].text = ""
		}
		if n == 1 && h.kind&(ifVEB|ifTPMR) != 0 { // link1 enables pf on veb, and disables it on tpmr
			h.bridge.PF = &PF{At: w.at, Enabled: off == (h.kind == ifTPMR)}
		}
	}},
	{[]string{"up", "down"}, anyKind, 0, func(h *hostFile, w word, _ []word) { h.state = w }},

	// the host's interface
	{[]string{"lladdr"}, ifHost, 1, (*hostFile).lladdr},
	{[]string{"mtu"}, ifHost, 1, (*hostFile).mtu},
	{[]string{"description", "descr"}, ifHost, 1, func(h *hostFile, w word, args []word) { h.describe(w, args[0].text) }},
	{[]string{"-description", "-descr"}, ifHost, 0, func(h *hostFile, w word, _ []word) { h.describe(w, "") }},

	// VLANs
	{[]string{"vnetid"}, ifVEB, 1, func(h *hostFile, w word, args []word) { h.defaultPVID(w, args[0]) }},
	{[]string{"-vnetid"}, ifVEB, 0, func(h *hostFile, w word, _ []word) { h.defaultPVID(w, word{w.at, noVLAN}) }},
	{[]string{"untagged"}, ifVEB, 2, (*hostFile).untagged},
	{[]string{"-untagged"}, ifVEB, 1, func(h *hostFile, w word, args []word) {
		h.untagged(w, []word{args[0], {w.at, noVLAN}})
	}},
	{[]string{"tagged"}, ifVEB, 2, (*hostFile).tagged},
	{[]string{"-tagged"}, ifVEB, 1, func(h *hostFile, w word, args []word) {
		h.tagged(w, []word{args[0], {w.at, noVLAN}})
	}},
	{[]string{"pvlan"}, ifVEB, 1, func(h *hostFile, w word, args []word) { h.private(w, args[0]) }},
	{[]string{"pvlan-isolated"}, ifVEB, 2, func(h *hostFile, w word, args []word) {
		p, id := h.private(w, args[0]), h.vid(w, args[1])
		if p == nil || id == 0 {
			return
		}
		if p.Isolated != nil {
			h.refuse(w, "primary VLAN %d already has isolated VLAN %d; give one", p.Primary, p.Isolated[0])
			return
		}
		p.Isolated = []uint16{id}
	}},
	{[]string{"pvlan-community"}, ifVEB, 2, func(h *hostFile, w word, args []word) {
		p, id := h.private(w, args[0]), h.vid(w, args[1])
		if p != nil && id != 0 {
			p.Community = append(p.Community, id)
		}
	}},

	// spanning tree
	{[]string{"stp", "-stp"}, ifBridge, 1, func(h *hostFile, w word, args []word) {
		if p := h.port(w, args[0]); p != nil {
			p.stp = w.text == "stp"
		}
	}},
	{[]string{"proto"}, ifBridge, 1, func(h *hostFile, w word, args []word) {
		h.proto = args[0].text
		if h.proto != "stp" && h.proto != "rstp" {
			h.refuse(w, "%q is not a version of spanning tree; give stp or rstp", h.proto)
		}
	}},
	automaticWord("edge", func(p *hostPort) *automatic { return &p.edge }),
	automaticWord("ptp", func(p *hostPort) *automatic { return &p.ptp }),
	portValue("ifcost", "stp-cost", ifBridge, ""),
	portDefault("-ifcost", "stp-cost", ifBridge, "auto"),
	portValue("ifpriority", "stp-priority", ifBridge, ""),
	bridgeValue("spanpriority", "stp-priority", ifBridge, ""),
	bridgeValue("hellotime", "stp-hello", ifBridge, "s"),
	bridgeValue("fwddelay", "stp-forward-delay", ifBridge, "s"),
	bridgeValue("maxage", "stp-max-age", ifBridge, "s"),

	// words without an effect
	without(anyBridge, 1, "a bridge here has none; ports and host ports have", "description", "descr"),
	without(anyBridge, 0, "a bridge here has none; ports and host ports have", "-description", "-descr"),
	without(anyKind, 1, "bascule has no such setting", "group", "-group", "rtlabel"),
	without(anyKind, 0, "bascule has no such setting", "-rdomain", "-rtlabel"),
	without(anyBridge, 1, "bascule has no such setting", "rdomain"),
	without(anyKind, 0, "it is not a setting", "debug", "-debug", "addr"),
	without(anyBridge, 1, "it is not a setting", "rules"),
	without(anyBridge, 1, "it sets the priority of routes; spanpriority sets the spanning tree's", "priority"),
	without(anyBridge, 1, "at most 6 BPDUs are sent per second", "holdcnt"),
	without(anyBridge, 1, "each frame keeps its priority", "rxprio", "txprio"),
	without(anyBridge, 1, "a bridge here has no device of its own", "mtu", "lladdr"),
	{[]string{"-inet", "-inet6"}, anyBridge, 0, func(*hostFile, word, []word) {}}, // which bridges do not have here
	without(ifHost, 1, "it sets the priority of routes, which the host's programs choose", "priority"),
	without(ifHost, 0, "addresses that the interface has stay; the sysctl disable_ipv6 of the interface stops IPv6", "-inet", "-inet6"),
	{[]string{"dhcp"}, ifHost, 0, func(h *hostFile, w word, _ []word) {
		h.note(w, "bascule requests no addresses; run a DHCP client on the host")
	}},

	// settings that a file cannot express
	refused(anyBridge, 1, "a file lists only what should exist; leave this out", "del", "-trunkport", "delspan", "deladdr", "flushrule", "-pvlan"),
	refused(anyBridge, 2, "a file lists only what should exist; leave this out", "-pvlan-isolated", "-pvlan-community"),
	refused(anyKind, 0, "a file lists only what should exist; leave this out", "flush", "flushall", "destroy", "delete", "-alias"),
	refused(anyBridge, 1, "write the rules here, each as rule ...", "rulefile"),
	refused(anyBridge, 1, "a trunk to a switch with the same private VLANs takes all of them as tagged", "pvptags", "-pvptags"),
	refused(anyBridge, rest, "a bridge here has no address; give it a port for the host: add vport0", "inet", "inet6", "dhcp", "dest", "alias", "autoconf"),
	refused(ifHost, rest, "it is for interfaces with two ends; leave it out", "dest"),
	refused(ifHost, 1, "routing domains are VRFs of the host; leave it out, and put the interface into a VRF", "rdomain"),
}

// portSwitch is a word with a port, and with a negated form.
func portSwitch(name, setting string, kind ifKind) hostWord {
	return hostWord{[]string{name, "-" + name}, kind, 1, func(h *hostFile, w word, args []word) {
		value := "on"
		if w.text != name {
			value = "off"
		}
		if p := h.port(w, args[0]); p != nil {
			p.given[setting] = givenSetting{at: w.at, value: value}
		}
	}}
}

// portValue is a word with a port and the value of a setting in the table's unit, which the word omits.
func portValue(name, setting string, kind ifKind, unit string) hostWord {
	return hostWord{[]string{name}, kind, 2, func(h *hostFile, w word, args []word) {
		if p := h.port(w, args[0]); p != nil {
			p.given[setting] = givenSetting{args[1].at, args[1].text + unit, name, args[1].text}
		}
	}}
}

// portDefault is a word with a port that sets a setting to a fixed value.
func portDefault(name, setting string, kind ifKind, value string) hostWord {
	return hostWord{[]string{name}, kind, 1, func(h *hostFile, w word, args []word) {
		if p := h.port(w, args[0]); p != nil {
			p.given[setting] = givenSetting{at: w.at, value: value}
		}
	}}
}

// bridgeValue is a word with the value of a setting in the table's unit, which the word omits.
func bridgeValue(name, setting string, kind ifKind, unit string) hostWord {
	return hostWord{[]string{name}, kind, 1, func(h *hostFile, _ word, args []word) {
		h.given[setting] = givenSetting{args[0].at, args[0].text + unit, name, args[0].text}
	}}
}

// automaticWord is a word with a port, and with a negated and an auto form.
func automaticWord(name string, field func(*hostPort) *automatic) hostWord {
	names := []string{name, "-" + name, "auto" + name, "-auto" + name}
	return hostWord{names, ifBridge, 1, func(h *hostFile, w word, args []word) {
		p := h.port(w, args[0])
		if p == nil {
			return
		}
		a := field(p)
		a.at = w.at
		text, off := strings.CutPrefix(w.text, "-")
		if text == name {
			a.on = !off
		} else {
			a.auto = !off
		}
	}}
}

// without returns words that are accepted with a note, and the reason.
func without(kind ifKind, args int, why string, names ...string) hostWord {
	return hostWord{names, kind, args, func(h *hostFile, w word, _ []word) { h.note(w, "%s", why) }}
}

// refused returns words that are refused, and the reason.
func refused(kind ifKind, args int, why string, names ...string) hostWord {
	return hostWord{names, kind, args, func(h *hostFile, w word, _ []word) { h.refuse(w, "%s", why) }}
}

// static reads "static PORT ADDRESS[@VLAN]".
func (h *hostFile) static(w word, args []word) {
	p := h.port(w, args[0])
	address, vlan, hasVLAN := strings.Cut(args[1].text, "@")
	e := Entry{At: w.at, Entry: bridge.Entry{Port: args[0].text, Static: true}}
	var err error
	if e.MAC, err = bridge.ParseMAC(etherAton(address)); err != nil {
		h.refuse(w, "%s", reason(address, err))
	}
	if hasVLAN {
		if h.kind != ifVEB {
			h.refuse(w, "%s: bridge(4) has no VLANs; leave out @%s", args[1].text, vlan)
		}
		e.VLAN = h.vid(w, word{args[1].at, vlan})
	}
	if p != nil {
		h.bridge.Entries = append(h.bridge.Entries, e)
	}
}

// etherAton returns an address in the format of net.ParseMAC, since ether_aton(3) also accepts bytes of one digit.
func etherAton(s string) string {
	digits := strings.Split(s, ":")
	for i, d := range digits {
		if utf8.RuneCountInString(d) == 1 {
			digits[i] = "0" + d
		}
	}
	return strings.Join(digits, ":")
}

// vid reads a VLAN. If the text is not a VLAN, it adds an error and returns 0.
func (h *hostFile) vid(w, id word) uint16 {
	vid, err := bridge.ParseVLAN(id.text)
	if err != nil {
		h.refuse(w, "%s", reason(id.text, err))
	}
	return vid
}

// defaultPVID sets the VLAN of ports without one of their own.
func (h *hostFile) defaultPVID(w, value word) {
	if h.vlan.text == "" {
		h.vlan = w
	}
	h.given["default-pvid"] = givenSetting{at: value.at, value: value.text}
}

// untagged reads "untagged PORT VLAN".
func (h *hostFile) untagged(w word, args []word) {
	p := h.portVLANs(w, args[0])
	if p == nil {
		return
	}
	switch value := args[1].text; value {
	case noVLAN:
		p.vlans.pvid = 0
	case "default":
		p.vlans.pvid = defaultVLAN
	case "passthrough", "passthru":
		h.refuse(w, "a port here takes all frames; use a separate device for the host's traffic")
	default:
		p.vlans.pvid = h.vid(w, args[1])
	}
}

// tagged reads "tagged PORT [+-=]LIST".
func (h *hostFile) tagged(w word, args []word) {
	p := h.portVLANs(w, args[0])
	if p == nil {
		return
	}
	text := args[1].text
	switch text {
	case noVLAN:
		p.vlans.tagged = nil
		return
	case "all":
		text = "1-4094"
	}
	value := strings.TrimLeft(text, "+-=")
	list, err := bridge.ParseVLANs(value)
	if err != nil {
		h.refuse(w, "%s", reason(text, err))
		return
	}
	switch text[0] {
	case '-':
		p.vlans.tagged = slices.DeleteFunc(p.vlans.tagged, func(v uint16) bool { return slices.Contains(list, v) })
	case '=':
		p.vlans.tagged = list
	default:
		p.vlans.tagged = append(p.vlans.tagged, list...)
	}
	slices.Sort(p.vlans.tagged)
	p.vlans.tagged = slices.Compact(p.vlans.tagged)
}

// private returns the primary VLAN that a word names. If the word names none, it adds an error and returns nil.
func (h *hostFile) private(w, id word) *PrivateVLAN {
	if h.vlan.text == "" {
		h.vlan = w
	}
	vid := h.vid(w, id)
	if vid == 0 {
		return nil
	}
	for i := range h.bridge.Private {
		if p := &h.bridge.Private[i]; p.Primary == vid {
			return p
		}
	}
	h.bridge.Private = append(h.bridge.Private, PrivateVLAN{At: w.at, Primary: vid})
	return &h.bridge.Private[len(h.bridge.Private)-1]
}
