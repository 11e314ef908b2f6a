/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Packets of translated connections, rewritten by their states. */
#pragma once

#include "keys.h"
#include "quoted.h"

/* Records the translated packet for `bascule trace`. */
static __always_inline void pf_nat_tell(const struct pf_nat *n)
{
	struct traced *t = watch_memory();
	u32 side = n->is_side & 1;
	bool own = pf_nat_has_ports(n->is.proto);

	if (!t)
		return;
	__builtin_memcpy(t->nat_src, n->is.address[side], 16);
	__builtin_memcpy(t->nat_dst, n->is.address[!side], 16);
	t->nat_sport = n->is.port[own && side];
	t->nat_dport = own ? n->is.port[!side] : 0;
	t->nat_proto = n->is.proto;
}

/* Rewrites this CPU's packet from n->was to n->is. Returns 0, or the reason to drop it. */
OFTEN __noinline u32 pf_nat_rewrite(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 done;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	if (on(FEATURE_TRACE))
		pf_nat_tell(n);
	done = p->flags & PF_P_ERROR ? pf_nat_error(skb, p, n) : pf_nat_header(skb);
	return done ? 0 : DROP_PF_TRANSLATE;
}

/* Rewrites this CPU's packet by its state, which is known. Returns 0, or the reason to drop it. */
OFTEN __noinline u32 pf_nat_follow(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_state *s, *k;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	s = pf_state_at(p->state - 1);
	if (!s || !(s->flags & PF_STATE_NAT) ||
	    (on(FEATURE_PF_FAMILY) && n->cross >= PF_CROSS_KNOWN))
		return 0;
	k = pf_state_second(s, p->state);
	if (!k)
		return DROP_PF_TRANSLATE;
	pf_nat_keys(n, p, s, k, n->out);
	return pf_nat_rewrite(skb);
}
