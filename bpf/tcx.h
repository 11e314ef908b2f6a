/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * A frame at tcx, which takes every frame of every kind of port: it is taken, decided
 * on, and sent, flooded, answered or dropped. Objects that have more to decide than a
 * plain switch do so step by step, each in a function of its own: see struct judged.
 */
#pragma once

#include "answer.h"
#include "decision.h"
#include "flood.h"
#include "send.h"

/* What act_skb() leaves to its caller; no TC_ACT_. */
#define ACT_FLOODS 0x100
#define ACT_SENDS 0x101

/* Does with a frame what has been decided. */
static __always_inline int act_skb(struct __sk_buff *skb, struct frame *f, struct verdict *v,
				   struct decision *d, u32 epoch, enum action action, bool cable)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	u32 reason = 0, mtu = 0;

	if (on(FEATURE_TRACE))
		trace_verdict(f, v, action, v->reason);
	switch (action) {
	case ACTION_SEND:
		reason = send_fits(skb, f, v->out, &mtu);
		if (on(FEATURE_TRACE)) {
			TRACE(step, reason ? STEP_CHECK_OUT : STEP_SEND);
			TRACE(action, reason ? ACTION_DROP : ACTION_SEND);
			TRACE(reason, reason);
			if (on(FEATURE_SPAN) && !reason)
				span_out(skb, f, v, v->out);
			return TC_ACT_OK;
		}
		if (on(FEATURE_PF) && !reason)
			reason = pf_settle(&h, v, v->out, clock_now());
		if (reason)
			return drop_skb(skb, f, v, reason);
		decision_keep(d, f, v, epoch, mtu + ETHER_HEADER);
#ifdef DECIDES_AT_ONCE
		return send_skb(skb, f, v, cable);
#else
		return ACT_SENDS;
#endif
	case ACTION_FLOOD:
		account_in(f, v);
#ifdef DECIDES_AT_ONCE
		return flood_skb(skb, f, v, cable);
#else
		return ACT_FLOODS;
#endif
	case ACTION_ANSWERED:
		if (!on(FEATURE_SUPPRESS))
			return TC_ACT_SHOT;
		if (on(FEATURE_TRACE)) {
			TRACE(step, STEP_ANSWER);
			if (on(FEATURE_SPAN))
				span_out(skb, f, v, v->in);
			return TC_ACT_OK;
		}
		return answer_question(skb, f, v);
	case ACTION_PASS:
		return TC_ACT_UNSPEC;
	default:
		drop_skb(skb, f, v, v->reason);
		return answer_refused(skb, f, v);
	}
}

#ifndef DECIDES_AT_ONCE
/* Decide on the frame of struct judged, one after the other: an enum action. */
__noinline u32 decide_in_skb(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);

	return j ? decide_in(&h, &j->f, &j->v, clock_now()) : ACTION_DROP;
}

__noinline u32 decide_out_skb(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);

	return j ? decide_out(&h, &j->f, &j->v, clock_now()) : ACTION_DROP;
}

/* Does with it what has been decided. */
__noinline int act_judged(struct __sk_buff *skb, u32 epoch, u32 action)
{
	struct judged *j = judged_here(0);
	struct decision *d;

	if (!j)
		return TC_ACT_SHOT;
	d = decision_cell(&j->f);
	return d ? act_skb(skb, &j->f, &j->v, d, epoch, action, false) : TC_ACT_SHOT;
}

__noinline int drop_judged(struct __sk_buff *skb, u32 reason)
{
	struct judged *j = judged_here(0);

	return j ? drop_early(skb, &j->f, &j->v, reason) : TC_ACT_SHOT;
}
#endif

#ifndef DECIDES_AT_ONCE
__noinline int frame_pulled_judged(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);

	return j && on(LABEL_FEATURES) && frame_pulled(&j->f, skb);
}
#endif

static __always_inline bool ask_pulled(struct __sk_buff *skb, struct frame *f)
{
#ifdef DECIDES_AT_ONCE
	return on(LABEL_FEATURES) && frame_pulled(f, skb);
#else
	return on(LABEL_FEATURES) && frame_pulled_judged(skb);
#endif
}

#ifndef DECIDES_AT_ONCE
__noinline u32 frame_segment_judged(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);

	return j ? frame_segment(&j->f, skb) : 0;
}
#endif

static __always_inline u32 ask_segment(struct __sk_buff *skb, const struct frame *f)
{
#ifdef DECIDES_AT_ONCE
	return frame_segment(f, skb);
#else
	return frame_segment_judged(skb);
#endif
}

