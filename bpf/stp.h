/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Spanning tree, as far as frames see it (802.1D-2004): a port has a state, which
 * every frame obeys, and BPDUs are handed to who decides on states.
 */
#pragma once

#include <linux/errno.h>

#include "verdict.h"

#define BPDU_GROUP 0x0000c28001ull /* 01:80:C2:00:00:00 (802.1D-2004 table 7-10) */

/* for the types' sake: Go sees those that something has */
const struct bpdu *bpdu_type __attribute__((unused));
const enum stp_state *stp_state_type __attribute__((unused));

/* What blocks ports, by slot; of the bridge in slot 0. It outlives generations. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MAX_PORTS);
	__type(key, u32);
	__type(value, struct port_state);
} port_states SEC(".maps");

/* BPDUs on their way to who runs spanning tree. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} control_frames SEC(".maps");

/* Gives a port a state, unless its slot has another tenant by now. */
static __always_inline int port_set_stp(u32 id, u64 state)
{
	u32 slot = SLOT(id);
	struct port_state *p = bpf_map_lookup_elem(&port_states, &slot);
	u64 was;

	if (!(cfg.flags & BRIDGE_STP) || state > STP_LEARNING)
		return -EINVAL;
	if (!id || !p)
		return -ENOENT;
	was = READ_ONCE(p->stp);
	/* another at the same moment is by who does not hold spanning tree */
	if (was >> 32 != id ||
	    __sync_val_compare_and_swap(&p->stp, was, (u64)id << 32 | state) != was)
		return -ENOENT;
	return 1;
}

/*
 * Would a BPDU be more than the port may hand on in this second? Who sends no end
 * of them must not take the room that those of other ports need. CPUs that count at
 * once let a few more through.
 */
static __always_inline bool bpdu_exceeds(u32 slot)
{
	struct port_state *p = bpf_map_lookup_elem(&port_states, &slot);
	struct clock *c = clock_get();
	u32 now, was;

	if (!p || !c)
		return true;
	now = READ_ONCE(c->now) << 8;
	was = READ_ONCE(p->bpdus);
	if ((was & ~0xffu) != now)
		was = now;
	if ((was & 0xff) >= BPDU_RATE)
		return true;
	WRITE_ONCE(p->bpdus, was + 1);
	return false;
}

/*
 * Hands a frame to a reserved address on if it is a BPDU, which no bridge with
 * spanning tree forwards; false if it is none. It has no tag (802.1Q-2022 6.20).
 * XDP leaves such frames to tcx like all that is not forwarded.
 */
__noinline int bpdu_take(struct __sk_buff *skb, u64 dst, u32 slot)
{
	u32 zero = 0, kept = skb->len < BPDU_BYTES ? skb->len : BPDU_BYTES;
	struct port_state *all;
	struct bpdu *b = 0;

	if (!on(FEATURE_BLOCKING)) /* Linux before 6.8 verifies what nobody calls */
		return false;
	if (!(cfg.flags & BRIDGE_STP) || dst != BPDU_GROUP || tag_beside(skb))
		return false;
	if (!bpdu_exceeds(slot))
		b = bpf_ringbuf_reserve(&control_frames, sizeof(*b), 0);
	if (!b) {
		all = bpf_map_lookup_elem(&port_states, &zero);
		if (all)
			__sync_fetch_and_add(&all->stp, 1);
		return true;
	}
	b->port = port_at(slot)->id;
	b->len = skb->len;
	if (kept < ETHER_HEADER || !frame_load(skb, 0, b->data, kept, BPDU_BYTES) ||
	    !mac_is_source(*(u64 *)(b->data + 4) >> 16) || type_is_tag(*(u16 *)(b->data + 12))) {
		bpf_ringbuf_discard(b, 0);
		return false;
	}
	if (on(FEATURE_TRACE))
		bpf_ringbuf_discard(b, 0);
	else
		bpf_ringbuf_submit(b, 0);
	return true;
}
