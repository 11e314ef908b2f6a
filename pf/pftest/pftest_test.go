// SPDX-License-Identifier: BSD-2-Clause

package pftest

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"bascule/pf"
	"bascule/pf/reference"
)

// The drawn rulesets have every field of every type, and every action, kind of
// host and so on.
func TestRulesetsHaveEverything(t *testing.T) {
	seen, kinds := map[string]bool{}, map[reflect.Type]map[int64]bool{}
	var visit func(v reflect.Value)
	visit = func(v reflect.Value) {
		switch v.Kind() {
		case reflect.Pointer:
			if !v.IsNil() {
				visit(v.Elem())
			}
		case reflect.Slice, reflect.Array:
			for i := range v.Len() {
				visit(v.Index(i))
			}
		case reflect.Uint8:
			if v.Type().PkgPath() != "" {
				if kinds[v.Type()] == nil {
					kinds[v.Type()] = map[int64]bool{}
				}
				kinds[v.Type()][int64(v.Uint())] = true
			}
		case reflect.Struct:
			if v.Type().PkgPath() != reflect.TypeFor[pf.Rule]().PkgPath() {
				return
			}
			for i := range v.NumField() {
				name := v.Type().Name() + "." + v.Type().Field(i).Name
				seen[name] = seen[name] || !v.Field(i).IsZero()
				visit(v.Field(i))
			}
		}
	}
	for seed := range 2000 {
		visit(reflect.ValueOf(Translating().Example(seed)))
	}
	for _, name := range slices.Sorted(maps.Keys(seen)) {
		if field := name[strings.IndexByte(name, '.'):]; !seen[name] && field != ".Pos" && field != ".Place" && field != ".Names" && name != "Pool.By" && name != "Ruleset.Ignored" &&
			!strings.HasPrefix(name, "Pos.") && !strings.HasPrefix(name, "Place.") {
			t.Errorf("no ruleset has a %s", name)
		}
	}
	for _, want := range []struct {
		first, last any
		without     int64 // values that pf.conf has no words for
	}{
		{pf.Pass, pf.CallAnchor, -1},
		{pf.Both, pf.Out, -1},
		{pf.ReturnDrop, pf.ReturnICMP, -1},
		{pf.NoState, pf.SynproxyState, -1},
		{pf.NoSourceTrack, pf.SourceTrackRule, -1},
		{pf.DefaultPolicy, pf.IfBound, -1},
		{pf.AnyPort, pf.PortRange, -1},
		{pf.AnyHost, pf.URPFFailed, int64(pf.Wildcard)},
		{pf.NatTo, pf.AfTo, -1},
		{pf.Single, pf.LeastStates, -1},
		{pf.RouteTo, pf.DupTo, -1},
		{pf.DivertTo, pf.DivertPacket, -1},
	} {
		first, last := reflect.ValueOf(want.first), reflect.ValueOf(want.last)
		for n := int64(first.Uint()); n <= int64(last.Uint()); n++ {
			if n != want.without && !kinds[first.Type()][n] {
				t.Errorf("no ruleset has %v %d", first.Type(), n)
			}
		}
	}
}

// Enough packets are decided by a rule to make comparisons meaningful, and some
// are not.
func TestPacketsMeetRules(t *testing.T) {
	var all, decided, matched, passed, options, fragments int
	for seed := range 300 {
		rs := Rulesets().Example(seed)
		e := reference.Evaluator{Rules: rs, Anchors: reference.Loaded(rs), Addresses: Addresses}
		packets := Packets(rs)
		for n := range 10 {
			p := packets.Example(n)
			r := e.Evaluate(p)
			all++
			for _, count := range []struct {
				is bool
				n  *int
			}{
				{r.Rule != nil, &decided},
				{r.Matches != nil, &matched},
				{r.Rule != nil && r.Action == pf.Pass, &passed},
				{r.IPOption, &options},
				{r.Rule != nil && p.Fragment == reference.LaterFragment, &fragments},
			} {
				if count.is {
					*count.n++
				}
			}
		}
	}
	if decided < all/10 || decided > all*9/10 || matched < all/20 || passed < all/50 || options < all/100 || fragments < all/200 {
		t.Errorf("of %d packets %d are decided by a rule, %d met match rules, %d are passed by a rule, %d have options, "+
			"%d of the decided are later fragments", all, decided, matched, passed, options, fragments)
	}
}
