/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Spanning tree, as far as frames are concerned (802.1D-2004). A port has a state, which every
 * frame obeys. BPDUs go to the process that decides on states.
 */
#pragma once

#include <linux/errno.h>

#include "protocol.h"

#define BPDU_GROUP 0x0000c28001ull /* 01:80:C2:00:00:00 (802.1D-2004 table 7-10) */

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum stp_state *stp_state_type __attribute__((unused));

/* Gives a port a state, unless its slot has another tenant by now. */
static __always_inline int port_set_stp(u32 id, u64 state)
{
	u32 slot = SLOT(id);
	struct shared *s = shared_get();
	struct port_state *p;
	u64 was;

	if (!(cfg.flags & BRIDGE_STP) || state > STP_LEARNING)
		return -EINVAL;
	if (!id || !s)
		return -ENOENT;
	p = port_state_in(s, slot);
	was = READ_ONCE(p->stp);
	/* another change at the same moment is by a process that does not own spanning tree */
	if (was >> 32 != id ||
	    __sync_val_compare_and_swap(&p->stp, was, (u64)id << 32 | state) != was)
		return -ENOENT;
	return 1;
}

/*
 * Takes a frame to a reserved address if it is a BPDU, which no bridge with spanning tree forwards.
 * Returns false if it is not. A BPDU has no tag (802.1Q-2022 6.20).
 */
__noinline int stp_takes(struct __sk_buff *skb, u64 dst, u32 slot)
{
	u64 src_and_type;

	if (!on(FEATURE_CONTROL)) /* Linux before 6.8 verifies functions that are never called */
		return false;
	if (!(cfg.flags & BRIDGE_STP) || dst != BPDU_GROUP || tag_beside(skb) ||
	    bpf_skb_load_bytes(skb, 6, &src_and_type, sizeof(src_and_type)) ||
	    !mac_is_source(src_and_type & MAC_MASK) || type_is_tag(src_and_type >> MAC_BITS))
		return false;
	control_take(skb, slot, PROTOCOL_STP);
	return true;
}
