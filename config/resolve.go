// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"path"
	"slices"
	"strings"

	"bascule/bridge"
	"bascule/pattern"
	"bascule/rule"

	"github.com/agext/levenshtein"
)

// maxVLAN is the last VLAN (IEEE 802.1Q-2022 table 9-2).
const maxVLAN = 4094

// A model is a File with all values parsed, and with devices instead of patterns.
type model struct {
	bridges []*bridgeModel
	byName  map[string]*bridgeModel
	devices map[string]*bridge.Device // by name
	bad     faults
	notes   []string // what is not done now, with the reason
}

type bridgeModel struct {
	*Bridge
	config   bridge.BridgeConfig
	ports    []*portModel
	byName   map[string]*portModel
	patterns []*Port
	private  map[uint16]bridge.PrivateVLANs
	fids     map[uint16]uint16 // maps each secondary VLAN to its primary VLAN
	rules    []portRule
	listed   map[*bridge.Filing][]placed // by their descriptions
	mirrors  []*mirrorModel
}

type portModel struct {
	name    string
	at      Position
	kind    string // bridge.TypeNetdev, TypeHost, TypePatch
	peer    string
	hook    string
	pattern string // that matches the device, "" if the port has its own entry
	config  bridge.PortConfig
	vlans   []bridge.VLANRange // in the fewest ranges; nil if the bridge does not filter

	addresses []netip.Prefix   // of the host interface; nil leaves them unchanged
	mac       net.HardwareAddr // of the host interface; nil leaves it unchanged
	mtu       int              // 0 leaves it unchanged
	ownMAC    bool             // the interface gets its automatic address

	description *string // nil leaves it unchanged

	up     bool // whether the device, or the host interface, should be up
	saysUp bool // the file sets up; otherwise an interface in another namespace stays as it is

	waits bool // for its device, or because it cannot be made now
	left  bool // it cannot be made now
	lost  bool // the port runs, but has lost its device
	force bool // bridge.PortOptions.Force
}

type portRule struct {
	port string
	text string
}

type mirrorModel struct {
	Mirror
	waits bool
}

// fail adds an error.
func (m *model) fail(at Position, format string, args ...any) {
	m.bad.add(at, format, args...)
}

// note adds work that is not done now.
func (m *model) note(format string, args ...any) {
	m.notes = append(m.notes, fmt.Sprintf(format, args...))
}

// why returns an error without its object, which the caller adds.
func why(err error) error {
	var usage *bridge.UsageError
	if errors.As(err, &usage) {
		return usage.Err
	}
	return err
}

// optionValue matches a command-line option with its value.
var optionValue = pattern.New(`--([a-z-]+)=`)

// inKeys returns an error of package bridge with a file's keys instead of options.
func inKeys(err error) string {
	return strings.ReplaceAll(optionValue().ReplaceAllString(err.Error(), "$1: "), "--", "")
}

// resolve converts a file to a model. was is the running state, or nil if the file itself is the running state.
func resolve(f File, was *model, devices []bridge.Device) *model {
	m := &model{byName: map[string]*bridgeModel{}, devices: map[string]*bridge.Device{}}
	for i := range devices {
		m.devices[devices[i].Name] = &devices[i]
	}
	for i := range f.Bridges {
		m.checkCounts(&f.Bridges[i]) // first, since the loops below run once for each object
	}
	if m.bad.list != nil {
		return m
	}
	for i := range f.Bridges {
		b := &bridgeModel{Bridge: &f.Bridges[i], byName: map[string]*portModel{}, private: map[uint16]bridge.PrivateVLANs{}, listed: map[*bridge.Filing][]placed{}}
		if err := bridge.CheckName("bridge", b.Name); err != nil {
			m.fail(b.At, "%v", err)
			continue
		}
		if first := m.byName[b.Name]; first != nil {
			m.fail(b.At, "bridge %s is already defined at %s; put all of it there", b.Name, first.At)
			continue
		}
		b.config = configure(m, b.At, "bridge "+b.Name, bridge.BridgeSettings, bridge.Defaults(bridge.BridgeSettings), b.Settings)
		if err := b.config.Check(b.Name); err != nil {
			m.fail(b.At, "%s", inKeys(err))
		}
		m.bridges = append(m.bridges, b)
		m.byName[b.Name] = b
		m.readPorts(b)
	}
	if was != nil {
		m.forgetHosts()
		for _, b := range m.bridges {
			m.expand(b, was.byName[b.Name])
		}
		m.claim(was)
	}
	for _, b := range m.bridges {
		m.readPrivate(b)
		m.readRules(b)
		for _, s := range sections {
			m.readSection(b, s)
		}
		m.readMirrors(b, was)
		m.readBackups(b)
		if was != nil {
			m.checkPatches(b, was)
			m.checkRoom(b, was)
		}
	}
	return m
}

