// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"time"

	"bascule/bridge"
	"bascule/config"
)

// A device has those facts of an interface that matter.
type device struct {
	index     int
	name      string
	kind      string // as `ip -d link` has it: veth, tuntap, ...; "device" of hardware
	ethernet  bool
	loopback  bool
	switchEnd bool   // it is the switch's end of a host port
	master    int    // index of the device that it belongs to, 0 for none
	group     uint32 // of interfaces (ip-link(8))
	mtu       int    // in bytes
	xdp       bool   // a program of somebody's is attached
	below     int    // index of the device here that it is right above, 0 for none
	alias     string // its description
	up        bool   // as somebody has set it
	running   bool   // it is up and has a carrier
	peer      int    // of a veth, the other end's index
	peerNetns int    // and its namespace's number, -1 for this one
}

// unfit says why a device can't be a port, "" if it can.
func (d device) unfit() string {
	switch {
	case d.loopback:
		return "it is the loopback interface"
	case !d.ethernet:
		return "it has no Ethernet frames"
	case d.kind == "bridge":
		return "it is a Linux bridge"
	case d.switchEnd:
		return "it is a bridge's own"
	case d.master != 0:
		return "it belongs to another device"
	case bridge.CheckName("port", d.name) != nil:
		return "no port can have its name"
	}
	return ""
}

// changed reports whether a device that was refused is worth another try.
func (d device) changed(o device) bool {
	return d.name != o.name || d.kind != o.kind || d.master != o.master || d.mtu != o.mtu || d.xdp != o.xdp || d.running != o.running
}

// An entry is a device and its state.
type entry struct {
	device
	in        *place    // the port that it is, nil if it is none by this file
	tried     *place    // that it was last to become: it may have, though it was refused, where it went meanwhile
	host      string    // the bridge of which it is a host port's own end
	elsewhere string    // the bridge that has it as a port and that the file does not put it in
	refused   string    // why it did not become a port when that was last tried
	left      string    // why it is left alone, as was said
	out       bool      // a person took it out of the bridge
	raised    *place    // where it was set up or down and described as the file has it, or seen so
	asked     bool      // that the files are applied was asked for, which is to make it a port
	as        string    // the name by which the file was applied to the port that it is
	since     time.Time // when it became a port by this file, zero for never
}

// A table knows the devices of a namespace and decides, event by event, what to
// do about them. It touches nothing.
type table struct {
	file    config.File
	places  places
	bridges []string // of the file
	devices map[int]*entry
	joined  map[int]*place // by index: where a device of it last became a port

	touched map[int]bool // devices to be looked at
	// heeded are the bridges where a person did what is missing. On others the file
	// is new, and overrules the person.
	heeded  map[string]bool
	gone    map[string]map[int]bool // by bridge: devices that have gone, whose ports are to go with them
	ports   map[string]urgency      // bridges whose ports are to be compared with their devices
	pf      bool                    // addresses, or default routes, may have changed
	notes   []note
	arrived bool // a device came of which the file says more than which port it is
}

// An urgency says how soon something has to be done.
type urgency int

const (
	never urgency = iota
	later         // when things are quiet: it costs speed meanwhile
	now           // it loses frames meanwhile
)

// A note is a line for the log.
type note struct {
	level  slog.Level
	text   string
	device string
	bridge string
	why    string
}

// The work is what there is to be done.
type work struct {
	attach []attachment
	raise  []attachment // devices that are to be set up, or down, or described
	leave  []departure
	gone   map[string][]int // by bridge: the devices of ports that are to be removed
	ports  map[string]urgency
	pf     bool
	notes  []note
	apply  bool // the file says more of a device that has come than which port it is
}

// An attachment is a device that is to become a port.
type attachment struct {
	device
	place *place
	moves bool // it is a port that has to leave first, or its index was that of one that has gone
}

// A departure is a device that is to be a port no longer.
type departure struct {
	index  int
	name   string
	bridge string
}

func newTable(f config.File) *table {
	t := &table{devices: map[int]*entry{}, touched: map[int]bool{}, gone: map[string]map[int]bool{}, ports: map[string]urgency{}, joined: map[int]*place{}}
	t.setFile(f)
	return t
}

// setFile makes another file the desired state. It tries devices again that
// were refused, or taken out by a person.
//
// The file was applied before, and a device that it says more about may have
// come in between. So a new file is applied once more. If the file is as it
// was, devices that have arrived stay so.
func (t *table) setFile(f config.File) {
	same := reflect.DeepEqual(t.file, f)
	t.file = f
	t.places, t.bridges, t.heeded = newPlaces(f), nil, map[string]bool{}
	t.arrived = t.arrived || !same && len(t.places.mirrors)+len(t.places.more) > 0
	for _, b := range f.Bridges {
		t.bridges = append(t.bridges, b.Name)
	}
	for _, e := range t.devices {
		e.out, e.refused, e.left = false, "", ""
		e.asked = e.asked && same
		if !same {
			e.as = e.name
		}
		t.touched[e.index] = true
	}
}

