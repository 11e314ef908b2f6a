/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Answers of the switch to packets that pf blocks. */
#pragma once

#include "../unfinished.h"
#include "rules.h"
#include "slow.h"

#define PF_ANSWER_TTL 64
#define PF_QUOTE4 548 /* quoted bytes of a packet: 576 in all (RFC 1812, 4.3.2.3) */
#define PF_QUOTE6 1232 /* 1280 in all (RFC 4443, 2.4) */
#define PF_ICMP_HEADER 8
#define PF_SUM_CHUNK 64

/* The cost of an ICMP answer in ns: 1000 answers a second, and 100 at once (RFC 1812, 4.3.2.8). */
#define PF_ANSWER_COST 1000000ull
#define PF_ANSWER_BURST (100 * PF_ANSWER_COST)

struct pf_answering {
	u8 ether[28]; /* the Ethernet header with its tags, and spare room */
	u8 chunk[PF_SUM_CHUNK];
	struct iphdr ip4;
	struct ipv6hdr ip6;
	struct tcphdr tcp;
	struct pf_icmp icmp;
	u32 src[4]; /* of the answer */
	u32 dst[4];
	u32 rest; /* the second word of an ICMP message: an MTU */
};

WORK_HOLDS(struct pf_answering);

static __always_inline struct pf_answering *pf_answering_get(void)
{
	return work_of(WORK_PF_ANSWER);
}

#define PF_SUM_FAILS (~0u) /* larger than any sum */

/* Adds the bytes at a place, at most one chunk, to a sum. */
__noinline u32 pf_sum_chunk(struct __sk_buff *skb, u32 at, u32 left, u32 sum)
{
	struct pf_answering *a = pf_answering_get();

	if (!on(FEATURE_PF) || !a)
		return PF_SUM_FAILS;
	if (left >= PF_SUM_CHUNK) {
		if (bpf_skb_load_bytes(skb, at, a->chunk, PF_SUM_CHUNK))
			return PF_SUM_FAILS;
	} else {
		__builtin_memset(a->chunk, 0, PF_SUM_CHUNK);
		if (!frame_load(skb, at, a->chunk, left, PF_SUM_CHUNK))
			return PF_SUM_FAILS;
	}
	return pf_fold(bpf_csum_diff(0, 0, (void *)a->chunk, PF_SUM_CHUNK, sum));
}

/* Adds the frame's bytes between two places to a sum. */
__noinline u32 pf_sum(struct __sk_buff *skb, u32 at, u32 end, u32 sum)
{
	if (!on(FEATURE_PF))
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < (PF_QUOTE6 + PF_ICMP_HEADER) / PF_SUM_CHUNK + 1; i++) {
		if (at >= end)
			break;
		sum = pf_sum_chunk(skb, at, end - at, sum);
		if (sum == PF_SUM_FAILS)
			return 0;
		at += PF_SUM_CHUNK;
	}
	return sum;
}

/* The sum of the pseudo-header (RFC 9293, 3.1; RFC 8200, 8.1), the same in both directions. */
static __always_inline u32 pf_pseudo_sum(const struct pf_answering *a, u32 family, u32 proto,
					 u32 len)
{
	u64 sum = bpf_htonl(len) + (u64)bpf_htonl(proto);

	sum += (u64)a->src[3] + a->dst[3];
	if (family == 6)
		sum += (u64)a->src[0] + a->src[1] + a->src[2] + a->dst[0] + a->dst[1] + a->dst[2];
	return pf_fold(sum);
}

/*
 * May a checksum of the packet be unfinished? If so, returns its place in the frame, and the start
 * of its data in the upper half; otherwise 0. It may be in the payload of a tunnel: then the kernel
 * has its place. Otherwise an unfinished checksum is the pseudo-header's. When the kernel sends the
 * frame, it sums up the bytes behind csum_start, whatever has happened to the frame. A finished
 * checksum may look the same at random. Such a packet still gets a correct answer: see the callers.
 */
__noinline u32 pf_unfinished(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_answering *a = pf_answering_get();
	u32 place, at, len;
	u16 check = 0;

	if (!on(FEATURE_PF) || !p || !a)
		return false;
	place = checksum_place(skb);
	if (place)
		return place;
	if (p->proto == IPPROTO_TCP)
		at = 16;
	else if (p->proto == IPPROTO_UDP)
		at = 6;
	else if (p->proto == IPPROTO_ICMPV6)
		at = 2;
	else
		return false;
	if (bpf_skb_load_bytes(skb, p->l4 + at, &check, sizeof(check)))
		return false;
	len = p->l3 + p->length - p->l4;
	return check == pf_pseudo_sum(a, p->family, p->proto, len) ? p->l4 << 16 | (p->l4 + at) : 0;
}

