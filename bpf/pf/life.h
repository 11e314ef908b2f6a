/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The lifetime of states, their places, and their removal. There is no lock. A CPU that changes a
 * mark by compare-and-swap owns the place, and no other CPU has it.
 */
#pragma once

#include "limit.h"

/* The timeout of a state: the one that pf's state machine sets with the last packet. */
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

/* The lifetime of a state without a packet, in seconds. */
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
	/* a rule's own adaptive timeouts depend on the rule's number of states */
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

/*
 * Has the state's lifetime passed without a packet? This is a separate function, because it is not
 * called for states that are in use.
 */
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

/* Does the packet begin a connection anew, after the one before was closed? */
static __always_inline bool pf_reopens(const struct pf_packet *p, const struct pf_state *s)
{
	return p->proto == IPPROTO_TCP && !(p->flags & (PF_P_ERROR | PF_P_LATER)) &&
	       (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN &&
	       s->peer[0].state >= PF_FIN_WAIT_2 && s->peer[1].state >= PF_FIN_WAIT_2;
}

#define PF_KEEPS (PF_KEEP | PF_MODULATE | PF_SYNPROXY)

/*
 * The direction of a connection's first packet as rules see it, at the port where it entered the
 * switch (0) or left it (1). See pf_call().
 */
static __always_inline u32 pf_began(const struct pf_state *s, u32 direction)
{
	if (on(FEATURE_PF_HOST) && (s->key.vlan & PF_ROUTED))
		return !!(s->key.vlan & PF_OUTWARD) != pf_initiator(s);
	return direction;
}

/*
 * Adds a state's counts to one of its rules. `out` is set if that rule saw the connection begin on
 * the way out.
 */
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
	__sync_fetch_and_add(&stats->bytes[out], pf_sent_bytes(s, side));
	__sync_fetch_and_add(&stats->packets[!out], pf_sent(s, !side));
	__sync_fetch_and_add(&stats->bytes[!out], pf_sent_bytes(s, !side));
}

/* Counts one more state of a rule that keeps states. Returns false if the rule may not have it. */
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

/* The rule that a state counts for in addition to rule_in. Returns 0 if one rule is both. */
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

/* Claims the second key of a state that leaves the table. */
static __always_inline void pf_take_key(u32 place, const struct pf_state *s)
{
	u32 key = PF_STATE_OTHER(s) - 1, *at = pf_mark_at(key), mark;
	struct pf_state *k = pf_state_at(key);

	if (!k || !at || !(k->flags & PF_STATE_KEY) || PF_STATE_OTHER(k) != place + 1)
		return;
	mark = READ_ONCE(*at);
	if (!pf_mark_is_gone(mark))
		__sync_val_compare_and_swap(at, mark,
					    PF_MARK_GONE | (clock_now() & PF_MARK_SECOND));
}

/* Takes a state out for pf_state_end(). This is a separate function, to save room on the stack. */
__noinline u32 pf_take_out(u32 place, u32 mark, u32 next)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_shared *shared = pf_shared_get();
	u32 *at = pf_mark_at(place);

	if (!on(FEATURE_PF) || !s || !at || !shared)
		return 0;
	/* the second key of a state goes with the state */
	if (on(FEATURE_PF_NAT) && (s->flags & PF_STATE_KEY))
		return 0;
	if (__sync_val_compare_and_swap(at, mark, next) != mark)
		return 0;
	if (on(FEATURE_PF_NAT) && (s->flags & PF_STATE_TWO))
		pf_take_key(place, s);
	if (s->ruleset == cfg.pf.ruleset) {
		pf_rule_credit(s, s->rule_in, pf_began(s, 0));
		pf_rule_credit(s, s->rule_out, pf_began(s, 1));
		pf_rule_leave(s->rule_in);
		pf_rule_leave(pf_other_rule(s));
	}
	__sync_fetch_and_sub(&shared->states, 1);
	pf_count_safely(PF_COUNT_REMOVALS, 1);
	pf_count_safely(PF_COUNT_SEARCHES, pf_sent_all(s));
	return 1;
}

/*
 * Ends the life of the entry at a place, if it has the mark, and leaves the mark `next` there.
 * Returns true for the one CPU that has done it. The counts for the state are taken back.
 */
static __always_inline bool pf_state_end(u32 place, u32 mark, u32 next, u32 now)
{
	if (!pf_take_out(place, mark, next))
		return false;
	if (on(FEATURE_PF_SOURCES)) {
		pf_source_leave(place, false, now);
		/* no other entry owns the place of the second key yet */
		if (on(FEATURE_PF_NAT))
			pf_second_leave(place, now);
	}
	if (on(FEATURE_PF_LIMITERS))
		pf_limits_leave(place, PF_LIMITS, now);
	return true;
}

