// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"bascule/answer"
	"bascule/bridge"
	"bascule/files"
	"bascule/pf"

	"github.com/spf13/cobra"
)

// pfctl is one run of `bascule pfctl`.
type pfctl struct {
	*program
	cmd *cobra.Command

	bridge, anchor, port, file, table, debug word
	show, flush, command                     modifier
	optimizer                                choice
	macros, kill, killSources                []string
	rule                                     number
	verbose                                  int
	disable, enable, check, names, quiet     bool
	noNames, zero, ignoreQueue, both         bool
}

// The modifiers of -s, -F and -T: their names in pfctl(8), with their meaning.
var (
	pfShows = []fact{
		{"rules", "the rules; -v adds their counters"},
		{"nat", "the rules that translate, including rules of anchors"},
		{"Anchors", "the anchors; -v adds those below them"},
		{"ether", "the ether rules"},
		{"states", "the states; -v adds ages and counters"},
		{"Sources", "the sources that are tracked"},
		{"info", "counters; -v adds the counters of limits"},
		{"labels", "counters of the rules with labels"},
		{"timeouts", "timeouts"},
		{"memory", "limits, and the memory of tables"},
		{"Tables", "tables; -v adds flags, -vv counters"},
		{"Interfaces", "ports; -v adds those that are skipped"},
		{"LimiterStates", "the state limiters, also as Stlimiters"},
		{"LimiterSrcs", "the source limiters, also as Srclimiters; -v adds sources"},
		{"all", "all of these, but for nat, anchors, ports and limiters"},
	}
	pfFlushes = []fact{
		{"rules", "the rules, or the rules of an anchor"},
		{"ether", "the ether rules; FreeBSD's ethernet"},
		{"states", "the states"},
		{"Sources", "the sources that are tracked"},
		{"info", "the counters of -s info"},
		{"Tables", "the tables"},
		{"Reset", "settings of set, to their defaults"},
		{"all", "all of these; of an anchor its rules and tables"},
	}
	pfCommands = []fact{
		{"add", "add addresses; makes the table if there is none"},
		{"delete", "delete addresses"},
		{"replace", "these addresses instead; makes the table"},
		{"show", "show the addresses"},
		{"test", "test whether addresses match: status 2 if not all do"},
		{"flush", "delete all addresses"},
		{"kill", "delete the table"},
		{"zero", "reset the counters; with addresses, see how many are there"},
		{"load", "load the tables of the file of -f"},
	}
)

// modifier is a flag's value: the name of one of several objects, or the beginning of a name.
type modifier struct {
	of   []fact
	name string
}

// limiterShows maps FreeBSD's names to OpenBSD's.
var limiterShows = map[string]string{"Stlimiters": "LimiterStates", "Srclimiters": "LimiterSrcs"}

// Set takes the beginning of a name; case matters only if it resolves an ambiguity.
func (m *modifier) Set(value string) error {
	if len(value) > len("ether") && strings.HasPrefix("ethernet", value) {
		value = "ether" // FreeBSD's pfctl uses this name for -s only
	}
	for name, other := range limiterShows {
		if len(value) >= 3 && strings.HasPrefix(name, value) && slices.ContainsFunc(m.of, func(f fact) bool { return f.name == other }) {
			value = other
		}
	}
	const short = 3 // with so few letters pfctl(8) takes the first name that matches
	for _, same := range []func(a, b string) bool{func(a, b string) bool { return a == b }, strings.EqualFold} {
		var names []fact
		for _, f := range m.of {
			if n := len(value); n > 0 && n <= len(f.name) && same(f.name[:n], value) {
				names = append(names, f)
			}
		}
		if len(names) > 1 && len(value) >= short {
			return fmt.Errorf("ambiguous; give %s", orList(names))
		}
		if len(names) > 0 {
			m.name = names[0].name
			return nil
		}
	}
	return fmt.Errorf("unknown; give %s", orList(m.of))
}

func (m *modifier) Type() string   { return "MODIFIER" }
func (m *modifier) String() string { return m.name }

