/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The forwarding database: which port an address is on.
 *
 * It is a table of buckets. A bucket is one cache line with four entries. An address lives
 * in its home bucket or, if that is full, in one of the next few. Nothing is locked:
 *
 * - To fill an entry, a CPU claims a free one (key 0 -> FDB_CLAIMED), and writes the word
 *   and then the key. So a key that can be read has its word.
 * - To free an entry, a CPU claims it, too. It frees the entry only if the word has not
 *   changed since the CPU decided to free it. A reader may race with this, so a reader
 *   checks the key again after it has read the word.
 * - To move or pin an entry, a CPU swaps the whole word. It swaps the word back if the
 *   entry was given to another address at that moment.
 * - Two CPUs may fill in the same address at once. Both check again after they have
 *   published it, and one of the two entries is removed.
 *
 * The table is three times as large as the number of entries allowed. An address can choose
 * from eight buckets, so only one in ten million finds no place.
 */
#pragma once

#include <linux/errno.h>

#include "frame.h"
#include "port.h"
#include "stats.h"
#include "trace.h"

#define PORT_OF(word) ((u32)(word) & ~FDB_PINNED)
#define USED_OF(word) ((u32)((word) >> 32))
#define WORD(port, used) ((u64)(used) << 32 | (port))

static __always_inline u64 fdb_key(u64 mac, u16 vlan)
{
	return (u64)vlan << MAC_BITS | mac;
}

static __always_inline u32 fdb_home(u64 key)
{
	u64 h = (key ^ cfg.hash_seed) * 0xff51afd7ed558ccdull;

	h = (h ^ h >> 32) * 0xc4ceb9fe1a85ec53ull;
	return (h >> 32) * cfg.fdb_buckets >> 32;
}

static __always_inline struct fdb_bucket *fdb_bucket(u32 index)
{
	return bpf_map_lookup_elem(&fdb, &index);
}

/* The entry with a number. The numbers continue from bucket to bucket. */
static __always_inline struct fdb_entry *fdb_entry(u32 number)
{
	struct fdb_bucket *b = fdb_bucket(number / FDB_WAYS);

	return b ? &b->way[number % FDB_WAYS] : 0;
}

#define FDB_NONE (~0u)

struct fdb_search {
	u64 key;
	u32 home; /* bucket */
	u32 first; /* place to begin at */
	u32 found; /* number of an entry */
};

OFTEN static long fdb_search_bucket(u32 n, struct fdb_search *s)
{
	struct fdb_bucket *b = fdb_bucket(s->home + n);

	if (!b)
		return 1;
#pragma unroll
	for (u32 i = 0; i < FDB_WAYS; i++) {
		if (READ_ONCE(b->way[i].key) == s->key && n * FDB_WAYS + i >= s->first) {
			s->found = (s->home + n) * FDB_WAYS + i;
			return 1;
		}
	}
	return 0;
}

/*
 * Finds the first entry with this key where an address of bucket `home` may live. Returns its
 * number, or FDB_NONE. The search begins at place `first`. Key 0 finds a free entry.
 *
 * The verifier follows separate functions and loops of this kind once, which makes a change of
 * configuration fast. Frames of an established conversation do not get here.
 */
__noinline u32 fdb_locate(u64 key, u32 home, u32 first)
{
	struct fdb_search s = {.key = key, .home = home, .first = first, .found = FDB_NONE};

	bpf_loop(FDB_WINDOW, fdb_search_bucket, &s, 0);
	return s.found;
}

static __always_inline u64 fdb_word(struct fdb_entry *e, u64 key)
{
	u64 word = READ_ONCE(e->word);

	/* if the key has changed, the entry has just been given to another address */
	return READ_ONCE(e->key) == key ? word : 0;
}

