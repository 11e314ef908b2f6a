/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The contents of frames, and the messages that only DHCP servers and IPv6 routers may send: they
 * are behind trusted ports. A frame that cannot be distinguished from such a message is treated as
 * one (RFC 7113).
 */
#pragma once

#include "front.h"

/* The checks of guards on a frame. */
#define LOOK_SOURCE (1 << 0) /* whether its sender's addresses are bound to it */
#define LOOK_DHCP (1 << 1)
#define LOOK_RA (1 << 2)
#define LOOK_QUESTION (1 << 3) /* whether it requests an address that is bound */
#define LOOK_CLIENT (1 << 4) /* with LOOK_SOURCE: whether it makes a DHCP request for itself */

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
	CHAIN_UNKNOWN, /* the headers are truncated, or are too many to follow */
	CHAIN_LATER, /* a fragment other than the first: it has no upper header */
	CHAIN_UPPER, /* the header of another protocol */
};

/* The headers behind the IP header, followed to the end. */
struct chain {
	enum chain_end end;
	u32 at; /* start of the upper header */
	u32 limit; /* end of the packet */
	u8 next; /* protocol of the upper header */
	u8 type; /* type of ICMPv6 */
	u8 fragment; /* the upper header is behind a fragment header */
	struct udp udp;
	/* for pf, which sets the version of IP; 0 for others */
	u8 family;
	u8 options; /* found: there are options, other than those for routers of group messages */
	u8 alert; /* found: there is an option for routers of group messages */
	u8 more; /* fragments follow */
	u32 offset; /* of the fragment, in bytes */
	u32 id; /* of the packet that the fragment belongs to */
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

/* The common beginning of the ND messages of neighbours (RFC 4861 4.3, 4.4). */
struct nd {
	u8 type;
	u8 code;
	u16 check;
	u32 flags;
	struct in6_addr target;
};

/* The beginning of a DHCPv4 message, up to the client's MAC (RFC 2131 2). */
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
	u64 answer; /* found: MAC of the requested address */
	u32 port; /* id */
	u32 holder; /* found: id of the port that has the MAC */
	u32 vlan;
	u32 wants;
	u32 len; /* of the frame */
	u32 question; /* found: 0 for none */
	u32 at; /* where the packet begins in the frame */
	u32 end; /* of an IPv4 packet */
	u16 type; /* EtherType of the packet, as in the frame */
	u32 plain; /* only a tag of the bridge's own is in front of the packet */
	u32 bound; /* found: an address of the sender is bound to it at this port */
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
	struct binding_key key; /* to look up a binding */
};

WORK_HOLDS(struct look);

/*
 * Is this check requested? This also tests the feature: if no port needs the feature, the loader
 * removes the code.
 */
static __always_inline bool looks_for(const struct look *l, u32 what)
{
	u64 feature = what & (LOOK_SOURCE | LOOK_CLIENT) ? FEATURE_SOURCE_GUARD
		      : what == LOOK_DHCP		 ? FEATURE_DHCP_GUARD
		      : what == LOOK_RA			 ? FEATURE_RA_GUARD
							 : FEATURE_SUPPRESS;

	return on(feature) && (l->wants & what);
}

/* The reason to drop a frame that cannot be looked into, 0 if no guard objects. */
static __always_inline u32 look_fails(const struct look *l)
{
	if (looks_for(l, LOOK_SOURCE))
		return DROP_SPOOFED;
	if (looks_for(l, LOOK_RA))
		return DROP_RA_GUARD;
	return looks_for(l, LOOK_DHCP) ? DROP_DHCP_GUARD : 0;
}

/* Does a guard depend on the frame's contents? Answers to requests do not. */
static __always_inline bool look_minds(const struct look *l)
{
	return looks_for(l, LOOK_SOURCE) || looks_for(l, LOOK_RA) || looks_for(l, LOOK_DHCP);
}

/* Finds the packet in a frame. Returns 0 or the reason to drop the frame. */
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
 * Reads bytes of the packet that ends at `end`. Later bytes of the frame are padding: receivers
 * remove them, and put the next fragment there.
 */
