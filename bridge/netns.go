// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"bascule/datapath"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is the folder with the names of `ip netns` (ip-netns(8)).
const netnsDir = "/var/run/netns"

// NetnsPath returns the path of a network namespace with a name that [Open] accepts.
func NetnsPath(name string) string {
	switch {
	case name == "":
		return "/proc/thread-self/ns/net"
	case strings.Contains(name, "/"):
		return name
	}
	return filepath.Join(netnsDir, name)
}

// SameNetns reports whether two names that [Open] accepts refer to the same network namespace. It
// returns false if one of the namespaces does not exist.
func SameNetns(a, b string) bool {
	if a == b {
		return true
	}
	first, err1 := os.Stat(NetnsPath(a))
	second, err2 := os.Stat(NetnsPath(b))
	return err1 == nil && err2 == nil && os.SameFile(first, second)
}

// netnsNumber returns the number of a network namespace by the path of its file, or 0 if the file
// is missing.
func netnsNumber(path string) uint32 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return uint32(st.Ino)
}

// netnsName returns the name of a network namespace in ip(8), or its number in lsns(8) if it has
// none.
func netnsName(number uint32) string {
	names, _ := os.ReadDir(netnsDir) // without the folder, there are no names
	for _, e := range names {
		if netnsNumber(filepath.Join(netnsDir, e.Name())) == number {
			return e.Name()
		}
	}
	return strconv.FormatUint(uint64(number), 10)
}

// openNetns opens a network namespace by its name in ip(8), or by the path of its file.
func openNetns(name string) (netns.NsHandle, error) {
	path := NetnsPath(name)
	ns, err := NetnsAt(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return 0, refused("use network namespace "+name, "there is none of this name", "see 'ip netns list', or give the path of its file")
	case errors.Is(err, errNoNetns):
		return 0, refused("use network namespace "+name, path+" is not a network namespace", "see 'ip netns list', or give the path of its file")
	case err != nil:
		return 0, refused("use network namespace "+name, err.Error(), "give a name of 'ip netns list' or the path of its file")
	}
	return ns, nil
}

// NetnsAt opens the network namespace of a file. It does not block on a named pipe.
func NetnsAt(path string) (netns.NsHandle, error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	var st unix.Statfs_t
	kind, err := unix.IoctlRetInt(fd, unix.NS_GET_NSTYPE)
	if unix.Fstatfs(fd, &st) != nil || st.Type != unix.NSFS_MAGIC || err != nil || kind != unix.CLONE_NEWNET {
		unix.Close(fd)
		return -1, errNoNetns
	}
	return netns.NsHandle(fd), nil
}

// errNoNetns means that a file is not a network namespace's.
var errNoNetns = errors.New("it is not a network namespace")

// Cookie returns the cookie of the switch's network namespace, which is unique until the machine is
// restarted (socket(7), SO_NETNS_COOKIE).
func (s *Switch) Cookie() (cookie uint64, err error) {
	err = s.Inside(func() error {
		cookie, err = datapath.NetnsCookie()
		return err
	})
	return cookie, err
}

// Inside runs f in the switch's network namespace, on a thread of its own. f
// must start no goroutine that needs the namespace.
func (s *Switch) Inside(f func() error) error {
	if s.ns == nil {
		return f()
	}
	raw, err := s.ns.SyscallConn()
	if err != nil {
		return err
	}
	if raw.Control(func(fd uintptr) { err = inside(netns.NsHandle(fd), f) }) != nil {
		return refused("use network namespace "+s.ns.Name(), "the switch is closed", "open it again")
	}
	return err
}

// inside runs f in a network namespace, on a thread of its own; f must start
// no goroutine that needs the namespace.
func inside(ns netns.NsHandle, f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		home, err := threadNetns()
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
		// A thread that can't switch back stays locked, and ends with the goroutine.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// threadNetns opens the calling thread's network namespace, by a socket if permitted, and by /proc
// otherwise. A look-up of the thread in /proc has a cost: the kernel removes the thread's entry
// when the thread ends, and the process's parent, which waits for the process, spins during that
// time (shrink_dcache_parent() of fs/dcache.c). On a busy machine this took 5 ms of CPU time for
// each command.
func threadNetns() (netns.NsHandle, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(fd)
	if ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS); err == nil {
		return netns.NsHandle(ns), nil // closed on exec
	}
	return netns.Get()
}

// sweepAbandoned removes the bridges of namespaces that have ended. The kernel removes their
// devices with them, but pinned objects stay. Only a process that can see all others can find out
// that a namespace has ended. Others leave the bridges alone.
func sweepAbandoned() error {
	if !seesAllProcesses("/") {
		return nil
	}
	var live map[uint64]bool
	return datapath.RemoveAbandoned(func(cookie uint64) bool {
		if live == nil {
			live = liveNamespaces()
		}
		return live[cookie]
	})
}

// Ended returns the cookies in a list (see [Switch.Cookie]) whose network namespaces seem to have
// ended: they have no name and no visible process, and none of their ports has a device. If a
// namespace has certainly ended, Ended removes the rest of its bridges.
func Ended(cookies []uint64) ([]uint64, error) {
	if err := sweepAbandoned(); err != nil {
		return nil, err
	}
	live := liveNamespaces()
	return slices.DeleteFunc(slices.Clone(cookies), func(cookie uint64) bool { return live[cookie] || datapath.Alive(cookie) }), nil
}

// seesAllProcesses reports whether this process may inspect the machine's first process, which has
// all privileges. A service with few capabilities may not (ptrace(2), PTRACE_MODE_READ_FSCREDS). In
// another PID namespace the first process is another one. The files of processes are below root.
func seesAllProcesses(root string) bool {
	const first = "pid:[4026531836]"                             // PROC_PID_INIT_INO of linux/proc_ns.h
	is, err := os.Readlink(filepath.Join(root, "proc/1/ns/pid")) // it may be hidden, too
	return err == nil && is == first
}

// liveNamespaces returns the cookies of the network namespaces that have a name or a process.
func liveNamespaces() map[uint64]bool {
	live := map[uint64]bool{}
	for path := range namespaceFiles() {
		ns, err := NetnsAt(path)
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
