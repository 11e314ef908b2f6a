// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

var _ = openBSD.has("pflog", pfLog())

// A logged is a packet of the log in the output of `bascule -j pflog`.
type logged struct {
	Ifname, Log, Direction, Action, Reason, Summary string
	Rule                                            int
}

// A logReader reads the log of a router.
type logReader struct {
	*router
	out    netlab.Output
	marked uint16
}

// logOfMarks is a rule for the marker packets of a logReader, which enter by em2.
const logOfMarks = "block log quick on em2 inet proto udp to port 20000:30000\n"

// reads starts to read the log, until the case ends.
func (r *router) reads() *logReader {
	r.t.Helper()
	l := &logReader{router: r, marked: 20000}
	reader := r.Command("-j", "pflog")
	reader.Stdout = &l.out
	r.must(reader.Start())
	r.t.Cleanup(func() {
		_ = reader.Process.Signal(os.Interrupt)
		_ = reader.Wait()
	})
	r.WaitUntil(time.Now().Add(patience), "the log to be read", func() bool {
		l.mark()
		return l.out.String() != ""
	})
	return l
}

func (l *logReader) mark() (port uint16) {
	l.t.Helper()
	s := l.stations[2]
	l.marked++
	l.sends(s, l.frame(s, ip4(s.v4, s.gw4, layers.IPProtocolUDP), &layers.UDP{SrcPort: 9, DstPort: layers.UDPPort(l.marked)}, gopacket.Payload("mark")))
	return l.marked
}

// entries returns the entries of the log so far, without markers.
func (l *logReader) entries() (list []logged) {
	l.t.Helper()
	mark := fmt.Sprintf(":%d ", l.mark())
	l.WaitUntil(time.Now().Add(patience), "a mark in the log", func() bool { return strings.Contains(l.out.String(), mark) })
	for line := range strings.Lines(l.out.String()) {
		var e logged
		l.must(json.Unmarshal([]byte(line), &e))
		if e.Ifname != "em2" {
			list = append(list, e)
		}
	}
	return list
}

// has looks for an entry of log n with this rule, direction, action, and these words.
func (l *logReader) has(list []logged, want bool, n int, rule int, way string, words ...string) {
	l.t.Helper()
	found := slices.ContainsFunc(list, func(e logged) bool {
		return e.Log == fmt.Sprintf("pflog%d", n) && e.Rule == rule && e.Action+" "+e.Direction == way &&
			!slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Summary, w) })
	})
	if found != want {
		l.t.Errorf("log %d: %s by rule %d of %q: in the log is %t:\n%+v", n, way, rule, words, found, list)
	}
}

// Rules of the cases of pflog, by the last byte of the destination. The first ones match all packets. The
// last matching rule decides.
//
//	0 marks    1 pass to log 13, which a later rule overrides    2 match to log 12
//	3, 11 pass to log 11 of a family    4, 12 no state    5, 13 keep state    6, 14 log (all)
//	7, 15 log (user)    8, 16 without log    9, 17 match log (matches)    10, 18 without log
//	19, 20 rdr-to of both families    21, 22 nat-to    23, 24 af-to
var logRules = logOfMarks + `pass log (to pflog13) on em0 no state
match log (to pflog12) on em0
` + logRulesOf("inet", "10.1.0.10%d") + logRulesOf("inet6", "2001:db8:1::10%d") +
	"pass in log (to pflog11) on em0 to 10.1.0.111 rdr-to 10.1.0.121\n" +
	"pass in log (to pflog11) on em0 to 2001:db8:1::111 rdr-to 2001:db8:1::121\n" +
	"pass out log (to pflog11) on em0 from 10.1.0.112 nat-to 10.1.0.122\n" +
	"pass out log (to pflog11) on em0 from 2001:db8:1::112 nat-to 2001:db8:1::122\n" +
	"pass in log (to pflog11) on em0 to 10.1.0.114 af-to inet6 from 2001:db8:2::1 to 2001:db8:2::2\n" +
	"pass in log (to pflog11) on em0 to 2001:db8:1::114 af-to inet from 10.1.1.1 to 10.1.1.2\n"

func logRulesOf(family, format string) string {
	text := "pass log (to pflog11) on em0 " + family + "\n"
	for n, rule := range []string{
		"pass log (to pflog11) on em0 to %s no state", "pass log (to pflog11) on em0 to %s keep state",
		"pass log (all to pflog11) on em0 to %s keep state", "pass log (user to pflog11) on em0 to %s", "pass on em0 to %s",
		"match log (matches to pflog11) on em0 to %s\npass on em0 to %[1]s",
	} {
		text += fmt.Sprintf(rule, fmt.Sprintf(format, n+1)) + "\n"
	}
	return text
}

// loggedAt returns the addresses of a case, by its number: the router's own, or addresses that a rule
// translates.
func loggedAt(n int, six bool) string {
	return []string{fmt.Sprintf("10.1.0.%d", 100+n), fmt.Sprintf("2001:db8:1::%d", 100+n)}[b2i(six)]
}

