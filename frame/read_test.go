// SPDX-License-Identifier: BSD-2-Clause

package frame

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// smallest is a frame of 14 bytes.
const smallest = "ffffffffffff02000000000188b5"

// wantError compares an error with a text, "" for none.
func wantError(t *testing.T, err error, want string) {
	t.Helper()
	got := ""
	if err != nil {
		got = err.Error()
	}
	if got != want {
		t.Errorf("error %q, want %q", got, want)
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct{ text, want, err string }{
		{smallest, smallest, ""},
		{strings.ToUpper(smallest), smallest, ""},
		{"ff:ff:ff:ff:ff:ff 02:00:00:00:00:01\n88b5\r\n", smallest, ""},
		{"f f f\tfffffffff 0 2000000000188b5 01", smallest + "01", ""},
		{"", "", "0 bytes are no frame: the Ethernet header alone has 14"},
		{" \n", "", "0 bytes are no frame: the Ethernet header alone has 14"},
		{smallest[2:], "", "13 bytes are no frame: the Ethernet header alone has 14"},
		{smallest + "0", "", "29 hexadecimal digits are not whole bytes"},
		{"0x" + smallest, "", "'x' at byte 2 is no hexadecimal digit"},
		{smallest + " 0g", "", "'g' at byte 31 is no hexadecimal digit"},
		{smallest + "é", "", "'é' at byte 29 is no hexadecimal digit"},
		{smallest + "\x00", "", `'\x00' at byte 29 is no hexadecimal digit`},
		{smallest + "-01", "", "'-' at byte 29 is no hexadecimal digit"},
		{strings.Repeat("00", MaxSize), strings.Repeat("00", MaxSize), ""},
		{strings.Repeat("00", MaxSize+1), "", "65536 bytes are more than the 65535 of a frame"},
	} {
		got, err := Parse(c.text)
		wantError(t, err, c.err)
		if err == nil && hex.EncodeToString(got) != c.want {
			t.Errorf("%.80q: %x", c.text, got)
		}
	}
}

// FuzzParse: an accepted frame is returned the same, in any notation of its digits.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{smallest, "ff:ff ff\nff", "0", "zz", smallest + ": 01", ""} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		frame, err := Parse(text)
		if err != nil {
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("error of several lines: %q", err)
			}
			return
		}
		if len(frame) < MinSize || len(frame) > MaxSize {
			t.Errorf("a frame of %d bytes", len(frame))
		}
		again, err := Parse(fmt.Sprintf("% X", frame))
		if err != nil || !bytes.Equal(again, frame) {
			t.Errorf("%x: %x, %v", frame, again, err)
		}
		bare := strings.NewReplacer(":", "", " ", "", "\n", "").Replace(text)
		if len(strings.Join(strings.Fields(bare), "")) != 2*len(frame) {
			t.Errorf("%q has %d bytes", text, len(frame))
		}
	})
}

// FuzzCapture: a broken capture is an error and nothing worse.
func FuzzCapture(f *testing.F) {
	f.Add(pcap(f, layers.LinkTypeEthernet, recorded(smallest)), 1)
	f.Add(pcapng(f, recorded(smallest), recorded(smallest)), 2)
	f.Fuzz(func(t *testing.T, file []byte, number int) {
		frame, err := Capture(bytes.NewReader(file), number)
		if err == nil && (len(frame) < MinSize || len(frame) > MaxSize) {
			t.Errorf("a frame of %d bytes", len(frame))
		}
	})
}

// captured is a packet in a capture.
type captured struct {
	data  []byte
	whole int // bytes before it was cut
	radio bool
}

func recorded(digits string) captured {
	data, _ := hex.DecodeString(digits)
	return captured{data: data, whole: len(data)}
}

func (c captured) info() gopacket.CaptureInfo {
	return gopacket.CaptureInfo{CaptureLength: len(c.data), Length: c.whole}
}

func pcap(t testing.TB, link layers.LinkType, packets ...captured) []byte {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(65535, link); err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if err := w.WritePacket(p.info(), p.data); err != nil {
			t.Fatal(err)
		}
	}
	return b.Bytes()
}

