/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * Routed host ports. A frame for the host's end of such a port is a packet that the host
 * would take, and most often route to another of its interfaces. The datapath does this
 * itself where the result is what the host's stack would make of the packet, by the host's
 * own routes and neighbours. It leaves every other frame to the stack. So the stack is
 * complete, and this is a shortcut: what is left to the stack is slower, never different.
 *
 * A packet that the host would send by another routed host port goes on at that port, as by
 * a patch cable: the port's bridge takes it as if it came from the host. A packet for any
 * other device of the host goes there by the kernel's neighbours.
 */
#pragma once

#include "decision.h"
#include "patch.h"
#include "pf/through.h"
#include "trace.h"

/* Puts the type into BTF, for Go: BTF has only types that something uses. */
const enum route *route_type __attribute__((unused));

/* Flags of bpf_fib_lookup() that older headers lack. */
#define FIB_SKIP_NEIGH (1u << 2)
#define FIB_DIRECT (1u << 0)

/* What route_xdp() finds, and when the host has last seen next hops: see struct trip. */
static __always_inline struct route_memory *route_memory_get(void)
{
	struct trip *t = trip_get();

	return t ? &t->route : 0;
}

_Static_assert(sizeof(struct bpf_fib_lookup) == 8 * sizeof(u64), "look-ups have no room");
_Static_assert(sizeof(struct bpf_redir_neigh) <= 3 * sizeof(u64), "a next hop has no room");

/* The look-up of a packet's way, that of the way of an answer, and one in a VRF's table. */
static __always_inline struct bpf_fib_lookup *route_to(struct route_memory *memory)
{
	return (struct bpf_fib_lookup *)memory->look[0];
}

static __always_inline struct bpf_fib_lookup *route_back(struct route_memory *memory)
{
	return (struct bpf_fib_lookup *)memory->look[1];
}

static __always_inline struct bpf_fib_lookup *route_direct(struct route_memory *memory)
{
	return (struct bpf_fib_lookup *)memory->look[2];
}

/* Where a routed packet goes: in the place of an enum route, for route_skb()'s caller. */
#define ROUTE_GATEWAY (1u << 16) /* to a routed host port: its endpoint is below */
#define ROUTE_DEVICE (1u << 17) /* by the kernel, which has been told already */

/* The ways that a CPU remembers are in parts of its memory, as many as the loader has made. */
#define ROUTE_NO_WAY (~0ull)

struct route_ways {
	struct route_way at[ROUTE_PART];
};

MEMORY_HOLDS(struct route_ways);

/* Is it an address of a station that packets are routed from and to (RFC 1122 3.2.1.3)? */
static __always_inline bool ip4_is_plain(u32 address)
{
	u8 first = address & 0xff; /* the first byte of the packet's four */

	return first && first != 127 && first < 224;
}

/*
 * Is it an address of that kind? The kernel's look-up itself leaves those of a link's scope
 * alone. An address that maps or translates one of IPv4 is the host's business.
 */
static __always_inline bool ip6_is_plain(const u32 *address)
{
	if ((address[0] & 0xff) == 0xff) /* groups */
		return false;
	return address[0] || address[1] || (address[2] && address[2] != bpf_htonl(0xffff));
}

/* Is the header's checksum right? The header has no options. */
static __always_inline bool ip4_sums_up(const struct iphdr *ip)
{
	const u32 *word = (const u32 *)ip;
	u64 sum = (u64)word[0] + word[1] + word[2] + word[3] + word[4];

	sum = (sum & 0xffffffff) + (sum >> 32);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	sum = (sum & 0xffff) + (sum >> 16);
	return sum == 0xffff;
}

/* Reads bytes of the frame: nearly always they lie where a program may read them at once. */
static __always_inline long route_bytes(const struct hook *h, u32 at, void *to, u32 len)
{
	struct __sk_buff *skb = h->ctx;
	struct xdp_md *xdp = h->ctx;
	void *data = (void *)(long)(h->skb ? skb->data : xdp->data);
	void *end = (void *)(long)(h->skb ? skb->data_end : xdp->data_end);

	if (data + at + len > end)
		return frame_bytes(h, at, to, len);
	__builtin_memcpy(to, data + at, len);
	return 0;
}

/*
 * What the look-up has to know of a packet beside its addresses. Where routes have several
 * next hops, it chooses as the stack does, which looks at ports in whole packets alone, and
 * not at what is behind a packet in its frame. For the stack all these protocols have ports
 * (proto_ports_offset() in the kernel).
 */
