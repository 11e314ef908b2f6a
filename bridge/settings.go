// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"bascule/datapath"

	"golang.org/x/sys/unix"
)

// A Setting is an option of a bridge or a port. The tables BridgeSettings and PortSettings are the
// only place where settings are defined: flags, help, man pages, completion and validation come
// from them.
type Setting[T any] struct {
	Name    string // as on the command line, without dashes
	Value   string // form of the value: OnOff, "N", "LIST", "TIME"
	Default string // the value of a new object
	Help    string // one line
	parse   func(*T, string) error
	format  func(T) string

	// Answers have the setting under the name As; "" is Name with underscores. Meaning is about the value there. An
	// Optional value is left out if it is empty. After is the name there of the setting that it follows, if it does
	// not follow the one before it in the table.
	As, Meaning, After string
	Optional           bool
	value              func(T) any // the value; nil for a switch, and for a value as Format has it
}

// Answer returns the setting's name in answers.
func (s Setting[T]) Answer() string { return cmp.Or(s.As, strings.ReplaceAll(s.Name, "-", "_")) }

// Answered returns the setting's value in answers, always of the same type.
func (s Setting[T]) Answered(config T) any {
	switch {
	case s.value != nil:
		return s.value(config)
	case s.Value == OnOff:
		return s.format(config) == On
	}
	return s.format(config)
}

// as gives the setting another name in answers.
func (s Setting[T]) as(name string) Setting[T] {
	s.As = name
	return s
}

// meaning gives the setting a description in answers.
func (s Setting[T]) meaning(text string) Setting[T] {
	s.Meaning = text
	return s
}

// after puts the setting behind another one in answers.
func (s Setting[T]) after(name string) Setting[T] {
	s.After = name
	return s
}

// OnOff is the Value of settings that are switches: on or off, and on if the flag has no value.
const OnOff = "on|off"

// PortName is the Value of settings that are the name of a port, or none.
const PortName = "PORT"

// Words returns the possible words of the value, without numbers and similar values: the words of Value
// that are not in capitals, and the default.
func (s Setting[T]) Words() (words []string) {
	for word := range strings.SplitSeq(s.Value, "|") {
		if strings.Trim(word, "ABCDEFGHIJKLMNOPQRSTUVWXYZ") != "" {
			words = append(words, word)
		}
	}
	if !slices.Contains(words, s.Default) {
		words = append([]string{s.Default}, words...)
	}
	return words
}

// Set parses value into config. The error names the expected values.
func (s Setting[T]) Set(config *T, value string) error {
	if err := s.parse(config, value); err != nil {
		return usagef("--"+s.Name+" "+value, "%w", err)
	}
	return nil
}

// CheckPortSetting refuses an unknown setting of a port, or a value that the setting does not
// accept, for input from files or other programs.
func CheckPortSetting(name, value string) error {
	for _, s := range PortSettings {
		if s.Name == name {
			if err := s.Set(new(PortConfig), value); err != nil {
				return fmt.Errorf("%s=%.40s: %w", name, value, err)
			}
			return nil
		}
	}
	return fmt.Errorf("%.40q is not a setting of a port; see 'bascule port set --help'", name)
}

// Format returns the setting's value in config, in the form that Set accepts.
func (s Setting[T]) Format(config T) string { return s.format(config) }

// A Change is one setting's new value, as given on the command line.
type Change struct {
	Name  string
	Value string
}

// BridgeConfig has the settings of a bridge.
type BridgeConfig struct {
	Ageing       time.Duration // time without frames after which an address is forgotten
	FDBMax       uint32        // maximum number of dynamic entries
	GroupFwdMask uint16        // bit X set: frames to 01:80:C2:00:00:0X are forwarded

	MAC [6]byte // the bridge's address; zero for the default one

	VLANFiltering bool   // ports have VLANs, and frames stay in theirs
	DefaultPVID   uint16 // VLAN of a new port's frames without a tag, 0 for none
	VLANProtocol  uint16 // EtherType of the bridge's own tags: 0x8100 or 0x88a8
	QinQ          bool   // frames with a second tag are accepted
	VLANStats     bool   // frames are counted by VLAN

	MoveMax       uint32 // moves of an address per second, 0 for no limit
	DHCPGuard     bool   // only trusted ports may send messages of DHCP servers
	RAGuard       bool   // only trusted ports may send advertisements of IPv6 routers
	NeighSuppress bool   // the switch answers ARP and ND for bound addresses
	PFPorts       string // the ports that pf filters: PFAll, PFHost or PFStation

	STP             string        // spanning tree: STPOff, STPClassic or STPRapid
	STPPriority     uint16        // of the bridge's identifier, a multiple of 4096; the lowest becomes root
	STPHello        time.Duration // between BPDUs, in whole seconds like the next two
	STPMaxAge       time.Duration // lifetime of information about the root
	STPForwardDelay time.Duration // in the states between discarding and forwarding
}

// The kinds of spanning tree.
const (
	STPOff     = "off"
	STPClassic = "stp"  // IEEE 802.1D-1998
	STPRapid   = "rstp" // IEEE 802.1D-2004 clause 17
)

// The ports that pf filters.
const (
	PFAll     = "all"
	PFHost    = "host"    // only host ports, as for a router's file
	PFStation = "station" // all others
)

