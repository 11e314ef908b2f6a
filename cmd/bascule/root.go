// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"bascule/bridge"

	"github.com/spf13/cobra"
)

func init() {
	cobra.EnableCommandSorting = false // the commands have an order
}

// A branch is a command below the root.
type branch struct {
	name string
	make func(*program) *cobra.Command
}

// objects are the commands below the root, in the order of help.
var objects = []branch{
	{"bridge", newBridge},
	{"port", newPort},
	{"plug", newPlug},
	{"unplug", newUnplug},
	{"fdb", newFDB},
	{"span", newSpan},
	{"rule", newRule},
	{"vlan", newVLAN},
	{"binding", newObject(bridge.BindingObject)},
	{"apply", newApply},
	{"export", newExport},
	{"pfctl", newPfctl},
	{"pflog", newPFLog},
	{"agent", newAgent},
	{"monitor", newMonitor},
	{"stats", newStats},
	{"top", newTop},
	{"capture", newCapture},
	{"trace", newTrace},
	{"lab", newLab},
	{"demo", newDemo},
	{"check", newCheck},
	{"version", newVersion},
	{wholeTree, newCompletion},
	{wholeTree, newMan},
}

// wholeTree stands for all objects.
const wholeTree = ""

// wanted returns the object that the arguments name, "" for all. It saves time: most commands end
// before all objects could have been built.
func wanted(args []string) string {
	for i := 0; i < len(args); i++ {
		switch a := args[i]; {
		case a == "-n" || a == "--netns":
			i++
		case a == "-j" || a == "--json" || strings.HasPrefix(a, "--netns="):
		default:
			if slices.ContainsFunc(objects, func(o branch) bool { return o.name == a }) {
				return a
			}
			return wholeTree
		}
	}
	return wholeTree
}

// newRoot returns the command line. Every object is one command; help, man
// pages and completion come from these definitions.
func newRoot(p *program) *cobra.Command { return newRootOf(p, wholeTree) }

// newRootOf returns the command line with only one object.
func newRootOf(p *program, only string) *cobra.Command {
	root := &cobra.Command{
		Use:   "bascule",
		Short: "an Ethernet switch in the kernel",
		Long: `bascule is a learning Ethernet switch for Linux. eBPF programs at its ports
forward every frame in the kernel; no process is involved. The command line is
stateless, like ip(8): a bridge stays until it is removed or the machine
restarts. bascule needs root, and Linux 6.6 or any kernel with tcx backported.

Each network namespace has its own bridges. A bridge has ports: network devices
through which frames enter and leave. The FDB of a bridge knows which port an
address is behind.`,
		Example: `  #! run: devices veth0 veth1; ip netns add lab; bascule -n lab bridge add br0
  #! ended bascule monitor: bascule fdb flush br0; send veth0; test -s $out
  # two interfaces, one switch
  bascule bridge add br0
  bascule port add br0 veth0
  bascule port add br0 veth1
  bascule port show
  # show the learned addresses as JSON, in the network namespace lab
  bascule -n lab -j fdb show br0
  # print events as they happen
  bascule monitor br0`,
		SilenceErrors: true,
		SilenceUsage:  true,
		// Flags before a command are parsed before it, so that pfctl can have its own -n.
		TraverseChildren: true,
		// Runs after flags and arguments have been checked: later failures are not usage
		// errors.
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if why, ok := cmd.Annotations[noJSON]; ok && p.json {
				return usagef(cmd, "--json %s", why)
			}
			p.running = true
			return nil
		},
	}
	p.netns.name = "NETNS"
	root.PersistentFlags().SortFlags = false
	root.PersistentFlags().VarP(&p.netns, "netns", "n", "act in this network namespace: a name of ip-netns(8), or a path")
	root.PersistentFlags().BoolVarP(&p.json, "json", "j", false, "print JSON")
	root.Flags().Bool("version", false, "print the version")
	root.CompletionOptions.DisableDefaultCmd = true
	root.SetHelpCommand(newHelp(p))
	root.SetHelpFunc(func(cmd *cobra.Command, _ []string) {
		// a word that remains after a command with subcommands is not one of them
		if words := cmd.Flags().Args(); onlyCommands(cmd) && len(words) > 0 {
			p.unknown = unknownCommand(cmd, words[0])
			return
		}
		printHelp(p.out, cmd)
	})
	root.SetUsageFunc(func(cmd *cobra.Command) error { printHelp(p.out, cmd); return nil })
	root.SetFlagErrorFunc(flagError)
	completeFlag(root, "netns", func(*cobra.Command, []string) []string { return namespaces() })

	for _, o := range objects {
		if only == wholeTree || only == o.name {
			root.AddCommand(o.make(p))
		}
	}
	finish(root)
	help := root.RunE
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if asked, err := cmd.Flags().GetBool("version"); err != nil || !asked {
			return help(cmd, args)
		}
		if p.json {
			return p.printJSON(buildInfo())
		}
		fmt.Fprintln(p.out, "bascule", buildVersion())
		return nil
	}
	return root
}

