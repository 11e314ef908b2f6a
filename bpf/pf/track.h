/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Packets and their states: the first packet makes a state, the others update it. */
#pragma once

#include "rewrite.h"
#include "tcp.h"

/* How a packet updates its state. */
enum pf_follow {
	PF_FOLLOW_XDP, /* a packet that is not passed changes nothing: tcx judges it again */
	PF_FOLLOW_SKB,
	PF_FOLLOW_LOOK, /* with XDP: nothing is changed; struct pf_packet has the sides */
};

/*
 * Does this CPU's packet begin a connection where there is one already? A client that has lost its
 * connection may come back from the same port. A challenge makes it show which of the two is valid
 * (RFC 5961, 4): on behalf of the other side, pf acknowledges the data that the connection has
 * received, as OpenBSD does (pf_send_challenge_ack()). If the client does not have the connection,
 * it resets it, and its next SYN begins a new one. If it has it, its SYN was forged or is old, and
 * the client treats the challenge as one more acknowledgement. So the challenge has the largest
 * window that the other side has offered, not none as OpenBSD's: a forged SYN must not stop the
 * client.
 */
static __always_inline bool pf_challenges(const struct pf_packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_SYN && p->src.state >= PF_ESTABLISHED &&
	       p->dst.state >= PF_ESTABLISHED;
}

/*
 * Updates the state of this CPU's TCP packet. Returns 0, or the reason to block it. This is a
 * separate function, to save room on the stack.
 */
OFTEN __noinline u32 pf_follow_tcp(u32 place, u32 now, u32 how)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = pf_state_at(place);
	struct pf_peer *src, *dst;
	u32 side, ack;

	if (!on(FEATURE_PF) || !p || !s)
		return DROP_PF;
	side = p->side & 1;
	ack = p->ack;
	src = &s->peer[side];
	dst = &s->peer[!side];
	p->src = p->src_was = *src;
	p->dst = p->dst_was = *dst;
	p->complete = 0;
	p->loose = 0;
	if (on(FEATURE_PF_REWRITE) && (s->flags & PF_STATE_REWRITE)) {
		/* a handshake that the switch makes is not followed here */
		if (pf_more(p->src.state, p->dst.state) >= PF_PROXY_SRC)
			return 0;
		/* the second side's numbers are changed from its first packet on */
		if (how == PF_FOLLOW_SKB && !p->src.lo && !s->diff[side])
			s->diff[side] = bpf_get_prandom_u32() | 1;
		ack -= s->diff[!side];
	}
	if (pf_challenges(p)) {
		if (how != PF_FOLLOW_SKB || on(FEATURE_TRACE))
			return DROP_PF_STATE;
		pf_count(PF_COUNT_STATE_MISMATCH);
		/* the client knows the other side by the numbers with which its packets leave */
		if (on(FEATURE_PF_REWRITE) && (s->flags & PF_STATE_REWRITE))
			p->dst.lo += s->diff[!side];
		p->answer = PF_RETURN_CHALLENGE;
		return DROP_PF_STATE;
	}
	if (s->flags & PF_STATE_SLOPPY) {
		pf_tcp_sloppy(p);
	} else if (!pf_tcp_track(p, ack)) {
		/* XDP leaves it to tcx, which counts it; a trial keeps nothing */
		if (how != PF_FOLLOW_SKB || on(FEATURE_TRACE))
			return DROP_PF_STATE;
		pf_count(PF_COUNT_STATE_MISMATCH);
		/*
		 * A host that answers a SYN with anything but its own SYN still has the former
		 * connection. It gets the reset that the client would send (RFC 9293, 3.10.7.3).
		 */
		if (p->src.state == PF_SYN_SENT && p->dst.state == PF_SYN_SENT)
			p->answer = PF_RETURN_RST;
		return DROP_PF_STATE;
	}
	if (on(FEATURE_PF_SOURCES) && p->complete && (s->flags & PF_STATE_TRACK) &&
	    how != PF_FOLLOW_SKB)
		return DROP_PF_LIMIT; /* tcx must count it */
	if (on(FEATURE_TRACE) || how == PF_FOLLOW_LOOK)
		return 0;
	pf_peer_store(src, &p->src, &p->src_was);
	pf_peer_store(dst, &p->dst, &p->dst_was);
	if (!p->loose && s->used != now)
		WRITE_ONCE(s->used, now);
	return 0;
}

