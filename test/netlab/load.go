// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// A Flow is a series of frames of one kind from one end to others.
type Flow struct {
	From     *End
	Dst, Src MAC
	To       []*End

	// Frame makes the frame with a number, as it is sent and as it arrives. If it is nil,
	// these are the same: NewFrame's.
	Frame func(number uint32) (sent, arrives Frame)
}

func (f Flow) frame(number uint32) (sent, arrives Frame) {
	if f.Frame != nil {
		return f.Frame(number)
	}
	sent = NewFrame(f.Dst, f.Src, number, minLen)
	return sent, sent
}

// A Load sends frames continuously while a test does something else. None may be lost, and none
// may arrive at a wrong place. A round of frames does not count if the host has lost some of
// them because a queue was full: see backlog.
type Load struct {
	delivered atomic.Int64
	failed    atomic.Bool
	others    func(Frame) bool    // reports whether a frame does not belong to the load; nil if all do
	lost      func() (int, error) // returns the number of frames that the host may have lost since the last call
	given     map[Frame]bool      // frames that were given up
	patience  time.Duration
	stop      chan struct{}
	result    chan error
}

// loadWindow is the number of frames of each flow that are on their way at a time.
const loadWindow = 16

// StartLoad sends the flows' frames until Stop. Only the load may use the watched ends
// meanwhile. They must include all sources and destinations of the flows.
func (l *Lab) StartLoad(watched []*End, flows ...Flow) *Load {
	l.t.Helper()
	return l.StartLoadAmong(nil, watched, flows...)
}

// StartLoadAmong is like StartLoad, but the watched ends receive other frames, too. Frames for
// which others returns true are not counted.
func (l *Lab) StartLoadAmong(others func(Frame) bool, watched []*End, flows ...Flow) *Load {
	l.t.Helper()
	var devices []interfaceOf
	for _, e := range watched {
		l.must(e.discard())
		devices = append(devices, e.near(), e.far())
	}
	backlog, err := newBacklog(devices...)
	l.must(err)
	return startLoad(&Load{others: others, lost: backlog.lost, patience: lost}, watched, flows)
}

func startLoad(load *Load, watched []*End, flows []Flow) *Load {
	load.given, load.stop, load.result = map[Frame]bool{}, make(chan struct{}), make(chan error, 1)
	go func() {
		err := load.run(watched, flows)
		load.failed.Store(err != nil)
		load.result <- err
	}()
	return load
}

// pace is the time from the beginning of a round of frames to the next. A round takes less than
// half of it. Without a pause a load would occupy one processor, which commands that change the
// switch would lack.
const pace = time.Second / 2000

func (load *Load) run(watched []*End, flows []Flow) error {
	// One CPU sends and queues all frames. The thread stays on it, so that each call need
	// not set it.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return onCPU(watched[0].cpu, func() error {
		in := newBatch()
		next := time.Now()
		for number := uint32(1 << 31); ; {
			select {
			case <-load.stop:
				return nil
			case <-time.After(time.Until(next)):
			}
			next = time.Now().Add(pace)
			want := map[*End][]Frame{}
			copies := 1
			for _, flow := range flows {
				frames, arrive := make([]Frame, loadWindow), make([]Frame, loadWindow)
				for i := range frames {
					number++
					frames[i], arrive[i] = flow.frame(number)
				}
				for _, e := range flow.To {
					want[e] = append(want[e], arrive...)
				}
				copies = max(copies, len(flow.To))
				if err := flow.From.sendMany(frames); err != nil {
					return err
				}
			}
			n, err := load.collect(watched, want, copies, in)
			if err != nil {
				return err
			}
			load.delivered.Add(int64(n))
		}
	})
}

// collect waits until every frame has arrived at its destinations, or until the host may have
// lost the missing ones. If one frame is lost, it may be missing at as many ends as it has
// copies. It returns the number of frames that have arrived, or 0 if some were lost.
func (load *Load) collect(watched []*End, want map[*End][]Frame, copies int, in *batch) (n int, err error) {
	late := time.Now().Add(load.patience)
	got := map[*End][]Frame{}
	hostLost := 0
	for {
		isLate := time.Now().After(late)
		n = 0
		missing := 0
		wait := -1
		for _, e := range watched {
			if got[e], err = load.receive(e, got[e], in); err != nil {
				return 0, err
			}
			n += len(got[e])
			if lacks := len(want[e]) - len(got[e]); lacks > 0 {
				missing += lacks
				wait = e.fd
			}
		}
		if missing == 0 || isLate { // lost; the frames are listed below
			break
		}
		if hostLost > 0 && hostLost*copies >= missing {
			return 0, load.give(watched, got, want)
		}
		err := await(wait, time.Now().Add(lookEvery))
		switch {
		case errors.Is(err, unix.ETIMEDOUT):
			lost, err := load.lost()
			if err != nil {
				return 0, err
			}
			hostLost += lost
		case err != nil:
			return 0, err
		}
	}
	var errs []error
	for _, e := range watched {
		if err := compare(got[e], want[e]); err != nil {
			errs = append(errs, fmt.Errorf("under load, after %d frames, at %s: %w", load.delivered.Load(), e.Port, err))
		}
		errs = append(errs, e.checkOverflow())
	}
	if err = errors.Join(errs...); err != nil {
		err = fmt.Errorf("%w; counters:\n%s", err, counters(watched...))
	}
	return n, err
}

// receive appends the frames that an end has received since then.
func (load *Load) receive(e *End, got []Frame, in *batch) ([]Frame, error) {
	for {
		arrived, err := in.receive(e.Socket)
		if err != nil {
			return nil, err
		}
		for _, f := range arrived {
			if (load.others == nil || !load.others(f)) && !load.given[f] {
				got = append(got, f)
			}
		}
		if len(arrived) < len(in.messages) {
			return got, nil
		}
	}
}

// give gives up the frames that have not arrived. The others must be right.
func (load *Load) give(watched []*End, got, want map[*End][]Frame) error {
	for _, e := range watched {
		came := map[Frame]bool{}
		for _, f := range got[e] {
			came[f] = true
		}
		var arrived []Frame
		for _, f := range want[e] {
			if came[f] {
				arrived = append(arrived, f)
			}
			load.given[f] = true
		}
		if err := compare(got[e], arrived); err != nil {
			return fmt.Errorf("under load, after %d frames, at %s: %w", load.delivered.Load(), e.Port, err)
		}
	}
	return nil
}

// lookEvery is the interval at which a missing frame is compared with the frames that the host
// has lost.
const lookEvery = 50 * time.Millisecond

// lost is the time after which a missing frame counts as lost. It is shorter than the patience
// of tests that wait for the flow, so that the load reports the frame.
const lost = patience / 2

// Delivered returns the number of frames that have arrived at their destinations.
func (load *Load) Delivered() int64 { return load.delivered.Load() }

// Flowing returns a condition to wait for: n more frames than now have arrived, or the load has
// failed.
func (load *Load) Flowing(n int64) func() bool {
	goal := load.delivered.Load() + n
	return func() bool { return load.delivered.Load() >= goal || load.failed.Load() }
}

// Failed reports whether a frame was lost or misdirected.
func (load *Load) Failed() bool { return load.failed.Load() }

// Stop ends the load. The error lists the first frames that were lost or misdirected.
func (load *Load) Stop() error {
	close(load.stop)
	return <-load.result
}
