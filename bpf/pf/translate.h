/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Translation at host ports: nat-to and rdr-to. Rules translate the first packet of a
 * connection while they are asked: what rules behind a match rule see are the new
 * addresses. The state has both keys. Its packets are rewritten from the one to the other,
 * when they come in to the switch if the state is known. What cannot be translated is
 * dropped.
 *
 * A packet's key is the wire key when rules at other ports than the host's are asked. So
 * these see what is on the wire.
 */
#pragma once

#include "../checksum.h"
#include "track.h"

/* Puts the types into BTF, for Go: no map has them. */
const struct pf_translation *pf_translation_type __attribute__((unused));
const struct pf_pool_network *pf_pool_network_type __attribute__((unused));
const enum pf_translation_kind *pf_translation_kind_type __attribute__((unused));
const enum pf_translation_flag *pf_translation_flag_type __attribute__((unused));
const enum pf_pool_method *pf_pool_method_type __attribute__((unused));
const enum pf_source_kind *pf_source_kind_type __attribute__((unused));
const struct pf_second *pf_second_type __attribute__((unused));

_Static_assert(sizeof(struct pf_second) == sizeof(struct pf_state) &&
		       offsetof(struct pf_second, flags) == offsetof(struct pf_state, flags) &&
		       offsetof(struct pf_second, other) == offsetof(struct pf_state, diff),
	       "a second key has another form");

#define PF_TRANSLATE 0xfd /* no enum drop_reason: the packet is to be translated first */
#define PF_TRANSLATIONS 80 /* of a packet, at most, with what is tried */

/* Reads words of the table of sets. */
static __always_inline void pf_words_read(u32 at, void *to, u32 bytes)
{
#pragma unroll
	for (u32 i = 0; i < bytes / 8; i++)
		((u64 *)to)[i] = pf_word(at + i);
}

#define PF_WORDS_OF(type) ((u32)(sizeof(type) / 8))

/* Reads the network of the pool with a number. */
static __always_inline void pf_pool_read(struct pf_nat *n, u32 number)
{
	pf_words_read(n->at + PF_WORDS_OF(n->t) + number * PF_WORDS_OF(n->network), &n->network,
		      sizeof(n->network));
}

/* Is an address as low as another, or lower? */
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
 * A step of the search for the network that has the address of a place in the pool; or for the
 * last one that does not begin behind n->to, in a pool whose networks are in their order.
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

/* Has the next turn of the pool begin at a place. A trial takes none. */
static __always_inline void pf_pool_turn_to(const struct pf_nat *n, u64 place)
{
	u32 at = n->at + offsetof(struct pf_translation, turn) / 8;
	u64 *turn = bpf_map_lookup_elem(&pf_words, &at);

	if (turn && !on(FEATURE_TRACE))
		WRITE_ONCE(*turn, place);
}

