// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"context"
	"iter"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/files"

	"github.com/vishvananda/netns"
)

// The folders of network namespaces' names, and of the files that ip-netns(8) mounts over /etc for
// a namespace.
const (
	netnsNames = "/run/netns"
	netnsEtc   = "/etc/netns"
)

// maxHostLookup is the timeout of a host lookup.
const maxHostLookup = 10 * time.Second

// lookupHost returns the addresses of a host. The lookup runs in the network namespace of the
// thread, since rules are read in the bridge's namespace.
func lookupHost(name string, _ []string) ([]netip.Prefix, error) {
	ctx, cancel := context.WithTimeout(context.Background(), maxHostLookup)
	defer cancel()
	r, err := newResolver("/proc/thread-self/ns/net", netnsNames, netnsEtc)
	if err != nil {
		return nil, err
	}
	defer r.close()
	addrs, err := r.lookup(ctx, name)
	if err != nil {
		return nil, err
	}
	var list []netip.Prefix
	for _, a := range addrs {
		a = a.Unmap().WithZone("")
		list = append(list, netip.PrefixFrom(a, a.BitLen()))
	}
	return list, nil
}

// resolver looks up hosts like a program in a network namespace.
type resolver struct {
	net.Resolver
	ns   netns.NsHandle // not closed if it is the process's own
	etc  string         // the namespace's own folder, if it has a name
	asks []string       // servers of its own resolv.conf, with ports
}

// newResolver returns a resolver for the network namespace whose file is path. names is the folder
// with the names of namespaces, and etc the folder with their files for /etc.
func newResolver(path, names, etc string) (*resolver, error) {
	r := &resolver{ns: netns.None()}
	here, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if own, err := os.Stat("/proc/self/ns/net"); err == nil && os.SameFile(here, own) {
		return r, nil
	}
	if r.ns, err = bridge.NetnsAt(path); err != nil {
		return nil, err
	}
	entries, _ := os.ReadDir(names)
	for _, e := range entries {
		if there, err := os.Stat(filepath.Join(names, e.Name())); err == nil && os.SameFile(here, there) {
			r.etc = filepath.Join(etc, e.Name())
			break
		}
	}
	for words := range r.lines("resolv.conf") {
		if len(words) > 1 && words[0] == "nameserver" {
			r.asks = append(r.asks, net.JoinHostPort(words[1], "53"))
		}
	}
	r.PreferGo, r.Dial = true, r.dial // libc would open its sockets in any thread's namespace
	return r, nil
}

func (r *resolver) close() {
	if r.ns.IsOpen() {
		r.ns.Close()
	}
}

// lines returns the words of each line of the namespace's own version of a file.
func (r *resolver) lines(name string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		if r.etc == "" {
			return
		}
		f, err := files.OpenPlain(filepath.Join(r.etc, name))
		if err != nil {
			return // the namespace has no such file
		}
		defer f.Close()
		for s := bufio.NewScanner(f); s.Scan(); {
			text, _, _ := strings.Cut(s.Text(), "#")
			if !yield(strings.Fields(text)) {
				return
			}
		}
	}
}

func (r *resolver) lookup(ctx context.Context, name string) (list []netip.Addr, err error) {
	for words := range r.lines("hosts") {
		if len(words) > 1 && slices.Contains(words[1:], name) {
			if a, err := netip.ParseAddr(words[0]); err == nil {
				list = append(list, a)
			}
		}
	}
	if list != nil {
		return list, nil
	}
	return r.LookupNetIP(ctx, "ip", name)
}

// dial connects to a server from within the namespace.
func (r *resolver) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the thread ends with the goroutine, since its namespace may be wrong
		if err = netns.Set(r.ns); err != nil {
			return
		}
		asks := r.asks
		if len(asks) == 0 {
			asks = []string{address}
		}
		for _, at := range asks {
			var d net.Dialer
			if c, err = d.DialContext(ctx, network, at); err == nil {
				return
			}
		}
	}()
	<-done
	return c, err
}
