// SPDX-License-Identifier: BSD-2-Clause

package lab

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
	"golang.org/x/sys/unix"

	"bascule/lab/report"
)

// Progress shows how far the lab is: on a terminal one line that is redrawn, otherwise a line for
// each round.
type Progress struct {
	out   io.Writer
	shown io.Writer     // destination of finished groups; nil for none
	bars  *mpb.Progress // nil if out is not a terminal
	bar   *mpb.Bar
	now   atomic.Pointer[string]
	mu    sync.Mutex
	total time.Duration
	done  time.Duration
	notes []string
	relay func(told) // alternative destination of all messages; nil for none
}

// A message of Progress; only one of its fields is set.
type told struct {
	Say   string        `json:"say,omitempty"`
	Note  string        `json:"note,omitempty"`
	Group *report.Group `json:"-"`
	Did   time.Duration `json:"did,omitempty"`
}

// Messages of another lab about its own work are shown like local ones.
func (p *Progress) tell(t told) {
	switch {
	case t.Say != "":
		p.say(t.Say)
	case t.Note != "":
		p.note(t.Note)
	case t.Did != 0:
		p.did(t.Did)
	}
}

// relayed returns a Progress that passes messages on.
func relayed(relay func(told)) *Progress {
	p := NewProgress(nil)
	p.relay = relay
	return p
}

// NewProgress shows progress on out; nil means not at all.
func NewProgress(out io.Writer) *Progress {
	if out == nil {
		out = io.Discard
	}
	return &Progress{out: out}
}

// terminal reports whether a line on out can be redrawn.
func terminal(out io.Writer) bool {
	f, ok := out.(*os.File)
	if !ok {
		return false
	}
	// Some terminals do not report their width: a line cannot be redrawn there.
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	return err == nil && size.Col > 0
}

// begin starts the line of a profile, whose total comes from its rounds.
func (p *Progress) begin(profile Profile) {
	for _, g := range profile.Groups {
		for _, c := range g.Cases {
			p.total += time.Duration(g.Rounds+1) * c.Workload.Takes
		}
	}
	if !terminal(p.out) {
		return
	}
	// Few updates, to keep the cost out of the measurements.
	p.bars = mpb.New(mpb.WithOutput(p.out), mpb.WithWidth(24), mpb.WithRefreshRate(500*time.Millisecond))
	p.bar = p.bars.AddBar(p.total.Milliseconds(),
		mpb.BarRemoveOnComplete(),
		mpb.PrependDecorators(decor.Percentage(decor.WC{W: 5})),
		mpb.AppendDecorators(
			decor.Any(func(decor.Statistics) string {
				p.mu.Lock()
				left := p.total - p.done
				p.mu.Unlock()
				what := ""
				if s := p.now.Load(); s != nil {
					what = *s
				}
				return fmt.Sprintf("%v left  %s", left.Round(time.Second), what)
			})))
}

// say shows the present step.
func (p *Progress) say(what string) {
	if p.relay != nil {
		p.relay(told{Say: what})
		return
	}
	p.now.Store(&what)
	if p.bars == nil {
		p.mu.Lock()
		fmt.Fprintf(p.out, "lab: %3.0f%% %s\n", 100*p.done.Seconds()/max(p.total.Seconds(), 1e-9), what)
		p.mu.Unlock()
	}
}

// ShowGroups prints the table of every group on w right after its measurement.
func (p *Progress) ShowGroups(w io.Writer) { p.shown = w }

// group shows the results of a group.
func (p *Progress) group(g *report.Group) {
	if p.relay != nil {
		p.relay(told{Group: g})
		return
	}
	if p.shown == nil {
		return
	}
	w := p.shown
	if p.bars != nil && terminal(w) {
		// Both are on the same screen: print above the redrawn line.
		w = p.bars
	}
	// The report still has the lines if standard output fails.
	_ = g.WriteText(w)
}

// note records a message that stays visible.
func (p *Progress) note(what string) {
	what = strings.Join(strings.Fields(what), " ")
	if p.relay != nil {
		p.relay(told{Note: what})
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.bars != nil {
		p.notes = append(p.notes, what)
		return
	}
	fmt.Fprintf(p.out, "lab: %s\n", what)
}

// did adds finished work.
func (p *Progress) did(d time.Duration) {
	if p.relay != nil {
		p.relay(told{Did: d})
		return
	}
	p.mu.Lock()
	p.done = min(p.done+d, p.total)
	done := p.done
	p.mu.Unlock()
	if p.bar != nil {
		p.bar.SetCurrent(done.Milliseconds())
	}
}

// end removes the line and prints the notes.
func (p *Progress) end() {
	if p.bars == nil {
		return
	}
	p.bar.Abort(true)
	p.bars.Wait()
	for _, n := range p.notes {
		fmt.Fprintf(p.out, "lab: %s\n", n)
	}
	p.notes = nil
}
