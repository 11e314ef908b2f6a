/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * What is in a frame, and what DHCP servers and IPv6 routers alone may send:
 * from ports that are trusted. A frame of which that cannot be told is taken for
 * such a one (RFC 7113).
 */
#pragma once

#include "front.h"

/* What is looked for in a frame. */
#define LOOK_SOURCE (1 << 0) /* whether its sender's addresses are bound to it */
#define LOOK_DHCP (1 << 1)
#define LOOK_RA (1 << 2)
#define LOOK_QUESTION (1 << 3) /* whether it asks for an address that is bound */
#define LOOK_CLIENT (1 << 4) /* with LOOK_SOURCE: whether it asks a DHCP server for itself */

#define QUESTION_ARP 1
#define QUESTION_ND 2

struct udp {
	u16 source;
	u16 dest;
};

#define ICMP6_MLD_REPORT 131
#define ICMP6_MLD_DONE 132
#define ICMP6_RS 133
#define ICMP6_RA 134
#define ICMP6_NS 135
#define ICMP6_NA 136
#define ICMP6_REDIRECT 137
#define ICMP6_MLD2_REPORT 143

enum chain_end {
	CHAIN_UNKNOWN, /* it is not all in the frame, or is too long to follow */
	CHAIN_LATER, /* a fragment that is not the first: nothing to be seen */
	CHAIN_UPPER, /* the header of another protocol */
};

/* The headers behind IPv6's, followed to the end. */
struct chain {
	enum chain_end end;
	u32 at; /* of the upper header */
	u32 limit; /* where the packet ends */
	u8 next; /* its protocol */
	u8 type; /* of ICMPv6 */
	u8 fragment; /* it is behind a fragment header */
	struct udp udp;
};

/* ARP for IPv4 (RFC 826). */
struct arp {
	u16 htype;
	u16 ptype;
	u8 hlen;
	u8 plen;
	u16 op;
	u8 sha[ETH_ALEN]; /* sender */
	u32 spa;
	u8 tha[ETH_ALEN]; /* target */
	u32 tpa;
} __attribute__((packed, aligned(2)));

/* What the ND messages of neighbours have in common (RFC 4861 4.3, 4.4). */
struct nd {
	u8 type;
	u8 code;
	u16 check;
	u32 flags;
	struct in6_addr target;
};

/* The beginning of a DHCPv4 message, to the client's MAC (RFC 2131 2). */
struct bootp {
	u8 op;
	u8 htype;
	u8 hlen;
	u8 hops;
	u32 skipped[6]; /* to the addresses' end */
	u8 chaddr[ETH_ALEN];
} __attribute__((packed, aligned(2)));

struct look {
	u64 src; /* MAC */
	u64 answer; /* found: MAC that is asked for */
	u32 port; /* id */
	u32 holder; /* found: id of the port of what is asked for */
	u32 vlan;
	u32 wants;
	u32 len; /* of the frame */
	u32 question; /* found: 0 for none */
	u32 at; /* of what is behind the Ethernet header */
	u32 end; /* of an IPv4 packet */
	u16 type; /* of it, as in the frame */
	u32 plain; /* nothing is before it but a tag of the bridge's own */
	u32 bound; /* found: an address of the sender's is bound to it, here */
	/* read from the frame */
	union {
		struct iphdr ip4;
		struct ipv6hdr ip6;
		struct arp arp;
	};
	struct nd nd;
	struct chain chain;
	struct udp udp;
	struct bootp bootp;
	struct binding_key key; /* to look a binding up by */
};

WORK_HOLDS(struct look);

/*
 * Is that to be looked for? Asked of the features as well, so that what no port
 * asks for is not there.
 */
static __always_inline bool looks_for(const struct look *l, u32 what)
{
	u64 feature = what & (LOOK_SOURCE | LOOK_CLIENT) ? FEATURE_SOURCE_GUARD
		      : what == LOOK_DHCP		 ? FEATURE_DHCP_GUARD
		      : what == LOOK_RA			 ? FEATURE_RA_GUARD
							 : FEATURE_SUPPRESS;

	return on(feature) && (l->wants & what);
}

/* The reason against what cannot be looked into, 0 if nobody minds. */
static __always_inline u32 look_fails(const struct look *l)
{
	if (looks_for(l, LOOK_SOURCE))
		return DROP_SPOOFED;
	if (looks_for(l, LOOK_RA))
		return DROP_RA_GUARD;
	return looks_for(l, LOOK_DHCP) ? DROP_DHCP_GUARD : 0;
}

/* Does anybody mind what is in the frame? Who answers questions does not. */
static __always_inline bool look_minds(const struct look *l)
{
	return looks_for(l, LOOK_SOURCE) || looks_for(l, LOOK_RA) || looks_for(l, LOOK_DHCP);
}

/* Finds what is in a frame: 0 or the reason against it. */
static __always_inline u32 look_through(const struct hook *h, struct look *l)
{
	u32 front = front_read(h);

	l->type = 0;
	if (!FRONT_AT(front))
		return look_minds(l) ? FRONT_TYPE(front) : 0;
	l->type = FRONT_TYPE(front);
	l->at = FRONT_AT(front);
	l->plain = !(front & FRONT_FOREIGN);
	return 0;
}

