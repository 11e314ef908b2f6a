// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

// TestReplaceEntries deletes, moves and adds at once. If one of the changes is refused, nothing
// changes.
func TestReplaceEntries(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
		func(e *Edit) error { return e.SetVLANs("p1", vids("10", "101up")) },
		func(e *Edit) error { return e.SetVLANs("p2", vids("10up", "100")) },
		func(e *Edit) error { return e.SetPrivateVLANs(100, PrivateVLANs{Community: []uint16{101}}) },
	)
	// "5 10 p1" is the static address 02:00:00:00:00:05 of VLAN 10, "5 10 p1 sticky" a sticky one
	entries := func(words ...string) (list []Entry) {
		for _, w := range words {
			e := Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0}}
			_, err := fmt.Sscan(w, &e.MAC[5], &e.VLAN, &e.Port)
			b.must(err)
			e.Sticky = strings.HasSuffix(w, "sticky")
			e.Static = !e.Sticky
			list = append(list, e)
		}
		return list
	}
	want := func(words ...string) {
		t.Helper()
		list, err := b.FDB("br0", Match{Static: true})
		b.must(err)
		var got []string
		for _, e := range list {
			w := fmt.Sprint(e.MAC[5], " ", e.VLAN, " ", e.Port)
			if e.Sticky {
				w += " sticky"
			}
			got = append(got, w)
		}
		if !slices.Equal(got, words) {
			t.Errorf("the FDB has %q, should have %q", got, words)
		}
	}
	// VLAN 0 is the PVID of each port, and entries of a private VLAN belong to its primary VLAN
	b.must(b.ReplaceEntries("br0", nil, entries("1 0 p1", "2 0 p2", "3 10 p1", "4 101 p1 sticky", "5 10 p1")))
	before := []string{"2 10 p2", "3 10 p1", "5 10 p1", "1 100 p1", "4 100 p1 sticky"}
	want(before...)
	for _, c := range []struct {
		del, add []Entry
		words    string
	}{
		{entries("1 100 p1"), entries("6 10 p1", "3 10 p2"), "cannot add address 02:00:00:00:00:03 to br0: it is static on port p1; delete that entry first with 'bascule fdb del br0 02:00:00:00:00:03 --vlan 10'"},
		{entries("1 100 p1"), entries("6 10 p1", "6 10 p2"), "it is static on port p1"},
		{nil, entries("4 100 p2"), "it is sticky on port p1"},
		{entries("1 100 p1"), entries("6 10 p1", "7 11 p1"), "port p1 is not in VLAN 11; add it with"},
		{entries("1 100 p1"), entries("6 10 p1", "7 10 p3"), "p3"},
		{nil, entries("6 10 p1", "7 4095 p1"), "VLAN 4095"},
	} {
		if err := b.ReplaceEntries("br0", c.del, c.add); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: the error is %v, should be of %s", c.add, err, c.words)
		}
		want(before...)
	}
	b.must(b.ReplaceEntries("br0", entries("1 100 p1", "3 10 p1", "4 100 p1", "9 10 p1"), entries("3 10 p2", "4 101 p1", "5 10 p1 sticky", "6 0 p1")))
	want("2 10 p2", "3 10 p2", "5 10 p1 sticky", "4 100 p1", "6 100 p1")
	if err := b.ReplaceEntries("br9", nil, nil); err == nil {
		t.Error("a bridge that is not there is changed")
	}
}

