// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
)

// A Reason is why a frame is refused: a short name that never changes, for
// counters.
type Reason string

// Why a frame is refused.
const (
	BadAddress  Reason = "address"  // not to 01:80:c2:00:00:00, or from a group address
	BadLength   Reason = "length"   // shorter than its 802.3 length, or with an EtherType instead
	BadLLC      Reason = "llc"      // not to the spanning tree's service access point
	TooShort    Reason = "short"    // fewer bytes than its type has
	BadProtocol Reason = "protocol" // protocol identifier is not 0
	BadVersion  Reason = "version"  // rapid spanning tree with a version below 2
	BadType     Reason = "type"     // none of the three types
	BadTimer    Reason = "timer"    // a timer out of range
	TooOld      Reason = "age"      // message age is not below max age
	OwnBPDU     Reason = "own"      // the port's own BPDU, come back
)

// A Refusal is the error that a frame is not a BPDU that the port may use.
type Refusal struct {
	Reason Reason
	Text   string // what was found
}

func (r *Refusal) Error() string { return "BPDU refused: " + r.Text }

// ofBridge reports whether only a bridge can have sent the refused frame: it is for
// the spanning tree's service access point.
func (r *Refusal) ofBridge() bool {
	return r.Reason != BadAddress && r.Reason != BadLength && r.Reason != BadLLC
}

func refuse(r Reason, format string, args ...any) error {
	return &Refusal{Reason: r, Text: fmt.Sprintf(format, args...)}
}

// A bpduType is the type of a BPDU (9.3).
type bpduType uint8

const (
	configBPDU bpduType = 0x00
	rstBPDU    bpduType = 0x02
	tcnBPDU    bpduType = 0x80
)

// flags are the flags of an RST BPDU (9.3.3), or of a configuration BPDU
// (9.3.1), which has only the first and last.
type flags uint8

const (
	flagTC         flags = 1 << 0
	flagProposal   flags = 1 << 1
	flagLearning   flags = 1 << 4
	flagForwarding flags = 1 << 5
	flagAgreement  flags = 1 << 6
	flagTCAck      flags = 1 << 7

	flagRole       flags = 3 << 2 // one of the following
	roleUnknown    flags = 0 << 2
	roleAlternate  flags = 1 << 2 // or backup
	roleRoot       flags = 2 << 2
	roleDesignated flags = 3 << 2
)

// A bpdu is a message between bridges (clause 9).
type bpdu struct {
	Type     bpduType
	Flags    flags
	Priority vector
	Times    times
}

// Lengths in bytes: of the headers before a BPDU, and of BPDUs by type (9.3).
const (
	etherHeader = 14
	llcHeader   = 3
	minFrame    = 60 // 802.3 pads frames to it

	configLength = 35
	rstLength    = 36
	tcnLength    = 4
)

var (
	groupAddress = []byte{0x01, 0x80, 0xc2, 0, 0, 0} // table 7-10
	llc          = []byte{0x42, 0x42, 0x03}          // 7.12.3
)

