// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"bascule/test/netlab"
)

// TestRefused gives the program commands that it must refuse. It prints the reason in one line
// on standard error, with the remedy, and nothing changes.
func TestRefused(t *testing.T) {
	l, ends := setup(t, "tcx", 2)
	spare := l.NewEnds(1)[0]
	p1, p3 := ends[0].Port, spare.Port
	l.Bascule("bridge", "add", "br1")
	l.Bascule("fdb", "add", "br0", A.String(), p1)
	learn(l, ends[1], B)

	// Devices of all kinds that can't be ports, or not with XDP.
	add := func(link netlink.Link) {
		t.Helper()
		must(t, l.Switch.Netlink().LinkAdd(link))
		l.Keep(link.Attrs().Name)
	}
	attrs := func(name string) netlink.LinkAttrs {
		a := netlink.NewLinkAttrs()
		a.Name = name
		return a
	}
	add(&netlink.Bridge{LinkAttrs: attrs("linuxbr")})
	master, err := l.Switch.Netlink().LinkByName("linuxbr")
	must(t, err)
	add(&netlink.Veth{LinkAttrs: attrs("enslaved"), PeerName: "enslaved.peer"})
	l.Keep("enslaved.peer")
	enslaved, err := l.Switch.Netlink().LinkByName("enslaved")
	must(t, err)
	must(t, l.Switch.Netlink().LinkSetMaster(enslaved, master))
	add(&netlink.Vxlan{LinkAttrs: attrs("vx0"), VxlanId: 1, Port: 4789})
	l.NewTun("layer3")

	words := func(text string) []string { return strings.Fields(text) }
	for _, c := range []struct {
		args []string
		exit int
		says []string
	}{
		// names
		{words("bridge add br0"), 1, words("br0 exists")},
		{words("bridge add sixteen-letters0"), 2, words("sixteen-letters0 15")},
		{[]string{"bridge", "add", ""}, 2, nil},
		{[]string{"bridge", "add", "a/b"}, 2, words("a/b")},
		{[]string{"bridge", "add", "a b"}, 2, []string{"a b"}},
		{[]string{"bridge", "add", "a\nb"}, 2, nil},
		{words("bridge add ."), 2, nil},
		{words("bridge add .."), 2, nil},
		{words("bridge set nosuch"), 1, words("nosuch")},
		{words("bridge set nosuch --ageing 5s"), 1, words("nosuch")},
		{words("bridge del nosuch"), 1, words("nosuch")},
		{words("bridge show nosuch"), 1, words("nosuch")},
		{words("port add nosuch " + p3), 1, words("nosuch")},
		{words("port add br0 nosuch"), 1, words("nosuch")},
		{words("port add br0 sixteen-letters0"), 2, words("sixteen-letters0 15")},
		{words("port add br0 sixteen-letters0 --type host"), 2, words("sixteen-letters0 15")},
		{[]string{"port", "add", "br0", "a/b", "--type", "host"}, 2, words("a/b")},
		{[]string{"port", "add", "br0", ""}, 2, nil},
		{words("port set br0 nosuch --hairpin"), 1, words("br0 nosuch")},
		{words("port set br0 " + p3 + " --hairpin"), 1, words("br0 " + p3)},
		{words("port set br1 " + p1 + " --hairpin"), 1, words("br1 " + p1)},
		{words("port del br0 nosuch"), 1, words("br0 nosuch")},
		{words("port del br1 " + p1), 1, words("br1 " + p1)},
		{words("port show br0 nosuch"), 1, words("br0 nosuch")},
		{words("port show nosuch"), 1, words("nosuch")},
		{words("fdb show nosuch"), 1, words("nosuch")},
		{words("fdb show br0 --port nosuch"), 1, words("br0 nosuch")},
		{words("monitor nosuch"), 1, words("nosuch")},

		// devices
		{words("port add br0 " + p1), 1, words("br0 " + p1)},
		{words("port add br1 " + p1), 1, words("br0 br1 " + p1)},
		{words("port add br0 enslaved"), 1, words("enslaved linuxbr")},
		{words("port add br0 linuxbr"), 1, words("linuxbr")},
		{words("port add br0 lo"), 1, words("lo loopback")},
		{words("port add br0 layer3"), 1, words("layer3 layer-3")},
		{words("port add br0 " + p3 + " --type host"), 1, words(p3)},
		{words("port add br0 vx0 --hook xdp"), 1, words("vx0 XDP tcx")},
		{words("port add br0 " + spare.Ifname), 1, words(spare.Ifname)}, // in another namespace

		// values
		{words("bridge add br2 --ageing 0"), 2, words("--ageing 1s 1000000s")},
		{words("bridge add br2 --ageing 0.5s"), 2, words("--ageing")},
		{words("bridge add br2 --ageing=-1s"), 2, words("--ageing")},
		{words("bridge add br2 --ageing 1000001s"), 2, words("--ageing 1000000s")},
		{words("bridge add br2 --ageing soon"), 2, words("--ageing soon")},
		{words("bridge set br0 --ageing 0s"), 2, words("--ageing")},
		{words("bridge add br2 --fdb-max 0"), 2, words("--fdb-max 4194304")},
		{words("bridge add br2 --fdb-max 4194305"), 2, words("--fdb-max 4194304")},
		{words("bridge add br2 --fdb-max=-1"), 2, words("--fdb-max")},
		{words("bridge add br2 --fdb-max 4294967297"), 2, words("--fdb-max")},
		{words("bridge set br0 --fdb-max many"), 2, words("--fdb-max many")},
		{words("bridge set br0 --group-fwd-mask 0x10000"), 2, words("--group-fwd-mask 0xffff")},
		{words("bridge set br0 --group-fwd-mask=-1"), 2, words("--group-fwd-mask")},
		{words("port add br0 " + p3 + " --type cable"), 2, words("--type cable netdev host patch")},
		{words("port add br0 " + p3 + " --hook tc"), 2, words("--hook tc auto tcx xdp")},
		{words("port add br0 " + p3 + " --learn=maybe"), 2, words("--learn maybe on off")},
		{words("port set br0 " + p1 + " --hairpin off"), 2, words("off")}, // needs an equals sign
		{words("port set br0 " + p1 + " --protected 0"), 2, words("--protected 1 31")},
		{words("port set br0 " + p1 + " --protected 32"), 2, words("--protected 32 31")},
		{words("port set br0 " + p1 + " --protected 1,x"), 2, words("--protected")},
		{[]string{"port", "set", "br0", p1, "--protected", ""}, 2, words("--protected")},
		{words("port set br0 " + p1 + " --fdb-max 4194305"), 2, words("--fdb-max")},
		{words("port set br0 " + p1 + " --fdb-max=-1"), 2, words("--fdb-max")},
		// One wrong value among right ones.
		{words("port set br0 " + p1 + " --hairpin --fdb-max 7 --protected 99"), 2, words("--protected 99")},
		{words("bridge set br0 --ageing 7s --fdb-max 0"), 2, words("--fdb-max")},

		// entries
		{words("fdb add br0 " + C.String() + " nosuch"), 1, words("br0 nosuch")},
		{words("fdb add br0 " + C.String() + " " + p3), 1, words("br0 " + p3)},
		{words("fdb add br0 ff:ff:ff:ff:ff:ff " + p1), 2, words("ff:ff:ff:ff:ff:ff broadcast")},
		{words("fdb add br0 01:00:5e:00:00:01 " + p1), 2, words("01:00:5e:00:00:01 multicast")},
		{words("fdb add br0 00:00:00:00:00:00 " + p1), 2, words("00:00:00:00:00:00 zero")},
		{words("fdb add br0 02:00 " + p1), 2, words("02:00")},
		{words("fdb add br0 " + C.String() + " " + p1 + " --vlan 4095"), 2, words("4095 4094")},
		{words("fdb del br0 " + C.String()), 1, words("br0 " + C.String())},

		// usage
		{words("bridge add"), 2, nil},
		{words("bridge add br2 br3"), 2, words("br3")},
		{words("bridge ad br2"), 2, words("ad")},
		{words("bridge add br2 --no-such-flag"), 2, words("--no-such-flag")},
		{words("port set br0 " + p1), 2, nil},
		{words("port add br0"), 2, nil},
		{words("fdb add br0 " + C.String()), 2, nil},
		{words("frobnicate"), 2, words("frobnicate")},
		{words("-n nosuch bridge show"), 1, words("nosuch")},
		{words("-n /nosuch/path bridge show"), 1, words("/nosuch/path")},
		{words("-n /proc/self/status bridge show"), 1, words("/proc/self/status")},
	} {
		t.Run(strings.ReplaceAll(strings.Join(c.args, "_"), "/", "|"), func(t *testing.T) {
			before := snapshot(l)
			r, err := l.Run(c.args...)
			must(t, err)
			if err := r.CheckRefusal(c.says...); err != nil {
				t.Error(err)
			}
			if r.Exit != c.exit {
				t.Errorf("%v: the exit status should be %d", r, c.exit)
			}
			if after := snapshot(l); after != before {
				t.Errorf("something has changed:\n%s\nbefore:\n%s", after, before)
			}
		})
	}
	// Nor was a device changed.
	if err := spare.Unchanged(); err != nil {
		t.Error(err)
	}
	for _, name := range []string{"lo", "layer3", "vx0", "enslaved", "linuxbr"} {
		nl, err := l.Switch.Netlink().LinkByName(name)
		must(t, err)
		if nl.Attrs().RawFlags&unix.IFF_PROMISC != 0 {
			t.Errorf("%s is promiscuous", name)
		}
		must(t, l.Switch.Do(func() error { return netlab.NoPrograms(nl.Attrs().Index) }))
	}
	l.Reach(ends[1], l.Frames(5, A, B), ends[0])
}
