// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"bascule/pf"

	"github.com/cilium/ebpf"
)

// enum pf_ether_flag
const (
	etherIn = 1 << iota
	etherOut
	etherQuick
	etherNotSrc
	etherNotDst
	etherNotL3Src
	etherNotL3Dst
	etherNotTagged
)

const (
	etherBlocks   = uint32(kernelDropReasonDROP_ETHER)
	etherFleeting = 1 << 8

	allOnes = 1<<48 - 1
)

// etherRules is a bridge with n ether rules and no other rules of pf.
func etherRules(n uint32) func(c *Config, p []*Port) {
	return func(c *Config, p []*Port) {
		allXDP(c, p)
		c.Flags |= uint32(BridgePF)
		c.Pf.Features = uint64(kernelFeatureFEATURE_ETHER | kernelFeatureFEATURE_PF_TABLES)
		c.Pf.Asks = uint16(kernelPfAskPF_ASK_ETHER_L3)
		c.Pf.EtherRules = n
	}
}

func prefixOf(s string) (p kernelPfPrefix) {
	n := netip.MustParsePrefix(s)
	p.Address = n.Addr().As16()
	p.Bits = uint32(n.Bits())
	if n.Addr().Is4() {
		p.Bits += 96
	}
	return p
}

// The frames that match each condition of a rule.
func TestPFEtherConditions(t *testing.T) {
	const block = kernelPfActionPF_BLOCK
	both := uint32(etherIn | etherOut)
	rule := func(flags uint32, change func(*kernelPfEther)) []kernelPfEther {
		r := kernelPfEther{Action: uint32(block), Flags: flags}
		change(&r)
		return []kernelPfEther{r}
	}
	nothing := func(*kernelPfEther) {}
	l3 := func(src, dst string) func(*kernelPfEther) {
		return func(r *kernelPfEther) {
			for i, s := range []string{src, dst} {
				if s != "" {
					p := prefixOf(s)
					r.L3[i].Bits, r.L3[i].Address = p.Bits, p.Address
				}
			}
		}
	}
	cases := readCases(t)
	ipv4, ipv6 := framed(cases[0].ip), framed(cases[1].ip)
	tagged := framed(cases[0].ip, tag{typeQinQ, 9, 0}, tag{typeVLAN, 10, 0})
	other := packet{dst: station(1), src: station(2)}.bytes()
	pass := func(change func(*kernelPfEther)) kernelPfEther {
		r := kernelPfEther{Flags: both}
		change(&r)
		return r
	}
	type answers struct{ in, out uint32 }
	yes, no := answers{etherBlocks, etherBlocks}, answers{}
	const dear = etherFleeting
	tests := []struct {
		name  string
		rules []kernelPfEther
		frame []byte
		want  answers
	}{
		{"no rule", []kernelPfEther{{}}, ipv4, no},
		{"all", rule(both, nothing), other, yes},
		{"in", rule(etherIn, nothing), ipv4, answers{etherBlocks, 0}},
		{"out", rule(etherOut, nothing), ipv4, answers{0, etherBlocks}},
		{"source", rule(both, func(r *kernelPfEther) { r.Src, r.SrcMask = key(station(2), 0), allOnes }), ipv4, yes},
		{"another source", rule(both, func(r *kernelPfEther) { r.Src, r.SrcMask = key(station(3), 0), allOnes }), ipv4, no},
		{"not another source", rule(both|etherNotSrc, func(r *kernelPfEther) { r.Src, r.SrcMask = key(station(3), 0), allOnes }), ipv4, yes},
		{"not the source", rule(both|etherNotSrc, func(r *kernelPfEther) { r.Src, r.SrcMask = key(station(2), 0), allOnes }), ipv4, no},
		{"masked source", rule(both, func(r *kernelPfEther) { r.Src, r.SrcMask = key(mac{2, 0xda}, 0), key(mac{0xff, 0xff}, 0) }), ipv4, yes},
		{"destination", rule(both, func(r *kernelPfEther) { r.Dst, r.DstMask = key(station(1), 0), allOnes }), ipv4, yes},
		{"not the destination", rule(both|etherNotDst, func(r *kernelPfEther) { r.Dst, r.DstMask = key(station(1), 0), allOnes }), ipv4, no},
		{"type", rule(both, func(r *kernelPfEther) { r.Type = swap16(0x0800) }), ipv4, answers{etherBlocks | dear, etherBlocks | dear}},
		{"type behind tags", rule(both, func(r *kernelPfEther) { r.Type = swap16(0x0800) }), tagged, answers{etherBlocks | dear, etherBlocks | dear}},
		{"another type", rule(both, func(r *kernelPfEther) { r.Type = swap16(0x0800) }), ipv6, answers{dear, dear}},
		{"type, from another", rule(both, func(r *kernelPfEther) {
			r.Type, r.Src, r.SrcMask = swap16(0x0800), key(station(3), 0), allOnes
		}), ipv4, no},
		{"port", rule(both, func(r *kernelPfEther) { r.Ports = 1 }), ipv4, yes},
		{"another port", rule(both, func(r *kernelPfEther) { r.Ports = 2 }), ipv4, no},
		{"l3 from", rule(both, l3("10.0.0.0/24", "")), ipv4, answers{etherBlocks | dear, etherBlocks | dear}},
		{"l3 from a host", rule(both, l3("10.0.0.1/32", "10.0.0.2/31")), tagged, answers{etherBlocks | dear, etherBlocks | dear}},
		{"l3 from another", rule(both, l3("10.0.0.2/32", "")), ipv4, answers{dear, dear}},
		{"l3 not from another", rule(both|etherNotL3Src, l3("10.0.0.2/32", "")), ipv4, answers{etherBlocks | dear, etherBlocks | dear}},
		{"l3 not to", rule(both|etherNotL3Dst, l3("", "10.0.0.2/32")), ipv4, answers{dear, dear}},
		{"l3 of IPv6", rule(both, l3("2001:db8::/32", "2001:db8::2/128")), ipv6, answers{etherBlocks | dear, etherBlocks | dear}},
		{"l3 of IPv6, another", rule(both, l3("2001:db8::2/127", "")), ipv6, answers{dear, dear}},
		{"l3 of IPv4, IPv6", rule(both, l3("0.0.0.0/0", "")), ipv6, answers{dear, dear}},
		{"l3 not to one of the other family", rule(both|etherNotL3Dst, l3("", "10.0.0.2/32")), ipv6, answers{etherBlocks | dear, etherBlocks | dear}},
		{"l3 not, no IP", rule(both|etherNotL3Src, l3("10.0.0.2/32", "")), other, answers{dear, dear}},
		{"table", rule(both, func(r *kernelPfEther) { r.Table[0] = 4 }), ipv4, answers{etherBlocks | dear, etherBlocks | dear}},
		{"another table", rule(both, func(r *kernelPfEther) { r.Table[0] = 3 }), ipv4, answers{dear, dear}},
		{"not in another table", rule(both|etherNotL3Dst, func(r *kernelPfEther) { r.Table[1] = 3 }), ipv4, answers{etherBlocks | dear, etherBlocks | dear}},
		{"the last counts", append(rule(both, nothing), pass(nothing)), ipv4, no},
		{"quick", append(rule(both|etherQuick, nothing), pass(nothing)), ipv4, yes},
		{"tagged by one before", append([]kernelPfEther{pass(func(r *kernelPfEther) { r.Tag = 9 })}, rule(both, func(r *kernelPfEther) { r.Tagged = 9 })...), ipv4, answers{etherBlocks | dear, etherBlocks | dear}},
		{"tagged by none", rule(both, func(r *kernelPfEther) { r.Tagged = 9 }), ipv4, answers{dear, dear}},
		{"not tagged", rule(both|etherNotTagged, func(r *kernelPfEther) { r.Tagged = 9 }), ipv4, answers{etherBlocks | dear, etherBlocks | dear}},
		{"tagged on the way in", append([]kernelPfEther{{Flags: etherIn, Tag: 9}}, rule(etherOut, func(r *kernelPfEther) { r.Tagged = 9 })...), ipv4, answers{dear, etherBlocks | dear}},
	}
	for _, tt := range tests {
		s := newBench(t, 3, etherRules(uint32(len(tt.rules))))
		putAll(s, kernelMapPfEthers, tt.rules...)
		prog := &pf.Program{Cells: make([]uint32, pf.Cells), Ports: [][16]uint64{{1 << 2}, {1 << 1}}}
		m := s.gen.coll.Maps[kernelMapPfWords]
		words, err := ebpf.NewMap(&ebpf.MapSpec{
			Name: kernelMapPfWords, Type: m.Type(), KeySize: 4, ValueSize: m.ValueSize(), Flags: m.Flags(),
			MaxEntries: uint32(prog.SetsAt()),
		})
		if err != nil {
			t.Fatal(err)
		}
		m.Close()
		s.gen.coll.Maps[kernelMapPfWords] = words
		if err := storeWords(words, prog); err != nil {
			t.Fatal(err)
		}
		host := prefixOf("10.0.0.1/32").Address
		if err := s.gen.coll.Maps[kernelMapPfHosts].Put(host, kernelPfHost{Match: 1 << 3}); err != nil {
			t.Fatal(err)
		}
		in := s.probe("pf_ether_skb", tag{}, 2, 0, 0)
		got := answers{in.call(tt.frame), s.probe("pf_ether_skb", tag{}, 2, 1, 0).call(tt.frame)}
		if got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, got, tt.want)
		}
		if tt.name == "tagged on the way in" && s.packet().EtherTag[0] != 9 {
			t.Errorf("%s: the packet's tag is %v, want 9", tt.name, s.packet().EtherTag)
		}
	}
}

