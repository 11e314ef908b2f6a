// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	gocmp "github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A shelf is the store of a rack's namespace. All of its bridges are removed
// when the test ends.
type shelf struct {
	t     testing.TB
	rack  *rack
	store *Store
}

func newShelf(t testing.TB, cables int) *shelf {
	t.Helper()
	s := &shelf{t: t, rack: ownRack(t, cables)}
	s.do(func() (err error) {
		s.store, err = OpenStore()
		return err
	})
	t.Cleanup(func() {
		if err := os.RemoveAll(s.store.dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// do runs f in the namespace, as the only writer.
func (s *shelf) do(f func() error) {
	s.t.Helper()
	if err := s.try(f); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shelf) try(f func() error) error {
	return s.rack.do(func() error {
		if s.store == nil {
			return f()
		}
		unlock, err := s.store.Lock()
		if err != nil {
			return err
		}
		defer unlock()
		return f()
	})
}

// create makes a bridge with the rack's first devices.
func (s *shelf) create(name string, ports int, change ...func(c *Config, p []*Port)) *Bridge {
	s.t.Helper()
	var b *Bridge
	s.do(func() (err error) {
		if err := s.store.Create(name, newConfig(s.rack, 0)); err != nil {
			return err
		}
		if b, err = s.store.Open(name); err != nil {
			return err
		}
		if ports == 0 && len(change) == 0 {
			return nil
		}
		next := newConfig(s.rack, ports, change...)
		return b.Commit(&next, Tables{}, keepAll)
	})
	return b
}

func (s *shelf) open(name string) *Bridge {
	s.t.Helper()
	b, err := s.store.Open(name)
	if err != nil {
		s.t.Fatal(err)
	}
	return b
}

// keepAll gives back no settings: these ports took none.
var keepAll keeper

type keeper struct{}

func (keeper) Leave(*Port, *Port, Tie) (*Port, error) { return nil, nil }

func (keeper) Follow(*Bridge, *Bridge) error { return nil }

// commit makes a change to a bridge's configuration.
func (s *shelf) commit(b *Bridge, change func(c *Config, p []*Port)) error {
	return s.try(func() error {
		next := b.Config
		change(&next, Ports(&next))
		return b.Commit(&next, Tables{}, keepAll)
	})
}

// send sends frames in turn by the far end of a cable, as fast as possible, until stop
// is called.
func (s *shelf) send(cable int, frames ...[]byte) (stop func()) {
	end, ended := make(chan bool), make(chan error)
	jobs := s.rack.worker()
	jobs <- func() {
		ended <- func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			for i := 0; ; i++ {
				select {
				case <-end:
					return nil
				default:
				}
				err := unix.Sendto(fd, frames[i%len(frames)], 0, &unix.SockaddrLinklayer{Ifindex: int(s.rack.far[cable])})
				if err != nil && err != unix.ENOBUFS {
					return err
				}
			}
		}()
	}
	return func() {
		s.t.Helper()
		close(end)
		close(jobs)
		if err := <-ended; err != nil {
			s.t.Fatal(err)
		}
	}
}

// attached returns the ids of the programs on a device.
func (s *shelf) attached(ifindex uint32) (tcx []ebpf.ProgramID, xdp uint32) {
	s.t.Helper()
	err := s.rack.do(func() error {
		result, err := link.QueryPrograms(link.QueryOptions{Target: int(ifindex), Attach: ebpf.AttachTCXIngress})
		if err != nil {
			return err
		}
		for _, p := range result.Programs {
			tcx = append(tcx, p.ID)
		}
		l, err := netlink.LinkByIndex(int(ifindex))
		if err == nil && l.Attrs().Xdp != nil {
			xdp = l.Attrs().Xdp.ProgId
		}
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	return tcx, xdp
}

// programID returns the id of a program of the current generation.
func programID(t testing.TB, b *Bridge, pin string) ebpf.ProgramID {
	t.Helper()
	p, err := ebpf.LoadPinnedProgram(b.pin(b.gen, pin), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		t.Fatal(err)
	}
	id, _ := info.ID()
	return id
}

// expectAttached fails the test unless the ports of a bridge, and no other
// devices of the rack, have the current programs.
func (s *shelf) expectAttached(b *Bridge) {
	s.t.Helper()
	for i, ifindex := range s.rack.near {
		var wantTCX []ebpf.ProgramID
		var wantXDP uint32
		for _, p := range Ports(&b.Config) {
			if p.Ifindex != ifindex {
				continue
			}
			wantTCX = append(wantTCX, programID(s.t, b, tcxPin))
			if p.Notes&PortXDPRx != 0 {
				wantXDP = uint32(programID(s.t, b, xdpPin))
			}
			if !b.HasDevice(p) {
				s.t.Errorf("port %s is said to have no device", PortName(p))
			}
		}
		if tcx, xdp := s.attached(ifindex); !slices.Equal(tcx, wantTCX) || xdp != wantXDP {
			s.t.Errorf("near%d has programs %v (tcx) and %d (XDP), want %v and %d", i, tcx, xdp, wantTCX, wantXDP)
		}
	}
}

// tree lists all pinned objects of a bridge, with their types.
func tree(t testing.TB, b *Bridge) (list []string) {
	t.Helper()
	err := filepath.WalkDir(b.dir, func(path string, d fs.DirEntry, err error) error {
		name := strings.TrimPrefix(path, b.dir)
		if err == nil && d.Type()&fs.ModeSymlink != 0 {
			to, _ := os.Readlink(path)
			name += " -> " + to
		}
		list = append(list, name)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func expectTree(t testing.TB, b *Bridge, links ...string) {
	t.Helper()
	want := []string{"", "/current -> " + b.gen, "/" + b.gen, "/link"}
	dirs := []string{"/" + b.gen}
	if _, err := os.Stat(b.pin(sparePin)); err == nil {
		want, dirs = append(want, "/"+sparePin), append(dirs, "/"+sparePin)
	}
	for _, dir := range dirs {
		for _, name := range []string{configPin, settingsPin, controlPin, clockPin, build()} {
			want = append(want, dir+"/"+name)
		}
		if len(Ports(&b.Config)) > 0 {
			want = append(want, dir+"/"+tcxPin)
		}
		for _, t := range pinned(&b.Config) {
			want = append(want, dir+"/"+t.name)
		}
		for _, p := range Ports(&b.Config) {
			if p.Notes&PortXDPRx != 0 {
				want = append(want, dir+"/"+xdpPin)
				break
			}
		}
		if limited(&b.Config) {
			want = append(want, dir+"/"+outPin)
		}
	}
	for _, l := range links {
		want = append(want, "/link/"+l)
	}
	slices.Sort(want)
	got := tree(t, b)
	slices.Sort(got)
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("pins (-want +got):\n%s", diff)
	}
}

func linkNames(b *Bridge) (names []string) {
	for _, p := range Ports(&b.Config) {
		names = append(names, fmt.Sprintf("%d-tcx", p.Id))
		if p.Notes&PortXDPRx != 0 {
			names = append(names, fmt.Sprintf("%d-xdp", p.Id))
		}
		if p.Limit[LimitOut].Rate != 0 {
			names = append(names, fmt.Sprintf("%d-out", p.Id))
		}
	}
	return names
}

func TestBridgeLife(t *testing.T) {
	s := newShelf(t, 3)
	if names, err := s.store.Names(); err != nil || len(names) != 0 {
		t.Fatalf("bridges %q, %v, want none", names, err)
	}
	if _, err := s.store.Open("br0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("open of what is not there: %v", err)
	}
	b := s.create("br0", 0)
	s.create("a.b%", 0)
	if names, err := s.store.Names(); err != nil || !slices.Equal(names, []string{"a.b%", "br0"}) {
		t.Errorf("bridges %q, %v", names, err)
	}
	if !s.store.Exists("br0") || !s.store.Exists("a.b%") || s.store.Exists("br1") {
		t.Error("Exists is wrong")
	}
	expectTree(t, b)
	s.expectAttached(b)

	// two ports, one of them with XDP
	err := s.commit(b, func(c *Config, _ []*Port) {
		*c = newConfig(s.rack, 2, func(_ *Config, p []*Port) { p[1].Notes |= PortXDP | PortXDPRx })
	})
	if err != nil {
		t.Fatal(err)
	}
	expectTree(t, b, linkNames(b)...)
	s.expectAttached(b)
	if again := s.open("br0"); again.Config != b.Config || again.gen != b.gen {
		t.Error("another process reads another configuration")
	}

	// XDP is removed from one port, and added to the other
	err = s.commit(b, func(_ *Config, p []*Port) {
		p[0].Notes |= PortXDP | PortXDPRx
		p[1].Notes &^= PortXDP | PortXDPRx
	})
	if err != nil {
		t.Fatal(err)
	}
	expectTree(t, b, linkNames(b)...)
	s.expectAttached(b)

	// one port leaves, another comes
	old := s.open("br0")
	err = s.commit(b, func(c *Config, p []*Port) { *p[0] = Port{} })
	if err != nil {
		t.Fatal(err)
	}
	err = s.commit(b, func(c *Config, _ []*Port) {
		p := NewPort(c, "near2")
		p.Ifindex, p.Flags = s.rack.near[2], PortLearn|floods
	})
	if err != nil {
		t.Fatal(err)
	}
	expectTree(t, b, linkNames(b)...)
	s.expectAttached(b)
	if old.Current() || !b.Current() {
		t.Error("the old configuration is current, or the new one is not")
	}

	s.do(func() error { return b.Remove(keepAll) })
	s.do(func() error { return s.open("a.b%").Remove(keepAll) })
	for i, ifindex := range s.rack.near {
		if tcx, xdp := s.attached(ifindex); len(tcx) > 0 || xdp != 0 {
			t.Errorf("near%d still has programs %v and %d", i, tcx, xdp)
		}
	}
	if _, err := os.Stat(s.store.dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the namespace's folder is left: %v", err)
	}
}

// One commit removes a port and gives its slot to another.
func TestCommitReplacesPort(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2)
	replace := func(c *Config, p []*Port) {
		slot := Slot(p[0].Id)
		*p[0] = Port{}
		n := NewPort(c, "near2")
		n.Ifindex, n.Flags = s.rack.near[2], PortLearn|floods
		if Slot(n.Id) != slot {
			t.Fatalf("slot %d, want the free one, %d", Slot(n.Id), slot)
		}
	}
	// the first try fails, which must not harm the port that was to leave
	err := s.commit(b, func(c *Config, p []*Port) {
		replace(c, p)
		NewPort(c, "nobody").Ifindex = 1 << 30
	})
	if err == nil {
		t.Fatal("no error of a port without a device")
	}
	s.expectAttached(b)
	if err := s.commit(b, replace); err != nil {
		t.Fatal(err)
	}
	s.expectAttached(b)
	expectTree(t, b, linkNames(b)...)
}

// A commit that fails leaves everything as it was.
func TestCommitFails(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 2, func(_ *Config, p []*Port) { p[0].Notes |= PortXDP | PortXDPRx })
	ports := Ports(&b.Config)
	for n := range 20 {
		if err := b.Put(Entry{MAC: station(n), VLAN: uint16(n), Port: ports[n%2].Id, Static: true}); err != nil {
			t.Fatal(err)
		}
	}
	snapshot := func() string {
		t.Helper()
		entries, err := b.FDB()
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(entries, func(a, b Entry) int { return cmp.Compare(key(a.MAC, a.VLAN), key(b.MAC, b.VLAN)) })
		text := fmt.Sprintln(tree(t, b), entries)
		for slot := range b.Config.Slots + 3 {
			for _, m := range deviceMaps() {
				var ifindex uint32
				err := b.lookup(m, slot, &ifindex)
				text += fmt.Sprintln(m, slot, ifindex, err)
			}
		}
		for _, ifindex := range append(slices.Clone(s.rack.near), 1) {
			tcx, xdp := s.attached(ifindex)
			text += fmt.Sprintln(ifindex, tcx, xdp)
		}
		return text
	}
	before, config := snapshot(), b.Config
	tests := []struct {
		name   string
		change func(c *Config, p []*Port)
		hook   string
		port   string
	}{
		{"no such device", func(c *Config, _ []*Port) { NewPort(c, "nobody").Ifindex = 1 << 30 }, "tcx", "nobody"},
		{"a good port before", func(c *Config, _ []*Port) {
			NewPort(c, "near2").Ifindex = s.rack.near[2]
			NewPort(c, "nobody").Ifindex = 1 << 30
		}, "tcx", "nobody"},
		{"a larger FDB", func(c *Config, _ []*Port) {
			c.FdbMax = 5000
			NewPort(c, "nobody").Ifindex = 1 << 30
		}, "tcx", "nobody"},
		{"no XDP in the driver", func(c *Config, _ []*Port) {
			NewPort(c, "near2").Ifindex = s.rack.near[2]
			p := NewPort(c, "lo")
			p.Ifindex, p.Notes = 1, PortXDP|PortXDPRx
		}, "xdp", "lo"},
		{"a port leaves", func(c *Config, p []*Port) {
			*p[1] = Port{}
			NewPort(c, "nobody").Ifindex = 1 << 30
		}, "tcx", "nobody"},
	}
	for _, tt := range tests {
		err := s.commit(b, tt.change)
		var refusal *PortError
		if !errors.As(err, &refusal) || refusal.Hook != tt.hook || refusal.Port != tt.port {
			t.Errorf("%s: error %v, want one of %s on port %s", tt.name, err, tt.hook, tt.port)
		}
		if b.Config != config {
			t.Errorf("%s: the configuration has changed", tt.name)
		}
		if diff := gocmp.Diff(before, snapshot()); diff != "" {
			t.Fatalf("%s: (-before +after):\n%s", tt.name, diff)
		}
	}
	// and the next one works
	err := s.commit(b, func(c *Config, _ []*Port) {
		p := NewPort(c, "near2")
		p.Ifindex, p.Flags = s.rack.near[2], PortLearn|floods
	})
	if err != nil {
		t.Fatal(err)
	}
	s.expectAttached(b)
	expectTree(t, b, linkNames(b)...)
}

// Addresses that a port learned whose addition failed do not belong to the next port,
// which gets the same id.
func TestCommitFailsLate(t *testing.T) {
	s := newShelf(t, 4)
	b := s.create("br0", 2)
	stop := s.send(2, from(9))
	add := func(device int) error {
		return s.commit(b, func(c *Config, _ []*Port) {
			p := NewPort(c, "new")
			p.Ifindex, p.Flags = s.rack.near[device], PortLearn|floods
		})
	}
	// the last step cannot be made
	for _, dir := range []string{"next", "next/taken"} {
		if err := os.Mkdir(b.pin(dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for range 5 {
		if err := add(2); err == nil {
			t.Fatal("the change was made")
		}
	}
	stop()
	if err := os.RemoveAll(b.pin("next")); err != nil {
		t.Fatal(err)
	}
	if err := add(3); err != nil {
		t.Fatal(err)
	}
	if list, err := b.FDB(); err != nil || len(list) != 0 {
		t.Errorf("FDB %v, %v; want nothing of the device that never was a port", list, err)
	}
	if used, err := b.Usage(); err != nil || used[0] != 0 || used[3] != 0 {
		t.Errorf("addresses are counted: %d of the bridge, %d of the port, %v", used[0], used[3], err)
	}
}

// At whatever step a commit was killed, Mend finishes it or undoes it, depending on
// which configuration is current.
func TestMend(t *testing.T) {
	change := func(s *shelf, c *Config) {
		p := Ports(c)
		*p[0] = Port{}            // leaves
		p[1].Flags |= PortHairpin // changes
		for i := range 2 {        // come; the first takes the free slot
			p := NewPort(c, fmt.Sprintf("near%d", 2+i))
			p.Ifindex, p.Flags = s.rack.near[2+i], PortLearn|floods
		}
		// in a slot of its own
		c.Ports[9], c.Ports[1] = c.Ports[1], c.Ports[9]
		c.Ports[9].Id = Incarnation(c.Ports[9].Id)<<slotBits | 9
		specialise(c)
	}
	type step func(b *Bridge, c *Config, g *generation) error
	steps := []struct {
		name string
		do   step
	}{
		{"attach", func(b *Bridge, c *Config, g *generation) error { _, err := b.attach(c, g); return err }},
		{"moveIn", func(b *Bridge, c *Config, g *generation) error { return b.moveIn(c, g) }},
		{"pin", func(b *Bridge, _ *Config, g *generation) error { return b.pinGeneration(&Config{}, g) }},
		{"next", func(b *Bridge, _ *Config, g *generation) error { return os.Symlink(g.name, b.pin("next")) }},
		{"make current", func(b *Bridge, _ *Config, g *generation) error { return b.makeCurrent(g.name) }},
		{"half of the swaps", func(b *Bridge, c *Config, g *generation) error {
			return b.link(Ports(c)[0].Id, hookTCX).update(g.program(hookTCX))
		}},
	}
	for killed := range steps {
		t.Run("killed after "+steps[killed].name, func(t *testing.T) {
			s := newShelf(t, 4)
			b := s.create("br0", 2)
			if err := b.Put(Entry{MAC: station(1), Port: Ports(&b.Config)[0].Id, Static: true}); err != nil {
				t.Fatal(err)
			}
			if err := b.Put(Entry{MAC: station(2), Port: Ports(&b.Config)[1].Id, Static: true}); err != nil {
				t.Fatal(err)
			}
			s.do(func() error {
				if err := b.Begin(); err != nil {
					return err
				}
				next := b.Config
				change(s, &next)
				g, err := b.load(&next, Tables{})
				if err != nil {
					return err
				}
				defer g.Close()
				for _, step := range steps[:killed+1] {
					if err := step.do(b, &next, g); err != nil {
						return fmt.Errorf("%s: %w", step.name, err)
					}
				}
				return nil
			})
			b = s.open("br0")
			if !b.Dirty() {
				t.Error("nobody knows that a command was killed")
			}
			done := steps[killed].name == "make current" || steps[killed].name == "half of the swaps"
			if got := len(Ports(&b.Config)) == 3; got != done {
				t.Fatalf("the change is current: %v, want %v", got, done)
			}
			s.do(func() error { return b.Mend(keepAll) })
			s.do(b.Done)
			expectTree(t, b, linkNames(b)...)
			s.expectAttached(b)
			if b.Dirty() {
				t.Error("still dirty")
			}
			entries, err := b.FDB()
			if err != nil {
				t.Fatal(err)
			}
			if want := 2 - len(Ports(&b.Config))/3; len(entries) != want {
				t.Errorf("%d addresses, want %d", len(entries), want)
			}
			for slot := range b.Config.Ports {
				var ifindex uint32
				err := b.lookup(kernelMapTcxDevices, uint32(slot), &ifindex)
				if got, want := err == nil, b.Config.Ports[slot].Id != 0; got != want {
					t.Errorf("slot %d has a device: %v, want %v", slot, got, want)
				}
			}
			// and the change can be made (again)
			err = s.commit(b, func(c *Config, p []*Port) {
				if !done {
					change(s, c)
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			expectTree(t, b, linkNames(b)...)
			s.expectAttached(b)
		})
	}
}

// A bridge that was never finished, and a half-removed one, are swept.
func TestSweepStore(t *testing.T) {
	s := newShelf(t, 2)
	s.create("whole", 0)
	for _, name := range []string{"half", "half.removed"} {
		b := s.create(name, 0)
		if name == "half" {
			if err := s.commit(b, func(c *Config, _ []*Port) { *c = newConfig(s.rack, 2) }); err != nil {
				t.Fatal(err)
			}
		}
		s.do(func() error { return os.Remove(b.pin("current")) })
	}
	if names, _ := s.store.Names(); !slices.Equal(names, []string{"whole"}) {
		t.Errorf("bridges %q, want only the whole one", names)
	}
	s.do(func() error { return s.store.Sweep(keepAll) })
	entries, err := os.ReadDir(s.store.dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "whole" {
		t.Errorf("left: %v, %v", entries, err)
	}
	for i, ifindex := range s.rack.near {
		until(t, fmt.Sprintf("near%d is free", i), func() bool {
			tcx, _ := s.attached(ifindex)
			return len(tcx) == 0
		})
	}
	// the name is free again, too
	expectTree(t, s.create("half", 0))
}

// The FDB has the size that its maximum requires, and keeps its contents: it grows at
// once, and shrinks with the change after the one that lowers the maximum.
func TestGrow(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2, func(c *Config, _ []*Port) { c.FdbMax = 200 })
	ports := Ports(&b.Config)
	for n := range 200 {
		now, err := b.now()
		if err != nil {
			t.Fatal(err)
		}
		word := uint64(now)<<32 | uint64(ports[n%2].Id)
		if _, err := b.control(kernelControl{Op: kernelControlOpCONTROL_STORE, Key: key(station(n), uint16(n%5)), Word: word}); err != nil {
			t.Fatal(err)
		}
		if err := b.Put(Entry{MAC: station(1000 + n), Port: ports[n%2].Id, Static: n%4 == 0, Sticky: n%4 != 0}); err != nil {
			t.Fatal(err)
		}
	}
	list := func() map[uint64]Entry {
		t.Helper()
		entries, err := b.FDB()
		if err != nil {
			t.Fatal(err)
		}
		table := map[uint64]Entry{}
		for _, e := range entries {
			e.Updated = 0
			table[key(e.MAC, e.VLAN)] = e
		}
		if len(table) != len(entries) {
			t.Errorf("%d entries of %d addresses", len(entries), len(table))
		}
		return table
	}
	before := list()
	if len(before) != 400 {
		t.Fatalf("%d addresses, want 400", len(before))
	}
	for _, step := range []struct {
		maximum, room uint32
		over          bool
	}{
		{20000, 20000, false},
		{50, 20000, false}, // learned entries have to go first
		{250, 400, false},  // static entries are not counted, and stay
		{50000, 50000, false},
		{300, 50000, true},
		{300, 400, false},
		{100000, 100000, false},
	} {
		maximum := step.maximum
		if err := s.commit(b, func(c *Config, _ []*Port) { c.FdbMax = maximum }); err != nil {
			t.Fatal(err)
		}
		if diff := gocmp.Diff(before, list()); diff != "" {
			t.Fatalf("maximum %d: FDB (-before +after):\n%s", maximum, diff)
		}
		usage, err := b.Usage()
		if err != nil {
			t.Fatal(err)
		}
		if got := [...]uint32{usage[0], usage[1], usage[2]}; got != [...]uint32{200, 100, 100} {
			t.Errorf("maximum %d: dynamic entries %v, want [200 100 100]", maximum, got)
		}
		expectTree(t, b, linkNames(b)...)
		s.expectAttached(b)
		if over, err := b.Oversized(); err != nil || over != step.over {
			t.Errorf("maximum %d: oversized %t, %v", maximum, over, err)
		}
		if got := b.Config.FdbBuckets; got != buckets(step.room) {
			t.Errorf("maximum %d: %d buckets, want %d", maximum, got, buckets(step.room))
		}
	}
}

// Put, Delete and Flush, as package bridge calls them.
func TestEntries(t *testing.T) {
	s := newShelf(t, 2)
	b := s.create("br0", 2)
	port := Ports(&b.Config)[1].Id
	static := Entry{MAC: station(1), VLAN: 10, Port: port, Static: true}
	sticky := Entry{MAC: station(2), Port: port, Sticky: true}
	for _, e := range []Entry{static, sticky} {
		if err := b.Put(e); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := b.FDB()
	if err != nil || len(entries) != 2 || !slices.Contains(entries, static) || !slices.Contains(entries, sticky) {
		t.Errorf("FDB %+v, %v", entries, err)
	}
	if err := b.Delete(static.MAC, 0); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("delete in another VLAN: %v", err)
	}
	if err := b.Delete(static.MAC, 10); err != nil {
		t.Error(err)
	}
	vlan := uint16(3)
	for _, tt := range []struct {
		m    Match
		want int
	}{
		{Match{Dynamic: true}, 0}, {Match{VLAN: &vlan, Pinned: true}, 0}, {Match{Port: Ports(&b.Config)[0].Id, Pinned: true}, 0},
		{Match{Port: port, Pinned: true}, 1}, {Match{Pinned: true, Dynamic: true}, 0},
	} {
		if n, err := b.Flush(tt.m); n != tt.want || err != nil {
			t.Errorf("flush %+v: %d, %v; want %d", tt.m, n, err, tt.want)
		}
	}
}

// The entries of a port that has left do not belong to the next port in its slot.
func TestSlotIsUsedAgain(t *testing.T) {
	s := newShelf(t, 3)
	b := s.create("br0", 2)
	old := *Ports(&b.Config)[0]
	if err := b.Put(Entry{MAC: station(1), Port: old.Id, Static: true}); err != nil {
		t.Fatal(err)
	}
	frame := from(2)
	s.do(func() error {
		g, err := b.openGeneration()
		if err != nil {
			return err
		}
		defer g.Close()
		_, err = g.program(hookTCX).Run(&ebpf.RunOptions{Data: frame, Context: &skbContext{Ifindex: old.Ifindex}})
		return err
	})
	if stats, err := b.PortStats(&old); err != nil || stats.RxFrames != 1 || stats.Learned != 1 {
		t.Fatalf("counters %+v, %v; want 1 frame and 1 address", stats, err)
	}
	if err := s.commit(b, func(_ *Config, p []*Port) { *p[0] = Port{} }); err != nil {
		t.Fatal(err)
	}
	if entries, err := b.FDB(); err != nil || len(entries) != 0 {
		t.Errorf("FDB %+v, %v; want the leaving port's addresses gone", entries, err)
	}
	if b.HasDevice(&old) {
		t.Error("the port that has left has a device")
	}
	err := s.commit(b, func(c *Config, _ []*Port) {
		p := NewPort(c, "near2")
		p.Ifindex, p.Flags = s.rack.near[2], PortLearn|floods
	})
	if err != nil {
		t.Fatal(err)
	}
	next := Ports(&b.Config)[0]
	if Slot(next.Id) != Slot(old.Id) || next.Id == old.Id {
		t.Fatalf("ids %#x and then %#x, want another of the same slot", old.Id, next.Id)
	}
	if stats, err := b.PortStats(next); err != nil || stats != (Stats{}) {
		t.Errorf("counters of a new port %+v, %v", stats, err)
	}
	usage, err := b.Usage()
	if err != nil || usage[0] != 0 || usage[Slot(next.Id)] != 0 {
		t.Errorf("dynamic entries %v, %v; want none", usage[:3], err)
	}
}

func TestLock(t *testing.T) {
	s := newShelf(t, 0)
	tryLock := func() error {
		fd, err := unix.Open(s.store.dir, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
	}
	unlock, err := s.store.Lock()
	if err != nil {
		t.Fatal(err)
	}
	if err := tryLock(); err != unix.EWOULDBLOCK {
		t.Errorf("a second lock: %v, want %v", err, unix.EWOULDBLOCK)
	}
	unlock()
	if err := tryLock(); err != unix.ENOENT {
		t.Errorf("the folder of a namespace without bridges: %v, want %v", err, unix.ENOENT)
	}

	// the folder is removed and made again while others wait
	const writers, rounds = 4, 50
	var inside, most atomic.Int32
	errs := make(chan error)
	for range writers {
		go func() {
			for range rounds {
				unlock, err := s.store.Lock()
				if err != nil {
					errs <- err
					return
				}
				if n := inside.Add(1); n > most.Load() {
					most.Store(n)
				}
				inside.Add(-1)
				unlock()
			}
			errs <- nil
		}()
	}
	for range writers {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if most.Load() != 1 {
		t.Errorf("%d writers at once", most.Load())
	}
}

func TestDirty(t *testing.T) {
	s := newShelf(t, 0)
	b := s.create("br0", 0)
	if b.Dirty() {
		t.Error("a new bridge is dirty")
	}
	for range 2 {
		s.do(b.Begin)
		if !s.open("br0").Dirty() {
			t.Error("not dirty after Begin")
		}
	}
	for range 2 {
		s.do(b.Done)
		if s.open("br0").Dirty() {
			t.Error("dirty after Done")
		}
	}
}

// A configuration that another version has written is not read: one with another size,
// or one with this size and another number. Such a bridge can be removed, and made
// anew.
func TestOtherVersion(t *testing.T) {
	other := kernelConfig{Layout: layout - 1}
	ours := unsafe.Slice((*byte)(unsafe.Pointer(&other)), unsafe.Sizeof(other))
	for name, value := range map[string][]byte{"of another size": make([]byte, 64), "with another number": ours} {
		s := newShelf(t, 0)
		b := s.create("br0", 0)
		m, err := ebpf.NewMap(&ebpf.MapSpec{
			Type: ebpf.Array, KeySize: 4, ValueSize: uint32(len(value)), MaxEntries: 1,
			Contents: []ebpf.MapKV{{Key: uint32(0), Value: value}},
		})
		if err != nil {
			t.Fatal(err)
		}
		defer m.Close()
		s.do(func() error {
			if err := os.Remove(b.pin(b.gen, configPin)); err != nil {
				return err
			}
			return m.Pin(b.pin(b.gen, configPin))
		})
		strange, err := s.store.Open("br0")
		if !errors.Is(err, ErrLayout) || !strings.Contains(err.Error(), "another version") {
			t.Errorf("%s: error %v, want one that tells of another version", name, err)
			continue
		}
		s.do(func() error { return strange.Remove(keepAll) })
		if s.store.Exists("br0") {
			t.Errorf("%s: it is there after it was removed", name)
		}
		if b := s.create("br0", 0); b.Config.Layout != layout {
			t.Errorf("%s: it has layout %d when it is made anew", name, b.Config.Layout)
		}
	}
}

func TestNetnsCookie(t *testing.T) {
	a, b := ownRack(t, 0), ownRack(t, 0)
	var cookies []uint64
	for _, r := range []*rack{a, a, b} {
		err := r.do(func() error {
			c, err := NetnsCookie()
			cookies = append(cookies, c)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if cookies[0] != cookies[1] || cookies[0] == cookies[2] {
		t.Errorf("cookies %d, want two of the same namespace and another", cookies)
	}
}

// Only bridges whose namespace has ended are removed: no process is in it, and no
// port's device is left anywhere.
func TestRemoveAbandoned(t *testing.T) {
	ended, lives, empty := newShelf(t, 2), newShelf(t, 2), newShelf(t, 0)
	// in a file system of their own: any command removes abandoned bridges
	root := t.TempDir()
	if err := unix.Mount("test", root, "bpf", 0, "mode=0700"); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(root, 0)
	for _, s := range []*shelf{ended, lives, empty} {
		s.store.dir = filepath.Join(root, filepath.Base(s.store.dir))
	}
	ended.create("br0", 2)
	lives.create("br0", 2)
	empty.create("br0", 0)
	there := func(s *shelf) bool {
		_, err := os.Stat(filepath.Join(s.store.dir, "br0/current"))
		return !errors.Is(err, fs.ErrNotExist)
	}
	remove := func(dead ...*shelf) {
		t.Helper()
		err := removeAbandoned(root, func(cookie uint64) bool {
			return !slices.ContainsFunc(dead, func(s *shelf) bool {
				return filepath.Base(s.store.dir) == fmt.Sprint(cookie)
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	remove(lives, ended)
	if !there(ended) || !there(lives) || !there(empty) {
		t.Fatal("a bridge was removed whose ports have devices")
	}
	ended.rack.close()
	until(t, "the devices of the namespace are gone", func() bool { return !ended.store.alive() })
	remove()
	if !there(ended) || !there(lives) || !there(empty) {
		t.Fatal("a bridge was removed whose namespace lives")
	}
	remove(ended, lives)
	if there(ended) || !there(lives) || !there(empty) {
		t.Errorf("left: of the ended %v, of the living %v, without ports %v", there(ended), there(lives), there(empty))
	}
	remove(empty)
	if there(empty) {
		t.Error("a bridge without ports of a namespace that has ended is left")
	}
	// a killed command leaves the folders of its locks
	locks := []string{empty.store.dir + "%plans", empty.store.devicesDir()}
	for _, lock := range locks {
		if err := os.Mkdir(lock, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	remove(empty)
	for _, lock := range locks {
		if _, err := os.Stat(lock); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left of a namespace that has ended: %v", lock, err)
		}
	}
}

// TestPlansLeft: the next writer removes a killed command's remains of its lock on
// plans, and leaves the lock of a command at work alone.
func TestPlansLeft(t *testing.T) {
	s := newShelf(t, 0)
	plans := s.store.dir + "%plans"
	write := func() {
		t.Helper()
		unlock, err := s.store.Lock()
		if err != nil {
			t.Fatal(err)
		}
		unlock()
	}
	if err := os.Mkdir(plans, 0o700); err != nil { // as a kill leaves it
		t.Fatal(err)
	}
	write()
	if _, err := os.Stat(plans); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder of a killed command is left: %v", err)
	}
	unlock, err := s.store.LockPlans()
	if err != nil {
		t.Fatal(err)
	}
	write()
	if _, err := os.Stat(plans); err != nil {
		t.Errorf("the lock of one at work is gone: %v", err)
	}
	unlock()
}
