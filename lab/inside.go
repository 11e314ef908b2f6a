// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/guests"
	"bascule/lab/instructions"
	"bascule/lab/report"
)

// A whole lab runs inside one virtual machine, with ends, fabrics and workloads: the host sends its
// options and receives the report. QEMU counts the machine's instructions, so the results depend
// only on the code, and not on the load of the host. Each group has a separate machine, so that no
// earlier measurement affects its figures, and no kernel module is loaded for another group.

// insideArgs start the lab's program as init process of such a machine.
var insideArgs = []string{"lab", "inside"}

// Size of the machine. Large tables use kernel memory.
const (
	insideMiB  = 3072
	insideJob  = "/job.json"
	insideSelf = "/usr/bin/bascule"
)

// insideLimit is the maximum run time of a machine: it detects a hang.
const insideLimit = 3 * time.Hour

// An inner is a message from a lab inside, a line of JSON.
type inner struct {
	told
	Report  *report.Report `json:"report,omitempty"`  // the last line
	Symbols string         `json:"symbols,omitempty"` // kallsyms, before the first measured part
	Frames  uint64         `json:"frames,omitempty"`  // of a measured part, at its end
	Failed  string         `json:"failed,omitempty"`  // the reason why there is no report
}

// RunInside measures what the options select inside virtual machines with a kernel, one machine for
// each group. An ends.Unavailable is the reason why there can be none.
func RunInside(ctx context.Context, site fabrics.Site, o Options, k guests.Kernel, progress *Progress) (*report.Report, error) {
	p, err := Select(o)
	if err != nil {
		return nil, err
	}
	version, err := guests.Version(ctx)
	if err != nil {
		return nil, err
	}
	begin := time.Now()
	r := &report.Report{Profile: p.Name, Started: begin.UTC().Truncate(time.Second), Fabrics: drawings(p.Groups), Complete: true}
	progress.begin(p)
	defer progress.end()
	for _, g := range p.Groups {
		got, err := groupInside(ctx, site, o, g, k, progress)
		if ctx.Err() != nil {
			r.Complete = false
			break
		}
		if err != nil {
			return nil, err
		}
		if got.Machine.Kernel != "" {
			r.Machine = got.Machine
			r.Machine.Counting = "QEMU " + version
		}
		r.Groups = append(r.Groups, got.Groups...)
		for _, g := range got.Groups {
			progress.group(g)
		}
	}
	r.Seconds = time.Since(begin).Seconds()
	r.Figures = figures(p.Targets, r.Groups)
	return r, nil
}

// groupInside measures one group of the options. An ends.Unavailable is the reason why there can be
// no machine; any other failure is the group's.
func groupInside(ctx context.Context, site fabrics.Site, o Options, g Group, k guests.Kernel, progress *Progress) (*report.Report, error) {
	o.Groups = []string{g.Name}
	progress.say(fmt.Sprintf("%s: starting a virtual machine", g.Name))
	var missing *ends.Unavailable
	var got *report.Report
	var err error
	if g.cards() {
		k, err = k.WithDrivers(ctx)
	}
	if err == nil {
		got, err = runInside(ctx, site, o, g, k, progress)
	}
	if errors.As(err, &missing) || ctx.Err() != nil {
		return nil, err
	}
	if err != nil {
		progress.note(fmt.Sprintf("%s: %v", g.Name, err))
		return failed(g, err), nil
	}
	return got, nil
}

