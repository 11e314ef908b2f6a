// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"
)

// TestBriefly: a job looks up a host once, and looks up no more hosts when
// the lookups have taken too long.
func TestBriefly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := map[string]int{}
		lookup := briefly(func(name string, modes []string) ([]netip.Prefix, error) {
			asked[name]++
			time.Sleep(maxLookup / 2)
			return []netip.Prefix{netip.MustParsePrefix("192.0.2.1/32")}, nil
		})
		for _, name := range []string{"a", "a", "b", "b"} {
			if list, err := lookup(name, nil); err != nil || len(list) != 1 {
				t.Errorf("%s: %v, %v", name, list, err)
			}
		}
		if _, err := lookup("c", nil); err == nil {
			t.Error("c is looked up when no time is left")
		}
		if _, err := lookup("a", nil); err != nil {
			t.Errorf("a is not known any more: %v", err)
		}
		if len(asked) != 2 || asked["a"] != 1 || asked["b"] != 1 {
			t.Errorf("asked for %v", asked)
		}
	})
}
