// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A hook is a place in a device where a port's program is attached.
type hook int

const (
	hookTCX hook = iota
	hookXDP
	hookOut // at tcx, where frames leave
)

// The names of the hooks.
const (
	HookTCX     = "tcx"
	HookXDP     = "xdp"
	hookOutName = "out"
)

func (h hook) String() string { return [...]string{HookTCX, HookXDP, hookOutName}[h] }

// hooks are the places where a port's device has a program.
func hooks(p *Port) []hook {
	list := []hook{hookTCX}
	if p.Notes&PortXDPRx != 0 {
		list = append(list, hookXDP)
	}
	if p.Limit[LimitOut].Rate != 0 {
		list = append(list, hookOut)
	}
	return list
}

// A PortError reports that a program could not be attached to a port. With ENODEV the port's device
// has gone.
type PortError struct {
	Port string
	Hook string // HookTCX or HookXDP
	Err  error
}

func (e *PortError) Error() string {
	return fmt.Sprintf("%s on %s: %v", e.Hook, e.Port, e.Err)
}

func (e *PortError) Unwrap() error { return e.Err }

// goneError returns the error for a port whose device has gone.
func goneError(p *Port) error {
	return &PortError{PortName(p), HookTCX, fmt.Errorf("device %d: %w", p.Ifindex, unix.ENODEV)}
}

// A pinnedLink ties a port's device to a program, by its pin's name.
type pinnedLink struct {
	path string
	port uint32 // port: // id of the port => port: // id of the port
	hook hook
	owed string // folder of notes of devices that have settings to get back: see owed.go
}

// links returns the bridge's links, also of devices that are gone.
func (b *Bridge) links() ([]pinnedLink, error) {
	dir, owed := b.pin("link"), b.store.owedDir()
	folder, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(0)
	if err != nil {
		return nil, err
	}
	links := make([]pinnedLink, len(names))
	for i, pin := range names {
		path := dir + "/" + pin
		id, name, _ := strings.Cut(pin, "-")
		port, err := strconv.ParseUint(id, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("unknown pin %s", path)
		}
		links[i] = pinnedLink{path, uint32(port), hookTCX, owed}
		for _, h := range []hook{hookXDP, hookOut} {
			if name == h.String() {
				links[i].hook = h
			}
		}
	}
	return links, nil
}

func (b *Bridge) link(id uint32, h hook) pinnedLink {
	return pinnedLink{b.pin("link", strconv.FormatUint(uint64(id), 10)+"-"+h.String()), id, h, b.store.owedDir()}
}

// update swaps the program under the link in one step. A link whose device is gone
// stays as it is.
func (l pinnedLink) update(p *ebpf.Program) error {
	if err := updateLink(l.path, p); !errors.Is(err, unix.ENOLINK) {
		return err
	}
	return nil
}

// remove takes the program off the device before it returns. A device that has settings to get back
// keeps an idle program.
func (l pinnedLink) remove() error {
	open, err := link.LoadPinnedLink(l.path, nil)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		defer open.Close()
		if l.hook == hookTCX && isOwed(l.owed, open) {
			if err := l.rest(); err != nil {
				return err
			}
			return os.Remove(l.path)
		}
		// fails if the device is gone, and the program with it
		_ = open.Detach()
	}
	return os.Remove(l.path)
}

// rest replaces the link's program with the idle program. The link is one of tcx.
func (l pinnedLink) rest() error {
	idle, err := idleProgram()
	if err != nil {
		return err
	}
	defer idle.Close()
	return l.update(idle)
}

const (
	idleName = "bascule_idle"
	shutName = "port_shut"
)

// idleProgram makes a program that leaves all frames to the kernel. It ties a device to a port that
// is not yet, or no longer, a port. So the device is found wherever it is moved meanwhile.
func idleProgram() (*ebpf.Program, error) {
	const next = -1 // TCX_NEXT
	return loadShort(idleName, ebpf.SchedCLS, ebpf.AttachTCXIngress, asm.Instructions{asm.Mov.Imm(asm.R0, next), asm.Return()})
}