func pfLog() cases {
	standing["pflog"] = logRules
	all := cases{}
	// own adds addresses of cases to the router, and addresses behind a translation to the station.
	own := func(r *router, six bool, numbers ...int) {
		for _, n := range numbers {
			a := netip.MustParseAddr(loggedAt(n, six))
			if routes, err := r.Switch.Netlink().RouteGet(a.AsSlice()); err == nil && len(routes) == 1 && routes[0].Type == unix.RTN_LOCAL {
				continue
			}
			r.address(r.self, "em0", netip.PrefixFrom(a, netBits(a)).String())
		}
	}
	answered := func(r *router, n int, six, udps bool) {
		r.t.Helper()
		to, seen := netip.MustParseAddr(loggedAt(n, six)), n
		at := r.self
		switch n {
		case 11:
			seen = 21
		case 12: // packets from the router have another source
			own(r, six, 12, 22)
			c := ping(r.self, []netip.Addr{r.stations[0].v4, r.stations[0].v6}[b2i(six)])
			if udps {
				c = udp(r.self, c.to.Addr(), 9, r.stations[0])
			}
			c.src = netip.AddrPortFrom(to, 0)
			if source := r.passes(c); udps && source.Addr().String() != loggedAt(22, six) {
				r.t.Errorf("the station sees %v", source)
			}
			return
		case 14:
			at = nil
		}
		if own(r, six, n); seen != n {
			own(r, six, seen)
		}
		if !udps || at == nil {
			r.passes(ping(r.stations[0], to))
			return
		}
		c := udp(r.stations[0], to, 9, at)
		c.seen = netip.AddrPortFrom(netip.MustParseAddr(loggedAt(seen, six)), 9)
		r.passes(c)
	}
	numbers := []int{1, 2, 3, 4, 5, 6, 11, 12, 14}
	for _, six := range []bool{false, true} {
		suffix := []string{"", "6"}[b2i(six)]
		for _, n := range numbers {
			all[fmt.Sprintf("run-ping%s-%d", suffix, n)] = func(r *router) { answered(r, n, six, false) }
			all[fmt.Sprintf("run-udp%s-%d", suffix, n)] = func(r *router) { answered(r, n, six, true) }
		}
		base := 3 + 8*b2i(six) // number of the family's first rule
		echo := []string{"ICMP ", "ICMPv6 "}[b2i(six)]
		// to returns the destination address of a case.
		to := func(n int) string { return loggedAt(n, six) }
		all["run-bpf-everything"+suffix] = func(r *router) {
			l := r.reads()
			for _, n := range []int{1, 2, 3, 4, 5, 6} {
				answered(r, n, six, false)
				answered(r, n, six, true)
			}
			list := l.entries()
			for _, n := range []int{1, 2, 3, 4, 5, 6} {
				l.has(list, true, 12, 2, "match in", to(n), echo)
				l.has(list, true, 12, 2, "match in", to(n), "UDP")
			}
		}
		all["run-bpf-all"+suffix] = func(r *router) {
			l := r.reads()
			for _, n := range []int{1, 2, 3} {
				answered(r, n, six, false)
			}
			list := l.entries()
			back := func(n int) string { return loggedAt(n, six) + " > " }
			l.has(list, true, 11, base+1, "pass in", to(1), echo)
			// An answer, which no rule with a state covers.
			l.has(list, true, 13, 1, "pass out", back(1), echo)
			l.has(list, true, 11, base+2, "pass in", to(2), echo)
			l.has(list, false, 11, base+2, "pass out", back(2))
			l.has(list, false, 11, base, "pass out", back(2))
			l.has(list, true, 11, base+3, "pass in", to(3), echo)
			l.has(list, true, 11, base+3, "pass out", back(3), echo)
		}
		all["run-bpf-rdr"+suffix] = func(r *router) {
			l := r.reads()
			answered(r, 11, six, false)
			l.has(l.entries(), true, 11, 19+b2i(six), "pass in", to(11), echo) // as it came
		}
		all["run-bpf-nat"+suffix] = func(r *router) {
			l := r.reads()
			answered(r, 12, six, false)
			l.has(l.entries(), true, 11, 21+b2i(six), "pass out", loggedAt(12, six)+" > ", echo)
		}
		all["run-bpf-af"+suffix] = func(r *router) {
			l := r.reads()
			answered(r, 14, six, false)
			l.has(l.entries(), true, 11, 23+b2i(six), "pass in", to(14), echo)
		}
	}
	all["run-ping6-0"] = func(r *router) { r.passes(ping(r.stations[0], r.self.v6)) }
	all["run-udp6-0"] = func(r *router) { r.passes(udp(r.stations[0], r.self.v6, 9, r.self)) }
	for n, want := range map[int]bool{11: true, 12: true, 13: false} {
		run := func(r *router) {
			l := r.reads()
			answered(r, 1, false, true)
			answered(r, 2, true, true)
			list := l.entries()
			if has := slices.ContainsFunc(list, func(e logged) bool { return e.Log == fmt.Sprintf("pflog%d", n) }); has != want {
				r.t.Errorf("something is in log %d: %t: %+v", n, has, list)
			}
		}
		if all[fmt.Sprintf("run-bpf-%d", n)] = run; n == 13 {
			all["run-bpf-nothing"] = run
		}
	}
	return all
}
