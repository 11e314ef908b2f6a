// SPDX-License-Identifier: BSD-2-Clause

// Package workloads sends traffic over a fabric and measures it. Each kind of
// workload has a separate file.
//
// The name of a workload is its kind with the differences from the kind's defaults, as in
// "tcp-stream:streams=4:offloads".
package workloads

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/report"
)

// Workload is traffic for a fabric, with one measured figure.
type Workload struct {
	// Name is the kind with the parameters that differ from the defaults, without the duration.
	// Parse converts it back to the workload.
	Name string
	// About is a description in one line.
	About string
	// Unit is the unit of Sample.Value.
	Unit string
	// Lower means that a smaller value is better.
	Lower bool
	// Needs lists the programs that must be installed.
	Needs []ends.Program
	// Takes is the approximate duration of a round.
	Takes time.Duration
	// Most limits the duration of a round, 0 for a limit that depends on Takes: a search may need
	// many times as long on a slow fabric.
	Most time.Duration
	// Spec has the requirements for the fabric.
	Spec fabrics.Spec
	// Exact means that the figure is in instructions, and that a round with a lost frame has
	// none: the fabric's drop counters are not needed.
	Exact bool
	// Start prepares a fabric: servers, counters, addresses.
	Start func(ctx context.Context, n *fabrics.Net) (Session, error)
	// Shares names the preparation by Start. Workloads with the same name can take turns on one
	// fabric: Join makes a session from the preparation of another one. Both are empty for
	// workloads that need a separate fabric.
	Shares string
	Join   func(started Session) Session
}

// Session is a workload on a fabric, ready to run round by round.
type Session interface {
	// Run runs one round. The caller sets Round and the measurements of the machine, and begins
	// the meter before and ends it after.
	Run(ctx context.Context, m Meter) (report.Sample, error)
	// Close reverts Start.
	Close() error
}

// Meter measures the machine's work in a round: CPU time, context switches and hardware counters. If
// a session's Bytes and Frames cover only a part of Run, it begins the meter again at the start of
// that part and ends it at its end; the last time counts.
type Meter interface {
	Begin()
	End()
}

// Limit returns the timeout of a round: Most, or three times Takes plus half a minute for a busy
// machine.
func (w *Workload) Limit() time.Duration {
	return cmp.Or(w.Most, 3*w.Takes+30*time.Second)
}

// longest limits the sending time of a round.
const longest = 12 * time.Hour

// mostAddresses limits the addresses in a table: each one takes some hundred bytes of memory.
const mostAddresses = 10_000_000

// crossing runs send, which sends from an end and returns the minimum number of bytes that must have
// entered the fabric there, and checks it with the counters of the fabric's own device.
func crossing(n *fabrics.Net, from int, send func() (bytes float64, err error)) error {
	before, err := n.Crossed(from)
	if err != nil {
		return err
	}
	want, err := send()
	if err != nil {
		return err
	}
	after, err := n.Crossed(from)
	if err == nil && float64(after-before) < want {
		err = fmt.Errorf("fabric %s: %.0f bytes arrived, but only %d crossed it", n.Fabric.Name, want, after-before)
	}
	return err
}

// Counting is a Session that makes frames itself and counts their arrival.
type Counting interface {
	// Counter describes how, in words that follow "frames": "counted by xdp".
	Counter() string
}

// Apart is a Session whose router may have a separate core.
type Apart interface {
	// RouterCore returns the number of the core; own is false if the router shares it.
	RouterCore() (cpu int, own bool)
}

// Kind is a workload with free parameters.
type Kind struct {
	Name  string
	About string
	// open declares the parameters and returns a function that makes a workload after they are
	// set. Parse sets Name.
	open func(p *pflag.FlagSet) func() (*Workload, error)
}

// Kinds lists every kind of workload in display order.
var Kinds = []*Kind{
	tcpStream, netperfStream, iperf3Streams, udp, latency, crr, uperf,
	pps, manyFlows, firstPackets, routes, throughput, flood,
	learning, learningRate, addressCapacity, addresses, memory, portAdd, pfLoad, pfMemory,
	oneByOne, inBatches, copies,
}

