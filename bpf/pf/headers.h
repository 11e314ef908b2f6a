/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Headers of translated packets, rewritten from one key to the other. */
#pragma once

#include "../unfinished.h"
#include "track.h"

/*
 * Changes an address in this CPU's packet from n->from to n->to. `ip` is the place of the IPv4
 * header that has it, and `check` the place of the checksum that covers it, with flags of
 * bpf_l4_csum_replace() above; each is 0 for none. Returns false if that is impossible.
 */
OFTEN __noinline u32 pf_nat_patch(struct __sk_buff *skb, u32 at, u32 ip, u64 check, u32 store)
{
	struct pf_nat *n = pf_nat();
	u32 sum = (u32)check;
	u64 flags = check >> 32;

	if (!on(FEATURE_PF_NAT) || !n)
		return false;
	if (ip) {
		if (n->from[3] == n->to[3])
			return true;
		if (bpf_l3_csum_replace(skb, ip + offsetof(struct iphdr, check), n->from[3],
					n->to[3], 4) ||
		    (sum && bpf_l4_csum_replace(skb, sum, n->from[3], n->to[3], flags | 4)))
			return false;
		return !bpf_skb_store_bytes(skb, at, &n->to[3], 4, 0);
	}
	if (sum &&
	    bpf_l4_csum_replace(skb, sum, 0, bpf_csum_diff(n->from, 16, n->to, 16, 0), flags))
		return false;
	return !bpf_skb_store_bytes(skb, at, n->to, 16, store);
}

/* Changes two bytes from the lower half of `change` to the upper one; `check` is as above. */
__noinline u32 pf_nat_patch_half(struct __sk_buff *skb, u32 at, u64 check, u32 change)
{
	u16 was = change, is = change >> 16;

	if (!on(FEATURE_PF_NAT))
		return false;
	if (was == is)
		return true;
	if (bpf_l4_csum_replace(skb, (u32)check, was, is, check >> 32 | sizeof(is)))
		return false;
	return !bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* Changes a port or an identifier. */
static __always_inline bool pf_nat_patch_port(struct __sk_buff *skb, u32 at, u32 check, u16 was,
					      u16 is, u64 flags)
{
	return pf_nat_patch_half(skb, at, check | flags << 32, was | (u32)is << 16);
}

#define PF_NAT_SRC4 ((u32)offsetof(struct iphdr, saddr))
#define PF_NAT_DST4 ((u32)offsetof(struct iphdr, daddr))
#define PF_NAT_SRC6 ((u32)offsetof(struct ipv6hdr, saddr))
#define PF_NAT_DST6 ((u32)offsetof(struct ipv6hdr, daddr))

/*
 * Is the checksum at a place finished, while a tunnelled packet's checksum is not? The kernel's
 * helpers do not change such a checksum: they assume that the packet's own is the unfinished one.
 * In a GSO packet it is, for each segment.
 */
static __always_inline bool pf_nat_is_around(struct __sk_buff *skb, u32 at)
{
	u32 place = checksum_place(skb) & 0xffff;

	return place && place != at && !skb->gso_size;
}

/*
 * Converts a checksum with a pseudo-header from this CPU's original packet to the translated one.
 */
OFTEN __noinline u32 pf_nat_sum(u16 check)
{
	struct pf_nat *n = pf_nat();
	u64 change = 0;

	if (!on(FEATURE_PF_NAT) || !n)
		return 0;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
#pragma unroll
		for (u32 j = 0; j < 4; j++)
			change += (u64)(u32)~n->was.address[i][j] + n->is.address[i][j];
		if (!i || pf_nat_has_ports(n->was.proto)) /* else it is a kind of ICMP */
			change += (u64)(u16)~n->was.port[i] + n->is.port[i];
	}
	check = ~pf_fold((u16)~check + change);
	return check ? check : 0xffff;
}

