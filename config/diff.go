// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bascule/bridge"
	"bascule/pf"
)

// A diff is the part of a plan for one bridge.
type diff struct {
	*plan
	want, was *bridgeModel
	exists    bool            // whether the bridge exists
	gone      map[string]bool // ports and mirrors that leave or are made again; their objects go with them
	edits     []func(*bridge.Edit) error
}

func (p *plan) newDiff(b *bridgeModel) *diff {
	d := &diff{plan: p, want: b, was: p.was.byName[b.Name], gone: map[string]bool{}}
	if d.exists = d.was != nil; !d.exists {
		d.was = &bridgeModel{Bridge: &Bridge{Name: b.Name}, byName: map[string]*portModel{}}
		d.was.config = bridge.Defaults(bridge.BridgeSettings)
	}
	return d
}

func (d *diff) act(op Op, object, detail string) {
	d.actions = append(d.actions, Action{op, d.want.Name, object + " of " + d.want.Name, detail})
}

func (d *diff) edit(f func(*bridge.Edit) error) { d.edits = append(d.edits, f) }

// leaves reports whether a port leaves for good. Whatever belongs to the port goes with it, without an action.
func (d *diff) leaves(port string) bool { return d.gone[port] && d.want.byName[port] == nil }

// isPort reports whether the device of a running port or mirror exists.
func (d *diff) isPort(name, kind string) bool {
	device := d.plan.want.devices[name]
	if device == nil {
		return false
	}
	if kind == bridge.TypeHost {
		return device.Host == d.want.Name
	}
	return device.Bridge == d.want.Name
}

// made reports whether a running port must be replaced to reach the desired state.
func (d *diff) made(was, want *portModel) bool {
	switch {
	case was.kind != want.kind:
		return true
	case want.kind == bridge.TypePatch:
		return was.peer != want.peer
	case d.isPort(want.name, want.kind):
		return false
	}
	// the port has lost its device: is there a new one?
	return want.kind == bridge.TypeHost || d.plan.want.devices[want.name] != nil
}

func (d *diff) bridge() {
	name := d.want.Name
	changes, details := changed(bridge.BridgeSettings, d.was.config, d.want.config, d.exists)
	switch {
	case !d.exists:
		d.actions = append(d.actions, Action{Add, name, "bridge " + name, strings.Join(details, ", ")})
		d.step(makeBridges, func(s *bridge.Switch, _ Options) ([]string, error) { return nil, s.AddBridge(name, changes) })
	case len(changes) > 0:
		d.actions = append(d.actions, Action{Change, name, "bridge " + name, strings.Join(details, ", ")})
		d.edit(func(e *bridge.Edit) error { return e.Set(changes) })
	}
}

// A difference is a setting whose value has changed.
type difference struct{ name, before, after string }

// differences returns the settings with different values, in the order of their table.
func differences[T any](settings []bridge.Setting[T], was, want T) (list []difference) {
	for _, s := range settings {
		if before, after := s.Format(was), s.Format(want); before != after {
			list = append(list, difference{s.Name, before, after})
		}
	}
	return list
}

// saidOnce drops a difference that another one implies: isolated means membership in one of the protected domains. If
// this domain is the only change, only isolated is listed, otherwise only protected.
func saidOnce(list []difference) []difference {
	isolated := slices.IndexFunc(list, func(d difference) bool { return d.name == bridge.IsolatedSetting })
	protected := slices.IndexFunc(list, func(d difference) bool { return d.name == bridge.ProtectedSetting })
	if isolated < 0 || protected < 0 {
		return list
	}
	hide, d := isolated, list[protected]
	if none, alone := bridge.Domains(0).String(), bridge.IsolatedDomain.String(); d.before == none && d.after == alone || d.before == alone && d.after == none {
		hide = protected
	}
	return slices.Delete(slices.Clone(list), hide, hide+1)
}

