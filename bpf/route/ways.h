/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The ways of routed packets that a CPU remembers: the host's answer for a packet is valid for
 * others like it, for a tick of the kernel's clock, or until the host's routes change.
 */
#pragma once

#include "host.h"

static __always_inline u64 route_hash(u64 gateway, const u64 *address, u64 ports, u32 flow)
{
	u64 h = gateway + address[0] * 3 + address[1] * 5 + address[2] * 7 + address[3] * 11 +
		ports * 13 + flow;

	return h * 0x9e3779b97f4a7c15ull;
}

/* The number of the place for the way of packets like this one. */
static __always_inline u64 route_place(u64 gateway, const u64 *address, u64 ports, u32 flow)
{
	return route_hash(gateway, address, ports, flow) >> 40 & cfg.ways;
}

static __always_inline struct route_way *route_way(u64 place)
{
	return memory_record(MEMORY_ROUTES, place, ROUTE_PART, sizeof(struct route_way));
}

#define ROUTE_NO_PORTS 0xffff /* of struct route_way's ports: only family and protocol */

/*
 * The part of a packet's ports that its way depends on, as a mask of struct route_way's. Packets of
 * all ports go one way unless the host, whose namespace is `net`, chooses among next hops by ports
 * (fib_multipath_hash_policy), or unless its rules have been changed, which may match ports. Then
 * one look-up serves all connections of two addresses, while it is valid. XDP uses that where it
 * judges first packets.
 */
static __always_inline u64 route_of_ports(const u8 *net, bool six)
{
	if (!on(FEATURE_PF_FIRST) || six || (cfg.route.hash && net[cfg.route.hash]) ||
	    (cfg.route.rules && net[cfg.route.rules]))
		return ~0ull;
	return ROUTE_NO_PORTS;
}

/*
 * Does this CPU remember the way of the packet that has been read, to an address at the port in a
 * slot? If so, route_to() has the kernel's former answer. If not, the way's key is recorded for
 * route_keep(). This is a separate function, like route_keep() and the functions that read: the
 * verifier then has one way less to follow.
 */
OFTEN __noinline bool route_recall(u32 slot, u64 dst, bool gso)
{
	struct route_memory *memory = route_memory_get();
	struct bpf_fib_lookup *to;
	struct route_way *way, *ask;
	const u64 *address;
	u64 gateway, ports, other;
	u32 flow, tick, changes, at;
	void *net;

	if (!memory)
		return false;
	memory->way = ROUTE_NO_WAY;
	memory->late = false;
	to = route_to(memory);
	at = to->family == 2 ? cfg.route.changes : cfg.route.changes6;
	/* a trial remembers nothing */
	if (on(FEATURE_TRACE) || !memory->net || !at)
		return false;
	net = route_net(memory);
	changes = *(u32 *)(net + at);
	ports = route_of_ports(net, to->family == 10);
	tick = bpf_jiffies64();
	gateway = GATEWAY_MAC(port_at(slot)->endpoint, dst);
	address = (const u64 *)to->ipv6_src;
	ports &= *(u64 *)to;
	flow = to->family == 2 ? to->tos : to->flowinfo;
	memory->way = route_place(gateway, address, ports, flow);
	way = route_way(memory->way);
	if (!way)
		return false;
	/* one comparison is less for the verifier than nine */
	other = (way->changes ^ changes) | (way->flow ^ flow);
	other |= (way->gateway ^ gateway) | (way->ports ^ ports);
	other |= (way->address[0] ^ address[0]) | (way->address[1] ^ address[1]);
	other |= (way->address[2] ^ address[2]) | (way->address[3] ^ address[3]);
	other |= gso;
	if (other || way->tick != tick || memory->len > way->mtu + ETHER_HEADER) {
		memory->late = !other && memory->len <= way->mtu + ETHER_HEADER;
		ask = &memory->ask;
		ask->gateway = gateway;
		__builtin_memcpy(ask->address, address, sizeof(ask->address));
		ask->ports = ports;
		ask->flow = flow;
		ask->tick = tick;
		ask->changes = changes;
		return false;
	}
	if (way->family) {
		memory->endpoint = 0;
		to->family = way->family;
		to->ifindex = way->ifindex;
		__builtin_memcpy(to->ipv6_dst, way->hop, sizeof(way->hop));
	} else {
		memory->endpoint = way->endpoint;
		memory->ifindex = way->ifindex;
		__builtin_memcpy(to->smac, way->smac, sizeof(way->smac));
		__builtin_memcpy(to->dmac, way->dmac, sizeof(way->dmac));
	}
	return true;
}

