/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * ICMP errors about translated packets, rewritten inside out: what an error quotes is what its
 * receiver has sent.
 */
#pragma once

#include "headers.h"

/*
 * Rewrites one of the addresses that an ICMP error quotes, with its port, and the address of
 * the error itself that belongs to it: an error goes to the sender of what it quotes, and
 * comes from whom that was for. `receiver` chooses which.
 */
__noinline u32 pf_nat_quoted(struct __sk_buff *skb, u32 receiver)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	struct pf_nat *n = pf_nat();
	u32 inner, check, ws, is, at, outer;
	u16 was_port = 0, is_port = 0;
	u64 flags = 0;
	bool four, ports;

	if (!on(FEATURE_PF_NAT) || !p || !s || !n)
		return false;
	four = p->family == 4;
	inner = p->l4 + sizeof(struct pf_icmp);
	check = p->l4 + 2;
	ws = (n->was_side ^ receiver) & 1;
	is = (n->is_side ^ receiver) & 1;
	ports = pf_nat_has_ports(p->quoted.proto);
	if (ports) {
		was_port = n->was.port[ws];
		is_port = n->is.port[is];
	}
	__builtin_memcpy(n->from, n->was.address[ws], 16);
	__builtin_memcpy(n->to, n->is.address[is], 16);
	if (!pf_differ(n->from, n->to) && was_port == is_port)
		return true;
	if (receiver)
		at = four ? PF_NAT_DST4 : PF_NAT_DST6;
	else
		at = four ? PF_NAT_SRC4 : PF_NAT_SRC6;
	/* with its own checksum, the header of IPv4 that is quoted adds up to the same */
	if (!pf_nat_patch(skb, inner + at, four ? inner : 0, four ? 0 : check, 0))
		return false;
	if (ports &&
	    !pf_nat_patch_port(skb, s->at + (receiver ? 2 : 0), check, was_port, is_port, 0))
		return false;
	if (receiver)
		at = four ? PF_NAT_SRC4 : PF_NAT_SRC6;
	else
		at = four ? PF_NAT_DST4 : PF_NAT_DST6;
	outer = p->l3 + at;
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

/* Rewrites an ICMP error inside out. */
static __always_inline u32 pf_nat_error(struct __sk_buff *skb, const struct pf_packet *p,
					struct pf_nat *n)
{
	struct pf_slow *s = pf_slow();

	if (!s || !pf_nat_quoted(skb, 0) || !pf_nat_quoted(skb, 1))
		return false;
	if (p->quoted.proto == IPPROTO_ICMP || p->quoted.proto == IPPROTO_ICMPV6)
		return pf_nat_patch_port(skb, s->at + offsetof(struct pf_icmp, id), p->l4 + 2,
					 n->was.port[0], n->is.port[0], 0);
	return true;
}
