// SPDX-License-Identifier: BSD-2-Clause

package rstp

import (
	"encoding/hex"
	"errors"
	"net"
	"slices"
	"strings"
	"testing"
)

// Captured frames of Linux 6.18's bridge, and of Open vSwitch 3.1 with RSTP,
// as a packet socket at the other end of a veth receives them.
const (
	linuxConfig = "0180c2000000 42907a4bbabf 0026 424203 0000 00 00 00 800042907a4bbabf 00000000 800042907a4bbabf 8001 0000 1400 0200 0400"
	ovsProposal = "0180c2000000 f28e1cbceb3d 0027 424203 0000 02 02 0e 8000f290c209774f 00000000 8000f290c209774f 8001 0000 1400 0200 0f00 00"
	ovsForward  = "0180c2000000 f28e1cbceb3d 0027 424203 0000 02 02 3e 8000f290c209774f 00000000 8000f290c209774f 8001 0000 1400 0200 0f00 00"
	tcn         = "0180c2000000 42907a4bbabf 0007 424203 0000 00 80"
)

func unhex(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestDecode(t *testing.T) {
	linux, ovs := BridgeID(0x800042907a4bbabf), BridgeID(0x8000f290c209774f)
	for _, c := range []struct {
		name, frame string
		want        bpdu
	}{
		{"Linux", linuxConfig, bpdu{configBPDU, 0, vector{linux, 0, linux, 0x8001}, times{0, 20 * second, 2 * second, 4 * second}}},
		{"Open vSwitch, proposing", ovsProposal,
			bpdu{rstBPDU, roleDesignated | flagProposal, vector{ovs, 0, ovs, 0x8001}, times{0, 20 * second, 2 * second, 15 * second}}},
		{"Open vSwitch, forwarding", ovsForward,
			bpdu{rstBPDU, roleDesignated | flagProposal | flagLearning | flagForwarding, vector{ovs, 0, ovs, 0x8001}, times{0, 20 * second, 2 * second, 15 * second}}},
		{"topology change", tcn, bpdu{Type: tcnBPDU}},
		{"padded", linuxConfig + "0000000000000000",
			bpdu{configBPDU, 0, vector{linux, 0, linux, 0x8001}, times{0, 20 * second, 2 * second, 4 * second}}},
		{"a later version, longer (MSTP)", strings.Replace(strings.Replace(ovsForward, " 0027 ", " 0029 ", 1), "02 02 3e", "03 02 3e", 1) + "beef",
			bpdu{rstBPDU, roleDesignated | flagProposal | flagLearning | flagForwarding, vector{ovs, 0, ovs, 0x8001}, times{0, 20 * second, 2 * second, 15 * second}}},
		{"flags that a configuration BPDU does not have", strings.Replace(linuxConfig, "00 00 00 8000", "00 00 ff 8000", 1),
			bpdu{configBPDU, flagTC | flagTCAck, vector{linux, 0, linux, 0x8001}, times{0, 20 * second, 2 * second, 4 * second}}},
		{"role unknown", strings.Replace(ovsForward, "02 02 3e", "02 02 73", 1),
			bpdu{rstBPDU, flagTC, vector{ovs, 0, ovs, 0x8001}, times{0, 20 * second, 2 * second, 15 * second}}},
		{"a root port that is as old as can be", strings.Replace(strings.Replace(ovsForward, "02 02 3e", "02 02 78", 1), "8001 0000", "8001 1400", 1),
			bpdu{rstBPDU, roleRoot | flagLearning | flagForwarding | flagAgreement, vector{ovs, 0, ovs, 0x8001}, times{20 * second, 20 * second, 2 * second, 15 * second}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := decode(unhex(t, c.frame))
			if err != nil || got != c.want {
				t.Errorf("%+v, %v instead of %+v", got, err, c.want)
			}
		})
	}
}

func TestRefuse(t *testing.T) {
	for _, c := range []struct {
		name, frame, old, new string
		want                  Reason
	}{
		{"nothing", "", "", "", BadLength},
		{"headers cut short", "0180c2000000 42907a4bbabf 0026 42", "", "", BadLength},
		{"another address", linuxConfig, "0180c2000000", "0180c200000e", BadAddress},
		{"from a group", linuxConfig, "42907a4bbabf 0026", "43907a4bbabf 0026", BadAddress},
		{"an EtherType", linuxConfig, "0026", "0800", BadLength},
		{"a tag", linuxConfig, "0026", "8100", BadLength},
		{"longer than the frame", linuxConfig, "0026", "0027", BadLength},
		{"no room for LLC", linuxConfig, "0026", "0002", BadLLC},
		{"another LLC", linuxConfig, "424203", "aaaa03", BadLLC},
		{"no BPDU", linuxConfig, "0026", "0006", TooShort},
		{"length of less than a configuration BPDU", linuxConfig, "0026", "0025", TooShort},
		{"length of less than an RST BPDU", ovsForward, "0027", "0026", TooShort},
		{"another protocol", linuxConfig, "424203 0000", "424203 0001", BadProtocol},
		{"RST of version 0", ovsForward, "02 02 3e", "00 02 3e", BadVersion},
		{"another type", ovsForward, "02 02 3e", "02 03 3e", BadType},
		{"hello time 0", ovsForward, "1400 0200", "1400 0000", BadTimer},
		{"hello time 10.004 s", ovsForward, "1400 0200", "1400 0a01", BadTimer},
		{"max age 5.996 s", linuxConfig, "1400 0200", "05ff 0200", BadTimer},
		{"max age 40.004 s", linuxConfig, "1400 0200", "2801 0200", BadTimer},
		{"forward delay 3.996 s", ovsForward, "0200 0f00", "0200 03ff", BadTimer},
		{"forward delay 30.004 s", ovsForward, "0200 0f00", "0200 1e01", BadTimer},
		{"too old", linuxConfig, "8001 0000", "8001 1400", TooOld},
		{"too old, RST", ovsForward, "8001 0000", "8001 ffff", TooOld},
	} {
		t.Run(c.name, func(t *testing.T) {
			if !strings.Contains(c.frame, c.old) {
				t.Fatalf("no %q in the frame", c.old)
			}
			_, err := decode(unhex(t, strings.Replace(c.frame, c.old, c.new, 1)))
			var refusal *Refusal
			if !errors.As(err, &refusal) || refusal.Reason != c.want || refusal.Text == "" {
				t.Errorf("%v instead of %q", err, c.want)
			}
		})
	}
}

func TestEncode(t *testing.T) {
	for _, text := range []string{linuxConfig, ovsProposal, ovsForward, tcn} {
		frame := unhex(t, text)
		m, err := decode(frame)
		if err != nil {
			t.Fatal(err)
		}
		got := m.encode(net.HardwareAddr(frame[6:12]))
		padded := append(slices.Clone(frame), make([]byte, 60-len(frame))...)
		if !slices.Equal(got, padded) {
			t.Errorf("% x\ninstead of\n% x", got, padded)
		}
	}
}

func TestIdentifiers(t *testing.T) {
	id := NewBridgeID(0x9000, net.HardwareAddr{2, 0, 0, 0, 0xab, 1})
	if id.String() != "9000.02000000ab01" || id.Priority() != 0x9000 || id.MAC().String() != "02:00:00:00:ab:01" {
		t.Errorf("%v %#x %v", id, id.Priority(), id.MAC())
	}
	var again BridgeID
	if err := again.UnmarshalText([]byte(id.String())); err != nil || again != id {
		t.Errorf("%v %v", again, err)
	}
	for _, bad := range []string{"", "9000", "9000.", "90000.02000000ab01", "9000.02000000ab0100", "x000.02000000ab01"} {
		if err := again.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
	if id := NewPortID(0x80, 1023); id.String() != "83ff" {
		t.Error(id)
	}
}

// The better one of two vectors is better in the first part that differs
// (17.6).
func TestVector(t *testing.T) {
	order := []vector{
		{1, 1, 1, 1}, {1, 1, 1, 2}, {1, 1, 2, 1}, {1, 2, 1, 1}, {2, 0, 0, 0},
	}
	for i, v := range order {
		for j, w := range order {
			if got := v.compare(w); (got < 0) != (i < j) || (got > 0) != (i > j) {
				t.Errorf("%v and %v: %d", v, w, got)
			}
		}
	}
	worse, same := vector{1, 9, 3, 0x8001}, vector{1, 1, 3, 0x8001}
	switch {
	case !worse.supersedes(same):
		t.Error("what a port says later does not replace what it said")
	case same.supersedes(same):
		t.Error("a vector replaces itself")
	case (vector{1, 9, 4, 0x8001}).supersedes(same):
		t.Error("another bridge's worse vector replaces a better one")
	}
}

func TestCostOf(t *testing.T) { // table 17-3
	for mbit, want := range map[uint32]uint32{
		10: 2_000_000, 100: 200_000, 1000: 20_000, 10_000: 2_000, 100_000: 200,
		1_000_000: 20, 10_000_000: 2, 4_000_000_000: 1, 1: 20_000_000, 0: 2_000,
	} {
		if got := CostOf(mbit); got != want {
			t.Errorf("%d Mbit/s: %d instead of %d", mbit, got, want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, text := range []string{linuxConfig, ovsProposal, ovsForward, tcn} {
		f.Add(unhex(f, text))
	}
	f.Fuzz(func(t *testing.T, frame []byte) {
		m, err := decode(frame)
		if err != nil {
			if refusal := (*Refusal)(nil); !errors.As(err, &refusal) {
				t.Fatal(err)
			}
			return
		}
		if again, err := decode(m.encode(net.HardwareAddr{2, 0, 0, 0, 0, 1})); err != nil || again != m {
			t.Fatalf("%+v became %+v, %v", m, again, err)
		}
	})
}
