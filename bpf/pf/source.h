/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Sources whose states are counted: by the rule that tracks them, or for all such rules together.
 * If a source has too many states, this file carries out the rules' measures.
 */
#pragma once

#include "table.h"

/* Sources whose states the sweep removes, with the second of the request. */
struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, 1);
	__type(key, struct pf_source_key);
	__type(value, u32);
} pf_flushes SEC(".maps");

#define PF_FLUSHES 1024 /* most such sources at a time */
#define PF_FLUSH_SECONDS 3 /* seconds in which the sweep sees the whole table at least twice */

static __always_inline struct pf_shared *pf_shared_get(void)
{
	struct shared *s = shared_get();

	return s ? &s->pf : 0;
}

/* The rule with a number + 1; then the rule's counters. */
static __always_inline struct pf_rule *pf_rule_at(u32 rule)
{
	u32 number = rule - 1;

	return rule ? bpf_map_lookup_elem(&pf_rules, &number) : 0;
}

static __always_inline struct pf_rule_use *pf_rule_use_at(u32 rule)
{
	struct pf_rule *r = pf_rule_at(rule);
	u32 first = r ? r->first : 0;

	return r ? bpf_map_lookup_elem(&pf_rule_use, &first) : 0;
}

#define PF_STATE_TRACK (PF_STATE_TRACK_RULE | PF_STATE_TRACK_GLOBAL)

/*
 * Packets, the sweep and user space change the flags of a state at the same moment. So the flags by
 * which it counts for its source change by one operation on the word whose upper half they are: the
 * one that clears a flag removes the state from the source, and no other does.
 */
_Static_assert(offsetof(struct pf_state, ruleset) % sizeof(u32) == 0 &&
		       offsetof(struct pf_state, flags) == offsetof(struct pf_state, ruleset) + 2,
	       "the flags are the upper half of a word");

/* Gives a state a flag. Returns its former flags. */
static __always_inline u32 pf_state_flag(struct pf_state *s, u32 flag)
{
	return __sync_fetch_and_or((u32 *)&s->ruleset, flag << 16) >> 16;
}

/* Clears flags of a state. Returns those that were set. */
static __always_inline u32 pf_state_unflag(struct pf_state *s, u32 flags)
{
	return __sync_fetch_and_and((u32 *)&s->ruleset, ~(flags << 16)) >> 16 & flags;
}

/* The side that began the connection. */
static __always_inline u32 pf_initiator(const struct pf_state *s)
{
	return !!(s->flags & PF_STATE_SECOND);
}

/* Copies the address that began the connection, as rules have seen it: before translation. */
static __always_inline void pf_source_address(u32 *address, const struct pf_state *s)
{
	const struct pf_state *seen = s;

	/* packets out of the host are identified by their stack key */
	if (on(FEATURE_PF_NAT) && (s->flags & PF_STATE_NAT) &&
	    !!(s->key.vlan & PF_OUTWARD) != pf_initiator(s)) {
		seen = pf_state_at(PF_STATE_OTHER(s) - 1);
		if (!seen)
			seen = s;
	}
	__builtin_memcpy(address, seen->key.address[pf_initiator(seen)], 16);
}

/* The rule, number + 1, that tracks the state's source. */
static __always_inline u32 pf_tracker(const struct pf_state *s)
{
	return s->flags & PF_STATE_TRACK_OUT ? s->rule_out : s->rule_in;
}

/* Makes the key of the state's source. `rule` is a number + 1, or 0. */
static __always_inline void pf_source_key_set(struct pf_source_key *key, const struct pf_state *s,
					      u32 rule)
{
	pf_source_address(key->address, s);
	key->vlan = s->key.vlan & ~PF_OUTWARD;
	key->rule = rule;
	key->ruleset = rule ? s->ruleset : 0;
	key->kind = PF_SOURCE_TRACKED;
}

