// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"bascule/bridge"

	"github.com/google/go-cmp/cmp"
	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// tracingFabric is a switch in memory that supports traces.
type tracingFabric struct {
	*fakeSwitch
	trace bridge.Trace
	frame []byte // from the last call
}

func (f *tracingFabric) Trace(name, port string, frame []byte) (bridge.Trace, error) {
	f.call("Trace %s %s", name, port)
	if _, err := f.find(name); err != nil {
		return bridge.Trace{}, err
	}
	f.frame = frame
	return f.trace, nil
}

// runTrace runs the command against a switch with the bridge br0.
func runTrace(t *testing.T, f *tracingFabric, stdin string, args ...string) (status int, stdout, stderr string) {
	t.Helper()
	f.fakeSwitch = &fakeSwitch{bridges: []bridge.Info{{Name: "br0"}}}
	var out, errs strings.Builder
	p := &program{
		stdin: strings.NewReader(stdin), out: bufio.NewWriter(&out), stderr: &errs,
		open: func(string) (switcher, error) { return f, nil },
	}
	status = p.run(args)
	return status, out.String(), errs.String()
}

// captureFile writes a pcap file with two frames.
func captureFile(t *testing.T, link layers.LinkType, frames ...string) (path, text string) {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if err := w.WriteFileHeader(65535, link); err != nil {
		t.Fatal(err)
	}
	for _, digits := range frames {
		data, err := hex.DecodeString(digits)
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WritePacket(gopacket.CaptureInfo{CaptureLength: len(data), Length: len(data)}, data); err != nil {
			t.Fatal(err)
		}
	}
	path = filepath.Join(t.TempDir(), "a.pcap")
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	return path, b.String()
}

const aFrame = "ffffffffffff02000000000188b5"

// TestTraceFrame checks that the switch gets the frame, in every way to give it.
func TestTraceFrame(t *testing.T) {
	path, text := captureFile(t, layers.LinkTypeEthernet, aFrame, aFrame+"02")
	padded := func(digits string) string { return digits + strings.Repeat("00", 60-len(digits)/2) }
	for _, c := range []struct{ args, stdin, want string }{
		{aFrame, "", aFrame},
		{"-", "ff:ff:ff:ff:ff:ff\n02 00 00 00 00 01\n88b5\n", aFrame},
		{"-", text, aFrame},
		{"- --packet 2", text, aFrame + "02"},
		{"--pcap " + path, "", aFrame},
		{"--pcap " + path + " --packet=2", "", aFrame + "02"},
		{"--dst 02:00:00:00:00:02", "", padded("02000000000200005e00530188b5")},
		{"--dst ff:ff:ff:ff:ff:ff --src 01:00:00:00:00:01 --ethertype 0x88cc --size 16", "", "ffffffffffff01000000000188cc0000"},
		{"--dst 02:00:00:00:00:02 --vlan 10 --priority 7 --qinq 20 --ethertype 88cc", "", padded("02000000000200005e00530188a8e0148100e00a88cc")},
		{"--src 02:00:00:00:00:01 --arp request --spa 192.0.2.1 --tpa 192.0.2.2", "",
			padded("ffffffffffff02000000000108060001080006040001020000000001c0000201000000000000c0000202")},
		{"--dst 02:00:00:00:00:02 --ip 192.0.2.1 --to 192.0.2.2 --udp 53 --sport 1024 --src 02:00:00:00:00:01 --size 42", "",
			"02000000000202000000000108004500001c000040004011b6cdc0000201c00002020400003500087 7a5"},
	} {
		f := &tracingFabric{}
		status, _, stderr := runTrace(t, f, c.stdin, append([]string{"trace", "br0", "--in", "p1"}, strings.Fields(c.args)...)...)
		if status != exitDone || stderr != "" {
			t.Errorf("%s: exit status %d, %q", c.args, status, stderr)
			continue
		}
		if got, want := hex.EncodeToString(f.frame), strings.ReplaceAll(c.want, " ", ""); got != want {
			t.Errorf("%s: %s, want %s", c.args, got, want)
		}
		if diff := cmp.Diff([]string{"Trace br0 p1"}, f.calls); diff != "" {
			t.Errorf("%s: %s", c.args, diff)
		}
	}
	// one argument with several words, like a quoted one
	f := &tracingFabric{}
	if status, _, stderr := runTrace(t, f, "", "trace", "br0", "--in", "p1", "ffff ffff ffff\n0200 0000 0001 88b5"); status != exitDone || hex.EncodeToString(f.frame) != aFrame {
		t.Errorf("quoted: exit status %d, %q, %x", status, stderr, f.frame)
	}
}

