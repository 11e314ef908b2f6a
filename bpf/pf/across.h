/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * A packet translated to the other family: its headers, and the ICMP errors that quote others (RFC
 * 7915). family.h chooses its addresses.
 */
#pragma once

#include "family.h"

/* The MTU to report if an IPv4 router reports none: a likely one (RFC 1191, 7.1). */
static __always_inline u32 pf_plateau(u32 length)
{
	if (length > 17914)
		return 17914;
	if (length > 8166)
		return 8166;
	if (length > 4352)
		return 4352;
	if (length > 2002)
		return 2002;
	return length > 1492 ? 1492 : PF_MTU6_LEAST - PF_GROWS;
}

#define PF_NO_ERROR (~0u)

/* Translates an ICMP error to ICMPv6. Returns its type and code, or PF_NO_ERROR (RFC 7915, 4.2). */
__noinline u32 pf_error_6(void)
{
	struct pf_family *c = pf_family();
	u32 type, code, mtu, at;

	if (!on(FEATURE_PF_FAMILY) || !c)
		return PF_NO_ERROR;
	type = c->quote.icmp.type;
	code = c->quote.icmp.code;
	c->now.icmp.id = 0;
	c->now.icmp.sequence = 0;
	if (type == 11)
		return 3 << 8 | code;
	if (type == 12) {
		if (code != 0 && code != 2)
			return PF_NO_ERROR;
		at = c->quote.icmp.id & 0xff;
		if (at > 1) {
			if (at == 2 || at == 3)
				at = 4;
			else if (at == 8)
				at = 7;
			else if (at == 9)
				at = 6;
			else if (at >= 12 && at < 16)
				at = 8;
			else if (at >= 16 && at < 20)
				at = 24;
			else
				return PF_NO_ERROR;
		}
		c->now.icmp.sequence = bpf_htons(at);
		return 4 << 8;
	}
	if (type != 3)
		return PF_NO_ERROR;
	switch (code) {
	case 2:
		c->now.icmp.sequence = bpf_htons(6); /* of Next Header */
		return 4 << 8 | 1;
	case 3:
		return 1 << 8 | 4;
	case 4:
		mtu = bpf_ntohs(c->quote.icmp.sequence);
		if (!mtu)
			mtu = pf_plateau(bpf_ntohs(c->quote.ip4.tot_len));
		mtu += PF_GROWS;
		if (mtu < PF_MTU6_LEAST)
			mtu = PF_MTU6_LEAST;
		c->now.icmp.id = bpf_htons(mtu >> 16);
		c->now.icmp.sequence = bpf_htons(mtu);
		return 2 << 8;
	case 9:
	case 10:
	case 13:
	case 15:
		return 1 << 8 | 1;
	}
	return code <= 12 ? 1 << 8 : PF_NO_ERROR;
}

/* The same from ICMPv6 to ICMP (RFC 7915, 5.2). */
__noinline u32 pf_error_4(void)
{
	struct pf_family *c = pf_family();
	u32 type, code, mtu, at;

	if (!on(FEATURE_PF_FAMILY) || !c)
		return PF_NO_ERROR;
	type = c->quote.icmp.type;
	code = c->quote.icmp.code;
	c->now.icmp.id = 0;
	c->now.icmp.sequence = 0;
	mtu = (u32)bpf_ntohs(c->quote.icmp.id) << 16 | bpf_ntohs(c->quote.icmp.sequence);
	if (type == 1) {
		if (code == 4)
			return 3 << 8 | 3;
		if (code == 1)
			return 3 << 8 | 10;
		return code <= 3 ? 3 << 8 | 1 : PF_NO_ERROR;
	}
	if (type == 2) {
		if (mtu < PF_MTU6_LEAST)
			mtu = PF_MTU6_LEAST;
		mtu -= PF_GROWS + (c->quoted.fragment ? PF_FRAGMENT6 : 0);
		c->now.icmp.sequence = bpf_htons(mtu > 0xffff ? 0xffff : mtu);
		return 3 << 8 | 4;
	}
	if (type == 3)
		return 11 << 8 | code;
	if (type != 4)
		return PF_NO_ERROR;
	if (code == 1)
		return 3 << 8 | 2;
	if (code != 0)
		return PF_NO_ERROR;
	at = mtu; /* it is in the same place */
	if (at == 4 || at == 5)
		at = 2;
	else if (at == 6)
		at = 9;
	else if (at == 7)
		at = 8;
	else if (at >= 8 && at < 24)
		at = 12;
	else if (at >= 24 && at < 40)
		at = 16;
	else if (at > 1)
		return PF_NO_ERROR;
	c->now.icmp.id = at;
	return 12 << 8;
}