static __always_inline void route_ports(const struct hook *h, u32 at, struct bpf_fib_lookup *to)
{
	u16 ports[2];

	switch (to->l4_protocol) {
	case IPPROTO_AH:
		at += 4;
		break;
	case IPPROTO_TCP:
	case IPPROTO_UDP:
	case IPPROTO_DCCP:
	case IPPROTO_ESP:
	case IPPROTO_SCTP:
	case IPPROTO_UDPLITE:
		break;
	default:
		return;
	}
	if (at + sizeof(ports) > ETHER_HEADER + to->tot_len ||
	    route_bytes(h, at, ports, sizeof(ports)))
		return;
	to->sport = ports[0];
	to->dport = ports[1];
}

/* Does the ICMP message tell of another packet, or is it for neighbours? */
static __always_inline bool icmp_is_news(const struct hook *h, u32 at, bool six)
{
	u8 type;

	if (route_bytes(h, at, &type, sizeof(type)))
		return true;
	if (six)
		return type < 128 || type > 129;
	return type != 0 && type != 8;
}

/* The size of a frame in bytes, and of its segments' payload if the frame is a GSO packet. */
struct route_size {
	u32 len;
	u32 gso;
};

/* Reads the packet, and fills in the look-up: ROUTE_DONE, or why it is left to the stack. */
static __always_inline u32 route_read4(const struct hook *h, const struct route_size *size,
				       struct bpf_fib_lookup *to, struct iphdr *ip)
{
	u32 len;

	if (route_bytes(h, ETHER_HEADER, ip, sizeof(*ip)))
		return ROUTE_HEADER;
	len = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || ip->ihl != 5 || len < sizeof(*ip) || !ip4_sums_up(ip))
		return ROUTE_HEADER;
	/* a packet that GSO has made large may be larger than its header can tell */
	if (size->gso ? size->len != len + ETHER_HEADER : size->len < len + ETHER_HEADER)
		return ROUTE_HEADER;
	if (!ip4_is_plain(ip->saddr) || !ip4_is_plain(ip->daddr))
		return ROUTE_ADDRESS;
	if (ip->ttl <= 1)
		return ROUTE_TTL;
	to->family = 2; /* AF_INET */
	to->tos = ip->tos;
	to->l4_protocol = ip->protocol;
	to->tot_len = len;
	to->ipv4_src = ip->saddr;
	to->ipv4_dst = ip->daddr;
	if (ip->protocol == IPPROTO_ICMP && !(ip->frag_off & bpf_htons(0x1fff)) &&
	    icmp_is_news(h, ETHER_HEADER + sizeof(*ip), false))
		return ROUTE_PROTOCOL;
	if (!(ip->frag_off & bpf_htons(0x3fff)))
		route_ports(h, ETHER_HEADER + sizeof(*ip), to);
	return ROUTE_DONE;
}

static __always_inline u32 route_read6(const struct hook *h, const struct route_size *size,
				       struct bpf_fib_lookup *to, struct ipv6hdr *ip)
{
	u32 len;

	if (route_bytes(h, ETHER_HEADER, ip, sizeof(*ip)))
		return ROUTE_HEADER;
	len = bpf_ntohs(ip->payload_len) + sizeof(*ip);
	/*
	 * Hop-by-hop options are every router's business (RFC 8200 4.3). The others are headers
	 * that the stack looks behind where it chooses among next hops, or rules ask for ports.
	 */
	if (ip->version != 6 || ip->nexthdr == IPPROTO_HOPOPTS || ip->nexthdr == IPPROTO_ROUTING ||
	    ip->nexthdr == IPPROTO_DSTOPTS || ip->nexthdr == IPPROTO_FRAGMENT)
		return ROUTE_HEADER;
	if (size->gso ? size->len != len + ETHER_HEADER : size->len < len + ETHER_HEADER)
		return ROUTE_HEADER;
	if (!ip6_is_plain(ip->saddr.in6_u.u6_addr32) || !ip6_is_plain(ip->daddr.in6_u.u6_addr32))
		return ROUTE_ADDRESS;
	if (ip->hop_limit <= 1)
		return ROUTE_TTL;
	to->family = 10; /* AF_INET6 */
	to->flowinfo = *(u32 *)ip & bpf_htonl(0x0fffffff);
	to->l4_protocol = ip->nexthdr;
	to->tot_len = len;
	__builtin_memcpy(to->ipv6_src, &ip->saddr, sizeof(ip->saddr));
	__builtin_memcpy(to->ipv6_dst, &ip->daddr, sizeof(ip->daddr));
	if (ip->nexthdr == IPPROTO_ICMPV6 && icmp_is_news(h, ETHER_HEADER + sizeof(*ip), true))
		return ROUTE_PROTOCOL;
	route_ports(h, ETHER_HEADER + sizeof(*ip), to);
	return ROUTE_DONE;
}