// finish adds the common parts to every command of the tree.
func finish(cmd *cobra.Command) {
	cmd.DisableFlagsInUseLine = true
	cmd.Flags().SortFlags = false
	cmd.LocalFlags().SortFlags = false
	cmd.InheritedFlags().SortFlags = false
	cmd.Flags().BoolP("help", "h", false, "explain the command")
	completeNoFiles(cmd)
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	switch {
	case cmd.HasSubCommands() && !cmd.Runnable():
		cmd.Args = cobra.ArbitraryArgs
		cmd.Annotations = map[string]string{onlyObject: ""}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknownCommand(cmd, args[0])
			}
			printHelp(cmd.OutOrStdout(), cmd)
			return nil
		}
	case cmd.Args == nil:
		cmd.Args = checkArguments
	}
	for _, sub := range cmd.Commands() {
		finish(sub)
	}
}

// newHelp is `bascule help port add`, the same as `bascule port add --help`.
func newHelp(p *program) *cobra.Command {
	return &cobra.Command{
		Use: "help [COMMAND ...]",
		Long: `Explain a command, as --help after it does. 'help reasons' explains why frames
are dropped, and 'help reasons REASON ...' only those reasons. 'help routed'
explains what happens to packets for a routed host port.`,
		Example: `  bascule help fdb add
  bascule help reasons mtu`,
		Short: "explain a command, or the reasons for drops",
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if t := topicOf(args); t != nil {
				return p.printTopic(t, args[1:])
			}
			if p.json {
				return usagef(cmd, "--json is for 'help %s'", strings.Join(helpTopics(cmd.Root()), "' and 'help "))
			}
			about, rest, err := cmd.Root().Find(args)
			if err != nil || len(rest) > 0 {
				return unknownCommand(about, rest[0])
			}
			printHelp(cmd.OutOrStdout(), about)
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			var names []string
			if about, rest, err := cmd.Root().Find(args); err == nil && len(rest) == 0 {
				for _, sub := range visible(about) {
					names = append(names, sub.Name()+"\t"+sub.Short)
				}
			}
			if t := topicOf(args); t != nil {
				for _, r := range t.list() {
					if !slices.Contains(args, r.Name) {
						names = append(names, r.Name+"\t"+r.Text)
					}
				}
				return names, cobra.ShellCompDirectiveNoFileComp
			}
			if len(args) == 0 {
				for _, t := range topics {
					names = append(names, t.name+"\t"+t.short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
	}
}

// newMan writes the man pages of all commands to a folder.
func newMan(*program) *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "write the man pages into a folder",
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			for name, text := range manPages(cmd.Root()) {
				if err := os.WriteFile(args[0]+"/"+name, text, 0o644); err != nil {
					return fmt.Errorf("cannot write man page %s: %w", name, err)
				}
			}
			return nil
		},
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
	}
}