#define PF_ANSWER_FRONT 26 /* header bytes that an answer takes over: three tags at most */

/* Can an answer use the frame's header? Not one with a length in it, which would be the frame's. */
static __always_inline bool pf_answers_front(struct __sk_buff *skb)
{
	u32 front = front_skb(skb);

	return FRONT_AT(front) && FRONT_AT(front) <= PF_ANSWER_FRONT && !(front & FRONT_ODD);
}

/*
 * Reverses the frame's Ethernet header, with its tags, and puts it at the frame's start. `from` is
 * the header's current place.
 */
static __always_inline long pf_answer_ether(struct __sk_buff *skb, struct pf_answering *a, u32 from)
{
	u8 *e = a->ether;

	if (bpf_skb_load_bytes(skb, from, e + 2, PF_ANSWER_FRONT))
		return -1;
	/* the destination is at 2, the source at 8 */
	for (int i = 0; i < 6; i += 2) {
		u16 dst = *(u16 *)(e + 2 + i);

		*(u16 *)(e + 2 + i) = *(u16 *)(e + 8 + i);
		*(u16 *)(e + 8 + i) = dst;
	}
	return bpf_skb_store_bytes(skb, 0, e + 2, PF_ANSWER_FRONT, BPF_F_RECOMPUTE_CSUM);
}

/* Writes the answer's IP header, for `len` bytes behind it. */
static __always_inline long pf_answer_ip(struct __sk_buff *skb, const struct pf_packet *p,
					 struct pf_answering *a, u32 proto, u32 len, u32 ttl)
{
	__s64 sum;

