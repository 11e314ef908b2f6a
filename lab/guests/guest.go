// SPDX-License-Identifier: BSD-2-Clause

// Package guests makes virtual machines whose network cards are ends of the
// lab's fabrics. They run in QEMU, with a Debian kernel and a file system in memory that has the
// lab's own program as init process.
package guests

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

var qemu = ends.Program{Command: "qemu-system-x86_64", Package: "qemu-system-x86"}

// Most limits the guests of a pool: each one has a kernel and a file system in memory.
const Most = 8

// memoryMiB is the memory of a guest.
const memoryMiB = 256

// The accelerators of a guest.
const (
	KVM = "kvm" // by the processor
	TCG = "tcg" // by QEMU, which translates them
)

// TCGCPU returns the CPU model that QEMU emulates with TCG for a kernel release.
//
// Before Linux 6.18, without cmpxchg16b: QEMU 7.2 returns from it with wrong flags, which crashes
// Debian 12's Linux 6.12 at boot. From 6.18 on, kernels need it for the timers of BPF programs
// (kmalloc_nolock() of mm/slub.c).
//
// Without the fast string moves, erms and fsrm: TCG moves byte by byte, and the verifier of BPF
// programs moves so much that a CPU appears to hang.
func TCGCPU(release string) string {
	cpu := "max,-erms,-fsrm"
	if CompareReleases(release, "6.18") < 0 {
		cpu += ",-cx16"
	}
	return cpu
}

// Timeouts for the first answer of a guest. If KVM does not work, a guest hangs instead of failing,
// and every run loses this time.
const (
	kvmPatience = 10 * time.Second
	tcgPatience = 3 * time.Minute
)

// EndedError means that a virtual machine has ended while it was needed.
type EndedError struct {
	Number int    // of the machine, from 1
	Why    string // the process's result, and the last lines of its console
}

func (e *EndedError) Error() string {
	return fmt.Sprintf("virtual machine %d has ended: %s", e.Number, e.Why)
}

// Pool has the guests of a run. They are started when the first one is needed, and all cases use
// them.
type Pool struct {
	program  string
	programs []string
	at       *ends.Namespace // namespace of QEMU, nil for the lab's

	mu      sync.Mutex
	accel   string
	kernel  string // path of its image
	release string
	image   *os.File // the file system, in memory
	guests  []*Guest
	cards   int // number of cards plugged in so far
}

// NewPool returns a pool without guests. bascule is the path of the program that guests run as
// `bascule lab guest`; the guests also get the other programs, named by their commands, that are
// installed here.
func NewPool(bascule string, programs ...string) *Pool {
	return &Pool{program: bascule, programs: programs}
}

// In makes QEMU run in a network namespace, where it can make devices itself. It must be called
// before the first guest is started.
func (p *Pool) In(at *ends.Namespace) { p.at = at }

// Accelerator returns KVM or TCG, or "" before the first guest was started.
func (p *Pool) Accelerator() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accel
}

// Ready starts guests until there are n, and restarts ended ones. They end when ctx does. An
// ends.Unavailable is the reason why there can be none.
func (p *Pool) Ready(ctx context.Context, n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n > Most {
		return &ends.Unavailable{Reason: fmt.Sprintf("it has %d ends, and there are at most %d virtual machines", n, Most)}
	}
	if err := p.prepare(ctx); err != nil {
		return err
	}
	for len(p.guests) < n {
		p.guests = append(p.guests, nil)
	}
	if p.accel == "" {
		p.accel = TCG
		if f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0); err == nil {
			f.Close()
			if g, err := p.boot(ctx, 1, KVM, kvmPatience); err == nil {
				p.accel, p.guests[0] = KVM, g
			}
		}
	}
	var started sync.WaitGroup
	errs := make([]error, n)
	for i, g := range p.guests[:n] {
		if g != nil && g.ended.Err() == nil {
			continue
		}
		started.Go(func() {
			if p.guests[i], errs[i] = p.boot(ctx, i+1, p.accel, tcgPatience); errs[i] != nil {
				p.guests[i] = nil
			}
		})
	}
	started.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	// One error is enough, since they have the same cause.
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Guest returns the i-th ready guest, from 0.
func (p *Pool) Guest(i int) *Guest {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.guests[i]
}

// Close stops all guests.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, g := range p.guests {
		if g != nil {
			g.end()
		}
	}
	p.guests = nil
	if p.image == nil {
		return nil
	}
	image := p.image
	p.image = nil
	return image.Close()
}

