// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"

	"bascule/answer"
	"bascule/bridge"
	"bascule/pf"

	"github.com/danielgtaylor/huma/v2"
)

// OfPF names the bridge whose pf is shown.
type OfPF struct {
	Where
	Bridge string `query:"bridge" required:"true" maxLength:"64" doc:"the bridge"`
}

// OfAnchor names an anchor to show.
type OfAnchor struct {
	OfPF
	Anchor string `query:"anchor" maxLength:"1024" doc:"the anchor, without the main ruleset; with /* at its end those below it, too"`
}

// OfStates chooses the states to show.
type OfStates struct {
	OfPF
	Port  string `query:"port" maxLength:"64" doc:"only states of this port or group of ports"`
	From  string `query:"from" maxLength:"64" doc:"only states that this address or network began"`
	To    string `query:"to" maxLength:"64" doc:"only states whose destination is this address or network"`
	Label string `query:"label" maxLength:"64" doc:"only states that the rules of this label made"`
}

// OfTable names a table of pf.
type OfTable struct {
	OfPF
	Anchor string `query:"anchor" maxLength:"1024" doc:"the anchor of the table, without the main ruleset"`
	Table  string `query:"table" required:"true" maxLength:"64" doc:"the table"`
}

func (a *API) filters() {
	look(a, "/pf/info", "the state of a bridge's pf, with its counters", func(s *bridge.Switch, in *OfPF) (answer.PFInfo, error) {
		info, err := s.PF(in.Bridge)
		return answer.OfPFInfo(in.Bridge, info), err
	})
	rules := func(path, summary string, take func(*pf.Rule) bool, always bool) {
		look(a, path, summary, func(s *bridge.Switch, in *OfAnchor) ([]answer.PFRule, error) {
			path, all := strings.CutSuffix(in.Anchor, "*")
			list, err := s.PFRules(in.Bridge, strings.Trim(path, "/"))
			if err != nil {
				return nil, err
			}
			return answer.OfPFRules(in.Bridge, list, all || always, take), nil
		})
	}
	rules("/pf/rules", "the rules with their counters", func(*pf.Rule) bool { return true }, false)
	rules("/pf/labels", "the rules that have a label, with their counters", func(r *pf.Rule) bool { return r.Label != "" }, false)
	rules("/pf/nat", "the rules that translate, including rules of anchors", func(r *pf.Rule) bool { return len(r.Translations) > 0 && r.Anchor == nil }, true)
	look(a, "/pf/ether", "the ether rules", func(s *bridge.Switch, in *OfPF) ([]string, error) {
		list, err := s.PFRules(in.Bridge, "")
		if err != nil {
			return nil, err
		}
		lines := []string{}
		for i := range list.Set.Ether {
			lines = append(lines, list.Set.Ether[i].String())
		}
		return lines, nil
	})
	look(a, "/pf/anchors", "the anchors", func(s *bridge.Switch, in *OfAnchor) ([]string, error) {
		path, all := strings.CutSuffix(in.Anchor, "*")
		list, err := s.PFAnchors(in.Bridge, strings.Trim(path, "/"), all)
		return answer.List(list, func(name string) string { return name }), err
	})
	look(a, "/pf/states", "the states: the connections that pf tracks", func(s *bridge.Switch, in *OfStates) ([]answer.PFState, error) {
		k := Kill{Port: in.Port, From: in.From, To: in.To, Label: in.Label}
		which, err := k.states()
		if err != nil {
			return nil, err
		}
		list, err := s.PFStates(in.Bridge, which)
		return answer.List(list, func(st bridge.PFState) answer.PFState { return answer.OfPFState(in.Bridge, st) }), err
	})
	limiters := func(sources bool) func(*bridge.Switch, *OfPF) ([]answer.PFLimiter, error) {
		return func(s *bridge.Switch, in *OfPF) ([]answer.PFLimiter, error) {
			list, err := s.PFLimiters(in.Bridge, sources)
			return answer.List(list, func(l bridge.PFLimiter) answer.PFLimiter { return answer.OfPFLimiter(in.Bridge, l) }), err
		}
	}
	look(a, "/pf/limiterstates", "the state limiters", limiters(false))
	look(a, "/pf/limitersrcs", "the source limiters, with their sources", limiters(true))
	look(a, "/pf/sources", "the sources that are tracked", func(s *bridge.Switch, in *OfPF) ([]answer.PFSource, error) {
		list, err := s.PFSources(in.Bridge)
		return answer.List(list, func(n bridge.PFSource) answer.PFSource { return answer.OfPFSource(in.Bridge, n) }), err
	})
	look(a, "/pf/timeouts", "timeouts in seconds; adaptive ones in states", func(s *bridge.Switch, in *OfPF) (map[string]uint32, error) {
		info, err := s.PF(in.Bridge)
		return answer.OfPFTimeouts(info), err
	})
	look(a, "/pf/memory", "limits, and the memory of tables", func(s *bridge.Switch, in *OfPF) (answer.PFLimits, error) {
		info, err := s.PF(in.Bridge)
		return answer.OfPFLimits(info), err
	})
	look(a, "/pf/interfaces", "the ports with pf's settings and counters", func(s *bridge.Switch, in *OfPF) ([]answer.PFPort, error) {
		info, err := s.PF(in.Bridge)
		return answer.OfPFPorts(in.Bridge, info), err
	})
	look(a, "/pf/tables", "tables", func(s *bridge.Switch, in *OfAnchor) ([]answer.PFTable, error) {
		list, err := s.PFTables(in.Bridge, in.Anchor)
		return answer.List(list, func(t bridge.PFTable) answer.PFTable { return answer.OfPFTable(in.Bridge, t) }), err
	})
	look(a, "/pf/table/show", "the addresses of a table", func(s *bridge.Switch, in *OfTable) ([]string, error) {
		list, err := s.PFTable(in.Bridge, in.Anchor, in.Table)
		return answer.List(list, func(e bridge.PFTableEntry) string { return e.String() }), err
	})
}

