// SPDX-License-Identifier: BSD-2-Clause

package sflow

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"bascule/bridge"
)

// Options say where samples go, and how many there are.
type Options struct {
	Collector netip.AddrPort // that gets the datagrams
	Agent     netip.Addr     // by which the collector knows the agent; zero: that of the datagrams
	SubAgent  uint32         // number of the agent's own network namespace among those of that address
	Rate      uint32         // one frame of so many is sampled
	Drops     uint32         // dropped frames of a bridge that are told in a second, at most; 0 for none
	Polling   time.Duration  // after which the counters of a port are told again; 0 for never
}

// What options have that are not given.
const (
	defaultRate    = 1000
	defaultDrops   = 100
	defaultPolling = 30 * time.Second
)

// Parse reads "HOST:PORT[,rate=N][,drops=N][,polling=SECONDS][,agent=ADDRESS][,sub-agent=N]".
// HOST is numeric: a name would have to be asked for.
func Parse(text string) (Options, error) {
	o := Options{Rate: defaultRate, Drops: defaultDrops, Polling: defaultPolling}
	words := strings.Split(text, ",")
	var err error
	if o.Collector, err = netip.ParseAddrPort(words[0]); err != nil || o.Collector.Port() == 0 {
		return o, fmt.Errorf("%q is not a numeric address and port; give one such as 192.0.2.1:6343", words[0])
	}
	if o.Collector.Addr().IsUnspecified() {
		return o, fmt.Errorf("%s is not the address of a collector; give one such as 192.0.2.1:6343", words[0])
	}
	number := func(name, value string, least, most uint64) (uint32, error) {
		n, err := strconv.ParseUint(value, 10, 32)
		if err != nil || n < least || n > most {
			return 0, fmt.Errorf("%s=%s is out of range; give %d to %d", name, value, least, most)
		}
		return uint32(n), nil
	}
	seen := map[string]bool{}
	for _, word := range words[1:] {
		name, value, _ := strings.Cut(word, "=")
		if seen[name] {
			return o, fmt.Errorf("%s is given twice; give it once", name)
		}
		seen[name] = true
		switch name {
		case "rate":
			o.Rate, err = number(name, value, 1, bridge.MaxSampleRate)
		case "drops":
			o.Drops, err = number(name, value, 0, uint64(bridge.MaxSampleDrops))
		case "polling":
			var n uint32
			n, err = number(name, value, 0, 86400)
			o.Polling = time.Duration(n) * time.Second
		case "sub-agent":
			o.SubAgent, err = number(name, value, 0, 1<<32-1)
		case "agent":
			if o.Agent, err = netip.ParseAddr(value); err != nil || o.Agent.Zone() != "" {
				err = fmt.Errorf("agent=%s is not a numeric address; give one of the host's", value)
			}
		default:
			err = errors.New("only rate=N, drops=N, polling=SECONDS, agent=ADDRESS and sub-agent=N can follow the collector")
		}
		if err != nil {
			return o, err
		}
	}
	return o, nil
}
