/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Counters and events: what the switch says about itself. */
#pragma once

#include "maps.h"

static __always_inline struct port_stats *stats_of(u32 slot)
{
	return bpf_map_lookup_elem(&stats, &slot);
}

static __always_inline void count_rx(u32 slot, u32 len)
{
	struct port_stats *s = stats_of(slot);

	if (s) {
		s->rx_frames++;
		s->rx_bytes += len;
	}
}

static __always_inline void count_tx(u32 slot, u32 len)
{
	struct port_stats *s = stats_of(slot);

	if (s) {
		s->tx_frames++;
		s->tx_bytes += len;
	}
}

__noinline int count_drop(u32 slot, u32 reason)
{
	struct port_stats *s = stats_of(slot);

	if (s && reason && reason < cfg.reasons && reason < DROP_REASONS)
		s->drops[reason]++;
	return 0;
}

/*
 * A claim on an address that is repeated many times a second is told once a
 * second, with the number of times. One cell serves many addresses: when two
 * of them fight for it both are told, which is right too.
 */
struct told {
	u64 key; /* with the event's kind */
	u32 second;
	u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 256);
	__type(key, u32);
	__type(value, struct told);
} told SEC(".maps");

__noinline int event_add(u32 kind, u64 key, u32 port, u32 from, u32 count)
{
	struct clock *c = clock_get();
	struct event *e;
	u64 seq;
	u32 cell;

	if (!c)
		return 0;
	seq = __sync_fetch_and_add(&c->events, 1);
	cell = seq & (EVENT_LOG - 1);
	e = bpf_map_lookup_elem(&events, &cell);
	if (!e)
		return 0;
	__sync_lock_test_and_set(&e->seq, 0);
	e->time = bpf_ktime_get_ns();
	e->key = key;
	e->kind = kind;
	e->port = port;
	e->from = from;
	e->count = count;
	__sync_lock_test_and_set(&e->seq, seq + 1);
	return 0;
}

__noinline int event_once_a_second(u32 kind, u64 key, u32 port, u32 from)
{
	/* the VLAN leaves the upper bits free: what happens to one address is told apart */
	u64 what = key | (u64)kind << 60;
	u32 cell = what * 0x9e3779b97f4a7c15ull >> 56;
	struct told *t = bpf_map_lookup_elem(&told, &cell);
	struct clock *c = clock_get();
	u32 now, count;

	if (!t || !c)
		return 0;
	now = READ_ONCE(c->now);
	if (t->key == what && t->second == now) {
		__sync_fetch_and_add(&t->count, 1);
		__sync_fetch_and_add(&c->merged, 1);
		return 0;
	}
	count = t->key == what ? t->count : 0;
	t->key = what;
	t->second = now;
	t->count = 0;
	return event_add(kind, key, port, from, count + 1);
}
