/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * A frame at tcx, the hook that takes every frame of every kind of port. The hook takes the frame,
 * decides on it, and sends, floods, answers or drops it. An object with more checks than a plain
 * switch does this step by step, each step in a separate function: see struct judged.
 */
#pragma once

#include "answer.h"
#include "decision.h"
#include "divert.h"
#include "due.h"
#include "family.h"
#include "fib.h"
#include "hop.h"
#include "flood.h"
#include "send.h"

/* Results of act_skb() that its caller carries out; these are not TC_ACT_ values. */
#define ACT_FLOODS 0x100
#define ACT_SENDS 0x101
#define ACT_ANSWERS 0x102 /* a separate program answers the frame */

/* Carries out the decision about a frame. */
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
		/* a trial routes the translated packet */
		if (on(FEATURE_TRACE) && on(FEATURE_PF_NAT) && !reason)
			reason = pf_settle(&h, v, v->out, clock_now());
		if (on(FEATURE_TRACE)) {
			TRACE(step, reason ? STEP_CHECK_OUT : STEP_SEND);
			TRACE(action, reason ? ACTION_DROP : ACTION_SEND);
			TRACE(reason, reason);
			if (!reason && panel_asked(v))
				return ACT_SENDS;
			if (on(FEATURE_SPAN) && !reason)
				span_out(skb, f, v, v->out);
			if (on(FEATURE_ROUTE) && !reason)
				route_trial(skb, f, v);
			return TC_ACT_OK;
		}
		if (on(FEATURE_PF) && !reason)
			reason = pf_settle(&h, v, v->out, clock_now());
		if (reason)
			return drop_skb(skb, f, v, reason);
		decision_keep(d, f, v, epoch, mtu + ETHER_HEADER);
		return ACT_SENDS;
	case ACTION_FLOOD:
		account_in(skb, f, v, SAMPLE_FLOOD);
#ifdef DECIDES_AT_ONCE
		return flood_skb(skb, f, v, cable);
#else
		return on(FEATURE_PF_HOPS) && panel_floods() ? ACT_SENDS : ACT_FLOODS;
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
		if (on(FEATURE_PF) && on(FEATURE_PF_LOG) && v->pf == PF_LOOK_JUDGE)
			pf_log_due(skb, 0);
		return answer_question(skb, f, v);
	case ACTION_PASS:
		return TC_ACT_UNSPEC;
	default:
		drop_skb(skb, f, v, v->reason);
		if (v->reason == DROP_RESERVED && v->word)
			return TC_ACT_UNSPEC;
		if (!answer_wanted(f, v))
			return TC_ACT_SHOT;
#ifndef DECIDES_AT_ONCE
		if (on(FEATURES_DUE))
			return ACT_ANSWERS;
#endif
		return answer_refused(skb, f, v);
	}
}

#ifndef DECIDES_AT_ONCE
/*
 * These two decide on the frame of struct judged, one after the other. They return an enum action.
 */
OFTEN __noinline u32 decide_in_skb(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);

	return j ? decide_in(&h, &j->f, &j->v, clock_now()) : ACTION_DROP;
}

OFTEN __noinline u32 decide_out_skb(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);

	return j ? decide_out(&h, &j->f, &j->v, clock_now()) : ACTION_DROP;
}

/*
 * Gives the host back a packet for which no rule has set a next hop: the rules are evaluated again.
 */
__noinline int pf_gives_back(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);

	if (!on(FEATURE_PF_HOPS) || !j)
		return TC_ACT_SHOT;
	if (on(FEATURE_PF) && j->v.pf == PF_LOOK_JUDGE) {
		pf_uncount_rules();
		pf_count_safely(PF_COUNT_SEARCHES, -1);
	}
	return route_gives_back(skb, j->v.blind);
}

/* Carries out the decision about the frame of struct judged. */
OFTEN __noinline int act_judged(struct __sk_buff *skb, u32 epoch, u32 action)
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
OFTEN __noinline u32 frame_segment_judged(struct __sk_buff *skb)
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

#ifdef SENDS_AT_ONCE
/*
 * Sends an untagged frame where the bridge has sent one like it, if it remembers that. Returns
 * false if more must be done; then nothing has been done. Nearly all frames of a plain switch end
 * here. receive() would have the same result, but must keep the fields of a frame for later, for
 * which there are too few registers.
 */
static __always_inline bool send_again(struct __sk_buff *skb, struct frame *f, struct verdict *v,
				       bool cable, int *done)
{
	struct decision *d;
	struct trip *t = 0;

	if (!frame_is_plain(f, skb))
		return false;
	if (cable) {
		t = trip_get();
		f->ifindex = trip_ifindex(t);
	}
	d = decision_cell(f);
	if (!d || !decision_holds(d, f, READ_ONCE(clock_get()->epoch)) ||
	    !port_there(&tcx_devices, d->out))
		return false;
	f->len = skb->len; /* only now: else it would be on the stack until here */
	if (f->len > d->fits ||
	    (on(FEATURE_BACKUP) && port_lost(&tcx_devices, port_at(d->out)->id)) ||
	    (cable && trip_returns(t)))
		return false;
	decision_recall(d, f, v);
	*done = send_skb(skb, f, v, cable, t);
	return true;
}
#endif

/*
 * Takes a frame at a port. The port is the one of the frame's device or, if the frame has come by a
 * patch cable, the port at that end of the cable.
 *
 * Returns true if no decision is needed: the bridge remembers one on such frames, or the frame is
 * not switched at all. `done` has the result, and ACT_SENDS leaves the sending to the caller.
 * Returns false if more must be done, by `action`. ACTION_LEAVE means that the caller must decide;
 * an object that decides at once has done so.
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
	/* else clang keeps addresses within *j on the stack, from here to the end */
	asm("" : "+r"(j));
	f = &j->f;
	v = &j->v;
