/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * A frame at XDP, which takes those that it can send without an skb, and leaves all
 * others to tcx.
 */
#pragma once

#include "decision.h"
#include "flood.h"
#include "send.h"

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

static __always_inline int switch_xdp(struct xdp_md *xdp)
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