// Kill chooses states. At least one of the fields is required.
type Kill struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	From   string `json:"from,omitempty" maxLength:"64" minLength:"1" doc:"address or network that began them"`
	To     string `json:"to,omitempty" maxLength:"64" minLength:"1" doc:"destination address or network"`
	Label  string `json:"label,omitempty" maxLength:"64" minLength:"1" doc:"label of the rules that made them"`
	ID     string `json:"id,omitempty" maxLength:"32" minLength:"1" doc:"id of one state, as /pf/states shows it"`
	Port   string `json:"port,omitempty" maxLength:"64" minLength:"1" doc:"port or group of ports"`
	All    bool   `json:"all,omitempty" doc:"all of them"`
}

// states returns the choice of states.
func (k *Kill) states() (bridge.PFKill, error) {
	which := bridge.PFKill{Port: k.Port}
	for _, h := range []struct {
		name, text string
		to         *[]netip.Prefix
	}{{"from", k.From, &which.From}, {"to", k.To, &which.To}} {
		if h.text == "" {
			continue
		}
		p, err := pf.ParsePrefix(h.text)
		if err != nil {
			return which, huma.Error422UnprocessableEntity(fmt.Sprintf("%s %.60q: not an address; give one such as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32", h.name, h.text))
		}
		*h.to = []netip.Prefix{p}
	}
	if k.Label != "" {
		which.Label = &k.Label
	}
	if k.ID != "" {
		id, err := strconv.ParseUint(k.ID, 16, 64)
		if err != nil || id == 0 {
			return which, huma.Error422UnprocessableEntity(fmt.Sprintf("id %.40q: give the id that /pf/states shows", k.ID))
		}
		which.ID = id
	}
	return which, nil
}

// killed returns the choice of states or sources to kill. An empty choice is an error,
// so that a mistake does not kill all.
func (k *Kill) killed() (bridge.PFKill, error) {
	none := k.From == "" && k.To == "" && k.Label == "" && k.ID == "" && k.Port == ""
	if none != k.All {
		return bridge.PFKill{}, huma.Error422UnprocessableEntity("give from, to, label, id or port, or all by itself")
	}
	return k.states()
}

