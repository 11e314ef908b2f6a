// SPDX-License-Identifier: BSD-2-Clause

package inside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/test/netlab"
)

// unplug: the card is removed from the machine.
func unplug(t *testing.T) {
	m, err := guests.OpenMonitor()
	must(t, err)
	defer m.Close()
	comesAndGoes(t, func(string) func() {
		must(t, m.TakeOut(Name(0)))
		return func() { must(t, m.PutIn(card.Properties)) }
	})
}

// remove: the kernel removes the card through sysfs.
func remove(t *testing.T) {
	comesAndGoes(t, func(address string) func() {
		write(t, filepath.Join(pciDevices, address, "remove"), "1")
		return func() { write(t, "/sys/bus/pci/rescan", "1") }
	})
}

// unbind: the driver releases the card.
func unbind(t *testing.T) {
	comesAndGoes(t, func(address string) func() {
		driver, err := filepath.EvalSymlinks(filepath.Join(pciDevices, address, "driver"))
		must(t, err)
		write(t, filepath.Join(driver, "unbind"), address)
		return func() { write(t, filepath.Join(driver, "bind"), address) }
	})
}

const pciDevices = "/sys/bus/pci/devices"

func write(t *testing.T, path, text string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte(text), 0o200))
}

// comesAndGoes: the card disappears under traffic, and returns. Other ports are not affected, and no
// trace of the card remains. gone removes the card at a bus address, and returns the function that
// brings it back.
func comesAndGoes(t *testing.T, gone func(address string) (back func())) {
	for _, hook := range hooksOf() {
		t.Run(hook, func(t *testing.T) {
			x := newBench(t).veths("xdp", "tcx")
			x.add(hook)
			x.exchange()
			var address string
			x.ethtool(func(tool *ethtool.Ethtool) (err error) {
				address, err = tool.BusInfo(x.card.Port)
				return err
			})
			stationB := netlab.Station(4)
			x.Across(x.b, x.Frames(1, netlab.Broadcast, stationB), x.card, x.a)
			objects, err := x.Objects()
			must(t, err)

			// No frame between a and b gets lost, while there are frames from and to the
			// card.
			others := func(f netlab.Frame) bool { return f.Dst() == stationS || f.Src() == stationS }
			load := x.StartLoadAmong(others, []*netlab.End{x.a, x.b},
				netlab.Flow{From: x.a, Dst: stationB, Src: stationA, To: []*netlab.End{x.b}},
				netlab.Flow{From: x.b, Dst: stationA, Src: stationB, To: []*netlab.End{x.a}},
				netlab.Flow{From: x.a, Dst: stationS, Src: stationA},
			)
			from := netlab.StartStream(x.card, stationA, stationS, time.Millisecond)
			x.Wait("traffic", load.Flowing(500))
			if card.KeepsProgram && hook == "xdp" {
				x.Abandon()
			}
			x.card.Leave()
			back := gone(address)
			x.Wait("traffic without the card", load.Flowing(500))
			if state := x.Port("br0", x.card.Port).State; state != "gone" {
				t.Errorf("the port's state is %s", state)
			}
			back()
			x.card.PutBack(Wire(0))
			if state := x.Port("br0", x.card.Port).State; state != "gone" {
				t.Errorf("with a new card of its name the port's state is %s", state)
			}
			x.Bascule("port", "del", "br0", x.card.Port)
			if left := pinsOf(t, x.Lab); left != 2 {
				t.Errorf("%d links of ports are pinned, should be those of two ports", left)
			}
			x.addPort(x.card.Port, hook, hook)
			x.Wait("traffic with the card again", load.Flowing(500))
			must(t, from.Stop())
			must(t, load.Stop())
			x.Drain(x.card)
			x.Drain(x.a)
			x.exchange()
			now, err := x.Objects()
			must(t, err)
			if len(now.Maps) != len(objects.Maps) || len(now.Programs) != len(objects.Programs) || len(now.Links) != len(objects.Links) {
				t.Errorf("there were %v, there are %v", objects, now)
			}
			x.del()
		})
	}
}

// pinsOf counts the ports that have a link.
func pinsOf(t *testing.T, l *netlab.Lab) int {
	t.Helper()
	cookie, err := l.Switch.Cookie()
	must(t, err)
	list, err := filepath.Glob(fmt.Sprintf("/run/bascule/%d/br0/link/*-tcx", cookie))
	must(t, err)
	return len(list)
}

// above makes a bench whose port is a device above the cards of both wires.
func above(t *testing.T) *bench {
	x := newBench(t).veths("xdp", "tcx")
	x.second = x.NewWired(Wire(1))
	return x
}

