/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The account of frames. The switch counts a frame where it arrives and where it is dropped, no
 * matter which part drops it.
 */
#pragma once

#include <linux/pkt_cls.h>

#include "pipeline.h"
#include "sample.h"
#include "watch.h"

/*
 * Counts an incoming frame for the features that need it. A rule counts the frames that it matches,
 * whatever happens to them later.
 */
static __always_inline void note_in(const struct frame *f, const struct verdict *v)
{
	if (on(FEATURE_VLAN_STATS))
		vlan_count(v->vid, f->len, true);
	if (on(FEATURE_RULES))
		rules_count(v->rule_in, v->rule_out, f->len);
	if (on(FEATURE_TALKERS))
		talker_count(f, v);
}

/*
 * Counts a frame where it arrives: once, whatever happens to it later. `out` is as in sample_in().
 */
static __always_inline void account_in(struct __sk_buff *skb, const struct frame *f,
				       const struct verdict *v, u32 out)
{
	count_rx(v->in, f->len);
	if (on(FEATURES_NOTE))
		note_in(f, v);
	if (on(FEATURE_SAMPLE))
		sample_in(skb, v->in | out << 16, capture_vlans(v), 0);
}

/*
 * Records a drop that its port has already counted: counts it for pf, captures the frame, and
 * reports the drop to a collector.
 */
static __always_inline void note_drop(struct __sk_buff *skb, u32 slot, u32 vlans, u32 reason)
{
	if (on(FEATURE_PF))
		pf_count_drop(reason);
	if (on(FEATURE_CAPTURE))
		capture_frame(skb, slot, vlans, CAPTURE_DROP, reason);
	if (on(FEATURE_SAMPLE))
		sample_drop(skb, slot, vlans, reason);
}

/*
 * Counts a drop at a port, by its reason and for pf, and captures the frame. The VLANs are as
 * capture_vlans() makes them. They are 0 where they are no longer known: on a trip by patch cables,
 * the verdict belongs to another bridge.
 */
static __always_inline void account_drop(struct __sk_buff *skb, u32 slot, u32 vlans, u32 reason)
{
	count_drop(slot, reason);
	note_drop(skb, slot, vlans, reason);
}

/* Drops a frame that has not been counted yet. */
static __always_inline int drop_skb(struct __sk_buff *skb, const struct frame *f,
				    const struct verdict *v, u32 reason)
{
	count_refused(v->in, f->len, reason);
	if (on(FEATURE_PF) && on(FEATURE_PF_LOG) && v->pf == PF_LOOK_JUDGE)
		pf_log_due(skb, reason);
	if (on(FEATURES_NOTE))
		note_in(f, v);
	if (on(FEATURE_SAMPLE))
		sample_in(skb, v->in, capture_vlans(v), reason);
	note_drop(skb, v->in, capture_vlans(v), reason);
	return TC_ACT_SHOT;
}

/* Drops a frame before any decision about it. Span ports still get it. */
static __always_inline int drop_early(struct __sk_buff *skb, struct frame *f,
				      const struct verdict *v, u32 reason)
{
	if (on(FEATURE_TRACE))
		trace_verdict(f, v, ACTION_DROP, reason);
	if (on(FEATURE_SPAN) && !(port_at(v->in)->facts & PORT_SPAN)) {
		if (reason == DROP_MALFORMED) {
			f->outer = VID_MASK; /* in no VLAN, whatever has been read of the frame */
			f->tag = 0;
		}
		span_in(skb, f, v->in);
	}
	return drop_skb(skb, f, v, reason);
}
