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

// LinuxBridge is the kernel's bridge with all costly features off: no spanning tree, no multicast
// snooping, no netfilter for bridged frames.
var LinuxBridge = &Fabric{
	Name:     "linux-bridge",
	About:    "the kernel's bridge, without netfilter, snooping and spanning tree",
	Path:     path("end", "device veth", "device Linux bridge", "device veth", "end"),
	HostPath: path("host", "device Linux bridge", "device veth", "end"),
	Arrival:  AsBuffers,
	Modules:  []string{"bridge"},
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &linuxKit{net: n})
	},
}

// linuxKit makes Linux bridges: all bridges of a net have a packet filter, or none has one.
type linuxKit struct {
	net      *Net
	filtered bool
	snooping bool
	ready    bool
}

func (k *linuxKit) add(ctx context.Context, name string) error {
	n := k.net
	if !k.ready {
		if err := k.netfilter(ctx); err != nil {
			return err
		}
		k.ready = true
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	bridge := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &k.snooping}
	if n.Spec.Ageing != 0 {
		ticks := uint32(n.Spec.Ageing / (10 * time.Millisecond))
		bridge.AgeingTime = &ticks
	}
	if err := n.Switch.Netlink().LinkAdd(bridge); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if err := n.Switch.Netlink().LinkSetUp(bridge); err != nil {
		return fmt.Errorf("%s up: %w", name, err)
	}
	return nil
}

// netfilter makes the bridges of the namespace pass IP packets to the packet filter, or makes them
// bypass it.
func (k *linuxKit) netfilter(ctx context.Context) error {
	n := k.net
	values := map[string]string{"arptables": "0", "iptables": "0", "ip6tables": "0"}
	if k.filtered {
		values["iptables"], values["ip6tables"] = "1", "1"
	}
	err := n.Switch.Do(func() error {
		for what, value := range values {
			err := ends.Sysctl("net.bridge.bridge-nf-call-"+what, value)
			// Without br_netfilter there is nothing to disable.
			if errors.Is(err, fs.ErrNotExist) && !k.filtered {
				return nil
			}
			if errors.Is(err, fs.ErrNotExist) {
				return &ends.Unavailable{Reason: "the kernel has no br_netfilter (modprobe br_netfilter)"}
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil || !k.filtered {
		return err
	}
	return k.net.filter(ctx, "forward")
}

// Uses the command that users run, so that its time can be compared.
func (k *linuxKit) plug(ctx context.Context, bridge, device string) error {
	_, err := k.net.Switch.Output(ctx, ends.AnyCPU, "ip", "link", "set", device, "master", bridge)
	return err
}

func (k *linuxKit) unplug(ctx context.Context, _, device string) error {
	_, err := k.net.Switch.Output(ctx, ends.AnyCPU, "ip", "link", "set", device, "nomaster")
	return err
}

// The bridge itself is the host's interface on it.
func (k *linuxKit) host(_ context.Context, bridge, _ string) (string, error) { return bridge, nil }

func (k *linuxKit) flush(ctx context.Context, bridge string) error {
	_, err := k.net.Switch.Output(ctx, ends.AnyCPU, "ip", "link", "set", bridge, "type", "bridge", "fdb_flush")
	return err
}

func (k *linuxKit) known(_ context.Context, bridge string) (int, error) {
	l, err := k.net.Switch.Netlink().LinkByName(bridge)
	if err != nil {
		return 0, fmt.Errorf("%s in %s: %w", bridge, k.net.Switch.Name, err)
	}
	return learnedByLinux(k.net.Switch, l.Attrs().Index)
}

// learnedByLinux returns a bridge's number of learned addresses, which Linux reports since 6.8
// (IFLA_BR_FDB_N_LEARNED of linux/if_link.h).
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
		return errors.New("this kernel does not report how many addresses a bridge has learned")
	})
	return count, err
}