/* The results in this tick for an address that packets are for. */
static __always_inline struct route_taker *route_taker(struct route_memory *memory, u64 gateway,
						       bool six)
{
	u64 place = gateway * 0x9e3779b97f4a7c15ull >> 60 & (ROUTE_ENDS - 1);

	return &memory->takers[place ^ six];
}

static __always_inline struct route_leaver *route_leaver(struct route_memory *memory, u32 interface)
{
	return &memory->leavers[interface & (ROUTE_ENDS - 1)];
}

/* Records that both ends of a way, which has just been found, have been checked. */
static __always_inline void route_ends(struct route_memory *memory, const struct route_way *way)
{
	bool six = (way->ports & 0xff) == 10;
	struct route_taker *in = route_taker(memory, way->gateway, six);
	struct route_leaver *out = route_leaver(memory, route_to(memory)->ifindex);

	in->gateway = way->gateway;
	in->tick = way->tick;
	in->interface = memory->interface;
	in->six = six;
	out->interface = route_to(memory)->ifindex;
	out->tick = way->tick;
	out->endpoint = memory->endpoint;
}

/* Remembers the kernel's answer for packets like the one of the last route_recall(). */
OFTEN __noinline int route_keep(void)
{
	struct route_memory *memory = route_memory_get();
	const struct bpf_fib_lookup *to;
	struct route_way *way;

	if (!memory || memory->way > cfg.ways)
		return 0;
	way = route_way(memory->way);
	if (!way)
		return 0;
	to = route_to(memory);
	*way = memory->ask;
	way->epoch = 0;
	way->mtu = to->mtu_result;
	way->again = memory->again;
	if (memory->again)
		route_ends(memory, way);
	if (memory->endpoint) {
		way->family = 0;
		way->endpoint = memory->endpoint;
		way->ifindex = memory->ifindex;
		__builtin_memcpy(way->smac, to->smac, sizeof(way->smac));
		__builtin_memcpy(way->dmac, to->dmac, sizeof(way->dmac));
	} else {
		way->family = to->family;
		way->ifindex = to->ifindex;
		__builtin_memcpy(way->hop, to->ipv6_dst, sizeof(way->hop));
	}
	return 0;
}

/*
 * Looks up the host's routes once more for the way at a place, which was found in an earlier tick,
 * while the kernel has numbered no change. Returns true if they give the same result; the way is
 * then valid in this tick, and route_to() has the answer. This takes one look-up, while finding a
 * way takes two and a check of both interfaces: another packet has had that in this tick. The
 * result of the second look-up, the way of an answer, only changes with the kernel's number.
 */
