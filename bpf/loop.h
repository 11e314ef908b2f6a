/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The loop guard: has a frame that the switch sent come back on another port? This is certain for a
 * frame from a host port's own address. With any other address, the station may have moved. But a
 * station moves once, and a frame in a loop pulls its address to and fro.
 */
#pragma once

#include "fdb.h"
#include "stp.h"
#include "verdict.h"

#define LOOP_RECENT 2 /* in seconds: an address that was seen elsewhere longer ago has moved */
#define LOOP_RETURNS 5 /* in a second, of one address on one port: more than a move makes */

#define PORT_ONLY_LEARNS PAST_LEARNING /* no enum drop_reason */

/*
 * Is the port blocked, by its loop guard or by spanning tree? A blocked port sends and receives no
 * frames. Returns 0 if it is not blocked, or the reason. Returns PORT_ONLY_LEARNS if spanning tree
 * lets it learn.
 */
__noinline u32 port_blocked(u32 slot)
{
	struct shared *s;
	struct port_state *l;
	u32 stp;

	if (!on(FEATURE_BLOCKING)) /* Linux before 6.8 verifies functions that are never called */
		return 0;
	s = shared_get();
	if (!s)
		return 0;
	l = port_state_in(s, slot);
	if (cfg.flags & BRIDGE_STP) {
		stp = READ_ONCE(l->stp);
		if (stp != STP_FORWARDING)
			return stp == STP_LEARNING ? PORT_ONLY_LEARNS : DROP_STP;
	}
	return READ_ONCE(l->until) > READ_ONCE(s->clock.now) ? DROP_BLOCKED : 0;
}

/* Forgets the findings of a port's loop guard. */
static __always_inline int port_unblock(u32 slot)
{
	struct shared *s = shared_get();
	struct port_state *l;

	if (!s)
		return -ENOENT;
	l = port_state_in(s, slot);
	WRITE_ONCE(l->until, 0);
	WRITE_ONCE(l->told, 0);
	WRITE_ONCE(l->count, 0);
	return 1;
}

static __always_inline struct returns *returns_of(u64 key, u32 slot)
{
	u32 cell = (key + slot) * 0x9e3779b97f4a7c15ull >> 32 & (LOOP_CELLS - 1);
	struct shared *s = shared_get();

	return s ? &s->returns[cell] : 0;
}

/*
 * Counts a return of the address on the port. Has the address come back more often than a move
 * explains?
 */
__noinline int loop_returns(u64 key, u32 slot, u32 now)
{
	struct returns *r = returns_of(key, slot);

	if (!r)
		return false;
	if (r->key != key || r->slot != slot || r->second != now) {
		r->key = key;
		r->slot = slot;
		r->second = now;
		r->count = 0;
	}
	if (__sync_fetch_and_add(&r->count, 1) + 1 < LOOP_RETURNS)
		return false;
	r = returns_of(key, 0);
	if (r) {
		r->key = key;
		r->slot = 0;
		r->second = now;
	}
	return true;
}

/*
 * Was the address found in a loop, in this second or the last? A frame that only circles in one
 * direction pulls its address along, and comes back on the port that has it.
 */
static __always_inline bool loop_circles(u64 key, u32 now)
{
	struct returns *r = returns_of(key, 0);

	return r && r->key == key && !r->slot && now - r->second < LOOP_RECENT;
}

/* Reports the loop, once a second. Blocks the port if its setting requires it. */
__noinline int loop_found(u64 key, u32 id, u32 from, u32 now)
{
	u32 slot = SLOT(id), seconds = port_at(slot)->block_time, told;
	struct shared *s = shared_get();
	struct port_state *all, *l;

	if (!s)
		return 0;
	all = port_state_in(s, 0);
	l = port_state_in(s, slot);
	__sync_fetch_and_add(&l->count, 1);
	told = READ_ONCE(l->told);
	if (told != now && __sync_val_compare_and_swap(&l->told, told, now) == told)
		event_add(EVENT_LOOP, key, id, from, __sync_lock_test_and_set(&l->count, 0));
	/* One blocked port cuts the loop. Another port only sees frames that were under way. */
	told = READ_ONCE(all->told);
	if (seconds && now - told >= LOOP_RECENT &&
	    __sync_val_compare_and_swap(&all->told, told, now) == told) {
		WRITE_ONCE(l->until, now + seconds);
		fdb_changed(&s->clock);
		event_add(EVENT_BLOCKED, 0, id, 0, seconds);
	}
	return 0;
}

/*
 * Has the switch's own frame come back? If so, reports it, and blocks the port if its setting
 * requires it. XDP only leaves the frame to tcx.
 */
static __always_inline bool loop_seen(const struct hook *h, const struct frame *f,
				      const struct verdict *v, const volatile struct port *in,
				      u32 now)
{
	u64 key = fdb_key(f->src, v->vlan), word = fdb_find(key);
	u32 from = PORT_OF(word);

	if (!fdb_valid(word, now))
		return false;
	if (from == in->id)
		return h->skb && mac_is_group(f->dst) && loop_circles(key, now);
	if (port_at(from)->host != f->src) {
		if ((u32)word & FDB_PINNED || !mac_is_group(f->dst) ||
		    now - USED_OF(word) >= LOOP_RECENT)
			return false;
		if (h->skb && !loop_returns(key, v->in, now))
			return false;
	}
	if (h->skb)
		loop_found(key, in->id, from, now);
	return true;
}
