// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"bascule/agent"
	"bascule/answer"
	"bascule/bridge"
	"bascule/config"
	"bascule/history"
	"bascule/plug"

	"github.com/danielgtaylor/huma/v2"
)

// AddBridge is a new bridge.
type AddBridge struct {
	Bridge   string        `json:"bridge" maxLength:"64" minLength:"1" doc:"its name"`
	Settings BridgeChanges `json:"settings,omitempty"`
}

// SetBridge is a change of a bridge.
type SetBridge struct {
	Bridge   string        `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Settings BridgeChanges `json:"settings"`
}

// AddPorts are new ports.
type AddPorts struct {
	Bridge      string      `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Ports       []string    `json:"ports" minItems:"1" maxItems:"256" doc:"devices, or names for host and patch ports"`
	Type        string      `json:"type,omitempty" enum:"netdev,host,patch" doc:"netdev by default"`
	Peer        string      `json:"peer,omitempty" maxLength:"128" doc:"of a patch port: BRIDGE/PORT, the cable's other end, which is made too"`
	Hook        string      `json:"hook,omitempty" enum:"auto,tcx,xdp" doc:"auto by default"`
	Force       bool        `json:"force,omitempty" doc:"take devices that have others above them, or are above a port's: those then get nothing"`
	MAC         string      `json:"mac,omitempty" maxLength:"32" doc:"of a host port: the address of its interface, or auto"`
	MTU         int         `json:"mtu,omitempty" minimum:"68" maximum:"65535" doc:"of a host port: its MTU in bytes"`
	Description *string     `json:"description,omitempty" maxLength:"255" doc:"what the port leads to, in the alias of its device; empty removes it"`
	Settings    PortChanges `json:"settings,omitempty"`
	VLAN        uint16      `json:"vlan,omitempty" minimum:"1" maximum:"4094" doc:"put the ports into this VLAN, untagged"`
	Tagged      string      `json:"tagged,omitempty" maxLength:"4096" doc:"put the ports into these VLANs, tagged: 10,20-30"`
}

// SetPort is a change of a port.
type SetPort struct {
	Bridge      string      `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Port        string      `json:"port" maxLength:"64" minLength:"1" doc:"the port"`
	Hook        string      `json:"hook,omitempty" enum:"auto,tcx,xdp"`
	MAC         string      `json:"mac,omitempty" maxLength:"32" doc:"of a host port: the address of its interface, or auto"`
	MTU         int         `json:"mtu,omitempty" minimum:"68" maximum:"65535" doc:"of a host port: its MTU in bytes"`
	Description *string     `json:"description,omitempty" maxLength:"255" doc:"what the port leads to, in the alias of its device; empty removes it"`
	Settings    PortChanges `json:"settings,omitempty"`
}

// DelPorts are ports that leave.
type DelPorts struct {
	Bridge string   `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Ports  []string `json:"ports" minItems:"1" maxItems:"256" doc:"the ports"`
}

// AddEntry is a new entry of an FDB.
type AddEntry struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	MAC    string `json:"mac" maxLength:"32" doc:"address of one station"`
	Port   string `json:"port" maxLength:"64" minLength:"1" doc:"the port that leads there"`
	VLAN   uint16 `json:"vlan,omitempty" minimum:"1" maximum:"4094" doc:"VLAN of the address; without it, the entry is for frames without a tag"`
	Sticky bool   `json:"sticky,omitempty" doc:"the entry is sticky, not static"`
}

// DelEntry names an entry of an FDB.
type DelEntry struct {
	Bridge string  `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	MAC    string  `json:"mac" maxLength:"32" doc:"the address"`
	VLAN   *uint16 `json:"vlan,omitempty" maximum:"4094" doc:"the VLAN of the entry; it may be left out where the address has one entry"`
}

// FlushEntries chooses the entries of an FDB to remove.
type FlushEntries struct {
	Bridge string  `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Port   string  `json:"port,omitempty" maxLength:"64" minLength:"1" doc:"only entries of this port"`
	VLAN   *uint16 `json:"vlan,omitempty" maximum:"4094" doc:"only entries of this VLAN, 0 for entries of untagged frames"`
	Static bool    `json:"static,omitempty" doc:"static and sticky entries, too"`
}

