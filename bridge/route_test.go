// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"encoding/hex"
	"maps"
	"slices"
	"testing"

	"bascule/datapath"
)

// Each reason to leave a packet to the host has a text, and there are no others.
func TestRouteWords(t *testing.T) {
	want := slices.Sorted(slices.Values(datapath.Routes()[1:]))
	if got := slices.Sorted(maps.Keys(routeWords)); !slices.Equal(got, want) {
		t.Errorf("there are words for\n%q, want those for\n%q", got, want)
	}
	if first := datapath.Routes()[0]; first != "done" {
		t.Errorf("the first is %q", first)
	}
}

// A routed frame has other MAC addresses, a decremented TTL, and no padding.
func TestRoutedFrame(t *testing.T) {
	traced := new(datapath.Traced)
	traced.RouteDst, traced.RouteSrc = datapath.MACWord([6]byte{2, 0, 0, 0, 0, 1}), datapath.MACWord([6]byte{2, 0, 0, 0, 0, 2})
	for name, c := range map[string]struct{ in, want string }{
		"IPv4": {"ffffffffffff" + "020000000009" + "0800" + "450000150000000040110000" + "c0000201" + "c0000202" + "aa" + "0000",
			"020000000001" + "020000000002" + "0800" + "45000015000000003f110100" + "c0000201" + "c0000202" + "aa"},
		"a sum that carries": {"ffffffffffff" + "020000000009" + "0800" + "45000014000000004011ff34" + "c0000201" + "c0000202",
			"020000000001" + "020000000002" + "0800" + "45000014000000003f110035" + "c0000201" + "c0000202"},
		"IPv6 with a tag": {"ffffffffffff" + "020000000009" + "8100000b" + "86dd" + "6000000000013b40" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" + "aa" + "00",
			"020000000001" + "020000000002" + "86dd" + "6000000000013b3f" + "20010db8000000000000000000000001" + "20010db8000000000000000000000002" + "aa"},
	} {
		in, err := hex.DecodeString(c.in)
		if err != nil {
			t.Fatal(err)
		}
		if got := hex.EncodeToString(routedFrame(in, traced)); got != c.want {
			t.Errorf("%s:\n%s, want\n%s", name, got, c.want)
		}
	}
}