/* Writes an IPv4 header without a checksum for a packet of `length` bytes. */
static __always_inline void pf_head4(struct iphdr *ip, const struct pf_front *front, u32 length,
				     u32 tos, u32 ttl, u32 proto, const u32 *src, const u32 *dst)
{
	u32 *word = (u32 *)ip;

	word[0] = bpf_htonl(0x45000000 | (tos & 0xff) << 16 | (length & 0xffff));
	word[1] = 0;
	if (front->fragment)
		word[1] = bpf_htonl(front->id << 16 | (front->place & 1) << 13 | front->place >> 3);
	word[2] = bpf_htonl(ttl << 24 | (proto & 0xff) << 16);
	word[3] = src[3];
	word[4] = dst[3];
}

static __always_inline void pf_head4_sum(struct iphdr *ip)
{
	ip->check = 0;
	ip->check = ~pf_fold(bpf_csum_diff(0, 0, (void *)ip, sizeof(*ip), 0));
}

/* Writes an IPv6 header, and a fragment header behind it if the packet is a fragment. */
static __always_inline void pf_head6(struct ipv6hdr *ip, const struct pf_front *front, u32 length,
				     u32 tos, u32 ttl, u32 proto, const u32 *src, const u32 *dst)
{
	u32 *word = (u32 *)ip, next = front->fragment ? CHAIN_FRAGMENT : proto & 0xff;

	word[0] = bpf_htonl(6u << 28 | (tos & 0xff) << 20);
	word[1] = bpf_htonl((length - sizeof(*ip)) << 16 | next << 8 | (ttl & 0xff));
	__builtin_memcpy(word + 2, src, 16);
	__builtin_memcpy(word + 6, dst, 16);
	word[10] = bpf_htonl((proto & 0xff) << 24 | front->place);
	word[11] = bpf_htonl(front->id);
}

#define IP4_LSRR 131 /* source routes (RFC 791, 3.1) */
#define IP4_SSRR 137

/* A look at an IPv4 option. Source routes are refused. */
static long pf_option_step(u32 i, struct __sk_buff **skb)
{
	struct pf_family *c = pf_family();

	if (!c || c->at >= c->end || c->reason)
		return 1;
	c->reason = DROP_PF_TRANSLATE;
	if (bpf_skb_load_bytes(*skb, c->at, c->extension, 1))
		return 1;
	c->reason = 0;
	if (!c->extension[0]) /* the end */
		return 1;
	if (c->extension[0] == 1) {
		c->at++;
		return 0;
	}
	c->reason = DROP_PF_TRANSLATE;
	if (c->at + 1 >= c->end || bpf_skb_load_bytes(*skb, c->at, c->extension, 2) ||
	    c->extension[1] < 2)
		return 1;
	if (c->extension[0] == IP4_LSRR || c->extension[0] == IP4_SSRR) {
		c->refused = 3 << 8 | 5; /* RFC 7915, 4.1 */
		return 1;
	}
	c->reason = 0;
	c->at += c->extension[1];
	return 0;
}

