// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"slices"

	"bascule/pf"
)

// An asking ties a feature to the settings and flags that require it. If no setting requires a
// feature, no program has it, and it costs nothing.
type asking struct {
	feature kernelFeature
	// bridge reports whether the bridge's settings require the feature, and port whether the
	// settings of one of its ports do; nil means no.
	bridge func(*Config) bool
	port   func(*Config, *Port) bool
	// choosy means that, with the feature, a flood may skip a port, change, or have to be examined.
	// So floods do not go by XDP then.
	choosy bool
}

// askings has every feature that something requires, in one row each. For the rest see
// otherFeatures.
var askings = []asking{
	// settings of a bridge
	{feature: kernelFeatureFEATURE_VLANS, bridge: told(BridgeVLANs), choosy: true},
	{feature: kernelFeatureFEATURE_VLAN_STATS, bridge: told(BridgeVLANs | BridgeVLANStats)},
	{feature: kernelFeatureFEATURE_DHCP_GUARD, bridge: told(BridgeDHCPGuard)},
	{feature: kernelFeatureFEATURE_RA_GUARD, bridge: told(BridgeRAGuard)},
	{feature: kernelFeatureFEATURE_SUPPRESS, bridge: told(BridgeSuppress)},
	{feature: kernelFeatureFEATURE_CAPTURE, bridge: told(BridgeCapture), choosy: true},
	{feature: kernelFeatureFEATURE_TALKERS, bridge: told(BridgeTalkers), choosy: true},
	{feature: kernelFeatureFEATURE_SAMPLE, bridge: told(BridgeSample), choosy: true},
	{feature: kernelFeatureFEATURE_GROUP_FWD, bridge: func(c *Config) bool { return c.GroupFwdMask != 0 }},
	{feature: kernelFeatureFEATURE_CONTROL, bridge: control, choosy: true},
	{feature: kernelFeatureFEATURE_MOVE_MAX, bridge: func(c *Config) bool { return c.MoveMax != 0 }},

	// settings of a port
	{feature: kernelFeatureFEATURE_HAIRPIN, port: has(PortHairpin)},
	{feature: kernelFeatureFEATURE_NO_LEARN, port: lacks(PortLearn)},
	{feature: kernelFeatureFEATURE_FLOOD_FLAGS, port: lacks(allFloods)},
	{feature: kernelFeatureFEATURE_LOCKED, port: has(PortLocked)},
	{feature: kernelFeatureFEATURE_MAB, port: has(PortMAB)},
	{feature: kernelFeatureFEATURE_LIMIT_DROP, port: has(PortLimitDrop)},
	{feature: kernelFeatureFEATURE_NON_IP, port: has(PortBlockNonIP), choosy: true},
	{feature: kernelFeatureFEATURE_SOURCE_GUARD, port: has(PortSrcGuard)},
	{feature: kernelFeatureFEATURE_RULES, port: has(PortRulesIn | PortRulesOut), choosy: true},
	{feature: kernelFeatureFEATURE_STORM, choosy: true, port: func(_ *Config, p *Port) bool {
		return p.Storm[StormBroadcast].Rate|p.Storm[StormMulticast].Rate|p.Storm[StormUnknown].Rate != 0
	}},
	{feature: kernelFeatureFEATURE_RATE, choosy: true, port: func(_ *Config, p *Port) bool {
		return p.Limit[LimitIn].Rate|p.Limit[LimitOut].Rate != 0
	}},
	{feature: kernelFeatureFEATURE_ADMIT, port: func(c *Config, p *Port) bool {
		return BridgeFlags(c.Flags)&BridgeVLANs != 0 && p.Admit != AdmitAll
	}},
	{feature: kernelFeatureFEATURE_BACKUP, port: func(_ *Config, p *Port) bool { return p.Backup != 0 }},
	{feature: kernelFeatureFEATURE_PROTECTED, bridge: func(c *Config) bool { return sharedDomains(tenants(c)) != 0 }},

	// settings of both
	{feature: kernelFeatureFEATURE_BLOCKING, bridge: told(BridgeSTP), port: has(PortLoopGuard), choosy: true},
	{feature: kernelFeatureFEATURE_SPAN, port: is(PortSpan), choosy: true,
		bridge: func(c *Config) bool { return c.Spans != [len(c.Spans)]uint16{} }},

	// properties of a port's device
	{feature: kernelFeatureFEATURE_PEER, port: func(_ *Config, p *Port) bool { return p.Peer != 0 }},
	{feature: kernelFeatureFEATURE_PATCH, port: joins, choosy: true},
	{feature: kernelFeatureFEATURE_ROUTE, port: has(PortRoute), choosy: true},
	{feature: kernelFeatureFEATURE_BERTHS, port: noted(PortBerth)},

	// requirements of pf's rules, while pf is on: see featuresOf
	{feature: kernelFeatureFEATURE_PF, bridge: ruledBy(kernelFeatureFEATURE_PF), choosy: true},
	{feature: kernelFeatureFEATURE_ETHER, bridge: ruledBy(kernelFeatureFEATURE_ETHER), choosy: true},
	{feature: kernelFeatureFEATURE_PF_RULES, bridge: ruledBy(kernelFeatureFEATURE_PF_RULES)},
	{feature: kernelFeatureFEATURE_PF_TABLES, bridge: ruledBy(kernelFeatureFEATURE_PF_TABLES)},
	{feature: kernelFeatureFEATURE_PF_LOG, bridge: ruledBy(kernelFeatureFEATURE_PF_LOG)},
	{feature: kernelFeatureFEATURE_PF_SOURCES, bridge: ruledBy(kernelFeatureFEATURE_PF_SOURCES)},
	{feature: kernelFeatureFEATURE_PF_REWRITE, bridge: ruledBy(kernelFeatureFEATURE_PF_REWRITE)},
	{feature: kernelFeatureFEATURE_PF_SCRUB, bridge: ruledBy(kernelFeatureFEATURE_PF_SCRUB)},
	{feature: kernelFeatureFEATURE_PF_NAT, bridge: ruledBy(kernelFeatureFEATURE_PF_NAT)},
	{feature: kernelFeatureFEATURE_PF_FAMILY, bridge: ruledBy(kernelFeatureFEATURE_PF_FAMILY)},
	{feature: kernelFeatureFEATURE_PF_FIB, bridge: ruledBy(kernelFeatureFEATURE_PF_FIB)},
	{feature: kernelFeatureFEATURE_PF_HOPS, bridge: ruledBy(kernelFeatureFEATURE_PF_HOPS)},
	{feature: kernelFeatureFEATURE_PF_REASSEMBLE, bridge: ruledBy(kernelFeatureFEATURE_PF_REASSEMBLE)},
	{feature: kernelFeatureFEATURE_PF_LIMITERS, bridge: ruledBy(kernelFeatureFEATURE_PF_LIMITERS)},
	{feature: kernelFeatureFEATURE_PF_HOST, bridge: func(c *Config) bool {
		judges := ruledBy(kernelFeatureFEATURE_PF | kernelFeatureFEATURE_ETHER)
		return judges(c) && slices.ContainsFunc(Ports(c), func(p *Port) bool { return noted(PortHost)(c, p) })
	}},
}

