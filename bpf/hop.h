/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The end of the way of a packet that has a next hop of its own, in a program of its own: see
 * pf/hop.h. Where that hop is, the host's routes say, for the next hop in the place of the
 * packet's destination. The kernel looks for the neighbour. A packet on its way into the host
 * has its time to live reduced here, and one on its way out of the host has it reduced already.
 * A next hop at a host port gets the packet by that port, as if the host had sent it there.
 *
 * Of a packet that has a copy sent, the host or the station gets the packet as it is, and what
 * was the packet becomes the copy.
 */
#pragma once

#include "answer.h"
#include "family.h"
#include "pf/hop.h"
#include "send.h"

#ifndef DECIDES_AT_ONCE
/* Is the packet on its way out of the host? */
static __always_inline bool hop_is_outward(const struct verdict *v)
{
	return pf_to_host(v->in);
}

/*
 * Reads the header of the packet: false if it is not where the host looks for one, or if no
 * router sends on what it says (RFC 1812, 5.2.2 and 5.3.7). A look-up of the next hop does not
 * ask about the packet's own addresses. An error in a longer header is the receiver's to find.
 */
static __always_inline bool hop_read(struct __sk_buff *skb, struct route_memory *memory,
				     const struct pf_packet *p)
{
	const struct ipv6hdr *six = (const struct ipv6hdr *)memory->header;
	const struct iphdr *ip = (const struct iphdr *)memory->header;
	u16 type = p->family == 4 ? bpf_htons(ETH_P_IP) : bpf_htons(ETH_P_IPV6);

	if (p->l3 != ETHER_HEADER || skb->protocol != type)
		return false;
	memory->len = ETHER_HEADER + p->length;
	memory->endpoint = 0;
	if (p->family == 4)
		return !skb_bytes(skb, ETHER_HEADER, memory->header, sizeof(*ip)) &&
		       (ip->ihl != 5 || ip4_sums_up(ip)) && ip4_is_plain(ip->saddr) &&
		       ip4_is_plain(ip->daddr);
	return !skb_bytes(skb, ETHER_HEADER, memory->header, sizeof(*six)) &&
	       ip6_is_plain(six->saddr.in6_u.u6_addr32) && ip6_is_plain(six->daddr.in6_u.u6_addr32);
}

/* Fills in a look-up of the next hop. */
static __always_inline void hop_ask(struct bpf_fib_lookup *to, const struct route_memory *memory,
				    const struct pf_packet *p, const struct pf_nat *n)
{
	const struct ipv6hdr *six = (const struct ipv6hdr *)memory->header;
	const struct iphdr *ip = (const struct iphdr *)memory->header;

	*to = (struct bpf_fib_lookup){};
	to->l4_protocol = p->proto;
	if (pf_nat_has_ports(p->proto)) {
		to->sport = p->key.port[p->side & 1];
		to->dport = p->key.port[!(p->side & 1)];
	}
	to->ifindex = memory->interface;
	if (p->family == 4) {
		to->family = 2; /* AF_INET */
		to->tos = ip->tos;
		to->ipv4_src = ip->saddr;
		to->ipv4_dst = n->hop[3];
		return;
	}
	to->family = 10; /* AF_INET6 */
	to->flowinfo = *(const u32 *)six & bpf_htonl(0x0fffffff);
	__builtin_memcpy(to->ipv6_src, &six->saddr, 16);
	__builtin_memcpy(to->ipv6_dst, n->hop, 16);
	if (memory->vrf)
		to->ifindex = memory->vrf;
}

/* Looks for the way to the next hop: ROUTE_DONE, or the enum route for which there is none. */
__noinline u32 hop_look(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct bpf_fib_lookup *to;
	u32 why, mtu = 0, slot, size = skb->gso_size;
	u64 mac;

	if (!on(FEATURE_PF_HOPS) || !on(FEATURE_ROUTE) || !memory || !j || !p || !n)
		return ROUTE_AWAY;
	slot = hop_is_outward(&j->v) ? j->v.in : j->v.out;
	mac = hop_is_outward(&j->v) ? j->f.src : j->f.dst;
	why = route_interface(&h, memory, slot, mac);
	if (why)
		return why;
	if (!route_domain(memory))
		return ROUTE_TAKEN;
	if (route_guarded(memory))
		return ROUTE_IPSEC;
	if (p->family == 6 && !route_forwards6(memory))
		return ROUTE_OFF;
	to = route_back(memory);
	hop_ask(to, memory, p, n);
	/* GSO packets are measured by their segments */
	to->tot_len = size ? 1 : p->length;
	why = route_look_skb(skb, true);
	if (why == ROUTE_SIZE)
		n->hop_mtu = to->mtu_result;
	if (why)
		return why;
	if (!size)
		return ROUTE_DONE;
	/* the helper compares them with the device's MTU alone, not with the route's */
	size += p->l4 - p->l3 + pf_segment_header(p);
	if (!bpf_check_mtu(skb, to->ifindex, &mtu, 0, BPF_MTU_CHK_SEGS) && size <= to->mtu_result)
		return ROUTE_DONE;
	n->hop_mtu = to->mtu_result < mtu ? to->mtu_result : mtu;
	return ROUTE_SIZE;
}

