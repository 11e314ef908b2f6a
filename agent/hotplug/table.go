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

// A device has the properties of an interface that the table needs.
type device struct {
	index     int
	name      string
	kind      string // as `ip -d link` shows it: veth, tuntap, ...; "device" for hardware
	ethernet  bool
	loopback  bool
	switchEnd bool   // it is the switch's end of a host port
	master    int    // index of its master, 0 for none
	group     uint32 // group of interfaces (ip-link(8))
	mtu       int    // in bytes
	xdp       bool   // an XDP program is attached
	below     int    // index of the device right below it in this namespace, 0 for none
	alias     string // description
	up        bool   // administrative state
	running   bool   // it is up and has a carrier
	peer      int    // of a veth, the other end's index
	peerNetns int    // and its namespace's ID, -1 for this namespace
}

// unfit returns why a device can't be a port, "" if it can.
func (d device) unfit() string {
	switch {
	case d.loopback:
		return "it is the loopback interface"
	case !d.ethernet:
		return "it has no Ethernet frames"
	case d.kind == "bridge":
		return "it is a Linux bridge"
	case d.switchEnd:
		return "it belongs to a bridge"
	case d.master != 0:
		return "it belongs to another device"
	case bridge.CheckName("port", d.name) != nil:
		return "no port can have its name"
	}
	return ""
}

// changed reports whether a refused device has changed enough for another try.
func (d device) changed(o device) bool {
	return d.name != o.name || d.kind != o.kind || d.master != o.master || d.mtu != o.mtu || d.xdp != o.xdp || d.running != o.running
}

// An entry is a device and its state.
type entry struct {
	device
	in        *place    // the port that it is by this file, nil for none
	tried     *place    // the last port that was tried: it may be that port although refused, if it went meanwhile
	host      string    // the bridge whose host port it belongs to
	elsewhere string    // the bridge that has it as a port against the file
	refused   string    // why its last try to become a port failed
	left      string    // why it is left alone, as last logged
	out       bool      // a person removed it from the bridge
	raised    *place    // the place by which it was set up or down and described, or found so
	asked     bool      // an apply of the files was requested, which will make it a port
	as        string    // the name with which the file was applied to its port
	came      time.Time // when it appeared, or got a name that has another place
}

// A table has the devices of a namespace, and decides, event by event, what to do about them. It
// changes nothing itself.
type table struct {
	file    config.File
	places  places
	bridges []string // of the file
	devices map[int]*entry
	joined  map[int]*place // by index: the last place where a device of that index became a port

	touched map[int]bool // devices to check
	// heeded are the bridges where a person has made the differences to the file. In other
	// bridges the file is newer, and overrules the person.
	heeded  map[string]bool
	held    map[string]bool         // bridges that stay as they are when all devices are next listed
	gone    map[string]map[int]bool // by bridge: devices that have gone, whose ports must go
	ports   map[string]urgency      // bridges whose ports must be compared with their devices
	pf      bool                    // addresses, or default routes, may have changed
	notes   []note
	arrived bool // a device has come for which the file has more than the port
}

// An urgency is how soon something must be done.
type urgency int

const (
	never urgency = iota
	later         // when no events come: until then it costs speed
	now           // at once: until then frames are lost
)

// A note is a line for the log.
type note struct {
	level  slog.Level
	text   string
	device string
	bridge string
	why    string
}

// The work is the list of things to do.
type work struct {
	attach []attachment
	raise  []attachment // devices to set up or down, or to describe
	leave  []departure
	gone   map[string][]int // by bridge: the devices of ports to remove
	ports  map[string]urgency
	pf     bool
	notes  []note
	apply  bool // the file has more than the port for a device that has come
}

// An attachment is a device that should become a port.
type attachment struct {
	device
	place *place
	moves bool // it is a port that must leave first, or a device that has gone had its index
}

// A departure is a device that should no longer be a port.
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

// setFile makes another file the desired state. Devices that were refused, or removed by a person,
// are tried again.
//
// The file was applied before this call, and a device for which it has more than the port may have
// come in between. So a new file is applied once more. If the file is unchanged, devices that have
// arrived keep their state.
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

// concerns reports whether the file has something for a name that needs an apply of the file.
func (t *table) concerns(name string) bool { return t.places.mirrors[name] || t.places.says(name) }

