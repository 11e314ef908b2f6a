/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* What is there only while somebody looks: capture, the busiest addresses, trace. */
#pragma once

#include "verdict.h"

/* Where a captured frame is. */
enum capture_point {
	CAPTURE_IN,
	CAPTURE_OUT,
	CAPTURE_DROP,
};

/* Copies the frame for `bascule capture`: at a port, with the reason if it is dropped. */
static __always_inline void capture(struct __sk_buff *skb, const struct frame *f, u32 slot,
				    u32 point, u32 reason)
{
}

/* Counts the frame for its source address, for `bascule top`. */
static __always_inline void talker_count(const struct frame *f, const struct verdict *v)
{
}

/* Keeps what was decided for `bascule trace`. */
static __always_inline void trace_verdict(const struct frame *f, const struct verdict *v,
					  enum action action)
{
}

/* Keeps what a flood did at a port: 0 or the reason why it did not go there. */
static __always_inline void trace_flood(u32 slot, u16 tag, u32 reason)
{
}