static __always_inline long packet_bytes(const struct hook *h, u32 at, u32 end, void *to, u32 size)
{
	return at + size > end ? -1 : frame_bytes(h, at, to, size);
}

static __always_inline long udp_read(const struct hook *h, u32 at, u32 end, struct udp *udp)
{
	return packet_bytes(h, at, end, udp, sizeof(*udp));
}

/*
 * Will the kernel cut the packet into several (GSO)? Its headers belong to the first one. So a
 * guard that judges a message only has the message of the first.
 */
static __always_inline bool packet_is_cut(const struct hook *h)
{
	return h->skb && ((struct __sk_buff *)h->ctx)->gso_size;
}

#define UDP_HEADER 8
#define IP_OFFSET 0x1fff /* of frag_off */
#define IP_MORE 0x2000 /* the flag that more follow */
#define IP_FRAGMENT (IP_MORE | IP_OFFSET)
#define DHCP4_SERVER 67
#define DHCP4_CLIENT 68
#define DHCP6_CLIENT 546
#define DHCP6_SERVER 547
#define BOOTREQUEST 1
#define BOOTREPLY 2

/*
 * Is it a DHCPv4 message from a server or relay to a client, or from a server to a relay (RFC 2131
 * 4.1)? The source port does not decide: not every client checks it.
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
	if (packet_is_cut(h))
		return true;
	return packet_bytes(h, at + UDP_HEADER, l->end, &op, sizeof(op)) || op == BOOTREPLY;
}

#define CHAIN_LENGTH 19 /* extension headers that are followed, as in OpenBSD (pf_hdr_limit) */
#define CHAIN_HOPOPTS 0
#define CHAIN_ROUTING 43
#define CHAIN_FRAGMENT 44
#define CHAIN_AUTH 51
#define CHAIN_DSTOPTS 60

/*
 * Is it an extension header, which has its length in the second byte (RFC 8200 4, RFC 7045 4)? pf
 * treats some of these as upper headers, like OpenBSD. IPv4 has only one. This is a separate
 * function, so that its result is unknown to the verifier.
 */
__noinline u32 chain_goes_on(u32 next, u32 family)
{
	switch (next) {
	case CHAIN_AUTH:
		return true;
	case CHAIN_HOPOPTS:
	case CHAIN_ROUTING:
	case CHAIN_FRAGMENT:
	case CHAIN_DSTOPTS:
		return family != 4;
	case 135: /* mobility */
	case 139: /* HIP */
	case 140: /* Shim6 */
		return !family;
	}
	return false;
}

struct extension {
	u8 next;
	u8 len;
	u16 data[3]; /* of a fragment header: the place of the fragment, and its packet */
};

/* Are the options only for routers, about a group's messages, in the usual form (RFC 2711)? */
static __always_inline bool extension_alerts(const struct extension *e)
{
	if (e->len)
		return false;
	if (e->data[0] == bpf_htons(0x0502)) /* and padding */
		return e->data[2] == bpf_htons(0x0100) || !e->data[2];
	return (e->data[0] == bpf_htons(0x0100) || !e->data[0]) && e->data[1] == bpf_htons(0x0502);
}

/* Is it the header that the kernel puts into large packets, which it will cut later (RFC 2675)? */
static __always_inline bool extension_is_jumbo(struct __sk_buff *skb, const struct extension *e)
{
	return skb->gso_size && !e->len && e->data[0] == bpf_htons(0xc204);
}

/* Records an extension header's contents for pf. Returns 0 or the reason to drop the packet. */
__noinline u32 extension_judge(struct __sk_buff *skb, struct chain *c, struct extension *e, u32 n)
{
	if (!on(FEATURE_PF) || !c || !e)
		return DROP_PF_SHORT;
	switch (c->next) {
	case CHAIN_HOPOPTS:
		if (n) /* only the first may be this (RFC 8200, 4.3) */
			return DROP_PF_OPTIONS;
		if (extension_alerts(e))
			c->alert = true;
		else if (!extension_is_jumbo(skb, e))
			c->options = true;
		break;
	case CHAIN_ROUTING:
		if (!(u8)e->data[0]) /* type 0 must not be followed (RFC 5095) */
			return DROP_PF_OPTIONS;
		c->options = true;
		break;
	case CHAIN_DSTOPTS:
		c->options = true;
		break;
	case CHAIN_FRAGMENT:
		if (c->fragment)
			return DROP_PF_FRAGMENT;
		c->more = bpf_ntohs(e->data[0]) & 1;
		c->offset = bpf_ntohs(e->data[0]) & 0xfff8;
		c->id = (u32)e->data[2] << 16 | e->data[1];
		break;
	}
	return 0;
}

