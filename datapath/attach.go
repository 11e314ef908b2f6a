// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A hook is a place in a device where a port's program sits.
type hook int

const (
	hookTCX hook = iota
	hookXDP
)

// The names of the hooks.
const (
	HookTCX = "tcx"
	HookXDP = "xdp"
)

func (h hook) String() string { return [...]string{HookTCX, HookXDP}[h] }

// A PortError says that a program could not be put on a port.
type PortError struct {
	Port string
	Hook string // HookTCX or HookXDP
	Err  error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("%s on %s: %v", e.Hook, e.Port, e.Err)
}

func (e *PortError) Unwrap() error { return e.Err }

// A pinnedLink ties a port's device to a program, by its pin's name.
type pinnedLink struct {
	path string
	port uint32 // id
	hook hook
}

// links returns the bridge's, whether their devices are there or not.
func (b *Bridge) links() ([]pinnedLink, error) {
	entries, err := os.ReadDir(b.pin("link"))
	if err != nil {
		return nil, err
	}
	var links []pinnedLink
	for _, e := range entries {
		id, name, _ := strings.Cut(e.Name(), "-")
		port, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("unknown pin %s", b.pin("link", e.Name()))
		}
		l := pinnedLink{b.pin("link", e.Name()), uint32(port), hookTCX}
		if name == hookXDP.String() {
			l.hook = hookXDP
		}
		links = append(links, l)
	}
	return links, nil
}

func (b *Bridge) link(id uint32, h hook) pinnedLink {
	return pinnedLink{b.pin("link", fmt.Sprintf("%d-%s", id, h)), id, h}
}

// update swaps the program under the link in one step; a link whose device is
// gone stays as it is. It is said to the kernel in so many words, as all links of a
// bridge are updated by each change: the library would ask what each link is.
func (l pinnedLink) update(p *ebpf.Program) error {
	path, err := unix.BytePtrFromString(l.path)
	if err != nil {
		return err
	}
	// union bpf_attr of linux/bpf.h, for BPF_OBJ_GET and BPF_LINK_UPDATE
	get := struct {
		path uint64
		_    [2]uint32
	}{path: uint64(uintptr(unsafe.Pointer(path)))}
	fd, _, errno := unix.Syscall(unix.SYS_BPF, unix.BPF_OBJ_GET, uintptr(unsafe.Pointer(&get)), unsafe.Sizeof(get))
	runtime.KeepAlive(path)
	if errno != 0 {
		return &fs.PathError{Op: "open", Path: l.path, Err: errno}
	}
	defer unix.Close(int(fd))
	change := struct{ link, program, flags, old uint32 }{uint32(fd), uint32(p.FD()), 0, 0}
	_, _, errno = unix.Syscall(unix.SYS_BPF, unix.BPF_LINK_UPDATE, uintptr(unsafe.Pointer(&change)), unsafe.Sizeof(change))
	runtime.KeepAlive(p)
	if errno != 0 && errno != unix.ENOLINK {
		return fmt.Errorf("link update: %w", errno)
	}
	return nil
}

// remove takes the program off the device before it returns.
func (l pinnedLink) remove() error {
	open, err := link.LoadPinnedLink(l.path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		// fails where the device is gone, and the program with it
		_ = open.Detach()
		open.Close()
	}
	return os.Remove(l.path)
}

// attach puts the programs of g on the ports of c that do not have them yet. It
// returns the links that it made, also when it fails.
func (b *Bridge) attach(c *Config, g *generation) (made []pinnedLink, err error) {
	links, err := b.links()
	if err != nil {
		return nil, err
	}
	there := map[string]bool{}
	for _, l := range links {
		there[l.path] = true
	}
	hurry := b.store.hurry()
	defer hurry.end()
	for _, p := range Ports(c) {
		if p.Facts&PortPatch != 0 {
			continue
		}
		hooks := []hook{hookTCX}
		if p.Notes&PortXDPRx != 0 {
			hooks = append(hooks, hookXDP)
		}
		for _, h := range hooks {
			l := b.link(p.Id, h)
			if there[l.path] {
				continue
			}
			if PortAt(&b.Config, p.Id) != nil && !b.HasDevice(p) {
				continue
			}
			hurry.step()
			if err := attachOne(l, g.program(h), int(p.Ifindex)); err != nil {
				return made, &PortError{PortName(p), h.String(), err}
			}
			made = append(made, l)
		}
	}
	return made, nil
}

