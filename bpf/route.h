/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Routed host ports. A frame for the host's end of such a port is a packet that the host would
 * take, and usually route to another of its interfaces. The datapath does this itself where the
 * result equals the host's stack's, by the host's own routes and neighbours. It leaves every other
 * frame to the stack. So the stack is complete, and this is a shortcut: the stack is slower, never
 * different.
 *
 * A packet that the host would send through another routed host port continues at that port, as by
 * a patch cable: the port's bridge takes it as if it came from the host. A packet for any other
 * device of the host goes there by the kernel's neighbours.
 */
#pragma once

#include "route/leave.h"

/*
 * The way of the packet leads to a neighbour that the host does not have. Returns ROUTE_DONE if the
 * packet goes on anyway, blindly: its way leads through a host port of this bridge, whose rules may
 * set a next hop there. That comes before the neighbour, and before rp_filter. The rules are
 * evaluated for a frame without a destination address. If they set no next hop, the host gets the
 * frame unchanged: see route_gives_back(). Otherwise returns why the packet is left to the host at
 * once.
 */
__noinline u32 route_blind(struct __sk_buff *skb, u32 slot)
{
	struct route_memory *memory = route_memory_get();
	struct bpf_fib_lookup *to;
	struct gateway *g;
	u64 key;

	/* a look-up in a VRF is compared with another one if it has found everything */
	if (!on(FEATURE_PF_HOPS) || on(FEATURE_TRACE) || !memory || memory->vrf)
		return ROUTE_NEIGHBOUR;
	to = route_to(memory);
	key = to->ifindex;
	g = bpf_map_lookup_elem(&gateways, &key);
	if (!g || !port_slot(g->ifindex) || to->ifindex == memory->interface)
		return ROUTE_NEIGHBOUR;
	__builtin_memcpy(to->smac, &g->mac, sizeof(to->smac));
	if (route_gateway(slot) || !route_keeps(skb, memory, slot))
		return ROUTE_NEIGHBOUR;
	__builtin_memset(to->dmac, 0, sizeof(to->dmac));
	return ROUTE_DONE;
}

/*
 * Finds out where the host would send a packet to an address at a routed host port. Returns
 * ROUTE_DONE, or the enum route for which it is left to the stack. route_to() has the way.
 */
static __always_inline u32 route_find(const struct hook *h, struct route_memory *memory, u32 slot,
				      u64 dst, u32 unread, const struct route_size *size)
{
	struct bpf_fib_lookup *to = route_to(memory);
	u32 why, mtu = 0;

	memory->again = false;
	if (!unread &&
	    (route_recall(slot, dst, size->gso) || (memory->late && ROUTE_RENEW(h, memory->way))))
		return ROUTE_DONE;
	why = route_interface(h, memory, slot, dst);
	if (why)
		return why;
	if (unread)
		return unread;
	if (!route_domain(memory))
		return ROUTE_TAKEN;
	if (route_guarded(memory))
		return ROUTE_IPSEC;
	if (to->family == 10) {
		if (!route_forwards6(memory))
			return ROUTE_OFF;
		if (route_chooses(memory, cfg.route.hash6) || route_suppresses())
			return ROUTE_CHOICE;
	} else if (route_chooses(memory, cfg.route.hash)) {
		return ROUTE_CHOICE;
	}
	route_turn(memory);
	/* GSO packets are measured by their segments, below; the look-up returns the route's MTU */
	to->tot_len = size->gso ? 1 : memory->len - ETHER_HEADER;
	why = ROUTE_LOOK(h, false);
	if (on(FEATURE_PF_HOPS) && h->skb && why == ROUTE_NEIGHBOUR)
		return route_blind(h->ctx, slot);
	if (why)
		return why;
	/* the look-up may have returned a next hop of another family */
	if (route_back(memory)->family == 2 && !route_returns(h, memory))
		return ROUTE_SOURCE;
	if (to->ifindex == memory->interface)
		return ROUTE_SAME;
	memory->again = !memory->vrf && (route_back(memory)->family != 2 ||
					 route_back(memory)->ifindex == memory->interface);
	/* only the device's MTU can be compared with segments */
	if (size->gso &&
	    (bpf_check_mtu(h->ctx, to->ifindex, &mtu, 0, BPF_MTU_CHK_SEGS) || to->mtu_result < mtu))
		return ROUTE_SIZE;
	/* a trial is about packets like this one, and most of them are not left to the host */
	if (!on(FEATURE_TRACE) && route_freshens(h, memory, to))
		return ROUTE_FRESH;
	why = route_gateway(slot);
	if (!why)
		route_keep();
	return why;
}

