/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * pf rules for frames, whatever they carry (FreeBSD's ether rules). They are few, and tried one
 * after another. The last matching rule applies, or the first with `quick`.
 */
#pragma once

#include "rules.h"

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum pf_ether_flag *pf_ether_flag_type __attribute__((unused));

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pf_ether);
} pf_ethers SEC(".maps");

struct pf_ether_walk {
	u64 src; /* MACs */
	u64 dst;
	u64 tables[2]; /* tables that contain the frame's IP addresses */
	u32 slot;
	u32 direction; /* enum pf_ether_flag of the direction */
	u32 tag;
	u32 blocks;
	u32 fleeting; /* a rule has looked at more than the addresses */
	u32 ip; /* the frame has IP addresses */
	u32 tags; /* FRONT_TAGS in front of the packet, or beside it, on arrival */
	u16 type; /* EtherType behind the tags */
	u32 unread; /* reason why the frame's contents are unreadable, or 0 */
	u32 reason; /* reason to drop the frame without a rule, or 0 */
	struct pf_prefix address[2]; /* source, destination */
};

WORK_HOLDS(struct pf_ether_walk);

static __always_inline struct pf_ether_walk *pf_ether_walk(void)
{
	return work_of(WORK_PF_ETHER);
}

/* Is the address in the network? */
static __always_inline bool pf_in_prefix(const struct pf_prefix *net, const struct pf_prefix *a)
{
	const u32 *x = (const u32 *)net->address, *y = (const u32 *)a->address;

#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		u32 differ = bpf_ntohl(x[i] ^ y[i]);

		if (net->bits <= i * 32)
			return true;
		if (net->bits < i * 32 + 32)
			return !(differ >> (32 - (net->bits & 31)));
		if (differ)
			return false;
	}
	return true;
}

/*
 * Does one of the IP addresses match the rule's condition? A frame without IP addresses does not
 * match any condition.
 */
static __always_inline bool pf_ether_l3(const struct pf_ether_walk *w, const struct pf_ether *r,
					u32 which, u32 not)
{
	u32 table = r->table[which];

	if (!table && !r->l3[which].bits)
		return true;
	if (!w->ip)
		return false;
	if (table)
		return pf_holds(w->tables[which] >> ((table - 1) & 63) & 1, not);
	return pf_holds(pf_in_prefix(&r->l3[which], &w->address[which]), not);
}

static __always_inline bool pf_ether_matches(struct pf_ether_walk *w, const struct pf_ether *r)
{
	bool looks;

	if (!(r->flags & w->direction) || (r->ports && !pf_in_set(r->ports, w->slot)))
		return false;
	if (!pf_holds((w->src & r->src_mask) == r->src, r->flags & PF_ETHER_NOT_SRC) ||
	    !pf_holds((w->dst & r->dst_mask) == r->dst, r->flags & PF_ETHER_NOT_DST))
		return false;
	/* the conditions below may differ among frames between the same stations */
	looks = r->type || r->table[0] || r->table[1] || r->l3[0].bits || r->l3[1].bits;
	if (looks || r->tag || r->tagged)
		w->fleeting = true;
	if (looks && w->unread) {
		w->reason = w->unread;
		return true;
	}
	if (r->type && r->type != w->type && !(w->tags & front_tag(r->type)))
		return false;
	if (r->tagged && !pf_holds(w->tag == r->tagged, r->flags & PF_ETHER_NOT_TAGGED))
		return false;
	if (!(cfg.pf.asks & PF_ASK_ETHER_L3))
		return true;
	return pf_ether_l3(w, r, 0, r->flags & PF_ETHER_NOT_L3_SRC) &&
	       pf_ether_l3(w, r, 1, r->flags & PF_ETHER_NOT_L3_DST);
}

/*
 * Tries a rule on the frame. Returns true if this ends the walk. This is a separate function
 * because the verifier follows each step of a walk, but this function once.
 */
OFTEN __noinline u32 pf_ether_rule(u32 n)
{
	struct pf_ether_walk *w = pf_ether_walk();
	struct pf_ether *r = bpf_map_lookup_elem(&pf_ethers, &n);

	if (!on(FEATURE_ETHER) || !w || !r)
		return 1;
	if (!pf_ether_matches(w, r))
		return 0;
	if (w->reason)
		return 1;
	w->blocks = r->action == PF_BLOCK;
	if (r->tag)
		w->tag = r->tag;
	return !!(r->flags & PF_ETHER_QUICK);
}

