// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"bascule/agent"
	"bascule/agent/hotplug"
	"bascule/agent/rstp"
	"bascule/config"
	"bascule/history"
)

// Run implements agents: an agent that ends at once. It prints its options and logs a line at each
// level.
func (f *fakeSwitch) Run(_ context.Context, o agent.Options, _ <-chan os.Signal) error {
	if o.Netns == "taken" {
		return errors.New("cannot serve network namespace taken: another agent does; stop that first")
	}
	f.call("agent %q %s", o.Netns, strings.Join(o.Files, " "))
	o.Log.Debug("a detail")
	o.Log.Info("the agent starts")
	o.Log.Warn("a loop", "port", "p1")
	return nil
}

// Reload implements agents.
func (f *fakeSwitch) Reload(netns string, how agent.Reload) error {
	if netns == "empty" {
		return errors.New("cannot reach the agent: none runs for this network namespace; start 'bascule agent'")
	}
	f.call("agent reload%s", changeWords(history.Options{Options: config.Options{Yes: how.Yes}, Confirm: how.Confirm}))
	return nil
}

// Forget implements agents.
func (f *fakeSwitch) Forget(string, ...string) error { return nil }

// Status implements agents.
func (f *fakeSwitch) Status(netns string) (agent.Status, error) {
	if netns == "empty" {
		return agent.Status{}, errors.New("cannot reach the agent: none runs for this network namespace; start 'bascule agent'")
	}
	when := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	why := ""
	if netns == "wrong" {
		why = "a line is wrong"
	}
	tree := &agent.TreeStatus{Status: rstp.Status{
		Version: rstp.RSTP, Bridge: rstp.NewBridgeID(32768, []byte{2, 0, 0, 0, 0, 9}),
		Root: rstp.NewBridgeID(4096, []byte{2, 0, 0, 0, 0, 1}), RootPort: 1, RootCost: 20000, Changes: 3,
	}, Ports: []agent.TreePort{
		{Name: "p1", PortStatus: rstp.PortStatus{Number: 1, Role: rstp.RootPort, State: rstp.Forwarding, Up: true, Cost: 20000, PointToPoint: true, Version: rstp.RSTP}},
		{Name: "p2", PortStatus: rstp.PortStatus{Number: 2, Role: rstp.DisabledPort, State: rstp.Discarding, Cost: 2000, Guarded: true, PointToPoint: true, Version: rstp.RSTP}},
	}}
	return agent.Status{
		PID: 42, Version: "v1", Since: when, Files: []string{"/etc/bascule"}, Applied: &when, Error: why,
		Namespaces: []agent.SiteStatus{
			{Cookie: 1, Hotplug: &hotplug.Stats{Attached: 7, Berths: 5, Removed: 2}, Bridges: []agent.BridgeStatus{
				{Name: "br0", Tree: tree, Events: agent.EventStatus{Counts: map[string]uint64{"learned": 5, "moved": 2}, Missed: 1}},
			}},
			{Netns: "blue", Cookie: 2, Bridges: []agent.BridgeStatus{{Name: "br1", Error: "somebody is at it", Events: agent.EventStatus{Counts: map[string]uint64{}}}}},
		},
	}, nil
}
