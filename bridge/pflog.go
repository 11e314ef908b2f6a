// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"bascule/clock"
	"bascule/datapath"
	"bascule/pf"
	"bascule/pflog"
)

// pfLogLook is how often PFLog checks whether the bridge has changed.
const pfLogLook = 100 * time.Millisecond

// PFLog reports each packet that pf of a bridge logs, until ctx ends. A bridge has one reader of
// its log at a time. It reports all packets that were logged before ctx ended, also after that. missed
// is the number of packets that came faster than they were reported. An error of report is returned
// as it is.
func (s *Switch) PFLog(ctx context.Context, bridge string, report func(PFLogged) error) (missed uint64, err error) {
	what := "read the log of pf of " + bridge
	l := &pfLogNames{boot: time.Now().Add(-clock.Monotonic())}
	l.look = func() error {
		return s.viewPF(bridge, func(v *pfView) error {
			if !v.loaded {
				return refused(what, "no rules are loaded", "load some with 'bascule pfctl -f'")
			}
			l.view = v
			return nil
		})
	}
	missing := func() (n uint64, err error) {
		err = s.each(what, bridge, func(_ string, b *datapath.Bridge) (err error) {
			if b.PFLoaded() {
				n, err = b.PFLogMissed()
			}
			return err
		})
		return n, err
	}
	if err := l.look(); err != nil {
		return 0, err
	}
	seed := l.view.b.Config.HashSeed
	first, err := missing()
	if err != nil {
		return 0, err
	}
	since := clock.Monotonic()
	var told error // of report
	tell := func(p datapath.PFLogged) error {
		told = report(l.record(p))
		return told
	}
	for ctx.Err() == nil {
		b := l.view.b
		if b.Config.HashSeed != seed {
			return 0, refused("go on to "+what, "the bridge was deleted and added again", "start again")
		}
		err := b.PFLog(untilChanged(ctx, b), since, tell)
		switch {
		case told != nil:
			return 0, told
		case errors.Is(err, datapath.ErrWatched):
			return 0, refused(what, "another program reads it", "wait until it ends")
		case err != nil && (b.Current() || !errors.Is(err, fs.ErrNotExist)): // else it has just been changed
			return 0, failed(what, err)
		}
		if err := l.look(); err != nil {
			return 0, err
		}
	}
	err = l.view.b.PFLogRest(since, tell)
	switch {
	case told != nil:
		return 0, told
	case errors.Is(err, datapath.ErrWatched): // by the next reader, which takes the rest
	case err != nil:
		return 0, failed(what, err)
	}
	missed, err = missing()
	return missed - min(first, missed), err
}

// untilChanged returns a context that also ends when the bridge changes, because a change may move
// the log.
func untilChanged(ctx context.Context, b *datapath.Bridge) context.Context {
	until, stop := context.WithCancel(ctx)
	go func() {
		defer stop()
		for b.Current() {
			select {
			case <-ctx.Done():
				return
			case <-time.After(pfLogLook):
			}
		}
	}()
	return until
}

// pfLogNames resolves the names for packets of the log.
type pfLogNames struct {
	view *pfView
	boot time.Time    // when clock.Monotonic was 0
	look func() error // reads the bridge again
	last uint16       // ruleset of the last call of look
}

// pfReasons maps the datapath's reasons to drop a packet to pf's.
var pfReasons = map[string]pflog.Reason{
	"pf-state": pflog.StateMismatch, "pf-limit": pflog.StateLimit, "pf-short": pflog.Short,
	"pf-fragment": pflog.Fragment, "pf-options": pflog.Options, "pf-synproxy": pflog.Synproxy,
	"pf-normalize": pflog.Normalize, "pf-translate": pflog.Translate, "pf-route": pflog.NoRoute, "pf-divert": pflog.NoRoute,
	"pf-timestamp": pflog.Timestamp,
}

func (l *pfLogNames) record(p datapath.PFLogged) PFLogged {
	if p.Ruleset != l.view.b.Config.Pf.Ruleset && p.Ruleset != l.last {
		l.last = p.Ruleset
		_ = l.look() // if this fails, the packet is reported without its rule
	}
	v := l.view
	r := pflog.Record{
		Time: l.boot.Add(p.Time), Interface: v.ports[p.Port].Name, Rule: -1, Subrule: pflog.NoSubrule,
		Action: map[datapath.PFAction]pflog.Action{
			datapath.PFPass: pflog.Pass, datapath.PFBlock: pflog.Block, datapath.PFMatch: pflog.Match,
		}[p.Action],
		Out: p.Out, Family: p.Family, Length: p.Length, Data: p.Data,
	}
	if reasons := datapath.Reasons(); int(p.Reason) < len(reasons) {
		r.Reason = pfReasons[reasons[p.Reason]]
	}
	// rules of former rulesets are unknown
	if ref := v.rule(p.Rule); ref != nil && p.Ruleset == v.b.Config.Pf.Ruleset {
		r.Rule, r.Identifier = ref.Index, ref.Rule.ID
		if ref.Anchor != "" {
			r.Ruleset, r.Rule, r.Subrule = ref.Anchor, v.caller(ref.Anchor), ref.Index
		}
	}
	return PFLogged{r, p.LogTo}
}

// caller returns the number of the main ruleset's rule that calls the anchor at path, or an anchor
// above it, or -1 if no rule does.
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
