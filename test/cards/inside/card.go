// SPDX-License-Identifier: BSD-2-Clause

// Package inside has the tests that test/cards runs in a virtual machine: a port of
// the switch on the network cards that QEMU plays, with the drivers of the kernel.
// Without a machine made for them they run on veths, as far as these can do what a card
// can.
package inside

import (
	"fmt"

	"bascule/test/netlab"
)

// Variable is the environment variable that has the Card, as JSON.
const Variable = "BASCULE_CARD"

// A Card is what tests are told of the cards of their machine.
type Card struct {
	Driver string // of the kernel
	Auto   string // the hook that auto is
	LRO    bool   // the driver merges what it receives (rx-lro) until it is told not to
	// MixesTags: QEMU's card takes out a service tag (0x88a8) as one of 802.1Q, where it
	// takes out tags (eth_strip_vlan() of QEMU's net/eth.c).
	MixesTags bool
	// KeepsProgram: the driver does not let an XDP program go that it has when its device
	// is removed, set down, or its MTU changed, whoever put the program there.
	KeepsProgram bool
	// LosesLarge: the driver lets the MTU be raised past what its XDP can take, refuses
	// other programs then, and drops frames that are larger, also when it has no program
	// any more.
	LosesLarge bool
	// Properties are those of the near card of the first wire, by which QEMU makes it
	// again.
	Properties map[string]any
}

// Cases are the names of what a card is tested for: TestCard has them.
var Cases = []string{
	"hooks", "frames", "tags", "vlans", "streams", "promiscuity", "restore", "again", "jumbo", "unplug", "remove", "unbind", "bond", "team", "vlan_device",
}

// Wires is how many wires a machine has. Both cards of a wire are in the first network
// namespace: the near one is of the kind that is tested, the far one virtio's.
const Wires = 2

// Name is QEMU's of the near card of a wire, from 0.
func Name(wire int) string { return fmt.Sprintf("card%d", wire+1) }

// Wire has the addresses of a wire's cards, from 0.
func Wire(n int) netlab.Wire {
	return netlab.Wire{Near: netlab.MAC{0x02, 0xb5, 0xc1, 0, 0, byte(0x11 + n)}, Far: netlab.MAC{0x02, 0xb5, 0xc1, 0, 1, byte(0x11 + n)}}
}
