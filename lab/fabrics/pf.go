// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"bascule/lab/ends"
	"bascule/lab/report"
)

// BasculePF is a bascule bridge with stateful rules, with the policy of LinuxBridgeFiltered. BasculeXDPPF has the same
// rules and forwards known unicast in XDP.
var (
	BasculePF    = withPF(Bascule, "tcx", "", "stateful rules of its packet filter", filterSize{})
	BasculeXDPPF = withPF(BasculeXDP, "xdp", "", "stateful rules of its packet filter", filterSize{})
)

// These have so many rules, or a table with so many addresses, that the lookup for the first packet of a connection
// takes time.
var (
	BasculePF10, BasculeXDPPF10           = sizedPF("-10", "10 stateful rules whose last one passes UDP", filterSize{rules: 10})
	BasculePF10k, BasculeXDPPF10k         = sizedPF("-10000", "10 000 stateful rules whose last one passes UDP", filterSize{rules: 10_000})
	BasculePFTable10, BasculeXDPPFTable10 = sizedPF("-table-10", "stateful rules that pass sources that are not in a table of 10 addresses", filterSize{table: 10})
	BasculePFTable1m, BasculeXDPPFTable1m = sizedPF("-table-1m", "stateful rules that pass sources that are not in a table of 1 000 000 addresses", filterSize{table: 1_000_000})
)

// sized lists all of them.
var sized = []*Fabric{
	BasculePF10, BasculeXDPPF10, BasculePF10k, BasculeXDPPF10k,
	BasculePFTable10, BasculeXDPPFTable10, BasculePFTable1m, BasculeXDPPFTable1m,
}

func sizedPF(name, about string, size filterSize) (tcx, xdp *Fabric) {
	return withPF(Bascule, "tcx", name, about, size), withPF(BasculeXDP, "xdp", name, about, size)
}

// withPF returns a bascule fabric with a packet filter.
func withPF(plain *Fabric, hook, name, about string, size filterSize) *Fabric {
	f := *plain
	f.Name += "+pf" + name
	f.About = strings.Replace(f.About, "a bascule bridge", "a bascule bridge with "+about, 1)
	f.Path, f.HostPath = filteredPath(plain.Path), filteredPath(plain.HostPath)
	f.build = func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &pfKit{basculeKit: basculeKit{n, hook}, size: size})
	}
	return &f
}

// filteredPath returns a path with the filter in every bascule bridge on it.
func filteredPath(plain []report.Hop) []report.Hop {
	var out []report.Hop
	for _, h := range plain {
		out = append(out, h)
		if strings.HasPrefix(h.Name, "bascule ") {
			out = append(out, path("filter bascule pf")...)
		}
	}
	return out
}

// pfKit makes bascule bridges with a packet filter.
type pfKit struct {
	basculeKit
	size    filterSize
	bridges []string
}

func (k *pfKit) add(ctx context.Context, bridge string) error {
	if err := k.basculeKit.add(ctx, bridge); err != nil {
		return err
	}
	k.bridges = append(k.bridges, bridge)
	k.net.forget, k.net.states, k.net.load = k.forget, k.states, k.loadRules
	k.net.holds = func() (uint64, error) { return k.net.mapMemory("pf_states", "pf_buckets") }
	// After all ports have been added: with rules, adding a port takes as long as loading them.
	k.net.last = append(k.net.last, func(ctx context.Context) error { return k.fill(ctx, bridge) })
	return nil
}

// fill loads rules of the kit's size into a bridge.
func (k *pfKit) fill(ctx context.Context, bridge string) (err error) {
	if k.size.table == 0 {
		return k.load(ctx, bridge, k.size.ruleset(k.net.Spec.States, ""))
	}
	dir, err := ends.MakeDir(fmt.Sprintf("%d-pf-%s", k.net.serial, bridge))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "bad")
	if err := writeTable(file, k.size.table); err != nil {
		return err
	}
	return k.load(ctx, bridge, k.size.ruleset(k.net.Spec.States, file))
}

// load loads a ruleset in the language of pf.conf(5) into a bridge, and turns its packet filter on.
func (k *pfKit) load(ctx context.Context, bridge, ruleset string) error {
	_, err := k.net.site.feed(ctx, ruleset, k.net.Switch.Name, "pfctl", "-b", bridge, "-f", "-")
	return err
}

// forget forgets all states.
func (k *pfKit) forget(ctx context.Context) error {
	for _, b := range k.bridges {
		if err := k.run(ctx, "pfctl", "-b", b, "-F", "states"); err != nil {
			return err
		}
	}
	return nil
}