/* A look at an extension header. */
static long pf_extension_step(u32 i, struct __sk_buff **skb)
{
	struct pf_family *c = pf_family();
	struct pf_front *f;

	if (!c || c->at >= c->end)
		return 1;
	f = &c->front;
	c->reason = DROP_PF_TRANSLATE;
	/* the headers behind a fragment's belong to all fragments together */
	if (f->fragment || bpf_skb_load_bytes(*skb, c->at, c->extension, sizeof(c->extension)))
		return 1;
	if (f->next == CHAIN_FRAGMENT) {
		f->fragment = true;
		f->place = bpf_ntohs(*(u16 *)(c->extension + 2)) & 0xfff9;
		f->id = bpf_ntohl(*(u32 *)(c->extension + 4));
		c->at += PF_FRAGMENT6;
	} else if (f->next == CHAIN_ROUTING && c->extension[3]) {
		c->refused = 4 << 8; /* RFC 7915, 5.1: it is on its way to another node */
		c->mtu = c->at + 3 - ETHER_HEADER;
		return 1;
	} else if (f->next == CHAIN_HOPOPTS || f->next == CHAIN_ROUTING ||
		   f->next == CHAIN_DSTOPTS) {
		c->at += (c->extension[1] + 1) * 8;
	} else {
		return 1; /* without its authentication header a packet would lose a guarantee */
	}
	f->next = c->extension[0];
	c->reason = 0;
	return 0;
}

/*
 * Reads the headers between two places into c->front. The second place is the upper header's.
 * Returns 0, or the reason to drop the packet. Options and extension headers have no form in the
 * other family: they are left out.
 */
__noinline u32 pf_front_read(struct __sk_buff *skb, u32 at, u32 end, bool four)
{
	struct pf_family *c = pf_family();
	struct __sk_buff *packet = skb;
	struct pf_front *f;
	u16 place;

	if (!on(FEATURE_PF_FAMILY) || !c)
		return DROP_PF_TRANSLATE;
	f = &c->front;
	f->bytes = end - at;
	f->fragment = 0;
	f->place = 0;
	f->id = 0;
	c->end = end;
	c->reason = 0;
	if (four) {
		struct iphdr *ip = (struct iphdr *)c->head;

		if (bpf_skb_load_bytes(skb, at, ip, sizeof(*ip)) || ip->ihl * 4 != f->bytes)
			return DROP_PF_TRANSLATE;
		place = bpf_ntohs(ip->frag_off);
		if (place & 0x3fff) {
			f->fragment = true;
			f->place = (place & 0x1fff) << 3 | (place >> 13 & 1);
			f->id = bpf_ntohs(ip->id);
		}
		c->at = at + sizeof(*ip);
		bpf_loop(40, pf_option_step, &packet, 0);
		return c->reason;
	}
	if (bpf_skb_load_bytes(skb, at + offsetof(struct ipv6hdr, nexthdr), &f->next, 1))
		return DROP_PF_TRANSLATE;
	c->at = at + sizeof(struct ipv6hdr);
	bpf_loop(CHAIN_LENGTH + 1, pf_extension_step, &packet, 0);
	return c->reason || c->at != end ? DROP_PF_TRANSLATE : 0;
}

/* Size in bytes of the headers that have a form in the other family. */
static __always_inline u32 pf_front_size(const struct pf_front *f, bool four)
{
	if (four)
		return sizeof(struct iphdr);
	return sizeof(struct ipv6hdr) + (f->fragment ? PF_FRAGMENT6 : 0);
}

/* Is an error from an address that may be routed? It may have any source. */
static __always_inline bool pf_error_is_routed(struct pf_family *c)
{
	bool four = c->family == 6;

	__builtin_memset(c->pseudo, 0, 16);
	if (four) {
		c->pseudo[2] = IPV4_MAPPED;
		c->pseudo[3] = ((struct iphdr *)c->old)->saddr;
	} else {
		__builtin_memcpy(c->pseudo, c->old + 2, 16);
	}
	return pf_is_routed(c->pseudo, four) && !pf_of_link(c->pseudo);
}

/*
 * Reads the headers of the packet, and of the packet that it quotes. Returns 0, or the reason to
 * drop it. Two kinds are not translated: fragmented ICMP, since its checksum covers all fragments
 * (RFC 7915, 1.2), and packets without a stated length.
 */
