// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Machine is what a figure depends on besides the program.
type Machine struct {
	Kernel      string            `json:"kernel"`
	CPU         string            `json:"cpu"`
	Cores       int               `json:"cores"`
	MemoryMiB   int               `json:"memory_mib"`
	Hypervisor  string            `json:"hypervisor,omitempty"`
	Mitigations map[string]string `json:"mitigations,omitempty"`
	Congestion  string            `json:"congestion_control"`
	Load        float64           `json:"load_before"` // one minute's load average before the run
	Versions    map[string]string `json:"versions,omitempty"`
	Guests      string            `json:"guests,omitempty"`  // what ran the virtual machines: "kvm" or "tcg"
	Counters    bool              `json:"hardware_counters"` // cycles and instructions can be counted
}

// facts is the machine in one line, without mitigations and versions.
func (m Machine) facts() string {
	s := fmt.Sprintf("%s, %d cores, %d MiB, Linux %s", m.CPU, m.Cores, m.MemoryMiB, m.Kernel)
	if m.Hypervisor != "" {
		s += ", a virtual machine"
	}
	if m.Counters {
		s += ", hardware counters"
	}
	s += fmt.Sprintf("; load before: %.2f; congestion control: %s", m.Load, m.Congestion)
	if m.Guests != "" {
		s += "; virtual machines by " + m.Guests
	}
	return s
}

// pairs prints a map in the order of its keys.
func pairs(of map[string]string) string {
	var said []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		said = append(said, k+": "+of[k])
	}
	return strings.Join(said, "; ")
}
