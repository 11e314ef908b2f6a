// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"slices"
	"syscall"
	"time"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// How often a monitor reads events and drops.
const (
	eventPeriod = 50 * time.Millisecond
	dropPeriod  = time.Second
)

// A listener reads the events of one bridge.
type listener struct {
	name   string
	bridge *datapath.Bridge
	log    *datapath.Log
	names  map[uint32]string  // of ports, including those that have left
	own    map[uint32][6]byte // addresses of host ports' interfaces
	gone   map[uint32]bool    // ports whose device is known to be gone
	taken  map[uint32]string  // masters of ports' devices at the last look
	mtus   map[uint32]int     // MTUs of ports' devices at the last look
	found  []PortFinding      // findings of the last look
	drops  map[uint32]map[string]uint64
}

// linkNews receives the kernel's messages about the devices of a network namespace (rtnetlink(7)),
// including states that last only a moment.
type linkNews struct{ fd int }

// hearLinks opens a linkNews for the caller's network namespace.
func hearLinks() (linkNews, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return linkNews{-1}, fmt.Errorf("listen to netlink: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: unix.RTMGRP_LINK}); err != nil {
		unix.Close(fd)
		return linkNews{-1}, fmt.Errorf("listen to netlink: %w", err)
	}
	return linkNews{fd}, nil
}

func (n linkNews) close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
	}
}

// read returns the states of devices in order, one for each message since the last call. It leaves
// out lost and unreadable messages: a caller that needs the present state has to list the devices.
func (n linkNews) read() (list []netlink.Link, err error) {
	for buf := make([]byte, 32<<10); ; {
		size, from, err := unix.Recvfrom(n.fd, buf, 0)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return list, nil
		case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return list, fmt.Errorf("listen to netlink: %w", err)
		}
		if k, ok := from.(*unix.SockaddrNetlink); !ok || k.Pid != nl.PidKernel {
			continue
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:size])
		if err != nil {
			continue
		}
		for _, m := range messages {
			// Other families have messages about ports of Linux bridges.
			if m.Header.Type != unix.RTM_NEWLINK || len(m.Data) < unix.SizeofIfInfomsg || m.Data[0] != unix.AF_UNSPEC {
				continue
			}
			if l, err := netlink.LinkDeserialize(nil, m.Data); err == nil {
				list = append(list, l)
			}
		}
	}
}

