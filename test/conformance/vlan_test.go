// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"bascule/test/netlab"
)

var vlanCases = []conformance{
	{name: "pvid_both", hooks: both, run: pvidBoth},
	{name: "access_to_trunk", hooks: both, run: accessToTrunk},
	{name: "pvid_mismatch", hooks: both, run: pvidMismatch},
	{name: "tagged_on_access_port", hooks: both, run: taggedOnAccessPort},
	{name: "trunk_ranges", hooks: tcx, run: trunkRanges},
	{name: "bad_vlans", hooks: tcx, run: badVLANs},
	{name: "default_pvid", hooks: tcx, run: defaultPVID},
	{name: "admit", hooks: both, run: admit},
	{name: "priority_tag", hooks: both, run: priorityTag},
	{name: "same_mac_two_vlans", hooks: both, run: sameMACTwoVLANs},
	{name: "double_tag", hooks: both, run: doubleTag},
	{name: "vlan_flood_scope", hooks: both, run: vlanFloodScope},
	{name: "unaware", hooks: both, run: unaware},
	{name: "offloaded_tag", hooks: both, run: offloadedTag},
	{name: "host_port_vlan", hooks: tcx, run: hostPortVLAN},
	{name: "vlan_fdb", hooks: tcx, run: vlanFDB},
	{name: "private_vlans", hooks: both, run: privateVLANs},
	{name: "vlan_stats", hooks: both, run: vlanStats},
}

// setupVLANs makes a bridge br0 that filters VLANs, with a port for each membership: "10" is an
// access port, "T10,20" takes tags, "10T20" is a trunk whose untagged frames are in VLAN 10, ""
// is in no VLAN.
func setupVLANs(t *testing.T, hook string, members []string, flags ...string) (*netlab.Lab, []*netlab.End) {
	t.Helper()
	l, ends := setup(t, hook, len(members), append([]string{"--vlan-filtering", "--default-pvid", "none"}, flags...)...)
	for i, m := range members {
		join(l, "br0", ends[i].Port, m)
	}
	return l, ends
}

// join adds a port that is in no VLAN to the VLANs of a membership.
func join(l *netlab.Lab, bridge, port, membership string) {
	native, tagged, _ := strings.Cut(membership, "T")
	if tagged != "" {
		l.Bascule("vlan", "add", bridge, port, tagged)
	}
	if native != "" {
		l.Bascule("vlan", "add", bridge, port, native, "--untagged", "--pvid")
	}
}

// A form converts a frame to its form at an end.
type form func(netlab.Frame) netlab.Frame

func bare(f netlab.Frame) netlab.Frame { return f }

// tag returns the form with an 802.1Q tag, and a priority of 0 unless one is given.
func tag(vlan uint16, priority ...uint8) form {
	return func(f netlab.Frame) netlab.Frame { return f.Tagged(vlan, append(priority, 0)[0]) }
}

func (outer form) over(inner form) form {
	return func(f netlab.Frame) netlab.Frame { return outer(inner(f)) }
}

// service returns the form with a service tag.
func service(vlan uint16) form {
	return func(f netlab.Frame) netlab.Frame { return f.ServiceTagged(vlan) }
}

type forms map[*netlab.End]form

// reach sends frames in a form. Each has to arrive once at every end in to, in that end's form.
// No other frame may arrive at any end.
func reach(t *testing.T, l *netlab.Lab, from netlab.Sender, has form, frames []netlab.Frame, to forms) {
	t.Helper()
	var out []netlab.Frame
	for _, f := range frames {
		out = append(out, has(f))
	}
	got := l.Deliver(from, out...)
	for _, e := range l.Ends {
		want := []netlab.Frame{}
		if form, ok := to[e]; ok {
			for _, f := range frames {
				want = append(want, form(f))
			}
		}
		slices.Sort(want)
		have := slices.Sorted(slices.Values(got[e]))
		if !slices.Equal(have, want) {
			first := func(frames []netlab.Frame) string {
				if len(frames) == 0 {
					return "none"
				}
				return fmt.Sprintf("%d, the first %v: % x", len(frames), frames[0], []byte(frames[0][:26]))
			}
			t.Fatalf("from %v to %s: %s; should be %s", from, e.Port, first(have), first(want))
		}
	}
}

// portVLANs is a port in the output of `bascule -j vlan show`.
type portVLANs struct {
	Ifname string `json:"ifname"`
	Master string `json:"master"`
	VLANs  []struct {
		VLAN  int      `json:"vlan"`
		End   int      `json:"vlanEnd"`
		Flags []string `json:"flags"`

		Type     string `json:"type"`
		Primary  int    `json:"primary"`
		RxFrames int    `json:"rx_packets"`
		RxBytes  int    `json:"rx_bytes"`
		TxFrames int    `json:"tx_packets"`
		TxBytes  int    `json:"tx_bytes"`
	} `json:"vlans"`
}

func (p portVLANs) String() string {
	s := []string{}
	for _, v := range p.VLANs {
		word := strconv.Itoa(v.VLAN)
		if v.End != 0 {
			word += fmt.Sprintf("-%d", v.End)
		}
		for _, f := range v.Flags {
			word += " " + f
		}
		s = append(s, word)
	}
	return strings.Join(s, ", ")
}

// wantVLANs compares the VLANs of a bridge's ports, in order, with the expected ones: "1 PVID
// Egress Untagged, 10-20".
func wantVLANs(t *testing.T, l *netlab.Lab, want ...string) {
	t.Helper()
	var list []portVLANs
	l.JSON(&list, "vlan", "show", "br0")
	var got []string
	for _, p := range list {
		got = append(got, p.String())
	}
	if !slices.Equal(got, want) {
		t.Fatalf("the VLANs are %q, should be %q", got, want)
	}
}

const (
	native1  = "1 PVID Egress Untagged"
	native10 = "10 PVID Egress Untagged"
)

func pvidBoth(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "10", "10", "20"})
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	reach(t, l, a, bare, l.Frames(10, netlab.Broadcast, A), forms{b: bare, c: bare})
	reach(t, l, b, bare, l.Frames(1, A, B), forms{a: bare})
	reach(t, l, a, bare, l.Frames(100, B, A), forms{b: bare})
	reach(t, l, b, bare, l.Frames(100, A, B), forms{a: bare})
	reach(t, l, a, bare, l.Frames(10, C, A), forms{b: bare, c: bare})
	reach(t, l, d, bare, l.Frames(10, netlab.Broadcast, D), nil)
	reach(t, l, d, bare, l.Frames(10, A, D), nil)
	wantDrops(t, l, d, "no-member", 20)
	wantFDB(t, l, "br0", dynamic(A, 10, a), dynamic(B, 10, b), dynamic(D, 20, d))

	// Real stacks are not affected.
	one, two := a.Host(), b.Host()
	must(t, one.Ping(two.IPv4))
	must(t, two.Ping(one.IPv6))
	must(t, netlab.Transfer(one, two, two.IPv4, 4<<20))
}

