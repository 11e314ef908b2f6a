/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The last part of the way of a packet that has its own next hop, in a separate program: see
 * pf/hop.h. The host's routes determine where the hop is: they are looked up for the next hop
 * instead of the packet's destination. The kernel resolves the neighbour. A packet on its way into
 * the host has its time to live reduced here; one on its way out of the host has it reduced
 * already. A next hop at a host port gets the packet through that port, as if the host had sent it
 * there.
 *
 * If a packet is sent with a copy, the host or the station gets the packet unchanged, and the
 * original becomes the copy.
 */
#pragma once

#include "answer.h"
#include "family.h"
#include "flood.h"
#include "pf/hop.h"
#include "send.h"

#define HOP_CUT_MOST 12160 /* most bytes of a packet that is fragmented, without its header */

/* A packet that this CPU cuts into fragments. */
struct hop_cut {
	u8 data[2 * HOP_CUT_MOST]; /* the second half is only for the verifier */
	u32 at; /* start of the next fragment */
	u32 length;
	u32 step; /* bytes of each but the last */
	u32 ifindex; /* of the way out */
	u32 place; /* of the packet itself, if it is a fragment, in units of 8 bytes */
	u8 more; /* the packet is a fragment, and not the last */
	u8 known; /* the kernel has the neighbour's address */
};

MEMORY_HOLDS(struct hop_cut);

#ifndef DECIDES_AT_ONCE
static __always_inline struct hop_cut *hop_cut_get(void)
{
	u32 part = memory_part(MEMORY_CUT);

	return bpf_map_lookup_elem(&memory, &part);
}

/* Is the packet on its way out of the host? */
static __always_inline bool hop_is_outward(const struct verdict *v)
{
	return pf_to_host(v->in);
}

/* Is the header's checksum correct, including any options? */
static __always_inline bool hop_sums_up(struct __sk_buff *skb, const struct iphdr *ip)
{
	if (ip->ihl == 5)
		return ip4_sums_up(ip);
	return pf_sum(skb, ETHER_HEADER, ETHER_HEADER + ip->ihl * 4, 0) == 0xffff;
}

/*
 * Reads the header of the packet. Returns false if it is not where the host looks for one, or if no
 * router forwards such a packet (RFC 1812, 5.2.2 and 5.3.7). A look-up of the next hop does not
 * check the packet's own addresses.
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
		       hop_sums_up(skb, ip) && ip4_is_plain(ip->saddr) && ip4_is_plain(ip->daddr);
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

/*
 * Looks for the way to the next hop. Returns ROUTE_DONE, or the enum route for which there is none.
 */
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
	/* a look-up that finds a packet too large does not return the way */
	to->tot_len = 1;
	why = route_look_skb(skb, true);
	if (why)
		return why;
	n->hop_mtu = to->mtu_result;
	if (!size)
		return p->length <= to->mtu_result ? ROUTE_DONE : ROUTE_SIZE;
	/* only the helper with the device's MTU measures GSO packets by their segments */
	size += p->l4 - p->l3 + pf_segment_header(p);
	if (!bpf_check_mtu(skb, to->ifindex, &mtu, 0, BPF_MTU_CHK_SEGS) && size <= to->mtu_result)
		return ROUTE_DONE;
	if (mtu < n->hop_mtu)
		n->hop_mtu = mtu;
	return ROUTE_SIZE;
}

/*
 * May the packet, which is too large for its way, be fragmented (RFC 791, 3.2)? It may not if its
 * options would have to be split, if its checksum is unfinished, or if it has no room here. Then
 * its sender is notified as if the packet forbade fragmentation.
 */
static __always_inline bool hop_may_cut(struct __sk_buff *skb, const struct route_memory *memory,
					const struct pf_packet *p)
{
	const struct iphdr *ip = (const struct iphdr *)memory->header;

	return p->family == 4 && ip->ihl == 5 && !(ip->frag_off & bpf_htons(IP4_DF)) &&
	       !skb->gso_size && !checksum_place(skb) && p->length <= sizeof(*ip) + HOP_CUT_MOST;
}

