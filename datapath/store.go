// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"bascule/locks"
)

// Root is the folder in which bridges are pinned. It is a BPF file system of our own, because `ip
// netns exec` hides the one under /sys.
const Root = "/run/bascule"

// A Store holds the bridges of one network namespace, in one folder each.
//
//	<cookie of the namespace>/<bridge>/current -> gen-7
//	                                  /gen-7/config, tcx, xdp, control and the tables
//	                                  /gen-intended/config: settings taken for the next generation
//	                                  /link/<port id>-tcx, <port id>-xdp
//	                                  /dirty        while a command is at work
//	                                  /doubt-0      saved state of control protocol 0 is out of date
//	                        /%patch/patch_panel, patch_trip: shared objects of patch cables
//	                        /%owed/<id of a link>/link, port: settings still to be given back
//	<cookie>%plans    while a command changes bridges by a plan
//	<cookie>%devices  locked by the agent, which follows the devices
//
// The link `current` leads to the generation of the bridge. A change takes effect at the moment at
// which that link is renamed. All other steps follow from it, and the next writer does the rest if
// a command was killed before it had finished.
type Store struct {
	// Locked makes the programs that are loaded take one lock around the FDB for every frame
	// (bpf/locked.bpf.c). It is for the lab, which measures the cost of a lock. The tables are the
	// same. A bridge does not keep this: a load without it makes ordinary programs.
	Locked bool

	// Waits is called if it takes long to get the lock of the bridges, or of plans, with the
	// process that holds it, 0 if that is unknown. It is called from another goroutine, once for
	// each wait. It may be nil.
	Waits func(process int)

	// Kept has the reasons, by the bridges' names, why bridges of former layouts could not be taken
	// over.
	Kept map[string]error

	open map[string]*heldTable // tables that each port needs, by bridge; nil except during Hold

	dir string
	log ebpf.LogLevel // the verifier's log of accepted programs, for tests
}

// A heldTable is a table of a bridge's generation that stays open.
type heldTable struct {
	gen string
	*ebpf.Map
}

// Hold makes the store keep tables open that are often needed, until release.
func (s *Store) Hold() (release func()) {
	s.open = map[string]*heldTable{}
	return func() {
		for _, t := range s.open {
			t.Close()
		}
		s.open = nil
	}
}

// OpenStore returns the store of the calling thread's network namespace. It may mount Root, and
// changes nothing else.
func OpenStore() (*Store, error) {
	cookie, err := NetnsCookie()
	if err != nil {
		return nil, err
	}
	return StoreOf(cookie)
}

// NetnsCookie returns the number of the calling thread's network namespace, which is unique until
// the next boot (socket(7), SO_NETNS_COOKIE).
func NetnsCookie() (uint64, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, fmt.Errorf("socket: %w", err)
	}
	defer unix.Close(fd)
	cookie, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE)
	if err != nil {
		return 0, fmt.Errorf("SO_NETNS_COOKIE: %w", err)
	}
	return cookie, nil
}

// mountRoot returns the path of Root's file system, and mounts it if necessary.
//
// `ip netns exec` runs a command in a mount namespace of its own. The command does not see mounts
// that the machine makes later, and its own mounts end with it. So the file system is mounted for
// the machine: in the namespace of the oldest accessible process. If our own Root is something
// else, the file system is reached through that process.
func mountRoot() (string, error) {
	if isBPF(Root) {
		return Root, nil
	}
	machine := oldestAncestor()
	path := filepath.Join(machine, "root", Root)
	if isBPF(path) {
		return path, nil
	}
	mount := func() error {
		if err := os.MkdirAll(Root, 0o700); err != nil {
			return err
		}
		// The first two commands of a machine may both come here: a second mount would hide the
		// contents of the first.
		dir, err := os.Open(Root)
		if err != nil {
			return err
		}
		defer locks.Close(dir)
		if err := locks.Wait(dir); err != nil {
			return err
		}
		if isBPF(Root) {
			return nil
		}
		err = unix.Mount("bascule", Root, "bpf", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC|unix.MS_RELATIME, "mode=0700")
		if err != nil {
			return fmt.Errorf("mount a BPF file system at %s: %w", Root, err)
		}
		return nil
	}
	if sameMounts(machine) {
		return Root, mount()
	}
	done := make(chan error)
	go func() {
		// The thread is never released, because its mount namespace is not ours.
		runtime.LockOSThread()
		done <- func() error {
			ns, err := os.Open(filepath.Join(machine, "ns/mnt"))
			if err != nil {
				return err
			}
			defer ns.Close()
			if err := unix.Unshare(unix.CLONE_FS); err != nil {
				return err
			}
			if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNS); err != nil {
				return err
			}
			return mount()
		}()
	}()
	return path, <-done
}