// pcapng makes a capture of two interfaces; the second one is not Ethernet.
func pcapng(t testing.TB, packets ...captured) []byte {
	t.Helper()
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	radio, err := w.AddInterface(pcapgo.NgInterface{LinkType: layers.LinkTypeIEEE802_11})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		info := p.info()
		if p.radio {
			info.InterfaceIndex = radio
		}
		if err := w.WritePacket(info, p.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRead(t *testing.T) {
	first, second := recorded(smallest), recorded(smallest+"0102")
	short, cut, radio := recorded("0011"), recorded(smallest), recorded(smallest)
	cut.whole, radio.radio = 1514, true

	old := pcap(t, layers.LinkTypeEthernet, first, second, short, cut)
	ng := pcapng(t, first, second, radio, cut)
	// the same header as written by a big-endian machine, with nanoseconds
	big := []byte{0xa1, 0xb2, 0x3c, 0x4d, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0, 0, 0, 1}
	big = append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(append(big, make([]byte, 8)...), 14), 14), first.data...)

	for _, c := range []struct {
		name      string
		file      string
		packet    int
		want, err string
	}{
		{"digits", smallest + "\n", 0, smallest, ""},
		{"digits of a dump", "ffff ffff ffff 0200\n0000 0001 88b5\n", 0, smallest, ""},
		{"digits and a number", smallest, 1, "", "--packet is for captures, and this is none"},
		{"nothing", "", 0, "", "0 bytes are no frame: the Ethernet header alone has 14"},
		{"something else", "\x7fELF", 0, "", `'\x7f' at byte 1 is no hexadecimal digit`},
		{"pcap", string(old), 0, smallest, ""},
		{"pcap, first", string(old), 1, smallest, ""},
		{"pcap, second", string(old), 2, smallest + "0102", ""},
		{"pcap, no frame", string(old), 3, "", "2 bytes are no frame: the Ethernet header alone has 14"},
		{"pcap, cut", string(old), 4, "", "packet 4 was cut short: 14 of 1514 bytes were captured"},
		{"pcap, not there", string(old), 5, "", "there is no packet 5: the capture has 4"},
		{"pcap, empty", string(pcap(t, layers.LinkTypeEthernet)), 0, "", "there is no packet 1: the capture has 0"},
		{"pcap, no Ethernet", string(pcap(t, layers.LinkTypeLinuxSLL, first)), 0, "", "packet 1 is no Ethernet frame: its link type is Linux SLL"},
		{"pcap, its end is missing", string(old[:24+16+10]), 0, "", "packet 1 cannot be read: unexpected EOF"},
		{"pcap, header only half", string(old[:10]), 0, "", "not a capture that can be read: unexpected EOF"},
		{"pcap, big-endian", string(big), 0, smallest, ""},
		{"pcapng", string(ng), 0, smallest, ""},
		{"pcapng, second", string(ng), 2, smallest + "0102", ""},
		{"pcapng, other interface", string(ng), 3, "", "packet 3 is no Ethernet frame: its link type is 802.11"},
		{"pcapng, cut", string(ng), 4, "", "packet 4 was cut short: 14 of 1514 bytes were captured"},
		{"pcapng, not there", string(ng), 9, "", "there is no packet 9: the capture has 4"},
		{"pcapng, its end is missing", string(ng[:len(ng)-10]), 4, "", "packet 4 cannot be read: unexpected EOF"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Read(strings.NewReader(c.file), c.packet)
			wantError(t, err, c.err)
			if err == nil && hex.EncodeToString(got) != c.want {
				t.Errorf("%x", got)
			}
		})
	}
	if _, err := Capture(strings.NewReader(smallest), 1); err != errNoCapture {
		t.Errorf("digits as a capture: %v", err)
	}
	if _, err := Read(io.MultiReader(strings.NewReader("0011"), brokenReader{}), 0); err != io.ErrNoProgress {
		t.Errorf("broken input: %v", err)
	}
}

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrNoProgress }

func number(n uint16) *uint16 { return &n }

var (
	dst = net.HardwareAddr{2, 0, 0, 0, 0, 2}
	src = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	ip4 = netip.MustParseAddr("192.0.2.1")
	to4 = netip.MustParseAddr("192.0.2.2")
	ip6 = netip.MustParseAddr("2001:db8::1")
	to6 = netip.MustParseAddr("2001:db8::2")
)

