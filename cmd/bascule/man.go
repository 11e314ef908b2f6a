// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"bascule/pattern"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// manDate is the date of the last change to the man pages.
const manDate = "November 23, 2026"

// seeAlso are related pages in section 8.
var seeAlso = []string{"bridge", "ip", "ip-netns"}

// manPages returns the man pages of the command line by file name, in mdoc(7): a page for bascule
// itself and one for each object.
func manPages(root *cobra.Command) map[string][]byte {
	objects := slices.DeleteFunc(visible(root), func(c *cobra.Command) bool { return c.Name() == "help" })
	names := slices.Clone(seeAlso)
	for _, cmd := range append(objects, root) {
		names = append(names, pageName(cmd))
	}
	slices.Sort(names)

	pages := map[string][]byte{}
	for _, cmd := range append(objects, root) {
		pages[pageName(cmd)+".8"] = manPage(cmd, objects, names)
	}
	return pages
}

func pageName(cmd *cobra.Command) string {
	return strings.ReplaceAll(cmd.CommandPath(), " ", "-")
}

// A page is the text of a man page.
type page struct{ bytes.Buffer }

func (m *page) line(format string, args ...any) { fmt.Fprintf(m, format+"\n", args...) }

// manPage returns the page of cmd; objects are the commands that have a page,
// names are the pages for references.
func manPage(cmd *cobra.Command, objects []*cobra.Command, names []string) []byte {
	name, verbs := pageName(cmd), leaves(cmd)
	isRoot := !cmd.HasParent()

	var m page
	m.line(`.\" Made by go generate ./cmd/bascule from the definitions of the commands; do not edit.`)
	m.line(`.\" SPDX-License-Identifier: BSD-2-Clause`)
	m.line(".Dd %s\n.Dt %s 8\n.Os Linux", manDate, strings.ToUpper(name))
	m.line(".Sh NAME\n.Nm %s\n.Nd %s", name, cmd.Short)

	m.line(".Sh SYNOPSIS")
	if isRoot {
		m.line(".Nm bascule\n.Op Fl n Ar NETNS\n.Op Fl j\n.Ar COMMAND ...")
		m.line(".Nm bascule\n.Cm help\n.Op Ar COMMAND ... | Cm reasons")
		m.line(".Nm bascule\n.Fl -version")
	} else {
		for _, verb := range verbs {
			m.synopsis(verb)
		}
	}

	m.line(".Sh DESCRIPTION")
	m.prose(cmd.Long)
	switch {
	case isRoot:
		m.line(".Sh COMMANDS\n.Bl -tag -width Ds")
		for _, object := range objects {
			m.line(".It Xr %s 8\n%s", pageName(object), inline(sentence(object.Short)))
		}
		m.line(".It Cm help Op Ar COMMAND ...\nExplain a command, the same as\n.Ar COMMAND\n.Fl -help ;\n.Cm help reasons\nlists why frames are dropped, and\n.Cm help reasons Ar REASON ...\nexplains those alone;\n.Cm help routed\nlists what becomes of packets for a routed host port.")
		m.line(".El")
	case len(visible(cmd)) > 0:
		m.line(".Sh COMMANDS\n.Bl -tag -width Ds")
		for _, verb := range verbs {
			if verb == cmd {
				continue // the description already covers it
			}
			m.line(".It Cm %s%s", relative(cmd, verb), arguments(verb).mdoc(" "))
			if verb.Long != "" {
				m.prose(verb.Long)
			} else {
				m.prose(sentence(verb.Short))
			}
		}
		m.line(".El")
	}

	m.line(".Sh OPTIONS")
	if !isRoot {
		m.options(cmd, verbs)
		m.line(".Ss Options of every command")
	}
	of := cmd
	if !isRoot {
		of = verbs[len(verbs)-1] // it may accept arguments that the command itself refuses
	}
	_, global := flagsOf(of)
	if isRoot {
		global = append(global, cmd.Flags().Lookup("version"))
	}
	m.flags(global)

	if isRoot {
		m.line(".Sh FILES\n.Bl -tag -width Ds\n.It Pa /run/bascule")
		m.line("The state of all bridges, as pinned objects of\n.Xr bpf 2\nin a file system of their own:")
		m.line("a folder for each network namespace, and in it one for each bridge.\n.El")
	}
	if isRoot {
		for _, t := range topics {
			m.line(".Sh %s", t.title)
			m.prose(t.text)
			m.line(".Bl -tag -width Ds")
			for _, r := range reasonFacts(t.list()) {
				m.line(".It %s\n%s", r.name, inline(sentence(r.value)))
			}
			m.line(".El")
		}
	}
	m.line(".Sh EXIT STATUS\n.Bl -tag -width Ds")
	for _, status := range factsOf(cmd, exitStatus) {
		m.line(".It %s\n%s", status.name, inline(sentence(status.value)))
	}
	m.line(".El")
	m.examples(cmd, isRoot)

	m.line(".Sh SEE ALSO")
	others := slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == name })
	for i, other := range others {
		comma := " ,"
		if i == len(others)-1 {
			comma = ""
		}
		m.line(".Xr %s 8%s", other, comma)
	}
	return m.Bytes()
}

