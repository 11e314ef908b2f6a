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
		Short: "put the interface of a guest or container on a bridge, by an id",
		Long: `Make a device a port of a bridge, with its VLAN, settings, bindings and rules of
pf, in one step. ID is any word of up to 255 signs; the port keeps it, and 'port
show' has it. The command changes nothing where all is so already, and can be
run again at any time. If the port with the id has another device or other
settings, it gets those given now. A device that is a port already, and has no
id, gets this one; the port of another id is refused.

With --pf the rules of FILE are those of this port alone. 'on' may be left out
there, and may name no other port. They are in the anchor plug/ID. The bridge's
own rules try them where they say 'anchor "plug/*"'. A bridge without pf gets
such rules.

'bascule unplug' takes the port off again. 'bascule apply' leaves plugged ports
alone, and 'bascule export' leaves them out.`,
		Example: `  #! run: bascule bridge add br0 --vlan-filtering; devices t7; echo 'block in proto udp to port 67' >guest.conf
  bascule plug g1 --bridge br0 --device t7
  bascule plug g1 --bridge br0 --device t7 --vlan 10 --pf guest.conf
  bascule plug g1 --bridge br0 --device t7 --binding 02:00:00:00:00:01=192.0.2.1
  bascule unplug g1`,
	}
	on := word{name: "BRIDGE"}
	p.addStackForce(cmd)
	cmd.Flags().Var(&on, "bridge", "the bridge")
	completeFlag(cmd, "bridge", p.bridgeNames)
	device := word{name: "DEVICE"}
	cmd.Flags().Var(&device, "device", "the device that becomes the port")
	completeFlag(cmd, "device", p.interfaces)
	in := addVLANs(cmd)
	var bindings []bridge.Binding
	cmd.Flags().Var((*bindingList)(&bindings), "binding", "bind an address to the station behind the port; may be given several times")
	rules := word{name: "FILE"}
	cmd.Flags().Var(&rules, "pf", "rules of pf for this port alone")
	p.addLockout(cmd)
	hook := addChoice(cmd, "hook", bridge.HookAuto, hookHelp, bridge.Hooks...)
	changes := addSettings(cmd, bridge.PortSettings, true)
	completeFlag(cmd, "backup", p.otherPorts)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case on.text == "":
			return usagef(cmd, "--bridge is missing: give the bridge")
		case device.text == "":
			return usagef(cmd, "--device is missing: give the device")
		}
		o := plug.Plug{
			Owner: bridge.Owner{ID: args[0], By: "plug"}, Bridge: on.text, Device: device.text, Hook: hook.text, Settings: *changes, Bindings: bindings,
			VLANs: in.ranges(),
		}
		if o.Hook == bridge.HookAuto {
			o.Hook = "" // what a port has stays
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
		Short: "take off what 'plug' put on a bridge",
		Long: `Take the port with the id off its bridge, with its addresses, bindings and
rules, whatever its device is called by now, and whether or not it is there. The
device stays. An id that nothing has is no error: the command can be run again.`,
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

// plugIDs are the ids of plugged ports.
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

// bindingList is the value of a flag that binds addresses, one each time.
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