// Mounted reports whether Root's file system is mounted: without it there are no bridges.
func Mounted() bool {
	return isBPF(Root) || isBPF(filepath.Join(oldestAncestor(), "root", Root))
}

// oldestAncestor returns the /proc folder of the first process or, if that is not accessible, of
// our oldest accessible ancestor.
func oldestAncestor() string {
	oldest := "/proc/self"
	for pid := os.Getpid(); pid > 0; pid = parent(pid) {
		dir := "/proc/" + strconv.Itoa(pid)
		if _, err := os.Stat(dir + "/root/"); err == nil {
			oldest = dir
		}
	}
	return oldest
}

// parent returns a process's parent, 0 if there is none or it is not visible (proc(5)).
func parent(pid int) int {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0
	}
	// the second field, a name in parentheses, may contain any character
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0
	}
	ppid, _ := strconv.Atoi(fields[1])
	return ppid
}

// sameMounts reports whether a process sees the mounts that we see.
func sameMounts(proc string) bool {
	ours, err1 := os.Readlink("/proc/self/ns/mnt")
	its, err2 := os.Readlink(filepath.Join(proc, "ns/mnt"))
	return err1 != nil || err2 != nil || ours == its
}

func isBPF(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.BPF_FS_MAGIC
}

// Lock makes the caller the only writer of the namespace's bridges; it waits for another to finish.
// The lock also ends with the process.
func (s *Store) Lock() (unlock func(), err error) {
	unlock, err = lockFolder(s.dir, s.Waits)
	if err == nil {
		s.hurry().calm()
		locked(s.plansDir()) // or the remains of a killed command would stay
	}
	return unlock, err
}

// plansDir is the folder that is locked while bridges are changed by a plan.
func (s *Store) plansDir() string { return s.dir + "%plans" }

// LockPlans makes the caller the only one that executes a plan made from the bridges of the
// namespace, however many steps the plan takes. It does not interfere with [Store.Lock], which each
// step takes. It also ends with the process.
func (s *Store) LockPlans() (unlock func(), err error) { return lockFolder(s.plansDir(), s.Waits) }

// devicesDir is the folder that is locked by the process that follows the devices.
func (s *Store) devicesDir() string { return s.dir + "%devices" }

// A Hold is a process's lock of a folder, which marks an activity. It ends with the process. It
// also ends if the folder is removed.
type Hold struct {
	dir  *os.File
	path string
	of   folder
}

// ownHolds are the folders that this process holds, by device and inode: finding the holder of a
// lock by the kernel is slow.
var ownHolds = struct {
	sync.Mutex
	folders map[folder]int
}{folders: map[folder]int{}}

type folder struct{ dev, inode uint64 }

func folderAt(st *unix.Stat_t) folder { return folder{st.Dev, st.Ino} }

// newHold notes a lock that this process has taken.
func newHold(dir *os.File, path string) *Hold {
	h := &Hold{dir: dir, path: path}
	var st unix.Stat_t
	if unix.Fstat(int(dir.Fd()), &st) == nil {
		h.of = folderAt(&st)
		ownHolds.Lock()
		ownHolds.folders[h.of]++
		ownHolds.Unlock()
	}
	return h
}

// holdHere reports whether this process holds the folder at a path.
func holdHere(path string) bool {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return false
	}
	ownHolds.Lock()
	defer ownHolds.Unlock()
	return ownHolds.folders[folderAt(&st)] > 0
}

// Lost reports whether the folder has been removed: then another process may have the hold.
func (h *Hold) Lost() bool { return !sameFile(h.dir, h.path) }

