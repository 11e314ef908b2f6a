// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"errors"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// host is a Host in a list.
type host struct {
	Host
	not  bool
	zone string // the interface of a link-local address
	by   string // the interface to a next hop, if it is given
	pos  Pos
}

// family returns the family of the host's address, 0 if it has none.
func (h *host) family() Family {
	switch {
	case h.Kind != Prefix && h.Kind != Range:
		return 0
	case h.Addr.Is4():
		return Inet
	}
	return Inet6
}

// hostModes are the modifiers of interfaces as addresses, in their order. All but the
// last exclude each other.
var hostModes = []string{"network", "broadcast", "peer", "0"}

// hosts appends the hosts behind from or to: any, a host or a list. No host means any.
// As in pf, a list that contains any means any.
func (p *parser) hosts(to []host) []host { return p.hostsEach(to, func() {}) }

// hostsEach does the same, and calls behind after each host, for words that may follow
// it.
func (p *parser) hostsEach(to []host, behind func()) []host {
	begin, depth, anywhere := len(to), 0, false
	var item func()
	item = func() {
		pos := p.tok.pos
		switch {
		case p.atOp("{"):
			if depth++; depth > maxNested {
				p.limitf(pos, bail{}, "lists may be in each other %d deep", maxNested)
			}
			p.list(item)
			depth--
		case p.accept("any"):
			anywhere = true
		default:
			if to = p.host(to); len(to)-begin > maxList {
				p.limitf(pos, bail{}, "a list may have %d items at most; use a table", maxList)
			}
			behind()
		}
	}
	item()
	if anywhere {
		to = to[:begin]
	}
	return to
}

// aHost is the text of errors for the forms of a host.
const aHost = "an address, a table, a list or `any`"

// host appends a host. A name may have several addresses.
func (p *parser) host(to []host) []host {
	pos, not, begin := p.tok.pos, false, len(to)
	if p.acceptOp("!") {
		not = true
		if p.at("any") {
			p.failf(p.tok.pos, "`! any` is nothing; expected an address or a table")
		}
	}
	switch {
	case p.atOp("<"):
		to = append(to, host{Host: Host{Kind: InTable, Name: p.tableName()}})
	case p.accept("no-route"):
		to = append(to, host{Host: Host{Kind: NoRoute}})
	case p.accept("urpf-failed"):
		to = append(to, host{Host: Host{Kind: URPFFailed}})
	case p.atOp("("):
		to = append(to, p.dynamic())
	case p.at("route"):
		p.errorf(pos, "route: %s", outside["route"])
		p.next()
		p.name("a label")
		to = append(to, host{})
	case p.tok.kind == tokNumber || p.isName():
		to = p.address(to)
	default:
		p.expected(aHost)
	}
	for i := begin; i < len(to); i++ {
		to[i].not, to[i].pos = not, pos
	}
	return to
}

// dynamic reads `(if:modifiers)`, with or without a mask.
func (p *parser) dynamic() host {
	p.op("(")
	pos := p.tok.pos
	name, modes, err := splitModes(p.name("the name of an interface"))
	if err == nil && (name == "" || !wordStart[name[0]] || '0' <= name[0] && name[0] <= '9' || name[0] == '_') {
		err = errors.New("invalid interface name '" + shorten(name) + "'")
	}
	if err == nil && len(name) > maxInterface {
		err = errors.New("interface name '" + shorten(name) + "' too long")
	}
	if err != nil {
		p.failf(pos, "%v", err)
	}
	p.op(")")
	p.named(pos, Addresses, name)
	h := host{Host: Host{Kind: Dynamic, Name: name, Modes: modes, Bits: -1}}
	if p.acceptOp("/") {
		h.Bits = int(p.number("a number of bits", 128))
	}
	return h
}

