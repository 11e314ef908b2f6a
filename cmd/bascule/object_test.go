// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"testing"

	"bascule/bridge"
)

// TestSetArgument: a wrong argument is a misuse, whatever its kind, and the error names the argument unless the value
// says itself what it is.
func TestSetArgument(t *testing.T) {
	for _, test := range []struct{ field, value, want string }{
		{"port", "p1", ""},
		{"mac", "x", "MAC x: not a MAC address; give six bytes such as 02:00:00:00:00:01"},
		{"address", "x", "x: not an IP address; give one such as 192.0.2.1 or 2001:db8::1"},
		{"vlan", "0", "VLAN 0: not a VLAN; give a number 1 to 4094"},
	} {
		err := setArgument(bridge.BindingObject.Fields.Named(test.field)[0], new(bridge.Binding), test.value)
		var misuse *bridge.UsageError
		if test.want == "" && err != nil || test.want != "" && (!errors.As(err, &misuse) || err.Error() != test.want) {
			t.Errorf("%s %s: %v, not %s", test.field, test.value, err, test.want)
		}
	}
}