// AddVLANs are VLANs that a port joins.
type AddVLANs struct {
	Bridge   string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Port     string `json:"port" maxLength:"64" minLength:"1" doc:"the port"`
	VLANs    string `json:"vlans" maxLength:"4096" doc:"VLANs and ranges of them: 10,20-30"`
	Untagged bool   `json:"untagged,omitempty" doc:"send frames of the VLANs by the port without a tag"`
	PVID     bool   `json:"pvid,omitempty" doc:"make the VLAN the port's PVID: incoming frames without a tag are in it"`
}

// DelVLANs are VLANs that a port leaves.
type DelVLANs struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Port   string `json:"port" maxLength:"64" minLength:"1" doc:"the port"`
	VLANs  string `json:"vlans" maxLength:"4096" doc:"VLANs and ranges of them: 10,20-30"`
}

// PrivateVLANs are the private VLANs below a primary one.
type PrivateVLANs struct {
	Bridge    string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Primary   uint16 `json:"primary" minimum:"1" maximum:"4094" doc:"the primary VLAN"`
	Isolated  string `json:"isolated,omitempty" maxLength:"4096" doc:"the isolated VLAN"`
	Community string `json:"community,omitempty" maxLength:"4096" doc:"community VLANs: 10,20-30"`
	None      bool   `json:"none,omitempty" doc:"remove the private VLANs below it"`
}

// RuleText is a MAC rule.
type RuleText struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Port   string `json:"port" maxLength:"64" minLength:"1" doc:"the port"`
	Rule   string `json:"rule" maxLength:"1024" minLength:"1" doc:"the rule: block in src 02:00:00:00:00:01"`
}

// FlushRules chooses the rules to remove.
type FlushRules struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Port   string `json:"port,omitempty" maxLength:"64" minLength:"1" doc:"only rules of this port"`
}

// LoadRules is a text of MAC rules.
type LoadRules struct {
	Where
	Bridge  string `query:"bridge" required:"true" maxLength:"64" doc:"the bridge"`
	Port    string `query:"port" maxLength:"64" doc:"only the rules of this port, which the text's rules need not name"`
	RawBody []byte `contentType:"text/plain" doc:"rules as 'bascule rule load' takes them"`
}

// AddSpan is a new span port.
type AddSpan struct {
	Bridge    string   `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Device    string   `json:"device" maxLength:"64" minLength:"1" doc:"the device that gets copies"`
	Ports     []string `json:"ports,omitempty" maxItems:"256" doc:"of frames of these ports; all by default"`
	VLANs     []uint16 `json:"vlans,omitempty" maxItems:"4094" doc:"of frames of these VLANs; all by default"`
	Direction string   `json:"direction,omitempty" enum:"in,out,both" doc:"in by default"`
	Force     bool     `json:"force,omitempty" doc:"take a device that has others above it, or is above a port's: those then get nothing"`
}

// DelSpan names a span port.
type DelSpan struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Device string `json:"device" maxLength:"64" minLength:"1" doc:"the device"`
}

// AddPlug describes the port of a guest or container.
type AddPlug struct {
	ID       string        `json:"id" maxLength:"255" minLength:"1" doc:"any word, by which the port is known"`
	Bridge   string        `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Device   string        `json:"device" maxLength:"64" minLength:"1" doc:"the device that becomes the port"`
	Hook     string        `json:"hook,omitempty" enum:"auto,tcx,xdp" doc:"auto by default"`
	Force    bool          `json:"force,omitempty" doc:"take a device that has others above it, or is above a port's: those then get nothing"`
	VLAN     uint16        `json:"vlan,omitempty" minimum:"1" maximum:"4094" doc:"put the port into this VLAN, untagged"`
	Tagged   string        `json:"tagged,omitempty" maxLength:"4096" doc:"put the port into these VLANs, tagged: 10,20-30"`
	Bindings []PlugBinding `json:"bindings,omitempty" maxItems:"256" doc:"all that the port has"`
	PF       string        `json:"pf,omitempty" maxLength:"60000" doc:"rules of pf for this port alone, which name no other files and no hosts"`
	Settings PortChanges   `json:"settings,omitempty"`
}

