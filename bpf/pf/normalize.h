/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Normalization: pf's work on every packet before it looks up the packet's state, as in OpenBSD's
 * pf (pf_norm.c). It drops packets that cannot belong to a proper connection, and clears
 * meaningless bits. XDP leaves such packets to tcx.
 */
#pragma once

#include "packet.h"

/*
 * Changes a word of a TCP header or of the bytes that its checksum covers, and the checksum with
 * it. A word may begin in the middle of a word of the checksum. Then it counts there with its bytes
 * swapped.
 */
static __always_inline void pf_patch_word(struct __sk_buff *skb, u32 at, u32 check, u16 was, u16 is)
{
	bool odd = (at ^ check) & 1;

	if (was == is)
		return;
	/* without BPF_F_PSEUDO_HDR: an unfinished checksum does not change */
	bpf_l4_csum_replace(skb, check, odd ? __builtin_bswap16(was) : was,
			    odd ? __builtin_bswap16(is) : is, sizeof(is));
	bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

/* Changes a word of an IPv4 header that begins at `ip`. */
static __always_inline void pf_patch_ip4(struct __sk_buff *skb, u32 ip, u32 at, u16 was, u16 is)
{
	if (was == is)
		return;
	bpf_l3_csum_replace(skb, ip + offsetof(struct iphdr, check), was, is, sizeof(is));
	bpf_skb_store_bytes(skb, ip + at, &is, sizeof(is), 0);
}

/* Normalizes this CPU's packet, whose header is `tcp`. Returns 0, or the reason to drop it. */
static __always_inline u32 pf_normalize_tcp(struct __sk_buff *skb, struct pf_packet *p,
					    const struct tcphdr *tcp)
{
	u32 check = p->l4 + offsetof(struct tcphdr, check);
	const u8 *bytes = (const u8 *)tcp;

	/* a SYN is the beginning of a connection, even if it also has FIN */
	if (p->tcp_flags & TCP_SYN)
		p->tcp_flags &= ~TCP_FIN;
	if (!pf_flags_fit(p->tcp_flags))
		return DROP_PF_NORMALIZE;
	pf_patch_word(skb, p->l4 + 12, check, *(u16 *)(bytes + 12),
		      bpf_htons((bytes[12] & ~TCP_RESERVED) << 8 | p->tcp_flags));
	if (!(p->tcp_flags & TCP_URG))
		pf_patch_word(skb, p->l4 + offsetof(struct tcphdr, urg_ptr), check, tcp->urg_ptr,
			      0);
	return 0;
}