/* Takes the address of a network, in the place of the packet's source or destination. */
__noinline int pf_pool_take(bool destination)
{
	struct pf_nat *n = pf_nat();
	const u32 *old;

	if (!on(FEATURE_PF_NAT) || !n)
		return 0;
	old = destination ? n->now.dst : n->now.src;
	__builtin_memcpy(n->to, n->network.address, sizeof(n->to));
	if (n->t.method == PF_POOL_BITMASK) {
#pragma unroll
		for (u32 i = 0; i < 4; i++) {
			u64 above = 32 * i, bits = n->network.bits;
			u32 rest = bits <= above ? ~0u : ~0u >> ((bits - above) & 31);

			if (bits < above + 32)
				n->to[i] |= old[i] & bpf_htonl(rest);
		}
	} else if (n->network.weight) {
		/* networks have at most 2^32 addresses that are given, and their last bits are 0 */
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

/* How many states the address n->to has by least-states. */
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

/* Looks at an address of the pool: has it fewer states for its weight? */
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
 * The place in the pool of the address that the packet gets; with `again`, of one that comes
 * behind that of the last choice.
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

/* Has the network that was read the address n->to? */
static __always_inline bool pf_pool_has(const struct pf_nat *n)
{
	u64 bits = n->network.bits;
	bool has = true;

#pragma unroll
	for (u32 i = 0; i < 4; i++) {
		u64 above = 32 * i;
		u32 rest = bits >= above + 32 ? 0
			   : bits <= above    ? ~0u
					      : ~0u >> ((bits - above) & 31);

		has &= !((n->network.address[i] ^ n->to[i]) & bpf_htonl(~rest));
	}
	return has;
}

/* Takes the address that the packet's source has got by the rule. False if it has none. */
__noinline u32 pf_sticky_find(bool destination)
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
	key.kind = PF_SOURCE_NAT + destination;
	has = bpf_map_lookup_elem(&pf_sources, &key);
	if (!has)
		return false;
	__builtin_memcpy(n->to, has->address, sizeof(n->to));
	return true;
}

/*
 * Takes the address that the packet's source has of the pool, if it has one that is still in
 * the pool, as sticky-address says.
 */
__noinline u32 pf_pool_sticks(bool destination)
{
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n || !pf_sticky_find(destination))
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

/* Notes what is to remember the address that the pool gives. */
static __always_inline void pf_pool_notes(struct pf_nat *n, bool destination)
{
	if (n->t.method == PF_POOL_LEAST_STATES)
		n->nodes |= 1 << (PF_SECOND_LEAST_NAT + destination);
	if (!(n->t.flags & PF_TRANSLATION_STICKY) || n->t.method == PF_POOL_SINGLE)
		return;
	if (destination)
		n->sticky[PF_RDR_TO] = n->rule;
	else
		n->sticky[PF_NAT_TO] = n->rule;
	n->nodes |= 1 << (PF_SECOND_NAT + destination);
}

/*
 * Chooses an address of the pool, in the place of the packet's source or destination; with
 * `again`, one that comes behind that of the last choice. The address is left in n->to. False
 * if there is none.
 */
__noinline u32 pf_pool_choose(bool destination, bool again)
{
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !n || !n->t.length)
		return false;
	if (on(FEATURE_PF_SOURCES)) {
		pf_pool_notes(n, destination);
		if ((n->t.flags & PF_TRANSLATION_STICKY) && n->t.method != PF_POOL_SINGLE &&
		    !again && pf_pool_sticks(destination))
			return true;
	}
	n->place = pf_pool_place(again) % n->t.length;
	pf_pool_at(n, destination);
	return true;
}

/* Makes the key of what the packet is to be. */
static __always_inline void pf_nat_key(struct pf_nat *n, const struct pf_packet *p)
{
	bool own = p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP;

	pf_key_set(&n->is, &n->is_side, n->now.src, n->now.dst, n->now.sport, n->now.dport, own);
	n->is.vlan = p->key.vlan & ~PF_OUTWARD;
	if (pf_called(p, p->direction) != n->is_side)
		n->is.vlan |= PF_OUTWARD;
	n->is.vlan ^= n->turn;
	n->is.proto = n->proto;
	n->is.profile = 0;
}

/* Has every connection of the packet's UDP port one mapping? */
static __always_inline bool pf_nat_maps(const struct pf_nat *n, const struct pf_packet *p)
{
	return on(FEATURE_PF_SOURCES) && (n->t.flags & PF_TRANSLATION_ENDPOINT) &&
	       p->proto == IPPROTO_UDP;
}

/* Makes the key of one end of a mapping. */
static __always_inline void pf_map_key(struct pf_source_key *key, const struct pf_nat *n, u32 kind)
{
	bool mapped = kind == PF_SOURCE_MAPPED;

	__builtin_memcpy(key->address, mapped ? n->now.src : n->was.address[n->was_side & 1],
			 sizeof(key->address));
	key->vlan = n->was.vlan & ~PF_OUTWARD;
	key->rule = mapped ? n->now.sport : n->was.port[n->was_side & 1];
	key->ruleset = 0;
	key->kind = kind;
}

/* Is the packet's new source, with its port, the mapping of nobody else? */
__noinline u32 pf_map_free(void)
{
	struct pf_nat *n = pf_nat();
	struct pf_source_key key;
	struct pf_source *has;
	const u32 *own;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n)
		return false;
	pf_map_key(&key, n, PF_SOURCE_MAPPED);
	has = bpf_map_lookup_elem(&pf_sources, &key);
	own = n->was.address[n->was_side & 1];
	return !has || (has->port == n->was.port[n->was_side & 1] && has->address[3] == own[3] &&
			has->address[2] == own[2] && has->address[1] == own[1] &&
			has->address[0] == own[0]);
}

/* Gives the packet the mapping of its source, if that has one. */
__noinline u32 pf_map_find(void)
{
	struct pf_nat *n = pf_nat();
	struct pf_source_key key;
	struct pf_source *has;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n)
		return false;
	pf_map_key(&key, n, PF_SOURCE_MAP);
	has = bpf_map_lookup_elem(&pf_sources, &key);
	if (!has)
		return false;
	__builtin_memcpy(n->now.src, has->address, sizeof(n->now.src));
	n->now.sport = has->port;
	return true;
}

