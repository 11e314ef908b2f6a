// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"io/fs"
	"slices"
	"strings"

	"bascule/datapath"
)

// A draft is a bridge's next configuration and what surrounds it. Code that plans a change writes
// to next and tables only. All other steps follow when the plan is complete.
type draft struct {
	bridge   *datapath.Bridge
	next     *datapath.Config
	tables   datapath.Tables
	pf       *pfConfig // the next configuration of pf, nil for the present one
	plugged  []string  // anchors of plugs that are loaded
	joins    bool      // see [Joining]
	force    bool      // see [Switch.Force]
	restores bool      // see [Switch.Restoring]
	leaves   string    // id of a port that will have left another bridge by then, "" for none
	reload   bool      // make a new generation even if nothing is different

	recompile bool // pf's rules, even if their ports and addresses stay the same
	unmended  bool // mend has to continue a killed command's change

	late    []func() error         // steps at the end of the plan, which need the complete plan
	before  []func() error         // right before the change is made
	settles []uint32               // ports whose devices are examined then
	undo    []func() error         // undoes before, in reverse order, if the change is refused
	after   []func() error         // right after
	far     *draft                 // of the bridge at the other end of a new cable, nil for none
	peers   map[string]string      // the other end of such a cable, by bridge and port of each end
	hosts   map[uint32]PortOptions // options for the interfaces of host ports, by id
	texts   map[string]string      // new descriptions of devices, by their names
	others  []*datapath.Bridge     // at the other ends of patch cables that change, too

	warnings []string
	auto     []uint32 // ports whose hook is automatic: they can lose XDP
	vlans    vlanPlan
	world    world

	widowed map[string][]uint32 // ports whose backup leaves, by the backup's name

	more   []Effect          // of the changes, in addition to the difference of two States
	owners map[uint32]*Owner // by port, as planned so far; nil until needed

	berthVLANs map[uint32][]VLANRange // of new berths by id, if not the VLANs of a new port
}

// warn adds warnings for the caller. A warning that several ports have in common appears once.
func (c *draft) warn(warnings ...string) {
	for _, w := range warnings {
		if !slices.Contains(c.warnings, w) {
			c.warnings = append(c.warnings, w)
		}
	}
}

// newDraft returns an empty plan for a bridge.
func newDraft(b *datapath.Bridge) *draft {
	next := b.Config
	return &draft{bridge: b, next: &next}
}

// change makes a change to a bridge. plan describes the change, and writes to the draft only.
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

// planned makes a complete plan.
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

// planTables plans the tables that depend on the ports of the next configuration.
func (c *draft) planTables(what string) error {
	if err := c.planVLANs(what); err != nil {
		return err
	}
	return c.planPF(what)
}

// eachOpen calls f for each bridge in names that exists and that this build can read.
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

// make makes a planned change. If the bridge already has the planned state, only the steps after
// the change are run.
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

// done records that the bridges agree with their configurations.
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

// different reports whether the plan differs from the present state.
func (c *draft) different() (bool, error) {
	t := &c.tables
	if c.reload || len(c.before) > 0 || len(c.others) > 0 ||
		t.VLANs != nil || t.Filter != nil || t.Rules != nil || t.Bindings != nil || t.PF != nil || *c.next != c.bridge.Config {
		return true, nil
	}
	// This needs a look at the ports' devices.
	err := setXDPUse(c.bridge, c.next)
	return *c.next != c.bridge.Config, err
}

// commit makes the next configuration the bridge's. By then, the devices of its ports are ready for
// its programs. If a port's driver refuses XDP, and the port's hook is automatic, the port uses tcx
// alone. The same holds for a port whose driver once accepted XDP, and refuses it now.
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

// withoutXDP plans a port without XDP, because its driver has refused it. It returns false if the
// port has to have XDP.
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

// loseXDP plans a second change, which takes XDP from ports that have lost it in the first.
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

// each calls f for the changed bridge, and for the others that change with it.
func (c *draft) each(f func(*datapath.Bridge) error) error {
	err := f(c.bridge)
	for _, b := range c.others {
		err = errors.Join(err, f(b))
	}
	return err
}
