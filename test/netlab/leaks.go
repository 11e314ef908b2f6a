// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/cilium/ebpf/pin"
	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// stateRoot is the folder of the switch's pins.
const stateRoot = "/run/bascule"

// Objects are BPF objects in the kernel, by their IDs.
type Objects struct {
	Maps     map[ebpf.MapID]bool
	Programs map[ebpf.ProgramID]bool
	Links    map[link.ID]bool
}

func (o Objects) String() string {
	return fmt.Sprintf("maps %v, programs %v, links %v", slices.Sorted(maps.Keys(o.Maps)),
		slices.Sorted(maps.Keys(o.Programs)), slices.Sorted(maps.Keys(o.Links)))
}

// remove removes the objects that other has from o.
func (o Objects) remove(other Objects) {
	maps.DeleteFunc(o.Maps, func(id ebpf.MapID, _ bool) bool { return other.Maps[id] })
	maps.DeleteFunc(o.Programs, func(id ebpf.ProgramID, _ bool) bool { return other.Programs[id] })
	maps.DeleteFunc(o.Links, func(id link.ID, _ bool) bool { return other.Links[id] })
}

// Renewed waits until the switch has none of its former programs. The kernel frees them a moment after their last use.
// The links that had these programs must still exist.
func (l *Lab) Renewed(before Objects) {
	l.t.Helper()
	var now Objects
	l.Wait("the programs from before to go", func() bool {
		var err error
		now, err = l.Objects()
		l.must(err)
		for id := range before.Programs {
			if now.Programs[id] {
				return false
			}
		}
		return true
	})
	for id := range before.Links {
		if !now.Links[id] {
			l.t.Errorf("link %d was there before, and has gone", id)
		}
	}
}

// Abandon permits the objects that the switch has now to stay in the kernel, because another program holds them.
func (l *Lab) Abandon() {
	l.t.Helper()
	o, err := l.Objects()
	l.must(err)
	l.abandoned = append(l.abandoned, o)
}

// names describes the remaining maps. They will not be freed any more, so it may open them.
func (o Objects) names() string {
	var b strings.Builder
	for _, id := range slices.Sorted(maps.Keys(o.Maps)) {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		if info, err := m.Info(); err == nil {
			fmt.Fprintf(&b, "; map %d is %s, a %v", id, info.Name, info.Type)
		}
		m.Close()
	}
	return b.String()
}

func (o Objects) empty() bool { return len(o.Maps)+len(o.Programs)+len(o.Links) == 0 }

// stateDir returns the folder of the switch's state for the lab's namespace.
func (l *Lab) stateDir() (string, error) {
	cookie, err := l.Switch.Cookie()
	if err != nil {
		return "", err
	}
	return filepath.Join(stateRoot, strconv.FormatUint(cookie, 10)), nil
}

// Objects finds the BPF objects of the lab's switch: pinned objects, and programs without a pin that use a pinned map.
func (l *Lab) Objects() (Objects, error) {
	o := Objects{map[ebpf.MapID]bool{}, map[ebpf.ProgramID]bool{}, map[link.ID]bool{}}
	dir, err := l.stateDir()
	if err != nil {
		return o, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return o, nil
	}
	// A bridge may or may not have a spare program, whatever its configuration. Spare programs are not counted.
	spare := map[ebpf.ProgramID]bool{}
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) || err == nil && !d.Type().IsRegular() {
			return nil
		}
		if err != nil {
			return err
		}
		object, err := pin.Load(path, nil)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // removed in the meantime
		}
		if err != nil {
			return err
		}
		defer object.Close()
		if filepath.Base(filepath.Dir(path)) != "spare" {
			return o.add(object)
		}
		program, ok := object.(*ebpf.Program)
		if !ok {
			return nil
		}
		info, err := program.Info()
		if err != nil {
			return err
		}
		id, _ := info.ID()
		spare[id] = true
		return nil
	})
	if err != nil {
		return o, fmt.Errorf("pins in %s: %w", dir, err)
	}
	err = o.addUsers()
	maps.DeleteFunc(o.Programs, func(id ebpf.ProgramID, _ bool) bool { return spare[id] })
	return o, err
}

func (o Objects) add(object any) error {
	switch object := object.(type) {
	case *ebpf.Map:
		info, err := object.Info()
		if err != nil {
			return err
		}
		if id, ok := info.ID(); ok {
			o.Maps[id] = true
		}
	case *ebpf.Program:
		info, err := object.Info()
		if err != nil {
			return err
		}
		o.addProgram(info)
	case link.Link:
		info, err := object.Info()
		if err != nil {
			return err
		}
		o.Links[info.ID] = true
		o.Programs[info.Program] = true
	}
	return nil
}

func (o Objects) addProgram(info *ebpf.ProgramInfo) {
	if id, ok := info.ID(); ok {
		o.Programs[id] = true
	}
}

