// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
)

// checkColumns is the width of what check prints: with a reason of the kernel's, lines are
// longer than elsewhere.
const checkColumns = 100

func newCheck(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "see what this machine can do for bridges",
		Long: `Look at the kernel, the machine, the network namespace and its devices, and
print what each can do for bridges, what is missing, and what to do about it.
Nothing is changed.

The kernel is asked for each function that programs call, and not for its
version: a feature whose row says no is refused by the command that asks for it.
Of the network it tells who else would take ports, and whose filters see nothing
of bridges. A device's row has its driver, and the hooks that it can have. Of a
port it tells what the host has at its device that has no effect there, and of
an agent that runs whether its files are in force.

yes is as it should be; no is missing; note works, and there is something to
know; unknown could not be asked. The rows with * are what every bridge needs:
the exit status is 0 if none of them says no.`,
		Example: `  #! run: devices veth0
  bascule check
  bascule -j check | jq -r '.[] | select(.state == "no") | .name'`,
		Annotations: map[string]string{
			"1": "something is missing that every bridge needs, or refused; one line on standard error says what",
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

// agentFindings tells whether the files of the agent are in force, if one runs and has files.
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