/*
 * Would somebody else get the answers to what the packet is to be? A connection that is over
 * gets none, and neither does one that the packet begins anew.
 */
static __always_inline bool pf_nat_taken(struct pf_nat *n, const struct pf_packet *p)
{
	struct pf_state *s, *k;
	u32 place;

	if (pf_nat_maps(n, p) && !pf_map_free())
		return true;
	place = pf_state_find(&n->is);
	if (!place)
		return false;
	s = pf_state_at(pf_state_of_key(place - 1) - 1);
	if (!s)
		return true;
	if (pf_state_over(s, clock_now()))
		return false;
	k = s->flags & PF_STATE_NAT ? pf_state_at(PF_STATE_OTHER(s) - 1) : 0;
	return !k || !pf_reopens(p, s) ||
	       !(pf_key_is(&k->key, &n->was) || pf_key_is(&s->key, &n->was));
}

/* A step of the search for a free port: from the first one up, and then down. */
static long pf_port_step(u32 i, void *unused)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 up, port;

	if (!n || !p)
		return 1;
	up = n->port_high - n->port_first;
	port = i <= up ? n->port_first + i : n->port_first - (i - up);
	n->now.sport = bpf_htons(port);
	pf_nat_key(n, p);
	n->found = !pf_nat_taken(n, p);
	return n->found;
}

/*
 * Gives the packet a free port together with its new source; if `stays`, its port stays, which
 * has to be free.
 */
__noinline u32 pf_nat_port(bool stays)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 low, high, all;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return false;
	low = n->t.low;
	high = n->t.high;
	n->found = false;
	if (n->echo) {
		low = 1;
		high = 65535;
	} else if (stays || (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP) ||
		   (n->t.flags & PF_TRANSLATION_STATIC)) {
		stays = true;
		low = high = bpf_ntohs(n->now.sport);
	}
	if ((!low && !stays) || high < low)
		return false;
	all = high - low + 1;
	n->port_low = low;
	n->port_high = high;
	n->port_first = low;
	if (!stays) {
		n->port_first += bpf_get_prandom_u32() % all;
		n->spent += all;
	}
	bpf_loop(all, pf_port_step, 0, 0);
	return n->found;
}

/*
 * Addresses of a pool that are tried for one packet, and ports that are looked at: all of
 * four addresses.
 */
#define PF_POOL_TRIES 64
#define PF_PORT_TRIES 65536

static __always_inline bool pf_differ(const u32 *a, const u32 *b)
{
	return a[0] != b[0] || a[1] != b[1] || a[2] != b[2] || a[3] != b[3];
}

/*
 * A search for a port in vain. It may have looked at all ports of some addresses, and costs as much
 * as thousands of packets. So it is not made again at once, or a station could keep a CPU busy by
 * connections that get no port.
 */
struct pf_dry {
	u64 what; /* a hash of what the port was for */
	u64 until; /* nanoseconds since boot */
};

#define PF_DRY_PLACES (WORK_BYTES / sizeof(struct pf_dry))
/* A look at a port takes about a tenth of this: searches in vain take a tenth of a CPU at most. */
#define PF_DRY_NANOSECONDS 2000

struct pf_dry_table {
	struct pf_dry place[PF_DRY_PLACES];
};

WORK_HOLDS(struct pf_dry_table);

/* The place of a search like this packet's, which `what` names. */
static __always_inline struct pf_dry *pf_dry_place(const struct pf_nat *n,
						   const struct pf_packet *p, u64 *what)
{
	struct pf_dry_table *t = work_of(WORK_PF_DRY);
	const u64 *dst = (const u64 *)n->now.dst, *src = (const u64 *)n->from;
	u64 hash;

	hash = pf_mix((u64)n->at << 32 | (u32)p->proto << 16 | n->now.dport, cfg.pf.secret[0]);
	hash = pf_mix(pf_mix(hash, dst[0]), dst[1]);
	/* other sources may have other addresses of the pool */
	if (n->t.method == PF_POOL_SOURCE_HASH || n->t.method == PF_POOL_BITMASK)
		hash = pf_mix(pf_mix(hash, src[0]), src[1]);
	*what = hash;
	return t ? &t->place[hash % PF_DRY_PLACES] : 0;
}

/* Was there no port for a packet like this a moment ago? */
static __always_inline bool pf_is_dry(const struct pf_nat *n, const struct pf_packet *p)
{
	u64 what;
	struct pf_dry *d = pf_dry_place(n, p, &what);

	return d && d->what == what && bpf_ktime_get_ns() < d->until;
}

