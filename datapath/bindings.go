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

// store puts the binding in a table.
func (e Binding) store(m *ebpf.Map) error {
	return m.Put(bindingKey(e.VLAN, e.Address), kernelBinding{Mac: key(e.MAC, 0), Port: e.Port})
}

// Bind binds an address, in place of what it was bound to. The error is
// ErrBindingsFull or ErrBindingsSmall where there is no room.
func (b *Bridge) Bind(binding Binding) error {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return err
	}
	defer m.Close()
	err = binding.store(m)
	if errors.Is(err, unix.E2BIG) && b.collectBindings() == nil {
		err = binding.store(m)
	}
	if !errors.Is(err, unix.E2BIG) {
		return err
	}
	if m.MaxEntries() < MaxBindings {
		return ErrBindingsSmall
	}
	return ErrBindingsFull
}

// Unbind removes the binding of an address; the error is os.ErrNotExist where
// there is none.
func (b *Bridge) Unbind(vlan uint16, a netip.Addr) error {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return err
	}
	defer m.Close()
	err = m.Delete(bindingKey(vlan, a))
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return os.ErrNotExist
	}
	return err
}

// Bindings returns the bridge's bindings of ports that it has, in no order.
func (b *Bridge) Bindings() (list []Binding, err error) {
	m, err := b.openTable(kernelMapBindings)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	err = eachBinding(m, func(k kernelBindingKey, v kernelBinding) {
		if PortAt(&b.Config, v.Port) != nil {
			list = append(list, Binding{VLAN: k.Vlan, Address: k.addr(), MAC: macOf(v.Mac), Port: v.Port})
		}
	})
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
	var keys []kernelBindingKey
	err = eachBinding(m, func(k kernelBindingKey, v kernelBinding) {
		switch {
		case PortAt(&b.Config, v.Port) == nil:
		case f(Binding{VLAN: k.Vlan, Address: k.addr(), MAC: macOf(v.Mac), Port: v.Port}):
			n++
		default:
			return
		}
		keys = append(keys, k)
	})
	for _, k := range keys {
		if derr := m.Delete(k); derr != nil && !errors.Is(derr, ebpf.ErrKeyNotExist) {
			err = errors.Join(err, derr)
		}
	}
	return n, err
}

// collectBindings removes the bindings of ports that have left.
func (b *Bridge) collectBindings() error {
	_, err := b.UnbindAll(func(Binding) bool { return false })
	return err
}

// eachBinding calls f with every binding. Writers hold the bridge's lock; who
// reads without it may miss some of what is changed meanwhile.
func eachBinding(m *ebpf.Map, f func(kernelBindingKey, kernelBinding)) error {
	keys, values := make([]kernelBindingKey, 4096), make([]kernelBinding, 4096)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			f(keys[i], values[i])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the bindings: %w", err)
		}
	}
}
