// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"bascule/lab"
	"bascule/lab/fabrics"
	"bascule/lab/guests"
	"bascule/lab/report"
	"bascule/lab/studies"
	"bascule/lab/workloads"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newLab(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "lab",
		Short: "measure bridges on this machine",
		Long: `Measure bridges on this machine, bascule among them, against each other. The lab
works in network namespaces that it creates and removes afterwards, with all
peers interleaved in every round. It does not touch the machine's own network.`,
		Example: `  #! run: cp $source/lab/testdata/old.json $source/lab/testdata/new.json .; cp new.json report.json
  #! not run bascule lab run: it measures for minutes
  #! not run bascule lab reproduce: it measures for minutes
  bascule lab list
  bascule lab run --profile demo
  bascule lab run --fabric linux-bridge,bascule --workload pps -o report/
  bascule lab reproduce neutron
  bascule lab compare old.json new.json
  bascule lab report report.json --html > report.html`,
	}
	cmd.AddCommand(newLabRun(p), newLabReproduce(p), newLabCompare(p), newLabReport(p), newLabList(p), newLabTraffic(p), newLabGuest(), newLabInside())
	return cmd
}

func newLabRun(p *program) *cobra.Command {
	var o lab.Options
	var file, kernel string
	var inVM bool
	var where *choice
	cmd := &cobra.Command{
		Use:   "run",
		Short: "send workloads over fabrics and print the measurements",
		Long: `Build fabrics, send workloads over them round by round, and print medians,
ratios within each round, and CPU. Progress goes to standard error. Ctrl-C ends
the run early, cleans up and prints what was measured so far.

A workload is a kind with parameters, as in tcp-stream:streams=4:offloads; lab
list shows them. One fabric is called faster than another only if Mann and
Whitney's test tells their rounds apart (p < 0.05), which takes 4 rounds of each
or more.

Without options it runs the profile demo, which shows TCP over a cable, a Linux
bridge and a bascule in less than a minute. The profile bench measures every
figure that bascule is held to, and fails only when it cannot measure one. With
--fabric or --workload and no profile, each of the named workloads runs on each
of the named fabrics.

With --ends vm the ends are virtual machines of QEMU, one CPU each, on taps in
place of veth cables. They use KVM where it works, and the report says whether
it did. Their kernel is Debian's linux-image-cloud-amd64: apt-get downloads it
into /var/cache/bascule (or $XDG_CACHE_HOME/bascule) and does not install it. A
kernel that is there is used again; remove it to get a newer one.

With --in-vm all of the lab runs in one virtual machine of QEMU, whose
instructions QEMU counts, and the figures are instructions of a frame. They come
out the same on a busy machine as on an idle one, to some 0.1 %. They say
nothing of caches, of CPUs that wait for each other, and of network cards. The
profile is exact then, unless fabrics or workloads are named: those of
instructions are one-by-one, in-batches and copies. The kernel is the newest of
Debian's backports, or the one that --kernel names, downloaded into the same
place: some 40 MiB, and 50 for the list of its suite. The profile exact takes 17
minutes on two busy cores, and the machine 3 GiB of memory.`,
		Example: `  #! not run: it measures for minutes
  bascule lab run --profile demo
  bascule lab run --profile bench -o bench.json
  bascule lab run --profile bench --group features,chain
  bascule lab run --fabric linux-bridge,bascule --workload pps --rounds 10
  bascule lab run --in-vm --fabric direct,bascule --workload one-by-one`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.inNoNetns(cmd); err != nil {
				return err
			}
			for flag, list := range map[string][]string{"group": o.Groups, "fabric": o.Fabrics, "workload": o.Workloads} {
				if cmd.Flags().Changed(flag) && len(list) == 0 {
					return usagef(cmd, "--%s is empty", flag)
				}
			}
			if cmd.Flags().Changed("rounds") && (o.Rounds < 1 || o.Rounds > mostRounds) {
				return usagef(cmd, "--rounds %d: give 1 to %d", o.Rounds, mostRounds)
			}
			// RFC 791: every IPv4 network carries 68 bytes; 65535 is the limit of a
			// veth.
			if mtu := o.Setup.MTU; cmd.Flags().Changed("mtu") && (mtu < 68 || mtu > 65535) {
				return usagef(cmd, "--mtu %d: give 68 to 65535", mtu)
			}
			o.Setup.Guests = where.text == "vm"
			if err := inVMUsage(cmd, inVM, o.Setup.Guests, kernel); err != nil {
				return err
			}
			o.Counting = inVM
			profile, err := lab.Select(o)
			if err != nil {
				return labUsage(cmd, err)
			}
			if !inVM {
				return p.runLab(cmd.Context(), profile, file, lab.Run)
			}
			return p.runLab(cmd.Context(), profile, file,
				func(ctx context.Context, site fabrics.Site, _ lab.Profile, progress *lab.Progress) (*report.Report, error) {
					k, err := lab.Pinned(ctx, kernel, progress)
					if err != nil {
						return nil, err
					}
					return lab.RunInside(ctx, site, o, k, progress)
				})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&inVM, "in-vm", false, "in a virtual machine whose instructions are counted, and report instructions")
	kernelFlag(cmd, &kernel)
	f.StringVar(&o.Profile, "profile", "", "what to measure, a `PROFILE`: "+strings.Join(lab.ProfileNames, ", ")+
		"; without --fabric and --workload demo, with --in-vm exact")
	f.StringSliceVar(&o.Groups, "group", nil, "only these groups of the profile, a `LIST` with commas; see lab list")
	f.StringSliceVar(&o.Fabrics, "fabric", nil, "only these fabrics, a `LIST` with commas; see lab list")
	f.StringSliceVar(&o.Workloads, "workload", nil, "only these workloads, a `LIST` with commas; see lab list")
	where = endsFlag(cmd)
	f.IntVar(&o.Rounds, "rounds", 0, fmt.Sprintf("`N` rounds that count, 1 to %d, instead of the profile's own", mostRounds))
	f.BoolVar(&o.Setup.Host, "from-host", false, "send from the host's own interface on the fabric instead of from an end")
	f.IntVar(&o.Setup.MTU, "mtu", 0, "largest packet of the ends and all between them, in `BYTES`, 68 to 65535, instead of 1500")
	quickFlag(f, &o.Quick)
	outputFlag(f, &file)
	completeFlag(cmd, "profile", these(lab.ProfileNames))
	completeFlag(cmd, "group", func(*cobra.Command, []string) []string {
		if inVM {
			return lab.Exact(false).GroupNames()
		}
		return lab.Bench(false).GroupNames()
	})
	completeFlag(cmd, "fabric", func(*cobra.Command, []string) []string { return lab.FabricNames() })
	completeFlag(cmd, "workload", func(*cobra.Command, []string) []string {
		var names []string
		for _, k := range workloads.Kinds {
			names = append(names, k.Name)
		}
		return names
	})
	return cmd
}

