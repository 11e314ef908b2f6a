// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"math"
	"slices"
	"strconv"
)

// A StateLimiter limits the total number of states of the rules that name it, by its name or its ID.
// States count by ID, so a limiter with a new name remains the same.
type StateLimiter struct {
	Place
	Name  string
	ID    uint8  // from 1
	Limit uint32 // largest number of states at a time
	Rate  Rate   // largest rate of new states
}

// A SourceLimiter limits the states of each source: an address or its network. See StateLimiter for
// its name and ID.
type SourceLimiter struct {
	Place
	Name      string
	ID        uint8  // from 1
	Entries   uint32 // largest number of sources at a time
	Limit     uint32 // largest number of states of a source
	Rate      Rate   // largest rate of new states of a source
	InetMask  uint8  // bits of an IPv4 address that identify the source
	Inet6Mask uint8
	// Table gets a source that has had more than Above states, and loses it when the source has
	// fewer than Below. With a Below of 0 the source stays.
	Table        string
	Above, Below uint32
}

// Rate is a number of states in a number of seconds; the zero value means no limit.
type Rate struct {
	Number, Seconds uint32
}

// A Limiter refers to a limiter in a rule, by name or ID. The zero value refers to none.
type Limiter struct {
	Name string
	ID   uint8
	// NoMatch makes the rule match nothing while the limiter is exhausted. Without it, the
	// packet is blocked then.
	NoMatch bool
}

// maxLimiterName is the longest name of a limiter, in characters (PF_STATELIM_NAME_LEN).
const maxLimiterName = 31

// is reports whether it refers to a limiter.
func (l Limiter) is() bool { return l.Name != "" || l.ID != 0 }

// limiter reads `state limiter "name" ...` or `source limiter "name" ...` behind its first word.
func (p *parser) limiter(first token) {
	p.word("limiter")
	if p.anchors > 0 {
		p.failf(first.pos, "%s limiter: is defined in the main ruleset, and not in an anchor", first.text)
	}
	l := SourceLimiter{Place: p.place(first.pos), Name: p.short("name of the limiter", "limiter name", maxLimiterName), InetMask: 32, Inet6Mask: 128}
	if l.Name == "" {
		p.failf(first.pos, "a limiter has a name")
	}
	ofSources := first.text == "source"
	said := map[string]bool{}
	for !p.ends() {
		pos, word := p.tok.pos, p.tok.text
		if p.tok.kind != tokWord {
			p.expectedOfLimiter(ofSources)
		}
		if said[word] {
			p.errorf(pos, "%s cannot be redefined", word)
		}
		said[word] = true
		positive := func(what string, most int64) uint32 {
			p.next()
			at := p.tok.pos
			n := p.number(what, most)
			if n == 0 {
				p.errorf(at, "'%s' must be > 0", word)
			}
			return uint32(n)
		}
		switch {
		case word == "id":
			l.ID = uint8(positive("an id", math.MaxUint8))
		case word == "limit":
			l.Limit = positive("a number of states", math.MaxInt32)
		case word == "rate":
			l.Rate.Number = positive("a number of states", math.MaxUint32)
			p.op("/")
			at := p.tok.pos
			if l.Rate.Seconds = uint32(p.number("a number of seconds", math.MaxUint32)); l.Rate.Seconds == 0 {
				p.errorf(at, "'rate' must be of 1 second or more")
			}
		case word == "entries" && ofSources:
			l.Entries = positive("a number of sources", math.MaxInt32)
		case word == "inet" && ofSources:
			p.next()
			p.word("mask")
			l.InetMask = uint8(p.number("a number of bits", 32))
		case word == "inet6" && ofSources:
			p.next()
			p.word("mask")
			l.Inet6Mask = uint8(p.number("a number of bits", 128))
		case word == "table" && ofSources:
			p.next()
			l.Table = p.tableName()
			p.word("above")
			at := p.tok.pos
			if l.Above = uint32(p.number("a number of states", math.MaxInt32)); l.Above == 0 {
				p.errorf(at, "'above' must be > 0")
			}
			if p.accept("below") {
				l.Below = uint32(p.number("a number of states", maxBelow))
			}
			if l.Below > l.Above {
				p.errorf(at, "'below' is larger than 'above'")
			}
		default:
			p.expectedOfLimiter(ofSources)
		}
	}
	for _, word := range []string{"id", "entries", "limit"} {
		if !said[word] && (ofSources || word != "entries") {
			p.errorf(first.pos, "%s limiter: has to have %s", first.text, word)
		}
	}
	if ofSources {
		for _, other := range p.set.SourceLimiters {
			p.sameLimiter(&l, other.ID, other.Name)
		}
		p.set.SourceLimiters = append(p.set.SourceLimiters, l)
		return
	}
	for _, other := range p.set.StateLimiters {
		p.sameLimiter(&l, other.ID, other.Name)
	}
	p.set.StateLimiters = append(p.set.StateLimiters, StateLimiter{l.Place, l.Name, l.ID, l.Limit, l.Rate})
}

