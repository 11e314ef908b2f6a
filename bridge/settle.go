// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"strings"

	"bascule/datapath"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// inspect records in p the changes that makeReady will make to the port's device, or to the other
// end of a veth, and returns notes about them. It changes nothing.
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

// giveBack restores the features that makeReady changed, except for those that the next port still
// needs changed. now is nil if the port leaves. It returns the changes that cannot be undone,
// because the other end cannot be reached.
func giveBack(was, now *datapath.Port, l netlink.Link) (owed datapath.PortTaken) {
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
	return restoreEnd(taken, l)
}

// settleAll prepares the devices of every port of the bridge, and announces the addresses of its
// host ports.
func settleAll(b *datapath.Bridge) error {
	for _, p := range datapath.Ports(&b.Config) {
		// An end that can no longer be reached was prepared before the port's programs were
		// attached.
		if _, err := makeReady(p, b.HasDevice); err != nil && !errors.Is(err, errNoWay) {
			return err
		}
		if err := announce(b, p); err != nil {
			return err
		}
	}
	return nil
}

// announce adds a host port's own address to the FDB.
func announce(b *datapath.Bridge, p *datapath.Port) error {
	if p.Host == 0 || !b.HasDevice(p) {
		return nil
	}
	spaces, err := currentSpaces(b)
	if err == nil {
		err = announceHost(b, p, spaces[p.Id])
	}
	if err != nil && !b.HasDevice(p) {
		return nil // the device is being removed, and nothing is left to do
	}
	return err
}

