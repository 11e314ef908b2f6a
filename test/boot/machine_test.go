// SPDX-License-Identifier: BSD-2-Clause

package boot

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/lab/guests"
)

// patience is the time limit for events that have to happen. A boot is emulated, and the machine may be busy.
const patience = time.Hour

// A machine is a virtual machine that boots from a disk, again and again.
type machine struct {
	t       *testing.T
	door    net.Conn // connection to testdata/door.sh
	qmp     net.Conn
	lines   chan string // output of the door
	over    chan struct{}
	console string // messages of the kernel and systemd
	boot    string // ID of this boot
	begun   time.Time
}

// start starts a machine in a namespace, where its network card is the device tap0.
func (im *image) start(t *testing.T, at *ends.Namespace, disk string) *machine {
	t.Helper()
	m := &machine{t: t, lines: make(chan string, 16), over: make(chan struct{}), console: disk + ".console", begun: time.Now()}
	door, doorFar := pair(t)
	qmp, qmpFar := pair(t)
	m.door, m.qmp = door, qmp
	console, err := os.Create(m.console)
	must(t, err)
	defer console.Close()
	cmd := ends.Command(t.Context(), "qemu-system-x86_64",
		"-name", "bascule-boot", "-machine", "q35", "-cpu", guests.TCGCPU(im.release),
		// Its time advances with the instructions that it runs: its services are in time although this machine
		// is busy.
		"-accel", "tcg,thread=single", "-icount", "shift=0,sleep=on",
		"-smp", "2", "-m", "1024", "-nodefaults", "-no-user-config", "-display", "none",
		"-kernel", im.kernel, "-initrd", im.initrd,
		// Without checks of timers, which fail on a busy machine.
		"-append", "root=/dev/vda rw console=ttyS0 loglevel=4 panic=-1 no_timer_check clocksource=tsc tsc=reliable",
		"-drive", "file="+disk+",format=raw,if=none,id=disk,cache=unsafe", "-device", "virtio-blk-pci,drive=disk",
		"-device", "virtio-rng-pci", "-serial", "stdio",
		"-chardev", "socket,id=qmp,fd=3", "-mon", "chardev=qmp,mode=control",
		"-device", "virtio-serial-pci", "-chardev", "socket,id=door,fd=4",
		"-device", "virtserialport,chardev=door,name=test.door",
		// The first slot behind a root port, which udev names enp1s0.
		"-device", "pcie-root-port,id=root,bus=pcie.0,addr=0x10,multifunction=off",
		"-netdev", "tap,id=net,ifname=tap0,script=no,downscript=no",
		"-device", "virtio-net-pci,netdev=net,bus=root,mac=52:54:00:00:00:02,romfile=",
	)
	cmd.ExtraFiles = []*os.File{qmpFar, doorFar}
	cmd.Stdout, cmd.Stderr = console, console
	must(t, at.Start(cmd, ends.AnyCPU))
	qmpFar.Close()
	doorFar.Close()
	go func() {
		_ = cmd.Wait() // the console has its error
		close(m.over)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-m.over
		door.Close()
		qmp.Close()
		if t.Failed() {
			t.Logf("the console's end:\n%s", m.lastWords())
		}
	})
	go func() {
		r := bufio.NewReader(door)
		for {
			line, err := r.ReadString('\n')
			if err != nil {
				return
			}
			select {
			case m.lines <- strings.TrimSpace(line):
			case <-m.over:
				return
			}
		}
	}()
	m.monitor("qmp_capabilities")
	return m
}

// pair returns a connection whose other side is for QEMU.
func pair(t *testing.T) (net.Conn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	near := os.NewFile(uintptr(fds[0]), "near")
	defer near.Close()
	conn, err := net.FileConn(near)
	must(t, err)
	return conn, os.NewFile(uintptr(fds[1]), "far")
}

// monitor sends a command to QEMU's monitor.
func (m *machine) monitor(command string) {
	m.t.Helper()
	_, err := fmt.Fprintf(m.qmp, "{\"execute\": %q}\n", command)
	must(m.t, err)
}

var colours = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|\x1b[()78c]?`)

// lastWords returns the end of the console's text.
func (m *machine) lastWords() string {
	text, err := os.ReadFile(m.console)
	must(m.t, err)
	lines := bytes.Split(colours.ReplaceAll(text, nil), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-60):], []byte("\n")))
}

// line returns the next line of the door's output.
func (m *machine) line(what string) string {
	m.t.Helper()
	select {
	case line := <-m.lines:
		return line
	case <-m.over:
		m.t.Fatalf("the machine has ended, before %s", what)
	case <-time.After(patience):
		m.t.Fatalf("no %s after %v", what, patience)
	}
	return ""
}

// booted waits until another boot than the last one is complete.
func (m *machine) booted() {
	m.t.Helper()
	for {
		boot, ok := strings.CutPrefix(m.line("end of the boot"), "hello ")
		if ok && boot != m.boot {
			m.boot = boot
			m.t.Logf("booted after %v", time.Since(m.begun).Round(time.Second))
			return
		}
	}
}

// reboot has the machine stop its services and boot.
func (m *machine) reboot() {
	m.t.Helper()
	m.begun = time.Now()
	m.say("systemctl reboot")
	m.booted()
}

// reset boots the machine as its reset button would.
func (m *machine) reset() {
	m.t.Helper()
	m.begun = time.Now()
	m.monitor("system_reset")
	m.booted()
}

// say starts a script in the machine.
func (m *machine) say(script string) {
	m.t.Helper()
	_, err := fmt.Fprintln(m.door, base64.StdEncoding.EncodeToString([]byte(script)))
	must(m.t, err)
}

// try runs a script in the machine.
func (m *machine) try(script string) (out string, status string) {
	m.t.Helper()
	m.say(script)
	for {
		line := m.line("answer to " + script)
		if strings.HasPrefix(line, "hello ") {
			continue
		}
		status, said, _ := strings.Cut(line, " ")
		text, err := base64.StdEncoding.DecodeString(said)
		must(m.t, err)
		return strings.TrimSpace(string(text)), status
	}
}

// run runs a script in the machine, which must succeed.
func (m *machine) run(script string) string {
	m.t.Helper()
	out, status := m.try(script)
	if status != "0" {
		m.t.Fatalf("%s: status %s\n%s", script, status, out)
	}
	return out
}

func only(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}
