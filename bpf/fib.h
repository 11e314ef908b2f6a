/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The host's routes for a packet's addresses at host ports: whether there is a route to each of
 * them (no-route), and whether the route back to the source leaves through the interface of the
 * rules (urpf-failed). At station ports, bindings determine whether the source is at the right
 * place. A separate program finds this out before the rules are evaluated, and the frame's decision
 * then continues where it was. An address that the kernel's look-up does not cover counts as having
 * no route. docs/pf.md, Routes, describes the effect for users.
 */
#pragma once

#include "family.h"

/* Flags of bpf_fib_lookup() that older headers lack. */
#define PF_FIB_DIRECT (1u << 0)
#define PF_FIB_OUTPUT (1u << 1)
#define PF_FIB_SKIP_NEIGH (1u << 2)

/* Number of look-ups that find all next hops of a route: each uses another hash. */
#define PF_FIB_HOPS 64

/* Results of a look-up. */
enum pf_fib_answer {
	PF_FIB_NONE, /* no route, or none that the kernel reports */
	PF_FIB_LOCAL, /* an address of the host, or a broadcast on a link */
	PF_FIB_ELSEWHERE, /* a route through another interface, or with a tunnel of its own */
	PF_FIB_HERE, /* a route through the host port's interface */
};

#ifndef DECIDES_AT_ONCE
/* Is it an address that no route leads to (RFC 1122 3.2.1.3)? The first byte is the lowest. */
static __always_inline bool pf_fib_odd4(u32 address)
{
	u8 first = address & 0xff;

	return !first || first == 127 || first >= 224;
}

/* The same for IPv6: ::, ::1 and groups (RFC 4291 2.4). */
static __always_inline bool pf_fib_odd6(const u32 *address)
{
	return (address[0] & 0xff) == 0xff ||
	       !(address[0] | address[1] | address[2] | (address[3] & bpf_htonl(~1u)));
}

/* Is it a link-local address (fe80::/10)? Every link has a route to it. */
static __always_inline bool pf_fib_of_link(const u32 *address)
{
	return (address[0] & bpf_htonl(0xffc00000)) == bpf_htonl(0xfe800000);
}

/* Is it a broadcast address, or a group's? */
static __always_inline bool pf_fib_to_many(const u32 *address, bool six)
{
	u8 first = address[3] & 0xff;

	return six ? (address[0] & 0xff) == 0xff
		   : (first >= 224 && first < 240) || address[3] == 0xffffffff;
}

/*
 * May a packet be from a station that has no address yet? The stack accepts one from 0.0.0.0 if it
 * is a broadcast, or for a group of the link (ip_route_input_slow() in the kernel).
 */
static __always_inline bool pf_fib_from_nobody(const u32 *src, const u32 *dst, bool six)
{
	if (six)
		return !(src[0] | src[1] | src[2] | src[3]) && pf_fib_to_many(dst, true);
	return !src[3] &&
	       (dst[3] == 0xffffffff || (dst[3] & bpf_htonl(0xffffff00)) == bpf_htonl(0xe0000000));
}

/* Looks up a route in the kernel. Returns an enum pf_fib_answer. */
__noinline u32 pf_fib_look(struct __sk_buff *skb, u32 flags)
{
	struct pf_fib *f = pf_fib();
	long answer;

	if (!on(FEATURE_PF_FIB) || !f)
		return PF_FIB_NONE;
	f->look = f->ask;
	answer = bpf_fib_lookup(skb, &f->look, sizeof(f->look),
				flags | f->direct | PF_FIB_SKIP_NEIGH);
	if (answer == BPF_FIB_LKUP_RET_NOT_FWDED)
		return PF_FIB_LOCAL;
	if (answer == BPF_FIB_LKUP_RET_UNSUPP_LWT)
		return PF_FIB_ELSEWHERE;
	if (answer && answer != BPF_FIB_LKUP_RET_FRAG_NEEDED)
		return PF_FIB_NONE;
	return f->look.ifindex == f->ask.ifindex ? PF_FIB_HERE : PF_FIB_ELSEWHERE;
}

/* Results of pf_fib_beside(). */
enum pf_fib_beside {
	PF_FIB_APART, /* nothing is routed there */
	PF_FIB_ROUTED, /* it has a route by a next hop */
	PF_FIB_LINKED, /* it is on a link */
};

