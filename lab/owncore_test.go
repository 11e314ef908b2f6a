// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/workloads"
	"bascule/test/program"
)

// TestOwnCore checks that a router with a separate core processes every frame there, and that the
// ends send and receive on the other one, with a count of frames by CPU at each device.
func TestOwnCore(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	site := fabrics.Site{Bascule: program.Path(t)}
	for _, test := range []struct {
		fabric   *fabrics.Fabric
		workload string
	}{
		{fabrics.Direct, "tcp-stream:own-core"},
		{fabrics.Router, "tcp-stream:own-core"},
		{fabrics.Router, "tcp-stream:own-core:streams=3:reverse:offloads"},
		{fabrics.RouterFlowtable, "tcp-stream:own-core"},
		{fabrics.BasculeRouter, "tcp-stream:own-core:streams=3"},
		{fabrics.BasculeRouter, "tcp-stream:own-core:offloads"},
		{fabrics.BasculeRouterNAT, "tcp-stream:own-core"},
		{fabrics.BasculeRouterXDP, "tcp-stream:own-core"},
		{fabrics.BasculeRouterXDP, "tcp-stream:own-core:reverse:offloads"},
	} {
		c := &running{Case: Case{Fabric: test.fabric, Workload: workloads.Must(test.workload + ":mebibytes=16")}, result: &report.Case{}}
		t.Run(c.Label(), func(t *testing.T) {
			t.Parallel()
			err := c.start(t.Context(), site)
			t.Cleanup(func() {
				if err := c.close(); err != nil {
					t.Error(err)
				}
			})
			var unavailable *ends.Unavailable
			switch {
			case runtime.NumCPU() == 1 && errors.As(err, &unavailable) && strings.Contains(err.Error(), "one core"):
				return // nothing else to check here
			case errors.As(err, &unavailable) && strings.Contains(err.Error(), "the kernel has no flowtables"):
				t.Log(err)
				return
			case err != nil:
				t.Fatal(err)
			}
			router, others := runtime.NumCPU()-1, runtime.NumCPU()-2
			var watched []watch
			for i, e := range c.net.Ends {
				in := count(t, e.Namespace, e.Ifname, ebpf.AttachTCXIngress, others)
				// Frames that an XDP router leaves to the stack are not polled.
				in.most = test.fabric.Arrival == fabrics.AsXDP
				// TCP may continue to send on the core that frees sent packets.
				out := count(t, e.Namespace, e.Ifname, ebpf.AttachTCXEgress, others)
				out.most = true
				watched = append(watched, in, out)
				if p := c.net.Ports[i]; test.fabric.Routed && test.fabric.Arrival == fabrics.AsBuffers {
					watched = append(watched, count(t, p.Namespace, p.Ifname, ebpf.AttachTCXIngress, router))
				}
			}
			if strings.HasPrefix(test.fabric.Name, "bascule") {
				watched = append(watched, judged(t, c.net.Switch, router))
			}
			if got := allowedOf(t, programOf("iperf3")); got != fmt.Sprint(others) {
				t.Errorf("the server may run on CPU %s, want %d", got, others)
			}
			before := make([][]uint64, len(watched))
			for i, w := range watched {
				before[i] = w.read()
			}
			c.round(t.Context(), 1, Group{Rounds: 1}, nil, NewProgress(nil))
			r := c.result
			if r.Error != "" || len(r.Samples) != 1 || r.Samples[0].Value <= 0 {
				t.Fatalf("error %q, samples %+v", r.Error, r.Samples)
			}
			if _, ok := r.Samples[0].More[report.RouterCore]; ok != test.fabric.Routed {
				t.Errorf("how busy the router's core was is told: %v", ok)
			}
			for i, w := range watched {
				there, elsewhere := uint64(0), uint64(0)
				for cpu, n := range w.read() {
					if n -= before[i][cpu]; cpu == w.cpu {
						there = n
					} else {
						elsewhere += n
					}
				}
				// TCP may send only few acknowledgements.
				if there < 5 || elsewhere > 0 && !w.most || elsewhere > there/2 {
					t.Errorf("%s: CPU %d has processed %d frames, others %d", w.what, w.cpu, there, elsewhere)
				}
			}
		})
	}
}