// examples writes the examples of cmd, followed by the examples of each subcommand. It skips
// examples that were already written.
func (m *page) examples(cmd *cobra.Command, alone bool) {
	all := []*cobra.Command{cmd}
	if !alone {
		all = append(all, slices.DeleteFunc(leaves(cmd), func(c *cobra.Command) bool { return c == cmd })...)
	}
	shown := map[string]bool{}
	began := false
	for _, c := range all {
		var lines, next []string // next is a command with its comments
		for _, line := range examples(c) {
			line = strings.TrimPrefix(line, "  ")
			next = append(next, line)
			if strings.HasPrefix(line, "#") || strings.HasSuffix(line, `\`) {
				continue
			}
			i := slices.IndexFunc(next, func(line string) bool { return !strings.HasPrefix(line, "#") })
			if command := strings.Join(next[i:], "\n"); !shown[command] {
				shown[command] = true
				lines = append(lines, next...)
			}
			next = nil
		}
		if len(lines) == 0 {
			continue
		}
		if !began {
			m.line(".Sh EXAMPLES")
			began = true
		}
		if c != cmd {
			m.line(".Ss Examples of %s", relative(cmd, c))
		}
		m.line(".Bd -literal")
		for _, line := range lines {
			for _, part := range folded(line, exampleWidth) {
				m.literalLine(part)
			}
		}
		m.line(".Ed")
	}
}

// exampleWidth is the maximum width of an example line, for a terminal with 80 columns.
const exampleWidth = 72

// folded breaks a command that is too wide between words, in shell syntax.
func folded(line string, width int) (parts []string) {
	const before, after = "    ", ` \`
	for len(line) > width && !strings.HasPrefix(line, "#") {
		at, quote := 0, rune(0)
		for i, r := range line {
			switch {
			case i > width-len(after):
			case quote == 0 && (r == '\'' || r == '"'):
				quote = r
			case r == quote:
				quote = 0
			case r == ' ' && quote == 0 && i > len(before):
				at = i
			}
		}
		if at == 0 {
			break
		}
		parts = append(parts, line[:at]+after)
		line = before + line[at+1:]
	}
	return append(parts, line)
}

// leaves returns the commands among cmd and its subcommands that do something.
func leaves(cmd *cobra.Command) []*cobra.Command {
	var list []*cobra.Command
	if acts(cmd) {
		list = append(list, cmd)
	}
	for _, sub := range visible(cmd) {
		list = append(list, leaves(sub)...)
	}
	return list
}

// relative returns the words that follow cmd in the name of sub.
func relative(cmd, sub *cobra.Command) string {
	return strings.TrimPrefix(sub.CommandPath(), cmd.CommandPath()+" ")
}

func (m *page) synopsis(cmd *cobra.Command) {
	m.line(".Nm bascule\n.Op Fl n Ar NETNS")
	if _, ok := cmd.Annotations[noJSON]; !ok {
		m.line(".Op Fl j")
	}
	m.line(".Cm %s%s", relative(cmd.Root(), cmd), arguments(cmd).mdoc("\n."))
	local, _ := flagsOf(cmd)
	for _, f := range local {
		spec := flagMacros(f)
		if f.Shorthand != "" && f.Shorthand != f.Name {
			_, spec, _ = strings.Cut(spec, " , ") // one name is enough
		}
		m.line(".Op %s", spec)
	}
}

// mdoc returns the arguments as macros, each one after before.
func (a argumentList) mdoc(before string) string {
	text := ""
	for i, name := range a.names {
		switch {
		case name == "...":
			text += " ..."
		case i < a.required:
			text += before + "Ar " + name
		case i == a.required || before == " ":
			text += before + "Op Ar " + name
		default:
			text += " Op Ar " + name // nested in the one before
		}
	}
	return text
}

// options writes the flags of verbs, each flag once, under the names of the verbs that have it.
func (m *page) options(cmd *cobra.Command, verbs []*cobra.Command) {
	type key struct{ spec, usage string }
	owners := map[key][]string{}
	flags := map[key]*pflag.Flag{}
	var keys []key
	for _, verb := range verbs {
		local, _ := flagsOf(verb)
		for _, f := range local {
			_, usage := pflag.UnquoteUsage(f)
			k := key{flagSpec(f), usage}
			if flags[k] == nil {
				keys, flags[k] = append(keys, k), f // the first one has the default, if there is one
			}
			owner := relative(cmd, verb)
			if verb == cmd {
				owner = cmd.Name()
			}
			owners[k] = append(owners[k], owner)
		}
	}
	var titles []string
	groups := map[string][]*pflag.Flag{}
	for _, k := range keys {
		title := ".Ss Options of " + list(owners[k])
		if len(groups[title]) == 0 {
			titles = append(titles, title)
		}
		groups[title] = append(groups[title], flags[k])
	}
	for _, title := range titles {
		if len(visible(cmd)) > 0 {
			m.line("%s", title)
		}
		m.flags(groups[title])
	}
}

// flags writes the meaning of flags.
func (m *page) flags(flags []*pflag.Flag) {
	m.line(".Bl -tag -width Ds")
	for _, f := range flags {
		_, usage := pflag.UnquoteUsage(f)
		m.line(".It %s\n%s", flagMacros(f), inline(sentence(usage)))
		if def := defaultOf(f); def != "" {
			m.line("Default:\n.Cm %s .", def)
		}
	}
	m.line(".El")
}

// flagMacros returns flagSpec in mdoc.
func flagMacros(f *pflag.Flag) string {
	spec := "Fl " + flagName(f)[1:]
	if f.Shorthand != "" && f.Shorthand != f.Name {
		spec = "Fl " + f.Shorthand + " , " + spec
	}
	switch {
	case f.Value.Type() == "bool" || f.Value.Type() == "count":
		return spec
	case f.NoOptDefVal != "":
		return spec + " Ns Op = Ns Ar " + valueName(f)
	}
	return spec + " Ar " + valueName(f)
}

// prose writes paragraphs; an indented paragraph is an example.
func (m *page) prose(text string) {
	for i, paragraph := range strings.Split(text, "\n\n") {
		if lines := strings.Split(paragraph, "\n"); strings.HasPrefix(paragraph, "  ") {
			m.literal(lines)
			continue
		}
		if i > 0 {
			m.line(".Pp")
		}
		m.line("%s", inline(paragraph))
	}
}

var (
	sentenceEnd  = pattern.New(`([A-Za-z)]\.) `)
	flagWord     = pattern.New(`(^|[\s(])(--?[A-Za-z][a-z-]*(=[a-z]+)?)`)
	controlStart = pattern.New(`(?m)^([.'])`) // mdoc would read a macro
	pageWord     = pattern.New(`\b([a-z][a-z.-]*)\(([1-8])\)`)
)

// inline returns running text for mdoc, with flags and pages marked.
func inline(text string) string {
	text = strings.ReplaceAll(text, `\`, `\e`)
	text = strings.Join(strings.Fields(text), " ")
	sentences := strings.Split(sentenceEnd().ReplaceAllString(text, "$1\n"), "\n")
	text = ""
	for _, s := range sentences { // each one starts a line
		text += strings.Join(wrap(s, 68), "\n") + "\n"
	}
	text = strings.TrimSuffix(text, "\n")
	text = flagWord().ReplaceAllStringFunc(text, func(s string) string {
		dash := strings.Index(s, "-")
		return s[:dash] + `\fB` + strings.ReplaceAll(s[dash:], "-", `\-`) + `\fR`
	})
	text = pageWord().ReplaceAllString(text, `\fB$1\fR($2)`)
	return controlStart().ReplaceAllString(text, `\&$1`)
}

var literalText = strings.NewReplacer(`\`, `\e`, "-", `\-`, "'", `\(aq`, "`", `\(ga`, "^", `\(ha`, "~", `\(ti`)

// literal writes lines for copying to a shell, without their common indentation.
func (m *page) literal(lines []string) {
	m.line(".Bd -literal -offset indent")
	for _, line := range lines {
		m.literalLine(strings.TrimPrefix(line, "  "))
	}
	m.line(".Ed")
}

func (m *page) literalLine(line string) {
	m.line("%s", controlStart().ReplaceAllString(literalText.Replace(line), `\&$1`))
}

// list joins words: "a, b and c".
func list(words []string) string {
	last := len(words) - 1
	if last == 0 {
		return words[0]
	}
	return strings.Join(words[:last], ", ") + " and " + words[last]
}
