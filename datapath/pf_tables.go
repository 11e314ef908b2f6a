// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"unsafe"

	"bascule/pf"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// ErrTableFull reports that the bridge's tables of addresses have as many entries as `set
// limit table-entries` allows, of addresses or of networks.
var ErrTableFull = errors.New("its tables have as many entries as set limit table-entries allows")

// TableAdd adds entries to table n, and returns the number of entries that the table did not
// have. An entry that it already has stays as it is, negated or not, as with pfctl -T add.
// The error is ErrTableFull if there is no room; some entries may have been added then. The
// caller holds the lock, as for all methods that change tables.
func (b *Bridge) TableAdd(n int, entries []pf.TableEntry) (added int, err error) {
	err = b.withAddresses(func(a *addresses) (err error) {
		added, err = a.add(n, entries)
		return err
	})
	return added, err
}

// TableDelete removes entries from table n, and returns the number of entries that it had.
// An entry must be negated as it is in the table.
func (b *Bridge) TableDelete(n int, entries []pf.TableEntry) (deleted int, err error) {
	err = b.withAddresses(func(a *addresses) (err error) {
		deleted, err = a.delete(n, entries)
		return err
	})
	return deleted, err
}

// TableReplace removes the entries out from table n, adds the entries in, and flips the
// negation of the entries turned. It returns the numbers of removed and added entries. The
// caller finds these entries, with [Bridge.TableWalk]. Added entries take effect before the
// entries that they replace are removed, unless some are turned.
func (b *Bridge) TableReplace(n int, out, in, turned []pf.TableEntry) (deleted, added int, err error) {
	err = b.withAddresses(func(a *addresses) (err error) {
		if len(turned) == 0 {
			if added, err = a.add(n, in); err == nil {
				deleted, err = a.delete(n, out)
			}
			return err
		}
		was := slices.Clone(turned)
		for i := range was {
			was[i].Not = !was[i].Not
		}
		if deleted, err = a.delete(n, out); err != nil {
			return err
		}
		if _, err = a.delete(n, was); err != nil {
			return err
		}
		added, err = a.add(n, slices.Concat(in, turned))
		added -= len(turned)
		return err
	})
	return deleted, added, err
}

// TableFlush empties table n, and returns the number of entries that it had.
func (b *Bridge) TableFlush(n int) (deleted int, err error) {
	err = b.withAddresses(func(a *addresses) (err error) {
		deleted, err = a.clear(1 << n)
		return err
	})
	return deleted, err
}

// TableWalk calls f with the entries of table n, in no particular order.
func (b *Bridge) TableWalk(n int, f func(pf.TableEntry)) error {
	return b.withAddresses(func(a *addresses) error { return a.walk(n, f) })
}

// TableEntries returns the contents of table n, in ascending order, a network
// before its parts.
func (b *Bridge) TableEntries(n int) ([]pf.TableEntry, error) {
	list := []pf.TableEntry{}
	err := b.TableWalk(n, func(e pf.TableEntry) { list = append(list, e) })
	SortEntries(list)
	return list, err
}

// SortEntries puts entries in ascending order, a network before its parts.
func SortEntries(list []pf.TableEntry) {
	slices.SortFunc(list, func(a, b pf.TableEntry) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()))
	})
}

// A Listing is the way in which a table lists an address or a network.
type Listing uint8

// NotListed is the Listing of an address or a network that a table has at most as a part of
// a larger network.
const (
	NotListed Listing = iota
	Listed
	ListedNot // negated
)

// TableListings returns how table n lists the address or network of each entry. That takes
// one look-up for each, whatever the size of the table.
func (b *Bridge) TableListings(n int, entries []pf.TableEntry) ([]Listing, error) {
	list := make([]Listing, len(entries))
	bit := uint64(1) << n
	err := b.withAddresses(func(a *addresses) error {
		var m kernelPfMember
		for i, e := range entries {
			there, err := a.listed(e.Prefix, &m)
			switch {
			case err != nil:
				return err
			case !there || m.Here&bit == 0:
			case m.Match&bit == 0:
				list[i] = ListedNot
			default:
				list[i] = Listed
			}
		}
		return nil
	})
	return list, err
}

