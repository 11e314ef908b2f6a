/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * TCP packets that pf changes. If a rule has `modulate state`, pf changes their sequence numbers.
 * If a rule has `synproxy state`, the switch makes the handshake on a host's behalf. As in pf, a
 * state has the numbers that their sender uses.
 */
#pragma once

#include "life.h"
#include "options.h"
#include "slow.h"

/* Gives a packet the numbers that its receiver expects. Its state has passed the packet. */
__noinline int pf_rewrite(struct __sk_buff *skb, u32 place)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = pf_state_at(place);
	u32 side, check;

	if (!on(FEATURE_PF_REWRITE) || !p || !s || !(s->flags & PF_STATE_REWRITE))
		return 0;
	if (p->flags & PF_P_ERROR) {
		struct pf_slow *slow = pf_slow();

		if (!slow || p->quoted.proto != IPPROTO_TCP)
			return 0;
		/* with the quoted checksum, the error adds up to the same */
		check = slow->at + TCP_CHECK;
		if (check + sizeof(u16) > p->l3 + p->length)
			check = p->l4 + 2;
		/* the host that sent the quoted packet recognizes it by its own numbers */
		pf_patch_edge(skb, slow->at + TCP_SEQ, check, s->diff[p->quoted_side & 1]);
		return 0;
	}
	if (p->proto != IPPROTO_TCP || (p->flags & PF_P_LATER))
		return 0;
	side = p->side & 1;
	check = p->l4 + TCP_CHECK;
	pf_patch(skb, p->l4 + TCP_SEQ, check, p->seq, p->seq + s->diff[side]);
	if (!(p->tcp_flags & TCP_ACK))
		return 0;
	pf_patch(skb, p->l4 + TCP_ACK_SEQ, check, p->ack, p->ack - s->diff[!side]);
	if (s->diff[!side] && pf_has_options(skb, p))
		pf_walk_options(skb, s->diff[!side], 0);
	return 0;
}

/*
 * A packet that the switch makes out of a received one: TCP without data, and with no option but
 * the MSS.
 */
struct pf_segment {
	u32 seq;
	u32 ack;
	u16 window;
	u16 mss; /* 0 for none */
	u8 flags;
	u8 back; /* it goes to the sender of the packet */
	u8 turned; /* the packet's addresses have been reversed */
	u8 pad;
	/* as in the packet */
	u32 ip[10];
	u32 tcp[6];
	u32 pseudo; /* protocol and length, in the pseudo header */
	u16 mac[6];
};

WORK_HOLDS(struct pf_segment);

static __always_inline struct pf_segment *pf_segment(void)
{
	return work_of(WORK_PF_SEGMENT);
}

/*
 * Is the checksum unfinished, left to the device or to the moment when the packet leaves? No field
 * shows that. But such a checksum does not change when data does.
 */
static __always_inline bool pf_check_is_partial(struct __sk_buff *skb, u32 at)
{
	u16 was = 0, is = 0;

	bpf_skb_load_bytes(skb, at, &was, sizeof(was));
	bpf_l4_csum_replace(skb, at, 0, 1, sizeof(u16));
	bpf_skb_load_bytes(skb, at, &is, sizeof(is));
	bpf_skb_store_bytes(skb, at, &was, sizeof(was), 0);
	return was == is;
}

/* Makes the IP header, and returns the sum of its pseudo header (RFC 9293, 3.1). */
static __always_inline u32 pf_segment_ip(struct pf_segment *g, const struct pf_packet *p, u32 from,
					 u32 length)
{
	const u32 *src = p->key.address[from & 1], *dst = p->key.address[!from];

	g->pseudo = bpf_htonl(IPPROTO_TCP + length);
	if (p->family == 4) {
		g->ip[0] = bpf_htonl(0x45000000 + sizeof(struct iphdr) + length);
		g->ip[1] = bpf_htonl(0x4000); /* must not be fragmented */
		g->ip[2] = bpf_htonl(64 << 24 | IPPROTO_TCP << 16);
		g->ip[3] = src[3];
		g->ip[4] = dst[3];
		*((u16 *)g->ip + 5) = ~pf_fold(bpf_csum_diff(0, 0, g->ip, sizeof(struct iphdr), 0));
		return bpf_csum_diff(0, 0, g->ip + 3, 8, g->pseudo);
	}
	g->ip[0] = bpf_htonl(6u << 28);
	g->ip[1] = bpf_htonl(length << 16 | IPPROTO_TCP << 8 | 64);
	__builtin_memcpy(g->ip + 2, src, 16);
	__builtin_memcpy(g->ip + 6, dst, 16);
	return bpf_csum_diff(0, 0, g->ip + 2, 32, g->pseudo);
}

