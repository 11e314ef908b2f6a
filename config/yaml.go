// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"cmp"
	"errors"
	"net/netip"
	"path"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"bascule/bridge"
	"bascule/rule"
)

// A yamlFile reads one document.
type yamlFile struct {
	*faults
	lines []string // of the file
	kept  int      // VLANs and ranges of VLANs that were read
}

// maxKept limits the VLANs and ranges in the lists of a file's ports, private VLANs and mirrors.
// Six letters can stand for 4094 VLANs.
const maxKept = 1 << 22

// keep returns the VLANs or ranges of a list, or none if the file has too many.
func keep[T any](y *yamlFile, at Position, list []T) []T {
	was := y.kept
	if y.kept += len(list); y.kept <= maxKept {
		return list
	}
	if was <= maxKept {
		y.add(at, "more than %d VLANs in the lists of ports, private VLANs and mirrors; give fewer, or several files", maxKept)
	}
	return nil
}

// parseYAML reads the documents of a file.
func parseYAML(bad *faults, text string) (files []File) {
	nodes := parseNodes(bad, text)
	if nodes == nil && bad.list == nil {
		bad.add(Position{bad.path, 1, 1}, "the file is empty; begin with 'bridges:'")
	}
	y := yamlFile{faults: bad, lines: strings.Split(text, "\n")}
	for _, n := range nodes {
		files = append(files, y.file(n))
	}
	return files
}

// A field is an allowed key of an object.
type field struct {
	name string
	read func(node)
	null bool // a missing value is an empty one
}

// object reads the keys of a mapping. what names the mapping in messages. A
// missing mapping counts as an empty one.
func (y *yamlFile) object(n node, what string, fields []field) {
	switch n.kind {
	case absent:
		return
	case mapping:
	default:
		y.add(n.at, "%s is %s; give keys with values", what, n.describe())
		return
	}
	for _, e := range n.entries {
		i := slices.IndexFunc(fields, func(f field) bool { return f.name == e.key.text })
		if i < 0 {
			y.unknown(e, what, fields)
			continue
		}
		if e.value.kind == absent && !fields[i].null {
			y.add(e.key.at, "%s of %s has no value; give one, or leave it out", e.key.text, what)
			continue
		}
		fields[i].read(e.value)
	}
}

// unknown adds an error for a key that an object can't have.
func (y *yamlFile) unknown(e entry, what string, fields []field) {
	if _, err := bridge.ParseVLANs(e.key.text); err == nil && e.value.kind == absent {
		// YAML reads {tagged: 10,20} as {tagged: 10, 20: null}
		y.add(e.key.at, "%q is a key of %s, since a comma ends a value between braces; write [10, 20-30] or \"10,20-30\"", e.key.text, what)
		return
	}
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	if strings.HasPrefix(e.key.text, "span") && slices.Contains(names, "mirrors") { // the command's name for it
		y.add(e.key.at, "%s has no %q; span ports are mirrors", what, e.key.text)
		return
	}
	y.add(e.key.at, "%s has no %q; %s", what, e.key.text, offer(e.key.text, names))
}

// each calls f with the keys and values of a mapping with names as keys.
func (y *yamlFile) each(n node, what string, f func(name, value node)) {
	if n.kind != mapping {
		y.add(n.at, "%s: this is %s; give names with what belongs to them", what, n.describe())
		return
	}
	for _, e := range n.entries {
		f(e.key, e.value)
	}
}

// items calls f with the elements of a list.
func (y *yamlFile) items(n node, what string, f func(node)) {
	if n.kind != sequence {
		y.add(n.at, "%s: this is %s; give a list", what, n.describe())
		return
	}
	for _, i := range n.items {
		f(i)
	}
}

// text returns the text of a scalar. For another node it adds an error, and ok is false.
func (y *yamlFile) text(n node, what string) (s string, ok bool) {
	if n.kind == mapping && len(n.entries) > 0 {
		y.add(n.at, "%s: a colon makes this a mapping; give a single value, in quotes if the colon is part of it", what)
		return "", false
	}
	if n.kind != scalar {
		y.add(n.at, "%s: this is %s; give a single value", what, n.describe())
		return "", false
	}
	return n.text, true
}

