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

// Where the names of network namespaces are, and the files that ip-netns(8)
// gives their programs in place of those of /etc.
const (
	netnsNames = "/run/netns"
	netnsEtc   = "/etc/netns"
)

// maxHostLookup is for how long a host is looked up.
const maxHostLookup = 10 * time.Second

// lookupHost returns the addresses of a host, asked for in the network
// namespace of the thread: rules are read in that of the bridge.
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

// resolver looks hosts up as a program in a network namespace would.
type resolver struct {
	net.Resolver
	ns   netns.NsHandle // closed where it is the process's own
	etc  string         // the namespace's own folder, if it has a name
	asks []string       // servers of its own resolv.conf, with ports
}

// newResolver returns a resolver of the network namespace whose file is path.
// The folder names has the names of namespaces, and etc their files of /etc.
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
	r.PreferGo, r.Dial = true, r.dial // C's makes its sockets wherever it is
	return r, nil
}

func (r *resolver) close() {
	if r.ns.IsOpen() {
		r.ns.Close()
	}
}

// lines returns the words of each line of a file that the namespace has of its
// own.
func (r *resolver) lines(name string) iter.Seq[[]string] {
	return func(yield func([]string) bool) {
		if r.etc == "" {
			return
		}
		f, err := files.OpenPlain(filepath.Join(r.etc, name))
		if err != nil {
			return // it has none
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

// dial asks a server from within the namespace.
func (r *resolver) dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // which ends with the goroutine, as it cannot be trusted any more
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