/* Returns the word of key, whatever its age, or 0 if there is none. */
static __always_inline u64 fdb_find(u64 key)
{
	u32 home = fdb_home(key);
	struct fdb_bucket *b = fdb_bucket(home);
	struct fdb_entry *e;

	/* free entries have key 0 */
	if (!b || !key)
		return 0;
#pragma unroll
	for (u32 i = 0; i < FDB_WAYS; i++)
		if (READ_ONCE(b->way[i].key) == key)
			return fdb_word(&b->way[i], key);
	e = fdb_entry(fdb_locate(key, home, FDB_WAYS));
	return e ? fdb_word(e, key) : 0;
}

/* Does the entry's port exist, and is the entry young enough? */
static __always_inline bool fdb_valid(u64 word, u32 now)
{
	u32 id = PORT_OF(word);

	if (!id || port_at(id)->id != id)
		return false;
	return ((u32)word & FDB_PINNED) || now - USED_OF(word) < set.ageing;
}

/*
 * The same, and do frames reach the port, as far as the timer has found out? See device.h. This
 * costs a frame no more than fdb_valid().
 */
static __always_inline bool fdb_reaches(u64 word, u32 now)
{
	u32 id = PORT_OF(word);

	if (!id || port_at(id)->reached != id)
		return false;
	return ((u32)word & FDB_PINNED) || now - USED_OF(word) < set.ageing;
}

/* The meaning of an FDB word for frames to its address; `bascule trace` shows it. */
static __always_inline enum found fdb_has(u64 word, u32 now)
{
	if (!fdb_valid(word & ~FDB_LOCKED, now))
		return FIND_NONE;
	if (word & FDB_LOCKED)
		return FIND_LOCKED;
	if ((u32)word & FDB_STATIC)
		return FIND_STATIC;
	return (u32)word & FDB_STICKY ? FIND_STICKY : FIND_DYNAMIC;
}

/*
 * Counts one more dynamic entry of the port. Also counts one for the bridge, unless the bridge has
 * counted the entry already. Returns false if a limit forbids the entry. This adds before it
 * compares, so that two CPUs together never exceed a limit.
 */
__noinline int fdb_reserve(u32 id, bool bridge)
{
	u32 max = port_at(id)->fdb_max, *all, *own;
	struct shared *s = shared_get();

	if (!s)
		return false;
	all = usage_in(s, 0);
	own = usage_in(s, SLOT(id));
	if (bridge && __sync_fetch_and_add(all, 1) >= set.fdb_max)
		goto full;
	if (__sync_fetch_and_add(own, 1) < (max ? max : ~0u))
		return true;
	__sync_fetch_and_add(own, -1);
full:
	if (bridge)
		__sync_fetch_and_add(all, -1);
	return false;
}

__noinline int fdb_release(u64 word, bool bridge)
{
	u32 id = PORT_OF(word), *all, *own;
	struct shared *s = shared_get();

	if ((u32)word & FDB_PINNED || !s)
		return 0;
	all = usage_in(s, 0);
	own = usage_in(s, SLOT(id));
	if (bridge)
		__sync_fetch_and_add(all, -1);
	/*
	 * A slot with a new tenant only counts that tenant's entries, from zero. A program that
	 * still uses the former tenant must not take the count below zero.
	 */
	if (id && port_at(id)->id == id && !__sync_fetch_and_add(own, -1))
		__sync_fetch_and_add(own, 1);
	return 0;
}

/* Ends the epoch: no CPU may use a decision from before the change. */
static __always_inline void fdb_changed(struct clock *c)
{
	__sync_fetch_and_add(&c->epoch, 1);
}

/*
 * Frees the entry of the key if its word is still this one. Returns 1 if so, 0 if the key no longer
 * owns the entry, and -1 if the word has changed: then the entry stays, but a look-up could not
 * find it for a moment.
 */
__noinline int fdb_free(u32 number, u64 key, u64 word)
{
	struct fdb_entry *e = fdb_entry(number);

	if (!e || __sync_val_compare_and_swap(&e->key, key, FDB_CLAIMED) != key)
		return 0;
	if (__sync_val_compare_and_swap(&e->word, word, 0) != word) {
		__sync_lock_test_and_set(&e->key, key);
		return -1;
	}
	__sync_lock_test_and_set(&e->key, 0);
	fdb_release(word, true);
	return 1;
}

