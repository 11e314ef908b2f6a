// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"
	"strings"
	"testing"

	"bascule/datapath"
	"bascule/pf"
)

// No two IDs have the same name, and each name is exactly one anchor below plug.
func TestPlugName(t *testing.T) {
	for id, want := range map[string]string{
		"g1": "plug/g1", "a.b_c": "plug/a.b_c", ".a": "plug/%2Ea", "_a": "plug/%5Fa", "..": "plug/%2E.", "a/b": "plug/a%2Fb", "*": "plug/%2A", "%2A": "plug/%252A",
	} {
		if got := PlugName(id); got != want || checkAnchor(got) != nil || strings.Count(got, "/") != 1 {
			t.Errorf("%q is %s, should be %s", id, got, want)
		}
	}
}

// A change of pf is refused if it would leave rules of plugs without a call, but it does not keep
// other plugs from coming or leaving.
func TestCheckPlugs(t *testing.T) {
	all := []string{"plug/a", "plug/b"}
	for what, c := range map[string]struct {
		alone, forced     bool
		called, was, puts []string
		refused           string
		left              []string
	}{
		"a load that calls them":           {true, false, all, nil, nil, "", nil},
		"a load that calls one":            {true, false, all[:1], nil, nil, "plug/b", nil},
		"a forced load":                    {true, true, nil, nil, nil, "", all},
		"a load after a forced one":        {true, false, nil, all, nil, "", all},
		"a load that leaves one more":      {true, false, nil, all[:1], nil, "plug/b", nil},
		"a plug that leaves, of others":    {false, false, nil, nil, nil, "", all},
		"a plug that comes, not called":    {false, false, all[:1], all, all[1:], "plug/b", nil},
		"a plug that comes beside another": {false, false, all[1:], nil, all[1:], "", all[:1]},
	} {
		d := &pfConfig{pfStored: pfStored{Anchors: map[string]string{}, Uncalled: c.was}, enabled: true, other: true, alone: c.alone, forced: c.forced, main: &pf.Ruleset{}}
		for _, path := range all {
			d.Anchors[path] = "block\n"
		}
		err := (&draft{bridge: &datapath.Bridge{}, next: &datapath.Config{}, plugged: c.puts}).checkPlugs("load", d, &pf.Program{Anchors: c.called, Whole: c.called})
		if c.refused == "" && err != nil || c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)) {
			t.Errorf("%s: %v, should be refused for %q", what, err, c.refused)
		}
		if err == nil && !slices.Equal(d.Uncalled, c.left) {
			t.Errorf("%s: %v are uncalled, should be %v", what, d.Uncalled, c.left)
		}
	}
}
