/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * pf: the packet filter. A packet of a known connection passes by its state, in both directions.
 * Rules decide about any other packet, where it enters the switch and where it leaves. If they pass
 * the packet, a state is made. XDP follows states, and leaves the rest to tcx.
 */
#pragma once

#include "answer.h"
#include "ether.h"
#include "hop.h"
#include "log.h"
#include "reassemble.h"
#include "receive.h"
#include "rewrite.h"
#include "slow.h"
#include "track.h"
#include "translate.h"

#define PF_TOS_LOWDELAY 0x10 /* RFC 791 */

/* May a packet of the connection arrive at the port? */
static __always_inline bool pf_bound_in(const struct pf_packet *p, const struct pf_state *s, u32 id)
{
	u32 port = pf_forward(p, s) ? s->in : s->out;

	return !(s->flags & PF_STATE_IF_BOUND) || !port || port == id;
}

/*
 * May a packet of a known connection leave through the port without an evaluation of the rules? It
 * may not if no rule has seen that way out yet.
 */
static __always_inline bool pf_covers(const struct pf_packet *p, const struct pf_state *s, u32 id,
				      bool flood)
{
	u32 port = pf_forward(p, s) ? s->out : s->in;

	if (port == id)
		return true;
	if (s->flags & PF_STATE_IF_BOUND)
		return false;
	/* answers go where the first packet came from, wherever that is now */
	return !pf_forward(p, s) || (port && !flood);
}

/* The priority of the frame's outer tag (802.1Q 6.9.3), or else of the kernel's queues. */
static __always_inline u32 pf_priority(struct __sk_buff *skb, void *data, void *data_end)
{
	if (skb->vlan_present)
		return skb->vlan_tci >> 13 & 7;
	if (data + ETHER_HEADER + ETHER_TAG <= data_end && type_is_tag(*(u16 *)(data + 12)))
		return *(u8 *)(data + ETHER_HEADER) >> 5;
	return skb->priority & 7;
}

/* Flags that pf_look() returns with its enum pf_look. */
#define PF_FOUND_WAY (1u << 6) /* the connection may leave through the given port */
#define PF_FOUND_PLAIN (1u << 7) /* the only work left is to follow the state */

/* The flags of a packet whose connection is known: PF_FOUND_. */
static __always_inline u32 pf_found(const struct pf_packet *p, const struct pf_state *s, u32 out)
{
	u32 found = 0;

	if (!(p->flags & (PF_P_ERROR | PF_P_OPTIONS)) &&
	    !(s->flags &
	      (PF_STATE_LOG | PF_STATE_REWRITE | PF_STATE_PRIO | PF_STATE_SCRUB | PF_STATE_TWO)))
		found = PF_FOUND_PLAIN;
	if (out && pf_covers(p, s, port_at(out)->id, false))
		found |= PF_FOUND_WAY;
	return found;
}

/*
 * Restores the packet's own key, if it leaves the host and was given a state's key: rules judge and
 * translate it in the form that the host has sent.
 */
__noinline u32 pf_nat_as_sent(u32 place)
{
	struct pf_state *s = pf_state_at(place), *k;
	struct pf_packet *p = pf_packet();
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !s || !p || !n || !n->out || (p->flags & PF_P_ERROR) ||
	    !(s->flags & PF_STATE_NAT))
		return 0;
	k = pf_state_at(PF_STATE_OTHER(s) - 1);
	if (!k)
		return 0;
	p->key = k->key;
	p->side ^= !!((s->flags ^ k->flags) & PF_STATE_SECOND);
	return 0;
}

/* Does the packet begin a TCP connection? Its options must be read then. */
static __always_inline bool pf_has_scale(const struct pf_packet *p)
{
	return p->proto == IPPROTO_TCP && (p->tcp_flags & TCP_SYN) && !(p->flags & PF_P_LATER);
}

/*
 * Conditions of rules on a packet that the host routes, and that only its way into the host can
 * answer.
 */
#define PF_ASK_ACROSS (PF_ASK_TAG | PF_ASK_RECEIVED)

/* 1 if the address is in 127/8, else 0. With a branch the verifier would follow both ways. */
static __always_inline u32 pf_loopback(u32 address)
{
	u32 other = (bpf_ntohl(address) >> 24) ^ 127;

	asm volatile("" : "+r"(other)); /* else clang makes a branch of it */
	return (other - 1) >> 31;
}

/*
 * Must the packet, in its form on the wire, be kept from the host's loopback? A packet on a wire
 * may have no address in 127/8 (RFC 1122, 3.2.1.3), and OpenBSD drops those that have one before pf
 * sees them. Here the host's stack drops them. But if a rule redirects to such an address, the
 * stack is set to accept them (route_localnet). The host's answers from there belong to a
 * translated connection.
 */
