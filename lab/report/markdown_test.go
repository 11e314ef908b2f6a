// SPDX-License-Identifier: BSD-2-Clause

package report

import (
	"io"
	"regexp"
	"strings"
	"testing"
)

// forms returns all output formats of a report.
func forms(r *Report) map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{"text": r.WriteText, "JSON": r.WriteJSON, "Markdown": r.WriteMarkdown, "CSV": r.WriteCSV, "HTML": r.WriteHTML}
}

func TestWriteMarkdown(t *testing.T) {
	r := realistic(12, 7, 2)
	r.Groups[0].Cases[0].Notes = []string{"a | pipe\nand *stars*"}
	var b strings.Builder
	if err := r.WriteMarkdown(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{
		"# Lab report: everything\n",
		"## tcp-stream-1\n",
		"### tcp-stream-1, host mtu=9000\n",
		"| fabric | Gbit/s | least, most | against direct | least, most | test | CPU | s/Gbit | s/Mframe | user |",
		"- note, direct: a \\| pipe and \\*stars\\*\n",
		"- skipped, ovs-userspace: this kernel",
		"| does not hold |",
		"## Claims\n\n### Some vendor's data sheet, 2021\n\n| claim | tested here | published | here | verdict | why |\n",
		"| &lt;b>XDP&lt;/b> is 5 % faster |",
		"| bascule | 3 | end 1 → veth0 → br0 → veth1 → tcx program → end 2 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("not in it: %q", want)
		}
	}
	// Every row has as many cells as its header, except a case without results.
	pipe := regexp.MustCompile(`(?:^|[^\\])\|`)
	columns := 0
	for line := range strings.Lines(text) {
		n := len(pipe.FindAllString(line, -1))
		switch {
		case !strings.HasPrefix(line, "|"):
			columns = 0
		case columns == 0:
			columns = n
		case n != columns && !strings.Contains(line, "not measured"):
			t.Errorf("%d cells in a table of %d: %s", n-1, columns-1, line)
		}
	}
}

func TestFormsToFullDisk(t *testing.T) {
	for name, write := range forms(example()) {
		if write(full{}) == nil {
			t.Errorf("a report that was not written as %s gave no error", name)
		}
	}
}

// TestMeasuredElsewhere checks that every format marks a group that was measured in another
// machine, and its figures in instructions, and marks no other group.
func TestMeasuredElsewhere(t *testing.T) {
	plain, inside := example(), example()
	inside.Groups[0].Machine = &Machine{Kernel: "7.3.4+deb13 x86_64", Cores: 1, Counting: "QEMU 7.2.22"}
	says := func(r *Report, form string) string {
		var b strings.Builder
		if err := forms(r)[form](&b); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(b.String()), " ")
	}
	for _, form := range []string{"text", "Markdown", "HTML"} {
		const want = "measured in a virtual machine of 1 core (Linux 7.3.4+deb13, QEMU 7.2.22), where an instruction takes a nanosecond"
		text := strings.ReplaceAll(strings.ReplaceAll(says(inside, form), "&#43;", "+"), "\\", "")
		if !strings.Contains(text, want) {
			t.Errorf("as %s it does not say %q", form, want)
		}
		if strings.Contains(says(plain, form), "measured in a virtual machine") {
			t.Errorf("as %s it says so of this machine", form)
		}
	}
	if !strings.Contains(says(inside, "JSON"), `"counting": "QEMU 7.2.22"`) || strings.Contains(says(plain, "JSON"), `"counting"`) {
		t.Error("as JSON it does not tell the two apart")
	}
}
