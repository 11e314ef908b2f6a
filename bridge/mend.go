// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"slices"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// mend completes the work of commands that were killed, and takes over bridges of former layouts.
// It returns the names of bridges with host ports, and of bridges with rules of pf.
func (s *Switch) mend(store *datapath.Store) (hosts, ruled []string, err error) {
	if err := store.Sweep(follower{}); err != nil {
		return nil, nil, err
	}
	names, err := store.Names()
	if err != nil {
		return nil, nil, err
	}
	dirty, strange := false, false
	used := map[int]bool{} // indexes of switch ends; their ports may have been renamed since
	for _, name := range names {
		b, err := store.Open(name)
		if errors.Is(err, datapath.ErrLayout) {
			if b, err = s.adopted(store, name, b, err); b == nil {
				strange = true
				continue
			}
			dirty = true // a command of the other version may have been killed
		}
		if err != nil {
			return nil, nil, fmt.Errorf("cannot read bridge %s: %w", name, err)
		}
		if b.Dirty() {
			dirty = true
			if err := mendBridge(b); err != nil {
				return nil, nil, fmt.Errorf("cannot repair bridge %s: %w", name, err)
			}
		}
		ended, err := endStaleWatches(b)
		if err != nil {
			return nil, nil, fmt.Errorf("cannot end a watch of bridge %s: %w", name, err)
		}
		dirty = dirty || ended
		if b.PFLoaded() {
			ruled = append(ruled, name)
		}
		for _, p := range datapath.Ports(&b.Config) {
			if p.Notes&datapath.PortHost != 0 {
				_, back := b.Away(p)
				used[int(p.Ifindex)], used[int(back)] = true, true
				if !slices.Contains(hosts, name) {
					hosts = append(hosts, name)
				}
			}
		}
	}
	if !dirty {
		return hosts, ruled, nil
	}
	if err := cutHalves(store); err != nil {
		return nil, nil, fmt.Errorf("cannot repair: %w", err)
	}
	devices, err := links()
	if err != nil {
		return nil, nil, err
	}
	for _, l := range devices {
		// Any of them may belong to a bridge that can't be read.
		if isSwitchEnd(l) && !used[l.Attrs().Index] && !strange {
			if err := netlink.LinkDel(l); err != nil {
				return nil, nil, fmt.Errorf("remove %s: %w", l.Attrs().Name, err)
			}
		}
	}
	return hosts, ruled, eachOpen(store, names, func(_ string, b *datapath.Bridge) error { return b.Done() })
}

func mendBridge(b *datapath.Bridge) error {
	if err := b.Mend(follower{}); err != nil {
		return err
	}
	if err := settleAll(b); err != nil {
		return err
	}
	if err := takeOver(b); err != nil {
		return err
	}
	for _, p := range append(datapath.Ports(&b.Config), nil) {
		if _, err := dropSurplus(b, p, ""); err != nil {
			return err
		}
	}
	return nil
}