// Shut keeps frames that a device of the calling thread's network namespace receives from the
// host's stack, until the returned link is closed or this process ends. A port's program runs
// first, and sees the frames.
func Shut(ifindex int) (io.Closer, error) {
	const drop = 2 // TCX_DROP
	p, err := loadShort(shutName, ebpf.SchedCLS, ebpf.AttachTCXIngress, asm.Instructions{asm.Mov.Imm(asm.R0, drop), asm.Return()})
	if err != nil {
		return nil, err
	}
	defer p.Close()
	return attachOpen(hookTCX, p, ifindex)
}

// tie ties the devices of new ports of c to these ports, before any setting of the devices is
// changed. New ports are those that the bridge does not have.
func (b *Bridge) tie(c *Config) error {
	idle, err := idleProgram()
	if err != nil {
		return err
	}
	defer idle.Close()
	hurry := b.store.hurry()
	defer hurry.end()
	for _, p := range Ports(c) {
		if p.Facts&PortPatch != 0 || PortAt(&b.Config, p.Id) != nil {
			continue
		}
		hurry.begin()
		if err := attachOne(b.link(p.Id, hookTCX), idle, int(p.Ifindex)); err != nil {
			return &PortError{PortName(p), HookTCX, err}
		}
	}
	return nil
}

// untie removes the links of ports that the bridge does not have.
func (b *Bridge) untie() error {
	links, err := b.links()
	if err != nil {
		return err
	}
	hurry := b.store.hurry()
	defer hurry.end()
	for _, l := range links {
		if PortAt(&b.Config, l.port) != nil {
			continue
		}
		hurry.begin()
		if err := l.remove(); err != nil {
			return err
		}
	}
	return nil
}

// attach attaches the programs of g to those ports of c that do not have them yet. It returns the
// links that it made, or that had the idle program, also when it fails.
func (b *Bridge) attach(c *Config, g *generation) (made []pinnedLink, err error) {
	links, err := b.links()
	if err != nil {
		return nil, err
	}
	type place struct {
		port uint32
		hook hook
	}
	there := make(map[place]bool, len(links))
	for _, l := range links {
		there[place{l.port, l.hook}] = true
	}
	hurry := b.store.hurry()
	defer hurry.end()
	for _, p := range Ports(c) {
		if p.Facts&PortPatch != 0 {
			continue
		}
		for _, h := range hooks(p) {
			was, tied := PortAt(&b.Config, p.Id), there[place{p.Id, h}]
			if tied && was != nil {
				continue
			}
			l := b.link(p.Id, h)
			if tied {
				made = append(made, l)
				if err := l.update(g.program(h)); err != nil {
					return made, &PortError{PortName(p), h.String(), err}
				}
				continue
			}
			if was != nil && !b.HasDevice(p) {
				continue
			}
			hurry.begin()
			if err := attachOne(l, g.program(h), int(p.Ifindex)); err != nil {
				refusal := &PortError{PortName(p), h.String(), err}
				if h == hookXDP && was != nil && was.Notes&PortXDPRx != 0 {
					// a command took it off, and was killed then
					b.unhooked = append(b.unhooked, refusal)
					continue
				}
				return made, refusal
			}
			made = append(made, l)
		}
	}
	return made, nil
}

func attachOne(l pinnedLink, p *ebpf.Program, ifindex int) error {
	open, err := attachOpen(l.hook, p, ifindex)
	if err != nil {
		return err
	}
	defer open.Close()
	return open.Pin(l.path)
}

// attachOpen attaches a program to a device until the link that it returns is closed.
func attachOpen(h hook, p *ebpf.Program, ifindex int) (open link.Link, err error) {
	switch h {
	case hookXDP:
		open, err = link.AttachXDP(link.XDPOptions{Program: p, Interface: ifindex, Flags: link.XDPDriverMode})
	case hookOut:
		// behind other software's programs, which may change a frame or send it elsewhere
		open, err = link.AttachTCX(link.TCXOptions{Program: p, Interface: ifindex, Attach: ebpf.AttachTCXEgress})
	default:
		open, err = link.AttachTCX(link.TCXOptions{Program: p, Interface: ifindex, Attach: ebpf.AttachTCXIngress})
	}
	if err != nil {
		if h == hookXDP {
			err = driverWords(p, ifindex, err)
		}
		return nil, err
	}
	return open, nil
}

