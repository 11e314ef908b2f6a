/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Packets of known connections that XDP routes, with both passes through the rules at once. Such a
 * packet has two states, one for its way into the host and one for its way out of it. XDP finds
 * both, and the way between them, before it changes anything: if one of these is not plain enough,
 * tcx gets the packet as it arrived.
 */
#pragma once

#include "pf.h"

/* The flows that a CPU remembers. */
#define PF_FLOWS 128 /* a power of two */

/*
 * Packets like one that this CPU has routed past pf: their states, their way, and their
 * translation. A flow is valid as long as its way (struct route_way), a few milliseconds, unless a
 * state of it goes: the place of a removed state has another mark, and stays empty for longer than
 * a flow is valid. So a packet of a flow looks up nothing but its states.
 */
struct pf_flow {
	/* the packet as it arrives; struct route_way has the packet that the host's stack sees */
	u64 gateway;
	u64 address[4];
	u64 ports;
	u32 flow;
	u32 from; /* slot of the port of arrival */
	/* as the way has them */
	u32 tick;
	u32 changes;
	u32 epoch;
	u32 mtu;
	u16 in;
	u16 out;
	u8 dmac[6];
	u8 smac[6];
	/* its states; the one for its way into the host first */
	u32 place[2];
	u32 mark[2];
	u8 side[2]; /* that sends the packet */
	u8 on; /* it is translated */
	u8 pad;
	u32 missed; /* the last packet of another flow that looked for this place */
	/* the translated packet */
	u32 are[3]; /* addresses of IPv4; then ports, source first */
	u32 six[8]; /* addresses of IPv6 */
	u16 sum[2]; /* the change of a checksum by its new addresses and its new ports */
};

struct pf_flows {
	struct pf_flow at[PF_FLOWS];
};

MEMORY_HOLDS(struct pf_flows);

static __always_inline struct pf_flow *pf_flow_at(u32 place)
{
	return memory_record(MEMORY_FLOWS, place, PF_FLOWS, sizeof(struct pf_flow));
}

/* This CPU's data about such a packet, after its first state is found. */
struct pf_through {
	/* the flow that a packet without one would have: see struct pf_flow */
	struct pf_flow ask;
	u32 at; /* the place for it, PF_FLOWS for none */
	/* the sides of that state, as in struct pf_packet */
	struct pf_peer src;
	struct pf_peer dst;
	struct pf_peer src_was;
	struct pf_peer dst_was;
	u32 state; /* its place + 1 */
	u8 side; /* that sends the packet */
	u8 loose;
	u8 on; /* a state translates it */
	u8 pad;
	/*
	 * The packet as the host's stack would see it, if the first state translates it, in the
	 * form of struct bpf_fib_lookup.
	 */
	u64 address[4];
	u32 ports; /* source, destination; 0 for an echo */
	u32 is; /* `address` and `ports` are filled in */
};

WORK_HOLDS(struct pf_through);

static __always_inline struct pf_through *pf_through(void)
{
	return work_of(WORK_PF_THROUGH);
}

/* States whose packets need more than an update and a translation. */
#define PF_STATE_SLOW                                                                              \
	(PF_STATE_LOG | PF_STATE_REWRITE | PF_STATE_PRIO | PF_STATE_SCRUB | PF_STATE_HOP)

/* Records the form in which the host's stack would see a packet that its first state translates. */
static __always_inline void pf_through_as(struct pf_through *t, const struct pf_packet *p)
{
	const struct pf_key *key = &p->key;
	u32 side = p->side & 1, *address = (u32 *)t->address;

	if (p->family == 4) {
		t->address[0] = key->address[side][3];
		t->address[1] = 0;
		t->address[2] = key->address[!side][3];
		t->address[3] = 0;
	} else {
		__builtin_memcpy(address, key->address[side], 16);
		__builtin_memcpy(address + 4, key->address[!side], 16);
	}
	t->ports = pf_nat_has_ports(p->proto) ? key->port[side] | (u32)key->port[!side] << 16 : 0;
	t->is = true;
}

#define PF_THROUGH_FIRST 2 /* of pf_through_in(): no state has the packet */