/*
 * Finds the way of the packet to its next hop. Returns 0, or the reason to drop it, with the
 * message for its sender.
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
	n->hop_mtu = 0;
	n->hop_cut = false;
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
	if (why == ROUTE_SIZE && hop_may_cut(skb, memory, p)) {
		n->hop_cut = true;
		return 0;
	}
	if (why == ROUTE_SIZE)
		n->hop_refused = six ? 2 << 8 : 3 << 8 | 4;
	else
		n->hop_refused = six ? 1 << 8 : 3 << 8 | 1;
	return DROP_PF_ROUTE;
}

/* Records the packet's end for `bascule trace`. */
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

/*
 * Exchanges the packet's key behind the translation for its key before all translation, and back.
 */
static __always_inline void hop_turn(struct pf_nat *n)
{
	u64 *was = (u64 *)&n->was, *is = (u64 *)&n->is, word;
	u8 side = n->was_side;

#pragma unroll
	for (u32 i = 0; i < sizeof(n->was) / sizeof(*was); i++) {
		word = was[i];
		was[i] = is[i];
		is[i] = word;
	}
	n->was_side = n->is_side;
	n->is_side = side;
}

/*
 * Restores a translated packet to the form in which its sender sent it, the only one that the
 * sender can recognize. Returns false if that is impossible. n->is then has its key.
 */
__noinline u32 hop_as_sent(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_state *s;

	if (!on(FEATURE_PF_HOPS) || !p || !n)
		return false;
	s = p->state ? pf_state_at(p->state - 1) : 0;
	if (!s || !(s->flags & PF_STATE_NAT)) {
		n->is = p->key;
		n->is_side = p->side;
		return true;
	}
	hop_turn(n);
	return !pf_nat_rewrite(skb);
}

/* Drops the packet, and notifies its sender if required. */
__noinline int hop_refuse(struct __sk_buff *skb, u32 reason)
{
	struct judged *j = judged_here(0);
	struct pf_nat *n = pf_nat();
	u32 what;

	if (!on(FEATURE_PF_HOPS) || !j || !n)
		return TC_ACT_SHOT;
	if (on(FEATURE_TRACE)) {
		hop_tell(skb, j, n, reason);
		return TC_ACT_OK;
	}
	what = n->hop_refused && hop_as_sent(skb) ? n->hop_refused : 0;
	return answer_sender(skb, j, reason, &n->is, n->is_side, what, n->hop_mtu);
}

/*
 * Does the kernel have the neighbour's address already? If so, gives the frame its addresses on
 * that link, which a copy needs: only the packet that leaves last can wait for the neighbour.
 */
__noinline u32 hop_address(struct __sk_buff *skb)
{
	struct route_memory *memory = route_memory_get();
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct bpf_fib_lookup *to;
	u8 addresses[12];

	if (!on(FEATURE_PF_HOPS) || !on(FEATURE_ROUTE) || !memory || !p || !n)
		return false;
	to = route_to(memory);
	hop_ask(to, memory, p, n);
	to->tot_len = 1;
	if (route_look_skb(skb, false))
		return false;
	__builtin_memcpy(addresses, to->dmac, 6);
	__builtin_memcpy(addresses + 6, to->smac, 6);
	return !bpf_skb_store_bytes(skb, 0, addresses, sizeof(addresses), 0);
}

/* Turns the packet into its next fragment, of `len` bytes. */
__noinline u32 hop_fragment(struct __sk_buff *skb, u32 len, u32 more)
{
	struct route_memory *memory = route_memory_get();
	struct hop_cut *c = hop_cut_get();
	struct iphdr *ip;
	u32 at;

	if (!on(FEATURE_PF_HOPS) || !memory || !c)
		return false;
	ip = (struct iphdr *)memory->header;
	at = c->at;
	if (at >= HOP_CUT_MOST || !length_within(&len, HOP_CUT_MOST))
		return false;
	ip->tot_len = bpf_htons(sizeof(*ip) + len);
	ip->frag_off = bpf_htons((c->place + at / 8) | (more ? IP_MORE : 0));
	ip->check = 0;
	ip->check = ~pf_fold(bpf_csum_diff(0, 0, (void *)ip, sizeof(*ip), 0));
	return !bpf_skb_store_bytes(skb, ETHER_HEADER, ip, sizeof(*ip), BPF_F_RECOMPUTE_CSUM) &&
	       !bpf_skb_store_bytes(skb, ETHER_HEADER + sizeof(*ip), c->data + at, len,
				    BPF_F_RECOMPUTE_CSUM);
}

