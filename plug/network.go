// SPDX-License-Identifier: BSD-2-Clause

package plug

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"

	"bascule/bridge"
	"bascule/pf"

	"github.com/vishvananda/netlink"
)

// A Network has the options that Podman or Docker stores for a network of this switch.
type Network struct {
	Bridge     string // "" if unset
	MTU        int    // in bytes, of wires and of the gateway; 0 for the kernel's default
	VLAN       uint16 // of untagged frames; 0 for the VLANs of a new port
	Tagged     []uint16
	PF         string // rules for the container's port only
	Mirror     string // a span port
	OffHost    bool   // the gateway is another station: the host gets no address
	Masquerade bool
	Metric     *uint32         // of a container's default routes; nil if unset
	NoDefault  bool            // containers get no default route
	Settings   []bridge.Change // of the container's port
}

// Options of a network that are not settings of a port.
const (
	wordBridge, wordMTU, wordVLAN, wordTagged = "bridge", "mtu", "vlan", "tagged"
	wordPF, wordMirror, wordGateway           = "pf", "mirror", "gateway"
	wordMasquerade                            = "masquerade"
	wordMetric, wordNoDefault                 = "metric", "no_default_route" // netavark's names
)

// ReadNetwork parses the options of a network: bridge, mtu, vlan, tagged, pf, mirror, gateway (host
// or lan), masquerade (on or off), metric, no_default_route (1 or true, 0 or false), and the
// settings of 'bascule port set'. All other options are errors.
func ReadNetwork(words map[string]string) (n Network, err error) {
	for _, word := range slices.Sorted(maps.Keys(words)) {
		if err := n.read(word, words[word]); err != nil {
			return n, err
		}
	}
	return n, nil
}

func (n *Network) read(word, value string) (err error) {
	between := func(lo, hi int) (int, error) {
		v, err := strconv.Atoi(value)
		if err != nil || v < lo || v > hi {
			return 0, fmt.Errorf("%s=%.40q: give %d to %d", word, value, lo, hi)
		}
		return v, nil
	}
	either := func(yes, no string) (bool, error) {
		if value != yes && value != no {
			return false, fmt.Errorf("%s=%.40q: give %s or %s", word, value, yes, no)
		}
		return value == yes, nil
	}
	switch word {
	case wordBridge:
		n.Bridge = value
		return bridge.CheckName("bridge", value)
	case wordMTU:
		n.MTU, err = between(68, 65535)
	case wordVLAN:
		var id int
		id, err = between(1, 4094)
		n.VLAN = uint16(id)
	case wordTagged:
		n.Tagged, err = bridge.ParseVLANs(value)
	case wordPF:
		n.PF = value
	case wordMirror:
		n.Mirror = value
		if err = bridge.CheckName("port", value); err != nil {
			return fmt.Errorf("%s: %w", word, err)
		}
	case wordGateway:
		n.OffHost, err = either("lan", "host")
	case wordMasquerade:
		n.Masquerade, err = either(bridge.On, bridge.Off)
	case wordMetric:
		metric, bad := strconv.ParseUint(value, 10, 32)
		if bad != nil {
			return fmt.Errorf("%s=%.40q: give 0 to %d", word, value, uint32(math.MaxUint32))
		}
		n.Metric = new(uint32(metric))
	case wordNoDefault:
		if n.NoDefault, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("%s=%.40q: give 1 or 0", word, value)
		}
	default:
		known := []string{wordBridge, wordMTU, wordVLAN, wordTagged, wordPF, wordMirror, wordGateway, wordMasquerade, wordMetric, wordNoDefault}
		for _, s := range bridge.PortSettings {
			known = append(known, s.Name)
		}
		if near := Near(word, known); near != "" && !slices.Contains(known, word) {
			return fmt.Errorf("%.40q is unknown; the nearest is %s", word, near)
		}
		n.Settings = append(n.Settings, bridge.Change{Name: word, Value: value})
		return bridge.CheckPortSetting(word, value)
	}
	return err
}

// hostPort returns the name of the host's interface in the network: the bridge's name, followed by
// the VLAN if there is one.
func (n *Network) hostPort() string {
	if n.VLAN != 0 {
		return fmt.Sprintf("%s.%d", n.Bridge, n.VLAN)
	}
	return n.Bridge
}

// GatewayID returns the id of the host's port in the network, for a front end.
func (n *Network) GatewayID(by string) string { return by + "-gateway/" + n.hostPort() }

// Check reports whether a network is possible, as far as that can be checked before the first
// container: names, rules, and whether an existing bridge filters VLANs.
func (n *Network) Check(s *bridge.Switch) error {
	if err := n.checkNames(); err != nil {
		return err
	}
	if n.PF != "" {
		if _, err := s.ParsePortPF("any", DeviceName("any"), n.rules()); err != nil {
			return err
		}
	}
	info, err := s.Quick(n.Bridge)
	if bridge.Missing(err) {
		return CheckNew(n.Bridge)
	}
	if err == nil {
		err = n.filters(info)
	}
	return err
}

// checkNames refuses invalid names for the bridge or the host's interface.
func (n *Network) checkNames() error {
	if err := bridge.CheckName("bridge", n.Bridge); err != nil || n.OffHost {
		return err
	}
	if err := CheckInterface(n.hostPort()); err != nil {
		return fmt.Errorf("the host's interface in the network: %w", err)
	}
	return nil
}

