/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The decision on a frame, from its port of arrival to the port through which it leaves. Both
 * hooks make the same decision. Each hook has its own way to send a frame: see tcx.h and
 * xdp.h.
 *
 * The switch makes its checks in this order, and drops the frame at the first one that fails:
 *
 * 1. Which port does the frame arrive at? If at none, the kernel keeps the frame. Span
 *    ports get their copies here.
 * 2. Is it for a reserved address? Then a protocol between neighbours may take it. If none
 *    does, it goes no further, unless group-fwd-mask lets it pass. Sockets of the host at the
 *    port's device may receive it then.
 * 3. Is its source the address of a station?
 * 4. May the frame enter? come_in() checks this for the features that a plain switch lacks:
 *    blocked ports, VLANs, loops, locked ports, guards, storm limits, rules and pf.
 * 5. The switch learns the source. A frame to a group is then flooded, or the switch itself
 *    answers it.
 * 6. Where is the destination? If it is not in the FDB, the frame is flooded, up to the
 *    port's storm limit.
 * 7. May the frame leave through that port? go_out() checks this for the features that a
 *    plain switch lacks. In a flood it checks this for each port.
 * 8. Does the frame fit the way out? The hook checks this before it sends: see send.h.
 */
#pragma once

#include "binding.h"
#include "unfinished.h"
#include "fdb.h"
#include "loop.h"
#include "pf/pf.h"
#include "rules.h"
#include "span.h"
#include "storm.h"
#include "stp.h"
#include "vlan.h"

/* Features whose checks a plain switch never makes: on the way in, and on the way out. */
#define FEATURES_IN                                                                                \
	(FEATURE_VLANS | FEATURE_LOCKED | FEATURE_BLOCKING | FEATURE_GUARD | FEATURE_NON_IP |      \
	 FEATURE_STORM | FEATURE_RULES | FEATURE_SPAN | FEATURE_CAPTURE | FEATURE_PF |             \
	 FEATURE_ETHER | FEATURE_CONTROL | FEATURE_SAMPLE)
#define FEATURES_OUT                                                                               \
	(FEATURE_PROTECTED | FEATURE_VLANS | FEATURE_NON_IP | FEATURE_RULES | FEATURE_SPAN |       \
	 FEATURE_PF | FEATURE_ETHER)

/*
 * Features that have work to do with each frame, even if the decision on it is remembered (EACH);
 * with each frame that is sent (SEND); and with each frame that is counted (NOTE).
 */
#define FEATURES_EACH                                                                              \
	(FEATURE_VLANS | FEATURE_RULES | FEATURE_GUARD | FEATURE_SPAN | FEATURE_CAPTURE |          \
	 FEATURE_TALKERS | FEATURE_VLAN_STATS | FEATURE_PATCH | FEATURE_PF | FEATURE_ETHER |       \
	 FEATURE_SAMPLE)
#define FEATURES_SEND (FEATURES_EACH & ~(FEATURE_PF | FEATURE_ETHER))
#define FEATURES_NOTE                                                                              \
	(FEATURE_VLAN_STATS | FEATURE_RULES | FEATURE_TALKERS | FEATURE_CAPTURE | FEATURE_SAMPLE)

/*
 * Does XDP leave the frame to tcx, whatever the decision would be? Only tcx makes copies for span
 * ports and captures. And only tcx makes floods that a feature must look at.
 */
static __always_inline bool leaves_to_tcx(const struct frame *f)
{
	return on(FEATURE_SPAN | FEATURE_CAPTURE) || mac_is_group(f->dst);
}

/* Must the FDB learn the source, or write its age? */
static __always_inline bool source_is_news(u64 key, u32 id, u32 now)
{
	u64 word = fdb_find(key);

	if (PORT_OF(word) != id)
		return true;
	return !((u32)word & FDB_PINNED) && USED_OF(word) != now;
}

/* Does the FDB have the source on this port, in an entry that has not aged? */
static __always_inline bool source_is_known(u64 key, u32 id, u32 now)
{
	u64 word = fdb_find(key);

	return PORT_OF(word) == id && fdb_valid(word, now);
}

/* The kind of flood that a frame to this address makes, if it is flooded: an enum storm_kind. */
static __always_inline u32 flood_kind(u64 dst)
{
	if (dst == BROADCAST)
		return STORM_BCAST;
	return mac_is_group(dst) ? STORM_MCAST : STORM_UNKNOWN;
}

