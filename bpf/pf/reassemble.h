/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * `scrub (reassemble tcp)`, as in OpenBSD's pf (pf_norm.c: pf_normalize_tcp_init(),
 * pf_normalize_tcp_stateful()). Neither side of a connection may lower its TTL. The timestamps of
 * each side get an offset, so that they do not reveal the host's uptime. They are also compared
 * with earlier ones: a packet with impossible timestamps is dropped.
 *
 * The data kept for a connection is at the place of its state, and identifies the state. A place
 * gets another state one second after the former one at the earliest (pf_state_over(), PF_REST,
 * pf_claim_again()), so no two states of a place were created in the same second. No cleanup is
 * needed when a state goes.
 *
 * All of it is in a separate program: see ../reassemble.h.
 */
#pragma once

#include "rewrite.h"
#include "track.h"

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(map_flags, BPF_F_MMAPABLE);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, struct pf_reassembly);
} pf_stamps SEC(".maps");

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum pf_stamps_flag *pf_stamps_flag_type __attribute__((unused));

#define TCP_OPT_TIMESTAMP 8
#define TCP_OPT_TIMESTAMP_BYTES 10

#define PF_STAMPS_UNREAD 0xff /* instead of the number of options with timestamps */

/* The data about one side of the connection at a place. */
static __always_inline struct pf_stamps *pf_stamps_at(u32 place, u32 side)
{
	struct pf_reassembly *r = bpf_map_lookup_elem(&pf_stamps, &place);

	return r ? &r->side[side & 1] : 0;
}

/* The identity of a state in this data. */
static __always_inline u32 pf_stamps_of(const struct pf_state *s)
{
	return s->created + 1;
}

/*
 * Checks the next option for timestamps, like pf_find_tcpopt(): the end of the options for others
 * does not end them here.
 */
static long pf_next_stamp(u32 n, u32 *unused)
{
	struct pf_packet *p = pf_packet();
	u32 at, size;

	if (!p)
		return 1;
	at = p->at;
	if (at + TCP_OPT_TIMESTAMP_BYTES > p->options * 4 ||
	    at > PF_TCP_OPTIONS - TCP_OPT_TIMESTAMP_BYTES)
		return 1;
	if (p->bytes[at] == TCP_OPT_END || p->bytes[at] == TCP_OPT_NOP) {
		p->at = at + 1;
		return 0;
	}
	size = p->bytes[at + 1];
	if (p->bytes[at] == TCP_OPT_TIMESTAMP && size >= TCP_OPT_TIMESTAMP_BYTES) {
		p->stamp_at = at + 2;
		p->stamps++;
	}
	if (size < 2)
		size = 2;
	p->at = at + size;
	return size > PF_TCP_OPTIONS;
}

/* Reads the timestamps of this CPU's packet, and counts its options with timestamps. */
__noinline u32 pf_stamps_read(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	u32 len;

	if (!on(FEATURE_PF_REASSEMBLE) || !p)
		return 0;
	p->stamps = 0;
	p->at = 0;
	len = p->options * 4;
	if (len < TCP_OPT_TIMESTAMP_BYTES)
		return 0;
	p->stamps = PF_STAMPS_UNREAD;
	if (!skb_own(skb, p->l4 + TCP_HEADER + len) ||
	    !frame_load(skb, p->l4 + TCP_HEADER, p->bytes, len, PF_TCP_OPTIONS))
		return 0;
	p->stamps = 0;
	bpf_loop(PF_TCP_OPTIONS, pf_next_stamp, 0, 0);
	/* TSval and TSecr are adjacent, here and there */
	if (p->stamps && bpf_skb_load_bytes(skb, p->l4 + TCP_HEADER + p->stamp_at, &p->stamp,
					    2 * sizeof(p->stamp)))
		p->stamps = PF_STAMPS_UNREAD;
	p->stamp = bpf_ntohl(p->stamp);
	p->echo = bpf_ntohl(p->echo);
	return 0;
}

/* The place of the byte with the TTL, or the hop limit. */
static __always_inline u32 pf_ttl_at(const struct pf_packet *p)
{
	if (p->family == 4)
		return p->l3 + offsetof(struct iphdr, ttl);
	return p->l3 + offsetof(struct ipv6hdr, hop_limit);
}