// words returns the text of a scalar, or joins the scalars of a list with commas.
func (y *yamlFile) words(n node, what string) (s string, ok bool) {
	if n.kind != sequence {
		return y.text(n, what)
	}
	ok = true
	var all []string
	for _, i := range n.items {
		s, itemOK := y.text(i, what)
		all, ok = append(all, s), ok && itemOK
	}
	return strings.Join(all, ","), ok
}

// value parses a text with a parser of package bridge.
func value[T any](y *yamlFile, n node, what string, parse func(string) (T, error)) (v T, ok bool) {
	s, ok := y.text(n, what)
	if !ok {
		return v, false
	}
	v, err := parse(s)
	if err != nil {
		y.add(n.at, "%s %s", what, reason(s, err))
		return v, false
	}
	return v, true
}

// reason returns the mistake in a value, without the object in the error of a command line.
func reason(value string, err error) string {
	var usage *bridge.UsageError
	if errors.As(err, &usage) {
		err = usage.Err
	}
	quoted := strconv.Quote(value)
	if strings.HasPrefix(err.Error(), quoted) {
		return err.Error() // it contains the value itself
	}
	return quoted + ": " + err.Error()
}

// onOff returns the value of a switch in the words of package bridge. It also accepts the words of
// YAML 1.1, which editors and programs write.
func onOff(s string) (string, bool) {
	switch s {
	case "on", "yes", "true", "True", "TRUE":
		return "on", true
	case "off", "no", "false", "False", "FALSE":
		return "off", true
	}
	return s, false
}

// ownPrefix begins keys for the author's own use: text that is merged elsewhere.
const ownPrefix = "x-"

func (y *yamlFile) file(n node) File {
	f := File{Path: y.path}
	if n.kind != mapping {
		y.add(n.at, "not a file for apply, but %s: begin with 'bridges:'; a file of hostname.if(5) must be called hostname.NAME", n.describe())
		return f
	}
	n.entries = slices.DeleteFunc(n.entries, func(e entry) bool { return strings.HasPrefix(e.key.text, ownPrefix) })
	y.object(n, "a file", []field{
		{name: "netns", read: func(n node) { f.Netns, _ = y.text(n, "netns") }},
		{name: "bridges", null: true, read: func(n node) {
			if n.kind == absent {
				return
			}
			y.each(n, "bridges", func(name, value node) { f.Bridges = append(f.Bridges, y.bridge(name, value)) })
		}},
	})
	return f
}

func (y *yamlFile) bridge(name, n node) Bridge {
	b := Bridge{Name: name.text, At: name.at}
	y.name("bridge", name)
	what := "bridge " + strconv.Quote(name.text)
	given := newSettings(y, bridge.BridgeSettings)
	y.object(n, what, slices.Concat(given.fields(), []field{
		{name: "ports", null: true, read: func(n node) {
			if n.kind == absent {
				return
			}
			y.each(n, "ports", func(name, value node) { b.Ports = append(b.Ports, y.port(name, value)) })
		}},
		{name: "private-vlans", read: func(n node) { b.Private = y.private(n) }},
		{name: "rules", read: func(n node) { b.Rules = y.rules(n) }},
	}, y.sections(beforeMirrors, &b), []field{
		{name: "mirrors", read: func(n node) {
			y.each(n, "mirrors", func(name, value node) { b.Mirrors = append(b.Mirrors, y.mirror(name, value)) })
		}},
	}, y.sections(afterMirrors, &b), []field{
		{name: "pf", read: func(n node) { b.PF = y.pf(n) }},
	}))
	b.Settings = given.changes()
	return b
}

// name adds an error for an invalid name of a bridge or port.
func (y *yamlFile) name(kind string, n node) {
	if err := bridge.CheckName(kind, n.text); err != nil {
		y.add(n.at, "%s", err)
	}
}

// portName adds an error for an invalid name or pattern of a port.
func portName(bad *faults, at Position, name string) {
	if plain, ok := plainName(name); ok {
		if err := bridge.CheckName("port", plain); err != nil {
			bad.add(at, "%s", err)
		}
		return
	}
	if _, err := path.Match(name, ""); err != nil {
		bad.add(at, "port pattern %q: a [ has no ] or nothing in it; give one such as tap* or eth[0-3]", name)
	} else if r := backwards(name); r != "" {
		bad.add(at, "port pattern %q: %s begins after its end; give the lower letter first", name, r)
	}
}

