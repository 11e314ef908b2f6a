/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Patch cables: a frame gets from bridge to bridge by a tail call, without a device between.
 *
 * Each end of a cable has a number in its network namespace. For each end, the panel has the
 * program of the bridge that owns it. A tail call never returns. So a flood notes the cables that
 * it takes, and follows one of them. The program that finishes with the frame goes on with a cable
 * that is still noted. A trip is everything that a frame from one device causes in this way.
 */
#pragma once

#include "account.h"

/* A frame that comes by a cable has this and its endpoint instead of a device. */
#define PATCH_IFINDEX (1u << 31)
#define PATCH_MTU (1u << 30) /* a cable has no device, and no limit of its own */
#define PATCH_HOPS 32 /* cables that a trip follows; the kernel allows 33 tail calls */

/* The loader sets the size, as for all tables. */
struct {
	__uint(type, BPF_MAP_TYPE_PROG_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u32);
} patch_panel SEC(".maps");

/* A cable that must still be followed, and the tags that the frame has on it. */
struct patch_wait {
	u16 endpoint;
	u16 proto; /* of the outermost tag, as the packet has it */
	u32 outer; /* that tag: TAG_PRESENT | TCI, 0 for none */
	__s16 depth; /* tags more than at the trip's start */
	__s16 low; /* trip.low when the cable was noted */
};

/*
 * Number of next hops that are distinguished, when the host should see one packet a second to each.
 */
#define FRESH_HOPS 1024

/*
 * The way of packets like one that this CPU has routed. The packets of a connection need the same
 * look-ups, and these take longer than all other work. A way is valid in the tick of the kernel's
 * clock in which it was found, a few milliseconds, while no route changes: the kernel numbers
 * changes of its routes, addresses and rules. So a change of a route takes effect for the next
 * packet. Changes that the kernel does not number (a neighbour's address, a setting) take effect in
 * the next tick: then the routes are looked up once more, see route_renew().
 */
struct route_way {
	u64 gateway; /* key of the table of gateways: the address that the packet is for */
	u64 address[4]; /* of the packet, as in struct bpf_fib_lookup */
	u64 ports; /* with its protocol and family, as there */
	u32 flow; /* TOS, or flow label with traffic class */
	u32 tick;
	u32 changes;
	u32 ifindex; /* of the device that it leaves through: the routed host port's, if any */
	u16 mtu;
	u16 family; /* of the next hop; 0 for a routed host port */
	/*
	 * For XDP: the bridge's decision on the packet at that port, where it sends it untagged.
	 * The decision is valid in its epoch: see decision.h.
	 */
	u32 epoch; /* 0: unknown */
	u16 in; /* slots */
	u16 out;
	union {
		u32 hop[4];
		struct {
			u8 dmac[6];
			u8 smac[6];
			u32 endpoint; /* of the routed host port */
		};
	};
	u32 again; /* it may be renewed */
};

/* Interfaces of the host that are known to accept packets, or to let them leave. */
#define ROUTE_ENDS 16

/* In this tick the host takes packets of a family to an address. */
struct route_taker {
	u64 gateway; /* as in struct route_way */
	u32 tick;
	u32 interface; /* index of the host's interface */
	u32 six;
	u32 pad;
};

/* In this tick packets leave through the interface with this index, as the datapath sends them. */
struct route_leaver {
	u32 interface;
	u32 tick;
	u32 endpoint; /* of the routed host port; 0 for another device */
};

/*
 * A routed packet's form on its next link, and the times of the last packets that the host has seen
 * to next hops.
 */
struct route_memory {
	u64 net; /* address of the network namespace in the kernel, 0 until it is looked up */
	u64 device; /* address of the host's interface that the packet is for */
	u64 dst, src; /* of the frame on that link, as in struct frame */
	u32 endpoint; /* of the routed host port through which it leaves, 0 for another device */
	u32 ifindex; /* that port's device */
	u32 len; /* bytes of the frame, without its padding */
	u32 interface; /* index of the host's interface that the packet is for */
	u32 vrf; /* index of the interface's VRF, 0 for none */
	u64 look[3][8]; /* look-ups, for which the stack has no room: there, back, in a VRF */
	u64 hop[3]; /* the next hop, for bpf_redirect_neigh() */
	u64 header[5]; /* of the packet */
	struct route_way ask; /* what the way depends on */
	u64 way; /* the place for it */
	u32 late; /* the way exists, and is from a tick that has passed */
	u32 again; /* the result may be renewed: see route_renew() */
	struct route_taker takers[ROUTE_ENDS];
	struct route_leaver leavers[ROUTE_ENDS];
	u32 second[FRESH_HOPS]; /* in which the host has seen the last packet to a next hop */
};

/*
 * A trip. Bridges only change the outermost tag. So the frame can be restored for a waiting cable
 * to the form that was noted, as long as the tags below the outermost have not changed.
 */
