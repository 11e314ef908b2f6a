// SPDX-License-Identifier: BSD-2-Clause

package hotplug

import (
	"slices"

	"bascule/bridge"
)

// occupy makes a device a port by a vacant berth of its pattern, if the device needs no more
// than that.
func (w *Watcher) occupy(a attachment) bool {
	if !a.place.pattern || w.berths == 0 || w.t.stacked(a.device) { // only an edit looks at all devices
		return false
	}
	ok, warnings, err := w.s.Occupy(a.place.bridge, a.place.port.Name, a.name)
	if err != nil {
		// the edit returns a better error, and completes a step that was interrupted
		w.log.Debug("a device is not for a berth", "device", a.name, "bridge", a.place.bridge, "err", err)
		return false
	}
	if ok {
		w.count(func(s *Stats) { s.Berths++ })
		w.joined(a)
		w.berth(a.place.bridge)
		w.warn(a.place.bridge, warnings)
	}
	return ok
}

// tidy removes the ports of devices that have gone from a bridge, and adds vacant berths for
// each of its patterns, in one step.
func (w *Watcher) tidy(name string, gone []int) {
	list := w.t.places.berths(name, w.berths)
	n := 0
	_, err := w.s.Edit(name, func(e *bridge.Edit) (err error) {
		if n, err = e.DelDevices(gone, false); err != nil {
			return err
		}
		return e.SetBerths(list)
	})
	if err == nil {
		w.removed(name, n)
		return
	}
	w.log.Debug("berths cannot be made in a bridge", "bridge", name, "err", err)
	if len(gone) > 0 {
		w.change(name, gone, nil)
	}
}

// change removes the ports of devices that have gone from a bridge, and makes other devices
// its ports, in one step. If the step is refused, change tries the devices one by one.
func (w *Watcher) change(name string, gone []int, list []attachment) {
	n := 0
	warnings, err := w.s.Edit(name, func(e *bridge.Edit) (err error) {
		if n, err = e.DelDevices(gone, false); err != nil {
			return err
		}
		for _, a := range list {
			port := a.place.port
			if err := e.AddPort(a.name, port.Options); err != nil {
				return err
			}
			if port.VLANs == nil {
				continue
			}
			if err := e.SetVLANs(a.name, port.VLANs); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err == nil:
		w.removed(name, n)
		for _, a := range list {
			w.joined(a)
		}
		w.warn(name, warnings)
	case len(list) == 0:
		w.log.Warn("ports whose devices are gone cannot be removed", "bridge", name, "err", err)
	case len(list) == 1 && len(gone) == 0:
		w.refused(list[0], err)
	default:
		half := len(list) / 2
		if half == 0 {
			w.change(name, gone, nil)
		} else {
			w.change(name, gone, list[:half])
		}
		w.change(name, nil, list[half:])
	}
}

// removed counts and logs ports that have gone with their devices.
func (w *Watcher) removed(bridge string, n int) {
	if n == 0 {
		return
	}
	w.count(func(s *Stats) { s.Removed += uint64(n) })
	w.log.Info("ports were removed with their devices", "bridge", bridge, "ports", n)
}

func (w *Watcher) warn(bridge string, warnings []string) {
	for _, text := range warnings {
		w.log.Warn(text, "bridge", bridge)
	}
}

// joined counts and logs a device that has become a port.
func (w *Watcher) joined(a attachment) {
	w.accepted(a)
	w.count(func(s *Stats) { s.Attached++ })
	w.log.Info("a device became a port", "device", a.name, "bridge", a.place.bridge, "as", a.place.port.Name)
}

// accepted records that a device is the port that it should be.
func (w *Watcher) accepted(a attachment) {
	if w.t.attached(a) {
		w.raise(a)
	}
}

// raise sets a device up or down, and sets its description, as its place in the file has
// them.
func (w *Watcher) raise(a attachment) {
	if a.place.describes(a.device) {
		if err := w.l.describe(a.device, *a.place.port.Description); err != nil && w.l.there(a.device) {
			w.log.Warn("the description of a device cannot be set", "device", a.name, "bridge", a.place.bridge, "err", err)
		}
	}
	if a.up == a.place.up() {
		return
	}
	if err := w.l.setUp(a.device, a.place.up()); err != nil && w.l.there(a.device) {
		w.log.Warn("cannot set a device up or down as the file requires", "device", a.name, "bridge", a.place.bridge, "up", a.place.up(), "err", err)
	}
}

// refused records that a device did not become a port. It ignores a device that has gone
// meanwhile, or has another name: the event is on its way. A device that a command has made
// the desired port is accepted. A device that is still a port by its former name leaves that
// place first.
func (w *Watcher) refused(a attachment, why error) {
	if !w.l.there(a.device) {
		return
	}
	if w.has(a.place.bridge, a.index) {
		w.accepted(a)
		return
	}
	if at := w.t.formerly(a.index); at != nil && w.has(at.bridge, a.index) {
		w.t.found(a.index)
		return
	}
	w.count(func(s *Stats) { s.Refused++ })
	if w.t.refuse(a, why.Error()) {
		w.log.Warn("a device did not become a port", "device", a.name, "bridge", a.place.bridge, "err", why)
	}
}

// has reports whether a device is a port of a bridge.
func (w *Watcher) has(name string, index int) bool {
	ports, err := w.s.Ports(name)
	return err == nil && slices.ContainsFunc(ports, func(p bridge.Port) bool {
		return p.Index == index && p.Type == bridge.TypeNetdev && p.State != "gone"
	})
}

// leave removes a device from a bridge.
func (w *Watcher) leave(d departure) {
	n := 0
	_, err := w.s.Edit(d.bridge, func(e *bridge.Edit) (err error) {
		n, err = e.DelDevices([]int{d.index}, true)
		return err
	})
	if err != nil {
		w.log.Warn("a device stays in its bridge although its name no longer belongs there", "device", d.name, "bridge", d.bridge, "err", err)
		return
	}
	w.t.detached(d)
	if n > 0 { // otherwise a person was faster
		w.count(func(s *Stats) { s.Removed++ })
		w.log.Info("a device left its bridge, since its name no longer belongs there", "device", d.name, "bridge", d.bridge)
	}
}

// refresh updates a bridge after changes of its devices' other ends.
func (w *Watcher) refresh(bridge string) {
	changed, err := w.s.Refresh(bridge)
	if err != nil {
		w.log.Warn("a bridge does not follow its devices", "bridge", bridge, "err", err)
	}
	if changed {
		w.count(func(s *Stats) { s.Reloads++ })
		w.log.Info("a bridge follows the other ends of its devices", "bridge", bridge)
	}
}

// refreshPF updates the rules of all bridges after changes of names and addresses. It
// includes bridges that no file names, since all rules may have (device).
func (w *Watcher) refreshPF() {
	names, err := w.s.Names()
	if err != nil {
		w.log.Warn("rules do not follow names and addresses", "err", err)
	}
	for _, name := range names {
		changed, err := w.s.RefreshPF(name)
		if err != nil {
			w.log.Warn("rules do not follow names and addresses", "bridge", name, "err", err)
		}
		if changed {
			w.count(func(s *Stats) { s.Reloads++ })
			w.log.Info("rules follow names and addresses", "bridge", name)
		}
	}
}
