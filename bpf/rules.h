/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * MAC rules: the first matching rule decides whether a frame passes. Rules are not walked over but
 * looked up (tuple-space search). Rules that compare the same fields share a mask. One look into a
 * hash map finds the first rule of a mask that matches. Match of Go's package rule defines the
 * meaning of rules; its Compile makes their masks and keys.
 */
#pragma once

#include "front.h"

enum rule_direction {
	RULE_IN,
	RULE_OUT,
};

#define RULE_NONE (~0u) /* above every turn */
#define RULE_TURN(turn) ((u32)(turn) << 16) /* the rule's number is below the turn */

/* The words of an ARP packet of IPv4 over Ethernet (RFC 826), as they are loaded. */
struct rule_arp {
	u32 word[7];
};

struct rule_search {
	struct rule_key frame; /* all fields that rules may compare */
	struct rule_key key; /* the fields that the rules of one mask compare */
	struct rule_arp arp;
	u32 arp_at;
	u32 best; /* lowest turn found, with its rule's number */
};

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum rule_kind *rule_kind_type __attribute__((unused));

WORK_HOLDS(struct rule_search);

/*
 * Looks for a rule of the mask. Returns false if neither this mask nor those behind it can have a
 * rule that comes before the best one so far.
 */
static __always_inline bool rule_try(struct rule_search *s, const struct rule_mask *m, bool arp)
{
	const struct rule_key *f = &s->frame;
	struct rule_key *key = &s->key;
	u16 kind = m->kind;
	u32 *number;

	if (!m->first || s->best < RULE_TURN(m->first))
		return false;
	key->src = kind & RULE_SRC ? f->src : 0;
	key->dst = kind & RULE_DST ? f->dst : 0;
	key->sha = arp && kind & RULE_SHA ? f->sha : 0;
	key->tha = arp && kind & RULE_THA ? f->tha : 0;
	key->spa = arp && kind & RULE_SPA ? f->spa : 0;
	key->tpa = arp && kind & RULE_TPA ? f->tpa : 0;
	key->kind = kind & f->kind;
	key->list = f->list;
	number = bpf_map_lookup_elem(&rule_numbers, key);
	if (number && *number < s->best)
		s->best = *number;
	return true;
}

static long rule_try_arp(u32 n, struct rule_search **search)
{
	u32 at = (*search)->arp_at + n;
	struct rule_list *l = bpf_map_lookup_elem(&rule_lists, &at);

	return !l || !rule_try(*search, &l->plain[0], true);
}

/*
 * The protocol and the lengths of addresses, in the first words of ARP. The hardware type is not
 * checked: stations accept type 6, IEEE 802, for Ethernet's.
 */
#define ARP_IPV4 0x0008
#define ARP_LENGTHS 0x0406

/*
 * Adds the fields of the ARP or RARP packet at `front`. Returns false if rules cannot look into the
 * packet.
 */
static __always_inline bool rule_read_arp(const struct hook *h, struct rule_search *s, u32 front)
{
	const u32 *word = s->arp.word;
	u16 type = FRONT_TYPE(front);
	u32 kind = 0;

	if ((type != bpf_htons(ETH_P_ARP) && type != bpf_htons(ETH_P_RARP)) ||
	    frame_bytes(h, FRONT_AT(front), &s->arp, sizeof(s->arp)))
		return false;
	if (word[0] >> 16 != ARP_IPV4 || (word[1] & 0xffff) != ARP_LENGTHS)
		return false;
	switch (bpf_ntohl(word[1] & 0xffff0000)) {
	case 1:
		kind = RULE_ARP | RULE_REQUEST;
		break;
	case 2:
		kind = RULE_ARP | RULE_REPLY;
		break;
	case 3: /* RFC 903 */
		kind = RULE_RARP | RULE_REQUEST;
		break;
	case 4:
		kind = RULE_RARP | RULE_REPLY;
		break;
	}
	/* ARP has no operations of RARP, and RARP none of ARP */
	if (!(kind & (type == bpf_htons(ETH_P_ARP) ? RULE_ARP : RULE_RARP)))
		return false;
	s->frame.kind |= kind | RULE_SHA | RULE_SPA | RULE_THA | RULE_TPA;
	s->frame.sha = word[2] | (u64)(word[3] & 0xffff) << 32;
	s->frame.spa = word[3] >> 16 | word[4] << 16;
	s->frame.tha = word[4] >> 16 | (u64)word[5] << 16;
	s->frame.tpa = word[6];
	return true;
}