// orList joins names: "a, b or c".
func orList(list []fact) string {
	names := make([]string, len(list))
	for i, f := range list {
		names[i] = f.name
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// modifiers returns the help paragraph about a flag's modifiers.
func modifiers(flag string, list []fact) string {
	text := ""
	for _, f := range list {
		text += fmt.Sprintf("\n  %s %-13s  %s", flag, f.name, f.value)
	}
	return text[1:]
}

func newPfctl(p *program) *cobra.Command {
	c := &pfctl{program: p}
	c.show.of, c.flush.of, c.command.of = pfShows, pfFlushes, pfCommands
	cmd := &cobra.Command{
		Use:   "pfctl [ADDRESS ...]",
		Short: "control the packet filter pf",
		Long: `Control the packet filter of a bridge, which has the language and the semantics
of OpenBSD's pf: rules in a file such as /etc/pf.conf, see pf.conf(5), and the
options of pfctl(8), written as there. A packet between two ports of the bridge
is filtered as it comes in by one port and as it leaves by the other; interface
names in rules are port names. nat-to, rdr-to and binat-to translate at host
ports (--type host of 'bascule port'). Statements that are not supported yet are
read, checked and printed with -n; loading refuses them by name.

-f loads a file, whole or not at all. It turns pf on, unless -d has turned it
off. With -v it prints what it has read, with -v and -j the rules as -s rules
prints them. -b may be left out if there is one bridge. Since -n is pfctl's,
name a network namespace before the command, or with --netns.

What -s shows; the name may be cut short:

` + modifiers("-s", pfShows) + `

What -F flushes:

` + modifiers("-F", pfFlushes) + `

What -T does to the table of -t, with the addresses that follow, or those in the
file of -f:

` + modifiers("-T", pfCommands) + `

-k kills the states of a host or network, and with a second -k those from the
first to the second. '-k label -k LABEL' kills the states of a rule's label, '-k
id -k ID' the state that -vvss names so, and '-k key -k "PROTO HOST:PORT ->
HOST:PORT"' the state between these two. '-k gateway -k HOST' kills the states
whose rule sends packets to this next hop, and '-k nat -k HOST' those of a host
by its address before translation, which -k HOST alone means here, too. With -M
they kill the state of a connection's other way through the host, too.`,
		Example: `  #! run: switch br0 veth0; printf 'table <bad> persist\nanchor night\nblock in quick from <bad>\npass\n' >/etc/pf.conf; ip netns add lab; bascule -n lab bridge add br0
  # see whether a file is right, then load it
  bascule pfctl -nvf /etc/pf.conf
  bascule pfctl -f /etc/pf.conf
  # rules with their counters, states, counters
  bascule pfctl -vvsr
  bascule pfctl -ss
  bascule -n lab pfctl -b br0 -si
  # add an address to a table; show its addresses
  bascule pfctl -t bad -T add 192.0.2.66
  bascule pfctl -t bad -T show
  # rules for an anchor, from standard input
  echo 'block in proto tcp to port 22' | bascule pfctl -a night -f -
  # no packet is filtered any more; all are again
  bascule pfctl -d
  bascule pfctl -e`,
		RunE: func(cmd *cobra.Command, args []string) error {
			c.cmd = cmd
			return c.run(args)
		},
	}
	for _, w := range []struct {
		word *word
		name string
	}{{&c.bridge, "BRIDGE"}, {&c.anchor, "ANCHOR"}, {&c.port, "PORT"}, {&c.file, "FILE"}, {&c.table, "TABLE"}, {&c.debug, "LEVEL"}} {
		w.word.name = w.name
	}
	c.optimizer.words = []string{"none", "basic", "profile"}
	c.rule = number{name: "N", most: pf.MaxRules}
	c.command.name = ""

	f := cmd.Flags()
	f.VarP(&c.bridge, "b", "b", "choose the bridge, if there are several")
	f.VarP(&c.file, "f", "f", "load the rules of this file, - for standard input")
	f.BoolVarP(&c.check, "n", "n", false, "only check whether it could be done, and change nothing")
	f.CountVarP(&c.verbose, "v", "v", "be verbose; -vv prints everything")
	f.BoolVarP(&c.quiet, "q", "q", false, "print errors only")
	f.VarP(&c.show, "s", "s", "show something")
	f.VarP(&c.rule, "R", "R", "show this rule only")
	f.VarP(&c.table, "t", "t", "name the table of -T")
	f.VarP(&c.command, "T", "T", "carry out a command on a table")
	f.StringArrayVarP(&c.kill, "k", "k", nil, "kill the states of this `HOST`")
	f.BoolVarP(&c.both, "M", "M", false, "with -k, or -F states and -i, kill the state of a connection's other way through the host, too")
	f.StringArrayVarP(&c.killSources, "K", "K", nil, "forget the sources of this `HOST`, or those that talk to a second one")
	f.VarP(&c.flush, "F", "F", "flush something")
	f.BoolVarP(&c.zero, "z", "z", false, "set the counters of all rules to zero")
	f.VarP(&c.anchor, "a", "a", "apply -f, -F, -s and -T to this anchor; -F and -s take 'ANCHOR/*' for all anchors below it, too")
	f.VarP(&c.port, "i", "i", "apply -s states, -s Interfaces, -F states and -k only to this port or group of ports")
	f.StringArrayVarP(&c.macros, "D", "D", nil, "set a macro, overriding the file: `MACRO=VALUE`")
	f.BoolVar(&c.ignoreQueue, "ignore-queue", false, "ignore queues in the file: altq, queue, dummynet; without it they are refused")
	f.VarP(&c.optimizer, "o", "o", "optimize the rules or not; accepted without effect")
	f.BoolVarP(&c.names, "r", "r", false, "show the names of hosts in states")
	f.BoolVarP(&c.noNames, "N", "N", false, "do not look up names of hosts")
	f.BoolVarP(&c.enable, "e", "e", false, "enable pf")
	f.BoolVarP(&c.disable, "d", "d", false, "disable pf; the loaded rules stay")
	f.VarP(&c.debug, "x", "x", "set the level of debugging, which -s info shows: "+bridge.OneOf(pfDebugLevels))
	p.addForce(cmd)
	cmd.Flags().Lookup("force").Usage += "; load rules that do not call the rules of plugged ports"
	// instead of the flag that every command has, without its -n
	f.Var(&p.netns, "netns", "act in this network namespace: a name of ip-netns(8), or a path")
	completeFlag(cmd, "b", p.bridgeNames)
	completeFlag(cmd, "netns", func(*cobra.Command, []string) []string { return namespaces() })
	for name, list := range map[string][]fact{"s": pfShows, "F": pfFlushes, "T": pfCommands} {
		completeFlag(cmd, name, func(*cobra.Command, []string) (names []string) {
			for _, f := range list {
				names = append(names, f.name+"\t"+f.value)
			}
			return names
		})
	}
	completeFlag(cmd, "o", these(c.optimizer.words))
	completeFlag(cmd, "x", these(pfDebugLevels))
	for _, name := range []string{"t", "a", "i"} {
		completeFlag(cmd, name, func(*cobra.Command, []string) []string { return c.complete(name) })
	}
	return cmd
}

// complete returns the candidates of a flag: tables, anchors or ports.
func (c *pfctl) complete(flag string) (names []string) {
	_ = c.with(func(s switcher) error {
		if err := c.choose(s); err != nil {
			return err
		}
		switch flag {
		case "i":
			names = c.portNames(nil, []string{c.bridge.text})
			return nil
		case "a":
			list, err := s.PFAnchors(c.bridge.text, "", true)
			names = list
			return err
		}
		list, err := s.PFTables(c.bridge.text, c.anchor.text)
		for _, t := range list {
			names = append(names, t.Name)
		}
		return err
	})
	return names
}

// run executes all options in pfctl(8)'s order.
func (c *pfctl) run(args []string) error {
	if err := c.checkUsage(args); err != nil {
		return err
	}
	load, err := c.load()
	if err != nil {
		return err
	}
	var entries []pf.TableEntry
	if c.takesAddresses() {
		if entries, err = c.addresses(args); err != nil {
			return err
		}
	}
	states, err := c.killers(c.kill, "-k")
	if err != nil {
		return err
	}
	sources, err := c.killers(c.killSources, "-K")
	if err != nil {
		return err
	}
	return c.with(func(s switcher) error {
		if err := c.choose(s); err != nil && (load == nil || !load.Check) { // -n needs no bridge
			return err
		}
		name := c.bridge.text
		if name != "" && c.port.text != "" {
			if err := c.warnPort(s); err != nil {
				return err
			}
		}
		if c.disable && !c.check {
			if err := s.EnablePF(name, false); err != nil {
				return err
			}
			c.tell("pf disabled")
		}
		if c.show.name != "" && !c.check {
			if err := c.showAll(s); err != nil {
				return err
			}
		}
		if c.zero && !c.check {
			if err := s.ZeroPF(name); err != nil {
				return err
			}
			c.tell("pf: rule counters cleared")
		}
		if c.flush.name != "" && !c.check {
			if err := c.flushAll(s); err != nil {
				return err
			}
		}
		if states != nil && !c.check {
			n, err := s.KillPFStates(name, *states)
			if err != nil {
				return err
			}
			c.tell("killed %d states%s", n, matched(*states))
		}
		if sources != nil && !c.check {
			n, err := s.KillPFSources(name, *sources)
			if err != nil {
				return err
			}
			c.tell("killed %d src nodes%s", n, matched(*sources))
		}
		if c.command.name != "" && c.command.name != "load" {
			if err := c.tableCommand(s, entries); err != nil {
				return err
			}
		}
		if load != nil {
			if err := c.loadFile(s, *load); err != nil {
				return err
			}
		}
		if c.enable && !c.check {
			err := s.EnablePF(name, true)
			if err != nil && (load == nil || !errors.Is(err, bridge.ErrPFEnabled)) { // -f enables pf itself
				return err
			}
			c.tell("pf enabled")
		}
		if c.debug.text != "" && !c.check {
			if err := s.SetPFDebug(name, c.debug.text); err != nil {
				return err
			}
			c.tell("debug level set to '%s'", c.debug.text)
		}
		return nil
	})
}

// warnPort warns if the port or group of -i does not exist: then nothing is selected or printed.
// Rules and states may refer to a future port.
func (c *pfctl) warnPort(s switcher) error {
	info, err := s.PF(c.bridge.text)
	if err != nil {
		return err
	}
	for _, p := range info.Ports {
		if p.Is(c.port.text) {
			return nil
		}
	}
	c.warn([]string{fmt.Sprintf("%[2]s has no port and no group of ports %[1]s now; see 'bascule pfctl -b %[2]s -s Interfaces'", c.port.text, c.bridge.text)})
	return nil
}

// checkUsage refuses options that exclude each other.
func (c *pfctl) checkUsage(args []string) error {
	usage := func(format string, args ...any) error { return usagef(c.cmd, format, args...) }
	does := c.show.name != "" || c.flush.name != "" || c.command.name != "" || c.file.text != "" || c.debug.text != "" ||
		len(c.kill) > 0 || len(c.killSources) > 0 || c.enable || c.disable || c.zero
	level, isLevel := pfDebugLevel(c.debug.text)
	table := c.command.name != "" && c.command.name != "load"
	switch {
	case !does && len(args) > 0 && c.table.text == "" && !c.check:
		return usage("%q is one argument too many", args[0])
	case !does:
		return usage("nothing to do: give -f, -s, -T, -F, -k, -K, -e, -d, -x or -z")
	case c.command.name == "load" && c.table.text != "":
		return usage("-t %s: -T load loads all tables of the file; leave -t out", c.table.text)
	case table && c.table.text == "":
		return usage("-T %s: give -t TABLE, too", c.command.name)
	case c.table.text != "" && !table:
		return usage("-t %s: give -T, too: what to do with the table", c.table.text)
	case c.command.name == "load" && c.file.text == "":
		return usage("-T load: give -f FILE, too")
	case c.takesAddresses() && len(args) == 0 && c.file.text == "" && c.command.name != "replace" && c.command.name != "zero":
		return usage("-T %s: give addresses, or -f FILE", c.command.name)
	case len(args) > 0 && !c.takesAddresses():
		if c.check {
			return usage("%q is one argument too many; -n is pfctl's here: for a network namespace write 'bascule -n %s pfctl'", args[0], args[0])
		}
		return usage("%q is one argument too many", args[0])
	case c.file.text != "" && table && !c.takesAddresses():
		return usage("-T %s takes no file; leave -f out", c.command.name)
	case len(c.kill) > 2:
		return usage("-k %s: give -k once or twice", c.kill[2])
	case len(c.killSources) > 2:
		return usage("-K %s: give -K once or twice", c.killSources[2])
	case c.debug.text != "" && !isLevel:
		return usage("-x %s: give %s", c.debug.text, bridge.OneOf(pfDebugLevels))
	case c.both && len(c.kill) == 0 && (c.flush.name != "states" || c.port.text == ""):
		return usage("-M: give -k, or -F states with -i PORT, too")
	case c.port.text != "" && len(c.kill) == 0 && c.flush.name != "states" && !slices.Contains([]string{"states", "Interfaces", "all"}, c.show.name):
		return usage("-i %s: give -k, -F states, -s states or -s Interfaces, too", c.port.text)
	case c.rule.n != nil && c.show.name != "rules":
		return usage("-R %d: give -s rules, too", *c.rule.n)
	}
	c.debug.text = level
	return nil
}

// pfDebugLevels are the levels of -x, the most severe first.
var pfDebugLevels = []string{"emerg", "alert", "crit", "err", "warning", "notice", "info", "debug"}

// pfDebugLevel returns the name of a level of -x; it also accepts the levels of older versions of
// pfctl.
func pfDebugLevel(level string) (string, bool) {
	old := map[string]string{"none": "crit", "urgent": "err", "misc": "notice", "loud": "debug"}
	if name, ok := old[level]; ok {
		return name, true
	}
	return level, slices.Contains(pfDebugLevels, level)
}

// takesAddresses reports whether the command of -T has addresses.
func (c *pfctl) takesAddresses() bool {
	return slices.Contains([]string{"add", "delete", "replace", "test", "zero"}, c.command.name)
}

// Lines about actions go to standard error, like pfctl's.
func (c *pfctl) tell(format string, args ...any) {
	if !c.quiet {
		fmt.Fprintf(c.stderr, format+"\n", args...)
	}
}

// choose selects a bridge if none is named.
func (c *pfctl) choose(s switcher) (err error) {
	c.bridge.text, err = onlyBridge(s, c.bridge.text)
	return err
}

// onlyBridge returns the bridge of -b, or the only bridge of the namespace.
func onlyBridge(s switcher, name string) (string, error) {
	if name != "" {
		return name, nil
	}
	list, err := s.Bridges()
	if err != nil {
		return "", err
	}
	switch len(list) {
	case 0:
		return "", errors.New("cannot use pf: there is no bridge in this network namespace; add one with 'bascule bridge add'")
	case 1:
		return list[0].Name, nil
	}
	names := make([]fact, len(list))
	for i, b := range list {
		names[i].name = b.Name
	}
	return "", fmt.Errorf("cannot use pf: there are several bridges; give -b %s", orList(names))
}

// readFile reads the file for -f.
func (c *pfctl) readFile() (name string, text []byte, err error) {
	if c.file.text == "-" {
		name = "stdin"
		text, err = io.ReadAll(io.LimitReader(c.stdin, maxPFFile+1))
	} else {
		name = c.file.text
		text, err = readPFFile(name)
	}
	if err != nil {
		return "", nil, fmt.Errorf("cannot read %s: %w; give a file that can be read", name, cause(err))
	}
	if len(text) > maxPFFile {
		return "", nil, fmt.Errorf("cannot read %s: it has more than %d bytes; give a file of rules", name, maxPFFile)
	}
	return name, text, nil
}

// pfSource opens files and resolves hosts of pf rules that are loaded once. keptSource is for rules
// that are read repeatedly.
var (
	pfSource   = pf.Source{Open: readPFFile, Lookup: lookupHost}
	keptSource = pf.Source{Open: readPlainPFFile, Lookup: lookupHost}
)

// maxPFFile is the size limit of a file in bytes.
const maxPFFile = 64 << 20

func readPFFile(name string) ([]byte, error)      { return readPF(name, files.Open) }
func readPlainPFFile(name string) ([]byte, error) { return readPF(name, files.OpenPlain) }

func readPF(name string, open func(string) (*os.File, error)) ([]byte, error) {
	f, err := open(name)
	if err != nil {
		return nil, cause(err)
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxPFFile+1))
}

// cause removes the file's name from an error, since the message has it already.
func cause(err error) error {
	if path := new(os.PathError); errors.As(err, &path) {
		return path.Err
	}
	return err
}

// load returns the parameters for -f, nil without -f.
func (c *pfctl) load() (*bridge.PFLoad, error) {
	macros := map[string]string{}
	for _, m := range c.macros {
		name, value, ok := strings.Cut(m, "=")
		if !ok || name == "" {
			return nil, usagef(c.cmd, "-D %s: give MACRO=VALUE", m)
		}
		macros[name] = value
	}
	if c.file.text == "" || c.takesAddresses() {
		return nil, nil
	}
	name, text, err := c.readFile()
	if err != nil {
		return nil, err
	}
	load := &bridge.PFLoad{
		Name: name, Text: text, Anchor: c.anchor.text, Check: c.check,
		Source: pfSource, TablesOnly: c.command.name == "load",
	}
	load.Source.Macros, load.Source.IgnoreQueues = macros, c.ignoreQueue
	if c.noNames {
		load.Source.Lookup = nil
	}
	return load, nil
}

// loadFile loads a file, and prints it with -v.
func (c *pfctl) loadFile(s switcher, load bridge.PFLoad) error {
	var macros []string
	load.Source.Defined = func(name, value string) { macros = append(macros, name+` = "`+value+`"`) }
	set, notes, err := s.LoadPF(c.bridge.text, load)
	if bad := pf.ErrorList(nil); errors.As(err, &bad) {
		return &pfSyntaxError{bad, load.Check}
	}
	if err != nil {
		return err
	}
	switch {
	case c.verbose > 0 && c.json:
		rules := bridge.RulesOf(load.Anchor, set)
		if err := c.printJSON(answer.OfPFRules(c.bridge.text, rules, true, func(*pf.Rule) bool { return true })); err != nil {
			return err
		}
	case c.verbose > 0:
		for _, m := range macros {
			fmt.Fprintln(c.out, m)
		}
		fmt.Fprint(c.out, set)
	}
	if !c.quiet {
		c.warn(notes)
	}
	return nil
}

// pfSyntaxError is an error in a file, reported in the words of pfctl.
type pfSyntaxError struct {
	list  pf.ErrorList
	check bool // -n was given
}

func (e *pfSyntaxError) Error() string {
	switch {
	case e.check:
		return e.list.Error()
	case e.list.OnlyLimits():
		return e.list.Error() + "\npfctl: too much in config file: pf rules not loaded"
	case e.list.OnlyMissing():
		return e.list.Error() + "\npfctl: words of the config file are not carried out: pf rules not loaded"
	}
	return e.list.Error() + "\npfctl: Syntax error in config file: pf rules not loaded"
}

// addresses reads the addresses for -T from the command line and the file.
func (c *pfctl) addresses(args []string) ([]pf.TableEntry, error) {
	var list []pf.TableEntry
	for _, w := range args {
		entries, err := c.entries(w)
		if err != nil {
			return nil, usagef(c.cmd, "-T %s %s: %s", c.command.name, w, err)
		}
		list = append(list, entries...)
	}
	if c.file.text == "" {
		return list, nil
	}
	name, text, err := c.readFile()
	if err != nil {
		return nil, err
	}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		if i := strings.IndexAny(line, "#;"); i >= 0 {
			line = line[:i]
		}
		for _, w := range strings.Fields(line) {
			entries, err := c.entries(w)
			if err != nil {
				return nil, fmt.Errorf("cannot read %s: line %d: %.40q: %w", name, number, w, err)
			}
			list = append(list, entries...)
		}
	}
	return list, nil
}

