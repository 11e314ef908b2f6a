// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// Machine describes the machine of the lab. Unknown facts are empty.
func Machine(site fabrics.Site) report.Machine {
	m := report.Machine{
		Cores:       runtime.NumCPU(),
		Congestion:  ends.Congestion,
		Mitigations: map[string]string{},
		Versions:    map[string]string{},
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:]) + " " + unix.ByteSliceToString(u.Machine[:])
	}
	if text, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.CPU = field(string(text), "model name")
		if strings.Contains(field(string(text), "flags"), "hypervisor") {
			m.Hypervisor = "yes"
		}
	}
	if text, err := os.ReadFile("/proc/meminfo"); err == nil {
		kib, _, _ := strings.Cut(field(string(text), "MemTotal"), " ")
		if n, err := strconv.Atoi(kib); err == nil {
			m.MemoryMiB = n / 1024
		}
	}
	if text, err := os.ReadFile("/proc/loadavg"); err == nil {
		one, _, _ := strings.Cut(string(text), " ")
		m.Load, _ = strconv.ParseFloat(one, 64)
	}
	files, _ := filepath.Glob("/sys/devices/system/cpu/vulnerabilities/*")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil {
			if s := strings.TrimSpace(string(text)); s != "Not affected" {
				m.Mitigations[filepath.Base(f)] = s
			}
		}
	}
	for name, command := range map[string][]string{
		"iperf3":   {"iperf3", "--version"},
		"sockperf": {"sockperf", "--version"},
		"iproute2": {"ip", "-V"},
		"ovs":      {"ovs-vswitchd", "--version"},
		"nft":      {"nft", "--version"},
		"qemu":     {"qemu-system-x86_64", "--version"},
		"bascule":  {site.Bascule, "--version"},
	} {
		if v := firstLine(command); v != "" {
			m.Versions[name] = v
		}
	}
	return m
}

// field returns the value on the first line that begins with name and a colon.
func field(text, name string) string {
	for line := range strings.Lines(text) {
		key, value, ok := strings.Cut(line, ":")
		if ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// firstLine returns the first line of a program's output.
func firstLine(command []string) string {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
	if err != nil {
		return ""
	}
	line, _, _ := bytes.Cut(bytes.TrimSpace(out), []byte("\n"))
	return strings.TrimSpace(string(line))
}

// ticks is the CPU time since boot, in clock ticks, with the time of the reading.
type ticks struct {
	at       time.Time
	all      coreTicks
	cores    []coreTicks
	switches float64 // context switches
}

// coreTicks is the time of one CPU, or of all of them.
type coreTicks struct {
	user, system, softirq, idle, steal float64
}

// hz is the number of ticks in a second: USER_HZ, the same on every Linux machine that bascule
// supports.
const hz = 100

// cpuTime reads /proc/stat. Virtual machines are running programs of the lab.
func cpuTime() (ticks, error) {
	text, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}, err
	}
	t, err := parseStat(string(text))
	if err != nil {
		return t, err
	}
	t.at = time.Now()
	return t, nil
}

// othersTime returns the time, in clock ticks, of all programs except the lab and its children. It
// includes ended children of these programs. It excludes the kernel's own threads, because their
// work may be for the lab.
func othersTime() float64 {
	ours := map[int]bool{os.Getpid(): true}
	for _, pid := range children(os.Getpid()) {
		ours[pid] = true
	}
	sum := 0.0
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && !ours[pid] {
			sum += processTime(pid)
		}
	}
	return sum
}

// children returns the running children of a process (CONFIG_PROC_CHILDREN).
func children(pid int) []int {
	var out []int
	lists, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, l := range lists {
		// A thread may have ended meanwhile.
		text, _ := os.ReadFile(l)
		for f := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(f); err == nil {
				out = append(append(out, child), children(child)...)
			}
		}
	}
	return out
}

// processTime returns the time of a process and its ended children, in clock ticks; 0 if it has
// ended or is a kernel thread.
func processTime(pid int) float64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	// The name, in brackets, may contain any character; field 3 follows it. The flags are field
	// 9, and utime, stime, cutime and cstime are fields 14 to 17 (proc(5)).
	f := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(f) < 15 {
		return 0
	}
	const kernelThread = 0x00200000 // PF_KTHREAD of include/linux/sched.h
	if flags, err := strconv.ParseUint(f[6], 10, 64); err != nil || flags&kernelThread != 0 {
		return 0
	}
	sum := 0.0
	for _, field := range f[11:15] {
		n, _ := strconv.ParseFloat(field, 64)
		sum += n
	}
	return sum
}

// parseStat parses the lines of the CPUs (user, nice, system, idle, iowait, irq, softirq, steal)
// and of the context switches (proc(5)).
func parseStat(text string) (t ticks, err error) {
	if !strings.HasPrefix(text, "cpu ") {
		return t, errors.New("/proc/stat does not begin with the times of all CPUs")
	}
	for line := range strings.Lines(text) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && f[0] == "ctxt":
			if t.switches, err = strconv.ParseFloat(f[1], 64); err != nil {
				return t, fmt.Errorf("/proc/stat: %w", err)
			}
		case len(f) > 0 && strings.HasPrefix(f[0], "cpu"):
			if len(f) < 9 {
				return t, fmt.Errorf("/proc/stat: %q has no times in it", strings.TrimSpace(line))
			}
			var n [8]float64
			for i := range n {
				if n[i], err = strconv.ParseFloat(f[i+1], 64); err != nil {
					return t, fmt.Errorf("/proc/stat: %w", err)
				}
			}
			c := coreTicks{user: n[0] + n[1], system: n[2], idle: n[3] + n[4], softirq: n[5] + n[6], steal: n[7]}
			if f[0] == "cpu" {
				t.all = c
			} else {
				t.cores = append(t.cores, c)
			}
		}
	}
	return t, nil
}

// since adds the machine's work between two readings to a sample.
func (t ticks) since(before ticks, s *report.Sample) {
	s.Seconds = t.at.Sub(before.at).Seconds()
	n := s.Seconds * hz
	if n <= 0 {
		return
	}
	s.CPU = t.all.since(before.all, n)
	// If a core appeared or disappeared meanwhile, the cores cannot be compared.
	if len(t.cores) == len(before.cores) {
		for i, c := range t.cores {
			s.Cores = append(s.Cores, c.since(before.cores[i], n))
		}
	}
	s.Switches = (t.switches - before.switches) / s.Seconds
}

// since returns how many CPUs were busy with each kind of work during n ticks.
func (c coreTicks) since(before coreTicks, n float64) report.CPU {
	return report.CPU{
		User:    (c.user - before.user) / n,
		System:  (c.system - before.system) / n,
		Softirq: (c.softirq - before.softirq) / n,
		Idle:    (c.idle - before.idle) / n,
		Steal:   (c.steal - before.steal) / n,
	}
}
