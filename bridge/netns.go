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

// netnsDir is where `ip netns` keeps names (ip-netns(8)).
const netnsDir = "/var/run/netns"

// NetnsPath is the path of a network namespace, which is named as [Open] takes it.
func NetnsPath(name string) string {
	switch {
	case name == "":
		return "/proc/thread-self/ns/net"
	case strings.Contains(name, "/"):
		return name
	}
	return filepath.Join(netnsDir, name)
}

// SameNetns reports whether two names, as [Open] takes them, are of the same network
// namespace. They are not if one of the namespaces is not there.
func SameNetns(a, b string) bool {
	if a == b {
		return true
	}
	first, err1 := os.Stat(NetnsPath(a))
	second, err2 := os.Stat(NetnsPath(b))
	return err1 == nil && err2 == nil && os.SameFile(first, second)
}

// netnsNumber is the number of a network namespace, by the path of its file; 0 if that is not there.
func netnsNumber(path string) uint32 {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return 0
	}
	return uint32(st.Ino)
}

// netnsName names a network namespace by its number: as ip(8) does, or else by the number, as lsns(8)
// does.
func netnsName(number uint32) string {
	names, _ := os.ReadDir(netnsDir) // without, there are no names
	for _, e := range names {
		if netnsNumber(filepath.Join(netnsDir, e.Name())) == number {
			return e.Name()
		}
	}
	return strconv.FormatUint(uint64(number), 10)
}

// openNetns opens a network namespace by the name that ip(8) gives it, or by the path
// of a file that leads to it.
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

// NetnsAt opens the network namespace that a file leads to. It does not wait for a
// named pipe.
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

// errNoNetns says that a file does not lead to a network namespace.
var errNoNetns = errors.New("it is not a network namespace")

// Cookie is the number of the switch's network namespace; no other gets it while
// the machine is up (socket(7), SO_NETNS_COOKIE).
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
		// A thread that can't go back stays locked, and ends with the
		// goroutine.
		if netns.Set(home) == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// threadNetns opens the calling thread's network namespace. It asks a socket, if it
// may, and does not look in /proc. If a thread was looked up there, the kernel removes
// the thread's entry when the thread ends. As long as that takes, the process's parent,
// which is about to forget the process, spins (shrink_dcache_parent() of fs/dcache.c).
// On a busy machine this took 5 ms of CPU time for each command.
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

// sweepAbandoned removes the bridges of namespaces that have ended. The kernel ends
// their devices with them, but pinned objects stay, and nobody else can tell. A process
// that may not look into all others cannot tell either, and leaves the bridges to
// processes that can.
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

// Ended returns those of some network namespaces, by [Switch.Cookie], that have ended
// as far as can be seen: no name leads to them, nor any process that may be looked at,
// and no port of theirs has a device. If it is certain that one has ended, Ended
// removes what is left of its bridges.
func Ended(cookies []uint64) ([]uint64, error) {
	if err := sweepAbandoned(); err != nil {
		return nil, err
	}
	live := liveNamespaces()
	return slices.DeleteFunc(slices.Clone(cookies), func(cookie uint64) bool { return live[cookie] || datapath.Alive(cookie) }), nil
}

// seesAllProcesses reports whether we may look into the machine's first process, which
// has every privilege that there is. A service with few capabilities may not
// (ptrace(2), PTRACE_MODE_READ_FSCREDS). In another process namespace the first process
// is another one. The files of processes are below root.
func seesAllProcesses(root string) bool {
	const first = "pid:[4026531836]"                             // PROC_PID_INIT_INO of linux/proc_ns.h
	is, err := os.Readlink(filepath.Join(root, "proc/1/ns/pid")) // it may be hidden, too
	return err == nil && is == first
}

// liveNamespaces returns the cookies of the network namespaces that have a name, or
// that a process is in.
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