// addAbove adds a device above the cards as a port. Such a device has no use for XDP: auto selects tcx,
// and if the kind of device supports xdp, the command warns that xdp has no effect. No program is
// attached there.
func (x *bench) addAbove(device, hook string) {
	x.t.Helper()
	x.up(device)
	r, err := x.Run("port", "add", "br0", device, "--hook", hook)
	must(x.t, err)
	if r.Exit != 0 || r.Stdout != "" {
		x.t.Fatal(r)
	}
	is, warns := "tcx", ""
	if hook == "xdp" {
		is, warns = "xdp", device+": frames from and to it go by tcx"
	}
	if !strings.Contains(r.Stderr, warns) || (r.Stderr == "") != (warns == "") {
		x.t.Errorf("it warns %q, should warn %q", r.Stderr, warns)
	}
	if shown := x.Port("br0", device).Hook; shown != is {
		x.t.Errorf("port %s is on hook %s, should be on %s", device, shown, is)
	}
	for _, name := range []string{device, x.card.Port, x.second.Port} {
		l, err := x.Switch.Netlink().LinkByName(name)
		must(x.t, err)
		if l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached {
			x.t.Errorf("%s has an XDP program", name)
		}
	}
}

// up sets a device above the cards up, and waits until it is up.
func (x *bench) up(device string) {
	x.t.Helper()
	x.Plug(device)
	x.Wait(device+" to be up", func() bool {
		l, err := x.Switch.Netlink().LinkByName(device)
		return err == nil && l.Attrs().OperState == netlink.OperUp
	})
}

// enslave puts the near cards below a device.
func (x *bench) enslave(device string) {
	x.t.Helper()
	nl := x.Switch.Netlink()
	master, err := nl.LinkByName(device)
	must(x.t, err)
	x.Keep(device)
	for _, e := range []*netlab.End{x.card, x.second} {
		x.Pull(e.Port)
		l, err := nl.LinkByName(e.Port)
		must(x.t, err)
		must(x.t, nl.LinkSetMaster(l, master))
		x.Plug(e.Port)
		x.AwaitCarrier(e)
	}
}

// free deletes the device above the cards, and restores them.
func (x *bench) free(device string) {
	x.t.Helper()
	x.Bascule("port", "del", "br0", device)
	l, err := x.Switch.Netlink().LinkByName(device)
	must(x.t, err)
	if l.Attrs().Promisc != 0 {
		x.t.Errorf("%s has promiscuity %d", device, l.Attrs().Promisc)
	}
	must(x.t, x.Switch.Netlink().LinkDel(l))
	for _, e := range []*netlab.End{x.card, x.second} {
		if err := e.Unchanged(); err != nil {
			x.t.Error(err)
		}
	}
}

// bond: one of both cards is in use, or both in turn, or both by LACP.
func bond(t *testing.T) {
	for _, c := range []struct {
		mode  netlink.BondMode
		hook  string
		sends func(x *bench)
	}{
		{netlink.BOND_MODE_ACTIVE_BACKUP, "auto", (*bench).oneInUse},
		{netlink.BOND_MODE_BALANCE_RR, "auto", (*bench).byTurns},
		{netlink.BOND_MODE_802_3AD, "auto", (*bench).aggregated},
		{netlink.BOND_MODE_ACTIVE_BACKUP, "xdp", (*bench).oneInUse},
		{netlink.BOND_MODE_802_3AD, "xdp", (*bench).aggregated},
	} {
		t.Run(c.mode.String()+"/"+c.hook, func(t *testing.T) {
			x := above(t)
			must(t, x.Switch.Netlink().LinkAdd(newBond("bond0", c.mode)))
			x.enslave("bond0")
			x.addAbove("bond0", c.hook)
			c.sends(x)
			x.free("bond0")
		})
	}
}

func newBond(name string, mode netlink.BondMode) *netlink.Bond {
	b := netlink.NewLinkBond(netlink.LinkAttrs{Name: name})
	b.Mode, b.Miimon = mode, 100
	if mode == netlink.BOND_MODE_802_3AD {
		b.LacpRate = netlink.BOND_LACP_RATE_FAST
	}
	return b
}

