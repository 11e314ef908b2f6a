// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"slices"
	"time"

	"bascule/bridge"
)

// findings reports host settings at ports' devices that have no effect there, as they come and go. It
// runs beside the loop, since a check takes milliseconds with many ports.
type findings struct {
	s     *site
	again chan struct{} // holds one value when a check is due
	done  chan struct{} // closed at the end
	found []bridge.PortFinding
}

// The kernel sends events of devices and of tc. nftables, addresses and programs have no events here:
// they are checked each findingPeriod. At least findingRest passes between two checks.
const (
	findingPeriod = 10 * time.Second
	findingRest   = 500 * time.Millisecond
)

func (s *site) followFindings() *findings {
	f := &findings{s: s, again: make(chan struct{}, 1), done: make(chan struct{})}
	go func() {
		defer close(f.done)
		s.a.keep(s.ctx, s.log, "looking at what the host has at ports", f.run)
	}()
	return f
}

// wake requests a check.
func (f *findings) wake() {
	if f == nil {
		return
	}
	select {
	case f.again <- struct{}{}:
	default: // a check is due already
	}
}

// run checks until the site is closed.
func (f *findings) run() error {
	for {
		begin := time.Now()
		now, err := f.s.sw.PortFindings()
		if err != nil {
			return err
		}
		// a changed MTU has its own message
		now = slices.DeleteFunc(now, func(n bridge.PortFinding) bool { return n.Kind == bridge.FindingMTU })
		came, went := bridge.NewFindings(f.found, now)
		f.found = now
		for _, n := range came {
			f.s.log.Warn("something of the host at a port's device has no effect", "bridge", n.Bridge, "port", n.Port, "why", n.Text)
		}
		for _, n := range went {
			f.s.log.Info("something without effect is gone from a port's device", "bridge", n.Bridge, "port", n.Port, "was", n.What)
		}
		select {
		case <-f.s.ctx.Done():
			return nil
		case <-time.After(max(findingRest, 20*time.Since(begin))):
		}
		select {
		case <-f.s.ctx.Done():
			return nil
		case <-f.again:
		case <-time.After(findingPeriod):
		}
	}
}