_Static_assert(FEATURES_APART == (FEATURES_IN | FEATURES_OUT | FEATURE_ROUTE),
	       "features apart are others");

/*
 * A frame and the verdict on it.
 *
 * A plain switch keeps both on the stack, and decides at once. An object with more checks keeps
 * them in the CPU's work area, where separate functions find them. The verifier follows each of
 * these functions once per program, not once for each path that leads there. It assumes that data
 * in the work area may have any value. A flood keeps both in the work area in every object.
 *
 * Guards are an example of the names. guard() makes the decision. guard_skb() and guard_xdp() are
 * the separate functions, one for each hook, which fetch the frame for guard(). ask_guard() calls
 * the one that fits the object and the hook.
 */
struct judged {
	struct frame f;
	struct verdict v;
};

WORK_HOLDS(struct judged);

/*
 * APART marks a function that is separate only in an object with more checks. In a plain switch it
 * is part of its caller, which saves the call.
 */
#ifdef DECIDES_AT_ONCE
#define APART static __always_inline
#else
#define APART __noinline
#endif

static __always_inline struct judged *judged_here(struct judged *stack)
{
#ifdef DECIDES_AT_ONCE
	return stack;
#else
	return work_of(WORK_FRAME);
#endif
}

#ifndef DECIDES_AT_ONCE
OFTEN __noinline u32 guard_skb(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);

	return j ? guard(&h, &j->f, &j->v, port_at(j->v.in)) : DROP_MALFORMED;
}

OFTEN __noinline u32 guard_xdp(struct xdp_md *xdp)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	struct judged *j = judged_here(0);

	return j ? guard(&h, &j->f, &j->v, port_at(j->v.in)) : DROP_MALFORMED;
}
#endif

static __always_inline u32 ask_guard(const struct hook *h, const struct frame *f, struct verdict *v,
				     const volatile struct port *in)
{
#ifdef DECIDES_AT_ONCE
	return guard(h, f, v, in);
#else
	return h->skb ? guard_skb(h->ctx) : guard_xdp(h->ctx);
#endif
}

/*
 * May the frame enter? Checks this for the features that a plain switch does not have. Returns
 * ACTION_SEND if it may, or else the action to take instead.
 */
static __always_inline enum action come_in(const struct hook *h, const struct frame *f,
					   struct verdict *v, const volatile struct port *in,
					   u32 now)
{
	u32 reason;

	if (!h->skb && leaves_to_tcx(f))
		return ACTION_LEAVE;
	TRACE(step, STEP_CHECK);
	if (on(FEATURE_BLOCKING)) {
		reason = port_blocked(v->in);
		if (reason && reason != PORT_ONLY_LEARNS)
			return refuse(v, reason);
	}
	if (on(FEATURE_VLANS)) {
		TRACE(step, STEP_VLAN);
		reason = vlan_in(f, v, in);
		if (reason)
			return refuse(v, reason);
		TRACE(step, STEP_CHECK);
	}
	if (on(FEATURE_BLOCKING) && (in->flags & PORT_LOOP_GUARD) && loop_seen(h, f, v, in, now))
		return refuse(v, DROP_LOOP);
	if (on(FEATURE_LOCKED) && (in->flags & PORT_LOCKED) &&
	    !source_is_known(fdb_key(f->src, v->vlan), in->id, now)) {
		/* a locked entry notifies the authenticator of stations that this one is there */
		if (on(FEATURE_MAB) && h->skb && (in->flags & PORT_MAB))
			fdb_lock(fdb_key(f->src, v->vlan), in->id);
		return refuse(v, DROP_LOCKED);
	}
	/* the filters below must not judge bytes that the kernel will still write */
	if (on(FEATURES_JUDGE) && h->skb) {
		reason = unfinished_judge(h->ctx);
		if (reason)
			return refuse(v, reason);
	}
	if (on(FEATURE_GUARD)) {
		reason = ask_guard(h, f, v, in);
		if (reason)
			return refuse(v, reason);
	}
	if (on(FEATURE_NON_IP) && (in->flags & PORT_BLOCK_NON_IP)) {
		reason = front_blocks_non_ip(h, f, v);
		if (reason)
			return refuse(v, reason);
	}
	/* unknown unicast is detected later: see decide_out() */
	if (on(FEATURE_STORM) && h->skb && mac_is_group(f->dst) &&
	    storm_exceeded(h, f, in, flood_kind(f->dst)))
		return refuse(v, DROP_STORM_BCAST + flood_kind(f->dst));
	TRACE(step, STEP_RULES_IN);
	if (on(FEATURE_RULES) && (in->flags & PORT_RULES_IN)) {
		reason = rule_blocks(h, f, v, v->in, RULE_IN);
		if (reason)
			return refuse(v, reason);
	}
	TRACE(step, STEP_PF_IN);
	if (on(FEATURE_ETHER)) {
		reason = pf_ether(h, f, v, v->in, false);
		if (reason)
			return refuse(v, reason);
	}
	/*
	 * Before pf, because pf answers frames and makes states. The port is checked again: the
	 * first result would occupy the stack meanwhile.
	 */
	if (on(FEATURE_BLOCKING)) {
		reason = port_blocked(v->in);
		if (on(FEATURE_TRACE) && reason == PORT_ONLY_LEARNS)
			trace_learn(in);
		if (reason == PORT_ONLY_LEARNS && h->skb && port_learns(in))
			fdb_learn(fdb_key(f->src, v->vlan), in->id);
		if (reason)
			return refuse(v, reason == PORT_ONLY_LEARNS ? DROP_STP : reason);
	}
	/* XDP calls pf when it is sure to send the frame: see pf_passes() */
	if (on(FEATURE_PF) && h->skb) {
		reason = pf_in(h, f, v, now);
		if (reason)
			return refuse(v, reason);
	}
	return ACTION_SEND;
}

