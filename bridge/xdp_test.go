// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
)

// If a driver may leave something beside a frame, XDP takes no frames from it, and auto does not
// select XDP for a device where nothing remains.
func TestXDPUse(t *testing.T) {
	attrs := netlink.LinkAttrs{Name: "nosuch"}
	for _, tt := range []struct {
		l                          netlink.Link
		known, takes, sends, asked bool
	}{
		{&netlink.Veth{LinkAttrs: attrs}, true, true, true, false},
		{&netlink.Tuntap{LinkAttrs: attrs}, true, false, true, false},
		{&netlink.Bond{LinkAttrs: attrs}, true, false, false, false},
		{&netlink.Device{LinkAttrs: attrs}, true, true, true, true},
		{&netlink.Vxlan{LinkAttrs: attrs}, false, false, false, false},
		{&netlink.GenericLink{LinkAttrs: attrs, LinkType: "new"}, false, false, false, false},
	} {
		use, known := xdpUseOf(tt.l)
		if known != tt.known || use.takes != tt.takes || use.sends != tt.sends {
			t.Errorf("%s: %+v, known %v", tt.l.Type(), use, known)
		}
		if known && use.takes == (use.why != "") {
			t.Errorf("%s: takes %v, because %q", tt.l.Type(), use.takes, use.why)
		}
		if auto := wantsXDP(HookAuto, tt.l); auto != tt.asked {
			t.Errorf("%s: auto is XDP: %v", tt.l.Type(), auto)
		}
	}
}

// A driver that no longer accepts another program, for example since its MTU was raised, loses the
// one that it has, and the port continues by tcx: the switch can be changed, and no part of the
// former configuration stays at a device.
func TestXDPRefusedLater(t *testing.T) {
	b := newBench(t, 2)
	b.must(b.AddBridge("br0", nil))
	_, err := b.AddPorts("br0", []string{"p1", "p2"}, PortOptions{Hook: HookXDP})
	b.must(err)
	b.refuseXDP("p1")
	warnings, err := b.SetPorts("br0", []string{"p2"}, PortOptions{Changes: []Change{{"hairpin", "on"}}})
	b.must(err)
	told := slices.ContainsFunc(warnings, func(w string) bool {
		return strings.HasPrefix(w, "p1: ") && strings.HasSuffix(w, "; it forwards by tcx alone")
	})
	if !told {
		t.Errorf("it warns %q", warnings)
	}
	ports := b.look().Ports
	if len(ports) != 2 || ports[0].Hook != HookTCX || ports[1].Hook != HookXDP {
		t.Errorf("the ports are %+v", ports)
	}
	if links := b.xdpLinks(); len(links) != 1 {
		t.Errorf("programs of XDP are tied by %q", links)
	}
	if b.dirty() {
		t.Error("the change is not finished")
	}
	if warnings, err = b.SetPorts("br0", []string{"p2"}, PortOptions{Changes: []Change{{"hairpin", "off"}}}); err != nil || len(warnings) > 0 {
		t.Errorf("the next change: %q, %v", warnings, err)
	}

	// also if a command was killed before, and the port leaves
	b.refuseXDP("p2")
	b.must(os.Mkdir(filepath.Join(b.root, "br0", "dirty"), 0o700))
	if _, err := b.DelPort("br0", "p2"); err != nil {
		t.Errorf("behind one that was killed: %v", err)
	}
}

// xdpLinks returns the pins of links between devices and XDP programs.
func (b *bench) xdpLinks() []string {
	b.t.Helper()
	links, err := filepath.Glob(filepath.Join(b.root, "br0", "link", "*-xdp"))
	b.must(err)
	return links
}

// refuseXDP replaces a port's link by one that accepts no other program: a tracepoint's. (No driver
// of this machine refuses.)
func (b *bench) refuseXDP(port string) {
	b.t.Helper()
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.RawTracepoint, License: "GPL", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()},
	})
	b.must(err)
	defer p.Close()
	other, err := link.AttachRawTracepoint(link.RawTracepointOptions{Name: "sys_enter", Program: p})
	b.must(err)
	defer other.Close()
	var at string
	for _, pin := range b.xdpLinks() {
		l, err := link.LoadPinnedLink(pin, nil)
		b.must(err)
		info, err := l.Info()
		b.must(err)
		b.must(l.Close())
		device, err := b.ns.Netlink().LinkByName(port)
		b.must(err)
		if x := info.XDP(); x != nil && int(x.Ifindex) == device.Attrs().Index {
			at = pin
		}
	}
	if at == "" {
		b.t.Fatalf("no program of XDP is tied to %s", port)
	}
	b.must(other.Pin(at + "-other"))
	b.must(os.Rename(at+"-other", at))
}
