// SPDX-License-Identifier: BSD-2-Clause

package bridge

import "testing"

// A switch that is closed does nothing more, least of all in the caller's
// namespace.
func TestClosed(t *testing.T) {
	s, err := Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	err = s.Inside(func() error {
		t.Error("it acts in some namespace")
		return nil
	})
	if want := "cannot use network namespace /proc/self/ns/net: the switch is closed; open it again"; err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}
