// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"bascule/datapath"
	"bascule/pf"
)

// Force permits limits without regard to free memory, and ports whose devices have others above
// them.
func (s *Switch) Force() { s.force = true }

// Restoring marks the following changes as a restoration, until the returned function is called:
// limits may take the memory that they had before, and two host ports may have the same MAC address
// again.
func (s *Switch) Restoring() (done func()) {
	s.restores = true
	return func() { s.restores = false }
}

// memoryPart is the divisor of free memory: limits may take one part in memoryPart.
const memoryPart = 4

// A demand is the present value of a limit, and the former one.
type demand struct {
	name     string // as users write it
	was, now uint32
	least    uint32              // default value; it is never refused
	memory   func(uint32) uint64 // memory of a table with this limit, in bytes
	taken    uint64              // memory of the former value, in bytes, if it depends on the rules; else 0
}

// rises reports whether a limit needs more memory than before.
func (d *demand) rises() bool {
	return d.now > d.least && (d.now > d.was || d.taken != 0 && d.memory(d.now) > d.taken)
}

// maxLimit is the highest limit that a table can have. Its entries are numbered in 32
// bits, and a hash map has a list for each entry, rounded up to the next power of two.
const maxLimit = 1 << 31

// demands returns the limits of a change that determine the size of a table.
func (c *draft) demands() []demand {
	was := &c.bridge.Config
	list := []demand{fdbDemand(was.FdbMax, c.next.FdbMax)}
	if ring := c.next.CaptureRing; c.tables.Filter != nil {
		list = append(list, demand{name: "--buffer", now: ring, least: DefaultCaptureBuffer, memory: func(n uint32) uint64 { return uint64(n) }})
	}
	if p := c.tables.PF; p != nil && p.Program != nil {
		list = append(list, pfDemands(was, p.Program, [pf.LimitCount]uint32{
			pf.LimitStates: p.StatesMax, pf.LimitSrcNodes: p.NodesMax, pf.LimitFrags: p.FragmentsMax, pf.LimitTableEntries: p.TableEntries,
		})...)
	}
	return list
}

func fdbDemand(was, now uint32) demand {
	return demand{name: "fdb-max", was: was, now: now, least: defaultFDBMax, memory: datapath.FDBMemory}
}

// pfDemands returns the limits of pf with the rules of a program. was has their former values.
func pfDemands(was *datapath.Config, p *pf.Program, limits [pf.LimitCount]uint32) (list []demand) {
	least := pf.DefaultLimits()
	states := func(n uint32) uint64 { return datapath.StatesMemory(n, p) }
	for _, l := range []struct {
		limit  pf.LimitName
		was    uint32
		memory func(uint32) uint64
		taken  uint64
	}{
		{pf.LimitStates, was.Pf.StatesMax, states, datapath.StatesMemoryOf(was)},
		{pf.LimitSrcNodes, was.Pf.NodesMax, datapath.SourcesMemory, 0},
		{pf.LimitFrags, was.Pf.FragmentsMax, datapath.FragmentsMemory, 0},
		{pf.LimitTableEntries, was.Pf.TableEntries, datapath.AddressesMemory, 0},
	} {
		list = append(list, demand{
			name: "set limit " + l.limit.String(), was: l.was, now: limits[l.limit], least: least[l.limit],
			memory: l.memory, taken: l.taken,
		})
	}
	return list
}

// checkMemory refuses raised limits that leave too little free memory. Their tables take memory at
// once, and keep it until the limits are lowered.
func (s *Switch) checkMemory(what string, list []demand) error {
	var all, most uint64
	var largest demand
	for _, d := range list {
		if !d.rises() {
			continue
		}
		if s.force || s.restores {
			if d.now > maxLimit {
				return refused(what, fmt.Sprintf("%s %d is more than a table can have", d.name, d.now), fmt.Sprintf("give %d at most", maxLimit))
			}
			continue
		}
		n := d.memory(d.now)
		if all += n; n > most {
			most, largest = n, d
		}
	}
	if all == 0 {
		return nil
	}
	free, err := s.freeMemory()
	if err != nil {
		return failed(what, err)
	}
	if all <= free/memoryPart {
		return nil
	}
	others := ""
	if all > most {
		others = fmt.Sprintf(", %s with the other limits", inUnits(all))
	}
	return refused(what, fmt.Sprintf("%s %d would take %s of memory%s, and %s are free, of which limits may take a quarter",
		largest.name, largest.now, inUnits(most), others, inUnits(free)), "give a lower limit, or --force")
}