/* Records in a state that a side has sent a packet of a protocol without numbers. */
static __always_inline void pf_other_keep(struct pf_state *s, u32 proto, u32 side)
{
	if (proto == IPPROTO_ICMP || proto == IPPROTO_ICMPV6 || proto == IPPROTO_TCP)
		return;
	if (s->peer[side].state < PF_SINGLE)
		s->peer[side].state = PF_SINGLE;
	if (s->peer[!side].state == PF_SINGLE)
		s->peer[!side].state = PF_MULTIPLE;
}

/*
 * Updates the state of this CPU's packet. Returns 0, or the reason to block it. At XDP a blocked
 * packet changes nothing, because tcx judges it again.
 */
OFTEN __noinline u32 pf_state_follow(u32 now, u32 skb)
{
	struct pf_packet *p = pf_packet();
	u32 place, side, reason;
	struct pf_state *s;

	if (!on(FEATURE_PF) || !p)
		return DROP_PF;
	place = p->state - 1;
	s = pf_state_at(place);
	if (!s)
		return DROP_PF;
	side = p->side & 1;
	/* a later fragment of TCP has no numbers */
	if (p->proto == IPPROTO_TCP && !(p->flags & PF_P_LATER)) {
		reason = pf_follow_tcp(place, now, skb ? PF_FOLLOW_SKB : PF_FOLLOW_XDP);
		if (reason || on(FEATURE_TRACE))
			return reason;
		if (on(FEATURE_PF_SOURCES) && p->complete && pf_source_connect(place, now)) {
			pf_source_punish(place, now);
			pf_count(PF_COUNT_SRC_LIMIT);
			pf_state_remove(place, now);
			return DROP_PF_LIMIT;
		}
	} else {
		if (on(FEATURE_TRACE))
			return 0;
		pf_other_keep(s, p->proto, side);
		if (s->used != now)
			WRITE_ONCE(s->used, now);
	}
	s->packets[side]++;
	s->bytes[side] += p->length;
	return 0;
}

/* The flags of a rule that keeps states: enum pf_rule_flag. Returns 0 if it keeps none. */
__noinline u32 pf_keeps(u32 rule)
{
	struct pf_rule *r = pf_rule_at(rule);

	return on(FEATURE_PF) && r && r->flags & PF_KEEPS ? r->flags : 0;
}

/*
 * The flags that a state gets from its rules: enum pf_state_flag. This is a separate function,
 * because there are many ways through it.
 */
__noinline u32 pf_state_flags(u32 in, u32 out)
{
	u32 any = in | out, track = in, flags = 0;

	if (!on(FEATURE_PF_RULES))
		return 0;
	if (any & PF_SLOPPY)
		flags |= PF_STATE_SLOPPY;
	if (any & PF_IF_BOUND)
		flags |= PF_STATE_IF_BOUND;
	if (any & PF_LOG_ALL)
		flags |= PF_STATE_LOG;
	if (any & PF_ALLOW_OPTS)
		flags |= PF_STATE_OPTIONS;
	if (!in)
		flags |= PF_STATE_OUT;
	if (!on(FEATURE_PF_SOURCES))
		return flags;
	/* Only one rule tracks the source. If both require it, the rule on the way in does. */
	if (!(track & (PF_TRACK_RULE | PF_TRACK_GLOBAL))) {
		track = out;
		if (track & (PF_TRACK_RULE | PF_TRACK_GLOBAL))
			flags |= PF_STATE_TRACK_OUT;
	}
	if (track & PF_TRACK_RULE)
		flags |= PF_STATE_TRACK_RULE;
	else if (track & PF_TRACK_GLOBAL)
		flags |= PF_STATE_TRACK_GLOBAL;
	return flags;
}

