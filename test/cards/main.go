// SPDX-License-Identifier: BSD-2-Clause

// Program cards runs the switch on the drivers of network cards, which QEMU emulates: a virtual
// machine for each kind of card, one at a time. The cases are the tests of test/cards/inside,
// with the real program, and with frames that cross from one card to another. `make test-cards`
// runs it.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/lab/spaces"
	"bascule/test/cards/inside"
	"bascule/test/machines"
)

func main() {
	machines.Main("cards", func(ctx context.Context, w io.Writer) error {
		var o options
		flag.StringVar(&o.cards, "cards", "", "`cards` to test, by how they begin, with blanks between; all without")
		o.Flags("what the cards did", "succeed where there is no kernel, or QEMU lacks the card")
		flag.Parse()
		return run(ctx, o, w)
	})
}

type options struct {
	machines.Options
	cards string
}

// prefix begins the names of the taps' network namespaces.
const prefix = "bsc-cards"

// run tests the cards one after the other. After the last, the error lists the failures.
func run(ctx context.Context, o options, w io.Writer) error {
	chosen, err := machines.Choose(cases, o.Cases)
	if err != nil {
		return err
	}
	list, err := choose(o.cards)
	if err != nil {
		return err
	}
	if _, err := spaces.RemoveLeftovers(prefix, nil); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "bascule-cards-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	var tally machines.Tally
	kernel, err := guests.FindKernel(ctx, guests.Newest().WithDrivers())
	var version string
	var has func(kind string) bool
	if err == nil {
		version, has, err = emulator(ctx)
	}
	var missing *ends.Unavailable
	if errors.As(err, &missing) {
		tally.Untested(w, "all cards", missing)
		return tally.End(w, o.Lenient)
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(w, "Linux %s, QEMU %s\n", kernel.Release, version)
	if err := machines.Build(ctx, dir, chosen); err != nil {
		return err
	}
	for _, c := range list {
		if !has(c.kind) {
			tally.Untested(w, c.name, fmt.Errorf("QEMU %s has no %s", version, c.kind))
			continue
		}
		results, err := c.test(ctx, w, dir, kernel, chosen)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		tally.Add(c.name, chosen, results, err)
		if o.Table == "" || len(results) == 0 {
			continue
		}
		if results[cases[0].Test] == machines.Passed {
			results[cases[0].Test] = machines.Result("`" + c.auto + "`")
		}
		results[kernelRow] = machines.Result(strings.TrimSuffix(kernel.Release, "-amd64"))
		results[machines.BasculeRow], results[machines.QEMURow] = machines.Result(o.Bascule), machines.Result(version)
		if err := page(o.Table).Update(c.name, results, known); err != nil {
			return err
		}
	}
	return tally.End(w, o.Lenient)
}

// page returns the page of results, with a column for each card.
func page(path string) machines.Page {
	rows := slices.Clone(cases)
	for _, of := range []string{kernelRow, machines.BasculeRow, machines.QEMURow} {
		rows = append(rows, machines.Case{About: of})
	}
	return machines.Page{
		Path: path, By: "make test-cards", Cases: rows, Compare: func(a, b string) int { return place(a) - place(b) },
	}
}

// place returns the index of a card in the list, or the length of the list for an unknown card.
func place(name string) int {
	if i := slices.IndexFunc(cards, func(c card) bool { return c.name == name }); i >= 0 {
		return i
	}
	return len(cards)
}

// known reports whether a column has a card that is not in the list.
func known(column string) bool { return place(column) == len(cards) }

// choose returns the cards whose names begin with one of the words.
func choose(words string) ([]card, error) {
	if strings.TrimSpace(words) == "" {
		return cards, nil
	}
	var chosen []card
	for word := range strings.FieldsSeq(words) {
		n := len(chosen)
		for _, c := range cards {
			if strings.HasPrefix(c.name, word) && !slices.ContainsFunc(chosen, func(o card) bool { return o.name == c.name }) {
				chosen = append(chosen, c)
			}
		}
		if n == len(chosen) {
			return nil, fmt.Errorf("no card of the list begins with %s", word)
		}
	}
	return chosen, nil
}

var versionOf = regexp.MustCompile(`version ([0-9.]+)`)

// emulator returns QEMU's version, and a function that reports whether it has a card.
func emulator(ctx context.Context) (version string, has func(kind string) bool, err error) {
	ask := func(args ...string) (string, error) {
		out, err := ends.Command(ctx, "qemu-system-x86_64", args...).CombinedOutput()
		return string(out), err
	}
	text, err := ask("--version")
	if errors.Is(err, exec.ErrNotFound) {
		return "", nil, &ends.Unavailable{Reason: "qemu-system-x86_64 is not installed"}
	}
	if err != nil {
		return "", nil, fmt.Errorf("qemu-system-x86_64 --version: %w", err)
	}
	if m := versionOf.FindStringSubmatch(text); m != nil {
		version = m[1]
	}
	kinds, err := ask("-device", "help")
	if err != nil {
		return "", nil, fmt.Errorf("qemu-system-x86_64 -device help: %w", err)
	}
	return version, func(kind string) bool { return strings.Contains(kinds, fmt.Sprintf("name %q", kind)) }, nil
}

// test boots a machine with the card, and runs cases in it.
func (c card) test(ctx context.Context, w io.Writer, dir string, kernel guests.Kernel, list []machines.Case) (map[string]machines.Result, error) {
	told, err := json.Marshal(inside.Card{
		Driver: c.driver, Auto: c.auto, LRO: c.lro, MixesTags: c.mixes, KeepsProgram: c.keeps, LosesLarge: c.loses,
		Properties: c.properties(0),
	})
	if err != nil {
		return nil, err
	}
	m := guests.Machine{
		// Only a PCI Express board has a slot of its own for a card.
		Kernel: kernel, CPUs: 2, Board: "q35", Devices: c.devices(), Programs: []string{"teamnl"},
		Modules: []string{"virtio_net", c.driver, "bonding", "team", "team_mode_activebackup", "team_mode_roundrobin", "8021q"},
	}
	if c.taps {
		at, err := c.joinedTaps()
		if err != nil {
			return nil, err
		}
		defer at.Close()
		m.At = at
	}
	return machines.Run{
		Name: c.name, Machine: m, Dir: dir, Cases: list, Env: []string{inside.Variable + "=" + string(told)},
		Together: 1, // there is one set of cards
	}.Do(ctx, w)
}

// joinedTaps makes a namespace with the taps of all wires. Bridges that do not learn join them,
// and do not change packets.
func (c card) joinedTaps() (*ends.Namespace, error) {
	at, err := ends.NewNamespace(spaces.Name(prefix, "taps"))
	if err != nil {
		return nil, err
	}
	for i := range inside.Wires {
		if err := c.joinTaps(at, i+1); err != nil {
			return nil, errors.Join(fmt.Errorf("taps of wire %d: %w", i+1, err), at.Close())
		}
	}
	return at, nil
}

func (c card) joinTaps(at *ends.Namespace, n int) error {
	const mtu = 9000 // MTU for the largest frames
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = fmt.Sprintf("wire%d", n), mtu
	off, zero := false, uint32(0)
	mask := uint16(0xfff8)     // forward reserved addresses; Linux allows no more
	sideMask := uint16(0xfffd) // ports forward more, including LACP, but not pause frames
	hub := &netlink.Bridge{LinkAttrs: attrs, MulticastSnooping: &off, AgeingTime: &zero, GroupFwdMask: &mask}
	nl := at.Netlink()
	if err := nl.LinkAdd(hub); err != nil {
		return err
	}
	for _, name := range []string{fmt.Sprintf("near%d", n), fmt.Sprintf("far%d", n)} {
		err := at.Do(func() error { return makeTap(name, c.queues > 1 && strings.HasPrefix(name, "near")) })
		if err != nil {
			return err
		}
		l, err := nl.LinkByName(name)
		if err != nil {
			return err
		}
		err = errors.Join(nl.LinkSetMTU(l, mtu), nl.LinkSetMaster(l, hub), nl.LinkSetLearning(l, false),
			nl.LinkSetBRSlaveGroupFwdMask(l, sideMask), nl.LinkSetUp(l))
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nl.LinkSetUp(hub)
}

// makeTap makes a tap for QEMU in the calling thread's namespace.
func makeTap(name string, queues bool) error {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq(name)
	if err != nil {
		return err
	}
	flags := uint16(unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR)
	if queues {
		flags |= unix.IFF_MULTI_QUEUE
	}
	req.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return fmt.Errorf("tap %s: %w", name, err)
	}
	return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 1)
}
