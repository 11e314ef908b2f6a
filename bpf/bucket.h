/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Buckets limit how much may pass in a time: for storm control and for a port's rate.
 *
 * A bucket is one number: the time at which it will be full again. Each frame that passes delays
 * that time by as long as the limit takes to let so much pass. While the bucket is empty, nothing
 * passes, and nothing is written. So buckets need no refill, and one compare-and-swap serves all
 * CPUs.
 */
#pragma once

#include "maps.h"

/* Time is in 1/256 ns: at 400 million frames a second, a frame's time is exact to 0.1 %. */
#define BUCKET_SECOND (256 * 1000000000ull)

/* The time that a byte takes at 1000 bits a second. */
#define BUCKET_BYTE (BUCKET_SECOND / 1000 * 8)

/*
 * Thirteen days. A frame never delays a bucket for so long, only for hours. So a bucket that seems
 * this far from full has been full for a long time, or dates from before the time wrapped around.
 */
#define BUCKET_FAR (1ull << 58)

#define BUCKET_TRIES 4

/*
 * Takes out of a bucket that is empty when it is `burst` away from full. Returns true if the bucket
 * is empty. A frame may take more than is left, and the next frames wait for it. So large packets
 * sometimes pass small limits, and the rate still holds.
 */
static __always_inline bool bucket_is_empty(u64 *full, u64 cost, u64 burst)
{
	u64 now = bpf_ktime_get_ns() * 256;

#pragma unroll
	for (u32 i = 0; i < BUCKET_TRIES; i++) {
		u64 old = READ_ONCE(*full), left = old - now; /* until it is full */

		if (left >= BUCKET_FAR) /* it has been full for some time */
			left = 0;
		if (left >= burst)
			return true;
		if (on(FEATURE_TRACE) || !cost) /* a check that takes nothing */
			return false;
		if (__sync_val_compare_and_swap(full, old, now + left + cost) == old)
			return false;
	}
	/* other CPUs write it all the time, so its time is not in the past */
	__sync_fetch_and_add(full, cost);
	return false;
}

#define GSO_SEGMENTS (1 << 16) /* no GSO packet has more (GSO_MAX_SEGS) */

/* The number of frames that the kernel will make of a packet of `len` bytes. */
static __always_inline u32 frames_of(struct __sk_buff *skb, u32 len)
{
	u32 frames = 1;

	/* a virtual machine that makes a GSO packet may leave the count of segments to us */
	if (skb->gso_size)
		frames = skb->gso_segs ? skb->gso_segs : len / skb->gso_size + 1;
	return frames > GSO_SEGMENTS ? GSO_SEGMENTS : frames;
}
