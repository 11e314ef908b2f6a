// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"bascule/datapath"
	"bascule/pf"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LoadPF loads a file into pf of a bridge, completely or not at all. It returns the parsed ruleset,
// and notes about things that may not be intended. Mistakes in the text are returned as a
// [pf.ErrorList]. With o.Check it loads nothing, and bridge may be "".
func (s *Switch) LoadPF(bridge string, o PFLoad) (set *pf.Ruleset, notes []string, err error) {
	what := o.what(bridge)
	if set, err = s.parsePF(what, o); err != nil {
		return nil, nil, err
	}
	if bridge != "" && !o.Later {
		list, err := s.unreached(set)
		if err != nil {
			return nil, nil, failed(what, err)
		}
		if len(list) > 0 {
			return nil, nil, list
		}
	}
	if err := s.undiverted(what, bridge, set); err != nil {
		return nil, nil, err
	}
	if o.Check {
		if err := s.checkPF(what, bridge, o, set); err != nil {
			return nil, nil, err
		}
		at, err := s.elsewhere(bridge, set, o.Anchor == "" && !o.TablesOnly)
		if err != nil {
			return nil, nil, failed(what, err)
		}
		return set, slices.Concat(redefined(set), idle(set), never(set), missing(set), at), nil
	}
	var made *draft
	err = s.changePF(what, bridge, func(c *draft, d *pfConfig) error {
		made = c
		if err := o.take(d, set); err != nil {
			return refused(what, err.Error(), "nothing was changed")
		}
		switch {
		case o.Enable != nil:
			d.enabled, d.Stay = *o.Enable, !*o.Enable
		case !o.TablesOnly && !d.Stay:
			d.enabled = true
		}
		return nil
	})
	if err != nil {
		return set, nil, err
	}
	notes = slices.Concat(redefined(set), idle(set), never(set))
	if !o.Later {
		at, err := s.elsewhere(bridge, set, o.Anchor == "" && !o.TablesOnly)
		if err != nil {
			return set, nil, failed(what, err)
		}
		notes = append(notes, at...)
	}
	return set, append(notes, made.warnings...), nil
}

// NotesPF returns notes about names in a loaded ruleset that match none of the bridge's ports or
// the host's interfaces, as LoadPF does unless o.Later is set.
func (s *Switch) NotesPF(bridge string, set *pf.Ruleset) (notes []string, err error) {
	notes, err = s.elsewhere(bridge, set, true)
	return notes, failed("look at the rules of "+bridge, err)
}

// unreached returns the next hops that the host has no route to at present.
func (s *Switch) unreached(set *pf.Ruleset) (list pf.ErrorList, err error) {
	err = s.Inside(func() error {
		list = set.Unreached(reached)
		return nil
	})
	return list, err
}

// reached reports whether the host has a route to an address, in any of its tables, by any
// interface or by the one with a name or group. It returns true if the routes cannot be read.
func reached(a netip.Addr, by string) bool {
	leaves := func(r netlink.Route) bool {
		if r.Type != unix.RTN_UNICAST {
			return false
		}
		if by == "" {
			return true
		}
		l, err := netlink.LinkByIndex(r.LinkIndex)
		return err != nil || l.Attrs().Name == by || pf.GroupName(l.Attrs().Name) == by
	}
	routes, err := netlink.RouteGet(a.AsSlice())
	if err == nil && slices.ContainsFunc(routes, leaves) {
		return true
	}
	family := netlink.FAMILY_V4
	if a.Is6() {
		family = netlink.FAMILY_V6
	}
	// a VRF has its own table
	routes, err = netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	return err != nil || slices.ContainsFunc(routes, func(r netlink.Route) bool {
		if !leaves(r) || r.Table == unix.RT_TABLE_MAIN {
			return false
		}
		return r.Dst == nil || r.Dst.Contains(a.AsSlice())
	})
}

// undiverted refuses rules that divert packets at ports of the bridge that are not host ports.
func (s *Switch) undiverted(what, bridge string, set *pf.Ruleset) error {
	if bridge == "" {
		return nil
	}
	var list pf.ErrorList
	err := s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
		ports, err := pfPortsOf(b, true)
		list = set.Undiverted(ports.list)
		return err
	})
	switch {
	case errors.Is(err, errNoBridge):
		return nil
	case err != nil:
		return failed(what, err)
	case len(list) > 0:
		return list
	}
	return nil
}

