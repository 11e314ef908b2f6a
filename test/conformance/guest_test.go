// SPDX-License-Identifier: BSD-2-Clause

package conformance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"bascule/lab/ends"
	"bascule/lab/guests"
	"bascule/test/netlab"
)

// A station is a namespace for programs behind a port, with addresses.
type station struct {
	name   string
	at     ends.Place
	v4, v6 netip.Addr
}

// realGuests has virtual machines communicate over TCP and UDP, with each other and with a
// host. They leave checksums and segmentation to the taps, which are the switch's ports, as
// drivers do by default.
func realGuests(t *testing.T, hook string) {
	l := netlab.New(t)
	pool := guests.NewPool(l.Binary(), "busybox", "iperf3")
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	var missing *ends.Unavailable
	if err := pool.Ready(ctx, 2); errors.As(err, &missing) {
		t.Skip(missing)
	} else if err != nil {
		t.Fatal(err)
	}
	e := l.NewEnds(1)
	l.AddBridge("br0", hook, e)
	h := e[0].Host()
	all := []station{{"the host", h.Namespace, h.IPv4, h.IPv6}}
	for i := range 2 {
		tap := fmt.Sprintf("tap%d", i)
		l.Keep(tap)
		card, takeOut, err := pool.Guest(i).Plug(ctx, l.Switch, guests.Device{Name: tap}, i+2, ends.Wire{}, false)
		must(t, err)
		t.Cleanup(func() { takeOut() })
		v6 := netip.AddrFrom16([16]byte{0xfd, 0xba, 15: byte(i + 2)})
		_, err = card.At.Output(ctx, ends.AnyCPU, "busybox", "sh", "-c", fmt.Sprintf(
			"cd /proc/sys/net/ipv6/conf/%[1]s; echo 0 > accept_dad; echo 0 > disable_ipv6; busybox ip addr add %[2]s/64 dev %[1]s", card.Ifname, v6))
		must(t, err)
		if r, err := l.Run("port", "add", "br0", tap, "--hook", hook); err != nil || r.Exit != 0 {
			t.Fatalf("%v, %v", r, err)
		}
		all = append(all, station{fmt.Sprintf("guest %d", i+1), card.At, card.Addr.Addr(), v6})
	}
	host, one, two := all[0], all[1], all[2]
	for _, way := range [][2]station{{one, two}, {two, host}, {host, one}} {
		from, to := way[0], way[1]
		for _, addr := range []netip.Addr{to.v4, to.v6} {
			for _, kind := range []string{"-n 500K", "-u -n 50K -l 1000 -b 8M"} {
				if err := transfer(ctx, from, to, addr, kind); err != nil {
					t.Fatalf("from %s to %s at %v, iperf3 %s: %v", from.name, to.name, addr, kind, err)
				}
			}
		}
	}
	for _, s := range all {
		if n, err := wrongChecksums(ctx, s); err != nil || n != "" {
			t.Errorf("%s has got wrong checksums: %s %v", s.name, n, err)
		}
	}
}

// transfer sends with iperf3, and some data must arrive.
func transfer(ctx context.Context, from, to station, addr netip.Addr, kind string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// A server for each: it does not listen for a moment after a client.
	server, err := to.at.Serve(ctx, ends.AnyCPU, ends.Listen{Proto: "tcp", Port: 5201}, "iperf3", "-s", "-1")
	if err != nil {
		return err
	}
	defer server.Close()
	args := append([]string{"-J", "-c", addr.String()}, strings.Fields(kind)...)
	out, err := from.at.Output(ctx, ends.AnyCPU, "iperf3", args...)
	if err != nil {
		return err
	}
	var r struct {
		Error string
		End   struct {
			Sum      struct{ Packets, Lost_packets int }
			Received struct{ Bytes int } `json:"sum_received"`
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	if r.End.Received.Bytes == 0 && r.End.Sum.Packets == r.End.Sum.Lost_packets {
		return errors.New("nothing has arrived")
	}
	return nil
}

// wrongChecksums returns the counters of wrong checksums that are not zero.
func wrongChecksums(ctx context.Context, s station) (string, error) {
	out, err := s.at.Output(ctx, ends.AnyCPU, "busybox", "cat", "/proc/thread-self/net/snmp", "/proc/thread-self/net/snmp6")
	if err != nil {
		return "", err
	}
	var wrong []string
	var names []string
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && strings.HasSuffix(f[0], "InCsumErrors") && f[1] != "0":
			wrong = append(wrong, f[0]+" "+f[1])
		case len(f) > 2 && len(names) == len(f) && names[0] == f[0]:
			for i, name := range names {
				if name == "InCsumErrors" && f[i] != "0" {
					wrong = append(wrong, f[0]+name+" "+f[i])
				}
			}
		}
		names = f
	}
	return strings.Join(wrong, ", "), nil
}
