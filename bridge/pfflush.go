// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"bascule/datapath"
	"bascule/pf"
)

// FlushPF flushes one of pfctl(8)'s categories: rules, ether, states, Sources, info, Tables or
// Reset. It returns the number of flushed objects if it is counted. Rules and tables belong to an
// anchor, or to the main ruleset for "". If the anchor ends with *, FlushPF also flushes all anchors
// below it.
func (s *Switch) FlushPF(bridge, anchor, which string) (n int, err error) {
	what := "flush " + which + " of pf of " + bridge
	path, all := strings.CutSuffix(anchor, "*")
	path = strings.Trim(path, "/")
	meant := func(at string) bool { return at == path || all && (path == "" || strings.HasPrefix(at, path+"/")) }
	if err := checkAnchor(path); err != nil {
		return 0, err
	}
	change := func(plan func(*pfConfig) error) error {
		err := s.changePF(what, bridge, func(_ *draft, d *pfConfig) error {
			if !d.loaded {
				return errNothing
			}
			was, err := json.Marshal(&d.pfStored)
			if err != nil {
				return failed(what, err)
			}
			if err := plan(d); err != nil || d.removed {
				return err
			}
			now, err := json.Marshal(&d.pfStored)
			if err == nil && bytes.Equal(was, now) {
				return errNothing // -F all flushes every category, and a bridge rarely has all
			}
			return failed(what, err)
		})
		if errors.Is(err, errNothing) {
			return nil
		}
		return err
	}
	switch which {
	case "rules":
		err = change(func(d *pfConfig) error {
			if path != "" {
				err = d.emptyAnchor(what, path)
			} else { // options and ether rules stay
				err = d.replaceMain(func(set *pf.Ruleset) { set.Rules = nil })
			}
			if err == nil && all {
				d.emptyBelow(path)
			}
			return err
		})
	case "ether":
		err = change(func(d *pfConfig) error { return d.replaceMain(func(set *pf.Ruleset) { set.Ether = nil }) })
	case "Reset":
		err = change(func(d *pfConfig) error {
			d.Debug = ""
			// If pf is disabled and nothing is left, release its memory.
			d.removed = !d.enabled && len(d.main.Rules)+len(d.main.Ether)+len(d.Anchors)+len(d.Tables) == 0
			return d.replaceMain(func(set *pf.Ruleset) { set.Options = pf.Options{} })
		})
	case "Tables":
		err = change(func(d *pfConfig) error {
			for _, t := range slices.Clone(d.Tables) {
				if meant(t.Anchor) && t.Defined {
					d.drop(t)
					n++
				}
			}
			return nil
		})
	default:
		if err := s.Mend(); err != nil { // as in ZeroPF
			return 0, err
		}
		err = s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
			if !b.PFLoaded() {
				return nil
			}
			switch which {
			case "states":
				n, err = b.FlushStates()
			case "Sources":
				n, err = b.KillSources(func(*datapath.SourceNode) bool { return true })
			case "info":
				err = b.ZeroPFCounters()
			default:
				err = usagef("-F "+which, "no such modifier")
			}
			return err
		})
	}
	return n, err
}

// errNothing means that there is nothing to change.
var errNothing = errors.New("nothing to change")

// replaceMain replaces the main ruleset.
func (d *pfConfig) replaceMain(edit func(*pf.Ruleset)) error {
	set := *d.main
	edit(&set)
	d.main, d.Main, d.other = &set, set.String(), true
	return nil
}

// emptyAnchor removes the rules of an anchor.
func (d *pfConfig) emptyAnchor(what, path string) error {
	if _, ok := d.ruleset(path); !ok {
		if d.hasBelow(path) {
			return nil // it has no rules
		}
		return refused(what, "there is no anchor "+path, "see 'bascule pfctl -s Anchors -v'")
	}
	delete(d.Anchors, path)
	delete(d.anchors, path)
	if _, ok := d.ruleset(path); ok { // between braces in another one
		d.Anchors[path], d.anchors[path] = "", &pf.Ruleset{}
	}
	d.other = true
	return nil
}

// emptyBelow removes the rules of all anchors below a path, "" for the main ruleset.
func (d *pfConfig) emptyBelow(path string) {
	// In this order, callers come before the anchors that they call.
	for _, at := range slices.Sorted(maps.Keys(d.rulesets())) {
		if at == path || path != "" && !strings.HasPrefix(at, path+"/") {
			continue
		}
		if _, ok := d.ruleset(at); ok { // otherwise it was between braces that are gone
			_ = d.emptyAnchor("", at)
		}
	}
}

// rulesets returns all rulesets by path: the loaded ones, and the ones between braces where none
// was loaded. Anchors that are only called exist, too, and are empty.
func (d *pfConfig) rulesets() map[string]*pf.Ruleset {
	all := map[string]*pf.Ruleset{"": d.main}
	maps.Copy(all, d.anchors)
	for path, set := range maps.Clone(all) {
		d.below(path, set, all)
	}
	return all
}

func (d *pfConfig) below(path string, set *pf.Ruleset, all map[string]*pf.Ruleset) {
	for i := range set.Rules {
		r := &set.Rules[i]
		if r.Anchor == nil || strings.HasSuffix(r.Anchor.Name, "*") {
			continue
		}
		at := pf.BodyPath(path, i, r)
		if _, ok := all[at]; ok {
			continue
		}
		all[at] = &pf.Ruleset{}
		if r.Anchor.Body != nil {
			all[at] = r.Anchor.Body
			d.below(at, r.Anchor.Body, all)
		}
	}
}

// ruleset returns the ruleset at a path.
func (d *pfConfig) ruleset(path string) (*pf.Ruleset, bool) {
	set, ok := d.rulesets()[path]
	return set, ok
}