/*
 * Fills in a state from this CPU's packet, which is its first. Returns false if there is no such
 * place.
 */
OFTEN __noinline u32 pf_fill(u32 place, u32 from, u32 to, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = pf_state_at(place);
	struct pf_peer *src, *dst;
	struct pf_profile *profile;
	u32 in, out, side, number;
	struct pf_rule *r;

	if (!on(FEATURE_PF) || !p || !s)
		return false;
	side = p->side & 1;
	src = &s->peer[side];
	dst = &s->peer[!side];
	in = pf_keeps(p->rule[0]);
	out = pf_keeps(p->rule[1]);
	r = pf_rule_at(in ? p->rule[0] : p->rule[1]);
	/* the state counts for the limiters of its profile */
	if (on(FEATURE_PF_LIMITERS) && (out & PF_LIMITED) && !(in & PF_LIMITED))
		r = pf_rule_at(p->rule[1]);
	__builtin_memset(s, 0, sizeof(*s));
	s->key = p->key;
	s->key.profile = r ? r->profile : 0;
	number = s->key.profile;
	profile = bpf_map_lookup_elem(&pf_profiles, &number);
	s->in = from;
	s->out = to;
	s->packets[side] = 1;
	s->bytes[side] = p->length;
	if (cfg.pf.asks & PF_ASK_TAG)
		pf_state_tag_keep(s, p->tag_kept);
	s->created = now;
	s->used = now;
	s->rule_in = p->rule[0];
	s->rule_out = p->rule[1];
	s->ruleset = cfg.pf.ruleset;
	s->flags = pf_state_flags(in, out) | (side ? PF_STATE_SECOND : 0);
	if (profile && profile->priority[0])
		s->flags |= PF_STATE_PRIO;
	if (on(FEATURE_PF_SCRUB)) {
		pf_scrub_join(p);
		/* a sloppy state checks nothing in its packets */
		if (on(FEATURE_PF_REASSEMBLE))
			pf_scrub_of(p, (p->proto ^ IPPROTO_TCP) | (s->flags & PF_STATE_SLOPPY));
		pf_scrub_keep(s, &p->scrub[0]);
	}
	if (p->proto == IPPROTO_ICMP || p->proto == IPPROTO_ICMPV6)
		return true;
	if (p->proto != IPPROTO_TCP) {
		src->state = PF_SINGLE;
		return true;
	}
	pf_tcp_begin(p, src, dst);
	if (on(FEATURE_PF_REWRITE) && !pf_second_wanted())
		pf_rewrite_begin(p, s, in | out);
	return true;
}

/*
 * Counts a new state for the whole table and for its rules. Returns 0, or the counter for the
 * reason of a refusal.
 */
OFTEN __noinline u32 pf_rules_enter(u32 place)
{
	struct pf_shared *shared = pf_shared_get();
	struct pf_state *s = pf_state_at(place);
	u32 why = PF_COUNT_MEMORY;

	if (!on(FEATURE_PF) || !shared || !s)
		return why;
	if (__sync_fetch_and_add(&shared->states, 1) >= cfg.pf.states_max)
		goto no_room;
	why = PF_COUNT_MAX_STATES;
	if (s->ruleset != cfg.pf.ruleset)
		return 0;
	if (!pf_rule_enter(s->rule_in))
		goto no_room;
	if (pf_rule_enter(pf_other_rule(s)))
		return 0;
	pf_rule_leave(s->rule_in);
no_room:
	__sync_fetch_and_sub(&shared->states, 1);
	return why;
}