// changed returns the settings with different values as they are in want, and the details to print: with the former
// value if there was one.
func changed[T any](settings []bridge.Setting[T], was, want T, existed bool) (changes []bridge.Change, details []string) {
	list := differences(settings, was, want)
	for _, d := range saidOnce(list) {
		details = append(details, transition(d.name, d.before, d.after, existed))
	}
	return asChanges(list), details
}

func asChanges(list []difference) (changes []bridge.Change) {
	for _, d := range list {
		changes = append(changes, bridge.Change{Name: d.name, Value: d.after})
	}
	return changes
}

// hookFor returns the hook that a port will have. With auto, a hardware device keeps its present hook, since some
// drivers refuse XDP.
func (d *diff) hookFor(want *portModel, runs string) string {
	if want.hook != bridge.HookAuto {
		return want.hook
	}
	if device := d.plan.want.devices[want.name]; device != nil && device.Physical && runs != "" {
		return runs
	}
	return bridge.HookTCX
}

func (d *diff) ports() {
	for _, was := range d.was.ports {
		if d.gone[was.name] {
			d.act(Delete, "port "+was.name, d.portDetail(was))
			if was.kind == bridge.TypeHost {
				d.plan.hostsGo = append(d.plan.hostsGo, [2]string{d.want.Name, was.name})
			}
			if far, port, cable := strings.Cut(was.peer, "/"); cable && d.plan.want.byName[far] == nil {
				d.actions = append(d.actions, Action{Delete, far, "port " + port + " of " + far, "type patch, peer " + d.want.Name + "/" + was.name})
			}
			d.deletePort(was)
		}
	}
	for _, want := range d.want.ports {
		was := d.was.byName[want.name]
		switch {
		case want.waits:
		case was == nil || d.gone[want.name]:
			d.addPort(want)
		default:
			d.setPort(was, want)
		}
	}
}

func (d *diff) deletePort(p *portModel) {
	name, port := d.want.Name, p.name
	switch {
	case p.kind == bridge.TypePatch:
		if d.cutElsewhere(p) {
			return
		}
		d.step(cutCables, func(s *bridge.Switch, _ Options) ([]string, error) {
			_, err := s.DelPort(name, port) // the port that it was a backup for gets the file's value
			return nil, err
		})
	case !d.early[name][port]:
		d.edit(func(e *bridge.Edit) error { return e.DelPort(port) })
	}
}

// madeOf describes a new port, apart from the settings of its interface. settings lists the ones that differ from the
// defaults.
func madeOf(p *portModel, settings []string, usual []bridge.VLANRange) (details []string) {
	if p.kind != bridge.TypeNetdev {
		details = append(details, "type "+p.kind)
	}
	if p.peer != "" {
		details = append(details, "peer "+p.peer)
	}
	if p.hook != "" && p.hook != bridge.HookAuto {
		details = append(details, "hook "+p.hook)
	}
	details = append(details, settings...)
	if !slices.Equal(p.vlans, usual) {
		details = append(details, vlanDetails(nil, p.vlans, false)...)
	}
	return details
}

// portDetail describes a deleted port in the words of the line that made it.
func (d *diff) portDetail(was *portModel) string {
	_, settings := changed(bridge.PortSettings, bridge.PortDefaults(was.kind), was.config, false)
	details := madeOf(was, settings, defaultVLANs(d.was.config))
	if it := d.plan.want.devices[was.name]; was.kind == bridge.TypeHost && it != nil && len(it.Kept) > 0 {
		details = append(details, "addresses "+addressWords(it.Kept))
	}
	return strings.Join(details, ", ")
}

