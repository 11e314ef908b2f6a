// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// Main is the init process of a guest: it prepares the machine, serves the lab until the lab closes
// the connection, and powers the machine off. It returns only if it is not process 1.
func Main() error {
	if os.Getpid() != 1 {
		return ErrNotFirst
	}
	err := ready()
	if err == nil {
		err = talk()
	}
	// The last output on the console, which the lab quotes.
	fmt.Fprintln(os.Stderr, err)
	return End()
}

// ready mounts the file systems that every program expects, and loads the
// drivers.
func ready() error {
	for _, m := range []struct{ kind, at string }{
		{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	if err := os.Setenv("PATH", "/usr/bin"); err != nil {
		return err
	}
	// Their names sort in the order of their dependencies.
	drivers, err := filepath.Glob(modulesDir + "/*.ko")
	if err != nil {
		return err
	}
	for _, d := range drivers {
		f, err := os.Open(d)
		if err != nil {
			return err
		}
		err = unix.FinitModule(int(f.Fd()), "", 0)
		f.Close()
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("module %s: %w", filepath.Base(d), err)
		}
	}
	return nil
}

// talk serves the lab's requests.
func talk() error {
	f, err := openPort(portName)
	if err != nil {
		return err
	}
	defer f.Close()
	return answer(f)
}

// The names of a machine's virtio ports.
const (
	portName    = "bascule.lab"     // the other side is the lab, or the program that runs the machine
	monitorName = "bascule.monitor" // the other side is QEMU
)

// openPort opens the virtio port with a name. The device sends the name of a port to the kernel
// shortly after the port itself.
func openPort(name string) (*os.File, error) {
	var found string
	err := patiently(func() (bool, error) {
		names, err := filepath.Glob("/sys/class/virtio-ports/*/name")
		for _, path := range names {
			if text, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(text)) == name {
				found = filepath.Base(filepath.Dir(path))
			}
		}
		return found != "", err
	})
	if err != nil {
		return nil, fmt.Errorf("port %s: %w", name, err)
	}
	return os.OpenFile("/dev/"+found, os.O_RDWR, 0)
}

// patiently repeats try until it is ok or fails. It waits for short work of the kernel.
func patiently(try func() (ok bool, err error)) error {
	for deadline := time.Now().Add(grace); ; time.Sleep(time.Millisecond) {
		ok, err := try()
		if ok || err != nil {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("nothing after %v", grace)
		}
	}
}

// agent serves the requests of the lab.
type agent struct {
	mu      sync.Mutex
	enc     *json.Encoder
	nets    map[string]*ends.Namespace
	running map[uint64]context.CancelFunc
	servers map[uint64]ends.Server
}

// answer serves the requests over conn until it ends, which is an error.
func answer(conn io.ReadWriter) error {
	a := &agent{
		enc:     json.NewEncoder(conn),
		nets:    map[string]*ends.Namespace{},
		running: map[uint64]context.CancelFunc{},
		servers: map[uint64]ends.Server{},
	}
	dec := json.NewDecoder(conn)
	for {
		var r request
		if err := dec.Decode(&r); err != nil {
			return fmt.Errorf("the lab: %w", err)
		}
		a.mu.Lock()
		if r.Do == doCancel {
			if cancel := a.running[r.Of]; cancel != nil {
				cancel()
			}
			a.mu.Unlock()
			continue
		}
		ctx, cancel := context.WithCancel(context.Background())
		a.running[r.ID] = cancel
		a.mu.Unlock()
		go func() {
			out, err := a.do(ctx, r)
			re := reply{ID: r.ID, Out: out}
			if err != nil {
				re.Error = err.Error()
			}
			a.mu.Lock()
			defer a.mu.Unlock()
			// A server's context lasts as long as the server.
			if r.Do != doServe || err != nil {
				delete(a.running, r.ID)
				cancel()
			}
			if err := a.enc.Encode(re); err != nil {
				fmt.Fprintln(os.Stderr, "answer to the lab:", err)
			}
		}()
	}
}

// do executes one request.
func (a *agent) do(ctx context.Context, r request) ([]byte, error) {
	switch r.Do {
	case doHello:
		return nil, nil
	case doPlug:
		return nil, a.plug(r.Net, *r.Card)
	case doEnded, doListen:
		a.mu.Lock()
		s := a.servers[r.Of]
		a.mu.Unlock()
		if s == nil {
			return nil, fmt.Errorf("no server %d", r.Of)
		}
		if r.Do == doListen {
			return nil, s.Listening(ctx)
		}
		return nil, s.Ended(ctx, r.Within)
	case doEnd:
		a.mu.Lock()
		s := a.servers[r.Of]
		delete(a.servers, r.Of)
		delete(a.running, r.Of)
		a.mu.Unlock()
		if s == nil {
			return nil, fmt.Errorf("no server %d", r.Of)
		}
		return nil, s.Close()
	}
	a.mu.Lock()
	n := a.nets[r.Net]
	a.mu.Unlock()
	if n == nil {
		return nil, fmt.Errorf("no network %q", r.Net)
	}
	// The machine has one CPU.
	switch r.Do {
	case doUnplug:
		a.mu.Lock()
		delete(a.nets, r.Net)
		a.mu.Unlock()
		return nil, n.Close()
	case doOutput:
		return n.Output(ctx, ends.AnyCPU, r.Program, r.Args...)
	case doServe:
		s, err := n.Serve(ctx, ends.AnyCPU, r.Listen, r.Program, r.Args...)
		if err != nil {
			return nil, err
		}
		a.mu.Lock()
		a.servers[r.ID] = s
		a.mu.Unlock()
		return nil, nil
	case doFeatures:
		return nil, n.SetFeatures(r.Ifname, r.Features)
	}
	return nil, fmt.Errorf("unknown request %q", r.Do)
}

// plug makes a namespace with a network card as an end. Each case has its own, so that all can use
// the lab's default addresses.
func (a *agent) plug(name string, c card) error {
	mac, err := net.ParseMAC(c.MAC)
	if err != nil {
		return err
	}
	addr, err := netip.ParsePrefix(c.Addr)
	if err != nil {
		return err
	}
	n, err := ends.NewNamespace(name)
	if err != nil {
		return err
	}
	if err := plugInto(n, c, mac, addr); err != nil {
		return errors.Join(fmt.Errorf("network card %s: %w", c.Found, err), n.Close())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.nets[name] = n
	return nil
}

func plugInto(n *ends.Namespace, c card, mac net.HardwareAddr, addr netip.Prefix) error {
	root, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer root.Close()
	var l netlink.Link
	err = patiently(func() (bool, error) {
		l, err = linkOf(root, c.Found)
		return l != nil, err
	})
	if err != nil {
		return err
	}
	to, err := netns.GetFromName(n.Name)
	if err != nil {
		return err
	}
	defer to.Close()
	if err := root.LinkSetNsFd(l, int(to)); err != nil {
		return err
	}
	if l, err = linkOf(n.Netlink(), c.Found); err != nil {
		return err
	}
	err = errors.Join(
		n.Netlink().LinkSetName(l, c.Ifname),
		n.Netlink().LinkSetHardwareAddr(l, mac),
		n.Netlink().LinkSetMTU(l, c.MTU),
	)
	if err != nil {
		return err
	}
	_, err = n.Adopt(c.Ifname, addr)
	return err
}

// linkOf returns the device with a hardware address; nil if there is none.
func linkOf(h *netlink.Handle, mac string) (netlink.Link, error) {
	links, err := h.LinkList()
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().HardwareAddr.String() == mac })
	if i < 0 {
		return nil, err
	}
	return links[i], nil
}
