/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The rare and large parts of pf, in a separate program: connections that a rule with `reassemble
 * tcp` passes (pf/reassemble.h), and handshakes that the switch makes (pf/rewrite.h). The switch's
 * program makes a tail call to it at the point where it would otherwise update the packet's state
 * itself. Another tail call returns to the decision. So a packet that is dropped for its timestamps
 * has changed nothing, and one that passes goes on like all others.
 *
 * A connection's first packet comes here for `reassemble tcp` after its state has been made, and
 * before it is sent. A flood makes the state in the middle of the flood: so if a flood may make
 * one, the whole flood is done here.
 *
 * If this program exists, it also makes the answer to a packet that pf has dropped.
 */
#pragma once

#include "answer.h"
#include "family.h"
#include "flood.h"

#ifndef DECIDES_AT_ONCE
/*
 * Calls the program that does the due work for the packet of struct judged, whose decision has
 * begun in `epoch`. Returns only if that is impossible: for example, if the frame has passed as
 * many cables as the kernel makes tail calls.
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

/* Is the decision on the packet complete? Then its way out is known. */
static __always_inline bool due_decided(const struct judged *j)
{
	return j->v.out;
}

/*
 * How the decision continues after the due work: ACTION_DROP if the packet is dropped, ACTION_SEND
 * if the decision is complete, ACTION_LEAVE if it is not.
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

/*
 * Updates the packet's state, and does the work that follows. Returns 0, or the reason to drop the
 * packet.
 */
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
		j->v.rule_out = 0; /* go_out() would not have reached this rule */
	return reason;
}

/* Answers a packet that has been dropped. */
__noinline int due_answer(struct __sk_buff *skb)
{
	struct judged *j = judged_here(0);

	return on(FEATURES_DUE) && j ? answer_refused(skb, &j->f, &j->v) : TC_ACT_SHOT;
}

/* Does the due work, and continues the decision. */
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
	j = judged_here(0); /* read again, rather than kept on the stack */
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