struct trip {
	u64 number; /* a bridge with this number in COUNTER_TRIP has had the frame */
	u32 endpoint; /* end of the cable by which the frame is coming */
	u16 hops;
	u16 waits; /* cables in next[] */
	__s16 depth; /* tags more than at the trip's start */
	__s16 low; /* tags up to this depth are as they were when the last cable was noted */
	u32 ifindex; /* of the routed host port by which the frame is coming; 0 for a cable */
	struct patch_wait next[PATCH_HOPS];
	struct route_memory route;
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

/* Returns the ifindex of the trip, which the frame has instead of a device of arrival. */
static __always_inline u32 trip_ifindex(const struct trip *t)
{
	if (!t)
		return PATCH_IFINDEX;
	return on(FEATURE_ROUTE) && t->ifindex ? t->ifindex : PATCH_IFINDEX | t->endpoint;
}

/* Has the frame been in this bridge on this trip before? */
static __always_inline bool trip_returns(const struct trip *t)
{
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

	/* a new panel starts from the time: bridges remember numbers of the former panel */
	if (t && !t->number)
		t->number = bpf_ktime_get_ns();

	if (!t || !seen)
		return 0;
	*seen = ++t->number;
	t->hops = 0;
	t->waits = 0;
	t->depth = 0;
	t->low = 0;
	t->ifindex = 0;
	return t;
}

/* Keeps count of the frame's tags where a bridge changes them. */
OFTEN __noinline int patch_retagged(u32 has, u32 wants)
{
	struct trip *t = trip_get();

	if (!t || has == wants)
		return 0;
	if (has && t->depth - 1 < t->low)
		t->low = t->depth - 1;
	t->depth += !!wants - !!has;
	return 0;
}

/*
 * Notes that the frame goes on by a cable, in its current form. Returns false if there are too many
 * cables.
 */
OFTEN __noinline int patch_queue(struct __sk_buff *skb, u32 endpoint)
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

/* A frame that loses its tags down to a depth. */
struct patch_tags {
	struct __sk_buff *skb;
	struct trip *t;
	__s16 base;
	bool fails;
};

static long patch_untag(u32 n, struct patch_tags *tags)
{
	if (tags->t->depth <= tags->base)
		return 1;
	tags->fails = bpf_skb_vlan_pop(tags->skb);
	if (tags->fails)
		return 1;
	tags->t->depth--;
	return 0;
}

/*
 * Restores the tags that the frame had when a cable was noted. Returns false if these tags are
 * lost. Cables are taken in the reverse order of their notes; `low` relies on this.
 */
static __always_inline bool patch_restore(struct __sk_buff *skb, struct trip *t,
					  const struct patch_wait *w)
{
	__s16 base = w->depth - !!w->outer, low = t->low;
	struct patch_tags tags = {.skb = skb, .t = t, .base = base};

	t->low = w->low < low ? w->low : low;
	if (low < base)
		return false;
	if (t->depth == w->depth && tag_beside(skb) == w->outer &&
	    (!w->outer || (u16)skb->vlan_proto == w->proto))
		return true;
	if (t->depth > base) {
		bpf_loop(PATCH_HOPS + 1, patch_untag, &tags, 0);
		if (tags.fails)
			return false;
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

#define PATCH_NOWHERE PATCH_IFINDEX /* the panel has nothing there */

/*
 * Takes the next waiting cable, and prepares the frame for it. Returns the cable's endpoint,
 * PATCH_NOWHERE if the frame cannot take this cable, or 0 if no cable waits. `before` is the cable
 * that led nowhere, if there was one. This is a separate function because a separately verified
 * function cannot make a tail call, and the loop around the tail call should be short.
 */
OFTEN __noinline u32 patch_next(struct __sk_buff *skb, u32 ifindex, u32 before)
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
	t->ifindex = 0;
	return w->endpoint;
}

/* Follows the waiting cables, until one leads somewhere. */
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

/* Makes a tail call that the compiler leaves in place, with only this index. */
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
 * Jumps to the program at the other end of a cable. With a constant index, the kernel makes a
 * direct jump of it. This saves a conversation, at every bridge, the code that the kernel puts
 * before indirect jumps (retpolines).
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

/*
 * Goes to the bridge that has an endpoint: the other end of a cable, or a routed host port, whose
 * device is `device`. Returns only if the frame cannot get there.
 */
static __always_inline void patch_go(struct __sk_buff *skb, struct trip *t, u32 endpoint,
				     u32 device, u32 ifindex)
{
	u32 reason = DROP_PATCH_LOOP;

	if (t->hops < PATCH_HOPS) {
		t->hops++;
		t->endpoint = endpoint;
		t->ifindex = device;
		patch_jump(skb, endpoint);
		t->hops--;
		reason = DROP_NO_PEER;
	}
	account_drop(skb, port_slot(ifindex), 0, reason);
}
