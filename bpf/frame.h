/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* A frame, as far as a switch looks at it. */
#pragma once

#include <linux/if_ether.h>
#include <linux/in.h>
#include <linux/ip.h>
#include <linux/ipv6.h>
#include <linux/tcp.h>
#include <bpf/bpf_endian.h>

#include "maps.h"

#define MAC_BITS 48
#define MAC_MASK ((1ull << MAC_BITS) - 1)
#define BROADCAST MAC_MASK
#define VID_MASK 0x0fff

#define ETHER_HEADER 14
#define ETHER_TAG 4
#define ETHERTYPE_VLAN 0x8100 /* 802.1Q, customer tag */
#define ETHERTYPE_QINQ 0x88a8 /* 802.1Q, service tag */

/*
 * A frame of this size fits every device: no Ethernet device has a smaller MTU (RFC 791:
 * every link carries 68 bytes).
 */
#define ALWAYS_FITS (68 + ETHER_HEADER)

/*
 * A label has everything that a decision depends on, apart from the addresses and the port. It has
 * the tag's VLAN and, where a feature needs them, these bits.
 */
#define LABEL_TAGGED (1 << 12) /* has a tag of the bridge's own kind */
#define LABEL_DOUBLE (1 << 13) /* has another tag behind that */
#define LABEL_NON_IP (1 << 14) /* is neither IPv4, IPv6, ARP nor RARP */
#define LABEL_ARP (1 << 15) /* is ARP or RARP */
#define LABEL_UNREAD (LABEL_NON_IP | LABEL_ARP) /* only front_read() can distinguish these */
#define LABEL_BYTES (ETHER_HEADER + 3 * ETHER_TAG) /* bytes that frame_label() looks at */
#define LABEL_FEATURES (FEATURE_VLANS | FEATURE_NON_IP | FEATURE_RULES)

/* A tag that a frame has or should get: TAG_PRESENT | TCI, 0 for none. */
#define TAG_PRESENT (1u << 16)
#define TAG_PRIORITY 0xf000 /* with the drop eligible bit (802.1Q 9.6) */

struct frame {
	u64 dst; /* MAC, first byte lowest */
	u64 src;
	u32 ifindex; /* device on which it arrived */
	u32 len; /* bytes, header included; of a whole GSO packet */
	u16 tag; /* bytes of len that are a tag, which does not count towards the MTU */
	u16 label; /* VLAN of the outer tag, 0 for none or a priority tag; LABEL_ bits */
	u32 outer; /* tag of the bridge's own kind, as TAG_PRESENT | TCI; for VLAN filtering */
};

static __always_inline bool type_is_tag(u16 type)
{
	return type == bpf_htons(ETHERTYPE_VLAN) || type == bpf_htons(ETHERTYPE_QINQ);
}

/* Is it an obsolete tag, or a vendor's? To the switch, as to Linux, it is no tag. */
static __always_inline bool type_is_odd_tag(u16 type)
{
	return type == bpf_htons(0x9100) || type == bpf_htons(0x9200);
}

/* Is it a length (802.3 3.2.6), behind which there may be SNAP? */
static __always_inline bool type_is_length(u16 type)
{
	return bpf_ntohs(type) < 0x0600;
}

/* Does the EtherType announce something in front of the packet? */
static __always_inline bool type_is_front(u16 type)
{
	return type_is_tag(type) || type_is_odd_tag(type) || type_is_length(type);
}

static __always_inline bool type_is_ip(u16 type)
{
	return type == bpf_htons(ETH_P_IP) || type == bpf_htons(ETH_P_IPV6);
}

/*
 * Adds the EtherType's information to a label. "Non-IP" is as in OpenBSD's ifconfig(8). This is a
 * separate function, so that its result is unknown to the verifier: else the verifier would follow
 * each kind of frame to the end.
 */
