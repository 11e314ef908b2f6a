/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Addresses of pools: the choice of one to replace a packet's source or destination. */
#pragma once

#include "track.h"

/* Puts the types into BTF for Go: no map has them. */
const struct pf_translation *pf_translation_type __attribute__((unused));
const struct pf_pool_network *pf_pool_network_type __attribute__((unused));
const enum pf_translation_kind *pf_translation_kind_type __attribute__((unused));
const enum pf_translation_flag *pf_translation_flag_type __attribute__((unused));
const enum pf_pool_method *pf_pool_method_type __attribute__((unused));
const enum pf_source_kind *pf_source_kind_type __attribute__((unused));
const enum pf_second_node *pf_second_node_type __attribute__((unused));

#define PF_WORDS_OF(type) ((u32)(sizeof(type) / 8))

/* Reads the pool's network with a number. */
static __always_inline void pf_pool_read(struct pf_nat *n, u32 number)
{
	pf_words_read(n->at + PF_WORDS_OF(n->t) + number * PF_WORDS_OF(n->network), &n->network,
		      sizeof(n->network));
}

/* Is an address at most as high as another? */
static __always_inline bool pf_before(const u32 *a, const u32 *b)
{
#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		if (a[i] != b[i])
			return bpf_ntohl(a[i]) < bpf_ntohl(b[i]);
	}
	return true;
}

/*
 * A step of the search for the network that has the address of a place in the pool. In a pool whose
 * networks are sorted, it can search for the last one that does not begin behind n->to.
 */
static long pf_pool_step(u32 i, void *unused)
{
	struct pf_nat *n = pf_nat();
	u32 middle;

	if (!n || n->high - n->low <= 1)
		return 1;
	middle = n->low + (n->high - n->low) / 2;
	pf_pool_read(n, middle);
	if (n->seeks ? pf_before(n->network.address, n->to) : n->network.begin <= n->place)
		n->low = middle;
	else
		n->high = middle;
	return 0;
}

#define PF_POOL_STEPS 32 /* networks are counted in 32 bits */

/* Mixes a number with another, so that each bit depends on all (splitmix64, by S. Vigna). */
static __always_inline u64 pf_mix(u64 a, u64 b)
{
	a = (a ^ b) + 0x9e3779b97f4a7c15ull;
	a = (a ^ a >> 30) * 0xbf58476d1ce4e5b9ull;
	a = (a ^ a >> 27) * 0x94d049bb133111ebull;
	return a ^ a >> 31;
}

/* The hash of an address for source-hash. */
static __always_inline u64 pf_source_hash(const struct pf_nat *n, const u32 *address)
{
	const u64 *words = (const u64 *)address;
	u64 first = n->t.key[0], second = n->t.key[1];

	if (n->t.flags & PF_TRANSLATION_KEYLESS) {
		first = cfg.pf.secret[0];
		second = cfg.pf.secret[1];
	}
	return pf_mix(pf_mix(pf_mix(first, words[0]), words[1]), second);
}

/* Takes a turn of the pool. A trial takes none. */
static __always_inline u64 pf_pool_turn(const struct pf_nat *n)
{
	u32 at = n->at + offsetof(struct pf_translation, turn) / 8;
	u64 *turn = bpf_map_lookup_elem(&pf_words, &at);

	if (!turn || on(FEATURE_TRACE))
		return turn ? *turn : 0;
	return __sync_fetch_and_add(turn, 1);
}

/* Makes the next turn of the pool begin at a place. A trial takes none. */
static __always_inline void pf_pool_turn_to(const struct pf_nat *n, u64 place)
{
	u32 at = n->at + offsetof(struct pf_translation, turn) / 8;
	u64 *turn = bpf_map_lookup_elem(&pf_words, &at);

	if (turn && !on(FEATURE_TRACE))
		WRITE_ONCE(*turn, place);
}

/*
 * Which bits of one of the four words of an address are behind the first `bits`. This has no
 * branches: the verifier would follow each of them for each word.
 */