/* Notes that there is no port for packets like this. A trial notes nothing. */
static __always_inline void pf_note_dry(const struct pf_nat *n, const struct pf_packet *p)
{
	u64 what;
	struct pf_dry *d = pf_dry_place(n, p, &what);

	if (!d || on(FEATURE_TRACE))
		return;
	d->what = what;
	d->until = bpf_ktime_get_ns() + (u64)n->spent * PF_DRY_NANOSECONDS;
}

/*
 * Gives the packet a new source, in the place of n->from: 0, or the reason to drop it, or
 * PF_TRANSLATE if another address of the pool is to be tried.
 */
__noinline u32 pf_nat_source(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u16 port;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	port = n->now.sport;
	if (!n->tries) {
		n->spent = 0;
		if (pf_nat_maps(n, p)) {
			n->nodes |= 1 << PF_SECOND_MAP | 1 << PF_SECOND_MAPPED;
			if (pf_map_find()) {
				pf_pool_notes(n, false);
				return pf_nat_port(true) ? 0 : DROP_PF_TRANSLATE;
			}
		}
		if (pf_is_dry(n, p))
			return DROP_PF_TRANSLATE;
	}
	if (!pf_pool_choose(false, n->tries))
		return DROP_PF_TRANSLATE;
	__builtin_memcpy(n->now.src, n->to, sizeof(n->to));
	if (pf_nat_port(false))
		return 0;
	__builtin_memcpy(n->now.src, n->from, sizeof(n->from));
	n->now.sport = port;
	n->tries++;
	/* the other methods would give the same again */
	if ((n->t.method != PF_POOL_RANDOM && n->t.method != PF_POOL_ROUND_ROBIN &&
	     n->t.method != PF_POOL_LEAST_STATES) ||
	    n->tries >= n->t.length || n->tries >= PF_POOL_TRIES || n->spent >= PF_PORT_TRIES) {
		pf_note_dry(n, p);
		return DROP_PF_TRANSLATE;
	}
	return PF_TRANSLATE;
}

/* Gives the packet a new destination. */
__noinline u32 pf_nat_destination(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 low, high, port;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return false;
	low = n->t.low;
	high = n->t.high;
	if (!pf_pool_choose(true, false))
		return false;
	__builtin_memcpy(n->now.dst, n->to, sizeof(n->to));
	if (!low || (p->proto != IPPROTO_TCP && p->proto != IPPROTO_UDP))
		return true;
	port = low;
	if (high)
		port += (u16)(bpf_ntohs(n->now.dport) - n->t.first) % (high - low + 1);
	n->now.dport = bpf_htons(port);
	return true;
}

/* Notes what a packet is before it is translated for the first time. */
static __always_inline void pf_nat_begin(struct pf_nat *n, const struct pf_packet *p)
{
	u32 side = p->side & 1;
	bool own = p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP;

	n->was = p->key;
	n->was_side = side;
	__builtin_memcpy(n->now.src, p->key.address[side], 16);
	__builtin_memcpy(n->now.dst, p->key.address[!side], 16);
	n->now.sport = p->key.port[own && side];
	n->now.dport = p->key.port[!(own && side)];
	n->echo = (p->proto == IPPROTO_ICMP && p->key.port[1] == ICMP_ECHO) ||
		  (p->proto == IPPROTO_ICMPV6 && p->key.port[1] == ICMPV6_ECHO_REQUEST);
	n->nodes = 0;
	n->proto = p->key.proto;
	n->turn = 0;
	n->on = true;
}

/*
 * Makes the next translation of the rule that has asked for it: PF_TRANSLATE if there are
 * more, 0 if that was the last, or the reason to drop the packet.
 */
