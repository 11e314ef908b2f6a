/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * TCP connections, as pf follows them. A packet belongs to a connection if its data and its
 * acknowledgement are within the windows (van Rooij, Real stateful TCP packet filtering in IP
 * Filter, 2001).
 */
#pragma once

#include "life.h"

#define PF_ACK_SLACK (0xffff + 1500) /* acknowledgements may be off by this, as in pf */

#define TCP_OPTION_END 0
#define TCP_OPTION_NOP 1
#define TCP_OPTION_SCALE 3
#define TCP_SCALE_MOST 14 /* RFC 7323, 2.3 */

/*
 * Looks at the next option of a SYN. The walk over the options ends at the window scale, or behind
 * the last option.
 */
static long pf_next_option(u32 n, u32 *unused)
{
	struct pf_packet *p = pf_packet();
	u32 at, size, scale;

	if (!p)
		return 1;
	at = p->at;
	if (at >= p->options * 4 || at >= PF_TCP_OPTIONS)
		return 1;
	size = p->bytes[at + 1];
	switch (p->bytes[at]) {
	case TCP_OPTION_END:
		return 1;
	case TCP_OPTION_NOP:
		p->at = at + 1;
		return 0;
	case TCP_OPTION_SCALE:
		if (size != 3 || at + 3 > p->options * 4)
			return 1;
		scale = p->bytes[at + 2];
		p->scale = PF_SCALE_KNOWN | (scale < TCP_SCALE_MOST ? scale : TCP_SCALE_MOST);
		return 1;
	}
	p->at = at + size;
	return size < 2;
}

/* Reads the window scale of a SYN from its options. */
__noinline u32 pf_read_scale(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	u32 len;

	if (!on(FEATURE_PF) || !p)
		return 0;
	p->at = 0;
	len = p->options * 4;
	if (!skb_own(skb, p->l4 + sizeof(struct tcphdr) + len) ||
	    !frame_load(skb, p->l4 + sizeof(struct tcphdr), p->bytes, len, PF_TCP_OPTIONS))
		return 0;
	bpf_loop(PF_TCP_OPTIONS, pf_next_option, 0, 0);
	return 0;
}

/* The same for a SYN that XDP has. Returns false if it is truncated. */
__noinline u32 pf_read_scale_xdp(struct xdp_md *xdp)
{
	struct pf_packet *p = pf_packet();
	u32 len;

	if (!on(FEATURE_PF_FIRST) || !p)
		return false;
	p->scale = 0;
	p->at = 0;
	len = p->options * 4;
	if (!len)
		return true;
	if (!length_within(&len, PF_TCP_OPTIONS) ||
	    bpf_xdp_load_bytes(xdp, p->l4 + sizeof(struct tcphdr), p->bytes, len))
		return false;
	bpf_loop(PF_TCP_OPTIONS, pf_next_option, 0, 0);
	return true;
}

static __always_inline bool pf_after(u32 a, u32 b)
{
	return (__s32)(a - b) > 0;
}

static __always_inline bool pf_not_before(u32 a, u32 b)
{
	return (__s32)(a - b) >= 0;
}

static __always_inline u32 pf_more(u32 a, u32 b)
{
	return a > b ? a : b;
}

/* A window in units of the scale, rounded up. */
static __always_inline u32 pf_unscale(u32 window, u32 scale)
{
	return (window + (1u << scale) - 1) >> scale;
}

/* Begins a connection with its first known packet, from the side `src`. */
static __always_inline void pf_tcp_begin(const struct pf_packet *p, struct pf_peer *src,
					 struct pf_peer *dst)
{
	u32 window = pf_more(p->window, 1);

	src->lo = p->seq;
	src->hi = p->seq + p->payload + 1;
	if (p->tcp_flags & TCP_SYN) {
		src->hi++;
		src->scale = p->scale;
		window = pf_unscale(window, p->scale & PF_SCALE_MASK);
	}
	if (p->tcp_flags & TCP_FIN)
		src->hi++;
	src->max_win = window;
	src->state = PF_SYN_SENT;
	dst->hi = 1;
	dst->max_win = 1;
	dst->state = PF_CLOSED;
}

/* Advances the states of the sides by the packet's flags. */
static __always_inline void pf_tcp_states(struct pf_packet *p)
{
	u32 flags = p->tcp_flags;

	if ((flags & TCP_SYN) && p->src.state < PF_SYN_SENT)
		p->src.state = PF_SYN_SENT;
	if ((flags & TCP_FIN) && p->src.state < PF_CLOSING)
		p->src.state = PF_CLOSING;
	if (flags & TCP_ACK) {
		if (p->dst.state == PF_SYN_SENT) {
			p->dst.state = PF_ESTABLISHED;
			/* with a FIN as well: pf would not count such a connection */
			p->complete = p->src.state >= PF_ESTABLISHED;
		} else if (p->dst.state == PF_CLOSING) {
			p->dst.state = PF_FIN_WAIT_2;
		}
	}
}