// Unmounted reports whether the folder's file system is no longer the one in which
// bridges are pinned.
func (h *Hold) Unmounted() bool {
	var held, root unix.Stat_t
	if unix.Fstat(int(h.dir.Fd()), &held) != nil {
		return false
	}
	err := unix.Stat(filepath.Dir(h.path), &root)
	return errors.Is(err, fs.ErrNotExist) || err == nil && held.Dev != root.Dev
}

// Release ends the hold. With remove, it removes the folder, if the folder is still ours.
func (h *Hold) Release(remove bool) {
	if remove && !h.Lost() {
		os.Remove(h.path)
	}
	ownHolds.Lock()
	if ownHolds.folders[h.of]--; ownHolds.folders[h.of] <= 0 {
		delete(ownHolds.folders, h.of)
	}
	ownHolds.Unlock()
	locks.Close(h.dir)
}

// HoldDevices registers the caller as the process that follows the devices of the namespace's
// bridges, until Release or the end of the process. The error is ErrWatched if another process
// does.
func (s *Store) HoldDevices() (*Hold, error) {
	const tries = 20 // tries, as processes that only check the lock hold it for a moment
	for try := 1; ; try++ {
		if err := os.Mkdir(s.devicesDir(), 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		dir, err := os.Open(s.devicesDir())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		err = locks.Try(dir)
		if err == nil && sameFile(dir, s.devicesDir()) {
			return newHold(dir, s.devicesDir()), nil
		}
		locks.Close(dir)
		switch {
		case err == nil: // it was removed meanwhile
		case !errors.Is(err, unix.EWOULDBLOCK):
			return nil, err
		case try == tries:
			return nil, ErrWatched
		default:
			time.Sleep(5 * time.Millisecond)
		}
	}
}

// DevicesHeld reports whether a process follows the devices. It removes the remains of a process
// that was killed.
func (s *Store) DevicesHeld() bool { return locked(s.devicesDir()) }

// locked reports whether a process has the lock of a folder, and removes the folder of a process
// that was killed.
func locked(path string) bool {
	dir, err := os.Open(path)
	if err != nil {
		return false
	}
	defer locks.Close(dir)
	if err := locks.Try(dir); err != nil {
		return true
	}
	if sameFile(dir, path) {
		os.Remove(path)
	}
	return false
}

// DevicesHolder returns the process that follows the devices. It is 0 if there is none, or if it is
// unknown, for example in another process namespace.
func (s *Store) DevicesHolder() int { return LockHolder(s.devicesDir()) }

// StoreOf returns the store of the network namespace with the cookie. It may mount Root, and
// changes nothing else.
func StoreOf(cookie uint64) (*Store, error) {
	root, err := mountRoot()
	if err != nil {
		return nil, err
	}
	return &Store{dir: filepath.Join(root, strconv.FormatUint(cookie, 10)), Kept: map[string]error{}}, nil
}

// longWait is the time after which a wait for a lock is reported. Most changes take less.
const longWait = 3 * time.Second

// lockFolder makes the caller the only one that has the folder. It makes the folder, and unlock
// removes it if it is empty. waits, if it is not nil, is called after a long wait.
func lockFolder(path string, waits func(process int)) (unlock func(), err error) {
	if waits != nil {
		told := time.AfterFunc(longWait, func() { waits(LockHolder(path)) })
		defer told.Stop()
	}
	for {
		// Another process may remove the folder at any moment until it is locked.
		err := os.Mkdir(path, 0o700)
		if err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
		dir, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		goOn := locks.HoldStop()
		if err := locks.Wait(dir); err != nil {
			dir.Close()
			goOn()
			return nil, err
		}
		// The former holder may have removed the folder that we waited for.
		if !sameFile(dir, path) {
			locks.Close(dir)
			goOn()
			continue
		}
		return func() {
			os.Remove(path) // fails for a folder of bridges as long as it has one
			locks.Close(dir)
			goOn()
		}, nil
	}
}

// sameFile reports whether the path still leads to the open file.
func sameFile(open *os.File, path string) bool {
	held, err1 := open.Stat()
	named, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(held, named)
}

// Names returns the bridges' names in order.
func (s *Store) Names() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if s.Exists(unescape(e.Name())) {
			names = append(names, unescape(e.Name()))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Namesakes returns the configurations of bridges with a given name in other network namespaces, if
// they have a device and can be read.
func (s *Store) Namesakes(name string) ([]*Config, error) {
	root := filepath.Dir(s.dir)
	entries, err := os.ReadDir(root)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var list []*Config
	for _, e := range entries {
		o := &Store{dir: filepath.Join(root, e.Name())}
		b := &Bridge{store: o, dir: o.path(name)}
		if o.dir == s.dir {
			continue
		}
		// reading another version's bridge is expensive, and many may be left from namespaces that
		// have ended
		if b.gen, err = os.Readlink(b.pin("current")); err == nil && b.alive() && b.readConfig() == nil {
			list = append(list, &b.Config)
		}
	}
	return list, nil
}

// Dirty reports whether a command is at work on any bridge, or was killed at it. It reads nothing
// else.
func (s *Store) Dirty() (bool, error) {
	names, err := s.Names()
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(names, func(name string) bool {
		b := Bridge{dir: s.path(name)}
		return b.Dirty()
	}), nil
}

// Exists reports whether the bridge exists.
func (s *Store) Exists(name string) bool {
	_, err := os.Readlink(filepath.Join(s.path(name), "current"))
	return err == nil
}

func (s *Store) path(name string) string { return filepath.Join(s.dir, escape(name)) }

// The BPF file system allows no dots in names, but names of interfaces may have some.
var escapes = strings.NewReplacer("%", "%25", ".", "%2e")
var unescapes = strings.NewReplacer("%25", "%", "%2e", ".")

func escape(name string) string   { return escapes.Replace(name) }
func unescape(name string) string { return unescapes.Replace(name) }

// Sweep removes the remains of killed commands, for bridges that do not exist. The caller holds the
// lock and is in the bridges' network namespace.
func (s *Store) Sweep(f Follower) error {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != patchDir && e.Name() != owedName && !s.Exists(unescape(e.Name())) {
			b := &Bridge{store: s, dir: filepath.Join(s.dir, e.Name())}
			if err := b.sweep(f); err != nil {
				return err
			}
		}
	}
	return nil
}

// Alive reports whether a port of some bridge of a network namespace has a device.
func Alive(cookie uint64) bool {
	s := &Store{dir: filepath.Join(Root, strconv.FormatUint(cookie, 10))}
	if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
		return false
	}
	return s.alive()
}