// decode parses the BPDU in a frame, or returns a *Refusal. With TooOld the BPDU is
// returned as well.
//
// 9.3.4 defines valid BPDUs. It has no requirements for the version, except an RST
// BPDU's, nor for flags, nor for bytes behind the last field, so that later
// versions can use them. decode ignores unknown values there, too. With the role
// "unknown" an RST BPDU has the effect of a configuration BPDU (9.2.9).
func decode(frame []byte) (bpdu, error) {
	var m bpdu
	if len(frame) < etherHeader+llcHeader {
		return m, refuse(BadLength, "frame of %d bytes", len(frame))
	}
	if !bytes.Equal(frame[:6], groupAddress) || frame[6]&1 != 0 {
		return m, refuse(BadAddress, "from %v to %v", net.HardwareAddr(frame[6:12]), net.HardwareAddr(frame[:6]))
	}
	body := frame[etherHeader:]
	length := int(binary.BigEndian.Uint16(frame[12:]))
	if length > 1500 {
		return m, refuse(BadLength, "EtherType %#04x instead of a length", length)
	}
	if length > len(body) {
		return m, refuse(BadLength, "length %d, but %d bytes", length, len(body))
	}
	body = body[:length]
	if !bytes.HasPrefix(body, llc) {
		return m, refuse(BadLLC, "LLC % x instead of % x", body[:min(len(body), llcHeader)], llc)
	}
	body = body[llcHeader:]
	if len(body) < tcnLength {
		return m, refuse(TooShort, "%d bytes of BPDU", len(body))
	}
	if id := binary.BigEndian.Uint16(body); id != 0 {
		return m, refuse(BadProtocol, "protocol %#04x", id)
	}
	version := body[2]
	m.Type = bpduType(body[3])
	least := 0
	switch m.Type {
	case tcnBPDU:
		return m, nil
	case configBPDU:
		least = configLength
	case rstBPDU:
		least = rstLength
		if version < 2 {
			return m, refuse(BadVersion, "rapid spanning tree of version %d", version)
		}
	default:
		return m, refuse(BadType, "type %#02x", body[3])
	}
	if len(body) < least {
		return m, refuse(TooShort, "%d bytes of BPDU, type %#02x has %d", len(body), body[3], least)
	}

	m.Flags = flags(body[4])
	if m.Type == configBPDU {
		m.Flags &= flagTC | flagTCAck
	} else if m.Flags&flagRole == roleUnknown {
		m.Flags &= flagTC
	}
	m.Priority = vector{
		RootBridgeID:       BridgeID(binary.BigEndian.Uint64(body[5:])),
		RootPathCost:       binary.BigEndian.Uint32(body[13:]),
		DesignatedBridgeID: BridgeID(binary.BigEndian.Uint64(body[17:])),
		DesignatedPortID:   PortID(binary.BigEndian.Uint16(body[25:])),
	}
	m.Times = times{
		MessageAge:   binary.BigEndian.Uint16(body[27:]),
		MaxAge:       binary.BigEndian.Uint16(body[29:]),
		HelloTime:    binary.BigEndian.Uint16(body[31:]),
		ForwardDelay: binary.BigEndian.Uint16(body[33:]),
	}
	if err := m.Times.check(); err != nil {
		return m, err
	}
	// A message of a root or alternate port is not passed on, and a bridge as
	// far from the root as possible sends such a message with just this age.
	role := m.Flags & flagRole
	designated := role == roleDesignated || role == roleUnknown
	if designated && m.Times.MessageAge >= m.Times.MaxAge { // 9.3.4 a
		return m, refuse(TooOld, "message age %.3gs is not below max age %.3gs",
			float64(m.Times.MessageAge)/second, float64(m.Times.MaxAge)/second)
	}
	return m, nil
}

// check refuses timers outside the ranges of table 17-1. The table limits the hello
// time to 1 to 2 s, but 802.1D-1998 (table 8-3) to 10 s, and ignoring such a bridge
// would make loops with it.
func (t times) check() error {
	for _, c := range []struct {
		what            string
		is, least, most uint16
	}{
		{"hello time", t.HelloTime, 1, 10},
		{"max age", t.MaxAge, 6, 40},
		{"forward delay", t.ForwardDelay, 4, 30},
	} {
		if c.is < c.least*second || c.is > c.most*second {
			return refuse(BadTimer, "%s %.3gs is not %d to %ds", c.what, float64(c.is)/second, c.least, c.most)
		}
	}
	return nil
}

// encode returns the whole frame of the BPDU, with this source address.
func (m bpdu) encode(source net.HardwareAddr) []byte {
	length, version := configLength, byte(STP)
	switch m.Type {
	case rstBPDU:
		length, version = rstLength, byte(RSTP) // the last byte, Version 1 Length, is zero
	case tcnBPDU:
		length = tcnLength
	}
	frame := make([]byte, minFrame)
	copy(frame, groupAddress)
	copy(frame[6:], source)
	binary.BigEndian.PutUint16(frame[12:], uint16(llcHeader+length))
	copy(frame[etherHeader:], llc)

	body := frame[etherHeader+llcHeader:]
	body[2] = version
	body[3] = byte(m.Type)
	if m.Type == tcnBPDU {
		return frame
	}
	body[4] = byte(m.Flags)
	binary.BigEndian.PutUint64(body[5:], uint64(m.Priority.RootBridgeID))
	binary.BigEndian.PutUint32(body[13:], m.Priority.RootPathCost)
	binary.BigEndian.PutUint64(body[17:], uint64(m.Priority.DesignatedBridgeID))
	binary.BigEndian.PutUint16(body[25:], uint16(m.Priority.DesignatedPortID))
	binary.BigEndian.PutUint16(body[27:], m.Times.MessageAge)
	binary.BigEndian.PutUint16(body[29:], m.Times.MaxAge)
	binary.BigEndian.PutUint16(body[31:], m.Times.HelloTime)
	binary.BigEndian.PutUint16(body[33:], m.Times.ForwardDelay)
	return frame
}
