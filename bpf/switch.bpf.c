// SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause)

/*
 * The switch: one pipeline (pipeline.h), two hooks. The tcx program does everything, for every kind
 * of port, and keeps GSO packets whole. The XDP program takes frames that it can send without an
 * skb, and declines the rest. The kernel then hands these to the tcx program of the same port.
 */
#include "clock.h"
#include "control.h"
#include "first.h"
#include "rate.h"
#include "tcx.h"
#include "xdp.h"

SEC("tcx/ingress")
int bascule_tcx(struct __sk_buff *skb)
{
	if (on(FEATURE_RATE) && !on(FEATURE_TRACE) && rate_refuses(skb))
		return TC_ACT_SHOT;
	return switch_skb(skb, false);
}

/* Checks frames that leave through a port with such a limit. */
SEC("tcx/egress")
int bascule_out(struct __sk_buff *skb)
{
	return rate_out(skb);
}

/* Continues with a frame that another bridge sends by a patch cable. */
SEC("tcx/ingress")
int bascule_patch(struct __sk_buff *skb)
{
	struct trip *t = trip_get();
	u32 ifindex, blind;
	int action;

	if (!t)
		return TC_ACT_SHOT;
	ifindex = trip_ifindex(t);
	/* from a program that this one has replaced: rules no longer set next hops */
	blind = on(FEATURE_ROUTE) && !on(FEATURE_PF_HOPS) ? trip_blind() : 0;
	if (blind)
		return route_gives_back(skb, blind);
	action = switch_skb(skb, true);
	t = trip_get(); /* read again, rather than kept on the stack */
	if (t && t->waits)
		return patch_follow(skb, ifindex);
	return action == TC_ACT_UNSPEC ? TC_ACT_SHOT : action;
}

#ifndef DECIDES_AT_ONCE
/* Continues with a packet that pf sends on in the other family. */
SEC("tcx/ingress")
int bascule_family(struct __sk_buff *skb)
{
	return family_skb(skb);
}

/*
 * Finds the facts about the host's routes that rules need for a packet, and continues its decision.
 */
SEC("tcx/ingress")
int bascule_fib(struct __sk_buff *skb)
{
	return fib_skb(skb, PF_PANEL_TCX);
}

SEC("tcx/ingress")
int bascule_fib_patch(struct __sk_buff *skb)
{
	return fib_skb(skb, PF_PANEL_PATCH);
}

/* Continues with a packet that has a next hop from pf, or a socket of the host. */
SEC("tcx/ingress")
int bascule_hop(struct __sk_buff *skb)
{
	return divert_or_hop_skb(skb);
}

/* Does the rare work of pf on a packet, and continues its decision. */
SEC("tcx/ingress")
int bascule_due(struct __sk_buff *skb)
{
	return due_skb(skb);
}
#endif

SEC("xdp.frags")
int bascule_xdp(struct xdp_md *xdp)
{
	return switch_xdp(xdp);
}

#ifndef DECIDES_AT_ONCE
/* Judges, translates and routes the first packet of a connection. */
SEC("xdp.frags")
int bascule_first(struct xdp_md *xdp)
{
	int action = first_xdp(xdp);

	if (on(FEATURE_RATE) && action == XDP_REDIRECT)
		rate_pays_xdp(xdp);
	return action;
}
#endif

/*
 * Starts the timer, and is the program that the timer runs. A program of this type may access the
 * ports' devices; the control program may sleep, and so must not. The request is the frame's mark.
 */
SEC("tcx/ingress")
int bascule_clock(struct __sk_buff *skb)
{
	return clock_do(skb->mark);
}

SEC("syscall")
int bascule_control(struct control *r)
{
	struct clock *c = clock_get();

	if (c)
		r->result = control_do(c, r);
	return 0;
}

/*
 * Changes tables of addresses. It belongs to no tracepoint. Of all types of programs that user
 * space can run, only this one leaves interrupts alone meanwhile and may look into a trie. The
 * request is the arguments' bytes.
 */
SEC("raw_tp")
int bascule_table(struct pf_table_arguments *a)
{
	return pf_table_change(a);
}

char _license[] SEC("license") = "Dual BSD/GPL";
