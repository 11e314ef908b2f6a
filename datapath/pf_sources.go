// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A SourceNode is a source whose states are counted.
type SourceNode struct {
	Addr        netip.Addr
	Given       netip.Addr // its address from the rule's pool, by sticky-address; not valid for tracked sources
	VLAN        uint16
	Rule        int // number of the rule that counts it; -1 for all rules together
	States      uint32
	Connections uint32
	Rate        float64 // connections in the interval of the rule's max-src-conn-rate
	Age         time.Duration
	Expires     time.Duration // 0 while it has states
}

// SourceNodes returns the sources that are counted, ordered by address. It omits sources of former
// rulesets, and expired ones.
func (b *Bridge) SourceNodes() (list []SourceNode, err error) {
	err = b.eachSource(func(n *SourceNode, _ kernelPfSourceKey) { list = append(list, *n) })
	slices.SortFunc(list, func(a, b SourceNode) int {
		return cmp.Or(a.Addr.Compare(b.Addr), cmp.Compare(a.VLAN, b.VLAN), cmp.Compare(a.Rule, b.Rule),
			a.Given.Compare(b.Given))
	})
	return list, err
}

// KillSources removes the sources that match, and returns their number. Their states stay, but no
// longer count for a source. A source that gets new states meanwhile stays, too.
func (b *Bridge) KillSources(match func(*SourceNode) bool) (int, error) {
	keys := map[kernelPfSourceKey]bool{}
	err := b.eachSource(func(n *SourceNode, k kernelPfSourceKey) {
		if match(n) {
			keys[k] = true
		}
	})
	if err != nil || len(keys) == 0 {
		return 0, err
	}
	t, err := b.states(unix.PROT_READ)
	if err != nil {
		return 0, err
	}
	defer t.close()
	p, err := openProgram(b.pin(b.gen, controlPin))
	if err != nil {
		return 0, err
	}
	defer p.Close()
	control := func(r kernelControl) (int, error) { return runControl(p, r) }
	if err := t.untrack(control, keys); err != nil {
		return 0, err
	}
	for k := range keys {
		_, err := control(kernelControl{Op: kernelControlOpCONTROL_PF_UNTRACK, Source: k})
		if err != nil && !errors.Is(err, unix.ENOENT) { // it has gone with its last state
			return 0, fmt.Errorf("remove a source: %w", err)
		}
	}
	return len(keys), nil
}

// untrack removes the sources from the states that count for them, by the control program of the
// table.
func (t *stateTable) untrack(control func(kernelControl) (int, error), keys map[kernelPfSourceKey]bool) (err error) {
	t.each(func(place uint32, s *kernelPfState) bool {
		t.counters(place, s, func(by uint32, k kernelPfSourceKey) {
			if !keys[k] {
				return
			}
			_, failed := control(kernelControl{
				Op: kernelControlOpCONTROL_PF_UNTRACK, Place: place + 1, Port: by,
				Word: uint64(mark(t.hash(s))),
			})
			if failed != nil && !errors.Is(failed, unix.ENOENT) { // the state has ended meanwhile
				err = fmt.Errorf("take a state from its source: %w", failed)
			}
		})
		return err == nil
	})
	return err
}

// counters calls f with the keys of all entries of pf_sources that count a state. `by` is 0 for
// the source that the state's rule tracks, and enum pf_second_node + 1 for sources that pools
// remember.
func (t *stateTable) counters(place uint32, s *kernelPfState, f func(by uint32, k kernelPfSourceKey)) {
	flags := StateFlags(s.Flags)
	if flags&trackFlags != 0 {
		f(0, t.sourceOf(place, s))
	}
	stack, ok := t.stackKey(place, s)
	if !ok {
		return
	}
	second := (*kernelPfSecond)(unsafe.Pointer(&stack))
	for node := range kernelPfSecondNodePF_SECOND_NODES {
		if second.Nodes>>node&1 != 0 {
			f(uint32(node)+1, s.nodeKey(second, node))
		}
	}
}

const trackFlags = kernelPfStateFlagPF_STATE_TRACK_RULE | kernelPfStateFlagPF_STATE_TRACK_GLOBAL

