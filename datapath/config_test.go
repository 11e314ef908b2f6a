// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf/btf"
)

// lookUp finds a port as port_slot() does.
func lookUp(c *Config, ifindex uint32) uint32 {
	cell := ifindex * c.PortFactor >> portShift
	for i := range uint32(portProbes) {
		slot := uint32(c.PortCells[(cell+i)%uint32(len(c.PortCells))])
		if slot == 0 {
			return 0
		}
		if c.Ports[slot].Ifindex == ifindex {
			return slot
		}
	}
	return 0
}

// All ports of the largest bridge are found, and no other devices, for any distribution
// of their indexes.
func TestPortTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for name, ifindex := range map[string]func(i uint32) uint32{
		"sequential":           func(i uint32) uint32 { return 3 + i },
		"every second":         func(i uint32) uint32 { return 4 + 2*i },
		"high":                 func(i uint32) uint32 { return 1<<31 - 2000 + i },
		"a table's size apart": func(i uint32) uint32 { return 1 + i*cells },
		"two sizes apart":      func(i uint32) uint32 { return 1 + i*2*cells },
		"powers of two apart":  func(i uint32) uint32 { return 1 + i<<20 },
		"clusters":             func(i uint32) uint32 { return 1 + i/8 + i%8*cells },
		"sparse":               func(uint32) uint32 { return r.Uint32() >> 1 },
	} {
		t.Run(name, func(t *testing.T) {
			var c Config
			used := map[uint32]uint32{}
			for i := range uint32(MaxPorts) {
				p := NewPort(&c, "p")
				p.Ifindex = ifindex(i)
				for used[p.Ifindex] != 0 {
					p.Ifindex++
				}
				used[p.Ifindex] = Slot(p.Id)
			}
			if NewPort(&c, "one more") != nil {
				t.Error("a port more than there is room for")
			}
			specialise(&c)
			if c.Slots != uint32(MaxPorts)+1 {
				t.Errorf("%d slots, want %d", c.Slots, MaxPorts+1)
			}
			for index, slot := range used {
				if got := lookUp(&c, index); got != slot {
					t.Fatalf("index %d is in slot %d, found in %d", index, slot, got)
				}
				for _, other := range []uint32{index + 1, index - 1, index + cells, ^index} {
					if used[other] == 0 && lookUp(&c, other) != 0 {
						t.Fatalf("index %d is no port's, found in slot %d", other, lookUp(&c, other))
					}
				}
			}
		})
	}
}

// cells is PORT_TABLE.
const cells = uint32(len(Config{}.PortCells))

// The datapath finds the ports that Go has placed, also on a crowded bridge.
func TestPortTableInKernel(t *testing.T) {
	s := newBench(t, sharedCables, func(c *Config, p []*Port) {
		for n := uint32(1); len(Ports(c)) < MaxPorts; n++ {
			filler := NewPort(c, "filler") // without a device
			filler.Ifindex = p[0].Ifindex + n*cells
		}
	})
	for port := range sharedCables {
		s.run1(hookTCX, s.rack.near[port], from(port))
		if got := s.stats(port); got.RxFrames != 1 || got.Learned != 1 {
			t.Errorf("port %d received %d frames and learned %d addresses, want 1 and 1", port, got.RxFrames, got.Learned)
		}
	}
}

// A port whose device is gone keeps its index until it is deleted; a new device with
// the same index can be a port at the same time.
func TestPortTableSameIndex(t *testing.T) {
	for _, gone := range []int{1, portProbes - 1, portProbes, 2 * portProbes} {
		s := newBench(t, 2, func(c *Config, p []*Port) {
			for range gone {
				p := NewPort(c, "again")
				p.Ifindex, p.Flags = c.Ports[1].Ifindex, PortLearn|floods
			}
		})
		last := len(s.ids) - 1
		for port, id := range s.ids[:last] {
			if port != 1 {
				s.gone(Slot(id))
			}
		}
		what := fmt.Sprintf("after %d gone ports of its index", gone)
		expect(t, what, outcomeOf(s, s.rack.near[0], from(1)), sent(1))
		if n := s.stats(last).RxFrames; n != 1 {
			t.Errorf("%s: the port received %d frames, want 1", what, n)
		}
	}
}