// TagProtocol returns the name of VLANProtocol, as `ip link` prints it.
func (c BridgeConfig) TagProtocol() string {
	if c.VLANProtocol == unix.ETH_P_8021AD {
		return "802.1ad"
	}
	return "802.1Q"
}

// Limits of the settings.
const (
	MinAgeing     = time.Second
	MaxAgeing     = 1000000 * time.Second
	defaultFDBMax = 65536
	MaxFDB        = 4 << 20 // dynamic entries of a bridge
)

// BridgeSettings are the settings of a bridge.
var BridgeSettings = []Setting[BridgeConfig]{
	{
		Name: "ageing", Value: "TIME", Default: "300s",
		Help: "forget an address that was not seen for this long, 1s to 1000000s; " + bareSeconds,
		parse: func(c *BridgeConfig, v string) (err error) {
			c.Ageing, err = parseAgeing(v)
			return err
		},
		format: func(c BridgeConfig) string { return formatSeconds(c.Ageing) },
		As:     "ageing_time", Meaning: "seconds",
		value: func(c BridgeConfig) any { return c.Ageing.Seconds() },
	},
	{
		Name: "fdb-max", Value: "N", Default: strconv.Itoa(defaultFDBMax),
		Help: "learn at most N addresses, 1 to 4194304",
		parse: func(c *BridgeConfig, v string) (err error) {
			c.FDBMax, err = parseUint(v, 1, MaxFDB)
			return err
		},
		format: func(c BridgeConfig) string { return strconv.Itoa(int(c.FDBMax)) },
		value:  func(c BridgeConfig) any { return c.FDBMax },
	},
	{
		Name: "group-fwd-mask", Value: "MASK", Default: "0",
		Help: "forward frames to reserved addresses 01:80:C2:00:00:0X whose bit X is set, 0 to 0xffff",
		parse: func(c *BridgeConfig, v string) error {
			digits, hex := strings.CutPrefix(v, "0x")
			n, err := strconv.ParseUint(digits, map[bool]int{false: 10, true: 16}[hex], 16)
			if err != nil {
				return fmt.Errorf("not a mask of 16 bits; give 0 to 0xffff")
			}
			c.GroupFwdMask = uint16(n)
			return nil
		},
		format: func(c BridgeConfig) string { return fmt.Sprintf("%#x", c.GroupFwdMask) },
		value:  func(c BridgeConfig) any { return c.GroupFwdMask },
	},
	{
		Name: "mac", Value: "MAC|auto", Default: Auto,
		Help: "set the bridge's MAC address, its identity in spanning tree, or auto, which stays the same across restarts",
		parse: func(c *BridgeConfig, v string) error {
			c.MAC = [6]byte{}
			if v == Auto {
				return nil
			}
			mac, err := ParseMAC(v)
			if err != nil {
				return fmt.Errorf("%w, or auto", errors.Unwrap(err))
			}
			c.MAC = [6]byte(mac)
			return nil
		},
		format:  BridgeConfig.AddressGiven,
		Meaning: `the configured address, "auto" for none`,
	},
	onOff("vlan-filtering", false, "filter frames by the VLANs of the ports", func(c *BridgeConfig) *bool { return &c.VLANFiltering }),
	{
		Name: "default-pvid", Value: "VLAN|none", Default: "1",
		Help: "put new ports into this VLAN, untagged: 1 to 4094, or none",
		parse: func(c *BridgeConfig, v string) (err error) {
			c.DefaultPVID = 0
			if v != "none" {
				if c.DefaultPVID, err = parseVID(v); err != nil {
					err = fmt.Errorf("%w, or none", err)
				}
			}
			return err
		},
		format: func(c BridgeConfig) string {
			if c.DefaultPVID == 0 {
				return "none"
			}
			return strconv.Itoa(int(c.DefaultPVID))
		},
		As: "vlan_default_pvid", Meaning: "0 for none",
		value: func(c BridgeConfig) any { return c.DefaultPVID },
	},
	{
		Name: "vlan-protocol", Value: "802.1Q|802.1ad", Default: "802.1Q",
		Help: "use this kind of VLAN tag",
		parse: func(c *BridgeConfig, v string) error {
			switch strings.ToLower(v) {
			case "802.1q":
				c.VLANProtocol = unix.ETH_P_8021Q
			case "802.1ad":
				c.VLANProtocol = unix.ETH_P_8021AD
			default:
				return fmt.Errorf("not a kind of tag; give 802.1Q or 802.1ad")
			}
			return nil
		},
		format:  BridgeConfig.TagProtocol,
		Meaning: `"802.1Q" or "802.1ad"`,
	},
	onOff("qinq", false, "accept frames with a second tag", func(c *BridgeConfig) *bool { return &c.QinQ }),
	onOff("vlan-stats", false, "count frames by VLAN", func(c *BridgeConfig) *bool { return &c.VLANStats }).as("vlan_stats_enabled"),
	{
		Name: "move-max", Value: "N", Default: "0",
		Help: "let an address move at most N times a second, 1 to 1000000, or 0 for no limit",
		parse: func(c *BridgeConfig, v string) (err error) {
			c.MoveMax, err = parseUint(v, 0, 1000000)
			return err
		},
		format: func(c BridgeConfig) string { return strconv.Itoa(int(c.MoveMax)) },
		value:  func(c BridgeConfig) any { return c.MoveMax },
	},
	onOff("dhcp-guard", false, "accept messages of DHCP servers only from trusted ports", func(c *BridgeConfig) *bool { return &c.DHCPGuard }),
	onOff("ra-guard", false, "accept IPv6 router advertisements only from trusted ports", func(c *BridgeConfig) *bool { return &c.RAGuard }),
	onOff("neigh-suppress", false, "answer ARP and ND for bound addresses", func(c *BridgeConfig) *bool { return &c.NeighSuppress }),
	{
		Name: PFPortsSetting, Value: "all|host|station", Default: PFAll,
		Help: "filter with pf at these ports: all, only host ports, which is what a router's pf.conf expects, or all but host ports",
		parse: func(c *BridgeConfig, v string) error {
			if _, ok := pfPortsNumbers[v]; !ok {
				return fmt.Errorf("not a kind of ports; give all, host or station")
			}
			c.PFPorts = v
			return nil
		},
		format:  func(c BridgeConfig) string { return c.PFPorts },
		Meaning: `that pf filters: "all", "host" or "station"`,
	},
	{
		Name: stpSetting, Value: "off|stp|rstp", Default: STPOff,
		Help: "use spanning tree, which 'bascule agent' runs: none, plain or rapid",
		parse: func(c *BridgeConfig, v string) error {
			if v != STPOff && v != STPClassic && v != STPRapid {
				return fmt.Errorf("not a spanning tree; give off, stp or rstp")
			}
			c.STP = v
			return nil
		},
		format:  func(c BridgeConfig) string { return c.STP },
		Meaning: `"off", "stp" or "rstp"`,
	},
	{
		Name: "stp-priority", Value: "N", Default: "32768",
		Help: "set the priority, 0 to 61440 in steps of 4096; the bridge with the lowest one is the root",
		parse: func(c *BridgeConfig, v string) error {
			n, err := parseSteps(v, 61440, 4096)
			c.STPPriority = uint16(n)
			return err
		},
		format: func(c BridgeConfig) string { return strconv.Itoa(int(c.STPPriority)) },
		As:     "priority", Meaning: "of spanning tree, like the next three",
		value: func(c BridgeConfig) any { return c.STPPriority },
	},
	stpTime("stp-hello", "2s", "send BPDUs this often", 1, 2, func(c *BridgeConfig) *time.Duration { return &c.STPHello }).as("hello_time"),
	stpTime("stp-max-age", "20s", "believe information about the root for this long", 6, 40, func(c *BridgeConfig) *time.Duration { return &c.STPMaxAge }).as("max_age"),
	stpTime("stp-forward-delay", "15s", "wait this long before learning, and again before forwarding", 4, 30, func(c *BridgeConfig) *time.Duration { return &c.STPForwardDelay }).as("forward_delay"),
}

