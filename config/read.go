// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"bascule/bridge"
)

// Read returns the running state of all bridges in the namespace.
func Read(s *bridge.Switch) (File, error) {
	f, _, err := Export(s)
	return f, err
}

// Export returns the running state of the named bridges, or of all bridges if no name is given. The notes list what a
// file cannot express.
func Export(s *bridge.Switch, names ...string) (f File, notes []string, err error) {
	devices, err := s.Devices()
	if err != nil {
		return File{}, nil, err
	}
	if len(names) == 0 {
		if names, err = bridgesOf(s); err != nil {
			return File{}, nil, err
		}
	}
	if f, notes, err = readBridges(s, devices, names, false); err != nil {
		return File{}, nil, err
	}
	return f, notes, keepAddresses(s, f)
}

// keepAddresses adds to a file the addresses of bridges that would not get them automatically: another version made
// them, or the network namespace had another name. If the file has no address, a running bridge keeps its own, but a
// bridge that is made again gets another one.
func keepAddresses(s *bridge.Switch, f File) error {
	strange, err := s.StrangeAddresses()
	if err != nil {
		return err
	}
	for i := range f.Bridges {
		b := &f.Bridges[i]
		if mac := strange[b.Name]; mac != nil {
			b.Settings = append(b.Settings, bridge.Change{Name: "mac", Value: mac.String()})
		}
	}
	return nil
}

// State is Export of all bridges for a later return to the present state: it includes the settings that a file leaves
// unchanged if they are missing.
func State(s *bridge.Switch) (f File, notes []string, err error) {
	devices, err := s.Devices()
	if err != nil {
		return File{}, nil, err
	}
	names, err := bridgesOf(s)
	if err != nil {
		return File{}, nil, err
	}
	return readBridges(s, devices, names, true)
}

// bridgesOf returns the names of all bridges.
func bridgesOf(s *bridge.Switch) (names []string, err error) {
	list, err := s.Bridges()
	for _, b := range list {
		names = append(names, b.Name)
	}
	return names, err
}

// readBridges returns the running state of bridges, for Export or for State.
func readBridges(s *bridge.Switch, devices []bridge.Device, names []string, whole bool) (f File, notes []string, err error) {
	there, taken := map[string]bridge.Device{}, map[string]bool{}
	for _, d := range devices {
		there[d.Name] = d
		taken[d.Name] = d.Bridge != ""
	}
	for _, name := range names {
		state, err := s.Read(name)
		if err != nil {
			return File{}, nil, err
		}
		r := reader{State: state, file: Bridge{Name: name}, whole: whole, out: map[string]bool{}}
		r.file.Settings = differing(bridge.BridgeSettings, bridge.Defaults(bridge.BridgeSettings), state.Bridge.Config)
		r.ports(there, taken)
		r.private()
		r.rest()
		f.Bridges = append(f.Bridges, r.file)
		notes = append(notes, r.notes...)
	}
	return f, notes, nil
}

// A reader converts a running bridge to a file's bridge.
type reader struct {
	bridge.State
	file    Bridge
	whole   bool            // for State
	notes   []string        // what a file cannot express
	out     map[string]bool // names of omitted ports
	plugged bool            // include ports that were plugged by an id
}

// differing returns the settings that differ from a new object's.
func differing[T any](settings []bridge.Setting[T], made, config T) []bridge.Change {
	return asChanges(saidOnce(differences(settings, made, config)))
}