// PlugBinding is an address of the station behind a port.
type PlugBinding struct {
	MAC     string `json:"mac" maxLength:"32" doc:"the station"`
	Address string `json:"address" maxLength:"64" doc:"its IP address"`
}

// DelPlug names a plug to remove.
type DelPlug struct {
	ID string `json:"id" maxLength:"255" minLength:"1" doc:"the id"`
}

// plug returns the plug of the request.
func (in *AddPlug) plug() (p plug.Plug, err error) {
	p = plug.Plug{Owner: bridge.Owner{ID: in.ID, By: "plug"}, Bridge: in.Bridge, Device: in.Device, Settings: in.Settings, Force: in.Force}
	if in.Hook != bridge.HookAuto {
		p.Hook = in.Hook
	}
	if p.VLANs, err = newVLANs(in.VLAN, in.Tagged); err != nil {
		return p, err
	}
	for _, b := range in.Bindings {
		mac, err := bridge.ParseMAC(b.MAC)
		if err != nil {
			return p, err
		}
		address, err := bridge.ParseAddress(b.Address)
		if err != nil {
			return p, err
		}
		p.Bindings = append(p.Bindings, bridge.Binding{MAC: mac, Address: address, VLAN: in.VLAN})
	}
	if in.PF != "" {
		p.PF = &bridge.PFLoad{Name: "pf.conf", Text: []byte(in.PF), Source: alone}
	}
	return p, nil
}

// ApplyText is the text of a file.
type ApplyText struct {
	Where
	Name string `query:"name" maxLength:"64" pattern:"^hostname\\.[^/]+$" doc:"hostname.NAME has the text read as a file of hostname.if(5); otherwise it is YAML or JSON"`
	Change
	RawBody []byte `contentType:"application/yaml" doc:"the file, which names no other files, and no network namespace other than the request's"`
}

// newVLANs returns the VLANs of a new port, nil for the default ones.
func newVLANs(vlan uint16, text string) ([]bridge.VLANRange, error) {
	var tagged []uint16
	if text != "" {
		var err error
		if tagged, err = bridge.ParseVLANs(text); err != nil {
			return nil, err
		}
	}
	return plug.VLANs(vlan, tagged), nil
}

// hostOptions adds settings of a host port's interface to the options.
func hostOptions(o *bridge.PortOptions, mac string, mtu int) (err error) {
	o.MTU = mtu
	if o.OwnMAC = mac == bridge.Auto; mac != "" && !o.OwnMAC {
		o.MAC, err = bridge.ParseMAC(mac)
	}
	return err
}

// Change has the options of a change that can be taken back.
type Change struct {
	Confirm string `query:"confirm" maxLength:"16" doc:"put the change back after this time, such as 60s, unless /apply/confirm comes first"`
	Yes     bool   `query:"yes" doc:"apply even what may cut the host off, and files that were put back"`
}

// confirm returns the time that the change waits for its confirmation, 0 for no such wait.
func (c Change) confirm() (time.Duration, error) {
	if c.Confirm == "" {
		return 0, nil
	}
	return history.ParseConfirm(c.Confirm)
}

// ConfirmChange chooses the change to confirm.
type ConfirmChange struct {
	Where
	Yes bool `query:"yes" doc:"confirm a change that was not made by the API, too"`
}

// GoBack chooses the state to apply again.
type GoBack struct {
	Where
	Change
	N      int  `query:"n" minimum:"0" maximum:"20" default:"1" doc:"apply the state of this many states ago"`
	DryRun bool `query:"dry-run" doc:"only say what would be done"`
}

// caller is the author of changes through the API.
var caller = history.Who{By: "API"}

