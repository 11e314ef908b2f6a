// SPDX-License-Identifier: BSD-2-Clause

package config

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"bascule/bridge"
)

// A hostInterface has the settings in a hostname.if(5) file for the host's interface on a bridge.
// Another file adds the interface to the bridge.
type hostInterface struct {
	name string
	at   Position
	says Port // Addresses, MAC, OwnMAC, MTU, Description and Up
}

// hostInterface builds the interface from the words that were read.
func (h *hostFile) hostInterface(name string) *hostInterface {
	// without addresses in the file, the interface keeps its own
	it := &hostInterface{name: name, at: h.bridge.At, says: h.own}
	if h.state.text != "" {
		up := h.state.text == "up"
		it.says.Up = &up
	}
	return it
}

// lladdr parses the address of the host's interface.
func (h *hostFile) lladdr(w word, args []word) {
	h.own.MAC, h.own.OwnMAC = nil, args[0].text == "random"
	if h.own.OwnMAC {
		h.note(w, "the interface keeps its own address, which stays the same across restarts")
		return
	}
	mac, err := bridge.ParseMAC(etherAton(args[0].text))
	if err != nil {
		h.refuse(w, "%s", reason(args[0].text, err))
		return
	}
	h.own.MAC = mac
}

// mtu parses the MTU of the host's interface.
func (h *hostFile) mtu(w word, args []word) {
	n, err := bridge.ParseMTU(args[0].text)
	if err != nil {
		h.refuse(w, "%s", reason(args[0].text, err))
		return
	}
	h.own.MTU = n
}

// describe sets the description of the host's interface.
func (h *hostFile) describe(w word, text string) {
	if err := bridge.CheckDescription(text); err != nil {
		h.refuse(w, "%s", reason(text, err))
		return
	}
	h.own.Description = &text
}

// inet parses the words after "inet" or "inet6" and returns the remaining ones. It takes the
// address, the mask of IPv4 or the prefix length of IPv6, and the broadcast address. It returns nil
// after a mistake.
func (h *hostFile) inet(w word, words []word) []word {
	next := func() (first word) {
		if len(words) > 0 {
			first, words = words[0], words[1:]
		}
		return first
	}
	is6 := w.text == "inet6"
	address := next()
	switch address.text {
	case "autoconf":
		h.note(w, "bascule requests no addresses; the host's programs do")
		return keepWords(words)
	case "alias":
		address = next()
	}
	length, text := "", address.text
	if text == "" {
		h.refuse(w, "an address must follow it")
		return nil
	}
	if before, after, ok := strings.Cut(text, "/"); ok {
		text, length = before, after
	}
	ip, err := netip.ParseAddr(text)
	if err != nil || ip.Is6() != is6 {
		h.refuse(w, "%q: not an address of %s", text, map[bool]string{false: "IPv4", true: "IPv6"}[is6])
		return nil
	}
	if length == "" {
		mask := next().text
		if length, err = maskLength(mask, is6); err != nil {
			h.refuse(w, "%s: %v; write %s/%d, or give it after the address", text, err, text, map[bool]int{false: 24, true: 64}[is6])
			return nil
		}
	}
	prefix, err := bridge.ParsePrefix(text + "/" + length)
	if err != nil {
		h.refuse(w, "%s", reason(text+"/"+length, err))
		return nil
	}
	if !is6 && len(words) > 0 {
		if b, err := netip.ParseAddr(words[0].text); err == nil && b.Is4() || words[0].text == "NONE" {
			if broadcast := next(); broadcast.text != "NONE" && b != lastOf(prefix) {
				h.note(broadcast, "the broadcast address is the last of the network, %s", lastOf(prefix))
			}
		}
	}
	if !slices.Contains(h.own.Addresses, prefix) {
		h.own.Addresses = append(h.own.Addresses, prefix)
	}
	return keepWords(words)
}

// keepWords returns a copy that is never nil.
func keepWords(words []word) []word { return append([]word{}, words...) }

// maskLength returns the length of an IPv4 mask (255.255.255.0, 0xffffff00) or of an IPv6 prefix
// (64) as a decimal number.
func maskLength(text string, is6 bool) (string, error) {
	if text == "" {
		return "", errors.New("its mask is missing")
	}
	none := fmt.Errorf("%q is not a mask", text)
	if is6 {
		if n, err := strconv.ParseUint(text, 10, 8); err != nil || n > 128 {
			return "", fmt.Errorf("%q is not a prefix length", text)
		}
		return text, nil
	}
	mask, err := netip.ParseAddr(text)
	if hex, ok := strings.CutPrefix(text, "0x"); ok {
		var n uint64
		n, err = strconv.ParseUint(hex, 16, 32)
		mask = netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	if err != nil || !mask.Is4() {
		return "", none
	}
	n, err := bridge.MaskLength(mask)
	return strconv.Itoa(n), err
}

// lastOf returns the last address of an IPv4 network, its broadcast address (RFC 919, section 7).
func lastOf(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}

// settle moves interface settings from their own files to the ports of other files, and adds an
// error if something is defined twice.
func settle(list []File) Errors {
	var bad faults
	for i := range list {
		host := list[i].host
		if host == nil {
			continue
		}
		p := hostPortOf(list, host.name)
		switch {
		case p == nil:
			list[i].Notes = append(list[i].Notes, Error{host.at, host.name +
				": no file that is read adds it to a bridge, as 'add " + host.name + "' of hostname.veb0 does; it is left out"})
		case p.interfaceKey() != "":
			bad.add(host.at, "%s has %s at %s already; put all of it there", host.name, p.interfaceKey(), p.At)
		default:
			it := &host.says
			p.Addresses, p.MAC, p.OwnMAC, p.MTU, p.Description, p.Up = it.Addresses, it.MAC, it.OwnMAC, it.MTU, it.Description, it.Up
		}
	}
	return append(bad.errors(), twice(list)...)
}

// interfaceKey returns a key of a port that concerns the host's interface, "" if it has none.
func (p *Port) interfaceKey() string {
	switch {
	case p.Addresses != nil:
		return "addresses"
	case p.MAC != nil || p.OwnMAC:
		return "mac"
	case p.MTU != 0:
		return "mtu"
	case p.Description != nil:
		return "description"
	case p.Up != nil:
		return "up"
	}
	return ""
}

// hostPortOf returns the port with the host's interface. A hostname.if(5) file applies to the
// command's network namespace.
func hostPortOf(list []File, name string) *Port {
	for _, f := range list {
		for _, b := range f.Bridges {
			for i := range b.Ports {
				if p := &b.Ports[i]; f.Netns == "" && p.Name == name && p.Options.Type == bridge.TypeHost {
					return p
				}
			}
		}
	}
	return nil
}