func kernelFlag(cmd *cobra.Command, kernel *string) {
	cmd.Flags().StringVar(kernel, "kernel", "", "for --in-vm, the kernel whose `VERSION` begins so, instead of the newest: "+strings.Join(lab.Kernels(), ", "))
	completeFlag(cmd, "kernel", these(lab.Kernels()))
}

// mostRounds exceeds any practical number of rounds. All samples of a run are kept in memory.
const mostRounds = 100_000

// inVMUsage refuses flags that exclude each other.
func inVMUsage(cmd *cobra.Command, inVM, vmEnds bool, kernel string) error {
	switch {
	case !inVM && cmd.Flags().Changed("kernel"):
		return usagef(cmd, "--kernel is for --in-vm")
	case inVM && vmEnds:
		return usagef(cmd, "--in-vm and --ends vm: a virtual machine has no others inside")
	case cmd.Flags().Changed("kernel") && kernel == "":
		return usagef(cmd, "--kernel is empty: give one of %s", strings.Join(lab.Kernels(), ", "))
	case kernel == "":
		return nil
	}
	if _, err := guests.FindPins(kernel); err != nil {
		return usagef(cmd, "--kernel %s: no such kernel: give one of %s", kernel, strings.Join(lab.Kernels(), ", "))
	}
	return nil
}