/*
 * Reads the packet of a frame of an EtherType, and notes its size: ROUTE_DONE, or why it is
 * left to the stack.
 */
static __always_inline u32 route_read(const struct hook *h, u16 type, const struct route_size *size)
{
	struct route_memory *memory = route_memory_get();
	struct bpf_fib_lookup *to;
	u32 why;

	if (!memory)
		return ROUTE_AWAY;
	to = route_to(memory);
	*to = (struct bpf_fib_lookup){}; /* its padding, too, has to be zero */
	if (type == bpf_htons(ETH_P_IP))
		why = route_read4(h, size, to, (void *)memory->header);
	else if (type == bpf_htons(ETH_P_IPV6))
		why = route_read6(h, size, to, (void *)memory->header);
	else
		why = ROUTE_PROTOCOL;
	memory->len = to->tot_len + ETHER_HEADER;
	to->tot_len = 0;
	return why;
}

/* The enum route for what the kernel's look-up says. */
static __always_inline u32 route_answer(long answer)
{
	switch (answer) {
	case BPF_FIB_LKUP_RET_SUCCESS:
		return ROUTE_DONE;
	case BPF_FIB_LKUP_RET_BLACKHOLE:
	case BPF_FIB_LKUP_RET_UNREACHABLE:
	case BPF_FIB_LKUP_RET_PROHIBIT:
		return ROUTE_REFUSED;
	case BPF_FIB_LKUP_RET_NOT_FWDED:
		return ROUTE_LOCAL;
	case BPF_FIB_LKUP_RET_FWD_DISABLED:
		return ROUTE_OFF;
	case BPF_FIB_LKUP_RET_UNSUPP_LWT:
		return ROUTE_TUNNEL;
	case BPF_FIB_LKUP_RET_NO_NEIGH:
		return ROUTE_NEIGHBOUR;
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return ROUTE_SIZE;
	default:
		return ROUTE_AWAY;
	}
}

/*
 * The structure of a type of the kernel's (a number of BTF) at an address. The kernel's function
 * for this, bpf_rdonly_cast(), costs nothing, and a load takes few instructions where
 * bpf_probe_read_kernel() takes ninety. The loader puts a call in the constant's place.
 */
static __always_inline void *route_cast(u64 address, u32 type)
{
	void *at;

	asm volatile("r1 = %1\n\tr2 = %2\n\tr0 = %3 ll\n\t%0 = r0"
		     : "=r"(at)
		     : "r"(address), "r"((u64)type), "i"(KERNEL_READ_CALL)
		     : "r0", "r1", "r2", "r3", "r4", "r5");
	return at;
}

/*
 * Loads a member of such a structure. The verifier looks up the member's type: what a pointer
 * leads to is such a structure, too. A load of what is not there gives zero. The kernel frees
 * neither devices nor what they lead to while a program runs. Each load has the size that it is
 * written with, because the verifier takes no part of a pointer or of a field of bits.
 */
#define route_load(type, of, at) (*(type const volatile *)((void *)(of) + (at)))

/* The namespace of the host, whose address in the kernel is known. */
static __always_inline void *route_net(const struct route_memory *memory)
{
	return route_cast(memory->net, cfg.route.namespace);
}

/* The host's interface, whose address in the kernel is known. */
static __always_inline void *route_device(const struct route_memory *memory)
{
	return route_cast(memory->device, cfg.route.device);
}

/* The device that a value of a device map leads to. */
static __always_inline void *route_device_of(void *value)
{
	u64 cell = (u64)value + cfg.device_at - cfg.route.cell_device;

	return route_load(void *, route_cast(cell, cfg.route.cell), cfg.route.cell_device);
}

/* As device_has_carrier(), which does without casts. */
static __always_inline bool route_has_carrier(void *value)
{
	return device_runs(route_load(u64, route_device_of(value), cfg.device_state));
}

/*
 * Does the host's interface do something with frames other than to take its own? An
 * interface that is down takes none. Another device takes them if the interface belongs to
 * a bridge, a bond or the like. That other device may be a macvlan, which takes frames to
 * its own address alone. The loader does not name interfaces with macvlans that take more.
 */
static __always_inline bool route_taken(const struct route_memory *memory, const struct gateway *in)
{
	void *device = route_device(memory);

	return !(route_load(u32, device, cfg.route.flags) & 1) ||
	       (!in->macvlans && route_load(u64, device, cfg.route.handler));
}

