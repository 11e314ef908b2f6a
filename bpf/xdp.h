/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * A frame at XDP. The hook takes frames that it can send without an skb, and leaves all
 * others to tcx.
 */
#pragma once

#include "decision.h"
#include "flood.h"
#include "flow.h"
#include "rate.h"
#include "send.h"

/* Is the frame for a routed host port? */
static __always_inline bool routes_here(const struct verdict *v)
{
	return on(FEATURE_ROUTE) && (port_at(v->out)->flags & PORT_ROUTE);
}

#ifndef DECIDES_AT_ONCE
OFTEN __noinline u32 decide_xdp(struct xdp_md *xdp, u32 now)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	struct judged *j = judged_here(0);

	return j ? decide(&h, &j->f, &j->v, now) : ACTION_LEAVE;
}
#endif

/*
 * Decides on the frame of `j`, if no such decision is remembered. Returns how many bytes an
 * untagged frame may have to leave there by XDP, 0 if this one may not.
 */
static __always_inline u32 decided_xdp(struct xdp_md *xdp, struct judged *j, u32 epoch, u32 now)
{
	struct decision *d = decision_cell(&j->f);
	u32 mtu = 0;

	if (!d)
		return 0;
	if (decision_holds(d, &j->f, epoch) && j->f.len <= d->fits) {
		mtu = d->fits - ETHER_HEADER;
		decision_recall(d, &j->f, &j->v);
	} else {
#ifdef DECIDES_AT_ONCE
		const struct hook h = {.ctx = xdp, .devices = &xdp_devices};

		if (decide(&h, &j->f, &j->v, now) != ACTION_SEND)
			return 0;
#else
		if (decide_xdp(xdp, now) != ACTION_SEND)
			return 0;
#endif
		if (!xdp_fits(xdp, port_fits(&xdp_devices, j->v.out), 0, &mtu))
			return 0;
		decision_keep(d, &j->f, &j->v, epoch, mtu + ETHER_HEADER);
	}
	if (!port_takes_xdp(port_at(j->v.out)) || routes_here(&j->v) ||
	    !port_has_device(&xdp_devices, j->v.out))
		return 0;
	return mtu + ETHER_HEADER;
}

/*
 * Routes a packet whose way is remembered, with the whole decision on it: its frame has arrived at
 * a port, and is for an address at a routed host port. Returns XDP_PASS if its way must still be
 * found; the frame is unchanged then.
 */
OFTEN __noinline int route_quickly(struct xdp_md *xdp, u32 in, u32 slot, u64 dst)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;
	struct route_way *way;
	u64 place;
	u32 len, out;

	if (data + ETHER_HEADER + sizeof(struct iphdr) > data_end)
		return XDP_PASS;
	len = data_end - data;
	way = route_known(&h, data, data_end, len, len, slot, dst, 0, &place);
	if (!way)
		return XDP_PASS;
	out = way->out;
	if (!port_takes_xdp(port_at(out)) ||
	    bpf_redirect_map(&xdp_devices, out, XDP_PASS) != XDP_REDIRECT)
		return XDP_PASS;
	route_ages(data);
	route_readdress(data, way->dmac);
	count_rx(in, len);
	count_routed(slot, len);
	count_rx(way->in, len);
	count_tx(out, len);
	return XDP_REDIRECT;
}

/*
 * Does XDP route frames? A feature that must look into each frame only looks once, so a routed
 * frame is left to tcx then. But pf looks twice in one go.
 */
#define ROUTES_BY_XDP !on(FEATURES_NOTE | FEATURE_ETHER | FEATURE_GUARD | FEATURE_BACKUP)

/* Instead of an enum xdp_action: the frame of struct judged must be routed past pf. */
#define XDP_ROUTES 0x100
#define ROUTES_PAST_PF (on(FEATURE_ROUTE) && on(FEATURE_PF) && ROUTES_BY_XDP)

/* The same: it has no state, and another program continues with it. See first.h. */
#define XDP_JUDGES 0x101

