// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Filters that only the card has come before the switch. The first message of a kind has no filter.
func TestFilterKind(t *testing.T) {
	flags := func(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }
	filter := func(kind string, options ...*nl.RtAttr) []byte {
		message := nl.NewRtAttr(nl.TCA_KIND, nl.ZeroTerminated(kind)).Serialize()
		if options == nil {
			return message
		}
		of := nl.NewRtAttr(nl.TCA_OPTIONS, nil)
		for _, o := range options {
			of.AddChild(o)
		}
		return append(message, of.Serialize()...)
	}
	for want, message := range map[string][]byte{
		"flower": filter("flower", nl.NewRtAttr(22, flags(0))),
		"bpf":    filter("bpf", nl.NewRtAttr(9, flags(1))), // not in a card
		"u32":    filter("u32", nl.NewRtAttr(5, []byte{1, 2, 3, 4}), nl.NewRtAttr(11, flags(0))),
		"basic":  filter("basic", nl.NewRtAttr(1, flags(0))),
	} {
		if got := filterKind(message); got != want {
			t.Errorf("a filter of kind %s is taken for %q", want, got)
		}
	}
	for name, message := range map[string][]byte{
		"a classifier":             filter("flower"),
		"a table of u32":           filter("u32", nl.NewRtAttr(4, flags(1))),
		"flower of a card alone":   filter("flower", nl.NewRtAttr(22, flags(skipSoftware))),
		"matchall of a card":       filter("matchall", nl.NewRtAttr(3, flags(skipSoftware|1<<3))),
		"what says no kind at all": {},
	} {
		if got := filterKind(message); got != "" {
			t.Errorf("%s is taken for a filter of kind %q", name, got)
		}
	}
}

// Names of devices are whole names or prefixes, which have two encodings.
func TestIngressChain(t *testing.T) {
	number := func(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
	chain := func(family byte, hooknum, rules, policy uint32, devices ...*nl.RtAttr) []byte {
		hook := nl.NewRtAttr(unix.NFTA_CHAIN_HOOK, nil)
		hook.AddRtAttr(unix.NFTA_HOOK_HOOKNUM, number(hooknum))
		list := hook.AddRtAttr(hookDevices, nil)
		for _, d := range devices {
			list.AddChild(d)
		}
		message := []byte{family, 0, 0, 0}
		for _, a := range []*nl.RtAttr{
			nl.NewRtAttr(unix.NFTA_CHAIN_TABLE, nl.ZeroTerminated("t")), nl.NewRtAttr(unix.NFTA_CHAIN_NAME, nl.ZeroTerminated("c")),
			hook, nl.NewRtAttr(unix.NFTA_CHAIN_POLICY, number(policy)), nl.NewRtAttr(unix.NFTA_CHAIN_USE, number(rules)),
		} {
			message = append(message, a.Serialize()...)
		}
		return message
	}
	whole, begin, prefix := nl.NewRtAttr(deviceName, nl.ZeroTerminated("eth0")), nl.NewRtAttr(deviceName, []byte("tap")), nl.NewRtAttr(devicePrefix, nl.ZeroTerminated("vnet"))
	const drop, accept = 0, 1
	c, ok := asIngressChain(chain(unix.NFPROTO_NETDEV, netdevIngress, 1, accept, whole, begin, prefix))
	if !ok || c.name != "nftables netdev t c" {
		t.Fatalf("the chain is read as %+v, %v", c, ok)
	}
	at := []string{}
	for _, device := range []string{"eth0", "eth01", "eth", "tap", "tap7", "ta", "vnet3"} {
		if c.at(device) {
			at = append(at, device)
		}
	}
	if want := []string{"eth0", "tap", "tap7", "vnet3"}; !slices.Equal(at, want) {
		t.Errorf("the chain is at %v, want %v", at, want)
	}
	for _, test := range []struct {
		name    string
		message []byte
		want    bool
	}{
		{"a policy alone", chain(unix.NFPROTO_NETDEV, netdevIngress, 0, drop, whole), true},
		{"inet's ingress", chain(unix.NFPROTO_INET, inetIngress, 1, accept, whole), true},
		{"inet's prerouting", chain(unix.NFPROTO_INET, unix.NF_INET_PRE_ROUTING, 1, accept), false},
		{"netdev's egress", chain(unix.NFPROTO_NETDEV, 1, 1, accept, whole), false},
		{"no rule", chain(unix.NFPROTO_NETDEV, netdevIngress, 0, accept, whole), false},
		{"nothing", nil, false},
	} {
		if _, ok := asIngressChain(test.message); ok != test.want {
			t.Errorf("%s is a chain that meets frames: %v", test.name, ok)
		}
	}
}

// LowerOf distinguishes the device below from a veth's other end and from devices of other
// namespaces.
func TestLowerOf(t *testing.T) {
	at := netlink.LinkAttrs{Index: 7, ParentIndex: 3, NetNsID: -1}
	elsewhere, itself := at, at
	elsewhere.NetNsID, itself.ParentIndex = 0, 7
	for _, test := range []struct {
		name string
		link netlink.Link
		want int
	}{
		{"vlan", &netlink.Vlan{LinkAttrs: at}, 3},
		{"macsec", &netlink.GenericLink{LinkAttrs: at, LinkType: "macsec"}, 3},
		{"veth", &netlink.Veth{LinkAttrs: at}, 0},
		{"macvlan above a device elsewhere", &netlink.Macvlan{LinkAttrs: elsewhere}, 0},
		{"a tunnel without a device", &netlink.Gretap{LinkAttrs: itself}, 0},
	} {
		if got := LowerOf(test.link); got != test.want {
			t.Errorf("%s is above device %d, want %d", test.name, got, test.want)
		}
	}
}

func TestNewFindings(t *testing.T) {
	of := func(port, what string) PortFinding {
		return PortFinding{Bridge: "br0", Port: port, Kind: FindingAbove, What: what, Text: port + what}
	}
	again := of("p1", "a")
	again.Text = "in other words"
	came, went := NewFindings([]PortFinding{of("p1", "a"), of("p2", "b")}, []PortFinding{again, of("p2", "c")})
	if !slices.Equal(came, []PortFinding{of("p2", "c")}) || !slices.Equal(went, []PortFinding{of("p2", "b")}) {
		t.Errorf("came %+v, went %+v", came, went)
	}
}
