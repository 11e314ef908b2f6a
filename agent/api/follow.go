// SPDX-License-Identifier: BSD-2-Clause

package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"mime"
	"net/http"
	"reflect"
	"sync"
	"time"

	"bascule/agent/doors"
	"bascule/answer"
	"bascule/bridge"
	"bascule/frame"
	"bascule/rates"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
)

// aliveTime is the period of a message on an idle stream, by which the loss of a client is
// noticed.
const aliveTime = 15 * time.Second

// A feed sends the events of a stream.
type feed struct {
	mu sync.Mutex
	w  http.ResponseWriter
}

// send sends an event (WHATWG HTML, Server-sent events): its data is one line of JSON.
func (f *feed) send(name string, line []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := doors.Extend(f.w); err != nil {
		return err
	}
	if name != "" {
		if _, err := fmt.Fprintf(f.w, "event: %s\n", name); err != nil {
			return err
		}
	}
	for _, part := range [][]byte{[]byte("data: "), line} {
		if _, err := f.w.Write(part); err != nil {
			return err
		}
	}
	return f.end()
}

// An event of several streams, which is converted to JSON once, when the first stream
// sends it.
type told[T any] struct {
	value T
	line  func() ([]byte, error)
}

func tell[T any](v T) told[T] {
	return told[T]{v, sync.OnceValues(func() ([]byte, error) { return lineOf(v) })}
}

// lineOf returns a value as a line of JSON, with a newline.
func lineOf(v any) ([]byte, error) {
	var b bytes.Buffer
	err := marshal(&b, v)
	return b.Bytes(), err
}

// alive sends an empty comment.
func (f *feed) alive() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := doors.Extend(f.w); err != nil {
		return err
	}
	if _, err := f.w.Write([]byte(":\n")); err != nil {
		return err
	}
	return f.end()
}

func (f *feed) end() error {
	if _, err := f.w.Write([]byte("\n")); err != nil {
		return err
	}
	return http.NewResponseController(f.w).Flush()
}

// follow adds a stream of events of type T: the lines that a command prints with -j. begin
// checks the request, and returns the function that sends events until ctx ends.
func follow[I, T any](a *API, path, summary string, begin func(ctx context.Context, s *bridge.Switch, in *I) (run func(context.Context, func(told[T]) error) error, err error)) {
	item := a.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[T](), true, "Item")
	op := huma.Operation{
		Method: http.MethodGet, Path: path, Summary: summary, Metadata: map[string]any{isStream: true},
		OperationID: path[1:], Tags: []string{path[1:]},
		Responses: map[string]*huma.Response{"200": {
			Description: "Server-sent events. The data of each is of this schema. An event named error has a problem as its data, and is the last.",
			Content:     map[string]*huma.MediaType{"text/event-stream": {Schema: item}},
		}},
	}
	huma.Register(a.huma, op, func(ctx context.Context, in *I) (*huma.StreamResponse, error) {
		s, err := a.switchOf(ctx, any(in).(located).netns())
		if err != nil {
			return nil, err
		}
		run, err := begin(ctx, s, in)
		if err != nil {
			return nil, problem(err)
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			_, w := humago.Unwrap(hc)
			w.Header().Set("Content-Type", "text/event-stream")
			ctx, cancel := context.WithCancel(hc.Context())
			defer cancel()
			to := &feed{w: w}
			if to.alive() != nil {
				return
			}
			var beats sync.WaitGroup
			defer beats.Wait()
			beats.Go(func() {
				defer cancel()
				for beat := time.NewTicker(aliveTime); ; {
					select {
					case <-ctx.Done():
						beat.Stop()
						return
					case <-beat.C:
						if to.alive() != nil {
							return
						}
					}
				}
			})
			err := run(ctx, func(v told[T]) error {
				line, err := v.line()
				if err != nil {
					return err
				}
				return to.send("", line)
			})
			if err != nil && ctx.Err() == nil {
				if line, err := lineOf(problem(err)); err == nil {
					_ = to.send("error", line)
				}
			}
			cancel()
		}}, nil
	})
}