/* Notes the VRF that the host's interface is in. False if nobody can tell. */
static __always_inline bool route_domain(struct route_memory *memory)
{
	void *device = route_device(memory), *next, *entry;

	memory->vrf = 0;
	if (!(route_load(u32, device, cfg.route.private) & cfg.route.slave))
		return true;
	next = route_load(void *, device, cfg.route.above);
	if (next == device + cfg.route.above)
		return false;
	/* the list leads to a place within the entry, and its type does not tell of what */
	entry = route_cast((u64)next - cfg.route.entry, cfg.route.adjacent);
	if (!route_load(u8, entry, cfg.route.master))
		return false;
	device = route_load(void *, entry, cfg.route.upper);
	memory->vrf = route_load(u32, device, cfg.route.index);
	return memory->vrf;
}

/* Is this the MAC of the host's interface? It may be another by now than the loader knew. */
static __always_inline bool route_address(const struct route_memory *memory, u64 mac)
{
	u64 at = route_load(u64, route_device(memory), cfg.route.address);
	/* for the verifier it leads to bytes, or is a number */
	void *own = route_cast(at - cfg.route.mac, cfg.route.hardware);

	return (route_load(u64, own, cfg.route.mac) & MAC_MASK) == mac;
}

/*
 * Does the host forward IPv6 that its interface takes? The look-up asks the interface alone
 * whether it forwards. The stack asks whether all do, and whether the interface has IPv6.
 */
static __always_inline bool route_forwards6(const struct route_memory *memory)
{
	void *own, *all;

	if (!cfg.route.forward6)
		return false;
	own = route_load(void *, route_device(memory), cfg.route.ip6);
	if (!own || route_load(u32, own, cfg.route.disable6))
		return false;
	all = route_load(void *, route_net(memory), cfg.route.all6);
	return route_load(u32, all, cfg.route.forward6);
}

/*
 * Does the host choose among next hops by more than the look-up is told? It does by the
 * policies (fib_multipath_hash_policy) that look into tunnels or have a hash of their own. The
 * policy of the packet's family is at this place in the namespace.
 */
static __always_inline bool route_chooses(const struct route_memory *memory, u32 at)
{
	return at && route_load(u8, route_net(memory), at) > 1;
}

/*
 * Does the host strictly check where packets come from that its interface takes (rp_filter)? The
 * interface's setting or that of all interfaces asks for it: the larger counts. A loose check is a
 * strict one at an interface without an address. Strict where nobody can tell.
 */
static __always_inline bool route_is_strict(const struct route_memory *memory)
{
	const u32 at = (8 - 1) * sizeof(u32); /* IPV4_DEVCONF_RP_FILTER, of linux/ip.h */
	void *part = route_load(void *, route_device(memory), cfg.route.ip);
	void *all;
	u32 mode;

	if (!part)
		return true;
	all = route_load(void *, route_net(memory), cfg.route.all);
	/* of 0, 1 and 2: it is 1 where the larger is 1 */
	mode = route_load(u32, part, cfg.route.conf + at) |
	       route_load(u32, all, cfg.route.data + at);
	return mode == 1 || (mode && !route_load(u64, part, cfg.route.owned));
}

/*
 * Asks the host's rules for the way of the packet that has been read, or that of an answer to
 * it. In a VRF the VRF's own table has to say the same: rules that come before that table are
 * asked, too, first of all that of the host's own addresses, and kernels before July 2026 may
 * ask another table than the VRF's. What both say is what the stack finds. ROUTE_DONE, or the
 * enum route for which the packet is left to the stack.
 */
static __always_inline u32 route_look(void *ctx, bool answers)
{
	struct route_memory *memory = route_memory_get();
	struct bpf_fib_lookup *at, *direct;
	const u64 *one, *other;
	u32 flags, why;
	u64 differs;

	if (!memory)
		return ROUTE_AWAY;
	at = answers ? route_back(memory) : route_to(memory);
	flags = answers ? FIB_SKIP_NEIGH : 0;
	/* what comes in by a VRF's interface comes in by the VRF, but not for the stack's IPv4 */
	if (!answers)
		at->ifindex = at->family == 10 && memory->vrf ? memory->vrf : memory->interface;
	direct = route_direct(memory);
	if (memory->vrf) {
		*direct = *at;
		direct->ifindex = memory->interface;
	}
	why = route_answer(bpf_fib_lookup(ctx, at, sizeof(*at), flags));
	if (why || !memory->vrf)
		return why;
	differs = bpf_fib_lookup(ctx, direct, sizeof(*direct), flags | FIB_DIRECT);
	one = (const u64 *)at;
	other = (const u64 *)direct;
#pragma unroll
	for (u32 i = 0; i < sizeof(*at) / sizeof(*one); i++)
		differs |= one[i] ^ other[i];
	return differs ? ROUTE_CHOICE : ROUTE_DONE;
}

