// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// forCaller begins the argument that passes the caller to the helper's separate process.
const forCaller = "--for="

// String returns the argument after forCaller: a user and groups, as "1000:1000,7".
func (c Caller) String() string {
	groups := make([]string, len(c.Groups))
	for i, g := range c.Groups {
		groups[i] = strconv.Itoa(g)
	}
	return strconv.Itoa(c.UID) + ":" + strings.Join(groups, ",")
}

func parseCaller(text string) (c Caller, err error) {
	uid, groups, ok := strings.Cut(text, ":")
	if !ok {
		return c, errUsage
	}
	if c.UID, err = strconv.Atoi(uid); err != nil {
		return c, errUsage
	}
	for _, g := range strings.Split(groups, ",") {
		n, err := strconv.Atoi(g)
		if err != nil {
			return c, errUsage
		}
		c.Groups = append(c.Groups, n)
	}
	return c, nil
}

// apart executes a caller's request in a separate process, and waits for it. The caller can stop the
// program that it has started in several ways, even if the program is setuid: with a signal, since
// the program keeps the caller's real uid; from the terminal of its session; with the freezer of the
// caller's cgroup; with inherited limits, priority and CPU affinity. If the program stopped while it
// holds the lock of the namespace, all other changes to bridges would block. So the process that
// takes the lock shares only the socket with the caller. It does not stop with this process, and
// ends by itself.
func apart(r request, who Caller, stderr io.Writer) (exit int, err error) {
	if err := unlimited(); err != nil {
		return 0, err
	}
	words := []string{forCaller + who.String(), "--fd=3", "--br=" + r.bridge}
	if r.vnet {
		words = append(words, "--use-vnet")
	}
	cmd := exec.Command("/proc/self/exe", words...)
	cmd.Args[0] = "bascule-bridge-helper"
	cmd.Dir = "/"
	cmd.Env = []string{}
	cmd.Stderr = struct{ io.Writer }{stderr} // through a pipe: the caller's terminal may block
	cmd.ExtraFiles = []*os.File{os.NewFile(uintptr(r.fd), "socket")}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Credential: &syscall.Credential{}}
	err = cmd.Run()
	if ended := new(exec.ExitError); errors.As(err, &ended) && ended.Exited() {
		return ended.ExitCode(), nil
	}
	return 0, err
}

// unlimited removes the caller's limits from this thread, and therefore from processes that it
// starts. If root lacks CAP_SYS_RESOURCE, hard limits stay: they can end a process, but this
// releases its lock.
func unlimited() error {
	for _, resource := range []int{
		unix.RLIMIT_CPU, unix.RLIMIT_FSIZE, unix.RLIMIT_DATA, unix.RLIMIT_AS, unix.RLIMIT_RSS, unix.RLIMIT_MEMLOCK,
		unix.RLIMIT_NPROC, unix.RLIMIT_LOCKS, unix.RLIMIT_RTTIME, unix.RLIMIT_SIGPENDING, unix.RLIMIT_NOFILE,
	} {
		most := uint64(unix.RLIM_INFINITY)
		if resource == unix.RLIMIT_NOFILE {
			most = 1 << 16 // the kernel enforces its own limit
		}
		err := unix.Prlimit(0, resource, &unix.Rlimit{Cur: most, Max: most}, nil)
		if errors.Is(err, unix.EPERM) {
			var has unix.Rlimit
			if err = unix.Prlimit(0, resource, nil, &has); err == nil {
				err = unix.Prlimit(0, resource, &unix.Rlimit{Cur: has.Max, Max: has.Max}, nil)
			}
		}
		if err != nil {
			return fmt.Errorf("cannot leave the caller's limits: prlimit: %w", err)
		}
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Policy: unix.SCHED_NORMAL}, 0); err != nil {
		return fmt.Errorf("cannot leave the caller's priority: %w", err)
	}
	const process, none = 1, 0 // IOPRIO_WHO_PROCESS and IOPRIO_CLASS_NONE of linux/ioprio.h
	if _, _, errno := unix.Syscall(unix.SYS_IOPRIO_SET, process, 0, none); errno != 0 && errno != unix.ENOSYS {
		return fmt.Errorf("cannot leave the caller's priority: ioprio_set: %w", errno)
	}
	var all unix.CPUSet
	for i := range int(unsafe.Sizeof(all)) * 8 {
		all.Set(i)
	}
	if err := unix.SchedSetaffinity(0, &all); err != nil {
		return fmt.Errorf("cannot leave the caller's CPUs: %w", err)
	}
	unix.Umask(0o022)
	return nil
}

