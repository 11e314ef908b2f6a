// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"bascule/answer"
	"bascule/bridge"
	"bascule/pf"
)

// showAll executes -s.
func (c *pfctl) showAll(s switcher) error {
	shows := []struct {
		name, title string // the title is for -s all
		show        func(switcher) error
	}{
		{"rules", "FILTER RULES:", c.showRules},
		{"ether", "ETHER RULES:", c.showEther},
		{"states", "STATES:", c.showStates},
		{"Sources", "SOURCE TRACKING NODES:", c.showSources},
		{"info", "INFO:", c.showInfo},
		{"labels", "LABEL COUNTERS:", c.showLabels},
		{"timeouts", "TIMEOUTS:", c.showTimeouts},
		{"memory", "LIMITS:", c.showLimits},
		{"Tables", "TABLES:", c.showTables},
		{"nat", "", c.showTranslations},
		{"Anchors", "", c.showAnchors},
		{"Interfaces", "", c.showPorts},
		{"LimiterStates", "", func(s switcher) error { return c.showLimiters(s, false) }},
		{"LimiterSrcs", "", func(s switcher) error { return c.showLimiters(s, true) }},
	}
	all := c.show.name == "all"
	if all && c.json {
		parts := []byte{'{'}
		for _, show := range shows {
			if show.title == "" {
				continue
			}
			text, err := c.captured(func() error { return show.show(s) })
			if err != nil {
				return err
			}
			if len(parts) > 1 {
				parts = append(parts, ',')
			}
			parts = fmt.Appendf(parts, "%q:%s", show.name, bytes.TrimSpace(text))
		}
		_, err := fmt.Fprintf(c.out, "%s}\n", parts)
		return err
	}
	for i, show := range shows {
		if all && show.title != "" {
			if i > 0 {
				fmt.Fprintln(c.out)
			}
			fmt.Fprintln(c.out, show.title)
		}
		if show.name == c.show.name || all && show.title != "" {
			if err := show.show(s); err != nil {
				return err
			}
		}
	}
	return nil
}

// captured runs f and returns its output.
func (p *program) captured(f func() error) ([]byte, error) {
	var text bytes.Buffer
	out := p.out
	p.out = bufio.NewWriter(&text)
	defer func() { p.out = out }()
	err := errors.Join(f(), p.out.Flush())
	return text.Bytes(), err
}

// pfRuleHead returns a rule on one line; for an anchor only the line that calls it.
func pfRuleHead(r *pf.Rule) string {
	if r.Anchor != nil {
		head := *r
		head.Anchor = &pf.Anchor{Name: r.Anchor.Name, Only: r.Anchor.Only}
		r = &head
	}
	return r.String()
}

func (c *pfctl) showRules(s switcher) error {
	path, recursive := pfAnchorAll(c.anchor.text)
	rules, err := s.PFRules(c.bridge.text, path)
	if err != nil {
		return err
	}
	if n, of := c.rule.n, len(rules.Set.Rules); n != nil && *n >= of {
		return fmt.Errorf("cannot show rule %d of %s: there are %d rules, from 0 on; give another number", *n, c.bridge.text, of)
	}
	if !c.json {
		sizes := &pfTableSizes{of: s, bridge: c.bridge.text, known: map[string]map[string]int{}}
		c.printRules(rules, rules.Set, rules.Path, 0, recursive, sizes)
		if path != "" && recursive && len(rules.Set.Rules) == 0 {
			c.printAnchors(rules, path, 0, sizes)
		}
		return sizes.err
	}
	list := answer.OfPFRules(c.bridge.text, rules, recursive, func(*pf.Rule) bool { return true })
	return c.printJSON(slices.DeleteFunc(list, func(r answer.PFRule) bool { return c.rule.n != nil && *c.rule.n != r.Number }))
}

// showTranslations prints the rules with translations, one on each line.
func (c *pfctl) showTranslations(s switcher) error {
	path, _ := pfAnchorAll(c.anchor.text)
	rules, err := s.PFRules(c.bridge.text, path)
	if err != nil {
		return err
	}
	list := answer.OfPFRules(c.bridge.text, rules, true, func(r *pf.Rule) bool { return len(r.Translations) > 0 && r.Anchor == nil })
	if c.json {
		return c.printJSON(list)
	}
	for _, r := range list {
		fmt.Fprintln(c.out, r.Rule)
	}
	return nil
}