// elsewhere returns notes about a ruleset and the ports that the bridge has now: rules that never
// translate, names that no port has, and, for a main ruleset, the ports that it blocks by default.
// It returns none if there is no bridge.
func (s *Switch) elsewhere(bridge string, set *pf.Ruleset, main bool) (notes []string, err error) {
	if bridge == "" {
		return nil, nil
	}
	err = s.each("look at the ports of "+bridge, bridge, func(name string, b *datapath.Bridge) error {
		ports, err := pfPortsOf(b, true)
		if err != nil {
			return err
		}
		devices, err := links()
		if err != nil {
			return err
		}
		groups, err := groupsOf(true)
		notes = slices.Concat(untranslated(set, ports.list), strangers(set, name, ports.list, groups, devices), aliens(set, groups, devices),
			notedIdle(set.Unseen(ports.list)), looped(set, ports.list, main), unrouted(set, name, ports.list))
		if slices.ContainsFunc(ports.list, func(p pf.CompilePort) bool { return p.Host && !p.Skip }) {
			notes = slices.Concat(notes, unmarked(set, ports.list, devices), unforwarded(set))
		}
		if main {
			notes = slices.Concat(notes, judged(set, name, ports.list))
		}
		if err == nil {
			var empty []string
			empty, err = unfilled(b, set)
			notes = slices.Concat(notes, empty)
		}
		return err
	})
	if errors.Is(err, errNoBridge) {
		err = nil
	}
	return notes, err
}

// judged returns a note about the ports at which a rule in a file blocks everything by default.
func judged(set *pf.Ruleset, bridge string, ports []pf.CompilePort) []string {
	if where := blockedAt(set, bridge, ports); where != "" {
		return []string{fmt.Sprintf("%v: %s", set.DefaultBlock().Pos, where)}
	}
	return nil
}

// blockedAt describes the ports at which a ruleset blocks everything by default, if a user may
// expect others: because there are stations and the host, or because pf does not filter all ports.
func blockedAt(set *pf.Ruleset, bridge string, ports []pf.CompilePort) string {
	if set.DefaultBlock() == nil {
		return ""
	}
	var at, host, station []string
	for _, p := range ports {
		switch {
		case p.Skip:
			continue
		case p.Host:
			host = append(host, p.Name)
		default:
			station = append(station, p.Name)
		}
		at = append(at, p.Name)
	}
	var what string
	switch skipped := len(at) < len(ports); {
	case skipped && len(at) == 0:
		what = fmt.Sprintf("at no port of %s: its setting %s leaves all of them out", bridge, PFPortsSetting)
	case skipped && len(host) > 0:
		what = fmt.Sprintf("only at the host's ports, %s, not between stations", names(host))
	case skipped:
		what = fmt.Sprintf("only at the stations' ports, %s, not at the host's", names(station))
	case len(host) > 0 && len(station) > 0:
		what = fmt.Sprintf("at the host's ports, %s, and the stations' ports, %s, which then cannot reach each other;"+
			" if the file is a router's: bascule bridge set %s --%s %s", names(host), names(station), bridge, PFPortsSetting, PFHost)
	default:
		return ""
	}
	return "block holds " + what
}

// warnBlocked adds the same note if a change makes pf filter other ports with the present rules.
func (c *draft) warnBlocked(name string) error {
	if c.next.PfPorts == c.bridge.Config.PfPorts || !c.bridge.PFEnabled() {
		return nil
	}
	d, err := c.pfSoFar()
	if err != nil {
		return err
	}
	devices, err := links()
	if err != nil {
		return err
	}
	ports, err := pfPortsFor(devices, c.bridge, c.next, nil, false)
	if where := blockedAt(d.main, name, ports.list); where != "" {
		c.warn(where)
	}
	return err
}

// names lists names of ports, only the first ones if there are many.
func names(list []string) string {
	const most = 8
	if len(list) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:most], ", "), len(list)-most)
	}
	return strings.Join(list, ", ")
}

// untranslated returns notes about the rules that never translate at the ports of a bridge.
func untranslated(set *pf.Ruleset, ports []pf.CompilePort) (notes []string) {
	list := set.Elsewhere(ports)
	for n, i := range list {
		if n == maxNotes {
			return append(notes, fmt.Sprintf("%d more rules never translate or route, since what they name is no host port", len(list)-n))
		}
		notes = append(notes, fmt.Sprintf("%v: %s never holds: %s, and what the rule matches is dropped; give a host port", i.Pos, i.Word, i.Why))
	}
	return notes
}

