// SPDX-License-Identifier: BSD-2-Clause

package agent

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"testing"
	"time"

	"bascule/agent/hotplug"
	"bascule/bridge"
	"bascule/config"
	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/test/netlab"
)

// A virtual machine whose tap QEMU makes, as with libvirt's <interface type='ethernet'>, is
// attached to the switch without a script or a hook, and leaves nothing behind.
func TestGuest(t *testing.T) {
	l := netlab.New(t)
	host := l.NewEnds(1)[0].Host()
	s, err := bridge.Open(l.Switch.Name)
	must(t, err)
	must(t, s.AddBridge("br0", nil))
	w := hotplug.New(s, config.File{Bridges: []config.Bridge{{
		Name:  "br0",
		Ports: []config.Port{{Name: "p1"}, {Name: "vm*"}},
	}}}, slog.New(slog.NewTextHandler(t.Output(), nil)))
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- w.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the watcher ended with %v", err)
		}
		s.Close()
		runtime.GC() // which unmaps the tables of the programs that this process has loaded
	})

	pool := guests.NewPool(l.Binary(), "busybox")
	pool.In(l.Switch)
	defer pool.Close()
	var missing *ends.Unavailable
	if err := pool.Ready(ctx, 1); errors.As(err, &missing) {
		t.Skip(missing)
	} else if err != nil {
		t.Fatal(err)
	}
	l.Keep("vm0")
	for range 2 { // the second time with a new device
		card, takeOut, err := pool.Guest(0).Plug(ctx, l.Switch, guests.Device{Name: "vm0", ByQEMU: true}, 2, ends.Wire{}, false)
		must(t, err)
		ping, cancel := context.WithTimeout(ctx, time.Minute)
		if _, err := card.At.Output(ping, 0, "busybox", "ping", "-c", "3", "-w", "30", host.IPv4.String()); err != nil {
			t.Errorf("the guest does not reach the switch: %v", err)
		}
		cancel()
		if err := host.Ping(card.Addr.Addr()); err != nil {
			t.Errorf("the guest is not reached: %v", err)
		}
		p := l.Port("br0", "vm0")
		if p.State != "forwarding" || p.FDBCount == 0 {
			t.Errorf("the guest's port is %+v", p)
		}
		must(t, takeOut())
		l.Wait("the port to go", func() bool { return !slices.Contains(l.Bridge("br0").Ports, "vm0") })
	}
}
