/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Flows: packets like one that this CPU has routed past pf. Such a packet has a state on its way
 * into the host, one on its way out, and a way between. The first such packet looks up each of
 * these. The results are remembered as long as the way is valid: see struct pf_flow. So the next
 * packet needs one look-up, and its states, which count it and follow its connection.
 */
#pragma once

#include "route.h"

static __always_inline u32 flow_find_as(void *data, void *data_end, u32 len, u32 from, u32 slot,
					u64 dst, bool six)
{
	struct pf_through *t;
	struct route_seen seen;
	struct pf_flow *flow;
	u64 other, now, hash;
	u32 at, asked;

	if (!route_sees(data, data_end, len, slot, dst, &seen, six) ||
	    (seen.ports >> 8 & 0xff) == (six ? IPPROTO_ICMPV6 : IPPROTO_ICMP))
		return PF_FLOWS;
	hash = route_hash(seen.gateway, seen.address, seen.ports, seen.flow);
	at = hash >> 56 & (PF_FLOWS - 1);
	flow = pf_flow_at(at);
	if (!flow)
		return PF_FLOWS;
	now = (flow->tick ^ seen.tick) | (flow->changes ^ seen.changes) |
	      (flow->epoch ^ READ_ONCE(clock_get()->epoch));
	other = (flow->gateway ^ seen.gateway) | (flow->ports ^ seen.ports) |
		(flow->flow ^ seen.flow) | (flow->from ^ from);
	other |= (flow->address[0] ^ seen.address[0]) | (flow->address[2] ^ seen.address[2]);
	/* the family is among the ports, and these are zero in a flow of IPv4 */
	if (six)
		other |=
			(flow->address[1] ^ seen.address[1]) | (flow->address[3] ^ seen.address[3]);
	if (!(other | now))
		return at;
	/* a single packet of its kind does not replace a flow */
	asked = hash >> 24;
	if (other && flow->missed != asked) {
		flow->missed = asked;
		return PF_FLOWS;
	}
	t = pf_through();
	if (!t)
		return PF_FLOWS;
	t->at = at;
	flow = &t->ask;
	flow->gateway = seen.gateway;
	__builtin_memcpy(flow->address, seen.address, sizeof(flow->address));
	flow->ports = seen.ports;
	flow->flow = seen.flow;
	flow->from = from;
	return PF_FLOWS;
}

/*
 * Finds the flow of a packet in a frame of `len` bytes. The frame arrives at the port in slot
 * `from`, for an address at the port in the other slot. Returns the flow's place, or PF_FLOWS if
 * there is none. Only TCP and UDP packets have flows. If there is none, this records what
 * flow_keep() needs.
 */
static __always_inline u32 flow_find(void *data, void *data_end, u32 len, u32 from, u32 slot,
				     u64 dst)
{
	if (*(u16 *)(data + 12) == bpf_htons(ETH_P_IP))
		return flow_find_as(data, data_end, len, from, slot, dst, false);
	if (*(u16 *)(data + 12) == bpf_htons(ETH_P_IPV6))
		return flow_find_as(data, data_end, len, from, slot, dst, true);
	return PF_FLOWS;
}

/* The current packet has no flow, until flow_find() finds one. */
static __always_inline void flow_forget(void)
{
	struct pf_through *t = pf_through();

	if (t)
		t->at = PF_FLOWS;
}

/* The amount that a checksum grows by when a word replaces another. */
static __always_inline u64 flow_adds(u32 was, u32 is)
{
	return (u64)(u32)~was + is;
}

/*
 * Remembers the flow of the packet that has been routed past pf by the way at a place. struct
 * pf_through has its first state; struct pf_packet has the second one and the translated packet.
 */