	if (p->family == 6) {
		__builtin_memset(&a->ip6, 0, 4);
		a->ip6.version = 6;
		a->ip6.payload_len = bpf_htons(len);
		a->ip6.nexthdr = proto;
		a->ip6.hop_limit = ttl;
		__builtin_memcpy(&a->ip6.saddr, a->src, 16);
		__builtin_memcpy(&a->ip6.daddr, a->dst, 16);
		return bpf_skb_store_bytes(skb, p->l3, &a->ip6, sizeof(a->ip6),
					   BPF_F_RECOMPUTE_CSUM);
	}
	__builtin_memset(&a->ip4, 0, sizeof(a->ip4));
	a->ip4.version = 4;
	a->ip4.ihl = 5;
	a->ip4.tos = proto == IPPROTO_ICMP ? 0xc0 : 0; /* RFC 1812, 4.3.2.5 */
	a->ip4.tot_len = bpf_htons(len + sizeof(a->ip4));
	a->ip4.frag_off = proto == IPPROTO_TCP ? bpf_htons(0x4000) : 0;
	a->ip4.ttl = ttl;
	a->ip4.protocol = proto;
	a->ip4.saddr = a->src[3];
	a->ip4.daddr = a->dst[3];
	sum = bpf_csum_diff(0, 0, (void *)&a->ip4, sizeof(a->ip4), 0);
	a->ip4.check = ~pf_fold(sum);
	return bpf_skb_store_bytes(skb, p->l3, &a->ip4, sizeof(a->ip4), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Turns the packet into the segment that answers it: an RST like pf_send_tcp()'s, or the
 * acknowledgement of PF_RETURN_CHALLENGE. Returns its length, or 0.
 */
__noinline u32 pf_answer_tcp(struct __sk_buff *skb, u32 ttl)
{
	struct pf_packet *p = pf_packet();
	struct pf_answering *a = pf_answering_get();
	u32 header, pseudo, sum, end;
	bool unfinished;

	if (!on(FEATURE_PF) || !p || !a || (p->tcp_flags & TCP_RST))
		return 0;
	header = p->family == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr);
	end = p->l3 + header + sizeof(struct tcphdr);
	unfinished = pf_unfinished(skb);
	/* the kernel would write its checksum elsewhere than this function does */
	if (unfinished && p->l4 != p->l3 + header)
		return 0;
	if (bpf_skb_load_bytes(skb, p->l4, &a->tcp, sizeof(a->tcp)) ||
	    bpf_skb_change_tail(skb, end, 0) || pf_answer_ether(skb, a, 0))
		return 0;
	sum = p->seq + p->payload + !!(p->tcp_flags & TCP_SYN) + !!(p->tcp_flags & TCP_FIN);
	{
		u16 port = a->tcp.source;

		a->tcp.source = a->tcp.dest;
		a->tcp.dest = port;
	}
	a->tcp.seq = p->tcp_flags & TCP_ACK ? a->tcp.ack_seq : 0;
	a->tcp.ack_seq = bpf_htonl(sum);
	((u8 *)&a->tcp)[12] = sizeof(struct tcphdr) / 4 << 4;
	((u8 *)&a->tcp)[13] = TCP_RST | TCP_ACK;
	a->tcp.window = 0;
	if (p->answer == PF_RETURN_CHALLENGE) {
		a->tcp.seq = bpf_htonl(p->dst.lo);
		a->tcp.ack_seq = bpf_htonl(p->src.lo);
		((u8 *)&a->tcp)[13] = TCP_ACK;
		a->tcp.window = bpf_htons(p->dst.max_win);
	}
	a->tcp.check = 0;
	a->tcp.urg_ptr = 0;
	pseudo = pf_pseudo_sum(a, p->family, IPPROTO_TCP, sizeof(struct tcphdr));
	sum = pf_fold(bpf_csum_diff(0, 0, (void *)&a->tcp, sizeof(a->tcp), pseudo));
	if (unfinished) {
		/*
		 * The checksum must be correct whether the kernel finishes it or not. The urgent
		 * pointer means nothing without URG. So it gets a value with which the kernel's sum
		 * does not change the checksum.
		 */
		a->tcp.check = pseudo;
		a->tcp.urg_ptr = ~pf_fold(sum + pseudo);
	} else {
		a->tcp.check = ~sum;
	}
	if (pf_answer_ip(skb, p, a, IPPROTO_TCP, sizeof(struct tcphdr),
			 ttl ? ttl : PF_ANSWER_TTL) ||
	    bpf_skb_store_bytes(skb, p->l3 + header, &a->tcp, sizeof(a->tcp), BPF_F_RECOMPUTE_CSUM))
		return 0;
	return end;
}

/*
 * A checksum for the quoted packet that does not change when the kernel finishes it. The kernel
 * writes the complement of the sum of all bytes from csum_start on, including this field. That is
 * the same value if the field has half of the amount that the rest lacks (2 * 32768 is 1 modulo
 * 65535).
 */
static __always_inline u32 pf_fixed_point(u32 rest)
{
	return (u64)(65535 - pf_fold(rest)) * 32768 % 65535;
}

/*
 * Replaces an unfinished checksum of the quoted packet, which has moved by some bytes, by such a
 * checksum, if pf_unfinished() has found one. Returns false if that is impossible.
 */
__noinline u32 pf_fix_check(struct __sk_buff *skb, u32 unfinished, u32 moved, u32 end)
{
	u32 at = (unfinished & 0xffff) + moved;
	u16 field = 0;

	if (!on(FEATURE_PF))
		return false;
	if (!unfinished)
		return true;
	if (bpf_skb_store_bytes(skb, at, &field, sizeof(field), BPF_F_RECOMPUTE_CSUM))
		return false;
	field = pf_fixed_point(pf_sum(skb, (unfinished >> 16) + moved, end, 0));
	return !bpf_skb_store_bytes(skb, at, &field, sizeof(field), BPF_F_RECOMPUTE_CSUM);
}

/* Takes one ICMP answer out of the bucket; false if the bucket is empty. */
static __always_inline bool pf_may_answer(void)
{
	u64 now = bpf_ktime_get_ns(), old, left, *full;
	struct shared *s = shared_get();

	if (!s)
		return false;
	full = &s->pf_answers;
	old = READ_ONCE(*full);
	left = old > now ? old - now : 0;
	return left < PF_ANSWER_BURST &&
	       __sync_val_compare_and_swap(full, old, now + left + PF_ANSWER_COST) == old;
}

/*
 * Puts an ICMP message before the packet, and so quotes the packet. `what` is the message's type
 * and code. Returns the answer's length, or 0. The packet stays in its place, so the kernel only
 * finishes the quoted checksum.
 */
__noinline u32 pf_answer_icmp(struct __sk_buff *skb, u32 what)
{
	struct pf_packet *p = pf_packet();
	struct pf_answering *a = pf_answering_get();
	u32 header, quote, most, unfinished, proto, end, sum = 0;

	if (!on(FEATURE_PF) || !p || !a || !pf_may_answer())
		return 0;
	header = (p->family == 6 ? sizeof(struct ipv6hdr) : sizeof(struct iphdr)) + PF_ICMP_HEADER;
	most = p->family == 6 ? PF_QUOTE6 : PF_QUOTE4;
	proto = p->family == 6 ? IPPROTO_ICMPV6 : IPPROTO_ICMP;
	quote = p->length < most ? p->length : most;
	unfinished = pf_unfinished(skb);
	if (bpf_skb_change_tail(skb, p->l3 + quote, 0) || bpf_skb_change_head(skb, header, 0) ||
	    pf_answer_ether(skb, a, header) ||
	    pf_answer_ip(skb, p, a, proto, PF_ICMP_HEADER + quote, PF_ANSWER_TTL))
		return 0;
	end = p->l3 + header + quote;
	if (!pf_fix_check(skb, unfinished, header, end))
		return 0;
	__builtin_memset(&a->icmp, 0, sizeof(a->icmp));
	a->icmp.type = what >> 8;
	a->icmp.code = what;
	*(u32 *)&a->icmp.id = a->rest;
	if (p->family == 6)
		sum = pf_pseudo_sum(a, 6, proto, PF_ICMP_HEADER + quote);
	sum = pf_fold(bpf_csum_diff(0, 0, (void *)&a->icmp, sizeof(a->icmp), sum));
	a->icmp.checksum = ~pf_sum(skb, p->l3 + header, end, sum);
	if (bpf_skb_store_bytes(skb, p->l3 + header - PF_ICMP_HEADER, &a->icmp, sizeof(a->icmp),
				BPF_F_RECOMPUTE_CSUM))
		return 0;
	return end;
}

/* Is it the address of one host, and neither a group's, nor a broadcast, nor unspecified? */
static __always_inline bool pf_is_host(const u32 *address, u32 family)
{
	const u8 *b = (const u8 *)address;

	if (family == 6)
		return b[0] != 0xff && (address[0] | address[1] | address[2] | address[3]);
	return b[12] && b[12] < 224;
}

/* May the packet be answered at all (RFC 1122, 3.2.2; RFC 4443, 2.4)? */
static __always_inline bool pf_has_answer(const struct pf_packet *p, const struct pf_answering *a)
{
	u32 type = p->icmp >> 8;

	if (p->flags & (PF_P_LATER | PF_P_ERROR))
		return false;
	if (!pf_is_host(a->src, p->family) || !pf_is_host(a->dst, p->family))
		return false;
	if (p->proto == IPPROTO_ICMP && p->family == 4)
		return !pf_icmp_is_error(type, 4);
	if (p->proto == IPPROTO_ICMPV6 && p->family == 6)
		return type >= 128 && type != ICMP6_REDIRECT;
	return true;
}

/*
 * The addresses of the answer, taken from the packet. Its key may have others by now: from a state,
 * or from a translation that is not carried out.
 */
static __always_inline bool pf_answer_addresses(struct __sk_buff *skb, const struct pf_packet *p,
						struct pf_answering *a)
{
	u32 *both = (u32 *)a->chunk;

