/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The first packet of a connection that XDP routes past pf, in a separate program. bascule_xdp ends
 * in it if pf has no state for a packet to a routed host port. The program judges the packet on its
 * way into the host and on its way out, makes both states, translates the packet and sends it. With
 * tcx all of that happens twice, once for each port of the host, with an skb.
 *
 * The result is the same as with tcx. So tcx gets each packet that needs more: a rule blocks it
 * elsewhere than on arrival, notifies its sender, logs it, changes it other than by translation,
 * sets a next hop, uses a pool round-robin, or translates to the other family; or XDP does not take
 * its way, its neighbour is unknown, or it has a state already. Then the program subtracts what the
 * rules have counted so far. The states are made last, when nothing can prevent it.
 */
#pragma once

#include "pf/first.h"
#include "xdp.h"

#ifndef DECIDES_AT_ONCE
/*
 * Was a packet of this connection left to tcx within this second? Then this one is, too, without an
 * evaluation of the rules: its connection has no state on one of its ways, or rules block it.
 */
static __always_inline bool first_left(struct pf_first *f, const struct pf_packet *p, u32 now)
{
	u64 hash = pf_hash(&p->key);

	f->left = hash >> 32 & (PF_FIRST_LEFT - 1);
	f->mark = (u32)(hash >> 40) ^ now;
	return f->lately[f->left & (PF_FIRST_LEFT - 1)] == f->mark;
}

/*
 * Checks whether XDP may judge the packet of struct judged, for which bascule_xdp has found no
 * state. Until then nothing has been changed.
 */
OFTEN __noinline u32 first_begins(struct xdp_md *xdp)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	struct pf_shared *shared = pf_shared_get();
	struct pf_packet *p = pf_packet();
	struct judged *j = judged_here(0);
	struct pf_first *f = pf_first();
	u32 now = clock_now();

	if (!on(FEATURE_PF_FIRST) || !j || !p || !f || !shared)
		return false;
	if (pf_has_scale(p) &&
	    (!pf_read_scale_xdp(xdp) ||
	     pf_look_up_state(&h, p, j->v.out * MAX_PORTS | j->v.in, now) != PF_LOOK_JUDGE))
		return false;
	/* no state may have the key, not even one that is over */
	if (p->flags || !p->vacant || !(p->key.vlan & PF_ROUTED) || first_left(f, p, now) ||
	    READ_ONCE(shared->states) + 2 > cfg.pf.states_max)
		return false;
	f->in = j->v.in;
	f->slot = j->v.out;
	f->len = j->f.len;
	f->fill = 0;
	f->tried = 0;
	f->judged = 0;
	f->odd = f->blocked = false;
	return true;
}

/*
 * Finds the way of the packet, which the rules have let into the host. Returns false if XDP may not
 * send it.
 */
OFTEN __noinline u32 first_way(struct xdp_md *xdp)
{
	struct route_memory *memory = route_memory_get();
	struct pf_through *t = pf_through();
	struct pf_packet *p = pf_packet();
	struct judged *j = judged_here(0);
	struct pf_first *f = pf_first();
	struct route_way *way;

	if (!on(FEATURE_PF_FIRST) || !memory || !t || !p || !j || !f)
		return false;
	t->on = t->is = false;
	if (on(FEATURE_PF_NAT) && pf_translated()) {
		pf_through_as(t, p);
		t->on = true;
	}
	if (!route_known_xdp(xdp, f->slot, j->f.dst)) {
		if (!route_decide_xdp(xdp, j) || memory->way > cfg.ways)
			return false;
		f->fill = f->len - memory->len;
	}
	way = route_way(memory->way);
	return way && way->epoch && port_takes_xdp(port_at(way->out)) &&
	       bpf_redirect_map(&xdp_devices, way->out, XDP_PASS) == XDP_REDIRECT;
}

/*
 * The VLAN of the frame that comes from the host by a way. Returns false if it is not remembered.
 */
static __always_inline bool first_vlan(const struct route_way *way, u16 *vlan)
{
	struct frame out = {};
	struct decision *d;

	*vlan = 0;
	if (!on(FEATURES_KEPT))
		return true;
	out.ifindex = port_at(way->in)->ifindex;
	__builtin_memcpy(&out.dst, way->dmac, 6);
	__builtin_memcpy(&out.src, way->smac, 6);
	d = decision_cell(&out);
	if (!d || !decision_holds(d, &out, way->epoch))
		return false;
	*vlan = decision_vlan(d, &out);
	return true;
}

/*
 * Turns this CPU's packet, which rules have let into the host, into the packet that leaves the
 * host. Returns false if that one has a state.
 */
OFTEN __noinline u32 first_comes_out(void)
{
	struct route_memory *memory = route_memory_get();
	struct pf_packet *p = pf_packet();
	struct route_way *way;
	u32 routed, found;
	u16 vlan;

	if (!on(FEATURE_PF_FIRST) || !memory || !p)
		return false;
	way = route_way(memory->way);
	if (!way || !pf_to_host(way->in) || pf_to_host(way->out) || pf_of_link(p->key.address[0]) ||
	    pf_of_link(p->key.address[1]) || !first_vlan(way, &vlan))
		return false;
	routed = PF_ROUTED | port_at(way->in)->domain;
	if (!p->side)
		routed |= PF_OUTWARD;
	/* the key on the way in is kept, except that another value replaces the VLAN */
	pf_first_comes_out(vlan);
	found = pf_state_find(&p->key);
	if (found && pf_state_hosts(found - 1))
		return false;
	p->key.vlan = routed;
	return !pf_state_find(&p->key);
}