/* Undoes pf_rules_enter(). */
__noinline u32 pf_rules_leave(u32 place)
{
	struct pf_shared *shared = pf_shared_get();
	struct pf_state *s = pf_state_at(place);

	if (!on(FEATURE_PF) || !shared || !s)
		return 0;
	if (s->ruleset == cfg.pf.ruleset) {
		pf_rule_leave(s->rule_in);
		pf_rule_leave(pf_other_rule(s));
	}
	__sync_fetch_and_sub(&shared->states, 1);
	return 0;
}

/* Counts a new state wherever there is a limit. Returns false if a limit forbids it. */
static __always_inline bool pf_enter(u32 place, u32 now)
{
	u32 why = pf_rules_enter(place);

	if (!why && on(FEATURE_PF_SOURCES)) {
		why = pf_source_enter(place, now);
		if (why) {
			pf_rules_leave(place);
			pf_count(PF_COUNT_SRC_LIMIT);
		}
	} else if (why == PF_COUNT_MAX_STATES) {
		pf_count(PF_COUNT_STATE_LIMIT);
	}
	if (!why && on(FEATURE_PF_LIMITERS)) {
		why = pf_limits_enter(place, now);
		if (why) {
			pf_source_leave(place, false, now);
			pf_rules_leave(place);
		}
	}
	if (why)
		pf_count(why);
	return !why;
}

/* Counts one more state that the rule has made. */
static __always_inline void pf_rule_made(u32 rule)
{
	u32 number = rule - 1;
	struct pf_rule_stats *stats;

	if (!pf_keeps(rule))
		return;
	stats = bpf_map_lookup_elem(&pf_rule_stats, &number);
	if (stats)
		stats->states++;
}

/* Packets for which no state is made, whatever their rule requires. */
#define PF_P_STATELESS (PF_P_NO_STATE | PF_P_LATER | PF_P_UNKNOWN | PF_P_ERROR)

/* Should a state be made? */
enum pf_readiness {
	PF_MAKE_NONE,
	PF_MAKE_ONE,
	PF_MAKE_TOO_MANY,
	PF_MAKE_INSTEAD, /* in place of one that is over */
	PF_MAKE_TAKEN, /* no: answers would be mistaken for a translated connection's */
};

/* Checks whether this CPU's packet needs a state. */
OFTEN __noinline u32 pf_ready(u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_shared *shared = pf_shared_get();
	struct pf_state *s;
	u32 place;

	if (!on(FEATURE_PF_RULES) || !p || !shared || (p->flags & PF_P_STATELESS) ||
	    !(pf_keeps(p->rule[0]) || pf_keeps(p->rule[1])))
		return PF_MAKE_NONE;
	/*
	 * A state that was missing a moment ago can only come from another CPU: see pf_publish().
	 */
	place = p->vacant ? 0 : pf_state_find(&p->key);
	if (place) {
		s = pf_state_at(pf_state_of_key(place - 1) - 1);
		if (!s || !(pf_state_over(s, now) || pf_reopens(p, s))) {
			/* the state has just been made, or is bound to another port */
			pf_count(PF_COUNT_STATE_INSERT);
			if (on(FEATURE_PF_NAT) && s && (s->flags & PF_STATE_NAT))
				return PF_MAKE_TAKEN;
			return PF_MAKE_NONE;
		}
		return PF_MAKE_INSTEAD;
	}
	return READ_ONCE(shared->states) < cfg.pf.states_max ? PF_MAKE_ONE : PF_MAKE_TOO_MANY;
}

/* Removes the state that this CPU's packet would have. */
__noinline u32 pf_remove_old(u32 now)
{
	struct pf_packet *p = pf_packet();
	u32 place = on(FEATURE_PF) && p ? pf_state_find(&p->key) : 0;

	if (p)
		p->before = place;
	return place ? pf_state_remove(pf_state_of_key(place - 1) - 1, now) : 0;
}

/* Claims a place for the state of this CPU's packet. Returns the place + 1, or 0. */
OFTEN __noinline u32 pf_claim_packet(u32 now)
{
	struct pf_packet *p = pf_packet();

	return on(FEATURE_PF) && p ? pf_claim_room(&p->key, now) : 0;
}

