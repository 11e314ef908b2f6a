/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Storm control: how much of each kind of flood may arrive at a port. Each limit has a bucket. */
#pragma once

#include "bucket.h"
#include "verdict.h"

/* A bucket holds a tenth of a second's worth, and always a few frames. */
#define STORM_BURST (BUCKET_SECOND / 10)
#define STORM_FEW 8
#define STORM_FRAME 1514 /* bytes of a frame, for limits in bits */

/*
 * Takes frames out of a bucket, or their bytes if the limit is in bits. Returns true if the bucket
 * is empty.
 */
OFTEN __noinline int storm_take(u32 slot, u32 kind, u32 frames, u32 bytes)
{
	const volatile struct port *in = &set.ports[slot & (MAX_PORTS - 1)];
	struct shared *s = shared_get();
	u64 rate, amount, few, unit, burst;

	if (!s || kind >= STORM_KINDS)
		return false;
	rate = in->storm[kind].rate;
	if (!rate)
		return false;
	amount = frames;
	few = STORM_FEW;
	unit = BUCKET_SECOND;
	if (in->storm[kind].kilobits) {
		amount = bytes;
		few = STORM_FEW * STORM_FRAME;
		unit = BUCKET_BYTE;
	}
	burst = few * unit / rate;
	if (burst < STORM_BURST)
		burst = STORM_BURST;
	return bucket_is_empty(&s->buckets[slot & (MAX_PORTS - 1)].storm[kind],
			       amount * unit / rate, burst);
}

/* Takes the frame out of the port's bucket. Returns true if the bucket was empty. */
static __always_inline bool storm_exceeded(const struct hook *h, const struct frame *f,
					   const volatile struct port *in, u32 kind)
{
	if (!in->storm[kind].rate)
		return false;
	return storm_take(SLOT(in->id), kind, frames_of(h->ctx, f->len), f->len);
}
