// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"context"
	"errors"
	"strings"
	"time"

	"bascule/datapath"
	"bascule/pf"
	"bascule/pflog"
)

// pfLogLook is how often PFLog looks whether the bridge has changed.
const pfLogLook = 100 * time.Millisecond

// PFLog reports each packet that pf of a bridge logs, until ctx ends. A bridge
// has one reader of its log at a time. It returns how many packets were missed
// because they came faster than they were reported.
func (s *Switch) PFLog(ctx context.Context, bridge string, report func(PFLogged) error) (missed uint64, err error) {
	what := "read the log of pf of " + bridge
	l := &pfLogNames{boot: time.Now().Add(-monotonic())}
	var first uint64
	var seed uint64
	for begun := false; ; begun = true {
		var b *datapath.Bridge
		err := s.viewPF(bridge, func(v *pfView) (err error) {
			if !v.loaded {
				return refused(what, "no rules are loaded", "load some with 'bascule pfctl -f'")
			}
			b, l.view = v.b, v
			missed, err = b.PFLogMissed()
			return err
		})
		if err != nil {
			return 0, err
		}
		if !begun {
			first, seed = missed, b.Config.HashSeed
		}
		if b.Config.HashSeed != seed {
			return 0, refused("go on to "+what, "the bridge has been made anew", "begin again")
		}
		// a change may have given the log another place
		until, stop := context.WithCancel(ctx)
		go func() {
			defer stop()
			for ctx.Err() == nil && b.Current() {
				select {
				case <-until.Done():
					return
				case <-time.After(pfLogLook):
				}
			}
		}()
		err = b.PFLog(until, func(p datapath.PFLogged) error { return report(l.record(p)) })
		stop()
		switch {
		case errors.Is(err, datapath.ErrWatched):
			return 0, refused(what, "somebody else reads it", "wait until that ends")
		case err != nil:
			return 0, err
		case ctx.Err() != nil:
			missed, err = b.PFLogMissed()
			return missed - min(first, missed), err
		}
	}
}

// pfLogNames knows what packets of the log are about.
type pfLogNames struct {
	view *pfView
	boot time.Time // when CLOCK_MONOTONIC was 0
}

// pfReasons are pf's words for why a packet is dropped, by ours.
var pfReasons = map[string]pflog.Reason{
	"pf-state": pflog.StateMismatch, "pf-limit": pflog.StateLimit, "pf-short": pflog.Short,
	"pf-fragment": pflog.Fragment, "pf-options": pflog.Options, "pf-synproxy": pflog.Synproxy,
}

func (l *pfLogNames) record(p datapath.PFLogged) PFLogged {
	v := l.view
	r := pflog.Record{
		Time: l.boot.Add(p.Time), Interface: v.names[p.Port], Rule: -1, Subrule: pflog.NoSubrule,
		Action: map[datapath.PFAction]pflog.Action{
			datapath.PFPass: pflog.Pass, datapath.PFBlock: pflog.Block, datapath.PFMatch: pflog.Match,
		}[p.Action],
		Out: p.Out, Family: p.Family, Length: p.Length, Data: p.Data,
	}
	if reasons := datapath.Reasons(); int(p.Reason) < len(reasons) {
		r.Reason = pfReasons[reasons[p.Reason]]
	}
	// a rule of another ruleset is not known any more, or not yet
	if ref := v.rule(p.Rule); ref != nil && p.Ruleset == v.b.Config.Pf.Ruleset {
		r.Rule = ref.Index
		if ref.Anchor != "" {
			r.Ruleset, r.Rule, r.Subrule = ref.Anchor, v.caller(ref.Anchor), ref.Index
		}
	}
	return PFLogged{r, p.LogTo}
}

// caller returns the number of the main ruleset's rule that calls the anchor at
// path, or one that it is below; -1 if none does.
func (v *pfView) caller(path string) int {
	for i := range v.main.Rules {
		r := &v.main.Rules[i]
		if r.Anchor == nil {
			continue
		}
		at := pf.BodyPath("", i, r)
		if above, all := strings.CutSuffix(at, "*"); all && strings.HasPrefix(path, above) || path == at || strings.HasPrefix(path, at+"/") {
			return i
		}
	}
	return -1
}
