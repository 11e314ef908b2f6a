// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
)

// Drops returns the number of lost frames since the fabric was built, by place: a device and its
// direction ("p1 rx"), "ends rx" for all devices of a namespace that several ends share, and the
// switch's own counters ("bascule mtu"). "softnet" counts losses in the backlogs of the machine's
// CPUs since boot; such frames may also count at a device. Zero counts are omitted.
func (n *Net) Drops() (map[string]uint64, error) {
	out := map[string]uint64{}
	for ns, shared := range n.places() {
		links, err := ns.Netlink().LinkList()
		if err != nil {
			return nil, fmt.Errorf("counters of %s: %w", ns.Name, err)
		}
		addDrops(out, links, shared)
	}
	text, err := os.ReadFile("/proc/net/softnet_stat")
	if err != nil {
		return nil, err
	}
	if out["softnet"], err = softnetDrops(string(text)); err != nil {
		return nil, err
	}
	for _, host := range []*Net{n, n.second} {
		if host == nil || host.drops == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		own, err := host.drops(ctx)
		if err != nil {
			return nil, fmt.Errorf("drops of fabric %s: %w", n.Fabric.Name, err)
		}
		for where, count := range own {
			out[where] += count
		}
	}
	for where, count := range out {
		if count == 0 {
			delete(out, where)
		}
	}
	return out, nil
}

// places returns the namespaces of a net, and whether several ends share them.
func (n *Net) places() map[*ends.Namespace]bool {
	places := map[*ends.Namespace]bool{}
	if n.Switch != nil {
		places[n.Switch] = false
	}
	if n.second != nil {
		places[n.second.Switch] = false
	}
	for _, e := range n.Ends {
		// A guest has counters in its own kernel.
		if e.Namespace != nil {
			_, again := places[e.Namespace]
			places[e.Namespace] = again && e.Namespace != n.Switch
		}
	}
	return places
}

// addDrops adds the losses of some devices of a namespace.
func addDrops(to map[string]uint64, links []netlink.Link, shared bool) {
	for _, l := range links {
		a := l.Attrs()
		s := a.Statistics
		if s == nil {
			continue
		}
		name := a.Name
		if shared {
			name = "ends"
		}
		to[name+" rx"] += s.RxDropped + s.RxErrors + s.RxMissedErrors
		to[name+" tx"] += s.TxDropped + s.TxErrors
	}
}

// softnetDrops adds up the second column of /proc/net/softnet_stat, which has a line for each CPU,
// in hexadecimal (softnet_seq_show of net/core/net-procfs.c).
func softnetDrops(text string) (uint64, error) {
	var sum uint64
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		if len(f) < 2 {
			return 0, fmt.Errorf("/proc/net/softnet_stat: %q has no drops in it", strings.TrimSpace(line))
		}
		n, err := strconv.ParseUint(f[1], 16, 32)
		if err != nil {
			return 0, fmt.Errorf("/proc/net/softnet_stat: %w", err)
		}
		sum += n
	}
	return sum, nil
}
