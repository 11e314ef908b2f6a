// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"fmt"
	"slices"
	"strings"
)

// A Pin is a kernel from a Debian suite.
type Pin struct {
	Suite string // trixie
	// Release of the kernel in the format of uname -r: 6.12.107+deb13-cloud-amd64. The end is
	// the flavor of the kernel: the ones without "cloud" have the drivers of all network cards.
	Release string
	// WithoutTCX means that the kernel has no tcx, and that bascule refuses it.
	WithoutTCX bool
}

// Pins are the kernels for tests and measurements, the oldest first. Debian's archive has no 6.6 to
// 6.11, and only the newest of most series.
var Pins = []Pin{
	{"bookworm", "6.1.0-50-cloud-amd64", true},
	{"bookworm-backports", "6.12.95+deb12-cloud-amd64", false},
	{"trixie", "6.12.117+deb13-cloud-amd64", false},
	{"trixie-backports", "6.16.12+deb13-cloud-amd64", false},
	{"trixie-backports", "6.17.13+deb13-cloud-amd64", false},
	{"trixie-backports", "6.18.15+deb13-cloud-amd64", false},
	{"trixie-backports", "7.2.12+deb13-cloud-amd64", false},
	{"trixie-backports", "7.3.4+deb13-cloud-amd64", false},
}

// Newest returns the pin for the newest kernel.
func Newest() Pin { return Pins[len(Pins)-1] }

// WithDrivers returns the pin of the same kernel with the drivers of all network cards; cloud
// kernels lack most of them.
func (p Pin) WithDrivers() Pin {
	p.Release = strings.Replace(p.Release, "-cloud-", "-", 1)
	return p
}

// FindPins returns the pins whose releases begin with one of the words, in the order of the words;
// without words, all pins. 6.1 does not match 6.12.
func FindPins(words ...string) ([]Pin, error) {
	if len(words) == 0 {
		return Pins, nil
	}
	var chosen []Pin
	for _, word := range words {
		n := len(chosen)
		for _, p := range Pins {
			rest, ok := strings.CutPrefix(p.Release, word)
			if ok && !slices.Contains(chosen, p) && (rest == "" || rest[0] < '0' || rest[0] > '9') {
				chosen = append(chosen, p)
			}
		}
		if n == len(chosen) {
			return nil, fmt.Errorf("no kernel of the list begins with %s", word)
		}
	}
	return chosen, nil
}
