// SPDX-License-Identifier: BSD-2-Clause

// Program exact compares the number of a frame's instructions with the record: on the plain
// paths, with VLAN filtering, and past pf's rules, in a virtual machine whose instructions are
// counted. `make test-exact` runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bascule/lab"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/guests"
	"bascule/lab/report"
)

// group is the group of the profile exact whose figures are recorded. cable is the fabric whose
// cost is subtracted from the other costs.
const (
	group = "short"
	cable = "direct"
)

// tolerance is the relative increase of a recorded cost that is allowed.
const tolerance = 0.01

func main() {
	var o options
	flag.StringVar(&o.kernel, "kernel", "", "the kernel whose `release` begins so, instead of the newest")
	flag.StringVar(&o.golden, "golden", "test/exact/golden.json", "`file` with what was recorded")
	flag.BoolVar(&o.record, "record", false, "record what is measured")
	flag.BoolVar(&o.lenient, "untested-ok", false, "succeed where no kernel can be had")
	flag.StringVar(&o.functions, "functions", "", "print the functions of a frame through these `fabrics`, a list with commas, instead")
	flag.StringVar(&o.workload, "workload", "one-by-one:behind", "for -functions, the `workload` that sends the frames")
	flag.Parse()
	// QEMU ends with this process; a signal ends both in order.
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	act := run
	if o.functions != "" {
		act = functions
	}
	if err := act(ctx, o, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "exact:", err)
		os.Exit(1)
	}
}

type options struct {
	kernel, golden      string
	record, lenient     bool
	functions, workload string
}

func run(ctx context.Context, o options, w io.Writer) error {
	r, k, err := measure(ctx, o.kernel)
	var missing *ends.Unavailable
	if errors.As(err, &missing) {
		fmt.Fprintf(w, "untested: %v\n", missing)
		if o.lenient {
			return nil
		}
		return errors.New("no machine counts instructions")
	}
	if err != nil {
		return err
	}
	g := r.Groups[0]
	for _, c := range g.Cases {
		if len(c.Samples) == 0 {
			return fmt.Errorf("cannot measure %s: %s%s", c.Label, c.Error, c.Skipped)
		}
	}
	recorded, err := read(o.golden)
	if err != nil {
		return err
	}
	now := golden{QEMU: strings.TrimPrefix(r.Machine.Counting, "QEMU "), Costs: costs(g)}
	if o.record {
		recorded[k.Release] = now
		fmt.Fprint(w, now.table(golden{}))
		return recorded.write(o.golden)
	}
	before, ok := recorded[k.Release]
	switch {
	case !ok:
		fmt.Fprintf(w, "%snothing is recorded for Linux %s: it is compared with nothing\n", now.table(golden{}), k.Release)
		return nil
	case series(before.QEMU) != series(now.QEMU):
		fmt.Fprintf(w, "%swhat is recorded is of QEMU %s, and this is %s: it is compared with nothing\n", now.table(golden{}), before.QEMU, now.QEMU)
		return nil
	}
	fmt.Fprint(w, now.table(before))
	return now.judge(before)
}

// measure runs the group in a virtual machine. An ends.Unavailable is the reason why there is
// none.
func measure(ctx context.Context, kernel string) (*report.Report, guests.Kernel, error) {
	progress := lab.NewProgress(os.Stderr)
	k, err := lab.Pinned(ctx, kernel, progress)
	if err != nil {
		return nil, k, err
	}
	dir, err := os.MkdirTemp("", "bascule-exact-")
	if err != nil {
		return nil, k, err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "bascule")
	if err := build(ctx, program); err != nil {
		return nil, k, err
	}
	o := lab.Options{Profile: "exact", Groups: []string{group}, Counting: true}
	r, err := lab.RunInside(ctx, fabrics.Site{Bascule: program}, o, k, progress)
	if err == nil && !r.Complete {
		err = ctx.Err()
	}
	return r, k, err
}

// build builds the measured program.
func build(ctx context.Context, program string) error {
	cmd := ends.Command(ctx, "go", "build", "-o", program, "bascule/cmd/bascule")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, out)
	}
	return nil
}

// A golden is the recorded cost of frames on a kernel.
type golden struct {
	// QEMU is its version. Another version may emulate another processor, for which the
	// kernel chooses other instructions.
	QEMU string `json:"qemu"`
	// Costs are the instructions of a frame beyond the cable's, by case.
	Costs map[string]float64 `json:"instructions"`
}

// A record has the costs on each kernel, by the kernel's release.
type record map[string]golden

func read(path string) (record, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	out := record{}
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

func (r record) write(path string) error {
	text, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}

// costs returns the instructions of a group's cases beyond the cable's for the same workload.
// It uses the medians of the rounds, and rounds to a tenth of an instruction.
func costs(g *report.Group) map[string]float64 {
	out := map[string]float64{}
	for _, c := range g.Cases {
		if less := g.Case(strings.TrimSpace(cable + " " + c.Workload)); c.Fabric != cable && less != nil {
			over := report.SpreadOf(c.Values()).Median - report.SpreadOf(less.Values()).Median
			out[c.Label] = math.Round(10*over) / 10
		}
	}
	return out
}

// series returns a version without its last number.
func series(version string) string {
	if i := strings.LastIndexByte(version, '.'); i > 0 {
		return version[:i]
	}
	return version
}

// table returns a line for each case, with the recorded cost if there is one.
func (g golden) table(before golden) string {
	var b strings.Builder
	for _, label := range slices.Sorted(maps.Keys(g.Costs)) {
		fmt.Fprintf(&b, "%-36s %8.1f instructions a frame over a cable", label, g.Costs[label])
		if was, ok := before.Costs[label]; ok {
			fmt.Fprintf(&b, ", recorded %8.1f: %+.2f %%", was, 100*(g.Costs[label]/was-1))
		}
		b.WriteString("\n")
	}
	return b.String()
}

// judge returns an error that lists the cases whose cost has increased.
func (g golden) judge(before golden) error {
	var dearer []string
	for _, label := range slices.Sorted(maps.Keys(g.Costs)) {
		if was, ok := before.Costs[label]; ok && g.Costs[label] > was*(1+tolerance) {
			dearer = append(dearer, label)
		}
	}
	for _, label := range slices.Sorted(maps.Keys(before.Costs)) {
		if _, ok := g.Costs[label]; !ok {
			dearer = append(dearer, label+" (it is no longer measured)")
		}
	}
	if dearer == nil {
		return nil
	}
	return fmt.Errorf("these cost more than recorded by 1 %% or more: %s; where that is right, record it by "+
		"'make test-exact EXACT_FLAGS=-record', and say why in the commit", strings.Join(dearer, ", "))
}