func (y *yamlFile) port(name, n node) Port {
	p := Port{Name: name.text, At: name.at}
	portName(y.faults, name.at, name.text)
	given := newSettings(y, bridge.PortSettings)
	var vlans portVLANs
	listed := func(name string, to *[]uint16) field {
		return field{name: name, read: func(n node) {
			vlans.given = true
			*to = y.vlans(n, name)
		}}
	}
	word := func(name string, to *string, of ...string) field {
		return field{name: name, read: func(n node) { *to = y.choice(n, name, of...) }}
	}
	y.object(n, "port "+strconv.Quote(name.text), append(given.fields(),
		word("type", &p.Options.Type, bridge.Types...),
		word("hook", &p.Options.Hook, bridge.Hooks...),
		field{name: "peer", read: func(n node) { p.Options.Peer, _ = y.text(n, "peer") }},
		field{name: "pvid", read: func(n node) {
			vlans.given = true
			vlans.pvid, _ = value(y, n, "pvid", parsePVID)
		}},
		listed("untagged", &vlans.untagged),
		listed("tagged", &vlans.tagged),
		field{name: "force", read: func(n node) { p.Options.Force = y.on(n, "force") }},
		field{name: "addresses", read: func(n node) { p.Addresses = y.addresses(n) }},
		field{name: "mac", read: func(n node) {
			if p.OwnMAC = n.kind == scalar && n.text == bridge.Auto; !p.OwnMAC {
				p.MAC, _ = value(y, n, "mac", bridge.ParseMAC)
			}
		}},
		field{name: "mtu", read: func(n node) { p.MTU, _ = value(y, n, "mtu", bridge.ParseMTU) }},
		field{name: "up", read: func(n node) {
			up := y.on(n, "up")
			p.Up = &up
		}},
		field{name: "description", read: func(n node) { p.Description = y.description(n) }},
	))
	y.checkType(p)
	p.Options.Changes = given.changes()
	tagged := setOf(vlans.tagged)
	if both := slices.DeleteFunc(slices.Clone(vlans.untagged), func(v uint16) bool { return !tagged[v] }); len(both) > 0 {
		y.add(p.At, "port %q: VLAN %s is both tagged and untagged; give one", p.Name, bridge.FormatVLANs(both))
	}
	p.VLANs = keep(y, p.At, vlans.ranges())
	return p
}

// checkType adds errors for keys that a port can't combine.
func (y *yamlFile) checkType(p Port) {
	made := p.Options.Type == bridge.TypeHost || p.Options.Type == bridge.TypePatch
	_, plain := p.Device()
	switch {
	case made && !plain:
		y.add(p.At, "port %q: a pattern matches existing devices, but %s ports are created; give a name", p.Name, p.Options.Type)
	case p.Options.Type == bridge.TypePatch && p.Options.Peer == "":
		y.add(p.At, "port %q: a patch cable needs another end; give peer: BRIDGE/PORT, too", p.Name)
	case p.Options.Type != bridge.TypePatch && p.Options.Peer != "":
		y.add(p.At, "port %q: only a patch port has a peer; give type: patch, too", p.Name)
	}
	if p.Addresses != nil && p.Options.Type != bridge.TypeHost {
		y.add(p.At, "port %q: only a host port has addresses; give type: host, too, or leave them out", p.Name)
	}
	if (p.MAC != nil || p.OwnMAC) && p.Options.Type != bridge.TypeHost {
		y.add(p.At, "port %q: only a host port is given a mac; give type: host, too, or leave it out", p.Name)
	}
	if p.MTU != 0 && p.Options.Type != bridge.TypeHost {
		y.add(p.At, "port %q: only a host port is given an mtu; give type: host, too, or leave it out", p.Name)
	}
	if p.Up != nil && p.Options.Type == bridge.TypePatch {
		y.add(p.At, "port %q: a patch cable has no device that could be up; leave up out", p.Name)
	}
	if p.Description != nil && p.Options.Type == bridge.TypePatch {
		y.add(p.At, "port %q: a patch cable has no device that has a description; leave it out", p.Name)
	}
	if p.Options.Peer == "" {
		return
	}
	peerBridge, peerPort, _ := strings.Cut(p.Options.Peer, "/")
	if bridge.CheckName("bridge", peerBridge) != nil || bridge.CheckName("port", peerPort) != nil {
		y.add(p.At, "port %q: %q is not the other end of a patch cable; give BRIDGE/PORT", p.Name, p.Options.Peer)
	}
}