func (d *diff) addPort(want *portModel) {
	name := d.want.Name
	initial := bridge.PortDefaults(want.kind)
	changes, details := changed(bridge.PortSettings, initial, want.config, false)
	o := bridge.PortOptions{Type: want.kind, Peer: want.peer, Hook: want.hook, Changes: changes, Force: want.force}
	usual := defaultVLANs(d.want.config)
	details = madeOf(want, details, usual)
	if o.MAC = want.mac; o.MAC != nil {
		details = append(details, "mac "+o.MAC.String())
	}
	if o.MTU = want.mtu; o.MTU != 0 {
		details = append(details, fmt.Sprint("mtu ", o.MTU))
	}
	if len(want.addresses) > 0 {
		details = append(details, "addresses "+addressWords(want.addresses))
	}
	device := d.plan.want.devices[want.name]
	had := ""
	if device != nil {
		had = device.Description
	}
	if want.description != nil && *want.description != had {
		o.Description = want.description
		details = append(details, "description "+strconv.Quote(*want.description))
	}
	switch {
	case want.kind == bridge.TypeHost:
		if !want.up {
			details = append(details, "up off")
		}
		d.hostInterface(want, bridge.HostInterface{Addresses: want.addresses, Up: &want.up})
	case want.kind == bridge.TypeNetdev && device != nil && device.Up != want.up:
		o.Up = &want.up
		details = append(details, "up "+switchWord(want.up))
	}
	d.act(Add, "port "+want.name, strings.Join(details, ", "))
	if want.kind == bridge.TypeNetdev {
		d.addressed(want.name)
	}
	port, vlans := want.name, want.vlans
	if want.kind == bridge.TypePatch {
		if !d.patchedElsewhere(want) {
			d.step(patchCables, func(s *bridge.Switch, _ Options) ([]string, error) {
				notes, err := s.AddPort(name, port, o)
				return about("port "+port+" of "+name, notes), err
			})
		} else if len(changes) > 0 {
			d.edit(func(e *bridge.Edit) error { return e.SetPort(port, bridge.PortOptions{Changes: changes}) })
		}
	} else {
		d.edit(func(e *bridge.Edit) error { return e.AddPort(port, o) })
	}
	if d.want.config.VLANFiltering && !slices.Equal(vlans, usual) {
		d.edit(func(e *bridge.Edit) error { return e.SetVLANs(port, vlans) })
	}
}

// addressed warns about a device with addresses that becomes a port. The bridge gives the same warning when it makes
// the port.
func (d *diff) addressed(device string) {
	if it := d.plan.want.devices[device]; it != nil && len(it.Addresses) > 0 {
		host := ""
		if i := slices.IndexFunc(d.want.ports, func(p *portModel) bool { return p.kind == bridge.TypeHost }); i >= 0 {
			host = d.want.ports[i].name
		}
		warning := bridge.AddressWarning(d.want.Name, host, device, it.Addresses)
		d.warnings = append(d.warnings, about("bridge "+d.want.Name, []string{warning})...)
	}
}

