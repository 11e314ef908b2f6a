// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"
	"strconv"
	"strings"

	"bascule/datapath"
)

// ParseVLANs reads a list of VLANs and ranges of them, such as 10,20-30. The
// error is a *[UsageError] where the list is empty, or has what is no VLAN, a
// range whose end comes first, or a VLAN twice.
func ParseVLANs(s string) ([]uint16, error) {
	var list []uint16
	seen := map[uint16]bool{}
	for f := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(f, "-")
		if from == "" { // of a negative number, too
			from, isRange = f, false
		}
		first, err := parseVID(from)
		last := first
		if err == nil && isRange {
			last, err = parseVID(to)
		}
		switch {
		case err != nil:
			return nil, usagef("VLANs "+strconv.Quote(s), "%w, or a list such as 10,20-30", err)
		case last < first:
			return nil, usagef("VLANs "+strconv.Quote(s), "%s begins after its end; give the lower VLAN first", f)
		}
		for vid := int(first); vid <= int(last); vid++ {
			if seen[uint16(vid)] {
				return nil, usagef("VLANs "+strconv.Quote(s), "VLAN %d is there twice; give each VLAN once", vid)
			}
			seen[uint16(vid)] = true
			list = append(list, uint16(vid))
		}
	}
	slices.Sort(list)
	return list, nil
}

// FormatVLANs prints VLANs as ParseVLANs takes them, in the shortest ranges;
// list is in rising order.
func FormatVLANs(list []uint16) string {
	var words []string
	for i := 0; i < len(list); {
		first := i
		for i++; i < len(list) && list[i] == list[i-1]+1; i++ {
		}
		word := strconv.Itoa(int(list[first]))
		if i-first > 1 {
			word += "-" + strconv.Itoa(int(list[i-1]))
		}
		words = append(words, word)
	}
	return strings.Join(words, ",")
}

func filters(c *datapath.Config) bool {
	return datapath.BridgeFlags(c.Flags)&datapath.BridgeVLANs != 0
}

// vlans returns the bridge's VLANs as the change has them so far, nil if it has
// never had any.
func (c *change) vlans() (*datapath.VLANs, error) {
	if c.tables.VLANs != nil {
		return c.tables.VLANs, nil
	}
	return c.bridge.VLANs()
}