OFTEN __noinline u32 route_look_skb(struct __sk_buff *skb, bool answers)
{
	return route_look(skb, answers);
}

OFTEN __noinline u32 route_look_xdp(struct xdp_md *xdp, bool answers)
{
	return route_look(xdp, answers);
}

#define ROUTE_LOOK(h, answers)                                                                     \
	((h)->skb ? route_look_skb((h)->ctx, (answers)) : route_look_xdp((h)->ctx, (answers)))

/* Notes what the stack asks to check the source of a packet: the way of an answer. */
static __always_inline void route_turn(struct route_memory *memory)
{
	const struct bpf_fib_lookup *to = route_to(memory);
	struct bpf_fib_lookup *back = route_back(memory);

	*back = (struct bpf_fib_lookup){.family = to->family, .tos = to->tos};
	back->l4_protocol = to->l4_protocol;
	back->sport = to->dport;
	back->dport = to->sport;
	back->ipv4_src = to->ipv4_dst;
	back->ipv4_dst = to->ipv4_src;
}

/*
 * Would an answer go back by the interface that the packet has come by? If so, the packet
 * passes the stack's check of its source, whatever rp_filter asks for, and its source is not
 * one of the host's own. If an answer goes back by another interface, the packet passes
 * unless the check is strict. Rules may ask by which interface the answer comes in: the
 * stack tells them the one that the packet leaves by. IPv6 has no such check.
 */
static __always_inline bool route_returns(const struct hook *h, struct route_memory *memory)
{
	struct bpf_fib_lookup *back = route_back(memory);
	bool rules = cfg.route.rules && route_load(u8, route_net(memory), cfg.route.rules);
	u32 why;

	back->ifindex = rules ? route_to(memory)->ifindex : memory->interface;
	why = ROUTE_LOOK(h, true);
	if (why && (why != ROUTE_SIZE || memory->vrf))
		return false;
	return back->ifindex == memory->interface || !route_is_strict(memory);
}

/* The place of the second in which the host has last seen a packet to a next hop. */
static __always_inline u32 *route_second(struct route_memory *memory,
					 const struct bpf_fib_lookup *to, u32 now)
{
	const u32 odd = 0x9e3779b1u;
	u32 hop = to->ifindex;

	/* of an address of IPv4 the others are zero */
	for (u32 i = 0; i < 4; i++) {
		hop = (hop ^ to->ipv6_dst[i]) * odd;
		hop ^= hop >> 15;
	}
	/* those that share a place now have other places in the next second: all get their turn */
	hop = (hop ^ now) * odd;
	hop = (hop ^ hop >> 15) * odd;
	return &memory->second[hop / (0x100000000ull / FRESH_HOPS)];
}

/*
 * Is this the packet to a next hop that the host is to see in this second? The look-up takes
 * a neighbour's address without looking whether the neighbour is still there; when the host
 * sends a packet itself, it does.
 */
static __always_inline bool route_freshens(const struct hook *h, struct route_memory *memory,
					   const struct bpf_fib_lookup *to)
{
	u32 now = clock_now(), *second = route_second(memory, to, now);

	if (*second == now)
		return false;
	/* XDP leaves it to tcx, which leaves it to the host */
	if (h->skb)
		*second = now;
	return true;
}

/*
 * Does the host have policies of IPsec? Packets that are routed may have to be ciphered then,
 * or dropped, and only the stack knows which.
 */
static __always_inline bool route_guarded(const struct route_memory *memory)
{
	void *net = route_net(memory);
	u32 at = cfg.route.policies;

	/* six numbers of 32 bits: in, out and forwarded, of sockets and of all */
	return at && (route_load(u64, net, at) | route_load(u64, net, at + 8) |
		      route_load(u64, net, at + 16));
}

/*
 * Finds the host's interface that takes frames to an address at the port in a slot:
 * ROUTE_DONE, or why packets to this address are not the datapath's to route.
 */
