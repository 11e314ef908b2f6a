// SPDX-License-Identifier: BSD-2-Clause

// Package cni is a plugin of the Container Network Interface, version 1.1
// (https://github.com/containernetworking/cni/blob/v1.1.0/SPEC.md). It puts a container on a
// bridge like the reference bridge plugin, and uses the same configuration.
//
// Its objects are found by the id in a port's owner, and by the name of a device, which is derived
// from the same id. So DEL needs neither the container's namespace nor any record of a request that
// was killed.
package cni

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"bascule/bridge"
	"bascule/files"
	"bascule/history"
	"bascule/pf"
	"bascule/plug"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// By identifies this front end in a port's owner.
const By = "cni"

// Main runs the plugin. It reads the request from the environment and standard input, writes the
// answer to standard output, and returns the exit status.
func Main(about string) int {
	leaves := func(text []byte, _ string) (*network, error) { return leave(text) }
	funcs := skel.CNIFuncs{Add: run(read, add), Del: run(leaves, del), Check: run(read, check), GC: run(leaves, gc), Status: run(read, status)}
	err := receive()
	if err == nil {
		err = skel.PluginMainFuncsWithError(funcs, version.All, about)
	}
	if err != nil {
		err.Msg = oneLine(err.Msg)
		if err := err.Print(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		return 1
	}
	return 0
}

// maxRequest is the size limit of a configuration in bytes.
const maxRequest = 4 << 20

// receive checks the configuration before the library reads it, and then puts it back as standard
// input. The library accepts any length, and its errors mention Go types.
func receive() *types.Error {
	reads := decode
	switch os.Getenv("CNI_COMMAND") {
	case "ADD", "CHECK", "STATUS":
	case "DEL", "GC":
		reads = leave
	default:
		return nil // the library returns the error
	}
	text, err := files.ReadAll(os.Stdin, maxRequest)
	if err != nil {
		return types.NewError(types.ErrDecodingFailure, "the network configuration: "+err.Error(), "")
	}
	if _, err := reads(text); err != nil {
		return err.(*types.Error)
	}
	fd, err := unix.MemfdCreate("cni", unix.MFD_CLOEXEC)
	if err == nil {
		os.Stdin = os.NewFile(uintptr(fd), "standard input")
		_, err = os.Stdin.WriteAt(text, 0)
	}
	if err != nil {
		return types.NewError(types.ErrIOFailure, "keep the network configuration: "+err.Error(), "")
	}
	return nil
}

func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }

// A request is a call of the plugin.
type request struct {
	*network
	*skel.CmdArgs
	s *bridge.Switch // in the plugin's network namespace
}

// run returns a function that reads a request, and executes it with the switch of this network
// namespace.
func run(read func(text []byte, args string) (*network, error), f func(request) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		n, err := read(args.StdinData, args.Args)
		if err != nil {
			return err
		}
		s, err := bridge.Open("")
		if err != nil {
			return err
		}
		defer s.Close()
		_, notes, err := history.Arrive(s, "")
		if err != nil {
			return coded(err)
		}
		warn(notes)
		return coded(f(request{n, args, s}))
	}
}

// coded adds the specification's error code to an error.
func coded(err error) error {
	var misused *bridge.UsageError
	switch {
	case err == nil || errors.As(err, new(*types.Error)):
		return err
	case errors.Is(err, plug.ErrUnfinished), errors.Is(err, unix.EBUSY), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENODEV),
		bridge.Missing(err): // another request made it, and failed
		return types.NewError(types.ErrTryAgainLater, oneLine(pf.Brief(err)), "")
	case errors.As(err, &misused):
		return types.NewError(types.ErrInvalidNetworkConfig, oneLine(pf.Brief(err)), "")
	}
	return types.NewError(types.ErrInternal, oneLine(pf.Brief(err)), "")
}

// idOf returns the id of a container's port. The library has checked the parts, so none contains a
// slash.
func idOf(network, container, ifname string) string {
	return By + "/" + network + "/" + container + "/" + ifname
}

func (r *request) id() string { return idOf(r.Name, r.ContainerID, r.IfName) }

// owner returns the port's owner. It fails if the id is too long.
func (r *request) owner() (bridge.Owner, error) {
	o := bridge.Owner{ID: r.id(), By: By, Network: r.Name, Container: r.ContainerID, Interface: r.IfName}
	if err := o.Check(); err != nil {
		return o, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_CONTAINERID: "+err.Error(), "")
	}
	return o, nil
}

// space opens the container's network namespace.
func (r *request) space() (*plug.Space, error) {
	space, err := plug.OpenSpace(r.Netns)
	if err != nil {
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, "CNI_NETNS: "+err.Error(), "")
	}
	if space.Is() && r.NetnsOverride == "" {
		space.Close()
		return nil, types.NewError(types.ErrInvalidNetNS, "CNI_NETNS is the switch's own network namespace; give the container's", "")
	}
	return space, nil
}

