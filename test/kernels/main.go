// SPDX-License-Identifier: BSD-2-Clause

// Program kernels runs the tests of the switch on kernels other than the running one: Debian's kernels, in virtual
// machines, one at a time. Each case is a test of the ordinary test programs, with the real program under test, and
// with frames of real sockets in network namespaces of the machine. `make test-kernels` runs it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"

	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/test/machines"
)

func main() {
	machines.Main("kernels", func(ctx context.Context, w io.Writer) error {
		var o options
		flag.StringVar(&o.kernels, "kernels", "", "`releases` to test, by how they begin, with blanks between; all without")
		o.Flags("what the kernels did", "succeed where no kernel can be had")
		flag.Parse()
		return run(ctx, o, w)
	})
}

// cpus is the number of a machine's CPUs, and the number of cases that run at the same time.
const cpus = 2

type options struct {
	machines.Options
	kernels string
}

// run tests the kernels one after the other. After the last, the error lists the failures.
func run(ctx context.Context, o options, w io.Writer) error {
	chosen, err := machines.Choose(cases, o.Cases)
	if err != nil {
		return err
	}
	list, err := guests.FindPins(strings.Fields(o.kernels)...)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bascule-kernels-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	built := false
	qemu, err := guests.Version(ctx)
	var missing *ends.Unavailable
	if err != nil && !errors.As(err, &missing) {
		return err // a missing QEMU is reported for each kernel
	}
	var tally machines.Tally
	var seen []string
	for _, k := range list {
		found, err := guests.FindKernel(ctx, k)
		if errors.As(err, &missing) {
			tally.Untested(w, "Linux "+k.Release, missing)
			continue
		}
		if err != nil {
			return err
		}
		if found.Release != k.Release {
			fmt.Fprintf(w, "Linux %s is no more; in its place: %s\n", k.Release, found.Release)
		}
		if slices.Contains(seen, found.Release) {
			fmt.Fprintf(w, "Linux %s was tested\n", found.Release)
			continue
		}
		seen = append(seen, found.Release)
		if !built {
			if err := machines.Build(ctx, dir, append([]machines.Case{refusal}, chosen...)); err != nil {
				return err
			}
			built = true
		}
		these := chosen
		if k.WithoutTCX {
			these = []machines.Case{refusal}
		}
		name := "Linux " + found.Release
		results, err := machines.Run{
			Name: name, Machine: guests.Machine{Kernel: found, CPUs: cpus}, Dir: dir, Cases: these, Together: cpus,
		}.Do(ctx, w)
		if errors.As(err, &missing) {
			tally.Untested(w, "Linux "+k.Release, missing)
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		tally.Add(name, these, results, err)
		if o.Table != "" && len(results) > 0 {
			if err := note(o.Table, found.Release, o.Bascule, qemu, results); err != nil {
				return err
			}
		}
	}
	return tally.End(w, o.Lenient)
}

// note writes a kernel's results into a page, with the versions of bascule and QEMU.
func note(path, release, bascule, qemu string, results map[string]machines.Result) error {
	column := short(release)
	results[machines.BasculeRow], results[machines.QEMURow] = machines.Result(bascule), machines.Result(qemu)
	return page(path).Update(column, results, func(other string) bool { return line(other) == line(column) })
}

// page returns the page of results, with a column for each kernel.
func page(path string) machines.Page {
	rows := append([]machines.Case{refusal}, cases...)
	return machines.Page{
		Path: path, By: "make test-kernels", Compare: guests.CompareReleases,
		Cases: append(rows, machines.Case{About: machines.BasculeRow}, machines.Case{About: machines.QEMURow}),
	}
}

var series, debian = regexp.MustCompile(`^[0-9]+\.[0-9]+`), regexp.MustCompile(`\+deb[0-9]+`)

// line returns the series of a kernel, and the Debian that it was built for. The page has one column for each line.
func line(release string) string { return series.FindString(release) + debian.FindString(release) }

// short returns a release without the suffix that all have, and without the suffix that most have, which is Debian
// 13's.
func short(release string) string {
	return strings.TrimSuffix(strings.TrimSuffix(release, "-cloud-amd64"), "+deb13")
}
