/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * How long states last, where they are put and how they go. There is no lock:
 * who changes a mark by compare-and-swap has the place, and nobody else.
 */
#pragma once

#include "source.h"

/* Which timeout holds, as pf's state machine has set it by the last packet. */
static __always_inline u32 pf_phase(const struct pf_state *s)
{
	u32 a = s->peer[0].state, b = s->peer[1].state;
	u32 low = a < b ? a : b, high = a < b ? b : a;
	bool first = pf_sent_all(s) == 1;

	switch (s->key.proto) {
	case IPPROTO_TCP:
		if (low >= PF_FIN_WAIT_2)
			return PF_TCP_CLOSED;
		if (low >= PF_CLOSING)
			return PF_TCP_FINWAIT;
		if (low < PF_ESTABLISHED)
			return first ? PF_TCP_FIRST : PF_TCP_OPENING;
		return high >= PF_CLOSING ? PF_TCP_CLOSING : PF_TCP_ESTABLISHED;
	case IPPROTO_UDP:
		if (low >= PF_MULTIPLE)
			return PF_UDP_MULTIPLE;
		return first ? PF_UDP_FIRST : PF_UDP_SINGLE;
	case IPPROTO_ICMP:
	case IPPROTO_ICMPV6:
		return first ? PF_ICMP_FIRST : PF_ICMP_ERROR;
	}
	if (low >= PF_MULTIPLE)
		return PF_OTHER_MULTIPLE;
	return first ? PF_OTHER_FIRST : PF_OTHER_SINGLE;
}

/* How many seconds a state lasts without a packet. */
static __always_inline u32 pf_lifetime(const struct pf_state *s)
{
	u32 number = s->key.profile, start, end, states;
	struct pf_profile *profile = bpf_map_lookup_elem(&pf_profiles, &number);
	struct pf_shared *shared = pf_shared_get();
	struct pf_rule_use *use = 0;
	u32 phase = pf_phase(s), time;

	if (!profile || !shared || phase >= PF_TIMEOUTS)
		return 0;
	time = profile->timeout[phase];
	start = profile->timeout[PF_ADAPTIVE_START];
	end = profile->timeout[PF_ADAPTIVE_END];
	/* a rule's own are about the rule's states */
	if (start && s->ruleset == cfg.pf.ruleset &&
	    (start != cfg.pf.adaptive_start || end != cfg.pf.adaptive_end))
		use = pf_rule_use_at(s->flags & PF_STATE_OUT ? s->rule_out : s->rule_in);
	if (use) {
		states = READ_ONCE(use->states);
	} else {
		start = cfg.pf.adaptive_start;
		end = cfg.pf.adaptive_end;
		states = READ_ONCE(shared->states);
	}
	if (!end || states <= start || start >= end)
		return time;
	return states >= end ? 0 : (u64)time * (end - states) / (end - start);
}

/* A function of its own: it is not asked about states that are in use. */
__noinline u32 pf_state_expired(const struct pf_state *s, u32 now)
{
	if (!on(FEATURE_PF) || !s)
		return 1;
	return now - READ_ONCE(s->used) >= pf_lifetime(s);
}

/* Is the state over? Never if it was used this second or the last. */
static __always_inline bool pf_state_over(const struct pf_state *s, u32 now)
{
	return (__s32)(now - READ_ONCE(s->used)) > 1 && pf_state_expired(s, now);
}

