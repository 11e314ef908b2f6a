/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Rate limits: how much may come in by a port, and how much may leave by it.
 *
 * What comes in is looked at before anything else. What leaves is looked at by a program of
 * its own at the egress of the port's device. Whatever the switch sends by the device comes
 * there: a frame, a copy, an answer, a packet that is routed. So nothing else has to ask. The
 * two ways past the egress of a device, to a veth's other end and by XDP, are shut for a port
 * with such a limit.
 *
 * A limit has a bucket, and frames that find it empty are dropped: nothing is queued. A sender
 * of TCP that has lost all it had under way waits for 200 ms at least (TCP_RTO_MIN of Linux).
 * What the limit lets pass meanwhile must not be lost, or the sender never gets the rate. So
 * the bucket holds more than that, unless it is told otherwise.
 */
#pragma once

#include "account.h"
#include "bucket.h"
#include "port.h"
#include "route.h"

#define RATE_BURST (BUCKET_SECOND / 4)
#define RATE_FEW 64 /* frames that it holds at least */
#define RATE_BYTES 65536 /* bytes that it holds at least: a GSO packet */

#define RATE_HEADERS 54 /* bytes in front of the data of a segment, where they are not known */
#define TAG_BYTES 4

/* Takes frames, or their bytes, out of the port's bucket: true if it is empty. */
OFTEN __noinline int rate_take(u32 slot, u32 way, u32 frames, u32 bytes)
{
	const volatile struct port *p = &set.ports[slot & (MAX_PORTS - 1)];
	struct shared *s = shared_get();
	u64 rate, amount, few, unit, burst;

	if (!on(FEATURE_RATE) || !s || way >= LIMIT_WAYS)
		return false;
	rate = p->limit[way].rate;
	if (!rate)
		return false;
	amount = frames;
	few = RATE_FEW;
	unit = BUCKET_SECOND;
	if (p->limit[way].kilobits) {
		amount = bytes;
		few = RATE_BYTES;
		unit = BUCKET_BYTE;
	}
	burst = p->limit[way].burst;
	if (burst) {
		burst = burst * unit / rate;
	} else {
		burst = few * unit / rate;
		if (burst < RATE_BURST)
			burst = RATE_BURST;
	}
	return bucket_is_empty(&s->buckets[slot & (MAX_PORTS - 1)].rate[way], amount * unit / rate,
			       burst);
}

/* The bytes of all frames that the kernel is to make of a packet, each with its headers. */
static __always_inline u32 rate_bytes(struct __sk_buff *skb, u32 frames)
{
	u32 headers = RATE_HEADERS, segment, tag = skb->vlan_present ? TAG_BYTES : 0;

	if (frames <= 1)
		return skb->len + tag;
	segment = route_segment(skb);
	if (segment != ~0u)
		headers = segment - skb->gso_size;
	return skb->len + tag + (frames - 1) * (headers + tag);
}

/*
 * Is the frame one of a protocol between neighbours? Such a frame goes no further, and has a
 * limit of its own. A flood of others must not keep spanning tree from hearing it.
 */
static __always_inline bool rate_spares(void *data, void *data_end)
{
	u64 dst;

	if (data + ETHER_HEADER > data_end)
		return false;
	dst = *(u64 *)data & MAC_MASK;
	return mac_is_reserved(dst) &&
	       !(on(FEATURE_GROUP_FWD) && (set.group_fwd_mask >> (dst >> 40 & 15) & 1));
}

/* Is a packet above the limit of what comes in by its device's port? Then it has been counted. */
OFTEN __noinline int rate_refuses(struct __sk_buff *skb)
{
	u32 slot, frames;

	if (!on(FEATURE_RATE))
		return false;
	slot = port_slot(skb->ifindex);
	if (!slot || !port_at(slot)->limit[LIMIT_IN].rate ||
	    rate_spares((void *)(long)skb->data, (void *)(long)skb->data_end) ||
	    !port_has_device(&tcx_devices, slot))
		return false;
	frames = frames_of(skb, skb->len);
	if (!rate_take(slot, LIMIT_IN, frames, rate_bytes(skb, frames)))
		return false;
	count_refused(slot, skb->len, DROP_RATE);
	note_drop(skb, slot, 0, DROP_RATE);
	return true;
}

/*
 * Is a packet that leaves by a device above its port's limit? What the host itself sends by the
 * device is none of the switch's.
 */
static __always_inline int rate_out(struct __sk_buff *skb)
{
	u32 slot, frames;

	if (!on(FEATURE_RATE) || !skb->ingress_ifindex)
		return TC_ACT_UNSPEC;
	slot = port_slot(skb->ifindex);
	if (!slot || !port_at(slot)->limit[LIMIT_OUT].rate || !port_has_device(&tcx_devices, slot))
		return TC_ACT_UNSPEC;
	frames = frames_of(skb, skb->len);
	if (!rate_take(slot, LIMIT_OUT, frames, rate_bytes(skb, frames)))
		return TC_ACT_UNSPEC;
	uncount_tx(slot, skb->len);
	account_drop(skb, slot, 0, DROP_RATE);
	return TC_ACT_SHOT;
}

/*
 * The port of XDP's frame, if what comes in by it has a limit; or else 0. XDP takes a frame out
 * of the bucket when it sends it: the frames that it leaves to tcx are taken there.
 */
static __always_inline u32 rate_slot_xdp(struct xdp_md *xdp)
{
	u32 slot = port_slot(xdp->ingress_ifindex);

	return slot && port_at(slot)->limit[LIMIT_IN].rate ? slot : 0;
}

/* What to do with a frame at XDP: XDP_REDIRECT if its port's limit is not against it. */
OFTEN __noinline int rate_refuses_xdp(struct xdp_md *xdp)
{
	u32 slot;

	if (!on(FEATURE_RATE))
		return XDP_REDIRECT;
	slot = rate_slot_xdp(xdp);
	if (!slot || rate_spares((void *)(long)xdp->data, (void *)(long)xdp->data_end) ||
	    !rate_take(slot, LIMIT_IN, 0, 0))
		return XDP_REDIRECT;
	/* tcx tells of a drop who looks */
	if (on(FEATURE_CAPTURE | FEATURE_SAMPLE | FEATURE_PF))
		return XDP_PASS;
	count_refused(slot, bpf_xdp_get_buff_len(xdp), DROP_RATE);
	return XDP_DROP;
}

/* Takes a frame that XDP sends out of the bucket. */
OFTEN __noinline int rate_pays_xdp(struct xdp_md *xdp)
{
	u32 slot;

	if (!on(FEATURE_RATE))
		return 0;
	slot = rate_slot_xdp(xdp);
	if (slot)
		rate_take(slot, LIMIT_IN, 1, bpf_xdp_get_buff_len(xdp));
	return 0;
}
