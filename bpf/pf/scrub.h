/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Changes that rules make to packets (scrub, set tos). The changes of match rules and of the
 * deciding rule add up, on the way in and on the way out. A state keeps the sum, and all its
 * packets are changed like this, in both directions.
 */
#pragma once

#include "options.h"
#include "state.h"

/* Adds the changes of one more rule. The later rule wins (pf_rule_to_actions()). */
static __always_inline void pf_scrub_add(struct pf_scrub *sum, const struct pf_scrub *rule)
{
	if (rule->max_mss)
		sum->max_mss = rule->max_mss;
	if (rule->min_ttl)
		sum->min_ttl = rule->min_ttl;
	if (rule->flags & PF_SCRUB_TOS)
		sum->tos = rule->tos;
	sum->flags |= rule->flags;
}

/*
 * Joins the changes of the rules on the way in and out. The effect is the same as both changes, one
 * after the other. The sum replaces the changes on the way in. In a flood, the rules of the first
 * port count.
 */
static __always_inline void pf_scrub_join(struct pf_packet *p)
{
	struct pf_scrub *in = &p->scrub[0], *out = &p->scrub[1];

	if (out->max_mss && (!in->max_mss || out->max_mss < in->max_mss))
		in->max_mss = out->max_mss;
	if (out->min_ttl > in->min_ttl)
		in->min_ttl = out->min_ttl;
	if (out->flags & PF_SCRUB_TOS)
		in->tos = out->tos;
	in->flags |= out->flags;
	*out = (struct pf_scrub){};
}

/*
 * Removes `reassemble tcp` if `other` is not 0: it is about a connection that cannot have it. This
 * has no condition, both of whose ways the verifier would follow.
 */
static __always_inline void pf_scrub_of(struct pf_packet *p, u32 other)
{
	p->scrub[0].flags &= ~PF_SCRUB_REASSEMBLE | ((other - 1) >> 28 & PF_SCRUB_REASSEMBLE);
}

/* Is there anything to change? */
static __always_inline bool pf_scrubs(const struct pf_scrub *c)
{
	return c->max_mss | c->min_ttl | c->flags;
}

#define PF_KEPT_TOS (1u << 16) /* bits of these, above the second side's packets */
#define PF_KEPT_REASSEMBLE (1u << 17)

/* Writes the changes to a state's packets into the state. */
static __always_inline void pf_scrub_keep(struct pf_state *s, const struct pf_scrub *c)
{
	u64 first = c->max_mss | (c->flags & (PF_SCRUB_NO_DF | PF_SCRUB_RANDOM_ID)) << 16;
	u64 second = c->min_ttl | c->tos << 8 | (c->flags & PF_SCRUB_TOS ? PF_KEPT_TOS : 0);

	if (on(FEATURE_PF_REASSEMBLE))
		second |= c->flags / PF_SCRUB_REASSEMBLE % 2 * PF_KEPT_REASSEMBLE;

	if (!pf_scrubs(c))
		return;
	s->flags |= PF_STATE_SCRUB;
	s->packets[0] |= first << PF_SENT_BITS;
	s->packets[1] |= second << PF_SENT_BITS;
}

/* Reads them from the state. */
static __always_inline void pf_scrub_kept(struct pf_scrub *c, const struct pf_state *s)
{
	u32 first = s->packets[0] >> PF_SENT_BITS, second = s->packets[1] >> PF_SENT_BITS;

	c->max_mss = first;
	c->min_ttl = second;
	c->tos = second >> 8;
	c->flags = first >> 16 | (second & PF_KEPT_TOS ? PF_SCRUB_TOS : 0);
}

/* Does a rule of the state have `reassemble tcp`? */
static __always_inline bool pf_reassembles(const struct pf_state *s)
{
	return s->packets[1] >> PF_SENT_BITS & PF_KEPT_REASSEMBLE;
}

#define PF_ECN 3 /* bits of the TOS byte that tos does not change (RFC 3168, 5) */
#define PF_CLASS6 0x0fc00000 /* the bits that it changes, in the first word of an IPv6 header */

static __always_inline void pf_scrub_ip4(struct __sk_buff *skb, const struct pf_scrub *c, u32 at)
{
	u8 ip[10] = {};
	u16 was, is;

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)))
		return;
	was = *(u16 *)(ip + 6);
	is = c->flags & PF_SCRUB_NO_DF ? was & bpf_htons(~IP4_DF) : was;
	pf_patch_ip4(skb, at, 6, was, is);
	/* not in fragments, whose id identifies their packet */
	if ((c->flags & PF_SCRUB_RANDOM_ID) && !(was & bpf_htons(~IP4_DF)))
		pf_patch_ip4(skb, at, 4, *(u16 *)(ip + 4), bpf_get_prandom_u32());
	if (ip[8] < c->min_ttl)
		pf_patch_ip4(skb, at, 8, *(u16 *)(ip + 8), bpf_htons(c->min_ttl << 8 | ip[9]));
	if (c->flags & PF_SCRUB_TOS)
		pf_patch_ip4(skb, at, 0, *(u16 *)ip,
			     bpf_htons(ip[0] << 8 | c->tos | (ip[1] & PF_ECN)));
}

static __always_inline void pf_scrub_ip6(struct __sk_buff *skb, const struct pf_scrub *c, u32 at)
{
	u32 ip[2] = {}; /* a device's checksum of the whole frame covers these, too */
	u8 *ttl = (u8 *)ip + 7;

	if (bpf_skb_load_bytes(skb, at, ip, sizeof(ip)))
		return;
	if (*ttl < c->min_ttl)
		*ttl = c->min_ttl;
	if (c->flags & PF_SCRUB_TOS)
		ip[0] = (ip[0] & bpf_htonl(~PF_CLASS6)) | bpf_htonl((u32)c->tos << 20);
	bpf_skb_store_bytes(skb, at, ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM);
}

/* Changes this CPU's packet by p->scrub[0] or, if it has a state (its place + 1), by the state. */
__noinline int pf_scrub_packet(struct __sk_buff *skb, u32 state)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = state ? pf_state_at(state - 1) : 0;
	struct pf_scrub *c;

	if (!on(FEATURE_PF_SCRUB) || !p)
		return 0;
	c = &p->scrub[0];
	if (s)
		pf_scrub_kept(c, s);
	else
		pf_scrub_join(p);
	if (!pf_scrubs(c))
		return 0;
	if (p->family == 4)
		pf_scrub_ip4(skb, c, p->l3);
	else
		pf_scrub_ip6(skb, c, p->l3);
	if (c->max_mss && p->proto == IPPROTO_TCP && !(p->flags & PF_P_LATER) &&
	    pf_has_options(skb, p))
		pf_walk_options(skb, 0, c->max_mss);
	return 0;
}