__noinline u32 pf_family_read(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_family *c = pf_family();
	struct pf_slow *s = pf_slow();
	u32 header, gso = skb->gso_size, size;
	bool four;

	if (!on(FEATURE_PF_FAMILY) || !p || !c || !s)
		return DROP_PF_TRANSLATE;
	four = p->family == 4;
	header = four ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	if (p->l3 != ETHER_HEADER || p->l4 < p->l3 + header || p->l3 + p->length < p->l4)
		return DROP_PF_TRANSLATE;
	c->family = four ? 6 : 4;
	c->tos = p->tos;
	c->payload = p->l3 + p->length - p->l4;
	c->room = 0;
	if (four ? bpf_skb_load_bytes(skb, ETHER_HEADER, c->old, sizeof(struct iphdr))
		 : bpf_skb_load_bytes(skb, ETHER_HEADER, c->old, sizeof(struct ipv6hdr)))
		return DROP_PF_TRANSLATE;
	if (p->flags & PF_P_ERROR) {
		if (!pf_error_is_routed(c) || s->at < p->l4 + sizeof(struct pf_icmp) + header ||
		    s->at > p->l4 + PF_HEADERS_MOST ||
		    pf_front_read(skb, p->l4 + sizeof(struct pf_icmp), s->at, four))
			return DROP_PF_TRANSLATE;
		c->quoted = c->front;
		c->room = pf_front_size(&c->quoted, !four) - c->quoted.bytes;
	}
	c->ttl = four ? ((struct iphdr *)c->old)->ttl : ((struct ipv6hdr *)c->old)->hop_limit;
	if (pf_front_read(skb, ETHER_HEADER, p->l4, four))
		return DROP_PF_TRANSLATE;
	if (c->front.fragment && (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6))
		return DROP_PF_TRANSLATE;
	size = pf_front_size(&c->front, !four);
	c->length = c->payload + c->room + size;
	c->room += size - c->front.bytes + (four ? -PF_GROWS : PF_GROWS);
	if (p->length > 0xffff ||
	    c->length + (c->front.place & 0xfff8) > 0xffff + (four ? sizeof(struct ipv6hdr) : 0))
		return DROP_PF_TRANSLATE;
	c->segment = c->length;
	if (gso)
		c->segment = gso + pf_segment_header(p) + size;
	/* the padding of a frame stays on the link of arrival */
	if (!gso && skb->len > ETHER_HEADER + p->length &&
	    bpf_skb_change_tail(skb, ETHER_HEADER + p->length, 0))
		return DROP_PF_TRANSLATE;
	if (c->ttl <= 1)
		c->refused = four ? 11 << 8 : 3 << 8;
	return 0;
}

/*
 * Chooses the source of an error in the other family. If the destination of the quoted packet has
 * its IPv4 address behind 96 bits, so has a router on the way: traceroute shows it. Otherwise the
 * error is from the destination of the quoted packet.
 */
static __always_inline void pf_error_source(struct pf_family *c, struct pf_nat *n)
{
	const u32 *was = n->was.address[!(n->was_side & 1)];
	const u32 *is = n->is.address[!(n->is_side & 1)];

	__builtin_memcpy(n->to, is, sizeof(n->to));
	if (c->family == 6) {
		u32 from = ((struct iphdr *)c->old)->saddr;

		if (is[3] == was[3])
			n->to[3] = from;
	} else {
		const u32 *from = ((struct ipv6hdr *)c->old)->saddr.in6_u.u6_addr32;

		if (is[3] == was[3] && from[0] == was[0] && from[1] == was[1] && from[2] == was[2])
			n->to[3] = from[3];
	}
}

/* Makes the new header, with a time to live reduced by `older`. */
__noinline u32 pf_family_head(u32 older, u32 gso)
{
	struct pf_packet *p = pf_packet();
	struct pf_family *c = pf_family();
	struct pf_nat *n = pf_nat();
	struct iphdr *ip;
	u32 side, proto;

	if (!on(FEATURE_PF_FAMILY) || !p || !c || !n)
		return false;
	side = n->is_side & 1;
	proto = pf_proto_across(p->proto);
	if (p->flags & PF_P_ERROR) {
		pf_error_source(c, n);
		__builtin_memcpy(n->from, n->is.address[side], sizeof(n->from));
	} else {
		__builtin_memcpy(n->to, n->is.address[side], sizeof(n->to));
		__builtin_memcpy(n->from, n->is.address[!side], sizeof(n->from));
	}
	if (c->family == 6) {
		pf_head6((void *)c->head, &c->front, c->length, c->tos, c->ttl - older, proto,
			 n->to, n->from);
		return true;
	}
	ip = (struct iphdr *)c->head;
	pf_head4(ip, &c->front, c->length, c->tos, c->ttl - older, proto, n->to, n->from);
	if (!c->front.fragment) {
		ip->id = bpf_get_prandom_u32();
		if (gso || c->length > PF_MAY_FRAGMENT)
			ip->frag_off = bpf_htons(IP4_DF);
	}
	pf_head4_sum(ip);
	return true;
}