/* From now on, looks up an address that differs from the original one in some bits. */
static __always_inline u32 pf_fib_beside(struct __sk_buff *skb, struct pf_fib *f, u32 bits)
{
	if (f->ask.family == 10)
		f->ask.ipv6_dst[3] ^= bpf_htonl(bits);
	else
		f->ask.ipv4_dst ^= bpf_htonl(bits);
	if (pf_fib_look(skb, 0) < PF_FIB_ELSEWHERE)
		return PF_FIB_APART;
	/* a next hop would replace the address */
	if (f->look.family == f->ask.family && f->look.ipv6_dst[0] == f->ask.ipv6_dst[0] &&
	    f->look.ipv6_dst[3] == f->ask.ipv6_dst[3])
		return PF_FIB_LINKED;
	return PF_FIB_ROUTED;
}

/*
 * Looks up an address in the kernel, which does not distinguish an address of the host from one
 * without a route: it forwards neither. An address in the net of a link is near another address on
 * that link, and one in another net with a route is near two that have one.
 */
__noinline u32 pf_fib_find(struct __sk_buff *skb)
{
	u32 answer = pf_fib_look(skb, 0), near;
	struct pf_fib *f = pf_fib();

	if (!on(FEATURE_PF_FIB) || !f || answer != PF_FIB_LOCAL)
		return answer;
	near = pf_fib_beside(skb, f, 2);
	if (near != PF_FIB_LINKED)
		near += pf_fib_beside(skb, f, 3);
	return near < PF_FIB_LINKED ? PF_FIB_NONE : PF_FIB_LOCAL;
}

/* Looks up an address of the packet, at a host port. Returns an enum pf_fib_answer. */
__noinline u32 pf_fib_ask(struct __sk_buff *skb, u32 slot, bool source)
{
	struct pf_packet *p = pf_packet();
	struct pf_fib *f = pf_fib();
	const u32 *to, *from;

	if (!on(FEATURE_PF_FIB) || !p || !f)
		return PF_FIB_NONE;
	to = source ? f->src : f->dst;
	from = source ? f->dst : f->src;
	f->direct = port_at(slot)->domain ? PF_FIB_DIRECT : 0;
	f->ask = (struct bpf_fib_lookup){.ifindex = port_at(slot)->host_ifindex, .tot_len = 1};
	if (p->family == 6) {
		f->ask.family = 10; /* AF_INET6 */
		__builtin_memcpy(f->ask.ipv6_dst, to, 16);
		/* the kernel's look-up does not cover packets from or to a link-local address */
		if (!pf_fib_odd6(from) && !pf_fib_of_link(from))
			__builtin_memcpy(f->ask.ipv6_src, from, 16);
	} else {
		f->ask.family = 2; /* AF_INET */
		f->ask.tos = p->tos;
		f->ask.ipv4_dst = to[3];
		f->ask.ipv4_src = from[3];
	}
	return pf_fib_find(skb);
}

/* Tries one more hash. Ends when a next hop is behind the host port's interface. */
static long pf_fib_hop(u32 i, struct __sk_buff **skb)
{
	struct pf_fib *f = pf_fib();

	if (!f)
		return 1;
	i ^= i + 1;
	if (f->ask.family == 10)
		f->ask.ipv6_src[3] ^= bpf_htonl(i);
	else
		f->ask.ipv4_src ^= bpf_htonl(i);
	f->ask.sport++;
	if (pf_fib_look(*skb, 0) != PF_FIB_HERE || f->look.rt_metric != f->metric)
		return 0;
	f->here = true;
	return 1;
}

/*
 * Does one of several next hops lead back through the host port's interface, if the one that the
 * kernel has chosen does not? The kernel chooses by the hash of addresses and ports.
 */
__noinline u32 pf_fib_returns(struct __sk_buff *skb)
{
	struct __sk_buff *packet = skb; /* skb itself would be kept on the stack */
	struct pf_fib *f = pf_fib();

	if (!on(FEATURE_PF_FIB) || !f)
		return false;
	f->metric = f->look.rt_metric;
	f->here = false;
	/* is there any such route at all? */
	if (pf_fib_look(skb, PF_FIB_OUTPUT) != PF_FIB_HERE || f->look.rt_metric != f->metric)
		return false;
	bpf_loop(PF_FIB_HOPS, pf_fib_hop, &packet, 0);
	return f->here;
}

