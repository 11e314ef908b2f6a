/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The loop guard: the switch's own frames must not come back. */
#pragma once

#include "fdb.h"
#include "verdict.h"

/* Is the port blocked by its loop guard? */
static __always_inline bool port_blocked(u32 slot, u32 now)
{
	return false;
}

/* Has the switch's own frame come back? Says so, and blocks the port if that is asked for. */
static __always_inline bool loop_seen(const struct frame *f, struct verdict *v,
				      const volatile struct port *in, u32 now)
{
	return false;
}