// prepare finds a kernel and makes the file system, once.
func (p *Pool) prepare(ctx context.Context) error {
	if p.image != nil {
		return nil
	}
	if runtime.GOARCH != "amd64" {
		return &ends.Unavailable{Reason: "virtual machines are made on amd64 only"}
	}
	if err := ends.Installed(qemu); err != nil {
		return err
	}
	dir, err := findKernel(ctx, cacheDir())
	if err != nil {
		return err
	}
	if p.kernel, err = bootImage(dir); err != nil {
		return err
	}
	p.release = strings.TrimPrefix(filepath.Base(dir), imagePrefix)
	drivers, err := modules(ctx, dir, []string{"virtio_pci", "virtio_console", "virtio_net"}, nil)
	if err != nil {
		return err
	}
	image, err := memoryFile(func(f *os.File) error {
		return build(ctx, f, tree{
			init: p.program, programs: p.programs, links: map[string]string{ProgramPath: initPath}, drivers: drivers,
		})
	})
	if err != nil {
		return err
	}
	p.image = image
	return nil
}

// Guest is a running virtual machine.
type Guest struct {
	number int
	pool   *Pool
	pid    int
	kill   context.CancelFunc
	ended  context.Context // its cause is an EndedError
	said   *tail           // output on its console
	line   *line
	qmp    *qmp
}

// boot starts a guest and waits until it answers.
func (p *Pool) boot(ctx context.Context, number int, accel string, patience time.Duration) (*Guest, error) {
	g, err := p.start(ctx, number, accel, p.at)
	if err != nil {
		return nil, err
	}
	up, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_, _, err = g.line.ask(up, request{Do: doHello})
	if errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("virtual machine %d does not answer after %v%s", number, patience, g.LastWords())
	}
	if err != nil {
		g.end()
		return nil, err
	}
	return g, nil
}

// end stops a guest, and waits for its end.
func (g *Guest) end() {
	g.kill()
	<-g.ended.Done()
}

// start starts a guest in a namespace; nil means the lab's.
func (p *Pool) start(ctx context.Context, number int, accel string, at *ends.Namespace, more ...string) (*Guest, error) {
	monitor, monitorFar, err := socketpair()
	if err != nil {
		return nil, err
	}
	defer monitorFar.Close()
	agent, agentFar, err := socketpair()
	if err != nil {
		return nil, errors.Join(err, monitor.Close())
	}
	defer agentFar.Close()

	cpu := TCGCPU(p.release)
	if accel == KVM {
		cpu = "host"
	}
	living, kill := context.WithCancel(ctx)
	cmd := ends.Command(living, qemu.Command, append([]string{
		"-name", fmt.Sprintf("bascule-lab-%d", number),
		"-machine", "pc,accel=" + accel, "-cpu", cpu, "-smp", "1", "-m", fmt.Sprint(memoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", p.kernel, "-initrd", "/proc/self/fd/3",
		// On a busy machine, TCG fails the kernel's check of its timer. The kernel passes
		// the words after -- to the init process.
		"-append", "console=ttyS0 quiet panic=-1 no_timer_check rdinit=" + initPath + " -- lab guest",
		"-serial", "stdio",
		"-chardev", "socket,id=monitor,fd=4", "-mon", "chardev=monitor,mode=control",
		"-device", "virtio-serial-pci,disable-legacy=on",
		"-chardev", "socket,id=agent,fd=5", "-device", "virtserialport,chardev=agent,name=" + portName,
	}, more...)...)
	cmd.ExtraFiles = []*os.File{p.image, monitorFar, agentFar}
	said := &tail{}
	cmd.Stdout, cmd.Stderr = said, said
	start := cmd.Start
	if at != nil {
		start = func() error { return at.Start(cmd, ends.AnyCPU) }
	}
	if err := start(); err != nil {
		kill()
		return nil, errors.Join(fmt.Errorf("virtual machine %d: %w", number, err), monitor.Close(), agent.Close())
	}
	// The new context outlives ctx until the process is gone.
	ended, end := context.WithCancelCause(context.WithoutCancel(ctx))
	go func() {
		// ProcessState has the result.
		_ = cmd.Wait()
		end(&EndedError{number, strings.TrimSpace(cmd.ProcessState.String() + said.last())})
		kill()
		monitor.Close()
		agent.Close()
	}()
	g := &Guest{
		number: number, pool: p, pid: cmd.Process.Pid, kill: kill, ended: ended, said: said,
		line: newLine(agent, ended), qmp: newQMP(monitor, ended, grace),
	}
	if err := g.qmp.run("qmp_capabilities", map[string]any{}); err != nil {
		g.end()
		return nil, err
	}
	return g, nil
}

// socketpair returns a connection and the other side's file, for a process to be started.
func socketpair() (*net.UnixConn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("connection to a virtual machine: %w", err)
	}
	far := os.NewFile(uintptr(fds[1]), "far")
	near := os.NewFile(uintptr(fds[0]), "near")
	defer near.Close()
	conn, err := net.FileConn(near)
	if err != nil {
		return nil, nil, errors.Join(fmt.Errorf("connection to a virtual machine: %w", err), far.Close())
	}
	return conn.(*net.UnixConn), far, nil
}