/*
 * Finds the way of the packet to its next hop: 0, or the reason to drop it, with the message
 * that its sender is to get.
 */
__noinline u32 hop_find(struct __sk_buff *skb)
{
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 slot, tag, why, ttl;
	bool six, out;

	if (!on(FEATURE_PF_HOPS) || !memory || !j || !p || !n)
		return DROP_PF_ROUTE;
	n->hop_refused = 0;
	n->hop_mtu = 0;
	out = hop_is_outward(&j->v);
	slot = out ? j->v.in : j->v.out;
	tag = j->f.outer;
	if (on(FEATURE_VLANS) && !out)
		tag = tag_with_priority(&j->f, j->v.tag);
	if (!on(FEATURE_ROUTE) || !(port_at(slot)->flags & PORT_ROUTE) || tag ||
	    !hop_read(skb, memory, p))
		return DROP_PF_ROUTE;
	six = p->family == 6;
	ttl = six ? ((struct ipv6hdr *)memory->header)->hop_limit
		  : ((struct iphdr *)memory->header)->ttl;
	if (!out && ttl <= 1) {
		n->hop_refused = six ? 3 << 8 : 11 << 8;
		return DROP_PF_ROUTE;
	}
	why = hop_look(skb);
	if (why == ROUTE_DONE)
		return 0;
	if (why == ROUTE_SIZE)
		n->hop_refused = six ? 2 << 8 : 3 << 8 | 4;
	else
		n->hop_refused = six ? 1 << 8 : 3 << 8 | 1;
	return DROP_PF_ROUTE;
}

/* Notes for `bascule trace` what becomes of the packet. */
static __always_inline void hop_tell(struct __sk_buff *skb, struct judged *j, struct pf_nat *n,
				     u32 reason)
{
	struct route_memory *memory = route_memory_get();
	struct pf_packet *p = pf_packet();
	struct traced *t = watch_memory();
	struct bpf_fib_lookup *to;
	u32 why;

	if (!t || !memory || !p)
		return;
	__builtin_memcpy(t->hop, n->hop, sizeof(t->hop));
	t->hop_kind = n->hop_kind;
	trace_verdict(&j->f, &j->v, reason ? ACTION_DROP : ACTION_SEND, reason);
	TRACE(step, !reason ? STEP_SEND : hop_is_outward(&j->v) ? STEP_PF_IN : STEP_PF_OUT);
	if (reason)
		return;
	if (on(FEATURE_SPAN) && !hop_is_outward(&j->v))
		span_out(skb, &j->f, &j->v, j->v.out);
	to = route_to(memory);
	hop_ask(to, memory, p, n);
	why = route_look_skb(skb, false);
	route_tell(to);
	t->route_to = route_back(memory)->ifindex;
	t->route = why + 1;
}

/* Drops the packet, and tells its sender if he is to know. */
__noinline int hop_refuse(struct __sk_buff *skb, u32 reason)
{
	struct pf_answering *a = pf_answering_get();
	struct judged *j = judged_here(0);
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 side;

	if (!on(FEATURE_PF_HOPS) || !j || !a || !p || !n)
		return TC_ACT_SHOT;
	if (on(FEATURE_TRACE)) {
		hop_tell(skb, j, n, reason);
		return TC_ACT_OK;
	}
	drop_skb(skb, &j->f, &j->v, reason);
	/* who has sent it does not know what it has become */
	if (!n->hop_refused || pf_translated() || n->out ||
	    (on(FEATURE_PATCH) && (port_at(j->v.in)->facts & PORT_PATCH)) || !pf_answers_front(skb))
		return TC_ACT_SHOT;
	side = p->side & 1;
	__builtin_memcpy(a->src, p->key.address[!side], 16);
	__builtin_memcpy(a->dst, p->key.address[side], 16);
	if (!pf_has_answer(p, a))
		return TC_ACT_SHOT;
	a->rest = bpf_htonl(n->hop_mtu);
	j->f.len = pf_answer_icmp(skb, n->hop_refused);
	if (!j->f.len)
		return TC_ACT_SHOT;
	return send_by(skb, &j->f, &j->v, j->v.in, j->f.outer, j->f.outer);
}

/* Sends what is at hand to the next hop. */
__noinline int hop_go(struct __sk_buff *skb)
{
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct pf_packet *p = pf_packet();
	struct bpf_redir_neigh *hop;
	struct bpf_fib_lookup *to;
	u64 key;

	if (!on(FEATURE_PF_HOPS) || !on(FEATURE_ROUTE) || !memory || !j || !p)
		return TC_ACT_SHOT;
	/* what is behind the packet to fill a frame stays on the link that it came by */
	if (skb->len > memory->len && bpf_skb_change_tail(skb, memory->len, 0))
		return TC_ACT_SHOT;
	to = route_back(memory);
	key = to->ifindex;
	if (hop_is_outward(&j->v)) {
		if (bpf_map_lookup_elem(&gateways, &key)) {
			skb->mark = PF_HOP_MARK | ((p->state - 1) & PF_HOP_PLACE);
			barrier(); /* else clang writes this and the priority by one pointer */
		}
	} else {
		if (p->family == 6 ? !route_ages6(skb, memory) : !route_ages4(skb, memory))
			return TC_ACT_SHOT;
		if (p->family == 4)
			route_prefers(skb, memory, ((const struct iphdr *)memory->header)->tos);
	}
	hop = (struct bpf_redir_neigh *)memory->hop;
	*hop = (struct bpf_redir_neigh){.nh_family = to->family};
	__builtin_memcpy(hop->ipv6_nh, to->ipv6_dst, sizeof(hop->ipv6_nh));
	return bpf_redirect_neigh(to->ifindex, hop, sizeof(*hop), 0);
}

