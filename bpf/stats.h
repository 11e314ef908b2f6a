/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Counters and events: the switch's reports about itself. */
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

/* Subtracts count_tx()'s count of a frame that has not left. */
static __always_inline void uncount_tx(u32 slot, u32 len)
{
	struct port_stats *s = stats_of(slot);

	/* another program may have sent it through the port's device, without a count */
	if (s && s->tx_frames && s->tx_bytes >= len) {
		s->tx_frames--;
		s->tx_bytes -= len;
	}
}

/* The same for a frame to a routed host port that the datapath routes. */
static __always_inline void count_routed(u32 slot, u32 len)
{
	struct port_stats *s = stats_of(slot);

	if (s) {
		s->tx_frames++;
		s->tx_bytes += len;
		s->routed++;
	}
}

static __always_inline void count_reason(struct port_stats *s, u32 reason)
{
	if (reason && reason < cfg.reasons && reason < DROP_REASONS)
		s->drops[reason]++;
}

__noinline int count_drop(u32 slot, u32 reason)
{
	struct port_stats *s = stats_of(slot);

	if (s)
		count_reason(s, reason);
	return 0;
}

/* Counts a frame that arrives and goes no further. */
__noinline int count_refused(u32 slot, u32 len, u32 reason)
{
	struct port_stats *s = stats_of(slot);

	if (!s)
		return 0;
	s->rx_frames++;
	s->rx_bytes += len;
	count_reason(s, reason);
	return 0;
}

__noinline int event_add(u32 kind, u64 key, u32 port, u32 from, u32 count)
{
	struct shared *s = shared_get();
	struct event *e;
	u64 seq;

	if (!s)
		return 0;
	seq = __sync_fetch_and_add(&s->clock.events, 1);
	e = &s->events[seq & (EVENT_LOG - 1)];
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
	/*
	 * The kind is in upper bits that the VLAN leaves free: events of one address are
	 * distinguished.
	 */
	u64 what = key | (u64)kind << 60;
	struct shared *s = shared_get();
	struct told *t;
	u32 now, count;

	if (!s)
		return 0;
	t = &s->told[what * 0x9e3779b97f4a7c15ull >> 56];
	now = READ_ONCE(s->clock.now);
	if (t->key == what && t->second == now) {
		__sync_fetch_and_add(&t->count, 1);
		__sync_fetch_and_add(&s->clock.merged, 1);
		return 0;
	}
	count = t->key == what ? t->count : 0;
	t->key = what;
	t->second = now;
	t->count = 0;
	return event_add(kind, key, port, from, count + 1);
}