// otherFeatures are the features that no setting requires. One is for trials. One means that all
// floods of some port go by XDP, and one that XDP judges first packets; both follow from the other
// features. The other two are for some programs only: see programFeatures.
const otherFeatures = kernelFeatureFEATURE_TRACE | kernelFeatureFEATURE_XDP_FLOOD | kernelFeatureFEATURE_PF_STAMPS |
	kernelFeatureFEATURE_PF_FIRST | kernelFeatureFEATURE_PF_SLEEPS

// allFloods are the flags of a port that takes every flood.
const allFloods = PortDiscover | PortMcastFlood | PortBcastFlood

// The condition that a bridge has all of the flags.
func told(flags BridgeFlags) func(*Config) bool {
	return func(c *Config) bool { return BridgeFlags(c.Flags)&flags == flags }
}

// has tests whether a port has one of the flags.
func has(flags PortFlags) func(*Config, *Port) bool {
	return func(_ *Config, p *Port) bool { return p.Flags&flags != 0 }
}

// is tests whether a port has one of the facts.
func is(facts PortFacts) func(*Config, *Port) bool {
	return func(_ *Config, p *Port) bool { return p.Facts&facts != 0 }
}

// joins tests whether frames get from a port to a bridge, or from a bridge to a port, by a tail
// call.
func joins(_ *Config, p *Port) bool { return p.Facts&PortPatch != 0 || p.Flags&PortRoute != 0 }