func (a *API) edits() {
	change(a, "/bridge/add", "add a bridge", func(s *bridge.Switch, in *BodyOf[AddBridge]) ([]string, error) {
		return nil, s.AddBridge(in.Body.Bridge, in.Body.Settings)
	})
	change(a, "/bridge/set", "change the settings of a bridge; load this version's programs", func(s *bridge.Switch, in *BodyOf[SetBridge]) ([]string, error) {
		return s.SetBridge(in.Body.Bridge, in.Body.Settings)
	})
	change(a, "/bridge/del", "remove a bridge", func(s *bridge.Switch, in *BodyOf[Bridged]) ([]string, error) {
		return s.DelBridge(in.Body.Bridge)
	})
	edit(a, "/bridge/del-all", "remove every bridge of the network namespace", func(s *bridge.Switch, _ *Where) ([]answer.Removed, []string, error) {
		removed, notes, err := s.DelBridges()
		return answer.List(removed, func(name string) answer.Removed { return answer.Removed{Name: name} }), notes, err
	})
	change(a, "/port/add", "add ports to a bridge", func(s *bridge.Switch, in *BodyOf[AddPorts]) ([]string, error) {
		b := in.Body
		o := bridge.PortOptions{Type: b.Type, Peer: b.Peer, Hook: b.Hook, Changes: b.Settings, Force: b.Force, Description: b.Description}
		err := hostOptions(&o, b.MAC, b.MTU)
		if err == nil {
			o.VLANs, err = newVLANs(b.VLAN, b.Tagged)
		}
		if err != nil {
			return nil, err
		}
		return s.AddPorts(b.Bridge, b.Ports, o)
	})
	change(a, "/port/set", "change the settings of a port", func(s *bridge.Switch, in *BodyOf[SetPort]) ([]string, error) {
		b := in.Body
		if b.Hook == "" && b.MAC == "" && b.MTU == 0 && b.Description == nil && len(b.Settings) == 0 {
			return nil, huma.Error422UnprocessableEntity("nothing to change: give at least one setting")
		}
		o := bridge.PortOptions{Hook: b.Hook, Changes: b.Settings, Description: b.Description}
		if err := hostOptions(&o, b.MAC, b.MTU); err != nil {
			return nil, err
		}
		return s.SetPorts(b.Bridge, []string{b.Port}, o)
	})
	change(a, "/port/del", "remove ports from a bridge", func(s *bridge.Switch, in *BodyOf[DelPorts]) ([]string, error) {
		return s.DelPorts(in.Body.Bridge, in.Body.Ports)
	})
	change(a, "/plug", "connect the interface of a guest or container to a bridge, by an id", func(s *bridge.Switch, in *BodyOf[AddPlug]) ([]string, error) {
		p, err := in.Body.plug()
		if err != nil {
			return nil, err
		}
		return plug.Put(s, p)
	})
	change(a, "/unplug", "remove the port with an id from its bridge; an unknown id is not an error", func(s *bridge.Switch, in *BodyOf[DelPlug]) ([]string, error) {
		_, notes, err := plug.Remove(s, in.Body.ID)
		return notes, err
	})
	a.editTables()
	change(a, "/span/add", "make a device a span port", func(s *bridge.Switch, in *BodyOf[AddSpan]) ([]string, error) {
		b := in.Body
		return s.AddSpan(b.Bridge, b.Device, bridge.SpanOptions{Ports: b.Ports, VLANs: b.VLANs, Direction: b.Direction, Force: b.Force})
	})
	change(a, "/span/del", "remove a span port", func(s *bridge.Switch, in *BodyOf[DelSpan]) ([]string, error) {
		return nil, s.DelSpan(in.Body.Bridge, in.Body.Device)
	})
	a.editPF()

	operation(a, text(huma.Operation{
		Path: "/apply/dry-run", Summary: "show what would be done to make bridges match a file",
	}), a.apply(true))
	operation(a, text(huma.Operation{
		Path: "/apply", Summary: "make bridges match a file", Metadata: map[string]any{isEdit: true},
	}), a.apply(false))
	operation(a, huma.Operation{
		Method: "POST", Path: "/agent/reload", Summary: "make the agent apply its files again, and wait for it",
		MaxBodyBytes: maxEdit, Metadata: map[string]any{isEdit: true},
	}, func(ctx context.Context, in *Change) (Nothing, []string, error) {
		wait, err := in.confirm()
		if err != nil {
			return Nothing{}, nil, err
		}
		return Nothing{}, nil, a.agent.Reload(ctx, agent.Reload{Confirm: wait, Yes: in.Yes, Who: caller})
	})
	edit(a, "/apply/confirm", "keep a change that waits to be confirmed", onHistory(func(h *history.History, in *ConfirmChange) (Nothing, []string, error) {
		_, notes, err := h.Confirm(caller, in.Yes)
		return Nothing{}, notes, err
	}))
	edit(a, "/apply/back", "apply an earlier state", onHistory(func(h *history.History, in *GoBack) ([]answer.Action, []string, error) {
		wait, err := in.confirm()
		if err != nil {
			return nil, nil, err
		}
		actions, notes, err := h.Back(in.N, history.Options{
			Options: config.Options{DryRun: in.DryRun, PF: alone, Yes: in.Yes}, Who: caller, What: fmt.Sprint("back to ", in.N), Confirm: wait, Watch: a.watch(in.Netns),
		})
		return answer.List(actions, func(action config.Action) answer.Action { return answer.OfAction(in.Netns, action) }), notes, err
	}))
}