/* The same for a state that all CPUs see. */
static __always_inline bool pf_state_drop(u32 place, u32 mark, u32 next, u32 now)
{
	return (mark & PF_MARK_STATE) && pf_state_end(place, mark, next, now);
}

static __always_inline u32 pf_mark_gone(u32 now)
{
	return PF_MARK_GONE | (now & PF_MARK_SECOND);
}

/* Removes the state that is currently at a place, whatever its mark is. */
static __always_inline u32 pf_state_remove(u32 place, u32 now)
{
	u32 *at = pf_mark_at(place);

	return at ? pf_state_drop(place, READ_ONCE(*at), pf_mark_gone(now), now) : 0;
}

#define PF_REST 2 /* seconds after which no CPU looks at a removed state */

/*
 * Is the place of a mark free: has it had no state, or one that went long enough ago? This has no
 * branches: the verifier would follow each of them at each place of a bucket.
 */
static __always_inline bool pf_mark_free(u32 mark, u32 now)
{
	u32 none = ((u64)mark - 1) >> 63, rests = (now - mark) & PF_MARK_SECOND;
	u32 gone = mark / PF_MARK_GONE & ~(mark / PF_MARK_STATE);

	return none | (gone & (rests + PF_MARK_GONE - PF_REST) / PF_MARK_GONE);
}

/*
 * The number of free places of a bucket. This and the next are separate functions: else the
 * verifier would follow each way through one bucket with each way through the other.
 */
OFTEN __noinline u32 pf_room(u32 home, u32 now)
{
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);
	u32 room = 0;

	if (!on(FEATURE_PF) || !b)
		return 0;
#pragma unroll
	for (u32 i = 0; i < PF_WAYS; i++)
		room += pf_mark_free(READ_ONCE(b->mark[i]), now);
	return room;
}

#define PF_HALF (PF_WAYS / 2)

/*
 * Claims a place if it is free. Returns that place + 1, or 0. This is a separate function: else the
 * verifier would follow it for each place of a bucket.
 */
OFTEN __noinline u32 pf_claim_at(u32 place, u32 now)
{
	u32 *at = pf_mark_at(place), mark;

	if (!on(FEATURE_PF) || !at)
		return 0;
	mark = READ_ONCE(*at);
	if (!pf_mark_free(mark, now) ||
	    __sync_val_compare_and_swap(at, mark, PF_MARK_CLAIMED) != mark)
		return 0;
	return place + 1;
}

/* Claims a free place of half a bucket, which begins at a place. Returns that place + 1, or 0. */
OFTEN __noinline u32 pf_claim_half(u32 from, u32 now)
{
	u32 home = from / PF_WAYS, place;
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);

	if (!on(FEATURE_PF) || !b)
		return 0;
#pragma clang loop unroll(disable)
	for (u32 i = 0; i < PF_HALF; i++) {
		if (READ_ONCE(b->mark[(from & PF_HALF) + i]) & PF_MARK_STATE)
			continue;
		place = pf_claim_at(from + i, now);
		if (place)
			return place;
	}
	return 0;
}

/* Claims a free place of a bucket. Returns the place + 1, or 0. */
static __always_inline u32 pf_claim_free(u32 home, u32 now)
{
	u32 place = pf_claim_half(home * PF_WAYS, now);

	return place ? place : pf_claim_half(home * PF_WAYS + PF_HALF, now);
}

/* A search in a bucket. */
struct pf_bucket_search {
	u32 home;
	u32 now;
	u32 found; /* place + 1 */
};

/*
 * Is there a state at a place of the bucket that is over? A second key does not count on its own.
 */
static long pf_over_step(u32 i, struct pf_bucket_search *search)
{
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &search->home);
	u32 place = search->home * PF_WAYS + i;
	struct pf_state *s;

	if (!b)
		return 1;
	if (!(READ_ONCE(b->mark[i & (PF_WAYS - 1)]) & PF_MARK_STATE))
		return 0;
	s = pf_state_at(place);
	if (!s || (on(FEATURE_PF_NAT) && (s->flags & PF_STATE_KEY)) ||
	    !pf_state_over(s, search->now))
		return 0;
	search->found = place + 1;
	return 1;
}

/* Finds a state of the bucket that is over. Returns its place + 1, or 0. */
__noinline u32 pf_find_over(u32 home, u32 now)
{
	struct pf_bucket_search s = {.home = home, .now = now};

	if (on(FEATURE_PF))
		bpf_loop(PF_WAYS, pf_over_step, &s, 0);
	return s.found;
}

