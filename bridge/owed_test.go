// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/lab/ends"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// hidden removes the name of a network namespace, so that it cannot be reached, and returns a
// function that restores the name.
func (b *bench) hidden(ns *ends.Namespace) (held netns.NsHandle, show func()) {
	b.t.Helper()
	held, err := netns.GetFromName(ns.Name)
	b.must(err)
	b.t.Cleanup(func() { held.Close() })
	b.must(ns.Close())
	return held, func() {
		b.t.Helper()
		path := filepath.Join(netnsDir, ns.Name)
		b.must(os.WriteFile(path, nil, 0o600))
		b.t.Cleanup(func() { os.Remove(path) })
		b.must(unix.Mount(fmt.Sprintf("/proc/self/fd/%d", held), path, "", unix.MS_BIND, ""))
		b.t.Cleanup(func() { unix.Unmount(path, unix.MNT_DETACH) })
	}
}

// If a port's former settings cannot be restored when it leaves, because its device or the other
// end cannot be reached, the command reports and records them, and the next command that can reach
// it restores them.
func TestOwed(t *testing.T) {
	for _, c := range []struct {
		name  string
		moves string // what cannot be reached: the device, or its other end
		want  []string
		leave func(b *bench) ([]string, error)
	}{
		{"the device, port del", "device", []string{"it stays promiscuous", "its other end keeps", "ip link set p2 promisc off"},
			func(b *bench) ([]string, error) { return b.DelPort("br0", "p2") }},
		{"the device, bridge del", "device", []string{"it stays promiscuous", "its other end keeps"},
			func(b *bench) ([]string, error) { return b.DelBridge("br0") }},
		{"the other end, port del", "end", []string{"its other end keeps", featureCsum + " on"},
			func(b *bench) ([]string, error) { return b.DelPort("br0", "p2") }},
		{"the other end, hook", "end", []string{"its other end keeps"},
			func(b *bench) ([]string, error) { return b.SetPorts("br0", []string{"p2"}, PortOptions{Hook: HookTCX}) }},
		{"the other end, hook, then port del", "end", []string{"its other end keeps"},
			func(b *bench) ([]string, error) {
				warnings, err := b.SetPorts("br0", []string{"p2"}, PortOptions{Hook: HookTCX})
				if err != nil {
					return nil, err
				}
				_, err = b.DelPort("br0", "p2")
				return warnings, err
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := newBench(t, 1)
			away := b.namespace("away")
			far := b.far
			if c.moves == "end" {
				far = away
			}
			_, err := ends.Cable(b.ns, "p2", far, "far2", 2, ends.Wire{})
			b.must(err)
			b.must(b.AddBridge("br0", nil))
			_, err = b.AddPort("br0", "p2", PortOptions{Hook: HookXDP})
			b.must(err)
			place, err := netns.GetFromName(b.ns.Name)
			b.must(err)
			defer place.Close()
			if c.moves == "device" {
				to, err := netns.GetFromName(away.Name)
				b.must(err)
				defer to.Close()
				b.must(b.ns.Do(func() error {
					l, err := netlink.LinkByName("p2")
					if err != nil {
						return err
					}
					return netlink.LinkSetNsFd(l, int(to))
				}))
			}
			end, err := netns.GetFromName(far.Name)
			b.must(err)
			defer end.Close()
			held, show := b.hidden(away)
			if c.moves == "device" {
				place = held
			}

			warnings, err := c.leave(b)
			b.must(err)
			all := strings.Join(warnings, "\n")
			for _, want := range c.want {
				if !strings.Contains(all, want) {
					t.Errorf("warnings %q do not say %q", warnings, want)
				}
			}
			promiscuous := func() (n int) {
				b.must(inside(place, func() error {
					l, err := netlink.LinkByName("p2")
					if err == nil {
						n = l.Attrs().Promisc
					}
					return err
				}))
				return n
			}
			offload := func() bool { return b.feature(at(end), "far2", featureCsum) }
			if c.moves == "device" && promiscuous() == 0 || offload() {
				t.Fatal("there is a way after all")
			}
			b.must(b.AddBridge("br1", nil)) // any change, in vain
			show()
			b.must(b.AddBridge("br2", nil))
			stays := 0
			if c.name == "the other end, hook" {
				stays = 1 // a port
			}
			if n := promiscuous(); n != stays || !offload() {
				t.Errorf("promiscuity %d, want %d; the other end has its offload of checksums: %v", n, stays, offload())
			}
			if _, err := os.Stat(filepath.Join(b.root, "%owed")); err == nil {
				t.Error("a note is left")
			}
			if c.name == "the other end, hook" { // the record's pin was not the port's
				if ports, err := b.Ports("br0"); err != nil || len(ports) != 1 || ports[0].State == "gone" {
					t.Errorf("ports %+v, %v", ports, err)
				}
			}
		})
	}
}
