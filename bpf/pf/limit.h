/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The states that limiters count. When a state is made, its limiters are checked once more, since
 * other CPUs make states meanwhile. A state counts for its profile's limiters from its beginning to
 * its end, whatever rules exist by then.
 */
#pragma once

#include "source.h"

/* Which limiter of a state's profile. */
enum pf_limit_which {
	PF_LIMIT_STATES,
	PF_LIMIT_SOURCES,
	PF_LIMITS,
};

/*
 * Makes the key of the record that counts the state at a place, by enum pf_limit_which. Returns 0
 * if there is none, or 1 and the seconds for which the record stays without a state.
 */
__noinline u32 pf_limit_key(struct pf_source_key *key, u32 place, u32 which)
{
	u32 sources = which & PF_LIMIT_SOURCES, number;
	struct pf_state *s = pf_state_at(place);
	struct pf_profile *profile;

	if (!on(FEATURE_PF_LIMITERS) || !key || !s)
		return 0;
	number = s->key.profile;
	profile = bpf_map_lookup_elem(&pf_profiles, &number);
	if (!profile)
		return 0;
	if (!profile->limiter[sources])
		return 0;
	if (!sources) {
		pf_limiter_key(key, profile->limiter[0], false);
		return 1;
	}
	pf_source_address(key->address, s);
	pf_limited_key(key, profile, key->address, s->key.vlan);
	return profile->keeps + 1;
}

#define PF_LIMITED_FRESH 2 /* seconds that a source stays while its first state is made */

/* Takes a token, if there is one. */
static __always_inline bool pf_limited_spend(struct pf_limited *n, u64 token, u64 bucket)
{
	u64 now = bpf_ktime_get_ns();

	for (u32 tries = 0; tries < PF_SOURCE_TRIES; tries++) {
		u64 had = READ_ONCE(n->spent), from = had;

		if ((__s64)(now - had) > (__s64)bucket)
			from = now - bucket;
		if ((__s64)(now - from) < (__s64)token)
			return false;
		if (__sync_val_compare_and_swap(&n->spent, had, from + token) == had)
			return true;
	}
	return false;
}

/*
 * Makes the missing record that counts a state. Returns 0, or the counter for the reason of a
 * failure.
 */
__noinline u32 pf_limit_make(u32 place, u32 which, u32 entries)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_walk *w = pf_walk();
	struct pf_source_key key = {};
	struct pf_limited *all;

	if (!on(FEATURE_PF_LIMITERS) || !s || !w || !pf_limit_key(&key, place, which))
		return PF_COUNT_MEMORY;
	/* until its first state is counted, a source is like one whose states have gone */
	w->fresh.expires = s->created + PF_LIMITED_FRESH;
	if (which & PF_LIMIT_SOURCES) {
		pf_limiter_key(&key, key.rule, true);
		all = pf_limited_find(&key);
		if (!all) {
			bpf_map_update_elem(&pf_sources, &key, &w->fresh, BPF_NOEXIST);
			all = pf_limited_find(&key);
		}
		if (!all)
			return PF_COUNT_MEMORY;
		if (__sync_fetch_and_add(&all->sources, 1) >= entries) {
			__sync_fetch_and_sub(&all->sources, 1);
			__sync_fetch_and_add(&all->full, 1);
			return PF_COUNT_SRC_LIMIT;
		}
		pf_limit_key(&key, place, which);
		if (bpf_map_update_elem(&pf_sources, &key, &w->fresh, BPF_NOEXIST))
			__sync_fetch_and_sub(&all->sources, 1);
		return 0;
	}
	bpf_map_update_elem(&pf_sources, &key, &w->fresh, BPF_NOEXIST);
	return 0;
}

/* In pf_limited.sources: the limiter has put the source into the table, where it was not before. */
#define PF_LIMITED_LISTED (1u << 31)

/* Puts the source of a state into the limiter's table, by its number + 1. */
static __always_inline void pf_limited_list(struct pf_limited *n, u32 place, u32 table)
{
	u32 had = READ_ONCE(n->sources);

	if (!on(FEATURE_PF_TABLES) || on(FEATURE_PF_SLEEPS) ||
	    (had & ~PF_LIMITED_LISTED) == table ||
	    __sync_val_compare_and_swap(&n->sources, had, table) != had ||
	    pf_overload(place, table - 1) <= 0)
		return;
	/* its states have gone meanwhile, on another CPU */
	if (__sync_val_compare_and_swap(&n->sources, table, table | PF_LIMITED_LISTED) != table)
		pf_unload(place, table - 1);
}

/*
 * Removes the source of a state from the limiter's table, if it has few enough states now. An entry
 * that the limiter has not made stays.
 */
static __always_inline void pf_limited_unlist(struct pf_limited *n, u32 place, u32 id, u32 states)
{
	u32 at = on(FEATURE_PF_TABLES) ? pf_limiter_at(id, true) : 0;
	u32 word = at ? pf_word(at + 3) >> 32 : 0, had = READ_ONCE(n->sources);
	u32 table = word & ((1 << PF_LIMITER_BELOW) - 1);

	if (states < word >> PF_LIMITER_BELOW && (had & ~PF_LIMITED_LISTED) == table &&
	    __sync_val_compare_and_swap(&n->sources, had, 0) == had && (had & PF_LIMITED_LISTED))
		pf_unload(place, table - 1);
}

/*
 * Counts a new state for one of its limiters. Returns 0, or the counter for the reason of a
 * refusal.
 */