/*
 * Reads bytes of the packet that ends there. What the frame has behind that is padding:
 * receivers cut it off, and put the next fragment in its place.
 */
static __always_inline long packet_bytes(const struct hook *h, u32 at, u32 end, void *to, u32 size)
{
	return at + size > end ? -1 : frame_bytes(h, at, to, size);
}

static __always_inline long udp_read(const struct hook *h, u32 at, u32 end, struct udp *udp)
{
	return packet_bytes(h, at, end, udp, sizeof(*udp));
}

#define UDP_HEADER 8
#define IP_OFFSET 0x1fff /* of frag_off */
#define IP_FRAGMENT 0x3fff /* with the flag that more follow */
#define DHCP4_SERVER 67
#define DHCP4_CLIENT 68
#define DHCP6_CLIENT 546
#define DHCP6_SERVER 547
#define BOOTREQUEST 1
#define BOOTREPLY 2

/*
 * Is it a DHCPv4 server's or a relay's to a client, or a server's to a relay
 * (RFC 2131 4.1)? Not every client looks at the source port.
 */
static __always_inline bool dhcp4_serves(const struct hook *h, struct look *l, u32 at)
{
	struct udp *udp = &l->udp;
	u8 op = 0;

	if (udp_read(h, at, l->end, udp))
		return true;
	if (udp->dest != bpf_htons(DHCP4_SERVER) && udp->dest != bpf_htons(DHCP4_CLIENT))
		return false;
	if (udp->dest == bpf_htons(DHCP4_CLIENT) && udp->source == bpf_htons(DHCP4_SERVER))
		return true;
	return packet_bytes(h, at + UDP_HEADER, l->end, &op, sizeof(op)) || op == BOOTREPLY;
}

#define CHAIN_LENGTH 8 /* extension headers; nobody sends as many */
#define CHAIN_FRAGMENT 44
#define CHAIN_AUTH 51

/* A header that has the length in its second byte (RFC 8200 4, RFC 7045 4)? */
static __always_inline bool chain_goes_on(u8 next)
{
	switch (next) {
	case 0: /* hop by hop */
	case 43: /* routing */
	case CHAIN_FRAGMENT:
	case CHAIN_AUTH:
	case 60: /* destination options */
	case 135: /* mobility */
	case 139: /* HIP */
	case 140: /* Shim6 */
		return true;
	}
	return false;
}

struct extension {
	u8 next;
	u8 len;
	u16 offset; /* of a fragment */
};

/* Follows the headers from c->next at c->at, and reads what tells ND and DHCP. */
static __always_inline int chain_walk(const struct hook *h, struct chain *c)
{
	struct extension ext = {};

	/* one step more, which finds that there are no more */
#pragma clang loop unroll(disable)
	for (u32 n = 0; n <= CHAIN_LENGTH; n++) {
		if (!chain_goes_on(c->next)) {
			c->end = CHAIN_UPPER;
			break;
		}
		if (packet_bytes(h, c->at, c->limit, &ext, sizeof(ext)))
			return 0;
		if (c->next == CHAIN_FRAGMENT) {
			c->fragment = true;
			c->at += 8;
			if (ext.offset & bpf_htons(0xfff8)) {
				c->end = CHAIN_LATER;
				return 0;
			}
		} else if (c->next == CHAIN_AUTH) {
			c->at += (ext.len + 2) * 4;
		} else {
			c->at += (ext.len + 1) * 8;
		}
		c->next = ext.next;
	}
	if (c->end == CHAIN_UPPER &&
	    ((c->next == IPPROTO_ICMPV6 &&
	      packet_bytes(h, c->at, c->limit, &c->type, sizeof(c->type))) ||
	     (c->next == IPPROTO_UDP && udp_read(h, c->at, c->limit, &c->udp))))
		c->end = CHAIN_UNKNOWN;
	return 0;
}

/* Functions of their own are verified once, and what they find is then anything. */
__noinline int chain_skb(struct __sk_buff *skb, struct chain *c)
{
	struct hook h = {.ctx = skb, .skb = true};

	return c ? chain_walk(&h, c) : 0;
}

__noinline int chain_xdp(struct xdp_md *xdp, struct chain *c)
{
	struct hook h = {.ctx = xdp};

	return c ? chain_walk(&h, c) : 0;
}

static __always_inline void chain_follow(const struct hook *h, struct chain *c)
{
	if (h->skb)
		chain_skb(h->ctx, c);
	else
		chain_xdp(h->ctx, c);
}

/* The reason against what a router or a DHCPv6 server alone may send. */
static __always_inline u32 serves6(const struct look *l, const struct chain *c)
{
	if (c->end == CHAIN_LATER)
		return 0; /* without its first part it is worth nothing */
	if (c->end == CHAIN_UNKNOWN)
		return look_fails(l);
	if (looks_for(l, LOOK_RA) && c->next == IPPROTO_ICMPV6 &&
	    (c->type == ICMP6_RA || c->type == ICMP6_REDIRECT))
		return DROP_RA_GUARD;
	if (looks_for(l, LOOK_DHCP) && c->next == IPPROTO_UDP &&
	    (c->udp.source == bpf_htons(DHCP6_SERVER) || c->udp.dest == bpf_htons(DHCP6_CLIENT)))
		return DROP_DHCP_GUARD;
	return 0;
}
