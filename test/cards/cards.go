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

// A card is a network card that QEMU emulates.
type card struct {
	name   string // as on the page
	kind   string // QEMU's name
	driver string // the kernel's driver
	auto   string // the hook that auto selects
	// Behaviour of QEMU's card and its driver; see inside.Card.
	lro, mixes, keeps, loses bool
	// set are additional properties of the card.
	set map[string]any
	// taps connects the wires through taps of the host. Taps keep the header of a packet,
	// such as an unfinished checksum or pending segmentation. Otherwise QEMU connects the
	// cards, and packets are complete.
	taps   bool
	queues int // queues of each card, 0 for one
}

// offloads are the offloads of a virtio card that its driver may use.
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

// cards are all tested cards, in the order of the page's columns.
var cards = []card{
	{name: "virtio-net", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp"},
	{name: "virtio-net/offloads", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp", taps: true},
	{name: "virtio-net/2-queues", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp", taps: true, queues: 2},
	{name: "virtio-net/no-offloads", kind: "virtio-net-pci", driver: "virtio_net", auto: "xdp", taps: true, set: without(offloads)},
	{name: "vmxnet3", kind: "vmxnet3", driver: "vmxnet3", auto: "xdp", lro: true, mixes: true, keeps: true, loses: true},
	{name: "igb", kind: "igb", driver: "igb", auto: "xdp"},
	{name: "e1000e", kind: "e1000e", driver: "e1000e", auto: "tcx"},
}

const testProgram = "bascule/test/cards/inside"

// cases are the rows of the page.
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

// hookRow is the page's name for the case whose result is a hook. kernelRow describes the
// column.
const (
	hookRow   = "the hook that `auto` takes, and others"
	kernelRow = "Linux"
)

// full is the link that a virtio card reports. A bond needs it for LACP (802.3ad), and the card
// reports none by default.
var full = map[string]any{"speed": 1000, "duplex": "full"}

// properties are QEMU's properties of the near card of a wire; wires count from 0.
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

// argument formats properties for -device.
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

// devices returns the arguments for QEMU: for each wire a slot with the near card, which can be
// removed, and the far card. A PCI Express card has a slot of its own.
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