static __always_inline bool pf_looped(const struct pf_packet *p, const struct pf_state *s)
{
	u32 sides, side = p->side & 1, flags = s ? s->flags : 0;

	if (!on(FEATURE_PF_HOST) || !(cfg.pf.asks & PF_ASK_LOOPBACK))
		return false;
	sides = pf_loopback(p->key.address[0][3]) | pf_loopback(p->key.address[1][3]) << 1;
	/* the destination, or the source without a translation; for IPv6 the family is 6 */
	sides = (sides >> (side ^ 1)) | (sides >> side & ~(flags / PF_STATE_NAT));
	return sides & (6 - p->family) >> 1;
}

/* Looks up the connection of the packet that has been read, with its options. */
static __always_inline u32 pf_look_up_state(const struct hook *h, struct pf_packet *p, u32 slots,
					    u32 now)
{
	struct pf_state *s;

	p->rule[0] = p->rule[1] = 0;
	p->tag = 0;
	if (on(FEATURE_PF_HOST) && (cfg.pf.asks & PF_ASK_ACROSS))
		p->came = 0;
	p->mss = 0;
	p->made = 0;
	p->unmade = 0;
	p->answer = 0;
	p->direction = 0;
	p->state = 0;
	if (on(FEATURE_PF_LOG))
		p->logs[0] = p->logs[1] = 0;
	if (on(FEATURE_PF_SCRUB))
		p->scrub[0] = p->scrub[1] = (struct pf_scrub){};
	if (on(FEATURE_PF_NAT)) {
		struct pf_nat *n = pf_nat();

		if (!n)
			return PF_LOOK_LEAVE;
		n->on = false;
		n->out = false;
		n->cross = PF_CROSS_NOT;
		if (on(FEATURE_PF_HOPS)) {
			n->hop_rule = 0;
			n->marked = h->skb && pf_hop_marked(h->ctx, n, slots & (MAX_PORTS - 1));
		}
	}
	if (!(p->flags & PF_P_UNKNOWN))
		p->state = on(FEATURE_PF_HOST)
				   ? pf_state_find_routed(slots)
				   : pf_state_find(p->flags & PF_P_ERROR ? &p->quoted : &p->key);
	s = p->state ? pf_state_at(p->state - 1) : 0;
	if (pf_looped(p, s))
		return h->skb ? PF_LOOK_REFUSE | (u32)DROP_PF_NORMALIZE << 8 : PF_LOOK_LEAVE;
	if (s && !pf_state_over(s, now) && !pf_reopens(p, s) &&
	    pf_bound_in(p, s, port_at(slots)->id)) {
		if (on(FEATURE_PF_HOPS) && (s->flags & PF_STATE_HOP))
			pf_hop_known(p->state - 1);
		return PF_LOOK_STATE | pf_found(p, s, slots / MAX_PORTS);
	}
	/* pf_state_find_routed() records better which look-ups have failed */
	if (p->state)
		p->vacant = false;
	else if (!on(FEATURE_PF_HOST))
		p->vacant = true;
	if (on(FEATURE_PF_NAT) && s)
		pf_nat_as_sent(p->state - 1);
	p->state = 0;
	return PF_LOOK_JUDGE;
}

/* Looks up the connection of the packet that has been read. */
static __always_inline u32 pf_look_for(const struct hook *h, struct pf_packet *p, u32 slots,
				       u32 now)
{
	if (pf_has_scale(p)) {
		if (!h->skb)
			return PF_LOOK_BEGINS;
		p->scale = 0;
		pf_read_scale(h->ctx);
	}
	return pf_look_up_state(h, p, slots, now);
}

/* The same for all frames of tcx: the verifier follows it once for plain packets and others. */
OFTEN __noinline u32 pf_look_found(struct __sk_buff *skb, u32 slots, u32 now)
{
	const struct hook h = {.ctx = skb, .skb = true};
	struct pf_packet *p = pf_packet();

	return on(FEATURE_PF) && p ? pf_look_for(&h, p, slots, now) : PF_LOOK_LEAVE;
}

/*
 * Reads the packet and looks up its connection. This only changes this CPU's packet. Returns an
 * enum pf_look, with the reason of PF_LOOK_REFUSE above it.
 */
