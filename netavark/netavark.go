// SPDX-License-Identifier: BSD-2-Clause

// Package netavark is a plugin for Podman's network stack
// (https://github.com/containers/netavark/blob/main/plugin-API.md). It has the commands create,
// setup, teardown and info, with JSON on standard input.
//
// Its objects are found by the id in a port's owner, and by the name of a device, which is derived
// from the same id. So teardown needs neither the container's namespace nor any record of a setup
// that was killed.
package netavark

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"

	"bascule/bridge"
	"bascule/files"
	"bascule/history"
	"bascule/pf"
	"bascule/plug"

	"github.com/vishvananda/netlink"
)

// By identifies this front end in a port's owner.
const By = "podman"

// apiVersion is the version of the plugin protocol.
const apiVersion = "1.0.0"

// maxRequest is the size limit of a request in bytes.
const maxRequest = 4 << 20

// Main runs the plugin's command in args, and returns the exit status.
func Main(version string, args []string, stdin io.Reader, stdout io.Writer) int {
	answer, err := run(version, args, stdin)
	if err != nil {
		answer = map[string]string{"error": strings.Join(strings.Fields(pf.Brief(err)), " ")}
	}
	if answer != nil {
		if failed := json.NewEncoder(stdout).Encode(answer); failed != nil {
			fmt.Fprintln(os.Stderr, "bascule-netavark:", failed)
			return 1
		}
	}
	if err != nil {
		return 1
	}
	return 0
}

func run(version string, args []string, stdin io.Reader) (answer any, err error) {
	command := "info"
	if len(args) > 0 {
		command = args[0]
	}
	switch command {
	case "create":
		return with(stdin, create)
	case "setup", "teardown":
		if len(args) != 2 {
			return nil, fmt.Errorf("%s: give exactly one argument, the path of the container's network namespace", command)
		}
		return with(stdin, func(s *bridge.Switch, text []byte) (any, error) {
			r, err := read(text)
			switch {
			case err != nil:
				return nil, err
			case command == "setup":
				return r.setup(s, args[1])
			}
			return nil, plug.Detach(s, r.id())
		})
	case "info":
		return map[string]string{"version": version, "api_version": apiVersion}, nil
	}
	return nil, fmt.Errorf("unknown command %.40q; the commands are create, setup, teardown and info", command)
}

// with runs a request with the switch of this network namespace.
func with(stdin io.Reader, f func(*bridge.Switch, []byte) (any, error)) (any, error) {
	text, err := files.ReadAll(stdin, maxRequest)
	if err != nil {
		return nil, fmt.Errorf("read the request: %w", err)
	}
	s, err := bridge.Open("")
	if err != nil {
		return nil, err
	}
	defer s.Close()
	_, notes, err := history.Arrive(s, "")
	if err != nil {
		return nil, err
	}
	warn(notes)
	return f(s, text)
}

// A network has the fields of netavark's types.Network that are used here.
type network struct {
	Name      string            `json:"name"`
	ID        string            `json:"id"`
	Interface string            `json:"network_interface"`
	Internal  bool              `json:"internal"`
	Options   map[string]string `json:"options"`
	IPAM      map[string]string `json:"ipam_options"`
	Subnets   []struct {
		Subnet  string `json:"subnet"`
		Gateway string `json:"gateway"`
	} `json:"subnets"`
	Routes []struct {
		Destination string  `json:"destination"`
		Gateway     string  `json:"gateway"`
		Metric      *uint32 `json:"metric"`
	} `json:"routes"`

	plug.Network `json:"-"`
	subnets      []subnet
	routes       []plug.Route
}

// A subnet is a subnet of a network.
type subnet struct {
	netip.Prefix
	gateway netip.Addr // the zero value for none
}

