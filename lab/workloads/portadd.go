// SPDX-License-Identifier: BSD-2-Clause

package workloads

import (
	"context"
	"fmt"
	"time"

	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// PortAdd is the time of the command that adds a port to a bridge with many.
type PortAdd struct {
	Ports int // that the bridge has before
}

// Name is port-add-PORTS.
func (w PortAdd) Name() string { return fmt.Sprintf("port-add-%d", w.Ports) }

// About is one line for people.
func (w PortAdd) About() string {
	return fmt.Sprintf("the command that adds a port to a bridge with %d ports, from its start to its end", w.Ports)
}

// Unit is milliseconds.
func (w PortAdd) Unit() string { return "ms" }

// Lower is true.
func (w PortAdd) Lower() bool { return true }

// Needs ip, which is the command of the Linux bridge.
func (w PortAdd) Needs() []string { return []string{"ip"} }

// Takes is what two commands take.
func (w PortAdd) Takes() time.Duration { return 100 * time.Millisecond }

// Spec asks for one port more than the bridge has before.
func (w PortAdd) Spec() fabrics.Spec { return fabrics.Spec{Ends: w.Ports + 1, Together: true} }

// Start has nothing to ready.
func (w PortAdd) Start(_ context.Context, n *fabrics.Net) (Session, error) {
	return portAdd{n}, nil
}

type portAdd struct{ net *fabrics.Net }

// Run takes the last port away and times its return.
func (p portAdd) Run(ctx context.Context) (report.Sample, error) {
	last := p.net.Ports[len(p.net.Ports)-1].Ifname
	if err := p.net.DelPort(ctx, last); err != nil {
		return report.Sample{}, err
	}
	begin := time.Now()
	if err := p.net.AddPort(ctx, last); err != nil {
		return report.Sample{}, err
	}
	return report.Sample{Value: float64(time.Since(begin).Nanoseconds()) / 1e6}, nil
}

// Close has nothing to do.
func (p portAdd) Close() error { return nil }