// splitModes splits the modifiers from the name of an interface.
func splitModes(text string) (name string, modes []string, err error) {
	var has [4]bool
	for name = text; ; {
		i := strings.LastIndexByte(name, ':')
		if i < 0 {
			break
		}
		mode := slices.Index(hostModes, name[i+1:])
		if mode < 0 {
			return "", nil, errors.New("interface " + shorten(text) + " has bad modifier; there are :network, :broadcast, :peer and :0")
		}
		has[mode], name = true, name[:i]
	}
	for i, mode := range hostModes {
		if has[i] {
			modes = append(modes, mode)
		}
	}
	if n := len(modes); n > 1 && (n > 2 || !has[3]) {
		return "", nil, errors.New("illegal combination of interface modifiers")
	}
	return name, modes, nil
}

// meantAsAddress reports whether an invalid text looks more like an IPv6 address than
// like an interface with modifiers.
func meantAsAddress(text string) bool {
	first, rest, _ := strings.Cut(text, ":")
	return strings.Contains(text, "::") || strings.Contains(rest, ":") && strings.Trim(first, "0123456789abcdefABCDEF") == ""
}

// address appends an address, a network, a range, or the addresses of a name.
func (p *parser) address(to []host) []host {
	pos, text, short := p.tok.pos, p.tok.text, p.tok.kind == tokNumber
	p.next()
	bits := -1
	switch {
	case p.acceptOp("/"):
		bits = int(p.number("a number of bits", 128))
	case p.atOp("-"):
		return append(to, p.rangeFrom(pos, text))
	case short:
		p.failf(pos, "expected %s, found `%s`", aHost, text)
	}
	to, err := p.resolve(to, text, bits)
	if without := (noAddresses{}); errors.As(err, &without) && !p.inTable {
		p.failf(pos, "%v; (%s) follows the addresses that it gets", err, cut(text, maxHost))
	}
	if err != nil {
		p.failf(pos, "%v", err)
	}
	return to
}

// noAddresses is the error for an interface that has no addresses now.
type noAddresses struct{ error }

// rangeFrom reads the rest of a range.
func (p *parser) rangeFrom(pos Pos, first string) host {
	p.op("-")
	from, err := netip.ParseAddr(first)
	if err != nil {
		p.failf(pos, "invalid address range: `%s` is not an address", shorten(first))
	}
	pos = p.tok.pos
	if p.tok.kind != tokWord && p.tok.kind != tokString {
		p.expected("the last address of the range")
	}
	last, err := netip.ParseAddr(p.tok.text)
	if err != nil {
		p.failf(pos, "invalid address range: `%s` is not an address", shorten(p.tok.text))
	}
	p.next()
	if from.Is4() != last.Is4() || from.Zone() != "" || last.Zone() != "" || last.Less(from) {
		p.failf(pos, "invalid address range: its last address is below its first, or of another family")
	}
	return host{Host: Host{Kind: Range, Addr: from, Last: last}}
}