static __always_inline u32 pf_host_bits(u32 bits, u32 word)
{
	int left = bits - 32 * word, none = left >> 31, all;

	asm("" : "+r"(none)); /* else clang makes branches of it */
	left &= ~none;
	all = (31 - left) >> 31;
	asm("" : "+r"(all));
	return bpf_htonl((~0u >> (left & 31)) & ~all);
}

/* Takes the address of a network, to replace the packet's source or destination. */
__noinline int pf_pool_take(bool destination)
{
	struct pf_nat *n = pf_nat();
	const u32 *old;

	if (!on(FEATURE_PF_NAT) || !n)
		return 0;
	old = destination ? n->now.dst : n->now.src;
	__builtin_memcpy(n->to, n->network.address, sizeof(n->to));
	if (n->t.method == PF_POOL_BITMASK) {
#pragma clang loop unroll(disable)
		for (u32 i = 0; i < 4; i++)
			n->to[i] |= old[i] & pf_host_bits(n->network.bits, i);
	} else if (n->network.weight) {
		/* networks have at most 2^32 usable addresses, and their last bits are 0 */
		n->to[3] = bpf_htonl(bpf_ntohl(n->to[3]) +
				     (u32)((n->place - n->network.begin) / n->network.weight));
	}
	return 0;
}

/* Finds the network that has the address of a place in the pool, and takes the address. */
static __always_inline void pf_pool_at(struct pf_nat *n, bool destination)
{
	n->low = 0;
	n->high = n->t.networks;
	n->seeks = false;
	bpf_loop(PF_POOL_STEPS, pf_pool_step, 0, 0);
	pf_pool_read(n, n->low);
	pf_pool_take(destination);
}

/* Addresses that least-states looks at for one packet. */
#define PF_LEAST_TRIES 1024

/* The number of states of address n->to under least-states. */
__noinline u32 pf_least_states(void)
{
	struct pf_nat *n = pf_nat();
	struct pf_source_key key;
	struct pf_source *has;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n)
		return 0;
	__builtin_memcpy(key.address, n->to, sizeof(key.address));
	key.vlan = n->was.vlan & ~PF_OUTWARD;
	key.rule = 0;
	key.ruleset = 0;
	key.kind = PF_SOURCE_LEAST;
	has = bpf_map_lookup_elem(&pf_sources, &key);
	return has ? READ_ONCE(has->states) : 0;
}

/* Looks at an address of the pool: does it have fewer states for its weight? */
static long pf_least_step(u32 i, void *unused)
{
	struct pf_nat *n = pf_nat();
	u64 load, weight, at;

	if (!n || n->looked >= n->t.length || !n->t.length)
		return 1;
	at = n->place = n->next % n->t.length;
	pf_pool_at(n, false);
	weight = n->network.weight ? n->network.weight : 1;
	load = ((u64)pf_least_states() << 16) / weight;
	if (load < n->load) {
		n->load = load;
		n->best = at;
	}
	/* the places of an address follow each other */
	at = weight - (at - n->network.begin) % weight;
	n->next += at;
	n->looked += at;
	return !load;
}

/* The place of the address of the pool that has the fewest states for its weight. */
static __always_inline u64 pf_pool_least(void)
{
	struct pf_nat *n = pf_nat();
	u32 at;
	u64 *turn;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n)
		return 0;
	at = n->at + offsetof(struct pf_translation, turn) / 8;
	turn = bpf_map_lookup_elem(&pf_words, &at);
	n->next = turn ? *turn : 0;
	n->best = n->next;
	n->load = ~0ull;
	n->looked = 0;
	bpf_loop(PF_LEAST_TRIES, pf_least_step, 0, 0);
	return n->best;
}

/*
 * The place in the pool of the address that the packet gets; with `again`, of one behind the last
 * choice.
 */