// Both hooks follow the rules, with the same frames again and with others.
func TestPFEther(t *testing.T) {
	s := newBench(t, 3, etherRules(3))
	putAll(s, kernelMapPfEthers,
		kernelPfEther{Action: 1, Flags: etherIn, Src: key(station(2), 0), SrcMask: allOnes, Type: swap16(0x86dd)},
		kernelPfEther{Action: 1, Flags: etherIn, Src: key(station(3), 0), SrcMask: allOnes},
		kernelPfEther{Action: 1, Flags: etherOut, Src: key(station(4), 0), SrcMask: allOnes, Dst: key(station(1), 0), DstMask: allOnes},
	)
	s.learn(1, 1)
	s.learn(0, 2, 4)
	cases := readCases(t)
	from := func(n int, ip []byte) []byte {
		f := framed(ip)
		m := station(n)
		copy(f[6:], m[:])
		return f
	}
	for i := range 3 {
		again := fmt.Sprintf(", time %d", i)
		s.expectBoth("IPv4 of one whose IPv6 is blocked"+again, 0, from(2, cases[0].ip), sent(1))
		s.expectBoth("IPv6"+again, 0, from(2, cases[1].ip), dropped("ether"))
		s.expectBoth("one that is blocked"+again, 0, from(3, cases[0].ip), dropped("ether"))
		s.expectBoth("on the way out"+again, 0, from(4, cases[0].ip), dropped("ether"))
	}
	if n := len(s.fdb()); n != 3 {
		t.Errorf("%d addresses are known, want 3: a frame that is blocked teaches none", n)
	}
}

