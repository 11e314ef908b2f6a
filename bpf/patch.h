/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Patch cables: from bridge to bridge by a tail call, without a device between. */
#pragma once

#include "vlan.h"

/* Where decisions have a device, frames of a patch port have this and its slot. */
#define PATCH_IFINDEX (1u << 31)
#define PATCH_MTU 65535 /* no device, no limit of its own */

/* Notes that the frame goes on by a patch port, with a tag as vlan_tag() has it. */
static __always_inline void patch_queue(const struct frame *f, const struct verdict *v, u32 slot,
					u16 tag)
{
}

/* Is the frame to go on? */
static __always_inline bool patch_waits(void)
{
	return false;
}

/* Goes on with the frame at the next bridge that is noted; returns only if there is none. */
static __always_inline int patch_follow(struct __sk_buff *skb, u32 has)
{
	return TC_ACT_SHOT;
}