func (d *diff) setPort(was, want *portModel) {
	var o bridge.PortOptions
	var details []string
	o.Changes, details = changed(bridge.PortSettings, was.config, want.config, true)
	runs := was.hook
	if runs == bridge.HookAuto { // Read returns auto for the hook that auto chooses
		runs = bridge.HookTCX
	}
	if want.kind != bridge.TypePatch && d.isPort(want.name, want.kind) {
		if hook := d.hookFor(want, runs); hook != runs {
			o.Hook = hook
			details = append([]string{transition("hook", runs, hook, true)}, details...)
		}
	}
	port, vlans := want.name, want.vlans
	if d.want.config.VLANFiltering {
		if !slices.Equal(was.vlans, want.vlans) {
			details = append(details, vlanDetails(was.vlans, want.vlans, true)...)
		}
		// a bridge that begins to filter may remember VLANs, and a new default VLAN moves ports into it
		if !slices.Equal(was.vlans, want.vlans) || !d.was.config.VLANFiltering || d.was.config.DefaultPVID != d.want.config.DefaultPVID {
			d.edit(func(e *bridge.Edit) error { return e.SetVLANs(port, vlans) })
		}
	}
	if want.kind == bridge.TypeHost {
		var host bridge.Device
		if there := d.plan.want.devices[port]; there != nil {
			host = *there
		}
		if want.mac != nil && !bytes.Equal(want.mac, host.MAC) {
			o.MAC = want.mac
			details = append(details, transition("mac", host.MAC.String(), want.mac.String(), true))
		}
		if o.OwnMAC = want.ownMAC && host.OwnMAC != nil && !bytes.Equal(host.OwnMAC, host.MAC); o.OwnMAC {
			details = append(details, transition("mac", host.MAC.String(), bridge.Auto, true))
		}
		if want.mtu != 0 && want.mtu != host.MTU {
			o.MTU = want.mtu
			details = append(details, transition("mtu", fmt.Sprint(host.MTU), fmt.Sprint(want.mtu), true))
		}
		// the kernel removes them
		if smallMTU(want, host) && want.addresses == nil && slices.ContainsFunc(host.Kept, isIPv6) {
			left := slices.DeleteFunc(slices.Clone(host.Kept), isIPv6)
			details = append(details, transition("addresses", addressWords(host.Kept), addressWords(left), true))
		}
		var it bridge.HostInterface
		if want.addresses != nil && !sameAddresses(host.Kept, want.addresses) {
			details = append(details, transition("addresses", addressWords(host.Kept), addressWords(want.addresses), true))
			it = bridge.HostInterface{Addresses: want.addresses, Up: &want.up}
		}
		if want.up != host.Up && (want.saysUp || !host.Away) {
			details = append(details, transition("up", switchWord(host.Up), switchWord(want.up), true))
			it.Up = &want.up
		}
		if it.Addresses != nil || it.Up != nil {
			d.hostInterface(want, it)
		}
	}
	if device := d.plan.want.devices[port]; device != nil && want.kind != bridge.TypePatch && d.isPort(port, want.kind) {
		if want.kind == bridge.TypeNetdev && device.Up != want.up {
			details = append(details, transition("up", switchWord(device.Up), switchWord(want.up), true))
			o.Up = &want.up
		}
		if want.description != nil && *want.description != device.Description {
			details = append(details, transition("description", strconv.Quote(device.Description), strconv.Quote(*want.description), true))
			o.Description = want.description
		}
	}
	if len(details) > 0 {
		d.act(Change, "port "+port, strings.Join(details, ", "))
	}
	if len(o.Changes) > 0 || o.Hook != "" || o.MAC != nil || o.OwnMAC || o.MTU != 0 || o.Up != nil || o.Description != nil {
		d.edit(func(e *bridge.Edit) error { return e.SetPort(port, o) })
	}
}

// hostInterface plans the changes to the interface of a host port that exists.
func (d *diff) hostInterface(want *portModel, it bridge.HostInterface) {
	name, port := d.want.Name, want.name
	d.step(giveAddresses, func(s *bridge.Switch, _ Options) ([]string, error) { return nil, s.SetHostInterface(name, port, it) })
}

// sameAddresses reports whether two lists have the same addresses, in any order.
func sameAddresses(a, b []netip.Prefix) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(p netip.Prefix) bool { return !slices.Contains(b, p) })
}

// addressWords prints addresses.
func addressWords(list []netip.Prefix) string {
	words := make([]string, len(list))
	for i, a := range list {
		words[i] = a.String()
	}
	return cmp.Or(strings.Join(words, ","), "none")
}

