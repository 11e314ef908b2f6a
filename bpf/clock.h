/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The timer's work: it ages addresses and states, and looks at the ports' devices. */
#pragma once

#include <linux/errno.h>

#include "device.h"
#include "pf/sweep.h"

#define CLOCK_MONOTONIC 1
#define SECOND 1000000000ull

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum clock_op *clock_op_type __attribute__((unused));

#define HURRY 4096 /* buckets per tick, at least, while the sweep hurries */

/*
 * Was the address learned behind a port that has lost its carrier? A port with a backup keeps it.
 */
static __always_inline bool sweep_lost(u64 word)
{
	u32 slot = SLOT(PORT_OF(word));

	return !((u32)word & FDB_PINNED) && port_was_lost(slot) && !port_at(slot)->backup;
}

/*
 * The loops of this file call separate functions, which the verifier follows once. Verification
 * takes most of the time of a change of programs.
 */
__noinline int sweep_entry(u32 number)
{
	struct fdb_entry *e = fdb_entry(number);
	struct clock *c = clock_get();
	u64 key, word, heard;
	bool lost;

	if (!e || !c)
		return 0;
	key = READ_ONCE(e->key);
	word = READ_ONCE(e->word);
	heard = on(FEATURE_MAB) ? word & ~FDB_LOCKED : word;
	if (!key || key == FDB_CLAIMED)
		return 0;
	lost = fdb_valid(heard, READ_ONCE(c->now));
	if (lost && !sweep_lost(word))
		return 0;
	if (fdb_drop(number, key, word))
		event_add(lost ? EVENT_DELETED : EVENT_AGED, key, PORT_OF(word), 0, 1);
	return 0;
}

static long sweep_bucket(u32 n, u32 *from)
{
	u32 index = *from + n;

	if (index >= cfg.fdb_buckets + FDB_WINDOW)
		index -= cfg.fdb_buckets + FDB_WINDOW;
#pragma unroll
	for (u32 i = 0; i < FDB_WAYS; i++)
		sweep_entry(index * FDB_WAYS + i);
	return 0;
}

/* Frees entries that have aged. The steps of one ageing time together look at the whole table. */
static __always_inline void sweep(struct clock *c)
{
	u32 all = cfg.fdb_buckets + FDB_WINDOW, from = c->sweep;
	u32 step = all / (set.ageing * TICKS) + 1;

	if (set.hurry) {
		if (step < HURRY)
			step = HURRY < all ? HURRY : all;
		set.hurry = set.hurry > step ? set.hurry - step : 0;
	}
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
		if (!(c->ticks++ % LOOK_TICKS))
			look_at_devices(c);
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
	/*
	 * The former programs may have made the timer already. Then it gets the callback of these
	 * programs.
	 */
	err = bpf_timer_init(&t->timer, &timer, CLOCK_MONOTONIC);
	if (err && err != -EBUSY)
		return err;
	bpf_timer_set_callback(&t->timer, tick);
	return bpf_timer_start(&t->timer, SECOND / TICKS, 0);
}

/* Carries out an operation of the clock program. Returns 0, or a negative errno. */
static __always_inline int clock_do(u32 op)
{
	struct clock *c = clock_get();

	if (!c)
		return -ENOENT;
	if (op == CLOCK_START)
		return clock_start(c);
	look_at_devices(c);
	return 0;
}
