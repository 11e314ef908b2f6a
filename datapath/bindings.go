// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// MaxBindings is the number of bindings that a bridge can have.
const MaxBindings = 65536

// A Binding ties an IP address of a VLAN to a station, and to the port that the station
// is behind.
type Binding struct {
	VLAN    uint16
	Address netip.Addr
	MAC     [6]byte
	Port    uint32 // id
}

// ErrBindingsFull reports that a bridge has MaxBindings bindings.
var ErrBindingsFull = fmt.Errorf("it has %d bindings, and no bridge can have more", MaxBindings)

// ErrBindingsSmall reports that a bridge's table of bindings has its initial size, with
// room for next to none. Commit with Tables.Bindings makes it large.
var ErrBindingsSmall = errors.New("its table of bindings is small")

func bindingKey(vlan uint16, a netip.Addr) kernelBindingKey {
	k := kernelBindingKey{Vlan: vlan, Type: unix.ETH_P_IPV6}
	words := a.As16()
	if a.Is4() {
		k.Type = unix.ETH_P_IP
		clear(words[:12]) // the prefix of an IPv4 address mapped into IPv6
	}
	for i := range k.Address {
		k.Address[i] = binary.NativeEndian.Uint32(words[4*i:])
	}
	return k
}

// bindingEntries is BINDING_ENTRIES.
const bindingEntries = 3

// bindingSpare is how many more entries a table needs while an address gets another
// station.
const bindingSpare = bindingEntries - 1

// largeBindings is how many entries a large table has.
const largeBindings = MaxBindings*bindingEntries + bindingSpare

// stationKeys returns the two keys by which the datapath finds that the station of a
// binding is bound: at its port, and at any port.
func (e Binding) stationKeys() [2]kernelBindingKey {
	mac := key(e.MAC, 0)
	k := kernelBindingKey{Vlan: e.VLAN, Address: [4]uint32{uint32(mac), uint32(mac >> 32)}}
	here := k
	here.Address[2] = e.Port
	return [...]kernelBindingKey{here, k}
}

func (k *kernelBindingKey) isStation() bool { return k.Type == 0 } // BINDING_STATION

func (k *kernelBindingKey) addr() netip.Addr {
	var words [16]byte
	for i, w := range k.Address {
		binary.NativeEndian.PutUint32(words[4*i:], w)
	}
	if k.Type == unix.ETH_P_IP {
		return netip.AddrFrom4([4]byte(words[12:]))
	}
	return netip.AddrFrom16(words)
}

// store puts the binding into a table. The station comes first: once the table has the
// address, it must have the station.
func (e Binding) store(m *ebpf.Map) error {
	value := kernelBinding{Mac: key(e.MAC, 0), Port: e.Port}
	for _, k := range e.stationKeys() {
		if err := put(m, k, value); err != nil {
			return err
		}
	}
	return put(m, bindingKey(e.VLAN, e.Address), value)
}

// LargeBindings reports whether the bridge's table has room for MaxBindings bindings.
func (b *Bridge) LargeBindings() (bool, error) {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return false, err
	}
	defer m.Close()
	return m.MaxEntries() >= largeBindings, nil
}

// Bind binds an address, in place of its former binding. The error is
// ErrBindingsFull or ErrBindingsSmall if there is no room.
func (b *Bridge) Bind(binding Binding) error { return b.ReplaceBindings(nil, []Binding{binding}) }

// Unbind removes the binding of an address; the error is os.ErrNotExist if there is
// none.
func (b *Bridge) Unbind(vlan uint16, a netip.Addr) error {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := m.Lookup(bindingKey(vlan, a), &kernelBinding{}); errors.Is(err, ebpf.ErrKeyNotExist) {
		return os.ErrNotExist
	} else if err != nil {
		return err
	}
	return b.ReplaceBindings([]Binding{{VLAN: vlan, Address: a}}, nil)
}

