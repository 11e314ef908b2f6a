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

/* The headers behind IP's, followed to the end. */
struct chain {
	enum chain_end end;
	u32 at; /* of the upper header */
	u32 limit; /* where the packet ends */
	u8 next; /* its protocol */
	u8 type; /* of ICMPv6 */
	u8 fragment; /* it is behind a fragment header */
	struct udp udp;
	/* for pf, which says of which version the packet is; 0 for others */
	u8 family;
	u8 options; /* found: there are some, other than those for routers of group messages */
	u8 alert; /* and there is such a one */
	u8 more; /* fragments follow */
	u32 offset; /* of the fragment, in bytes */
	u32 id; /* of the packet that it is of */
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

/*
 * Is it a packet that is yet to be cut into several? All that it tells of the later ones
 * is the first one's headers: who judges a message has that of the first alone.
 */
static __always_inline bool packet_is_cut(const struct hook *h)
{
	return h->skb && ((struct __sk_buff *)h->ctx)->gso_size;
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
	if (packet_is_cut(h))
		return true;
	return packet_bytes(h, at + UDP_HEADER, l->end, &op, sizeof(op)) || op == BOOTREPLY;
}

#define CHAIN_LENGTH 8 /* extension headers; nobody sends as many */
#define CHAIN_HOPOPTS 0
#define CHAIN_ROUTING 43
#define CHAIN_FRAGMENT 44
#define CHAIN_AUTH 51
#define CHAIN_DSTOPTS 60

/*
 * A header that has the length in its second byte (RFC 8200 4, RFC 7045 4)? To pf some
 * are upper ones, as it is in OpenBSD, and IPv4 has one such alone. A function of its
 * own, of whose result the verifier knows nothing.
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
	u16 data[3]; /* of a fragment: where it is, and of which packet */
};

/* Options for routers of a group's messages alone, as everybody sends them (RFC 2711). */
static __always_inline bool extension_alerts(const struct extension *e)
{
	if (e->len)
		return false;
	if (e->data[0] == bpf_htons(0x0502)) /* and padding */
		return e->data[2] == bpf_htons(0x0100) || !e->data[2];
	return (e->data[0] == bpf_htons(0x0100) || !e->data[0]) && e->data[1] == bpf_htons(0x0502);
}

/* What the kernel puts before the large packets that it will yet cut (RFC 2675). */
static __always_inline bool extension_is_jumbo(struct __sk_buff *skb, const struct extension *e)
{
	return skb->gso_size && !e->len && e->data[0] == bpf_htons(0xc204);
}

/* Finds for pf what a header says: 0 or the reason against it. */
__noinline u32 extension_judge(struct __sk_buff *skb, struct chain *c, struct extension *e, u32 n)
{
	if (!on(FEATURE_PF) || !c || !e)
		return DROP_PF_SHORT;
	switch (c->next) {
	case CHAIN_HOPOPTS:
		if (n) /* it is the first or none (RFC 8200, 4.3) */
			return DROP_PF_OPTIONS;
		if (extension_alerts(e))
			c->alert = true;
		else if (!extension_is_jumbo(skb, e))
			c->options = true;
		break;
	case CHAIN_ROUTING:
		if (!(u8)e->data[0]) /* nobody may follow type 0 (RFC 5095) */
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

/*
 * Follows the headers from c->next at c->at, and reads what tells ND and DHCP, or what
 * pf asks. 0, or the reason that pf has against the packet, for which `end` is
 * CHAIN_UNKNOWN.
 */
static __always_inline int chain_walk(const struct hook *h, struct chain *c)
{
	struct extension ext = {};
	u32 reason;

	/* one step more, which finds that there are no more */
#pragma clang loop unroll(disable)
	for (u32 n = 0; n <= CHAIN_LENGTH; n++) {
		if (!chain_goes_on(c->next, c->family)) {
			c->end = CHAIN_UPPER;
			break;
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
		if (c->end == CHAIN_LATER)
			return 0;
	}
	if (h->skb && on(FEATURE_PF) && c->family)
		return c->end == CHAIN_UPPER ? 0 : DROP_PF_OPTIONS;
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
