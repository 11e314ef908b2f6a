// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"
	"unsafe"

	"github.com/cilium/ebpf"
)

// A bridge of a former layout is taken over by an ordinary change. The change begins with a
// generation that has the whole bridge in the present layout: tables whose layout is the
// same are shared, the others are copied. The former programs stay at the ports meanwhile.
// This generation is never made current. A Commit makes another one of it, which becomes
// current, and whose programs then come to the ports one by one. A frame may come in by a
// port that has the new programs and leave by one that has the former ones: both use the
// same tables of devices, addresses and states.
//
// A command that is killed before the Commit leaves the bridge as it was. A command that is
// killed after it leaves a bridge of the present layout, which Mend finishes. For Mend, the
// generation in the present layout is the former one.

// live are the tables that programs write, and that decide about frames. A bridge is taken
// over only if both layouts have the same form of these, as the former programs and the new
// ones use them side by side.
var live = []string{
	kernelMapFdb, kernelMapShared, kernelMapTimer, kernelMapTcxDevices, kernelMapXdpDevices, kernelMapBindings,
	kernelMapPfBuckets, kernelMapPfStates, kernelMapPfStamps, kernelMapPfSources, kernelMapPfFragments, kernelMapPfNets,
}

// derived fills fields that the former layout did not have into copied tables, if other
// tables determine them.
var derived = map[string]func(b *Bridge, copied *ebpf.Map) error{kernelMapPfHosts: (*Bridge).deriveNets}

// deriveNets notes, with each address that is listed by itself, the tables that contain it
// by a network.
func (b *Bridge) deriveNets(hosts *ebpf.Map) error {
	nets, err := b.openTable(kernelMapPfNets)
	if err != nil {
		return err
	}
	defer nets.Close()
	return eachOf(hosts, func(keys []kernelPfAddress, values []kernelPfHost) error {
		for i := range keys {
			var net kernelPfMember
			err := nets.Lookup(kernelPfPrefix{Bits: hostBits, Address: keys[i].addr().As16()}, &net)
			if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
			values[i].Nets = net.Match
		}
		return putMany(hosts, keys, values)
	})
}

// A FormerError reports that a bridge is of a former layout.
type FormerError struct {
	Layout uint32
	Err    error // why it can't be taken over, nil if it can
}

func (e *FormerError) Error() string {
	if e.Err != nil {
		return fmt.Sprintf("%v: %v", ErrLayout, e.Err)
	}
	return ErrLayout.Error()
}

// Is reports whether err is ErrLayout.
func (e *FormerError) Is(err error) bool { return err == ErrLayout }

func (e *FormerError) Unwrap() error { return e.Err }

// formerly returns Open's error for a bridge of a former layout, nil for others.
func (b *Bridge) formerly() error {
	if b.former == 0 {
		return nil
	}
	return &FormerError{b.former, b.adoptable()}
}

// adoptable returns the reason why a bridge can't be taken over, nil if it can.
func (b *Bridge) adoptable() error {
	was, is := recordOf(b.former), recordOf(layout)
	for _, name := range []string{"struct control", "enum control_op"} {
		if !was.sameType(is, name) {
			return fmt.Errorf("its programs take other requests (%s)", name)
		}
	}
	for i := range inventory {
		t := &inventory[i]
		shared := t.life == lifeNamespace && patched(&b.Config)
		if !shared && !slices.Contains(live, t.name) || t.pf() && !loadedPF(&b.Config) {
			continue
		}
		if was.pinned(t.name) != "" && !was.sameTable(is, t.name) {
			return fmt.Errorf("its programs and this version's cannot both use the table %s", t.name)
		}
	}
	return nil
}

// readFormer reads the configuration of a former layout by its record.
func (b *Bridge) readFormer(config, settings *ebpf.Map) error {
	var raw [2][]byte
	for i, m := range []*ebpf.Map{config, settings} {
		var err error
		if raw[i], err = m.LookupBytes(uint32(0)); err != nil {
			return err
		}
	}
	number := former(raw[0], raw[1])
	if number == 0 {
		return ErrLayout
	}
	r := &rereading{from: recordOf(number), to: recordOf(layout), lost: map[string]bool{}}
	var c Config
	err := errors.Join(
		r.value(bytesOf(&c.kernelConfig), "struct config of 0", raw[0], "struct config of 0"),
		r.value(bytesOf(&c.kernelSettings), "struct settings of 0", raw[1], "struct settings of 0"))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrLayout, err)
	}
	c.Layout = layout
	// the kernel's offsets: this version may need more of them
	c.DeviceAt, c.DeviceState, c.Skb, c.Route = 0, 0, kernelSkbPlaces{}, kernelRoutePlaces{}
	b.Config, b.former, b.lost = c, number, slices.Sorted(maps.Keys(r.lost))
	return nil
}

