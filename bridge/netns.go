// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"io/fs"
	"path/filepath"
	"runtime"
	"strings"

	"bascule/datapath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where `ip netns` keeps names (ip-netns(8)).
const netnsDir = "/var/run/netns"

// openNetns opens a network namespace by the name that ip(8) gives it, or by
// the path of a file that stands for it.
func openNetns(name string) (netns.NsHandle, error) {
	path := name
	if !strings.Contains(name, "/") {
		path = filepath.Join(netnsDir, name)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, refused("use network namespace "+name, "there is none of this name", "see 'ip netns list', or give the path of its file")
	case err != nil:
		return 0, refused("use network namespace "+name, err.Error(), "give a name of 'ip netns list' or the path of its file")
	}
	var st unix.Statfs_t
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if unix.Fstatfs(fd, &st) != nil || st.Type != unix.NSFS_MAGIC || err != nil || kind != unix.CLONE_NEWNET {
		unix.Close(fd)
		return 0, refused("use network namespace "+name, path+" is not a network namespace", "see 'ip netns list', or give the path of its file")
	}
	return netns.NsHandle(fd), nil
}

// inside runs f in a network namespace, on a thread of its own; f must start
// no goroutine that needs the namespace. A namespace of -1 is the caller's.
func inside(ns netns.NsHandle, f func() error) error {
	if ns < 0 {
		return f()
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			done <- err
			return
		}
		defer home.Close()
		if err := netns.Set(ns); err != nil {
			runtime.UnlockOSThread()
			done <- refused("enter the network namespace", err.Error(), "run as root")
			return
		}
		err = f()
		// a thread that can't go back stays locked, and ends with the goroutine
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// sweepAbandoned removes the bridges of namespaces that have ended. The kernel
// ends their devices with them; what is pinned stays, and nobody else can tell.
func sweepAbandoned() error {
	var live map[uint64]bool
	return datapath.RemoveAbandoned(func(cookie uint64) bool {
		if live == nil {
			live = liveNamespaces()
		}
		return live[cookie]
	})
}

// liveNamespaces returns the cookies of the network namespaces that a process
// is in or that have a name.
func liveNamespaces() map[uint64]bool {
	live := map[uint64]bool{}
	for _, path := range namespaceFiles() {
		ns, err := netns.GetFromPath(path)
		if err != nil {
			continue
		}
		_ = inside(ns, func() error {
			cookie, err := datapath.NetnsCookie()
			live[cookie] = err == nil
			return err
		})
		ns.Close()
	}
	return live
}