/*
 * Looks at the packet of a frame that arrives at one port and goes to the host through another:
 * `slots` are as in pf_find(). Returns whether it may pass without a rule. Nothing has been changed
 * then. Returns PF_THROUGH_FIRST if rules must be evaluated, or if it is a SYN.
 */
OFTEN __noinline u32 pf_through_in(struct xdp_md *xdp, u32 vlan, u32 slots, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_through *t = pf_through();
	struct pf_state *s, *k;
	u32 found;

	if (!on(FEATURE_PF_HOST) || !p || !t)
		return false;
	found = pf_look_xdp(xdp, vlan, slots, now);
	if ((found & (PF_FOUND_WAY - 1)) != PF_LOOK_STATE || !(found & PF_FOUND_WAY))
		return found == PF_LOOK_JUDGE || found == PF_LOOK_BEGINS ? PF_THROUGH_FIRST : false;
	s = pf_state_at(p->state - 1);
	/* the packets of a VLAN's connection are only for a moment the host's */
	if (!s || (s->flags & PF_STATE_SLOW) || !(p->key.vlan & PF_ROUTED) || pf_cross())
		return false;
	if (p->proto == IPPROTO_TCP && pf_follow_tcp(p->state - 1, now, PF_FOLLOW_LOOK))
		return false;
	t->state = p->state;
	t->side = p->side;
	t->loose = p->proto == IPPROTO_TCP && p->loose;
	if (p->proto == IPPROTO_TCP)
		__builtin_memcpy(&t->src, &p->src, 4 * sizeof(t->src));
	t->on = t->is = false;
	if (!on(FEATURE_PF_NAT) || !(s->flags & PF_STATE_NAT))
		return true;
	k = pf_state_second(s, p->state);
	if (!k)
		return false;
	p->side ^= !!((s->flags ^ k->flags) & PF_STATE_SECOND);
	p->key = k->key;
	p->key.profile = 0;
	pf_through_as(t, p);
	t->on = true;
	return true;
}

/*
 * Turns this CPU's packet, which tcx has let into the host by its state, into the one that leaves
 * the host. The frame has been rewritten already. Returns false if it is not plain.
 */
static __always_inline bool pf_through_turn(void)
{
	struct pf_through *t = pf_through();
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_state *s;

	if (!t || !p || !n || p->flags || !(p->key.vlan & PF_ROUTED) || pf_cross())
		return false;
	s = pf_state_at(p->state - 1);
	if (!s)
		return false;
	/* the flow only does the work of plain states */
	if (s->flags & PF_STATE_SLOW)
		t->at = PF_FLOWS;
	t->state = p->state;
	t->side = p->side;
	t->loose = p->proto == IPPROTO_TCP && p->loose;
	t->on = false;
	if (on(FEATURE_PF_NAT) && (s->flags & PF_STATE_NAT)) {
		p->key = n->is;
		p->key.profile = 0;
		p->side = n->is_side;
		t->on = true;
	}
	return true;
}

/*
 * Finds the second state of the packet that pf_through_in() has looked at, which becomes the state
 * of this CPU's packet. Returns whether it may come from the host through one port and leave
 * through another without a rule. Nothing has been changed yet.
 */
OFTEN __noinline u32 pf_through_out(u32 slots, u32 now)
{
	u32 in = slots & (MAX_PORTS - 1), out = slots / MAX_PORTS;
	struct pf_packet *p = pf_packet();
	struct pf_through *t = pf_through();
	struct pf_state *s;
	u32 found;

	if (!on(FEATURE_PF_HOST) || !p || !t || !pf_to_host(in) || pf_to_host(out) ||
	    pf_of_link(p->key.address[0]) || pf_of_link(p->key.address[1]))
		return false;
	p->key.vlan = PF_ROUTED | port_at(in)->domain;
	if (!p->side)
		p->key.vlan |= PF_OUTWARD;
	found = pf_state_find(&p->key);
	if (on(FEATURE_PF_NAT) && found)
		found = pf_state_translated(found - 1, true);
	p->state = found;
	s = found ? pf_state_at(found - 1) : 0;
	if (!s || pf_cross() || (s->flags & PF_STATE_SLOW) || pf_state_over(s, now) ||
	    pf_reopens(p, s) || !pf_bound_in(p, s, port_at(in)->id) ||
	    !pf_covers(p, s, port_at(out)->id, false))
		return false;
	if (on(FEATURE_PF_NAT) && (s->flags & PF_STATE_NAT))
		t->on = true;
	return true;
}