// outcomeOf puts a frame to tcx and returns its outcome, without comparing slots.
func outcomeOf(s *bench, ifindex uint32, frame []byte) outcome {
	before := s.allStats()
	v := s.run1(hookTCX, ifindex, frame)
	o, _, err := compare(before, s.allStats(), uint64(len(frame)), 0)
	if err != nil {
		s.t.Fatal(err)
	}
	o.Verdict = v
	return o
}

// No port gets an id that another had before.
func TestNewPort(t *testing.T) {
	var c Config
	seen := map[uint32]bool{}
	var last uint32
	r := rand.New(rand.NewPCG(1, 1))
	for range 100000 {
		p := NewPort(&c, "p")
		if p == nil {
			for _, p := range Ports(&c) {
				if r.IntN(2) == 0 {
					*p = Port{}
				}
			}
			continue
		}
		switch {
		case seen[p.Id]:
			t.Fatalf("id %#x again", p.Id)
		case p.Id&fdbPinned != 0:
			t.Fatalf("id %#x has the flags of FDB entries", p.Id)
		case Slot(p.Id) == 0:
			t.Fatalf("id %#x is of slot 0, which stands for no port", p.Id)
		case Incarnation(p.Id) <= last:
			t.Fatalf("incarnation %d after %d", Incarnation(p.Id), last)
		case PortAt(&c, p.Id) != p:
			t.Fatalf("port %#x is not found", p.Id)
		}
		seen[p.Id], last = true, Incarnation(p.Id)
	}
	if PortAt(&c, 0) != nil {
		t.Error("id 0 is a port")
	}
}

func TestPortName(t *testing.T) {
	for _, name := range []string{"", "p", "eth0.100", "fifteen-letters", "ümläut", "\xff\x80"} {
		var c Config
		if got := PortName(NewPort(&c, name)); got != name {
			t.Errorf("name %q, want %q", got, name)
		}
	}
	var c Config
	if got := PortName(NewPort(&c, "sixteen-letters-")); got != "sixteen-letters" {
		t.Errorf("name %q, want it cut to 15 bytes", got)
	}
}

// The features that a configuration requires are on, and no others.
func TestFeatures(t *testing.T) {
	const (
		protected  = kernelFeatureFEATURE_PROTECTED
		hairpin    = kernelFeatureFEATURE_HAIRPIN
		noLearn    = kernelFeatureFEATURE_NO_LEARN
		floodFlags = kernelFeatureFEATURE_FLOOD_FLAGS
		groupFwd   = kernelFeatureFEATURE_GROUP_FWD
		peer       = kernelFeatureFEATURE_PEER
		xdpFlood   = kernelFeatureFEATURE_XDP_FLOOD
	)
	tests := []struct {
		name   string
		change func(c *Config, p []*Port)
		want   kernelFeature
	}{
		{"defaults", func(*Config, []*Port) {}, 0},
		{"group mask", func(c *Config, _ []*Port) { c.GroupFwdMask = 1 << 14 }, groupFwd},
		{"hairpin", func(_ *Config, p []*Port) { p[1].Flags |= PortHairpin }, hairpin},
		{"learn off", func(_ *Config, p []*Port) { p[1].Flags &^= PortLearn }, noLearn},
		{"discover off", func(_ *Config, p []*Port) { p[1].Flags &^= PortDiscover }, floodFlags},
		{"multicast off", func(_ *Config, p []*Port) { p[1].Flags &^= PortMcastFlood }, floodFlags},
		{"broadcast off", func(_ *Config, p []*Port) { p[1].Flags &^= PortBcastFlood }, floodFlags},
		{"one isolated", func(_ *Config, p []*Port) { p[1].Domains = 2 }, 0},
		{"domains apart", func(_ *Config, p []*Port) { p[0].Domains, p[1].Domains, p[2].Domains = 2, 4, 8 }, 0},
		{"two isolated", func(_ *Config, p []*Port) { p[0].Domains, p[2].Domains = 2, 2 }, protected},
		{"domains that meet", func(_ *Config, p []*Port) { p[0].Domains, p[2].Domains = 6, 12 }, protected},
		{"peer", func(_ *Config, p []*Port) { p[2].Peer = 2 }, peer},
		{"XDP", allXDP, xdpFlood},
		{"XDP on some", func(_ *Config, p []*Port) { onXDP(p[0]) }, 0},
		{"XDP and hairpin", func(c *Config, p []*Port) { allXDP(c, p); p[1].Flags |= PortHairpin }, hairpin},
		{"XDP and a flood flag off", func(c *Config, p []*Port) { allXDP(c, p); p[1].Flags &^= PortBcastFlood }, floodFlags},
		{"XDP and two isolated", func(c *Config, p []*Port) { allXDP(c, p); p[0].Domains, p[1].Domains = 2, 2 }, protected | xdpFlood},
		{"XDP and all isolated", func(c *Config, p []*Port) {
			allXDP(c, p)
			for _, p := range p {
				p.Domains = 2
			}
		}, protected},
	}
	r := &rack{near: []uint32{10, 11, 12}}
	for _, tt := range tests {
		c := newConfig(r, 3, tt.change)
		if got := kernelFeature(c.Features); got != tt.want {
			t.Errorf("%s: features %#x, want %#x", tt.name, got, tt.want)
		}
		// features that are no longer required go off again
		c.GroupFwdMask = 0
		for _, p := range Ports(&c) {
			p.Flags, p.Facts, p.Domains, p.Peer = PortLearn|floods, p.Facts&portXDPFlood, 0, 0
		}
		specialise(&c)
		if c.Features != 0 {
			t.Errorf("%s: features %#x after all was switched off", tt.name, c.Features)
		}
	}
}

