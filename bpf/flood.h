/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* One frame to many ports. */
#pragma once

#include "send.h"

/*
 * A frame that is being flooded, and the progress of the flood. The stack has no room for this, so
 * it is in the CPU's work area. No other frame interferes: frames that a flood sends are received
 * after the CPU has finished the flood.
 */
struct flooded {
	struct frame f; /* this and the verdict are as in struct judged, for ask_out() */
	struct verdict v;
	u32 last; /* the port that takes the frame itself; the others take copies */
	u32 last_tag; /* the tag with which it should leave there */
	u32 has; /* the tag that the frame has now */
	u32 dropped; /* a port has dropped it and counted the drop */
	/* the ports of a set that the flood must still look at */
	u32 base; /* slot of the first bit of word */
	u64 word;
};

WORK_HOLDS(struct flooded);

struct flood {
	struct __sk_buff *skb;
	struct flooded *what;
	const u64 *ports; /* set of ports to walk over, of PORT_WORDS words; 0 for none */
};

/*
 * Sends a copy to the port that was found last. This is a separate function: the verifier follows
 * it once, and its stack frame is gone when pf's functions are called.
 */
OFTEN APART int flood_copy(struct __sk_buff *skb, struct flooded *what)
{
	if (what)
		send_copy(skb, &what->f, &what->v, what->last, &what->has, what->last_tag);
	return 0;
}

/* Can the two ports simply not reach each other? That is no fault of the frame, and no drop. */
static __always_inline bool flood_unreachable(u32 reason)
{
	return reason == DROP_PROTECTED || reason == DROP_VLAN_OUT || reason == DROP_SPAN;
}

static __always_inline void flood_port(struct flood *flood, u32 slot)
{
	struct __sk_buff *skb = flood->skb;
	/* the hook must be a constant: some helpers only exist for one hook */
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	const struct frame *f = &flood->what->f;
	struct verdict *v = &flood->what->v;
	u32 mtu = 0, reason = flood_past(v->in, slot, v->flood);
	u16 tag = 0;

	if (reason) {
		if (on(FEATURE_TRACE))
			trace_flood(slot, reason, 0);
		return;
	}
	if (on(FEATURES_OUT)) {
		reason = ask_out(&h, f, v, slot);
		tag = vlan_tag(v, slot);
	}
	if (!reason && f->len > ALWAYS_FITS)
		reason = send_fits(skb, f, slot, &mtu);
	/* a flood has no single way out: its state accepts any that the rules allow */
	if (on(FEATURE_PF) && !reason)
		reason = pf_settle(&h, v, 0, clock_now());
	if (on(FEATURE_TRACE)) {
		if (!reason) {
			flood->what->last = slot;
			if (on(FEATURE_SPAN))
				span_out(skb, f, v, slot);
		}
		trace_flood(slot, reason, tag);
		return;
	}
	if (on(FEATURE_RULES))
		rules_count(0, v->rule_out, f->len);
	if (reason) {
		if (!flood_unreachable(reason)) {
			flood->what->dropped = true;
			account_drop(skb, v->in, capture_vlans(v), reason);
		}
		return;
	}
	/* captures the frame where it arrived, before it gets another tag */
	if (on(FEATURE_CAPTURE) && !flood->what->last)
		capture_frame(skb, v->in, capture_vlans(v), CAPTURE_IN, 0);
	if (flood->what->last)
		flood_copy(skb, flood->what);
	flood->what->last = slot;
	flood->what->last_tag = tag_with_priority(f, tag);
}

/*
 * Looks at one slot. The loop includes slot 0, which belongs to no port: for a bridge without ports
 * it would otherwise be a loop over nothing, for which Linux 6.18 refuses the program.
 */
OFTEN static long flood_slot(u32 n, struct flood *flood)
{
	flood_port(flood, n);
	return 0;
}

/*
 * Takes the next port of a set, or its next word. The walk leaves out ports that are not in the
 * set.
 */
OFTEN static long flood_member(u32 n, struct flood *flood)
{
	struct flooded *what = flood->what;
	u32 bit;

	if (!flood->ports)
		return 1;
	if (!what->word) {
		what->base += 64;
		if (what->base >= set.slots || what->base >= MAX_PORTS)
			return 1;
		what->word = flood->ports[what->base / 64 & (PORT_WORDS - 1)];
		return 0;
	}
	bit = first_bit(what->word);
	what->word &= what->word - 1;
	flood_port(flood, what->base + bit);
	return 0;
}

/* In a trial, records a port that is not in the set and that the walk has left out. */
static long flood_other(u32 n, struct flood *flood)
{
	if (!flood->ports || !ports_have(flood->ports, n))
		trace_flood(n, DROP_VLAN_OUT, 0);
	return 0;
}

/* Floods to the ports of a set. The set is in a map; 0 means an empty set. */
static __always_inline void flood_set(struct __sk_buff *skb, struct flooded *what, const u64 *ports)
{
	struct flood flood = {.skb = skb, .what = what, .ports = ports};

	what->base = -64;
	what->word = 0;
	bpf_loop(set.slots + PORT_WORDS + 1, flood_member, &flood, 0);
}

/*
 * Begins a trip, unless the frame has come by a patch cable and is on one. Returns false if the
 * frame is lost.
 */
static __always_inline bool flood_starts(bool cable)
{
	return !on(FEATURE_PATCH) || cable || trip_start();
}