// private runs before a bridge stops filtering: otherwise the bridge would keep the private VLANs until it filters
// again.
func (d *diff) private() {
	none := bridge.PrivateVLANs{Isolated: []uint16{}, Community: []uint16{}}
	var clear, set []func(*bridge.Edit) error
	for id := uint16(1); id <= maxVLAN; id++ {
		was, had := d.was.private[id]
		want, has := d.want.private[id]
		if had == has && slices.Equal(was.Isolated, want.Isolated) && slices.Equal(was.Community, want.Community) {
			continue
		}
		object := fmt.Sprintf("private VLAN %d", id)
		switch {
		case !has:
			d.act(Delete, object, privateDetail(was))
		case !had:
			d.act(Add, object, privateDetail(want))
		default:
			d.act(Change, object, privateDetail(was)+" -> "+privateDetail(want))
		}
		if had { // first, to free its VLANs for others
			clear = append(clear, func(e *bridge.Edit) error { return e.SetPrivateVLANs(id, none) })
		}
		if has {
			below := bridge.PrivateVLANs{Isolated: append([]uint16{}, want.Isolated...), Community: append([]uint16{}, want.Community...)}
			set = append(set, func(e *bridge.Edit) error { return e.SetPrivateVLANs(id, below) })
		}
	}
	if d.want.config.VLANFiltering {
		d.edits = slices.Concat(d.edits, clear, set)
	} else {
		d.edits = slices.Concat(clear, d.edits)
	}
}

func (d *diff) rules() {
	var was []portRule
	for _, r := range d.was.rules {
		switch {
		case !d.gone[r.port]:
			was = append(was, r)
		case d.leaves(r.port):
			d.act(Delete, "rule", r.text)
		}
	}
	changed := false
	left := map[portRule]int{}
	for _, r := range d.want.rules {
		left[r]++
	}
	kept := map[string][]string{} // by port, the rules that stay, in their order
	for _, r := range was {
		if left[r] == 0 {
			d.act(Delete, "rule", r.text)
			changed = true
			continue
		}
		left[r]--
		kept[r.port] = append(kept[r.port], r.text)
	}
	had := map[portRule]int{}
	for _, r := range was {
		had[r]++
	}
	for _, r := range d.want.rules {
		if had[r] == 0 {
			d.act(Add, "rule", r.text)
			changed = true
			continue
		}
		had[r]--
	}
	// rules that stay may be in another order, or have new rules between them
	before, after := byPort(was), byPort(d.want.rules)
	for _, p := range d.want.ports {
		if !slices.Equal(before[p.name], after[p.name]) && sameRules(before[p.name], after[p.name]) {
			d.act(Change, "rules of port "+p.name, "another order")
			changed = true
		}
		changed = changed || !slices.Equal(before[p.name], after[p.name])
	}
	if !changed {
		return
	}
	var text strings.Builder
	for _, r := range d.want.rules {
		fmt.Fprintln(&text, r.text)
	}
	name := d.want.At.Path
	d.edit(func(e *bridge.Edit) error {
		return e.ReplaceRules(cmp.Or(name, "rules"), strings.NewReader(text.String()))
	})
}

func byPort(rules []portRule) map[string][]string {
	m := map[string][]string{}
	for _, r := range rules {
		m[r.port] = append(m[r.port], r.text)
	}
	return m
}

