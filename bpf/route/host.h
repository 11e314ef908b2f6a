/* SPDX-License-Identifier: (GPL-2.0-only OR BSD-2-Clause) */

/*
 * The host's answers: the result of its stack for a packet that it takes at a routed host port. The
 * packet is read; the rest follows from the settings, routes, neighbours and policies of the host.
 */
#pragma once

#include "../decision.h"
#include "../patch.h"
#include "../pf/through.h"
#include "../trace.h"

/* Puts the type into BTF for Go: BTF only has types that are used. */
const enum route *route_type __attribute__((unused));

/* Flags of bpf_fib_lookup() that older headers lack. */
#define FIB_SKIP_NEIGH (1u << 2)
#define FIB_DIRECT (1u << 0)

/* The results of route_xdp(), and the times when the host last saw next hops: see struct trip. */
static __always_inline struct route_memory *route_memory_get(void)
{
	struct trip *t = trip_get();

	return t ? &t->route : 0;
}

_Static_assert(sizeof(struct bpf_fib_lookup) == 8 * sizeof(u64), "look-ups have no room");
_Static_assert(sizeof(struct bpf_redir_neigh) <= 3 * sizeof(u64), "a next hop has no room");

/* The look-up of a packet's way, of an answer's way, and in a VRF's table. */
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

/* Where a routed packet goes: instead of an enum route, for route_skb()'s caller. */
#define ROUTE_GATEWAY (1u << 16) /* to a routed host port: its endpoint is below */
#define ROUTE_DEVICE (1u << 17) /* by the kernel, which has been called already */

/* The ways that a CPU remembers are in parts of its memory, as many as the loader has made. */
#define ROUTE_NO_WAY (~0ull)
#define ROUTE_BLIND_WAY (~1ull) /* of a packet that goes on blindly: see route_blind() */

struct route_ways {
	struct route_way at[ROUTE_PART];
};

MEMORY_HOLDS(struct route_ways);

/* Is it an address of a station that may be routed (RFC 1122 3.2.1.3)? */
static __always_inline bool ip4_is_plain(u32 address)
{
	u8 first = address & 0xff; /* the first byte of the packet's four */

	return first && first != 127 && first < 224;
}

/*
 * Is it an address of that kind? The kernel's look-up itself leaves out link-local ones. An address
 * that maps or translates an IPv4 address is left to the host.
 */
static __always_inline bool ip6_is_plain(const u32 *address)
{
	if ((address[0] & 0xff) == 0xff) /* groups */
		return false;
	return address[0] || address[1] || (address[2] && address[2] != bpf_htonl(0xffff));
}

/* Is the header's checksum correct? The header has no options. */
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

/* Reads bytes of the frame: nearly always they are where a program may read them directly. */
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
 * The data that the look-up needs about a packet in addition to its addresses. If routes have
 * several next hops, it chooses like the stack, which only looks at ports in whole packets, and not
 * at padding in the frame. For the stack all these protocols have ports (proto_ports_offset() in
 * the kernel).
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

/* Is the ICMP message about another packet, or for neighbours? */
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

/*
 * Reads the packet, and fills in the look-up. Returns ROUTE_DONE, or why it is left to the stack.
 */
static __always_inline u32 route_read4(const struct hook *h, const struct route_size *size,
				       struct bpf_fib_lookup *to, struct iphdr *ip)
{
	u32 len;

