/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The last part of the way of a packet that changes to the other family, in a separate program: the
 * decision that the packet goes to the host has been made. pf/across.h has the translated packet
 * and the structs.
 *
 * At a routed host port the datapath routes the translated packet by the host's own routes, like
 * any other packet. The host's stack would drop a packet that arrives with the host's own address
 * as its source, which NAT64 usually gives to packets. So the datapath also routes packets that
 * route.h would leave to the stack to resolve a neighbour. Packets that cannot go further are
 * answered before translation, in the family of their sender.
 */
#pragma once

#include "answer.h"
#include "pf/across.h"
#include "send.h"

/*
 * Programs that end the way of others in the object, in the order of `panelled` in datapath/pf.go.
 */
enum pf_panel_program {
	PF_PANEL_FAMILY,
	PF_PANEL_FIB,
	PF_PANEL_FIB_PATCH, /* the same for a frame that has come by a cable */
	/* the programs that it returns to */
	PF_PANEL_TCX,
	PF_PANEL_PATCH,
	/* for a packet that goes to a next hop of its own: see hop.h */
	PF_PANEL_HOP,
	/* for a packet that needs rare work: see due.h */
	PF_PANEL_DUE,
	PF_PANEL_PROGRAMS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} pf_panel SEC(".maps");

/*
 * The program in which the packet's way ends, as the whole bridge has decided: an enum
 * pf_panel_program + 1, or 0 for none.
 */
static __always_inline u32 panel_asked(const struct verdict *v)
{
	u32 cross;

	if (!on(FEATURE_PF_FAMILY | FEATURE_PF_HOPS) ||
	    (v->pf != PF_LOOK_STATE && v->pf != PF_LOOK_JUDGE))
		return 0;
	cross = pf_cross();
	if (on(FEATURE_PF_HOPS) && cross >= PF_CROSS_STAY && cross <= PF_CROSS_HOP)
		return PF_PANEL_HOP + 1;
	if (on(FEATURE_PF_FAMILY) &&
	    cross == (v->pf == PF_LOOK_STATE ? PF_CROSS_KNOWN : PF_CROSS_NEW))
		return PF_PANEL_FAMILY + 1;
	return 0;
}

#ifndef DECIDES_AT_ONCE
/*
 * The same for the frame of struct judged. With `before`, the frame's way out is not decided yet:
 * then this is only for packets from the host that go elsewhere than to the frame's destination.
 */
OFTEN __noinline u32 panel_judged(bool before)
{
	struct judged *j = judged_here(0);
	u32 asked;

	if (!on(FEATURE_PF_FAMILY | FEATURE_PF_HOPS) || !j)
		return 0;
	asked = panel_asked(&j->v);
	if (before && (!pf_to_host(j->v.in) || pf_cross() != PF_CROSS_HOP))
		return 0;
	return asked;
}

/*
 * Does the program of panel_asked() flood the packet? The program of next hops floods packets from
 * the host that have a next hop: it makes the state, and sends the copy.
 */
__noinline u32 panel_floods(void)
{
	struct judged *j = judged_here(0);

	return on(FEATURE_PF_HOPS) && j && pf_to_host(j->v.in) && pf_cross() != PF_CROSS_HOP &&
	       panel_asked(&j->v) == PF_PANEL_HOP + 1;
}

/*
 * Continues with a packet in the program of panel_asked(). Returns only if that is impossible:
 * cables still have to be followed, and the other program does not come back for them.
 */
static __always_inline void panel_go(struct __sk_buff *skb, bool cable, u32 asked)
{
	struct trip *t = on(FEATURE_PATCH) && cable ? trip_get() : 0;

	if (!t || !t->waits)
		bpf_tail_call(skb, &pf_panel, asked - 1);
}

