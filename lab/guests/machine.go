// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// A Machine is a virtual machine that runs one program, and ends with it.
type Machine struct {
	Kernel    Kernel
	Init      string            // the program's path here; it must call Begin first
	Args      []string          // arguments of the program
	Programs  []string          // copied to /usr/bin if they are installed here
	Files     map[string]string // further files: path there, path here
	Texts     map[string]string // further files: path there, content
	Links     map[string]string // symbolic links: path there, target
	Modules   []string          // kernel modules to load before the program starts
	Optional  []string          // likewise, if the kernel has them
	CPUs      int
	MemoryMiB int
	Board     string          // of QEMU; "" for "pc"
	Devices   []string        // QEMU's arguments for further devices
	At        *ends.Namespace // QEMU's namespace, nil for this process's
	// Counting makes QEMU count instructions: the machine's clock advances by a nanosecond for
	// each one, and jumps to the next timer when the CPU is idle. The machine then has one CPU.
	Counting bool
	// Plugin is QEMU's argument for a plug-in of its own, empty for none.
	Plugin string
}

// usual has links that programs expect on a machine.
var usual = map[string]string{"/bin": "/usr/bin", "/sbin": "/usr/bin", "/var/run": "/run", "/var/tmp": "/tmp"}

// counting has QEMU's arguments for counting instructions. With a seed, QEMU's random numbers are
// the same in each run.
var counting = []string{"-accel", "tcg,thread=single", "-icount", "shift=0,sleep=off", "-seed", "1"}

// fixed returns the kernel parameters that make runs reproducible.
func (m Machine) fixed() string {
	if !m.Counting {
		return ""
	}
	return "nokaslr norandmaps "
}

// Version returns the installed version of QEMU, which emulates the machine and counts the
// instructions. An ends.Unavailable means that QEMU is not installed.
func Version(ctx context.Context) (string, error) {
	if err := ends.Installed(qemu); err != nil {
		return "", err
	}
	text, err := output(ctx, "", qemu.Command, "--version")
	if err != nil {
		return "", err
	}
	// QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18)
	f := strings.Fields(text)
	if len(f) < 4 {
		return "", fmt.Errorf("%s --version printed %q", qemu.Command, text)
	}
	return f[3], nil
}

// Run boots the machine with TCG. hear reads what the program writes to the file from Begin, and
// console gets the kernel's output. Run returns when the machine and hear have ended. An
// ends.Unavailable is the reason why there can be no machine.
func (m Machine) Run(ctx context.Context, hear func(io.Reader) error, console io.Writer) error {
	if err := ends.Installed(qemu); err != nil {
		return err
	}
	if m.Counting && m.CPUs != 1 {
		return fmt.Errorf("virtual machine: %d CPUs, and instructions are counted on one", m.CPUs)
	}
	boot, err := bootImage(m.Kernel.dir)
	if err != nil {
		return err
	}
	drivers, err := modules(ctx, m.Kernel.dir, append([]string{"virtio_pci", "virtio_console"}, m.Modules...), m.Optional)
	if err != nil {
		return err
	}
	links := maps.Clone(usual)
	maps.Copy(links, m.Links)
	image, err := memoryFile(func(f *os.File) error {
		return build(ctx, f, tree{
			init: m.Init, programs: m.Programs, files: m.Files, texts: m.Texts, links: links, drivers: drivers,
		})
	})
	if err != nil {
		return err
	}
	defer image.Close()
	port, far, err := socketpair()
	if err != nil {
		return err
	}
	defer port.Close()
	defer far.Close()
	// QEMU gets both ends of the monitor: the program in the machine talks to it.
	monitor, hand, err := filePair()
	if err != nil {
		return err
	}
	defer monitor.Close()
	defer hand.Close()
	said := &tail{}
	// QEMU dies with this process.
	cmd := ends.Command(ctx, qemu.Command, append([]string{
		"-name", "bascule-" + m.Kernel.Release,
		"-machine", cmp.Or(m.Board, "pc"), "-cpu", TCGCPU(m.Kernel.Release),
		"-smp", fmt.Sprint(m.CPUs), "-m", fmt.Sprint(m.MemoryMiB),
		"-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-kernel", boot, "-initrd", "/proc/self/fd/3",
		// On a busy machine, TCG fails the kernel's checks of its timer and its clock, and
		// the fallbacks are slow.
		"-append", strings.Join(append([]string{
			"console=ttyS0 loglevel=5 panic=-1 no_timer_check clocksource=tsc tsc=reliable " + m.fixed() + "rdinit=" + initPath, "--",
		}, m.Args...), " "),
		"-serial", "stdio",
		"-device", "virtio-serial-pci,disable-legacy=on",
		"-chardev", "socket,id=port,fd=4", "-device", "virtserialport,chardev=port,name=" + portName,
		"-chardev", "socket,id=monitor,fd=5", "-mon", "chardev=monitor,mode=control",
		"-chardev", "socket,id=hand,fd=6", "-device", "virtserialport,chardev=hand,name=" + monitorName,
	}, m.Devices...)...)
	if m.Counting {
		cmd.Args = append(cmd.Args, counting...)
	} else {
		cmd.Args = append(cmd.Args, "-accel", "tcg,thread=multi")
	}
	if m.Plugin != "" {
		cmd.Args = append(cmd.Args, "-plugin", m.Plugin)
	}
	cmd.ExtraFiles = []*os.File{image, far, monitor, hand}
	cmd.Stdout = io.MultiWriter(said, console)
	cmd.Stderr = cmd.Stdout
	start := cmd.Start
	if m.At != nil {
		start = func() error { return m.At.Start(cmd, ends.AnyCPU) }
	}
	if err := start(); err != nil {
		return fmt.Errorf("virtual machine: %w", err)
	}
	far.Close()
	heard := hear(port)
	_, rest := io.Copy(io.Discard, port) // the program must not block after hear has stopped reading
	err = cmd.Wait()
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		err = fmt.Errorf("virtual machine: %w%s", err, said.last())
	}
	return errors.Join(err, heard, rest)
}

// Begin prepares the machine if this process is its init process: it mounts file systems, and loads
// the modules. The returned file is connected to Machine.Run.
func Begin() (*os.File, error) {
	if os.Getpid() != 1 {
		return nil, ErrNotFirst
	}
	if err := ready(); err != nil {
		return nil, err
	}
	return openPort(portName)
}

// filePair returns both sides of a connection, for a process to be started.
func filePair() (one, other *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("connection within a virtual machine: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), "one"), os.NewFile(uintptr(fds[1]), "other"), nil
}

// End powers the machine off.
func End() error {
	unix.Sync()
	return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}

// ErrNotFirst means that the caller of Begin is not the init process of a machine.
var ErrNotFirst = errors.New("it is the first process of a virtual machine only")

// memoryFile returns a file in memory, which disappears even if this process is killed.
func memoryFile(write func(*os.File) error) (*os.File, error) {
	fd, err := unix.MemfdCreate("initramfs", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("file system of the virtual machine: %w", err)
	}
	f := os.NewFile(uintptr(fd), "initramfs")
	if err := write(f); err != nil {
		return nil, errors.Join(fmt.Errorf("file system of the virtual machine: %w", err), f.Close())
	}
	return f, nil
}
