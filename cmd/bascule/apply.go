// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/syslog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"bascule/answer"
	"bascule/bridge"
	"bascule/config"
	"bascule/history"
	"bascule/plug"

	"github.com/spf13/cobra"
)

// liveSwitch is the switcher of a network namespace, with its history.
type liveSwitch struct {
	*bridge.Switch
	*history.History
}

func (s liveSwitch) Export(bridges ...string) (config.File, []string, error) {
	return config.Export(s.Switch, bridges...)
}

func (s liveSwitch) Preview(session config.Session, do func() error) ([]config.Action, error) {
	return config.Preview(s.Switch, session, do)
}

// Apply is refused while another user's change waits for confirmation. The error contains the
// reason, so no callback is set.
func (s liveSwitch) Apply(f config.File, o history.Options) ([]config.Action, []string, error) {
	s.Changing(nil)
	return s.History.Apply(f, o)
}

// Back is refused in the same case as Apply.
func (s liveSwitch) Back(n int, o history.Options) ([]config.Action, []string, error) {
	s.Changing(nil)
	return s.History.Back(n, o)
}

func (s liveSwitch) Plug(o plug.Plug) ([]string, error) { return plug.Put(s.Switch, o) }

func (s liveSwitch) Unplug(id string) (notes []string, err error) {
	_, notes, err = plug.Remove(s.Switch, id)
	return notes, err
}

// errWouldChange is the result of a dry run that found changes.
var errWouldChange = errors.New("there is something to do")

func newApply(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "apply [FILE ...]",
		Short: "make bridges match files",
		Long: `Read files that describe bridges, and make the running bridges match: their
settings, ports, VLANs, MAC rules, bindings, span ports, FDB entries and pf.
FILE is YAML, or a hostname.if(5) file for veb(4) or bridge(4) of OpenBSD. A
folder stands for all *.yaml, *.yml and hostname.* files in it, - for standard
input. config.md, in /usr/local/share/doc/bascule or below another prefix,
explains the files.

The bridges are in the network namespace that a file names with 'netns: NAME',
or else in the command's. With -n, a file that names another one is refused.

A bridge that a file names becomes what the file says: settings that are not in
the file get their defaults, and anything else that is not in it is removed.
Only pf, and the addresses of host ports, stay as they are if the file does not
mention them. Other bridges are left alone. Everything is checked first; if
something is wrong, nothing is changed. Then each action is printed on a line
and carried out: + is added, - removed, ~ changed. If everything is as it should
be, nothing is printed. If an apply fails or is killed, the next one finishes
its work. Several at once run one after the other.

A port whose device does not exist waits for it, with a warning.

With --confirm TIME the change is put back after that time unless 'bascule apply
confirm' comes first, even if the change has cut you off, or the machine
restarts meanwhile. The bridges that the files name become what they were
before, whatever was done to them since; a bridge that did not exist is removed.
While a change waits to be confirmed, others are refused. Files that were put
back are refused from then on, also from the agent, unless they have changed, or
--confirm or --yes is given. Instead of files, --back [N] applies the state of N
states ago (1 without N); 0 undoes what commands have changed since. It covers
the bridges that files have named since then. --history lists the last 20
states, and what each change did.

A file that may cut the host off by mistake is refused unless --yes is given:
one that removes a port with a carrier while a port with a similar name waits
for its device, or one that takes away the port, the address or the route of the
ssh session that the command comes through.`,
		Example: `  #! run: devices em0; mkdir -p /etc/bascule; echo 'bridges: {br0: }' | tee switch.yaml >/etc/bascule/switch.yaml; printf 'add em0\nup\n' >/etc/hostname.veb0
  #! status 3: bascule apply --dry-run switch.yaml
  # show what would be done; the exit status is 3 if there is anything
  bascule apply --dry-run switch.yaml
  # put the change back after a minute unless it is confirmed
  bascule apply --confirm 60s switch.yaml
  bascule apply confirm
  # list the states, and go back to the one before
  bascule apply --history
  bascule apply --back
  bascule apply -f /etc/bascule
  bascule apply /etc/hostname.veb0
  # save the running bridges as a file
  bascule export > switch.yaml`,
		Annotations: map[string]string{
			"1": "refused or failed; standard error has a line for each mistake in a file",
		},
	}
	var files []string
	cmd.Flags().StringArrayVarP(&files, "file", "f", nil, "read this `FILE` or folder; may be given several times")
	dry := addDryRun(cmd)
	confirm := addConfirm(cmd)
	back := &word{name: "N"}
	cmd.Flags().Var(back, "back", "apply the state of `N` states ago, 1 by default")
	cmd.Flags().Lookup("back").NoOptDefVal = "1"
	completeNumber := these([]string{"0", "1", "2", "3"})
	completeFlag(cmd, "back", completeNumber)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if cmd.Flags().Changed("back") {
			return completed("N", completeNumber(cmd, args), word)
		}
		return nil, cobra.ShellCompDirectiveDefault // files
	}
	list := cmd.Flags().Bool("history", false, "list the states that are kept")
	overdue := cmd.Flags().Bool("overdue", false, "wait until no change waits to be confirmed, and put it back then")
	cmd.Flags().Lookup("overdue").Hidden = true
	yes := addYes(cmd)
	p.addForce(cmd)
	cmd.Flags().Lookup("force").Usage += "; " + forceStack
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if slices.Contains(files, "") {
			return usagef(cmd, "--file: FILE is empty")
		}
		if *overdue {
			return p.watchChange()
		}
		change := history.Options{Options: config.Options{DryRun: *dry, Yes: *yes, PF: keptSource}, Who: history.Caller(), Confirm: confirm.time}
		if at, ok := history.CallersSession(); ok {
			change.Session = config.Session{Client: at.Client.Addr(), Server: at.Server.Addr()}
		}
		if *dry && change.Confirm > 0 {
			return usagef(cmd, "--confirm and --dry-run: give one of them")
		}
		switch {
		case *list:
			if len(files)+len(args) > 0 || back.text != "" || change.Confirm > 0 || *dry || *yes {
				return usagef(cmd, "--history takes no other option and no FILE")
			}
			return p.with(p.printHistory)
		case back.text != "":
			return p.goBack(cmd, back.text, slices.Concat(files, args), change)
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
		if errors.Is(err, fs.ErrNotExist) && closest(paths[0], []string{"confirm"}) != "" {
			err = fmt.Errorf("%w; did you mean 'bascule apply confirm'?", err)
		}
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
		change.What = strings.Join(paths, " ")
		return p.apply(config.ByNetns(list, p.netns.text), change)
	}
	cmd.AddCommand(newApplyConfirm(p))
	return cmd
}

