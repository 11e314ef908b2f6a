// SPDX-License-Identifier: BSD-2-Clause

package inside

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/safchain/ethtool"

	"bascule/test/netlab"
)

// card is the tested card, and inMachine is false if it is a veth.
var (
	card      = Card{Driver: "veth", Auto: "tcx"}
	inMachine bool
)

func TestMain(m *testing.M) {
	if text, ok := os.LookupEnv(Variable); ok {
		inMachine = true
		if err := json.Unmarshal([]byte(text), &card); err != nil {
			fmt.Fprintf(os.Stderr, "%s: %v\n", Variable, err)
			os.Exit(1)
		}
	}
	os.Exit(netlab.Main(m))
}

// runs are the functions of the cases. A veth has no driver, and this machine's kernel need not
// have devices above others: cases with false run on cards only.
var runs = map[string]struct {
	veth bool
	run  func(*testing.T)
}{
	"hooks": {true, hooks}, "frames": {true, frames}, "tags": {true, tags}, "vlans": {true, vlans}, "streams": {true, streams},
	"promiscuity": {true, promiscuity}, "restore": {true, restore}, "again": {true, again}, "jumbo": {true, jumbo},
	"unplug": {false, unplug}, "remove": {false, remove}, "unbind": {false, unbind},
	"bond": {false, bond}, "team": {false, team}, "vlan_device": {false, vlanDevice},
}

// TestCard runs the cases one after the other: there is one set of cards. A case returns the
// cards before it ends. If the kernel had to move them out of a namespace that is deleted, the
// machine could be switched off meanwhile. A driver may fail if its shutdown is followed by the
// close of its card: after vmxnet3_shutdown_device(), vmxnet3_close() finds full rings, which
// is a BUG() of vmxnet3_rq_destroy().
func TestCard(t *testing.T) {
	for _, name := range Cases {
		c, ok := runs[name]
		if !ok {
			t.Errorf("there is no case %s", name)
		} else if c.veth || inMachine {
			t.Run(name, func(t *testing.T) {
				if inMachine {
					t.Cleanup(func() { cardsAreBack(t) }) // after the cleanup of the case
				}
				c.run(t)
			})
		}
	}
}