// watch counts frames by the CPU that processed them.
type watch struct {
	what string
	cpu  int             // the expected one
	most bool            // most frames, not all
	read func() []uint64 // counts by CPU
}

// count counts the frames at a hook of a device.
func count(t *testing.T, at *ends.Namespace, ifname string, hook ebpf.AttachType, cpu int) watch {
	t.Helper()
	m, err := ebpf.NewMap(&ebpf.MapSpec{Name: "by_cpu", Type: ebpf.PerCPUArray, KeySize: 4, ValueSize: 8, MaxEntries: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	const next = -1 // TCX_NEXT of linux/bpf.h
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: "by_cpu", Type: ebpf.SchedCLS,
		Instructions: asm.Instructions{
			asm.StoreImm(asm.R10, -4, 0, asm.Word),
			asm.LoadMapPtr(asm.R1, m.FD()),
			asm.Mov.Reg(asm.R2, asm.R10),
			asm.Add.Imm(asm.R2, -4),
			asm.FnMapLookupElem.Call(),
			asm.JEq.Imm(asm.R0, 0, "out"),
			asm.Mov.Imm(asm.R1, 1),
			asm.StoreXAdd(asm.R0, asm.R1, asm.DWord),
			asm.Mov.Imm(asm.R0, next).WithSymbol("out"),
			asm.Return(),
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	err = at.Do(func() error {
		l, err := at.Netlink().LinkByName(ifname)
		if err != nil {
			return err
		}
		// before the program of a switch, which ends the chain
		k, err := link.AttachTCX(link.TCXOptions{Program: p, Interface: l.Attrs().Index, Attach: hook, Anchor: link.Head()})
		if err == nil {
			t.Cleanup(func() { k.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return watch{what: fmt.Sprintf("%s in %s, %v", ifname, at.Name, hook), cpu: cpu, read: func() []uint64 {
		var out []uint64
		if err := m.Lookup(uint32(0), &out); err != nil {
			t.Error(err)
		}
		return out
	}}
}

// judged returns the frames that bascule's programs have received, from their own counters.
func judged(t *testing.T, at *ends.Namespace, cpu int) watch {
	t.Helper()
	cookie, err := at.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	var stats *ebpf.Map
	err = filepath.WalkDir(fmt.Sprintf("/run/bascule/%d", cookie), func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != "stats" {
			return err
		}
		stats, err = ebpf.LoadPinnedMap(path, nil)
		return err
	})
	if err != nil || stats == nil {
		t.Fatalf("the counters of %s: %v, error %v", at.Name, stats, err)
	}
	t.Cleanup(func() { stats.Close() })
	return watch{what: "bascule in " + at.Name, cpu: cpu, read: func() []uint64 {
		out := make([]uint64, runtime.NumCPU())
		for slot := range stats.MaxEntries() {
			var each [][]byte
			if err := stats.Lookup(slot, &each); err != nil {
				t.Error(err)
				break
			}
			for cpu := range out {
				out[cpu] += binary.NativeEndian.Uint64(each[cpu]) // rx_frames of struct port_stats
			}
		}
		return out
	}}
}

// allowedOf returns the CPUs that a process may use.
func allowedOf(t *testing.T, pid int) string {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return field(string(text), "Cpus_allowed_list")
}

// TestOwnCoreOfOne checks that on a single core, the router has none of its own, and that the
// report says so.
func TestOwnCoreOfOne(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	for _, fabric := range []string{"router", "linux-bridge"} {
		out, err := exec.CommandContext(t.Context(), "taskset", "-c", "0", program.Path(t),
			"lab", "run", "--fabric", fabric, "--workload", "tcp-stream:own-core", "--rounds", "1").CombinedOutput()
		want := map[string]string{"router": "one core: the router has none of its own", "linux-bridge": "it has no router to give a core"}[fabric]
		// A run without results is refused.
		refused := new(exec.ExitError)
		if !errors.As(err, &refused) || refused.ExitCode() != 1 || !strings.Contains(string(out), want) {
			t.Errorf("%s: error %v, printed\n%s\nwant %s", fabric, err, out, want)
		}
	}
}
