/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Unfinished work on a frame. A sender may leave work to the last sender of the frame (a guest
 * or a packet socket requests this in the header of virtio, 1.2 5.1.6). The kernel does it
 * after all filters:
 *
 * - It writes a checksum at the place that the sender has named (CHECKSUM_PARTIAL). If
 *   filters look at that place, a checksum does not belong there: the sender tries to change
 *   bytes that have been judged.
 * - It cuts the packet into several (GSO), and gives each a length, a number and, for UDP, a
 *   place among the fragments of one. If the packet claims to be a fragment itself, the
 *   filters judge a packet other than those that the kernel makes.
 */
#pragma once

#include "trust.h"

#define CHECKSUM_PARTIAL 3 /* of ip_summed */

/*
 * The sk_buff of a program's context. The kernel's function for this, bpf_cast_to_kern_ctx(), costs
 * nothing. The loader replaces the constant by a call of it, by the function's number in this
 * kernel.
 */
static __always_inline void *skb_of_kernel(struct __sk_buff *skb)
{
	void *kernel;

	asm volatile("r1 = %1\n\tr0 = %2 ll\n\t%0 = r0"
		     : "=r"(kernel)
		     : "r"(skb), "i"(KERNEL_SKB_CALL)
		     : "r0", "r1", "r2", "r3", "r4", "r5");
	return kernel;
}

/*
 * The place of the checksum in a header of the protocol, in bytes from the header's start. Returns
 * 0 if it has none that can be left to others.
 */
static __always_inline u32 checksum_offset(u8 proto)
{
	switch (proto) {
	case IPPROTO_TCP:
		return offsetof(struct tcphdr, check);
	case IPPROTO_UDP:
	case IPPROTO_UDPLITE:
	case IPPROTO_DCCP:
		return 6;
	case IPPROTO_SCTP:
		return 8;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return 2;
	}
	return 0;
}

/* May the payload contain packets, with their own checksums? Filters do not look at these. */
static __always_inline bool proto_is_tunnel(u8 proto)
{
	switch (proto) {
	case IPPROTO_IPIP:
	case IPPROTO_IPV6:
	case IPPROTO_GRE:
	case IPPROTO_L2TP:
	case IPPROTO_MPLS:
	case IPPROTO_ETHERNET:
		return true;
	}
	return false;
}

/* Is it a port of DHCP? Filters look into messages to and from these ports. */
static __always_inline bool port_is_dhcp(u16 port)
{
	return port == bpf_htons(DHCP4_SERVER) || port == bpf_htons(DHCP4_CLIENT) ||
	       port == bpf_htons(DHCP6_SERVER) || port == bpf_htons(DHCP6_CLIENT);
}

/*
 * Does a checksum to be written at start + offset belong to the packet that an ICMP error quotes,
 * whose header is at a place? The switch's own errors about such a packet have it there, and no
 * filter looks at it. This is a separate function, which the verifier follows once.
 */
__noinline u32 checksum_quoted(struct __sk_buff *skb, u32 at, u32 six, u32 start, u32 offset)
{
	u8 head[8 +
		sizeof(struct iphdr)]; /* its own header, and the first bytes of the quoted one */
	u32 type, proto, own;

	if (!on(FEATURES_JUDGE) || skb_bytes(skb, at, head, sizeof(head)))
		return false;
	type = head[0];
	at += 8;
	if (six) {
		proto = head[8 + offsetof(struct ipv6hdr, nexthdr)];
		at += sizeof(struct ipv6hdr);
		type = type < 128 ? 3 : 0;
	} else {
		proto = head[8 + offsetof(struct iphdr, protocol)];
		at += (head[8] & 15) * 4;
		/* a later fragment has no such header */
		if ((head[8 + 6] & 0x1f) | head[8 + 7])
			return false;
	}
	own = checksum_offset(proto);
	return own && start == at && offset == own && (type == 3 || type == 11 || type == 12);
}

/*
 * May the kernel write two bytes at start + offset, in a packet whose upper header is at c->at? It
 * may write the checksum of that header. It may also write behind everything that filters look at.
 */
static __always_inline bool checksum_fits(const struct hook *h, const struct chain *c, u32 start,
					  u32 offset)
{
	u32 own = checksum_offset(c->next);

	if (own && start == c->at && offset == own)
		return true;
	if (c->next == IPPROTO_ICMP || c->next == IPPROTO_ICMPV6)
		return checksum_quoted(h->ctx, c->at, c->next == IPPROTO_ICMPV6, start, offset);
	if (c->next == IPPROTO_UDP)
		return start + offset >= c->at + UDP_HEADER && !port_is_dhcp(c->udp.source) &&
		       !port_is_dhcp(c->udp.dest);
	return proto_is_tunnel(c->next) && start + offset >= c->at;
}

/*
 * Finds the upper header of an IPv4 packet. Returns false if there is no complete one, or if the
 * packet is a fragment, because filters may look at more of it.
 */
static __always_inline bool checksum_chain4(const struct hook *h, struct chain *c)
{
	struct iphdr ip;

	if (frame_bytes(h, c->at, &ip, sizeof(ip)) || ip.ihl < 5 ||
	    (ip.frag_off & bpf_htons(IP_FRAGMENT)))
		return false;
	c->at += ip.ihl * 4;
	c->next = ip.protocol;
	c->end = CHAIN_UPPER;
	return c->next != IPPROTO_UDP || !frame_bytes(h, c->at, &c->udp, sizeof(c->udp));
}

