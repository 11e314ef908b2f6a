// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
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
