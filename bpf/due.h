/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * What is rare of pf, and large, in a program of its own: connections that a rule with `reassemble
 * tcp` lets through (pf/reassemble.h), and handshakes that the switch makes (pf/rewrite.h). The
 * switch's program makes a tail call to it where it would take the packet into its state itself,
 * and the decision goes on by another one back. So a packet that is dropped for its timestamps has
 * changed nothing, and one that passes goes on as all others do.
 *
 * A connection's first packet comes here for `reassemble tcp` when its state has been made, before
 * it is sent. That of a flood is made in the middle of the flood: so if a flood may make one, all
 * of it is made here.
 *
 * Where this program is there, it also makes the answer to a packet that pf has dropped.
 */
#pragma once

#include "answer.h"
#include "family.h"
#include "flood.h"

#ifndef DECIDES_AT_ONCE
/*
 * Has done what is due with the packet of struct judged, whose decision has begun in `epoch`.
 * Returns only if that cannot be: as with a frame that has gone by as many cables as the kernel
 * makes tail calls.
 */
static __always_inline void due_go(struct __sk_buff *skb, bool cable, u32 epoch)
{
	struct pf_packet *p = pf_packet();

	if (!p)
		return;
	p->epoch = epoch;
	p->cable = on(FEATURE_PATCH) && cable;
	bpf_tail_call(skb, &pf_panel, PF_PANEL_DUE);
}

/* Is all decided about the packet? Then its way out is known. */
static __always_inline bool due_decided(const struct judged *j)
{
	return j->v.out;
}

/*
 * How the decision goes on when that is done: ACTION_DROP if the packet is dropped, ACTION_SEND
 * if nothing is left to be decided, ACTION_LEAVE if more is.
 */
static __always_inline enum action due_is_back(struct judged *j, u32 *epoch)
{
	struct pf_packet *p = pf_packet();

	j->v.back = false;
	*epoch = p ? p->epoch : 0;
	if (j->v.reason)
		return ACTION_DROP;
	return due_decided(j) ? ACTION_SEND : ACTION_LEAVE;
}

/* Takes the packet into its state, and does what comes after that: 0, or why it is dropped. */
__noinline u32 due_follow(struct __sk_buff *skb, u32 due)
{
	struct judged *j = judged_here(0);
	u32 reason = DROP_PF;

	if (!on(FEATURES_DUE) || !j)
		return DROP_PF;
	if (on(FEATURE_PF_REWRITE) && due == DUE_PROXY) {
		reason = pf_proxy(skb, j->v.in, clock_now());
	} else if (on(FEATURE_PF_REASSEMBLE)) {
		reason = pf_stamps_follow(skb, clock_now());
		if (reason)
			pf_count_search();
		reason = pf_follow_end(skb, j->v.in, reason);
	}
	if (cfg.pf.log_interface) {
		pf_count_port(j->v.in, false, reason);
		if (due_decided(j) && !reason)
			pf_count_port(j->v.out, true, false);
	}
	if (on(FEATURE_RULES) && reason)
		j->v.rule_out = 0; /* go_out() would not have got to this rule */
	return reason;
}

/* Answers a packet that has been dropped. */
__noinline int due_answer(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);

	return on(FEATURES_DUE) && j ? answer_refused(skb, &j->f, &j->v) : TC_ACT_SHOT;
}

/* Does what is due, and goes on with the decision. */
static __always_inline int due_skb(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);
	struct pf_packet *p = pf_packet();
	u32 reason, due;

	if (!j || !p)
		return TC_ACT_SHOT;
	due = j->v.due;
	j->v.due = DUE_NOT;
	if (due == DUE_ANSWER)
		return due_answer(skb);
	if (on(FEATURE_PF_REASSEMBLE) && due == DUE_FLOOD)
		return flood_judged(skb, p->cable, true);
	if (on(FEATURE_PF_REASSEMBLE) && due == DUE_FIRST)
		reason = pf_settled(skb, 0);
	else
		reason = due_follow(skb, due);
	j = judged_here(0); /* again, rather than kept on the stack */
	p = pf_packet();
	if (!j || !p)
		return TC_ACT_SHOT;
	j->v.reason = reason;
	j->v.back = true;
	if (on(FEATURE_PATCH) && p->cable)
		bpf_tail_call(skb, &pf_panel, PF_PANEL_PATCH);
	else
		bpf_tail_call(skb, &pf_panel, PF_PANEL_TCX);
	j = judged_here(0);
	if (!j)
		return TC_ACT_SHOT;
	j->v.back = false;
	return drop_early(skb, &j->f, &j->v, DROP_PATCH_LOOP);
}
#endif