static __always_inline u32 pf_translate_next(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_rule *r;
	u32 next, why;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	if (!n->at) {
		n->tries = 0;
		/* a connection that has a state cannot be translated any more */
		if ((p->how & (PF_KNOWN | PF_FLOOD)) || !(p->key.vlan & PF_ROUTED) ||
		    !pf_to_host(p->slot))
			return DROP_PF_TRANSLATE;
		r = pf_rule_at(n->rule);
		if (!r || !r->translations)
			return DROP_PF_TRANSLATE;
		n->at = r->translation;
		n->left = r->translations;
		if (!n->on)
			pf_nat_begin(n, p);
		if (on(FEATURE_PF_FAMILY) && (r->flags & PF_TRANSLATES_FAMILY)) {
			n->cross = PF_CROSS_NEW;
			return 0;
		}
	}
	pf_words_read(n->at, &n->t, sizeof(n->t));
	next = n->at + PF_WORDS_OF(n->t) + n->t.networks * PF_WORDS_OF(n->network);
	if (n->t.family == p->family) {
		if (n->t.kind == PF_NAT_TO) {
			__builtin_memcpy(n->from, n->now.src, sizeof(n->from));
			why = pf_nat_source();
			if (why)
				return why;
		} else if (n->t.kind != PF_RDR_TO || !pf_nat_destination()) {
			return DROP_PF_TRANSLATE;
		}
		pf_nat_key(n, p);
	}
	n->at = next;
	n->tries = 0;
	if (--n->left)
		return PF_TRANSLATE;
	n->at = 0;
	p->key = n->is;
	p->side = n->is_side;
	p->flags &= ~PF_P_CHOSEN;
	/* a packet that stays as it is needs no second key */
	n->on = !pf_key_is(&n->is, &n->was);
	return 0;
}

/* Has a rule been met that translates the packet before more rules are asked? */
static __always_inline bool pf_translation_asked(void)
{
	struct pf_walk *w = pf_walk();
	struct pf_nat *n = pf_nat();

	if (!w || !n || !w->resume)
		return false;
	n->rule = w->resume;
	n->at = 0;
	n->last = false;
	return true;
}

/* Does the rule (number + 1) that passes the packet translate it? */
static __always_inline bool pf_translation_ends(u32 rule)
{
	struct pf_packet *p = pf_packet();
	struct pf_rule *r = pf_rule_at(rule);
	struct pf_nat *n = pf_nat();

	if (!p || !r || !n || !pf_rule_translates(p, r))
		return false;
	n->rule = rule;
	n->at = 0;
	n->last = true;
	return true;
}

/*
 * Changes an address in this CPU's packet, from n->from to n->to. `ip` is where the IPv4
 * header is that has it, and `check` where the checksum is that covers it, with flags of
 * bpf_l4_csum_replace() above; each is 0 for none. False if that cannot be.
 */
__noinline u32 pf_nat_patch(struct __sk_buff *skb, u32 at, u32 ip, u64 check, u32 store)
{
	struct pf_nat *n = pf_nat();
	u32 sum = (u32)check;
	u64 flags = check >> 32;

	if (!on(FEATURE_PF_NAT) || !n)
		return false;
	if (ip) {
		if (n->from[3] == n->to[3])
			return true;
		if (bpf_l3_csum_replace(skb, ip + offsetof(struct iphdr, check), n->from[3],
					n->to[3], 4) ||
		    (sum && bpf_l4_csum_replace(skb, sum, n->from[3], n->to[3], flags | 4)))
			return false;
		return !bpf_skb_store_bytes(skb, at, &n->to[3], 4, 0);
	}
	if (sum &&
	    bpf_l4_csum_replace(skb, sum, 0, bpf_csum_diff(n->from, 16, n->to, 16, 0), flags))
		return false;
	return !bpf_skb_store_bytes(skb, at, n->to, 16, store);
}

/* Changes a port or an identifier. */
static __always_inline bool pf_nat_patch_port(struct __sk_buff *skb, u32 at, u32 check, u16 was,
					      u16 is, u64 flags)
{
	if (was == is)
		return true;
	if (bpf_l4_csum_replace(skb, check, was, is, flags | 2))
		return false;
	return !bpf_skb_store_bytes(skb, at, &is, sizeof(is), 0);
}

#define PF_NAT_SRC4 ((u32)offsetof(struct iphdr, saddr))
#define PF_NAT_DST4 ((u32)offsetof(struct iphdr, daddr))
#define PF_NAT_SRC6 ((u32)offsetof(struct ipv6hdr, saddr))
#define PF_NAT_DST6 ((u32)offsetof(struct ipv6hdr, daddr))

/* Has a protocol ports of its own that are translated? */
static __always_inline bool pf_nat_has_ports(u32 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP;
}

/*
 * Is the checksum at a place made already, while one of what a tunnel carries is yet to be made?
 * The kernel's helpers change no such checksum: they take that of the packet's own header for
 * the one that is yet to be made. That of a GSO packet is, for each segment.
 */
static __always_inline bool pf_nat_is_around(struct __sk_buff *skb, u32 at)
{
	u64 start, place = checksum_place(skb, &start);

	return place && place != at && !skb->gso_size;
}

/*
 * Changes such a checksum of UDP by what the packet becomes, before it does. False if that
 * cannot be.
 */
