// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// filtered runs one round of a workload on a Linux bridge with a filter.
func filtered(t *testing.T, workload string) (*fabrics.Net, Session, report.Sample) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to make network namespaces")
	}
	if err := ends.Installed(fabrics.LinuxBridgeFiltered.Needs...); err != nil {
		t.Skip(err)
	}
	w := Must(workload)
	n, err := fabrics.LinuxBridgeFiltered.Build(t.Context(), fabrics.Site{}, w.Spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	})
	s, err := w.Start(t.Context(), n)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	sample, err := s.Run(t.Context(), unmetered{})
	if err != nil {
		t.Fatal(err)
	}
	return n, s, sample
}

// TestFirstPackets checks that every frame creates a state, and that states can be flushed.
func TestFirstPackets(t *testing.T) {
	for _, generator := range []string{"bpf", "ring"} {
		t.Run(generator, func(t *testing.T) {
			n, _, sample := filtered(t, "first-packets:duration=50ms:generator="+generator)
			states := func() float64 {
				t.Helper()
				out, err := n.Switch.Output(t.Context(), ends.AnyCPU, "cat", "/proc/sys/net/netfilter/nf_conntrack_count")
				if err != nil {
					t.Fatal(err)
				}
				count, err := strconv.ParseFloat(strings.TrimSpace(string(out)), 64)
				if err != nil {
					t.Fatal(err)
				}
				return count
			}
			if count := states(); count < sample.Frames {
				t.Errorf("%.0f frames arrived and there are %v states", sample.Frames, count)
			}
			if err := n.FlushStates(t.Context()); err != nil {
				t.Fatal(err)
			}
			if count := states(); count > 100 {
				t.Errorf("%v states are left", count)
			}
		})
	}
}

var packets = regexp.MustCompile(`counter packets ([0-9]+) `)

// TestEstablishedFrames checks that in a single flow, all frames except the first belong to an
// existing connection.
func TestEstablishedFrames(t *testing.T) {
	n, _, sample := filtered(t, "pps:duration=50ms")
	out, err := n.Switch.Output(t.Context(), ends.AnyCPU, "nft", "list", "chain", "inet", "lab", "forward")
	if err != nil {
		t.Fatal(err)
	}
	var counts []float64
	for _, m := range packets.FindAllSubmatch(out, -1) {
		count, err := strconv.ParseFloat(string(m[1]), 64)
		if err != nil {
			t.Fatal(err)
		}
		counts = append(counts, count)
	}
	// Broadcasts, from which the bridge learns addresses, begin flows.
	if len(counts) != 2 || counts[0] < sample.Frames || counts[1] > 100 {
		t.Errorf("%.0f frames arrived, and the rules for connections that are there and for new ones counted %v", sample.Frames, counts)
	}
}
