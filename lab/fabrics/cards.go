// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"

	"bascule/lab/ends"
)

// Fabrics of network cards are built in a virtual machine with these cards, which the emulator
// connects with wires. The machine has all wires that the fabrics of its group need, and no two
// fabrics share a wire.

// A Card is a kind of network card, by QEMU's name.
type Card string

// driver returns the name of its Linux driver.
func (c Card) driver() string {
	if c == "rtl8139" {
		return "8139cp"
	}
	return string(c)
}

// A CardWire connects two network cards of a virtual machine.
type CardWire struct{ Near, Far Card }

// cardMAC begins the cards' hardware addresses, followed by the number of the wire and the side.
var cardMAC = []byte{0x02, 0xb5, 0xc1, 0x00}

// CardWires returns QEMU's arguments for the cards of wires. They need a PCI Express board.
func CardWires(wires []CardWire) (args []string) {
	for i, w := range wires {
		for side, kind := range []Card{w.Near, w.Far} {
			mac := net.HardwareAddr(append(bytes.Clone(cardMAC), byte(i+1), byte(side)))
			id := fmt.Sprintf("wire%dside%d", i+1, side)
			args = append(args,
				"-netdev", fmt.Sprintf("hubport,id=%s,hubid=%d", id, i+1),
				"-device", fmt.Sprintf("%s,netdev=%s,mac=%v,romfile=", kind, id, mac))
		}
	}
	return args
}

// CardModules returns the kernel modules of the cards' drivers.
func CardModules(wires []CardWire) (modules []string) {
	for _, w := range wires {
		modules = append(modules, w.Near.driver(), w.Far.driver())
	}
	return modules
}

// wire takes an unused wire of the machine, and moves its cards to two namespaces, where they get
// names and are set up. The cards return to the machine when the namespaces are removed.
func (n *Net) wire(ctx context.Context, w CardWire, near *ends.Namespace, nearName string, far *ends.Namespace, farName string) error {
	what := fmt.Sprintf("wire from %s in %s to %s in %s", nearName, near.Name, farName, far.Name)
	free, err := freeCards()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	for i := range 256 {
		a, b := free[[2]byte{byte(i), 0}], free[[2]byte{byte(i), 1}]
		if a.driver != w.Near.driver() || b.driver != w.Far.driver() {
			continue
		}
		if err := errors.Join(n.take(ctx, a.Link, near, nearName), n.take(ctx, b.Link, far, farName)); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return errors.Join(carrier(ctx, near, nearName), carrier(ctx, far, farName))
	}
	return fmt.Errorf("%s: the machine has no free wire from a card %s to a card %s", what, w.Near, w.Far)
}

// card is a network card with its driver.
type card struct {
	netlink.Link
	driver string
}

// freeCards returns the machine's unused cards, by wire and side.
func freeCards() (map[[2]byte]card, error) {
	links, err := netlink.LinkList()
	if err != nil {
		return nil, err
	}
	e, err := ethtool.NewEthtool()
	if err != nil {
		return nil, err
	}
	defer e.Close()
	out := map[[2]byte]card{}
	for _, l := range links {
		mac := l.Attrs().HardwareAddr
		if !bytes.HasPrefix(mac, cardMAC) {
			continue
		}
		driver, err := e.DriverName(l.Attrs().Name)
		if err != nil {
			return nil, fmt.Errorf("driver of %s: %w", l.Attrs().Name, err)
		}
		out[[2]byte{mac[4], mac[5]}] = card{l, driver}
	}
	return out, nil
}

// take moves a card to a namespace.
func (n *Net) take(ctx context.Context, l netlink.Link, to *ends.Namespace, name string) error {
	if err := to.Receive(l, name); err != nil {
		return err
	}
	moved, err := to.Netlink().LinkByName(name)
	if err == nil {
		err = to.Netlink().LinkSetMTU(moved, cmp.Or(n.Spec.Wire.MTU, ends.DefaultMTU))
	}
	if err == nil {
		err = to.Netlink().LinkSetUp(moved)
	}
	if err != nil {
		return fmt.Errorf("%s in %s: %w", name, to.Name, err)
	}
	return nil
}

// carrier waits until a card reports a carrier.
func carrier(ctx context.Context, at *ends.Namespace, name string) error {
	// A card needs some seconds of the machine's time.
	const patience = time.Minute
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		l, err := at.Netlink().LinkByName(name)
		if err != nil {
			return fmt.Errorf("%s in %s: %w", name, at.Name, err)
		}
		if l.Attrs().OperState == netlink.OperUp {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		case <-deadline:
			return fmt.Errorf("%s in %s has no carrier after %v", name, at.Name, patience)
		}
	}
}

