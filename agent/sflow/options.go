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

// Options choose the collector and the number of samples.
type Options struct {
	Collector netip.AddrPort // the receiver of the datagrams
	Agent     netip.Addr     // identifies the agent to the collector; zero: the datagrams' source address
	SubAgent  uint32         // number of the agent's own network namespace among the namespaces of that address
	Rate      uint32         // one frame out of this number is sampled
	Drops     uint32         // largest number of dropped frames of a bridge to report in a second; 0 for none
	Polling   time.Duration  // time between two samples of a port's counters; 0 for none
}

// The defaults.
const (
	defaultRate    = 1000
	defaultDrops   = 100
	defaultPolling = 30 * time.Second
)

// Parse parses
// "HOST:PORT[,rate=N][,drops=N][,polling=SECONDS][,agent=ADDRESS][,sub-agent=N]". HOST is
// numeric: a name would need a resolver.
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