// checkCounts refuses a bridge of a file with more objects than a bridge can have. Objects that wait for their devices
// count, too.
func (m *model) checkCounts(b *Bridge) {
	ports := slices.DeleteFunc(slices.Clone(b.Ports), func(p Port) bool { _, plain := plainName(p.Name); return !plain })
	few := func(what, remedy string, n, most int, at func(int) Position) {
		if n > most {
			m.fail(at(most), "bridge %s has %d %s, and no bridge can have more than %d; %s", b.Name, n, what, most, remedy)
		}
	}
	few("ports", "make another bridge", len(ports), bridge.MaxPorts, func(i int) Position { return ports[i].At })
	few("rules", "give rules that match more", len(b.Rules), bridge.MaxRules, func(i int) Position { return b.Rules[i].At })
	m.checkSections(b, few)
	few("mirrors", "leave some out", len(b.Mirrors), bridge.MaxSpans, func(i int) Position { return b.Mirrors[i].At })
}

// checkRoom refuses more static and sticky addresses than the FDB can hold, unless the running bridge has as many: its
// FDB may be larger than a new one.
func (m *model) checkRoom(b *bridgeModel, was *model) {
	room := bridge.EntryRoom(b.config.FDBMax)
	if runs := was.byName[b.Name]; runs != nil {
		room = max(room, len(runs.listed[&bridge.EntryFiling]))
	}
	if len(b.Entries) > room {
		m.fail(b.Entries[room].At, "bridge %s has %d static and sticky addresses, and with fdb-max %d there is room for %d; raise fdb-max",
			b.Name, len(b.Entries), b.config.FDBMax, room)
	}
}

// configure returns a configuration with the changes applied.
func configure[T any](m *model, at Position, what string, settings []bridge.Setting[T], config T, changes []bridge.Change) T {
	seen := map[string]bool{}
	for _, c := range changes {
		if seen[c.Name] {
			m.fail(at, "%s: %s occurs twice; remove one", what, c.Name)
		}
		config = bridge.Configure(settings, config, []bridge.Change{c}, func(c bridge.Change, err error) {
			if errors.Is(err, bridge.ErrNoSetting) {
				m.fail(at, "%s: there is no setting %q; see 'bascule help %s set'", what, c.Name, strings.Fields(what)[0])
				return
			}
			m.fail(at, "%s: %s %s: %v", what, c.Name, c.Value, why(err))
		})
		seen[c.Name] = true
	}
	return config
}

// readPorts reads the ports of a bridge. It does not match patterns yet.
func (m *model) readPorts(b *bridgeModel) {
	for i := range b.Ports {
		p := &b.Ports[i]
		name, plain := plainName(p.Name)
		what := "port " + p.Name + " of " + b.Name
		if !plain {
			if _, err := path.Match(p.Name, ""); err != nil {
				m.fail(p.At, "%s: not a pattern; write one of *, ? and [...], with a backslash before characters that are meant literally", what)
				continue
			}
			if t := p.Options.Type; t != "" && t != bridge.TypeNetdev {
				m.fail(p.At, "%s: a pattern matches existing devices, not ports of type %s; give such a port a name", what, t)
				continue
			}
		} else if err := bridge.CheckName("port", name); err != nil {
			m.fail(p.At, "%v", err)
			continue
		} else if first := b.byName[name]; first != nil {
			m.fail(p.At, "%s occurs twice, first at line %d; remove one", what, first.at.Line)
			continue
		}
		port := m.readPort(b, p, what)
		port.name = name
		if !plain {
			b.patterns = append(b.patterns, p)
			continue
		}
		b.ports = append(b.ports, port)
		b.byName[name] = port
	}
}