// TablesHold reports whether all tables together have room for more additional entries. It
// counts the present entries one by one only if their number is not known, or if they could
// be too many.
func (b *Bridge) TablesHold(more int) (hold bool, err error) {
	limit := int(b.Config.Pf.TableEntries)
	err = b.withAddresses(func(a *addresses) error {
		sum, known, err := a.sum()
		if hold = known && sum+more <= limit; err != nil || hold {
			return err
		}
		sum = 0
		err = a.each(func(_ netip.Prefix, m *kernelPfMember) { sum += bits.OnesCount64(m.Here) })
		if err != nil {
			return err
		}
		hold = sum+more <= limit
		return a.noteSum(sum)
	})
	return hold, err
}

// TableCounts returns the number of entries of each table, by the table's number.
func (b *Bridge) TableCounts() (counts [pf.MaxTables]int, err error) {
	err = b.withAddresses(func(a *addresses) error {
		return a.each(func(_ netip.Prefix, m *kernelPfMember) {
			if m.Here == 0 {
				return
			}
			for n := range counts {
				counts[n] += int(m.Here >> n & 1)
			}
		})
	})
	return counts, err
}

// TableTest reports whether table n matches an address, and returns the entry that decides
// that; nil if there is none.
func (b *Bridge) TableTest(n int, addr netip.Addr) (match bool, by *pf.TableEntry, err error) {
	err = b.withAddresses(func(a *addresses) error {
		key := prefixKey(netip.PrefixFrom(addr, addr.BitLen()))
		bit := uint64(1) << n
		m, err := a.lookup(key)
		if err != nil || m == nil {
			return err
		}
		match = m.Match&bit != 0
		for m != nil && m.Here&bit == 0 {
			if m, err = a.parent(key.shortened(uint32(m.Bits))); err != nil {
				return err
			}
		}
		if m != nil {
			by = &pf.TableEntry{Not: !match, Prefix: key.shortened(uint32(m.Bits)).prefix()}
		}
		return nil
	})
	return match, by, err
}

// v4Bits is the number of bits before an IPv4 address in a key.
const v4Bits = 96

// hostBits is the length of a network that is one address.
const hostBits = 128

// extraNets is the number of networks in the trie in addition to the tables' networks: see
// init, and below.
const extraNets = 2

// prefixKey returns a prefix in the datapath's form. It must be masked.
func prefixKey(p netip.Prefix) kernelPfPrefix {
	k := kernelPfPrefix{Bits: uint32(p.Bits()), Address: p.Addr().As16()}
	if p.Addr().Is4() {
		k.Bits += v4Bits
	}
	return k
}

// v4Net is the network of all IPv4 addresses. An entry with a larger network is an IPv6
// entry, and does not apply to it.
var v4Net = prefixKey(netip.PrefixFrom(netip.IPv4Unspecified(), 0))

// prefix returns the prefix of a key.
func (k kernelPfPrefix) prefix() netip.Prefix {
	a := netip.AddrFrom16(k.Address)
	if k.Bits >= v4Bits && a.Is4In6() {
		return netip.PrefixFrom(a.Unmap(), int(k.Bits-v4Bits))
	}
	return netip.PrefixFrom(a, int(k.Bits))
}

// shortened returns the network of length n that contains the key.
func (k kernelPfPrefix) shortened(n uint32) kernelPfPrefix {
	for i := range k.Address {
		if left := int(n) - 8*i; left < 8 {
			k.Address[i] &^= 0xff >> max(left, 0)
		}
	}
	k.Bits = n
	return k
}

// contains reports whether o is k or a part of it.
func (k kernelPfPrefix) contains(o kernelPfPrefix) bool {
	return o.Bits >= k.Bits && o.shortened(k.Bits) == k
}

func compareKeys(a, b kernelPfPrefix) int {
	return cmp.Or(bytes.Compare(a.Address[:], b.Address[:]), cmp.Compare(a.Bits, b.Bits))
}

// addresses are the tables of addresses of a bridge. The entry of a network has a bit for
// each table that contains the network's addresses: the table may list the network itself,
// or the next larger one. An address that a table lists by itself has an entry in another
// map. So one look-up gives the answer for all tables.
//
// Networks change only under the bridge's lock. Addresses are changed by a program, because
// the datapath also adds some (bpf/pf/table.h).
//
// The number of entries of all tables is the sum of two counters. The programs write one of
// them, for addresses. User space writes the other, for networks: before it adds them, and
// after it has deleted them. So the sum may be too large, if a command is killed, and is
// never too small. If the second counter is zero, the bridge's entries have not been counted
// yet.
type addresses struct {
	hosts, nets, batch, counters *ebpf.Map
	change                       *ebpf.Program
}