// admit: a port accepts the frames that it admits, and no others.
func admit(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10T20", "10T20", "10T20", "T10,20"})
	all, tagged, untagged, trunk := ends[0], ends[1], ends[2], ends[3]
	l.Bascule("port", "set", "br0", tagged.Port, "--admit", "tagged")
	l.Bascule("port", "set", "br0", untagged.Port, "--admit", "untagged")
	if p := l.Port("br0", tagged.Port); p.Admit != "tagged" {
		t.Errorf("port show has admit %q", p.Admit)
	}
	reach(t, l, trunk, tag(10), l.Frames(1, netlab.Broadcast, D), forms{all: bare, tagged: bare, untagged: bare})
	reach(t, l, trunk, tag(20), l.Frames(1, netlab.Broadcast, D), forms{all: tag(20), tagged: tag(20), untagged: tag(20)})
	const n = 20
	for i, c := range []struct {
		has      form
		tagged   bool
		vlan     uint16
		priority uint8
	}{
		{bare, false, 10, 0}, {tag(0, 5), false, 10, 5}, {tag(10, 3), true, 10, 3}, {tag(20), true, 20, 0},
	} {
		for j, e := range []*netlab.End{all, tagged, untagged} {
			station := netlab.Station(100 + 10*i + j)
			was := l.Port("br0", e.Port).Drops["admit"]
			refused := e == tagged && !c.tagged || e == untagged && c.tagged
			if refused {
				reach(t, l, e, c.has, l.Frames(n, D, station), nil)
				reach(t, l, e, c.has, l.Frames(n, netlab.Broadcast, station), nil)
				wantDrops(t, l, e, "admit", was+2*n)
				if got := l.FDB("br0", "--mac", station.String()); len(got) != 0 {
					t.Errorf("%s learned %v", e.Port, got)
				}
				continue
			}
			reach(t, l, e, c.has, l.Frames(n, D, station), forms{trunk: tag(c.vlan, c.priority)})
			wantDrops(t, l, e, "admit", was)
		}
	}
	if r := look(t, l, tagged, l.Frame(D, A, 60)); r.Verdict != "dropped: admit" || !r.says("admits no such frames") {
		t.Errorf("traced: %v", r)
	}
	again(t, l)
	reach(t, l, tagged, bare, l.Frames(5, netlab.Broadcast, B), nil)
	wantDrops(t, l, tagged, "admit", 5)
	// Without VLANs all kinds of frames are admitted.
	l.Bascule("bridge", "set", "br0", "--vlan-filtering=off")
	reach(t, l, tagged, bare, l.Frames(5, netlab.Broadcast, B), forms{all: bare, untagged: bare, trunk: bare})
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	reach(t, l, tagged, bare, l.Frames(5, netlab.Broadcast, B), nil)
	l.Bascule("port", "set", "br0", tagged.Port, "--admit", "all")
	reach(t, l, tagged, bare, l.Frames(5, netlab.Broadcast, B), forms{all: bare, untagged: bare, trunk: tag(10)})
}

func accessToTrunk(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "20", "T10,20", "T10,20", "T10"})
	a, b, t1, t2, t3 := ends[0], ends[1], ends[2], ends[3], ends[4]
	// Floods: each port gets its own form, and the copies do not affect each other.
	reach(t, l, a, bare, l.Frames(20, netlab.Broadcast, A), forms{t1: tag(10), t2: tag(10), t3: tag(10)})
	reach(t, l, b, bare, l.Frames(20, netlab.Broadcast, B), forms{t1: tag(20), t2: tag(20)})
	reach(t, l, t1, tag(10, 5), l.Frames(20, netlab.Broadcast, C), forms{a: bare, t2: tag(10, 5), t3: tag(10, 5)})
	reach(t, l, t1, tag(20, 1), l.Frames(20, netlab.Group(1), D), forms{b: bare, t2: tag(20, 1)})
	// Known stations.
	reach(t, l, a, bare, l.Frames(50, C, A), forms{t1: tag(10)})
	reach(t, l, t1, tag(10, 3), l.Frames(50, A, C), forms{a: bare})
	reach(t, l, b, bare, l.Frames(50, D, B), forms{t1: tag(20)})
	reach(t, l, t1, tag(20), l.Frames(50, B, D), forms{b: bare})
	reach(t, l, t2, tag(10, 7), l.Frames(1, C, netlab.Station(9)), forms{t1: tag(10, 7)})
	reach(t, l, t1, tag(10, 7), l.Frames(50, netlab.Station(9), C), forms{t2: tag(10, 7)})
	// XDP adds and removes tags itself: the device sees hardly any frame.
	for _, c := range []struct {
		from, to     *netlab.End
		has, arrives form
		dst, src     netlab.MAC
	}{{a, t1, bare, tag(10), C, A}, {t1, a, tag(10), bare, A, C}} {
		tap := l.Listen(l.Switch, c.from.Port)
		reach(t, l, c.from, c.has, l.Frames(100, c.dst, c.src), forms{c.to: c.arrives})
		// one a second refreshes the address
		if n := len(tap.Received()); hook == "xdp" && n > 20 || hook == "tcx" && n != 100 {
			t.Errorf("a capture at %s sees %d frames of 100 on hook %s", c.from.Port, n, hook)
		}
	}
	// The largest frames: the tag does not count towards the MTU.
	for _, size := range []int{1510, 1511, 1514} {
		reach(t, l, a, bare, []netlab.Frame{l.Frame(C, A, size)}, forms{t1: tag(10)})
		reach(t, l, t1, tag(10), []netlab.Frame{l.Frame(A, C, size)}, forms{a: bare})
		reach(t, l, a, bare, []netlab.Frame{l.Frame(netlab.Broadcast, A, size)}, forms{t1: tag(10), t2: tag(10), t3: tag(10)})
	}
	// A trunk has no VLAN for untagged frames, and no other VLANs than its own.
	reach(t, l, t1, bare, l.Frames(5, netlab.Broadcast, C), nil)
	wantDrops(t, l, t1, "untagged", 5)
	reach(t, l, t3, tag(20), l.Frames(5, netlab.Broadcast, C), nil)
	reach(t, l, t3, tag(4095), l.Frames(5, netlab.Broadcast, C), nil)
	wantDrops(t, l, t3, "vlan", 10)
}

