/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * State limiters and source limiters (pf.conf(5) of OpenBSD 7.9) limit how many states the rules
 * with a limiter may make together, and how fast. A rule whose limiter is exhausted matches
 * nothing, or blocks. This file checks the limiters while rules are tried. limit.h counts the
 * states.
 */
#pragma once

#include "words.h"

_Static_assert(sizeof(struct pf_limited) == sizeof(struct pf_source) &&
		       offsetof(struct pf_limited, states) == offsetof(struct pf_source, states) &&
		       offsetof(struct pf_limited, sources) ==
			       offsetof(struct pf_source, connections) &&
		       offsetof(struct pf_limited, expires) == offsetof(struct pf_source, expires),
	       "a limiter is where a source would be");

/* Puts the type into BTF for Go. */
const struct pf_limited *pf_limited_type __attribute__((unused));

static __always_inline struct pf_limited *pf_limited_find(const struct pf_source_key *key)
{
	return bpf_map_lookup_elem(&pf_sources, key);
}

/* Makes the key of a limiter itself. */
static __always_inline void pf_limiter_key(struct pf_source_key *key, u32 id, u32 sources)
{
	__builtin_memset(key, 0, sizeof(*key));
	key->rule = id;
	key->kind = sources ? PF_SOURCE_SOURCE_LIMITER : PF_SOURCE_STATE_LIMITER;
}

/* Makes the key of the source with an address. */
static __always_inline void pf_limited_key(struct pf_source_key *key,
					   const struct pf_profile *profile, const u32 *a, u32 vlan)
{
	u32 six = !!(a[0] | a[1] | (a[2] ^ IPV4_MAPPED));

#pragma unroll
	for (u32 i = 0; i < 4; i++)
		key->address[i] = a[i] & profile->mask[six][i];
	key->vlan = vlan & ~PF_OUTWARD;
	key->rule = profile->limiter[1];
	key->ruleset = profile->bits[six];
	key->kind = PF_SOURCE_LIMITED;
}

/*
 * The place of a limiter among the words of sets. Returns 0 if the rules define none with the id.
 */
static __always_inline u32 pf_limiter_at(u32 id, u32 sources)
{
	u32 at = cfg.pf.limiters, place;

	if (!at)
		return 0;
	place = pf_word(at + id + (sources ? PF_LIMITER_IDS : 0));
	return place ? at + place : 0;
}

/* The counter of a limiter, or a source, for states that may not be made. */
enum pf_limited_why {
	PF_LIMITED_HARD,
	PF_LIMITED_RATE,
};

static __always_inline void pf_limited_count(struct pf_limited *n, u32 why)
{
	if (n && !on(FEATURE_TRACE)) /* a trial counts nothing */
		__sync_fetch_and_add(why == PF_LIMITED_HARD ? &n->hard : &n->rate, 1);
}

/* Counts the same for a source limiter, by its id. */
static __always_inline void pf_limiter_refuses(struct pf_source_key *key, u32 id, u32 why)
{
	pf_limiter_key(key, id, true);
	pf_limited_count(pf_limited_find(key), why);
}

/* The limiter that is being checked for this CPU's packet. The stack has no room for all of it. */
struct pf_asked_limiter {
	struct pf_source_key key;
	u32 profile;
	u32 word;
	u32 at; /* the limiter's place among the words of sets */
	u32 id;
};

/* A word of the limiter that is being checked. */
static __always_inline u64 pf_limiter_word(struct pf_asked_limiter *l, u32 at)
{
	u64 *word;

	l->word = at;
	word = bpf_map_lookup_elem(&pf_words, &l->word);
	return word ? *word : 0;
}

/* Why a limiter, or a source, cannot have one more state now: enum pf_limited_why + 1, or 0. */
static __always_inline u32 pf_limited_full(struct pf_asked_limiter *l, const struct pf_limited *n)
{
	u64 token;

	if ((READ_ONCE(n->states) & ~PF_SOURCE_GOING) >= (u32)pf_limiter_word(l, l->at))
		return PF_LIMITED_HARD + 1;
	token = pf_limiter_word(l, l->at + 1);
	if (token && (__s64)(bpf_ktime_get_ns() - READ_ONCE(n->spent)) < (__s64)token)
		return PF_LIMITED_RATE + 1;
	return 0;
}

/*
 * Is the current state limiter or source limiter exhausted for a packet? As in pf, a limiter that
 * the rules do not define counts as exhausted.
 */
static __always_inline bool pf_limiter_full(struct pf_asked_limiter *l, const struct pf_packet *p,
					    u32 sources)
{
	struct pf_limited *n;
	u32 why;

	if (!cfg.pf.limiters)
		return true;
	why = pf_limiter_word(l, cfg.pf.limiters + l->id + (sources ? PF_LIMITER_IDS : 0));
	if (!why)
		return true;
	l->at = cfg.pf.limiters + why;
	n = pf_limited_find(&l->key);
	if (sources && !n) {
		pf_limiter_key(&l->key, l->id, true);
		n = pf_limited_find(&l->key);
		if (!n || READ_ONCE(n->sources) < pf_limiter_word(l, l->at) >> 32)
			return false;
		if (!on(FEATURE_TRACE))
			__sync_fetch_and_add(&n->full, 1);
		return true;
	}
	why = n ? pf_limited_full(l, n) : 0;
	if (!why)
		return false;
	pf_limited_count(n, why - 1);
	if (sources)
		pf_limiter_refuses(&l->key, l->id, why - 1);
	return true;
}

/* Makes the key of a packet's source, as rules have seen it before translation. */
static __always_inline void pf_limiter_source(struct pf_asked_limiter *l,
					      const struct pf_profile *profile,
					      const struct pf_packet *p)
{
	const struct pf_key *seen = &p->key;
	u32 side = p->side & 1;

	if (on(FEATURE_PF_NAT)) {
		struct pf_nat *nat = pf_nat();

		if (nat && nat->on) {
			seen = &nat->was;
			side = nat->was_side & 1;
		}
	}
	pf_limited_key(&l->key, profile, seen->address[side], seen->vlan);
}

/*
 * Is one of a profile's limiters exhausted for a packet? Returns 0, or the counter for the reason.
 */
static __always_inline u32 pf_limits_full(struct pf_asked_limiter *l, const struct pf_packet *p)
{
	struct pf_profile *profile = bpf_map_lookup_elem(&pf_profiles, &l->profile);

	if (!profile)
		return PF_COUNT_STATE_LIMIT;
	l->id = profile->limiter[0];
	if (l->id) {
		pf_limiter_key(&l->key, l->id, false);
		if (pf_limiter_full(l, p, false))
			return PF_COUNT_STATE_LIMIT;
	}
	l->id = profile->limiter[1];
	if (l->id) {
		pf_limiter_source(l, profile, p);
		if (pf_limiter_full(l, p, true))
			return PF_COUNT_SRC_LIMIT;
	}
	return 0;
}