// maxNames is the maximum number of notes about unknown names, one for each.
const maxNames = 20

// strangers returns notes about the names in a file that neither a port of the bridge nor a group
// with a port in it has. Their rules take effect as soon as a port gets the name.
func strangers(set *pf.Ruleset, bridge string, ports []pf.CompilePort, groups grouping, devices map[int]netlink.Link) (notes []string) {
	list := set.Strangers(ports)
	for n, s := range list {
		if n == maxNames {
			notes = append(notes, fmt.Sprintf("%d more names match no port of %s", len(list)-n, bridge))
			break
		}
		var there []string
		for _, index := range sortedKeys(devices) {
			if l := devices[index]; groups.named(l).Is(s.Name) && !isSwitchEnd(l) {
				there = append(there, l.Attrs().Name)
			}
		}
		why := "no port of " + bridge + ", and no group of its ports, has this name now"
		switch {
		case pf.GroupName(s.Name) == "lo":
			why = "the host's packets to itself pass no switch"
		case len(there) > 0 && s.Name == egressGroup:
			why = "the host's default route is by " + strings.Join(there, " and ") + ", which is not a host port of " + bridge
		case s.Name == egressGroup:
			why = "no interface of the host has a default route now"
		case len(there) > 0:
			why = "it is an interface of the host, and no port of " + bridge
		}
		effect := "has no effect"
		if strings.HasSuffix(s.Word, pf.NotIt) {
			effect = "holds at every port"
		}
		note := fmt.Sprintf("%v: %s %s %s: %s", s.Pos, s.Word, s.Name, effect, why)
		if s.More > 0 {
			note += fmt.Sprintf(" (%d more)", s.More)
		}
		notes = append(notes, note)
	}
	return append(notes, unlogged(set, ports)...)
}

// unlogged returns notes about a `set loginterface` that names a group of several ports: only one
// port has counters.
func unlogged(set *pf.Ruleset, ports []pf.CompilePort) (notes []string) {
	for _, n := range set.Names {
		var of []string
		for _, p := range ports {
			if p.Is(n.Name) {
				of = append(of, p.Name)
			}
		}
		if n.Word == pf.SetLogInterface && len(of) > 1 && !slices.Contains(of, n.Name) {
			notes = append(notes, fmt.Sprintf("%v: %s %s has no effect: it is a group of several ports (%s), and one port is counted; name it",
				n.Pos, n.Word, n.Name, strings.Join(of, ", ")))
		}
	}
	return notes
}

// aliens returns notes about the names in parentheses that neither an interface of the host nor a
// group of interfaces has. They have no addresses.
func aliens(set *pf.Ruleset, groups grouping, devices map[int]netlink.Link) (notes []string) {
	var names []pf.CompilePort
	for _, l := range devices {
		if !isSwitchEnd(l) {
			names = append(names, groups.named(l))
		}
	}
	list := set.Aliens(names)
	for n, s := range list {
		if n == maxNames {
			return append(notes, fmt.Sprintf("%d more names in parentheses match no interface of the host", len(list)-n))
		}
		note := fmt.Sprintf("%v: (%s) has no address now: no interface of the host, and no group of them, has this name", s.Pos, s.Name)
		if s.Name == egressGroup {
			note = fmt.Sprintf("%v: (%s) has no address now: no interface of the host has a default route", s.Pos, s.Name)
		}
		if s.More > 0 {
			note += fmt.Sprintf(" (%d more)", s.More)
		}
		notes = append(notes, note)
	}
	return notes
}

