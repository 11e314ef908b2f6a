// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"maps"
	"testing"

	"github.com/safchain/ethtool"
)

// The other end of a veth gets back what it had, however often the port was told to
// be on XDP.
func TestEndGivenBack(t *testing.T) {
	features := []string{featureCsum, featureVLAN, featureGRO}
	for mask := range 1 << len(features) {
		b := newBench(t, 1)
		had, now := map[string]bool{}, map[string]bool{}
		for i, name := range features {
			had[name] = mask>>i&1 != 0
		}
		far := func(f func(e *ethtool.Ethtool) error) {
			t.Helper()
			b.must(b.far.Do(func() error {
				e, err := ethtool.NewEthtool()
				if err != nil {
					return err
				}
				defer e.Close()
				return f(e)
			}))
		}
		far(func(e *ethtool.Ethtool) error { return e.Change("far1", had) })
		b.must(b.AddBridge("br0", nil))
		_, err := b.AddPort("br0", "p1", PortOptions{Hook: HookXDP})
		b.must(err)
		_, err = b.SetPort("br0", "p1", PortOptions{Hook: HookXDP})
		b.must(err)
		_, err = b.DelPort("br0", "p1")
		b.must(err)
		far(func(e *ethtool.Ethtool) error {
			all, err := e.Features("far1")
			for _, name := range features {
				now[name] = all[name]
			}
			return err
		})
		if !maps.Equal(now, had) {
			t.Errorf("the other end has %v, it had %v", now, had)
		}
	}
}