// A confirmTime is the value of --confirm.
type confirmTime struct {
	text string
	time time.Duration
}

func (c *confirmTime) Set(text string) (err error) {
	c.text = text
	c.time, err = history.ParseConfirm(text)
	return err
}

func (c *confirmTime) Type() string   { return "TIME" }
func (c *confirmTime) String() string { return c.text }

// shortTime formats a duration without zero parts: 1h, and not 1h0m0s.
func shortTime(d time.Duration) string {
	s := d.String()
	s = strings.TrimSuffix(s, "0s")
	if s != "" && !strings.HasSuffix(s, "m") {
		return d.String()
	}
	if t := strings.TrimSuffix(s, "0m"); t != s && strings.HasSuffix(t, "h") {
		s = t
	}
	return s
}

// addConfirm gives a command the flag --confirm.
func addConfirm(cmd *cobra.Command) *confirmTime {
	c := &confirmTime{}
	cmd.Flags().Var(c, "confirm", "put the change back after this `TIME`, 1s to 24h, unless it is confirmed")
	return c
}

// addYes gives a command the flag --yes.
func addYes(cmd *cobra.Command) *bool {
	return cmd.Flags().Bool("yes", false, "apply even what may cut the host off, and files that were put back")
}

// startWatch starts the process that reverts a change of a network namespace without a
// confirmation.
func startWatch(netns string) error {
	args := []string{"apply", "--overdue"}
	if netns != "" {
		args = append([]string{"-n", absolute(netns)}, args...)
	}
	return history.StartWatch(args...)
}

