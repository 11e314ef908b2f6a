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

// The default MAC addresses of bridges and host ports depend only on properties that stay the same
// when the machine is restarted, because leases, SLAAC addresses and the root of a spanning tree
// depend on them.

// machineIDs are the files that may have the machine's id (machine-id(5)).
var machineIDs = []string{"/etc/machine-id", "/var/lib/dbus/machine-id"}

// machineID returns the ID of the machine, or nil if it has none yet.
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

// byName is the prefix of the ID of a namespace that has a name.
const byName = "name "

// firstPIDNamespace is PROC_PID_INIT_INO of linux/proc_ns.h.
const firstPIDNamespace = "pid:[4026531836]"

// namespaceID returns an ID of the calling thread's network namespace. The first namespace, and
// namespaces with a name of `ip netns`, have the same ID after a restart. Others have a number of
// the kernel's. So does each namespace in a container, because containers of one image may share a
// machine ID and names. Two namespaces can have the same name: one in another mount namespace, or
// one whose name was deleted while it lives on. No other property of theirs is stable, so see
// identity.used.
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
		list, _ := os.ReadDir(netnsDir) // by name; the folder does not exist before the first name
		for _, e := range list {
			if is(filepath.Join(netnsDir, e.Name())) {
				return byName + e.Name(), nil
			}
		}
	}
	cookie, err := datapath.NetnsCookie()
	return fmt.Sprintf("cookie %d", cookie), err
}

// An identity derives MAC addresses for bridges and ports of a network namespace.
type identity struct {
	machine   []byte // nil for a machine without an id: addresses are random
	namespace string
}

// ownIdentity returns the identity of the calling thread's network namespace.
func ownIdentity() (i identity, err error) {
	if i.machine = machineID(); i.machine == nil {
		return i, nil
	}
	i.namespace, err = namespaceID()
	return i, err
}

// The kinds of objects that have addresses.
const (
	ofBridge  = "bridge"
	ofHost    = "host port"
	ofHostEnd = "switch's end"
)

// address returns the n-th address of the object that parts name: a unicast, locally administered
// address (IEEE 802 8.4).
func (i identity) address(n int, parts ...string) (mac net.HardwareAddr) {
	mac = make(net.HardwareAddr, 6)
	if i.machine == nil {
		rand.Read(mac)
	} else {
		h := hmac.New(sha256.New, i.machine) // the address does not disclose the machine's ID
		fmt.Fprintf(h, "bascule %q %q %d", i.namespace, parts, n)
		copy(mac, h.Sum(nil))
	}
	mac[0] = mac[0]&^1 | 2
	return mac
}

// maxAddresses is how many addresses are tried for one object. Only two cases need more than one:
// an interface was renamed and another has its former name, or two network namespaces have the same
// name.
const maxAddresses = 16

// free returns the first unused address of an object from the n-th on, and its number.
func (i identity) free(used map[string]bool, n int, parts ...string) (net.HardwareAddr, int) {
	for ; n < maxAddresses; n++ {
		if mac := i.address(n, parts...); !used[mac.String()] {
			return mac, n
		}
	}
	return identity{}.address(0), n
}

// nearest returns mac if it is one of the default addresses of an object, or otherwise the first of
// these. It returns nil on a machine without an ID.
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

// used returns the addresses of the devices, bridges and host ports of the namespace. If other
// namespaces may have the same name, it adds the addresses of their bridges with the given name,
// and of the host ports of these bridges, because a default address depends on both names.
func (i identity) used(store *datapath.Store, bridge string) (map[string]bool, error) {
	used := map[string]bool{}
	uses := func(c *datapath.Config) {
		used[net.HardwareAddr(c.Address[:]).String()] = true
		for _, p := range datapath.Ports(c) {
			if p.Host != 0 { // also if the interface is in another namespace now
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

// giveAddress gives a bridge its default address, unless its address was set.
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
	delete(used, net.HardwareAddr(c.Address[:]).String()) // its own former one
	mac, _ := own.free(used, 0, ofBridge, name)
	c.Address = [6]byte(mac)
	return nil
}

// StrangeAddresses returns the addresses of bridges, by name, that were not set and differ from the
// bridges' present default addresses. It returns none on a machine without an ID.
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
