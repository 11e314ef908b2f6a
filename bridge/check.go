// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// A Finding is a property of the kernel, the machine or a device that matters to bridges.
type Finding struct {
	About string // "kernel", "machine", "network", "device", "port" or "agent"
	Name  string // the property or object, such as "tcx", "eth0" or "br0/eth0"
	State Verdict
	Text  string // a few words, with the remedy if it is not obvious
	// Needed: without it no bridge can exist.
	Needed bool
}

// A Verdict is the result of a check: whether the thing is as bridges need it.
type Verdict string

// The verdicts.
const (
	VerdictYes     Verdict = "yes"
	VerdictNo      Verdict = "no"
	VerdictNote    Verdict = "note"    // it works, with a restriction or side effect
	VerdictUnknown Verdict = "unknown" // it could not be determined
)

// Check examines the kernel, the machine and the devices of the namespace for what bridges need. It
// changes nothing. Without rights, it returns the findings that it can.
func (s *Switch) Check() (list []Finding, err error) {
	err = s.Inside(func() error {
		c := &checker{root: "/"}
		c.kernel()
		c.machine(s)
		c.processes()
		c.network()
		list = c.found
		devices, err := checkDevices()
		list = append(list, devices...)
		return err
	})
	if err != nil || Usable() != nil || !datapath.Mounted() {
		return list, err
	}
	found, err := s.PortFindings()
	for _, f := range found {
		list = append(list, Finding{About: "port", Name: f.Bridge + "/" + f.Port, State: VerdictNote, Text: f.Text})
	}
	return list, err
}

// A checker collects findings. It reads files below root.
type checker struct {
	root  string
	found []Finding
}

func (c *checker) add(about, name string, state Verdict, text string) *Finding {
	c.found = append(c.found, Finding{About: about, Name: name, State: state, Text: text})
	return &c.found[len(c.found)-1]
}

