// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/cilium/ebpf"

	"bascule/bridge"
)

// TestBasculeLocked checks that programs of a locked fabric keep the lock during everything that
// the lab does, and while a user inspects them, and that a normal change removes it.
func TestBasculeLocked(t *testing.T) {
	needRoot(t)
	for _, f := range []*Fabric{BasculeLocked, BasculeLockedXDP} {
		t.Run(f.Name, func(t *testing.T) {
			n := built(t, f, Site{}, Spec{Ends: 2})
			user, err := bridge.Open(n.Switch.Name)
			if err != nil {
				t.Fatal(err)
			}
			defer user.Close()
			device := n.Ports[1].Ifname
			for _, step := range []struct {
				name string
				do   func() error
				lock bool
			}{
				{"build", func() error { return nil }, true},
				{"port del", func() error { return n.DelPort(t.Context(), device) }, true},
				{"port add", func() error { return n.AddPort(t.Context(), device) }, true},
				{"flush", func() error { return n.Flush(t.Context()) }, true},
				{"user's bridge show", func() error { _, err := user.Bridges(); return err }, true},
				{"user's port show", func() error { _, err := user.Ports(bridgeName); return err }, true},
				{"user's fdb flush", func() error { _, err := user.Flush(bridgeName, bridge.Match{}); return err }, true},
				{"user's bridge set", func() error { _, err := user.SetBridge(bridgeName, nil); return err }, false},
			} {
				if err := step.do(); err != nil {
					t.Fatalf("%s: %v", step.name, err)
				}
				if got := hasLock(t, n, "tcx"); got != step.lock {
					t.Errorf("after %s: locked %v, want %v", step.name, got, step.lock)
				}
				if f == BasculeLockedXDP && hasLock(t, n, "xdp") != step.lock {
					t.Errorf("after %s, XDP: locked %v, want %v", step.name, !step.lock, step.lock)
				}
			}
		})
	}
}

// hasLock reports whether a program of the fabric's bridge has variables, which
// only the lock needs.
func hasLock(t *testing.T, n *Net, pin string) bool {
	t.Helper()
	cookie, err := n.Switch.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	p, err := ebpf.LoadPinnedProgram(filepath.Join(stateDir, fmt.Sprint(cookie), bridgeName, "current", pin), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	ids, ok := info.MapIDs()
	if !ok {
		t.Fatal("the kernel does not say which maps a program uses")
	}
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		info, err := m.Info()
		m.Close()
		if err != nil {
			t.Fatal(err)
		}
		if info.Name == ".bss" {
			return true
		}
	}
	return false
}
