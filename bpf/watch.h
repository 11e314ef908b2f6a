/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Parts of a bridge that only exist while a user is watching: capture, the busiest addresses,
 * trace.
 */
#pragma once

#include "fdb.h"
#include "sample.h"
#include "vlan.h"

/* Captured frames on their way to `bascule capture`, which determines the size of the ring. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} capture_ring SEC(".maps");

/*
 * The filter of the capture, in the classic BPF that it was compiled to: the number of instructions
 * and the instructions. No program reads it: it is here for programs that are loaded later.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} capture_filter SEC(".maps");

struct capture_bytes {
	u8 at[CAPTURE_BYTES];
};

struct capture_buffer {
	struct captured head;
	struct capture_bytes frame;
};

MEMORY_HOLDS(struct capture_buffer);

/* Puts the type into BTF for Go: BTF only has types that are used. */
const struct captured *captured_type __attribute__((unused));

/*
 * Does the frame, with `kept` bytes of it, match the capture's filter? The loader replaces this
 * function by the filter.
 */
__weak __noinline int capture_wants(struct capture_bytes *frame, u32 kept, u32 len)
{
	return 1;
}

/*
 * Copies a frame at a port for `bascule capture`, with the reason if the frame is dropped. A tag
 * beside the packet is put where it is on a wire. On a bridge without VLAN filtering, the frame is
 * in the VLAN of its tag.
 */
OFTEN __noinline int capture_frame(struct __sk_buff *skb, u32 slot, u32 vlans,
				   enum capture_point point, u32 reason)
{
	u32 beside = skb->vlan_present ? ETHER_TAG : 0, len = skb->len + beside, kept;
	struct capture_buffer *b;
	u8 *at;
	u64 *missed;

	if (!on(FEATURE_CAPTURE)) /* Linux before 6.8 verifies functions that are never called */
		return 0;
	if (point == CAPTURE_DROP && !reason)
		point = CAPTURE_IN; /* a frame for the switch itself has entered */
	b = watch_memory();
	if (!b || skb->len < ETHER_HEADER || !(cfg.capture_points >> (point & 3) & 1))
		return 0;
	if ((cfg.capture_points >> CAPTURE_PORTS & 1) && !(port_at(slot)->flags & PORT_CAPTURE))
		return 0;
	at = b->frame.at;
	kept = len < cfg.snaplen ? len : cfg.snaplen;
	if (bpf_skb_load_bytes(skb, 0, at, MAC_PAIR))
		return 0;
	if (beside) {
		*(u16 *)(at + MAC_PAIR) = skb->vlan_proto;
		*(u16 *)(at + MAC_PAIR + 2) = bpf_htons(skb->vlan_tci);
		if (!frame_load(skb, MAC_PAIR, at + MAC_PAIR + ETHER_TAG,
				kept - MAC_PAIR - ETHER_TAG, CAPTURE_BYTES - MAC_PAIR - ETHER_TAG))
			return 0;
	} else if (!frame_load(skb, MAC_PAIR, at + MAC_PAIR, kept - MAC_PAIR,
			       CAPTURE_BYTES - MAC_PAIR)) {
		return 0;
	}
	if (!capture_wants(&b->frame, kept, len))
		return 0;
	b->head = (struct captured){
		.time = bpf_ktime_get_ns(),
		.port = port_at(slot)->id,
		.len = len,
		.kept = kept,
		.vlan = capture_vlan(vlans),
		.point = point,
		.reason = reason,
	};
	if (!length_within(&kept, CAPTURE_BYTES))
		return 0;
	if (bpf_ringbuf_output(&capture_ring, b, sizeof(b->head) + kept, 0)) {
		missed = counter_of(COUNTER_CAPTURE_MISSED);
		if (missed)
			++*missed;
	}
	return 0;
}

/* Sources by address and VLAN; quiet ones make room for others. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct talker);
} talkers SEC(".maps");

/*
 * Counts a frame of an address at a port. This is a separate function, to save room on the
 * stacks of its callers.
 */
OFTEN __noinline int talker_note(u64 key, u32 len, u32 slot)
{
	struct talker first = {
		.frames = 1,
		.bytes = len,
		.port = port_at(slot)->id,
		.heard = bpf_ktime_get_ns() >> 20,
	};
	struct talker *t;

	if (!on(FEATURE_TALKERS)) /* Linux before 6.8 verifies functions that are never called */
		return 0;
	t = bpf_map_lookup_elem(&talkers, &key);
	if (!t) {
		if (!bpf_map_update_elem(&talkers, &key, &first, BPF_NOEXIST))
			return 0;
		/* another CPU was first; or there is no room, and the frame does not count */
		t = bpf_map_lookup_elem(&talkers, &key);
		if (!t)
			return 0;
	}
	t->frames++;
	t->bytes += len;
	t->port = first.port;
	t->heard = first.heard;
	return 0;
}

/* Counts the frame for its source address, for `bascule top`. */
static __always_inline void talker_count(const struct frame *f, const struct verdict *v)
{
	talker_note(fdb_key(f->src, v->vlan), f->len, v->in);
}

/* Moves the outer tag beside the packet, where the kernel puts it when a real frame arrives. */
static __always_inline void trace_receive(struct __sk_buff *skb)
{
	u16 tag[2]; /* type and TCI */

	if (skb->vlan_present || bpf_skb_load_bytes(skb, MAC_PAIR, tag, sizeof(tag)) ||
	    !type_is_tag(tag[0]) || bpf_skb_vlan_pop(skb))
		return;
	bpf_skb_vlan_push(skb, tag[0], bpf_ntohs(tag[1]));
}

/* Keeps the decision for `bascule trace`, with the reason for ACTION_DROP. */
static __always_inline void trace_verdict(const struct frame *f, const struct verdict *v,
					  enum action action, u32 reason)
{
	struct traced *t = watch_memory();

	if (!t)
		return;
	t->action = action;
	t->reason = action == ACTION_DROP ? reason : 0;
	t->in = v->in;
	t->out = v->out;
	t->flood = v->flood;
	t->src = fdb_key(f->src, v->vlan);
	t->dst = fdb_key(f->dst, v->vlan);
	t->word = v->word;
	t->vid = v->vid;
	t->vlan = v->vlan;
	t->tag = v->tag;
	t->rule_in = v->rule_in;
	t->rule_out = v->rule_out;
	if (on(FEATURE_PF)) {
		struct pf_packet *p = pf_packet();

		if (!p)
			return;
		t->pf_in = p->rule[0];
		t->pf_out = p->rule[1];
		t->pf_state = v->pf == PF_LOOK_STATE;
	}
}
