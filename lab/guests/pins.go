// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"fmt"
	"slices"
	"strings"
)

// A Pin is one kernel of one of Debian's suites.
type Pin struct {
	Suite string // trixie
	// Release of the kernel, as uname -r has it: 6.12.107+deb13-cloud-amd64. It ends with
	// the kind of the kernel: those without "cloud" have the drivers of all network cards.
	Release string
	// WithoutTCX tells that it has no tcx, and that bascule refuses it.
	WithoutTCX bool
}

// Pins are the kernels that the project is tested and measured on, the oldest first.
// Debian's archive has no 6.6 to 6.11, and of most series the newest only.
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

// Newest is the pin that stands for the newest kernel of all.
func Newest() Pin { return Pins[len(Pins)-1] }

// WithDrivers is the pin of the same kernel that has the drivers of all network cards; those
// for virtual machines in a cloud lack most.
func (p Pin) WithDrivers() Pin {
	p.Release = strings.Replace(p.Release, "-cloud-", "-", 1)
	return p
}

// FindPins returns the pins whose releases begin as one of the words, in the order of
// the words; all where there is no word. 6.1 is not the beginning of 6.12.
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