// editTables adds the operations on the tables that the datapath looks frames up in.
func (a *API) editTables() {
	change(a, "/fdb/add", "add a static or sticky entry", func(s *bridge.Switch, in *BodyOf[AddEntry]) ([]string, error) {
		b := in.Body
		mac, err := bridge.ParseMAC(b.MAC)
		if err != nil {
			return nil, err
		}
		return nil, s.AddEntry(b.Bridge, bridge.Entry{MAC: mac, VLAN: b.VLAN, Port: b.Port, Static: !b.Sticky, Sticky: b.Sticky})
	})
	change(a, "/fdb/del", "remove the entry of an address", func(s *bridge.Switch, in *BodyOf[DelEntry]) ([]string, error) {
		mac, err := bridge.ParseMAC(in.Body.MAC)
		if err != nil {
			return nil, err
		}
		return nil, s.DelEntry(in.Body.Bridge, mac, in.Body.VLAN)
	})
	edit(a, "/fdb/flush", "remove learned entries", func(s *bridge.Switch, in *BodyOf[FlushEntries]) ([]answer.Flushed, []string, error) {
		b := in.Body
		n, spared, err := bridge.FlushEntries(s, b.Bridge, bridge.Match{Port: b.Port, VLAN: b.VLAN}, b.Static)
		return []answer.Flushed{{Bridge: b.Bridge, Removed: n, Spared: spared}}, nil, err
	})
	change(a, "/vlan/add", "put a port into VLANs", func(s *bridge.Switch, in *BodyOf[AddVLANs]) ([]string, error) {
		list, err := bridge.ParseVLANs(in.Body.VLANs)
		if err != nil {
			return nil, err
		}
		return nil, s.AddVLANs(in.Body.Bridge, in.Body.Port, list, bridge.VLANOptions{Untagged: in.Body.Untagged, PVID: in.Body.PVID})
	})
	change(a, "/vlan/del", "remove a port from VLANs", func(s *bridge.Switch, in *BodyOf[DelVLANs]) ([]string, error) {
		list, err := bridge.ParseVLANs(in.Body.VLANs)
		if err != nil {
			return nil, err
		}
		return nil, s.DelVLANs(in.Body.Bridge, in.Body.Port, list)
	})
	change(a, "/vlan/private", "put private VLANs below a primary VLAN", func(s *bridge.Switch, in *BodyOf[PrivateVLANs]) ([]string, error) {
		b := in.Body
		if none := b.Isolated == "" && b.Community == ""; none != b.None {
			return nil, huma.Error422UnprocessableEntity("give isolated or community, or none by itself")
		}
		var below bridge.PrivateVLANs
		for _, l := range []struct {
			text string
			to   *[]uint16
		}{{b.Isolated, &below.Isolated}, {b.Community, &below.Community}} {
			if l.text == "" {
				continue
			}
			list, err := bridge.ParseVLANs(l.text)
			if err != nil {
				return nil, err
			}
			*l.to = list
		}
		return nil, s.SetPrivateVLANs(b.Bridge, b.Primary, below)
	})
	change(a, "/rule/add", "append a MAC rule to a port", func(s *bridge.Switch, in *BodyOf[RuleText]) ([]string, error) {
		r, err := bridge.ParseRule(strings.Fields(in.Body.Rule), in.Body.Port)
		if err != nil {
			return nil, err
		}
		return s.AddRule(in.Body.Bridge, r)
	})
	change(a, "/rule/del", "remove a MAC rule of a port", func(s *bridge.Switch, in *BodyOf[RuleText]) ([]string, error) {
		r, err := bridge.ParseRule(strings.Fields(in.Body.Rule), in.Body.Port)
		if err != nil {
			return nil, err
		}
		return nil, s.DelRule(in.Body.Bridge, r)
	})
	edit(a, "/rule/flush", "remove all MAC rules of a bridge or a port", func(s *bridge.Switch, in *BodyOf[FlushRules]) ([]answer.Flushed, []string, error) {
		n, err := s.FlushRules(in.Body.Bridge, in.Body.Port)
		return []answer.Flushed{{Bridge: in.Body.Bridge, Removed: n}}, nil, err
	})
	operation(a, text(huma.Operation{
		Path: "/rule/load", Summary: "replace the MAC rules with the rules of a text", Metadata: map[string]any{isEdit: true},
	}), onSwitch(a, func(s *bridge.Switch, in *LoadRules) (Nothing, []string, error) {
		notes, err := s.LoadRules(in.Bridge, in.Port, "rules", bytes.NewReader(in.RawBody))
		return Nothing{}, notes, err
	}))
}