// AddressGiven returns the address that was set for the bridge, or Auto if none was.
func (c BridgeConfig) AddressGiven() string {
	if c.MAC == [6]byte{} {
		return Auto
	}
	return net.HardwareAddr(c.MAC[:]).String()
}

const stpSetting = "stp" // the setting's name

// PFPortsSetting is the name of the setting PFPorts.
const PFPortsSetting = "pf-ports"

// pfPortsNumbers has the numbers of the values of PFPorts.
var pfPortsNumbers = map[string]uint8{
	PFAll: datapath.PFPortsAll, PFHost: datapath.PFPortsHost, PFStation: datapath.PFPortsStation,
}

// stpTime returns a setting that is a time of spanning tree, in whole seconds (IEEE 802.1D-2004
// table 17-1).
func stpTime(name, def, help string, lo, hi int, field func(*BridgeConfig) *time.Duration) Setting[BridgeConfig] {
	return Setting[BridgeConfig]{
		Name: name, Value: "TIME", Default: def, Help: fmt.Sprintf("%s, %ds to %ds; %s", help, lo, hi, bareSeconds),
		parse: func(c *BridgeConfig, v string) error {
			d, err := parseSecondsIn(v, time.Duration(lo)*time.Second, time.Duration(hi)*time.Second)
			if err == nil {
				*field(c) = d
			}
			return err
		},
		format:  func(c BridgeConfig) string { return formatSeconds(*field(&c)) },
		Meaning: "seconds",
		value:   func(c BridgeConfig) any { return field(&c).Seconds() },
	}
}

// check checks whether the settings are compatible; what names their bridge in errors.
func (c BridgeConfig) check(what string) error {
	most, least := 2*(c.STPForwardDelay-time.Second), 2*(c.STPHello+time.Second)
	switch {
	case c.STPMaxAge > most:
		return refused(what, fmt.Sprintf("stp-max-age %s is more than 2*(stp-forward-delay-1s), %s", formatSeconds(c.STPMaxAge), formatSeconds(most)),
			"the tree could change faster than the network learns of it (IEEE 802.1D-2004 17.14): give a longer --stp-forward-delay, or a shorter --stp-max-age")
	case c.STPMaxAge < least:
		return refused(what, fmt.Sprintf("stp-max-age %s is less than 2*(stp-hello+1s), %s", formatSeconds(c.STPMaxAge), formatSeconds(least)),
			"one lost BPDU would look like a lost root (IEEE 802.1D-2004 17.14): give a longer --stp-max-age, or a shorter --stp-hello")
	}
	return nil
}

