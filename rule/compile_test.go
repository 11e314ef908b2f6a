// SPDX-License-Identifier: BSD-2-Clause

package rule

import (
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// lookup finds the rule of a frame with the datapath's method, or -1.
func lookup(lists []List, dir Direction, f Frame) int {
	key, entries := f.Key(), map[Key]uint32{} // entries of all lists, as in the datapath
	var masks []Mask
	for _, l := range lists {
		for k, rule := range l.Entries {
			entries[k] = rule
		}
		if l.Port == f.Port && l.Direction == dir {
			masks, key.List = l.Masks, l.Number
		}
	}
	best := uint32(math.MaxUint32)
	for _, m := range masks {
		if best < m.First {
			break
		}
		if m.NeedsARP && key.Kind == KindPlain {
			continue
		}
		if rule, ok := entries[key.and(m.Bits)]; ok {
			best = min(best, rule)
		}
	}
	if best == math.MaxUint32 {
		return -1
	}
	return int(best)
}

// Few addresses, so that rules often match frames. They include zeros, which must not be mistaken
// for fields that are not compared.
var (
	ports = []string{"em0", "em0", "em0", "em1"}
	macs  = []MAC{{}, {2, 0, 0, 0, 0, 1}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff}}
	ips   = []netip.Addr{netip.AddrFrom4([4]byte{}), netip.AddrFrom4([4]byte{192, 0, 2, 1})}
)

// rules generates lists of rules with few forms, so that masks have several entries.
func rules() *rapid.Generator[[]Rule] {
	return rapid.Custom(func(t *rapid.T) []Rule {
		forms := rapid.SliceOfN(rapid.IntRange(0, 1<<6-1), 1, 5).Draw(t, "forms")
		rule := rapid.Custom(func(t *rapid.T) Rule {
			form := rapid.SampledFrom(forms).Draw(t, "form")
			mac := func(name string, bit int) *MAC {
				if form>>bit&1 == 0 {
					return nil
				}
				m := rapid.SampledFrom(macs).Draw(t, name)
				return &m
			}
			ip := func(name string, bit int) netip.Addr {
				if form>>bit&1 == 0 {
					return netip.Addr{}
				}
				return rapid.SampledFrom(ips).Draw(t, name)
			}
			r := Rule{
				Action:    rapid.SampledFrom([]Action{Block, Pass}).Draw(t, "action"),
				Direction: rapid.SampledFrom([]Direction{In, Out, In | Out}).Draw(t, "direction"),
				Port:      rapid.SampledFrom(ports).Draw(t, "port"),
				Src:       mac("src", 0), Dst: mac("dst", 1),
				Tag: rapid.SampledFrom([]string{"", "", "a", "arp"}).Draw(t, "tag"),
				ARP: rapid.SampledFrom([]ARP{0, OnlyARP, OnlyARP, OnlyRARP}).Draw(t, "arp"),
			}
			if r.ARP != 0 {
				r.Op = Op(rapid.IntRange(0, 2).Draw(t, "operation"))
				r.SHA, r.SPA, r.THA, r.TPA = mac("sha", 2), ip("spa", 3), mac("tha", 4), ip("tpa", 5)
			}
			return r
		})
		return rapid.SliceOfN(rule, 0, 40).Draw(t, "rules")
	})
}

// frames generates frames that match rules of the list, or nearly do.
func frames(list []Rule) *rapid.Generator[Frame] {
	return rapid.Custom(func(t *rapid.T) Frame {
		mac, ip := rapid.SampledFrom(macs), rapid.SampledFrom(ips)
		f := Frame{
			Port: rapid.SampledFrom(ports).Draw(t, "port"),
			Src:  mac.Draw(t, "src"), Dst: mac.Draw(t, "dst"),
			Type: rapid.SampledFrom([]uint16{typeARP, typeARP, typeRARP, typeIPv4}).Draw(t, "type"),
		}
		a := &ARPFields{
			Hardware: 1, Protocol: typeIPv4, HLen: 6, PLen: 4, Op: rapid.Uint16Range(0, 5).Draw(t, "operation"),
			SHA: mac.Draw(t, "sha"), SPA: ip.Draw(t, "spa"), THA: mac.Draw(t, "tha"), TPA: ip.Draw(t, "tpa"),
		}
		for _, r := range rapid.SliceOfN(rapid.SampledFrom(append(list, Rule{Port: "em2"})), 0, 2).Draw(t, "as matched by") {
			f.Port = r.Port
			setMAC(&f.Src, r.Src)
			setMAC(&f.Dst, r.Dst)
			if r.ARP != 0 {
				f.Type = []uint16{OnlyARP: typeARP, OnlyRARP: typeRARP}[r.ARP]
				a.Op = []uint16{OnlyARP: opRequest, OnlyRARP: opRevRequest}[r.ARP]
			}
			if r.Op == Reply {
				a.Op++
			}
			setMAC(&a.SHA, r.SHA)
			setMAC(&a.THA, r.THA)
			setIP(&a.SPA, r.SPA)
			setIP(&a.TPA, r.TPA)
		}
		if f.Type == typeIPv4 {
			return f
		}
		switch rapid.IntRange(0, 20).Draw(t, "odd packet") {
		case 0:
			return f // too short
		case 1:
			a.Hardware = 6
		case 2:
			a.Protocol = 0x86dd
		case 3:
			a.HLen = 8
		case 4:
			a.PLen = 16
		}
		f.ARP = a
		return f
	})
}

