// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"bascule/datapath"
	"bascule/pf"
)

// A PortAnchor has the rules of pf that come with a plug.
type PortAnchor struct {
	path string
	set  *pf.Ruleset
}

// PlugAnchor is the first part of the names of anchors with the rules of one port each.
const PlugAnchor = "plug"

// callPlugs is the anchor that calls the rules of all plugs.
const callPlugs = PlugAnchor + "/*"

// PlugName returns the name in rules of the port with an ID, whatever its device's name is, and the
// path of the anchor that has the rules of this port alone. Bytes that separate names of anchors,
// or match several, are written as %XX.
func PlugName(id string) string {
	var b strings.Builder
	for i, c := range []byte(id) {
		switch {
		case c >= '0' && c <= '9', c >= 'A' && c <= 'Z', c >= 'a' && c <= 'z', strings.IndexByte("-:@+=,", c) >= 0, i > 0 && (c == '_' || c == '.'):
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return PlugAnchor + "/" + b.String()
}

// ParsePortPF parses rules of pf for one port, which has an ID, and whose device's present name is
// port. Each rule without a port applies to this one, and no rule may name another. The anchor is
// [PlugName].
func (s *Switch) ParsePortPF(id, port string, o PFLoad) (PortAnchor, error) {
	what := "load " + o.Name + " for port " + port
	a, err := s.parsePlugPF(PlugName(id), o)
	set := a.set
	if err != nil {
		return PortAnchor{}, err
	}
	if len(set.Ether) > 0 {
		return PortAnchor{}, refused(what, "it has ether rules, which no anchor has", "leave them out, or load them into the bridge's own rules")
	}
	if lines := set.Options.Lines(); len(lines) > 0 {
		return PortAnchor{}, refused(what, "it has \""+lines[0]+"\", and settings are the bridge's", "leave it out, or write it into the bridge's own rules")
	}
	if err := ofPort(what, set, port, a.path); err != nil {
		return PortAnchor{}, err
	}
	if list := set.Elsewhere([]pf.CompilePort{{Name: a.path}}); len(list) > 0 {
		return PortAnchor{}, refused(what, fmt.Sprintf("%v: %s never holds: %s", list[0].Pos, list[0].Word, list[0].Why), "leave it out")
	}
	return a, nil
}

// ofPort restricts rules to one port, by its permanent name.
func ofPort(what string, set *pf.Ruleset, port, name string) error {
	if len(set.Loads) > 0 {
		return refused(what, "it loads other files into anchors", "write their rules into this file")
	}
	for i := range set.Rules {
		r := &set.Rules[i]
		switch {
		case r.Anchor != nil && r.Anchor.Body == nil:
			return refused(what, fmt.Sprintf("%v: it calls an anchor, which may have rules of other ports", r.Pos), "write the rules between braces")
		case r.On == (pf.Interface{}), r.On == (pf.Interface{Name: port}), r.On == (pf.Interface{Name: name}):
			r.On.Name = name
		default:
			return refused(what, fmt.Sprintf("%v: it is a rule of another port", r.Pos), "leave out 'on', which stands for "+port)
		}
		if r.ReceivedOn.Name == port {
			r.ReceivedOn.Name = name
		}
		if r.Anchor != nil {
			if err := ofPort(what, r.Anchor.Body, port, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// ParseSharedPF parses rules that a front end needs in addition to the rules of ports. The anchor
// is PlugAnchor/NAME.
func (s *Switch) ParseSharedPF(name string, o PFLoad) (PortAnchor, error) {
	return s.parsePlugPF(PlugAnchor+"/"+name, o)
}

func (s *Switch) parsePlugPF(path string, o PFLoad) (PortAnchor, error) {
	o.Anchor = path
	set, err := s.parsePF("load "+o.Name, o)
	return PortAnchor{path, set}, err
}

// Path returns the path of the anchor, or "" if there is none.
func (a PortAnchor) Path() string { return a.path }

// LoadPortPF loads the rules of one port. pf has to evaluate them (see [draft.checkPlugs]). A
// bridge without pf gets a main ruleset that calls all of them.
func (e *Edit) LoadPortPF(a PortAnchor) error {
	what := "load the rules of " + a.path + " into pf of " + e.bridge
	return e.add(step{what, e.bridge, func(c *draft) error {
		d, err := c.pfSoFar()
		if err != nil {
			return failed(what, err)
		}
		if !d.loaded && d.Main == "" {
			main, err := pf.Parse("pf", []byte("anchor \""+callPlugs+"\"\n"), pf.Source{})
			if err != nil {
				return failed(what, err)
			}
			if err := d.take("", main); err != nil {
				return failed(what, err)
			}
			d.enabled = true
		}
		text := bare(a.set).String()
		uncalled := slices.Contains(d.Uncalled, a.path)
		if had, ok := d.Anchors[a.path]; ok && had == text && len(a.set.Tables) == 0 && !uncalled {
			return nil // unchanged
		}
		if err := d.take(a.path, a.set); err != nil {
			return refused(what, err.Error(), "nothing was changed")
		}
		c.pf, c.plugged = d, append(c.plugged, a.path)
		return nil
	}}, nil)
}

// CheckPortPF checks whether a bridge's pf has these rules of a port, and evaluates them.
func (s *Switch) CheckPortPF(bridge string, a PortAnchor) error {
	why := ""
	err := s.each("look for the rules "+a.path, bridge, func(_ string, b *datapath.Bridge) error {
		d, err := readPF(b)
		if err != nil {
			return err
		}
		switch text, there := d.Anchors[a.path]; {
		case !there:
			why = "has no rules"
		case text != bare(a.set).String():
			why = "has other rules"
		case !d.enabled:
			why = "is disabled, which has the rules"
		case slices.Contains(d.Uncalled, a.path):
			why = "does not try the rules"
		}
		return nil
	})
	if err == nil && why != "" {
		err = fmt.Errorf("pf of bridge %s %s %s", bridge, why, a.path)
	}
	return err
}

// DropPortPF removes the rules of one port.
func (e *Edit) DropPortPF(path string) error {
	what := "take the rules of " + path + " out of pf of " + e.bridge
	return e.add(step{what, e.bridge, func(c *draft) error { return c.dropAnchor(what, path) }}, nil)
}

// pfSoFar returns pf as planned so far. The plan does not include it yet: a caller that changes it
// has to set c.pf.
func (c *draft) pfSoFar() (*pfConfig, error) {
	if c.pf != nil {
		return c.pf, nil
	}
	return readPF(c.bridge)
}

// dropAnchor removes an anchor and all anchors below it from pf.
func (c *draft) dropAnchor(what, path string) error {
	d, err := c.pfSoFar()
	if err != nil {
		return failed(what, err)
	}
	if _, ok := d.Anchors[path]; !ok {
		return nil
	}
	if err := d.emptyAnchor(what, path); err != nil {
		return err
	}
	for at := range d.Anchors { // even if one was between braces
		if strings.HasPrefix(at, path+"/") {
			delete(d.Anchors, at)
			delete(d.anchors, at)
		}
	}
	for _, t := range slices.Clone(d.Tables) {
		if t.Anchor == path || strings.HasPrefix(t.Anchor, path+"/") {
			d.drop(t)
		}
	}
	c.pf = d
	return nil
}

// dropPlugRules removes the rules that came with the plug of a port from pf.
func (c *draft) dropPlugRules(what string, id uint32) error {
	if c.pf == nil && !c.bridge.PFLoaded() {
		return nil
	}
	all, err := c.allOwners()
	if err != nil {
		return failed(what, err)
	}
	o := all[id]
	if o == nil {
		return nil
	}
	delete(all, id)
	if o.Anchor == "" {
		return nil
	}
	// these connections do not belong to the next guest at the device
	c.after = append(c.after, func() error {
		_, err := c.bridge.KillStates(func(s *datapath.State) bool { return s.In == id || s.Out == id })
		return failed(what, err)
	})
	return c.dropAnchor(what, o.Anchor)
}

// plugTables returns the tables that rules of plugs refer to.
func (d *pfConfig) plugTables() (list []*pfStoredTable) {
	for path := range d.came {
		for _, name := range namedTables(d.anchors[path]) {
			for at := path; ; at = at[:max(0, strings.LastIndexByte(at, '/'))] {
				if t := d.findDefined(at, name); t != nil {
					list = append(list, t)
				}
				if at == "" {
					break
				}
			}
		}
	}
	return list
}

// checkPlugs refuses a change after which pf would no longer evaluate rules that came with plugs:
// the rules of guests and containers, and the shared rules of front ends. program is nil if pf is
// removed from the bridge. A forced load gets a note instead, and the rules stay unevaluated until
// pf calls them again.
func (c *draft) checkPlugs(what string, d *pfConfig, program *pf.Program) error {
	loaded := map[string]bool{} // by the path of each anchor that has to be called
	for path := range d.Anchors {
		if name, ok := strings.CutPrefix(path, PlugAnchor+"/"); ok && !strings.Contains(name, "/") {
			loaded[path] = true
		}
	}
	skipped := map[string]bool{} // pf evaluates no rule at the port
	for _, p := range datapath.Ports(c.next) {
		if o := c.owners[p.Id]; o != nil && o.Anchor != "" {
			loaded[o.Anchor] = d.Anchors[o.Anchor] != "" || loaded[o.Anchor]
			skipped[o.Anchor] = program != nil && program.Skips(uint16(datapath.Slot(p.Id)))
		}
	}
	setting := c.next.PfPorts != c.bridge.Config.PfPorts // it makes pf skip ports
	for _, path := range slices.Sorted(maps.Keys(d.came)) {
		if text, ok := d.Anchors[path]; ok && text != d.came[path] && !d.forced {
			return refused(what, "anchor "+path+": its rules came with a plugged port", "give others by 'bascule plug --pf', or add --force")
		}
	}
	var uncalled []string
	why, remedy := "", ""
	for _, path := range slices.Sorted(maps.Keys(loaded)) {
		switch {
		case d.enabled && !d.removed && loaded[path] && slices.Contains(program.Whole, path) && !skipped[path]:
			continue
		case !loaded[path]:
			why, remedy = "the rules of a plugged port are gone from it", "remove the port with 'bascule unplug'"
		case !d.enabled || d.removed:
			why, remedy = "pf is disabled, and would not try the rules of a plugged port there", "enable it with 'bascule pfctl -e'"
		case slices.Contains(program.Whole, path):
			why, remedy = "pf does not judge the plugged port whose rules are there", "leave the port out of 'set skip', and give the bridge --"+PFPortsSetting+" "+PFAll
		case slices.Contains(program.Anchors, path):
			why, remedy = "the rules of the bridge call them only for some packets", "put a line 'anchor \""+callPlugs+"\"' without conditions into the rules of the bridge"
		default:
			why, remedy = "the rules of the bridge do not call them, and a plugged port has its rules there", "put a line 'anchor \""+callPlugs+"\"' into the rules of the bridge"
		}
		uncalled = append(uncalled, path)
	}
	changes := d.alone && (d.other || d.enabled != c.bridge.PFEnabled())
	refuse := func(path string) bool { // other ports' rules do not keep a port from leaving
		return slices.Contains(c.plugged, path) || (changes && !d.forced || setting) && !slices.Contains(d.Uncalled, path)
	}
	if i := slices.IndexFunc(uncalled, refuse); i >= 0 {
		if d.alone {
			remedy += ", or add --force"
		}
		return refused(what, "anchor "+uncalled[i]+": "+why, remedy)
	}
	if d.Uncalled = uncalled; len(uncalled) > 0 {
		c.warn("rules of plugged ports no longer hold, since pf does not try them: " + strings.Join(uncalled, ", "))
	}
	return nil
}