// A type matches the packet's type, or the type of a tag in front of it: wherever the tag
// is, behind other tags or in the packet's metadata, and at both hooks.
func TestPFEtherTags(t *testing.T) {
	tagOf := func(typ uint16) tag { return tag{typ, 0, 0} }
	ip := readCases(t)[0].ip
	types := []uint16{0x0800, typeVLAN, typeQinQ, 0x9100, 0x9200, 0x86dd}
	tests := [][]tag{
		{},
		{tagOf(typeVLAN)},
		{tagOf(typeQinQ)},
		{tagOf(0x9100)},
		{tagOf(0x9200)},
		{tagOf(typeVLAN), tagOf(typeVLAN)},
		{tagOf(typeQinQ), tagOf(typeVLAN)},
		{tagOf(typeVLAN), tagOf(0x9100)},
		{tagOf(0x9100), tagOf(typeQinQ)},
		{tagOf(typeVLAN), tagOf(0x9200), tagOf(typeQinQ)},
	}
	for _, typ := range types {
		s := newBench(t, 3, etherRules(1))
		putAll(s, kernelMapPfEthers, kernelPfEther{Action: 1, Flags: etherIn, Type: swap16(typ)})
		s.learn(1, 1)
		for _, tags := range tests {
			want, beside := sent(1), uint32(0)
			for _, tg := range append(slices.Clone(tags), tag{tpid: 0x0800}) {
				if tg.tpid == typ {
					want, beside = dropped("ether"), etherBlocks
				}
			}
			name := fmt.Sprintf("a rule on %#04x, a frame with %v", typ, tags)
			s.expectBoth(name, 0, framed(ip, tags...), want)
			if len(tags) == 0 || tags[0].tpid != typeVLAN && tags[0].tpid != typeQinQ {
				continue // the kernel puts no other tag into the metadata
			}
			got := s.probe("pf_ether_skb", tags[0], 2, 0, 0).call(framed(ip, tags[1:]...))
			if got != beside|etherFleeting {
				t.Errorf("%s, the first one beside the packet: %#x, want %#x", name, got, beside|etherFleeting)
			}
		}
	}
}

// Rules on the way out match the tags with which a frame came in, although a flood adds and
// removes tags from port to port.
func TestPFEtherTagsOut(t *testing.T) {
	members := []membership{trunk(10), access(10), trunk(10), access(10), access(10)}
	s := newVLANBench(t, members, etherRules(1))
	everyone := mac{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	putAll(s, kernelMapPfEthers, kernelPfEther{Action: 1, Flags: etherOut, Type: swap16(typeVLAN)})
	s.expectBoth("a flood that came with a tag", 0, tagged(everyone, station(1), vid(10)), dropped("ether", "ether", "ether", "ether"))
	s.expectBoth("a flood that came without", 4, tagged(everyone, station(2)), sent(0, 1, 2, 3))
}