__noinline u32 type_label(u32 label, u16 type)
{
	if (type == bpf_htons(ETH_P_ARP) || type == bpf_htons(ETH_P_RARP))
		return label | LABEL_ARP;
	if (type_is_ip(type))
		return label;
	return label | (type_is_front(type) ? LABEL_UNREAD : LABEL_NON_IP);
}

/*
 * Labels a frame for the features that look further than its addresses. The caller passes a tag
 * beside the packet as TAG_PRESENT | TCI, with its type. Returns false if the frame ends within a
 * tag.
 */
static __always_inline bool frame_label(struct frame *f, void *data, void *data_end, u32 beside,
					u16 beside_type)
{
	u16 own = on(FEATURE_VLANS) ? bpf_htons(cfg.vlan_proto) : bpf_htons(ETHERTYPE_VLAN);
	u16 type = *(u16 *)(data + 12);
	u32 at = ETHER_HEADER;
	bool other = false;

	f->label = 0;
	if (beside && beside_type == own) {
		f->outer = beside;
	} else if (beside) {
		other = true;
	} else if (type == own) {
		if (data + ETHER_HEADER + ETHER_TAG > data_end)
			return false;
		f->outer = TAG_PRESENT | bpf_ntohs(*(u16 *)(data + at));
		type = *(u16 *)(data + at + 2);
		at += ETHER_TAG;
	}
	if (f->outer)
		f->label = LABEL_TAGGED | (f->outer & VID_MASK);
	/*
	 * Looks behind two more tags. A loop of front_read(), which looks behind any further ones
	 * on demand, would cost each frame a call.
	 */
#pragma unroll
	for (int i = 0; i < 2; i++) {
		if (!type_is_tag(type))
			break;
		other = true;
		if (data + at + ETHER_TAG > data_end)
			return false;
		type = *(u16 *)(data + at + 2);
		at += ETHER_TAG;
	}
	if (other) {
		f->label |= LABEL_DOUBLE;
		/* a tag of another kind is payload: the bridge may still put its own tag on top */
		if (on(FEATURE_VLANS) && !f->outer)
			f->tag = 0;
	}
	f->label = type_label(f->label, type);
	return true;
}

/*
 * The tag beside the packet. The kernel moves the outer tag there before a program sees the
 * frame.
 */
static __always_inline u32 tag_beside(struct __sk_buff *skb)
{
	return skb->vlan_present ? TAG_PRESENT | (skb->vlan_tci & 0xffff) : 0;
}

/*
 * Reads the header at `data`, and the tag behind it unless the tag is beside the packet. Returns
 * false if the frame ends before that. `skb` is 0 at XDP, where no tag is beside the packet.
 */
static __always_inline bool frame_read(struct frame *f, void *data, void *data_end,
				       struct __sk_buff *skb)
{
	u64 src_and_type;
	u16 type;

	if (data + ETHER_HEADER > data_end) {
		f->dst = f->src = 0; /* leave nothing of the previous frame in this place */
		f->tag = f->label = 0;
		f->outer = 0;
		return false;
	}
	f->dst = *(u64 *)data & MAC_MASK;
	src_and_type = *(u64 *)(data + 6);
	f->src = src_and_type & MAC_MASK;
	f->label = 0;
	f->outer = 0;
	type = src_and_type >> MAC_BITS;
	if (on(LABEL_FEATURES)) {
		f->tag = type_is_tag(type) ? ETHER_TAG : 0;
		return frame_label(f, data, data_end, skb ? tag_beside(skb) : 0,
				   skb ? skb->vlan_proto : 0);
	}
	/* each check once: most frames have no tag */
	if (skb && skb->vlan_present) {
		if (skb->vlan_proto == bpf_htons(ETHERTYPE_VLAN))
			f->label = skb->vlan_tci & VID_MASK;
	} else if (type == bpf_htons(ETHERTYPE_VLAN)) {
		f->tag = ETHER_TAG;
		if (data + ETHER_HEADER + ETHER_TAG > data_end)
			return false;
		f->label = bpf_ntohs(*(u16 *)(data + ETHER_HEADER)) & VID_MASK;
		return true;
	}
	f->tag = type_is_tag(type) ? ETHER_TAG : 0;
	return true;
}