/* Begins the data about the side that sends this CPU's packet, whose state is at a place. */
__noinline u32 pf_stamps_begin(struct __sk_buff *skb, u32 place)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = pf_state_at(place);
	struct pf_stamps *src;

	if (!on(FEATURE_PF_REASSEMBLE) || !p || !s)
		return 0;
	src = pf_stamps_at(place, p->side);
	if (!src)
		return 0;
	__builtin_memset(src, 0, sizeof(*src));
	skb_bytes(skb, pf_ttl_at(p), &src->ttl, sizeof(src->ttl));
	/* only the beginning of a connection shows whether it has timestamps */
	if ((p->tcp_flags & TCP_SYN) && p->stamps) {
		src->flags = PF_STAMPS_ON;
		src->offset = bpf_get_prandom_u32();
		src->first = src->value = p->stamp;
		src->echo = p->echo;
		src->last = bpf_ktime_get_ns();
	}
	barrier();
	src->of = pf_stamps_of(s);
	return 0;
}

/* Gives the packet the timestamps that its receiver expects. */
__noinline u32 pf_stamps_modulate(struct __sk_buff *skb, u32 place)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = pf_state_at(place);
	const struct pf_stamps *src, *dst;
	u32 at, check;

	if (!on(FEATURE_PF_REASSEMBLE) || !p || !s)
		return 0;
	src = pf_stamps_at(place, p->side);
	dst = pf_stamps_at(place, !(p->side & 1));
	if (!src || !dst)
		return 0;
	at = p->l4 + TCP_HEADER + p->stamp_at;
	check = p->l4 + TCP_CHECK;
	if (p->stamp && (src->flags & PF_STAMPS_ON))
		pf_patch(skb, at, check, p->stamp, p->stamp + src->offset);
	if (p->echo && dst->of == pf_stamps_of(s) && (dst->flags & PF_STAMPS_ON)) {
		pf_patch(skb, at + sizeof(p->stamp), check, p->echo, p->echo - dst->offset);
		p->echo -= dst->offset;
	}
	return 0;
}

/* Does a state (its place + 1, 0 for none) have `reassemble tcp`? */
static __always_inline bool pf_stamps_wanted(u32 state)
{
	struct pf_state *s = pf_state_at(state - 1);

	return s && pf_reassembles(s);
}

/*
 * Applies the rule to this CPU's packet, whose state has just been made. Returns false if the
 * packet must be dropped. Then its state begins with another packet.
 */
__noinline u32 pf_stamps_settle(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();

	if (!on(FEATURE_PF_STAMPS) || !p)
		return false;
	p->stamps = 0;
	if (p->tcp_flags & TCP_SYN)
		pf_stamps_read(skb);
	if (p->stamps > 1)
		return false;
	pf_stamps_begin(skb, p->state - 1);
	if (p->stamps)
		pf_stamps_modulate(skb, p->state - 1);
	return true;
}

#define PF_SECOND_NS 1000000000ull
#define PF_DAY (24 * 60 * 60)
/*
 * A clock of 1 kHz, the fastest that is allowed (RFC 7323, 5.4), wraps around in 24 days. The lower
 * bound of echoed timestamps stays, and so is valid for half of that.
 */
#define PF_STAMPS_IDLE (24 * PF_DAY * PF_SECOND_NS)
#define PF_STAMPS_LAST (12 * PF_DAY) /* seconds */
#define PF_TICKS 1100 /* per second: clocks may be a tenth too fast */
#define PF_TICKS_MOST 0x7fffffff /* a higher difference would mean an earlier timestamp */

/* The maximum growth of a side's timestamps since its last packet. */
static __always_inline u32 pf_stamps_grow(const struct pf_state *s, const struct pf_stamps *src,
					  u64 now)
{
	u32 number = s->key.profile;
	struct pf_profile *profile = bpf_map_lookup_elem(&pf_profiles, &number);
	u64 ticks = (now - src->last) / (PF_SECOND_NS / PF_TICKS);

	if (profile)
		ticks += (u64)profile->timeout[PF_TCP_TSDIFF] * PF_TICKS;
	return ticks < PF_TICKS_MOST ? ticks : PF_TICKS_MOST;
}

