// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"bascule/datapath"
	"bascule/lab/ends"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The other end of a veth regains its former features, no matter how often the port was moved to
// XDP.
func TestEndGivenBack(t *testing.T) {
	features := []string{featureCsum, featureSCTP, featureVLAN, featureSTag, featureGRO}
	b := newBench(t, 1)
	b.must(b.AddBridge("br0", nil))
	for mask := range 1 << len(features) {
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
		_, err := b.AddPort("br0", "p1", PortOptions{Hook: HookXDP})
		b.must(err)
		_, err = b.SetPorts("br0", []string{"p1"}, PortOptions{Hook: HookXDP})
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

// A killed command is mended even if a port on XDP has an other end that can no longer be reached:
// its network namespace has no name and no process.
func TestEndOutOfReach(t *testing.T) {
	b := newBench(t, 1)
	away := b.namespace("away")
	_, err := ends.Cable(b.ns, "p2", away, "far2", 2, ends.Wire{})
	b.must(err)
	b.must(b.AddBridge("br0", nil))
	_, err = b.AddPort("br0", "p2", PortOptions{Hook: HookXDP})
	b.must(err)
	held, err := netns.GetFromName(away.Name)
	b.must(err)
	defer held.Close()
	b.must(away.Close())
	b.must(b.write(func(store *datapath.Store) error {
		bridge, err := store.Open("br0")
		if err != nil {
			return err
		}
		return bridge.Begin()
	}))
	if _, err := b.AddPort("br0", "p1", PortOptions{}); err != nil {
		t.Error(err)
	}
	if _, err := b.SetPorts("br0", []string{"p2"}, PortOptions{Changes: on("isolated")}); err != nil {
		t.Error(err)
	}

	// the end's features are restored as soon as it can be reached again
	had := func() bool { return b.feature(at(held), "far2", featureCsum) }
	warnings, err := b.SetPorts("br0", []string{"p2"}, PortOptions{Hook: HookTCX})
	b.must(err)
	if len(warnings) != 1 || !strings.Contains(warnings[0], "p2: its other end keeps the offloads that XDP took") {
		t.Errorf("warnings %q", warnings)
	}
	if had() {
		t.Fatal("there is a way to the other end after all")
	}
	path := filepath.Join(netnsDir, away.Name)
	b.must(os.WriteFile(path, nil, 0o600))
	defer os.Remove(path)
	b.must(unix.Mount(fmt.Sprintf("/proc/self/fd/%d", held), path, "", unix.MS_BIND, ""))
	defer unix.Unmount(path, unix.MNT_DETACH)
	_, err = b.SetPorts("br0", []string{"p2"}, PortOptions{Hook: HookTCX})
	b.must(err)
	if !had() {
		t.Error("the other end has lost the offload of checksums")
	}
}

// While the network namespace of a veth's other end is being destroyed, the kernel does not name
// it. Another device of this namespace may then have the end's index, and keeps its features.
func TestEndOfAnother(t *testing.T) {
	b := newBench(t, 2)
	gro := func() bool { return b.feature(b.ns.Do, "p2", featureGRO) }
	b.must(b.ns.SetFeatures("p2", ends.Features{GRO: true}))
	b.must(b.ns.Do(func() error {
		port, err := netlink.LinkByName("p1")
		if err != nil {
			return err
		}
		bystander, err := netlink.LinkByName("p2")
		if err != nil {
			return err
		}
		port.Attrs().NetNsID, port.Attrs().ParentIndex = -1, bystander.Attrs().Index
		if end := otherEnd(port); end != nil {
			t.Errorf("%s is taken for the other end", end.Attrs().Name)
		}
		if owed := restoreEnd(datapath.PortEndNoGRO, port); owed != 0 {
			t.Errorf("owed %v", owed)
		}
		return nil
	}))
	if !gro() {
		t.Error("another device has lost GRO")
	}
}

// TestFarEnd: a port has the name of its veth's other end in this namespace, and the alias of its
// device.
func TestFarEnd(t *testing.T) {
	b := newBench(t, 1)
	nl := b.ns.Netlink()
	link := netlink.NewLinkAttrs()
	link.Name = "left"
	b.must(nl.LinkAdd(&netlink.Veth{LinkAttrs: link, PeerName: "right"}))
	left, err := nl.LinkByName("left")
	b.must(err)
	b.must(nl.LinkSetAlias(left, "to the right"))
	b.must(b.AddBridge("br0", nil))
	for _, name := range []string{"left", "p1"} {
		_, err := b.AddPort("br0", name, PortOptions{})
		b.must(err)
	}
	ports, err := b.Ports("br0")
	b.must(err)
	var got []string
	for _, p := range ports {
		got = append(got, p.Name+" "+p.Link+" "+p.Description)
	}
	if want := []string{"left right to the right", "p1  "}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
