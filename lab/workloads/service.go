// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"cmp"
	"context"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// service is a server that a session needs in every round.
type service struct {
	start  func() (ends.Server, error)
	server ends.Server // nil if it could not be restarted
}

// serve starts a server at the second end. The server ends with ctx.
func serve(ctx context.Context, n *fabrics.Net, cpu int, on ends.Listen, name string, args ...string) (*service, error) {
	s := &service{start: func() (ends.Server, error) { return n.Ends[1].At.Serve(ctx, cpu, on, name, args...) }}
	var err error
	s.server, err = s.start()
	return s, err
}

// settle is the delay after a client's failure until the end of its server may become known: its
// connections close before the process ends.
const settle = 200 * time.Millisecond

// with runs a round with the server. It restarts the server if it has ended since the last round.
// If the server ends, the round's context ends, and the round fails for that reason. A client error
// is then only a consequence.
func (s *service) with(ctx context.Context, round func(context.Context) (report.Sample, error)) (report.Sample, error) {
	if s.server == nil || s.server.Ended(ctx, 0) != nil {
		if err := s.restart(); err != nil {
			return report.Sample{}, err
		}
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched, unwatch := context.WithCancel(ctx)
	defer unwatch()
	gone := make(chan error, 1)
	go func() {
		err := s.server.Ended(watched, longest)
		if err != nil {
			cancel()
		}
		gone <- err
	}()
	sample, err := round(ctx)
	if err != nil {
		select {
		case ended := <-gone:
			return sample, cmp.Or(ended, err)
		case <-time.After(settle):
		}
	}
	unwatch()
	return sample, cmp.Or(<-gone, err)
}

func (s *service) restart() error {
	if err := s.Close(); err != nil {
		return err
	}
	server, err := s.start()
	if err == nil {
		s.server = server
	}
	return err
}

// Close ends the server.
func (s *service) Close() error {
	server := s.server
	if server == nil {
		return nil
	}
	s.server = nil
	return server.Close()
}