func (m *model) readPort(b *bridgeModel, p *Port, what string) *portModel {
	o := &p.Options
	port := &portModel{
		name: p.Name, at: p.At, kind: cmp.Or(o.Type, bridge.TypeNetdev), peer: o.Peer, hook: cmp.Or(o.Hook, bridge.HookAuto), force: o.Force,
		config: configure(m, p.At, what, bridge.PortSettings, bridge.PortDefaults(o.Type), o.Changes),
	}
	switch port.kind {
	case bridge.TypeNetdev, bridge.TypeHost:
		if o.Peer != "" {
			m.fail(p.At, "%s: only patch ports have a peer; leave it out, or give type: patch", what)
		}
	case bridge.TypePatch:
		if port.hook != bridge.HookAuto {
			m.fail(p.At, "%s: a patch port has no hook; leave it out", what)
		}
		port.hook = ""
	default:
		m.fail(p.At, "%s: there is no type %s; give %s", what, o.Type, bridge.OneOf(bridge.Types))
	}
	if port.kind != bridge.TypeHost && port.config.Route {
		m.fail(p.At, "%s: only a host port routes, because the host has an interface there; leave route out, or give type: host", what)
	}
	if port.hook != "" && !slices.Contains(bridge.Hooks, port.hook) {
		m.fail(p.At, "%s: there is no hook %s; give %s", what, o.Hook, bridge.OneOf(bridge.Hooks))
	}
	if err := port.config.Check(b.Name, p.Name); err != nil {
		m.fail(p.At, "%s", inKeys(err))
	}
	if port.addresses = p.Addresses; port.addresses != nil && port.kind != bridge.TypeHost {
		m.fail(p.At, "%s: only a host port has addresses; leave them out, or give type: host", what)
	}
	if port.mac, port.ownMAC = p.MAC, p.OwnMAC; (port.mac != nil || port.ownMAC) && port.kind != bridge.TypeHost {
		m.fail(p.At, "%s: only a host port is given a mac; leave it out, or give type: host", what)
	}
	if port.mtu = p.MTU; port.mtu != 0 && port.kind != bridge.TypeHost {
		m.fail(p.At, "%s: only a host port is given an mtu; leave it out, or give type: host", what)
	}
	if p.Up != nil && port.kind == bridge.TypePatch {
		m.fail(p.At, "%s: a patch cable has no device that could be up; leave up out", what)
	}
	port.left = p.left != ""
	port.up = p.Up == nil || *p.Up
	port.saysUp = p.Up != nil
	if port.description = p.Description; port.description != nil {
		if port.kind == bridge.TypePatch {
			m.fail(p.At, "%s: a patch cable has no device that has a description; leave it out", what)
		}
		if err := bridge.CheckDescription(*port.description); err != nil {
			m.fail(p.At, "%s: %v", what, err)
		}
	}
	port.vlans = m.readVLANs(b, p, what)
	return port
}

// readVLANs returns the VLANs of a port; nil means the bridge's default.
func (m *model) readVLANs(b *bridgeModel, p *Port, what string) []bridge.VLANRange {
	if !b.config.VLANFiltering {
		if len(p.VLANs) > 0 {
			m.fail(p.At, "%s: bridge %s does not filter VLANs; give it vlan-filtering: on, or the port no VLANs", what, b.Name)
		}
		return nil
	}
	if p.VLANs == nil {
		return defaultVLANs(b.config)
	}
	set := map[uint16]bridge.VLANOptions{}
	pvids := 0
	for _, r := range p.VLANs {
		if r.First < 1 || r.Last > maxVLAN || r.Last < r.First {
			m.fail(p.At, "%s: VLANs %d-%d are not a range; give numbers 1 to %d, the lower one first", what, r.First, r.Last, maxVLAN)
			continue
		}
		for id := r.First; id <= r.Last; id++ {
			if _, ok := set[id]; ok {
				m.fail(p.At, "%s: VLAN %d occurs twice; give each VLAN once", what, id)
			}
			set[id] = r.VLANOptions
			if r.PVID {
				pvids++
			}
		}
	}
	if pvids > 1 {
		m.fail(p.At, "%s: a port has one PVID, not %d; give one pvid", what, pvids)
	}
	return vlanRanges(set)
}

// defaultVLANs returns the VLANs of a new port.
func defaultVLANs(c bridge.BridgeConfig) []bridge.VLANRange {
	switch {
	case !c.VLANFiltering:
		return nil
	case c.DefaultPVID == 0:
		return []bridge.VLANRange{}
	}
	return []bridge.VLANRange{{First: c.DefaultPVID, Last: c.DefaultPVID, VLANOptions: bridge.VLANOptions{Untagged: true, PVID: true}}}
}

// vlanRanges returns VLANs in the format of bridge.VLANs: ascending, in the fewest ranges, with the VLAN of untagged
// frames in a range of its own.
func vlanRanges(set map[uint16]bridge.VLANOptions) []bridge.VLANRange {
	list := []bridge.VLANRange{}
	for _, id := range slices.Sorted(maps.Keys(set)) {
		o := set[id]
		if last := len(list) - 1; last >= 0 && !o.PVID && list[last].Last == id-1 && list[last].VLANOptions == o {
			list[last].Last = id
			continue
		}
		list = append(list, bridge.VLANRange{First: id, Last: id, VLANOptions: o})
	}
	return list
}