static __always_inline u32 pf_look(const struct hook *h, void *data, void *data_end, u32 len,
				   u32 vlan, u32 slots, u32 now)
{
	struct pf_packet *p = pf_packet();
	u32 front;

	if (!p)
		return PF_LOOK_LEAVE;
	if (data + ETHER_HEADER > data_end)
		return h->skb ? PF_LOOK_REFUSE | (u32)DROP_MALFORMED << 8 : PF_LOOK_LEAVE;
	front = (u32) * (u16 *)(data + 12) << 16 | ETHER_HEADER;
	if (type_is_front(FRONT_TYPE(front))) { /* most frames have nothing in front */
		front = front_read(h);
		/* the reader may have moved the frame */
		if (h->skb)
			skb_data(h->ctx, &data, &data_end);
	}
	if (!FRONT_AT(front))
		return h->skb ? PF_LOOK_REFUSE | (u32)FRONT_TYPE(front) << 8 : PF_LOOK_LEAVE;
	if (!type_is_ip(FRONT_TYPE(front)))
		return PF_LOOK_NOT_IP;
	if ((cfg.pf.asks & PF_ASK_PRIORITY) && h->skb)
		p->priority = pf_priority(h->ctx, data, data_end);
	p->key.vlan = vlan;
	p->quoted.vlan = vlan;
	if (!pf_read(p, len, data, data_end, FRONT_AT(front), FRONT_TYPE(front)))
		return h->skb ? PF_LOOK_SLOW : PF_LOOK_LEAVE;
	return h->skb ? pf_look_found(h->ctx, slots, now) : pf_look_for(h, p, slots, now);
}

/*
 * Counts a packet that was looked up among the states, and that no state counts. XDP leaves such
 * packets to tcx.
 */
static __always_inline void pf_count_search(void)
{
	pf_count_safely(PF_COUNT_SEARCHES, 1);
}

