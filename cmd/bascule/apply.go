// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"bascule/answer"
	"bascule/bridge"
	"bascule/config"
	"bascule/plug"

	"github.com/spf13/cobra"
)

// liveSwitch is the switcher of a network namespace.
type liveSwitch struct{ *bridge.Switch }

func (s liveSwitch) Apply(f config.File, o config.Options) ([]config.Action, []string, error) {
	return config.Apply(s.Switch, f, o)
}

func (s liveSwitch) Export(bridges ...string) (config.File, []string, error) {
	return config.Export(s.Switch, bridges...)
}

func (s liveSwitch) Plug(o plug.Plug) ([]string, error) { return plug.Put(s.Switch, o) }

func (s liveSwitch) Unplug(id string) (notes []string, err error) {
	_, notes, err = plug.Remove(s.Switch, id)
	return notes, err
}

// errWouldChange is the result of a dry run that has found something to do.
var errWouldChange = errors.New("there is something to do")

func newApply(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply [FILE ...]",
		Short: "make bridges what a file says",
		Long: `Read files that say what bridges there are to be, and make it so: bridges with
their settings, ports, VLANs, MAC rules, bindings, span ports, FDB entries and
pf. FILE is YAML, or a file of hostname.if(5) for veb(4) or bridge(4) of
OpenBSD. A folder stands for all *.yaml, *.yml and hostname.* in it, - for
standard input. config.md explains the files; it is in
/usr/local/share/doc/bascule, or below another prefix.

The bridges are those of the network namespace that a file names by 'netns:
NAME', or of the command's. With -n, a file that names another is refused.

A bridge that a file names becomes what the file says: a setting that is not in
the file has its default, and anything else that is not in it is removed. Only
pf stays, and the addresses of host ports, where the file does not speak of
them. Other bridges are left alone. Everything is checked first, and if
something is wrong nothing is changed. Then each action is printed on a line,
and done: + is added, - removed, ~ changed. Nothing is printed if all is as it
should be. If an apply fails or is killed on its way, the next one finishes its
work. If several run at once, each waits for the one before it.

A port whose device is not there is left for later, with a warning.`,
		Example: `  #! run: devices em0; mkdir -p /etc/bascule; echo 'bridges: {br0: }' | tee switch.yaml >/etc/bascule/switch.yaml; printf 'add em0\nup\n' >/etc/hostname.veb0
  bascule apply switch.yaml
  # what would be done? the status is 2 if that is something
  bascule apply --dry-run switch.yaml
  bascule apply -f /etc/bascule
  bascule apply /etc/hostname.veb0
  # what runs now, as a file
  bascule export > switch.yaml`,
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveDefault // files
		},
		Annotations: map[string]string{
			"1": "refused or failed; standard error says what, with a line for each mistake in a file",
			"2": "wrong usage, of which standard error tells, or with --dry-run: there is something to do; nothing was changed",
		},
	}
	var files []string
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "read this `FILE` or folder; may be given several times")
	dry := cmd.Flags().Bool("dry-run", false, "print what would be done; the exit status is 2 if there is anything")
	p.addForce(cmd)
	cmd.Flags().Lookup("force").Usage += "; " + forceStack
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if slices.Contains(files, "") {
			return usagef(cmd, "--file: FILE is empty")
		}
		paths := slices.Concat(files, args)
		for i, path := range paths {
			if path == "-" {
				paths[i] = "/dev/stdin"
			}
		}
		if len(paths) == 0 {
			return usagef(cmd, "FILE is missing")
		}
		list, err := config.Load(paths...)
		if err != nil {
			return err
		}
		for _, f := range list {
			for _, note := range f.Notes {
				p.warn([]string{note.Error()})
			}
		}
		for _, f := range list {
			if named := p.netns.text; named != "" && f.Netns != "" && !bridge.SameNetns(named, f.Netns) {
				return usagef(cmd, "-n %s: %s is about network namespace %s; leave -n out, or 'netns' in the file", named, f.Path, f.Netns)
			}
		}
		return p.apply(config.ByNetns(list, p.netns.text), *dry)
	}
	return cmd
}

// apply makes the switches of several namespaces what files say. It checks all
// before it changes the first.
func (p *program) apply(list []config.File, dry bool) error {
	if len(list) > 1 {
		for _, f := range list {
			if _, _, err := p.applyOne(f, config.Options{DryRun: true}); err != nil {
				return err
			}
		}
	}
	all := []answer.Action{}
	changes := false
	var failure error
	for _, f := range list {
		var printing sync.WaitGroup
		report := func(actions []config.Action) {
			changes = changes || len(actions) > 0
			if p.json {
				for _, a := range actions {
					all = append(all, answer.OfAction(f.Netns, a))
				}
				return
			}
			printing.Go(func() { // others wait for the plan to be carried out, and not for who reads this
				if len(list) > 1 && len(actions) > 0 {
					fmt.Fprintln(p.out, "# network namespace", orDash(f.Netns))
				}
				for _, a := range actions {
					fmt.Fprintln(p.out, a)
				}
				p.out.Flush()
			})
		}
		_, warnings, err := p.applyOne(f, config.Options{DryRun: dry, Report: report})
		printing.Wait()
		p.warn(warnings)
		if failure = err; err != nil {
			break
		}
	}
	if p.json && (failure == nil || len(all) > 0) {
		if err := p.printJSON(all); err != nil {
			return err
		}
	}
	if failure == nil && dry && changes {
		return errWouldChange
	}
	return failure
}

// applyOne makes the switch of one namespace what a file says.
func (p *program) applyOne(f config.File, o config.Options) (actions []config.Action, warnings []string, err error) {
	s, err := p.openForced(f.Netns)
	if err != nil {
		return nil, nil, err
	}
	o.PF = keptSource
	actions, warnings, err = s.Apply(f, o)
	return actions, warnings, errors.Join(err, s.Close())
}