// addUsers adds all programs that use one of the maps.
func (o Objects) addUsers() error {
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list BPF programs: %w", err)
		}
		id = next
		used, err := mapsOf(id)
		if errors.Is(err, os.ErrNotExist) {
			continue // freed in the meantime
		}
		if err != nil {
			return fmt.Errorf("maps of BPF program %d: %w", id, err)
		}
		if slices.ContainsFunc(used, func(id ebpf.MapID) bool { return o.Maps[id] }) {
			o.Programs[id] = true
		}
	}
}

// mapsOf returns the maps that a program uses. There are hundreds of programs while tests run in parallel, and
// ebpf.Program.Info would read everything about each.
func mapsOf(id ebpf.ProgramID) ([]ebpf.MapID, error) {
	byID := struct{ id, _, flags uint32 }{id: uint32(id)}
	fd, err := bpf(unix.BPF_PROG_GET_FD_BY_ID, unsafe.Pointer(&byID), unsafe.Sizeof(byID))
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	const most = 64 // MAX_USED_MAPS (linux/bpf_verifier.h)
	var ids [most]ebpf.MapID
	// The beginning of struct bpf_prog_info (linux/bpf.h); the kernel fills in only this part.
	info := struct {
		_    [52]byte
		n    uint32
		maps unsafe.Pointer
	}{n: most, maps: unsafe.Pointer(&ids)}
	request := struct {
		fd, length uint32
		info       unsafe.Pointer
	}{uint32(fd), uint32(unsafe.Sizeof(info)), unsafe.Pointer(&info)}
	if _, err := bpf(unix.BPF_OBJ_GET_INFO_BY_FD, unsafe.Pointer(&request), unsafe.Sizeof(request)); err != nil {
		return nil, err
	}
	return slices.Clone(ids[:min(info.n, most)]), nil
}

// bpf calls bpf(2).
func bpf(command int, attributes unsafe.Pointer, size uintptr) (int, error) {
	n, _, errno := unix.Syscall(unix.SYS_BPF, uintptr(command), uintptr(attributes), size)
	if errno != 0 {
		return -1, errno
	}
	return int(n), nil
}

// remaining returns the objects that are still in the kernel.
func (o Objects) remaining() Objects {
	r := Objects{map[ebpf.MapID]bool{}, map[ebpf.ProgramID]bool{}, map[link.ID]bool{}}
	for id := range o.Maps {
		// It does not open the objects. The kernel clears an array of programs in the background after its last
		// reference is dropped. If a program opens and closes the array before that is done, the array stays
		// for ever (up to Linux 6.18, prog_array_map_clear() takes a reference each time, and releases one).
		if next, err := ebpf.MapGetNextID(id - 1); err == nil && next == id {
			r.Maps[id] = true
		}
	}
	for id := range o.Programs {
		if p, err := ebpf.NewProgramFromID(id); err == nil {
			p.Close()
			r.Programs[id] = true
		}
	}
	for id := range o.Links {
		if l, err := link.NewFromID(id); err == nil {
			l.Close()
			r.Links[id] = true
		}
	}
	return r
}

// device has the properties of a device that a switch may change and must restore.
type device struct {
	promiscuous int
	allmulti    int
	features    map[string]bool
}

func (l *Lab) device(name string) device {
	l.t.Helper()
	d := device{features: l.features(l.Switch, name)}
	nl, err := l.Switch.Netlink().LinkByName(name)
	l.must(err)
	d.promiscuous, d.allmulti = int(nl.Attrs().Promisc), int(nl.Attrs().Allmulti)
	return d
}

// features returns the offloads of a device, true if they are on.
func (l *Lab) features(ns *ends.Namespace, name string) (features map[string]bool) {
	l.t.Helper()
	l.must(ns.Do(func() error {
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		features, err = e.Features(name)
		return err
	}))
	return features
}

// Features returns the offloads of the end, true if they are on.
func (e *End) Features() map[string]bool {
	e.lab.t.Helper()
	return e.lab.features(e.Namespace, e.Ifname)
}

// Unchanged returns an error that describes how the device of the end's port differs from its state before it became a
// port.
func (e *End) Unchanged() error {
	l := e.lab
	l.t.Helper()
	var errs []error
	nl, err := l.Switch.Netlink().LinkByIndex(e.PortIndex)
	if err != nil {
		return fmt.Errorf("%s: %w", e.Port, err)
	}
	now := l.device(nl.Attrs().Name)
	if now.promiscuous != e.before.promiscuous || now.allmulti != e.before.allmulti {
		errs = append(errs, fmt.Errorf("%s: promiscuity %d, all-multicast %d; before %d, %d", e.Port,
			now.promiscuous, now.allmulti, e.before.promiscuous, e.before.allmulti))
	}
	for f, on := range e.before.features {
		if now.features[f] != on {
			errs = append(errs, fmt.Errorf("%s: feature %s is %v, before %v", e.Port, f, now.features[f], on))
		}
	}
	if nl.Attrs().Xdp != nil && nl.Attrs().Xdp.Attached {
		errs = append(errs, fmt.Errorf("%s: an XDP program is attached", e.Port))
	}
	errs = append(errs, l.Switch.Do(func() error { return NoPrograms(e.PortIndex) }))
	return errors.Join(errs...)
}

