/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The layers in front of a packet: tags, and SNAP (RFC 1042, 802.1H). Receivers look behind any
 * number of them. Every filter uses this one reader. If the reader does not reach the packet, a
 * filter that must judge the frame drops it.
 */
#pragma once

#include "verdict.h"

#define FRONT_LAYERS 8 /* tags and SNAP headers; no network has as many */

/*
 * The reader's result, in one word. If the reader fails, FRONT_AT is 0 and FRONT_TYPE is the reason
 * to drop the frame.
 */
#define FRONT_AT(front) ((front) & 0xff) /* where the packet begins, from the frame's start */
#define FRONT_FOREIGN (1u << 8) /* there is more in front than one tag of the bridge's own kind */
#define FRONT_ODD (1u << 9) /* there is a length, or a tag that is none to the switch */
#define FRONT_8100 (1u << 10) /* there is a tag of this type */
#define FRONT_88A8 (1u << 11)
#define FRONT_9100 (1u << 12)
#define FRONT_9200 (1u << 13)
#define FRONT_TAGS (FRONT_8100 | FRONT_88A8 | FRONT_9100 | FRONT_9200)
#define FRONT_FLAGS (FRONT_FOREIGN | FRONT_ODD | FRONT_TAGS)
#define FRONT_TYPE(front) ((u16)((front) >> 16)) /* EtherType as in the frame, 0 for none */

/* LLC and OUI before an EtherType, read into a word (RFC 1042, 802.1H). */
#define SNAP_BYTES 6
#define SNAP_RFC1042 0x00000003aaaaull
#define SNAP_802_1H 0xf8000003aaaaull

static __always_inline u32 front_fails(enum drop_reason reason)
{
	return (u32)reason << 16;
}

/* The bit of FRONT_TAGS for a tag of this type, 0 if it is no tag's. */
static __always_inline u32 front_tag(u16 type)
{
	if (type == bpf_htons(ETHERTYPE_VLAN))
		return FRONT_8100;
	if (type == bpf_htons(ETHERTYPE_QINQ))
		return FRONT_88A8;
	if (type == bpf_htons(0x9100))
		return FRONT_9100;
	return type == bpf_htons(0x9200) ? FRONT_9200 : 0;
}

/*
 * The layer that an EtherType announces: its bytes up to the next EtherType, and its FRONT_FLAGS.
 * Returns 0 if a packet follows. `plain` means that a tag may still be the bridge's.
 */
static __always_inline u32 front_layer(u16 type, bool plain)
{
	u16 own = on(FEATURE_VLANS) ? bpf_htons(cfg.vlan_proto) : bpf_htons(ETHERTYPE_VLAN);

	if (type_is_tag(type))
		return ETHER_TAG | front_tag(type) | (plain && type == own ? 0 : FRONT_FOREIGN);
	if (type_is_odd_tag(type))
		return ETHER_TAG | front_tag(type) | FRONT_FOREIGN | FRONT_ODD;
	if (type_is_length(type))
		return (SNAP_BYTES + sizeof(type)) | FRONT_FOREIGN | FRONT_ODD;
	return 0;
}

#define FRONT_CUT (1u << 14) /* the frame ends before the EtherType */

/*
 * The layer whose EtherType ends at a place, in the form of front_layer(), with the EtherType as in
 * the reader's result. LLC that is not SNAP counts as a packet without one.
 */
static __always_inline u32 front_next(const struct hook *h, u32 at, bool plain)
{
	u16 type = 0;
	u64 snap = 0;
	u32 layer;

	if (frame_bytes(h, at - sizeof(type), &type, sizeof(type)))
		return FRONT_CUT;
	layer = front_layer(type, plain);
	if (type_is_length(type) && (frame_bytes(h, at, &snap, SNAP_BYTES) ||
				     (snap != SNAP_RFC1042 && snap != SNAP_802_1H)))
		return layer & FRONT_FLAGS;
	return (u32)type << 16 | layer;
}

/*
 * Separate functions: their result is unknown to the verifier, which would else follow each order
 * of tags.
 */
__noinline u32 front_next_skb(struct __sk_buff *skb, u32 at, bool plain)
{
	const struct hook h = {.ctx = skb, .skb = true};

	return front_next(&h, at, plain);
}

__noinline u32 front_next_xdp(struct xdp_md *xdp, u32 at, bool plain)
{
	const struct hook h = {.ctx = xdp};

	return front_next(&h, at, plain);
}

/*
 * Reads the layers from the first EtherType on. `beside` is the type of the tag beside the packet,
 * 0 for none.
 */
static __always_inline u32 front_walk(const struct hook *h, u16 beside)
{
	u32 at = ETHER_HEADER, flags = beside ? front_layer(beside, true) : 0, layer;

#pragma clang loop unroll(disable)
	for (u32 n = 0; n <= FRONT_LAYERS; n++) {
		layer = h->skb ? front_next_skb(h->ctx, at, !beside && !n)
			       : front_next_xdp(h->ctx, at, !beside && !n);
		if (layer & FRONT_CUT)
			return front_fails(DROP_MALFORMED);
		flags |= layer;
		if (!FRONT_AT(layer))
			return (layer & ~0xffffu) | (flags & FRONT_FLAGS) | at;
		at += FRONT_AT(layer);
	}
	return front_fails(DROP_TOO_DEEP);
}

/* Separate functions, which are verified once per program. */
__noinline u32 front_skb(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .skb = true};

	return front_walk(&h, skb->vlan_present ? skb->vlan_proto : 0);
}

__noinline u32 front_xdp(struct xdp_md *xdp)
{
	const struct hook h = {.ctx = xdp};

	return front_walk(&h, 0);
}

static __always_inline u32 front_read(const struct hook *h)
{
	return h->skb ? front_skb(h->ctx) : front_xdp(h->ctx);
}

/*
 * The reason to drop the frame at a port that only takes IP. Returns 0 if it is IPv4, IPv6, ARP or
 * RARP, as in OpenBSD's ifconfig(8).
 */
static __always_inline u32 front_blocks_non_ip(const struct hook *h, const struct frame *f,
					       struct verdict *v)
{
	u32 front;
	u16 type;

	if (!(f->label & LABEL_NON_IP))
		return 0;
	if ((f->label & LABEL_UNREAD) != LABEL_UNREAD)
		return DROP_NON_IP;
	v->fleeting = true; /* frames with this label differ, so no decision is remembered */
	front = front_read(h);
	type = FRONT_TYPE(front);
	if (!FRONT_AT(front))
		return type;
	if (front & FRONT_ODD)
		return DROP_NON_IP;
	if (type_is_ip(type) || type == bpf_htons(ETH_P_ARP) || type == bpf_htons(ETH_P_RARP))
		return 0;
	return DROP_NON_IP;
}
