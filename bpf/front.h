/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * What is in front of a packet: tags, and SNAP (RFC 1042, 802.1H). Receivers look
 * behind any number of them. Every filter asks this one reader, and drops a frame
 * that it has to judge and that the reader does not get to the end of.
 */
#pragma once

#include "verdict.h"

#define FRONT_LAYERS 8 /* tags and SNAP headers; no network has as many */

/*
 * What the reader finds, in one word. Where it fails, FRONT_AT is 0 and FRONT_TYPE
 * the reason against the frame.
 */
#define FRONT_AT(front) ((front) & 0xff) /* where the packet begins, from the frame's start */
#define FRONT_FOREIGN (1u << 8) /* there is more than one tag of the bridge's own kind */
#define FRONT_ODD (1u << 9) /* there is a length, or a tag that to the switch is none */
#define FRONT_FLAGS (FRONT_FOREIGN | FRONT_ODD)
#define FRONT_TYPE(front) ((u16)((front) >> 16)) /* EtherType as in the frame, 0 for none */

/* LLC and OUI before an EtherType, read into a word (RFC 1042, 802.1H). */
#define SNAP_BYTES 6
#define SNAP_RFC1042 0x00000003aaaaull
#define SNAP_802_1H 0xf8000003aaaaull

static __always_inline u32 front_fails(enum drop_reason reason)
{
	return (u32)reason << 16;
}

/*
 * How many bytes are between the EtherType and the next one, with what FRONT_FLAGS
 * these mean; 0 if a packet follows. `plain` says that a tag may yet be the bridge's.
 * A function of its own, of whose result the verifier knows nothing: it would
 * follow each order of tags.
 */
__noinline u32 front_layer(u16 type, bool plain)
{
	u16 own = on(FEATURE_VLANS) ? bpf_htons(cfg.vlan_proto) : bpf_htons(ETHERTYPE_VLAN);

	if (type_is_tag(type))
		return ETHER_TAG | (plain && type == own ? 0 : FRONT_FOREIGN);
	if (type_is_odd_tag(type))
		return ETHER_TAG | FRONT_FOREIGN | FRONT_ODD;
	if (type_is_length(type))
		return (SNAP_BYTES + sizeof(type)) | FRONT_FOREIGN | FRONT_ODD;
	return 0;
}

/* Reads on from the first EtherType, with a tag of type `beside` beside the packet, or 0. */
static __always_inline u32 front_walk(const struct hook *h, u16 beside)
{
	u32 at = ETHER_HEADER, flags = beside ? front_layer(beside, true) : 0, layer;
	u16 type = 0;
	u64 snap = 0;

#pragma clang loop unroll(disable)
	for (u32 n = 0; n <= FRONT_LAYERS; n++) {
		if (frame_bytes(h, at - sizeof(type), &type, sizeof(type)))
			return front_fails(DROP_MALFORMED);
		layer = front_layer(type, !beside && !n);
		flags |= layer;
		if (!layer)
			return (u32)type << 16 | (flags & FRONT_FLAGS) | at;
		if (type_is_length(type) && (frame_bytes(h, at, &snap, SNAP_BYTES) ||
					     (snap != SNAP_RFC1042 && snap != SNAP_802_1H)))
			return (flags & FRONT_FLAGS) | at;
		at += layer & 0xff;
	}
	return front_fails(DROP_TOO_DEEP);
}

/* Functions of their own, verified once for a program. */
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
 * The reason against the frame at a port that takes IP alone: 0 if it is IPv4,
 * IPv6, ARP or RARP, as ifconfig(8) of OpenBSD has it.
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
	v->fleeting = true; /* frames with this label are not alike */
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
