// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"unsafe"

	"github.com/cilium/ebpf"
)

// A port changes settings of its device before a frame meets the port's programs. At
// that time no generation has the port. Until one does, the intention records the
// former settings. For Mend, the intention is a generation that was not made current:
// Mend gives back the settings that its ports took, unless the bridge has these ports
// by now. The intention has a configuration and its devices, and no programs.
const intention = "gen-intended"

// Intend notes the settings that ports of next take of their devices, if the ports are
// new or change their hook. It ties new ports to their devices with an idle program.
// next should become the bridge's configuration: a Commit of it ends the note. Before
// that, Relent gives the settings back, or Mend if the command is killed. The caller
// holds the lock, is in the bridge's network namespace, and has called Begin.
func (b *Bridge) Intend(next *Config) error {
	devices := map[uint32]uint32{}
	for _, p := range Ports(next) {
		was := PortAt(&b.Config, p.Id)
		if p.Facts&PortPatch == 0 && (was == nil || was.Notes&PortXDP != p.Notes&PortXDP && b.HasDevice(p)) {
			devices[Slot(p.Id)] = p.Ifindex
		}
	}
	if len(devices) == 0 {
		return nil
	}
	if err := os.Mkdir(b.pin(intention), 0o700); err != nil {
		return err
	}
	// HasDevice looks into this map. The kernel removes deleted devices from it. So no
	// setting is given back to another device with the same index.
	err := pinNew(b.pin(intention, kernelMapTcxDevices), ebpf.DevMap, unsafe.Sizeof(uint32(0)), devices)
	if err == nil {
		err = b.pinConfig(intention, next)
	}
	if err == nil {
		err = b.tie(next)
	}
	return err
}

// pinConfig pins a configuration in one of the bridge's folders. It comes last there:
// without it the other pins are not read, and tied devices are untied.
func (b *Bridge) pinConfig(folder string, c *Config) error {
	err := pinNew(b.pin(folder, settingsPin), ebpf.Array, unsafe.Sizeof(c.kernelSettings), map[uint32]*kernelSettings{0: &c.kernelSettings})
	if err == nil {
		err = pinNew(b.pin(folder, configPin), ebpf.Array, unsafe.Sizeof(c.kernelConfig), map[uint32]*kernelConfig{0: &c.kernelConfig})
	}
	return err
}

// intended returns the bridge with the intention's pins. Its configuration is not read.
func (b *Bridge) intended() *Bridge { return &Bridge{store: b.store, dir: b.dir, gen: intention} }

// intends reports whether the intention contains the new port p.
func (b *Bridge) intends(p *Port) bool {
	_, err := os.Lstat(b.pin(intention, configPin))
	return err == nil && p.Facts&PortPatch == 0 && !Vacant(p)
}

// Intended reports whether the device of a port that Intend has noted is still there.
func (b *Bridge) Intended(p *Port) bool { return b.intended().HasDevice(p) }

// pinNew makes a map with the values at these keys, and pins it.
func pinNew[V any](path string, kind ebpf.MapType, size uintptr, values map[uint32]V) error {
	room := uint32(0)
	for n := range values {
		room = max(room, n+1)
	}
	m, err := createMap("intention", kind, size, room)
	if err != nil {
		return err
	}
	defer m.Close()
	for n, value := range values {
		if err := m.Put(n, value); err != nil {
			return fmt.Errorf("intention: %w", err)
		}
	}
	return m.Pin(path)
}

// Relent gives back the settings taken since Intend, after a Commit that has changed
// nothing, or instead of one.
func (b *Bridge) Relent(f Follower) error {
	old := b.intended()
	err := old.readConfig()
	if err == nil {
		err = old.leave(&b.Config, f)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.untie(); err != nil {
		return err
	}
	return b.drop(intention)
}
