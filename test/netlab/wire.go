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

// A Wire is two network cards of the machine that are joined. The test's own network
// namespace has them, and gets them back when the test has ended.
type Wire struct{ Near, Far MAC } // as the cards were made

// NewWired adds an end whose cable is a wire: the near card becomes the port's device,
// the far one is the interface. Frames are not known to have arrived by Flush, but by
// Across: the wire is not of this kernel.
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

// Remember has the port's device as it is now be what Unchanged compares with.
func (e *End) Remember() {
	e.lab.t.Helper()
	e.before = e.lab.device(e.Port)
}

// made is what a card's settings were before the lab had it.
type made struct {
	mtu      int
	features map[string]bool
}

// restore gives the near card back as it came, for the next lab.
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

// giveBack puts the cards of a wire that are still in the lab's namespaces into the test's own.
// A namespace that goes gives them back as well, but some time later.
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
			continue // it was taken out, or is where it came from
		}
		errs = append(errs, nl.LinkSetDown(l), nl.LinkSetName(l, cardName(card)), nl.LinkSetNsFd(l, int(own)))
	}
	return errors.Join(errs...)
}

// cardName is what a card is called on its way from a namespace to another, where its
// own name may be that of another device.
func cardName(card MAC) string { return fmt.Sprintf("card%02x%02x", card[4], card[5]) }

// takeCard makes a card the far side of an end's cable.
func (l *Lab) takeCard(card MAC, e *End) {
	l.t.Helper()
	e.Ifindex = l.TakeCard(card, e.Namespace.Name, e.Ifname)
	far, err := e.Namespace.Netlink().LinkByIndex(e.Ifindex)
	l.must(err)
	// it takes frames to all stations, and of all VLANs
	l.must(e.Namespace.Netlink().SetPromiscOn(far))
	l.must(e.Namespace.Netlink().LinkSetUp(far))
}

// PutBack makes the near card the port's device again, after it was taken out.
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

// AwaitCarrier waits until both sides of an end's cable have a carrier. Some cards lose
// it for seconds when a program comes to their driver.
func (l *Lab) AwaitCarrier(e *End) {
	l.t.Helper()
	up := func(nl *netlink.Handle, ifname string) bool {
		side, err := nl.LinkByName(ifname)
		// the state follows the carrier a moment later, the flag at once
		return err == nil && side.Attrs().OperState == netlink.OperUp && side.Attrs().RawFlags&unix.IFF_LOWER_UP != 0
	}
	l.Wait("the cable of "+e.Port+" to be up", func() bool {
		return up(l.Switch.Netlink(), e.Port) && up(e.Namespace.Netlink(), e.Ifname)
	})
}

// TakeCard moves a card of the test's own namespace to another, under a name, and
// returns its index there. It waits until the card is there.
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

// findCard finds a card by the address that it was made with; nil where it is not there.
func findCard(card MAC) netlink.Link {
	links, err := netlink.LinkList()
	if err != nil {
		return nil // devices come and go, and it is asked again
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

// SetLast has the last frame of Across be another than an untagged one.
func (l *Lab) SetLast(last func(Frame) Frame) { l.last = last }

// Across sends frames from an end. Each has to arrive once and unchanged at every one
// of the ends in to, and nothing else anywhere. Behind the frames goes a last one, a
// broadcast, which has to come to all other ends: what is not there when it is does not
// come any more. Where it overtakes a frame nevertheless, the next Across finds that.
func (l *Lab) Across(from *End, frames []Frame, to ...*End) {
	l.t.Helper()
	want := map[*End][]Frame{}
	for _, e := range to {
		want[e] = frames
	}
	l.AcrossAs(from, frames, want)
}

// AcrossAs is Across where frames arrive otherwise than they were sent.
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

// Arrive sends frames from an end, and a last one as Across does. It returns what has
// arrived at a socket when the last one has.
func (l *Lab) Arrive(from *End, frames []Frame, at *Socket) []Frame {
	l.t.Helper()
	deadline := l.sendWithLast(from, frames)
	l.must(at.awaitAll(l.marker, 0, deadline))
	return at.Received()
}

// Drain throws away what has arrived, and what arrives before a last frame from an end
// does.
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

// sendWithLast sends frames and a last one, which has to arrive until the deadline.
func (l *Lab) sendWithLast(from *End, frames []Frame) (deadline time.Time) {
	l.t.Helper()
	l.marker++
	// of its own address, so that the switch does not learn where a station is
	last := newFrame(Broadcast, MAC{0x02, 0xbb, 0, 1, 0, byte(from.PortIndex)}, typeMarker, l.marker, minLen)
	if l.last != nil {
		last = l.last(last)
	}
	l.must(from.send(append(slices.Clone(frames), last)...))
	return time.Now().Add(patience)
}

// awaitAll takes what arrives until n frames and the marker have.
func (s *Socket) awaitAll(marker uint32, n int, deadline time.Time) error {
	seen := false
	for !seen || len(s.inbox) < n {
		f, ok, err := receive(s.fd, s.buf)
		switch {
		case err != nil:
			return err
		case !ok:
			if err := await(s.fd, deadline); err != nil && seen {
				return nil // which frames are missing is found by comparing
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

// inner is the frame without its tags.
func (f Frame) inner() Frame {
	for len(f) >= headerLen+tagLen && (f.ethertype() == typeVLAN || f.ethertype() == typeQinQ) {
		f = f[:12] + f[12+tagLen:]
	}
	return f
}