/* Fills in the look-up of the translated packet. */
static __always_inline void family_ask(struct bpf_fib_lookup *to, const struct pf_family *c,
				       const struct pf_packet *p, struct pf_nat *n)
{
	u32 side = n->is_side & 1;

	*to = (struct bpf_fib_lookup){};
	if (p->flags & PF_P_ERROR) {
		pf_error_source((struct pf_family *)c, n);
		__builtin_memcpy(n->from, n->is.address[side], sizeof(n->from));
	} else {
		__builtin_memcpy(n->to, n->is.address[side], sizeof(n->to));
		__builtin_memcpy(n->from, n->is.address[!side], sizeof(n->from));
		if (pf_nat_has_ports(n->is.proto)) {
			to->sport = n->is.port[side];
			to->dport = n->is.port[!side];
		}
	}
	to->l4_protocol = n->is.proto;
	to->tot_len = c->segment;
	if (c->family == 6) {
		to->family = 10; /* AF_INET6 */
		to->flowinfo = bpf_htonl(c->tos << 20);
		__builtin_memcpy(to->ipv6_src, n->to, 16);
		__builtin_memcpy(to->ipv6_dst, n->from, 16);
	} else {
		to->family = 2; /* AF_INET */
		to->tos = c->tos;
		to->ipv4_src = n->to[3];
		to->ipv4_dst = n->from[3];
	}
}

/*
 * Finds out where the host would send the packet. Returns ROUTE_DONE, ROUTE_SIZE if the packet is
 * too large for its way, or the reason to leave it to the host.
 */
static __always_inline u32 family_route(struct __sk_buff *skb, struct judged *j,
					struct pf_family *c)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct route_memory *memory = route_memory_get();
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct bpf_fib_lookup *to;
	u32 why;

	if (!memory || !p || !n)
		return ROUTE_AWAY;
	if (skb->mark)
		return ROUTE_CHOICE;
	if (on(FEATURE_VLANS) && tag_with_priority(&j->f, j->v.tag))
		return ROUTE_TAG;
	why = route_interface(&h, memory, j->v.out, j->f.dst);
	if (why)
		return why;
	if (!route_domain(memory))
		return ROUTE_TAKEN;
	if (route_guarded(memory))
		return ROUTE_IPSEC;
	if (c->family == 6) {
		if (!route_forwards6(memory))
			return ROUTE_OFF;
		if (route_suppresses())
			return ROUTE_CHOICE;
	}
	to = route_to(memory);
	family_ask(to, c, p, n);
	/* the source of an error may be any address */
	if (!pf_is_routed(n->to, c->family == 4) || !pf_is_routed(n->from, c->family == 4))
		return ROUTE_ADDRESS;
	why = route_look_skb(skb, false);
	if (why == ROUTE_SIZE)
		c->mtu = to->mtu_result;
	/* the kernel resolves the neighbour, but a trial should report that there is none */
	if (why && (why != ROUTE_NEIGHBOUR || memory->vrf || on(FEATURE_TRACE)))
		return why;
	c->ifindex = to->ifindex;
	return ROUTE_DONE;
}

/* Makes the packet's state if it has none. Returns 0, or the reason to drop the packet. */
__noinline u32 family_begin(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	u32 reason = DROP_PF_TRANSLATE;

	if (!on(FEATURE_PF_FAMILY) || !j)
		return reason;
	if (pf_to_host(j->v.out))
		reason = pf_family_begin(skb, port_at(j->v.in)->id, port_at(j->v.out)->id,
					 clock_now());
	if (on(FEATURE_PF_LOG) && j->v.pf == PF_LOOK_JUDGE)
		pf_log_due(skb, reason);
	return reason;
}

/* Finds the way of the packet. Returns 0, or the reason to drop the packet. */
__noinline u32 family_way(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	struct pf_family *c = pf_family();
	struct pf_packet *p = pf_packet();
	u32 reason, mtu = 0;

	if (!on(FEATURE_PF_FAMILY) || !j || !c || !p)
		return DROP_PF_TRANSLATE;
	reason = pf_family_read(skb);
	if (reason)
		return reason;
	if (c->refused)
		return DROP_PF_TRANSLATE;
	c->why = ROUTE_OTHER;
	if (on(FEATURE_ROUTE) && (port_at(j->v.out)->flags & PORT_ROUTE))
		c->why = family_route(skb, j, c);
	if (c->why == ROUTE_DONE)
		return 0;
	/* the host's stack fragments packets that allow it */
	if (c->why == ROUTE_SIZE && c->family == 4 && c->length <= PF_MAY_FRAGMENT)
		return 0;
	if (c->why != ROUTE_SIZE) {
		c->mtu = 0;
		if (bpf_check_mtu(skb, port_fits(&tcx_devices, j->v.out), &mtu, 0, 0) < 0)
			return DROP_PF_TRANSLATE;
		if (c->segment <= mtu)
			return 0;
		c->mtu = mtu;
	}
	c->refused = p->family == 4 ? 3 << 8 | 4 : 2 << 8;
	c->mtu = p->family == 4 ? c->mtu - PF_GROWS : c->mtu + PF_GROWS;
	/*
	 * A sender that permits fragmentation may get fragments, which have one more header in
	 * IPv6.
	 */
	if (p->family == 4 && !(((struct iphdr *)c->old)->frag_off & bpf_htons(IP4_DF)))
		c->mtu -= PF_FRAGMENT6;
	return DROP_PF_TRANSLATE;
}