// A hierarchy is a cgroup hierarchy, with its mount point on this machine.
type hierarchy struct{ controllers, mount, root string }

// leaveCgroups moves this process out of the caller's cgroups, where others could freeze it or use
// up its CPU time. It moves to the cgroups of process 1.
func leaveCgroups() error {
	own, err := cgroups("/proc/self/cgroup")
	if err != nil {
		return err
	}
	first, err := cgroups("/proc/1/cgroup")
	if err != nil {
		return err
	}
	mounts, err := hierarchies()
	if err != nil {
		return err
	}
	for controllers, path := range own {
		if path == first[controllers] {
			continue
		}
		h, ok := mounts[controllers]
		if !ok {
			return fmt.Errorf("cannot leave the caller's cgroup %s: its hierarchy %q is not mounted; mount it below /sys/fs/cgroup", path, controllers)
		}
		to := h.place(first[controllers])
		if to == "" {
			return fmt.Errorf("cannot leave the caller's cgroup %s: %s does not have %s; mount all of the hierarchy there", path, h.mount, first[controllers])
		}
		if err := os.WriteFile(filepath.Join(to, "cgroup.procs"), []byte("0"), 0); err != nil {
			return fmt.Errorf("cannot leave the caller's cgroup: %w", err)
		}
	}
	return nil
}

// place returns the folder of a cgroup, "" if the mount does not contain it.
func (h hierarchy) place(path string) string {
	below, ok := strings.CutPrefix(path, strings.TrimSuffix(h.root, "/"))
	if !ok || below != "" && below[0] != '/' {
		return ""
	}
	return filepath.Join(h.mount, below)
}

// cgroups returns the cgroups of a process by hierarchy (cgroups(7)); "" is the key for version 2.
func cgroups(path string) (map[string]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("cannot tell whose cgroup this is: %w", err)
	}
	list := map[string]string{}
	for line := range strings.Lines(string(text)) {
		if words := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3); len(words) == 3 {
			list[words[1]] = words[2]
		}
	}
	return list, nil
}

// hierarchies returns the mounted cgroup hierarchies (proc_pid_mountinfo(5)).
func hierarchies() (map[string]hierarchy, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("cannot tell where cgroups are: %w", err)
	}
	defer f.Close()
	list := map[string]hierarchy{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		before, behind, _ := strings.Cut(lines.Text(), " - ")
		at, kind := strings.Fields(before), strings.Fields(behind)
		if len(at) < 5 || len(kind) < 3 {
			continue
		}
		h := hierarchy{mount: at[4], root: at[3]}
		switch kind[0] {
		case "cgroup2":
		case "cgroup":
			h.controllers = controllersOf(kind[2])
		default:
			continue
		}
		if _, ok := list[h.controllers]; !ok {
			list[h.controllers] = h
		}
	}
	return list, lines.Err()
}

// controllersOf returns the name of a hierarchy in /proc/PID/cgroup from the options of its mount.
func controllersOf(options string) string {
	var list []string
	for o := range strings.SplitSeq(options, ",") {
		if o != "rw" && o != "ro" && o != "xattr" && o != "noprefix" && o != "clone_children" && !strings.HasPrefix(o, "release_agent=") {
			list = append(list, o)
		}
	}
	return strings.Join(list, ",")
}