/*
 * The same, but claims the place of a state that is over, or of a removed state with the same key.
 */
__noinline u32 pf_claim_packet_over(u32 now)
{
	struct pf_packet *p = pf_packet();
	u32 place;

	if (!on(FEATURE_PF) || !p)
		return 0;
	place = pf_claim_over(&p->key, false, now);
	if (!place)
		place = pf_claim_over(&p->key, true, now);
	return place ? place : pf_claim_again(p, now);
}

/*
 * Subtracts the counts of the packet's rules from their evaluation. Either the packet's state
 * counts for them, or the packet is not sent.
 */
__noinline int pf_uncount_rules(void)
{
	struct pf_packet *p = pf_packet();

	if (!on(FEATURE_PF_RULES) || !p)
		return 0;
	pf_rule_count(p->rule[0], pf_called(p, 0), -1, -(u64)p->length);
	pf_rule_count(p->rule[1], pf_called(p, 1), -1, -(u64)p->length);
	return 0;
}

/*
 * With XDP, rules of first packets do not count a packet before it is clear that it has no state.
 */
static __always_inline void pf_uncount(void)
{
	if (!on(FEATURE_PF_FIRST))
		pf_uncount_rules();
}

/*
 * Begins the life of the packet's state, which has been filled in and counted. Returns 0, or a
 * reason to drop the packet.
 */
OFTEN __noinline u32 pf_begin(u32 place, u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_state *s = pf_state_at(place);
	u32 reason = 0;

	if (!on(FEATURE_PF) || !p || !s)
		return DROP_PF;
	pf_rule_made(s->rule_in);
	pf_rule_made(pf_other_rule(s));
	pf_count_safely(PF_COUNT_INSERTS, 1);
	/* the state counts its first packet, also for its rules */
	if (on(FEATURE_PF_FIRST)) {
		struct pf_first *f = pf_first();

		if (f)
			f->begun = true;
	} else {
		pf_count_safely(PF_COUNT_SEARCHES, -1);
		pf_uncount_rules();
	}
	if (on(FEATURE_PF_REWRITE) && s->peer[p->side & 1].state == PF_PROXY_SRC)
		reason = DROP_PF_SYNPROXY;
	if (pf_publish(place, now))
		p->state = place + 1;
	else if (on(FEATURE_PF_NAT) && !reason && pf_key_translated(place))
		reason = DROP_PF_TRANSLATE; /* as with PF_MAKE_TAKEN */
	return reason;
}

/* Makes the state that the packet's rules require. Returns 0, or the reason for a failure. */
OFTEN __noinline u32 pf_state_make(u32 in, u32 out, u32 now)
{
	u32 ready, place, *mark;

	/* a trial keeps nothing */
	if (!on(FEATURE_PF_RULES) || on(FEATURE_TRACE))
		return 0;
	ready = pf_ready(now);
	if (ready == PF_MAKE_INSTEAD) {
		pf_remove_old(now);
		ready = pf_ready(now);
	}
	if (ready == PF_MAKE_NONE)
		return 0;
	if (on(FEATURE_PF_NAT) && ready == PF_MAKE_TAKEN)
		return DROP_PF_TRANSLATE;
	place = ready == PF_MAKE_ONE ? pf_claim_packet(now) : 0;
	if (!place && ready == PF_MAKE_ONE)
		place = pf_claim_packet_over(now);
	if (!place) {
		pf_count(PF_COUNT_MEMORY);
		pf_uncount();
		return DROP_PF_LIMIT;
	}
	place--;
	if (pf_fill(place, in, out, now) && pf_enter(place, now))
		return pf_begin(place, now);
	mark = pf_mark_at(place);
	if (mark)
		WRITE_ONCE(*mark, pf_mark_gone(now));
	pf_uncount();
	return DROP_PF_LIMIT;
}
