/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The other family: af-to. A rule that passes a packet on its way into the host continues it in the
 * other family. The packet gets an IPv4 address that is behind a prefix of an IPv6 address (RFC
 * 6052), or the reverse, and translated headers (RFC 7915). The state has a key of each family.
 * Packets into the host are translated from one key to the other, whichever they have; packets out
 * of the host have already been translated.
 *
 * All this is in a separate program, which comes last: see ../family.h.
 */
#pragma once

#include "answer.h"
#include "translate.h"

/* The largest IPv4 packet that may be fragmented after translation (RFC 7915, 5.1). */
#define PF_MAY_FRAGMENT 1260
#define PF_MTU6_LEAST 1280 /* RFC 8200, 5 */
#define PF_GROWS 20 /* bytes by which an IPv6 header is longer */
#define PF_FRAGMENT6 8 /* bytes of its fragment header */
#define PF_HEADERS_MOST 512 /* bytes of all headers of a quoted packet */

/* An ICMP message and the header of the quoted packet, with a fragment header. */
struct pf_quote {
	struct pf_icmp icmp;
	union {
		u32 word[12];
		struct iphdr ip4;
		struct ipv6hdr ip6;
	};
};

/* The contents of all headers in front of the upper one. */
struct pf_front {
	u32 bytes; /* of these headers */
	u32 id; /* of the packet that this is a fragment of */
	u16 place; /* of the fragment, and whether more follow, in IPv6's form (RFC 8200, 4.5) */
	u8 fragment; /* it is a fragment, or has a fragment header */
	u8 next; /* protocol of the current header */
};

/* This CPU's data about a packet that continues in the other family. */
struct pf_family {
	u32 old[10]; /* its header */
	u32 head[12]; /* the new one, with a fragment header */
	struct pf_front front;
	struct pf_front quoted; /* of the quoted packet */
	u8 extension[8]; /* the first bytes of an extension header, or an option */
	u32 payload; /* bytes behind its headers */
	__s32 room; /* bytes of room to make behind the header, after the change of family */
	u32 pseudo[10]; /* the pseudo-header of IPv6, where only IPv6 has one */
	struct pf_quote quote; /* of an error, as it arrived */
	struct pf_quote now; /* as it leaves */
	u32 length; /* of the translated IP packet */
	u32 segment; /* of the largest fragment, if the packet must be split */
	u32 mtu; /* of its way, where it is too large; the message about it reports this */
	u32 ifindex; /* of the host's device that it leaves through; 0: the host routes it */
	u32 why; /* enum route, the reason why the host does */
	u32 refused; /* type and code of the message, if it cannot continue; 0 for none */
	u32 reason; /* to drop it */
	u32 at; /* place where a checksum is summed up */
	u32 end;
	u32 sum;
	u16 family; /* 4 or 6, of the translated packet */
	u8 tos;
	u8 ttl;
	u8 known; /* its state was known */
	u8 unused[3];
};

WORK_HOLDS(struct pf_family);

static __always_inline struct pf_family *pf_family(void)
{
	return work_of(WORK_PF_FAMILY);
}

/* The equivalent of a protocol in the other family. */
static __always_inline u32 pf_proto_across(u32 proto)
{
	if (proto == IPPROTO_ICMP)
		return IPPROTO_ICMPV6;
	return proto == IPPROTO_ICMPV6 ? IPPROTO_ICMP : proto;
}

static __always_inline bool pf_is4(const u32 *a)
{
	return !(a[0] | a[1] | (a[2] ^ IPV4_MAPPED));
}

/*
 * Is it the address of a station that may be routed (RFC 1122, 3.2.1.3; RFC 4291, 2.5)? The host's
 * stack forwards no packets from or to any other.
 */
static __always_inline bool pf_is_routed(const u32 *a, bool four)
{
	u8 first = four ? a[3] : a[0];

	if (four)
		return pf_is4(a) && first && first != 127 && first < 224;
	return first != 0xff && (a[0] | a[1] || (a[2] && a[2] != IPV4_MAPPED));
}

static __always_inline u64 pf_half(const u32 *a)
{
	return (u64)bpf_ntohl(a[0]) << 32 | bpf_ntohl(a[1]);
}

static __always_inline void pf_half_set(u32 *a, u64 half)
{
	a[0] = bpf_htonl(half >> 32);
	a[1] = bpf_htonl(half);
}

/*
 * Embeds an IPv4 address behind the first `bits` of an IPv6 address, which are 32, 40, 48, 56, 64
 * or 96. Bits 64 to 71 stay zero (RFC 6052, 2.2).
 */