// looped returns notes about redirections to the host's loopback that the host's stack drops, and
// the setting that permits them. With this setting, rules with such redirections make pf drop other
// packets for the loopback (pf_looped() of bpf/pf/pf.h). A main ruleset without them gets a note
// that the loopback is open.
func looped(set *pf.Ruleset, ports []pf.CompilePort, main bool) (notes []string) {
	open := func(name string) bool {
		text, err := os.ReadFile("/proc/sys/net/ipv4/conf/" + name + "/route_localnet")
		return err == nil && strings.TrimSpace(string(text)) != "0"
	}
	setting := func(name string) string { return "net/ipv4/conf/" + name + "/route_localnet" }
	list, may := set.ToLoopback()
	for _, l := range list {
		if l.Inet6 {
			notes = append(notes, fmt.Sprintf("%v: rdr-to ::1 has no effect: the host takes nothing for ::1 that comes from elsewhere; "+
				"give another address of the host, or use divert-to", l.Pos))
		}
		var names []string
		for _, p := range ports {
			if l.Inet && p.Host && !open("all") && !open(p.Name) && (l.On.Name == "" || p.Is(l.On.Name) != l.On.Not) {
				names = append(names, setting(p.Name)+"=1")
			}
		}
		if len(names) > 0 {
			notes = append(notes, fmt.Sprintf("%v: rdr-to 127.0.0.1 has no effect yet: the host drops what comes to its loopback from elsewhere; "+
				"set %s: other packets from and to 127.0.0.0/8 are dropped by pf", l.Pos, strings.Join(names, " and ")))
		}
	}
	if !main || may {
		return notes
	}
	for _, p := range ports {
		if p.Host && open(p.Name) {
			notes = append(notes, fmt.Sprintf("%s: stations reach the host's 127.0.0.0/8, since no rule redirects there; set %s=0", p.Name, setting(p.Name)))
		}
	}
	return notes
}

// unfilled returns notes about the tables that rules refer to and that are not defined anywhere.
func unfilled(b *datapath.Bridge, set *pf.Ruleset) (notes []string, err error) {
	var has pfStored
	if b.PFLoaded() {
		if has, err = readStored(b); err != nil {
			return nil, err
		}
	}
	for _, i := range set.Unfilled(func(name string) bool {
		return slices.ContainsFunc(has.Tables, func(t *pfStoredTable) bool { return t.Defined && t.Name == name })
	}) {
		notes = append(notes, fmt.Sprintf("%v: %s is empty: no file defines it, and no command has filled it", i.Pos, i.Word))
	}
	return notes, nil
}

// unrouted returns notes about next hops and sockets at host ports that do not route. Packets that
// would go there are dropped.
func unrouted(set *pf.Ruleset, bridge string, ports []pf.CompilePort) (notes []string) {
	list := set.Unrouted(ports)
	for n, i := range list {
		if n == maxNotes {
			return append(notes, fmt.Sprintf("%d more rules have a next hop or a socket at ports without --%s", len(list)-n, routeSetting))
		}
		effect := "what it matches is dropped there"
		if i.Word == pf.DupTo.String() {
			effect = "there are no copies"
		}
		first, _, _ := strings.Cut(i.Why, ",")
		notes = append(notes, fmt.Sprintf("%v: %s holds only at ports with --%s, which %s does not have: %s; 'bascule port set %s %s --%s'",
			i.Pos, i.Word, routeSetting, i.Why, effect, bridge, first, routeSetting))
	}
	return notes
}

// unmarked returns notes about rules that pass packets to sockets of the host, if the host lacks
// the rule and route that make it accept packets with their mark.
func unmarked(set *pf.Ruleset, ports []pf.CompilePort, devices map[int]netlink.Link) (notes []string) {
	four := sync.OnceValue(func() bool { return takesMarked(netlink.FAMILY_V4) })
	six := sync.OnceValue(func() bool { return takesMarked(netlink.FAMILY_V6) })
	both := sync.OnceValue(func() bool { return hasInet6(ports, devices) })
	for _, need := range needed(set.Diverts(), func(need *pf.Need) {
		need.Inet = need.Inet && !four()
		// a rule for both families needs IPv6 only if the host has it
		need.Inet6 = need.Inet6 && (need.Only || both()) && !six()
	}) {
		var set []string
		for _, family := range []struct {
			needs bool
			ip    string
		}{{need.Inet, "ip"}, {need.Inet6, "ip -6"}} {
			if family.needs {
				set = append(set, fmt.Sprintf("'%s rule add fwmark %#x lookup 100' and '%s route add local default dev lo table 100'",
					family.ip, datapath.DivertMark, family.ip))
			}
		}
		notes = append(notes, fmt.Sprintf("%v: %s has no effect yet: the host drops packets that reach it this way; run %s%s",
			need.Pos, need.Word, strings.Join(set, ", "), more(need.More)))
	}
	return notes
}