static __always_inline void pf_source_key_of(struct pf_source_key *key, const struct pf_state *s)
{
	pf_source_key_set(key, s, s->flags & PF_STATE_TRACK_RULE ? pf_tracker(s) : 0);
}

/* Undoes pf_source_count(). */
static __always_inline void pf_source_uncount(const struct pf_source_key *key)
{
	struct pf_shared *shared = pf_shared_get();
	struct pf_rule_use *use;

	if (key->kind >= PF_SOURCE_LEAST)
		return;
	if (shared)
		__sync_fetch_and_sub(&shared->nodes, 1);
	if (key->ruleset != cfg.pf.ruleset)
		return;
	use = pf_rule_use_at(key->rule);
	if (use)
		__sync_fetch_and_sub(&use->nodes, 1);
}

/*
 * Counts a source, if there may be one more. Returns 0, or the counter for the reason of a refusal.
 */
static __always_inline u32 pf_source_count(const struct pf_source_key *key, u32 most)
{
	struct pf_shared *shared = pf_shared_get();
	struct pf_rule_use *use = key->ruleset == cfg.pf.ruleset ? pf_rule_use_at(key->rule) : 0;

	if (!shared)
		return PF_COUNT_MEMORY;
	if (__sync_fetch_and_add(&shared->nodes, 1) >= cfg.pf.nodes_max) {
		__sync_fetch_and_sub(&shared->nodes, 1);
		return PF_COUNT_MEMORY;
	}
	if (use && __sync_fetch_and_add(&use->nodes, 1) >= most && most) {
		pf_source_uncount(key);
		return PF_COUNT_MAX_SRC_NODES;
	}
	return 0;
}

/* Removes a source that has no states. Returns false if it has some. */
static __always_inline bool pf_source_free(const struct pf_source_key *key, struct pf_source *n)
{
	if (__sync_val_compare_and_swap(&n->states, 0, PF_SOURCE_GOING))
		return false;
	bpf_map_delete_elem(&pf_sources, key);
	pf_source_uncount(key);
	return true;
}

#define PF_SOURCE_TRIES 4 /* tries against CPUs that make or remove it at the same moment */

/*
 * Counts a new state for its source. Returns 0, or the counter for the reason of a refusal. This is
 * a separate function, to save room on the stack.
 */
__noinline u32 pf_source_enter(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_source_key key;
	struct pf_source fresh = {.states = 1, .last = now};
	u32 most = 0, nodes = 0;
	struct pf_rule *r;

	if (!on(FEATURE_PF_SOURCES) || !s)
		return PF_COUNT_MEMORY;
	if (!(s->flags & PF_STATE_TRACK))
		return 0;
	/* the limits belong to the present rules: states of former rules have none */
	r = s->ruleset == cfg.pf.ruleset ? pf_rule_at(pf_tracker(s)) : 0;
	if (r) {
		most = r->max_src_states;
		nodes = r->max_src_nodes;
	}
	fresh.created = s->created;
	fresh.connections = !!(s->flags & PF_STATE_CONNECTED);
	pf_source_key_of(&key, s);
	for (u32 tries = 0; tries < PF_SOURCE_TRIES; tries++) {
		struct pf_source *n = bpf_map_lookup_elem(&pf_sources, &key);
		u32 states, why;

		if (!n) {
			why = pf_source_count(&key, nodes);
			if (why)
				return why;
			if (!bpf_map_update_elem(&pf_sources, &key, &fresh, BPF_NOEXIST))
				return 0;
			pf_source_uncount(&key);
			continue;
		}
		states = __sync_fetch_and_add(&n->states, 1);
		if (!(states & PF_SOURCE_GOING) && (!most || states < most)) {
			if (fresh.connections)
				__sync_fetch_and_add(&n->connections, 1);
			return 0;
		}
		__sync_fetch_and_sub(&n->states, 1);
		if (!(states & PF_SOURCE_GOING))
			return PF_COUNT_MAX_SRC_STATES;
	}
	return PF_COUNT_MEMORY;
}

