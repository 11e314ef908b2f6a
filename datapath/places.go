// SPDX-License-Identifier: BSD-2-Clause

package datapath

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
)

// findPlaces fills in the offsets of kernel fields that no helper reads, as far as the
// features of c need them. The offsets come from the kernel's own description of its types,
// and differ between kernels. A bridge keeps them, since reading them takes time.
func findPlaces(c *Config) error {
	for _, ask := range []struct {
		features kernelFeature
		known    bool
		what     string
		find     func(*Config) error
	}{
		{kernelFeatureFEATURE_BACKUP, c.DeviceState != 0, "a backup port needs to know where this kernel has a device's carrier", carrierPlaces},
		{kernelFeatureFEATURES_JUDGE, c.Skb.Cast != 0, "a filter needs to know where this kernel has a frame's checksum", checksumPlaces},
		{kernelFeatureFEATURE_ROUTE, c.Route.Net != 0, "a routed host port needs to know where this kernel has what it does with frames", routePlaces},
	} {
		if kernelFeature(c.Features)&ask.features == 0 || ask.known {
			continue
		}
		switch err := ask.find(c); {
		case errors.As(err, new(*untyped)):
			return fmt.Errorf("%s, which it does not describe (CONFIG_DEBUG_INFO_BTF): %w", ask.what, err)
		case errors.As(err, new(*MissingError)):
			return err
		case err != nil:
			return fmt.Errorf("%s: %w", ask.what, err)
		}
	}
	// Answers for stations work without the offset, if it is not known.
	if kernelFeature(c.Features)&kernelFeatureFEATURE_SUPPRESS != 0 && c.DeviceState == 0 && !readsRefused() {
		_ = carrierPlaces(c)
	}
	// So do the direct paths to devices, which stay closed then.
	if ported(c) && c.Device.Qdisc == 0 && !readsRefused() {
		_ = devicePlaces(c)
	}
	return nil
}

// untyped is the error that the kernel does not describe its types.
type untyped struct{ error }

func (e *untyped) Unwrap() error { return e.error }

// A carrier has the offsets that findCarrier finds.
type carrier struct {
	at    int32
	state uint32
}

// A process reads the kernel's types once. That takes milliseconds, and the offsets stay
// the same while the kernel runs.
var (
	kernelCarrier  = sync.OnceValues(func() (carrier, error) { return findIn(findCarrier) })
	kernelDevices  = sync.OnceValues(func() (kernelDevicePlaces, error) { return findIn(findDevice) })
	kernelRoutes   = sync.OnceValues(func() (kernelRoutePlaces, error) { return findIn(findRoutes) })
	kernelChecksum = sync.OnceValues(func() (kernelSkbPlaces, error) { return findIn(findChecksum) })
)

func findIn[P any](find func(*btf.Spec) (P, error)) (at P, err error) {
	kernel, err := btf.LoadKernelSpec()
	if err != nil {
		return at, &untyped{err}
	}
	return find(kernel)
}

func carrierPlaces(c *Config) error {
	at, err := kernelCarrier()
	if err == nil {
		c.DeviceAt, c.DeviceState = at.at, at.state
	}
	return err
}

func devicePlaces(c *Config) error {
	if err := carrierPlaces(c); err != nil {
		return err
	}
	at, err := kernelDevices()
	if err == nil {
		c.Device = at
	}
	return err
}

func checksumPlaces(c *Config) error {
	at, err := kernelChecksum()
	if err == nil {
		c.Skb = at
	}
	return err
}

func routePlaces(c *Config) error {
	if err := carrierPlaces(c); err != nil {
		return err
	}
	at, err := kernelRoutes()
	if err != nil {
		return err
	}
	c.Route = at
	c.Ways = routeParts(ebpf.MustPossibleCPU())*routePart - 1
	return nil
}

