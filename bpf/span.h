/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Span ports: copies of frames for listeners there. Only tcx makes them. */
#pragma once

#include "trace.h"
#include "vlan.h"

struct span_copies {
	struct __sk_buff *skb;
	u32 ports; /* bit N: span port set.spans[N] gets one */
	u32 len;
	u32 tag; /* bytes of len that are a tag */
};

static long span_copy(u32 n, struct span_copies *s)
{
	u32 slot = SLOT(set.spans[n & (SPANS - 1)]), ports = s->ports >> (n & (SPANS - 1));
	u32 mtu = 0;

	if (!ports)
		return 1;
	if (!(ports & 1) || !port_has_device(&tcx_devices, slot))
		return 0;
	if (s->len > ALWAYS_FITS && skb_fits(s->skb, port_at(slot)->ifindex, s->tag, &mtu)) {
		if (on(FEATURE_TRACE))
			trace_span(n, true);
		count_drop(slot, DROP_MTU); /* of the copy: the frame itself is not dropped */
		return 0;
	}
	if (on(FEATURE_TRACE)) {
		trace_span(n, false);
		return 0;
	}
	count_tx(slot, s->len);
	bpf_clone_redirect(s->skb, port_at(slot)->ifindex, 0);
	return 0;
}

/* Sends each span port one copy, even if there are several reasons for it. */
static __always_inline void span_send(struct __sk_buff *skb, u32 ports, u32 len, u32 tag)
{
	struct span_copies s = {.skb = skb, .ports = ports, .len = len, .tag = tag};

	if (ports)
		bpf_loop(SPANS, span_copy, &s, 0);
}

/* Separate functions are verified once, at however many places frames arrive and leave. */
__noinline int span_copies_in(struct __sk_buff *skb, u32 slot, u32 vid, u32 len, u32 tag)
{
	u32 ports = set.span_in | port_at(slot)->span_in;
	struct vlan *row;

	if (on(FEATURE_VLANS)) {
		row = vlan_row(vid);
		if (row && ports_have(row->member, slot))
			ports |= row->span_in;
	}
	span_send(skb, ports, len, tag);
	if (on(FEATURE_TRACE))
		trace_spans_in();
	return 0;
}

__noinline int span_copies_out(struct __sk_buff *skb, u32 slot, u32 vid, u32 len, u32 tag)
{
	u32 ports = set.span_out | port_at(slot)->span_out;
	struct vlan *row;

	if (on(FEATURE_VLANS)) {
		row = vlan_row(vid);
		if (row)
			ports |= row->span_out;
	}
	span_send(skb, ports, len, tag);
	return 0;
}

/*
 * Copies a frame as it arrived at a port, before any decision about it. So this must find the
 * frame's VLAN itself; a copy for the VLAN is made only if the port is in it.
 */
static __always_inline void span_in(struct __sk_buff *skb, const struct frame *f, u32 slot)
{
	u32 vid = on(FEATURE_VLANS) ? frame_vlan(f, port_at(slot)) : 0;

	span_copies_in(skb, slot, vid, f->len, f->tag);
}

/* Copies a frame as it leaves through a port. */
static __always_inline void span_out(struct __sk_buff *skb, const struct frame *f,
				     const struct verdict *v, u32 out)
{
	span_copies_out(skb, out, v->vid, f->len, f->tag);
}