// takesMarked reports whether the host has a rule for the mark of diverted packets, with a table
// whose route accepts everything for the host itself. It returns true if the rules or routes cannot
// be read.
func takesMarked(family int) bool {
	rules, err := netlink.RuleList(family)
	return err != nil || slices.ContainsFunc(rules, func(r netlink.Rule) bool {
		mask := ^uint32(0)
		if r.Mask != nil {
			mask = *r.Mask
		}
		if r.Mark == 0 || r.Mark != datapath.DivertMark&mask || r.Invert {
			return false
		}
		routes, err := netlink.RouteListFiltered(family, &netlink.Route{Table: r.Table}, netlink.RT_FILTER_TABLE)
		return err != nil || slices.ContainsFunc(routes, func(r netlink.Route) bool { return r.Type == unix.RTN_LOCAL })
	})
}

// hasInet6 reports whether the host's interface of a host port has an IPv6 address that is not
// link-local.
func hasInet6(ports []pf.CompilePort, devices map[int]netlink.Link) bool {
	ip := addresses()
	for index, l := range devices {
		host := slices.ContainsFunc(ports, func(p pf.CompilePort) bool { return p.Host && p.Name == l.Attrs().Name })
		if host && slices.ContainsFunc(ip[index], func(a deviceAddress) bool { return a.prefix.Addr().Is6() }) {
			return true
		}
	}
	return false
}

// unforwarded returns notes about rules for forwarded packets, if the host does not forward.
func unforwarded(set *pf.Ruleset) (notes []string) {
	four := sync.OnceValue(func() bool { return forwards("ipv4") })
	six := sync.OnceValue(func() bool { return forwards("ipv6") })
	for _, need := range needed(set.Forwards(), func(need *pf.Need) {
		need.Inet = need.Inet && !four()
		need.Inet6 = need.Inet6 && need.Only && !six()
	}) {
		family, setting := "IPv4", "net/ipv4/ip_forward=1"
		if !need.Inet {
			family, setting = "IPv6", "net/ipv6/conf/all/forwarding=1"
		}
		effect := "translates only what the host itself sends"
		if need.Word != pf.NatTo.String() {
			effect = "drops what it matches"
		}
		notes = append(notes, fmt.Sprintf("%v: %s %s: the host forwards no %s; set %s%s", need.Pos, need.Word, effect, family, setting, more(need.More)))
	}
	return notes
}

// forwards reports whether the host forwards packets of a family that enter by any interface.
func forwards(family string) bool {
	const dir = "/proc/sys/net/"
	paths := []string{dir + "ipv6/conf/all/forwarding"}
	if family == "ipv4" {
		paths, _ = filepath.Glob(dir + "ipv4/conf/*/forwarding")
	}
	return len(paths) == 0 || slices.ContainsFunc(paths, func(path string) bool {
		text, err := os.ReadFile(path)
		return filepath.Base(filepath.Dir(path)) != "default" && (err != nil || strings.TrimSpace(string(text)) != "0")
	})
}

// A lack is a need of several rules that the host does not fulfil.
type lack struct {
	pf.Need
	More int // further rules
}

// needed returns the needs that the host does not fulfil: met removes the families that it fulfils
// from a need. Needs with the same word and families are merged.
func needed(list []pf.Need, met func(*pf.Need)) (lacks []lack) {
	for _, need := range list {
		if met(&need); !need.Inet && !need.Inet6 {
			continue
		}
		same := func(l lack) bool { return l.Word == need.Word && l.Inet == need.Inet && l.Inet6 == need.Inet6 }
		if i := slices.IndexFunc(lacks, same); i >= 0 {
			lacks[i].More++
			continue
		}
		lacks = append(lacks, lack{need, 0})
	}
	return lacks
}

// more returns the end of a note about further rules.
func more(n int) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d more)", n)
}

// missing returns notes about the words of a file that make loading fail, because the language has
// them and the datapath does not implement them.
func missing(set *pf.Ruleset) (notes []string) {
	for _, e := range set.Missing() {
		notes = append(notes, fmt.Sprintf("%v: %s; loading refuses it", e.Pos, e.Message))
	}
	return notes
}

// idle returns notes about the words of a file that have no effect.
func idle(set *pf.Ruleset) []string { return notedIdle(set.Idle()) }