func pvidMismatch(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "20", "20"})
	a, b, c := ends[0], ends[1], ends[2]
	reach(t, l, b, bare, l.Frames(1, netlab.Broadcast, B), forms{c: bare})
	for range 3 {
		reach(t, l, a, bare, l.Frames(10, netlab.Broadcast, A), nil)
		reach(t, l, a, bare, l.Frames(10, B, A), nil)
		reach(t, l, b, bare, l.Frames(10, A, B), forms{c: bare})
	}
	wantDrops(t, l, a, "no-member", 60)
	// One direction: frames in 20 leave by a, too, and frames from a are in 10.
	l.Bascule("vlan", "add", "br0", a.Port, "20", "--untagged")
	reach(t, l, b, bare, l.Frames(10, netlab.Broadcast, B), forms{a: bare, c: bare})
	reach(t, l, a, bare, l.Frames(10, B, A), nil)
	// With the PVID of the other VLAN, both directions are in 20.
	l.Bascule("vlan", "add", "br0", a.Port, "20", "--untagged", "--pvid")
	wantVLANs(t, l, "10 Egress Untagged, 20 PVID Egress Untagged", "20 PVID Egress Untagged", "20 PVID Egress Untagged")
	reach(t, l, a, bare, l.Frames(10, B, A), forms{b: bare})
	reach(t, l, b, bare, l.Frames(10, A, B), forms{a: bare})
}

func taggedOnAccessPort(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "10", "20", "T10,20"})
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	reach(t, l, b, bare, l.Frames(1, netlab.Broadcast, B), forms{a: bare, d: tag(10)})
	reach(t, l, c, bare, l.Frames(1, netlab.Broadcast, C), forms{d: tag(20)})
	// its own VLAN: as if untagged
	reach(t, l, a, tag(10), l.Frames(10, netlab.Broadcast, A), forms{b: bare, d: tag(10)})
	reach(t, l, a, tag(10), l.Frames(10, B, A), forms{b: bare})
	// another VLAN: it does not arrive
	reach(t, l, a, tag(20), l.Frames(10, netlab.Broadcast, A), nil)
	reach(t, l, a, tag(20), l.Frames(10, C, A), nil)
	reach(t, l, a, tag(30), l.Frames(10, C, A), nil)
	wantDrops(t, l, a, "vlan", 30)
	wantFDB(t, l, "br0", dynamic(A, 10, a), dynamic(B, 10, b), dynamic(C, 20, c))
}

func trunkRanges(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2, "--vlan-filtering")
	a, b := ends[0], ends[1]
	for _, e := range ends {
		l.Bascule("vlan", "add", "br0", e.Port, "10-30")
	}
	wantVLANs(t, l, native1+", 10-30", native1+", 10-30")
	all := func(not ...uint16) {
		t.Helper()
		for vid := uint16(8); vid <= 32; vid++ {
			to := forms{b: tag(vid)}
			if vid < 10 || vid > 30 || slices.Contains(not, vid) {
				to = nil
			}
			reach(t, l, a, tag(vid), l.Frames(1, netlab.Broadcast, A), to)
		}
	}
	all()
	l.Bascule("vlan", "del", "br0", a.Port, "20")
	wantVLANs(t, l, native1+", 10-19, 21-30", native1+", 10-30")
	all(20)
	text := l.Bascule("vlan", "show", "br0", a.Port)
	var got []string
	for _, line := range strings.Split(strings.TrimSpace(text), "\n")[1:] {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if want := []string{"br0 p1 1 PVID, Egress Untagged", "br0 p1 10-19 -", "br0 p1 21-30 -"}; !slices.Equal(got, want) {
		t.Errorf("vlan show prints %q, should be %q", got, want)
	}
	if text, want := l.Bascule("port", "show", "br0", a.Port), " 1 (PVID, Egress Untagged), 10-19, 21-30\n"; !strings.Contains(text, want) {
		t.Errorf("port show prints %q, should have %q", text, want)
	}
	// It is shown as ranges, in whatever order it was given.
	l.Bascule("vlan", "add", "br0", a.Port, "31,20,2-4,5")
	wantVLANs(t, l, native1+", 2-5, 10-31", native1+", 10-30")
	l.Bascule("vlan", "add", "br0", a.Port, "15", "--untagged")
	wantVLANs(t, l, native1+", 2-5, 10-14, 15 Egress Untagged, 16-31", native1+", 10-30")
	l.Bascule("vlan", "add", "br0", a.Port, "15")
	l.Bascule("vlan", "del", "br0", b.Port, "1,10-30")
	wantVLANs(t, l, native1+", 2-5, 10-31", "")
	l.Bascule("vlan", "add", "br0", b.Port, "1-4094")
	wantVLANs(t, l, native1+", 2-5, 10-31", "1-4094")
	// A range that the port is only partly in is not deleted.
	l.Refused([]string{a.Port, "VLAN 32-40", "in none of them"}, "vlan", "del", "br0", a.Port, "32-40")
	wantVLANs(t, l, native1+", 2-5, 10-31", "1-4094")
	// Within a range, the present VLANs.
	l.Bascule("vlan", "del", "br0", a.Port, "5-12,31-40")
	wantVLANs(t, l, native1+", 2-4, 13-30", "1-4094")
	l.Bascule("vlan", "del", "br0", a.Port, "1-4094")
	wantVLANs(t, l, "", "1-4094")
}

