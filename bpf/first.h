/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The first packet of a connection that XDP routes past pf, in a program of its own: bascule_xdp
 * ends in it where pf knows no state of a packet that is for a routed host port. The packet is
 * judged on its way into the host and on its way out, gets both its states, is translated and
 * sent. By tcx it is all that twice, once for each port of the host, with an skb.
 *
 * What comes of it is what tcx makes of the packet. So tcx gets each packet for which there is
 * more to do: a rule that blocks it but where it comes in, or tells its sender, that logs it or
 * changes it otherwise than by translation, that says a next hop, takes turns in a pool, or
 * translates to the other family; a way that XDP does not take, a neighbour that nobody knows, a
 * state of it that is there already. What the rules have counted until then is taken back. The
 * states are made when nothing else is in the way.
 */
#pragma once

#include "pf/first.h"
#include "xdp.h"

#ifndef DECIDES_AT_ONCE
/*
 * Was a packet of this connection left to tcx within this second? Then this one is, too, without a
 * look at the rules: its connection has no state on one of its ways, or rules block it.
 */
static __always_inline bool first_left(struct pf_first *f, const struct pf_packet *p, u32 now)
{
	u64 hash = pf_hash(&p->key);

	f->left = hash >> 32 & (PF_FIRST_LEFT - 1);
	f->mark = (u32)(hash >> 40) ^ now;
	return f->lately[f->left & (PF_FIRST_LEFT - 1)] == f->mark;
}

/*
 * Looks whether XDP may judge the packet of struct judged, which has no state as far as bascule_xdp
 * knows. Nothing has been changed then.
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
	/* nobody may know a state with the key, not even one that is over */
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

/* Finds the way of the packet, which the rules have let into the host: false if XDP may not. */
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

/* The VLAN of the frame that comes from the host by a way: false if nobody remembers it. */
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
 * Makes this CPU's packet, which rules have let into the host, the one that goes out of it. False
 * if a state has that one.
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
	/* the key on the way in is kept, but for what is in the place of the VLAN */
	pf_first_comes_out(vlan);
	found = pf_state_find(&p->key);
	if (found && pf_state_hosts(found - 1))
		return false;
	p->key.vlan = routed;
	return !pf_state_find(&p->key);
}

/* Makes the state of the packet on its way out of the host: 0, or why the packet is dropped. */
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

/* Counts a packet that is dropped on its way into the host: all that is counted of it. */
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

/* Counts a packet that has come in to the host: where it goes on, or why it does not. */
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

/* Makes the frame the one on its next link. False if that cannot be. */
OFTEN __noinline u32 first_writes(struct xdp_md *xdp)
{
	struct route_memory *memory = route_memory_get();
	const struct pf_through *t = pf_through();
	struct pf_first *f = pf_first();
	void *data, *data_end;
	struct route_way *way;

	if (!on(FEATURE_PF_FIRST) || !memory || !t || !f)
		return false;
	/* what is behind the packet to fill its frame stays on the link that it came by */
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

/* Drops a packet that rules block where it comes in. */
OFTEN __noinline int first_blocks(void)
{
	struct pf_first *f = pf_first();

	if (!on(FEATURE_PF_FIRST) || !f)
		return XDP_PASS;
	pf_first_blocks();
	count_refused(f->in, f->len, DROP_PF);
	return XDP_DROP;
}

/* Leaves the packet to tcx, which makes of it what it would have made. */
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
