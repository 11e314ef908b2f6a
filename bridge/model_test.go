// SPDX-License-Identifier: BSD-2-Clause

package bridge

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"bascule/datapath"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// isUsage reports whether an error is a *UsageError.
func isUsage(err error) bool {
	var usage *UsageError
	return errors.As(err, &usage)
}

func TestParseMAC(t *testing.T) {
	for s, want := range map[string]string{
		"02:00:00:00:00:01": "02:00:00:00:00:01",
		"02-00-00-00-00-01": "02:00:00:00:00:01",
		"0200.0000.0001":    "02:00:00:00:00:01",
		"FE:ff:Ff:fF:FF:FF": "fe:ff:ff:ff:ff:ff",
		"00:00:00:00:00:01": "00:00:00:00:00:01",
	} {
		if got, err := ParseMAC(s); err != nil || got.String() != want {
			t.Errorf("%s: %s, %v; want %s", s, got, err, want)
		}
	}
	for s, why := range map[string]string{
		"00:00:00:00:00:00":       "zero",
		"ff:ff:ff:ff:ff:ff":       "broadcast",
		"01:00:5e:00:00:01":       "multicast",
		"33:33:00:00:00:01":       "multicast",
		"03:00:00:00:00:00":       "multicast",
		"":                        "not a MAC",
		"02:00:00:00:00":          "not a MAC",
		"02:00:00:00:00:01:02":    "not a MAC",
		"02:00:00:00:00:00:00:01": "not a MAC", // EUI-64
		"02:00:00:00:00:0g":       "not a MAC",
		"2:0:0:0:0:1":             "not a MAC",
		"br0":                     "not a MAC",
		" 02:00:00:00:00:01":      "not a MAC",
	} {
		got, err := ParseMAC(s)
		if !isUsage(err) || !strings.Contains(err.Error(), why) || got != nil {
			t.Errorf("%q: %s, %v; want a usage error with %q", s, got, err, why)
		}
	}
}