// RunReproduced measures a profile of ReproduceInside for a study, or for all studies: the groups
// with Inside set in virtual machines with a kernel, after all others on this machine. The machines
// also measure the cases of claims about work again, in instructions. An ends.Unavailable, before
// any measurement, is the reason why there can be no machine.
func RunReproduced(ctx context.Context, site fabrics.Site, study string, quick bool, p Profile, k guests.Kernel, progress *Progress) (*report.Report, error) {
	version, err := guests.Version(ctx)
	if err != nil {
		return nil, err
	}
	here := p
	here.Groups = slices.DeleteFunc(slices.Clone(p.Groups), func(g Group) bool { return g.Inside })
	inside := slices.DeleteFunc(slices.Clone(p.Groups), func(g Group) bool { return !g.Inside })
	if slices.ContainsFunc(inside, Group.cards) {
		if _, err := k.WithDrivers(ctx); err != nil {
			return nil, err
		}
	}
	var again []Group
	for _, g := range here.Groups {
		if g = claimed(p.Claims, g); len(g.Cases) > 0 {
			again = append(again, g)
		}
	}
	all := p
	all.Groups = append(slices.Clone(p.Groups), again...)
	progress.begin(all)
	defer progress.end()
	r := runHere(ctx, site, here, progress)
	begin := time.Now()
	o := Options{Study: study, Quick: quick, Counting: true}
	for i, g := range append(inside, again...) {
		if ctx.Err() != nil {
			break
		}
		o.Claimed = i >= len(inside)
		got, err := groupInside(ctx, site, o, g, k, progress)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return nil, err
		}
		m := got.Machine
		m.Counting = "QEMU " + version
		for _, g := range got.Groups {
			if m.Kernel != "" {
				g.Machine = &m
			}
			if o.Claimed {
				r.Counted = append(r.Counted, g)
			} else {
				r.Groups = append(r.Groups, g)
			}
			progress.group(g)
		}
	}
	r.Complete = ctx.Err() == nil
	r.Seconds += time.Since(begin).Seconds()
	r.Fabrics = drawings(p.Groups)
	place := func(name string) int { return slices.IndexFunc(p.Groups, func(g Group) bool { return g.Name == name }) }
	slices.SortStableFunc(r.Groups, func(a, b *report.Group) int { return place(a.Name) - place(b.Name) })
	r.Claims, err = claims(p.Claims, r.Groups, r.Machine)
	if err == nil && len(r.Claims) > 0 {
		addCounted(r.Claims, p.Claims, r.Counted)
	}
	return r, err
}

// failed returns the report of a group that could not be measured.
func failed(g Group, err error) *report.Report {
	out := &report.Group{Name: g.Name, About: g.About, Rounds: g.Rounds}
	for _, c := range g.Cases {
		result := c.result()
		result.Error, result.Failed = err.Error(), 1
		out.Cases = append(out.Cases, result)
	}
	return &report.Report{Groups: []*report.Group{out}}
}

// runInside measures one group.
func runInside(ctx context.Context, site fabrics.Site, o Options, g Group, k guests.Kernel, progress *Progress) (*report.Report, error) {
	m, err := insideMachine(site, o, g, k)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, insideLimit, fmt.Errorf("it runs for longer than %v", insideLimit))
	defer cancel()
	var r *report.Report
	err = m.Run(ctx, func(from io.Reader) (err error) {
		r, err = hear(from, progress)
		return err
	}, io.Discard)
	if err != nil {
		return nil, err
	}
	if r == nil {
		return nil, errors.New("the virtual machine ended before its lab did")
	}
	return r, nil
}

// hear passes the messages of a lab inside to progress, and returns its report; nil if it has sent
// none.
func hear(from io.Reader, progress *Progress) (*report.Report, error) {
	dec := json.NewDecoder(from)
	for {
		var i inner
		if err := dec.Decode(&i); err == io.EOF {
			return nil, nil
		} else if err != nil {
			return nil, fmt.Errorf("what the lab inside says: %w", err)
		}
		switch {
		case i.Failed != "":
			return nil, fmt.Errorf("the lab inside: %s", i.Failed)
		case i.Report != nil:
			return i.Report, nil
		}
		progress.tell(i.told)
	}
}