static __always_inline bool pf_turn_macs(struct __sk_buff *skb, struct pf_segment *g)
{
	u16 mac;

	if (g->back == g->turned)
		return true;
	if (bpf_skb_load_bytes(skb, 0, g->mac, sizeof(g->mac)))
		return false;
#pragma unroll
	for (int i = 0; i < 3; i++) {
		mac = g->mac[i];
		g->mac[i] = g->mac[i + 3];
		g->mac[i + 3] = mac;
	}
	g->turned = g->back;
	return !bpf_skb_store_bytes(skb, 0, g->mac, sizeof(g->mac), 0);
}

/* Turns this CPU's packet into the new segment. Returns the frame's length, or 0. */
__noinline u32 pf_make_segment(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_segment *g = pf_segment();
	u32 from, sum, length, header;
	bool partial;

	if (!on(FEATURE_PF_REWRITE) || !p || !g)
		return 0;
	from = (p->side ^ g->back) & 1;
	header = p->family == 4 ? sizeof(struct iphdr) : sizeof(struct ipv6hdr);
	if (p->l4 - p->l3 != header)
		return 0;
	length = TCP_HEADER + (g->mss ? 4 : 0);
	partial = pf_check_is_partial(skb, p->l4 + TCP_CHECK);
	if (bpf_skb_change_tail(skb, p->l4 + length, 0))
		return 0;
	sum = pf_segment_ip(g, p, from, length);
	*(u16 *)g->tcp = p->key.port[from & 1];
	*((u16 *)g->tcp + 1) = p->key.port[!from];
	g->tcp[1] = bpf_htonl(g->seq);
	g->tcp[2] = bpf_htonl(g->ack);
	g->tcp[3] = bpf_htonl(length << 26 | g->flags << 16 | g->window);
	g->tcp[4] = 0;
	g->tcp[5] = g->mss ? bpf_htonl(TCP_OPT_MSS << 24 | 4 << 16 | g->mss) : 0;
	if (partial)
		*(u16 *)(g->tcp + 4) = pf_fold(sum);
	else
		*(u16 *)(g->tcp + 4) = ~pf_fold(bpf_csum_diff(0, 0, g->tcp, sizeof(g->tcp), sum));
	if (p->family == 4 ? bpf_skb_store_bytes(skb, p->l3, g->ip, sizeof(struct iphdr),
						 BPF_F_RECOMPUTE_CSUM)
			   : bpf_skb_store_bytes(skb, p->l3, g->ip, sizeof(struct ipv6hdr),
						 BPF_F_RECOMPUTE_CSUM))
		return 0;
	if (g->mss ? bpf_skb_store_bytes(skb, p->l4, g->tcp, TCP_HEADER + 4, BPF_F_RECOMPUTE_CSUM)
		   : bpf_skb_store_bytes(skb, p->l4, g->tcp, TCP_HEADER, BPF_F_RECOMPUTE_CSUM))
		return 0;
	return pf_turn_macs(skb, g) ? p->l4 + length : 0;
}

/*
 * The switch first makes a handshake with the side that began, and then one with the other
 * side (pf calls this synproxy). Meanwhile the state has
 * 	peer[initiator].lo	the initiator's first number
 * 	peer[initiator].hi	the switch's first number to the initiator
 * 	peer[other].hi		the switch's first number to the other side, 0 for none yet
 * 	diff[initiator]		the MSS
 * 	diff[other]		the tag of the first packet
 */
#define PF_MSS4_DEFAULT 536 /* RFC 9293, 3.7.1 */
#define PF_MSS6_DEFAULT 1220
#define PF_MSS4 1460 /* for Ethernet: the MSS of the other side is unknown */
#define PF_MSS6 1440
#define PF_MSS_LEAST 64

