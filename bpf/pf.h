/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * pf: the packet filter. A packet of a connection that is known passes by its
 * state, both ways; of any other the rules decide, where it comes in and where
 * it goes out, and if these let it through, a state is made. XDP knows states
 * and leaves the rest to tcx.
 */
#pragma once

#include "pf_answer.h"
#include "pf_ether.h"
#include "pf_log.h"
#include "pf_rewrite.h"
#include "pf_slow.h"
#include "pf_track.h"

#define PF_AT_UNKNOWN (~0u)
#define PF_TOS_LOWDELAY 0x10 /* RFC 791 */

/*
 * Where the IP header is and the EtherType before it; 0 for what is not IP,
 * PF_AT_UNKNOWN where the program may not look that far.
 */
static __always_inline u32 pf_find_ip(void *data, void *data_end, u16 *type)
{
	u32 at = ETHER_HEADER;

	if (data + ETHER_HEADER > data_end)
		return PF_AT_UNKNOWN;
	*type = *(u16 *)(data + 12);
	/* as many tags as a frame's label looks behind, and one of the port's */
#pragma unroll
	for (int i = 0; i < 3; i++) {
		if (!type_is_tag(*type))
			break;
		if (data + at + ETHER_TAG > data_end)
			return PF_AT_UNKNOWN;
		*type = *(u16 *)(data + at + 2);
		at += ETHER_TAG;
	}
	return *type == bpf_htons(ETH_P_IP) || *type == bpf_htons(ETH_P_IPV6) ? at : 0;
}

/*
 * Does the packet go the way of the first? An error goes to the side that sent what
 * it quotes, whoever it is from.
 */
static __always_inline bool pf_forward(const struct pf_packet *p, const struct pf_state *s)
{
	u32 side = p->flags & PF_P_ERROR ? !p->quoted_side : p->side;

	return side == !!(s->flags & PF_STATE_SECOND);
}

/* May a packet of the connection come in by the port? */
static __always_inline bool pf_bound_in(const struct pf_packet *p, const struct pf_state *s, u32 id)
{
	u32 port = pf_forward(p, s) ? s->in : s->out;

	return !(s->flags & PF_STATE_IF_BOUND) || !port || port == id;
}

/*
 * May a packet of a known connection leave by the port without asking the
 * rules? A way out that no rule has seen yet is none.
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

/* The priority that the frame's outer tag has (802.1Q 6.9.3), else that of the kernel's queues. */
static __always_inline u32 pf_priority(struct __sk_buff *skb, void *data, void *data_end)
{
	if (skb->vlan_present)
		return skb->vlan_tci >> 13 & 7;
	if (data + ETHER_HEADER + ETHER_TAG <= data_end && type_is_tag(*(u16 *)(data + 12)))
		return *(u8 *)(data + ETHER_HEADER) >> 5;
	return skb->priority & 7;
}

/*
 * Reads the packet and looks for its connection; nothing is changed but this
 * CPU's packet. An enum pf_look, with the reason of PF_LOOK_REFUSE above it.
 */
static __always_inline u32 pf_look(const struct hook *h, void *data, void *data_end, u32 len,
				   u32 vlan, u32 slot, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;
	u32 at, reason;
	u16 type = 0;

	if (!p)
		return PF_LOOK_LEAVE;
	at = pf_find_ip(data, data_end, &type);
	if (!at)
		return PF_LOOK_NOT_IP;
	if ((cfg.pf.asks & PF_ASK_PRIORITY) && h->skb)
		p->priority = pf_priority(h->ctx, data, data_end);
	p->key.vlan = vlan;
	p->quoted.vlan = vlan;
	if (at == PF_AT_UNKNOWN || !pf_read(p, len, data, data_end, at, type)) {
		if (!h->skb)
			return PF_LOOK_LEAVE;
		reason = pf_read_slow(h->ctx, now);
		if (reason == PF_NOT_IP)
			return PF_LOOK_NOT_IP;
		if (reason)
			return PF_LOOK_REFUSE | reason << 8;
	}
	p->scale = 0;
	if (p->proto == IPPROTO_TCP && (p->tcp_flags & TCP_SYN) && !(p->flags & PF_P_LATER)) {
		if (!h->skb)
			return PF_LOOK_LEAVE;
		pf_read_scale(h->ctx);
	}
	p->rule[0] = p->rule[1] = 0;
	p->tag = 0;
	p->mss = 0;
	p->made = 0;
	p->unmade = 0;
	p->routes = 0;
	p->answer = 0;
	p->direction = 0;
	p->state = 0;
	if (!(p->flags & PF_P_UNKNOWN))
		p->state = pf_state_find(p->flags & PF_P_ERROR ? &p->quoted : &p->key);
	if (!p->state)
		return PF_LOOK_JUDGE;
	s = pf_state_at(p->state - 1);
	if (s && !pf_state_over(s, now) && !pf_reopens(p, s) &&
	    pf_bound_in(p, s, port_at(slot)->id))
		return PF_LOOK_STATE;
	p->state = 0;
	return PF_LOOK_JUDGE;
}