// insideMachine returns a machine with everything that the fabrics and workloads of a group need.
func insideMachine(site fabrics.Site, o Options, g Group, k guests.Kernel) (guests.Machine, error) {
	job, err := json.Marshal(o)
	if err != nil {
		return guests.Machine{}, err
	}
	m := guests.Machine{
		Kernel: k, Init: site.Bascule, Args: insideArgs, CPUs: 1, MemoryMiB: insideMiB, Counting: true,
		// The lab itself needs these, whatever it measures.
		Programs: []string{"ip", "bridge"},
		Files:    map[string]string{},
		Texts:    map[string]string{insideJob: string(job)},
		Links:    map[string]string{insideSelf: "/init"},
		Modules:  []string{"veth"},
	}
	var wires []fabrics.CardWire
	for _, c := range g.Cases {
		wires = append(wires, c.Fabric.Wires...)
		for _, p := range slices.Concat(c.Fabric.Needs, c.Workload.Needs) {
			m.Programs = append(m.Programs, p.Command)
		}
		m.Optional = append(m.Optional, c.Fabric.Modules...)
		for _, file := range c.Fabric.Files {
			// The fabric reports a missing file.
			if _, err := os.Stat(file); err == nil {
				m.Files[file] = file
			}
		}
	}
	if len(wires) > 0 {
		m.Board, m.Devices = "q35", fabrics.CardWires(wires)
		m.Modules = append(m.Modules, fabrics.CardModules(wires)...)
	}
	return m, nil
}

// Inside is the init process of a machine for a lab: it runs the host's measurement, sends the
// results, and powers the machine off. It returns only if it is not process 1.
func Inside(ctx context.Context) error {
	if os.Getpid() != 1 {
		return guests.ErrNotFirst
	}
	out, err := guests.Begin()
	if err == nil {
		enc := json.NewEncoder(out)
		tell := func(i inner) {
			// An error means that the host no longer listens, which it reports itself.
			_ = enc.Encode(i)
		}
		var r *report.Report
		if r, err = inside(ctx, tell); err != nil {
			tell(inner{Failed: err.Error()})
		} else {
			tell(inner{Report: r})
		}
		err = errors.Join(err, out.Close())
	}
	// The last output on the console, which the lab quotes.
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
	return guests.End()
}

func inside(ctx context.Context, tell func(inner)) (*report.Report, error) {
	lo, err := netlink.LinkByName("lo")
	if err == nil {
		err = netlink.LinkSetUp(lo)
	}
	if err != nil {
		return nil, err
	}
	if err := instructions.Check(); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(insideJob)
	if err != nil {
		return nil, err
	}
	var o Options
	if err := json.Unmarshal(text, &o); err != nil {
		return nil, fmt.Errorf("%s: %w", insideJob, err)
	}
	p, err := Select(o)
	if err != nil {
		return nil, err
	}
	site := fabrics.Site{Bascule: insideSelf, Instructions: instructions.Count, Cards: true}
	if o.Functions {
		site.Part = parts(tell)
	}
	return Run(ctx, site, p, relayed(func(t told) {
		// The report has the groups.
		if t.Group == nil {
			tell(inner{told: t})
		}
	}))
}

// Pinned returns the kernel of a version, given as the beginning of its release; "" is the newest.
// It reports to progress if another one replaces it, because mirrors have removed it. An
// ends.Unavailable is the reason why there is none.
func Pinned(ctx context.Context, version string, progress *Progress) (guests.Kernel, error) {
	pin := guests.Newest()
	if version != "" {
		pins, err := guests.FindPins(version)
		if err != nil {
			return guests.Kernel{}, fmt.Errorf("%w; give one of %s", err, strings.Join(Kernels(), ", "))
		}
		pin = pins[len(pins)-1]
	}
	if pin.WithoutTCX {
		return guests.Kernel{}, &ends.Unavailable{Reason: fmt.Sprintf("Linux %s has no tcx; give one of %s", pin.Release, strings.Join(Kernels(), ", "))}
	}
	k, err := guests.FindKernel(ctx, pin)
	if err == nil && k.Release != pin.Release {
		progress.note(fmt.Sprintf("Linux %s is no more; in its place: %s", pin.Release, k.Release))
	}
	return k, err
}

// Kernels returns the versions that Pinned accepts.
func Kernels() []string {
	var out []string
	for _, p := range guests.Pins {
		if version, _, _ := strings.Cut(p.Release, "+"); !p.WithoutTCX {
			out = append(out, version)
		}
	}
	return out
}
