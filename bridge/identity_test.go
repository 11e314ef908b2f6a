// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIdentityAddress: other machines, namespaces, bridges and ports have other addresses.
func TestIdentityAddress(t *testing.T) {
	one := identity{machine: []byte("0123456789abcdef"), namespace: "first"}
	seen := map[string]string{}
	for _, i := range []identity{one, {[]byte("0123456789abcdeg"), "first"}, {one.machine, "name first"}, {one.machine, "cookie 3"}} {
		for _, parts := range [][]string{
			{ofBridge, "br0"}, {ofBridge, "br1"}, {ofHost, "br0", "host0"}, {ofHost, "br0", "host1"}, {ofHost, "br1", "host0"},
			{ofHost, "br0host0", ""}, {ofHostEnd, "br0", "host0"},
		} {
			for n := range 2 {
				mac := i.address(n, parts...)
				if again := i.address(n, parts...); again.String() != mac.String() {
					t.Errorf("%v %q: %s, and then %s", i, parts, mac, again)
				}
				if mac[0]&3 != 2 {
					t.Errorf("%s is not one station's, locally administered", mac)
				}
				what := fmt.Sprint(i, parts, n)
				if other := seen[mac.String()]; other != "" {
					t.Errorf("%s is that of %s and of %s", mac, other, what)
				}
				seen[mac.String()] = what
			}
		}
	}
	free, _ := one.free(map[string]bool{one.address(0, ofBridge, "br0").String(): true}, 0, ofBridge, "br0")
	if free.String() != one.address(1, ofBridge, "br0").String() {
		t.Errorf("%s, want the second address where the first is in use", free)
	}
	for n := range 2 {
		mac := one.address(n, ofBridge, "br0")
		if got := one.nearest(mac, ofBridge, "br0"); got.String() != mac.String() {
			t.Errorf("the bridge does not get %s by itself, but %s", mac, got)
		}
	}
	if got := one.nearest(net.HardwareAddr{2, 0, 0, 0, 0, 1}, ofBridge, "br0"); got.String() != one.address(0, ofBridge, "br0").String() {
		t.Errorf("the bridge gets %s by itself", got)
	}
	var none identity // a machine without an ID
	if a, b := none.address(0, ofBridge, "br0"), none.address(0, ofBridge, "br0"); a.String() == b.String() || none.nearest(a, ofBridge, "br0") != nil {
		t.Errorf("%s and %s of a machine without an id", a, b)
	}
}

func TestMachineID(t *testing.T) {
	was := machineIDs
	defer func() { machineIDs = was }()
	dir := t.TempDir()
	machineIDs = []string{filepath.Join(dir, "machine-id"), filepath.Join(dir, "dbus")}
	for _, tt := range []struct{ first, second, want string }{
		{"", "", ""},
		{"uninitialized\n", "", ""}, // early in the first boot (machine-id(5))
		{"0123456789abcdef0123456789abcdef\n", "", "0123456789abcdef0123456789abcdef"},
		{"", "0123456789abcdef0123456789abcdef\n", "0123456789abcdef0123456789abcdef"},
		{"0123\n", "00000000000000000000000000000001", "00000000000000000000000000000001"},
	} {
		for i, text := range []string{tt.first, tt.second} {
			os.Remove(machineIDs[i])
			if text == "" {
				continue
			}
			if err := os.WriteFile(machineIDs[i], []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if got := fmt.Sprintf("%x", machineID()); got != tt.want {
			t.Errorf("%q, %q: %q, want %q", tt.first, tt.second, got, tt.want)
		}
	}
}

// TestNamespaceID: a namespace has the ID of its name, and without a name an ID of its own.
func TestNamespaceID(t *testing.T) {
	b := newBench(t, 0)
	var id string
	b.must(b.Inside(func() (err error) { id, err = namespaceID(); return err }))
	if want := "name " + b.ns.Name; id != want {
		t.Errorf("%q, want %q", id, want)
	}
	seen := map[string]bool{}
	for range 2 {
		end, done := make(chan struct{}), make(chan error)
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with its namespace
			err := unix.Unshare(unix.CLONE_NEWNET)
			if err == nil {
				id, err = namespaceID()
			}
			done <- err
			<-end
		}()
		defer close(end)
		b.must(<-done)
		if seen[id] || !strings.HasPrefix(id, "cookie ") {
			t.Errorf("a namespace without a name has the id %q", id)
		}
		seen[id] = true
	}
}