// TestTraceMisuse checks that a usage error is one line, and that the switch is not called.
func TestTraceMisuse(t *testing.T) {
	ethernet, _ := captureFile(t, layers.LinkTypeEthernet, aFrame)
	radio, _ := captureFile(t, layers.LinkTypeIEEE802_11, aFrame)
	const see = "; see 'bascule trace --help'"
	for _, c := range []struct {
		args, stdin string
		status      int
		want        string
	}{
		{"trace", "", exitUsage, "BRIDGE is missing" + see},
		{"trace br0", "", exitUsage, "--in is missing; give the port that the frame comes in by" + see},
		{"trace br0 --in p1", "", exitUsage, "the frame is missing: give FRAME, --pcap, or fields such as --dst" + see},
		{"trace br0 --in p1 " + aFrame + " 00", "", exitUsage, `"00" is one argument too many` + see},
		{"trace br0 --in p1 " + aFrame + "0", "", exitUsage, "FRAME: 29 hexadecimal digits are not whole bytes" + see},
		{"trace br0 --in p1 0011", "", exitUsage, "FRAME: 2 bytes are no frame: the Ethernet header alone has 14" + see},
		{"trace br0 --in p1 hello", "", exitUsage, "FRAME: 'h' at byte 1 is no hexadecimal digit" + see},
		{"trace br0 --in p1 -", "", exitUsage, "standard input: 0 bytes are no frame: the Ethernet header alone has 14" + see},
		{"trace br0 --in p1 - --packet 1", aFrame, exitUsage, "standard input: --packet is for captures, and this is none" + see},
		{"trace br0 --in p1 " + aFrame + " --packet 1", "", exitUsage, "--packet needs --pcap, or - as FRAME" + see},
		{"trace br0 --in p1 --packet 0 --pcap x", "", exitUsage, "--packet 0: out of range; give 1 to 2147483647" + see},
		{"trace br0 --in p1 " + aFrame + " --pcap x", "", exitUsage, "FRAME and --pcap: give one of them" + see},
		{"trace br0 --in p1 " + aFrame + " --vlan 1", "", exitUsage, "FRAME and --vlan: give the bytes or the fields" + see},
		{"trace br0 --in p1 --icmp --pcap x", "", exitUsage, "--pcap and --icmp: give a capture or the fields" + see},
		{"trace br0 --in p1 --pcap=", "", exitUsage, "--pcap : FILE is empty" + see},
		{"trace br0 --in p1 --pcap /nowhere", "", exitRefused, "cannot read capture /nowhere: no such file or directory; give a file that tcpdump wrote"},
		{"trace br0 --in p1 --pcap -", "", exitUsage, "standard input: neither pcap nor pcapng" + see},
		{"trace br0 --in p1 --pcap /dev/null", "", exitUsage, "/dev/null: neither pcap nor pcapng" + see},
		{"trace br0 --in p1 --packet 2 --pcap " + ethernet, "", exitUsage, ethernet + ": there is no packet 2: the capture has 1" + see},
		{"trace br0 --in p1 --pcap " + radio, "", exitUsage, radio + ": packet 1 is no Ethernet frame: its link type is 802.11" + see},
		{"trace br0 --in p1 --vlan 1", "", exitUsage, "--dst is missing; give the MAC address that the frame is for, such as --dst 02:00:00:00:00:02" + see},
		{"trace br0 --in p1 --ip 192.0.2.1 --to 192.0.2.2 --icmp", "", exitUsage,
			"--dst is missing; give --dst 02:00:00:00:00:02 (192.0.2.2, bound to p2) or --dst 02:00:00:00:00:03 (192.0.2.2, neighbour at host0)" + see},
		{"trace br0 --in p1 --ip 192.0.2.1 --to 192.0.2.3 --icmp", "", exitUsage, "--dst is missing; give the MAC address of 192.0.2.3, or of its sender's gateway, " +
			"such as --dst 02:00:00:00:00:02; 'bascule fdb show br0' lists those that are known" + see},
		{"trace br9 --in p1 --ip 192.0.2.1 --to 192.0.2.2 --icmp", "", exitRefused, "cannot use bridge br9: there is none; see 'bascule bridge show'"},
		{"trace br0 --in p1 --dst 02:00:00:00:00", "", exitUsage, "--dst 02:00:00:00:00: not a MAC address; give six bytes such as 02:00:00:00:00:01" + see},
		{"trace br0 --in p1 --src 02-00-00-00-00-00-00-01", "", exitUsage, "--src 02-00-00-00-00-00-00-01: not a MAC address; give six bytes such as 02:00:00:00:00:01" + see},
		{"trace br0 --in p1 --vlan 4095", "", exitUsage, "--vlan 4095: not a VLAN; give a number 0 to 4094" + see},
		{"trace br0 --in p1 --priority 8", "", exitUsage, "--priority 8: out of range; give 0 to 7" + see},
		{"trace br0 --in p1 --tcp 65536", "", exitUsage, "--tcp 65536: out of range; give 0 to 65535" + see},
		{"trace br0 --in p1 --udp http", "", exitUsage, "--udp http: not a number; give 0 to 65535" + see},
		{"trace br0 --in p1 --ip 192.0.2", "", exitUsage, "--ip 192.0.2: not an IP address; give one such as 192.0.2.1 or 2001:db8::1" + see},
		{"trace br0 --in p1 --to fe80::1%eth0", "", exitUsage, "--to fe80::1%eth0: not an IP address; give one such as 192.0.2.1 or 2001:db8::1" + see},
		{"trace br0 --in p1 --ethertype 10000", "", exitUsage, "--ethertype 10000: out of range; give 0000 to ffff" + see},
		{"trace br0 --in p1 --ethertype ipv4", "", exitUsage, "--ethertype ipv4: not hexadecimal; give 0000 to ffff" + see},
		{"trace br0 --in p1 --size 13", "", exitUsage, "--size 13: out of range; give 14 to 65535" + see},
		{"trace br0 --in p1 --arp both", "", exitUsage, "--arp both: give request or reply" + see},
		{"trace br0 --in p1 --dst 02:00:00:00:00:02 --udp 1 --icmp", "", exitUsage,
			"--udp and --icmp do not go together: a packet has one of them" + see},
		{"trace br9 --in p1 " + aFrame, "", exitRefused, "cannot use bridge br9: there is none; see 'bascule bridge show'"},
	} {
		f := &tracingFabric{}
		status, stdout, stderr := runTrace(t, f, c.stdin, strings.Fields(c.args)...)
		if status != c.status || stdout != "" || stderr != "bascule: "+c.want+"\n" {
			t.Errorf("%s: exit status %d, %q, want %q", c.args, status, stderr, c.want)
		}
		if f.frame != nil {
			t.Errorf("%s: asked of the switch", c.args)
		}
	}
}