/* XDP programs that end the way of others. A table of programs only has programs of one type. */
enum xdp_panel_program {
	XDP_PANEL_FIRST,
	XDP_PANEL_PROGRAMS,
};

struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} pf_panel_xdp SEC(".maps");

/*
 * Finds the way of a frame to a routed host port. It is decided on again, as a frame that arrives
 * at the port through which the host would send it: this is the frame of `j` then. Returns 0 if XDP
 * may not send it, or else how many bytes an untagged frame may have. The way is remembered if
 * possible.
 */
static __always_inline u32 route_decide_xdp(struct xdp_md *xdp, struct judged *j)
{
	struct route_memory *memory = route_memory_get();
	u32 epoch = READ_ONCE(clock_get()->epoch), fits;

	if (!memory || route_xdp(xdp, j->v.out, j->f.dst) != ROUTE_GATEWAY)
		return 0;
	j->v = (struct verdict){};
	j->f = (struct frame){.dst = memory->dst,
			      .src = memory->src,
			      .ifindex = memory->ifindex,
			      .len = memory->len};
	if (!port_slot(j->f.ifindex))
		return 0;
	fits = decided_xdp(xdp, j, epoch, clock_now());
	if (fits && !j->v.fleeting && !j->v.tag)
		route_decided(memory, j->v.in, j->v.out, epoch, fits);
	return fits;
}

/*
 * Routes a frame to a routed host port. The frame stays unchanged until XDP is sure to send it: tcx
 * gets it if XDP may not send it.
 */
static __noinline int route_frame_xdp(struct xdp_md *xdp, struct judged *j)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	u32 in = j->v.in, out = j->v.out, len = j->f.len;
	struct route_memory *memory = route_memory_get();
	u32 now = clock_now();

	if (!memory || !route_decide_xdp(xdp, j) || !route_rewrite(xdp, memory, len))
		return XDP_PASS;
	count_rx(in, len);
	count_tx(out, len);
	route_count(out, ROUTE_GATEWAY);
	/* the frame has been changed: the kernel must not get it any more */
	return send_xdp(&h, &j->f, &j->v, now) == XDP_REDIRECT ? XDP_REDIRECT : XDP_DROP;
}

#ifndef DECIDES_AT_ONCE
/*
 * Finds the way of the packet that pf_through_in() has looked at, and remembers it. Returns true if
 * that is possible. The frame's padding is gone then.
 */
OFTEN __noinline u32 route_learn_xdp(struct xdp_md *xdp)
{
	struct route_memory *memory = route_memory_get();
	struct judged *j = judged_here(0);
	struct route_way *way;
	u32 len;

	if (!ROUTES_PAST_PF || !memory || !j)
		return false;
	len = j->f.len;
	if (!route_decide_xdp(xdp, j) || memory->way > cfg.ways)
		return false;
	way = route_way(memory->way);
	if (!way || !way->epoch)
		return false;
	return len <= memory->len || !bpf_xdp_adjust_tail(xdp, (int)(memory->len - len));
}

/*
 * Is the way of that packet remembered, with the whole decision on it? Then struct route_memory has
 * the place of the way.
 */
OFTEN __noinline u32 route_known_xdp(struct xdp_md *xdp, u32 slot, u64 dst)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;
	const struct pf_through *as = on(FEATURE_PF_NAT) ? pf_through() : 0;
	struct route_memory *memory = route_memory_get();
	u32 len = data_end - data;
	u64 place;

	if (!ROUTES_PAST_PF || !memory || data + ETHER_HEADER > data_end ||
	    !route_known(&h, data, data_end, len, len, slot, dst, as, &place))
		return false;
	memory->way = place;
	return true;
}

