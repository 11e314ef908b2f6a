// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"bascule/bridge"
	"bascule/plug"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// The values of flags. Help, man pages and errors call a value by its Type,
// a method that pflag requires.

// settingFlag is the flag of one setting. Its value is checked at once and
// appended to the changes that the command will make, in order.
type settingFlag[T any] struct {
	setting bridge.Setting[T]
	initial string
	changes *[]bridge.Change
}

func (f *settingFlag[T]) Set(value string) error {
	var config T
	if err := f.setting.Set(&config, value); err != nil {
		return err
	}
	*f.changes = append(*f.changes, bridge.Change{Name: f.setting.Name, Value: value})
	return nil
}

func (f *settingFlag[T]) Type() string   { return f.setting.Value }
func (f *settingFlag[T]) String() string { return f.initial }

// addSettings gives cmd a flag for every setting and returns the list for the changes that the
// command line gives. For a new object, help mentions the defaults.
func addSettings[T any](cmd *cobra.Command, settings []bridge.Setting[T], isNew bool) *[]bridge.Change {
	changes := new([]bridge.Change)
	for _, s := range settings {
		value := &settingFlag[T]{setting: s, changes: changes}
		if isNew {
			value.initial = s.Default
		}
		flag := cmd.Flags().VarPF(value, s.Name, "", s.Help)
		if s.Value == bridge.OnOff {
			flag.NoOptDefVal = "on"
		}
		if s.Value == bridge.PortName {
			continue // the command that has the ports completes it
		}
		completeFlag(cmd, s.Name, these(s.Words()))
	}
	return changes
}

// settingsIn returns the settings of config that differ from a new object's, in the form of flags,
// without the dashes.
func settingsIn[T any](settings []bridge.Setting[T], made, config T) []string {
	// Applied to a new object in order, setting by setting: if two settings are equivalent
	// (isolated, protected), only the first one is listed. A value from a newer bascule that
	// Set refuses is listed, too.
	var list []string
	for _, s := range settings {
		value := s.Format(config)
		if value == s.Format(made) {
			continue
		}
		_ = s.Set(&made, value)
		if s.Value == bridge.OnOff && value == "on" {
			list = append(list, s.Name)
		} else {
			list = append(list, s.Name+"="+value)
		}
	}
	return list
}

// word is a flag's value: any text that is not empty.
type word struct{ name, text string }

func (w *word) Set(value string) error {
	if value == "" {
		return fmt.Errorf("%s is empty", w.name)
	}
	w.text = value
	return nil
}

func (w *word) Type() string   { return w.name }
func (w *word) String() string { return w.text }

// parseMAC reads the address of a station. The error names the argument or
// flag, such as --mac.
func parseMAC(name, value string) (net.HardwareAddr, error) {
	mac, err := bridge.ParseMAC(value)
	var wrong *bridge.UsageError
	if errors.As(err, &wrong) {
		err = &bridge.UsageError{Object: name + " " + value, Err: wrong.Err}
	}
	return mac, err
}

// ownMAC is a flag's value: the address of a station, or auto for the automatic address.
type ownMAC struct {
	mac  net.HardwareAddr
	auto bool
}

func (v *ownMAC) Set(value string) (err error) {
	v.mac, v.auto = nil, value == bridge.Auto
	if !v.auto {
		if v.mac, err = bridge.ParseMAC(value); err != nil {
			err = fmt.Errorf("%w, or auto", errors.Unwrap(err))
		}
	}
	return err
}

func (v *ownMAC) Type() string   { return "MAC|auto" }
func (v *ownMAC) String() string { return "" }

// choice is a flag's value: one word of a list.
type choice struct {
	words []string
	text  string
}

func (c *choice) Set(value string) error {
	for _, w := range c.words {
		if value == w {
			c.text = value
			return nil
		}
	}
	return fmt.Errorf("give %s", bridge.OneOf(c.words))
}

func (c *choice) Type() string   { return strings.Join(c.words, "|") }
func (c *choice) String() string { return c.text }

// addChoice gives cmd a flag that is one of words; initial is the default word, "" for none.
func addChoice(cmd *cobra.Command, name, initial, help string, words ...string) *choice {
	c := &choice{words: words, text: initial}
	cmd.Flags().Var(c, name, help)
	completeFlag(cmd, name, these(words))
	return c
}

// vlan is a flag's value: a VLAN (IEEE 802.1Q-2022, 9.6: 1 to 4094).
type vlan struct {
	least uint16 // 0 if the flag may name untagged frames, otherwise 1
	id    *uint16
}

func (v *vlan) Set(value string) error {
	if v.id != nil {
		return errors.New("given twice; give one VLAN")
	}
	parse := bridge.ParseVLAN
	if v.least == 0 {
		parse = bridge.ParseVLANOrNone
	}
	id, err := parse(value)
	if err == nil {
		v.id = &id
	}
	return err
}

func (v *vlan) Type() string   { return "VLAN" }
func (v *vlan) String() string { return "" }

// size is a flag's value: a number of bytes.
type size struct{ bytes, least, most int }

