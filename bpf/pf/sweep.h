/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Work on states that is not caused by packets: by the timer, and on request. */
#pragma once

#include "track.h"

#define TICKS 8 /* steps per second of the sweep over tables */
#define PF_INTERVAL_DEFAULT 10 /* seconds */

/* Has a removal of the source's states been requested, after this state was made? */
static __always_inline bool pf_flushed(const struct pf_state *s)
{
	struct pf_source_key key;
	u32 *asked;

	pf_source_key_set(&key, s, 0);
	asked = bpf_map_lookup_elem(&pf_flushes, &key);
	if (!asked) {
		pf_source_key_set(&key, s, s->rule_in);
		asked = bpf_map_lookup_elem(&pf_flushes, &key);
	}
	if (!asked) {
		pf_source_key_set(&key, s, s->rule_out);
		asked = bpf_map_lookup_elem(&pf_flushes, &key);
	}
	return asked && (__s32)(*asked - s->created) >= 0;
}

/* A step of the sweep. */
struct pf_broom {
	u32 from; /* bucket */
	u32 now;
	u32 flush; /* states of some sources must be removed */
};

/* Removes the state at a place, if it is over or its source's states must be removed. */
__noinline u32 pf_sweep_place(u32 place, u32 now, u32 flush)
{
	struct pf_state *s = pf_state_at(place);
	u32 *at = pf_mark_at(place), mark;

	if (!on(FEATURE_PF) || !s || !at)
		return 0;
	mark = READ_ONCE(*at);
	if (!(mark & PF_MARK_STATE))
		return 0;
	if (on(FEATURE_PF_NAT) && (s->flags & PF_STATE_KEY)) {
		/* it goes with its state; if the state went alone, it goes now */
		if (!pf_state_has_key(PF_STATE_OTHER(s) - 1, place))
			__sync_val_compare_and_swap(at, mark, pf_mark_gone(now));
		return 0;
	}
	if (!pf_state_over(s, now) && !(on(FEATURE_PF_SOURCES) && flush && pf_flushed(s)))
		return 0;
	return pf_state_drop(place, mark, pf_mark_gone(now), now);
}

/* A bucket that is being swept. */
struct pf_swept {
	u32 home;
	u32 now;
	u32 flush;
};

static long pf_sweep_way(u32 i, struct pf_swept *swept)
{
	struct pf_bucket *b = bpf_map_lookup_elem(&pf_buckets, &swept->home);

	if (!b)
		return 1;
	if (READ_ONCE(b->mark[i & (PF_WAYS - 1)]) & PF_MARK_STATE)
		pf_sweep_place(swept->home * PF_WAYS + i, swept->now, swept->flush);
	return 0;
}

/* The same for all places of a bucket. */
__noinline u32 pf_sweep_bucket(u32 home, u32 now, u32 flush)
{
	struct pf_swept swept = {.home = home, .now = now, .flush = flush};

	if (on(FEATURE_PF))
		bpf_loop(PF_WAYS, pf_sweep_way, &swept, 0);
	return 0;
}

static long pf_sweep_step(u32 n, struct pf_broom *broom)
{
	u32 home = broom->from + n;

	if (home >= cfg.pf.buckets)
		home -= cfg.pf.buckets;
	pf_sweep_bucket(home, broom->now, broom->flush);
	return 0;
}

static long pf_sweep_source(void *map, struct pf_source_key *key, struct pf_source *n, u32 *now)
{
	u32 limiter = key->kind == PF_SOURCE_LIMITED ? key->rule : 0;

	if (on(FEATURE_PF_LIMITERS) && pf_limiter_stays(key))
		return 0;
	if (READ_ONCE(n->states) || (__s32)(*now - READ_ONCE(n->expires)) < 0)
		return 0;
	if (pf_source_free(key, n) && on(FEATURE_PF_LIMITERS) && limiter)
		pf_limiter_forgets(limiter);
	return 0;
}

static long pf_sweep_flush(void *map, struct pf_source_key *key, u32 *asked, u32 *now)
{
	if ((__s32)(*now - *asked) >= PF_FLUSH_SECONDS)
		bpf_map_delete_elem(&pf_flushes, key);
	return 0;
}

/* Looks at `step` buckets from bucket `from` on. Returns the number of the next bucket. */
static __always_inline u32 pf_sweep_from(u32 from, u32 step, u32 now, u32 flush)
{
	struct pf_broom broom = {.from = from, .now = now, .flush = flush};

	bpf_loop(step, pf_sweep_step, &broom, 0);
	from += step;
	if (from < cfg.pf.buckets)
		return from;
	if (on(FEATURE_PF_SOURCES)) {
		bpf_for_each_map_elem(&pf_sources, pf_sweep_source, &broom.now, 0);
		bpf_for_each_map_elem(&pf_flushes, pf_sweep_flush, &broom.now, 0);
	}
	from -= cfg.pf.buckets;
	return from < cfg.pf.buckets ? from : 0;
}

/* Frees states and sources that are over, step by step. The timer calls this. */
static __always_inline void pf_sweep(u32 now)
{
	u32 zero = 0, interval = PF_INTERVAL_DEFAULT, flush = 0, from;
	struct pf_profile *profile = bpf_map_lookup_elem(&pf_profiles, &zero);
	struct pf_shared *shared = pf_shared_get();

	if (!shared || !cfg.pf.buckets)
		return;
	if (profile && profile->timeout[PF_INTERVAL])
		interval = profile->timeout[PF_INTERVAL];
	if (on(FEATURE_PF_SOURCES) && shared->flush) {
		/* sweep the whole table within a second */
		flush = 1;
		interval = 1;
		if ((__s32)(now - shared->flush) > 0)
			WRITE_ONCE(shared->flush, 0);
	}
	from = shared->sweep < cfg.pf.buckets ? shared->sweep : 0;
	shared->sweep = pf_sweep_from(from, cfg.pf.buckets / (interval * TICKS) + 1, now, flush);
}

