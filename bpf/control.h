/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * What is done to the tables from outside the way of a frame: the clock that
 * ages addresses, and the requests of user space. Addresses are written by
 * this code and fdb.h alone.
 */
#pragma once

#include "fdb.h"
#include "loop.h"
#include "pf/sweep.h"
#include "stp.h"

#define CLOCK_MONOTONIC 1
#define SECOND 1000000000ull

static long sweep_bucket(u32 n, u32 *from)
{
	struct clock *c = clock_get();
	u32 index = *from + n;
	struct fdb_bucket *b;

	if (!c)
		return 1;
	if (index >= cfg.fdb_buckets + FDB_WINDOW)
		index -= cfg.fdb_buckets + FDB_WINDOW;
	b = fdb_bucket(index);
	if (!b)
		return 1;
	for (u32 i = 0; i < FDB_WAYS; i++) {
		u64 key = READ_ONCE(b->way[i].key), word = READ_ONCE(b->way[i].word);
		u64 heard = on(FEATURE_MAB) ? word & ~FDB_LOCKED : word;

		if (!key || key == FDB_CLAIMED || fdb_valid(heard, READ_ONCE(c->now)))
			continue;
		if (fdb_drop(index * FDB_WAYS + i, key, word))
			event_add(EVENT_AGED, key, PORT_OF(word), 0, 1);
	}
	return 0;
}

/* Frees what has aged, so much a step that all is seen once in the ageing time. */
static __always_inline void sweep(struct clock *c)
{
	u32 all = cfg.fdb_buckets + FDB_WINDOW, from = c->sweep;
	u32 step = all / (set.ageing * TICKS) + 1;

	if (from >= all)
		from = 0;
	bpf_loop(step, sweep_bucket, &from, 0);
	from += step;
	c->sweep = from < all ? from : from - all;
}

static __always_inline void clock_set(struct clock *c)
{
	u32 now = bpf_ktime_get_ns() / SECOND;

	if (now != c->now) {
		WRITE_ONCE(c->now, now);
		fdb_changed(c);
	}
}

static int tick(void *map, u32 *key, struct timer *t)
{
	struct clock *c = clock_get();

	if (c) {
		clock_set(c);
		sweep(c);
		if (on(FEATURE_PF))
			pf_sweep(READ_ONCE(c->now));
	}
	bpf_timer_start(&t->timer, SECOND / TICKS, 0);
	return 0;
}

static __always_inline int clock_start(struct clock *c)
{
	u32 zero = 0;
	struct timer *t = bpf_map_lookup_elem(&timer, &zero);
	long err;

	if (!t)
		return -ENOENT;
	clock_set(c);
	/* there already, of the programs before us: then it gets our callback */
	err = bpf_timer_init(&t->timer, &timer, CLOCK_MONOTONIC);
	if (err && err != -EBUSY)
		return err;
	bpf_timer_set_callback(&t->timer, tick);
	return bpf_timer_start(&t->timer, SECOND / TICKS, 0);
}

#define TRIES 8 /* against frames that change an entry at the same moment */

/*
 * Puts (key, word) in. A static or sticky entry takes the place of what is
 * there; a dynamic one does not. One that is not there yet is told of if that is asked
 * for.
 */
static __always_inline int fdb_store(struct clock *c, u64 key, u64 word, bool tell)
{
	bool pinned = (u32)word & FDB_PINNED;

	for (u32 tries = 0; tries < TRIES; tries++) {
		struct fdb_entry *e = fdb_entry(fdb_locate(key, fdb_home(key), 0));
		u64 old;

		if (!e) {
			if (!pinned && !fdb_reserve(PORT_OF(word), true))
				return -ENOSPC;
			if (!fdb_fill(key, word)) {
				fdb_release(word, true);
				return -ENOSPC;
			}
			fdb_changed(c);
			if (tell && pinned)
				event_add(EVENT_ADDED, key, PORT_OF(word), 0, 1);
			return 1;
		}
		if (!pinned)
			return 0;
		old = READ_ONCE(e->word);
		if (old && fdb_swap(e, key, old, word)) {
			u32 from = PORT_OF(old) == PORT_OF(word) ? 0 : PORT_OF(old);

			fdb_release(old, true);
			fdb_changed(c);
			if (tell && (u32)old != (u32)word)
				event_add(EVENT_ADDED, key, PORT_OF(word), from, 1);
			return 1;
		}
	}
	return -EAGAIN;
}