func bytesOf[T any](v *T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(v)), unsafe.Sizeof(*v))
}

// Adopt makes a generation that has the whole bridge of a former layout in the present one,
// and returns the bridge with that generation. Commit makes it the bridge's, with programs
// of this build. Tables of pf's rules have to come with it, as the former compiler made the
// present contents. Without a Commit, Abandon removes the generation. lost names settings
// and tables that the present layout does not have. If a command was killed before, the
// Commit leaves its work to Mend. The caller holds the lock.
func (b *Bridge) Adopt() (next *Bridge, lost []string, err error) {
	if err := b.adoptable(); err != nil {
		return nil, nil, fmt.Errorf("%w: %w", ErrLayout, err)
	}
	if err := b.keepSpare("", false); err != nil {
		return nil, nil, err
	}
	next = &Bridge{store: b.store, dir: b.dir, gen: b.nextGeneration(), Config: b.Config, adopted: b.gen, killed: b.Dirty()}
	if err := os.RemoveAll(next.pin(next.gen)); err != nil { // remains of a killed command
		return nil, nil, err
	}
	lost = b.lost
	err = os.Mkdir(next.pin(next.gen), 0o700)
	if err == nil {
		err = b.adoptTables(next, &lost)
	}
	if err == nil {
		err = b.adoptPrograms(next)
	}
	if err == nil {
		err = next.pinConfig(next.gen, &next.Config)
	}
	if err == nil {
		err = next.moor()
	}
	if err != nil {
		return nil, nil, errors.Join(err, next.Abandon())
	}
	return next, lost, nil
}

// Abandon removes the generation that Adopt has made, unless a Commit has used it.
func (b *Bridge) Abandon() error {
	if b.adopted == "" {
		return nil
	}
	return b.drop(b.gen)
}

// adoptPrograms pins the programs of the ports in the generation, too.
func (b *Bridge) adoptPrograms(next *Bridge) error {
	for pin := range progPins {
		p, err := openProgram(b.pin(b.gen, pin))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		err = p.Pin(next.pin(next.gen, pin))
		p.Close()
		if err != nil {
			return fmt.Errorf("pin %s: %w", pin, err)
		}
	}
	return nil
}

// adoptTables pins the tables of b for next. Tables that are the same in both layouts are
// shared, others are copied.
func (b *Bridge) adoptTables(next *Bridge, lost *[]string) error {
	specs, err := next.tableSpecs()
	if err != nil {
		return err
	}
	var copies []string
	for _, t := range pinned(&next.Config) {
		m, copied, err := b.adoptTable(t, specs[t.name], lost)
		if err == nil {
			err = m.Pin(next.pin(next.gen, t.name))
			m.Close()
		}
		if err != nil {
			return fmt.Errorf("table %s: %w", t.name, err)
		}
		if copied {
			copies = append(copies, t.name)
		}
	}
	for _, name := range copies { // from tables that are there by now
		if derive := derived[name]; derive != nil {
			m, err := next.openTable(name)
			if err != nil {
				return err
			}
			err = derive(next, m)
			m.Close()
			if err != nil {
				return fmt.Errorf("table %s: %w", name, err)
			}
		}
	}
	return nil
}