func (p *portModel) inVLAN(id uint16) bool {
	return slices.ContainsFunc(p.vlans, func(r bridge.VLANRange) bool { return r.First <= id && id <= r.Last })
}

// pvid returns the VLAN of untagged frames, 0 for none.
func (p *portModel) pvid() uint16 {
	for _, r := range p.vlans {
		if r.PVID {
			return r.First
		}
	}
	return 0
}

// forgetHosts removes the interfaces of host ports that leave. A new interface with the same name in another bridge is
// a different device, which does not exist yet.
func (m *model) forgetHosts() {
	for name, d := range m.devices {
		b := m.byName[d.Host]
		if b == nil {
			continue
		}
		if p := b.byName[name]; p == nil || p.kind != bridge.TypeHost {
			delete(m.devices, name)
		}
	}
}

// perhaps returns the device outside all bridges whose name is most similar, "" if there is none. Names that differ
// only in numbers belong to different devices.
func (m *model) perhaps(b *bridgeModel, name string) string {
	letters := func(s string) string { return strings.Trim(s, "0123456789") }
	var free []string
	for device, d := range m.devices {
		if d.Bridge == "" && d.Refusal == "" && d.Ethernet && b.byName[device] == nil && letters(device) != letters(name) {
			free = append(free, device)
		}
	}
	if len(free) == 0 {
		return ""
	}
	slices.Sort(free)
	if near := nearest(name, free); 2*levenshtein.Distance(name, near, nil) < len(name) {
		return "; the nearest is " + near
	}
	return ""
}

// expand finds the devices for a bridge's ports.
func (m *model) expand(b, was *bridgeModel) {
	isPort := func(name string) bool {
		return was != nil && was.byName[name] != nil && was.byName[name].kind == bridge.TypeNetdev
	}
	for _, p := range b.ports {
		d := m.devices[p.name]
		m.checkIPv6(b, p, d)
		switch {
		case p.left:
			p.waits = true
		case p.kind != bridge.TypeNetdev && d != nil && d.Bridge == b.Name && was != nil && was.byName[p.name] != nil && was.byName[p.name].kind == p.kind:
			m.fail(p.at, "port %s of %s: a device that is a port of the bridge now has the same name; rename it with 'ip link set %s name NAME'",
				p.name, b.Name, p.name)
		case p.kind == bridge.TypeNetdev && d == nil:
			p.lost = isPort(p.name)
			p.waits = !p.lost
			m.note("port %s of %s waits for its device%s", p.name, b.Name, m.perhaps(b, p.name))
		case p.kind == bridge.TypeNetdev && d.Refusal != "":
			m.fail(p.at, "port %s of %s: %s", p.name, b.Name, d.Refusal)
		case p.kind == bridge.TypeNetdev && d.Cut != "" && d.Bridge != b.Name && !p.force:
			m.fail(p.at, "port %s of %s: %s, or write force: on", p.name, b.Name, d.Cut)
		}
	}
	// a port that has lost its device stays, like one with its own entry
	names := []string{}
	for name := range m.devices {
		names = append(names, name)
	}
	if was != nil {
		for _, p := range was.ports {
			if m.devices[p.name] == nil && p.kind == bridge.TypeNetdev {
				names = append(names, p.name)
			}
		}
	}
	slices.Sort(names)
	mirrors := map[string]bool{}
	for _, mirror := range b.Mirrors {
		mirrors[mirror.Device] = true
	}
	for _, name := range names {
		d := m.devices[name]
		if b.byName[name] != nil || mirrors[name] || d != nil && !d.Ethernet {
			continue
		}
		pattern := b.match(name)
		switch {
		case pattern == nil:
			continue
		case d != nil && d.Own:
			continue // claim adds the error
		case d != nil && d.Owner != "":
			continue // the owner handles it
		case d != nil && d.Refusal != "":
			m.note("pattern %s of %s leaves %s out: %s", pattern.Name, b.Name, name, d.Refusal)
			continue
		case d != nil && d.Cut != "" && d.Bridge != b.Name && !pattern.Options.Force:
			m.note("pattern %s of %s leaves %s out: %s, or write force: on", pattern.Name, b.Name, name, d.Cut)
			continue
		case d != nil && d.Bridge != "" && m.byName[d.Bridge] == nil:
			// a user added the port manually; the rest of the file can still be applied
			m.note("pattern %s of %s leaves %s out: it is a port of bridge %s, which the file does not name", pattern.Name, b.Name, name, d.Bridge)
			continue
		}
		p := m.quietly(func() *portModel { return m.readPort(b, pattern, "") }) // it was parsed before
		p.name, p.pattern, p.lost = name, pattern.Name, d == nil
		b.ports = append(b.ports, p)
		b.byName[name] = p
	}
}