// The setting is for the whole process, and each request reads it. So it is set before the first
// request.
func init() { nl.EnableErrorMessageReporting = true }

// driverWords returns the driver's reason for refusing an XDP program. Links do not report the
// reason, but the older way of attaching does.
func driverWords(p *ebpf.Program, ifindex int, err error) error {
	device, lookup := netlink.LinkByIndex(ifindex)
	if lookup != nil {
		return err
	}
	// The flags leave an attached program alone.
	const flags = nl.XDP_FLAGS_DRV_MODE | nl.XDP_FLAGS_UPDATE_IF_NOEXIST
	words := netlink.LinkSetXdpFdWithFlags(device, p.FD(), flags)
	if words == nil {
		// The driver has taken the program this time.
		_ = netlink.LinkSetXdpFdWithFlags(device, -1, nl.XDP_FLAGS_DRV_MODE)
		return err
	}
	return words
}

// HasDevice reports whether the port's device is in the bridge's network namespace. It
// has to be the very device that the port was added with, not another one that has got
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

// Programmed reports whether a device of the calling thread's network namespace may have a program
// at tcx's ingress. A device that is, or was, a port of any bridge has one as long as a link leads
// to it: see Away.
func Programmed(ifindex uint32) bool {
	n, err := programsAt(ifindex)
	return err != nil || n > 0
}

// Behind returns the names of other software's programs that come behind a port's own at tcx's
// ingress. No frame of the port reaches them. The device of the port has to be there.
func (b *Bridge) Behind(p *Port) (names []string) {
	if n, err := programsAt(p.Ifindex); err != nil || n < 2 {
		return nil
	}
	own, err := link.LoadPinnedLink(b.link(p.Id, hookTCX).path, nil)
	if err != nil {
		return nil
	}
	defer own.Close()
	is, err := own.Info()
	if err != nil {
		return nil
	}
	there, err := link.QueryPrograms(link.QueryOptions{Target: int(p.Ifindex), Attach: ebpf.AttachTCXIngress})
	if err != nil {
		return nil
	}
	behind := false
	for _, at := range there.Programs {
		id, ok := at.LinkID()
		if !behind {
			behind = ok && id == is.ID
			continue
		}
		if name := programName(at.ID); name != idleName && name != shutName {
			names = append(names, name)
		}
	}
	return names
}

// programName returns a program's name, or its number if it has no name or is gone.
func programName(id ebpf.ProgramID) string {
	if p, err := ebpf.NewProgramFromID(id); err == nil {
		defer p.Close()
		if is, err := p.Info(); err == nil && is.Name != "" {
			return is.Name
		}
	}
	return strconv.FormatUint(uint64(id), 10)
}

// Away finds the device of a port that has none here. away says whether the device still
// exists, in any network namespace. back is the device's index if it is back in the calling
// thread's namespace, 0 if not; it may differ from the former index. The port's program on the
// device identifies it.
func (b *Bridge) Away(p *Port) (away bool, back uint32) { return b.tieOf(p).find() }

// A Tie leads to a port's device, in any network namespace.
type Tie struct {
	path  string        // path of the link, which is one of tcx
	open  link.Link     // the link, if it has no path yet
	index func() uint32 // of the device, if there is no link: in the bridge's network namespace only
}

func (b *Bridge) tieOf(p *Port) Tie { return Tie{path: b.link(p.Id, hookTCX).path} }

// Exists reports whether the device still exists, in any network namespace.
func (t Tie) Exists() bool {
	there, _ := t.find()
	return there
}

// Here returns the index of the device in the calling thread's network namespace, 0 if
// it is not there.
func (t Tie) Here() uint32 {
	_, here := t.find()
	return here
}