#endif
	if (cable) {
		t = trip_get();
		f->ifindex = trip_ifindex(t);
		if (on(FEATURE_PF_HOPS) && on(FEATURE_ROUTE))
			v->blind = trip_blind();
	}
	if (!whole) {
		v->in = port_slot(f->ifindex);
		*done = v->in ? ask_drop(skb, f, v, DROP_MALFORMED) : TC_ACT_UNSPEC;
		return true;
	}
	/*
	 * A frame that a blocked port refuses has not been in the bridge: it may come again by
	 * another cable.
	 */
	if (cable && !(on(FEATURE_BLOCKING) && port_blocked(port_slot(f->ifindex))) &&
	    trip_returns(trip_get())) {
		v->in = port_slot(f->ifindex);
		*done = ask_drop(skb, f, v, DROP_PATCH_LOOP);
		return true;
	}
	*cell = d = decision_cell(f);
	*done = TC_ACT_SHOT;
	if (!c || !d)
		return true;
	/* read first: any change from here on makes the decision invalid */
	*epoch = READ_ONCE(c->epoch);
	/* an old decision must not send to a new device with the same index */
	now = on(FEATURE_PF) ? READ_ONCE(c->now) : 0;
	if (ROUTES_PAST_PF_BY_TCX) {
		flow_forget();
		if (!cable && decision_holds(d, f, *epoch) && !(on(FEATURE_VLANS) && d->tag) &&
		    (port_at(d->out)->flags & PORT_ROUTE) && port_there(&tcx_devices, d->out)) {
			*done = route_flow_skb(skb, d->in, d->out, f->dst);
			if (*done)
				return true;
			*done = TC_ACT_SHOT;
		}
	}
	if (decision_holds(d, f, *epoch) && port_there(&tcx_devices, d->out) &&
	    recall(&h, f, d, v, now)) {
		if (on(FEATURES_EACH | FEATURES_JUDGE))
			reason = each_frame(&h, f, v, now);
		/*
		 * a frame that fits with its tag fits without it: most frames need no further check
		 */
		if (!reason && f->len > d->fits && f->len - f->tag > d->fits) {
			u32 segment = ask_segment(skb, f);

			if (!segment || segment > d->fits)
				reason = send_fits(skb, f, d->out, &mtu);
		}
		if (!reason) {
			*done = ACT_SENDS;
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

#ifdef SENDS_AT_ONCE
	if (send_again(skb, &here.f, &here.v, cable, &done))
		return done;
#endif
	if (!receive(skb, &here, &d, &epoch, cable, &action, &done))
		done = act_skb(skb, &here.f, &here.v, d, epoch, action, cable);
	if (done == ACT_SENDS && panel_asked(&here.v)) /* which takes a separate program */
		return drop_skb(skb, &here.f, &here.v, DROP_PF_TRANSLATE);
	return done == ACT_SENDS ? send_skb(skb, &here.f, &here.v, cable, 0) : done;
}
#else
static __always_inline int switch_skb(struct __sk_buff *skb, bool cable)
{
	struct judged *j = judged_here(0);
	struct decision *d;
	enum action action;
	u32 epoch, asked;
	int done;

	if (!j)
		return TC_ACT_SHOT;
	if (on(FEATURES_DUE) && j->v.back) {
		action = due_is_back(j, &epoch);
		if (action == ACTION_DROP)
			goto judged;
		done = ACT_SENDS;
		if (action == ACTION_SEND)
			goto decided;
		action = ACTION_SEND;
		goto followed;
	}
	if (fib_is_back(&epoch)) {
		action = ACTION_LEAVE;
	} else {
		if (receive(skb, j, &d, &epoch, on(FEATURE_PATCH) && cable, &action, &done))
			goto decided;
		if (on(FEATURE_PF_FIB) && action == ACTION_LEAVE)
			fib_go(skb, cable, epoch);
	}
	if (action == ACTION_LEAVE) {
		action = decide_in_skb(skb);
		if (on(FEATURES_DUE) && j->v.due)
			goto rest;
	followed:
		if (on(FEATURE_PF_HOPS) && action == ACTION_SEND) {
			asked = panel_judged(true);
			if (asked)
				goto ends;
			if (on(FEATURE_ROUTE) && j->v.blind)
				return pf_gives_back(skb);
		}
		if (action == ACTION_SEND)
			action = decide_out_skb(skb);
	}
judged:
	done = act_judged(skb, epoch, action);
	if (done == ACT_FLOODS) {
		if (on(FEATURE_PF_REASSEMBLE) && j->v.pf == PF_LOOK_JUDGE) {
			j->v.due = DUE_FLOOD;
			goto rest;
		}
		return flood_judged(skb, cable,
				    !cable); /* a frame that comes by a cable follows all cables */
	}
	if (on(FEATURES_DUE) && done == ACT_ANSWERS) {
		j->v.due = DUE_ANSWER;
		due_go(skb, cable, epoch);
		return TC_ACT_SHOT;
	}
decided:
	if (done != ACT_SENDS)
		return done;
	if (on(FEATURES_DUE) && j->v.due) {
	rest:
		due_go(skb, cable, epoch);
		return drop_judged(skb, DROP_PATCH_LOOP);
	}
	asked = on(FEATURE_PF_FAMILY | FEATURE_PF_HOPS) ? panel_judged(false) : 0;
ends:
	if (asked) {
		panel_go(skb, cable, asked);
		return drop_judged(skb, pf_cross_reason());
	}
	/* else clang keeps addresses within *j on the stack, from the start to here */
	asm("" : "+r"(j));
	return send_skb(skb, &j->f, &j->v, cable, 0);
}
#endif