/* Updates the packet's first state. The second one has been updated. */
OFTEN __noinline int pf_through_keep(u32 now)
{
	const struct pf_through *t = pf_through();
	const struct pf_packet *p = pf_packet();
	struct pf_state *s;
	u32 side;

	if (!on(FEATURE_PF_HOST) || !p || !t)
		return 0;
	s = pf_state_at(t->state - 1);
	if (!s)
		return 0;
	side = t->side & 1;
	if (p->proto == IPPROTO_TCP) {
		pf_peer_store(&s->peer[side], &t->src, &t->src_was);
		pf_peer_store(&s->peer[!side], &t->dst, &t->dst_was);
	} else {
		pf_other_keep(s, p->proto, side);
	}
	if (!t->loose && s->used != now)
		WRITE_ONCE(s->used, now);
	s->packets[side]++;
	s->bytes[side] += p->length;
	return 0;
}

/* Updates a state that knows the protocol with a packet of a protocol without numbers. */
static __always_inline void pf_flow_count(struct pf_state *s, u32 proto, u32 side, u32 length,
					  u32 now)
{
	pf_other_keep(s, proto, side & 1);
	if (s->used != now)
		WRITE_ONCE(s->used, now);
	s->packets[side & 1]++;
	s->bytes[side & 1] += length;
}

/* Is a state that had a mark still at its place? */
static __always_inline bool pf_flow_has(u32 place, u32 mark)
{
	u32 *at = pf_mark_at(place);

	return at && READ_ONCE(*at) == mark;
}

/*
 * Updates both states of the flow at a place with a TCP packet, as if it had no flow. Returns false
 * if they do not pass it.
 */
OFTEN __noinline u32 pf_flow_follow(u32 at, u32 now)
{
	struct pf_through *t = pf_through();
	struct pf_packet *p = pf_packet();
	struct pf_flow *flow = pf_flow_at(at);

	if (!on(FEATURE_PF_HOST) || !t || !p || !flow)
		return false;
	p->side = flow->side[0];
	if (pf_follow_tcp(flow->place[0], now, PF_FOLLOW_LOOK))
		return false;
	t->state = flow->place[0] + 1;
	t->side = flow->side[0];
	t->loose = p->loose;
	__builtin_memcpy(&t->src, &p->src, 4 * sizeof(t->src));
	p->state = flow->place[1] + 1;
	p->side = flow->side[1];
	if (pf_state_follow(now, false))
		return false;
	pf_through_keep(now);
	return true;
}

/* Does a TCP packet continue a state's connection, whose windows are kept? */
static __always_inline bool pf_flow_is_next(struct pf_state *s, const struct pf_packet *p, u32 side)
{
	return !(s->flags & (PF_STATE_SLOPPY | PF_STATE_REWRITE)) &&
	       pf_tcp_is_next(p, &s->peer[side & 1], &s->peer[!(side & 1)]);
}

/* The result for a packet of a flow. */
enum pf_flow_taken {
	PF_FLOW_NOT, /* its states do not pass it: nothing has been changed */
	PF_FLOW_DONE,
	PF_FLOW_ASKS, /* it does not simply continue its connection: pf_flow_follow() must decide */
};

/*
 * Updates both states of the flow at a place with a packet of `length` bytes. Returns an enum
 * pf_flow_taken. The TCP fields are in this CPU's packet.
 */