static __always_inline void pf_embed(u32 *to, u32 bits, u32 four)
{
	u64 v = bpf_ntohl(four), low;
	u32 above;

	if (bits == 96) {
		to[3] = four;
		return;
	}
	above = (64 - bits) & 63; /* bits of it in the first half: 0 to 32 */
	if (above > 32)
		above = 32;
	low = v & (((u64)1 << (32 - above)) - 1);
	pf_half_set(to, pf_half(to) | v >> (32 - above));
	pf_half_set(to + 2, low << (24 + above));
}

/* The IPv4 address behind the first `bits` of an IPv6 address. */
static __always_inline u32 pf_extract(const u32 *from, u32 bits)
{
	u64 v;
	u32 above;

	if (bits == 96)
		return from[3];
	above = (64 - bits) & 63;
	if (above > 32)
		above = 32;
	v = (pf_half(from) & (((u64)1 << above) - 1)) << (32 - above);
	v |= pf_half(from + 2) << 8 >> (32 + above);
	return bpf_htonl(v);
}

/* The first word of the well-known prefix 64:ff9b::/96; two words of zeros follow. */
#define WELL_KNOWN bpf_htonl(0x0064ff9b)

/* The networks of IPv4 that are not global (RFC 6052, 3.1), except those that are never routed. */
static __always_inline bool pf_is_private(u32 four)
{
	u32 a = bpf_ntohl(four);

	return a >> 24 == 10 || a >> 20 == 0xac1 || a >> 16 == 0xc0a8 || /* RFC 1918 */
	       a >> 22 == 0x191 || a >> 17 == 0x6309 || /* 100.64/10, 198.18/15 */
	       a >> 8 == 0xc00000 || a >> 8 == 0xc00002 || /* 192.0.0/24, 192.0.2/24 */
	       a >> 8 == 0xc63364 || a >> 8 == 0xcb0071; /* 198.51.100/24, 203.0.113/24 */
}

/*
 * Does an IPv4 address not belong behind the well-known prefix? Translators drop such packets (RFC
 * 6052, 3.1).
 */
static __always_inline bool pf_misplaced(const u32 *six, u32 four)
{
	return six[0] == WELL_KNOWN && !(six[1] | six[2]) && pf_is_private(four);
}

/* Turns n->to into an IPv4 address. */
static __always_inline void pf_to4(struct pf_nat *n, u32 four)
{
	n->to[0] = n->to[1] = 0;
	n->to[2] = IPV4_MAPPED;
	n->to[3] = four;
}

/* Chooses the destination in the other family. */
__noinline u32 pf_family_destination(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_FAMILY) || !p || !n)
		return false;
	if (n->t.flags & PF_TRANSLATION_EXTRACT) {
		if (n->t.embed == 96 && pf_misplaced(n->now.dst, n->now.dst[3]))
			return false;
		pf_to4(n, pf_extract(n->now.dst, n->t.embed));
	} else if (n->t.flags & (PF_TRANSLATION_EMBED | PF_TRANSLATION_MIX)) {
		if (!n->t.networks)
			return false;
		pf_pool_read(n, 0);
		__builtin_memcpy(n->to, n->network.address, sizeof(n->to));
		if (n->t.flags & PF_TRANSLATION_EMBED) {
			if (n->t.embed == 96 && pf_misplaced(n->to, n->now.dst[3]))
				return false;
			pf_embed(n->to, n->t.embed, n->now.dst[3]);
		} else if (n->network.bits >= 96 && n->network.bits < 128) {
			n->to[3] |= n->now.dst[3] & bpf_htonl(~0u >> (n->network.bits - 96));
		}
	} else if (!pf_pool_choose(PF_POOL_RDR, false)) {
		return false;
	}
	__builtin_memcpy(n->now.dst, n->to, sizeof(n->to));
	if (n->t.low && pf_nat_has_ports(p->proto))
		n->now.dport = bpf_htons(n->t.low);
	return true;
}

/* Chooses the source in the other family, and a port. Returns 0, the reason, or PF_TRANSLATE. */
static __always_inline u32 pf_family_source(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_FAMILY) || !p || !n)
		return DROP_PF_TRANSLATE;
	if (!(n->t.flags & PF_TRANSLATION_EMBED))
		return pf_nat_source();
	if (!n->t.networks)
		return DROP_PF_TRANSLATE;
	pf_pool_read(n, 0);
	__builtin_memcpy(n->to, n->network.address, sizeof(n->to));
	if (n->t.embed == 96 && pf_misplaced(n->to, n->from[3]))
		return DROP_PF_TRANSLATE;
	pf_embed(n->to, n->t.embed, n->from[3]);
	__builtin_memcpy(n->now.src, n->to, sizeof(n->to));
	return pf_nat_port(false) ? 0 : DROP_PF_TRANSLATE;
}

