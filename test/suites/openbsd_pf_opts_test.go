// SPDX-License-Identifier: BSD-2-Clause

package suites

import (
	"bytes"
	"net/netip"
	"sync"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"bascule/test/netlab"
)

// Packets with options enter the router by em0, where a rule permits options, and by em1, where no
// rule does. A packet socket shows the packets that leave pf there.
var _ = openBSD.has("pf_opts", pfOpts())

// taps has the packet sockets at em0 and em1 of each router.
var taps struct {
	sync.Mutex
	of map[*router][2]*netlab.Socket
}

func tapsOf(r *router) [2]*netlab.Socket {
	r.t.Helper()
	taps.Lock()
	defer taps.Unlock()
	if _, ok := taps.of[r]; !ok {
		if taps.of == nil {
			taps.of = map[*router][2]*netlab.Socket{}
		}
		taps.of[r] = [2]*netlab.Socket{r.Listen(r.Switch, "em0"), r.Listen(r.Switch, "em1")}
	}
	return taps.of[r]
}

func pfOpts() cases {
	standing["pf_opts"] = logOfMarks + "pass on em0 allow-opts\npass on em1"
	all := cases{}
	pings := func(r *router, six bool) {
		for _, s := range r.stations[:2] {
			r.passes(ping(s, []netip.Addr{s.gw4, s.gw6}[b2i(six)]))
		}
	}
	all["run-ping"] = func(r *router) { pings(r, false) }
	all["run-ping6"] = func(r *router) { pings(r, true) }
	all["run-bpf-ping"] = func(r *router) {
		for n, tap := range tapsOf(r) {
			s := r.stations[n]
			tap.Received()
			r.passes(ping(s, s.gw4))
			r.passes(ping(s, s.gw6))
			if got := tap.Received(); len(got) < 2 {
				r.t.Errorf("%d packets come in to %s, should be two echo requests", len(got), s.port)
			}
		}
	}
	all["run-ping-record"] = func(r *router) {
		record := append([]byte{7, 39, 4}, make([]byte, 37)...) // Record route, RFC 791.
		for n, s := range r.stations[:2] {
			h := ip4(s.v4, s.gw4, layers.IPProtocolICMPv4)
			h.Options = options(record)
			r.sends(s, r.frame(s, h, &layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(layers.ICMPv4TypeEchoRequest, 0), Id: 5, Seq: 1},
				gopacket.Payload("record")))
			if got := len(r.gets(s)); got != 1-n {
				r.t.Errorf("by %s there come %d answers", s.port, got)
			}
		}
	}

	// The payload behind the header, of both families.
	old4 := &together{&layers.ICMPv4{TypeCode: layers.CreateICMPv4TypeCode(6, 0), Id: 6}, []byte("alternate")}
	old6 := &together{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(6, 0)}, []byte("alternate")}
	four := func(option ...byte) func(r *router) {
		return func(r *router) { r.option(len(option) > 0, ipv4With(old4, layers.IPProtocolICMPv4, 64, "", option)) }
	}
	six := func(header layers.IPProtocol, option ...byte) func(r *router) {
		return func(r *router) { r.option(len(option) > 0, ipv6With(old6, header, 64, "", option)) }
	}
	hop := layers.IPProtocolIPv6HopByHop
	all["run-icmp"] = four()
	all["run-icmp6"] = six(layers.IPProtocolICMPv6)
	all["run-bpf-icmp"] = func(r *router) { four()(r); six(layers.IPProtocolICMPv6)(r) }
	all["run-icmp6-hop"] = six(hop, 1, 4, 0, 0, 0, 0)
	all["run-icmp6-dst"] = six(layers.IPProtocolIPv6Destination, 1, 4, 0, 0, 0, 0)
	all["run-icmp-pad"] = four(1, 1, 1, 1)
	all["run-icmp-eol"] = four(1, 0, 1, 1)
	all["run-icmp6-pad"] = six(hop, 0, 1, 2, 0x11, 0x22, 0)
	all["run-icmp-max"] = four(bytes.Repeat([]byte{1}, 40)...)
	all["run-icmp6-max"] = six(hop, append([]byte{1, 252}, bytes.Repeat([]byte{0x11}, 252)...)...)
	all["run-icmp-ra"] = four(1, 148, 4, 0, 0, 1, 1, 1)
	all["run-icmp6-ra"] = six(hop, 5, 2, 0, 0, 1, 0)
	all["run-icmp-bad"] = four(3, 4, 0, 0)
	all["run-icmp6-bad"] = six(hop, 3, 0, 1, 2, 0, 0)

	query4 := gopacket.Payload([]byte{0x11, 0, 0xee, 0xff, 0, 0, 0, 0})
	query6 := &together{&layers.ICMPv6{TypeCode: layers.CreateICMPv6TypeCode(layers.ICMPv6TypeMLDv1MulticastListenerQueryMessage, 0)}, make([]byte, 20)}
	igmp := func(option ...byte) func(r *router, s *host) netlab.Frame {
		return ipv4With(query4, layers.IPProtocolIGMP, 1, "224.0.0.1", option)
	}
	mld := func(option ...byte) func(r *router, s *host) netlab.Frame {
		return ipv6With(query6, hop, 1, "ff02::1", option)
	}
	// A router alert of these passes without allow-opts.
	all["run-igmp"] = func(r *router) { r.option(false, igmp(148, 4, 0, 0)) }
	all["run-icmp6-mld"] = func(r *router) { r.option(false, mld(5, 2, 0, 0, 1, 0)) }
	all["run-bpf-mcast"] = func(r *router) { r.option(false, igmp(148, 4, 0, 0)); r.option(false, mld(5, 2, 0, 0, 1, 0)) }
	all["run-igmp-bad"] = func(r *router) { r.option(true, igmp(3, 4, 0, 0)) }
	all["run-icmp6-mld-bad"] = func(r *router) { r.option(true, mld(3, 0, 1, 2, 0, 0)) }

	// A packet that is dropped because of its options is logged, regardless of the rule's log
	// option. No other packet is logged.
	inLog := func(packets ...func(r *router)) func(r *router) {
		return func(r *router) {
			l := r.reads()
			for _, send := range packets {
				send(r)
			}
			list := l.entries()
			if len(list) != len(packets) {
				r.t.Errorf("%d packets are in the log, should be %d: %+v", len(list), len(packets), list)
			}
			for _, e := range list {
				if e.Ifname != "em1" || e.Action != "block" || e.Direction != "in" || e.Reason != "ip-option" {
					r.t.Errorf("in the log is %+v", e)
				}
			}
		}
	}
	all["run-bpf-ping-record"] = inLog(all["run-ping-record"])
	all["run-bpf-ext"] = inLog(all["run-icmp6-hop"], all["run-icmp6-dst"])
	all["run-bpf-opts"] = inLog(all["run-icmp-pad"], all["run-icmp-eol"], all["run-icmp6-pad"], all["run-icmp-max"], all["run-icmp6-max"],
		all["run-icmp-ra"], all["run-icmp6-ra"], all["run-icmp-bad"], all["run-icmp6-bad"])
	all["run-bpf-mcast-bad"] = inLog(all["run-igmp-bad"], all["run-icmp6-mld-bad"])
	for name, send := range map[string]func(r *router){"run-bpf-ping": all["run-bpf-ping"], "run-bpf-icmp": all["run-bpf-icmp"], "run-bpf-mcast": all["run-bpf-mcast"]} {
		all[name] = func(r *router) {
			l := r.reads()
			send(r)
			if list := l.entries(); len(list) > 0 {
				r.t.Errorf("in the log is %+v", list)
			}
		}
	}
	return all
}

