/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Patch cables: from bridge to bridge by a tail call, without a device between.
 *
 * Each end of a cable has a number in its network namespace, and the panel has
 * for each the program of the bridge that owns it. A tail call never returns. So
 * a flood notes the cables that it takes, and follows one of them; whoever ends
 * with the frame goes on with what is still noted. All that a frame from one
 * device causes in this way is a trip.
 */
#pragma once

#include "account.h"

/* Frames that come by a cable have this and their endpoint in place of a device. */
#define PATCH_IFINDEX (1u << 31)
#define PATCH_MTU (1u << 30) /* no device, no limit of its own */
#define PATCH_HOPS 32 /* cables that a trip follows; the kernel allows 33 tail calls */

/* Sizes are set by the loader, as those of all tables. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} patch_panel SEC(".maps");

/* A cable that is still to be followed, and how the frame's tags are on it. */
struct patch_wait {
	u16 endpoint;
	u16 proto; /* of the outermost tag, as the packet has it */
	u32 outer; /* that tag: TAG_PRESENT | TCI, 0 for none */
	__s16 depth; /* tags more than at the trip's start */
	__s16 low; /* what the trip's was when this was noted */
};

/*
 * A trip. Bridges change the outermost tag alone, so a cable that waits gets its
 * form of the frame back as long as nobody has touched the tags below that.
 */
struct trip {
	u64 number; /* a bridge that has it in COUNTER_TRIP has had the frame */
	u32 endpoint; /* by which the frame is coming */
	u16 hops;
	u16 waits; /* of next */
	__s16 depth; /* tags more than at the trip's start */
	__s16 low; /* tags up to this depth are as they were when the last cable was noted */
	u32 pad;
	struct patch_wait next[PATCH_HOPS];
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct trip);
} patch_trip SEC(".maps");

static __always_inline struct trip *trip_get(void)
{
	u32 zero = 0;

	return bpf_map_lookup_elem(&patch_trip, &zero);
}

/* Has the frame been in this bridge on the trip before? */
static __always_inline bool trip_returns(void)
{
	const struct trip *t = trip_get();
	u64 *seen = counter_of(COUNTER_TRIP);

	if (!t || !seen || *seen == t->number)
		return true;
	*seen = t->number;
	return false;
}

/* Begins a trip at this bridge. */
static __always_inline struct trip *trip_start(void)
{
	struct trip *t = trip_get();
	u64 *seen = counter_of(COUNTER_TRIP);

	/* a panel that is new does not count on from where bridges remember another */
	if (t && !t->number)
		t->number = bpf_ktime_get_ns();

	if (!t || !seen)
		return 0;
	*seen = ++t->number;
	t->hops = 0;
	t->waits = 0;
	t->depth = 0;
	t->low = 0;
	return t;
}

/* Keeps count of the tags where a bridge changes them. */
__noinline int patch_retagged(u32 has, u32 wants)
{
	struct trip *t = trip_get();

	if (!t || has == wants)
		return 0;
	if (has && t->depth - 1 < t->low)
		t->low = t->depth - 1;
	t->depth += !!wants - !!has;
	return 0;
}

/* Notes that the frame goes on by a cable, as it is now; false if there are too many. */
__noinline int patch_queue(struct __sk_buff *skb, u32 endpoint)
{
	struct trip *t = trip_get();
	struct patch_wait *w;

	if (!t || t->waits >= PATCH_HOPS)
		return false;
	w = &t->next[t->waits & (PATCH_HOPS - 1)];
	t->waits++;
	w->endpoint = endpoint;
	w->outer = tag_beside(skb);
	w->proto = skb->vlan_proto;
	w->depth = t->depth;
	w->low = t->low;
	t->low = t->depth - !!w->outer;
	return true;
}

/*
 * Gives the frame the tags that it had when a cable was noted; false if they are
 * lost. Cables are taken in the opposite order, which `low` relies on.
 */