const (
	entriesCounter = kernelCounterCOUNTER_PF_ENTRIES
	entriesMore    = kernelCounterCOUNTER_PF_ENTRIES_MORE
	entriesKnown   = 1 << 62 // added to the second counter
)

// sum returns an upper bound of the number of entries of all tables, if that is known.
func (a *addresses) sum() (n int, known bool, err error) {
	hosts, err := counterOf(a.counters, entriesCounter)
	if err != nil {
		return 0, false, err
	}
	more, err := counterOf(a.counters, entriesMore)
	return int(hosts + more - entriesKnown), more != 0, err
}

// noteSum sets the number of entries of all tables.
func (a *addresses) noteSum(n int) error {
	hosts, err := counterOf(a.counters, entriesCounter)
	if err != nil {
		return err
	}
	return a.putMore(uint64(n) - hosts + entriesKnown)
}

// noteNets adds n to the number of networks, which may be negative.
func (a *addresses) noteNets(n int) error {
	more, err := counterOf(a.counters, entriesMore)
	if err != nil || more == 0 || n == 0 {
		return err
	}
	return a.putMore(more + uint64(n))
}

func (a *addresses) putMore(n uint64) error {
	perCPU := make([]uint64, ebpf.MustPossibleCPU())
	perCPU[0] = n
	return a.counters.Put(uint32(entriesMore), perCPU)
}

// addresses returns the tables of a generation.
func (g *generation) addresses(*Config) (*addresses, error) {
	a := &addresses{
		hosts: g.coll.Maps[kernelMapPfHosts], nets: g.coll.Maps[kernelMapPfNets],
		batch: g.coll.Maps[kernelMapPfTableBatch], counters: g.coll.Maps[kernelMapCounters],
		change: g.coll.Programs[kernelProgBasculeTable],
	}
	if a.hosts == nil || a.nets == nil || a.batch == nil || a.counters == nil || a.change == nil {
		return nil, errNoPF
	}
	return a, nil
}

// withAddresses calls f with the bridge's tables.
func (b *Bridge) withAddresses(f func(*addresses) error) error {
	if !b.PFLoaded() {
		return errNoPF
	}
	a := &addresses{}
	for name, m := range map[string]**ebpf.Map{
		kernelMapPfHosts: &a.hosts, kernelMapPfNets: &a.nets, kernelMapPfTableBatch: &a.batch,
		kernelMapCounters: &a.counters,
	} {
		var err error
		if *m, err = b.openTable(name); err != nil {
			return err
		}
		defer (*m).Close()
	}
	var err error
	if a.change, err = openProgram(b.pin(b.gen, tablePin)); err != nil {
		return err
	}
	defer a.change.Close()
	return f(a)
}

// init prepares tables that are new.
func (a *addresses) init() error {
	if err := a.noteSum(0); err != nil {
		return err
	}
	return put(a.nets, v4Net, kernelPfMember{Bits: uint64(v4Net.Bits)})
}

// run has the program make a change, and returns the number of addresses that were changed.
func (a *addresses) run(r kernelPfTableRequest) (int, error) {
	result, err := a.change.Run(&ebpf.RunOptions{Context: &r})
	if err != nil {
		return 0, fmt.Errorf("table program: %w", err)
	}
	switch n := int32(result); {
	case n == -int32(unix.E2BIG):
		return 0, ErrTableFull
	case n < 0:
		return 0, unix.Errno(-n)
	default:
		return int(n), nil
	}
}

// tableBatch is PF_TABLE_BATCH.
const tableBatch = 1024