/* The ICMPv6 pseudo-header of an IPv6 header, for `len` bytes (RFC 8200, 8.1). */
static __always_inline void pf_pseudo6(struct pf_family *c, const u32 *head, u32 len)
{
	__builtin_memcpy(c->pseudo, head + 2, 32);
	c->pseudo[8] = bpf_htonl(len);
	c->pseudo[9] = bpf_htonl(IPPROTO_ICMPV6);
}

/* Replaces the old header by the new one. The frame already has its new length. */
static __always_inline bool pf_family_store(struct __sk_buff *skb, struct pf_family *c)
{
	u16 type = c->family == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP);

	if (bpf_skb_store_bytes(skb, 12, &type, sizeof(type), 0))
		return false;
	if (c->family == 4)
		return !bpf_skb_store_bytes(skb, ETHER_HEADER, c->head, sizeof(struct iphdr),
					    BPF_F_RECOMPUTE_CSUM);
	if (c->front.fragment)
		return !bpf_skb_store_bytes(skb, ETHER_HEADER, c->head,
					    sizeof(struct ipv6hdr) + PF_FRAGMENT6,
					    BPF_F_RECOMPUTE_CSUM);
	return !bpf_skb_store_bytes(skb, ETHER_HEADER, c->head, sizeof(struct ipv6hdr),
				    BPF_F_RECOMPUTE_CSUM);
}

/* Turns the skb into a packet of the other family, with room for the new headers. */
static __always_inline bool pf_family_proto(struct __sk_buff *skb, const struct pf_family *c)
{
	if (bpf_skb_change_proto(skb, c->family == 6 ? bpf_htons(ETH_P_IPV6) : bpf_htons(ETH_P_IP),
				 0))
		return false;
	return !c->room ||
	       !bpf_skb_adjust_room(skb, c->room, BPF_ADJ_ROOM_NET, BPF_F_ADJ_ROOM_FIXED_GSO);
}

static long pf_family_sum_step(u32 i, struct __sk_buff **skb)
{
	struct pf_family *c = pf_family();

	if (!c || c->at >= c->end)
		return 1;
	c->sum = pf_sum_chunk(*skb, c->at, c->end - c->at, c->sum);
	c->at += PF_SUM_CHUNK;
	return c->sum == PF_SUM_FAILS;
}

/*
 * Gives UDP without a checksum one, since IPv6 requires it (RFC 7915, 4.5), after everything else
 * has been written. Returns false if the packet must be dropped.
 */
__noinline u32 pf_family_udp(struct __sk_buff *skb)
{
	struct pf_family *c = pf_family();
	struct __sk_buff *packet = skb;
	struct ipv6hdr *ip;
	u32 start, place;
	u16 check;

	if (!on(FEATURE_PF_FAMILY) || !c)
		return false;
	ip = (struct ipv6hdr *)c->head;
	pf_pseudo6(c, c->head, bpf_ntohs(ip->payload_len));
	c->pseudo[9] = bpf_htonl(IPPROTO_UDP);
	c->at = ETHER_HEADER + sizeof(*ip);
	c->end = c->at + bpf_ntohs(ip->payload_len);
	c->sum = pf_fold(bpf_csum_diff(0, 0, c->pseudo, sizeof(c->pseudo), 0));
	/*
	 * If a checksum of the payload is unfinished, the bytes from its start on will add up to
	 * the complement of its field. The segments of a GSO packet would each need another.
	 */
	place = checksum_place(skb);
	start = place >> 16;
	if (skb->gso_size || (place && (start < c->at || start > c->end || (start & 1))))
		return false;
	if (place) {
		if (bpf_skb_load_bytes(skb, place & 0xffff, &check, sizeof(check)))
			return false;
		c->sum += (u16)~check;
		c->end = start;
	}
	bpf_loop(0x10000 / PF_SUM_CHUNK, pf_family_sum_step, &packet, 0);
	if (c->sum == PF_SUM_FAILS)
		return false;
	check = ~c->sum;
	if (!check)
		check = 0xffff;
	return !bpf_skb_store_bytes(skb,
				    ETHER_HEADER + sizeof(*ip) + offsetof(struct udphdr, check),
				    &check, sizeof(check), BPF_F_RECOMPUTE_CSUM);
}

