// SPDX-License-Identifier: BSD-2-Clause

package metrics

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"testing"

	"bascule/bridge"

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

// Prometheus' own tool finds nothing to complain of in a scrape.
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

// The alert rules mean what they say, and name only series that there are.
func TestAlertRules(t *testing.T) {
	promtool(t, nil, "check", "rules", "../"+rules)
	promtool(t, nil, "test", "rules", "rules_test.yml")
	source, err := os.ReadFile("metrics.go")
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?:gauge|counter)\("([a-z_]+)"`).FindAllSubmatch(source, -1) {
		known["bascule_"+string(m[1])] = true
	}
	text, err := os.ReadFile(rules)
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile(`bascule_[a-z_]+`).FindAllString(string(text), -1)
	if len(names) < 8 {
		t.Errorf("the rules name %v: the test does not read them", names)
	}
	for _, name := range names {
		if !known[name] {
			t.Errorf("a rule names %s, which the agent does not have", name)
		}
	}
}