/*
 * Corrects the checksum in the transport header that an ICMP error quotes. The error's own checksum
 * is at `own`. The quote ends at `end` and may be too short to have the checksum (RFC 5508,
 * REQ-4a). Returns false if that is impossible.
 */
__noinline u32 pf_nat_inner(struct __sk_buff *skb, u32 own, u32 inner, u32 end)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 proto, at;
	u16 was, is;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return false;
	proto = p->quoted.proto;
	at = checksum_offset(proto);
	if (!at || proto == IPPROTO_SCTP || inner + at + sizeof(was) > end)
		return true;
	if (bpf_skb_load_bytes(skb, inner + at, &was, sizeof(was)))
		return false;
	if (proto == IPPROTO_ICMP) { /* IPv4's has no pseudo-header */
		is = ~pf_fold((u16)~was + (u64)(u16)~n->was.port[0] + n->is.port[0]);
	} else {
		if (!was && proto == IPPROTO_UDP) /* there is none (RFC 768) */
			return true;
		is = pf_nat_sum(was);
	}
	return pf_nat_patch_port(skb, inner + at, own, was, is, 0);
}

/*
 * Changes such a UDP checksum to the translated packet's, before the packet is translated. Returns
 * false if that is impossible.
 */
__noinline u32 pf_nat_around(struct __sk_buff *skb, u32 at)
{
	u16 check;

	if (!on(FEATURE_PF_NAT) || bpf_skb_load_bytes(skb, at, &check, sizeof(check)))
		return false;
	if (!check) /* there is none (RFC 768) */
		return true;
	check = pf_nat_sum(check);
	return !bpf_skb_store_bytes(skb, at, &check, sizeof(check), 0);
}

/* Rewrites the header of a packet, which the side `was_side` of n->was has sent. */
OFTEN __noinline u32 pf_nat_header(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 ip, sum = 0, ws, is;
	u64 flags = 0, check = 0;
	bool four, around;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return false;
	four = p->family == 4;
	ip = four ? p->l3 : 0;
	ws = n->was_side & 1;
	is = n->is_side & 1;
	if (!(p->flags & PF_P_LATER) && !(four && p->proto == IPPROTO_ICMP) &&
	    p->proto != IPPROTO_SCTP)
		sum = checksum_offset(p->proto);
	if (p->proto == IPPROTO_UDP)
		flags = BPF_F_MARK_MANGLED_0;
	around = sum && p->proto == IPPROTO_UDP && pf_nat_is_around(skb, p->l4 + sum);
	if (around && !pf_nat_around(skb, p->l4 + sum))
		return false;
	if (sum && !around)
		check = (p->l4 + sum) | (flags | BPF_F_PSEUDO_HDR) << 32;
	__builtin_memcpy(n->from, n->was.address[ws], 16);
	__builtin_memcpy(n->to, n->is.address[is], 16);
	if (!pf_nat_patch(skb, p->l3 + (four ? PF_NAT_SRC4 : PF_NAT_SRC6), ip, check,
			  BPF_F_RECOMPUTE_CSUM))
		return false;
	__builtin_memcpy(n->from, n->was.address[!ws], 16);
	__builtin_memcpy(n->to, n->is.address[!is], 16);
	if (!pf_nat_patch(skb, p->l3 + (four ? PF_NAT_DST4 : PF_NAT_DST6), ip, check,
			  BPF_F_RECOMPUTE_CSUM))
		return false;
	if (p->flags & PF_P_LATER)
		return true;
	if (pf_nat_has_ports(p->proto))
		return pf_nat_patch_port(skb, p->l4, p->l4 + sum, n->was.port[ws], n->is.port[is],
					 flags) &&
		       pf_nat_patch_port(skb, p->l4 + 2, p->l4 + sum, n->was.port[!ws],
					 n->is.port[!is], flags);
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6)
		return pf_nat_patch_port(skb, p->l4 + offsetof(struct pf_icmp, id), p->l4 + 2,
					 n->was.port[0], n->is.port[0], 0);
	return true;
}