// entries parses an address, network or name for -T.
func (c *pfctl) entries(word string) ([]pf.TableEntry, error) {
	text := strings.TrimLeft(word, "!")
	not := (len(word)-len(text))%2 == 1
	prefixes, err := c.prefixes(text)
	if err != nil {
		return nil, err
	}
	var list []pf.TableEntry
	for _, p := range prefixes {
		if c.command.name == "test" && (not || !p.IsSingleIP()) {
			return nil, errors.New("give an address, not a network")
		}
		list = append(list, pf.TableEntry{Not: not, Prefix: p})
	}
	return list, nil
}

// prefixes parses a host or network: an address, a network, or the name of an interface or host in
// the bridge's namespace.
func (c *pfctl) prefixes(text string) ([]netip.Prefix, error) {
	const remedy = "not an address; give one such as 192.0.2.1, 192.0.2.0/24 or 2001:db8::/32"
	if p, err := pf.ParsePrefix(text); err == nil {
		return []netip.Prefix{p}, nil
	}
	if strings.Trim(text, "0123456789./:") == "" || strings.ContainsAny(text, " <>(){},!\"$%") || !utf8.ValidString(text) {
		return nil, errors.New(remedy)
	}
	lookup := lookupHost
	if c.noNames {
		lookup = nil
	}
	var list []netip.Prefix
	opened := false
	err := c.with(func(s switcher) (err error) {
		opened = true
		list, err = s.PFHost(text, lookup)
		return err
	})
	switch {
	case err == nil:
		return list, nil
	case !opened:
		return nil, err
	case c.noNames:
		return nil, errors.New(remedy)
	}
	return nil, errors.New("neither an address nor the name of an interface or a host")
}