/* Corrects the upper header of a packet that is not an error. */
__noinline u32 pf_family_upper(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_family *c = pf_family();
	struct pf_nat *n = pf_nat();
	u32 sum, l4, ws, is, diff;
	bool four;

	if (!on(FEATURE_PF_FAMILY) || !p || !c || !n)
		return false;
	ws = n->was_side & 1;
	is = n->is_side & 1;
	four = c->family == 4;
	l4 = ETHER_HEADER + pf_front_size(&c->front, four);
	if (p->flags & PF_P_LATER)
		return true;
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6) {
		u32 type = p->icmp >> 8, to;
		u16 old = bpf_htons(p->icmp), new;

		/* only echoes have states */
		if (four)
			to = type == ICMPV6_ECHO_REQUEST ? ICMP_ECHO : ICMP_ECHOREPLY;
		else
			to = type == ICMP_ECHO ? ICMPV6_ECHO_REQUEST : ICMPV6_ECHO_REPLY;
		new = bpf_htons(to << 8 | (p->icmp & 0xff));
		if (four) {
			pf_pseudo6(c, c->old, c->payload);
			diff = bpf_csum_diff(c->pseudo, sizeof(c->pseudo), 0, 0, 0);
		} else {
			pf_pseudo6(c, c->head, c->payload);
			diff = bpf_csum_diff(0, 0, c->pseudo, sizeof(c->pseudo), 0);
		}
		if (bpf_l4_csum_replace(skb, l4 + 2, 0, diff, BPF_F_PSEUDO_HDR))
			return false;
		return pf_nat_patch_port(skb, l4, l4 + 2, old, new, 0) &&
		       pf_nat_patch_port(skb, l4 + offsetof(struct pf_icmp, id), l4 + 2,
					 n->was.port[0], n->is.port[0], 0);
	}
	sum = p->proto == IPPROTO_SCTP ? 0 : checksum_offset(p->proto);
	if (!sum)
		return true;
	if (p->proto == IPPROTO_UDP && !four) {
		u16 check = 0;

		if (bpf_skb_load_bytes(skb, l4 + sum, &check, sizeof(check)))
			return false;
		if (!check) {
			u16 ports[2] = {n->is.port[is], n->is.port[!is]};

			/* RFC 7915, 4.5 */
			return !c->front.fragment &&
			       !bpf_skb_store_bytes(skb, l4, ports, sizeof(ports),
						    BPF_F_RECOMPUTE_CSUM) &&
			       pf_family_udp(skb);
		}
	}
	/* only the addresses of the pseudo-header change */
	if (four)
		diff = bpf_csum_diff(c->old + 2, 32, c->head + 3, 8, 0);
	else
		diff = bpf_csum_diff(c->old + 3, 8, c->head + 2, 32, 0);
	if (p->proto == IPPROTO_UDP && pf_nat_is_around(skb, l4 + sum)) {
		if (!pf_nat_around(skb, l4 + sum))
			return false;
	} else if (bpf_l4_csum_replace(
			   skb, l4 + sum, 0, diff,
			   BPF_F_PSEUDO_HDR |
				   (p->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0))) {
		return false;
	}
	if (!pf_nat_has_ports(p->proto))
		return true;
	return pf_nat_patch_port(skb, l4, l4 + sum, n->was.port[ws], n->is.port[is],
				 p->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0) &&
	       pf_nat_patch_port(skb, l4 + 2, l4 + sum, n->was.port[!ws], n->is.port[!is],
				 p->proto == IPPROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0);
}