/* Sends the next fragment, if it is not the last. */
static long hop_cut_step(u32 i, struct __sk_buff **skb)
{
	struct hop_cut *c = hop_cut_get();

	if (!c || c->length - c->at <= c->step || !hop_fragment(*skb, c->step, true))
		return 1;
	if (c->known)
		bpf_clone_redirect(*skb, c->ifindex, 0);
	c->at += c->step;
	return 0;
}

/*
 * Sends the packet in fragments as large as its way allows. The packet itself becomes the last one.
 * Returns false if that is impossible. While the kernel resolves the neighbour, only the last
 * fragment is sent, and waits; the others are lost.
 */
__noinline u32 hop_cut_up(struct __sk_buff *skb)
{
	struct route_memory *memory = route_memory_get();
	struct __sk_buff *packet = skb; /* skb itself would be kept on the stack */
	struct hop_cut *c = hop_cut_get();
	struct pf_nat *n = pf_nat();
	const struct iphdr *ip;
	u32 len, left;

	if (!on(FEATURE_PF_HOPS) || !memory || !c || !n)
		return false;
	ip = (const struct iphdr *)memory->header;
	len = memory->len - ETHER_HEADER - sizeof(*ip);
	c->at = 0;
	c->length = len;
	c->step = (n->hop_mtu - sizeof(*ip)) & 0xfff8;
	c->place = bpf_ntohs(ip->frag_off) & ~IP_MORE;
	c->more = !!(ip->frag_off & bpf_htons(IP_MORE));
	c->ifindex = route_back(memory)->ifindex;
	c->known = hop_address(skb);
	if (n->hop_mtu < IP4_MTU_LEAST ||
	    !frame_load(skb, ETHER_HEADER + sizeof(*ip), c->data, len, HOP_CUT_MOST) ||
	    bpf_skb_change_tail(skb, ETHER_HEADER + sizeof(*ip) + c->step, 0))
		return false;
	bpf_loop(HOP_CUT_MOST / 8, hop_cut_step, &packet, 0);
	left = c->length - c->at;
	return left <= c->step && !bpf_skb_change_tail(skb, ETHER_HEADER + sizeof(*ip) + left, 0) &&
	       hop_fragment(skb, left, c->more);
}

/* Marks a packet that leaves the host, in case it comes back into a switch on its way. */
static __always_inline void hop_marks(struct __sk_buff *skb, const struct judged *j, u32 ifindex)
{
	u64 key = ifindex;

	if (!bpf_map_lookup_elem(&gateways, &key))
		return;
	skb->mark = pf_hop_mark(j->v.in);
	barrier(); /* else clang writes this and the priority by one pointer */
}

/* Sends the current packet or fragment to the next hop. */
__noinline int hop_go(struct __sk_buff *skb)
{
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct pf_packet *p = pf_packet();
	struct bpf_redir_neigh *hop;
	struct bpf_fib_lookup *to;
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_HOPS) || !on(FEATURE_ROUTE) || !memory || !j || !p || !n)
		return TC_ACT_SHOT;
	/* the padding of a frame stays on the link of arrival */
	if (skb->len > memory->len && bpf_skb_change_tail(skb, memory->len, 0))
		return TC_ACT_SHOT;
	to = route_back(memory);
	if (hop_is_outward(&j->v)) {
		hop_marks(skb, j, to->ifindex);
	} else {
		if (p->family == 6 ? !route_ages6(skb, memory) : !route_ages4(skb, memory))
			return TC_ACT_SHOT;
		if (p->family == 4)
			route_prefers(skb, memory, ((const struct iphdr *)memory->header)->tos);
	}
	if (n->hop_cut && !hop_cut_up(skb))
		return TC_ACT_SHOT;
	hop = (struct bpf_redir_neigh *)memory->hop;
	*hop = (struct bpf_redir_neigh){.nh_family = to->family};
	__builtin_memcpy(hop->ipv6_nh, to->ipv6_dst, sizeof(hop->ipv6_nh));
	return bpf_redirect_neigh(to->ifindex, hop, sizeof(*hop), 0);
}