// check parses the text fields of a network.
func (n *network) check() (err error) {
	if err := plug.CheckID("the network's name", n.Name); err != nil {
		return err
	}
	if err := plug.CheckID("the network's id", n.ID); err != nil {
		return err
	}
	if n.Network, err = plug.ReadNetwork(n.Options); err != nil {
		return fmt.Errorf("network %s: option %w", n.Name, err)
	}
	switch {
	case n.Interface == "":
		n.Interface = n.Bridge
	case n.Bridge != "" && n.Bridge != n.Interface:
		return fmt.Errorf("network %s: the interface is %q, and option bridge is %q; give one", n.Name, n.Interface, n.Bridge)
	}
	if n.Interface == "" { // Docker's naming of bridges
		n.Interface = "br-" + n.ID[:min(len(n.ID), 12)]
	}
	n.Bridge = n.Interface
	for _, s := range n.Subnets {
		one := subnet{}
		if one.Prefix, err = netip.ParsePrefix(s.Subnet); err == nil && s.Gateway != "" {
			one.gateway, err = netip.ParseAddr(s.Gateway)
		}
		if err == nil && one.gateway.IsValid() && !one.Contains(one.gateway) {
			err = fmt.Errorf("the gateway %s is outside it", one.gateway)
		}
		if err != nil {
			return fmt.Errorf("network %s: subnet %.50q: %w", n.Name, s.Subnet, err)
		}
		n.subnets = append(n.subnets, one)
	}
	for _, r := range n.Routes {
		to, err := netip.ParsePrefix(r.Destination)
		by, bad := netip.ParseAddr(r.Gateway)
		if err = errors.Join(err, bad); err != nil {
			return fmt.Errorf("network %s: route %.50q: %w", n.Name, r.Destination, err)
		}
		n.routes = append(n.routes, plug.Route{Dst: *ipNet(to.Masked()), Gateway: by.AsSlice(), Priority: metric(r.Metric)})
	}
	if n.Masquerade && n.Internal {
		return fmt.Errorf("network %s: traffic of an internal network does not leave the host; leave masquerade out", n.Name)
	}
	if driver := n.IPAM["driver"]; driver == "dhcp" {
		return fmt.Errorf("network %s: ipam driver dhcp is not supported; give --subnet, or --ipam-driver none", n.Name)
	}
	return nil
}

