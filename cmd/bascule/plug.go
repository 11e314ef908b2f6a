// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"strings"

	"bascule/bridge"
	"bascule/files"
	"bascule/plug"

	"github.com/spf13/cobra"
)

func newPlug(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "plug ID",
		Short: "connect the interface of a guest or container to a bridge, by an id",
		Long: `Make a device a port of a bridge, with its VLAN, settings, bindings and pf
rules, in one step. ID is any word of up to 255 characters; the port keeps it,
and 'port show' prints it. The command can be run again at any time: repeated,
it changes nothing. If the port with the id has another device or other
settings, it gets the new ones. A device that is a port without an id gets this
one; a port with another id is refused.

With --pf the rules of FILE apply to this port alone. 'on' may be left out
there, and may name no other port. They are in the anchor plug/ID. The bridge's
own rules try them at 'anchor "plug/*"'. A bridge without pf gets a ruleset with
that anchor.

'bascule unplug' removes the port again. 'bascule apply' leaves plugged ports
alone, and 'bascule export' leaves them out.`,
		Example: `  #! run: bascule bridge add br0 --vlan-filtering; devices t7; echo 'block in proto udp to port 67' >guest.conf
  bascule plug g1 --bridge br0 --device t7
  bascule plug g1 --bridge br0 --device t7 --vlan 10 --pf guest.conf
  bascule plug g1 --bridge br0 --device t7 --binding 02:00:00:00:00:01=192.0.2.1
  bascule unplug g1`,
	}
	on := word{name: "BRIDGE"}
	p.addStackForce(cmd)
	cmd.Flags().Var(&on, "bridge", "add the port to this bridge")
	completeFlag(cmd, "bridge", p.bridgeNames)
	device := word{name: "DEVICE"}
	cmd.Flags().Var(&device, "device", "make this device the port")
	completeFlag(cmd, "device", p.interfaces)
	in := addVLANs(cmd)
	var bindings []bridge.Binding
	cmd.Flags().Var((*bindingList)(&bindings), "binding", "bind an address to the station behind the port; may be given several times")
	rules := word{name: "FILE"}
	cmd.Flags().Var(&rules, "pf", "load rules of pf for this port alone")
	p.addLockout(cmd)
	hook := addChoice(cmd, "hook", bridge.HookAuto, hookHelp, bridge.Hooks...)
	changes := addSettings(cmd, bridge.PortSettings, true)
	completeFlag(cmd, "backup", p.otherPorts)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case on.text == "":
			return usagef(cmd, "--bridge is missing; give the name of the bridge")
		case device.text == "":
			return usagef(cmd, "--device is missing; give the name of the device")
		}
		o := plug.Plug{
			Owner: bridge.Owner{ID: args[0], By: "plug"}, Bridge: on.text, Device: device.text, Hook: hook.text, Settings: *changes, Bindings: bindings,
			VLANs: in.ranges(),
		}
		if o.Hook == bridge.HookAuto {
			o.Hook = "" // an existing port keeps its hook
		}
		for i := range o.Bindings {
			o.Bindings[i].VLAN = in.vlan.orNone()
		}
		if rules.text != "" {
			f, err := files.Open(rules.text)
			if err != nil {
				return fmt.Errorf("cannot read rules: %w", err)
			}
			defer f.Close()
			text, err := files.ReadAll(f, maxPFFile)
			if err != nil {
				return fmt.Errorf("cannot read rules: %s: %w", rules.text, err)
			}
			o.PF = &bridge.PFLoad{Name: rules.text, Text: text, Source: pfSource}
		}
		return p.change(func(s switcher) error {
			warnings, err := s.Plug(o)
			p.warn(warnings)
			return err
		})
	}
	return cmd
}

func newUnplug(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "unplug ID",
		Short: "remove the port that 'plug' has added",
		Long: `Remove the port with the id from its bridge, with its addresses, bindings and
rules, even if its device has another name now or is gone. The device stays. An
unknown id is not an error: the command can be repeated.`,
		Example: `  #! run: switch br0; devices tap7; bascule plug 3f1c-net0 --bridge br0 --device tap7
  bascule unplug 3f1c-net0`,
		ValidArgsFunction: completeArguments(p.plugIDs),
		RunE: func(_ *cobra.Command, args []string) error {
			return p.change(func(s switcher) error {
				notes, err := s.Unplug(args[0])
				p.warn(notes)
				return err
			})
		},
	}
	p.addLockout(cmd)
	return cmd
}

// plugIDs returns the ids of plugged ports.
func (p *program) plugIDs(*cobra.Command, []string) (ids []string) {
	_ = p.with(func(s switcher) error {
		list, err := s.Ports("")
		for _, port := range list {
			if port.Owner != nil {
				ids = append(ids, port.Owner.ID)
			}
		}
		return err
	})
	return ids
}

// bindingList is a flag's value: one bound address for each use of the flag.
type bindingList []bridge.Binding

func (l *bindingList) Set(value string) error {
	station, at, ok := strings.Cut(value, "=")
	if !ok {
		return fmt.Errorf("not a binding; give one such as 02:00:00:00:00:01=192.0.2.1")
	}
	mac, err := bridge.ParseMAC(station)
	if err != nil {
		return err
	}
	address, err := bridge.ParseAddress(at)
	if err != nil {
		return err
	}
	*l = append(*l, bridge.Binding{MAC: mac, Address: address})
	return nil
}

func (l *bindingList) Type() string   { return "MAC=ADDRESS" }
func (l *bindingList) String() string { return "" }
