// SPDX-License-Identifier: BSD-2-Clause

package bridge

import "net"

// Talker is an address with what has been heard from it: one line of a list of
// the busiest. Frames and Bytes only ever rise; they begin at zero anew when
// the address was forgotten and is learned again, or moves to another port. A
// frame that the device keeps in one piece (GSO) counts once, with all of its
// bytes.
type Talker struct {
	MAC    net.HardwareAddr
	VLAN   uint16 // 1 to 4094; 0 stands for frames without a tag
	Port   string // by which the address was last heard
	Frames uint64 // with this source address
	Bytes  uint64
}