/* If the key has two entries, keeps the pinned one, or else the first. */
__noinline int fdb_deduplicate(u64 key)
{
	u32 home = fdb_home(key), first = fdb_locate(key, home, 0), second;
	struct fdb_entry *a, *b;
	u64 word_a, word_b;

	if (first == FDB_NONE)
		return 0;
	second = fdb_locate(key, home, first - home * FDB_WAYS + 1);
	a = fdb_entry(first);
	b = fdb_entry(second);
	if (!a || !b)
		return 0;
	word_a = READ_ONCE(a->word);
	word_b = READ_ONCE(b->word);
	if ((u32)word_b & ~(u32)word_a & FDB_PINNED)
		return fdb_free(first, key, word_a);
	return fdb_free(second, key, word_b);
}

/* Frees an entry, unless it has changed since the caller read it. */
static __always_inline bool fdb_drop(u32 number, u64 key, u64 word)
{
	int freed = fdb_free(number, key, word);

	if (freed < 0)
		fdb_deduplicate(key);
	return freed > 0;
}

/*
 * Fills in a new entry, which has been counted. Returns false if there is no place for it, or if
 * other CPUs took the place four times.
 */
__noinline int fdb_fill(u64 key, u64 word)
{
	u32 home = fdb_home(key);

	for (u32 tries = 0; tries < 4; tries++) {
		struct fdb_entry *e = fdb_entry(fdb_locate(0, home, 0));

		if (!e)
			return false;
		if (__sync_val_compare_and_swap(&e->key, 0, FDB_CLAIMED))
			continue;
		WRITE_ONCE(e->word, word);
		__sync_lock_test_and_set(&e->key, key);
		fdb_deduplicate(key);
		return true;
	}
	return false;
}

/*
 * Replaces the old word of the key's entry by a new one, which has been counted. Returns false if
 * the key or the old word is no longer there; then nothing has changed.
 */
static __always_inline bool fdb_swap(struct fdb_entry *e, u64 key, u64 old, u64 word)
{
	if (__sync_val_compare_and_swap(&e->word, old, word) != old)
		return false;
	if (READ_ONCE(e->key) == key)
		return true;
	return __sync_val_compare_and_swap(&e->word, word, old) != word;
}

/*
 * How often each entry moves in a second, by the entry's number: the second << 32 | claims
 * in it. An entry keeps its place while its address is known, so the count is exact.
 */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, u32);
	__type(value, u64);
} moves SEC(".maps");

/* Counts a claim on the entry. Returns whether it may move the entry in this second. */
static __always_inline bool move_allowed(u32 number, u32 now)
{
	u64 *m = bpf_map_lookup_elem(&moves, &number), old;

	if (!m)
		return true;
	old = READ_ONCE(*m);
	if (old >> 32 != now && __sync_val_compare_and_swap(m, old, (u64)now << 32 | 1) == old)
		return true;
	return (u32)__sync_fetch_and_add(m, 1) < set.move_max;
}

/*
 * The address was seen on port id: refreshes, moves or adds its entry. Called at most once a second
 * for an address that stays in its place. Returns false if a limit forbids the address there.
 */
