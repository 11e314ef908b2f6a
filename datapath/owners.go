// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ownersMap has the owners of ports that have one, as the caller has set them. No
// program uses it. A row belongs to the id of a port, which is never used again. So the
// row can be there before its port is: it counts from the generation that has the port
// on.
const ownersMap = "owners"

// MaxOwner is the most bytes of the text about a port's owner.
const MaxOwner = 1020

// An ownerRow is a value of the table: a length, and the text.
type ownerRow [4 + MaxOwner]byte

// ownersBatch is how many rows are read at once: more than a bucket of the table has.
const ownersBatch = 256

func ownersSpec() *ebpf.MapSpec {
	return &ebpf.MapSpec{
		Name: ownersMap, Type: ebpf.Hash, KeySize: 4, ValueSize: uint32(len(ownerRow{})), MaxEntries: 2 * uint32(MaxPorts),
		Flags: unix.BPF_F_NO_PREALLOC,
	}
}

// Owners returns the owners that SetOwner has set, by the ids of the bridge's ports.
func (b *Bridge) Owners() (map[uint32]string, error) {
	all, err := b.owners()
	for id := range all {
		if PortAt(&b.Config, id) == nil {
			delete(all, id)
		}
	}
	return all, err
}

// owners returns all rows of the table.
func (b *Bridge) owners() (map[uint32]string, error) {
	m, err := b.openTable(ownersMap)
	if err != nil {
		return nil, err
	}
	defer m.Close()
	all := map[uint32]string{}
	keys, rows := make([]uint32, ownersBatch), make([]ownerRow, ownersBatch)
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, rows, nil)
		for i := range n {
			text := binary.NativeEndian.Uint32(rows[i][:])
			if text > MaxOwner {
				return nil, fmt.Errorf("the owner of a port has %d bytes", text)
			}
			all[keys[i]] = string(rows[i][4:][:text])
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) { // the end
			return all, nil
		}
		if err != nil {
			return nil, err
		}
	}
}

// SetOwner sets the owner of a port, or of one that the next Commit adds; "" means no
// owner. The caller holds the lock.
func (b *Bridge) SetOwner(id uint32, text string) error {
	m, err := b.openTable(ownersMap)
	if err != nil {
		return err
	}
	defer m.Close()
	if text == "" {
		if err := m.Delete(id); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return err
		}
		return nil
	}
	if len(text) > MaxOwner {
		return fmt.Errorf("what is said of the owner of a port has %d bytes, and there is room for %d", len(text), MaxOwner)
	}
	var row ownerRow
	binary.NativeEndian.PutUint32(row[:], uint32(len(text)))
	copy(row[4:], text)
	return m.Put(id, row)
}

// collectOwners removes the rows of ports that have left, or that were never added.
func (b *Bridge) collectOwners() error {
	all, err := b.owners()
	if err != nil {
		return err
	}
	for id := range all {
		if PortAt(&b.Config, id) == nil {
			err = errors.Join(err, b.SetOwner(id, ""))
		}
	}
	return err
}