/* Separate functions, because the programs have no room left on their stacks. */
OFTEN __noinline u32 pf_look_skb(struct __sk_buff *skb, u32 vlan, u32 slots, u32 now)
{
	const struct hook h = {.ctx = skb, .skb = true};
	u32 found;

	if (!on(FEATURE_PF))
		return PF_LOOK_LEAVE;
	found = pf_look(&h, (void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, vlan,
			slots, now);
	if (found == PF_LOOK_JUDGE)
		pf_count_search();
	return found;
}

OFTEN __noinline u32 pf_look_xdp(struct xdp_md *xdp, u32 vlan, u32 slots, u32 now)
{
	const struct hook h = {.ctx = xdp};
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;

	if (!on(FEATURE_PF))
		return PF_LOOK_LEAVE;
	return pf_look(&h, data, data_end, data_end - data, vlan, slots, now);
}

/* The same for a packet that pf_read_slow() has read. */
__noinline u32 pf_look_slow(struct __sk_buff *skb, u32 slots, u32 now)
{
	u32 found;

	if (!on(FEATURE_PF))
		return PF_LOOK_LEAVE;
	found = pf_look_found(skb, slots, now);
	if (found == PF_LOOK_JUDGE)
		pf_count_search();
	return found;
}

/* Looks at a packet that is not plain. */
static __always_inline u32 pf_find_slow(struct __sk_buff *skb, u32 slots, u32 now)
{
	u32 reason = pf_read_slow(skb, now);

	if (reason == PF_NOT_IP)
		return PF_LOOK_NOT_IP;
	return reason ? PF_LOOK_REFUSE | reason << 8 : pf_look_slow(skb, slots, now);
}

/*
 * Looks at the frame, which arrives at v->in and leaves through `out`, 0 if unknown. Returns
 * whether it may do so without an evaluation of rules.
 */
static __always_inline bool pf_find(const struct hook *h, struct verdict *v, u32 out, u32 now)
{
	u32 slots = out * MAX_PORTS | v->in;
	u32 found = h->skb ? pf_look_skb(h->ctx, v->vlan, slots, now)
			   : pf_look_xdp(h->ctx, v->vlan, slots, now);

	if (h->skb && found == PF_LOOK_SLOW)
		found = pf_find_slow(h->ctx, slots, now);
	v->reason = found >> 8;
	v->pf = found & (PF_FOUND_WAY - 1);
	v->pf_plain = !!(found & PF_FOUND_PLAIN);
	return v->pf == PF_LOOK_NOT_IP || (found & PF_FOUND_WAY);
}

/* The priority that a profile sets, + 1; 0 for none. */
static __always_inline u32 pf_profile_priority(u32 number, bool quick)
{
	struct pf_profile *profile = bpf_map_lookup_elem(&pf_profiles, &number);

	return profile ? profile->priority[quick] : 0;
}

/*
 * Gives a packet the priority that its state or its rules set. If they set two, the second is for
 * packets that should be quick, as in pf.
 */
__noinline int pf_set_priority(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;
	struct pf_rule *r;
	u32 priority = 0;
	bool quick;

	if (!on(FEATURE_PF) || !p)
		return 0;
	quick = p->tos & PF_TOS_LOWDELAY;
	if (p->proto == IPPROTO_TCP && !(p->flags & PF_P_LATER) && (p->tcp_flags & TCP_ACK) &&
	    !p->payload)
		quick = true;
	if (p->state) {
		s = pf_state_at(p->state - 1);
		if (s)
			priority = pf_profile_priority(s->key.profile, quick);
	} else {
		r = pf_rule_at(p->rule[0]);
		if (r)
			priority = pf_profile_priority(r->profile, quick);
		r = priority ? 0 : pf_rule_at(p->rule[1]);
		if (r)
			priority = pf_profile_priority(r->profile, quick);
	}
	if (priority)
		skb->priority = priority - 1;
	return 0;
}

/*
 * Counts the packet at a port, on the way in or out, if the port is the one of `set loginterface`.
 */
OFTEN __noinline int pf_count_port(u32 slot, u32 out, u32 blocked)
{
	struct pf_packet *p = pf_packet();
	const u32 bytes = offsetof(struct pf_port_stats, bytes) / 8;
	u64 *packets, *all;
	u32 cell;

	if (!on(FEATURE_PF) || !cfg.pf.log_interface || !p ||
	    port_at(slot)->id != cfg.pf.log_interface)
		return 0;
	cell = (p->family == 6) << 2 | pf_call(slot, !!out) << 1 | !!blocked;
	packets = counter_of(COUNTER_PF_PORT + cell);
	all = counter_of(COUNTER_PF_PORT + bytes + cell);
	if (!packets || !all)
		return 0;
	++*packets;
	*all += p->length;
	return 0;
}

#define PF_FOLLOW 0xff /* no enum drop_reason */
#define PF_PROXY 0xfe /* nor this: the switch makes the handshake */
#define PF_REASSEMBLE 0xfc /* nor this: a separate program does the rest */

/*
 * Does the work before the packet's connection is updated, if the packet or the connection is not
 * plain. Returns PF_FOLLOW, PF_PROXY or PF_REASSEMBLE if more must be done. Otherwise returns 0 if
 * the packet passes, or the reason to drop it.
 */
OFTEN __noinline u32 pf_follow_begin(struct __sk_buff *skb)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	s = pf_state_at(p->state - 1);
	if (!s)
		return DROP_PF;
	/* the state has seen it on its way into the host, and passed it */
	if (on(FEATURE_PF_FAMILY | FEATURE_PF_HOPS) && pf_cross() == PF_CROSS_DONE)
		return 0;
	if (p->flags & PF_P_ERROR) {
		pf_count_search();
		if (pf_proxied(s) || !pf_quoted_fits(p->state - 1))
			return DROP_PF_STATE;
		if (on(FEATURE_PF_REWRITE))
			pf_rewrite(skb, p->state - 1);
		if (on(FEATURE_PF_NAT)) {
			u32 reason = pf_nat_follow(skb);

			if (reason)
				return reason;
		}
		if (on(FEATURE_PF_SCRUB) && (s->flags & PF_STATE_SCRUB))
			pf_scrub_packet(skb, p->state);
		return 0;
	}
	if ((p->flags & PF_P_OPTIONS) && !(s->flags & PF_STATE_OPTIONS)) {
		pf_count_search();
		return DROP_PF_OPTIONS;
	}
	if (pf_proxied(s)) {
		pf_count_search();
		return PF_PROXY;
	}
	return on(FEATURE_PF_REASSEMBLE) && pf_reassembles(s) ? PF_REASSEMBLE : PF_FOLLOW;
}

/* Does the work after the update. `reason` is the reason to drop the packet, 0 for none. */
OFTEN __noinline u32 pf_follow_end(struct __sk_buff *skb, u32 slot, u32 reason)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	s = pf_state_at(p->state - 1);
	if (!s)
		return DROP_PF;
	if (s->flags & PF_STATE_PRIO)
		pf_set_priority(skb);
	if (on(FEATURE_PF_REWRITE) && !reason && (s->flags & PF_STATE_REWRITE))
		pf_rewrite(skb, p->state - 1);
	if (on(FEATURE_PF_SCRUB) && !reason && (s->flags & PF_STATE_SCRUB))
		pf_scrub_packet(skb, p->state);
	if (on(FEATURE_PF_NAT) && !reason)
		reason = pf_nat_follow(skb);
	if (on(FEATURE_PF_LOG) && (s->flags & PF_STATE_LOG))
		pf_log(skb, slot, s->rule_in ? s->rule_in : s->rule_out, reason, s->ruleset);
	return reason;
}