// sameLimiter records an error if a limiter has the ID or the name of another.
func (p *parser) sameLimiter(l *SourceLimiter, id uint8, name string) {
	switch {
	case name == l.Name:
		p.errorf(l.Pos, "limiter %s is defined already", quoted(name))
	case id == l.ID && id != 0:
		p.errorf(l.Pos, "id %d is that of limiter %s", id, quoted(name))
	}
}

func (p *parser) expectedOfLimiter(ofSources bool) {
	if ofSources {
		p.expected("`id`, `entries`, `limit`, `rate`, `inet mask`, `inet6 mask` or `table`")
	}
	p.expected("`id`, `limit` or `rate`")
}

// limits reads the option of a rule that names a limiter, after its first word.
func (p *parser) limits(s *spec) {
	of, name, at := &s.rule.StateLimiter, "state limiter", optStateLimiter
	if p.tok.text == "source" {
		of, name, at = &s.rule.SourceLimiter, "source limiter", optSourceLimiter
	}
	p.once(at, name)
	p.next()
	p.word("limiter")
	if p.accept("id") {
		pos := p.tok.pos
		if of.ID = uint8(p.number("an id", math.MaxUint8)); of.ID == 0 {
			p.failf(pos, "'id' must be > 0")
		}
	} else if of.Name = p.short("name of the limiter, or `id`", "limiter name", maxLimiterName); of.Name == "" {
		p.failf(s.at[at], "a limiter has a name")
	}
	if !p.acceptOp("(") {
		return
	}
	switch {
	case p.accept("no-match"):
		of.NoMatch = true
	case !p.accept("block"):
		p.expected("`no-match` or `block`")
	}
	p.op(")")
}

// checkLimits records an error for limiters that a rule has no use for.
func (p *parser) checkLimits(s *spec) {
	r := &s.rule
	for _, l := range []struct {
		Limiter
		name string
		at   option
	}{{r.StateLimiter, "state limiter", optStateLimiter}, {r.SourceLimiter, "source limiter", optSourceLimiter}} {
		switch {
		case !l.is():
		case r.Action != Pass:
			p.errorf(s.at[l.at], "%s: only applies to pass rules", l.name)
		case r.State == NoState:
			p.errorf(s.at[l.at], "%s: only applies to rules that keep state", l.name)
		}
	}
}

// String returns the definition of the limiter, without a newline.
func (l *StateLimiter) String() string {
	w := words{"state limiter", quoted(l.Name), "id", strconv.Itoa(int(l.ID)), "limit", fmt.Sprint(l.Limit)}
	l.Rate.print(&w)
	return w.String()
}

// String returns the definition of the limiter, without a newline.
func (l *SourceLimiter) String() string {
	w := words{"source limiter", quoted(l.Name), "id", strconv.Itoa(int(l.ID)),
		"entries", fmt.Sprint(l.Entries), "limit", fmt.Sprint(l.Limit)}
	l.Rate.print(&w)
	if l.InetMask != 32 {
		w.add("inet mask", strconv.Itoa(int(l.InetMask)))
	}
	if l.Inet6Mask != 128 {
		w.add("inet6 mask", strconv.Itoa(int(l.Inet6Mask)))
	}
	if l.Table != "" {
		w.add("table", "<"+word(l.Table)+">", "above", fmt.Sprint(l.Above))
		if l.Below != 0 {
			w.add("below", fmt.Sprint(l.Below))
		}
	}
	return w.String()
}

func (r Rate) print(w *words) {
	if r != (Rate{}) {
		w.add("rate", fmt.Sprintf("%d/%d", r.Number, r.Seconds))
	}
}

