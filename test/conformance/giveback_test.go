// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"bascule/test/netlab"
)

// A traveller is a port whose device is moved to another network namespace and
// back.
type traveller struct {
	t          *testing.T
	l          *netlab.Lab
	hook       string
	port       *netlab.End
	far        map[string]bool // features of its other end before it was a port
	away, home netns.NsHandle
	there      *netlink.Handle

	promiscuous bool // before it was a port
}

func newTraveller(t *testing.T, hook string, promiscuous bool) *traveller {
	t.Helper()
	l := netlab.New(t)
	ends := l.NewEnds(2)
	tr := &traveller{t: t, l: l, hook: hook, port: ends[0], promiscuous: promiscuous}
	if promiscuous {
		must(t, l.Switch.Netlink().SetPromiscOn(tr.device()))
	}
	tr.far = ends[0].Features()
	l.Bascule("bridge", "add", "br0")
	l.AddPort("br0", hook, ends[1])
	tr.bascule("port add br0 PORT --hook " + hook) // which prepares the other end
	elsewhere := l.NewNamespace()
	var err error
	tr.away, err = netns.GetFromName(elsewhere.Name)
	must(t, err)
	t.Cleanup(func() { tr.away.Close() })
	tr.home, err = netns.GetFromName(l.Switch.Name)
	must(t, err)
	t.Cleanup(func() { tr.home.Close() })
	tr.there = elsewhere.Netlink()
	return tr
}

// device returns the port's device, in its original namespace.
func (tr *traveller) device() netlink.Link {
	tr.t.Helper()
	nl, err := tr.l.Switch.Netlink().LinkByName(tr.port.Port)
	must(tr.t, err)
	return nl
}

func (tr *traveller) leave() {
	tr.t.Helper()
	must(tr.t, tr.l.Switch.Netlink().LinkSetNsFd(tr.device(), int(tr.away)))
}

func (tr *traveller) back() {
	tr.t.Helper()
	nl, err := tr.there.LinkByName(tr.port.Port)
	must(tr.t, err)
	must(tr.t, tr.there.LinkSetNsFd(nl, int(tr.home)))
	must(tr.t, tr.l.Switch.Netlink().LinkSetUp(tr.device()))
	tr.port.PortIndex = tr.device().Attrs().Index
}

// other gives the index of the device, which is away, to another device, so that it gets a new
// one when it returns.
func (tr *traveller) other() {
	tr.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.Index = "other", tr.port.PortIndex
	must(tr.t, tr.l.Switch.Netlink().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "other2"}))
	tr.l.Keep("other")
	tr.l.Keep("other2")
}

// whole checks that the device and its other end are as they were before the port.
func (tr *traveller) whole(when string) {
	tr.t.Helper()
	if err := tr.port.Unchanged(); err != nil {
		tr.t.Errorf("%s: %v", when, err)
	}
	if now := tr.port.Features(); !maps.Equal(now, tr.far) {
		for f, on := range now {
			if on != tr.far[f] {
				tr.t.Errorf("%s: at the other end feature %s is %v, was %v", when, f, on, tr.far[f])
			}
		}
	}
}

// bascule runs a command, in which PORT stands for the port.
func (tr *traveller) bascule(command string) {
	tr.t.Helper()
	r, err := tr.l.Run(strings.Fields(strings.ReplaceAll(command, "PORT", tr.port.Port))...)
	must(tr.t, err)
	if r.Exit != 0 { // it may warn
		tr.t.Fatal(r)
	}
}