static __always_inline bool checksum_chain6(const struct hook *h, struct chain *c)
{
	if (frame_bytes(h, c->at + offsetof(struct ipv6hdr, nexthdr), &c->next, sizeof(c->next)))
		return false;
	c->at += sizeof(struct ipv6hdr);
	chain_follow(h, c);
	return c->end == CHAIN_UPPER && !c->fragment;
}

/* Does a checksum belong at its place, start + offset from the frame's start? */
static __always_inline bool checksum_belongs(struct __sk_buff *skb, u32 start, u32 offset)
{
	const struct hook h = {.ctx = skb, .skb = true};
	u32 front = front_read(&h);
	u16 type = FRONT_TYPE(front);
	struct chain c = {.at = FRONT_AT(front), .limit = skb->len};

	if (!FRONT_AT(front))
		return false;
	if (type == bpf_htons(ETH_P_IP))
		return checksum_chain4(&h, &c) && checksum_fits(&h, &c, start, offset);
	if (type == bpf_htons(ETH_P_IPV6))
		return checksum_chain6(&h, &c) && checksum_fits(&h, &c, start, offset);
	if (type == bpf_htons(ETH_P_ARP) || type == bpf_htons(ETH_P_RARP))
		return false;
	/* LLC, which begins there, could become SNAP with any type */
	return start + offset >= FRONT_AT(front) + (type ? 0 : SNAP_BYTES + sizeof(type));
}

#define CHECKSUM_ASTRAY (~0u) /* of checksum_place() */

/*
 * The place of the frame's unfinished checksum, in bytes from the frame's start, with the start of
 * its data in the upper half. Returns 0 if there is none, CHECKSUM_ASTRAY if one of these is out of
 * reach.
 */
static __always_inline u32 checksum_where(struct __sk_buff *skb)
{
	void *kernel;
	u64 start, place;

	if (!on(FEATURES_JUDGE))
		return 0;
	kernel = skb_of_kernel(skb);
	if ((*(u8 *)(kernel + cfg.skb.summed) >> cfg.skb.summed_shift & 3) != CHECKSUM_PARTIAL)
		return 0;
	/* csum_start counts from the buffer's start, because the headers may move */
	start = *(u64 *)(kernel + cfg.skb.head) + *(u16 *)(kernel + cfg.skb.csum_start) -
		*(u64 *)(kernel + cfg.skb.data);
	place = start + *(u16 *)(kernel + cfg.skb.csum_offset);
	return start < 0xffff && place < 0xffff ? start << 16 | place : CHECKSUM_ASTRAY;
}

/* The same as a separate function, which the verifier follows once. */
__noinline u32 checksum_place(struct __sk_buff *skb)
{
	return checksum_where(skb);
}

#define CUT_UDP_LEAST 8 /* bytes of a piece: the header of UDP */

/* May the kernel cut an IPv4 packet at c->at? */
static __always_inline bool cut_fits4(const struct hook *h, struct chain *c)
{
	struct iphdr ip;

	if (frame_bytes(h, c->at, &ip, sizeof(ip)))
		return true; /* it will not */
	c->next = ip.protocol;
	/* a packet that is larger than the length field can express has none (BIG TCP) */
	return !(ip.frag_off & bpf_htons(IP_FRAGMENT)) &&
	       (!ip.tot_len || c->at + bpf_ntohs(ip.tot_len) == c->limit);
}

/* The same for IPv6. The kernel makes its own fragment header, and ignores others. */
static __always_inline bool cut_fits6(const struct hook *h, struct chain *c)
{
	struct ipv6hdr ip;

	if (frame_bytes(h, c->at, &ip, sizeof(ip)))
		return true;
	c->at += sizeof(ip);
	c->next = ip.nexthdr;
	if (ip.payload_len && c->at + bpf_ntohs(ip.payload_len) != c->limit)
		return false;
	if (c->next != IPPROTO_TCP && c->next != IPPROTO_UDP)
		chain_follow(h, c);
	return !c->fragment;
}

/*
 * May the kernel cut a packet as its sender requests? No network stack leaves a fragment to be cut,
 * nor a UDP header that is longer than a piece: the next piece would have bytes of the header in
 * the same place. A length that differs from the packet's does not match the pieces. A packet
 * behind so many tags that it cannot be read is left to each filter to drop. This is a separate
 * function, so that only packets that will be cut pay.
 */
__noinline u32 cut_fits(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .skb = true};
	struct chain c = {.limit = skb->len};
	u32 front;

	if (!on(FEATURES_JUDGE))
		return true;
	front = front_skb(skb);
	c.at = FRONT_AT(front);
	if (!c.at || !type_is_ip(FRONT_TYPE(front)))
		return true;
	if (FRONT_TYPE(front) == bpf_htons(ETH_P_IP) ? !cut_fits4(&h, &c) : !cut_fits6(&h, &c))
		return false;
	return c.next != IPPROTO_UDP || skb->gso_size >= CUT_UDP_LEAST;
}

/*
 * Judges the unfinished work on a frame. Returns 0 if no filter objects, or else the reason to drop
 * the frame. This is a separate function, too.
 */
__noinline u32 unfinished_judge(struct __sk_buff *skb)
{
	u32 place;

	if (!on(FEATURES_JUDGE))
		return 0;
	if (skb->gso_size && !cut_fits(skb))
		return DROP_GSO;
	place = checksum_where(skb); /* each frame comes here, and a call costs it more */
	if (!place)
		return 0;
	if (place == CHECKSUM_ASTRAY ||
	    !checksum_belongs(skb, place >> 16, (place & 0xffff) - (place >> 16)))
		return DROP_CHECKSUM;
	return 0;
}
