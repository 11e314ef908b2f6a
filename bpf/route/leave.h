/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/* Rewrites the frame of a routed packet for its next link, and sends it. */
#pragma once

#include "ways.h"

#define ROUTE_CHANGED (ETHER_HEADER + 12) /* bytes of a frame, up to the addresses of IPv4 */

/*
 * The addresses of the frame on its next link, with room for its type, right in front of the
 * packet's header. They share this place with the kernel's next hop, which is not needed then.
 */
static __always_inline u8 *route_ether(struct route_memory *memory)
{
	u8 *ether = (u8 *)memory->header - ETHER_HEADER;

	_Static_assert(offsetof(struct route_memory, header) ==
			       offsetof(struct route_memory, hop) + sizeof(memory->hop),
		       "they are neighbours");
	__builtin_memcpy(ether, route_to(memory)->dmac, 6);
	__builtin_memcpy(ether + 6, route_to(memory)->smac, 6);
	return ether;
}

/*
 * Decrements the packet's time to live and corrects its checksum (RFC 1624), in the header that has
 * been read and in the packet. The frame gets its addresses on the next link if it continues
 * through a routed host port: for other ways the kernel writes them. Returns false if there is no
 * memory; the frame is unchanged then.
 */
static __always_inline bool route_ages4(struct __sk_buff *skb, struct route_memory *memory)
{
	const u32 first = offsetof(struct iphdr, ttl), part = 4; /* TTL, protocol, checksum */
	struct iphdr *ip = (struct iphdr *)memory->header;
	u32 sum = ip->check + bpf_htons(0x0100);
	u8 *ether;

	ip->ttl--;
	ip->check = sum + (sum >= 0xffff);
	/* the header's sum is unchanged */
	if (!memory->endpoint)
		return !bpf_skb_store_bytes(skb, ETHER_HEADER + first, &ip->ttl, part, 0);
	ether = route_ether(memory);
	ether[12] = ETH_P_IP >> 8;
	ether[13] = ETH_P_IP & 0xff;
	return !bpf_skb_store_bytes(skb, 0, ether, ROUTE_CHANGED, 0);
}

static __always_inline bool route_ages6(struct __sk_buff *skb, struct route_memory *memory)
{
	struct ipv6hdr *ip = (struct ipv6hdr *)memory->header;

	ip->hop_limit--;
	if (bpf_skb_store_bytes(skb, ETHER_HEADER + offsetof(struct ipv6hdr, hop_limit),
				&ip->hop_limit, 1, BPF_F_RECOMPUTE_CSUM))
		return false;
	if (memory->endpoint)
		bpf_skb_store_bytes(skb, 0, route_ether(memory), 12, 0);
	return true;
}

/*
 * Saves the parts that change of a frame which goes on blindly from the port in a slot. They are
 * stored in place of the way's key. Returns false if the frame has too few bytes.
 */
static __always_inline bool route_keeps(struct __sk_buff *skb, struct route_memory *memory,
					u32 slot)
{
	memory->way = ROUTE_BLIND_WAY;
	memory->ask.ifindex = port_device(&tcx_devices, slot);
	memory->ask.flow = skb->priority;
	return !bpf_skb_load_bytes(skb, 0, memory->ask.address, ROUTE_CHANGED);
}

/*
 * The device through which the host gets the frame back that has come blindly on this trip; 0 if it
 * has not.
 */
OFTEN __noinline u32 trip_blind(void)
{
	struct trip *t = trip_get();

	if (!t || !t->ifindex || t->route.way != ROUTE_BLIND_WAY)
		return 0;
	t->route.way = ROUTE_NO_WAY;
	return t->route.ask.ifindex;
}

/* Gives the host through a device the frame that has come blindly, in its original form. */
__noinline int route_gives_back(struct __sk_buff *skb, u32 ifindex)
{
	struct route_memory *memory = route_memory_get();
	const u32 limit = offsetof(struct ipv6hdr, hop_limit) + ETHER_HEADER;
	const u8 *was;

	if (!on(FEATURE_ROUTE) || !memory)
		return TC_ACT_SHOT;
	was = (const u8 *)memory->ask.address;
	skb->priority = memory->ask.flow;
	if (skb->protocol == bpf_htons(ETH_P_IPV6)) {
		if (bpf_skb_store_bytes(skb, limit, was + limit, 1, BPF_F_RECOMPUTE_CSUM) ||
		    bpf_skb_store_bytes(skb, 0, was, ETHER_HEADER, 0))
			return TC_ACT_SHOT;
	} else if (bpf_skb_store_bytes(skb, 0, was, ROUTE_CHANGED, 0)) {
		return TC_ACT_SHOT;
	}
	return bpf_redirect(ifindex, 0);
}

/*
 * Gives the packet the priority that the stack gives to forwarded packets (ip_tos2prio in the
 * kernel), unless the host's ip_forward_update_priority is off.
 */
static __always_inline void route_prefers(struct __sk_buff *skb, const struct route_memory *memory,
					  u8 tos)
{
	if (*(u8 *)(route_net(memory) + cfg.route.priority))
		skb->priority = 0x4620 >> ((tos & 0x18) >> 1) & 7;
}

/*
 * Writes the addresses of the next link into a frame whose header is there, 32 bits at once:
 * receiver, sender, as in struct route_way.
 */
static __always_inline void route_readdress(void *data, const u8 *macs)
{
	const u32 *from = (const u32 *)macs;
	u32 *to = data;

	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
}