// concerns reports whether the file says of a name what only applying the file does.
func (t *table) concerns(name string) bool { return t.places.mirrors[name] || t.places.says(name) }

// appeared says that a device is there, or has changed.
func (t *table) appeared(d device) {
	e := t.devices[d.index]
	if e == nil {
		e = &entry{device: d}
		t.arrived = t.arrived || t.places.mirrors[d.name]
		t.devices[d.index] = e
		t.touched[d.index] = true
		t.restacked(d.below)
		return // it has no addresses, or they are told by themselves
	}
	was := e.device
	e.device = d
	if was.below != d.below {
		t.restacked(was.below)
		t.restacked(d.below)
	}
	// Rules name ports by these. The default routes by an interface that goes down go without an event.
	t.pf = t.pf || was.name != d.name || was.group != d.group || e.in == nil && was.up != d.up
	if was.name != d.name {
		// Nobody knows by which of the names the files were applied to it: that takes a while.
		t.arrived = t.arrived || t.concerns(d.name) || t.concerns(was.name)
		if !t.places.of(was.name).same(t.places.of(d.name)) {
			e.out = false
		}
	}
	if d.changed(was) {
		e.refused, e.asked = "", false
	}
	t.touched[d.index] = true
	switch {
	case e.in == nil || d.kind != "veth":
	case was.peerNetns != d.peerNetns && d.peerNetns < 0:
		// frames that are handed to an end in this namespace are lost
		t.compare(e.in.bridge, now)
	case was.peerNetns != d.peerNetns || was.peer != d.peer || !was.running && d.running:
		t.compare(e.in.bridge, later)
	}
}

// restacked says that a device has come to be right above another one, or is not any more. The
// other one may have been refused for that.
func (t *table) restacked(below int) {
	if e := t.devices[below]; e != nil && e.refused != "" {
		e.refused, e.asked = "", false
		t.touched[below] = true
	}
}

// stacked reports whether a device has another right above it, or is right above another.
func (t *table) stacked(d device) bool {
	if d.below != 0 {
		return true
	}
	for _, e := range t.devices {
		if e.below == d.index {
			return true
		}
	}
	return false
}

func (t *table) compare(bridge string, u urgency) { t.ports[bridge] = max(t.ports[bridge], u) }

// vanished says that a device has gone: it was deleted, or moved to another
// namespace.
func (t *table) vanished(index int) {
	e := t.devices[index]
	if e == nil {
		return
	}
	delete(t.devices, index)
	delete(t.touched, index)
	t.restacked(e.below)
	t.pf = t.pf || e.in == nil && e.up // as when it goes down
	for _, at := range []*place{e.in, e.tried} {
		if at != nil && at.pattern {
			t.remove(at.bridge, index)
		}
	}
}

func (t *table) remove(bridge string, index int) {
	if t.gone[bridge] == nil {
		t.gone[bridge] = map[int]bool{}
	}
	t.gone[bridge][index] = true
}

// synchronise brings the table in line with a list of all devices and of all
// ports: at the start, after events were lost, or for a new file. For bridges
// that could not be read the table keeps what it knew.
func (t *table) synchronise(devices []device, ports []bridge.Port, unread ...string) {
	there := map[int]bool{}
	for _, d := range devices {
		there[d.index] = true
		t.appeared(d)
	}
	for _, index := range slices.Sorted(maps.Keys(t.devices)) {
		if !there[index] {
			t.vanished(index)
		}
	}
	member := map[int]bridge.Port{}
	for _, p := range ports {
		if p.State != "gone" {
			member[p.Index] = p
			continue
		}
		// a device that came by a pattern and went when nobody looked, or whose
		// index another has got since
		at := t.places.of(p.Name)
		if p.Type == bridge.TypeNetdev && at != nil && at.pattern && at.bridge == p.Bridge {
			t.remove(p.Bridge, p.Index)
		}
		if e := t.devices[p.Index]; e != nil && e.in != nil && e.in.bridge == p.Bridge {
			e.in = nil
		}
	}
	for index, e := range t.devices {
		t.touched[index] = true
		p, ok := member[index]
		if !slices.Contains(unread, e.host) {
			e.host = ""
		}
		if !slices.Contains(unread, e.elsewhere) {
			e.elsewhere = ""
		}
		switch {
		case ok && p.Type == bridge.TypeHost:
			e.host = p.Bridge
		case ok && p.Type != bridge.TypeNetdev:
			e.elsewhere = p.Bridge
		case ok:
			if at := t.places.of(e.name); at != nil && at.bridge == p.Bridge {
				if e.in == nil {
					e.as, e.since = e.name, time.Now()
				}
				e.in, e.out = at, false
			} else if e.in == nil || e.in.bridge != p.Bridge {
				e.elsewhere = p.Bridge
			}
			t.compare(p.Bridge, later)
		case e.in != nil && !slices.Contains(unread, e.in.bridge):
			e.in, e.out = nil, t.heeded[e.in.bridge]
		}
	}
	for _, name := range t.bridges {
		t.heeded[name] = t.heeded[name] || !slices.Contains(unread, name)
	}
}

