// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
	"bascule/lab/workloads"
	"bascule/test/program"
)

// mayLack has the reasons for which TestEveryFabric may leave out a fabric.
var mayLack = []string{"not built yet", "not installed", "virtual machines only", "only a virtual machine of the lab has", "in one buffer takes no MTU", "take no frame of more than a page", "the kernel has no VLAN filtering", "the kernel has no connection tracking in its bridge", "the kernel has no flowtables", "the kernel has no clsact, matchall or mirred", "the kernel has no tbf, police or matchall"}

// TestEveryFabric sends over every fabric, from end to end and from the host,
// also in large frames, and looks for leftovers. The workloads check that the traffic crosses the
// fabric. Nothing is measured: all fabrics run in parallel. With -short it sends over each fabric
// once, from end to end: TestFabricsCarry has the host and large frames.
func TestEveryFabric(t *testing.T) {
	needRoot(t)
	nothingLeft(t)
	// The programs of fabrics, including daemons, inherit the mark and put their temporary
	// files below home.
	home := t.TempDir()
	mark := "BASCULE_LAB_TEST=" + home
	name, value, _ := strings.Cut(mark, "=")
	t.Setenv(name, value)
	t.Setenv("TMPDIR", home)
	site := fabrics.Site{Bascule: program.Path(t)}
	const atOnce = 3 // building a fabric mostly means waiting for the kernel
	for batch := range slices.Chunk(fabrics.All, atOnce) {
		var all sync.WaitGroup
		var names []string
		for _, f := range batch {
			names = append(names, f.Name)
			all.Go(func() {
				t.Run(f.Name, func(t *testing.T) {
					setups := []Setup{{}, {MTU: 9000}}
					if len(f.HostPath) > 0 {
						setups = []Setup{{}, {Host: true}, {Host: true, MTU: 9000}}
					}
					if testing.Short() {
						setups = setups[:1] // once
					}
					var wg sync.WaitGroup
					for _, setup := range setups {
						wg.Go(func() { sendOver(t, site, f, setup) })
					}
					wg.Wait()
				})
			})
		}
		all.Wait()
		for _, pid := range marked(t, mark) {
			t.Errorf("one of %v left process %s", names, pid)
		}
		entries, err := os.ReadDir(home)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			t.Errorf("one of %v left temporary %s", names, e.Name())
		}
		for _, ns := range ownNamespaces(t) {
			t.Errorf("one of %v left network namespace %s", names, ns)
		}
	}
}

// sendOver runs one round of a workload on a fabric and removes both.
func sendOver(t *testing.T, site fabrics.Site, f *fabrics.Fabric, setup Setup) {
	workload := "tcp-stream:offloads:mebibytes=12" // checks delivery, not speed
	if f.FramesOnly {
		workload = "pps:duration=100ms"
	}
	c := &running{Case: Case{Fabric: f, Workload: workloads.Must(workload), Setup: setup}, result: &report.Case{}}
	err := c.start(t.Context(), site)
	var unavailable *ends.Unavailable
	if errors.As(err, &unavailable) {
		allowed := slices.ContainsFunc(mayLack, func(reason string) bool { return strings.Contains(err.Error(), reason) })
		if !allowed {
			t.Errorf("%s cannot be made: %v", c.Label(), err)
		}
		t.Logf("%s is left out: %v", c.Label(), err)
	} else if err != nil {
		t.Errorf("%s: %v", c.Label(), err)
	}
	var state string
	if err == nil {
		c.round(t.Context(), 1, Group{Rounds: 1}, nil, NewProgress(nil))
		if r := c.result; r.Error != "" || len(r.Samples) != 1 || r.Samples[0].Value <= 0 {
			t.Errorf("%s: error %q, samples %+v", c.Label(), r.Error, r.Samples)
		}
		if setup.MTU != 0 {
			hasMTU(t, c, setup.MTU)
		}
		if sw := c.net.Switch; sw != nil {
			cookie, err := sw.Cookie()
			if err != nil {
				t.Error(err)
			}
			state = fmt.Sprintf("/run/bascule/%d", cookie)
		}
	}
	if err := c.close(); err != nil {
		t.Errorf("%s: %v", c.Label(), err)
	}
	if state == "" {
		return
	}
	if left, err := filepath.Glob(state + "/*"); err != nil || len(left) > 0 {
		t.Errorf("%s: bascule's %v was left, error %v", c.Label(), left, err)
	}
}

// hasMTU checks the MTU of the ends and of the devices that they are connected to. The switch's end
// of a host port has no MTU of its own: the MTU of a host port is the MTU of its interface, which
// is an end.
func hasMTU(t *testing.T, c *running, mtu int) {
	devices := slices.Clone(c.net.Ports)
	for _, e := range c.net.Ends {
		devices = append(devices, fabrics.Port{Namespace: e.Namespace, Ifname: e.Ifname, Ifindex: e.Ifindex})
	}
	for _, d := range devices {
		l, err := d.Namespace.Netlink().LinkByIndex(d.Ifindex)
		if err != nil {
			t.Errorf("%s: %s: %v", c.Label(), d.Ifname, err)
		} else if got := l.Attrs().MTU; got != mtu && !(strings.HasPrefix(d.Ifname, "bsc") && got == math.MaxUint16) {
			t.Errorf("%s: %s has an MTU of %d, want %d", c.Label(), d.Ifname, got, mtu)
		}
	}
}

// marked returns the processes that have a variable in their environment, except this one.
func marked(t *testing.T, variable string) []string {
	t.Helper()
	processes, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	var pids []string
	for _, dir := range processes {
		pid := filepath.Base(dir)
		// A process that ends meanwhile is not a leftover.
		text, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err != nil || pid == fmt.Sprint(os.Getpid()) {
			continue
		}
		if slices.ContainsFunc(bytes.Split(text, []byte{0}), func(v []byte) bool { return string(v) == variable }) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// TestFramesOfLargeMTU counts frames on devices whose MTU exceeds one buffer. Only XDP programs
// with support for several buffers can attach to them.
func TestFramesOfLargeMTU(t *testing.T) {
	needRoot(t)
	site := fabrics.Site{Bascule: program.Path(t)}
	for _, f := range []*fabrics.Fabric{fabrics.Direct, fabrics.Bascule, fabrics.BasculeXDP} {
		c := &running{Case: Case{Fabric: f, Workload: workloads.Must("pps:duration=100ms"), Setup: Setup{MTU: 9000}}, result: &report.Case{}}
		if err := c.start(t.Context(), site); err != nil {
			t.Errorf("%s: %v", c.Label(), err)
		} else {
			c.round(t.Context(), 1, Group{Rounds: 1}, nil, NewProgress(nil))
			if r := c.result; r.Error != "" || len(r.Samples) != 1 || r.Samples[0].Value <= 0 {
				t.Errorf("%s: error %q, samples %+v", c.Label(), r.Error, r.Samples)
			}
		}
		if err := c.close(); err != nil {
			t.Errorf("%s: %v", c.Label(), err)
		}
	}
}
