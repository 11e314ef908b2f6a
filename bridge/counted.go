// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"slices"

	"bascule/datapath"
	"bascule/pf"

	"github.com/vishvananda/netlink"
)

// Counted is a bridge with its counters, for programs that read all of them repeatedly.
type Counted struct {
	Info
	Ports []Port // as of Switch.Ports
	VLANs []VLAN // as of VLANTable; nil if frames of VLANs are not counted
	PF    PFInfo
	// PFCounts has the counts of the rules of all anchors, PFTables the tables of all anchors.
	PFCounts map[*pf.Rule]PFCounts
	PFTables []PFTable
}

// Counted returns all bridges by name, with their counters. It takes a fraction of the time of the
// separate methods, because it reads devices, rules and states once. With an error it returns the
// bridges that were read before.
func (s *Switch) Counted() (list []Counted, err error) {
	var devices map[int]netlink.Link
	err = s.each("", "", func(name string, b *datapath.Bridge) error {
		list = slices.DeleteFunc(list, func(c Counted) bool { return c.Name == name })
		// a port's device may have come after the last bridge was read
		if devices == nil || slices.ContainsFunc(datapath.Ports(&b.Config), func(p *datapath.Port) bool {
			return p.Facts&datapath.PortPatch == 0 && devices[int(p.Ifindex)] == nil
		}) {
			var err error
			if devices, err = links(); err != nil {
				return err
			}
		}
		v, err := viewAmong(devices, name, b)
		if err != nil {
			return err
		}
		usage, err := b.Usage()
		if err != nil {
			return err
		}
		c := Counted{Info: v.info()}
		c.FDBCount = usage[0]
		if c.Ports, err = v.counted(usage); err != nil {
			return err
		}
		if c.Config.VLANStats && filters(&b.Config) {
			if c.VLANs, err = vlanTable(name, b); err != nil {
				return err
			}
		}
		p, err := s.seenPF(devices, name, b)
		if err != nil {
			return err
		}
		traffic, err := b.PFTraffic()
		if err != nil {
			return err
		}
		if c.PF, err = p.info(name, &traffic); err != nil {
			return err
		}
		c.PFCounts = p.counts(&traffic)
		if c.PFTables, err = p.tables(); err != nil {
			return err
		}
		list = append(list, c)
		return nil
	})
	s.forgetPF(list)
	return list, err
}
