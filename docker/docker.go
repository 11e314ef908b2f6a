// SPDX-License-Identifier: BSD-2-Clause

// Package docker is a remote network driver for Docker
// (https://github.com/moby/moby/blob/v26.1.5/libnetwork/docs/remote.md). The protocol is JSON in
// POST requests on a unix socket. The agent serves it.
//
// An endpoint is a port, which is found by the id in its owner. It exists from CreateEndpoint to
// DeleteEndpoint, even while no agent runs. A file keeps the parameters of networks, because Docker
// sends them only once, even across a reboot.
package docker

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"bascule/bridge"
	"bascule/files"
	"bascule/pf"
	"bascule/plug"

	"github.com/vishvananda/netlink"
)

// By identifies this front end in a port's owner.
const By = "docker"

// Prefix begins the names of containers' interfaces; Docker appends a number.
const Prefix = "eth"

// maxState is the size limit of the file of networks in bytes.
const maxState = 16 << 20

// Labels of Docker that networks and endpoints have (libnetwork/netlabel).
const (
	labelGeneric  = "com.docker.network.generic"
	labelInternal = "com.docker.network.internal"
	labelPorts    = "com.docker.network.portmap"
)

// others maps options of Docker's own bridge driver to equivalent options of this one.
var others = map[string]string{
	"com.docker.network.driver.mtu":  "mtu",
	"com.docker.network.bridge.name": "bridge",
}

// A Driver answers Docker's requests one at a time.
type Driver struct {
	path string
	log  *slog.Logger

	mu   sync.Mutex
	s    *bridge.Switch
	nets map[string]*network // nil before the file has been read
}

// A network is the record of a Docker network.
type network struct {
	Words    map[string]string `json:"options,omitempty"`
	Internal bool              `json:"internal,omitempty"`
	Gateways []netip.Prefix    `json:"gateways,omitempty"` // with the lengths of their subnets
	Made     bool              `json:"made,omitempty"`     // the bridge was made for this network only
}

// New makes a driver for the calling thread's network namespace, with a file that stores the
// networks. The driver lives as long as the process.
func New(path string, log *slog.Logger) (*Driver, error) {
	s, err := bridge.Open("")
	if err != nil {
		return nil, err
	}
	return &Driver{path: path, log: log, s: s}, nil
}

// An empty is the answer to a request without a result.
type empty struct{}

// ServeHTTP answers a request. An invalid request gets the status 400, 404 or 405; a refused one
// gets 200 and Err, as the protocol requires.
func (d *Driver) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status, answer := http.StatusOK, any(nil)
	method, known := d.methods()[strings.TrimPrefix(r.URL.Path, "/")]
	switch {
	case r.Method != http.MethodPost:
		status, answer = http.StatusMethodNotAllowed, failure(fmt.Errorf("method %s is not POST", r.Method))
	case !known:
		status, answer = http.StatusNotFound, failure(fmt.Errorf("this network driver has no request %.80q", r.URL.Path))
	default:
		text, err := io.ReadAll(r.Body)
		if err == nil && len(text) == 0 {
			text = []byte("{}")
		}
		var bad *badRequest
		if err == nil {
			d.mu.Lock()
			answer, err = method(text)
			d.mu.Unlock()
		} else {
			err = &badRequest{err}
		}
		if errors.As(err, &bad) {
			status = http.StatusBadRequest
		}
		if err != nil {
			d.log.Warn("refused a request of Docker", "request", strings.TrimPrefix(r.URL.Path, "/NetworkDriver."), "why", oneLine(err))
			answer = failure(err)
		}
	}
	w.Header().Set("Content-Type", "application/vnd.docker.plugins.v1.1+json")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(answer); err != nil {
		d.log.Debug("cannot send a reply to Docker", "error", err)
	}
}

func failure(err error) any { return map[string]string{"Err": oneLine(err)} }

func oneLine(err error) string { return strings.Join(strings.Fields(pf.Brief(err)), " ") }

// A badRequest is a request that cannot be parsed.
type badRequest struct{ error }