static long pf_family_step(u32 i, void *unused)
{
	struct pf_nat *n = pf_nat();

	if (!n)
		return 1;
	n->reason = pf_family_source();
	return n->reason != PF_TRANSLATE;
}

/*
 * Chooses the translation of the first packet of a connection. Returns 0, or the reason to drop it.
 */
__noinline u32 pf_family_choose(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	bool four;

	if (!on(FEATURE_PF_FAMILY) || !p || !n)
		return DROP_PF_TRANSLATE;
	four = p->family == 4;
	/* other messages have no form in the other family, or are no requests (RFC 7915) */
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		if (!n->echo || (p->flags & PF_P_FRAGMENT))
			return DROP_PF_TRANSLATE;
		n->now.dport = four ? ICMPV6_ECHO_REQUEST : ICMP_ECHO;
	}
	if (!pf_is_routed(n->now.src, four) || !pf_is_routed(n->now.dst, four))
		return DROP_PF_TRANSLATE;
	n->proto = pf_proto_across(p->proto);
	n->turn = PF_OUTWARD;
	__builtin_memcpy(n->from, n->now.src, sizeof(n->from));
	pf_words_read(n->at, &n->t, sizeof(n->t));
	/* `bitmask` has zeros in front of an IPv4 address */
	if (four && n->t.method == PF_POOL_BITMASK)
		n->now.dst[2] = 0;
	if (n->t.kind != PF_AF_TO_DST || n->t.family != p->family || !pf_family_destination())
		return DROP_PF_TRANSLATE;
	n->at += PF_WORDS_OF(n->t) + n->t.networks * PF_WORDS_OF(n->network);
	pf_words_read(n->at, &n->t, sizeof(n->t));
	if (n->t.kind != PF_AF_TO)
		return DROP_PF_TRANSLATE;
	if (four && n->t.method == PF_POOL_BITMASK)
		n->now.src[2] = 0;
	n->tries = 0;
	n->reason = PF_TRANSLATE;
	bpf_loop(PF_POOL_TRIES + 1, pf_family_step, 0, 0);
	if (n->reason)
		return n->reason == PF_TRANSLATE ? DROP_PF_TRANSLATE : n->reason;
	if (!pf_is_routed(n->now.src, !four) || !pf_is_routed(n->now.dst, !four))
		return DROP_PF_TRANSLATE;
	pf_nat_key();
	return 0;
}

/* Fills in both keys of a packet whose state is known. Returns 0, or the reason to drop it. */
__noinline u32 pf_family_follow(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_state *s, *k;

	if (!on(FEATURE_PF_FAMILY) || !p || !n)
		return DROP_PF_TRANSLATE;
	s = pf_state_at(p->state - 1);
	k = s ? pf_state_second(s, p->state) : 0;
	if (!s || !k)
		return DROP_PF_TRANSLATE;
	pf_nat_keys(n, p, s, k, n->second);
	return 0;
}

/* Makes the state of the packet if it is new. Returns 0, or the reason to drop it. */
static __always_inline u32 pf_family_begin(struct __sk_buff *skb, u32 in, u32 out, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_family *c = pf_family();
	struct pf_nat *n = pf_nat();
	u32 reason;

	if (!on(FEATURE_PF_FAMILY) || !p || !n || !c)
		return DROP_PF_TRANSLATE;
	c->known = n->cross == PF_CROSS_KNOWN;
	c->refused = 0;
	c->mtu = 0;
	c->ifindex = 0;
	c->why = 0;
	if (c->known)
		return pf_family_follow();
	reason = pf_family_choose();
	if (!reason)
		reason = pf_nat_make(in, out, now);
	if (on(FEATURE_PF_STAMPS) && !reason && pf_stamps_wanted(p->state) &&
	    !pf_stamps_settle(skb))
		reason = DROP_PF_TIMESTAMP;
	p->unmade = reason;
	if (on(FEATURE_PF_SCRUB) && !reason)
		pf_scrub_packet(skb, 0);
	if ((cfg.pf.asks & PF_ASK_PRIORITY) && !reason)
		pf_set_priority(skb);
	return reason;
}