// pfAnchorAll returns the path of an anchor, and whether the argument includes all anchors below it:
// "x/*".
func pfAnchorAll(anchor string) (path string, all bool) {
	path, all = strings.CutSuffix(anchor, "*")
	return strings.Trim(path, "/"), all
}

// pfTableSizes caches the sizes of tables, which are read when a rule names a table.
type pfTableSizes struct {
	of     switcher
	bridge string
	known  map[string]map[string]int // by anchor and name
	err    error                     // the last error
}

// named returns a rule with <TABLE:ADDRESSES> for its tables, as pfctl prints
// it with -vv.
func (t *pfTableSizes) named(path string, r *pf.Rule) *pf.Rule {
	rule := *r
	for _, h := range []*pf.Host{&rule.From.Host, &rule.To.Host} {
		if h.Kind == pf.InTable {
			n, ok := t.in(path)[h.Name]
			if !ok { // it refers to the table of the main ruleset
				n = t.in("")[h.Name]
			}
			h.Name += ":" + strconv.Itoa(n)
		}
	}
	return &rule
}

func (t *pfTableSizes) in(path string) map[string]int {
	if sizes, ok := t.known[path]; ok {
		return sizes
	}
	sizes := map[string]int{}
	list, err := t.of.PFTables(t.bridge, path)
	if err != nil {
		t.err = err
	}
	for _, table := range list {
		sizes[table.Name] = table.Addresses
	}
	t.known[path] = sizes
	return sizes
}

// printRules prints the rules of a ruleset line by line, with the rules of anchors indented.
func (c *pfctl) printRules(rules bridge.PFRules, set *pf.Ruleset, path string, depth int, recursive bool, sizes *pfTableSizes) {
	indent := strings.Repeat("  ", depth)
	for i := range set.Rules {
		r := &set.Rules[i]
		if c.rule.n != nil && *c.rule.n != i {
			continue
		}
		line := indent
		if c.verbose > 1 {
			line += fmt.Sprintf("@%d ", i) + pfRuleHead(sizes.named(path, r))
		} else {
			line += pfRuleHead(r)
		}
		body, at := rules.Body(path, i, r)
		if body != nil && !recursive && r.Anchor.Name != "" {
			body = nil
		}
		above, several := answer.PFAnchorsBelow(path, i, r)
		several = several && recursive
		if body != nil || several {
			line += " {"
		}
		if c.verbose > 0 && rules.Counts[r].Spent {
			line += " # expired"
		}
		fmt.Fprintln(c.out, line)
		if c.verbose > 0 {
			n := rules.Counts[r]
			fmt.Fprintf(c.out, "%s  [ Evaluations: %-8d  Packets: %-8d  Bytes: %-10d  States: %-6d]\n", indent, n.Evaluations, n.Packets[0]+n.Packets[1], n.Bytes[0]+n.Bytes[1], n.States)
			fmt.Fprintf(c.out, "%s  [ Inserted: uid 0 pid 0 State Creations: %-6d]\n", indent, n.Created)
		}
		if body != nil {
			c.printRules(rules, body, at, depth+1, recursive, sizes)
		} else if several {
			c.printAnchors(rules, above, depth+1, sizes)
		}
		if body != nil || several {
			fmt.Fprintln(c.out, indent+"}")
		}
	}
}

// printAnchors prints the anchors directly below another one as if rules called them.
func (c *pfctl) printAnchors(rules bridge.PFRules, above string, depth int, sizes *pfTableSizes) {
	indent := strings.Repeat("  ", depth)
	for _, name := range rules.Below(above) {
		fmt.Fprintf(c.out, "%sanchor %q all {\n", indent, name)
		if set := rules.Anchors[pf.AnchorPath(above, name)]; set != nil {
			c.printRules(rules, set, pf.AnchorPath(above, name), depth+1, true, sizes)
		}
		fmt.Fprintln(c.out, indent+"}")
	}
}