// NoPrograms returns an error that lists the tcx programs of a device in the calling thread's network namespace.
func NoPrograms(ifindex int) error {
	var errs []error
	for _, at := range []ebpf.AttachType{ebpf.AttachTCXIngress, ebpf.AttachTCXEgress} {
		q, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: at})
		if err != nil {
			errs = append(errs, fmt.Errorf("programs of interface %d: %w", ifindex, err))
		} else if len(q.Programs) > 0 {
			errs = append(errs, fmt.Errorf("interface %d: %d programs at %v", ifindex, len(q.Programs), at))
		}
	}
	return errors.Join(errs...)
}

// Forwards reports whether a device of the calling thread's network namespace has a program of the switch, other than
// the idle one, which leaves all frames to the kernel.
func Forwards(ifindex int) (bool, error) {
	q, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return false, fmt.Errorf("programs of interface %d: %w", ifindex, err)
	}
	for _, on := range q.Programs {
		p, err := ebpf.NewProgramFromID(on.ID)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted in the meantime
		}
		if err != nil {
			return false, err
		}
		info, err := p.Info()
		p.Close()
		if err != nil || info.Name != "bascule_idle" {
			return true, err
		}
	}
	return false, nil
}

// Nothing returns an error that lists the remains of the switch after its bridges were deleted: its former objects, its
// state folder, and programs on devices.
func (l *Lab) Nothing(had Objects) error {
	l.t.Helper()
	var errs []error
	dir, err := l.stateDir()
	if err != nil {
		return err
	}
	filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err == nil {
			errs = append(errs, fmt.Errorf("%s is left", path))
		}
		return nil
	})
	for _, o := range l.abandoned {
		had.remove(o)
	}
	// The kernel frees programs and maps a moment after their last use.
	left := had.remaining()
	for deadline := time.Now().Add(patience); !left.empty() && time.Now().Before(deadline); left = had.remaining() {
		time.Sleep(10 * time.Millisecond)
	}
	if !left.empty() {
		errs = append(errs, fmt.Errorf("still in the kernel: %v%s", left, left.names()))
	}
	for _, e := range l.Ends {
		if !e.gone {
			errs = append(errs, e.Unchanged())
		}
	}
	strangers, err := l.Strangers()
	errs = append(errs, err)
	for _, name := range strangers {
		errs = append(errs, fmt.Errorf("device %s is left", name))
	}
	return errors.Join(errs...)
}

// Strangers returns the devices in the switch's namespace that neither the lab
// nor the test made.
func (l *Lab) Strangers() ([]string, error) {
	links, err := l.Switch.Netlink().LinkList()
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		links, err = l.Switch.Netlink().LinkList()
	}
	var names []string
	for _, nl := range links {
		if !l.expected[nl.Attrs().Name] {
			names = append(names, nl.Attrs().Name)
		}
	}
	return names, err
}

// Keep notes that a device of the switch's namespace does not belong to the switch, and may exist when the test ends.
func (l *Lab) Keep(ifname string) { l.expected[ifname] = true }

// delBridges deletes all bridges of a namespace.
func delBridges(binary, netns string) error {
	r, err := RunCommand(exec.Command(binary, "-n", netns, "bridge", "del", "--all"))
	if err != nil {
		return err
	}
	if r.Exit != 0 || strings.TrimSpace(r.Stderr) != "" {
		return errors.New(r.String())
	}
	return nil
}

// close ends the lab. It deletes the bridges, whose objects may not remain, and everything that the lab made.
func (l *Lab) close() {
	l.t.Helper()
	if l.Switch != nil && program != "" {
		had, err := l.Objects()
		if err == nil {
			err = delBridges(l.binary, l.Switch.Name)
		}
		if err == nil {
			err = l.Nothing(had)
		}
		if err != nil {
			l.t.Errorf("after the test: %v", err)
		}
	}
	// The kernel ends a namespace with a delay. Until then another lab has a cable to nowhere.
	for _, name := range l.cables {
		link, err := l.Switch.Netlink().LinkByName(name)
		if err == nil {
			err = l.Switch.Netlink().LinkDel(link)
		}
		if err != nil && !errors.As(err, new(netlink.LinkNotFoundError)) && !errors.Is(err, unix.ENODEV) {
			l.t.Errorf("cable %s: %v", name, err)
		}
	}
	for _, e := range l.Ends {
		if e.made != nil && !e.gone {
			if err := e.restore(); err != nil {
				l.t.Errorf("card %s: %v", e.Port, err)
			}
		}
		if e.wire != nil {
			if err := e.giveBack(); err != nil {
				l.t.Errorf("cards of %s: %v", e.Port, err)
			}
		}
	}
	for _, s := range l.sockets {
		unix.Close(s.fd)
	}
	if l.fd >= 0 {
		unix.Close(l.fd)
	}
	for _, ns := range l.namespaces {
		if err := ns.Close(); err != nil {
			l.t.Error(err)
		}
	}
}
