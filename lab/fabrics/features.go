// SPDX-License-Identifier: BSD-2-Clause

package fabrics

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"bascule/lab/ends"
)

// features are settings of a switch in addition to forwarding. The ends can still communicate.
type features struct {
	vlans    bool // VLAN filtering; all ends are in one VLAN, except the ones of Spec.Apart
	isolated bool // all ends except the first are isolated from each other
	rules    int  // MAC rules for incoming frames of each port; the last one passes
	five     bool // VLAN filtering, MAC rules, storm limits, address limits, non-IP blocked
	// The settings of the bridge and of each port, as flags of the command line.
	bridge, port []string
	// bound means that each end's addresses are bound to its port.
	bound bool
	tc    [][]string // tc(8) arguments for each port of a Linux bridge; DEVICE stands for the port
}

// Fabrics with features that have a cost: each one is a bascule bridge with the feature added.
var (
	BasculeVLAN, BasculeXDPVLAN = withFeatures("vlan", "with VLAN filtering", features{vlans: true})
	BasculeFive, BasculeXDPFive = withFeatures("five",
		"with VLAN filtering, MAC rules, storm limits, address limits, and non-IP frames blocked", features{vlans: true, rules: 10, five: true})
	BasculeIsolated, BasculeXDPIsolated   = withFeatures("isolated", "whose ends, but the first, are isolated", features{isolated: true})
	BasculeRules10, BasculeXDPRules10     = withFeatures("rules-10", "with 10 MAC rules on each port", features{rules: 10})
	BasculeRules1000, BasculeXDPRules1000 = withFeatures("rules-1000", "with 1000 MAC rules on each port", features{rules: 1000})
	BasculeRateIn, BasculeXDPRateIn       = withFeatures("rate-in", "whose ports accept at most 1 Gbit/s", features{port: []string{"--rate-in", limitRate}})
	BasculeRateOut, BasculeXDPRateOut     = withFeatures("rate-out", "whose ports send at most 1 Gbit/s", features{port: []string{"--rate-out", limitRate}})
)

// limitRate is the rate of fabrics with a rate limit, in words that tc(8) also accepts.
const limitRate = "1gbit"

// alone are bridges with one feature each, from the features that cost a known unicast frame
// anything.
var alone = func() (out []*Fabric) {
	for _, f := range []struct {
		name, about string
		set         features
	}{
		{"vlan-stats", "with VLAN filtering and counters of VLANs", features{vlans: true, bridge: []string{"--vlan-stats"}}},
		{"dhcp-guard", "with DHCP guard", features{bridge: []string{"--dhcp-guard"}}},
		{"ra-guard", "with RA guard", features{bridge: []string{"--ra-guard"}}},
		{"neigh-suppress", "that answers ARP and ND for bound addresses", features{bridge: []string{"--neigh-suppress"}, bound: true}},
		{"move-max", "that limits how often an address moves", features{bridge: []string{"--move-max", "100"}}},
		{"hairpin", "whose ports are in hairpin mode", features{port: []string{"--hairpin"}}},
		{"block-non-ip", "with non-IP frames blocked", features{port: []string{"--block-non-ip"}}},
		{"fdb-full-drop", "that drops frames from addresses above its limit", features{port: []string{"--fdb-max", "1000", "--fdb-full", "drop"}}},
		{"storm", "with storm limits", features{port: stormLimits}},
		{"source-guard", "whose ports take bound addresses only", features{port: []string{"--source-guard"}, bound: true}},
		{"loop-guard", "that looks for loops", features{port: []string{"--loop-guard", "report"}}},
	} {
		tcx, _ := withFeatures(f.name, f.about, f.set)
		out = append(out, tcx)
	}
	return out
}()

// stormLimits are above the lab's rates.
var stormLimits = []string{"--storm-bcast", "100000000pps", "--storm-mcast", "100000000pps", "--storm-unknown", "100000000pps"}

// featured lists all of them.
var featured = slices.Concat(alone, []*Fabric{
	BasculeVLAN, BasculeXDPVLAN, BasculeFive, BasculeXDPFive, BasculeIsolated, BasculeXDPIsolated,
	BasculeRules10, BasculeXDPRules10, BasculeRules1000, BasculeXDPRules1000,
	BasculeRateIn, BasculeXDPRateIn, BasculeRateOut, BasculeXDPRateOut,
	LinuxBridgeVLAN, LinuxBridgeIsolated, LinuxBridgeSnooping, LinuxBridgeTBF, LinuxBridgePolice, OVSVLAN,
})