/* Decrements the time to live of the packet of a frame whose first 34 bytes are there. */
static __always_inline void route_ages(void *data)
{
	if (*(u16 *)(data + 12) == bpf_htons(ETH_P_IP)) {
		struct iphdr *ip = data + ETHER_HEADER;
		u32 sum = ip->check + bpf_htons(0x0100);

		ip->ttl--;
		ip->check = sum + (sum >= 0xffff);
	} else {
		((struct ipv6hdr *)(data + ETHER_HEADER))->hop_limit--;
	}
}

/*
 * Rewrites a frame of len bytes with the result of route_xdp(). Returns false if that is
 * impossible.
 */
static __always_inline bool route_rewrite(struct xdp_md *xdp, const struct route_memory *memory,
					  u32 len)
{
	void *data, *data_end;

	if (len > memory->len && bpf_xdp_adjust_tail(xdp, (int)(memory->len - len)))
		return false;
	data = (void *)(long)xdp->data;
	data_end = (void *)(long)xdp->data_end;
	if (data + ETHER_HEADER + sizeof(struct iphdr) > data_end)
		return false;
	route_ages(data);
	__builtin_memcpy(data, &memory->dst, 6);
	__builtin_memcpy(data + 6, &memory->src, 6);
	return true;
}

/*
 * Does tcx route frames in one go? Features that must look at each frame, or into it, prevent this.
 */
#define ROUTES_BY_TCX                                                                              \
	!on(FEATURES_NOTE | (FEATURES_JUDGE & ~FEATURE_PF) | FEATURE_GUARD | FEATURE_BACKUP |      \
	    FEATURE_SPAN | FEATURE_TRACE)

/*
 * The size in bytes of a frame, or of the largest that the kernel makes of it if it is a GSO
 * packet. Returns ~0 for a GSO packet whose segments do not belong to its own TCP header.
 */
static __always_inline u32 route_segment(struct __sk_buff *skb)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	const u64 six = ETHER_HEADER + sizeof(struct ipv6hdr);
	const u64 four = ETHER_HEADER + sizeof(struct iphdr);
	struct tcphdr *tcp = data + four;
	u32 size = skb->gso_size;

	if (!size)
		return skb->len;
	if ((void *)(tcp + 1) > data_end)
		return ~0u;
	if (*(u16 *)(data + 12) == bpf_htons(ETH_P_IP))
		return *(u8 *)(data + 23) == IPPROTO_TCP ? size + four + tcp->doff * 4 : ~0u;
	tcp = data + six;
	if ((void *)(tcp + 1) > data_end || *(u8 *)(data + 20) != IPPROTO_TCP)
		return ~0u;
	return size + six + tcp->doff * 4;
}

/*
 * Records the addresses of a frame on its next link, as in struct route_way. They share the place
 * of a next hop of the kernel's.
 */
static __always_inline void route_macs(struct route_memory *memory, const u8 *macs)
{
	__builtin_memcpy(memory->hop, macs, 12);
}

/*
 * Rewrites a packet for its next link: decrements its time to live, and gives its frame the
 * addresses of route_macs(). The packet has no options. It then leaves through the port in a slot.
 * Returns 0 if there is no memory; the packet is unchanged then.
 */
OFTEN __noinline int route_leaves(struct __sk_buff *skb, u32 out)
{
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	struct route_memory *memory = route_memory_get();
	u8 frame[ETHER_HEADER + 12]; /* up to the addresses of IPv4 */
	struct iphdr *ip = (void *)frame + ETHER_HEADER;
	u8 *limit = frame + ETHER_HEADER + 7;
	u64 peer = 0;
	u32 sum;

	if (!memory || data + sizeof(frame) > data_end)
		return 0;
	__builtin_memcpy(frame, memory->hop, 12);
	__builtin_memcpy(frame + 12, data + 12, sizeof(frame) - 12);
	if (*(u16 *)(data + 12) == bpf_htons(ETH_P_IP)) {
		sum = ip->check + bpf_htons(0x0100);
		ip->ttl--;
		ip->check = sum + (sum >= 0xffff);
		/* the header's sum is unchanged */
		if (bpf_skb_store_bytes(skb, 0, frame, sizeof(frame), 0))
			return 0;
		route_prefers(skb, memory, ip->tos);
	} else {
		--*limit;
		if (bpf_skb_store_bytes(skb, ETHER_HEADER + 7, limit, 1, BPF_F_RECOMPUTE_CSUM))
			return 0;
		bpf_skb_store_bytes(skb, 0, frame, 12, 0);
	}
	if (on(FEATURE_PEER)) {
		__builtin_memcpy(&peer, memory->hop, 6);
		if (peer == port_at(out)->straight)
			return bpf_redirect_peer(port_at(out)->ifindex, 0);
	}
	return bpf_redirect(port_device(&tcx_devices, out), 0);
}

/*
 * The way of a packet to an address at the port in a slot, like route_known(), if the device that
 * it leads to exists.
 */
static __always_inline struct route_way *route_known_skb(struct __sk_buff *skb, u32 slot, u64 dst,
							 u64 *place)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	void *data = (void *)(long)skb->data, *data_end = (void *)(long)skb->data_end;
	struct route_way *way;

	if (tag_beside(skb) || skb->mark || data + ETHER_HEADER + sizeof(struct iphdr) > data_end)
		return 0;
	way = route_known(&h, data, data_end, skb->len, route_segment(skb), slot, dst, 0, place);
	return way && port_has_device(&tcx_devices, way->out) ? way : 0;
}
