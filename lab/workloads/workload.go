// SPDX-License-Identifier: BSD-2-Clause

// Package workloads sends traffic over a fabric and measures it. Each kind of
// workload is a file of its own.
//
// A workload is named as people ask for it: the kind, and its differences from
// the kind's defaults, as in "tcp-stream:streams=4:offloads".
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

// Workload is something to send over a fabric, and the one figure that is
// measured of it.
type Workload struct {
	// Name is the kind with the parameters that are not the default, without the
	// duration. Parse makes the workload of it.
	Name string
	// About is one line for people.
	About string
	// Unit is the unit of Sample.Value.
	Unit string
	// Lower tells whether a smaller value is the better one.
	Lower bool
	// Needs are the programs that must be installed.
	Needs []ends.Program
	// Takes is about how long one round lasts.
	Takes time.Duration
	// Most is how long one may last, 0 for what follows from Takes: a search
	// may need many times as long where the fabric is slow.
	Most time.Duration
	// Spec is the fabric that it wants.
	Spec fabrics.Spec
	// Exact says that its figure is instructions, and that a round in which a frame
	// is lost has none: nobody has to ask the fabric for lost frames.
	Exact bool
	// Start readies a fabric: servers, counters, addresses.
	Start func(ctx context.Context, n *fabrics.Net) (Session, error)
	// Shares names what Start readies. Workloads with the same name can take turns on one
	// fabric: Join makes a session of what another one has started. Both are empty for those that
	// need a fabric of their own.
	Shares string
	Join   func(started Session) Session
}

// Session is a workload on a fabric, ready to be run round by round.
type Session interface {
	// Run does one round. Round and what is measured of the machine are filled
	// in by the caller, who begins the meter before and ends it after.
	Run(ctx context.Context, m Meter) (report.Sample, error)
	// Close ends what Start began.
	Close() error
}

// Meter reads the machine's effort for a round: CPU time, context switches and
// hardware counters. If Bytes and Frames of a session are of a part of Run, it
// begins the meter anew where that part begins and ends it where the part ends;
// the last time counts.
type Meter interface {
	Begin()
	End()
}

// Limit is when a round is given up: three times what it takes, and half a
// minute for a busy machine, or Most.
func (w *Workload) Limit() time.Duration {
	return cmp.Or(w.Most, 3*w.Takes+30*time.Second)
}

// longest is the most that a round may send for.
const longest = 12 * time.Hour

// mostAddresses is how many addresses a table may be filled with: some hundred
// bytes of memory each.
const mostAddresses = 10_000_000

// crossing runs something that sends from an end and returns how many bytes
// must have entered the fabric there at least, and checks that they have, by the
// counters of the fabric's own device.
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

// Counting is a Session that makes frames itself and counts where they arrive.
type Counting interface {
	// Counter is how, to be read after "frames": "counted by xdp".
	Counter() string
}

// Apart is a Session whose router may have a core of its own.
type Apart interface {
	// RouterCore is the number of the core; own is false where it is not the router's own.
	RouterCore() (cpu int, own bool)
}

// Kind is a workload whose parameters are open.
type Kind struct {
	Name  string
	About string
	// open declares the parameters and returns what makes a workload of them
	// once they are set. It leaves Name to Parse.
	open func(p *pflag.FlagSet) func() (*Workload, error)
}

// Kinds is every kind of workload, in the order in which they are shown.
var Kinds = []*Kind{
	tcpStream, netperfStream, iperf3Streams, udp, latency, crr, uperf,
	pps, manyFlows, firstPackets, routes, throughput, flood,
	learning, learningRate, addressCapacity, addresses, memory, portAdd, pfLoad, pfMemory,
	oneByOne, inBatches, copies,
}

// duration is the parameter that says how long a round sends. It is no part of
// a workload's name: what is measured does not depend on it.
const duration = "duration"

// amount is the parameter that says how much a round sends. It is no part of a workload's
// name either.
const amount = "mebibytes"

// flags opens the kind's parameters.
func (k *Kind) flags() (*pflag.FlagSet, func() (*Workload, error)) {
	fs := pflag.NewFlagSet(k.Name, pflag.ContinueOnError)
	fs.SortFlags = false
	return fs, k.open(fs)
}

// Brief makes a round of a workload last for so many MiB of payload, where its kind
// counts them, or else for a duration.
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

// Params are the kind's parameters.
func (k *Kind) Params() []Param {
	fs, _ := k.flags()
	var out []Param
	fs.VisitAll(func(f *pflag.Flag) {
		out = append(out, Param{f.Name, f.DefValue, f.Usage})
	})
	return out
}

// UnknownError is a kind or parameter that does not exist.
type UnknownError struct {
	What  string // "workload" or "parameter of KIND"
	Name  string
	Known []string
}

func (e *UnknownError) Error() string { return fmt.Sprintf("unknown %s %q", e.What, e.Name) }

// Parse makes a workload of KIND[:PARAMETER[=VALUE]]... An unknown kind or
// parameter gives an UnknownError.
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

// demand says which values a parameter takes, for one that could not be read.
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

// Must is Parse for names that are written in the program.
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
