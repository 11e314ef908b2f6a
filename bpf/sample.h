/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Samples of frames, which the agent sends to a collector (sFlow): one of every so many incoming
 * frames, and the first drops of each second. The datapath never waits for the reader: like events,
 * samples are in memory that user space reads, and new ones replace old ones.
 */
#pragma once

#include "fdb.h"
#include "vlan.h"

#define MAC_PAIR 12 /* bytes: destination and source */

/* The VLANs of a frame in the form that capture_frame() and sample_put() expect. */
static __always_inline u32 capture_vlans(const struct verdict *v)
{
	return (u32)v->vlan << 16 | v->vid;
}

/* The VLAN of a frame, of these two. */
static __always_inline u16 capture_vlan(u32 vlans)
{
	return on(FEATURE_VLANS) ? (u16)vlans : vlans >> 16;
}

/*
 * Should this frame be sampled? Each CPU counts down on its own, from a random number whose mean is
 * the rate: frames that arrive at the same pace as the samples (802.3's pause frames, for example)
 * are not sampled each time, or never.
 */
static __always_inline bool sample_due(void)
{
	u64 *left = counter_of(COUNTER_SAMPLE), range = 2ull * cfg.sample_rate - 1;

	if (!left)
		return false;
	if (*left - 1 >= range) /* none has been drawn yet, or one for another rate */
		*left = 1 + bpf_get_prandom_u32() % range;
	return !--*left;
}

/* Is this drop one of the first of the second on this CPU? */
static __always_inline bool sample_drop_due(void)
{
	u64 *told = counter_of(COUNTER_SAMPLE_DROPS);
	u32 now = clock_now();

	if (!told)
		return false;
	if (*told >> 32 != now)
		*told = (u64)now << 32;
	if ((u32)*told >= cfg.sample_drops)
		return false;
	++*told;
	return true;
}

/* A new cell, and its number. */
static __always_inline struct sample *sample_new(enum sample_kind kind, u64 *seq)
{
	struct sample_log *log = &shared_get()->samples[kind & 1];
	struct sample *s;

	*seq = __sync_fetch_and_add(&log->next, 1);
	s = &log->cell[*seq & (SAMPLES - 1)];
	__sync_lock_test_and_set(&s->seq, 0);
	return s;
}

/* Fills a cell, except for the frame. */
static __always_inline void sample_fill(struct sample *s, u32 in, u32 out, u32 vlans, u32 len,
					u32 kept)
{
	s->port = port_at(in)->id;
	s->out = out;
	s->len = len;
	s->vlan = capture_vlan(vlans);
	s->kept = kept;
}

/*
 * Samples a frame as it is before the bridge changes it: a tag beside the packet is put in its
 * place. This is a separate function, to save room on the stacks of its callers. A cell that is
 * taken is always filled: its reader waits for it.
 */
__noinline int sample_put(struct __sk_buff *skb, u32 ports, u32 vlans, u32 reason,
			  enum sample_kind kind)
{
	u32 beside = skb->vlan_present ? ETHER_TAG : 0, len = skb->len + beside, kept, rest;
	struct sample *s;
	u64 seq;

	if (!on(FEATURE_SAMPLE)) /* Linux before 6.8 verifies functions that are never called */
		return 0;
	if (skb->len < ETHER_HEADER)
		return 0;
	s = sample_new(kind, &seq);
	kept = len < SAMPLE_BYTES ? len : SAMPLE_BYTES;
	sample_fill(s, ports & 0xffff, ports >> 16, vlans, len, kept);
	s->reason = reason;
	rest = kept - MAC_PAIR - beside;
	if (bpf_skb_load_bytes(skb, 0, s->frame, MAC_PAIR))
		s->kept = 0;
	if (beside) {
		*(u16 *)(s->frame + MAC_PAIR) = skb->vlan_proto;
		*(u16 *)(s->frame + MAC_PAIR + 2) = bpf_htons(skb->vlan_tci);
		if (!frame_load(skb, MAC_PAIR, s->frame + MAC_PAIR + ETHER_TAG, rest,
				SAMPLE_BYTES - MAC_PAIR - ETHER_TAG))
			s->kept = 0;
	} else if (!frame_load(skb, MAC_PAIR, s->frame + MAC_PAIR, rest, SAMPLE_BYTES - MAC_PAIR)) {
		s->kept = 0;
	}
	__sync_lock_test_and_set(&s->seq, seq + 1);
	return 0;
}

/*
 * Samples an incoming frame if it is its turn. The lower half of `ports` is the slot of arrival.
 * The upper half is the slot that it leaves through, SAMPLE_FLOOD, or 0: it is dropped for the
 * reason, or for the switch itself.
 */
__noinline int sample_in(struct __sk_buff *skb, u32 ports, u32 vlans, u32 reason)
{
	if (on(FEATURE_SAMPLE) && sample_due())
		sample_put(skb, ports, vlans, reason, SAMPLE_FLOW);
	return 0;
}

/* Samples a dropped frame, unless there have been too many. */
__noinline int sample_drop(struct __sk_buff *skb, u32 slot, u32 vlans, u32 reason)
{
	if (on(FEATURE_SAMPLE) && reason && sample_drop_due())
		sample_put(skb, slot, vlans, reason, SAMPLE_DROP);
	return 0;
}

#define SAMPLE_RETAGGED (1u << 31) /* with a length: the frame now has a tag of the bridge's */

/* Samples a frame that XDP sends, with its tag of arrival. */
__noinline int sample_xdp(struct xdp_md *xdp, u32 ports, u32 vlans, u32 outer, u32 len)
{
	u32 has = on(FEATURE_VLANS) && (len & SAMPLE_RETAGGED) ? ETHER_TAG : 0, kept, rest, at;
	struct sample *s;
	u64 seq;

	if (!on(FEATURE_SAMPLE)) /* Linux before 6.8 verifies functions that are never called */
		return 0;
	len &= ~SAMPLE_RETAGGED;
	at = on(FEATURE_VLANS) && outer ? MAC_PAIR + ETHER_TAG : MAC_PAIR;
	kept = len < SAMPLE_BYTES ? len : SAMPLE_BYTES;
	if (kept < ETHER_HEADER)
		return 0;
	s = sample_new(SAMPLE_FLOW, &seq);
	sample_fill(s, ports & 0xffff, ports >> 16, vlans, len, kept);
	s->reason = 0;
	if (bpf_xdp_load_bytes(xdp, 0, s->frame, MAC_PAIR))
		s->kept = 0;
	rest = kept - at;
	if (at > MAC_PAIR) {
		*(u16 *)(s->frame + MAC_PAIR) = bpf_htons(cfg.vlan_proto);
		*(u16 *)(s->frame + MAC_PAIR + 2) = bpf_htons(outer & 0xffff);
		if (!length_within(&rest, SAMPLE_BYTES - MAC_PAIR - ETHER_TAG) ||
		    bpf_xdp_load_bytes(xdp, MAC_PAIR + has, s->frame + MAC_PAIR + ETHER_TAG, rest))
			s->kept = 0;
	} else if (!length_within(&rest, SAMPLE_BYTES - MAC_PAIR) ||
		   bpf_xdp_load_bytes(xdp, MAC_PAIR + has, s->frame + MAC_PAIR, rest)) {
		s->kept = 0;
	}
	__sync_lock_test_and_set(&s->seq, seq + 1);
	return 0;
}