// inUnits formats a number of bytes for people.
func inUnits(n uint64) string {
	value, unit := float64(n), 0
	units := []string{"bytes", "KiB", "MiB", "GiB", "TiB"}
	for value >= 1024 && unit < len(units)-1 {
		value, unit = value/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d bytes", n)
	}
	return fmt.Sprintf("%.1f %s", value, units[unit])
}

// freeMemory returns the number of free bytes of memory.
func (s *Switch) freeMemory() (uint64, error) {
	if s.free != nil {
		return s.free()
	}
	return freeMemory("/")
}

// freeMemory returns the number of bytes of memory that are available without taking any from other
// processes: the memory that the kernel reports as available (proc_meminfo(5)), or the room in the
// process's control groups if that is less. The files are below root.
func freeMemory(root string) (uint64, error) {
	available, ok := fieldOf(filepath.Join(root, "proc/meminfo"), "MemAvailable:")
	if !ok {
		return 0, fmt.Errorf("%s does not say what memory is available", filepath.Join(root, "proc/meminfo"))
	}
	free := available * 1024
	f, err := os.Open(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return free, nil // the kernel has no control groups
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		words := strings.SplitN(lines.Text(), ":", 3) // ID:CONTROLLERS:PATH
		if len(words) != 3 {
			continue
		}
		top, most, now, cache := "sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"
		switch {
		case words[0] == "0" && words[1] == "": // cgroup v2
		case hasWord(words[1], "memory"):
			top, most, now, cache = "sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
		default:
			continue
		}
		top = filepath.Join(root, top)
		// each group above has its own limit
		for dir := filepath.Join(top, words[2]); strings.HasPrefix(dir, top); dir = filepath.Dir(dir) {
			limit, ok1 := numberIn(filepath.Join(dir, most))
			used, ok2 := numberIn(filepath.Join(dir, now))
			if !ok1 || !ok2 {
				continue // the group has no limit, or is the top
			}
			files, _ := fieldOf(filepath.Join(dir, "memory.stat"), cache) // reclaimable pages
			used -= min(files, used)
			free = min(free, limit-min(used, limit))
		}
	}
	return free, nil
}

func hasWord(list, word string) bool {
	for w := range strings.SplitSeq(list, ",") {
		if w == word {
			return true
		}
	}
	return false
}

// numberIn returns the number in a file, or false if there is none.
func numberIn(path string) (uint64, bool) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}

// fieldOf returns the number after a word in a file.
func fieldOf(path, name string) (uint64, bool) {
	f, err := os.Open(path)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if words := strings.Fields(lines.Text()); len(words) > 1 && words[0] == name {
			n, err := strconv.ParseUint(words[1], 10, 64)
			return n, err == nil
		}
	}
	return 0, false
}

// shrink frees memory that a bridge's limits no longer require.
func (s *Switch) shrink(store *datapath.Store, b *datapath.Bridge, name string) error {
	what := "give back memory of bridge " + name
	if over, err := b.Oversized(); err != nil || !over {
		return failed(what, err)
	}
	b, err := open(store, what, name) // including the devices in berths
	if err != nil {
		return err
	}
	c := newDraft(b)
	c.reload = true
	if b.PFLoaded() {
		if c.pf, err = readPF(b); err != nil {
			return failed(what, err)
		}
	}
	if err := c.planTables(what); err != nil {
		return err
	}
	return c.make(what)
}
