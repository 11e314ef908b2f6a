// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// A Wire is two network cards of the machine that are connected. They are in the test's own
// network namespace before and after the test.
type Wire struct{ Near, Far MAC } // addresses that the cards were made with

// NewWired adds an end whose cable is a wire: the near card becomes the port's device, the far
// one is the interface. Flush does not wait for its frames, but Across does: the wire does not
// belong to this kernel.
func (l *Lab) NewWired(w Wire) *End {
	l.t.Helper()
	n := len(l.Ends) + 1
	e := &End{
		Port: fmt.Sprintf("p%d", n), Namespace: l.NewNamespace(), Ifname: fmt.Sprintf("e%d", n),
		MAC: w.Far, lab: l, gone: true, wire: &w,
	}
	l.Ends = append(l.Ends, e)
	l.takeCard(w.Far, e)
	e.PutBack(w)
	e.Socket = l.Listen(e.Namespace, e.Ifname)
	return e
}

// Remember records the present state of the port's device, with which Unchanged compares.
func (e *End) Remember() {
	e.lab.t.Helper()
	e.before = e.lab.device(e.Port)
}

// made has the settings of a card before the lab took it.
type made struct {
	mtu      int
	features map[string]bool
}

// restore restores the near card for the next lab.
func (e *End) restore() error {
	l := e.lab
	nl := l.Switch.Netlink()
	near, err := nl.LinkByIndex(e.PortIndex)
	if err != nil {
		return err
	}
	return errors.Join(nl.LinkSetMTU(near, e.made.mtu), nl.SetPromiscOff(near), l.Switch.Do(func() error {
		tool, err := ethtool.NewEthtool()
		if err != nil {
			return err
		}
		defer tool.Close()
		now, err := tool.Features(near.Attrs().Name)
		if err != nil {
			return err
		}
		change := map[string]bool{}
		for name, on := range e.made.features {
			if now[name] != on {
				change[name] = on
			}
		}
		if len(change) == 0 {
			return nil
		}
		return tool.Change(near.Attrs().Name, change)
	}))
}

// giveBack moves the cards of a wire that are still in the lab's namespaces to the test's own.
// The end of a namespace would move them as well, but later.
func (e *End) giveBack() error {
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	var errs []error
	for card, nl := range map[MAC]*netlink.Handle{e.wire.Near: e.lab.Switch.Netlink(), e.wire.Far: e.Namespace.Netlink()} {
		links, err := nl.LinkList()
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l := cardAmong(links, card)
		if l == nil {
			continue // it was removed, or it is already back
		}
		errs = append(errs, nl.LinkSetDown(l), nl.LinkSetName(l, cardName(card)), nl.LinkSetNsFd(l, int(own)))
	}
	return errors.Join(errs...)
}

// cardName returns the name of a card during its move from one namespace to another, where
// another device may have its own name.
func cardName(card MAC) string { return fmt.Sprintf("card%02x%02x", card[4], card[5]) }

// takeCard makes a card the far side of an end's cable.
func (l *Lab) takeCard(card MAC, e *End) {
	l.t.Helper()
	e.Ifindex = l.TakeCard(card, e.Namespace.Name, e.Ifname)
	far, err := e.Namespace.Netlink().LinkByIndex(e.Ifindex)
	l.must(err)
	// It receives frames to all stations, and in all VLANs.
	l.must(e.Namespace.Netlink().SetPromiscOn(far))
	l.must(e.Namespace.Netlink().LinkSetUp(far))
}

// PutBack makes the near card the port's device again, after it was removed from the machine.
func (e *End) PutBack(w Wire) {
	l := e.lab
	l.t.Helper()
	e.PortIndex = l.TakeCard(w.Near, l.Switch.Name, e.Port)
	l.expected[e.Port] = true
	near, err := l.Switch.Netlink().LinkByIndex(e.PortIndex)
	l.must(err)
	e.before = l.device(e.Port)
	e.made = &made{near.Attrs().MTU, e.before.features}
	e.gone = false
	l.Plug(e.Port)
	l.AwaitCarrier(e)
}

// AwaitCarrier waits until both sides of an end's cable have a carrier. Some cards lose it for
// seconds when a program is attached to their driver.
func (l *Lab) AwaitCarrier(e *End) {
	l.t.Helper()
	up := func(nl *netlink.Handle, ifname string) bool {
		side, err := nl.LinkByName(ifname)
		// The state follows the carrier a moment later, the flag follows at once.
		return err == nil && side.Attrs().OperState == netlink.OperUp && side.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
	}
	l.Wait("the cable of "+e.Port+" to be up", func() bool {
		return up(l.Switch.Netlink(), e.Port) && up(e.Namespace.Netlink(), e.Ifname)
	})
}

