// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"net"
	"slices"
	"strings"
	"testing"

	"bascule/rule"
)

// TestWords wants errors and notes that say what helps where they are.
func TestWords(t *testing.T) {
	b := newBench(t, 3)
	b.must(b.AddBridge("br0", nil))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
		func(e *Edit) error { return e.SetPort("p1", PortOptions{Changes: []Change{{"backup", "p2"}}}) },
	)
	r, err := rule.ParseRule([]string{"block", "in"}, "p3")
	b.must(err)
	const add = "or add it with 'bascule port add br0 p3'"
	one := func(_ any, err error) error { return err }
	for _, c := range []struct {
		err   error
		words string // that it has
		never string // that it has not
	}{
		{b.DelSpan("br0", "p3"), "p3 is no port of this bridge; see 'bascule port show br0'", add},
		{one(b.DelPort("br0", "p3")), "p3 is no port of this bridge; see 'bascule port show br0'", add},
		{b.DelRule("br0", r), "p3 is no port of this bridge; see 'bascule port show br0'", add},
		{b.DelVLANs("br0", "p3", []uint16{1}), "", add},
		{one(b.FlushRules("br0", "p3")), "p3 is no port of this bridge", add},
		{one(b.Rules("br0", "p3")), "p3 is no port of this bridge", add},
		{one(b.FDB("br0", Match{Port: "p3"})), "p3 is no port of this bridge", add},
		{one(b.Flush("br0", Match{Port: "p3"})), "p3 is no port of this bridge", add},
		{one(b.FlushBindings("br0", Match{Port: "p3"})), "p3 is no port of this bridge", add},
		{b.AddEntry("br0", Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Port: "p3", Static: true}), add, "--"},
		{one(b.SetPort("br0", "p1", PortOptions{Changes: on("mab")})), "and the port would not be locked", "--learn"},
	} {
		if c.err == nil || !strings.Contains(c.err.Error(), c.words) || strings.Contains(c.err.Error(), c.never) {
			t.Errorf("the error is %v, should have %q and not %q", c.err, c.words, c.never)
		}
	}
	notes, err := b.DelPort("br0", "p2")
	b.must(err)
	if want := []string{"port p1 has no backup any more: that was p2"}; !slices.Equal(notes, want) {
		t.Errorf("a port that stands in for another leaves with %q, should say %q", notes, want)
	}
}
