// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"fmt"
	"net"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// Device is the device that a guest's network card is connected to.
type Device struct {
	Name string
	// Parent is the device below a macvtap in bridge mode; empty for a tap.
	Parent string
	// ByQEMU makes QEMU create the tap without a script, so that it stays down.
	ByQEMU bool
}

func (d Device) String() string {
	if d.Parent == "" {
		return "tap " + d.Name
	}
	return "macvtap " + d.Name + " on " + d.Parent
}

// open makes the device, and opens QEMU's side of it. A macvtap needs the card's hardware address:
// it receives no frames for others.
func (c *plugged) open(at *ends.Namespace, d Device, mac net.HardwareAddr) (fd int, err error) {
	if d.Parent == "" {
		err = at.Do(func() error {
			fd, err = openTap(d.Name)
			return err
		})
		return fd, err
	}
	parent, err := at.Netlink().LinkByName(d.Parent)
	if err != nil {
		return -1, err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr, attrs.ParentIndex = d.Name, mac, parent.Attrs().Index
	tap := &netlink.Macvtap{Macvlan: netlink.Macvlan{LinkAttrs: attrs, Mode: netlink.MACVLAN_MODE_BRIDGE}}
	if err := at.Netlink().LinkAdd(tap); err != nil {
		return -1, err
	}
	c.remove = func() error {
		if err := at.Netlink().LinkDel(tap); err != nil {
			return fmt.Errorf("remove %s in %s: %w", d, at.Name, err)
		}
		return nil
	}
	err = at.Do(func() error {
		fd, err = openMacvtap(d.Name, tap.Index)
		return err
	})
	return fd, err
}

// openTap makes a tap in the calling thread's network namespace. It exists as long as it is open.
func openTap(name string) (int, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	req, err := unix.NewIfreq(name)
	if err == nil {
		req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, req)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// openMacvtap opens a macvtap of the calling thread's network namespace through its own character
// device. Its flags are initially the flags of openTap (tap_open of drivers/net/tap.c).
//
// The device's number is in the sysfs of the namespace. /dev may have another namespace's device
// with that name, or none. Both file systems are used without mount points.
func openMacvtap(name string, index int) (int, error) {
	sysfs, err := ends.FileSystem("sysfs")
	if err != nil {
		return -1, err
	}
	defer sysfs.Close()
	number, err := ends.ReadAt(sysfs, fmt.Sprintf("class/net/%s/tap%d/dev", name, index))
	if err != nil {
		return -1, err
	}
	var major, minor uint32
	if _, err := fmt.Sscanf(number, "%d:%d", &major, &minor); err != nil {
		return -1, fmt.Errorf("number %q of its character device: %w", strings.TrimSpace(number), err)
	}
	dev, err := ends.FileSystem("tmpfs")
	if err != nil {
		return -1, err
	}
	defer dev.Close()
	if err := unix.Mknodat(int(dev.Fd()), "tap", unix.S_IFCHR|0o600, int(unix.Mkdev(major, minor))); err != nil {
		return -1, fmt.Errorf("character device: %w", err)
	}
	fd, err := unix.Openat(int(dev.Fd()), "tap", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("character device: %w", err)
	}
	return fd, nil
}