static __always_inline u32 route_interface(const struct hook *h, struct route_memory *memory,
					   u32 slot, u64 dst)
{
	const volatile struct port *p = port_at(slot);
	u64 key = GATEWAY_MAC(p->endpoint, dst);
	struct gateway *in = bpf_map_lookup_elem(&gateways, &key);
	void *end;

	if (!in)
		return dst == p->host ? ROUTE_AWAY : ROUTE_OTHER;
	memory->interface = in->ifindex;
	end = bpf_map_lookup_elem(&host_ends, &memory->interface);
	if (!end)
		return ROUTE_AWAY;
	memory->device = (u64)route_device_of(end);
	/* the namespace is always the same one */
	if (!memory->net)
		memory->net = route_load(u64, route_device(memory), cfg.route.net);
	if (!route_address(memory, dst))
		return ROUTE_OTHER;
	/* a macvlan does not hear that the host's end is down */
	end = dst != p->host ? bpf_map_lookup_elem(h->devices, &slot) : 0;
	if ((end && !route_has_carrier(end)) || route_taken(memory, in))
		return ROUTE_TAKEN;
	return ROUTE_DONE;
}

/*
 * Takes one from the packet's time to live and corrects its checksum (RFC 1624), in the
 * header that has been read and in the packet. The frame gets the addresses that it has on
 * the next link, if it goes on by a routed host port: the kernel writes those of others.
 * False if there is no memory; the frame is as it was then.
 */
static __always_inline bool route_ages4(struct __sk_buff *skb, struct route_memory *memory)
{
	const u32 first = offsetof(struct iphdr, ttl), part = 4; /* TTL, protocol, checksum */
	struct iphdr *ip = (struct iphdr *)memory->header;
	u32 sum = ip->check + bpf_htons(0x0100);
	struct {
		u8 ether[ETHER_HEADER];
		u8 ip[12]; /* up to the addresses */
	} __attribute__((packed)) frame;

	ip->ttl--;
	ip->check = sum + (sum >= 0xffff);
	/* the header's sum stays what it was */
	if (!memory->endpoint)
		return !bpf_skb_store_bytes(skb, ETHER_HEADER + first, &ip->ttl, part, 0);
	__builtin_memcpy(frame.ether, route_to(memory)->dmac, 6);
	__builtin_memcpy(frame.ether + 6, route_to(memory)->smac, 6);
	frame.ether[12] = ETH_P_IP >> 8;
	frame.ether[13] = ETH_P_IP & 0xff;
	__builtin_memcpy(frame.ip, ip, sizeof(frame.ip));
	return !bpf_skb_store_bytes(skb, 0, &frame, sizeof(frame), 0);
}

static __always_inline bool route_ages6(struct __sk_buff *skb, struct route_memory *memory)
{
	struct ipv6hdr *ip = (struct ipv6hdr *)memory->header;
	u8 addresses[12];

	ip->hop_limit--;
	if (bpf_skb_store_bytes(skb, ETHER_HEADER + offsetof(struct ipv6hdr, hop_limit),
				&ip->hop_limit, 1, BPF_F_RECOMPUTE_CSUM))
		return false;
	if (memory->endpoint) {
		__builtin_memcpy(addresses, route_to(memory)->dmac, 6);
		__builtin_memcpy(addresses + 6, route_to(memory)->smac, 6);
		bpf_skb_store_bytes(skb, 0, addresses, sizeof(addresses), 0);
	}
	return true;
}

/*
 * Gives the packet the priority that the stack gives what it forwards (ip_tos2prio in the
 * kernel), unless the host's ip_forward_update_priority is off.
 */
static __always_inline void route_prefers(struct __sk_buff *skb, const struct route_memory *memory,
					  u8 tos)
{
	if (*(u8 *)(route_net(memory) + cfg.route.priority))
		skb->priority = 0x4620 >> ((tos & 0x18) >> 1) & 7;
}

/*
 * Notes the routed host port that the way goes on by, if it goes on by one. ROUTE_DONE, or why
 * the packet is left to the stack: another device has the index by now, the interface has
 * another address or no carrier, or macvlans would keep the packet in the host.
 */
static __always_inline u32 route_gateway(struct route_memory *memory, u32 slot)
{
	const struct bpf_fib_lookup *to = route_to(memory);
	u64 key = to->ifindex;
	struct gateway *g = bpf_map_lookup_elem(&gateways, &key);
	u32 ifindex = to->ifindex;
	void *end;

	memory->endpoint = 0;
	if (!g)
		return ROUTE_DONE;
	memory->endpoint = g->endpoint;
	memory->ifindex = g->ifindex;
	end = bpf_map_lookup_elem(&host_ends, &ifindex);
	if (!end)
		return ROUTE_AWAY;
	if (g->mac != (*(u64 *)to->smac & MAC_MASK))
		return ROUTE_OTHER;
	if (!route_has_carrier(end))
		return ROUTE_TAKEN;
	if (g->endpoint == port_at(slot)->endpoint)
		return ROUTE_SAME;
	if (g->macvlans) {
		memory->again = false; /* this depends on the neighbour's address */
		key = 0;
		__builtin_memcpy(&key, to->dmac, 6);
		key = GATEWAY_MAC(g->endpoint, key);
		if (bpf_map_lookup_elem(&gateways, &key))
			return ROUTE_SAME;
	}
	return ROUTE_DONE;
}

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

