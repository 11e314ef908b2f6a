/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Storm control: how much of each kind of flood may come in by a port.
 *
 * Each limit has a bucket. A bucket is one number: the time at which it will be full again.
 * A frame puts that time off by as long as the limit takes to let such a frame in. While
 * the bucket is empty, frames are dropped, and nothing is written. So nobody has to fill a
 * bucket, and one compare-and-swap serves all CPUs.
 */
#pragma once

#include "verdict.h"

/* Time is in 1/256 ns: at 400 million frames a second, the time of a frame is exact to 0.1 %. */
#define STORM_SECOND (256 * 1000000000ull)

/* A bucket holds a tenth of a second's worth, and always a few frames. */
#define STORM_BURST (STORM_SECOND / 10)
#define STORM_FEW 8
#define STORM_FRAME 1514 /* bytes of a frame, for limits in bits */

/*
 * Thirteen days. No frame puts a bucket off for so long, only for hours. So a bucket that
 * seems this far from full has been full for long, or is from before the time came round.
 */
#define STORM_FAR (1ull << 58)

#define STORM_TRIES 4

/*
 * Takes frames out of a bucket, or their bytes if the limit is in bits: true if the bucket
 * is empty. A frame may take more than there is, and the next frames wait for it. So large
 * packets pass small limits now and then, and the rate still holds.
 */
OFTEN __noinline int storm_take(u32 slot, u32 kind, u32 frames, u32 bytes)
{
	const volatile struct port *in = &set.ports[slot & (MAX_PORTS - 1)];
	struct shared *s = shared_get();
	u64 rate, amount, few, unit, cost, burst, now, *full;

	if (!s || kind >= STORM_KINDS)
		return false;
	rate = in->storm[kind].rate;
	if (!rate)
		return false;
	amount = frames;
	few = STORM_FEW;
	unit = STORM_SECOND;
	if (in->storm[kind].kilobits) {
		amount = bytes;
		few = STORM_FEW * STORM_FRAME;
		unit = STORM_SECOND / 1000 * 8;
	}
	cost = amount * unit / rate;
	burst = few * unit / rate;
	if (burst < STORM_BURST)
		burst = STORM_BURST;
	full = &s->storms[slot & (MAX_PORTS - 1)].full[kind];
	now = bpf_ktime_get_ns() * 256;
#pragma unroll
	for (u32 i = 0; i < STORM_TRIES; i++) {
		u64 old = READ_ONCE(*full), left = old - now; /* until it is full */

		if (left >= STORM_FAR) /* it has been full for some time */
			left = 0;
		if (left >= burst)
			return true;
		if (on(FEATURE_TRACE))
			return false;
		if (__sync_val_compare_and_swap(full, old, now + left + cost) == old)
			return false;
	}
	/* other CPUs write it all the time, so its time is not in the past */
	__sync_fetch_and_add(full, cost);
	return false;
}

#define STORM_SEGMENTS (1 << 16) /* no GSO packet has more (GSO_MAX_SEGS) */

/* Takes the frame out of the port's bucket: true if there was nothing in it. */
static __always_inline bool storm_exceeded(const struct hook *h, const struct frame *f,
					   const volatile struct port *in, u32 kind)
{
	struct __sk_buff *skb = h->ctx;
	u32 frames = 1;

	if (!in->storm[kind].rate)
		return false;
	/* a virtual machine that makes a GSO packet may leave counting its segments to us */
	if (skb->gso_size)
		frames = skb->gso_segs ? skb->gso_segs : f->len / skb->gso_size + 1;
	if (frames > STORM_SEGMENTS)
		frames = STORM_SEGMENTS;
	return storm_take(SLOT(in->id), kind, frames, f->len);
}
