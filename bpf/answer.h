/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Answers that the switch itself sends. An answer leaves through the port on which the frame
 * arrived. The switch answers ARP and ND requests for a station whose address is bound; guard()
 * finds these requests. It also answers frames that pf drops, if pf's rules say so (pf/answer.h,
 * pf/rewrite.h).
 */
#pragma once

#include "binding.h"
#include "pf/pf.h"
#include "send.h"

/*
 * The parts of an ND answer. The checksum covers all of them. The frame gets the part from `nd` on.
 */
struct nd_answer {
	struct in6_addr saddr;
	struct in6_addr daddr;
	u32 length; /* with `next` the end of the pseudo-header (RFC 8200 8.1) */
	u32 next;
	struct nd nd;
	u8 opt_type;
	u8 opt_len;
	u16 mac[3];
};

#define ND_ANSWER (sizeof(struct nd) + 8) /* bytes of the message */

/* Flags of an advertisement (RFC 4861 4.4). */
#define ND_ROUTER (1u << 31)
#define ND_SOLICITED (1u << 30)
#define ND_OVERRIDE (1u << 29)

struct question {
	u64 asker; /* MAC */
	u64 answer; /* MAC of the requested address */
	u32 at; /* where the packet begins in the frame */
	u32 router; /* ND_ROUTER or 0 */
};

static __always_inline void ether_set(u16 *to, u64 dst, u64 src)
{
	to[0] = dst;
	to[1] = dst >> 16;
	to[2] = dst >> 32;
	to[3] = src;
	to[4] = src >> 16;
	to[5] = src >> 32;
}

/* Turns an ARP request into its reply. Returns 0 on success. */
__noinline int answer_arp(struct __sk_buff *skb, struct question *q)
{
	u16 ether[6];
	struct arp a = {};
	u32 asked;

	if (!q || bpf_skb_load_bytes(skb, q->at, &a, sizeof(a)))
		return -1;
	ether_set(ether, q->asker, q->answer);
	asked = a.tpa;
	a.op = bpf_htons(ARPOP_REPLY);
	__builtin_memcpy(a.tha, a.sha, ETH_ALEN);
	a.tpa = a.spa;
	__builtin_memcpy(a.sha, ether + 3, ETH_ALEN);
	a.spa = asked;
	if (bpf_skb_store_bytes(skb, 0, ether, sizeof(ether), BPF_F_RECOMPUTE_CSUM))
		return -1;
	return bpf_skb_store_bytes(skb, q->at, &a, sizeof(a), BPF_F_RECOMPUTE_CSUM);
}

#define ALL_NODES_MAC 0x010000003333ull /* 33:33:00:00:00:01 */

