/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* This CPU's data about a packet that is translated: see translate.h. */
#pragma once

#include "packet.h"

/* Addresses and ports of a packet, as in a packet. For an echo, `sport` is the identifier. */
struct pf_tuple {
	u32 src[4];
	u32 dst[4];
	u16 sport;
	u16 dport;
};

/*
 * A packet that does not go on like others: its connection has a key of each family, or a next hop
 * of its own.
 */
enum pf_cross {
	PF_CROSS_NOT,
	PF_CROSS_DONE, /* that has been done: it leaves the host */
	/* through a next hop, n->hop: see hop.h */
	PF_CROSS_STAY, /* it goes on like others; its new state will have a next hop */
	PF_CROSS_COPY, /* the same, but a copy goes to the next hop */
	PF_CROSS_HOP, /* it goes there itself, or to a socket of the host */
	PF_CROSS_KNOWN, /* it must go on in the other family; its state is known */
	PF_CROSS_NEW, /* the same, by n->rule; a state must be made */
};

struct pf_nat {
	/* the first packet of a connection */
	struct pf_key was; /* its key before any translation, and the side that sends it */
	struct pf_key is; /* its key now */
	struct pf_tuple now; /* its new key */
	u32 rule; /* number + 1 of the next rule to translate it */
	u32 left; /* remaining translations of this rule */
	u32 at; /* place of the next of them among the words of sets */
	struct pf_translation t;
	struct pf_pool_network network;
	u64 place; /* of an address in a pool */
	u32 low; /* networks of the pool that may have it: see pf_pool_step() */
	u32 high;
	u32 tries; /* addresses of the pool that have been tried in vain */
	u32 spent; /* ports that have been looked at */
	/* how its rules are evaluated, and their result */
	u32 slot;
	u32 how;
	u32 received;
	u32 reason;
	u16 port_low; /* the ports, or identifiers, to choose from */
	u16 port_high;
	u16 port_first; /* the last one that was guessed */
	u16 turn; /* PF_OUTWARD if its sender sends out of the host after translation */
	u8 was_side;
	u8 is_side;
	u8 on; /* rules have translated it */
	u8 last; /* the rule is the one that passes it */
	u8 found; /* there is a port */
	u8 echo; /* its identifier replaces a source port */
	/* any packet */
	u8 out; /* it leaves the host */
	u8 seeks; /* pf_pool_step() looks for the network of an address, n->to */
	u8 cross; /* enum pf_cross */
	u8 proto; /* of the translated first packet */
	u8 second; /* it was found by the second key of its state */
	u8 guesses; /* number of ports to guess first */
	u8 was_vacant; /* no state has the key `was`, or `is`, as far as pf has looked */
	u8 is_vacant;
	u16 sticky[3]; /* as struct pf_second has them */
	u16 nodes;
	u64 next; /* least-states: the next place to look at */
	u64 best; /* and the place with the fewest states */
	u64 load; /* states of that one for its weight */
	u64 looked; /* number of places looked at */
	/* an address to change in it */
	u32 from[4];
	u32 to[4];
	/* next hops */
	u32 hop[4];
	u32 hop_rule; /* number + 1 of a first packet's rule that sets it; 0 for none */
	u32 hop_refused; /* type and code of the message, if it cannot go there; 0 for none */
	u32 hop_mtu; /* of its way, where it is too large */
	u8 hop_kind; /* enum pf_translation_kind */
	u8 hop_cut; /* it is too large for its way, and may be fragmented */
	u8 marked; /* pf has sent the packet through this port: see PF_HOP_MARK */
	u16 hop_port; /* where it is diverted to, at n->hop */
	u32 mark; /* the mark that it had then */
};

WORK_HOLDS(struct pf_nat);

static __always_inline struct pf_nat *pf_nat(void)
{
	return work_of(WORK_PF_NAT);
}

/* Does a protocol have ports of its own that are translated? */
static __always_inline bool pf_nat_has_ports(u32 proto)
{
	return proto == IPPROTO_TCP || proto == IPPROTO_UDP;
}

static __always_inline bool pf_differ(const u32 *a, const u32 *b)
{
	return a[0] != b[0] || a[1] != b[1] || a[2] != b[2] || a[3] != b[3];
}

/* Have rules translated this CPU's packet, whose state must be made? */
static __always_inline bool pf_translated(void)
{
	struct pf_nat *n = on(FEATURE_PF_NAT) ? pf_nat() : 0;

	return n && n->on;
}

/* The enum pf_cross of this CPU's packet, whose connection pf has looked for. */
static __always_inline u32 pf_cross(void)
{
	struct pf_nat *n = on(FEATURE_PF_FAMILY | FEATURE_PF_HOPS) ? pf_nat() : 0;

	return n ? n->cross : PF_CROSS_NOT;
}

/* The reason to drop a packet that cannot have its rule's next hop, by enum pf_translation_kind. */
static __always_inline u32 pf_hop_reason(u32 kind)
{
	return kind >= PF_DIVERT_TO ? DROP_PF_DIVERT : DROP_PF_ROUTE;
}

/* Why such a packet is dropped. */
static __always_inline u32 pf_cross_reason(void)
{
	struct pf_nat *n = on(FEATURE_PF_HOPS) ? pf_nat() : 0;

	return n && n->cross <= PF_CROSS_HOP ? pf_hop_reason(n->hop_kind) : DROP_PF_TRANSLATE;
}

/* Does the state to be made for this CPU's packet need a second place? */
static __always_inline bool pf_second_wanted(void)
{
	struct pf_nat *n = on(FEATURE_PF_NAT) ? pf_nat() : 0;

	return n && (n->on || (on(FEATURE_PF_HOPS) && n->hop_rule));
}

/* Does a rule set a next hop for this CPU's packet, whose state must be made? */
static __always_inline bool pf_hop_wanted(void)
{
	struct pf_nat *n = on(FEATURE_PF_HOPS) ? pf_nat() : 0;

	return n && n->hop_rule;
}
