/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Mappings: with endpoint-independent, all connections of a UDP port get one address and port (RFC
 * 4787, 4.1). Two nodes remember a mapping, one by each of its ends.
 */
#pragma once

#include "source.h"
#include "track.h"

/*
 * Makes the key of the translated packet. This is a separate function, to save room on the stack.
 */
__noinline u32 pf_nat_key(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	bool own;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return 0;
	own = p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP;
	pf_key_set(&n->is, &n->is_side, n->now.src, n->now.dst, n->now.sport, n->now.dport, own);
	n->is.vlan = p->key.vlan & ~PF_OUTWARD;
	if (pf_called(p, p->direction) != n->is_side)
		n->is.vlan |= PF_OUTWARD;
	n->is.vlan ^= n->turn;
	n->is.proto = n->proto;
	n->is.profile = 0;
	return 0;
}

/* Do all connections of the packet's UDP port share one mapping? */
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

/* Is the packet's new source, with its port, not the mapping of another source? */
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
	return !has || pf_map_is(has, own, n->was.port[n->was_side & 1]);
}

/* Gives the packet the mapping of its source, if there is one. */
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

/* Should the packet's state count for a mapping? */
static __always_inline bool pf_nat_mapped(const struct pf_nat *n)
{
	return n->nodes >> PF_SECOND_MAP & 1;
}

/*
 * Takes the mapping of the packet's source before its state is made. If another CPU has made one
 * since the rules were evaluated, it overrides the packet's own rules. Returns false if there is no
 * room for a mapping.
 */
__noinline u32 pf_map_take(u32 now)
{
	struct pf_source fresh = {.states = 1, .created = now, .last = now};
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	struct pf_source_key key;
	struct pf_source *has;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !p || !n)
		return false;
	pf_map_key(&key, n, PF_SOURCE_MAP);
	__builtin_memcpy(fresh.address, n->now.src, sizeof(fresh.address));
	fresh.port = n->now.sport;
	for (u32 tries = 0; tries < PF_SOURCE_TRIES; tries++) {
		has = bpf_map_lookup_elem(&pf_sources, &key);
		if (!has) {
			if (!bpf_map_update_elem(&pf_sources, &key, &fresh, BPF_NOEXIST))
				return true;
			continue;
		}
		if (__sync_fetch_and_add(&has->states, 1) & PF_SOURCE_GOING) {
			__sync_fetch_and_sub(&has->states, 1);
			continue;
		}
		if (!pf_map_is(has, n->now.src, n->now.sport)) {
			__builtin_memcpy(n->now.src, has->address, sizeof(n->now.src));
			n->now.sport = has->port;
			pf_nat_key();
			n->is_vacant = false;
		}
		return true;
	}
	return false;
}

/* Returns the mapping of pf_map_take(), if no state has received it. */
__noinline u32 pf_map_leave(void)
{
	struct pf_nat *n = pf_nat();
	struct pf_source_key key;
	struct pf_source *has;

	if (!on(FEATURE_PF_SOURCES) || !on(FEATURE_PF_NAT) || !n)
		return 0;
	pf_map_key(&key, n, PF_SOURCE_MAP);
	has = bpf_map_lookup_elem(&pf_sources, &key);
	if (has && __sync_fetch_and_sub(&has->states, 1) == 1)
		pf_source_free(&key, has);
	return 0;
}
