// SPDX-License-Identifier: BSD-2-Clause

package report

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