#ifndef DECIDES_AT_ONCE
OFTEN __noinline u32 come_in_xdp(struct xdp_md *xdp, u32 now)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	struct judged *j = judged_here(0);

	if (!j)
		return ACTION_DROP;
	return come_in(&h, &j->f, &j->v, port_at(j->v.in), now);
}

#endif

static __always_inline enum action ask_in(const struct hook *h, const struct frame *f,
					  struct verdict *v, const volatile struct port *in,
					  u32 now)
{
#ifdef DECIDES_AT_ONCE
	return come_in(h, f, v, in, now);
#else
	return h->skb ? come_in(h, f, v, in, now) : come_in_xdp(h->ctx, now);
#endif
}

/*
 * May the frame leave through this port, which may be the one where it arrived? Returns 0 if so, or
 * else the reason against it.
 */
static __always_inline u32 go_out(const struct hook *h, const struct frame *f, struct verdict *v,
				  u32 out_slot)
{
	const volatile struct port *in = port_at(v->in), *out = port_at(out_slot);
	u32 reason;

	v->rule_out = 0; /* in a flood this is still the rule of the port before */
	TRACE(step, STEP_CHECK_OUT);
	if (on(FEATURE_SPAN) && (out->facts & PORT_SPAN))
		return DROP_SPAN;
	if (port_protected(in, out) && v->in != out_slot)
		return DROP_PROTECTED;
	if (on(FEATURE_VLANS) && !vlan_reaches(v->vid, out_slot))
		return DROP_VLAN_OUT;
	if (on(FEATURE_NON_IP) && (out->flags & PORT_BLOCK_NON_IP)) {
		reason = front_blocks_non_ip(h, f, v);
		if (reason)
			return reason;
	}
	TRACE(step, STEP_RULES_OUT);
	if (on(FEATURE_RULES) && (out->flags & PORT_RULES_OUT)) {
		reason = rule_blocks(h, f, v, out_slot, RULE_OUT);
		if (reason)
			return reason;
	}
	TRACE(step, STEP_PF_OUT);
	if (on(FEATURE_ETHER)) {
		reason = pf_ether(h, f, v, out_slot, true);
		if (reason)
			return reason;
	}
	if (on(FEATURE_PF) && h->skb)
		return pf_out(h, v, out_slot);
	return 0;
}

#ifndef DECIDES_AT_ONCE
OFTEN __noinline u32 go_out_skb(struct __sk_buff *skb, u32 slot)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);

	if (!j)
		return DROP_MALFORMED;
	return go_out(&h, &j->f, &j->v, slot);
}