static __always_inline bool pf_proxied(const struct pf_state *s)
{
	return on(FEATURE_PF_REWRITE) && (s->flags & PF_STATE_REWRITE) &&
	       (s->peer[0].state >= PF_PROXY_SRC || s->peer[1].state >= PF_PROXY_SRC);
}

/*
 * Does the rule that has passed this CPU's packet make the switch do the handshake? If so, records
 * the MSS. A packet that comes by a patch cable cannot be answered: it only gets other numbers.
 */
__noinline u32 pf_proxy_wanted(struct __sk_buff *skb, u32 slot)
{
	struct pf_packet *p = pf_packet();
	struct pf_rule *r;
	u32 mss, most;

	if (!on(FEATURE_PF_REWRITE) || !p)
		return false;
	r = pf_rule_at(p->rule[0]);
	if (pf_to_host(slot) || !r || !(r->flags & PF_SYNPROXY) || p->proto != IPPROTO_TCP ||
	    (p->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN || (p->flags & PF_P_FRAGMENT) ||
	    (port_at(slot)->facts & PORT_PATCH))
		return false;
	mss = pf_walk_options(skb, 0, 0);
	most = p->family == 4 ? PF_MSS4 : PF_MSS6;
	if (p->scrub[0].max_mss && p->scrub[0].max_mss < most)
		most = p->scrub[0].max_mss;
	if (!mss)
		mss = p->family == 4 ? PF_MSS4_DEFAULT : PF_MSS6_DEFAULT;
	if (mss > most)
		mss = most;
	p->mss = mss < PF_MSS_LEAST ? PF_MSS_LEAST : mss;
	return true;
}

/* Prepares the switch's answer to this CPU's packet, a SYN. */
static __always_inline void pf_proxy_greet(struct pf_packet *p, u32 seq, u32 mss)
{
	struct pf_segment *g = pf_segment();

	if (!g)
		return;
	g->seq = seq;
	g->ack = p->seq + 1;
	g->flags = TCP_SYN | TCP_ACK;
	g->window = 0; /* data has nowhere to go yet */
	g->mss = mss;
	g->back = true;
	g->turned = false;
	p->answer = true;
}

/*
 * Fills in the parts of a new state that this file needs. `keeps` has the flags of its first
 * packet's rules.
 */
static __always_inline void pf_rewrite_begin(struct pf_packet *p, struct pf_state *s, u32 keeps)
{
	u32 side = p->side & 1;

	if (!(keeps & (PF_MODULATE | PF_SYNPROXY)) ||
	    (p->tcp_flags & (TCP_SYN | TCP_ACK)) != TCP_SYN)
		return;
	s->flags |= PF_STATE_REWRITE;
	if (!p->mss) {
		s->diff[side] = bpf_get_prandom_u32() | 1;
		return;
	}
	pf_count(PF_COUNT_SYNPROXY);
	s->peer[side].state = PF_PROXY_SRC;
	s->peer[side].hi = bpf_get_prandom_u32();
	s->peer[!side].hi = 0;
	s->diff[side] = p->mss;
	s->diff[!side] = p->tag;
	pf_proxy_greet(p, s->peer[side].hi, p->mss);
}

/* Is it an acknowledgement of the switch's SYN, perhaps as a probe of the window (RFC
 * 9293, 3.8.6.1)? */
static __always_inline bool pf_proxy_acked(const struct pf_packet *p, const struct pf_peer *src)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_ACK && p->ack == src->hi + 1 &&
	       (p->seq == src->lo + 1 || p->seq == src->lo);
}

/*
 * Handles a packet of the side that began. Returns 0 if it goes on, as the switch's SYN to the
 * other side.
 */
static __always_inline u32 pf_proxy_first(struct __sk_buff *skb, struct pf_packet *p,
					  struct pf_state *s, u32 place, u32 now)
{
	u32 side = p->side & 1;
	struct pf_peer *src = &s->peer[side], *dst = &s->peer[!side];
	struct pf_segment *g = pf_segment();

