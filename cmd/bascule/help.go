// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"bascule/answer"
	"bascule/bridge"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// exitStatus describes the exit statuses, for help and man pages.
var exitStatus = []fact{
	{"0", "done"},
	{"1", "refused or failed; one line on standard error says what, on which object, why, and what to do"},
	{"2", "wrong usage; nothing was changed"},
	{"3", ""}, // for commands with --dry-run (addDryRun)
}

// onlyObject annotates a command that only groups other commands. Cobra does not know the
// difference, since such a command prints its help.
const onlyObject = "only-object"

// noJSON annotates a command without JSON output, which refuses --json; the annotation is the
// reason.
const noJSON = "no-json"

// otherUse annotates a command with another usage line, in the format of Use.
const otherUse = "other-use"

// acts reports whether cmd does something without a subcommand.
func acts(cmd *cobra.Command) bool {
	_, only := cmd.Annotations[onlyObject]
	return !only
}

// factsOf returns facts about cmd. An annotation of the command replaces the
// fact with its name. A fact without text is omitted.
func factsOf(cmd *cobra.Command, list []fact) []fact {
	list = slices.Clone(list)
	for i, f := range list {
		if text, ok := cmd.Annotations[f.name]; ok {
			list[i].value = text
		}
	}
	return slices.DeleteFunc(list, func(f fact) bool { return f.value == "" })
}

// printHelp prints the help of cmd: its purpose, usage lines, flags and examples.
func printHelp(w io.Writer, cmd *cobra.Command) {
	text := cmd.Long
	if text == "" {
		text = sentence(cmd.Short)
	}
	fmt.Fprintf(w, "%s\n\nUsage:\n  %s\n", text, strings.Join(usageLines(cmd), "\n  "))

	if subs := visible(cmd); len(subs) > 0 {
		fmt.Fprintf(w, "\nCommands:\n")
		var list []fact
		for _, sub := range subs {
			list = append(list, fact{sub.Name(), sub.Short})
		}
		printItems(w, list)
	}
	local, global := flagsOf(cmd)
	printFlags(w, "Options", local)
	printFlags(w, "Options of every command", global)
	if lines := examples(cmd); len(lines) > 0 {
		fmt.Fprintf(w, "\nExamples:\n%s\n", strings.Join(lines, "\n"))
	}
	fmt.Fprintf(w, "\nExit status:\n")
	printItems(w, factsOf(cmd, exitStatus))
	if len(visible(cmd)) > 0 {
		fmt.Fprintf(w, "\n'%s COMMAND --help' explains a command.\n", cmd.CommandPath())
	}
	if !cmd.HasParent() {
		for _, t := range topics {
			fmt.Fprintf(w, "'bascule help %s' explains %s.\n", t.name, t.short)
		}
	}
}

// A topic is a help topic other than a command: a list of words with their meanings.
type topic struct {
	name, short string
	title       string                 // for the man page
	text        string                 // before the whole list
	word        string                 // the kind of word
	list        func() []bridge.Reason // called when needed, since it would delay every command
}

const reasonsTopic, routedTopic = "reasons", "routed"

// topics are the help topics other than commands.
var topics = []topic{
	{reasonsTopic, "why frames are dropped", "DROP REASONS", `A dropped frame is counted at the port that it came in by, with one of these
reasons. 'bascule port show --stats', 'bascule stats' and 'bascule top' show the
counts, 'bascule capture --dropped' shows the frames, and 'bascule trace'
explains what would happen to a frame. The command in brackets shows the cause,
or changes it.`, "reason", func() []bridge.Reason { return bridge.Reasons }},
	{routedTopic, "what happens to packets for a routed host port", "ROUTED PACKETS", `A packet for the host at a host port with --route is counted there with one of
these words: the datapath has routed it, or has left it to the host's network
stack for this reason. The stack then does with it what it would do without
--route, so none of these is a drop. 'bascule port show --stats' shows the
counts as routed, and 'bascule trace' prints the word for one packet.`, "word", bridge.RouteReasons},
}

// topicOf returns the topic at the beginning of help's arguments, nil for a command.
func topicOf(args []string) *topic {
	for i := range topics {
		if len(args) > 0 && (args[0] == topics[i].name || args[0]+"s" == topics[i].name) {
			return &topics[i]
		}
	}
	return nil
}

// helpTopics returns the help topics other than the subcommands of cmd.
func helpTopics(cmd *cobra.Command) (names []string) {
	if cmd.HasParent() {
		return nil
	}
	for _, t := range topics {
		names = append(names, t.name)
	}
	return names
}

// reasonFacts converts reasons for drops to facts.
func reasonFacts(reasons []bridge.Reason) (list []fact) {
	for _, r := range reasons {
		text := r.Text
		if r.See != "" {
			text += " (bascule " + r.See + ")"
		}
		list = append(list, fact{r.Name, text})
	}
	return list
}