// findRoutes returns the offsets of the kernel's settings that affect frames before they
// are routed.
func findRoutes(kernel *btf.Spec) (at kernelRoutePlaces, err error) {
	var device, space, ip, conf, above, hardware, cell *btf.Struct
	var flags *btf.Enum
	var cast *btf.Func
	if err := kernel.TypeByName(readFunction, &cast); errors.Is(err, btf.ErrNotFound) {
		return at, missing(running().release, err, [2]string{readFunction + "()", "a routed host port"})
	} else if err != nil {
		return at, err
	}
	for name, to := range map[string]any{
		"net_device": &device, "net": &space, "in_device": &ip, "ipv4_devconf": &conf, "netdev_priv_flags": &flags,
		"netdev_adjacent": &above, "netdev_hw_addr": &hardware, "bpf_dtab_netdev": &cell,
	} {
		if err := kernel.TypeByName(name, to); err != nil {
			return at, err
		}
	}
	for _, v := range flags.Values {
		if v.Name == "IFF_L3MDEV_SLAVE" {
			at.Slave = uint32(v.Value)
		}
	}
	if at.Slave == 0 {
		return at, errors.New("netdev_priv_flags has no IFF_L3MDEV_SLAVE")
	}
	var errs []error
	for _, ask := range []struct {
		of btf.Type
		to *uint32
	}{
		{cast, &at.Cast}, {space, &at.Namespace}, {device, &at.Device}, {above, &at.Adjacent},
		{hardware, &at.Hardware}, {cell, &at.Cell},
	} {
		*ask.to, err = numberOf(kernel, ask.of)
		errs = append(errs, err)
	}
	for _, ask := range []struct {
		of   *btf.Struct
		name string
		to   *uint32
	}{
		{device, "nd_net", &at.Net}, {device, "rx_handler", &at.Handler}, {device, "priv_flags", &at.Private},
		{device, "flags", &at.Flags}, {device, "ip_ptr", &at.Ip}, {ip, "cnf", &at.Conf}, {conf, "data", &at.Data},
		{device, "dev_addr", &at.Address}, {device, "ifindex", &at.Index}, {ip, "ifa_list", &at.Owned},
		{above, "list", &at.Entry}, {above, "dev", &at.Upper}, {above, "master", &at.Master},
		{hardware, "addr", &at.Mac}, {cell, "dev", &at.CellDevice},
	} {
		*ask.to, err = offsetIn(ask.of, ask.name)
		errs = append(errs, err)
	}
	at.Conf += at.Data
	at.Above, err = within(device, []string{"adj_list", "upper"})
	errs = append(errs, err)
	for _, ask := range []struct {
		to     *uint32
		needed bool
		path   []string
	}{
		{&at.All, true, []string{"ipv4", "devconf_all"}},
		{&at.Changes, true, []string{"ipv4", "rt_genid"}},
		{&at.Priority, true, []string{"ipv4", "sysctl_ip_fwd_update_priority"}},
		{&at.Rules, false, []string{"ipv4", "fib_has_custom_rules"}},             // CONFIG_IP_MULTIPLE_TABLES
		{&at.Hash, false, []string{"ipv4", "sysctl_fib_multipath_hash_policy"}},  // CONFIG_IP_ROUTE_MULTIPATH
		{&at.Policies, hasPart(space, "xfrm"), []string{"xfrm", "policy_count"}}, // CONFIG_XFRM
	} {
		*ask.to, err = within(space, ask.path)
		if ask.needed {
			errs = append(errs, err)
		}
	}
	if hasPart(space, "ipv6") { // CONFIG_IPV6
		errs = append(errs, findRoutes6(kernel, space, device, &at))
	}
	return at, errors.Join(errs...)
}

