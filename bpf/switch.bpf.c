// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The switch: one pipeline (pipeline.h), two hooks. The tcx program does
 * everything, for every kind of port, and keeps GSO packets whole. The XDP
 * program takes what it can send without an skb and declines the rest, which
 * the kernel then hands to the tcx program of the same port.
 */
#include "answer.h"
#include "control.h"
#include "decision.h"
#include "flood.h"
#include "send.h"

#define ACT_FLOODS 0x100 /* act_skb() leaves it to its caller to flood; no TC_ACT_ */

/* Does with a frame what has been decided. */
static __always_inline int act_skb(struct __sk_buff *skb, struct frame *f, struct verdict *v,
				   struct decision *d, u32 epoch, enum action action,
				   struct trip *t)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	u32 reason = 0, mtu = 0;

	if (on(FEATURE_TRACE))
		trace_verdict(f, v, action);
	switch (action) {
	case ACTION_SEND:
		reason = send_fits(skb, f, v->out, &mtu);
		if (on(FEATURE_TRACE)) {
			trace_mtu(reason);
			return TC_ACT_OK;
		}
		if (on(FEATURE_PF) && !reason)
			reason = pf_settle(&h, v, v->out, clock_now());
		if (reason)
			return drop_skb(skb, f, v, reason);
		decision_keep(d, f, v, epoch, mtu + ETHER_HEADER);
		return send_skb(skb, f, v, t);
	case ACTION_FLOOD:
		account_in(f, v);
#ifdef DECIDES_AT_ONCE
		return flood_skb(skb, f, v, t);
#else
		return ACT_FLOODS;
#endif
	case ACTION_ANSWERED:
		if (!on(FEATURE_SUPPRESS))
			return TC_ACT_SHOT;
		return on(FEATURE_TRACE) ? TC_ACT_OK : answer_question(skb, f, v);
	case ACTION_PASS:
		return TC_ACT_UNSPEC;
	default:
		drop_skb(skb, f, v, v->reason);
		return answer_refused(skb, f, v);
	}
}

#ifndef DECIDES_AT_ONCE
/* Decides on the frame of struct judged: an enum action. */
__noinline u32 decide_skb(struct __sk_buff *skb, u32 now)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);

	return j ? decide(&h, &j->f, &j->v, now) : ACTION_DROP;
}

/* Does with it what has been decided. It has come by a cable, or from a device. */
__noinline int act_judged(struct __sk_buff *skb, u32 epoch, u32 action, u32 cable)
{
	struct judged *j = judged_here(0);
	struct trip *t = on(FEATURE_PATCH) && cable ? trip_get() : 0;
	struct decision *d;

	if (!j || (cable && !t))
		return TC_ACT_SHOT;
	d = decision_cell(&j->f);
	return d ? act_skb(skb, &j->f, &j->v, d, epoch, action, t) : TC_ACT_SHOT;
}

__noinline int drop_judged(struct __sk_buff *skb, u32 reason)
{
	struct judged *j = judged_here(0);

	return j ? drop_early(skb, &j->f, &j->v, reason) : TC_ACT_SHOT;
}
#endif

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
 * A frame at a port, known by its device or, where it has come by a patch cable,
 * by that end of it.
 */
static __always_inline int switch_skb(struct __sk_buff *skb, struct trip *t)
{
	struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct clock *c = clock_get();
	struct judged here, *j = judged_here(&here);
	struct decision *d;
	struct verdict *v;
	struct frame *f;
	u32 epoch, now, reason = 0, mtu = 0;
	enum action action;
	bool whole;
#ifndef DECIDES_AT_ONCE
	int done;
#endif

	if (!j)
		return TC_ACT_SHOT;
	f = &j->f;
	v = &j->v;
	*v = (struct verdict){};
	if (on(FEATURE_TRACE))
		trace_receive(skb);
	whole = frame_of_skb(f, skb);

	if (t)
		f->ifindex = PATCH_IFINDEX | t->endpoint;
	if (!whole) {
		v->in = port_slot(f->ifindex);
		return v->in ? ask_drop(skb, f, v, DROP_MALFORMED) : TC_ACT_UNSPEC;
	}
	/* what a port does not take in the bridge has not had: it may come by another cable */
	if (t && !(on(FEATURE_BLOCKING) && port_blocked(port_slot(f->ifindex))) &&
	    trip_returns(t)) {
		v->in = port_slot(f->ifindex);
		return ask_drop(skb, f, v, DROP_PATCH_LOOP);
	}
	d = decision_cell(f);
	if (!c || !d)
		return TC_ACT_SHOT;
	/* read before all else: what changes from here on ends the decision */
	epoch = READ_ONCE(c->epoch);
	/* an old decision must not send to a new device of the same index */
	now = on(FEATURE_PF) ? READ_ONCE(c->now) : 0;
	if (decision_holds(d, f, epoch) && port_there(&tcx_devices, d->out) &&
	    recall(&h, f, d, v, now)) {
		u32 segment = f->len - f->tag > d->fits ? frame_segment(f, skb) : f->len - f->tag;

		if (on(FEATURES_EACH | FEATURES_JUDGE))
			reason = each_frame(&h, f, v, now);
		if (!reason && (!segment || segment > d->fits))
			reason = send_fits(skb, f, d->out, &mtu);
		if (!reason)
			return send_skb(skb, f, v, t);
		action = refuse(v, reason);
	} else {
#ifdef DECIDES_AT_ONCE
		action = decide(&h, f, v, READ_ONCE(c->now));
#else
		action = decide_skb(skb, READ_ONCE(c->now));
#endif
	}
#ifdef DECIDES_AT_ONCE
	return act_skb(skb, f, v, d, epoch, action, t);
#else
	done = act_judged(skb, epoch, action, !!t);
	if (done != ACT_FLOODS)
		return done;
	return flood_walk_judged(skb, !!t) ? flood_end_judged(skb) : TC_ACT_SHOT;
#endif
}