/* Does the packet begin a connection anew whose last one has been closed? */
static __always_inline bool pf_reopens(const struct pf_packet *p, const struct pf_state *s)
{
	return p->proto == IPPROTO_TCP && !(p->flags & (PF_P_ERROR | PF_P_LATER)) &&
	       (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
	       s->peer[0].state >= PF_FIN_WAIT_2 && s->peer[1].state >= PF_FIN_WAIT_2;
}

#define PF_KEEPS (PF_KEEP | PF_MODULATE | PF_SYNPROXY)

/* Adds what a state has seen to a rule of its own: `out` is where the rule saw it begin. */
static __always_inline void pf_rule_credit(const struct pf_state *s, u32 rule, u32 out)
{
	u32 number = rule - 1, side = pf_initiator(s);
	struct pf_rule_stats *stats;

	if (!rule)
		return;
	stats = bpf_map_lookup_elem(&pf_rule_stats, &number);
	if (!stats)
		return;
	__sync_fetch_and_add(&stats->packets[out], pf_sent(s, side));
	__sync_fetch_and_add(&stats->bytes[out], s->bytes[side]);
	__sync_fetch_and_add(&stats->packets[!out], pf_sent(s, !side));
	__sync_fetch_and_add(&stats->bytes[!out], s->bytes[!side]);
}

/* A rule that keeps states has one more; false if it may not. */
static __always_inline bool pf_rule_enter(u32 rule)
{
	struct pf_rule *r = pf_rule_at(rule);
	struct pf_rule_use *use = pf_rule_use_at(rule);

	if (!r || !use || !(r->flags & PF_KEEPS))
		return true;
	if (__sync_fetch_and_add(&use->states, 1) < r->max || !r->max)
		return true;
	__sync_fetch_and_sub(&use->states, 1);
	return false;
}

static __always_inline void pf_rule_leave(u32 rule)
{
	struct pf_rule *r = pf_rule_at(rule);
	struct pf_rule_use *use = pf_rule_use_at(rule);

	if (r && use && (r->flags & PF_KEEPS))
		__sync_fetch_and_sub(&use->states, 1);
}

/* The rule that a state counts for beside rule_in: one alone may be both. */
static __always_inline u32 pf_other_rule(const struct pf_state *s)
{
	return s->rule_out != s->rule_in ? s->rule_out : 0;
}

static __always_inline u32 *pf_mark_at(u32 place)
{
	u32 home = place / PF_WAYS;
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);

	return b ? &b->mark[place % PF_WAYS] : 0;
}

/* Takes a state out; pf_state_drop() says what. A function of its own because of the stack. */
__noinline u32 pf_take_out(u32 place, u32 mark, u32 next)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_shared *shared = pf_shared_get();
	u32 *at = pf_mark_at(place);

	if (!on(FEATURE_PF) || !s || !at || !shared || !(mark & PF_MARK_STATE))
		return 0;
	if (__sync_val_compare_and_swap(at, mark, next) != mark)
		return 0;
	if (s->ruleset == cfg.pf.ruleset) {
		pf_rule_credit(s, s->rule_in, 0);
		pf_rule_credit(s, s->rule_out, 1);
		pf_rule_leave(s->rule_in);
		pf_rule_leave(pf_other_rule(s));
	}
	__sync_fetch_and_sub(&shared->states, 1);
	pf_count_safely(PF_COUNT_REMOVALS, 1);
	pf_count_safely(PF_COUNT_SEARCHES, pf_sent_all(s));
	return 1;
}

/*
 * Removes the state at a place that has the mark, for another mark: true to who
 * has done it. Its counts go with it.
 */
static __always_inline bool pf_state_drop(u32 place, u32 mark, u32 next, u32 now)
{
	if (!pf_take_out(place, mark, next))
		return false;
	if (on(FEATURE_PF_SOURCES))
		pf_source_leave(place, now);
	return true;
}

static __always_inline u32 pf_mark_gone(u32 now)
{
	return PF_MARK_GONE | (now & PF_MARK_SECOND);
}

/* Removes the state that is at a place now, whatever its mark is. */
static __always_inline u32 pf_state_remove(u32 place, u32 now)
{
	u32 *at = pf_mark_at(place);

	return at ? pf_state_drop(place, READ_ONCE(*at), pf_mark_gone(now), now) : 0;
}

#define PF_REST 2 /* seconds after which nobody looks at what has gone */

static __always_inline bool pf_mark_free(u32 mark, u32 now)
{
	if (!mark)
		return true;
	return (mark & (PF_MARK_STATE | PF_MARK_GONE)) == PF_MARK_GONE &&
	       ((now - mark) & PF_MARK_SECOND) >= PF_REST;
}

/*
 * How many places of a bucket are free. Functions of their own, here and below: the
 * verifier would follow each bucket's ways with each of the other's.
 */
__noinline u32 pf_room(u32 home, u32 now)
{
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);
	u32 room = 0;

	if (!on(FEATURE_PF) || !b)
		return 0;
#pragma unroll
	for (u32 i = 0; i < PF_WAYS; i++) {
		u32 is = pf_mark_free(READ_ONCE(b->mark[i]), now);

		asm volatile("" : "+r"(is));
		room += is;
	}
	return room;
}

/* Claims a place if it is free. */
__noinline u32 pf_claim_place(u32 place, u32 now)
{
	u32 *at = pf_mark_at(place), mark;

	if (!on(FEATURE_PF) || !at)
		return false;
	mark = READ_ONCE(*at);
	return pf_mark_free(mark, now) &&
	       __sync_val_compare_and_swap(at, mark, PF_MARK_CLAIMED) == mark;
}

