// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

// checkColumns is the width of check's output. It is wider than other output, because lines may end
// with a reason from the kernel.
const checkColumns = 100

func newCheck(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "check what this machine can do for bridges",
		Long: `Check the kernel, the machine, the network namespace and its devices, and print
what each can do for bridges, what is missing, and what to do about it. Nothing
is changed.

Each kernel function that the programs call is tried, whatever the kernel's
version. If the row of a feature says no, commands that need the feature are
refused. The rows about the network name programs that would take ports, and
filters that see nothing of bridges. A device's row has its driver and the hooks
that it can have. A port's row names what the host has at its device without
effect, and the agent's row whether its files are in force.

yes means that all is well; no, that it is missing; note, that it works, with
something to know; unknown, that it could not be found out. Every bridge needs
the rows with *: the exit status is 0 if none of them says no.`,
		Example: `  #! run: devices veth0
  bascule check
  bascule -j check | jq -r '.[] | select(.state == "no") | .name'`,
		Annotations: map[string]string{
			"1": "refused, or something that every bridge needs is missing; one line on standard error says what",
		},
		RunE: func(*cobra.Command, []string) error {
			return p.with(func(s switcher) error {
				found, err := s.Check()
				if err != nil {
					return err
				}
				found = append(found, p.agentFindings()...)
				if err := p.printFindings(found); err != nil {
					return err
				}
				var missing []string
				for _, f := range found {
					if f.Needed && f.State == bridge.VerdictNo {
						missing = append(missing, f.Name)
					}
				}
				if missing != nil {
					return fmt.Errorf("this machine can have no bridge: see %s above", strings.Join(missing, ", "))
				}
				return nil
			})
		},
	}
}

// agentFindings reports whether the agent's files are in force, if an agent with files runs.
func (p *program) agentFindings() []bridge.Finding {
	st, err := p.agents.Status(p.netns.text)
	if err != nil || len(st.Files) == 0 {
		return nil
	}
	f := bridge.Finding{About: "agent", Name: "files", State: bridge.VerdictYes, Text: strings.Join(st.Files, " ") + ": in force"}
	switch {
	case st.Error != "":
		f.State, f.Text = bridge.VerdictNo, "not in force as they are now: "+st.Error+"; mend them, and say 'bascule agent reload'"
	case st.Applied == nil:
		f.State, f.Text = bridge.VerdictUnknown, "being applied"
	}
	return []bridge.Finding{f}
}

func (p *program) printFindings(found []bridge.Finding) error {
	if p.json {
		return p.printJSON(answer.List(found, answer.FindingOf))
	}
	names, about := 0, ""
	for _, f := range found {
		names = max(names, len(f.Name))
	}
	for _, f := range found {
		if f.About != about {
			about = f.About
			fmt.Fprintln(p.out, about)
		}
		mark := " "
		if f.Needed {
			mark = "*"
		}
		head := fmt.Sprintf("%s %-*s  %-7s  ", mark, names, f.Name, f.State)
		lines := wrap(f.Text, checkColumns-len(head))
		fmt.Fprintln(p.out, strings.TrimRight(head+strings.Join(lines, "\n"+strings.Repeat(" ", len(head))), " "))
	}
	return nil
}
