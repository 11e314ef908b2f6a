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

// The spare takes turns with a bridge's programs. It is the programs of the generation
// before, which were made for the same configuration. A change that needs no other
// programs exchanges the bridge's programs for the spare. The spare has settings of its
// own, and own tables where a change makes these anew. They are written while no frame
// is in the spare's programs. Then the spare is a generation like one that was loaded.
// A frame meets one of the two sets of programs, so it sees no half of a change.
//
// The spare is in a folder of its own. Once all in it is as the next generation has it,
// the folder is renamed to be that generation's. A command that is killed before leaves
// a spare, whatever is in its tables. One that is killed after leaves a generation that
// is not made current.
const sparePin = "spare"

// errNoSpare says that a change needs programs to be loaded.
var errNoSpare = errors.New("no spare fits")

// sameProgram reports whether two configurations are the same as far as programs are
// made for them.
func sameProgram(c, other *Config) bool {
	return c.kernelConfig == other.kernelConfig && ported(c) == ported(other) && anyXDP(c) == anyXDP(other) &&
		patched(c) == patched(other)
}

// spares reports whether a generation of c, made with t after b, leaves a spare: its
// programs have the tables of b's programs, except for those of their own.
func (b *Bridge) spares(c *Config, t Tables) bool {
	if b.gen == "" || b.store.Locked || !sameProgram(c, &b.Config) {
		return false
	}
	if t.Filter != nil || t.Bindings != nil || t.PF != nil {
		return false
	}
	// A capture has its filter in the programs, and watches one generation.
	return kernelFeature(c.Features)&kernelFeatureFEATURE_CAPTURE == 0
}

// keepSpare makes a generation that is not the bridge's any more the spare, if it
// leaves one. Nobody reads it as a generation again: the rename takes it away in one
// step.
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

// openSpare opens the spare, if it is of this configuration.
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
	if err == nil && made != c.kernelConfig || (g.program(hookTCX) != nil) != ported(c) || (g.program(hookXDP) != nil) != anyXDP(c) {
		err = errNoSpare
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	return g, nil
}

// quiesce returns when no frame is in programs that no port has. The kernel runs
// programs in sections of RCU, and waits for their end.
func quiesce() error {
	const membarrierCmdGlobal = 1 // linux/membarrier.h; synchronize_rcu()
	_, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, membarrierCmdGlobal, 0, 0)
	if errno != 0 { // with nohz_full there is none
		return errors.Join(errNoSpare, fmt.Errorf("membarrier: %w", errno))
	}
	return nil
}

// rewrite gives the spare's own tables what the next generation of b has.
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
	// No remembered decision of the spare was made with these settings.
	_, err := g.control(kernelControl{Op: kernelControlOpCONTROL_FORGET})
	return err
}

// rewriteVLANs gives the spare these VLANs, or those that b has.
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