__noinline u32 pf_nat_around(struct __sk_buff *skb, u32 at)
{
	struct pf_nat *n = pf_nat();
	u64 change = 0;
	u16 check;

	if (!on(FEATURE_PF_NAT) || !n || bpf_skb_load_bytes(skb, at, &check, sizeof(check)))
		return false;
	if (!check) /* there is none (RFC 768) */
		return true;
#pragma unroll
	for (u32 i = 0; i < 2; i++) {
#pragma unroll
		for (u32 j = 0; j < 4; j++)
			change += (u64)(u32)~n->was.address[i][j] + n->is.address[i][j];
		change += (u64)(u16)~n->was.port[i] + n->is.port[i];
	}
	check = ~pf_fold((u16)~check + change);
	if (!check)
		check = 0xffff;
	return !bpf_skb_store_bytes(skb, at, &check, sizeof(check), 0);
}

/* Rewrites the header of a packet, which the side `was_side` of n->was has sent. */
__noinline u32 pf_nat_header(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 ip, sum = 0, ws, is;
	u64 flags = 0, check = 0;
	bool four, around;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return false;
	four = p->family == 4;
	ip = four ? p->l3 : 0;
	ws = n->was_side & 1;
	is = n->is_side & 1;
	if (!(p->flags & PF_P_LATER) && !(four && p->proto == IPPROTO_ICMP) &&
	    p->proto != IPPROTO_SCTP)
		sum = checksum_offset(p->proto);
	if (p->proto == IPPROTO_UDP)
		flags = BPF_F_MARK_MANGLED_0;
	around = sum && p->proto == IPPROTO_UDP && pf_nat_is_around(skb, p->l4 + sum);
	if (around && !pf_nat_around(skb, p->l4 + sum))
		return false;
	if (sum && !around)
		check = (p->l4 + sum) | (flags | BPF_F_PSEUDO_HDR) << 32;
	__builtin_memcpy(n->from, n->was.address[ws], 16);
	__builtin_memcpy(n->to, n->is.address[is], 16);
	if (!pf_nat_patch(skb, p->l3 + (four ? PF_NAT_SRC4 : PF_NAT_SRC6), ip, check,
			  BPF_F_RECOMPUTE_CSUM))
		return false;
	__builtin_memcpy(n->from, n->was.address[!ws], 16);
	__builtin_memcpy(n->to, n->is.address[!is], 16);
	if (!pf_nat_patch(skb, p->l3 + (four ? PF_NAT_DST4 : PF_NAT_DST6), ip, check,
			  BPF_F_RECOMPUTE_CSUM))
		return false;
	if (p->flags & PF_P_LATER)
		return true;
	if (pf_nat_has_ports(p->proto))
		return pf_nat_patch_port(skb, p->l4, p->l4 + sum, n->was.port[ws], n->is.port[is],
					 flags) &&
		       pf_nat_patch_port(skb, p->l4 + 2, p->l4 + sum, n->was.port[!ws],
					 n->is.port[!is], flags);
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6)
		return pf_nat_patch_port(skb, p->l4 + offsetof(struct pf_icmp, id), p->l4 + 2,
					 n->was.port[0], n->is.port[0], 0);
	return true;
}

/*
 * Rewrites one of the addresses that an ICMP error quotes, with its port, and the address of
 * the error itself that belongs to it: an error goes to the sender of what it quotes, and
 * comes from whom that was for. `receiver` chooses which.
 */