// PortConfig has the settings of a port.
type PortConfig struct {
	Learn          bool    // source addresses are learned
	Discover       bool    // unknown unicast floods reach the port
	MulticastFlood bool    // multicast floods reach the port
	BroadcastFlood bool    // broadcasts reach the port
	Hairpin        bool    // a frame may leave by the port by which it entered
	Protected      Domains // ports that share a domain do not reach each other
	FDBMax         uint32  // maximum number of the port's dynamic entries, 0 for no limit of its own
	FDBFull        string  // the fate of frames from an address above FDBMax: FullFlood or FullDrop
	Locked         bool    // only frames from addresses with an entry on the port are accepted
	MAB            bool    // other addresses get locked entries in the FDB
	Admit          string  // the frames that the port accepts, by tag: AdmitAll, AdmitTagged or AdmitUntagged
	Backup         string  // port that takes this port's frames while it has no carrier, "" for none
	BlockNonIP     bool    // only IPv4, IPv6, ARP and RARP pass, in either direction
	SourceGuard    bool    // IP, ARP and ND must agree with the bindings
	Trusted        bool    // DHCP servers and routers may be behind the port
	Route          bool    // for a host port: the datapath routes in place of the host
	LoopGuard      LoopGuard
	Storm          [3]StormLimit // of received broadcast, multicast and unknown unicast
	Rate           [2]RateLimit  // of all received frames, and of all sent ones

	STPCost         uint32 // of the path to the root by the port, 0 for a value by its speed
	STPPriority     uint8  // of the port's identifier, a multiple of 16; the lowest is preferred
	STPEdge         string // Auto, On or Off: no bridge is behind the port
	STPPointToPoint string // Auto, On or Off: at most one bridge is behind it
	BPDUGuard       bool   // a received BPDU shuts the port
	BPDUFilter      bool   // the port sends no BPDUs, and ignores received ones
	RootGuard       bool   // the port accepts no better root
}

// The values of settings that the switch determines by default.
const (
	Auto = "auto"
	On   = "on"
	Off  = "off"
)

// The fates of frames from an address that exceeds a port's limit.
const (
	FullFlood = "flood" // they are forwarded; the address is not learned
	FullDrop  = "drop"
)

// The frames that a port accepts if the bridge filters VLANs (IEEE 802.1Q-2022 6.9).
const (
	AdmitAll      = "all"
	AdmitTagged   = "tagged"   // with the tag of a VLAN
	AdmitUntagged = "untagged" // without a tag, or with a priority tag
)

// LoopGuard is the action when a port receives the switch's own frames.
type LoopGuard struct {
	On    bool          // events report it
	Block time.Duration // how long the port accepts no frames; 0: only events
}

// StormLimit is the limit of a kind of flood that a port receives.
type StormLimit struct {
	Rate     uint32 // per second, 0 for no limit
	Kilobits bool   // Rate is in units of 1000 bits, otherwise in frames
}

// RateLimit is the limit of all frames that a port receives, or sends.
type RateLimit struct {
	StormLimit
	Burst uint32 // what passes at once, in bytes or frames; 0 for the amount of a quarter of a second
}

const loopGuard = "loop-guard" // the setting's name

const (
	backupSetting = "backup" // the setting's name
	noBackup      = "none"
)