func (c *pfctl) showEther(s switcher) error {
	rules, err := s.PFRules(c.bridge.text, "")
	if err != nil {
		return err
	}
	lines := []string{}
	for i := range rules.Set.Ether {
		lines = append(lines, rules.Set.Ether[i].String())
	}
	if c.json {
		return c.printJSON(lines)
	}
	for i, line := range lines {
		if c.verbose > 1 {
			line = fmt.Sprintf("@%d %s", i, line)
		}
		fmt.Fprintln(c.out, line)
	}
	return nil
}

func (c *pfctl) showLabels(s switcher) error {
	path, recursive := pfAnchorAll(c.anchor.text)
	rules, err := s.PFRules(c.bridge.text, path)
	if err != nil {
		return err
	}
	list := answer.OfPFRules(c.bridge.text, rules, recursive, func(r *pf.Rule) bool { return r.Label != "" })
	if c.json {
		return c.printJSON(list)
	}
	for _, r := range list {
		for _, label := range append([]string{r.Label}, r.Labels...) {
			fmt.Fprintln(c.out, label, r.Evaluations, r.PacketsIn+r.PacketsOut, r.BytesIn+r.BytesOut,
				r.PacketsIn, r.BytesIn, r.PacketsOut, r.BytesOut, r.Created)
		}
	}
	return nil
}

func (c *pfctl) showAnchors(s switcher) error {
	path, all := pfAnchorAll(c.anchor.text)
	list, err := s.PFAnchors(c.bridge.text, path, all || c.verbose > 0)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(list)
	}
	for _, name := range list {
		fmt.Fprintln(c.out, "  "+name)
	}
	return nil
}

func (c *pfctl) showStates(s switcher) error {
	list, err := s.PFStates(c.bridge.text, bridge.PFKill{Port: c.port.text})
	if err != nil {
		return err
	}
	if !c.json {
		for _, st := range list {
			c.printState(st)
		}
		return nil
	}
	return c.printJSON(answer.List(list, func(st bridge.PFState) answer.PFState { return answer.OfPFState(c.bridge.text, st) }))
}

// clock formats a duration like pf.
func clock(d time.Duration) string {
	s := int64(d / time.Second)
	return fmt.Sprintf("%02d:%02d:%02d", s/3600, s/60%60, s%60)
}

// hostName returns the name of a host, or its address if it has no name.
func (c *pfctl) hostName(addr string) string {
	ctx, cancel := context.WithTimeout(context.Background(), maxHostLookup/2)
	defer cancel()
	r, err := newResolver(bridge.NetnsPath(c.netns.text), netnsNames, netnsEtc)
	if err != nil {
		return addr
	}
	defer r.close()
	if names, err := r.LookupAddr(ctx, addr); err == nil && len(names) > 0 {
		return strings.TrimSuffix(names[0], ".")
	}
	return addr
}

// host formats an address with a port like pf.
func (c *pfctl) host(a bridge.PFAddress) string {
	text := a.Addr.String()
	if c.names {
		text = c.hostName(text)
	}
	switch {
	case a.Port == 0:
		return text
	case a.Addr.Is4():
		return fmt.Sprintf("%s:%d", text, a.Port)
	}
	return fmt.Sprintf("%s[%d]", text, a.Port)
}

const protoTCP = 6

