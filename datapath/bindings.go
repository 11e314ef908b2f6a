// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// MaxBindings is the number of bindings that a bridge can have.
const MaxBindings = 65536

// A Binding says behind which port, and at which station, an IP address of a
// VLAN is.
type Binding struct {
	VLAN    uint16
	Address netip.Addr
	MAC     [6]byte
	Port    uint32 // id
}

// ErrBindingsFull says that a bridge has MaxBindings bindings.
var ErrBindingsFull = fmt.Errorf("it has %d bindings, and no bridge can have more", MaxBindings)

// ErrBindingsSmall says that a bridge's table of bindings is as it is made at
// first, with room for next to none; Commit with Tables.Bindings makes it large.
var ErrBindingsSmall = errors.New("its table of bindings is small")

func bindingKey(vlan uint16, a netip.Addr) kernelBindingKey {
	k := kernelBindingKey{Vlan: vlan, Type: unix.ETH_P_IPV6}
	words := a.As16()
	if a.Is4() {
		k.Type = unix.ETH_P_IP
		clear(words[:12]) // of an address mapped into IPv6
	}
	for i := range k.Address {
		k.Address[i] = binary.NativeEndian.Uint32(words[4*i:])
	}
	return k
}

// bindingEntries is BINDING_ENTRIES.
const bindingEntries = 3

// stationKeys are the keys by which the datapath finds that a binding's station
// is bound: at its port, and at any.
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

// store puts the binding in a table, with its station first: from the address on
// the station is known.
func (e Binding) store(m *ebpf.Map) error {
	value := kernelBinding{Mac: key(e.MAC, 0), Port: e.Port}
	for _, k := range e.stationKeys() {
		if err := m.Put(k, value); err != nil {
			return err
		}
	}
	return m.Put(bindingKey(e.VLAN, e.Address), value)
}

// Bind binds an address, in place of what it was bound to. The error is
// ErrBindingsFull or ErrBindingsSmall where there is no room.
func (b *Bridge) Bind(binding Binding) error {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return err
	}
	defer m.Close()
	all, err := readBindings(m)
	if err != nil {
		return err
	}
	if len(all.bindings) >= int(m.MaxEntries()/bindingEntries) && !all.has(binding) {
		if err := b.collectBindings(); err != nil {
			return err
		}
		if all, err = readBindings(m); err != nil {
			return err
		}
	}
	switch room := int(m.MaxEntries() / bindingEntries); {
	case len(all.bindings) < room || all.has(binding):
	case room < MaxBindings:
		return ErrBindingsSmall
	default:
		return ErrBindingsFull
	}
	return b.work(func() error {
		if err := binding.store(m); err != nil {
			return err
		}
		return all.with(binding).tidyStations(m) // the address may have been another station's
	})
}

// Unbind removes the binding of an address; the error is os.ErrNotExist where
// there is none.
func (b *Bridge) Unbind(vlan uint16, a netip.Addr) error {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return err
	}
	defer m.Close()
	var binding kernelBinding
	if err := m.Lookup(bindingKey(vlan, a), &binding); errors.Is(err, ebpf.ErrKeyNotExist) {
		return os.ErrNotExist
	} else if err != nil {
		return err
	}
	return b.work(func() error {
		if err := m.Delete(bindingKey(vlan, a)); err != nil {
			return err
		}
		return tidyStations(m)
	})
}

// Bindings returns the bridge's bindings of ports that it has, in no order.
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

// UnbindAll removes the bindings that f chooses, and all of ports that have left;
// it returns how many f has chosen.
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
	all, err := readBindings(m)
	for _, e := range all.bindings {
		chosen := false
		if PortAt(&b.Config, e.Port) != nil {
			if !f(e) {
				continue
			}
			chosen = true
		}
		if derr := m.Delete(bindingKey(e.VLAN, e.Address)); derr != nil && !errors.Is(derr, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, derr)
			continue
		}
		if chosen {
			n++
		}
	}
	return n, errors.Join(err, tidyStations(m))
}

// collectBindings removes the bindings of ports that have left.
func (b *Bridge) collectBindings() error {
	_, err := b.UnbindAll(func(Binding) bool { return false })
	return err
}

// bindingTable is what a table of bindings has, also of ports that have left.
type bindingTable struct {
	bindings []Binding
	stations map[kernelBindingKey]bool
}

func (t bindingTable) has(binding Binding) bool {
	return slices.ContainsFunc(t.bindings, func(e Binding) bool {
		return e.VLAN == binding.VLAN && e.Address == binding.Address
	})
}

// with returns what a table has after a binding was put in.
func (t bindingTable) with(binding Binding) bindingTable {
	t.bindings = slices.DeleteFunc(t.bindings, func(e Binding) bool {
		return e.VLAN == binding.VLAN && e.Address == binding.Address
	})
	t.bindings = append(t.bindings, binding)
	for _, k := range binding.stationKeys() {
		t.stations[k] = true
	}
	return t
}

// readBindings reads a table. Writers hold the bridge's lock; who reads without
// it may miss some of what is changed meanwhile.
func readBindings(m *ebpf.Map) (t bindingTable, err error) {
	t.stations = map[kernelBindingKey]bool{}
	keys, values := make([]kernelBindingKey, 4096), make([]kernelBinding, 4096)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			if k, v := &keys[i], &values[i]; k.isStation() {
				t.stations[*k] = true
			} else {
				t.bindings = append(t.bindings, Binding{VLAN: k.Vlan, Address: k.addr(), MAC: macOf(v.Mac), Port: v.Port})
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return t, nil
		}
		if err != nil {
			return t, fmt.Errorf("read the bindings: %w", err)
		}
	}
}

// tidyStations makes the stations of a table those of its bindings. A change
// that was killed may have left others; the next change of a binding mends them.
func tidyStations(m *ebpf.Map) error {
	t, err := readBindings(m)
	if err != nil {
		return err
	}
	return t.tidyStations(m)
}

func (t bindingTable) tidyStations(m *ebpf.Map) (err error) {
	for _, e := range t.bindings {
		for _, k := range e.stationKeys() {
			if there, known := t.stations[k]; known && there {
				t.stations[k] = false // it stays
			} else if !known {
				err = errors.Join(err, m.Put(k, kernelBinding{Mac: key(e.MAC, 0), Port: e.Port}))
				t.stations[k] = false
			}
		}
	}
	for k, gone := range t.stations {
		if !gone {
			continue
		}
		if derr := m.Delete(k); derr != nil && !errors.Is(derr, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, derr)
		}
	}
	return err
}
