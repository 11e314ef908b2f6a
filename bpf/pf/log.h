/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* The log of pf, as pflog(4) has it. */
#pragma once

#include "rules.h"

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 4096);
} pf_log_ring SEC(".maps");

#define PF_LOG_WALK (~0u) /* instead of a ruleset: the rules have just been evaluated */

/*
 * Logs the packet for a rule (number + 1) if the rule has `log`, or if `must` is set. Returns the
 * rule's flags, which are only known for rules of this ruleset.
 */
__noinline u32 pf_log_rule(struct __sk_buff *skb, u32 rule, u32 must)
{
	u32 key = rule - 1, flags = 0, kept;
	struct pf_packet *p = pf_packet();
	struct pf_walk *w = pf_walk();
	struct pf_rule *r = 0;
	struct pf_logged *l;
	u64 *missed;

	if (!on(FEATURE_PF_LOG) || !p || !w)
		return 0;
	if (rule && w->log_ruleset == cfg.pf.ruleset)
		r = bpf_map_lookup_elem(&pf_rules, &key);
	w->log_to = w->log_match = 0;
	if (r) {
		flags = r->flags;
		w->log_to = r->log_to;
		w->log_match = r->action == PF_MATCH;
	}
	if (!must && !(flags & PF_LOG))
		return flags;
	l = bpf_ringbuf_reserve(&pf_log_ring, sizeof(*l), 0);
	if (!l) {
		missed = counter_of(COUNTER_PF_LOG_MISSED);
		if (missed)
			++*missed;
		return flags;
	}
	l->time = bpf_ktime_get_ns();
	l->port = port_at(w->log_slot)->id;
	l->len = p->length;
	l->rule = rule;
	l->ruleset = w->log_ruleset;
	l->family = p->family;
	l->action = w->log_reason ? PF_BLOCK : PF_PASS;
	l->direction = pf_call(w->log_slot, p->direction);
	l->reason = w->log_reason == DROP_PF ? 0 : w->log_reason;
	l->log_to = w->log_to;
	if (w->log_match) {
		l->action = PF_MATCH;
		l->reason = 0;
	}
	kept = p->length < PF_LOG_BYTES ? p->length : PF_LOG_BYTES;
	if (!frame_load(skb, p->l3, l->data, kept, PF_LOG_BYTES)) {
		bpf_ringbuf_discard(l, 0);
		return flags;
	}
	l->kept = kept;
	bpf_ringbuf_submit(l, 0);
	return flags;
}

/* The entries that a rule which has passed this CPU's packet must still log. */
enum pf_logs {
	PF_LOGS_DUE = 1 << 0,
	PF_LOGS_MUST = 1 << 1, /* the rule itself need not have `log` */
};

/*
 * Logs this CPU's packet. `rule` is the rule's number + 1, and `what` an enum drop_reason or 0.
 * `ruleset` belongs to the rule of a state, or is PF_LOG_WALK: the rules have just been evaluated.
 *
 * In that case, the rules determine what is logged. A match rule with `log` logs the packet itself.
 * The rule that applies logs it if it has `log`, or if a match rule has `log (matches)`. A packet
 * with forbidden options is always logged, as by pf. If the rule that applies passes a packet
 * without a state, its entry is written later: the packet may still be dropped, if the rule's
 * state, translation or next hop is impossible.
 */
__noinline int pf_log(struct __sk_buff *skb, u32 slot, u32 rule, u32 what, u32 ruleset)
{
	struct pf_packet *p = pf_packet();
	struct pf_walk *w = pf_walk();
	u32 must = PF_LOGS_MUST;

	/* a trial logs nothing: its packet is not real */
	if (!on(FEATURE_PF_LOG) || on(FEATURE_TRACE) || !p || !w)
		return 0;
	w->log_slot = slot;
	w->log_reason = what;
	w->log_ruleset = ruleset;
	if (ruleset == PF_LOG_WALK) {
		w->log_ruleset = cfg.pf.ruleset;
		must = what == DROP_PF_OPTIONS ? PF_LOGS_MUST : 0;
#pragma unroll
		for (u32 i = 0; i < PF_MATCHES; i++) {
			if (i < w->matched &&
			    (pf_log_rule(skb, w->matches[i], false) & PF_LOG_MATCHES))
				must = PF_LOGS_MUST;
		}
		if (!what && !(p->how & PF_KNOWN)) {
			p->logs[p->direction & 1] = PF_LOGS_DUE | must;
			p->log_slots[p->direction & 1] = slot;
			return 0;
		}
	}
	pf_log_rule(skb, rule, must);
	return 0;
}

/* Writes the pending log entries of the way in, or out. */
static __always_inline void pf_log_due_at(struct __sk_buff *skb, struct pf_packet *p,
					  struct pf_walk *w, u32 direction)
{
	u32 logs = p->logs[direction];

	if (!logs)
		return;
	p->logs[direction] = 0;
	w->log_slot = p->log_slots[direction];
	p->direction = direction;
	pf_log_rule(skb, p->rule[direction], logs & PF_LOGS_MUST);
}

/*
 * Writes the pending log entries of a packet that passes, or is dropped for a reason. If its rules
 * cannot be carried out, both have dropped the packet: they have one state. For other reasons it
 * has passed pf. Returns the reason, so that callers need not keep it.
 */
__noinline u32 pf_log_due(struct __sk_buff *skb, u32 reason)
{
	struct pf_packet *p = pf_packet();
	struct pf_walk *w = pf_walk();
	u32 was;

	if (!on(FEATURE_PF_LOG) || on(FEATURE_TRACE) || !p || !w)
		return reason;
	was = p->direction;
	w->log_reason = 0;
	if (reason == DROP_PF_LIMIT || (reason >= DROP_PF_TRANSLATE && reason <= DROP_PF_TIMESTAMP))
		w->log_reason = reason;
	w->log_ruleset = cfg.pf.ruleset;
	pf_log_due_at(skb, p, w, 0);
	pf_log_due_at(skb, p, w, 1);
	p->direction = was;
	return reason;
}
