// SPDX-License-Identifier: BSD-2-Clause

// Package machines runs tests of the ordinary test programs in virtual machines, with the real program under test, and
// writes their results into a page of the docs. test/kernels and test/cards are built on it.
package machines

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/lab/guests"
)

// Main is the main function of a program that runs tests in virtual machines. It calls do, or, as the first process of
// a machine, runs the job that do passed to the machine. A signal ends both in order.
func Main(name string, do func(ctx context.Context, w io.Writer) error) {
	if os.Getpid() == 1 {
		_ = guest() // it has reported its error to the host
		return
	}
	// QEMU ends with this process.
	ctx, cancel := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer cancel()
	if err := do(ctx, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, name+":", err)
		os.Exit(1)
	}
}

// Options are the options of all such programs.
type Options struct {
	Cases   string // a selection for Choose
	Table   string // path of a page; "" for none
	Bascule string // version of the tested program
	Lenient bool   // untested machines are no failure
}

// Flags defines the options as flags. `of` is what the table shows, and lenient says when a run with untested machines
// succeeds.
func (o *Options) Flags(of, lenient string) {
	flag.StringVar(&o.Cases, "cases", "all", "all, short, or a `regular expression` that their names match")
	flag.StringVar(&o.Table, "table", "", "`file` whose table gets "+of)
	flag.StringVar(&o.Bascule, "bascule", "", "`version` of bascule, which the table tells")
	flag.BoolVar(&o.Lenient, "untested-ok", false, lenient)
}

// A Case is a test of a test program.
type Case struct {
	About   string // what it verifies
	Package string // import path of the test program
	Test    string // its name, TestX or TestX/case
	Short   bool   // in the short list, which every change has to pass
}

// program is the file name of the case's test program.
func (c Case) program() string { return path.Base(c.Package) + ".test" }

// Choose returns the chosen cases: all, the short ones, or those whose names match a regular expression.
func Choose(cases []Case, words string) ([]Case, error) {
	var chosen []Case
	switch words {
	case "all":
		return cases, nil
	case "short":
		for _, c := range cases {
			if c.Short {
				chosen = append(chosen, c)
			}
		}
		return chosen, nil
	}
	pattern, err := regexp.Compile(words)
	if err != nil {
		return nil, err
	}
	for _, c := range cases {
		if pattern.MatchString(c.Test) {
			chosen = append(chosen, c)
		}
	}
	if chosen == nil {
		return nil, fmt.Errorf("no case's name matches %q", words)
	}
	return chosen, nil
}

// Build builds the program under test, another build of it, and the cases' test programs into a folder.
func Build(ctx context.Context, dir string, cases []Case) error {
	commands := [][]string{
		{"build", "-o", filepath.Join(dir, "bascule"), "bascule/cmd/bascule"},
		// Tests look for the programs under these names.
		{"build", "-o", filepath.Join(dir, "upgrade"), "-tags", "newer", "-ldflags", "-X main.version=upgrade-test", "bascule/cmd/bascule"},
	}
	var built []string
	for _, c := range cases {
		if !slices.Contains(built, c.Package) {
			built = append(built, c.Package)
			commands = append(commands, []string{"test", "-c", "-ldflags", "-s -w", "-o", filepath.Join(dir, c.program()), c.Package})
		}
	}
	for _, args := range commands {
		cmd := ends.Command(ctx, "go", args...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0") // the guest does not have our C library
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
		}
	}
	return nil
}

// needed are the programs that tests run, from coreutils and dash. busybox does not do: its shell prefers its own
// programs to the machine's.
var needed = []string{
	"sh", "bash", "cat", "head", "ls", "sleep", "ip", "ping", "setarch", "setpriv", "tcpdump", "unshare", "wg",
}

// modules are the drivers of devices that tests make.
var modules = []string{"veth", "tun", "dummy", "bridge", "vxlan", "macvlan", "vrf", "wireguard"}

// optional are modules that some kernels lack. Tests use them if they are there.
var optional = []string{"8021q", "macvtap", "ipvlan", "macsec"}

// A Result of a case is a word in the page's table.
type Result string

// Rows of a page that describe its columns.
const (
	BasculeRow = "bascule"
	QEMURow    = "QEMU"
)

// Results of a case.
const (
	Passed Result = "yes"
	No     Result = "no"
)

