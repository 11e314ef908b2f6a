/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Buckets, for limits of how much may pass in a time: storm control, and a port's rate.
 *
 * A bucket is one number: the time at which it will be full again. What passes puts that time
 * off by as long as the limit takes to let so much pass. While the bucket is empty, nothing
 * passes, and nothing is written. So nobody has to fill a bucket, and one compare-and-swap
 * serves all CPUs.
 */
#pragma once

#include "maps.h"

/* Time is in 1/256 ns: at 400 million frames a second, the time of a frame is exact to 0.1 %. */
#define BUCKET_SECOND (256 * 1000000000ull)

/* The time that a byte takes at 1000 bits a second. */
#define BUCKET_BYTE (BUCKET_SECOND / 1000 * 8)

/*
 * Thirteen days. No frame puts a bucket off for so long, only for hours. So a bucket that
 * seems this far from full has been full for long, or is from before the time came round.
 */
#define BUCKET_FAR (1ull << 58)

#define BUCKET_TRIES 4

/*
 * Takes out of a bucket that is empty when it is `burst` away from full: true if there is
 * nothing in it. A frame may take more than there is, and the next frames wait for it. So
 * large packets pass small limits now and then, and the rate still holds.
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
		if (on(FEATURE_TRACE) || !cost) /* it is only asked */
			return false;
		if (__sync_val_compare_and_swap(full, old, now + left + cost) == old)
			return false;
	}
	/* other CPUs write it all the time, so its time is not in the past */
	__sync_fetch_and_add(full, cost);
	return false;
}

#define GSO_SEGMENTS (1 << 16) /* no GSO packet has more (GSO_MAX_SEGS) */

/* The frames that the kernel is to make of a packet of `len` bytes. */
static __always_inline u32 frames_of(struct __sk_buff *skb, u32 len)
{
	u32 frames = 1;

	/* a virtual machine that makes a GSO packet may leave counting its segments to us */
	if (skb->gso_size)
		frames = skb->gso_segs ? skb->gso_segs : len / skb->gso_size + 1;
	return frames > GSO_SEGMENTS ? GSO_SEGMENTS : frames;
}