/* Follows a connection that may be visible from only one side. It keeps no windows. */
static __always_inline void pf_tcp_sloppy(struct pf_packet *p)
{
	u32 flags = p->tcp_flags, was = p->dst.state;

	pf_tcp_states(p);
	if ((flags & TCP_ACK) && was != PF_SYN_SENT && was != PF_CLOSING) {
		if (p->src.state == PF_SYN_SENT && was < PF_SYN_SENT) {
			p->src.state = p->dst.state = PF_ESTABLISHED;
			p->complete = true;
		} else if (p->src.state == PF_CLOSING && was == PF_ESTABLISHED && !p->dst.lo) {
			p->dst.state = PF_CLOSING;
		}
	}
	if (flags & TCP_RST)
		p->src.state = p->dst.state = PF_TIME_WAIT;
}

/* Begins the numbers of a side with its first packet. Returns the end of the side's data. */
static __always_inline u32 pf_tcp_meet(struct pf_packet *p, u32 *window, u32 *src_scale,
				       u32 *dst_scale)
{
	u32 end = p->seq + p->payload, reach;

	if (p->tcp_flags & TCP_SYN) {
		end++;
		if (p->dst.scale & PF_SCALE_KNOWN) {
			p->src.scale = p->scale;
			if (p->scale & PF_SCALE_KNOWN) {
				*src_scale = p->scale & PF_SCALE_MASK;
				*dst_scale = p->dst.scale & PF_SCALE_MASK;
				*window = pf_unscale(*window, *src_scale);
			} else {
				/*
				 * Windows scale only if both sides have the option (RFC 7323, 2.2).
				 */
				reach = (u32)p->dst.max_win << (p->dst.scale & PF_SCALE_MASK);
				p->dst.max_win = reach < 0xffff ? reach : 0xffff;
				p->dst.scale = 0;
			}
		}
	}
	p->src.lo = p->seq;
	if (p->src.state < PF_SYN_SENT)
		p->src.state = PF_SYN_SENT;
	/* the other side has not sent anything yet, or was not seen from the beginning */
	reach = end + !!(p->tcp_flags & TCP_FIN) + pf_more(1, (u32)p->dst.max_win << *dst_scale);
	if (p->src.hi == 1 || pf_not_before(reach, p->src.hi))
		p->src.hi = reach;
	if (*window > p->src.max_win)
		p->src.max_win = *window;
	return end;
}

/*
 * Does a reset fit the connection's position? Its number must be the next one, or one off. If the
 * reset acknowledges exactly the other side's last data, its number may also be in the window
 * before. One that acknowledges 0 acknowledges nothing.
 */
static __always_inline bool pf_reset_fits(const struct pf_packet *p, u32 back, __s32 skew)
{
	u32 off = p->seq - p->src.lo + 1;

	if (off <= 2)
		return true;
	return pf_not_before(p->seq, p->src.lo - back) && pf_not_before(p->src.lo + 1, p->seq) &&
	       !skew && p->ack && (p->tcp_flags & TCP_ACK);
}

/* Updates a connection with a packet. Returns false if the packet does not belong to it. */
static __always_inline bool pf_tcp_track(struct pf_packet *p, u32 ack)
{
	u32 flags = p->tcp_flags, window = p->window, seq = p->seq;
	u32 src_scale = 0, dst_scale = 0, end, data_end, back, reach;
	__s32 skew;

	if (p->src.scale && p->dst.scale && !(flags & TCP_SYN)) {
		src_scale = p->src.scale & PF_SCALE_MASK;
		dst_scale = p->dst.scale & PF_SCALE_MASK;
	}
	if (!p->src.lo)
		data_end = pf_tcp_meet(p, &window, &src_scale, &dst_scale);
	else
		data_end = seq + p->payload + !!(flags & TCP_SYN);
	end = data_end + !!(flags & TCP_FIN);

	/*
	 * Some packets acknowledge nothing: without the flag, in resets, to a side that has never
	 * sent.
	 */
	if (!(flags & TCP_ACK) || (!ack && (flags & TCP_RST)) || p->dst.state < PF_SYN_SENT)
		ack = p->dst.lo;
	/* without data, the number does not matter: it may be a keep-alive's */
	if (seq == end)
		seq = end = data_end = p->src.lo;
	skew = p->dst.lo - ack;
	back = (u32)p->dst.max_win << dst_scale;

	if (pf_not_before(p->src.hi, data_end) && pf_not_before(seq, p->src.lo - back) &&
	    skew >= -PF_ACK_SLACK && skew <= PF_ACK_SLACK << src_scale &&
	    (!(flags & TCP_RST) || pf_reset_fits(p, back, skew))) {
		pf_tcp_states(p);
	} else if ((p->dst.state < PF_SYN_SENT || p->dst.state >= PF_FIN_WAIT_2 ||
		    p->src.state >= PF_FIN_WAIT_2) &&
		   pf_not_before(p->src.hi + PF_ACK_SLACK, data_end) &&
		   pf_not_before(seq, p->src.lo - PF_ACK_SLACK)) {
		/*
		 * The connection was met in the middle, or has just been closed: such a packet
		 * keeps no state alive.
		 */
		p->loose = true;
		if ((flags & TCP_FIN) && p->src.state < PF_CLOSING)
			p->src.state = PF_CLOSING;
	} else {
		return false;
	}
	if (flags & TCP_RST)
		p->src.state = p->dst.state = PF_TIME_WAIT;
	if (window > p->src.max_win)
		p->src.max_win = window;
	/* 0 is the number of a side that has never sent */
	if (pf_after(end, p->src.lo))
		p->src.lo = pf_more(end, 1);
	reach = window << src_scale;
	if (pf_not_before(ack + reach, p->dst.hi))
		p->dst.hi = ack + pf_more(reach, 1);
	return true;
}