// PortSettings are the settings of a port.
var PortSettings = []Setting[PortConfig]{
	onOff("learn", true, "learn source addresses", func(c *PortConfig) *bool { return &c.Learn }).as("learning"),
	onOff("discover", true, "send floods of unknown unicast to the port", func(c *PortConfig) *bool { return &c.Discover }).as("flood"),
	onOff("mcast-flood", true, "send floods of multicast to the port", func(c *PortConfig) *bool { return &c.MulticastFlood }),
	onOff("bcast-flood", true, "send broadcasts to the port", func(c *PortConfig) *bool { return &c.BroadcastFlood }),
	onOff("hairpin", false, "let frames leave by the port through which they came in", func(c *PortConfig) *bool { return &c.Hairpin }),
	{
		Name: IsolatedSetting, Value: OnOff, Default: "off",
		Help: "forward no frames between this and other isolated ports; the same as protected domain 1",
		parse: func(c *PortConfig, v string) error {
			on, err := parseOnOff(v)
			c.Protected &^= IsolatedDomain
			if on {
				c.Protected |= IsolatedDomain
			}
			return err
		},
		format: func(c PortConfig) string { return formatOnOff(c.Isolated()) },
	},
	{
		Name: ProtectedSetting, Value: "LIST|none", Default: "none",
		Help: "put the port into protected domains 1-31, such as 1,2, or none: ports that share a domain exchange no frames",
		parse: func(c *PortConfig, v string) (err error) {
			c.Protected, err = ParseDomains(v)
			return err
		},
		format: func(c PortConfig) string { return c.Protected.String() },
		value:  func(c PortConfig) any { return c.Protected.List() },
	},
	{
		Name: "fdb-max", Value: "N", Default: "0",
		Help: "learn at most N addresses on the port, 1 to 4194304, or 0 for no limit of its own",
		parse: func(c *PortConfig, v string) (err error) {
			c.FDBMax, err = parseUint(v, 0, MaxFDB)
			return err
		},
		format: func(c PortConfig) string { return strconv.Itoa(int(c.FDBMax)) },
		value:  func(c PortConfig) any { return c.FDBMax },
	},
	{
		Name: "fdb-full", Value: "flood|drop", Default: FullFlood,
		Help: "forward or drop frames from addresses that fdb-max leaves no room for",
		parse: func(c *PortConfig, v string) error {
			if v != FullFlood && v != FullDrop {
				return fmt.Errorf("not an action; give flood or drop")
			}
			c.FDBFull = v
			return nil
		},
		format: func(c PortConfig) string { return c.FDBFull },
	},
	onOff("locked", false, "accept frames only from addresses that the FDB has on the port; needs learn off", func(c *PortConfig) *bool { return &c.Locked }),
	onOff("mab", false, "make locked entries for addresses that a locked port does not let in, and report them; needs learn off and fdb-max", func(c *PortConfig) *bool { return &c.MAB }),
	{
		Name: "admit", Value: "all|tagged|untagged", Default: AdmitAll,
		Help: "accept only these frames, if VLANs are filtered; a priority alone is not a tag",
		parse: func(c *PortConfig, v string) error {
			if v != AdmitAll && v != AdmitTagged && v != AdmitUntagged {
				return fmt.Errorf("not a kind of frame; give all, tagged or untagged")
			}
			c.Admit = v
			return nil
		},
		format:  func(c PortConfig) string { return c.Admit },
		Meaning: `"all", "tagged" or "untagged"`,
	},
	{
		Name: backupSetting, Value: PortName, Default: noBackup,
		Help: "send known unicast to this port instead while the port has no carrier, or none",
		parse: func(c *PortConfig, v string) error {
			c.Backup = ""
			if v == noBackup {
				return nil
			}
			if err := checkName("port", v); err != nil {
				return fmt.Errorf("not the name of a port; give one of the bridge, or none")
			}
			c.Backup = v
			return nil
		},
		format: func(c PortConfig) string { return cmp.Or(c.Backup, noBackup) },
		As:     "backup_port", Meaning: "takes its frames while it has no carrier", Optional: true,
		value: func(c PortConfig) any { return c.Backup },
	},
	onOff("block-non-ip", false, "let only IPv4, IPv6, ARP and RARP in and out", func(c *PortConfig) *bool { return &c.BlockNonIP }),
	onOff("source-guard", false, "drop IP, ARP and ND from addresses that are not bound to the port, and all frames from stations bound elsewhere", func(c *PortConfig) *bool { return &c.SourceGuard }),
	onOff(routeSetting, false, "route packets for the host by the host's own routes, past its network stack and nftables; for a host port",
		func(c *PortConfig) *bool { return &c.Route }).after("trusted"),
	onOff("trusted", false, "accept DHCP servers and routers behind the port; on for a new host port", func(c *PortConfig) *bool { return &c.Trusted }),
	{
		Name: loopGuard, Value: "off|report|TIME", Default: "off",
		Help: "if the bridge's own frames come back, report it, or also block the port for 1s to 3600s; " + bareSeconds,
		parse: func(c *PortConfig, v string) (err error) {
			c.LoopGuard, err = parseLoopGuard(v)
			return err
		},
		format:  func(c PortConfig) string { return c.LoopGuard.String() },
		Meaning: "these four as in the settings",
	},
	stormLimit("storm-bcast", "broadcast", 0),
	stormLimit("storm-mcast", "multicast", 1),
	stormLimit("storm-unknown", "unknown unicast", 2),
	rateLimit(RateIn, "incoming", datapath.LimitIn).meaning("as in the settings"),
	rateLimit(RateOut, "outgoing", datapath.LimitOut),
	{
		Name: "stp-cost", Value: "auto|N", Default: Auto,
		Help: "set the path cost of the port, 1 to 200000000, or auto, which follows its speed",
		parse: func(c *PortConfig, v string) (err error) {
			c.STPCost = 0
			if v != Auto {
				if c.STPCost, err = parseUint(v, 1, 200000000); err != nil {
					err = fmt.Errorf("not a path cost; give auto, or 1 to 200000000")
				}
			}
			return err
		},
		format: func(c PortConfig) string {
			if c.STPCost == 0 {
				return Auto
			}
			return strconv.Itoa(int(c.STPCost))
		},
		As: "cost", Meaning: "of spanning tree, like the rest; 0 for automatic",
		value: func(c PortConfig) any { return c.STPCost },
	},
	{
		Name: "stp-priority", Value: "N", Default: "128",
		Help: "set the priority among equally good ports, 0 to 240 in steps of 16; the lowest one is preferred",
		parse: func(c *PortConfig, v string) error {
			n, err := parseSteps(v, 240, 16)
			c.STPPriority = uint8(n)
			return err
		},
		format: func(c PortConfig) string { return strconv.Itoa(int(c.STPPriority)) },
		As:     "priority", Meaning: "0 to 240",
		value: func(c PortConfig) any { return c.STPPriority },
	},
	autoOnOff("stp-edge", "treat the port as an edge, with no bridge behind it, so that it forwards at once", func(c *PortConfig) *string { return &c.STPEdge }).as("edge").meaning(`"auto", "on" or "off", like the next`),
	autoOnOff("stp-p2p", "treat the link as point-to-point, with only one other bridge", func(c *PortConfig) *string { return &c.STPPointToPoint }).as("p2p"),
	onOff("bpdu-guard", false, "shut the port down when it receives a BPDU", func(c *PortConfig) *bool { return &c.BPDUGuard }).as("guard"),
	onOff("bpdu-filter", false, "neither send nor accept BPDUs at the port", func(c *PortConfig) *bool { return &c.BPDUFilter }),
	onOff("root-guard", false, "accept no better root from the port", func(c *PortConfig) *bool { return &c.RootGuard }).as("root_block"),
}

