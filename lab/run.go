// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"bascule/lab/ends"
	"bascule/lab/fabrics"
	"bascule/lab/guests"
	"bascule/lab/report"
	"bascule/lab/workloads"
)

// Run measures a profile. When ctx ends, it stops, removes its objects, and returns the results so far; Complete of the
// report is then false. The error is a reason why the lab cannot measure anything.
func Run(ctx context.Context, site fabrics.Site, p Profile, progress *Progress) (*report.Report, error) {
	progress.begin(p)
	defer progress.end()
	r := runHere(ctx, site, p, progress)
	r.Figures = figures(p.Targets, r.Groups)
	var err error
	r.Claims, err = claims(p.Claims, r.Groups, r.Machine)
	return r, err
}

// runHere measures the groups of a profile, without an evaluation.
func runHere(ctx context.Context, site fabrics.Site, p Profile, progress *Progress) *report.Report {
	begin := time.Now()
	r := &report.Report{Profile: p.Name, Started: begin.UTC().Truncate(time.Second), Machine: Machine(site)}
	r.Fabrics = drawings(p.Groups)
	counters := openCounters(hardware)
	defer counters.close()
	r.Machine.Counters = counters != nil
	if removed, err := site.RemoveLeftovers(); err != nil {
		progress.note("leftovers of earlier runs: " + err.Error())
	} else if len(removed) > 0 {
		progress.note("removed what an earlier run left: " + strings.Join(removed, ", "))
	}
	site.Guests = guests.NewPool(site.Bascule, guestPrograms(p)...)
	for _, g := range p.Groups {
		if ctx.Err() != nil {
			break
		}
		measured := runGroup(ctx, site, g, counters, progress)
		r.Groups = append(r.Groups, measured)
		progress.group(measured)
	}
	r.Machine.Guests = site.Guests.Accelerator()
	if err := site.Guests.Close(); err != nil {
		progress.note(err.Error())
	}
	// Modules may have been loaded during the run.
	r.Machine.KernelOVS = haveKernelOVS()
	r.Complete = ctx.Err() == nil
	r.Seconds = time.Since(begin).Seconds()
	return r
}

// drawings describes each fabric of the groups once, and once more if its ends are both namespaces and virtual
// machines.
func drawings(groups []Group) []report.Fabric {
	type drawn struct {
		fabric *fabrics.Fabric
		guests bool
	}
	var out []report.Fabric
	seen := map[drawn]bool{}
	for _, g := range groups {
		for _, c := range g.Cases {
			f, what := c.Fabric, drawn{c.Fabric, c.Setup.Guests}
			if seen[what] {
				continue
			}
			seen[what] = true
			d := report.Fabric{Name: f.Name, About: f.About, Path: f.Path, HostPath: f.HostPath}
			if what.guests {
				d.About += "; its ends are virtual machines"
				d.Path, d.HostPath = fabrics.GuestPath(f.Path), fabrics.GuestPath(f.HostPath)
			}
			out = append(out, d)
		}
	}
	return out
}

// guestPrograms returns the commands that the profile's virtual machines need.
func guestPrograms(p Profile) []string {
	var out []string
	for _, g := range p.Groups {
		for _, c := range g.Cases {
			if !c.Setup.Guests {
				continue
			}
			for _, need := range c.Workload.Needs {
				out = append(out, need.Command)
			}
		}
	}
	return out
}

// running is a case whose fabric and workload have been started.
type running struct {
	Case
	result  *report.Case
	net     *fabrics.Net
	session workloads.Session
	shared  bool // the net belongs to another case, which closes it
	row     int  // consecutive failed rounds
}

// patience is the number of consecutive failed rounds after which a case is abandoned.
const patience = 3

// fail records the reason for a missing sample.
func (c *running) fail(err error) {
	c.result.Error = err.Error()
	c.result.Failed++
	c.row++
}

// result returns the case without measurements.
func (c Case) result() *report.Case {
	w := c.Workload
	return &report.Case{Label: c.Label(), Fabric: c.Fabric.Name, Workload: w.Name, Setup: c.Setup.String(), Unit: w.Unit, Lower: w.Lower}
}