/*
 * Does this CPU remember the way of the packet that has been read, to an address at the port
 * in a slot? If so, route_to() has the kernel's answer as it was. If not, what the way
 * depends on is noted for route_keep(). This is a separate function, as are route_keep() and
 * those that read: the verifier then follows one way less.
 */
OFTEN __noinline bool route_recall(u32 slot, u64 dst, bool gso)
{
	struct route_memory *memory = route_memory_get();
	struct bpf_fib_lookup *to;
	struct route_way *way, *ask;
	const u64 *address;
	u64 gateway, ports, other;
	u32 flow, tick, changes, at;

	if (!memory)
		return false;
	memory->way = ROUTE_NO_WAY;
	memory->late = false;
	to = route_to(memory);
	at = to->family == 2 ? cfg.route.changes : cfg.route.changes6;
	/* a trial remembers nothing */
	if (on(FEATURE_TRACE) || !memory->net || !at)
		return false;
	changes = *(u32 *)(route_net(memory) + at);
	tick = bpf_jiffies64();
	gateway = GATEWAY_MAC(port_at(slot)->endpoint, dst);
	address = (const u64 *)to->ipv6_src;
	__builtin_memcpy(&ports, to, sizeof(ports));
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

/* What is known in this tick of an address that packets are for. */
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

/* Notes that both ends of a way, which has just been found, have been looked at. */
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

/* Remembers the kernel's answer for packets like the one that route_recall() was asked about. */
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
 * Asks the host's routes once more for the way at a place, which was found in a tick that has
 * passed, while the kernel has numbered no change. True if they say the same; the way then holds
 * in this tick, and route_to() has the answer. This takes one look-up, where to find a way takes
 * two and a look at both interfaces: another packet has had that in this tick. What the second
 * look-up says, the way of an answer, changes with the kernel's number alone.
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
	/* route_to() stays as it is if the way has to be found */
	to = route_direct(memory);
	*to = (struct bpf_fib_lookup){};
	__builtin_memcpy(to, &way->ports, sizeof(way->ports));
	to->tot_len = 1; /* the look-up tells the MTU */
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
	/* the host is to see a packet to that hop in this second: route_freshens() has to say */
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

/* Is this the type of an echo, or of the answer to one? The other types tell something else. */
static __always_inline bool icmp_is_echo(u8 type, bool six)
{
	return six ? type == 128 || type == 129 : type == 0 || type == 8;
}

/* What is read of a packet to find its way again. */
struct route_seen {
	u64 gateway; /* these are as struct route_way has them */
	u64 address[4];
	u64 ports;
	u32 flow;
	u32 tick;
	u32 changes;
};

/* Notes which of the ports and protocols a way is for: false if packets of it ask for more. */
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
	/* as route_recall() has it of a struct bpf_fib_lookup */
	seen->ports = (six ? 10 : 2) | proto << 8 | (u64)upper << 16;
	return true;
}

/*
 * Reads the packet of a frame of `len` bytes to an address at the port in a slot. False if it asks
 * for more than its way: it is none of TCP or UDP, nor an echo, it is not whole, or something is
 * behind it in its frame.
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
		seen.ports = (seen.ports & 0xffff) | (u64)as->ports << 16;
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
 * The way of a packet to an address at the port in a slot, if it is remembered with all that
 * the bridge decides on the packet, and if the packet asks for no more: see route_sees(). `size`
 * is that of its frame of `len` bytes, or of the largest that it will be cut into. `as` is what
 * the host's stack would see in its place. 0 if its way has to be found.
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
 * Remembers what the bridge has decided in an epoch on the packet that has been asked about,
 * at the routed host port that its way leads to: from slot to slot, in untagged frames of up to
 * `fits` bytes.
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

/*
 * Finds out where the host would send a packet to an address at a routed host port:
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
		if (route_chooses(memory, cfg.route.hash6))
			return ROUTE_CHOICE;
	} else if (route_chooses(memory, cfg.route.hash)) {
		return ROUTE_CHOICE;
	}
	route_turn(memory);
	/* GSO packets are measured by their segments, below; the look-up tells the route's MTU */
	to->tot_len = size->gso ? 1 : memory->len - ETHER_HEADER;
	why = ROUTE_LOOK(h, false);
	if (why)
		return why;
	/* the look-up may have told a next hop of another family */
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
	why = route_gateway(memory, slot);
	if (!why)
		route_keep();
	return why;
}

