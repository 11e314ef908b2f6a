// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"bascule/lab/spaces"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// prefix begins the names of the tests' network namespaces; the process's
// number and a dash follow.
const prefix = "bsc-dp"

// The main goroutine stays on the process's first thread: that thread never ends, and a
// namespace that it entered would not end either.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if os.Geteuid() == 0 {
		if _, err := spaces.RemoveLeftovers(prefix, nil); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}
	specOf = readOnce()
	code := m.Run()
	if shared.rack != nil {
		shared.rack.close()
	}
	os.Exit(code)
}

// readOnce returns a function that reads each object once, and returns a copy of it to
// each caller.
func readOnce() func([]byte) (*object, error) {
	var mutex sync.Mutex
	objects := map[*byte]*object{}
	return func(file []byte) (*object, error) {
		mutex.Lock()
		defer mutex.Unlock()
		if objects[&file[0]] == nil {
			o, err := readObject(file)
			if err != nil {
				return nil, err
			}
			objects[&file[0]] = o
		}
		o := *objects[&file[0]]
		o.spec = o.spec.Copy()
		return &o, nil
	}
}

// needRoot skips a test that loads programs or makes network namespaces, if the process
// may not.
func needRoot(t testing.TB) {
	t.Helper()
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		t.Fatal(err)
	}
	for c, name := range map[int]string{unix.CAP_BPF: "CAP_BPF", unix.CAP_NET_ADMIN: "CAP_NET_ADMIN", unix.CAP_SYS_ADMIN: "CAP_SYS_ADMIN"} {
		if data[c/32].Effective&(1<<(c%32)) == 0 {
			t.Skipf("loads BPF programs and makes network namespaces, which takes root: no %s", name)
		}
	}
}

// A rack is a network namespace with cables: their near ends can become ports, their
// far ends are stations.
type rack struct {
	name  string
	ns    netns.NsHandle
	jobs  chan func()
	near  []uint32 // ifindexes
	far   []uint32
	spare uint32 // a device that is not a port of any bridge
}

var racks atomic.Int64

// newRack makes a rack with the given number of cables.
func newRack(cables int) (*rack, error) {
	r := &rack{
		name: spaces.Name(prefix, fmt.Sprint(racks.Add(1))),
		ns:   -1,
	}
	made := make(chan error)
	go func() {
		// the thread stays in the namespace, and ends with the goroutine
		runtime.LockOSThread()
		var err error
		if r.ns, err = spaces.New(r.name); err == nil {
			err = quiet()
		}
		made <- err
	}()
	if err := <-made; err != nil {
		r.close()
		return nil, fmt.Errorf("network namespace %s: %w", r.name, err)
	}
	r.jobs = r.worker()
	// CPUs remember decisions by themselves, so all frames use the same CPU
	if err := r.do(stay); err != nil {
		r.close()
		return nil, err
	}
	for i := range cables + 1 {
		near, far, err := r.cable(i, 0)
		if err != nil {
			r.close()
			return nil, fmt.Errorf("cable %d: %w", i, err)
		}
		if i == cables {
			r.spare = near
			break
		}
		r.near, r.far = append(r.near, near), append(r.far, far)
	}
	return r, nil
}

// quiet keeps the namespace's stack from sending frames.
func quiet() error {
	for _, where := range []string{"all", "default"} {
		err := os.WriteFile("/proc/sys/net/ipv6/conf/"+where+"/disable_ipv6", []byte("1"), 0o644)
		if err != nil && !os.IsNotExist(err) {
			return err
		}
	}
	return nil
}

// cable adds a cable, near<n> to far<n>, both ends up. The near end gets the index,
// unless that is 0.
func (r *rack) cable(n, index int) (near, far uint32, err error) {
	err = r.do(func() error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = fmt.Sprintf("near%d", n)
		attrs.MTU, attrs.Index = 1500, index
		veth := &netlink.Veth{LinkAttrs: attrs, PeerName: fmt.Sprintf("far%d", n), PeerMTU: 1500}
		if err := netlink.LinkAdd(veth); err != nil {
			return err
		}
		for name, index := range map[string]*uint32{veth.Name: &near, veth.PeerName: &far} {
			l, err := netlink.LinkByName(name)
			if err != nil {
				return err
			}
			if err := netlink.LinkSetUp(l); err != nil {
				return err
			}
			*index = uint32(l.Attrs().Index)
		}
		return nil
	})
	return near, far, err
}

// worker starts a thread in the namespace, which runs the functions that it is sent
// until the channel is closed.
func (r *rack) worker() chan func() {
	jobs := make(chan func())
	go func() {
		runtime.LockOSThread()
		err := netns.Set(r.ns)
		for job := range jobs {
			if err != nil {
				panic(fmt.Sprintf("enter network namespace %s: %v", r.name, err))
			}
			job()
		}
	}()
	return jobs
}

// stay binds the calling thread to one of the CPUs that it may run on.
func stay() error {
	var may, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &may); err != nil {
		return err
	}
	for cpu := 0; one.Count() == 0; cpu++ {
		if may.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	return unix.SchedSetaffinity(0, &one)
}

// do runs f in the rack's namespace. f must not end the test.
func (r *rack) do(f func() error) error {
	done := make(chan error)
	r.jobs <- func() { done <- f() }
	return <-done
}

// close removes the namespace and everything in it.
func (r *rack) close() {
	if r.jobs != nil {
		close(r.jobs)
		r.jobs = nil
	}
	if r.ns >= 0 {
		r.ns.Close()
		_ = spaces.Remove(r.name)
	}
}

// ownRack makes a rack for one test.
func ownRack(t testing.TB, cables int) *rack {
	t.Helper()
	needRoot(t)
	r, err := newRack(cables)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// shared has the rack of the tests that leave its devices as they are.
var shared struct{ rack *rack }

const sharedCables = 6

// sharedRack returns the rack that most tests use. Tests of this package do
// not run in parallel.
func sharedRack(t testing.TB) *rack {
	t.Helper()
	needRoot(t)
	if shared.rack == nil {
		r, err := newRack(sharedCables)
		if err != nil {
			t.Fatal(err)
		}
		shared.rack = r
	}
	return shared.rack
}