func badVLANs(t *testing.T, hook string) {
	l, ends := setup(t, hook, 2, "--vlan-filtering")
	p := ends[0].Port
	l.Bascule("vlan", "add", "br0", p, "10-20")
	want := []string{native1 + ", 10-20", native1}
	refuse := func(exit int, args ...string) {
		t.Helper()
		if r := l.Refused(nil, args...); r.Exit != exit {
			t.Errorf("%v: should exit with %d", r, exit)
		}
		wantVLANs(t, l, want...)
	}
	for _, list := range []string{
		"-1", "0", "4095", "4096", "65536", "99999999999999999999", "ten", "", " ", ",", "10,", ",10", "1.5", "0x10", "+5",
		"10-0", "0-10", "20-10", "10-", "-10", "10--20", "10-20-30", "10-4095", "10-20,15", "10,10", "15,10-20", "10-20,20-30",
	} {
		refuse(2, "vlan", "add", "br0", p, list)
		refuse(2, "vlan", "del", "br0", p, list)
	}
	refuse(2, "vlan", "add", "br0", p, "30-40", "--pvid")
	refuse(2, "vlan", "add", "br0", p, "30,40", "--untagged", "--pvid")
	refuse(1, "vlan", "del", "br0", p, "8-9") // it is in none of them
	refuse(1, "vlan", "del", "br0", p, "30")
	refuse(1, "vlan", "add", "br0", "nobody", "30")
	refuse(1, "vlan", "add", "br9", p, "30")
	refuse(2, "bridge", "set", "br0", "--default-pvid", "0")
	refuse(2, "bridge", "set", "br0", "--default-pvid", "4095")
	refuse(2, "bridge", "set", "br0", "--vlan-protocol", "802.1x")
	refuse(2, "vlan", "private", "br0", "0", "--isolated", "11")
	refuse(2, "vlan", "private", "br0", "10", "--isolated", "10")
	refuse(2, "vlan", "private", "br0", "10", "--isolated", "11,12")
	refuse(2, "vlan", "private", "br0", "10", "--isolated", "11", "--community", "11")
	refuse(2, "vlan", "private", "br0", "10")

	// Without filtering there are no VLANs to change.
	l.Bascule("bridge", "add", "br1")
	l.AddPort("br1", hook, l.NewEnds(1)[0])
	for _, args := range [][]string{{"add", "br1", "p3", "10"}, {"del", "br1", "p3", "1"}, {"show", "br1"}, {"private", "br1", "10", "--isolated", "11"}} {
		l.Refused([]string{"br1", "--vlan-filtering"}, append([]string{"vlan"}, args...)...)
	}
}

func defaultPVID(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	set := func(flags ...string) { l.Bascule(append([]string{"bridge", "set", "br0"}, flags...)...) }
	learn(l, a, A)
	set("--vlan-filtering")
	wantFDB(t, l, "br0") // A was not learned in a VLAN
	wantVLANs(t, l, native1, native1, native1)
	reach(t, l, a, bare, l.Frames(5, netlab.Broadcast, A), forms{b: bare, c: bare})

	// A port that still has the old default gets the new one.
	l.Bascule("vlan", "add", "br0", b.Port, "7", "--untagged", "--pvid")
	l.Bascule("vlan", "add", "br0", c.Port, "30")
	set("--default-pvid", "10")
	wantVLANs(t, l, native10, "1 Egress Untagged, 7 PVID Egress Untagged", native10+", 30")
	reach(t, l, a, bare, l.Frames(5, netlab.Broadcast, A), forms{c: bare})
	wantFDB(t, l, "br0", dynamic(A, 10, a))

	// A later port, too.
	d := l.NewEnds(1)[0]
	l.AddPort("br0", hook, d)
	reach(t, l, a, bare, l.Frames(5, netlab.Broadcast, A), forms{c: bare, d: bare})

	set("--default-pvid", "none")
	wantVLANs(t, l, "", "1 Egress Untagged, 7 PVID Egress Untagged", "30", "")
	wantFDB(t, l, "br0")
	reach(t, l, a, bare, l.Frames(5, netlab.Broadcast, A), nil)
	wantDrops(t, l, a, "untagged", 5)
	e := l.NewEnds(1)[0]
	l.AddPort("br0", hook, e)
	wantVLANs(t, l, "", "1 Egress Untagged, 7 PVID Egress Untagged", "30", "", "")
	// A port in no VLAN is not affected by the default.
	set("--default-pvid", "20")
	wantVLANs(t, l, "20 PVID Egress Untagged", "1 Egress Untagged, 7 PVID Egress Untagged", "30",
		"20 PVID Egress Untagged", "20 PVID Egress Untagged")

	// The VLANs are still there when filtering is enabled again, and slots are reused.
	set("--vlan-filtering=off")
	reach(t, l, a, tag(99), l.Frames(5, netlab.Broadcast, A), forms{b: tag(99), c: tag(99), d: tag(99), e: tag(99)})
	l.Bascule("port", "del", "br0", b.Port)
	l.Bascule("port", "del", "br0", c.Port)
	l.AddPort("br0", hook, c)
	set("--vlan-filtering")
	const native20 = "20 PVID Egress Untagged"
	wantVLANs(t, l, native20, native20, native20, native20)
	reach(t, l, c, tag(30), l.Frames(5, netlab.Broadcast, C), nil)
	wantDrops(t, l, c, "vlan", 5)
}

func priorityTag(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "10", "T10", "20T10"})
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	reach(t, l, b, bare, l.Frames(1, netlab.Broadcast, B), forms{a: bare, c: tag(10), d: tag(10)})
	reach(t, l, c, tag(10), l.Frames(1, netlab.Broadcast, C), forms{a: bare, b: bare, d: tag(10)})
	for range 2 {
		// A priority tag has no VLAN: the port's own VLAN is used, and the priority
		// stays.
		reach(t, l, a, tag(0, 6), l.Frames(10, netlab.Broadcast, A), forms{b: bare, c: tag(10, 6), d: tag(10, 6)})
		reach(t, l, a, tag(0, 5), l.Frames(10, C, A), forms{c: tag(10, 5)})
		reach(t, l, a, tag(0, 7), l.Frames(10, B, A), forms{b: bare})
		reach(t, l, a, tag(10, 4), l.Frames(10, C, A), forms{c: tag(10, 4)})
	}
	reach(t, l, c, tag(0, 3), l.Frames(10, B, C), nil)
	wantDrops(t, l, c, "untagged", 10)
	reach(t, l, d, tag(0, 3), l.Frames(10, B, D), nil) // in 20
	wantDrops(t, l, d, "no-member", 10)
}

