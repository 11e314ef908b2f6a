/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Rate limits: how much may arrive at a port, and how much may leave through it.
 *
 * Incoming frames are checked before anything else. Outgoing frames are checked by a separate
 * program at the egress of the port's device. Everything that the switch sends through the device
 * passes there: a frame, a copy, an answer, a routed packet. So no other place needs a check. The
 * two ways that bypass the egress of a device, to a veth's other end and by XDP, are closed for a
 * port with such a limit.
 *
 * A limit has a bucket, and frames that find it empty are dropped: nothing is queued. A TCP sender
 * that has lost all its data under way waits for at least 200 ms (TCP_RTO_MIN of Linux). The data
 * that the limit lets pass meanwhile must not be lost, or the sender never reaches the rate. So the
 * bucket holds more than that, unless it is configured otherwise.
 */
#pragma once

#include "account.h"
#include "bucket.h"
#include "port.h"
#include "route.h"

#define RATE_BURST (BUCKET_SECOND / 4)
#define RATE_FEW 64 /* frames that it holds at least */
#define RATE_BYTES 65536 /* bytes that it holds at least: a GSO packet */

#define RATE_HEADERS 54 /* bytes in front of the data of a segment, if unknown */
#define TAG_BYTES 4

/* Takes frames, or their bytes, out of the port's bucket. Returns true if it is empty. */
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

/* The bytes of all frames that the kernel will make of a packet, each with its headers. */
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
 * Does the frame belong to a protocol between neighbours? Such a frame goes no further, and has its
 * own limit. A flood of others must not keep it from spanning tree.
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

/* Does a packet exceed its device's port's limit for incoming frames? Then it has been counted. */
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
 * Does an outgoing packet exceed the limit of its device's port? The limit does not cover frames
 * that the host itself sends through the device.
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
 * The port of XDP's frame, if there is a limit for its incoming frames; or else 0. XDP takes a
 * frame out of the bucket when it sends it: tcx does so for frames that XDP leaves to it.
 */
static __always_inline u32 rate_slot_xdp(struct xdp_md *xdp)
{
	u32 slot = port_slot(xdp->ingress_ifindex);

	return slot && port_at(slot)->limit[LIMIT_IN].rate ? slot : 0;
}

/* The XDP action for a frame: XDP_REDIRECT if its port's limit permits it. */
OFTEN __noinline int rate_refuses_xdp(struct xdp_md *xdp)
{
	u32 slot;

	if (!on(FEATURE_RATE))
		return XDP_REDIRECT;
	slot = rate_slot_xdp(xdp);
	if (!slot || rate_spares((void *)(long)xdp->data, (void *)(long)xdp->data_end) ||
	    !rate_take(slot, LIMIT_IN, 0, 0))
		return XDP_REDIRECT;
	/* tcx reports a drop to all observers */
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
