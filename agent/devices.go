// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"sync/atomic"
	"time"

	"bascule/bridge"
	"bascule/config"
)

// devices follows the devices of a site's bridges. It runs beside the loop, since
// it may have to change a bridge.
type devices struct {
	s     *site
	again chan struct{} // holds one value when a check is due
	done  chan struct{} // closed at the end

	files atomic.Pointer[map[string]bool] // bridges of the files: hot-plug restores their ports
}

// longestRest is the longest pause after a check. If devices come and go all the
// time, checks take a fifth of the time.
const longestRest = time.Second

func (s *site) followDevices() *devices {
	d := &devices{s: s, again: make(chan struct{}, 1), done: make(chan struct{})}
	d.files.Store(&map[string]bool{})
	go func() {
		defer close(d.done)
		s.a.keep(s.ctx, s.log, "following the devices of bridges", d.run)
	}()
	return d
}

// wake requests a check.
func (d *devices) wake() {
	if d == nil {
		return
	}
	select {
	case d.again <- struct{}{}:
	default: // a check is due already
	}
}

// concerns reports whether an event of a device needs a check.
func (d *devices) concerns(index int) bool {
	if d == nil {
		return false
	}
	return d.s.follower.Concerns(index)
}

// leave sets the bridges that are in the files, which devices leaves alone.
func (d *devices) leave(f config.File) {
	if d == nil {
		return
	}
	names := map[string]bool{}
	for _, b := range f.Bridges {
		names[b.Name] = true
	}
	d.files.Store(&names)
	d.wake()
}

// run checks on demand, until the site is closed.
func (d *devices) run() error {
	s, hand := d.s, d.s.follower
	for wrong := ""; ; {
		begin := time.Now()
		did, err := hand.Look(func(name string) bool { return (*d.files.Load())[name] })
		for _, deed := range did {
			d.tell(deed)
		}
		rest := min(4*time.Since(begin), longestRest)
		if err == nil {
			wrong = ""
		} else {
			if text := err.Error(); text != wrong {
				s.log.Error("a bridge cannot follow its devices; trying again every second", "error", err)
				wrong = text
			}
			time.AfterFunc(retryPeriod, d.wake)
		}
		select {
		case <-s.ctx.Done():
			return nil
		case <-time.After(rest):
		}
		select {
		case <-s.ctx.Done():
			return nil
		case <-d.again:
		}
	}
}

// Logs the changes.
func (d *devices) tell(deed bridge.Deed) {
	log := d.s.log.With("bridge", deed.Bridge)
	if deed.Port != "" {
		log = log.With("port", deed.Port)
	}
	switch deed.Kind {
	case bridge.DeedAddress:
		log.Info("the bridge follows the address of a host port")
	case bridge.DeedCarrier:
		log.Info("a host port has a carrier again")
	case bridge.DeedNone:
		log.Info("a host port has no carrier", "why", deed.Why)
	case bridge.DeedTaken:
		log.Warn("a port's device was made a member of another device, which gets nothing from the port, and whose frames bypass the switch", "why", "it belongs to "+deed.Other)
	case bridge.DeedMTU:
		if deed.Lossy {
			log.Warn("the MTU of a port's device was changed", "why", deed.Why)
		} else {
			log.Info("the MTU of a port's device was changed", "why", deed.Why)
		}
	case bridge.DeedReleased:
		log.Info("a port's device is no longer a member of another device", "was", deed.Other)
	case bridge.DeedForgot:
		log.Info("a port has lost its carrier; the addresses behind it are forgotten", "addresses", deed.Count)
	case bridge.DeedBack:
		log.Info("a port is back: its device has returned from another network namespace")
	}
}