/* Translates the quote of an error, and its type, code and checksum, to the other family. */
__noinline u32 pf_family_quote(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_family *c = pf_family();
	struct pf_nat *n = pf_nat();
	u32 side, what, length, proto, tos, sum, size, quote;
	bool four;

	if (!on(FEATURE_PF_FAMILY) || !p || !c || !n)
		return false;
	side = n->is_side & 1;
	four = c->family == 4;
	proto = n->is.proto; /* p->quoted may have become the key of the state */
	size = pf_front_size(&c->quoted, four);
	quote = sizeof(struct pf_icmp) + c->quoted.bytes;
	/* the bytes behind it add up to the complement of this */
	sum = (u16)~pf_sum(skb, p->l4, p->l4 + quote, 0);
	if (four) {
		if (bpf_skb_load_bytes(skb, p->l4, &c->quote, 8 + sizeof(struct ipv6hdr)))
			return false;
		what = pf_error_4();
		length = bpf_ntohs(c->quote.ip6.payload_len) + sizeof(struct ipv6hdr) -
			 c->quoted.bytes + size;
		tos = bpf_ntohs(*(u16 *)&c->quote.ip6) >> 4;
		pf_head4(&c->now.ip4, &c->quoted, length, tos, c->quote.ip6.hop_limit, proto,
			 n->is.address[side], n->is.address[!side]);
		if (!c->quoted.fragment && length > PF_MAY_FRAGMENT)
			c->now.ip4.frag_off = bpf_htons(IP4_DF);
		pf_head4_sum(&c->now.ip4);
	} else {
		if (bpf_skb_load_bytes(skb, p->l4, &c->quote, 8 + sizeof(struct iphdr)))
			return false;
		what = pf_error_6();
		length = bpf_ntohs(c->quote.ip4.tot_len) - c->quoted.bytes + size;
		pf_head6(&c->now.ip6, &c->quoted, length, c->quote.ip4.tos, c->quote.ip4.ttl, proto,
			 n->is.address[side], n->is.address[!side]);
	}
	if (what == PF_NO_ERROR)
		return false;
	c->now.icmp.type = what >> 8;
	c->now.icmp.code = what;
	c->now.icmp.checksum = 0;
	if (four) {
		pf_pseudo6(c, c->old, c->payload);
		sum = bpf_csum_diff(c->pseudo, sizeof(c->pseudo), 0, 0, sum);
		sum = bpf_csum_diff(0, 0, (void *)&c->now, 28, sum);
	} else {
		pf_pseudo6(c, c->head, c->length - sizeof(struct ipv6hdr));
		sum = bpf_csum_diff(0, 0, c->pseudo, sizeof(c->pseudo), sum);
		if (c->quoted.fragment)
			sum = bpf_csum_diff(0, 0, (void *)&c->now, 56, sum);
		else
			sum = bpf_csum_diff(0, 0, (void *)&c->now, 48, sum);
	}
	c->now.icmp.checksum = ~pf_fold(sum);
	return true;
}

/*
 * Translates the header of an echo that an error quotes: its type, identifier and checksum, if the
 * quote has it (RFC 5508, REQ-4a). The error's own checksum is at `own`.
 */