// addressed says that addresses of devices, or default routes, may have changed.
func (t *table) addressed() { t.pf = true }

// attached notes that a device has become the port that an attachment asked
// for. It reports whether the device is to be set up, or down, or described.
func (t *table) attached(a attachment) (raise bool) {
	e := t.devices[a.index]
	if e == nil {
		return false
	}
	t.arrived = t.arrived || t.places.says(a.name)
	e.in, e.as, e.tried, e.refused, e.left, e.since = a.place, a.name, nil, "", "", time.Now()
	t.joined[a.index] = a.place
	if e.kind == "veth" {
		t.compare(a.place.bridge, later) // its other end may have moved meanwhile
	}
	return e.raise()
}

// raise reports whether a device is to be set up where it is, or down, or described, as
// the file has it, and then takes that as done: what a person sets later stays so.
func (e *entry) raise() bool {
	if e.in == nil || e.raised.same(e.in) {
		return false
	}
	e.raised = e.in
	return e.up != e.in.up() || e.in.describes(e.device)
}

// again tries devices once more that became ports after a time and are none any more: a state of that
// time was made again, which has not heard of them. A person did not take them out.
func (t *table) again(since time.Time) {
	for _, e := range t.devices {
		if e.in == nil && e.since.After(since) {
			e.out, e.refused, e.left, e.asked = false, "", "", false
			t.touched[e.index] = true
		}
	}
}

// formerly returns where a device of an index last became a port: events that
// are behind may have told since that it has gone, of one that had the index
// before it.
func (t *table) formerly(index int) *place { return t.joined[index] }

// calm forgets where devices were ports that have gone. It is called when things
// are quiet: events of one that has the index since, and is a port, are no longer
// on the way.
func (t *table) calm() {
	maps.DeleteFunc(t.joined, func(index int, _ *place) bool { return t.devices[index] == nil })
}

// found says that a device is where it became a port formerly.
func (t *table) found(index int) {
	if e := t.devices[index]; e != nil {
		e.in, e.refused = t.joined[index], ""
		t.touched[index] = true
	}
}

// detached says that a device has left a bridge.
func (t *table) detached(d departure) {
	if e := t.devices[d.index]; e != nil {
		e.in = nil
		t.touched[d.index] = true
	}
}

// refuse notes why a device did not become a port. The device is tried again
// when it changes. refuse reports whether that is news.
func (t *table) refuse(a attachment, why string) bool {
	e := t.devices[a.index]
	if e == nil {
		return false
	}
	e.refused = why
	news := e.left != why
	e.left = why
	return news
}

// anew reports whether a port is to be made anew as its device has another name: the file
// says of one of the two names what it does not say of the other. The port would forward
// without that, or with what was said of the other.
func (t *table) anew(e *entry) bool {
	return e.as != e.name && (t.places.says(e.as) || t.places.says(e.name))
}

// todo returns the work since the last call.
func (t *table) todo() work {
	w := work{gone: map[string][]int{}, ports: t.ports, pf: t.pf, apply: t.arrived}
	for bridge, indexes := range t.gone {
		w.gone[bridge] = slices.Sorted(maps.Keys(indexes))
	}
	for _, index := range slices.Sorted(maps.Keys(t.touched)) {
		e := t.devices[index]
		if e == nil {
			continue
		}
		want := t.places.of(e.name)
		moves := false
		if e.in != nil && (t.anew(e) || !e.in.same(want)) {
			w.leave = append(w.leave, departure{index, e.name, e.in.bridge})
			moves = true
		}
		if !moves && e.in != nil {
			e.in = want // as this file has it
			if e.raise() {
				w.raise = append(w.raise, attachment{device: e.device, place: want})
			}
		}
		if want == nil || !moves && e.in.same(want) || e.out || e.refused != "" {
			continue
		}
		why := e.unfit()
		switch other := t.devices[e.peer]; {
		case why != "":
		case e.host != "", e.kind == "veth" && e.peerNetns < 0 && other != nil && other.switchEnd:
			why = "it is a bridge's own"
		case e.elsewhere != "":
			why = "it is a port of bridge " + e.elsewhere
		}
		if why != "" {
			if why != e.left {
				t.notes = append(t.notes, note{slog.LevelDebug, "a device is left alone", e.name, want.bridge, why})
			}
			e.left = why
			continue
		}
		e.tried = want
		if t.places.says(e.name) {
			// a port that forwards before its rules and bindings are there has no filter
			w.apply = w.apply || !e.asked
			e.asked = true
			continue
		}
		w.attach = append(w.attach, attachment{e.device, want, moves})
	}
	w.notes = t.notes
	t.notes, t.pf, t.arrived = nil, false, false
	clear(t.touched)
	t.gone, t.ports = map[string]map[int]bool{}, map[string]urgency{}
	return w
}
