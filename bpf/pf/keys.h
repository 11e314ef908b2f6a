/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Both keys of a state that translates. They are published together or not at all: a packet that
 * has found one is rewritten to the other.
 */
#pragma once

#include "mapping.h"

const struct pf_second *pf_second_type __attribute__((unused));

_Static_assert(sizeof(struct pf_second) == sizeof(struct pf_state) &&
		       offsetof(struct pf_second, flags) == offsetof(struct pf_state, flags) &&
		       offsetof(struct pf_second, other) == offsetof(struct pf_state, diff),
	       "a second key has another form");

/*
 * The second key of a state at a place (+ 1). Returns 0 if it has gone with the state a moment ago:
 * nothing else is there yet.
 */
static __always_inline struct pf_state *pf_state_second(const struct pf_state *s, u32 place)
{
	struct pf_state *k = pf_state_at(PF_STATE_OTHER(s) - 1);

	return k && (k->flags & PF_STATE_KEY) && PF_STATE_OTHER(k) == place ? k : 0;
}

/*
 * Fills in both keys of this CPU's packet, whose state has a second one: its original key, and its
 * new one. `second`: the packet has arrived with the second key.
 */
static __always_inline void pf_nat_keys(struct pf_nat *n, const struct pf_packet *p,
					const struct pf_state *s, const struct pf_state *k,
					u32 second)
{
	u32 side = (p->flags & PF_P_ERROR ? p->quoted_side : p->side) & 1;
	u32 turned = side ^ !!((s->flags ^ k->flags) & PF_STATE_SECOND);

	if (second) {
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
}

/* Gives the packet its stack key, or its wire key. */
__noinline int pf_nat_turn(bool wire)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return 0;
	/* packets out of the host now have the form on the wire */
	if (wire == !!pf_called(p, p->direction & 1)) {
		p->key = n->is;
		p->side = n->is_side;
		p->vacant = n->is_vacant;
	} else {
		p->key = n->was;
		p->side = n->was_side;
		p->vacant = n->was_vacant;
	}
	return 0;
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

/*
 * Claims a place for the packet's key, if necessary from a state that is over. Returns the place +
 * 1, or 0.
 */
static __always_inline u32 pf_nat_claim(u32 now)
{
	u32 place = pf_claim_packet(now);

	return place ? place : pf_claim_packet_over(now);
}

/* Releases a place that was claimed. */
static __always_inline void pf_unclaim(u32 place, u32 now)
{
	u32 *mark = place ? pf_mark_at(place - 1) : 0;

	if (mark)
		WRITE_ONCE(*mark, pf_mark_gone(now));
}

/* Keeps the next hop of a rule in the second place of a state. */
static __always_inline void pf_hop_keep(struct pf_second *k, struct pf_state *s,
					const struct pf_nat *n)
{
	if (!n->hop_rule)
		return;
	__builtin_memcpy(k->hop, n->hop, sizeof(k->hop));
	k->kind = n->hop_kind;
	k->hop_port = n->hop_port;
	s->flags |= PF_STATE_HOP;
}

/* Fills in the second key of a state. Each key is at its place. */
__noinline u32 pf_nat_join(u32 place, u32 key)
{
	struct pf_state *s = pf_state_at(place), *k = pf_state_at(key);
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !s || !k || !p || !n)
		return false;
	__builtin_memset(k, 0, sizeof(*k));
	pf_nat_turn(false);
	k->key = p->key;
	k->flags = PF_STATE_KEY | (p->side ? PF_STATE_SECOND : 0);
	PF_STATE_OTHER(k) = place + 1;
	if (on(FEATURE_PF_SOURCES)) {
		struct pf_second *more = (struct pf_second *)k;

		more->sticky[0] = n->sticky[0];
		more->sticky[1] = n->sticky[1];
		more->sticky[2] = n->sticky[2];
		more->ruleset = cfg.pf.ruleset;
		more->nodes = n->nodes;
		n->nodes = 0; /* they are the state's now */
	}
	pf_nat_turn(true);
	if (on(FEATURE_PF_HOPS))
		pf_hop_keep((struct pf_second *)k, s, n);
	if (!on(FEATURE_PF_HOPS) || n->on)
		s->flags |= PF_STATE_NAT;
	/* answers arrive at another port than the one that the packet leaves through */
	if (on(FEATURE_PF_FAMILY) && n->cross == PF_CROSS_NEW)
		s->flags &= ~PF_STATE_IF_BOUND;
	PF_STATE_OTHER(s) = key + 1;
	return true;
}