// RemoveAbandoned removes the bridges of namespaces that have ended: live returns false for the
// namespace's cookie, and no device of their ports is left anywhere.
func RemoveAbandoned(live func(cookie uint64) bool) error {
	root, err := mountRoot()
	if err != nil {
		return err
	}
	return removeAbandoned(root, live)
}

func removeAbandoned(root string, live func(cookie uint64) bool) error {
	entries, err := os.ReadDir(root)
	if err != nil {
		return err
	}
	ours, err := NetnsCookie()
	if err != nil {
		return err
	}
	seen := map[uint64]bool{ours: true}
	for _, e := range entries {
		// Next to the namespace's folder, or without it, there may be the folders of its locks.
		name, _, _ := strings.Cut(e.Name(), "%")
		cookie, err := strconv.ParseUint(name, 10, 64)
		if err != nil || seen[cookie] {
			continue
		}
		seen[cookie] = true
		s := &Store{dir: filepath.Join(root, name)}
		if s.alive() || live(cookie) {
			continue
		}
		unlock, err := s.Lock()
		if err != nil {
			return err
		}
		err = os.RemoveAll(s.dir)
		unlock()
		s.DevicesHeld()
		if err != nil {
			return err
		}
	}
	return nil
}

// alive reports whether any port of any bridge still has a device.
func (s *Store) alive() bool {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return !errors.Is(err, fs.ErrNotExist)
	}
	for _, e := range entries {
		b := &Bridge{store: s, dir: filepath.Join(s.dir, e.Name())}
		if b.alive() {
			return true
		}
	}
	return false
}
