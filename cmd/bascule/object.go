// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"strings"

	"bascule/answer"
	"bascule/bridge"
	"bascule/object"

	"github.com/spf13/cobra"
)

// newObject returns the function that makes the commands of a kind of object, from its description.
func newObject(o *bridge.Object) func(*program) *cobra.Command {
	return func(p *program) *cobra.Command {
		cmd := &cobra.Command{Use: o.Word, Short: o.Short, Long: o.Long, Example: o.Example}
		cmd.AddCommand(newObjectShow(p, o))
		for i := range o.Verbs {
			cmd.AddCommand(newObjectVerb(p, o, &o.Verbs[i]))
		}
		return cmd
	}
}

func newObjectShow(p *program, o *bridge.Object) *cobra.Command {
	return &cobra.Command{
		Use:               o.Show.Word + " [BRIDGE [PORT]]",
		Short:             o.Show.Short,
		Long:              o.Show.Long,
		Example:           o.Show.Example,
		ValidArgsFunction: completeArguments(p.bridgeNames, p.portNames),
		RunE: func(_ *cobra.Command, args []string) error {
			args = append(args, "", "")
			return p.with(func(s switcher) error {
				list, err := o.List(s, args[0], args[1])
				if err != nil {
					return err
				}
				toJSON := func(it any) object.Row { return object.Row{Fields: o.Answers, Object: it} }
				return printList(p, list, toJSON, o.Columns.Heading(), func(it any) []string {
					row := make([]string, len(o.Columns))
					for i, f := range o.Columns {
						row[i] = orDash(f.Text(it))
					}
					return row
				})
			})
		},
	}
}

func newObjectVerb(p *program, o *bridge.Object, v *bridge.Verb) *cobra.Command {
	cmd := &cobra.Command{Use: v.Usage(), Short: v.Short, Long: v.Long, Example: v.Example}
	given := v.New()
	var places []candidates
	for _, f := range v.Fields[:v.Args] {
		places = append(places, p.valuesOf(o, f))
	}
	cmd.ValidArgsFunction = completeArguments(places...)
	p.addChange(cmd)
	for _, f := range v.Fields[v.Args:] {
		cmd.Flags().Var(&fieldFlag{field: f, object: given}, f.Name, f.FlagHelp())
		completeFlag(cmd, f.Name, p.valuesOf(o, f))
	}
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		for i, f := range v.Fields[:v.Args] {
			if err := setArgument(f, given, args[i]); err != nil {
				return err
			}
		}
		n := 0
		change := func(s switcher) (err error) {
			n, err = v.Do(s, given)
			return err
		}
		if !v.Counts {
			return p.change(change)
		}
		return p.change(change, func() error {
			if p.json {
				return p.printJSON([]answer.Flushed{{Bridge: args[0], Removed: n}})
			}
			fmt.Fprintln(p.out, counted(n, o.Word, o.Words), "removed")
			return nil
		})
	}
	return cmd
}

// setArgument parses an argument. The error names it, unless the value says itself what it is.
func setArgument(f object.Field, given any, value string) error {
	err := f.Set(given, value)
	var wrong *bridge.UsageError
	switch known := errors.As(err, &wrong); {
	case err == nil, known && f.Alone:
		return err
	case known:
		err = wrong.Err
	}
	return &bridge.UsageError{Object: strings.ToUpper(f.Name) + " " + value, Err: err}
}

// fieldFlag is the flag of a field.
type fieldFlag struct {
	field  object.Field
	object any
	given  bool
}

func (f *fieldFlag) Set(value string) error {
	if f.given {
		return fmt.Errorf("given twice; give one %s", f.field.Word)
	}
	f.given = true
	return f.field.Set(f.object, value)
}

func (f *fieldFlag) Type() string   { return f.field.Word }
func (f *fieldFlag) String() string { return "" }

// valuesOf returns the function that finds the values of a field, for completion.
func (p *program) valuesOf(o *bridge.Object, f object.Field) candidates {
	switch f.From {
	case object.Bridges:
		return p.bridgeNames
	case object.Ports:
		return p.portNames
	case object.Stations:
		return p.addresses
	case object.VLANs:
		return p.vlanIDs
	case object.Present:
		return p.present(o, f.Name)
	}
	return these(nil)
}

// present returns the function that finds the values of a field in the objects of the bridge in the first argument,
// each with its port.
func (p *program) present(o *bridge.Object, field string) candidates {
	of, port := o.Fields.Named(field)[0], o.Fields.Named("port")[0]
	return func(_ *cobra.Command, args []string) (list []string) {
		_ = p.with(func(s switcher) error {
			there, err := o.List(s, args[0], "")
			for _, it := range there {
				list = append(list, of.Text(it)+"\t"+port.Text(it))
			}
			return err
		})
		return list
	}
}