// TestEntryOfPVID: when a bridge stops filtering VLANs, frames without a tag are in no VLAN any
// more. Static entries and bindings of their former VLAN stay, and match again when the bridge
// filters again.
func TestEntryOfPVID(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
		// the port's own address moves
		func(e *Edit) error { return e.AddPort("host0", PortOptions{Type: TypeHost}) },
		func(e *Edit) error { return e.SetVLANs("p1", vids("100", "20u", "5up")) },
	)
	b.must(b.SetPrivateVLANs("br0", 4, PrivateVLANs{Isolated: []uint16{5}}))
	b.edit(func(e *Edit) error { return e.SetVLANs("p2", vids("1up", "4")) })
	for _, vlan := range []uint16{5, 20, 100} {
		b.must(b.AddEntry("br0", Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, byte(vlan)}, VLAN: vlan, Port: "p1", Static: true}))
	}
	b.must(b.AddEntry("br0", Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, VLAN: 1, Port: "p2", Sticky: true}))
	bind := func(vlan uint16, address string) {
		t.Helper()
		b.must(b.AddBinding(Binding{Bridge: "br0", Port: "p1", MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, VLAN: vlan, Address: netip.MustParseAddr(address)}))
	}
	bind(20, "192.0.2.20")
	notes, err := b.SetBridge("br0", nil)
	if err != nil || notes != nil {
		t.Errorf("where it filters on it says %q, %v", notes, err)
	}
	bind(5, "192.0.2.5")
	off := []Change{{"vlan-filtering", "off"}}
	notes, err = b.SetBridge("br0", off)
	b.must(err)
	want := []string{
		"br0: static and sticky entries in VLANs of frames that had no tag, which are in none now: 2 in VLANs 1,4; " +
			"see 'bascule fdb show br0 --static', and add each again without --vlan",
		"br0: bindings in VLANs of frames that had no tag, which are in none now: 1 in VLAN 4; " +
			"see 'bascule binding show br0', and add each again without --vlan",
	}
	if !slices.Equal(notes, want) {
		t.Errorf("it says %q, should say %q", notes, want)
	}
	if notes, err := b.SetBridge("br0", off); err != nil || notes != nil {
		t.Errorf("where it does not filter it says %q, %v", notes, err)
	}
	// the entries that stayed match again
	if notes, err = b.SetBridge("br0", on("vlan-filtering")); err != nil || notes != nil {
		t.Errorf("where it filters again it says %q, %v", notes, err)
	}
	if e, err := b.GetEntry("br0", net.HardwareAddr{2, 0, 0, 0, 0, 2}, new(uint16(1))); err != nil || !e.Sticky {
		t.Errorf("in the PVID there is %v, %v", e, err)
	}
}

// TestEntryWithoutVLAN finds and deletes an entry without a VLAN, which is older than VLAN
// filtering on the bridge, while the address has other entries.
func TestEntryWithoutVLAN(t *testing.T) {
	b := newBench(t, 1)
	b.must(b.AddBridge("br0", nil))
	b.edit(func(e *Edit) error { return e.AddPort("p1", PortOptions{}) })
	mac := net.HardwareAddr{2, 0, 0, 0, 0, 0x45}
	add := func(vlan uint16) {
		t.Helper()
		b.must(b.AddEntry("br0", Entry{MAC: mac, VLAN: vlan, Port: "p1", Static: true}))
	}
	add(0)
	// the port's own address moves
	b.edit(func(e *Edit) error { return e.AddPort("host0", PortOptions{Type: TypeHost}) })
	b.must(b.AddBinding(Binding{Bridge: "br0", Port: "p1", MAC: mac, Address: netip.MustParseAddr("192.0.2.1")}))
	notes, err := b.SetBridge("br0", on("vlan-filtering"))
	b.must(err)
	want := []string{
		"br0: static and sticky entries without a VLAN, which match no frame now: 1; see 'bascule fdb show br0 --static --vlan 0', " +
			"add each again, and flush those with 'bascule fdb flush br0 --static --vlan 0'",
		"br0: bindings without a VLAN, which match no frame now: 1; see 'bascule binding show br0', " +
			"add each again with --vlan, and flush those with 'bascule binding flush br0 --vlan 0'",
	}
	if !slices.Equal(notes, want) {
		t.Errorf("it says %q, should say %q", notes, want)
	}
	if notes, err := b.SetBridge("br0", on("vlan-filtering")); err != nil || notes != nil {
		t.Errorf("where it filters already it says %q, %v", notes, err)
	}
	b.edit(func(e *Edit) error { return e.SetVLANs("p1", vids("1up", "20")) })
	ask := func(words string) {
		t.Helper()
		if _, err := b.GetEntry("br0", mac, nil); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("get: the error is %v, should be of %s", err, words)
		}
		if err := b.DelEntry("br0", mac, nil); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("delete: the error is %v, should be of %s", err, words)
		}
	}
	add(20)
	ask("it is there without a VLAN, and in VLAN 20; name one with --vlan, 0 for none")
	add(1)
	ask("it is there without a VLAN, and in VLANs 1,20; name one with --vlan, 0 for none")
	if e, err := b.GetEntry("br0", mac, new(uint16(0))); err != nil || e.VLAN != 0 {
		t.Errorf("without a VLAN there is %v, %v", e, err)
	}
	b.must(b.DelEntry("br0", mac, new(uint16(0))))
	ask("it is in VLANs 1,20; name one with --vlan")
	if err := b.DelEntry("br0", mac, new(uint16(0))); err == nil || !strings.Contains(err.Error(), "the FDB does not have it without a VLAN") {
		t.Errorf("delete what is not there: %v", err)
	}
}