// limit is the time limit of a virtual machine. It ends a machine that hangs.
const limit = 3 * time.Hour

// A Run is a machine, and the cases that it is booted for.
type Run struct {
	Name     string // for output
	Machine  guests.Machine
	Dir      string // the folder of Build
	Cases    []Case
	Env      []string // environment of the tests
	Together int      // the number of cases that may run at the same time
}

// memoryMiB is a machine's memory in MiB. It holds the programs, and the kernel's verifier needs some hundred MiB for
// the BPF programs of two bridges.
const memoryMiB = 2048

// boots limits how often machines are booted for the remaining cases.
const boots = 10

// Do boots the machine and runs the cases in it. It prints a line for each case, and the output of failed ones. The
// error says why results are missing, or which problem the kernel itself reported.
func (r Run) Do(ctx context.Context, w io.Writer) (results map[string]Result, err error) {
	return r.all(w, func(these []Case) (map[string]Result, error) {
		r.Cases = these
		return r.once(ctx, w)
	})
}

// all runs the cases in a machine by calling once. After an error of the emulation, another machine runs the cases that
// have not ended.
func (r Run) all(w io.Writer, once func([]Case) (map[string]Result, error)) (map[string]Result, error) {
	all := map[string]Result{}
	for left, boot := r.Cases, 1; ; boot++ {
		results, err := once(left)
		maps.Copy(all, results)
		left = slices.DeleteFunc(slices.Clone(left), func(c Case) bool { return all[c.Test] != "" })
		var clock clockError
		var patch patchError
		if boot == boots || !errors.As(err, &clock) && !errors.As(err, &patch) {
			return all, err
		}
		fmt.Fprintf(w, "%s: %v; it is booted again, for %d cases\n", r.Name, err, len(left))
	}
}

func (r Run) once(ctx context.Context, w io.Writer) (map[string]Result, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	files := map[string]string{
		jobFile: filepath.Join(r.Dir, "job.json"), "/usr/bin/bascule": filepath.Join(r.Dir, "bascule"),
		"/builds/upgrade": filepath.Join(r.Dir, "upgrade"), "/builds/agent-upgrade": filepath.Join(r.Dir, "upgrade"),
	}
	todo := job{Together: r.Together}
	for _, c := range r.Cases {
		at := "/test/" + c.program()
		files[at] = filepath.Join(r.Dir, c.program())
		todo.Steps = append(todo.Steps, step{
			c.Test, []string{at, "-test.v", "-test.short", "-test.timeout", "0", "-test.run", exactly(c.Test)},
			append([]string{"BASCULE=/usr/bin/bascule", "BASCULE_BUILDS=/builds"}, r.Env...),
		})
	}
	text, err := json.Marshal(todo)
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(files[jobFile], text, 0o600); err != nil {
		return nil, err
	}
	m := r.Machine
	m.Init, m.Files, m.MemoryMiB = self, files, memoryMiB
	m.Programs, m.Modules = slices.Concat(needed, m.Programs), slices.Concat(modules, m.Modules)
	m.Optional = slices.Concat(optional, m.Optional)
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it runs for longer than %v", limit))
	defer cancel()
	begun := time.Now()
	var console bytes.Buffer
	var results map[string]Result
	hear := func(from io.Reader) (err error) {
		results, err = listen(w, r.Name, from)
		return err
	}
	if err := m.Run(ctx, hear, &console); err != nil {
		return results, err
	}
	fmt.Fprintf(w, "%s: %d cases in %.0f s\n", r.Name, len(results), time.Since(begun).Seconds())
	return results, judgeConsole(console.String(), len(r.Cases)-len(results))
}

// judgeConsole returns an error if the kernel's messages show a problem, or if cases are missing.
func judgeConsole(text string, missing int) error {
	at := complaint.FindStringIndex(text)
	switch {
	case at == nil && missing > 0:
		return fmt.Errorf("the machine ended %d cases early: %s", missing, lastLines(text, 5))
	case at == nil:
		return nil
	}
	if missing == 0 {
		return fmt.Errorf("the kernel says %q", strings.TrimSpace(text[at[0]:at[1]]))
	}
	said := text[at[0]:] // the rest follows from it
	err := fmt.Errorf("the machine ended %d cases early: %s", missing, firstLines(said, 60))
	if patched.MatchString(said) {
		return patchError{err}
	}
	return err
}

