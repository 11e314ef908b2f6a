/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Span ports: copies of frames for who listens. tcx alone makes them. */
#pragma once

#include "verdict.h"

/* Copies a frame as it came in. */
static __always_inline void span_in(const struct hook *h, const struct frame *f, struct verdict *v,
				    const volatile struct port *in)
{
}

/* Copies a frame as it goes out by a port. */
static __always_inline void span_out(struct __sk_buff *skb, const struct frame *f,
				     const struct verdict *v, u32 out)
{
}
