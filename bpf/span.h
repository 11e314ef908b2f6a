/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Span ports: copies of frames for who listens. tcx alone makes them. */
#pragma once

#include "vlan.h"

struct span_copies {
	struct __sk_buff *skb;
	u32 ports; /* bit N: span port cfg.spans[N] gets one */
	u32 len;
	u32 tag; /* bytes of len that are a tag */
};

static long span_copy(u32 n, struct span_copies *s)
{
	u32 slot = SLOT(cfg.spans[n & (SPANS - 1)]), ports = s->ports >> (n & (SPANS - 1));
	u32 mtu = 0;

	if (!ports)
		return 1;
	if (!(ports & 1) || !port_has_device(&tcx_devices, slot))
		return 0;
	if (s->len > ALWAYS_FITS && skb_fits(s->skb, port_at(slot)->ifindex, s->tag, &mtu)) {
		count_drop(slot, DROP_MTU);
		return 0;
	}
	bpf_clone_redirect(s->skb, port_at(slot)->ifindex, 0);
	count_tx(slot, s->len);
	return 0;
}

/* Who asks for a frame for several reasons gets it once. */
static __always_inline void span_send(struct __sk_buff *skb, const struct frame *f, u32 ports)
{
	struct span_copies s = {.skb = skb, .ports = ports, .len = f->len, .tag = f->tag};

	if (ports && !on(FEATURE_TRACE))
		bpf_loop(SPANS, span_copy, &s, 0);
}

/*
 * Copies a frame as it came in by a port, before anything is decided about it:
 * what its VLAN is, if the port has that, is found here.
 */
static __always_inline void span_in(struct __sk_buff *skb, const struct frame *f, u32 slot)
{
	const volatile struct port *in = port_at(slot);
	u32 ports = cfg.span_in | in->span_in, vid;
	struct vlan *row;

	if (on(FEATURE_VLANS)) {
		vid = frame_vlan(f, in);
		row = bpf_map_lookup_elem(&vlans, &vid);
		if (row && ports_have(row->member, slot))
			ports |= row->span_in;
	}
	span_send(skb, f, ports);
}

/* Copies a frame as it goes out by a port. */
static __always_inline void span_out(struct __sk_buff *skb, const struct frame *f,
				     const struct verdict *v, u32 out)
{
	u32 ports = cfg.span_out | port_at(out)->span_out, vid = v->vid;
	struct vlan *row;

	if (on(FEATURE_VLANS)) {
		row = bpf_map_lookup_elem(&vlans, &vid);
		if (row)
			ports |= row->span_out;
	}
	span_send(skb, f, ports);
}