/* Claims a free place of a bucket; + 1, or 0. */
__noinline u32 pf_claim_free(u32 home, u32 now)
{
	if (!on(FEATURE_PF))
		return 0;
	for (u32 i = 0; i < PF_WAYS; i++)
		if (pf_claim_place(home * PF_WAYS + i, now))
			return home * PF_WAYS + i + 1;
	return 0;
}

/* The place of a state in the bucket that is over; + 1, or 0. */
__noinline u32 pf_find_over(u32 home, u32 now)
{
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);

	if (!on(FEATURE_PF) || !b)
		return 0;
	for (u32 i = 0; i < PF_WAYS; i++) {
		u32 place = home * PF_WAYS + i;
		struct pf_state *s = READ_ONCE(b->mark[i]) & PF_MARK_STATE ? pf_state_at(place) : 0;

		if (s && pf_state_over(s, now))
			return place + 1;
	}
	return 0;
}

/* Claims a free place for a key, in the bucket with more room; + 1, or 0 if there is none. */
static __always_inline u32 pf_claim_room(const struct pf_key *key, u32 now)
{
	u64 hash = pf_hash(key);
	u32 first = pf_home(hash, false), second = pf_home(hash, true), place;

	if (pf_room(second, now) > pf_room(first, now)) {
		place = first;
		first = second;
		second = place;
	}
	place = pf_claim_free(first, now);
	return place ? place : pf_claim_free(second, now);
}

/* Claims the place of a state that is over, in one of a key's buckets; + 1, or 0. */
static __always_inline u32 pf_claim_over(const struct pf_key *key, bool second, u32 now)
{
	u32 place = pf_find_over(pf_home(pf_hash(key), second), now);
	u32 *mark = place ? pf_mark_at(place - 1) : 0;

	if (!mark || !pf_state_drop(place - 1, READ_ONCE(*mark), PF_MARK_CLAIMED, now))
		return 0;
	return place;
}

/* Claims a place for a key, if need be that of a state which is over; + 1, or 0. */
static __always_inline u32 pf_claim(const struct pf_key *key, u32 now)
{
	u32 place = pf_claim_room(key, now);

	if (!place)
		place = pf_claim_over(key, false, now);
	return place ? place : pf_claim_over(key, true, now);
}

/* The hash of a state's key: as that of its packets', which have no profile. */
static __always_inline u64 pf_state_hash(const struct pf_state *s)
{
	return pf_hash(&s->key) - ((u64)s->key.profile << 56) * cfg.pf.secret[4];
}

/* Have the states at two places one key? */
__noinline u32 pf_same_key(u32 a, u32 b)
{
	struct pf_state *s = pf_state_at(a), *other = pf_state_at(b);

	return on(FEATURE_PF) && s && other && pf_key_is(&other->key, &s->key);
}

/* Another state with the key of the one at `place`, in one of its buckets; + 1, or 0. */
__noinline u32 pf_twin(u32 place, u32 second)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_bucket *b;
	u32 home, mark;
	u64 hash;

	if (!on(FEATURE_PF) || !s)
		return 0;
	hash = pf_state_hash(s);
	home = pf_home(hash, second);
	mark = pf_mark(hash);
	b = bpf_map_lookup_elem(&pf_buckets, &home);
	for (u32 i = 0; b && i < PF_WAYS; i++) {
		u32 at = home * PF_WAYS + i;

		if (at == place || READ_ONCE(b->mark[i]) != mark)
			continue;
		if (pf_same_key(place, at))
			return at + 1;
	}
	return 0;
}

#define PF_TWINS                                                                                   \
	4 /* that are looked for: as many as CPUs may make at one moment, nearly always            \
	   */

/*
 * Lets all see the state at a place that has been claimed for it. Of states with
 * one key, which CPUs have made at the same moment, only that in the lowest place
 * stays; false if it is not this one.
 */
static __always_inline bool pf_publish(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	u32 *at = pf_mark_at(place), mark;

	if (!s || !at)
		return false;
	mark = pf_mark(pf_state_hash(s));
	/* a full barrier: of two CPUs, one at least sees the other's */
	__sync_val_compare_and_swap(at, PF_MARK_CLAIMED, mark);
	for (u32 n = 0; n < PF_TWINS; n++) {
		u32 twin = pf_twin(place, n & 1);

		if (!twin)
			continue;
		if (twin - 1 < place) {
			pf_state_drop(place, mark, pf_mark_gone(now), now);
			return false;
		}
		pf_state_drop(twin - 1, mark, pf_mark_gone(now), now);
	}
	return true;
}