SEC("tcx/ingress")
int bascule_tcx(struct __sk_buff *skb)
{
	return switch_skb(skb, 0);
}

/* Goes on with a frame that another bridge sends by a patch cable. */
SEC("tcx/ingress")
int bascule_patch(struct __sk_buff *skb)
{
	struct trip *t = trip_get();
	u32 ifindex;
	int action;

	if (!t)
		return TC_ACT_SHOT;
	ifindex = PATCH_IFINDEX | t->endpoint;
	action = switch_skb(skb, t);
	if (t->waits)
		return patch_follow(skb, ifindex);
	return action == TC_ACT_UNSPEC ? TC_ACT_SHOT : action;
}

/* Does with a frame what has been decided. */
static __always_inline int act_xdp(struct xdp_md *xdp, struct frame *f, struct verdict *v,
				   struct decision *d, u32 epoch, enum action action, u32 now)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	u32 mtu = 0;

	switch (action) {
	case ACTION_SEND:
		if (!xdp_fits(xdp, port_device(&xdp_devices, v->out), f->tag, &mtu))
			return XDP_PASS;
		decision_keep(d, f, v, epoch, mtu + ETHER_HEADER);
		return send_xdp(&h, f, v, now);
	case ACTION_FLOOD:
		if (!flood_xdp(xdp, f, v))
			return XDP_PASS;
		count_rx(v->in, f->len);
		return XDP_REDIRECT;
	default:
		return XDP_PASS;
	}
}

#ifndef DECIDES_AT_ONCE
__noinline u32 decide_xdp(struct xdp_md *xdp, u32 now)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	struct judged *j = judged_here(0);

	return j ? decide(&h, &j->f, &j->v, now) : ACTION_LEAVE;
}

/* The same, of struct judged. */
__noinline int act_xdp_judged(struct xdp_md *xdp, u32 epoch, u32 action)
{
	struct judged *j = judged_here(0);
	struct decision *d;

	if (!j)
		return XDP_PASS;
	d = decision_cell(&j->f);
	return d ? act_xdp(xdp, &j->f, &j->v, d, epoch, action, on(FEATURE_PF) ? clock_now() : 0)
		 : XDP_PASS;
}
#endif

SEC("xdp.frags")
int bascule_xdp(struct xdp_md *xdp)
{
	struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	struct clock *c = clock_get();
	struct judged here, *j = judged_here(&here);
	struct decision *d;
	struct verdict *v;
	struct frame *f;
	u32 epoch;

	if (!j)
		return XDP_PASS;
	f = &j->f;
	v = &j->v;
	*v = (struct verdict){};
	if (!frame_of_xdp(f, xdp))
		return XDP_PASS;
	d = decision_cell(f);
	if (!c || !d)
		return XDP_PASS;
	epoch = READ_ONCE(c->epoch);
	if (decision_holds(d, f, epoch) && f->len - f->tag <= d->fits) {
		decision_recall(d, f, v);
		if (on(FEATURES_EACH | FEATURE_BACKUP) &&
		    ((on(FEATURE_BACKUP) && port_lost(&xdp_devices, port_at(v->out)->id)) ||
		     leaves_to_tcx(f) || each_frame(&h, f, v, 0)))
			return XDP_PASS;
		return send_xdp(&h, f, v, on(FEATURE_PF) ? READ_ONCE(c->now) : 0);
	}

#ifdef DECIDES_AT_ONCE
	return act_xdp(xdp, f, v, d, epoch, decide(&h, f, v, READ_ONCE(c->now)),
		       on(FEATURE_PF) ? clock_now() : 0);
#else
	return act_xdp_judged(xdp, epoch, decide_xdp(xdp, READ_ONCE(c->now)));
#endif
}

SEC("syscall")
int bascule_control(struct control *r)
{
	struct clock *c = clock_get();

	if (c)
		r->result = control_do(c, r);
	return 0;
}

/*
 * Changes tables of addresses. It belongs to no tracepoint: of all kinds of
 * programs that user space can run, this one leaves interrupts alone meanwhile
 * and may look into a trie. The request is the arguments' bytes.
 */
SEC("raw_tp")
int bascule_table(struct pf_table_arguments *a)
{
	return pf_table_change(a);
}

char _license[] SEC("license") = "Dual BSD/GPL";