// farBond makes a bond of the far cards, in front of the station.
func (x *bench) farBond(name string, mode netlink.BondMode) {
	x.t.Helper()
	first, second := x.card, x.second
	to, err := netns.GetFromName(first.Namespace.Name)
	must(x.t, err)
	defer to.Close()
	moved, err := second.Namespace.Netlink().LinkByIndex(second.Ifindex)
	must(x.t, err)
	must(x.t, second.Namespace.Netlink().LinkSetNsFd(moved, int(to)))
	second.Leave()
	second.Namespace = first.Namespace
	nl := first.Namespace.Netlink()
	must(x.t, nl.LinkAdd(newBond(name, mode)))
	b, err := nl.LinkByName(name)
	must(x.t, err)
	for _, e := range []*netlab.End{first, second} {
		l, err := nl.LinkByName(e.Ifname)
		must(x.t, err)
		e.Ifindex = l.Attrs().Index
		must(x.t, nl.LinkSetDown(l))
		must(x.t, nl.LinkSetMaster(l, b))
		must(x.t, nl.LinkSetUp(l))
	}
	must(x.t, nl.SetPromiscOn(b))
	must(x.t, nl.LinkSetUp(b))
	first.Socket = x.Listen(first.Namespace, name)
}

// aggregated: LACP joins both wires into one. Each station's frames use one of them. When one has no
// carrier, all frames use the other.
func (x *bench) aggregated() {
	x.t.Helper()
	x.farBond("bond9", netlink.BOND_MODE_802_3AD)
	x.awaitLACP(2)
	x.exchange()
	x.Across(x.card, x.tagged(netlab.Broadcast, stationS, 1000, !card.MixesTags), x.a, x.b)
	x.Across(x.a, x.tagged(stationS, stationA, 1000, !card.MixesTags), x.card)

	// Each wire reaches half of the stations behind each side.
	const stations, each = 16, 8
	before := x.sent()
	for n := range stations {
		behind, a := netlab.Station(100+n), netlab.Station(200)
		x.Across(x.card, x.Frames(1, netlab.Broadcast, behind), x.a, x.b)
		x.Across(x.a, x.Frames(each, behind, a), x.card)
		x.Across(x.card, x.Frames(each, a, behind), x.a)
	}
	for i, now := range x.sent() {
		if n := now - before[i]; n < stations*each/4 {
			x.t.Errorf("wire %d has carried %d frames to the stations, should be about half of %d", i+1, n, stations*each)
		}
	}

	x.Pull(x.card.Port)
	x.awaitLACP(1)
	x.Drain(x.card)
	x.exchange()
	x.Plug(x.card.Port)
	x.awaitLACP(2)
	x.Drain(x.card)
	x.exchange()
}

// sent returns the number of frames that each near card has sent.
func (x *bench) sent() (n [2]uint64) {
	x.t.Helper()
	for i, e := range []*netlab.End{x.card, x.second} {
		l, err := x.Switch.Netlink().LinkByName(e.Port)
		must(x.t, err)
		n[i] = l.Attrs().Statistics.TxPackets
	}
	return n
}

// awaitLACP waits until LACP uses the given number of wires, on both sides.
func (x *bench) awaitLACP(wires int) {
	x.t.Helper()
	for name, ns := range map[string]*ends.Namespace{"bond0": x.Switch, "bond9": x.card.Namespace} {
		x.Wait(fmt.Sprintf("%d wires of %s", wires, name), func() bool { return lacpWires(x.bonding(ns, name)) == wires })
	}
}

// inUse is in the kernel's report for a side of a wire that LACP uses: short timeout, aggregating, in
// sync, collecting and distributing.
const inUse = "    port state: 63\n"

// lacpWires counts the wires of a bond that both sides use.
func lacpWires(text string) (n int) {
	for _, member := range strings.Split(text, "Slave Interface: ")[1:] {
		if strings.Count(member, inUse) == 2 {
			n++
		}
	}
	return n
}

// bonding returns the kernel's report of a bond.
func (x *bench) bonding(ns *ends.Namespace, name string) string {
	x.t.Helper()
	var text []byte
	must(x.t, ns.Do(func() (err error) {
		text, err = os.ReadFile("/proc/thread-self/net/bonding/" + name)
		return err
	}))
	return string(text)
}

// team: the same, with the driver that succeeded the bond driver.
func team(t *testing.T) {
	for mode, check := range map[string]func(x *bench){"activebackup": (*bench).oneInUse, "roundrobin": (*bench).byTurns} {
		t.Run(mode, func(t *testing.T) {
			x := above(t)
			must(t, x.Switch.Netlink().LinkAdd(&netlink.GenericLink{LinkAttrs: netlink.LinkAttrs{Name: "team0"}, LinkType: "team"}))
			x.teamnl("mode", mode)
			x.enslave("team0")
			if mode == "activebackup" {
				x.teamnl("activeport", fmt.Sprint(x.card.PortIndex))
			}
			x.failOver = func() { x.teamnl("activeport", fmt.Sprint(x.second.PortIndex)) }
			x.addAbove("team0", "auto")
			check(x)
			x.free("team0")
		})
	}
}

func (x *bench) teamnl(option, value string) {
	x.t.Helper()
	must(x.t, x.Switch.Do(func() error {
		out, err := exec.Command("teamnl", "team0", "setoption", option, value).CombinedOutput()
		if err != nil {
			return fmt.Errorf("teamnl: %w: %s", err, out)
		}
		return nil
	}))
}