// duration is the parameter for the sending time of a round. It is not part of a workload's name,
// because the result does not depend on it.
const duration = "duration"

// amount is the parameter for the size of a round. It is not part of a workload's name either.
const amount = "mebibytes"

// flags declares the kind's parameters.
func (k *Kind) flags() (*pflag.FlagSet, func() (*Workload, error)) {
	fs := pflag.NewFlagSet(k.Name, pflag.ContinueOnError)
	fs.SortFlags = false
	return fs, k.open(fs)
}

// Brief changes a workload's round to the given MiB of payload, if its kind counts them, or else to a
// duration.
func Brief(text string, mebibytes int, length string) string {
	name, _, _ := strings.Cut(text, ":")
	for _, k := range Kinds {
		if k.Name == name && slices.ContainsFunc(k.Params(), func(p Param) bool { return p.Name == amount }) {
			return fmt.Sprintf("%s:%s=%d", text, amount, mebibytes)
		}
	}
	return text + ":" + duration + "=" + length
}

// Param is a parameter of a kind.
type Param struct {
	Name    string
	Default string
	About   string
}

// Params returns the kind's parameters.
func (k *Kind) Params() []Param {
	fs, _ := k.flags()
	var out []Param
	fs.VisitAll(func(f *pflag.Flag) {
		out = append(out, Param{f.Name, f.DefValue, f.Usage})
	})
	return out
}

// UnknownError is an unknown kind or parameter.
type UnknownError struct {
	What  string // "workload" or "parameter of KIND"
	Name  string
	Known []string
}

func (e *UnknownError) Error() string { return fmt.Sprintf("unknown %s %q", e.What, e.Name) }

// Parse parses a workload in the form KIND[:PARAMETER[=VALUE]]... An unknown kind or parameter gives
// an UnknownError.
func Parse(text string) (*Workload, error) {
	name, rest, _ := strings.Cut(text, ":")
	i := slices.IndexFunc(Kinds, func(k *Kind) bool { return k.Name == name })
	if i < 0 {
		var known []string
		for _, k := range Kinds {
			known = append(known, k.Name)
		}
		return nil, &UnknownError{"workload", name, known}
	}
	fs, finish := Kinds[i].flags()
	for part := range strings.SplitSeq(rest, ":") {
		if part == "" {
			continue
		}
		key, value, ok := strings.Cut(part, "=")
		f := fs.Lookup(key)
		if f == nil {
			var known []string
			fs.VisitAll(func(f *pflag.Flag) { known = append(known, f.Name) })
			return nil, &UnknownError{"parameter of " + name, key, known}
		}
		if !ok {
			value = f.NoOptDefVal
		}
		if err := fs.Set(key, value); err != nil {
			return nil, fmt.Errorf("workload %s: %s=%s: %s", name, key, value, demand(f, err))
		}
	}
	w, err := finish()
	if err != nil {
		return nil, fmt.Errorf("workload %s: %w", text, err)
	}
	w.Name = name
	fs.VisitAll(func(f *pflag.Flag) {
		switch value := f.Value.String(); {
		case f.Name == duration || f.Name == amount || value == f.DefValue:
		case value == f.NoOptDefVal:
			w.Name += ":" + f.Name
		default:
			w.Name += ":" + f.Name + "=" + value
		}
	})
	return w, nil
}

// demand describes the valid values of a parameter, after an invalid one.
func demand(f *pflag.Flag, err error) string {
	switch {
	case errors.Is(err, strconv.ErrRange):
		return "the number is too large"
	case f.Value.Type() == "int" || f.Value.Type() == "float64":
		return "give a number"
	case f.Value.Type() == "bool":
		return "give true or false"
	case f.Value.Type() == "duration":
		return "give a duration such as 2s"
	}
	return err.Error()
}

// Must is Parse for constant names.
func Must(text string) *Workload {
	w, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return w
}

// The programs that workloads use.
var (
	iperf3   = ends.Program{Command: "iperf3", Package: "iperf3"}
	sockperf = ends.Program{Command: "sockperf", Package: "sockperf"}
)
