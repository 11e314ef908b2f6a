/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Translation at host ports: nat-to and rdr-to. Rules translate the first packet of a connection
 * during their evaluation: rules behind a match rule see the new addresses. The state has both
 * keys. Its packets are rewritten from one to the other, when they enter the switch if the state is
 * known. A packet that cannot be translated is dropped.
 *
 * A packet has the wire key when rules at ports other than the host's are evaluated. So these see
 * the packet on the wire.
 */
#pragma once

#include "follow.h"
#include "ports.h"

/* The size in bytes between IP's headers and the data in a segment of a GSO packet. */
static __always_inline u32 pf_segment_header(const struct pf_packet *p)
{
	return p->proto == IPPROTO_TCP ? TCP_HEADER + p->options * 4 : sizeof(struct udphdr);
}

#define PF_TRANSLATE 0xfd /* no enum drop_reason: the packet must be translated first */
#define PF_TRANSLATIONS 80 /* most translations of a packet, including attempts */

/*
 * Gives the packet a new source, to replace n->from. Returns 0, the reason to drop it, or
 * PF_TRANSLATE if another address of the pool should be tried.
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
				pf_pool_notes(n, PF_POOL_NAT);
				return pf_nat_port(true) ? 0 : DROP_PF_TRANSLATE;
			}
		}
		if (pf_is_dry(n, p))
			return DROP_PF_TRANSLATE;
	}
	if (!pf_pool_choose(PF_POOL_NAT, n->tries))
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
	if (!pf_pool_choose(PF_POOL_RDR, false))
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

/* Records a packet before its first translation. */
static __always_inline void pf_nat_begin(struct pf_nat *n, const struct pf_packet *p)
{
	u32 side = p->side & 1;
	bool own = p->proto == IPPROTO_TCP || p->proto == IPPROTO_UDP;

	n->was = p->key;
	n->was_side = side;
	n->was_vacant = p->vacant;
	n->is_vacant = false;
	__builtin_memcpy(n->now.src, p->key.address[side], 16);
	__builtin_memcpy(n->now.dst, p->key.address[!side], 16);
	n->now.sport = p->key.port[own && side];
	n->now.dport = own ? p->key.port[!side] : pf_kind_turn(p->key.port[1], side);
	n->echo = (p->proto == IPPROTO_ICMP && n->now.dport == ICMP_ECHO) ||
		  (p->proto == IPPROTO_ICMPV6 && n->now.dport == ICMPV6_ECHO_REQUEST);
	n->nodes = 0;
	n->proto = p->key.proto;
	n->turn = 0;
	n->on = true;
}

/*
 * Makes the next translation of the current rule. Returns PF_TRANSLATE if there are more, 0 if it
 * was the last, or the reason to drop the packet.
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
		} else {
			n->is_vacant = false; /* that key has not been looked up */
		}
		pf_nat_key();
	}
	n->at = next;
	n->tries = 0;
	if (--n->left)
		return PF_TRANSLATE;
	n->at = 0;
	p->key = n->is;
	p->side = n->is_side;
	p->flags &= ~PF_P_CHOSEN;
	/* an unchanged packet needs no second key */
	n->on = !pf_key_is(&n->is, &n->was);
	return 0;
}

/* Records for `bascule trace` that a match rule (number + 1) translates the packet. */
static __always_inline void pf_match_tell(u32 rule)
{
	struct pf_packet *p = pf_packet();
	struct traced *t = watch_memory();
	u32 i;

	if (!t || !p)
		return;
	for (i = 0; i < TRACED_MATCHES; i++) {
		u16 *match = &t->pf_match[p->direction & 1][i];

		if (!*match) {
			*match = rule;
			return;
		}
	}
}

/* Has the walk met a rule that translates the packet before the walk continues? */
static __always_inline bool pf_translation_asked(void)
{
	struct pf_walk *w = pf_walk();
	struct pf_nat *n = pf_nat();

	if (!w || !n || !w->resume)
		return false;
	n->rule = w->resume;
	n->at = 0;
	n->last = false;
	if (on(FEATURE_TRACE))
		pf_match_tell(n->rule);
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