func (d *Driver) methods() map[string]func(text []byte) (any, error) {
	nothing := func([]byte) (any, error) { return empty{}, nil }
	return map[string]func(text []byte) (any, error){
		"Plugin.Activate": func([]byte) (any, error) { return map[string][]string{"Implements": {"NetworkDriver"}}, nil },
		"NetworkDriver.GetCapabilities": func([]byte) (any, error) {
			return map[string]string{"Scope": "local", "ConnectivityScope": "local"}, nil
		},
		"NetworkDriver.CreateNetwork":  of(d.createNetwork),
		"NetworkDriver.DeleteNetwork":  of(d.deleteNetwork),
		"NetworkDriver.CreateEndpoint": of(d.createEndpoint),
		"NetworkDriver.DeleteEndpoint": of(d.deleteEndpoint),
		"NetworkDriver.EndpointOperInfo": of(func(r request) (any, error) {
			port, err := d.endpoint(r)
			if err != nil {
				return nil, err
			}
			return map[string]any{"Value": map[string]string{"bridge": port.Bridge, "port": port.Name}}, nil
		}),
		"NetworkDriver.Join":                        of(d.join),
		"NetworkDriver.Leave":                       nothing, // the endpoint stays
		"NetworkDriver.ProgramExternalConnectivity": of(func(r request) (any, error) { return empty{}, r.publishes() }),
		"NetworkDriver.RevokeExternalConnectivity":  nothing,
		"NetworkDriver.DiscoverNew":                 nothing,
		"NetworkDriver.DiscoverDelete":              nothing,
	}
}

// A request concerns a network or an endpoint; it has the fields of all requests.
type request struct {
	NetworkID, EndpointID string
	Options               map[string]any
	IPv4Data, IPv6Data    []struct{ Pool, Gateway string }
	Interface             *wanted
}

// A wanted interface has Docker's decisions about a container's interface; empty fields are left to
// the driver.
type wanted struct {
	Address     string `json:",omitempty"`
	AddressIPv6 string `json:",omitempty"`
	MacAddress  string `json:",omitempty"`
}

// of returns a handler that parses a request for f.
func of(f func(request) (any, error)) func([]byte) (any, error) {
	return func(text []byte) (any, error) {
		var r request
		if err := plug.ReadJSON(text, &r); err != nil {
			return nil, &badRequest{fmt.Errorf("the request: %w", err)}
		}
		if err := plug.CheckID("NetworkID", r.NetworkID); err != nil {
			return nil, &badRequest{err}
		}
		if r.EndpointID != "" {
			if err := plug.CheckID("EndpointID", r.EndpointID); err != nil {
				return nil, &badRequest{err}
			}
		}
		return f(r)
	}
}

func (r *request) id() string { return By + "/" + r.NetworkID + "/" + r.EndpointID }

// publishes refuses published ports, which would lead from the host to the container.
func (r *request) publishes() error {
	if list, is := r.Options[labelPorts].([]any); is && len(list) > 0 {
		return errors.New("this driver publishes no ports; leave -p out, or give 'rdr-to' rules of pf at a host port of the switch")
	}
	return nil
}

// load reads the file of networks once.
func (d *Driver) load() error {
	if d.nets != nil {
		return nil
	}
	nets := map[string]*network{}
	f, err := files.OpenPlain(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		d.nets = nets
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot read Docker's networks: %w", err)
	}
	defer f.Close()
	text, err := files.ReadAll(f, maxState)
	if err == nil {
		err = plug.ReadJSON(text, &nets)
	}
	for id, n := range nets {
		if n == nil && err == nil {
			err = fmt.Errorf("network %.70q is empty", id)
		}
	}
	if err != nil {
		return fmt.Errorf("cannot read Docker's networks: %s: %w; restore the file, or remove it and create the networks again", d.path, err)
	}
	d.nets = nets
	return nil
}

// keep writes the file of networks after a change. After an error the old state remains.
func (d *Driver) keep(change func(map[string]*network)) error {
	next := maps.Clone(d.nets)
	change(next)
	text, err := json.MarshalIndent(next, "", "  ")
	if err == nil {
		err = os.MkdirAll(filepath.Dir(d.path), 0o700)
	}
	if err == nil {
		err = files.Replace(d.path, append(text, '\n'), 0o600)
	}
	if err != nil {
		return fmt.Errorf("cannot save Docker's networks: %w", err)
	}
	d.nets = next
	return nil
}

