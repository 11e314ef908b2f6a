// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"slices"
	"time"

	"bascule/clock"
	"bascule/datapath"
	"bascule/frame"

	"golang.org/x/sys/unix"
)

// The sizes of a capture's buffer, in bytes.
const (
	MinCaptureBuffer     = 64 << 10
	DefaultCaptureBuffer = 4 << 20
	MaxCaptureBuffer     = 1 << 30
)

// CaptureOptions choose the frames of a capture, and how much is kept of them.
type CaptureOptions struct {
	Ports   []string          // only frames at these ports; none for all
	Dropped bool              // only frames that were dropped
	Filter  []unix.SockFilter // only frames that this wants; frame.Compile makes it
	Snaplen int               // bytes kept of each frame, frame.MinSnaplen to frame.MaxSnaplen
	Buffer  int               // bytes of the buffer between the datapath and the reader
}

// Capture begins a capture at the ports of a bridge, which lasts until its
// source is closed. A bridge has one capture at a time. The error is a
// *[UsageError] when o.Snaplen is out of range.
func (s *Switch) Capture(_ context.Context, bridge string, o CaptureOptions) (frame.Source, error) {
	what := "capture at bridge " + bridge
	if o.Snaplen < frame.MinSnaplen || o.Snaplen > frame.MaxSnaplen {
		return nil, usagef(fmt.Sprintf("snapshot length %d", o.Snaplen), "out of range; give %d to %d", frame.MinSnaplen, frame.MaxSnaplen)
	}
	stop, err := s.hold(what, bridge, datapath.WatchCapture, func(c *draft) error {
		c.next.Snaplen, c.next.CaptureRing = uint32(o.Snaplen), ringSize(o.Buffer)
		c.next.CapturePoints = 1<<datapath.CaptureIn | 1<<datapath.CaptureOut | 1<<datapath.CaptureDrop
		if o.Dropped {
			c.next.CapturePoints = 1 << datapath.CaptureDrop
		}
		for _, name := range o.Ports {
			p, _, err := findPort(c, what, bridge, name)
			if err != nil {
				return err
			}
			setBits(&p.Flags, datapath.PortCapture, true)
			c.next.CapturePoints |= 1 << datapath.CapturePorts
		}
		c.tables.Filter = o.Filter
		return nil
	})
	if err != nil {
		return nil, err
	}
	source := &captureSource{s: s, bridge: bridge, stop: stop, names: map[uint32]string{}}
	err = s.each(what, bridge, func(_ string, b *datapath.Bridge) (err error) {
		source.seed = b.Config.HashSeed
		if source.frames != nil { // a try before has opened it
			source.frames.Close()
		}
		source.frames, err = b.OpenFrames()
		return err
	})
	if err == nil {
		err = source.learnNames()
	}
	now := clock.Monotonic()
	if err != nil {
		return nil, errors.Join(err, source.Close())
	}
	source.boot = time.Now().Add(-now)
	return source, nil
}

// ringSize is the size of a ring buffer for at least so many bytes: a power of two, and
// whole pages.
func ringSize(n int) uint32 {
	return max(1<<bits.Len(uint(n-1)), uint32(unix.Getpagesize()))
}

// captureSource is a capture that runs.
type captureSource struct {
	s      *Switch
	bridge string
	seed   uint64 // the bridge's hash seed: a bridge that is made anew has another
	frames *datapath.Frames
	stop   func() error
	boot   time.Time         // when clock.Monotonic was 0
	names  map[uint32]string // of ports by id
	asked  bool              // for names, since Next was called
	until  time.Duration     // when Next was told to end, if not 0
	over   bool              // all frames until then have been read
}

// captureBatch is how many frames Next returns at most.
const captureBatch = 256

// captureLook is how often Next looks whether it is to end.
const captureLook = 100 * time.Millisecond

// Next returns frames that were captured. It returns all that were captured before ctx
// ended, and only then says that ctx ended.
func (c *captureSource) Next(ctx context.Context) (list []frame.Seen, missed uint64, err error) {
	c.asked = false
	for !c.over {
		ended := ctx.Err()
		if ended != nil && c.until == 0 {
			c.until = clock.Monotonic()
		}
		deadline := time.Now()
		if len(list) == 0 && ended == nil {
			deadline = deadline.Add(captureLook)
		}
		f, err := c.frames.Read(deadline)
		switch {
		case err != nil && !errors.Is(err, os.ErrDeadlineExceeded):
			return nil, 0, failed("capture at bridge "+c.bridge, err)
		case err != nil: // no more for now
			c.over = ended != nil
		case c.until != 0 && f.Time > c.until:
			c.over = true
		default:
			if list = append(list, c.frame(f)); len(list) < captureBatch {
				continue
			}
		}
		missed, err = c.frames.Missed()
		if err != nil {
			return nil, 0, failed("capture at bridge "+c.bridge, err)
		}
		if len(list) > 0 || missed > 0 {
			return list, missed, nil
		}
		if err := c.there(); err != nil {
			return nil, 0, err
		}
	}
	return nil, 0, ctx.Err()
}

// there returns an error if the bridge is not there.
func (c *captureSource) there() error {
	what := "go on with the capture at bridge " + c.bridge
	return c.s.read(func(store *datapath.Store) error {
		b, err := open(store, what, c.bridge)
		if err == nil && b.Config.HashSeed != c.seed {
			err = refused(what, "it was deleted and added again", "start again")
		}
		return err
	})
}

func (c *captureSource) frame(f datapath.Captured) frame.Seen {
	if _, ok := c.names[f.Port]; !ok && !c.asked {
		c.asked = true
		// The frame of a port that has left before has a number for a name. If the
		// bridge has gone, this is found out when no frames are left.
		_ = c.learnNames()
	}
	name, ok := c.names[f.Port]
	if !ok && f.Port != 0 {
		name = fmt.Sprintf("port %d", f.Port)
	}
	seen := frame.Seen{
		Time: c.boot.Add(f.Time), Port: name, VLAN: f.VLAN,
		Data: slices.Clone(f.Data), Length: f.Length,
	}
	switch f.Point {
	case datapath.CaptureOut:
		seen.Direction = frame.Out
	case datapath.CaptureDrop:
		seen.Direction = frame.Dropped
		if reasons := datapath.Reasons(); int(f.Reason) < len(reasons) {
			seen.Reason = reasons[f.Reason]
		}
	}
	return seen
}

// learnNames learns the names of the ports; ports that have left keep theirs.
func (c *captureSource) learnNames() error {
	return c.s.each("capture at bridge "+c.bridge, c.bridge, func(_ string, b *datapath.Bridge) error {
		devices, err := links()
		if err != nil {
			return err
		}
		for _, p := range datapath.Ports(&b.Config) {
			c.names[p.Id] = portName(b, p, devices)
		}
		return nil
	})
}

func (c *captureSource) Close() error {
	var err error
	if c.frames != nil {
		err = c.frames.Close()
	}
	return errors.Join(err, c.stop())
}
