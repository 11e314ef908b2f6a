// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"bascule/datapath"
)

// A draft is a bridge's next configuration and what surrounds it. Code that plans it
// changes next and tables, and nothing else. The rest is done when the plan is whole.
type draft struct {
	bridge   *datapath.Bridge
	next     *datapath.Config
	tables   datapath.Tables
	pf       *pfConfig // the next configuration of pf, nil for the present one
	plugged  []string  // anchors of plugs that are loaded
	joins    bool      // as [Joining] has it
	force    bool      // as [Switch.Force] has it
	restores bool      // as [Switch.Restoring] has it
	leaves   string    // id of a port that is to have left another bridge by then, "" for none
	reload   bool      // make a new generation even if nothing is different

	recompile bool // pf's rules, even if their ports and addresses stay
	unmended  bool // mend is to go on with what a killed command has left

	late    []func() error         // steps at the end of the plan, which need to know all that is planned
	before  []func() error         // right before the change is made
	settles []uint32               // ports whose devices are looked at then
	undo    []func() error         // undoes before, in reverse, where the change is refused
	after   []func() error         // right after
	far     *draft                 // of the bridge at the other end of a cable that is made, nil for none
	peers   map[string]string      // other ends of such a cable, by the bridge and port of one
	hosts   map[uint32]PortOptions // what the interfaces of host ports get, by id
	texts   map[string]string      // descriptions that devices get, by their names
	others  []*datapath.Bridge     // at the other ends of the patch cables that go with it

	warnings []string
	auto     []uint32 // ports that do without XDP if they must
	vlans    vlanPlan
	world    world

	widowed map[string][]uint32 // ports whose backup leaves, by its name

	more   []Effect          // of the changes, that no State has
	owners map[uint32]*Owner // by port, as planned so far; nil until somebody asks

	berthVLANs map[uint32][]VLANRange // of new berths by id, where they are not those of a new port
}

// warn notes something to tell the caller. Several ports may have the same to tell: it
// is told once.
func (c *draft) warn(warnings ...string) {
	for _, w := range warnings {
		if !slices.Contains(c.warnings, w) {
			c.warnings = append(c.warnings, w)
		}
	}
}

// newDraft returns a draft for a bridge, of which nothing is planned yet.
func newDraft(b *datapath.Bridge) *draft {
	next := b.Config
	return &draft{bridge: b, next: &next}
}

// change makes a change to a bridge. plan says which change, and touches nothing.
func (s *Switch) change(what, name string, plan func(*draft) error) error {
	return s.write(func(store *datapath.Store) error {
		b, err := open(store, what, name)
		if err != nil {
			return err
		}
		c := newDraft(b)
		c.joins, c.force, c.restores = s.joining, s.force, s.restores
		if err := c.planned(what, plan); err != nil {
			return err
		}
		if err := s.checkMemory(what, c.demands()); err != nil {
			return err
		}
		if s.rehearsal != nil {
			return s.rehearsal.draft(name, c)
		}
		if err := c.make(what); err != nil {
			return err
		}
		return s.shrink(store, b, name)
	})
}