static __always_inline int fdb_delete(struct clock *c, u64 key)
{
	for (u32 tries = 0; tries < TRIES; tries++) {
		u32 number = fdb_locate(key, fdb_home(key), 0);
		struct fdb_entry *e = fdb_entry(number);
		u64 word;

		if (!e)
			return -ENOENT;
		word = READ_ONCE(e->word);
		if (fdb_drop(number, key, word)) {
			fdb_changed(c);
			event_add(EVENT_DELETED, key, PORT_OF(word), 0, 1);
			return 1;
		}
	}
	return -EAGAIN;
}

static long flush_bucket(u32 index, struct control *r)
{
	struct fdb_bucket *b = fdb_bucket(index);
	struct shared *s = shared_get();
	u32 *left;

	if (!b || !s)
		return 1;
	left = usage_in(s, SLOT(r->port));
	for (u32 i = 0; i < FDB_WAYS; i++) {
		u64 key = READ_ONCE(b->way[i].key), word = READ_ONCE(b->way[i].word);
		u32 id = PORT_OF(word);
		bool pinned = (u32)word & FDB_PINNED;

		if (!key || key == FDB_CLAIMED)
			continue;
		/* nobody can ask for the entries of a port that has left */
		if (port_at(id)->id != id) {
			fdb_drop(index * FDB_WAYS + i, key, word);
			continue;
		}
		if (pinned ? !r->pinned : !r->dynamic || READ_ONCE(*left) <= r->keep)
			continue;
		if (r->port && id != r->port)
			continue;
		if (r->vlan >= 0 && key >> MAC_BITS != r->vlan)
			continue;
		if (fdb_drop(index * FDB_WAYS + i, key, word)) {
			event_add(EVENT_DELETED, key, id, 0, 1);
			r->result++;
		}
	}
	return 0;
}

static __always_inline int fdb_flush(struct clock *c, struct control *r)
{
	struct control request = *r;

	request.result = 0;
	bpf_loop(cfg.fdb_buckets + FDB_WINDOW, flush_bucket, &request, 0);
	fdb_changed(c);
	return request.result;
}

static __always_inline int control_stp(struct clock *c, u32 port, u64 state)
{
	int result = port_set_stp(port, state);

	fdb_changed(c);
	return result;
}

static __always_inline int control_unblock(struct clock *c, u32 port)
{
	int result = port_unblock(SLOT(port));

	fdb_changed(c);
	return result;
}

/* Does what a request asks for, and says what came of it, as its `result` has it. */
static __always_inline int control_do(struct clock *c, struct control *r)
{
	switch (r->op) {
	case CONTROL_START:
		return clock_start(c);
	case CONTROL_STORE:
		return fdb_store(c, r->key, r->word, r->pinned);
	case CONTROL_DELETE:
		return fdb_delete(c, r->key);
	case CONTROL_FLUSH:
		return fdb_flush(c, r);
	case CONTROL_STP:
		return control_stp(c, r->port, r->word);
	case CONTROL_FORGET:
		fdb_changed(c);
		return 0;
	case CONTROL_UNBLOCK:
		return control_unblock(c, r->port);
	case CONTROL_PF_KILL:
		return on(FEATURE_PF) ? pf_kill(c, r) : -ENOENT;
	case CONTROL_PF_FLUSH:
		return on(FEATURE_PF) ? pf_flush() : 0;
	case CONTROL_PF_UNTRACK:
		return on(FEATURE_PF_SOURCES) ? pf_untrack(r) : -ENOENT;
	case CONTROL_PF_STORE:
		return on(FEATURE_PF) ? pf_store(c, r) : -ENOSPC;
	case CONTROL_PF_SWEEP:
		if (on(FEATURE_PF) && cfg.pf.buckets)
			pf_sweep_from(0, cfg.pf.buckets, c->now, on(FEATURE_PF_SOURCES));
		return 0;
	}
	return -EINVAL;
}