// givesBack: a port's changes of its device are undone when the port is deleted, wherever the
// device is then, and only once.
func givesBack(t *testing.T, hook string) {
	for _, c := range []struct {
		name string
		do   func(tr *traveller)
	}{
		{"port deleted while it is away", func(tr *traveller) {
			tr.leave()
			tr.bascule("port del br0 PORT")
			tr.back()
		}},
		{"bridge deleted while it is away", func(tr *traveller) {
			tr.leave()
			tr.bascule("bridge del br0")
			tr.back()
		}},
		{"port deleted when it is back", func(tr *traveller) {
			tr.leave()
			tr.back()
			tr.bascule("port del br0 PORT")
		}},
		{"port deleted when it is back with another index", func(tr *traveller) {
			tr.leave()
			tr.other()
			tr.back()
			tr.bascule("port del br0 PORT")
		}},
		{"bridge deleted when it is back", func(tr *traveller) {
			tr.leave()
			tr.back()
			tr.bascule("bridge del br0")
		}},
		{"made anew when it is back", func(tr *traveller) {
			tr.leave()
			tr.other()
			tr.back()
			tr.bascule("port add br0 PORT --hook " + tr.hook)
			tr.bascule("port del br0 PORT")
		}},
		{"made anew with the other hook", func(tr *traveller) {
			tr.leave()
			tr.back()
			tr.bascule("port add br0 PORT --hook " + map[string]string{"tcx": "xdp", "xdp": "tcx"}[tr.hook])
			tr.bascule("port del br0 PORT")
		}},
		{"made anew by apply", func(tr *traveller) {
			tr.leave()
			tr.back()
			file := filepath.Join(tr.t.TempDir(), "br0.yaml")
			must(tr.t, os.WriteFile(file, fmt.Appendf(nil, "bridges: {br0: {ports: {%s: {hairpin: on}}}}", tr.port.Port), 0o600))
			tr.bascule("apply " + file)
			tr.bascule("port show br0 PORT")
			tr.bascule("port del br0 PORT")
		}},
		{"renamed while it is away, and made anew", func(tr *traveller) {
			was := tr.port.Port
			tr.leave()
			tr.other()
			nl, err := tr.there.LinkByName(was)
			must(tr.t, err)
			must(tr.t, tr.there.LinkSetName(nl, "renamed"))
			tr.port.Port = "renamed"
			tr.l.Keep("renamed")
			tr.back()
			tr.bascule("port add br0 PORT --hook " + tr.hook)
			if slices.Contains(tr.l.Bridge("br0").Ports, was) {
				tr.t.Error("the port that it was is still there")
			}
			tr.bascule("port show br0 PORT")
			tr.bascule("port del br0 PORT")
		}},
		{"of another bridge when it is back", func(tr *traveller) {
			tr.leave()
			tr.back()
			tr.bascule("bridge add br1")
			tr.bascule("port add br1 PORT --hook " + tr.hook)
			tr.bascule("bridge del br0")
			if p := tr.l.Port("br1", tr.port.Port); !slices.Contains(p.Flags, "PROMISC") || p.State == "gone" {
				tr.t.Errorf("the other bridge has gone, and took from the port what is its: %+v", p)
			}
			tr.bascule("port del br1 PORT")
		}},
		{"hook changed, away and back", func(tr *traveller) {
			tr.bascule("port set br0 PORT --hook tcx")
			tr.leave()
			tr.bascule("port del br0 PORT")
			tr.back()
			if !tr.promiscuous {
				tr.whole("deleted")
			}
			tr.bascule("port add br0 PORT --hook xdp")
			tr.bascule("port set br0 PORT --hook tcx")
			tr.bascule("port del br0 PORT")
		}},
		{"twice away", func(tr *traveller) {
			for range 2 {
				tr.leave()
				tr.bascule("port del br0 PORT")
				tr.back()
				tr.bascule("port add br0 PORT --hook " + tr.hook)
			}
			tr.bascule("bridge del br0")
		}},
	} {
		for _, promiscuous := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, promiscuous %v", c.name, promiscuous), func(t *testing.T) {
				tr := newTraveller(t, hook, promiscuous)
				c.do(tr)
				if promiscuous { // as before, although Unchanged compares with an earlier state
					if n := tr.device().Attrs().Promisc; n != 1 {
						t.Errorf("promiscuity %d, was 1 before it was a port", n)
					}
					must(t, tr.l.Switch.Netlink().SetPromiscOff(tr.device()))
				}
				tr.whole("at the end")
			})
		}
	}
	t.Run("killed while it is away", func(t *testing.T) { givesBackKilled(t, hook) })
	t.Run("moved meanwhile", func(t *testing.T) { givesBackMoved(t, hook) })
}

// givesBackKilled: the next command undoes the changes that a killed command has left.
func givesBackKilled(t *testing.T, hook string) {
	tr := newTraveller(t, hook, false)
	args := []string{"port", "del", "br0", tr.port.Port}
	away := func() {
		t.Helper()
		if !slices.Contains(tr.l.Bridge("br0").Ports, tr.port.Port) {
			tr.bascule("port add br0 PORT --hook " + hook)
		}
		tr.leave()
	}
	away()
	points := slices.DeleteFunc(killPoints(t, tr.l, fixed(args), func() { tr.back(); away() }), func(p killPoint) bool {
		return !slices.Contains([]string{"bpf", "renameat", "unlinkat", "mkdirat"}, p.call)
	})
	tr.back()
	tr.whole("deleted")
	points = somePoints(points, 11)
	for _, p := range points {
		away()
		killed := kill(t, tr.l, p, args)
		tr.l.Bascule("bridge", "set", "br0") // completes or undoes the killed change
		deleted := !slices.Contains(tr.l.Bridge("br0").Ports, tr.port.Port)
		tr.back()
		if !deleted {
			tr.bascule("port del br0 PORT")
		}
		tr.whole(fmt.Sprintf("killed %v in %s number %d, deleted by that %v", killed, p.call, p.n, deleted))
		if t.Failed() {
			return
		}
	}
}