/* Leaves the due work to a separate program: see ../due.h. Without one, the packet is dropped. */
static __always_inline u32 pf_is_due(struct verdict *v, u32 due)
{
#ifdef DECIDES_AT_ONCE
	return DROP_PF;
#else
	v->due = due;
	return 0;
#endif
}

/*
 * Does pf count the packet at the port of `set loginterface` now? That program does its own
 * counting.
 */
static __always_inline bool pf_counts(const struct verdict *v)
{
	return cfg.pf.log_interface && !(on(FEATURES_DUE) && v->due);
}

/* Updates the packet's connection, which is known. Returns 0, or the reason to drop the packet. */
static __always_inline u32 pf_follow(const struct hook *h, struct verdict *v, u32 now)
{
	u32 reason;

	if (!v->pf_plain) {
		reason = pf_follow_begin(h->ctx);
		if (on(FEATURE_PF_REWRITE) && reason == PF_PROXY)
#ifdef DECIDES_AT_ONCE
			return pf_proxy(h->ctx, v->in, now);
#else
			return pf_is_due(v, DUE_PROXY);
#endif
		if (on(FEATURE_PF_REASSEMBLE) && reason == PF_REASSEMBLE)
			return pf_is_due(v, DUE_KNOWN);
		if (reason != PF_FOLLOW)
			return reason;
	}
	reason = pf_state_follow(now, true);
	if (reason)
		pf_count_search();
	return v->pf_plain ? reason : pf_follow_end(h->ctx, v->in, reason);
}

/* The same for a packet whose way is remembered, and for which no rule is evaluated. */
static __always_inline u32 pf_follow_each(const struct hook *h, struct verdict *v, u32 now)
{
	u32 reason = pf_follow(h, v, now);

	if (pf_counts(v)) {
		pf_count_port(v->in, false, reason);
		if (!reason)
			pf_count_port(v->out, true, false);
	}
	return reason;
}

/* XDP's last check before it sends the frame: does pf pass it? */
static __always_inline bool pf_passes(const struct hook *h, struct verdict *v, u32 now)
{
	if (!pf_find(h, v, v->out, now))
		return false;
	if (v->pf == PF_LOOK_NOT_IP)
		return true;
	if (!v->pf_plain || pf_state_follow(now, false))
		return false;
	if (cfg.pf.log_interface) {
		pf_count_port(v->in, false, false);
		pf_count_port(v->out, true, false);
	}
	return true;
}

/* Carries out the packet's rule. Returns 0, or the reason to drop the packet. */
OFTEN __noinline u32 pf_obey(u32 rule)
{
	u32 number = rule - 1;
	struct pf_packet *p = pf_packet();
	struct pf_rule *r;
	bool blocks;

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	r = rule ? bpf_map_lookup_elem(&pf_rules, &number) : 0;
	blocks = r && r->action == PF_BLOCK;
	p->rule[p->direction & 1] = rule;
	pf_count(PF_COUNT_MATCH);
	if (on(FEATURE_PF_LIMITERS) && pf_limited_by()) {
		pf_rule_count(rule, pf_called(p, p->direction), 1, p->length);
		return DROP_PF_LIMIT;
	}
	if (!blocks && (p->flags & PF_P_OPTIONS) && !(r && (r->flags & PF_ALLOW_OPTS)))
		return DROP_PF_OPTIONS;
	/* a packet that has a state is counted by the state, wherever the packet goes */
	if (blocks || !(p->how & PF_KNOWN))
		pf_rule_count(rule, pf_called(p, p->direction), 1, p->length);
	if (on(FEATURE_PF_SCRUB) && r && !blocks)
		pf_scrub_add(&p->scrub[p->direction & 1], &r->scrub);
	if (!blocks)
		return 0;
	p->answer = r->answer;
	return DROP_PF;
}

/* Records where the rules are evaluated for the packet, by the port's slot, and how. */
static __always_inline void pf_ask_at(struct pf_packet *p, u32 slot, u32 how, u32 received)
{
	p->how = how;
	p->slot = slot;
	pf_receive(p, slot, received);
	p->direction = how & PF_ON_WAY_OUT;
	if (on(FEATURE_PF_HOST))
		p->calls[p->direction & 1] = pf_call(slot, p->direction);
}

/* The walk over the rules begins, or resumes behind a translation. */
static __always_inline void pf_ask_begins(struct pf_packet *p)
{
	if (on(FEATURE_PF_NAT) && (p->how & PF_RESUMES))
		return;
	p->tag_in = p->tag;
	p->rule[p->direction & 1] = 0;
}

/*
 * Evaluates the rules at a port, if necessary. A known connection has been judged. But where no
 * rule has seen it leave, it is judged like its first packet. This is a separate function, which
 * each port of a flood calls. It keeps its data in the packet, for lack of room on the stack.
 */
