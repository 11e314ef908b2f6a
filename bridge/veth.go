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

// XDP has requirements for a veth's other end. A veth passes on packets whose checksums are not
// filled in yet, with a note beside the packet. XDP loses such notes, and the receiver then drops
// the packet. VLAN tags are beside the packet, too, so that XDP would see a frame without a tag.
// And a veth accepts frames from XDP only while it receives by NAPI, which GRO enables.
const (
	featureCsum = "tx-checksum-ip-generic"
	featureSCTP = "tx-checksum-sctp"
	featureGRO  = "rx-gro"
	featureVLAN = "tx-vlan-hw-insert"
	featureSTag = "tx-vlan-stag-hw-insert"
)

// endFeatures are the features that must be on or off at the other end. Each has its own flag for
// its former value, because they can be changed separately.
var endFeatures = []struct {
	name  string
	on    bool
	taken datapath.PortTaken // it had the other value
}{
	{featureCsum, false, datapath.PortEndHadCsum},
	{featureSCTP, false, datapath.PortEndHadSCTP},
	{featureVLAN, false, datapath.PortEndHadVLAN},
	{featureSTag, false, datapath.PortEndHadSTag},
	{featureGRO, true, datapath.PortEndNoGRO},
}

// endTaken has the flags of all of them.
var endTaken = func() (taken datapath.PortTaken) {
	for _, f := range endFeatures {
		taken |= f.taken
	}
	return taken
}()

// inspectEnd records in p the changes that prepareEnd will make, and returns notes about them.
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
		ours := p.Notes&datapath.PortHost != 0 // it is new, and has only defaults
		if !ours && changes {
			notes = []string{fmt.Sprintf("%s: for XDP, its other end %s has transmit offload of checksums and VLAN tags off and GRO on now", l.Attrs().Name, name)}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("XDP on a veth has to prepare its other end, which cannot be reached (%w): use --hook tcx", err)
	}
	return notes, nil
}

// prepareEnd sets the features of a veth's other end for XDP at this end.
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
	// GRO was switched on while the other end was down. The kernel considers it only when this
	// end comes up, and a veth with an end down passes nothing.
	if err := netlink.LinkSetDown(l); err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}

// restoreEnd restores the features of a veth's other end that prepareEnd has changed. It returns
// the changes that cannot be undone, because the end cannot be reached.
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
	return 0 // restored, or its driver refuses
}

// atOtherEnd calls f in the namespace of a veth's other end, with the end's name there. If the end
// moves or is renamed meanwhile, it tries again.
func atOtherEnd(l netlink.Link, f func(e *ethtool.Ethtool, name string) error) (err error) {
	for range searches {
		err = atOtherEndNow(l, f)
		if !errors.Is(err, unix.ENODEV) && !errors.As(err, new(netlink.LinkNotFoundError)) &&
			!errors.Is(err, errNoWay) && !errors.Is(err, errNoEnd) {
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
		end, err := endHere(l)
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

// endHere returns a veth's other end if it is in the calling thread's network namespace, and
// errNoEnd if it is not. The kernel reports no namespace for an end in the veth's own, nor for an
// end whose namespace is being destroyed. In the second case another device here may have the end's
// index, so endHere checks that the end's other end is this veth.
func endHere(l netlink.Link) (netlink.Link, error) {
	of := l.Attrs()
	end, err := netlink.LinkByIndex(of.ParentIndex) // for a veth, the index of the other end
	if err != nil {
		return nil, err
	}
	if !joined(l, end) {
		return nil, errNoEnd
	}
	return end, nil
}

// joined reports whether a device with the index of a veth's other end is that end.
func joined(l, end netlink.Link) bool {
	of, back := l.Attrs(), end.Attrs()
	return end.Type() == "veth" && back.ParentIndex == of.Index && (back.NetNsID < 0) == (of.NetNsID < 0)
}

// errNoEnd means that the device with the index of a veth's other end is another one.
var errNoEnd = errors.New("its network namespace ends at this moment")

// namespaceOf opens the network namespace of a veth's other end. The kernel identifies it by a
// number that is valid in this namespace only, so namespaceOf gets that number for every namespace
// that can be reached.
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

// errNoWay means that a network namespace cannot be reached.
var errNoWay = errors.New("no process is in its namespace and it has no name")

// namespaceFiles returns paths of network namespaces, one for each that has a name or a process,
// and those with names first. There may be thousands of processes, which it looks up only if the
// caller continues after the names.
func namespaceFiles() iter.Seq[string] {
	return func(yield func(string) bool) {
		var seen []os.FileInfo
		// reports whether to continue
		try := func(path string) bool {
			info, err := os.Stat(path)
			if err != nil || slices.ContainsFunc(seen, func(s os.FileInfo) bool { return os.SameFile(s, info) }) {
				return true
			}
			seen = append(seen, info)
			return yield(path)
		}
		// A process with its own mounts, as by `ip netns exec`, does not see names that
		// were added since. (/var/run is a symbolic link, which would lead back to the
		// process's own mounts.)
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