func attachOne(l pinnedLink, p *ebpf.Program, ifindex int) error {
	var open link.Link
	var err error
	if l.hook == hookXDP {
		open, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex, Flags: link.XDPDriverMode})
	} else {
		open, err = link.AttachTCX(link.TCXOptions{Program: p, Interface: ifindex, Attach: ebpf.AttachTCXIngress})
	}
	if err != nil {
		if l.hook == hookXDP {
			err = driverWords(p, ifindex, err)
		}
		return err
	}
	defer open.Close()
	return open.Pin(l.path)
}

// It is for the whole process, and read with each request: so it is set before
// there are any.
func init() { nl.EnableErrorMessageReporting = true }

// driverWords asks why the driver takes no XDP program: links do not tell, but
// the older way of attaching does.
func driverWords(p *ebpf.Program, ifindex int, err error) error {
	device, lookup := netlink.LinkByIndex(ifindex)
	if lookup != nil {
		return err
	}
	// does not put anything in the place of a program that is there
	const flags = nl.XDP_FLAGS_DRV_MODE | nl.XDP_FLAGS_UPDATE_IF_NOEXIST
	words := netlink.LinkSetXdpFdWithFlags(device, p.FD(), flags)
	if words == nil {
		// it has taken it, this time
		_ = netlink.LinkSetXdpFdWithFlags(device, -1, nl.XDP_FLAGS_DRV_MODE)
		return err
	}
	return words
}

// HasDevice reports whether the port's device is there: the very one that it
// was added with, in the bridge's network namespace, not another that has got
// the same index since.
func (b *Bridge) HasDevice(p *Port) bool {
	held := b.store.open[b.dir]
	if held == nil || held.gen != b.gen {
		m, err := b.openTable(kernelMapTcxDevices)
		if err != nil {
			return false
		}
		if held != nil {
			held.Close()
		}
		held = &heldTable{b.gen, m}
		if b.store.open == nil {
			defer held.Close()
		} else {
			b.store.open[b.dir] = held
		}
	}
	var ifindex uint32
	return held.Lookup(Slot(p.Id), &ifindex) == nil && ifindex == p.Ifindex
}

// Away says of a port without a device whether that still exists, in whatever network
// namespace, and its index if it is back in the calling thread's: it has the port's
// program on it. The index may be another than it was.
func (b *Bridge) Away(p *Port) (away bool, back uint32) {
	open, err := link.LoadPinnedLink(b.link(p.Id, hookTCX).path, nil)
	if err != nil {
		return false, 0
	}
	defer open.Close()
	info, err := open.Info()
	if err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return false, 0 // it was deleted
	}
	// of that index there may be another one here, while it is elsewhere
	on, err := link.QueryPrograms(link.QueryOptions{Target: int(info.TCX().Ifindex), Attach: ebpf.AttachTCXIngress})
	if err != nil || !slices.ContainsFunc(on.Programs, func(a link.AttachedProgram) bool {
		id, has := a.LinkID()
		return has && id == info.ID
	}) {
		return true, 0
	}
	return true, info.TCX().Ifindex
}

// DropXDP takes the program of XDP off a port's device that is away, or back: there
// can be but one on a device.
func (b *Bridge) DropXDP(p *Port) error {
	return b.link(p.Id, hookXDP).remove()
}

// Forsake ends the tie between a port whose device is away, or back, and that
// device, which is another bridge's by now: it counts as deleted then.
func (b *Bridge) Forsake(p *Port) error {
	if err := b.DropXDP(p); err != nil {
		return err
	}
	return b.link(p.Id, hookTCX).remove()
}

// Replace puts the device of a port, which has come back, into the tables again.
// The caller holds the lock and is in the bridge's network namespace.
func (b *Bridge) Replace(p *Port) error {
	g, err := b.openGeneration()
	if err != nil {
		return err
	}
	defer g.Close()
	return g.place(p)
}

// alive reports whether any device of the bridge still exists, in whatever
// network namespace.
func (b *Bridge) alive() bool {
	links, err := b.links()
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, l := range links {
		open, err := link.LoadPinnedLink(l.path, nil)
		if err != nil {
			continue
		}
		info, err := open.Info()
		open.Close()
		if err == nil && info.TCX() != nil && info.TCX().Ifindex != 0 {
			return true
		}
	}
	return false
}
