// SPDX-License-Identifier: BSD-2-Clause

package machines

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/guests"
)

// A step is a program that runs in the guest.
type step struct {
	Name string
	Args []string // starts with the program's path
	Env  []string
}

// stepTime limits the time of a step. It ends a step that hangs, on a machine that is a hundred times slower.
const stepTime = 20 * time.Minute

// A job is the work of a guest.
type job struct {
	Steps    []step
	Together int // the number of steps that may run at the same time
}

// jobFile is the path of the job in the guest.
const jobFile = "/job.json"

// An ended is the guest's report of a step, as a line of JSON.
type ended struct {
	Name    string
	Status  int     // exit status of the program; above 128: ended by a signal
	Seconds float64 // duration
	Output  string
	Failed  string  // why the guest could not continue; the other fields are empty
	Clock   float64 // if the guest has given up: the factor by which its clock is too fast
}

// guest is the first process of a virtual machine. It runs the steps, and reports to the host how each ended. Then it
// switches the machine off.
func guest() error {
	out, err := guests.Begin()
	if err == nil {
		tell := json.NewEncoder(out)
		var fast float64
		if err = prepare(); err == nil {
			fast, err = tooFast()
		}
		switch {
		case err != nil:
		case fast != 0:
			err = tell.Encode(ended{Clock: fast})
		default:
			err = steps(tell)
		}
		if err != nil {
			err = errors.Join(err, tell.Encode(ended{Failed: err.Error()}))
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return errors.Join(err, guests.End())
}

// tooFast compares the kernel's clock with the machine's clock, which is the host's. An emulated kernel on a busy
// machine may measure a wrong frequency as it boots, and its time limits mean nothing then. It returns the factor by
// which the clock is too fast or too slow, or 0 if the clock is right.
func tooFast() (float64, error) {
	f, err := os.Open("/dev/rtc0")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	tick := func() error {
		from, err := unix.IoctlGetRTCTime(int(f.Fd()))
		for now := from; err == nil && now.Sec == from.Sec; time.Sleep(time.Millisecond) {
			now, err = unix.IoctlGetRTCTime(int(f.Fd()))
		}
		return err
	}
	if err := tick(); err != nil {
		return 0, err
	}
	const seconds = 2
	begun := time.Now()
	for range seconds {
		if err := tick(); err != nil {
			return 0, err
		}
	}
	// A pause of the virtual machine makes less of a difference.
	if factor := time.Since(begun).Seconds() / seconds; factor < 0.5 || factor > 2 {
		return factor, nil
	}
	return 0, nil
}

// Users that programs look up. tcpdump changes to its own user.
const (
	users = `root:x:0:0::/:/bin/sh
tcpdump:x:100:100::/:/bin/sh
nobody:x:65534:65534::/:/bin/sh
`
	groups = `root:x:0:
tcpdump:x:100:
nogroup:x:65534:
`
)

// prepare sets up the machine as programs expect it.
func prepare() error {
	for _, m := range []struct{ kind, at string }{
		{"bpf", "/sys/fs/bpf"}, {"cgroup2", "/sys/fs/cgroup"}, {"devpts", "/dev/pts"},
	} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.kind, m.at, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.at, err)
		}
	}
	// A shell uses it for <(...).
	if err := os.Symlink("/proc/self/fd", "/dev/fd"); err != nil {
		return err
	}
	if err := os.MkdirAll("/etc", 0o755); err != nil {
		return err
	}
	for name, text := range map[string]string{"/etc/passwd": users, "/etc/group": groups} {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			return err
		}
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

func steps(tell *json.Encoder) error {
	text, err := os.ReadFile(jobFile)
	if err != nil {
		return err
	}
	var j job
	if err := json.Unmarshal(text, &j); err != nil {
		return fmt.Errorf("%s: %w", jobFile, err)
	}
	r := &runner{}
	for len(j.Steps) > 0 || len(r.running) > 0 {
		if len(j.Steps) > 0 && len(r.running) < j.Together {
			if err := r.start(j.Steps[0]); err != nil {
				return fmt.Errorf("%s: %w", j.Steps[0].Name, err)
			}
			j.Steps = j.Steps[1:]
			continue
		}
		done, err := r.wait()
		if err == nil {
			err = tell.Encode(done)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// A runner runs steps, and reaps all other processes that end meanwhile: the first process of a machine inherits the
// orphans.
type runner struct {
	running map[int]*running // by process ID
}

type running struct {
	step
	output *os.File
	begun  time.Time
	limit  *time.Timer
}

func (r *runner) start(s step) error {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	output, err := os.CreateTemp("", "output-")
	if err != nil {
		return err
	}
	p, err := os.StartProcess(s.Args[0], s.Args, &os.ProcAttr{
		Dir: "/tmp", Env: append(os.Environ(), s.Env...), Files: []*os.File{null, output, output},
	})
	if err != nil {
		return err
	}
	pid := p.Pid
	if r.running == nil {
		r.running = map[int]*running{}
	}
	// On SIGQUIT a test prints where it hangs.
	r.running[pid] = &running{s, output, time.Now(), time.AfterFunc(stepTime, func() { _ = unix.Kill(pid, unix.SIGQUIT) })}
	return p.Release()
}

// wait waits for the next step that ends, and returns it.
func (r *runner) wait() (done ended, err error) {
	for {
		var w unix.WaitStatus
		pid, err := unix.Wait4(-1, &w, 0, nil)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return ended{}, err
		}
		s := r.running[pid]
		if s == nil {
			continue
		}
		s.limit.Stop()
		delete(r.running, pid)
		text, err := os.ReadFile(s.output.Name())
		status := w.ExitStatus()
		if w.Signaled() {
			status = 128 + int(w.Signal())
		}
		done := ended{Name: s.Name, Status: status, Seconds: time.Since(s.begun).Seconds(), Output: string(text)}
		return done, errors.Join(err, s.output.Close(), os.Remove(s.output.Name()))
	}
}
