// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"bascule/datapath"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// On a bridge with spanning tree a device that comes to a berth waits for its state, in whatever
// order the device, the berth and the process came. A device that was a port before keeps
// forwarding.
func TestBerthsWithSpanningTree(t *testing.T) {
	type step func(*bench)
	stp := func(value string) step {
		return func(b *bench) {
			_, err := b.SetBridge("br0", []Change{{stpSetting, value}})
			b.must(err)
		}
	}
	berths := func(b *bench) { b.must(b.SetBerths("br0", []Berth{{Pattern: "p*", Count: 1}})) }
	occupy := func(b *bench) {
		b.t.Helper()
		ok, _, err := b.Occupy("br0", "p*", "p1")
		b.must(err)
		if !ok {
			b.t.Error("the device is not for a berth")
		}
	}
	forward := func(b *bench) {
		b.t.Helper()
		tree, err := b.OpenControl("br0")
		b.must(err)
		ports, err := tree.Ports()
		b.must(err)
		for _, p := range ports {
			b.must(tree.SetState(p.ID, STPForwarding))
		}
		b.must(tree.Close())
	}
	anew := func(b *bench) {
		b.t.Helper()
		l, err := b.ns.Netlink().LinkByName("p1")
		b.must(err)
		b.must(b.ns.Netlink().LinkDel(l))
		b.cable(1)
	}
	change := func(b *bench) { b.edit(func(e *Edit) error { return e.Set([]Change{{"ageing", "77"}}) }) }
	const waits, goesOn = "discarding", "forwarding"
	on, off := stp(STPRapid), stp(STPOff)
	for name, tt := range map[string]struct {
		steps []step
		want  string
	}{
		"berth first":                {[]step{berths, on, occupy}, waits},
		"spanning tree first":        {[]step{on, berths, occupy}, waits},
		"device first":               {[]step{berths, occupy, on}, goesOn},
		"on, off and on":             {[]step{on, berths, off, on, occupy}, waits},
		"in between":                 {[]step{on, berths, off, occupy, on}, goesOn},
		"decided, and changed":       {[]step{on, berths, occupy, forward, change}, goesOn},
		"decided, another device":    {[]step{on, berths, occupy, forward, anew, berths, occupy}, waits},
		"changed before it occupies": {[]step{on, berths, change, occupy, change}, waits},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, 1)
			b.must(b.AddBridge("br0", nil))
			for _, step := range tt.steps {
				step(b)
			}
			if ports := b.look().Ports; len(ports) != 1 || ports[0].State != tt.want {
				t.Errorf("the ports are %+v, want one that is %s", ports, tt.want)
			}
		})
	}

	b := newBench(t, 1)
	b.must(b.AddBridge("br0", []Change{{stpSetting, STPRapid}}))
	berths(b)
	_, warnings, err := b.Occupy("br0", "p*", "p1")
	b.must(err)
	if len(warnings) != 1 || !strings.Contains(warnings[0], stpWaits("p1")) {
		t.Errorf("warnings %q, want that nobody runs spanning tree", warnings)
	}
}