/* Turns a neighbour solicitation into the advertisement that answers it. Returns 0 on success. */
__noinline int answer_nd(struct __sk_buff *skb, struct question *q)
{
	struct nd_answer a = {};
	struct ipv6hdr ip = {};
	bool nobody;
	u16 ether[6];
	__s64 sum;

	if (!q || bpf_skb_load_bytes(skb, q->at, &ip, sizeof(ip)) ||
	    bpf_skb_load_bytes(skb, q->at + sizeof(ip), &a.nd, sizeof(a.nd)))
		return -1;
	nobody = address6_is_zero(&ip.saddr);
	a.saddr = a.nd.target;
	a.daddr = ip.saddr;
	if (nobody) { /* notify all nodes that the address is taken (RFC 4861 7.2.4) */
		a.daddr.s6_addr32[0] = bpf_htonl(0xff020000);
		a.daddr.s6_addr32[3] = bpf_htonl(1);
	}
	a.length = bpf_htonl(ND_ANSWER);
	a.next = bpf_htonl(IPPROTO_ICMPV6);
	a.nd.type = ICMP6_NA;
	a.nd.code = 0;
	a.nd.check = 0;
	a.nd.flags = bpf_htonl(q->router | (nobody ? 0 : ND_SOLICITED) | ND_OVERRIDE);
	ether_set(ether, nobody ? ALL_NODES_MAC : q->asker, q->answer);
	a.opt_type = ND_OPT_TARGET;
	a.opt_len = 1;
	__builtin_memcpy(a.mac, ether + 3, ETH_ALEN);
	sum = bpf_csum_diff(0, 0, (void *)&a, sizeof(a), 0);
	sum = (sum & 0xffff) + (sum >> 16 & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	a.nd.check = ~sum;

	/* the answer has no traffic class and no flow label */
	__builtin_memset(&ip, 0, 4);
	ip.version = 6;
	ip.payload_len = bpf_htons(ND_ANSWER);
	ip.saddr = a.saddr;
	ip.daddr = a.daddr;
	if (bpf_skb_change_tail(skb, q->at + sizeof(ip) + ND_ANSWER, 0) ||
	    bpf_skb_store_bytes(skb, 0, ether, sizeof(ether), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_skb_store_bytes(skb, q->at, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM))
		return -1;
	return bpf_skb_store_bytes(skb, q->at + sizeof(ip), &a.nd, ND_ANSWER, BPF_F_RECOMPUTE_CSUM);
}

/*
 * Turns the frame into its answer. Returns the answer's length, or 0 if there is no memory for it.
 */
static __always_inline u32 answer_make(struct __sk_buff *skb, const struct frame *f,
				       const struct verdict *v)
{
	struct question q = {.asker = f->src, .answer = v->word, .at = ETHER_HEADER + f->tag};

	if (v->answered == QUESTION_ARP)
		return answer_arp(skb, &q) ? 0 : f->len;
	/*
	 * A node that learns that a router is no longer one drops its routes (RFC 4861 7.2.5). So
	 * the flag is only left out where no router can be. On a host the flag means nothing, as
	 * long as the host does not advertise itself as a router.
	 */
	if (!on(FEATURE_RA_GUARD) || (port_at(v->out)->flags & PORT_TRUSTED))
		q.router = ND_ROUTER;
	return answer_nd(skb, &q) ? 0 : q.at + sizeof(struct ipv6hdr) + ND_ANSWER;
}

/* Answers a request on behalf of the station, whose address is bound. */
static __always_inline int answer_question(struct __sk_buff *skb, struct frame *f,
					   const struct verdict *v)
{
	account_in(skb, f, v, v->in);
	if (on(FEATURE_CAPTURE))
		capture_frame(skb, v->in, capture_vlans(v), CAPTURE_IN, 0);
	f->len = answer_make(skb, f, v);
	return f->len ? send_by(skb, f, v, v->in, f->outer, f->outer) : TC_ACT_SHOT;
}

/* Does pf require an answer to a frame that has been dropped? */
static __always_inline bool answer_wanted(const struct frame *f, const struct verdict *v)
{
	const struct pf_packet *p;

	if (!on(FEATURE_PF) || on(FEATURE_TRACE) || mac_is_group(f->dst))
		return false;
	/* another bridge determines the way back by a patch cable */
	if (on(FEATURE_PATCH) && (port_at(v->in)->facts & PORT_PATCH))
		return false;
	if (v->reason != DROP_PF && v->reason != DROP_PF_STATE &&
	    !(on(FEATURE_PF_REWRITE) && v->reason == DROP_PF_SYNPROXY))
		return false;
	p = pf_packet();
	return p && p->answer;
}

/* Answers a dropped frame. */
static __always_inline int answer_refused(struct __sk_buff *skb, struct frame *f,
					  const struct verdict *v)
{
	if (!pf_answers_front(skb))
		return TC_ACT_SHOT;
	if (on(FEATURE_PF_REWRITE) && v->reason == DROP_PF_SYNPROXY)
		f->len = pf_make_segment(skb);
	else
		f->len = pf_answer(skb);
	return f->len ? send_by(skb, f, v, v->in, f->outer, f->outer) : TC_ACT_SHOT;
}

#ifndef DECIDES_AT_ONCE
/*
 * Drops a pf packet on its way to another family or a next hop, and notifies its sender by an ICMP
 * message with a type, a code and an MTU; type and code 0 send none. `key` is the packet's key as
 * the sender sees it; the sender is on `side`. The message comes from the packet's destination.
 */
static __always_inline int answer_sender(struct __sk_buff *skb, struct judged *j, u32 reason,
					 const struct pf_key *key, u32 side, u32 what, u32 mtu)
{
	struct pf_answering *a = pf_answering_get();
	struct pf_packet *p = pf_packet();

	drop_skb(skb, &j->f, &j->v, reason);
	/* another bridge determines the way back by a patch cable */
	if (!a || !p || !what || (on(FEATURE_PATCH) && (port_at(j->v.in)->facts & PORT_PATCH)) ||
	    !pf_answers_front(skb))
		return TC_ACT_SHOT;
	side &= 1;
	__builtin_memcpy(a->src, key->address[!side], 16);
	__builtin_memcpy(a->dst, key->address[side], 16);
	if (!pf_has_answer(p, a))
		return TC_ACT_SHOT;
	a->rest = bpf_htonl(mtu);
	j->f.len = pf_answer_icmp(skb, what);
	return j->f.len ? send_by(skb, &j->f, &j->v, j->v.in, j->f.outer, j->f.outer) : TC_ACT_SHOT;
}
#endif