func cardsAreBack(t *testing.T) {
	for n := range Wires {
		for _, mac := range []netlab.MAC{Wire(n).Near, Wire(n).Far} {
			if !netlab.HasCard(mac) {
				t.Errorf("the card %v is not back", mac)
			}
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A bench is a bridge br0 with a tested card, and veths to other stations.
type bench struct {
	*netlab.Lab
	t    *testing.T
	card *netlab.End
	a, b *netlab.End

	second   *netlab.End // of the second wire, if it is used
	failOver func()      // makes the second card the active one; nil if the carrier decides that
}

func newBench(t *testing.T, flags ...string) *bench {
	t.Helper()
	l := netlab.New(t)
	x := &bench{Lab: l, t: t}
	if inMachine {
		x.card = l.NewWired(Wire(0))
	} else {
		x.card = l.NewEnd(l.NewNamespace())
	}
	veths := l.NewEnds(2)
	x.a, x.b = veths[0], veths[1]
	l.Bascule(append([]string{"bridge", "add", "br0"}, flags...)...)
	return x
}

// veths adds the veths as ports. Each command takes seconds in an emulated machine, so they
// stay ports while the card changes its hook.
func (x *bench) veths(a, b string) *bench {
	x.t.Helper()
	if a == b {
		x.AddPorts("br0", a, []*netlab.End{x.a, x.b})
		return x
	}
	x.AddPort("br0", a, x.a)
	x.AddPort("br0", b, x.b)
	return x
}

// add adds the card as a port. It returns the command's warnings.
func (x *bench) add(hook string) (warnings string) {
	x.t.Helper()
	is := hook
	if hook == "auto" {
		is = card.Auto
	}
	if !inMachine && is == "xdp" {
		x.card.ReadyForXDP()
		x.card.Remember()
	}
	return x.addPort(x.card.Port, hook, is)
}

// addPort adds a device as a port, and checks its hook.
func (x *bench) addPort(device, hook, is string) (warnings string) {
	x.t.Helper()
	r, err := x.Run("port", "add", "br0", device, "--hook", hook)
	must(x.t, err)
	if r.Exit != 0 || r.Stdout != "" {
		x.t.Fatal(r)
	}
	x.onHook(device, is)
	if device == x.card.Port {
		x.AwaitCarrier(x.card)
	}
	return r.Stderr
}

// onHook checks a port's hook, in the output of commands and at the device.
func (x *bench) onHook(device, is string) {
	x.t.Helper()
	if shown := x.Port("br0", device).Hook; shown != is {
		x.t.Fatalf("port %s is on hook %s, should be on %s", device, shown, is)
	}
	link, err := x.Switch.Netlink().LinkByName(device)
	must(x.t, err)
	if xdp := link.Attrs().Xdp != nil && link.Attrs().Xdp.Attached; xdp != (is == "xdp") {
		x.t.Fatalf("port %s is on hook %s, and its device has an XDP program: %v", device, is, xdp)
	}
}

// del deletes the card's port, and checks that the device is as it was.
func (x *bench) del() {
	x.t.Helper()
	x.Bascule("port", "del", "br0", x.card.Port)
	x.unchanged()
}

func (x *bench) unchanged() {
	x.t.Helper()
	if err := x.card.Unchanged(); err != nil {
		x.t.Fatalf("after the port was deleted: %v", err)
	}
}

// hooksOf returns the hooks that the card supports.
func hooksOf() []string {
	if card.Auto == "xdp" || !inMachine {
		return []string{"tcx", "xdp"}
	}
	return []string{"tcx"}
}

// The stations: S is behind the card, A behind a, and the others do not exist.
var (
	stationS = netlab.Station(1)
	stationA = netlab.Station(2)
	nowhere  = netlab.Station(3)
)

// Sizes of frames, in bytes: the smallest and the largest, and those around a boundary.
var sizes = []int{60, 61, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1000, 1497, 1513, 1514}

// exchange sends frames of all kinds both ways between the card and the veths.
func (x *bench) exchange() {
	x.t.Helper()
	x.Across(x.card, x.Frames(8, netlab.Broadcast, stationS), x.a, x.b)
	x.Across(x.card, x.Frames(8, nowhere, stationS), x.a, x.b)
	x.Across(x.a, x.Frames(8, nowhere, stationA), x.card, x.b)
	x.Across(x.a, x.Frames(8, netlab.Group(1), stationA), x.card, x.b)
	x.known(sizes)
}

// known sends frames between stations that the switch has learned.
func (x *bench) known(sizes []int) {
	x.t.Helper()
	var there, back []netlab.Frame
	for _, size := range sizes {
		there = append(there, x.Frame(stationS, stationA, size))
		back = append(back, x.Frame(stationA, stationS, size))
	}
	x.Across(x.a, there, x.card)
	x.Across(x.card, back, x.a)
}

// ethtool makes ethtool calls in the namespace of the switch.
func (x *bench) ethtool(do func(*ethtool.Ethtool) error) {
	x.t.Helper()
	must(x.t, x.Switch.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		return do(tool)
	}))
}

// feature reports whether an offload of a device is on.
func (x *bench) feature(device, name string) (on bool) {
	x.t.Helper()
	x.ethtool(func(tool *ethtool.Ethtool) error {
		features, err := tool.Features(device)
		on = features[name]
		return err
	})
	return on
}

// setFeatures sets offloads of the card's device, as far as the driver allows.
func (x *bench) setFeatures(on bool, names ...string) {
	x.t.Helper()
	config := map[string]bool{}
	for _, n := range names {
		config[n] = on
	}
	x.ethtool(func(tool *ethtool.Ethtool) error { return tool.Change(x.card.Port, config) })
}

// hooks: auto selects the right hook, and a command reports a hook that the driver does not
// support.
func hooks(t *testing.T) {
	x := newBench(t).veths("xdp", "xdp")
	if warned := x.add("auto"); strings.Contains(warned, "XDP") == (card.Auto == "xdp") && inMachine {
		t.Errorf("auto is %s, and it warns %q", card.Auto, warned)
	}
	x.exchange()
	before := x.Port("br0", x.card.Port).Stats64
	x.Across(x.card, x.Frames(20, stationA, stationS), x.a)
	after := x.Port("br0", x.card.Port).Stats64
	// with the last frame of Across
	if n := after.RX.Packets - before.RX.Packets; n != 21 {
		t.Errorf("the port has counted %d frames in, should be 21", n)
	}
	x.del()
	if !slices.Contains(hooksOf(), "xdp") {
		x.Refused([]string{x.card.Port, "XDP"}, "port", "add", "br0", x.card.Port, "--hook", "xdp")
		x.unchanged()
	}
	for i, hook := range hooksOf() {
		if i > 0 {
			x.del()
		}
		if warned := x.add(hook); warned != "" {
			t.Errorf("for %s it warns %q", hook, warned)
		}
		x.exchange()
	}
	// From one hook to the other and back, while the card is a port.
	for _, hook := range append(hooksOf(), hooksOf()[0]) {
		r, err := x.Run("port", "set", "br0", x.card.Port, "--hook", hook)
		must(t, err)
		if r.Exit != 0 {
			t.Fatal(r)
		}
		x.onHook(x.card.Port, hook)
		x.AwaitCarrier(x.card)
		x.known(sizes)
	}
	x.del()
}

// frames: many stations, more frames than a ring has room for, on each hook.
func frames(t *testing.T) {
	for _, hook := range hooksOf() {
		t.Run(hook, func(t *testing.T) {
			x := newBench(t).veths(hook, hook)
			x.add(hook)
			x.exchange()
			for n := range 20 {
				behind, a := netlab.Station(100+n), netlab.Station(200+n)
				x.Across(x.card, x.Frames(1, netlab.Broadcast, behind), x.a, x.b)
				x.Across(x.a, x.Frames(window, behind, a), x.card)
				x.Across(x.card, x.Frames(window, a, behind), x.a)
			}
			x.del()
		})
	}
}

// vlanOffloads are the offloads of a card that concern tags.
var vlanOffloads = []string{"rx-vlan-hw-parse", "tx-vlan-hw-insert", "rx-vlan-stag-hw-parse", "tx-vlan-stag-hw-insert", "rx-vlan-filter"}

// withOffloads calls run with the card's tag offloads as they are, and with them off, on each
// hook.
func withOffloads(t *testing.T, x *bench, run func(accelerated bool)) {
	for _, hook := range hooksOf() {
		for _, on := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/accelerated=%v", hook, on), func(t *testing.T) {
				x.setFeatures(on, vlanOffloads...)
				x.card.Remember()
				takes := x.feature(x.card.Port, vlanOffloads[0])
				t.Logf("%s %v, %s %v", vlanOffloads[0], takes, vlanOffloads[1], x.feature(x.card.Port, vlanOffloads[1]))
				x.add(hook)
				run(takes && hook == "tcx")
				x.del()
			})
		}
	}
}