static __always_inline bool patch_restore(struct __sk_buff *skb, struct trip *t,
					  const struct patch_wait *w)
{
	__s16 base = w->depth - !!w->outer, low = t->low;

	t->low = w->low < low ? w->low : low;
	if (low < base)
		return false;
	if (t->depth == w->depth && tag_beside(skb) == w->outer &&
	    (!w->outer || (u16)skb->vlan_proto == w->proto))
		return true;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i <= PATCH_HOPS && t->depth > base; i++) {
		if (bpf_skb_vlan_pop(skb))
			return false;
		t->depth--;
	}
	if (w->outer) {
		if (bpf_skb_vlan_push(skb, w->proto, w->outer & 0xffff))
			return false;
		t->depth++;
	}
	if (base < t->low)
		t->low = base;
	return true;
}

#define PATCH_NOWHERE PATCH_IFINDEX /* nothing is there in the panel */

/*
 * Takes the next cable that waits, and makes the frame ready for it: its
 * endpoint; 0 if there is none. Before was the one that led nowhere, if any. A
 * function of its own, because a tail call can't be made by one that the verifier
 * looks at once, and the loop round that shall be short.
 */
__noinline u32 patch_next(struct __sk_buff *skb, u32 ifindex, u32 before)
{
	struct trip *t = trip_get();
	struct patch_wait *w;

	if (!t)
		return 0;
	if (before && before != PATCH_NOWHERE) {
		t->hops--;
		account_drop(skb, port_slot(ifindex), 0, DROP_NO_PEER);
	}
	if (!t->waits)
		return 0;
	t->waits--;
	w = &t->next[t->waits & (PATCH_HOPS - 1)];
	if (t->hops >= PATCH_HOPS) {
		account_drop(skb, port_slot(ifindex), 0, DROP_PATCH_LOOP);
		return PATCH_NOWHERE;
	}
	if (!patch_restore(skb, t, w)) {
		account_drop(skb, port_slot(ifindex), 0, DROP_DOUBLE_TAG);
		return PATCH_NOWHERE;
	}
	t->hops++;
	t->endpoint = w->endpoint;
	return w->endpoint;
}

/* Goes on with the next cable that waits, until one leads somewhere. */
static __always_inline int patch_follow(struct __sk_buff *skb, u32 ifindex)
{
	u32 endpoint = 0;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i <= PATCH_HOPS; i++) {
		endpoint = patch_next(skb, ifindex, endpoint);
		if (!endpoint)
			break;
		bpf_tail_call(skb, &patch_panel, endpoint);
	}
	return TC_ACT_SHOT;
}

/* A tail call that the compiler leaves where it is, with this index alone. */
static __always_inline void patch_call(struct __sk_buff *skb, u32 endpoint)
{
	asm volatile("r1 = %[skb]\n\t"
		     "r2 = %[panel]\n\t"
		     "r3 = %[endpoint]\n\t"
		     "call 12"
		     :
		     : [skb] "r"(skb), [panel] "r"(&patch_panel), [endpoint] "r"(endpoint)
		     : "r0", "r1", "r2", "r3", "r4", "r5", "memory");
}

/*
 * Jumps to the program at the other end of a cable. Where the verifier knows the
 * index the kernel makes it a direct jump, which spares a conversation what is
 * put before indirect ones (retpolines), at every bridge.
 */
static __always_inline void patch_jump(struct __sk_buff *skb, u32 endpoint)
{
	if (endpoint == set.cables[0])
		patch_call(skb, set.cables[0]);
	else if (endpoint == set.cables[1])
		patch_call(skb, set.cables[1]);
	else if (endpoint == set.cables[2])
		patch_call(skb, set.cables[2]);
	else if (endpoint == set.cables[3])
		patch_call(skb, set.cables[3]);
	else
		patch_call(skb, endpoint);
}

/* Goes to the bridge at the other end; returns only if the frame can't get there. */
static __always_inline void patch_go(struct __sk_buff *skb, struct trip *t, u32 endpoint,
				     u32 ifindex)
{
	u32 reason = DROP_PATCH_LOOP;

	if (t->hops < PATCH_HOPS) {
		t->hops++;
		t->endpoint = endpoint;
		patch_jump(skb, endpoint);
		t->hops--;
		reason = DROP_NO_PEER;
	}
	account_drop(skb, port_slot(ifindex), 0, reason);
}
