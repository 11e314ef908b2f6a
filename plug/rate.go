// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"fmt"
	"math"

	"bascule/bridge"
)

// Rate returns the value of the settings rate-in and rate-out for another program's limit, in bits
// a second, and burst, in bits. A limit of 0 means none, and a burst of 0 means the default. Other
// programs queue excess traffic. The switch drops it, and a burst below the default would break
// TCP, so the default is the minimum. A burst above the maximum becomes the maximum.
func Rate(bits, burst uint64) (string, error) {
	if bits == 0 {
		if burst != 0 {
			return "", fmt.Errorf("a burst of %d bits needs a rate; give one", burst)
		}
		return "none", nil
	}
	kilobits := bits / 1000
	if bits%1000 != 0 {
		kilobits++
	}
	if kilobits > math.MaxUint32 {
		return "", fmt.Errorf("%d bits per second is above the highest limit; give 1 to %d, or leave it out", bits, uint64(math.MaxUint32)*1000)
	}
	l := bridge.RateLimit{StormLimit: bridge.StormLimit{Rate: uint32(kilobits), Kilobits: true}}
	if bytes := min(burst/8, l.MostBurst()); bytes > l.UsualBurst() {
		l.Burst = uint32(bytes)
	}
	return l.String(), nil
}