/*
 * The flags of PF_SRC_ROUTE_FLAGS that hold at a host port, through which the packet arrives or
 * leaves.
 */
__noinline u32 pf_fib_source(struct __sk_buff *skb, u32 slot, bool out)
{
	struct pf_packet *p = pf_packet();
	struct pf_fib *f = pf_fib();
	u32 answer;
	bool six;

	if (!on(FEATURE_PF_FIB) || !p || !f)
		return PF_SRC_ROUTE_FLAGS;
	six = p->family == 6;
	if (six && pf_fib_of_link(f->src))
		return 0;
	if (six ? pf_fib_odd6(f->src) : pf_fib_odd4(f->src[3]))
		return pf_fib_from_nobody(f->src, f->dst, six) ? PF_SRC_NO_ROUTE
							       : PF_SRC_ROUTE_FLAGS;
	answer = pf_fib_ask(skb, slot, true);
	switch (answer) {
	case PF_FIB_HERE:
		return 0;
	case PF_FIB_LOCAL:
		return out ? 0 : PF_SRC_URPF_FAILED;
	case PF_FIB_ELSEWHERE:
		return pf_fib_returns(skb) ? 0 : PF_SRC_URPF_FAILED;
	default:
		return PF_SRC_ROUTE_FLAGS;
	}
}

/* The same for PF_DST_NO_ROUTE. */
__noinline u32 pf_fib_destination(struct __sk_buff *skb, u32 slot)
{
	struct pf_packet *p = pf_packet();
	struct pf_fib *f = pf_fib();
	bool six;

	if (!on(FEATURE_PF_FIB) || !p || !f)
		return PF_DST_NO_ROUTE;
	six = p->family == 6;
	if (pf_fib_to_many(f->dst, six) || (six && pf_fib_of_link(f->dst)))
		return 0;
	if (six ? pf_fib_odd6(f->dst) : pf_fib_odd4(f->dst[3]))
		return PF_DST_NO_ROUTE;
	return pf_fib_ask(skb, slot, false) == PF_FIB_NONE ? PF_DST_NO_ROUTE : 0;
}

/* Records the result of the host's routes for the packet at a host port. */
__noinline int pf_fib_note(struct __sk_buff *skb, u32 slot, bool out)
{
	const volatile struct port *at = port_at(slot);
	struct pf_fib *f = pf_fib();
	u32 flags;

	if (!on(FEATURE_PF_FIB) || !f)
		return 0;
	/* another host's routes are out of reach: its domain has the number of the slot */
	if (!at->host_ifindex || (at->domain && at->domain < MAX_PORTS))
		return 0;
	flags = pf_fib_source(skb, slot, out);
	flags |= pf_fib_destination(skb, slot);
	f->cell[slot & (PF_FIB_CELLS - 1)] = PF_FIB_SLOT(slot) | flags;
	return 0;
}

/*
 * Records whether the packet's source is bound to another station or port. A switch routes nothing.
 * So this is the meaning of urpf-failed at station ports, and no-route never holds there.
 */
__noinline int pf_fib_bound(void)
{
	struct judged *j = judged_here(0);
	struct binding_key key = {};
	struct pf_packet *p = pf_packet();
	struct pf_fib *f = pf_fib();
	struct binding *b;

	if (!on(FEATURE_PF_FIB) || !j || !p || !f)
		return 0;
	f->bound = 0;
	key.vlan = j->v.vlan;
	key.type = p->family == 6 ? ETH_P_IPV6 : ETH_P_IP;
	if (p->family == 6)
		__builtin_memcpy(key.address, f->src, 16);
	else
		key.address[3] = f->src[3];
	b = bpf_map_lookup_elem(&bindings, &key);
	if (b && (b->mac != j->f.src || b->port != port_at(j->v.in)->id))
		f->bound = PF_SRC_URPF_FAILED;
	return 0;
}

