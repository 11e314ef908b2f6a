// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"net"
	"slices"

	"bascule/datapath"
)

// Talker is an address with the counters of its frames. Frames and Bytes only increase; they
// restart at zero after the address was forgotten. A frame that the device keeps in one piece (GSO)
// counts once, with all of its bytes.
type Talker struct {
	MAC    net.HardwareAddr
	VLAN   uint16 // 1 to 4094; 0 stands for frames without a tag
	Port   string // port where the address was last seen
	Frames uint64 // frames with this source address
	Bytes  uint64
}

// CountTalkers counts frames by their source addresses at a bridge, until stop is called or the
// process ends. If bridge is "", it counts at all bridges. Any number of processes can count at a
// time.
func (s *Switch) CountTalkers(bridge string) (stop func() error, err error) {
	names := []string{bridge}
	if bridge == "" {
		list, err := s.Bridges()
		if err != nil {
			return nil, err
		}
		names = nil
		for _, b := range list {
			names = append(names, b.Name)
		}
	}
	var stops []func() error
	stop = func() error {
		var errs []error
		for _, f := range stops {
			errs = append(errs, f())
		}
		return errors.Join(errs...)
	}
	for _, name := range names {
		one, err := s.hold("count the frames of "+name+" by address", name, datapath.WatchTalkers, func(*draft) error { return nil })
		if err != nil {
			return nil, errors.Join(err, stop())
		}
		stops = append(stops, one)
	}
	return stop, nil
}

// Talkers returns the addresses that have sent frames to a bridge since counting began. If bridge
// is "", it returns the addresses of all bridges.
func (s *Switch) Talkers(bridge string) (list []Talker, err error) {
	found := map[string][]Talker{}
	err = s.each(showWhat("the talkers", bridge), bridge, func(name string, b *datapath.Bridge) error {
		talkers, err := b.Talkers()
		if err != nil {
			return err
		}
		devices, err := links()
		if err != nil {
			return err
		}
		found[name] = nil
		for _, t := range talkers {
			p := datapath.PortAt(&b.Config, t.Port)
			if p == nil {
				continue // the port has been removed
			}
			found[name] = append(found[name], Talker{
				MAC: net.HardwareAddr(t.MAC[:]), VLAN: t.VLAN, Port: portName(b, p, devices),
				Frames: t.Frames, Bytes: t.Bytes,
			})
		}
		return nil
	})
	for _, talkers := range found {
		list = slices.Concat(list, talkers)
	}
	return list, err
}