/*
 * Claims a free place for a key. Returns the place + 1, or 0. The place is in the first bucket
 * while its first half has a free one, or else in the bucket with more room. A table that is nine
 * tenths full has as much room this way as if every key went to the bucket with more room.
 */
static __always_inline u32 pf_claim_room(const struct pf_key *key, u32 now)
{
	u64 hash = pf_hash(key);
	u32 first = pf_home(hash, false), second = pf_home(hash, true), place;

	place = pf_claim_half(first * PF_WAYS, now);
	if (place)
		return place;
	if (pf_room(second, now) > pf_room(first, now)) {
		place = first;
		first = second;
		second = place;
	}
	place = pf_claim_free(first, now);
	return place ? place : pf_claim_free(second, now);
}

/*
 * Claims the place of a state that is over, in one of a key's buckets. Returns the place + 1, or 0.
 */
static __always_inline u32 pf_claim_over(const struct pf_key *key, bool second, u32 now)
{
	u32 place = pf_find_over(pf_home(pf_hash(key), second), now);
	u32 *mark = place ? pf_mark_at(place - 1) : 0;

	if (!mark || !pf_state_drop(place - 1, READ_ONCE(*mark), PF_MARK_CLAIMED, now))
		return 0;
	return place;
}

/* Claims a place for a key, if necessary from a state that is over. Returns the place + 1, or 0. */
static __always_inline u32 pf_claim(const struct pf_key *key, u32 now)
{
	u32 place = pf_claim_room(key, now);

	if (!place)
		place = pf_claim_over(key, false, now);
	return place ? place : pf_claim_over(key, true, now);
}

/* A search for places of former states with the key of this CPU's packet. */
struct pf_again_search {
	u32 home[2];
	u32 from;
	u32 now;
	u32 found; /* place + 1 */
};

/* Claims a place if such a state has gone from it. Returns the place + 1, or 0. */
__noinline u32 pf_claim_gone(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_packet *p = pf_packet();
	u32 *at = pf_mark_at(place), mark;

	if (!on(FEATURE_PF) || !s || !p || !at)
		return 0;
	mark = READ_ONCE(*at);
	if (!pf_mark_is_gone(mark) || !pf_key_is(&s->key, &p->key))
		return 0;
	if (on(FEATURE_PF_REASSEMBLE) && s->created == now) /* see reassemble.h */
		return 0;
	return __sync_val_compare_and_swap(at, mark, PF_MARK_CLAIMED) == mark ? place + 1 : 0;
}

static long pf_again_step(u32 i, struct pf_again_search *search)
{
	u32 n = search->from + i, home = n & PF_WAYS ? search->home[1] : search->home[0];

	search->found = pf_claim_gone(home * PF_WAYS + n % PF_WAYS, search->now);
	return !!search->found;
}

/*
 * Claims a resting place whose state had the packet's key. Returns the place + 1, or 0. So a port
 * may begin connections as fast as it ends them, even if all places of its key rest. A CPU that
 * still looks at such a place has a packet of the same connection. A flow would mistake the new
 * state for its own, but a flow is valid only for a moment (struct pf_flow): so the places take
 * turns, and the next one is the place that has been empty for longest. It is behind the place that
 * was emptied last.
 */
static __always_inline u32 pf_claim_again(const struct pf_packet *p, u32 now)
{
	u64 hash = pf_hash(&p->key);
	struct pf_again_search s = {.home = {pf_home(hash, false), pf_home(hash, true)},
				    .now = now};
	u32 last = (p->before - 1) / PF_WAYS;

	/* this is unknown for a second key */
	s.from = bpf_ktime_get_ns() >> 17;
	if (p->before && last == s.home[0])
		s.from = (p->before - 1) % PF_WAYS + 1;
	else if (p->before && last == s.home[1])
		s.from = (p->before - 1) % PF_WAYS + 1 + PF_WAYS;
	bpf_loop(2 * PF_WAYS, pf_again_step, &s, 0);
	return s.found;
}

/*
 * The hash of a state's key, without the profile: packets, which have no profile, have the same
 * hash.
 */
static __always_inline u64 pf_state_hash(const struct pf_state *s)
{
	return pf_hash(&s->key) - ((u64)s->key.profile << 56) * cfg.pf.secret[4];
}

/*
 * Do the states at two places have the same key, and does the other one have one of these flags, if
 * any are given? A state does not match itself.
 */