__noinline u32 pf_nat_quoted(struct __sk_buff *skb, u32 receiver)
{
	struct pf_packet *p = pf_packet();
	struct pf_slow *s = pf_slow();
	struct pf_nat *n = pf_nat();
	u32 inner, check, ws, is, at, outer;
	u16 was_port = 0, is_port = 0;
	u64 flags = 0;
	bool four, ports;

	if (!on(FEATURE_PF_NAT) || !p || !s || !n)
		return false;
	four = p->family == 4;
	inner = p->l4 + sizeof(struct pf_icmp);
	check = p->l4 + 2;
	ws = (n->was_side ^ receiver) & 1;
	is = (n->is_side ^ receiver) & 1;
	ports = pf_nat_has_ports(p->quoted.proto);
	if (ports) {
		was_port = n->was.port[ws];
		is_port = n->is.port[is];
	}
	__builtin_memcpy(n->from, n->was.address[ws], 16);
	__builtin_memcpy(n->to, n->is.address[is], 16);
	if (!pf_differ(n->from, n->to) && was_port == is_port)
		return true;
	if (receiver)
		at = four ? PF_NAT_DST4 : PF_NAT_DST6;
	else
		at = four ? PF_NAT_SRC4 : PF_NAT_SRC6;
	/* with its own checksum, the header of IPv4 that is quoted adds up to the same */
	if (!pf_nat_patch(skb, inner + at, four ? inner : 0, four ? 0 : check, 0))
		return false;
	if (ports &&
	    !pf_nat_patch_port(skb, s->at + (receiver ? 2 : 0), check, was_port, is_port, 0))
		return false;
	if (receiver)
		at = four ? PF_NAT_SRC4 : PF_NAT_SRC6;
	else
		at = four ? PF_NAT_DST4 : PF_NAT_DST6;
	outer = p->l3 + at;
	if (four) {
		if (bpf_skb_load_bytes(skb, outer, &n->from[3], 4))
			return false;
	} else {
		if (bpf_skb_load_bytes(skb, outer, n->from, 16))
			return false;
		flags = (u64)BPF_F_PSEUDO_HDR << 32 | check;
	}
	return pf_nat_patch(skb, outer, four ? p->l3 : 0, flags, BPF_F_RECOMPUTE_CSUM);
}

/* Rewrites an ICMP error inside out. */
static __always_inline u32 pf_nat_error(struct __sk_buff *skb, const struct pf_packet *p,
					struct pf_nat *n)
{
	struct pf_slow *s = pf_slow();

	if (!s || !pf_nat_quoted(skb, 0) || !pf_nat_quoted(skb, 1))
		return false;
	if (p->quoted.proto == IPPROTO_ICMP || p->quoted.proto == IPPROTO_ICMPV6)
		return pf_nat_patch_port(skb, s->at + offsetof(struct pf_icmp, id), p->l4 + 2,
					 n->was.port[0], n->is.port[0], 0);
	return true;
}

/* Notes for `bascule trace` what the packet has become. */
static __always_inline void pf_nat_tell(const struct pf_nat *n)
{
	struct traced *t = watch_memory();
	u32 side = n->is_side & 1;
	bool own = pf_nat_has_ports(n->is.proto);

	if (!t)
		return;
	__builtin_memcpy(t->nat_src, n->is.address[side], 16);
	__builtin_memcpy(t->nat_dst, n->is.address[!side], 16);
	t->nat_sport = n->is.port[own && side];
	t->nat_dport = own ? n->is.port[!side] : 0;
	t->nat_proto = n->is.proto;
}

/* Rewrites this CPU's packet from n->was to n->is: 0, or the reason to drop it. */
__noinline u32 pf_nat_rewrite(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 done;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	if (on(FEATURE_TRACE))
		pf_nat_tell(n);
	done = p->flags & PF_P_ERROR ? pf_nat_error(skb, p, n) : pf_nat_header(skb);
	return done ? 0 : DROP_PF_TRANSLATE;
}

/*
 * The second key of a state at a place (+ 1); 0 if it has gone with the state a moment ago:
 * nothing else is there yet.
 */
static __always_inline struct pf_state *pf_state_second(const struct pf_state *s, u32 place)
{
	struct pf_state *k = pf_state_at(PF_STATE_OTHER(s) - 1);

	return k && (k->flags & PF_STATE_KEY) && PF_STATE_OTHER(k) == place ? k : 0;
}

/* Rewrites this CPU's packet as its state says, which is known: 0, or the reason to drop it. */
__noinline u32 pf_nat_follow(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_state *s, *k;
	u32 side, turned;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	s = pf_state_at(p->state - 1);
	if (!s || !(s->flags & PF_STATE_NAT) || (on(FEATURE_PF_FAMILY) && n->cross))
		return 0;
	k = pf_state_second(s, p->state);
	if (!k)
		return DROP_PF_TRANSLATE;
	side = (p->flags & PF_P_ERROR ? p->quoted_side : p->side) & 1;
	turned = side ^ !!((s->flags ^ k->flags) & PF_STATE_SECOND);
	if (n->out) {
		n->was = k->key;
		n->was_side = turned;
		n->is = s->key;
		n->is_side = side;
	} else {
		n->was = s->key;
		n->was_side = side;
		n->is = k->key;
		n->is_side = turned;
	}
	return pf_nat_rewrite(skb);
}

/* Gives the packet its stack key, or its wire key. */
static __always_inline void pf_nat_turn(struct pf_packet *p, const struct pf_nat *n, bool wire)
{
	/* what goes out of the host has become what is on the wire */
	if (wire == !!pf_called(p, p->direction & 1)) {
		p->key = n->is;
		p->side = n->is_side;
	} else {
		p->key = n->was;
		p->side = n->was_side;
	}
}