	if (p->family == 6) {
		if (bpf_skb_load_bytes(skb, p->l3 + offsetof(struct ipv6hdr, saddr), both, 32))
			return false;
		__builtin_memcpy(a->dst, both, 16);
		__builtin_memcpy(a->src, both + 4, 16);
		return true;
	}
	if (bpf_skb_load_bytes(skb, p->l3 + offsetof(struct iphdr, saddr), both, 8))
		return false;
	a->dst[3] = both[0];
	a->src[3] = both[1];
	return true;
}

/*
 * Turns this CPU's packet into its answer, if the rule that blocks it or its state requires one.
 * Returns the answer's length, or 0. The answer comes from the packet's destination: a switch has
 * no address of its own.
 */
__noinline u32 pf_answer(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_answering *a = pf_answering_get();
	struct pf_rule *r;
	u8 first = 1;
	u32 number;

	if (!on(FEATURE_PF) || !p || !a || !p->answer)
		return 0;
	a->rest = 0;
	if (!pf_answer_addresses(skb, p, a) || !pf_has_answer(p, a) ||
	    bpf_skb_load_bytes(skb, 0, &first, sizeof(first)) || (first & 1))
		return 0;
	number = p->rule[p->direction & 1] - 1;
	r = bpf_map_lookup_elem(&pf_rules, &number);
	if (p->proto == IPPROTO_TCP && p->answer != PF_RETURN_ICMP)
		return pf_answer_tcp(skb, r ? r->ttl : 0);
	if (!r || p->answer == PF_RETURN_RST)
		return 0;
	if (p->family == 6)
		return pf_answer_icmp(skb, r->icmp6[0] << 8 | r->icmp6[1]);
	return pf_answer_icmp(skb, r->icmp4[0] << 8 | r->icmp4[1]);
}