/*
 * Copies words of the state in a request. The verifier requires each word to be read at its offset
 * from the request's start. So this must not become a pointer to the state.
 */
static __always_inline void pf_requested(const struct control *r, void *to, u32 bytes)
{
	const volatile u64 *words = (const volatile u64 *)r;

#pragma unroll
	for (u32 i = 0; i < bytes / 8; i++)
		((u64 *)to)[i] = words[offsetof(struct control, state) / 8 + i];
}

/* Removes the state at a place, if its key is the given one. */
static __always_inline int pf_kill(struct clock *c, struct control *r)
{
	struct pf_state *s = pf_state_at(r->place);
	u32 *at = pf_mark_at(r->place), mark;
	struct pf_key key;

	if (!s || !at)
		return -EINVAL;
	pf_requested(r, &key, sizeof(key));
	mark = READ_ONCE(*at);
	if (!(mark & PF_MARK_STATE) || !pf_key_is(&s->key, &key))
		return -ENOENT;
	return pf_state_drop(r->place, mark, pf_mark_gone(c->now), c->now) ? 1 : -ENOENT;
}

static long pf_flush_place(u32 place, int *removed)
{
	u32 now = clock_now(), *at = pf_mark_at(place);

	if (!at)
		return 1;
	*removed += pf_state_drop(place, READ_ONCE(*at), pf_mark_gone(now), now);
	return 0;
}

static __always_inline int pf_flush(void)
{
	int removed = 0;

	if (cfg.pf.buckets)
		bpf_loop(cfg.pf.buckets * PF_WAYS, pf_flush_place, &removed, 0);
	return removed;
}

/* Copies the source in a request, like pf_requested(). */
static __always_inline void pf_requested_source(const volatile struct control *r,
						struct pf_source_key *key)
{
	const volatile u64 *words = (const volatile u64 *)r;

#pragma unroll
	for (u32 i = 0; i < sizeof(*key) / 8; i++)
		((u64 *)key)[i] = words[offsetof(struct control, source) / 8 + i];
}

/*
 * Ends the count of the state at a place, if it has the given mark, for one of the sources that
 * count it. Without a place, removes a source that counts no state: one that has received states
 * meanwhile stays.
 */
static __always_inline int pf_untrack(struct clock *c, const volatile struct control *r)
{
	u32 place = r->place - 1, has = r->word, by = r->port, *mark;
	struct pf_source_key key;
	struct pf_source *n;

	if (place == (u32)-1) {
		pf_requested_source(r, &key);
		n = bpf_map_lookup_elem(&pf_sources, &key);
		return n && pf_source_free(&key, n) ? 1 : -ENOENT;
	}
	mark = pf_mark_at(place);
	if (!mark || READ_ONCE(*mark) != has)
		return -ENOENT;
	if (!by)
		return pf_source_leave(place, true, c->now) ? 1 : -ENOENT;
	return pf_second_uncount(place, by - 1, true, c->now) ? 1 : -ENOENT;
}

/*
 * Adds to the counts of a rule or a source: its states, and the rule's sources or the source's
 * connections. Or adds to the numbers of all states and sources; one more state is one removal
 * less.
 */
static __always_inline int pf_recount(const volatile struct control *r)
{
	struct pf_shared *shared = pf_shared_get();
	u64 word = r->word, all = r->key;
	u32 number = r->port;
	struct pf_rule *rule = pf_rule_at(number);
	struct pf_rule_use *use = pf_rule_use_at(number);
	struct pf_source_key key;
	struct pf_source *n;

	if (all && shared) {
		__sync_fetch_and_add(&shared->states, (u32)word);
		__sync_fetch_and_add(&shared->nodes, word >> 32);
		pf_count_safely(PF_COUNT_REMOVALS, -(u64)(__s64)(__s32)word);
		return 1;
	}
	if (number) {
		if (!rule || !use)
			return -ENOENT;
		if (rule->flags & PF_KEEPS)
			__sync_fetch_and_add(&use->states, (u32)word);
		__sync_fetch_and_add(&use->nodes, word >> 32);
		return 1;
	}
	pf_requested_source(r, &key);
	n = bpf_map_lookup_elem(&pf_sources, &key);
	if (!n)
		return -ENOENT;
	__sync_fetch_and_add(&n->states, (u32)word);
	__sync_fetch_and_add(&n->connections, word >> 32);
	return 1;
}

/*
 * Puts a state into the table, unchanged. It counts as a state that is made now: a new table of
 * states starts with new counts.
 */
static __always_inline int pf_store(struct clock *c, struct control *r)
{
	struct pf_state *s;
	struct pf_key key;
	u32 place, *mark;

	pf_requested(r, &key, sizeof(key));
	if (r->state.flags & (PF_STATE_TWO | PF_STATE_KEY))
		return -EINVAL;
	key.profile = 0;
	if (pf_state_find(&key))
		return -EEXIST;
	place = pf_claim(&key, c->now);
	s = pf_state_at(place - 1);
	mark = pf_mark_at(place - 1);
	if (!place || !s || !mark)
		return -ENOSPC;
	pf_requested(r, s, sizeof(*s));
	/* the state's packets have not been looked up in this table */
	pf_count_safely(PF_COUNT_SEARCHES, -pf_sent_all(s));
	if (!pf_enter(place - 1, c->now)) {
		WRITE_ONCE(*mark, pf_mark_gone(c->now));
		return -ENOSPC;
	}
	return pf_publish(place - 1, c->now) ? 1 : -EEXIST;
}