// givesBackMoved: a device, or the other end of its cable, is moved or renamed while a command
// runs. The command's changes are still undone.
func givesBackMoved(t *testing.T, hook string) {
	other := map[string]string{"tcx": "xdp", "xdp": "tcx"}[hook]
	type mess struct {
		name       string
		make, undo func(tr *traveller)
	}
	farDevice := func(tr *traveller, nl *netlink.Handle, name string) netlink.Link {
		tr.t.Helper()
		l, err := nl.LinkByName(name)
		must(tr.t, err)
		return l
	}
	rename := func(tr *traveller, from, to string) {
		tr.t.Helper()
		nl := tr.port.Namespace.Netlink()
		must(tr.t, nl.LinkSetName(farDevice(tr, nl, from), to))
	}
	messes := []mess{
		{"the device goes elsewhere", (*traveller).leave, (*traveller).back},
		{"the other end goes elsewhere", func(tr *traveller) {
			nl := tr.port.Namespace.Netlink()
			must(tr.t, nl.LinkSetNsFd(farDevice(tr, nl, tr.port.Ifname), int(tr.away)))
		}, func(tr *traveller) {
			home, err := netns.GetFromName(tr.port.Namespace.Name)
			must(tr.t, err)
			defer home.Close()
			must(tr.t, tr.there.LinkSetNsFd(farDevice(tr, tr.there, tr.port.Ifname), int(home)))
			nl := tr.port.Namespace.Netlink()
			must(tr.t, nl.LinkSetUp(farDevice(tr, nl, tr.port.Ifname)))
		}},
		{"the other end gets another name", func(tr *traveller) { rename(tr, tr.port.Ifname, "renamed") },
			func(tr *traveller) { rename(tr, "renamed", tr.port.Ifname) }},
	}
	for _, c := range []struct{ from, command string }{
		{"", "port add br0 PORT --hook " + hook},
		{hook, "port del br0 PORT"},
		{hook, "port set br0 PORT --hook " + other},
		{hook, "bridge del br0"},
	} {
		t.Run(c.command, func(t *testing.T) {
			tr := newTraveller(t, hook, false)
			isPort := func() bool { return slices.Contains(tr.l.Bridge("br0").Ports, tr.port.Port) }
			ensure := func() {
				t.Helper()
				if isPort() {
					tr.bascule("port del br0 PORT")
				}
				tr.whole("before")
				if c.from != "" {
					tr.bascule("port add br0 PORT --hook " + c.from)
				}
			}
			args := strings.Fields(strings.ReplaceAll(c.command, "PORT", tr.port.Port))
			ensure()
			remake := func() {
				if c.command == "bridge del br0" {
					tr.bascule("bridge add br0")
				}
			}
			points := slices.DeleteFunc(killPoints(t, tr.l, fixed(args), func() { remake(); ensure() }), func(p killPoint) bool {
				return !slices.Contains([]string{"bpf", "mkdirat", "renameat", "unlinkat", "ioctl", "sendto"}, p.call)
			})
			remake()
			stops, tries := 0, 0
			for i, m := range messes {
				chosen := slices.Clone(points)
				if os.Getenv("BASCULE_KILL") != "everywhere" {
					chosen = nil
					every := 23 // spread over the whole command
					if testing.Short() {
						every = 69
					}
					for n := i; n < len(points); n += every {
						chosen = append(chosen, points[n])
					}
				}
				tries += len(chosen)
				for _, p := range chosen {
					ensure()
					r, stopped, err := netlab.RunPaused(tr.l.Command(args...), p.call, p.n, func() { m.make(tr) })
					must(t, err)
					if !stopped {
						if c.command == "bridge del br0" {
							remake()
						}
						continue
					}
					stops++
					gone := c.command == "bridge del br0" && r.Exit == 0
					if !gone && isPort() {
						tr.bascule("port del br0 PORT")
					}
					m.undo(tr)
					tr.whole(fmt.Sprintf("%s, stopped in %s number %d, %v", m.name, p.call, p.n, r))
					if t.Failed() {
						return
					}
					if gone {
						remake()
					}
				}
			}
			t.Logf("stopped %d times", stops)
			if stops < tries/2 {
				t.Error("it got away most of the time")
			}
		})
	}
}