// description reads a device's description.
func (y *yamlFile) description(n node) *string {
	text, ok := y.text(n, "description")
	if !ok {
		return nil
	}
	if err := bridge.CheckDescription(text); err != nil {
		y.add(n.at, "%s", err)
	}
	return &text
}

// choice reads one of several words.
func (y *yamlFile) choice(n node, what string, of ...string) string {
	s, ok := y.text(n, what)
	if ok && !slices.Contains(of, s) {
		y.add(n.at, "%s %q: no such %s; give %s", what, s, what, alternatives(of))
	}
	return s
}

// alternatives returns "a, b or c".
func alternatives(list []string) string {
	last := len(list) - 1
	return strings.Join(list[:last], ", ") + " or " + list[last]
}

// noVLAN is the word for no VLAN, as on the command line.
const noVLAN = "none"

// vlans reads a list of VLANs: 10, "10,20-30", [10, 20-30], none or [].
func (y *yamlFile) vlans(n node, what string) []uint16 {
	s, ok := y.words(n, what)
	if !ok || s == noVLAN || n.kind == sequence && s == "" {
		return nil
	}
	ids, err := bridge.ParseVLANs(s)
	if err != nil {
		y.add(n.at, "%s %s", what, reason(s, err))
	}
	return ids
}

// addresses reads the addresses of an interface: one, "192.0.2.1/24,2001:db8::1/64", or a
// list. The result is never nil.
func (y *yamlFile) addresses(n node) []netip.Prefix {
	list := []netip.Prefix{}
	text, ok := y.words(n, "addresses")
	if !ok || n.kind == sequence && text == "" {
		return list
	}
	for _, s := range strings.Split(text, ",") {
		a, err := bridge.ParsePrefix(strings.TrimSpace(s))
		switch {
		case err != nil:
			y.add(n.at, "addresses %s", reason(s, err))
		case slices.Contains(list, a):
			y.add(n.at, "addresses: %s occurs twice; remove one", a)
		default:
			list = append(list, a)
		}
	}
	return list
}

// vlan reads one VLAN.
func (y *yamlFile) vlan(n node, what string) uint16 {
	id, _ := value(y, n, what, bridge.ParseVLAN)
	return id
}

func parsePVID(s string) (uint16, error) {
	if s == noVLAN {
		return 0, nil
	}
	return bridge.ParseVLAN(s)
}

// portVLANs has the VLANs of a port in the form of a file.
type portVLANs struct {
	given            bool // otherwise the bridge's defaults apply
	pvid             uint16
	untagged, tagged []uint16
}

// setOf returns a list of VLANs as a set.
func setOf(list []uint16) (set [maxVLAN + 1]bool) {
	for _, vid := range list {
		set[vid] = true
	}
	return set
}

// ranges returns the VLANs in the format of package bridge: ascending, in the fewest ranges, with
// the PVID in a range of its own. Frames of the PVID leave without a tag unless the PVID is among
// the tagged VLANs.
func (v portVLANs) ranges() []bridge.VLANRange {
	if !v.given {
		return nil
	}
	untagged, tagged := setOf(v.untagged), setOf(v.tagged)
	if v.pvid != 0 && !tagged[v.pvid] {
		untagged[v.pvid] = true
	}
	ranges := []bridge.VLANRange{}
	for vid := uint16(1); vid <= maxVLAN; vid++ {
		if !untagged[vid] && !tagged[vid] {
			continue
		}
		r := bridge.VLANRange{First: vid, Last: vid, VLANOptions: bridge.VLANOptions{Untagged: untagged[vid], PVID: vid == v.pvid}}
		if last := len(ranges) - 1; last >= 0 && !r.PVID && ranges[last].Last == vid-1 && ranges[last].VLANOptions == r.VLANOptions {
			ranges[last].Last = vid
			continue
		}
		ranges = append(ranges, r)
	}
	return ranges
}