// ReplaceBindings removes the bindings of the addresses in del, which may be gone
// already, and makes the bindings in add. An address in add loses its former binding,
// but it is bound all the time, even if it is in del, too. The table is read once,
// however many the bindings are. If there is no room, the error is ErrBindingsFull or
// ErrBindingsSmall, and nothing is changed.
func (b *Bridge) ReplaceBindings(del, add []Binding) error {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return err
	}
	defer m.Close()
	t, err := readBindings(m)
	if err != nil {
		return err
	}
	next := map[bindingAddress]Binding{}
	for _, e := range add {
		next[e.address()] = e
	}
	if t.takes(del, next) > m.MaxEntries() {
		if err := b.collectBindings(); err != nil {
			return err
		}
		if t, err = readBindings(m); err != nil {
			return err
		}
	}
	switch n := t.takes(del, next); {
	case n > largeBindings:
		return ErrBindingsFull
	case n > m.MaxEntries():
		return ErrBindingsSmall
	}
	return b.work(func() error {
		err := t.tidy(m)
		for _, e := range del {
			if _, stays := next[e.address()]; !stays {
				err = errors.Join(err, t.remove(m, e.address()))
			}
		}
		for _, e := range next {
			if t.bindings[e.address()] != e {
				err = errors.Join(err, t.put(m, e))
			}
		}
		return err
	})
}

// Bindings returns the bindings of the bridge's present ports, in no particular order.
func (b *Bridge) Bindings() (list []Binding, err error) {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	all, err := readBindings(m)
	for _, e := range all.bindings {
		if PortAt(&b.Config, e.Port) != nil {
			list = append(list, e)
		}
	}
	return list, err
}

// UnbindAll removes the bindings that f chooses, and all bindings of ports that have
// left. It returns the number that f has chosen.
func (b *Bridge) UnbindAll(f func(Binding) bool) (n int, err error) {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return 0, err
	}
	defer m.Close()
	err = b.work(func() error {
		n, err = b.unbindAll(m, f)
		return err
	})
	return n, err
}

func (b *Bridge) unbindAll(m *ebpf.Map, f func(Binding) bool) (n int, err error) {
	t, err := readBindings(m)
	if err != nil {
		return 0, err
	}
	for at, e := range t.bindings {
		chosen := false
		if PortAt(&b.Config, e.Port) != nil {
			if !f(e) {
				continue
			}
			chosen = true
		}
		if derr := t.remove(m, at); derr != nil {
			err = errors.Join(err, derr)
			continue
		}
		if chosen {
			n++
		}
	}
	return n, errors.Join(err, t.tidy(m))
}

// collectBindings removes the bindings of ports that have left.
func (b *Bridge) collectBindings() error {
	_, err := b.UnbindAll(func(Binding) bool { return false })
	return err
}

// bindingAddress is the address that a binding binds.
type bindingAddress struct {
	vlan    uint16
	address netip.Addr
}

func (e Binding) address() bindingAddress { return bindingAddress{e.VLAN, e.Address} }

// bindingTable has the contents of a table of bindings, also of ports that have
// left.
type bindingTable struct {
	bindings map[bindingAddress]Binding
	stations map[kernelBindingKey]*boundStation
}

// boundStation is a station of a table, by one of its keys.
type boundStation struct {
	there    bool // in the table
	bindings int  // bindings that have the station
}

// station returns the entry of a station by one of its keys.
func (t bindingTable) station(k kernelBindingKey) *boundStation {
	s := t.stations[k]
	if s == nil {
		s = &boundStation{}
		t.stations[k] = s
	}
	return s
}

// takes returns how many entries a table needs in order to lose the bindings in del and
// to get the bindings in next. The station that gets an address has its entries before
// the station that had the address loses its own.
func (t bindingTable) takes(del []Binding, next map[bindingAddress]Binding) uint32 {
	n, spare := len(t.bindings), 0
	for a, e := range next {
		switch old, ok := t.bindings[a]; {
		case !ok:
			n++
		case old != e:
			spare = bindingSpare
		}
	}
	gone := map[bindingAddress]bool{}
	for _, e := range del {
		a := e.address()
		_, there := t.bindings[a]
		_, stays := next[a]
		if there && !stays && !gone[a] {
			gone[a] = true
			n--
		}
	}
	return uint32(n*bindingEntries + spare)
}