// oneInUse: all frames use the first card, and the second when the first has no carrier.
func (x *bench) oneInUse() {
	x.t.Helper()
	first, second := x.card, x.second
	second.Leave() // it receives nothing, which is checked below
	x.exchange()
	x.Across(x.card, x.tagged(netlab.Broadcast, stationS, 1000, !card.MixesTags), x.a, x.b)
	x.Across(x.a, x.tagged(stationS, stationA, 1000, !card.MixesTags), x.card)
	if got := second.Received(); len(got) > 0 {
		x.t.Errorf("the card that is not in use has got %d frames, first %v", len(got), got[0])
	}
	second.Return()
	first.Leave()
	if x.failOver != nil {
		x.failOver()
	} else {
		x.Pull(first.Port)
		x.Wait("the other card in use", func() bool {
			return strings.Contains(x.bonding(x.Switch, "bond0"), "Currently Active Slave: "+second.Port)
		})
	}
	x.card, x.second = second, first
	x.Drain(x.card)
	first.Received()
	x.exchange()
	if got := first.Received(); len(got) > 0 {
		x.t.Errorf("the card that is no longer in use has got %d frames, first %v", len(got), got[0])
	}
	if x.failOver == nil {
		x.Plug(first.Port)
	}
	first.Return()
	x.card, x.second = first, second
}

// byTurns: the frames to the stations behind the device use both cards, each frame one of them.
func (x *bench) byTurns() {
	x.t.Helper()
	both := []*netlab.End{x.card, x.second}
	for _, from := range both {
		for _, e := range both {
			e.Leave() // the last frame uses one of both
		}
		x.Across(from, x.Frames(8, netlab.Broadcast, stationS), x.a, x.b)
		sent := x.Frames(16, stationS, stationA)
		x.Across(x.a, sent)
		var got [2][]netlab.Frame
		x.Wait("all frames by one of both cards", func() bool {
			for i, e := range both {
				got[i] = append(got[i], e.Received()...)
			}
			return len(got[0])+len(got[1]) >= len(sent)
		})
		all := slices.Concat(got[0], got[1])
		slices.Sort(all)
		slices.Sort(sent)
		if !slices.Equal(all, sent) || len(got[0]) == 0 || len(got[1]) == 0 {
			x.t.Errorf("of %d frames %d and %d came by the cards, or others did", len(sent), len(got[0]), len(got[1]))
		}
		for _, e := range both {
			e.Return()
		}
	}
}

// vlanDevice: a VLAN device of the card is a port. Other frames do not reach it.
func vlanDevice(t *testing.T) {
	x := newBench(t).veths("xdp", "tcx")
	name := x.card.Port + ".10"
	nl := x.Switch.Netlink()
	must(t, nl.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: x.card.PortIndex}, VlanId: 10}))
	x.Keep(name)
	x.Plug(name)
	// The kernel itself switches LRO off below a VLAN device (netdev_sync_lower_features() in
	// net/core/dev.c).
	x.card.Remember()
	x.up(name)
	if warned := x.addPort(name, "auto", "tcx"); warned != "" {
		t.Errorf("it warns %q", warned)
	}
	tag := func(list []netlab.Frame) (tagged []netlab.Frame) {
		for _, f := range list {
			tagged = append(tagged, f.Tagged(10, 0))
		}
		return tagged
	}
	for _, size := range []int{60, 64, 1000, 1514} {
		in := []netlab.Frame{x.Frame(netlab.Broadcast, stationS, size), x.Frame(nowhere, stationS, size)}
		x.SetLast(func(f netlab.Frame) netlab.Frame { return f.Tagged(10, 0) })
		x.AcrossAs(x.card, tag(in), map[*netlab.End][]netlab.Frame{x.a: in, x.b: in})
		// None of these belongs to the VLAN.
		not := []netlab.Frame{x.Frame(netlab.Broadcast, stationS, size), x.Frame(netlab.Broadcast, stationS, size).Tagged(20, 0)}
		x.Across(x.card, not)
		x.SetLast(nil)
		out := []netlab.Frame{x.Frame(stationS, stationA, size)}
		x.AcrossAs(x.a, out, map[*netlab.End][]netlab.Frame{x.card: tag(out)})
	}
	x.Bascule("port", "del", "br0", name)
	l, err := nl.LinkByName(name)
	must(t, err)
	if l.Attrs().Promisc != 0 {
		t.Errorf("%s has promiscuity %d", name, l.Attrs().Promisc)
	}
	must(t, nl.LinkDel(l))
	x.unchanged()
}