OFTEN __noinline int flow_keep(u64 place)
{
	struct pf_through *t = pf_through();
	struct pf_packet *p = pf_packet();
	struct route_way *way = route_way(place);
	u32 *in, *out, side, ports;
	const u32 *was, *src, *dst;
	struct pf_flow *flow;
	u64 sum = 0;

	if (!on(FEATURE_PF_HOST) || !t || !p || !way || t->at >= PF_FLOWS || t->loose ||
	    (p->proto == IPPROTO_TCP && p->loose))
		return 0;
	in = pf_mark_at(t->state - 1);
	out = pf_mark_at(p->state - 1);
	flow = pf_flow_at(t->at);
	if (!in || !out || !flow)
		return 0;
	*flow = t->ask;
	flow->missed = 0;
	flow->tick = way->tick;
	flow->changes = way->changes;
	flow->epoch = way->epoch;
	flow->mtu = way->mtu;
	flow->in = way->in;
	flow->out = way->out;
	__builtin_memcpy(flow->dmac, way->dmac, sizeof(flow->dmac));
	__builtin_memcpy(flow->smac, way->smac, sizeof(flow->smac));
	flow->place[0] = t->state - 1;
	flow->place[1] = p->state - 1;
	flow->mark[0] = READ_ONCE(*in);
	flow->mark[1] = READ_ONCE(*out);
	flow->side[0] = t->side;
	flow->side[1] = p->side;
	flow->on = on(FEATURE_PF_NAT) && t->on;
	/* one of them has gone meanwhile */
	if (!(flow->mark[0] & flow->mark[1] & PF_MARK_STATE))
		flow->gateway = 0;
	if (!flow->on)
		return 0;
	side = p->side & 1;
	src = p->key.address[side];
	dst = p->key.address[!side];
	was = (const u32 *)flow->address;
	if (p->family == 4) {
		flow->are[0] = src[3];
		flow->are[1] = dst[3];
		sum = flow_adds(was[0], src[3]) + flow_adds(was[4], dst[3]);
	} else {
#pragma unroll
		for (u32 i = 0; i < 4; i++) {
			flow->six[i] = src[i];
			flow->six[4 + i] = dst[i];
			sum += flow_adds(was[i], src[i]) + flow_adds(was[4 + i], dst[i]);
		}
	}
	flow->sum[0] = pf_fold(sum);
	ports = p->key.port[side] | (u32)p->key.port[!side] << 16;
	flow->are[2] = ports;
	flow->sum[1] = pf_fold(flow_adds(flow->ports >> 16, ports));
	return 0;
}

/*
 * Reads the TCP header of a packet, which is at a place and has `room` bytes with the data behind
 * it. Returns false if the header is not plain, or begins a connection.
 */
static __always_inline bool flow_reads(void *tcp_at, void *data_end, u32 room)
{
	struct pf_packet *p = pf_packet();
	struct tcphdr *tcp = tcp_at;

	if (!p || (void *)(tcp + 1) > data_end || tcp->doff < 5 || room < tcp->doff * 4 ||
	    tcp->syn || !pf_tcp_is_plain(tcp))
		return false;
	pf_read_tcp(p, tcp, room);
	return true;
}

/* Records what pf_count_port() counts for a packet. */
static __always_inline void flow_count(const struct pf_flow *flow, u32 slot, u32 length)
{
	struct pf_packet *p = pf_packet();

	if (!cfg.pf.log_interface || !p)
		return;
	p->family = (flow->ports & 0xff) == 10 ? 6 : 4;
	p->length = length;
	pf_count_port(flow->from, false, false);
	pf_count_port(slot, true, false);
	pf_count_port(flow->in, false, false);
	pf_count_port(flow->out, true, false);
}

/* Counts a packet of a flow at the four ports of its way, in a frame of `len` bytes. */
static __always_inline void flow_counts(const struct pf_flow *flow, u32 slot, u32 len)
{
	count_rx(flow->from, len);
	count_routed(slot, len);
	count_rx(flow->in, len);
	count_tx(flow->out, len);
	flow_count(flow, slot, len - ETHER_HEADER);
}

