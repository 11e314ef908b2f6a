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

// A Talk is datagrams between the stacks of two ends, both ways. The stack leaves
// their checksums to its device, where that takes them. A datagram that the host has lost
// for want of room is sent again: see backlog.
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
	number uint32              // of the last datagram that was sent
	lost   func() (int, error) // how many of its datagrams the host may have lost since it was asked before
}

// NewTalk gives two ends addresses, and opens a talk between them. Neither asks for
// the other's Ethernet address.
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

// Exchange sends so many datagrams both ways, and waits until all have come. The
// error says how many have not, how many the stack has refused, and what has been counted.
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
	if _, err := from.lost(); err != nil { // what it has lost before is of none of these
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

// write sends the datagram of a number.
func (from *talker) write(number uint32) error {
	_, err := from.conn.Write(binary.BigEndian.AppendUint32(make([]byte, 0, 100), number))
	return err
}

// await takes what comes at the other side until nothing is missing any more, or it is late.
// If the host may have lost as many as are missing, these are sent again.
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
			delete(missing, binary.BigEndian.Uint32(buf)) // one that comes late is of none of these
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

// counters has what the switch, the devices and the stacks of ends have counted: where a frame
// may have gone.
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

// Start sends datagrams both ways, a few at a time, until Stop.
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

// Flowing is a condition to wait for: that so many more rounds are over than now, or
// that the talk has failed.
func (talk *Talk) Flowing(rounds int64) func() bool {
	goal := talk.rounds.Load() + rounds
	return func() bool { return talk.rounds.Load() >= goal || talk.failed.Load() }
}

// Failed reports whether a datagram was lost.
func (talk *Talk) Failed() bool { return talk.failed.Load() }

// Stop ends what Start began. The error is about the first datagrams that were lost.
func (talk *Talk) Stop() error {
	close(talk.stop)
	return <-talk.result
}

// checksumErrors counts the datagrams that the stack of a namespace has refused for
// their checksums.
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
