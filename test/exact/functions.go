// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bascule/lab"
	"bascule/lab/ends"
	"bascule/lab/fabrics"
)

// source is the plug-in of QEMU that counts instructions.
const source = "test/exact/plugin/functions.c"

// few is the number of instructions below which a function has no line of its own.
const few = 10

// functions prints in which functions the instructions of a frame are executed, through each of
// the fabrics, beyond the cost of the same function through the cable. There is no such cable
// for broadcasts, whose unit is a frame that arrived.
func functions(ctx context.Context, o options, w io.Writer) error {
	progress := lab.NewProgress(os.Stderr)
	k, err := lab.Pinned(ctx, o.kernel, progress)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bascule-exact-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, plugin := filepath.Join(dir, "bascule"), filepath.Join(dir, "functions.so")
	if err := build(ctx, program); err != nil {
		return err
	}
	if out, err := ends.Command(ctx, "clang-19", "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", plugin, source).CombinedOutput(); err != nil {
		return fmt.Errorf("clang-19 %s: %w\n%s", source, err, out)
	}
	names, how := append([]string{cable}, strings.Split(o.functions, ",")...), "over those by a veth cable"
	var taken []map[string]float64
	if strings.HasPrefix(o.workload, "copies") {
		// A cable has one other end: nothing can be subtracted.
		taken, how = append(taken, nil), "of all that takes part"
	}
	for _, name := range names[len(taken):] {
		got, err := lab.Functions(ctx, fabrics.Site{Bascule: program}, name, o.workload, k, plugin, progress)
		var missing *ends.Unavailable
		if errors.As(err, &missing) {
			return fmt.Errorf("no machine counts instructions: %w", err)
		}
		if err != nil {
			return fmt.Errorf("fabric %s: %w", name, err)
		}
		taken = append(taken, got)
	}
	fmt.Fprintf(w, "Linux %s, %s: instructions of a frame %s\n\n%s", k.Release, o.workload, how, overCable(names, taken))
	return nil
}

// overCable returns a table in Markdown, with a line for each function that executes more than
// a few instructions of a frame. The first of the fabrics is the cable, whose own instructions
// are subtracted.
func overCable(names []string, taken []map[string]float64) string {
	less := taken[0]
	total := make([]float64, len(names))
	rest := make([]float64, len(names))
	over := map[string][]float64{}
	for _, functions := range taken {
		for name := range functions {
			over[name] = make([]float64, len(names))
		}
	}
	for name, row := range over {
		worth := false
		for i, functions := range taken {
			row[i] = functions[name] - less[name]
			total[i] += row[i]
			worth = worth || i > 0 && (row[i] >= few || row[i] <= -few)
		}
		if !worth {
			for i := range row {
				rest[i] += row[i]
			}
			delete(over, name)
		}
	}
	order := slices.SortedFunc(maps.Keys(over), func(a, b string) int {
		return cmp.Or(cmp.Compare(slices.Max(over[b]), slices.Max(over[a])), cmp.Compare(a, b))
	})
	var b strings.Builder
	line := func(name string, row []float64) {
		fmt.Fprintf(&b, "| %s |", name)
		for _, v := range row[1:] {
			fmt.Fprintf(&b, " %.0f |", v)
		}
		b.WriteString("\n")
	}
	fmt.Fprintf(&b, "| function | %s |\n|---|%s\n", strings.Join(names[1:], " | "), strings.Repeat("---|", len(names)-1))
	for _, name := range order {
		line("`"+name+"`", over[name])
	}
	line("all others", rest)
	line("together", total)
	return b.String()
}