// withFeatures makes the fabric for both hooks.
func withFeatures(name, about string, set features) (tcx, xdp *Fabric) {
	made := func(plain *Fabric, hook string) *Fabric {
		f := *plain
		f.Name += "-" + name
		f.VLANs = set.vlans
		f.About = strings.Replace(f.About, "a bascule bridge", "a bascule bridge "+about, 1)
		f.build = func(ctx context.Context, _ Site, n *Net) error {
			return n.single(ctx, &featureKit{basculeKit{n, hook}, set})
		}
		if set.bound {
			f.HostPath = nil // the host's addresses are not bound
		}
		return &f
	}
	return made(Bascule, "tcx"), made(BasculeXDP, "xdp")
}

// featureKit makes bascule bridges with features.
type featureKit struct {
	basculeKit
	set features
}

func (k *featureKit) add(ctx context.Context, bridge string) error {
	if err := k.basculeKit.add(ctx, bridge); err != nil {
		return err
	}
	settings := slices.Clone(k.set.bridge)
	if k.set.vlans {
		settings = append(settings, "--vlan-filtering")
	}
	if len(settings) == 0 {
		return nil
	}
	return k.run(ctx, append([]string{"bridge", "set", bridge}, settings...)...)
}

// VLANs without the ends have no ports.
const (
	vlanTogether = 10
	vlanApart    = 20
)

// vlanOf returns the VLAN of the next end.
func (n *Net) vlanOf(device string) string {
	number := 0
	if _, err := fmt.Sscanf(device, "p%d", &number); err == nil && number > n.Spec.Ends-n.Spec.Apart {
		return fmt.Sprint(vlanApart)
	}
	return fmt.Sprint(vlanTogether)
}

func (k *featureKit) plug(ctx context.Context, bridge, device string) error {
	err := k.basculeKit.plug(ctx, bridge, device)
	if err != nil {
		return err
	}
	return k.dress(ctx, bridge, device)
}

func (k *featureKit) host(ctx context.Context, bridge, device string) (string, error) {
	device, err := k.basculeKit.host(ctx, bridge, device)
	if err != nil {
		return device, err
	}
	return device, k.dress(ctx, bridge, device)
}

// dress sets the features of a port.
func (k *featureKit) dress(ctx context.Context, bridge, device string) error {
	if k.set.vlans {
		if err := k.run(ctx, "vlan", "add", bridge, device, k.net.vlanOf(device), "--untagged", "--pvid"); err != nil {
			return err
		}
	}
	if k.set.isolated && device != "p1" && device != hostName {
		if err := k.run(ctx, "port", "set", bridge, device, "--isolated"); err != nil {
			return err
		}
	}
	settings := k.set.port
	if k.set.five {
		settings = append([]string{"--block-non-ip", "--fdb-max", "1000", "--fdb-full", "drop"}, stormLimits...)
	}
	if k.set.bound {
		e := k.net.Ends[len(k.net.Ends)-1]
		if err := k.run(ctx, "binding", "add", bridge, device, e.MAC.String(), e.Addr.Addr().String()); err != nil {
			return err
		}
	}
	if len(settings) > 0 {
		if err := k.run(ctx, append([]string{"port", "set", bridge, device}, settings...)...); err != nil {
			return err
		}
	}
	if k.set.rules > 0 {
		return k.loadRules(ctx, bridge, device)
	}
	return nil
}

// loadRules loads rules for a port. Frames of the lab match only the last one. Half of the others
// compare the source, half the destination.
func (k *featureKit) loadRules(ctx context.Context, bridge, device string) (err error) {
	dir, err := ends.MakeDir(fmt.Sprintf("%d-rules-%s", k.net.serial, device))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	var text strings.Builder
	for i := range k.set.rules - 1 {
		field := []string{"src", "dst"}[i%2]
		fmt.Fprintf(&text, "block in on %s %s 06:00:00:00:%02x:%02x\n", device, field, i>>8, i&255)
	}
	fmt.Fprintf(&text, "pass in on %s\n", device)
	file := filepath.Join(dir, "rules")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		return err
	}
	return k.run(ctx, "rule", "load", bridge, file, "--port", device)
}

// LinuxBridgeVLAN is the kernel's bridge with VLAN filtering, if the kernel has it
// (CONFIG_BRIDGE_VLAN_FILTERING).
var LinuxBridgeVLAN = linuxVariant("linux-bridge-vlan", "the kernel's bridge with VLAN filtering", features{vlans: true})

// LinuxBridgeIsolated is the kernel's bridge with all ports except the first isolated from each
// other.
var LinuxBridgeIsolated = linuxVariant("linux-bridge-isolated", "the kernel's bridge whose ends, but the first, are isolated", features{isolated: true})

