// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"io"
	"net"
	"net/netip"

	"bascule/bridge"
	"bascule/config"
	"bascule/frame"
	"bascule/history"
	"bascule/pf"
	"bascule/plug"
	"bascule/rule"
)

// switcher has the functions of a switch that the commands use.
type switcher interface {
	Apply(f config.File, o history.Options) (actions []config.Action, warnings []string, err error)
	Back(n int, o history.Options) (actions []config.Action, warnings []string, err error)
	Confirm(who history.Who, yes bool) (p *history.Pending, warnings []string, err error)
	Pending() (*history.Pending, error)
	States() ([]history.State, error)
	Name() string
	Preview(session config.Session, do func() error) ([]config.Action, error)
	Export(bridges ...string) (f config.File, notes []string, err error)

	Check() ([]bridge.Finding, error)

	AddBridge(name string, changes []bridge.Change) error
	SetBridge(name string, changes []bridge.Change) (notes []string, err error)
	DelBridge(name string) (warnings []string, err error)
	DelBridges() (removed, warnings []string, err error)
	Bridges() ([]bridge.Info, error)
	Bridge(name string) (bridge.Info, error)

	AddPorts(bridge string, ports []string, o bridge.PortOptions) (warnings []string, err error)
	SetPorts(bridge string, ports []string, o bridge.PortOptions) (warnings []string, err error)
	DelPorts(bridge string, ports []string) (notes []string, err error)
	Ports(bridge string) ([]bridge.Port, error)
	Plug(o plug.Plug) (warnings []string, err error)
	Unplug(id string) (notes []string, err error)

	FDB(bridge string, m bridge.Match) ([]bridge.Entry, error)
	GetEntry(bridge string, mac net.HardwareAddr, vlan *uint16) (bridge.Entry, error)
	AddEntry(bridge string, e bridge.Entry) error
	DelEntry(bridge string, mac net.HardwareAddr, vlan *uint16) error
	Flush(bridge string, m bridge.Match) (n int, err error)

	AddSpan(bridge, device string, o bridge.SpanOptions) (warnings []string, err error)
	DelSpan(bridge, device string) error
	Spans(bridge string) ([]bridge.Span, error)
	Rules(bridge, port string) ([]bridge.PortRule, error)
	AddRule(bridge string, r rule.Rule) (notes []string, err error)
	DelRule(bridge string, r rule.Rule) error
	FlushRules(bridge, port string) (n int, err error)
	LoadRules(bridge, port, name string, file io.Reader) (notes []string, err error)
	VLANs(bridge string) ([]bridge.PortVLANs, error)
	VLANTable(bridge string) ([]bridge.VLAN, error)
	AddVLANs(bridge, port string, list []uint16, o bridge.VLANOptions) error
	DelVLANs(bridge, port string, list []uint16) error
	SetPrivateVLANs(bridge string, primary uint16, below bridge.PrivateVLANs) error
	Bindings(bridge, port string) ([]bridge.Binding, error)
	AddBinding(b bridge.Binding) error
	DelBinding(bridge string, a netip.Addr, vlan uint16) error
	FlushBindings(bridge string, m bridge.Match) (n int, err error)

	LoadPF(bridge string, o bridge.PFLoad) (set *pf.Ruleset, notes []string, err error)
	EnablePF(bridge string, on bool) error
	SetPFDebug(bridge, level string) error
	FlushPF(bridge, anchor, which string) (n int, err error)
	ZeroPF(bridge string) error
	PF(bridge string) (bridge.PFInfo, error)
	PFRules(bridge, anchor string) (bridge.PFRules, error)
	PFAnchors(bridge, anchor string, all bool) ([]string, error)
	PFStates(bridge string, k bridge.PFKill) ([]bridge.PFState, error)
	KillPFStates(bridge string, k bridge.PFKill) (n int, err error)
	PFSources(bridge string) ([]bridge.PFSource, error)
	PFLimiters(bridge string, sources bool) ([]bridge.PFLimiter, error)
	KillPFSources(bridge string, k bridge.PFKill) (n int, err error)
	PFTables(bridge, anchor string) ([]bridge.PFTable, error)
	PFTable(bridge, anchor, name string) ([]bridge.PFTableEntry, error)
	ChangePFTable(bridge, anchor, name string, action bridge.PFTableAction, entries []pf.TableEntry, check bool) (bridge.PFTableChange, error)
	FlushPFTable(bridge, anchor, name string, check bool) (n int, err error)
	KillPFTable(bridge, anchor, name string, check bool) (n int, err error)
	ZeroPFTable(bridge, anchor, name string, check bool) error
	PFHost(name string, hosts func(string, []string) ([]netip.Prefix, error)) ([]netip.Prefix, error)
	PFLog(ctx context.Context, bridge string, report func(bridge.PFLogged) error) (missed uint64, err error)

	Monitor(ctx context.Context, bridge string, report func(bridge.Event) error) error
	Capture(ctx context.Context, bridge string, o bridge.CaptureOptions) (frame.Source, error)
	Trace(bridge, port string, frame []byte) (bridge.Trace, error)
	Known(bridge string, addr netip.Addr) ([]bridge.KnownMAC, error)
	CountTalkers(bridge string) (stop func() error, err error)
	Talkers(bridge string) ([]bridge.Talker, error)
	Force()
	Close() error
}
