// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"math"
	"testing"
)

func TestRate(t *testing.T) {
	const mbit = 1000000
	for _, tt := range []struct {
		bits, burst uint64
		want        string // "" for an error
	}{
		{0, 0, "none"},
		{0, 8, ""},
		{8 * mbit, 0, "8mbit"},
		{1, 0, "1kbit"},
		{1001, 0, "2kbit"},
		{8 * mbit, 200, "8mbit"},      // enough only with a queue
		{8 * mbit, 2 * mbit, "8mbit"}, // the default
		{8 * mbit, 8 * mbit, "8mbit:1000000"},
		{8 * mbit, 8 << 23, "8mbit:8mb"},
		{8 * mbit, math.MaxInt32, "8mbit:60000000"},
		{8 * mbit, math.MaxUint64, "8mbit:60000000"},
		{64000, 8 * 65536, "64kbit"},
		{4294967295000, 0, "4294967295kbit"},
		{4294967295001, 0, ""},
		{math.MaxUint64, 0, ""},
	} {
		if got, err := Rate(tt.bits, tt.burst); got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("%d bits a second, %d at once: %q, %v, want %q", tt.bits, tt.burst, got, err, tt.want)
		}
	}
}