/* Functions of their own: the programs have no room left on their stacks. */
__noinline u32 pf_look_skb(struct __sk_buff *skb, u32 vlan, u32 slot, u32 now)
{
	const struct hook h = {.ctx = skb, .skb = true};

	if (!on(FEATURE_PF))
		return PF_LOOK_LEAVE;
	return pf_look(&h, (void *)(long)skb->data, (void *)(long)skb->data_end, skb->len, vlan,
		       slot, now);
}

__noinline u32 pf_look_xdp(struct xdp_md *xdp, u32 vlan, u32 slot, u32 now)
{
	const struct hook h = {.ctx = xdp};
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;

	if (!on(FEATURE_PF))
		return PF_LOOK_LEAVE;
	return pf_look(&h, data, data_end, data_end - data, vlan, slot, now);
}

static __always_inline enum pf_look pf_find(const struct hook *h, struct verdict *v, u32 now)
{
	u32 found = h->skb ? pf_look_skb(h->ctx, v->vlan, v->in, now)
			   : pf_look_xdp(h->ctx, v->vlan, v->in, now);

	v->reason = found >> 8;
	return found & 0xff;
}

/* What a profile sets, with 1 added; 0 for nothing. */
static __always_inline u32 pf_profile_priority(u32 number, bool quick)
{
	struct pf_profile *profile = bpf_map_lookup_elem(&pf_profiles, &number);

	return profile ? profile->priority[quick] : 0;
}

/*
 * Gives a packet the priority that its state or its rules set: of two, the second
 * is that of what should be quick, as pf has it.
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

/* Takes the packet into its connection; 0, or why it is dropped. */
static __always_inline u32 pf_follow(const struct hook *h, const struct frame *f, struct verdict *v,
				     u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;
	u32 reason;

	if (!p)
		return DROP_PF;
	s = pf_state_at(p->state - 1);
	if (!s)
		return DROP_PF;
	if (p->flags & PF_P_ERROR) {
		if (pf_proxied(s) || !pf_quoted_fits(p->state - 1))
			return DROP_PF_STATE;
		if (on(FEATURE_PF_REWRITE) && h->skb)
			pf_rewrite(h->ctx, p->state - 1);
		return 0;
	}
	if ((p->flags & PF_P_OPTIONS) && !(s->flags & PF_STATE_OPTIONS))
		return DROP_PF_OPTIONS;
	if (h->skb && pf_proxied(s))
		return pf_proxy(h->ctx, p->state - 1, v->in, now);
	reason = pf_state_follow(p->state - 1, f->len, now, h->skb);
	if (!h->skb)
		return reason;
	if (s->flags & PF_STATE_PRIO)
		pf_set_priority(h->ctx);
	if (on(FEATURE_PF_REWRITE) && !reason && (s->flags & PF_STATE_REWRITE))
		pf_rewrite(h->ctx, p->state - 1);
	if (on(FEATURE_PF_LOG) && (s->flags & PF_STATE_LOG))
		pf_log(h->ctx, v->in, s->rule_in ? s->rule_in : s->rule_out, reason, s->ruleset);
	return reason;
}

/* Is there a connection that may leave by the port without asking the rules? */
static __always_inline bool pf_knows_way(u32 out)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;

	if (!p)
		return false;
	s = pf_state_at(p->state - 1);
	return s && pf_covers(p, s, port_at(out)->id, false);
}

/* In XDP, last of all: does pf let the frame go that is about to be sent? */
static __always_inline bool pf_passes(const struct hook *h, const struct frame *f,
				      struct verdict *v, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;

	switch (pf_find(h, v, now)) {
	case PF_LOOK_NOT_IP:
		return true;
	case PF_LOOK_STATE:
		break;
	default:
		return false;
	}
	if (!p || !pf_knows_way(v->out))
		return false;
	s = pf_state_at(p->state - 1);
	return s && !(s->flags & (PF_STATE_LOG | PF_STATE_REWRITE | PF_STATE_PRIO)) &&
	       !pf_follow(h, f, v, now);
}

/* What the rule that the packet has got says: 0, or why it is dropped. */
static __always_inline u32 pf_obey(struct pf_packet *p, u32 rule)
{
	u32 number = rule - 1;
	struct pf_rule *r = rule ? bpf_map_lookup_elem(&pf_rules, &number) : 0;

	p->rule[p->direction & 1] = rule;
	if (r && r->action == PF_BLOCK) {
		p->answer = r->answer;
		return DROP_PF;
	}
	if ((p->flags & PF_P_OPTIONS) && !(r && (r->flags & PF_ALLOW_OPTS)))
		return DROP_PF_OPTIONS;
	return 0;
}

/*
 * Asks the rules at a port, if they have to be asked: a connection that is known
 * has been judged. Where no rule has seen it leave, it is judged there as its
 * first packet would be. A function of its own, which each port of a flood
 * calls; what it has to remember is the packet's, for lack of room on the stack.
 */
