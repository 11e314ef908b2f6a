// SPDX-License-Identifier: BSD-2-Clause

package pflog

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

func packet(t *testing.T, six bool) []byte {
	t.Helper()
	tcp := &layers.TCP{SrcPort: 1234, DstPort: 22, SYN: true, Window: 100}
	var ip gopacket.SerializableLayer = &layers.IPv4{
		Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: net.IPv4(10, 0, 0, 1).To4(), DstIP: net.IPv4(10, 0, 0, 2).To4(),
	}
	if six {
		ip = &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: net.ParseIP("2001:db8::1"), DstIP: net.ParseIP("2001:db8::2")}
	}
	if err := tcp.SetNetworkLayerForChecksum(ip.(gopacket.NetworkLayer)); err != nil {
		t.Fatal(err)
	}
	buf := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(buf, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, ip, tcp); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

var tests = []struct {
	name   string
	record Record
	six    bool
	want   string
}{
	{"block", Record{Interface: "p1", Rule: 3, Subrule: NoSubrule, Action: Block, Family: 4}, false,
		"rule 3/0(match): block in on p1: 10.0.0.1.1234 > 10.0.0.2.22: Flags [S]"},
	{"pass out, IPv6", Record{Interface: "p2", Rule: 0, Subrule: NoSubrule, Out: true, Family: 6}, true,
		"rule 0/0(match): pass out on p2: 2001:db8::1.1234 > 2001:db8::2.22: Flags [S]"},
	{"match in an anchor", Record{Interface: "p1", Ruleset: "guests", Rule: 4, Subrule: 2, Action: Match, Family: 4}, false,
		"rule 4.guests.2/0(match): unkn(12) in on p1: 10.0.0.1.1234 > 10.0.0.2.22: Flags [S]"},
	{"options", Record{Interface: "p1", Rule: 1, Subrule: NoSubrule, Action: Block, Reason: Options, Family: 4}, false,
		"rule 1/8(ip-option): block in on p1: 10.0.0.1.1234"},
	{"state", Record{Interface: "p1", Rule: 1, Subrule: NoSubrule, Action: Block, Reason: StateMismatch, Family: 4}, false,
		"rule 1/10(state-mismatch): block in on p1: 10.0.0.1.1234"},
	{"a long name", Record{Interface: "a-name-that-is-too-long", Rule: 1, Subrule: NoSubrule, Family: 4}, false,
		"rule 1/0(match): pass in on a-name-that-is-: 10.0.0.1.1234"},
}

// tcpdump prints the contents of OpenBSD's pflog files. On Linux it has no name for
// match.
func TestTcpdump(t *testing.T) {
	tcpdump, err := exec.LookPath("tcpdump")
	if err != nil {
		t.Skip("tcpdump is not installed")
	}
	var file bytes.Buffer
	w, err := NewWriter(&file)
	if err != nil {
		t.Fatal(err)
	}
	for i, tt := range tests {
		r := tt.record
		r.Time = time.Unix(1700000000, int64(i)*1000000)
		r.Data = packet(t, tt.six)
		r.Length = len(r.Data)
		if err := w.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(tcpdump, "-n", "-e", "-ttt", "-r", path).Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(tests) {
		t.Fatalf("tcpdump prints %d lines of %d packets:\n%s", len(lines), len(tests), out)
	}
	for i, tt := range tests {
		if !strings.Contains(lines[i], tt.want) {
			t.Errorf("%s: tcpdump prints\n%s\nwant\n%s", tt.name, lines[i], tt.want)
		}
	}
}

// The header is OpenBSD's, byte for byte.
func TestHeader(t *testing.T) {
	b := appendHeader(nil, Record{Interface: "p1", Ruleset: "a", Rule: 3, Subrule: 258, Action: Match, Reason: Short, Out: true, Family: 6})
	want := "\x64\x18\x0c\x03" + "p1" + strings.Repeat("\x00", 14) + "a" + strings.Repeat("\x00", 15) +
		"\x00\x00\x00\x03\x00\x00\x01\x02" + strings.Repeat("\xff\xff\xff\xff\x00\x00\x00\x00", 2) +
		"\x02\x00\x18" + strings.Repeat("\x00", 37)
	if string(b) != want {
		t.Errorf("% x, want % x", b, want)
	}
}