func (n *network) is(o *network) bool {
	return maps.Equal(n.Words, o.Words) && n.Internal == o.Internal && slices.Equal(n.Gateways, o.Gateways) && n.Made == o.Made
}

// plugs converts a stored network for package plug.
func (n *network) plugs(id string) (plug.Network, error) {
	p, err := plug.ReadNetwork(n.Words)
	if err != nil {
		return p, fmt.Errorf("option %w", err)
	}
	p.Bridge = cmp.Or(p.Bridge, "br-"+id[:min(len(id), 12)]) // Docker's own naming
	switch {
	case p.Masquerade && n.Internal:
		return p, errors.New("traffic of an internal network does not leave the host; leave masquerade out")
	case p.Metric != nil:
		return p, errors.New("option metric: Docker gives a container one default route, without a metric; leave metric out, and set no_default_route=1 on networks that should not have the route")
	}
	return p, nil
}

func (d *Driver) createNetwork(r request) (any, error) {
	if err := d.load(); err != nil {
		return nil, err
	}
	n := &network{Words: map[string]string{}}
	n.Internal, _ = r.Options[labelInternal].(bool)
	words, is := r.Options[labelGeneric].(map[string]any)
	if !is && r.Options[labelGeneric] != nil {
		return nil, fmt.Errorf("option %s is not an object", labelGeneric)
	}
	for word, value := range words {
		text, is := value.(string)
		if !is {
			return nil, fmt.Errorf("option %.40q is not a string", word)
		}
		n.Words[cmp.Or(others[word], word)] = text
	}
	for _, pool := range slices.Concat(r.IPv4Data, r.IPv6Data) {
		if pool.Gateway == "" || strings.HasSuffix(pool.Pool, "/0") { // from the null IPAM driver
			continue
		}
		gateway, err := netip.ParsePrefix(pool.Gateway)
		if err != nil {
			return nil, fmt.Errorf("the gateway %.50q of a subnet: %w", pool.Gateway, err)
		}
		n.Gateways = append(n.Gateways, gateway)
	}
	n.Made = n.Words["bridge"] == ""
	p, err := n.plugs(r.NetworkID)
	if err == nil {
		err = p.Check(d.s)
	}
	if err != nil {
		return nil, err
	}
	if had := d.nets[r.NetworkID]; had != nil { // Docker repeats a request if the answer was lost
		if had.is(n) {
			return empty{}, nil
		}
		return nil, fmt.Errorf("network %s already exists with other settings; remove it first with 'docker network rm'", r.NetworkID)
	}
	return empty{}, d.keep(func(all map[string]*network) { all[r.NetworkID] = n })
}

// deleteNetwork deletes a network and the remains of its endpoints. It also deletes the gateway if
// no other network has it, and the bridge if it was made for this network.
func (d *Driver) deleteNetwork(r request) (any, error) {
	if err := d.load(); err != nil {
		return nil, err
	}
	n := d.nets[r.NetworkID]
	if n == nil {
		return empty{}, nil
	}
	owned, err := d.s.Owned()
	if err != nil {
		return nil, err
	}
	for _, p := range owned {
		if strings.HasPrefix(p.Owner.ID, By+"/"+r.NetworkID+"/") {
			if err := plug.Detach(d.s, p.Owner.ID); err != nil {
				return nil, err
			}
		}
	}
	if p, err := n.plugs(r.NetworkID); err == nil { // options of another version left no objects
		gateway := p.GatewayID(By)
		others := false
		for id, other := range d.nets {
			q, err := other.plugs(id)
			others = others || id != r.NetworkID && err == nil && q.GatewayID(By) == gateway
		}
		if !others {
			if _, _, err := plug.Remove(d.s, gateway); err != nil {
				return nil, err
			}
		}
		if n.Made {
			if _, err := d.s.DelEmptyBridge(p.Bridge); err != nil && !bridge.Missing(err) {
				return nil, err
			}
		}
	}
	return empty{}, d.keep(func(all map[string]*network) { delete(all, r.NetworkID) })
}