// tagged returns frames of one size with tags of all kinds, with service tags in front if
// service is set.
func (x *bench) tagged(dst, src netlab.MAC, size int, service bool) (list []netlab.Frame) {
	f := func() netlab.Frame { return x.Frame(dst, src, size) }
	list = []netlab.Frame{
		f(), f().Tagged(10, 0), f().Tagged(10, 7), f().Tagged(0, 3), f().Tagged(4094, 5), f().Tagged(10, 1).Tagged(20, 2), f().ServiceTagged(10).Tagged(20, 0),
	}
	if service {
		list = append(list, f().ServiceTagged(10), f().Tagged(10, 1).ServiceTagged(20))
	}
	return list
}

// tags: a bridge without VLANs does not change tags.
func tags(t *testing.T) {
	x := newBench(t).veths("xdp", "tcx")
	withOffloads(t, x, func(accelerated bool) {
		service := !accelerated || !card.MixesTags
		for _, size := range []int{60, 64, 1000, 1506} {
			x.Across(x.card, x.tagged(netlab.Broadcast, stationS, size, service), x.a, x.b)
			x.Across(x.a, x.tagged(netlab.Broadcast, stationA, size, service), x.card, x.b)
			// the stations were learned with all these tags
			x.Across(x.a, x.tagged(stationS, stationA, size, service), x.card)
			x.Across(x.card, x.tagged(stationA, stationS, size, service), x.a)
		}
	})
}