// Every feature has a row with the settings that require it, or is in otherFeatures.
func TestAskings(t *testing.T) {
	rows := map[kernelFeature]int{}
	for _, a := range askings {
		rows[a.feature]++
		if a.bridge == nil && a.port == nil {
			t.Errorf("nothing asks for feature %#x", a.feature)
		}
	}
	for f := kernelFeature(1); f < kernelFeatureFEATURE_END; f <<= 1 {
		want := 1
		if f&otherFeatures != 0 {
			want = 0
		}
		if rows[f] != want {
			t.Errorf("feature %#x has %d rows in askings, want %d", f, rows[f], want)
		}
		delete(rows, f)
	}
	for f := range rows {
		t.Errorf("%#x in askings is no feature", f)
	}
}

// An FDB does not shrink here, and has room for three times its limit.
func TestBuckets(t *testing.T) {
	for _, maximum := range []uint32{1, 100, 65536, 4 << 20} {
		c := Config{kernelSettings: kernelSettings{FdbMax: maximum}}
		specialise(&c)
		if room := uint64(c.FdbBuckets) * fdbWays; room < 3*uint64(maximum) {
			t.Errorf("room for %d addresses, want three times %d", room, maximum)
		}
		before := c.FdbBuckets
		c.FdbMax = 1
		specialise(&c)
		if c.FdbBuckets != before {
			t.Errorf("%d buckets with a smaller maximum, had %d", c.FdbBuckets, before)
		}
	}
}

// The reasons have the names of the datapath's own constants.
func TestReasons(t *testing.T) {
	names := Reasons()
	if len(names) != int(kernelDropReasonDROP_REASONS) || names[0] != "" {
		t.Fatalf("%q, want %d names after an empty one", names, kernelDropReasonDROP_REASONS-1)
	}
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	var enum *btf.Enum
	if err := spec.Types.TypeByName("drop_reason", &enum); err != nil {
		t.Fatal(err)
	}
	for _, v := range enum.Values {
		if v.Name == "DROP_TAKEN" || v.Name == "DROP_REASONS" {
			continue
		}
		want := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(v.Name, "DROP_")), "_", "-")
		if got := names[v.Value]; got != want {
			t.Errorf("reason %d is %q, want %q", v.Value, got, want)
		}
	}
	for reason, want := range map[kernelDropReason]string{
		kernelDropReasonDROP_BAD_SOURCE: "bad-source",
		kernelDropReasonDROP_MTU:        "mtu",
	} {
		if names[reason] != want {
			t.Errorf("reason %d is %q, want %q", reason, names[reason], want)
		}
	}
	sorted := slices.Clone(names)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(names) {
		t.Errorf("%q: a name twice", names)
	}
	if n := len(Stats{}.Drops); n < len(names) {
		t.Errorf("room for %d reasons, want %d", n, len(names))
	}
}