// killers returns the states or sources that -k or -K select, nil for none.
func (c *pfctl) killers(hosts []string, flag string) (*bridge.PFKill, error) {
	if len(hosts) == 0 {
		return nil, nil
	}
	kill := &bridge.PFKill{Port: c.port.text, Both: c.both && flag == "-k"}
	if word := hosts[0]; flag == "-k" && slices.Contains([]string{"label", "id", "key", "gateway", "nat"}, word) {
		if len(hosts) != 2 {
			return nil, usagef(c.cmd, "-k %s: give a second -k with the %s", word, word)
		}
		var err error
		switch value := hosts[1]; word {
		case "label":
			kill.Label = &value
		case "id":
			text, _, _ := strings.Cut(value, "/") // ignore the creator, since there is only one
			kill.ID, err = strconv.ParseUint(strings.TrimPrefix(text, "0x"), 16, 64)
			if err != nil || kill.ID == 0 {
				return nil, usagef(c.cmd, "-k id -k %s: give the id that -vvss shows", value)
			}
		case "gateway":
			if kill.Gateway, err = c.prefixes(value); err != nil {
				return nil, usagef(c.cmd, "-k gateway -k %s: %s", value, err)
			}
		case "nat":
			if kill.From, err = c.prefixes(value); err != nil {
				return nil, usagef(c.cmd, "-k nat -k %s: %s", value, err)
			}
		case "key":
			if kill.Key, err = parsePFKey(value); err != nil {
				return nil, usagef(c.cmd, "-k key -k %q: %s", value, err)
			}
		}
		return kill, nil
	}
	for i, to := range []*[]netip.Prefix{&kill.From, &kill.To}[:len(hosts)] {
		list, err := c.prefixes(hosts[i])
		if err != nil {
			return nil, usagef(c.cmd, "%s %s: %s", flag, hosts[i], err)
		}
		*to = list
	}
	return kill, nil
}