// TestPrintTrace checks the printed trace.
func TestPrintTrace(t *testing.T) {
	long := bridge.Trace{
		Steps: []bridge.Step{
			{Name: "port", Text: "the frame comes in by p1, which learns"},
			{Name: "look up", Text: "02:00:00:00:00:02 in VLAN 10 is known behind p2 & p2 is not the port that the frame came in by"},
		},
		Verdict: "forwarded", Out: []string{"p2"},
	}
	dropped := bridge.Trace{Verdict: "dropped: reserved"}
	for i := range 10 {
		dropped.Steps = append(dropped.Steps, bridge.Step{Name: fmt.Sprint("step ", i+1), Text: "went on"})
	}
	for _, c := range []struct {
		args  []string
		trace bridge.Trace
		want  string
	}{
		{nil, long, `br0 p1
  1  port     the frame comes in by p1, which learns
  2  look up  02:00:00:00:00:02 in VLAN 10 is known behind p2 & p2 is not the
              port that the frame came in by
  verdict     forwarded
  out         p2
`},
		{nil, dropped, `br0 p1
   1  step 1   went on
   2  step 2   went on
   3  step 3   went on
   4  step 4   went on
   5  step 5   went on
   6  step 6   went on
   7  step 7   went on
   8  step 8   went on
   9  step 9   went on
  10  step 10  went on
  verdict      dropped: reserved
  out          -
`},
		{[]string{"-j"}, long, `[{"master":"br0","ifname":"p1","steps":[{"name":"port","text":"the frame comes in by p1, which learns"},` +
			`{"name":"look up","text":"02:00:00:00:00:02 in VLAN 10 is known behind p2 & p2 is not the port that the frame came in by"}],` +
			`"verdict":"forwarded","out":["p2"]}]` + "\n"},
		{[]string{"-j"}, bridge.Trace{Verdict: "dropped: no-port"}, `[{"master":"br0","ifname":"p1","steps":[],"verdict":"dropped: no-port","out":[]}]` + "\n"},
	} {
		status, stdout, stderr := runTrace(t, &tracingFabric{trace: c.trace}, "", append(c.args, "trace", "br0", "--in", "p1", aFrame)...)
		if status != exitDone || stderr != "" {
			t.Errorf("exit status %d, %q", status, stderr)
		}
		if diff := cmp.Diff(c.want, stdout); diff != "" {
			t.Error(diff)
		}
	}
}