// adoptLate copies entries that the former programs have written since to those tables of g
// that are copies. The programs of g are at all ports by then.
func (b *Bridge) adoptLate(g *generation, c *Config) error {
	if b.adopted == "" {
		return nil
	}
	from := &Bridge{store: b.store, dir: b.dir, gen: b.adopted}
	if err := from.readConfig(); err != nil {
		return err
	}
	var specs map[string]*ebpf.MapSpec
	for _, t := range pinned(&b.Config) {
		if t.grows == nil || t.grows.copy == nil || recordOf(from.former).sameTable(recordOf(layout), t.name) {
			continue
		}
		if specs == nil {
			var err error
			if specs, err = b.tableSpecs(); err != nil {
				return err
			}
			_ = quiesce() // a frame may still be in the former programs
		}
		m, copied, err := from.adoptTable(t, specs[t.name], new([]string))
		if err == nil && copied {
			err = t.grows.copy(b, g, c, m, g.coll.Maps[t.name], true)
		}
		if m != nil {
			m.Close()
		}
		if err != nil {
			return fmt.Errorf("copy %s: %w", t.name, err)
		}
	}
	return nil
}

// tableSpecs returns the specifications of the tables for the bridge's configuration.
func (b *Bridge) tableSpecs() (map[string]*ebpf.MapSpec, error) {
	object, err := specOf(_KernelBytes)
	if err != nil {
		return nil, err
	}
	c := b.Config
	specialise(&c)
	fit(object.spec, &making{Config: &c})
	return object.spec.Maps, nil
}

// adoptTable returns a table of b in the present layout: the table itself, or a copy. If b
// does not have the table, the result is empty.
func (b *Bridge) adoptTable(t *table, spec *ebpf.MapSpec, lost *[]string) (m *ebpf.Map, copied bool, err error) {
	was, is := recordOf(b.former), recordOf(layout)
	there, err := openMap(b.pin(b.gen, t.name))
	if errors.Is(err, fs.ErrNotExist) {
		m, err = ebpf.NewMap(spec)
		return m, false, err
	}
	if err != nil || was.sameTable(is, t.name) {
		return there, false, err
	}
	defer there.Close()
	if is.shape(t.name).entries == anyEntries {
		spec.MaxEntries = there.MaxEntries()
	}
	if m, err = ebpf.NewMap(spec); err != nil {
		return nil, false, err
	}
	if err := readTable(m, there, is, was, t.name, lost); err != nil {
		m.Close()
		return nil, false, err
	}
	return m, true, nil
}

// anyEntries is a record's entry for a table whose number of entries is a setting.
const anyEntries = "as many entries as it takes"

// readTable reads all entries of a table of another layout.
func readTable(to, from *ebpf.Map, is, was record, name string, lost *[]string) error {
	switch to.Type() {
	case ebpf.RingBuf, ebpf.ProgramArray:
		return nil // unread records of a ring, and programs, are not copied
	case ebpf.Array, ebpf.Hash, ebpf.PerCPUArray, ebpf.PerCPUHash, ebpf.LRUHash, ebpf.LRUCPUHash, ebpf.LPMTrie:
	default:
		return fmt.Errorf("nothing reads a %v", to.Type())
	}
	r := &rereading{from: was, to: is, lost: map[string]bool{}}
	had, has := was.shape(name), is.shape(name)
	numbered := to.Type() == ebpf.Array || to.Type() == ebpf.PerCPUArray
	var key []byte
	for {
		next, err := from.NextKeyBytes(nilKey(key))
		if err != nil {
			return err
		}
		if next == nil {
			break
		}
		key = next
		value, err := from.LookupBytes(key)
		if err != nil {
			return err
		}
		if value == nil || zero(value) && numbered {
			continue // it has gone, or is the new table's initial value
		}
		as, values := make([]byte, sizeOf(has.key)), make([]byte, 0, len(value))
		if err := r.value(as, has.key, key, had.key); err != nil {
			return err
		}
		step := (sizeOf(had.value) + 7) &^ 7 // between the values of CPUs; other tables have one value
		for at := 0; at+sizeOf(had.value) <= len(value); at += step {
			one := make([]byte, (sizeOf(has.value)+7)&^7)
			if err := r.value(one[:sizeOf(has.value)], has.value, value[at:][:sizeOf(had.value)], had.value); err != nil {
				return err
			}
			values = append(values, one...)
		}
		if err := putBytes(to, as, values); err != nil {
			return err
		}
	}
	*lost = append(*lost, slices.Sorted(maps.Keys(r.lost))...)
	return nil
}

// nilKey returns key as the library expects it: nil begins with the first key.
func nilKey(key []byte) any {
	if key == nil {
		return nil
	}
	return key
}