func (y *yamlFile) private(n node) (list []PrivateVLAN) {
	y.each(n, "private-vlans", func(name, value node) {
		p := PrivateVLAN{At: name.at, Primary: y.vlan(name, "private-vlans")}
		y.object(value, "private VLAN "+strconv.Quote(name.text), []field{
			{name: bridge.KindIsolated, read: func(n node) { p.Isolated = keep(y, n.at, y.vlans(n, bridge.KindIsolated)) }},
			{name: bridge.KindCommunity, read: func(n node) { p.Community = keep(y, n.at, y.vlans(n, bridge.KindCommunity)) }},
		})
		if len(p.Isolated) > 1 {
			y.add(p.At, "private VLAN %d: a primary VLAN has one isolated VLAN; give one", p.Primary)
		}
		list = append(list, p)
	})
	slices.SortStableFunc(list, func(a, b PrivateVLAN) int { return cmp.Compare(a.Primary, b.Primary) })
	return list
}

// rules reads MAC rules: a list, or a text with one rule on each line.
func (y *yamlFile) rules(n node) (list []Rule) {
	add := func(n node) {
		s, ok := y.text(n, "rules")
		if !ok {
			return
		}
		for i, line := range strings.Split(strings.TrimSuffix(s, "\n"), "\n") {
			at := n.at
			if n.block {
				at = Position{y.path, n.at.Line + 1 + i, 1}
			}
			if text := strings.TrimSpace(line); text == "" || text[0] == '#' {
				continue
			}
			at, found := y.find(at, line)
			if r, ok := parseRule(y.faults, at, line, found); ok {
				list = append(list, r)
			}
		}
	}
	if n.kind != sequence {
		add(n)
		return list
	}
	for _, i := range n.items {
		add(i)
	}
	return list
}

// parseRule parses a MAC rule whose first character is at the given place. If asItIs is true, the
// file has the rest of the text unchanged after it.
func parseRule(bad *faults, at Position, text string, asItIs bool) (Rule, bool) {
	rules, err := rule.ParseFile("", strings.NewReader(text), "")
	var wrong rule.Errors
	switch {
	case errors.As(err, &wrong):
		at := at
		if asItIs {
			at.Column += wrong[0].Column - 1
		}
		bad.add(at, "rule: %s", wrong[0].Msg)
		return Rule{}, false
	case err != nil || len(rules) != 1:
		bad.add(at, "rule %q: not one rule; give one", text)
		return Rule{}, false
	}
	return Rule{At: at, Text: rules[0].String()}, true
}

// find returns the place of text in the line of at. If quotes or folded lines change the text in
// the file, find returns at.
func (y *yamlFile) find(at Position, text string) (Position, bool) {
	if at.Line > len(y.lines) {
		return at, false
	}
	before, _, ok := strings.Cut(y.lines[at.Line-1], text)
	if ok {
		at.Column = utf8.RuneCountInString(before) + 1
	}
	return at, ok
}

// needs adds errors for missing keys of a mapping.
func (y *yamlFile) needs(n node, what string, keys ...string) {
	if n.kind == absent {
		n.kind = mapping // an empty one
	}
	if n.kind != mapping {
		return // which has an error already
	}
	for _, k := range keys {
		if !slices.ContainsFunc(n.entries, func(e entry) bool { return e.key.text == k }) {
			y.add(n.at, "%s has no %s; give one", what, k)
		}
	}
}

func (y *yamlFile) mirror(name, n node) Mirror {
	m := Mirror{At: name.at, Device: name.text}
	y.name("port", name)
	y.object(n, "span port "+strconv.Quote(name.text), []field{
		{name: "ports", read: func(n node) {
			if s, ok := y.words(n, "ports"); ok && s != "" {
				m.Ports = strings.Split(s, ",")
			}
		}},
		{name: "vlans", read: func(n node) { m.VLANs = keep(y, n.at, y.vlans(n, "vlans")) }},
		{name: "direction", read: func(n node) {
			m.Direction = y.choice(n, "direction", bridge.DirectionIn, bridge.DirectionOut, bridge.DirectionBoth)
		}},
		{name: "force", read: func(n node) { m.Force = y.on(n, "force") }},
	})
	return m
}

// on reads a switch's value.
func (y *yamlFile) on(n node, what string) bool {
	s, ok := y.text(n, what)
	if !ok {
		return false
	}
	value, ok := onOff(s)
	if !ok {
		y.add(n.at, "%s %q: neither on nor off; give on or off", what, s)
	}
	return value == "on"
}