// TestHostAddressStays checks that neither a flush nor a deletion removes a host port's own
// address.
func TestHostAddressStays(t *testing.T) {
	b := newBench(t, 1)
	b.must(b.AddBridge("br0", nil))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("host0", PortOptions{Type: TypeHost}) },
	)
	own := func(vlans ...uint16) net.HardwareAddr {
		t.Helper()
		list, err := b.FDB("br0", Match{Own: true})
		b.must(err)
		var got []uint16
		for _, e := range list {
			got = append(got, e.VLAN)
		}
		if !slices.Equal(got, vlans) {
			t.Fatalf("the host's address is in VLANs %v, should be in %v", got, vlans)
		}
		return list[0].MAC
	}
	mac := own(0)
	b.must(b.AddEntry("br0", Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 1}, Port: "p1", Static: true}))
	b.must(b.AddEntry("br0", Entry{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 2}, Port: "host0", Sticky: true}))
	// a manual entry: no frame teaches one there
	b.must(b.AddEntry("br0", Entry{MAC: mac, VLAN: 7, Port: "host0", Static: true}))
	for _, c := range []struct {
		m Match
		n int
	}{{Match{Port: "host0", VLAN: new(uint16(0))}, 1}, {Match{Dynamic: true}, 0}, {Match{}, 2}} {
		n, err := b.Flush("br0", c.m)
		b.must(err)
		if n != c.n {
			t.Errorf("flushing %+v removes %d entries, should remove %d", c.m, n, c.n)
		}
		own(0)
	}
	b.must(b.AddEntry("br0", Entry{MAC: mac, VLAN: 7, Port: "host0", Static: true}))
	b.must(b.DelEntry("br0", mac, new(uint16(7))))
	refused := func(vlan *uint16) {
		t.Helper()
		err := b.DelEntry("br0", mac, vlan)
		if err == nil || !strings.Contains(err.Error(), "it is the address of host port host0 itself") {
			t.Errorf("deleting the host's address: %v", err)
		}
	}
	refused(nil)
	_, err := b.SetBridge("br0", on("vlan-filtering"))
	b.must(err)
	refused(nil)
	refused(new(uint16(1)))
	if _, err := b.Flush("br0", Match{Static: true}); err != nil {
		t.Error(err)
	}
	own(1)
	_, err = b.DelPort("br0", "host0")
	b.must(err)
	if list, err := b.FDB("br0", Match{}); err != nil || len(list) > 0 {
		t.Errorf("with the port its address goes; there are %v, %v", list, err)
	}
}