func (t Tie) find() (exists bool, here uint32) {
	if t.index != nil {
		here = t.index()
		return here != 0, here
	}
	open := t.open
	if open == nil {
		var err error
		if open, err = link.LoadPinnedLink(t.path, nil); err != nil {
			return false, 0
		}
		defer open.Close()
	}
	info, err := open.Info()
	if err != nil || info.TCX() == nil || info.TCX().Ifindex == 0 {
		return false, 0 // it was deleted
	}
	// Another device may have that index here, while the port's device is elsewhere.
	on, err := link.QueryPrograms(link.QueryOptions{Target: int(info.TCX().Ifindex), Attach: ebpf.AttachTCXIngress})
	if err != nil || !slices.ContainsFunc(on.Programs, func(a link.AttachedProgram) bool {
		id, has := a.LinkID()
		return has && id == info.ID
	}) {
		return true, 0
	}
	return true, info.TCX().Ifindex
}

// Stranger reports whether a device of the calling thread's network namespace is a port of a bridge
// that is below the [Root] of another mount namespace only. (A device that has been moved here from
// another network namespace is a port of a bridge below this Root.)
func (s *Store) Stranger(ifindex int) (bool, error) {
	on, err := link.QueryPrograms(link.QueryOptions{Target: ifindex, Attach: ebpf.AttachTCXIngress})
	if errors.Is(err, unix.ENODEV) {
		return false, nil // it has gone: attaching a program to it will fail
	}
	if err != nil {
		return false, fmt.Errorf("programs on device %d: %w", ifindex, err)
	}
	var ties []link.ID
	for _, a := range on.Programs {
		id, tied := a.LinkID()
		own, err := isSwitch(a.ID)
		if err != nil {
			return false, err
		}
		if tied && own {
			ties = append(ties, id)
		}
	}
	if len(ties) == 0 {
		return false, nil
	}
	root := filepath.Dir(s.dir)
	pins, err1 := filepath.Glob(filepath.Join(root, "*", "*", "link", "*-"+HookTCX))
	owed, err2 := filepath.Glob(filepath.Join(root, "*", owedName, "*", owedLink))
	if err := errors.Join(err1, err2); err != nil {
		return false, err
	}
	for _, pin := range append(pins, owed...) {
		open, err := link.LoadPinnedLink(pin, nil)
		if err != nil {
			continue // it has gone
		}
		info, err := open.Info()
		open.Close()
		if err == nil {
			ties = slices.DeleteFunc(ties, func(id link.ID) bool { return id == info.ID })
		}
	}
	return len(ties) > 0, nil
}

// isSwitch reports whether a program is one of a port's.
func isSwitch(id ebpf.ProgramID) (bool, error) {
	p, err := ebpf.NewProgramFromID(id)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // it has gone
	}
	if err != nil {
		return false, fmt.Errorf("program %d: %w", id, err)
	}
	defer p.Close()
	info, err := p.Info()
	if err != nil {
		return false, fmt.Errorf("program %d: %w", id, err)
	}
	return info.Name == kernelProgBasculeTcx || info.Name == idleName, nil
}

// DropXDP takes the XDP program off a port's device that is away, or back. A device has room for
// only one such program.
func (b *Bridge) DropXDP(p *Port) error {
	return b.link(p.Id, hookXDP).remove()
}

// Forsake ends the tie between a port and its device, which is away or back, and belongs to another
// bridge by now. For this bridge the device then counts as deleted.
func (b *Bridge) Forsake(p *Port) error {
	for _, h := range []hook{hookXDP, hookOut, hookTCX} {
		if err := b.link(p.Id, h).remove(); err != nil {
			return err
		}
	}
	return nil
}

// Replace enters the device of a port, which has come back, into the tables again. The caller holds
// the lock and is in the bridge's network namespace.
func (b *Bridge) Replace(p *Port) error {
	g, err := b.openGeneration()
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.place(p); err != nil {
		return err
	}
	return b.attachOut(p)
}

// attachOut attaches the program for frames that leave by a port to its device, if the port has a
// limit for these and the device does not have the program.
func (b *Bridge) attachOut(p *Port) error {
	l := b.link(p.Id, hookOut)
	if _, err := os.Lstat(l.path); err == nil || !slices.Contains(hooks(p), hookOut) {
		return nil
	}
	program, err := openProgram(b.pin(b.gen, outPin))
	if err != nil {
		return err
	}
	defer program.Close()
	return attachOne(l, program, int(p.Ifindex))
}

// alive reports whether any device of the bridge still exists, in any network namespace.
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
