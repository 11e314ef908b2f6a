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

// xdpUse has the support of a device for the hook xdp.
type xdpUse struct {
	// takes: frames that enter by the device can go by XDP. This requires that all properties
	// of a frame are in the frame, because XDP loses the driver's notes beside it: that a
	// checksum is not filled in yet, that the frame has to be segmented, a VLAN tag. It depends
	// on the kind of the device, which does not change, and not on settings, which others can
	// change.
	takes bool
	// sends: frames that XDP redirects to the device leave by it, according to its driver.
	sends bool
	// why is the reason why the device does not take frames.
	why string
}

// xdpUseOf returns the support of a device for the hook xdp, or false if its kind does not have
// XDP.
func xdpUseOf(l netlink.Link) (xdpUse, bool) {
	switch l.Type() {
	case "veth": // prepareEnd prepares its other end
		return xdpUse{takes: true, sends: true}, true
	case "tuntap":
		// The process that has opened the tap decides for each frame what is unfinished
		// (VIRTIO_NET_HDR_F_NEEDS_CSUM), regardless of the negotiated features, and no
		// setting of the device prevents it. Whether there is such a header may change when
		// the file is opened again.
		return xdpUse{sends: true, why: "it may leave checksums to the switch, which XDP would not see"}, true
	case "bond":
		return xdpUse{why: "its devices keep data outside the frame, which XDP would not see"}, true
	case physical:
		if driverOf(l) == xenDriver {
			return xdpUse{why: "its driver marks an unfinished checksum outside the frame, which XDP would not see"}, true
		}
		// Another driver for virtual machines, virtio_net, has the host finish the frames
		// that it passes to XDP, and drops unfinished ones.
		return xdpUse{takes: true, sends: true}, true
	}
	return xdpUse{}, false
}

// xenDriver is Xen's network card. Its frames from the same machine have no checksums
// (XEN_NETRXF_csum_blank), even if its driver passes them to XDP.
const xenDriver = "vif"

// driverOf returns the name of a device's driver, or "" if the kernel does not report it.
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

// wantsXDP resolves the hook auto. XDP disables large packets of a veth's peer, and accepts none of
// a tap's frames, so auto means XDP for hardware only.
func wantsXDP(hook string, l netlink.Link) bool {
	if hook == HookAuto && l.Type() == physical {
		use, _ := xdpUseOf(l)
		return use.takes
	}
	return hook == HookXDP
}

// setXDPUse sets which ports have the XDP program, and which accept frames that XDP redirects. A
// veth accepts them while its other end has GRO on or its own XDP program.
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
		// If a veth's other end has GRO off, makeReady will switch it on.
		setBits(&p.Facts, datapath.PortXDPTx, sends || p.Taken&datapath.PortEndNoGRO != 0)
	}
	return nil
}