// OfRates chooses the rates to follow.
type OfRates struct {
	OfPort
	Interval float64 `query:"interval" default:"1" minimum:"0.5" maximum:"3600" doc:"seconds between two readings"`
}

// OfCapture chooses the frames to capture.
type OfCapture struct {
	Where
	Bridge  string   `query:"bridge" required:"true" maxLength:"64" doc:"the bridge"`
	Port    []string `query:"port,explode" maxItems:"256" doc:"only frames at this port; may be given several times"`
	Dropped bool     `query:"dropped" doc:"only frames that were dropped"`
	Snaplen int      `query:"snaplen" default:"16384" minimum:"18" maximum:"16384" doc:"bytes that are kept of each frame"`
	Count   int      `query:"count" default:"10000" minimum:"1" maximum:"1000000" doc:"stop after this many frames"`
	Seconds float64  `query:"seconds" default:"60" minimum:"0.1" maximum:"3600" doc:"stop after this time"`
}

func (a *API) follows() {
	follow(a, "/monitor", "events of bridges as they happen", func(_ context.Context, s *bridge.Switch, in *OfBridge) (func(context.Context, func(told[answer.Event]) error) error, error) {
		if in.Bridge != "" {
			if _, err := s.Bridge(in.Bridge); err != nil {
				return nil, err
			}
		}
		return func(ctx context.Context, send func(told[answer.Event]) error) error {
			if in.Bridge == "" {
				return a.watches.follow(ctx, s, send)
			}
			return s.Monitor(ctx, in.Bridge, func(e bridge.Event) error { return send(tell(answer.OfEvent(e))) })
		}, nil
	})
	follow(a, "/pflog", "packets that rules of pf have logged", func(_ context.Context, s *bridge.Switch, in *OfPF) (func(context.Context, func(told[answer.Logged]) error) error, error) {
		if _, err := s.Bridge(in.Bridge); err != nil {
			return nil, err
		}
		return func(ctx context.Context, send func(told[answer.Logged]) error) error {
			_, err := s.PFLog(ctx, in.Bridge, func(l bridge.PFLogged) error { return send(tell(answer.OfLogged(l))) })
			return err
		}, nil
	})
	follow(a, "/rates", "rates of ports, again and again", func(_ context.Context, s *bridge.Switch, in *OfRates) (func(context.Context, func(told[[]answer.Rates]) error) error, error) {
		if _, err := portsOf(s, in.OfPort); err != nil {
			return nil, err
		}
		every := time.Duration(in.Interval * float64(time.Second))
		return func(ctx context.Context, send func(told[[]answer.Rates]) error) error {
			return a.meters.follow(ctx, s, in.Netns, every, func(all told[[]answer.Rates]) error {
				if in.Bridge == "" && in.Port == "" {
					return send(all)
				}
				mine := []answer.Rates{}
				for _, r := range all.value {
					if (in.Bridge == "" || r.Bridge == in.Bridge) && (in.Port == "" || r.Name == in.Port) {
						mine = append(mine, r)
					}
				}
				return send(tell(mine))
			})
		}, nil
	})
	a.captures()
}

// meters are readings of counters, shared by several streams.
type meters struct {
	mu  sync.Mutex
	all map[meterKey]*meter
}

type meterKey struct {
	s     *bridge.Switch
	netns string
	every time.Duration
}

// A meter reads the ports of a namespace periodically as long as a stream needs it.
type meter struct {
	clients int
	end     context.CancelFunc
	mu      sync.Mutex
	next    chan struct{} // closed at the next update of list and err
	list    told[[]answer.Rates]
	err     error
}

