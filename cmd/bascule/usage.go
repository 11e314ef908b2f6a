// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"bascule/bridge"

	"github.com/agext/levenshtein"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// A usageError is a mistake in the command line; the exit status is 2.
type usageError struct {
	what string // the mistake
	help string // the command whose help has more information
	see  string // a better source than that help, "" for none
}

func (e *usageError) Error() string {
	if e.see != "" {
		return fmt.Sprintf("%s; see '%s'", e.what, e.see)
	}
	return fmt.Sprintf("%s; see '%s --help'", e.what, e.help)
}

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...), cmd.CommandPath(), ""}
}

// asUsage turns err, a mistake in the arguments of cmd, into a usage error.
func asUsage(cmd *cobra.Command, err error) error {
	var usage *usageError
	var wrong *bridge.UsageError
	if errors.As(err, &usage) || errors.As(err, &wrong) {
		return err
	}
	first, _, _ := strings.Cut(err.Error(), "\n")
	return usagef(cmd, "%s", first)
}

// unknownCommand returns the error for a word that is not a subcommand of cmd. At the root it may also be a help topic.
func unknownCommand(cmd *cobra.Command, word string) error {
	topics := helpTopics(cmd)
	var names []string
	for _, sub := range visible(cmd) {
		names = append(names, sub.Name())
	}
	path := cmd.CommandPath() + " "
	best := closest(word, append(names, topics...))
	hint := ""
	switch {
	case slices.Contains(names, best):
		hint = fmt.Sprintf(" (did you mean '%s%s'?)", path, best)
	case best != "":
		hint = fmt.Sprintf(" (did you mean 'bascule help %s'?)", best)
	default:
		if path := elsewhere(cmd, word); path != "" {
			hint = fmt.Sprintf(" (did you mean '%s'?)", path)
		}
	}
	return usagef(cmd, "unknown command %q%s", strings.TrimPrefix(path, "bascule ")+word, hint)
}