func add(r request) (err error) {
	if err := plug.CheckInterface(r.IfName); err != nil {
		return wrongVariable("CNI_IFNAME", err.Error())
	}
	owner, err := r.owner()
	if err != nil {
		return err
	}
	space, err := r.space()
	if err != nil {
		return err
	}
	defer space.Close()
	if load := r.rules(); load != nil { // before the first object is made
		if _, err := r.s.ParsePortPF(r.id(), plug.DeviceName(r.id()), *load); err != nil {
			return wrong("%s", oneLine(pf.Brief(err)))
		}
	}
	if _, err := space.LinkByName(r.IfName); err == nil {
		return wrongVariable("CNI_IFNAME", "the container already has an interface "+r.IfName)
	}
	if err := ofBridge(plug.CheckBridge(r.s, r.Bridge, r.Mirror)); err != nil {
		return err
	}
	var back plug.Undo
	defer func() {
		if err != nil {
			back.Do()
		}
	}()
	info, err := r.ensureBridge(&back)
	if err != nil {
		return err
	}
	wire := plug.Wire{ID: owner.ID, MTU: r.MTU, MAC: r.mac, Name: r.IfName, To: space}
	device, err := wire.Make()
	if errors.Is(err, plug.ErrInUse) {
		return wrongVariable("CNI_CONTAINERID", owner.ID+": "+err.Error()+" by DEL")
	} else if err != nil {
		return err
	}
	back.Add(func() { _ = plug.Cut(owner.ID) })
	inner, err := space.LinkByName(r.IfName)
	if err != nil {
		return fmt.Errorf("look for %s in the container: %w", r.IfName, err)
	}
	mac := inner.Attrs().HardwareAddr
	// The IPAM plugin may request an address through this interface, as with DHCP.
	result := &types100.Result{CNIVersion: types100.ImplementedSpecVersion}
	p := r.plug(owner, device.Attrs().Name, mac, info, result)
	back.Add(func() { _, _, _ = plug.Remove(r.s, owner.ID) })
	notes, err := plug.Put(r.s, p)
	warn(notes)
	if err != nil {
		return err
	}
	if r.IPAM.Type != "" {
		if err := r.address(result, &back); err != nil {
			return err
		}
	}
	shared := plug.Shared{Gateway: r.gatewayOf(result), By: By}
	if r.IPMasq {
		shared.Masquerade = addressesOf(result)
	}
	if err := sharedError(shared.Judge(r.s)); err != nil {
		return err
	}
	if r.SourceGuard && len(result.IPs) > 0 { // until here, source guard passes only DHCP
		p = r.plug(owner, device.Attrs().Name, mac, info, result)
		notes, err := plug.Put(r.s, p)
		warn(notes)
		if err != nil {
			return err
		}
	}
	if err := r.configure(space, inner, result); err != nil {
		return err
	}
	if r.IPMasqBackend != nil {
		warn([]string{fmt.Sprintf("ipMasqBackend %s has no effect: with ipMasq, pf masquerades", *r.IPMasqBackend)})
	}
	gateway, notes, err := shared.Make(r.s)
	warn(notes)
	if err != nil {
		return sharedError(err)
	}
	shown := &types100.Interface{Name: r.Bridge, Mac: info.Address.String()}
	result.Interfaces = []*types100.Interface{
		shown,
		{Name: device.Attrs().Name, Mac: device.Attrs().HardwareAddr.String(), Mtu: device.Attrs().MTU},
		{Name: r.IfName, Mac: mac.String(), Mtu: inner.Attrs().MTU, Sandbox: r.Netns},
	}
	if gateway == nil { // another network may have one
		if l, err := netlink.LinkByName(r.Bridge); err == nil {
			shown.Mac = l.Attrs().HardwareAddr.String()
		}
	}
	switch {
	case gateway == nil:
	case r.VLAN == 0:
		shown.Mac = gateway.Attrs().HardwareAddr.String()
	default:
		result.Interfaces = append(result.Interfaces, &types100.Interface{Name: gateway.Attrs().Name, Mac: gateway.Attrs().HardwareAddr.String()})
	}
	if !r.DNS.IsEmpty() {
		result.DNS = r.DNS
	}
	return types.PrintResult(result, cmp.Or(r.CNIVersion, "0.1.0"))
}

// plug returns the container's port with the addresses known so far.
func (r *request) plug(owner bridge.Owner, device string, mac net.HardwareAddr, info bridge.Info, result *types100.Result) plug.Plug {
	p := plug.Plug{
		Owner: owner, Bridge: r.Bridge, Device: device, Settings: r.settings(), VLANs: r.vlans(info.Config.DefaultPVID), CopyTo: r.Mirror, PF: r.rules(),
	}
	if r.MACSpoofCheck {
		p.Stations = []net.HardwareAddr{mac}
	}
	if r.SourceGuard {
		p.Bindings = plug.Bindings(addressesOf(result), mac)
	}
	return p
}