func (s *size) Set(value string) error {
	digits := strings.TrimRight(value, "KMG")
	shift, ok := map[string]int{"": 0, "K": 10, "M": 20, "G": 30}[value[len(digits):]]
	n, err := strconv.ParseUint(digits, 10, 32)
	why := ""
	bytes := int(n) << shift
	switch {
	case !ok || err != nil && !errors.Is(err, strconv.ErrRange):
		why = "not a size"
	case err != nil || bytes < s.least || bytes > s.most:
		why = "out of range"
	default:
		s.bytes = bytes
		return nil
	}
	return fmt.Errorf("%s; give %s to %s", why, inBytes(s.least), inBytes(s.most))
}

func (s *size) Type() string   { return "SIZE" }
func (s *size) String() string { return inBytes(s.bytes) }

// inBytes formats a number of bytes for size.
func inBytes(n int) string {
	unit := 0
	for n != 0 && n%1024 == 0 && unit < 3 {
		n, unit = n/1024, unit+1
	}
	return strconv.Itoa(n) + []string{"", "K", "M", "G"}[unit]
}

// defaultOf returns the flag's default, "" if it is not worth printing.
func defaultOf(f *pflag.Flag) string {
	switch f.Value.Type() + " " + f.DefValue {
	case "bool false", "int 0", "count 0", "stringSlice []", "stringArray []":
		return ""
	}
	return f.DefValue
}

// orNone returns the VLAN, or 0 for none.
func (v *vlan) orNone() uint16 {
	if v.id == nil {
		return 0
	}
	return *v.id
}

// macFlag is a flag's value: any Ethernet address.
type macFlag struct{ mac net.HardwareAddr }

func (v *macFlag) Set(value string) error {
	mac, err := net.ParseMAC(value)
	if err != nil || len(mac) != 6 {
		return errors.New("not a MAC address; give six bytes such as 02:00:00:00:00:01")
	}
	v.mac = mac
	return nil
}

func (v *macFlag) Type() string   { return "MAC" }
func (v *macFlag) String() string { return "" }

// addressFlag is a flag's value: an IP address.
type addressFlag struct{ addr netip.Addr }

func (v *addressFlag) Set(value string) error {
	addr, err := netip.ParseAddr(value)
	if err != nil || addr.Zone() != "" {
		return errors.New("not an IP address; give one such as 192.0.2.1 or 2001:db8::1")
	}
	v.addr = addr
	return nil
}

func (v *addressFlag) Type() string   { return "ADDR" }
func (v *addressFlag) String() string { return "" }

// number is a flag's value: a number in a range, nil without the flag.
type number struct {
	name        string
	least, most int
	hex         bool
	n           *int
}

func (v *number) Set(value string) error {
	base, format, why := 10, "%d", "not a number"
	if v.hex {
		base, format, why, value = 16, "%04x", "not hexadecimal", strings.TrimPrefix(value, "0x")
	}
	n, err := strconv.ParseInt(value, base, 32)
	i := int(n)
	if err == nil && v.least <= i && i <= v.most {
		v.n = &i
		return nil
	}
	if err == nil || errors.Is(err, strconv.ErrRange) {
		why = "out of range"
	}
	return fmt.Errorf("%s; give "+format+" to "+format, why, v.least, v.most)
}

func (v *number) Type() string   { return v.name }
func (v *number) String() string { return "" }

// newVLANs has the flags for the VLANs of a new port.
type newVLANs struct {
	vlan   vlan
	tagged []uint16
}

func addVLANs(cmd *cobra.Command) *newVLANs {
	v := &newVLANs{vlan: vlan{least: 1}}
	cmd.Flags().Var(&v.vlan, "vlan", "the port's PVID: the VLAN of its frames, which have no tag")
	cmd.Flags().Var(&vlans{&v.tagged}, "tagged", "make the port a tagged member of these VLANs, such as 10,20-30; without --vlan, of no others")
	return v
}

// ranges returns the VLANs; nil means the defaults of a new port.
func (v *newVLANs) ranges() []bridge.VLANRange { return plug.VLANs(v.vlan.orNone(), v.tagged) }

// uint16 returns the number, whose limit must fit into 16 bits.
func (v *number) uint16() *uint16 {
	if v.n == nil {
		return nil
	}
	n := uint16(*v.n)
	return &n
}

// period is a flag's value: an interval, 0 without the flag.
type period struct{ d time.Duration }

const minPeriod, maxPeriod = 100 * time.Millisecond, 24 * time.Hour

// Set parses a duration; a bare number is in seconds, as in settings.
func (v *period) Set(value string) error {
	d, err := bridge.ParseTime(value)
	if err == nil && (d < minPeriod || d > maxPeriod) {
		err = errors.New("out of range")
	}
	if err != nil {
		return fmt.Errorf("%w; give 100ms to 24h, such as 1s", err)
	}
	v.d = d
	return nil
}

func (v *period) Type() string { return "TIME" }

func (v *period) String() string {
	if v.d == 0 {
		return ""
	}
	return v.d.String()
}