// The constants that Go repeats have the datapath's values.
func TestConstants(t *testing.T) {
	if got := uint32(1) << slotBits; got != uint32(MaxPorts)+1 {
		t.Errorf("%d slots, want %d", got, MaxPorts+1)
	}
	if got := 1 << (32 - portShift); got != int(cells) {
		t.Errorf("a cell's number has %d values, want %d", got, cells)
	}
	if got := len(kernelFdbBucket{}.Way); got != fdbWays {
		t.Errorf("%d ways, want %d", got, fdbWays)
	}
	if got := unsafe.Sizeof(kernelFdbBucket{}); got != 64 {
		t.Errorf("a bucket has %d bytes, want one cache line", got)
	}
}

func TestKey(t *testing.T) {
	if got := key(mac{1, 2, 3, 4, 5, 6}, 0xabc); got != 0x0abc060504030201 {
		t.Errorf("key %#x", got)
	}
	for _, m := range []mac{{}, broadcast, station(0x123456)} {
		if got := macOf(key(m, 4094)); got != m {
			t.Errorf("address %x, want %x", got, m)
		}
	}
}

func TestEscape(t *testing.T) {
	names := []string{"br0", "eth0.100", "a.b.c", "%", "%2e", "%25", "%252e", "..", ".%.", "%2", "ü.%", fmt.Sprint("x", strings.Repeat(".", 14))}
	seen := map[string]string{}
	for _, name := range names {
		e := escape(name)
		if strings.Contains(e, ".") {
			t.Errorf("%q becomes %q, which the BPF file system does not take", name, e)
		}
		if got := unescape(e); got != name {
			t.Errorf("%q becomes %q and then %q", name, e, got)
		}
		if other, taken := seen[e]; taken {
			t.Errorf("%q and %q become %q", name, other, e)
		}
		seen[e] = name
	}
}

func FuzzEscape(f *testing.F) {
	f.Add("a.b%2ec%25")
	f.Fuzz(func(t *testing.T, name string) {
		if got := unescape(escape(name)); got != name {
			t.Errorf("%q became %q", name, got)
		}
	})
}

// Every bit of a port's flags and facts is tested for frames, and none of the port's
// other bits is.
func TestPortBits(t *testing.T) {
	files, err := filepath.Glob("../bpf/*.[hc]")
	parts, partsErr := filepath.Glob("../bpf/*/*.h")
	if err := errors.Join(err, partsErr); err != nil || len(files) == 0 || len(parts) == 0 {
		t.Fatalf("%q, %q, %v", files, parts, err)
	}
	files = append(files, parts...)
	var source strings.Builder
	for _, file := range files {
		if filepath.Base(file) == "types.h" { // which defines the bits
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		source.Write(text)
	}
	spec, err := loadKernel()
	if err != nil {
		t.Fatal(err)
	}
	for name, asked := range map[string]bool{
		"port_flag": true, "port_fact": true, "port_note": false, "port_taken": false, "stp_guard": false,
	} {
		var enum *btf.Enum
		if err := spec.Types.TypeByName(name, &enum); err != nil {
			t.Fatal(err)
		}
		for _, v := range enum.Values {
			if found := regexp.MustCompile(`\b` + v.Name + `\b`).MatchString(source.String()); found != asked {
				t.Errorf("%s of enum %s is in the datapath: %v, want %v", v.Name, name, found, asked)
			}
		}
	}
}

// Host ports in one VRF have one routing domain, which stays as long as one of them.
func TestDomains(t *testing.T) {
	var c Config
	var p []*Port
	for range 5 {
		p = append(p, NewPort(&c, "gw"))
	}
	apart := func(p *Port, table uint32) {
		p.Notes = PortApart
		SetHostTable(p, table)
	}
	want := func(what string, numbers ...uint16) {
		t.Helper()
		specialise(&c)
		var got []uint16
		for _, p := range p {
			got = append(got, p.Domain)
		}
		if !slices.Equal(got, numbers) {
			t.Errorf("%s: domains %v, want %v", what, got, numbers)
		}
	}
	want("no VRF", 0, 0, 0, 0, 0)
	apart(p[1], 10)
	apart(p[2], 20)
	apart(p[3], 10)
	apart(p[4], 0)
	own := uint16(Slot(p[4].Id))
	want("two VRFs", 0, firstDomain, firstDomain+1, firstDomain, own)
	apart(p[1], 30)
	want("one goes to a third", 0, firstDomain+2, firstDomain+1, firstDomain, own)
	p[2].Notes = 0
	SetHostTable(p[2], 0)
	apart(p[4], 10)
	apart(p[0], 40)
	want("others come and go", firstDomain+1, firstDomain+2, 0, firstDomain, firstDomain)
}