func (d *Driver) find(r request) (*network, plug.Network, error) {
	if err := d.load(); err != nil {
		return nil, plug.Network{}, err
	}
	n := d.nets[r.NetworkID]
	if n == nil {
		return nil, plug.Network{}, fmt.Errorf("network %.12s is unknown: it is not in %s; create it again with 'docker network create'", r.NetworkID, d.path)
	}
	p, err := n.plugs(r.NetworkID)
	return n, p, err
}

// createEndpoint makes an endpoint's wire and port. If the agent was killed during the request,
// Docker repeats it, and existing objects are made again.
func (d *Driver) createEndpoint(r request) (any, error) {
	if r.EndpointID == "" {
		return nil, &badRequest{errors.New("EndpointID is missing")}
	}
	n, p, err := d.find(r)
	if err == nil {
		err = r.publishes()
	}
	if err != nil {
		return nil, err
	}
	c := plug.Container{
		Owner:     bridge.Owner{ID: r.id(), By: By, Network: r.NetworkID, Container: r.EndpointID},
		Interface: plug.PeerName(r.id()),
	}
	if r.Interface == nil {
		r.Interface = &wanted{}
	}
	for _, text := range []string{r.Interface.Address, r.Interface.AddressIPv6} {
		if text == "" {
			continue
		}
		ip, subnet, err := net.ParseCIDR(text)
		if err != nil {
			return nil, fmt.Errorf("the address of the endpoint: %w", err)
		}
		subnet.IP = ip
		c.Addresses = append(c.Addresses, subnet)
	}
	if r.Interface.MacAddress != "" {
		if c.MAC, err = bridge.ParseMAC(r.Interface.MacAddress); err != nil {
			return nil, fmt.Errorf("the MAC of the endpoint: %w", err)
		}
	}
	if !n.Internal {
		for _, g := range n.Gateways {
			c.Gateways = append(c.Gateways, &net.IPNet{IP: g.Addr().AsSlice(), Mask: net.CIDRMask(g.Bits(), g.Addr().BitLen())})
		}
	}
	_, inner, warnings, err := p.Attach(d.s, c)
	if errors.Is(err, plug.ErrUnfinished) {
		if err = plug.Detach(d.s, c.Owner.ID); err == nil {
			_, inner, warnings, err = p.Attach(d.s, c)
		}
	}
	for _, w := range warnings {
		d.log.Warn(w)
	}
	if err != nil {
		return nil, err
	}
	answer := &wanted{}
	if c.MAC == nil { // Docker accepts no answer for a value that it has set
		answer.MacAddress = inner.Attrs().HardwareAddr.String()
	}
	return map[string]any{"Interface": answer}, nil
}

func (d *Driver) deleteEndpoint(r request) (any, error) { return empty{}, plug.Detach(d.s, r.id()) }

// endpoint finds the port of an endpoint.
func (d *Driver) endpoint(r request) (*bridge.Port, error) {
	port, err := plug.Find(d.s, r.id())
	if err == nil && (port == nil || port.State == "gone") {
		err = fmt.Errorf("endpoint %.12s is not on the switch; start its container again", r.EndpointID)
	}
	return port, err
}

// join returns the interface that Docker moves into the container, and its default gateway.
func (d *Driver) join(r request) (any, error) {
	if err := r.publishes(); err != nil {
		return nil, err
	}
	n, p, err := d.find(r)
	if err == nil {
		_, err = d.endpoint(r)
	}
	if err != nil {
		return nil, err
	}
	name := plug.PeerName(r.id())
	if _, err := netlink.LinkByName(name); err != nil {
		return nil, fmt.Errorf("the interface of endpoint %.12s is already in a container: %w", r.EndpointID, err)
	}
	answer := map[string]any{"InterfaceName": map[string]string{"SrcName": name, "DstPrefix": Prefix}}
	if !n.Internal && !p.NoDefault {
		for _, g := range n.Gateways {
			key := "Gateway"
			if g.Addr().Is6() {
				key = "GatewayIPv6"
			}
			if answer[key] == nil {
				answer[key] = g.Addr().String()
			}
		}
	}
	if answer["Gateway"] == nil && answer["GatewayIPv6"] == nil { // otherwise Docker adds docker_gwbridge
		answer["DisableGatewayService"] = true
	}
	return answer, nil
}