/* Writes the flow's ports into a packet whose upper header is at a place. */
static __always_inline bool flow_writes_ports(void *at, void *data_end, const struct pf_flow *flow)
{
	u32 change = (u32)flow->sum[0] + flow->sum[1];
	struct tcphdr *tcp = at;
	struct udphdr *udp = at;

	if ((flow->ports >> 8 & 0xff) == IPPROTO_TCP) {
		if ((void *)(tcp + 1) > data_end)
			return false;
		*(u32 *)tcp = flow->are[2];
		tcp->check = pf_check_add(tcp->check, change);
		return true;
	}
	if ((void *)(udp + 1) > data_end)
		return false;
	*(u32 *)udp = flow->are[2];
	/* 0 means no checksum (RFC 768) */
	if (udp->check) {
		udp->check = pf_check_add(udp->check, change);
		if (!udp->check)
			udp->check = 0xffff;
	}
	return true;
}

/*
 * Writes the flow's changes into a packet that XDP has. Returns false if the packet is truncated.
 */
static __always_inline bool flow_writes(void *data, void *data_end, const struct pf_flow *flow)
{
	struct ipv6hdr *six = data + ETHER_HEADER;
	struct iphdr *ip = data + ETHER_HEADER;

	if ((flow->ports & 0xff) == 10) {
		if ((void *)(six + 1) > data_end)
			return false;
		__builtin_memcpy(&six->saddr, flow->six, sizeof(flow->six));
		return flow_writes_ports(six + 1, data_end, flow);
	}
	if ((void *)(ip + 1) > data_end)
		return false;
	ip->saddr = flow->are[0];
	ip->daddr = flow->are[1];
	ip->check = pf_check_add(ip->check, flow->sum[0]);
	return flow_writes_ports(ip + 1, data_end, flow);
}

/* Does tcx route packets past pf in one go? */
#define ROUTES_PAST_PF_BY_TCX (on(FEATURE_PF_HOST) && on(FEATURE_ROUTE) && ROUTES_BY_TCX)

/*
 * Finds the flow of a packet that tcx has, if the whole frame is in order. The result is as in
 * flow_find().
 */
OFTEN __noinline u32 flow_find_skb(struct __sk_buff *skb, u32 from, u32 slot, u64 dst)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	u32 len = skb->len, size, at, l4, proto, place;
	struct pf_flow *flow;
	bool four;

	if (!ROUTES_PAST_PF_BY_TCX || tag_beside(skb) || skb->mark ||
	    data + ETHER_HEADER + sizeof(struct iphdr) > data_end)
		return PF_FLOWS;
	size = route_segment(skb);
	at = flow_find(data, data_end, len, from, slot, dst);
	flow = at < PF_FLOWS ? pf_flow_at(at) : 0;
	if (!flow || size > flow->mtu + ETHER_HEADER || !port_has_device(&tcx_devices, flow->out))
		return PF_FLOWS;
	four = (flow->ports & 0xff) == 2;
	proto = flow->ports >> 8 & 0xff;
	l4 = ETHER_HEADER + (four ? sizeof(struct iphdr) : sizeof(struct ipv6hdr));
	/* an unfinished checksum belongs to this packet: see unfinished_judge() */
	place = checksum_place(skb);
	if (place && place != (l4 << 16 | (l4 + checksum_offset(proto))))
		return PF_FLOWS;
	if (proto == IPPROTO_TCP ? !flow_reads(data + l4, data_end, len - l4)
				 : len - l4 < sizeof(struct udphdr))
		return PF_FLOWS;
	return on(FEATURE_PF_NAT) && flow->on && !four ? PF_FLOWS : at;
}

/*
 * Writes the changes of the flow at a place into an IPv4 packet. Returns false if there is no
 * memory.
 */