#define CHAIN_GOES_ON -1 /* no reason: there may be another header */

/* Follows one header. Returns CHAIN_GOES_ON, 0 at the end, or pf's reason to drop the packet. */
static __always_inline int chain_next(const struct hook *h, struct chain *c, u32 n)
{
	struct extension ext = {};
	u32 reason;

	if (!chain_goes_on(c->next, c->family)) {
		c->end = CHAIN_UPPER;
		return 0;
	}
	if (packet_bytes(h, c->at, c->limit, &ext, sizeof(ext)))
		return DROP_PF_SHORT;
	if (h->skb && on(FEATURE_PF) && c->family) {
		reason = extension_judge(h->ctx, c, &ext, n);
		if (reason)
			return reason;
	}
	if (c->next == CHAIN_FRAGMENT) {
		c->fragment = true;
		c->at += 8;
		if (ext.data[0] & bpf_htons(0xfff8))
			c->end = CHAIN_LATER;
	} else if (c->next == CHAIN_AUTH) {
		c->at += (ext.len + 2) * 4;
	} else {
		c->at += (ext.len + 1) * 8;
	}
	c->next = ext.next;
	if (c->at > c->limit) {
		c->end = CHAIN_UNKNOWN;
		return DROP_PF_SHORT;
	}
	return c->end == CHAIN_LATER ? 0 : CHAIN_GOES_ON;
}

/*
 * Separate functions are verified once, and the verifier assumes that their results may have any
 * value.
 */
__noinline int chain_next_skb(struct __sk_buff *skb, struct chain *c, u32 n)
{
	struct hook h = {.ctx = skb, .skb = true};

	return c ? chain_next(&h, c, n) : 0;
}

__noinline int chain_next_xdp(struct xdp_md *xdp, struct chain *c)
{
	struct hook h = {.ctx = xdp};

	return c ? chain_next(&h, c, 0) : 0; /* only pf counts them */
}

/*
 * Follows the headers from c->next at c->at. Then reads the fields that identify ND and DHCP; for
 * pf, records the fields that pf needs. Returns 0, or pf's reason to drop the packet, with
 * CHAIN_UNKNOWN as the `end`.
 */
static __always_inline int chain_walk(const struct hook *h, struct chain *c)
{
	int reason = CHAIN_GOES_ON;

	/* one more step than headers, to find that there are no more */
#pragma clang loop unroll(disable)
	for (u32 n = 0; n <= CHAIN_LENGTH && reason == CHAIN_GOES_ON; n++)
		reason = h->skb ? chain_next_skb(h->ctx, c, n) : chain_next_xdp(h->ctx, c);
	if (reason > 0 || c->end == CHAIN_LATER)
		return reason > 0 ? reason : 0;
	if (h->skb && on(FEATURE_PF) && c->family)
		return c->end == CHAIN_UPPER ? 0 : DROP_PF_OPTIONS;
	if (c->end == CHAIN_UPPER &&
	    ((c->next == IPPROTO_ICMPV6 &&
	      packet_bytes(h, c->at, c->limit, &c->type, sizeof(c->type))) ||
	     (c->next == IPPROTO_UDP && udp_read(h, c->at, c->limit, &c->udp))))
		c->end = CHAIN_UNKNOWN;
	return 0;
}

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

/* The reason to drop a message that only a router or a DHCPv6 server may send; 0 for any other. */
static __always_inline u32 serves6(const struct look *l, const struct chain *c)
{
	if (c->end == CHAIN_LATER)
		return 0; /* a packet without its first fragment is worth nothing */
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