OFTEN __noinline u32 pf_same_key(u32 a, u32 b, u32 flags)
{
	struct pf_state *s = pf_state_at(a), *other = pf_state_at(b);

	return on(FEATURE_PF) && s && other && a != b && pf_key_is(&other->key, &s->key) &&
	       (!flags || (other->flags & flags));
}

/*
 * Finds another state with the key of the one at `place`, in one of the key's buckets and by the
 * key's mark, whether all CPUs see it or its CPU is still unsure. Returns its place + 1, or 0. It
 * has one of these flags, if any are given.
 */
OFTEN __noinline u32 pf_twin(u32 place, u32 home, u32 mark, u32 flags)
{
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &home);
	u32 unsure = pf_mark_unsure(mark);

	if (!on(FEATURE_PF) || !b)
		return 0;
	/* unrolled, and the mark first: a new connection looks at every place */
#pragma unroll
	for (u32 i = 0; i < PF_WAYS; i++) {
		u32 has = READ_ONCE(b->mark[i]);

		/* 0 if it is one of them: the verifier follows each branch at each place */
		if (!((u64)(has ^ mark) * (has ^ unsure)) &&
		    pf_same_key(place, home * PF_WAYS + i, flags))
			return home * PF_WAYS + i + 1;
	}
	return 0;
}

/* Twins to look for: CPUs hardly ever make more at one moment. */
#define PF_TWINS 4

/*
 * Publishes to all CPUs the state at a place that was claimed for it, by its key. Returns false if
 * another state has the key, or is about to have it. CPUs may make states with one key at the same
 * moment, and then all of them must send their packets. So each first marks its state as unsure,
 * and looks for the others. It gives way to a published state, and to one in a lower place. It
 * takes the turn of one in a higher place, if that CPU has not become sure meanwhile. Each becomes
 * sure by one exchange, which fails if its turn has been taken: at most one of all states with a
 * key is ever published.
 */
OFTEN __noinline u32 pf_show(u32 place)
{
	struct pf_state *s = pf_state_at(place);
	u32 *at = pf_mark_at(place), mark, unsure;
	bool found = false, lost;
	u64 hash;

	if (!on(FEATURE_PF) || !s || !at)
		return false;
	hash = pf_state_hash(s);
	mark = pf_mark(hash);
	unsure = pf_mark_unsure(mark);
	/* a full barrier: at least one of two CPUs sees the other's state */
	lost = __sync_val_compare_and_swap(at, PF_MARK_CLAIMED, unsure) != PF_MARK_CLAIMED;
	for (u32 n = 0; n < PF_TWINS && !lost; n++) {
		u32 twin = pf_twin(place, pf_home(hash, n & 1), mark, 0), *other;

		/* a CPU that comes later sees this state: there is no need to look again */
		if (n == 1 && !twin && !found)
			break;
		if (!twin)
			continue;
		found = true;
		other = pf_mark_at(twin - 1);
		lost = twin - 1 < place || !other ||
		       __sync_val_compare_and_swap(other, unsure, PF_MARK_CLAIMED) == mark;
	}
	if (!lost && __sync_val_compare_and_swap(at, unsure, mark) == unsure)
		return true;
	__sync_val_compare_and_swap(at, unsure, PF_MARK_CLAIMED);
	return false;
}

/*
 * Is there a translated connection that has the key of the state at a place, which could not be
 * published, or is about to have it?
 */
__noinline u32 pf_key_translated(u32 place)
{
	u32 flags = PF_STATE_NAT | PF_STATE_KEY, mark;
	struct pf_state *s = pf_state_at(place);
	u64 hash;

	if (!on(FEATURE_PF_NAT) || !s)
		return false;
	hash = pf_state_hash(s);
	mark = pf_mark(hash);
	return pf_twin(place, pf_home(hash, false), mark, flags) ||
	       pf_twin(place, pf_home(hash, true), mark, flags);
}

/*
 * Publishes the state at a place that was claimed for it, like pf_show(). If another has its key,
 * the state ends unseen, and the result is false.
 */
static __always_inline bool pf_publish(u32 place, u32 now)
{
	if (pf_show(place))
		return true;
	pf_state_end(place, PF_MARK_CLAIMED, pf_mark_gone(now), now);
	return false;
}

/*
 * The same for the second key of a state that is already published. If another has that key, the
 * state is removed, and the result is false.
 */
__noinline u32 pf_publish_key(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);

	if (!on(FEATURE_PF_NAT) || !s)
		return false;
	if (pf_show(PF_STATE_OTHER(s) - 1))
		return true;
	pf_state_remove(place, now);
	return false;
}
