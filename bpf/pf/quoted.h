/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * ICMP errors about translated packets, rewritten inside out: the receiver of an error has sent the
 * packet that it quotes.
 */
#pragma once

#include "answer.h"
#include "headers.h"

/*
 * Rewrites one of the addresses that an ICMP error quotes, with its port, and the matching address
 * of the error itself: an error goes to the sender of the quoted packet, and comes from its
 * destination. `receiver` selects the address.
 */
__noinline u32 pf_nat_quoted(struct __sk_buff *skb, u32 receiver)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	struct pf_nat *n = pf_nat();
	u32 inner, check, ws, is, first, step, outer;
	u16 was_port = 0, is_port = 0;
	u64 flags = 0;
	bool four;

	if (!on(FEATURE_PF_NAT) || !p || !s || !n)
		return false;
	receiver &= 1;
	four = p->family == 4;
	first = four ? PF_NAT_SRC4 : PF_NAT_SRC6;
	step = four ? PF_NAT_DST4 - PF_NAT_SRC4 : PF_NAT_DST6 - PF_NAT_SRC6;
	inner = p->l4 + sizeof(struct pf_icmp);
	check = p->l4 + 2;
	ws = (n->was_side ^ receiver) & 1;
	is = (n->is_side ^ receiver) & 1;
	if (pf_nat_has_ports(p->quoted.proto)) {
		was_port = n->was.port[ws];
		is_port = n->is.port[is];
	}
	__builtin_memcpy(n->from, n->was.address[ws], 16);
	__builtin_memcpy(n->to, n->is.address[is], 16);
	if (!pf_differ(n->from, n->to) && was_port == is_port)
		return true;
	/* with its own checksum, the quoted IPv4 header adds up to the same */
	if (!pf_nat_patch(skb, inner + first + receiver * step, four ? inner : 0, four ? 0 : check,
			  0) ||
	    !pf_nat_patch_port(skb, s->at + 2 * receiver, check, was_port, is_port, 0))
		return false;
	outer = p->l3 + first + !receiver * step;
	if (four) {
		if (bpf_skb_load_bytes(skb, outer, &n->from[3], 4))
			return false;
	} else {
		if (bpf_skb_load_bytes(skb, outer, n->from, 16))
			return false;
		flags = (u64)BPF_F_PSEUDO_HDR << 32 | check;
	}
	return pf_nat_patch(skb, outer, four ? p->l3 : 0, flags, BPF_F_RECOMPUTE_CSUM);
}

/* Is the checksum of the IPv4 header correct that an error quotes at a place (RFC 5508, REQ-3a)? */
static __always_inline bool pf_quote_sums_up(struct __sk_buff *skb, u32 at)
{
	u8 first;

	return !bpf_skb_load_bytes(skb, at, &first, sizeof(first)) &&
	       pf_sum(skb, at, at + (first & 15) * 4, 0) == 0xffff;
}

/* Rewrites an ICMP error inside out. */
static __always_inline u32 pf_nat_error(struct __sk_buff *skb, const struct pf_packet *p,
					struct pf_nat *n)
{
	struct pf_slow *s = pf_slow();

	if (!s || (p->family == 4 && !pf_quote_sums_up(skb, p->l4 + sizeof(struct pf_icmp))) ||
	    !pf_nat_inner(skb, p->l4 + 2, s->at, p->l3 + p->length) || !pf_nat_quoted(skb, 0) ||
	    !pf_nat_quoted(skb, 1))
		return false;
	if (p->quoted.proto == IPPROTO_ICMP || p->quoted.proto == IPPROTO_ICMPV6)
		return pf_nat_patch_port(skb, s->at + offsetof(struct pf_icmp, id), p->l4 + 2,
					 n->was.port[0], n->is.port[0], 0);
	return true;
}