/* Counts the packet where it arrives, and where it would leave the switch. */
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
 * Sends a copy of a packet that leaves the host and goes on by a patch cable, or in a flood, which
 * takes the packet itself. The copy is sent if the kernel has the neighbour's address by now, and
 * if it need not be fragmented.
 */
static __always_inline void hop_copy_aside(struct __sk_buff *skb, const struct judged *j)
{
	struct route_memory *memory = route_memory_get();
	struct pf_nat *n = pf_nat();
	u8 addresses[12];
	u32 mark = skb->mark;

	if (!memory || !n || n->hop_cut || bpf_skb_load_bytes(skb, 0, addresses, sizeof(addresses)))
		return;
	if (hop_address(skb)) {
		hop_marks(skb, j, route_to(memory)->ifindex);
		bpf_clone_redirect(skb, route_to(memory)->ifindex, 0);
		skb->mark = mark;
		barrier();
	}
	bpf_skb_store_bytes(skb, 0, addresses, sizeof(addresses), 0);
}

/*
 * Sends the packet unchanged through the port of its destination, and turns it into the copy.
 * Returns true if a copy should be sent. There is no copy if it cannot go to the next hop.
 */
__noinline u32 hop_copies(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	u32 tag;

	if (!on(FEATURE_PF_HOPS) || !j || hop_find(skb) || on(FEATURE_TRACE))
		return false;
	if (on(FEATURE_PATCH) && (port_at(j->v.out)->facts & PORT_PATCH)) {
		hop_copy_aside(skb, j);
		return false;
	}
	if (!hop_count(skb, &j->f, &j->v, true))
		return false;
	tag = on(FEATURE_VLANS) ? tag_with_priority(&j->f, j->v.tag) : j->f.outer;
	if (pf_to_host(j->v.out))
		route_count(j->v.out, ROUTE_TRIP);
	bpf_clone_redirect(skb, port_device(&tcx_devices, j->v.out), 0);
	if (tag && (!on(FEATURE_VLANS) || !skb_retag(skb, tag, 0)))
		j->f.len = 0;
	return true;
}

/* Records the same for a packet that goes on like others. */
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

/* Makes the packet's state if it has none. Returns 0, or the reason to drop the packet. */
__noinline u32 hop_begin(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	struct pf_nat *n = pf_nat();
	u32 out;

	if (!on(FEATURE_PF_HOPS) || !j || !n)
		return DROP_PF_ROUTE;
	n->hop_refused = 0;
	if (!pf_hop_wanted())
		return 0;
	/* the way out is not known yet if it differs from the frame's destination */
	out = j->v.out ? port_at(j->v.out)->id : 0;
	return pf_settled(skb, pf_hop_make(port_at(j->v.in)->id, out, clock_now()));
}

/*
 * Floods a packet from the host whose destination the switch does not know. It has its state, and
 * the ports do not make another. A copy is sent like one beside a cable: if it can leave at once.
 */
static __always_inline int hop_flood(struct __sk_buff *skb, struct judged *j, u32 reason)
{
	struct pf_packet *p = pf_packet();

	if (!p)
		return TC_ACT_SHOT;
	if (reason) {
		account_drop(skb, j->v.in, capture_vlans(&j->v), reason);
		return TC_ACT_SHOT;
	}
	p->made = 1;
	if (pf_cross() == PF_CROSS_COPY && !on(FEATURE_TRACE) && !hop_find(skb))
		hop_copy_aside(skb, j);
	return flood_judged(skb, false, true);
}

/* Does all the rest. `reason` is the result of hop_begin(). */
static __always_inline int hop_skb(struct __sk_buff *skb, u32 reason)
{
	struct judged *j = judged_here(0);

	if (!j)
		return TC_ACT_SHOT;
	if (j->v.flood)
		return hop_flood(skb, j, reason);
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