func (n *Network) rules() bridge.PFLoad {
	return bridge.PFLoad{Name: "pf", Text: []byte(n.PF + "\n"), Source: pf.Source{}}
}

func (n *Network) filters(info bridge.Info) error {
	if n.wantsVLANs() && !info.Config.VLANFiltering {
		return fmt.Errorf("bridge %s does not filter VLANs; enable that with 'bascule bridge set %s --vlan-filtering', or leave out vlan and tagged", n.Bridge, n.Bridge)
	}
	return nil
}

func (n *Network) wantsVLANs() bool { return n.VLAN != 0 || len(n.Tagged) > 0 }

// A Container describes a container's connection to a network.
type Container struct {
	Owner     bridge.Owner
	Interface string           // name of the container's end
	To        *Space           // namespace of the container's end; nil for the switch's own
	MAC       net.HardwareAddr // nil for a random one
	Addresses []*net.IPNet
	Gateways  []*net.IPNet // addresses of the host in the network, unless OffHost is set

	Configure func(inner netlink.Link) error // configures the container's end; may be nil
}

// Attach connects a container to its network: it makes the bridge, the host's address in the
// network, a wire, and the port, with bindings if the network has source-guard. After an error the
// former state is restored. The error is [ErrUnfinished] or [ErrInUse] if the same owner already
// has objects.
func (n *Network) Attach(s *bridge.Switch, c Container) (device, inner netlink.Link, warnings []string, err error) {
	fail := func(err error) (netlink.Link, netlink.Link, []string, error) { return nil, nil, warnings, err }
	if err := cmp.Or(c.Owner.Check(), n.checkNames()); err != nil {
		return fail(err)
	}
	for _, g := range c.Gateways {
		if !n.OffHost && slices.ContainsFunc(c.Addresses, func(a *net.IPNet) bool { return a.IP.Equal(g.IP) }) {
			return fail(fmt.Errorf("%s is the gateway's address; give the container another", g.IP))
		}
	}
	shared := Shared{By: c.Owner.By}
	if len(c.Gateways) > 0 && !n.OffHost {
		shared.Gateway = &Gateway{
			Bridge: n.Bridge, Name: n.hostPort(), VLAN: n.VLAN, MTU: n.MTU, Addresses: c.Gateways,
			Owner: bridge.Owner{ID: n.GatewayID(c.Owner.By), By: c.Owner.By},
		}
	}
	if n.Masquerade {
		shared.Masquerade = c.Addresses
	}
	if err := CheckBridge(s, n.Bridge, n.Mirror); err != nil {
		return fail(err)
	}
	if err := shared.Judge(s); err != nil {
		return fail(err)
	}
	var back Undo
	defer func() {
		if err != nil {
			back.Do()
		}
	}()
	info, err := EnsureBridge(s, n.Bridge, n.wantsVLANs(), &back)
	if err == nil {
		err = n.filters(info)
	}
	if err != nil {
		return fail(err)
	}
	wire := Wire{ID: c.Owner.ID, MTU: n.MTU, MAC: c.MAC, Name: c.Interface, To: c.To}
	if device, err = wire.Make(); err != nil {
		return fail(err)
	}
	back.Add(func() { _ = Detach(s, c.Owner.ID) })
	if inner, err = c.To.link(c.Interface); err != nil {
		return fail(err)
	}
	notes, err := Put(s, n.plug(c, device, inner))
	warnings = append(warnings, notes...)
	if err == nil && c.Configure != nil {
		err = c.Configure(inner)
	}
	if err != nil {
		return fail(err)
	}
	_, notes, err = shared.Make(s)
	warnings = append(warnings, notes...)
	if err != nil {
		return fail(err)
	}
	return device, inner, warnings, nil
}

func (n *Network) plug(c Container, device, inner netlink.Link) Plug {
	p := Plug{
		Owner: c.Owner, Bridge: n.Bridge, Device: device.Attrs().Name, Settings: n.Settings, VLANs: VLANs(n.VLAN, n.Tagged), CopyTo: n.Mirror,
	}
	if slices.Contains(n.Settings, bridge.Change{Name: "source-guard", Value: bridge.On}) {
		p.Bindings = Bindings(c.Addresses, inner.Attrs().HardwareAddr)
		for i := range p.Bindings {
			p.Bindings[i].VLAN = n.VLAN
		}
	}
	if n.PF != "" {
		rules := n.rules()
		p.PF = &rules
	}
	return p
}

// Detach removes the port and the wire of an id. Repeated calls have no further effect.
func Detach(s *bridge.Switch, id string) error {
	if _, _, err := Remove(s, id); err != nil {
		return err
	}
	return Cut(id)
}

// CheckInterface refuses an invalid interface name.
func CheckInterface(name string) error {
	return bridge.CheckName("interface", name)
}

// CheckID refuses an id or a name from a container runtime that contains characters other than
// letters, digits, "_", "." and "-", or begins with none of the first two, or is longer than 128
// bytes.
func CheckID(what, id string) error {
	ok := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.-", r)
	}
	switch {
	case id == "":
		return fmt.Errorf("%s is missing", what)
	case len(id) > 128:
		return fmt.Errorf("%s has %d bytes; give at most 128", what, len(id))
	case strings.ContainsRune("_.-", rune(id[0])) || strings.ContainsFunc(id, func(r rune) bool { return !ok(r) }):
		return fmt.Errorf("%s %.40q may contain only letters, digits, '_', '.' and '-'", what, id)
	}
	return nil
}
