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

// A Flow is frames of one kind from one end to others.
type Flow struct {
	From     *End
	Dst, Src MAC
	To       []*End

	// Frame makes a frame with a number as it is sent, and as it arrives. Without
	// it these are the same, and NewFrame's.
	Frame func(number uint32) (sent, arrives Frame)
}

func (f Flow) frame(number uint32) (sent, arrives Frame) {
	if f.Frame != nil {
		return f.Frame(number)
	}
	sent = NewFrame(f.Dst, f.Src, number, minLen)
	return sent, sent
}

// A Load is frames that are sent all the time while a test does something
// else. None may be lost, none arrive where it should not.
type Load struct {
	delivered atomic.Int64
	failed    atomic.Bool
	others    func(Frame) bool // frames that are not the load's, nil for none
	stop      chan struct{}
	result    chan error
}

// loadWindow is how many frames of each flow are under way at a time.
const loadWindow = 16

// StartLoad sends the flows' frames until Stop. Only the load may use the
// watched ends meanwhile; they must be all ends that frames go to or come from,
// and may be more.
func (l *Lab) StartLoad(watched []*End, flows ...Flow) *Load {
	l.t.Helper()
	return l.StartLoadAmong(nil, watched, flows...)
}

// StartLoadAmong is StartLoad where the watched ends get other frames, too:
// those of which others says so, which are not counted.
func (l *Lab) StartLoadAmong(others func(Frame) bool, watched []*End, flows ...Flow) *Load {
	l.t.Helper()
	load := &Load{others: others, stop: make(chan struct{}), result: make(chan error, 1)}
	for _, e := range watched {
		l.must(e.discard())
	}
	go func() {
		err := load.run(watched, flows)
		load.failed.Store(err != nil)
		load.result <- err
	}()
	return load
}

// pace is the time from the beginning of a round of frames to that of the next. A
// round takes less than half of it. Without a pause a load would have a processor to
// itself, which the commands that change the switch then lack.
const pace = time.Second / 2000

func (load *Load) run(watched []*End, flows []Flow) error {
	// All that is sent and queued is so on one CPU, which need not be said each time.
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
			left := 0
			for _, flow := range flows {
				frames, arrive := make([]Frame, loadWindow), make([]Frame, loadWindow)
				for i := range frames {
					number++
					frames[i], arrive[i] = flow.frame(number)
				}
				for _, e := range flow.To {
					want[e] = append(want[e], arrive...)
					left += len(frames)
				}
				if err := flow.From.sendMany(frames); err != nil {
					return err
				}
			}
			if err := load.collect(watched, want, in); err != nil {
				return err
			}
			load.delivered.Add(int64(left))
		}
	})
}

// collect waits until every frame has arrived where it should.
func (load *Load) collect(watched []*End, want map[*End][]Frame, in *batch) error {
	deadline := time.Now().Add(lost)
	got := map[*End][]Frame{}
	for _, e := range watched {
		for {
			late := time.Now().After(deadline)
			arrived, err := in.receive(e.Socket)
			if err != nil {
				return err
			}
			for _, f := range arrived {
				if load.others == nil || !load.others(f) {
					got[e] = append(got[e], f)
				}
			}
			if len(arrived) == len(in.messages) {
				continue // there may be more
			}
			if len(got[e]) >= len(want[e]) || late { // lost; say which below
				break
			}
			if err := await(e.fd, deadline); err != nil && !errors.Is(err, unix.ETIMEDOUT) {
				return err
			}
		}
	}
	var errs []error
	for _, e := range watched {
		if err := compare(got[e], want[e]); err != nil {
			errs = append(errs, fmt.Errorf("under load, after %d frames, at %s: %w", load.delivered.Load(), e.Port, err))
		}
		errs = append(errs, e.checkOverflow())
	}
	return errors.Join(errs...)
}

// lost is after how long a frame is lost that has not arrived: before those that
// wait for the flow lose their patience, so that the test says which.
const lost = patience / 2

// Delivered is how many frames have arrived, where they should.
func (load *Load) Delivered() int64 { return load.delivered.Load() }

// Flowing is a condition to wait for: that n more frames have arrived than
// now, or that the load has failed.
func (load *Load) Flowing(n int64) func() bool {
	goal := load.delivered.Load() + n
	return func() bool { return load.delivered.Load() >= goal || load.failed.Load() }
}

// Failed reports whether a frame was lost or went astray.
func (load *Load) Failed() bool { return load.failed.Load() }

// Stop ends the load. The error is about the first frames that were lost or
// went astray.
func (load *Load) Stop() error {
	close(load.stop)
	return <-load.result
}