/* Finds the flow of the packet in the frame of struct judged, like flow_find(). */
OFTEN __noinline u32 flow_find_xdp(struct xdp_md *xdp)
{
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;
	struct judged *j = judged_here(0);
	struct pf_flow *flow;
	u32 len, at, l4;

	flow_forget();
	if (!ROUTES_PAST_PF || !j || data + ETHER_HEADER + sizeof(struct iphdr) > data_end)
		return PF_FLOWS;
	len = data_end - data;
	at = flow_find(data, data_end, len, j->v.in, j->v.out, j->f.dst);
	flow = at < PF_FLOWS ? pf_flow_at(at) : 0;
	if (!flow || len > flow->mtu + ETHER_HEADER)
		return PF_FLOWS;
	l4 = (flow->ports & 0xff) == 10 ? ETHER_HEADER + sizeof(struct ipv6hdr)
					: ETHER_HEADER + sizeof(struct iphdr);
	if ((flow->ports >> 8 & 0xff) == IPPROTO_TCP ? !flow_reads(data + l4, data_end, len - l4)
						     : len - l4 < sizeof(struct udphdr))
		return PF_FLOWS;
	return at;
}

/*
 * Routes the frame of struct judged past pf if it belongs to a flow. Returns XDP_PASS if not; the
 * frame is unchanged then.
 */
OFTEN __noinline int route_flow_xdp(struct xdp_md *xdp)
{
	u32 at = flow_find_xdp(xdp), len;
	struct judged *j = judged_here(0);
	struct pf_flow *flow;
	void *data, *data_end;

	if (!ROUTES_PAST_PF || !j || at >= PF_FLOWS)
		return XDP_PASS;
	len = j->f.len;
	flow = pf_flow_at(at);
	if (!flow || !port_takes_xdp(port_at(flow->out)) ||
	    bpf_redirect_map(&xdp_devices, flow->out, XDP_PASS) != XDP_REDIRECT ||
	    !pf_flow_take(at, len - ETHER_HEADER, clock_now()))
		return XDP_PASS;
	data = (void *)(long)xdp->data;
	data_end = (void *)(long)xdp->data_end;
	/*
	 * both states have counted the packet: it is sent, or dropped, but never passed on as it
	 * arrived
	 */
	if (data + ETHER_HEADER + sizeof(struct iphdr) > data_end ||
	    (on(FEATURE_PF_NAT) && flow->on && !flow_writes(data, data_end, flow)))
		return XDP_DROP;
	route_ages(data);
	route_readdress(data, flow->dmac);
	flow_counts(flow, j->v.out, len);
	return XDP_REDIRECT;
}

/*
 * Sends the frame of a packet that has updated both its states, and remembers its flow. It has
 * arrived at a port, for a routed host port, and struct route_memory has the place of its way.
 */
OFTEN __noinline int route_filtered_goes(struct xdp_md *xdp, u32 in, u32 slot)
{
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;
	struct route_memory *memory = route_memory_get();
	const struct pf_through *t = pf_through();
	struct route_way *way;
	u32 len;

	if (!ROUTES_PAST_PF || !memory || !t)
		return XDP_DROP;
	way = route_way(memory->way);
	flow_keep(memory->way);
	/*
	 * both states have counted the packet: it is sent, or dropped, but never passed on as it
	 * arrived
	 */
	if (!way || data + ETHER_HEADER + sizeof(struct iphdr) > data_end ||
	    (on(FEATURE_PF_NAT) && t->on && !pf_through_write(data, data_end)))
		return XDP_DROP;
	route_ages(data);
	route_readdress(data, way->dmac);
	len = data_end - data;
	count_rx(in, len);
	count_routed(slot, len);
	count_rx(way->in, len);
	count_tx(way->out, len);
	if (cfg.pf.log_interface) {
		pf_count_port(in, false, false);
		pf_count_port(slot, true, false);
		pf_count_port(way->in, false, false);
		pf_count_port(way->out, true, false);
	}
	return XDP_REDIRECT;
}

/*
 * Routes the frame of struct judged past pf, which knows its connection on its way to the host and
 * on its way from it. Everything that may keep XDP from it is checked before anything is changed.
 * Returns XDP_JUDGES if pf does not know it on its way to the host.
 */