OFTEN __noinline int fdb_learn(u64 key, u32 id)
{
	struct port_stats *s = stats_of(SLOT(id));
	struct clock *c = clock_get();
	struct fdb_entry *e;
	u64 old, word;
	u32 number, now;
	bool valid;

	if (!c || !s)
		return true;
	now = READ_ONCE(c->now);
	word = WORD(id, now);

	number = fdb_locate(key, fdb_home(key), 0);
	e = fdb_entry(number);
	if (!e) {
		if (!fdb_reserve(id, true))
			goto full;
		if (!fdb_fill(key, word)) {
			fdb_release(word, true);
			goto full;
		}
		s->learned++;
		TRACE(learned, LEARN_NEW);
		event_add(EVENT_LEARNED, key, id, 0, 1);
		return true;
	}

	old = READ_ONCE(e->word);
	TRACE(learned_from, SLOT(PORT_OF(old)));
	if (!old) /* another CPU is freeing it; the next frame notices */
		return true;
	if ((u32)old & FDB_PINNED) {
		if (PORT_OF(old) == id || !fdb_valid(old, now))
			return true;
		s->refused++;
		TRACE(learned, (u32)old & FDB_STATIC ? LEARN_STATIC : LEARN_STICKY);
		event_once_a_second(EVENT_REFUSED_PINNED, key, id, PORT_OF(old));
		return true;
	}
	if (PORT_OF(old) == id) {
		/* writes only the upper half, so that a move at this moment is not undone */
		WRITE_ONCE(((u32 *)&e->word)[1], now);
		return true;
	}

	valid = fdb_valid(old, now);
	if (on(FEATURE_MOVE_MAX) && valid && !move_allowed(number, now)) {
		s->refused++;
		TRACE(learned, LEARN_DAMPED);
		event_once_a_second(EVENT_REFUSED_DAMPED, key, id, PORT_OF(old));
		return true;
	}
	if (!fdb_reserve(id, false))
		goto full;
	if (!fdb_swap(e, key, old, word)) {
		fdb_release(word, false); /* another CPU was first; the next frame tries again */
		return true;
	}
	fdb_release(old, false);
	fdb_changed(c);
	if (valid) {
		s->moves++;
		TRACE(learned, LEARN_MOVED);
		event_once_a_second(EVENT_MOVED, key, id, PORT_OF(old));
	} else {
		s->learned++;
		TRACE(learned, LEARN_NEW);
		event_add(EVENT_LEARNED, key, id, 0, 1);
	}
	return true;
full:
	s->refused++;
	TRACE(learned, LEARN_FULL);
	event_once_a_second(EVENT_REFUSED_FULL, 0, id, 0);
	return false;
}

/*
 * The address was seen on port id, which is locked and does not have it. Makes a locked entry for
 * the address, or refreshes that entry. An address that is known on another port stays there, even
 * if its entry is a locked one: an unauthorized station takes nothing away from others.
 */
static __noinline int fdb_lock(u64 key, u32 id)
{
	struct port_stats *s = stats_of(SLOT(id));
	struct clock *c = clock_get();
	struct fdb_entry *e;
	u64 old, word;
	u32 now;

	if (!c || !s)
		return 0;
	now = READ_ONCE(c->now);
	word = WORD(id, now) | FDB_LOCKED;
	e = fdb_entry(fdb_locate(key, fdb_home(key), 0));
	if (!e) {
		if (!fdb_reserve(id, true))
			goto full;
		if (!fdb_fill(key, word)) {
			fdb_release(word, true);
			goto full;
		}
		goto told;
	}
	old = READ_ONCE(e->word);
	TRACE(learned_from, SLOT(PORT_OF(old)));
	TRACE(learned, PORT_OF(old) == id ? LEARN_LOCKED_AGAIN : LEARN_LOCKED_AWAY);
	/* another CPU is freeing it, or the address was seen in this second already */
	if (!old || old == word || (u32)old & FDB_PINNED)
		return 0;
	if (fdb_valid(old & ~FDB_LOCKED, now)) {
		if (PORT_OF(old) == id)
			fdb_swap(e, key, old, word);
		return 0;
	}
	if (!fdb_reserve(id, false))
		goto full;
	if (!fdb_swap(e, key, old, word)) {
		fdb_release(word, false);
		return 0;
	}
	fdb_release(old, false);
told:
	TRACE(learned, LEARN_LOCKED);
	event_add(EVENT_LOCKED, key, id, 0, 1);
	return 0;
full:
	s->refused++;
	TRACE(learned, LEARN_LOCKED_FULL);
	event_once_a_second(EVENT_REFUSED_FULL, 0, id, 0);
	return 0;
}