// refuseTwins refuses the same address for two host ports that share a VLAN.
func (m *model) refuseTwins() {
	for _, b := range m.bridges {
		for i, p := range b.ports {
			for _, o := range b.ports[:i] {
				meet := !b.config.VLANFiltering || slices.ContainsFunc(p.vlans, func(r bridge.VLANRange) bool {
					return slices.ContainsFunc(o.vlans, func(other bridge.VLANRange) bool { return r.First <= other.Last && other.First <= r.Last })
				})
				if p.mac != nil && bytes.Equal(p.mac, o.mac) && meet {
					m.fail(p.at, "port %s of %s: mac %s is also the one of port %s; give another", p.name, b.Name, p.mac, o.name)
				}
			}
		}
	}
}

// checkIPv6 refuses IPv6 addresses at an interface whose MTU is too small for IPv6.
func (m *model) checkIPv6(b *bridgeModel, p *portModel, there *bridge.Device) {
	mtu := p.mtu
	if mtu == 0 && there != nil && p.kind == bridge.TypeHost && there.Host == b.Name {
		mtu = there.MTU
	}
	i := slices.IndexFunc(p.addresses, func(a netip.Prefix) bool { return a.Addr().Is6() })
	if i >= 0 && mtu != 0 && mtu < bridge.IPv6MTU {
		back := ""
		if p.mtu == 0 { // a command has set the MTU
			back = ", or undo what commands have changed with 'bascule apply --back 0'"
		}
		m.fail(p.at, "port %s of %s: address %s is IPv6, which needs an MTU of %d, not %d; give mtu: %d%s",
			p.name, b.Name, p.addresses[i], bridge.IPv6MTU, mtu, bridge.IPv6MTU, back)
	}
}

// quietly runs a function and drops its errors, which were reported before.
func (m *model) quietly(read func() *portModel) *portModel {
	bad := m.bad
	m.bad = faults{}
	p := read()
	m.bad = bad
	return p
}

// match returns the pattern for a device without an entry of its own, or nil.
func (b *bridgeModel) match(device string) *Port {
	for _, p := range b.patterns {
		if ok, _ := path.Match(p.Name, device); ok {
			return p
		}
	}
	return nil
}

// claim refuses to use a device for two ports, and to use the switch's own devices.
func (m *model) claim(was *model) {
	type owner struct {
		bridge, what string // "port eth1 of br0"
		at           Position
		byPattern    bool
	}
	taken := map[string]owner{} // devices
	hosts := map[string]owner{} // interfaces that will be made
	take := func(in map[string]owner, name string, o owner) {
		first, ok := in[name]
		if ok && first.bridge != o.bridge {
			m.fail(o.at, "%s is already %s, at %s; a device is a port of only one bridge: remove one", o.what, first.what, first.at)
			return
		}
		in[name] = o
	}
	for _, b := range m.bridges {
		for _, p := range b.ports {
			o := owner{b.Name, "port " + p.name + " of " + b.Name, p.at, false}
			switch {
			case p.left:
			case p.kind == bridge.TypeHost:
				take(hosts, p.name, o)
				d := m.devices[p.name]
				if d != nil && d.Host != b.Name {
					m.fail(p.at, "%s: an interface of this name exists; give the host port another name", o.what)
				}
			case p.kind == bridge.TypeNetdev && p.pattern == "":
				take(taken, p.name, o)
			}
		}
		for i := range b.Mirrors {
			mirror := &b.Mirrors[i]
			what := "span port " + mirror.Device + " of " + b.Name
			if mirror.left != "" {
				continue
			}
			if p := b.byName[mirror.Device]; p != nil {
				m.fail(mirror.At, "%s is already port %s of %s, at %s; remove one", what, p.name, b.Name, p.at)
				continue
			}
			take(taken, mirror.Device, owner{b.Name, what, mirror.At, false})
		}
	}
	// a device stays in a running bridge that no file names
	for name, o := range taken {
		d := m.devices[name]
		what := ""
		switch host, made := hosts[name]; {
		case made:
			what = fmt.Sprintf("the host's interface of %s, at %s", host.what, host.at)
		case d != nil && d.Host != "":
			what = "the host's interface of a host port of " + d.Host
		case d != nil && d.Own:
			what = "the switch's end of a host port"
		}
		if what != "" {
			m.fail(o.at, "%s is %s; join bridges with a patch cable (type: patch), or with a veth pair of your own", o.what, what)
			continue
		}
		if d != nil && d.Owner != "" {
			m.fail(o.at, "%s: the device was plugged with the id %s; leave it out here, or remove it with 'bascule unplug %s'", o.what, d.Owner, d.Owner)
			continue
		}
		if d == nil || d.Bridge == "" || d.Bridge == o.bridge || m.byName[d.Bridge] != nil {
			continue
		}
		m.fail(o.at, "%s: the device is a port of bridge %s, which the file does not name; delete it there first with 'bascule port del %s %s'", o.what, d.Bridge, d.Bridge, name)
	}
	for _, b := range m.bridges {
		for _, p := range b.patterns {
			m.checkPattern(b, p, was, func(name string) (string, Position, bool) {
				o, ok := taken[name]
				return o.what, o.at, ok && o.bridge != b.Name
			})
		}
		for _, p := range b.ports {
			if p.pattern == "" {
				continue
			}
			o := owner{b.Name, fmt.Sprintf("port %s of %s (by %s)", p.name, b.Name, p.pattern), p.at, true}
			if first, ok := taken[p.name]; ok && first.bridge == b.Name {
				continue
			} else if ok && !first.byPattern {
				continue // checkPattern has added the error
			}
			take(taken, p.name, o)
		}
	}
}