static __always_inline bool route_renew(const struct hook *h, u64 place)
{
	struct route_memory *memory = route_memory_get();
	struct route_way *way = route_way(place);
	struct bpf_fib_lookup *to;
	struct route_leaver *out;
	struct route_taker *in;
	u32 tick = bpf_jiffies64();
	u64 differs;
	bool six;

	if (!memory || !way || !way->again)
		return false;
	six = (way->ports & 0xff) == 10;
	in = route_taker(memory, way->gateway, six);
	if (in->gateway != way->gateway || in->tick != tick || in->six != six)
		return false;
	/* route_to() is unchanged if the way must be found */
	to = route_direct(memory);
	*to = (struct bpf_fib_lookup){};
	__builtin_memcpy(to, &way->ports, sizeof(way->ports));
	to->tot_len = 1; /* the look-up returns the MTU */
	to->ifindex = in->interface;
	to->flowinfo = way->flow; /* the TOS is in its first byte */
	__builtin_memcpy(to->ipv6_src, way->address, sizeof(way->address));
	if (bpf_fib_lookup(h->ctx, to, sizeof(*to), 0) || to->mtu_result < way->mtu)
		return false;
	out = route_leaver(memory, to->ifindex);
	differs = (out->interface ^ to->ifindex) | (out->tick ^ tick);
	if (way->family) {
		differs |= (way->family ^ to->family) | (way->ifindex ^ to->ifindex);
		for (u32 i = 0; i < 4; i++)
			differs |= way->hop[i] ^ to->ipv6_dst[i];
	} else {
		differs |= out->endpoint ^ way->endpoint;
		for (u32 i = 0; i < 6; i++)
			differs |= (way->smac[i] ^ to->smac[i]) | (way->dmac[i] ^ to->dmac[i]);
	}
	/* the host should see a packet to that hop in this second: route_freshens() must decide */
	if (differs || *route_second(memory, to, clock_now()) != clock_now())
		return false;
	way->tick = tick;
	memory->endpoint = way->family ? 0 : way->endpoint;
	memory->ifindex = way->ifindex;
	*route_to(memory) = *to;
	return true;
}

OFTEN __noinline u32 route_renew_skb(struct __sk_buff *skb, u64 place)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};

	return route_renew(&h, place);
}

OFTEN __noinline u32 route_renew_xdp(struct xdp_md *xdp, u64 place)
{
	const struct hook h = {.ctx = xdp, .devices = &xdp_devices};

	return route_renew(&h, place);
}

#define ROUTE_RENEW(h, place)                                                                      \
	((h)->skb ? route_renew_skb((h)->ctx, (place)) : route_renew_xdp((h)->ctx, (place)))

/* Is this the type of an echo request or reply? The other types have another meaning. */
static __always_inline bool icmp_is_echo(u8 type, bool six)
{
	return six ? type == 128 || type == 129 : type == 0 || type == 8;
}

/* The fields of a packet that identify its way. */
struct route_seen {
	u64 gateway; /* these are as in struct route_way */
	u64 address[4];
	u64 ports;
	u32 flow;
	u32 tick;
	u32 changes;
};

/*
 * Records which of the ports and protocols a way is for. Returns false if its packets need more
 * work.
 */
static __always_inline bool route_sees_ports(struct route_seen *seen, u32 proto, u32 upper,
					     bool six)
{
	if (proto == (six ? IPPROTO_ICMPV6 : IPPROTO_ICMP)) {
		if (!icmp_is_echo(upper, six))
			return false;
		upper = 0;
	} else if (proto != IPPROTO_UDP && proto != IPPROTO_TCP) {
		return false;
	}
	/* as in route_recall() for a struct bpf_fib_lookup */
	seen->ports = (six ? 10 : 2) | proto << 8 | (u64)upper << 16;
	return true;
}

/*
 * Reads the packet of a frame of `len` bytes to an address at the port in a slot. Returns false if
 * it needs more than its way: it is neither TCP, UDP nor an echo, it is truncated, or its frame has
 * padding.
 */
static __always_inline bool route_sees(void *data, void *data_end, u32 len, u32 slot, u64 dst,
				       struct route_seen *seen, bool six)
{
	struct route_memory *memory = route_memory_get();
	u32 changes = six ? cfg.route.changes6 : cfg.route.changes;
	const struct ipv6hdr *ip6 = data + ETHER_HEADER;
	const struct iphdr *ip = data + ETHER_HEADER;

