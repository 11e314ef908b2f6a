/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Next hops: route-to, reply-to and dup-to, and instead of one a socket of the host: divert-to and
 * divert-reply, see ../divert.h. A rule that passes the first packet of a connection at a host port
 * chooses the next hop of some of its packets, and the state keeps it. These go there past the
 * host's routes, in a separate program: see ../hop.h. A packet that cannot go there is dropped. It
 * never goes on as if no rule had set a next hop.
 */
#pragma once

#include "translate.h"

/* Does the packet have such a mark? It is cleared here. */
static __always_inline bool pf_hop_marked(struct __sk_buff *skb, struct pf_nat *n, u32 slot)
{
	n->mark = skb->mark;
	if ((n->mark & PF_HOP_MASK) != PF_HOP_MARK || !pf_to_host(slot))
		return false;
	skb->mark = 0;
	return true;
}

/* Is the kind about packets in the first packet's direction, not about answers? */
static __always_inline bool pf_hop_is_first(u32 kind)
{
	return kind == PF_ROUTE_TO || kind == PF_DIVERT_TO;
}

/* Records the next hop of this CPU's packet, whose state at a place is known. */
__noinline int pf_hop_known(u32 place)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_state *s = pf_state_at(place);
	struct pf_second *k;

	if (!on(FEATURE_PF_HOPS) || !p || !n || !s)
		return 0;
	k = pf_second_at(s);
	if (!k)
		return 0;
	__builtin_memcpy(n->hop, k->hop, sizeof(n->hop));
	n->hop_kind = k->kind;
	n->hop_port = k->hop_port;
	if (n->marked)
		n->cross = pf_hop_seen(n, s) ? PF_CROSS_DONE : PF_CROSS_NOT;
	else if (k->kind == PF_DUP_TO)
		n->cross = PF_CROSS_COPY;
	else if (pf_hop_is_first(k->kind) == pf_forward(p, s))
		n->cross = PF_CROSS_HOP;
	return 0;
}

/*
 * Records that the rule (number + 1) which passes the packet sets a next hop. Returns 0, or the
 * reason to drop the packet. Rules do so at host ports, for packets between a station and the host.
 */
__noinline u32 pf_hop_ruled(u32 rule)
{
	struct pf_packet *p = pf_packet();
	struct pf_rule *r = pf_rule_at(rule);
	struct pf_nat *n = pf_nat();
	struct pf_state *s;
	u32 kind;

	if (!on(FEATURE_PF_HOPS) || !p || !n || !r || !r->routes || pf_discovers(p))
		return 0;
	kind = pf_word(r->route) & 0xff;
	if (!pf_to_host(p->slot))
		return r->flags & PF_ROUTES_ON ? pf_hop_reason(kind) : 0;
	/* a rule for both directions only diverts in one */
	if ((kind == PF_DIVERT_TO && !p->direction) || (kind == PF_DIVERT_REPLY && p->direction))
		return 0;
	if (p->how & PF_KNOWN) {
		/* a connection that has a state gets no next hop any more */
		s = pf_state_at(p->state - 1);
		return kind == PF_DUP_TO || kind == PF_DIVERT_REPLY ||
				       (s && (s->flags & PF_STATE_HOP))
			       ? 0
			       : pf_hop_reason(kind);
	}
	/* a flood has no state that would keep it */
	if (p->how & PF_FLOOD)
		return kind == PF_DUP_TO ? 0 : pf_hop_reason(kind);
	if (!(p->key.vlan & PF_ROUTED) || (p->flags & PF_P_STATELESS))
		return pf_hop_is_first(kind) ? pf_hop_reason(kind) : 0;
	n->hop_rule = rule;
	n->hop_kind = kind;
	/* pf sends it once: rules that send it to and fro would loop for ever */
	if (n->marked)
		kind = PF_REPLY_TO;
	n->cross = pf_hop_is_first(kind) ? PF_CROSS_HOP
		   : kind == PF_DUP_TO	 ? PF_CROSS_COPY
					 : PF_CROSS_STAY;
	return 0;
}

/* Chooses the next hop of the packet's connection. Returns false if there is none. */
__noinline u32 pf_hop_choose(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_rule *r;

	if (!on(FEATURE_PF_HOPS) || !p || !n)
		return false;
	r = pf_rule_at(n->hop_rule);
	if (!r || !r->routes)
		return false;
	if (!n->on) {
		pf_nat_begin(n, p);
		n->on = false;
		n->is = n->was;
		n->is_side = n->was_side;
	}
	n->rule = n->hop_rule;
	n->at = r->route;
	pf_words_read(n->at, &n->t, sizeof(n->t));
	if (n->t.family != p->family && r->routes > 1) {
		n->at += PF_WORDS_OF(n->t) + n->t.networks * PF_WORDS_OF(n->network);
		pf_words_read(n->at, &n->t, sizeof(n->t));
	}
	if (n->t.family != p->family)
		return false;
	/* the pool uses the packet's original source */
	__builtin_memcpy(n->from, n->now.src, sizeof(n->from));
	__builtin_memcpy(n->now.src, n->was.address[n->was_side & 1], sizeof(n->now.src));
	n->found = pf_pool_choose(PF_POOL_HOP, false);
	__builtin_memcpy(n->now.src, n->from, sizeof(n->from));
	__builtin_memcpy(n->hop, n->to, sizeof(n->hop));
	n->hop_kind = n->t.kind;
	n->hop_port = bpf_htons(n->t.low);
	return n->found;
}

/*
 * Makes the state of a packet whose rule sets a next hop. Returns 0, or the reason for a failure.
 * Then the packet must not be sent.
 */
static __always_inline u32 pf_hop_make(u32 in, u32 out, u32 now)
{
	struct pf_nat *n = pf_nat();
	u32 reason;

	if (!on(FEATURE_PF_HOPS) || !n)
		return DROP_PF_ROUTE;
	if (!pf_hop_choose())
		return pf_hop_reason(n->hop_kind);
	reason = pf_nat_make(in, out, now);
	return reason == DROP_PF_TRANSLATE && !n->on ? pf_hop_reason(n->hop_kind) : reason;
}