	if (!g)
		return DROP_PF_SYNPROXY;
	if (src->state == PF_PROXY_SRC && (p->tcp_flags & TCP_SYN)) {
		if (p->seq == src->lo && !(p->tcp_flags & TCP_ACK))
			pf_proxy_greet(p, src->hi, s->diff[side]);
		return DROP_PF_SYNPROXY;
	}
	if (!pf_proxy_acked(p, src))
		return DROP_PF_SYNPROXY;
	if (src->state == PF_PROXY_SRC) {
		if (on(FEATURE_PF_SOURCES) && pf_source_connect(place, now)) {
			pf_source_punish(place, now);
			pf_count(PF_COUNT_SRC_LIMIT);
			pf_state_remove(place, now);
			return DROP_PF_LIMIT;
		}
		src->state = PF_PROXY_DST;
	}
	src->max_win = p->window ? p->window : 1;
	if (!dst->hi)
		dst->hi = bpf_get_prandom_u32() | 1;
	p->tag = s->diff[!side];
	g->seq = dst->hi;
	g->ack = 0;
	g->flags = TCP_SYN;
	g->window = 0;
	g->mss = s->diff[side];
	g->back = false;
	g->turned = false;
	return pf_make_segment(skb) ? 0 : DROP_PF_SYNPROXY;
}

/*
 * Handles a packet of the other side. Returns 0 if it goes on. The packet must be the SYN+ACK,
 * which the switch acknowledges. The side that began is then notified that there is room for data.
 */
static __always_inline u32 pf_proxy_second(struct __sk_buff *skb, struct pf_packet *p,
					   struct pf_state *s, u32 slot)
{
	u32 side = p->side & 1, len;
	struct pf_peer *src = &s->peer[!side], *dst = &s->peer[side]; /* of the connection */
	struct pf_segment *g = pf_segment();

	if (!g || src->state != PF_PROXY_DST || !dst->hi || p->ack != dst->hi + 1 ||
	    (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST)) != (TCP_SYN | TCP_ACK))
		return DROP_PF_SYNPROXY;
	dst->max_win = p->window ? p->window : 1;
	dst->lo = p->seq;
	g->seq = p->ack;
	g->ack = p->seq + 1;
	g->flags = TCP_ACK;
	g->window = src->max_win;
	g->mss = 0;
	g->back = true;
	g->turned = false;
	len = pf_make_segment(skb);
	if (!len)
		return DROP_PF_SYNPROXY;
	g->seq = src->hi + 1;
	g->ack = src->lo + 1;
	g->window = dst->max_win;
	g->back = false;
	s->diff[!side] = dst->hi - src->lo;
	s->diff[side] = src->hi - dst->lo;
	src->hi = src->lo + dst->max_win;
	dst->hi = dst->lo + src->max_win;
	src->scale = dst->scale = 0;
	/* before the other side is notified: that side may send at once */
	barrier();
	dst->state = PF_ESTABLISHED;
	src->state = PF_ESTABLISHED;
	/*
	 * This is lost if the port is a patch cable. Then the SYN+ACK comes again, and is answered.
	 */
	count_tx(slot, len);
	/* a limit of the port has already undone the count: see rate.h */
	if (bpf_clone_redirect(skb, port_at(slot)->ifindex, 0) && !port_limits_out(port_at(slot)))
		uncount_tx(slot, len);
	return pf_make_segment(skb) ? 0 : DROP_PF_SYNPROXY;
}

/*
 * Handles a packet of a connection whose handshake the switch makes. Returns 0 if it goes on, in
 * the form that the switch has given it, or the reason why it does not.
 */
__noinline u32 pf_proxy(struct __sk_buff *skb, u32 slot, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;
	u32 place;

	if (!on(FEATURE_PF_REWRITE) || !p)
		return DROP_PF;
	place = p->state - 1;
	s = pf_state_at(place);
	if (!s)
		return DROP_PF;
	pf_count(PF_COUNT_SYNPROXY);
	/* a trial changes nothing */
	if (on(FEATURE_TRACE) || p->proto != IPPROTO_TCP || (p->flags & PF_P_FRAGMENT))
		return DROP_PF_SYNPROXY;
	if ((p->side & 1) == pf_initiator(s))
		return pf_proxy_first(skb, p, s, place, now);
	return pf_proxy_second(skb, p, s, slot);
}