func (c *pfctl) printState(s bridge.PFState) {
	bound := s.Port
	if bound == "" {
		bound = "all"
	}
	levels := s.Src.State + ":" + s.Dst.State
	if strings.HasPrefix(s.Src.State, "PROXY:") {
		levels = s.Src.State
	}
	// Like pfctl, an original address follows its translation in parentheses.
	hosts := []string{c.host(s.Src.PFAddress), c.host(s.Dst.PFAddress)}
	for i, before := range []bridge.PFAddress{s.Src.PFAddress, s.Dst.PFAddress} {
		// ICMP echo requests share one type, and the target has no port
		if t := s.Translated; t != nil && t[i] != before {
			hosts[i] = c.host(t[i]) + " (" + hosts[i] + ")"
		}
	}
	fmt.Fprintf(c.out, "%s %s %s -> %s       %s\n", bound, pf.ProtocolName(s.Proto), hosts[0], hosts[1], levels)
	if c.verbose == 0 {
		return
	}
	if s.Proto == protoTCP {
		sequence := func(p bridge.PFPeer) string {
			text := fmt.Sprintf("[%d + %d]", p.Low, p.High-p.Low)
			if p.Diff != 0 {
				text += fmt.Sprintf("(+%d)", p.Diff)
			}
			if s.Src.Scale >= 0 && s.Dst.Scale >= 0 {
				text += fmt.Sprintf(" wscale %d", p.Scale)
			}
			return text
		}
		fmt.Fprintf(c.out, "   %s  %s\n", sequence(s.Src), sequence(s.Dst))
	}
	fmt.Fprintf(c.out, "   age %s, expires in %s, %d:%d pkts, %d:%d bytes", clock(s.Age), clock(s.Expires),
		s.Src.Packets, s.Dst.Packets, s.Src.Bytes, s.Dst.Bytes)
	if s.Anchor != "" {
		fmt.Fprintf(c.out, ", anchor %s", s.Anchor)
	}
	if s.Rule >= 0 {
		fmt.Fprintf(c.out, ", rule %d", s.Rule)
	}
	if s.Sloppy {
		fmt.Fprint(c.out, ", sloppy")
	}
	if s.Tracked {
		fmt.Fprint(c.out, ", source-track")
	}
	fmt.Fprintln(c.out)
	if c.verbose > 1 {
		fmt.Fprintf(c.out, "   id: %016x", s.ID)
		if s.VLAN != 0 {
			fmt.Fprintf(c.out, " vlan: %d", s.VLAN)
		}
		if s.In != "" {
			fmt.Fprintf(c.out, " in: %s", s.In)
		}
		if s.Out != "" {
			fmt.Fprintf(c.out, " out: %s", s.Out)
		}
		if s.Hop.IsValid() {
			fmt.Fprintf(c.out, " %s %s", s.Route, s.Hop)
		}
		if s.Divert != nil {
			fmt.Fprintf(c.out, " %s", s.Divert)
		}
		fmt.Fprintln(c.out)
	}
}

func (c *pfctl) showSources(s switcher) error {
	list, err := s.PFSources(c.bridge.text)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(answer.List(list, func(n bridge.PFSource) answer.PFSource { return answer.OfPFSource(c.bridge.text, n) }))
	}
	for _, n := range list {
		given := "0.0.0.0"
		if n.Addr.Is6() {
			given = "::"
		}
		if n.Given.IsValid() {
			given = n.Given.String()
		}
		fmt.Fprintf(c.out, "%s -> %s ( states %d, connections %d, rate %.1f/%ds )\n", n.Addr, given, n.States, n.Connections, n.Rate, int(n.RateTime.Seconds()))
		if c.verbose == 0 {
			continue
		}
		fmt.Fprintf(c.out, "   age %s", clock(n.Age))
		if n.States == 0 {
			fmt.Fprintf(c.out, ", expires in %s", clock(n.Expires))
		}
		if n.Rule >= 0 {
			fmt.Fprintf(c.out, ", rule %d", n.Rule)
		}
		fmt.Fprintln(c.out)
	}
	return nil
}

// showLimiters prints limiters like pfctl: with a header line, and with -v also the sources of source
// limiters.
func (c *pfctl) showLimiters(s switcher, sources bool) error {
	list, err := s.PFLimiters(c.bridge.text, sources)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(answer.List(list, func(l bridge.PFLimiter) answer.PFLimiter { return answer.OfPFLimiter(c.bridge.text, l) }))
	}
	line := func(id, use, limit string, rate any, more ...any) {
		fmt.Fprintf(c.out, "%3s %8s/%-8s %11s", id, use, limit, rate)
		for _, n := range more {
			fmt.Fprintf(c.out, " %8v", n)
		}
		fmt.Fprintln(c.out)
	}
	if sources {
		line("ID", "USE", "ADDRS", "RATE", "LIMIT", "ADMIT", "ADDRLIM", "HARDLIM", "RATELIM")
	} else {
		line("ID", "USE", "LIMIT", "RATE", "ADMIT", "HARDLIM", "RATELIM")
	}
	for _, l := range list {
		rate := "nil"
		if l.Rate != (pf.Rate{}) {
			rate = fmt.Sprintf("%d/%d", l.Rate.Number, l.Rate.Seconds)
		}
		id := strconv.Itoa(int(l.ID))
		if !sources {
			line(id, fmt.Sprint(l.States), fmt.Sprint(l.Limit), rate, l.Admitted, l.HardLimited, l.RateLimited)
			continue
		}
		line(id, fmt.Sprint(l.Addresses), fmt.Sprint(l.Entries), rate, l.Limit, l.Admitted, l.AddrFull, l.HardLimited, l.RateLimited)
		for _, n := range l.Sources {
			if c.verbose > 0 {
				fmt.Fprintf(c.out, "    %s inuse %d/%d admitted %d hardlim %d ratelim %d\n", n.Addr, n.States, l.Limit, n.Admitted, n.HardLimited, n.RateLimited)
			}
		}
	}
	return nil
}

