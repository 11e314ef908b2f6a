// SPDX-License-Identifier: BSD-2-Clause

package containers

import (
	"fmt"
	"os/exec"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// BenchmarkAdd measures ADD without ipam, from the start of the process to its end, on a bridge
// of 200 ports, which lead to another namespace like ports of containers. The reference bridge
// plugin and ours take turns in one run. It reports the medians, and the median of the
// differences between neighbouring runs, in milliseconds.
//
//	go test ./test/containers -run '^$' -bench Add -benchtime 50x
func BenchmarkAdd(b *testing.B) {
	needs(b, reference+"/bridge")
	const ports = 200
	h := newHost(b)
	space, others := h.NewNamespace(), h.NewNamespace()
	nl := h.Switch.Netlink()
	h.must(nl.LinkAdd(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "lxbr0"}}))
	bridge, err := nl.LinkByName("lxbr0")
	h.must(err)
	h.must(nl.LinkSetUp(bridge))
	h.Bascule("bridge", "add", "br0")
	add := []string{"port", "add", "br0"}
	for i := range ports {
		for _, kind := range "lb" {
			name := fmt.Sprintf("%c%d", kind, i)
			h.must(h.Switch.Do(func() error {
				there, err := netns.GetFromPath(path(others))
				if err != nil {
					return err
				}
				defer there.Close()
				return netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name, PeerNamespace: netlink.NsFd(int(there))})
			}))
			far, err := others.Netlink().LinkByName(name)
			h.must(err)
			h.must(others.Netlink().LinkSetUp(far))
			l, err := nl.LinkByName(name)
			h.must(err)
			h.must(nl.LinkSetUp(l))
			if kind == 'l' {
				h.must(nl.LinkSetMaster(l, bridge))
			}
			if kind == 'b' {
				add = append(add, name)
			}
			b.Cleanup(func() {
				if l, err := nl.LinkByName(name); err == nil {
					_ = nl.LinkDel(l)
				}
			})
		}
	}
	h.Bascule(add...)
	b.Cleanup(func() { _ = nl.LinkDel(bridge) })
	var took [2][]float64
	var apart []float64
	once := func(count bool) {
		for i, c := range []call{
			{plugin: "bridge", conf: conf{"cniVersion": "1.0.0", "name": "net", "type": "bridge", "bridge": "lxbr0"}},
			{conf: conf{"cniVersion": "1.0.0", "name": "net", "type": "bascule-cni", "bridge": "br0"}},
		} {
			c.command, c.container, c.ifname, c.space = "ADD", "bench", "eth0", space
			cmd := h.process(c)
			begun := time.Now()
			out, err := cmd.Output()
			ms := float64(time.Since(begun).Microseconds()) / 1000
			if err != nil {
				b.Fatalf("%s: %v: %s", c.plugin, err, out)
			}
			if count {
				took[i] = append(took[i], ms)
			}
			c.command = "DEL"
			h.do(c)
		}
		if count {
			n := len(took[0]) - 1
			apart = append(apart, took[1][n]-took[0][n])
		}
	}
	for range 3 {
		once(false)
	}
	b.ResetTimer()
	for range b.N {
		once(true)
	}
	b.ReportMetric(median(took[0]), "reference-ms")
	b.ReportMetric(median(took[1]), "bascule-ms")
	b.ReportMetric(median(apart), "more-ms")
	b.ReportMetric(0, "ns/op")
}

func median(list []float64) float64 {
	list = slices.Sorted(slices.Values(list))
	return list[len(list)/2]
}

// BenchmarkStatus measures STATUS, which kubelet asks every few seconds.
func BenchmarkStatus(b *testing.B) {
	h := newHost(b)
	h.Bascule("bridge", "add", "cni0")
	c := call{command: "STATUS", conf: h.bare(nil)}
	var took []float64
	for range b.N {
		cmd := h.process(c)
		begun := time.Now()
		if out, err := cmd.Output(); err != nil {
			b.Fatalf("%v: %s", err, out)
		}
		took = append(took, float64(time.Since(begun).Microseconds())/1000)
	}
	b.ReportMetric(median(took), "status-ms")
	cmd := exec.Command("nsenter", "--net="+path(h.Switch), "true") // the cost of the test itself
	begun := time.Now()
	h.must(cmd.Run())
	b.ReportMetric(float64(time.Since(begun).Microseconds())/1000, "empty-ms")
	b.ReportMetric(0, "ns/op")
}
