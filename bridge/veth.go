// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"bascule/datapath"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// The demands of XDP on a veth's other end. A veth hands packets over with
// their checksums yet to be filled in, and says so beside the packet. XDP loses
// notes beside a packet, and the receiver then drops it. VLAN tags stand there
// as well, and XDP would take a frame for one without. And a veth takes frames
// from XDP only while it receives by NAPI, which GRO makes it do.
const (
	featureCsum = "tx-checksum-ip-generic"
	featureSCTP = "tx-checksum-sctp"
	featureGRO  = "rx-gro"
	featureVLAN = "tx-vlan-hw-insert"
	featureSTag = "tx-vlan-stag-hw-insert"
)

// endFeatures are the features that have to be on or off there. Each is noted by
// itself, because each can be switched by itself.
var endFeatures = []struct {
	name  string
	on    bool
	taken datapath.PortTaken // it was the other way
}{
	{featureCsum, false, datapath.PortEndHadCsum},
	{featureSCTP, false, datapath.PortEndHadSCTP},
	{featureVLAN, false, datapath.PortEndHadVLAN},
	{featureSTag, false, datapath.PortEndHadSTag},
	{featureGRO, true, datapath.PortEndNoGRO},
}

// endTaken are the notes of all of them.
var endTaken = func() (taken datapath.PortTaken) {
	for _, f := range endFeatures {
		taken |= f.taken
	}
	return taken
}()

// inspectEnd notes in p the changes that prepareEnd is going to make, and says
// so.
func inspectEnd(p *datapath.Port, l netlink.Link) (notes []string, err error) {
	err = atOtherEnd(l, func(e *ethtool.Ethtool, name string) error {
		features, err := e.Features(name)
		if err != nil {
			return err
		}
		changes := false
		for _, f := range endFeatures {
			if features[f.name] != f.on {
				setBits(&p.Taken, f.taken, true)
				changes = true
			}
		}
		ours := p.Notes&datapath.PortHost != 0 // nobody has set it to anything yet
		if !ours && changes {
			notes = []string{fmt.Sprintf("%s: for XDP, its other end %s has transmit offload of checksums and VLAN tags off and GRO on now", l.Attrs().Name, name)}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("XDP on a veth has to prepare its other end, which can't be reached (%w): use --hook tcx", err)
	}
	return notes, nil
}

// prepareEnd makes the other end of a veth fit for XDP on this end.
func prepareEnd(l netlink.Link) error {
	err := atOtherEnd(l, func(e *ethtool.Ethtool, name string) error {
		wanted := map[string]bool{}
		for _, f := range endFeatures {
			wanted[f.name] = f.on
		}
		return e.Change(name, wanted)
	})
	if err != nil {
		return err
	}
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return fmt.Errorf("XDP features: %w", err)
	}
	takes, err := xdpTarget(family, uint32(l.Attrs().Index))
	if err != nil || takes || l.Attrs().RawFlags&unix.IFF_UP == 0 {
		return err
	}
	// GRO was switched on while the other end was down: the kernel looks again
	// only when this end comes up, and nothing passes a veth with an end down
	if err := netlink.LinkSetDown(l); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// restoreEnd gives the other end of a veth back what prepareEnd took. It returns what of
// that there is no way to.
func restoreEnd(taken datapath.PortTaken, l netlink.Link) (owed datapath.PortTaken) {
	back := map[string]bool{}
	for _, f := range endFeatures {
		if taken&f.taken != 0 {
			back[f.name] = !f.on
		}
	}
	if len(back) == 0 {
		return 0
	}
	err := atOtherEnd(l, func(e *ethtool.Ethtool, name string) error { return e.Change(name, back) })
	if errors.Is(err, errNoWay) || errors.Is(err, unix.ENODEV) {
		return taken & endTaken
	}
	return 0 // or its driver refuses
}

// atOtherEnd runs f where a veth's other end is, with its name there. It tries again
// where the end goes elsewhere, or gets another name, meanwhile.
func atOtherEnd(l netlink.Link, f func(e *ethtool.Ethtool, name string) error) (err error) {
	for range searches {
		err = atOtherEndNow(l, f)
		if !errors.Is(err, unix.ENODEV) && !errors.As(err, new(netlink.LinkNotFoundError)) && !errors.Is(err, errNoWay) {
			return err
		}
		now, gone := netlink.LinkByIndex(l.Attrs().Index)
		if gone != nil {
			return err
		}
		l = now
	}
	return err
}

func atOtherEndNow(l netlink.Link, f func(e *ethtool.Ethtool, name string) error) error {
	ns, err := namespaceOf(l)
	if err != nil {
		return err
	}
	defer ns.Close()
	return inside(ns, func() error {
		end, err := netlink.LinkByIndex(l.Attrs().ParentIndex) // of a veth, the other end
		if err != nil {
			return err
		}
		e, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer e.Close()
		return f(e, end.Attrs().Name)
	})
}

// namespaceOf opens the network namespace of a veth's other end. The kernel
// names it by a number that means something in this namespace only; so every
// namespace that there is a way to is asked for its number.
func namespaceOf(l netlink.Link) (netns.NsHandle, error) {
	if l.Attrs().NetNsID < 0 {
		return netns.Get()
	}
	for path := range namespaceFiles() {
		ns, err := NetnsAt(path)
		if err != nil {
			continue
		}
		if id, err := netlink.GetNetNsIdByFd(int(ns)); err == nil && id == l.Attrs().NetNsID {
			return ns, nil
		}
		ns.Close()
	}
	return -1, errNoWay
}

// errNoWay says that there is no way to a network namespace.
var errNoWay = errors.New("no process is in its namespace and it has no name")

// namespaceFiles are paths of network namespaces, one for each that has a name or
// that a process is in. Those with names come first: processes, of which there may
// be thousands, are looked at only for who goes on behind them.
func namespaceFiles() iter.Seq[string] {
	return func(yield func(string) bool) {
		var seen []os.FileInfo
		// reports whether to go on
		try := func(path string) bool {
			info, err := os.Stat(path)
			if err != nil || slices.ContainsFunc(seen, func(s os.FileInfo) bool { return os.SameFile(s, info) }) {
				return true
			}
			seen = append(seen, info)
			return yield(path)
		}
		// In mounts of our own, as by `ip netns exec`, names given since are not ours.
		// (/var/run is a symbolic link, which would lead back to our own.)
		const machine = "/proc/1/root/run"
		for _, pattern := range []string{
			netnsDir + "/*", machine + "/netns/*", "/var/run/docker/netns/*", machine + "/docker/netns/*", "/proc/[0-9]*/ns/net",
		} {
			candidates, _ := filepath.Glob(pattern)
			for _, path := range candidates {
				if !try(path) {
					return
				}
			}
		}
	}
}