// parsePFKey parses a state in the format of -s states: PROTO HOST:PORT -> HOST:PORT, or with the
// arrow in the other direction.
func parsePFKey(text string) (*bridge.PFKey, error) {
	wrong := errors.New(`give "PROTO HOST:PORT -> HOST:PORT"`)
	words := strings.Fields(text)
	if len(words) != 4 || words[2] != "->" && words[2] != "<-" {
		return nil, wrong
	}
	proto, ok := pf.Protocol(words[0])
	if !ok {
		return nil, fmt.Errorf("%s: no such protocol", words[0])
	}
	src, ok1 := parsePFAddress(words[1])
	dst, ok2 := parsePFAddress(words[3])
	if !ok1 || !ok2 {
		return nil, wrong
	}
	if words[2] == "<-" {
		src, dst = dst, src
	}
	return &bridge.PFKey{Proto: proto, Src: src, Dst: dst}, nil
}

// parsePFAddress parses 192.0.2.1:80, 2001:db8::1[80], or an address without a port.
func parsePFAddress(text string) (bridge.PFAddress, bool) {
	host, port := text, ""
	if i := strings.IndexByte(text, '['); i > 0 && strings.HasSuffix(text, "]") {
		host, port = text[:i], text[i+1:len(text)-1]
	} else if strings.Count(text, ":") == 1 {
		host, port, _ = strings.Cut(text, ":")
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return bridge.PFAddress{}, false
	}
	if port == "" {
		return bridge.PFAddress{Addr: addr}, true
	}
	n, err := strconv.ParseUint(port, 10, 16)
	return bridge.PFAddress{Addr: addr, Port: uint16(n)}, err == nil
}