// checkPattern refuses a pattern that matches reserved names, even if the devices do not exist now: the names of other
// ports and mirrors of the file, and of devices that the switch itself makes.
func (m *model) checkPattern(b *bridgeModel, p *Port, was *model, other func(string) (string, Position, bool)) {
	matches := func(name string) bool { ok, _ := path.Match(p.Name, name); return ok }
	own := func(name, what string) bool {
		if !matches(name) {
			return false
		}
		m.fail(p.At, "pattern %s of %s matches %s, %s; give one that does not match it", p.Name, b.Name, name, what)
		return true
	}
	for _, state := range []*model{m, was} {
		for _, o := range state.bridges {
			for _, port := range o.ports {
				if port.kind != bridge.TypeHost {
					continue
				}
				if own(port.name, "the interface of a host port of "+o.Name) || own(bridge.SwitchEnd(o.Name, port.name), "the switch's end of host port "+port.name+" of "+o.Name) {
					return
				}
			}
		}
	}
	for _, name := range sortedNames(m.devices) {
		if m.devices[name].Own && own(name, "a device of the switch's own") {
			return
		}
	}
	for _, o := range m.bridges {
		for _, port := range o.ports {
			if what, at, ok := other(port.name); ok && port.pattern == "" && matches(port.name) {
				m.fail(p.At, "pattern %s of %s matches %s, at %s; give one that does not match it", p.Name, b.Name, what, at)
				return
			}
		}
		for _, mirror := range o.Mirrors {
			if what, at, ok := other(mirror.Device); ok && matches(mirror.Device) {
				m.fail(p.At, "pattern %s of %s matches %s, at %s; give one that does not match it", p.Name, b.Name, what, at)
				return
			}
		}
	}
}