/* Looks into an ARP or RARP packet at `front`, and then for rules about the packet. */
static __always_inline int rule_find_arp(const struct hook *h, u32 front, u32 masks, u32 at)
{
	struct rule_search *s = work_of(WORK_RULES);

	if (s && rule_read_arp(h, s, front)) {
		s->arp_at = at;
		bpf_loop(masks, rule_try_arp, &s, 0);
	}
	return 0;
}

/* Separate functions save room on the stack: functions that are called in a row share it. */
__noinline int rule_find_arp_skb(struct __sk_buff *skb, u32 front, u32 masks, u32 at)
{
	const struct hook h = {.ctx = skb, .skb = true};

	return rule_find_arp(&h, front, masks, at);
}

__noinline int rule_find_arp_xdp(struct xdp_md *xdp, u32 front, u32 masks, u32 at)
{
	const struct hook h = {.ctx = xdp};

	return rule_find_arp(&h, front, masks, at);
}

/* Flags that rule_find() returns with the rule's number. The number is 0 if no rule matches. */
#define RULE_BLOCKS (1u << 16)
#define RULE_FLEETING (1u << 17) /* frames between the same stations may match others */
#define RULE_UNREAD(reason) ((u32)(reason) << 24) /* the reason why rules cannot judge it */

/* May be set in `at`: the frame is ARP or RARP, or may be. */
#define RULE_IS_ARP (1u << 31)

/* Finds the first rule of list `at` that a frame from src to dst matches. */
static __always_inline u32 rule_find(const struct hook *h, u64 src, u64 dst, u32 at)
{
	u32 best, flags = 0, front;
	struct rule_search *s = work_of(WORK_RULES);
	bool arp = at & RULE_IS_ARP;
	struct rule_list *list;
	struct rule *rule;

	if (!s)
		return 0;
	s->frame.src = src; /* stored first, so that the stack need not keep it */
	s->frame.dst = dst;
	at &= ~RULE_IS_ARP;
	list = bpf_map_lookup_elem(&rule_lists, &at);
	if (!list)
		return 0;
	s->frame.kind = RULE_SRC | RULE_DST;
	s->frame.list = list->number;
	s->best = RULE_NONE;
	for (u32 i = 0; i < RULE_PLAIN_MASKS; i++)
		if (!rule_try(s, &list->plain[i], false))
			break;
	if (arp && list->arp) {
		flags = RULE_FLEETING;
		front = front_read(h);
		if (!FRONT_AT(front))
			return flags | RULE_UNREAD(FRONT_TYPE(front));
		if (h->skb)
			rule_find_arp_skb(h->ctx, front, list->arp, list->arp_at);
		else
			rule_find_arp_xdp(h->ctx, front, list->arp, list->arp_at);
	}
	if (s->best == RULE_NONE)
		return flags;
	best = (u16)s->best;
	rule = bpf_map_lookup_elem(&rules, &best);
	if (!rule)
		return flags;
	return flags | best | (rule->blocks ? RULE_BLOCKS : 0);
}

/* Separate functions, so that rules cost a switch without rules nothing. */
OFTEN __noinline u32 rule_find_skb(struct __sk_buff *skb, u64 src, u64 dst, u32 at)
{
	const struct hook h = {.ctx = skb, .skb = true};

	return rule_find(&h, src, dst, at);
}

OFTEN __noinline u32 rule_find_xdp(struct xdp_md *xdp, u64 src, u64 dst, u32 at)
{
	const struct hook h = {.ctx = xdp};

	return rule_find(&h, src, dst, at);
}

/*
 * Records the first rule of the port that the frame matches, if there is one. Returns 0 or the
 * reason to drop the frame.
 */
static __always_inline u32 rule_blocks(const struct hook *h, const struct frame *f,
				       struct verdict *v, u32 slot, u32 direction)
{
	u32 at = SLOT(slot) * 2 + direction, found;

	if (f->label & LABEL_ARP)
		at |= RULE_IS_ARP;
	found = h->skb ? rule_find_skb(h->ctx, f->src, f->dst, at)
		       : rule_find_xdp(h->ctx, f->src, f->dst, at);
	if (found & RULE_FLEETING)
		v->fleeting = 1;
	if (direction == RULE_IN)
		v->rule_in = found;
	else
		v->rule_out = found;
	if (found >> 24)
		return found >> 24;
	return found & RULE_BLOCKS ? DROP_RULE : 0;
}

static __always_inline void rule_count(u16 number, u32 len)
{
	u32 at = number;
	struct rule_stats *s = number ? bpf_map_lookup_elem(&rule_counters, &at) : 0;

	if (s) {
		s->frames++;
		s->bytes += len;
	}
}

/* Counts a frame for the rules that it matched on the way in and out. */
OFTEN __noinline int rules_count(u32 in, u32 out, u32 len)
{
	rule_count(in, len);
	rule_count(out, len);
	return 0;
}