func endsFlag(cmd *cobra.Command) *choice {
	return addChoice(cmd, "ends", "netns", "what the ends are: network namespaces or virtual machines", "netns", "vm")
}

func quickFlag(f *pflag.FlagSet, quick *bool) {
	f.BoolVar(quick, "quick", false, "few and short rounds, for a quick look, not for a claim")
}

func outputFlag(f *pflag.FlagSet, file *string) {
	f.StringVarP(file, "output", "o", "", "also write the report to `FILE`, by its ending as .json, .html, .md, .csv or .txt; or all of them into a folder of this name")
}

// labUsage returns the error for an unknown name or parameter, with the most similar known one.
func labUsage(cmd *cobra.Command, err error) error {
	var unknown *workloads.UnknownError
	if errors.As(err, &unknown) {
		likely := guess(unknown.Name, "", unknown.Known)
		if likely == "" && len(unknown.Known) < 10 {
			likely = ": give one of " + strings.Join(unknown.Known, ", ")
		}
		return &usageError{what: err.Error() + likely, help: cmd.CommandPath(), see: "bascule lab list"}
	}
	return usagef(cmd, "%s", err)
}

func newLabReproduce(p *program) *cobra.Command {
	var quick, inVM bool
	var file, kernel string
	var where *choice
	names := append(studies.Names(), "all")
	cmd := &cobra.Command{
		Use:   "reproduce STUDY",
		Short: "repeat published comparisons",
		Long: `Repeat the experiments of published comparisons of bridges on this machine, with
bascule among the peers. For each of their claims print whether it holds here,
does not hold, needs more rounds, or cannot be tested, and why. STUDY is one of
these, or all:

  veb        OpenBSD veb(4) against bridge(4)
  if-bridge  FreeBSD if_bridge, a mutex against epoch(9)
  router     which system routes a gigabit best
  neutron    seven fabrics of OpenStack Neutron
  kvm        a Linux bridge against Open vSwitch under KVM

A claim holds if the whole 95 % interval of its ratio here is on its side. The
cases of a claim have further rounds until the interval is narrow enough to tell
a difference of a tenth, for 4 minutes of each group at most. All studies take
36 minutes on two cores, and 55 minutes with --in-vm. --quick has 2 short rounds
of each case, too few for an interval, and takes 5 minutes.

With --in-vm the groups whose claims this machine cannot test are measured in
virtual machines of QEMU, one for each group; the others on this machine, as
without. Those are the groups of Open vSwitch, where the kernel here has no
datapath for it, of two hosts, and of two kinds of network card. The ends are
network namespaces there. QEMU counts the machine's instructions, and its clock
goes on by a nanosecond for each. So a ratio of two throughputs is a ratio of
instruction costs: of all that the sender, the switch and the receiver do. The
report says of each group and claim where it was measured. The kernel is that of
lab run --in-vm; groups of network cards take the one with all drivers, some 130
MiB. Each machine has 3 GiB of memory, and a second in it takes ten and more.
The studies with such groups are neutron and kvm, where the kernel here has no
datapath of Open vSwitch, kvm for two hosts, and router for two kinds of card.
The claims that this machine tests are measured there once more, and decided by
instructions as well; not those about CPUs that wait for each other.`,
		Example: `  #! not run: it measures for minutes
  bascule lab reproduce veb
  bascule lab reproduce all -o report/
  bascule lab reproduce all --in-vm -o report/
  bascule lab reproduce neutron --quick`,
		ValidArgsFunction: completeArguments(these(names)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := p.inNoNetns(cmd); err != nil {
				return err
			}
			vm := where.text == "vm"
			if err := inVMUsage(cmd, inVM, vm, kernel); err != nil {
				return err
			}
			if !inVM {
				profile, err := lab.Reproduce(args[0], quick, vm)
				if err != nil {
					return labUsage(cmd, err)
				}
				return p.runLab(cmd.Context(), profile, file, lab.Run)
			}
			profile, err := lab.ReproduceInside(args[0], quick)
			if err != nil {
				return labUsage(cmd, err)
			}
			if !profile.Counts() && !slices.ContainsFunc(profile.Groups, func(g lab.Group) bool { return g.Inside }) {
				p.complain("no group of " + args[0] + " takes a virtual machine: all is measured on this machine")
				return p.runLab(cmd.Context(), profile, file, lab.Run)
			}
			return p.runLab(cmd.Context(), profile, file,
				func(ctx context.Context, site fabrics.Site, profile lab.Profile, progress *lab.Progress) (*report.Report, error) {
					k, err := lab.Pinned(ctx, kernel, progress)
					if err != nil {
						return nil, err
					}
					return lab.RunReproduced(ctx, site, args[0], quick, profile, k, progress)
				})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&inVM, "in-vm", false, "measure what this machine lacks in virtual machines whose instructions are counted")
	kernelFlag(cmd, &kernel)
	where = endsFlag(cmd)
	quickFlag(f, &quick)
	outputFlag(f, &file)
	return cmd
}

// runner measures a profile, like lab.Run.
type runner func(context.Context, fabrics.Site, lab.Profile, *lab.Progress) (*report.Report, error)

// runLab measures a profile and prints the report. If the run ends early, it prints the results so
// far.
func (p *program) runLab(ctx context.Context, profile lab.Profile, file string, run runner) error {
	if os.Geteuid() != 0 {
		return errors.New("cannot run the lab: it makes network namespaces, which only root may; run it with sudo")
	}
	var files []string
	if file != "" {
		var err error
		if files, err = outputFiles(file); err != nil {
			return err
		}
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("cannot run the lab: its own program is not found: %w; run it by its path", err)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	progress := lab.NewProgress(p.stderr)
	if !p.json {
		progress.ShowGroups(p.stdout)
	}
	r, err := run(ctx, fabrics.Site{Bascule: self}, profile, progress)
	if err != nil {
		return fmt.Errorf("cannot run the lab: %w", err)
	}
	if p.json {
		err = r.WriteJSON(p.out)
	} else {
		err = r.WriteConclusion(p.out)
	}
	// Write the files even if standard output has failed.
	if written := writeReports(r, files); err == nil {
		err = written
	}
	if err != nil {
		return err
	}
	if ctx.Err() != nil {
		return errors.New("cannot finish the lab's run: it was interrupted; what was measured is above")
	}
	if failed, of := r.Failed(); len(failed) > 0 || of == 0 {
		return fmt.Errorf("cannot measure %s; see the report for the reasons", whatFailed(failed))
	}
	if missing := r.Missing(); profile.Strict && len(missing) > 0 {
		return fmt.Errorf("cannot measure %d of %d figures: %s; see the report for the reasons",
			len(missing), len(r.Figures), strings.Join(missing, ", "))
	}
	return nil
}

// newLabGuest is the init process of the lab's virtual machines.
func newLabGuest() *cobra.Command {
	return &cobra.Command{
		Use:    "guest",
		Short:  "be the first program of a virtual machine of the lab",
		Hidden: true,
		RunE: func(*cobra.Command, []string) error {
			if err := guests.Main(); err != nil {
				return fmt.Errorf("cannot be a guest of the lab: %w", err)
			}
			return nil
		},
	}
}

// newLabInside is the init process of a virtual machine in which a whole lab runs.
func newLabInside() *cobra.Command {
	return &cobra.Command{
		Use:    "inside",
		Short:  "be the first program of a virtual machine that a lab runs in",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := lab.Inside(cmd.Context()); err != nil {
				return fmt.Errorf("cannot be a lab in a virtual machine: %w", err)
			}
			return nil
		},
	}
}

// whatFailed names the cases without results; an empty list means that all were left out.
func whatFailed(labels []string) string {
	const named = 3
	switch n := len(labels); {
	case n == 0:
		return "anything: every case was left out"
	case n > named:
		return fmt.Sprintf("%s and %d others", strings.Join(labels[:named], ", "), n-named)
	}
	return strings.Join(labels, ", ")
}

// inNoNetns refuses -n, which has no effect on the lab.
func (p *program) inNoNetns(cmd *cobra.Command) error {
	if cmd.Flags().Changed("netns") {
		return usagef(cmd, "--netns is not for the lab, which makes network namespaces of its own")
	}
	return nil
}

func newLabList(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "list fabrics, workloads, profiles and studies",
		Long: `List the fabrics, which join the ends; the workloads, which are sent over them,
with their parameters and defaults; the profiles, which are choices of both, and
their groups; and the studies, which lab reproduce repeats.

Below each fabric is the path of a frame. The number between counts the network
devices and the bridges of the kernel or of Open vSwitch that the frame goes
through between its ends. bascule counts as none: its programs run at the ports,
whose devices are counted. At the hook tcx a frame goes from the port that it
came in by into the other end, past the device of the port that it leaves by.`,
		Example: `  bascule lab list
  bascule -j lab list | jq -r '.workloads[].name'`,
		RunE: func(*cobra.Command, []string) error {
			type param struct {
				Name    string `json:"name"`
				Default string `json:"default"`
				About   string `json:"about"`
			}
			type item struct {
				Name    string       `json:"name"`
				About   string       `json:"about"`
				Path    []report.Hop `json:"path,omitempty"`
				Devices int          `json:"devices,omitempty"`
				Missing string       `json:"missing,omitempty"`
				Params  []param      `json:"parameters,omitempty"`
				Groups  []string     `json:"groups,omitempty"` // of a profile
			}
			var fs, ws, ps []item
			for _, f := range fabrics.All {
				fs = append(fs, item{Name: f.Name, About: f.About, Path: f.Path, Devices: report.Devices(f.Path), Missing: f.Missing})
			}
			for _, k := range workloads.Kinds {
				w := item{Name: k.Name, About: k.About}
				for _, p := range k.Params() {
					w.Params = append(w.Params, param(p))
				}
				ws = append(ws, w)
			}
			for _, pr := range []lab.Profile{lab.Demo(), lab.Bench(false), lab.Exact(false)} {
				ps = append(ps, item{Name: pr.Name, About: pr.About, Groups: pr.GroupNames()})
			}
			repeated, err := studies.All()
			if err != nil {
				return err
			}
			var ss []item
			for _, s := range repeated {
				ss = append(ss, item{Name: s.Name, About: s.Title})
			}
			if p.json {
				return p.printJSON(map[string][]item{"fabrics": fs, "workloads": ws, "profiles": ps, "studies": ss})
			}
			for _, part := range []struct {
				title string
				items []item
			}{{"FABRIC", fs}, {"WORKLOAD", ws}, {"PROFILE", ps}, {"STUDY", ss}} {
				fmt.Fprintln(p.out, part.title)
				var list []fact
				for _, i := range part.items {
					list = append(list, fact{i.Name, i.About})
					if len(i.Path) > 0 {
						list = append(list, fact{"", fmt.Sprintf("%s (%d between)", report.Drawing(i.Path), i.Devices)})
					}
					if i.Missing != "" {
						list = append(list, fact{"", "cannot be measured: " + i.Missing})
					}
					if len(i.Groups) > 0 {
						list = append(list, fact{"", "groups: " + strings.Join(i.Groups, ", ")})
					}
					for _, p := range i.Params {
						list = append(list, fact{"", fmt.Sprintf(":%s=%s, %s", p.Name, p.Default, p.About)})
					}
				}
				printItems(p.out, list)
			}
			return nil
		},
	}
}