OFTEN __noinline u32 go_out_xdp(struct xdp_md *xdp, u32 slot)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	struct judged *j = judged_here(0);

	if (!j)
		return DROP_MALFORMED;
	return go_out(&h, &j->f, &j->v, slot);
}

#endif

static __always_inline u32 ask_out(const struct hook *h, const struct frame *f, struct verdict *v,
				   u32 out_slot)
{
#ifdef DECIDES_AT_ONCE
	return go_out(h, f, v, out_slot);
#else
	return h->skb ? go_out_skb(h->ctx, out_slot) : go_out_xdp(h->ctx, out_slot);
#endif
}

/*
 * The FDB's word for a destination, with the port that currently takes its frames. If the port in
 * the word has lost its carrier, its backup takes them. Returns 0 if that port is blocked: the
 * frame is then flooded, as there may be another way to the station.
 */
static __noinline u64 way_to(struct device_map *devices, u64 word)
{
	u32 id = PORT_OF(word);

	if (on(FEATURE_BACKUP) && port_lost(devices, id))
		word = (word ^ id) | port_at(id)->backup;
	if (on(FEATURE_BLOCKING) && port_blocked(SLOT(PORT_OF(word))))
		return 0;
	return word;
}

#define LOST_UNKNOWN 1 /* no drop reason: as if the address were unknown */

/*
 * The result for a frame to an address whose port had no carrier at the timer's last look: 0 if the
 * port is back. A learned address may be elsewhere by now; a static one is not.
 */
static __noinline u32 lost_way(u64 word, u32 now)
{
	u32 slot = SLOT(PORT_OF(word));

	if (!fdb_valid(word, now))
		return LOST_UNKNOWN;
	if (port_still_lost(slot))
		return (u32)word & FDB_PINNED ? DROP_NO_CARRIER : LOST_UNKNOWN;
	return port_there(&tcx_devices, slot) ? 0 : LOST_UNKNOWN;
}

/*
 * Does a protocol between neighbours take a frame to a reserved address? If so, the frame
 * goes no further.
 */
static __always_inline bool neighbour_takes(struct __sk_buff *skb, const struct frame *f,
					    struct verdict *v)
{
	if (stp_takes(skb, f->dst, v->in))
		v->word = PROTOCOL_STP;
	else
		return false;
	return true;
}

/*
 * Decides whether a frame enters. Returns ACTION_SEND if it does, or else the action to take
 * instead.
 *
 * The verdict is empty at the beginning, except for the results of recall(): the port, and pf's
 * results for the packet (v->pf, with v->pf_plain, and v->reason for PF_LOOK_REFUSE). These are not
 * looked up again.
 *
 * A hook leaves a frame undecided if it may not do the work that the frame needs (ACTION_LEAVE).
 * XDP, for one, does not learn. Unless the object decides at once, the frame and the verdict are
 * those in struct judged.
 */
static __always_inline enum action decide_in(const struct hook *h, const struct frame *f,
					     struct verdict *v, u32 now)
{
	const volatile struct port *in;

	TRACE(step, STEP_PORT);
	/* a device that has moved to another namespace has taken this program along */
	if (!v->in)
		v->in = port_slot(f->ifindex);
	if (!v->in || !port_there(h->devices, v->in))
		return ACTION_PASS;
	in = port_at(v->in);
	v->vlan = f->label & VID_MASK;
	TRACE(step, STEP_CHECK);

	/* span ports get the frame before any filter sees it */
	if (on(FEATURE_SPAN)) {
		if (!h->skb)
			return ACTION_LEAVE;
		if (in->facts & PORT_SPAN)
			return refuse(v, DROP_SPAN);
		span_in(h->ctx, f, v->in);
	}
	if (mac_is_reserved(f->dst)) {
		if (on(FEATURE_CONTROL) && h->skb && neighbour_takes(h->ctx, f, v))
			return refuse(v, DROP_TAKEN);
		if (!(on(FEATURE_GROUP_FWD) && (set.group_fwd_mask >> (f->dst >> 40 & 15) & 1))) {
			v->word = h->skb && !(on(FEATURE_PATCH) && (in->facts & PORT_PATCH)) &&
				  sockets_may_have(h->ctx, f);
			return refuse(v, DROP_RESERVED);
		}
	}
	if (!mac_is_source(f->src))
		return refuse(v, DROP_BAD_SOURCE);
	return on(FEATURES_IN) ? ask_in(h, f, v, in, now) : ACTION_SEND;
}