// appeared records that a device exists, or has changed.
func (t *table) appeared(d device) {
	e := t.devices[d.index]
	if e == nil {
		e = &entry{device: d, came: time.Now()}
		t.arrived = t.arrived || t.places.mirrors[d.name]
		t.devices[d.index] = e
		t.touched[d.index] = true
		t.restacked(d.below)
		return // it has no addresses, or they have their own events
	}
	was := e.device
	e.device = d
	if was.below != d.below {
		t.restacked(was.below)
		t.restacked(d.below)
	}
	// Rules refer to ports by name and group. If an interface goes down, its default routes go
	// without an event.
	t.pf = t.pf || was.name != d.name || was.group != d.group || e.in == nil && was.up != d.up
	if was.name != d.name {
		// The files may have been applied under either name: an apply takes a while.
		t.arrived = t.arrived || t.concerns(d.name) || t.concerns(was.name)
		if !t.places.of(was.name).same(t.places.of(d.name)) {
			e.out, e.came = false, time.Now()
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

// restacked records that a device has come to be right above another one, or no longer is. The lower
// device may have been refused for that.
func (t *table) restacked(below int) {
	if e := t.devices[below]; e != nil && e.refused != "" {
		e.refused, e.asked = "", false
		t.touched[below] = true
	}
}

// stacked reports whether a device is right above or right below another.
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

// vanished records that a device has gone: it was deleted, or moved to another namespace.
func (t *table) vanished(index int) {
	e := t.devices[index]
	if e == nil {
		return
	}
	delete(t.devices, index)
	delete(t.touched, index)
	t.restacked(e.below)
	t.pf = t.pf || e.in == nil && e.up // as if it goes down
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

// synchronise updates the table from a list of all devices and all ports: at the start, after events
// were lost, or for a new file. For bridges that could not be read the table keeps its state.
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
		// a device that came by a pattern and went unnoticed, or whose index another device
		// has now
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
					e.as = e.name
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
	for _, e := range t.devices {
		if at := t.places.of(e.name); at != nil && t.held[at.bridge] {
			e.out, e.raised = e.in == nil, e.in
		}
	}
	t.held = nil
	for _, name := range t.bridges {
		t.heeded[name] = t.heeded[name] || !slices.Contains(unread, name)
	}
}

// hold leaves bridges as they are: the devices of the next list that are not their ports stay out.
func (t *table) hold(bridges []string) {
	t.held = map[string]bool{}
	for _, name := range bridges {
		t.held[name] = true
	}
}

// addressed records that addresses of devices, or default routes, may have changed.
func (t *table) addressed() { t.pf = true }

// attached records that a device has become the port of an attachment. It reports whether the device
// must be set up or down, or described.
func (t *table) attached(a attachment) (raise bool) {
	e := t.devices[a.index]
	if e == nil {
		return false
	}
	t.arrived = t.arrived || t.places.says(a.name)
	e.in, e.as, e.tried, e.refused, e.left = a.place, a.name, nil, "", ""
	t.joined[a.index] = a.place
	if e.kind == "veth" {
		t.compare(a.place.bridge, later) // its other end may have moved meanwhile
	}
	return e.raise()
}

// raise reports whether a device must be set up or down, or described, for its place in the file. It
// does so once for a place, so that later manual changes remain.
func (e *entry) raise() bool {
	if e.in == nil || e.raised.same(e.in) {
		return false
	}
	e.raised = e.in
	return e.up != e.in.up() || e.in.describes(e.device)
}

// restoreFile makes a former file the desired state again, since a state of a time was restored. Devices
// that were there at that time stay as the state has them: a person may have removed them before.
func (t *table) restoreFile(f config.File, of time.Time) {
	out := map[int]bool{}
	for index, e := range t.devices {
		out[index] = e.out || e.in == nil && e.refused == "" && !e.came.After(of)
	}
	t.setFile(f)
	for index, e := range t.devices {
		e.out = out[index]
	}
	for _, name := range t.bridges {
		t.heeded[name] = true
	}
}

// again retries devices that a restored state has removed from their bridges, and that came after the
// state was made. No person has removed these devices.
func (t *table) again(r Restored) {
	for _, e := range t.devices {
		if e.in == nil && e.came.After(r.Of) && slices.Contains(r.Ports, e.name) {
			e.out, e.refused, e.left, e.asked = false, "", "", false
			t.touched[e.index] = true
		}
	}
}

// formerly returns where a device of this index last became a port. Late events may have removed the
// device from the table: they are about a former device of the same index.
func (t *table) formerly(index int) *place { return t.joined[index] }

// calm forgets the former places of devices that have gone. It is called when no events come: then no
// late event can remove a device that has the index now and is a port.
func (t *table) calm() {
	maps.DeleteFunc(t.joined, func(index int, _ *place) bool { return t.devices[index] == nil })
}

// found records that a device is where it formerly became a port.
func (t *table) found(index int) {
	if e := t.devices[index]; e != nil {
		e.in, e.refused = t.joined[index], ""
		t.touched[index] = true
	}
}

// detached records that a device has left a bridge.
func (t *table) detached(d departure) {
	if e := t.devices[d.index]; e != nil {
		e.in = nil
		t.touched[d.index] = true
	}
}

// refuse records why a device did not become a port. The device is tried again when it changes.
// refuse reports whether the reason is new.
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

// anew reports whether a port must be made anew since its device was renamed: the file has something
// for one of the names that it does not have for the other. The port would forward without that, or
// with the other name's.
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
			e.in = want // it may differ in this file
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
			why = "it belongs to a bridge"
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
			// a port that forwards before its rules and bindings are in place has no
			// filter
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