func notedIdle(list []pf.Idle) (notes []string) {
	for _, i := range list {
		note := fmt.Sprintf("%v: %s has no effect: %s", i.Pos, i.Word, i.Why)
		if i.More > 0 {
			note += fmt.Sprintf(" (%d more)", i.More)
		}
		notes = append(notes, note)
	}
	return notes
}

// never returns notes about the rules of a file that no packet of a bridge matches, with the
// reason.
func never(set *pf.Ruleset) (notes []string) {
	for _, i := range set.Never() {
		note := fmt.Sprintf("%v: this rule never matches here: %s", i.Pos, i.Why)
		if i.More > 0 {
			note = fmt.Sprintf("%v: this rule and %d more never match here: %s", i.Pos, i.More, i.Why)
		}
		notes = append(notes, note)
	}
	return notes
}

// redefined returns notes about the tables that a file defines more than once.
func redefined(set *pf.Ruleset) (notes []string) {
	seen, more := map[*pf.Ruleset]bool{}, 0 // rules may share the rules between their braces
	var walk func(*pf.Ruleset)
	walk = func(set *pf.Ruleset) {
		if set == nil || seen[set] {
			return
		}
		seen[set] = true
		defined := map[string]pf.Pos{}
		for i := range set.Tables {
			t := &set.Tables[i]
			switch before, again := defined[t.Name]; {
			case again && len(notes) == maxNotes:
				more++
			case again:
				notes = append(notes, fmt.Sprintf("%v: table <%s> is defined again; its definition at %v has no effect", t.Pos, t.Name, before))
			}
			defined[t.Name] = t.Pos
		}
		for i := range set.Rules {
			if a := set.Rules[i].Anchor; a != nil {
				walk(a.Body)
			}
		}
		for _, load := range set.Loads {
			walk(load.Ruleset)
		}
	}
	if walk(set); more > 0 {
		notes = append(notes, fmt.Sprintf("%d more tables are defined again", more))
	}
	return notes
}

// what describes the load of a file, for errors.
func (o *PFLoad) what(bridge string) string {
	if bridge == "" {
		return "load " + o.Name + " into pf"
	}
	return "load " + o.Name + " into pf of " + bridge
}

// take puts the contents of a file into pf.
func (o *PFLoad) take(d *pfConfig, set *pf.Ruleset) error {
	path := strings.Trim(o.Anchor, "/")
	if o.TablesOnly {
		return d.takeTables(path, set)
	}
	return d.take(path, set)
}

// parsePF parses a file. Names in it are looked up in the switch's namespace.
func (s *Switch) parsePF(what string, o PFLoad) (set *pf.Ruleset, err error) {
	if err := checkAnchor(o.Anchor); err != nil {
		return nil, err
	}
	err = s.Inside(func() (err error) {
		hosts := o.Source.Lookup
		o.Source.Lookup = func(name string, modes []string) ([]netip.Prefix, error) {
			return pfAddresses(name, modes, hosts, o.Ahead)
		}
		set, err = pf.Parse(o.Name, o.Text, o.Source)
		return err
	})
	if bad := pf.ErrorList(nil); err != nil && !errors.As(err, &bad) {
		return nil, failed(what, err)
	}
	if err != nil {
		return nil, err
	}
	return set, nil
}

// checkPF checks whether a bridge could have the contents of a file. If bridge is "", or there is
// no such bridge, it checks for a new bridge.
func (s *Switch) checkPF(what, bridge string, o PFLoad, set *pf.Ruleset) error {
	d := &pfConfig{main: &pf.Ruleset{}, anchors: map[string]*pf.Ruleset{}, pfStored: pfStored{Anchors: map[string]string{}}, check: o.Check}
	var p *pf.Program
	err := s.Inside(func() error {
		if err := o.take(d, set); err != nil {
			return refused(what, err.Error(), "nothing was changed")
		}
		var err error
		if p, err = d.compile(nil, nil, nil); err != nil {
			return notCompiled(what, err)
		}
		if o.Anchor != "" || o.TablesOnly {
			return nil // the present limits apply
		}
		return d.checkLimits(what, nil)
	})
	if err != nil {
		return err
	}
	was := datapath.Config{}
	if bridge != "" {
		err := s.each(what, bridge, func(_ string, b *datapath.Bridge) error {
			was = b.Config
			return nil
		})
		if err != nil && !errors.Is(err, errNoBridge) {
			return err
		}
	}
	return s.checkMemory(what, pfDemands(&was, p, d.limits()))
}