OFTEN __noinline u32 pf_ask_rules(struct __sk_buff *skb, u32 slot, u32 how, u32 received)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;
	u32 rule, reason;

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	pf_ask_at(p, slot, how, received);
	if (how & PF_KNOWN) {
		/* only the host takes it, and no other port */
		if (on(FEATURE_PF_FAMILY | FEATURE_PF_HOPS) && (how & PF_FLOOD) &&
		    pf_cross() >= PF_CROSS_HOP)
			return pf_cross_reason();
		s = pf_state_at(p->state - 1);
		if (!s || pf_covers(p, s, port_at(slot)->id, how & PF_FLOOD))
			return 0;
		/* no rule has seen it leave yet, and it is not translated */
		if (on(FEATURE_PF_NAT) && !s->out && !(s->flags & PF_STATE_NAT))
			p->how |= PF_UNSEEN;
	}
	pf_ask_begins(p);
	rule = pf_judge();
	if (on(FEATURE_PF_NAT) && pf_translation_asked())
		return PF_TRANSLATE;
	p->tag_kept = p->tag;
	/* the tag of a port's rules is not for the rules of the flood's next port */
	if (p->direction)
		p->tag = p->tag_in;
	if (rule == PF_SKIP)
		return 0;
	reason = pf_obey(rule);
	if (on(FEATURE_PF_HOPS) && !reason)
		reason = pf_hop_ruled(rule);
	if (on(FEATURE_PF_LOG))
		pf_log(skb, p->slot, rule, reason, PF_LOG_WALK);
	if (on(FEATURE_PF_NAT) && !reason && pf_translation_ends(rule))
		return PF_TRANSLATE;
	if (reason || (p->how & (PF_KNOWN | PF_FLOOD)) != PF_KNOWN)
		return reason;
	s = pf_state_at(p->state - 1);
	if (s && pf_forward(p, s) && !s->out)
		WRITE_ONCE(s->out, port_at(p->slot)->id);
	return 0;
}

/* Makes one translation. After the last one of a rule, evaluates the rules that follow. */
static long pf_translate_step(u32 i, struct __sk_buff **skb)
{
	struct pf_nat *n = pf_nat();

	if (!n)
		return 1;
	n->reason = pf_translate_next();
	if (!n->reason && !n->last)
		n->reason = pf_ask_rules(*skb, n->slot, n->how | PF_RESUMES, n->received);
	return n->reason != PF_TRANSLATE;
}

/*
 * Translates the packet by the rules that have been evaluated. Returns 0, or the reason to drop the
 * packet.
 */
OFTEN __noinline u32 pf_translate_all(struct __sk_buff *skb, u32 slot, u32 how, u32 received)
{
	struct __sk_buff *packet = skb; /* skb itself would be kept on the stack */
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_NAT) || !n)
		return DROP_PF_TRANSLATE;
	n->slot = slot;
	n->how = how;
	n->received = received;
	/* the verifier would follow a loop of the program itself round by round */
	bpf_loop(PF_TRANSLATIONS, pf_translate_step, &packet, 0);
	return n->reason == PF_TRANSLATE ? DROP_PF_TRANSLATE : n->reason;
}

/* Gives the packet its first tag: the tag of the MAC rule that passed the frame. */
static __always_inline void pf_take_tag(u32 number)
{
	struct rule *r = bpf_map_lookup_elem(&rules, &number);
	struct pf_packet *p = pf_packet();

	if (r && p && r->tag)
		p->tag = r->tag;
}

/*
 * Gives a packet the tag of its rules on the way in, if no rule has seen its connection's way out
 * yet: the rules on the way out may need the tag.
 */
__noinline int pf_tag_again(u32 slot, u32 number)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;

	if (!on(FEATURE_PF) || !p)
		return 0;
	s = pf_state_at(p->state - 1);
	if (!s || s->out || !pf_forward(p, s))
		return 0;
	if (number)
		pf_take_tag(number);
	p->how = PF_KNOWN;
	p->slot = slot;
	pf_receive(p, slot, slot);
	p->direction = 0;
	if (on(FEATURE_PF_HOST))
		p->calls[0] = pf_call(slot, 0);
	pf_judge();
	return 0;
}

/* The reason to drop an unreadable packet at a port. Returns 0 where pf is inactive. */
__noinline u32 pf_refuse(u32 slot, u32 out, u32 reason)
{
	if (!on(FEATURE_PF) || pf_cell(PF_CELL_PORT + SLOT(slot) * 2 + !!out) == PF_SKIP)
		return 0;
	return reason;
}