func (y *yamlFile) pf(n node) *PF {
	pf := &PF{At: n.at, Enabled: true}
	if n.kind == scalar {
		value, ok := onOff(n.text)
		switch {
		case !ok && strings.ContainsAny(n.text, "/."):
			y.add(n.at, "pf %q: neither on nor off; for a file write pf: {file: %s}", n.text, n.text)
		case !ok:
			y.add(n.at, "pf %q: neither on nor off; give on, off or {file: PATH}", n.text)
		}
		pf.Enabled = value == "on"
		return pf
	}
	y.object(n, "pf", []field{
		{name: "enabled", read: func(n node) { pf.Enabled = y.on(n, "enabled") }},
		{name: "file", read: func(n node) { pf.File, _ = y.text(n, "file") }},
		{name: "rules", read: func(n node) {
			pf.Rules, _ = y.text(n, "rules")
			pf.lines = y.places(n, pf.Rules)
		}},
	})
	if pf.File != "" && pf.Rules != "" {
		y.add(n.at, "pf has both a file and rules; give one of them")
	}
	return pf
}

// places returns the positions in the file of the lines of a text value. A line that quotes change
// has the position of the value.
func (y *yamlFile) places(n node, text string) (list []Position) {
	for i, line := range strings.Split(text, "\n") {
		at := n.at
		if n.block {
			at = Position{y.path, n.at.Line + 1 + i, 1}
		}
		if found, ok := y.find(at, line); ok {
			// the line's indentation in the text precedes its first sign
			found.Column -= len([]rune(line)) - len([]rune(strings.TrimLeft(line, " \t")))
			list = append(list, found)
			continue
		}
		list = append(list, Position{Path: n.at.Path, Line: at.Line})
	}
	return list
}

// settings collects the settings of an object.
type settings[T any] struct {
	file  *yamlFile
	table []bridge.Setting[T]
	given map[string]givenSetting
}

// A givenSetting is a setting's value, and its position.
type givenSetting struct {
	at    Position
	value string
	// word and text are the file's own word for the setting and its value; empty if they are
	// the same.
	word, text string
}

func newSettings[T any](y *yamlFile, table []bridge.Setting[T]) settings[T] {
	return settings[T]{y, table, map[string]givenSetting{}}
}

// fields returns the keys of settings.
func (g settings[T]) fields() (list []field) {
	for _, s := range g.table {
		list = append(list, field{name: s.Name, read: func(n node) {
			text, ok := g.file.words(n, s.Name)
			if ok {
				g.given[s.Name] = givenSetting{at: n.at, value: settingValue(s.Value, text)}
			}
		}})
	}
	return list
}

// settingValue returns the value of a setting in its table's words: true and false become on and
// off if the setting has these values.
func settingValue(values, text string) string {
	if word, ok := onOff(text); ok && slices.Contains(strings.Split(values, "|"), word) {
		return word
	}
	return text
}

// changes returns the settings in the order of their table. They must be valid and consistent:
// protected: 2 means that isolated is off.
func (g settings[T]) changes() []bridge.Change {
	return changes(g.file.faults, g.table, g.given)
}

// changes returns the given settings in the order of their table.
func changes[T any](bad *faults, table []bridge.Setting[T], given map[string]givenSetting) (list []bridge.Change) {
	var config T
	alone := map[string]string{} // the result of each setting alone
	for _, s := range table {
		v, ok := given[s.Name]
		if !ok {
			continue
		}
		if err := s.Set(&config, v.value); err != nil {
			bad.add(v.at, "%s %s", cmp.Or(v.word, s.Name), reason(cmp.Or(v.text, v.value), err))
			continue
		}
		alone[s.Name] = s.Format(config)
		list = append(list, bridge.Change{Name: s.Name, Value: alone[s.Name]})
	}
	for name, v := range given {
		if !slices.ContainsFunc(table, func(s bridge.Setting[T]) bool { return s.Name == name }) {
			bad.add(v.at, "%s %s: there is no such setting; leave it out", name, v.value)
		}
	}
	for _, s := range table {
		if was, ok := alone[s.Name]; ok && s.Format(config) != was {
			bad.add(given[s.Name].at, "%s %s: another setting here makes it %s; make them agree", s.Name, was, s.Format(config))
		}
	}
	return list
}
