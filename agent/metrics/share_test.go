// SPDX-License-Identifier: BSD-2-Clause

package metrics

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"bascule/bridge"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	grafana "github.com/grafana/grafana-foundation-sdk/go/dashboard"
	"github.com/grafana/grafana-foundation-sdk/go/prometheus"
	"github.com/grafana/grafana-foundation-sdk/go/stat"
	"github.com/grafana/grafana-foundation-sdk/go/table"
	"github.com/grafana/grafana-foundation-sdk/go/timeseries"
	"github.com/prometheus/common/expfmt"
)

// promtool runs Prometheus' own tool.
func promtool(t *testing.T, stdin []byte, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		t.Skip("promtool is missing: run 'make needs'")
	}
	cmd := exec.Command("promtool", args...)
	cmd.Dir, cmd.Stdin = "testdata", bytes.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %v: %v: %s", args, err, out)
	}
}

// Prometheus' own tool finds no fault in a scrape.
func TestPromtoolMetrics(t *testing.T) {
	families, err := scraped(&fake{ports: []bridge.Port{{
		Bridge: "br0", Name: "p1", State: "forwarding", MTU: 1500,
		Stats: bridge.Stats{Drops: map[string]uint64{"mtu": 8}, Routed: map[string]uint64{"done": 9}},
	}}}, Options{}).Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, text.Bytes(), "check", "metrics")
}

const rules = "../../share/prometheus/bascule.rules.yml"

// The alert rules fire as described, and use only series that exist.
func TestAlertRules(t *testing.T) {
	promtool(t, nil, "check", "rules", "../"+rules)
	promtool(t, nil, "test", "rules", "rules_test.yml")
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	if n := named(t, string(text)); n < 8 {
		t.Errorf("the rules name %d series: the test does not read them", n)
	}
}

// named fails for series that the agent does not have, and returns the number of series
// in the text.
func named(t *testing.T, text string) int {
	t.Helper()
	names := regexp.MustCompile(`bascule_[a-z_]+`).FindAllString(text, -1)
	for _, name := range names {
		if !slices.ContainsFunc(kinds, func(k *kind) bool { return k.name == name }) {
			t.Errorf("there is no series %s", name)
		}
	}
	return len(names)
}

// The dashboard follows Grafana's own schema: it has all required fields and no unknown
// ones.
func TestDashboardSchema(t *testing.T) {
	text, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	known := cog.NewRuntime()
	known.RegisterPanelcfgVariant(timeseries.VariantConfig())
	known.RegisterPanelcfgVariant(table.VariantConfig())
	known.RegisterPanelcfgVariant(stat.VariantConfig())
	known.RegisterDataqueryVariant(prometheus.VariantConfig())
	// the library returns an empty list if there is no mistake
	wrong := func(err error) bool {
		list := cog.BuildErrors(nil)
		return err != nil && (!errors.As(err, &list) || len(list) > 0)
	}
	//lint:ignore SA1019 version 2 is another format; Grafana reads files in this one
	var board grafana.Dashboard
	if err := board.UnmarshalJSONStrict(text); wrong(err) {
		t.Errorf("it is not as the schema has it:\n%v", err)
	}
	if err := board.Validate(); wrong(err) {
		t.Errorf("it is not as the schema has it:\n%v", err)
	}
	for _, p := range board.Panels {
		if p.Panel == nil {
			continue
		}
		if _, ok := cog.ConfigForPanelcfgVariant(p.Panel.Type); !ok {
			t.Errorf("a panel is of the type %s, which the test does not know", p.Panel.Type)
		}
	}
	other := bytes.Replace(text, []byte(`"showLegend"`), []byte(`"showsLegend"`), 1)
	//lint:ignore SA1019 as above
	if err := new(grafana.Dashboard).UnmarshalJSONStrict(other); !wrong(err) {
		t.Error("the schema takes any field: the test is blind")
	}
}

const dashboard = "../../share/grafana/bascule.json"

// Grafana accepts the dashboard: Prometheus can parse its queries, their series and
// labels exist, and its panels do not overlap.
func TestDashboard(t *testing.T) {
	text, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	type place struct{ X, Y, W, H int }
	type source struct{ Type, UID string }
	var board struct {
		UID, Title    string
		SchemaVersion int
		Templating    struct {
			List []struct{ Name, Type, Definition string }
		}
		Panels []struct {
			ID          int
			Type, Title string
			Description string
			GridPos     place
			Datasource  source
			Targets     []struct {
				RefID, Expr string
				Datasource  source
			}
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		t.Fatal(err)
	}
	if board.UID == "" || board.Title == "" || board.SchemaVersion < 36 {
		t.Errorf("it is %q, %q, of schema %d", board.UID, board.Title, board.SchemaVersion)
	}
	variables := map[string]string{"$__rate_interval": "5m"}
	for _, v := range board.Templating.List {
		variables["$"+v.Name] = ".*"
		named(t, v.Definition)
	}
	ids, taken := map[int]bool{}, map[[2]int]string{}
	queries := "groups:\n- name: dashboard\n  rules:\n"
	asked := map[string]bool{}
	for _, p := range board.Panels {
		if ids[p.ID] || p.ID == 0 || p.Title == "" {
			t.Errorf("panel %d %q has no number or title of its own", p.ID, p.Title)
		}
		ids[p.ID] = true
		for x := range p.GridPos.W {
			for y := range p.GridPos.H {
				at := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
				if taken[at] != "" || at[0] >= 24 {
					t.Errorf("panel %s lies on %q at %v, or beyond the edge", p.Title, taken[at], at)
				}
				taken[at] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		if len(p.Targets) == 0 || p.Description == "" || p.Datasource != (source{"prometheus", "${datasource}"}) {
			t.Errorf("panel %s asks nobody, or does not say what it shows", p.Title)
		}
		refs := map[string]bool{}
		for _, target := range p.Targets {
			if refs[target.RefID] || target.RefID == "" || target.Datasource != p.Datasource {
				t.Errorf("panel %s: target %q is twice, or of another source", p.Title, target.RefID)
			}
			refs[target.RefID] = true
			named(t, target.Expr)
			for _, m := range regexp.MustCompile(`(bascule_[a-z_]+)\{([^}]*)\}`).FindAllStringSubmatch(target.Expr, -1) {
				asked[m[1]] = true
				for _, l := range regexp.MustCompile(`([a-z_]+)=`).FindAllStringSubmatch(m[2], -1) {
					i := slices.IndexFunc(kinds, func(k *kind) bool { return k.name == m[1] })
					if i >= 0 && l[1] != "instance" && !slices.Contains(kinds[i].labels, l[1]) {
						t.Errorf("panel %s: %s has no label %s", p.Title, m[1], l[1])
					}
				}
			}
			expr := target.Expr
			for name, value := range variables {
				expr = strings.ReplaceAll(expr, name, value)
			}
			if strings.Contains(expr, "$") {
				t.Errorf("panel %s: %s has a variable that there is not", p.Title, expr)
			}
			queries += fmt.Sprintf("  - {record: p%d_%s, expr: %q}\n", p.ID, target.RefID, expr)
		}
	}
	if len(asked) < 20 {
		t.Errorf("it asks for %d kinds of series: the test does not read it", len(asked))
	}
	path := filepath.Join(t.TempDir(), "queries.yml")
	if err := os.WriteFile(path, []byte(queries), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, nil, "check", "rules", "--lint=none", path)
}