/*
 * Makes the state of the packet on its way out of the host. Returns 0, or the reason to drop the
 * packet.
 */
OFTEN __noinline u32 first_makes_out(void)
{
	struct route_memory *memory = route_memory_get();
	struct pf_through *t = pf_through();
	struct pf_packet *p = pf_packet();
	struct route_way *way;
	u32 translated;

	if (!on(FEATURE_PF_FIRST) || !memory || !t || !p)
		return DROP_PF;
	way = route_way(memory->way);
	if (!way)
		return DROP_PF;
	translated = on(FEATURE_PF_NAT) && pf_translated();
	if (translated)
		t->on = true;
	return pf_first_make(way->in, way->out, clock_now(), translated);
}

/* Counts a packet that is dropped on its way into the host. Nothing else counts it. */
__noinline int first_refused(u32 reason)
{
	struct pf_first *f = pf_first();

	if (!on(FEATURE_PF_FIRST) || !f)
		return 0;
	if (cfg.pf.log_interface) {
		pf_count_port(f->in, false, false);
		pf_count_port(f->slot, true, false);
	}
	/* tcx would not have judged it on its way out */
	pf_first_undo(f->tried_in);
	pf_first_counts(f->judged_in);
	count_refused(f->in, f->len, reason);
	pf_count_drop(reason);
	return 0;
}

/* Counts a packet that has entered the host, where it leaves or where it is dropped. */
OFTEN __noinline int first_counts(u32 reason)
{
	struct route_memory *memory = route_memory_get();
	struct pf_first *f = pf_first();
	struct route_way *way;
	u32 len;

	if (!on(FEATURE_PF_FIRST) || !memory || !f)
		return 0;
	way = route_way(memory->way);
	if (!way)
		return 0;
	len = f->len - f->fill;
	pf_first_counts(f->judged);
	count_rx(f->in, f->len);
	count_routed(f->slot, f->len);
	if (cfg.pf.log_interface) {
		pf_count_port(f->in, false, false);
		pf_count_port(f->slot, true, false);
		pf_count_port(way->in, false, false);
		pf_count_port(way->out, true, false);
	}
	if (reason) {
		count_refused(way->in, len, reason);
		pf_count_drop(reason);
		return 0;
	}
	count_rx(way->in, len);
	count_tx(way->out, len);
	return 0;
}

/* Rewrites the frame for its next link. Returns false if that is impossible. */
OFTEN __noinline u32 first_writes(struct xdp_md *xdp)
{
	struct route_memory *memory = route_memory_get();
	const struct pf_through *t = pf_through();
	struct pf_first *f = pf_first();
	void *data, *data_end;
	struct route_way *way;

	if (!on(FEATURE_PF_FIRST) || !memory || !t || !f)
		return false;
	/* the padding of the frame stays on the link of arrival */
	if (f->fill && bpf_xdp_adjust_tail(xdp, -(int)f->fill))
		return false;
	data = (void *)(long)xdp->data;
	data_end = (void *)(long)xdp->data_end;
	way = route_way(memory->way);
	if (!way || data + ETHER_HEADER + sizeof(struct iphdr) > data_end ||
	    (on(FEATURE_PF_NAT) && t->on && !pf_through_write(data, data_end)))
		return false;
	route_ages(data);
	route_readdress(data, way->dmac);
	return true;
}

/* Drops a packet that rules block on arrival. */
OFTEN __noinline int first_blocks(void)
{
	struct pf_first *f = pf_first();

	if (!on(FEATURE_PF_FIRST) || !f)
		return XDP_PASS;
	pf_first_blocks();
	count_refused(f->in, f->len, DROP_PF);
	return XDP_DROP;
}

/* Leaves the packet to tcx, with the result that tcx would have had at once. */
__noinline int first_leaves(void)
{
	struct pf_first *f = pf_first();

	if (!on(FEATURE_PF_FIRST) || !f)
		return XDP_PASS;
	pf_first_undo(0);
	f->lately[f->left & (PF_FIRST_LEFT - 1)] = f->mark;
	return XDP_PASS;
}

static __always_inline int first_xdp(struct xdp_md *xdp)
{
	struct route_memory *memory;
	struct pf_first *f;
	struct route_way *way;
	u32 reason;

	if (!on(FEATURE_PF_FIRST) || !first_begins(xdp))
		return XDP_PASS;
	f = pf_first();
	if (!f)
		return XDP_PASS;
	if (!pf_first_judges(f->in, f->slot))
		return f->blocked ? first_blocks() : first_leaves();
	if (!first_way(xdp) || !first_comes_out())
		return first_leaves();
	memory = route_memory_get();
	way = memory ? route_way(memory->way) : 0;
	if (!way || !pf_first_judges(way->in, way->out))
		return first_leaves();
	reason = pf_first_makes_in(clock_now());
	if (reason) {
		first_refused(reason);
		return XDP_DROP;
	}
	reason = first_makes_out();
	first_counts(reason);
	return !reason && first_writes(xdp) ? XDP_REDIRECT : XDP_DROP;
}
#endif