// text returns the trimmed content of a file, or "" if it cannot be read.
func (c *checker) text(path string) string {
	text, err := os.ReadFile(filepath.Join(c.root, path))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// first returns the first path that exists, or "".
func (c *checker) first(paths ...string) string {
	for _, path := range paths {
		if _, err := os.Stat(filepath.Join(c.root, path)); err == nil {
			return path
		}
	}
	return ""
}

func (c *checker) kernel() {
	state, text := VerdictYes, "programs can be put on every port"
	switch err := datapath.CheckKernel(); {
	case err == nil:
	case errors.As(err, new(*datapath.MissingError)):
		state, text = VerdictNo, err.Error()+"; boot Linux "+newEnough+" or newer"
	default:
		state, text = VerdictUnknown, err.Error()
	}
	c.add("kernel", "tcx", state, text).Needed = true
	if err := allowed(); err != nil {
		c.add("kernel", "features", VerdictUnknown, "only root can read it")
	} else {
		for _, a := range datapath.Abilities() {
			c.ability(a)
		}
	}
	switch jit := c.text("proc/sys/net/core/bpf_jit_enable"); jit {
	case "":
		c.add("kernel", "JIT", VerdictUnknown, "net.core.bpf_jit_enable cannot be read")
	case "0":
		c.add("kernel", "JIT", VerdictNo, "programs are interpreted, which is slow; 'sysctl net.core.bpf_jit_enable=1'")
	default:
		c.add("kernel", "JIT", VerdictYes, "programs are translated to machine code")
	}
	switch {
	case c.text("sys/kernel/rcu_normal") != "" && c.text("sys/kernel/rcu_normal") != "0":
		c.add("kernel", "RCU", VerdictNote, "it cannot be expedited (rcu_normal): adding a port takes some 10 ms")
	case c.text("sys/kernel/rcu_expedited") == "":
		c.add("kernel", "RCU", VerdictNote, "no /sys/kernel/rcu_expedited: adding a port takes some 10 ms")
	default:
		c.add("kernel", "RCU", VerdictYes, "it is expedited while ports are added")
	}
}

// ability adds the finding about a feature of the kernel.
func (c *checker) ability(a datapath.Ability) {
	name := strings.TrimPrefix(a.For, "a ")
	name, _, _ = strings.Cut(name, " into ")
	needed := a.For == "every bridge"
	if needed {
		name = "helpers"
	}
	lacks := func(list []string) string { return "no " + strings.Join(list, ", ") }
	state, text := VerdictYes, ""
	switch {
	case a.Err != nil:
		state, text = VerdictUnknown, "the kernel does not report it: "+a.Err.Error()
	case len(a.Missing) > 0:
		state, text = VerdictNo, lacks(a.Missing)
	case a.Types != nil:
		state, text = VerdictNo, "the kernel does not describe its types (BTF): "+a.Types.Error()
	case len(a.XDP) > 0 && a.For == "XDP":
		state, text = VerdictNo, lacks(a.XDP)
	case len(a.XDP) > 0:
		state, text = VerdictNote, "only with tcx; in XDP there is "+lacks(a.XDP)
	}
	c.add("kernel", name, state, text).Needed = needed
}

func (c *checker) machine(s *Switch) {
	state, text := VerdictYes, "this process may do everything that commands do"
	if err := Usable(); err != nil {
		state, text = VerdictNo, strings.TrimPrefix(err.Error(), "cannot use the switch: ")
	}
	c.add("machine", "rights", state, text).Needed = true

	of := unix.Statfs_t{}
	err := unix.Statfs(filepath.Join(c.root, datapath.Root), &of)
	switch {
	case err == nil && of.Type == unix.BPF_FS_MAGIC:
		c.add("machine", "bpffs", VerdictYes, datapath.Root+" is mounted")
	case slices.Contains(strings.Fields(c.text("proc/filesystems")), "bpf"):
		c.add("machine", "bpffs", VerdictYes, "the first command mounts "+datapath.Root)
	default:
		c.add("machine", "bpffs", VerdictNo, "the kernel has no file system to keep bridges in (CONFIG_BPF_SYSCALL)").Needed = true
	}

	free, err := s.freeMemory()
	least := datapath.FDBMemory(defaultFDBMax)
	switch text := fmt.Sprintf("%s free; a new bridge's addresses take %s", inUnits(free), inUnits(least)); {
	case err != nil:
		c.add("machine", "memory", VerdictUnknown, err.Error())
	case free < least:
		c.add("machine", "memory", VerdictNo, text).Needed = true
	default:
		c.add("machine", "memory", VerdictYes, fmt.Sprintf("%s; limits may take %s", text, inUnits(free/memoryPart)))
	}
}

// processes checks whether the bridges of network namespaces that have ended can be swept.
func (c *checker) processes() {
	state, text := VerdictYes, "'bridge add' removes bridges of ended network namespaces"
	if !seesAllProcesses(c.root) {
		state, text = VerdictNote, "not all can be read: bridges of ended network namespaces stay until a process that can read all adds a bridge"
	}
	c.add("machine", "processes", state, text)
}

func (c *checker) network() {
	for _, ip := range []struct{ name, file string }{
		{"IPv4 routing", "proc/sys/net/ipv4/ip_forward"}, {"IPv6 routing", "proc/sys/net/ipv6/conf/all/forwarding"},
	} {
		key := strings.ReplaceAll(strings.TrimPrefix(ip.file, "proc/sys/"), "/", ".")
		switch c.text(ip.file) {
		case "":
			c.add("network", ip.name, VerdictNo, "the kernel has no "+key)
		case "0":
			c.add("network", ip.name, VerdictNote, "off: routed host ports forward nothing; 'sysctl "+key+"=1'")
		default:
			c.add("network", ip.name, VerdictYes, "routed host ports forward")
		}
	}
	if rules := forwardRules(); len(rules) > 0 {
		c.add("network", "netfilter", VerdictNote, "the host's FORWARD rules do not see packets that bridges or routed host ports forward")
	}
	if on := c.text("proc/sys/net/bridge/bridge-nf-call-iptables"); on != "" && on != "0" {
		c.add("network", "br_netfilter", VerdictNote, "iptables sees frames of Linux bridges, but none of bascule's: filter with pf")
	}
	c.nextHops()
	c.managers()
}

// nextHops finds an IPv4 route with several next hops for which the kernel's look-up returns the
// last one for all packets, a defect of Linux 6.16 and 6.17 (docs/kernels.md). It looks up many
// addresses behind such a route instead of comparing the kernel's version.
func (c *checker) nextHops() {
	if policy := c.text("proc/sys/net/ipv4/fib_multipath_hash_policy"); policy != "0" && policy != "1" {
		return // routed host ports leave such packets to the host then
	}
	if c.text("proc/sys/net/ipv4/fib_multipath_use_neigh") != "0" {
		return // a next hop that does not answer may rightly get no packets then
	}
	var list []netlink.Route
	err := netlink.RouteListFilteredIter(unix.AF_INET, &netlink.Route{}, 0, func(r netlink.Route) bool {
		if len(r.MultiPath) > 1 {
			list = append(list, r)
		}
		return len(list) < 1000
	})
	if err != nil {
		return
	}
	for _, r := range list {
		if !takesLast(&r) { // or it has a nexthop group, for which the look-up is correct
			continue
		}
		name := "the default route"
		if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
			name = "the route to " + r.Dst.String()
		}
		c.add("network", "next hops", VerdictNote, "by "+name+" routed host ports send all to its last "+
			"next hop, because the kernel's look-up does; give it a group of next hops (ip-nexthop(8))")
		return
	}
}