func (c *pfctl) showInfo(s switcher) error {
	info, err := s.PF(c.bridge.text)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(answer.OfPFInfo(c.bridge.text, info))
	}
	status := "Status: Disabled"
	if info.Enabled {
		status = "Status: Enabled"
	}
	seconds := int64(info.For / time.Second)
	if info.For >= 0 {
		status += fmt.Sprintf(" for %d days %02d:%02d:%02d", seconds/86400, seconds/3600%24, seconds/60%60, seconds%60)
	}
	fmt.Fprintf(c.out, "%-44s%15s\n\n", status, "Debug: "+info.Debug)
	if c.verbose > 0 {
		fmt.Fprintf(c.out, "Hostid:   0x%08x\nChecksum: 0x%x\n\n", info.HostID, info.Checksum)
	}
	if p := info.Log; p != nil {
		fmt.Fprintf(c.out, "Interface Stats for %-16s %5s %16s\n", p.Name, "IPv4", "IPv6")
		row := func(width int, name string, f func(family int) uint64) {
			fmt.Fprintf(c.out, "%*s%-*s %14d %16d\n", 27-width, "", width, name, f(0), f(1))
		}
		for i, dir := range []string{"In", "Out"} {
			row(25, "Bytes "+dir, func(family int) uint64 { return p.Bytes[family][i][0] + p.Bytes[family][i][1] })
		}
		for i, dir := range []string{"In", "Out"} {
			fmt.Fprintf(c.out, "  Packets %s\n", dir)
			for j, what := range []string{"Passed", "Blocked"} {
				row(23, what, func(family int) uint64 { return p.Packets[family][i][j] })
			}
		}
		fmt.Fprintln(c.out)
	}
	counters := func(list []bridge.PFCounter) {
		for _, n := range list {
			rate := ""
			if seconds > 0 {
				rate = fmt.Sprintf("%.1f/s", float64(n.Count)/float64(seconds))
			}
			fmt.Fprintf(c.out, "  %-25s %14d %16s\n", n.Name, n.Count, rate)
		}
	}
	current := func(name string, n uint64) { fmt.Fprintf(c.out, "  %-25s %14d %14s\n", name, n, "") }
	fmt.Fprintf(c.out, "%-27s %14s %16s\n", "State Table", "Total", "Rate")
	current("current entries", info.States)
	current("half-open tcp", info.HalfOpen)
	counters(info.StateTable)
	if c.verbose > 0 {
		fmt.Fprintln(c.out, "Source Tracking Table")
		current("current entries", info.Sources)
	}
	fmt.Fprintln(c.out, "Counters")
	counters(info.Counters)
	if c.verbose > 0 {
		fmt.Fprintln(c.out, "Limit Counters")
		counters(info.LimitCounters)
	}
	return nil
}

func (c *pfctl) showTimeouts(s switcher) error {
	info, err := s.PF(c.bridge.text)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(answer.OfPFTimeouts(info))
	}
	for i, v := range info.Timeouts {
		name, unit := pf.TimeoutName(i), "s"
		if name == pf.AdaptiveStart || name == pf.AdaptiveEnd {
			unit = " states"
		}
		fmt.Fprintf(c.out, "%-20s %10d%s\n", name, v, unit)
	}
	return nil
}

func (c *pfctl) showLimits(s switcher) error {
	info, err := s.PF(c.bridge.text)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(answer.OfPFLimits(info))
	}
	for i, v := range info.Limits {
		fmt.Fprintf(c.out, "%-13s hard limit %8d\n", pf.LimitName(i), v)
	}
	for _, m := range info.Memory {
		fmt.Fprintf(c.out, "%-13s takes      %8d KiB\n", m.Name, (m.Bytes+1023)/1024)
	}
	return nil
}