// String formats the guard as its setting accepts it.
func (g LoopGuard) String() string {
	switch {
	case !g.On:
		return "off"
	case g.Block == 0:
		return "report"
	}
	return formatSeconds(g.Block)
}

func parseLoopGuard(v string) (LoopGuard, error) {
	switch v {
	case "off":
		return LoopGuard{}, nil
	case "report":
		return LoopGuard{On: true}, nil
	}
	d, err := parseSeconds(v)
	if err != nil || d < time.Second || d > time.Hour {
		return LoopGuard{}, fmt.Errorf("not a time to block for; give off, report, or 1s to 3600s")
	}
	return LoopGuard{On: true, Block: d}, nil
}

// noStorm is the word for no limit.
const noStorm = "none"

func stormLimit(name, kind string, index int) Setting[PortConfig] {
	return Setting[PortConfig]{
		Name: name, Value: "RATE|none", Default: noStorm,
		Help: "limit incoming " + kind + " to this rate, such as 500pps or 10mbit: 1pps to 4294967295pps, 1kbit to 4294gbit, or none; a bare number is pps",
		parse: func(c *PortConfig, v string) (err error) {
			c.Storm[index], err = ParseStormLimit(v)
			return err
		},
		format: func(c PortConfig) string { return c.Storm[index].String() },
	}
}

// rateUnits are the units of a storm limit, in frames or in 1000 bits.
var rateUnits = []struct {
	suffix   string
	factor   uint64
	kilobits bool
}{{"pps", 1, false}, {"gbit", 1000000, true}, {"mbit", 1000, true}, {"kbit", 1, true}}

const rateExample = "one such as 100mbit or 5000pps (1kbit to 4294gbit, 1pps to 4294967295pps), or none"