func runGroup(ctx context.Context, site fabrics.Site, g Group, counters *counters, progress *Progress) *report.Group {
	begin := time.Now()
	out := &report.Group{Name: g.Name, About: g.About, Rounds: g.Rounds}
	var cases []*running
	for _, c := range g.Cases {
		result := c.result()
		out.Cases = append(out.Cases, result)
		cases = append(cases, &running{Case: c, result: result})
	}
	defer func() {
		out.Seconds = time.Since(begin).Seconds()
	}()
	defer func() {
		progress.say(g.Name + ": cleaning up")
		for _, c := range cases {
			if err := c.close(); err != nil {
				progress.note(err.Error())
			}
		}
	}()
	for _, c := range cases {
		if ctx.Err() != nil {
			return out
		}
		if c.join(cases) {
			continue
		}
		progress.say(fmt.Sprintf("%s: building %s", g.Name, c.Fabric.Name))
		var unavailable *ends.Unavailable
		switch err := c.start(ctx, site); {
		case err == nil || ctx.Err() != nil:
		case errors.As(err, &unavailable):
			c.result.Skipped = unavailable.Reason
			c.row = patience
			progress.note(fmt.Sprintf("%s is left out: %s", c.Label(), unavailable.Reason))
		default:
			c.fail(err)
			c.row = patience
			progress.note(fmt.Sprintf("%s cannot be measured: %v", c.Label(), err))
		}
	}
	// Round 0 is the warm-up.
	for round := 0; round <= g.Rounds; round++ {
		for _, c := range inTurn(cases, round) {
			if ctx.Err() != nil {
				return out
			}
			if c.row < patience {
				c.round(ctx, round, g, counters, progress)
			}
			progress.did(c.Workload.Takes)
		}
	}
	out.More = decide(ctx, g, out, cases, counters, progress)
	return out
}

// decide continues with the cases of pairs that the rounds of the group have not decided, and returns the number of
// additional rounds.
func decide(ctx context.Context, g Group, measured *report.Group, cases []*running, counters *counters, progress *Progress) int {
	until := time.Now().Add(g.deciding())
	for more := 1; ; more++ {
		undecided := g.undecided(measured)
		if ctx.Err() != nil || len(undecided) == 0 || time.Now().After(until) {
			return more - 1
		}
		for _, c := range inTurn(cases, g.Rounds+more) {
			switch {
			case ctx.Err() != nil:
				return more
			case !undecided[c.Label()]:
			case c.row >= patience:
				// The case has no more rounds, so no pair with it can be decided.
				return more - 1
			default:
				c.round(ctx, g.Rounds+more, g, counters, progress)
			}
		}
	}
}

// shares reports whether two cases can take turns on one fabric.
func (c Case) shares(other Case) bool {
	return c.Workload.Shares != "" && c.Workload.Shares == other.Workload.Shares && c.Fabric == other.Fabric && c.spec() == other.spec()
}

// join uses the fabric of another case, with everything that was started there. It returns false if no case can share.
func (c *running) join(others []*running) bool {
	for _, o := range others {
		if o.session != nil && o.shares(c.Case) {
			c.net, c.shared = o.net, true
			c.result.Notes = o.result.Notes
			c.session = c.Workload.Join(o.session)
			return true
		}
	}
	return false
}

// start builds the case's fabric and starts its workload.
func (c *running) start(ctx context.Context, site fabrics.Site) error {
	err := ends.Installed(c.Workload.Needs...)
	if err != nil {
		return err
	}
	if c.net, err = c.Fabric.Build(ctx, site, c.spec()); err != nil {
		return err
	}
	c.result.Notes = c.net.Notes
	session, err := c.Workload.Start(ctx, c.net)
	if err != nil {
		return err // session may be an interface with a nil pointer, which is not nil
	}
	c.session = session
	if s, ok := c.session.(workloads.Counting); ok {
		c.result.Counter = s.Counter()
	}
	return nil
}

func (c *running) round(ctx context.Context, round int, g Group, counters *counters, progress *Progress) {
	what := "warm-up"
	if round > 0 {
		what = fmt.Sprintf("round %d of %d", round, g.Rounds)
	}
	if round > g.Rounds {
		what = fmt.Sprintf("round %d, to decide a claim", round)
	}
	progress.say(fmt.Sprintf("%s: %s", c.Label(), what))
	s, err := c.measure(ctx, counters)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		c.fail(err)
		progress.note(fmt.Sprintf("%s: %v", c.Label(), err))
		return
	}
	c.row = 0
	if round == 0 {
		return
	}
	s.Round = round
	c.result.Samples = append(c.result.Samples, s)
}

// settle is the delay after a failure until its cause may become known: a program's resources disappear before the
// program ends.
const settle = 500 * time.Millisecond

