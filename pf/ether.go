// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
)

// etherSpec is an ether rule before its lists are expanded.
type etherSpec struct {
	rule         EtherRule
	on           []Interface
	protos       []uint16
	from, to     []EtherHost
	l3From, l3To []host

	tag, tagged, id bool // whether they were given
}

// maxEtherLabels is the largest number of labels of a rule in FreeBSD.
const maxEtherLabels = 5

// ether parses a rule for frames, as in FreeBSD's pf.conf(5).
func (p *parser) ether(first token) {
	if p.anchors > 0 {
		p.failf(first.pos, "ether: rules for frames are of the whole ruleset; they cannot be in an anchor")
	}
	s := etherSpec{rule: EtherRule{Pos: first.pos}}
	r := &s.rule
	switch {
	case p.accept("pass"):
	case p.accept("block"):
		r.Action = Block
		p.accept("drop")
	case p.at("anchor"):
		p.failf(p.tok.pos, "ether anchor: rules for frames cannot be in an anchor")
	default:
		p.expected("`pass` or `block`")
	}
	p.direction(&r.Direction)
	r.Quick = p.accept("quick")
	if p.accept("on") {
		s.on = p.interfaces(nil, wordOn)
	}
	if p.accept("proto") {
		p.list(func() { s.protos = append(s.protos, p.etherType()) })
	}
	if !p.accept("all") {
		if p.accept("from") {
			s.from = p.etherHosts()
		}
		if p.accept("to") {
			s.to = p.etherHosts()
		}
	}
	if p.accept("l3") && !p.accept("all") {
		if p.accept("from") {
			s.l3From = p.l3Hosts()
		}
		if p.accept("to") {
			s.l3To = p.l3Hosts()
		}
	}
	p.etherOptions(&s)
	p.expandEther(&s)
}

// etherType reads an EtherType; 0 means any. Smaller numbers are lengths in a
// frame (802.3 3.2.6). The datapath looks behind lengths, so a rule about one
// would match nothing.
func (p *parser) etherType() uint16 {
	const lowest = 0x0600
	pos := p.tok.pos
	n := p.anyNumber("an EtherType such as 0x0800", math.MaxUint16)
	if n > 0 && n < lowest {
		p.failf(pos, "0x%04x is a length, and no EtherType; give 0x%04x or more", n, lowest)
	}
	return uint16(n)
}

// etherOptions reads the options that follow the addresses.
func (p *parser) etherOptions(s *etherSpec) {
	once := func(given *bool, name string) {
		if *given {
			p.errorf(p.tok.pos, "%s cannot be redefined", name)
		}
		*given = true
		p.next()
	}
	mark := func() string {
		p.tags = p.tok.pos
		return p.short("tag", "tag", maxTag)
	}
	r := &s.rule
	for !p.ends() {
		not := p.acceptOp("!")
		switch {
		case p.at("tagged"):
			once(&s.tagged, "tagged")
			r.Tagged, r.NotTagged = mark(), not
		case not:
			p.expected("`tagged`")
		case p.at("tag"):
			once(&s.tag, "tag")
			r.Tag = mark()
		case p.at("label"):
			if p.next(); len(r.Labels) == maxEtherLabels {
				p.failf(p.tok.pos, "a rule for frames may have %d labels at most", maxEtherLabels)
			}
			r.Labels = append(r.Labels, p.short("label", "rule label", maxLabel))
		case p.at("ridentifier"):
			once(&s.id, "ridentifier")
			r.ID = uint32(p.number("a number", math.MaxUint32))
		case outside[p.tok.text] != "" && p.tok.kind == tokWord:
			p.outside(p.tok.text)
		default:
			p.expected("`tag`, `tagged`, `label` or `ridentifier`")
		}
	}
}

// etherHosts reads MAC addresses; none means any.
func (p *parser) etherHosts() []EtherHost {
	var hosts []EtherHost
	anywhere := false
	p.list(func() {
		if p.accept("any") {
			anywhere = true
			return
		}
		not := p.acceptOp("!")
		h := p.etherHost()
		h.Not = not
		hosts = append(hosts, h)
	})
	if anywhere {
		return nil
	}
	return hosts
}