OFTEN __noinline u32 pf_flow_counts(u32 at, u32 length, u32 now)
{
	struct pf_flow *flow = pf_flow_at(at);
	struct pf_packet *p = pf_packet();
	struct pf_state *s, *out;
	u32 proto;

	if (!on(FEATURE_PF_HOST) || !p || !flow || !pf_flow_has(flow->place[0], flow->mark[0]) ||
	    !pf_flow_has(flow->place[1], flow->mark[1]))
		return PF_FLOW_NOT;
	s = pf_state_at(flow->place[0]);
	out = pf_state_at(flow->place[1]);
	if (!s || !out)
		return PF_FLOW_NOT;
	proto = flow->ports >> 8 & 0xff;
	if (proto == IPPROTO_TCP) {
		p->proto = proto;
		p->flags = 0;
		p->length = length;
		if (!pf_flow_is_next(s, p, flow->side[0]) ||
		    !pf_flow_is_next(out, p, flow->side[1]))
			return PF_FLOW_ASKS;
		pf_tcp_goes_on(p, &s->peer[flow->side[0] & 1], &s->peer[!(flow->side[0] & 1)]);
		pf_tcp_goes_on(p, &out->peer[flow->side[1] & 1], &out->peer[!(flow->side[1] & 1)]);
	}
	pf_flow_count(s, proto, flow->side[0], length, now);
	pf_flow_count(out, proto, flow->side[1], length, now);
	return PF_FLOW_DONE;
}

/* The same. Returns false if its states do not pass it. */
static __always_inline bool pf_flow_take(u32 at, u32 length, u32 now)
{
	u32 taken = pf_flow_counts(at, length, now);

	return taken == PF_FLOW_ASKS ? pf_flow_follow(at, now) : taken == PF_FLOW_DONE;
}

/*
 * Changes a checksum by a sum of the words removed from the packet, complemented, and the words
 * inserted.
 */
static __always_inline u16 pf_check_add(u16 check, u64 change)
{
	return ~pf_fold((u16)~check + change);
}

/* Writes the ports or the identifier of a packet, which begin at `l4`. */
static __always_inline bool pf_through_ports(void *l4, void *end, const struct pf_packet *p,
					     u64 change)
{
	u32 side = p->side & 1, ports = p->key.port[side] | (u32)p->key.port[!side] << 16;

	if (p->proto == IPPROTO_TCP) {
		struct tcphdr *tcp = l4;

		if ((void *)(tcp + 1) > end)
			return false;
		change += (u64)(u32) ~*(u32 *)tcp + ports;
		*(u32 *)tcp = ports;
		tcp->check = pf_check_add(tcp->check, change);
	} else if (p->proto == IPPROTO_UDP) {
		struct udphdr *udp = l4;

		if ((void *)(udp + 1) > end)
			return false;
		change += (u64)(u32) ~*(u32 *)udp + ports;
		*(u32 *)udp = ports;
		/* 0 means no checksum (RFC 768) */
		if (udp->check) {
			udp->check = pf_check_add(udp->check, change);
			if (!udp->check)
				udp->check = 0xffff;
		}
	} else {
		struct pf_icmp *icmp = l4;

		if ((void *)(icmp + 1) > end)
			return false;
		change += (u64)(u16)~icmp->id + p->key.port[0];
		icmp->id = p->key.port[0];
		icmp->checksum = pf_check_add(icmp->checksum, change);
	}
	return true;
}

/*
 * Writes the translation of its states into the packet. Its frame begins with an Ethernet header
 * and an IP header without options. Returns false if the packet is truncated.
 */
static __always_inline bool pf_through_write(void *data, void *end)
{
	const struct pf_packet *p = pf_packet();
	struct ipv6hdr *six = data + ETHER_HEADER;
	struct iphdr *ip = data + ETHER_HEADER;
	const u32 *src, *dst;
	u64 change = 0;

	if (!p)
		return false;
	src = p->key.address[p->side & 1];
	dst = p->key.address[!p->side];
	if (p->family == 4) {
		if ((void *)(ip + 1) > end)
			return false;
		change = (u64)(u32)~ip->saddr + (u32)~ip->daddr + src[3] + dst[3];
		ip->saddr = src[3];
		ip->daddr = dst[3];
		ip->check = pf_check_add(ip->check, change);
		return pf_through_ports(ip + 1, end, p, p->proto == IPPROTO_ICMP ? 0 : change);
	}
	if ((void *)(six + 1) > end)
		return false;
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		change += (u64)(u32)~six->saddr.in6_u.u6_addr32[i] +
			  (u32)~six->daddr.in6_u.u6_addr32[i] + src[i] + dst[i];
		six->saddr.in6_u.u6_addr32[i] = src[i];
		six->daddr.in6_u.u6_addr32[i] = dst[i];
	}
	return pf_through_ports(six + 1, end, p, change);
}
