/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Sending: whether a frame fits its way out, its preparation, and its departure. Known unicast,
 * floods and answers of the switch come here.
 */
#pragma once

#include <linux/pkt_cls.h>

#include "account.h"
#include "flow.h"
#include "patch.h"
#include "route.h"

/*
 * Does the frame fit a port at tcx? Returns 0 or the reason to drop it. A patch cable has no
 * device, and so no MTU.
 */
static __always_inline u32 send_fits(struct __sk_buff *skb, const struct frame *f, u32 out,
				     u32 *mtu)
{
	if (on(FEATURE_PATCH) && (port_at(out)->facts & PORT_PATCH)) {
		*mtu = PATCH_MTU;
		return 0;
	}
	return skb_fits(skb, port_fits(&tcx_devices, out), f->tag, mtu);
}

static __always_inline bool xdp_fits(struct xdp_md *xdp, u32 ifindex, u32 tag, u32 *mtu)
{
	return !bpf_check_mtu(xdp, ifindex, mtu, -(__s32)tag, 0);
}

/*
 * Does all the work that accompanies sending a frame; a trial never comes here. Returns true if the
 * frame now has the tag with which it leaves.
 */
static __always_inline bool prepare_skb(struct __sk_buff *skb, const struct frame *f,
					const struct verdict *v, u32 out, u32 has, u32 wants)
{
	if (on(FEATURE_VLANS)) {
		if (!skb_retag(skb, has, wants))
			return false;
		if (on(FEATURE_PATCH))
			patch_retagged(has, wants);
	}
	if (on(FEATURE_VLAN_STATS))
		vlan_count(v->vid, f->len, false);
	if (on(FEATURE_SPAN))
		span_out(skb, f, v, out);
	if (on(FEATURE_CAPTURE))
		capture_frame(skb, out, capture_vlans(v), CAPTURE_OUT, 0);
	return true;
}

/*
 * Sends the frame itself through a port. The frame has already been counted where it arrived. The
 * port is the last one of a flood, or the port of a request that is answered.
 */
static __always_inline int send_by(struct __sk_buff *skb, const struct frame *f,
				   const struct verdict *v, u32 out, u32 has, u32 wants)
{
	if (on(FEATURES_SEND) && !prepare_skb(skb, f, v, out, has, wants))
		return TC_ACT_SHOT;
	count_tx(out, f->len);
	return bpf_redirect(port_device(&tcx_devices, out), 0);
}

/*
 * Sends a copy through a port. A copy for a patch cable goes when the flood is over. `has` gets the
 * frame's own tag after this.
 */
static __always_inline void send_copy(struct __sk_buff *skb, const struct frame *f,
				      const struct verdict *v, u32 out, u32 *has, u32 wants)
{
	const volatile struct port *p = port_at(out);

	if (on(FEATURES_SEND)) {
		if (!prepare_skb(skb, f, v, out, *has, wants))
			return;
		*has = wants;
		if (on(FEATURE_PATCH) && (p->facts & PORT_PATCH)) {
			if (patch_queue(skb, p->peer_endpoint))
				count_tx(out, f->len);
			else
				account_drop(skb, v->in, capture_vlans(v), DROP_PATCH_LOOP);
			return;
		}
	}
	count_tx(out, f->len); /* before it is sent: see uncount_tx() */
	bpf_clone_redirect(skb, port_device(&tcx_devices, out), 0);
}

/*
 * Sends a frame of known unicast, and also counts it where it arrived. `cable` is set if the frame
 * came by a patch cable, not from a device. The trip is 0 where the caller has not looked it up.
 */