// TwoHosts connect two ends on bridges of two hosts. The hosts are two namespaces of one virtual
// machine, connected by two network cards.
var TwoHosts = []*Fabric{
	twoHosts("linux-bridge", "the kernel's bridge", linuxBrand),
	twoHosts("ovs", "an Open vSwitch bridge", ovsBrand),
	twoHosts("bascule", "a bascule bridge", basculeBrand),
}

// hostWire connects two hosts.
var hostWire = CardWire{"e1000e", "e1000e"}

func twoHosts(name, about string, b *brand) *Fabric {
	out := append(path("end", "device veth"), b.hops...)
	out = append(append(out, path("device e1000e", "device e1000e")...), b.hops...)
	if !b.peer {
		out = append(out, path("device veth")...)
	}
	return &Fabric{
		Name:    name + "-2-hosts",
		About:   about + " on each of two hosts (namespaces of one machine), with a network card in each and a wire between them",
		Path:    append(out, path("end")...),
		Arrival: AsBuffers,
		Needs:   b.needs,
		Files:   b.files,
		Modules: b.modules,
		Wires:   []CardWire{hostWire},
		build:   func(ctx context.Context, _ Site, n *Net) error { return n.twoHosts(ctx, b) },
	}
}

// cardName is the name of a host's network card.
const cardName = "card0"

func (n *Net) twoHosts(ctx context.Context, b *brand) error {
	if n.Spec.Ends != 2 || n.Spec.Together {
		return &ends.Unavailable{Reason: "it has two hosts with an end each"}
	}
	if n.Spec.Guests {
		return &ends.Unavailable{Reason: "its ends are namespaces only: a virtual machine has no others inside"}
	}
	// The second host is a net with one end, the second.
	second := &Net{Fabric: n.Fabric, Spec: n.Spec, site: n.site, serial: serial.Add(1), Ends: make([]ends.End, 1), Ports: make([]Port, 1)}
	n.undo = append(n.undo, second.Close)
	n.second = second
	var kits []kit
	for _, host := range []*Net{n, second} {
		if err := host.place(); err != nil {
			return err
		}
		k := b.kit(host)
		if err := k.add(ctx, bridgeName); err != nil {
			return err
		}
		if err := host.endAt(ctx, k, bridgeName); err != nil {
			return err
		}
		kits = append(kits, k)
	}
	n.Ends, n.Ports = append(n.Ends, second.Ends[1]), append(n.Ports, second.Ports[1])
	n.living = append(n.living, second.living...)
	n.flush = func(ctx context.Context) error {
		return errors.Join(kits[0].flush(ctx, bridgeName), kits[1].flush(ctx, bridgeName))
	}
	n.known = func(ctx context.Context) (int, error) { return kits[0].known(ctx, bridgeName) }
	if err := n.wire(ctx, hostWire, n.Switch, cardName, second.Switch, cardName); err != nil {
		return err
	}
	return errors.Join(kits[0].plug(ctx, bridgeName, cardName), kits[1].plug(ctx, bridgeName, cardName))
}

// cardCable makes the next end, with a wire between cards to a device of the switch's
// namespace. The router gets each packet in the form in which the card delivers it.
func (n *Net) cardCable(ctx context.Context, near string) error {
	i := len(n.Ends)
	if i >= len(n.Fabric.Wires) {
		return &ends.Unavailable{Reason: fmt.Sprintf("it has network cards for %d ends", len(n.Fabric.Wires))}
	}
	ns, err := n.endNamespace(i)
	if err != nil {
		return err
	}
	ifname := fmt.Sprintf("e%d", i+1)
	if err := n.wire(ctx, n.Fabric.Wires[i], n.Switch, near, ns, ifname); err != nil {
		return err
	}
	if err := n.Switch.SetFeatures(near, ends.Features{}); err != nil {
		return err
	}
	_, addr := ends.Number(i + 1)
	end, err := ns.Adopt(ifname, addr)
	if err != nil {
		return err
	}
	return n.joined(end, near)
}

// RouterCards forwards by IP address between network cards of two kinds. The ends' own cards are of
// one kind.
var RouterCards = &Fabric{
	Name:    "router-2-cards",
	About:   "Linux as a router between two kinds of network card, rtl8139 at the first end and e1000e at the second; no GRO",
	Path:    path("end", "device e1000e", "device rtl8139", "bridge Linux router", "device e1000e", "device e1000e", "end"),
	Arrival: AsBuffers,
	Routed:  true,
	Wires:   []CardWire{{"rtl8139", "e1000e"}, {"e1000e", "e1000e"}},
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.route(ctx)
	},
}