OFTEN __noinline int route_filtered_xdp(struct xdp_md *xdp)
{
	struct route_memory *memory = route_memory_get();
	u32 in, slot, now = clock_now();
	struct judged *j = judged_here(0);
	struct route_way *way;
	u32 through;

	if (!ROUTES_PAST_PF || !memory || !j)
		return XDP_PASS;
	in = j->v.in;
	slot = j->v.out;
	through = pf_through_in(xdp, j->v.vlan, slot * MAX_PORTS | in, now);
	if (through != true)
		return on(FEATURE_PF_FIRST) && through ? XDP_JUDGES : XDP_PASS;
	if (!route_known_xdp(xdp, slot, j->f.dst) && !route_learn_xdp(xdp))
		return XDP_PASS;
	way = route_way(memory->way);
	if (!way || !port_takes_xdp(port_at(way->out)) ||
	    bpf_redirect_map(&xdp_devices, way->out, XDP_PASS) != XDP_REDIRECT ||
	    !pf_through_out(way->out * MAX_PORTS | way->in, now) || pf_state_follow(now, false))
		return XDP_PASS;
	pf_through_keep(now);
	return route_filtered_goes(xdp, in, slot);
}
#endif

/*
 * Sends a frame after the decision on it, or routes it. The frame and the verdict are in a struct
 * judged.
 */
static __always_inline int send_or_route(struct xdp_md *xdp, struct frame *f, struct verdict *v,
					 u32 now)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};

	if (on(FEATURE_ROUTE) && routes_here(v)) {
		if (!ROUTES_BY_XDP || f->tag)
			return XDP_PASS;
		if (ROUTES_PAST_PF)
			return XDP_ROUTES;
		if (!on(FEATURE_RULES) && route_quickly(xdp, v->in, v->out, f->dst) == XDP_REDIRECT)
			return XDP_REDIRECT;
		return route_frame_xdp(xdp, (void *)f - offsetof(struct judged, f));
	}
	return send_xdp(&h, f, v, now);
}

/* Carries out the decision about a frame. */
static __always_inline int act_xdp(struct xdp_md *xdp, struct frame *f, struct verdict *v,
				   struct decision *d, u32 epoch, enum action action, u32 now)
{
	u32 mtu = 0;

	switch (action) {
	case ACTION_SEND:
		if (!xdp_fits(xdp, port_fits(&xdp_devices, v->out), f->tag, &mtu))
			return XDP_PASS;
		decision_keep(d, f, v, epoch, mtu + ETHER_HEADER);
		return send_or_route(xdp, f, v, now);
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
/* The same for the frame of struct judged. */
OFTEN __noinline int act_xdp_judged(struct xdp_md *xdp, u32 epoch, u32 action)
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

static __always_inline int take_xdp(struct xdp_md *xdp)
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
		return send_or_route(xdp, f, v, on(FEATURE_PF) ? READ_ONCE(c->now) : 0);
	}

#ifdef DECIDES_AT_ONCE
	return act_xdp(xdp, f, v, d, epoch, decide(&h, f, v, READ_ONCE(c->now)),
		       on(FEATURE_PF) ? clock_now() : 0);
#else
	return act_xdp_judged(xdp, epoch, decide_xdp(xdp, READ_ONCE(c->now)));
#endif
}

static __always_inline int switch_xdp(struct xdp_md *xdp)
{
	int action;

	if (on(FEATURE_RATE)) {
		action = rate_refuses_xdp(xdp);
		if (action != XDP_REDIRECT)
			return action;
	}
	action = take_xdp(xdp);
#ifndef DECIDES_AT_ONCE
	/* here, where there is room left on the stack */
	if (ROUTES_PAST_PF && action == XDP_ROUTES) {
		action = route_flow_xdp(xdp);
		if (action == XDP_PASS)
			action = route_filtered_xdp(xdp);
		if (on(FEATURE_PF_FIRST) && action == XDP_JUDGES)
			bpf_tail_call(xdp, &pf_panel_xdp, XDP_PANEL_FIRST);
		/* without that program tcx judges the packet */
		if (on(FEATURE_PF_FIRST) && action == XDP_JUDGES)
			action = XDP_PASS;
	}
#endif
	if (on(FEATURE_RATE) && action == XDP_REDIRECT)
		rate_pays_xdp(xdp);
	return action;
}