static __always_inline bool frame_of_skb(struct frame *f, struct __sk_buff *skb)
{
	f->ifindex = skb->ifindex;
	f->len = skb->len;
	return frame_read(f, (void *)(long)skb->data, (void *)(long)skb->data_end, skb);
}

/*
 * Reads a frame without a tag, which needs few checks, but not its length. Returns false if the
 * frame has a tag, or no complete header. A tag beside the packet has a type: it is never 0.
 */
static __always_inline bool frame_is_plain(struct frame *f, struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data;
	u64 src_and_type;

	if (data + ETHER_HEADER > (void *)(long)skb->data_end || skb->vlan_proto)
		return false;
	src_and_type = *(u64 *)(data + 6);
	if (type_is_tag(src_and_type >> MAC_BITS))
		return false;
	*f = (struct frame){
		.dst = *(u64 *)data & MAC_MASK,
		.src = src_and_type & MAC_MASK,
		.ifindex = skb->ifindex,
	};
	return true;
}

/*
 * Reads the frame again, with the tags in the first buffer. Before that, the kernel may not have
 * pulled them so far.
 */
static __always_inline bool frame_pulled(struct frame *f, struct __sk_buff *skb)
{
	if (bpf_skb_pull_data(skb, skb->len < LABEL_BYTES ? skb->len : LABEL_BYTES))
		return false;
	return frame_read(f, (void *)(long)skb->data, (void *)(long)skb->data_end, skb);
}

/*
 * Reads a frame at XDP. Returns false also for a frame in several buffers: the kernel's helpers
 * only look at the first buffer when they check the MTU, and they refuse to copy such a frame.
 */
static __always_inline bool frame_of_xdp(struct frame *f, struct xdp_md *xdp)
{
	f->ifindex = xdp->ingress_ifindex;
	f->len = xdp->data_end - xdp->data;
	if (bpf_xdp_get_buff_len(xdp) != f->len)
		return false;
	return frame_read(f, (void *)(long)xdp->data, (void *)(long)xdp->data_end, 0);
}

/*
 * The size in bytes of the segments that a GSO packet will be cut into, with headers like the
 * packet's. Returns 0 if a quick look does not determine the size: with tags, with protocols other
 * than TCP, and with IPv6 extension headers.
 */
static __always_inline u32 frame_segment(const struct frame *f, struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	u32 headers = ETHER_HEADER;

	if (f->tag || !skb->gso_size)
		return 0;
	if (skb->protocol == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETHER_HEADER;

		if ((void *)(ip + 1) > data_end || ip->protocol != IPPROTO_TCP)
			return 0;
		headers += ip->ihl * 4;
	} else if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		struct ipv6hdr *ip = data + ETHER_HEADER;

		if ((void *)(ip + 1) > data_end || ip->nexthdr != IPPROTO_TCP)
			return 0;
		headers += sizeof(*ip);
	} else {
		return 0;
	}
	if (data + headers + sizeof(struct tcphdr) > data_end)
		return 0;
	return headers + ((struct tcphdr *)(data + headers))->doff * 4 + skb->gso_size;
}

static __always_inline bool mac_is_group(u64 mac)
{
	return mac & 1;
}

/* Is it the address of a station, neither a group's nor zero? */
static __always_inline bool mac_is_source(u64 mac)
{
	return mac && !mac_is_group(mac);
}

/* Is it one of 01:80:C2:00:00:00 to 0F, for protocols between neighbours (802.1Q table 8-1)? */
static __always_inline bool mac_is_reserved(u64 mac)
{
	return (mac & 0xf0ffffffffffull) == 0x0000c28001ull;
}