static __always_inline u64 pf_pool_place(bool again)
{
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !n)
		return 0;
	if (n->t.method == PF_POOL_ROUND_ROBIN)
		return pf_pool_turn(n);
	if (on(FEATURE_PF_SOURCES) && n->t.method == PF_POOL_LEAST_STATES) {
		u64 place = again ? n->place + 1 : pf_pool_least();

		pf_pool_turn_to(n, place % n->t.length + 1);
		return place;
	}
	if (again)
		return n->place + 1;
	if (n->t.method == PF_POOL_RANDOM)
		return (u64)bpf_get_prandom_u32() << 32 | bpf_get_prandom_u32();
	return n->t.method == PF_POOL_SOURCE_HASH ? pf_source_hash(n, n->now.src) : 0;
}

/* Does the network that was read contain the address n->to? */
static __always_inline bool pf_pool_has(const struct pf_nat *n)
{
	u32 differs = 0;

#pragma clang loop unroll(disable)
	for (u32 i = 0; i < 4; i++)
		differs |= (n->network.address[i] ^ n->to[i]) & ~pf_host_bits(n->network.bits, i);
	return !differs;
}

/* Takes the address that the rule has given the packet's source. Returns false if there is none. */
__noinline u32 pf_sticky_find(u32 use)
{
	struct pf_nat *n = pf_nat();
	struct pf_source_key key;
	struct pf_source *has;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n)
		return false;
	__builtin_memcpy(key.address, n->was.address[n->was_side & 1], sizeof(key.address));
	key.vlan = n->was.vlan & ~PF_OUTWARD;
	key.rule = n->rule;
	key.ruleset = cfg.pf.ruleset;
	key.kind = PF_SOURCE_NAT + use;
	has = bpf_map_lookup_elem(&pf_sources, &key);
	if (!has)
		return false;
	__builtin_memcpy(n->to, has->address, sizeof(n->to));
	return true;
}

/*
 * Takes the packet's source's address from the pool for sticky-address, if it has one that is still
 * in the pool.
 */
__noinline u32 pf_pool_sticks(u32 use)
{
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n || !pf_sticky_find(use))
		return false;
	n->low = 0;
	n->high = n->t.networks;
	n->seeks = true;
	bpf_loop(PF_POOL_STEPS, pf_pool_step, 0, 0);
	pf_pool_read(n, n->low);
	/* another may be tried, from here on */
	n->place = n->network.begin +
		   (u64)(bpf_ntohl(n->to[3]) - bpf_ntohl(n->network.address[3]) + 1) *
			   n->network.weight -
		   1;
	return pf_pool_has(n);
}

/* Records the key that remembers the address from the pool. */
static __always_inline void pf_pool_notes(struct pf_nat *n, u32 use)
{
	if (n->t.method == PF_POOL_LEAST_STATES)
		n->nodes |= 1 << (PF_SECOND_LEAST_NAT + use);
	if (!(n->t.flags & PF_TRANSLATION_STICKY) || n->t.method == PF_POOL_SINGLE)
		return;
	if (use == PF_POOL_HOP)
		n->sticky[PF_POOL_HOP] = n->rule;
	else if (use == PF_POOL_RDR)
		n->sticky[PF_POOL_RDR] = n->rule;
	else
		n->sticky[PF_POOL_NAT] = n->rule;
	n->nodes |= 1 << (PF_SECOND_NAT + use);
}

/*
 * Chooses an address of the pool for an enum pf_pool_use. It replaces the packet's destination with
 * PF_POOL_RDR, else its source. With `again`, it is one behind the last choice. The address is left
 * in n->to. Returns false if there is none.
 */
__noinline u32 pf_pool_choose(u32 use, bool again)
{
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !n || !n->t.length)
		return false;
	/* if tcx judged the packet after all, it would take another turn */
	if (on(FEATURE_PF_FIRST) &&
	    (n->t.method == PF_POOL_ROUND_ROBIN || n->t.method == PF_POOL_LEAST_STATES))
		return false;
	if (on(FEATURE_PF_SOURCES)) {
		pf_pool_notes(n, use);
		if ((n->t.flags & PF_TRANSLATION_STICKY) && n->t.method != PF_POOL_SINGLE &&
		    !again && pf_pool_sticks(use))
			return true;
	}
	n->place = pf_pool_place(again) % n->t.length;
	pf_pool_at(n, use == PF_POOL_RDR);
	return true;
}
