// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// written returns a file of frames, with 3 and then 4 more missed.
func written(t *testing.T, frames []Seen) []byte {
	t.Helper()
	var file bytes.Buffer
	p, err := NewPcapng(&file, "br0", "tcp or arp", 2048)
	if err != nil {
		t.Fatal(err)
	}
	half := len(frames) / 2
	if err := errors.Join(p.Write(frames[:half], 3), p.Write(frames[half:], 0), p.Write(nil, 4), p.Close()); err != nil {
		t.Fatal(err)
	}
	return file.Bytes()
}

func TestPcapngReader(t *testing.T) {
	frames := seenFrames(t)
	r, err := pcapgo.NewNgReader(bytes.NewReader(written(t, frames)), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for i, f := range frames {
		data, info, err := r.ReadPacketData()
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		port, err := r.Interface(info.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		name, about := text(f.Port), "port "+text(f.Port)+" of bridge br0"
		if f.Port == "" {
			name, about = "br0", "bridge br0"
		}
		if port.Name != name || port.Description != about || port.SnapLength != 2048 || port.LinkType != layers.LinkTypeEthernet {
			t.Errorf("frame %d: interface %+v, want %s, %s", i, port, name, about)
		}
		if !bytes.Equal(data, f.Data) || info.CaptureLength != len(f.Data) || info.Length != f.Length || !info.Timestamp.Equal(f.Time) {
			t.Errorf("frame %d: %v % x, want %v", i, info, data, f)
		}
	}
	if _, _, err := r.ReadPacketData(); err != io.EOF {
		t.Errorf("after the frames: %v, want the end", err)
	}
	bridge, err := r.Interface(0)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := bridge.Statistics.PacketsDropped, uint64(7); got != want {
		t.Errorf("%d missed, want %d", got, want)
	}
	if got, want := bridge.Statistics.PacketsReceived, uint64(len(frames)+7); got != want {
		t.Errorf("%d received, want %d", got, want)
	}
}

// A block of a pcapng file, with the parts that the tests check:
// draft-ietf-opsawg-pcapng.
type block struct {
	kind    uint32
	body    []byte
	options map[uint16]string
}

const (
	blockInterface  = 1
	blockStatistics = 5
	blockPacket     = 6
	blockSection    = 0x0a0d0d0a
)

// blocks splits a file into its blocks, following the format's description.
func blocks(t *testing.T, file []byte) (list []block) {
	t.Helper()
	le := binary.LittleEndian
	for len(file) > 0 {
		b := block{kind: le.Uint32(file), options: map[uint16]string{}}
		n := le.Uint32(file[4:])
		if n%4 != 0 || le.Uint32(file[n-4:]) != n {
			t.Fatalf("block %#x of %d bytes ends with another length", b.kind, n)
		}
		b.body, file = file[8:n-4], file[n:]
		fixed := map[uint32]int{blockSection: 16, blockInterface: 8, blockStatistics: 12, blockPacket: 20}[b.kind]
		if b.kind == blockPacket {
			fixed += int(le.Uint32(b.body[12:])+3) &^ 3
		}
		for options := b.body[fixed:]; len(options) > 0; {
			code, size := le.Uint16(options), int(le.Uint16(options[2:]))
			if code == 0 {
				break
			}
			b.options[code] = string(options[4 : 4+size])
			options = options[4+(size+3)&^3:]
		}
		list = append(list, b)
	}
	return list
}

func TestPcapngBlocks(t *testing.T) {
	frames := []Seen{
		{Port: "p1", Direction: In, Time: began, Data: make([]byte, 60), Length: 60},
		{Port: "p2", Direction: Out, Time: began, Data: make([]byte, 61), Length: 61},
		{Port: "p1", Direction: Dropped, Reason: "same-port", Time: began, Data: make([]byte, 2), Length: 1500},
	}
	le := binary.LittleEndian
	var got []string
	for _, b := range blocks(t, written(t, frames)) {
		var text string
		switch b.kind {
		case blockSection:
			text = "section by " + b.options[4] // shb_userappl
		case blockInterface: // if_name, if_description, if_filter, if_tsresol
			text = fmt.Sprintf("interface %s, %s, filter %q, snaplen %d, resolution %d",
				b.options[2], b.options[3], b.options[11], le.Uint32(b.body[4:]), b.options[9][0])
		case blockPacket: // epb_flags, opt_comment
			nanoseconds := uint64(le.Uint32(b.body[4:]))<<32 | uint64(le.Uint32(b.body[8:]))
			text = fmt.Sprintf("packet of %d, %d bytes of %d, flags %#x, %q, at %d", le.Uint32(b.body), le.Uint32(b.body[12:]), le.Uint32(b.body[16:]),
				le.Uint32([]byte(b.options[2])), b.options[1], nanoseconds-uint64(began.UnixNano()))
		case blockStatistics: // isb_ifrecv, isb_ifdrop
			text = fmt.Sprintf("statistics of %d, received %d, missed %d", le.Uint32(b.body),
				le.Uint64([]byte(b.options[4])), le.Uint64([]byte(b.options[5])))
		}
		got = append(got, text)
	}
	want := []string{
		`section by bascule`,
		`interface br0, bridge br0, filter "\x00tcp or arp", snaplen 2048, resolution 9`,
		`interface p1, port p1 of bridge br0, filter "\x00tcp or arp", snaplen 2048, resolution 9`,
		`packet of 1, 60 bytes of 60, flags 0x1, "", at 0`,
		`statistics of 0, received 4, missed 3`,
		`interface p2, port p2 of bridge br0, filter "\x00tcp or arp", snaplen 2048, resolution 9`,
		`packet of 2, 61 bytes of 61, flags 0x2, "out by p2", at 0`,
		`packet of 1, 2 bytes of 1500, flags 0x1, "dropped: same-port", at 0`,
		`statistics of 0, received 10, missed 7`,
		`statistics of 0, received 10, missed 7`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// Tcpdump reads the file, also a capture without any frames.
func TestPcapngTcpdump(t *testing.T) {
	tcpdump, err := exec.LookPath("tcpdump")
	if err != nil {
		t.Skip("reads captures by tcpdump, which is not installed (Debian's package tcpdump)")
	}
	frames := seenFrames(t)
	for _, list := range [][]Seen{nil, frames} {
		cmd := exec.Command(tcpdump, "-nn", "-e", "-t", "--count", "-r", "-")
		cmd.Stdin = bytes.NewReader(written(t, list))
		var stderr strings.Builder
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if want := fmt.Sprintf("%d packet", len(list)); err != nil || !strings.HasPrefix(string(out), want) {
			t.Errorf("tcpdump: %v: %s%s; want %s", err, out, stderr.String(), want)
		}
	}
	cmd := exec.Command(tcpdump, "-nn", "-e", "-t", "-r", "-", "vlan 10 and arp")
	cmd.Stdin = bytes.NewReader(written(t, frames))
	out, err := cmd.Output()
	if want := "02:00:00:00:00:01 > ff:ff:ff:ff:ff:ff, ethertype 802.1Q (0x8100), length 60: vlan 10, p 0, ethertype ARP (0x0806), " +
		"Request who-has 10.0.0.2 tell 10.0.0.1, length 42\n"; err != nil || string(out) != want {
		t.Errorf("tcpdump: %v: %s; want %s", err, out, want)
	}
}

// A reader of a pipe gets the file's beginning at once, and every batch whole; after it
// has gone, writing is an error.
func TestPcapngPipe(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	waiting := func() []block {
		buf := make([]byte, 65536)
		n, err := r.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return blocks(t, buf[:n])
	}
	p, err := NewPcapng(w, "br0", "", 2048)
	if err != nil {
		t.Fatal(err)
	}
	if got := waiting(); len(got) != 2 || got[0].kind != blockSection || got[1].kind != blockInterface {
		t.Errorf("begins with %v", got)
	}
	for range 2 {
		f := Seen{Port: "p1", Time: began, Data: make([]byte, 60), Length: 60}
		if err := p.Write([]Seen{f}, 0); err != nil {
			t.Fatal(err)
		}
		if got := waiting(); got[len(got)-1].kind != blockPacket {
			t.Errorf("ends with %v, want the frame", got)
		}
	}
	r.Close()
	if err := p.Write([]Seen{{Time: began}}, 0); !errors.Is(err, syscall.EPIPE) {
		t.Errorf("into a closed pipe: %v", err)
	}
}
