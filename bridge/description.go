// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
)

// A port's description is the alias of its device (ip-link(8)), so it is SNMP's ifAlias, too, and
// stays with the device.

// MaxDescription is the maximum length of a description in bytes (IFALIASZ in linux/if.h, less
// one).
const MaxDescription = 255

// CheckDescription checks whether a text can be a description: one line that is safe to print on a
// terminal. The error is a *[UsageError].
func CheckDescription(s string) error {
	refuse := func(why string) error { return usagef(fmt.Sprintf("description %q", s), "%s", why) }
	switch {
	case len(s) > MaxDescription:
		return usagef("description", "%d bytes, and a device takes %d; give a shorter one", len(s), MaxDescription)
	case !utf8.ValidString(s):
		return refuse("not UTF-8; give other characters")
	case strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }):
		return refuse("a character in it cannot be printed; give one line of text")
	case strings.TrimSpace(s) != s:
		return refuse("it begins or ends with a space; leave that out")
	}
	return nil
}

// planDescription plans the description of a port of the next configuration.
func (c *draft) planDescription(what string, p *datapath.Port, l netlink.Link, want *string) error {
	if want == nil {
		return nil
	}
	switch {
	case p.Facts&datapath.PortPatch != 0:
		return refused(what, "a patch port has no device that has a description", "leave --description out")
	case l == nil:
		return refused(what, "its device is gone", "set its description when it is back")
	case p.Notes&datapath.PortHost == 0:
	case !hostHere(l):
		return refused(what, "its interface is in another network namespace", "set its alias there with 'ip link set NAME alias TEXT'")
	default:
		if l = otherEnd(l); l == nil {
			return refused(what, "its interface is gone", "delete the port, and add it again")
		}
	}
	owned, err := c.allOwners()
	if err != nil {
		return failed(what, err)
	}
	if o := owned[p.Id]; o != nil && o.ID == l.Attrs().Alias { // package plug finds its devices by it
		return refused(what, "its device has the id "+o.ID+" there, by which it is found again", "leave --description out")
	}
	c.describe(l, *want)
	return nil
}

// describe plans the description of a device.
func (c *draft) describe(l netlink.Link, want string) {
	was := l.Attrs().Alias
	if was == want {
		return
	}
	c.describes(l.Attrs().Name, want)
	c.before = append(c.before, func() error {
		c.undo = append(c.undo, func() error { return netlink.LinkSetAlias(l, was) })
		if err := netlink.LinkSetAlias(l, want); err != nil {
			return fmt.Errorf("describe %s: %w", l.Attrs().Name, err)
		}
		return nil
	})
}

// describes notes that a device gets a description.
func (c *draft) describes(device, want string) {
	if c.texts == nil {
		c.texts = map[string]string{}
	}
	c.texts[device] = want
}