// ports reads the ports, given the existing devices. taken has the devices that are ports; ports adds the names of
// ports whose devices are gone.
func (r *reader) ports(there map[string]bridge.Device, taken map[string]bool) {
	vlans := map[string][]bridge.VLANRange{}
	for _, v := range r.VLANs {
		vlans[v.Port] = v.Ranges
	}
	usual, plugged := defaultVLANs(r.Bridge.Config), 0
	for _, p := range r.Ports {
		half := p.Type == bridge.TypePatch && p.State == "no-peer" // the bridge's next change deletes it
		if p.Type == bridge.TypeSpan || half {
			continue
		}
		if p.Owner != nil && !r.plugged { // the owner restores it
			r.out[p.Name] = true
			plugged++
			continue
		}
		// a port without a device keeps the name under which it was added
		if p.State == "gone" {
			here := slices.ContainsFunc(r.Ports, func(o bridge.Port) bool { return o.Name == p.Name && o.State != "gone" })
			if here || taken[p.Name] {
				r.notes = append(r.notes, fmt.Sprintf("a port of %s is left out: its device is gone, and another port now has the name %s", r.file.Name, p.Name))
				if !here {
					r.out[p.Name] = true
				}
				continue
			}
			taken[p.Name] = true
		}
		port := Port{Name: quoteName(p.Name), Options: bridge.PortOptions{Peer: p.Peer, Changes: differing(bridge.PortSettings, bridge.PortDefaults(p.Type), p.Config)}}
		if p.Type != bridge.TypeNetdev {
			port.Options.Type = p.Type
		}
		port.Options.Force = stacked(p.Findings)
		if p.Hook == bridge.HookXDP || p.Hook == bridge.HookTCX && there[p.Name].Physical {
			port.Options.Hook = p.Hook // otherwise auto chooses the same one
		}
		if v := vlans[p.Name]; v != nil && !slices.Equal(v, usual) {
			port.VLANs = v
		}
		switch it := there[p.Name]; {
		case p.Type == bridge.TypeHost:
			r.hostInterface(&port, it)
		case p.Type == bridge.TypeNetdev && p.State != "gone":
			if !it.Up {
				port.Up = &it.Up
			}
			r.description(&port, it)
		}
		r.file.Ports = append(r.file.Ports, port)
	}
	if plugged > 0 {
		r.notes = append(r.notes, fmt.Sprintf("plugged ports of %s are left out: %d; see 'bascule port show %s'", r.file.Name, plugged, r.file.Name))
	}
	for i := range r.file.Ports {
		o := &r.file.Ports[i].Options
		o.Changes = slices.DeleteFunc(o.Changes, func(c bridge.Change) bool { return c.Name == "backup" && r.out[c.Value] })
	}
}

// stacked reports whether a port's device is in a stack of devices: only the option force makes such a port again.
func stacked(found []bridge.PortFinding) bool {
	return slices.ContainsFunc(found, func(f bridge.PortFinding) bool {
		return f.Kind == bridge.FindingAbove || f.Kind == bridge.FindingBelow
	})
}

// description reads the description of a port's device. A description that another program set may be invalid in a
// file.
func (r *reader) description(p *Port, it bridge.Device) {
	switch {
	case it.Description == "" && !r.whole:
	case bridge.CheckDescription(it.Description) == nil:
		p.Description = &it.Description
	default:
		r.notes = append(r.notes, fmt.Sprintf("the description of %s of %s is left out, since a file cannot contain it: %q", p.Name, r.file.Name, it.Description))
	}
}

// hostInterface reads the interface of a host port.
func (r *reader) hostInterface(p *Port, it bridge.Device) {
	if it.Away {
		r.notes = append(r.notes, fmt.Sprintf("addresses of %s of %s are left out: its interface is in another network namespace", p.Name, r.file.Name))
		return
	}
	if !bytes.Equal(it.MAC, it.OwnMAC) {
		p.MAC = it.MAC
	}
	if it.MTU != it.FirstMTU || r.whole {
		p.MTU = it.MTU
	}
	p.Addresses = it.Kept
	if r.whole {
		p.OwnMAC = p.MAC == nil
		p.Addresses = append([]netip.Prefix{}, it.Kept...)
	}
	if !it.Up {
		p.Up = &it.Up
	}
	r.description(p, it)
	if len(it.Beyond) > 0 {
		r.notes = append(r.notes, fmt.Sprintf("addresses of %s of %s have only their networks' lengths here: %s; no file has their peers, labels, metrics, flags and lifetimes",
			p.Name, r.file.Name, addressWords(it.Beyond)))
	}
	if leased := len(it.Addresses) - len(it.Kept); leased > 0 {
		r.notes = append(r.notes, fmt.Sprintf("addresses of %s of %s that a server or router leased are left out: %d; the host's programs request them again",
			p.Name, r.file.Name, leased))
	}
}

