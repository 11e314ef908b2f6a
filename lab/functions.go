// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"bascule/lab/fabrics"
	"bascule/lab/guests"
	"bascule/lab/instructions"
	"bascule/lab/report"
)

// A profile shows which functions of the kernel and of its BPF programs execute the instructions of
// a frame. A QEMU plug-in counts, for each address, the executions of its instruction while
// measured frames are sent. The virtual machine provides the symbols of these addresses.

// symbolsFile has the kernel's symbols, including BPF programs.
const symbolsFile = "/proc/kallsyms"

// parts sends the symbols once, and then the frames of each part. The plug-in counts in between.
func parts(tell func(inner)) func(frames uint64) (ended func()) {
	told := false
	return func(frames uint64) func() {
		if !told {
			told = true
			text, err := os.ReadFile(symbolsFile)
			if err != nil {
				tell(inner{Failed: err.Error()})
			}
			tell(inner{Symbols: string(text)})
		}
		instructions.Begin()
		return func() {
			instructions.End()
			tell(inner{Frames: frames})
		}
	}
}

// Functions measures one workload on one fabric in a virtual machine with a kernel, and
// returns how many instructions of a frame each function executes. User has all programs in user
// space. The plug-in is the QEMU plug-in built from test/exact/plugin/functions.c. An
// ends.Unavailable is the reason why there can be no machine.
func Functions(ctx context.Context, site fabrics.Site, fabric, workload string, k guests.Kernel, plugin string, progress *Progress) (map[string]float64, error) {
	o := Options{Fabrics: []string{fabric}, Workloads: []string{workload}, Counting: true, Functions: true, Rounds: 1}
	p, err := Select(o)
	if err != nil {
		return nil, err
	}
	m, err := insideMachine(site, o, p.Groups[0], k)
	if err != nil {
		return nil, err
	}
	counts, err := os.CreateTemp("", "bascule-functions-")
	if err != nil {
		return nil, err
	}
	defer os.Remove(counts.Name())
	defer counts.Close()
	m.Plugin = fmt.Sprintf("file=%s,out=%s", plugin, counts.Name())
	var all inner
	err = m.Run(ctx, func(from io.Reader) error {
		for dec := json.NewDecoder(from); ; {
			var i inner
			switch err := dec.Decode(&i); {
			case err == io.EOF:
				return nil
			case err != nil:
				return fmt.Errorf("what the lab inside says: %w", err)
			case i.Failed != "":
				return fmt.Errorf("the lab inside: %s", i.Failed)
			}
			all.Frames += i.Frames
			switch {
			case i.Symbols != "":
				all.Symbols = i.Symbols
			case i.Report != nil:
				all.Report = i.Report
			case i.Frames == 0:
				progress.tell(i.told)
			}
		}
	}, io.Discard)
	if err != nil {
		return nil, err
	}
	if all.Report == nil {
		return nil, errors.New("the virtual machine ended before its lab did")
	}
	for _, c := range all.Report.Groups[0].Cases {
		if len(c.Samples) == 0 {
			return nil, fmt.Errorf("cannot measure %s: %s%s", c.Label, c.Error, c.Skipped)
		}
	}
	if all.Frames == 0 {
		return nil, fmt.Errorf("workload %s counts no instructions", workload)
	}
	at, err := parseSymbols(strings.NewReader(all.Symbols))
	if err != nil {
		return nil, err
	}
	out, err := at.share(counts, all.Frames)
	if err != nil {
		return nil, err
	}
	return out, agrees(out, all.Report.Groups[0].Cases[0].Values(), mayDiffer(workload))
}

// mayDiffer is the fraction by which the sum over all functions may differ from the machine's own
// counter for the same frames of a workload. The counter's figure is a median of parts, and the
// functions' is a mean, which includes occasional other work of the kernel. For frames in batches
// the difference is larger, up to a seventh, since pages are allocated for them.
func mayDiffer(workload string) float64 {
	if kind, _, _ := strings.Cut(workload, ":"); kind == "in-batches" {
		return 0.15
	}
	return 0.05
}

// agrees compares the instructions of functions with the machine's own counter.
func agrees(functions map[string]float64, counter []float64, differs float64) error {
	var sum float64
	for _, n := range functions {
		sum += n
	}
	if want := report.SpreadOf(counter).Median; math.Abs(sum/want-1) > differs {
		return fmt.Errorf("the plug-in counted %.0f instructions of a frame, and the machine %.0f", sum, want)
	}
	return nil
}

// User is the name in Functions for all of user space.
const User = "(user space)"

// A symbol is the start address of a function.
type symbol struct {
	at   uint64
	name string
}

type symbols []symbol

// parseSymbols reads proc_kallsyms(5): address, type, name, and the module in brackets.
func parseSymbols(r io.Reader) (symbols, error) {
	var out symbols
	for lines := bufio.NewScanner(r); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) < 3 || !strings.ContainsAny(f[1], "tTwW") {
			continue
		}
		at, err := strconv.ParseUint(f[0], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", symbolsFile, err)
		}
		name := f[2]
		if p := strings.SplitN(name, "_", 4); len(p) == 4 && p[0] == "bpf" && p[1] == "prog" {
			name = p[3] + " [bpf]" // bpf_prog_TAG_NAME
		}
		out = append(out, symbol{at, name})
	}
	slices.SortStableFunc(out, func(a, b symbol) int { return cmp.Compare(a.at, b.at) })
	if len(out) == 0 || out[len(out)-1].at == 0 {
		return nil, fmt.Errorf("%s tells no addresses", symbolsFile)
	}
	return out, nil
}

// share reads the plug-in's counts, an address and a count on each line, and assigns them to
// functions: in instructions per frame.
func (s symbols) share(counts io.Reader, frames uint64) (map[string]float64, error) {
	out := map[string]float64{}
	for lines := bufio.NewScanner(counts); lines.Scan(); {
		var at, n uint64
		if _, err := fmt.Sscanf(lines.Text(), "%x %d", &at, &n); err != nil {
			return nil, fmt.Errorf("the plug-in says %q: %w", lines.Text(), err)
		}
		name := User
		if at != 0 {
			i, found := slices.BinarySearchFunc(s, at, func(s symbol, at uint64) int { return cmp.Compare(s.at, at) })
			if !found {
				i--
			}
			if i < 0 {
				return nil, fmt.Errorf("no function is at %#x", at)
			}
			name = s[i].name
		}
		out[name] += float64(n) / float64(frames)
	}
	if len(out) == 0 {
		return nil, errors.New("the plug-in counted nothing: is it of this QEMU?")
	}
	return out, nil
}
