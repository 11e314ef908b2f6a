// SPDX-License-Identifier: BSD-2-Clause

package traffic

import (
	"math"
	"math/bits"
	"time"
)

// The number of classes in each doubling of a time. The width of a class is at most 1/64 of its
// times.
const (
	classBits = 6
	perDouble = 1 << classBits
)

// histogram counts times by class.
type histogram struct {
	n       uint64
	sum     time.Duration
	classes [(64 - classBits) * perDouble]uint64
}

// class returns the class of a time: small times have their own, others are classified by their
// first bits.
func class(d time.Duration) int {
	v := uint64(max(d, 0))
	shift := max(bits.Len64(v)-classBits-1, 0)
	return shift*perDouble + int(v>>shift)
}

// top returns the longest time of a class.
func top(class int) time.Duration {
	shift := max(class/perDouble-1, 0)
	return time.Duration((class-shift*perDouble+1)<<shift - 1)
}

func (h *histogram) add(d time.Duration) {
	h.n++
	h.sum += d
	h.classes[class(d)]++
}

func (h *histogram) merge(other *histogram) {
	h.n += other.n
	h.sum += other.sum
	for i, n := range other.classes {
		h.classes[i] += n
	}
}

// percentile returns an upper bound of p percent of the times: the longest time of its class.
func (h *histogram) percentile(p float64) time.Duration {
	want := uint64(math.Ceil(float64(h.n) * p / 100))
	var seen uint64
	for i, n := range h.classes {
		if seen += n; n > 0 && seen >= want {
			return top(i)
		}
	}
	return 0
}
