// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"time"
)

// A Setting is one thing that a bridge or a port can be told. The tables
// BridgeSettings and PortSettings are the only place where a setting is
// defined: flags, help, man pages, completion and validation come from them.
type Setting[T any] struct {
	Name    string // as on the command line, without dashes
	Value   string // what the value looks like: OnOff, "N", "LIST", "TIME"
	Default string // the value of a new object
	Help    string // one line
	parse   func(*T, string) error
	format  func(T) string
}

// OnOff is the Value of settings that are switches: on or off, and on when
// the flag is given alone.
const OnOff = "on|off"

// Set parses value into config; the error names what was expected.
func (s Setting[T]) Set(config *T, value string) error {
	if err := s.parse(config, value); err != nil {
		return usagef("--"+s.Name+" "+value, "%w", err)
	}
	return nil
}

// Format returns the setting's value in config, as Set takes it.
func (s Setting[T]) Format(config T) string { return s.format(config) }

// A Change is one setting's new value, as given on the command line.
type Change struct {
	Name  string
	Value string
}

// BridgeConfig is what a bridge was told.
type BridgeConfig struct {
	Ageing       time.Duration // after this long unheard an address is unknown again
	FDBMax       uint32        // most dynamic entries
	GroupFwdMask uint16        // bit X set: frames to 01:80:C2:00:00:0X are forwarded
}

// Limits of the settings.
const (
	MinAgeing = time.Second
	MaxAgeing = 1000000 * time.Second
	MaxFDB    = 4 << 20 // dynamic entries of a bridge
)

// BridgeSettings are the settings of a bridge.
var BridgeSettings = []Setting[BridgeConfig]{
	{
		Name: "ageing", Value: "TIME", Default: "300s",
		Help: "forget an address unheard for this long, 1s to 1000000s",
		parse: func(c *BridgeConfig, v string) (err error) {
			c.Ageing, err = parseAgeing(v)
			return err
		},
		format: func(c BridgeConfig) string { return strconv.Itoa(int(c.Ageing/time.Second)) + "s" },
	},
	{
		Name: "fdb-max", Value: "N", Default: "65536",
		Help: "learn at most N addresses, 1 to 4194304",
		parse: func(c *BridgeConfig, v string) (err error) {
			c.FDBMax, err = parseUint(v, 1, MaxFDB)
			return err
		},
		format: func(c BridgeConfig) string { return strconv.Itoa(int(c.FDBMax)) },
	},
	{
		Name: "group-fwd-mask", Value: "MASK", Default: "0",
		Help: "forward reserved addresses 01:80:C2:00:00:0X whose bit X is set, 0 to 0xffff",
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
	},
}

// PortConfig is what a port was told.
type PortConfig struct {
	Learn          bool    // source addresses are learned
	Discover       bool    // unknown unicast floods reach the port
	MulticastFlood bool    // multicast floods reach the port
	BroadcastFlood bool    // broadcasts reach the port
	Hairpin        bool    // a frame may leave by the port it came in by
	Protected      Domains // two ports that share a domain never talk
	FDBMax         uint32  // most dynamic entries of the port, 0 for no limit of its own
}

// PortSettings are the settings of a port.
var PortSettings = []Setting[PortConfig]{
	onOff("learn", true, "learn source addresses", func(c *PortConfig) *bool { return &c.Learn }),
	onOff("discover", true, "receive floods of unknown unicast", func(c *PortConfig) *bool { return &c.Discover }),
	onOff("mcast-flood", true, "receive floods of multicast", func(c *PortConfig) *bool { return &c.MulticastFlood }),
	onOff("bcast-flood", true, "receive broadcasts", func(c *PortConfig) *bool { return &c.BroadcastFlood }),
	onOff("hairpin", false, "let a frame leave by the port it came in by", func(c *PortConfig) *bool { return &c.Hairpin }),
	{
		Name: "isolated", Value: OnOff, Default: "off",
		Help: "never talk to another isolated port; the same as protected domain 1",
		parse: func(c *PortConfig, v string) error {
			on, err := parseOnOff(v)
			c.Protected &^= 1 << 1
			if on {
				c.Protected |= 1 << 1
			}
			return err
		},
		format: func(c PortConfig) string { return formatOnOff(c.Isolated()) },
	},
	{
		Name: "protected", Value: "LIST", Default: "none",
		Help: "protected domains 1-31, such as 1,2, or none: ports that share one never talk",
		parse: func(c *PortConfig, v string) (err error) {
			c.Protected, err = ParseDomains(v)
			return err
		},
		format: func(c PortConfig) string { return c.Protected.String() },
	},
	{
		Name: "fdb-max", Value: "N", Default: "0",
		Help: "learn at most N addresses on the port, 0 for no limit of its own",
		parse: func(c *PortConfig, v string) (err error) {
			c.FDBMax, err = parseUint(v, 0, MaxFDB)
			return err
		},
		format: func(c PortConfig) string { return strconv.Itoa(int(c.FDBMax)) },
	},
}

// Isolated reports whether the port is in protected domain 1.
func (c PortConfig) Isolated() bool { return c.Protected&(1<<1) != 0 }

// Domains is a set of protected domains; bit N stands for domain N, 1 to 31.
type Domains uint32

// ParseDomains reads a list of domains, "1,2", or "none".
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

// List returns the domains in rising order, never nil.
func (d Domains) List() []int {
	list := []int{}
	for rest := uint32(d); rest != 0; rest &= rest - 1 {
		list = append(list, bits.TrailingZeros32(rest))
	}
	return list
}

// String prints the domains as ParseDomains takes them.
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

// configure returns config with the changes made, in their order.
func configure[T any](settings []Setting[T], config T, changes []Change) (T, error) {
next:
	for _, ch := range changes {
		for _, s := range settings {
			if s.Name == ch.Name {
				if err := s.Set(&config, ch.Value); err != nil {
					return config, err
				}
				continue next
			}
		}
		return config, usagef("--"+ch.Name, "no such setting; see --help")
	}
	return config, nil
}

// defaults returns the configuration of a new object.
func defaults[T any](settings []Setting[T]) T {
	var config T
	for _, s := range settings {
		if err := s.parse(&config, s.Default); err != nil {
			panic(err) // a mistake in the table above
		}
	}
	return config
}

func onOff(name string, def bool, help string, field func(*PortConfig) *bool) Setting[PortConfig] {
	return Setting[PortConfig]{
		Name: name, Value: OnOff, Default: formatOnOff(def), Help: help,
		parse: func(c *PortConfig, v string) (err error) {
			*field(c), err = parseOnOff(v)
			return err
		},
		format: func(c PortConfig) string { return formatOnOff(*field(&c)) },
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
	if err != nil || uint32(n) < lo || uint32(n) > hi {
		return 0, fmt.Errorf("out of range; give a number %d to %d", lo, hi)
	}
	return uint32(n), nil
}

// parseAgeing reads a duration in whole seconds; a bare number is seconds, as
// the kernel's tools take it.
func parseAgeing(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if n, nerr := strconv.ParseUint(v, 10, 32); nerr == nil {
		d, err = time.Duration(n)*time.Second, nil
	}
	if err != nil || d < MinAgeing || d > MaxAgeing || d%time.Second != 0 {
		return 0, fmt.Errorf("out of range; give whole seconds, 1s to 1000000s")
	}
	return d, nil
}