// findRoutes6 fills in the offsets for IPv6. Without them all IPv6 packets go to the stack.
func findRoutes6(kernel *btf.Spec, space, device *btf.Struct, at *kernelRoutePlaces) error {
	var ip, conf, rules, rule *btf.Struct
	err := errors.Join(kernel.TypeByName("inet6_dev", &ip), kernel.TypeByName("ipv6_devconf", &conf))
	if err != nil {
		return err
	}
	var errs []error
	find := func(of *btf.Struct, path ...string) uint32 {
		place, err := within(of, path)
		errs = append(errs, err)
		return place
	}
	at.Ip6 = find(device, "ip6_ptr")
	at.Disable6 = find(ip, "cnf") + find(conf, "disable_ipv6")
	at.All6 = find(space, "ipv6", "devconf_all")
	at.Forward6 = find(conf, "forwarding")
	at.Changes6 = find(space, "ipv6", "fib6_sernum")
	at.Hash6 = find(space, "ipv6", "sysctl", "multipath_hash_policy")
	if at.Rules6, err = within(space, []string{"ipv6", "fib6_has_custom_rules"}); err != nil {
		return errors.Join(errs...) // no CONFIG_IPV6_MULTIPLE_TABLES
	}
	err = errors.Join(kernel.TypeByName("fib_rules_ops", &rules), kernel.TypeByName("fib_rule", &rule))
	if err != nil {
		return err
	}
	at.List6 = find(space, "ipv6", "fib6_rules_ops")
	at.RulesList = find(rules, "rules_list")
	at.SuppressGroup, at.SuppressBits = find(rule, "suppress_ifgroup"), find(rule, "suppress_prefixlen")
	if at := find(rule, "list"); at != 0 {
		errs = append(errs, errors.New("fib_rule does not begin with its place in the list"))
	}
	if at.Rule, err = numberOf(kernel, rule); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// hasPart reports whether a structure has a member.
func hasPart(s *btf.Struct, name string) bool {
	_, ok := member(s.Members, name)
	return ok
}

// within returns the offset of a member in a structure, by a path through inner structures.
func within(s *btf.Struct, path []string) (at uint32, err error) {
	for i, name := range path {
		m, ok := member(s.Members, name)
		if !ok {
			return 0, fmt.Errorf("%s has no %s", s.Name, name)
		}
		at += m.Offset.Bytes()
		if i == len(path)-1 {
			break
		}
		if s, ok = btf.UnderlyingType(m.Type).(*btf.Struct); !ok {
			return 0, fmt.Errorf("%s is not a structure", name)
		}
	}
	return at, nil
}

// readsRefused reports whether programs may not read the kernel's memory
// (kernel_lockdown(7)).
func readsRefused() bool {
	text, err := os.ReadFile("/sys/kernel/security/lockdown")
	return err == nil && strings.Contains(string(text), "[confidentiality]")
}

// findCarrier returns the offsets of a device's carrier.
func findCarrier(kernel *btf.Spec) (carrier, error) {
	var cell, device *btf.Struct
	if err := errors.Join(kernel.TypeByName("bpf_dtab_netdev", &cell), kernel.TypeByName("net_device", &device)); err != nil {
		return carrier{}, err
	}
	dev, err1 := offsetIn(cell, "dev")
	val, err2 := offsetIn(cell, "val")
	state, err3 := offsetIn(device, "state")
	return carrier{int32(dev) - int32(val), state}, errors.Join(err1, err2, err3)
}

// findDevice returns the offsets of everything at a device that affects outgoing frames,
// which bpf/device.h reads.
func findDevice(kernel *btf.Spec) (at kernelDevicePlaces, err error) {
	var device, discipline, kind, program *btf.Struct
	for name, to := range map[string]**btf.Struct{
		"net_device": &device, "Qdisc": &discipline, "Qdisc_ops": &kind, "bpf_xdp_entity": &program,
	} {
		if err := kernel.TypeByName(name, to); err != nil {
			return at, err
		}
	}
	var errs []error
	for _, ask := range []struct {
		of   *btf.Struct
		name string
		to   *uint32
	}{
		{device, "qdisc", &at.Qdisc}, {discipline, "handle", &at.Handle}, {discipline, "ops", &at.Ops}, {kind, "id", &at.Id},
		{device, "xdp_state", &at.Xdp}, {device, "nd_net", &at.Net},
	} {
		*ask.to, err = offsetIn(ask.of, ask.name)
		errs = append(errs, err)
	}
	if program.Size != 16 { // the program and the link
		errs = append(errs, fmt.Errorf("bpf_xdp_entity has %d bytes", program.Size))
	}
	const driver = 1 // XDP_MODE_DRV, behind the generic hook's entry
	at.Xdp += driver * program.Size
	for name, to := range map[string]*uint32{"tcx_egress": &at.Tc, "nf_hooks_egress": &at.Netfilter} {
		if hasPart(device, name) { // CONFIG_NET_XGRESS, CONFIG_NETFILTER_EGRESS
			*to, err = offsetIn(device, name)
			errs = append(errs, err)
		}
	}
	const align = 32 // NETDEV_ALIGN
	at.Private = (device.Size + align - 1) &^ (align - 1)
	if hasPart(device, "priv") { // since Linux 6.12
		at.Private, err = offsetIn(device, "priv")
		errs = append(errs, err)
	}
	return at, errors.Join(errs...)
}

// readFunction is the kernel function by which a program reads a kernel structure. It is
// not a helper: its number is only in BTF.
const readFunction = "bpf_rdonly_cast"

// castFunction is the kernel function by which a filter gets the state of a frame's
// checksum. It is not a helper: its number is only in BTF.
const castFunction = "bpf_cast_to_kern_ctx"

// findChecksum returns the offsets of the state of a frame's checksum.
func findChecksum(kernel *btf.Spec) (at kernelSkbPlaces, err error) {
	var cast *btf.Func
	var skb *btf.Struct
	if err := kernel.TypeByName(castFunction, &cast); errors.Is(err, btf.ErrNotFound) {
		return at, missing(running().release, err, [2]string{castFunction + "()", "a filter"})
	} else if err != nil {
		return at, err
	}
	if err := kernel.TypeByName("sk_buff", &skb); err != nil {
		return at, err
	}
	summed, ok := member(skb.Members, "ip_summed")
	if !ok || summed.BitfieldSize != 2 || summed.Offset%8 == 7 {
		return at, errors.New("sk_buff has its ip_summed where no other kernel has it")
	}
	id, err := numberOf(kernel, cast)
	errs := []error{err}
	at = kernelSkbPlaces{Cast: id, Summed: summed.Offset.Bytes(), SummedShift: uint32(summed.Offset % 8)}
	for name, to := range map[string]*uint32{"head": &at.Head, "data": &at.Data, "csum_start": &at.CsumStart, "csum_offset": &at.CsumOffset} {
		*to, err = offsetIn(skb, name)
		errs = append(errs, err)
	}
	return at, errors.Join(errs...)
}

// numberOf returns the kernel's number of one of its types.
func numberOf(kernel *btf.Spec, t btf.Type) (uint32, error) {
	id, err := kernel.TypeID(t)
	return uint32(id), err
}

// offsetIn returns the offset of a member in a structure, in bytes.
func offsetIn(s *btf.Struct, name string) (uint32, error) {
	m, ok := member(s.Members, name)
	if !ok {
		return 0, fmt.Errorf("%s has no %s", s.Name, name)
	}
	return m.Offset.Bytes(), nil
}

// member returns a member with its offset in the outermost structure. The member may be in
// a structure or union without a name.
func member(members []btf.Member, name string) (btf.Member, bool) {
	for _, m := range members {
		if m.Name == name {
			return m, true
		}
		if m.Name != "" {
			continue
		}
		var inner []btf.Member
		switch t := btf.UnderlyingType(m.Type).(type) {
		case *btf.Struct:
			inner = t.Members
		case *btf.Union:
			inner = t.Members
		}
		if found, ok := member(inner, name); ok {
			found.Offset += m.Offset
			return found, true
		}
	}
	return btf.Member{}, false
}

// kernelSkbCall and kernelReadCall are KERNEL_SKB_CALL and KERNEL_READ_CALL of bpf/types.h.
const (
	kernelSkbCall  = 0xba5c01e05eabb0ff
	kernelReadCall = 0xba5c01e05eabb1ff
)

// castCall returns the instruction that replaces such a constant: the call of the kernel
// function with that number or, if the number was not needed, an instruction that returns
// 0.
func castCall(ins asm.Instruction, cast uint32) asm.Instruction {
	if cast == 0 {
		return asm.Mov.Imm(asm.R0, 0).WithMetadata(ins.Metadata)
	}
	call := asm.Instruction{OpCode: asm.OpCode(asm.JumpClass).SetJumpOp(asm.Call), Src: asm.PseudoKfuncCall, Constant: int64(cast)}
	return call.WithMetadata(ins.Metadata)
}
