// SPDX-License-Identifier: BSD-2-Clause

// Package frame handles Ethernet frames in the forms in which people use them, apart
// from the datapath that forwards them: made of hexadecimal digits, a capture or the
// fields of headers; chosen by expressions; written as pcapng or a line of text. Frames
// have no frame check sequence. Errors concern the input; they are one line and name
// fields as the command line does.
package frame

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

const headerLen = 14 // Ethernet header, in bytes

// MinSize and MaxSize are the limits of a frame in bytes: an Ethernet header alone, and
// the largest length in 16 bits.
const (
	MinSize = headerLen
	MaxSize = 65535
)

// Parse reads a frame in hexadecimal digits. It ignores spaces, line ends and colons
// between them.
func Parse(text string) ([]byte, error) {
	var digits strings.Builder
	for i, r := range text {
		switch {
		case r == ':' || unicode.IsSpace(r):
		case r < 0x80 && strings.ContainsRune("0123456789abcdefABCDEF", r):
			digits.WriteRune(r)
		default:
			return nil, fmt.Errorf("%q at byte %d is no hexadecimal digit", r, i+1)
		}
	}
	if digits.Len()%2 != 0 {
		return nil, fmt.Errorf("%d hexadecimal digits are not whole bytes", digits.Len())
	}
	frame, err := hex.DecodeString(digits.String())
	if err != nil {
		return nil, err // not possible with digits only
	}
	return frame, check(frame)
}

// check returns an error if the bytes cannot be a frame.
func check(frame []byte) error {
	switch n := len(frame); {
	case n < headerLen:
		return fmt.Errorf("%d bytes are no frame: the Ethernet header alone has %d", n, headerLen)
	case n > MaxSize:
		return fmt.Errorf("%d bytes are more than the %d of a frame", n, MaxSize)
	}
	return nil
}

// Read reads a frame in hexadecimal digits, or from a capture, depending on the input.
// packet is as in Capture, or 0 if it was not given; for digits it must be 0.
func Read(r io.Reader, packet int) ([]byte, error) {
	b := bufio.NewReader(r)
	if pcap, ng := format(b); pcap || ng {
		return Capture(b, max(packet, 1))
	}
	if packet != 0 {
		return nil, errors.New("--packet is for captures, and this is none")
	}
	// each byte may have some spaces
	text, err := io.ReadAll(io.LimitReader(b, 16*MaxSize))
	if err != nil {
		return nil, err
	}
	return Parse(string(text))
}

// Capture takes a frame from a capture in the format pcap or pcapng. Packets are
// numbered from 1, as in tcpdump(8) and Wireshark.
func Capture(r io.Reader, packet int) ([]byte, error) {
	apart := &apart{Reader: r, left: maxApart}
	next, err := open(bufio.NewReader(apart))
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		apart.left = maxApart
		data, info, link, err := next()
		switch {
		case err == io.EOF:
			return nil, fmt.Errorf("there is no packet %d: the capture has %d", packet, n-1)
		case err != nil:
			return nil, fmt.Errorf("packet %d cannot be read: %w", n, err)
		case n < packet:
			continue
		case link != layers.LinkTypeEthernet:
			return nil, fmt.Errorf("packet %d is no Ethernet frame: its link type is %v", n, link)
		case info.CaptureLength < info.Length:
			return nil, fmt.Errorf("packet %d was cut short: %d of %d bytes were captured", n, info.CaptureLength, info.Length)
		}
		return data, check(data)
	}
}

// maxApart is the most bytes of a capture from one packet to the next. The largest
// packet that tcpdump(8) writes has 256 KiB.
const maxApart = 1 << 20

// maxLinks is the most interfaces of a pcapng capture, whose reader keeps them all in
// memory.
const maxLinks = 1 << 12

// An apart reads a capture, but not more than maxApart bytes at a time.
type apart struct {
	io.Reader
	left int
}

func (a *apart) Read(b []byte) (n int, err error) {
	if a.left <= 0 {
		return 0, fmt.Errorf("more than %d bytes are before the next packet; give a capture of frames", maxApart)
	}
	n, err = a.Reader.Read(b[:min(len(b), a.left)])
	a.left -= n
	return n, err
}

var errNoCapture = errors.New("neither pcap nor pcapng")

// reader returns the next packet of a capture.
type reader func() ([]byte, gopacket.CaptureInfo, layers.LinkType, error)

// format detects the format by the first bytes, which it leaves in the buffer.
func format(b *bufio.Reader) (pcap, ng bool) {
	magic, _ := b.Peek(4)
	switch string(magic) {
	case "\xa1\xb2\xc3\xd4", "\xd4\xc3\xb2\xa1", "\xa1\xb2\x3c\x4d", "\x4d\x3c\xb2\xa1":
		return true, false
	}
	return false, string(magic) == "\x0a\x0d\x0d\x0a"
}

// open begins to read a capture.
func open(b *bufio.Reader) (reader, error) {
	pcap, ng := format(b)
	switch {
	case ng:
		return openNg(b)
	case !pcap:
		return nil, errNoCapture
	}
	r, err := pcapgo.NewReader(b)
	if err != nil {
		return nil, fmt.Errorf("not a capture that can be read: %w", err)
	}
	return func() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
		data, info, err := r.ReadPacketData()
		return data, info, r.LinkType(), err
	}, nil
}

// openNg opens a pcapng capture, whose packets may be of different links.
func openNg(b *bufio.Reader) (reader, error) {
	ng, err := pcapgo.NewNgReader(b, pcapgo.NgReaderOptions{WantMixedLinkType: true, SkipUnknownVersion: true})
	if err != nil {
		return nil, fmt.Errorf("not a capture that can be read: %w", err)
	}
	return func() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
		data, info, err := ng.ReadPacketData()
		if err != nil {
			return nil, info, 0, err
		}
		if ng.NInterfaces() > maxLinks {
			return nil, info, 0, fmt.Errorf("the capture is of more than %d interfaces; give one of fewer", maxLinks)
		}
		link, ok := info.AncillaryData[0].(layers.LinkType)
		if !ok {
			return nil, info, 0, errors.New("its link type is missing")
		}
		return bytes.Clone(data), info, link, nil
	}, nil
}