/* Is there room for a state with the packet's key? An enum pf_readiness. */
static __always_inline u32 pf_nat_ready(u32 now)
{
	u32 ready = pf_ready(now);

	if (ready == PF_MAKE_INSTEAD) {
		pf_remove_old(now);
		ready = pf_ready(now);
	}
	return ready;
}

/* Claims a place for the packet's key, if need be that of a state that is over: the place + 1, or
 * 0. */
static __always_inline u32 pf_nat_claim(u32 now)
{
	u32 place = pf_claim_packet(now);

	if (!place)
		place = pf_claim_packet_over(false, now);
	return place ? place : pf_claim_packet_over(true, now);
}

/* Gives up a place that was claimed. */
static __always_inline void pf_unclaim(u32 place, u32 now)
{
	u32 *mark = place ? pf_mark_at(place - 1) : 0;

	if (mark)
		WRITE_ONCE(*mark, pf_mark_gone(now));
}

/* Fills in the second key of a state, each at its place. */
__noinline u32 pf_nat_join(u32 place, u32 key)
{
	struct pf_state *s = pf_state_at(place), *k = pf_state_at(key);
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !s || !k || !p || !n)
		return false;
	__builtin_memset(k, 0, sizeof(*k));
	pf_nat_turn(p, n, false);
	k->key = p->key;
	k->flags = PF_STATE_KEY | (p->side ? PF_STATE_SECOND : 0);
	PF_STATE_OTHER(k) = place + 1;
	if (on(FEATURE_PF_SOURCES)) {
		struct pf_second *more = (struct pf_second *)k;

		more->sticky[0] = n->sticky[0];
		more->sticky[1] = n->sticky[1];
		more->ruleset = cfg.pf.ruleset;
		more->nodes = n->nodes;
	}
	pf_nat_turn(p, n, true);
	s->flags |= PF_STATE_NAT;
	/* answers come by another port than the packet leaves by */
	if (on(FEATURE_PF_FAMILY) && n->cross == PF_CROSS_NEW)
		s->flags &= ~PF_STATE_IF_BOUND;
	PF_STATE_OTHER(s) = key + 1;
	return true;
}

/*
 * Makes the state of a packet that rules have translated: 0, or why it is not made. Then the
 * packet must not go, whatever its rules say: nothing would translate the answers back.
 */
__noinline u32 pf_nat_make(u32 in, u32 out, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 ready, place, key, reason;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	/*
	 * The kernel routes no addresses of a link, and the answers would not find the state. Nor
	 * would those of an address to itself.
	 */
	if ((p->flags & PF_P_STATELESS) || pf_of_link(n->is.address[0]) ||
	    pf_of_link(n->is.address[1]) || !pf_differ(n->is.address[0], n->is.address[1]))
		return DROP_PF_TRANSLATE;
	if (on(FEATURE_TRACE)) /* a trial keeps nothing */
		return pf_keeps(p->rule[0]) || pf_keeps(p->rule[1]) ? 0 : DROP_PF_TRANSLATE;
	pf_nat_turn(p, n, false);
	ready = pf_nat_ready(now);
	pf_nat_turn(p, n, true);
	if (ready == PF_MAKE_ONE)
		ready = pf_nat_ready(now);
	if (ready == PF_MAKE_NONE || ready == PF_MAKE_TAKEN)
		return DROP_PF_TRANSLATE;
	place = ready == PF_MAKE_ONE ? pf_nat_claim(now) : 0;
	pf_nat_turn(p, n, false);
	key = place ? pf_nat_claim(now) : 0;
	pf_nat_turn(p, n, true);
	if (place && key && pf_fill(place - 1, in, out, now) && pf_nat_join(place - 1, key - 1) &&
	    pf_second_enter(place - 1, now)) {
		if (pf_enter(place - 1, now)) {
			reason = pf_begin(place - 1, now);
			if (reason)
				return reason;
			/* another CPU may have made the state of a packet like this one */
			return p->state && pf_publish_key(place - 1, now) ? 0 : DROP_PF_TRANSLATE;
		}
		pf_second_leave(place - 1, now);
	}
	if (!place || !key)
		pf_count(PF_COUNT_MEMORY);
	pf_unclaim(place, now);
	pf_unclaim(key, now);
	pf_uncount_rules();
	return DROP_PF_LIMIT;
}
