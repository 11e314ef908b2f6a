// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"

	"bascule/config"
)

func newExport(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "export [BRIDGE ...]",
		Short: "print the running bridges as a file for apply",
		Long: `Print all bridges, or the named ones, as YAML that changes nothing when it is
applied. Learned addresses, states and counters are not part of it. *, ? and [
in the name of a device get a backslash, since they would make it a pattern.
Warnings name what a file cannot express.`,
		Example: `  #! run: switch br0 veth0; ip netns add lab; ip -n lab link add veth0 type veth peer name far-veth0
  bascule export > switch.yaml
  bascule export br0 | bascule -n lab apply -f -
  bascule -j export | jq '.bridges | keys'`,
		ValidArgsFunction: completeRest(p.otherBridges),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.with(func(s switcher) error {
				var bridges []string // each one once
				for _, name := range args {
					if !slices.Contains(bridges, name) {
						bridges = append(bridges, name)
					}
				}
				f, notes, err := s.Export(bridges...)
				if err != nil {
					return err
				}
				var text bytes.Buffer
				if err := f.Write(&text); err != nil {
					return err
				}
				p.warn(notes)
				out := text.Bytes()
				if p.json {
					if out, err = yaml.YAMLToJSON(out); err != nil {
						return fmt.Errorf("cannot print JSON: %w", err)
					}
				}
				if _, err := p.out.Write(out); err != nil {
					return err
				}
				// a running table may exceed the limit of a list in a file, and a bridge the size limit
				// of a file
				if err := config.Check("the file", out); err != nil {
					p.warn([]string{fmt.Sprintf("'bascule apply' refuses what is printed: %v", err)})
				}
				return nil
			})
		},
	}
}
