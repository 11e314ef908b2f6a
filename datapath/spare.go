// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// The spare takes turns with a bridge's programs. It consists of the programs of the
// former generation, which were made for the same configuration. A change that needs no
// new programs exchanges the bridge's programs for the spare. The spare has settings of
// its own, and tables of its own if a change makes these anew. They are written while
// no frame is in the spare's programs. Then the spare is a generation like one that was
// loaded. A frame meets one of the two sets of programs, so it never meets half of a
// change.
//
// The spare is in a folder of its own. Once everything in it matches the next
// generation, the folder is renamed to that generation's name. A command that is killed
// before that leaves a spare, whose tables may have any contents. A command that is
// killed after it leaves a generation that is not made current.
const sparePin = "spare"

// errNoSpare reports that a change needs new programs.
var errNoSpare = errors.New("no spare fits")

// sameProgram reports whether two configurations have the same specialised programs.
func sameProgram(c, other *Config) bool {
	return compiledIn(&c.kernelConfig) == compiledIn(&other.kernelConfig) && ported(c) == ported(other) && anyXDP(c) == anyXDP(other) &&
		patched(c) == patched(other)
}

// spares reports whether a generation of c, made with t after b, leaves a spare: its
// programs use the tables of b's programs, except for tables that each set has for
// itself.
func (b *Bridge) spares(c *Config, t Tables) bool {
	if b.gen == "" || b.store.Locked || !sameProgram(c, &b.Config) {
		return false
	}
	if t.Filter != nil || t.Bindings != nil || t.PF != nil && b.largeRules(t.PF) {
		return false
	}
	// A capture has its filter in the programs, and watches one generation.
	return kernelFeature(c.Features)&kernelFeatureFEATURE_CAPTURE == 0
}

// keepSpare makes a generation that is no longer the bridge's the spare, if it leaves
// one. It cannot be read as a generation again: the rename removes it in one step.
func (b *Bridge) keepSpare(gen string, spares bool) error {
	if err := os.RemoveAll(b.pin(sparePin)); err != nil || !spares {
		return err
	}
	return os.Rename(b.pin(gen), b.pin(sparePin))
}

// reuse makes the next generation out of the spare. The error is errNoSpare if no spare
// fits.
func (b *Bridge) reuse(c *Config, t Tables) (g *generation, err error) {
	if !b.spares(c, t) {
		return nil, errNoSpare
	}
	if _, err := os.Stat(b.pin(sparePin, build())); err != nil {
		return nil, errNoSpare
	}
	g, err = b.openSpare(c)
	if err == nil {
		err = quiesce()
	}
	if err == nil {
		err = g.rewrite(b, c, t)
	}
	if err != nil {
		if g != nil {
			g.Close()
		}
		return nil, err
	}
	g.name, g.spare = b.nextGeneration(), true
	return g, nil
}

// openSpare opens the spare, if it was made for this configuration.
func (b *Bridge) openSpare(c *Config) (*generation, error) {
	g, err := b.openPins(sparePin)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNoSpare
	}
	if err != nil {
		return nil, err
	}
	var made kernelConfig
	err = g.coll.Maps[configMap].Lookup(uint32(0), &made)
	g.stale = made != c.kernelConfig
	if err == nil && compiledIn(&made) != compiledIn(&c.kernelConfig) || (g.program(hookTCX) != nil) != ported(c) || (g.program(hookXDP) != nil) != anyXDP(c) {
		err = errNoSpare
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// quiesce returns when no frame is left in programs that no port has any more. The
// kernel runs programs in read-side sections of RCU, and waits for their end.
func quiesce() error {
	const membarrierCmdGlobal = 1 // linux/membarrier.h; synchronize_rcu()
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierCmdGlobal, 0, 0)
	if errno != 0 { // not available with nohz_full
		return errors.Join(errNoSpare, fmt.Errorf("membarrier: %w", errno))
	}
	return nil
}

// rewrite gives the spare's own tables the contents for the next generation of b.
func (g *generation) rewrite(b *Bridge, c *Config, t Tables) error {
	if err := g.coll.Maps[settingsMap].Put(uint32(0), &c.kernelSettings); err != nil {
		return fmt.Errorf("settings: %w", err)
	}
	if err := clearMap[uint32, kernelBerth](g.coll.Maps[kernelMapBerths]); err != nil {
		return err
	}
	if err := g.rewriteVLANs(b, t.VLANs); err != nil {
		return err
	}
	if err := g.rewriteRules(b, c, t.Rules); err != nil {
		return err
	}
	if err := g.rewritePF(b, c, t); err != nil {
		return err
	}
	// No remembered decision of the spare was made with these settings.
	_, err := g.control(kernelControl{Op: kernelControlOpCONTROL_FORGET})
	return err
}

// rewriteVLANs gives the spare these VLANs or, if that is nil, the VLANs of b.
func (g *generation) rewriteVLANs(b *Bridge, vlans *VLANs) (err error) {
	if vlans == nil {
		if vlans, err = b.VLANs(); err != nil || vlans == nil {
			return err
		}
	}
	own := g.coll.Maps[kernelMapVlans]
	if int(own.MaxEntries()) < len(vlans) {
		return errNoSpare
	}
	return vlans.store(own)
}

// clearMap empties a hash map.
func clearMap[K, V any](m *ebpf.Map) error {
	var all []K
	err := eachOf(m, func(keys []K, _ []V) error {
		all = append(all, keys...)
		return nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	_, err = m.BatchDelete(all, nil)
	return err
}
