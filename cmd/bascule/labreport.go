// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"bascule/files"
	"bascule/lab/report"

	"github.com/spf13/cobra"
)

// forms are the formats of a report, by file extension.
var forms = map[string]func(*report.Report, io.Writer) error{
	".json": (*report.Report).WriteJSON,
	".html": (*report.Report).WriteHTML,
	".md":   (*report.Report).WriteMarkdown,
	".csv":  (*report.Report).WriteCSV,
	".txt":  (*report.Report).WriteText,
	summary: (*report.Report).WriteSummary,
}

// summary is the format without an extension: -o never writes it.
const summary = "summary"

// outputFiles returns the files for -o: one file, or one of each format in a folder, which is
// created. The parent folder must exist, so that a mistyped path creates none. Write access is
// checked before the measurement.
func outputFiles(name string) ([]string, error) {
	files, dir := []string{name}, filepath.Dir(name)
	ending := filepath.Ext(name)
	if strings.HasSuffix(name, "/") || isFolder(name) || ending == "" {
		files, dir = nil, name
		// The format that all others can be made from comes first.
		for _, ending := range []string{".json", ".html", ".md", ".csv"} {
			files = append(files, filepath.Join(name, "report"+ending))
		}
	} else if forms[ending] == nil {
		return nil, fmt.Errorf("cannot write the report as %s: no form has the ending %s; give .json, .html, .md, .csv or .txt, or a folder with / at its end", name, ending)
	}
	if around := filepath.Dir(filepath.Clean(name)); !isFolder(around) {
		return nil, fmt.Errorf("cannot write the report: there is no folder %s; make it first, or give another -o", around)
	}
	err := os.Mkdir(dir, 0o755)
	if err == nil || errors.Is(err, fs.ErrExist) {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".bascule-*"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return nil, fmt.Errorf("cannot write the report: %w; give another -o", err)
	}
	return files, nil
}

func isFolder(name string) bool {
	at, err := os.Stat(name)
	return err == nil && at.IsDir()
}

// writeReports writes the report into files. Each file is replaced completely or not at all.
func writeReports(r *report.Report, files []string) error {
	var failed []string
	var why error
	for _, name := range files {
		if err := writeReport(r, name); err != nil {
			failed = append(failed, filepath.Base(name))
			why = err
		}
	}
	// The name of the temporary file means nothing to the user.
	var path *fs.PathError
	if errors.As(why, &path) {
		why = path.Err
	}
	if why != nil {
		return fmt.Errorf("cannot write the report as %s: %w; what was measured is on standard output", strings.Join(failed, ", "), why)
	}
	return nil
}

func writeReport(r *report.Report, name string) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".bascule-*")
	if err != nil {
		return err
	}
	err = forms[filepath.Ext(name)](r, f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), name)
	}
	if err != nil {
		os.Remove(f.Name())
	}
	return err
}

// readReport reads a report of the lab.
func readReport(name string) (*report.Report, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, fmt.Errorf("cannot read the report %w; give a .json that 'bascule lab run -o' wrote", fileCause(err))
	}
	defer f.Close()
	r, err := report.ReadJSON(f)
	if err != nil {
		return nil, fmt.Errorf("cannot read the report %s: %w; give a .json that 'bascule lab run -o' wrote", name, err)
	}
	return r, nil
}

func newLabCompare(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "compare OLD NEW",
		Short: "compare two reports",
		Long: `Compare the cases that two reports share: medians, their ratio, and whether Mann
and Whitney's test tells their rounds apart (p < 0.05). Two runs are not
interleaved: a machine that was busier in one of them looks like a difference.`,
		Example: `  #! run: cp $source/lab/testdata/old.json $source/lab/testdata/new.json .
  bascule lab compare old.json new.json`,
		RunE: func(_ *cobra.Command, args []string) error {
			older, err := readReport(args[0])
			if err != nil {
				return err
			}
			newer, err := readReport(args[1])
			if err != nil {
				return err
			}
			c := report.Compare(older, newer)
			if p.json {
				return p.printJSON(c)
			}
			return c.WriteText(p.out)
		},
		ValidArgsFunction: completeReports,
	}
}

func newLabReport(p *program) *cobra.Command {
	asked := []struct {
		flag, ending, help string
		on                 bool
	}{
		{flag: "html", ending: ".html", help: "as a page with charts, in one file that needs no network"},
		{flag: "markdown", ending: ".md", help: "as Markdown"},
		{flag: "summary", ending: summary, help: "as Markdown with the medians of the cases, and nothing of their rounds"},
		{flag: "csv", ending: ".csv", help: "as a line for each sample, with commas between the values"},
	}
	cmd := &cobra.Command{
		Use:   "report FILE",
		Short: "print a report in another form",
		Long:  `Print a .json report of the lab as text, or in another form.`,
		Example: `  #! run: cp $source/lab/testdata/new.json report.json
  bascule lab report report.json
  bascule lab report report.json --html > report.html`,
		RunE: func(cmd *cobra.Command, args []string) error {
			form, by := ".txt", ""
			if p.json {
				form, by = ".json", "json"
			}
			for _, a := range asked {
				switch {
				case a.on && by != "":
					return usagef(cmd, "--%s and --%s: give one of them", by, a.flag)
				case a.on:
					form, by = a.ending, a.flag
				}
			}
			r, err := readReport(args[0])
			if err != nil {
				return err
			}
			return forms[form](r, p.out)
		},
		ValidArgsFunction: completeReports,
	}
	for i := range asked {
		cmd.Flags().BoolVar(&asked[i].on, asked[i].flag, false, asked[i].help)
	}
	return cmd
}

func completeReports(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return []string{"json"}, cobra.ShellCompDirectiveFilterFileExt
}