func sameMACTwoVLANs(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "20", "T10,20", "T10,20"})
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	reach(t, l, a, bare, l.Frames(1, netlab.Broadcast, A), forms{c: tag(10), d: tag(10)})
	reach(t, l, b, bare, l.Frames(1, netlab.Broadcast, A), forms{c: tag(20), d: tag(20)})
	reach(t, l, c, tag(10), l.Frames(1, A, C), forms{a: bare})
	reach(t, l, c, tag(20), l.Frames(1, A, C), forms{b: bare})
	for range 20 {
		reach(t, l, c, tag(10), l.Frames(3, A, C), forms{a: bare})
		reach(t, l, c, tag(20), l.Frames(3, A, C), forms{b: bare})
		reach(t, l, a, bare, l.Frames(3, C, A), forms{c: tag(10)})
		reach(t, l, b, bare, l.Frames(3, C, A), forms{c: tag(20)})
	}
	wantFDB(t, l, "br0", dynamic(A, 10, a), dynamic(A, 20, b), dynamic(C, 10, c), dynamic(C, 20, c))
	for _, e := range ends {
		if m := l.Port("br0", e.Port).Moves; m != 0 {
			t.Errorf("%d moves to %s, should be none", m, e.Port)
		}
	}
	// It moves in one VLAN and stays in the other.
	reach(t, l, d, tag(10), l.Frames(1, C, A), forms{c: tag(10)})
	reach(t, l, c, tag(10), l.Frames(3, A, C), forms{d: tag(10)})
	reach(t, l, c, tag(20), l.Frames(3, A, C), forms{b: bare})
}

func doubleTag(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "10", "T10,20", "T10,20"})
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	teach := func() {
		reach(t, l, c, tag(10), l.Frames(1, netlab.Broadcast, C), forms{a: bare, b: bare, d: tag(10)})
	}
	teach()
	drops := uint64(0)
	for _, has := range []form{tag(10).over(tag(20)), tag(10).over(tag(10)), tag(0).over(tag(20)), tag(10).over(service(20))} {
		reach(t, l, a, has, l.Frames(5, netlab.Broadcast, A), nil)
		reach(t, l, a, has, l.Frames(5, C, A), nil)
		drops += 10
	}
	wantDrops(t, l, a, "double-tag", drops)
	// Nor a tag of another kind than the bridge's, alone or in front of another.
	for i, has := range []form{service(10), service(10).over(tag(20))} {
		reach(t, l, a, has, l.Frames(5, netlab.Broadcast, A), nil)
		reach(t, l, a, has, l.Frames(5, C, A), nil)
		wantDrops(t, l, a, "other-tag", uint64(10*(i+1)))
	}
	if r := look(t, l, a, service(10)(l.Frame(C, A, 64))); r.Verdict != "dropped: other-tag" || !r.says("a tag of another kind than the bridge's") {
		t.Errorf("traced: %v", r)
	}
	wantDrops(t, l, a, "double-tag", drops)
	// A tag that Linux does not recognize either is payload.
	reach(t, l, a, bare, of(0x9100, l.Frames(5, C, A)), forms{c: tag(10)})

	// With QinQ the inner tag is payload: only the outer tag is examined and changed.
	l.Bascule("bridge", "set", "br0", "--qinq")
	teach()
	for range 2 {
		for _, inner := range []form{tag(20, 3), tag(4095), service(30), tag(20).over(tag(30))} {
			out := tag(10).over(inner)
			reach(t, l, a, out, l.Frames(5, netlab.Broadcast, A), forms{b: inner, c: out, d: out})
			reach(t, l, a, out, l.Frames(5, C, A), forms{c: out})
			reach(t, l, c, out, l.Frames(5, A, C), forms{a: inner})
			reach(t, l, c, out, l.Frames(5, netlab.Broadcast, C), forms{a: inner, b: inner, d: out})
		}
	}
	// Another kind of tag is payload.
	reach(t, l, a, service(20), l.Frames(5, C, A), forms{c: tag(10).over(service(20))})
	reach(t, l, a, service(20), l.Frames(5, netlab.Broadcast, A), forms{b: service(20), c: tag(10).over(service(20)), d: tag(10).over(service(20))})
	reach(t, l, a, tag(20).over(tag(10)), l.Frames(5, netlab.Broadcast, A), nil)
	wantDrops(t, l, a, "vlan", 5)

	// Service VLANs: the customers' tags are not touched.
	l.Bascule("bridge", "set", "br0", "--qinq=off", "--vlan-protocol", "802.1ad")
	reach(t, l, c, service(10), l.Frames(1, netlab.Broadcast, C), forms{a: bare, b: bare, d: service(10)})
	for range 2 {
		for _, inner := range []form{bare, tag(20, 2), tag(10).over(tag(30))} {
			out := service(10).over(inner)
			reach(t, l, a, inner, l.Frames(5, netlab.Broadcast, A), forms{b: inner, c: out, d: out})
			reach(t, l, a, inner, l.Frames(5, C, A), forms{c: out})
			reach(t, l, c, out, l.Frames(5, A, C), forms{a: inner})
		}
	}
	// The largest frame of a customer.
	large := func(dst netlab.MAC) []netlab.Frame { return []netlab.Frame{l.Frame(dst, A, 1514)} }
	reach(t, l, a, tag(20), large(C), forms{c: service(10).over(tag(20))})
	reach(t, l, a, tag(20), large(netlab.Broadcast), forms{b: tag(20), c: service(10).over(tag(20)), d: service(10).over(tag(20))})
	reach(t, l, c, tag(10), l.Frames(5, A, C), nil)
	wantDrops(t, l, c, "untagged", 5)
	wantFDB(t, l, "br0", dynamic(A, 10, a), dynamic(C, 10, c))
}

func vlanFloodScope(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "20", "T10,20", "10T20", "", "T20", "10", "20T10"})
	type in struct {
		from int
		has  form
		to   map[int]form
	}
	bareOr := func(vid uint16, untagged, tagged []int) map[int]form {
		to := map[int]form{}
		for _, n := range untagged {
			to[n] = bare
		}
		for _, n := range tagged {
			to[n] = tag(vid)
		}
		return to
	}
	tx := map[int]uint64{}
	for _, c := range []in{
		{0, bare, bareOr(10, []int{3, 6}, []int{2, 7})},
		{1, bare, bareOr(20, []int{7}, []int{2, 3, 5})},
		{2, tag(10), bareOr(10, []int{0, 3, 6}, []int{7})},
		{2, tag(20), bareOr(20, []int{1, 7}, []int{3, 5})},
		{3, bare, bareOr(10, []int{0, 6}, []int{2, 7})},
		{3, tag(20), bareOr(20, []int{1, 7}, []int{2, 5})},
		{4, bare, nil},
		{4, tag(10), nil},
		{5, tag(20), bareOr(20, []int{1, 7}, []int{2, 3})},
		{5, tag(10), nil},
		{7, bare, bareOr(20, []int{1}, []int{2, 3, 5})},
		{7, tag(10), bareOr(10, []int{0, 3, 6}, []int{2})},
	} {
		to := forms{}
		for n, form := range c.to {
			to[ends[n]] = form
			tx[n] += 30
		}
		src := netlab.Station(100 + c.from)
		reach(t, l, ends[c.from], c.has, l.Frames(10, netlab.Broadcast, src), to)
		reach(t, l, ends[c.from], c.has, l.Frames(10, netlab.Group(7), src), to)
		reach(t, l, ends[c.from], c.has, l.Frames(10, netlab.Station(999), src), to)
	}
	for n, e := range ends {
		if got := l.Port("br0", e.Port).Stats64.TX.Packets; got != tx[n] {
			t.Errorf("%s counts %d frames out, should be %d", e.Port, got, tx[n])
		}
	}
}