/* Sends copies to all ports that take the frame, except the last. */
static __always_inline void flood_walk(struct __sk_buff *skb, struct flooded *what)
{
	what->last = 0;
	what->has = what->f.outer;
	what->dropped = false;
	if (on(FEATURE_VLANS)) {
		struct vlan *row = vlan_row(what->v.vid);

		flood_set(skb, what, row ? row->reach : 0);
		if (on(FEATURE_TRACE)) {
			struct flood others = {.ports = row ? row->reach : 0};

			bpf_loop(set.slots, flood_other, &others, 0);
		}
	} else {
		struct flood flood = {.skb = skb, .what = what};

		bpf_loop(set.slots, flood_slot, &flood, 0);
	}
}

/*
 * Sends the frame itself to the last port. If the flood has noted patch cables, the last port gets
 * a copy, too, and the frame must still follow them.
 */
static __always_inline int flood_end(struct __sk_buff *skb, struct flooded *what)
{
	const struct frame *f = &what->f;
	const struct verdict *v = &what->v;
	struct trip *t = on(FEATURE_PATCH) ? trip_get() : 0;

	/* a trial sends nothing, not by patch cables either */
	if (on(FEATURE_TRACE)) {
		TRACE(step, STEP_FLOOD);
		if (!what->last) {
			TRACE(action, ACTION_DROP);
			TRACE(reason, DROP_NO_MEMBER);
		}
		return TC_ACT_OK;
	}
	/* rules have let the packet in, and no port has taken it */
	if (on(FEATURE_PF) && on(FEATURE_PF_LOG) && v->pf == PF_LOOK_JUDGE)
		pf_log_due(skb, 0);
	/* drops at ports have been counted */
	if (!what->last && !what->dropped)
		account_drop(skb, v->in, capture_vlans(v), DROP_NO_MEMBER);
	if (on(FEATURE_PATCH) && ((t && t->waits) || (port_at(what->last)->facts & PORT_PATCH))) {
		if (what->last)
			flood_copy(skb, what);
		return TC_ACT_SHOT;
	}
	if (!what->last)
		return TC_ACT_SHOT;
	return send_by(skb, f, v, what->last, what->has, what->last_tag);
}

/* Follows the waiting cables. This has to be in the program itself: see patch_next(). */
static __always_inline int flood_follow(struct __sk_buff *skb, u32 ifindex, int action)
{
	struct trip *t = on(FEATURE_PATCH) && !on(FEATURE_TRACE) ? trip_get() : 0;

	return t && t->waits ? patch_follow(skb, ifindex) : action;
}

#ifdef DECIDES_AT_ONCE
static __always_inline int flood_skb(struct __sk_buff *skb, const struct frame *f,
				     const struct verdict *v, bool cable)
{
	struct flooded *what = work_of(WORK_FRAME);

	if (!what || !flood_starts(cable))
		return TC_ACT_SHOT;
	what->f = *f;
	what->v = *v;
	flood_walk(skb, what);
	return flood_follow(skb, f->ifindex, flood_end(skb, what));
}
#else
/* The same for the frame of struct judged, with which struct flooded begins. */
OFTEN __noinline int flood_walk_judged(struct __sk_buff *skb, u32 cable)
{
	struct flooded *what;

	if (!flood_starts(cable))
		return false;
	/* Read only now: else clang would keep it on the stack during the call before. */
	what = work_of(WORK_FRAME);
	if (!what)
		return false;
	flood_walk(skb, what);
	return true;
}

OFTEN __noinline int flood_end_judged(struct __sk_buff *skb)
{
	struct flooded *what = work_of(WORK_FRAME);

	return what ? flood_end(skb, what) : TC_ACT_SHOT;
}

/* Floods the frame of struct judged. `follows`: the caller does not handle patch cables. */
static __always_inline int flood_judged(struct __sk_buff *skb, bool cable, bool follows)
{
	int action = flood_walk_judged(skb, cable) ? flood_end_judged(skb) : TC_ACT_SHOT;
	struct judged *j = follows ? judged_here(0) : 0;

	return j ? flood_follow(skb, j->f.ifindex, action) : action;
}
#endif

struct flood_xdp {
	struct xdp_md *xdp;
	u32 in; /* slots */
	u32 last;
	u32 len;
	u32 tag; /* bytes of len that are a tag */
};

static __always_inline bool flood_takes_xdp(const struct flood_xdp *flood, u32 slot)
{
	return port_at(slot)->id && slot != flood->in && port_has_device(&xdp_devices, slot);
}

static long flood_fits_xdp(u32 n, struct flood_xdp *flood)
{
	u32 slot = n, mtu = 0;

	if (!flood_takes_xdp(flood, slot))
		return 0;
	flood->last = slot;
	if (flood->len <= ALWAYS_FITS ||
	    xdp_fits(flood->xdp, port_fits(&xdp_devices, slot), flood->tag, &mtu))
		return 0;
	flood->last = 0;
	return 1;
}

static long flood_count_xdp(u32 n, struct flood_xdp *flood)
{
	if (flood_takes_xdp(flood, n))
		count_tx(n, flood->len);
	return 0;
}

/*
 * Floods without an skb. This works only from a port with PORT_XDP_FLOOD: only the MTU can keep its
 * frames from another port. Returns false if the flood is left to tcx.
 */
static __always_inline bool flood_xdp(struct xdp_md *xdp, const struct frame *f,
				      const struct verdict *v)
{
	struct flood_xdp flood = {.xdp = xdp, .in = v->in, .len = f->len, .tag = f->tag};

	if (!on(FEATURE_XDP_FLOOD) || !(port_at(v->in)->ways & WAY_XDP_FLOOD))
		return false;
	bpf_loop(set.slots, flood_fits_xdp, &flood, 0);
	if (!flood.last)
		return false;
	bpf_loop(set.slots, flood_count_xdp, &flood, 0);
	bpf_redirect_map(&xdp_devices, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
	return true;
}
