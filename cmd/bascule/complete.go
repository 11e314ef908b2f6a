// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"errors"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"bascule/bridge"
	"bascule/rule"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/vishvananda/netlink"
)

// newCompletion prints the completion script for a shell.
func newCompletion(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "completion SHELL",
		Short: "print the completion script of a shell",
		Long: `Print a completion script for SHELL: bash, zsh or fish. It completes bascule's
commands, flags and values, and the names of bridges, ports and interfaces.`,
		Example: `  #! not run bascule completion zsh: it takes zsh
  #! not run bascule completion fish: it takes fish
  # bash: now, and in every new shell
  . <(bascule completion bash)
  bascule completion bash >/etc/bash_completion.d/bascule
  # zsh: into a folder of $fpath
  bascule completion zsh >"${fpath[1]}/_bascule"
  # fish
  bascule completion fish >~/.config/fish/completions/bascule.fish`,
		RunE: func(cmd *cobra.Command, args []string) error {
			switch args[0] {
			case "bash":
				var script bytes.Buffer
				if err := cmd.Root().GenBashCompletionV2(&script, true); err != nil {
					return err
				}
				_, err := p.out.WriteString(withoutPackage(script.String()))
				return err
			case "zsh":
				return cmd.Root().GenZshCompletion(p.out)
			case "fish":
				return cmd.Root().GenFishCompletion(p.out, true)
			}
			return usagef(cmd, "no completion for %q; give bash, zsh or fish", args[0])
		},
		ValidArgsFunction: completeArguments(these([]string{"bash", "zsh", "fish"})),
		Annotations:       map[string]string{noJSON: "is not for a script"},
	}
}

// withoutPackage changes a script for bash so that it works without the package bash-completion. It
// then uses the words as bash splits them, without a message.
func withoutPackage(script string) string {
	const asks = `_get_comp_words_by_ref "$@" cur prev words cword`
	return strings.ReplaceAll(script, asks, `if declare -F _get_comp_words_by_ref >/dev/null 2>&1; then
        `+asks+`
    else
        words=("${COMP_WORDS[@]}") cword=$COMP_CWORD
        cur=${words[cword]} prev=${words[cword - 1]}
    fi`)
}

// candidates finds the words for a position; args are the arguments before it. It returns nothing
// if a lookup fails, since completion must not print errors.
type candidates func(cmd *cobra.Command, args []string) []string

// these returns the words of a list.
func these(words []string) candidates {
	return func(*cobra.Command, []string) []string { return words }
}

// completeArguments completes the first argument with the first of places, and so on.
func completeArguments(places ...candidates) cobra.CompletionFunc {
	return completeRest(func(*cobra.Command, []string) []string { return nil }, places...)
}

// completeRest is completeArguments with a function for all further arguments.
func completeRest(rest candidates, places ...candidates) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		find, name := rest, ""
		if len(args) < len(places) {
			find, name = places[len(args)], arguments(cmd).names[len(args)]
		}
		return completed(name, find(cmd, args), word)
	}
}

// completeFlag completes the value of a flag of cmd.
func completeFlag(cmd *cobra.Command, name string, find candidates) {
	err := cmd.RegisterFlagCompletionFunc(name, func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		value, _, _ := strings.Cut(valueName(cmd.Flags().Lookup(name)), "|")
		return completed(value, find(cmd, args), word)
	})
	if err != nil {
		panic(err) // the flag does not exist, or already has a function
	}
}

// completed completes a word with names. For a LIST it completes the part after the last comma with
// names that are not in the list yet.
func completed(value string, names []string, word string) ([]string, cobra.ShellCompDirective) {
	names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !shellSafe(name) })
	if value != "LIST" {
		return names, cobra.ShellCompDirectiveNoFileComp
	}
	at := strings.LastIndex(word, ",") + 1
	before, begun := word[:at], word[at:]
	there := strings.Split(before, ",")
	var list []string
	for _, name := range names {
		alone, _, _ := strings.Cut(name, "\t")
		if strings.HasPrefix(alone, begun) && !slices.Contains(there, alone) && (at == 0 || alone != "none") {
			list = append(list, before+name)
		}
	}
	return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
}

// shellSafe reports whether a candidate, which may have a description, has no special meaning in
// any shell. Shells expand the text that they insert, and other users may name a device $(reboot).
func shellSafe(candidate string) bool {
	word, _, _ := strings.Cut(candidate, "\t")
	return !strings.ContainsFunc(word, func(r rune) bool {
		return r > unicode.MaxASCII || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("_-.:/@%+=,", r)
	})
}

// completeNoFiles turns off the completion of file names for the flags of cmd that have no other
// completion, except flags whose value is a file.
func completeNoFiles(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if _, ok := cmd.GetFlagCompletionFunc(f.Name); ok || valueName(f) == "FILE" || f.Value.Type() == "bool" || f.Value.Type() == "count" {
			return
		}
		completeFlag(cmd, f.Name, these(nil))
	})
}

// bridgeNames returns the bridges of the namespace.
func (p *program) bridgeNames(*cobra.Command, []string) (names []string) {
	_ = p.with(func(s switcher) error {
		list, err := s.Bridges()
		for _, b := range list {
			names = append(names, b.Name)
		}
		return err
	})
	return names
}

// otherBridges returns the bridges that are not arguments yet.
func (p *program) otherBridges(cmd *cobra.Command, args []string) []string {
	return slices.DeleteFunc(p.bridgeNames(cmd, args), func(name string) bool { return slices.Contains(args, name) })
}