/* Records for `bascule trace` where the packet goes. */
static __always_inline void family_tell(struct __sk_buff *skb, struct judged *j,
					const struct pf_family *c, u32 reason)
{
	struct route_memory *memory = route_memory_get();

	TRACE(step, reason ? STEP_PF_OUT : STEP_SEND);
	TRACE(action, reason ? ACTION_DROP : ACTION_SEND);
	TRACE(reason, reason);
	if (reason)
		return;
	if (on(FEATURE_SPAN))
		span_out(skb, &j->f, &j->v, j->v.out);
	if (!on(FEATURE_ROUTE) || !(port_at(j->v.out)->flags & PORT_ROUTE) || !memory)
		return;
	if (c->ifindex)
		route_tell(route_to(memory));
	TRACE(route, c->why + 1);
}

/* Drops the packet, and notifies its sender if required. */
__noinline int family_refuse(struct __sk_buff *skb, u32 reason)
{
	struct judged *j = judged_here(0);
	struct pf_family *c = pf_family();
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_FAMILY) || !j || !c || !n)
		return TC_ACT_SHOT;
	if (on(FEATURE_TRACE)) {
		family_tell(skb, j, c, reason);
		return TC_ACT_OK;
	}
	return answer_sender(skb, j, reason, &n->was, n->was_side, c->refused, c->mtu);
}

/* Counts and sends the translated packet. */
__noinline int family_send(struct __sk_buff *skb)
{
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct pf_family *c = pf_family();
	struct bpf_redir_neigh *hop;
	struct bpf_fib_lookup *to;
	const struct verdict *v;
	struct frame *f;

	if (!on(FEATURE_PF_FAMILY) || !memory || !j || !c)
		return TC_ACT_SHOT;
	f = &j->f;
	v = &j->v;
	if (on(FEATURE_TRACE)) {
		family_tell(skb, j, c, 0);
		return TC_ACT_OK;
	}
	count_rx(v->in, f->len);
	count_tx(v->out, f->len);
	note_in(f, v);
	if (on(FEATURE_SAMPLE))
		sample_in(skb, v->in | v->out << 16, capture_vlans(v), 0);
	if (on(FEATURE_CAPTURE))
		capture_frame(skb, v->in, capture_vlans(v), CAPTURE_IN, 0);
	if (on(FEATURES_SEND) &&
	    !prepare_skb(skb, f, v, v->out, f->outer,
			 on(FEATURE_VLANS) ? tag_with_priority(f, v->tag) : f->outer))
		return TC_ACT_SHOT;
	if (on(FEATURE_ROUTE) && (port_at(v->out)->flags & PORT_ROUTE))
		route_count(v->out, c->ifindex ? ROUTE_DEVICE : c->why);
	if (on(FEATURE_ROUTE) && c->ifindex) {
		to = route_to(memory);
		if (c->family == 4)
			route_prefers(skb, memory, c->tos);
		hop = (struct bpf_redir_neigh *)memory->hop;
		*hop = (struct bpf_redir_neigh){.nh_family = to->family};
		__builtin_memcpy(hop->ipv6_nh, to->ipv6_dst, sizeof(hop->ipv6_nh));
		return bpf_redirect_neigh(c->ifindex, hop, sizeof(*hop), 0);
	}
	if (on(FEATURE_PEER) && f->dst == port_at(v->out)->straight)
		return bpf_redirect_peer(port_at(v->out)->ifindex, 0);
	return bpf_redirect(port_device(&tcx_devices, v->out), 0);
}

/* Does all of it. */
static __always_inline int family_skb(struct __sk_buff *skb)
{
	struct pf_family *c;
	u32 reason;

	reason = family_begin(skb);
	if (!reason)
		reason = family_way(skb);
	c = pf_family();
	if (!reason && c)
		reason = pf_family_write(skb, c->ifindex ? 1 : 0);
	return reason ? family_refuse(skb, reason) : family_send(skb);
}
#endif
