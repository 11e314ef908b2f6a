// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"errors"
	"maps"
	"testing"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
	"bascule/lab/report"
)

// TestAll checks that every fabric can be found, has a description, and is either built or has a
// reason why not.
func TestAll(t *testing.T) {
	for _, f := range All {
		if found, ok := Find(f.Name); !ok || found != f {
			t.Errorf("%s is not what is found under its name", f.Name)
		}
		if f.About == "" || len(f.Path) < 2 {
			t.Errorf("%s does not say what it is", f.Name)
		}
		if f.build == nil && f.Missing == "" {
			t.Errorf("%s cannot be built, and says nothing of what it lacks", f.Name)
		}
	}
}

func TestGuestPath(t *testing.T) {
	for _, c := range []struct {
		path []report.Hop
		want string
	}{
		{LinuxBridge.Path, "end - tap - Linux bridge - tap - end"},
		{LinuxBridge.HostPath, "host - Linux bridge - tap - end"},
		{Bascule.Path, "end - tap - bascule (tcx) - tap - end"},
		{Bascule.HostPath, "host - host port - bascule (tcx) - tap - end"},
		{BasculeChainVeth.HostPath, "host - host port - bascule (tcx) - veth - veth - bascule (tcx) - veth - veth - bascule (tcx) - tap - end"},
		{Macvtap.Path, "end - macvtap - parent - macvtap - end"},
		{nil, ""},
	} {
		before := report.Drawing(c.path)
		if got := report.Drawing(GuestPath(c.path)); got != c.want {
			t.Errorf("%s becomes %s, want %s", before, got, c.want)
		}
		if after := report.Drawing(c.path); after != before {
			t.Errorf("%s itself became %s", before, after)
		}
	}
}

func TestSubnet(t *testing.T) {
	for n, want := range map[int][2]string{
		1:       {"198.18.1.1/24", "198.18.1.254/24"},
		256:     {"198.19.0.1/24", "198.19.0.254/24"},
		subnets: {"198.19.254.1/24", "198.19.254.254/24"},
	} {
		end, router := subnet(n)
		if end.String() != want[0] || router.String() != want[1] {
			t.Errorf("subnet %d: %s behind %s, want %v", n, end, router, want)
		}
		if end.Masked().Contains(ends.NoStation) {
			t.Errorf("subnet %d has the address of nobody", n)
		}
	}
}

func TestSoftnetDrops(t *testing.T) {
	const two = "00000001 0000000a 00000000 00000000\n00000002 00000100 00000000 00000000\n"
	if got, err := softnetDrops(two); err != nil || got != 266 {
		t.Errorf("%d, error %v; want 266", got, err)
	}
	for _, bad := range []string{"00000001\n", "00000001 xyz\n"} {
		if _, err := softnetDrops(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}

func TestAddDrops(t *testing.T) {
	device := func(name string, s netlink.LinkStatistics) netlink.Link {
		return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: name, Statistics: &s}}
	}
	links := []netlink.Link{
		device("e2", netlink.LinkStatistics{RxDropped: 1, RxErrors: 2, RxMissedErrors: 4}),
		device("e3", netlink.LinkStatistics{RxDropped: 8, TxDropped: 16, TxErrors: 32}),
		&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "e4"}},
	}
	for shared, want := range map[bool]map[string]uint64{
		false: {"e2 rx": 7, "e2 tx": 0, "e3 rx": 8, "e3 tx": 48},
		true:  {"ends rx": 15, "ends tx": 48},
	} {
		got := map[string]uint64{}
		addDrops(got, links, shared)
		if !maps.Equal(got, want) {
			t.Errorf("shared %v: %v, want %v", shared, got, want)
		}
	}
}

// TestDrops checks that losses at a device are reported with its name.
func TestDrops(t *testing.T) {
	needRoot(t)
	n := built(t, Router, Site{}, Spec{Ends: 2})
	before, err := n.Drops()
	if err != nil {
		t.Fatal(err)
	}
	// A veth drops frames while its other side is down.
	l, err := n.Switch.Netlink().LinkByIndex(n.Ports[0].Ifindex)
	if err == nil {
		err = n.Switch.Netlink().LinkSetDown(l)
	}
	if err != nil {
		t.Fatal(err)
	}
	e := n.Ends[0]
	const frames = 3
	for range frames {
		// The kernel may refuse to send without a carrier; then the frame is not lost.
		err = errors.Join(err, e.Send(ends.Frame(64, e, n.NextHop(0, 1), n.Ends[1].Addr.Addr())))
	}
	after, errAfter := n.Drops()
	if errAfter != nil {
		t.Fatal(errAfter)
	}
	if got := after["e1 tx"] - before["e1 tx"]; got != frames {
		t.Errorf("%d frames lost at e1, of %d: %v (sending: %v)", got, frames, after, err)
	}
}

// TestMacvlanRefuses checks that a macvlan reports unsupported operations.
func TestMacvlanRefuses(t *testing.T) {
	needRoot(t)
	n := built(t, Macvlan, Site{}, Spec{Ends: 2, Host: true})
	var unavailable *ends.Unavailable
	if err := n.Ends[1].At.SetFeatures(n.Ends[1].Ifname, ends.Features{}); !errors.As(err, &unavailable) {
		t.Errorf("offloads of a macvlan are off, error %v", err)
	}
}
