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
	Ports   []string          // only frames at these ports; nil for all
	Dropped bool              // only frames that were dropped
	Filter  []unix.SockFilter // only frames that this matches; see frame.Compile
	Snaplen int               // bytes kept of each frame, frame.MinSnaplen to frame.MaxSnaplen
	Buffer  int               // bytes of the buffer between the datapath and the reader
}

// Capture starts a capture at the ports of a bridge, which lasts until its source is closed. A
// bridge has one capture at a time. The error is a *[UsageError] if o.Snaplen is out of range.
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
		if source.frames != nil { // opened by an earlier try
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

// ringSize returns the size of a ring buffer for at least n bytes: a power of two, and whole pages.
func ringSize(n int) uint32 {
	return max(1<<bits.Len(uint(n-1)), uint32(unix.Getpagesize()))
}

// captureSource is a running capture.
type captureSource struct {
	s      *Switch
	bridge string
	seed   uint64 // the bridge's hash seed: a deleted and added bridge has another
	frames *datapath.Frames
	stop   func() error
	boot   time.Time         // when clock.Monotonic was 0
	names  map[uint32]string // of ports by ID
	asked  bool              // names were read again since Next was called
	until  time.Duration     // when the context of Next ended, 0 before
	over   bool              // all frames until then have been read
}

// captureBatch is the maximum number of frames that Next returns.
const captureBatch = 256

// captureLook is how often Next checks whether its context has ended.
const captureLook = 100 * time.Millisecond

// Next returns captured frames. It returns all frames that were captured before ctx ended,
// and only then the error of ctx.
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
		case err != nil: // no more frames at present
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
		// A number stands for the name of a port that has already left. If the bridge has
		// gone, the method there returns the error when no frames are left.
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

// learnNames reads the names of the ports. Ports that have left keep their names here.
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
