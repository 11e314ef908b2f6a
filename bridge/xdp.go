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

// xdpUse says which frames of a device the hook xdp can take.
type xdpUse struct {
	// takes: frames that come in by the device may go by XDP. For that, all facts
	// of a frame must be in the frame. XDP loses the notes that a driver makes
	// beside it: that a checksum is yet to be filled in, that the frame is to be
	// cut up, a VLAN tag. The kind of the device decides, which stays; settings do
	// not, since others change them.
	takes bool
	// sends: frames that XDP redirects to the device leave by it, if it says so
	// itself.
	sends bool
	// why says why the device does not take frames.
	why string
}

// xdpUseOf tells which frames of a device the hook xdp can take; false if there
// is no XDP for its kind.
func xdpUseOf(l netlink.Link) (xdpUse, bool) {
	switch l.Type() {
	case "veth": // prepareEnd sees to its other end
		return xdpUse{takes: true, sends: true}, true
	case "tuntap":
		// The process that holds the tap's file says of each frame what is
		// unfinished (VIRTIO_NET_HDR_F_NEEDS_CSUM), whatever is negotiated, and
		// no setting of the device forbids it. Whether there is such a header
		// may change when the file is opened again.
		return xdpUse{sends: true, why: "it may leave checksums to the switch, which XDP would not see"}, true
	case "bond":
		return xdpUse{why: "it has what its devices note beside a frame, which XDP would not see"}, true
	case physical:
		if driverOf(l) == xenDriver {
			return xdpUse{why: "its driver notes beside a frame that a checksum is unfinished, which XDP would not see"}, true
		}
		// Among other drivers for virtual machines, virtio_net has the host
		// finish the frames that it hands to XDP, and drops those that are not
		// finished.
		return xdpUse{takes: true, sends: true}, true
	}
	return xdpUse{}, false
}

// xenDriver is Xen's network card. Its frames from the same machine have no checksums
// (XEN_NETRXF_csum_blank), even those that its driver hands to XDP.
const xenDriver = "vif"

// driverOf names a device's driver, "" if the kernel does not name it.
func driverOf(l netlink.Link) string {
	e, err := ethtool.NewEthtool()
	if err != nil {
		return ""
	}
	defer e.Close()
	name, err := e.DriverName(l.Attrs().Name)
	if err != nil {
		return ""
	}
	return name
}

// wantsXDP decides what auto means. XDP makes a veth's peer give up its large
// packets and takes none of a tap's frames; so only hardware gets it unasked.
func wantsXDP(hook string, l netlink.Link) bool {
	if hook == HookAuto && l.Type() == physical {
		use, _ := xdpUseOf(l)
		return use.takes
	}
	return hook == HookXDP
}

// setXDPUse notes which ports have the XDP program, and which take frames that XDP
// redirects. A veth takes them while its other end has GRO on or an XDP program of its
// own.
func setXDPUse(b *datapath.Bridge, c *datapath.Config) error {
	var family *netlink.GenlFamily
	for _, p := range datapath.Ports(c) {
		setBits(&p.Facts, datapath.PortXDPTx, false)
		setBits(&p.Notes, datapath.PortXDPRx, false)
		was := datapath.PortAt(&b.Config, p.Id)
		if p.Notes&datapath.PortXDP == 0 {
			continue
		}
		if was != nil && !b.HasDevice(p) {
			setBits(&p.Notes, datapath.PortXDPRx, was.Notes&datapath.PortXDPRx != 0)
			continue
		}
		l, err := netlink.LinkByIndex(int(p.Ifindex))
		if err != nil {
			if errors.As(err, new(netlink.LinkNotFoundError)) {
				err = unix.ENODEV
			}
			return &datapath.PortError{Port: datapath.PortName(p), Hook: HookXDP, Err: err}
		}
		use, known := xdpUseOf(l)
		if !known && (was == nil || was.Notes&datapath.PortXDP == 0) {
			return &datapath.PortError{Port: datapath.PortName(p), Hook: HookXDP, Err: unix.EOPNOTSUPP}
		}
		setBits(&p.Notes, datapath.PortXDPRx, use.takes)
		if !use.sends {
			continue
		}
		if family == nil {
			if family, err = netlink.GenlFamilyGet("netdev"); err != nil {
				return fmt.Errorf("XDP features: %w", err)
			}
		}
		sends, err := xdpTarget(family, p.Ifindex)
		if err != nil {
			return err
		}
		// A veth whose other end has GRO off gets it from makeReady.
		setBits(&p.Facts, datapath.PortXDPTx, sends || p.Taken&datapath.PortEndNoGRO != 0)
	}
	return nil
}
