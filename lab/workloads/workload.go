// SPDX-License-Identifier: BSD-2-Clause

// Package workloads sends traffic over a fabric and measures it. Each workload
// is a file of its own.
package workloads

import (
	"context"
	"time"

	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// Workload is something to send over a fabric, and the one figure that is
// measured of it.
type Workload interface {
	// Name is short and unique; it says what is sent and how.
	Name() string
	// About is one line for people.
	About() string
	// Unit is what Sample.Value counts.
	Unit() string
	// Lower tells whether a smaller value is the better one.
	Lower() bool
	// Needs are the programs that must be installed.
	Needs() []string
	// Takes is about how long one round lasts.
	Takes() time.Duration
	// Spec is the fabric that it wants.
	Spec() fabrics.Spec
	// Start readies a fabric: servers, counters, addresses.
	Start(ctx context.Context, n *fabrics.Net) (Session, error)
}

// Session is a workload on a fabric, ready to be run round by round.
type Session interface {
	// Run does one round. Round and CPU of the sample are filled in by the
	// caller.
	Run(ctx context.Context) (report.Sample, error)
	// Close ends what Start began.
	Close() error
}

// Counting is a Session that counts frames where they arrive.
type Counting interface {
	// Counter is where it counts: "xdp", in the driver, for fabrics that
	// deliver XDP frames, or "tcx", above it, for those that deliver packet
	// buffers. Each is the cheapest that misses none.
	Counter() string
}