func unaware(t *testing.T, hook string) {
	l, ends := setup(t, hook, 3)
	a, b, c := ends[0], ends[1], ends[2]
	for _, f := range []form{bare, tag(10), tag(10, 5), tag(0, 5), tag(4095), tag(10).over(tag(20)), service(10), service(10).over(tag(20))} {
		reach(t, l, a, f, l.Frames(5, netlab.Broadcast, A), forms{b: f, c: f})
		reach(t, l, b, f, l.Frames(5, A, B), forms{a: f})
		reach(t, l, a, f, l.Frames(5, B, A), forms{b: f})
	}
	// And again, after a time with filtering.
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	reach(t, l, a, tag(10), l.Frames(5, netlab.Broadcast, A), nil)
	l.Bascule("bridge", "set", "br0", "--vlan-filtering=off")
	wantFDB(t, l, "br0")
	reach(t, l, a, tag(10), l.Frames(5, netlab.Broadcast, A), forms{b: tag(10), c: tag(10)})
}

// If one switch adds a tag, it is stored outside the packet when the next switch receives it. A
// tag that a packet socket sends is in the packet.
func offloadedTag(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "20", "T10,20"})
	a, b, c := ends[0], ends[1], ends[2]
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "t0"
	must(t, l.Switch.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "t1"}))
	for _, name := range []string{"t1", "t0"} {
		l.Keep(name)
		link, err := l.Switch.Netlink().LinkByName(name)
		must(t, err)
		if name == "t1" {
			must(t, l.Switch.Netlink().LinkSetUp(link))
		} else {
			l.SetUp(link)
		}
	}
	far := l.NewEnds(2)
	x, y := far[0], far[1]
	l.Bascule("bridge", "add", "br1", "--vlan-filtering", "--default-pvid", "none")
	l.AddPort("br1", "tcx", x)
	l.AddPort("br1", "tcx", y)
	l.Bascule("port", "add", "br1", "t1")
	join(l, "br1", x.Port, "10")
	join(l, "br1", y.Port, "20")
	join(l, "br1", "t1", "T10,20")
	if _, err := l.Run("port", "add", "br0", "t0", "--hook", hook); err != nil { // may report its change of t1
		t.Fatal(err)
	}
	join(l, "br0", "t0", "T10,20")
	for range 3 {
		reach(t, l, x, bare, l.Frames(10, netlab.Broadcast, A), forms{a: bare, c: tag(10)})
		reach(t, l, y, bare, l.Frames(10, netlab.Broadcast, B), forms{b: bare, c: tag(20)})
		reach(t, l, a, bare, l.Frames(10, A, C), forms{x: bare})
		reach(t, l, b, bare, l.Frames(10, B, D), forms{y: bare})
		reach(t, l, x, bare, l.Frames(10, C, A), forms{a: bare})
		reach(t, l, y, bare, l.Frames(10, D, B), forms{b: bare})
		reach(t, l, x, tag(0, 5), l.Frames(10, netlab.Broadcast, A), forms{a: bare, c: tag(10, 5)})
		// In the packet.
		reach(t, l, c, tag(10, 3), l.Frames(10, netlab.Broadcast, netlab.Station(50)), forms{a: bare, x: bare})
		reach(t, l, c, tag(20), l.Frames(10, B, netlab.Station(50)), forms{y: bare})
		reach(t, l, x, bare, l.Frames(10, netlab.Station(50), A), forms{c: tag(10)})
	}
	l.Reach(x, []netlab.Frame{l.Frame(C, A, 1514)}, a)

	// With a native VLAN between them: a tag that is overlooked changes the VLAN.
	l.Bascule("vlan", "add", "br1", "t1", "10", "--untagged", "--pvid")
	l.Bascule("vlan", "add", "br0", "t0", "10", "--untagged", "--pvid")
	P, Q := netlab.Station(60), netlab.Station(61)
	reach(t, l, x, bare, l.Frames(1, netlab.Broadcast, P), forms{a: bare, c: tag(10)})
	reach(t, l, y, bare, l.Frames(1, netlab.Broadcast, P), forms{b: bare, c: tag(20)})
	reach(t, l, a, bare, l.Frames(1, netlab.Broadcast, Q), forms{x: bare, c: tag(10)})
	reach(t, l, b, bare, l.Frames(1, netlab.Broadcast, Q), forms{y: bare, c: tag(20)})
	for range 3 {
		reach(t, l, x, bare, l.Frames(10, Q, P), forms{a: bare})
		reach(t, l, y, bare, l.Frames(10, Q, P), forms{b: bare})
		reach(t, l, y, tag(0, 4), l.Frames(10, Q, P), forms{b: bare})
	}

	// Large packets of stacks, with the tag outside the packet.
	one, two := a.Host(), x.Host()
	must(t, netlab.Transfer(one, two, two.IPv4, 4<<20))
	must(t, netlab.Transfer(two, one, one.IPv6, 4<<20))
	must(t, one.Ping(two.IPv4))
}