static __always_inline int ask_drop(struct __sk_buff *skb, struct frame *f, const struct verdict *v,
				    u32 reason)
{
#ifdef DECIDES_AT_ONCE
	return drop_early(skb, f, v, reason);
#else
	return drop_judged(skb, reason);
#endif
}

/*
 * Takes a frame at a port, known by its device or, where it has come by a patch cable,
 * by that end of it, and sends it if the bridge remembers how: true if that is `done`,
 * with what. Else what is to be done is in `action`; ACTION_LEAVE is to decide, unless
 * the switch decides at once.
 */
static __always_inline bool receive(struct __sk_buff *skb, struct judged *j, struct decision **cell,
				    u32 *epoch, bool cable, enum action *action, int *done)
{
	struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct clock *c = clock_get();
	struct frame *f = &j->f;
	struct verdict *v = &j->v;
	u32 now, reason = 0, mtu = 0;
	struct decision *d;
	struct trip *t;
	bool whole;

	*v = (struct verdict){};
	if (on(FEATURE_TRACE))
		trace_receive(skb);
	TRACE(step, STEP_FRAME);
	whole = frame_of_skb(f, skb) || ask_pulled(skb, f);
#ifndef DECIDES_AT_ONCE
	/* else clang keeps addresses within it on the stack, from here to the end */
	asm("" : "+r"(j));
	f = &j->f;
	v = &j->v;
#endif
	if (cable) {
		t = trip_get();
		f->ifindex = PATCH_IFINDEX | (t ? t->endpoint : 0);
	}
	if (!whole) {
		v->in = port_slot(f->ifindex);
		*done = v->in ? ask_drop(skb, f, v, DROP_MALFORMED) : TC_ACT_UNSPEC;
		return true;
	}
	/* what a port does not take in the bridge has not had: it may come by another cable */
	if (cable && !(on(FEATURE_BLOCKING) && port_blocked(port_slot(f->ifindex))) &&
	    trip_returns()) {
		v->in = port_slot(f->ifindex);
		*done = ask_drop(skb, f, v, DROP_PATCH_LOOP);
		return true;
	}
	*cell = d = decision_cell(f);
	*done = TC_ACT_SHOT;
	if (!c || !d)
		return true;
	/* read before all else: what changes from here on ends the decision */
	*epoch = READ_ONCE(c->epoch);
	/* an old decision must not send to a new device of the same index */
	now = on(FEATURE_PF) ? READ_ONCE(c->now) : 0;
	if (decision_holds(d, f, *epoch) && port_there(&tcx_devices, d->out) &&
	    recall(&h, f, d, v, now)) {
		u32 segment = f->len - f->tag > d->fits ? ask_segment(skb, f) : f->len - f->tag;

		if (on(FEATURES_EACH | FEATURES_JUDGE))
			reason = each_frame(&h, f, v, now);
		if (!reason && (!segment || segment > d->fits))
			reason = send_fits(skb, f, d->out, &mtu);
		if (!reason) {
#ifdef DECIDES_AT_ONCE
			*done = send_skb(skb, f, v, cable);
#else
			*done = ACT_SENDS;
#endif
			return true;
		}
		*action = refuse(v, reason);
	} else {
#ifdef DECIDES_AT_ONCE
		*action = decide(&h, f, v, READ_ONCE(c->now));
#else
		*action = ACTION_LEAVE;
#endif
	}
	return false;
}

#ifdef DECIDES_AT_ONCE
static __always_inline int switch_skb(struct __sk_buff *skb, bool cable)
{
	struct judged here;
	struct decision *d;
	enum action action;
	u32 epoch;
	int done;

	if (receive(skb, &here, &d, &epoch, cable, &action, &done))
		return done;
	return act_skb(skb, &here.f, &here.v, d, epoch, action, cable);
}
#else
static __always_inline int switch_skb(struct __sk_buff *skb, bool cable)
{
	struct judged *j = judged_here(0);
	struct decision *d;
	enum action action;
	u32 epoch;
	int done;

	if (!j)
		return TC_ACT_SHOT;
	if (!receive(skb, j, &d, &epoch, on(FEATURE_PATCH) && cable, &action, &done)) {
		if (action == ACTION_LEAVE) {
			action = decide_in_skb(skb);
			if (action == ACTION_SEND)
				action = decide_out_skb(skb);
		}
		done = act_judged(skb, epoch, action);
		if (done == ACT_FLOODS)
			return flood_walk_judged(skb, cable) ? flood_end_judged(skb) : TC_ACT_SHOT;
	}
	if (done != ACT_SENDS)
		return done;
	/* else clang keeps addresses within it on the stack, from the start to here */
	asm("" : "+r"(j));
	return send_skb(skb, &j->f, &j->v, cable);
}
#endif