func wrongVariable(name, why string) error {
	return types.NewError(types.ErrInvalidEnvironmentVariables, name+": "+why, "")
}

// warn prints notes about settings that work but may be unintended.
func warn(notes []string) {
	for _, n := range notes {
		fmt.Fprintln(os.Stderr, "bascule-cni: warning:", oneLine(n))
	}
}

// sharedError adds a code to an error in an object that all containers of a network share.
func sharedError(err error) error {
	none := new(plug.NoUplink)
	switch {
	case !errors.As(err, &none):
		return err
	case none.Interface == "":
		return wrong("ipMasq: %v", none)
	}
	return unsupported("ipMasq", true, none.Error())
}

// ofBridge adds a code to an error of the bridge.
func ofBridge(err error) error {
	if errors.As(err, new(*plug.LinuxBridge)) {
		return wrong("bridge: %v", err)
	}
	return err
}

// ensureBridge returns the bridge, which it makes if necessary.
func (r *request) ensureBridge(back *plug.Undo) (info bridge.Info, err error) {
	info, err = plug.EnsureBridge(r.s, r.Bridge, r.filters(), back)
	err = ofBridge(err)
	if err == nil && r.filters() && !info.Config.VLANFiltering {
		err = wrong("bridge %s does not filter VLANs; enable that with 'bascule bridge set %s --vlan-filtering', or leave out vlan and vlanTrunk", r.Bridge, r.Bridge)
	}
	return info, err
}

// address requests the container's addresses from the IPAM plugin.
func (r *request) address(result *types100.Result, back *plug.Undo) error {
	ctx := context.Background()
	got, err := invoke.DelegateAdd(ctx, r.IPAM.Type, r.StdinData, nil)
	if err != nil {
		return r.ofIPAM(err)
	}
	back.Add(func() {
		_ = os.Setenv("CNI_COMMAND", "DEL")
		_ = invoke.DelegateDel(ctx, r.IPAM.Type, r.StdinData, nil)
	})
	all, err := types100.NewResultFromResult(got)
	if err != nil {
		return fmt.Errorf("read the result of ipam %s: %w", r.IPAM.Type, err)
	}
	result.IPs, result.Routes, result.DNS = all.IPs, all.Routes, all.DNS
	if len(result.IPs) == 0 {
		return fmt.Errorf("ipam %s returned no address", r.IPAM.Type)
	}
	default4, default6 := false, false
	for _, route := range result.Routes {
		if ones, _ := route.Dst.Mask.Size(); ones == 0 && route.GW != nil {
			default4, default6 = default4 || route.Dst.IP.To4() != nil, default6 || route.Dst.IP.To4() == nil
		}
	}
	for _, ip := range result.IPs {
		ip.Interface = types100.Int(2)
		if ip.Gateway == nil && r.IsGateway {
			ip.Gateway = plug.FirstOf(ip.Address)
		}
		if !r.IsDefaultGateway {
			continue
		}
		has, zero := &default6, net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}
		if ip.Address.IP.To4() != nil {
			has, zero = &default4, net.IPNet{IP: net.IPv4zero.To4(), Mask: net.CIDRMask(0, 32)}
		}
		if !*has {
			result.Routes = append(result.Routes, &types.Route{Dst: zero, GW: ip.Gateway})
			*has = true
		}
	}
	return nil
}

// ofIPAM rewords an error of the IPAM plugin. A plugin without support for the CNI version may also
// not know the command, and return any text.
func (r *request) ofIPAM(err error) error {
	if err == nil {
		return nil
	}
	path, bad := invoke.FindInPath(r.IPAM.Type, filepath.SplitList(os.Getenv("CNI_PATH")))
	if bad == nil {
		about, bad := invoke.GetVersionInfo(context.Background(), path, nil)
		if bad == nil && !slices.Contains(about.SupportedVersions(), cmp.Or(r.CNIVersion, "0.1.0")) {
			return types.NewError(types.ErrIncompatibleCNIVersion, fmt.Sprintf("ipam %s supports CNI %[3]s, not %[2]s; set cniVersion to one of these, or "+
				"install a newer one", r.IPAM.Type, r.CNIVersion, strings.Join(about.SupportedVersions(), ", ")), "")
		}
	}
	if of := new(types.Error); errors.As(err, &of) {
		return types.NewError(of.Code, "ipam "+r.IPAM.Type+": "+of.Msg, of.Details)
	}
	return fmt.Errorf("ipam %s: %w", r.IPAM.Type, err)
}