func sameRules(a, b []string) bool {
	return slices.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// sameMirror reports whether a running mirror is in its desired state. Ports that leave are not copied any more.
func (d *diff) sameMirror(was, want *mirrorModel) bool {
	return !want.waits && !was.Emptied && was.Direction == want.Direction && slices.Equal(was.VLANs, want.VLANs) && slices.Equal(was.Ports, want.Ports) &&
		!slices.ContainsFunc(was.Ports, func(port string) bool { return d.gone[port] })
}

func (d *diff) mirrors() {
	name := d.want.Name
	for _, was := range d.was.mirrors {
		if !d.gone[was.Device] {
			continue
		}
		detail := ""
		if !was.Emptied {
			detail = mirrorDetail(was)
		}
		d.act(Delete, "span port "+was.Device, detail)
		if !d.early[name][was.Device] {
			d.edit(func(e *bridge.Edit) error { return e.DelSpan(was.Device) })
		}
	}
	for _, want := range d.want.mirrors {
		runs := slices.ContainsFunc(d.was.mirrors, func(m *mirrorModel) bool { return m.Device == want.Device })
		if want.waits || runs && !d.gone[want.Device] {
			continue
		}
		if d.plan.want.devices[want.Device] == nil { // it runs without its device, but can't be made again so
			d.warnings = append(d.warnings, fmt.Sprintf("span port %s of %s waits for its device", want.Device, d.want.Name))
			continue
		}
		d.act(Add, "span port "+want.Device, mirrorDetail(want))
		d.addressed(want.Device)
		d.edit(func(e *bridge.Edit) error { return e.AddSpan(want.Device, want.SpanOptions) })
	}
}

// ruleDiff lists the added and deleted rules of pf.
func (d *diff) ruleDiff(was, want string) {
	for _, l := range lineDiff(was, want) {
		d.act(l.op, "pf rule", l.text)
	}
}

// remove deletes a bridge that is empty by then, with its private VLANs and pf.
func (d *diff) remove() {
	name := d.want.Name
	for id := uint16(1); id <= maxVLAN; id++ {
		if it, ok := d.was.private[id]; ok {
			d.act(Delete, fmt.Sprintf("private VLAN %d", id), privateDetail(it))
		}
	}
	if pf := d.was.PF; pf != nil {
		d.act(Delete, "pf", "enabled "+switchWord(pf.Enabled))
		d.ruleDiff(pf.Rules, "")
	}
	_, details := changed(bridge.BridgeSettings, bridge.Defaults(bridge.BridgeSettings), d.was.config, false)
	d.actions = append(d.actions, Action{Delete, name, "bridge " + name, strings.Join(details, ", ")})
	d.step(removeBridges, func(s *bridge.Switch, _ Options) ([]string, error) { return s.DelBridge(name) })
}

func (d *diff) pf() {
	want := d.want.PF
	if want == nil {
		if path := d.want.At.Path; d.was.PF != nil && d.was.PF.Enabled && saysPF(path) {
			d.warnings = append(d.warnings, fmt.Sprintf("%s: pf of %s stays on, since the file has no link1; -link1 disables it", path, d.want.Name))
		}
		return
	}
	was := cmp.Or(d.was.PF, &PF{})
	load := want.Rules != "" && want.Rules != was.Rules
	name, enabled := d.want.Name, want.Enabled
	if !load && was.Enabled == enabled {
		return
	}
	var details []string
	if was.Enabled != enabled {
		details = append(details, transition("enabled", switchWord(was.Enabled), switchWord(enabled), true))
	}
	if load {
		details = append(details, "rules of "+cmp.Or(want.File, want.At.Path, "the file"))
	}
	d.act(Change, "pf", strings.Join(details, ", "))
	if load && want.printed != "" {
		d.ruleDiff(was.Rules, want.printed)
	}
	stage := loadPF
	if was.Enabled && !enabled {
		stage = openPF
	}
	if !load {
		d.step(stage, func(s *bridge.Switch, _ Options) ([]string, error) { return nil, s.EnablePF(name, enabled) })
		return
	}
	rules := bridge.PFLoad{Name: pfName(want), Text: []byte(want.Rules), Enable: &enabled, Later: true}
	var set *pf.Ruleset
	var told []string
	d.step(stage, func(s *bridge.Switch, o Options) (notes []string, err error) {
		rules.Source, rules.Ahead = o.PF, d.plan.ahead
		set, told, err = s.LoadPF(name, rules)
		told = want.placed(told)
		return told, err
	})
	d.step(followPF, func(s *bridge.Switch, _ Options) (notes []string, err error) {
		if rules.Ahead = nil; len(d.plan.ahead) > 0 {
			// an interface that has come up has link-local addresses as well
			same, _, err := s.ComparePF(name, rules)
			if err == nil && !same {
				set, notes, err = s.LoadPF(name, rules)
				notes = want.placed(notes)
			}
			if err != nil {
				return nil, err
			}
		}
		notes = slices.DeleteFunc(notes, func(note string) bool { return slices.Contains(told, note) })
		missed, err := s.NotesPF(name, set)
		return append(notes, want.placed(missed)...), err
	})
}