/* Does pf_nat_make()'s work for a packet whose mapping has been taken. */
static __always_inline u32 pf_nat_put(u32 in, u32 out, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 ready, place, key, reason;
	bool vacant;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	vacant = on(FEATURE_PF_FIRST) && n->was_vacant && n->is_vacant;
	if (vacant) {
		/* the limit is checked when the state is counted */
		ready = pf_keeps(p->rule[0]) || pf_keeps(p->rule[1]) ? PF_MAKE_ONE : PF_MAKE_NONE;
	} else {
		pf_nat_turn(false);
		ready = pf_nat_ready(now);
	}
	pf_nat_turn(true);
	if (!vacant && ready == PF_MAKE_ONE)
		ready = pf_nat_ready(now);
	if (ready == PF_MAKE_NONE || ready == PF_MAKE_TAKEN)
		return DROP_PF_TRANSLATE;
	place = ready == PF_MAKE_ONE ? pf_nat_claim(now) : 0;
	pf_nat_turn(false);
	key = place ? pf_nat_claim(now) : 0;
	pf_nat_turn(true);
	reason = DROP_PF_LIMIT;
	if (place && key && pf_fill(place - 1, in, out, now) && pf_nat_join(place - 1, key - 1))
		reason = pf_second_enter(place - 1, now);
	if (!reason) {
		if (pf_enter(place - 1, now)) {
			reason = pf_begin(place - 1, now);
			if (reason)
				return reason;
			p = pf_packet(); /* both read again, rather than kept on the stack */
			n = pf_nat();
			if (!p || !n)
				return DROP_PF_TRANSLATE;
			/* a second place on its own has no key to be found by */
			if (on(FEATURE_PF_HOPS) && !n->on)
				return p->state ? 0 : DROP_PF_TRANSLATE;
			/* another CPU may have made the state of a packet like this one */
			return p->state && pf_publish_key(place - 1, now) ? 0 : DROP_PF_TRANSLATE;
		}
		pf_second_leave(place - 1, now);
		reason = DROP_PF_LIMIT;
	}
	if (!place || !key)
		pf_count(PF_COUNT_MEMORY);
	pf_unclaim(place, now);
	pf_unclaim(key, now);
	if (reason == DROP_PF_LIMIT)
		pf_uncount();
	return reason;
}

/*
 * Would the answers to the translated packet find its state? The kernel does not route link-local
 * addresses. A packet from an address to itself has two different ports, or is its own answer.
 */
static __always_inline bool pf_nat_answers(const struct pf_nat *n)
{
	const struct pf_key *is = &n->is;

	if (pf_of_link(is->address[0]) || pf_of_link(is->address[1]))
		return false;
	return pf_differ(is->address[0], is->address[1]) ||
	       (pf_nat_has_ports(is->proto) && is->port[0] != is->port[1]);
}

/*
 * Makes the state of a packet that rules have translated. Returns 0, or the reason for a failure.
 * Then the packet must not be sent, whatever its rules say: nothing would translate the answers
 * back.
 */
__noinline u32 pf_nat_make(u32 in, u32 out, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();
	u32 reason;

	if (!on(FEATURE_PF_NAT) || !p || !n)
		return DROP_PF_TRANSLATE;
	if ((p->flags & PF_P_STATELESS) || !pf_nat_answers(n))
		return DROP_PF_TRANSLATE;
	if (on(FEATURE_TRACE)) /* a trial keeps nothing */
		return pf_keeps(p->rule[0]) || pf_keeps(p->rule[1]) ? 0 : DROP_PF_TRANSLATE;
	if (on(FEATURE_PF_SOURCES) && pf_nat_mapped(n) && !pf_map_take(now))
		return DROP_PF_TRANSLATE;
	reason = pf_nat_put(in, out, now);
	if (on(FEATURE_PF_SOURCES) && pf_nat_mapped(n))
		pf_map_leave();
	return reason;
}
