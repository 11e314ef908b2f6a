/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* What is there only while somebody looks: capture, the busiest addresses, trace. */
#pragma once

#include "verdict.h"

/* Captured frames on their way to who captures; as large as that asks for. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} capture_ring SEC(".maps");

/* Frames that there was no room for. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} capture_missed SEC(".maps");

/*
 * The filter, in the classic BPF that it was compiled to: the number of
 * instructions and the instructions. Programs that are loaded later get it from
 * here; no program reads it.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} capture_filter SEC(".maps");

struct capture_buffer {
	struct captured head;
	u8 data[CAPTURE_BYTES];
};

/* A place of each CPU to put a frame together in. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct capture_buffer);
} capture_buffer SEC(".maps");

/* Does who captures want the frame? The loader puts the filter in this one's place. */
__noinline int capture_wants(struct capture_buffer *b, u32 kept)
{
	return b && kept;
}

#define MAC_PAIR 12 /* bytes: destination and source */

/*
 * Copies a frame for `bascule capture`, at a port, with the reason if it is
 * dropped; a tag that is beside the packet goes where it is on a wire.
 */
__noinline int capture_frame(struct __sk_buff *skb, u32 slot, u32 vlan, u32 point, u32 reason)
{
	u32 zero = 0, len = skb->len, beside = skb->vlan_present ? ETHER_TAG : 0, kept, rest;
	struct capture_buffer *b = bpf_map_lookup_elem(&capture_buffer, &zero);
	u64 *missed;

	if (!b || len < ETHER_HEADER)
		return 0;
	kept = len + beside < cfg.snaplen ? len + beside : cfg.snaplen;
	if (kept < MAC_PAIR + ETHER_TAG)
		kept = len + beside < MAC_PAIR + ETHER_TAG ? MAC_PAIR + 2 : MAC_PAIR + ETHER_TAG;
	if (kept > CAPTURE_BYTES)
		kept = CAPTURE_BYTES;
	if (bpf_skb_load_bytes(skb, 0, b->data, MAC_PAIR))
		return 0;
	rest = kept - MAC_PAIR - beside;
	if (beside) {
		*(u16 *)(b->data + MAC_PAIR) = skb->vlan_proto;
		*(u16 *)(b->data + MAC_PAIR + 2) = bpf_htons(skb->vlan_tci);
		if (rest && rest <= CAPTURE_BYTES - MAC_PAIR - ETHER_TAG &&
		    bpf_skb_load_bytes(skb, MAC_PAIR, b->data + MAC_PAIR + ETHER_TAG, rest))
			return 0;
	} else if (rest && rest <= CAPTURE_BYTES - MAC_PAIR &&
		   bpf_skb_load_bytes(skb, MAC_PAIR, b->data + MAC_PAIR, rest)) {
		return 0;
	}
	if (!capture_wants(b, kept))
		return 0;
	b->head = (struct captured){
		.time = bpf_ktime_get_ns(),
		.port = port_at(slot)->id,
		.len = len + beside,
		.kept = kept,
		.vlan = vlan,
		.point = point,
		.reason = reason,
	};
	if (kept > CAPTURE_BYTES || bpf_ringbuf_output(&capture_ring, b, sizeof(b->head) + kept, 0)) {
		missed = bpf_map_lookup_elem(&capture_missed, &zero);
		if (missed)
			++*missed;
	}
	return 0;
}

/* Sources by address and VLAN; those that are quiet make room. */
struct {
	__uint(type, BPF_MAP_TYPE_LRU_PERCPU_HASH);
	__uint(max_entries, 1);
	__type(key, u64);
	__type(value, struct talker);
} talkers SEC(".maps");

/* Counts the frame for its source address, for `bascule top`. */
static __always_inline void talker_count(const struct frame *f, const struct verdict *v)
{
	u64 key = (u64)v->vlan << MAC_BITS | f->src;
	struct talker *t = bpf_map_lookup_elem(&talkers, &key);
	struct talker first = {.frames = 1, .bytes = f->len, .port = port_at(v->in)->id};

	if (!t) {
		bpf_map_update_elem(&talkers, &key, &first, BPF_NOEXIST);
		return;
	}
	t->frames++;
	t->bytes += f->len;
	t->port = first.port;
}

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct traced);
} trace SEC(".maps");

/* Keeps what was decided for `bascule trace`. */
static __always_inline void trace_verdict(const struct frame *f, const struct verdict *v,
					  enum action action)
{
	u32 zero = 0;
	struct traced *t = bpf_map_lookup_elem(&trace, &zero);

	if (!t)
		return;
	t->action = action;
	t->reason = v->reason;
	t->in = v->in;
	t->out = v->out;
	t->flood = v->flood;
	t->label = f->label;
	t->src = (u64)v->vlan << MAC_BITS | f->src;
	t->dst = (u64)v->vlan << MAC_BITS | f->dst;
	t->word = v->word;
	t->vid = v->vid;
	t->vlan = v->vlan;
	t->tag = v->tag;
	t->rule_in = v->rule_in;
	t->rule_out = v->rule_out;
	t->spans = v->spans;
}

/* Keeps what a flood did at a port: 0 or the reason why it did not go there. */
static __always_inline void trace_flood(u32 slot, u16 tag, u32 reason)
{
	u32 zero = 0, n;
	struct traced *t = bpf_map_lookup_elem(&trace, &zero);

	if (!t)
		return;
	n = t->ports;
	if (n >= MAX_PORTS)
		return;
	t->port[n] = (struct traced_port){.slot = slot, .tag = tag, .reason = reason};
	t->ports = n + 1;
}

/* Keeps what the MTU of the way out says. */
static __always_inline void trace_mtu(u32 reason)
{
	u32 zero = 0;
	struct traced *t = bpf_map_lookup_elem(&trace, &zero);

	if (t)
		t->mtu = reason != 0;
}