// vlans: the switch adds tags and removes them.
func vlans(t *testing.T) {
	x := newBench(t, "--vlan-filtering").veths("xdp", "tcx")
	// The card is a trunk, a is in VLAN 10 without a tag, b is a trunk of 10 and 20. The
	// last frames use VLAN 1.
	x.SetLast(func(f netlab.Frame) netlab.Frame { return f.Tagged(1, 0) })
	x.Bascule("vlan", "add", "br0", x.a.Port, "10", "--untagged", "--pvid")
	x.Bascule("vlan", "add", "br0", x.b.Port, "10,20")
	withOffloads(t, x, func(bool) {
		x.Bascule("vlan", "add", "br0", x.card.Port, "10,20")
		for _, size := range []int{60, 64, 1000, 1514} {
			in := x.Frame(netlab.Broadcast, stationS, size)
			x.AcrossAs(x.card, []netlab.Frame{in.Tagged(10, 5)}, map[*netlab.End][]netlab.Frame{x.a: {in}, x.b: {in.Tagged(10, 5)}})
			x.AcrossAs(x.card, []netlab.Frame{in.Tagged(20, 2)}, map[*netlab.End][]netlab.Frame{x.b: {in.Tagged(20, 2)}})
			x.AcrossAs(x.card, []netlab.Frame{in.Tagged(30, 0)}, nil)
			out := x.Frame(netlab.Broadcast, stationA, size)
			x.AcrossAs(x.a, []netlab.Frame{out}, map[*netlab.End][]netlab.Frame{x.card: {out.Tagged(10, 0)}, x.b: {out.Tagged(10, 0)}})
			known := x.Frame(stationS, stationA, size)
			x.AcrossAs(x.a, []netlab.Frame{known}, map[*netlab.End][]netlab.Frame{x.card: {known.Tagged(10, 0)}})
			back := x.Frame(stationA, stationS, size)
			x.AcrossAs(x.card, []netlab.Frame{back.Tagged(10, 3)}, map[*netlab.End][]netlab.Frame{x.a: {back}})
		}
	})
}

// streams: TCP works both ways, although cards merge and segment packets, and leave checksums
// unfinished.
func streams(t *testing.T) {
	for _, hook := range hooksOf() {
		t.Run(hook, func(t *testing.T) {
			x := newBench(t).veths(hook, hook)
			if had := x.feature(x.card.Port, "rx-lro"); had != card.LRO {
				t.Fatalf("rx-lro is %v at first", had)
			}
			x.add(hook)
			if x.feature(x.card.Port, "rx-lro") {
				t.Error("rx-lro is on")
			}
			t.Logf("rx-gro-hw %v", x.feature(x.card.Port, "rx-gro-hw"))
			behind, a := x.card.Host(), x.a.Host()
			for range 2 {
				must(t, netlab.Transfer(behind, a, a.IPv4, 1<<20))
				must(t, netlab.Transfer(a, behind, behind.IPv4, 1<<20))
				must(t, netlab.Transfer(behind, a, a.IPv6, 1<<20))
				must(t, netlab.Transfer(a, behind, behind.IPv6, 1<<20))
			}
			x.del()
		})
	}
}

