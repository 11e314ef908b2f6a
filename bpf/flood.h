/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* One frame to many ports. */
#pragma once

#include <linux/pkt_cls.h>

#include "pipeline.h"

struct flood {
	void *ctx;
	u32 in; /* slots */
	u32 last; /* the port that takes the frame itself; the others take copies */
	u32 kind; /* flag of the ports that take it */
	u32 len;
	u32 tag; /* bytes of len that are a tag */
};

/*
 * May the frame leave by the device? A GSO packet may when its segments may.
 * Asks the device itself, so that a changed MTU counts at once, and says what
 * its MTU is. 0 or the reason against it.
 */
static __always_inline int skb_fits(struct __sk_buff *skb, u32 ifindex, u32 tag, u32 *mtu)
{
	long refused = skb->gso_size ? bpf_check_mtu(skb, ifindex, mtu, 0, BPF_MTU_CHK_SEGS)
				     : bpf_check_mtu(skb, ifindex, mtu, -(__s32)tag, 0);

	/* below zero: there is no telling, and the kernel looks again on the way out */
	return refused > 0 ? DROP_MTU : 0;
}

static __always_inline bool xdp_fits(struct xdp_md *xdp, u32 ifindex, u32 tag, u32 *mtu)
{
	return !bpf_check_mtu(xdp, ifindex, mtu, -(__s32)tag, 0);
}

static long flood_to_skb(u32 n, struct flood *flood)
{
	struct __sk_buff *skb = flood->ctx;
	u32 slot = n + 1, ifindex, mtu = 0, reason = 0;

	if (!flood_reaches(flood->in, slot, flood->kind) || !port_has_device(&tcx_devices, slot))
		return 0;
	ifindex = port_at(slot)->ifindex;
	if (flood->len > ALWAYS_FITS)
		reason = skb_fits(skb, ifindex, flood->tag, &mtu);
	if (reason) {
		count_drop(flood->in, reason);
		return 0;
	}
	if (flood->last) {
		bpf_clone_redirect(skb, port_at(flood->last)->ifindex, 0);
		count_tx(flood->last, flood->len);
	}
	flood->last = slot;
	return 0;
}

static __always_inline int flood_skb(struct __sk_buff *skb, const struct frame *f,
				     const struct verdict *v)
{
	struct flood flood = {.ctx = skb, .in = v->in, .kind = v->flood, .len = f->len};

	bpf_loop(cfg.slots - 1, flood_to_skb, &flood, 0);
	if (!flood.last) {
		count_drop(v->in, DROP_NO_MEMBER);
		return TC_ACT_SHOT;
	}
	count_tx(flood.last, f->len);
	return bpf_redirect(port_at(flood.last)->ifindex, 0);
}

static __always_inline bool flood_takes_xdp(const struct flood *flood, u32 slot)
{
	return port_at(slot)->id && slot != flood->in && port_has_device(&xdp_devices, slot);
}

static long flood_fits_xdp(u32 n, struct flood *flood)
{
	u32 slot = n + 1, mtu = 0;

	if (!flood_takes_xdp(flood, slot))
		return 0;
	flood->last = slot;
	if (flood->len <= ALWAYS_FITS ||
	    xdp_fits(flood->ctx, port_at(slot)->ifindex, flood->tag, &mtu))
		return 0;
	flood->last = 0;
	return 1;
}

static long flood_count_xdp(u32 n, struct flood *flood)
{
	if (flood_takes_xdp(flood, n + 1))
		count_tx(n + 1, flood->len);
	return 0;
}

/*
 * Floods without an skb: only from a port where nothing but the MTU can keep
 * a frame from any other (PORT_XDP_FLOOD). False: leave it to tcx.
 */
static __always_inline bool flood_xdp(struct xdp_md *xdp, const struct frame *f,
				      const struct verdict *v)
{
	struct flood flood = {.ctx = xdp, .in = v->in, .len = f->len};

	if (!(cfg.features & FEATURE_XDP_FLOOD) || !(port_at(v->in)->flags & PORT_XDP_FLOOD))
		return false;
	bpf_loop(cfg.slots - 1, flood_fits_xdp, &flood, 0);
	if (!flood.last)
		return false;
	bpf_loop(cfg.slots - 1, flood_count_xdp, &flood, 0);
	bpf_redirect_map(&xdp_devices, 0, BPF_F_BROADCAST | BPF_F_EXCLUDE_INGRESS);
	return true;
}