/* Looks at a port of a flood. */
static long pf_fib_flood(u32 slot, struct __sk_buff **skb)
{
	struct judged *j = judged_here(0);

	if (!j)
		return 1;
	if (pf_to_host(slot) && slot != j->v.in &&
	    !(on(FEATURE_VLANS) && !vlan_reaches(j->v.vid, slot)))
		pf_fib_note(*skb, slot, false);
	return 0;
}

/* Finds the frame's port of arrival, its VLAN, and its packet. Returns false if it has none. */
__noinline u32 fib_packet(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct judged *j = judged_here(0);
	struct pf_fib *f = pf_fib();
	const struct pf_key *key;
	struct pf_packet *p;
	u32 side;

	if (!on(FEATURE_PF_FIB) || !j || !f)
		return false;
	if (!j->v.in)
		j->v.in = port_slot(j->f.ifindex);
	if (!j->v.in)
		return false;
	if (j->v.pf == PF_LOOK_NONE) {
		j->v.vlan = j->f.label & VID_MASK;
		if (on(FEATURE_VLANS) && vlan_in(&j->f, &j->v, port_at(j->v.in)))
			return false;
		pf_find(&h, &j->v, on(FEATURE_PF_HOST) ? pf_way(j->f.dst, j->v.vlan) : 0,
			clock_now());
	}
	p = pf_packet();
	if (!p || (j->v.pf != PF_LOOK_JUDGE && j->v.pf != PF_LOOK_STATE))
		return false;
	key = &p->key;
	side = p->side & 1;
	if (p->flags & PF_P_ND) {
		key = &p->quoted;
		side = p->quoted_side & 1;
	}
	__builtin_memcpy(f->src, key->address[side], 16);
	__builtin_memcpy(f->dst, key->address[!side], 16);
	return true;
}

/* Finds all answers that rules may need. */
static __always_inline void fib_answers(struct __sk_buff *skb)
{
	struct __sk_buff *packet = skb;
	struct judged *j = judged_here(0);
	struct pf_fib *f = pf_fib();
	u32 out;

	if (!j || !f || !fib_packet(skb))
		return;
	__builtin_memset(f->cell, 0, sizeof(f->cell));
	pf_fib_bound();
	f->known = true;
	if (!on(FEATURE_PF_HOST))
		return;
	if (pf_to_host(j->v.in))
		pf_fib_note(skb, j->v.in, true);
	out = mac_is_group(j->f.dst) ? 0 : pf_way(j->f.dst, j->v.vlan);
	asm("" : "+r"(out)); /* else clang knows its range, and the verifier does not */
	if (out && pf_to_host(out))
		pf_fib_note(skb, out, false);
	else if (!out)
		bpf_loop(MAX_PORTS, pf_fib_flood, &packet, 0);
}

/*
 * Calls the program that finds the answers. Returns only if that is impossible: for example, if the
 * frame has passed as many cables as the kernel makes tail calls. Then nothing is known of its
 * packet.
 */
static __always_inline void fib_go(struct __sk_buff *skb, bool cable, u32 epoch)
{
	struct pf_fib *f = pf_fib();

	if (!f)
		return;
	f->known = false;
	f->epoch = epoch;
	f->back = false;
	if (on(FEATURE_PATCH) && cable)
		bpf_tail_call(skb, &pf_panel, PF_PANEL_FIB_PATCH);
	else
		bpf_tail_call(skb, &pf_panel, PF_PANEL_FIB);
}

/* Does a decision continue here, with the answers? It has begun in `epoch`. */
static __always_inline bool fib_is_back(u32 *epoch)
{
	struct pf_fib *f = on(FEATURE_PF_FIB) ? pf_fib() : 0;

	if (!f || !f->back)
		return false;
	f->back = false;
	*epoch = f->epoch;
	return true;
}

/* Finds the answers, and continues the decision. */
static __always_inline int fib_skb(struct __sk_buff *skb, u32 program)
{
	struct judged *j;
	struct pf_fib *f;

	fib_answers(skb);
	f = pf_fib();
	if (!f)
		return TC_ACT_SHOT;
	f->back = true;
	bpf_tail_call(skb, &pf_panel, program);
	f->back = false;
	j = judged_here(0);
	return j ? drop_early(skb, &j->f, &j->v, DROP_PATCH_LOOP) : TC_ACT_SHOT;
}
#endif