// promiscuity: a port's device accepts frames for any address, and stops when it is no longer a
// port.
func promiscuity(t *testing.T) {
	x := newBench(t).veths("xdp", "tcx")
	x.filters(t, "before")
	for _, hook := range hooksOf() {
		x.add(hook)
		link, err := x.Switch.Netlink().LinkByName(x.card.Port)
		must(t, err)
		if link.Attrs().Promisc != 1 {
			t.Errorf("on %s the device's promiscuity is %d", hook, link.Attrs().Promisc)
		}
		x.Across(x.card, x.Frames(10, nowhere, stationS), x.a, x.b)
		x.del()
		x.filters(t, "after")
	}
}

// filters checks that the card itself drops frames for others, if the card filters.
func (x *bench) filters(t *testing.T, when string) {
	t.Helper()
	if !inMachine {
		return
	}
	s := x.Listen(x.Switch, x.card.Port)
	if got := x.Arrive(x.card, x.Frames(10, nowhere, stationS), s); len(got) > 0 {
		t.Errorf("%s: the card takes %d frames for others, first %v", when, len(got), got[0])
	}
}

// restore: the device's settings are restored, whatever they were.
func restore(t *testing.T) {
	for _, set := range []struct {
		name string
		do   func(x *bench)
	}{
		{"as it was made", func(*bench) {}},
		{"promiscuous", func(x *bench) {
			link, err := x.Switch.Netlink().LinkByName(x.card.Port)
			must(t, err)
			must(t, x.Switch.Netlink().SetPromiscOn(link))
		}},
		{"no tags taken out", func(x *bench) { x.setFeatures(false, vlanOffloads...) }},
		{"no merging", func(x *bench) { x.setFeatures(false, "rx-lro", "rx-gro-hw", "rx-gro") }},
		{"no checksums", func(x *bench) {
			x.setFeatures(false, "rx-checksum", "tx-checksum-ip-generic", "tx-checksum-ipv4", "tx-checksum-ipv6")
		}},
		{"another MTU", func(x *bench) { x.card.SetMTU(1400) }},
	} {
		t.Run(strings.ReplaceAll(set.name, " ", "_"), func(t *testing.T) {
			x := newBench(t)
			set.do(x)
			mtu := func() int {
				link, err := x.Switch.Netlink().LinkByName(x.card.Port)
				must(t, err)
				return link.Attrs().MTU
			}
			x.card.Remember()
			was := mtu()
			for _, hook := range hooksOf() {
				x.add(hook)
				x.del()
				if now := mtu(); now != was {
					t.Errorf("after %s the MTU is %d, was %d", hook, now, was)
				}
			}
			// With a change of the hook, and together with the bridge.
			x.add("auto")
			if r, err := x.Run("port", "set", "br0", x.card.Port, "--hook", "tcx"); err != nil || r.Exit != 0 {
				t.Fatal(r, err)
			}
			x.Bascule("bridge", "del", "br0")
			x.unchanged()
			x.Bascule("bridge", "add", "br0")
		})
	}
}

// again: the port's device is set down and up. Frames pass as before, even if the driver keeps
// its XDP program, and as they should after the next change of the bridge.
func again(t *testing.T) {
	for _, hook := range hooksOf() {
		t.Run(hook, func(t *testing.T) {
			x := newBench(t).veths(hook, hook)
			x.add(hook)
			x.exchange()
			if card.KeepsProgram && hook == "xdp" {
				x.Abandon()
			}
			x.Pull(x.card.Port)
			x.Plug(x.card.Port)
			x.AwaitCarrier(x.card)
			x.exchange()
			x.Bascule("port", "set", "br0", x.a.Port, "--hairpin")
			x.onHook(x.card.Port, hook)
			x.AwaitCarrier(x.card)
			x.Bascule("port", "set", "br0", x.a.Port, "--hairpin=off")
			x.AwaitCarrier(x.card)
			x.exchange()
			x.del()
		})
	}
}