// planned plans a change whole.
func (c *draft) planned(what string, plan func(*draft) error) error {
	for _, do := range []func() error{
		func() error { return plan(c) },
		func() error { return inTurn(c.late) },
		func() error { return c.planTables(what) },
		func() error { return c.checkMACs(what) },
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// planTables plans the tables that follow from the ports of the next configuration.
func (c *draft) planTables(what string) error {
	if err := c.planVLANs(what); err != nil {
		return err
	}
	return c.planPF(what)
}

// eachOpen calls f with the bridges of the names that are there and that this build can
// read.
func eachOpen(store *datapath.Store, names []string, f func(name string, b *datapath.Bridge) error) error {
	for _, name := range names {
		b, err := store.Open(name)
		if errors.Is(err, datapath.ErrLayout) || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err == nil {
			err = f(name, b)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// make makes a change that has been planned. If the bridge already is as it is to be,
// it only does what comes after the change.
func (c *draft) make(what string) error {
	different, err := c.different()
	if err != nil {
		return failed(what, err)
	}
	if !different {
		return failed(what, inTurn(append([]func() error{c.ready}, c.after...)))
	}
	if err := c.each((*datapath.Bridge).Begin); err != nil {
		return failed(what, err)
	}
	if err = inTurn(c.before); err == nil {
		err = c.commit()
	}
	if errors.As(err, new(*datapath.UnfinishedError)) {
		return unfinished(what, err)
	}
	if err != nil {
		slices.Reverse(c.undo)
		var left []string
		undo := errors.Join(c.bridge.Relent(follower{func(notes ...string) { left = append(left, notes...) }}), inTurn(c.undo))
		if undo != nil { // the next command tries again
			return failed(what, errors.Join(err, undo))
		}
		if err = errors.Join(err, c.done()); left != nil {
			return because(refused(what, err.Error(), strings.Join(left, "; ")), err)
		}
		return failed(what, err)
	}
	if err := inTurn(c.after); err != nil {
		return unfinished(what, err)
	}
	return failed(what, c.done())
}

// done says that the bridges are as their configurations say.
func (c *draft) done() error {
	if c.unmended {
		return nil
	}
	return c.each((*datapath.Bridge).Done)
}

// inTurn calls functions until one fails.
func inTurn(list []func() error) error {
	for _, f := range list {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// different reports whether there is anything to make.
func (c *draft) different() (bool, error) {
	t := &c.tables
	if c.reload || len(c.before) > 0 || len(c.others) > 0 ||
		t.VLANs != nil || t.Filter != nil || t.Rules != nil || t.Bindings != nil || t.PF != nil || *c.next != c.bridge.Config {
		return true, nil
	}
	// Only a look at the ports' devices tells this.
	err := setXDPUse(c.bridge, c.next)
	return *c.next != c.bridge.Config, err
}

// commit makes the next configuration the bridge's. By then, the devices of its ports
// are ready for its programs. If a port's driver refuses XDP, and nobody has insisted
// on it, the port does without. So does a port whose driver took XDP, and refuses it now.
func (c *draft) commit() error {
	for {
		err := inTurn([]func() error{
			func() error { return setXDPUse(c.bridge, c.next) },
			func() error { return c.bridge.Intend(c.next) },
			c.ready,
			func() error { return c.bridge.Commit(c.next, c.tables, follower{c.warn}) },
		})
		if lost := c.bridge.Unhooked(); err == nil && len(lost) > 0 {
			c.loseXDP(lost)
			continue
		}
		var refusal *datapath.PortError
		if !errors.As(err, &refusal) || errors.As(err, new(*datapath.UnfinishedError)) || !c.withoutXDP(refusal) {
			return err
		}
		if err := c.bridge.Relent(follower{c.warn}); err != nil {
			return err
		}
	}
}

// withoutXDP takes XDP from a port whose driver has refused it, if nobody has insisted
// on it.
func (c *draft) withoutXDP(refusal *datapath.PortError) bool {
	if refusal.Hook != HookXDP {
		return false
	}
	for _, id := range c.auto {
		p := datapath.PortAt(c.next, id)
		if p == nil || p.Notes&datapath.PortXDP == 0 || datapath.PortName(p) != refusal.Port {
			continue
		}
		setBits(&p.Notes, datapath.PortXDP, false)
		setBits(&p.Taken, givenBackWithXDP, false)
		c.warn(refusal.Port + ": " + refusal.Err.Error() + "; it forwards by tcx alone")
		return true
	}
	return false
}

// loseXDP makes the change, which is made, one that takes XDP from ports that have lost
// it.
func (c *draft) loseXDP(lost []*datapath.PortError) {
	next := c.bridge.Config
	c.next, c.tables = &next, datapath.Tables{}
	for _, p := range datapath.Ports(c.next) {
		i := slices.IndexFunc(lost, func(refusal *datapath.PortError) bool { return refusal.Port == datapath.PortName(p) })
		if i < 0 {
			continue
		}
		setBits(&p.Notes, datapath.PortXDP, false)
		setBits(&p.Taken, givenBackWithXDP, false)
		c.warn(lost[i].Port + ": " + lost[i].Err.Error() + "; it forwards by tcx alone")
	}
}

// each calls f for the bridge that is changed, and for the others concerned.
func (c *draft) each(f func(*datapath.Bridge) error) error {
	err := f(c.bridge)
	for _, b := range c.others {
		err = errors.Join(err, f(b))
	}
	return err
}