	if (!memory || !memory->net || !changes)
		return false;
	if (six) {
		if ((void *)(ip6 + 1) + sizeof(u32) > data_end || ip6->version != 6 ||
		    ip6->hop_limit <= 1 ||
		    len != bpf_ntohs(ip6->payload_len) + sizeof(*ip6) + ETHER_HEADER ||
		    !route_sees_ports(seen, ip6->nexthdr, *(u32 *)(ip6 + 1), true))
			return false;
		__builtin_memcpy(seen->address, &ip6->saddr, sizeof(seen->address));
		seen->flow = *(u32 *)ip6 & bpf_htonl(0x0fffffff);
	} else {
		if ((void *)(ip + 1) + sizeof(u32) > data_end || *(u8 *)ip != 0x45 ||
		    ip->ttl <= 1 || (ip->frag_off & bpf_htons(~IP4_DF)) ||
		    len != bpf_ntohs(ip->tot_len) + ETHER_HEADER || !ip4_sums_up(ip) ||
		    !route_sees_ports(seen, ip->protocol, *(u32 *)(ip + 1), false))
			return false;
		seen->address[0] = ip->saddr;
		seen->address[1] = 0;
		seen->address[2] = ip->daddr;
		seen->address[3] = 0;
		seen->flow = ip->tos;
	}
	seen->gateway = GATEWAY_MAC(port_at(slot)->endpoint, dst);
	seen->changes = *(u32 *)(route_net(memory) + changes);
	seen->tick = bpf_jiffies64();
	return true;
}

static __always_inline struct route_way *route_known_as(const struct hook *h, void *data,
							void *data_end, u32 len, u32 size, u32 slot,
							u64 dst, const struct pf_through *as,
							u64 *place, bool six)
{
	struct route_seen seen;
	struct route_way *way;
	u64 other;

	if (!route_sees(data, data_end, len, slot, dst, &seen, six))
		return 0;
	if (as && as->is) {
		__builtin_memcpy(seen.address, as->address, sizeof(seen.address));
		seen.ports = (seen.ports & ROUTE_NO_PORTS) | (u64)as->ports << 16;
	}
	if (on(FEATURE_PF_FIRST)) {
		struct route_memory *memory = route_memory_get();

		if (memory)
			seen.ports &= route_of_ports(route_net(memory), six);
	}
	*place = route_place(seen.gateway, seen.address, seen.ports, seen.flow);
	way = route_way(*place);
	if (!way)
		return 0;
	other = (way->changes ^ seen.changes) | (way->flow ^ seen.flow) |
		(way->epoch ^ READ_ONCE(clock_get()->epoch)) | way->family;
	other |= (way->gateway ^ seen.gateway) | (way->ports ^ seen.ports);
	other |= (way->address[0] ^ seen.address[0]) | (way->address[2] ^ seen.address[2]);
	/* the family is among the ports, and these are zero in a way of IPv4 */
	if (six)
		other |= (way->address[1] ^ seen.address[1]) | (way->address[3] ^ seen.address[3]);
	if (other || size > way->mtu + ETHER_HEADER || !way->epoch)
		return 0;
	return way->tick == seen.tick || ROUTE_RENEW(h, *place) ? way : 0;
}

/*
 * The way of a packet to an address at the port in a slot, if it is remembered with the bridge's
 * whole decision on the packet, and if the packet needs no more: see route_sees(). `size` is the
 * size of its frame of `len` bytes, or of the largest that it will be cut into. `as` is the packet
 * that the host's stack would see instead. Returns 0 if its way must be found.
 */
static __always_inline struct route_way *route_known(const struct hook *h, void *data,
						     void *data_end, u32 len, u32 size, u32 slot,
						     u64 dst, const struct pf_through *as,
						     u64 *place)
{
	if (*(u16 *)(data + 12) == bpf_htons(ETH_P_IP))
		return route_known_as(h, data, data_end, len, size, slot, dst, as, place, false);
	if (*(u16 *)(data + 12) == bpf_htons(ETH_P_IPV6))
		return route_known_as(h, data, data_end, len, size, slot, dst, as, place, true);
	return 0;
}

/*
 * Remembers the bridge's decision in an epoch on the current packet, at the routed host port that
 * its way leads to: from slot to slot, in untagged frames of up to `fits` bytes.
 */
static __always_inline void route_decided(const struct route_memory *memory, u32 in, u32 out,
					  u32 epoch, u32 fits)
{
	struct route_way *way;

	if (memory->way > cfg.ways)
		return;
	way = route_way(memory->way);
	if (!way)
		return;
	if (way->mtu + ETHER_HEADER > fits)
		way->mtu = fits - ETHER_HEADER;
	way->in = in;
	way->out = out;
	way->epoch = epoch;
}
