// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"io/fs"

	"bascule/datapath"
)

// hold enables a watch of a bridge and holds it; set adds its parameters. stop disables the watch
// again, unless another process holds it.
func (s *Switch) hold(what, bridge string, w datapath.Watch, set func(*draft) error) (stop func() error, err error) {
	var release func()
	err = s.change(what, bridge, func(c *draft) error {
		if release, err = c.bridge.Hold(w); err != nil {
			if errors.Is(err, datapath.ErrWatched) {
				return refused(what, "another program does already", "end it first")
			}
			return err
		}
		c.next.Flags |= uint32(w.Flag())
		return set(c)
	})
	if err != nil {
		if release != nil {
			release()
		}
		return nil, err
	}
	return func() error {
		release()
		err := s.change("end to "+what, bridge, func(c *draft) error {
			if !c.bridge.Held(w) {
				endWatch(c.next, w)
			}
			return nil
		})
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoBridge) {
			return nil // the bridge is gone, and the watch with it
		}
		return err
	}, nil
}

// endWatch removes a watch from a configuration.
func endWatch(c *datapath.Config, w datapath.Watch) {
	c.Flags &^= uint32(w.Flag())
	if w == datapath.WatchSample {
		c.SampleRate, c.SampleDrops = 0, 0
	}
	if w == datapath.WatchCapture {
		c.CaptureRing, c.CapturePoints, c.Snaplen = 0, 0, 0
		for _, p := range datapath.Ports(c) {
			setBits(&p.Flags, datapath.PortCapture, false)
		}
	}
}

// endStaleWatches disables watches whose process was killed. It reports whether there was any; the
// bridge is dirty then.
func endStaleWatches(b *datapath.Bridge) (ended bool, err error) {
	var stale []datapath.Watch
	for _, w := range []datapath.Watch{datapath.WatchCapture, datapath.WatchTalkers, datapath.WatchSample} {
		if b.Config.Flags&uint32(w.Flag()) != 0 && !b.Held(w) {
			stale = append(stale, w)
		}
	}
	if len(stale) == 0 {
		return false, nil
	}
	next := b.Config
	for _, w := range stale {
		endWatch(&next, w)
	}
	if err := b.Begin(); err != nil {
		return false, err
	}
	return true, b.Commit(&next, datapath.Tables{}, follower{})
}