	if (route_bytes(h, ETHER_HEADER, ip, sizeof(*ip)))
		return ROUTE_HEADER;
	len = bpf_ntohs(ip->tot_len);
	if (ip->version != 4 || ip->ihl != 5 || len < sizeof(*ip) || !ip4_sums_up(ip))
		return ROUTE_HEADER;
	/* a packet that GSO has made large may be larger than its header can express */
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
	 * Every router must process hop-by-hop options (RFC 8200 4.3). The others are headers that
	 * the stack looks behind where it chooses among next hops, or where rules match ports.
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
 * Reads the packet of a frame with an EtherType, and records its size. Returns ROUTE_DONE, or why
 * it is left to the stack.
 */
static __always_inline u32 route_read(const struct hook *h, u16 type, const struct route_size *size)
{
	struct route_memory *memory = route_memory_get();
	struct bpf_fib_lookup *to;
	u32 why;

	if (!memory)
		return ROUTE_AWAY;
	to = route_to(memory);
	*to = (struct bpf_fib_lookup){}; /* its padding, too, must be zero */
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

/* The enum route for the result of the kernel's look-up. */
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
 * The structure of a kernel type (a BTF number) at an address. The kernel's function for this,
 * bpf_rdonly_cast(), costs nothing, and a load takes few instructions where bpf_probe_read_kernel()
 * takes ninety. The loader replaces the constant by a call.
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
 * Loads a member of such a structure. The verifier looks up the member's type: a pointer leads to
 * such a structure, too. A load from an invalid address gives zero. The kernel does not free
 * devices, nor the objects behind their pointers, while a program runs. Each load keeps the size
 * with which it is written, because the verifier accepts no part of a pointer or of a bit field.
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
 * Does the host's interface do anything with frames other than take its own? An interface that is
 * down takes none. Another device takes them if the interface belongs to a bridge, a bond or
 * similar. That other device may be a macvlan, which only takes frames to its own address. The
 * loader does not name interfaces with macvlans that take more.
 */
static __always_inline bool route_taken(const struct route_memory *memory, const struct gateway *in)
{
	void *device = route_device(memory);

	return !(route_load(u32, device, cfg.route.flags) & 1) ||
	       (!in->macvlans && route_load(u64, device, cfg.route.handler));
}

/* Records the VRF of the host's interface. Returns false if it is unknown. */
static __always_inline bool route_domain(struct route_memory *memory)
{
	void *device = route_device(memory), *next, *entry;

	memory->vrf = 0;
	if (!(route_load(u32, device, cfg.route.private) & cfg.route.slave))
		return true;
	next = route_load(void *, device, cfg.route.above);
	if (next == device + cfg.route.above)
		return false;
	/* the list points into the entry, and its type does not name the entry's */
	entry = route_cast((u64)next - cfg.route.entry, cfg.route.adjacent);
	if (!route_load(u8, entry, cfg.route.master))
		return false;
	device = route_load(void *, entry, cfg.route.upper);
	memory->vrf = route_load(u32, device, cfg.route.index);
	return memory->vrf;
}

/* Is this the MAC of the host's interface? It may have changed since the loader read it. */
static __always_inline bool route_address(const struct route_memory *memory, u64 mac)
{
	u64 at = route_load(u64, route_device(memory), cfg.route.address);
	/* for the verifier it points to bytes, or is a number */
	void *own = route_cast(at - cfg.route.mac, cfg.route.hardware);

	return (route_load(u64, own, cfg.route.mac) & MAC_MASK) == mac;
}

/*
 * Does the host forward IPv6 that its interface takes? The look-up only checks whether the
 * interface forwards. The stack checks whether all do, and whether the interface has IPv6.
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
 * Does the host choose among next hops by more than the look-up has? It does with the policies
 * (fib_multipath_hash_policy) that look into tunnels or use their own hash. The policy of the
 * packet's family is at this place in the namespace.
 */
static __always_inline bool route_chooses(const struct route_memory *memory, u32 at)
{
	return at && route_load(u8, route_net(memory), at) > 1;
}

/*
 * Does the host strictly check the source of packets that its interface takes (rp_filter)? The
 * setting of the interface or of all interfaces requires it: the larger counts. A loose check is a
 * strict one at an interface without an address. Returns true if it is unknown.
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

/* A look at the host's rules, in the memory of the look-up in a VRF's table. */
struct route_rules {
	u64 at; /* address of a rule in the kernel, or of the list's end */
	u64 end;
	u64 refuses; /* a rule may refuse the route of its table */
};

#define ROUTE_RULES 256 /* maximum of rules checked */

static long route_next_rule(u32 n, void *unused)
{
	struct route_memory *memory = route_memory_get();
	struct route_rules *r;
	void *rule;

	if (!memory)
		return 1;
	r = (struct route_rules *)route_direct(memory);
	if (r->at == r->end) {
		r->refuses = false;
		return 1;
	}
	rule = route_cast(r->at, cfg.route.rule);
	if (route_load(u32, rule, cfg.route.suppress_group) + 1 ||
	    route_load(u32, rule, cfg.route.suppress_bits) + 1)
		return 1;
	r->at = (u64)route_load(void *, rule, 0);
	return 0;
}

/*
 * May an IPv6 rule refuse the route of its table (suppress_prefixlength, suppress_ifgroup)? Then
 * the stack goes on to the next rule. The kernel's look-up for programs does so only for IPv4
 * (fib6_rule_suppress() looks for a route in a form that only the stack has). pf's next hops use
 * that look-up as it is: the stack would not replace them.
 */
OFTEN __noinline u32 route_suppresses(void)
{
	struct route_memory *memory = route_memory_get();
	struct route_rules *r;
	void *list;

	if (!memory)
		return true;
	if (!cfg.route.rules6 || !route_load(u8, route_net(memory), cfg.route.rules6))
		return false;
	list = route_load(void *, route_net(memory), cfg.route.list6);
	r = (struct route_rules *)route_direct(memory);
	r->at = (u64)route_load(void *, list, cfg.route.rules_list);
	r->end = (u64)list + cfg.route.rules_list;
	r->refuses = true;
	bpf_loop(ROUTE_RULES + 1, route_next_rule, 0, 0);
	return r->refuses;
}

/*
 * Looks up the way of the packet that has been read, or of an answer to it, by the host's rules. In
 * a VRF the VRF's own table must have the same result: rules before that table are evaluated, too,
 * first of all the rule for the host's own addresses, and kernels before July 2026 may use another
 * table than the VRF's. If both agree, the stack finds the same. Returns ROUTE_DONE, or the enum
 * route for which the packet is left to the stack.
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
	/* packets from a VRF's interface arrive from the VRF, but not for the stack's IPv4 */
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

/* Fills in the stack's look-up for the source check of a packet: the way of an answer. */
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
 * Would an answer go back through the interface on which the packet has arrived? If so, the packet
 * passes the stack's check of its source, whatever rp_filter requires, and its source is not one of
 * the host's own. If an answer goes back through another interface, the packet passes unless the
 * check is strict. Rules may match the interface on which the answer arrives: the stack passes them
 * the one that the packet leaves through. IPv6 has no such check.
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

/* The place of the second in which the host last saw a packet to a next hop. */
static __always_inline u32 *route_second(struct route_memory *memory,
					 const struct bpf_fib_lookup *to, u32 now)
{
	const u32 odd = 0x9e3779b1u;
	u32 hop = to->ifindex;

	/* for an IPv4 address the others are zero */
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
 * Is this the packet to a next hop that the host should see in this second? The look-up uses a
 * neighbour's address without a check that the neighbour still exists; when the host sends a packet
 * itself, it checks.
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
 * Does the host have IPsec policies? Then routed packets may have to be encrypted, or dropped, and
 * only the stack can decide.
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
 * Finds the host's interface that takes frames to an address at the port in a slot. Returns
 * ROUTE_DONE, or why the datapath must not route packets to this address.
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
	/* a macvlan does not notice that the host's end is down */
	end = dst != p->host ? bpf_map_lookup_elem(h->devices, &slot) : 0;
	if ((end && !route_has_carrier(end)) || route_taken(memory, in))
		return ROUTE_TAKEN;
	return ROUTE_DONE;
}

/*
 * Records the routed host port of the way, if there is one. Returns ROUTE_DONE, or why the packet
 * is left to the stack: another device has the index by now, the interface has another address or
 * no carrier, or macvlans would keep the packet in the host.
 */
OFTEN __noinline u32 route_gateway(u32 slot)
{
	struct route_memory *memory = route_memory_get();
	const struct bpf_fib_lookup *to;
	struct gateway *g;
	u32 ifindex;
	void *end;
	u64 key;

	if (!memory)
		return ROUTE_AWAY;
	to = route_to(memory);
	ifindex = to->ifindex;
	key = ifindex;
	g = bpf_map_lookup_elem(&gateways, &key);
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
