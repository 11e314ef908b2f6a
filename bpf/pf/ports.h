/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Ports of translated sources, and identifiers of echoes: a packet gets a free one, so that the
 * answers find their connection. A failed search is not repeated at once.
 */
#pragma once

#include "pool.h"

/*
 * Would another connection get the answers to the translated packet? A connection that is over gets
 * none, and neither does one that the packet begins anew.
 */
static __always_inline bool pf_nat_taken(struct pf_nat *n, const struct pf_packet *p)
{
	struct pf_state *s, *k;
	u32 place;

	if (pf_nat_maps(n, p) && !pf_map_free())
		return true;
	place = pf_state_find(&n->is);
	n->is_vacant = !place;
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

/*
 * Ports to guess before the search goes through them one after another. A search from a port on
 * creates long rows of taken ports, which the next one must pass: when nine in ten are taken,
 * guesses find a free one after ten, and such searches after fifty.
 */
#define PF_PORT_GUESSES 32

/*
 * A step of the search for a free port: first guesses, and then each port from the last guess on,
 * up and then down.
 */
static long pf_port_step(u32 i, void *unused)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 up, port;

	if (!n || !p)
		return 1;
	if (i < n->guesses) {
		port = n->port_high - n->port_low + 1;
		port = n->port_low + ((u64)bpf_get_prandom_u32() * port >> 32);
		n->port_first = port;
	} else {
		up = n->port_high - n->port_first;
		i -= n->guesses - 1;
		port = i <= up ? n->port_first + i : n->port_first - (i - up);
	}
	n->now.sport = bpf_htons(port);
	pf_nat_key();
	n->found = !pf_nat_taken(n, p);
	return n->found;
}

/*
 * Gives the packet a free port together with its new source. If `stays`, it keeps its port, which
 * must be free.
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
	n->guesses = all < PF_PORT_GUESSES ? 1 : PF_PORT_GUESSES;
	if (!stays)
		n->spent += all;
	bpf_loop(n->guesses - 1 + all, pf_port_step, 0, 0);
	return n->found;
}

/*
 * Addresses of a pool that are tried for one packet, and ports that are looked at: all of four
 * addresses.
 */
#define PF_POOL_TRIES 64
#define PF_PORT_TRIES 65536

/*
 * A failed search for a port. It may have looked at all ports of some addresses, and costs as much
 * as thousands of packets. So it is not repeated at once, or a station could keep a CPU busy with
 * connections that get no port.
 */
struct pf_dry {
	u64 what; /* a hash of the search's subject */
	u64 until; /* nanoseconds since boot */
};

#define PF_DRY_PLACES (WORK_BYTES / sizeof(struct pf_dry))
/* A look at a port takes about a tenth of this: failed searches take at most a tenth of a CPU. */
#define PF_DRY_NANOSECONDS 2000

struct pf_dry_table {
	struct pf_dry place[PF_DRY_PLACES];
};

WORK_HOLDS(struct pf_dry_table);

/* The place of a search like this packet's. `what` identifies it. */
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

/* Did a search for a packet like this fail a moment ago? */
static __always_inline bool pf_is_dry(const struct pf_nat *n, const struct pf_packet *p)
{
	u64 what;
	struct pf_dry *d = pf_dry_place(n, p, &what);

	return d && d->what == what && bpf_ktime_get_ns() < d->until;
}

/* Records that there is no port for packets like this. A trial records nothing. */
static __always_inline void pf_note_dry(const struct pf_nat *n, const struct pf_packet *p)
{
	u64 what;
	struct pf_dry *d = pf_dry_place(n, p, &what);

	if (!d || on(FEATURE_TRACE))
		return;
	d->what = what;
	d->until = bpf_ktime_get_ns() + (u64)n->spent * PF_DRY_NANOSECONDS;
}