__noinline u32 pf_family_echo(struct __sk_buff *skb, u32 own, u32 inner)
{
	struct pf_family *c = pf_family();
	struct pf_slow *s = pf_slow();
	struct pf_nat *n = pf_nat();
	u32 to, type;
	u16 was, is;
	u64 change;
	bool four;

	if (!on(FEATURE_PF_FAMILY) || !c || !s || !n)
		return false;
	four = c->family == 4;
	type = s->icmp.type;
	if (four)
		to = type == ICMPV6_ECHO_REQUEST ? ICMP_ECHO : ICMP_ECHOREPLY;
	else
		to = type == ICMP_ECHO ? ICMPV6_ECHO_REQUEST : ICMPV6_ECHO_REPLY;
	was = bpf_htons(type << 8 | s->icmp.code);
	is = bpf_htons(to << 8 | s->icmp.code);
	change = (u64)(u16)~was + is + (u16)~n->was.port[0] + n->is.port[0];
	if (!pf_nat_patch_port(skb, inner, own, was, is, 0) ||
	    !pf_nat_patch_port(skb, inner + offsetof(struct pf_icmp, id), own, n->was.port[0],
			       n->is.port[0], 0))
		return false;
	/* only IPv6's ICMP has a pseudo-header in its checksum */
	if (four) {
		pf_pseudo6(c, (const u32 *)&c->quote.ip6,
			   bpf_ntohs(c->quote.ip6.payload_len) + sizeof(struct ipv6hdr) -
				   c->quoted.bytes);
		change += bpf_csum_diff(c->pseudo, sizeof(c->pseudo), 0, 0, 0);
	} else {
		pf_pseudo6(c, (const u32 *)&c->now.ip6,
			   bpf_ntohs(c->quote.ip4.tot_len) - c->quoted.bytes);
		change += bpf_csum_diff(0, 0, c->pseudo, sizeof(c->pseudo), 0);
	}
	if (inner + offsetof(struct pf_icmp, id) > ETHER_HEADER + c->length)
		return true;
	inner += offsetof(struct pf_icmp, checksum);
	if (bpf_skb_load_bytes(skb, inner, &was, sizeof(was)))
		return false;
	return pf_nat_patch_port(skb, inner, own, was, (u16)~pf_fold((u16)~was + change), 0);
}

/*
 * Translates an error inside out, with the ports of its quote. Returns 0, or the reason to drop it.
 */
__noinline u32 pf_family_error(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_family *c = pf_family();
	struct pf_nat *n = pf_nat();
	u32 ws, is, l4, inner;
	bool four, kept;

	if (!on(FEATURE_PF_FAMILY) || !p || !c || !n)
		return false;
	four = c->family == 4;
	/* the place of an unfinished checksum would be in the quote */
	if (checksum_place(skb) || (!four && c->length > PF_MTU6_LEAST))
		return false;
	if (!pf_family_quote(skb) || !pf_family_proto(skb, c) || !pf_family_store(skb, c))
		return false;
	l4 = ETHER_HEADER + pf_front_size(&c->front, four);
	inner = l4 + sizeof(struct pf_icmp) + pf_front_size(&c->quoted, four);
	if (four)
		kept = !bpf_skb_store_bytes(skb, l4, &c->now, 28, BPF_F_RECOMPUTE_CSUM);
	else if (c->quoted.fragment)
		kept = !bpf_skb_store_bytes(skb, l4, &c->now, 56, BPF_F_RECOMPUTE_CSUM);
	else
		kept = !bpf_skb_store_bytes(skb, l4, &c->now, 48, BPF_F_RECOMPUTE_CSUM);
	if (!kept)
		return false;
	ws = n->was_side & 1;
	is = n->is_side & 1;
	if (pf_nat_has_ports(p->quoted.proto))
		return pf_nat_inner(skb, l4 + 2, inner, ETHER_HEADER + c->length) &&
		       pf_nat_patch_port(skb, inner, l4 + 2, n->was.port[ws], n->is.port[is], 0) &&
		       pf_nat_patch_port(skb, inner + 2, l4 + 2, n->was.port[!ws], n->is.port[!is],
					 0);
	if (p->quoted.proto == IPPROTO_ICMP || p->quoted.proto == IPPROTO_ICMPV6)
		return pf_family_echo(skb, l4 + 2, inner);
	return true;
}

/* Turns the packet into one of the other family. Returns 0, or the reason to drop it. */
__noinline u32 pf_family_write(struct __sk_buff *skb, u32 older)
{
	struct pf_packet *p = pf_packet();
	struct pf_family *c = pf_family();
	struct pf_nat *n = pf_nat();
	u32 done;

	if (!on(FEATURE_PF_FAMILY) || !p || !c || !n || !pf_family_head(older, skb->gso_size))
		return DROP_PF_TRANSLATE;
	if (on(FEATURE_TRACE))
		pf_nat_tell(n);
	if (p->flags & PF_P_ERROR)
		done = pf_family_error(skb);
	else
		done = pf_family_proto(skb, c) && pf_family_store(skb, c) && pf_family_upper(skb);
	return done ? 0 : DROP_PF_TRANSLATE;
}