/* How long a source without states is remembered. */
static __always_inline u32 pf_source_time(const struct pf_state *s)
{
	u32 number = s->key.profile;
	struct pf_profile *profile = bpf_map_lookup_elem(&pf_profiles, &number);

	return profile ? profile->timeout[PF_SRC_TRACK] : 0;
}

/*
 * Subtracts a state from the source that counts it. The source is remembered for a while, unless it
 * should be forgotten. Returns 1 if a source counted the state.
 */
__noinline u32 pf_source_leave(u32 place, u32 forget, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_source_key key;
	struct pf_source *n;
	u32 had, time;

	if (!on(FEATURE_PF_SOURCES) || !s || !(s->flags & PF_STATE_TRACK))
		return 0;
	time = forget ? 0 : pf_source_time(s);
	pf_source_key_of(&key, s);
	had = pf_state_unflag(s, PF_STATE_TRACK | PF_STATE_CONNECTED);
	n = had & PF_STATE_TRACK ? bpf_map_lookup_elem(&pf_sources, &key) : 0;
	if (!n)
		return 0;
	if (had & PF_STATE_CONNECTED)
		__sync_fetch_and_sub(&n->connections, 1);
	WRITE_ONCE(n->expires, now + time);
	if (__sync_fetch_and_sub(&n->states, 1) == 1 && !time)
		pf_source_free(&key, n);
	return 1;
}

/* Counts a connection as pf does: older connections weigh less. */
static __always_inline u32 pf_source_rate(struct pf_source *n, u32 seconds, u32 now)
{
	u32 gone = now - n->last, rate = n->rate;

	if (gone >= seconds)
		rate = 0;
	else
		rate -= (u64)rate * gone / seconds;
	rate += 1000;
	WRITE_ONCE(n->rate, rate);
	WRITE_ONCE(n->last, now);
	return rate;
}

WORK_HOLDS(struct pf_table_work);

/*
 * Puts the source of a state into a table, given by number, like user space's requests. So neither
 * loses the other's changes. This is a separate function, to save room on the stack.
 */
__noinline int pf_overload(u32 place, u32 table)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_table_work *w;
	w = work_of(WORK_PF_OVERLOAD);
	if (!on(FEATURE_PF_TABLES) || on(FEATURE_PF_SLEEPS) || !s || !w)
		return 0;
	pf_source_address(w->address.word, s);
	pf_count(PF_COUNT_OVERLOAD);
	return pf_table_add(w, 1ull << (table & 63), false);
}

/*
 * Takes the source of a state out of a table, given by number, into which pf_overload() has put it.
 * The sweep and user space's requests come here, too. They have no memory that frames leave alone.
 */
__noinline int pf_unload(u32 place, u32 table)
{
	u64 bit = 1ull << (table & 63);
	struct pf_state *s = pf_state_at(place);
	struct pf_address address;
	struct pf_host *m;

	if (!on(FEATURE_PF_TABLES) || !s)
		return 0;
	pf_source_address(address.word, s);
	m = bpf_map_lookup_elem(&pf_hosts, &address);
	return m && (READ_ONCE(m->match) & bit) && pf_table_unlist(&address, m, bit);
}

/*
 * Makes the sweep remove the states of a state's source: with `all` any rule's, else only the
 * states of the rule that tracks it.
 */
static __always_inline void pf_source_flush(const struct pf_state *s, bool all, u32 now)
{
	struct pf_shared *shared = pf_shared_get();
	struct pf_source_key key;

	pf_source_key_set(&key, s, all ? 0 : pf_tracker(s));
	pf_count(PF_COUNT_OVERLOAD_FLUSH);
	if (bpf_map_update_elem(&pf_flushes, &key, &now, BPF_ANY) || !shared)
		return;
	WRITE_ONCE(shared->flush, now + PF_FLUSH_SECONDS);
}