// TableEdit has addresses of a table.
type TableEdit struct {
	Bridge    string   `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Anchor    string   `json:"anchor,omitempty" maxLength:"1024" doc:"the anchor of the table, without the main ruleset"`
	Table     string   `json:"table" maxLength:"64" minLength:"1" doc:"the table"`
	Addresses []string `json:"addresses" maxItems:"4096" doc:"addresses and networks, with ! before exceptions"`
}

func (e *TableEdit) entries() (list []pf.TableEntry, err error) {
	for _, text := range e.Addresses {
		rest, not := strings.CutPrefix(text, "!")
		p, err := pf.ParsePrefix(rest)
		if err != nil {
			return nil, huma.Error422UnprocessableEntity(fmt.Sprintf("%.60q: not an address; give one such as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32", text))
		}
		list = append(list, pf.TableEntry{Not: not, Prefix: p})
	}
	return list, nil
}

// Rules of pf in a request cannot name other files and hosts: the agent may read files
// that the client may not.
var alone = pf.Source{}

// LoadPF is a load of pf.
type LoadPF struct {
	OfPF
	Anchor  string `query:"anchor" maxLength:"1024" doc:"the anchor that the rules are for, without the main ruleset"`
	RawBody []byte `contentType:"text/plain" doc:"a pf.conf that names no other files and no hosts"`
}

// BodyOf is a JSON body, with the place that the request is about.
type BodyOf[T any] struct {
	Where
	Body T
}

// Bridged names a bridge.
type Bridged struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
}

// FlushPF chooses the parts of pf to flush.
type FlushPF struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Anchor string `json:"anchor,omitempty" maxLength:"1024" doc:"the anchor of rules and tables, without the main ruleset; with /* at its end those below it, too"`
	What   string `json:"what" enum:"rules,ether,states,Sources,info,Tables,Reset" doc:"in the words of pfctl -F"`
}

func (a *API) editPF() {
	load := func(check bool) func(*bridge.Switch, *LoadPF) (Nothing, []string, error) {
		return func(s *bridge.Switch, in *LoadPF) (Nothing, []string, error) {
			_, notes, err := s.LoadPF(in.Bridge, bridge.PFLoad{Name: "pf.conf", Text: in.RawBody, Anchor: in.Anchor, Source: alone, Check: check})
			return Nothing{}, notes, err
		}
	}
	operation(a, text(huma.Operation{
		Path: "/pf/load", Summary: "load rules, whole or not at all", Metadata: map[string]any{isEdit: true},
	}), onSwitch(a, load(false)))
	operation(a, text(huma.Operation{Path: "/pf/check", Summary: "check whether rules could be loaded, and change nothing"}), onSwitch(a, load(true)))
	change(a, "/pf/enable", "enable pf", func(s *bridge.Switch, in *BodyOf[Bridged]) ([]string, error) {
		return nil, s.EnablePF(in.Body.Bridge, true)
	})
	change(a, "/pf/disable", "disable pf; the loaded rules stay", func(s *bridge.Switch, in *BodyOf[Bridged]) ([]string, error) {
		return nil, s.EnablePF(in.Body.Bridge, false)
	})
	change(a, "/pf/zero", "set the counters of all rules to zero", func(s *bridge.Switch, in *BodyOf[Bridged]) ([]string, error) {
		return nil, s.ZeroPF(in.Body.Bridge)
	})
	removed := func(path, summary string, f func(s *bridge.Switch, in *Kill, which bridge.PFKill) (int, error)) {
		edit(a, path, summary, func(s *bridge.Switch, in *BodyOf[Kill]) ([]answer.Flushed, []string, error) {
			which, err := in.Body.killed()
			if err != nil {
				return nil, nil, err
			}
			n, err := f(s, &in.Body, which)
			return []answer.Flushed{{Bridge: in.Body.Bridge, Removed: n}}, nil, err
		})
	}
	removed("/pf/kill-states", "kill states", func(s *bridge.Switch, in *Kill, which bridge.PFKill) (int, error) {
		return s.KillPFStates(in.Bridge, which)
	})
	removed("/pf/kill-sources", "forget sources that are tracked", func(s *bridge.Switch, in *Kill, which bridge.PFKill) (int, error) {
		if in.Label+in.ID+in.Port != "" {
			return 0, huma.Error422UnprocessableEntity("sources have no label, id and port: give from or to, or all")
		}
		return s.KillPFSources(in.Bridge, which)
	})
	edit(a, "/pf/flush", "flush something", func(s *bridge.Switch, in *BodyOf[FlushPF]) ([]answer.Flushed, []string, error) {
		n, err := s.FlushPF(in.Body.Bridge, in.Body.Anchor, in.Body.What)
		return []answer.Flushed{{Bridge: in.Body.Bridge, Removed: n}}, nil, err
	})
	a.editPFTables()
}

// TableName names a table.
type TableName struct {
	Bridge string `json:"bridge" maxLength:"64" minLength:"1" doc:"the bridge"`
	Anchor string `json:"anchor,omitempty" maxLength:"1024" doc:"the anchor of the table, without the main ruleset"`
	Table  string `json:"table" maxLength:"64" minLength:"1" doc:"the table"`
}

// Tested counts the addresses of a request that are in a table.
type Tested struct {
	Asked   int `json:"asked" minimum:"0"`
	Matched int `json:"matched" minimum:"0"`
}

func (a *API) editPFTables() {
	for _, t := range []struct {
		name, summary string
		action        bridge.PFTableAction
	}{
		{"add", "add addresses to a table; makes the table if there is none", bridge.AddPFEntries},
		{"delete", "delete addresses from a table", bridge.DeletePFEntries},
		{"replace", "have these addresses in a table instead", bridge.ReplacePFEntries},
	} {
		edit(a, "/pf/table/"+t.name, t.summary, func(s *bridge.Switch, in *BodyOf[TableEdit]) (c answer.PFTableChange, _ []string, err error) {
			entries, err := in.Body.entries()
			if err != nil {
				return c, nil, err
			}
			done, err := s.ChangePFTable(in.Body.Bridge, in.Body.Anchor, in.Body.Table, t.action, entries, false)
			return answer.OfPFTableChange(done), nil, err
		})
	}
	operation(a, huma.Operation{
		Method: http.MethodPost, Path: "/pf/table/test", Summary: "check whether addresses match a table, and change nothing", MaxBodyBytes: maxEdit,
	}, onSwitch(a, func(s *bridge.Switch, in *BodyOf[TableEdit]) (t Tested, _ []string, err error) {
		entries, err := in.Body.entries()
		if err != nil {
			return t, nil, err
		}
		for _, e := range entries {
			if e.Not || !e.Prefix.IsSingleIP() {
				return t, nil, huma.Error422UnprocessableEntity(fmt.Sprintf("%v is not the address of one host; give one such as 192.0.2.1", e))
			}
		}
		done, err := s.ChangePFTable(in.Body.Bridge, in.Body.Anchor, in.Body.Table, bridge.TestPFEntries, entries, false)
		return Tested{len(entries), done.Matched}, nil, err
	}))
	edit(a, "/pf/table/flush", "delete all addresses of a table", func(s *bridge.Switch, in *BodyOf[TableName]) ([]answer.Flushed, []string, error) {
		n, err := s.FlushPFTable(in.Body.Bridge, in.Body.Anchor, in.Body.Table, false)
		return []answer.Flushed{{Bridge: in.Body.Bridge, Removed: n}}, nil, err
	})
	change(a, "/pf/table/kill", "delete a table; one that rules name is empty afterwards", func(s *bridge.Switch, in *BodyOf[TableName]) ([]string, error) {
		_, err := s.KillPFTable(in.Body.Bridge, in.Body.Anchor, in.Body.Table, false)
		return nil, err
	})
	change(a, "/pf/table/zero", "set the counters of a table to zero", func(s *bridge.Switch, in *BodyOf[TableName]) ([]string, error) {
		return nil, s.ZeroPFTable(in.Body.Bridge, in.Body.Anchor, in.Body.Table, false)
	})
}
