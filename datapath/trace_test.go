// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
)

// traceBridge makes a bridge with VLANs, a span port that gets copies of all,
// and much else.
func traceBridge(t *testing.T) (*shelf, *Bridge) {
	s := newShelf(t, 5)
	b := s.create("br0", 5, allXDP)
	vlans := new(VLANs)
	for _, vid := range []int{1, 10} {
		v := &vlans[vid]
		v.Fid, v.SpanIn, v.SpanOut = uint16(vid), 1, 1
		v.Member[0], v.Reach[0], v.Untagged[0] = 0b1110, 0b1110, 0b0100
	}
	s.do(func() error {
		next := b.Config
		p := Ports(&next)
		next.Flags = uint32(BridgeVLANs | BridgeVLANStats | BridgeTalkers)
		next.VlanProto, next.DefaultPvid = typeVLAN, 1
		next.GroupFwdMask = 0xf
		for i := range p {
			p[i].Pvid, p[i].SpanIn, p[i].SpanOut = 1, 1, 1
		}
		p[4].Facts |= PortSpan
		next.Spans[0] = uint16(Slot(p[4].Id))
		p[0].Flags |= PortHairpin
		p[1].Flags |= PortBlockNonIP
		p[1].Storm[StormBroadcast].Rate = 1
		return b.Commit(next, Tables{VLANs: vlans}, keepAll)
	})
	return s, b
}

// state is what no trace may change: tables, and what has left by devices.
func (s *shelf) state(b *Bridge) string {
	s.t.Helper()
	var text []string
	for _, p := range Ports(&b.Config) {
		stats, err := b.PortStats(p)
		if err != nil {
			s.t.Fatal(err)
		}
		text = append(text, fmt.Sprint(stats))
	}
	c, err := b.clock()
	if err != nil {
		s.t.Fatal(err)
	}
	usage, err := b.Usage()
	if err != nil {
		s.t.Fatal(err)
	}
	entries := []string{}
	if err := b.entries(func(k, w uint64) { entries = append(entries, fmt.Sprintf("%x %x", k, w)) }); err != nil {
		s.t.Fatal(err)
	}
	talkers, err := b.Talkers()
	if err != nil {
		s.t.Fatal(err)
	}
	slices.Sort(entries)
	text = append(text, fmt.Sprint(c.Events, usage[:b.Config.Slots], entries, talkers))
	err = s.rack.do(func() error {
		for _, ifindex := range slices.Concat(s.rack.near, s.rack.far) {
			l, err := netlink.LinkByIndex(int(ifindex))
			if err != nil {
				return err
			}
			n := l.Attrs().Statistics
			text = append(text, fmt.Sprintf("%s: %d received, %d sent, %d dropped", l.Attrs().Name, n.RxPackets, n.TxPackets, n.TxDropped+n.RxDropped))
		}
		return nil
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return strings.Join(text, "\n")
}

// Nothing comes of a trace, whatever the frame is and the bridge does.
func TestTraceWithoutEffect(t *testing.T) {
	s, b := traceBridge(t)
	before := s.state(b)
	actions := map[Action]int{}
	sizes := []int{0, etherHeader, 100, 1514, 1522}
	for i, dst := range []mac{broadcast, station(1), {3, 1}, {1, 0x80, 0xc2, 0, 0, 1}} {
		for j, tags := range [][]tag{nil, {{tpid: typeVLAN, vid: 10}}, {{tpid: typeVLAN, vid: 11}}, {{tpid: typeVLAN, vid: 10}, {tpid: typeVLAN, vid: 20}}} {
			in := (i + j) % 5
			p := packet{dst: dst, src: station(i + j), size: sizes[(i+2*j)%len(sizes)], tags: tags}
			var traced *Traced
			s.do(func() (err error) {
				traced, err = b.Trace(Ports(&b.Config)[in], p.bytes())
				return err
			})
			actions[traced.Action]++
			if after := s.state(b); after != before {
				t.Fatalf("port %d, %+v: before\n%s\nafter\n%s", in, p, before, after)
			}
		}
	}
	for _, a := range []Action{ActionDrop, ActionFlood} {
		if actions[a] == 0 {
			t.Errorf("no trace was of action %d", a)
		}
	}
}

// What a trace says of VLANs, tags and copies is what the tables say.
func TestTraceVLAN(t *testing.T) {
	s, b := traceBridge(t)
	p := Ports(&b.Config)
	trace := func(in int, f packet) *Traced {
		t.Helper()
		var traced *Traced
		s.do(func() (err error) {
			traced, err = b.Trace(p[in], f.bytes())
			return err
		})
		return traced
	}
	flood := packet{dst: mac{3, 1}, src: station(1)}
	got := trace(0, flood.tagged(10))
	var out []string
	for _, port := range got.Port[:got.Ports] {
		out = append(out, fmt.Sprintf("%d tag %#x %s", port.Slot, port.Tag, Reasons()[port.Reason]))
	}
	// slot 1 hairpins, 2 takes no tag and no such type, 3 is in the VLAN
	want := []string{"1 tag 0x100a ", "2 tag 0x0 non-ip", "3 tag 0x100a "}
	if !slices.Equal(out, want) || got.Action != ActionFlood || got.Vid != 10 || got.Vlan != 10 {
		t.Errorf("traced: action %d, VLAN %d of %d, out %q; want a flood in VLAN 10 to %q", got.Action, got.Vid, got.Vlan, out, want)
	}
	if got := trace(3, flood.tagged(10)); got.Action != ActionDrop || Reasons()[got.Reason] != "vlan" {
		t.Errorf("from a port that is not in the VLAN: action %d, reason %d", got.Action, got.Reason)
	}
	if got := trace(4, flood); got.Action != ActionDrop || Reasons()[got.Reason] != "span" {
		t.Errorf("from a span port: action %d, reason %d", got.Action, got.Reason)
	}
}

func TestTraceTooLarge(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	for _, size := range []int{etherHeader, 3500} {
		s.do(func() error {
			_, err := b.Trace(Ports(&b.Config)[0], packet{dst: broadcast, src: station(1), size: size}.bytes())
			return err
		})
	}
	for _, size := range []int{etherHeader - 1, 65535} {
		err := s.try(func() error {
			_, err := b.Trace(Ports(&b.Config)[0], make([]byte, size))
			return err
		})
		if err != TrialSizeError(size) {
			t.Errorf("%d bytes: %v", size, err)
		}
	}
}
