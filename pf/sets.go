// SPDX-License-Identifier: BSD-2-Clause

package pf

import (
	"fmt"
	"math/bits"
	"slices"
)

// maxProgram is the largest size of a Program's tables, in bytes.
const maxProgram = 512 << 20

var errMemory = fmt.Errorf("rules: what they are looked up by would take more than %d MiB; have fewer rules, or tables instead of lists of addresses", maxProgram>>20)

// sets is the table of sets while it grows. Equal sets share one entry, and so do
// equal words of a group: two sets that differ in one rule share all groups but one.
type sets struct {
	words []uint64
	base  uint32            // place of the first set among the words of the program
	at    map[uint64]uint32 // places of words, by hash
	other uint64            // bytes of the program's other tables
}

// put returns the place of the words among the words of the program. It adds them if
// they are new.
func (s *sets) put(words []uint64) (uint32, error) {
	hash := hashWords(words)
	for ; ; hash++ { // skips other words of the same hash
		at, ok := s.at[hash]
		if !ok {
			break
		}
		there := s.words[at-s.base:]
		if len(words) <= len(there) && slices.Equal(there[:len(words)], words) {
			return at, nil
		}
	}
	at := s.base + uint32(len(s.words))
	s.at[hash] = at
	s.words = append(s.words, words...)
	if uint64(len(s.words))*8+s.other > maxProgram {
		return 0, errMemory
	}
	return at, nil
}

func hashWords(words []uint64) uint64 {
	h := uint64(len(words))
	for _, w := range words {
		hi, lo := bits.Mul64(w^0x9e3779b97f4a7c15, h^0xd6e8feb86659fd93)
		h = hi ^ lo
	}
	return h
}

// A vector is a set of rules that changes by a few rules from one value of a
// field to the next.
type vector struct {
	sets  *sets
	words []uint64 // all words of the set
	pairs []uint64 // the results of put for each group
	dirty []bool   // groups that have changed since
	place uint32
	known bool // place is the place of the current set
}

func newVector(s *sets, groups uint32) *vector {
	return &vector{
		sets:  s,
		words: make([]uint64, groups*groupWords),
		pairs: make([]uint64, 2*groups),
		dirty: make([]bool, groups),
	}
}

// flip adds a rule to the set, or removes it.
func (v *vector) flip(rule uint32) {
	v.words[rule/64] ^= 1 << (rule % 64)
	v.dirty[rule/GroupRules] = true
	v.known = false
}

// index returns the place of the set among the words of the program.
func (v *vector) index() (uint32, error) {
	if v.known {
		return v.place, nil
	}
	for g, dirty := range v.dirty {
		if !dirty {
			continue
		}
		v.dirty[g] = false
		var buf [groupWords]uint64
		n, mask := 0, uint64(0)
		for i, w := range v.words[g*groupWords : (g+1)*groupWords] {
			if w != 0 {
				buf[n] = w
				n++
				mask |= 1 << i
			}
		}
		at := uint32(0)
		if n > 0 {
			var err error
			if at, err = v.sets.put(buf[:n]); err != nil {
				return 0, err
			}
		}
		v.pairs[2*g], v.pairs[2*g+1] = mask, uint64(at)
	}
	place, err := v.sets.put(v.pairs)
	if err != nil {
		return 0, err
	}
	v.place, v.known = place, true
	return place, nil
}
