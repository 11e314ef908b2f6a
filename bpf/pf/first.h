/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * First packets that XDP routes, as pf judges them: once on the way into the host, by its rules at
 * two ports, and once on the way out. See ../first.h.
 */
#pragma once

#include "through.h"

/*
 * Evaluates the rules at a port, like pf_ask_rules(). Returns 0 if the packet passes, PF_TRANSLATE
 * if it must be translated first, or else a reason to leave it to tcx. The deciding rule counts the
 * packet later, if no state does.
 */
OFTEN __noinline u32 pf_first_ask(u32 slot, u32 how, u32 received)
{
	struct pf_packet *p = pf_packet();
	struct pf_first *f = pf_first();
	struct pf_rule *r;
	u32 rule;

	if (!on(FEATURE_PF_FIRST) || !p || !f)
		return DROP_PF;
	pf_ask_at(p, slot, how, received);
	pf_ask_begins(p);
	rule = pf_judge();
	if (f->odd)
		return DROP_PF;
	if (on(FEATURE_PF_NAT) && pf_translation_asked())
		return PF_TRANSLATE;
	p->tag_kept = p->tag;
	if (p->direction)
		p->tag = p->tag_in;
	if (rule == PF_SKIP)
		return 0;
	f->judged++;
	p->rule[p->direction & 1] = rule;
	r = pf_rule_at(rule);
	if (!r)
		return 0;
	if (pf_rule_is_slow(r))
		return DROP_PF;
	if (r->action == PF_BLOCK) {
		f->blocked = !how && slot == f->in && r->answer == PF_RETURN_NOTHING;
		return DROP_PF;
	}
	return on(FEATURE_PF_NAT) && pf_translation_ends(rule) ? PF_TRANSLATE : 0;
}

/* Makes one translation, like pf_translate_step(). */
static long pf_first_step(u32 i, void *unused)
{
	struct pf_nat *n = pf_nat();

	if (!n)
		return 1;
	n->reason = pf_translate_next();
	if (!n->reason && !n->last)
		n->reason = pf_first_ask(n->slot, n->how | PF_RESUMES, n->received);
	return n->reason != PF_TRANSLATE;
}

/* Translates the packet by its rules. Returns 0, or a reason to leave it to tcx. */
OFTEN __noinline u32 pf_first_translate(u32 slot, u32 how, u32 received)
{
	struct pf_nat *n = pf_nat();

	if (!on(FEATURE_PF_FIRST) || !on(FEATURE_PF_NAT) || !n)
		return DROP_PF_TRANSLATE;
	n->slot = slot;
	n->how = how;
	n->received = received;
	bpf_loop(PF_TRANSLATIONS, pf_first_step, 0, 0);
	return n->reason == PF_TRANSLATE ? DROP_PF_TRANSLATE : n->reason;
}

/* Is pf inactive at a port? Then hardly any work is done for the packet there. */
static __always_inline bool pf_first_skips(struct pf_packet *p, u32 slot, u32 direction)
{
	u32 call = pf_call(slot, direction);

	if (pf_cell(PF_CELL_PORT + SLOT(slot) * 2 + (call & 1)) != PF_SKIP)
		return false;
	p->direction = direction;
	p->calls[direction & 1] = call;
	p->rule[direction & 1] = 0;
	return true;
}

/* Judges the packet at a port. Returns false if it is left to tcx. */
static __always_inline bool pf_first_judge(struct pf_packet *p, u32 slot, u32 how, u32 received)
{
	u32 reason;

	if (pf_first_skips(p, slot, how & PF_ON_WAY_OUT))
		return true;
	reason = pf_first_ask(slot, how, received);
	if (on(FEATURE_PF_NAT) && reason == PF_TRANSLATE)
		reason = pf_first_translate(slot, how, received);
	return !reason;
}

/* Judges the packet at the two ports of its way into the host, or out of it. */
OFTEN __noinline u32 pf_first_judges(u32 in, u32 out)
{
	struct pf_packet *p = pf_packet();

	return on(FEATURE_PF_FIRST) && p && pf_first_judge(p, in, 0, in) &&
	       pf_first_judge(p, out, PF_ON_WAY_OUT, in);
}

/* Subtracts one rule's count of the packet: the last one noted. */
static long pf_first_undo_step(u32 i, u32 *from)
{
	struct pf_packet *p = pf_packet();
	struct pf_first *f = pf_first();
	struct pf_rule_stats *stats;
	struct pf_rule *r;
	u32 at, number;

	if (!p || !f || f->tried <= *from)
		return 1;
	at = f->tries[--f->tried & (PF_FIRST_TRIES - 1)];
	number = at >> 1;
	stats = bpf_map_lookup_elem(&pf_rule_stats, &number);
	r = bpf_map_lookup_elem(&pf_rules, &number);
	if (!stats || !r)
		return 0;
	stats->evaluations--;
	if (r->action == PF_MATCH)
		pf_rule_count(number + 1, at, -1, -(u64)p->length);
	return 0;
}

/*
 * Subtracts the counts of rules for the packet, except for the first `from` of the matching rules.
 */
__noinline int pf_first_undo(u32 from)
{
	if (!on(FEATURE_PF_FIRST))
		return 0;
	bpf_loop(PF_FIRST_TRIES, pf_first_undo_step, &from, 0);
	return 0;
}

