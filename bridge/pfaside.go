// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"maps"
	"slices"
	"strings"

	"bascule/datapath"
)

// AsidePF returns the rules that were loaded into anchors of pf separately, by path, without the
// rules of plugs.
func (s *Switch) AsidePF(bridge string) (rules map[string]string, err error) {
	err = s.each("read pf of "+bridge, bridge, func(_ string, b *datapath.Bridge) error {
		rules = map[string]string{}
		if !b.PFLoaded() {
			return nil
		}
		stored, err := readStored(b)
		for path, text := range stored.Anchors {
			if !strings.HasPrefix(path, PlugAnchor+"/") {
				rules[path] = text
			}
		}
		return err
	})
	return rules, err
}

// SetAsidePF replaces the rules in anchors by those that AsidePF has returned. pf stays enabled or
// disabled.
func (s *Switch) SetAsidePF(bridge string, rules map[string]string) error {
	there, err := s.AsidePF(bridge)
	if err != nil || maps.Equal(there, rules) {
		return err
	}
	for path := range there {
		if _, stays := rules[path]; !stays {
			if _, err := s.FlushPF(bridge, path, "rules"); err != nil {
				return err
			}
		}
	}
	state, err := s.PF(bridge)
	if err != nil {
		return err
	}
	for _, path := range slices.Sorted(maps.Keys(rules)) {
		if rules[path] == there[path] {
			continue
		}
		load := PFLoad{Name: "anchor " + path, Text: []byte(rules[path]), Anchor: path, Enable: &state.Enabled, Later: true}
		if _, _, err := s.LoadPF(bridge, load); err != nil {
			return err
		}
	}
	return nil
}