/*
 * Does a packet continue a connection that both sides have begun, and end nothing? Then
 * pf_tcp_goes_on() alone updates the connection. Returns false if pf_tcp_track() must decide.
 */
static __always_inline bool pf_tcp_is_next(const struct pf_packet *p, const struct pf_peer *src,
					   const struct pf_peer *dst)
{
	const u32 flags = TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK;
	/* without data, the number does not matter */
	u32 seq = p->payload ? p->seq : src->lo, src_scale = 0, dst_scale = 0;
	__s32 skew = dst->lo - p->ack;

	if ((p->tcp_flags & flags) != TCP_ACK || src->state != PF_ESTABLISHED ||
	    dst->state != PF_ESTABLISHED || !src->lo || !dst->lo)
		return false;
	if (src->scale && dst->scale) {
		src_scale = src->scale & PF_SCALE_MASK;
		dst_scale = dst->scale & PF_SCALE_MASK;
	}
	/* a larger window than before must be kept */
	return p->window <= src->max_win && pf_not_before(src->hi, seq + p->payload) &&
	       pf_not_before(seq, src->lo - ((u32)dst->max_win << dst_scale)) &&
	       skew >= -PF_ACK_SLACK && skew <= PF_ACK_SLACK << src_scale;
}

/* Updates the connection with such a packet. A later value that another CPU has written stays. */
static __always_inline void pf_tcp_goes_on(const struct pf_packet *p, struct pf_peer *src,
					   struct pf_peer *dst)
{
	u32 scale = src->scale && dst->scale ? src->scale & PF_SCALE_MASK : 0;
	u32 end = p->seq + p->payload, reach = p->window << scale;

	/* 0 is the number of a side that has never sent */
	if (p->payload && pf_after(end, src->lo))
		WRITE_ONCE(src->lo, pf_more(end, 1));
	if (pf_not_before(p->ack + reach, dst->hi))
		WRITE_ONCE(dst->hi, p->ack + pf_more(reach, 1));
}

/* The last word of struct pf_peer, which is changed in one step. */
union pf_phase {
	struct {
		u16 max_win;
		u8 scale;
		u8 state;
	};
	u32 word;
};

#define PF_PHASE_TRIES 4

/*
 * Writes the changes of a side since it was read; `was` has the values read. Packets of the two
 * sides may be on two CPUs. A later value that the other CPU has written meanwhile stays. Numbers
 * and states only grow.
 */
static __always_inline void pf_peer_store(struct pf_peer *at, const struct pf_peer *peer,
					  const struct pf_peer *was)
{
	u32 *word = (u32 *)&at->max_win;
	union pf_phase now, next;

	if (peer->lo != was->lo && (at->lo == was->lo || pf_after(peer->lo, at->lo)))
		WRITE_ONCE(at->lo, peer->lo);
	if (peer->hi != was->hi && (at->hi == was->hi || pf_after(peer->hi, at->hi)))
		WRITE_ONCE(at->hi, peer->hi);
	if (peer->max_win == was->max_win && peer->scale == was->scale && peer->state == was->state)
		return;
	for (u32 tries = 0; tries < PF_PHASE_TRIES; tries++) {
		now.word = READ_ONCE(*word);
		next = now;
		if (peer->max_win > next.max_win)
			next.max_win = peer->max_win;
		if (peer->scale != was->scale)
			next.scale = peer->scale;
		if (peer->state > next.state)
			next.state = peer->state;
		if (next.word == now.word ||
		    __sync_val_compare_and_swap(word, now.word, next.word) == now.word)
			return;
	}
}
