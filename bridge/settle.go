// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"

	"bascule/datapath"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inspect notes in p the changes that makeReady is going to make to the port's
// device, or to the other end of a veth, and says so. It changes nothing.
func inspect(p *datapath.Port, l netlink.Link) (notes []string, err error) {
	xdp := p.Notes&datapath.PortXDP != 0
	if use, _ := xdpUseOf(l); xdp && use.why != "" {
		way := "frames from and to it go by tcx"
		if use.sends {
			way = "what comes in by it goes by tcx"
		}
		notes = append(notes, fmt.Sprintf("%s: %s: %s", l.Attrs().Name, way, use.why))
	}
	switch {
	case l.Type() == "veth" && xdp:
		return inspectEnd(p, l)
	case l.Type() == physical:
		features, err := featuresOf(l)
		if err != nil {
			return nil, err
		}
		if features[featureLRO] {
			setBits(&p.Taken, datapath.PortHadLRO, true)
		}
		if features[featureRxVLAN] && xdp {
			setBits(&p.Taken, datapath.PortHadRxVLAN, true)
		}
	}
	return notes, nil
}

// giveBack undoes what makeReady did to the port's frames, but for what is noted of the
// port still. Where now is nil the port leaves.
func giveBack(was, now *datapath.Port, l netlink.Link) {
	taken := was.Taken
	if now != nil {
		taken &^= now.Taken
	}
	if taken&datapath.PortHadLRO != 0 {
		switchOn(l, featureLRO)
	}
	if taken&datapath.PortHadRxVLAN != 0 {
		switchOn(l, featureRxVLAN)
	}
	restoreEnd(taken, l)
}

// toTCX makes the port one that forwards by tcx alone. What it took for XDP is given
// back. An end that there is no way to now keeps it, and so does the note of it.
func (c *draft) toTCX(p *datapath.Port, l netlink.Link) {
	keep := p.Taken & endTaken
	if keep != 0 {
		err := atOtherEnd(l, func(*ethtool.Ethtool, string) error { return nil })
		if !errors.Is(err, errNoWay) {
			keep = 0
		}
	}
	if keep != 0 {
		c.warn(fmt.Sprintf("%s: its other end keeps the offloads that XDP took, since %v; set --hook tcx again when there is a way to it", l.Attrs().Name, errNoWay))
	}
	p.Taken = p.Taken&^givenBackWithXDP | keep
}

// settleAll readies the devices of every port of the bridge, and makes known the
// addresses of its host ports.
func settleAll(b *datapath.Bridge) error {
	for _, p := range datapath.Ports(&b.Config) {
		// an end that there is no way to any more was readied before the port's programs
		if _, err := makeReady(p, b.HasDevice); err != nil && !errors.Is(err, errNoWay) {
			return err
		}
		if err := announce(b, p); err != nil {
			return err
		}
	}
	return nil
}

// announce makes a host port's own address known.
func announce(b *datapath.Bridge, p *datapath.Port) error {
	if p.Host == 0 || !b.HasDevice(p) {
		return nil
	}
	spaces, err := currentSpaces(b)
	if err == nil {
		err = announceHost(b, p, spaces[p.Id])
	}
	if err != nil && !b.HasDevice(p) {
		return nil // it goes at this moment, and there is nothing left to do
	}
	return err
}

// makeReady makes a port's device fit to be one: it takes frames for all, and its
// driver leaves them as they came. For XDP the other end of a veth is readied, too.
// All of that comes before the first frame that meets the port's programs, which
// Intend has been told. The notes are about changes that the driver refuses.
func makeReady(p *datapath.Port, there func(*datapath.Port) bool) (notes []string, err error) {
	if p.Facts&datapath.PortPatch != 0 || !there(p) {
		return nil, nil
	}
	defer func() {
		if err != nil && !there(p) {
			err = nil // it goes at this moment, and there is nothing left to do
		}
	}()
	l, err := netlink.LinkByIndex(int(p.Ifindex))
	if err != nil {
		return nil, err
	}
	name := l.Attrs().Name
	if l.Attrs().RawFlags&unix.IFF_PROMISC == 0 {
		if err := netlink.SetPromiscOn(l); err != nil {
			return nil, fmt.Errorf("make %s promiscuous: %w", name, err)
		}
	}
	off := func(had datapath.PortTaken, feature, harm string) {
		if p.Taken&had == 0 {
			return
		}
		if err := switchOff(l, feature); err != nil {
			notes = append(notes, fmt.Sprintf("%s: the driver does not switch %s off (%v): %s", name, feature, err, harm))
		}
	}
	off(datapath.PortHadLRO, featureLRO, "merged frames may be too large for other ports")
	off(datapath.PortHadRxVLAN, featureRxVLAN, "XDP does not see its VLAN tags; use --hook tcx for tagged frames")
	if l.Type() == "veth" && p.Notes&datapath.PortXDP != 0 {
		if err := prepareEnd(l); err != nil {
			return notes, err
		}
	}
	return notes, nil
}