// tail keeps the end of the output of a guest's console and QEMU.
type tail struct {
	mu   sync.Mutex
	text []byte
}

func (t *tail) Write(p []byte) (int, error) {
	const keep = 4096
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-keep):]
	return len(p), nil
}

// last returns the last lines, or the lines from the kernel's panic on, joined into one after a
// separator; empty without output.
func (t *tail) last() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.FieldsFunc(string(t.text), func(r rune) bool { return r == '\n' || r == '\r' })
	if len(lines) == 0 {
		return ""
	}
	const most = 3
	from := max(0, len(lines)-most)
	if i := slices.IndexFunc(lines, func(l string) bool { return strings.Contains(l, "Kernel panic") }); i >= 0 {
		from = i
	}
	return "; the last lines of its console: " + strings.Join(lines[from:min(from+most, len(lines))], "; ")
}

// Ended is done when the guest has ended; its cause is an EndedError.
func (g *Guest) Ended() context.Context { return g.ended }

// LastWords returns the last lines of the guest's console, or the lines from its kernel's panic on,
// as the end of a message; empty without output.
func (g *Guest) LastWords() string { return g.said.last() }

// Plug connects a new network card of the guest to a device of a namespace, which it makes, and
// gives the card the n-th station's addresses. Both sides are up, except for a device that QEMU
// makes. Plain cards do not offload checksums and segmentation to the device, since frames
// forwarded by XDP programs lose the metadata that the other side would need. The function in the
// result removes the card and the device.
func (g *Guest) Plug(ctx context.Context, at *ends.Namespace, near Device, n int, wire ends.Wire, plain bool) (end ends.End, takeOut func() error, err error) {
	g.pool.mu.Lock()
	g.pool.cards++
	serial := g.pool.cards
	g.pool.mu.Unlock()
	c := &plugged{guest: g, name: fmt.Sprintf("n%d", serial)}
	mac, addr := ends.Number(n)
	mtu := wire.MTU
	if mtu == 0 {
		mtu = ends.DefaultMTU
	}
	// All cases use the same IP addresses; the guest identifies cards by this one.
	found := net.HardwareAddr{0x02, 0xb5, 0xc1, byte(serial >> 16), byte(serial >> 8), byte(serial)}
	ifname := fmt.Sprintf("e%d", n)
	c.card = map[string]any{
		"driver": "virtio-net-pci", "id": c.name, "netdev": c.name, "mac": found.String(),
		"romfile": "", "disable-legacy": "on",
	}
	if plain {
		c.card["csum"] = false
	}
	c.mtu = mtu
	if err = c.putIn(at, near, mac); err == nil {
		_, _, err = g.line.ask(ctx, request{Do: doPlug, Net: c.name, Card: &card{found.String(), ifname, mac.String(), addr.String(), mtu}})
		c.placed = err == nil
	}
	if err != nil {
		err = fmt.Errorf("network card of virtual machine %d: %w", g.number, err)
		return ends.End{}, nil, errors.Join(err, c.takeOut())
	}
	return ends.End{At: c, Ifname: ifname, MAC: mac, Addr: addr}, c.takeOut, nil
}

// plugged runs the programs behind one network card of a guest.
type plugged struct {
	guest *Guest
	name  string         // of QEMU's devices, and of the namespace in the guest
	card  map[string]any // QEMU's parameters
	mtu   int
	// The parts that exist: QEMU's side of the device, the card, and the namespace in the
	// guest.
	attached, carded, placed bool
	// remove removes a device that outlives QEMU's side; nil for none.
	remove func() error
}

// putIn makes the device, and connects the card to it.
func (c *plugged) putIn(at *ends.Namespace, near Device, mac net.HardwareAddr) error {
	err := c.attach(at, near, mac)
	if err == nil {
		err = c.guest.qmp.run("device_add", c.card)
		c.carded = err == nil
	}
	return err
}