/* The slot of a station's port, before the switch looks it up. Returns 0 if it is unknown. */
OFTEN __noinline u32 pf_way(u64 dst, u32 vlan)
{
	return on(FEATURE_PF_HOST) ? SLOT(PORT_OF(fdb_find(fdb_key(dst, vlan)))) : 0;
}

/*
 * The data about the packet of a frame that has arrived blindly, as `found` describes. If its state
 * has no next hop for it, pf has not seen it: the host gets it back, unchanged. This is a separate
 * function, as few packets need it.
 */
__noinline u32 pf_find_blind(u32 found)
{
	if (!on(FEATURE_PF_HOPS) || found != PF_LOOK_STATE || pf_cross() == PF_CROSS_HOP)
		return found;
	return PF_LOOK_NOT_IP;
}

static __always_inline u32 pf_decide_in(const struct hook *h, const struct frame *f,
					struct verdict *v, u32 now)
{
	u32 reason;

	if (v->pf == PF_LOOK_NONE)
		pf_find(h, v, on(FEATURE_PF_HOST) ? pf_way(f->dst, v->vlan) : 0, now);
	if (on(FEATURE_PF_HOPS) && v->blind)
		v->pf = pf_find_blind(v->pf);
	if ((cfg.pf.asks & PF_ASK_ACROSS) && pf_to_host(v->in) &&
	    (v->pf == PF_LOOK_STATE || v->pf == PF_LOOK_JUDGE))
		pf_came_across(now);
	switch (v->pf) {
	case PF_LOOK_REFUSE:
		return pf_refuse(v->in, false, v->reason);
	case PF_LOOK_STATE:
		if (cfg.pf.asks & PF_ASK_TAG)
			pf_tag_again(v->in, on(FEATURE_RULES) ? v->rule_in : 0);
		return pf_follow(h, v, now);
	case PF_LOOK_JUDGE:
		if (on(FEATURE_RULES) && (cfg.pf.asks & PF_ASK_TAG) && v->rule_in)
			pf_take_tag(v->rule_in);
		reason = pf_ask_rules(h->ctx, v->in, 0, v->in);
		if (on(FEATURE_PF_NAT) && reason == PF_TRANSLATE)
			reason = pf_translate_all(h->ctx, v->in, 0, v->in);
		if (!on(FEATURE_PF_REWRITE) || reason || !pf_proxy_wanted(h->ctx, v->in))
			return reason;
		/* the rules on the way out are evaluated when the switch calls the other side */
		reason = mac_is_group(f->dst) ? 0 : pf_state_make(port_at(v->in)->id, 0, now);
		return reason ? reason : DROP_PF_SYNPROXY;
	}
	return 0;
}

/* May the packet enter? Returns 0 or the reason against it. */
static __always_inline u32 pf_in(const struct hook *h, const struct frame *f, struct verdict *v,
				 u32 now)
{
	u32 reason = pf_decide_in(h, f, v, now);

	if (pf_counts(v) && v->pf != PF_LOOK_NOT_IP)
		pf_count_port(v->in, false, reason);
	return reason;
}

/* How the rules are evaluated at a port where the packet leaves. */
static __always_inline u32 pf_how_out(const struct verdict *v)
{
	u32 how = PF_ON_WAY_OUT;

	if (v->pf == PF_LOOK_STATE)
		how |= PF_KNOWN;
	if (v->flood)
		how |= PF_FLOOD;
	return how;
}

/*
 * May the packet leave through a port, which may be one of many in a flood? Returns 0 or the reason
 * against it, or PF_TRANSLATE: then pf_out_translated() decides.
 */
static __always_inline u32 pf_out(const struct hook *h, struct verdict *v, u32 slot)
{
	u32 reason;

	if (v->pf == PF_LOOK_NOT_IP)
		return 0;
	if (v->pf == PF_LOOK_REFUSE)
		reason = pf_refuse(slot, true, v->reason);
	else
		reason = pf_ask_rules(h->ctx, slot, pf_how_out(v), v->in);
	if (on(FEATURE_PF_NAT) && reason == PF_TRANSLATE) {
		if (!v->flood)
			return reason;
		reason = DROP_PF_TRANSLATE;
	}
	if (cfg.pf.log_interface)
		pf_count_port(slot, true, reason);
	return reason;
}

/*
 * Translates a packet at the port where it leaves. Returns 0, or the reason to drop it. This is not
 * a part of pf_out(), which floods call, too: these translate nothing, and their calls are deep.
 */
static __always_inline u32 pf_out_translated(const struct hook *h, struct verdict *v, u32 slot)
{
	u32 reason = pf_translate_all(h->ctx, slot, pf_how_out(v), v->in);

	if (cfg.pf.log_interface)
		pf_count_port(slot, true, reason);
	return reason;
}