/* Learns the source of a frame that has entered, and decides where the frame goes. */
static __always_inline enum action decide_out(const struct hook *h, const struct frame *f,
					      struct verdict *v, u32 now)
{
	const volatile struct port *in = port_at(v->in);
	u32 reason;
	u64 key;

	if (on(FEATURE_TRACE))
		trace_learn(in);
	key = fdb_key(f->src, v->vlan);
	if (port_learns(in) && source_is_news(key, in->id, now)) {
		/* XDP does not learn */
		if (!h->skb)
			return ACTION_LEAVE;
		if (!fdb_learn(key, in->id) && on(FEATURE_LIMIT_DROP) &&
		    (in->flags & PORT_LIMIT_DROP))
			return refuse(v, DROP_LIMIT);
	}

	if (mac_is_group(f->dst)) {
		v->flood = f->dst == BROADCAST ? PORT_BCAST_FLOOD : PORT_MCAST_FLOOD;
		return on(FEATURE_SUPPRESS) && v->answered ? ACTION_ANSWERED : ACTION_FLOOD;
	}
	TRACE(step, STEP_LOOK_UP);
	v->word = fdb_find(fdb_key(f->dst, v->vlan));
	TRACE(found, fdb_has(v->word, now));
	TRACE(behind, SLOT(PORT_OF(v->word)));
	if (on(FEATURE_BLOCKING | FEATURE_BACKUP)) {
		u64 way = way_to(h->devices, v->word);

		v->fleeting |= way != v->word; /* a carrier may be back for the next frame */
		v->word = way;
	}
	if (!fdb_reaches(v->word, now) || !port_there(h->devices, SLOT(PORT_OF(v->word)))) {
		bool lost = PORT_OF(v->word) && port_was_lost(SLOT(PORT_OF(v->word)));

		if (lost && !h->skb)
			return ACTION_LEAVE;
		if (lost)
			reason = lost_way(v->word, now);
		if (lost && reason == DROP_NO_CARRIER)
			return refuse(v, reason);
		if (!lost || reason) {
			v->flood = PORT_DISCOVER;
			if (on(FEATURE_STORM) && h->skb && storm_exceeded(h, f, in, STORM_UNKNOWN))
				return refuse(v, DROP_STORM_UNKNOWN);
			return ACTION_FLOOD;
		}
		v->fleeting = true; /* it may be lost again before the timer looks */
	}

	v->out = SLOT(PORT_OF(v->word));
	if (v->out == v->in && !port_hairpins(in))
		return refuse(v, DROP_SAME_PORT);
	if (on(FEATURES_OUT)) {
		reason = ask_out(h, f, v, v->out);
		if (on(FEATURE_PF) && on(FEATURE_PF_NAT) && h->skb && reason == PF_TRANSLATE)
			reason = pf_out_translated(h, v, v->out);
		if (reason)
			return refuse(v, reason);
		v->tag = vlan_tag(v, v->out);
	}
	return ACTION_SEND;
}

/* Decides on a frame. */
static __always_inline enum action decide(const struct hook *h, const struct frame *f,
					  struct verdict *v, u32 now)
{
	enum action action = decide_in(h, f, v, now);

	return action == ACTION_SEND ? decide_out(h, f, v, now) : action;
}

/*
 * Why a flood leaves out a port, whatever frame is flooded: an enum drop_reason or flood_past.
 * Returns 0 if there is no such reason.
 */
static __always_inline u32 flood_past(u32 in, u32 out, u32 kind)
{
	const volatile struct port *p = port_at(out);
	u32 reason;

	if (!p->reached) {
		if (!p->id)
			return PAST_ORIGIN;
		if (port_still_lost(out))
			return PAST_CARRIER;
	}
	if (out == in && !port_hairpins(p))
		return PAST_ORIGIN;
	if (on(FEATURE_BLOCKING)) {
		reason = port_blocked(out);
		if (reason)
			return reason;
	}
	if (on(FEATURE_FLOOD_FLAGS) && !(p->flags & kind))
		return PAST_FLAG;
	return port_there(&tcx_devices, out) ? 0 : PAST_DEVICE;
}
