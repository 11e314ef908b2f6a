// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"bascule/test/netlab"
)

// logs loads rules and reads their log from an interface. The returned function ends that, and
// returns the lines so far, without the times.
func (r *router) logs(rules, to string) (lines func() []string) {
	r.t.Helper()
	// Packets to these ports are logged by a rule after all others, which therefore keep their
	// numbers.
	const first, last = 1998, 1999
	r.load(fmt.Sprintf("%s\nblock in log (to %s) quick proto udp to port %d:%d", rules, to, first, last))
	cmd, out := r.Command("pflog", "-i", to), &netlab.Output{}
	cmd.Stdout = out
	r.must(cmd.Start())
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		_ = cmd.Wait()
	})
	r.t.Cleanup(stop)
	mark := func(port layers.UDPPort) string {
		a := r.stations[2]
		r.sends(a, r.frame(a, ip4(a.v4, a.gw4, layers.IPProtocolUDP), &layers.UDP{SrcPort: 1, DstPort: port}))
		return fmt.Sprintf(":%d UDP", port)
	}
	r.Wait("the log to be read", func() bool { return out.Lines(mark(first)) > 0 })
	return func() (list []string) {
		r.t.Helper()
		end := mark(last)
		r.Wait("the end of the log", func() bool { return out.Lines(end) > 0 })
		stop()
		for line := range strings.Lines(out.String()) {
			_, line, _ = strings.Cut(strings.TrimSpace(line), " ")
			// Packets that stacks send by themselves: to groups, and from link-local
			// addresses.
			apart := []string{fmt.Sprintf(":%d UDP", first), end, "> ff02::", "fe80::", "> 224."}
			if !slices.ContainsFunc(apart, func(words string) bool { return strings.Contains(line, words) }) {
				list = append(list, line)
			}
		}
		return list
	}
}

// wantLog compares lines of a log with their expected beginnings.
func wantLog(t *testing.T, got []string, want ...string) {
	t.Helper()
	if !slices.EqualFunc(got, want, strings.HasPrefix) {
		t.Errorf("the log is %q, should be %q", got, want)
	}
}

const pingLog = "in on em0: IPv4 10.1.0.2 > 10.1.0.1 ICMP EchoRequest"

var _ = freeBSD.has("pflog", cases{
	"malformed": func(r *router) {
		a := r.stations[0]
		lines := r.logs("pass log keep state", "pflog0")
		r.passes(ping(a, r.self.v4))
		h := ip4(a.v4, a.gw4, layers.IPProtocolICMPv4)
		h.Options = []layers.IPv4Option{{OptionType: 1}, {OptionType: 1}, {OptionType: 1}, {OptionType: 0}}
		r.sends(a, r.frame(a, h, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 7}, gopacket.Payload("echo")))
		wantLog(r.t, lines(), "rule 0/(match) pass "+pingLog, "rule 0/(ip-option) block "+pingLog)
	},
	"state_max": func(r *router) {
		lines := r.logs("pass\npass log inet proto icmp keep state (max 1)", "pflog0")
		r.passes(ping(r.stations[0], r.self.v4))
		r.blocked(ping(r.stations[0], r.self.v4))
		got := lines()
		if len(got) < 2 {
			r.t.Fatalf("the log is %q", got)
		}
		wantLog(r.t, got[:2], "rule 1/(match) pass "+pingLog, "rule 1/(state-limit) block "+pingLog)
	},
	"matches": func(r *router) {
		lines := r.logs("match log(matches) inet proto icmp\nmatch log(matches) inet from 10.1.0.2\npass", "pflog0")
		r.passes(ping(r.stations[0], r.self.v4))
		wantLog(r.t, lines(), "rule 0/(match) match "+pingLog, "rule 1/(match) match "+pingLog, "rule 2/(match) pass "+pingLog)
	},
	"rule_number": func(r *router) {
		a := r.stations[0]
		lines := r.logs("pass log from 10.1.0.2\nanchor \"apart\" {\npass log from 10.1.0.3\n}\npass log from 10.1.0.4", "pflog0")
		r.passes(ping(a, r.self.v4).bound(a.v4, 0))
		for _, more := range []string{"10.1.0.3/24", "10.1.0.4/24"} {
			r.passes(ping(a, r.self.v4).bound(r.address(a, a.ifname, more), 0))
		}
		wantLog(r.t, lines(), "rule 0/(match) pass in on em0: IPv4 10.1.0.2 ", "rule 1.apart.0/(match) pass in on em0: IPv4 10.1.0.3 ",
			"rule 2/(match) pass in on em0: IPv4 10.1.0.4 ")
	},
})

var _ = freeBSD.has("ridentifier", cases{
	"basic": func(r *router) {
		a := r.stations[0]
		lines := r.logs("pass in log\npass in log proto tcp ridentifier 1234", "pflog0")
		r.passes(tcp(a, r.self.v4, 2007, r.self))
		r.passes(ping(a, r.self.v4))
		wantLog(r.t, lines(), "rule 1/(match) [ridentifier 1234] pass in on em0: IPv4 10.1.0.2:", "rule 0/(match) pass "+pingLog)
		lines = r.logs("pass in log\nantispoof log for em0 ridentifier 4321", "pflog0")
		spoofed := r.stations[1] // with a source in the other station's network
		r.sends(spoofed, r.frame(spoofed, ip4(a.v4, spoofed.gw4, layers.IPProtocolUDP), &layers.UDP{SrcPort: 1, DstPort: 2}))
		wantLog(r.t, lines(), "rule 1/(match) [ridentifier 4321] block in on em1: IPv4 10.1.0.2:")
	},
})
