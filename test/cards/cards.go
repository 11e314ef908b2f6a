// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"bascule/test/cards/inside"
	"bascule/test/machines"
)

// A card is a network card that QEMU plays.
type card struct {
	name   string // as the page has it
	kind   string // QEMU's
	driver string // the kernel's
	auto   string // the hook that auto is
	// what QEMU's card and its driver do; see inside.Card
	lro, mixes, keeps, loses bool
	// set are further properties of the card.
	set map[string]any
	// taps has the wires go by taps of the host, which keep what is noted beside a packet:
	// that a checksum is unfinished, or that a packet is to be cut up. Without, QEMU joins
	// the cards, and packets are finished.
	taps   bool
	queues int // of each card, 0 for one
}

// offloads are those of a virtio card that its driver may use.
var offloads = []string{
	"csum", "guest_csum", "gso", "guest_tso4", "guest_tso6", "guest_ecn", "guest_ufo", "host_tso4", "host_tso6", "host_ecn", "host_ufo",
}

func without(names []string) map[string]any {
	set := map[string]any{}
	for _, n := range names {
		set[n] = false
	}
	return set
}

// cards are all that are tested, as the page has them from left to right.
var cards = []card{
	{name: "virtio-net", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp"},
	{name: "virtio-net/offloads", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp", taps: true},
	{name: "virtio-net/2-queues", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp", taps: true, queues: 2},
	{name: "virtio-net/no-offloads", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp", taps: true, set: without(offloads)},
	{name: "vmxnet3", kind: "vmxnet3", driver: "vmxnet3", auto: "xdp", lro: true, mixes: true, keeps: true, loses: true},
	{name: "igb", kind: "igb", driver: "igb", auto: "xdp"},
	{name: "e1000e", kind: "e1000e", driver: "e1000e", auto: "tcx"},
}

// The rows of the page.
const testProgram = "bascule/test/cards/inside"

var cases = []machines.Case{
	{About: hookRow, Package: testProgram, Test: "TestCard/hooks", Short: true},
	{About: "frames, one and many at a time", Package: testProgram, Test: "TestCard/frames", Short: true},
	{About: "tags pass, stripped by the card or not", Package: testProgram, Test: "TestCard/tags"},
	{About: "tags are added and removed", Package: testProgram, Test: "TestCard/vlans"},
	{About: "TCP, merged and segmented by the card or not", Package: testProgram, Test: "TestCard/streams"},
	{About: "promiscuity, and the card's filter without it", Package: testProgram, Test: "TestCard/promiscuity"},
	{About: "settings are restored", Package: testProgram, Test: "TestCard/restore"},
	{About: "set down and up", Package: testProgram, Test: "TestCard/again"},
	{About: "frames of 9000 bytes", Package: testProgram, Test: "TestCard/jumbo"},
	{About: "unplugged under traffic", Package: testProgram, Test: "TestCard/unplug"},
	{About: "removed under traffic", Package: testProgram, Test: "TestCard/remove"},
	{About: "its driver unbound under traffic", Package: testProgram, Test: "TestCard/unbind"},
	{About: "two in a bond", Package: testProgram, Test: "TestCard/bond"},
	{About: "two in a team", Package: testProgram, Test: "TestCard/team"},
	{About: "a VLAN device", Package: testProgram, Test: "TestCard/vlan_device"},
}

// hookRow is what the page calls the case whose result is a hook, and kernelRow one of the
// rows that say what a column is of.
const (
	hookRow   = "the hook that `auto` takes, and others"
	kernelRow = "Linux"
)

// full is what a virtio card says of its wire. A bond needs that for LACP (802.3ad), and a card
// that is not told says nothing.
var full = map[string]any{"speed": 1000, "duplex": "full"}

// properties are QEMU's of the near card of a wire, from 0.
func (c card) properties(wire int) map[string]any {
	p := map[string]any{
		"driver": c.kind, "id": inside.Name(wire), "bus": fmt.Sprintf("slot%d", wire+1), "netdev": fmt.Sprintf("near%d", wire+1),
		"mac": inside.Wire(wire).Near.String(), "romfile": "",
	}
	if c.kind == "virtio-net-pci" {
		p["disable-legacy"] = "on"
		maps.Copy(p, full)
	}
	if c.queues > 1 {
		p["mq"], p["vectors"] = true, 2*c.queues+2
	}
	maps.Copy(p, c.set)
	return p
}

// argument writes properties as -device takes them.
func argument(properties map[string]any) string {
	words := []string{properties["driver"].(string)}
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		value := properties[name]
		if on, ok := value.(bool); ok {
			value = map[bool]string{true: "on", false: "off"}[on]
		}
		if name != "driver" {
			words = append(words, fmt.Sprintf("%s=%v", name, value))
		}
	}
	return strings.Join(words, ",")
}

// devices are the arguments for QEMU: for each wire a slot with the near card in it,
// which can be taken out, and the far card. A card of PCI Express has a slot of its own.
func (c card) devices() (args []string) {
	for i := range inside.Wires {
		n := i + 1
		for _, side := range []string{"near", "far"} {
			id := fmt.Sprintf("%s%d", side, n)
			netdev := fmt.Sprintf("hubport,id=%s,hubid=%d", id, n)
			if c.taps {
				netdev = fmt.Sprintf("tap,id=%s,ifname=%s,script=no,downscript=no", id, id)
				if side == "near" && c.queues > 1 {
					netdev += fmt.Sprintf(",queues=%d", c.queues)
				}
			}
			args = append(args, "-netdev", netdev)
		}
		args = append(args,
			"-device", fmt.Sprintf("pcie-root-port,id=slot%d,chassis=%d,slot=%d,bus=pcie.0", n, n, n),
			"-device", argument(c.properties(i)),
			"-device", fmt.Sprintf("virtio-net-pci,netdev=far%d,mac=%v,romfile=,disable-legacy=on,bus=pcie.0,speed=%v,duplex=%v",
				n, inside.Wire(i).Far, full["speed"], full["duplex"]),
		)
	}
	return args
}
