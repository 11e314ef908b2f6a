// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"context"

	"bascule/capture"

	"golang.org/x/sys/unix"
)

// The sizes of a capture's buffer, in bytes.
const (
	MinCaptureBuffer     = 64 << 10
	DefaultCaptureBuffer = 4 << 20
	MaxCaptureBuffer     = 1 << 30
)

// CaptureOptions say what a capture takes.
type CaptureOptions struct {
	Ports   []string          // only frames at these ports; none for all
	Dropped bool              // only frames that were dropped
	Filter  []unix.SockFilter // only frames that this wants; capture.Compile makes it
	Snaplen int               // bytes kept of each frame, 1 to capture.MaxSnaplen
	Buffer  int               // bytes between the datapath and who reads
}

// Capture begins a capture at the ports of a bridge, which lasts until its
// source is closed. Any number can run.
func (s *Switch) Capture(_ context.Context, bridge string, o CaptureOptions) (capture.Source, error) {
	if _, err := s.Bridge(bridge); err != nil {
		return nil, err
	}
	return nil, refused("capture at bridge "+bridge, "the datapath shows no frames yet", "use tcpdump at its ports")
}