// jumboSizes are sizes of frames for an MTU of 9000.
var jumboSizes = []int{60, 1514, 1515, 2000, 3000, 3500, 3600, 4000, 4100, 8000, 9013, 9014}

// carries checks that the card itself takes frames of these sizes, without the switch.
func (x *bench) carries(sizes []int) {
	x.t.Helper()
	x.AwaitCarrier(x.card)
	var sent []netlab.Frame
	for _, size := range sizes {
		sent = append(sent, x.Frame(netlab.Broadcast, stationS, size))
	}
	got := x.Arrive(x.card, sent, x.Listen(x.Switch, x.card.Port))
	if !slices.Equal(got, sent) {
		var lengths []int
		for _, f := range got {
			lengths = append(lengths, len(f))
		}
		x.t.Errorf("without the switch the card takes frames of %v bytes, of %v", lengths, sizes)
	}
}

// jumbo: frames of 9000 bytes pass, whatever the driver's limit for XDP is.
func jumbo(t *testing.T) {
	for _, hook := range []string{"tcx", "auto"} {
		t.Run(hook, func(t *testing.T) {
			x := newBench(t).veths("tcx", "tcx")
			for _, e := range []*netlab.End{x.card, x.a, x.b} {
				e.SetMTU(9000)
			}
			x.carries(jumboSizes)
			r, err := x.Run("port", "add", "br0", x.card.Port, "--hook", hook)
			must(t, err)
			if r.Exit != 0 {
				t.Fatal(r)
			}
			is := x.Port("br0", x.card.Port).Hook
			x.onHook(x.card.Port, is)
			t.Logf("on %s: %q", is, r.Stderr)
			x.AwaitCarrier(x.card)
			x.exchange()
			x.refill()
			x.known(jumboSizes)
			x.del()
		})
	}
	t.Run("later", func(t *testing.T) {
		x := newBench(t).veths("xdp", "tcx")
		x.add("auto")
		x.exchange()
		link, err := x.Switch.Netlink().LinkByName(x.card.Port)
		must(t, err)
		if err := x.Switch.Netlink().LinkSetMTU(link, 9000); err != nil {
			t.Logf("the driver refuses the MTU: %v", err)
			x.exchange()
			x.del()
			return
		}
		if card.KeepsProgram {
			x.Abandon()
		}
		for _, e := range []*netlab.End{x.card, x.a, x.b} {
			e.SetMTU(9000)
		}
		x.AwaitCarrier(x.card)
		x.exchange()
		if card.LosesLarge {
			x.loseXDP()
			x.exchange()
			x.del()
			return
		}
		x.refill()
		x.known(jumboSizes)
		x.del()
	})
}

// refill has the card use up the buffers that its ring had before the XDP program was attached.
// virtio_net drops large frames that arrive in these (mergeable_xdp_get_buf()).
func (x *bench) refill() {
	x.t.Helper()
	const ring = 256
	for range ring/window + 1 {
		x.Across(x.card, x.Frames(window, stationA, stationS), x.a)
	}
}

// window is the number of frames that are sent at once.
const window = 30

// loseXDP changes the bridge such that the driver would have to take another program. It
// refuses, and the port continues on tcx.
func (x *bench) loseXDP() {
	x.t.Helper()
	r, err := x.Run("port", "set", "br0", x.a.Port, "--hairpin")
	must(x.t, err)
	if r.Exit != 0 || !strings.Contains(r.Stderr, x.card.Port) || !strings.Contains(r.Stderr, "it forwards by tcx alone") {
		x.t.Fatal(r)
	}
	x.onHook(x.card.Port, "tcx")
	x.Bascule("port", "set", "br0", x.a.Port, "--hairpin=off")
	x.AwaitCarrier(x.card)
}
