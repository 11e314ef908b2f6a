// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"bytes"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bascule/datapath"
)

// The MAC addresses that bridges and host ports get by themselves follow from what stays the
// same when the machine is started anew: a lease, an address of SLAAC and the root of a
// spanning tree hang on them.

// machineIDs are the files that may have the machine's id (machine-id(5)).
var machineIDs = []string{"/etc/machine-id", "/var/lib/dbus/machine-id"}

// machineID returns the id of the machine, nil if it has none yet.
func machineID() []byte {
	for _, path := range machineIDs {
		text, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if id, err := hex.DecodeString(strings.TrimSpace(string(text))); err == nil && len(id) == 16 {
			return id
		}
	}
	return nil
}

// byName begins the id of a namespace that has a name.
const byName = "name "

// firstPIDNamespace is PROC_PID_INIT_INO of linux/proc_ns.h.
const firstPIDNamespace = "pid:[4026531836]"

// namespaceID names the network namespace of the calling thread. The first one and those that `ip
// netns` has a name for have the same after a restart. Others have a number of the kernel's; so has
// each in a container, since containers of one image may share a machine id and names. Two may have
// the same name: one in another mount namespace, or one whose name was deleted while it lives on.
// Nothing else of theirs stays the same, so see identity.used.
func namespaceID() (string, error) {
	own, err := os.Stat(NetnsPath(""))
	if err != nil {
		return "", err
	}
	is := func(path string) bool {
		st, err := os.Stat(path)
		return err == nil && os.SameFile(own, st)
	}
	if in, err := os.Readlink("/proc/self/ns/pid"); err == nil && in == firstPIDNamespace {
		if is("/proc/1/ns/net") {
			return "first", nil
		}
		list, _ := os.ReadDir(netnsDir) // by name; there is no such folder where nobody made a name
		for _, e := range list {
			if is(filepath.Join(netnsDir, e.Name())) {
				return byName + e.Name(), nil
			}
		}
	}
	cookie, err := datapath.NetnsCookie()
	return fmt.Sprintf("cookie %d", cookie), err
}

// An identity gives addresses to what belongs to a network namespace.
type identity struct {
	machine   []byte // nil for a machine without an id: addresses are random
	namespace string
}

// ownIdentity is that of the calling thread's network namespace.
func ownIdentity() (i identity, err error) {
	if i.machine = machineID(); i.machine == nil {
		return i, nil
	}
	i.namespace, err = namespaceID()
	return i, err
}

// What addresses are of.
const (
	ofBridge  = "bridge"
	ofHost    = "host port"
	ofHostEnd = "switch's end"
)

// address returns the n-th address of something that parts name: one station's, locally
// administered (IEEE 802 8.4).
func (i identity) address(n int, parts ...string) (mac net.HardwareAddr) {
	mac = make(net.HardwareAddr, 6)
	if i.machine == nil {
		rand.Read(mac)
	} else {
		h := hmac.New(sha256.New, i.machine) // nobody learns the machine's id by it
		fmt.Fprintf(h, "bascule %q %q %d", i.namespace, parts, n)
		copy(mac, h.Sum(nil))
	}
	mac[0] = mac[0]&^1 | 2
	return mac
}

// maxAddresses is how many addresses are tried for one thing. More than one is used only
// where an interface has been renamed, and another has its former name, or where two network
// namespaces have one name.
const maxAddresses = 16

// free returns the first address of something that is in nobody's use, of those from the n-th on,
// and its number.
func (i identity) free(used map[string]bool, n int, parts ...string) (net.HardwareAddr, int) {
	for ; n < maxAddresses; n++ {
		if mac := i.address(n, parts...); !used[mac.String()] {
			return mac, n
		}
	}
	return identity{}.address(0), n
}

// nearest returns mac if it is one of those that something gets by itself, or else the first
// of these; nil if nobody can tell.
func (i identity) nearest(mac net.HardwareAddr, parts ...string) net.HardwareAddr {
	if i.machine == nil {
		return nil
	}
	for n := range maxAddresses {
		if bytes.Equal(mac, i.address(n, parts...)) {
			return mac
		}
	}
	return i.address(0, parts...)
}

// used returns the addresses of the devices, bridges and host ports of the namespace. Where others may
// have the namespace's name, it returns those of their bridges of one name, and of the host ports of
// these, too: an address that something gets by itself follows from both names.
func (i identity) used(store *datapath.Store, bridge string) (map[string]bool, error) {
	used := map[string]bool{}
	uses := func(c *datapath.Config) {
		used[net.HardwareAddr(c.Address[:]).String()] = true
		for _, p := range datapath.Ports(c) {
			if p.Host != 0 { // also of an interface that is in another namespace by now
				mac := datapath.WordMAC(p.Host)
				used[net.HardwareAddr(mac[:]).String()] = true
			}
		}
	}
	devices, err := links()
	if err != nil {
		return nil, err
	}
	for _, l := range devices {
		used[l.Attrs().HardwareAddr.String()] = true
	}
	names, err := store.Names()
	if err != nil {
		return nil, err
	}
	err = eachOpen(store, names, func(_ string, b *datapath.Bridge) error {
		uses(&b.Config)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !strings.HasPrefix(i.namespace, byName) {
		return used, nil
	}
	elsewhere, err := store.Namesakes(bridge)
	for _, c := range elsewhere {
		uses(c)
	}
	return used, err
}

// giveAddress gives a bridge the address that it gets by itself, unless it was given one.
func giveAddress(store *datapath.Store, c *datapath.Config, name string) error {
	if datapath.BridgeFlags(c.Flags)&datapath.BridgeMAC != 0 {
		return nil
	}
	own, err := ownIdentity()
	if err != nil {
		return err
	}
	used, err := own.used(store, name)
	if err != nil {
		return err
	}
	delete(used, net.HardwareAddr(c.Address[:]).String()) // its own before
	mac, _ := own.free(used, 0, ofBridge, name)
	c.Address = [6]byte(mac)
	return nil
}

// StrangeAddresses returns the addresses of bridges that were not given and that the bridges would not get by
// themselves any more, by name. There is none on a machine without an id, where nobody can tell.
func (s *Switch) StrangeAddresses() (list map[string]net.HardwareAddr, err error) {
	list = map[string]net.HardwareAddr{}
	err = s.read(func(store *datapath.Store) error {
		own, err := ownIdentity()
		if err != nil || own.machine == nil {
			return err
		}
		names, err := store.Names()
		if err != nil {
			return err
		}
		return eachOpen(store, names, func(name string, b *datapath.Bridge) error {
			mac := net.HardwareAddr(b.Config.Address[:])
			given := datapath.BridgeFlags(b.Config.Flags)&datapath.BridgeMAC != 0
			if !given && !bytes.Equal(mac, own.nearest(mac, ofBridge, name)) {
				list[name] = slices.Clone(mac)
			}
			return nil
		})
	})
	return list, err
}