// addDryRun gives a command the flag --dry-run.
func addDryRun(cmd *cobra.Command) *bool {
	dry := new(bool)
	dryRunFlag(cmd, dry)
	return dry
}

func dryRunFlag(cmd *cobra.Command, dry *bool) {
	if cmd.Annotations == nil {
		cmd.Annotations = map[string]string{}
	}
	cmd.Annotations["3"] = "with --dry-run: there is something to do; nothing was changed"
	cmd.Flags().BoolVar(dry, "dry-run", false, "only print what would be done; the exit status is 3 if there is anything")
}

func newApplyConfirm(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "confirm",
		Short: "keep a change that waits to be confirmed",
		Long: `Keep the change that was applied with --confirm in this network namespace, and
in the others that its files name. A change of another user is confirmed only
with --yes: it may have cut that user off.

A script can repeat the command if it has lost the answer: the status is 0 also
if the last change was confirmed before, and 1 if it was put back.`,
		Example: `  #! run: echo 'bridges: {br0: }' >switch.yaml
  bascule apply --confirm 60s switch.yaml
  bascule apply confirm`,
		Annotations: map[string]string{
			"1": "refused or failed, or no change waits; one line on standard error says why, and whether the last change was put back",
		},
	}
	yes := cmd.Flags().Bool("yes", false, "confirm a change of another user, too")
	cmd.RunE = func(*cobra.Command, []string) error {
		who := history.Caller()
		var change *history.Pending
		err := p.with(func(s switcher) (err error) {
			var warnings []string
			change, warnings, err = s.Confirm(who, *yes)
			p.warn(warnings)
			return err
		})
		if err != nil {
			return err
		}
		for _, netns := range change.Others {
			if _, gone := os.Lstat(bridge.NetnsPath(netns)); errors.Is(gone, fs.ErrNotExist) {
				p.warn([]string{fmt.Sprintf("network namespace %s is gone, and its part of the change with it", netns)})
				continue
			}
			err = errors.Join(err, p.in(netns, func(s switcher) error {
				if other, err := s.Pending(); err != nil || other == nil || other.ID != change.ID {
					return err
				}
				_, warnings, err := s.Confirm(who, *yes)
				p.warn(warnings)
				return err
			}))
		}
		return err
	}
	return cmd
}

// absolute returns a name or path of a network namespace that does not depend on the current
// folder.
func absolute(netns string) string {
	if !strings.Contains(netns, "/") {
		return netns
	}
	if path, err := filepath.Abs(netns); err == nil {
		return path
	}
	return netns
}

// in opens the switch of a network namespace, and closes it after f.
func (p *program) in(netns string, f func(switcher) error) error {
	s, err := p.openForced(netns)
	if err != nil {
		return err
	}
	return errors.Join(f(s), s.Close())
}

// goBack applies a former state.
func (p *program) goBack(cmd *cobra.Command, count string, args []string, o history.Options) error {
	if count == "1" && len(args) == 1 { // --back N; --back alone takes no value
		count, args = args[0], nil
	}
	n, err := strconv.Atoi(count)
	switch {
	case len(args) > 0:
		return usagef(cmd, "--back takes a number of states and no FILE")
	case err != nil || n < 0 || n > history.Kept:
		return usagef(cmd, "--back: %q is not a number of states; give 0 to %d", count, history.Kept)
	}
	o.What = "back to " + count
	return p.carryOut([]string{p.netns.text}, o, func(s switcher, _ int, o history.Options) ([]config.Action, []string, error) { return s.Back(n, o) })
}

// watchChange is the main function of the process that reverts a change.
func (p *program) watchChange() error {
	log, err := syslog.New(syslog.LOG_DAEMON|syslog.LOG_WARNING, "bascule")
	return history.Watch(p.netns.text, func(text string) {
		if err == nil {
			_ = log.Warning(text) // 'apply --history' has the text, too
		}
	})
}

