// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A file where names of network namespaces are may be anything.
func TestNetnsAt(t *testing.T) {
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, t.TempDir(), "/dev/null", "/proc/self/ns/mnt"} {
		if ns, err := NetnsAt(path); !errors.Is(err, errNoNetns) {
			t.Errorf("%s: %v, %v", path, ns, err)
		}
	}
	ns, err := NetnsAt("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
}

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
