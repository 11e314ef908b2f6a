// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"slices"

	"github.com/cilium/ebpf"
)

// An Ability records whether the kernel has the functions and types that a feature of
// bridges requires.
type Ability struct {
	For     string   // the feature: "every bridge", "XDP", "pf"
	Missing []string // functions of the kernel that its programs call, except those in XDP
	XDP     []string // functions of the kernel that its XDP programs call
	Types   error    // why the kernel's type information lacks what the feature requires; nil if it does not
	Err     error    // why the kernel could not be checked
}

// Abilities checks what the kernel has for each feature. It loads a small program for each
// function.
func Abilities() []Ability { return running().abilities() }

func (k kernel) abilities() (list []Ability) {
	at := func(who string) *Ability {
		i := slices.IndexFunc(list, func(a Ability) bool { return a.For == who })
		if i < 0 {
			i, list = len(list), append(list, Ability{For: who})
		}
		return &list[i]
	}
	for _, n := range needs {
		a := at(n.who)
		into := &a.Missing
		if n.in == ebpf.XDP {
			into = &a.XDP
		}
		for _, h := range n.helpers {
			switch err := k.helper(n.in, h); {
			case err == nil:
			case !errors.Is(err, ebpf.ErrNotSupported):
				a.Err = err
			case !slices.Contains(*into, helperName(h)+"()"):
				*into = append(*into, helperName(h)+"()")
			}
		}
		for _, types := range []struct {
			by   kernelFeature
			find func(*Config) error
		}{
			{kernelFeatureFEATURE_BACKUP, carrierPlaces},
			{kernelFeatureFEATURES_JUDGE, checksumPlaces},
			{kernelFeatureFEATURE_ROUTE, routePlaces},
		} {
			if n.by == types.by {
				a.Types = types.find(&Config{})
			}
		}
	}
	return list
}