// matched returns the end of the line about killed states: the numbers of their hosts.
func matched(k bridge.PFKill) string {
	if k.From == nil {
		return ""
	}
	return fmt.Sprintf(" from %d sources and %d destinations", len(k.From), len(k.To))
}

// flushAll executes -F.
func (c *pfctl) flushAll(s switcher) error {
	for _, f := range pfFlushes {
		all := c.flush.name == "all" && f.name != "all"
		if path, _ := pfAnchorAll(c.anchor.text); all && path != "" { // an anchor has no other objects
			all = f.name == "rules" || f.name == "Tables"
		}
		if f.name != c.flush.name && !all || f.name == "all" {
			continue
		}
		var n int
		var err error
		if f.name == "states" && c.port.text != "" {
			n, err = s.KillPFStates(c.bridge.text, bridge.PFKill{Port: c.port.text, Both: c.both})
		} else {
			n, err = s.FlushPF(c.bridge.text, c.anchor.text, f.name)
		}
		if err != nil {
			return err
		}
		switch f.name {
		case "rules":
			c.tell("rules cleared")
		case "ether":
			c.tell("ether rules cleared")
		case "states":
			c.tell("%d states cleared", n)
		case "Sources":
			c.tell("source tracking entries cleared")
		case "info":
			c.tell("pf: statistics cleared")
		case "Tables":
			c.tell("%d tables deleted.", n)
		case "Reset":
			c.tell("pf: options reset")
		}
	}
	return nil
}