// Concurrent goroutines make and delete devices, occupy berths, add and remove ports, set states
// and look at the ports: no change is left half done, and a new port waits for its spanning tree.
func TestBerthsUnderChurn(t *testing.T) {
	const devices = 8
	b := newBench(t, 1)
	b.must(b.AddBridge("br0", []Change{{"stp", STPRapid}}))
	b.edit(func(e *Edit) error { return e.AddPort("p1", PortOptions{}) })
	berths := []Berth{{Pattern: "v*", Count: 4}}
	b.must(b.SetBerths("br0", berths))
	tree, err := b.OpenControl("br0")
	b.must(err)

	name := func() string { return fmt.Sprintf("v%d", rand.IntN(devices)) }
	device := func(name string) netlink.Link {
		a := netlink.NewLinkAttrs()
		a.Name, a.Flags = name, 0
		return &netlink.Veth{LinkAttrs: a, PeerName: "peer-" + name}
	}
	var occupied, added atomic.Int64
	// refused drops the errors of a command whose device is not there, or not yet
	refused := func(err error) error {
		if err == nil || strings.Contains(err.Error(), "; nothing was changed") {
			return nil
		}
		for _, why := range []string{"is not a port of this bridge", "it is a port of bridge", "there is no such interface"} {
			if strings.Contains(err.Error(), why) {
				return nil
			}
		}
		return err
	}
	jobs := map[string]func() error{
		"make": func() error {
			_ = b.ns.Netlink().LinkAdd(device(name())) // it may exist
			time.Sleep(time.Millisecond)
			return nil
		},
		"unmake": func() error {
			_ = b.ns.Netlink().LinkDel(device(name())) // it may not exist
			time.Sleep(time.Millisecond)
			return nil
		},
		"occupy": func() error {
			ok, _, err := b.Occupy("br0", "v*", name())
			if ok {
				occupied.Add(1)
			}
			return err
		},
		"add": func() error {
			_, err := b.AddPort("br0", name(), PortOptions{})
			if err == nil {
				added.Add(1)
			}
			return refused(err)
		},
		"del": func() error { _, err := b.DelPort("br0", name()); return refused(err) },
		"set": func() error {
			_, err := b.SetPorts("br0", []string{name()}, PortOptions{Changes: on("learn")})
			return refused(err)
		},
		"berths": func() error { return b.SetBerths("br0", berths) },
		"read":   func() error { _, err := b.Read("br0"); return err },
		"ports":  func() error { _, err := b.Ports("br0"); return err },
		"states": func() error {
			ports, err := tree.Ports()
			for _, p := range ports {
				if err := tree.SetState(p.ID, STPForwarding); err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
			}
			return err
		},
	}
	end := time.Now().Add(4 * time.Second)
	latest := end.Add(time.Minute) // a busy machine takes longer to do both
	goesOn := func() bool {
		now := time.Now()
		return now.Before(end) || now.Before(latest) && (occupied.Load() == 0 || added.Load() == 0)
	}
	var wg sync.WaitGroup
	for what, job := range jobs {
		wg.Go(func() {
			for goesOn() {
				if err := job(); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			}
		})
	}
	wg.Wait()
	if occupied.Load() == 0 || added.Load() == 0 {
		t.Errorf("%d devices were in berths, %d were added", occupied.Load(), added.Load())
	}
	b.must(tree.Close())
	_, err = b.SetBridge("br0", nil)
	b.must(err)
	if b.dirty() {
		t.Error("the bridge is still to be mended")
	}

	links := map[string]bool{}
	entries, err := os.ReadDir(filepath.Join(b.root, "br0", "link"))
	b.must(err)
	for _, e := range entries {
		links[e.Name()] = true
	}
	ports := map[string]Port{}
	list, err := b.Ports("br0")
	b.must(err)
	for _, p := range list {
		if _, twice := ports[p.Name]; twice && p.State != "gone" {
			t.Errorf("%s is a port twice", p.Name)
		}
		ports[p.Name] = p
	}
	b.must(b.each("", "br0", func(_ string, d *datapath.Bridge) error {
		for _, p := range datapath.Ports(&d.Config) {
			if pin := fmt.Sprintf("%d-tcx", p.Id); d.HasDevice(p) && !links[pin] {
				t.Errorf("%s has no program", datapath.PortName(p))
			} else {
				delete(links, pin)
			}
		}
		return nil
	}))
	for pin := range links {
		t.Errorf("link %s is nobody's", pin)
	}
	b.must(b.Inside(func() error {
		devices, err := netlink.LinkList()
		if err != nil {
			return err
		}
		for _, l := range devices {
			on, err := link.QueryPrograms(link.QueryOptions{Target: l.Attrs().Index, Attach: ebpf.AttachTCXIngress})
			if err != nil {
				return err
			}
			p, port := ports[l.Attrs().Name]
			port = port && p.State != "gone"
			promisc := l.Attrs().RawFlags&unix.IFF_PROMISC != 0
			if (len(on.Programs) == 1) != port || promisc != port {
				t.Errorf("%s: %d programs, promiscuous %v, a port: %v (%s)", l.Attrs().Name, len(on.Programs), promisc, port, p.State)
			}
		}
		return nil
	}))
}