func setMAC(field, value *MAC) {
	if value != nil {
		*field = *value
	}
}

func setIP(field *netip.Addr, value netip.Addr) {
	if value.IsValid() {
		*field = value
	}
}

func TestLookupIsMatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rules().Draw(t, "rules")
		lists := Compile(list)
		for _, f := range rapid.SliceOfN(frames(list), 50, 50).Draw(t, "frames") {
			for _, dir := range []Direction{In, Out} {
				if got, want := lookup(lists, dir, f), Match(list, dir, f); got != want {
					t.Fatalf("rule %d is found for %+v with %+v going %s, want %d of\n%s", got, f, f.ARP, dir, want, printed(list))
				}
			}
		}
	})
}

// TestLists checks the properties that make lookups in lists efficient.
func TestLists(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		list := rules().Draw(t, "rules")
		for i, l := range Compile(list) {
			if l.Number != uint32(i+1) {
				t.Errorf("list %d has number %d", i, l.Number)
			}
			found := map[Key]uint32{} // the first rule of the entries of each mask
			for k, n := range l.Entries {
				r := list[n]
				key, bits := r.key()
				key.List = l.Number
				if k != key || r.Port != l.Port || r.Direction&l.Direction == 0 {
					t.Errorf("%q is at %+v in the list of %s %s", r, k, l.Port, l.Direction)
				}
				if first, ok := found[bits]; !ok || n < first {
					found[bits] = n
				}
			}
			for _, m := range l.Masks {
				if first, ok := found[m.Bits]; !ok || first != m.First {
					t.Errorf("the first rule of %+v is %d, want %d (%v)", m.Bits, m.First, first, ok)
				}
				if arp := list[m.First].ARP != 0; m.NeedsARP != arp {
					t.Errorf("the mask of %q needs ARP: %v", list[m.First], m.NeedsARP)
				}
			}
			if len(found) != len(l.Masks) || !slices.IsSortedFunc(l.Masks, func(a, b Mask) int { return int(a.First) - int(b.First) }) {
				t.Errorf("masks %+v for entries of %d kinds", l.Masks, len(found))
			}
		}
	})
}

// TestForestalled checks that rules which can never match first are not entered.
func TestForestalled(t *testing.T) {
	tests := []struct {
		name    string
		rules   []string
		entered []uint32 // going in by em0
		masks   int
	}{
		{"none", nil, nil, 0},
		{"other direction", []string{"block out on em0"}, nil, 0},
		{"other port", []string{"block on em1"}, nil, 0},
		{"same", []string{"block on em0", "pass on em0"}, []uint32{0}, 1},
		{"after all", []string{"block on em0", "pass on em0 src 2:0:0:0:0:1", "pass on em0 arp request"}, []uint32{0}, 1},
		{"before all", []string{"pass on em0 src 2:0:0:0:0:1", "block on em0"}, []uint32{0, 1}, 2},
		{"a wider one", []string{"block on em0 arp", "pass on em0 arp reply spa 0.0.0.0", "pass on em0 rarp"}, []uint32{0, 2}, 1},
		{"another one", []string{"block on em0 src 2:0:0:0:0:1", "block on em0 src 0:0:0:0:0:0", "pass on em0 src 2:0:0:0:0:2 dst 2:0:0:0:0:1"}, []uint32{0, 1, 2}, 2},
		{"zero is no wildcard", []string{"block on em0 src 0:0:0:0:0:0", "pass on em0", "pass on em0 dst 0:0:0:0:0:0"}, []uint32{0, 1}, 2},
		{"only going out", []string{"block out on em0", "pass on em0", "pass in on em0"}, []uint32{1}, 1},
	}
	for _, test := range tests {
		var list []Rule
		for _, text := range test.rules {
			list = append(list, parsed(t, text))
		}
		var entered []uint32
		masks := 0
		for _, l := range Compile(list) {
			if l.Port == "em0" && l.Direction == In {
				for _, n := range l.Entries {
					entered = append(entered, n)
				}
				masks = len(l.Masks)
			}
		}
		slices.Sort(entered)
		if !slices.Equal(entered, test.entered) || masks != test.masks {
			t.Errorf("%s: rules %v by %d masks, want %v by %d", test.name, entered, masks, test.entered, test.masks)
		}
	}
}

