// SPDX-License-Identifier: BSD-2-Clause

package soak

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"bascule/test/netlab"
)

// An account has everything that must be the same each time that the switch is in the base
// state: by name, with a number or a value.
type account map[string]string

func (a account) count(name string) {
	n, _ := strconv.Atoi(a[name])
	a[name] = strconv.Itoa(n + 1)
}

// differences returns the lines in which two accounts differ.
func (a account) differences(now account) (lines []string) {
	names := account{}
	maps.Copy(names, a)
	maps.Copy(names, now)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if a[name] != now[name] {
			lines = append(lines, fmt.Sprintf("%s: was %q, is %q", name, a[name], now[name]))
		}
	}
	return lines
}

// numbers are patterns of names that contain a changing number.
var numbers = []struct {
	is   *regexp.Regexp
	name string
}{
	{regexp.MustCompile(`gen-[0-9]+`), "gen-N"},
	{regexp.MustCompile(`/link/[0-9]+`), "/link/N"},
	{regexp.MustCompile(`\bbsc[0-9a-f]{8}\b`), "bsc*"},
	{regexp.MustCompile(`(socket|pipe):\[[0-9]+\]`), "$1"},
}

func plain(name string) string {
	for _, n := range numbers {
		name = n.is.ReplaceAllString(name, n.name)
	}
	return name
}

// account takes stock of the present state. Delayed work of the kernel may be missing, or
// counted.
func (s *soak) account() (account, error) {
	a := account{}
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.agent.Process.Pid))
	if err != nil {
		return nil, err
	}
	for _, fd := range fds {
		to, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/%s", s.agent.Process.Pid, fd.Name()))
		if err == nil {
			a.count("descriptor of the agent: " + plain(to))
		}
	}
	cookie, err := s.lab.Switch.Cookie()
	if err != nil {
		return nil, err
	}
	for what, dir := range map[string]string{"pin": filepath.Join("/run/bascule", strconv.FormatUint(cookie, 10)), "file": s.dir} {
		err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) {
				return nil // the process ended after its folder was read
			}
			if err != nil {
				return err
			}
			a.count(what + " " + plain(strings.TrimPrefix(path, dir)))
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	if err := s.objects(a); err != nil {
		return nil, err
	}
	var links []netlink.Link
	for again := true; again; again = errors.Is(err, netlink.ErrDumpInterrupted) {
		links, err = s.lab.Switch.Netlink().LinkList()
	}
	if err != nil {
		return nil, err
	}
	for _, l := range links {
		at := l.Attrs()
		xdp := at.Xdp != nil && at.Xdp.Attached
		a["device "+plain(at.Name)] = fmt.Sprintf("promiscuous %d, all multicast %d, MTU %d, XDP %v", at.Promisc, at.Allmulti, at.MTU, xdp)
	}
	for _, e := range s.lab.Ends {
		for f, on := range e.Features() {
			if on {
				a["features of "+e.Ifname] += f + " "
			}
		}
		words := strings.Fields(a["features of "+e.Ifname])
		slices.Sort(words)
		a["features of "+e.Ifname] = strings.Join(words, " ")
	}
	for what, args := range map[string][]string{
		"state":          {"export"},
		"learned in br0": {"-j", "fdb", "show", "br0", "--dynamic"},
		"states of pf":   {"pfctl", "-b", "br0", "-s", "states"},
		"tables of pf":   {"pfctl", "-b", "br0", "-s", "Tables"},
		"anchors of pf":  {"pfctl", "-b", "br0", "-s", "Anchors"},
		"mirrors":        {"span", "show"},
	} {
		r, err := s.lab.Run(args...)
		if err != nil {
			return nil, err
		}
		if r.Exit != 0 {
			return nil, fmt.Errorf("%v", r)
		}
		a[what] = r.Stdout
	}
	for _, name := range bridges {
		var list []netlab.BridgeInfo
		s.lab.JSON(&list, "bridge", "show", name)
		a["count of learned addresses in "+name] = strconv.Itoa(list[0].FDBCount)
		for _, p := range s.lab.Ports(name) {
			a["count of learned addresses of port "+p.Ifname] = strconv.Itoa(p.FDBCount)
		}
	}
	return a, nil
}

// rcu_expedited, a switch of the whole machine, makes the kernel hurry. bascule sets it while
// the folder exists.
const (
	hurrySwitch = "/sys/kernel/rcu_expedited"
	hurryFolder = "/run/bascule/%hurry"
	hurryMark   = "47708" // the value that bascule sets
)

func (s *soak) hurry() string {
	s.t.Helper()
	text, err := os.ReadFile(hurrySwitch)
	s.must(err)
	return strings.TrimSpace(string(text))
}

// calmly returns the switch's value while bascule does not hurry the kernel, and 0 while it
// does: it hurries only if the switch was off.
func (s *soak) calmly() string {
	s.t.Helper()
	_, before := os.Stat(hurryFolder)
	is := s.hurry()
	_, after := os.Stat(hurryFolder)
	if before == nil || after == nil || is == hurryMark {
		return "0"
	}
	return is
}

// objects counts the BPF objects of the switch, and the kernel memory of its maps. This
// includes objects without a pin that programs hold.
func (s *soak) objects(a account) error {
	o, err := s.lab.Objects()
	if err != nil {
		return err
	}
	for id := range o.Programs {
		p, err := ebpf.NewProgramFromID(id)
		if err != nil {
			continue // closed in the meantime
		}
		info, err := p.Info()
		p.Close()
		if err != nil {
			return err
		}
		used, _ := info.MapIDs()
		for _, id := range used {
			o.Maps[id] = true
		}
		a.count("programs " + info.Name)
	}
	var memory uint64
	for id := range o.Maps {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			continue
		}
		info, err := m.Info()
		m.Close()
		if err != nil {
			return err
		}
		n, _ := info.Memlock()
		memory += n
		a.count("maps " + info.Name)
	}
	a["links"] = strconv.Itoa(len(o.Links))
	a["memory of maps"] = strconv.FormatUint(memory, 10)
	return nil
}

// resident returns the agent's memory in bytes.
func (s *soak) resident() (int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.agent.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			n, err := strconv.Atoi(strings.Fields(value)[0])
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("process %d has no VmRSS", s.agent.Process.Pid)
}