/*
 * Counts one more connection for the source of a state whose handshake is complete. Returns 1 if
 * that is one too many, and the state must go.
 */
__noinline u32 pf_source_connect(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_source_key key;
	struct pf_source *n;
	struct pf_rule *r;
	bool bad = false;
	u32 connections, had;

	if (!on(FEATURE_PF_SOURCES) || !s || !(s->flags & PF_STATE_TRACK) ||
	    (s->flags & PF_STATE_CONNECTED))
		return 0;
	pf_source_key_of(&key, s);
	n = bpf_map_lookup_elem(&pf_sources, &key);
	if (!n)
		return 0;
	had = pf_state_flag(s, PF_STATE_CONNECTED);
	if ((had & PF_STATE_CONNECTED) || !(had & PF_STATE_TRACK))
		return 0;
	connections = __sync_fetch_and_add(&n->connections, 1) + 1;
	r = pf_rule_at(pf_tracker(s));
	if (!r || s->ruleset != cfg.pf.ruleset)
		return 0;
	if (r->max_src_rate && r->max_src_secs &&
	    pf_source_rate(n, r->max_src_secs, now) > r->max_src_rate * 1000) {
		pf_count(PF_COUNT_MAX_SRC_RATE);
		bad = true;
	}
	if (r->max_src_conn && connections > r->max_src_conn) {
		pf_count(PF_COUNT_MAX_SRC_CONN);
		bad = true;
	}
	return bad;
}

/* Carries out the measures of a state's rule against a source that has one connection too many. */
__noinline u32 pf_source_punish(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_rule *r;

	if (!on(FEATURE_PF_SOURCES) || !s)
		return 0;
	r = pf_rule_at(pf_tracker(s));
	if (!r || !r->overload || s->ruleset != cfg.pf.ruleset)
		return 0;
	if (on(FEATURE_PF_TABLES))
		pf_overload(place, r->overload - 1);
	if (r->flags & (PF_FLUSH | PF_FLUSH_GLOBAL))
		pf_source_flush(s, r->flags & PF_FLUSH_GLOBAL, now);
	return 0;
}

/* The data about a state that the state itself has no room for: see struct pf_second. */
static __always_inline struct pf_second *pf_second_at(const struct pf_state *s)
{
	return (struct pf_second *)pf_state_at(PF_STATE_OTHER(s) - 1);
}

/* A side of a translated state: an address, and its port. */
enum pf_second_side {
	PF_SECOND_OWN = 1, /* of the state's own key */
	PF_SECOND_KEY = 2, /* of its second key */
	PF_SECOND_NEXT = 4, /* the next hop, without a port */
	PF_SECOND_DESTINATION = 8, /* bit: the destination, not the source */
	PF_SECOND_BITS = 4,
};

static __always_inline const u32 *pf_second_address(const struct pf_state *s,
						    const struct pf_second *k, u32 side)
{
	const struct pf_key *key = side & PF_SECOND_OWN ? &s->key : &k->key;

	return side & PF_SECOND_NEXT ? k->hop : key->address[!!(side & PF_SECOND_DESTINATION)];
}

static __always_inline u32 pf_second_port(const struct pf_state *s, const struct pf_second *k,
					  u32 side)
{
	const struct pf_key *key = side & PF_SECOND_OWN ? &s->key : &k->key;

	return key->port[!!(side & PF_SECOND_DESTINATION)];
}

/*
 * The side of a translated state that a node counts, an enum pf_second_node, and from bit
 * PF_SECOND_BITS on the side that was assigned to it. Rules have seen the state's first packet with
 * one of its keys, and have made the other from it. Returns 0 if the state has no second place.
 */
