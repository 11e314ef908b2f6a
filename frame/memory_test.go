// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"bascule/test/peak"
)

// An again reads the same text again and again, and stores it only once.
type again struct {
	text []byte
	at   int
}

func (a *again) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = a.text[a.at]
		a.at = (a.at + 1) % len(a.text)
	}
	return len(b), nil
}

// TestMemory reads captures that are made to use much memory.
func TestMemory(t *testing.T) {
	if !peak.Alone(t) {
		return
	}
	const size = 32 << 20
	le := binary.LittleEndian
	words := func(list ...uint32) (b []byte) {
		for _, w := range list {
			b = le.AppendUint32(b, w)
		}
		return b
	}
	pcap := words(0xa1b2c3d4, 4<<16|2, 0, 0, 0xffffffff, 1)
	ng := words(0x0a0d0d0a, 28, 0x1a2b3c4d, 1, 0xffffffff, 0xffffffff, 28)
	link := words(1, 20, 1, 0xffffffff, 20)
	for _, c := range []struct {
		name          string
		begin, repeat []byte
	}{
		{"pcap of small packets", pcap, words(0, 0, 0, 0)},
		{"pcap of a large packet", append(pcap, words(0, 0, 0x7fffffff, 0x7fffffff)...), []byte("x")},
		{"pcap of frames", pcap, append(words(0, 0, 16, 16), make([]byte, 16)...)},
		{"pcapng of links", ng, link},
		{"pcapng of links and packets", ng, append(bytes.Clone(link), append(words(6, 48, 0, 0, 0, 16, 16), append(make([]byte, 16), words(48)...)...)...)},
		{"pcapng of sections", nil, ng},
		{"pcapng of a large packet", append(ng, append(link, words(6, 0x7ffffff0, 0, 0, 0, 0x7fffff00, 0x7fffff00)...)...), []byte("x")},
		{"pcapng of a large block", append(ng, words(0xbad, 0x7ffffff0)...), []byte("x")},
		{"pcapng of options", append(ng, words(1, 0x7ffffff0, 1, 0xffffffff)...), append(words(4<<16|2), "abcd"...)},
		{"pcapng of packets", append(ng, link...), append(words(6, 48, 0, 0, 0, 16, 16), append(make([]byte, 16), words(48)...)...)},
		{"digits", nil, []byte("0")},
		{"blanks", nil, []byte(" ")},
	} {
		text := io.MultiReader(bytes.NewReader(c.begin), io.LimitReader(&again{text: c.repeat}, size))
		peak.Bound{Any: 64 << 20}.Check(t, c.name, size, func() {
			packet := 1 << 30
			if c.begin == nil && len(c.repeat) == 1 {
				packet = 0
			}
			if _, err := Read(text, packet); err == nil {
				t.Errorf("%s: no error", c.name)
			} else {
				t.Logf("%.100s", err)
			}
		})
	}
}
