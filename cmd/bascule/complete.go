// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"net"
	"os"
	"strings"

	"bascule/bridge"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
)

// newCompletion prints the script that teaches a shell to complete.
func newCompletion(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "print the completion script of a shell",
		Long: `Print a script that makes SHELL, which is bash, zsh or fish, complete bascule's
commands, flags and values, and the names of bridges, ports and interfaces.`,
		Example: `  #! not run bascule completion zsh: it takes zsh
  #! not run bascule completion fish: it takes fish
  # bash, with the package bash-completion: now, and in every new shell
  . <(bascule completion bash)
  bascule completion bash >/etc/bash_completion.d/bascule
  # zsh: into a folder of $fpath
  bascule completion zsh >"${fpath[1]}/_bascule"
  # fish
  bascule completion fish >~/.config/fish/completions/bascule.fish`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				return cmd.Root().GenBashCompletionV2(p.out, true)
			case "zsh":
				return cmd.Root().GenZshCompletion(p.out)
			case "fish":
				return cmd.Root().GenFishCompletion(p.out, true)
			}
			return usagef(cmd, "no completion for %q: give bash, zsh or fish", args[0])
		},
		ValidArgsFunction: completeArguments(func(*cobra.Command, []string) []string {
			return []string{"bash", "zsh", "fish"}
		}),
	}
}

// candidates finds the words that may stand at a place; args are the
// arguments before it. What cannot be found out is not offered: completion
// makes no noise.
type candidates func(cmd *cobra.Command, args []string) []string

// completeArguments completes the first argument by the first of places, and
// so on.
func completeArguments(places ...candidates) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(places) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return places[len(args)](cmd, args), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes the value of a flag of cmd.
func completeFlag(cmd *cobra.Command, name string, find candidates) {
	err := cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		return find(cmd, args), cobra.ShellCompDirectiveNoFileComp
	})
	if err != nil {
		panic(err) // no such flag, or done twice
	}
}

// bridgeNames are the bridges of the namespace.
func (p *program) bridgeNames(*cobra.Command, []string) (names []string) {
	_ = p.with(func(s fabric) error {
		list, err := s.Bridges()
		for _, b := range list {
			names = append(names, b.Name)
		}
		return err
	})
	return names
}

// portNames are the ports of the bridge that is the first argument.
func (p *program) portNames(_ *cobra.Command, args []string) (names []string) {
	if len(args) == 0 {
		return nil
	}
	_ = p.with(func(s fabric) error {
		list, err := s.Ports(args[0])
		for _, port := range list {
			names = append(names, port.Name)
		}
		return err
	})
	return names
}

// otherPorts are the ports of the bridge that is the first argument, but for the
// second, or none.
func (p *program) otherPorts(cmd *cobra.Command, args []string) (names []string) {
	for _, name := range p.portNames(cmd, args) {
		if len(args) < 2 || name != args[1] {
			names = append(names, name)
		}
	}
	return append(names, "none")
}

// addresses are the addresses in the FDB of the bridge that is the first
// argument, each with its port.
func (p *program) addresses(_ *cobra.Command, args []string) (macs []string) {
	_ = p.with(func(s fabric) error {
		list, err := s.FDB(args[0], bridge.Match{})
		for _, e := range list {
			macs = append(macs, e.MAC.String()+"\t"+e.Port)
		}
		return err
	})
	return macs
}

// interfaces are the namespace's interfaces that could become a port: no
// loopback, no port of a bridge or bond already.
func (p *program) interfaces(*cobra.Command, []string) (names []string) {
	handle, err := netlinkIn(p.netns.text)
	if err != nil {
		return nil
	}
	defer handle.Close()
	links, err := handle.LinkList()
	if err != nil {
		return nil
	}
	taken := map[string]bool{}
	_ = p.with(func(s fabric) error {
		ports, err := s.Ports("")
		for _, port := range ports {
			taken[port.Name] = true
		}
		return err
	})
	for _, link := range links {
		if a := link.Attrs(); a.Flags&net.FlagLoopback == 0 && a.MasterIndex == 0 && !taken[a.Name] {
			names = append(names, a.Name+"\t"+link.Type())
		}
	}
	return names
}

// netlinkIn talks to the kernel about a network namespace, named as `ip -n`
// takes it or by a path; "" is the caller's own.
func netlinkIn(name string) (*netlink.Handle, error) {
	if name == "" {
		return netlink.NewHandle()
	}
	get := netns.GetFromName
	if strings.Contains(name, "/") {
		get = netns.GetFromPath
	}
	ns, err := get(name)
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}

// namespaces are the network namespaces that have a name.
func namespaces() (names []string) {
	entries, _ := os.ReadDir("/run/netns")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