/* Records for `bascule trace` where a packet goes that the datapath would route. */
static __always_inline u32 route_tell(const struct bpf_fib_lookup *to)
{
	struct traced *t = watch_memory();

	if (!t)
		return ROUTE_AWAY;
	t->route_to = to->ifindex;
	t->route_dst = 0;
	t->route_src = 0;
	__builtin_memcpy(&t->route_dst, to->dmac, 6);
	__builtin_memcpy(&t->route_src, to->smac, 6);
	return ROUTE_DONE;
}

OFTEN __noinline u32 route_read_skb(struct __sk_buff *skb)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct route_size size = {.len = skb->len, .gso = skb->gso_size};

	return route_read(&h, skb->protocol, &size);
}

/*
 * Routes a frame to an address at a routed host port. Returns where it goes (ROUTE_GATEWAY,
 * ROUTE_DEVICE), or the enum route for which it is left to the stack unchanged.
 */
OFTEN __noinline u32 route_skb(struct __sk_buff *skb, u32 slot, u64 dst)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct route_size size = {.len = skb->len, .gso = skb->gso_size};
	struct route_memory *memory = route_memory_get();
	/* the packet need not be of the next hop's family (RFC 8950) */
	bool six = skb->protocol == bpf_htons(ETH_P_IPV6);
	struct bpf_redir_neigh *hop;
	struct bpf_fib_lookup *to;
	struct trip *t;
	u32 why;

	if (!memory)
		return ROUTE_AWAY;
	to = route_to(memory);
	if (tag_beside(skb))
		return ROUTE_TAG;
	/* a mark selects the way by the host's rules, and the look-up has none */
	if (skb->mark)
		return ROUTE_CHOICE;
	why = route_find(&h, memory, slot, dst, route_read_skb(skb), &size);
	/*
	 * The stack would use the hash of the sender's socket, or of its network card, where it
	 * chooses among next hops by ports. The look-up has none, so the stack should have none for
	 * the few packets of a connection that it gets.
	 */
	if (why == ROUTE_FRESH || why == ROUTE_NEIGHBOUR || why == ROUTE_SIZE)
		bpf_set_hash_invalid(skb);
	if (why)
		return why;
	if (on(FEATURE_TRACE))
		return route_tell(to);
	/* the padding of a frame stays on the link of arrival */
	if (size.len > memory->len && bpf_skb_change_tail(skb, memory->len, 0))
		return ROUTE_HEADER;
	if (six ? !route_ages6(skb, memory) : !route_ages4(skb, memory))
		return ROUTE_HEADER;
	if (!six)
		route_prefers(skb, memory, ((const struct iphdr *)memory->header)->tos);
	if (memory->endpoint) {
		t = trip_get();
		if (t)
			t->ifindex = memory->ifindex;
		return ROUTE_GATEWAY | (memory->endpoint & 0xffff);
	}
	hop = (struct bpf_redir_neigh *)memory->hop;
	*hop = (struct bpf_redir_neigh){.nh_family = to->family};
	__builtin_memcpy(hop->ipv6_nh, to->ipv6_dst, sizeof(hop->ipv6_nh));
	bpf_redirect_neigh(to->ifindex, hop, sizeof(*hop), 0);
	return ROUTE_DEVICE;
}

OFTEN __noinline u32 route_read_xdp(struct xdp_md *xdp)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;
	struct route_size size = {.len = data_end - data};

	return data + ETHER_HEADER > data_end ? ROUTE_HEADER
					      : route_read(&h, *(u16 *)(data + 12), &size);
}

/*
 * Changes the look-up to the packet that the host's stack would see, where rules translate the
 * packet that has been read. Returns route_read_xdp()'s result, or why it is left to the stack.
 */
static __always_inline u32 route_translated(u32 unread)
{
	const struct pf_through *as = pf_through();
	struct route_memory *memory = route_memory_get();
	struct bpf_fib_lookup *to;
	u32 *address;

	if (!as || !memory)
		return ROUTE_AWAY;
	if (unread || !as->is)
		return unread;
	to = route_to(memory);
	__builtin_memcpy(to->ipv6_src, as->address, sizeof(as->address));
	to->sport = as->ports;
	to->dport = as->ports >> 16;
	address = to->ipv6_src;
	if (to->family == 2 ? ip4_is_plain(address[0]) && ip4_is_plain(address[4])
			    : ip6_is_plain(address) && ip6_is_plain(address + 4))
		return ROUTE_DONE;
	return ROUTE_ADDRESS;
}