func options(b []byte) []layers.IPv4Option { return []layers.IPv4Option{rawOption(b)} }

// rawOption returns an option with the unparsed bytes of all options of a header.
func rawOption(b []byte) layers.IPv4Option {
	if b[0] < 2 { // a single byte; the next ones are not its data
		return layers.IPv4Option{OptionType: b[0], OptionLength: 1}
	}
	return layers.IPv4Option{OptionType: b[0], OptionLength: b[1], OptionData: b[2:b[1]]}
}

// ipv4With makes a packet with options from a station to its router, or to a group.
func ipv4With(inner gopacket.SerializableLayer, protocol layers.IPProtocol, ttl uint8, group string, option []byte) func(r *router, s *host) netlab.Frame {
	return func(r *router, s *host) netlab.Frame {
		h := ip4(s.v4, s.gw4, protocol)
		h.TTL = ttl
		for b := option; len(b) > 0; {
			o := rawOption(b)
			h.Options, b = append(h.Options, o), b[o.OptionLength:]
		}
		if group == "" {
			return r.frame(s, h, inner)
		}
		h.DstIP = netip.MustParseAddr(group).AsSlice()
		return r.ether(s.MAC, netlab.MAC{0x01, 0, 0x5e, 0, 0, 1}, h, inner)
	}
}

// ipv6With makes such a packet, with the options in its extension header.
func ipv6With(inner gopacket.SerializableLayer, header layers.IPProtocol, hops uint8, group string, option []byte) func(r *router, s *host) netlab.Frame {
	return func(r *router, s *host) netlab.Frame {
		h := ip6(s.v6, s.gw6, header)
		h.HopLimit = hops
		mac := s.gwMAC
		if group != "" {
			h.DstIP, mac = netip.MustParseAddr(group).AsSlice(), netlab.MAC{0x33, 0x33, 0, 0, 0, 1}
		}
		packet := []gopacket.SerializableLayer{h}
		if len(option) > 0 {
			ext := append([]byte{byte(layers.IPProtocolICMPv6), byte((len(option)+2)/8 - 1)}, option...)
			packet = append(packet, gopacket.Payload(ext))
		}
		return r.ether(s.MAC, mac, append(packet, inner)...)
	}
}

// option sends a packet by em0 and by em1. It enters the router by em0. If it needs allow-opts, it
// does not enter by em1.
func (r *router) option(needs bool, make func(r *router, s *host) netlab.Frame) {
	r.t.Helper()
	for n, tap := range tapsOf(r) {
		s := r.stations[n]
		tap.Received()
		before := r.counter("ip-option")
		f := make(r, s)
		r.sends(s, f)
		came := 0
		for _, got := range tap.Received() {
			if got == f {
				came++
			}
		}
		drops := n == 1 && needs
		if came != 1-b2i(drops) {
			r.t.Errorf("by %s there come %d packets, should be %d", s.port, came, 1-b2i(drops))
		}
		if counted := r.counter("ip-option") - before; counted != b2i(drops) {
			r.t.Errorf("ip-option counts %d packets by %s", counted, s.port)
		}
	}
}