__noinline u32 pf_limit_enter(u32 place, u32 which)
{
	struct pf_source_key key = {};
	u32 at, states, why;
	struct pf_limited *n;
	u64 more;

	if (!on(FEATURE_PF_LIMITERS) || !pf_limit_key(&key, place, which))
		return 0;
	at = pf_limiter_at(key.rule, which & PF_LIMIT_SOURCES);
	if (!at)
		return PF_COUNT_MEMORY;
	n = pf_limited_find(&key);
	if (!n) {
		why = pf_limit_make(place, which, pf_word(at) >> 32);
		if (why)
			return why;
		n = pf_limited_find(&key);
	}
	if (!n)
		return PF_COUNT_MEMORY;
	states = __sync_fetch_and_add(&n->states, 1);
	why = PF_LIMITED_HARD;
	if (states >= (u32)pf_word(at)) /* also if it is being removed at this moment */
		goto refused;
	why = PF_LIMITED_RATE;
	more = pf_word(at + 1);
	if (more && !pf_limited_spend(n, more, pf_word(at + 2)))
		goto refused;
	__sync_fetch_and_add(&n->admitted, 1);
	if (!(which & PF_LIMIT_SOURCES))
		return 0;
	more = pf_word(at + 3);
	if (states && more >> 32 && states >= (u32)more)
		pf_limited_list(n, place, more >> 32 & ((1 << PF_LIMITER_BELOW) - 1));
	pf_limiter_key(&key, key.rule, true);
	n = pf_limited_find(&key);
	if (n) {
		__sync_fetch_and_add(&n->states, 1);
		__sync_fetch_and_add(&n->admitted, 1);
	}
	return 0;
refused:
	__sync_fetch_and_sub(&n->states, 1);
	pf_limited_count(n, why);
	if (!(which & PF_LIMIT_SOURCES))
		return PF_COUNT_STATE_LIMIT;
	pf_limiter_refuses(&key, key.rule, why);
	return PF_COUNT_SRC_LIMIT;
}

/* Subtracts a state from one of the limiters that count it. */
__noinline u32 pf_limit_leave(u32 place, u32 which, u32 now)
{
	struct pf_source_key key = {};
	struct pf_limited *n;
	u32 keeps, states;

	if (!on(FEATURE_PF_LIMITERS))
		return 0;
	keeps = pf_limit_key(&key, place, which);
	n = keeps ? pf_limited_find(&key) : 0;
	if (!n)
		return 0;
	WRITE_ONCE(n->expires, now + keeps - 1);
	states = __sync_fetch_and_sub(&n->states, 1) - 1;
	if (!(which & PF_LIMIT_SOURCES))
		return 0;
	pf_limited_unlist(n, place, key.rule, states);
	pf_limiter_key(&key, key.rule, true);
	n = pf_limited_find(&key);
	if (n)
		__sync_fetch_and_sub(&n->states, 1);
	return 0;
}

/* Subtracts a state from the first `many` of the limiters that count it. */
__noinline u32 pf_limits_leave(u32 place, u32 many, u32 now)
{
	if (!on(FEATURE_PF_LIMITERS))
		return 0;
#pragma clang loop unroll(disable)
	for (u32 which = 0; which < PF_LIMITS; which++)
		if (which < many)
			pf_limit_leave(place, which, now);
	return 0;
}

/* Do both rules of a state have limiters, and different ones? */
static __always_inline bool pf_limits_differ(const struct pf_state *s)
{
	struct pf_rule *in = pf_rule_at(s->rule_in), *out = pf_rule_at(s->rule_out);
	struct pf_profile *a, *b;
	u32 number;

	if (!in || !out || !(in->flags & out->flags & PF_LIMITED) || in->profile == out->profile)
		return false;
	number = in->profile;
	a = bpf_map_lookup_elem(&pf_profiles, &number);
	number = out->profile;
	b = bpf_map_lookup_elem(&pf_profiles, &number);
	return !a || !b || a->limiter[0] != b->limiter[0] || a->limiter[1] != b->limiter[1];
}

/*
 * Counts a new state for its limiters. Returns 0, or the counter for the reason of a refusal. A
 * state has no room for the limiters of two rules.
 */
__noinline u32 pf_limits_enter(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	u32 which, why = 0;

	if (!on(FEATURE_PF_LIMITERS) || !s || pf_limits_differ(s))
		return PF_COUNT_STATE_LIMIT;
#pragma clang loop unroll(disable)
	for (which = 0; which < PF_LIMITS; which++) {
		why = pf_limit_enter(place, which);
		if (why)
			break;
	}
	if (why)
		pf_limits_leave(place, which, now);
	return why;
}

/* A source limiter, by its id, has one source less. */
__noinline u32 pf_limiter_forgets(u32 id)
{
	struct pf_source_key key;
	struct pf_limited *n;

	if (!on(FEATURE_PF_LIMITERS))
		return 0;
	pf_limiter_key(&key, id, true);
	n = pf_limited_find(&key);
	if (n)
		__sync_fetch_and_sub(&n->sources, 1);
	return 0;
}

/* Does the sweep leave it alone? A limiter itself stays, with its counters. */
static __always_inline bool pf_limiter_stays(const struct pf_source_key *key)
{
	return key->kind == PF_SOURCE_STATE_LIMITER || key->kind == PF_SOURCE_SOURCE_LIMITER;
}
