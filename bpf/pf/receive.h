/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* By which port a packet was received, and where one has come from that the host sends. */
#pragma once

#include "life.h"

/*
 * Notes where a packet that the host sends has come from, if a state has seen it on its way into
 * the host: by which host port, and with which tag. The keys of its two ways differ in one bit. The
 * packet goes in to the host by a wire key, and out of it by a stack key, so of the state before
 * that is its stack key. What the host itself has made has no such state.
 */
__noinline int pf_came_across(u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s, *k = 0;
	u32 side, place, port;
	struct pf_key *key;

	if (!on(FEATURE_PF_HOST) || !p || (p->flags & (PF_P_ERROR | PF_P_ND)))
		return 0;
	side = p->side;
	key = &p->quoted; /* no other packet is quoted */
	*key = p->key;
	if (on(FEATURE_PF_NAT) && p->state) {
		s = pf_state_at(p->state - 1);
		k = s && (s->flags & PF_STATE_NAT) ? pf_state_at(PF_STATE_OTHER(s) - 1) : 0;
		if (k) {
			side ^= !!((s->flags ^ k->flags) & PF_STATE_SECOND);
			*key = k->key;
		}
	}
	if (!(key->vlan & PF_ROUTED))
		return 0;
	key->vlan ^= PF_OUTWARD;
	key->profile = 0;
	place = pf_state_find(key);
	k = place ? pf_state_at(place - 1) : 0;
	s = k;
	if (on(FEATURE_PF_NAT) && k && (k->flags & (PF_STATE_NAT | PF_STATE_KEY)))
		s = k->flags & PF_STATE_KEY ? pf_state_at(PF_STATE_OTHER(k) - 1) : 0;
	if (!s || pf_state_over(s, now))
		return 0;
	if (cfg.pf.asks & PF_ASK_TAG)
		p->tag = pf_state_tag(s);
	port = side == !!(k->flags & PF_STATE_SECOND) ? s->out : s->in;
	if (pf_to_host(port) && port_at(port)->id == port)
		p->came = SLOT(port);
	return 0;
}

/*
 * Notes by which port the packet was received, as rules at a port see it. What comes from the host
 * has been received by the host port by which it came to the host. Rules at the host port that it
 * leaves by know no other. Rules at a station's port see the host's in its place.
 */
static __always_inline void pf_receive(struct pf_packet *p, u32 slot, u32 received)
{
	p->received = received;
	if (!on(FEATURE_PF_HOST) || !(cfg.pf.asks & PF_ASK_RECEIVED) || !pf_to_host(received))
		return;
	if (p->came || slot == received)
		p->received = p->came;
}