func (p *program) printHistory(s switcher) error {
	waits, err := s.Pending()
	if err != nil {
		return err
	}
	states, err := s.States()
	if err != nil {
		return err
	}
	list := answer.OfStates(waits, states)
	return printList(p, list, func(st answer.State) answer.State { return st }, "N TIME WHO BRIDGES WHAT CHANGE", func(st answer.State) []string {
		n := "-"
		if st.Back != nil {
			n = strconv.Itoa(*st.Back)
		}
		what := st.What
		if st.Until != nil {
			words := ", to be confirmed by "
			if waits.Overdue() {
				words = ", not confirmed until "
			}
			what += words + st.Until.Local().Format(time.TimeOnly)
		}
		return []string{n, st.Time.Local().Format(time.DateTime), st.Who, orDash(strings.Join(st.Bridges, ",")), what, orDash(st.Change)}
	})
}

// apply brings the switches of several namespaces into the state of files. It checks all of them
// before it changes the first.
func (p *program) apply(list []config.File, o history.Options) error {
	if len(list) > 1 {
		for _, f := range list {
			dry := o
			dry.DryRun = true
			err := p.in(f.Netns, func(s switcher) error { _, _, err := s.Apply(f, dry); return err })
			if err != nil {
				return err
			}
		}
	}
	var spaces []string
	for _, f := range list {
		spaces = append(spaces, f.Netns)
	}
	if len(list) > 1 && o.Confirm > 0 {
		o.ID = history.NewID()
		for _, f := range list {
			err := p.in(f.Netns, func(s switcher) error { o.Others = append(o.Others, s.Name()); return nil })
			if err != nil {
				return err
			}
		}
		o.Others = slices.DeleteFunc(o.Others, func(name string) bool { return name == "" })
	}
	return p.carryOut(spaces, o, func(s switcher, i int, o history.Options) ([]config.Action, []string, error) {
		return s.Apply(list[i], o)
	})
}

// carryOut applies something in several namespaces, one after the other, and prints the actions.
func (p *program) carryOut(spaces []string, o history.Options, do func(s switcher, i int, o history.Options) ([]config.Action, []string, error)) error {
	all := []answer.Action{}
	changes := false
	var failure error
	for i, netns := range spaces {
		var printing sync.WaitGroup
		o := o
		o.Report = func(actions []config.Action) {
			changes = changes || len(actions) > 0
			if p.json {
				for _, a := range actions {
					all = append(all, answer.OfAction(netns, a))
				}
				return
			}
			printing.Go(func() { // a slow reader must not delay other changes
				if len(spaces) > 1 && len(actions) > 0 {
					fmt.Fprintln(p.out, "# network namespace", orDash(netns))
				}
				for _, a := range actions {
					fmt.Fprintln(p.out, a)
				}
				p.out.Flush()
			})
		}
		o.Watch = func() error {
			if os.Getpid() == 1 { // an agent lives on
				return errors.New("this command is the first process of its PID namespace, and all processes there end with it; run it from a shell")
			}
			return startWatch(netns)
		}
		var warnings []string
		failure = p.in(netns, func(s switcher) (err error) {
			_, warnings, err = do(s, i, o)
			if err != nil || o.Confirm > 0 || o.DryRun {
				return err
			}
			if waits, err := s.Pending(); err == nil && waits != nil { // of these files
				warnings = append(warnings, fmt.Sprintf("the change is to be confirmed until %s: 'bascule apply confirm' keeps it", waits.Until.Format(time.TimeOnly)))
			}
			return nil
		})
		printing.Wait()
		p.warn(warnings)
		if failure == nil {
			continue
		}
		for _, before := range spaces[:i] { // a change to confirm covers all or none
			if o.Confirm > 0 {
				back := p.in(before, func(s switcher) error { _, _, err := s.Back(1, history.Options{Who: o.Who}); return err })
				failure = errors.Join(failure, back)
			}
		}
		break
	}
	if p.json && (failure == nil || len(all) > 0) {
		if err := p.printJSON(all); err != nil {
			return err
		}
	}
	switch {
	case failure != nil:
		return failure
	case o.DryRun && changes:
		return errWouldChange
	case o.Confirm > 0 && changes:
		p.complain(fmt.Sprintf("the change is put back in %s, unless 'bascule apply confirm' comes before", shortTime(o.Confirm)))
	case o.Confirm > 0:
		p.complain("nothing is changed, so there is nothing to confirm")
	}
	return nil
}