OFTEN static long pf_ether_step(u32 n, void *unused)
{
	u32 ends = pf_ether_rule(n);

	asm("" : "+r"(ends)); /* else clang knows its range, and the verifier does not */
	return !!ends;
}

/*
 * Reads the EtherTypes, including tags, and IP addresses if rules need them. The tags are the
 * frame's on arrival: a flood changes them from port to port.
 */
static __always_inline void pf_ether_read(const struct hook *h, struct pf_ether_walk *w, u32 out)
{
	u32 front = front_read(h), at = FRONT_AT(front);

	w->type = FRONT_TYPE(front);
	if (!out)
		w->tags = front & FRONT_TAGS;
	w->ip = false;
	w->unread = 0;
	w->reason = 0;
	if (!at) {
		w->unread = w->type;
		w->type = 0;
		return;
	}
	if (!(cfg.pf.asks & PF_ASK_ETHER_L3))
		return;
	if (w->type == bpf_htons(ETH_P_IP)) {
#pragma unroll
		for (int i = 0; i < 2; i++) {
			u32 *word = (u32 *)w->address[i].address;

			word[0] = word[1] = 0;
			word[2] = IPV4_MAPPED;
			if (frame_bytes(h, at + 12 + 4 * i, word + 3, 4))
				return;
		}
	} else if (w->type == bpf_htons(ETH_P_IPV6)) {
		if (frame_bytes(h, at + 8, w->address[0].address, 16) ||
		    frame_bytes(h, at + 24, w->address[1].address, 16))
			return;
	} else {
		return;
	}
	w->ip = true;
	w->address[0].bits = w->address[1].bits = 128;
	if (on(FEATURE_PF_TABLES)) {
		w->tables[0] = pf_tables_of(&w->address[0]);
		w->tables[1] = pf_tables_of(&w->address[1]);
	}
}

/* A flag that pf_ether_try() returns with the reason to drop the frame. */
#define PF_ETHER_FLEETING (1 << 8)

/*
 * Tries the rules on the frame. Their tag is for pf's rules in the same direction, and then for the
 * ether rules on the way out.
 */
static __always_inline u32 pf_ether_try(const struct hook *h, u32 slot, u32 out, u32 judged)
{
	struct pf_ether_walk *w = pf_ether_walk();
	struct pf_packet *p = pf_packet();

	if (!w || !p || frame_bytes(h, 0, &w->dst, ETH_ALEN) ||
	    frame_bytes(h, ETH_ALEN, &w->src, ETH_ALEN))
		return DROP_ETHER;
	w->slot = slot;
	w->direction = pf_call(slot, !!out) ? PF_ETHER_OUT : PF_ETHER_IN;
	w->tag = 0;
	if (out)
		w->tag = judged && p->tag ? p->tag : p->ether_tag[0];
	w->blocks = 0;
	w->fleeting = 0;
	pf_ether_read(h, w, out);
	bpf_loop(cfg.pf.ether_rules ? cfg.pf.ether_rules : 1, pf_ether_step, 0, 0);
	p->ether_tag[out & 1] = w->tag;
	if (!w->reason && w->blocks)
		w->reason = DROP_ETHER;
	return w->reason | (w->fleeting ? PF_ETHER_FLEETING : 0);
}

OFTEN __noinline u32 pf_ether_skb(struct __sk_buff *skb, u32 slot, u32 out, u32 judged)
{
	const struct hook h = {.ctx = skb, .skb = true};

	return on(FEATURE_ETHER) ? pf_ether_try(&h, slot, out, judged) : 0;
}

OFTEN __noinline u32 pf_ether_xdp(struct xdp_md *xdp, u32 slot, u32 out, u32 judged)
{
	const struct hook h = {.ctx = xdp};

	return on(FEATURE_ETHER) ? pf_ether_try(&h, slot, out, judged) : 0;
}

/* Does an ether rule block the frame at the port? Returns 0 or the reason. */
static __always_inline u32 pf_ether(const struct hook *h, const struct frame *f, struct verdict *v,
				    u32 slot, u32 out)
{
	u32 judged = v->pf == PF_LOOK_JUDGE;
	u32 found = h->skb ? pf_ether_skb(h->ctx, slot, out, judged)
			   : pf_ether_xdp(h->ctx, slot, out, judged);

	if (found & PF_ETHER_FLEETING)
		v->fleeting = true;
	return found & (PF_ETHER_FLEETING - 1);
}