// makeReady prepares a port's device: it receives frames for all stations, and its driver does not
// merge them or remove tags. For XDP, it also prepares the other end of a veth. All of that
// precedes the first frame for the port's programs, and follows the record that Intend makes. The
// notes are about changes that the driver refuses.
func makeReady(p *datapath.Port, there func(*datapath.Port) bool) (notes []string, err error) {
	if p.Facts&datapath.PortPatch != 0 || !there(p) {
		return nil, nil
	}
	defer func() {
		if err != nil && !there(p) {
			err = nil // the device is being removed, and nothing is left to do
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
	if p.Notes&datapath.PortHost != 0 && hostHere(l) {
		if host := otherEnd(l); host != nil {
			if err := joinMTU(l, host); err != nil {
				return notes, fmt.Errorf("give %s the MTU of its other end: %w", name, err)
			}
		}
	}
	if l.Type() == "veth" && p.Notes&datapath.PortXDP != 0 {
		// XDP refuses a device whose other end accepts larger frames, such as a host port's
		// whose interface joins two bridges
		if hostHere(l) {
			if end := otherEnd(l); end != nil && isSwitchEnd(end) && end.Attrs().MTU > l.Attrs().MTU {
				if err := netlink.LinkSetMTU(end, l.Attrs().MTU); err != nil {
					return notes, err
				}
			}
		}
		if err := prepareEnd(l); err != nil {
			return notes, err
		}
	}
	return notes, nil
}

// givenBackWithXDP are the flags of all changes that a port needs for XDP only.
var givenBackWithXDP = datapath.PortHadRxVLAN | endTaken

// givenBack are the flags of all changes of a device's features.
var givenBack = givenBackWithXDP | datapath.PortHadLRO

// follower performs the work after a change of a bridge.
type follower struct {
	warn func(...string) // reports what a port has not restored; may be nil
}

// Follow removes addresses that are in the wrong place now, and the findings of loop guards whose
// settings have changed.
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

// searches is how often a device is searched for: it may move to another namespace meanwhile.
const searches = 3

// Leave restores what a port changed, in whatever namespace its device is. If the port has left the
// bridge, it restores everything, and otherwise what the port no longer needs. It deletes a host
// port's device.
func (f follower) Leave(was, now *datapath.Port, tie datapath.Tie) (owed *datapath.Port, err error) {
	for range searches {
		if found, owed, err := f.leaveHere(was, now, tie); found || err != nil {
			return owed, err
		}
		for path := range namespaceFiles() {
			ns, err := NetnsAt(path)
			if err != nil {
				continue
			}
			found := false
			err = inside(ns, func() (err error) {
				found, owed, err = f.leaveHere(was, now, tie)
				return err
			})
			ns.Close()
			if found {
				return owed, err
			}
		}
	}
	if !tie.Exists() {
		return nil, nil
	}
	debt := *was
	if now != nil {
		debt.Taken = was.Taken&^now.Taken | datapath.PortWasPromisc
		setBits(&debt.Notes, datapath.PortHost, false)
	}
	f.say(&debt, datapath.PortName(was), "it is in another network namespace, which cannot be reached")
	return &debt, nil
}

// leaveHere restores what a port changed, if its device is in the calling thread's network
// namespace, and is still there afterwards.
func (f follower) leaveHere(was, now *datapath.Port, tie datapath.Tie) (found bool, owed *datapath.Port, err error) {
	index := tie.Here()
	if index == 0 {
		return false, nil, nil
	}
	name := datapath.PortName(was)
	if l, err := netlink.LinkByIndex(int(index)); err == nil {
		name = l.Attrs().Name
	}
	left, err := leave(was, now, index)
	if err != nil || tie.Here() != index {
		return !tie.Exists(), nil, err
	}
	if left != 0 {
		debt := *was
		debt.Taken = left | datapath.PortWasPromisc // the rest has been restored
		setBits(&debt.Notes, datapath.PortHost, false)
		f.say(&debt, name, "its other end is in a network namespace that cannot be reached")
		owed = &debt
	}
	return true, owed, nil
}

// say warns about changes that were not restored.
func (f follower) say(owed *datapath.Port, name, why string) {
	if f.warn == nil {
		return
	}
	var keeps, remedies []string
	if owed.Taken&datapath.PortWasPromisc == 0 {
		keeps, remedies = append(keeps, "it stays promiscuous"), append(remedies, "'ip link set "+name+" promisc off'")
	}
	for _, f := range []struct {
		taken   datapath.PortTaken
		feature string
	}{{datapath.PortHadLRO, featureLRO}, {datapath.PortHadRxVLAN, featureRxVLAN}} {
		if owed.Taken&f.taken != 0 {
			keeps, remedies = append(keeps, f.feature+" stays off"), append(remedies, "'ethtool -K "+name+" "+f.feature+" on'")
		}
	}
	var there []string
	for _, e := range endFeatures {
		if owed.Taken&e.taken != 0 {
			word := " on"
			if e.on {
				word = " off"
			}
			there = append(there, e.name+word)
		}
	}
	if there != nil {
		keeps, remedies = append(keeps, "its other end keeps the offloads that XDP took"), append(remedies, "'ethtool -K' with "+strings.Join(there, " ")+" at its other end")
	}
	if keeps == nil {
		return
	}
	f.warn(fmt.Sprintf("%s: %s, since %s; the next change here that can reach it restores it; or run there: %s",
		name, strings.Join(keeps, ", "), why, strings.Join(remedies, ", ")))
}

// leave restores what a port changed at the device with an index in the calling thread's network
// namespace. It returns the changes that cannot be undone, because the other end cannot be reached.
func leave(was, now *datapath.Port, index uint32) (owed datapath.PortTaken, err error) {
	defer func() {
		if errors.Is(err, unix.ENODEV) {
			err = nil // the device is being removed, with all its settings, or moves elsewhere
		}
	}()
	l, err := netlink.LinkByIndex(int(index))
	if err != nil {
		return 0, nil // the device is gone
	}
	if now != nil {
		return giveBack(was, now, l), nil
	}
	if was.Notes&datapath.PortHost != 0 {
		return 0, netlink.LinkDel(l)
	}
	owed = giveBack(was, nil, l)
	if was.Taken&datapath.PortWasPromisc == 0 {
		return owed, netlink.SetPromiscOff(l)
	}
	return owed, nil
}

// offloads are changes that a driver must not make to received frames. LRO merges them, and their
// boundaries are lost. With XDP, the driver must not remove VLAN tags, because XDP would not see
// them.
const (
	featureLRO    = "rx-lro"
	featureRxVLAN = "rx-vlan-hw-parse"
)

// featuresOf returns which features of a device are on, by their names in ethtool.
func featuresOf(l netlink.Link) (map[string]bool, error) {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Features(l.Attrs().Name)
}

// switchOff switches off a feature of a device. An error means that the driver refuses.
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
	_ = setFeature(l, feature, true) // a driver that refuses has a reason
}

func setFeature(l netlink.Link, feature string, on bool) error {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return err
	}
	defer e.Close()
	return e.Change(l.Attrs().Name, map[string]bool{feature: on})
}
