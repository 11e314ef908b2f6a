// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"net"
	"net/netip"

	"bascule/bridge"
)

// fabric is what the commands need of a switch; *bridge.Switch is one.
type fabric interface {
	AddBridge(name string, changes []bridge.Change) error
	SetBridge(name string, changes []bridge.Change) (notes []string, err error)
	DelBridge(name string) error
	Bridges() ([]bridge.Info, error)
	Bridge(name string) (bridge.Info, error)

	AddPort(bridge, port string, o bridge.PortOptions) (warnings []string, err error)
	SetPort(bridge, port string, o bridge.PortOptions) (warnings []string, err error)
	DelPort(bridge, port string) error
	Ports(bridge string) ([]bridge.Port, error)

	FDB(bridge string, m bridge.Match) ([]bridge.Entry, error)
	AddEntry(bridge string, e bridge.Entry) error
	DelEntry(bridge string, mac net.HardwareAddr, vlan uint16) error
	Flush(bridge string, m bridge.Match) (n int, err error)

	Bindings(bridge, port string) ([]bridge.Binding, error)
	AddBinding(b bridge.Binding) error
	DelBinding(bridge string, a netip.Addr, vlan uint16) error
	FlushBindings(bridge string, m bridge.Match) (n int, err error)

	Monitor(ctx context.Context, bridge string, report func(bridge.Event) error) error
	Close() error
}