// takesLast reports whether the kernel sends all packets of an IPv4 route to the last of its next
// hops, from an address that is on none of their interfaces. It returns false if this cannot be
// determined.
func takesLast(r *netlink.Route) bool {
	const asks = 64
	hop, ways := map[int]bool{}, map[string]bool{} // interfaces; next hops
	least, most := r.MultiPath[0].Hops+1, 0
	last := ""
	for _, h := range r.MultiPath {
		if h.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) != 0 {
			return false
		}
		hop[h.LinkIndex] = true
		last = fmt.Sprint(h.LinkIndex, h.Gw, h.Via)
		ways[last] = true
		weight := h.Hops + 1 // the kernel reports one less
		least, most = min(least, weight), max(most, weight)
	}
	if most > 4*least || len(ways) < 2 {
		return false // then all look-ups may rightly have the same result
	}
	addresses, err := netlink.AddrList(nil, unix.AF_INET)
	if err != nil {
		return false
	}
	at := slices.IndexFunc(addresses, func(a netlink.Addr) bool { return !hop[a.LinkIndex] && !a.IP.IsLoopback() })
	if at < 0 {
		return false
	}
	from := addresses[at].IP
	net := netip.MustParsePrefix("192.0.2.0/24") // behind a default route (RFC 5737)
	if r.Dst != nil {
		if ones, _ := r.Dst.Mask.Size(); ones > 0 {
			first, ok := netip.AddrFromSlice(r.Dst.IP.To4())
			if !ok || ones > 26 {
				return false
			}
			net = netip.PrefixFrom(first, ones)
		}
	}
	for to, n := net.Addr(), 0; n < asks; to, n = to.Next(), n+1 {
		// another route or rule may match the address
		match, err := netlink.RouteGetWithOptions(to.AsSlice(),
			&netlink.RouteGetOptions{SrcAddr: from, FIBMatch: true})
		if err != nil || len(match) != 1 || !sameRoute(&match[0], r) {
			return false
		}
		way, err := netlink.RouteGetWithOptions(to.AsSlice(), &netlink.RouteGetOptions{SrcAddr: from})
		if err != nil || len(way) != 1 {
			return false
		}
		if fmt.Sprint(way[0].LinkIndex, way[0].Gw, way[0].Via) != last {
			return false
		}
	}
	return true
}

// sameRoute reports whether a and b are the same route.
func sameRoute(a, b *netlink.Route) bool {
	dst := func(r *netlink.Route) string {
		if r.Dst == nil {
			return "0.0.0.0/0"
		}
		return r.Dst.String()
	}
	return dst(a) == dst(b) && a.Table == b.Table && a.Priority == b.Priority && a.Tos == b.Tos &&
		len(a.MultiPath) == len(b.MultiPath)
}