// TestZeroAddresses checks that a rule about a zero address is not one about any address.
func TestZeroAddresses(t *testing.T) {
	a, ip := MAC{2, 0, 0, 0, 0, 1}, netip.AddrFrom4([4]byte{192, 0, 2, 1})
	f := Frame{Port: "em0", Src: a, Dst: a, Type: typeARP, ARP: &ARPFields{
		Hardware: 1, Protocol: typeIPv4, HLen: 6, PLen: 4, Op: 1, SHA: a, SPA: ip, THA: a, TPA: ip,
	}}
	const zero, none = "00:00:00:00:00:00", "0.0.0.0"
	for _, field := range []string{"src " + zero, "dst " + zero, "sha " + zero, "spa " + none, "tha " + zero, "tpa " + none} {
		list := []Rule{parsed(t, "block on em0 arp "+field), parsed(t, "pass on em0 arp")}
		if got := lookup(Compile(list), In, f); got != 1 {
			t.Errorf("rule %d is found, want 1 of\n%s", got, printed(list))
		}
	}
}

// TestMostMasks checks the limits of masks with rules of every possible form. Each rule has its own
// addresses, so that none shadows another.
func TestMostMasks(t *testing.T) {
	var list []Rule
	mac := func(on bool) *MAC {
		if !on {
			return nil
		}
		return &MAC{2, byte(len(list) >> 8), byte(len(list))}
	}
	ip := func(on bool) netip.Addr {
		if !on {
			return netip.Addr{}
		}
		return netip.AddrFrom4([4]byte{10, byte(len(list) >> 8), byte(len(list))})
	}
	for form := range 1 << 6 {
		on := func(bit int) bool { return form>>bit&1 != 0 }
		for arp := range OnlyRARP + 1 {
			for op := range Reply + 1 {
				r := Rule{Action: Block, Direction: In, Port: "em0", Src: mac(on(0)), Dst: mac(on(1)), ARP: arp}
				if arp != 0 {
					r.Op, r.SHA, r.SPA, r.THA, r.TPA = op, mac(on(2)), ip(on(3)), mac(on(4)), ip(on(5))
				}
				list = append(list, r)
			}
		}
	}
	// a rule that shadows another compares fewer fields, and is sorted after it
	slices.SortStableFunc(list, func(a, b Rule) int {
		return len(strings.Fields(b.String())) - len(strings.Fields(a.String()))
	})
	l := Compile(list)[0]
	arp := 0
	for _, m := range l.Masks {
		if m.NeedsARP {
			arp++
		}
	}
	if plain := len(l.Masks) - arp; plain != MaxPlainMasks || arp != MaxARPMasks {
		t.Errorf("%d and %d masks, want %d and %d", plain, arp, MaxPlainMasks, MaxARPMasks)
	}
}

// TestKeyLayout checks that a key can be used as raw memory: every byte belongs to a field.
func TestKeyLayout(t *testing.T) {
	fields := uintptr(0)
	for f := range reflect.TypeFor[Key]().Fields() {
		fields += f.Type.Size()
	}
	if size := unsafe.Sizeof(Key{}); size != fields || size != 48 {
		t.Errorf("a key has %d bytes, its fields %d, want 48", size, fields)
	}
}

func TestFrameKey(t *testing.T) {
	f := Frame{
		Port: "em0", Src: MAC{1, 2, 3, 4, 5, 6}, Dst: MAC{0xff, 0, 0, 0, 0, 1}, Type: typeARP,
		ARP: &ARPFields{
			Hardware: 1, Protocol: 0x0800, HLen: 6, PLen: 4, Op: 2,
			SHA: MAC{7}, SPA: netip.AddrFrom4([4]byte{192, 0, 2, 1}), THA: MAC{0, 8}, TPA: netip.AddrFrom4([4]byte{192, 0, 2, 2}),
		},
	}
	want := Key{
		Src: 0x060504030201, Dst: 0x0100000000ff, SHA: 7, THA: 0x800, SPA: 0x010200c0, TPA: 0x020200c0,
		Kind: KindARP | KindReply | KindPlain | KindResolves,
	}
	if diff := cmp.Diff(want, f.Key()); diff != "" {
		t.Errorf("key of an ARP reply (-want +got):\n%s", diff)
	}
	f.ARP.Op = 9
	want = Key{Src: want.Src, Dst: want.Dst, Kind: KindPlain}
	if diff := cmp.Diff(want, f.Key()); diff != "" {
		t.Errorf("key of an unknown operation (-want +got):\n%s", diff)
	}
}

// TestPrintedIsRead checks that a printed rule is parsed as the same rule.
func TestPrintedIsRead(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		for _, r := range rules().Draw(t, "rules") {
			sameWords(t, r)
		}
	})
}

func printed(list []Rule) (text string) {
	for i, r := range list {
		text += fmt.Sprintln(i, r)
	}
	return text
}
