// SPDX-License-Identifier: BSD-2-Clause

// Package ends makes the endpoints of the lab: network namespaces with an Ethernet interface in
// each, and the veth cables between them and a switch.
package ends

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"bascule/lab/spaces"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace that the lab makes and removes.
type Namespace struct {
	Name   string
	handle netns.NsHandle
	link   *netlink.Handle
}

// NewNamespace makes a network namespace with the given name. Its loopback is up, and IPv6 is off
// on later devices, so that only the lab's frames cross them.
func NewNamespace(name string) (*Namespace, error) {
	var handle netns.NsHandle
	err := onOwnThread(func() error {
		var err error
		handle, err = spaces.New(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("network namespace %s: %w", name, err)
	}
	n := &Namespace{Name: name, handle: handle}
	if n.link, err = netlink.NewHandleAt(handle, unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace %s: %w", name, err), n.Close())
	}
	err = n.Do(func() error {
		return errors.Join(
			Sysctl("net.ipv6.conf.all.disable_ipv6", "1"),
			Sysctl("net.ipv6.conf.default.disable_ipv6", "1"),
		)
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("network namespace %s: %w", name, err), n.Close())
	}
	lo, err := n.link.LinkByName("lo")
	if err == nil {
		err = n.link.LinkSetUp(lo)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("loopback of %s: %w", name, err), n.Close())
	}
	return n, nil
}

// Netlink returns a handle of the namespace for any thread.
func (n *Namespace) Netlink() *netlink.Handle { return n.link }

// Do runs fn on a thread in the namespace and waits for it. fn must not start a goroutine that
// needs the namespace.
func (n *Namespace) Do(fn func() error) error {
	return onOwnThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return fn()
	})
}

// enter moves the calling thread into the namespace.
func (n *Namespace) enter() error {
	if err := netns.Set(n.handle); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", n.Name, err)
	}
	return nil
}

// onOwnThread runs fn on a separate thread. fn may change the thread's network namespace and CPU
// affinity. onOwnThread restores them; if that fails, the thread stays locked and ends with its
// goroutine.
func onOwnThread(fn func() error) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		back, err := andBack(fn)
		if back {
			runtime.UnlockOSThread()
		}
		result <- err
	}()
	return <-result
}

// andBack runs fn, which may change the calling thread's network namespace and CPU
// affinity, and restores them: back is false if that failed.
func andBack(fn func() error) (back bool, err error) {
	home, err := netns.Get()
	if err != nil {
		return true, err
	}
	defer home.Close()
	var cpus unix.CPUSet
	if err := unix.SchedGetaffinity(0, &cpus); err != nil {
		return true, err
	}
	err = fn()
	failed := errors.Join(netns.Set(home), unix.SchedSetaffinity(0, &cpus))
	return failed == nil, errors.Join(err, failed)
}

// PinThread keeps the calling thread on one CPU. Do reverts this.
func PinThread(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if err := unix.SchedSetaffinity(0, &set); err != nil {
		return fmt.Errorf("pin to CPU %d: %w", cpu, err)
	}
	return nil
}

// Sysctl sets a sysctl of the calling thread's network namespace.
func Sysctl(name, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
		return fmt.Errorf("sysctl %s=%s: %w", name, value, err)
	}
	return nil
}

// Output runs a program in the namespace, on one CPU or AnyCPU, and returns its
// standard output. An error carries its standard error.
func (n *Namespace) Output(ctx context.Context, cpu int, name string, args ...string) ([]byte, error) {
	cmd := Command(ctx, name, args...)
	var out, said strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &said
	err := n.Start(cmd, cpu)
	if err == nil {
		err = cmd.Wait()
	}
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		words := strings.TrimSpace(said.String())
		if words == "" {
			words = strings.TrimSpace(out.String())
		}
		return []byte(out.String()), fmt.Errorf("%s in %s: %w: %s", filepath.Base(name), n.Name, err, words)
	}
	return []byte(out.String()), nil
}

// Cookie returns the kernel's id of the namespace (SO_NETNS_COOKIE), which is unique since boot.
func (n *Namespace) Cookie() (uint64, error) {
	var cookie uint64
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		cookie, err = unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("cookie of %s: %w", n.Name, err)
	}
	return cookie, nil
}

// Receive moves a device of this process's network namespace into n, under a name. A network card
// returns when the namespace is removed.
func (n *Namespace) Receive(l netlink.Link, name string) error {
	err := netlink.LinkSetNsFd(l, int(n.handle))
	if err != nil {
		return fmt.Errorf("move %s to %s: %w", l.Attrs().Name, n.Name, err)
	}
	moved, err := n.link.LinkByName(l.Attrs().Name)
	if err == nil {
		err = n.link.LinkSetName(moved, name)
	}
	if err != nil {
		return fmt.Errorf("%s as %s in %s: %w", l.Attrs().Name, name, n.Name, err)
	}
	return nil
}

// Close removes the namespace and with it every device in it.
func (n *Namespace) Close() error {
	if n.link != nil {
		n.link.Close()
	}
	err := errors.Join(n.handle.Close(), spaces.Remove(n.Name))
	if err != nil {
		return fmt.Errorf("remove network namespace %s: %w", n.Name, err)
	}
	return nil
}