// etherHost reads a MAC address, with `/bits`, `& mask` or neither.
func (p *parser) etherHost() EtherHost {
	const aMAC = "a MAC address such as 02:00:00:00:00:01"
	mac := func(pos Pos, text string) [6]byte {
		addr, ok := parseMAC(text)
		if !ok {
			p.failf(pos, "invalid ethernet address `%s`; expected %s", shorten(text), aMAC)
		}
		return addr
	}
	pos := p.tok.pos
	text, mask, masked := strings.Cut(p.name(aMAC), "&")
	h := EtherHost{MAC: mac(pos, text), Mask: [6]byte{255, 255, 255, 255, 255, 255}}
	switch {
	case masked && mask != "":
		h.Mask = mac(pos, mask)
	case masked || p.acceptOp("&"):
		pos := p.tok.pos
		h.Mask = mac(pos, p.name("a mask of six bytes"))
	case p.acceptOp("/"):
		n := p.number("a number of bits", 48)
		for i := range h.Mask {
			h.Mask[i] = byte(uint(0xff00) >> min(max(n-int64(i)*8, 0), 8))
		}
	}
	for i := range h.MAC {
		h.MAC[i] &= h.Mask[i]
	}
	return h
}

// parseMAC parses six bytes. As in FreeBSD, each has one digit or two.
func parseMAC(text string) (mac [6]byte, ok bool) {
	if addr, err := net.ParseMAC(text); err == nil && len(addr) == len(mac) {
		return [6]byte(addr), true
	}
	digits := strings.Split(text, ":")
	if len(digits) != len(mac) {
		return mac, false
	}
	for i, d := range digits {
		n, err := strconv.ParseUint(d, 16, 8)
		if err != nil || len(d) > 2 {
			return mac, false
		}
		mac[i] = byte(n)
	}
	return mac, true
}

// l3Hosts reads the IP addresses of an ether rule.
func (p *parser) l3Hosts() []host {
	pos := p.tok.pos
	hosts := p.hosts(nil)
	for i := range hosts {
		switch hosts[i].Kind {
		case Prefix, InTable:
		default:
			p.failf(hosts[i].pos, "an ether rule takes addresses, networks and tables only")
		}
	}
	if p.at("port") {
		p.failf(pos, "port: an ether rule has none; use a rule without ether")
	}
	return hosts
}

// expandEther adds a rule for each combination of the items of the lists.
func (p *parser) expandEther(s *etherSpec) {
	p.reserve(combinations(maxRules, len(s.on), len(s.protos), len(s.from), len(s.to), len(s.l3From), len(s.l3To)), s.rule.Pos)
	var (
		anyInterface [1]Interface
		anyProto     [1]uint16
		anyMAC       [1]EtherHost
		anyHost      [1]host
	)
	added := false
	r := s.rule
	for _, r.On = range orOne(s.on, &anyInterface) {
		for _, r.Proto = range orOne(s.protos, &anyProto) {
			r.HasProto = len(s.protos) > 0
			for _, r.From = range orOne(s.from, &anyMAC) {
				for _, r.To = range orOne(s.to, &anyMAC) {
					for _, from := range orOne(s.l3From, &anyHost) {
						for _, to := range orOne(s.l3To, &anyHost) {
							if a, b := from.family(), to.family(); a != 0 && b != 0 && a != b {
								continue
							}
							r.L3From, r.L3FromNot = from.Host, from.not
							r.L3To, r.L3ToNot = to.Host, to.not
							numbered := r
							numbered.Labels = slices.Clone(r.Labels)
							for i := range numbered.Labels {
								numbered.Labels[i] = strings.ReplaceAll(numbered.Labels[i], "$nr", strconv.Itoa(len(p.set.Ether)))
							}
							p.set.Ether = append(p.set.Ether, numbered)
							added = true
						}
					}
				}
			}
		}
	}
	if !added {
		p.errorf(s.rule.Pos, "rule expands to no valid combination; its address families do not fit together")
	}
}