/* Counts a packet that rules block on arrival. */
OFTEN __noinline int pf_first_blocks(void)
{
	struct pf_packet *p = pf_packet();
	struct pf_first *f = pf_first();

	if (!on(FEATURE_PF_FIRST) || !p || !f)
		return 0;
	if (cfg.pf.log_interface)
		pf_count_port(f->in, false, DROP_PF);
	pf_count_safely(PF_COUNT_MATCH, 1);
	pf_rule_count(p->rule[0], p->calls[0], 1, p->length);
	pf_count_search();
	return 0;
}

/* Counts a packet without a state as its state would count it. */
static __always_inline void pf_first_count(u32 rule_in, u32 rule_out, const u8 *calls, u32 length)
{
	pf_rule_count(rule_in, calls[0], 1, length);
	pf_rule_count(rule_out, calls[1], 1, length);
	pf_count_search();
}

/*
 * Makes the packet's state on the way that has been judged, for ports by their slots. Returns 0, or
 * the reason to drop the packet. The packet must have a state then.
 */
OFTEN __noinline u32 pf_first_make(u32 in, u32 out, u32 now, u32 translated)
{
	struct pf_packet *p = pf_packet();
	struct pf_first *f = pf_first();
	u32 reason;

	if (!on(FEATURE_PF_FIRST) || !p || !f)
		return DROP_PF;
	f->begun = false;
	in = port_at(in)->id;
	out = port_at(out)->id;
	reason = on(FEATURE_PF_NAT) && translated ? pf_nat_make(in, out, now)
						  : pf_state_make(in, out, now);
	if (f->begun)
		return reason;
	if (reason == DROP_PF_LIMIT)
		pf_count_search();
	else
		pf_first_count(p->rule[0], p->rule[1], p->calls, p->length);
	return reason;
}

/* Exchanges the data of the packet's translation with the data from its way in. */
static __always_inline void pf_first_exchange(void)
{
	u64 *other = work_of(WORK_PF_FIRST_NAT), *n = work_of(WORK_PF_NAT);

	if (!other || !n)
		return;
#pragma unroll
	for (u32 i = 0; i < sizeof(struct pf_nat) / 8; i++) {
		u64 was = n[i];

		n[i] = other[i];
		other[i] = was;
	}
}

/* Exchanges the data kept from the packet's way into the host with its current data. */
static __always_inline void pf_first_turn(struct pf_packet *p, struct pf_first *f)
{
	struct pf_key key = f->key;
	u32 in = f->rule[0], out = f->rule[1], side = f->side, tag = f->tag;
	u16 calls = *(u16 *)f->calls;

	f->key = p->key;
	f->rule[0] = p->rule[0];
	f->rule[1] = p->rule[1];
	f->side = p->side;
	f->tag = p->tag_kept;
	*(u16 *)f->calls = *(u16 *)p->calls;
	p->key = key;
	p->tag_kept = tag;
	p->rule[0] = in;
	p->rule[1] = out;
	p->side = side;
	*(u16 *)p->calls = calls;
}

/*
 * Keeps the result of the rules for the packet on its way into the host, and turns the packet into
 * the one that leaves the host, whose key has `vlan` instead of a VLAN. That key has been looked
 * up.
 */
OFTEN __noinline int pf_first_comes_out(u32 vlan)
{
	struct pf_packet *p = pf_packet();
	struct pf_first *f = pf_first();
	struct pf_nat *n = on(FEATURE_PF_NAT) ? pf_nat() : 0;

	if (!on(FEATURE_PF_FIRST) || !p || !f)
		return 0;
	f->key = p->key;
	f->rule[0] = p->rule[0];
	f->rule[1] = p->rule[1];
	*(u16 *)f->calls = *(u16 *)p->calls;
	f->side = p->side;
	f->tag = p->tag_kept;
	f->tried_in = f->tried;
	f->judged_in = f->judged;
	f->on = n && n->on;
	if (f->on)
		pf_first_exchange();
	p->key.vlan = vlan;
	p->vacant = true;
	/* the state will supply the tag that it gets on this way, as pf_came_across() does */
	p->tag = 0;
	p->came = 0;
	if ((cfg.pf.asks & PF_ASK_ACROSS) && (pf_keeps(p->rule[0]) || pf_keeps(p->rule[1]))) {
		p->tag = p->tag_kept & PF_TAG_MASK;
		p->came = f->slot;
	}
	p->tag_kept = p->tag;
	p->rule[0] = p->rule[1] = 0;
	p->direction = 0;
	p->state = 0;
	if (!n)
		return 0;
	n->on = false;
	n->out = false;
	n->cross = PF_CROSS_NOT;
	return 0;
}

/* Adds to PF_COUNT_MATCH how often rules have decided on a packet that is not left to tcx. */
static __always_inline void pf_first_counts(u32 judged)
{
	u64 *n = counter_of(COUNTER_PF + PF_COUNT_MATCH);

	if (n)
		*n += judged;
}

/*
 * Makes the state of the packet on its way into the host. Returns 0, or the reason to drop the
 * packet.
 */
OFTEN __noinline u32 pf_first_makes_in(u32 now)
{
	struct pf_packet *p = pf_packet();
	struct pf_first *f = pf_first();
	u32 reason;

	if (!on(FEATURE_PF_FIRST) || !p || !f)
		return DROP_PF;
	pf_first_turn(p, f);
	if (on(FEATURE_PF_NAT) && f->on)
		pf_first_exchange();
	reason = pf_first_make(f->in, f->slot, now, f->on);
	pf_first_turn(p, f);
	if (on(FEATURE_PF_NAT) && f->on)
		pf_first_exchange();
	p->state = 0;
	return reason;
}