// sourceOf returns the source that the state's rule tracks, as pf_source_key_of does.
func (t *stateTable) sourceOf(place uint32, s *kernelPfState) (k kernelPfSourceKey) {
	flags := StateFlags(s.Flags)
	before, side := t.before(place, s)
	k.Address, k.Vlan = before.Key.Address[side], s.Key.Vlan&^keyOutward
	if flags&kernelPfStateFlagPF_STATE_TRACK_RULE != 0 {
		k.Rule, k.Ruleset = s.RuleIn, s.Ruleset
		if flags&kernelPfStateFlagPF_STATE_TRACK_OUT != 0 {
			k.Rule = s.RuleOut
		}
	}
	return k
}

// nodeKey returns the key of the source that counts a state with a second place, as pf_second_key
// does.
func (s *kernelPfState) nodeKey(second *kernelPfSecond, node kernelPfSecondNode) (k kernelPfSourceKey) {
	type end struct { // of a connection
		address [4]uint32
		port    uint16
	}
	own, other := s.initiator(), (*kernelPfState)(unsafe.Pointer(second)).initiator()
	// the packet before and after the rules' translation
	was, is := &s.Key, &second.Key
	from, to := own, other
	if (s.Key.Vlan&keyOutward != 0) != (own != 0) {
		was, is, from, to = is, was, other, own
	}
	if node == kernelPfSecondNodePF_SECOND_RDR || node == kernelPfSecondNodePF_SECOND_LEAST_RDR {
		to ^= 1
	}
	had, has := end{was.Address[from], was.Port[from]}, end{is.Address[to], is.Port[to]}
	if node == kernelPfSecondNodePF_SECOND_HOP || node == kernelPfSecondNodePF_SECOND_LEAST_HOP {
		has = end{address: second.Hop}
	}
	of := had
	if node >= kernelPfSecondNodePF_SECOND_LEAST_NAT && node != kernelPfSecondNodePF_SECOND_MAP {
		of = has
	}
	k.Address, k.Vlan, k.Kind = of.address, s.Key.Vlan&^keyOutward, uint16(kernelPfSourceKindPF_SOURCE_LEAST)
	switch {
	case node >= kernelPfSecondNodePF_SECOND_MAP:
		k.Kind = uint16(kernelPfSourceKindPF_SOURCE_MAP) + uint16(node-kernelPfSecondNodePF_SECOND_MAP)
		k.Rule = of.port
	case node < kernelPfSecondNodePF_SECOND_LEAST_NAT:
		k.Kind = uint16(kernelPfSourceKindPF_SOURCE_NAT) + uint16(node)
		k.Rule, k.Ruleset = second.Sticky[node], second.Ruleset
	}
	return k
}

func (b *Bridge) eachSource(f func(*SourceNode, kernelPfSourceKey)) error {
	if !b.PFLoaded() {
		return nil
	}
	now, err := b.now()
	if err != nil {
		return err
	}
	m, err := b.openTable(kernelMapPfSources)
	if err != nil {
		return err
	}
	defer m.Close()
	return eachOf(m, func(keys []kernelPfSourceKey, values []kernelPfSource) error {
		for i, k := range keys {
			v := &values[i]
			left := time.Duration(int32(v.Expires-now)) * time.Second
			if k.Kind >= uint16(kernelPfSourceKindPF_SOURCE_LEAST) {
				continue // no source
			}
			if k.Rule != 0 && k.Ruleset != b.Config.Pf.Ruleset || v.States == 0 && left < 0 {
				continue
			}
			addr := kernelPfAddress{Word: k.Address}
			n := &SourceNode{
				Addr: addr.addr(), VLAN: vlanOf(k.Vlan), Rule: int(k.Rule) - 1,
				States: v.States, Connections: v.Connections, Rate: float64(v.Rate) / 1000,
				Age: time.Duration(max(int32(now-v.Created), 0)) * time.Second,
			}
			if k.Kind != uint16(kernelPfSourceKindPF_SOURCE_TRACKED) { // sticky-address
				given := kernelPfAddress{Word: v.Address}
				n.Given = given.addr()
			}
			if v.States == 0 {
				n.Expires = left
			}
			f(n, k)
		}
		return nil
	})
}