/* Counts the packet where it comes in, and where it would leave the switch. */
static __always_inline bool hop_count(struct __sk_buff *skb, struct frame *f, struct verdict *v,
				      bool leaves)
{
	count_rx(v->in, f->len);
	note_in(f, v);
	if (on(FEATURE_SAMPLE))
		sample_in(skb, v->in | v->out << 16, capture_vlans(v), 0);
	if (on(FEATURE_CAPTURE))
		capture_frame(skb, v->in, capture_vlans(v), CAPTURE_IN, 0);
	if (!leaves)
		return true;
	count_tx(v->out, f->len);
	return prepare_skb(skb, f, v, v->out, f->outer,
			   on(FEATURE_VLANS) ? tag_with_priority(f, v->tag) : f->outer);
}

/* Counts and sends the packet. */
__noinline int hop_send(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	struct pf_nat *n = pf_nat();
	bool out;

	if (!on(FEATURE_PF_HOPS) || !j || !n)
		return TC_ACT_SHOT;
	if (on(FEATURE_TRACE)) {
		hop_tell(skb, j, n, 0);
		return TC_ACT_OK;
	}
	out = hop_is_outward(&j->v);
	if (!hop_count(skb, &j->f, &j->v, !out))
		return TC_ACT_SHOT;
	if (!out)
		route_count(j->v.out, ROUTE_DEVICE);
	return hop_go(skb);
}

/*
 * Sends the packet as it is by the port of its destination, and makes it the copy: true if
 * there is a copy to be sent. Where a copy cannot go to the next hop, there is none.
 */
__noinline u32 hop_copies(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	u32 tag;

	if (!on(FEATURE_PF_HOPS) || !j || hop_find(skb) ||
	    (on(FEATURE_PATCH) && (port_at(j->v.out)->facts & PORT_PATCH)))
		return false;
	if (on(FEATURE_TRACE) || !hop_count(skb, &j->f, &j->v, true))
		return false;
	tag = on(FEATURE_VLANS) ? tag_with_priority(&j->f, j->v.tag) : j->f.outer;
	if (pf_to_host(j->v.out))
		route_count(j->v.out, ROUTE_TRIP);
	bpf_clone_redirect(skb, port_device(&tcx_devices, j->v.out), 0);
	if (tag && (!on(FEATURE_VLANS) || !skb_retag(skb, tag, 0)))
		j->f.len = 0;
	return true;
}

/* Notes the same for a packet that goes on as others do. */
__noinline int hop_tell_copy(struct __sk_buff *skb)
{
	struct traced *t = watch_memory();
	struct judged *j = judged_here(0);
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_TRACE) || !t || !j || !n)
		return TC_ACT_OK;
	__builtin_memcpy(t->hop, n->hop, sizeof(t->hop));
	t->hop_kind = n->hop_kind;
	if (on(FEATURE_SPAN))
		span_out(skb, &j->f, &j->v, j->v.out);
	if (on(FEATURE_ROUTE))
		route_trial(skb, &j->f, &j->v);
	return TC_ACT_OK;
}

/* Makes the packet's state if it has none: 0, or the reason to drop it. */
__noinline u32 hop_begin(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	u32 out;

	if (!on(FEATURE_PF_HOPS) || !j)
		return DROP_PF_ROUTE;
	if (!pf_hop_wanted())
		return 0;
	/* where it leaves is not known yet if it goes elsewhere than its frame says */
	out = j->v.out ? port_at(j->v.out)->id : 0;
	return pf_settled(skb, pf_hop_make(port_at(j->v.in)->id, out, clock_now()));
}

/* Does all the rest of it. `reason` is that of hop_begin(). */
static __always_inline int hop_skb(struct __sk_buff *skb, u32 reason)
{
	struct judged *j = judged_here(0);

	if (!j)
		return TC_ACT_SHOT;
	if (!reason && pf_cross() != PF_CROSS_HOP) {
		if (pf_cross() == PF_CROSS_COPY && hop_copies(skb))
			return j->f.len ? hop_go(skb) : TC_ACT_SHOT;
		if (on(FEATURE_TRACE))
			return hop_tell_copy(skb);
		return send_skb(skb, &j->f, &j->v, false, 0);
	}
	if (!reason)
		reason = hop_find(skb);
	return reason ? hop_refuse(skb, reason) : hop_send(skb);
}
#endif