__noinline u32 pf_ask_rules(struct __sk_buff *skb, u32 slot, u32 how, u32 received)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s;
	u32 rule, reason;

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	p->how = how;
	p->slot = slot;
	p->received = received;
	p->direction = how & PF_ON_WAY_OUT;
	if (how & PF_KNOWN) {
		s = pf_state_at(p->state - 1);
		if (!s || pf_covers(p, s, port_at(slot)->id, how & PF_FLOOD))
			return 0;
	}
	p->tag_in = p->tag;
	p->rule[p->direction & 1] = 0;
	rule = pf_judge();
	/* what a port's rules tag is not for those of the flood's next port */
	if (p->direction)
		p->tag = p->tag_in;
	if (rule == PF_SKIP)
		return 0;
	reason = pf_obey(p, rule);
	if (on(FEATURE_PF_LOG))
		pf_log(skb, p->slot, rule, reason, PF_LOG_WALK);
	if (reason || (p->how & (PF_KNOWN | PF_FLOOD)) != PF_KNOWN)
		return reason;
	s = pf_state_at(p->state - 1);
	if (s && pf_forward(p, s) && !s->out)
		WRITE_ONCE(s->out, port_at(p->slot)->id);
	return 0;
}

/* The tag of the MAC rule that the frame passed by is where the packet's begin. */
static __always_inline void pf_take_tag(u32 number)
{
	struct rule *r = bpf_map_lookup_elem(&rules, &number);
	struct pf_packet *p = pf_packet();

	if (r && p && r->tag)
		p->tag = r->tag;
}

/*
 * A packet of a connection whose way out no rule has seen yet has the tag of its
 * rules on the way in, which those on the way out may ask for.
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
	p->slot = p->received = slot;
	p->direction = 0;
	pf_judge();
	return 0;
}

/* On the way in: 0 or why not. */
static __always_inline u32 pf_in(const struct hook *h, const struct frame *f, struct verdict *v,
				 u32 now)
{
	u32 reason;

	if (v->pf == PF_LOOK_NONE)
		v->pf = pf_find(h, v, now);
	switch (v->pf) {
	case PF_LOOK_REFUSE:
		return v->reason;
	case PF_LOOK_STATE:
		if (cfg.pf.asks & PF_ASK_TAG)
			pf_tag_again(v->in, on(FEATURE_RULES) ? v->rule_in : 0);
		return pf_follow(h, f, v, now);
	case PF_LOOK_JUDGE:
		if (on(FEATURE_RULES) && (cfg.pf.asks & PF_ASK_TAG) && v->rule_in)
			pf_take_tag(v->rule_in);
		if (cfg.pf.asks & PF_ASK_ROUTE)
			pf_source_elsewhere(h->ctx, v->in);
		reason = pf_ask_rules(h->ctx, v->in, 0, v->in);
		if (!on(FEATURE_PF_REWRITE) || reason || !pf_proxy_wanted(h->ctx, v->in))
			return reason;
		/* the rules on the way out are asked when the switch calls the other side */
		reason = mac_is_group(f->dst) ? 0
					      : pf_state_make(port_at(v->in)->id, 0, f->len, now);
		return reason ? reason : DROP_PF_SYNPROXY;
	}
	return 0;
}

/* On the way out by a port, which may be one of many of a flood: 0 or why not. */
static __always_inline u32 pf_out(const struct hook *h, struct verdict *v, u32 slot)
{
	u32 how = PF_ON_WAY_OUT;

	if (v->pf == PF_LOOK_NOT_IP)
		return 0;
	if (v->pf == PF_LOOK_STATE)
		how |= PF_KNOWN;
	if (v->flood)
		how |= PF_FLOOD;
	return pf_ask_rules(h->ctx, slot, how, v->in);
}

/*
 * What there is to do when the packet has its state, if it has one; `reason` is why
 * it has none, though it should, and is returned.
 */
__noinline u32 pf_settled(struct __sk_buff *skb, u32 reason)
{
	struct pf_packet *p = pf_packet();

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	p->unmade = reason;
	if (reason)
		return reason;
	if (on(FEATURE_PF_REWRITE) && p->state)
		pf_rewrite(skb, p->state - 1);
	if (cfg.pf.asks & PF_ASK_PRIORITY)
		pf_set_priority(skb);
	return 0;
}

/* The packet goes its way: makes its state, once; 0, or why it must not go. */
static __always_inline u32 pf_settle(const struct hook *h, const struct frame *f, struct verdict *v,
				     u32 out, u32 now)
{
	struct pf_packet *p = pf_packet();

	if (v->pf != PF_LOOK_JUDGE || !p)
		return 0;
	/* another port of a flood */
	if (p->made)
		return p->unmade;
	p->made = 1;
	return pf_settled(
		h->ctx, pf_state_make(port_at(v->in)->id, out ? port_at(out)->id : 0, f->len, now));
}