/*
 * The counter of pf for a reason to drop a packet, 0 for none. All are in one number: the verifier
 * would follow each of as many comparisons.
 */
#define PF_DROP_COUNTER(reason, counter) ((u64)(counter) << 5 * ((reason) - DROP_PF_SHORT))
#define PF_DROP_COUNTERS                                                                           \
	(PF_DROP_COUNTER(DROP_PF_SHORT, PF_COUNT_SHORT) |                                          \
	 PF_DROP_COUNTER(DROP_PF_FRAGMENT, PF_COUNT_FRAGMENT) |                                    \
	 PF_DROP_COUNTER(DROP_PF_OPTIONS, PF_COUNT_IP_OPTION) |                                    \
	 PF_DROP_COUNTER(DROP_PF_NORMALIZE, PF_COUNT_NORMALIZE) |                                  \
	 PF_DROP_COUNTER(DROP_PF_TRANSLATE, PF_COUNT_TRANSLATE) |                                  \
	 PF_DROP_COUNTER(DROP_PF_ROUTE, PF_COUNT_NO_ROUTE) |                                       \
	 PF_DROP_COUNTER(DROP_PF_DIVERT, PF_COUNT_DIVERT) |                                        \
	 PF_DROP_COUNTER(DROP_PF_TIMESTAMP, PF_COUNT_TIMESTAMP))
_Static_assert(PF_COUNTERS <= 32 && 5 * (DROP_PF_TIMESTAMP + 1 - DROP_PF_SHORT) <= 64,
	       "the counters of drops have no room in one number");

/* Counts the reason why a packet is dropped, in the counters of pf. */
__noinline int pf_count_drop(u32 reason)
{
	u32 what;

	if (!on(FEATURE_PF) || reason < DROP_PF_SHORT || reason > DROP_PF_TIMESTAMP)
		return 0;
	what = PF_DROP_COUNTERS >> 5 * (reason - DROP_PF_SHORT) & 31;
	if (what)
		pf_count(what);
	return 0;
}

/*
 * Does the rest of the work when the packet has its state, or needs none. `reason` is why the
 * packet lacks a state that it should have. Returns the reason, or PF_REASSEMBLE.
 */
OFTEN __noinline u32 pf_settled(struct __sk_buff *skb, u32 reason)
{
	struct pf_packet *p = pf_packet();

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	if (!reason && on(FEATURE_PF_REASSEMBLE) && pf_stamps_wanted(p->state)) {
		if (!on(FEATURE_PF_STAMPS))
			return PF_REASSEMBLE;
		if (!pf_stamps_settle(skb))
			reason = DROP_PF_TIMESTAMP;
	}
	p->unmade = reason;
	if (on(FEATURE_PF_LOG))
		pf_log_due(skb, reason);
	if (reason)
		return reason;
	if (on(FEATURE_PF_REWRITE) && p->state)
		pf_rewrite(skb, p->state - 1);
	if (on(FEATURE_PF_SCRUB))
		pf_scrub_packet(skb, 0);
	if (pf_translated()) {
		reason = pf_nat_rewrite(skb);
		p->unmade = reason;
	}
	if (cfg.pf.asks & PF_ASK_PRIORITY)
		pf_set_priority(skb);
	return reason;
}

/* Makes the state of a packet that is sent, once. Returns 0, or the reason to drop the packet. */
static __always_inline u32 pf_settle(const struct hook *h, struct verdict *v, u32 out, u32 now)
{
	struct pf_packet *p = pf_packet();
	u32 reason;

	if (v->pf != PF_LOOK_JUDGE || !p)
		return 0;
	/* another port of a flood */
	if (p->made)
		return on(FEATURE_PF_LOG) ? pf_log_due(h->ctx, p->unmade) : p->unmade;
	p->made = 1;
	if (pf_second_wanted()) {
		/* a separate program does the rest, which a flood does not reach */
		if (pf_hop_wanted())
			return v->flood ? pf_cross_reason() : 0;
		/* a separate program does the rest: see ../family.h */
		if (pf_cross() == PF_CROSS_NEW)
			return 0;
		reason = pf_nat_make(port_at(v->in)->id, out ? port_at(out)->id : 0, now);
	} else {
		reason = pf_state_make(port_at(v->in)->id, out ? port_at(out)->id : 0, now);
	}
	reason = pf_settled(h->ctx, reason);
	if (on(FEATURE_PF_REASSEMBLE) && reason == PF_REASSEMBLE)
		return pf_is_due(v, DUE_FIRST);
	return reason;
}