// ParseStormLimit parses a rate per second: frames, "500" or "500pps", or bits, "64kbit", "10mbit",
// "1gbit"; "none" is no limit.
func ParseStormLimit(s string) (StormLimit, error) {
	if s == noStorm {
		return StormLimit{}, nil
	}
	digits, factor, kilobits := s, uint64(1), false
	for _, u := range rateUnits {
		if d, ok := strings.CutSuffix(s, u.suffix); ok {
			digits, factor, kilobits = d, u.factor, u.kilobits
			break
		}
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err == nil && n == 0 {
		return StormLimit{}, fmt.Errorf("a limit of 0 would let nothing through; give 1pps or more, or none for no limit")
	}
	if unit := strings.TrimLeft(s, "0123456789"); unit != "" && unit != s && unit != "pps" && strings.HasSuffix(strings.ToLower(unit), "bps") {
		return StormLimit{}, fmt.Errorf("not a rate; bits are kbit, mbit or gbit; give %s", rateExample)
	}
	if err != nil || n*factor > math.MaxUint32 {
		return StormLimit{}, fmt.Errorf("not a rate; give %s", rateExample)
	}
	return StormLimit{Rate: uint32(n * factor), Kilobits: kilobits}, nil
}

// String formats the limit as ParseStormLimit accepts it, in the largest unit that is exact.
func (l StormLimit) String() string {
	if l.Rate == 0 {
		return noStorm
	}
	for _, u := range rateUnits {
		if u.kilobits == l.Kilobits && uint64(l.Rate)%u.factor == 0 {
			return strconv.FormatUint(uint64(l.Rate)/u.factor, 10) + u.suffix
		}
	}
	panic("a unit of 1 is in the table")
}

// The settings that limit all frames that a port receives, and all that it sends.
const (
	RateIn  = "rate-in"
	RateOut = "rate-out"
)

func rateLimit(name, which string, way int) Setting[PortConfig] {
	return Setting[PortConfig]{
		Name: name, Value: "RATE[:BURST]|none", Default: noStorm,
		Help: "limit " + which + " traffic to this rate, such as 100mbit, 100mbit:4mb or 5000pps, 1kbit to 4294gbit, or none; a burst is in bytes, kb or mb (of 1024), or in frames",
		parse: func(c *PortConfig, v string) (err error) {
			c.Rate[way], err = ParseRateLimit(v)
			return err
		},
		format: func(c PortConfig) string { return c.Rate[way].String() },
	}
}

// MaxBurst is the time that a limit's burst may take at its rate: a longer burst would suspend the
// limit for as long.
const MaxBurst = time.Minute

// MinBurst is the minimum burst of a limit in bits, in bytes: an Ethernet frame. A smaller burst
// would also let a frame pass, and delay the next ones.
const MinBurst = 1514

// burstUnits are the units of a burst in bytes, as in tc(8).
var burstUnits = []struct {
	suffix string
	factor uint64
}{{"mb", 1 << 20}, {"kb", 1 << 10}, {"", 1}}

// ParseRateLimit parses a limit as [ParseStormLimit] does, with a burst after a colon: in bytes,
// "64kb", "4mb" or "65536", or in frames if the rate is in frames. The rate must have a unit,
// because users expect bits here.
func ParseRateLimit(s string) (RateLimit, error) {
	rate, burst, with := strings.Cut(s, ":")
	l, err := ParseStormLimit(rate)
	if err == nil && strings.Trim(rate, "0123456789") == "" {
		return RateLimit{}, fmt.Errorf("a rate needs its unit; give %smbit, or %spps for frames a second", rate, rate)
	}
	most := RateLimit{StormLimit: l}.MostBurst()
	if err != nil || !with {
		usual := RateLimit{StormLimit: l}
		if l.Rate != 0 && usual.UsualBurst() > most && most < math.MaxUint32 { // it would last for minutes
			usual.Burst = uint32(most)
		}
		return usual, err
	}
	if l.Rate == 0 {
		return RateLimit{}, fmt.Errorf("none has no burst; give none alone")
	}
	least, unit, digits, factor := uint64(1), "frames", burst, uint64(1)
	if l.Kilobits {
		least, unit = MinBurst, "bytes"
		for _, u := range burstUnits {
			if d, ok := strings.CutSuffix(burst, u.suffix); ok {
				digits, factor = d, u.factor
				break
			}
		}
	}
	n, err := strconv.ParseUint(digits, 10, 32)
	if err != nil || n*factor < least || n*factor > most {
		return RateLimit{}, fmt.Errorf("not a burst; give %d to %d %s, at most what passes in a minute, or leave it out: the default of a quarter of a second suits TCP",
			least, most, unit)
	}
	return RateLimit{l, uint32(n * factor)}, nil
}

// UsualBurst returns the default burst of a limit (RATE_BURST of bpf/rate.h), in bytes or in
// frames.
func (l RateLimit) UsualBurst() uint64 {
	if l.Kilobits {
		return max(uint64(l.Rate)*1000/8/4, 65536)
	}
	return max(uint64(l.Rate)/4, 64)
}

// MostBurst returns the maximum burst of a limit with this rate, in bytes or in frames.
func (l RateLimit) MostBurst() uint64 {
	n := uint64(l.Rate) * uint64(MaxBurst/time.Second)
	if l.Kilobits {
		n = max(n*1000/8, MinBurst)
	}
	return min(n, math.MaxUint32)
}

// String formats the limit as ParseRateLimit accepts it.
func (l RateLimit) String() string {
	if l.Burst == 0 {
		return l.StormLimit.String()
	}
	for _, u := range burstUnits {
		if l.Kilobits && uint64(l.Burst)%u.factor == 0 {
			return l.StormLimit.String() + ":" + strconv.FormatUint(uint64(l.Burst)/u.factor, 10) + u.suffix
		}
	}
	return l.StormLimit.String() + ":" + strconv.FormatUint(uint64(l.Burst), 10)
}

// The settings for the protected domains of a port; IsolatedSetting is for IsolatedDomain only.
const (
	IsolatedSetting  = "isolated"
	ProtectedSetting = "protected"
)

// IsolatedDomain is protected domain 1, which is `isolated` in Linux's bridge.
const IsolatedDomain Domains = 1 << 1

// Isolated reports whether the port is in protected domain 1.
func (c PortConfig) Isolated() bool { return c.Protected&IsolatedDomain != 0 }

// Domains is a set of protected domains; bit N stands for domain N, 1 to 31.
type Domains uint32

// ParseDomains parses a list of domains, "1,2", or "none".
func ParseDomains(s string) (Domains, error) {
	if s == "none" {
		return 0, nil
	}
	var d Domains
	for f := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(f)
		if err != nil || n < 1 || n > 31 {
			return 0, fmt.Errorf("%q is not a protected domain; give numbers 1 to 31 such as 1,2, or none", f)
		}
		d |= 1 << n
	}
	return d, nil
}

// List returns the domains in ascending order, never nil.
func (d Domains) List() []int {
	list := []int{}
	for rest := uint32(d); rest != 0; rest &= rest - 1 {
		list = append(list, bits.TrailingZeros32(rest))
	}
	return list
}

// String formats the domains as ParseDomains accepts them.
func (d Domains) String() string {
	if d == 0 {
		return "none"
	}
	var words []string
	for _, n := range d.List() {
		words = append(words, strconv.Itoa(n))
	}
	return strings.Join(words, ",")
}

// ErrNoSetting means that a change names an unknown setting.
var ErrNoSetting = errors.New("no such setting; see --help")

// Configure returns config with the changes made, in their order. For a change that can't be made,
// it calls wrong with the reason.
func Configure[T any](settings []Setting[T], config T, changes []Change, wrong func(Change, error)) T {
	for _, ch := range changes {
		err := usagef("--"+ch.Name, "%w", ErrNoSetting)
		if i := slices.IndexFunc(settings, func(s Setting[T]) bool { return s.Name == ch.Name }); i >= 0 {
			err = settings[i].Set(&config, ch.Value)
		}
		if err != nil {
			wrong(ch, err)
		}
	}
	return config
}