// TestBuild compares with whole frames, which are written by hand from the standards.
func TestBuild(t *testing.T) {
	const macs, zeros = "020000000002 020000000001", "00"
	pad := func(text string) string {
		text = strings.ReplaceAll(text, " ", "")
		return text + strings.Repeat(zeros, max(0, 60-len(text)/2))
	}
	for _, c := range []struct {
		name   string
		fields Fields
		want   string
	}{
		{"least", Fields{Dst: dst}, pad("020000000002 00005e005301 88b5")},
		{"type", Fields{Dst: dst, Src: src, EtherType: number(0x88cc)}, pad(macs + "88cc")},
		{"tag", Fields{Dst: dst, Src: src, VLAN: number(10)}, pad(macs + "8100 000a 88b5")},
		{"priority", Fields{Dst: dst, Src: src, VLAN: number(4094), Priority: number(5)}, pad(macs + "8100 affe 88b5")},
		{"priority tag", Fields{Dst: dst, Src: src, VLAN: number(0), Priority: number(7)}, pad(macs + "8100 e000 88b5")},
		{"two tags", Fields{Dst: dst, Src: src, VLAN: number(10), QinQ: number(200), Priority: number(1)}, pad(macs + "88a8 20c8 8100 200a 88b5")},
		{"small", Fields{Dst: dst, Src: src, Size: number(14)}, strings.ReplaceAll(macs+"88b5", " ", "")},
		{"size", Fields{Dst: dst, Src: src, VLAN: number(1), Size: number(20)}, strings.ReplaceAll(macs+"8100 0001 88b5 0000", " ", "")},
		{
			"ARP request", Fields{Src: src, ARP: "request", SenderIP: ip4, Target: to4},
			pad("ffffffffffff 020000000001 0806 0001 0800 06 04 0001 020000000001 c0000201 000000000000 c0000202"),
		},
		{
			"ARP request to one, as small as it is", Fields{Dst: dst, Src: src, ARP: "request", SenderIP: ip4, Target: to4, Size: number(42)},
			strings.ReplaceAll(macs+"0806 0001 0800 06 04 0001 020000000001 c0000201 000000000000 c0000202", " ", ""),
		},
		{
			"ARP reply", Fields{Dst: dst, Src: src, ARP: "reply", SenderIP: ip4, Target: to4, VLAN: number(3)},
			pad(macs + "8100 0003 0806 0001 0800 06 04 0002 020000000001 c0000201 020000000002 c0000202"),
		},
		{
			"UDP", Fields{Dst: dst, Src: src, IP: ip4, To: to4, UDP: number(53), SrcPort: number(1024)},
			pad(macs + "0800 45 00 001c 0000 4000 40 11 b6cd c0000201 c0000202 0400 0035 0008 77a5"),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.fields.Build()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, hex.EncodeToString(got)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// sum is the Internet checksum (RFC 1071) of data that includes one: 0 if it is right.
func sum(parts ...[]byte) uint16 {
	var total uint32
	for _, b := range parts {
		for i := range b {
			total += uint32(b[i]) << (8 * (1 - i%2))
		}
	}
	for total > 0xffff {
		total = total>>16 + total&0xffff
	}
	return ^uint16(total)
}

// TestPackets parses packets of every kind again: their lengths and checksums are right
// in every size and behind every number of tags.
func TestPackets(t *testing.T) {
	kinds := map[string]struct {
		fields   Fields
		protocol byte // in IPv4 and, if different, in IPv6
		header   int  // bytes
	}{
		"tcp":  {Fields{TCP: number(80)}, 6, 20},
		"udp":  {Fields{UDP: number(53)}, 17, 8},
		"icmp": {Fields{ICMP: true}, 1, 8},
	}
	for kind, k := range kinds {
		for _, family := range []int{4, 6} {
			for tags := range 3 {
				for _, size := range []int{0, -1, 100, 101, 1514, MaxSize} { // none, least
					f := k.fields
					f.Dst, f.Src, f.IP, f.To = dst, src, ip4, to4
					ipLen, protocol := 20, k.protocol
					if family == 6 {
						f.IP, f.To, ipLen = ip6, to6, 40
						if kind == "icmp" {
							protocol = 58
						}
					}
					if tags > 0 {
						f.VLAN = number(10)
					}
					if tags > 1 {
						f.QinQ = number(20)
					}
					least := headerLen + 4*tags + ipLen + k.header
					want, packet := max(60, least), ipLen+k.header
					if size != 0 {
						want = size
						if size < 0 {
							want = least
						}
						f.Size, packet = number(uint16(want)), want-headerLen-4*tags
					}
					name := fmt.Sprintf("%s over IPv%d with %d tags, size %d", kind, family, tags, size)
					frame, err := f.Build()
					if err != nil || len(frame) != want {
						t.Errorf("%s: %d bytes, want %d; %v", name, len(frame), want, err)
						continue
					}
					ip := frame[headerLen+4*tags:]
					if ip[0]>>4 != byte(family) {
						t.Fatalf("%s: version %d", name, ip[0]>>4)
					}
					var length int
					var next byte
					var addresses []byte
					if family == 4 {
						length, next, addresses = int(binary.BigEndian.Uint16(ip[2:])), ip[9], ip[12:20]
						if sum(ip[:20]) != 0 {
							t.Errorf("%s: checksum of the IP header", name)
						}
					} else {
						length, next, addresses = 40+int(binary.BigEndian.Uint16(ip[4:])), ip[6], ip[8:40]
					}
					if length != packet || next != protocol {
						t.Errorf("%s: IP says %d bytes of protocol %d; want %d of %d", name, length, next, packet, protocol)
						continue
					}
					transport := ip[ipLen:length]
					pseudo := binary.BigEndian.AppendUint32(bytes.Clone(addresses), uint32(len(transport)))
					pseudo = append(pseudo, 0, protocol)
					if protocol == 1 {
						pseudo = nil
					}
					if sum(pseudo, transport) != 0 {
						t.Errorf("%s: checksum of %s", name, kind)
					}
					if kind == "udp" && int(binary.BigEndian.Uint16(transport[4:])) != len(transport) {
						t.Errorf("%s: UDP's length", name)
					}
					if kind != "icmp" && binary.BigEndian.Uint16(transport) != DefaultSrcPort {
						t.Errorf("%s: source port", name)
					}
				}
			}
		}
	}
}

func TestContradictions(t *testing.T) {
	for want, f := range map[string]Fields{
		"--dst is missing; give the MAC address that the frame is for, such as --dst 02:00:00:00:00:02":  {Src: src},
		"--dst is missing; give the MAC address that the frame is for, such as --dst 02:00:00:00:00:02 ": {ARP: "reply", SenderIP: ip4, Target: to4},
		"--priority needs --vlan: it is in the tag; --vlan 0 is a tag of a priority alone":               {Dst: dst, Priority: number(1)},
		"--qinq needs --vlan: it is the outer of two tags":                                               {Dst: dst, QinQ: number(1)},
		"IP and --arp do not go together: a frame has one content":                                       {Dst: dst, IP: ip4, ARP: "reply"},
		"IP and --ethertype do not go together: a frame has one content":                                 {Dst: dst, TCP: number(1), EtherType: number(0x800)},
		"IP and --arp and --ethertype do not go together: a frame has one content":                       {Dst: dst, ICMP: true, ARP: "reply", EtherType: number(0x800)},
		"--tcp and --udp do not go together: a packet has one of them":                                   {Dst: dst, IP: ip4, To: to4, TCP: number(1), UDP: number(1)},
		"--udp and --icmp do not go together: a packet has one of them":                                  {Dst: dst, IP: ip4, To: to4, UDP: number(1), ICMP: true},
		"--tcp needs --ip and --to: the addresses of the packet":                                         {Dst: dst, TCP: number(1)},
		"--icmp needs --ip and --to: the addresses of the packet":                                        {Dst: dst, ICMP: true, IP: ip4},
		"--ip and --to go together: from one address to the other":                                       {Dst: dst, To: ip4},
		"--ip needs one of --tcp, --udp and --icmp":                                                      {Dst: dst, IP: ip4, To: to4},
		"--ip 192.0.2.1 and --to 2001:db8::2 are not of one family":                                      {Dst: dst, IP: ip4, To: to6, ICMP: true},
		"--ip ::ffff:192.0.2.1 and --to 192.0.2.2 are not of one family":                                 {Dst: dst, IP: netip.MustParseAddr("::ffff:192.0.2.1"), To: to4, ICMP: true},
		"--sport needs --tcp or --udp":                                                                   {Dst: dst, IP: ip4, To: to4, ICMP: true, SrcPort: number(1)},
		"--spa and --tpa need --arp":                                                                     {Dst: dst, Target: ip4},
		"--arp needs --spa and --tpa: IPv4 addresses of the sender and the target":                       {ARP: "request", SenderIP: ip4},
		"--arp needs --spa and --tpa: IPv4 addresses of the sender and the target ":                      {ARP: "request", SenderIP: ip4, Target: ip6},
		"--ethertype 0x05ff is a length; types begin at 0x0600":                                          {Dst: dst, EtherType: number(0x5ff)},
		"--ethertype 0x8100 is a tag; give --vlan or --qinq":                                             {Dst: dst, EtherType: number(0x8100)},
		"--ethertype 0x88a8 is a tag; give --vlan or --qinq":                                             {Dst: dst, EtherType: number(0x88a8)},
		"--size 17: the headers alone have 18 bytes":                                                     {Dst: dst, VLAN: number(1), Size: number(17)},
		"--size 61: the headers alone have 62 bytes":                                                     {Dst: dst, IP: ip6, To: to6, UDP: number(1), Size: number(61)},
		"--size 41: the headers alone have 42 bytes":                                                     {ARP: "request", SenderIP: ip4, Target: to4, Size: number(41)},
	} {
		_, err := f.Build()
		wantError(t, err, strings.TrimSpace(want))
	}
}