// managers finds running programs that configure devices on their own, by their files in /run.
func (c *checker) managers() {
	const etc, lib = "etc/", "usr/lib/"
	for _, m := range []struct {
		name  string
		runs  []string
		keeps []string // files that keep it away from the switch's own ends
		text  string   // other remedies
	}{
		{
			"NetworkManager", []string{"run/NetworkManager"},
			[]string{etc + "NetworkManager/conf.d/10-bascule.conf", lib + "NetworkManager/conf.d/10-bascule.conf"},
			"name ports in /etc/NetworkManager/conf.d/20-bascule-ports.conf, or it sets them up as its own",
		},
		{
			"systemd-networkd", []string{"run/systemd/netif/state"},
			[]string{etc + "systemd/network/10-bascule.network", lib + "systemd/network/10-bascule.network"},
			"name ports in /etc/systemd/network/10-bascule.network.d/ports.conf",
		},
	} {
		switch {
		case c.first(m.runs...) == "":
		case c.first(m.keeps...) == "":
			c.add("network", m.name, VerdictNo, "it runs, and would take the switch's ends of host ports: 'make install' prevents that")
		default:
			c.add("network", m.name, VerdictNote, m.text)
		}
	}
	if c.first("run/dhcpcd", "run/dhcpcd.pid") != "" {
		state, text := VerdictNote, "it requests addresses on every device that appears: exclude ports in /etc/dhcpcd.conf ('denyinterfaces')"
		if strings.Contains(c.text("etc/dhcpcd.conf"), "denyinterfaces") || strings.Contains(c.text("etc/dhcpcd.conf"), "allowinterfaces") {
			text = "its configuration names interfaces: check that it takes no ports"
		}
		c.add("network", "dhcpcd", state, text)
	}
	if c.first("run/libvirt/libvirt-sock", "run/libvirt/virtqemud-sock") != "" {
		c.add("network", "libvirt", VerdictNote, "names that begin with vnet, vif, macvtap or macvlan are its own: name taps otherwise")
	}
}

// checkDevices reports for each device of the namespace whether it can be a port, and by which
// hooks.
func checkDevices() (list []Finding, err error) {
	devices, err := links()
	if err != nil {
		return nil, failed("list devices", err)
	}
	family, _ := netlink.GenlFamilyGet("netdev") // the kernel may have none
	for _, l := range devices {
		a := l.Attrs()
		if a.RawFlags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		f := Finding{About: "device", Name: a.Name, State: VerdictYes}
		driver := l.Type()
		if name := driverOf(l); name != "" && name != driver {
			driver = name
		}
		if why, remedy := usable(l); why != "" {
			f.State, f.Text = VerdictNo, driver+": "+why+"; "+remedy
		} else {
			f.Text = driver + ": tcx" + xdpWords(l, family)
		}
		list = append(list, f)
	}
	slices.SortFunc(list, func(a, b Finding) int { return strings.Compare(a.Name, b.Name) })
	return list, nil
}

// xdpWords describes the support of XDP by a device.
func xdpWords(l netlink.Link, family *netlink.GenlFamily) string {
	use, known := xdpUseOf(l)
	if !known {
		return "; no XDP for its kind"
	}
	if family == nil {
		return "; the kernel does not say whether its driver supports XDP"
	}
	has, err := xdpFeatures(family, uint32(l.Attrs().Index))
	if err != nil {
		return "; the kernel does not say whether its driver supports XDP"
	}
	use.sends = use.sends && has&xdpXmit != 0
	switch takes := use.takes && has&xdpBasic != 0 && has&xdpRedirect != 0; {
	case takes && use.sends:
		return ", XDP"
	case takes && l.Type() == "veth":
		return ", XDP; it takes redirected frames when it is a port by XDP"
	case takes:
		return ", XDP; it sends none of the frames that XDP redirects"
	case use.sends:
		return ", XDP to it and not from it: " + use.why
	case use.why != "":
		return "; no XDP: " + use.why
	}
	return "; its driver has no XDP with redirects (features 0x" + strconv.FormatUint(has, 16) + ")"
}
