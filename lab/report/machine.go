// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Machine has the conditions of a figure other than the program.
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
	Guests      string            `json:"guests,omitempty"`  // accelerator of the virtual machines: "kvm" or "tcg"
	Counters    bool              `json:"hardware_counters"` // cycles and instructions can be counted
	// Counting is the emulator that counted instructions, "QEMU 7.2.22"; empty for a machine
	// that measured time.
	Counting string `json:"counting,omitempty"`
	// KernelOVS means that the kernel has Open vSwitch's datapath.
	KernelOVS bool `json:"kernel_ovs,omitempty"`
}

// Counted describes a machine that counts instructions in a few words: "Linux 7.3.4, QEMU 7.2.22".
func (m Machine) Counted() string {
	release, _, _ := strings.Cut(m.Kernel, " ")
	return join(", ", "Linux "+release, m.Counting)
}

// known reports whether anything was measured on the machine: a run that ends earlier has no
// machine.
func (m Machine) known() bool { return m.Kernel != "" }

// facts describes the machine on one line, without mitigations and versions.
func (m Machine) facts() string {
	s := fmt.Sprintf("%s, %d cores, %d MiB, Linux %s", m.CPU, m.Cores, m.MemoryMiB, m.Kernel)
	if m.Hypervisor != "" {
		s += ", a virtual machine"
	}
	if m.Counters {
		s += ", hardware counters"
	}
	if m.Counting != "" {
		s += "; instructions counted by " + m.Counting
	}
	s += fmt.Sprintf("; load before: %s; congestion control: %s", hundredths(m.Load), m.Congestion)
	if m.Guests != "" {
		s += "; virtual machines by " + m.Guests
	}
	return s
}

// pairs prints a map, sorted by key.
func pairs(of map[string]string) string {
	var said []string
	for _, k := range slices.Sorted(maps.Keys(of)) {
		said = append(said, k+": "+of[k])
	}
	return strings.Join(said, "; ")
}

// table describes the machine in separate facts.
func (m Machine) table() []fact {
	if !m.known() {
		return nil
	}
	out := []fact{
		{"CPU", m.CPU}, {"Cores", fmt.Sprint(m.Cores)}, {"Memory", fmt.Sprintf("%d MiB", m.MemoryMiB)}, {"Kernel", m.Kernel},
		{"Congestion control", m.Congestion}, {"Load before", hundredths(m.Load)},
	}
	if m.Hypervisor != "" {
		out = append(out, fact{"Virtual machine", m.Hypervisor})
	}
	if m.Counters {
		out = append(out, fact{"Hardware counters", "yes"})
	}
	if m.Guests != "" {
		out = append(out, fact{"Virtual machines by", m.Guests})
	}
	if m.Counting != "" {
		out = append(out, fact{"Instructions counted by", m.Counting})
	}
	for _, k := range slices.Sorted(maps.Keys(m.Versions)) {
		out = append(out, fact{"Version of " + k, m.Versions[k]})
	}
	for _, k := range slices.Sorted(maps.Keys(m.Mitigations)) {
		out = append(out, fact{k, m.Mitigations[k]})
	}
	return out
}