// TakeCard moves a card from the test's own namespace to another, under a name. It waits until
// the card is there, and returns its index.
func (l *Lab) TakeCard(card MAC, namespace, name string) (index int) {
	l.t.Helper()
	var found netlink.Link
	l.Wait("card "+card.String(), func() bool {
		found = findCard(card)
		return found != nil
	})
	to, err := netns.GetFromName(namespace)
	l.must(err)
	defer to.Close()
	l.must(netlink.LinkSetDown(found))
	l.must(netlink.LinkSetName(found, cardName(card)))
	l.must(netlink.LinkSetNsFd(found, int(to)))
	there, err := netlink.NewHandleAt(to, unix.NETLINK_ROUTE)
	l.must(err)
	defer there.Close()
	moved, err := there.LinkByName(cardName(card))
	l.must(err)
	l.must(there.LinkSetName(moved, name))
	return moved.Attrs().Index
}

// HasCard reports whether a card is in the test's own network namespace.
func HasCard(card MAC) bool { return findCard(card) != nil }

// findCard finds a card by the address that it was made with. It returns nil if the card is not
// there.
func findCard(card MAC) netlink.Link {
	links, err := netlink.LinkList()
	if err != nil {
		return nil // Devices come and go; the caller tries again.
	}
	return cardAmong(links, card)
}

func cardAmong(links []netlink.Link, card MAC) netlink.Link {
	i := slices.IndexFunc(links, func(l netlink.Link) bool {
		a := l.Attrs()
		address := a.PermHWAddr
		if len(address) == 0 {
			address = a.HardwareAddr
		}
		return l.Type() == "device" && bytes.Equal(address, card[:])
	})
	if i < 0 {
		return nil
	}
	return links[i]
}

// SetLast sets a function that changes the last frame of Across, which is untagged otherwise.
func (l *Lab) SetLast(last func(Frame) Frame) { l.last = last }

// Across sends frames from an end. Each has to arrive once and unchanged at every end in to. No
// other frame may arrive at any end. A broadcast follows as the last frame, which has to arrive
// at all other ends. A frame that has not arrived by then counts as lost. If the last frame
// overtakes another one nevertheless, the next Across detects that.
func (l *Lab) Across(from *End, frames []Frame, to ...*End) {
	l.t.Helper()
	want := map[*End][]Frame{}
	for _, e := range to {
		want[e] = frames
	}
	l.AcrossAs(from, frames, want)
}

// AcrossAs is like Across for frames that arrive changed.
func (l *Lab) AcrossAs(from *End, frames []Frame, want map[*End][]Frame) {
	l.t.Helper()
	deadline := l.sendWithLast(from, frames)
	for _, e := range l.Ends {
		if e.gone || e == from {
			continue
		}
		if err := e.awaitAll(l.marker, len(want[e]), deadline); err != nil {
			l.t.Errorf("from %v to %s: %v", from, e.Port, err)
		}
		if err := compare(e.Received(), want[e]); err != nil {
			l.t.Errorf("from %v to %s: %v", from, e.Port, err)
		}
	}
	if l.t.Failed() {
		l.t.FailNow()
	}
}

// Arrive sends frames from an end, and a last one as Across does. It returns the frames that
// have arrived at a socket before the last one.
func (l *Lab) Arrive(from *End, frames []Frame, at *Socket) []Frame {
	l.t.Helper()
	deadline := l.sendWithLast(from, frames)
	l.must(at.awaitAll(l.marker, 0, deadline))
	return at.Received()
}

// Drain discards the frames that have arrived, and those that arrive before a last frame from
// an end.
func (l *Lab) Drain(from *End) {
	l.t.Helper()
	deadline := l.sendWithLast(from, nil)
	for _, e := range l.Ends {
		if !e.gone && e != from {
			l.must(e.awaitAll(l.marker, 0, deadline))
			e.Received()
		}
	}
}

// sendWithLast sends frames and a last one, which has to arrive before the deadline.
func (l *Lab) sendWithLast(from *End, frames []Frame) (deadline time.Time) {
	l.t.Helper()
	l.marker++
	// It has a source address of its own, so that the switch does not learn a station's
	// place from it.
	last := newFrame(Broadcast, MAC{0x02, 0xbb, 0, 1, 0, byte(from.PortIndex)}, typeMarker, l.marker, minLen)
	if l.last != nil {
		last = l.last(last)
	}
	l.must(from.send(append(slices.Clone(frames), last)...))
	return time.Now().Add(patience)
}

// awaitAll reads until n frames and the marker have arrived.
func (s *Socket) awaitAll(marker uint32, n int, deadline time.Time) error {
	seen := false
	for !seen || len(s.inbox) < n {
		f, ok, err := receive(s.fd, s.buf)
		switch {
		case err != nil:
			return err
		case !ok:
			if err := await(s.fd, deadline); err != nil && seen {
				return nil // a comparison finds the missing frames
			} else if err != nil {
				return fmt.Errorf("the last frame did not arrive: %w", err)
			}
		case f.inner().ethertype() == typeMarker:
			seen = seen || f.inner().uint32(headerLen) == marker
		default:
			s.inbox = append(s.inbox, f)
		}
	}
	return nil
}

// inner returns the frame without its tags.
func (f Frame) inner() Frame {
	for len(f) >= headerLen+tagLen && (f.ethertype() == typeVLAN || f.ethertype() == typeQinQ) {
		f = f[:12] + f[12+tagLen:]
	}
	return f
}