func TestCheckName(t *testing.T) {
	for _, name := range []string{"br0", "a", "fifteen-letters", "br0.100", "a.b.c", "...", "ümläut", "a-n", "lo0", "any"} {
		if err := checkName("bridge", name); err != nil {
			t.Errorf("%q: %v", name, err)
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "/", "a:b", "a b", "a\tb", "a\nb", "sixteen-letters-", "-n", "--", "lo", "all", "default", strings.Repeat("x", 1000)} {
		err := checkName("bridge", name)
		if !isUsage(err) {
			t.Errorf("%q: %v, want a usage error", name, err)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: the error has several lines: %q", name, err)
		}
	}
}

// TestNameWords: errors about names blame the kernel only if it is the one that refuses them.
func TestNameWords(t *testing.T) {
	for name, words := range map[string]string{
		"a/b": "no interface can have it; leave out slashes, colons and spaces", "a b": "no interface can have it", "..": "no interface can have it",
		"a\x1b":    "bascule takes no such name, though an interface can have it; leave out percent signs and characters that cannot be printed",
		"a\u202eb": "bascule takes no such name", "a\xff": "bascule takes no such name", "a%d": "bascule takes no such name",
	} {
		if err := checkName("port", name); err == nil || !strings.Contains(err.Error(), words) {
			t.Errorf("%q: %v, want %s", name, err, words)
		}
	}
}

// Errors that do not depend on the kernel's state come first: no case here needs a namespace or
// root.
func TestUsageFirst(t *testing.T) {
	s := &Switch{}
	tests := map[string]func() error{
		"bridge without a name":  func() error { return s.AddBridge("", nil) },
		"bridge with a slash":    func() error { return s.AddBridge("a/b", nil) },
		"bridge setting":         func() error { return s.AddBridge("br0", []Change{{"ageing", "0"}}) },
		"unknown bridge setting": func() error { return s.AddBridge("br0", []Change{{"learn", "on"}}) },
		"port without a name":    func() error { _, err := s.AddPort("br0", "", PortOptions{}); return err },
		"port with a long name":  func() error { _, err := s.AddPort("br0", "sixteen-letters-", PortOptions{}); return err },
		"type":                   func() error { _, err := s.AddPort("br0", "p", PortOptions{Type: "patchwork"}); return err },
		"hook":                   func() error { _, err := s.AddPort("br0", "p", PortOptions{Hook: "tc"}); return err },
		"port setting": func() error {
			_, err := s.AddPort("br0", "p", PortOptions{Changes: []Change{{"learn", "maybe"}}})
			return err
		},
		"hook of a port": func() error { _, err := s.SetPorts("br0", []string{"p"}, PortOptions{Hook: "nic"}); return err },
		"VLAN of an entry": func() error {
			return s.AddEntry("br0", Entry{MAC: []byte{2, 0, 0, 0, 0, 1}, VLAN: 4095, Port: "p", Static: true})
		},
		"VLAN to delete in": func() error { return s.DelEntry("br0", []byte{2, 0, 0, 0, 0, 1}, new(uint16(4095))) },
	}
	for name, f := range tests {
		if err := f(); !isUsage(err) {
			t.Errorf("%s: %v, want a usage error", name, err)
		}
	}
}

func TestErrors(t *testing.T) {
	cause := errors.New("no room")
	usage := usagef("--fdb-max 0", "%w; give more", cause)
	if got, want := usage.Error(), "--fdb-max 0: no room; give more"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !errors.Is(usage, cause) {
		t.Error("the cause is lost")
	}
	if got, want := refused("add port p", "it is gone", "look again").Error(), "cannot add port p: it is gone; look again"; got != want {
		t.Errorf("%q, want %q", got, want)
	}

	const what = "add port p to br0"
	refusal := refused("show bridge br1", "there is none", "make one")
	tests := []struct {
		name string
		err  error
		want string
	}{
		{"nothing", nil, ""},
		{"a usage error stays", usage, "--fdb-max 0: no room; give more"},
		{"one that says it all stays", refusal, refusal.Error()},
		{"any other", cause, "cannot " + what + ": no room; nothing was changed"},
		{"no permission", &fs.PathError{Op: "open", Path: "/run/bascule", Err: unix.EPERM}, "cannot " + what + ": open /run/bascule: operation not permitted; run as root"},
		{"XDP", &datapath.PortError{Port: "p", Hook: "xdp", Err: unix.EOPNOTSUPP}, "cannot " + what + ": XDP on p is refused by its driver: operation not supported; use --hook tcx"},
		{"tcx", &datapath.PortError{Port: "p", Hook: "tcx", Err: unix.EINVAL}, "cannot " + what + ": tcx on p: invalid argument; nothing was changed"},
	}
	for _, tt := range tests {
		got := failed(what, tt.err)
		if tt.err == nil && got != nil {
			t.Errorf("%s: %v", tt.name, got)
		}
		if tt.err != nil && got.Error() != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestHooks(t *testing.T) {
	veth, nic := &netlink.Veth{}, &netlink.Device{}
	tests := []struct {
		hook string
		l    netlink.Link
		xdp  bool
	}{
		{HookAuto, veth, false}, {HookAuto, nic, true}, {HookAuto, &netlink.Tuntap{}, false}, {HookAuto, &netlink.Vxlan{}, false},
		{HookXDP, veth, true}, {HookXDP, nic, true}, {HookTCX, veth, false}, {HookTCX, nic, false},
	}
	for _, tt := range tests {
		if err := checkHook(tt.hook); err != nil {
			t.Error(err)
		}
		if got := wantsXDP(tt.hook, tt.l); got != tt.xdp {
			t.Errorf("hook %s on a %s: XDP %v, want %v", tt.hook, tt.l.Type(), got, tt.xdp)
		}
	}
	for _, hook := range []string{"", "XDP", "xdpgeneric"} {
		if !isUsage(checkHook(hook)) {
			t.Errorf("hook %q is taken", hook)
		}
	}
}

func TestUsable(t *testing.T) {
	ether := netlink.LinkAttrs{Name: "p1", EncapType: "ether"}
	with := func(change func(*netlink.LinkAttrs)) netlink.LinkAttrs {
		a := ether
		change(&a)
		return a
	}
	tests := []struct {
		name string
		l    netlink.Link
		why  string // the reason, "" if it can be a port
	}{
		{"veth", &netlink.Veth{LinkAttrs: ether}, ""},
		{"NIC", &netlink.Device{LinkAttrs: ether}, ""},
		{"tap", &netlink.Tuntap{LinkAttrs: ether}, ""},
		{"vxlan", &netlink.Vxlan{LinkAttrs: ether}, ""},
		{"macvlan", &netlink.Macvlan{LinkAttrs: ether}, ""},
		{"loopback", &netlink.Device{LinkAttrs: with(func(a *netlink.LinkAttrs) {
			a.EncapType, a.RawFlags = "loopback", unix.IFF_LOOPBACK
		})}, "loopback"},
		{"tun", &netlink.Tuntap{LinkAttrs: with(func(a *netlink.LinkAttrs) { a.EncapType = "none" })}, "layer-3"},
		{"wireguard", &netlink.Wireguard{LinkAttrs: with(func(a *netlink.LinkAttrs) { a.EncapType = "none" })}, "layer-3"},
		{"Linux bridge", &netlink.Bridge{LinkAttrs: ether}, "Linux bridge"},
		{"port of something", &netlink.Veth{LinkAttrs: with(func(a *netlink.LinkAttrs) { a.MasterIndex = 1 << 30 })}, "belongs to"},
	}
	for _, tt := range tests {
		why, remedy := usable(tt.l)
		if (why == "") != (tt.why == "") || !strings.Contains(why, tt.why) {
			t.Errorf("%s: %q, want %q", tt.name, why, tt.why)
		}
		if (why == "") != (remedy == "") {
			t.Errorf("%s: %q, but what to do is %q", tt.name, why, remedy)
		}
	}
}

func TestPeerOutside(t *testing.T) {
	if peerOutside(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{NetNsID: -1}}) != 0 {
		t.Error("a veth whose other end is here has no end outside")
	}
	if peerOutside(&netlink.Macvlan{LinkAttrs: netlink.LinkAttrs{NetNsID: 3}}) != 0 {
		t.Error("a macvlan has no other end")
	}
}

func TestFlagList(t *testing.T) {
	tests := []struct {
		raw  uint32
		want []string
	}{
		{0, []string{}},
		{unix.IFF_BROADCAST | unix.IFF_MULTICAST, []string{"BROADCAST", "MULTICAST"}},
		{unix.IFF_BROADCAST | unix.IFF_UP | unix.IFF_RUNNING | unix.IFF_LOWER_UP, []string{"BROADCAST", "UP", "LOWER_UP"}},
		{unix.IFF_UP | unix.IFF_PROMISC, []string{"NO-CARRIER", "PROMISC", "UP"}},
	}
	for _, tt := range tests {
		if got := flagList(tt.raw); got == nil || !slices.Equal(got, tt.want) {
			t.Errorf("flags %#x: %q, want %q", tt.raw, got, tt.want)
		}
	}
}

// The switch's end of a host port has a recognizable name, which differs for every port.
func TestSwitchEndName(t *testing.T) {
	seen := map[string]string{}
	for _, bridge := range []string{"br0", "br1", "b", "br0/h", "fifteen-letters"} {
		for _, port := range []string{"host0", "h", "h/host0", "fifteen-letters"} {
			name := switchEndName(bridge, port)
			if !switchEndForm().MatchString(name) || len(name) > maxName {
				t.Errorf("%s of %s: %q", port, bridge, name)
			}
			if name != switchEndName(bridge, port) {
				t.Errorf("%s of %s has another name the second time", port, bridge)
			}
			seen[name] = bridge + " " + port
		}
	}
	if len(seen) < 19 { // two differ by a slash, which names do not contain
		t.Errorf("%d names of 20 ports", len(seen))
	}
	for _, name := range []string{"bsc0", "bscdeadbeef0", "bscDEADBEEF", "xbscdeadbee", "eth0"} {
		if switchEndForm().MatchString(name) {
			t.Errorf("%s is taken for an end of ours", name)
		}
	}
}

// No test gets the process's first thread: /proc/self is of that one, and a test may enter a network namespace.
func init() { runtime.LockOSThread() }

func TestSameNetns(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want bool
	}{
		{"", "/proc/self/ns/net", true},
		{"/proc/self/ns/net", "/proc/thread-self/ns/net", true},
		{"", "/proc/self/ns/mnt", false},
		{"bsc-none", "bsc-none", true},
		{"bsc-none", "", false},
		{"bsc-none", "bsc-nowhere", false},
	} {
		if got := SameNetns(c.a, c.b); got != c.want {
			t.Errorf("%q and %q are the same: %v, want %v", c.a, c.b, got, c.want)
		}
	}
}

func TestOpenNetns(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, why := range map[string]string{
		"bsc-there-is-none-of-this-name": "there is none of this name",
		"/nonexistent/netns":             "there is none of this name",
		file:                             "is not a network namespace",
		"/proc/self":                     "is not a network namespace",
	} {
		ns, err := openNetns(name)
		if err == nil {
			ns.Close()
		}
		if err == nil || !strings.HasPrefix(err.Error(), "cannot use network namespace "+name) || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want %q", name, err, why)
		}
	}
	s, err := Open("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	s, err = Open("")
	if err != nil || s.ns != nil {
		t.Fatalf("%+v, %v; want the caller's own namespace", s, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

// Ports are listed in the order in which they were added, regardless of their slots.
func TestInOrder(t *testing.T) {
	var c datapath.Config
	for _, name := range []string{"a", "b", "c", "d"} {
		datapath.NewPort(&c, name)
	}
	*datapath.Ports(&c)[1] = datapath.Port{}
	datapath.NewPort(&c, "e") // in the slot of b
	var names []string
	for _, p := range inOrder(&c) {
		names = append(names, datapath.PortName(p))
	}
	if want := []string{"a", "c", "d", "e"}; !slices.Equal(names, want) {
		t.Errorf("ports %q, want %q", names, want)
	}
}

func TestMonitorEvents(t *testing.T) {
	w := &listener{name: "br0", names: map[uint32]string{1: "p1", 2: "p2"}}
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	tests := []struct {
		event  datapath.Event
		kind   string
		from   string
		reason string
		hasMAC bool
	}{
		{datapath.Event{Kind: datapath.EventLearned, MAC: mac, Port: 1, Count: 1}, "learned", "", "", true},
		{datapath.Event{Kind: datapath.EventMoved, MAC: mac, Port: 1, From: 2, Count: 3}, "moved", "p2", "", true},
		{datapath.Event{Kind: datapath.EventAged, MAC: mac, Port: 1, Count: 1}, "aged", "", "", true},
		{datapath.Event{Kind: datapath.EventDeleted, MAC: mac, Port: 1, Count: 1}, "deleted", "", "", true},
		{datapath.Event{Kind: datapath.EventRefusedFull, Port: 1, Count: 5}, "refused", "", "full", false},
		{datapath.Event{Kind: datapath.EventRefusedPinned, MAC: mac, Port: 1, From: 2, Count: 5}, "refused", "p2", "static", true},
	}
	for _, tt := range tests {
		got := w.event(tt.event)
		if got.Kind != tt.kind || got.Bridge != "br0" || got.Port != "p1" || got.From != tt.from || got.Reason != tt.reason ||
			got.Count != uint64(tt.event.Count) || (got.MAC != nil) != tt.hasMAC {
			t.Errorf("%+v is told as %+v", tt.event, got)
		}
	}
}
