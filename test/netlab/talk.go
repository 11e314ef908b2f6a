// SPDX-License-Identifier: BSD-2-Clause

package netlab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"bascule/lab/ends"
)

// A Talk sends datagrams between the stacks of two ends, in both directions. A stack leaves
// their checksums to its device, if the device supports that. A datagram that the host has lost
// because a queue was full is sent again: see backlog.
type Talk struct {
	sides [2]*talker

	rounds atomic.Int64
	failed atomic.Bool
	stop   chan struct{}
	result chan error
}

// A talker is one side of a Talk.
type talker struct {
	end    *End
	conn   *net.UDPConn
	number uint32 // number of the last datagram that was sent
	// returns the number of its datagrams that the host may have lost since the last call
	lost func() (int, error)
}

// NewTalk gives two ends addresses, and opens a talk between them. Both have static neighbour
// entries.
func (l *Lab) NewTalk(a, b *End) *Talk {
	l.t.Helper()
	const port = 7
	hosts := []*Host{a.Host(), b.Host()}
	talk := &Talk{}
	for i, e := range []*End{a, b} {
		other := 1 - i
		l.must(hosts[i].neighbour(hosts[other].IPv4, []*End{a, b}[other].MAC))
		var conn *net.UDPConn
		l.must(e.Namespace.Do(func() (err error) {
			at := func(h *Host) *net.UDPAddr { return net.UDPAddrFromAddrPort(netip.AddrPortFrom(h.IPv4, port)) }
			conn, err = net.DialUDP("udp", at(hosts[i]), at(hosts[other]))
			return err
		}))
		l.t.Cleanup(func() { conn.Close() })
		backlog, err := newBacklog(e.near(), []*End{a, b}[other].far())
		l.must(err)
		talk.sides[i] = &talker{end: e, conn: conn, lost: backlog.lost}
	}
	return talk
}

// Exchange sends n datagrams in both directions, and waits until all have arrived. The error
// has the number of missing ones, the number that the stack has refused, and counters.
func (talk *Talk) Exchange(n int) error {
	one, two := talk.sides[0], talk.sides[1]
	var wait sync.WaitGroup
	errs := make([]error, 2)
	for i, way := range [][2]*talker{{one, two}, {two, one}} {
		wait.Add(1)
		go func() {
			defer wait.Done()
			errs[i] = way[0].send(way[1], n)
		}()
	}
	wait.Wait()
	return errors.Join(errs...)
}

func (from *talker) send(to *talker, n int) error {
	before, err := checksumErrors(to.end.Namespace)
	if err != nil {
		return err
	}
	if _, err := from.lost(); err != nil { // earlier losses are other datagrams
		return err
	}
	missing := map[uint32]bool{}
	for range n {
		from.number++
		missing[from.number] = true
		if err := from.write(from.number); err != nil {
			return err
		}
	}
	if err := from.await(to, missing, time.Now().Add(lost)); err != nil {
		return err
	}
	if len(missing) == 0 {
		return nil
	}
	after, err := checksumErrors(to.end.Namespace)
	return errors.Join(err, fmt.Errorf("from %s to %s: of %d datagrams %d did not come, and %d had wrong "+
		"checksums; counters:\n%s",
		from.end.Port, to.end.Port, n, len(missing), after-before, counters(from.end, to.end)))
}

// write sends the datagram with a number.
func (from *talker) write(number uint32) error {
	_, err := from.conn.Write(binary.BigEndian.AppendUint32(make([]byte, 0, 100), number))
	return err
}

// await reads at the other side until no datagram is missing, or time is over. If the host may
// have lost as many as are missing, these are sent again.
func (from *talker) await(to *talker, missing map[uint32]bool, late time.Time) error {
	buf := make([]byte, 100)
	hostLost := 0
	for len(missing) > 0 {
		look := time.Now().Add(lookEvery)
		if look.After(late) {
			look = late
		}
		to.conn.SetReadDeadline(look)
		got, err := to.conn.Read(buf)
		switch {
		case err == nil && got == 4:
			// a late one of a former exchange is not in the map
			delete(missing, binary.BigEndian.Uint32(buf))
		case err == nil:
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return err
		case look == late:
			return nil
		default:
			n, err := from.lost()
			if err != nil {
				return err
			}
			if hostLost += n; hostLost < len(missing) {
				continue
			}
			hostLost = 0
			for number := range missing {
				if err := from.write(number); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// counters returns the counters of the switch, the devices and the stacks of ends, which show
// where a frame was lost.
func counters(of ...*End) string {
	var out strings.Builder
	say := func(ns *ends.Namespace, words ...string) {
		err := ns.Do(func() error {
			c := exec.Command(words[0], words[1:]...)
			c.Stdout, c.Stderr = &out, &out
			return c.Run()
		})
		if err != nil {
			fmt.Fprintf(&out, "%s: %v\n", strings.Join(words, " "), err)
		}
	}
	l := of[0].lab
	if l.binary != "" {
		say(l.Switch, l.binary, "stats")
	}
	say(l.Switch, "ip", "-s", "-s", "link")
	for _, e := range of {
		say(e.Namespace, "ip", "-s", "-s", "link")
		say(e.Namespace, "grep", "Udp:", "/proc/self/net/snmp")
	}
	say(l.Switch, "cat", "/proc/net/softnet_stat")
	return out.String()
}

// Start sends datagrams in both directions, a few at a time, until Stop.
func (talk *Talk) Start() {
	talk.stop, talk.result = make(chan struct{}), make(chan error, 1)
	talk.failed.Store(false)
	go func() {
		for {
			select {
			case <-talk.stop:
				talk.result <- nil
				return
			default:
			}
			if err := talk.Exchange(loadWindow); err != nil {
				talk.failed.Store(true)
				talk.result <- fmt.Errorf("after %d rounds: %w", talk.rounds.Load(), err)
				return
			}
			talk.rounds.Add(1)
		}
	}()
}

// Flowing returns a condition to wait for: rounds more rounds than now are complete, or the
// talk has failed.
func (talk *Talk) Flowing(rounds int64) func() bool {
	goal := talk.rounds.Load() + rounds
	return func() bool { return talk.rounds.Load() >= goal || talk.failed.Load() }
}

// Failed reports whether a datagram was lost.
func (talk *Talk) Failed() bool { return talk.failed.Load() }

// Stop ends what Start began. The error lists the first datagrams that were lost.
func (talk *Talk) Stop() error {
	close(talk.stop)
	return <-talk.result
}

// checksumErrors returns the number of datagrams that a namespace's stack has refused because
// of their checksums.
func checksumErrors(ns *ends.Namespace) (n int, err error) {
	var snmp []byte
	err = ns.Do(func() (err error) {
		snmp, err = os.ReadFile("/proc/thread-self/net/snmp")
		return err
	})
	if err != nil {
		return 0, err
	}
	var names []string
	for line := range strings.Lines(string(snmp)) {
		words := strings.Fields(line)
		if words[0] != "Udp:" {
			continue
		}
		if names == nil {
			names = words
			continue
		}
		for i, name := range names {
			if name == "InCsumErrors" {
				return strconv.Atoi(words[i])
			}
		}
	}
	return 0, errors.New("the kernel does not count UDP's wrong checksums")
}