// Monitor reports the events of a bridge, or of every bridge if the name is "", until ctx ends or
// report fails. The events are: addresses that were learned, moved, aged, added, deleted, refused,
// or seen on a locked port and not let in; loops, and ports that they block; ports that were added,
// removed, gone, back, or taken by another device; and once a second the drops. Any number of
// monitors can run; none slows a frame down.
func (s *Switch) Monitor(ctx context.Context, bridge string, report func(Event) error) error {
	listeners := map[string]*listener{}
	defer func() {
		for _, w := range listeners {
			w.log.Close()
		}
	}()
	if bridge != "" {
		if err := s.each("monitor bridge "+bridge, bridge, func(string, *datapath.Bridge) error { return nil }); err != nil {
			return err
		}
	}
	news := linkNews{-1}
	err := s.read(func(*datapath.Store) (err error) {
		news, err = hearLinks()
		return err
	})
	if err != nil {
		return failed("monitor", err)
	}
	defer news.close()
	devices := map[int]netlink.Link{} // as of the last message or list
	tick := time.NewTicker(eventPeriod)
	defer tick.Stop()
	for n := 0; ; n++ {
		var events []Event
		err := s.read(func(store *datapath.Store) error {
			if err := listenToAll(store, bridge, listeners, n == 0, &events); err != nil {
				return err
			}
			for _, w := range listeners {
				if err := w.read(&events); err != nil {
					return err
				}
			}
			if err := hear(news, devices, listeners, &events); err != nil {
				return err
			}
			if n%int(dropPeriod/eventPeriod) != 0 {
				return nil
			}
			list, err := netlink.LinkList()
			if err == nil { // if devices are coming and going, the next look will do
				clear(devices)
				for _, l := range list {
					devices[l.Attrs().Index] = l
				}
				// Report messages from before the list before the contents of the
				// list. Messages from after the list are newer.
				if err := hear(news, devices, listeners, &events); err != nil {
					return err
				}
			}
			for _, w := range listeners {
				if err := w.look(devices, &events); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		for _, e := range events {
			e.Time = time.Now()
			if err := report(e); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// listenToAll updates the listeners for the bridges that exist now.
func listenToAll(store *datapath.Store, only string, listeners map[string]*listener, first bool, events *[]Event) error {
	names, err := store.Names()
	if err != nil {
		return err
	}
	there := map[string]bool{}
	for _, name := range names {
		if only != "" && name != only {
			continue
		}
		there[name] = true
		w := listeners[name]
		if w != nil && w.bridge.Current() {
			continue
		}
		b, err := open(store, "monitor bridge "+name, name)
		if errors.Is(err, errNoBridge) {
			continue
		}
		if err != nil {
			return err
		}
		if w != nil && w.bridge.Config.HashSeed != b.Config.HashSeed {
			// This is another bridge of the same name.
			*events = append(*events, Event{Kind: "bridge-removed", Bridge: name})
			w.log.Close()
			w = nil
		}
		if w == nil {
			log, err := b.OpenLog()
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return err
			}
			w = &listener{name: name, log: log, names: map[uint32]string{}, gone: map[uint32]bool{}, taken: map[uint32]string{}, mtus: map[uint32]int{}, drops: map[uint32]map[string]uint64{}}
			listeners[name] = w
			w.adopt(b)
			if !first {
				*events = append(*events, Event{Kind: "bridge-added", Bridge: name})
			}
			continue
		}
		w.compare(b, events)
	}
	for name, w := range listeners {
		if !there[name] {
			*events = append(*events, Event{Kind: "bridge-removed", Bridge: name})
			w.log.Close()
			delete(listeners, name)
		}
	}
	return nil
}

// adopt makes b the bridge of the listener.
func (w *listener) adopt(b *datapath.Bridge) {
	w.bridge = b
	devices, err := links()
	if err != nil {
		devices = nil // the ports' first names are good enough
	}
	w.own = map[uint32][6]byte{}
	for _, p := range datapath.Ports(&b.Config) {
		if p.Host != 0 {
			w.own[p.Id] = datapath.WordMAC(p.Host)
		}
		if w.names[p.Id] == "" {
			w.names[p.Id] = datapath.PortName(p)
		}
		if l := shownDevice(b, p, devices); l != nil {
			w.names[p.Id] = nameBy(l, p)
		}
	}
}

// compare reports ports that were added or removed in a new configuration.
func (w *listener) compare(b *datapath.Bridge, events *[]Event) {
	old := w.bridge
	w.adopt(b)
	for _, p := range datapath.Ports(&old.Config) {
		if datapath.PortAt(&b.Config, p.Id) == nil {
			*events = append(*events, Event{Kind: "port-removed", Bridge: w.name, Port: w.names[p.Id]})
		}
	}
	for _, p := range datapath.Ports(&b.Config) {
		if datapath.PortAt(&old.Config, p.Id) == nil {
			*events = append(*events, Event{Kind: "port-added", Bridge: w.name, Port: w.names[p.Id]})
		}
	}
}

// hear reports changes of the ports' devices.
func hear(news linkNews, devices map[int]netlink.Link, listeners map[string]*listener, events *[]Event) error {
	list, err := news.read()
	for _, l := range list {
		devices[l.Attrs().Index] = l
		if master := l.Attrs().MasterIndex; master != 0 && devices[master] == nil {
			if m, err := netlink.LinkByIndex(master); err == nil {
				devices[master] = m
			}
		}
		for _, w := range listeners {
			for _, p := range datapath.Ports(&w.bridge.Config) {
				if int(p.Ifindex) == l.Attrs().Index && p.Facts&datapath.PortPatch == 0 && w.bridge.There(p) {
					w.seeMaster(p, masterOf(l, devices), events)
					w.seeMTU(p, l, devices, events)
				} else if own := devices[int(p.Ifindex)]; own != nil && isHostEnd(l, p) {
					w.seeMTU(p, own, devices, events)
				}
			}
		}
	}
	return err
}

// read reads the events since the last call.
func (w *listener) read(events *[]Event) error {
	list, missed, err := w.log.Read()
	if err != nil {
		return err
	}
	if missed > 0 {
		*events = append(*events, Event{Kind: "missed", Bridge: w.name, Count: missed})
	}
	for _, e := range list {
		*events = append(*events, w.event(e))
	}
	return nil
}

// look reports changes of the ports, and the drops. devices are the namespace's.
func (w *listener) look(devices map[int]netlink.Link, events *[]Event) error {
	w.seeFindings(lookAround(w.bridge.Store(), devices), events)
	for _, p := range datapath.Ports(&w.bridge.Config) {
		there := w.bridge.There(p)
		if there == w.gone[p.Id] && w.bridge.Current() {
			kind := "port-back"
			if w.gone[p.Id] = !there; !there {
				kind = "port-gone"
			}
			*events = append(*events, Event{Kind: kind, Bridge: w.name, Port: w.names[p.Id]})
		}
		if l := devices[int(p.Ifindex)]; l != nil && there && p.Facts&datapath.PortPatch == 0 {
			w.seeMaster(p, masterOf(l, devices), events)
			w.seeMTU(p, l, devices, events)
		}
		stats, err := w.bridge.PortStats(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // the next look reads the next configuration
		}
		if err != nil {
			return err
		}
		now := loadStats(&stats, nil).Drops
		before, seen := w.drops[p.Id]
		w.drops[p.Id] = now
		for _, reason := range datapath.Reasons() {
			if n := now[reason] - before[reason]; seen && n > 0 {
				*events = append(*events, Event{Kind: "drops", Bridge: w.name, Port: w.names[p.Id], Reason: reason, Count: n})
			}
		}
	}
	return nil
}

// seeMaster reports that a port's device has become a member of another, or is not a member any
// more.
func (w *listener) seeMaster(p *datapath.Port, now string, events *[]Event) {
	if now == w.taken[p.Id] {
		return
	}
	w.taken[p.Id] = now
	e := Event{Kind: "port-taken", Bridge: w.name, Port: w.names[p.Id], Reason: now}
	if now == "" {
		e.Kind = "port-released"
	}
	*events = append(*events, e)
}

// seeMTU reports a changed MTU of a port's device.
func (w *listener) seeMTU(p *datapath.Port, l netlink.Link, devices map[int]netlink.Link, events *[]Event) {
	was, now := w.mtus[p.Id], mtuOf(p, l, devices)
	w.mtus[p.Id] = now
	if was == 0 || now == 0 || was == now {
		return
	}
	text, _ := mtuChange(w.bridge, p, w.names[p.Id], now, devices)
	*events = append(*events, Event{Kind: "port-mtu", Bridge: w.name, Port: w.names[p.Id], Reason: text})
}

// seeFindings reports new findings at ports' devices, and findings that have gone.
func (w *listener) seeFindings(around *around, events *[]Event) {
	now := slices.DeleteFunc(around.findings(w.name, w.bridge), func(f PortFinding) bool { return f.Kind == FindingMTU })
	if !w.bridge.Current() {
		return // the next look reads the next configuration
	}
	came, went := NewFindings(w.found, now)
	w.found = now
	for _, f := range came {
		*events = append(*events, Event{Kind: "port-finding", Bridge: w.name, Port: f.Port, Reason: f.Text})
	}
	for _, f := range went {
		*events = append(*events, Event{Kind: "port-cleared", Bridge: w.name, Port: f.Port, Reason: f.What})
	}
}

func (w *listener) event(e datapath.Event) Event {
	out := Event{
		Bridge: w.name, Port: w.names[e.Port], From: w.names[e.From],
		MAC: net.HardwareAddr(e.MAC[:]), VLAN: e.VLAN, Count: uint64(e.Count),
	}
	switch e.Kind {
	case datapath.EventLearned:
		out.Kind = "learned"
	case datapath.EventMoved:
		out.Kind = "moved"
	case datapath.EventAged:
		out.Kind = "aged"
	case datapath.EventDeleted:
		out.Kind = "deleted"
	case datapath.EventAdded:
		out.Kind = "added"
	case datapath.EventRefusedFull:
		out.Kind, out.Reason, out.MAC = "refused", "full", nil
	case datapath.EventRefusedPinned:
		out.Kind, out.Reason = "refused", "static"
		own, host := w.own[e.From]
		out.Own = host && own == e.MAC
	case datapath.EventRefusedDamped:
		out.Kind, out.Reason = "refused", "damped"
	case datapath.EventLocked:
		out.Kind = "locked"
	case datapath.EventLoop:
		out.Kind = "loop"
	case datapath.EventBlocked:
		out.Kind, out.MAC = "blocked", nil
		out.For, out.Count = time.Duration(e.Count)*time.Second, 0
	}
	return out
}