// LinuxBridgeTBF is the kernel's bridge with a shaping queue at each port's egress, the usual limit
// for guests.
var LinuxBridgeTBF = linuxVariant("linux-bridge-tbf", "the kernel's bridge whose ports send at most 1 Gbit/s, by tbf", features{tc: [][]string{
	{"qdisc", "add", "dev", "DEVICE", "root", "tbf", "rate", limitRate, "burst", "1mb", "latency", "100ms"},
}})

// LinuxBridgePolice is the kernel's bridge with a policer at each port's ingress, which drops
// excess traffic. Its burst is the burst of a bascule bridge.
var LinuxBridgePolice = linuxVariant("linux-bridge-police", "the kernel's bridge whose ports accept at most 1 Gbit/s, by police", features{tc: [][]string{
	{"qdisc", "add", "dev", "DEVICE", "clsact"},
	{"filter", "add", "dev", "DEVICE", "ingress", "matchall", "action", "police", "rate", limitRate, "burst", "31250000", "conform-exceed", "drop"},
}})

// LinuxBridgeSnooping is the kernel's bridge with its default of multicast snooping: it tracks the
// members of multicast groups.
var LinuxBridgeSnooping = &Fabric{
	Name:    "linux-bridge-snooping",
	About:   "the kernel's bridge with multicast snooping",
	Path:    LinuxBridge.Path,
	Arrival: AsBuffers,
	Modules: LinuxBridge.Modules,
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &linuxKit{net: n, snooping: true})
	},
}

func linuxVariant(name, about string, set features) *Fabric {
	f := *LinuxBridge
	f.Name, f.About, f.VLANs = name, about, set.vlans
	f.HostPath = nil
	f.build = func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &linuxFeatureKit{linuxKit{net: n}, set})
	}
	return &f
}

type linuxFeatureKit struct {
	linuxKit
	set features
}

func (k *linuxFeatureKit) add(ctx context.Context, bridge string) error {
	if err := k.linuxKit.add(ctx, bridge); err != nil || !k.set.vlans {
		return err
	}
	_, err := k.net.Switch.Output(ctx, ends.AnyCPU, "ip", "link", "set", bridge, "type", "bridge", "vlan_filtering", "1", "vlan_default_pvid", "0")
	if err != nil && strings.Contains(strings.ToLower(err.Error()), unix.EOPNOTSUPP.Error()) {
		return &ends.Unavailable{Reason: "the kernel has no VLAN filtering in its bridge (CONFIG_BRIDGE_VLAN_FILTERING)"}
	}
	return err
}

func (k *linuxFeatureKit) plug(ctx context.Context, bridge, device string) error {
	if err := k.linuxKit.plug(ctx, bridge, device); err != nil {
		return err
	}
	if k.set.isolated && device != "p1" {
		if _, err := k.net.Switch.Output(ctx, ends.AnyCPU, "bridge", "link", "set", "dev", device, "isolated", "on"); err != nil {
			return err
		}
	}
	for _, words := range k.set.tc {
		words = slices.Clone(words)
		words[slices.Index(words, "DEVICE")] = device
		if _, err := k.net.Switch.Output(ctx, ends.AnyCPU, "tc", words...); err != nil {
			return &ends.Unavailable{Reason: fmt.Sprintf("the kernel has no tbf, police or matchall of tc(8): %v", err)}
		}
	}
	if !k.set.vlans {
		return nil
	}
	_, err := k.net.Switch.Output(ctx, ends.AnyCPU, "bridge", "vlan", "add", "dev", device, "vid", k.net.vlanOf(device), "pvid", "untagged")
	return err
}

// OVSVLAN is an Open vSwitch bridge with its ports in a VLAN.
var OVSVLAN = &Fabric{
	Name:    "ovs-vlan",
	About:   "an Open vSwitch bridge whose ports are in a VLAN",
	Path:    OVS.Path,
	Arrival: AsBuffers,
	VLANs:   true,
	Needs:   ovsPrograms,
	Files:   OVS.Files,
	Modules: OVS.Modules,
	build: func(ctx context.Context, _ Site, n *Net) error {
		return n.single(ctx, &ovsVLANKit{ovsKit{net: n}})
	},
}

type ovsVLANKit struct{ ovsKit }

func (k *ovsVLANKit) plug(ctx context.Context, bridge, device string) error {
	return k.vsctl(ctx, "add-port", bridge, device, "tag="+k.net.vlanOf(device))
}
