// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// LinuxBridge is the kernel's bridge with everything off that costs: no
// spanning tree, no multicast snooping, no netfilter for bridged frames.
var LinuxBridge = &Fabric{
	Name:    "linux-bridge",
	About:   "the kernel's bridge, without netfilter, snooping and spanning tree",
	Path:    []string{"end", "veth", "linux bridge", "veth", "end"},
	Arrival: AsBuffers,
	build:   buildLinuxBridge,
}

func buildLinuxBridge(ctx context.Context, _ Site, n *Net) error {
	if err := n.cables(); err != nil {
		return err
	}
	err := n.Switch.Do(func() error {
		for _, what := range []string{"arptables", "iptables", "ip6tables"} {
			err := ends.Sysctl("net.bridge.bridge-nf-call-"+what, "0")
			// Without br_netfilter there is nothing to switch off.
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	off := false
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off}
	if n.Spec.Ageing != 0 {
		ticks := uint32(n.Spec.Ageing / (10 * time.Millisecond))
		bridge.AgeingTime = &ticks
	}
	if err := n.Switch.Netlink().LinkAdd(bridge); err != nil {
		return fmt.Errorf("br0: %w", err)
	}
	// By the command that people use, so that its time can be compared.
	n.extend = func(ctx context.Context, device string) error {
		_, err := n.Switch.Output(ctx, ends.AnyCPU, "ip", "link", "set", device, "master", "br0")
		return err
	}
	n.shrink = func(ctx context.Context, device string) error {
		_, err := n.Switch.Output(ctx, ends.AnyCPU, "ip", "link", "set", device, "nomaster")
		return err
	}
	for _, p := range n.Ports {
		if err := n.extend(ctx, p.Ifname); err != nil {
			return err
		}
	}
	if err := n.Switch.Netlink().LinkSetUp(bridge); err != nil {
		return fmt.Errorf("br0 up: %w", err)
	}
	n.flush = func(ctx context.Context) error {
		_, err := n.Switch.Output(ctx, ends.AnyCPU, "ip", "link", "set", "br0", "type", "bridge", "fdb_flush")
		return err
	}
	n.known = func(context.Context) (int, error) {
		return learnedByLinux(n.Switch, bridge.Index)
	}
	return nil
}

// learnedByLinux asks a bridge for its number of learned addresses. Linux tells
// it since 6.8, as IFLA_BR_FDB_N_LEARNED of linux/if_link.h.
func learnedByLinux(ns *ends.Namespace, index int) (count int, err error) {
	const nLearned = 48
	err = ns.Do(func() error {
		req := nl.NewNetlinkRequest(unix.RTM_GETLINK, 0)
		req.AddData(&nl.IfInfomsg{IfInfomsg: unix.IfInfomsg{Index: int32(index)}})
		answers, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
		if err != nil {
			return err
		}
		for _, a := range answers {
			data := a[unix.SizeofIfInfomsg:]
			for _, kind := range []uint16{unix.IFLA_LINKINFO, nl.IFLA_INFO_DATA, nLearned} {
				attrs, err := nl.ParseRouteAttr(data)
				if err != nil {
					return err
				}
				data = nil
				for _, attr := range attrs {
					if attr.Attr.Type&nl.NLA_TYPE_MASK == kind {
						data = attr.Value
					}
				}
			}
			if len(data) == 4 {
				count = int(nl.NativeEndian().Uint32(data))
				return nil
			}
		}
		return errors.New("this kernel does not tell how many addresses a bridge has learned")
	})
	return count, err
}
