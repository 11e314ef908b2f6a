// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"time"

	"bascule/datapath"
)

// setBits sets or clears bits of a word.
func setBits[W ~uint32](word *W, bits W, on bool) {
	*word &^= bits
	if on {
		*word |= bits
	}
}

// flagFields connects on/off settings with their bits.
func flagFields(c *PortConfig) map[datapath.PortFlags]*bool {
	return map[datapath.PortFlags]*bool{
		datapath.PortLearn:      &c.Learn,
		datapath.PortDiscover:   &c.Discover,
		datapath.PortMcastFlood: &c.MulticastFlood,
		datapath.PortBcastFlood: &c.BroadcastFlood,
		datapath.PortHairpin:    &c.Hairpin,
		datapath.PortLocked:     &c.Locked,
		datapath.PortMAB:        &c.MAB,
		datapath.PortBlockNonIP: &c.BlockNonIP,
		datapath.PortSrcGuard:   &c.SourceGuard,
		datapath.PortTrusted:    &c.Trusted,
		datapath.PortRoute:      &c.Route,
		datapath.PortLoopGuard:  &c.LoopGuard.On,
	}
}

// check checks whether the settings are compatible. what names their port in errors.
func (c PortConfig) check(what string) error {
	if c.Locked && c.Learn {
		return refused(what, "a locked port accepts frames only from known addresses, but a port that learns makes every address known",
			"switch learning off with --learn=off, or unlock it with --locked=off")
	}
	if c.MAB && !c.Locked {
		return refused(what, "mab is for addresses that a locked port does not let in, but the port would not be locked",
			"lock it with --locked=on, or switch mab off with --mab=off")
	}
	if c.MAB && c.FDBMax == 0 {
		return refused(what, "mab makes FDB entries for addresses that were not let in, and without a limit these could fill the FDB",
			"give the port one, such as --fdb-max=64, or switch mab off with --mab=off")
	}
	if c.Route && c.limits() {
		return refused(what, "packets that the datapath routes bypass the port's device, where "+RateIn+" and "+RateOut+" are measured",
			"leave routing to the host with --route=off, or limit the stations' ports instead of this one")
	}
	return nil
}

// limits reports whether the port has a rate limit in either direction.
func (c PortConfig) limits() bool { return c.Rate != [2]RateLimit{} }

// admits maps the words for frame types to the datapath's values.
var admits = map[string]uint16{AdmitAll: datapath.AdmitAll, AdmitTagged: datapath.AdmitTagged, AdmitUntagged: datapath.AdmitUntagged}

// loadPortConfig returns a port's settings, except for its backup: its name needs the bridge.
func loadPortConfig(p *datapath.Port) PortConfig {
	c := PortConfig{Protected: Domains(p.Domains), FDBMax: p.FdbMax, FDBFull: FullFlood, Admit: AdmitAll}
	for word, admit := range admits {
		if p.Admit == admit {
			c.Admit = word
		}
	}
	if p.Flags&datapath.PortLimitDrop != 0 {
		c.FDBFull = FullDrop
	}
	c.LoopGuard.Block = time.Duration(p.BlockTime) * time.Second
	for i, s := range p.Storm {
		c.Storm[i] = StormLimit{Rate: s.Rate, Kilobits: s.Kilobits != 0}
	}
	for i, l := range p.Limit {
		c.Rate[i] = RateLimit{StormLimit{Rate: l.Rate, Kilobits: l.Kilobits != 0}, l.Burst}
	}
	c.loadSTP(p)
	for flag, field := range flagFields(&c) {
		*field = p.Flags&flag != 0
	}
	return c
}

// store stores the settings in a port, except for the backup; see planBackup.
func (c PortConfig) store(p *datapath.Port) {
	p.Domains, p.FdbMax, p.Admit = uint32(c.Protected), c.FDBMax, admits[c.Admit]
	setBits(&p.Flags, datapath.PortLimitDrop, c.FDBFull == FullDrop)
	p.BlockTime = uint32(c.LoopGuard.Block / time.Second)
	for i, l := range c.Storm {
		p.Storm[i].Rate, p.Storm[i].Kilobits = l.Rate, 0
		if l.Kilobits {
			p.Storm[i].Kilobits = 1
		}
	}
	for i, l := range c.Rate {
		p.Limit[i].Rate, p.Limit[i].Kilobits, p.Limit[i].Burst = l.Rate, 0, l.Burst
		if l.Kilobits {
			p.Limit[i].Kilobits = 1
		}
	}
	c.storeSTP(p)
	for flag, field := range flagFields(&c) {
		setBits(&p.Flags, flag, *field)
	}
}