// measure runs a round within its time limit. If a required part of the fabric has ended, that is the error, and the
// case is abandoned.
func (c *running) measure(ctx context.Context, counters *counters) (report.Sample, error) {
	watched, cancel := c.net.Watch(ctx)
	defer cancel()
	limit := c.Workload.Limit()
	late := fmt.Errorf("it did not end in time: a round was given %v", limit)
	inTime, cancel := context.WithTimeoutCause(watched, limit, late)
	defer cancel()
	s, err := c.sample(inTime, counters)
	if err == nil || ctx.Err() != nil {
		return s, err
	}
	if context.Cause(inTime) == late {
		err = late
	}
	select {
	case <-watched.Done():
	case <-time.After(settle):
	}
	if ended := c.net.Ended(); ended != nil {
		err = ended
		c.row = patience // the part does not return
	}
	return s, err
}

// sample runs a round and adds the machine's work in that time.
func (c *running) sample(ctx context.Context, counters *counters) (report.Sample, error) {
	m := &meter{counters: counters}
	if c.Workload.Exact {
		return c.session.Run(ctx, m)
	}
	// Reading lost frames is outside the measured time.
	lost, err := c.net.Drops()
	if err != nil {
		return report.Sample{}, err
	}
	m.Begin()
	s, err := c.session.Run(ctx, m)
	if err != nil {
		return s, err
	}
	if err := m.put(&s); err != nil {
		return s, err
	}
	if a, ok := c.session.(workloads.Apart); ok {
		if cpu, own := a.RouterCore(); own && cpu < len(s.Cores) {
			// No program of the lab runs on this core.
			s.More[report.RouterCore] = 100 * (s.Cores[cpu].System + s.Cores[cpu].Softirq)
		}
	}
	lostThen, err := c.net.Drops()
	if err != nil {
		return s, err
	}
	for where, count := range lostThen {
		// A device that was replaced during the round may count from zero.
		if count > lost[where] {
			if s.Drops == nil {
				s.Drops = map[string]uint64{}
			}
			s.Drops[where] = count - lost[where]
		}
	}
	return s, nil
}

// meter measures the machine's work. It implements workloads.Meter.
type meter struct {
	counters    *counters
	from, to    ticks
	others      [2]float64 // time of other programs until then
	first, last counted
	ended       bool
	err         error // of a reading
}

// Begin implements workloads.Meter.
func (m *meter) Begin() {
	m.ended = false
	// It reads every process, so it stays outside the measurement.
	m.others[0] = othersTime()
	m.from, m.err = cpuTime()
	m.first = m.counters.read()
}

// End implements workloads.Meter.
func (m *meter) End() {
	if m.ended || m.err != nil {
		return
	}
	m.ended = true
	m.last = m.counters.read()
	m.to, m.err = cpuTime()
	m.others[1] = othersTime()
}

// put ends the meter, unless the session has done so, and adds its results to a sample.
func (m *meter) put(s *report.Sample) error {
	m.End()
	if m.err != nil {
		return m.err
	}
	m.last.since(m.first, s)
	m.to.since(m.from, s)
	s.CPU.Others = max(0, (m.others[1]-m.others[0])/hz/s.Seconds)
	return nil
}

func (c *running) close() error {
	var errs []error
	if c.session != nil {
		errs = append(errs, c.session.Close())
	}
	if c.net != nil && !c.shared {
		errs = append(errs, c.net.Close())
	}
	return errors.Join(errs...)
}

// figures computes the figures for targets from the measurements.
func figures(targets []Target, groups []*report.Group) []report.Figure {
	var out []report.Figure
	for _, t := range targets {
		f := report.Figure{
			Name: t.Name, Of: t.Of, Against: t.Against, OfLess: t.OfLess, AgainstLess: t.AgainstLess,
			Unit: t.Unit, Lower: t.Lower, Must: t.Must, Aim: t.Aim,
		}
		values, why := t.values(groups)
		if len(values) > 0 {
			s := report.SpreadOf(values)
			f.Got = &s
		}
		f.Why = why
		out = append(out, f)
	}
	return out
}

// values returns the figure's values in all rounds; why is the reason if there are none.
func (t Target) values(groups []*report.Group) (values []float64, why string) {
	for _, g := range groups {
		if g.Name != t.Group {
			continue
		}
		var cases [4]*report.Case
		for i, label := range []string{t.Of, t.Against, t.OfLess, t.AgainstLess} {
			c := g.Case(label)
			if c == nil && label != "" {
				return nil, "left out"
			}
			if c != nil && c.Error != "" {
				why = c.Error
			}
			cases[i] = c
		}
		of, against := cases[0].Less(cases[2]), cases[1].Less(cases[3])
		switch {
		case t.Against == "":
			for _, s := range of.Samples {
				if v, ok := s.Pick(t.Value); ok {
					values = append(values, v)
				}
			}
		case t.Invert:
			values = report.Ratios(against, of, t.Value)
		default:
			values = report.Ratios(of, against, t.Value)
		}
		return values, why
	}
	return nil, "left out"
}