// follow calls f with each reading until ctx ends.
func (m *meters) follow(ctx context.Context, s *bridge.Switch, netns string, every time.Duration, f func(told[[]answer.Rates]) error) error {
	key := meterKey{s, netns, every}
	m.mu.Lock()
	r := m.all[key]
	if r == nil {
		if m.all == nil {
			m.all = map[meterKey]*meter{}
		}
		run, end := context.WithCancel(context.Background())
		r = &meter{end: end, next: make(chan struct{})}
		m.all[key] = r
		go r.run(run, s, every)
	}
	r.clients++
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		if r.clients--; r.clients == 0 {
			r.end()
			delete(m.all, key)
		}
	}()
	for {
		r.mu.Lock()
		next := r.next
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return nil
		case <-next:
		}
		r.mu.Lock()
		list, err := r.list, r.err
		r.mu.Unlock()
		if err == nil {
			err = f(list)
		}
		if err != nil {
			return err
		}
	}
}

func (r *meter) run(ctx context.Context, s *bridge.Switch, every time.Duration) {
	var of rates.Meter
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		list, err := s.Ports("")
		now := time.Now()
		if ports, _, elapsed := of.Read(now, list, nil); err != nil || !first {
			r.mu.Lock()
			r.list = tell(answer.List(ports, func(p rates.Port) answer.Rates { return answer.OfRates(p, now, elapsed) }))
			r.err = err
			close(r.next)
			r.next = make(chan struct{})
			r.mu.Unlock()
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// captures adds the download of a capture.
func (a *API) captures() {
	op := huma.Operation{
		Method: http.MethodGet, Path: "/capture", OperationID: "capture", Tags: []string{"capture"},
		Summary: "frames in, out and dropped, as pcapng", Metadata: map[string]any{isStream: true},
		Responses: map[string]*huma.Response{"200": {
			Description: "A file of frames, which ends by count or seconds, or when the client ends it.",
			Content:     map[string]*huma.MediaType{"application/x-pcapng": {Schema: &huma.Schema{Type: "string", Format: "binary"}}},
		}},
	}
	huma.Register(a.huma, op, func(ctx context.Context, in *OfCapture) (*huma.StreamResponse, error) {
		s, err := a.switchOf(ctx, in.Netns)
		if err != nil {
			return nil, err
		}
		all, err := frame.Compile("", in.Snaplen)
		if err != nil {
			return nil, err
		}
		source, err := s.Capture(ctx, in.Bridge, bridge.CaptureOptions{
			Ports: in.Port, Dropped: in.Dropped, Filter: all, Snaplen: in.Snaplen, Buffer: bridge.DefaultCaptureBuffer,
		})
		if err != nil {
			return nil, problem(err)
		}
		return &huma.StreamResponse{Body: func(hc huma.Context) {
			defer source.Close()
			_, w := humago.Unwrap(hc)
			w.Header().Set("Content-Type", "application/x-pcapng")
			w.Header().Set("Content-Disposition", mime.FormatMediaType("attachment", map[string]string{"filename": in.Bridge + ".pcapng"}))
			ctx, cancel := context.WithTimeout(hc.Context(), time.Duration(in.Seconds*float64(time.Second)))
			defer cancel()
			_ = capture(ctx, source, w, in)
		}}, nil
	})
}

// capture writes frames until the requested number is reached, ctx ends, or the client has
// gone.
func capture(ctx context.Context, source frame.Source, w http.ResponseWriter, in *OfCapture) error {
	to, err := frame.NewPcapng(flushed{w}, in.Bridge, "", in.Snaplen)
	for left := in.Count; err == nil && left > 0; {
		var frames []frame.Seen
		var missed uint64
		if frames, missed, err = source.Next(ctx); err != nil {
			if ctx.Err() != nil {
				err = nil
			}
			break
		}
		frames = frames[:min(len(frames), left)]
		left -= len(frames)
		err = to.Write(frames, missed)
	}
	return errors.Join(err, to.Close())
}

// flushed sends written bytes at once.
type flushed struct{ w http.ResponseWriter }

func (f flushed) Write(b []byte) (int, error) {
	if err := doors.Extend(f.w); err != nil {
		return 0, err
	}
	n, err := f.w.Write(b)
	if err == nil {
		err = http.NewResponseController(f.w).Flush()
	}
	return n, err
}