// resolve appends the addresses of a name, under a mask of this many bits, or without
// one if bits is negative.
func (p *parser) resolve(to []host, text string, bits int) ([]host, error) {
	if text == "" {
		return to, errors.New("expected " + aHost + `, found ""`)
	}
	addr, err := netip.ParseAddr(text)
	if err != nil && bits >= 0 && bits <= 32 {
		addr, err = shortAddr(text)
	}
	if err == nil {
		zone := addr.Zone()
		if len(zone) > maxInterface {
			return to, errors.New("interface name '" + shorten(zone) + "' too long, max " + strconv.Itoa(maxInterface) + " chars")
		}
		prefix, err := mask(addr.WithZone(""), bits)
		return append(to, host{Host: Host{Kind: Prefix, Addr: prefix.Addr(), Bits: prefix.Bits()}, zone: zone}), err
	}
	if strings.Trim(text, "0123456789./") == "" {
		return to, errors.New("`" + shorten(text) + "` is not an address")
	}
	name, modes, err := splitModes(text)
	if err != nil {
		if meantAsAddress(text) {
			err = errors.New("`" + shorten(text) + "` is not an address")
		}
		return to, err
	}
	has := func(mode string) bool { return slices.Contains(modes, mode) }
	switch _, err := netip.ParseAddr(name); {
	case err == nil && !slices.Equal(modes, []string{"0"}):
		return to, errors.New("`" + shorten(name) + "` is an address, and only an interface has :" + modes[0])
	case bits >= 0 && (has("network") || has("broadcast")):
		return to, errors.New("`" + shorten(text) + "` has a netmask; leave the extra netmask out")
	}
	if name == "" || p.source.Lookup == nil {
		return to, errors.New("`" + shorten(text) + "` is not an address, and names are not looked up here")
	}
	prefixes, err := p.source.Lookup(name, modes)
	none := err == nil && len(prefixes) == 0
	if none {
		err = errors.New("it has no address")
	}
	if err != nil {
		why := strings.ReplaceAll(err.Error(), name, cut(name, maxHost)) // resolvers repeat the name
		err = errors.New("could not parse host specification `" + cut(text, maxHost) + "`: " + why)
		if none || len(modes) > 0 { // only interfaces have modifiers
			err = noAddresses{err}
		}
		return to, err
	}
	for _, prefix := range prefixes {
		if bits >= 0 { // a name has addresses of both families: a mask of more than 32 bits is for IPv6 only
			prefix = netip.PrefixFrom(prefix.Addr(), min(bits, prefix.Addr().BitLen()))
		}
		zone := prefix.Addr().Zone()
		prefix = netip.PrefixFrom(prefix.Addr().WithZone(""), prefix.Bits()).Masked()
		to = append(to, host{Host: Host{Kind: Prefix, Addr: prefix.Addr(), Bits: prefix.Bits()}, zone: zone})
	}
	return to, nil
}

// ParsePrefix parses an address or a network. An IPv4 network may lack its last zeros:
// 10/8.
func ParsePrefix(text string) (netip.Prefix, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		return addr.WithZone("").Prefix(addr.BitLen())
	}
	host, length, found := strings.Cut(text, "/")
	if addr, err := shortAddr(host); found && err == nil {
		if bits, err := strconv.ParseUint(length, 10, 8); err == nil {
			return addr.Prefix(int(bits))
		}
	}
	prefix, err := netip.ParsePrefix(text)
	return prefix.Masked(), err
}

// shortAddr parses an IPv4 address that lacks its last zeros, as in 10/8.
func shortAddr(text string) (netip.Addr, error) {
	if strings.Count(text, ".") > 3 {
		return netip.Addr{}, errors.New("too many bytes")
	}
	var a [4]byte
	for i, part := range strings.Split(text, ".") {
		n, err := strconv.ParseUint(part, 10, 8)
		if err != nil {
			return netip.Addr{}, err
		}
		a[i] = byte(n)
	}
	return netip.AddrFrom4(a), nil
}

// mask returns the network of an address, or the address alone.
func mask(addr netip.Addr, bits int) (netip.Prefix, error) {
	if bits < 0 {
		bits = addr.BitLen()
	}
	prefix, err := addr.Prefix(bits)
	if err != nil {
		return netip.PrefixFrom(addr, addr.BitLen()), errors.New("netmask " + strconv.Itoa(bits) +
			" invalid for IPv4 address")
	}
	return prefix, nil
}

// table reads the definition of a table.
func (p *parser) table(first token) {
	t := Table{Pos: first.pos, Name: p.tableName()}
	defer func() { p.inTable = false }() // also after an error in the statement
	for !p.ends() {
		switch {
		case p.accept("const"):
			t.Const = true
		case p.accept("persist"):
			t.Persist = true
		case p.accept("counters"):
			t.Counters = true
		case p.accept("file"):
			filePos := p.tok.pos
			name := p.name("the name of a file in quotes")
			t.Files, t.Given = append(t.Files, name), true
			p.tableFile(&t, filePos, name)
		case p.atOp("{"):
			t.Given, p.inTable = true, true
			p.tableList(&t)
		default:
			p.expected("`persist`, `const`, `counters`, `file` or a list of addresses")
		}
	}
	p.set.Tables = append(p.set.Tables, t)
}