// vlanIDs returns the VLANs of the ports and FDB entries of the bridge in the first argument.
func (p *program) vlanIDs(_ *cobra.Command, args []string) (list []string) {
	if len(args) == 0 {
		return nil
	}
	ids := map[uint16]bool{}
	_ = p.with(func(s switcher) error {
		ports, err := s.VLANs(args[0])
		for _, port := range ports {
			for _, r := range port.Ranges {
				for id := int(r.First); id <= int(r.Last); id++ {
					ids[uint16(id)] = true
				}
			}
		}
		entries, ferr := s.FDB(args[0], bridge.Match{})
		for _, e := range entries {
			ids[e.VLAN] = true
		}
		return errors.Join(err, ferr)
	})
	delete(ids, 0)
	for _, id := range slices.Sorted(maps.Keys(ids)) {
		list = append(list, strconv.Itoa(int(id)))
	}
	return list
}

// portRanges returns the VLANs of the port in the second argument.
func (p *program) portRanges(_ *cobra.Command, args []string) (list []string) {
	_ = p.with(func(s switcher) error {
		ports, err := s.VLANs(args[0])
		for _, port := range ports {
			if port.Port != args[1] {
				continue
			}
			for _, r := range port.Ranges {
				text := strconv.Itoa(int(r.First))
				if r.Last != r.First {
					text += "-" + strconv.Itoa(int(r.Last))
				}
				list = append(list, text)
			}
		}
		return err
	})
	return list
}

// orNone returns VLANs and none.
func (p *program) orNone(cmd *cobra.Command, args []string) []string {
	return append(p.vlanIDs(cmd, args), "none")
}

// portOrAction returns the words that can follow the bridge of a rule: its ports, or the first
// words of a rule that names its port itself.
func (p *program) portOrAction(cmd *cobra.Command, args []string) []string {
	return append(p.portNames(cmd, args), rule.Next(nil, "")...)
}

// ruleWords returns the words that can continue a rule. The rule follows a bridge and a port, or
// only a bridge if it names its port itself.
func (p *program) ruleWords(cmd *cobra.Command, args []string) []string {
	words, port, ports := args[2:], args[1], these(args[1:2])
	if portInRule(args[1:]) && !slices.Contains(p.portNames(cmd, args), args[1]) {
		words, port, ports = args[1:], "", p.portNames
	}
	if len(words) > 0 {
		switch words[len(words)-1] {
		case "on":
			return ports(cmd, args)
		case "src", "dst", "sha", "tha":
			return p.addresses(cmd, args)
		case "spa", "tpa":
			return slices.DeleteFunc(p.present(bridge.BindingObject, "address")(cmd, args), func(a string) bool { return strings.Contains(a, ":") })
		}
	}
	return rule.Next(words, port)
}

// portNames returns the ports of the bridge in the first argument.
func (p *program) portNames(_ *cobra.Command, args []string) (names []string) {
	if len(args) == 0 {
		return nil
	}
	_ = p.with(func(s switcher) error {
		list, err := s.Ports(args[0])
		for _, port := range list {
			names = append(names, port.Name)
		}
		return err
	})
	return names
}

// morePorts returns the ports that are not arguments yet.
func (p *program) morePorts(cmd *cobra.Command, args []string) []string {
	return slices.DeleteFunc(p.portNames(cmd, args), func(name string) bool { return slices.Contains(args[1:], name) })
}

// otherPorts returns the ports of the bridge in the first argument, except the second argument; and
// none.
func (p *program) otherPorts(cmd *cobra.Command, args []string) (names []string) {
	for _, name := range p.portNames(cmd, args) {
		if len(args) < 2 || name != args[1] {
			names = append(names, name)
		}
	}
	return append(names, "none")
}

// addresses returns the addresses in the FDB of the bridge in the first argument, each with its
// port.
func (p *program) addresses(_ *cobra.Command, args []string) (macs []string) {
	if len(args) == 0 {
		return nil
	}
	_ = p.with(func(s switcher) error {
		list, err := s.FDB(args[0], bridge.Match{})
		for _, e := range list {
			macs = append(macs, e.MAC.String()+"\t"+e.Port)
		}
		return err
	})
	return macs
}

// interfaces returns the namespace's interfaces that could become a port: no loopback, no port of a
// bridge or bond, and not the switch's end of a host port.
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
	_ = p.with(func(s switcher) error {
		ports, err := s.Ports("")
		for _, port := range ports {
			taken[port.Name] = true
		}
		return err
	})
	for _, link := range links {
		if a := link.Attrs(); a.Flags&net.FlagLoopback == 0 && a.MasterIndex == 0 && !taken[a.Name] && !bridge.IsSwitchEnd(link) {
			names = append(names, a.Name+"\t"+link.Type())
		}
	}
	return names
}

// moreInterfaces returns the interfaces that are not arguments yet.
func (p *program) moreInterfaces(cmd *cobra.Command, args []string) []string {
	return slices.DeleteFunc(p.interfaces(cmd, args), func(line string) bool {
		name, _, _ := strings.Cut(line, "\t")
		return slices.Contains(args[1:], name)
	})
}

// netlinkIn opens a netlink handle for a network namespace, given by a name for `ip -n` or a path;
// "" means the caller's.
func netlinkIn(name string) (*netlink.Handle, error) {
	if name == "" {
		return netlink.NewHandle()
	}
	ns, err := bridge.NetnsAt(bridge.NetnsPath(name))
	if err != nil {
		return nil, err
	}
	defer ns.Close()
	return netlink.NewHandleAt(ns)
}

// namespaces returns the named network namespaces.
func namespaces() (names []string) {
	entries, _ := os.ReadDir("/run/netns")
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}
