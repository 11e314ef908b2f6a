// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"fmt"
	"math"

	"bascule/bridge"
)

// Rate returns the value of the settings rate-in and rate-out for a limit that another program
// gives, in bits a second and bits; 0 bits are no limit, and no burst of its own. Others queue what
// comes too fast. The switch drops it, so that a burst below the usual one would break TCP: then
// the usual one holds. A burst that is more than a limit takes is as large as may be.
func Rate(bits, burst uint64) (string, error) {
	if bits == 0 {
		if burst != 0 {
			return "", fmt.Errorf("a burst of %d bits has no rate; give one", burst)
		}
		return "none", nil
	}
	kilobits := bits / 1000
	if bits%1000 != 0 {
		kilobits++
	}
	if kilobits > math.MaxUint32 {
		return "", fmt.Errorf("%d bits a second are more than a limit can be; give 1 to %d, or leave it out", bits, uint64(math.MaxUint32)*1000)
	}
	l := bridge.RateLimit{StormLimit: bridge.StormLimit{Rate: uint32(kilobits), Kilobits: true}}
	if bytes := min(burst/8, l.MostBurst()); bytes > l.UsualBurst() {
		l.Burst = uint32(bytes)
	}
	return l.String(), nil
}
