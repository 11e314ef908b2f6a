/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The port on which a packet was received, and the origin of a packet that the host sends. */
#pragma once

#include "life.h"

/*
 * Records where a packet that the host sends has come from, if a state has seen it on its way into
 * the host: the host port, and the tag. The keys of its two ways differ in one bit. The packet
 * enters the host with a wire key, and leaves it with a stack key, so the earlier state has that
 * stack key. A packet that the host has made itself has no such state.
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
 * Records the port on which the packet was received, as rules at a port see it. A packet from the
 * host was received on the host port through which it reached the host. Rules at the host port
 * where it leaves know no other. Rules at a station's port see the host port instead.
 */
static __always_inline void pf_receive(struct pf_packet *p, u32 slot, u32 received)
{
	p->received = received;
	if (!on(FEATURE_PF_HOST) || !(cfg.pf.asks & PF_ASK_RECEIVED) || !pf_to_host(received))
		return;
	if (p->came || slot == received)
		p->received = p->came;
}
