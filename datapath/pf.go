// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"

	"bascule/pf"
)

// PF is what a change to pf loads; Tables.PF says so to Commit. Whether pf is
// asked is the flag BridgePF of Config.Flags: without it the tables and states
// are there, and frames pass without them. Commit fills Config.Pf in.
type PF struct {
	// Program is compiled for the ports of the configuration that is committed,
	// and its profiles begin with those that PFProfiles returned. Nil: there is
	// to be no pf at all, and no state or table of addresses stays.
	Program *pf.Program

	// Same says that the rules are those that the bridge has, compiled for other
	// ports, addresses or tables: states keep their rules, and rules their
	// counters. It is ignored where the number of rules is another.
	Same bool

	// Text is kept for the caller, who gets it back from PFText.
	Text []byte

	StatesMax    uint32 // set limit states
	NodesMax     uint32 // set limit src-nodes
	TableEntries uint32 // set limit table-entries, of all tables together
	LogInterface uint32 // id of the port that `set loginterface` names, 0 for none

	// Fill has the tables whose contents are set before the first frame meets
	// the new rules. A table that has other contents from then on should have a
	// number that the bridge's rules do not use yet.
	Fill []TableFill
	// Free are numbers of tables that nothing uses from now on, as bits: they
	// are emptied when the new rules are there.
	Free uint64
}

// TableFill is what a table is to have, in place of all that it has.
type TableFill struct {
	Table   int // its number, below pf.MaxTables
	Entries []pf.TableEntry
}

// errNoPF says that a bridge was never told anything about pf.
var errNoPF = errors.New("it has no pf rules loaded")

// PFLoaded reports whether the bridge has pf's tables, be pf enabled or not.
func (b *Bridge) PFLoaded() bool { return loadedPF(&b.Config) }

// PFEnabled reports whether frames are judged by pf.
func (b *Bridge) PFEnabled() bool {
	return loadedPF(&b.Config) && BridgeFlags(b.Config.Flags)&BridgePF != 0
}

// loadedPF reports whether a configuration has pf's tables.
func loadedPF(c *Config) bool { return c.Pf.Buckets != 0 }

// PFText returns what the last change to pf gave as PF.Text, nil if the bridge
// has no pf.
func (b *Bridge) PFText() ([]byte, error) { return nil, errNoPF }

// PFProfiles returns the profiles that states may have: pf.Input.Profiles for
// the next program. There are none where the bridge has no pf.
func (b *Bridge) PFProfiles() ([]pf.Profile, error) { return nil, nil }

// pfFeatures are the features of pf.
const pfFeatures = kernelFeatureFEATURE_PF | kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_TABLES |
	kernelFeatureFEATURE_PF_LOG | kernelFeatureFEATURE_PF_SOURCES | kernelFeatureFEATURE_PF_REWRITE |
	kernelFeatureFEATURE_ETHER