// attach makes the device and passes it to QEMU.
func (c *plugged) attach(at *ends.Namespace, near Device, mac net.HardwareAddr) error {
	if near.ByQEMU {
		err := c.guest.qmp.run("netdev_add", map[string]any{
			"type": "tap", "id": c.name, "ifname": near.Name, "script": "no", "downscript": "no",
		})
		c.attached = err == nil
		return err
	}
	fd, err := c.open(at, near, mac)
	if err != nil {
		return fmt.Errorf("%s in %s: %w", near, at.Name, err)
	}
	defer unix.Close(fd)
	l, err := at.Netlink().LinkByName(near.Name)
	if err == nil {
		err = errors.Join(at.Netlink().LinkSetMTU(l, c.mtu), at.Netlink().LinkSetUp(l))
	}
	if err != nil {
		return fmt.Errorf("%s in %s: %w", near, at.Name, err)
	}
	if err := c.guest.qmp.run("getfd", map[string]any{"fdname": c.name}, fd); err != nil {
		return err
	}
	netdev := map[string]any{"type": "tap", "id": c.name, "fd": c.name}
	if _, err := os.Stat("/dev/vhost-net"); err == nil {
		netdev["vhost"] = true
	}
	if err := c.guest.qmp.run("netdev_add", netdev); err != nil {
		return err
	}
	c.attached = true
	return nil
}

// takeOut reverts Plug.
func (c *plugged) takeOut() error {
	g := c.guest
	var errs []error
	if c.placed {
		errs = append(errs, c.ask(context.Background(), request{Do: doUnplug}))
	}
	if c.attached {
		// This removes a tap in every state of the guest.
		errs = append(errs, g.qmp.run("netdev_del", map[string]any{"id": c.name}))
	}
	if c.carded {
		errs = append(errs, g.qmp.takeOut(c.name))
	}
	if g.ended.Err() != nil {
		errs = nil // all of it is gone with the guest
	}
	if c.remove != nil {
		errs = append(errs, c.remove())
	}
	return errors.Join(errs...)
}

// ask sends a request that takes only a moment.
func (c *plugged) ask(ctx context.Context, r request) error {
	ctx, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	r.Net = c.name
	_, _, err := c.guest.line.ask(ctx, r)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("virtual machine %d: %s: no answer after %v", c.guest.number, r.Do, grace)
	}
	return c.wrap(ctx, err)
}

// wrap adds the guest to an error.
func (c *plugged) wrap(ctx context.Context, err error) error {
	var ended *EndedError
	if err == nil || ctx.Err() != nil || errors.As(err, &ended) {
		return err
	}
	return fmt.Errorf("virtual machine %d: %w", c.guest.number, err)
}

// Output implements ends.Place. A guest has one CPU.
func (c *plugged) Output(ctx context.Context, _ int, name string, args ...string) ([]byte, error) {
	_, out, err := c.guest.line.ask(ctx, request{Do: doOutput, Net: c.name, Program: name, Args: args})
	return out, c.wrap(ctx, err)
}

// Serve implements ends.Place. A guest has one CPU.
func (c *plugged) Serve(ctx context.Context, _ int, on ends.Listen, name string, args ...string) (ends.Server, error) {
	id, _, err := c.guest.line.ask(ctx, request{Do: doServe, Net: c.name, Listen: on, Program: name, Args: args})
	if err != nil {
		return nil, c.wrap(ctx, err)
	}
	return &server{c, id}, nil
}

// SetFeatures implements ends.Place.
func (c *plugged) SetFeatures(ifname string, f ends.Features) error {
	return c.ask(context.Background(), request{Do: doFeatures, Ifname: ifname, Features: f})
}

// server is a program in a guest that waits for clients.
type server struct {
	at *plugged
	id uint64
}

// Ended implements ends.Server.
func (s *server) Ended(ctx context.Context, within time.Duration) error {
	_, _, err := s.at.guest.line.ask(ctx, request{Do: doEnded, Of: s.id, Within: within})
	if err != nil && err == ctx.Err() {
		return nil
	}
	return s.at.wrap(ctx, err)
}

// Listening implements ends.Server.
func (s *server) Listening(ctx context.Context) error {
	_, _, err := s.at.guest.line.ask(ctx, request{Do: doListen, Of: s.id})
	return s.at.wrap(ctx, err)
}

// Close implements ends.Server.
func (s *server) Close() error {
	err := s.at.ask(context.Background(), request{Do: doEnd, Of: s.id})
	if s.at.guest.ended.Err() != nil {
		return nil // the program is gone with the guest
	}
	return err
}