// tableList reads the addresses of a table between braces.
func (p *parser) tableList(t *Table) {
	// Unlike other lists, this one may be empty.
	p.next()
	p.newlines()
	var hosts []host
	if !p.atOp("}") {
		for p.tok.kind != tokEOF {
			hosts = p.hostsEach(hosts, p.weight)
			if len(hosts) > maxList {
				p.limitf(p.tok.pos, bail{}, "a list may have %d items at most; put them into a file", maxList)
			}
			p.newlines()
			if p.atOp("}") {
				break
			}
			if p.acceptOp(",") {
				p.newlines()
			}
		}
	}
	p.op("}")
	for i := range hosts {
		h := &hosts[i]
		switch h.Kind {
		case Prefix:
			t.Entries = append(t.Entries, TableEntry{Not: h.not, Prefix: netip.PrefixFrom(h.Addr, h.Bits)})
		case Range:
			p.errorf(h.pos, "address ranges are not permitted inside tables")
		case Dynamic:
			p.errorf(h.pos, "dynamic addresses are not permitted inside tables")
		case InTable:
			p.errorf(h.pos, "tables cannot contain tables")
		case NoRoute:
			p.errorf(h.pos, "\"no-route\" is not permitted inside tables")
		case URPFFailed:
			p.errorf(h.pos, "\"urpf-failed\" is not permitted inside tables")
		}
	}
}

// weight skips the weight of an address, which only route-to may have.
func (p *parser) weight() {
	if !p.accept("weight") {
		return
	}
	pos := p.tok.pos
	if n := p.number("a weight", maxWeight); n == 0 {
		p.errorf(pos, noWeight)
	}
}

const (
	maxHost   = 64 // bytes of a host's name in an error
	maxWeight = math.MaxUint16
	noWeight  = "weight out of range; give 1 to 65535"
)

// tableFile reads the addresses of a table from a file.
func (p *parser) tableFile(t *Table, pos Pos, name string) {
	text, err := p.open(name)
	if err != nil {
		p.errorf(pos, "cannot load \"%s\": %v", shorten(name), err)
		return
	}
	p.spend(len(text), pos)
	line, weighed := 0, false // whether the next word is a weight
	for data := range strings.Lines(text) {
		line++
		if i := strings.IndexAny(data, "#;"); i >= 0 {
			data = data[:i]
		}
		at := 0
		for field := range strings.FieldsSeq(data) {
			at += strings.Index(data[at:], field)
			var err error
			switch {
			case weighed:
				var n uint64
				if n, err = strconv.ParseUint(field, 10, 16); err != nil || n == 0 {
					err = errors.New(noWeight)
				}
				weighed = false
			case field == "weight":
				weighed = true
			default:
				t.Entries, err = p.tableEntry(t.Entries, field)
			}
			if err != nil {
				if p.texts[name] == "" {
					p.texts[name] = text
				}
				p.errorf(Pos{name, line, at + 1}, "%v", err)
			}
			at += len(field)
		}
	}
}

// tableEntry appends the entries of a word of a table's file.
func (p *parser) tableEntry(to []TableEntry, field string) ([]TableEntry, error) {
	text := strings.TrimLeft(field, "!")
	not := (len(field)-len(text))%2 == 1
	if text == "" {
		return to, errors.New("expected an address right behind the `!`")
	}
	if prefix, err := ParsePrefix(text); err == nil {
		return append(to, TableEntry{Not: not, Prefix: prefix, FromFile: true}), nil
	}
	name, length, found := strings.Cut(text, "/")
	bits := -1
	if found {
		n, err := strconv.ParseUint(length, 10, 8)
		if err != nil || n > 128 {
			return to, errors.New("`" + shorten(field) + "` has no valid number of bits behind the slash")
		}
		bits = int(n)
	}
	hosts, err := p.resolve(nil, name, bits)
	if err != nil {
		return to, err
	}
	for _, h := range hosts {
		to = append(to, TableEntry{Not: not, Prefix: netip.PrefixFrom(h.Addr, h.Bits), FromFile: true})
	}
	return to, nil
}