// states returns the number of states of all bridges.
func (k *pfKit) states(ctx context.Context) (int, error) {
	sum := 0
	for _, b := range k.bridges {
		out, err := k.net.site.run(ctx, k.net.Switch.Name, "-j", "pfctl", "-b", b, "-s", "info")
		if err != nil {
			return 0, err
		}
		shown := struct{ States *int }{}
		if err := json.Unmarshal(out, &shown); err != nil || shown.States == nil {
			return 0, fmt.Errorf("pfctl -s info printed %q", out)
		}
		sum += *shown.States
	}
	return sum, nil
}

// loadRules loads the policy into all bridges, with the given number of rules.
func (k *pfKit) loadRules(ctx context.Context, rules int) error {
	for _, b := range k.bridges {
		size := k.size
		size.rules, size.table = rules, 0
		if err := k.load(ctx, b, size.ruleset(k.net.Spec.States, "")); err != nil {
			return err
		}
	}
	return nil
}

// filterSize is the size of a packet filter's ruleset beyond the policy, which is the same for all filters of the lab.
// The zero value is the policy alone.
type filterSize struct {
	rules     int    // total number, including the policy's; 0 for the policy's only
	table     int    // addresses that must not send; 0 for no such table
	at        string // the group of ports that it applies to; "" for all
	stateless bool
	nat       bool // packets to any end except the first get the router's address as their source
	ends      int  // of the fabric, for nat
}

// policyRules is the number of rules in the policy.
const policyRules = 5

// ruleset returns the policy in a filter's size, with the table's addresses in a file. It blocks everything except
// connections to the lab's addresses, and ICMPv6, which includes IPv6 neighbor discovery. The last rule passes UDP. The
// policy of nftables is the same.
func (s filterSize) ruleset(states int, file string) string {
	var b strings.Builder
	if states > 0 {
		fmt.Fprintf(&b, "set limit states %d\n", states)
	}
	from := ""
	if s.table > 0 {
		fmt.Fprintf(&b, "set limit table-entries %d\n", s.table)
		fmt.Fprintf(&b, "table <bad> persist file %q\n", file)
		from = "from ! <bad> "
	}
	on, state := "", ""
	if s.at != "" {
		on = "on " + s.at + " "
		// at other ports; the ends' ports are skipped, as nftables has no hook there
		b.WriteString("set skip on " + endPorts + "\npass no state\n")
	}
	if s.stateless {
		state = " no state"
	}
	fmt.Fprintf(&b, "%s\npass %sinet6 proto icmp6%s\n", strings.TrimSpace("block "+on), on, state)
	for i := range max(s.rules-policyRules, 0) {
		b.WriteString(others(i) + "\n")
	}
	for end := 2; s.nat && end <= s.ends; end++ {
		_, router := subnet(end)
		// the ports that masquerade uses for connections from such ports
		fmt.Fprintf(&b, "match out on %s%d inet from %s nat-to %s port 1024:65535\n", s.at, end, labNetwork, router.Addr())
	}
	for _, proto := range []string{"icmp", "tcp", "udp"} {
		fmt.Fprintf(&b, "pass %sinet proto %s %sto %s%s\n", on, proto, from, labNetwork, state)
	}
	return b.String()
}

// others returns the i-th of at most 65536 rules that no packet of the lab matches, similar to a firewall's rules for
// services, networks and hosts. Each rule has its own address; half of them also compare the lab's addresses as
// destination.
func others(i int) string {
	network := fmt.Sprintf("10.%d.%d", i>>8&255, i&255)
	port := 1024 + i%50_000
	switch i % 4 {
	case 0:
		return fmt.Sprintf("pass inet proto tcp to %s.80 port %d", network, port)
	case 1:
		return fmt.Sprintf("pass inet proto udp from %s.0/24 to %s port %d", network, labNetwork, port)
	case 2:
		return fmt.Sprintf("block inet from %s.66 to %s", network, labNetwork)
	}
	return fmt.Sprintf("pass inet proto tcp from %s.0/24 to %[1]s.80 port %d:%d", network, port, port+9)
}

// writeTable writes the given number of addresses to a file, one on each line.
func writeTable(file string, count int) (err error) {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := bufio.NewWriter(f)
	for addr := range bad(count) {
		fmt.Fprintln(w, addr)
	}
	return w.Flush()
}

// bad returns the first of many addresses that are spread pseudo-randomly over IPv4, except the lab's own addresses and
// addresses that no station has. All are different.
func bad(count int) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for i := uint32(1); count > 0; i++ {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], scatter(i))
			addr := netip.AddrFrom4(b)
			if b[0] == 0 || addr.IsLoopback() || b[0] >= 224 || labNetwork.Contains(addr) {
				continue
			}
			if count--; !yield(addr) {
				return
			}
		}
	}
}

// scatter is a bijection on 32-bit numbers, the finalizer of MurmurHash3. Every step is invertible, so two numbers
// never get the same result.
func scatter(n uint32) uint32 {
	n ^= n >> 16
	n *= 0x85ebca6b
	n ^= n >> 13
	n *= 0xc2b2ae35
	return n ^ n>>16
}
