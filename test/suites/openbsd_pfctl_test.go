// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// OpenBSD's regress/sbin/pfctl tests only the language: how rules are printed, that the output can be
// read again, and which rules are refused.
var _ = openBSD.has("pfctl", pfctlCases())

// notLoaded has the cases that OpenBSD prints without loading them.
const notLoaded = "6 35 41 50 53 57 83 86 94 96 97 98 102 104"

func pfctlCases() cases {
	hookless["pfctl"] = true
	archive, err := txtar.ParseFile("testdata/pfctl.txtar")
	if err != nil {
		panic(err)
	}
	all := cases{}
	for _, f := range archive.Files {
		rules, want, printed := strings.Cut(string(f.Data), "----\n")
		switch {
		case strings.HasPrefix(f.Name, "pfr"):
			all[f.Name] = func(r *router) { r.tableCommands(rules) }
		case printed:
			all[f.Name] = func(r *router) { r.printedAs(rules, want) }
			if strings.HasPrefix(f.Name, "pfail") { // OpenBSD accepts this one
				continue
			}
			all["self"+f.Name] = func(r *router) { r.printedAs(want, want) }
			if number := strings.TrimPrefix(f.Name, "pf"); !slices.Contains(strings.Fields(notLoaded), number) {
				all["pfload"+number] = func(r *router) { r.loadedAs(rules, want) }
			}
		default:
			all[f.Name] = func(r *router) {
				for line := range strings.Lines(rules) {
					r.refusedLine(strings.ReplaceAll(line, "LONG", strings.Repeat("0123456789", 900)))
				}
			}
		}
	}
	all["pf95"] = func(r *router) { r.included(false) }
	all["selfpf95"] = func(r *router) { r.included(true) }
	return all
}

// included has pfctl print the rules of a file that includes another one.
func (r *router) included(again bool) {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "included.conf")
	if err := os.WriteFile(file, []byte("pass in proto tcp to port 22\nblock out\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	want := "pass in proto tcp from any to any port = 22 flags S/SA\nblock drop out all\n"
	if again {
		r.printedAs(want, want)
		return
	}
	r.printedAs("include \""+file+"\"\n", want)
}

// printedAs has pfctl print rules.
func (r *router) printedAs(rules, want string) {
	r.t.Helper()
	result := r.try(rules, "-nvf", "-")
	if result.Exit != 0 {
		r.t.Fatal(result)
	}
	if diff := cmp.Diff(want, result.Stdout); diff != "" {
		r.t.Errorf("(-want +printed)\n%s", diff)
	}
}

// refusedLine has pfctl refuse a line, for the reason in its comment.
func (r *router) refusedLine(line string) {
	r.t.Helper()
	rule, why, _ := strings.Cut(strings.TrimSpace(line), " # ")
	result := r.try(rule+"\n", "-nf", "-")
	if result.Exit == 0 || why == "" || !strings.Contains(result.Stderr, why) {
		r.t.Errorf("%s\n\texit %d, should say %q: %s", rule, result.Exit, why, result.Stderr)
	}
}

// tableCommands has pfctl change a table of an anchor. A line that begins with > is an argument of
// -T. A line that begins with ! is one that is refused. The following lines are the output, in the
// order of sort(1). Other lines are loaded.
func (r *router) tableCommands(script string) {
	r.t.Helper()
	dir := r.t.TempDir()
	for name, text := range map[string]string{
		"one": "# one\n10.3.0.1 10.7/16\n::7\nfe80::/16 # behind an address\n",
		"two": "10.3.0.1\n10.3.0.2\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	r.anchor("regress", "table <regress> persist")
	var said []string
	for _, line := range strings.Split(strings.TrimSpace(script), "\n") {
		switch mark, words, _ := strings.Cut(line, " "); mark {
		case ">", "!":
			said = append(said, line)
			args := append([]string{"-a", "regress", "-t", "regress", "-T"}, strings.Fields(words)...)
			result := r.try("", args...)
			if (mark == ">") != (result.Exit == 0) {
				r.t.Errorf("%s: %v", line, result)
			}
			if result.Exit == 0 || !strings.HasPrefix(result.Stderr, "bascule: -T") {
				lines := strings.Split(result.Stdout+result.Stderr, "\n")
				slices.Sort(lines)
				said = append(said, slices.DeleteFunc(lines, func(line string) bool { return line == "" })...)
			}
		case "table":
			said = append(said, line)
			r.load(strings.ReplaceAll(line, "DIR", dir), "-a", "regress")
		}
	}
	var want []string
	for line := range strings.Lines(script) {
		want = append(want, strings.TrimSuffix(line, "\n"))
	}
	if diff := cmp.Diff(want, said); diff != "" {
		r.t.Errorf("(-want +printed)\n%s", diff)
	}
}

// loadedAs has pfctl load rules into an anchor, and print them from there. Options, tables and macros
// are no rules.
func (r *router) loadedAs(rules, want string) {
	r.t.Helper()
	r.anchor("regress", rules)
	var lines strings.Builder
	for line := range strings.Lines(want) {
		if named := strings.TrimLeft(line, " "); strings.HasPrefix(named, "anchor \"") && strings.HasSuffix(line, " all\n") {
			// The rules of the anchor are printed here. It has none.
			indent := line[:len(line)-len(named)]
			line = strings.TrimSuffix(line, "\n") + " {\n" + indent + "}\n"
		}
		if first, _, _ := strings.Cut(line, " "); first != "set" && first != "table" && !strings.Contains(line, " = \"") {
			lines.WriteString(line)
		}
	}
	if diff := cmp.Diff(lines.String(), r.pfctl("-a", "regress/*", "-s", "rules")); diff != "" {
		r.t.Errorf("(-want +printed)\n%s", diff)
	}
}