// metric returns the metric of a route; netavark has its own default.
func metric(of *uint32) int {
	if of == nil {
		return 100
	}
	return int(*of)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// create returns the network in the form that Podman stores. It does not change the switch; the
// first container's setup does.
func create(s *bridge.Switch, text []byte) (any, error) {
	var n network
	all := map[string]json.RawMessage{} // with fields of newer versions
	if err := cmp.Or(plug.ReadJSON(text, &n), json.Unmarshal(text, &all)); err != nil {
		return nil, fmt.Errorf("the network: %w", err)
	}
	if err := n.check(); err != nil {
		return nil, err
	}
	if err := n.Check(s); err != nil {
		return nil, fmt.Errorf("network %s: %w", n.Name, err)
	}
	set := func(key string, value any) { all[key], _ = json.Marshal(value) } // marshalling these types cannot fail
	set("network_interface", n.Interface)
	set("dns_enabled", false) // Podman's resolver does not learn of these containers
	if n.IPAM["driver"] == "" {
		ipam := map[string]string{"driver": "none"}
		if len(n.subnets) > 0 {
			ipam["driver"] = "host-local"
		}
		for k, v := range n.IPAM {
			if k != "driver" {
				ipam[k] = v
			}
		}
		set("ipam_options", ipam)
	}
	return all, nil
}

// A request is types.NetworkPluginExec: a container and a network.
type request struct {
	Container string            `json:"container_id"`
	Ports     []json.RawMessage `json:"port_mappings"`
	Network   network           `json:"network"`
	Options   struct {
		Interface string            `json:"interface_name"`
		IPs       []string          `json:"static_ips"`
		MAC       string            `json:"static_mac"`
		Options   map[string]string `json:"options"`
	} `json:"network_options"`
}

// read parses a request, and checks the fields that teardown needs.
func read(text []byte) (*request, error) {
	r := new(request)
	if err := plug.ReadJSON(text, r); err != nil {
		return nil, fmt.Errorf("the request: %w", err)
	}
	if err := plug.CheckID("container_id", r.Container); err != nil {
		return nil, err
	}
	if err := plug.CheckID("the network's name", r.Network.Name); err != nil {
		return nil, err
	}
	if err := plug.CheckInterface(r.Options.Interface); err != nil {
		return nil, fmt.Errorf("interface_name: %w", err)
	}
	return r, nil
}

func (r *request) id() string {
	return By + "/" + r.Network.Name + "/" + r.Container + "/" + r.Options.Interface
}

// status is types.StatusBlock.
type status struct {
	Search     []string               `json:"dns_search_domains"`
	Servers    []string               `json:"dns_server_ips"`
	Interfaces map[string]statusOfOne `json:"interfaces"`
}

type statusOfOne struct {
	MAC     string          `json:"mac_address"`
	Subnets []statusAddress `json:"subnets"`
}

type statusAddress struct {
	Gateway string `json:"gateway,omitempty"`
	IPNet   string `json:"ipnet"`
}

// setup connects a container to its network.
func (r *request) setup(s *bridge.Switch, path string) (any, error) {
	n := &r.Network
	if err := n.check(); err != nil {
		return nil, err
	}
	if len(r.Ports) > 0 {
		return nil, fmt.Errorf("network %s publishes no ports; leave -p out, or give 'rdr-to' rules of pf at a host port of the switch", n.Name)
	}
	for name := range r.Options.Options {
		return nil, fmt.Errorf("network %s: %.40q is not an option of a container; set options on the network", n.Name, name)
	}
	c := plug.Container{
		Owner:     bridge.Owner{ID: r.id(), By: By, Network: n.Name, Container: r.Container, Interface: r.Options.Interface},
		Interface: r.Options.Interface,
	}
	var err error
	if r.Options.MAC != "" {
		if c.MAC, err = bridge.ParseMAC(r.Options.MAC); err != nil {
			return nil, fmt.Errorf("static_mac: %w", err)
		}
	}
	one := statusOfOne{Subnets: []statusAddress{}}
	routes := n.routes
	has := map[bool]bool{} // whether each family (true for IPv6) has a default route
	for _, text := range r.Options.IPs {
		ip, err := netip.ParseAddr(text)
		if err != nil {
			return nil, fmt.Errorf("static_ips: %w", err)
		}
		in := n.subnetOf(ip)
		if in == nil {
			return nil, fmt.Errorf("static_ips: %s is in no subnet of network %s", ip, n.Name)
		}
		address := netip.PrefixFrom(ip, in.Bits())
		c.Addresses = append(c.Addresses, ipNet(address))
		shown := statusAddress{IPNet: address.String()}
		if in.gateway.IsValid() && !n.Internal {
			shown.Gateway = in.gateway.String()
			c.Gateways = append(c.Gateways, ipNet(netip.PrefixFrom(in.gateway, in.Bits())))
			zero := netip.IPv4Unspecified()
			if ip.Is6() {
				zero = netip.IPv6Unspecified()
			}
			if !n.NoDefault && !has[ip.Is6()] {
				has[ip.Is6()] = true
				routes = append(routes, plug.Route{Dst: *ipNet(netip.PrefixFrom(zero, 0)), Gateway: in.gateway.AsSlice(), Priority: metric(n.Metric)})
			}
		}
		one.Subnets = append(one.Subnets, shown)
	}
	if c.To, err = plug.OpenSpace(path); err != nil {
		return nil, fmt.Errorf("the container's network namespace: %w", err)
	}
	defer c.To.Close()
	if c.To.Is() {
		return nil, errors.New("the container's network namespace is the switch's own; give another")
	}
	c.Configure = func(inner netlink.Link) error { return c.To.Configure(inner, c.Addresses, routes, false) }
	_, inner, warnings, err := n.Attach(s, c)
	warn(warnings)
	if err != nil {
		return nil, err
	}
	one.MAC = inner.Attrs().HardwareAddr.String()
	return status{[]string{}, []string{}, map[string]statusOfOne{c.Interface: one}}, nil
}

// warn prints notes about settings that work but may be unintended.
func warn(notes []string) {
	for _, n := range notes {
		fmt.Fprintln(os.Stderr, "bascule-netavark: warning:", n)
	}
}

func (n *network) subnetOf(ip netip.Addr) *subnet {
	for i := range n.subnets {
		if n.subnets[i].Contains(ip) {
			return &n.subnets[i]
		}
	}
	return nil
}