func hostPortVLAN(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "20", "T10,20,30"})
	a, b, c := ends[0], ends[1], ends[2]
	sockets := map[string]*netlab.Socket{}
	macs := map[string]netlab.MAC{}
	for name, vid := range map[string]string{"host10": "10", "host20": "20"} {
		l.Bascule("port", "add", "br0", name, "--type", "host")
		join(l, "br0", name, vid)
		link, err := l.Switch.Netlink().LinkByName(name)
		must(t, err)
		l.SetUp(link)
		macs[name] = netlab.MAC(link.Attrs().HardwareAddr)
		sockets[name] = l.Listen(l.Switch, name)
	}
	known := func(port string, vids ...int) {
		t.Helper()
		var got []int
		for _, e := range l.FDB("br0", "--port", port, "--static") {
			if e.MAC != macs[port].String() {
				t.Errorf("a strange static entry: %v", e)
			}
			got = append(got, e.VLAN)
		}
		if !slices.Equal(got, vids) {
			t.Errorf("%s is known in VLANs %v, should be in %v", port, got, vids)
		}
	}
	known("host10", 10)
	known("host20", 20)
	arrived := func(want map[string]int) {
		t.Helper()
		got := map[string]int{}
		for name, s := range sockets {
			for _, f := range s.Received() {
				if f.Src() == A || f.Src() == B || f.Src() == C {
					got[name]++
				}
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("frames arrived at the host's interfaces: %v, should be %v", got, want)
		}
	}
	reach(t, l, a, bare, l.Frames(5, macs["host10"], A), nil)
	arrived(map[string]int{"host10": 5})
	reach(t, l, b, bare, l.Frames(5, macs["host20"], B), nil)
	arrived(map[string]int{"host20": 5})
	reach(t, l, c, tag(20), l.Frames(5, netlab.Broadcast, C), forms{b: bare})
	arrived(map[string]int{"host20": 5})
	reach(t, l, a, bare, l.Frames(5, macs["host20"], A), forms{c: tag(10)}) // unknown there
	arrived(map[string]int{"host10": 5})
	reach(t, l, sockets["host10"], bare, l.Frames(5, netlab.Broadcast, macs["host10"]), forms{a: bare, c: tag(10)})
	reach(t, l, sockets["host20"], bare, l.Frames(5, B, macs["host20"]), forms{b: bare})
	must(t, l.NewHost(l.Switch, "host10", 200).Ping(a.Host().IPv4))

	// The address follows the VLANs, and so does a new one.
	l.Bascule("vlan", "add", "br0", "host10", "30")
	known("host10", 10, 30)
	l.Bascule("vlan", "del", "br0", "host10", "10")
	known("host10", 30)
	link, err := l.Switch.Netlink().LinkByName("host10")
	must(t, err)
	mac := netlab.Station(77)
	must(t, l.Switch.Netlink().LinkSetHardwareAddr(link, mac[:]))
	l.Bascule("bridge", "set", "br0")
	macs["host10"] = mac
	known("host10", 30)
	l.Bascule("bridge", "set", "br0", "--vlan-filtering=off")
	known("host10", 0)
	known("host20", 0)
	l.Bascule("bridge", "set", "br0", "--vlan-filtering")
	known("host10", 30)
	known("host20", 20)
	l.Bascule("vlan", "del", "br0", c.Port, "20")
	l.Bascule("vlan", "private", "br0", "100", "--isolated", "20")
	known("host20", 100)
	l.Bascule("port", "del", "br0", "host20")
	if e := l.FDB("br0", "--static"); len(e) != 1 {
		t.Errorf("static entries: %v, should be host10's", e)
	}
}

func vlanFDB(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "20T10", "T10,30"})
	a, b, c := ends[0], ends[1], ends[2]
	l.Bascule("fdb", "add", "br0", A.String(), a.Port)
	l.Bascule("fdb", "add", "br0", B.String(), b.Port)
	l.Bascule("fdb", "add", "br0", B.String(), b.Port, "--vlan", "10", "--sticky")
	l.Refused([]string{"PVID", "--vlan"}, "fdb", "add", "br0", C.String(), c.Port)
	l.Refused([]string{"is not in VLAN 20", c.Port}, "fdb", "add", "br0", C.String(), c.Port, "--vlan", "20")
	l.Refused([]string{"is not in VLAN 4094"}, "fdb", "add", "br0", C.String(), c.Port, "--vlan", "4094")
	l.Bascule("fdb", "add", "br0", C.String(), c.Port, "--vlan", "30")
	b20, c30 := static(B, 20, b), static(C, 30, c)
	wantFDB(t, l, "br0", static(A, 10, a), b20, sticky(B, 10, b), c30)
	reach(t, l, c, tag(10), l.Frames(2, A, netlab.Station(9)), forms{a: bare})
	reach(t, l, a, bare, l.Frames(2, B, netlab.Station(8)), forms{b: tag(10)})
	l.Bascule("fdb", "flush", "br0")

	l.Refused([]string{"VLANs 10,20", "--vlan"}, "fdb", "del", "br0", B.String())
	l.Refused([]string{"does not have it"}, "fdb", "del", "br0", D.String())
	l.Bascule("fdb", "del", "br0", A.String())
	l.Bascule("fdb", "del", "br0", B.String(), "--vlan", "10")
	wantFDB(t, l, "br0", b20, c30)

	// A port that leaves a VLAN keeps no address there.
	learn(l, a, A)
	l.Bascule("vlan", "del", "br0", b.Port, "20")
	wantFDB(t, l, "br0", dynamic(A, 10, a), c30)
	l.Bascule("vlan", "del", "br0", a.Port, "10")
	wantFDB(t, l, "br0", c30)
}