__noinline u32 pf_second_sides(u32 place, u32 what)
{
	struct pf_state *s = pf_state_at(place);
	u32 was, is, own, second;
	struct pf_second *k;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !s)
		return 0;
	k = pf_second_at(s);
	if (!k)
		return 0;
	own = PF_SECOND_OWN | (pf_initiator(s) ? PF_SECOND_DESTINATION : 0);
	second = PF_SECOND_KEY | (k->flags & PF_STATE_SECOND ? PF_SECOND_DESTINATION : 0);
	was = !(s->key.vlan & PF_OUTWARD) == !(own & PF_SECOND_DESTINATION) ? own : second;
	is = own ^ second ^ was;
	if (what == PF_SECOND_HOP || what == PF_SECOND_LEAST_HOP)
		is = PF_SECOND_NEXT;
	else if (what == PF_SECOND_RDR || what == PF_SECOND_LEAST_RDR)
		is ^= PF_SECOND_DESTINATION;
	if (what >= PF_SECOND_LEAST_NAT && what != PF_SECOND_MAP)
		return is | was << PF_SECOND_BITS;
	return was | is << PF_SECOND_BITS;
}

/*
 * Makes the key of the node that counts a translated state, an enum pf_second_node, and fills in
 * the node's assignment, if `n` is given. `sides` are from pf_second_sides(). Returns false if
 * there are none.
 */
__noinline u32 pf_second_key(struct pf_source_key *key, struct pf_source *n, u32 place, u32 what,
			     u32 sides)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_second *k;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !key || !s || !sides)
		return false;
	k = pf_second_at(s);
	if (!k)
		return false;
	__builtin_memcpy(key->address, pf_second_address(s, k, sides), sizeof(key->address));
	key->vlan = s->key.vlan & ~PF_OUTWARD;
	key->rule = 0;
	key->ruleset = 0;
	key->kind = PF_SOURCE_LEAST;
	if (what >= PF_SECOND_MAP) {
		key->kind = PF_SOURCE_MAP + what - PF_SECOND_MAP;
		key->rule = pf_second_port(s, k, sides);
	} else if (what < PF_SECOND_LEAST_NAT) {
		key->kind = PF_SOURCE_NAT + what - PF_SECOND_NAT;
		key->rule = k->sticky[what & 3];
		key->ruleset = k->ruleset;
	}
	if (!n)
		return true;
	sides >>= PF_SECOND_BITS;
	__builtin_memcpy(n->address, pf_second_address(s, k, sides), sizeof(n->address));
	n->port = what >= PF_SECOND_MAP ? pf_second_port(s, k, sides) : 0;
	return true;
}

/* Is the other end of a mapping an address and port? */
static __always_inline bool pf_map_is(const struct pf_source *has, const u32 *address, u32 port)
{
	return has->port == port && has->address[3] == address[3] &&
	       has->address[2] == address[2] && has->address[1] == address[1] &&
	       has->address[0] == address[0];
}

/*
 * Counts a translated state where its pools must remember it. Returns 0, or the reason for a
 * failure.
 */
__noinline u32 pf_second_count(u32 place, u32 what, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_source fresh = {.states = 1, .last = now};
	struct pf_source_key key = {};
	struct pf_rule *r;
	u32 most = 0;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !s)
		return DROP_PF_TRANSLATE;
	fresh.created = s->created;
	if (!pf_second_key(&key, &fresh, place, what, pf_second_sides(place, what)))
		return DROP_PF_TRANSLATE;
	if (key.kind < PF_SOURCE_LEAST) {
		r = pf_rule_at(key.rule);
		most = r ? r->max_src_nodes : 0;
	}
	for (u32 tries = 0; tries < PF_SOURCE_TRIES; tries++) {
		struct pf_source *n = bpf_map_lookup_elem(&pf_sources, &key);
		u32 why = 0;

		if (!n) {
			if (key.kind < PF_SOURCE_LEAST)
				why = pf_source_count(&key, most);
			if (why) {
				pf_count(why);
				return DROP_PF_LIMIT;
			}
			if (!bpf_map_update_elem(&pf_sources, &key, &fresh, BPF_NOEXIST))
				return 0;
			pf_source_uncount(&key);
			continue;
		}
		/*
		 * Another CPU has given the mapping to another source meanwhile. The address of a
		 * source may have left the pool.
		 */
		if (key.kind >= PF_SOURCE_MAP && !pf_map_is(n, fresh.address, fresh.port))
			return DROP_PF_TRANSLATE;
		if (!(__sync_fetch_and_add(&n->states, 1) & PF_SOURCE_GOING)) {
			if (key.kind < PF_SOURCE_LEAST)
				__builtin_memcpy(n->address, fresh.address, sizeof(n->address));
			return 0;
		}
		__sync_fetch_and_sub(&n->states, 1);
	}
	return DROP_PF_LIMIT;
}