// errPFNoMatch means that -T test found an address without a match.
var errPFNoMatch = errors.New("not all addresses match")

// tableCommand executes -T.
func (c *pfctl) tableCommand(s switcher, entries []pf.TableEntry) error {
	name, anchor, table := c.bridge.text, c.anchor.text, c.table.text
	switch c.command.name {
	case "add", "delete", "replace", "test":
		action := map[string]bridge.PFTableAction{
			"add": bridge.AddPFEntries, "delete": bridge.DeletePFEntries, "replace": bridge.ReplacePFEntries, "test": bridge.TestPFEntries,
		}[c.command.name]
		done, err := s.ChangePFTable(name, anchor, table, action, entries, c.check)
		if err != nil {
			return err
		}
		return c.printChange(done, len(entries))
	case "show":
		list, err := s.PFTable(name, anchor, table)
		if err != nil {
			return err
		}
		return c.printEntries(list)
	case "flush":
		n, err := s.FlushPFTable(name, anchor, table, c.check)
		if err != nil {
			return err
		}
		c.did("%d addresses deleted", n)
	case "kill":
		n, err := s.KillPFTable(name, anchor, table, c.check)
		if err != nil {
			return err
		}
		c.did("%d table deleted", n)
	case "zero":
		if len(entries) > 0 {
			return c.zeroEntries(s, entries)
		}
		if err := s.ZeroPFTable(name, anchor, table, c.check); err != nil {
			return err
		}
		c.did("1 table/stats cleared")
	}
	return nil
}

// zeroEntries executes -T zero with addresses. It prints how many of them the table has.
func (c *pfctl) zeroEntries(s switcher, entries []pf.TableEntry) error {
	list, err := s.PFTable(c.bridge.text, c.anchor.text, c.table.text)
	if err != nil {
		return err
	}
	n := 0
	for _, e := range entries {
		if slices.ContainsFunc(list, func(there bridge.PFTableEntry) bool { return there.Prefix == e.Prefix && there.Not == e.Not }) {
			n++
		}
	}
	c.did("%d/%d addresses cleared", n, len(entries))
	c.warn([]string{"the addresses of a table are not counted one by one, so there is nothing to begin anew; -T zero alone has the table begin anew"})
	return nil
}

// did prints a change of a table; with -n, a planned change.
func (c *pfctl) did(format string, args ...any) {
	if c.check {
		format += " (dummy)"
	}
	c.tell(format+".", args...)
}