// checkAnchor checks whether rules can be loaded into an anchor with this name.
func checkAnchor(name string) error {
	switch {
	case strings.Contains(name, "*"):
		return usagef("anchor "+name, "it stands for several; name one")
	case strings.HasPrefix(strings.TrimLeft(name, "/"), "_") || strings.Contains(name, "/_"):
		return usagef("anchor "+name, "names that begin with _ are for anchors without a name; give another")
	case len(name) > 1023:
		return usagef("anchor "+name[:32]+"...", "its name is longer than 1023 bytes")
	case slices.Contains(strings.Split(strings.Trim(name, "/"), "/"), "") && strings.Trim(name, "/") != "":
		return usagef("anchor "+name, "it has an empty name in it")
	}
	return nil
}

// take makes a ruleset the one of the anchor at path, "" for the main one: its tables, the rulesets
// that it loads into anchors, and its rules.
func (d *pfConfig) take(path string, set *pf.Ruleset) error {
	if err := d.takeTables(path, set); err != nil {
		return err
	}
	if err := d.takeLoads(path, set); err != nil {
		return err
	}
	plain := bare(set)
	// A ruleset between braces replaces the one that was loaded there.
	eachBody(path, plain, func(path string, _ *pf.Ruleset) {
		delete(d.Anchors, path)
		delete(d.anchors, path)
	})
	if path != "" {
		plain.Options = pf.Options{}
		if len(plain.StateLimiters)+len(plain.SourceLimiters) > 0 {
			return errors.New("an anchor defines no limiters; define them in the main ruleset, whose limiters its rules may name")
		}
	}
	text := plain.String()
	if _, err := pfParse(text); err != nil {
		return err // refuse it now, before the text is needed
	}
	if path == "" {
		d.Main, d.main, d.Debug = text, plain, ""
	} else {
		d.Anchors[path], d.anchors[path] = text, plain
	}
	d.other = true
	return nil
}

// takeLoads takes the rulesets that a ruleset loads into anchors.
func (d *pfConfig) takeLoads(path string, set *pf.Ruleset) (err error) {
	for _, load := range set.Loads {
		if err := d.take(pf.AnchorPath(path, load.Name), load.Ruleset); err != nil {
			return err
		}
	}
	for i := range set.Rules {
		if r := &set.Rules[i]; r.Anchor != nil && r.Anchor.Body != nil {
			if err := d.takeLoads(pf.BodyPath(path, i, r), r.Anchor.Body); err != nil {
				return err
			}
		}
	}
	return nil
}

// takeTables takes the tables of a ruleset, and of the anchors between its braces. It drops former
// tables of the ruleset that are no longer defined, unless they persist or rules refer to them.
func (d *pfConfig) takeTables(path string, set *pf.Ruleset) error {
	var err error
	define := func(at string, set *pf.Ruleset) {
		last := map[string]int{} // as in pf, the last definition counts
		for i := range set.Tables {
			last[set.Tables[i].Name] = i
		}
		for i := range set.Tables {
			if t := &set.Tables[i]; err == nil && last[t.Name] == i {
				err = d.define(at, t)
			}
		}
	}
	define(path, set)
	eachBody(path, set, define)
	return err
}

// eachBody calls f for the anchors between braces of the ruleset at path.
func eachBody(path string, set *pf.Ruleset, f func(path string, body *pf.Ruleset)) {
	for i := range set.Rules {
		if r := &set.Rules[i]; r.Anchor != nil && r.Anchor.Body != nil {
			at := pf.BodyPath(path, i, r)
			f(at, r.Anchor.Body)
			eachBody(at, r.Anchor.Body, f)
		}
	}
}

// bare returns a ruleset without its tables and its loads, which are stored beside the ruleset.
func bare(set *pf.Ruleset) *pf.Ruleset {
	plain := *set
	plain.Tables, plain.Loads = nil, nil
	plain.Rules = slices.Clone(set.Rules)
	for i := range plain.Rules {
		if r := &plain.Rules[i]; r.Anchor != nil && r.Anchor.Body != nil {
			r.Anchor = &pf.Anchor{Name: r.Anchor.Name, Body: bare(r.Anchor.Body), Only: r.Anchor.Only}
		}
	}
	return &plain
}