static __always_inline bool pf_stamps_idle(const struct pf_stamps *side, u64 now)
{
	return (__s64)(now - side->last) > (__s64)PF_STAMPS_IDLE;
}

/* May the clock of a side have wrapped around? Then its timestamps are no longer compared. */
static __always_inline void pf_stamps_rest(struct pf_stamps *side)
{
	side->flags = (side->flags & ~PF_STAMPS_CHECKED) | PF_STAMPS_IDLED;
}

#define PF_STAMP_TRIES 4

/* Raises a number to a later one, even if a packet on another CPU changes it meanwhile. */
static __always_inline void pf_stamp_raise(u32 *at, u32 to, bool always)
{
	u32 now;

	for (u32 i = 0; i < PF_STAMP_TRIES; i++) {
		now = READ_ONCE(*at);
		if ((!always && !pf_not_before(to, now)) ||
		    __sync_val_compare_and_swap(at, now, to) == now)
			return;
	}
}

/* Keeps the timestamps of a packet. */
static __always_inline void pf_stamps_keep(const struct pf_packet *p, struct pf_stamps *src,
					   u64 now)
{
	bool begins = !(src->flags & PF_STAMPS_CHECKED);

	WRITE_ONCE(src->last, now);
	pf_stamp_raise(&src->value, p->stamp, begins);
	if (!p->echo)
		return;
	pf_stamp_raise(&src->echo, p->echo, begins);
	if (!begins)
		return;
	if (!src->first || pf_after(src->first, p->stamp))
		src->first = p->stamp;
	src->flags |= PF_STAMPS_CHECKED;
}

/*
 * This CPU's packet, its state at a place, and the data of the sending side and the other one.
 * Returns false if one of them is missing.
 */
static __always_inline bool pf_stamps_both(u32 place, struct pf_packet **p, struct pf_state **s,
					   struct pf_stamps **src, struct pf_stamps **dst)
{
	*p = pf_packet();
	*s = pf_state_at(place);
	if (!*p || !*s)
		return false;
	*src = pf_stamps_at(place, (*p)->side);
	*dst = pf_stamps_at(place, !((*p)->side & 1));
	return *src && *dst;
}

/*
 * Is the timestamp of a packet before the other side's echo, and so too old? A pure
 * acknowledgement's timestamp may be slightly before it. A host sends from several CPUs. A packet
 * that overtakes one without data leaves no gap in the numbers, so the other side echoes the later
 * timestamp at once. Receivers accept the earlier packet (Linux' tcp_disordered_ack()), or
 * recognize it as old. It does not change the kept data.
 */
static __always_inline bool pf_stamp_is_old(const struct pf_packet *p, u32 echoed)
{
	if (!pf_after(echoed, p->stamp))
		return false;
	return p->payload || (p->tcp_flags & (TCP_SYN | TCP_FIN | TCP_RST | TCP_ACK)) != TCP_ACK ||
	       echoed - p->stamp > PF_TICKS;
}

/*
 * Compares the timestamps of this CPU's packet with earlier ones, and keeps them. Returns 0, or the
 * reason to drop the packet. Its state has checked that its numbers are in the windows.
 */
__noinline u32 pf_stamps_check(u32 place)
{
	struct pf_packet *p;
	struct pf_state *s;
	struct pf_stamps *src, *dst;
	bool checked;
	u64 now;

	if (!on(FEATURE_PF_REASSEMBLE) || !pf_stamps_both(place, &p, &s, &src, &dst))
		return DROP_PF_TIMESTAMP;
	now = bpf_ktime_get_ns();
	checked = dst->of == pf_stamps_of(s);
	if ((src->flags & PF_STAMPS_CHECKED) &&
	    (pf_stamps_idle(src, now) || clock_now() - s->created > PF_STAMPS_LAST))
		pf_stamps_rest(src);
	if (checked && (dst->flags & PF_STAMPS_CHECKED) && pf_stamps_idle(dst, now))
		pf_stamps_rest(dst);
	checked = checked && (src->flags & dst->flags & PF_STAMPS_CHECKED);
	if (checked && p->stamps && p->src_was.state >= PF_ESTABLISHED &&
	    p->dst_was.state >= PF_ESTABLISHED &&
	    (pf_stamp_is_old(p, dst->echo) ||
	     pf_after(p->stamp, src->value + pf_stamps_grow(s, src, now)) ||
	     (p->echo && (pf_after(p->echo, dst->value) || pf_after(dst->first, p->echo)))))
		return DROP_PF_TIMESTAMP;
	/* a host that uses timestamps with its data does so with all of it */
	if (checked && !p->stamps && p->payload && !(p->tcp_flags & TCP_RST) &&
	    (src->flags & PF_STAMPS_DATA))
		return DROP_PF_TIMESTAMP;
	if (p->payload && (src->flags & PF_STAMPS_BEGIN) == PF_STAMPS_ON)
		src->flags |= p->stamps ? PF_STAMPS_DATA : PF_STAMPS_NO_DATA;
	if (p->stamps && (src->flags & (PF_STAMPS_ON | PF_STAMPS_IDLED)) == PF_STAMPS_ON)
		pf_stamps_keep(p, src, now);
	return 0;
}