// givenBackWithXDP are the flags of what a port takes for XDP alone.
var givenBackWithXDP = datapath.PortHadRxVLAN | endTaken

// givenBack are the flags of all that a port takes of its device's features.
var givenBack = givenBackWithXDP | datapath.PortHadLRO

// follower does the work that follows a change to a bridge.
type follower struct{}

// Follow forgets addresses that no longer belong where they are, and the
// findings of loop guards that have been changed.
func (follower) Follow(b, was *datapath.Bridge) error {
	if err := followVLANs(b, was); err != nil {
		return err
	}
	for _, p := range datapath.Ports(&b.Config) {
		old := datapath.PortAt(&was.Config, p.Id)
		if old == nil || old.BlockTime == p.BlockTime && (old.Flags^p.Flags)&datapath.PortLoopGuard == 0 {
			continue
		}
		if err := b.Unblock(p); err != nil {
			return err
		}
	}
	return nil
}

// Leave gives back what a port took: all of it where it has left the bridge, or
// what is noted of it no more. A host port's device goes.
func (follower) Leave(b *datapath.Bridge, was, now *datapath.Port) error {
	return leave(was, now, was.Ifindex)
}

// searches is how often a device is looked for: it may be moved on meanwhile.
const searches = 3

// LeaveAway gives back what a port took whose device is in another network
// namespace. One that there is no way to keeps it.
func (follower) LeaveAway(_ *datapath.Bridge, was *datapath.Port, here func() uint32) error {
	for range searches {
		if found, err := leaveHere(was, here); found || err != nil {
			return err
		}
		for path := range namespaceFiles() {
			ns, err := NetnsAt(path)
			if err != nil {
				continue
			}
			found := false
			err = inside(ns, func() (err error) {
				found, err = leaveHere(was, here)
				return err
			})
			ns.Close()
			if found {
				return err
			}
		}
	}
	return nil
}

// leaveHere gives back what a port took if the calling thread's network namespace
// has its device, still when that is done.
func leaveHere(was *datapath.Port, here func() uint32) (found bool, err error) {
	index := here()
	if index == 0 {
		return false, nil
	}
	err = leave(was, nil, index)
	return here() == index, err
}

// leave gives back what a port took of the device of an index in the calling
// thread's network namespace.
func leave(was, now *datapath.Port, index uint32) (err error) {
	defer func() {
		if errors.Is(err, unix.ENODEV) {
			err = nil // it goes at this moment, and all with it
		}
	}()
	l, err := netlink.LinkByIndex(int(index))
	if err != nil {
		return nil // it has gone
	}
	if now != nil {
		giveBack(was, now, l)
		return nil
	}
	if was.Notes&datapath.PortHost != 0 {
		return netlink.LinkDel(l)
	}
	giveBack(was, nil, l)
	if was.Taken&datapath.PortWasPromisc == 0 {
		return netlink.SetPromiscOff(l)
	}
	return nil
}

// offloads are what a driver must not do to received frames: merging them
// (LRO loses their borders), and, where XDP looks at them, taking VLAN tags
// out, which XDP would not see.
const (
	featureLRO    = "rx-lro"
	featureRxVLAN = "rx-vlan-hw-parse"
)

// featuresOf returns which features of a device are on, by ethtool's names.
func featuresOf(l netlink.Link) (map[string]bool, error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Features(l.Attrs().Name)
}

// switchOff switches a feature of a device off; an error says that the driver
// refuses.
func switchOff(l netlink.Link, feature string) error {
	if err := setFeature(l, feature, false); err != nil {
		return err
	}
	if features, err := featuresOf(l); err != nil || features[feature] {
		return errors.New("the driver keeps it on")
	}
	return nil
}

func switchOn(l netlink.Link, feature string) {
	_ = setFeature(l, feature, true) // a driver that refuses has reason to
}

func setFeature(l netlink.Link, feature string, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(l.Attrs().Name, map[string]bool{feature: on})
}