// put makes a binding, in place of the address's former one.
func (t bindingTable) put(m *ebpf.Map, e Binding) error {
	if err := e.store(m); err != nil {
		return err
	}
	for _, k := range e.stationKeys() {
		s := t.station(k)
		s.there = true
		s.bindings++
	}
	old, ok := t.bindings[e.address()]
	t.bindings[e.address()] = e
	if !ok {
		return nil
	}
	return t.release(m, old)
}

// remove removes the binding of an address, if there is one.
func (t bindingTable) remove(m *ebpf.Map, at bindingAddress) error {
	old, ok := t.bindings[at]
	if !ok {
		return nil
	}
	if err := m.Delete(bindingKey(at.vlan, at.address)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return err
	}
	delete(t.bindings, at)
	return t.release(m, old)
}

// release removes the station of a binding that is gone, unless other bindings have it.
func (t bindingTable) release(m *ebpf.Map, e Binding) (err error) {
	for _, k := range e.stationKeys() {
		s := t.station(k)
		s.bindings--
		if s.bindings > 0 || !s.there {
			continue
		}
		if derr := m.Delete(k); derr != nil && !errors.Is(derr, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, derr)
			continue
		}
		delete(t.stations, k)
	}
	return err
}

// readBindings reads a table. Writers hold the bridge's lock; a reader without
// it may miss some bindings that are changed meanwhile.
func readBindings(m *ebpf.Map) (t bindingTable, err error) {
	t.bindings, t.stations = map[bindingAddress]Binding{}, map[kernelBindingKey]*boundStation{}
	keys, values := make([]kernelBindingKey, 4096), make([]kernelBinding, 4096)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if k, v := &keys[i], &values[i]; k.isStation() {
				t.station(*k).there = true
			} else {
				e := Binding{VLAN: k.Vlan, Address: k.addr(), MAC: macOf(v.Mac), Port: v.Port}
				t.bindings[e.address()] = e
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return t, fmt.Errorf("read the bindings: %w", err)
		}
	}
	for _, e := range t.bindings {
		for _, k := range e.stationKeys() {
			t.station(k).bindings++
		}
	}
	return t, nil
}

// tidy makes the stations of a table match its bindings. A change that was killed may
// have left other stations. The next change of a binding mends that.
func (t bindingTable) tidy(m *ebpf.Map) (err error) {
	for k, s := range t.stations {
		if s.bindings > 0 {
			continue
		}
		if derr := m.Delete(k); derr != nil && !errors.Is(derr, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, derr)
			continue
		}
		delete(t.stations, k)
	}
	for _, e := range t.bindings {
		for _, k := range e.stationKeys() {
			s := t.station(k)
			if s.there {
				continue
			}
			if perr := put(m, k, kernelBinding{Mac: key(e.MAC, 0), Port: e.Port}); perr != nil {
				err = errors.Join(err, perr)
				continue
			}
			s.there = true
		}
	}
	return err
}

// settleBindings makes the table of bindings large once a feature that uses it is on.
// So no later binding needs new programs.
func (b *Bridge) settleBindings(next *Config, t *Tables) error {
	const ask = kernelFeatureFEATURE_SOURCE_GUARD | kernelFeatureFEATURE_SUPPRESS
	asks := func(c *Config) bool { return kernelFeature(c.Features)&ask != 0 }
	if t.Bindings != nil || !asks(next) || b.gen != "" && asks(&b.Config) {
		return nil
	}
	all := []Binding{}
	if b.gen != "" {
		m, err := b.openTable(kernelMapBindings)
		if err != nil {
			return err
		}
		defer m.Close()
		if m.MaxEntries() >= largeBindings {
			return nil
		}
		have, err := b.Bindings()
		if err != nil {
			return err
		}
		all = append(all, have...)
	}
	t.Bindings = all
	return nil
}