// configure does the same as Configure, and returns the first error.
func configure[T any](settings []Setting[T], config T, changes []Change) (_ T, first error) {
	config = Configure(settings, config, changes, func(_ Change, err error) {
		if first == nil {
			first = err
		}
	})
	return config, first
}

// Defaults returns the configuration of a new object.
func Defaults[T any](settings []Setting[T]) (config T) {
	for _, s := range settings {
		if err := s.parse(&config, s.Default); err != nil {
			panic(err) // a defect of the table above
		}
	}
	return config
}

// PortDefaults returns the configuration of a new port of a type. A host port is trusted: the
// host's own server, relay or router is behind it.
func PortDefaults(kind string) PortConfig {
	config := Defaults(PortSettings)
	config.Trusted = kind == TypeHost
	return config
}

func onOff[T any](name string, def bool, help string, field func(*T) *bool) Setting[T] {
	return Setting[T]{
		Name: name, Value: OnOff, Default: formatOnOff(def), Help: help,
		parse: func(c *T, v string) (err error) {
			*field(c), err = parseOnOff(v)
			return err
		},
		format: func(c T) string { return formatOnOff(*field(&c)) },
	}
}

func autoOnOff(name, help string, field func(*PortConfig) *string) Setting[PortConfig] {
	return Setting[PortConfig]{
		Name: name, Value: "auto|on|off", Default: Auto, Help: help,
		parse: func(c *PortConfig, v string) error {
			if v != Auto && v != On && v != Off {
				return fmt.Errorf("neither auto, on nor off; give one of these")
			}
			*field(c) = v
			return nil
		},
		format: func(c PortConfig) string { return *field(&c) },
	}
}

func parseOnOff(v string) (bool, error) {
	switch v {
	case "on":
		return true, nil
	case "off":
		return false, nil
	}
	return false, fmt.Errorf("neither on nor off; give on or off")
}

func formatOnOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}

func parseUint(v string, lo, hi uint32) (uint32, error) {
	n, err := strconv.ParseUint(v, 10, 32)
	if errors.Is(err, strconv.ErrSyntax) && !negative(v) {
		return 0, fmt.Errorf("not a number; give a number %d to %d", lo, hi)
	}
	if err != nil || uint32(n) < lo || uint32(n) > hi {
		return 0, fmt.Errorf("out of range; give a number %d to %d", lo, hi)
	}
	return uint32(n), nil
}

// negative reports whether the text is a number below 0, which is out of any range.
func negative(v string) bool {
	_, err := strconv.ParseInt(v, 10, 64)
	return strings.HasPrefix(v, "-") && (err == nil || errors.Is(err, strconv.ErrRange))
}

// parseSteps parses a multiple of step.
func parseSteps(v string, hi, step uint32) (uint32, error) {
	n, err := parseUint(v, 0, hi)
	if err != nil || n%step != 0 {
		return 0, fmt.Errorf("out of range; give 0 to %d in steps of %d", hi, step)
	}
	return n, nil
}

// parseVID parses a VLAN identifier (IEEE 802.1Q-2022 table 9-2: 0 and 4095 are reserved).
func parseVID(v string) (uint16, error) {
	n, err := strconv.ParseUint(v, 10, 16)
	if err != nil || n < 1 || n > maxVLAN {
		return 0, fmt.Errorf("%q is not a VLAN; give a number 1 to %d", v, maxVLAN)
	}
	return uint16(n), nil
}

// bareSeconds is the help text about numbers without a unit in ParseTime.
const bareSeconds = "a bare number is seconds"

// ParseTime parses a duration; a bare number is in seconds, as in the kernel's tools. The error is
// for a number that is too large, or a text that is no duration.
func ParseTime(v string) (time.Duration, error) {
	if n, err := strconv.ParseInt(v, 10, 64); err == nil || errors.Is(err, strconv.ErrRange) {
		if err != nil || n != int64(int32(n)) {
			return 0, errTimeRange
		}
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(v)
	if err != nil {
		return 0, errNoTime
	}
	return d, nil
}

var errNoTime, errTimeRange = errors.New("not a time"), errors.New("out of range")

// parseSeconds parses a duration of whole seconds, as ParseTime does.
func parseSeconds(v string) (time.Duration, error) {
	d, err := ParseTime(v)
	if err == nil && d%time.Second != 0 {
		err = errors.New("not whole seconds")
	}
	return d, err
}

// parseSecondsIn does the same as parseSeconds within limits, which the error names.
func parseSecondsIn(v string, lo, hi time.Duration) (time.Duration, error) {
	d, err := parseSeconds(v)
	if err == nil && (d < lo || d > hi) {
		err = errTimeRange
	}
	if err != nil {
		return 0, fmt.Errorf("%w; give whole seconds, %s to %s", err, formatSeconds(lo), formatSeconds(hi))
	}
	return d, nil
}

// formatSeconds formats whole seconds as parseSeconds accepts them.
func formatSeconds(d time.Duration) string { return strconv.Itoa(int(d/time.Second)) + "s" }

func parseAgeing(v string) (time.Duration, error) {
	return parseSecondsIn(v, MinAgeing, MaxAgeing)
}
