// SPDX-License-Identifier: BSD-2-Clause

package guests

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/test/netlab"
)

// A guest migrates live from one host to another, while a station of each host talks to it. On
// both hosts' switches, which a cable joins, its MAC moves exactly once: from the tap to the cable,
// and from the cable to the tap.
func TestMigrate(t *testing.T) {
	t.Parallel()
	one := netlab.New(t)
	two := one.Beside()
	here, there := one.NewEnds(1)[0], two.NewEnds(3)[2] // stations with different addresses
	one.Cable("uplink", two, "uplink")
	pool := guests.NewPool(one.Binary(), "busybox")
	pool.In(one.Switch)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var missing *ends.Unavailable
	if err := pool.Ready(ctx, 1); errors.As(err, &missing) {
		t.Skip(missing)
	} else if err != nil {
		t.Fatal(err)
	}
	for l, e := range map[*netlab.Lab]*netlab.End{one: here, two: there} {
		l.Bascule("bridge", "add", "br0")
		l.Bascule("port", "add", "br0", e.Port, "uplink")
		l.Keep("guest0")
	}
	// As libvirt's hook does, before the guest starts.
	plug := func(l *netlab.Lab) error {
		r, err := l.Run("plug", "libvirt/guest", "--bridge", "br0", "--device", "guest0")
		if err == nil && r.Exit != 0 {
			err = errors.New(r.String())
		}
		return err
	}
	near, far := one.NewMonitor("br0", here), two.NewMonitor("br0", there)
	// The state behind the cable too, which comes from the monitors' frames.
	for _, l := range []*netlab.Lab{one, two} {
		l.Flush()
		l.Bascule("fdb", "flush", "br0")
	}
	card, takeOut, err := pool.Guest(0).Plug(ctx, one.Switch, guests.Device{Name: "guest0"}, 2, ends.Wire{}, false)
	must(t, err)
	must(t, plug(one))
	mac, guest := card.MAC.String(), card.Addr.Addr()
	hosts := []*netlab.Host{here.Host(), there.Host()}
	reached := func() {
		t.Helper()
		g := pool.Guest(0)
		for _, h := range hosts {
			if err := answers(ctx, h, g, guest); err != nil {
				t.Fatalf("%s does not reach the guest: %v%s", h.Namespace.Name, err, g.LastWords())
			}
		}
	}
	reached()
	talk := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+hosts[0].Namespace.Name, "ping", "-n", "-q", "-i", "0.05", guest.String())
	must(t, talk.Start())
	end, err := pool.Move(ctx, 0, card, two.Switch, guests.Device{Name: "guest0"}, func() error { return plug(two) })
	must(t, err)
	reached()
	for _, m := range []struct {
		*netlab.Monitor
		from, to string
	}{{near, "guest0", "uplink"}, {far, "uplink", "guest0"}} {
		m.Wait("that the guest moves to "+m.to, func(e netlab.Event) bool { return e.Event == "moved" && e.MAC == mac && e.Ifname == m.to })
	}
	end() // the former QEMU, with its tap
	one.Bascule("unplug", "libvirt/guest")
	reached()
	_ = talk.Process.Kill()
	_ = talk.Wait()
	for _, m := range []struct {
		*netlab.Monitor
		want string
	}{{near, "[learned guest0  moved uplink guest0]"}, {far, "[learned uplink  moved guest0 uplink]"}} {
		m.Stop()
		var got []string
		for _, e := range m.Events() {
			if e.MAC == mac {
				got = append(got, fmt.Sprintf("%s %s %s", e.Event, e.Ifname, e.From))
			}
		}
		if fmt.Sprint(got) != m.want {
			t.Errorf("of the guest's MAC one monitor shows %v, should show %v", got, m.want)
		}
	}
	two.Bascule("unplug", "libvirt/guest")
	must(t, takeOut())
}

// answers pings a guest until it answers.
func answers(ctx context.Context, from *netlab.Host, g *guests.Guest, to netip.Addr) error {
	for {
		if err := context.Cause(g.Ended()); err != nil {
			return err
		}
		out, err := exec.CommandContext(ctx, "nsenter", "--net=/run/netns/"+from.Namespace.Name, "ping", "-n", "-c", "1", "-W", "1", to.String()).CombinedOutput()
		if err == nil || ctx.Err() != nil {
			return ctx.Err()
		}
		if _, is := err.(*exec.ExitError); !is {
			return fmt.Errorf("ping: %w: %s", err, out)
		}
	}
}
