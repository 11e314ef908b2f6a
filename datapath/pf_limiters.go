// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"net/netip"
	"unsafe"
)

// LimiterCount has the counters of a limiter, or of one of its sources.
type LimiterCount struct {
	States   uint32 // present states
	Sources  uint32 // present sources of a source limiter
	Admitted uint64 // states that were made
	Hard     uint64 // states that were refused because there were too many
	Rate     uint64 // or because they came too fast
	Full     uint32 // or because a source limiter had too many sources
}

// A LimitedSource is a source of a source limiter.
type LimitedSource struct {
	Limiter uint8 // its id
	Addr    netip.Prefix
	VLAN    uint16 // 0 for none, and for addresses of the host's routing
	LimiterCount
}

// Limiters are the counters of a bridge's limiters, by the limiters' ids.
type Limiters struct {
	States, Sources map[uint8]LimiterCount
	List            []LimitedSource // in no particular order
}

// Limiters returns the counters of limiters. It omits limiters that have counted nothing. It
// includes limiters of former rulesets, as long as their counters exist.
func (b *Bridge) Limiters() (Limiters, error) {
	l := Limiters{States: map[uint8]LimiterCount{}, Sources: map[uint8]LimiterCount{}}
	if !b.PFLoaded() {
		return l, nil
	}
	m, err := b.openTable(kernelMapPfSources)
	if err != nil {
		return l, err
	}
	defer m.Close()
	err = eachOf(m, func(keys []kernelPfSourceKey, values []kernelPfSource) error {
		for i, k := range keys {
			v := (*kernelPfLimited)(unsafe.Pointer(&values[i]))
			n := LimiterCount{
				States: v.States &^ sourceGoing, Sources: v.Sources, Full: v.Full,
				Admitted: v.Admitted, Hard: v.Hard, Rate: v.Rate,
			}
			switch kernelPfSourceKind(k.Kind) {
			case kernelPfSourceKindPF_SOURCE_STATE_LIMITER:
				l.States[uint8(k.Rule)] = n
			case kernelPfSourceKindPF_SOURCE_SOURCE_LIMITER:
				l.Sources[uint8(k.Rule)] = n
			case kernelPfSourceKindPF_SOURCE_LIMITED:
				n.Sources, n.Full = 0, 0
				l.List = append(l.List, LimitedSource{
					Limiter: uint8(k.Rule), Addr: k.prefix(), VLAN: vlanOf(k.Vlan), LimiterCount: n,
				})
			}
		}
		return nil
	})
	return l, err
}

// prefix returns the network that is the source of a limiter.
func (k *kernelPfSourceKey) prefix() netip.Prefix {
	word := kernelPfAddress{Word: k.Address}
	a, bits := word.addr(), int(k.Ruleset)
	if a.Unmap().Is4() && bits >= 96 {
		return netip.PrefixFrom(a.Unmap(), bits-96)
	}
	return netip.PrefixFrom(a, bits)
}

// limiterKey returns the key of a limiter itself, as pf_limiter_key does.
func limiterKey(id uint16, sources bool) kernelPfSourceKey {
	k := kernelPfSourceKey{Rule: id, Kind: uint16(kernelPfSourceKindPF_SOURCE_STATE_LIMITER)}
	if sources {
		k.Kind = uint16(kernelPfSourceKindPF_SOURCE_SOURCE_LIMITER)
	}
	return k
}

// ofLimiter reports whether the key belongs to a limiter, or to one of its sources.
func (k *kernelPfSourceKey) ofLimiter() bool {
	return k.Kind >= uint16(kernelPfSourceKindPF_SOURCE_STATE_LIMITER)
}

// limiters calls f with the keys of the limiters that count a state, and of their sources
// that do, as pf_limit_key makes them.
func (t *stateTable) limiters(place uint32, s *kernelPfState, f func(kernelPfSourceKey)) {
	if int(s.Key.Profile) < len(t.profiles) {
		p := &t.profiles[s.Key.Profile]
		if id := p.Limiter[0]; id != 0 {
			f(limiterKey(uint16(id), false))
		}
		if id := p.Limiter[1]; id != 0 {
			before, side := t.before(place, s)
			k := kernelPfSourceKey{
				Vlan: s.Key.Vlan &^ keyOutward, Rule: uint16(id), Kind: uint16(kernelPfSourceKindPF_SOURCE_LIMITED),
			}
			a := kernelPfAddress{Word: before.Key.Address[side]}
			six := 1
			if addr := a.addr(); addr.Unmap().Is4() {
				six = 0
			}
			for i := range k.Address {
				k.Address[i] = a.Word[i] & p.Mask[six][i]
			}
			k.Ruleset = uint16(p.Bits[six])
			f(limiterKey(uint16(id), true))
			f(k)
		}
	}
}