// noted tests whether a port has one of the notes.
func noted(notes PortNotes) func(*Config, *Port) bool {
	return func(_ *Config, p *Port) bool { return p.Notes&notes != 0 }
}

// lacks tests whether a port lacks one of the flags.
func lacks(flags PortFlags) func(*Config, *Port) bool {
	return func(_ *Config, p *Port) bool { return p.Flags&flags != flags }
}

// ruledBy tests whether pf is on and its rules require one of the features.
func ruledBy(f kernelFeature) func(*Config) bool {
	return func(c *Config) bool { return BridgeFlags(c.Flags)&BridgePF != 0 && kernelFeature(c.Pf.Features)&f != 0 }
}

// sharedDomains returns the protected domains with more than one port.
func sharedDomains(ports []*Port) (shared uint32) {
	var domains uint32
	for _, p := range ports {
		shared |= domains & p.Domains
		domains |= p.Domains
	}
	return shared
}

// askedFor returns the features that a configuration and its ports require.
func askedFor(c *Config, ports []*Port) (f kernelFeature) {
	for _, a := range askings {
		if a.bridge != nil && a.bridge(c) ||
			a.port != nil && slices.ContainsFunc(ports, func(p *Port) bool { return a.port(c, p) }) {
			f |= a.feature
		}
	}
	return f
}

// judgesByXDP reports whether XDP may judge the first packets of connections that it routes past
// pf: see bpf/first.h. Features that examine each frame, or its contents, leave these packets to
// tcx. So does a rule with a condition that XDP cannot evaluate, or that has another result each
// time, such as a limiter.
func judgesByXDP(f kernelFeature, c *Config) bool {
	const all = kernelFeatureFEATURE_ROUTE | kernelFeatureFEATURE_PF | kernelFeatureFEATURE_PF_RULES | kernelFeatureFEATURE_PF_HOST
	const none = kernelFeatureFEATURE_VLAN_STATS | kernelFeatureFEATURE_RULES | kernelFeatureFEATURE_TALKERS |
		kernelFeatureFEATURE_CAPTURE | kernelFeatureFEATURE_SAMPLE | kernelFeatureFEATURE_ETHER | kernelFeatureFEATURE_BACKUP |
		kernelFeatureFEATURE_SOURCE_GUARD | kernelFeatureFEATURE_DHCP_GUARD | kernelFeatureFEATURE_RA_GUARD |
		kernelFeatureFEATURE_SUPPRESS | kernelFeatureFEATURE_SPAN | kernelFeatureFEATURE_PF_FIB |
		kernelFeatureFEATURE_PF_LIMITERS
	const asks = pf.AskRoute | pf.AskPriority | pf.AskRandom | pf.AskOnce
	return f&all == all && f&none == 0 && c.Pf.Asks&asks == 0 && anyXDP(c)
}

// floodsByXDP reports whether, with these features, floods can go by XDP from a port
// that shares no protected domain with another.
func floodsByXDP(f kernelFeature, ports []*Port) bool {
	for _, a := range askings {
		if a.choosy && f&a.feature != 0 {
			return false
		}
	}
	const with = kernelFeatureFEATURE_FLOOD_FLAGS | kernelFeatureFEATURE_HAIRPIN
	return f&with == 0 && !slices.ContainsFunc(ports, func(p *Port) bool { return p.Facts&PortXDPTx == 0 })
}