// A patchError says that a machine ended because a CPU executed an instruction that its kernel had just replaced. The
// kernel writes int3 there meanwhile, and synchronizes all CPUs before it removes its record of the place. With QEMU's
// TCG a CPU sometimes executes the int3 after that: "qemu-x86_64 booting with 8.0.0 stil see int3", linux-kernel, July
// 2023.
type patchError struct{ error }

// patched matches the beginning of the kernel's message about it.
var patched = regexp.MustCompile(`\A\[[ 0-9.]+\] Oops: int3: `)

// complaint matches a line in which a kernel reports that it is broken, or that it has killed a program because memory
// ran out. Messages about a stalled CPU do not count: they are normal on a busy machine.
var complaint = regexp.MustCompile(
	`(?m)^\[[ 0-9.]+\] (BUG: |Oops: |WARNING: |kernel BUG |Kernel panic |general protection |Out of memory: ).*`)

// lastLines returns the last n lines of a text, joined into one line.
func lastLines(text string, n int) string {
	lines := linesOf(text)
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}

// firstLines returns the first n lines of a text.
func firstLines(text string, n int) string {
	lines := linesOf(text)
	return strings.Join(lines[:min(len(lines), n)], "\n")
}

func linesOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
}

// A clockError is the factor by which a machine's clock is too fast, or too slow.
type clockError float64

func (e clockError) Error() string {
	return fmt.Sprintf("its clock runs %.1f times too fast", float64(e))
}

// listen reads a guest's reports of its steps.
func listen(w io.Writer, name string, from io.Reader) (map[string]Result, error) {
	results := map[string]Result{}
	dec := json.NewDecoder(from)
	for {
		var e ended
		if err := dec.Decode(&e); err == io.EOF {
			return results, nil
		} else if err != nil {
			return results, err
		}
		if e.Failed != "" {
			return results, errors.New(e.Failed)
		}
		if e.Clock != 0 {
			return results, clockError(e.Clock)
		}
		results[e.Name] = judge(e)
		word := "ok  "
		if results[e.Name] != Passed {
			word = "FAIL"
		}
		fmt.Fprintf(w, "%s %s: %s (%.1fs)\n", word, name, e.Name, e.Seconds)
		if results[e.Name] != Passed {
			fmt.Fprintf(w, "  status %d\n  %s\n", e.Status, strings.ReplaceAll(strings.TrimSpace(e.Output), "\n", "\n  "))
		}
	}
}

// judge returns whether a test passed: it ran, and nothing of it was skipped. A test program that has no such test
// succeeds, too.
func judge(e ended) Result {
	if e.Status == 0 && strings.Contains(e.Output, "--- PASS: "+e.Name+" (") && !strings.Contains(e.Output, "--- SKIP: ") {
		return Passed
	}
	return No
}

// exactly returns a pattern that matches one test.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// A Tally counts the results of all that a program runs.
type Tally struct {
	passes           int
	failed, untested []string
}

// Untested notes a machine that is not available.
func (t *Tally) Untested(w io.Writer, name string, why error) {
	fmt.Fprintf(w, "untested: %s: %v\n", name, why)
	t.untested = append(t.untested, name)
}

// Add notes the results of all cases of a machine, and the machine's error.
func (t *Tally) Add(name string, cases []Case, results map[string]Result, err error) {
	if err != nil {
		t.failed = append(t.failed, fmt.Sprintf("%s: %v", name, err))
	}
	for _, c := range cases {
		if results[c.Test] == Passed {
			t.passes++
		} else {
			t.failed = append(t.failed, name+": "+c.Test)
		}
	}
}

// End prints the sum. The error lists the failures, and the untested machines unless these are allowed.
func (t *Tally) End(w io.Writer, lenient bool) error {
	if t.passes+len(t.failed) > 0 {
		fmt.Fprintf(w, "%d passed, %d failed\n", t.passes, len(t.failed))
	}
	if len(t.failed) > 0 {
		return errors.New(strings.Join(append([]string{"these failed:"}, t.failed...), "\n  "))
	}
	if len(t.untested) > 0 && !lenient {
		return fmt.Errorf("not tested: %s", strings.Join(t.untested, ", "))
	}
	return nil
}
