// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/guests"
	"bascule/lab/report"
	"bascule/lab/workloads"
	"bascule/test/program"
)

// machines returns the virtual machines' processes that this process started, by name.
func machines(t *testing.T) map[string]int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Error(err)
	}
	out := map[string]int{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		args := strings.Split(string(text), "\x00")
		i := slices.Index(args, "-name")
		if err != nil || !strings.HasPrefix(filepath.Base(args[0]), "qemu-system") || i < 0 {
			continue
		}
		status, err := os.ReadFile(filepath.Join(filepath.Dir(f), "status"))
		if err != nil || field(string(status), "PPid") != fmt.Sprint(os.Getpid()) {
			continue
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Error(err)
			continue
		}
		out[args[i+1]] = pid
	}
	return out
}

// TestRunGuests sends between virtual machines and between one and the host.
// In the third group, one of them is killed during a transfer; the last group uses it again.
func TestRunGuests(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	needs := []ends.Program{{Command: "qemu-system-x86_64", Package: "qemu-system-x86"}, {Command: "iperf3", Package: "iperf3"}}
	if err := ends.Installed(needs...); err != nil {
		t.Skip(err)
	}
	stream := func() *workloads.Workload { return workloads.Must("tcp-stream:mebibytes=4") }
	deadly := stream()
	start := deadly.Start
	deadly.Start = func(ctx context.Context, n *fabrics.Net) (workloads.Session, error) {
		s, err := start(ctx, n)
		return &killingSession{s, n, t, 0, func() int { return machines(t)["bascule-lab-2"] }}, err
	}
	vm := Setup{Guests: true}
	p := Profile{Groups: []Group{
		group(1, []Case{
			{Fabric: fabrics.LinuxBridge, Workload: stream(), Setup: vm},
			{Fabric: fabrics.Bascule, Workload: stream(), Setup: vm},
			{Fabric: fabrics.Bascule, Workload: workloads.Must(brief), Setup: vm},
			{Fabric: fabrics.LinuxBridge, Workload: workloads.Must("uperf:duration=3s"), Setup: vm},
			{Fabric: fabrics.Macvtap, Workload: stream(), Setup: vm},
			{Fabric: fabrics.Macvtap, Workload: workloads.Must("tcp-stream:offloads:mebibytes=4"), Setup: Setup{Guests: true, Host: true, MTU: 9000}},
		}),
		group(1, []Case{{Fabric: fabrics.LinuxBridge, Workload: stream(), Setup: Setup{Guests: true, Host: true, MTU: 9000}}}),
		group(3, []Case{
			{Fabric: fabrics.LinuxBridge, Workload: deadly, Setup: vm},
			{Fabric: fabrics.LinuxBridge, Workload: workloads.Must(brief)},
		}),
		group(1, []Case{{Fabric: fabrics.LinuxBridge, Workload: stream(), Setup: vm}}),
	}}
	var told bytes.Buffer
	r, err := Run(t.Context(), fabrics.Site{Bascule: program.Path(t)}, p, NewProgress(&told))
	if err != nil {
		t.Fatal(err)
	}
	if why := r.Groups[0].Cases[0].Skipped; strings.HasPrefix(why, "no guest kernel") {
		t.Skip(why)
	}
	if left := machines(t); len(left) > 0 {
		t.Errorf("virtual machines are left: %v", left)
	}
	if how := r.Machine.Guests; how != guests.KVM && how != guests.TCG {
		t.Errorf("the report says that %q ran the virtual machines", how)
	}
	// linux-bridge has ends of both kinds.
	var drawn []string
	for _, f := range r.Fabrics {
		if f.Name == fabrics.LinuxBridge.Name {
			drawn = append(drawn, report.Drawing(f.Path))
		}
	}
	if want := []string{"end - tap - Linux bridge - tap - end", "end - veth - Linux bridge - veth - end"}; !slices.Equal(drawn, want) {
		t.Errorf("the paths of %s are %q, want %q", fabrics.LinuxBridge.Name, drawn, want)
	}
	for g, samples := range [][]int{{1, 1, 0, 1, 1, 1}, {1}, {1, 3}, {1}} {
		for i, want := range samples {
			c := r.Groups[g].Cases[i]
			if c.Fabric+c.Workload == "basculepps" {
				if c.Skipped == "" {
					t.Errorf("%s is not left out", c.Label)
				}
			} else if killed := g == 2 && i == 0; (c.Error != "") != killed || c.Skipped != "" {
				t.Errorf("%s: error %q, left out %q", c.Label, c.Error, c.Skipped)
			}
			if len(c.Samples) != want {
				t.Errorf("%s: %d samples, want %d", c.Label, len(c.Samples), want)
			}
		}
	}
	if c := r.Groups[2].Cases[0]; !strings.HasPrefix(c.Error, "virtual machine 2 has ended: signal: killed") {
		t.Errorf("of the machine that was killed the report says %q", c.Error)
	}
	if n := strings.Count(told.String(), "has ended"); n != 1 {
		t.Errorf("the end of a machine was told %d times:\n%s", n, &told)
	}
}

// killingSession kills a process in its third round, the second one that counts, after traffic has
// begun to flow. A round that ends earlier is repeated.
type killingSession struct {
	workloads.Session
	net    *fabrics.Net
	t      *testing.T
	rounds int
	victim func() int // 0 if there is none
}

func (k *killingSession) Run(ctx context.Context, m workloads.Meter) (report.Sample, error) {
	if k.rounds++; k.rounds != 3 {
		return k.Session.Run(ctx, m)
	}
	before, err := k.net.Crossed(0)
	if err != nil {
		return report.Sample{}, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if now, err := k.net.Crossed(0); err != nil || now > before+100_000 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		pid := k.victim()
		if pid == 0 {
			k.t.Error("there is nothing to kill")
			return
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			k.t.Errorf("kill: %v", err)
		}
	}()
	for {
		s, err := k.Session.Run(ctx, m)
		if err != nil {
			<-done
			return s, err
		}
		select {
		case <-done:
			return s, err
		default:
		}
	}
}