/*
 * The bits of the nodes that count a state: all CPUs and user space change them by one operation,
 * like a state's flags.
 */
_Static_assert(offsetof(struct pf_second, nodes) % sizeof(u32) == 0 && PF_SECOND_NODES == 8,
	       "the bits are the lower half of a word");

/* A state's data in a second place. Returns 0 if it has none, or if that has gone. */
static __always_inline struct pf_second *pf_second_of(u32 place, const struct pf_state *s)
{
	struct pf_second *k = s && (s->flags & PF_STATE_TWO) ? pf_second_at(s) : 0;

	return k && (k->flags & PF_STATE_KEY) && k->other == place + 1 ? k : 0;
}

/*
 * Subtracts a translated state from a node that counts it, an enum pf_second_node. The node is
 * remembered for a while, unless it should be forgotten. Returns 1 if the node counted the state.
 */
__noinline u32 pf_second_uncount(u32 place, u32 what, u32 forget, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_source_key key = {};
	struct pf_source *n;
	struct pf_second *k;
	u32 time = 0, bit;

	what &= PF_SECOND_NODES - 1;
	bit = 1u << what;
	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !s)
		return 0;
	if (!pf_second_key(&key, 0, place, what, pf_second_sides(place, what)))
		return 0;
	k = pf_second_of(place, s);
	if (!k || !(__sync_fetch_and_and((u32 *)&k->nodes, ~bit) & bit))
		return 0;
	n = bpf_map_lookup_elem(&pf_sources, &key);
	if (!n)
		return 0;
	if (key.kind < PF_SOURCE_LEAST && !forget)
		time = pf_source_time(s);
	WRITE_ONCE(n->expires, now + time);
	if (__sync_fetch_and_sub(&n->states, 1) == 1 && !time)
		pf_source_free(&key, n);
	return 1;
}

/* Subtracts a translated state from all nodes that count it. */
__noinline u32 pf_second_leave(u32 place, u32 now)
{
	struct pf_second *k = pf_second_of(place, pf_state_at(place));

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !k)
		return 0;
	for (u32 what = 0; what < PF_SECOND_NODES; what++)
		if (k->nodes >> what & 1)
			pf_second_uncount(place, what, false, now);
	return 0;
}

/*
 * Counts a translated state for all its nodes, except for its mapping, which has been taken before.
 * Returns 0, or the reason for a failure.
 */
__noinline u32 pf_second_enter(u32 place, u32 now)
{
	struct pf_state *s = pf_state_at(place);
	struct pf_second *k = s ? pf_second_at(s) : 0;
	u32 reason;

	if (!on(FEATURE_PF_NAT) || !k)
		return DROP_PF_TRANSLATE;
	if (!on(FEATURE_PF_SOURCES))
		return 0;
	for (u32 what = 0; what < PF_SECOND_NODES; what++) {
		if (what == PF_SECOND_MAP || !(k->nodes >> what & 1))
			continue;
		reason = pf_second_count(place, what, now);
		if (!reason)
			continue;
		k->nodes &= ((1u << what) - 1) | 1u << PF_SECOND_MAP;
		pf_second_leave(place, now);
		return reason;
	}
	return 0;
}