// gatewayOf returns the host as the gateway of the container's networks, or nil if the host is not
// the gateway.
func (r *request) gatewayOf(result *types100.Result) *plug.Gateway {
	if !r.IsGateway || len(result.IPs) == 0 {
		return nil
	}
	g := &plug.Gateway{
		Bridge: r.Bridge, Name: r.gateway(), VLAN: uint16(r.VLAN), MTU: r.MTU, Force: r.ForceAddress, Promisc: r.PromiscMode,
		Owner: bridge.Owner{ID: By + "-gateway/" + r.gateway(), By: By},
	}
	for _, ip := range result.IPs {
		g.Addresses = append(g.Addresses, &net.IPNet{IP: ip.Gateway, Mask: ip.Address.Mask})
	}
	return g
}

// addressesOf returns the container's addresses.
func addressesOf(result *types100.Result) (list []*net.IPNet) {
	for _, ip := range result.IPs {
		list = append(list, &ip.Address)
	}
	return list
}

// configure sets the addresses and routes of the container's interface.
func (r *request) configure(space *plug.Space, inner netlink.Link, result *types100.Result) error {
	if r.DisableInterface {
		return nil
	}
	var routes []plug.Route
	for _, route := range result.Routes {
		gw := route.GW
		for _, ip := range result.IPs {
			if gw == nil && (ip.Address.IP.To4() != nil) == (route.Dst.IP.To4() != nil) {
				gw = ip.Gateway
			}
		}
		routes = append(routes, plug.Route{Dst: route.Dst, Gateway: gw, MTU: route.MTU, AdvMSS: route.AdvMSS, Priority: route.Priority, Table: route.Table, Scope: route.Scope})
	}
	return space.Configure(inner, addressesOf(result), routes, r.EnableDAD)
}

func del(r request) error {
	if _, err := r.owner(); err != nil {
		return err
	}
	if err := r.remove(r.id()); err != nil {
		return err
	}
	if r.IPAM.Type == "" {
		return nil
	}
	return r.ofIPAM(invoke.DelegateDel(context.Background(), r.IPAM.Type, r.StdinData, nil))
}

// remove deletes a container's port and device.
func (r *request) remove(id string) error {
	_, notes, err := plug.Remove(r.s, id)
	warn(notes)
	if err != nil {
		return err
	}
	return plug.Cut(id)
}

// gc deletes the objects of this network that belong to no valid attachment.
func gc(r request) error {
	valid := map[string]bool{}
	for _, a := range r.ValidAttachments {
		valid[idOf(r.Name, a.ContainerID, a.IfName)] = true
	}
	prefix := idOf(r.Name, "", "")
	prefix = strings.TrimSuffix(prefix, "/")
	ids, err := plug.Wires(prefix)
	if err != nil {
		return err
	}
	ports, err := r.s.Owned()
	if err != nil {
		return err
	}
	for _, p := range ports {
		if strings.HasPrefix(p.Owner.ID, prefix) {
			ids = append(ids, p.Owner.ID)
		}
	}
	slices.Sort(ids)
	var errs []error
	for _, id := range slices.Compact(ids) {
		if !valid[id] {
			errs = append(errs, r.remove(id))
		}
	}
	if r.IPAM.Type != "" {
		errs = append(errs, r.ofIPAM(invoke.DelegateGC(context.Background(), r.IPAM.Type, r.StdinData, nil)))
	}
	return errors.Join(errs...)
}

// status reports whether an ADD could succeed now. Runtimes call it every few seconds.
func status(r request) error {
	if err := bridge.Usable(); err != nil {
		return types.NewError(types.ErrPluginNotAvailable, oneLine(pf.Brief(err)), "")
	}
	info, err := r.s.Quick(r.Bridge)
	switch {
	case bridge.Missing(err): // ADD makes the bridge
		if err := plug.CheckNew(r.Bridge); err != nil {
			return types.NewError(types.ErrPluginNotAvailable, err.Error(), "")
		}
	case err != nil:
		return types.NewError(types.ErrPluginNotAvailable, oneLine(pf.Brief(err)), "")
	case r.filters() && !info.Config.VLANFiltering:
		return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("bridge %s does not filter VLANs", r.Bridge), "")
	case len(info.Ports) >= bridge.MaxPorts:
		return types.NewError(types.ErrPluginNotAvailable, fmt.Sprintf("bridge %s already has %d ports, the most that a bridge can have", r.Bridge, len(info.Ports)), "")
	case info.Config.STP != bridge.STPOff && !info.AgentRuns:
		return types.NewError(types.ErrLimitedConnectivity, fmt.Sprintf("bridge %s has spanning tree, but no agent runs it: new ports forward nothing until one does", r.Bridge), "")
	}
	if r.IPAM.Type == "" {
		return nil
	}
	return r.ofIPAM(invoke.DelegateStatus(context.Background(), r.IPAM.Type, r.StdinData, nil))
}