func (r *reader) private() {
	for _, primary := range slices.Sorted(maps.Keys(r.Private)) {
		r.file.Private = append(r.file.Private, PrivateVLAN{Primary: primary, PrivateVLANs: r.Private[primary]})
	}
}

// vlanOf returns the VLAN that a file gives for an address of a port whose FDB entry is in vlan. For private VLANs this
// is a VLAN of the port. If the entry is older than the bridge's filtering, or the port has left the VLAN, the result
// is not a VLAN of the port, so none of the port's frames match the address.
func (r *reader) vlanOf(port string, vlan uint16) (id uint16, ok bool) {
	if !r.Bridge.Config.VLANFiltering {
		return vlan, true
	}
	var p portModel
	if i := slices.IndexFunc(r.VLANs, func(v bridge.PortVLANs) bool { return v.Port == port }); i >= 0 {
		p.vlans = r.VLANs[i].Ranges
	}
	below := r.Private[vlan]
	for _, id := range slices.Concat([]uint16{vlan}, below.Isolated, below.Community) {
		if p.inVLAN(id) {
			return id, true
		}
	}
	return vlan, false
}

// leftOut notes that an address of a port is in none of the port's VLANs.
func (r *reader) leftOut(what, port string, vlan uint16, del string) {
	why := fmt.Sprintf("port %s is not in VLAN %d", port, vlan)
	if vlan == 0 {
		why = "it has no VLAN, since it is older than the bridge's VLAN filtering"
	} else {
		del += fmt.Sprintf(" --vlan %d", vlan)
	}
	r.notes = append(r.notes, fmt.Sprintf("%s of %s is left out: %s; delete it with 'bascule %s'", what, r.file.Name, why, del))
}

// rest reads the objects that refer to ports.
func (r *reader) rest() {
	b := &r.file
	for _, rule := range r.Rules {
		if r.out[rule.Port] {
			continue
		}
		b.Rules = append(b.Rules, Rule{Text: rule.String()})
	}
	for _, s := range beforeMirrors {
		r.section(s)
	}
	for _, s := range r.Spans {
		s.Ports = slices.DeleteFunc(s.Ports, func(port string) bool { return r.out[port] })
		m := Mirror{Device: s.Port, SpanOptions: bridge.SpanOptions{Ports: s.Ports, VLANs: s.VLANs}}
		if i := slices.IndexFunc(r.Ports, func(p bridge.Port) bool { return p.Name == s.Port }); i >= 0 {
			m.Force = stacked(r.Ports[i].Findings)
		}
		if m.Emptied = !s.All && len(s.Ports)+len(s.VLANs) == 0; m.Emptied {
			r.notes = append(r.notes, fmt.Sprintf("span port %s of %s is left out: it copies nothing, since its source ports are gone; delete it with 'bascule span del %s %s'", s.Port, b.Name, b.Name, s.Port))
		}
		if s.Direction != bridge.DirectionIn {
			m.Direction = s.Direction
		}
		b.Mirrors = append(b.Mirrors, m)
	}
	for _, s := range afterMirrors {
		r.section(s)
	}
	if r.PF == nil {
		return
	}
	b.PF = &PF{Enabled: r.PF.Enabled, Rules: r.PF.Text}
	if len(r.PF.Aside) > 0 {
		r.notes = append(r.notes, fmt.Sprintf("pf of %s: rules that were loaded directly into anchors are left out: %s", b.Name, strings.Join(r.PF.Aside, ", ")))
	}
}
