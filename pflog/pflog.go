// SPDX-License-Identifier: BSD-2-Clause

// Package pflog writes pf's log as pcap files in the format of OpenBSD's pflog(4), which tcpdump
// reads.
package pflog

import (
	"encoding/binary"
	"io"
	"time"
)

// Action is pf's action on a packet.
type Action uint8

// The actions (sys/net/pfvar.h).
const (
	Pass  Action = 0
	Block Action = 1
	Match Action = 12
)

// Reason is the reason of the action (PFRES_ of sys/net/pfvar.h).
type Reason uint8

// The reasons that occur on a bridge.
const (
	ByRule        Reason = 0
	Fragment      Reason = 2
	Short         Reason = 3
	Normalize     Reason = 4
	Timestamp     Reason = 6
	Options       Reason = 8
	StateMismatch Reason = 10
	StateLimit    Reason = 12
	Synproxy      Reason = 14
	Translate     Reason = 15
	NoRoute       Reason = 16
)

// NoSubrule is the Subrule of a packet whose rule is in the main ruleset.
const NoSubrule = -1

// NoSubrule is the Subrule of a packet whose rule is in the main ruleset.
type Record struct {
	Time      time.Time
	Interface string // at most 15 bytes are written
	Ruleset   string // name of the rule's anchor, "" for none; at most 15 bytes are written
	Rule      int    // number in the main ruleset, -1 for the default rule
	Subrule   int    // number in the anchor, or NoSubrule
	// Identifier is the ridentifier of the rule, 0 for none. OpenBSD's file format has no field for
	// it.
	Identifier uint32
	Action     Action
	Reason     Reason
	Out        bool   // on its way out of the interface
	Family     uint8  // 4 or 6
	Length     int    // bytes of the IP packet
	Data       []byte // its first bytes
}

const (
	linkType = 117 // LINKTYPE_PFLOG
	snaplen  = 65535

	headerLength = 100 // struct pfloghdr of OpenBSD's sys/net/if_pflog.h

	// OpenBSD's numbers of address families
	inet  = 2
	inet6 = 24

	in  = 1
	out = 2
)

// A Writer writes a pcap file.
type Writer struct {
	w   io.Writer
	buf []byte
}

// NewWriter writes the file's header.
func NewWriter(w io.Writer) (*Writer, error) {
	var h []byte
	h = binary.NativeEndian.AppendUint32(h, 0xa1b23c4d) // times in nanoseconds
	h = binary.NativeEndian.AppendUint16(h, 2)
	h = binary.NativeEndian.AppendUint16(h, 4)
	h = binary.NativeEndian.AppendUint64(h, 0) // time zone, unused
	h = binary.NativeEndian.AppendUint32(h, snaplen)
	h = binary.NativeEndian.AppendUint32(h, linkType)
	if _, err := w.Write(h); err != nil {
		return nil, err
	}
	return &Writer{w: w}, nil
}

// Write writes a record, at once.
func (w *Writer) Write(r Record) error {
	b := binary.NativeEndian.AppendUint32(w.buf[:0], uint32(r.Time.Unix()))
	b = binary.NativeEndian.AppendUint32(b, uint32(r.Time.Nanosecond()))
	b = binary.NativeEndian.AppendUint32(b, uint32(headerLength+len(r.Data)))
	b = binary.NativeEndian.AppendUint32(b, uint32(headerLength+max(r.Length, len(r.Data))))
	b = appendHeader(b, r)
	w.buf = append(b, r.Data...)
	_, err := w.w.Write(w.buf)
	return err
}

// appendHeader appends a struct pfloghdr. Its user and process are unset, as a bridge has none; its
// addresses and ports are for rewritten packets.
func appendHeader(b []byte, r Record) []byte {
	family, direction := uint8(inet), uint8(in)
	if r.Family == 6 {
		family = inet6
	}
	if r.Out {
		direction = out
	}
	start := len(b)
	b = append(b, headerLength, family, uint8(r.Action), uint8(r.Reason))
	b = append(b, name(r.Interface)...)
	b = append(b, name(r.Ruleset)...)
	b = binary.BigEndian.AppendUint32(b, uint32(r.Rule))
	b = binary.BigEndian.AppendUint32(b, uint32(r.Subrule))
	for range 2 { // of the socket, and of the rule
		b = binary.NativeEndian.AppendUint32(b, ^uint32(0)) // user
		b = binary.NativeEndian.AppendUint32(b, 0)          // process
	}
	b = append(b, direction, 0, family)
	return append(b, make([]byte, headerLength-(len(b)-start))...)
}

// name returns a null-terminated string, truncated if necessary.
func name(s string) []byte {
	b := make([]byte, 16)
	copy(b[:15], s)
	return b
}