func privateVLANs(t *testing.T, hook string) {
	const primary, isolated, community1, community2 = 100, 101, 102, 103
	// Promiscuous, two isolated, two of one community, one of another, a trunk with the
	// primary, and one to another switch.
	l, ends := setupVLANs(t, hook, []string{"100", "101", "101", "102", "102", "103", "T100", "T100-103"})
	l.Bascule("vlan", "private", "br0", "100", "--isolated", "101", "--community", "102,103")
	p, i1, i2, c1, c2, d, trunk, uplink := ends[0], ends[1], ends[2], ends[3], ends[4], ends[5], ends[6], ends[7]
	up := func(vid uint16, also ...*netlab.End) forms {
		f := forms{p: bare, trunk: tag(primary), uplink: tag(vid)}
		for _, e := range also {
			f[e] = bare
		}
		return f
	}
	down := func(not *netlab.End) forms {
		f := forms{p: bare, i1: bare, i2: bare, c1: bare, c2: bare, d: bare, trunk: tag(primary), uplink: tag(primary)}
		delete(f, not)
		return f
	}
	station := map[*netlab.End]netlab.MAC{}
	for n, e := range ends {
		station[e] = netlab.Station(10 + n)
	}
	flood := func(from *netlab.End, has form, to forms) {
		t.Helper()
		reach(t, l, from, has, l.Frames(5, netlab.Broadcast, station[from]), to)
	}
	floods := func() {
		t.Helper()
		flood(p, bare, down(p))
		flood(i1, bare, up(isolated))
		flood(i2, bare, up(isolated))
		flood(c1, bare, up(community1, c2))
		flood(c2, bare, up(community1, c1))
		flood(d, bare, up(community2))
		flood(trunk, tag(primary), down(trunk))
		// Frames of another switch's private ports arrive with their VLANs' tags.
		flood(uplink, tag(isolated), forms{p: bare, trunk: tag(primary)})
		flood(uplink, tag(community1), forms{p: bare, c1: bare, c2: bare, trunk: tag(primary)})
		flood(uplink, tag(primary), down(uplink))
	}
	floods()
	var known []string
	for _, e := range ends {
		known = append(known, dynamic(station[e], primary, e))
	}
	wantFDB(t, l, "br0", known...) // all share the primary's addresses

	send := func(from *netlab.End, has form, to *netlab.End, arrives form) {
		t.Helper()
		want := forms{}
		if arrives != nil {
			want[to] = arrives
		}
		reach(t, l, from, has, l.Frames(5, station[to], station[from]), want)
	}
	for range 2 {
		for _, e := range []*netlab.End{i1, i2, c1, c2, d} {
			send(e, bare, p, bare)
			send(p, bare, e, bare)
			send(e, bare, trunk, tag(primary))
			send(trunk, tag(primary), e, bare)
			send(uplink, tag(primary), e, bare)
		}
		send(i1, bare, i2, nil)
		send(i1, bare, c1, nil)
		send(c1, bare, i1, nil)
		send(c1, bare, d, nil)
		send(c1, bare, c2, bare)
		send(i1, bare, uplink, tag(isolated))
		send(c1, bare, uplink, tag(community1))
		send(p, bare, uplink, tag(primary))
		send(uplink, tag(isolated), i1, nil)
		send(uplink, tag(isolated), p, bare)
		send(uplink, tag(community1), c2, bare)
		send(uplink, tag(community1), d, nil)
	}
	wantDrops(t, l, i1, "vlan-out", 20)
	floods()

	// Static entries, in any of the VLANs.
	l.Bascule("fdb", "flush", "br0")
	l.Bascule("fdb", "add", "br0", A.String(), i1.Port)
	l.Bascule("fdb", "add", "br0", B.String(), c1.Port, "--vlan", "102")
	wantFDB(t, l, "br0", static(A, primary, i1), static(B, primary, c1))
	if n := len(l.FDB("br0", "--vlan", "101")); n != 2 {
		t.Errorf("%d addresses in the isolated VLAN, should be the primary's 2", n)
	}
	l.Bascule("fdb", "del", "br0", B.String(), "--vlan", "101")
	wantFDB(t, l, "br0", static(A, primary, i1))

	// Listed, and refused if they make no sense.
	var list []portVLANs
	l.JSON(&list, "vlan", "show", "br0")
	last := list[len(list)-1]
	got := []string{last.Ifname}
	for _, v := range last.VLANs {
		got = append(got, fmt.Sprintf("%d %s %d", v.VLAN, v.Type, v.Primary))
	}
	if want := []string{"br0", "100 primary 0", "101 isolated 100", "102 community 100", "103 community 100"}; !slices.Equal(got, want) {
		t.Errorf("private VLANs are shown as %q, should be %q", got, want)
	}
	l.Refused([]string{"100", "below VLAN 100"}, "vlan", "private", "br0", "101", "--community", "104")
	l.Refused([]string{"102", "below VLAN 100"}, "vlan", "private", "br0", "200", "--community", "102")
	l.Refused([]string{"VLAN 100 is a primary"}, "vlan", "private", "br0", "200", "--community", "100")
	l.Refused([]string{i1.Port, "102", "100"}, "vlan", "add", "br0", i1.Port, "102")
	l.Refused([]string{uplink.Port, "100"}, "vlan", "del", "br0", uplink.Port, "100")

	// ordinary again
	l.Bascule("vlan", "private", "br0", "100", "--isolated", "none", "--community", "none")
	l.Bascule("fdb", "flush", "br0")
	flood(i1, bare, forms{i2: bare, uplink: tag(isolated)})
	flood(p, bare, forms{trunk: tag(primary), uplink: tag(primary)})
}

func vlanStats(t *testing.T, hook string) {
	l, ends := setupVLANs(t, hook, []string{"10", "10", "T10,20", "20"})
	a, b, c, d := ends[0], ends[1], ends[2], ends[3]
	l.Refused([]string{"--vlan-stats"}, "vlan", "show", "br0", "--stats")
	reach(t, l, a, bare, l.Frames(5, netlab.Broadcast, A), forms{b: bare, c: tag(10)})
	l.Bascule("bridge", "set", "br0", "--vlan-stats")
	const size = 60
	count := func(want ...string) {
		t.Helper()
		var list []portVLANs
		l.JSON(&list, "vlan", "show", "br0", "--stats")
		var got []string
		for _, v := range list[0].VLANs {
			got = append(got, fmt.Sprintf("%d: rx %d, tx %d", v.VLAN, v.RxFrames, v.TxFrames))
			if v.RxBytes < v.RxFrames*size || v.RxBytes > v.RxFrames*(size+4) || v.TxBytes < v.TxFrames*size || v.TxBytes > v.TxFrames*(size+4) {
				t.Errorf("VLAN %d: %d bytes in, %d out", v.VLAN, v.RxBytes, v.TxBytes)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("counters are %q, should be %q", got, want)
		}
	}
	count("10: rx 0, tx 0", "20: rx 0, tx 0")
	reach(t, l, a, bare, l.Frames(5, netlab.Broadcast, A), forms{b: bare, c: tag(10)})
	count("10: rx 5, tx 10", "20: rx 0, tx 0")
	reach(t, l, b, bare, l.Frames(20, A, B), forms{a: bare})
	count("10: rx 25, tx 30", "20: rx 0, tx 0")
	reach(t, l, c, tag(20), l.Frames(7, D, C), forms{d: bare})
	count("10: rx 25, tx 30", "20: rx 7, tx 7")
	reach(t, l, a, tag(20), l.Frames(7, D, A), nil) // not admitted
	count("10: rx 25, tx 30", "20: rx 7, tx 7")
	reach(t, l, d, bare, l.Frames(3, netlab.Broadcast, D), forms{c: tag(20)})
	// They stay when another setting is changed.
	l.Bascule("bridge", "set", "br0", "--ageing", "100s")
	l.Bascule("vlan", "add", "br0", b.Port, "20")
	count("10: rx 25, tx 30", "20: rx 10, tx 10")
	l.Bascule("bridge", "set", "br0", "--vlan-stats=off")
	l.Refused([]string{"--vlan-stats"}, "vlan", "show", "br0", "--stats")
}