// elsewhere returns the subcommand of cmd for which another program uses the word, or the only command one level
// further down with this name; "" for none.
func elsewhere(cmd *cobra.Command, word string) string {
	var found []string
	for _, sub := range visible(cmd) {
		if slices.Contains(sub.SuggestFor, word) {
			return sub.CommandPath()
		}
		for _, further := range visible(sub) {
			if further.Name() == word {
				found = append(found, further.CommandPath())
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	return found[0]
}

// flagError describes the mistake in a flag of cmd in one line.
func flagError(cmd *cobra.Command, err error) error {
	// Only the last word of a command has flags of its own: if an unknown flag follows an unknown word, report the
	// word.
	if args := cmd.Flags().Args(); onlyCommands(cmd) && len(args) > 0 {
		return unknownCommand(cmd, args[0])
	}
	var unknown *pflag.NotExistError
	var missing *pflag.ValueRequiredError
	var invalid *pflag.InvalidValueError
	switch {
	case errors.As(err, &unknown):
		name := unknown.GetSpecifiedName()
		if unknown.GetSpecifiedShortnames() != "" {
			return usagef(cmd, "unknown flag -%s", name)
		}
		if cmd.CommandPath() == "bascule port set" && slices.Contains([]string{"vlan", "tagged", "untagged", "pvid"}, name) {
			return usagef(cmd, "unknown flag --%s; 'bascule vlan add' puts a port into VLANs", name)
		}
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		return usagef(cmd, "unknown flag --%s%s", name, guess(name, "--", names))
	case errors.As(err, &missing):
		return usagef(cmd, "%s needs a value, %s", flagName(missing.GetFlag()), valueName(missing.GetFlag()))
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		if f.Value.Type() == "bool" {
			return usagef(cmd, "%s takes no value", flagName(f))
		}
		var wrong *bridge.UsageError
		if errors.As(err, &wrong) {
			return usagef(cmd, "%s", wrong)
		}
		why := invalid.Unwrap()
		if errors.As(why, new(*strconv.NumError)) {
			why = fmt.Errorf("not a number; give one such as %s", cmp.Or(strings.Trim(f.DefValue, "0"), "1"))
		}
		return usagef(cmd, "%s %s: %s", flagName(f), invalid.GetValue(), why)
	}
	return asUsage(cmd, err)
}

// argumentList are the arguments of a command, after its name.
type argumentList struct {
	names    []string // "..." means that the last one may be repeated
	required int      // how many of the first names are mandatory
}

// arguments parses the usage line of cmd: "show [BRIDGE [PORT]]" has two optional arguments.
func arguments(cmd *cobra.Command) argumentList {
	var a argumentList
	for _, name := range strings.Fields(cmd.Use)[1:] {
		if !strings.HasPrefix(name, "[") && name != "...]" && name != "..." {
			a.required++
		}
		a.names = append(a.names, strings.Trim(name, "[]"))
	}
	return a
}

// checkArguments checks the arguments against the usage line of cmd.
func checkArguments(cmd *cobra.Command, args []string) error {
	a := arguments(cmd)
	if len(args) < a.required {
		missing, are := a.names[len(args):a.required], "is"
		if len(missing) > 1 {
			are = "are"
		}
		return usagef(cmd, "%s %s missing", list(missing), are)
	}
	last := len(a.names)
	repeated := last > 0 && a.names[last-1] == "..."
	if repeated && last > 1 && a.names[last-2] == "PORT" {
		last-- // the first PORT is a port, even if its name is on or off
	}
	for i := last; i < len(args); i++ {
		if extra := args[i]; (extra == "on" || extra == "off") && (!repeated || last < len(a.names)) {
			return usagef(cmd, "%q stands alone: write --%s=%s, with an equals sign", extra, switchMeant(cmd, args[last:i]), extra)
		}
		if name := switchMeant(cmd, args[last:i]); slices.Contains(otherSwitches, args[i]) && name != "FLAG" {
			return usagef(cmd, "%q is no value of --%s: write --%s=on or --%s=off", args[i], name, name, name)
		}
	}
	if len(args) > len(a.names) && !repeated {
		return usagef(cmd, "%q is one argument too many", args[len(a.names)])
	}
	for i, arg := range args {
		if arg == "" {
			i = min(i, len(a.names)-1)
			if a.names[i] == "..." {
				i-- // the repeated argument
			}
			return usagef(cmd, "%s is empty", a.names[i])
		}
	}
	return nil
}

// otherSwitches are other programs' words for on and off.
var otherSwitches = []string{"yes", "no", "true", "false", "enable", "disable", "1", "0"}

// onlyCommands reports whether only names of commands can follow cmd.
func onlyCommands(cmd *cobra.Command) bool {
	return cmd.HasSubCommands() && len(arguments(cmd).names) == 0
}

// switchMeant returns the flag to which an "on" or "off" after the words belongs, FLAG if unclear: the word before it,
// or the only switch that was given.
func switchMeant(cmd *cobra.Command, words []string) string {
	isSwitch := func(f *pflag.Flag) bool { return f != nil && f.NoOptDefVal == "on" }
	if n := len(words); n > 0 && isSwitch(cmd.Flags().Lookup(words[n-1])) {
		return words[n-1]
	}
	var given []string
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if isSwitch(f) {
			given = append(given, f.Name)
		}
	})
	if len(given) != 1 {
		return "FLAG"
	}
	return given[0]
}

// sameVerb maps command names of other programs to this program's names.
var sameVerb = map[string]string{
	"delete": "del", "remove": "del", "rm": "del", "list": "show", "ls": "show",
	"create": "add", "new": "add", "change": "set", "clear": "flush",
}

// guess returns the hint about the candidate most similar to word, or nothing.
func guess(word, prefix string, candidates []string) string {
	if best := closest(word, candidates); best != "" {
		return fmt.Sprintf(" (did you mean %s%s?)", prefix, best)
	}
	return ""
}

// closest returns the candidate most similar to word, "" for none.
func closest(word string, candidates []string) string {
	best, least := "", min(2, len(word)/2)+1 // with more wrong letters it is another word
	for _, c := range candidates {
		d := levenshtein.Distance(word, c, nil)
		if len(word) > 1 && strings.HasPrefix(c, word) || len(c) > 3 && strings.HasPrefix(word, c) || sameVerb[word] == c {
			d = 0
		}
		if d < least {
			best, least = c, d
		}
	}
	return best
}