/*
 * Finds the way of a frame that XDP sends to a routed host port. Returns ROUTE_GATEWAY if it
 * continues through another such port of this bridge; then struct route_memory has the frame's form
 * there. The frame is unchanged. In all other cases tcx finds its way.
 */
OFTEN __noinline u32 route_xdp(struct xdp_md *xdp, u32 slot, u64 dst)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};
	void *data = (void *)(long)xdp->data, *data_end = (void *)(long)xdp->data_end;
	struct route_size size = {.len = data_end - data};
	struct route_memory *memory = route_memory_get();
	u32 unread;

	if (!memory)
		return ROUTE_HEADER;
	unread = route_read_xdp(xdp);
	if (on(FEATURE_PF_NAT))
		unread = route_translated(unread);
	if (route_find(&h, memory, slot, dst, unread, &size) || !memory->endpoint)
		return ROUTE_OTHER;
	memory->dst = 0;
	memory->src = 0;
	__builtin_memcpy(&memory->dst, route_to(memory)->dmac, 6);
	__builtin_memcpy(&memory->src, route_to(memory)->smac, 6);
	return ROUTE_GATEWAY;
}

/*
 * Routes a packet to an address at a routed host port whose way is remembered, with the whole
 * decision on it. Returns the action for its frame, or 0 if its way must still be found. The frame
 * has been counted at both ports of its way to the host, and is unchanged in that case.
 */
OFTEN __noinline int route_quickly_skb(struct __sk_buff *skb, u32 slot, u64 dst)
{
	struct route_memory *memory = route_memory_get();
	u32 len = skb->len;
	struct route_way *way;
	struct port_stats *s;
	u64 place;
	int done;

	way = route_known_skb(skb, slot, dst, &place);
	if (!way || !memory)
		return 0;
	route_macs(memory, way->dmac);
	done = route_leaves(skb, way->out);
	if (!done)
		return 0;
	s = stats_of(slot);
	if (s)
		s->routed++;
	count_rx(way->in, len);
	count_tx(way->out, len);
	return done;
}

/*
 * Remembers this bridge's decision on the packet that is about to continue at another of its routed
 * host ports, if it has made the same decision on one before.
 */
OFTEN __noinline int route_decided_skb(void)
{
	struct route_memory *memory = route_memory_get();
	u32 epoch = READ_ONCE(clock_get()->epoch);
	struct frame f = {};
	struct decision *d;

	if (!memory || !port_slot(memory->ifindex))
		return 0;
	f.ifindex = memory->ifindex;
	__builtin_memcpy(&f.dst, route_to(memory)->dmac, 6);
	__builtin_memcpy(&f.src, route_to(memory)->smac, 6);
	d = decision_cell(&f);
	if (d && decision_holds(d, &f, epoch) && !(on(FEATURE_VLANS) && d->tag) &&
	    !(port_at(d->out)->facts & PORT_PATCH) && !(port_at(d->out)->flags & PORT_ROUTE))
		route_decided(memory, d->in, d->out, epoch, d->fits);
	return 0;
}

/* Counts the result for a frame to a routed host port, from route_skb(). */
OFTEN __noinline int route_count(u32 slot, u32 to)
{
	u64 key = GATEWAY_COUNTS(port_at(slot)->endpoint);
	struct port_stats *s = stats_of(slot);
	struct gateway *g;

	if (to >= ROUTES) {
		if (s)
			s->routed++;
		return 0;
	}
	g = bpf_map_lookup_elem(&gateways, &key);
	if (g)
		g->frames[to]++;
	return 0;
}

/*
 * Begins a trip of the routed packet, which may have been in this bridge before. It keeps the count
 * of hops, because the kernel counts the same tail calls.
 */
static __always_inline struct trip *route_trip(bool cable)
{
	struct trip *t = trip_get();
	u32 ifindex, hops;

	if (!t)
		return 0;
	ifindex = t->ifindex;
	hops = cable ? t->hops : 0;
	t = trip_start();
	if (!t)
		return 0;
	t->number++; /* which no bridge has seen, not even this one */
	t->hops = hops;
	t->ifindex = ifindex;
	return t;
}
