// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"testing"

	"github.com/vishvananda/netlink"
)

// Where a driver may leave something beside a frame nothing is taken from it by
// XDP, and auto is not XDP where that is all there is.
func TestXDPUse(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "nosuch"}
	for _, tt := range []struct {
		l                          netlink.Link
		known, takes, sends, asked bool
	}{
		{&netlink.Veth{LinkAttrs: attrs}, true, true, true, false},
		{&netlink.Tuntap{LinkAttrs: attrs}, true, false, true, false},
		{&netlink.Bond{LinkAttrs: attrs}, true, false, false, false},
		{&netlink.Device{LinkAttrs: attrs}, true, true, true, true},
		{&netlink.Vxlan{LinkAttrs: attrs}, false, false, false, false},
		{&netlink.GenericLink{LinkAttrs: attrs, LinkType: "new"}, false, false, false, false},
	} {
		use, known := xdpUseOf(tt.l)
		if known != tt.known || use.takes != tt.takes || use.sends != tt.sends {
			t.Errorf("%s: %+v, known %v", tt.l.Type(), use, known)
		}
		if known && use.takes == (use.why != "") {
			t.Errorf("%s: takes %v, because %q", tt.l.Type(), use.takes, use.why)
		}
		if auto := wantsXDP(HookAuto, tt.l); auto != tt.asked {
			t.Errorf("%s: auto is XDP: %v", tt.l.Type(), auto)
		}
	}
}
