/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Decisions that a CPU remembers, since each frame of a conversation needs the same one. A decision
 * is valid in the epoch in which it was made. An epoch ends after a second, and when an address
 * moves or goes. So an address is refreshed and aged at most a second late.
 */
#pragma once

#include "pipeline.h"

struct decision {
	u64 dst; /* with the label, as an FDB key */
	u64 src;
	u32 ifindex;
	u32 epoch;
	u16 in; /* slots */
	u16 out;
	u32 fits; /* bytes of the largest untagged frame that fits the way out */
	/* for features that a plain switch does not have; as in struct verdict */
	u16 vid;
	u16 vlan;
	u16 tag;
	u16 rule_in;
	u16 rule_out;
	u16 pad[3];
};

/* Features for which a decision has more to remember. */
#define FEATURES_KEPT (FEATURE_VLANS | FEATURE_RULES)

struct decisions {
	struct decision at[DECISIONS];
};

MEMORY_HOLDS(struct decisions);

static __always_inline struct decision *decision_cell(const struct frame *f)
{
	u64 h = (f->dst * 3 + f->src + f->ifindex) * 0x9e3779b97f4a7c15ull;
	u32 part = MEMORY_DECISIONS;
	struct decisions *d = bpf_map_lookup_elem(&memory, &part);

	return d ? &d->at[h >> 55 & (DECISIONS - 1)] : 0;
}

static __always_inline bool decision_holds(const struct decision *d, const struct frame *f,
					   u32 epoch)
{
	return d->src == f->src && d->dst == fdb_key(f->dst, f->label) &&
	       d->ifindex == f->ifindex && d->epoch == epoch;
}

/* The VLAN in which the decision looked up addresses. */
static __always_inline u16 decision_vlan(const struct decision *d, const struct frame *f)
{
	return on(FEATURES_KEPT) ? d->vlan : f->label & VID_MASK;
}

/* Fills in the verdict as it was for a frame like this one. */
static __always_inline void decision_recall(const struct decision *d, const struct frame *f,
					    struct verdict *v)
{
	v->in = d->in;
	v->out = d->out;
	if (!on(FEATURES_EACH))
		return;
	v->vlan = decision_vlan(d, f);
	if (!on(FEATURES_KEPT))
		return;
	v->vid = d->vid;
	v->tag = d->tag;
	v->rule_in = d->rule_in;
	v->rule_out = d->rule_out;
}

static __always_inline void decision_keep(struct decision *d, const struct frame *f,
					  const struct verdict *v, u32 epoch, u32 fits)
{
	if (on(FEATURES_EACH | FEATURE_BACKUP | FEATURE_NON_IP) && v->fleeting)
		return;
	d->dst = fdb_key(f->dst, f->label);
	d->src = f->src;
	d->ifindex = f->ifindex;
	d->epoch = epoch;
	d->in = v->in;
	d->out = v->out;
	d->fits = fits;
	if (!on(FEATURES_KEPT))
		return;
	d->vid = v->vid;
	d->vlan = v->vlan;
	d->tag = v->tag;
	d->rule_in = v->rule_in;
	d->rule_out = v->rule_out;
}

/*
 * Is the remembered decision valid for this frame, too? It is not if the way out has lost its
 * carrier, or if pf must evaluate its rules. In that case nothing is decided, and the verdict only
 * has the facts about the frame: see decide_in().
 */
static __always_inline bool recall(const struct hook *h, const struct frame *f,
				   const struct decision *d, struct verdict *v, u32 now)
{
	if (on(FEATURE_BACKUP) && port_lost(h->devices, port_at(d->out)->id))
		return false;
	if (on(FEATURE_PF)) {
		v->in = d->in;
		v->vlan = decision_vlan(d, f);
		if (!pf_find(h, v, d->out, now))
			return false;
	}
	decision_recall(d, f, v);
	return true;
}

/*
 * Looks at each frame whose decision is remembered, for the features that must see it. Returns 0,
 * or the reason to drop the frame. A trial remembers nothing, so it does not come here.
 */
static __always_inline u32 each_frame(const struct hook *h, const struct frame *f,
				      struct verdict *v, u32 now)
{
	u32 reason = 0;

	if (h->skb && on(FEATURE_SPAN))
		span_in(h->ctx, f, v->in);
	if (on(FEATURES_JUDGE) && h->skb)
		reason = unfinished_judge(h->ctx);
	if (on(FEATURE_GUARD) && !reason)
		reason = ask_guard(h, f, v, port_at(v->in));
	if (h->skb && on(FEATURE_RULES) && reason)
		v->rule_in = v->rule_out = 0; /* come_in() would not have reached the rules */
	if (on(FEATURE_PF) && h->skb && !reason && v->pf == PF_LOOK_STATE) {
		reason = pf_follow_each(h, v, now);
		if (h->skb && on(FEATURE_RULES) && reason)
			v->rule_out = 0; /* nor go_out() this rule */
	}
	return reason;
}