func (c *pfctl) showTables(s switcher) error {
	_, recursive := pfAnchorAll(c.anchor.text)
	list, err := s.PFTables(c.bridge.text, c.anchor.text)
	if err != nil {
		return err
	}
	if c.json {
		return c.printJSON(answer.List(list, func(t bridge.PFTable) answer.PFTable { return answer.OfPFTable(c.bridge.text, t) }))
	}
	for _, t := range list {
		name := t.Name
		switch {
		case t.Anchor == "":
		case recursive: // like FreeBSD, the only pfctl that prints all
			name += "@" + t.Anchor
		case c.verbose > 0:
			name += "\t" + t.Anchor
		}
		if c.verbose == 0 {
			fmt.Fprintln(c.out, name)
			continue
		}
		flags := []byte("--a----")
		for _, f := range []struct {
			set    bool
			at     int
			letter byte
		}{{t.Const, 0, 'c'}, {t.Persist, 1, 'p'}, {t.Rules > 0, 4, 'r'}, {t.InAnchors, 5, 'h'}, {t.Counters, 6, 'C'}} {
			if f.set {
				flags[f.at] = f.letter
			}
		}
		fmt.Fprintf(c.out, "%s\t%s\n", flags, name)
		if c.verbose > 1 {
			fmt.Fprintf(c.out, "\tAddresses:   %d\n", t.Addresses)
			fmt.Fprintf(c.out, "\tCleared:     %s\n", t.Cleared.Format(time.ANSIC))
			fmt.Fprintf(c.out, "\tReferences:  [ Anchors: %-18d Rules: %-18d ]\n", 0, t.Rules)
		}
	}
	return nil
}

// printEntries prints the addresses of a table.
func (c *pfctl) printEntries(list []bridge.PFTableEntry) error {
	if c.json {
		entries := make([]string, len(list))
		for i, e := range list {
			entries[i] = e.String()
		}
		return c.printJSON(entries)
	}
	for _, e := range list {
		c.printEntry(' ', e.TableEntry)
		if c.verbose > 0 {
			fmt.Fprintf(c.out, "\tCleared:     %s\n", e.Cleared.Format(time.ANSIC))
		}
	}
	return nil
}

func (c *pfctl) printEntry(mark byte, e pf.TableEntry) {
	text := e.String()
	if !e.Not {
		text = " " + text
	}
	fmt.Fprintf(c.out, "%c %s\n", mark, text)
}

// printChange prints the counts of a table change.
func (c *pfctl) printChange(done bridge.PFTableChange, asked int) error {
	if done.Created {
		c.did("1 table created")
	}
	switch c.command.name {
	case "add":
		c.did("%d/%d addresses added", done.Added, asked)
	case "delete":
		c.did("%d/%d addresses deleted", done.Deleted, asked)
	case "test":
		c.did("%d/%d addresses match", done.Matched, asked)
	case "replace":
		for _, n := range []struct {
			n    int
			what string
		}{{done.Added, "added"}, {done.Deleted, "deleted"}, {done.Changed, "changed"}} {
			if n.n > 0 {
				c.did("%d addresses %s", n.n, n.what)
			}
		}
		if done.Added+done.Deleted+done.Changed == 0 {
			c.did("no changes")
		}
	}
	for i, e := range done.Entries {
		if c.verbose > 1 || c.verbose > 0 && done.Marks[i] != ' ' {
			c.printEntry(done.Marks[i], e)
		}
	}
	if c.command.name == "test" && done.Matched < asked {
		return errPFNoMatch
	}
	return nil
}

func (c *pfctl) showPorts(s switcher) error {
	info, err := s.PF(c.bridge.text)
	if err != nil {
		return err
	}
	info.Ports = slices.DeleteFunc(info.Ports, func(p bridge.PFPort) bool { return c.port.text != "" && !p.Is(c.port.text) })
	list := answer.OfPFPorts(c.bridge.text, info)
	if c.json {
		return c.printJSON(list)
	}
	for _, p := range list {
		line := p.Name
		if p.Skip && c.verbose > 0 {
			line += " (skip)"
		}
		fmt.Fprintln(c.out, line)
	}
	return nil
}
