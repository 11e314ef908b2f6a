// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	for _, good := range []string{"192.0.2.1", "10.0.0.0", "2001:db8::1", "fe80::1", "fd00::"} {
		if a, err := ParseAddress(good); err != nil || a.String() != good {
			t.Errorf("%s: %s, %v", good, a, err)
		}
	}
	for bad, says := range map[string]string{
		"":                 "not an IP address",
		"192.0.2":          "not an IP address",
		"192.0.2.1/24":     "not an IP address",
		"02:00:00:00:00:1": "not an IP address",
		"0.0.0.0":          "unspecified",
		"::":               "unspecified",
		"224.0.0.1":        "multicast",
		"ff02::1":          "multicast",
		"255.255.255.255":  "broadcast",
		"127.0.0.1":        "loopback",
		"::1":              "loopback",
		"fe80::1%eth0":     "leave out %eth0",
		"::ffff:192.0.2.1": "give 192.0.2.1",
	} {
		_, err := ParseAddress(bad)
		if !errors.As(err, new(*UsageError)) || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error of usage that says %q", bad, err, says)
		}
	}
}

// TestReplaceBindings deletes, moves and adds bindings at once. If one of the changes is refused,
// nothing changes.
func TestReplaceBindings(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", on("vlan-filtering")))
	b.edit(
		func(e *Edit) error { return e.AddPort("p1", PortOptions{}) },
		func(e *Edit) error { return e.AddPort("p2", PortOptions{}) },
		func(e *Edit) error { return e.SetVLANs("p1", vids("10", "101up")) },
		func(e *Edit) error { return e.SetVLANs("p2", vids("10up", "100")) },
		func(e *Edit) error { return e.SetPrivateVLANs(100, PrivateVLANs{Community: []uint16{101}}) },
	)
	// "1 10 p1 5" binds 192.0.2.1 in VLAN 10 to 02:00:00:00:00:05 on p1
	bindings := func(words ...string) (list []Binding) {
		for _, w := range words {
			e, last := Binding{MAC: net.HardwareAddr{2, 0, 0, 0, 0, 0}}, byte(0)
			_, err := fmt.Sscan(w, &last, &e.VLAN, &e.Port, &e.MAC[5])
			b.must(err)
			e.Address = netip.AddrFrom4([4]byte{192, 0, 2, last})
			list = append(list, e)
		}
		return list
	}
	want := func(words ...string) {
		t.Helper()
		list, err := b.Bindings("br0", "")
		b.must(err)
		var got []string
		for _, e := range list {
			got = append(got, fmt.Sprint(e.Address.As4()[3], " ", e.VLAN, " ", e.Port, " ", e.MAC[5]))
		}
		if !slices.Equal(got, words) {
			t.Errorf("the bindings are %q, should be %q", got, words)
		}
	}
	// the first change makes the table large; bindings of a private VLAN
	// belong to its primary VLAN
	b.must(b.ReplaceBindings("br0", nil, bindings("1 10 p1 1", "2 10 p2 2", "3 101 p1 3")))
	before := []string{"1 10 p1 1", "2 10 p2 2", "3 100 p1 3"}
	want(before...)
	for _, c := range []struct {
		del, add []Binding
		words    string
	}{
		{bindings("1 10 p1 1"), bindings("6 10 p1 6", "2 10 p1 2"), "cannot bind 192.0.2.2 in br0: it is bound to 02:00:00:00:00:02 on p2; delete that binding first with 'bascule binding del br0 192.0.2.2 --vlan 10'"},
		{bindings("1 10 p1 1"), bindings("6 10 p1 6", "6 10 p1 7"), "it is bound to 02:00:00:00:00:06 on p1"},
		{bindings("1 10 p1 1"), bindings("6 10 p1 6", "7 11 p1 7"), "port p1 is not in VLAN 11; add it with"},
		{bindings("1 10 p1 1"), bindings("6 10 p1 6", "7 10 p3 7"), "p3"},
		{nil, bindings("6 10 p1 6", "7 0 p1 7"), "the bridge filters VLANs"},
		{nil, bindings("6 10 p1 6", "7 4095 p1 7"), "VLAN 4095"},
	} {
		if err := b.ReplaceBindings("br0", c.del, c.add); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%v: the error is %v, should be of %s", c.add, err, c.words)
		}
		want(before...)
	}
	b.must(b.ReplaceBindings("br0", bindings("1 10 p1 1", "2 10 p2 2", "9 10 p1 9"), bindings("2 10 p1 4", "3 101 p1 3", "4 101 p1 3")))
	want("2 10 p1 4", "3 100 p1 3", "4 100 p1 3")
	for vlan, words := range map[uint16]string{
		0:  "cannot delete the binding of 192.0.2.2 in br0: there is none without a VLAN, but one in VLAN 10; name that with --vlan 10",
		20: "cannot delete the binding of 192.0.2.2 in br0: there is none in VLAN 20, but one in VLAN 10; name that with --vlan 10",
	} {
		if err := b.DelBinding("br0", netip.MustParseAddr("192.0.2.2"), vlan); err == nil || err.Error() != words {
			t.Errorf("the error is %v, should be %s", err, words)
		}
	}
	if err := b.DelBinding("br0", netip.MustParseAddr("192.0.2.9"), 0); err == nil || !strings.HasSuffix(err.Error(), "there is none; see 'bascule binding show br0'") {
		t.Errorf("the error is %v, should say that there is none", err)
	}
	if err := b.ReplaceBindings("br9", nil, nil); err == nil {
		t.Error("a bridge that is not there is changed")
	}
}