// print writes the reference to a limiter as a rule has it.
func (l Limiter) print(w *words, what string) {
	if !l.is() {
		return
	}
	action := "(block)"
	if l.NoMatch {
		action = "(no-match)"
	}
	w.add(what, l.String(), action)
}

// The words of limiters in a program. First come the places, among these words, of the state
// limiters by ID, from ID 0 on, and then of the source limiters; 0 for none. The limiters follow, as
// struct pf_limiter of bpf/pf/types.h.
const (
	limiterIDs   = 256
	limiterWords = 4

	maxBelow = 1<<24 - 1 // the remaining bits of a word (PF_LIMITER_BELOW)
)

// placeLimiters compiles the limiters of the main ruleset.
func (c *compiler) placeLimiters() error {
	main := c.in.Main
	if len(main.StateLimiters)+len(main.SourceLimiters) == 0 {
		return nil
	}
	words := make([]uint64, 2*limiterIDs, 2*limiterIDs+limiterWords*(len(main.StateLimiters)+len(main.SourceLimiters)))
	place := func(index int, limit, entries uint32, rate Rate, above, below uint32, table uint8) {
		var token, bucket uint64
		if rate != (Rate{}) {
			bucket = uint64(rate.Seconds) * 1e9
			token = max(1, bucket/uint64(rate.Number))
		}
		words[index] = uint64(len(words))
		words = append(words, uint64(limit)|uint64(entries)<<32, token, bucket, uint64(above)|uint64(table)<<32|uint64(below)<<40)
	}
	for i := range main.StateLimiters {
		l := &main.StateLimiters[i]
		place(int(l.ID), l.Limit, 0, l.Rate, 0, 0, 0)
		c.out.Limited++
	}
	for i := range main.SourceLimiters {
		l := &main.SourceLimiters[i]
		var table uint8
		if l.Table != "" {
			var err error
			if table, err = c.table("", Host{Kind: InTable, Name: l.Table}); err != nil {
				return fmt.Errorf("%v: %w", l.Pos, err)
			}
			c.out.Tables = true
		}
		place(limiterIDs+int(l.ID), l.Limit, l.Entries, l.Rate, l.Above, l.Below, table)
		c.out.Limited += uint64(l.Entries) + 1
	}
	c.out.Limiters = words
	return nil
}

// limit fills in the limiters of a rule.
func (c *compiler) limit(r *Rule, out *CompiledRule, p *Profile) error {
	if l := r.StateLimiter; l.is() {
		i := slices.IndexFunc(c.in.Main.StateLimiters, func(s StateLimiter) bool { return l.means(s.Name, s.ID) })
		if i < 0 {
			return fmt.Errorf("state limiter %s: the main ruleset defines none of that name", l)
		}
		p.Limiter[0] = c.in.Main.StateLimiters[i].ID
		out.Flags |= RuleLimited
		if l.NoMatch {
			out.Flags |= RuleStateNoMatch
		}
	}
	if l := r.SourceLimiter; l.is() {
		i := slices.IndexFunc(c.in.Main.SourceLimiters, func(s SourceLimiter) bool { return l.means(s.Name, s.ID) })
		if i < 0 {
			return fmt.Errorf("source limiter %s: the main ruleset defines none of that name", l)
		}
		of := &c.in.Main.SourceLimiters[i]
		p.Limiter[1], p.Bits = of.ID, [2]uint8{96 + of.InetMask, of.Inet6Mask}
		for i, n := range p.Bits {
			for bit := range int(n) {
				p.Mask[i][bit/8] |= 0x80 >> (bit % 8)
			}
		}
		p.Keeps = uint16(min(2*uint64(of.Rate.Seconds)+1, math.MaxUint16))
		out.Flags |= RuleLimited
		if l.NoMatch {
			out.Flags |= RuleSourceNoMatch
		}
	}
	return nil
}

// means reports whether it refers to the limiter with this name and ID.
func (l Limiter) means(name string, id uint8) bool {
	return l.Name != "" && l.Name == name || l.Name == "" && l.ID == id
}

// String returns the name or the ID.
func (l Limiter) String() string {
	if l.Name == "" {
		return "id " + strconv.Itoa(int(l.ID))
	}
	return quoted(l.Name)
}