OFTEN __noinline u32 flow_writes_skb(struct __sk_buff *skb, u32 place)
{
	const struct pf_flow *flow = pf_flow_at(place);
	u32 proto, at;
	u64 flags;

	if (!on(FEATURE_PF_NAT) || !flow)
		return false;
	proto = flow->ports >> 8 & 0xff;
	at = ETHER_HEADER + sizeof(struct iphdr) + checksum_offset(proto);
	flags = proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	if (bpf_l4_csum_replace(skb, at, 0, flow->sum[0], flags | BPF_F_PSEUDO_HDR) ||
	    bpf_l4_csum_replace(skb, at, 0, flow->sum[1], flags) ||
	    bpf_l3_csum_replace(skb, ETHER_HEADER + offsetof(struct iphdr, check), 0, flow->sum[0],
				0))
		return false;
	return !bpf_skb_store_bytes(skb, ETHER_HEADER + offsetof(struct iphdr, saddr), flow->are,
				    sizeof(flow->are), 0);
}

/*
 * Routes the frame of a flow, which has arrived at a port and is for an address at a routed host
 * port. Returns 0 if the frame has no flow; the frame is unchanged then. Otherwise returns the
 * action for the frame.
 */
OFTEN __noinline int route_flow_skb(struct __sk_buff *skb, u32 from, u32 slot, u64 dst)
{
	struct route_memory *memory = route_memory_get();
	u32 at = flow_find_skb(skb, from, slot, dst);
	struct pf_flow *flow;
	u32 len = skb->len;
	int done;

	if (!ROUTES_PAST_PF_BY_TCX || at >= PF_FLOWS || !memory ||
	    !pf_flow_take(at, len - ETHER_HEADER, clock_now()))
		return 0;
	flow = pf_flow_at(at);
	if (!flow)
		return TC_ACT_SHOT;
	flow_counts(flow, slot, len);
	/*
	 * both states have counted the packet: it is sent, or dropped, but never passed on as it
	 * arrived
	 */
	if (on(FEATURE_PF_NAT) && flow->on && !flow_writes_skb(skb, at))
		return TC_ACT_SHOT;
	route_macs(memory, flow->dmac);
	done = route_leaves(skb, flow->out);
	return done ? done : TC_ACT_SHOT;
}

/*
 * Finds the way of a packet that has come past pf to an address at a routed host port. Returns its
 * place, or ROUTE_NO_WAY if it is not remembered.
 */
OFTEN __noinline u64 route_past_way(struct __sk_buff *skb, u32 slot, u64 dst)
{
	u64 place;

	if (!ROUTES_PAST_PF_BY_TCX || !route_known_skb(skb, slot, dst, &place))
		return ROUTE_NO_WAY;
	return place;
}

/*
 * Routes a packet past pf whose state on its way to the host is known and has accepted it, if the
 * rest is known as well: its way, and its state on its way from the host. Returns the action for
 * its frame, or 0 if the host's port must decide. See route_quickly_skb().
 */
OFTEN __noinline int route_past_skb(struct __sk_buff *skb, u32 slot, u64 dst)
{
	struct route_memory *memory = route_memory_get();
	u64 place = route_past_way(skb, slot, dst);
	u32 len = skb->len, now = clock_now();
	struct pf_packet *p = pf_packet();
	struct route_way *way;
	struct port_stats *s;
	struct pf_state *out;
	int done;

	if (!ROUTES_PAST_PF_BY_TCX || place > cfg.ways || !memory || !p)
		return 0;
	way = route_way(place);
	if (!way || !pf_through_turn() || !pf_through_out(way->out * MAX_PORTS | way->in, now) ||
	    pf_state_follow(now, false))
		return 0;
	flow_keep(place);
	s = stats_of(slot);
	if (s)
		s->routed++;
	count_rx(way->in, len);
	count_tx(way->out, len);
	if (cfg.pf.log_interface) {
		pf_count_port(way->in, false, false);
		pf_count_port(way->out, true, false);
	}
	out = pf_state_at(p->state - 1);
	if (on(FEATURE_PF_NAT) && out && (out->flags & PF_STATE_NAT) && pf_nat_follow(skb))
		return TC_ACT_SHOT;
	route_macs(memory, way->dmac);
	done = route_leaves(skb, way->out);
	return done ? done : TC_ACT_SHOT;
}