/* Gives the packet the highest TTL that its side has had, or records a higher one. */
static __always_inline void pf_stamps_ttl(struct __sk_buff *skb, const struct pf_packet *p,
					  struct pf_stamps *src)
{
	u32 at = pf_ttl_at(p) & ~1u;
	u8 is[2] = {};
	u16 was;

	/* the word has the TTL first, or the hop limit last */
	if (bpf_skb_load_bytes(skb, at, is, sizeof(is)))
		return;
	was = *(u16 *)is;
	if (p->family == 4) {
		if (is[0] >= src->ttl) {
			src->ttl = is[0];
			return;
		}
		is[0] = src->ttl;
		pf_patch_ip4(skb, p->l3, offsetof(struct iphdr, ttl), was, *(u16 *)is);
		return;
	}
	if (is[1] >= src->ttl) {
		src->ttl = is[1];
		return;
	}
	is[1] = src->ttl;
	bpf_skb_store_bytes(skb, at, is, sizeof(is), BPF_F_RECOMPUTE_CSUM);
}

/*
 * Applies the rule to this CPU's packet, whose state at a place passes it. Returns 0, or the reason
 * to drop it.
 */
__noinline u32 pf_stamps_take(struct __sk_buff *skb, u32 place)
{
	struct pf_packet *p;
	struct pf_state *s;
	struct pf_stamps *src, *dst;
	u32 flags;
	bool news;

	if (!on(FEATURE_PF_REASSEMBLE) || !pf_stamps_both(place, &p, &s, &src, &dst))
		return DROP_PF_TIMESTAMP;
	news = src->of != pf_stamps_of(s);
	/* it has not been checked whether it is the side's: nothing begins with it */
	if (p->flags & PF_P_LATER) {
		if (!news)
			pf_stamps_ttl(skb, p, src);
		return 0;
	}
	p->stamps = 0;
	flags = dst->of == pf_stamps_of(s) ? dst->flags : 0;
	flags |= news ? p->tcp_flags & TCP_SYN ? PF_STAMPS_ON : 0 : src->flags;
	if (flags & PF_STAMPS_ON)
		pf_stamps_read(skb);
	if (p->stamps > 1)
		return DROP_PF_TIMESTAMP;
	if (news)
		pf_stamps_begin(skb, place);
	else
		pf_stamps_ttl(skb, p, src);
	if (p->stamps)
		pf_stamps_modulate(skb, place);
	return pf_stamps_check(place);
}

/*
 * Updates the state of this CPU's packet, which requires it. Returns 0, or the reason to drop the
 * packet.
 */
__noinline u32 pf_stamps_follow(struct __sk_buff *skb, u32 now)
{
	struct pf_packet *p = pf_packet();
	u32 place, reason = 0;
	bool fits = true;

	if (!on(FEATURE_PF_REASSEMBLE) || !p)
		return DROP_PF;
	place = p->state - 1;
	/* an unfit packet changes none of the kept data; the state should report and count it */
	if (!(p->flags & PF_P_LATER))
		fits = pf_follow_tcp(place, now, PF_FOLLOW_LOOK) != DROP_PF_STATE;
	if (fits)
		reason = pf_stamps_take(skb, place);
	return reason ? reason : pf_state_follow(now, true);
}