static __always_inline int send_skb(struct __sk_buff *skb, const struct frame *f,
				    const struct verdict *v, bool cable, struct trip *t)
{
	const volatile struct port *p = port_at(v->out);

	count_rx(v->in, f->len);
	count_tx(v->out, f->len);
	if (on(FEATURES_SEND)) {
		u32 tag = on(FEATURE_VLANS) ? tag_with_priority(f, v->tag) : f->outer;

		note_in(f, v);
		if (on(FEATURE_SAMPLE))
			sample_in(skb, v->in | v->out << 16, capture_vlans(v), 0);
		if (on(FEATURE_CAPTURE))
			capture_frame(skb, v->in, capture_vlans(v), CAPTURE_IN, 0);
		if (!prepare_skb(skb, f, v, v->out, f->outer, tag))
			return TC_ACT_SHOT;
		if (on(FEATURE_PATCH) && (p->facts & PORT_PATCH)) {
			t = cable ? t ?: trip_get() : trip_start();
			if (t && !on(FEATURE_TRACE))
				patch_go(skb, t, p->peer_endpoint, 0, f->ifindex);
			return TC_ACT_SHOT;
		}
		/* the frame itself is still needed: bascule_patch continues with it */
		if (on(FEATURE_PATCH) && cable && !t)
			t = trip_get();
		if (on(FEATURE_ROUTE) && (p->flags & PORT_ROUTE)) {
			u32 to;

			if (ROUTES_BY_TCX && !cable) {
				int done = 0;

				if (!on(FEATURE_PF))
					done = route_quickly_skb(skb, v->out, f->dst);
				else if (v->pf == PF_LOOK_STATE)
					done = route_past_skb(skb, v->out, f->dst);

				if (done)
					return done;
			}
			/* a frame makes no more hops than the kernel makes tail calls */
			to = t && (t->waits || t->hops >= PATCH_HOPS)
				     ? ROUTE_TRIP
				     : route_skb(skb, v->out, f->dst);

			route_count(v->out, to);
			if (to & ROUTE_DEVICE)
				return TC_ACT_REDIRECT;
			if (to & ROUTE_GATEWAY) {
				struct trip *r;

				if (ROUTES_BY_TCX && !cable)
					route_decided_skb();
				r = route_trip(cable);
				if (r)
					patch_go(skb, r, to & 0xffff, r->ifindex, f->ifindex);
				return TC_ACT_SHOT;
			}
		}
		if (t && t->waits) {
			bpf_clone_redirect(skb, port_device(&tcx_devices, v->out), 0);
			return TC_ACT_SHOT;
		}
	}
	/*
	 * Straight to the receiver, without a queue between. This is only for the receiver's own
	 * address: its stack would mistake a frame for another station behind it for its own.
	 */
	if (on(FEATURE_PEER) && f->dst == p->straight)
		return bpf_redirect_peer(p->ifindex, 0);
	return bpf_redirect(port_device(&tcx_devices, v->out), 0);
}

/* Routes the frame of a trial that leaves through a routed host port, and records the result. */
static __always_inline void route_trial(struct __sk_buff *skb, const struct frame *f,
					const struct verdict *v)
{
	if (!(port_at(v->out)->flags & PORT_ROUTE))
		return;
	if (on(FEATURE_VLANS) && !skb_retag(skb, f->outer, tag_with_priority(f, v->tag)))
		return;
	TRACE(route, route_skb(skb, v->out, f->dst) + 1);
}

/* Sends by XDP; declines where the way out does not take such frames. */
static __always_inline int send_xdp(const struct hook *h, const struct frame *f, struct verdict *v,
				    u32 now)
{
	struct xdp_md *xdp = h->ctx;
	u32 tag = 0;

	if (!port_takes_xdp(port_at(v->out)))
		return XDP_PASS;
	if (on(FEATURE_PF) && !pf_passes(h, v, now))
		return XDP_PASS;
	if (on(FEATURE_VLANS)) {
		tag = tag_with_priority(f, v->tag);
		if (!port_has_device(&xdp_devices, v->out) || !xdp_retag(xdp, f->outer, tag))
			return XDP_PASS;
	}
	if (bpf_redirect_map(&xdp_devices, v->out, XDP_PASS) != XDP_REDIRECT) {
		/* tcx must not get the frame with a tag other than it arrived with */
		if (on(FEATURE_VLANS) && tag != f->outer)
			return XDP_DROP;
		return XDP_PASS;
	}
	count_rx(v->in, f->len);
	count_tx(v->out, f->len);
	if (on(FEATURES_NOTE)) {
		note_in(f, v);
		if (on(FEATURE_VLAN_STATS))
			vlan_count(v->vid, f->len, false);
		if (on(FEATURE_SAMPLE) && sample_due())
			sample_xdp(xdp, v->in | v->out << 16, capture_vlans(v),
				   on(FEATURE_VLANS) ? f->outer : 0,
				   f->len | (tag ? SAMPLE_RETAGGED : 0));
	}
	return XDP_REDIRECT;
}
