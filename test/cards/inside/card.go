// SPDX-License-Identifier: BSD-2-Clause

// Package inside has the tests that test/cards runs in a virtual machine: a port of the switch
// on the network cards that QEMU emulates, with the drivers of the kernel. Without such a
// machine the tests run on veths, as far as a veth can do what a card can.
package inside

import (
	"fmt"

	"bascule/test/netlab"
)

// Variable is the environment variable with the Card as JSON.
const Variable = "BASCULE_CARD"

// A Card describes the cards of a machine for its tests.
type Card struct {
	Driver string // the kernel's driver
	Auto   string // the hook that auto selects
	LRO    bool   // the driver merges received packets (rx-lro) until that is switched off
	// MixesTags: if QEMU's card strips tags, it reports a service tag (0x88a8) as an 802.1Q
	// tag (eth_strip_vlan() in QEMU's net/eth.c).
	MixesTags bool
	// KeepsProgram: the driver does not release an attached XDP program when its device is
	// removed, set down, or gets another MTU, regardless of the program's origin.
	KeepsProgram bool
	// LosesLarge: the driver lets the MTU be raised above the limit of its XDP. After that
	// it refuses other programs, and drops larger frames, even without a program.
	LosesLarge bool
	// Properties are the properties of the first wire's near card, with which QEMU makes it
	// again.
	Properties map[string]any
}

// Cases are the names of a card's tests, which TestCard runs.
var Cases = []string{
	"hooks", "frames", "tags", "vlans", "streams", "promiscuity", "restore", "again", "jumbo", "unplug", "remove", "unbind", "bond", "team", "vlan_device",
}

// Wires is the number of a machine's wires. Both cards of a wire are in the first network
// namespace: the near one is the tested card, the far one a virtio card.
const Wires = 2

// Name is QEMU's name of the near card of a wire, from 0.
func Name(wire int) string { return fmt.Sprintf("card%d", wire+1) }

// Wire has the addresses of a wire's cards, from 0.
func Wire(n int) netlab.Wire {
	return netlab.Wire{Near: netlab.MAC{0x02, 0xb5, 0xc1, 0, 0, byte(0x11 + n)}, Far: netlab.MAC{0x02, 0xb5, 0xc1, 0, 1, byte(0x11 + n)}}
}