// apply returns the operation that applies a text to the bridges of one network namespace.
func (a *API) apply(dry bool) func(context.Context, *ApplyText) ([]answer.Action, []string, error) {
	return func(ctx context.Context, in *ApplyText) ([]answer.Action, []string, error) {
		s, err := a.switchOf(ctx, in.Netns)
		if err != nil {
			return nil, nil, err
		}
		name := in.Name
		if name == "" {
			name = "file.yaml"
		}
		list, err := config.ParseAlone(name, in.RawBody)
		if err != nil {
			return nil, nil, err
		}
		var notes []string
		var file config.File
		for _, f := range list {
			if f.Netns != "" && f.Netns != in.Netns {
				return nil, nil, huma.Error422UnprocessableEntity(fmt.Sprintf(
					"the file is about network namespace %.100q, and the request is not; leave out its netns, and give the request one", f.Netns))
			}
			for _, n := range f.Notes {
				notes = append(notes, n.Error())
			}
			file.Bridges = append(file.Bridges, f.Bridges...)
		}
		if len(file.Bridges) == 0 {
			return nil, nil, huma.Error422UnprocessableEntity("the file names no bridge")
		}
		h, err := history.Open(s, in.Netns)
		if err != nil {
			return nil, nil, err
		}
		wait, err := in.confirm()
		if err != nil {
			return nil, nil, err
		}
		if dry && wait > 0 {
			return nil, nil, huma.Error422UnprocessableEntity("nothing is changed, so there is nothing to confirm; leave confirm out")
		}
		actions, warnings, err := h.Apply(file, history.Options{
			Options: config.Options{DryRun: dry, PF: alone, Yes: in.Yes}, Who: caller, What: name, Confirm: wait, Watch: a.watch(in.Netns),
		})
		notes = append(notes, warnings...)
		if err != nil {
			if !dry && len(actions) > 0 && !isText(err) {
				err = errors.Join(fmt.Errorf("%w; a part of it is done", err))
			}
			return nil, nil, err
		}
		return answer.List(actions, func(action config.Action) answer.Action { return answer.OfAction(in.Netns, action) }), notes, nil
	}
}

// onHistory passes the history of the request's switch to f.
func onHistory[I, T any](f func(h *history.History, in *I) (T, []string, error)) func(*bridge.Switch, *I) (T, []string, error) {
	return func(s *bridge.Switch, in *I) (answer T, notes []string, err error) {
		h, err := history.Open(s, any(in).(located).netns())
		if err != nil {
			return answer, nil, err
		}
		return f(h, in)
	}
}

// watch returns the function that starts a process which puts a change back, nil if only the agent does.
func (a *API) watch(netns string) func() error {
	if a.o.Watch == nil {
		return nil
	}
	return func() error { return a.o.Watch(netns) }
}
