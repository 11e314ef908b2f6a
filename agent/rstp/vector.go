// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math"
	"net"
	"strconv"
	"strings"
)

// A BridgeID is the identifier of a bridge (9.2.5): its priority, then its
// address. Lower is better.
type BridgeID uint64

// NewBridgeID builds an identifier from a priority and an address of six
// bytes.
func NewBridgeID(priority uint16, mac net.HardwareAddr) BridgeID {
	var b [8]byte
	binary.BigEndian.PutUint16(b[:], priority)
	copy(b[2:], mac)
	return BridgeID(binary.BigEndian.Uint64(b[:]))
}

// Priority returns the identifier's upper part.
func (id BridgeID) Priority() uint16 { return uint16(id >> 48) }

// MAC returns the address in the identifier.
func (id BridgeID) MAC() net.HardwareAddr {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], uint64(id))
	return net.HardwareAddr(b[2:])
}

// String returns the identifier as Linux's bridge shows it:
// 8000.020000000001.
func (id BridgeID) String() string {
	return fmt.Sprintf("%04x.%s", id.Priority(), hex.EncodeToString(id.MAC()))
}

// MarshalText writes the identifier as a string, for JSON.
func (id BridgeID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the output of MarshalText.
func (id *BridgeID) UnmarshalText(text []byte) error {
	priority, mac, ok := strings.Cut(string(text), ".")
	high, err := strconv.ParseUint(priority, 16, 16)
	low, err2 := strconv.ParseUint(mac, 16, 48)
	if !ok || err != nil || err2 != nil {
		return fmt.Errorf("bridge identifier %q is not of the form 8000.020000000001", text)
	}
	*id = BridgeID(high<<48 | low)
	return nil
}

// A PortID is the identifier of a port (9.2.7): four bits of priority, then
// twelve of its number. Lower is better.
type PortID uint16

// NewPortID builds an identifier.
func NewPortID(priority uint8, number uint16) PortID {
	return PortID(uint16(priority&0xf0)<<8 | number&0xfff)
}

// String returns the identifier as Linux's bridge shows it: 8001.
func (id PortID) String() string { return fmt.Sprintf("%04x", uint16(id)) }

// MarshalText writes the identifier as a string, for JSON.
func (id PortID) MarshalText() ([]byte, error) { return []byte(id.String()), nil }

// UnmarshalText reads the output of MarshalText.
func (id *PortID) UnmarshalText(text []byte) error {
	v, err := strconv.ParseUint(string(text), 16, 16)
	if err != nil {
		return fmt.Errorf("port identifier %q is not of the form 8001", text)
	}
	*id = PortID(v)
	return nil
}

// A vector is a priority vector (17.6). Lower is better.
type vector struct {
	RootBridgeID       BridgeID
	RootPathCost       uint32
	DesignatedBridgeID BridgeID
	DesignatedPortID   PortID
}

// compare returns a negative number if v is better than w.
func (v vector) compare(w vector) int {
	return cmp.Or(
		cmp.Compare(v.RootBridgeID, w.RootBridgeID),
		cmp.Compare(v.RootPathCost, w.RootPathCost),
		cmp.Compare(v.DesignatedBridgeID, w.DesignatedBridgeID),
		cmp.Compare(v.DesignatedPortID, w.DesignatedPortID),
	)
}

// supersedes reports whether v, in a message, replaces w, which a port holds
// (17.6). It does if v is better, or comes from the same port and differs:
// the last message of a port is the valid one.
func (v vector) supersedes(w vector) bool {
	return v.compare(w) < 0 || v != w && v.sameSource(w)
}

// sameSource reports whether both come from the same port, whatever its
// priority.
func (v vector) sameSource(w vector) bool {
	const number = 1<<12 - 1
	return v.ofBridge(w.DesignatedBridgeID) && v.DesignatedPortID&number == w.DesignatedPortID&number
}

// ofBridge reports whether the bridge has sent the vector. It ignores the
// bridge's priority, which is part of the identifier and may have changed
// since.
func (v vector) ofBridge(id BridgeID) bool {
	const address = 1<<48 - 1
	return v.DesignatedBridgeID&address == id&address
}

// times are the timers in a message (17.18.4), in 1/256 of a second.
type times struct {
	MessageAge   uint16
	MaxAge       uint16
	HelloTime    uint16
	ForwardDelay uint16
}

const second = 256 // the value of a second in times

// seconds returns t in seconds, rounded up.
func seconds(t uint16) int { return (int(t) + second - 1) / second }

// older returns the times with a message age greater by a second, rounded to
// whole seconds (17.21.25 c).
func (t times) older() times {
	t.MessageAge = uint16(min((int(t.MessageAge)+second+second/2)/second, math.MaxUint16/second)) * second
	return t
}