func sortedNames[V any](m map[string]V) []string {
	names := make([]string, 0, len(m))
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// checkPatches refuses patch cables whose ends do not match.
func (m *model) checkPatches(b *bridgeModel, was *model) {
	for _, p := range b.ports {
		if p.kind != bridge.TypePatch || p.left {
			continue
		}
		what := "port " + p.name + " of " + b.Name
		far, port, ok := strings.Cut(p.peer, "/")
		switch {
		case p.peer == "":
			m.fail(p.at, "%s: the cable needs another end; give peer: BRIDGE/PORT", what)
			continue
		case !ok || far == "" || port == "" || strings.Contains(port, "/"):
			m.fail(p.at, "%s: peer %s is not the other end of a cable; give BRIDGE/PORT", what, p.peer)
			continue
		case far == b.Name:
			m.fail(p.at, "%s: a patch to its own bridge would be a loop; give a port of another as peer", what)
			continue
		}
		here := b.Name + "/" + p.name
		if other := m.byName[far]; other != nil {
			end := other.byName[port]
			switch {
			case end == nil || end.kind != bridge.TypePatch:
				m.fail(p.at, "%s: bridge %s has no patch port %s; give it there with peer: %s", what, far, port, here)
			case end.peer != here:
				m.fail(p.at, "%s: its peer %s has peer %s, at %s; give both ends each other", what, p.peer, cmp.Or(end.peer, "none"), end.at)
			}
			continue
		}
		other := was.byName[far]
		if other == nil {
			m.fail(p.at, "%s: there is no bridge %s for its peer; put it into the file", what, far)
			continue
		}
		if end := other.byName[port]; end != nil && (end.kind != bridge.TypePatch || end.peer != here) {
			m.fail(p.at, "%s: %s is another port of bridge %s; give another peer", what, port, far)
		}
	}
}

// fid returns the VLAN whose FDB entries a VLAN uses: for a private VLAN the primary one.
func (b *bridgeModel) fid(id uint16) uint16 { return cmp.Or(b.fids[id], id) }

func (m *model) readPrivate(b *bridgeModel) {
	role := map[uint16]string{}
	for _, p := range b.Private {
		what := fmt.Sprintf("private VLAN %d of %s", p.Primary, b.Name)
		if !b.config.VLANFiltering {
			m.fail(p.At, "%s: the bridge does not filter VLANs; give it vlan-filtering: on", what)
			continue
		}
		if len(p.Isolated) > 1 {
			m.fail(p.At, "%s: a primary VLAN has one isolated VLAN, not %s; give one", what, bridge.FormatVLANs(p.Isolated))
		}
		if len(p.Isolated)+len(p.Community) == 0 {
			m.fail(p.At, "%s: no VLAN is below it; give isolated or community, or leave it out", what)
		}
		add := func(id uint16, is string) {
			switch {
			case id < 1 || id > maxVLAN:
				m.fail(p.At, "%s: VLAN %d does not exist; give 1 to %d", what, id, maxVLAN)
			case role[id] != "":
				m.fail(p.At, "%s: VLAN %d is already %s; give each a VLAN of its own", what, id, role[id])
			default:
				role[id] = is
			}
		}
		add(p.Primary, "primary")
		for _, id := range p.Isolated {
			add(id, fmt.Sprintf("isolated below %d", p.Primary))
		}
		for _, id := range p.Community {
			add(id, fmt.Sprintf("a community below %d", p.Primary))
		}
		below := bridge.PrivateVLANs{Isolated: slices.Sorted(slices.Values(p.Isolated)), Community: slices.Sorted(slices.Values(p.Community))}
		b.private[p.Primary] = below
	}
	b.fids = map[uint16]uint16{}
	for primary, below := range b.private {
		for _, id := range slices.Concat(below.Isolated, below.Community) {
			b.fids[id] = primary
		}
	}
	for _, p := range b.ports {
		if len(b.fids) == 0 {
			break
		}
		for _, r := range p.vlans {
			for id := r.First; id <= r.Last && !r.Untagged; id++ {
				if fid := b.fid(id); fid != id && !p.inVLAN(fid) {
					m.fail(p.at, "port %s of %s has VLAN %d with a tag, but not its primary VLAN %d; give a trunk both, or an access port only the private one, as pvid", p.name, b.Name, id, fid)
				}
			}
		}
	}
}

// port finds the port that another object of a bridge names. It returns nil if the port does not exist; ok reports
// whether it may appear later.
func (m *model) port(b *bridgeModel, name string) (p *portModel, ok bool) {
	if p := b.byName[name]; p != nil {
		return p, true
	}
	return nil, b.match(name) != nil
}

func (m *model) readRules(b *bridgeModel) {
	for _, r := range b.Rules {
		parsed, err := rule.ParseRule(strings.Fields(r.Text), "")
		if err != nil {
			m.fail(r.At, "rule of %s: %v", b.Name, err)
			continue
		}
		p, ok := m.port(b, parsed.Port)
		switch {
		case !ok:
			m.fail(r.At, "rule of %s: %s is not a port of the bridge; name one that is", b.Name, parsed.Port)
		case p == nil || p.waits:
		default:
			b.rules = append(b.rules, portRule{p.name, parsed.String()})
		}
	}
}

// addressVLAN returns the FDB's VLAN for an address on a port.
func (m *model) addressVLAN(b *bridgeModel, p *portModel, at Position, what string, id uint16, needed bool) (uint16, bool) {
	switch {
	case id > maxVLAN:
		m.fail(at, "%s: VLAN %d does not exist; give 1 to %d", what, id, maxVLAN)
	case !b.config.VLANFiltering:
		return id, true
	case id == 0 && needed:
		m.fail(at, "%s: bridge %s filters VLANs, and every frame is in one; give vlan", what, b.Name)
	case p.waits:
		return id, true
	case id == 0 && p.pvid() == 0:
		m.fail(at, "%s: port %s has no PVID; give vlan", what, p.name)
	case !p.inVLAN(cmp.Or(id, p.pvid())):
		m.fail(at, "%s: port %s is not in VLAN %d; give one that it is in", what, p.name, id)
	default:
		return b.fid(cmp.Or(id, p.pvid())), true
	}
	return 0, false
}

// readBackups finds the backups of ports. A port whose backup waits for its device has no backup until the device
// exists.
func (m *model) readBackups(b *bridgeModel) {
	for _, p := range b.ports {
		name := p.config.Backup
		if name == "" {
			continue
		}
		what := "backup " + name + " of port " + p.name + " of " + b.Name
		backup, ok := m.port(b, name)
		switch {
		case name == p.name:
			m.fail(p.at, "%s: a port cannot be its own backup; name another port", what)
		case p.kind == bridge.TypePatch:
			m.fail(p.at, "%s: a patch port has no carrier to lose; leave backup out", what)
		case !ok:
			m.fail(p.at, "%s: %s is not a port of the bridge; name one that is", what, name)
		case backup == nil || backup.waits:
			p.config.Backup = ""
			if !p.waits {
				m.note("%s waits for its device", what)
			}
		}
	}
}

func (m *model) readMirrors(b *bridgeModel, was *model) {
	seen := map[string]bool{}
	for _, mirror := range b.Mirrors {
		what := "span port " + mirror.Device + " of " + b.Name
		if err := bridge.CheckName("port", mirror.Device); err != nil {
			m.fail(mirror.At, "%v", err)
			continue
		}
		if seen[mirror.Device] {
			m.fail(mirror.At, "%s occurs twice; remove one", what)
			continue
		}
		seen[mirror.Device] = true
		mirror.Direction = cmp.Or(mirror.Direction, bridge.DirectionIn)
		switch mirror.Direction {
		case bridge.DirectionIn, bridge.DirectionOut, bridge.DirectionBoth:
		default:
			m.fail(mirror.At, "%s: there is no direction %s; give in, out or both", what, mirror.Direction)
		}
		if len(mirror.VLANs) > 0 && !b.config.VLANFiltering {
			m.fail(mirror.At, "%s: bridge %s does not filter VLANs, and no frame is in one; give it vlan-filtering: on", what, b.Name)
		}
		x := &mirrorModel{Mirror: mirror}
		x.Ports = slices.Sorted(slices.Values(mirror.Ports))
		if ports := slices.Compact(slices.Clone(x.Ports)); len(ports) < len(x.Ports) {
			m.fail(mirror.At, "%s: a port occurs twice in %s; remove one", what, strings.Join(mirror.Ports, ","))
		}
		x.VLANs = slices.Sorted(slices.Values(mirror.VLANs))
		switch d := m.devices[x.Device]; {
		case was == nil:
		case x.left != "":
			x.waits = true
		case d == nil:
			runs := was.byName[b.Name] != nil && slices.ContainsFunc(was.byName[b.Name].mirrors, func(o *mirrorModel) bool { return o.Device == x.Device })
			if x.waits = !runs; x.waits {
				m.note("%s waits for its device", what)
			}
		case d.Refusal != "":
			m.fail(x.At, "%s: %s", what, d.Refusal)
		case d.Cut != "" && d.Bridge != b.Name && !mirror.Force:
			m.fail(x.At, "%s: %s, or write force: on", what, d.Cut)
		}
		for _, name := range x.Ports {
			p, ok := m.port(b, name)
			switch {
			case slices.ContainsFunc(b.Mirrors, func(o Mirror) bool { return o.Device == name }):
				m.fail(mirror.At, "%s: %s is a span port itself, and copies are not copied; name another port", what, name)
			case !ok:
				m.fail(mirror.At, "%s: %s is not a port of the bridge; name one that is", what, name)
			case p == nil || p.waits:
				if !x.waits {
					m.note("%s waits for port %s", what, name)
				}
				x.waits = true
			}
		}
		for _, id := range x.VLANs {
			m.checkMirrored(b, x, what, id)
		}
		b.mirrors = append(b.mirrors, x)
	}
}

// checkMirrored requires ports in a mirrored VLAN, since a VLAN without ports must be a mistake.
func (m *model) checkMirrored(b *bridgeModel, x *mirrorModel, what string, id uint16) {
	if !b.config.VLANFiltering {
		return
	}
	may := false
	for _, p := range b.ports {
		if p.inVLAN(id) {
			if !p.waits {
				return
			}
			may = true
		}
	}
	for _, p := range b.patterns {
		port := m.quietly(func() *portModel { return m.readPort(b, p, "") })
		may = may || port.inVLAN(id)
	}
	if !may {
		m.fail(x.At, "%s: no port is in VLAN %d; give one that has ports", what, id)
		return
	}
	if !x.waits {
		m.note("%s waits for a port in VLAN %d", what, id)
	}
	x.waits = true
}
