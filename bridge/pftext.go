// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"bascule/datapath"
	"bascule/pf"
)

// PFText is pf of a bridge as a file.
type PFText struct {
	Enabled bool
	Text    string   // the main ruleset with its tables and their present entries
	Aside   []string // paths of anchors whose rules were loaded separately, and are not in Text
}

// pfText returns a bridge's pf, or nil if it was never loaded.
func pfText(b *datapath.Bridge) (*PFText, error) {
	if !b.PFLoaded() {
		return nil, nil
	}
	d, err := readPF(b)
	if err != nil {
		return nil, err
	}
	bodies := map[string]*pf.Ruleset{"": d.main}
	eachBody("", d.main, func(path string, body *pf.Ruleset) { bodies[path] = body })
	slices.SortFunc(d.Tables, func(a, b *pfStoredTable) int { return cmp.Compare(a.Name, b.Name) })
	for _, t := range d.Tables {
		body := bodies[t.Anchor]
		if body == nil || !t.Defined {
			continue
		}
		entries, err := b.TableEntries(t.Number)
		if err != nil {
			return nil, err
		}
		body.Tables = append(body.Tables, pf.Table{
			Name: t.Name, Persist: t.Persist, Const: t.Const, Counters: t.Counters,
			Given: len(entries) > 0, Entries: entries,
		})
	}
	return &PFText{Enabled: d.enabled, Text: d.main.String(), Aside: slices.Sorted(maps.Keys(d.Anchors))}, nil
}

// ComparePF reports whether loading a file into pf of a bridge would change nothing. Mistakes in
// the text are returned as a [pf.ErrorList]. If bridge is "", or does not exist, the file is only
// checked. text is the file in the form of [PFText].
func (s *Switch) ComparePF(bridge string, o PFLoad) (same bool, text string, err error) {
	what := o.what("")
	set, err := s.parsePF(what, o)
	if err == nil {
		err = s.checkPF(what, bridge, o, set)
	}
	if err != nil {
		return false, "", err
	}
	shown := *set
	shown.Tables = slices.Clone(set.Tables)
	slices.SortFunc(shown.Tables, func(a, b pf.Table) int { return cmp.Compare(a.Name, b.Name) }) // as pfText
	if text = shown.String(); bridge == "" {
		return false, text, nil
	}
	err = s.each("compare pf of "+bridge, bridge, func(_ string, b *datapath.Bridge) error {
		if !b.PFLoaded() {
			same = false
			return nil
		}
		before, err := readPF(b)
		if err != nil {
			return err
		}
		if stale, err := before.stale(b); err != nil || stale {
			same = false
			return err
		}
		after, err := readPF(b)
		if err != nil {
			return err
		}
		if err := after.take(strings.Trim(o.Anchor, "/"), set); err != nil {
			return err
		}
		if err := after.settleTables(); err != nil {
			return err
		}
		same, err = samePF(b, before, after)
		return err
	})
	if errors.Is(err, errNoBridge) {
		return false, text, nil
	}
	return same, text, err
}

// samePF compares the configurations of pf before and after a load.
func samePF(b *datapath.Bridge, before, after *pfConfig) (bool, error) {
	if before.Main != after.Main || !maps.Equal(before.Anchors, after.Anchors) || len(before.Tables) != len(after.Tables) {
		return false, nil
	}
	for _, t := range after.Tables {
		old := before.find(t.Anchor, t.Name)
		if old == nil || old.Defined != t.Defined || old.Const != t.Const || old.Persist != t.Persist || old.Counters != t.Counters {
			return false, nil
		}
		i := slices.IndexFunc(after.fill, func(f datapath.TableFill) bool { return f.Table == t.Number })
		if i < 0 {
			continue // its contents stay
		}
		entries, err := b.TableEntries(old.Number)
		if err != nil {
			return false, err
		}
		if !maps.Equal(entrySet(entries), entrySet(after.fill[i].Entries)) {
			return false, nil
		}
	}
	return true, nil
}

// entrySet returns the entries of a table as a set, with their negation.
func entrySet(entries []pf.TableEntry) map[netip.Prefix]bool {
	set := map[netip.Prefix]bool{}
	for _, e := range entries {
		set[e.Prefix] = e.Not
	}
	return set
}