/* Notes for `bascule trace` where a packet goes that the datapath would route. */
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
 * Routes a frame to an address at a routed host port: where it goes (ROUTE_GATEWAY,
 * ROUTE_DEVICE), or the enum route for which it is left to the stack as it is.
 */
OFTEN __noinline u32 route_skb(struct __sk_buff *skb, u32 slot, u64 dst)
{
	const struct hook h = {.ctx = skb, .devices = &tcx_devices, .skb = true};
	struct route_size size = {.len = skb->len, .gso = skb->gso_size};
	struct route_memory *memory = route_memory_get();
	/* of the next hop's family the packet need not be (RFC 8950) */
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
	/* a mark chooses the way by the host's rules, and the look-up has none */
	if (skb->mark)
		return ROUTE_CHOICE;
	why = route_find(&h, memory, slot, dst, route_read_skb(skb), &size);
	/*
	 * The stack would go by the hash of the sender's socket, or of its network card, where it
	 * chooses among next hops by ports. The look-up has none, so the stack is to have none for
	 * the few packets of a connection that it gets.
	 */
	if (why == ROUTE_FRESH || why == ROUTE_NEIGHBOUR || why == ROUTE_SIZE)
		bpf_set_hash_invalid(skb);
	if (why)
		return why;
	if (on(FEATURE_TRACE))
		return route_tell(to);
	/* what is behind the packet to fill a frame stays on the link that it came by */
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
 * Has the look-up ask for the packet that the host's stack would see, where rules translate the
 * one that has been read: what route_read_xdp() has said, or why it is left to the stack.
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
 * Finds the way of a frame that XDP sends to a routed host port: ROUTE_GATEWAY if it goes on
 * by another such port of this bridge. struct route_memory then has what the frame is there.
 * The frame is as it was. In all other cases tcx finds its way.
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
 * Gives a frame whose header is there the addresses that it has on its next link, 32 bits at once:
 * receiver, sender, as struct route_way has them.
 */
static __always_inline void route_readdress(void *data, const u8 *macs)
{
	const u32 *from = (const u32 *)macs;
	u32 *to = data;

	to[0] = from[0];
	to[1] = from[1];
	to[2] = from[2];
}

/* Takes one from the time to live of the packet of a frame whose first 34 bytes are there. */
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

/* Rewrites a frame of len bytes as route_xdp() has found. False if that cannot be. */
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

/* What has to look at each frame, or into it, keeps frames from being routed in one go by tcx. */
#define ROUTES_BY_TCX                                                                              \
	!on(FEATURES_NOTE | (FEATURES_JUDGE & ~FEATURE_PF) | FEATURE_GUARD | FEATURE_BACKUP |      \
	    FEATURE_SPAN | FEATURE_TRACE)

/*
 * The size in bytes of a frame, or of the largest that the kernel makes of it if it is a GSO
 * packet. ~0 if that is one whose segments are not those of its own TCP header.
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
 * Notes the addresses that a frame has on its next link, as struct route_way has them. They are in
 * the place of a next hop of the kernel's.
 */
static __always_inline void route_macs(struct route_memory *memory, const u8 *macs)
{
	__builtin_memcpy(memory->hop, macs, 12);
}

/*
 * Makes a packet the one on its next link: takes one from its time to live, and gives its frame
 * the addresses that route_macs() has noted. The packet has no options. It then goes by the port
 * in a slot. 0 if there is no memory; the packet is as it was then.
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
		/* the header's sum stays what it was */
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
		if (peer == port_at(out)->peer)
			return bpf_redirect_peer(port_at(out)->ifindex, 0);
	}
	return bpf_redirect(port_device(&tcx_devices, out), 0);
}

/*
 * The way of a packet to an address at the port in a slot, as route_known() has it, if the device
 * that it leads to is there.
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

/*
 * Routes a packet to an address at a routed host port whose way is remembered, with all that is
 * decided on it: what is to be done with its frame, or 0 if its way is still to be found. The
 * frame has been counted at both ports of its way to the host, and is as it was if that is so.
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
 * Remembers what this bridge decides on the packet that is about to go on at another of its
 * routed host ports, if it has decided so on one before.
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

/* Counts what has become of a frame for a routed host port: what route_skb() has said. */
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
 * Begins a trip of the routed packet, which may have been in this bridge before. It keeps
 * the count of hops, because the kernel counts the same tail calls.
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