// changeHosts adds addresses to a table, or deletes them.
func (a *addresses) changeHosts(op kernelPfTableOp, n int, list []pf.TableEntry) (changed int, err error) {
	if len(list) == 0 {
		return 0, nil
	}
	mem, unmap, err := mapTable(a.batch, unix.PROT_READ|unix.PROT_WRITE)
	if err != nil {
		return 0, err
	}
	defer unmap()
	stride := len(mem) / tableBatch
	for some := range slices.Chunk(list, tableBatch) {
		for i, e := range some {
			c := (*kernelPfTableChange)(unsafe.Pointer(&mem[i*stride]))
			*c = kernelPfTableChange{Address: addressKey(e.Prefix.Addr())}
			if e.Not {
				c.Negated = 1
			}
		}
		did, err := a.run(kernelPfTableRequest{Op: op, Tables: 1 << n, Count: uint32(len(some))})
		changed += did
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

func addressKey(addr netip.Addr) (k kernelPfAddress) {
	words := addr.As16()
	for i := range k.Word {
		k.Word[i] = binary.NativeEndian.Uint32(words[4*i:])
	}
	return k
}

func (k *kernelPfAddress) addr() netip.Addr {
	var words [16]byte
	for i, w := range k.Word {
		binary.NativeEndian.PutUint32(words[4*i:], w)
	}
	return netip.AddrFrom16(words).Unmap()
}

// lookup returns the entry of the smallest network that contains the key's network, nil
// if there is none. A key of one address finds the address itself, too.
func (a *addresses) lookup(k kernelPfPrefix) (*kernelPfMember, error) {
	m := new(kernelPfMember)
	err := ebpf.ErrKeyNotExist
	if k.Bits == hostBits {
		err = a.host(netip.AddrFrom16(k.Address), m)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		err = a.nets.Lookup(k, m)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	return m, err
}

// host reads the entry of an address that is listed by itself.
func (a *addresses) host(addr netip.Addr, m *kernelPfMember) error {
	var h kernelPfHost
	if err := a.hosts.Lookup(addressKey(addr), &h); err != nil {
		return err
	}
	*m = kernelPfMember{Match: h.Match, Here: h.Here, Bits: hostBits}
	return nil
}

// listed reads the entry of exactly this address or network, if there is one.
func (a *addresses) listed(p netip.Prefix, m *kernelPfMember) (bool, error) {
	var err error
	key := prefixKey(p)
	if p.IsSingleIP() {
		err = a.host(p.Addr(), m)
	} else {
		err = a.nets.Lookup(key, m)
	}
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return false, nil
	}
	return err == nil && m.Bits == uint64(key.Bits), err
}

// parent returns the entry of the smallest network that is larger than the key's network,
// nil if there is none.
func (a *addresses) parent(k kernelPfPrefix) (*kernelPfMember, error) {
	if k.Bits == 0 || k == v4Net {
		return nil, nil
	}
	m := new(kernelPfMember)
	err := a.nets.Lookup(k.shortened(k.Bits-1), m)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, nil
	}
	return m, err
}

// split separates the entries that are addresses from those that are networks.
func split(entries []pf.TableEntry) (hosts, nets []pf.TableEntry) {
	for _, e := range entries {
		if e.Prefix.IsSingleIP() {
			hosts = append(hosts, e)
		} else {
			nets = append(nets, e)
		}
	}
	return hosts, nets
}

// few is the largest number of networks that are changed one by one. For more, all networks
// are read.
const few = 32

// add does the work of TableAdd.
func (a *addresses) add(n int, entries []pf.TableEntry) (int, error) {
	hosts, nets := split(entries)
	did, err := a.changeNets(n, nets, true)
	if err != nil {
		return did, err
	}
	more, err := a.changeHosts(kernelPfTableOpPF_TABLE_ADD, n, hosts)
	return did + more, err
}

// delete does the work of TableDelete.
func (a *addresses) delete(n int, entries []pf.TableEntry) (int, error) {
	hosts, nets := split(entries)
	did, err := a.changeNets(n, nets, false)
	if err != nil {
		return did, err
	}
	more, err := a.changeHosts(kernelPfTableOpPF_TABLE_DELETE, n, hosts)
	return did + more, err
}

// clear empties tables, and returns the number of entries that they had.
func (a *addresses) clear(tables uint64) (int, error) {
	t, err := a.readNets()
	if err != nil {
		return 0, err
	}
	did := 0
	for i := range t {
		did += bits.OnesCount64(t[i].Here & tables)
		t[i].Here &^= tables
		t[i].Match &^= tables
	}
	if err := errors.Join(a.writeNets(t), a.noteNets(-did)); err != nil {
		return 0, err
	}
	more, err := a.run(kernelPfTableRequest{Op: kernelPfTableOpPF_TABLE_CLEAR, Tables: tables})
	return did + more, err
}

// fillAll sets the contents of tables.
func (a *addresses) fillAll(list []TableFill) error {
	for _, f := range list {
		if err := a.fill(f.Table, f.Entries); err != nil {
			return fmt.Errorf("fill table %d: %w", f.Table, err)
		}
	}
	return nil
}

// fill replaces the contents of a table by these entries.
func (a *addresses) fill(n int, entries []pf.TableEntry) error {
	if _, err := a.clear(1 << n); err != nil {
		return err
	}
	_, err := a.add(n, entries)
	return err
}

// each calls f with every network and address. For an address, only the fields Match and Here
// are set.
func (a *addresses) each(f func(netip.Prefix, *kernelPfMember)) error {
	err := eachOf(a.nets, func(keys []kernelPfPrefix, values []kernelPfMember) error {
		for i := range keys {
			f(keys[i].prefix(), &values[i])
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the networks: %w", err)
	}
	err = eachOf(a.hosts, func(keys []kernelPfAddress, values []kernelPfHost) error {
		for i := range keys {
			addr := keys[i].addr()
			f(netip.PrefixFrom(addr, addr.BitLen()), &kernelPfMember{Match: values[i].Match, Here: values[i].Here})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("read the addresses: %w", err)
	}
	return nil
}

// walk does the work of TableWalk.
func (a *addresses) walk(n int, f func(pf.TableEntry)) error {
	bit := uint64(1) << n
	return a.each(func(p netip.Prefix, m *kernelPfMember) {
		if m.Here&bit != 0 {
			f(pf.TableEntry{Not: m.Match&bit == 0, Prefix: p})
		}
	})
}

// net is a network with its new and its former value in the trie.
type net struct {
	key kernelPfPrefix
	kernelPfMember
	was kernelPfMember // zero if it was not there
}

// readNets returns all networks, in the order of compareKeys.
func (a *addresses) readNets() ([]net, error) {
	var list []net
	err := eachOf(a.nets, func(keys []kernelPfPrefix, values []kernelPfMember) error {
		for i := range keys {
			list = append(list, net{keys[i], values[i], values[i]})
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the networks: %w", err)
	}
	sortNets(list)
	return list, nil
}

func sortNets(list []net) {
	slices.SortFunc(list, func(a, b net) int { return compareKeys(a.key, b.key) })
}

// writeNets makes the trie match the list: networks that no table lists are removed.
func (a *addresses) writeNets(list []net) error {
	var keys []kernelPfPrefix
	var values []kernelPfMember
	for _, e := range list {
		if (e.Here != 0 || e.key == v4Net) && e.kernelPfMember != e.was {
			keys, values = append(keys, e.key), append(values, e.kernelPfMember)
		}
	}
	if len(keys) > 0 {
		if err := putMany(a.nets, keys, values); errors.Is(err, unix.ENOSPC) {
			return ErrTableFull
		} else if err != nil {
			return fmt.Errorf("store networks: %w", err)
		}
	}
	for i := range list {
		e := &list[i]
		if e.Here != 0 || e.key == v4Net || e.was == (kernelPfMember{}) {
			continue
		}
		if err := a.nets.Delete(e.key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("delete network %s: %w", e.key.prefix(), err)
		}
	}
	return nil
}

// inherit gives each network of the list the values of the next larger one, for tables that
// do not list the network itself. The list is in the order of compareKeys: all parts of a
// network follow it.
func inherit(list []net, tables uint64, parent *kernelPfMember) {
	var above []*net
	for i := range list {
		e := &list[i]
		for len(above) > 0 && !above[len(above)-1].key.contains(e.key) {
			above = above[:len(above)-1]
		}
		from := uint64(0)
		switch {
		case e.key == v4Net:
		case len(above) > 0:
			from = above[len(above)-1].Match
		case parent != nil:
			from = parent.Match
		}
		take := tables
		if e.was == (kernelPfMember{}) {
			take = ^uint64(0) // a new network inherits for all tables
		}
		take &^= e.Here
		e.Match = e.Match&^take | from&take
		above = append(above, e)
	}
}

// changeNets adds networks to a table, or deletes them.
func (a *addresses) changeNets(n int, entries []pf.TableEntry, add bool) (changed int, err error) {
	if len(entries) == 0 {
		return 0, nil
	}
	if len(entries) > few {
		list, err := a.readNets()
		if err != nil {
			return 0, err
		}
		return a.changeIn(list, nil, n, entries, add, kernelPfPrefix{})
	}
	for _, e := range entries {
		key := prefixKey(e.Prefix)
		list, err := a.below(key)
		if err != nil {
			return changed, err
		}
		parent, err := a.parent(key)
		if err != nil {
			return changed, err
		}
		did, err := a.changeIn(list, parent, n, []pf.TableEntry{e}, add, key)
		changed += did
		if err != nil {
			return changed, err
		}
	}
	return changed, nil
}

// changeIn does the same with the networks of the list. These are all networks in `within`,
// or all that there are.
func (a *addresses) changeIn(list []net, parent *kernelPfMember, n int, entries []pf.TableEntry, add bool, within kernelPfPrefix) (changed int, err error) {
	bit := uint64(1) << n
	at := make(map[kernelPfPrefix]int, len(entries))
	if len(entries) == 1 {
		if i, ok := slices.BinarySearchFunc(list, within, func(e net, k kernelPfPrefix) int { return compareKeys(e.key, k) }); ok {
			at[within] = i
		}
	} else {
		for i := range list {
			at[list[i].key] = i
		}
	}
	for _, e := range entries {
		key := prefixKey(e.Prefix)
		i, ok := at[key]
		if !ok && !add {
			continue
		}
		if !ok {
			i = len(list)
			at[key] = i
			list = append(list, net{key: key, kernelPfMember: kernelPfMember{Bits: uint64(key.Bits)}})
		}
		m := &list[i]
		switch {
		case add && m.Here&bit == 0:
			m.Here |= bit
			m.Match |= bit
			if e.Not {
				m.Match &^= bit
			}
		case !add && m.Here&bit != 0 && m.Match&bit == 0 == e.Not:
			m.Here &^= bit
		default:
			continue
		}
		changed++
	}
	if changed == 0 {
		return 0, nil
	}
	sortNets(list)
	inherit(list, bit, parent)
	if add {
		if err := a.noteNets(changed); err != nil {
			return 0, err
		}
	}
	if err := a.writeNets(list); err != nil {
		return 0, err
	}
	if !add {
		if err := a.noteNets(-changed); err != nil {
			return 0, err
		}
	}
	_, err = a.run(kernelPfTableRequest{Op: kernelPfTableOpPF_TABLE_INHERIT, Tables: bit, Prefix: within})
	return changed, err
}

// below returns the networks that are in within, including within itself if it is there, in
// the order of compareKeys.
//
// The trie returns its networks one after another, the parts of a network before the
// network. The iteration has to begin with a network that is there. So the first one, the
// lowest address, is added for the moment, with the values that it inherits.
func (a *addresses) below(within kernelPfPrefix) (list []net, err error) {
	first := kernelPfPrefix{Bits: hostBits, Address: within.Address}
	m := kernelPfMember{}
	if err := a.nets.Lookup(first, &m); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil, err
	}
	m.Here, m.Bits = 0, hostBits
	if err := put(a.nets, first, m); err != nil {
		return nil, fmt.Errorf("look for the networks in %s: %w", within.prefix(), err)
	}
	defer func() {
		if derr := a.nets.Delete(first); derr != nil {
			err = errors.Join(err, derr)
		}
	}()
	var key kernelPfPrefix
	for last := first; ; last = key {
		err := a.nets.NextKey(last, &key)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			break
		}
		if err != nil {
			return nil, err
		}
		if !within.contains(key) {
			break
		}
		var m kernelPfMember
		if err := a.nets.Lookup(key, &m); err != nil {
			return nil, err
		}
		// IPv6 networks do not contain IPv4, though their keys do
		if within.Bits >= v4Bits || !v4Net.contains(key) {
			list = append(list, net{key, m, m})
		}
	}
	sortNets(list)
	return list, nil
}

// lateHosts adds addresses to the tables of g that the datapath has added to the former
// tables while these were copied.
func lateHosts(g *generation, c *Config, from *ebpf.Map) error {
	a, err := g.addresses(c)
	if err != nil {
		return err
	}
	late := map[int][]pf.TableEntry{}
	err = eachOf(from, func(keys []kernelPfAddress, values []kernelPfHost) error {
		for i := range keys {
			var now kernelPfHost
			if err := a.hosts.Lookup(&keys[i], &now); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			addr := keys[i].addr()
			for n := range pf.MaxTables {
				if values[i].Here&^now.Here>>n&1 != 0 {
					late[n] = append(late[n], pf.TableEntry{Prefix: netip.PrefixFrom(addr, addr.BitLen())})
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for n, entries := range late {
		if _, err := a.changeHosts(kernelPfTableOpPF_TABLE_ADD, n, entries); err != nil {
			return err
		}
	}
	return nil
}