// printTopic explains the named words, or all words.
func (p *program) printTopic(t *topic, names []string) error {
	list := t.list()
	reasons := list
	if len(names) > 0 {
		reasons = nil
	}
	for _, name := range names {
		i := slices.IndexFunc(list, func(r bridge.Reason) bool { return r.Name == name })
		if i < 0 {
			var all []string
			for _, r := range list {
				all = append(all, r.Name)
			}
			return &usageError{fmt.Sprintf("unknown %s %q%s", t.word, name, guess(name, "", all)), "", "bascule help " + t.name}
		}
		reasons = append(reasons, list[i])
	}
	if p.json {
		return p.printJSON(answer.List(reasons, answer.OfReason))
	}
	if len(names) == 0 {
		fmt.Fprintf(p.out, "%s\n\n", t.text)
	}
	printItems(p.out, reasonFacts(reasons))
	return nil
}

// examples returns the lines of cmd's examples, without lines that begin with "#! ", which control
// the test of the examples.
func examples(cmd *cobra.Command) []string {
	if cmd.Example == "" {
		return nil
	}
	return slices.DeleteFunc(strings.Split(cmd.Example, "\n"), func(line string) bool {
		return strings.HasPrefix(strings.TrimSpace(line), "#! ")
	})
}

func printFlags(w io.Writer, title string, flags []*pflag.Flag) {
	if len(flags) == 0 {
		return
	}
	fmt.Fprintf(w, "\n%s:\n", title)
	var list []fact
	for _, f := range flags {
		_, text := pflag.UnquoteUsage(f)
		if def := defaultOf(f); def != "" {
			text += " (default " + def + ")"
		}
		list = append(list, fact{flagSpec(f), text})
	}
	printItems(w, list)
}

func printItems(w io.Writer, list []fact) {
	width := 0
	for _, f := range list {
		if len(f.name) <= 24 { // a longer one has a line of its own
			width = max(width, len(f.name))
		}
	}
	for _, f := range list {
		printItem(w, f.name, width, f.value)
	}
}

// usageLines returns the usage lines of cmd.
func usageLines(cmd *cobra.Command) []string {
	name := ""
	if cmd.HasParent() {
		name = " " + relative(cmd.Root(), cmd)
	}
	var lines []string
	if acts(cmd) {
		before := "bascule [-n NETNS] [-j]"
		if _, ok := cmd.Annotations[noJSON]; ok {
			before = "bascule [-n NETNS]"
		}
		uses := []string{cmd.Use}
		if other, ok := cmd.Annotations[otherUse]; ok {
			uses = append(uses, other)
		}
		for _, use := range uses {
			words := append([]string{before + name}, strings.Fields(use)[1:]...)
			if local, _ := flagsOf(cmd); len(local) > 0 {
				words = append(words, "[OPTION ...]")
			}
			const tied = "\x00...]" // prevents a line break before it
			line := wrap(strings.ReplaceAll(strings.Join(words, " "), " ...]", tied), columns-4)
			lines = append(lines, strings.ReplaceAll(strings.Join(line, "\n      "), tied, " ...]"))
		}
	}
	if len(visible(cmd)) > 0 {
		lines = append(lines, "bascule [-n NETNS] [-j]"+name+" COMMAND ...")
	}
	return lines
}

// flagSpec returns a flag with its value: "-n, --netns NETNS", "--learn[=on|off]".
func flagSpec(f *pflag.Flag) string {
	spec := flagName(f)
	if f.Shorthand != "" && f.Shorthand != f.Name {
		spec = "-" + f.Shorthand + ", " + spec
	}
	switch {
	case f.Value.Type() == "bool" || f.Value.Type() == "count":
		return spec
	case f.NoOptDefVal != "":
		return spec + "[=" + valueName(f) + "]"
	}
	return spec + " " + valueName(f)
}

// flagName returns a flag's name with its dashes: one dash before a letter.
func flagName(f *pflag.Flag) string {
	if len(f.Name) == 1 {
		return "-" + f.Name
	}
	return "--" + f.Name
}

// valueName returns the name of a flag's value: its type, or the word in `quotes` in the flag's
// usage.
func valueName(f *pflag.Flag) string {
	name, _ := pflag.UnquoteUsage(f)
	return name
}

// flagsOf returns the flags of cmd in the order of their definition: its own, and the ones that
// every command has.
func flagsOf(cmd *cobra.Command) (local, global []*pflag.Flag) {
	collect := func(list *[]*pflag.Flag) func(*pflag.Flag) {
		return func(f *pflag.Flag) {
			if f.Name != "help" && !f.Hidden {
				*list = append(*list, f)
			}
		}
	}
	root := cmd.Root()
	root.PersistentFlags().VisitAll(func(f *pflag.Flag) {
		if own := cmd.Flags().Lookup(f.Name); own != nil {
			f = own // which may have another form
		}
		if _, ok := cmd.Annotations[noJSON]; ok && f.Name == "json" {
			return
		}
		collect(&global)(f)
	})
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if root.PersistentFlags().Lookup(f.Name) == nil {
			collect(&local)(f)
		}
	})
	return local, append(global, cmd.Flags().Lookup("help"))
}

// visible returns the subcommands of cmd that help should list.
func visible(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	for _, sub := range cmd.Commands() {
		if !sub.Hidden {
			list = append(list, sub)
		}
	}
	return list
}

// sentence turns a short description into a sentence.
func sentence(short string) string {
	return strings.ToUpper(short[:1]) + strings.TrimSuffix(short[1:], ".") + "."
}
